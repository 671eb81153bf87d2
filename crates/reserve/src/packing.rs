//! Which reservation goes to which core, where cores are set apart.
//!
//! Bin packing: the widest first ("decreasing"), each onto the first, the fullest or the emptiest of the
//! cores that have room for it. A core has room while the densities Q/D on it sum up to no more than its
//! bound, which is what a node publishes and the scheduler admits; for reservations without a deadline it
//! is EDF's exact test (Liu and Layland 1973). First fit decreasing needs at most 11/9 of the fewest cores
//! and 6/9 of one more (Dosa 2007), so that where it finds no room another packing may exist:
//! [`Packing::another_may_exist`] says where none does for certain.

use std::cmp::Reverse;

use serde::Serialize;

use crate::admission::Server;
use crate::reservation::Bandwidth;

/// Onto which of the cores that have room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Fit {
    /// The first one.
    #[default]
    #[serde(rename = "first-fit")]
    First,
    /// The fullest, so that others stay free for wide reservations: a node's `order: best-fit`.
    #[serde(rename = "best-fit")]
    Best,
    /// The emptiest, so that all have something left: a node's `order: worst-fit`.
    #[serde(rename = "worst-fit")]
    Worst,
}

/// A reservation of each of so many threads, every one on a core of its own: `count` of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What each thread has.
    pub server: Server,
    /// m.
    pub threads: u32,
}

/// One core of a packing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PackedCore {
    /// The requests that have a thread on it, by their place in the list, in the order they came.
    pub requests: Vec<usize>,
    /// The sum of their densities.
    pub used: u64,
    /// What it has left of its bound, in millionths.
    pub left: u64,
}

/// Who goes where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Core by core. They are counted, and stand for no certain ones of a machine.
    pub cores: Vec<PackedCore>,
    /// Requests that found no room for a thread, once for each.
    pub left_out: Vec<usize>,
    /// Whether others may find room for all, though this one has not.
    pub another_may_exist: bool,
}

/// Packs `requests` onto `cores` cores, each of which gives at most `bound`.
pub fn pack(cores: u32, bound: Bandwidth, requests: &[Request], fit: Fit) -> Packing {
    let density = |request: usize| requests[request].server.density().ppm();
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&request| Reverse(density(request)));
    let empty = PackedCore {
        left: bound.ppm(),
        ..PackedCore::default()
    };
    let mut packed = vec![empty; cores as usize];
    let mut left_out = Vec::new();
    for request in order {
        for _ in 0..requests[request].threads {
            match room_for(&mut packed, request, density(request), fit) {
                Some(core) => {
                    core.requests.push(request);
                    core.used += density(request);
                    core.left -= density(request);
                }
                None => left_out.push(request),
            }
        }
    }
    Packing {
        another_may_exist: !left_out.is_empty() && may_fit(cores, bound, requests),
        cores: packed,
        left_out,
    }
}

fn room_for(
    cores: &mut [PackedCore],
    request: usize,
    density: u64,
    fit: Fit,
) -> Option<&mut PackedCore> {
    let mut with_room = cores
        .iter_mut()
        .filter(|core| core.left >= density && !core.requests.contains(&request));
    // Of equals, each takes the first.
    match fit {
        Fit::First => with_room.next(),
        Fit::Best => with_room.min_by_key(|core| core.left),
        Fit::Worst => with_room.min_by_key(|core| Reverse(core.left)),
    }
}

