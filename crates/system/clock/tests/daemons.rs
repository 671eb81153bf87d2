//! ptp4l and chronyd themselves, in hosts of their own: what they say about their clock.
//!
//! Neither can touch the clock of this machine: ptp4l has `free_running`, chronyd `-x`, and both run without
//! CAP_SYS_TIME. A ptp4l in that mode never leaves the state UNCALIBRATED, so what a follower is worth is
//! tested beside [`takt_clock::assess`]. Needs root, linuxptp and chrony; skips with a reason otherwise.

mod support;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use support::{Daemon, chronyd, lab};
use takt_clock::chrony::{self, Reference};
use takt_clock::ptp4l::{self, Role};
use takt_clock::{Ask, ClockStatus, Observer, Source, Sources, State, SystemTai, Unmet};
use takt_lab::Host;
use takt_testing::{Directory, until};

fn observer(ptp4l: Ask<PathBuf>, chrony: Ask<chrony::Address>) -> Observer {
    let sources = Sources {
        ptp4l,
        chrony,
        ptp_domain: 24,
        device: None,
        host: None,
        utc: false,
    };
    Observer::new(sources, Arc::new(SystemTai))
}

fn has(status: &ClockStatus, code: &str) -> bool {
    status.warnings.iter().any(|warning| warning.code == code)
}

#[test]
fn ptp4l_says_who_leads_who_follows_and_what_the_time_is() {
    let Some((lab, [program, pmc])) = lab(["ptp4l", "pmc"]) else {
        return;
    };
    let directory = Directory::private();
    let socket = |name: &str| directory.join(name);
    let start = |host: &Host, name: &str, more: &str| {
        // The profile of gPTP: ptp4l hears nobody who speaks another.
        let text = format!(
            "[global]\nfree_running 1\ntime_stamping software\nuds_address {}\nlogAnnounceInterval -3\n\
             logSyncInterval -3\nlogMinDelayReqInterval -3\ntransportSpecific 1\ndomainNumber 24\n{more}\n",
            socket(name).display()
        );
        let file = directory.write(&format!("{name}.conf"), &text);
        Daemon::start(host, &program, &["-i", host.interface(), "-f", &file])
    };
    let _leader = start(lab.host(0), "leader", "priority1 1");
    let follower = start(lab.host(1), "follower", "slaveOnly 1");
    let read = |name: &str| ptp4l::read(&socket(name), 24).ok();
    let leader = until("a grandmaster", || {
        read("leader").filter(|reading| reading.role() == Role::Grandmaster)
    });
    assert_eq!(leader.keeps_device(), Some(false));
    assert!(!leader.status.grandmaster_present);
    let following = until("a follower with a measurement", || {
        read("follower").filter(|r| r.role() == Role::Acquiring && r.current.mean_path_delay_ns > 0)
    });
    assert_eq!(following.status.grandmaster, leader.clock.identity);
    assert_eq!(following.current.steps, 1);
    let interface = following.ports[0].properties.as_ref();
    assert_eq!(interface.expect("properties").interface, "eth0");

    let status = observer(Ask::Expected(socket("leader")), Ask::Never).observe();
    assert_eq!(
        (status.state, status.source, status.bound_ns),
        (State::Synchronised, Source::Ptp4l, Some(0))
    );
    let mut follows = observer(Ask::Expected(socket("follower")), Ask::Never);
    let status = follows.observe();
    // Its word is not in force as long as it is not steady.
    assert!(
        status.source != Source::Ptp4l || status.state == State::FreeRunning,
        "{status:?}"
    );
    assert!(status.ptp4l.is_some() && !has(&status, "source-silent"));

    // The grandmaster learns UTC, wrongly.
    let kernel = status.kernel.expect("the kernel").tai_offset_s;
    let wrong = kernel - 5;
    let settings = format!(
        "SET GRANDMASTER_SETTINGS_NP clockClass 6 clockAccuracy 0x20 offsetScaledLogVariance 0xffff \
         currentUtcOffset {wrong} leap61 0 leap59 0 currentUtcOffsetValid 1 ptpTimescale 1 timeTraceable 1 \
         frequencyTraceable 1 timeSource 0x20"
    );
    let told = Command::new(pmc)
        .args(["-u", "-b", "0", "-t", "1", "-d", "24", "-s"])
        .arg(socket("leader"))
        .arg("-i")
        .arg(socket("pmc"))
        .arg(settings)
        .output()
        .expect("pmc");
    assert!(told.status.success(), "{told:?}");
    let status = observer(Ask::Expected(socket("leader")), Ask::Never).observe();
    assert_eq!(status.tai_offset.by_ptp, Some(wrong), "{told:?}");
    assert!(has(&status, "tai-offset-disagrees"), "{status:?}");

    // Another domain, and a ptp4l that has gone.
    assert!(ptp4l::read(&socket("leader"), 0).is_err());
    drop(follower);
    let status = follows.observe();
    assert!(has(&status, "source-silent"), "{status:?}");
    let usual = observer(Ask::IfThere(socket("follower")), Ask::Never).observe();
    assert!(!has(&usual, "source-silent"), "{usual:?}");
    let left = std::fs::read_dir(directory.path()).expect("the directory");
    let left: Vec<_> = left
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("takt."))
        .collect();
    assert_eq!(left, Vec::<String>::new(), "sockets of questions go again");
}

