//! Sinks that hand their messages to a function.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use takt_session::{ChannelId, ErrorCode, Failure};

use crate::error::Error;
use crate::owner::StreamCore;
use crate::sink::{Message, Sink};
use crate::sys;
use crate::wait::Wait;
use crate::wake::Waker;

/// A sink with a thread that calls a function with every message. Dropping it waits for the function to
/// return; from inside the function it does not.
pub struct CallbackSink {
    channel: ChannelId,
    warning: Option<String>,
    waker: Waker,
    failure: Arc<Mutex<Option<Failure>>>,
    thread: Option<JoinHandle<()>>,
    stream: Arc<StreamCore>,
}

/// Says that no message comes any more when the function that takes them panics.
struct TellPanic(Arc<Mutex<Option<Failure>>>);

impl Drop for TellPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let failure = Failure::new(
                ErrorCode::Closed,
                "the function that takes messages panicked",
            );
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        }
    }
}

impl CallbackSink {
    pub(crate) fn start(
        sink: Sink,
        mut receive: impl FnMut(&Message<'_>) + Send + 'static,
    ) -> Result<Self, Error> {
        let (channel, warning) = (sink.channel(), sink.warning());
        let (stream, waker) = (sink.stream().clone(), sink.waker());
        let failure = Arc::new(Mutex::new(None));
        let told = failure.clone();
        let closed = waker.clone();
        let body = move || {
            let _told = TellPanic(told.clone());
            // What has come by then is nobody's: the function may have taken leave of what it works on.
            while !closed.is_closed() {
                match sink.consume(Wait::Forever) {
                    Ok(message) => receive(&message),
                    // The next call waits for the runtime.
                    Err(Error::Disconnected | Error::Protocol(_) | Error::Interrupted) => {}
                    Err(Error::Closed) => return,
                    Err(error) => {
                        let failure = Failure::new(error.code(), error.to_string());
                        *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
                        return;
                    }
                }
            }
        };
        let thread = sys::without_signals(|| {
            std::thread::Builder::new()
                .name("takt-sink".into())
                .spawn(body)
        })
        .map_err(Error::system("start the sink's thread"))?;
        Ok(Self {
            channel,
            warning,
            waker,
            failure,
            thread: Some(thread),
            stream,
        })
    }

    /// The channel that it reads.
    pub fn channel(&self) -> ChannelId {
        self.channel
    }

    /// As [`Sink::warning`], when it was opened.
    pub fn warning(&self) -> Option<String> {
        self.warning.clone()
    }

    /// Why no message will come any more, if so.
    pub fn failure(&self) -> Option<Failure> {
        if self.stream.owner.shared.slot.forked() {
            return Some(Failure::from(Error::Forked.code()));
        }
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl std::fmt::Debug for CallbackSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallbackSink")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}

impl Drop for CallbackSink {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        let shared = &self.stream.owner.shared;
        if shared.slot.forked() {
            // Of the parent: its handle means nothing here, not even to be freed.
            std::mem::forget(thread);
            return;
        }
        self.waker.close();
        if thread.thread().id() != std::thread::current().id() {
            // A panic of the function has been printed.
            let _ = thread.join();
        }
    }
}
