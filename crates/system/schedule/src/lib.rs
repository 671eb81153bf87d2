//! The scheduling of frames on a port, in virtual time.
//!
//! - [`Gates`]: transmission gates and gate control lists with base time, cycle time, cycle time
//!   extension and configuration changes (IEEE 802.1Q-2022, clauses 8.6.8.4 and 8.6.9).
//! - [`Discipline`](discipline::Discipline): the order within one traffic class; first come first
//!   served, by launch time as Linux's etf, credit-based (clause 8.6.8.2).
//! - [`Port`]: eight classes, strict priority among open gates, the link's occupancy, counters.
//! - [`Schedule`]: what an operator states, its [forms](form), its mistakes ([`check`]), its
//!   [`summary`](mod@summary), whether declared streams fit it ([`admission`]), [differences](mod@diff) and [pictures](render).
//! - [`synthesis`]: the schedules and launch times that keep what streams require.
//!
//! Nothing here reads a clock, opens a socket or starts a thread: every instant is an argument. After
//! construction the transmit path neither allocates nor frees nor loops without a bound. The
//! packet scheduler of kubernetsn-icc2023 (section IV) and naaas-thesis-2024 (section 6.3.3).

#![forbid(unsafe_code)]

pub mod admission;
pub mod check;
mod classes;
pub mod diff;
pub mod discipline;
pub mod form;
pub mod gate;
pub mod link;
pub mod port;
pub mod render;
mod schedule;
pub mod selection;
pub mod summary;
pub mod synthesis;
pub mod window;

pub use check::check;
pub use classes::ClassTable;
pub use diff::diff;
pub use gate::{GateList, GateMask, Gates};
pub use link::{Framing, Link};
pub use port::{Decision, Item, Port, PortConfig};
pub use schedule::{GateEntry, GateOperation, Schedule};
pub use selection::Selection;
pub use summary::{PortModel, Summary, summary};
