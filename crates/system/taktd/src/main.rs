//! The Takt node daemon.

use std::process::ExitCode;

use clap::Parser;
use taktd::daemon::{self, Options};

/// The daemon of a Takt node: applications attach to it by its sockets, and it carries their messages.
#[derive(Parser)]
#[command(name = "taktd", version, after_help = daemon::HELP)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Check the configuration, print what would run, and exit
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = if arguments.check {
        daemon::check(&arguments.options).map(|outline| print!("{outline}"))
    } else {
        daemon::run(&arguments.options)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("taktd: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
