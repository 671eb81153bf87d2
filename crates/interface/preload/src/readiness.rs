//! Waiting: `poll`, `select` and `epoll_wait` also tell what waits on error queues of ours.
//!
//! Nothing rings when a frame has left. So while an accelerated socket that may have something to tell, or has
//! had no room for a send and is waited on for some, is among the descriptors, the kernel's wait is cut into slices of a millisecond, and each
//! looks. Every other wait is the kernel's alone; if it is on an epoll descriptor, it is ended when such a socket comes up meanwhile.

use std::ffi::{c_int, c_short};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr;

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec};

use crate::epoll::Watching;
use crate::errors;
use crate::kernel;
use crate::process::{self, Inside};
use crate::real;
use crate::socket;
use crate::table;
use crate::transmit;

/// A slice, in nanoseconds.
const SLICE: i64 = 1_000_000;
/// `POLLERR` as `poll` knows it.
const ERROR: c_short = libc::POLLERR;
/// `POLLPRI`.
const URGENT: c_short = libc::POLLPRI;
/// What says that there is room.
const WRITABLE: c_short = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND;

/// A wait that may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Option<i64>);

impl Deadline {
    /// In so many nanoseconds from now; `None`: never.
    pub fn after(nanoseconds: Option<i64>) -> Self {
        Self(nanoseconds.map(|wait| kernel::monotonic().saturating_add(wait.max(0))))
    }

    /// From a timeout in milliseconds, negative for none.
    pub fn after_milliseconds(timeout: c_int) -> Self {
        Self::after((timeout >= 0).then_some(i64::from(timeout) * 1_000_000))
    }

    /// Nanoseconds left; `None`: without end.
    pub fn left(self) -> Option<i64> {
        self.0.map(|end| (end - kernel::monotonic()).max(0))
    }

    /// The next slice, and whether it is the last.
    fn slice(self) -> (timespec, bool) {
        let left = self.left();
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        let time = timespec {
            tv_sec: 0,
            tv_nsec: slice,
        };
        (time, left == Some(slice))
    }
}

/// Nanoseconds of a timeout that the program gave, which it may have given wrongly.
pub fn nanoseconds(time: &timespec) -> i64 {
    time.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec)
}

/// What waits on an error queue, as readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errors {
    /// It is urgent data, too: `SO_SELECT_ERR_QUEUE`.
    pub urgent: bool,
}

/// Whether a descriptor's error queue has something of ours, after a look at what became of its frames.
pub fn errors(fd: c_int, inside: &Inside) -> Option<Errors> {
    let socket = table::lookup(fd).filter(|socket| socket.is_reporting())?;
    let mut state = socket.current(fd, inside)?;
    errors::look(socket, &mut state);
    let urgent = state.options.as_ref()?.select_errors;
    state.reports.are_waiting().then_some(Errors { urgent })
}

/// Whether a descriptor may have something to tell to who waits on it, `for_room` or not.
fn may_tell(fd: c_int, for_room: bool) -> bool {
    table::lookup(fd).is_some_and(|socket| socket.is_telling_for(for_room))
}

/// What there is to say about room, which the kernel does not know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Nothing: as the kernel says.
    AsTheKernelSays,
    /// There is none, whatever the kernel says.
    None,
    /// There is some again.
    Again,
}

/// Whether a descriptor's socket has room; that there is some again is told once.
pub fn room(fd: c_int, inside: &Inside) -> Room {
    let Some(socket) = table::lookup(fd).filter(|socket| socket.is_full()) else {
        return Room::AsTheKernelSays;
    };
    match transmit::has_room(socket, fd, inside) {
        true => {
            socket.set_full(false);
            Room::Again
        }
        false => Room::None,
    }
}

/// Waits in slices. `wait` is the kernel's wait for as long as it is told, `find` adds what is ours to what the
/// kernel has found. Signals are delivered by `mask`.
fn in_slices(
    deadline: Deadline,
    mask: *const sigset_t,
    wait: impl Fn(&timespec) -> c_int,
    find: impl Fn(c_int) -> c_int,
) -> c_int {
    let now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut slice = (now, deadline.left() == Some(0));
    loop {
        let ready = wait(&slice.0);
        if ready < 0 {
            return ready;
        }
        let found = find(ready);
        if found != 0 || slice.1 {
            return found;
        }
        let next = deadline.slice();
        // What the kernel says at once, and is not so, it says again at once.
        if ready > 0 && kernel::pause_with(nanoseconds(&next.0), mask) {
            process::set_errno(libc::EINTR);
            return -1;
        }
        slice = next;
    }
}

