//! What others send by the interface of a schedule's link: the kernel's `taprio` keeps it inside the windows of best effort, where
//! the operator wants that (decision 31).
//!
//! The kernel is asked when a schedule is installed, so that what it refuses is not installed; and looked at once a second, since
//! schedules begin and end, and somebody may take the queueing discipline away. It is removed when the daemon ends; after a crash it
//! stays, is known by its handle, and is changed at the next start, or removed where no schedule wants it any more.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use takt_clock::{Clock, SystemTai, phc};
use takt_datapath::stack::{self, Attached, Root, Taprio, TaprioError};
use takt_datapath_udp::{Priorities, UdpDatapath};
use takt_datapath_xdp::XdpDatapath;
use takt_runtime::config::{LinkSchedule, OtherTraffic as Wanted};
use takt_runtime::status::ScheduleStatus;
use takt_schedule::GateList;
use takt_time::{TaiTime, TrafficClass};

/// Octets of an Ethernet header.
const HEADER: u32 = 14;
/// What taprio counts with where a device does not tell its speed, megabits per second.
const UNKNOWN_SPEED: u64 = 10;
/// At one of how many looks the kernel is asked again what it has refused: without taprio it looks for a module each time.
const RARELY: u32 = 60;
/// How far the clock of a device may be off that keeps gates, nanoseconds.
const DEVICE_CLOCK_NS: u64 = 10_000;

/// What of the kernel keeps the traffic of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Its software.
    Kernel,
    /// The gates of the device.
    Device,
}

impl By {
    /// As messages name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => Wanted::Taprio.name(),
            Self::Device => Wanted::TaprioOffload.name(),
        }
    }
}

/// Why nothing of the kernel keeps it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Problem {
    text: String,
    /// The kernel was asked, and has refused.
    by_kernel: bool,
}

impl Problem {
    fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            by_kernel: false,
        }
    }

    /// Of taprio at an interface.
    fn at(interface: &Attached, error: TaprioError) -> Self {
        Self {
            text: format!("{}: {error}", interface.name),
            by_kernel: matches!(error, TaprioError::Absent | TaprioError::Refused { .. }),
        }
    }
}

/// What holds at the link of a datapath.
#[derive(Debug, Default)]
struct Link {
    interface: Option<Attached>,
    /// Its speed when taprio was programmed, megabits per second.
    speed: u64,
    /// What was last asked of the kernel, and what came of it.
    last: Option<(LinkSchedule, Result<By, Problem>)>,
    /// Looks since then.
    looks: u32,
}

/// What is told of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The interface, if it is known.
    pub interface: String,
    /// What keeps the traffic of others there.
    pub by: Option<By>,
    /// Why it is not kept as asked for.
    pub problem: String,
}

/// The queueing disciplines of a node.
#[derive(Debug)]
pub struct OtherTraffic {
    priorities: Priorities,
    /// The queues of AF_XDP; none: all of them.
    xdp_queues: Option<Range<u32>>,
    links: BTreeMap<String, Link>,
    /// Where taprio is of this process, by the interface's index.
    claims: BTreeMap<u32, UnixDatagram>,
    /// What an earlier daemon has left is removed.
    swept: bool,
    /// Looks whether there is something.
    looks: u32,
}

impl OtherTraffic {
    /// None yet. `priorities` are those of the node's datagrams, `xdp_queues` what its AF_XDP is configured with.
    pub fn new(priorities: Priorities, xdp_queues: Option<Range<u32>>) -> Self {
        Self {
            priorities,
            xdp_queues,
            links: BTreeMap::new(),
            claims: BTreeMap::new(),
            swept: false,
            looks: 0,
        }
    }

    /// Has the kernel keep the traffic of others by a schedule that is about to be installed on a link whose datapath sends from
    /// `address`.
    ///
    /// # Errors
    /// [`Problem`], unless the operator lets it be: what was in force is so still.
    pub fn install(
        &mut self,
        address: Option<IpAddr>,
        asked: &LinkSchedule,
    ) -> Result<(), Problem> {
        if asked.other_traffic == Wanted::Port {
            return Ok(());
        }
        let base_time = asked.schedule.base_time;
        match self.program(address, asked, base_time) {
            Err(problem) if asked.other_traffic != Wanted::Auto => Err(problem),
            outcome => {
                self.note(asked, outcome);
                Ok(())
            }
        }
    }

