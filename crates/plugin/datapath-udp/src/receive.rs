//! Taking datagrams from the kernel, and splitting the runs that it has coalesced.
//!
//! A port that is asked for a datagram now and then takes it by `recvfrom`, the cheapest call there is.
//! While datagrams keep coming, many are taken by one `recvmmsg`; and from the first burst on, the kernel
//! may hand over runs of datagrams as one message (UDP GRO, or a whole train of a sender on this machine).
//! Telling where a run's datagrams begin takes a control message, hence the delay. What of a run exceeds
//! the caller's budget stays here, in order, for the next call.

use std::mem;
use std::net::SocketAddr;
use std::ptr;

use takt_datapath::Datagram;

use crate::address::RawAddress;
use crate::socket::Socket;

/// Messages taken by one system call.
const BATCH: usize = 16;
/// Room for one message: no UDP payload, coalesced or not, is longer.
const ROOM: usize = 1 << 16;
/// Distance of two messages' room: an odd number of cache lines more, so that the beginnings of
/// short datagrams do not fall into the same few cache sets.
const STRIDE: usize = ROOM + 3 * 64;

/// Arrivals in a row, none of them waited for, after which more are expected behind the next one.
const STREAK: u32 = 2;
/// Messages found waiting at a time that make a burst.
const BURST: usize = 8;

/// What was delivered or refused.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceiveCounters {
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
    pub(crate) invalid: u64,
}

/// Room for the control messages of one arrival: the length of a coalesced run's datagrams.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; 64]);

/// A message taken from the kernel: one datagram or a run of them.
#[derive(Clone, Copy, Debug)]
struct Run {
    source: SocketAddr,
    len: usize,
    /// Length of each datagram; the last may be shorter.
    segment: usize,
}

impl Run {
    fn datagrams(&self) -> usize {
        self.len.div_ceil(self.segment).max(1)
    }
}

/// The receiving half of a port.
pub(crate) struct Receiver {
    port: u16,
    memory: Box<[u8]>,
    names: Box<[RawAddress]>,
    parts: Box<[libc::iovec]>,
    controls: Box<[Control]>,
    messages: Box<[libc::mmsghdr]>,
    /// Messages in memory, and where among them delivery goes on.
    filled: usize,
    next: usize,
    offset: usize,
    /// Datagrams to expect in a run, from those seen lately.
    expected: usize,
    /// Arrivals since a call found nothing.
    streak: u32,
    /// Whether the kernel could coalesce on this socket and has not been told to yet.
    may_coalesce: bool,
    coalescing: bool,
    pub(crate) counters: ReceiveCounters,
}

// SAFETY: the pointers in `parts` and `messages` point into the other boxed slices of the same receiver,
// which move with it and are never replaced.
unsafe impl Send for Receiver {}

