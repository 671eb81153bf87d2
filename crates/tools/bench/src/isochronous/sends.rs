//! What a send costs the program that makes it: the time that the call takes.

use std::process::Command;

use rustix::thread::CapabilitySet;
use takt_lab::Lab;

use super::run::{Flow, LISTENER_PORT, contained, introduce, node, preloaded, socket};
use super::talker::Sent;
use crate::takt::process::{Process, Scratch};
use crate::takt::{PATIENCE, Takt, TaktError};

/// Who carries what the talker sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The kernel, all of it within the call.
    Kernel,
    /// The runtime, what names a launch time.
    LaunchTimes,
    /// The runtime, what names none (`takt preload --all`).
    All,
}

impl Carrier {
    /// All of them, in the order in which they are told.
    pub const ALL: [Self; 3] = [Self::Kernel, Self::LaunchTimes, Self::All];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::LaunchTimes => "Takt, launch times",
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
    let _daemon = match carrier {
        Carrier::Kernel => None,
        _ => Some(node(takt, lab, 1, cores.0, &scratch, None)?),
    };
    introduce(near, far)?;
    let mut talker: Command = match carrier {
        Carrier::Kernel => contained(near.command(takt.program())?, CapabilitySet::empty(), None),
        _ => preloaded(takt, near, &socket(&scratch, 0), None)?,
    };
    if carrier == Carrier::All {
        talker.env("TAKT_PRELOAD_GRID", "now");
    }
    let mode = match carrier {
        Carrier::LaunchTimes => "launch",
        _ => "sleep",
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
