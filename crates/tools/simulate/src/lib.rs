//! Simulation of load management, in virtual time.
//!
//! The model is that of section V.A of "SmartNIC-based load management and network health monitoring for time sensitive
//! applications" (NOMS 2022): generators replay traces into nodes on "one big switch", and nodes process packets on cores of
//! a given frequency, with a given number of instructions for each packet. [`trace`] makes the traffic or takes that of a
//! capture, [`workload`] has the distributions it is made from, [`model`] plays it through a strategy, [`sweep`] does so
//! for many parameters at once, [`picture`] draws the curves.
//!
//! Equal parameters and seeds give equal figures, whatever the number of threads.

#![forbid(unsafe_code)]

pub mod model;
pub mod picture;
pub mod sweep;
pub mod trace;
pub mod workload;

/// Why a simulation is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// A number that the model has no meaning for.
    #[error("{what} {value}: {allowed}")]
    Parameter {
        /// Which one.
        what: &'static str,
        /// What was asked for.
        value: String,
        /// What can be.
        allowed: &'static str,
    },
    /// More packets than are kept.
    #[error(
        "the traffic has more than {} million packets: shorten --duration or lower --rate",
        trace::MAX_PACKETS / 1_000_000
    )]
    Packets,
    /// Nothing to play.
    #[error("the traffic has no packets: lengthen --duration or raise --rate")]
    Empty,
    /// The balancer's own bounds.
    #[error(transparent)]
    Balance(#[from] takt_balance::Refused),
}

/// Spreads the bits of a number (the finaliser of SplitMix64, Steele et al., OOPSLA 2014).
#[inline]
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
