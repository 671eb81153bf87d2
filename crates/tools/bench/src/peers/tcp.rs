//! Plain TCP, which loses nothing and keeps the order: what a reliable stream is compared with.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;

use super::udp::{LOOK_INTERVAL, MOST_PAYLOAD};
use super::udp_batch::MOST_MESSAGES;
use super::{
    ANSWER_PATIENCE, PORT, Pair, PeerError, RoundTrips, Stream, check_payload, count_received,
    is_set, measure_round_trips, run_both, send_for,
};
use crate::experiment::Sample;

/// Round trips with blocking calls on both sides, each message sent at once (`TCP_NODELAY`).
///
/// # Errors
/// When a socket cannot be made or used, or the far end does not answer.
pub fn round_trips(pair: &Pair<'_>, options: &RoundTrips) -> Result<Sample, PeerError> {
    check_payload("TCP", options.payload, MOST_PAYLOAD)?;
    let (mut near, far) = connected(pair)?;
    for (socket, timeout) in [(&near, ANSWER_PATIENCE), (&far, LOOK_INTERVAL)] {
        socket
            .set_nodelay(true)
            .and_then(|()| socket.set_read_timeout(Some(timeout)))
            .map_err(PeerError::io("set how a TCP socket waits"))?;
    }
    let measure = || {
        let mut message = vec![0; options.payload];
        let mut answer = vec![0; options.payload];
        measure_round_trips(options, |sequence| {
            message[..8].copy_from_slice(&sequence.to_ne_bytes());
            near.write_all(&message)
                .and_then(|()| near.read_exact(&mut answer))
                .map_err(PeerError::io("exchange a message over TCP"))?;
            Ok(answer == message)
        })
    };
    let (sample, ()) = run_both(pair, measure, |done| echo(far, options.payload, done))?;
    Ok(sample)
}

/// Sends `batch` messages with each `write`; received by `read` calls in a loop.
///
/// # Errors
/// When a socket cannot be made or used.
pub fn stream(pair: &Pair<'_>, options: &Stream) -> Result<Sample, PeerError> {
    check_payload("TCP", options.payload, MOST_PAYLOAD)?;
    if !(1..=MOST_MESSAGES).contains(&options.batch) {
        return Err(PeerError::Batch(options.batch));
    }
    let (mut near, mut far) = connected(pair)?;
    far.set_nonblocking(true)
        .map_err(PeerError::io("set how a TCP socket waits"))?;
    let batch = options.batch * options.payload;
    let send = || {
        let messages = vec![0; batch];
        let sent = send_for(options.duration, || {
            let sent = near.write_all(&messages);
            sent.map_err(PeerError::io("send over TCP"))?;
            Ok(options.batch as u64)
        });
        // What is on its way still arrives.
        let _ = near.shutdown(std::net::Shutdown::Write);
        sent
    };
    let (sent, received) = run_both(pair, send, |done| {
        let mut buffer = vec![0; batch];
        let mut held = 0;
        count_received(done, || {
            let octets = match far.read(&mut buffer) {
                Ok(octets) => octets,
                Err(error) if is_transient(&error) => 0,
                Err(error) => return Err(PeerError::io("receive over TCP")(error)),
            };
            held += octets;
            let messages = held / options.payload;
            held %= options.payload;
            Ok((messages as u64, (messages * options.payload) as u64))
        })
    })?;
    Ok(received.of(sent).into())
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// The ends of a connection, each in its host.
fn connected(pair: &Pair<'_>) -> Result<(TcpStream, TcpStream), PeerError> {
    let listener = {
        let _inside = pair.far.enter()?;
        TcpListener::bind((pair.far.address(), PORT)).map_err(PeerError::io(format!(
            "listen for TCP in {}",
            pair.far.namespace()
        )))?
    };
    let near = {
        let _inside = pair.near.enter()?;
        TcpStream::connect((pair.far.address(), PORT)).map_err(PeerError::io("connect by TCP"))?
    };
    let (far, _) = listener
        .accept()
        .map_err(PeerError::io("accept a TCP connection"))?;
    Ok((near, far))
}

/// Answers until it is done.
fn echo(mut socket: TcpStream, payload: usize, done: &AtomicBool) -> Result<(), PeerError> {
    let mut message = vec![0; payload];
    let mut held = 0;
    while !is_set(done) {
        match socket.read(&mut message[held..]) {
            Ok(0) => return Ok(()),
            Ok(octets) => held += octets,
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(PeerError::io("receive over TCP")(error)),
        }
        if held == payload {
            held = 0;
            let answered = socket.write_all(&message);
            answered.map_err(PeerError::io("answer over TCP"))?;
        }
    }
    Ok(())
}
