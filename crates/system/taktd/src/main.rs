//! The Takt node daemon.

use std::process::ExitCode;

use clap::Parser;
use taktd::daemon::{self, Arguments};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = if arguments.check {
        daemon::check(&arguments.options).map(|outline| print!("{outline}"))
    } else {
        daemon::run(&arguments.options, arguments.watchdog)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("taktd: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
