//! The sending half of a port: frames reserved, and frames that wait for the device, in order.

use std::time::{Duration, Instant};

use takt_datapath::{Frame, PeerHandle, PortCounters};
use takt_wire::frame::UdpHeaderTemplate;

use crate::device::{Device, FRAMES_OF_PORT, free};
use crate::ffi::{self, HEADROOM, Mbuf};

/// A device that takes nothing for so long takes nothing any more: what waits is dropped and counted. A switch
/// that is behind takes the next frames long before.
const STUCK: Duration = Duration::from_millis(100);

/// What is no datagram of the port's: questions and answers about neighbours.
const NOT_COUNTED: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Reserved {
    mbuf: *mut Mbuf,
    room: *mut u8,
    peer: PeerHandle,
    capacity: usize,
}

/// Frames of one port.
#[derive(Debug)]
pub(crate) struct Transmit {
    reserved: Vec<Option<Reserved>>,
    unused: Vec<u32>,
    /// Committed: buffers, and the bytes of their payloads.
    queued: Vec<*mut Mbuf>,
    lengths: Vec<u32>,
    /// How many of them the device has.
    head: usize,
    identification: u16,
    /// Since when the device has taken nothing.
    stuck: Option<Instant>,
}

// SAFETY: the buffers that are pointed to belong to this alone.
unsafe impl Send for Transmit {}

impl Transmit {
    pub(crate) fn new() -> Self {
        Self {
            reserved: vec![None; FRAMES_OF_PORT],
            unused: (0..FRAMES_OF_PORT as u32).rev().collect(),
            queued: Vec::with_capacity(2 * FRAMES_OF_PORT),
            lengths: Vec::with_capacity(2 * FRAMES_OF_PORT),
            head: 0,
            identification: 0,
            stuck: None,
        }
    }

    fn waiting(&self) -> usize {
        self.queued.len() - self.head
    }

    /// Takes a frame for a payload of `capacity` bytes, or a whole frame of them. `None`: all are in flight.
    #[inline]
    pub(crate) fn reserve(
        &mut self,
        device: &Device,
        peer: PeerHandle,
        capacity: usize,
    ) -> Option<Frame> {
        let taken = FRAMES_OF_PORT - self.unused.len();
        if taken + self.waiting() >= FRAMES_OF_PORT {
            return None;
        }
        let mut room = std::ptr::null_mut();
        // SAFETY: the pool lives as long as the device; a pointer to be written.
        let mbuf = unsafe { ffi::takt_dpdk_allocate(device.pool, &raw mut room) };
        if mbuf.is_null() {
            return None;
        }
        let index = self.unused.pop()?;
        self.reserved[index as usize] = Some(Reserved {
            mbuf,
            room,
            peer,
            capacity,
        });
        Some(Frame(index))
    }

