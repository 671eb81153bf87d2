//! Runs the experiment's programs in the hosts and containers of a lab.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set, set_no_new_privs};
use takt_lab::{
    Capture, Gates, Host, Lab, LabConfig, OVERLAY_DEVICE, OVERLAY_ID, Overlay, Queues, Wiring,
};

use super::listener::{self, Heard};
use super::sys;
use super::talker::{self, LEAST_SIZE, Sent};
use crate::statistics::Latencies;
use crate::takt::process::{Process, Scratch};
use crate::takt::{PATIENCE, Takt, TaktError, daemon};
use crate::{awake, machine};

/// Where the listener and the drain receive.
pub(super) const LISTENER_PORT: u16 = 6000;
const DRAIN_PORT: u16 = 6001;
/// The real-time priority of the runtime's lane: below the talker's, which has work for it.
const LANE_PRIORITY: u8 = 50;
/// Bits per second of a link that is not limited, as a schedule takes it.
const RATE: u64 = 1_000_000_000;
/// What is late is sent, and measured: dropped, it would not be in the figures.
const TOLERANCE_US: u32 = 1_000_000;
/// How far ahead of the time that a packet names a kernel's etf has it leave, microseconds, and how much later than meant that is. What is late
/// is sent here, too; and a microsecond more, for taprio takes what names the very beginning of a window for outside of it.
const AHEAD_US: u32 = TOLERANCE_US + 1;
/// Queues of links whose gates a kernel keeps: one for the talker's class, one for all others.
pub const GATED_QUEUES: u32 = 2;
/// Datagrams at the beginning of a run that are not measured.
pub const WARM_UP: u32 = 50;

/// A way from the talker to the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Host to host, over kernel sockets; the talker sleeps and sends.
    BareSleeping,
    /// The same, but the talker spins until each instant: as well as this machine can.
    BareSpinning,
    /// The same, and the host's link has two queues, of which the talker's is served first (HTB): the best queueing that the
    /// kernel has for it.
    BarePriority,
    /// Host to host: the talker sleeps and hands over ahead, with launch times, which the kernel's own etf keeps, below a taprio
    /// with the gates of [`schedule`].
    BareEtf,
    /// Container to container over the kernel's bridges, routes and VXLAN, as Flannel builds them; the talker sleeps.
    OverlaySleeping,
    /// The same, but the talker spins.
    OverlaySpinning,
    /// The same talker and queues as with [`BareEtf`](Self::BareEtf), from container to container: whether the launch times
    /// come as far as the host's link.
    OverlayEtf,
    /// Container to container: the talker sleeps and hands over ahead, with launch times, under Takt's preload.
    Takt,
}

