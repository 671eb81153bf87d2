//! `takt demo`: what Takt is for, seen in two minutes.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::bench::{BenchError, Common, Isochronous, Roam};
use crate::failure::Failure;

/// An isochronous talker with Takt beside bare metal and Flannel, in two minutes
///
/// Two hosts on this machine with containers in a Flannel network: a bridge, a routed subnet and a VXLAN on each. The
/// talker of kubernetsn-icc2023 sends a datagram in every millisecond: on bare metal and over Flannel, sleeping and
/// spinning; on bare metal with strict priority; over both with the kernel's own etf and taprio, where there are any; and
/// unchanged from a container under Takt's preload and an IEEE 802.1Qbv schedule; each alone and beside a flow that offers
/// 120 % of the link. Prints one table of what reached the listener and one of what left, captured at the other end of the
/// cable, and writes a page with plots. Needs root.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Demo {
    #[command(subcommand)]
    other: Option<Other>,
    /// The paper's lengths: half an hour
    #[arg(long)]
    full: bool,
    /// Folder for the report; without it ./out/bench-isochronous-<date>
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the report as JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Print the method, every table and every finding
    #[arg(long, short)]
    verbose: bool,
}

/// What else can be seen.
#[derive(Debug, Subcommand)]
enum Other {
    Roam(Roam),
}

impl Demo {
    /// Measures, prints the tables, says where the report is.
    pub fn run(self) -> Result<(), Failure> {
        match self.other {
            Some(Other::Roam(roam)) => roam.run(),
            None => {
                let common = Common::brief(2, self.out, self.json, !self.verbose);
                Isochronous::brief(self.full, common).run()
            }
        }
        .map_err(BenchError::into)
    }
}
