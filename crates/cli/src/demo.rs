//! `takt demo`: the latency comparison in under a minute, for a first impression.

use std::path::PathBuf;

use clap::Args;

use crate::bench::{BenchError, Common, Latency};
use crate::failure::Failure;

/// Compares latencies between two hosts on this machine, in under a minute
#[derive(Debug, Args)]
pub struct Demo {
    /// Folder for the report; without it ./out/bench-latency-<date>
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the report as JSON instead of tables
    #[arg(long)]
    json: bool,
}

impl Demo {
    /// Measures, prints the tables, says where the report is.
    pub fn run(self) -> Result<(), Failure> {
        let common = Common::brief(3, self.out, self.json);
        Latency::of(64, 5_000, common)
            .run()
            .map_err(BenchError::into)
    }
}