/// `poll` and `ppoll`. `None`: the kernel's alone.
///
/// # Safety
/// As `ppoll`'s.
pub unsafe fn poll(
    fds: *mut pollfd,
    count: nfds_t,
    deadline: impl FnOnce() -> Deadline,
    mask: *const sigset_t,
) -> Option<c_int> {
    if !socket::any_telling() || fds.is_null() || count == 0 {
        return None;
    }
    let wait = |time: &timespec| {
        // SAFETY: by the caller's promise.
        unsafe { real::ppoll(fds, count, time, mask) }
    };
    // The kernel says first whether the list is there at all.
    let now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let ready = wait(&now);
    if ready < 0 {
        return Some(ready);
    }
    let length = usize::try_from(count).ok()?;
    // SAFETY: the kernel has read and written all of it just now.
    let list = || unsafe { std::slice::from_raw_parts_mut(fds, length) };
    if !list()
        .iter()
        .any(|entry| may_tell(entry.fd, entry.events & WRITABLE != 0))
    {
        return (ready > 0).then_some(ready);
    }
    let find = |ready| {
        let found = process::inside(|inside| {
            let mut ready = ready;
            for entry in list() {
                if entry.revents & WRITABLE != 0 && room(entry.fd, inside) == Room::None {
                    entry.revents &= !WRITABLE;
                    ready -= c_int::from(entry.revents == 0);
                }
                if entry.revents & ERROR == 0
                    && let Some(errors) = errors(entry.fd, inside)
                {
                    ready += c_int::from(entry.revents == 0);
                    entry.revents |= ERROR;
                    if errors.urgent {
                        entry.revents |= entry.events & URGENT;
                    }
                }
            }
            ready
        });
        found.unwrap_or(ready)
    };
    Some(in_slices(deadline(), mask, wait, find))
}

/// What is needed while the kernel waits. It is not dropped by itself: a thread that is cancelled there is
/// unwound without it; and it is dropped inside, for a signal handler may send.
struct Kept<T>(ManuallyDrop<T>);

impl<T> Kept<T> {
    fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }

    fn get(&self) -> &T {
        &self.0
    }

    fn drop(self) {
        process::inside(|_| drop(ManuallyDrop::into_inner(self.0)));
    }
}

/// A set of descriptors as `select` has it: as many words as the highest descriptor needs, which may be more
/// than the type says.
#[derive(Clone)]
struct Set {
    place: *mut u64,
    wanted: Vec<u64>,
}

const WORD: usize = u64::BITS as usize;

impl Set {
    /// # Safety
    /// `place` is null or has bits for `count` descriptors.
    unsafe fn new(place: *mut fd_set, count: usize) -> Self {
        let place: *mut u64 = place.cast();
        let wanted = match place.is_null() {
            true => Vec::new(),
            // SAFETY: by the caller's promise.
            false => unsafe { std::slice::from_raw_parts(place, count.div_ceil(WORD)) }.to_vec(),
        };
        Self { place, wanted }
    }

    /// Puts back what the program asked for.
    fn restore(&self) {
        // SAFETY: as many words as were read.
        unsafe { ptr::copy_nonoverlapping(self.wanted.as_ptr(), self.place, self.wanted.len()) };
    }

    fn clear(&self) {
        for at in 0..self.wanted.len() {
            // SAFETY: as many words as were read.
            unsafe { self.place.add(at).write(0) };
        }
    }

    fn wants(&self, fd: usize) -> bool {
        self.wanted
            .get(fd / WORD)
            .is_some_and(|word| word & 1 << (fd % WORD) != 0)
    }

    /// Whether a descriptor is ready that is asked for.
    fn is_ready(&self, fd: usize) -> bool {
        // SAFETY: within the words that were read.
        self.wants(fd) && unsafe { *self.place.add(fd / WORD) } & 1 << (fd % WORD) != 0
    }

    /// Makes one unready that is asked for.
    fn make_unready(&self, fd: usize) {
        if self.wants(fd) {
            // SAFETY: within the words that were read.
            unsafe { *self.place.add(fd / WORD) &= !(1 << (fd % WORD)) };
        }
    }

