//! A CPU reservation (Q, P, m) and what its use costs.
//!
//! The reservation of kubedeadline-ecrts2025, section 2.1: m servers of runtime Q every period P,
//! each on a core of its own. Whether a machine can still take it is the scheduler's question, not
//! asked here.

use std::cmp::Ordering;
use std::fmt;

use serde::{Serialize, Serializer};

use crate::nanos::Nanos;

/// A share of one core, in millionths: the unit in which Kubernetes hands reservations out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Bandwidth(u64);

impl Bandwidth {
    /// A whole core.
    pub const FULL_CORE: Self = Self(1_000_000);

    /// `ppm` millionths of a core.
    pub const fn from_ppm(ppm: u64) -> Self {
        Self(ppm)
    }

    /// The number of millionths.
    pub const fn ppm(self) -> u64 {
        self.0
    }

    /// `amount` in every `period`, rounded up.
    fn ratio(amount: u128, period: Nanos) -> Self {
        Self(
            Nanos::from_wide((amount * u128::from(Self::FULL_CORE.0)).div_ceil(period.wide()))
                .get(),
        )
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded up, as everything that is asked for.
        let tenths = self.0.div_ceil(1_000);
        f.pad(&format!("{}.{}%", tenths / 10, tenths % 10))
    }
}

impl Serialize for Bandwidth {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

/// Why three numbers are not a reservation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationError {
    /// No runtime.
    #[error("runtime is 0: it must be at least 1ns")]
    ZeroRuntime,
    /// More runtime than time.
    #[error("runtime {runtime} exceeds the period {period}: it can be at most the whole period")]
    RuntimeBeyondPeriod {
        /// Q.
        runtime: Nanos,
        /// P.
        period: Nanos,
    },
    /// A period the analysis cannot add up.
    #[error("period {0} is too long: at most {max} can be analysed", max = Nanos::MAX_PARAMETER)]
    PeriodTooLong(Nanos),
    /// No core, or more than there are.
    #[error("{0} cores are no reservation: it needs 1 to {max}", max = Reservation::MAX_CORES)]
    Cores(u32),
}

/// Runtime Q every period P on each of m cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Reservation {
    runtime: Nanos,
    period: Nanos,
    cores: u32,
}

impl Reservation {
    /// The most cores of one reservation.
    pub const MAX_CORES: u32 = 4_096;
    /// The shortest runtime Linux takes (`DL_SCALE`, kernel/sched/deadline.c).
    pub const KERNEL_MIN_RUNTIME: Nanos = Nanos::new(1_024);
    /// The shortest period Linux takes unless configured otherwise
    /// (`sched_deadline_period_min_us`).
    pub const KERNEL_MIN_PERIOD: Nanos = Nanos::from_micros(100);
    /// The longest period Linux takes unless configured otherwise (`sched_deadline_period_max_us`).
    pub const KERNEL_MAX_PERIOD: Nanos = Nanos::from_micros(1 << 22);

    /// `runtime` (Q) every `period` (P) on each of `cores` (m) cores.
    ///
    /// # Errors
    /// Q of zero or above P, P above [`Nanos::MAX_PARAMETER`], m of zero or above
    /// [`Reservation::MAX_CORES`].
    pub fn new(runtime: Nanos, period: Nanos, cores: u32) -> Result<Self, ReservationError> {
        if runtime == Nanos::ZERO {
            return Err(ReservationError::ZeroRuntime);
        }
        if period > Nanos::MAX_PARAMETER {
            return Err(ReservationError::PeriodTooLong(period));
        }
        if runtime > period {
            return Err(ReservationError::RuntimeBeyondPeriod { runtime, period });
        }
        if cores == 0 || cores > Self::MAX_CORES {
            return Err(ReservationError::Cores(cores));
        }
        Ok(Self {
            runtime,
            period,
            cores,
        })
    }

    /// Q: the CPU time of each core per period.
    pub fn runtime(&self) -> Nanos {
        self.runtime
    }

    /// P: how often the runtime comes back.
    pub fn period(&self) -> Nanos {
        self.period
    }

    /// m: on how many cores.
    pub fn cores(&self) -> u32 {
        self.cores
    }

