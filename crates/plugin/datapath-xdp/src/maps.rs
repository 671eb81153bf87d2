//! The maps of the XDP program: which datagrams it takes, and which sockets it hands them to.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use aya::Ebpf;
use aya::maps::{Array, HashMap as BpfHashMap, MapData, MapError, PerCpuArray, XskMap};
use takt_datapath::OpenError;
use takt_xdp::errno;

use crate::program::unavailable;

/// Frames that the program has seen since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramCounters {
    /// Handed to an AF_XDP socket.
    pub redirected: u64,
    /// Left to the kernel.
    pub passed: u64,
}

/// `struct endpoint` of the program: where a datagram goes, in network byte order, IPv4 addresses
/// mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Endpoint {
    address: [u8; 16],
    port: [u8; 2],
    zero: [u8; 2],
}

// SAFETY: bytes alone, without padding; any bit pattern is a value.
unsafe impl aya::Pod for Endpoint {}

impl Endpoint {
    fn new(address: IpAddr, port: u16) -> Self {
        let address = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Self {
            address: address.octets(),
            port: port.to_be_bytes(),
            zero: [0; 2],
        }
    }

    /// The word of `takt_ports` that its port is in, and its bit there.
    fn port_bit(&self) -> (u32, u64) {
        let port = u16::from_ne_bytes(self.port);
        (u32::from(port / 64), 1 << (port % 64))
    }
}

/// Ports on an interface at a time: `MOST_PORTS` of the program.
pub(crate) const MOST_PORTS: u32 = 64;

/// Sockets of a port on a queue: `RINGS` of the program. The second is for what is marked with a traffic class.
pub(crate) const RINGS: u32 = 2;

/// A port's number, below [`MOST_PORTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot(u32);

/// The sockets of a port on a queue.
#[derive(Clone, Copy, Debug)]
struct Placement {
    slot: Slot,
    queue: u32,
    /// Open as long as the placement is there.
    sockets: [RawFd; RINGS as usize],
}

/// The program's maps with what belongs in them.
pub(crate) struct Maps {
    endpoints: BpfHashMap<MapData, Endpoint, u32>,
    open: Array<MapData, u64>,
    sockets: XskMap<MapData>,
    counters: PerCpuArray<MapData, u64>,
    /// What `endpoints` holds.
    installed: HashMap<Endpoint, Slot>,
    /// What `open` holds, but for words without a bit.
    opened: HashMap<u32, u64>,
    /// What `sockets` holds.
    steered: HashMap<u32, RawFd>,
    /// Addresses of the interface.
    addresses: Vec<IpAddr>,
    /// Ports, with the addresses of those that are open for datagrams.
    ports: Vec<(Slot, Option<SocketAddr>)>,
    placements: Vec<Placement>,
}

impl std::fmt::Debug for Maps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Maps")
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}

impl Maps {
    /// Takes the maps out of the loaded object.
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, OpenError> {
        let mut take = |name: &str| {
            ebpf.take_map(name).ok_or_else(|| {
                OpenError::Unavailable(format!("the XDP program has no map {name}: rebuild"))
            })
        };
        let wrong = |error: MapError| unavailable("use a map of the XDP program", &error);
        Ok(Self {
            endpoints: take("takt_endpoints")?.try_into().map_err(wrong)?,
            open: take("takt_ports")?.try_into().map_err(wrong)?,
            sockets: take("takt_sockets")?.try_into().map_err(wrong)?,
            counters: take("takt_counters")?.try_into().map_err(wrong)?,
            installed: HashMap::new(),
            opened: HashMap::new(),
            steered: HashMap::new(),
            addresses: Vec::new(),
            ports: Vec::new(),
            placements: Vec::new(),
        })
    }

    /// A number for a new port, `None` when all are taken.
    pub(crate) fn add(&mut self) -> Option<Slot> {
        let slot = (0..MOST_PORTS)
            .map(Slot)
            .find(|slot| self.ports.iter().all(|(taken, _)| taken != slot))?;
        self.ports.push((slot, None));
        Some(slot)
    }

