//! A packet socket with a ring of blocks that the kernel fills (packet(7), `TPACKET_V3`).
//!
//! It sees copies: what the host receives and sends goes its way whatever happens here. What comes faster than it is
//! taken is dropped by the kernel and counted.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::mm::{MapFlags, ProtFlags};

use crate::Meta;
use crate::spread::{self, Spread};

/// Small, for one that has a packet is used up in [`RETIRE_MS`], and all of them are the time for which nobody needs to look. Longer
/// than any packet.
const BLOCK: usize = 1 << 18;
/// A block that is not full is handed over after this long, ms.
const RETIRE_MS: u32 = 4;
/// `TP_STATUS_VLAN_VALID` and `TP_STATUS_VLAN_TPID_VALID`.
const VLAN: u32 = libc::TP_STATUS_VLAN_VALID;
const TPID: u32 = libc::TP_STATUS_VLAN_TPID_VALID;
const ETHERNET: i32 = 1;
/// `PACKET_TIMESTAMP` and `TP_STATUS_TS_RAW_HARDWARE` of `linux/if_packet.h`.
const PACKET_TIMESTAMP: libc::c_int = 17;
const BY_DEVICE: u32 = 1 << 31;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The interface does not exist.
    #[error("there is no interface {0}: `ip link` lists them")]
    NoInterface(String),
    /// Capturing is for the privileged.
    #[error("cannot capture on {interface}: {source}; it needs root or CAP_NET_RAW")]
    Privilege {
        /// The interface.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The interface has no Ethernet frames.
    #[error("{interface} is no Ethernet interface (ARP hardware type {kind})")]
    NotEthernet {
        /// The interface.
        interface: String,
        /// By ARPHRD_*.
        kind: u16,
    },
    /// The device does not say when it received each packet.
    #[error(
        "{interface} does not tell when it received each packet ({source}): `ethtool -T {interface}` has to list the receive filter \"all\""
    )]
    NoDeviceTimes {
        /// The interface.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Something else.
    #[error("cannot {what} on {interface}: {source}")]
    Other {
        /// What was tried.
        what: &'static str,
        /// The interface.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What the kernel counted since it was asked last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets that matched, dropped ones as well.
    pub packets: u32,
    /// Packets for which the ring had no room.
    pub drops: u32,
}

/// A packet socket and its ring.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
    ring: *mut u8,
    blocks: usize,
    next: usize,
    /// A frame with its tag put back.
    tagged: Vec<u8>,
    /// What the device's clock is ahead of UTC, where its times are wanted.
    device_ahead_ns: i64,
    /// Packets with its times.
    by_device: u64,
}

// SAFETY: the ring is this value's alone, and nothing in it belongs to a thread.
unsafe impl Send for PacketSocket {}

fn set<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: `value` is readable for the length that is told, and the kernel copies it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An option of packet sockets, into `found`.
fn get<T>(socket: &OwnedFd, option: libc::c_int, mut found: T) -> io::Result<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: room for what the kernel writes, whose length is told; integers, of which any are values.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            ptr::from_mut(&mut found).cast(),
            &raw mut length,
        )
    };
    match result {
        0 => Ok(found),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Index and hardware type of an interface.
fn interface(name: &str) -> Option<(u32, u16)> {
    let text = CString::new(name).ok()?;
    // SAFETY: a text that ends in 0.
    let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
    let kind = std::fs::read_to_string(format!("/sys/class/net/{name}/type"));
    // Without a /sys of this network namespace, Ethernet is taken for granted.
    let kind = kind.ok().and_then(|text| text.trim().parse().ok());
    (index != 0).then_some((index, kind.unwrap_or(libc::ARPHRD_ETHER)))
}

/// A packet socket without a protocol yet: nothing is queued before it is bound. Also the interface's index.
fn open(name: &str, outgoing: bool) -> Result<(OwnedFd, u32), OpenError> {
    let other = |what: &'static str| failed(what, name);
    let (index, kind) = interface(name).ok_or_else(|| OpenError::NoInterface(name.to_owned()))?;
    if kind != libc::ARPHRD_ETHER && kind != libc::ARPHRD_LOOPBACK {
        return Err(OpenError::NotEthernet {
            interface: name.to_owned(),
            kind,
        });
    }
    // SAFETY: no memory is handed over.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        let source = io::Error::last_os_error();
        return Err(match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::Privilege {
                interface: name.to_owned(),
                source,
            },
            _ => other("open a packet socket")(source),
        });
    }
    // SAFETY: a descriptor that was just opened, and belongs to nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    if !outgoing {
        set(
            &socket,
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            &1_i32,
        )
        .map_err(other("leave out what is sent"))?;
    }
    Ok((socket, index))
}

