//! From what everybody says to what is so: pure, so that every case is tested without a clock.
//!
//! ptp4l is asked first where it is there, because gates want the time of its domain; then chronyd; then the
//! kernel. What each bound is made of: `docs/reference/clock.md`.

use std::fmt::Write;
use std::path::PathBuf;

use crate::chrony::{Leap, Reference, Tracking};
use crate::host::HostReading;
use crate::kernel::KernelReading;
use crate::phc::PhcReading;
use crate::ptp4l::{PtpReading, Role};
use crate::status::{ClockStatus, Source, State, TaiOffset, Warning};

/// How fast the bound of a clock in holdover grows: what an oscillator of IEEE 802.1AS-2020, B.1.1, may be off
/// whatever it has learnt, in parts per million.
pub const HOLDOVER_PPM: u64 = 100;
/// How long a step is warned of, nanoseconds.
const STEP_NEWS_NS: u64 = 600_000_000_000;
/// chronyd that has not heard its source for so many intervals is in holdover.
const MISSED_UPDATES: u64 = 4;
/// And for so long at least, nanoseconds.
const MISSED_NS: u64 = 16_000_000_000;

/// What everybody says. `None`: not asked, or not there although nobody expects it.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    /// The kernel, or why not.
    pub kernel: Option<Result<KernelReading, String>>,
    /// chronyd, or why not.
    pub chrony: Option<Result<Tracking, String>>,
    /// ptp4l, or why not.
    pub ptp4l: Option<Result<PtpReading, String>>,
    /// The device, or why not.
    pub device: Option<(PathBuf, Result<PhcReading, String>)>,
    /// The host that this machine is a guest of, or why not.
    pub host: Option<Result<HostReading, String>>,
    /// `CLOCK_TAI` is to be UTC.
    pub utc: bool,
    /// `CLOCK_TAI` when all that was asked, nanoseconds.
    pub tai_ns: i64,
    /// A clock that is not stepped, nanoseconds.
    pub monotonic_ns: u64,
    /// How much the two may have run between their readings, nanoseconds.
    pub reading_ns: u64,
}

/// What earlier readings leave behind.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The last reading: `CLOCK_TAI`, the monotonic clock and how much they may have run in between.
    last: Option<(i64, u64, u64)>,
    /// When the clock was synchronised last by ptp4l: monotonic time, and its bound then.
    synchronised: Option<(u64, u64)>,
    /// Steps seen, and the last of them: monotonic time and nanoseconds.
    steps: u64,
    last_step: Option<(u64, i64)>,
}

impl History {
    /// Looks whether the clock was stepped since the last reading.
    fn watch(&mut self, readings: &Readings) {
        let now = (readings.tai_ns, readings.monotonic_ns, readings.reading_ns);
        let Some((tai, monotonic, reading)) = self.last.replace(now) else {
            return;
        };
        let expected = readings.monotonic_ns.saturating_sub(monotonic) as i64;
        let step = readings.tai_ns.saturating_sub(tai).saturating_sub(expected);
        // Both readings may be off by the time that they took, and the kernel rounds.
        let noise = reading
            .saturating_add(readings.reading_ns)
            .saturating_add(1_000);
        if step.unsigned_abs() > noise {
            self.steps += 1;
            self.last_step = Some((readings.monotonic_ns, step));
            // What was learnt before is worth nothing.
            self.synchronised = None;
        }
    }
}

/// One word on the clock, before history.
struct Verdict {
    state: State,
    source: Source,
    reference: String,
    offset_ns: Option<i64>,
    bound_ns: Option<u64>,
}

