//! `takt demo`: the experiment that Takt is for, in two minutes.

use std::path::PathBuf;

use clap::Args;

use crate::bench::{BenchError, Common, Isochronous};
use crate::failure::Failure;

/// An isochronous talker over Takt's overlay beside bare metal and Flannel's way, in two minutes
///
/// Two hosts on this machine, containers on each behind a bridge and a VXLAN. The talker of
/// kubernetsn-icc2023 sends a datagram in every millisecond: over bare sockets, over the kernel's overlay,
/// and unchanged under the preload over Takt's; each alone and beside a flow that offers 120 % of the link.
/// Prints latency, jitter and departure error, and writes a page with plots. Needs root.
#[derive(Debug, Args)]
pub struct Demo {
    /// The paper's lengths: half an hour
    #[arg(long)]
    full: bool,
    /// Folder for the report; without it ./out/bench-isochronous-<date>
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the report as JSON instead of tables
    #[arg(long)]
    json: bool,
}

impl Demo {
    /// Measures, prints the tables, says where the report is.
    pub fn run(self) -> Result<(), Failure> {
        let common = Common::brief(2, self.out, self.json);
        Isochronous::brief(self.full, common)
            .run()
            .map_err(BenchError::into)
    }
}
