//! `takt bench`: Takt beside its peers, between two lab hosts and within one.
//!
//! Each measurement is a set of experiments of `takt-bench`; what they share (machine, rounds, report)
//! is in [`common`]. What the figures mean: `docs/how-to/benchmark.md`.

use clap::{Args, Subcommand};

use crate::failure::Failure;

mod common;
mod critical;
mod departure;
mod isochronous;
mod latency;
mod local;
mod reservations;
mod roam;
mod sends;
mod sinks;
mod tenants;
mod throughput;
mod topics;

pub use common::{BenchError, Common, Measurement, TwoCores, hosts, seconds};
pub use isochronous::Isochronous;
pub use roam::Roam;

const HELP: &str = "\
Every variant runs once a round, in turns; figures are medians over the rounds. Tables go to
standard output, progress to standard error, a report with plots and every sample to ./out. Other
messaging systems are measured as well once `make bench` has built their program.

Examples:
  sudo takt bench latency
  sudo takt bench latency --size 1024 --only udp,fast
  sudo takt bench throughput --sizes 64,1024 --seconds 5
  takt bench sinks --json";

/// Measures Takt beside its peers
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A datagram in every period from a talker to a listener, alone and beside best effort
    Isochronous(Isochronous),
    /// Round trips between two hosts, with cores that may halt and with cores kept awake
    Latency(latency::Latency),
    /// One-way streams between two hosts, as fast as they go
    Throughput(throughput::Throughput),
    /// Round trips and streams by topic, beside Cyclone DDS, ZeroMQ, zenoh and Aeron
    Topics(topics::Topics),
    /// A reliable flow at a steady rate beside saturating and bursty traffic, beside Cyclone DDS
    Critical(critical::CriticalFlow),
    /// How exactly messages leave at their launch times, beside a bare loop
    Departure(departure::Departure),
    /// When messages of two tenants leave beside a hostile third
    Tenants(tenants::Tenants),
    /// How long a program's send takes, by the kernel and by Takt, alone and beside busy neighbours
    Sends(sends::Sends),
    /// Delivery within one host, beside iceoryx2, and what the hop over a daemon's lane costs
    Local(local::Local),
    /// What a message costs the runtime, by the number of local sinks
    Sinks(sinks::Sinks),
    /// Random task sets with and without CPU reservations, beside CPU hogs
    Reservations(reservations::Reservations),
}

impl Bench {
    /// Measures, prints tables, writes the report.
    pub fn run(self) -> Result<(), Failure> {
        match self.what {
            What::Isochronous(isochronous) => isochronous.run(),
            What::Latency(latency) => latency.run(),
            What::Throughput(throughput) => throughput.run(),
            What::Topics(topics) => topics.run(),
            What::Critical(critical) => critical.run(),
            What::Departure(departure) => departure.run(),
            What::Tenants(tenants) => tenants.run(),
            What::Sends(sends) => sends.run(),
            What::Local(local) => local.run(),
            What::Sinks(sinks) => sinks.run(),
            What::Reservations(reservations) => reservations.run(),
        }
        .map_err(BenchError::into)
    }
}

/// One program of the isochronous experiment, in a process that `takt bench` starts
#[derive(Debug, Args)]
pub struct SocketProgram {
    #[command(flatten)]
    program: takt_bench::isochronous::Program,
}

impl SocketProgram {
    /// Does its part, prints what it gave.
    pub fn run(self) -> Result<(), Failure> {
        self.program
            .run()
            .map_err(|error| Failure::Other(error.to_string()))
    }
}

/// One side of a measurement, in a process that `takt bench` starts
#[derive(Debug, Args)]
pub struct Application {
    #[command(flatten)]
    options: takt_bench::takt::app::Options,
}

impl Application {
    /// Plays the role, prints what it gave.
    pub fn run(self) -> Result<(), Failure> {
        takt_bench::takt::app::run(&self.options).map_err(|error| Failure::Other(error.to_string()))
    }
}