/// Puts together what everybody says, and remembers what will be needed.
pub fn assess(readings: Readings, history: &mut History) -> ClockStatus {
    history.watch(&readings);
    let kernel = readings.kernel.as_ref().and_then(|k| k.as_ref().ok());
    let ptp4l = readings.ptp4l.as_ref().and_then(|p| p.as_ref().ok());
    let chrony = readings.chrony.as_ref().and_then(|c| c.as_ref().ok());
    let device = readings.device.as_ref();
    let phc = device.and_then(|(_, reading)| reading.as_ref().ok());
    let seconds = kernel.map_or(0, |kernel| kernel.tai_offset_s);
    let mut warnings = Vec::new();

    let mut verdict = None;
    if let Some(ptp) = ptp4l {
        match by_ptp4l(ptp, phc, seconds) {
            Ok(word) => verdict = Some(word),
            Err(problem) => warnings.push(Warning {
                code: "phc-not-compared",
                message: problem,
            }),
        }
    }
    if let Some(word) = &mut verdict {
        hold_over(word, &readings, history);
    }
    // A ptp4l without anybody to follow says nothing about a clock that chronyd keeps.
    let follows = |word: &Verdict| word.state != State::FreeRunning;
    if !verdict.as_ref().is_some_and(follows)
        && let Some(tracking) = chrony
    {
        let word = by_chrony(tracking, readings.tai_ns, seconds);
        if verdict.is_none() || follows(&word) {
            verdict = Some(word);
        }
    }
    if !verdict.as_ref().is_some_and(follows)
        && let Some(kernel) = kernel
    {
        let word = by_kernel(kernel);
        if verdict.is_none() || follows(&word) {
            verdict = Some(word);
        }
    }
    let mut verdict = verdict.unwrap_or_else(|| Verdict {
        state: State::FreeRunning,
        source: Source::None,
        reference: "nobody says anything about it".into(),
        offset_ns: None,
        bound_ns: None,
    });

    if let Some(host) = &readings.host {
        by_host(host, &mut verdict, &mut warnings);
    }

    let tai_offset = TaiOffset {
        seconds,
        set: seconds != 0,
        by_ptp: ptp4l
            .filter(|ptp| ptp.time.utc_offset_valid && ptp.time.ptp_timescale)
            .map(|ptp| ptp.time.utc_offset_s.into()),
    };
    of_state(&verdict, &mut warnings);
    if kernel.is_some() {
        warnings.extend(of_offset(&tai_offset, readings.utc));
    }
    of_steps(history, readings.monotonic_ns, &mut warnings);
    of_silence(&readings, &mut warnings);
    if verdict.source == Source::Chrony
        && verdict.state == State::Synchronised
        && kernel.is_some_and(|kernel| !kernel.synchronised)
    {
        warnings.push(Warning {
            code: "kernel-flag",
            message: "chronyd is synchronised, but the kernel says that its clock is not: add `rtcsync` to \
                      chrony.conf, for programs that ask the kernel"
                .into(),
        });
    }
    ClockStatus {
        state: verdict.state,
        source: verdict.source,
        reference: verdict.reference,
        offset_ns: verdict.offset_ns,
        bound_ns: verdict.bound_ns,
        tai_offset,
        warnings,
        steps: history.steps,
        kernel: kernel.copied(),
        device: phc.copied(),
        host: readings
            .host
            .as_ref()
            .and_then(|host| host.as_ref().ok())
            .copied(),
        chrony: chrony.cloned(),
        ptp4l: ptp4l.cloned(),
    }
}

/// What a guest's clock is worth, which is its host's at best.
fn by_host(host: &Result<HostReading, String>, verdict: &mut Verdict, warnings: &mut Vec<Warning>) {
    let mut warn = |code, message| warnings.push(Warning { code, message });
    let host = match host {
        Ok(host) => host,
        Err(told) => {
            // It may follow something, or nothing.
            verdict.bound_ns = None;
            return warn(
                "host-silent",
                format!(
                    "{told}: this machine has its host's time, and nobody knows what that is worth; have chronyd run there and \
                     allow this machine"
                ),
            );
        }
    };
    if !host.synchronised {
        verdict.state = State::FreeRunning;
        verdict.bound_ns = None;
        verdict.reference = "the host's clock, which follows nothing".into();
        return warn(
            "host-unsynchronised",
            "the host has lost its reference, and this machine's clock follows the host's: look after ptp4l or chronyd on the \
             host"
            .into(),
        );
    }
    let away = host.offset_ns.unsigned_abs();
    // What the host tells is its estimate of its reference's time, its clock is as good as it says.
    let expected = [
        verdict.bound_ns.unwrap_or(0),
        host.error_ns,
        host.distance_ns,
    ];
    let expected = expected.into_iter().fold(0, u64::saturating_add);
    if away > expected {
        warn(
            "host-disagrees",
            format!(
                "this machine's clock is {} ns off its host's, to within {} ns: nothing here follows the host's clock; see \
                 `chronyc sources`, and /dev/ptp0 with ptp_kvm",
                host.offset_ns, host.error_ns
            ),
        );
        let bound = away.saturating_add(host.error_ns);
        verdict.bound_ns = verdict.bound_ns.map(|known| known.max(bound));
    }
    // What is off the host's clock is off the host's reference by as much more as that one is.
    verdict.bound_ns = verdict
        .bound_ns
        .map(|bound| bound.saturating_add(host.distance_ns));
}

