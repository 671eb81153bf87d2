//! When packets of others left, for who watches them at the other end (`takt stamp`).
//!
//! A program at a device's egress (tcx, Linux 6.6) puts a trailer ([`takt_wire::trailer`]) behind the IP packets of some flows.
//! Whoever receives them needs nothing: IP says how long a packet is, and the kernel cuts off what is behind. The
//! program goes with its [`Stamper`], however the process ends. Decision 0023 says why there.

use std::net::{IpAddr, Ipv6Addr};

use aya::maps::{Array, Map, MapData, PerCpuArray};
use aya::programs::links::LinkOrder;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader, Pod};
use serde::Serialize;
use takt_health::pattern::{Side, Tuple};
use takt_wire::ethernet::HEADER_LEN;
use takt_xdp::{errno, told};

/// The compiled `bpf/takt_stamp.bpf.c`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/takt_stamp.bpf.o"));

const PROGRAM: &str = "takt_stamp";
const RULES: &str = "takt_rules";
const COUNTERS: &str = "takt_counters";
/// The most patterns of a program.
pub const MOST_FLOWS: usize = 16;

/// Why nothing is stamped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such interface here.
    #[error("there is no interface {0:?} in this network namespace: `ip link` lists them")]
    NoInterface(String),
    /// It has no Ethernet frames.
    #[error("{interface} is no Ethernet interface (ARP hardware type {kind})")]
    NotEthernet {
        /// The interface.
        interface: String,
        /// By ARPHRD_*.
        kind: u16,
    },
    /// More than there is room for.
    #[error("{0} patterns; at most {MOST_FLOWS} fit: write wider ones")]
    TooMany(usize),
    /// The kernel does not let us.
    #[error(
        "the kernel refuses to {0}: CAP_NET_ADMIN and CAP_BPF are needed, in the initial user namespace and on a kernel that is not locked \
         down; run as root"
    )]
    Privilege(&'static str),
    /// The loader library or the kernel.
    #[error("cannot {action}: {told}; it takes Linux 6.6 or later")]
    Load {
        /// What was tried.
        action: &'static str,
        /// What it says, with the causes.
        told: String,
    },
}

fn load<E: std::error::Error + 'static>(action: &'static str) -> impl FnOnce(E) -> Error {
    move |error| match errno(&error) {
        Some(libc::EPERM) => Error::Privilege(action),
        _ => Error::Load {
            action,
            told: told(&error),
        },
    }
}

/// `struct flow` of the program, as a rule.
#[derive(Clone, Copy)]
#[repr(C)]
struct Rule {
    addresses: [[u8; 16]; 2],
    ports: [[u8; 2]; 2],
    protocol: u8,
    given: u8,
    padding: [u8; 2],
}

// SAFETY: integers only, without padding that the compiler adds.
unsafe impl Pod for Rule {}

impl Rule {
    fn of(flows: &Tuple) -> Self {
        let wide = |side: Side| match side.address {
            Some(IpAddr::V4(address)) => address.to_ipv6_mapped(),
            Some(IpAddr::V6(address)) => address,
            None => Ipv6Addr::UNSPECIFIED,
        };
        let given = [
            flows.protocol.is_some(),
            flows.source.address.is_some(),
            flows.destination.address.is_some(),
            flows.source.port.is_some(),
            flows.destination.port.is_some(),
        ];
        let sides = [flows.source, flows.destination];
        Self {
            addresses: sides.map(|side| wide(side).octets()),
            ports: sides.map(|side| side.port.unwrap_or(0).to_be_bytes()),
            protocol: flows.protocol.unwrap_or(0),
            given: (given.iter().enumerate())
                .fold(0, |bits, (at, given)| bits | u8::from(*given) << at),
            padding: [0; 2],
        }
    }
}

