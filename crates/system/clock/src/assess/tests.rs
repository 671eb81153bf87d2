use std::net::IpAddr;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::kernel::Leap as KernelLeap;
use crate::ptp4l::PortReading;
use crate::ptp4l::management::{
    CurrentDataSet, DefaultDataSet, PortProperties, PortState, TimeProperties, TimeStamping,
    TimeStatus,
};
use crate::status::Unmet;

const SECOND: u64 = 1_000_000_000;

fn kernel(tai_offset_s: i32, synchronised: bool, max_error_ns: u64) -> KernelReading {
    KernelReading {
        tai_offset_s,
        synchronised,
        max_error_ns,
        estimated_error_ns: 0,
        leap: KernelLeap::None,
    }
}

/// At this many seconds after the start of the test, with a kernel that knows TAI and is not synchronised.
fn at(seconds: u64) -> Readings {
    Readings {
        kernel: Some(Ok(kernel(37, false, 0))),
        tai_ns: (1_700_000_000 + seconds as i64) * 1_000_000_000,
        monotonic_ns: (1 + seconds) * SECOND,
        reading_ns: 100,
        ..Readings::default()
    }
}

fn ptp(state: PortState, stamping: TimeStamping, offset_ns: i64, path_delay_ns: i64) -> PtpReading {
    PtpReading {
        clock: DefaultDataSet {
            ports: 1,
            class: 248,
            identity: [1; 8],
            domain: 0,
        },
        current: CurrentDataSet {
            steps: 1,
            offset_ns,
            mean_path_delay_ns: path_delay_ns,
        },
        time: TimeProperties {
            utc_offset_s: 37,
            utc_offset_valid: true,
            ptp_timescale: true,
            traceable: false,
        },
        status: TimeStatus {
            offset_ns,
            at_ns: 0,
            grandmaster_present: true,
            grandmaster: [0, 0x1b, 0x19, 0xff, 0xfe, 1, 2, 3],
        },
        ports: vec![PortReading {
            number: 1,
            state,
            peer_delay_ns: 0,
            properties: Some(PortProperties {
                number: 1,
                stamping,
                interface: "eth0".into(),
            }),
        }],
    }
}

fn tracking() -> Tracking {
    Tracking {
        reference: Reference::Server(IpAddr::from([10, 0, 0, 1])),
        stratum: 2,
        leap: Leap::Normal,
        updated_utc_ns: (1_700_000_000 - 37 - 5) * 1_000_000_000,
        offset_ns: -1_500,
        root_delay_ns: 40_000,
        root_dispersion_ns: 3_000,
        update_interval_ns: 8 * SECOND,
    }
}

fn codes(status: &ClockStatus) -> Vec<&str> {
    status.warnings.iter().map(|warning| warning.code).collect()
}

fn once(readings: Readings) -> ClockStatus {
    assess(readings, &mut History::default())
}

#[test]
fn a_machine_without_any_program_is_free_running_and_says_what_to_do() {
    let mut readings = at(0);
    readings.kernel = Some(Ok(kernel(0, false, 0)));
    let status = once(readings);
    assert_eq!(
        (status.state, status.source),
        (State::FreeRunning, Source::Kernel)
    );
    assert_eq!((status.offset_ns, status.bound_ns), (None, None));
    assert!(!status.tai_offset.set);
    assert_eq!(codes(&status), ["unsynchronised", "tai-offset-unset"]);
    let unmet = status.within(Duration::from_millis(1)).expect_err("unmet");
    let text = unmet.to_string();
    assert!(
        text.contains("free-running") && text.contains("run ptp4l"),
        "{text}"
    );
}

#[test]
fn a_kernel_that_may_not_be_asked_is_told_from_one_that_is_not_synchronised() {
    let mut readings = at(0);
    readings.kernel = Some(Err("Operation not permitted".into()));
    let status = once(readings);
    assert_eq!(
        (status.state, status.source),
        (State::FreeRunning, Source::None)
    );
    // What nobody knows is not warned of.
    assert_eq!(codes(&status), ["unsynchronised", "source-silent"]);
}

