//! Connections by the thousand that say nothing, half of something or a little at a time, and do not read.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use takt_session::message::{Envelope, Request};
use takt_session::transport;
use takt_testing::until;

use super::raw::{Raw, attach_request, connect};
use super::{Held, KEPT_KIB, LISTENERS, Work};
use crate::support::{Pair, Stops, skip};

/// Connections at a time, where this process may have so many descriptors.
const THOUSAND: usize = 1000;
/// Of them, those whose clients go on, a little at a time.
const ATTACHED: usize = 128;
const PAUSE: Duration = Duration::from_millis(10);

/// So many connections, or what an eighth of this process's descriptors allows.
pub fn thousand() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 8;
    THOUSAND.min(most as usize)
}

/// Connections that say nothing, that say half of something, or that leave at once.
pub fn half_open(work: &Work) {
    let thousand = thousand();
    while work.on() {
        let sockets: Vec<_> = (0..thousand)
            .take_while(|_| work.on())
            .filter_map(|_| connect(&work.near))
            .collect();
        for (at, socket) in sockets.iter().enumerate() {
            match at % 3 {
                0 => drop(transport::send(socket, &[1], &[], false)),
                1 => {
                    // With descriptors that nobody has asked for.
                    let all = [socket.as_fd(); transport::MAX_DESCRIPTORS];
                    let _ = transport::send(socket, b"take these", &all, false);
                }
                _ => {}
            }
        }
        work.did();
    }
}

/// A client that has all the time in the world.
enum Slow {
    /// It says nothing.
    Silent,
    /// It sends its first request in pieces, of which the socket makes a message each, and a descriptor with each.
    Pieces { request: Vec<u8>, sent: usize },
    /// It has attached, asks for more and more, and reads no answer.
    Deaf { request: u32 },
}

impl Slow {
    /// Goes on a little.
    fn go_on(&mut self, socket: &OwnedFd) {
        match self {
            Self::Silent => {}
            Self::Pieces { request, sent } => {
                if let Some(piece) = request.get(*sent..=*sent) {
                    let _ = transport::send(socket, piece, &[socket.as_fd()], false);
                    *sent += 1;
                }
            }
            Self::Deaf { request } => {
                *request += 1;
                let message = Request::OpenStream(takt::Qos::slow());
                let request = *request;
                let bytes = Envelope { request, message }.encode();
                let _ = transport::send(socket, &bytes, &[], false);
            }
        }
    }
}

/// As many clients as there may be that go on a little at a time, for as long as this may last.
pub fn slow(work: &Work) {
    let thousand = thousand();
    while work.on() {
        let mut clients = Vec::new();
        for at in 0..thousand {
            if !work.on() {
                break;
            }
            if at < ATTACHED {
                if let Some(raw) = Raw::attach(&work.near, 64 << 10) {
                    clients.push((raw.socket, Slow::Deaf { request: 1 }));
                }
            } else if let Some(socket) = connect(&work.near) {
                let (request, sent) = (attach_request(0), 0);
                let client = match at % 2 {
                    0 => Slow::Silent,
                    _ => Slow::Pieces { request, sent },
                };
                clients.push((socket, client));
            }
        }
        work.did();
        // Until those that say nothing have been hung up on.
        for _ in 0..500 {
            if !work.on() {
                break;
            }
            for (socket, client) in &mut clients {
                client.go_on(socket);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// What a client of the admin socket begins with: the preface of HTTP/2 and a frame of its settings, of which half is there.
const BEGINNING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x0c\x04\0";

#[test]
fn slow_clients_of_the_admin_socket_by_the_thousand_keep_neither_operators_nor_applications_out() {
    if skip() {
        return;
    }
    const ROUNDS: u64 = 3;
    let pair = Pair::with(&takt_lab::LabConfig::default(), LISTENERS);
    let node = &pair.nodes[0];
    let mut victims = super::Victims::new(&pair);
    let before = Held::by(node);
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let thousand = thousand();
    std::thread::scope(|scope| {
        let stops = [&stop];
        let _stops = Stops(&stops);
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                let mut clients = Vec::new();
                for at in 0..thousand {
                    let Ok(mut client) = UnixStream::connect(node.directory.join("admin.sock"))
                    else {
                        continue;
                    };
                    let _ = client.set_nonblocking(true);
                    // One in sixteen begins, as far as it does.
                    let said = match at % 16 {
                        0 => BEGINNING.len(),
                        more => more,
                    };
                    let _ = client.write(&BEGINNING[..said]);
                    clients.push(client);
                }
                for client in &mut clients {
                    // Another octet, where it still can.
                    let _ = client.write(b"\0");
                    let _ = client.read(&mut [0; 64]);
                }
                rounds.fetch_add(1, Relaxed);
            }
        });
        victims.work(&pair, || rounds.load(Relaxed) < ROUNDS);
    });
    victims.compare();
    until("the daemon holds what it held before", || {
        Held::by(node).is_within(before, KEPT_KIB).then_some(())
    });
}
