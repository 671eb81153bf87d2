//! Which descriptors are accelerated sockets: a table that is read without a lock.
//!
//! Sockets that the table points to are never freed, only used again ([`Socket`]), so a pointer read here may
//! be out of date but never dangles. Whoever locks the socket looks again whether the entry still leads
//! there.
//!
//! Descriptors may be closed where nobody looks (`fclose` inside the C library, system calls made by hand):
//! an entry is cleared when `socket` hands its number out again, and the socket's cookie tells the rest.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::process;
use crate::socket::Socket;

/// Entries in a page.
const PAGE: usize = 1024;
/// Pages: together the kernel's own limit, unless `fs.nr_open` was raised. Sockets beyond are the kernel's.
const PAGES: usize = 1024;

type Page = [AtomicPtr<Socket>; PAGE];

static TABLE: [AtomicPtr<Page>; PAGES] = [const { AtomicPtr::new(ptr::null_mut()) }; PAGES];

/// Descriptors that were looked at, or made here, and are no accelerated sockets: a bit each.
static KNOWN: [AtomicU64; PAGE * PAGES / 64] = [const { AtomicU64::new(0) }; PAGE * PAGES / 64];

/// How often all of them were forgotten.
static FORGOTTEN: AtomicU32 = AtomicU32::new(0);

#[inline]
fn entry(fd: c_int) -> Option<&'static AtomicPtr<Socket>> {
    let number = usize::try_from(fd).ok()?;
    // Acquire: partner is the exchange in `make_entry`; the page is filled before it is found.
    let page = TABLE.get(number / PAGE)?.load(Ordering::Acquire);
    // SAFETY: null, or a page that `make_entry` has leaked.
    let page: &'static Page = unsafe { page.as_ref() }?;
    Some(&page[number % PAGE])
}

fn make_entry(fd: c_int) -> Option<&'static AtomicPtr<Socket>> {
    if let Some(entry) = entry(fd) {
        return Some(entry);
    }
    let place = TABLE.get(usize::try_from(fd).ok()? / PAGE)?;
    let page = Box::into_raw(Box::new([const { AtomicPtr::new(ptr::null_mut()) }; PAGE]));
    if place
        .compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        // SAFETY: made above and shown to nobody.
        drop(unsafe { Box::from_raw(page) });
    }
    entry(fd)
}

/// The accelerated socket behind a descriptor.
#[inline]
pub fn lookup(fd: c_int) -> Option<&'static Socket> {
    // Acquire: partner is the swap in `insert`; the socket is whole before it is found.
    let socket = entry(fd)?.load(Ordering::Acquire);
    // SAFETY: null, or a socket, which lives for ever.
    unsafe { socket.as_ref() }
}

/// Whether a descriptor leads to this socket.
#[inline]
pub fn leads_to(fd: c_int, socket: &Socket) -> bool {
    lookup(fd).is_some_and(|found| ptr::eq(found, socket))
}

/// A descriptor that leads to this socket.
pub fn find(socket: &Socket) -> Option<c_int> {
    for (number, page) in TABLE.iter().enumerate() {
        // SAFETY: as in `entry`.
        let Some(page) = (unsafe { page.load(Ordering::Acquire).as_ref() }) else {
            continue;
        };
        let leads = |entry: &AtomicPtr<Socket>| ptr::eq(entry.load(Ordering::Acquire), socket);
        if let Some(at) = page.iter().position(leads) {
            return Some((number * PAGE + at) as c_int);
        }
    }
    None
}

/// Makes a descriptor lead to a socket, for which the caller has counted it. False: the table has no place.
pub fn insert(fd: c_int, socket: &'static Socket) -> bool {
    let Some(entry) = make_entry(fd) else {
        return false;
    };
    let former = entry.swap(ptr::from_ref(socket).cast_mut(), Ordering::AcqRel);
    // SAFETY: as in `lookup`.
    if let Some(former) = unsafe { former.as_ref() } {
        former.release();
    }
    true
}

/// Takes a descriptor out that is about to be closed or to mean something else; what it led to is still
/// counted for it.
#[inline]
pub fn take(fd: c_int) -> Option<&'static Socket> {
    forget_known(fd);
    let entry = entry(fd)?;
    if entry.load(Ordering::Relaxed).is_null() || process::is_borrowed() {
        return None;
    }
    // SAFETY: as in `lookup`.
    unsafe { entry.swap(ptr::null_mut(), Ordering::AcqRel).as_ref() }
}

/// As [`take`]; the socket is given up when no other descriptor leads to it.
#[inline]
pub fn remove(fd: c_int) {
    if let Some(socket) = take(fd) {
        socket.release();
    }
}

/// As [`remove`], for all descriptors from `first` to `last`.
pub fn remove_range(first: u32, last: u32) {
    let end = (PAGE * PAGES) as u32;
    let mut fd = first.min(end);
    let last = last.min(end - 1);
    while fd <= last {
        let page = fd as usize / PAGE;
        // Whole pages are skipped that have nothing in them.
        if TABLE[page].load(Ordering::Relaxed).is_null() {
            let next = ((page + 1) * PAGE) as u32;
            for fd in fd..next.min(last + 1) {
                forget_known(fd as c_int);
            }
            fd = next;
            continue;
        }
        remove(fd as c_int);
        fd += 1;
    }
}

