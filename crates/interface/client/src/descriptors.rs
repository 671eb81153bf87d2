//! Descriptors that are this library's and not the application's, for whoever stands between the two and is to keep the
//! application from closing them: `libtakt_preload.so`.
//!
//! Read and written without a lock, also by signal handlers and in forked children.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// So many can be registered. Others are as they would be without a registry.
const MOST: usize = 256;
const NONE: RawFd = -1;

static REGISTERED: [AtomicI32; MOST] = [const { AtomicI32::new(NONE) }; MOST];
/// No place from here on was ever taken.
static USED: AtomicUsize = AtomicUsize::new(0);

fn places() -> &'static [AtomicI32] {
    &REGISTERED[..USED.load(Ordering::Acquire).min(MOST)]
}

/// A descriptor is registered for as long as this lives: it ends before the descriptor is closed.
#[derive(Debug)]
pub struct Registered(RawFd);

impl Registered {
    /// Registers a descriptor.
    pub fn new(fd: RawFd) -> Self {
        for (at, place) in REGISTERED.iter().enumerate() {
            // Before the place is taken: whoever looks finds it, or nothing in it yet.
            USED.fetch_max(at + 1, Ordering::AcqRel);
            let taken = place.compare_exchange(NONE, fd, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                break;
            }
        }
        Self(fd)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        for place in places() {
            let found = place.compare_exchange(self.0, NONE, Ordering::AcqRel, Ordering::Relaxed);
            if found.is_ok() {
                break;
            }
        }
    }
}

/// Whether a descriptor is registered.
pub fn is_registered(fd: RawFd) -> bool {
    fd != NONE
        && places()
            .iter()
            .any(|place| place.load(Ordering::Acquire) == fd)
}

/// The first one that is registered, from `first` to `last`.
pub fn first_registered(first: RawFd, last: RawFd) -> Option<RawFd> {
    let all = places().iter().map(|place| place.load(Ordering::Acquire));
    all.filter(|fd| *fd != NONE && (first..=last).contains(fd))
        .min()
}

/// In a forked child: they are the parent's, and what the child has of them it may close.
pub(crate) fn forget_all() {
    for place in places() {
        place.store(NONE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// The places are the process's: what one test fills another would miss.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Descriptors that no test process has open.
    const FAR: RawFd = 900_000;

    #[test]
    fn a_descriptor_is_registered_until_its_registration_is_dropped() {
        let _alone = alone();
        let registered = Registered::new(FAR);
        let again = Registered::new(FAR);
        assert!(is_registered(FAR) && !is_registered(FAR + 1) && !is_registered(-1));
        drop(registered);
        assert!(is_registered(FAR), "twice");
        drop(again);
        assert!(!is_registered(FAR));
    }

    #[test]
    fn the_first_of_a_range_is_found() {
        let _alone = alone();
        let first = FAR + 100;
        let all: Vec<_> = [7, 3, 5].map(|at| Registered::new(first + at)).into();
        assert_eq!(first_registered(first, first + 9), Some(first + 3));
        assert_eq!(first_registered(first + 4, first + 9), Some(first + 5));
        assert_eq!(first_registered(first + 8, RawFd::MAX), None);
        assert_eq!(first_registered(first, first + 2), None);
        drop(all);
        assert_eq!(first_registered(first, first + 9), None);
    }

    #[test]
    fn more_than_there_are_places_for_are_as_without_a_registry() {
        let _alone = alone();
        let all: Vec<_> = (0..300)
            .map(|at| Registered::new(FAR + 1000 + at))
            .collect();
        assert!(is_registered(FAR + 1000));
        drop(all);
        assert_eq!(first_registered(FAR + 1000, FAR + 2000), None);
    }
}