#[test]
fn the_kernels_word_holds_where_nobody_else_has_one() {
    let mut readings = at(0);
    readings.kernel = Some(Ok(kernel(37, true, 250_000)));
    let status = once(readings.clone());
    assert_eq!(
        (status.state, status.bound_ns),
        (State::Synchronised, Some(250_000))
    );
    assert!(status.within(Duration::from_micros(250)).is_ok());
    let unmet = status.within(Duration::from_micros(249));
    assert!(matches!(unmet, Err(Unmet::Bound { .. })), "{unmet:?}");
    // phc2sys sets the error to 0: it is synchronised, and nobody knows how well.
    readings.kernel = Some(Ok(kernel(37, true, 0)));
    let status = once(readings);
    assert_eq!((status.state, status.bound_ns), (State::Synchronised, None));
    let unmet = status.within(Duration::MAX);
    assert!(matches!(unmet, Err(Unmet::Unknown { .. })), "{unmet:?}");
}

#[test]
fn a_clock_whose_kernel_does_not_know_tai_meets_no_demand_however_good_it_is() {
    let software = |valid, timescale| {
        let mut ptp = ptp(PortState::Slave, TimeStamping::Software, 100, 1_000);
        ptp.time.utc_offset_valid = valid;
        ptp.time.ptp_timescale = timescale;
        ptp
    };
    let refused = |readings: Readings| {
        let status = once(readings);
        assert_eq!(status.state, State::Synchronised);
        let unmet = status.within(Duration::from_secs(1));
        let Err(Unmet::TaiOffset { .. }) = &unmet else {
            panic!("{unmet:?}: {status:?}");
        };
        let text = unmet.expect_err("unmet").to_string();
        assert!(
            text.contains("phc2sys") || text.contains("timescale"),
            "{text}"
        );
    };
    for offset in [0, 36] {
        let mut readings = at(0);
        readings.kernel = Some(Ok(kernel(offset, true, 250_000)));
        // ptp4l with software stamps keeps UTC in the kernel's clock, whether its grandmaster is sure or not.
        readings.ptp4l = Some(Ok(software(true, true)));
        refused(readings.clone());
        if offset != 0 {
            continue;
        }
        readings.ptp4l = Some(Ok(software(false, true)));
        refused(readings.clone());
        readings.ptp4l = None;
        refused(readings.clone());
        let mut tracking = tracking();
        tracking.updated_utc_ns += 37 * 1_000_000_000;
        readings.chrony = Some(Ok(tracking));
        refused(readings);
    }
    // Where all nodes do without, that is no fault, and one that does not is.
    let mut readings = at(0);
    readings.kernel = Some(Ok(kernel(0, true, 250_000)));
    readings.utc = true;
    assert_eq!(codes(&once(readings.clone())), Vec::<&str>::new());
    assert!(
        once(readings.clone())
            .within(Duration::from_micros(250))
            .is_ok()
    );
    readings.kernel = Some(Ok(kernel(37, true, 250_000)));
    refused(readings);
    // Told, it is as good as it says; and where the domain's time is no TAI at all, nothing is amiss.
    let mut readings = at(0);
    readings.ptp4l = Some(Ok(software(true, true)));
    assert!(
        once(readings.clone())
            .within(Duration::from_micros(2))
            .is_ok()
    );
    readings.kernel = Some(Ok(kernel(0, true, 250_000)));
    readings.ptp4l = Some(Ok(software(false, false)));
    assert!(once(readings).within(Duration::from_micros(2)).is_ok());
}

#[test]
fn chronys_bound_is_offset_dispersion_and_half_of_the_delay() {
    let mut readings = at(0);
    readings.chrony = Some(Ok(tracking()));
    let status = once(readings);
    assert_eq!(
        (status.state, status.source),
        (State::Synchronised, Source::Chrony)
    );
    assert_eq!(status.offset_ns, Some(-1_500));
    assert_eq!(status.bound_ns, Some(1_500 + 3_000 + 20_000));
    assert!(
        status.reference.contains("10.0.0.1"),
        "{}",
        status.reference
    );
    // The kernel of these tests has its flag set: chronyd without rtcsync.
    assert_eq!(codes(&status), ["kernel-flag"]);
}

