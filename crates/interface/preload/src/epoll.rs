//! Which accelerated sockets an epoll descriptor watches, and events of ours among the kernel's.
//!
//! The kernel itself says what is watched, in `/proc/self/fdinfo`: registrations made before a socket was
//! accelerated, by another thread or through another descriptor are all there, with their events and data. It is asked
//! when something has changed: at the first wait on a descriptor, after `epoll_ctl` of an accelerated socket, and after
//! another socket has become one. Registrations for one event, which the kernel uses up, are asked for at each wait.
//!
//! The kernel's events say whose they are by the program's data alone. What several registrations have in common tells
//! none of them from the others: then no event of the kernel's is changed, and ours are added to them.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

use libc::epoll_event;

use crate::kernel;
use crate::own::Own;
use crate::process::{self, Inside};
use crate::readiness::{self, Room};
use crate::real;
use crate::socket::{self, ForkLock};
use crate::table;

/// `EPOLLERR`.
const ERROR: u32 = libc::EPOLLERR as u32;
/// `EPOLLPRI`.
const URGENT: u32 = libc::EPOLLPRI as u32;
/// What says that there is room.
const WRITABLE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM | libc::EPOLLWRBAND) as u32;
/// Bits that say how to watch, not what for.
const MODES: u32 =
    (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLWAKEUP | libc::EPOLLEXCLUSIVE) as u32;

/// A registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    fd: c_int,
    events: u32,
    data: u64,
    /// Other registrations have the same data: whose an event of it is, nobody knows.
    shared: bool,
    /// How many entries its error queue had had when the kernel was asked: for edges.
    seen: u64,
}

/// What is known to be watched, by epoll descriptor.
static KNOWN: ForkLock<BTreeMap<c_int, Vec<Watched>>> = ForkLock::new(BTreeMap::new());
/// Epoll descriptors of which that is remembered.
const MOST: usize = 256;

/// In a forked child: other descriptors, perhaps, and no other threads. The bell is the parent's.
pub fn after_fork() {
    KNOWN.forget(BTreeMap::new());
    WAITING.iter().for_each(|threads| {
        if threads.load(Ordering::Relaxed) != 0 {
            threads.store(0, Ordering::Relaxed);
        }
    });
    CHANGING.store(0, Ordering::Relaxed);
    BELL.fd.store(-1, Ordering::Relaxed);
    ECHO.fd.store(-1, Ordering::Relaxed);
}

/// Whether anything is remembered.
static ANY: AtomicBool = AtomicBool::new(false);

/// A descriptor is closed, or comes to mean something else.
#[inline]
pub fn closed(fd: c_int) {
    if ANY.load(Ordering::Relaxed) && !process::is_borrowed() {
        process::inside(|inside| forget(fd, inside));
    }
}

/// Many descriptors are closed.
pub fn all_closed() {
    if ANY.load(Ordering::Relaxed) && !process::is_borrowed() {
        process::inside(forget_all);
    }
}

/// What a descriptor watches has changed.
pub fn forget(epoll: c_int, inside: &Inside) {
    KNOWN.lock(inside).remove(&epoll);
    changed();
}

/// What a descriptor watches of others than accelerated sockets has changed: whether those are told apart from it by their
/// data may have, too. `data` is what it is watched with, if it is.
pub fn other_changed(epoll: c_int, data: impl FnOnce() -> Option<u64>) {
    if !ANY.load(Ordering::Relaxed) || process::is_borrowed() {
        return;
    }
    process::inside(|inside| {
        let mut known = KNOWN.lock(inside);
        let Some(all) = known.get(&epoll) else {
            return;
        };
        let data = data();
        if all
            .iter()
            .any(|watched| watched.shared || data == Some(watched.data))
        {
            known.remove(&epoll);
            changed();
        }
    });
}

/// Any descriptor may watch more accelerated sockets than before.
pub fn forget_all(inside: &Inside) {
    KNOWN.lock(inside).clear();
    changed();
}

/// How often something has changed of what waits have to look at.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// So many threads are changing what is watched: the kernel may have told of what is not known here yet.
static CHANGING: AtomicU32 = AtomicU32::new(0);

