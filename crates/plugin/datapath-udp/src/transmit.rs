//! Committed frames, and handing them to the kernel with as few and as cheap system calls as it allows.
//!
//! Consecutive frames for one peer form a *train*: equally long datagrams (the last may be shorter) that
//! pass the kernel's network stack as one packet and are split at its lower end (UDP GSO). A single
//! frame goes out by a plain `sendto`, because a ping-pong pays for every control message.
//!
//! The mark of a traffic class is the socket's: it is set where the class changes, and one system call sends
//! frames of one class. Control messages would cost each datagram, and know no priority before Linux 6.14.
//!
//! A frame whose class passes a queue that keeps launch times leaves alone, with its time in a control message.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::ptr;

use takt_time::{TaiTime, TrafficClass};

use crate::frames::FramePool;
use crate::launch;
use crate::peers::PeerTable;
use crate::priorities::Priorities;
use crate::socket::Socket;

/// Datagrams in a train (`UDP_MAX_SEGMENTS` of kernels before 6.9; later ones take more).
const TRAIN_DATAGRAMS: usize = 64;
/// Bytes in a train. A packet that is as long as the interface's `gso_max_size` with its headers (65,536 bytes unless
/// somebody set it lower) is split before the interface instead of behind it, for several times the cost: this leaves
/// 128 bytes for Ethernet, IP and UDP, and for a tunnel around them.
const TRAIN_BYTES: usize = 65_536 - 128;
/// Trains handed over by one system call.
const BATCH: usize = 64;
/// Of those, frames with a transmission time: the last is still in the queue in time ([`launch::HAND_OVER_NS`]).
const TIMED_BATCH: usize = 4;

/// A frame that waits to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committed {
    pub(crate) frame: u32,
    pub(crate) peer: u16,
    pub(crate) len: usize,
    pub(crate) class: TrafficClass,
    pub(crate) launch_time: Option<TaiTime>,
}

/// What became of committed datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TransmitCounters {
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
}

/// A control message, as `CMSG_FIRSTHDR` would lay it out.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control {
    header: libc::cmsghdr,
    value: [u8; 8],
}

impl Control {
    /// Asks for segmentation.
    fn segments(segment: u16) -> Self {
        let [a, b] = segment.to_ne_bytes();
        let value = [a, b, 0, 0, 0, 0, 0, 0];
        Self::new(libc::SOL_UDP, libc::UDP_SEGMENT, value, size_of::<u16>())
    }

    /// Tells when to send.
    fn transmission_time(at: TaiTime) -> Self {
        let value = at.as_nanos().to_ne_bytes();
        Self::new(libc::SOL_SOCKET, libc::SCM_TXTIME, value, size_of::<u64>())
    }

    fn new(level: libc::c_int, kind: libc::c_int, value: [u8; 8], length: usize) -> Self {
        // SAFETY: a control header is plain integers, for which all bits zero is a value.
        let mut header: libc::cmsghdr = unsafe { mem::zeroed() };
        // SAFETY: computes a length from a length.
        header.cmsg_len = unsafe { libc::CMSG_LEN(length as u32) } as _;
        header.cmsg_level = level;
        header.cmsg_type = kind;
        Self { header, value }
    }
}

/// Consecutive committed frames that leave as one message.
#[derive(Clone, Copy, Debug)]
struct Train {
    frames: usize,
    bytes: usize,
}

/// The commit queue of a port and the arrays that describe it to the kernel.
pub(crate) struct Transmitter {
    queue: VecDeque<Committed>,
    trains: Vec<Train>,
    parts: Box<[libc::iovec]>,
    controls: Box<[Control]>,
    messages: Box<[libc::mmsghdr]>,
    priorities: Priorities,
    /// What the socket is set to, and the priority with it.
    marked: TrafficClass,
    priority: u32,
    pub(crate) counters: TransmitCounters,
}

// SAFETY: the pointers in `parts` and `messages` are written anew by each call that uses them, point into
// memory that `self` and the arguments of that call own, and are not read after it.
unsafe impl Send for Transmitter {}

impl Transmitter {
    /// A queue that never holds more than `frames` frames.
    pub(crate) fn new(frames: usize, priorities: Priorities) -> Self {
        // SAFETY: message headers are integers and pointers, for which all bits zero is a value.
        let message: libc::mmsghdr = unsafe { mem::zeroed() };
        let part = libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        Self {
            queue: VecDeque::with_capacity(frames),
            trains: Vec::with_capacity(BATCH),
            parts: vec![part; frames].into_boxed_slice(),
            controls: vec![Control::segments(0); BATCH].into_boxed_slice(),
            messages: vec![message; BATCH].into_boxed_slice(),
            priorities,
            marked: TrafficClass::BEST_EFFORT,
            priority: 0,
            counters: TransmitCounters::default(),
        }
    }