#[test]
fn chrony_without_news_of_its_source_is_in_holdover() {
    let mut readings = at(0);
    readings.chrony = Some(Ok(tracking()));
    // Four intervals of 8 s are 32 s, and 5 s had passed.
    readings.tai_ns += 27 * SECOND as i64;
    assert_eq!(once(readings.clone()).state, State::Synchronised);
    readings.tai_ns += 1;
    let status = once(readings);
    assert_eq!(
        (status.state, status.bound_ns),
        (State::Holdover, Some(24_500))
    );
    assert_eq!(codes(&status), ["holdover"]);
}

#[test]
fn a_chrony_that_follows_nothing_is_free_running() {
    for (reference, leap) in [
        (Reference::None, Leap::Normal),
        (Reference::Local, Leap::Normal),
        (Reference::Clock("PPS".into()), Leap::Unsynchronised),
    ] {
        let mut readings = at(0);
        readings.chrony = Some(Ok(Tracking {
            reference,
            leap,
            ..tracking()
        }));
        let status = once(readings);
        assert_eq!(
            (status.state, status.source),
            (State::FreeRunning, Source::Chrony),
            "{status:?}"
        );
        assert_eq!(status.bound_ns, None);
    }
}

#[test]
fn a_follower_over_software_time_stamps_is_as_good_as_its_measurement() {
    let mut readings = at(0);
    readings.ptp4l = Some(Ok(ptp(PortState::Slave, TimeStamping::Software, -300, 700)));
    readings.chrony = Some(Ok(tracking()));
    let status = once(readings);
    assert_eq!(
        (status.state, status.source),
        (State::Synchronised, Source::Ptp4l)
    );
    assert_eq!(
        (status.offset_ns, status.bound_ns),
        (Some(-300), Some(1_000))
    );
    assert!(
        status.reference.contains("001b19.fffe.010203"),
        "{}",
        status.reference
    );
    assert_eq!(codes(&status), Vec::<&str>::new());
}

#[test]
fn behind_hardware_time_stamps_the_device_must_be_compared() {
    let follower = ptp(PortState::Slave, TimeStamping::Hardware, 40, 200);
    let mut readings = at(0);
    readings.ptp4l = Some(Ok(follower.clone()));
    let status = once(readings.clone());
    assert_eq!(status.state, State::FreeRunning);
    assert_eq!(codes(&status), ["phc-not-compared", "unsynchronised"]);

    // The device has TAI; the kernel's UTC clock is 37 s behind it, and 60 ns more.
    readings.device = Some((
        "/dev/ptp0".into(),
        Ok(PhcReading {
            realtime_minus_phc_ns: -37 * SECOND as i64 - 60,
            error_ns: 15,
        }),
    ));
    let status = once(readings.clone());
    assert_eq!(status.state, State::Synchronised);
    assert_eq!(
        (status.offset_ns, status.bound_ns),
        (Some(40 - 60), Some(20 + 200 + 15))
    );
    // A domain that has no PTP timescale keeps the device at the grandmaster's UTC.
    let mut arbitrary = follower;
    arbitrary.time.ptp_timescale = false;
    readings.ptp4l = Some(Ok(arbitrary));
    let status = once(readings);
    assert_eq!(status.offset_ns, Some(40 - 37 * SECOND as i64 - 60));
}

#[test]
fn a_grandmaster_has_the_time_of_its_domain() {
    let mut readings = at(0);
    readings.ptp4l = Some(Ok(ptp(PortState::Master, TimeStamping::Software, 0, 0)));
    let status = once(readings);
    assert_eq!(
        (status.state, status.bound_ns),
        (State::Synchronised, Some(0))
    );
    assert!(
        status.reference.contains("itself") && status.reference.contains("not traceable"),
        "{}",
        status.reference
    );
}

