//! The lane's parking protocol over loom's types. The eventfd is a counter that a sleeper waits for;
//! a lost wake-up shows as a deadlock.

use loom::sync::atomic::AtomicU32;
use loom::sync::{Arc, Condvar, Mutex};

use super::*;

/// An eventfd registered edge-triggered: a sleeper returns when it was written since the last return.
struct EventFd {
    writes: Mutex<u32>,
    written: Condvar,
}

impl EventFd {
    fn new() -> Self {
        EventFd {
            writes: Mutex::new(0),
            written: Condvar::new(),
        }
    }

    fn write(&self) {
        *self.writes.lock().unwrap() += 1;
        self.written.notify_one();
    }

    fn wait(&self) {
        let mut writes = self.writes.lock().unwrap();
        while *writes == 0 {
            writes = self.written.wait(writes).unwrap();
        }
        *writes = 0;
    }
}

struct Shared {
    state: AtomicU32,
    dirty: AtomicU32,
    eventfd: EventFd,
    /// Producer indices: one ring per application thread.
    rings: [AtomicU32; 2],
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared {
            state: AtomicU32::new(RUNNING),
            dirty: AtomicU32::new(0),
            eventfd: EventFd::new(),
            rings: [AtomicU32::new(0), AtomicU32::new(0)],
        })
    }

    fn publish(&self, ring_number: usize, index: u32) {
        self.rings[ring_number].store(index, Ordering::Release);
        if ring(&self.state, &self.dirty) {
            self.eventfd.write();
        }
    }

    fn published(&self) -> u32 {
        self.rings
            .iter()
            .map(|ring| ring.load(Ordering::Acquire))
            .sum()
    }

    /// Looks at the rings only when the mark says so; parks when there is none.
    fn run_lane_until(&self, target: u32) {
        loop {
            if take_dirty(&self.dirty) {
                if self.published() == target {
                    return;
                }
                continue;
            }
            park(&self.state);
            if take_dirty(&self.dirty) {
                unpark(&self.state);
                if self.published() == target {
                    return;
                }
                continue;
            }
            self.eventfd.wait();
            unpark(&self.state);
        }
    }
}

fn explore(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(body);
}

#[test]
fn no_wake_up_is_lost_with_one_application_thread() {
    explore(Some(4), || {
        let shared = Shared::new();
        let application = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                shared.publish(0, 1);
                shared.publish(0, 2);
            })
        };
        shared.run_lane_until(2);
        application.join().unwrap();
    });
}

#[test]
fn no_wake_up_is_lost_with_two_application_threads() {
    explore(Some(3), || {
        let shared = Shared::new();
        let applications = [0, 1].map(|ring_number| {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.publish(ring_number, 1))
        });
        shared.run_lane_until(2);
        for application in applications {
            application.join().unwrap();
        }
    });
}

#[test]
fn a_lane_that_looks_at_the_rings_instead_of_the_mark_loses_none_either() {
    explore(Some(4), || {
        let shared = Shared::new();
        let application = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                shared.publish(0, 1);
                shared.publish(0, 2);
            })
        };
        while shared.published() < 2 {
            park(&shared.state);
            if shared.published() < 2 {
                shared.eventfd.wait();
            }
            unpark(&shared.state);
        }
        application.join().unwrap();
    });
}
