//! The receiving half of a port: frames of one queue, checked and lent to the caller.
//!
//! Everything in a frame is hostile. It is read in place: the kernel does not write to a chunk
//! again before it is back in the fill ring. Frames of several chunks are gathered first.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use takt_datapath::{Datagram, PortCounters};
use takt_wire::checksum::PartialSum;
use takt_wire::frame::{FrameError, UdpDatagram, parse_udp_frame};
use takt_wire::ip::{Addresses, Protocol};
use takt_wire::udp;

use crate::queue::Member;
use crate::ring::{CONTINUED, Descriptor};

/// Longest frame: an IP packet's 16-bit length, IPv6 header, Ethernet header and two tags.
const LONGEST_FRAME: usize = 65_535 + 40 + 14 + 8;

/// Which datagrams are ours.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    /// The interface's addresses, the likeliest first. The program has matched the very address
    /// and port; this is the second look.
    pub(crate) addresses: Vec<IpAddr>,
    /// Verify UDP checksums.
    pub(crate) verify: bool,
    /// Senders on this machine leave checksums to a device that there is none of: see
    /// [`is_unfinished`].
    pub(crate) unfinished_checksums: bool,
    /// The interface, as scope of link-local sources.
    pub(crate) ifindex: u32,
}

/// One receive queue of a port.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) member: Member,
    /// Of the ring for best effort, and of that for what is marked with a traffic class.
    gathered: [Gathered; 2],
    /// Which ring goes first while a budget is too small for both.
    turn: bool,
    /// Receiving needs our own calls, frames or none.
    busy_poll: bool,
}

/// A frame of several chunks as far as it has arrived.
#[derive(Debug)]
struct Gathered {
    bytes: Vec<u8>,
    /// It is too long and is to be dropped.
    oversized: bool,
}

/// The share of a budget that is kept for best effort: what is marked goes first, but nobody is shut out by marking all.
const KEPT: usize = 4;

impl Receive {
    pub(crate) fn new(member: Member, busy_poll: bool) -> Self {
        Self {
            member,
            gathered: [Gathered::new(), Gathered::new()],
            turn: false,
            busy_poll,
        }
    }

    /// Delivers up to `budget` datagrams, those that are marked with a traffic class first.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        budget: usize,
        filter: &Filter,
        counters: &mut PortCounters,
        deliver: &mut dyn FnMut(Datagram<'_>),
    ) -> usize {
        if self.member.upper.rx.available(1) == 0 {
            return self.take(false, budget, filter, counters, deliver);
        }
        self.turn = !self.turn;
        let most = match budget / KEPT {
            0 if self.turn => 0,
            kept => budget - kept,
        };
        let mut taken = self.take(true, most, filter, counters, deliver);
        taken += self.take(false, budget - taken, filter, counters, deliver);
        // What best effort has left.
        if taken < budget {
            taken += self.take(true, budget - taken, filter, counters, deliver);
        }
        taken
    }

