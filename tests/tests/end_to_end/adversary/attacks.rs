//! What a hostile tenant and a host without a key can think of.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng};
use takt::{ChannelId, Qos, Session, Sink, Wait};
use takt_lab::Host;
use takt_session::layout::{HEADER_BYTES, TxDescriptor};

use super::memory::{jump, rewrite};
use super::raw::Raw;
use super::slow::{half_open, slow};
use super::{HOSTILE, HOSTILE_MANY, Tried, Work, launch_at};
use crate::support::node::PORT;

/// How long before the victim's instants the launch times are that aim at them, nanoseconds.
const BEFORE: i64 = 2_000;
/// Sessions that have as many sources and sinks as there are, and the memory of each.
const SESSIONS: usize = 8;
const BYTES: u64 = 8 << 20;

/// All that the tenant does, at once.
pub const ALL: [Tried; 10] = [
    ("scribble", scribble),
    ("twice", twice),
    ("jump", jump),
    ("rewrite", rewrite),
    ("ring", ring),
    ("half open", half_open),
    ("slow", slow),
    ("endpoints", endpoints),
    ("never consumed", never_consumed),
    ("aim", aim),
];

/// Random bytes all over rings and memory, also while a message is being taken from there.
fn scribble(work: &Work) {
    let mut rng = StdRng::seed_from_u64(1);
    while work.on() {
        let Some(mut raw) = Raw::attach(&work.near, BYTES) else {
            std::thread::yield_now();
            continue;
        };
        let Some(stream) = raw.stream(Qos::slow()) else {
            continue;
        };
        let channel = ChannelId(HOSTILE);
        let sources = (0..3).filter_map(|_| raw.source(stream, channel));
        let mut sources: Vec<_> = sources.map(|source| source.tx).collect();
        let _sinks: Vec<_> = (0..3)
            .filter_map(|_| raw.sink(stream, channel, false))
            .collect();
        for round in 0..200u32 {
            for source in &mut sources {
                let honest = TxDescriptor {
                    chunk: round % 64,
                    length: 200,
                    ..TxDescriptor::default()
                };
                let _ = source.push(honest);
            }
            raw.bell.ring();
            let end = if rng.random_bool(0.8) {
                HEADER_BYTES + (64 << 10)
            } else {
                raw.map.total()
            };
            let mut junk = [0u8; 64];
            rng.fill(&mut junk[..]);
            if rng.random_bool(0.5) {
                junk[1..].fill(0);
            }
            raw.write(rng.random_range(0..end - 64), &junk);
        }
        work.did();
    }
}

/// Blocks that are emitted twice, released twice or never received, and descriptors that point anywhere.
fn twice(work: &Work) {
    let mut rng = StdRng::seed_from_u64(2);
    while work.on() {
        let Some(mut raw) = Raw::attach(&work.near, BYTES) else {
            std::thread::yield_now();
            continue;
        };
        let Some(stream) = raw.stream(Qos::slow()) else {
            continue;
        };
        let channel = ChannelId(HOSTILE);
        let (Some(source), Some(sink)) =
            (raw.source(stream, channel), raw.sink(stream, channel, true))
        else {
            continue;
        };
        let (mut source, mut release) = (source.tx, sink.release);
        let one = TxDescriptor {
            chunk: rng.random_range(0..4),
            length: rng.random_range(0..1024),
            ..TxDescriptor::default()
        };
        let _ = source.push(one);
        match rng.random_range(0..4) {
            0 => {
                let _ = source.push(one);
            }
            1 => {
                let _ = release.push(rng.random());
            }
            2 => {
                let _ = release.push(0);
                let _ = release.push(0);
            }
            _ => {
                let anything = TxDescriptor {
                    chunk: rng.random(),
                    length: rng.random(),
                    flags: rng.random(),
                    class: rng.random(),
                    ..one
                };
                let _ = source.push(anything);
            }
        }
        raw.bell.ring();
        work.did();
    }
}