    /// Has the kernel do what schedules want that run and that are to run.
    pub fn follow(&mut self, links: &[ScheduleStatus]) {
        let mut unwanted = Vec::new();
        for status in links.iter().filter(|status| is_of_kernel(&status.datapath)) {
            let by_taprio = |asked: &&LinkSchedule| asked.other_traffic != Wanted::Port;
            let running = status.running.as_ref().filter(by_taprio);
            let latest = status.latest.as_ref().filter(|_| status.pending.is_some());
            let pending = latest.filter(by_taprio);
            let link = self.links.entry(status.datapath.clone()).or_default();
            // The kernel knows one to come beside the one that runs, so that one has to be there first.
            let wanted = match (&link.last, running, pending) {
                (None, Some(running), _) | (_, Some(running), None) => Some((running, true)),
                (_, _, Some(pending)) => Some((pending, false)),
                (_, None, None) => None,
            };
            match wanted {
                Some((asked, runs)) => self.keep(status.address, asked, runs),
                None if link.last.is_none() => {}
                None => unwanted.push(status),
            }
        }
        // Afterwards: two datapaths may send by one interface.
        for status in unwanted {
            self.release(&status.datapath);
        }
        // Again where somebody else had it: that may have been a daemon that was about to end.
        if !self.swept && self.looks.is_multiple_of(RARELY) {
            self.swept = self.sweep();
        }
        self.looks = self.looks.wrapping_add(1);
    }

