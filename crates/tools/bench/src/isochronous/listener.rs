//! The listener: an ordinary program that waits in blocking calls and takes the time.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::sys::{self, Scheduling, now_ns};
use super::talker::LEAST_SIZE;
use crate::statistics::Latencies;

/// The listener's real-time priority: above all others, so that it takes the time at once.
pub(super) const PRIORITY: i32 = 70;
/// Nothing more comes after this.
const SILENCE: Duration = Duration::from_secs(1);

/// What the listener is told.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Where to listen
    #[arg(long)]
    pub at: SocketAddr,
    /// Microseconds between two datagrams
    #[arg(long, default_value_t = 1000)]
    pub period_us: u32,
    /// Datagrams to await
    #[arg(long)]
    pub count: u32,
    /// Of them, how many are for warming up and not measured
    #[arg(long, default_value_t = 0)]
    pub warm_up: u32,
    /// Seconds until nothing comes at all
    #[arg(long, default_value_t = 10)]
    pub wait_seconds: u32,
    #[command(flatten)]
    scheduling: Scheduling,
}

/// What it saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Heard {
    /// Datagrams that came.
    pub received: u32,
    /// From the launch time to the return of the receiving call.
    pub latency: Latencies,
    /// Absolute jitter of that.
    pub jitter: Latencies,
    /// From the launch time to the kernel's time stamp in the listener's host: without its wake-up.
    pub arrival: Latencies,
    /// Absolute jitter of that.
    pub arrival_jitter: Latencies,
    /// Datagrams that came before their launch time.
    pub early: u32,
}

/// The instants of the datagram before: the kernel's and ours, and its number.
type Before = (u32, Option<i64>, i64);

/// Receives.
///
/// # Errors
/// The kernel's.
pub fn run(options: &Options) -> io::Result<Heard> {
    options.scheduling.enter(PRIORITY)?;
    let socket = UdpSocket::bind(options.at)?;
    sys::set(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1i32)?;
    socket.set_read_timeout(Some(Duration::from_secs(
        options.wait_seconds.max(1).into(),
    )))?;
    let offset = sys::tai_offset_ns();
    let period = i64::from(options.period_us) * 1000;
    let mut heard = Heard::default();
    let mut before: Option<Before> = None;
    let mut payload = [0; 2048];
    loop {
        let received = match sys::receive(&socket, &mut payload, 0) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(heard),
            Err(error) => return Err(error),
        };
        let now = now_ns(libc::CLOCK_TAI);
        if heard.received == 0 {
            socket.set_read_timeout(Some(SILENCE))?;
        }
        let Some(head) = payload[..received.length].first_chunk::<LEAST_SIZE>() else {
            continue;
        };
        let [a, b, c, d, launch @ ..] = *head;
        let (number, launch) = (u32::from_le_bytes([a, b, c, d]), i64::from_le_bytes(launch));
        let arrived = received.stamp_ns.map(|stamp| stamp + offset);
        heard.received += 1;
        if number >= options.warm_up {
            let nanos = |value: i64| value.max(0) as u64;
            heard.early += u32::from(now < launch);
            heard.latency.record_ns(nanos(now - launch));
            if let Some(arrived) = arrived {
                heard.arrival.record_ns(nanos(arrived - launch));
            }
            if let Some((last, last_arrived, last_now)) = before
                && last + 1 == number
            {
                heard.jitter.record_ns((now - last_now).abs_diff(period));
                if let (Some(arrived), Some(last)) = (arrived, last_arrived) {
                    heard
                        .arrival_jitter
                        .record_ns((arrived - last).abs_diff(period));
                }
            }
        }
        before = Some((number, arrived, now));
        if number + 1 >= options.count {
            return Ok(heard);
        }
    }
}