#[test]
fn a_follower_that_loses_its_master_is_in_holdover_with_a_growing_bound() {
    let mut history = History::default();
    let mut readings = at(0);
    readings.ptp4l = Some(Ok(ptp(PortState::Slave, TimeStamping::Software, 0, 700)));
    assert_eq!(assess(readings, &mut history).bound_ns, Some(700));
    for (seconds, state) in [(1, PortState::Listening), (3, PortState::Uncalibrated)] {
        let mut readings = at(seconds);
        readings.ptp4l = Some(Ok(ptp(state, TimeStamping::Software, 0, 700)));
        let status = assess(readings, &mut history);
        assert_eq!(status.state, State::Holdover);
        // 100 ppm are 100 µs per second.
        assert_eq!(
            status.bound_ns,
            Some(700 + seconds * 100_000 + HOLDOVER_PPM)
        );
        assert_eq!(codes(&status), ["holdover"]);
    }
    // One that never had a master does not hold anything.
    let mut readings = at(4);
    readings.ptp4l = Some(Ok(ptp(PortState::Listening, TimeStamping::Software, 0, 0)));
    assert_eq!(once(readings).state, State::FreeRunning);
}

#[test]
fn a_ptp4l_alone_says_nothing_about_a_clock_that_chrony_keeps() {
    let mut readings = at(0);
    readings.ptp4l = Some(Ok(ptp(PortState::Faulty, TimeStamping::Software, 0, 0)));
    readings.chrony = Some(Ok(tracking()));
    assert_eq!(once(readings).source, Source::Chrony);
}

#[test]
fn offsets_of_ptp4l_and_kernel_that_differ_are_told() {
    let mut readings = at(0);
    let mut follower = ptp(PortState::Slave, TimeStamping::Software, 0, 0);
    readings.kernel = Some(Ok(kernel(0, true, 0)));
    readings.ptp4l = Some(Ok(follower.clone()));
    let status = once(readings.clone());
    assert_eq!(status.tai_offset.by_ptp, Some(37));
    assert_eq!(codes(&status), ["tai-offset-disagrees"]);
    readings.kernel = Some(Ok(kernel(36, true, 0)));
    assert_eq!(codes(&once(readings.clone())), ["tai-offset-disagrees"]);
    readings.kernel = Some(Ok(kernel(37, true, 0)));
    assert_eq!(codes(&once(readings.clone())), Vec::<&str>::new());
    // A grandmaster that does not know either.
    follower.time.utc_offset_valid = false;
    readings.ptp4l = Some(Ok(follower));
    readings.kernel = Some(Ok(kernel(36, true, 0)));
    assert_eq!(codes(&once(readings)), Vec::<&str>::new());
}

#[test]
fn a_step_is_seen_told_for_a_while_and_ends_holdover() {
    let mut history = History::default();
    let mut readings = at(0);
    readings.ptp4l = Some(Ok(ptp(PortState::Slave, TimeStamping::Software, 0, 700)));
    assert_eq!(assess(readings, &mut history).steps, 0);
    let stepped = |seconds| {
        let mut readings = at(seconds);
        readings.tai_ns -= SECOND as i64;
        readings.ptp4l = Some(Ok(ptp(PortState::Listening, TimeStamping::Software, 0, 0)));
        readings
    };
    let status = assess(stepped(1), &mut history);
    assert_eq!((status.steps, status.state), (1, State::FreeRunning));
    assert_eq!(codes(&status), ["unsynchronised", "clock-stepped"]);
    let text = &status.warnings[1].message;
    assert!(text.contains("-1.000000000 s"), "{text}");
    let status = assess(stepped(601), &mut history);
    assert_eq!((status.steps, codes(&status).len()), (1, 2));
    let status = assess(stepped(602), &mut history);
    assert_eq!((status.steps, codes(&status).len()), (1, 1));
}

#[test]
fn slewing_and_slow_readings_are_no_steps() {
    let mut history = History::default();
    for (second, off) in [(0, 0), (1, 1_100), (2, -50)] {
        let mut readings = at(second);
        readings.tai_ns += off;
        assert_eq!(assess(readings, &mut history).steps, 0, "{second}");
    }
}

