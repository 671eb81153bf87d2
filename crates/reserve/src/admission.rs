//! Which reservations a node can hold together: the schedulability test behind admission.
//!
//! A node's `SCHED_DEADLINE` threads share the cores of a root domain under global EDF, unless the
//! cores are set apart (backend `deadline-partition`). The kernel admits any sum below the number of
//! cores, which is more than what is schedulable. Here is what is, and how late the rest can be. The
//! node agent publishes its capacities by the same formulas (kubernetes/internal/admission); both are
//! tested against one table.

use crate::nanos::Nanos;
use crate::reservation::{Bandwidth, Reservation};

/// One reservation of one thread, as a node holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    reservation: Reservation,
    deadline: Option<Nanos>,
}

impl Server {
    /// The reservation of each of a request's threads; `deadline` where it is before the period's end.
    pub fn new(reservation: Reservation, deadline: Option<Nanos>) -> Self {
        Self {
            reservation,
            deadline: deadline.filter(|&deadline| deadline < reservation.period()),
        }
    }

    /// Q/D, or Q/P without a deadline, rounded up.
    pub fn density(&self) -> Bandwidth {
        match self.deadline {
            Some(deadline) => self.reservation.density(deadline),
            None => self.reservation.core_bandwidth(),
        }
    }
}

/// Up to which sum of densities reservations of at most `most` each meet their deadlines under
/// global EDF on `cores` cores: m − (m − 1)·u (Goossens, Funk and Baruah, Real-Time Systems 25, 2003;
/// with deadlines before the period's end Bertogna, Cirinei and Lipari, ECRTS 2005, theorem 2; for
/// constant bandwidth servers Baruah, Goossens and Lipari, RTAS 2002).
pub fn total_density(cores: u32, most: Bandwidth) -> Bandwidth {
    let full = Bandwidth::FULL_CORE.ppm();
    let others = u64::from(cores.max(1)) - 1;
    Bandwidth::from_ppm(full + others * (full - most.ppm().min(full)))
}

/// The greatest density with which each of `devices` offered cores has room for one reservation of
/// it, on `cores` cores of which each gives at most `bound`.
pub fn widest(cores: u32, devices: u32, bound: Bandwidth) -> Bandwidth {
    let (cores, devices) = (u64::from(cores.max(1)), u64::from(devices.max(1)));
    let widest = cores * Bandwidth::FULL_CORE.ppm() / (devices + cores - 1);
    Bandwidth::from_ppm(widest.min(bound.ppm()))
}

/// What each offered core may give so that whatever fits, in reservations of at most `most` each, is
/// schedulable. Equal if each then has room for one of `most`; otherwise as many as possible have it.
pub fn capacities(cores: u32, devices: u32, most: Bandwidth, bound: Bandwidth) -> Vec<Bandwidth> {
    let devices = u64::from(devices);
    let mut left = total_density(cores, most).ppm().min(devices * bound.ppm());
    let each = left / devices.max(1);
    (0..devices)
        .map(|_| {
            let capacity = match each >= most.ppm() {
                true => each,
                false => left.min(most.ppm()),
            };
            left -= capacity.min(left);
            Bandwidth::from_ppm(capacity)
        })
        .collect()
}

/// Whether `servers` are proven to have every runtime by its deadline under global EDF on `cores`
/// cores: no more of them than cores, or [`total_density`].
pub fn is_schedulable(cores: u32, servers: &[Server]) -> bool {
    let densities = || servers.iter().map(|server| server.density().ppm());
    let most = Bandwidth::from_ppm(densities().max().unwrap_or(0));
    most <= Bandwidth::FULL_CORE
        && (servers.len() as u64 <= u64::from(cores)
            || densities().sum::<u64>() <= total_density(cores, most).ppm())
}

/// How late a runtime may be after its period's end under global EDF on `cores` cores: zero where
/// [`is_schedulable`], otherwise the sum of the m − 1 largest Q less the least Q, divided by m less
/// the sum of the m − 2 largest Q/P, and to that the largest Q (Devi and Anderson, RTSS 2005, theorem
/// 1). `None` without a bound: more than the cores can give, or deadlines before the period's end,
/// which it does not cover.
pub fn tardiness(cores: u32, servers: &[Server]) -> Option<Nanos> {
    if is_schedulable(cores, servers) {
        return Some(Nanos::ZERO);
    }
    let full = u128::from(Bandwidth::FULL_CORE.ppm());
    let all = u128::from(cores) * full;
    let mut runtimes: Vec<u128> = servers
        .iter()
        .map(|server| server.reservation.runtime().wide())
        .collect();
    let mut shares: Vec<u128> = servers
        .iter()
        .map(|server| u128::from(server.reservation.core_bandwidth().ppm()))
        .collect();
    if servers.iter().any(|server| server.deadline.is_some()) || shares.iter().sum::<u128>() > all {
        return None;
    }
    runtimes.sort_unstable_by(|a, b| b.cmp(a));
    shares.sort_unstable_by(|a, b| b.cmp(a));
    let others = cores as usize - 1;
    let longest: u128 = runtimes.iter().take(others).sum();
    let widest: u128 = shares.iter().take(others.saturating_sub(1)).sum();
    let late = (longest - runtimes.last()?.min(&longest)) * full;
    Some(Nanos::from_wide(
        late.div_ceil(all - widest) + runtimes.first()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        include_str!("../../../kubernetes/internal/admission/testdata/capacities.csv");

    fn server(runtime_us: u64, period_us: u64) -> Server {
        let us = Nanos::from_micros;
        Server::new(
            Reservation::new(us(runtime_us), us(period_us), 1).expect("a reservation"),
            None,
        )
    }

    #[test]
    fn capacities_are_those_that_nodes_publish() {
        for line in TABLE.lines().skip(1) {
            let fields: Vec<&str> = line.split(',').collect();
            let number = |at: usize| fields[at].parse::<u64>().expect("a number");
            let (cores, devices) = (number(0) as u32, number(1) as u32);
            let (most, bound) = (
                Bandwidth::from_ppm(number(2)),
                Bandwidth::from_ppm(number(3)),
            );
            assert_eq!(widest(cores, devices, bound).ppm(), number(4), "{line}");
            let capacities = capacities(cores, devices, most, bound);
            let wanted: Vec<u64> = fields[5]
                .split(' ')
                .map(|field| field.parse().expect("a number"))
                .collect();
            assert_eq!(
                capacities.iter().map(|c| c.ppm()).collect::<Vec<_>>(),
                wanted,
                "{line}"
            );
        }
    }

    #[test]
    fn what_fits_two_cores_by_its_sum_may_be_late_by_what_is_said() {
        let servers = [
            server(4_500, 10_000),
            server(4_500, 10_000),
            server(9_000, 10_001),
        ];
        assert!(!is_schedulable(2, &servers));
        assert_eq!(tardiness(2, &servers), Some(Nanos::from_micros(11_250)));
        assert!(is_schedulable(3, &servers));
        assert_eq!(tardiness(3, &servers), Some(Nanos::ZERO));
    }

    #[test]
    fn more_than_there_is_has_no_bound() {
        assert_eq!(tardiness(1, &[server(6, 10), server(5, 10)]), None);
        let early = Server::new(server(5, 10).reservation, Some(Nanos::from_micros(6)));
        assert_eq!(early.density().ppm(), 833_334);
        assert_eq!(tardiness(1, &[early, server(3, 10)]), None);
    }
}