/// What ptp4l's word means for `CLOCK_TAI`; an error: that it keeps another clock and nobody can compare the two.
fn by_ptp4l(
    ptp: &PtpReading,
    phc: Option<&PhcReading>,
    tai_offset_s: i32,
) -> Result<Verdict, String> {
    let role = ptp.role();
    // `CLOCK_TAI` minus the clock that ptp4l keeps, and how wrong that may be.
    let (away_ns, error_ns) = match (ptp.keeps_device(), phc) {
        (Some(true) | None, Some(phc)) => {
            // The device has TAI, or whatever the kernel's UTC clock has.
            let shift = match ptp.time.ptp_timescale {
                true => i64::from(tai_offset_s) * 1_000_000_000,
                false => 0,
            };
            let away = phc.realtime_minus_phc_ns.saturating_add(shift);
            (away, phc.error_ns)
        }
        (Some(true), None) => {
            return Err(
                "ptp4l keeps the clock of a network device, and nobody knows what CLOCK_TAI is off from it: \
                 name it as `device` in [clock] of the configuration, and run phc2sys"
                    .into(),
            );
        }
        (Some(false) | None, _) => (0, 0),
    };
    let domain = ptp.clock.domain;
    let word = |state, reference, offset: Option<i64>, bound| Verdict {
        state,
        source: Source::Ptp4l,
        reference,
        offset_ns: offset,
        bound_ns: bound,
    };
    Ok(match role {
        Role::Follower => {
            let offset = ptp.status.offset_ns.saturating_add(away_ns);
            let bound = (offset.unsigned_abs())
                .saturating_add(ptp.path_delay_ns())
                .saturating_add(error_ns);
            let grandmaster = identity(ptp.status.grandmaster);
            word(
                State::Synchronised,
                format!(
                    "grandmaster {grandmaster} of PTP domain {domain}, {} hop(s) away",
                    ptp.current.steps
                ),
                Some(offset),
                Some(bound),
            )
        }
        Role::Grandmaster => word(
            State::Synchronised,
            format!(
                "itself, the grandmaster of PTP domain {domain} (clock class {}{})",
                ptp.clock.class,
                if ptp.time.traceable {
                    ""
                } else {
                    ", not traceable to UTC"
                }
            ),
            Some(away_ns),
            Some(away_ns.unsigned_abs().saturating_add(error_ns)),
        ),
        Role::Acquiring => word(
            State::FreeRunning,
            format!(
                "ptp4l has found grandmaster {} of PTP domain {domain} and is not yet steady",
                identity(ptp.status.grandmaster)
            ),
            Some(ptp.status.offset_ns.saturating_add(away_ns)),
            None,
        ),
        Role::Alone => word(
            State::FreeRunning,
            format!("ptp4l hears no master in PTP domain {domain}"),
            None,
            None,
        ),
    })
}

/// A clock that followed a grandmaster a while ago has not forgotten everything.
fn hold_over(word: &mut Verdict, readings: &Readings, history: &mut History) {
    match (word.state, word.bound_ns) {
        (State::Synchronised, Some(bound)) => {
            history.synchronised = Some((readings.monotonic_ns, bound));
        }
        (State::FreeRunning, _) => {
            if let Some((since, bound)) = history.synchronised {
                let held = readings.monotonic_ns.saturating_sub(since);
                word.state = State::Holdover;
                word.bound_ns =
                    Some(bound.saturating_add(held / 1_000_000 * HOLDOVER_PPM + HOLDOVER_PPM));
                // Writing into a string cannot fail.
                let _ = write!(
                    word.reference,
                    "; synchronised {} s ago",
                    held / 1_000_000_000
                );
            }
        }
        _ => {}
    }
}

fn by_chrony(tracking: &Tracking, tai_ns: i64, tai_offset_s: i32) -> Verdict {
    let word = |state, reference, offset, bound| Verdict {
        state,
        source: Source::Chrony,
        reference,
        offset_ns: offset,
        bound_ns: bound,
    };
    let reference = match &tracking.reference {
        _ if tracking.leap == Leap::Unsynchronised => "chronyd has no source that it trusts".into(),
        Reference::None => "chronyd has no source".into(),
        Reference::Local => "chronyd's source is its own clock (`local`)".into(),
        Reference::Server(address) => {
            format!("NTP server {address}, stratum {}", tracking.stratum)
        }
        Reference::Clock(name) => format!("reference clock {name} of chronyd"),
    };
    let followed = matches!(
        tracking.reference,
        Reference::Server(_) | Reference::Clock(_)
    );
    if !followed || tracking.leap == Leap::Unsynchronised {
        return word(State::FreeRunning, reference, None, None);
    }
    let utc_ns = tai_ns.saturating_sub(i64::from(tai_offset_s) * 1_000_000_000);
    let silent_ns = utc_ns.saturating_sub(tracking.updated_utc_ns).max(0) as u64;
    let patience = tracking
        .update_interval_ns
        .saturating_mul(MISSED_UPDATES)
        .max(MISSED_NS);
    let (state, reference) = match silent_ns > patience {
        false => (State::Synchronised, reference),
        true => (
            State::Holdover,
            format!(
                "{reference}; last heard {} s ago",
                silent_ns / 1_000_000_000
            ),
        ),
    };
    word(
        state,
        reference,
        Some(tracking.offset_ns),
        Some(tracking.bound_ns()),
    )
}

