//! Round trips over the kernel's UDP: blocking, as most programs do, and polling, as the kernel can at best.

use std::io;
use std::net::UdpSocket;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use takt_lab::Host;

use super::{
    ANSWER_PATIENCE, PORT, Pair, PeerError, RoundTrips, check_payload, is_set, measure_round_trips,
    run_both,
};
use crate::experiment::Sample;

/// The largest payload of a UDP datagram over IPv4.
pub(super) const MOST_PAYLOAD: usize = 65_507;
/// How often a blocked echo looks whether it is still needed.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How many empty polls pass between two looks at the clock.
const POLLS_PER_LOOK: u32 = 256;

/// Round trips with `send` and a blocking `recv` on both sides.
///
/// # Errors
/// When a socket cannot be made or used, or the far end does not answer.
pub fn blocking_round_trips(pair: &Pair<'_>, options: &RoundTrips) -> Result<Sample, PeerError> {
    round_trips(pair, options, Wait::Block)
}

/// Round trips with non-blocking `recv` calls in a loop on both sides.
///
/// # Errors
/// As [`blocking_round_trips`].
pub fn polling_round_trips(pair: &Pair<'_>, options: &RoundTrips) -> Result<Sample, PeerError> {
    round_trips(pair, options, Wait::Poll)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Block,
    Poll,
}

fn round_trips(pair: &Pair<'_>, options: &RoundTrips, wait: Wait) -> Result<Sample, PeerError> {
    check_payload("UDP", options.payload, MOST_PAYLOAD)?;
    let (near, far) = connected(pair)?;
    for (socket, timeout) in [(&near, ANSWER_PATIENCE), (&far, LOOK_INTERVAL)] {
        let set = match wait {
            Wait::Block => socket.set_read_timeout(Some(timeout)),
            Wait::Poll => socket.set_nonblocking(true),
        };
        set.map_err(PeerError::io("set how a UDP socket waits"))?;
    }
    let measure = || {
        let mut message = vec![0; options.payload];
        let mut answer = vec![0; options.payload];
        measure_round_trips(options, |sequence| {
            message[..8].copy_from_slice(&sequence.to_ne_bytes());
            near.send(&message)
                .map_err(PeerError::io("send a UDP datagram"))?;
            receive_answer(&near, &mut answer, sequence, wait)
        })
    };
    let (sample, ()) = run_both(pair, measure, |done| echo(&far, options.payload, done))?;
    Ok(sample)
}

/// Two sockets, each in its host and connected to the other.
pub(super) fn connected(pair: &Pair<'_>) -> Result<(UdpSocket, UdpSocket), PeerError> {
    let bind = |host: &Host| {
        let _inside = host.enter()?;
        UdpSocket::bind((host.address(), PORT)).map_err(PeerError::io(format!(
            "bind a UDP socket in {}",
            host.namespace()
        )))
    };
    let (near, far) = (bind(pair.near)?, bind(pair.far)?);
    near.connect((pair.far.address(), PORT))
        .map_err(PeerError::io("connect a UDP socket"))?;
    far.connect((pair.near.address(), PORT))
        .map_err(PeerError::io("connect a UDP socket"))?;
    Ok((near, far))
}

/// Whether the answer to `sequence` comes in time; answers to earlier messages are passed over.
fn receive_answer(
    socket: &UdpSocket,
    answer: &mut [u8],
    sequence: u64,
    wait: Wait,
) -> Result<bool, PeerError> {
    let mut waiting_since: Option<Instant> = None;
    let mut polls = 0_u32;
    loop {
        match socket.recv(answer) {
            Ok(length) if length == answer.len() && answer[..8] == sequence.to_ne_bytes() => {
                return Ok(true);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // A blocking socket has waited its whole timeout by now.
                if wait == Wait::Block {
                    return Ok(false);
                }
                polls += 1;
                if polls.is_multiple_of(POLLS_PER_LOOK)
                    && waiting_since.get_or_insert_with(Instant::now).elapsed() > ANSWER_PATIENCE
                {
                    return Ok(false);
                }
            }
            Err(source) => {
                return Err(PeerError::Io {
                    action: "receive a UDP datagram".into(),
                    source,
                });
            }
        }
    }
}

fn echo(socket: &UdpSocket, payload: usize, done: &AtomicBool) -> Result<(), PeerError> {
    let mut buffer = vec![0; payload];
    while !is_set(done) {
        match socket.recv(&mut buffer) {
            Ok(length) => {
                socket
                    .send(&buffer[..length])
                    .map_err(PeerError::io("echo a UDP datagram"))?;
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(source) => {
                return Err(PeerError::Io {
                    action: "receive a UDP datagram".into(),
                    source,
                });
            }
        }
    }
    Ok(())
}
