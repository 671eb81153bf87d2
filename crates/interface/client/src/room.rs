//! Room at sources for event loops: who waits for it, and how they are told.
//!
//! Memory is the session's, so that what any source gets back may be room for any other. The lane signals one descriptor of
//! the session when it has shown completions; the [reader](crate::reader) thread watches it and passes that on to each source
//! that is armed, by an eventfd of its own. Whoever makes room in this process, and what changes the session's state, does the
//! same at once, at the cost of a fence where nobody is armed.
//!
//! Both ways follow the pattern of the doorbells (`takt_shm::doorbell`): who is armed looks once more after saying so, who
//! makes room looks after that whether somebody is. Of two sequentially consistent fences one comes first. The word in the arena
//! is all sources': one that is armed there and finds room leaves it as it is, for others. Then it is rung for once too often.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::RecvFlags;
use takt_session::{ErrorCode, Failure};

use crate::error::Error;
use crate::notify::Event;

/// The sources of a session that wait for room.
#[derive(Debug, Default)]
pub(crate) struct Room {
    armed: Mutex<Vec<Arc<Event>>>,
    /// How many they are. Written under the lock.
    count: AtomicUsize,
}

impl Room {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Event>>> {
        // Nothing in here leaves a half-done change when it panics.
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There may be room, or an error to be told: what is said of it was made visible before.
    #[inline]
    pub(crate) fn came(&self) {
        // Partner: the fence in `arm`. Either its caller sees what was made visible, or it is counted here.
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) > 0 {
            self.tell();
        }
    }

    #[cold]
    fn tell(&self) {
        let mut armed = self.lock();
        self.count.store(0, Ordering::Relaxed);
        for event in armed.drain(..) {
            event.signal();
        }
    }

    /// The event is signalled, once, when room has come. Look once more after this.
    pub(crate) fn arm(&self, event: &Arc<Event>) {
        let mut armed = self.lock();
        if !armed.iter().any(|other| Arc::ptr_eq(other, event)) {
            armed.push(event.clone());
        }
        self.count.store(armed.len(), Ordering::Relaxed);
        drop(armed);
        // Partner: the fence in `came`.
        fence(Ordering::SeqCst);
    }

    /// It is not signalled any more; it may have been.
    pub(crate) fn disarm(&self, event: &Arc<Event>) {
        let mut armed = self.lock();
        armed.retain(|other| !Arc::ptr_eq(other, event));
        self.count.store(armed.len(), Ordering::Relaxed);
    }
}

/// Takes all that the runtime has signalled.
pub(crate) fn drain(signal: impl AsFd) {
    let mut bytes = [0; 64];
    while rustix::net::recv(&signal, &mut bytes[..], RecvFlags::DONTWAIT)
        .is_ok_and(|(count, _)| count > 0)
    {}
}

/// The runtime has no such descriptor.
pub(crate) fn not_available() -> Error {
    Error::Refused(Failure::new(
        ErrorCode::NotAvailable,
        "the runtime is of an older release, which tells no source of room by a descriptor: upgrade it, or open the source without one and wait with `buffer_wait`",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::readable;

    #[test]
    fn each_that_is_armed_is_told_once() {
        let room = Room::default();
        let events = [(); 3].map(|()| Arc::new(Event::new().expect("an eventfd")));
        room.came();
        room.arm(&events[0]);
        room.arm(&events[1]);
        room.arm(&events[1]);
        room.arm(&events[2]);
        room.disarm(&events[2]);
        assert!(events.iter().all(|event| !readable(&**event)));
        room.came();
        let told = events.each_ref().map(|event| readable(&**event));
        assert_eq!(told, [true, true, false]);
        events.iter().for_each(|event| event.drain());
        room.came();
        assert!(events.iter().all(|event| !readable(&**event)));
    }
}