fn by_kernel(kernel: &KernelReading) -> Verdict {
    let (state, reference, bound_ns) = match kernel.synchronised {
        true => (
            State::Synchronised,
            "a program that keeps the kernel's clock",
            Some(kernel.max_error_ns).filter(|bound| *bound != 0),
        ),
        false => (
            State::FreeRunning,
            "no program keeps the kernel's clock",
            None,
        ),
    };
    Verdict {
        state,
        source: Source::Kernel,
        reference: reference.into(),
        offset_ns: None,
        bound_ns,
    }
}

fn of_state(verdict: &Verdict, warnings: &mut Vec<Warning>) {
    let reference = &verdict.reference;
    match verdict.state {
        State::Synchronised => {}
        State::Holdover => warnings.push(Warning {
            code: "holdover",
            message: format!(
                "the clock has lost its reference and drifts ({reference}): look after the network and the source"
            ),
        }),
        State::FreeRunning => warnings.push(Warning {
            code: "unsynchronised",
            message: format!(
                "the clock follows no reference ({reference}), so gates of different nodes do not meet: run ptp4l \
                 and phc2sys, or chronyd, and wait until they are steady"
            ),
        }),
    }
}

/// What is wrong with the kernel's offset of TAI.
fn of_offset(offset: &TaiOffset, utc: bool) -> Option<Warning> {
    let seconds = offset.seconds;
    let (code, message) = match offset.by_ptp {
        _ if utc && offset.set => (
            "tai-offset-disagrees",
            format!(
                "the kernel has TAI - UTC = {seconds} s, but `timescale` in [clock] of the configuration says that \
                 CLOCK_TAI is UTC on all nodes: gates are off by that from those of the others; write \"tai\" \
                 there, and have all kernels told"
            ),
        ),
        _ if utc => return None,
        Some(ptp) if ptp != seconds => (
            "tai-offset-disagrees",
            format!(
                "the kernel has TAI - UTC = {seconds} s and ptp4l has {ptp} s from its grandmaster: CLOCK_TAI is off \
                 by the difference; run phc2sys with -w, which tells the kernel"
            ),
        ),
        _ if !offset.set => (
            "tai-offset-unset",
            "nobody has told the kernel TAI - UTC: CLOCK_TAI equals UTC, and gates are off by that many seconds from \
             those of nodes whose kernels know; add `leapsectz right/UTC` to chrony.conf, or run phc2sys with -w"
                .to_owned(),
        ),
        _ => return None,
    };
    Some(Warning { code, message })
}

fn of_steps(history: &History, now_ns: u64, warnings: &mut Vec<Warning>) {
    let Some((at, step)) = history.last_step else {
        return;
    };
    let since = now_ns.saturating_sub(at);
    if since > STEP_NEWS_NS {
        return;
    }
    warnings.push(Warning {
        code: "clock-stepped",
        message: format!(
            "the clock was stepped by {:+.9} s, {} s ago: messages that waited for an instant left by the clock as \
             it is now; let the clock be slewed (chrony: no `makestep` after start; ptp4l, phc2sys: step_threshold 0)",
            step as f64 / 1e9,
            since / 1_000_000_000
        ),
    });
}

fn of_silence(readings: &Readings, warnings: &mut Vec<Warning>) {
    let mut silent = |problem: Option<String>, remedy: &str| {
        if let Some(problem) = problem {
            warnings.push(Warning {
                code: "source-silent",
                message: format!("{problem}{remedy}"),
            });
        }
    };
    let why = |problem: &String| Some(problem.clone());
    silent(
        readings
            .kernel
            .as_ref()
            .and_then(|k| why(k.as_ref().err()?)),
        ": let the process call adjtimex(2), which needs no privilege for reading",
    );
    silent(
        readings.ptp4l.as_ref().and_then(|p| why(p.as_ref().err()?)),
        "",
    );
    silent(
        readings
            .chrony
            .as_ref()
            .and_then(|c| why(c.as_ref().err()?)),
        "",
    );
    silent(
        readings.device.as_ref().and_then(|(path, reading)| {
            let error = reading.as_ref().err()?;
            Some(format!("{} cannot be read: {error}", path.display()))
        }),
        ": write the PTP clock that `ethtool -T` names as `device` in [clock] of the configuration",
    );
}

/// A clock's identity as IEEE 1588 writes it: `001b19.fffe.123456`.
pub fn identity(octets: [u8; 8]) -> String {
    let [a, b, c, d, e, f, g, h] = octets;
    format!("{a:02x}{b:02x}{c:02x}.{d:02x}{e:02x}.{f:02x}{g:02x}{h:02x}")
}

#[cfg(test)]
mod tests;