/// What became of the packets of these flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// They have a trailer.
    pub stamped: u64,
    /// They have none: the device or the kernel cuts them into several (segmentation offload).
    pub segmented: u64,
    /// They are fragments.
    pub fragmented: u64,
    /// With a trailer they were longer than the MTU lets them be.
    pub too_long: u64,
    /// There is something behind the IP packet already.
    pub padded: u64,
    /// The kernel had no memory, for instance.
    pub failed: u64,
    /// They are SCTP or ESP, whose check values would be over the trailer too.
    pub sealed: u64,
}

/// The program, attached as long as this lives.
pub struct Stamper {
    /// Keeps the program and its link.
    _ebpf: Ebpf,
    counters: PerCpuArray<MapData, u64>,
    index: u32,
}

impl Stamper {
    /// From now on packets of these flows that leave an interface have a trailer.
    ///
    /// # Errors
    /// [`Error`].
    pub fn attach(interface: &str, flows: &[Tuple]) -> Result<Self, Error> {
        if flows.len() > MOST_FLOWS {
            return Err(Error::TooMany(flows.len()));
        }
        let none = || Error::NoInterface(interface.to_owned());
        let index = takt_xdp::index(interface).ok_or_else(none)?;
        let longest = longest(interface)?;
        let count = flows.len() as u32;
        let mut ebpf = EbpfLoader::new()
            .btf(None)
            .override_global("takt_rule_count", &count, true)
            .override_global("takt_longest", &longest, true)
            .load(OBJECT)
            .map_err(load("create BPF maps"))?;
        let mut rules: Array<MapData, Rule> = map(&mut ebpf, RULES)?
            .try_into()
            .map_err(load("open the patterns"))?;
        for (at, flows) in (0..).zip(flows) {
            rules
                .set(at, Rule::of(flows), 0)
                .map_err(load("name the flows"))?;
        }
        let counters = map(&mut ebpf, COUNTERS)?
            .try_into()
            .map_err(load("open the counters"))?;
        let program: &mut SchedClassifier = ebpf
            .program_mut(PROGRAM)
            .ok_or_else(missing)?
            .try_into()
            .map_err(load("load the program"))?;
        program.load().map_err(load("load the program"))?;
        // Behind all others, so that what they do is in front of the stamp.
        program
            .attach_with_options(
                interface,
                TcAttachType::Egress,
                TcAttachOptions::TcxOrder(LinkOrder::last()),
            )
            .map_err(load("attach the program"))?;
        Ok(Self {
            _ebpf: ebpf,
            counters,
            index,
        })
    }

    /// Whether the interface is still there, in this network namespace.
    pub fn is_there(&self) -> bool {
        takt_xdp::is_there(self.index)
    }

    /// What became of packets so far.
    ///
    /// # Errors
    /// [`Error`].
    pub fn counters(&self) -> Result<Counters, Error> {
        let read = |at| {
            let values = self.counters.get(&at, 0).map_err(load("read counters"))?;
            Ok(values.iter().sum())
        };
        Ok(Counters {
            stamped: read(0)?,
            segmented: read(1)?,
            fragmented: read(2)?,
            too_long: read(3)?,
            padded: read(4)?,
            failed: read(5)?,
            sealed: read(6)?,
        })
    }
}

fn map(ebpf: &mut Ebpf, name: &str) -> Result<Map, Error> {
    ebpf.take_map(name).ok_or_else(missing)
}

fn missing() -> Error {
    Error::Load {
        action: "find a part of the program",
        told: "the build is broken".into(),
    }
}

/// Bytes of the longest frame that an interface sends.
fn longest(interface: &str) -> Result<u32, Error> {
    let none = |_| Error::NoInterface(interface.to_owned());
    let kind = takt_xdp::hardware_kind(interface).map_err(none)?;
    if kind != libc::ARPHRD_ETHER && kind != libc::ARPHRD_LOOPBACK {
        return Err(Error::NotEthernet {
            interface: interface.to_owned(),
            kind,
        });
    }
    let mtu = takt_xdp::mtu(interface).map_err(none)?;
    Ok(mtu.saturating_add(HEADER_LEN as u32))
}
