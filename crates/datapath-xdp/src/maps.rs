//! The maps of the XDP program: which datagrams it takes, and which sockets it hands them to.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use aya::Ebpf;
use aya::maps::{HashMap as BpfHashMap, MapData, MapError, PerCpuArray, XskMap};
use takt_datapath::OpenError;

use crate::program::{errno, unavailable};

/// Frames that the program has seen since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramCounters {
    /// Handed to an AF_XDP socket.
    pub redirected: u64,
    /// Left to the kernel.
    pub passed: u64,
}

/// `struct endpoint` of the program: where a datagram goes, in network byte order, IPv4 addresses mapped.
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
}

/// The program's maps with what belongs in them.
pub(crate) struct Maps {
    endpoints: BpfHashMap<MapData, Endpoint, u8>,
    sockets: XskMap<MapData>,
    counters: PerCpuArray<MapData, u64>,
    /// What `endpoints` holds.
    installed: HashSet<Endpoint>,
    /// Addresses of the interface.
    addresses: Vec<IpAddr>,
    /// What ports are bound to.
    bound: Vec<SocketAddr>,
}

impl std::fmt::Debug for Maps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Maps")
            .field("installed", &self.installed)
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
            sockets: take("takt_sockets")?.try_into().map_err(wrong)?,
            counters: take("takt_counters")?.try_into().map_err(wrong)?,
            installed: HashSet::new(),
            addresses: Vec::new(),
            bound: Vec::new(),
        })
    }

    /// Has what arrives on `queue` go to `socket`.
    pub(crate) fn steer(&mut self, queue: u32, socket: &impl AsFd) -> io::Result<()> {
        self.sockets
            .set(queue, socket.as_fd().as_raw_fd(), 0)
            .map_err(map_error)
    }

    /// Leaves what arrives on `queue` to the kernel.
    pub(crate) fn unsteer(&mut self, queue: u32) {
        // Failing means that there is no entry: a socket that closes leaves the map by itself.
        let _ = self.sockets.unset(queue);
    }

    /// Takes datagrams to `bind`, or to its port at every address of the interface where it is unspecified.
    pub(crate) fn accept(&mut self, bind: SocketAddr) -> io::Result<()> {
        self.bound.push(bind);
        self.update().inspect_err(|_| self.refuse(bind))
    }

    /// Undoes one [`accept`](Self::accept).
    pub(crate) fn refuse(&mut self, bind: SocketAddr) {
        if let Some(position) = self.bound.iter().position(|bound| *bound == bind) {
            self.bound.swap_remove(position);
        }
        // Removing entries cannot run out of room.
        let _ = self.update();
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

    /// Makes the map hold what it should; the first error, after everything else has been tried.
    fn update(&mut self) -> io::Result<()> {
        let wanted: HashSet<Endpoint> = self
            .bound
            .iter()
            .flat_map(|bind| endpoints(*bind, &self.addresses))
            .collect();
        let mut result = Ok(());
        for endpoint in self.installed.difference(&wanted) {
            result = result.and(self.endpoints.remove(endpoint).map_err(map_error));
        }
        self.installed.retain(|endpoint| wanted.contains(endpoint));
        for endpoint in wanted {
            if self.installed.contains(&endpoint) {
                continue;
            }
            match self.endpoints.insert(endpoint, 1, 0).map_err(map_error) {
                Ok(()) => {
                    self.installed.insert(endpoint);
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }
}

/// What a port bound to `bind` receives.
fn endpoints(bind: SocketAddr, addresses: &[IpAddr]) -> Vec<Endpoint> {
    accepted(bind.ip(), addresses)
        .into_iter()
        .map(|address| Endpoint::new(address, bind.port()))
        .collect()
}

/// The destination addresses that a port bound to `bind` accepts.
pub(crate) fn accepted(bind: IpAddr, addresses: &[IpAddr]) -> Vec<IpAddr> {
    if !bind.is_unspecified() {
        return vec![bind];
    }
    addresses
        .iter()
        .filter(|address| address.is_ipv4() == bind.is_ipv4())
        .copied()
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
        let v4 = accepted("0.0.0.0".parse().expect("address"), &addresses);
        assert_eq!(v4, [addresses[0], addresses[2]]);
        let v6 = accepted("::".parse().expect("address"), &addresses);
        assert_eq!(v6, [addresses[1]]);
        assert_eq!(accepted(addresses[2], &addresses), [addresses[2]]);
    }

    #[test]
    fn an_ipv4_endpoint_is_a_mapped_address_and_the_port_in_network_byte_order() {
        let endpoint = Endpoint::new("10.0.0.1".parse().expect("address"), 0x1234);
        assert_eq!(
            endpoint.address,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]
        );
        assert_eq!(endpoint.port, [0x12, 0x34]);
    }
}