    /// Makes a descriptor ready that is asked for. Whether it was not.
    fn make_ready(&self, fd: usize) -> bool {
        if !self.wants(fd) {
            return false;
        }
        // SAFETY: within the words that were read.
        let word = unsafe { &mut *self.place.add(fd / WORD) };
        let bit = 1 << (fd % WORD);
        let was = *word & bit != 0;
        *word |= bit;
        !was
    }
}

/// `select` and `pselect`. `None`: the kernel's alone.
///
/// # Safety
/// As `pselect`'s.
pub unsafe fn select(
    count: c_int,
    sets: [*mut fd_set; 3],
    deadline: impl FnOnce() -> Deadline,
    mask: *const sigset_t,
) -> Option<c_int> {
    if !socket::any_telling() || count <= 0 {
        return None;
    }
    let fds = count as usize;
    // What the kernel would say of sets that are not there, it says; nothing is read before.
    if !sets
        .iter()
        .filter(|set| !set.is_null())
        .all(|set| is_readable(*set, fds))
    {
        return None;
    }
    let prepared = process::inside(|_| {
        let sets = sets.map(|set| {
            // SAFETY: readable, see above, and writable by the caller's promise.
            unsafe { Set::new(set, fds) }
        });
        let wanted = |fd| sets.iter().any(|set| set.wants(fd));
        let [_, write, _] = &sets;
        let telling: Vec<usize> = (0..fds)
            .filter(|fd| wanted(*fd) && may_tell(*fd as c_int, write.wants(*fd)))
            .collect();
        Kept::new((sets, telling))
    })?;
    let (sets, telling) = prepared.get();
    let [read, write, except] = sets;
    let wait = |time: &timespec| {
        sets.iter().for_each(Set::restore);
        // SAFETY: by the caller's promise; null where the program gave null.
        unsafe {
            real::pselect(
                count,
                read.place.cast(),
                write.place.cast(),
                except.place.cast(),
                time,
                mask,
            )
        }
    };
    let find = |ready| {
        let found = process::inside(|inside| {
            let mut ready = ready;
            for fd in telling.iter().copied() {
                if write.is_ready(fd) && room(fd as c_int, inside) == Room::None {
                    write.make_unready(fd);
                    ready -= 1;
                }
                let Some(errors) = errors(fd as c_int, inside) else {
                    continue;
                };
                // An error makes a descriptor ready for both.
                let told = [Some(read), Some(write), errors.urgent.then_some(except)];
                let told = told.into_iter().flatten().filter(|set| set.wants(fd));
                for set in told {
                    if ready == 0 {
                        // The kernel leaves sets as they were when time is up.
                        sets.iter().for_each(Set::clear);
                    }
                    ready += c_int::from(set.make_ready(fd));
                }
            }
            ready
        });
        found.unwrap_or(ready)
    };
    let ready = (!telling.is_empty()).then(|| in_slices(deadline(), mask, wait, find));
    prepared.drop();
    ready
}

fn is_readable(set: *const fd_set, fds: usize) -> bool {
    let mut probe = MaybeUninit::<[u8; 8]>::uninit();
    let words = fds.div_ceil(WORD);
    // The first word and the last: a set is smaller than a page unless there are very many descriptors.
    [0, words - 1].into_iter().all(|word| {
        let place = set.cast::<u64>().wrapping_add(word);
        // SAFETY: the array may hold anything.
        let probe = unsafe { probe.assume_init_mut() };
        crate::memory::read_bytes(probe, place.cast()).is_ok()
    })
}