    /// Removes what an earlier daemon has left at any interface, and no schedule wants; false: ask again.
    fn sweep(&self) -> bool {
        let found = match stack::programmed() {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!("queueing disciplines that Takt has left are not known: {error}");
                return false;
            }
        };
        let mut all = true;
        for at in found {
            let mut links = self.links.iter();
            let is_of =
                |link: &Link| (link.interface.as_ref()).is_some_and(|of| of.ifindex == at.ifindex);
            if links.any(|(_, link)| link.last.is_some() && is_of(link)) {
                continue;
            }
            match claim(at.ifindex) {
                Ok(_) => give_back(None, &at),
                Err(error) => {
                    all = false;
                    tracing::warn!(
                        interface = at.name,
                        "taprio of another Takt daemon that runs is there, as it seems, and is let be: {error}"
                    );
                }
            }
        }
        all
    }

    /// What holds at the link of a datapath.
    pub fn told(&self, datapath: &str) -> Told {
        let Some(link) = self.links.get(datapath) else {
            return Told::default();
        };
        let interface = link.interface.as_ref();
        let (by, problem) = match &link.last {
            Some((_, Ok(by))) => (Some(*by), String::new()),
            Some((_, Err(problem))) => (None, problem.text.clone()),
            None => (None, String::new()),
        };
        Told {
            interface: interface.map_or_else(String::new, |interface| interface.name.clone()),
            by,
            problem,
        }
    }

    /// The datapaths of links where the kernel is to keep what others send, and whether it does.
    pub fn kept(&self) -> Vec<(String, bool)> {
        let asked = self.links.iter().filter_map(|(datapath, link)| {
            let (_, outcome) = link.last.as_ref()?;
            Some((datapath.clone(), outcome.is_ok()))
        });
        asked.collect()
    }

    /// Gives all interfaces back to the kernel.
    pub fn release_all(&mut self) {
        let all: Vec<String> = self.links.keys().cloned().collect();
        for datapath in all {
            self.release(&datapath);
        }
    }

    /// Asks again where something is not as it is wanted.
    fn keep(&mut self, address: Option<IpAddr>, asked: &LinkSchedule, runs: bool) {
        let link = self.links.entry(asked.datapath.clone()).or_default();
        link.looks = link.looks.wrapping_add(1);
        if let Some((last, outcome)) = &link.last
            && last == asked
        {
            let there = link.interface.as_ref().is_some_and(is_own);
            // The address moves to another interface, its longest packet or its speed changes: then the guard band is another.
            // Where that is not known now, it is as it was.
            let as_it_was = interface(&asked.datapath, address).map_or(true, |now| {
                link.interface.as_ref() == Some(&now) && link.speed == speed(&now)
            });
            match outcome {
                Ok(_) if there && as_it_was => return,
                Ok(_) if there => {}
                Ok(_) => tracing::warn!(
                    datapath = asked.datapath,
                    "somebody has removed Takt's taprio: what others send has been beside the schedule"
                ),
                Err(problem)
                    if problem.by_kernel && as_it_was && !link.looks.is_multiple_of(RARELY) =>
                {
                    return self.give_up(asked, runs);
                }
                Err(_) => {}
            }
        }
        // One that runs does so whatever the clock says, be it before the base time.
        let schedule = &asked.schedule;
        let cycle = i64::try_from(schedule.cycle_time_ns)
            .unwrap_or(i64::MAX)
            .max(1);
        let base_time = match runs {
            true => TaiTime::from_nanos(schedule.base_time.as_nanos().rem_euclid(cycle)),
            false => schedule.base_time,
        };
        let outcome = self.program(address, asked, base_time);
        if outcome.is_err() {
            self.give_up(asked, runs);
        }
        self.note(asked, outcome);
    }

    /// What is there, of a schedule that runs and cannot be kept, keeps the windows of another one, or those of a shorter packet.
    fn give_up(&mut self, asked: &LinkSchedule, runs: bool) {
        let link = self.links.get(&asked.datapath);
        let left = link.and_then(|link| link.interface.as_ref());
        if let Some(left) = left.filter(|left| runs && is_own(left)) {
            give_back(Some(&asked.datapath), left);
            if asked.datapath == UdpDatapath::KIND.0 {
                self.priorities.set_own(false);
            }
        }
    }

    /// Remembers what came of it, and says so if it is new.
    fn note(&mut self, asked: &LinkSchedule, outcome: Result<By, Problem>) {
        let datapath = &asked.datapath;
        let link = self.links.entry(datapath.clone()).or_default();
        let before = link.last.as_ref().map(|(_, outcome)| outcome);
        let new = before != Some(&outcome);
        let interface = link.interface.as_ref().map(|at| at.name.as_str());
        match &outcome {
            Ok(by) if new => tracing::info!(
                datapath,
                interface,
                by = by.name(),
                "what others send is kept inside the schedule"
            ),
            Err(problem) if new => tracing::error!(
                datapath,
                "what others send is beside the schedule: {problem}"
            ),
            _ => {}
        }
        link.last = Some((asked.clone(), outcome));
    }

    fn program(
        &mut self,
        address: Option<IpAddr>,
        asked: &LinkSchedule,
        base_time: TaiTime,
    ) -> Result<By, Problem> {
        let datapath = &asked.datapath;
        let interface = interface(datapath, address)?;
        let link = self.links.entry(datapath.clone()).or_default();
        link.speed = speed(&interface);
        let before = link.interface.replace(interface.clone());
        if let Some(before) = before.filter(|before| before.ifindex != interface.ifindex) {
            give_back(Some(datapath), &before);
            self.claims.remove(&before.ifindex);
        }
        let others = windows(asked, &interface)?;
        let of_udp = *datapath == UdpDatapath::KIND.0;
        if of_udp {
            without_launch_times()?;
        }
        let queues = queues(&interface);
        let taprio = |by| -> Result<Taprio, Problem> {
            Ok(Taprio {
                base_time,
                others: others.clone(),
                own_queues: match by {
                    By::Device if !of_udp => self.frames_queues(&interface, queues)?,
                    _ => 1,
                },
                queues,
                offload: by == By::Device,
            })
        };
        // Before there are gates, so that no packet of its own finds one closed.
        let own = |own| {
            if of_udp {
                self.priorities.set_own(own);
            }
        };
        own(!matches!(
            stack::root(interface.ifindex),
            Ok(Root::Foreign(_))
        ));
        let attempt = |by| {
            if by == By::Device {
                device_clock(&interface)?;
            }
            let programmed = taprio(by)?.program(&interface);
            programmed
                .map(|()| by)
                .map_err(|error| Problem::at(&interface, error))
        };
        let outcome = match asked.other_traffic {
            Wanted::TaprioOffload => attempt(By::Device),
            Wanted::Auto => attempt(By::Device).or_else(|_| attempt(By::Kernel)),
            Wanted::Taprio | Wanted::Port => attempt(By::Kernel),
        };
        match outcome {
            // One that could not be changed is in force still.
            Err(_) => own(is_own(&interface)),
            Ok(_) if self.claims.contains_key(&interface.ifindex) => {}
            Ok(_) => match claim(interface.ifindex) {
                Ok(claim) => drop(self.claims.insert(interface.ifindex, claim)),
                Err(_) => tracing::warn!(
                    interface = interface.name,
                    "another Takt daemon has programmed taprio there too: the last one is in force"
                ),
            },
        }
        outcome
    }

    /// How many queues are not to have gates, so that those of AF_XDP are among them: the device holds its frames as all others.
    fn frames_queues(&self, interface: &Attached, queues: u16) -> Result<u16, Problem> {
        let all = || 0..u32::from(queues);
        let end = self.xdp_queues.clone().unwrap_or_else(all).end;
        u16::try_from(end)
            .ok()
            .filter(|end| *end < queues)
            .ok_or_else(|| {
                Problem::new(format!(
                    "{}: AF_XDP has its last transmit queue, and none is left for others, whose gates the device would keep for AF_XDP too: give it fewer (`queues` in [datapath.xdp])",
                    interface.name
                ))
            })
    }

    fn release(&mut self, datapath: &str) {
        let link = self.links.entry(datapath.to_owned()).or_default();
        link.last = None;
        let interface = link.interface.take();
        let is_kept = |at: &Attached| {
            let mut kept = self.links.values().filter(|link| link.last.is_some());
            kept.any(|link| (link.interface.as_ref()).is_some_and(|of| of.ifindex == at.ifindex))
        };
        if let Some(interface) = interface.filter(|interface| !is_kept(interface)) {
            give_back(Some(datapath), &interface);
            self.claims.remove(&interface.ifindex);
        }
        if datapath == UdpDatapath::KIND.0 {
            self.priorities.set_own(false);
        }
    }
}