/// Changes what an epoll descriptor watches by a call, and notes it.
pub fn change(call: impl FnOnce() -> c_int) -> c_int {
    CHANGING.fetch_add(1, Ordering::AcqRel);
    let result = call();
    let less = |count: u32| count.checked_sub(1);
    // Of none, in a child that was forked meanwhile.
    let _ = CHANGING.try_update(Ordering::AcqRel, Ordering::Relaxed, less);
    result
}

/// What is watched has changed, or which sockets may have something to tell.
pub fn changed() {
    CHANGES.fetch_add(1, Ordering::AcqRel);
}

/// What a wait has to look at, as it changes while it waits.
pub struct Watching {
    watched: Vec<Watched>,
    /// When it was found out.
    changes: u32,
}

impl Watching {
    /// Nothing yet.
    pub fn new() -> Self {
        Self {
            watched: Vec::new(),
            changes: CHANGES.load(Ordering::Acquire).wrapping_sub(1),
        }
    }

    /// Finds out anew what has changed. Of what is being changed just now, nobody knows whose an event is.
    pub fn renew(&mut self, epoll: c_int) {
        let changing = CHANGING.load(Ordering::Acquire) != 0;
        let changes = CHANGES.load(Ordering::Acquire);
        if !changing && changes == self.changes || self.watched.is_empty() && !socket::any_telling()
        {
            return;
        }
        process::inside(|inside| {
            let mut watched = watched(epoll, inside);
            for new in &mut watched {
                let same = |old: &&Watched| (old.fd, old.data) == (new.fd, new.data);
                // What another wait has told since this one began, it tells as well.
                if let Some(old) = self.watched.iter().find(same) {
                    new.seen = old.seen;
                }
                new.shared |= changing;
            }
            self.watched = watched;
            self.changes = changes.wrapping_sub(changing.into());
        });
    }

    /// What there is.
    pub fn watched(&self) -> &[Watched] {
        &self.watched
    }
}

/// Threads that wait in the kernel without looking for what it does not know of, by epoll descriptor. Those of higher
/// numbers are not woken. A thread that is cancelled there stays counted, which costs a bell that nobody hears.
static WAITING: [AtomicU32; 4096] = [const { AtomicU32::new(0) }; 4096];
/// What rings in such a wait: a socket that can always be written to, watched for one event. The program's own
/// registrations are left as they are: one for one event, made anew at the wrong moment, would be told twice.
struct Bell {
    fd: AtomicI32,
    /// Its number in the kernel: the program may have closed it by a call past us, and have its descriptor for another file.
    cookie: AtomicU64,
}

/// Ours.
static BELL: Bell = Bell::new();
/// Rings for a process that has the same epoll descriptor by a fork, and its own bell there, of which we have heard instead.
static ECHO: Bell = Bell::new();
/// How often that was done in a row.
static ECHOES: AtomicU32 = AtomicU32::new(0);
/// It is not done more often: who waited there has gone, and bells are heard by who comes.
const MOST_ECHOES: u32 = 10;

/// What a process's bell has for data: a place that no program has for that, the same one in all that were forked from each other.
fn bell_data() -> u64 {
    let at = process::id().unsigned_abs() as usize % WAITING.len();
    ptr::from_ref(&WAITING[at]).expose_provenance() as u64
}

/// Whether this is some process's bell.
fn is_bell(data: u64) -> bool {
    let place = WAITING.as_ptr_range();
    (place.start.addr() as u64..place.end.addr() as u64).contains(&data)
}

fn waiting(epoll: c_int) -> Option<&'static AtomicU32> {
    WAITING.get(usize::try_from(epoll).ok()?)
}

/// A thread is about to wait in the kernel: whoever has something to tell from now on rings.
pub fn enter(epoll: c_int) {
    if let Some(threads) = waiting(epoll) {
        threads.fetch_add(1, Ordering::Relaxed);
    }
    // Partner: the fence in `wake`. It sees the thread, or the thread sees what there is to tell.
    fence(Ordering::SeqCst);
}