/// From now on it captures.
fn bind(socket: &OwnedFd, name: &str, index: u32) -> Result<(), OpenError> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: an address of the length that is told, which the kernel copies.
    let bound = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            ptr::from_ref(&address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    match bound {
        0 => Ok(()),
        _ => Err(failed("capture", name)(io::Error::last_os_error())),
    }
}

fn failed(what: &'static str, interface: &str) -> impl FnOnce(io::Error) -> OpenError {
    let interface = interface.to_owned();
    move |source| OpenError::Other {
        what,
        interface,
        source,
    }
}

/// Writes a frame with its tag, which the kernel takes out of frames before it copies them. False: it has none.
fn put_back(tagged: &mut Vec<u8>, frame: &[u8], status: u32, (tpid, tci): (u16, u16)) -> bool {
    let Some((addresses, rest)) = frame.split_at_checked(12).filter(|_| status & VLAN != 0) else {
        return false;
    };
    let tpid = if status & TPID != 0 { tpid } else { 0x8100 };
    tagged.clear();
    tagged.extend_from_slice(addresses);
    tagged.extend(tpid.to_be_bytes());
    tagged.extend(tci.to_be_bytes());
    tagged.extend_from_slice(rest);
    true
}

impl PacketSocket {
    /// Captures on an interface with a ring of `megabytes`; what the host itself sends only if `outgoing`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(name: &str, megabytes: usize, outgoing: bool) -> Result<Self, OpenError> {
        let (this, index) = Self::with_ring(name, megabytes, outgoing)?;
        bind(&this.socket, name, index)?;
        Ok(this)
    }

    /// As [`open`](Self::open), with several sockets that share the packets and the memory.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_several(
        name: &str,
        megabytes: usize,
        outgoing: bool,
        (count, spread): (usize, Spread),
    ) -> Result<Vec<Self>, OpenError> {
        let other = |what: &'static str| failed(what, name);
        let share = megabytes.div_ceil(count.max(1));
        let mut several = Vec::with_capacity(count);
        // What each socket leaves out, the group has to be told again.
        let left_out = match outgoing {
            true => 0,
            false => libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING,
        };
        let kind = (libc::PACKET_FANOUT_CBPF | left_out) << 16;
        let mut group = libc::PACKET_FANOUT_FLAG_UNIQUEID << 16;
        for _ in 0..count {
            let (this, index) = Self::with_ring(name, share, outgoing)?;
            // It takes nothing until all share: each would have everything.
            let nothing = [libc::sock_filter {
                code: (libc::BPF_RET | libc::BPF_K) as u16,
                jt: 0,
                jf: 0,
                k: 0,
            }];
            (this.run(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &nothing))
                .map_err(other("filter"))?;
            bind(&this.socket, name, index)?;
            let option = group | kind;
            set(&this.socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &option)
                .map_err(other("share packets between threads"))?;
            if several.is_empty() {
                // The kernel has chosen a number.
                group = this.group().map_err(other("name a group of sockets"))?;
                let program = spread::program(spread);
                (this.run(libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, &program))
                    .map_err(other("spread packets over threads"))?;
            }
            several.push(this);
        }
        for this in &several {
            set(
                &this.socket,
                libc::SOL_SOCKET,
                libc::SO_DETACH_FILTER,
                &0_i32,
            )
            .map_err(other("take packets"))?;
        }
        Ok(several)
    }

    /// Has the device say when it received packets: by its own clock, which is `ahead_ns` ahead of UTC (where PTP keeps it in TAI, as
    /// much as that is). For which packets it did, [`by_device`](Self::by_device) counts. The device stays so, as `hwstamp_ctl -r 1`
    /// leaves it.
    ///
    /// # Errors
    /// [`OpenError::NoDeviceTimes`].
    pub fn take_device_times(&mut self, name: &str, ahead_ns: i64) -> Result<(), OpenError> {
        let none = |source| OpenError::NoDeviceTimes {
            interface: name.to_owned(),
            source,
        };
        takt_xdp::stamp_received(name).map_err(none)?;
        let wanted = libc::SOF_TIMESTAMPING_RAW_HARDWARE as libc::c_int;
        set(&self.socket, libc::SOL_PACKET, PACKET_TIMESTAMP, &wanted).map_err(none)?;
        self.device_ahead_ns = ahead_ns;
        Ok(())
    }

    /// The device's clock is ahead of UTC by as much from now on.
    pub fn set_ahead(&mut self, ahead_ns: i64) {
        self.device_ahead_ns = ahead_ns;
    }

    /// How many packets had the device's times.
    pub fn by_device(&self) -> u64 {
        self.by_device
    }

    /// The number of the group that it is in.
    fn group(&self) -> io::Result<u32> {
        get(&self.socket, libc::PACKET_FANOUT, 0_u32).map(|found| found & 0xffff)
    }

    /// Has the kernel run a program for it.
    fn run(
        &self,
        level: libc::c_int,
        option: libc::c_int,
        program: &[libc::sock_filter],
    ) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_ptr().cast_mut(),
        };
        // The kernel copies what it points to, and does not write there.
        set(&self.socket, level, option, &program)
    }

    /// A socket with a ring, which takes nothing yet, and its interface's index.
    fn with_ring(name: &str, megabytes: usize, outgoing: bool) -> Result<(Self, u32), OpenError> {
        let other = |what: &'static str| failed(what, name);
        let (socket, index) = open(name, outgoing)?;
        let version = libc::tpacket_versions::TPACKET_V3 as libc::c_int;
        set(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)
            .map_err(other("choose TPACKET_V3"))?;
        let blocks = (megabytes.clamp(1, 1024) << 20) / BLOCK;
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: 2048,
            tp_frame_nr: (BLOCK / 2048 * blocks) as u32,
            tp_retire_blk_tov: RETIRE_MS,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
            .map_err(other("set up a ring"))?;
        // SAFETY: a new mapping at an address of the kernel's choice, as long as the ring.
        let ring = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                BLOCK * blocks,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &socket,
                0,
            )
        }
        .map_err(|error| other("map the ring")(error.into()))?;
        let this = Self {
            socket,
            ring: ring.cast(),
            blocks,
            next: 0,
            tagged: Vec::new(),
            device_ahead_ns: 0,
            by_device: 0,
        };
        Ok((this, index))
    }

    /// What the kernel counted since the last call.
    ///
    /// # Errors
    /// The kernel's.
    pub fn statistics(&self) -> io::Result<Statistics> {
        let none = libc::tpacket_stats_v3 {
            tp_packets: 0,
            tp_drops: 0,
            tp_freeze_q_cnt: 0,
        };
        let found = get(&self.socket, libc::PACKET_STATISTICS, none)?;
        Ok(Statistics {
            packets: found.tp_packets,
            drops: found.tp_drops,
        })
    }

    /// Whether its interface is still there. One that is down is.
    pub fn is_there(&self) -> bool {
        let mut address = libc::sockaddr_ll {
            sll_family: 0,
            sll_protocol: 0,
            sll_ifindex: 0,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let mut length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: both are there for the call, and the length is that of the address.
        let told = unsafe {
            libc::getsockname(
                self.socket.as_raw_fd(),
                (&raw mut address).cast(),
                &raw mut length,
            )
        };
        told == 0 && address.sll_ifindex > 0
    }

    /// Waits for packets for at most `timeout_ms`, and hands out those of the blocks that are full or timed out: of
    /// one round through the ring at most. Returns how many there were.
    ///
    /// With each is whether the ring may have had no room for others before it, in which case the next
    /// [`statistics`](Self::statistics) count them.
    ///
    /// # Errors
    /// The kernel's; `ErrorKind::Interrupted` is none.
    pub fn take(
        &mut self,
        timeout_ms: u32,
        mut packet: impl FnMut(&Meta, &[u8], bool),
    ) -> io::Result<u64> {
        let mut taken = 0;
        for round in 0..self.blocks {
            // SAFETY: within the ring, whose blocks begin with a descriptor that is aligned as they are.
            let block = unsafe { self.ring.add(self.next * BLOCK) };
            // SAFETY: as above; the first fields of `tpacket_block_desc` are version, offset and the header.
            let header = unsafe { &raw mut (*block.cast::<libc::tpacket_block_desc>()).hdr.bh1 };
            // SAFETY: the kernel changes the status as one word. Acquire: pairs with the kernel's barrier before it
            // hands a block over, so that the packets in it are seen.
            let status = unsafe { AtomicU32::from_ptr(&raw mut (*header).block_status) };
            let mut said = status.load(Ordering::Acquire);
            if said & libc::TP_STATUS_USER == 0 {
                if round > 0 || !self.wait(timeout_ms)? {
                    return Ok(taken);
                }
                said = status.load(Ordering::Acquire);
                if said & libc::TP_STATUS_USER == 0 {
                    return Ok(taken);
                }
            }
            // Set where the kernel dropped packets since it was asked how many: before this block or in it.
            let losing = said & libc::TP_STATUS_LOSING != 0;
            // SAFETY: the block is ours until its status is given back.
            let (count, first) = unsafe { ((*header).num_pkts, (*header).offset_to_first_pkt) };
            let mut at = first as usize;
            for _ in 0..count {
                // The kernel writes the ring, but so could whoever shares the descriptor: nothing outside is read.
                if at + size_of::<libc::tpacket3_hdr>() > BLOCK {
                    break;
                }
                // SAFETY: within the block; the kernel aligns headers to 16 bytes, and unaligned reads do anyway.
                let frame =
                    unsafe { ptr::read_unaligned(block.add(at).cast::<libc::tpacket3_hdr>()) };
                let (begin, length) = (at + usize::from(frame.tp_mac), frame.tp_snaplen as usize);
                if begin + length > BLOCK {
                    break;
                }
                // SAFETY: within the block, which is ours.
                let bytes = unsafe { std::slice::from_raw_parts(block.add(begin), length) };
                let by_device = frame.tp_status & BY_DEVICE != 0;
                self.by_device += u64::from(by_device);
                let ahead_ns = if by_device { self.device_ahead_ns } else { 0 };
                let stamp = i64::from(frame.tp_sec) * 1_000_000_000 + i64::from(frame.tp_nsec);
                let mut meta = Meta {
                    utc_ns: stamp - ahead_ns,
                    length: frame.tp_len,
                    link_type: ETHERNET,
                };
                let (tci, tpid) = (frame.hv1.tp_vlan_tci as u16, frame.hv1.tp_vlan_tpid);
                match put_back(&mut self.tagged, bytes, frame.tp_status, (tpid, tci)) {
                    true => {
                        meta.length += 4;
                        packet(&meta, &self.tagged, losing);
                    }
                    false => packet(&meta, bytes, losing),
                }
                taken += 1;
                if frame.tp_next_offset == 0 {
                    break;
                }
                at += frame.tp_next_offset as usize;
            }
            // Release: pairs with the kernel's look at the status before it writes into the block again.
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % self.blocks;
        }
        Ok(taken)
    }

    /// Whether something may have come.
    fn wait(&self, timeout_ms: u32) -> io::Result<bool> {
        let mut sources = [PollFd::new(&self.socket, PollFlags::IN | PollFlags::ERR)];
        let timeout = Timespec {
            tv_sec: i64::from(timeout_ms / 1000),
            tv_nsec: i64::from(timeout_ms % 1000) * 1_000_000,
        };
        match rustix::event::poll(&mut sources, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(false),
            Ok(_) if sources[0].revents().contains(PollFlags::ERR) => {
                // Told once: the kernel forgets it with this.
                match rustix::net::sockopt::socket_error(&self.socket)? {
                    Ok(()) => Ok(false),
                    Err(error) => Err(error.into()),
                }
            }
            Ok(_) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for PacketSocket {
    fn drop(&mut self) {
        // SAFETY: mapped by `open` with this length, and nothing of it is borrowed any more.
        let _ = unsafe { rustix::mm::munmap(self.ring.cast(), BLOCK * self.blocks) };
    }
}

/// A packet socket that hands out each packet as it comes: a system call for each, and none waits for a block to fill.
#[derive(Debug)]
pub struct PromptSocket {
    socket: OwnedFd,
    bytes: Vec<u8>,
    /// A frame with its tag put back.
    tagged: Vec<u8>,
    /// What the kernel has dropped by the last packet; it wraps.
    dropped: u32,
}

/// Memory for packets that were not taken yet; the kernel takes twice that.
const PROMPT_BUFFER: libc::c_int = 16 << 20;
/// Bytes that are looked at of a packet.
const PROMPT_SNAP: usize = 2048;
/// Packets that are taken at once.
const PROMPT_MOST: u64 = 1024;

impl AsFd for PromptSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl PromptSocket {
    /// Captures what an interface receives.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(name: &str) -> Result<Self, OpenError> {
        let (socket, index) = open(name, false)?;
        set(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1_i32)
            .map_err(failed("ask for times", name))?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1_i32)
            .map_err(failed("ask for VLAN tags", name))?;
        set(&socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &1_i32)
            .map_err(failed("ask for what is dropped", name))?;
        // Without CAP_NET_ADMIN, what `net.core.rmem_max` allows.
        let room = &PROMPT_BUFFER;
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, room)
            .or_else(|_| set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, room))
            .map_err(failed("get memory for packets", name))?;
        bind(&socket, name, index)?;
        Ok(Self {
            socket,
            bytes: vec![0; PROMPT_SNAP],
            tagged: Vec::new(),
            dropped: 0,
        })
    }

    /// What the kernel counted since the last call.
    ///
    /// # Errors
    /// The kernel's.
    pub fn statistics(&self) -> io::Result<Statistics> {
        let none = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let found = get(&self.socket, libc::PACKET_STATISTICS, none)?;
        Ok(Statistics {
            packets: found.tp_packets,
            drops: found.tp_drops,
        })
    }

    /// Hands out what is there, without waiting. Returns how many there were.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take(&mut self, mut packet: impl FnMut(&Meta, &[u8])) -> io::Result<u64> {
        self.take_with_drops(|meta, bytes, _| packet(meta, bytes))
    }

    /// The same, with how many packets the kernel has dropped right before each for want of room.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take_with_drops(
        &mut self,
        mut packet: impl FnMut(&Meta, &[u8], u32),
    ) -> io::Result<u64> {
        let mut taken = 0;
        while taken < PROMPT_MOST {
            // Aligned as control messages are.
            let mut control = [0_u64; 16];
            let mut part = libc::iovec {
                iov_base: self.bytes.as_mut_ptr().cast(),
                iov_len: self.bytes.len(),
            };
            // SAFETY: a header is integers and pointers, for which zeros are values.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control) as _;
            // SAFETY: all buffers are as long as told, and outlive the call.
            let length = unsafe {
                libc::recvmsg(
                    self.socket.as_raw_fd(),
                    &raw mut message,
                    libc::MSG_DONTWAIT | libc::MSG_TRUNC,
                )
            };
            let Ok(length) = usize::try_from(length) else {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(taken),
                    io::ErrorKind::Interrupted => continue,
                    _ => Err(error),
                };
            };
            let told = Told::read(&message);
            let mut meta = Meta {
                utc_ns: told.utc_ns,
                length: u32::try_from(length).unwrap_or(u32::MAX),
                link_type: ETHERNET,
            };
            let bytes = &self.bytes[..length.min(PROMPT_SNAP)];
            // It says nothing before it has dropped any.
            let drops = told.dropped.wrapping_sub(self.dropped);
            self.dropped = told.dropped;
            match put_back(&mut self.tagged, bytes, told.status, told.tag) {
                true => {
                    meta.length = meta.length.saturating_add(4);
                    packet(&meta, &self.tagged, drops);
                }
                false => packet(&meta, bytes, drops),
            }
            taken += 1;
        }
        Ok(taken)
    }
}

