//! Stations on bridges of this host: which of them are served where there are too many.

use std::collections::{BTreeMap, HashMap};

use takt_wire::ethernet::MacAddress;

/// Where a station is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Behind {
    /// The bridge.
    pub bridge: u32,
    /// Its port.
    pub port: u32,
}

/// What goes before what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// A tenant's own address: never left out.
    Tenant,
    /// Served already.
    Known,
    /// Seen for the first time.
    New,
}

/// At most `most` stations besides those of tenants. Ports with few keep all of theirs, and the others as many as each other:
/// whoever makes a bridge learn thousands of stations displaces its own.
pub(super) fn share(
    stations: BTreeMap<MacAddress, Behind>,
    most: usize,
    rank: impl Fn(&MacAddress) -> Rank,
) -> BTreeMap<MacAddress, Behind> {
    if stations.len() <= most {
        return stations;
    }
    let mut ranked: Vec<_> = stations
        .into_iter()
        .map(|(mac, behind)| (rank(&mac), mac, behind))
        .collect();
    ranked.sort_unstable_by_key(|(rank, mac, _)| (*rank, *mac));
    let mut counts: HashMap<u32, usize> = HashMap::new();
    for (rank, _, behind) in &ranked {
        if *rank != Rank::Tenant {
            *counts.entry(behind.port).or_default() += 1;
        }
    }
    let of_each = share_of_each(counts.into_values().collect(), most);
    let mut taken: HashMap<u32, usize> = HashMap::new();
    let mut all = 0;
    ranked.retain(|(rank, _, behind)| {
        if *rank == Rank::Tenant {
            return true;
        }
        let taken = taken.entry(behind.port).or_default();
        let served = *taken < of_each && all < most;
        *taken += usize::from(served);
        all += usize::from(served);
        served
    });
    ranked
        .into_iter()
        .map(|(_, mac, behind)| (mac, behind))
        .collect()
}

/// The port with the most stations, and how many those are.
pub(super) fn fullest(stations: &BTreeMap<MacAddress, Behind>) -> Option<(u32, usize)> {
    let mut counts: HashMap<u32, usize> = HashMap::new();
    for behind in stations.values() {
        *counts.entry(behind.port).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count)
}

/// The most that each may have so that all have `most` together, where those that have fewer leave the rest to others.
fn share_of_each(mut counts: Vec<usize>, most: usize) -> usize {
    counts.sort_unstable();
    let (mut left, mut others) = (most, counts.len());
    for count in counts {
        let share = left / others;
        if count > share {
            return share.max(1);
        }
        left -= count;
        others -= 1;
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 64;

    /// Stations of a port, numbered from `first`.
    fn stations(port: u32, first: u32, count: u32) -> impl Iterator<Item = (MacAddress, Behind)> {
        (first..first + count).map(move |number| {
            let [a, b, c, d] = number.to_be_bytes();
            (MacAddress([2, 0, a, b, c, d]), Behind { bridge: 1, port })
        })
    }

    fn of_port(served: &BTreeMap<MacAddress, Behind>, port: u32) -> usize {
        served.values().filter(|behind| behind.port == port).count()
    }

    #[test]
    fn as_many_as_there_may_be_are_all_served() {
        let all: BTreeMap<_, _> = stations(7, 0, MOST as u32).collect();
        assert_eq!(share(all.clone(), MOST, |_| Rank::New), all);
    }

    #[test]
    fn who_makes_a_bridge_learn_thousands_displaces_its_own() {
        let flood = || stations(7, 0, 10_000);
        let others = (8..20).flat_map(|port| stations(port, port * 100_000, 2));
        let all: BTreeMap<_, _> = flood().chain(others).collect();
        // Whether it came first or not.
        for known in [7, 8] {
            let rank = |mac: &MacAddress| match all[mac].port == known {
                true => Rank::Known,
                false => Rank::New,
            };
            let served = share(all.clone(), MOST, rank);
            assert_eq!(served.len(), MOST);
            for port in 8..20 {
                assert_eq!(of_port(&served, port), 2, "port {port}");
            }
        }
        // Two that do have as many as each other.
        let second = stations(9, 50_000, 9_000);
        let all: BTreeMap<_, _> = flood()
            .chain(second)
            .chain(stations(8, 20_000, 1))
            .collect();
        assert_eq!(fullest(&all), Some((7, 10_000)));
        let served = share(all, MOST, |_| Rank::New);
        assert_eq!([7, 8, 9].map(|port| of_port(&served, port)), [31, 1, 31]);
    }

    #[test]
    fn tenants_are_never_left_out_and_what_is_served_stays() {
        let all: BTreeMap<_, _> = stations(7, 0, 1_000).collect();
        let number = |mac: &MacAddress| u32::from_be_bytes(mac.0[2..].try_into().expect("four"));
        let served = share(all, MOST, |mac| match number(mac) {
            900..1_000 => Rank::Tenant,
            500..520 => Rank::Known,
            _ => Rank::New,
        });
        assert_eq!(served.len(), 100 + MOST);
        let kept = |range: std::ops::Range<u32>| {
            served
                .keys()
                .filter(|mac| range.contains(&number(mac)))
                .count()
        };
        assert_eq!((kept(900..1_000), kept(500..520)), (100, 20));
    }

    #[test]
    fn more_ports_than_stations_may_be_have_one_each_while_there_is_room() {
        let all: BTreeMap<_, _> = (0..200)
            .flat_map(|port| stations(port, port * 10, 2))
            .collect();
        let served = share(all, MOST, |_| Rank::New);
        assert_eq!(served.len(), MOST);
        assert!((0..200).all(|port| of_port(&served, port) <= 1));
    }
}
