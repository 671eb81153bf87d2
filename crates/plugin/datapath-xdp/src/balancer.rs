//! Load management in the kernel: an XDP program that spreads the packets of services over cores and neighbours.
//!
//! What `takt-balance` decides in virtual time, `bpf/takt_balance.bpf.c` decides for packets, in a bundle table of its own
//! for each receive queue. A core is taken for overloaded by how long its queue's oldest packet waits; a bundle leaves it
//! when it was silent for δ and, in native mode, its last packet is out of the queue. What is written here counts
//! from the next packet on.
//!
//! # Limits
//! - Plain UDP and TCP over IPv4 and IPv6; fragments, VLAN tags and IPv6 extension headers go to the kernel as they are.
//! - Neighbours are reached on layer 2: the frame goes out with the neighbour's address, and the neighbour must have the
//!   service's IP address without answering ARP for it. What they have done is not told back: δ alone keeps the order.
//! - A driver has to take redirected frames; on veth the far end of a neighbour's cable needs GRO (`ethtool -K … gro on`), and
//!   a sender at the other end of this one whole checksums (`ethtool -K … tx off`), which cables have anyway.
//! - In generic mode metadata gets lost on the way: δ alone keeps the order between cores, too.
//! - Behind the core's queue the kernel's stack still has a batch of at most eight packets in hand; δ has to cover it.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use aya::maps::{Array, CpuMap, HashMap, MapData, MapError, PerCpuArray};
use aya::programs::Xdp;
use aya::{Ebpf, EbpfLoader};
use takt_datapath::OpenError;

use crate::interface::Device;
use crate::link::AttachMode;
use crate::privilege;
use crate::program::{Mode, attach_program, load_error, unavailable};

/// The compiled `bpf/takt_balance.bpf.c`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/takt_balance.bpf.o"));

/// The most cores: `MOST_CORES` of the program.
pub const MOST_CORES: usize = 64;
/// The most neighbours: `MOST_NEIGHBOURS` of the program.
pub const MOST_NEIGHBOURS: usize = 64;
/// The most services.
pub const MOST_SERVICES: usize = 64;
/// At most 2^20 bundles on all queues together.
const MOST_BUNDLES: u64 = 1 << 20;
const NEIGHBOUR: u32 = 0x100;
const AWAY: u32 = 0xffff;

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
}

impl Protocol {
    fn number(self) -> u8 {
        match self {
            Self::Udp => 17,
            Self::Tcp => 6,
        }
    }
}

/// What packets are for: where they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    /// By what.
    pub protocol: Protocol,
    /// Address and port, as packets have them.
    pub address: SocketAddr,
}

/// Another node that provides the services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Index of the interface that leads to it.
    pub ifindex: u32,
    /// Its address on that link.
    pub mac: [u8; 6],
    /// The interface's own.
    pub source: [u8; 6],
}

/// How packets are spread.
#[derive(Clone, Debug)]
pub struct BalancerConfig {
    /// The interface that packets come in on.
    pub interface: String,
    /// In the driver or after it.
    pub mode: Mode,
    /// Whose packets are spread; all others are left to the kernel.
    pub services: Vec<Service>,
    /// Processors, by number.
    pub cores: Vec<u32>,
    /// Other nodes. They are dead until [`Balancer::beat`] says that they are not.
    pub neighbours: Vec<Neighbour>,
    /// 2^bits bundles for each receive queue.
    pub bits: u8,
    /// Time-out of flowlets.
    pub delta: Duration,
    /// How long a core must not have been overloaded before bundles come back.
    pub hold: Duration,
    /// A core is overloaded while packets have waited for this long …
    pub high: Duration,
    /// … until they wait for no more than this.
    pub low: Duration,
    /// A neighbour without a beat for this long is dead.
    pub silence: Duration,
    /// Packets that wait for a core at most; what comes then is dropped.
    pub queue: u32,
}

impl BalancerConfig {
    /// No service, core or neighbour yet; 1024 bundles, δ 100 µs, marks at 200 and 50 µs, beats within 50 ms.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            mode: Mode::Auto,
            services: Vec::new(),
            cores: Vec::new(),
            neighbours: Vec::new(),
            bits: 10,
            delta: Duration::from_micros(100),
            hold: Duration::from_millis(10),
            high: Duration::from_micros(200),
            low: Duration::from_micros(50),
            silence: Duration::from_millis(50),
            queue: 1024,
        }
    }
}

/// Where a bundle is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Where the program sees fit.
    None,
    /// To a core of [`BalancerConfig::cores`], by its place there, for as long as the wish stands.
    Core(u16),
    /// To a neighbour of [`BalancerConfig::neighbours`], unless it is dead.
    Neighbour(u16),
    /// Away from where it is, with every flowlet for as long as the wish stands.
    Away,
}

