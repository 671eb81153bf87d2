//! Networks and their stations as messages of the admin API.

use std::net::IpAddr;

use takt_runtime::config::{Carrier, Station};
use takt_runtime::status::{NetworkStatus, RouteStatus, StationStatus};

use super::listener::mac;
use super::proto;

/// A station as asked for; else the field that is wrong, and what would be right.
pub fn from_message(message: &proto::Station) -> Result<Station, String> {
    let addresses = message.addresses.iter();
    Ok(Station {
        mac: mac("mac", &message.mac)?.0,
        vtep: vtep(&message.vtep)?,
        addresses: addresses
            .map(|text| address("addresses", text))
            .collect::<Result<_, _>>()?,
    })
}

/// A tunnel endpoint as asked for; none if it is empty.
pub fn vtep(text: &str) -> Result<Option<IpAddr>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let vtep = address("vtep", text)?;
    if vtep.is_unspecified() || vtep.is_multicast() {
        return Err(format!("vtep = {text}: no address of a node"));
    }
    Ok(Some(vtep))
}

fn address(field: &str, text: &str) -> Result<IpAddr, String> {
    text.parse()
        .map_err(|_| format!("{field} = {text}: no IP address, write one as 10.0.0.2 or fd00::2"))
}

impl From<NetworkStatus> for proto::Network {
    fn from(status: NetworkStatus) -> Self {
        let (vxlan, port, vlan) = match status.carrier {
            Carrier::Vxlan { id, port } => (Some(id.value()), port.into(), None),
            Carrier::Native { vlan } => (None, 0, vlan.map(u32::from)),
            Carrier::Routed => (None, 0, None),
        };
        Self {
            name: status.name,
            routed: status.carrier == Carrier::Routed,
            vxlan,
            port,
            vlan,
            follow: status.follow.unwrap_or_default(),
            problem: status.problem.unwrap_or_default(),
            interface: status.interface.unwrap_or_default(),
            left_out: status.left_out,
            routes: status.routes.into_iter().map(Into::into).collect(),
            endpoints: status.endpoints as u32,
            stations: status.stations.into_iter().map(Into::into).collect(),
            counters: Some(status.counters.into()),
        }
    }
}

impl From<RouteStatus> for proto::Route {
    fn from(status: RouteStatus) -> Self {
        let (via, problem) = match status.via {
            Ok(via) => (via, String::new()),
            Err(problem) => (String::new(), problem),
        };
        Self {
            destination: status.destination.to_string(),
            via,
            next_hop: status
                .next_hop
                .map_or_else(String::new, |mac| mac.to_string()),
            problem,
        }
    }
}

impl From<StationStatus> for proto::Station {
    fn from(status: StationStatus) -> Self {
        let StationStatus { station, followed } = status;
        Self {
            mac: station.mac.to_string(),
            vtep: station
                .vtep
                .map_or_else(String::new, |vtep| vtep.to_string()),
            addresses: station.addresses.iter().map(IpAddr::to_string).collect(),
            followed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> proto::Station {
        proto::Station {
            mac: "02:00:00:00:00:01".into(),
            vtep: "10.0.0.2".into(),
            addresses: vec!["10.244.1.5".into(), "fd00::5".into()],
            followed: false,
        }
    }

    #[test]
    fn a_station_survives_the_way_from_the_message_and_back() {
        let station = from_message(&message()).expect("good");
        let status = StationStatus {
            station,
            followed: false,
        };
        assert_eq!(proto::Station::from(status), message());
    }

    #[test]
    fn a_fault_names_the_field_and_what_would_be_right() {
        let refusal = |change: fn(&mut proto::Station)| {
            let mut message = message();
            change(&mut message);
            from_message(&message).expect_err("refused")
        };
        assert!(refusal(|s| s.mac = "1".into()).contains("mac = 1: write a MAC address"));
        assert!(refusal(|s| s.vtep = "x".into()).contains("vtep = x"));
        assert!(refusal(|s| s.vtep = "224.0.0.1".into()).contains("no address of a node"));
        assert!(refusal(|s| s.addresses = vec!["y".into()]).contains("addresses = y"));
    }
}