#[test]
fn chronyd_says_what_it_follows_and_how_far_it_is_off() {
    let Some((lab, [program])) = lab(["chronyd"]) else {
        return;
    };
    let directory = Directory::private();
    let start =
        |host: &Host, name: &str, more: &str| chronyd(&program, host, &directory, name, more);
    let server = lab.host(0).address();
    let _server = start(lab.host(0), "server", "local stratum 5\nallow");
    let client = format!("server {server} iburst minpoll -2 maxpoll -2");
    let _client = start(lab.host(1), "client", &client);

    let unix = |name: &str| chrony::Address::Unix(directory.join(name));
    let tracking = until("chronyd follows", || {
        let tracking = chrony::read(&unix("client")).ok()?;
        matches!(tracking.reference, Reference::Server(_)).then_some(tracking)
    });
    assert_eq!(tracking.reference, Reference::Server(server.into()));
    assert_eq!(tracking.stratum, 6);
    assert!(tracking.root_delay_ns > 0 && tracking.bound_ns() > 0);
    let status = observer(Ask::Never, Ask::Expected(unix("client"))).observe();
    assert_eq!(
        (status.state, status.source),
        (State::Synchronised, Source::Chrony),
        "{status:?}"
    );
    let bound = status.bound_ns.expect("a bound");
    let met = status.within(Duration::from_nanos(bound));
    match status.tai_offset.set {
        true => assert!(met.is_ok(), "{met:?}"),
        false => assert!(matches!(met, Err(Unmet::TaiOffset { .. })), "{met:?}"),
    }
    assert!(status.within(Duration::from_nanos(bound - 1)).is_err());

    // Over loopback, where nobody needs any right.
    let loopback = {
        let _inside = lab.host(1).enter().expect("the host");
        chrony::read(&chrony::Address::default()).expect("an answer")
    };
    assert_eq!(loopback.reference, tracking.reference);

    // The server follows itself: that is no synchronisation.
    let own = chrony::read(&unix("server")).expect("an answer");
    assert_eq!(own.reference, Reference::Local);
    let status = observer(Ask::Never, Ask::Expected(unix("server"))).observe();
    assert!(
        status.source != Source::Chrony || status.state == State::FreeRunning,
        "{status:?}"
    );

    let gone = observer(Ask::Never, Ask::Expected(unix("nobody"))).observe();
    assert!(has(&gone, "source-silent"), "{gone:?}");
}

#[test]
fn a_guest_hears_from_its_host_whether_the_hosts_clock_follows_anything() {
    let Some((lab, [program])) = lab(["chronyd"]) else {
        return;
    };
    let directory = Directory::private();
    let start =
        |host: &Host, name: &str, more: &str| chronyd(&program, host, &directory, name, more);
    let address = |at: usize| (lab.host(at).address(), 123).into();
    let look = |at: usize| {
        let sources = Sources {
            ptp4l: Ask::Never,
            chrony: Ask::Never,
            host: Some(address(at)),
            ..Sources::default()
        };
        Observer::new(sources, Arc::new(SystemTai)).observe()
    };
    // Nobody is there yet; then one that follows itself alone, and one that follows another.
    let status = {
        let _inside = lab.host(1).enter().expect("the host");
        look(0)
    };
    assert!(
        has(&status, "host-silent") && status.host.is_none(),
        "{status:?}"
    );
    let own = start(lab.host(0), "own", "local stratum 5\nallow");
    let status = until("the host answers", || {
        let _inside = lab.host(1).enter().expect("the host");
        Some(look(0)).filter(|status| status.host.is_some())
    });
    assert!(has(&status, "host-unsynchronised"), "{status:?}");
    assert_eq!((status.state, status.bound_ns), (State::FreeRunning, None));
    let server = lab.host(0).address();
    let client = format!("server {server} iburst minpoll -2 maxpoll -2\nallow");
    let _follower = start(lab.host(1), "follower", &client);
    let host = until("the host follows", || {
        let _inside = lab.host(0).enter().expect("the host");
        look(1).host.filter(|host| host.synchronised)
    });
    assert_eq!(host.stratum, 6);
    // One machine, and so one clock: what is told is what the question took, and what the host does not know.
    let expected = host.error_ns + host.distance_ns;
    assert!(host.offset_ns.unsigned_abs() <= expected, "{host:?}");
    assert!(host.distance_ns > 0);
    drop(own);
}