impl Drop for OtherTraffic {
    fn drop(&mut self) {
        self.release_all();
    }
}

/// Says to other daemons of this network namespace that taprio of an interface is of a process that lives: an abstract name, which
/// ends with it.
fn claim(ifindex: u32) -> io::Result<UnixDatagram> {
    let name = SocketAddr::from_abstract_name(format!("takt-taprio-{ifindex}"))?;
    UnixDatagram::bind_addr(&name)
}

/// Whether what is at the root of an interface is Takt's.
fn is_own(interface: &Attached) -> bool {
    stack::root(interface.ifindex).is_ok_and(|root| root == Root::Own)
}

/// Gives an interface back to the kernel, if what is there is Takt's.
fn give_back(datapath: Option<&str>, interface: &Attached) {
    match interface.release() {
        Ok(true) => tracing::info!(
            datapath,
            interface = interface.name,
            "taprio removed: nothing of the kernel keeps what others send"
        ),
        Ok(false) => {}
        Err(error) => tracing::error!(
            datapath,
            "cannot remove taprio from {}: {error}",
            interface.name
        ),
    }
}

/// Whether a datapath sends by an interface of the kernel.
fn is_of_kernel(datapath: &str) -> bool {
    [UdpDatapath::KIND.0, XdpDatapath::KIND.0].contains(&datapath)
}