/// What every packing needs: no request wider than a core, or of more threads than there are; no more in
/// all than they give; and no more than one on each of those that are wider than half of it.
fn may_fit(cores: u32, bound: Bandwidth, requests: &[Request]) -> bool {
    let (cores, bound) = (u64::from(cores), bound.ppm());
    let threads = |request: &Request| u64::from(request.threads);
    let width = |request: &Request| request.server.density().ppm();
    let all: u64 = requests.iter().map(|r| threads(r) * width(r)).sum();
    let wide = requests.iter().filter(|r| 2 * width(r) > bound);
    requests
        .iter()
        .all(|r| width(r) <= bound && threads(r) <= cores)
        && all <= cores * bound
        && wide.map(threads).sum::<u64>() <= cores
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::nanos::Nanos;
    use crate::reservation::Reservation;

    const BOUND: Bandwidth = Bandwidth::from_ppm(900_000);

    /// A request of so many thousandths of a core for each of its threads.
    fn request(thousandths: u64, threads: u32) -> Request {
        let us = Nanos::from_micros;
        let reservation = Reservation::new(us(thousandths), us(1_000), 1).unwrap();
        Request {
            server: Server::new(reservation, None),
            threads,
        }
    }

    fn on(packing: &Packing) -> Vec<Vec<usize>> {
        packing.cores.iter().map(|c| c.requests.clone()).collect()
    }

    #[test]
    fn the_widest_goes_first_and_each_rule_has_its_core() {
        let all = [200, 500, 300, 400].map(|width| request(width, 1));
        let first = pack(3, BOUND, &all, Fit::First);
        assert_eq!(on(&first), [vec![1, 3], vec![2, 0], vec![]]);
        assert_eq!((first.cores[0].left, first.cores[1].left), (0, 400_000));
        let worst = pack(3, BOUND, &all, Fit::Worst);
        assert_eq!(on(&worst), [vec![1], vec![3], vec![2, 0]]);
        let all = [600, 500, 250, 150].map(|width| request(width, 1));
        assert_eq!(
            on(&pack(2, BOUND, &all, Fit::Best)),
            [vec![0, 2], vec![1, 3]]
        );
    }

    #[test]
    fn a_core_has_one_thread_of_a_request() {
        let two = pack(2, BOUND, &[request(400, 2)], Fit::First);
        assert_eq!(on(&two), [vec![0], vec![0]]);
        let one = pack(1, BOUND, &[request(400, 2)], Fit::First);
        assert_eq!((one.left_out, one.another_may_exist), (vec![0], false));
    }

    #[test]
    fn where_no_room_is_found_it_is_said_whether_another_order_may_find_some() {
        // 360 + 270 + 270 twice is a packing, and first fit puts 360 beside 360.
        let all = [360, 360, 270, 270, 270, 270].map(|width| request(width, 1));
        assert!(pack(2, BOUND, &all, Fit::Worst).left_out.is_empty());
        let missed = pack(2, BOUND, &all, Fit::First);
        assert!(!missed.left_out.is_empty() && missed.another_may_exist);
        for none in [
            vec![request(950, 1)],
            vec![request(600, 1), request(600, 1), request(700, 1)],
            vec![request(460, 2), request(460, 1)],
        ] {
            let packing = pack(2, BOUND, &none, Fit::First);
            assert!(
                !packing.left_out.is_empty() && !packing.another_may_exist,
                "{packing:?}"
            );
        }
    }

    /// Whether there is a packing at all: every way is tried.
    fn exists(left: &mut [(u64, Vec<usize>)], threads: &[(usize, u64)]) -> bool {
        let Some((&(request, width), rest)) = threads.split_first() else {
            return true;
        };
        (0..left.len()).any(|core| {
            if left[core].0 < width || left[core].1.contains(&request) {
                return false;
            }
            left[core].0 -= width;
            left[core].1.push(request);
            let found = exists(left, rest);
            left[core].1.pop();
            left[core].0 += width;
            found
        })
    }

    proptest! {
        #[test]
        fn no_core_has_more_than_its_bound_and_no_thread_is_lost(
            drawn in prop::collection::vec((1u64..1_000, 1u32..4), 0..7), cores in 1u32..5, bound in 1u64..1_000_000,
            fit in prop::sample::select(vec![Fit::First, Fit::Best, Fit::Worst]),
        ) {
            let requests: Vec<Request> = drawn.iter().map(|&(width, threads)| request(width, threads)).collect();
            let packing = pack(cores, Bandwidth::from_ppm(bound), &requests, fit);
            prop_assert_eq!(packing.cores.len(), cores as usize);
            for core in &packing.cores {
                let used: u64 = core.requests.iter().map(|&r| requests[r].server.density().ppm()).sum();
                prop_assert!(used <= bound && used == core.used && core.left == bound - used);
                let mut once = core.requests.clone();
                once.sort_unstable();
                once.dedup();
                prop_assert_eq!(once.len(), core.requests.len());
            }
            for (place, request) in requests.iter().enumerate() {
                let packed = packing.cores.iter().flat_map(|core| &core.requests);
                let seen = packed.chain(&packing.left_out).filter(|&&r| r == place).count();
                prop_assert_eq!(seen, request.threads as usize);
            }
            // What is said of others holds.
            let threads: Vec<(usize, u64)> = requests
                .iter()
                .enumerate()
                .flat_map(|(place, r)| vec![(place, r.server.density().ppm()); r.threads as usize])
                .collect();
            if !packing.left_out.is_empty() && !packing.another_may_exist && threads.len() < 9 {
                prop_assert!(!exists(&mut vec![(bound, vec![]); cores as usize], &threads));
            }
        }
    }
}