    /// Q/D for a deadline within the period, rounded up.
    pub fn density(&self, deadline: Nanos) -> Bandwidth {
        Bandwidth::ratio(self.runtime.wide(), deadline.max(Nanos::new(1)))
    }

    /// Q/P, the share taken of each core, rounded up.
    pub fn core_bandwidth(&self) -> Bandwidth {
        Bandwidth::ratio(self.runtime.wide(), self.period)
    }

    /// m·Q/P, the share taken of all cores together, rounded up.
    pub fn total_bandwidth(&self) -> Bandwidth {
        Bandwidth::ratio(self.runtime.wide() * u128::from(self.cores), self.period)
    }

    /// Compares m·Q/P exactly.
    pub fn cmp_total_bandwidth(&self, other: &Self) -> Ordering {
        let scaled =
            |one: &Self, by: &Self| one.runtime.wide() * u128::from(one.cores) * by.period.wide();
        scaled(self, other).cmp(&scaled(other, self))
    }

    /// Whether Linux takes it as a `SCHED_DEADLINE` reservation under its default limits.
    pub fn is_within_kernel_limits(&self) -> bool {
        self.runtime >= Self::KERNEL_MIN_RUNTIME
            && (Self::KERNEL_MIN_PERIOD..=Self::KERNEL_MAX_PERIOD).contains(&self.period)
    }
}

impl fmt::Display for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = if self.cores == 1 {
            "1 core".to_owned()
        } else {
            format!("{} cores", self.cores)
        };
        f.pad(&format!(
            "{} every {} on {cores}",
            self.runtime, self.period
        ))
    }
}

/// What the machine takes away from the model; zero when nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Overheads {
    /// One context switch, with the cache misses after it. Each job costs two of them (in, and back
    /// to what it preempted), and so does each budget of the reservation.
    pub context_switch: Nanos,
    /// How much later than the model says a budget may be delivered: the wake-up latency of the
    /// kernel, a timer tick where exhausted neighbours are stopped on ticks only, the tardiness of
    /// global EDF when the reservation is not pinned (Devi and Anderson 2005).
    pub supply_latency: Nanos,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(runtime: u64, period: u64, cores: u32) -> Reservation {
        Reservation::new(Nanos::new(runtime), Nanos::new(period), cores).unwrap()
    }

    #[test]
    fn bandwidth_is_never_rounded_down() {
        assert_eq!(reservation(2_000, 3_000_000, 1).core_bandwidth().ppm(), 667);
        assert_eq!(reservation(1, 3, 2).total_bandwidth().ppm(), 666_667);
        assert_eq!(
            reservation(1, Nanos::MAX_PARAMETER.get(), 1)
                .core_bandwidth()
                .ppm(),
            1
        );
        assert_eq!(reservation(1, 3, 1).core_bandwidth().to_string(), "33.4%");
    }

    #[test]
    fn total_bandwidths_compare_exactly() {
        assert_eq!(
            reservation(1, 3, 2).cmp_total_bandwidth(&reservation(2, 3, 1)),
            Ordering::Equal
        );
        assert_eq!(
            reservation(333_333, 1_000_000, 1).cmp_total_bandwidth(&reservation(1, 3, 1)),
            Ordering::Less
        );
    }

    #[test]
    fn what_is_no_reservation_is_refused() {
        let new = |q, p, m| Reservation::new(Nanos::new(q), Nanos::new(p), m);
        assert_eq!(new(0, 10, 1), Err(ReservationError::ZeroRuntime));
        assert!(matches!(
            new(11, 10, 1),
            Err(ReservationError::RuntimeBeyondPeriod { .. })
        ));
        assert!(matches!(
            new(1, u64::MAX, 1),
            Err(ReservationError::PeriodTooLong(_))
        ));
        assert_eq!(new(1, 10, 0), Err(ReservationError::Cores(0)));
        assert!(new(10, 10, 1).is_ok());
    }

    #[test]
    fn kernel_limits_are_known() {
        assert!(reservation(2_000_000, 10_000_000, 1).is_within_kernel_limits());
        assert!(!reservation(1_000, 10_000_000, 1).is_within_kernel_limits());
        assert!(!reservation(50_000, 99_999, 1).is_within_kernel_limits());
        assert!(!reservation(50_000_000, 5_000_000_000, 1).is_within_kernel_limits());
    }
}
