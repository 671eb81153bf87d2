//! Transmission gates: which traffic classes may send at which instant.
//!
//! [`GateMask`] is the state of eight gates, [`GateList`] a gate control list made ready for queries,
//! [`Gates`] the operational and the pending list of one port with the rules by which one replaces the
//! other. Source: IEEE 802.1Q-2022, clauses 8.6.8.4 (transmission gates) and 8.6.9 (state machines).

mod control;
mod list;
mod mask;
mod timeline;

pub use control::{Cycle, Gates, GatesStatus};
pub use list::{GateList, ListError};
pub use mask::GateMask;

/// Instants are held within this many nanoseconds of 1970 (until 2116), so that neither the distance
/// of two of them nor the sum of one and a cycle, an extension or a frame can overflow.
pub(crate) const HORIZON_NS: i64 = (1 << 62) - 1;

/// Later than every instant: "does not happen".
pub(crate) const NEVER: i64 = i64::MAX;
