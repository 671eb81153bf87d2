//! Arguments of `takt balance` as people write them.

use std::time::Duration;

use takt_balance::table::Target;
use takt_balance_xdp::{Neighbour, Way};
use takt_health::key::FlowKey;
use takt_wire::vxlan::NetworkId;

/// Where a bundle is to go; `None`: where the rules have it.
#[derive(Clone, Copy, Debug)]
pub struct Wish(pub Option<Target>);

/// A target: `core:1`, `neighbour:0`, `auto`.
pub fn target(text: &str) -> Result<Wish, String> {
    let number = |text: &str| text.parse().ok();
    let target = match text.split_once(':') {
        Some(("core", rest)) => number(rest).map(Target::Core),
        Some(("neighbour", rest)) => number(rest).map(Target::Neighbour),
        None if text == "auto" => return Ok(Wish(None)),
        _ => None,
    };
    let target = target.ok_or("write core:1, neighbour:0 or auto")?;
    Ok(Wish(Some(target)))
}

/// Flows of a hash's end.
#[derive(Clone, Copy, Debug)]
pub enum Which {
    /// By its number.
    Bundle(u32),
    /// That of this flow.
    Of(FlowKey),
}

/// Some flows: `17`, `udp 10.0.0.9:4000 > 10.0.0.1:5004`.
pub fn which(text: &str) -> Result<Which, String> {
    match text.parse() {
        Ok(number) => Ok(Which::Bundle(number)),
        Err(_) => match text.parse() {
            Ok(flow) => Ok(Which::Of(flow)),
            Err(error) => Err(format!("no bundle's number, and {error}")),
        },
    }
}

/// A neighbour: `10.0.0.3` or `10.0.0.3,vni=42,mac=02:00:00:00:00:01`.
pub fn neighbour(text: &str) -> Result<Neighbour, String> {
    let wrong = || "write 10.0.0.3 or, by VXLAN, 10.0.0.3,vni=42,mac=02:00:00:00:00:01".to_owned();
    let mut parts = text.split(',');
    let address = parts
        .next()
        .and_then(|text| text.parse().ok())
        .ok_or_else(wrong)?;
    let (mut network, mut inner) = (None, None);
    for part in parts {
        match part.split_once('=').ok_or_else(wrong)? {
            ("vni", value) => {
                let value = value.parse().ok().and_then(NetworkId::new);
                network = Some(value.ok_or("vni: 0 to 16777215")?);
            }
            ("mac", value) => {
                inner = Some(value.parse().map_err(|error| format!("mac: {error}"))?);
            }
            _ => return Err(wrong()),
        }
    }
    let way = match (network, inner) {
        (None, None) => Way::Redirect,
        (Some(network), Some(inner)) => Way::Vxlan { network, inner },
        _ => return Err(wrong()),
    };
    Ok(Neighbour { address, way })
}

/// How many bundles: as a power of two.
pub fn bits(text: &str) -> Result<u8, String> {
    let count: u32 = text
        .parse()
        .map_err(|_| "write a power of two, 1 to 1048576")?;
    match count.is_power_of_two() && count <= 1 << 20 {
        true => Ok(count.ilog2() as u8),
        false => Err("write a power of two, 1 to 1048576".into()),
    }
}

fn within(text: &str, least: Duration, most: Duration, write: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match (least..=most).contains(&time) {
        true => Ok(time),
        false => Err(write.to_owned()),
    }
}

/// Time from beat to beat.
pub fn every(text: &str) -> Result<Duration, String> {
    let (least, most) = (Duration::from_micros(100), Duration::from_secs(10));
    within(text, least, most, "write 100us to 10s")
}

/// A time that the table can have.
pub fn time(text: &str) -> Result<Duration, String> {
    let most = Duration::from_secs(3600);
    within(text, Duration::ZERO, most, "write 0s to 1h")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_and_targets_are_read_and_others_refused() {
        let plain = neighbour("10.0.0.3").expect("a neighbour");
        assert_eq!(plain.way, Way::Redirect);
        let vxlan = neighbour("10.0.0.3,vni=42,mac=02:00:00:00:00:01").expect("a neighbour");
        let Way::Vxlan { network, .. } = vxlan.way else {
            panic!("{vxlan:?}");
        };
        assert_eq!(network.value(), 42);
        for text in [
            "",
            "h2",
            "10.0.0.3,",
            "10.0.0.3,vni=42",
            "10.0.0.3,mac=02:00:00:00:00:01",
            "10.0.0.3,vni=16777216,mac=02:00:00:00:00:01",
            "10.0.0.3,vni=1,mac=02:00:00:00:00",
            "10.0.0.3,port=1",
        ] {
            assert!(neighbour(text).is_err(), "{text}");
        }
        for text in ["core", "core:", "core:65536", "neighbour:-1", "node:1", ""] {
            assert!(target(text).is_err(), "{text}");
        }
        assert!(matches!(which("17"), Ok(Which::Bundle(17))));
        let flow = which("udp 10.0.0.9:4000 > 10.0.0.1:5004");
        assert!(matches!(flow, Ok(Which::Of(_))), "{flow:?}");
        for text in ["", "-1", "4294967296", "udp * > 10.0.0.1:5004"] {
            assert!(which(text).is_err(), "{text}");
        }
        for text in ["0", "3", "2097152", "-1"] {
            assert!(bits(text).is_err(), "{text}");
        }
    }
}
