//! Received messages.

use std::ptr::NonNull;

use takt_session::layout::{RxDescriptor, TX_REGION};
use takt_time::{TaiTime, TrafficClass};

use super::Sink;
use crate::fork::State;
use crate::mapping::Mapping;

/// A received message, read in place. Dropping it gives its memory back.
///
/// Do not use it in a forked child: its memory is not there.
pub struct Message<'s> {
    pub(crate) sink: &'s Sink,
    pub(crate) base: NonNull<u8>,
    pub(crate) descriptor: RxDescriptor,
    pub(crate) state: State,
    /// The ring that it came by, of another session; none: a lane's.
    pub(crate) lender: Option<u32>,
}

impl Message<'_> {
    /// Number of the message on its channel at its sender. A gap is a loss.
    pub fn sequence(&self) -> u64 {
        self.descriptor.sequence
    }

    /// When the sender's runtime took the message; if none did, when its source emitted it.
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

    /// Makes it shorter; nothing happens if it is no longer than `len`.
    pub fn truncate(&mut self, len: usize) {
        self.descriptor.length = (self.len().min(len)) as u32;
    }

    /// What keeps its memory mapped also when the message is gone.
    pub fn mapping(&self) -> Option<Mapping> {
        self.sink.mapping(self.state, self.lender)
    }

    /// The chunk of the receive region where it lies, if it is not what the session itself has emitted.
    pub(crate) fn received_at(&self) -> Option<u32> {
        let here = self.lender.is_none() && self.descriptor.chunk & TX_REGION == 0;
        here.then_some(self.descriptor.chunk)
    }

    /// It is forwarded: not to be released.
    pub(crate) fn forwarded(self) {
        self.sink.forwarded();
        std::mem::forget(self);
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
        match self.lender {
            None => self.sink.release(self.descriptor.chunk, self.state),
            Some(ring) => self.sink.give_back(ring, self.descriptor.chunk, self.state),
        }
    }
}
