//! Runs the experiment's programs in the hosts and containers of a lab.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use takt_lab::{Host, Lab, LabConfig, OVERLAY_ID, Wiring};

use super::listener::Heard;
use super::talker::Sent;
use crate::takt::process::{Process, Scratch};
use crate::takt::{PATIENCE, Takt, TaktError, daemon};

/// Where the listener and the drain receive.
pub(super) const LISTENER_PORT: u16 = 6000;
const DRAIN_PORT: u16 = 6001;
/// The real-time priority of the runtime's lane: below the talker's, which has work for it.
const LANE_PRIORITY: u8 = 50;
/// What is late is sent, and measured: dropped, it would not be in the figures.
const TOLERANCE_US: u32 = 1_000_000;
/// Datagrams at the beginning of a run that are not measured.
pub const WARM_UP: u32 = 50;

/// A way from the talker to the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Host to host, over kernel sockets; the talker sleeps and sends.
    BareMetal,
    /// Container to container over the kernel's bridges and VXLAN, as Flannel builds them; the same talker.
    Overlay,
    /// Container to container: the same talker, with launch times, under Takt's preload.
    Takt,
    /// Host to host, over kernel sockets; the talker spins until each instant: as well as this machine can.
    Floor,
}

impl Way {
    /// All of them, in the order in which they are told.
    pub const ALL: [Self; 4] = [Self::BareMetal, Self::Overlay, Self::Takt, Self::Floor];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::BareMetal => "bare metal, send and sleep",
            Self::Overlay => "Flannel-like overlay, send and sleep",
            Self::Takt => "Takt overlay, launch times",
            Self::Floor => "bare metal, spinning (the floor)",
        }
    }
}

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Bytes of each payload.
    pub size: usize,
    /// Between two datagrams.
    pub period: Duration,
    /// Datagrams that are measured.
    pub count: u32,
    /// Payload bits per second of best effort beside it; 0: none.
    pub load: u64,
}

/// The hosts: a link with a rate, and containers.
#[must_use]
pub fn lab(rate: u64) -> LabConfig {
    LabConfig {
        // One of a talker or its listener, one of best effort; of tenants, two that talk and a hostile one.
        containers: 3,
        rate: Some(rate),
        wiring: Wiring::Bridge,
        priorities: true,
        ..LabConfig::default()
    }
}

/// What one run gave.
#[derive(Clone, Debug)]
pub struct Run {
    /// What the talker saw.
    pub sent: Sent,
    /// What the listener saw.
    pub heard: Heard,
    /// Best effort that came, payload bits per second.
    pub drained: f64,
}

/// Runs a flow over a way once. Everything that serves it runs on `cores.0`, best effort on `cores.1`.
///
/// # Errors
/// When a process cannot be started, fails, or does not end; the error has what it said.
pub fn run(
    takt: &Takt,
    lab: &Lab,
    way: Way,
    flow: &Flow,
    cores: (usize, usize),
) -> Result<Run, TaktError> {
    let scratch = Scratch::new()?;
    let (near, far) = match way {
        Way::BareMetal | Way::Floor => (lab.host(0), lab.host(1)),
        Way::Overlay | Way::Takt => (lab.container(0, 0), lab.container(1, 0)),
    };
    let _daemon = match way {
        Way::Takt => Some(node(takt, lab, 1, cores.0, &scratch)?),
        Way::BareMetal | Way::Overlay | Way::Floor => None,
    };
    let seconds = flow.period.as_secs_f64() * f64::from(flow.count + WARM_UP);
    let start = |command: Command, name: &str| {
        Process::start(command, &scratch.path().join(format!("{name}.log")))
    };
    let program = |host: &Host, core: usize, words: &[&str]| -> Result<Command, TaktError> {
        let mut command = host.command(takt.program())?;
        command.arg("bench-socket").args(words);
        command.args(["--core", &core.to_string()]);
        Ok(command)
    };

    let drain_at = SocketAddr::from((lab.container(1, 1).address(), DRAIN_PORT)).to_string();
    let listen_at = SocketAddr::from((far.address(), LISTENER_PORT)).to_string();
    let count = (flow.count + WARM_UP).to_string();
    let period = flow.period.as_micros().to_string();
    let warm_up = WARM_UP.to_string();
    let drain_for = (seconds + 0.5).to_string();
    let mut best_effort = None;
    if flow.load > 0 {
        let drain = ["drain", "--at", &drain_at, "--seconds", &drain_for];
        let drain = start(program(lab.container(1, 1), cores.1, &drain)?, "drain")?;
        let rate = flow.load.to_string();
        let flood = ["flood", "--to", &drain_at, "--rate", &rate];
        let flood = start(program(lab.container(0, 1), cores.1, &flood)?, "flood")?;
        best_effort = Some((drain, flood));
    }
    let listener = ["listener", "--at", &listen_at, "--count", &count];
    let mut listener = program(far, cores.0, &listener)?;
    listener.args(["--period-us", &period, "--warm-up", &warm_up]);
    let mut listener = start(listener, "listener")?;
    // Where the kernel has to ask for the listener's address it has done so before the first datagram.
    introduce(near, far)?;

    let size = flow.size.to_string();
    let mode = match way {
        Way::BareMetal | Way::Overlay => "sleep",
        Way::Takt => "launch",
        Way::Floor => "spin",
    };
    let mut talker = match way {
        Way::BareMetal | Way::Overlay | Way::Floor => near.command(takt.program())?,
        Way::Takt => preloaded(takt, near, &socket(&scratch, 0))?,
    };
    talker.args([
        "bench-socket",
        "talker",
        "--to",
        &listen_at,
        "--size",
        &size,
    ]);
    talker.args(["--period-us", &period, "--count", &count]);
    talker.args(["--mode", mode]);
    talker.args(["--core", &cores.0.to_string()]);
    let mut talker = start(talker, "talker")?;
    let patience = Duration::from_secs_f64(seconds) + PATIENCE;
    let sent: Sent = talker.answer(patience)?;
    let heard: Heard = listener.answer(PATIENCE)?;
    let drained = match &mut best_effort {
        Some((drain, _)) => drain.answer(PATIENCE)?,
        None => 0.0,
    };
    Ok(Run {
        sent,
        heard,
        drained,
    })
}