/// A new descriptor means what another does.
pub fn duplicate(old: c_int, new: c_int) {
    if process::is_borrowed() {
        return;
    }
    match lookup(old) {
        Some(socket) if socket.retain() => {
            // Inside, because the table may have to grow.
            let inserted = process::inside(|inside| {
                // What was watched by this number may have been another socket's.
                crate::epoll::forget_all(inside);
                insert(new, socket)
            });
            if inserted != Some(true) {
                socket.release();
            }
        }
        _ => remove(new),
    }
}

/// Whether a descriptor was looked at and is the kernel's.
#[inline]
pub fn is_known(fd: c_int) -> bool {
    let fd = fd as usize;
    // What does not fit into the table never becomes accelerated.
    KNOWN
        .get(fd / 64)
        .is_none_or(|word| word.load(Ordering::Relaxed) & 1 << (fd % 64) != 0)
}

/// When a descriptor is looked at.
#[derive(Clone, Copy)]
pub struct Look(u32);

/// To be called before.
pub fn look() -> Look {
    Look(FORGOTTEN.load(Ordering::SeqCst))
}

/// Remembers what a look has found, unless another thread had all forgotten meanwhile.
pub fn set_known(fd: c_int, look: Look) {
    let number = fd as usize;
    if let Some(word) = KNOWN.get(number / 64) {
        word.fetch_or(1 << (number % 64), Ordering::SeqCst);
        if FORGOTTEN.load(Ordering::SeqCst) != look.0 {
            forget_known(fd);
        }
    }
}

/// Any descriptor may lead to a socket that has become an accelerated one.
pub fn forget_all_known() {
    // First: who has looked before sees it, or its mark is still to be taken away.
    FORGOTTEN.fetch_add(1, Ordering::SeqCst);
    for word in &KNOWN {
        if word.load(Ordering::SeqCst) != 0 {
            word.store(0, Ordering::SeqCst);
        }
    }
}

#[inline]
fn forget_known(fd: c_int) {
    let number = fd as usize;
    if let Some(word) = KNOWN.get(number / 64)
        && word.load(Ordering::Relaxed) & 1 << (number % 64) != 0
    {
        word.fetch_and(!(1 << (number % 64)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Inside;

    // Descriptors that no test process has open.
    const FAR: c_int = 700_000;

    fn socket() -> &'static Socket {
        crate::process::start();
        let inside = Inside::enter().expect("a thread of its own");
        Socket::claim(&inside)
    }

    #[test]
    fn an_entry_leads_to_its_socket_until_it_is_removed() {
        assert!(lookup(FAR).is_none());
        let socket = socket();
        assert!(insert(FAR, socket));
        assert!(leads_to(FAR, socket));
        remove(FAR);
        assert!(lookup(FAR).is_none());
    }

    #[test]
    fn a_socket_lives_as_long_as_any_of_its_descriptors() {
        let (first, second) = (FAR + 2000, FAR + 4000);
        let socket = socket();
        assert!(insert(first, socket));
        duplicate(first, second);
        assert_eq!(find(socket), Some(first));
        remove(first);
        assert!(leads_to(second, socket));
        assert_eq!(find(socket), Some(second));
        assert!(socket.retain(), "it is in use");
        socket.release();
        remove(second);
        assert!(!socket.retain(), "nothing leads to it any more");
        assert_eq!(find(socket), None);
    }

    #[test]
    fn numbers_beyond_the_table_and_below_zero_are_the_kernels() {
        for fd in [-1, c_int::MIN, (PAGE * PAGES) as c_int, c_int::MAX] {
            assert!(lookup(fd).is_none());
            assert!(is_known(fd), "{fd}: nothing to look at");
            remove(fd);
            set_known(fd, look());
            assert!(!insert(fd, socket()));
        }
    }

    #[test]
    fn what_was_seen_before_all_were_forgotten_is_looked_at_again() {
        let fd = FAR + 14_000;
        let before = look();
        // Another thread gives the same socket transmission times, by another number.
        forget_all_known();
        set_known(fd, before);
        assert!(!is_known(fd));
        set_known(fd, look());
        assert!(is_known(fd));
        forget_all_known();
        assert!(!is_known(fd));
    }

    #[test]
    fn a_range_is_removed_from_its_first_to_its_last() {
        let (first, last) = (FAR + 10_000, FAR + 12_000);
        for fd in [first - 1, first, last, last + 1] {
            assert!(insert(fd, socket()));
            set_known(fd + 5000, look());
        }
        remove_range(first as u32, last as u32);
        assert!(lookup(first - 1).is_some() && lookup(last + 1).is_some());
        assert!(lookup(first).is_none() && lookup(last).is_none());
        remove_range((first + 5000) as u32, u32::MAX);
        assert!(is_known(first + 4999) && !is_known(first + 5000));
        remove(first - 1);
        remove(last + 1);
    }
}
