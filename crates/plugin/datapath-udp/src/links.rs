//! Links: interfaces that whole Ethernet frames of others leave by, over packet sockets (Linux `packet(7)`).
//!
//! A frame passes the interface's queueing discipline as one of the kernel's own would, with its class as
//! priority. On a bridge it goes to the port of its destination, on one end of a veth pair to the other end.
//! Nothing is received here.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use takt_datapath::{ConnectError, PeerHandle};
use takt_time::TrafficClass;

use crate::frames::FramePool;
use crate::peers::{MTU_LIFETIME_MS, now_ms};
use crate::priorities::Priorities;
use crate::socket::{check, set_value};
use crate::transmit::TransmitCounters;

/// The bit that tells the handles of links from those of peers.
const LINK: u32 = 1 << 31;
/// Links that a port can have at a time.
const MOST_LINKS: usize = 1024;
/// What `takt uplink` leaves alone at an interface whose traffic it takes: the same as `RETURNED` of its program.
const OWN: libc::c_int = 0x7461_6b74;
/// Octets in front of a frame's packet: addresses, a VLAN tag, EtherType.
const HEADER: usize = 18;

/// The links of a port, and the frames that wait to leave by them, in order.
#[derive(Debug)]
pub(crate) struct Links {
    places: Vec<Place>,
    queue: VecDeque<Waiting>,
    frame_size: usize,
    priorities: Priorities,
}

#[derive(Debug)]
struct Place {
    link: Option<Link>,
    /// Part of the handle, so that the handle of a former user of this place names nobody.
    generation: u16,
}

#[derive(Debug)]
struct Link {
    interface: u32,
    socket: OwnedFd,
    /// Octets of the longest frame.
    room: usize,
    checked_ms: u64,
    /// The priority that the socket is set to.
    marked: u32,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    link: PeerHandle,
    frame: u32,
    len: usize,
    class: TrafficClass,
}

impl Links {
    pub(crate) fn new(frame_size: usize, priorities: Priorities) -> Self {
        Self {
            places: Vec::new(),
            queue: VecDeque::new(),
            frame_size,
            priorities,
        }
    }

    pub(crate) fn connect(&mut self, interface: u32) -> Result<PeerHandle, ConnectError> {
        let known = |place: &Place| {
            place
                .link
                .as_ref()
                .is_some_and(|link| link.interface == interface)
        };
        if let Some(at) = self.places.iter().position(known) {
            return Ok(self.handle(at));
        }
        let unused = self.places.iter().position(|place| place.link.is_none());
        if unused.is_none() && self.places.len() >= MOST_LINKS {
            return Err(ConnectError::TooManyPeers(MOST_LINKS));
        }
        let link = Link::open(interface, self.frame_size)
            .map_err(|source| ConnectError::Link { interface, source })?;
        let at = unused.unwrap_or_else(|| {
            self.places.push(Place {
                link: None,
                generation: 0,
            });
            self.places.len() - 1
        });
        let place = &mut self.places[at];
        place.link = Some(link);
        place.generation = place.generation.wrapping_add(1) & 0x7fff;
        Ok(self.handle(at))
    }

    fn handle(&self, at: usize) -> PeerHandle {
        PeerHandle(LINK | u32::from(self.places[at].generation) << 16 | at as u32)
    }

    fn place(&self, handle: PeerHandle) -> Option<usize> {
        let at = (handle.0 & 0xffff) as usize;
        (handle.0 & LINK != 0 && at < self.places.len() && self.handle(at) == handle).then_some(at)
    }

    fn link(&mut self, handle: PeerHandle) -> Option<&mut Link> {
        let at = self.place(handle)?;
        self.places[at].link.as_mut()
    }

    /// Frames that wait for it are lost, and counted when their turn comes.
    pub(crate) fn disconnect(&mut self, handle: PeerHandle) {
        if let Some(at) = self.place(handle) {
            self.places[at].link = None;
        }
    }

