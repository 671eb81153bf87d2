//! Other messaging systems as peers of `takt bench`: each subcommand is one side of a measurement.
//!
//! A side that waits for the other (`-sub`, `-pong`) prints `{"ready":true}` once it can be reached.
//! Every side prints one line of JSON when it is done: a sample as `takt-bench` reads it, with the
//! percentiles of its latencies beside them for people. Messages go to standard error.
//!
//! A workspace of its own, because these systems bring hundreds of crates that Takt does not need.

mod over_aeron;
mod over_cyclone;
mod over_iceoryx2;
mod over_zenoh;
mod over_zmq;
mod side;
#[path = "../../crates/tools/bench/src/pace.rs"]
mod pace;
// One format for both workspaces, without the dependencies that the bench has.
#[allow(dead_code, reason = "the bench uses the rest")]
#[path = "../../crates/tools/bench/src/statistics.rs"]
mod statistics;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::side::Failure;

/// One side of a measurement of another messaging system.
#[derive(Parser)]
#[command(version)]
struct Command {
    #[command(subcommand)]
    side: Side,
}

#[derive(Subcommand)]
enum Side {
    /// Publish through zenoh as fast as it takes messages
    ZenohPub(Publish),
    /// Count what arrives through zenoh
    ZenohSub(Common),
    /// Measure round trips through zenoh
    ZenohPing(Ping),
    /// Echo through zenoh
    ZenohPong(Common),
    /// Publish through ZeroMQ (PUB) as fast as it takes messages
    ZmqPub(Publish),
    /// Count what arrives through ZeroMQ (SUB)
    ZmqSub(Common),
    /// Measure round trips through ZeroMQ (REQ)
    ZmqPing(Ping),
    /// Echo through ZeroMQ (REP)
    ZmqPong(Common),
    /// Publish through Aeron as fast as it takes messages
    AeronPub(Publish),
    /// Count what arrives through Aeron, polling
    AeronSub(Common),
    /// Measure round trips through Aeron, polling
    AeronPing(Ping),
    /// Echo through Aeron, polling
    AeronPong(Common),
    /// Publish through Cyclone DDS as fast as it takes messages
    CyclonePub(Publish),
    /// Count what arrives through Cyclone DDS
    CycloneSub(Common),
    /// Measure round trips through Cyclone DDS
    CyclonePing(Ping),
    /// Echo through Cyclone DDS
    CyclonePong(Common),
    /// Publish through iceoryx2 as fast as it takes messages
    Iceoryx2Pub(Publish),
    /// Count what arrives through iceoryx2, polling
    Iceoryx2Sub(Common),
    /// Measure round trips through iceoryx2, polling
    Iceoryx2Ping(Ping),
    /// Echo through iceoryx2, polling, and measure the way there
    Iceoryx2Pong(Common),
}

/// What every side needs.
#[derive(Args)]
struct Common {
    /// Address and port of the far side (iceoryx2: a name that both sides share; Cyclone DDS finds it by itself)
    #[arg(long)]
    address: String,
    /// The core to run on
    #[arg(long)]
    core: usize,
    /// Octets of each message
    #[arg(long, value_parser = clap::value_parser!(u32).range(i64::from(side::LEAST_PAYLOAD)..))]
    payload: u32,
    /// By what name (Cyclone DDS)
    #[arg(long, default_value = "takt_bench_stream")]
    topic: String,
    /// What has the choice (Cyclone DDS) loses messages rather than to send them again
    #[arg(long)]
    best_effort: bool,
}

#[derive(Args)]
struct Publish {
    #[command(flatten)]
    common: Common,
    /// How long to publish, in milliseconds
    #[arg(long)]
    duration_ms: u64,
    /// Messages a second, rather than as fast as they go (Cyclone DDS)
    #[arg(long)]
    rate: Option<f64>,
    /// Pause for 2 s, publish for 1 s, and so on (Cyclone DDS)
    #[arg(long, conflicts_with = "rate")]
    bursts: bool,
}

#[derive(Args)]
struct Ping {
    #[command(flatten)]
    common: Common,
    /// Round trips before measuring begins
    #[arg(long)]
    warm_up: u32,
    /// Round trips to measure
    #[arg(long)]
    count: u32,
}

impl Side {
    fn common(&self) -> &Common {
        match self {
            Self::ZenohPub(publish)
            | Self::ZmqPub(publish)
            | Self::CyclonePub(publish)
            | Self::AeronPub(publish)
            | Self::Iceoryx2Pub(publish) => &publish.common,
            Self::ZenohPing(ping)
            | Self::ZmqPing(ping)
            | Self::CyclonePing(ping)
            | Self::AeronPing(ping)
            | Self::Iceoryx2Ping(ping) => &ping.common,
            Self::ZenohSub(far)
            | Self::ZenohPong(far)
            | Self::ZmqSub(far)
            | Self::ZmqPong(far)
            | Self::CycloneSub(far)
            | Self::AeronSub(far)
            | Self::AeronPong(far)
            | Self::CyclonePong(far)
            | Self::Iceoryx2Sub(far)
            | Self::Iceoryx2Pong(far) => far,
        }
    }

    fn run(&self) -> Result<(), Failure> {
        // Before any thread is started, so that all of them inherit it.
        side::pin_to(self.common().core)?;
        let reliable = !self.common().best_effort;
        match self {
            Self::ZenohPub(publish) => over_zenoh::publish(publish),
            Self::ZenohSub(far) => over_zenoh::subscribe(far),
            Self::ZenohPing(ping) => over_zenoh::ping(ping),
            Self::ZenohPong(far) => over_zenoh::pong(far),
            Self::ZmqPub(publish) => over_zmq::publish(publish),
            Self::ZmqSub(far) => over_zmq::subscribe(far),
            Self::ZmqPing(ping) => over_zmq::ping(ping),
            Self::ZmqPong(far) => over_zmq::pong(far),
            Self::AeronPub(publish) => over_aeron::publish(publish),
            Self::AeronSub(far) => over_aeron::subscribe(far),
            Self::AeronPing(ping) => over_aeron::ping(ping),
            Self::AeronPong(far) => over_aeron::pong(far),
            Self::CyclonePub(publish) => over_cyclone::publish(publish, reliable),
            Self::CycloneSub(far) => over_cyclone::subscribe(far, reliable),
            Self::CyclonePing(ping) => over_cyclone::ping(ping, reliable),
            Self::CyclonePong(far) => over_cyclone::pong(far, reliable),
            Self::Iceoryx2Pub(publish) => over_iceoryx2::publish(publish),
            Self::Iceoryx2Sub(far) => over_iceoryx2::subscribe(far),
            Self::Iceoryx2Ping(ping) => over_iceoryx2::ping(ping),
            Self::Iceoryx2Pong(far) => over_iceoryx2::pong(far),
        }
    }
}

fn main() -> ExitCode {
    match Command::parse().side.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("takt-bench-peers: {failure}");
            ExitCode::FAILURE
        }
    }
}