/// `epoll_wait` and its kin: `whole` is the program's own call, `wait` the same for so many nanoseconds or without end. Both
/// have the program's `mask`.
///
/// A socket may come to have something to tell while a thread waits in the kernel: then that thread is woken, and looks
/// from then on.
///
/// # Safety
/// `events` is writable for `count` events when the kernel could write them.
pub unsafe fn epoll(
    epoll: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    deadline: Deadline,
    mask: *const sigset_t,
    whole: impl Fn() -> c_int,
    wait: impl Fn(Option<i64>) -> c_int,
) -> c_int {
    if events.is_null() || count <= 0 {
        return whole();
    }
    // As `Kept`.
    let mut watching = ManuallyDrop::new(Watching::new());
    let mut first = true;
    let found = loop {
        let left = deadline.left();
        // Before the look at what there is to tell: who has more to tell afterwards finds that this thread waits.
        crate::epoll::enter(epoll);
        watching.renew(epoll);
        let looks = !watching.watched().is_empty();
        let ready = if looks {
            crate::epoll::leave(epoll);
            wait(Some(slice_of(left, first)))
        } else {
            let ready = if first { whole() } else { wait(left) };
            crate::epoll::leave(epoll);
            ready
        };
        if ready < 0 {
            break ready;
        }
        // SAFETY: the kernel has written the first `ready`.
        let (told, heard) = unsafe { crate::epoll::take_bell(epoll, events, ready) };
        watching.renew(epoll);
        let found = match watching.watched() {
            [] => told,
            watched => {
                // SAFETY: the first `told` are written, and the rest is writable by the caller.
                let merge = |inside: &Inside| unsafe {
                    crate::epoll::merge(epoll, watched, events, told, count, inside)
                };
                process::inside(merge).unwrap_or(told)
            }
        };
        let over = match looks {
            true => left == Some(slice_of(left, first)) && !heard.any,
            false => ready == 0,
        };
        if found != 0 || over {
            break found;
        }
        // What the kernel says at once, and is not so, it says again at once. And a bell is left to whom it is for.
        let pauses = looks && told > 0 || heard.passed_on;
        if pauses && kernel::pause_with(slice_of(deadline.left(), false), mask) {
            process::set_errno(libc::EINTR);
            break -1;
        }
        first = false;
    };
    if !watching.watched().is_empty() {
        // There may be more to tell, and another thread waits for it in the kernel.
        crate::epoll::wake(epoll);
        process::inside(|_| drop(ManuallyDrop::into_inner(watching)));
    }
    found
}

/// How long a look waits of what is left: the first one not at all.
fn slice_of(left: Option<i64>, first: bool) -> i64 {
    let slice = if first { 0 } else { SLICE };
    left.map_or(slice, |left| left.min(slice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_met_by_slices_of_which_the_last_is_known() {
        let (slice, last) = Deadline::after(None).slice();
        assert_eq!((slice.tv_nsec, last), (SLICE, false));
        let (slice, last) = Deadline::after(Some(0)).slice();
        assert_eq!((slice.tv_nsec, last), (0, true));
        let (slice, last) = Deadline::after_milliseconds(10_000).slice();
        assert_eq!((slice.tv_nsec, last), (SLICE, false));
        assert_eq!(Deadline::after_milliseconds(-1).left(), None);
        assert_eq!(Deadline::after(Some(i64::MIN)).left(), Some(0));
    }

    #[test]
    fn timeouts_beyond_the_scale_are_held() {
        let far = timespec {
            tv_sec: i64::MAX,
            tv_nsec: 999_999_999,
        };
        assert_eq!(nanoseconds(&far), i64::MAX);
        assert!(Deadline::after(Some(nanoseconds(&far))).left() > Some(1 << 60));
    }

    #[test]
    fn slices_go_on_until_something_is_found_or_time_is_up() {
        let rounds = std::cell::Cell::new(0);
        let count = |_: &timespec| {
            rounds.set(rounds.get() + 1);
            0
        };
        let found = in_slices(Deadline::after(None), ptr::null(), count, |_| {
            c_int::from(rounds.get() == 5)
        });
        assert_eq!((found, rounds.get()), (1, 5));
        let none = in_slices(Deadline::after(Some(0)), ptr::null(), count, |ready| ready);
        assert_eq!(
            (none, rounds.get()),
            (0, 6),
            "one look, as the kernel takes"
        );
        let broken = in_slices(
            Deadline::after(None),
            ptr::null(),
            |_| -1,
            |_| unreachable!(),
        );
        assert_eq!(broken, -1);
    }

    #[test]
    fn a_set_is_put_back_and_made_ready_by_the_bit() {
        let mut bits = [0b1010u64, 1 << 63];
        // SAFETY: bits for 128 descriptors.
        let set = unsafe { Set::new(bits.as_mut_ptr().cast(), 128) };
        assert!(set.wants(1) && set.wants(127) && !set.wants(0) && !set.wants(500));
        set.clear();
        assert!(set.make_ready(127) && !set.make_ready(127) && !set.make_ready(2));
        // SAFETY: the array is here.
        assert_eq!(unsafe { *set.place.add(1) }, 1 << 63);
        set.restore();
        // SAFETY: the array is here.
        assert_eq!(unsafe { *set.place }, 0b1010);
        // SAFETY: nothing is there.
        let none = unsafe { Set::new(ptr::null_mut(), 128) };
        none.restore();
        assert!(!none.make_ready(1));
    }
}
