//! The user-space half: what cores and neighbours tell goes into the table of `takt_balance`, and what that advises goes into the
//! map of wishes.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use takt_balance::resource::{MAX_CORES, MAX_NEIGHBOURS, Marks, Report, Resources};
use takt_balance::table::{self, Table, Target};
use takt_datapath::stack::{
    Destination, DeviceKind, NextHop, NextHops, StackError, takes_redirected,
};
use takt_wire::ethernet::MacAddress;
use takt_wire::vxlan::NetworkId;

use crate::beat::Key;
use crate::error::{Error, TO_LOAD};
use crate::flow::Service;
use crate::hear::{self, Ears};
use crate::look;
use crate::maps::{About, Counters, LAYOUT, NO_WAY, Reach, SILENT, Waiting};
use crate::program::Program;

/// Beats that are read in one tick.
const MOST_BEATS: usize = 4096;
/// Between two looks whether the interface is there.
const LOOK_AT_INTERFACE_NS: i64 = 100_000_000;
/// Bytes around a packet in a frame: Ethernet header and two VLAN tags.
const FRAME_OVERHEAD: u32 = 14 + 2 * 4;

/// How frames reach a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By its hardware address: it is on a link of this host, and has the service's address.
    Redirect,
    /// In VXLAN (RFC 7348).
    Vxlan {
        /// The network.
        network: NetworkId,
        /// The hardware address of the neighbour's device in that network.
        inner: MacAddress,
    },
}

/// Another host that provides the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Where it is, and where its beats come from.
    pub address: IpAddr,
    /// How frames reach it.
    pub way: Way,
}

/// What is to be balanced.
#[derive(Debug)]
pub struct Config {
    /// Where packets come in.
    pub interface: String,
    /// Whose packets are balanced. All others take the kernel's way.
    pub services: Vec<Service>,
    /// Processors that may work on them.
    pub cores: Vec<u32>,
    /// Others that may.
    pub neighbours: Vec<Neighbour>,
    /// 2^bits bundles for each receive queue.
    pub bits: u8,
    /// Flowlet time-out: see [`table::Config::delta_ns`]. For cores, it has to cover what the kernel does with a batch that has
    /// left a core's queue.
    pub delta: Duration,
    /// How long a core must be calm before bundles come back.
    pub hold: Duration,
    /// When a core is overloaded, in packets that wait for it.
    pub of_cores: Marks,
    /// When a neighbour is, in what its beats tell.
    pub of_neighbours: Marks,
    /// A neighbour whose beats are missing for so long is dead. `None`: neighbours send none, and are taken for alive.
    pub silence: Option<Duration>,
    /// The function of the services, 0 to 63: neighbours' beats tell which they provide.
    pub function: u8,
    /// Packets that a core's queue holds.
    pub queue: u32,
    /// The priority among real-time threads (`SCHED_FIFO`, 1 to 99) of the queues' threads and of the thread that makes the
    /// [`Balancer`]. `None`: as all others.
    pub priority: Option<u8>,
    /// Where beats come to.
    pub beats: Option<SocketAddr>,
    /// What neighbours prove their beats with.
    pub key: Option<Key>,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A neighbour's beats have been missing for too long; its bundles leave it.
    Dead(u16),
    /// A neighbour's beats are back.
    Alive(u16),
    /// There is no way to a neighbour: no route, or it does not answer. Its bundles leave it.
    Unreachable(u16),
    /// There is one.
    Reachable(u16),
    /// The device on the way to a neighbour takes no frames of XDP programs: the kernel would drop them. Its bundles leave it.
    NotTaken(u16),
    /// Beats come from a neighbour's address whose tag is not by the key, or for other addresses. Told once until one comes that is.
    OtherKey(u16),
    /// Beats of another version come from a neighbour's address. Told likewise.
    OtherVersion(u16, u8),
    /// A neighbour that is dead was started again, and counts from less than the one before it: its clock was set back, and is not ours.
    /// Told likewise.
    Older(u16),
}

