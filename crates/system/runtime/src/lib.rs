//! The system layer: one runtime per node serves many applications, or one inside its own process.
//!
//! | module | subject |
//! |---|---|
//! | [`config`], [`policy`] | what a runtime is told; rights of tenants; mapping of streams to datapaths |
//! | `lane` | the data path: polling threads that share nothing |
//! | [`control`] | the control thread: sessions, listeners, peers, administration |
//! | [`peering`] | which runtimes are there and what they want; pure |
//! | [`ids`] | numbers that cross the edges between them |
//! | [`status`], [`counters`], [`delays`], [`capture`] | what operators see |
//!
//! It knows datapaths by their contract only, and no application's data model. Nothing in it assumes
//! whether it runs as a daemon or inside an application (architecture, section 1).

#![forbid(unsafe_code)]

pub mod capture;
pub mod config;
pub mod control;
pub mod counters;
pub mod delays;
pub mod ids;
#[cfg(fuzzing)]
#[allow(missing_docs)] // for fuzz targets alone
pub mod lane;
#[cfg(not(fuzzing))]
mod lane;
pub mod peering;
pub mod policing;
pub mod policy;
#[cfg(fuzzing)]
#[allow(missing_docs)] // as above
pub mod slots;
#[cfg(not(fuzzing))]
mod slots;
pub mod status;
mod waking;

pub use config::Config;
pub use control::{InlineLane, Runtime, RuntimeHandle, StartError, Unavailable};