/// The doorbell, as fast as it goes.
fn ring(work: &Work) {
    while work.on() {
        // Others of the tenant may hold all its places.
        let Some(raw) = Raw::attach(&work.near, BYTES) else {
            std::thread::yield_now();
            continue;
        };
        while work.on() {
            raw.bell.ring();
            work.did();
        }
    }
}

/// Sources and sinks on a channel each until no more are available, by the thousand, and then all over again.
fn endpoints(work: &Work) {
    while work.on() {
        let mut channels = (HOSTILE_MANY..).map(ChannelId);
        let mut sessions = Vec::new();
        while let Some(mut raw) = Raw::attach(&work.near, BYTES).filter(|_| work.on()) {
            let Some(stream) = raw.stream(Qos::slow()) else {
                break;
            };
            let more = |raw: &mut Raw, channel| {
                raw.source(stream, channel).is_some() && raw.sink(stream, channel, true).is_some()
            };
            while work.on()
                && channels
                    .next()
                    .is_some_and(|channel| more(&mut raw, channel))
            {
                work.did();
            }
            sessions.push(raw);
            if sessions.len() == SESSIONS {
                break;
            }
        }
    }
}

/// Messages of a megabyte and more to many sinks that take none.
fn never_consumed(work: &Work) {
    let open = || {
        let session = Session::builder()
            .socket(&work.near)
            .tx_bytes(32 << 20)
            .rx_bytes(32 << 20)
            .reconnect(false)
            .open()
            .ok()?;
        let stream = session.stream(Qos::slow()).ok()?;
        let channel = ChannelId(HOSTILE + 1);
        let sinks: Vec<Sink> = (0..64).filter_map(|_| stream.sink(channel).ok()).collect();
        Some((stream.source(channel).ok()?, sinks))
    };
    while work.on() {
        let Some((source, _sinks)) = open() else {
            std::thread::yield_now();
            continue;
        };
        for length in [16 << 20, 1 << 20, 64 << 10].into_iter().cycle().take(64) {
            if !work.on() {
                break;
            }
            let Ok(buffer) = source.buffer_wait(length, Wait::For(Duration::from_millis(50)))
            else {
                continue;
            };
            if buffer.emit().is_ok() {
                work.did();
            }
        }
    }
}

/// Launch times just before those of the victim, in its class and on its link.
fn aim(work: &Work) {
    let channel = ChannelId(HOSTILE + 2);
    launch_at(work, channel, -BEFORE);
}

/// Hellos, messages and junk from another host, to every port of the node.
pub fn forge(host: &Host, node: &Host, work: &Work) {
    let inside = host.enter().expect("the lab is up");
    let socket = UdpSocket::bind((host.address(), 0)).expect("bind");
    drop(inside);
    let mut rng = StdRng::seed_from_u64(3);
    let mut heard: Vec<Vec<u8>> = Vec::new();
    socket.set_nonblocking(true).expect("nonblocking");
    while work.on() {
        for port in PORT..PORT + 3 {
            let to = SocketAddr::from((node.address(), port));
            let mut bytes = vec![0; rng.random_range(1..200)];
            rng.fill(&mut bytes[..]);
            // What begins as a message of the protocol gets further.
            match rng.random_range(0..4) {
                // A hello of a node without lanes, as `docs/reference/wire-format.md` has it, or something else
                // of that protocol.
                0 => {
                    bytes.splice(..0, *b"TKTP\x03\x01\0\0");
                    bytes.truncate(16);
                    bytes.extend([0; 16]);
                    bytes.extend(*b"\x06forged\0");
                }
                1 => {
                    bytes.splice(..0, *b"TKTP\x03");
                }
                2 => bytes[0] = 2,
                _ => {}
            }
            if let Some(again) = heard.last() {
                let _ = socket.send_to(again, to);
            }
            if socket.send_to(&bytes, to).is_ok() {
                work.did();
            }
        }
        let mut answer = [0; 2048];
        if let Ok(length) = socket.recv(&mut answer) {
            heard.push(answer[..length].to_vec());
        }
    }
}