    /// Octets of the longest frame that a link takes; `None`: the handle is that of no link.
    #[inline]
    pub(crate) fn room(&self, handle: PeerHandle) -> Option<usize> {
        if handle.0 & LINK == 0 {
            return None;
        }
        let link = self.places[self.place(handle)?].link.as_ref();
        link.map(|link| link.room)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn push(&mut self, link: PeerHandle, frame: u32, len: usize, class: TrafficClass) {
        self.queue.push_back(Waiting {
            link,
            frame,
            len,
            class,
        });
    }

    /// Sends what waits, as far as the kernel takes it. Returns true when nothing is left.
    pub(crate) fn flush(
        &mut self,
        frames: &mut FramePool,
        counters: &mut TransmitCounters,
    ) -> bool {
        // Every turn sends or loses a frame, or ends the loop; a signal only repeats it.
        while let Some(first) = self.queue.front().copied() {
            let bytes = frames.filled(first.frame, first.len);
            let frame_size = self.frame_size;
            let priority = self.priorities.of(first.class);
            let sent = match self.link(first.link) {
                Some(link) => link.send(bytes, priority, frame_size),
                None => Err(io::Error::from_raw_os_error(libc::ENODEV)),
            };
            match sent {
                Ok(()) => {
                    counters.datagrams += 1;
                    counters.bytes += first.len as u64;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => continue,
                    Some(libc::EAGAIN | libc::ENOMEM) => return false,
                    // ENOBUFS is a full queue of the device: the frame is gone.
                    _ => counters.errors += 1,
                },
            }
            self.queue.pop_front();
            frames.give_back(first.frame);
        }
        true
    }
}

impl Link {
    fn open(interface: u32, frame_size: usize) -> io::Result<Self> {
        // SAFETY: no pointers are passed. Protocol 0 receives nothing.
        let fd = check(unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
                0,
            )
        })?;
        // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the address is plain integers, for which all bits zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = interface as i32;
        // SAFETY: pointer and length describe `address`, which outlives the call.
        check(unsafe {
            libc::bind(
                fd,
                (&raw const address).cast(),
                mem::size_of_val(&address) as libc::socklen_t,
            )
        })?;
        let mtu = mtu(&socket, interface)?;
        // Whoever may open such a socket may do that too, from Linux 5.17 on; before, nobody takes what leaves.
        let _ = set(&socket, libc::SO_MARK, OWN);
        Ok(Self {
            interface,
            socket,
            room: (mtu + HEADER).min(frame_size),
            checked_ms: now_ms(),
            marked: 0,
        })
    }

    fn send(&mut self, bytes: &[u8], priority: u32, frame_size: usize) -> io::Result<()> {
        if priority != self.marked {
            self.mark(priority);
        }
        // SAFETY: pointer and length describe `bytes`, which outlives the call.
        let sent = unsafe {
            libc::send(
                self.socket.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_NOSIGNAL,
            )
        };
        let result = match sent {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        };
        let now = now_ms();
        if now.saturating_sub(self.checked_ms) >= MTU_LIFETIME_MS {
            self.checked_ms = now;
            if let Ok(mtu) = mtu(&self.socket, self.interface) {
                self.room = (mtu + HEADER).min(frame_size);
            }
        }
        result
    }

    /// Sets the priority for the queueing disciplines of the interface. A socket with CAP_NET_RAW may have
    /// any (Linux `socket(7)`); where that is refused frames leave without.
    fn mark(&mut self, priority: u32) {
        let _ = set(&self.socket, libc::SO_PRIORITY, priority as libc::c_int);
        self.marked = priority;
    }
}

/// Sets an option of a socket.
fn set(socket: &OwnedFd, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    set_value(socket.as_raw_fd(), libc::SOL_SOCKET, option, &value)
}

/// The MTU of an interface in the socket's network namespace, in octets.
fn mtu(socket: &OwnedFd, interface: u32) -> io::Result<usize> {
    // SAFETY: the request is integers and unions of them, for which all bits zero is a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = interface as libc::c_int;
    // SAFETY: both requests read and write an `ifreq`, which outlives the calls; the second reads the name
    // that the first has written. Both leave the union's field that is read next.
    unsafe {
        check(libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCGIFNAME as _,
            &mut request,
        ))?;
        check(libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCGIFMTU as _,
            &mut request,
        ))?;
        usize::try_from(request.ifr_ifru.ifru_mtu)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    }
}
