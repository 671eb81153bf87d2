//! The node daemon: a runtime, the datapaths of this node, configuration, administration.
//!
//! | module | subject |
//! |---|---|
//! | [`admin`] | the admin API: server and client |
//! | [`config`] | one TOML file, read strictly |
//! | [`datapaths`] | which technologies this node has |
//! | `clock` | looks at the clock, and says when something is wrong with it |
//! | [`daemon`] | from the command line to the exit code |
//! | [`node`] | a running runtime with what it was configured from; reload |
//! | [`metrics`] | a page for Prometheus |
//! | [`logging`] | log lines to standard error |
//!
//! A library because `takt run` is the same daemon. Not for the data path: that is the runtime's alone,
//! and nothing here is ever waited for by a lane (architecture, sections 1 and 6).

#![forbid(unsafe_code)]

pub mod admin;
mod clock;
pub mod config;
pub mod daemon;
pub mod datapaths;
mod kept;
pub mod logging;
pub mod metrics;
pub mod node;
pub mod other_traffic;
mod outline;
pub mod security;
