//! The sending half of a port: frames, their way into the transmit ring and back from the
//! completion ring.
//!
//! A frame is a run of chunks of the port's area. Its payload always begins at [`HEADROOM`],
//! whatever headers go before it, so that a route may change between reserving and sending. The
//! transmit ring has room for every frame there is: what is committed is in the ring, in order, and
//! is merely not published before a flush. Only after the interface was down, entries without a frame take some of that
//! room until the kernel has passed over them.

use takt_datapath::{Frame, PeerHandle, PortCounters};
use takt_time::TaiTime;
use takt_wire::frame::{MAX_HEADER_LEN, UdpHeaderTemplate};

use crate::metadata;
use crate::queue::{Outstanding, Queue, Sender};
use crate::ring::{CONTINUED, Descriptor, Producer};
use crate::socket::{Kick, Socket};

/// Bytes before the payload of a frame: the longest headers, rounded up to cache lines.
pub(crate) const HEADROOM: usize = MAX_HEADER_LEN.next_multiple_of(64);

// Before the longest headers there is room for metadata.
const _: () = assert!(HEADROOM - MAX_HEADER_LEN >= metadata::LENGTH);

/// Who owns a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The free list.
    Free,
    /// The caller, between reserve and commit.
    Caller,
    /// The transmit ring or the kernel: until this many descriptors are completed.
    Kernel(u16),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    owner: Owner,
    peer: PeerHandle,
    /// Payload bytes as promised at the reservation.
    capacity: u32,
    /// Payload bytes as committed.
    committed: u32,
}

/// The sending half of a port.
#[derive(Debug)]
pub(crate) struct Transmit {
    sender: Sender,
    slots: Vec<Slot>,
    /// Last in, first out: the frame used last is the likeliest in the cache.
    free: Vec<u32>,
    chunks_per_frame: u32,
    /// Bytes of each of them.
    chunk: usize,
    checksum: bool,
    identification: u16,
    /// Committed and not known to be with the kernel.
    queued: Amount,
    /// Calls that it takes at most until the kernel has passed over all entries of the transmit ring without a frame.
    voids: u32,
}

/// An entry that the kernel passes over, since it lies in no memory of the socket's.
const VOID: Descriptor = Descriptor {
    addr: u64::MAX,
    len: 1,
    options: 0,
};

/// Datagrams and their payload bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    datagrams: u64,
    bytes: u64,
}

/// Chunks of a frame whose IP packet is `mtu` bytes long.
pub(crate) fn chunks_per_frame(mtu: u32, chunk: usize) -> u32 {
    ((HEADROOM + mtu as usize).div_ceil(chunk) as u32).max(1)
}

impl Transmit {
    /// Cuts the sender's area into frames of `chunks_per_frame` chunks.
    pub(crate) fn new(sender: Sender, chunks_per_frame: u32, checksum: bool) -> Self {
        let frames = sender.area.chunks() / chunks_per_frame;
        let chunk = sender.area.chunk();
        let unused = Slot {
            owner: Owner::Free,
            peer: PeerHandle(0),
            capacity: 0,
            committed: 0,
        };
        Self {
            sender,
            slots: vec![unused; frames as usize],
            free: (0..frames).rev().collect(),
            chunks_per_frame,
            chunk,
            checksum,
            identification: 0,
            queued: Amount::default(),
            voids: 0,
        }
    }

    /// Payload bytes that each frame has room for.
    pub(crate) fn frame_capacity(&self) -> usize {
        self.frame_bytes() - HEADROOM
    }

    #[inline]
    fn frame_bytes(&self) -> usize {
        self.chunks_per_frame as usize * self.chunk
    }

    /// Datagrams that are committed, and not known to be with the kernel.
    pub(crate) fn unsent(&self) -> u64 {
        self.queued.datagrams
    }

    /// Takes a frame for `capacity` payload bytes to `peer`.
    #[inline]
    pub(crate) fn reserve(
        &mut self,
        queue: &Queue,
        peer: PeerHandle,
        capacity: usize,
    ) -> Option<Frame> {
        if self.free.is_empty() {
            self.reclaim(queue);
        }
        let index = self.free.pop()?;
        let slot = self.slots.get_mut(index as usize)?;
        slot.owner = Owner::Caller;
        slot.peer = peer;
        slot.capacity = capacity as u32;
        Some(Frame(index))
    }