#[test]
fn programs_that_should_answer_and_do_not_are_told() {
    let mut readings = at(0);
    readings.ptp4l = Some(Err("ptp4l at /x does not answer".into()));
    readings.chrony = Some(Err("chronyd at /y does not answer".into()));
    readings.device = Some(("/dev/ptp7".into(), Err("no such device".into())));
    let status = once(readings);
    let silent: Vec<&str> = status
        .warnings
        .iter()
        .filter(|warning| warning.code == "source-silent")
        .map(|warning| warning.message.as_str())
        .collect();
    assert_eq!(silent.len(), 3, "{status:?}");
    assert!(silent[2].contains("/dev/ptp7") && silent[2].contains("ethtool -T"));
}

proptest! {
    #[test]
    fn no_answer_makes_assessing_fail(
        offset in any::<i64>(), path in any::<i64>(), away in any::<i64>(), error in any::<u64>(),
        tai in any::<i64>(), monotonic in any::<u64>(), updated in any::<i64>(),
        seconds in any::<i32>(), utc in any::<i16>(), delay in any::<u64>(), state in 0usize..4,
        reading in any::<u64>(), interval in any::<u64>(),
    ) {
        let state = [PortState::Slave, PortState::Uncalibrated, PortState::Master, PortState::Faulty][state];
        let mut history = History::default();
        for turn in 0..3u64 {
            let mut follower = ptp(state, TimeStamping::Hardware, offset, path);
            follower.time.utc_offset_s = utc;
            let readings = Readings {
                kernel: Some(Ok(kernel(seconds, turn == 1, error))),
                chrony: Some(Ok(Tracking {
                    updated_utc_ns: updated,
                    offset_ns: offset,
                    root_delay_ns: delay,
                    root_dispersion_ns: error,
                    update_interval_ns: interval,
                    ..tracking()
                })),
                ptp4l: (turn < 2).then_some(Ok(follower)),
                device: Some(("/dev/ptp0".into(), Ok(PhcReading {
                    realtime_minus_phc_ns: away,
                    error_ns: error,
                }))),
                host: Some(Ok(HostReading {
                    synchronised: turn != 1,
                    stratum: 1,
                    offset_ns: away,
                    error_ns: error,
                    distance_ns: delay,
                })),
                utc: false,
                tai_ns: tai.rotate_left(turn as u32 * 7),
                monotonic_ns: monotonic.rotate_left(turn as u32 * 9),
                reading_ns: reading,
            };
            let status = assess(readings, &mut history);
            // A bound is never less than what was measured.
            if let (Some(bound), Some(offset)) = (status.bound_ns, status.offset_ns)
                && status.state == State::Synchronised
            {
                prop_assert!(bound >= offset.unsigned_abs(), "{status:?}");
            }
        }
    }
}

fn host(synchronised: bool, offset_ns: i64) -> Option<Result<HostReading, String>> {
    Some(Ok(HostReading {
        synchronised,
        stratum: 2,
        offset_ns,
        error_ns: 50_000,
        distance_ns: 2_000,
    }))
}

#[test]
fn a_guests_clock_is_worth_what_its_hosts_is() {
    let guest = |host| Readings {
        kernel: Some(Ok(kernel(37, true, 1_000))),
        host,
        ..at(0)
    };
    let told = |readings| assess(readings, &mut History::default());
    let good = told(guest(host(true, -40_000)));
    assert_eq!(
        (good.state, good.bound_ns),
        (State::Synchronised, Some(3_000))
    );
    assert_eq!(codes(&good), [""; 0]);
    assert!(good.within(Duration::from_micros(3)).is_ok());
    // Further away than both can explain: the larger of the two counts.
    let away = told(guest(host(true, -90_000)));
    assert_eq!(
        (codes(&away), away.bound_ns),
        (vec!["host-disagrees"], Some(142_000))
    );
    let lost = told(guest(host(false, 0)));
    assert_eq!((lost.state, lost.bound_ns), (State::FreeRunning, None));
    assert!(codes(&lost).contains(&"host-unsynchronised"));
    assert!(lost.within(Duration::from_secs(1)).is_err());
    let silent = told(guest(Some(Err("nobody answers".into()))));
    assert_eq!(silent.bound_ns, None);
    assert!(codes(&silent).contains(&"host-silent"));
    assert!(silent.within(Duration::from_secs(1)).is_err());
}