/// It does not wait there any more.
pub fn leave(epoll: c_int) {
    if let Some(threads) = waiting(epoll) {
        let less = |count: u32| count.checked_sub(1);
        // Of none, in a child that was forked meanwhile.
        let _ = threads.try_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// There is something to tell: a thread that waits on an epoll descriptor in the kernel is to look for it. One is enough;
/// when it waits no more, it wakes another.
pub fn wake(epoll: c_int) {
    fence(Ordering::SeqCst); // Partner: `enter`.
    if waiting(epoll).is_some_and(|threads| threads.load(Ordering::Relaxed) != 0) {
        ring(epoll);
    }
}

/// The same for all epoll descriptors.
pub fn wake_all() {
    fence(Ordering::SeqCst); // Partner: `enter`.
    for (epoll, threads) in WAITING.iter().enumerate() {
        if threads.load(Ordering::Relaxed) != 0 {
            ring(epoll as c_int);
        }
    }
}

#[cold]
fn ring(epoll: c_int) {
    BELL.ring(epoll, bell_data());
}

impl Bell {
    const fn new() -> Self {
        Self {
            fd: AtomicI32::new(-1),
            cookie: AtomicU64::new(0),
        }
    }

    fn ring(&self, epoll: c_int, data: u64) {
        let errno = process::errno();
        if let Some(bell) = self.descriptor() {
            let mut event = epoll_event {
                events: (libc::EPOLLOUT | libc::EPOLLONESHOT) as u32,
                u64: data,
            };
            // Whatever has the number, perhaps no epoll descriptor any more.
            // SAFETY: the event is there for the calls.
            unsafe {
                if real::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, bell, &mut event) != 0 {
                    real::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, bell, &mut event);
                }
            }
        }
        process::set_errno(errno);
    }

    /// `None`: there is none to be had.
    fn descriptor(&self) -> Option<c_int> {
        let cookie = |fd| kernel::option::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE).ok();
        let fd = self.fd.load(Ordering::Acquire);
        if fd >= 0 && cookie(fd) == Some(self.cookie.load(Ordering::Relaxed)) {
            return Some(fd);
        }
        let new = Own::unix().ok()?;
        let fd = new.as_raw_fd();
        // Another thread may make one as well: one is lost then, and what it rings is heard all the same.
        self.cookie.store(cookie(fd)?, Ordering::Relaxed);
        self.fd.store(fd, Ordering::Release);
        std::mem::forget(new);
        Some(fd)
    }
}

/// What was heard of bells.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heard {
    /// One has rung.
    pub any: bool,
    /// It was another process's, and has been rung again: who waits next for the same may hear it once more.
    pub passed_on: bool,
}

/// Takes the events of bells out of those that the kernel has told. Returns how many are left.
///
/// # Safety
/// The first `ready` events are written.
pub unsafe fn take_bell(epoll: c_int, events: *mut epoll_event, ready: c_int) -> (c_int, Heard) {
    let mut heard = Heard::default();
    if ready <= 0 {
        return (ready, heard);
    }
    // SAFETY: by the caller's promise.
    let told = unsafe { std::slice::from_raw_parts_mut(events, ready as usize) };
    let mut left = 0;
    for at in 0..told.len() {
        let event = told[at];
        if is_bell(event.u64) {
            heard.any = true;
            heard.passed_on |= pass_on(epoll, event.u64);
        } else {
            told[left] = event;
            left += 1;
        }
    }
    if !heard.any && ECHOES.load(Ordering::Relaxed) != 0 {
        ECHOES.store(0, Ordering::Relaxed);
    }
    (left as c_int, heard)
}

/// Rings a bell again if it was not for this process. Whether it did.
#[cold]
fn pass_on(epoll: c_int, data: u64) -> bool {
    // Inside, for a child has its own number only from the first call on.
    let passed_on = process::inside(|_| {
        let is_due = data != bell_data() && ECHOES.load(Ordering::Relaxed) < MOST_ECHOES;
        if is_due {
            ECHOES.fetch_add(1, Ordering::Relaxed);
            ECHO.ring(epoll, data);
        }
        is_due
    });
    passed_on.unwrap_or(false)
}