/// What the program did since it was attached.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalancerCounters {
    /// Packets of the services.
    pub packets: u64,
    /// Packets left to the kernel.
    pub passed: u64,
    /// Bundles that came to another core.
    pub to_cores: u64,
    /// Bundles that came to a neighbour.
    pub to_neighbours: u64,
    /// Bundles that came back.
    pub returns: u64,
    /// Packets that stayed for the sake of order.
    pub held: u64,
    /// Packets that nobody got, because their neighbour was dead.
    pub fenced: u64,
}

// SAFETY: numbers alone, without padding; any bit pattern is a value.
unsafe impl aya::Pod for BalancerCounters {}

#[repr(C)]
#[derive(Clone, Copy)]
struct Endpoint {
    address: [u8; 16],
    port: [u8; 2],
    protocol: u8,
    zero: u8,
}

// SAFETY: bytes alone, without padding; any bit pattern is a value.
unsafe impl aya::Pod for Endpoint {}

#[repr(C)]
#[derive(Clone, Copy)]
struct Settings {
    delta: u64,
    hold: u64,
    silence: u64,
    high: u64,
    low: u64,
    mask: u32,
    cores: u32,
    neighbours: u32,
    native: u32,
}

// SAFETY: numbers alone, without padding; any bit pattern is a value.
unsafe impl aya::Pod for Settings {}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct NeighbourState {
    heard: u64,
    port: u32,
    mac: [u8; 6],
    source: [u8; 6],
    usable: u32,
    overloaded: u32,
}

// SAFETY: numbers alone, without padding; any bit pattern is a value.
unsafe impl aya::Pod for NeighbourState {}

#[repr(C)]
#[derive(Clone, Copy)]
struct Bundle {
    last: u64,
    target: u32,
    zero: u32,
}

// SAFETY: numbers alone, without padding; any bit pattern is a value.
unsafe impl aya::Pod for Bundle {}

/// The program at work. Dropped, it is detached and packets take their usual way.
pub struct Balancer {
    config: BalancerConfig,
    mode: AttachMode,
    fallback: Option<String>,
    queues: u32,
    bundles: Array<MapData, Bundle>,
    wishes: Array<MapData, u32>,
    neighbours: Array<MapData, NeighbourState>,
    states: Vec<NeighbourState>,
    counters: PerCpuArray<MapData, BalancerCounters>,
    _queues: CpuMap<MapData>,
    /// Keeps the program attached; it keeps the other maps.
    _link: OwnedFd,
}

impl std::fmt::Debug for Balancer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Balancer")
            .field("config", &self.config)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// Refuses what cannot be.
fn check(config: &BalancerConfig) -> Result<(), OpenError> {
    let refuse = |text: String| Err(OpenError::Unavailable(text));
    if config.services.is_empty() || config.services.len() > MOST_SERVICES {
        return refuse(format!(
            "{} services: 1 to {MOST_SERVICES} can be balanced",
            config.services.len()
        ));
    }
    if config.cores.is_empty() || config.cores.len() > MOST_CORES {
        return refuse(format!(
            "{} cores: 1 to {MOST_CORES} can be balanced",
            config.cores.len()
        ));
    }
    if config.neighbours.len() > MOST_NEIGHBOURS {
        return refuse(format!(
            "{} neighbours: at most {MOST_NEIGHBOURS} can be balanced",
            config.neighbours.len()
        ));
    }
    if config.low >= config.high {
        return refuse(format!(
            "marks {:?} and {:?}: the low one must be below the high one",
            config.high, config.low
        ));
    }
    if !(1..=16_384).contains(&config.queue) {
        return refuse(format!(
            "a queue of {}: 1 to 16384 packets can wait",
            config.queue
        ));
    }
    if config.bits > 20 {
        return refuse(format!("2^{} bundles: 2^0 to 2^20 can be", config.bits));
    }
    Ok(())
}