    pub(crate) fn push(&mut self, committed: Committed) {
        self.queue.push_back(committed);
    }

    /// Sends what is queued, as far as the kernel takes it. Returns true when nothing is left.
    pub(crate) fn flush(
        &mut self,
        socket: &Socket,
        frames: &mut FramePool,
        peers: &mut PeerTable,
    ) -> bool {
        let Some(last) = self.queue.back().copied() else {
            return true;
        };
        // Every turn sends or loses a train, or stops trains to one more peer: the loop ends.
        while let Some(first) = self.queue.front().copied() {
            let priority = self.priorities.of(first.class);
            if (first.class, priority) != (self.marked, self.priority) {
                socket.mark(first.class, priority);
                (self.marked, self.priority) = (first.class, priority);
            }
            let timed = peers.etf(first.peer, first.class).is_some();
            let long = frames.is_long(first.frame);
            let sent = if long {
                self.send_fragmented(socket, frames, peers)
            } else if self.queue.len() == 1 && !timed {
                self.trains.clear();
                self.trains.push(Train {
                    frames: 1,
                    bytes: first.len,
                });
                send_one(socket, frames, peers, first)
            } else {
                self.form_trains(frames, peers);
                self.send_trains(socket)
            };
            match sent {
                Ok(messages) => {
                    for index in 0..messages {
                        let train = self.trains[index];
                        self.counters.datagrams += train.frames as u64;
                        self.counters.bytes += train.bytes as u64;
                        self.pop(train.frames, frames, peers);
                    }
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return false,
                    // The route cannot split trains (EIO), or datagrams of this one are too long for it:
                    // judged one by one, only those that cannot leave are lost.
                    Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE)
                        if self.trains[0].frames > 1 =>
                    {
                        peers.suspend_trains(first.peer);
                    }
                    Some(code) => {
                        if code == libc::EMSGSIZE {
                            peers.too_long(first.peer, first.len);
                        }
                        self.lose_first_train(frames, peers);
                    }
                    None => self.lose_first_train(frames, peers),
                },
            }
        }
        peers.renew_when_due(last.peer);
        true
    }

    /// Sends the datagram at the head of the queue, which IP may fragment. Rare: it costs two more system calls.
    #[cold]
    fn send_fragmented(
        &mut self,
        socket: &Socket,
        frames: &FramePool,
        peers: &PeerTable,
    ) -> io::Result<usize> {
        self.form_trains(frames, peers);
        socket.permit_fragmentation()?;
        let sent = self.send_trains(socket);
        // It was possible when the port was opened. Should it fail, longer datagrams than promised leave, in fragments.
        let _ = socket.forbid_fragmentation();
        sent
    }

    /// Describes the head of the queue as up to [`BATCH`] messages of one class; one that IP may fragment, alone.
    fn form_trains(&mut self, frames: &FramePool, peers: &PeerTable) {
        self.trains.clear();
        let class = self.marked;
        let mut now = None;
        let long = |committed: &Committed| frames.is_long(committed.frame);
        let alone = self.queue.front().is_some_and(long);
        let mut queue = self
            .queue
            .iter()
            .copied()
            .take(if alone { 1 } else { usize::MAX })
            .take_while(|committed| committed.class == class && (alone || !long(committed)))
            .enumerate()
            .peekable();
        while self.trains.len() < BATCH {
            let Some((start, first)) = queue.next() else {
                break;
            };
            let peer = peers.at(first.peer);
            let etf = peers.etf(first.peer, class);
            let mut train = Train {
                frames: 1,
                bytes: first.len,
            };
            self.parts[start] = part(frames, first);
            let mut previous = first.len;
            while peer.trains
                && etf.is_none()
                && let Some(&(index, next)) = queue.peek()
                && next.peer == first.peer
                // A shorter datagram ends its train, and an empty one is not told from no datagram.
                && previous == first.len
                && (1..=first.len).contains(&next.len)
                && train.frames < TRAIN_DATAGRAMS
                && train.bytes + next.len <= TRAIN_BYTES
            {
                self.parts[index] = part(frames, next);
                train.frames += 1;
                train.bytes += next.len;
                previous = next.len;
                queue.next();
            }
            let number = self.trains.len();
            let header = &mut self.messages[number].msg_hdr;
            header.msg_name = peer.raw.as_ptr().cast_mut().cast();
            header.msg_namelen = peer.raw.length();
            header.msg_iov = &raw mut self.parts[start];
            header.msg_iovlen = train.frames as _;
            let control = if let Some(etf) = etf {
                let now = *now.get_or_insert_with(launch::now);
                let at = launch::transmission_time(etf, first.launch_time, now);
                Some(Control::transmission_time(at))
            } else if train.frames > 1 {
                Some(Control::segments(first.len as u16))
            } else {
                None
            };
            if let Some(control) = control {
                self.controls[number] = control;
                header.msg_control = (&raw mut self.controls[number]).cast();
                header.msg_controllen = mem::size_of::<Control>() as _;
            } else {
                header.msg_control = ptr::null_mut();
                header.msg_controllen = 0;
            }
            self.trains.push(train);
            if etf.is_some() && self.trains.len() >= TIMED_BATCH {
                break;
            }
        }
    }

    /// Returns how many of the formed trains were taken; an error is the first train's.
    fn send_trains(&mut self, socket: &Socket) -> io::Result<usize> {
        // SAFETY: `form_trains` has just filled as many messages as there are trains. Their pointers lead
        // to peers, frames, parts and controls, none of which has been touched or moved since; parts of a
        // train lie consecutively in `parts`.
        let sent = unsafe {
            libc::sendmmsg(
                socket.raw(),
                self.messages.as_mut_ptr(),
                self.trains.len() as _,
                libc::MSG_NOSIGNAL as _,
            )
        };
        if sent < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(sent as usize)
        }
    }

    fn lose_first_train(&mut self, frames: &mut FramePool, peers: &mut PeerTable) {
        let lost = self.trains[0].frames;
        self.counters.errors += lost as u64;
        self.pop(lost, frames, peers);
    }

    fn pop(&mut self, count: usize, frames: &mut FramePool, peers: &mut PeerTable) {
        for done in self.queue.drain(..count) {
            frames.give_back(done.frame);
            peers.dequeued(done.peer);
        }
    }
}