/// What an epoll descriptor watches that may have something to tell.
fn watched(epoll: c_int, inside: &Inside) -> Vec<Watched> {
    let mut known = KNOWN.lock(inside);
    let telling = |watched: &Watched| {
        let for_room = watched.events & WRITABLE != 0;
        let socket = table::lookup(watched.fd).filter(|socket| socket.is_telling_for(for_room))?;
        Some(Watched {
            seen: socket.told_edges(),
            ..*watched
        })
    };
    if let Some(watched) = known.get(&epoll) {
        return watched.iter().filter_map(telling).collect();
    }
    let Ok(text) = std::fs::read_to_string(format!("/proc/self/fdinfo/{epoll}")) else {
        return Vec::new();
    };
    let accelerated = |watched: &Watched| table::lookup(watched.fd).is_some();
    let watched: Vec<Watched> = registrations(&text).filter(accelerated).collect();
    let telling = watched.iter().filter_map(telling).collect();
    // Of registrations for one event, `registration` leaves out those that were used up.
    let used_up = |line| one_shot(line).is_some_and(|fd| table::lookup(fd).is_some());
    if !text.lines().any(used_up) {
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(epoll, watched);
        ANY.store(true, Ordering::Relaxed);
    }
    telling
}

/// The descriptor of a line that is a registration for one event.
fn one_shot(line: &str) -> Option<c_int> {
    let (fd, events, _) = fields(line)?;
    (events & libc::EPOLLONESHOT as u32 != 0).then_some(fd)
}

/// The registrations that may tell something, and whether they share their data with others.
fn registrations(text: &str) -> impl Iterator<Item = Watched> {
    // Those that were used up, too: the kernel may have told of them just now.
    let mut data: HashMap<u64, usize> = HashMap::new();
    for (_, _, of_one) in text.lines().filter_map(fields) {
        *data.entry(of_one).or_default() += 1;
    }
    text.lines()
        .filter_map(registration)
        .map(move |one| Watched {
            shared: data.get(&one.data).is_some_and(|count| *count > 1),
            ..one
        })
}

/// Descriptor, events and data of a line of the form `tfd: 5 events: 19 data: 5 …`, the last two hexadecimal.
fn fields(line: &str) -> Option<(c_int, u32, u64)> {
    let mut words = line.split_ascii_whitespace();
    let mut field = |name| (words.next()? == name).then(|| words.next()).flatten();
    let fd = field("tfd:")?.parse().ok()?;
    let events = u32::from_str_radix(field("events:")?, 16).ok()?;
    let data = u64::from_str_radix(field("data:")?, 16).ok()?;
    Some((fd, events, data))
}

/// The registration of a line, if it may tell something.
fn registration(line: &str) -> Option<Watched> {
    let (fd, events, data) = fields(line)?;
    // A registration for one event that was told is good for nothing until it is made anew. What `disarm` leaves
    // of one are the two events that cannot be left out.
    let always = match events & libc::EPOLLONESHOT as u32 {
        0 => 0,
        _ => (libc::EPOLLERR | libc::EPOLLHUP) as u32,
    };
    (events & !MODES & !always != 0).then_some(Watched {
        fd,
        events,
        data,
        shared: false,
        seen: 0,
    })
}

/// Adds events for what waits on error queues to the `ready` that the kernel has put into `events`, which have
/// room for `count`. Returns how many there are.
///
/// # Safety
/// `events` is writable for `count` events, and the first `ready` are written.
pub unsafe fn merge(
    epoll: c_int,
    watched: &[Watched],
    events: *mut epoll_event,
    ready: c_int,
    count: c_int,
    inside: &Inside,
) -> c_int {
    let mut ready = ready as usize;
    for watched in watched {
        // SAFETY: as this function's.
        ready = unsafe { merge_room(epoll, watched, events, ready, count, inside) };
        let Some(errors) = readiness::errors(watched.fd, inside) else {
            continue;
        };
        let mut tells = ERROR;
        if errors.urgent {
            tells |= watched.events & URGENT;
        }
        let Some(socket) = table::lookup(watched.fd) else {
            continue;
        };
        let edges = socket.edges();
        if watched.events & libc::EPOLLET as u32 != 0 && edges == watched.seen {
            continue;
        }
        // SAFETY: that many are written.
        let told = unsafe { std::slice::from_raw_parts_mut(events, ready) };
        match place(watched, told).map(|at| &mut told[at]) {
            Some(event) => event.events |= tells,
            None if ready < count as usize => {
                let event = epoll_event {
                    events: tells,
                    u64: watched.data,
                };
                // SAFETY: there is room for it.
                unsafe { events.add(ready).write(event) };
                ready += 1;
                if watched.events & libc::EPOLLONESHOT as u32 != 0 {
                    arm(epoll, watched, watched.events & MODES);
                }
            }
            None => continue,
        }
        socket.tell_edges(edges);
    }
    ready as c_int
}

