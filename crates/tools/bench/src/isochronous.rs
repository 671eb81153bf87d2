//! The experiment of kubernetsn-icc2023 (figures 3 and 4): a talker sends a datagram in every period, a
//! listener takes the time that it comes.
//!
//! The talker is an ordinary program with a UDP socket. It either sleeps until each instant and sends, or
//! hands each datagram over ahead with its launch time (`SO_TXTIME`), which is what Takt's preload takes up.
//! **End-to-end latency** is the instant of reception minus the requested launch time; **jitter** is
//! `t(i) - (t(i-1) + T)`. All of the talker's and listener's work is on one core under a real-time class, all
//! best-effort traffic on another.

pub mod listener;
pub mod load;
pub mod run;
pub mod sends;
pub(crate) mod sys;
pub mod talker;
pub mod tenants;

use clap::{Args, Subcommand};

/// One program of the experiment, which runs in a host or a container.
#[derive(Clone, Debug, Args)]
pub struct Program {
    #[command(subcommand)]
    role: Role,
}

#[derive(Clone, Debug, Subcommand)]
enum Role {
    /// Send a datagram in every period
    Talker(talker::Options),
    /// Take the time of each datagram
    Listener(listener::Options),
    /// Send best effort at a rate
    Flood(load::FloodOptions),
    /// Receive best effort
    Drain(load::DrainOptions),
    /// Flood with launch times that make no sense
    Hostile(tenants::HostileOptions),
}

impl Program {
    /// Does its part, and prints what it gave as a line of JSON.
    ///
    /// # Errors
    /// The kernel's.
    pub fn run(&self) -> std::io::Result<()> {
        let line = match &self.role {
            Role::Talker(options) => serde_json::to_string(&talker::run(options)?),
            Role::Listener(options) => serde_json::to_string(&listener::run(options)?),
            Role::Flood(options) => serde_json::to_string(&load::flood(options)?),
            Role::Drain(options) => serde_json::to_string(&load::drain(options)?),
            Role::Hostile(options) => serde_json::to_string(&tenants::hostile(options)?),
        };
        println!("{}", line?);
        Ok(())
    }
}
