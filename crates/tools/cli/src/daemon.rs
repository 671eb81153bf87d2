//! `takt run` and `takt check`: the daemon, as `taktd` is it.

use clap::Args;
use taktd::daemon::{self, Options, Watchdog};

use crate::failure::Failure;
use crate::output::print;

const RUN_HELP: &str = "\
The same daemon as `taktd`, for the terminal, containers and tests. Without a configuration it takes
applications at /run/takt/takt.sock and talks to peers from UDP port 7400.

Examples:
  takt run
  takt run --config takt.toml
  RUST_LOG=debug takt run";

/// Runs the daemon in the foreground until SIGINT or SIGTERM.
#[derive(Debug, Args)]
#[command(after_help = format!("{}\n\n{RUN_HELP}", daemon::HELP))]
pub struct Run {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    watchdog: Watchdog,
}

impl Run {
    pub fn run(self) -> Result<(), Failure> {
        Ok(daemon::run(&self.options, self.watchdog)?)
    }
}

const CHECK_HELP: &str = "\
Nothing is opened, probed or changed: a running daemon is not disturbed. The exit code is 0 if the
configuration is good, and 4 otherwise.

Examples:
  takt check
  takt check --config takt.toml && takt reload";

/// Checks a configuration and prints what would run with it.
#[derive(Debug, Args)]
#[command(after_help = CHECK_HELP)]
pub struct Check {
    #[command(flatten)]
    options: Options,
}

impl Check {
    pub fn run(self) -> Result<(), Failure> {
        print(&daemon::check(&self.options)?)
    }
}