/// What the kernel tells of a packet beside it.
#[derive(Default)]
struct Told {
    /// When it received it; 0: it does not say.
    utc_ns: i64,
    /// Packets that it has dropped until then.
    dropped: u32,
    status: u32,
    /// TPID and TCI, where the status says that there are some.
    tag: (u16, u16),
}

impl Told {
    fn read(message: &libc::msghdr) -> Self {
        let mut told = Self::default();
        // SAFETY: the kernel has filled the buffer of control messages, and told its length.
        let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
        while !next.is_null() {
            // SAFETY: within the buffer, as the macros see to.
            let header = unsafe { &*next };
            // SAFETY: as above.
            let data = unsafe { libc::CMSG_DATA(next) };
            match (header.cmsg_level, header.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                    // SAFETY: such a message carries a `timespec`.
                    let time = unsafe { ptr::read_unaligned(data.cast::<libc::timespec>()) };
                    told.utc_ns = time.tv_sec * 1_000_000_000 + time.tv_nsec;
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    // SAFETY: such a message carries a `__u32`.
                    told.dropped = unsafe { ptr::read_unaligned(data.cast::<u32>()) };
                }
                (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                    // SAFETY: such a message carries a `tpacket_auxdata`.
                    let more = unsafe { ptr::read_unaligned(data.cast::<libc::tpacket_auxdata>()) };
                    told.status = more.tp_status;
                    told.tag = (more.tp_vlan_tpid, more.tp_vlan_tci);
                }
                _ => {}
            }
            // SAFETY: as above.
            next = unsafe { libc::CMSG_NXTHDR(message, next) };
        }
        told
    }
}
