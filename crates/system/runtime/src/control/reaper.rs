//! Lets go of what strangers have had in their hands, where waiting hurts nobody else.
//!
//! To close a descriptor can take as long as a stranger wants: the receive queue of a Unix socket may hold
//! descriptors that were sent and never taken, among them TCP sockets with SO_LINGER, and the last to close them
//! waits. To unmap an arena takes milliseconds. So each tenant has a thread of its own that does it, while there
//! is something to release; none delays another's, a lane, the control thread, or the end of the process (whose
//! sockets do not linger). What is watched by an epoll instance is taken from it before: `epoll_wait` holds the
//! files that it looks at (Linux 6.9), and would be the last to close one that is closed at that moment.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The queues of all tenants.
#[derive(Default)]
pub struct Reaper {
    tenants: HashMap<u32, Arc<Mutex<Queue>>>,
}

#[derive(Default)]
struct Queue {
    things: VecDeque<Box<dyn Any + Send>>,
    /// A thread is at it. What it has in hand counts.
    working: bool,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reaper {
    /// Drops `thing` on the tenant's thread.
    pub fn release(&mut self, tenant: u32, thing: impl Any + Send) {
        let queue = self.tenants.entry(tenant).or_default();
        lock(queue).things.push_back(Box::new(thing));
        Self::work(queue);
    }

    /// How much of a tenant's waits to be released, or is being.
    pub fn pending(&self, tenant: u32) -> usize {
        self.tenants.get(&tenant).map_or(0, |queue| {
            let queue = lock(queue);
            queue.things.len() + usize::from(queue.working)
        })
    }

    /// Forgets tenants with nothing left, and looks after those whose thread could not be started.
    pub fn tidy(&mut self) {
        self.tenants.retain(|_, queue| {
            Self::work(queue);
            let queue = lock(queue);
            queue.working || !queue.things.is_empty()
        });
    }

    /// Starts the thread if there is something to do and none is at it.
    fn work(queue: &Arc<Mutex<Queue>>) {
        let mut held = lock(queue);
        if held.working || held.things.is_empty() {
            return;
        }
        let theirs = queue.clone();
        let started = std::thread::Builder::new()
            .name("takt-reaper".into())
            .stack_size(128 << 10)
            .spawn(move || {
                loop {
                    let mut held = lock(&theirs);
                    let Some(thing) = held.things.pop_front() else {
                        held.working = false;
                        return;
                    };
                    drop(held);
                    drop(thing);
                }
            });
        // Without a thread it stays in the queue, and counts: `tidy` tries again.
        held.working = started.is_ok();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use takt_testing::until_true;

    /// Takes until somebody allows it to be dropped.
    struct Slow(Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    fn slow() -> (Sender<()>, Slow) {
        let (allow, wait) = channel();
        (allow, Slow(wait))
    }

    #[test]
    fn what_takes_long_delays_its_own_tenant_only() {
        let mut reaper = Reaper::default();
        let (allow, first) = slow();
        let (other_allow, second) = slow();
        reaper.release(1, first);
        reaper.release(1, second);
        drop(other_allow);
        let (allow_other, other) = slow();
        drop(allow_other);
        reaper.release(2, other);
        until_true("the other's is released", || reaper.pending(2) == 0);
        // One in the hand, one in the queue.
        until_true("the thread is at it", || reaper.pending(1) == 2);
        reaper.tidy();
        assert_eq!(reaper.pending(1), 2);
        drop(allow);
        until_true("all are released", || reaper.pending(1) == 0);
        reaper.tidy();
        assert!(reaper.tenants.is_empty());
        let (allow, again) = slow();
        reaper.release(1, again);
        drop(allow);
        until_true("a thread is there again", || reaper.pending(1) == 0);
    }
}
