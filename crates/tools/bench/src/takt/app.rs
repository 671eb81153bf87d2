//! The processes of a measurement: what `takt bench-app` runs inside a lab host.

use std::error::Error;
use std::time::Duration;

use clap::{Args, ValueEnum};
use takt::{Qos, Session};
use takt_embedded::{Embedded, Settings};

use super::{control, critical, frames, local, parts, topics};
use crate::pace::Steady;
use crate::{application, awake};

/// What to do.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Role {
    /// Send and wait for the echo
    Ping,
    /// Echo
    Pong,
    /// Send at full speed
    Source,
    /// Count
    Sink,
    /// Send with the time, one message at a time
    Sender,
    /// Take the time that each message was under way, and acknowledge it
    Receiver,
    /// Send to oneself, with the time
    Loop,
    /// Send frames at full speed
    Camera,
    /// Take frames, and compare them with what was sent
    Viewer,
    /// Send a short message with the time in each millisecond
    Controller,
    /// Take the time that each of these was under way
    Controlled,
    /// Send reliable messages at a steady rate
    CriticalSource,
    /// Count them
    CriticalSink,
    /// Send a short message with the time in each millisecond, for the parts of its way
    PartsSource,
    /// Note the instants of these
    PartsSink,
    /// Send at full speed until it is ended, whether or not anybody takes it
    Load,
    /// Take that
    LoadSink,
}

/// The benchmarking application of naaas-thesis-2024, section 7.2.2.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Which side
    pub role: Role,
    /// Run the runtime inside (settings from TAKT_ADDRESS, TAKT_PORT, TAKT_PEERS, TAKT_INTERFACE)
    #[arg(long)]
    pub embedded: bool,
    /// Ask for acceleration
    #[arg(long)]
    pub fast: bool,
    /// Allow cores to be spent
    #[arg(long)]
    pub unlimited: bool,
    /// Messages are acknowledged, and sent again until they have arrived
    #[arg(long)]
    pub reliable: bool,
    /// By topic, not by channel (`ping`, `pong`, `source`, `sink`)
    #[arg(long)]
    pub topics: bool,
    /// Payload bytes
    #[arg(long, default_value_t = 64)]
    pub size: usize,
    /// Round trips
    #[arg(long, default_value_t = 100_000)]
    pub count: usize,
    /// Seconds to send
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Frames a second; without it as many as go (`camera`); messages a second (`critical-source`)
    #[arg(long)]
    pub rate: Option<f64>,
    /// Pause for 2 s, send for 1 s, and so on (`load`)
    #[arg(long)]
    pub bursts: bool,
    /// Spread each frame over its period (`camera`)
    #[arg(long, requires = "rate")]
    pub spread: bool,
    /// Core to stay on
    #[arg(long)]
    pub core: Option<usize>,
}

/// Plays the role and prints what it gave as one line of JSON.
///
/// # Errors
/// When there is no session, a stream falls back to less than it asked for, or the other side does not
/// answer.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
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
    if options.reliable {
        qos = qos.reliable();
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
    // What falls back would be measured under a wrong name.
    if let Some(warning) = session.stream(qos)?.warning() {
        return Err(warning.into());
    }
    let output = match options.role {
        Role::Ping if options.topics => {
            serde_json::to_string(&topics::ping(&session, qos, options.size, options.count)?)?
        }
        Role::Pong if options.topics => serde_json::to_string(&topics::pong(&session, qos)?)?,
        Role::Ping => serde_json::to_string(&application::ping(
            &session,
            qos,
            options.size,
            options.count,
        )?)?,
        Role::Pong => serde_json::to_string(&application::pong(&session, qos)?)?,
        Role::Source if options.topics => {
            let time = Duration::try_from_secs_f64(options.seconds)?;
            serde_json::to_string(&topics::source(&session, qos, options.size, time)?)?
        }
        Role::Sink if options.topics => serde_json::to_string(&topics::sink(&session, qos)?)?,
        Role::Source => {
            let time = Duration::try_from_secs_f64(options.seconds)?;
            serde_json::to_string(&application::source(&session, qos, options.size, time)?)?
        }
        Role::Sink => serde_json::to_string(&application::sink(&session, qos)?)?,
        Role::Sender => {
            serde_json::to_string(&local::send(&session, qos, options.size, options.count)?)?
        }
        Role::Receiver => serde_json::to_string(&local::receive(&session, qos)?)?,
        Role::Camera => {
            let time = Duration::try_from_secs_f64(options.seconds)?;
            let pace = match options.rate {
                Some(rate) => Some(frames::Pace {
                    period: Duration::try_from_secs_f64(1.0 / rate)?,
                    spread: options.spread,
                }),
                None => None,
            };
            let sent = frames::camera(session.clone(), qos, options.size, time, pace)?;
            serde_json::to_string(&sent)?
        }
        Role::Viewer => {
            serde_json::to_string(&frames::viewer(session.clone(), qos, options.size)?)?
        }
        Role::Controller => {
            let time = Duration::try_from_secs_f64(options.seconds)?;
            serde_json::to_string(&control::controller(&session, qos, time)?)?
        }
        Role::CriticalSource => {
            let pace = Steady {
                rate: options
                    .rate
                    .ok_or("a critical flow has a rate: say --rate")?,
                duration: Duration::try_from_secs_f64(options.seconds)?,
            };
            let sent = critical::send(&session, qos, options.size.max(8), pace)?;
            serde_json::to_string(&sent)?
        }
        Role::PartsSource => {
            serde_json::to_string(&parts::send(&session, qos, options.size, options.count)?)?
        }
        Role::PartsSink => serde_json::to_string(&parts::receive(&session, qos)?)?,
        Role::Load => match critical::load(&session, qos, options.size, options.bursts)? {},
        Role::LoadSink => match critical::take_load(&session, qos)? {},
        Role::CriticalSink => serde_json::to_string(&critical::count(&session, qos)?)?,
        Role::Controlled => serde_json::to_string(&control::controlled(&session, qos)?)?,
        Role::Loop => {
            serde_json::to_string(&local::around(&session, qos, options.size, options.count)?)?
        }
    };
    println!("{output}");
    Ok(())
}