impl Receiver {
    /// The receiving half of a port whose socket is bound to the UDP port `port`; `may_coalesce` tells
    /// whether the kernel offers GRO.
    pub(crate) fn new(port: u16, may_coalesce: bool) -> Self {
        // SAFETY: message headers are integers and pointers, for which all bits zero is a value.
        let message: libc::mmsghdr = unsafe { mem::zeroed() };
        let mut receiver = Self {
            port,
            memory: vec![0; BATCH * STRIDE].into_boxed_slice(),
            names: vec![RawAddress::unspecified(); BATCH].into_boxed_slice(),
            parts: vec![
                libc::iovec {
                    iov_base: ptr::null_mut(),
                    iov_len: ROOM
                };
                BATCH
            ]
            .into_boxed_slice(),
            controls: vec![Control([0; 64]); BATCH].into_boxed_slice(),
            messages: vec![message; BATCH].into_boxed_slice(),
            filled: 0,
            next: 0,
            offset: 0,
            expected: 1,
            streak: 0,
            may_coalesce,
            coalescing: false,
            counters: ReceiveCounters::default(),
        };
        for index in 0..BATCH {
            receiver.parts[index].iov_base = (&raw mut receiver.memory[index * STRIDE]).cast();
            let header = &mut receiver.messages[index].msg_hdr;
            header.msg_name = receiver.names[index].as_mut_ptr().cast();
            header.msg_iov = &raw mut receiver.parts[index];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut receiver.controls[index]).cast();
        }
        receiver
    }

    /// Delivers up to `budget` datagrams. An empty receive is one system call.
    pub(crate) fn receive(
        &mut self,
        socket: &Socket,
        budget: usize,
        deliver: &mut dyn FnMut(Datagram<'_>),
    ) -> usize {
        let mut delivered = self.deliver_held(budget, deliver);
        // Turns are counted too because arrivals that our checks refuse do not count as delivered.
        for _turn in 0..budget {
            let left = budget - delivered;
            // Beside other datagrams only what surely fits is taken: what does not would have to be held.
            if left == 0 || (delivered > 0 && left < self.expected) {
                break;
            }
            let busy = self.streak >= STREAK;
            let wanted = if busy {
                (left / self.expected).clamp(1, BATCH)
            } else {
                1
            };
            let taken = self.take(socket, wanted);
            delivered += self.deliver_held(left, deliver);
            if taken < wanted || !busy {
                break;
            }
        }
        delivered
    }

    /// Takes up to `wanted` messages; only called when none is held.
    fn take(&mut self, socket: &Socket, wanted: usize) -> usize {
        // An error is "nothing there", or one that a former send left on the socket: that was that
        // datagram's fate, and the next call goes on.
        let taken = if wanted == 1 && !self.coalescing {
            self.take_one(socket)
        } else {
            self.take_many(socket, wanted)
        };
        self.filled = taken;
        self.next = 0;
        self.offset = 0;
        self.streak = if taken < wanted.min(2) {
            0
        } else {
            self.streak.saturating_add(1)
        };
        if taken >= BURST && self.may_coalesce {
            self.may_coalesce = false;
            self.coalescing = socket.coalesce_received();
        }
        taken
    }

    /// Without room for a control message: not for sockets that coalesce.
    fn take_one(&mut self, socket: &Socket) -> usize {
        let mut length = RawAddress::CAPACITY;
        // SAFETY: the kernel writes at most `ROOM` bytes of a datagram to memory, which begins with as much,
        // and an address of at most `length` bytes to a name of that size.
        let received = unsafe {
            libc::recvfrom(
                socket.raw(),
                self.memory.as_mut_ptr().cast(),
                ROOM,
                libc::MSG_DONTWAIT,
                self.names[0].as_mut_ptr(),
                &mut length,
            )
        };
        let Ok(len) = u32::try_from(received) else {
            return 0;
        };
        let message = &mut self.messages[0];
        message.msg_len = len;
        message.msg_hdr.msg_flags = 0;
        message.msg_hdr.msg_controllen = 0;
        1
    }

    fn take_many(&mut self, socket: &Socket, wanted: usize) -> usize {
        for message in &mut self.messages[..wanted] {
            message.msg_hdr.msg_namelen = RawAddress::CAPACITY;
            message.msg_hdr.msg_controllen = mem::size_of::<Control>() as _;
        }
        // SAFETY: each message points to a name, a control buffer and one part of `ROOM` bytes of memory
        // of its own, all owned by `self` and lent to nobody now; their lengths are set above and in `new`.
        let taken = unsafe {
            libc::recvmmsg(
                socket.raw(),
                self.messages.as_mut_ptr(),
                wanted as _,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        usize::try_from(taken).unwrap_or(0)
    }

    fn deliver_held(&mut self, budget: usize, deliver: &mut dyn FnMut(Datagram<'_>)) -> usize {
        let mut delivered = 0;
        while self.next < self.filled && delivered < budget {
            let Some(run) = self.run(self.next) else {
                self.counters.invalid += 1;
                self.next += 1;
                continue;
            };
            if self.offset == 0 {
                let datagrams = run.datagrams();
                // Rises at once and falls slowly: a run longer than expected costs more than a shorter.
                self.expected = datagrams
                    .max(self.expected - self.expected.div_ceil(8))
                    .max(1);
            }
            let start = self.next * STRIDE;
            loop {
                let end = run.len.min(self.offset + run.segment);
                let payload = &self.memory[start + self.offset..start + end];
                self.counters.datagrams += 1;
                self.counters.bytes += payload.len() as u64;
                delivered += 1;
                self.offset = end;
                deliver(Datagram {
                    source: run.source,
                    destination_port: self.port,
                    payload,
                });
                if end == run.len || delivered == budget {
                    break;
                }
            }
            if self.offset == run.len {
                self.next += 1;
                self.offset = 0;
            }
        }
        delivered
    }

    /// What the kernel wrote of message `index`, or `None` when that is no whole datagram of an IP peer.
    fn run(&self, index: usize) -> Option<Run> {
        let message = &self.messages[index];
        let header = &message.msg_hdr;
        let len = message.msg_len as usize;
        if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 || len > ROOM {
            return None;
        }
        let source = self.names[index].to_socket_addr()?;
        let mut segment = len.max(1);
        // SAFETY: the kernel has filled the control buffer that the header points to and set its length;
        // the macros stay inside of it, and a coalesced run's length is an int.
        unsafe {
            let mut control = libc::CMSG_FIRSTHDR(header);
            while !control.is_null() {
                if (*control).cmsg_level == libc::SOL_UDP && (*control).cmsg_type == libc::UDP_GRO {
                    let length: libc::c_int = ptr::read_unaligned(libc::CMSG_DATA(control).cast());
                    segment = usize::try_from(length)
                        .ok()
                        .filter(|&segment| segment > 0)?;
                }
                control = libc::CMSG_NXTHDR(header, control);
            }
        }
        Some(Run {
            source,
            len,
            segment,
        })
    }
}
