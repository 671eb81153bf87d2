//! The talker: an ordinary program with a UDP socket, which knows nothing of Takt.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::run::WARM_UP;
use super::sys::{self, Scheduling, SockTxTime, now_ns, sleep_until};
use crate::statistics::Latencies;

/// Bytes of a payload that mean something: sequence number and launch time.
pub const LEAST_SIZE: usize = 12;
/// The talker's real-time priority: above the lane's, whose work it makes.
pub(super) const PRIORITY: i32 = 60;
/// The traffic class that the experiment asks of the network.
pub const CLASS: u8 = 6;
/// How long ahead of the first datagram everything is ready.
const PAUSE_NS: i64 = 100_000_000;

/// How instants are met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Sleep until the instant, then send
    Sleep,
    /// Sleep until shortly before the instant, spin until it, then send
    Spin,
    /// Send half a period ahead, with a launch time
    Launch,
}

/// How long before an instant a talker wakes that spins: longer than a wake-up takes.
const SPIN_NS: i64 = 250_000;

/// What the talker is told.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The listener
    #[arg(long)]
    pub to: SocketAddr,
    /// Bytes of each payload, 12 at least
    #[arg(long, default_value_t = 64)]
    pub size: usize,
    /// Microseconds between two datagrams
    #[arg(long, default_value_t = 1000)]
    pub period_us: u32,
    /// Microseconds from the beginning of a period to its datagram
    #[arg(long, default_value_t = 0)]
    pub phase_us: u32,
    /// Datagrams
    #[arg(long)]
    pub count: u32,
    /// How instants are met
    #[arg(long, value_enum)]
    pub mode: Mode,
    /// Microseconds by which the launch times that are named are later than those that are meant: as much as etf has a datagram
    /// leave ahead
    #[arg(long, default_value_t = 0)]
    pub later_us: u32,
    /// Traffic class to ask of the network, and its class selector as DSCP (RFC 2474)
    #[arg(long, default_value_t = CLASS, value_parser = clap::value_parser!(u8).range(0..8))]
    pub class: u8,
    #[command(flatten)]
    scheduling: Scheduling,
}

/// What it saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sent {
    /// Datagrams sent.
    pub sent: u32,
    /// How far from its launch time each left, as its software time stamp says: absolute.
    pub departure: Latencies,
    /// Datagrams whose error queue says that they were not sent: late.
    pub missed: u32,
    /// How long each call took that sends, after the first [`WARM_UP`].
    #[serde(default)]
    pub calls: Latencies,
}

/// Sends.
///
/// # Errors
/// The kernel's.
pub fn run(options: &Options) -> io::Result<Sent> {
    options.scheduling.enter(PRIORITY)?;
    let local: SocketAddr = match options.to {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(local)?;
    socket.connect(options.to)?;
    // In this order: the kernel takes a priority from the type of service, and another one than this.
    let class = i32::from(options.class);
    sys::set(&socket, libc::IPPROTO_IP, libc::IP_TOS, &(class << 5))?;
    sys::set(&socket, libc::SOL_SOCKET, libc::SO_PRIORITY, &class)?;
    let stamps = libc::SOF_TIMESTAMPING_TX_SOFTWARE
        | libc::SOF_TIMESTAMPING_SOFTWARE
        | libc::SOF_TIMESTAMPING_OPT_ID
        | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    sys::set(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &stamps)?;
    if options.mode == Mode::Launch {
        let how = SockTxTime {
            clockid: libc::CLOCK_TAI,
            flags: sys::REPORT_ERRORS,
        };
        sys::set(&socket, libc::SOL_SOCKET, libc::SO_TXTIME, &how)?;
    }
    let period = i64::from(options.period_us) * 1000;
    let ahead = match options.mode {
        Mode::Sleep => 0,
        Mode::Spin => SPIN_NS.min(period / 2),
        Mode::Launch => period / 2,
    };
    let offset = sys::tai_offset_ns();
    let later = i64::from(options.later_us) * 1000;
    let phase = i64::from(options.phase_us) * 1000;
    let start = (now_ns(libc::CLOCK_TAI) + PAUSE_NS).div_euclid(period) * period + phase;
    let mut payload = vec![0; options.size.max(LEAST_SIZE)];
    let mut account = Sent::default();
    let collect = |account: &mut Sent| {
        while let Ok(received) =
            sys::receive(&socket, &mut [], libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)
        {
            match received.error {
                Some((libc::SO_EE_ORIGIN_TIMESTAMPING, number)) => {
                    if let Some(stamp) = received.stamp_ns {
                        let launch = start + i64::from(number) * period;
                        let error = (stamp + offset).abs_diff(launch);
                        account.departure.record_ns(error);
                    }
                }
                Some(_) => account.missed += 1,
                None => {}
            }
        }
    };
    for number in 0..options.count {
        let launch = start + i64::from(number) * period;
        payload[..4].copy_from_slice(&number.to_le_bytes());
        payload[4..12].copy_from_slice(&launch.to_le_bytes());
        sleep_until(launch - ahead);
        if options.mode == Mode::Spin {
            while now_ns(libc::CLOCK_TAI) < launch {
                std::hint::spin_loop();
            }
        }
        let time = ((launch + later) as u64).to_ne_bytes();
        let control = (libc::SOL_SOCKET, libc::SCM_TXTIME, &time[..]);
        let control = (options.mode == Mode::Launch).then_some(control);
        let begun = now_ns(libc::CLOCK_MONOTONIC);
        let sent = sys::send(&socket, &payload, control);
        let taken = now_ns(libc::CLOCK_MONOTONIC) - begun;
        if number >= WARM_UP {
            account.calls.record_ns(taken.unsigned_abs());
        }
        match sent {
            Ok(_) => account.sent += 1,
            // The listener's end of an earlier run, or a full queue: the next one is due all the same.
            Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => {}
            Err(error) => return Err(error),
        }
        collect(&mut account);
    }
    sleep_until(start + i64::from(options.count) * period + PAUSE_NS);
    collect(&mut account);
    Ok(account)
}
