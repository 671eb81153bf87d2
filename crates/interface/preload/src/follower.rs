//! A thread that follows the kernel's tables and the runtime, so that no send asks and waits: what sockets have found
//! out about where they send is found out anew about once a second, and at once when the kernel tells of a change of
//! routes, addresses, links or neighbours (`rtnetlink(7)`). It also hands over what waits for a next hop to tell its
//! hardware address, and asks that of those whose address has not been confirmed for long, as the kernel does of
//! those that it sends to (RFC 4861, section 7.3).
//!
//! One for the process, started with the first source, and in a forked child with its own. Sends that it cannot serve in time,
//! because it cannot run or their socket is of another network namespace, ask for themselves.

use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use netlink_sys::{Socket as NetlinkSocket, SocketAddr};

use crate::destination::{self, Key, is_unknown};
use crate::kernel;
use crate::netlink::Netlink;
use crate::news::{News as Found, Station};
use crate::own::Own;
use crate::process::{self, Inside};
use crate::runtime::{Refusal, Source};
use crate::socket::{self, ForkLock, Socket};
use crate::transmit;
use crate::unserved;

/// How old what was found out may get, in nanoseconds.
const AGE: i64 = 1_000_000_000;
/// How long nobody asks for it until it is forgotten. Sends use nothing that has not been used for three quarters of that.
pub const UNUSED: i64 = 40_000_000_000;
/// How long it waits for news of the kernel, in milliseconds.
const WAIT: i32 = 500;
/// How long while messages wait for a next hop: nothing that they miss costs them more.
const WAIT_WITH_HELD: i32 = 20;
/// How often a neighbour is asked at most, in nanoseconds.
const ASK_AGAIN: i64 = 1_000_000_000;
/// Groups of `NETLINK_ROUTE`: links, neighbours, addresses and routes of either version (`RTMGRP_*`).
const GROUPS: u32 = 0x1 | 0x4 | 0x10 | 0x40 | 0x100 | 0x400;

/// It runs, in this process.
static RUNNING: AtomicBool = AtomicBool::new(false);
/// The number of the network namespace that it is in; 0: the kernel cannot say.
static NETWORK: AtomicU64 = AtomicU64::new(0);
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

/// Whether it runs, and finds out where the packets of a socket go that is in the network namespace of this number.
pub fn follows(network: u64) -> bool {
    let own = NETWORK.load(Ordering::Relaxed);
    is_running() && (own == network || own == 0 || network == 0)
}

/// Starts it, if it does not run.
pub fn start() {
    if RUNNING.swap(true, Ordering::Relaxed) {
        return;
    }
    // A thread begins in the network namespace of the one that starts it.
    let network = Own::netlink().map_or(0, |socket| kernel::network(socket.as_raw_fd()));
    NETWORK.store(network, Ordering::Relaxed);
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
    let mut all_at = 0;
    while RUNNING.load(Ordering::Relaxed) {
        let now = kernel::monotonic();
        let all = age == 0 || now - all_at >= i64::from(WAIT) * 1_000_000;
        if all {
            all_at = now;
        }
        process::inside(|inside| {
            round(age, all, &mut neighbours, inside);
            tell_unserved(inside);
        });
        let wait = match socket::all().any(Socket::is_holding) {
            true => WAIT_WITH_HELD,
            false => WAIT,
        };
        let changed = match &news {
            Some(open) => open.wait(wait),
            None => {
                kernel::pause(i64::from(wait) * 1_000_000);
                // There was no descriptor for it, perhaps. What has changed meanwhile nobody says again.
                news = News::open().ok();
                Ok(news.is_some())
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
    fn wait(&self, milliseconds: i32) -> io::Result<bool> {
        let fd = self.socket.as_raw_fd();
        if !kernel::is_readable_within(fd, milliseconds)? {
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

/// Finds out anew what is older than `age`, of `all` sockets or of those of which messages wait.
fn round(age: i64, all: bool, asked: &mut Asked, inside: &Inside) {
    asked.retain(|_, at| kernel::monotonic() - *at < UNUSED);
    let mut answers = HashMap::new();
    for socket in socket::all().filter(|socket| all || socket.is_holding()) {
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
    let Some(options) = socket.read_options(fd) else {
        return Ok(());
    };
    let (changes, (ways, stations)) = {
        let mut watched = socket.watched(inside);
        let due = watched.due(now - UNUSED, now - age, now);
        (watched.see(&options), due)
    };
    let mut news = Found::new(version, options, now);
    let found = match ways.is_empty() && stations.is_empty() {
        true => Ok(()),
        false => find(fd, &mut news, &ways, &stations, asked, answers, inside),
    };
    let (ways, stations) = left_over(&news, ways, stations);
    if !ways.is_empty() || !stations.is_empty() {
        socket.watched(inside).look_again(&ways, &stations);
    }
    if socket.descriptor() != Some(fd) {
        return found;
    }
    socket.leave(news);
    let hands_over = socket.is_holding();
    // Nobody waits for this lock but for what another process has set, or for messages that wait themselves.
    if (changes || hands_over)
        && let Some(mut state) = socket.known_patiently(fd, inside)
        && hands_over
    {
        transmit::hand_over_held(socket, fd, &mut state, inside);
        socket.set_holding(state.held.len() != 0);
    }
    found
}

/// What is to be looked for again in the next round: what was not found out, and ways whose next hop is unknown.
fn left_over(
    news: &Found,
    mut ways: Vec<Key>,
    mut stations: Vec<Station>,
) -> (Vec<Key>, Vec<Station>) {
    let known = news.ways.iter().filter(|(_, way)| !is_unknown(way));
    let known: HashSet<Key> = known.map(|(key, _)| *key).collect();
    ways.retain(|key| !known.contains(key));
    // They are found out in this order.
    stations.drain(..news.stations.len());
    (ways, stations)
}

/// Finds out where a socket's packets go.
fn find(
    fd: c_int,
    news: &mut Found,
    ways: &[Key],
    stations: &[Station],
    asked: &mut Asked,
    answers: &mut Answers,
    inside: &Inside,
) -> Result<(), Refusal> {
    let now = news.at;
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
    for &key in ways {
        let way = destination::find(fd, &news.options, runtime, &key, &mut netlink, answers);
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
        news.ways.push((key, way));
    }
    for &station in stations {
        match destination::station(fd, runtime, station) {
            Ok(found) => news.stations.push((station, found)),
            Err(Refusal::Over) => {
                *source = None;
                return Ok(());
            }
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(())
}