/// The interface that a datapath sends by.
fn interface(datapath: &str, address: Option<IpAddr>) -> Result<Attached, Problem> {
    if !is_of_kernel(datapath) {
        return Err(Problem::new(format!(
            "datapath `{datapath}` has a device that is not the kernel's: nobody else sends by it, and there is nothing to keep inside"
        )));
    }
    let address = address.filter(|address| !address.is_unspecified());
    let Some(address) = address else {
        return Err(Problem::new(format!(
            "datapath `{datapath}` sends from any address, so by any interface: write the one of the link as `address` in [node]"
        )));
    };
    match stack::attached(address) {
        Ok(Some(interface)) => Ok(interface),
        Ok(None) => Err(Problem::new(format!(
            "no interface has the address {address}, which datapath `{datapath}` sends from"
        ))),
        Err(error) => Err(Problem::new(format!(
            "the interface of {address} is not known: {error}"
        ))),
    }
}

/// When the longest packets of others may begin: so much before the end of each window that they are out by then. The kernel
/// counts with the speed of the device, and without preamble and gap; the schedule's rate may be that of a slower way behind it.
fn windows(asked: &LinkSchedule, interface: &Attached) -> Result<Vec<(bool, u64)>, Problem> {
    let list = GateList::new(&asked.schedule).map_err(|error| Problem::new(error.to_string()))?;
    let class = asked.classes.class(TrafficClass::BEST_EFFORT);
    let frame = interface.mtu + HEADER;
    let guard_ns = asked.link().transmission_ns(frame);
    let others = list.may_begin(class, guard_ns);
    let longest = others.iter().filter(|(may, _)| *may).map(|(_, ns)| *ns);
    let longest = longest.max().unwrap_or(0);
    // What is longer than any window would wait for ever, and everything behind it. That may pass: a link that is down has no speed.
    let needed = u64::from(frame) * 8_000 / speed(interface);
    if longest <= needed {
        return Err(Problem::new(format!(
            "class {}, best effort's, has no window for others: a packet of {} octets, the MTU of {}, takes {:.1} µs, and each ends with as much of a guard band: give it one of more than {:.1} µs, or the interface a shorter MTU",
            class.number(),
            interface.mtu,
            interface.name,
            needed.max(guard_ns) as f64 / 1e3,
            (needed + guard_ns) as f64 / 1e3,
        )));
    }
    Ok(others)
}

/// Sockets that have said that their packets have launch times, as those of the datapath do where `etf` keeps them, are held to them by
/// taprio on every interface.
fn without_launch_times() -> Result<(), Problem> {
    let found = stack::launch_queues().map_err(|error| Problem::new(error.to_string()))?;
    found.first().map_or(Ok(()), |queues| {
        Err(Problem::new(format!(
            "`etf` of {} keeps launch times, and taprio drops what sockets with launch times send without: remove it (`tc qdisc del dev {} root`) and restart the node",
            queues.name, queues.name
        )))
    })
}

/// The clock of a device that is to keep gates must be what `CLOCK_TAI` is here.
fn device_clock(interface: &Attached) -> Result<(), Problem> {
    let name = &interface.name;
    let clock = std::fs::read_dir(of(interface, "device/ptp"));
    let clock = clock.ok().and_then(|mut clocks| clocks.next()?.ok());
    let Some(clock) = clock else {
        return Err(Problem::new(format!(
            "{name} has no clock of its own, by which a device keeps gates: choose `taprio`"
        )));
    };
    let device = Path::new("/dev").join(clock.file_name());
    let at = device.display();
    let reading = phc::read(&device).map_err(|error| {
        Problem::new(format!(
            "{name}: its clock, {at}, by which it would keep gates, cannot be read: {error}"
        ))
    })?;
    let off = tai_minus_realtime_ns().saturating_add(reading.realtime_minus_phc_ns);
    if off.unsigned_abs() > DEVICE_CLOCK_NS.saturating_add(reading.error_ns) {
        return Err(Problem::new(format!(
            "{name}: its clock, {at}, by which it would keep gates, is off from CLOCK_TAI by {off} ns: have ptp4l or phc2sys set it"
        )));
    }
    Ok(())
}

/// Whole seconds, nanoseconds.
fn tai_minus_realtime_ns() -> i64 {
    const SECOND: i64 = 1_000_000_000;
    let realtime = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let realtime = i64::try_from(realtime.as_nanos()).unwrap_or(0);
    let off = SystemTai.now().as_nanos() - realtime;
    (off + SECOND / 2).div_euclid(SECOND) * SECOND
}