/// Why nothing is sent to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum No {
    /// The kernel's tables show no way.
    Way,
    /// The device on the way takes no frames of XDP programs.
    Device,
}

/// A neighbour at present.
#[derive(Debug)]
struct Watched {
    neighbour: Neighbour,
    way: Destination,
    reach: Result<Reach, No>,
    dead: bool,
}

/// A core at present.
#[derive(Clone, Copy, Debug, Default)]
struct Core {
    /// Packets that wait for it.
    waiting: u32,
    /// What one packet takes, as far as was seen, nanoseconds.
    service_ns: Option<i64>,
    /// When it was last seen with a queue, and how much it had done.
    busy: Option<(i64, u64)>,
}

/// Flows are balanced as long as this lives.
pub struct Balancer {
    config: Config,
    program: Program,
    node: Resources,
    table: Table,
    cores: Vec<Core>,
    waiting: Waiting,
    neighbours: Vec<Watched>,
    next_hops: NextHops,
    generation: Option<u64>,
    socket: Option<UdpSocket>,
    ears: Ears,
    known: HashSet<MacAddress>,
    ifindex: u32,
    /// When it was last looked whether the interface is there.
    seen_ns: i64,
    /// What happened before anybody could be told.
    untold: Vec<Event>,
    /// Keeps the program attached. Dropped with the rest.
    _link: OwnedFd,
}

fn nanos(what: &'static str, time: Duration) -> Result<i64, Error> {
    let far = || Error::Config(format!("{what} of {time:?}: at most an hour is allowed"));
    match time <= Duration::from_secs(3600) {
        true => i64::try_from(time.as_nanos()).map_err(|_| far()),
        false => Err(far()),
    }
}

/// By `CLOCK_MONOTONIC`, the clock of the program.
pub(crate) fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

impl Config {
    fn check(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Config(text));
        if self.services.is_empty() {
            return refuse("no service: name one, as udp:10.0.0.1:5004".into());
        }
        if self.services.len() > 256 {
            return refuse(format!("{} services: at most 256", self.services.len()));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = self.cores.iter().find(|core| !seen.insert(**core)) {
            return refuse(format!("processor {twice} is named twice"));
        }
        let possible = aya::util::nr_cpus().map_or(u32::MAX, |count| count as u32);
        if let Some(cpu) = self.cores.iter().find(|core| **core >= possible) {
            return Err(Error::Cpu {
                cpu: *cpu,
                told: format!("this machine has {possible}, from 0 on"),
            });
        }
        let mut seen = HashSet::new();
        let mut neighbours = self.neighbours.iter();
        if let Some(twice) = neighbours.find(|neighbour| !seen.insert(neighbour.address)) {
            return refuse(format!("neighbour {} is named twice", twice.address));
        }
        if !(1..=16384).contains(&self.queue) {
            return refuse(format!(
                "queues of {} packets: 1 to 16384 are possible",
                self.queue
            ));
        }
        for neighbour in &self.neighbours {
            if let (Way::Vxlan { .. }, IpAddr::V6(address)) = (neighbour.way, neighbour.address) {
                return refuse(format!(
                    "neighbour {address}: VXLAN goes over IPv4 here; name its IPv4 address"
                ));
            }
        }
        let stream = self.services.iter().find(|service| service.is_stream());
        let mut redirected = self.neighbours.iter();
        let redirected = redirected.find(|neighbour| matches!(neighbour.way, Way::Redirect));
        if let (Some(stream), Some(neighbour)) = (stream, redirected) {
            let address = neighbour.address;
            return refuse(format!(
                "{stream} goes to a neighbour as it is, since its destination is its name: have it go by VXLAN, as \
                 {address},vni=42,mac=02:00:00:00:00:01"
            ));
        }
        if self.silence.is_some() && self.beats.is_none() && !self.neighbours.is_empty() {
            return refuse(
                "a time after which neighbours are dead, and no address for their beats".into(),
            );
        }
        Ok(())
    }
}