/// The node's name.
const NODE: &str = "h1";

/// This program in a container, under the preload, as the tenant with this socket.
pub(super) fn preloaded(takt: &Takt, host: &Host, socket: &Path) -> Result<Command, TaktError> {
    let mut command = host.command(takt.program())?;
    command
        .args(["preload", "--"])
        .arg(takt.program())
        .env(takt::SOCKET_VARIABLE, socket)
        // Over the kernel it would be measured under a wrong name.
        .env("TAKT_PRELOAD", "required");
    Ok(command)
}

/// Where the programs of a tenant attach, by its number.
pub(super) fn socket(scratch: &Scratch, tenant: usize) -> PathBuf {
    match tenant {
        0 => daemon::socket(scratch.path(), NODE),
        _ => daemon::socket(scratch.path(), &format!("tenant-{tenant}")),
    }
}

/// The runtime of the talkers' host: its tenants are the first containers.
pub(super) fn node(
    takt: &Takt,
    lab: &Lab,
    tenants: usize,
    core: usize,
    scratch: &Scratch,
) -> Result<daemon::Daemon, TaktError> {
    let (host, peer) = (lab.host(0), lab.container(1, 0));
    let mac = |host: &Host| host.mac().map(|octet| format!("{octet:02x}")).join(":");
    let endpoint = |tenant| {
        let container = lab.container(0, tenant);
        format!(
            "[listener.endpoint]\nnetwork = \"pods\"\nmac = \"{}\"\naddresses = [\"{}/{}\"]\nmtu = {}\n\n",
            mac(container),
            container.address(),
            container.prefix_length(),
            container.mtu(),
        )
    };
    // The first one's listener is begun already.
    let mut listener = endpoint(0);
    for tenant in 1..tenants {
        let path = socket(scratch, tenant);
        listener += &format!("[[listener]]\npath = \"{}\"\n", path.display());
        listener += &endpoint(tenant);
    }
    listener += &format!(
        "[[network]]\nname = \"pods\"\ncarrier = \"vxlan:{OVERLAY_ID}\"\n\
         stations = [{{ mac = \"{}\", vtep = \"{}\", addresses = [\"{}\"] }}]\n\n\
         [departure]\ntolerance_us = {TOLERANCE_US}\n",
        mac(peer),
        lab.host(1).address(),
        peer.address(),
    );
    let node = daemon::Node {
        name: NODE,
        address: host.address(),
        core,
        peer: None,
        interface: Some(host.interface()),
        lane: &format!("scheduling = \"fifo:{LANE_PRIORITY}\"\n"),
        listener: &listener,
    };
    daemon::Daemon::start(host.command(takt.program())?, &node, scratch)
}

/// Has the kernel resolve the far side's address, and the bridges learn both.
pub(super) fn introduce(near: &Host, far: &Host) -> Result<(), TaktError> {
    let _inside = near.enter()?;
    let greet = || -> std::io::Result<()> {
        let socket = std::net::UdpSocket::bind((near.address(), 0))?;
        // To nobody: the listener's port counts what comes.
        socket.send_to(&[], (far.address(), 9))?;
        Ok(())
    };
    greet().map_err(TaktError::io("greet the listener's host"))?;
    std::thread::sleep(Duration::from_millis(20));
    Ok(())
}