/// The transmit queues in use; of those that there are, which netlink tells, it may be a part.
fn queues(interface: &Attached) -> u16 {
    let there = interface.queues;
    let Ok(used) = std::fs::read_dir(of(interface, "queues")) else {
        return there;
    };
    let used = used.flatten().filter(|queue| {
        let name = queue.file_name();
        name.as_encoded_bytes().starts_with(b"tx-")
    });
    u16::try_from(used.count()).map_or(there, |used| used.min(there))
}

/// What taprio takes for the speed, megabits per second.
fn speed(interface: &Attached) -> u64 {
    let told = std::fs::read_to_string(of(interface, "speed"));
    let told = told.ok().and_then(|text| text.trim_end().parse().ok());
    told.filter(|speed| *speed > 0).unwrap_or(UNKNOWN_SPEED)
}

/// A file of the kernel about an interface.
fn of(interface: &Attached, file: &str) -> PathBuf {
    Path::new("/sys/class/net").join(&interface.name).join(file)
}

#[cfg(test)]
mod tests {
    use takt_schedule::{ClassTable, GateEntry, GateMask, Schedule};

    use super::*;

    fn interface() -> Attached {
        Attached {
            ifindex: 7,
            // There is no such one, so that its speed is not known.
            name: "none".into(),
            mtu: 1500,
            queues: 4,
        }
    }

    /// Class 0 in the second half of a cycle.
    fn half(cycle_ns: u32, rate_bps: u64) -> LinkSchedule {
        let entry = |gates| GateEntry::new(GateMask::from_bits(gates), cycle_ns / 2);
        let schedule = Schedule {
            cycle_time_ns: cycle_ns.into(),
            entries: vec![entry(0xfe), entry(0x01)],
            ..Schedule::default()
        };
        LinkSchedule::new("udp", schedule, rate_bps)
    }

    #[test]
    fn others_may_begin_until_their_longest_packet_would_reach_beyond_best_efforts_window() {
        let found = windows(&half(10_000_000, 1_000_000_000), &interface()).expect("a window");
        // 1500 octets with header, FCS and preamble, eight nanoseconds each.
        let guard = (1500 + 14 + 4 + 8) * 8;
        assert_eq!(
            found,
            [
                (false, 5_000_000),
                (true, 5_000_000 - guard),
                (false, guard)
            ]
        );
        // Priority 0 waits in class 3.
        let moved = LinkSchedule {
            classes: ClassTable::new([3; 8]).expect("classes"),
            ..half(10_000_000, 1_000_000_000)
        };
        let found = windows(&moved, &interface()).expect("a window");
        assert_eq!(
            found,
            [(true, 5_000_000 - guard), (false, 5_000_000 + guard)]
        );
    }

    #[test]
    fn a_schedule_that_would_cut_the_host_off_is_refused() {
        // At the 10 Mbit/s that taprio counts with a packet takes 1.21 ms.
        for cycle in [2_400_000, 2_000] {
            let refused = windows(&half(cycle, 1_000_000_000), &interface());
            let text = refused.expect_err("no window").to_string();
            assert!(text.contains("more than 1223.4 µs"), "{text}");
        }
        windows(&half(2_500_000, 1_000_000_000), &interface()).expect("a window");
    }

    #[test]
    fn a_datapath_that_goes_by_no_interface_of_the_kernel_is_refused_by_name() {
        for (datapath, address, why) in [
            ("dpdk", Some("10.0.0.1"), "not the kernel's"),
            ("udp", Some("0.0.0.0"), "`address` in [node]"),
            ("udp", None, "`address` in [node]"),
            (
                "xdp",
                Some("192.0.2.77"),
                "no interface has the address 192.0.2.77",
            ),
        ] {
            let address = address.map(|address| address.parse().expect("an address"));
            let refused = interface_of(datapath, address).expect_err("refused");
            assert!(refused.to_string().contains(why), "{refused}");
        }
    }

    fn interface_of(datapath: &str, address: Option<IpAddr>) -> Result<Attached, Problem> {
        super::interface(datapath, address)
    }
}