    /// The peer of a frame that the caller owns.
    #[inline]
    pub(crate) fn peer(&self, frame: &Frame) -> Option<PeerHandle> {
        let slot = self.slots.get(frame.0 as usize)?;
        (slot.owner == Owner::Caller).then_some(slot.peer)
    }

    /// The payload of a frame that the caller owns, empty for any other.
    #[inline]
    pub(crate) fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        let capacity = match self.slots.get(frame.0 as usize) {
            Some(slot) if slot.owner == Owner::Caller => slot.capacity as usize,
            _ => 0,
        };
        let offset = self.offset(frame.0) + HEADROOM as u64;
        self.sender
            .area
            .bytes_mut(offset, capacity)
            .unwrap_or_default()
    }

    /// Writes the headers, if the payload is no frame by itself, and queues the frame. False: the frame
    /// does not take that payload and is free again. A launch time needs frames of one chunk, and a socket
    /// that has them.
    #[inline]
    pub(crate) fn commit(
        &mut self,
        socket: &mut Socket,
        frame: Frame,
        headers: Option<&UdpHeaderTemplate>,
        length: usize,
        launch_time: Option<TaiTime>,
    ) -> bool {
        if self.voids > 0 && socket.tx.room() < self.chunks_per_frame {
            self.cancel(frame);
            return false;
        }
        let header_len = headers.map_or(0, UdpHeaderTemplate::header_len);
        let offset = self.offset(frame.0) + (HEADROOM - header_len) as u64;
        let Some(slot) = self.slots.get_mut(frame.0 as usize) else {
            return false;
        };
        if slot.owner != Owner::Caller || length > slot.capacity as usize {
            self.cancel(frame);
            return false;
        }
        let Some(bytes) = self.sender.area.bytes_mut(offset, header_len + length) else {
            self.cancel(frame);
            return false;
        };
        let total = match headers {
            None => Some(length),
            Some(headers) => {
                self.identification = self.identification.wrapping_add(1);
                headers.emit(bytes, length, self.identification, self.checksum)
            }
        };
        let Some(total) = total else {
            self.cancel(frame);
            return false;
        };
        let mut options = 0;
        if let Some(at) = launch_time {
            let before = offset - metadata::LENGTH as u64;
            if let Some(place) = self.sender.area.bytes_mut(before, metadata::LENGTH) {
                place.copy_from_slice(&metadata::launch_at(at));
                options = libc::XDP_TX_METADATA;
            }
        }
        slot.committed = length as u32;
        let first = self.chunk - offset as usize % self.chunk;
        let address = self.sender.area.start() + offset;
        if total <= first {
            slot.owner = Owner::Kernel(1);
            socket.tx.push(Descriptor {
                addr: address,
                len: total as u32,
                options,
            });
        } else {
            slot.owner = Owner::Kernel(push_chunks(socket, address, [first, self.chunk], total));
        }
        self.queued.datagrams += 1;
        self.queued.bytes += length as u64;
        true
    }

    /// Takes back a frame that the caller owns.
    pub(crate) fn cancel(&mut self, frame: Frame) {
        if let Some(slot) = self.slots.get_mut(frame.0 as usize)
            && slot.owner == Owner::Caller
        {
            slot.owner = Owner::Free;
            self.free.push(frame.0);
        }
    }

    /// Hands everything committed to the kernel. True when nothing is left with us.
    #[inline]
    pub(crate) fn flush(
        &mut self,
        socket: &mut Socket,
        queue: &Queue,
        counters: &mut PortCounters,
    ) -> bool {
        if self.queued.datagrams == 0 && self.voids == 0 {
            return true;
        }
        if socket.tx.unpublished() > 0 {
            socket.tx.publish();
        }
        let done = if queue.zero_copy() {
            // The driver reads the ring by itself and asks to be woken where it does not.
            if socket.tx.needs_wakeup() {
                socket.kick();
            }
            true
        } else {
            self.push_out(socket, counters)
        };
        self.reclaim(queue);
        if done {
            self.handed_over(counters);
        }
        done
    }

    /// Copy mode: the kernel takes frames inside our calls only, and not always all of them in one.
    fn push_out(&mut self, socket: &mut Socket, counters: &mut PortCounters) -> bool {
        let mut waiting = socket.tx.waiting();
        while waiting > 0 {
            let answer = socket.kick();
            let left = socket.tx.waiting();
            match answer {
                Kick::Down => {
                    self.withdraw(&mut socket.tx, counters);
                    return true;
                }
                // Each round takes at least one frame, so the ring's size bounds the rounds.
                Kick::Taken | Kick::Busy if left < waiting => waiting = left,
                // It passes over one in each call, and does not tell before it looks for more or has sent something.
                Kick::Taken | Kick::Busy if self.voids > 0 => self.voids -= 1,
                Kick::Taken | Kick::Busy => return false,
            }
        }
        self.voids = 0;
        true
    }

    /// The interface is down: what it has not taken would leave at an arbitrary later time, so it
    /// is dropped.
    #[cold]
    fn withdraw(&mut self, ring: &mut Producer<Descriptor>, counters: &mut PortCounters) {
        let mut dropped = Amount::default();
        ring.void(VOID, |descriptor| {
            if let Some(slot) = self.complete(descriptor.addr)
                && descriptor.options & CONTINUED == 0
            {
                dropped.datagrams += 1;
                dropped.bytes += u64::from(slot.committed);
            }
        });
        // One call more tells how far it is.
        self.voids = ring.waiting() + 1;
        counters.tx_errors += dropped.datagrams;
        self.queued.datagrams = self.queued.datagrams.saturating_sub(dropped.datagrams);
        self.queued.bytes = self.queued.bytes.saturating_sub(dropped.bytes);
    }

    fn handed_over(&mut self, counters: &mut PortCounters) {
        counters.tx_datagrams += self.queued.datagrams;
        counters.tx_bytes += self.queued.bytes;
        self.queued = Amount::default();
    }

    /// Takes back the frames that the kernel has sent.
    #[inline]
    fn reclaim(&mut self, queue: &Queue) {
        let frame_bytes = self.frame_bytes();
        let (sender, slots, free) = (&self.sender, &mut self.slots, &mut self.free);
        queue.reclaim(sender, |address| {
            complete(
                slots,
                free,
                frame_of(address - sender.area.start(), frame_bytes),
            );
        });
    }

    /// One descriptor at `address` is done.
    fn complete(&mut self, address: u64) -> Option<Slot> {
        if address == VOID.addr {
            return None;
        }
        let index = frame_of(
            address.checked_sub(self.sender.area.start())?,
            self.frame_bytes(),
        );
        complete(&mut self.slots, &mut self.free, index);
        self.slots.get(index as usize).copied()
    }

    /// Ends sending over this ring, which nothing else happens to than that it is dropped. `beside`: the kernel reads it
    /// beside our own calls. Returns the sender and what of it the kernel has not completed.
    pub(crate) fn finish(
        &mut self,
        ring: &mut Producer<Descriptor>,
        beside: bool,
    ) -> (Sender, Outstanding) {
        let doubtful = ring.give_up(beside, |descriptor| {
            self.complete(descriptor.addr);
        });
        let chunks = self.slots.iter().map(|slot| match slot.owner {
            Owner::Kernel(chunks) => u32::from(chunks),
            Owner::Free | Owner::Caller => 0,
        });
        let chunks = chunks.sum();
        (self.sender.take(), Outstanding { chunks, doubtful })
    }

    #[inline]
    fn offset(&self, frame: u32) -> u64 {
        u64::from(frame) * self.frame_bytes() as u64
    }
}

/// Queues a frame that spans several chunks; returns how many descriptors it takes.
#[cold]
fn push_chunks(socket: &mut Socket, offset: u64, [first, chunk]: [usize; 2], total: usize) -> u16 {
    let (mut at, mut length, mut left, mut count) = (offset, first, total, 0);
    while left > 0 {
        left -= length;
        let options = if left > 0 { CONTINUED } else { 0 };
        socket.tx.push(Descriptor {
            addr: at,
            len: length as u32,
            options,
        });
        at += length as u64;
        length = left.min(chunk);
        count += 1;
    }
    count
}

#[inline]
fn frame_of(offset: u64, frame_bytes: usize) -> u32 {
    (offset / frame_bytes as u64) as u32
}

/// One descriptor of the frame `index` is done; the last one frees the frame.
#[inline]
fn complete(slots: &mut [Slot], free: &mut Vec<u32>, index: u32) {
    let Some(slot) = slots.get_mut(index as usize) else {
        return;
    };
    match slot.owner {
        Owner::Kernel(left) if left > 1 => slot.owner = Owner::Kernel(left - 1),
        Owner::Kernel(_) => {
            slot.owner = Owner::Free;
            free.push(index);
        }
        Owner::Free | Owner::Caller => {}
    }
}
