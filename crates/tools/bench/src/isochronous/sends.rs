//! What a send costs the program that makes it: the time that the call takes.

use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::CapabilitySet;
use takt_lab::Lab;

use super::run::{
    Flow, LISTENER_PORT, WARM_UP, contained, introduce, node, preloaded, real_time_lane, socket,
};
use super::sys::{now_ns, sleep_until};
use super::talker::Sent;
use crate::awake::pin_to;
use crate::statistics::Latencies;
use crate::takt::process::{Process, Scratch};
use crate::takt::{PATIENCE, Takt, TaktError};

/// Who carries what the talker sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The kernel, all of it within the call.
    Kernel,
    /// The runtime, what names a launch time.
    LaunchTimes,
    /// The same, and its lane never sleeps, so that nobody has to wake it.
    LaunchTimesSpinning,
    /// The runtime, what names none (`takt preload --all`).
    All,
}

impl Carrier {
    /// All of them, in the order in which they are told.
    pub const ALL: [Self; 4] = [
        Self::Kernel,
        Self::LaunchTimes,
        Self::LaunchTimesSpinning,
        Self::All,
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::LaunchTimes => "Takt, launch times",
            Self::LaunchTimesSpinning => "Takt, launch times, lane spins",
            Self::All => "Takt, --all",
        }
    }
}

/// Runs a talker without privileges in a container of Flannel's network, on core `cores.1`; the runtime, if it has one, is on `cores.0`.
///
/// # Errors
/// When a process cannot be started, fails, or does not end; the error has what it said.
pub fn run(
    takt: &Takt,
    lab: &Lab,
    carrier: Carrier,
    flow: &Flow,
    cores: (usize, usize),
) -> Result<Sent, TaktError> {
    let scratch = Scratch::new()?;
    let (near, far) = (lab.container(0, 0), lab.container(1, 0));
    let lane = match carrier {
        Carrier::Kernel => None,
        // Not in real time: the kernel takes the core from a real-time thread that never sleeps.
        Carrier::LaunchTimesSpinning => Some("idle = \"spin\"\n".to_owned()),
        Carrier::LaunchTimes | Carrier::All => Some(real_time_lane()),
    };
    let _daemon = lane
        .map(|lane| node(takt, lab, 1, (cores.0, &lane), &scratch, None))
        .transpose()?;
    introduce(near, far)?;
    let mut talker: Command = match carrier {
        Carrier::Kernel => contained(near.command(takt.program())?, CapabilitySet::empty(), None),
        _ => preloaded(takt, near, &socket(&scratch, 0), None)?,
    };
    if carrier == Carrier::All {
        talker.env("TAKT_PRELOAD_GRID", "now");
    }
    let mode = match carrier {
        Carrier::LaunchTimes | Carrier::LaunchTimesSpinning => "launch",
        Carrier::Kernel | Carrier::All => "sleep",
    };
    // Nobody hears it: what counts is the sender's time.
    let to = format!("{}:{LISTENER_PORT}", far.address());
    talker.args(["bench-socket", "talker", "--ordinary", "--to", &to]);
    talker.args(["--mode", mode, "--core", &cores.1.to_string()]);
    talker.args(["--size", &flow.size.to_string()]);
    talker.args(["--period-us", &flow.period.as_micros().to_string()]);
    talker.args(["--count", &flow.count.to_string()]);
    let mut talker = Process::start(talker, &scratch.path().join("talker.log"))?;
    talker.answer(flow.duration() + PATIENCE)
}

/// How long the write to an eventfd takes, on core `cores.1`, that wakes a thread on `cores.0`: the least that a send takes whose
/// lane sleeps there.
///
/// # Errors
/// The kernel's.
pub fn wakes(flow: &Flow, cores: (usize, usize)) -> io::Result<Latencies> {
    let bell = eventfd(0, EventfdFlags::empty())?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| -> io::Result<()> {
            pin_to(cores.0)?;
            while !over.load(Ordering::Relaxed) {
                rustix::io::read(&bell, &mut [0u8; 8])?;
            }
            Ok(())
        });
        let ringer = scope.spawn(|| {
            let rung = pin_to(cores.1).and_then(|()| ring(&bell, flow));
            over.store(true, Ordering::Relaxed);
            rustix::io::write(&bell, &1u64.to_ne_bytes())?;
            rung
        });
        let rung = ringer.join().expect("the ringer does not panic");
        sleeper.join().expect("the sleeper does not panic")?;
        rung
    })
}

/// Writes to `bell` once in each period.
fn ring(bell: &std::os::fd::OwnedFd, flow: &Flow) -> io::Result<Latencies> {
    let mut calls = Latencies::new();
    let start = now_ns(libc::CLOCK_TAI);
    for number in 0..flow.count + WARM_UP {
        sleep_until(start + i64::from(number) * flow.period.as_nanos() as i64);
        let begun = now_ns(libc::CLOCK_MONOTONIC);
        rustix::io::write(bell, &1u64.to_ne_bytes())?;
        let taken = now_ns(libc::CLOCK_MONOTONIC) - begun;
        if number >= WARM_UP {
            calls.record_ns(taken.unsigned_abs());
        }
    }
    Ok(calls)
}
