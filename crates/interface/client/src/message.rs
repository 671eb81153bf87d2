//! Received messages.

use std::ptr::NonNull;

use takt_session::layout::RxDescriptor;
use takt_time::{TaiTime, TrafficClass};

use crate::fork::State;
use crate::sink::Sink;

/// A received message, read in place. Dropping it gives its memory back.
///
/// Do not use it in a forked child: its memory is not there.
pub struct Message<'s> {
    pub(crate) sink: &'s Sink,
    pub(crate) base: NonNull<u8>,
    pub(crate) descriptor: RxDescriptor,
    pub(crate) state: State,
}

impl Message<'_> {
    /// Number of the message on its channel at its sender. A gap is a loss.
    pub fn sequence(&self) -> u64 {
        self.descriptor.sequence
    }

    /// When the sender's runtime took the message.
    pub fn send_time(&self) -> TaiTime {
        TaiTime::from_nanos(self.descriptor.send_time_ns)
    }

    /// The sender: a lane of a runtime, under a number that is random at each start.
    pub fn sender(&self) -> u32 {
        self.descriptor.sender
    }

    /// The traffic class that it was sent in.
    pub fn class(&self) -> TrafficClass {
        TrafficClass::new((self.descriptor.class & 7) as u8).unwrap_or_default()
    }

    /// Length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // that of the slice
    pub fn len(&self) -> usize {
        self.descriptor.length as usize
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }
}

impl std::fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message")
            .field("len", &self.len())
            .field("sequence", &self.sequence())
            .field("sender", &self.sender())
            .finish_non_exhaustive()
    }
}

impl Drop for Message<'_> {
    #[inline]
    fn drop(&mut self) {
        self.sink.release(self.descriptor.chunk, self.state);
    }
}
