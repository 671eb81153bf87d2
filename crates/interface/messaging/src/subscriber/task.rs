//! Subscribers that hand their messages to a function.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use takt::Wait;

use super::{Sample, Subscriber, SubscriberWaker};
use crate::error::Error;

/// What the thread leaves behind.
type Failure = Arc<Mutex<Option<String>>>;

fn set(failure: &Failure, why: String) {
    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
}

/// Tells when the function panics.
struct TellPanic(Failure);

impl Drop for TellPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            set(&self.0, "the function panicked".to_owned());
        }
    }
}

/// A subscriber with a thread that calls a function with every message. Dropping it waits for the function to return;
/// from inside the function it does not.
pub struct SubscriberTask {
    topic: String,
    waker: SubscriberWaker,
    ends: Arc<AtomicBool>,
    failure: Failure,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl SubscriberTask {
    pub(crate) fn start(
        mut subscriber: Subscriber,
        mut receive: impl FnMut(&Sample<'_>) + Send + 'static,
    ) -> Result<Self, Error> {
        let (topic, waker) = (subscriber.topic().to_owned(), subscriber.waker());
        let ends = Arc::<AtomicBool>::default();
        let failure = Failure::default();
        let (to_end, told) = (ends.clone(), failure.clone());
        let body = move || {
            let _told = TellPanic(told.clone());
            // Relaxed: the wake-up after the store is what orders the two.
            while !to_end.load(Ordering::Relaxed) {
                match subscriber.take(Wait::Forever) {
                    Ok(sample) => receive(&sample),
                    // The next call waits for the runtime.
                    Err(Error::Channel(
                        takt::Error::Disconnected
                        | takt::Error::Protocol(_)
                        | takt::Error::Interrupted,
                    )) => {}
                    Err(error) => {
                        set(&told, error.to_string());
                        return;
                    }
                }
                subscriber.prune();
            }
        };
        let thread = takt::without_signals(|| {
            std::thread::Builder::new()
                .name("takt-subscriber".into())
                .spawn(body)
        })
        .map_err(|source| Error::System {
            what: "start the subscriber's thread",
            source,
        })?;
        Ok(Self {
            topic,
            waker,
            ends,
            failure,
            thread: Some(thread),
            process: std::process::id(),
        })
    }

    /// What it asked for: the name of a topic, or a pattern.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Why no message will come any more, if so: also when the function has panicked.
    pub fn failure(&self) -> Option<String> {
        let failure = self.failure.lock();
        failure.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::fmt::Debug for SubscriberTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SubscriberTask")
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

impl Drop for SubscriberTask {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        if self.process != std::process::id() {
            // Of the parent: its handle means nothing here, not even to be freed.
            std::mem::forget(thread);
            return;
        }
        self.ends.store(true, Ordering::Relaxed);
        self.waker.wake();
        if thread.thread().id() != std::thread::current().id() {
            // A panic of the function has been printed.
            let _ = thread.join();
        }
    }
}
