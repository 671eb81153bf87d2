//! Load management: which core, or which neighbour, takes the next packet of a flow.
//!
//! Hashes and times come in as arguments, targets come out: nothing here reads a clock or moves a packet. [`table`] holds
//! the flow bundles, [`resource`] what is known of cores and neighbours, [`budget`] turns the figures of network health
//! into limits, [`set`] finds the next target in a few instructions.
//!
//! Follows section IV.A (Load Management Layer) of "SmartNIC-based load management and network health monitoring for time
//! sensitive applications", NOMS 2022, with flowlets after Kandula et al., "Dynamic load balancing without packet
//! reordering", SIGCOMM CCR 2007. Beyond the paper:
//!
//! - **watermarks**. The paper moves a bundle once it was silent for δ, which keeps the order only while no path is slower
//!   than another by more than δ, its queue included. A target that tells up to which instant everything is done
//!   ([`resource::Report::done_before`]) is left only when the bundle's last packet is: then the order is kept
//!   whatever the queues hold;
//! - **parking** ([`park`]). A bundle leaves at once, and its packets wait, instead of going on to an overloaded target, until those
//!   before them are done;
//! - **return with hysteresis**, and **fencing**: a neighbour that went silent gets no more packets, and its bundles move δ
//!   after the last one that it got.
//!
//! ```
//! use takt_balance::resource::{Marks, Report, Resources};
//! use takt_balance::table::{Config, Table, Target};
//!
//! let mut node = Resources::new(2, 1, Marks::new(16, 8)?, Marks::new(16, 8)?, None)?;
//! let mut table = Table::new(Config { bits: 10, delta_ns: 50_000, hold_ns: 1_000_000, function: 0 })?;
//! // The first packet of a flow, by the hash of its headers.
//! let first = table.steer(0, 0xdead_beef, &node).target();
//! let Some(Target::Core(core)) = first else { unreachable!() };
//! // Its core's queue fills up: the flow stays while its packets follow each other within δ ...
//! node.report_core(core, Report { load: 20, done_before: None }, 10_000)?;
//! assert_eq!(table.steer(20_000, 0xdead_beef, &node).target(), first);
//! // ... and moves with the first packet after a pause.
//! assert_ne!(table.steer(80_000, 0xdead_beef, &node).target(), first);
//! # Ok::<(), takt_balance::Refused>(())
//! ```

#![forbid(unsafe_code)]

pub mod budget;
pub mod park;
pub mod resource;
pub mod set;
pub mod table;

/// Why a parameter is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Too many or too few cores.
    #[error("{0} cores: 1 to {max} can be balanced", max = resource::MAX_CORES)]
    Cores(usize),
    /// Too many neighbours.
    #[error("{0} neighbours: at most {max} can be balanced", max = resource::MAX_NEIGHBOURS)]
    Neighbours(usize),
    /// A core or neighbour that there is not.
    #[error("{what} {number}: there are {count}")]
    NoSuch {
        /// `core` or `neighbour`.
        what: &'static str,
        /// What was asked for.
        number: u16,
        /// How many there are, from 0.
        count: usize,
    },
    /// A neighbour that gets nothing at present.
    #[error(
        "neighbour {0} is dead or cannot be reached now: assign when `takt balance status` says that it lives"
    )]
    Dead(u16),
    /// Marks that mean nothing.
    #[error("marks {high} and {low}: the low one must be below the high one")]
    Marks {
        /// From this load on a target is overloaded.
        high: u32,
        /// Down to this load it stays so.
        low: u32,
    },
    /// A table that is too large.
    #[error("2^{0} bundles: 2^0 to 2^{max} can be balanced", max = table::MAX_BITS)]
    Bits(u8),
    /// A function beyond the set.
    #[error("function {0}: there are 0 to 63")]
    Function(u8),
    /// A negative time.
    #[error("{what} of {ns} ns: a time must not be negative")]
    Negative {
        /// Which one.
        what: &'static str,
        /// What was asked for, nanoseconds.
        ns: i64,
    },
    /// A bundle that there is not.
    #[error("bundle {number}: there are {count}")]
    Bundle {
        /// What was asked for.
        number: u32,
        /// How many there are, from 0.
        count: usize,
    },
}