fn part(frames: &FramePool, committed: Committed) -> libc::iovec {
    let payload = frames.filled(committed.frame, committed.len);
    libc::iovec {
        iov_base: payload.as_ptr().cast_mut().cast(),
        iov_len: payload.len(),
    }
}

fn send_one(
    socket: &Socket,
    frames: &FramePool,
    peers: &PeerTable,
    only: Committed,
) -> io::Result<usize> {
    let payload = frames.filled(only.frame, only.len);
    let to = &peers.at(only.peer).raw;
    // SAFETY: both pointers come with the length of what they point to, which outlives the call.
    let sent = unsafe {
        libc::sendto(
            socket.raw(),
            payload.as_ptr().cast(),
            payload.len(),
            libc::MSG_NOSIGNAL,
            to.as_ptr(),
            to.length(),
        )
    };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};

    use takt_datapath::stack::{Etf, LaunchQueues};

    use crate::frames::Purpose;

    use super::*;

    #[test]
    fn a_datagram_that_ip_may_fragment_has_its_time_where_a_queue_asks_for_one() {
        let receiver = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let local: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let etf = Etf {
            delta_ns: 1,
            offload: false,
        };
        let queues = LaunchQueues {
            ifindex: 1,
            name: "eth0".into(),
            classes: [Some(etf); TrafficClass::COUNT],
        };
        let probe = Socket::new(local).expect("a socket");
        let peers = PeerTable::new(local, probe, 1400, 4, true, vec![queues]);
        let mut peers = peers.expect("a table");
        let to = receiver.local_addr().expect("bound");
        let peer = peers.connect(to).expect("a peer");
        let index = peers.find(peer).expect("connected");
        peers.lead_to_queues(index);
        let mut frames = FramePool::new(4, 1400);
        let socket = Socket::new(local).expect("a socket");
        socket
            .announce_launch_times()
            .expect("a kernel that has it");
        let mut transmitter = Transmitter::new(4, Priorities::default());
        for (long, len) in [(true, 20_000), (false, 1000), (false, 1000)] {
            let purpose = Purpose { peer, room: len };
            let frame = match long {
                true => frames.take_long(purpose),
                false => frames.take(purpose),
            };
            peers.enqueued(index);
            transmitter.push(Committed {
                frame: frame.expect("free").0,
                peer: index,
                len,
                class: TrafficClass::BEST_EFFORT,
                launch_time: None,
            });
        }
        transmitter.form_trains(&frames, &peers);
        assert_eq!(transmitter.trains.len(), 1, "alone");
        let header = transmitter.messages[0].msg_hdr;
        assert_eq!(header.msg_controllen, size_of::<Control>());
        let control = transmitter.controls[0].header;
        assert_eq!(control.cmsg_type, libc::SCM_TXTIME);
        assert!(transmitter.flush(&socket, &mut frames, &mut peers));
        assert_eq!(transmitter.counters.errors, 0);
        let mut buffer = [0; 65_536];
        for len in [20_000, 1000, 1000] {
            assert_eq!(receiver.recv(&mut buffer).expect("it comes"), len);
        }
    }
}