impl Way {
    /// All of them, in the order in which they are told.
    pub const ALL: [Self; 8] = [
        Self::BareSleeping,
        Self::BareSpinning,
        Self::BarePriority,
        Self::BareEtf,
        Self::OverlaySleeping,
        Self::OverlaySpinning,
        Self::OverlayEtf,
        Self::Takt,
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::BareSleeping => "bare metal, sleeping",
            Self::BareSpinning => "bare metal, spinning",
            Self::BarePriority => "bare metal, spinning, HTB",
            Self::BareEtf => "bare metal, etf, taprio",
            Self::OverlaySleeping => "Flannel, sleeping",
            Self::OverlaySpinning => "Flannel, spinning",
            Self::OverlayEtf => "Flannel, etf, taprio",
            Self::Takt => "Flannel with Takt",
        }
    }

    fn is_bare(self) -> bool {
        matches!(
            self,
            Self::BareSleeping | Self::BareSpinning | Self::BarePriority | Self::BareEtf
        )
    }

    /// Whether it is only where the kernel has etf and taprio, and links with [`GATED_QUEUES`].
    pub fn is_gated_by_kernel(self) -> bool {
        matches!(self, Self::BareEtf | Self::OverlayEtf)
    }

    fn talker(self) -> &'static str {
        match self {
            Self::BareSleeping | Self::OverlaySleeping => "sleep",
            Self::BareSpinning | Self::BarePriority | Self::OverlaySpinning => "spin",
            Self::BareEtf | Self::OverlayEtf | Self::Takt => "launch",
        }
    }

    /// What the talker may; `None`: all that this program may.
    fn privileges(self) -> Option<CapabilitySet> {
        match self {
            _ if self.is_bare() => None,
            // The kernel asks for it where launch times are of CLOCK_TAI.
            Self::OverlayEtf => Some(CapabilitySet::NET_ADMIN),
            _ => Some(CapabilitySet::empty()),
        }
    }

    /// Of the talker's host.
    fn queues(self, period: Duration) -> Queues {
        match self {
            Self::BarePriority => Queues::ByPriority,
            Self::BareEtf | Self::OverlayEtf => Queues::Gated(gates(period)),
            _ => Queues::One,
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

impl Flow {
    /// Of a run, with its warm-up.
    pub(super) fn duration(&self) -> Duration {
        self.period * (self.count + WARM_UP)
    }
}

/// The hosts: a link with a rate, and containers in Flannel's network.
#[must_use]
pub fn lab(rate: u64) -> LabConfig {
    LabConfig {
        // One of a talker or its listener, one of best effort; of tenants, two that talk and a hostile one.
        containers: 3,
        rate: Some(rate),
        wiring: Wiring::Bridge,
        priorities: true,
        overlay: Overlay::Flannel,
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
    /// What was captured at the other end of the cable that the talker's host sends on.
    pub wire: Wire,
    /// What the runtime has counted as sent of the talker's class; `None`: there was no runtime.
    pub counted: Option<u64>,
    /// What the hypervisor took of all cores meanwhile.
    pub stolen: Duration,
    /// How many runs before this one it disturbed, of which nothing is kept.
    pub disturbed: u32,
}

/// What a hypervisor takes of a core at most, as a share of a run's time, in a run that counts.
pub const DISTURBED: f64 = 0.005;
/// Runs until one counts that is disturbed, too.
const MOST_RUNS: u32 = 3;

/// Runs a flow over a way. Everything that serves it runs on `cores.0`, best effort on `cores.1`. Again if the hypervisor
/// disturbed it: chosen by what it took, never by what was measured. The least disturbed of three counts if none is undisturbed.
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
    least_disturbed(flow.duration(), || once(takt, lab, way, flow, cores))
}

fn least_disturbed(
    duration: Duration,
    mut run: impl FnMut() -> Result<Run, TaktError>,
) -> Result<Run, TaktError> {
    let most = duration.mul_f64(DISTURBED);
    let mut best = run()?;
    let mut runs = 1;
    while best.stolen > most && runs < MOST_RUNS {
        let next = run()?;
        runs += 1;
        if next.stolen < best.stolen {
            best = next;
        }
    }
    best.disturbed = runs - 1;
    Ok(best)
}

/// A flow at the other end of the cable, by the receiving kernel's stamps: for every way the same.
#[derive(Clone, Debug, Default)]
pub struct Wire {
    /// Datagrams that came by.
    pub captured: u32,
    /// Of those that are measured, how far from its launch time each came by: absolute.
    pub departure: Latencies,
    /// How many of them came by before their launch time.
    pub early: u32,
}

impl Wire {
    /// Reads what was captured.
    fn read(capture: &Capture) -> std::io::Result<Self> {
        let offset = sys::tai_offset_ns();
        let mut wire = Self::default();
        while let Some(captured) = capture.take()? {
            let Some(head) = captured.datagram().first_chunk::<LEAST_SIZE>() else {
                continue;
            };
            let [a, b, c, d, launch @ ..] = *head;
            let number = u32::from_le_bytes([a, b, c, d]);
            let launch = i64::from_le_bytes(launch);
            wire.captured += 1;
            if number >= WARM_UP {
                let at = captured.realtime_ns + offset;
                wire.departure.record_ns(at.abs_diff(launch));
                wire.early += u32::from(at < launch);
            }
        }
        match capture.lost()? {
            0 => Ok(wire),
            lost => Err(std::io::Error::other(format!(
                "{lost} frames were not captured"
            ))),
        }
    }
}

fn once(
    takt: &Takt,
    lab: &Lab,
    way: Way,
    flow: &Flow,
    cores: (usize, usize),
) -> Result<Run, TaktError> {
    let scratch = Scratch::new()?;
    let (near, far) = match way.is_bare() {
        true => (lab.host(0), lab.host(1)),
        false => (lab.container(0, 0), lab.container(1, 0)),
    };
    lab.set_queues(0, way.queues(flow.period))?;
    let daemon = match way {
        Way::Takt => {
            let lane = (cores.0, &*real_time_lane());
            Some(node(takt, lab, 1, lane, &scratch, Some(flow.period))?)
        }
        _ => None,
    };
    let seconds = flow.duration().as_secs_f64();
    let start = |command: Command, name: &str| {
        Process::start(command, &scratch.path().join(format!("{name}.log")))
    };
    // `kept`: in a container. `None`: on bare metal, with all that this program may.
    let as_it_runs = |host: &Host, kept: Option<CapabilitySet>, priority: Option<i32>| {
        let command = host.command(takt.program())?;
        Ok::<Command, TaktError>(match kept {
            Some(kept) => contained(command, kept, priority),
            None => command,
        })
    };
    let program = |host: &Host, core: usize, words: &[&str], priority: Option<i32>| {
        let nothing = way.privileges().map(|_| CapabilitySet::empty());
        let mut command = as_it_runs(host, nothing, priority)?;
        command.arg("bench-socket").args(words);
        command.args(["--core", &core.to_string()]);
        Ok::<Command, TaktError>(command)
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
        let drain = start(
            program(lab.container(1, 1), cores.1, &drain, None)?,
            "drain",
        )?;
        let rate = flow.load.to_string();
        let flood = ["flood", "--to", &drain_at, "--rate", &rate];
        let flood = start(
            program(lab.container(0, 1), cores.1, &flood, None)?,
            "flood",
        )?;
        best_effort = Some((drain, flood));
    }
    let listener = ["listener", "--at", &listen_at, "--count", &count];
    let mut listener = program(far, cores.0, &listener, Some(listener::PRIORITY))?;
    listener.args(["--period-us", &period, "--warm-up", &warm_up]);
    let mut listener = start(listener, "listener")?;
    // Where the kernel has to ask for the listener's address it has done so before the first datagram.
    introduce(near, far)?;

    let size = flow.size.to_string();
    let mut talker = match way {
        Way::Takt => preloaded(takt, near, &socket(&scratch, 0), Some(talker::PRIORITY))?,
        _ => as_it_runs(near, way.privileges(), Some(talker::PRIORITY))?,
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
    talker.args(["--mode", way.talker()]);
    if way.is_gated_by_kernel() {
        talker.args(["--later-us", &AHEAD_US.to_string()]);
    }
    talker.args(["--core", &cores.0.to_string()]);
    let capture = Capture::sent_by(lab.host(0), LISTENER_PORT)?;
    let stolen = machine::stolen().map_err(TaktError::io("read /proc/stat"))?;
    let mut talker = start(talker, "talker")?;
    let patience = Duration::from_secs_f64(seconds) + PATIENCE;
    let sent: Sent = talker.answer(patience)?;
    let heard: Heard = listener.answer(PATIENCE)?;
    let drained = match &mut best_effort {
        Some((drain, _)) => drain.answer(PATIENCE)?,
        None => 0.0,
    };
    let until = machine::stolen().map_err(TaktError::io("read /proc/stat"))?;
    let wire = Wire::read(&capture).map_err(TaktError::io("read what was captured"))?;
    let counted = match &daemon {
        Some(_) => Some(counted(takt, &scratch)?),
        None => None,
    };
    Ok(Run {
        sent,
        heard,
        drained,
        wire,
        counted,
        stolen: until.saturating_sub(stolen),
        disturbed: 0,
    })
}

/// What the runtime says it has sent of the talker's class.
fn counted(takt: &Takt, scratch: &Scratch) -> Result<u64, TaktError> {
    let answer = takt.ask(
        &["schedule", "status"],
        &daemon::admin(scratch.path(), NODE),
    )?;
    let sent = |link: &serde_json::Value| {
        let class = link["classes"]
            .as_array()?
            .get(usize::from(talker::CLASS))?;
        class["sent"].as_u64()
    };
    let links = answer.as_array().map(Vec::as_slice).unwrap_or_default();
    let sum: Option<u64> = links.iter().map(sent).sum();
    sum.filter(|_| !links.is_empty()).ok_or_else(|| {
        let said = std::io::Error::other(answer.to_string());
        TaktError::io("read what the runtime has counted")(said)
    })
}

/// How much of each period is the talker's class's alone.
fn window(period: Duration) -> Duration {
    period / 4
}

/// The gates that a kernel keeps for the talker: those of [`schedule`].
#[must_use]
pub fn gates(period: Duration) -> Gates {
    Gates {
        priority: talker::CLASS,
        window: window(period),
        cycle: period,
        ahead: Duration::from_micros(AHEAD_US.into()),
    }
}

/// The schedule that the runtime keeps for the talker: a quarter of each period for its class alone, the rest for all
/// others (IEEE 802.1Qbv).
#[must_use]
pub fn schedule(period: Duration) -> String {
    let own = window(period).as_nanos();
    let period = period.as_nanos();
    let rest = period - own;
    let class = talker::CLASS;
    let others: Vec<String> = (0..8u8)
        .filter(|other| *other != class)
        .map(|other| other.to_string())
        .collect();
    format!(
        "cycle-time = \"{period}ns\"\n[[entry]]\ngates = [{class}]\ninterval = \"{own}ns\"\n\
         [[entry]]\ngates = [{}]\ninterval = \"{rest}ns\"\n",
        others.join(", ")
    )
}

/// The node's name.
const NODE: &str = "h1";

/// A program as it is in an ordinary container: without capabilities, whoever it is, but for those that are kept. A real-time
/// class is what it is started in; it can lock no memory.
pub(super) fn contained(
    mut command: Command,
    kept: CapabilitySet,
    priority: Option<i32>,
) -> Command {
    let give_up = move || -> std::io::Result<()> {
        if let Some(priority) = priority {
            awake::set_scheduler(libc::SCHED_FIFO, priority)?;
        }
        for number in 0..u64::BITS {
            let one = CapabilitySet::from_bits_retain(1 << number);
            if !kept.contains(one) {
                match remove_capability_from_bounding_set(one) {
                    // There are no more.
                    Err(Errno::INVAL) => break,
                    removed => removed?,
                }
            }
        }
        Ok(set_no_new_privs(true)?)
    };
    // SAFETY: between fork and exec the closure makes system calls on constants; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(give_up) };
    command
}

/// This program in a container without privileges, under the preload, as the tenant with this socket. `priority`: of a
/// real-time thread.
pub(super) fn preloaded(
    takt: &Takt,
    host: &Host,
    socket: &Path,
    priority: Option<i32>,
) -> Result<Command, TaktError> {
    let program = host.command(takt.program())?;
    let mut command = contained(program, CapabilitySet::empty(), priority);
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

/// The lines of a lane's section: a real-time thread that sleeps.
pub(super) fn real_time_lane() -> String {
    format!("scheduling = \"fifo:{LANE_PRIORITY}\"\n")
}

/// The runtime of the talkers' host: its tenants are the first containers. `lane`: lines of its lane's section.
/// `period`: of a schedule for their class.
pub(super) fn node(
    takt: &Takt,
    lab: &Lab,
    tenants: usize,
    (core, lane): (usize, &str),
    scratch: &Scratch,
    period: Option<Duration>,
) -> Result<daemon::Daemon, TaktError> {
    let host = lab.host(0);
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
        "[[network]]\nname = \"pods\"\ncarrier = \"vxlan:{OVERLAY_ID}\"\nfollow = \"{OVERLAY_DEVICE}\"\n\n\
         [departure]\ntolerance_us = {TOLERANCE_US}\n",
    );
    if let Some(period) = period {
        let file = scratch.path().join("schedule.toml");
        std::fs::write(&file, schedule(period)).map_err(TaktError::io("write a schedule"))?;
        listener += &format!(
            "\n[[schedule]]\ndatapath = \"xdp\"\nfile = \"{}\"\nrate = {}\n",
            file.display(),
            lab.config().rate.unwrap_or(RATE),
        );
    }
    let node = daemon::Node {
        name: NODE,
        address: host.address(),
        core,
        peer: None,
        interface: Some(host.interface()),
        node: "",
        lane,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_and_the_runtime_keep_the_same_gates() {
        let period = Duration::from_micros(1000);
        let gates = gates(period);
        assert_eq!(gates.cycle, period);
        let rest = gates.cycle - gates.window;
        let entries = [
            format!(
                "gates = [{}]\ninterval = \"{}ns\"",
                gates.priority,
                gates.window.as_nanos()
            ),
            format!(
                "gates = [0, 1, 2, 3, 4, 5, 7]\ninterval = \"{}ns\"",
                rest.as_nanos()
            ),
        ];
        let schedule = schedule(period);
        let places = entries.map(|entry| schedule.find(&entry));
        assert!(places[0].is_some() && places[0] < places[1], "{schedule}");
    }

    #[test]
    fn a_run_that_was_disturbed_is_done_again_and_the_least_disturbed_counts() {
        let least = |stolen_ms: &[u64]| {
            let mut next = stolen_ms.iter();
            least_disturbed(Duration::from_secs(1), || {
                let stolen = Duration::from_millis(*next.next().expect("no run more"));
                Ok(Run {
                    sent: Sent::default(),
                    heard: Heard::default(),
                    drained: 0.0,
                    wire: Wire::default(),
                    counted: None,
                    stolen,
                    disturbed: 0,
                })
            })
            .map(|run| (run.stolen.as_millis(), run.disturbed))
            .expect("runs")
        };
        assert_eq!(least(&[5]), (5, 0));
        assert_eq!(least(&[6, 5]), (5, 1));
        assert_eq!(least(&[9, 7, 8]), (7, 2));
    }

    #[test]
    fn what_is_contained_has_no_privilege_but_those_that_it_keeps() {
        if !machine::is_root() {
            eprintln!("SKIPPED: only root has capabilities to give up");
            return;
        }
        for kept in [CapabilitySet::empty(), CapabilitySet::NET_ADMIN] {
            let mut command = Command::new("cat");
            command.arg("/proc/self/status");
            let said = contained(command, kept, Some(1)).output().expect("cat");
            let said = String::from_utf8(said.stdout).expect("text");
            let field = |name| {
                let line = said.lines().find_map(|line| line.strip_prefix(name));
                u64::from_str_radix(line.expect("a field").trim(), 16).expect("hexadecimal")
            };
            for name in ["CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
                let expected = match name {
                    "CapAmb:" => 0,
                    _ => kept.bits(),
                };
                assert_eq!(field(name), expected, "{name}");
            }
            assert_eq!(field("NoNewPrivs:"), 1);
            let mut command = Command::new("chrt");
            command.args(["--pid", "0"]);
            let said = contained(command, kept, Some(1)).output().expect("chrt");
            let said = String::from_utf8(said.stdout).expect("text");
            assert!(said.contains("SCHED_FIFO"), "{said}");
        }
    }

    #[test]
    fn launch_times_are_for_takt_and_for_kernels_that_keep_them() {
        let period = Duration::from_millis(1);
        for way in Way::ALL {
            let launch = way.talker() == "launch";
            assert_eq!(launch, way.is_gated_by_kernel() || way == Way::Takt);
            let gated = matches!(way.queues(period), Queues::Gated(_));
            assert_eq!(gated, way.is_gated_by_kernel());
        }
    }
}
