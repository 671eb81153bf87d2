//! One side of a measurement, as a process of its own: run by `takt bench` inside a lab host.

use std::error::Error;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use takt::{Qos, Session};
use takt_bench::{application, awake};
use takt_embedded::{Embedded, Settings};

/// What to do.
#[derive(Clone, Copy, ValueEnum)]
enum Role {
    /// Send and wait for the echo.
    Ping,
    /// Echo.
    Pong,
    /// Send at full speed.
    Source,
    /// Count.
    Sink,
}

/// The benchmarking application of section 7.2.2.
#[derive(Parser)]
struct Options {
    role: Role,
    /// Run the runtime inside (settings from TAKT_ADDRESS, TAKT_PORT, TAKT_PEERS, TAKT_INTERFACE).
    #[arg(long)]
    embedded: bool,
    /// Ask for acceleration.
    #[arg(long)]
    fast: bool,
    /// Allow cores to be spent.
    #[arg(long)]
    unlimited: bool,
    /// Payload bytes.
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Round trips.
    #[arg(long, default_value_t = 100_000)]
    count: usize,
    /// Seconds to send.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Core to stay on.
    #[arg(long)]
    core: Option<usize>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    if let Some(core) = options.core {
        awake::pin_to(core)?;
    }
    let mut qos = if options.fast {
        Qos::fast()
    } else {
        Qos::slow()
    };
    if options.unlimited {
        qos = qos.unlimited();
    }
    let embedded = match options.embedded {
        true => Some(Embedded::start(Settings {
            core: options.core,
            ..Settings::from_environment()?
        })?),
        false => None,
    };
    let session = match &embedded {
        Some(node) => node.session("bench")?,
        None => Session::builder().name("bench").open()?,
    };
    let output = match options.role {
        Role::Ping => serde_json::to_string(&application::ping(
            &session,
            qos,
            options.size,
            options.count,
        )?)?,
        Role::Pong => serde_json::to_string(&application::pong(&session, qos)?)?,
        Role::Source => {
            let time = Duration::try_from_secs_f64(options.seconds)?;
            serde_json::to_string(&application::source(&session, qos, options.size, time)?)?
        }
        Role::Sink => serde_json::to_string(&application::sink(&session, qos)?)?,
    };
    println!("{output}");
    Ok(())
}
