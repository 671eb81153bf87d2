//! What Takt is measured against: the kernel's UDP, bare AF_XDP, and other messaging systems.
//!
//! Each peer is a pair of threads (of processes for [`programs`]), one per host and core. The near one
//! sends and, for round trips, holds the clock; the far one echoes or counts. Nothing of Takt runs in
//! them, so that a defect of ours cannot flatter or hide in a baseline.

use std::any::Any;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use takt_lab::{Host, LabError};

use crate::awake::pin_to;
use crate::experiment::Sample;
use crate::pace::Steady;
use crate::statistics::{Latencies, Throughput};

pub mod gstreamer;
pub mod programs;
pub mod sendfile;
pub mod tcp;
pub mod udp;
pub mod udp_batch;
pub mod xdp;

/// The UDP port of both ends.
const PORT: u16 = 7710;
/// How long one answer may take before it counts as lost.
const ANSWER_PATIENCE: Duration = Duration::from_millis(500);
/// How many answers in a row may be lost before the far end counts as dead.
const MOST_LOST_IN_A_ROW: u32 = 10;
/// How long a receiver waits for stragglers once the sender has stopped.
const STRAGGLERS: Duration = Duration::from_millis(20);
/// A payload carries a sequence number, so it has this many octets at least.
const LEAST_PAYLOAD: usize = 8;

/// Two hosts, and the core each side is pinned to.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// The host that sends, and measures round trips.
    pub near: &'a Host,
    /// The host that echoes or counts.
    pub far: &'a Host,
    /// The core of the near side.
    pub near_core: usize,
    /// The core of the far side.
    pub far_core: usize,
}

/// A number of round trips, one at a time.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrips {
    /// Octets of each message, 8 at least.
    pub payload: usize,
    /// Round trips before measuring begins.
    pub warm_up: u32,
    /// Round trips to measure.
    pub count: u32,
}

/// A stream of messages as fast as they go, one way.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Octets of each message, 8 at least.
    pub payload: usize,
    /// Messages handed over at once, where a peer can.
    pub batch: usize,
    /// How long to send.
    pub duration: Duration,
}

/// A flow of reliable messages at a steady rate, all of which are waited for.
#[derive(Clone, Copy, Debug)]
pub struct Critical {
    /// Octets of each message, 16 at least.
    pub payload: usize,
    /// When they are sent.
    pub pace: Steady,
}

/// What goes from the same host to the same host beside it, best effort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Nothing.
    Nothing,
    /// Messages as fast as they go.
    Saturating,
    /// The same for 1 s after a pause of 2 s, and so on.
    Bursts,
}

impl Beside {
    /// Octets of its messages.
    pub const PAYLOAD: usize = 1024;
}

/// The figure that says how many seconds it took until all messages of a critical flow were there.
pub const COMPLETION: &str = "completed after s";
/// The figure that says what came to the host meanwhile in all, by the kernel's count.
pub const LINK: &str = "link Mbit/s";

/// What comes to a host by its link, by the kernel's count.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    host: &'a Host,
    since: Instant,
    octets: u64,
}

impl<'a> Incoming<'a> {
    /// From now on.
    pub(crate) fn begin(host: &'a Host) -> Result<Self, PeerError> {
        Ok(Self {
            host,
            since: Instant::now(),
            octets: octets_received(host)?,
        })
    }

    /// In 10⁶ bit/s until now.
    pub(crate) fn megabits_per_second(&self) -> Result<f64, PeerError> {
        let octets = octets_received(self.host)?.saturating_sub(self.octets);
        Ok(8.0 * octets as f64 / self.since.elapsed().as_secs_f64() / 1e6)
    }
}

/// The column of received octets of proc_pid_net(5), `dev`.
fn octets_received(host: &Host) -> Result<u64, PeerError> {
    const FILE: &str = "/proc/thread-self/net/dev";
    let inside = host.enter()?;
    let text = std::fs::read_to_string(FILE).map_err(PeerError::io(format!("read {FILE}")))?;
    drop(inside);
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(name, _)| name.trim() == host.interface());
    let octets = found.and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    octets.ok_or_else(|| {
        PeerError::io(format!("find {} in {FILE}", host.interface()))(
            io::ErrorKind::NotFound.into(),
        )
    })
}

/// Why a peer could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// A host could not be entered.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was being done.
        action: String,
        /// The reason.
        source: io::Error,
    },
    /// A payload that does not fit.
    #[error("cannot send {payload} octets by {peer}: use {least} to {most}")]
    Payload {
        /// The peer's name.
        peer: &'static str,
        /// The size at fault.
        payload: usize,
        /// The least that is possible.
        least: usize,
        /// The most that is possible.
        most: usize,
    },
    /// A batch that is none.
    #[error("cannot send batches of {0} messages: use 1 to 1024")]
    Batch(usize),
    /// The far end does not answer.
    #[error("no answer from the far end to {lost} messages in a row; is the link up?")]
    Silent {
        /// How many were lost.
        lost: u32,
    },
    /// One side panicked.
    #[error("the {side} side of the peer broke down: {reason}")]
    Panic {
        /// "near" or "far".
        side: &'static str,
        /// What it said.
        reason: String,
    },
    /// A side of another messaging system failed.
    #[error("cannot measure with {command}: {reason}")]
    Program {
        /// Its command line.
        command: String,
        /// What happened.
        reason: String,
    },
}