impl Balancer {
    /// Loads the program and attaches it.
    ///
    /// # Errors
    /// [`OpenError`], if the configuration cannot be, a privilege is missing, or the kernel refuses.
    pub fn open(config: BalancerConfig) -> Result<Self, OpenError> {
        privilege::check()?;
        check(&config)?;
        let device = Device::probe(&config.interface)?;
        let bundles = u64::from(device.queues) << config.bits;
        if bundles > MOST_BUNDLES {
            return Err(OpenError::Unavailable(format!(
                "2^{} bundles on {} receive queues: 2^20 can be in all",
                config.bits, device.queues
            )));
        }
        let processors = processors()?;
        if let Some(core) = config.cores.iter().find(|core| **core >= processors) {
            return Err(OpenError::Unavailable(format!(
                "core {core}: the processors of this host are 0 to {}",
                processors - 1
            )));
        }
        let paths = device.queues * MOST_CORES as u32;
        let mut ebpf = EbpfLoader::new()
            .btf(None)
            .map_max_entries("takt_bundles", bundles as u32)
            .map_max_entries("takt_wishes", 1 << config.bits)
            .map_max_entries("takt_paths", paths)
            .map_max_entries("takt_done", paths)
            .map_max_entries("takt_queues", processors)
            .load(OBJECT)
            .map_err(|error| load_error(&error))?;
        let wrong = |error: MapError| unavailable("use a map of the balancer's program", &error);
        let loading = |error| unavailable("load the balancer's program", &error);
        let far = load(&mut ebpf, "takt_balance_core")?;
        let far = far
            .fd()
            .map_err(loading)?
            .try_clone()
            .map_err(|source| OpenError::System {
                action: "cannot hold the program of the cores".into(),
                source,
            })?;
        let mut queues: CpuMap<MapData> =
            take(&mut ebpf, "takt_queues")?.try_into().map_err(wrong)?;
        for core in &config.cores {
            queues
                .set(*core, config.queue, Some(&far), 0)
                .map_err(|error| unavailable("make the queue of a core", &error))?;
        }
        let mut numbers: Array<MapData, u32> = take(&mut ebpf, "takt_processors")?
            .try_into()
            .map_err(wrong)?;
        for (place, core) in config.cores.iter().enumerate() {
            numbers.set(place as u32, core, 0).map_err(wrong)?;
        }
        let mut neighbours: Array<MapData, NeighbourState> = take(&mut ebpf, "takt_neighbours")?
            .try_into()
            .map_err(wrong)?;
        let mut states = Vec::new();
        for (place, neighbour) in config.neighbours.iter().enumerate() {
            let state = NeighbourState {
                port: neighbour.ifindex,
                mac: neighbour.mac,
                source: neighbour.source,
                ..NeighbourState::default()
            };
            neighbours.set(place as u32, state, 0).map_err(wrong)?;
            states.push(state);
        }
        let mut services: HashMap<MapData, Endpoint, u32> = take(&mut ebpf, "takt_services")?
            .try_into()
            .map_err(wrong)?;
        for service in &config.services {
            services.insert(endpoint(service), 1, 0).map_err(wrong)?;
        }
        let mut settings: Array<MapData, Settings> = take(&mut ebpf, "takt_settings")?
            .try_into()
            .map_err(wrong)?;
        let bundles = take(&mut ebpf, "takt_bundles")?.try_into().map_err(wrong)?;
        let wishes = take(&mut ebpf, "takt_wishes")?.try_into().map_err(wrong)?;
        let counters = take(&mut ebpf, "takt_balance_counters")?
            .try_into()
            .map_err(wrong)?;

        let near = load(&mut ebpf, "takt_balance")?;
        let near = near.fd().map_err(loading)?;
        let (link, mode, fallback) = attach_program(near.as_fd(), &device, config.mode)?;
        // Until there are settings, everything is left to the kernel: no core has been told.
        let now = Settings {
            delta: nanos(config.delta),
            hold: nanos(config.hold),
            silence: nanos(config.silence),
            high: nanos(config.high),
            low: nanos(config.low),
            mask: (1 << config.bits) - 1,
            cores: config.cores.len() as u32,
            neighbours: config.neighbours.len() as u32,
            native: u32::from(mode == AttachMode::Native),
        };
        settings.set(0, now, 0).map_err(wrong)?;
        Ok(Self {
            config,
            mode,
            fallback,
            queues: device.queues,
            bundles,
            wishes,
            neighbours,
            states,
            counters,
            _queues: queues,
            _link: link,
        })
    }

    /// Where the program runs.
    pub fn mode(&self) -> AttachMode {
        self.mode
    }

    /// Why not in native mode, where that was tried.
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// The bundle of a flow.
    pub fn bundle(&self, service: &Service, source: SocketAddr) -> u32 {
        hash(service, source) & ((1 << self.config.bits) - 1)
    }

    /// Says where a bundle is to go. It goes there with its next flowlet.
    ///
    /// # Errors
    /// [`OpenError`], if there is no such bundle, core or neighbour.
    pub fn wish(&mut self, bundle: u32, wish: Wish) -> Result<(), OpenError> {
        let there = |what: &str, number: u16, count: usize| match usize::from(number) < count {
            true => Ok(u32::from(number)),
            false => Err(OpenError::Unavailable(format!(
                "{what} {number}: there are {count}"
            ))),
        };
        let value = match wish {
            Wish::None => 0,
            Wish::Core(core) => 1 + there("core", core, self.config.cores.len())?,
            Wish::Neighbour(number) => {
                NEIGHBOUR + there("neighbour", number, self.config.neighbours.len())?
            }
            Wish::Away => AWAY,
        };
        self.wishes
            .set(bundle, value, 0)
            .map_err(|error| unavailable(&format!("say where bundle {bundle} is to go"), &error))
    }