/// Of room: the kernel says that there is some, always, but tells of an edge only once.
///
/// # Safety
/// As [`merge`]'s.
unsafe fn merge_room(
    epoll: c_int,
    watched: &Watched,
    events: *mut epoll_event,
    ready: usize,
    count: c_int,
    inside: &Inside,
) -> usize {
    if watched.events & WRITABLE == 0 {
        return ready;
    }
    // SAFETY: that many are written.
    let told = unsafe { std::slice::from_raw_parts_mut(events, ready) };
    let place = place(watched, told);
    // What cannot be told now is not taken note of.
    if place.is_none() && ready >= count as usize {
        return ready;
    }
    match (readiness::room(watched.fd, inside), place) {
        (Room::AsTheKernelSays, _) => ready,
        (Room::None, None) => ready,
        (Room::None, Some(at)) => {
            told[at].events &= !WRITABLE;
            if told[at].events != 0 {
                return ready;
            }
            told.copy_within(at + 1.., at);
            if watched.events & libc::EPOLLONESHOT as u32 != 0 {
                arm(epoll, watched, watched.events);
            }
            ready - 1
        }
        (Room::Again, Some(at)) => {
            told[at].events |= watched.events & WRITABLE;
            ready
        }
        (Room::Again, None) => {
            let event = epoll_event {
                events: watched.events & WRITABLE,
                u64: watched.data,
            };
            // SAFETY: there is room for it.
            unsafe { events.add(ready).write(event) };
            if watched.events & libc::EPOLLONESHOT as u32 != 0 {
                arm(epoll, watched, watched.events & MODES);
            }
            ready + 1
        }
    }
}

/// Where a registration's event is, if that can be told.
fn place(watched: &Watched, told: &[epoll_event]) -> Option<usize> {
    let position = || told.iter().position(|event| event.u64 == watched.data);
    (!watched.shared).then(position).flatten()
}

/// A registration for one event is used up, or was not after all.
fn arm(epoll: c_int, watched: &Watched, events: u32) {
    let mut event = epoll_event {
        events,
        u64: watched.data,
    };
    // Fails if the program has just removed it, which is as good.
    // SAFETY: the event is there for the call.
    unsafe { real::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, watched.fd, &mut event) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernels_is_a_registration() {
        let line = "tfd:        5 events:       1d data:  deadbeef00000005  pos:0 ino:61af sdev:7";
        let watched = registration(line).expect("a registration");
        assert_eq!((watched.fd, watched.events), (5, 0x1d));
        assert_eq!(watched.data, 0xdead_beef_0000_0005);
    }

    #[test]
    fn data_of_several_registrations_tells_none_of_them_from_the_others() {
        // The last one was used up.
        let text = "pos:\t0\ntfd: 5 events: 1d data: a\ntfd: 6 events: 1d data: b\ntfd: 7 events: 1d data: a\n\
                    tfd: 8 events: 1d data: c\ntfd: 9 events: 40000000 data: c\n";
        let shared: Vec<_> = registrations(text)
            .map(|one| (one.fd, one.shared))
            .collect();
        assert_eq!(shared, [(5, true), (6, false), (7, true), (8, true)]);
    }

    #[test]
    fn other_lines_and_registrations_that_were_used_up_are_none() {
        for line in [
            "",
            "pos:\t0",
            "tfd:",
            "tfd: x events: 1 data: 1",
            "tfd: 5 events: 40000000 data: 5",
            "tfd: 5 events: 40000018 data: 5",
        ] {
            assert_eq!(registration(line), None, "{line}");
        }
    }
}
