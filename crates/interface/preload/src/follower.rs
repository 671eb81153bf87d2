//! A thread that follows the kernel's tables and the runtime, so that no send asks and waits: what sockets have found
//! out about where they send is found out anew about once a second, and at once when the kernel tells of a change of
//! routes, addresses, links or neighbours (`rtnetlink(7)`). It also hands over what waits for a next hop to tell its
//! hardware address, and asks that of those whose address has not been confirmed for long, as the kernel does of
//! those that it sends to (RFC 4861, section 7.3).
//!
//! One for the process, started with the first source. Sends that it cannot serve in time, because it cannot run or
//! their socket is of another network, ask for themselves.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use netlink_sys::{Socket as NetlinkSocket, SocketAddr};

use crate::destination;
use crate::kernel;
use crate::netlink::Netlink;
use crate::own::Own;
use crate::process::{self, Inside};
use crate::runtime::{Refusal, Source};
use crate::socket::{self, ForkLock, Socket};
use crate::transmit;
use crate::unserved;

/// How old what was found out may get, in nanoseconds.
const AGE: i64 = 1_000_000_000;
/// How long nobody asks for it until it is forgotten.
const UNUSED: i64 = 30_000_000_000;
/// How long it waits for news of the kernel, in milliseconds.
const WAIT: i32 = 500;
/// How often a neighbour is asked at most, in nanoseconds.
const ASK_AGAIN: i64 = 1_000_000_000;
/// Groups of `NETLINK_ROUTE`: links, neighbours, addresses and routes of either version (`RTMGRP_*`).
const GROUPS: u32 = 0x1 | 0x4 | 0x10 | 0x40 | 0x100 | 0x400;

/// It runs, in this process.
static RUNNING: AtomicBool = AtomicBool::new(false);
/// Its own way to the runtime.
static SOURCE: ForkLock<Option<Source>> = ForkLock::new(None);

/// What the runtime has been told of datagrams that it did not get.
static TOLD: ForkLock<takt::unserved::Counts> = ForkLock::new([0; takt::unserved::REASONS]);

/// In a forked child: there is none.
pub fn after_fork() {
    RUNNING.store(false, Ordering::Relaxed);
    SOURCE.forget(None);
    TOLD.forget([0; takt::unserved::REASONS]);
}

/// Whether it runs.
pub fn is_running() -> bool {
    RUNNING.load(Ordering::Relaxed)
}

/// Starts it, if it does not run.
pub fn start() {
    if RUNNING.swap(true, Ordering::Relaxed) {
        return;
    }
    let started = kernel::without_signals(|| {
        std::thread::Builder::new()
            .name("takt-follower".into())
            .stack_size(256 << 10)
            .spawn(run)
    });
    if started.is_err() {
        RUNNING.store(false, Ordering::Relaxed);
    }
}

fn run() {
    let mut news = News::open().ok();
    let mut neighbours = HashMap::new();
    // What was found out before anybody listened may have changed since, and nobody says so again.
    let mut age = 0;
    while RUNNING.load(Ordering::Relaxed) {
        process::inside(|inside| {
            round(age, &mut neighbours, inside);
            tell_unserved(inside);
        });
        let changed = match &news {
            Some(open) => open.wait(),
            None => {
                kernel::pause(i64::from(WAIT) * 1_000_000);
                Ok(false)
            }
        };
        age = match changed {
            Ok(true) => 0,
            Ok(false) => AGE,
            Err(_) => {
                // The program may have closed it; what has its number now is not ours to close.
                if let Some(lost) = news.take() {
                    lost.socket.abandon();
                }
                kernel::pause(i64::from(WAIT) * 1_000_000);
                news = News::open().ok();
                0
            }
        };
    }
}

/// What the kernel tells of changes.
struct News {
    socket: Own<NetlinkSocket>,
    cookie: u64,
}

