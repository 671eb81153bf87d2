//! Networks: where their stations are, told by operators and followed from the kernel.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use takt_session::{Endpoint, ErrorCode, Failure};
use takt_wire::ethernet::MacAddress;

use super::{Control, RuntimeHandle, Stopped};
use crate::config::{Carrier, NetworkConfig, Station};
use crate::counters::{NetworkCounters, NetworkReading};
use crate::lane::Command;
use crate::lane::network::{NetworkTable, Owner};
use crate::policy::Policy;
use crate::status::{NetworkStatus, StationStatus};

/// Stations that a network may have.
const MOST_STATIONS: usize = 65_536;

/// A network.
pub(super) struct Network {
    config: NetworkConfig,
    /// Told by operators.
    stations: Vec<Station>,
    /// Read from the kernel's device.
    followed: Vec<Station>,
    /// Why the kernel's device could not be read the last time.
    problem: Option<String>,
    /// Per lane.
    counters: Vec<Arc<NetworkCounters>>,
}

/// Why a station is not entered.
#[derive(Debug, thiserror::Error)]
pub enum StationError {
    /// No such network.
    #[error("there is no network `{name}` here: this node has {have}")]
    Network {
        /// As asked for.
        name: String,
        /// Those there are.
        have: String,
    },
    /// The network has another carrier.
    #[error("a station of `{0}`, a VXLAN network, is behind a tunnel endpoint: name its address")]
    NoEndpoint(String),
    /// The network has another carrier.
    #[error("`{0}` is a native network without tunnel endpoints: leave the address out")]
    Endpoint(String),
    /// Only groups of stations have such an address.
    #[error("{0} is the address of a group: enter stations, or 00:00:00:00:00:00 for the rest")]
    Group(MacAddress),
    /// The table is full.
    #[error("the network has {MOST_STATIONS} stations, its limit: remove some")]
    Full,
}

impl Network {
    pub(super) fn new(config: NetworkConfig, lanes: usize) -> Self {
        Self {
            stations: config.stations.clone(),
            config,
            followed: Vec::new(),
            problem: None,
            counters: (0..lanes).map(|_| Arc::default()).collect(),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Station> {
        self.stations.iter().chain(&self.followed)
    }

    fn table(&self, lane: usize) -> NetworkTable {
        let (mut stations, mut others) = (Vec::new(), Vec::new());
        let entered: HashSet<MacAddress> = self.stations.iter().map(|s| s.mac).collect();
        // Where an operator has entered a station, the kernel is not asked: a frame would go to both.
        let followed = self
            .followed
            .iter()
            .filter(|station| station.mac == MacAddress::ZERO || !entered.contains(&station.mac));
        for station in self.stations.iter().chain(followed) {
            match station.vtep {
                Some(vtep) if station.mac == MacAddress::ZERO => others.push(vtep),
                Some(vtep) => stations.push((station.mac, vtep)),
                None => {}
            }
        }
        others.sort_unstable();
        others.dedup();
        stations.sort_unstable();
        stations.dedup();
        NetworkTable {
            carrier: self.config.carrier,
            stations,
            others,
            counters: self.counters[lane].clone(),
        }
    }

    /// Which station frames for an address are for.
    fn resolve(&self, address: IpAddr, known: Option<MacAddress>) -> Option<MacAddress> {
        let told = self
            .all()
            .find(|station| station.addresses.contains(&address))
            .map(|station| station.mac);
        told.or_else(|| known.filter(|mac| self.reaches(*mac)))
    }

    /// Whether a frame for a station goes anywhere.
    fn reaches(&self, mac: MacAddress) -> bool {
        matches!(self.config.carrier, Carrier::Native { .. })
            || self
                .all()
                .any(|station| station.mac == mac || station.mac == MacAddress::ZERO)
    }

    /// Reads the kernel's table. True if it has changed.
    fn follow(&mut self) -> bool {
        let Some(device) = &self.config.follow else {
            return false;
        };
        let followed = match takt_datapath::stack::forwarding_table(device) {
            Ok(entries) => {
                self.problem = None;
                let entries = entries.into_iter().take(MOST_STATIONS);
                let station = |(mac, vtep)| Station {
                    mac,
                    vtep: Some(vtep),
                    addresses: Vec::new(),
                };
                entries.map(station).collect()
            }
            Err(error) => {
                let problem = format!("cannot follow {device}: {error}");
                if self.problem.as_ref() != Some(&problem) {
                    tracing::warn!(network = %self.config.name, "{problem}");
                }
                self.problem = Some(problem);
                // What is known stays: a device that is made anew is back in a moment.
                return false;
            }
        };
        let changed = followed != self.followed;
        self.followed = followed;
        changed
    }
}

impl RuntimeHandle {
    /// All networks.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn networks(&self) -> Result<Vec<NetworkStatus>, Stopped> {
        self.ask(|c| c.network_status())
    }

    /// Enters a station into a network, or changes what is known of the one with this MAC address. With the
    /// address zero, tunnel endpoints add up: each gets what is for groups and for unknown stations.
    ///
    /// # Errors
    /// [`Stopped`]; inside, [`StationError`]: then nothing has changed.
    pub fn set_station(
        &self,
        network: String,
        station: Station,
    ) -> Result<Result<(), StationError>, Stopped> {
        self.ask(move |c| c.set_station(&network, station))
    }

    /// Takes a station out of a network; false if an operator has not entered it. With the address zero
    /// only the entry of this tunnel endpoint.
    ///
    /// # Errors
    /// [`Stopped`]; inside, [`StationError::Network`].
    pub fn remove_station(
        &self,
        network: String,
        mac: MacAddress,
        vtep: Option<IpAddr>,
    ) -> Result<Result<bool, StationError>, Stopped> {
        self.ask(move |c| c.remove_station(&network, mac, vtep))
    }
}

impl Control {
    /// Tells all lanes where the stations of a network are.
    pub(super) fn publish_network(&self, at: usize) {
        for (lane, info) in self.lanes.iter().enumerate() {
            info.handle.send(Command::Network {
                network: at,
                table: self.networks[at].table(lane),
            });
        }
    }