    /// Delivers up to `budget` datagrams of one ring.
    #[inline]
    fn take(
        &mut self,
        upper: bool,
        budget: usize,
        filter: &Filter,
        counters: &mut PortCounters,
        deliver: &mut dyn FnMut(Datagram<'_>),
    ) -> usize {
        let Self {
            member, gathered, ..
        } = self;
        let gathered = &mut gathered[usize::from(upper)];
        let available = member
            .ring(upper)
            .available(u32::try_from(budget).unwrap_or(u32::MAX));
        if available == 0 {
            if !upper {
                self.idle();
            }
            return 0;
        }
        let before = counters.rx_datagrams;
        for _ in 0..available {
            let descriptor = member.ring(upper).pop();
            // SAFETY: the kernel has handed the chunk over, and it is given back below.
            let part = unsafe { frame(member, &descriptor) };
            if descriptor.options & CONTINUED != 0 || gathered.is_under_way() {
                gathered.add(part, &descriptor, filter, counters, deliver);
            } else {
                match part {
                    Some(frame) => hand_over(frame, filter, counters, deliver),
                    None => counters.rx_invalid += 1,
                }
            }
            member.give_back(descriptor.addr);
        }
        member.ring(upper).release();
        // Mostly left to the next idle call: taking the lock here would hold up the answer to what
        // has just been delivered until the stores above have reached the other processor.
        if member.owes_much() {
            member.refill();
        }
        (counters.rx_datagrams - before) as usize
    }

    /// Nothing has arrived.
    #[inline]
    fn idle(&mut self) {
        self.member.refill();
        if self.busy_poll {
            self.member.socket.wake_receive();
        } else if self.member.queue.zero_copy() {
            self.member.wake_driver();
        }
    }
}

impl Gathered {
    fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(LONGEST_FRAME),
            oversized: false,
        }
    }

    /// The next chunk belongs to the same frame.
    fn is_under_way(&self) -> bool {
        !self.bytes.is_empty() || self.oversized
    }

    /// Adds a chunk to the frame under way and hands it over when it was the last.
    #[cold]
    fn add(
        &mut self,
        part: Option<&[u8]>,
        descriptor: &Descriptor,
        filter: &Filter,
        counters: &mut PortCounters,
        deliver: &mut dyn FnMut(Datagram<'_>),
    ) {
        match part {
            Some(part) if !self.oversized && self.bytes.len() + part.len() <= LONGEST_FRAME => {
                self.bytes.extend_from_slice(part);
            }
            _ => self.oversized = true,
        }
        if descriptor.options & CONTINUED != 0 {
            return;
        }
        if self.oversized {
            counters.rx_invalid += 1;
        } else {
            hand_over(&self.bytes, filter, counters, deliver);
        }
        self.bytes.clear();
        self.oversized = false;
    }
}

/// What the descriptor of a received frame names.
///
/// # Safety
/// As [`crate::umem::RxArea::bytes`].
#[inline]
unsafe fn frame<'a>(member: &'a Member, descriptor: &Descriptor) -> Option<&'a [u8]> {
    let memory = member.queue.memory();
    // SAFETY: the caller keeps what `bytes` asks for.
    unsafe { memory.bytes(descriptor.addr, descriptor.len as usize) }
}

/// Checks a frame and delivers its datagram, or counts it.
#[inline]
fn hand_over(
    frame: &[u8],
    filter: &Filter,
    counters: &mut PortCounters,
    deliver: &mut dyn FnMut(Datagram<'_>),
) {
    let datagram = match parse_udp_frame(frame, filter.verify) {
        Ok(datagram) => datagram,
        Err(FrameError::Udp(udp::Error::Checksum(found))) if filter.unfinished_checksums => {
            match parse_udp_frame(frame, false) {
                Ok(datagram) if is_unfinished(&datagram, found) => datagram,
                _ => {
                    counters.rx_invalid += 1;
                    return;
                }
            }
        }
        Err(_) => {
            counters.rx_invalid += 1;
            return;
        }
    };
    if !filter.addresses.contains(&datagram.dst.ip()) {
        counters.rx_invalid += 1;
        return;
    }
    counters.rx_datagrams += 1;
    counters.rx_bytes += datagram.payload.len() as u64;
    deliver(Datagram {
        source: scoped(datagram.src, filter.ifindex),
        destination_port: datagram.dst.port(),
        payload: datagram.payload,
    });
}

/// Whether `found` is the sum over the pseudo header alone: what a sender on this machine leaves in
/// the checksum field for the device to complete. Virtual interfaces have no such device, and
/// nothing can corrupt the datagram on its way in memory.
#[cold]
fn is_unfinished(datagram: &UdpDatagram<'_>, found: u16) -> bool {
    let Some(addresses) = Addresses::new(datagram.src.ip(), datagram.dst.ip()) else {
        return false;
    };
    let length = (datagram.payload.len() + udp::HEADER_LEN) as u16;
    let sum = addresses
        .pseudo_header(Protocol::UDP)
        .plus(PartialSum::of_word(length));
    found == !sum.checksum()
}

/// The address as [`takt_datapath::Port::connect`] takes it: a link-local one names our interface.
#[inline]
fn scoped(source: SocketAddr, ifindex: u32) -> SocketAddr {
    match source {
        SocketAddr::V6(address) if address.ip().is_unicast_link_local() => {
            SocketAddrV6::new(*address.ip(), address.port(), 0, ifindex).into()
        }
        other => other,
    }
}