impl News {
    fn open() -> io::Result<Self> {
        let mut socket = Own::netlink()?;
        socket.bind(&SocketAddr::new(0, GROUPS))?;
        let cookie = kernel::option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE)
            .map_err(io::Error::from_raw_os_error)?;
        Ok(Self { socket, cookie })
    }

    /// Whether something has changed. An error: the socket is of no use any more.
    fn wait(&self) -> io::Result<bool> {
        let fd = self.socket.as_raw_fd();
        if !kernel::is_readable_within(fd, WAIT)? {
            return Ok(false);
        }
        let cookie = kernel::option(fd, libc::SOL_SOCKET, libc::SO_COOKIE);
        if cookie != Ok(self.cookie) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        // What follows shortly is of the same change.
        kernel::pause(2_000_000);
        let mut bytes = Vec::with_capacity(8192);
        loop {
            bytes.clear();
            match self.socket.recv(&mut bytes, libc::MSG_DONTWAIT) {
                Ok(_) => {}
                // More than fits: something has changed in any case.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }
}

/// When a neighbour was asked last.
type Asked = HashMap<(u32, IpAddr), i64>;

/// Finds out anew what is older than `age`.
fn round(age: i64, asked: &mut Asked, inside: &Inside) {
    asked.retain(|_, at| kernel::monotonic() - *at < UNUSED);
    let mut answers = HashMap::new();
    for socket in socket::all() {
        if renew(socket, age, asked, &mut answers, inside) == Err(Refusal::Away) {
            // Nobody is asked again in this round: each would be waited for.
            return;
        }
    }
}

/// Tells the runtime what it did not get, if that is news.
pub fn tell_unserved(inside: &Inside) {
    let counts = unserved::counts();
    let mut told = TOLD.lock(inside);
    if *told == counts {
        return;
    }
    let mut source = SOURCE.lock(inside);
    if source.is_none() {
        *source = Source::to_ask(inside);
    }
    let more = std::array::from_fn(|at| counts[at].saturating_sub(told[at]));
    match source.as_ref().map(|source| source.tell_unserved(more)) {
        Some(Ok(())) => *told = counts,
        Some(Err(Refusal::Over)) => *source = None,
        Some(Err(_)) | None => {}
    }
}

/// What the runtime has said in this round.
pub type Answers = HashMap<(IpAddr, IpAddr, Option<[u8; 6]>), Option<[u8; 6]>>;

fn renew(
    socket: &'static Socket,
    age: i64,
    asked: &mut Asked,
    answers: &mut Answers,
    inside: &Inside,
) -> Result<(), Refusal> {
    let Some(fd) = socket.descriptor() else {
        return Ok(());
    };
    let now = kernel::monotonic();
    // Options first: ways depend on them.
    let version = socket.version();
    let options = socket.read_options(fd);
    let (options, ways, stations) = {
        let Some(mut state) = socket.known_patiently(fd, inside) else {
            return Ok(());
        };
        // The program may have set another option since.
        if let Some(options) = options.filter(|_| socket.version() == version) {
            socket.renew_options(&mut state, options);
        }
        let Some(options) = state.options.clone() else {
            return Ok(());
        };
        let ways = state.destinations.due(now - UNUSED, now - age);
        let stations = state.stations.due(now - UNUSED, now - age);
        if state.source.is_none() || ways.is_empty() && stations.is_empty() {
            return Ok(());
        }
        (options, ways, stations)
    };
    let mut source = SOURCE.lock(inside);
    if source.is_none() {
        *source = Source::to_ask(inside);
    }
    let Some(runtime) = source.as_ref() else {
        return Ok(());
    };
    // Of another network: the socket's own sends ask.
    let Ok(mut netlink) = Netlink::open(fd) else {
        return Ok(());
    };
    let mut found = Vec::with_capacity(ways.len());
    for key in ways {
        let way = destination::find(fd, &options, runtime, &key, &mut netlink, answers);
        let (way, neighbour) = match way {
            Ok(found) => found,
            Err(Refusal::Over) => {
                *source = None;
                return Ok(());
            }
            Err(refusal) => return Err(refusal),
        };
        if let Some(neighbour) = neighbour {
            let last = asked.entry(neighbour).or_insert(i64::MIN);
            if now.saturating_sub(*last) >= ASK_AGAIN {
                *last = now;
                kernel::ask_neighbour(neighbour.0, neighbour.1);
            }
        }
        found.push((key, way));
    }
    let mut reached = Vec::with_capacity(stations.len());
    for station in stations {
        match destination::station(fd, runtime, station) {
            Ok(found) => reached.push((station, found)),
            Err(Refusal::Over) => {
                *source = None;
                return Ok(());
            }
            Err(refusal) => return Err(refusal),
        }
    }
    drop(source);
    let Some(mut state) = socket.known_patiently(fd, inside) else {
        return Ok(());
    };
    if state.options.as_ref() != Some(&options) {
        return Ok(());
    }
    let now = kernel::monotonic();
    for (key, way) in found {
        state
            .destinations
            .renew(&key, way, now, now + destination::believed(&way));
    }
    for (station, found) in reached {
        state
            .stations
            .renew(&station, found, now, now + destination::BELIEVED);
    }
    transmit::hand_over_held(socket, fd, &mut state, inside);
    Ok(())
}