impl Balancer {
    /// Attaches the program to an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(config: Config) -> Result<Self, Error> {
        config.check()?;
        let interface = config.interface.clone();
        let ifindex =
            takt_xdp::index(&interface).ok_or_else(|| Error::NoInterface(interface.clone()))?;
        let namespace = takt_xdp::namespace()
            .map_err(Error::system("identify the network namespace", TO_LOAD))?;
        // A driver that does not tell has one.
        let queues = takt_xdp::receive_queues(&interface).unwrap_or(1).max(1);
        let delta_ns = nanos("a time-out", config.delta)?;
        let silence_ns = config.silence.map(|time| nanos("a silence", time));
        let mut node = Resources::new(
            config.cores.len(),
            config.neighbours.len(),
            config.of_cores,
            config.of_neighbours,
            silence_ns.transpose()?,
        )?;
        // One part of the table for each queue: their bits are the upper ones.
        let bits = u32::from(config.bits) + queues.next_power_of_two().ilog2();
        if bits > u32::from(table::MAX_BITS) {
            return Err(Error::Config(format!(
                "2^{} bundles for each of {queues} receive queues: 2^{} are possible",
                config.bits,
                u32::from(table::MAX_BITS) - queues.next_power_of_two().ilog2()
            )));
        }
        let table = Table::new(table::Config {
            bits: bits as u8,
            delta_ns,
            hold_ns: nanos("a hold time", config.hold)?,
            function: config.function,
        })?;
        let redirects = config.neighbours.iter().any(|n| n.way == Way::Redirect);
        let about = About {
            delta_ns: delta_ns as u64,
            namespace: [namespace.0, namespace.1],
            ifindex,
            layout: LAYOUT,
            queues,
            mask: (1 << config.bits) - 1,
            cores: config.cores.len() as u32,
            targets: (config.cores.len() + config.neighbours.len()) as u32,
            loops: u32::from(redirects),
            virtual_time: 0,
        };
        let mut program = Program::load(about, &config.services, &config.cores, config.queue)?;
        if let Some(priority) = config.priority {
            program.prioritise(&config.cores, priority)?;
        }
        for (target, cpu) in program.maps.targets.iter().zip(&config.cores) {
            target.set(Some(Reach::Core(*cpu)), false);
        }
        let untold = |error: StackError| Error::Tables(error.to_string());
        let next_hops = NextHops::start().map_err(untold)?;
        let now = now_ns();
        let mut neighbours = Vec::new();
        for (number, neighbour) in (0..).zip(&config.neighbours) {
            let way = next_hops
                .watch(neighbour.address, None, 0)
                .map_err(untold)?;
            // None lives before its first beat; without beats all do.
            node.set_neighbour_usable(number, false)?;
            neighbours.push(Watched {
                neighbour: *neighbour,
                way,
                reach: Err(No::Way),
                dead: config.silence.is_some(),
            });
        }
        let socket = (config.beats.map(hear::listen).transpose())
            .map_err(Error::system("listen for beats", TO_LOAD))?;
        let addresses = config.neighbours.iter().map(|neighbour| neighbour.address);
        let ears = Ears::new(config.key.clone(), addresses);
        let cores = vec![Core::default(); config.cores.len()];
        // The wishes are there before the first packet is.
        let mut this = Self {
            table,
            node,
            cores,
            waiting: Waiting::new(&about, now),
            neighbours,
            next_hops,
            generation: None,
            socket,
            ears,
            known: HashSet::new(),
            ifindex,
            seen_ns: now,
            untold: Vec::new(),
            _link: {
                for (bundle, wish) in (0..).zip(&*program.maps.wishes) {
                    let home = bundle % about.cores;
                    wish.store(u64::from(home) + 1, Ordering::Relaxed);
                }
                program.attach(&interface, ifindex)?
            },
            program,
            config,
        };
        this.untold = this.tick()?;
        Ok(this)
    }

    /// Where beats come in: to wait for them.
    pub fn beats(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Takes in beats and how full the cores' queues are: to be called when beats or packets are there. No look at bundles;
    /// nothing waits.
    pub fn attend(&mut self) {
        let now = now_ns();
        self.hear_beats(now);
        self.look_at_cores(now);
    }

    /// Looks at cores, beats, routes and bundles, and writes what follows from them: to be called every so often. One look
    /// at every bundle; nothing waits.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn tick(&mut self) -> Result<Vec<Event>, Error> {
        let now = now_ns();
        if now - self.seen_ns >= LOOK_AT_INTERFACE_NS {
            self.seen_ns = now;
            if !takt_xdp::is_there(self.ifindex) {
                return Err(Error::Gone(self.config.interface.clone()));
            }
            // Nobody tells of what drivers can do: asked again.
            self.generation = None;
        }
        let mut events = std::mem::take(&mut self.untold);
        self.attend();
        self.look_at_ways(&mut events);
        let mut deaths = Vec::new();
        for (number, watched) in (0..).zip(&mut self.neighbours) {
            let dead = self.node.is_dead(number, now);
            if dead != watched.dead {
                watched.dead = dead;
                events.push(match dead {
                    true => Event::Dead(number),
                    false => Event::Alive(number),
                });
            }
            deaths.push(dead);
        }
        self.advise(now);
        // After the wishes: a bundle of a dead neighbour finds where else to go.
        let first = self.config.cores.len();
        for (at, dead) in deaths.into_iter().enumerate() {
            let target = &self.program.maps.targets[first + at];
            let reach = self.neighbours[at].reach;
            // What cannot be reached any more keeps its last way, and gets nothing.
            if let Ok(reach) = reach {
                target.set(Some(reach), dead);
            } else {
                target.mark(NO_WAY | if dead { SILENT } else { 0 });
            }
        }
        Ok(events)
    }

    fn hear_beats(&mut self, now: i64) {
        let Some(socket) = &self.socket else { return };
        let utc = clock_gettime(ClockId::Realtime);
        let utc_ns = utc.tv_sec * 1_000_000_000 + utc.tv_nsec;
        let utc_ns = u64::try_from(utc_ns).unwrap_or(0);
        let mut bytes = [0; 64];
        for _ in 0..MOST_BEATS {
            let Some((length, ends)) = hear::receive(socket, &mut bytes) else {
                return;
            };
            let neighbours = &self.neighbours;
            let is_dead = |number: u16| neighbours[usize::from(number)].dead;
            let bytes = &bytes[..length];
            let heard = (self.ears).take(bytes, ends, utc_ns, is_dead, &mut self.untold);
            if let Some((number, beat)) = heard {
                let report = Report {
                    load: beat.load,
                    done_before: None,
                };
                // There is such a neighbour.
                let _ = self.node.report_neighbour(number, report, now);
                let _ = self.node.set_provides(number, beat.functions);
            }
        }
    }

    fn look_at_cores(&mut self, now: i64) {
        for (number, core) in (0_u16..).zip(&mut self.cores) {
            let waiting = self.waiting.look(&self.program.maps, number.into(), now);
            core.waiting = waiting;
            let taken = self.program.maps.taken(number.into());
            // From one look with a queue to the next one all time went into packets.
            if let Some((at, before)) = core.busy
                && waiting > 0
                && taken > before
            {
                let took = (now - at) / i64::try_from(taken - before).unwrap_or(i64::MAX);
                core.service_ns = Some(core.service_ns.map_or(took, |was| (was * 7 + took) / 8));
            }
            core.busy = (waiting > 0).then_some((now, taken));
            let report = Report {
                load: waiting,
                done_before: None,
            };
            // There is such a core. Its watermark is the program's.
            let _ = self.node.report_core(number, report, now);
        }
    }

    fn look_at_ways(&mut self, events: &mut Vec<Event>) {
        let generation = self.next_hops.generation();
        let mut neighbours = self.neighbours.iter();
        let unreached = neighbours.any(|watched| watched.reach == Err(No::Way));
        let anew = self.generation != Some(generation);
        if !anew && !unreached {
            return;
        }
        self.generation = Some(generation);
        let mut known = HashSet::new();
        for (number, watched) in (0..).zip(&mut self.neighbours) {
            let hop = watched.way.next_hop();
            let reach = hop.and_then(|hop| reach(&hop, &watched.neighbour));
            let reach = reach.ok_or(No::Way).and_then(|reach| {
                // Asked no more often than anything changes. Of a device that went meanwhile, or that the kernel tells nothing of, the
                // tables tell.
                let taken = match watched.reach {
                    Ok(_) | Err(No::Device) if !anew => Some(watched.reach.is_ok()),
                    _ => reach.ifindex().and_then(|by| takes_redirected(by).ok()?),
                };
                match taken {
                    Some(false) => Err(No::Device),
                    _ => Ok(reach),
                }
            });
            if let Ok(Reach::Redirect { to, .. }) = reach {
                known.insert(to);
            }
            if reach.err() != watched.reach.err() {
                events.push(match reach {
                    Ok(_) => Event::Reachable(number),
                    Err(No::Way) => Event::Unreachable(number),
                    Err(No::Device) => Event::NotTaken(number),
                });
                // There is such a neighbour.
                let _ = self.node.set_neighbour_usable(number, reach.is_ok());
            }
            watched.reach = reach;
        }
        for address in known.difference(&self.known) {
            self.program.know(*address, true);
        }
        for address in self.known.difference(&known) {
            self.program.know(*address, false);
        }
        self.known = known;
    }

    fn advise(&mut self, now: i64) {
        for number in 0..self.program.maps.bundles.len() {
            self.advise_bundle(number, now);
        }
    }

    fn advise_bundle(&mut self, at: usize, now: i64) {
        let cores = self.config.cores.len();
        let place = |target: Target| {
            u64::from(match target {
                Target::Core(core) => u32::from(core),
                Target::Neighbour(neighbour) => cores as u32 + u32::from(neighbour),
            })
        };
        let maps = &self.program.maps;
        let (Some(bundle), Some(wish)) = (maps.bundles.get(at), maps.wishes.get(at)) else {
            return;
        };
        let number = at as u32;
        let told = wish.load(Ordering::Relaxed);
        let at = bundle.target.load(Ordering::Relaxed);
        let current = at.checked_sub(1).and_then(|at| target(at, cores));
        if let Some(current) = current
            && self.table.target(number) != Some(current)
        {
            // The program writes no target that there is not; if anybody else did, the bundle has none.
            let _ = self.table.moved(number, current, &self.node);
        }
        let asked = told >> 32 != 0;
        let wished = (told as u32).checked_sub(1);
        let wished = wished.and_then(|at| target(at, cores));
        let lost = |target: Target| match target {
            Target::Core(_) => self.node.check(target).is_err(),
            Target::Neighbour(number) => {
                let watched = self.neighbours.get(usize::from(number));
                watched.is_none_or(|watched| watched.reach.is_err() || watched.dead)
            }
        };
        // What somebody asked for stays until they take it back, or it cannot be.
        if asked && wished.is_some_and(|wished| !lost(wished)) {
            return;
        }
        let home = || Target::Core((number % cores as u32) as u16);
        let stay = current.map(|current| if lost(current) { home() } else { current });
        let advised = self.table.advise(number, now, &self.node).or(stay);
        let next = advised.map_or(told, |target| place(target) + 1);
        if next != told {
            // Somebody may have written meanwhile: theirs is newer.
            let _ = wish.compare_exchange(told, next, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Each queue's bundle of a flow.
    fn bundles(&self, hash: u32) -> impl Iterator<Item = u32> + use<> {
        let of_queue = self.program.maps.of_queue();
        let first = hash & (of_queue - 1);
        (0..self.program.maps.about.queues).map(move |queue| queue * of_queue + first)
    }

    /// Has a flow's bundle leave where it is with its next flowlet: that is written at once. False: it was [assigned](Self::assign), and stays.
    pub fn evict(&mut self, hash: u32) -> bool {
        let now = now_ns();
        let mut leaves = false;
        for bundle in self.bundles(hash) {
            // There is such a bundle.
            let _ = self.table.evict(bundle);
            self.advise_bundle(bundle as usize, now);
            let wish = &self.program.maps.wishes[bundle as usize];
            leaves |= wish.load(Ordering::Relaxed) >> 32 == 0;
        }
        leaves
    }

    /// The most packets that may wait where a flow's bundle goes; `u32::MAX` for any. What follows from it is written at once.
    pub fn limit(&mut self, hash: u32, packets: u32) {
        let now = now_ns();
        for bundle in self.bundles(hash) {
            // There is such a bundle.
            let _ = self.table.set_limit(bundle, packets);
            self.advise_bundle(bundle as usize, now);
        }
    }

    /// Has a bundle go to a target with its next flowlet, and stay there: see [`look::Look::assign`].
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn assign(&mut self, bundle: u32, target: Target) -> Result<(), Error> {
        look::assign(&self.program.maps, bundle, Some(target))
    }

    /// What a packet takes on the slowest core that was seen with a queue, nanoseconds.
    pub fn service_ns(&self) -> Option<i64> {
        self.cores.iter().filter_map(|core| core.service_ns).max()
    }

    /// Packets that wait for the core of a flow, at most.
    pub fn waiting(&self, hash: u32) -> u32 {
        let cores = self.bundles(hash).filter_map(|bundle| {
            let Some(Target::Core(core)) = self.table.target(bundle) else {
                return None;
            };
            Some(self.cores.get(usize::from(core))?.waiting)
        });
        cores.max().unwrap_or(0)
    }

    /// What is going on.
    ///
    /// # Errors
    /// [`Error`].
    pub fn status(&self) -> Result<look::Status, Error> {
        look::status(&self.program.maps)
    }

    /// What was counted.
    ///
    /// # Errors
    /// [`Error`].
    pub fn counters(&self) -> Result<Counters, Error> {
        self.program.maps.counters()
    }

    /// What the table has counted of moves, as far as ticks saw them.
    pub fn moves(&self) -> table::Counters {
        self.table.counters()
    }

    /// Beats that came from each neighbour, and datagrams that were none or nobody's.
    pub fn heard(&self) -> (Vec<u64>, u64) {
        (self.ears.beats().collect(), self.ears.refused)
    }
}

/// The target at a place of the map, if there can be one.
pub(crate) fn target(at: u32, cores: usize) -> Option<Target> {
    let at = usize::try_from(at).ok()?;
    let number = match at < cores {
        true => at,
        false => at - cores,
    };
    let number = u16::try_from(number).ok()?;
    match at < cores {
        true => (usize::from(number) < MAX_CORES).then_some(Target::Core(number)),
        false => (usize::from(number) < MAX_NEIGHBOURS).then_some(Target::Neighbour(number)),
    }
}

/// How a neighbour is reached by what the kernel's tables say; `None` while they say nothing.
fn reach(hop: &NextHop, neighbour: &Neighbour) -> Option<Reach> {
    // A bridge takes no redirected frames.
    let takes = hop.up && hop.vlan.is_none() && hop.kind != DeviceKind::Bridge;
    let to = hop.dst_mac.filter(|_| takes)?;
    let most = hop.mtu + FRAME_OVERHEAD;
    let (ifindex, from) = (hop.ifindex, hop.src_mac);
    match neighbour.way {
        // A router would send it to where it came from.
        Way::Redirect => {
            let on_link = hop.gateway.is_none() && hop.kind != DeviceKind::Vxlan;
            on_link.then_some(Reach::Redirect {
                ifindex,
                most,
                to,
                from,
            })
        }
        Way::Vxlan { network, inner } => {
            let (IpAddr::V4(source), IpAddr::V4(destination)) = (hop.src_ip, neighbour.address)
            else {
                return None;
            };
            Some(Reach::Vxlan {
                ifindex,
                // Nothing takes tags around the packet that leaves.
                most: hop.mtu + 14,
                to,
                from,
                inner,
                source: source.octets(),
                destination: destination.octets(),
                network: network.value(),
            })
        }
    }
}