    /// Looks at what the kernel's devices have learnt since.
    pub(super) fn follow_networks(&mut self) {
        for at in 0..self.networks.len() {
            if self.networks[at].follow() {
                self.publish_network(at);
            }
        }
    }

    /// Whether the kernel's devices are to be looked at.
    pub(super) fn follows_networks(&self) -> bool {
        self.networks.iter().any(|n| n.config.follow.is_some())
    }

    /// The number of a network.
    pub(super) fn network(&self, name: &str) -> Result<usize, StationError> {
        let mut networks = self.networks.iter();
        networks.position(|n| n.config.name == name).ok_or_else(|| {
            let have: Vec<&str> = self.networks.iter().map(|n| &*n.config.name).collect();
            StationError::Network {
                name: name.into(),
                have: match have.is_empty() {
                    true => "none: add a [[network]] to its configuration".into(),
                    false => have.join(", "),
                },
            }
        })
    }

    fn set_station(&mut self, network: &str, station: Station) -> Result<(), StationError> {
        let at = self.network(network)?;
        let network = &mut self.networks[at];
        let name = || network.config.name.clone();
        match network.config.carrier {
            Carrier::Vxlan { .. } if station.vtep.is_none() => {
                return Err(StationError::NoEndpoint(name()));
            }
            Carrier::Native { .. } if station.vtep.is_some() => {
                return Err(StationError::Endpoint(name()));
            }
            _ => {}
        }
        if station.mac.is_multicast() {
            return Err(StationError::Group(station.mac));
        }
        let same = |other: &Station| {
            other.mac == station.mac
                && (station.mac != MacAddress::ZERO || other.vtep == station.vtep)
        };
        match network.stations.iter().position(same) {
            Some(known) => network.stations[known] = station,
            None if network.stations.len() >= MOST_STATIONS => return Err(StationError::Full),
            None => network.stations.push(station),
        }
        self.publish_network(at);
        Ok(())
    }