    /// Has datagrams for the port that arrive on `queue` go to the first of `sockets`, those that are marked with a traffic
    /// class to the second, and those for ports without sockets on that queue as well, if there are no others. The sockets
    /// stay open until [`remove`](Self::remove).
    pub(crate) fn place(
        &mut self,
        slot: Slot,
        queue: u32,
        sockets: [BorrowedFd<'_>; RINGS as usize],
    ) -> io::Result<()> {
        self.placements.push(Placement {
            slot,
            queue,
            sockets: sockets.map(|socket| socket.as_raw_fd()),
        });
        self.steer()
    }

    /// Takes datagrams to `bind`, or to its port at every address of the interface where it is
    /// unspecified.
    pub(crate) fn accept(&mut self, slot: Slot, bind: SocketAddr) -> io::Result<()> {
        for (port, address) in &mut self.ports {
            if *port == slot {
                *address = Some(bind);
            }
        }
        self.update()
    }

    /// Forgets a port: nothing goes to its sockets any more.
    pub(crate) fn remove(&mut self, slot: Slot) {
        self.ports.retain(|(port, _)| *port != slot);
        self.placements.retain(|placement| placement.slot != slot);
        // What fails has been tried: an entry that stays leads to a socket that closes, which then
        // leaves the map by itself.
        let _ = self.update();
        let _ = self.steer();
    }

    /// The interface has these addresses now.
    pub(crate) fn set_addresses(&mut self, addresses: &[IpAddr]) -> io::Result<()> {
        self.addresses = addresses.to_vec();
        self.update()
    }

    /// Sums over the processors.
    pub(crate) fn counters(&self) -> io::Result<ProgramCounters> {
        let sum = |index| {
            let values = self.counters.get(&index, 0).map_err(map_error)?;
            Ok::<_, io::Error>(values.iter().sum())
        };
        Ok(ProgramCounters {
            redirected: sum(0)?,
            passed: sum(1)?,
        })
    }

    /// Makes the maps of endpoints and of their ports hold what they should; the first error, after everything has been
    /// tried.
    fn update(&mut self) -> io::Result<()> {
        let wanted: HashMap<Endpoint, Slot> = self
            .ports
            .iter()
            .filter_map(|(slot, bind)| Some((*slot, (*bind)?)))
            .flat_map(|(slot, bind)| {
                endpoints(bind, &self.addresses)
                    .into_iter()
                    .map(move |end| (end, slot))
            })
            .collect();
        let mut result = Ok(());
        let (map, installed) = (&mut self.endpoints, &mut self.installed);
        installed.retain(|endpoint, _| {
            if wanted.contains_key(endpoint) {
                return true;
            }
            let removed = map.remove(endpoint).map_err(map_error);
            result = std::mem::replace(&mut result, Ok(())).and(removed);
            false
        });
        for (endpoint, slot) in wanted {
            if installed.get(&endpoint) == Some(&slot) {
                continue;
            }
            match map.insert(endpoint, slot.0, 0).map_err(map_error) {
                Ok(()) => drop(installed.insert(endpoint, slot)),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result.and(self.open_ports())
    }

    /// Has the program look for endpoints with the ports of those that there are, and with no others.
    fn open_ports(&mut self) -> io::Result<()> {
        let mut wanted: HashMap<u32, u64> = self.opened.keys().map(|word| (*word, 0)).collect();
        for (word, bit) in self.installed.keys().map(Endpoint::port_bit) {
            *wanted.entry(word).or_default() |= bit;
        }
        let mut result = Ok(());
        for (word, bits) in wanted {
            if self.opened.get(&word) == Some(&bits) {
                continue;
            }
            match self.open.set(word, bits, 0).map_err(map_error) {
                Ok(()) if bits == 0 => drop(self.opened.remove(&word)),
                Ok(()) => drop(self.opened.insert(word, bits)),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    /// Makes the map of sockets hold what it should; the first error, after everything has been
    /// tried.
    fn steer(&mut self) -> io::Result<()> {
        let mut wanted = HashMap::new();
        for (slot, _) in &self.ports {
            for placement in &self.placements {
                let first = (placement.queue * MOST_PORTS + slot.0) * RINGS;
                for (index, socket) in (first..).zip(placement.sockets) {
                    if placement.slot == *slot {
                        wanted.insert(index, socket);
                    } else {
                        wanted.entry(index).or_insert(socket);
                    }
                }
            }
        }
        let mut result = Ok(());
        let (map, steered) = (&mut self.sockets, &mut self.steered);
        steered.retain(|index, _| {
            if wanted.contains_key(index) {
                return true;
            }
            let removed = map.unset(*index).map_err(map_error);
            result = std::mem::replace(&mut result, Ok(())).and(removed);
            false
        });
        for (index, socket) in wanted {
            if steered.get(&index) == Some(&socket) {
                continue;
            }
            match map.set(index, socket, 0).map_err(map_error) {
                Ok(()) => drop(steered.insert(index, socket)),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }
}

/// What a port bound to `bind` receives.
fn endpoints(bind: SocketAddr, addresses: &[IpAddr]) -> Vec<Endpoint> {
    if !bind.ip().is_unspecified() {
        return vec![Endpoint::new(bind.ip(), bind.port())];
    }
    addresses
        .iter()
        .filter(|address| address.is_ipv4() == bind.is_ipv4())
        .map(|address| Endpoint::new(*address, bind.port()))
        .collect()
}

fn map_error(error: MapError) -> io::Error {
    match errno(&error) {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_address_accepts_those_of_the_interface_and_of_its_family() {
        let addresses: Vec<IpAddr> = ["10.0.0.1", "fd00::1", "10.0.0.2"]
            .iter()
            .map(|text| text.parse().expect("address"))
            .collect();
        let of = |bind: &str| endpoints(bind.parse().expect("address"), &addresses);
        let at = |address: IpAddr| Endpoint::new(address, 7);
        assert_eq!(of("0.0.0.0:7"), [at(addresses[0]), at(addresses[2])]);
        assert_eq!(of("[::]:7"), [at(addresses[1])]);
        assert_eq!(of("10.0.0.2:7"), [at(addresses[2])]);
    }

    #[test]
    fn an_ipv4_endpoint_is_a_mapped_address_and_the_port_in_network_byte_order() {
        let endpoint = Endpoint::new("10.0.0.1".parse().expect("address"), 0x1234);
        assert_eq!(
            endpoint.address,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]
        );
        assert_eq!(endpoint.port, [0x12, 0x34]);
        // As the program reads it.
        let port = u16::from_ne_bytes([0x12, 0x34]);
        let (word, bit) = endpoint.port_bit();
        assert_eq!(
            (word, bit.trailing_zeros()),
            ((port / 64).into(), (port % 64).into())
        );
    }
}