    /// The payload of a reserved frame; empty for a frame that is not this port's.
    #[inline]
    pub(crate) fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        match self.reserved.get(frame.0 as usize) {
            // SAFETY: a buffer has room for the longest frame, of which `capacity` is a part; nobody else has
            // the buffer. Its bytes have been written: pools are made of zeros.
            Some(Some(reserved)) => unsafe {
                std::slice::from_raw_parts_mut(reserved.room, reserved.capacity)
            },
            _ => &mut [],
        }
    }

    pub(crate) fn peer(&self, frame: &Frame) -> Option<PeerHandle> {
        let reserved = self.reserved.get(frame.0 as usize)?.as_ref();
        reserved.map(|reserved| reserved.peer)
    }

    fn spend(&mut self, frame: &Frame) -> Option<Reserved> {
        let reserved = self.reserved.get_mut(frame.0 as usize)?.take()?;
        self.unused.push(frame.0);
        Some(reserved)
    }

    pub(crate) fn cancel(&mut self, frame: &Frame) {
        if let Some(reserved) = self.spend(frame) {
            free(&mut [reserved.mbuf]);
        }
    }

    /// Queues a frame with `len` bytes behind these headers, or without any.
    #[inline]
    pub(crate) fn commit(
        &mut self,
        frame: &Frame,
        headers: Option<&UdpHeaderTemplate>,
        len: usize,
    ) -> bool {
        let Some(reserved) = self.spend(frame) else {
            return false;
        };
        let len = len.min(reserved.capacity);
        let before = match headers {
            None => 0,
            Some(headers) => {
                let before = headers.header_len();
                debug_assert!(before <= HEADROOM);
                self.identification = self.identification.wrapping_add(1);
                // SAFETY: headers are shorter than the headroom in front of the room, and `len` is within it;
                // nobody else has the buffer.
                let whole = unsafe {
                    std::slice::from_raw_parts_mut(reserved.room.sub(before), before + len)
                };
                if headers
                    .emit(whole, len, self.identification, true)
                    .is_none()
                {
                    free(&mut [reserved.mbuf]);
                    return false;
                }
                before
            }
        };
        self.queue(reserved.mbuf, before, before + len, len as u32);
        true
    }

    fn queue(&mut self, mbuf: *mut Mbuf, before: usize, length: usize, counted: u32) {
        // SAFETY: the buffer is ours, and what is said of it is within it.
        unsafe { ffi::takt_dpdk_shape(mbuf, before as u16, length as u16) }
        if self.queued.len() == self.queued.capacity() {
            self.queued.drain(..self.head);
            self.lengths.drain(..self.head);
            self.head = 0;
        }
        self.queued.push(mbuf);
        self.lengths.push(counted);
    }

    /// Queues a frame as it is, that is no datagram of the port's. Without room it is not sent.
    pub(crate) fn put(&mut self, device: &Device, frame: &[u8]) {
        let mut room: *mut u8 = std::ptr::null_mut();
        if self.waiting() >= FRAMES_OF_PORT || frame.len() > device.longest_frame {
            return;
        }
        // SAFETY: as in `reserve`.
        let mbuf = unsafe { ffi::takt_dpdk_allocate(device.pool, &raw mut room) };
        if mbuf.is_null() {
            return;
        }
        // SAFETY: the buffer has room for the longest frame, and nobody else has it.
        unsafe { std::ptr::copy_nonoverlapping(frame.as_ptr(), room, frame.len()) };
        self.queue(mbuf, 0, frame.len(), NOT_COUNTED);
    }

    /// Hands the device what it takes. Returns whether it was all.
    #[inline]
    pub(crate) fn flush(
        &mut self,
        device: &Device,
        queue: u16,
        counters: &mut PortCounters,
    ) -> bool {
        if self.queued.is_empty() {
            return true;
        }
        let Some(_turn) = device.queues[usize::from(queue)].send() else {
            return false;
        };
        while self.waiting() > 0 {
            let count = self.waiting().min(usize::from(u16::MAX));
            let from = &mut self.queued[self.head..];
            // SAFETY: `count` buffers that are ours; those that the device takes are its own from here on. The
            // turn keeps others from the queue.
            let taken =
                unsafe { ffi::takt_dpdk_send(device.port, queue, from.as_mut_ptr(), count as u16) };
            if taken == 0 {
                return self.is_stuck(counters);
            }
            self.stuck = None;
            let taken = usize::from(taken).min(count);
            for length in &self.lengths[self.head..self.head + taken] {
                if *length != NOT_COUNTED {
                    counters.tx_datagrams += 1;
                    counters.tx_bytes += u64::from(*length);
                }
            }
            self.head += taken;
        }
        self.clear();
        true
    }

    fn clear(&mut self) {
        self.queued.clear();
        self.lengths.clear();
        self.head = 0;
        self.stuck = None;
    }

    /// The device takes nothing: drops what waits when that is so for long. Returns whether nothing waits.
    #[cold]
    fn is_stuck(&mut self, counters: &mut PortCounters) -> bool {
        if self.stuck.get_or_insert_with(Instant::now).elapsed() < STUCK {
            return false;
        }
        let lost = self.lengths[self.head..].iter();
        counters.tx_errors += lost.filter(|length| **length != NOT_COUNTED).count() as u64;
        free(&mut self.queued[self.head..]);
        self.clear();
        true
    }
}

impl Drop for Transmit {
    fn drop(&mut self) {
        free(&mut self.queued[self.head..]);
        for reserved in self.reserved.iter().flatten() {
            free(&mut [reserved.mbuf]);
        }
    }
}