    fn remove_station(
        &mut self,
        network: &str,
        mac: MacAddress,
        vtep: Option<IpAddr>,
    ) -> Result<bool, StationError> {
        let at = self.network(network)?;
        let stations = &mut self.networks[at].stations;
        let before = stations.len();
        stations.retain(|s| s.mac != mac || (vtep.is_some() && s.vtep != vtep));
        let removed = stations.len() < before;
        if removed {
            self.publish_network(at);
        }
        Ok(removed)
    }

    /// A tenant's endpoint, and the number of its network.
    fn endpoint<'p>(&self, policy: &'p Policy) -> Result<(&'p Endpoint, usize), Failure> {
        let endpoint = policy.check_endpoint()?;
        let network = self
            .network(&endpoint.network)
            .map_err(|error| Failure::new(ErrorCode::NotFound, error.to_string()))?;
        Ok((endpoint, network))
    }

    /// A tenant's endpoint, and what its frames must come from.
    pub(super) fn owner(&self, policy: &Policy) -> Result<(Endpoint, Owner), Failure> {
        let (endpoint, network) = self.endpoint(policy)?;
        let owner = Owner {
            network,
            mac: MacAddress(endpoint.mac),
            addresses: endpoint
                .addresses
                .iter()
                .map(|(address, _)| *address)
                .collect(),
            mtu: endpoint.mtu.into(),
        };
        Ok((endpoint.clone(), owner))
    }

    /// Which station a tenant's frames for an address are for.
    pub(super) fn resolve(
        &self,
        policy: &Policy,
        address: IpAddr,
        known: Option<[u8; 6]>,
    ) -> Result<Option<[u8; 6]>, Failure> {
        let (_, network) = self.endpoint(policy)?;
        let found = self.networks[network].resolve(address, known.map(MacAddress));
        Ok(found.map(|mac| mac.0))
    }

    fn network_status(&self) -> Vec<NetworkStatus> {
        let status = |network: &Network| {
            let mut counters = NetworkReading::default();
            for lane in &network.counters {
                counters += lane.read();
            }
            let entered = network.stations.iter().map(|s| (s, false));
            let followed = network.followed.iter().map(|s| (s, true));
            let endpoints = self.listeners.values();
            let endpoints = endpoints.filter_map(|listener| listener.policy.endpoint.as_ref());
            NetworkStatus {
                name: network.config.name.clone(),
                carrier: network.config.carrier,
                follow: network.config.follow.clone(),
                problem: network.problem.clone(),
                endpoints: endpoints
                    .filter(|endpoint| endpoint.network == network.config.name)
                    .count(),
                stations: entered
                    .chain(followed)
                    .map(|(station, followed)| StationStatus {
                        station: station.clone(),
                        followed,
                    })
                    .collect(),
                counters,
            }
        };
        self.networks.iter().map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use takt_wire::vxlan::{NetworkId, UDP_PORT};

    use super::*;

    fn station(mac: u8, vtep: u8) -> Station {
        Station {
            mac: MacAddress([0, 0, 0, 0, 0, mac]),
            vtep: Some([10, 0, 0, vtep].into()),
            addresses: Vec::new(),
        }
    }

    #[test]
    fn no_frame_goes_twice_where_a_station_is_entered_and_followed() {
        let config = NetworkConfig {
            name: "pods".into(),
            carrier: Carrier::Vxlan {
                id: NetworkId::default(),
                port: UDP_PORT,
            },
            stations: vec![station(1, 1), station(2, 2), station(0, 8)],
            follow: Some("vxlan0".into()),
        };
        let mut network = Network::new(config, 1);
        // The same, another place, one that only the kernel knows (twice), and two for the rest.
        network.followed = vec![
            station(1, 1),
            station(2, 9),
            station(3, 3),
            station(3, 3),
            station(0, 8),
            station(0, 9),
        ];
        let table = network.table(0);
        let place = |mac, vtep| {
            let Station { mac, vtep, .. } = station(mac, vtep);
            (mac, vtep.expect("an endpoint"))
        };
        assert_eq!(table.stations, [place(1, 1), place(2, 2), place(3, 3)]);
        assert_eq!(table.others, [place(0, 8).1, place(0, 9).1]);
    }
}
