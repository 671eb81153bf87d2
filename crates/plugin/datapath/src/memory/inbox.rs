//! Where the datagrams for one port wait: any number of senders, one receiver.
//!
//! The receiver owns a fixed number of buffers. A sender takes an empty one and leaves its own, filled,
//! in the queue: so buffers change hands and no payload is copied.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;

use super::bell::Bell;

/// A datagram on its way.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) buffer: Box<[u8]>,
    pub(super) len: usize,
    pub(super) source: SocketAddr,
}

#[derive(Debug)]
pub(super) struct Inbox {
    ready: ArrayQueue<Packet>,
    /// As many buffers are here, in `ready` or lent to the receiver's callback as `ready` has places.
    empty: ArrayQueue<Box<[u8]>>,
    dropped: AtomicU64,
    bell: Bell,
}

impl Inbox {
    pub(super) fn new(depth: usize, max_payload: usize) -> io::Result<Self> {
        let empty = ArrayQueue::new(depth);
        while empty.push(vec![0; max_payload].into_boxed_slice()).is_ok() {}
        Ok(Self {
            ready: ArrayQueue::new(depth),
            empty,
            dropped: AtomicU64::new(0),
            bell: Bell::new()?,
        })
    }

    /// Takes the first `len` bytes of `buffer`, and leaves another buffer in its place; drops and counts
    /// them when the queue is full. The receiver does not wake up before [`Inbox::ring`].
    pub(super) fn put(&self, buffer: &mut Box<[u8]>, len: usize, source: SocketAddr) {
        match self.empty.pop() {
            Some(empty) => self.enqueue(Packet {
                buffer: std::mem::replace(buffer, empty),
                len,
                source,
            }),
            None => self.drop_one(),
        }
    }

    /// Like [`Inbox::put`], but copies.
    pub(super) fn put_copy(&self, payload: &[u8], source: SocketAddr) {
        match self.empty.pop() {
            Some(mut buffer) => {
                buffer[..payload.len()].copy_from_slice(payload);
                self.enqueue(Packet {
                    buffer,
                    len: payload.len(),
                    source,
                });
            }
            None => self.drop_one(),
        }
    }

    fn enqueue(&self, packet: Packet) {
        // There is a place for each buffer, so this succeeds; if not, the buffer is not lost with the place.
        if let Err(packet) = self.ready.push(packet) {
            self.give_back(packet.buffer);
            self.drop_one();
        }
    }

    /// Whether only a quarter of the places is left.
    pub(super) fn is_crowded(&self) -> bool {
        4 * self.ready.len() >= 3 * self.ready.capacity()
    }

    fn drop_one(&self) {
        // Relaxed here and in `dropped`: a counter orders nothing.
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Wakes the receiver if it sleeps.
    pub(super) fn ring(&self) {
        self.bell.ring();
    }

    /// Takes the longest-waiting datagram; its buffer is to be given back.
    pub(super) fn take(&self) -> Option<Packet> {
        self.ready.pop()
    }

    pub(super) fn give_back(&self, buffer: Box<[u8]>) {
        // Only as many buffers as places ever are given out.
        let _ = self.empty.push(buffer);
    }

    /// Notes that the receiver has found nothing.
    pub(super) fn found_empty(&self) {
        self.bell.lower(|| !self.ready.is_empty());
    }

    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.bell.wait_fd(|| !self.ready.is_empty())
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}