    /// Where a bundle goes at present, on a receive queue: [`Wish::None`] if no packet of it has come.
    ///
    /// # Errors
    /// [`OpenError`], if there is no such bundle or queue.
    pub fn target(&self, queue: u32, bundle: u32) -> Result<Wish, OpenError> {
        let at = (queue << self.config.bits) + bundle;
        if queue >= self.queues || bundle >> self.config.bits != 0 {
            return Err(OpenError::Unavailable(format!(
                "bundle {bundle} of queue {queue}: there are {} of each of {} queues",
                1 << self.config.bits,
                self.queues
            )));
        }
        let found = self
            .bundles
            .get(&at, 0)
            .map_err(|error| unavailable("read a bundle", &error))?;
        Ok(match found.target {
            0 => Wish::None,
            core if core < NEIGHBOUR => Wish::Core((core - 1) as u16),
            neighbour => Wish::Neighbour((neighbour - NEIGHBOUR) as u16),
        })
    }

    /// A neighbour lives, and is overloaded or not.
    ///
    /// # Errors
    /// [`OpenError`], if there is no such neighbour.
    pub fn beat(&mut self, neighbour: u16, overloaded: bool) -> Result<(), OpenError> {
        let state = self.states.get_mut(usize::from(neighbour)).ok_or_else(|| {
            OpenError::Unavailable(format!("neighbour {neighbour}: there is none"))
        })?;
        state.heard = monotonic_ns();
        state.usable = 1;
        state.overloaded = u32::from(overloaded);
        self.neighbours
            .set(u32::from(neighbour), *state, 0)
            .map_err(|error| unavailable("tell that a neighbour lives", &error))
    }

    /// What the program did, on all processors.
    ///
    /// # Errors
    /// [`OpenError`], if the map cannot be read.
    pub fn counters(&self) -> Result<BalancerCounters, OpenError> {
        let values = self
            .counters
            .get(&0, 0)
            .map_err(|error| unavailable("read the balancer's counters", &error))?;
        let mut sum = BalancerCounters::default();
        for one in values.iter() {
            sum.packets += one.packets;
            sum.passed += one.passed;
            sum.to_cores += one.to_cores;
            sum.to_neighbours += one.to_neighbours;
            sum.returns += one.returns;
            sum.held += one.held;
            sum.fenced += one.fenced;
        }
        Ok(sum)
    }
}

fn take(ebpf: &mut Ebpf, name: &str) -> Result<aya::maps::Map, OpenError> {
    ebpf.take_map(name).ok_or_else(|| {
        OpenError::Unavailable(format!("the balancer's program has no map {name}: rebuild"))
    })
}

fn load<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp, OpenError> {
    let program: &mut Xdp = ebpf
        .program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or_else(|| {
            OpenError::Unavailable(format!(
                "the embedded object has no XDP program {name}: rebuild"
            ))
        })?;
    program
        .load()
        .map_err(|error| unavailable(&format!("load the XDP program {name}"), &error))?;
    Ok(program)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The clock of `bpf_ktime_get_ns`.
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is writable; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Processors that there can be.
fn processors() -> Result<u32, OpenError> {
    let count = aya::util::nr_cpus().map_err(|(what, source)| OpenError::System {
        action: format!("cannot count the processors ({what})"),
        source,
    })?;
    Ok(count as u32)
}

fn endpoint(service: &Service) -> Endpoint {
    let address = match service.address.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    Endpoint {
        address: address.octets(),
        port: service.address.port().to_be_bytes(),
        protocol: service.protocol.number(),
        zero: 0,
    }
}

/// `mix` of the program.
fn mix(hash: u32, word: u32) -> u32 {
    let mut hash = (hash ^ word).wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// The hash of a flow, over addresses and ports as they stand in the packet.
fn hash(service: &Service, source: SocketAddr) -> u32 {
    let word = |octets: &[u8], at: usize| {
        u32::from_ne_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
    };
    let addresses = match (source.ip(), service.address.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => mix(word(&from.octets(), 0), word(&to.octets(), 0)),
        (from, to) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            let (from, to) = (octets(from), octets(to));
            (0..16)
                .step_by(4)
                .fold(0, |hash, at| mix(hash ^ word(&from, at), word(&to, at)))
        }
    };
    let port = |port: u16| u32::from(u16::from_ne_bytes(port.to_be_bytes()));
    let ports = (port(source.port()) << 16) | port(service.address.port());
    mix(addresses ^ u32::from(service.protocol.number()), ports)
}