impl PeerError {
    fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }
}

fn check_payload(peer: &'static str, payload: usize, most: usize) -> Result<(), PeerError> {
    if (LEAST_PAYLOAD..=most).contains(&payload) {
        return Ok(());
    }
    Err(PeerError::Payload {
        peer,
        payload,
        least: LEAST_PAYLOAD,
        most,
    })
}

/// Runs the two sides on their cores. The far side gets a flag that is set once the near side is done.
fn run_both<N: Send, F: Send>(
    pair: &Pair<'_>,
    near: impl FnOnce() -> Result<N, PeerError> + Send,
    far: impl FnOnce(&AtomicBool) -> Result<F, PeerError> + Send,
) -> Result<(N, F), PeerError> {
    /// Sets the flag however the near side ends, so that the far side never runs on alone.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            // Release: pairs with the far side's acquire load in `is_set`.
            self.0.store(true, Ordering::Release);
        }
    }
    let pin =
        |core: usize| pin_to(core).map_err(PeerError::io(format!("pin a thread to core {core}")));
    let done = AtomicBool::new(false);
    let (near, far) = std::thread::scope(|scope| {
        let far = scope.spawn(|| pin(pair.far_core).and_then(|()| far(&done)));
        let near = scope.spawn(|| {
            let _done = Done(&done);
            pin(pair.near_core).and_then(|()| near())
        });
        (near.join(), far.join())
    });
    // If both failed, the far side's reason is the better one: the near side only missed it.
    let far = far.unwrap_or_else(|panic| Err(broke_down("far", panic)))?;
    let near = near.unwrap_or_else(|panic| Err(broke_down("near", panic)))?;
    Ok((near, far))
}

fn broke_down(side: &'static str, panic: Box<dyn Any + Send>) -> PeerError {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    PeerError::Panic {
        side,
        reason: text.unwrap_or_else(|| "no reason given".to_owned()),
    }
}

/// Whether the near side is done.
fn is_set(done: &AtomicBool) -> bool {
    // Acquire: pairs with the release store in `Done::drop`.
    done.load(Ordering::Acquire)
}

/// Times `round_trip`, which gets a sequence number and says whether the answer came.
fn measure_round_trips(
    options: &RoundTrips,
    mut round_trip: impl FnMut(u64) -> Result<bool, PeerError>,
) -> Result<Sample, PeerError> {
    let mut latencies = Latencies::new();
    let mut lost = 0_u32;
    let mut lost_in_a_row = 0;
    let all = u64::from(options.warm_up) + u64::from(options.count);
    for sequence in 0..all {
        let start = Instant::now();
        if round_trip(sequence)? {
            lost_in_a_row = 0;
            if sequence >= u64::from(options.warm_up) {
                latencies.record(start.elapsed());
            }
        } else {
            lost += 1;
            lost_in_a_row += 1;
            if lost_in_a_row == MOST_LOST_IN_A_ROW {
                return Err(PeerError::Silent {
                    lost: lost_in_a_row,
                });
            }
        }
    }
    let mut sample = Sample::from(latencies);
    sample
        .figures
        .insert("answers lost".to_owned(), f64::from(lost));
    Ok(sample)
}

/// What a receiver saw, before it is known what was sent.
#[derive(Debug)]
struct Received {
    messages: u64,
    bytes: u64,
    elapsed: Duration,
}

impl Received {
    fn of(self, sent: u64) -> Throughput {
        Throughput {
            messages: self.messages,
            bytes: self.bytes,
            lost: sent.saturating_sub(self.messages),
            nanoseconds: u64::try_from(self.elapsed.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// Counts what `receive` gets (messages and octets) until the sender is done and no stragglers come.
fn count_received(
    done: &AtomicBool,
    mut receive: impl FnMut() -> Result<(u64, u64), PeerError>,
) -> Result<Received, PeerError> {
    let mut received = Received {
        messages: 0,
        bytes: 0,
        elapsed: Duration::ZERO,
    };
    let mut first: Option<Instant> = None;
    let mut quiet_since: Option<Instant> = None;
    loop {
        let (messages, bytes) = receive()?;
        if messages > 0 {
            let now = Instant::now();
            received.elapsed = now - *first.get_or_insert(now);
            received.messages += messages;
            received.bytes += bytes;
            quiet_since = None;
        } else if is_set(done)
            && quiet_since.get_or_insert_with(Instant::now).elapsed() > STRAGGLERS
        {
            return Ok(received);
        }
    }
}

/// Sends by `send`, which says how many messages it took, for as long as asked; how many it was.
fn send_for(
    duration: Duration,
    mut send: impl FnMut() -> Result<u64, PeerError>,
) -> Result<u64, PeerError> {
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < duration {
        sent += send()?;
    }
    Ok(sent)
}
