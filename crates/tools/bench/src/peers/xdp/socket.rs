//! A bare AF_XDP socket in copy mode: its memory, its four rings, one queue.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, send, socket_with, sockopt,
};

/// Octets of a frame's room. The kernel keeps 256 of them.
pub(super) const FRAME_SIZE: usize = 2048;
/// Frames of a socket, and entries of each ring: no ring can overflow.
pub(super) const FRAMES: u32 = 2048;

/// Where each ring is mapped (`linux/if_xdp.h`).
const RX_RING: u64 = 0;
const TX_RING: u64 = 0x8000_0000;
const FILL_RING: u64 = 0x1_0000_0000;
const COMPLETION_RING: u64 = 0x1_8000_0000;

/// A frame on the receive or transmit ring: `struct xdp_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    /// Where it begins in the socket's memory.
    pub(super) address: u64,
    /// Its octets.
    pub(super) length: u32,
    options: u32,
}

impl Descriptor {
    pub(super) fn new(address: u64, length: usize) -> Self {
        Self {
            address,
            length: length as u32,
            options: 0,
        }
    }
}

/// A socket bound to one queue, with all its frames on nobody's ring.
#[derive(Debug)]
pub(super) struct Socket {
    // Before the memory, so that the kernel releases it first.
    descriptor: OwnedFd,
    memory: Mapping,
    pub(super) fill: Ring<u64>,
    pub(super) completion: Ring<u64>,
    pub(super) receive: Ring<Descriptor>,
    pub(super) transmit: Ring<Descriptor>,
}

impl Socket {
    /// Opens a socket in the calling thread's network namespace, on `queue` of interface `index`.
    pub(super) fn open(index: u32, queue: u32) -> io::Result<Self> {
        let descriptor = socket_with(
            AddressFamily::XDP,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let memory = Mapping::anonymous(FRAMES as usize * FRAME_SIZE)?;
        let registration = XdpUmemReg {
            addr: memory.start.as_ptr() as u64,
            len: memory.length as u64,
            chunk_size: FRAME_SIZE as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&descriptor, registration)?;
        sockopt::set_xdp_umem_fill_ring_size(&descriptor, FRAMES)?;
        sockopt::set_xdp_umem_completion_ring_size(&descriptor, FRAMES)?;
        sockopt::set_xdp_rx_ring_size(&descriptor, FRAMES)?;
        sockopt::set_xdp_tx_ring_size(&descriptor, FRAMES)?;
        let offsets = sockopt::xdp_mmap_offsets(&descriptor)?;
        let socket = Self {
            fill: Ring::map(&descriptor, FILL_RING, offsets.fr, Role::Producer)?,
            completion: Ring::map(&descriptor, COMPLETION_RING, offsets.cr, Role::Consumer)?,
            receive: Ring::map(&descriptor, RX_RING, offsets.rx, Role::Consumer)?,
            transmit: Ring::map(&descriptor, TX_RING, offsets.tx, Role::Producer)?,
            memory,
            descriptor,
        };
        bind(
            &socket.descriptor,
            &SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, index, queue),
        )?;
        Ok(socket)
    }

    /// The octets of a frame, whose address came from this socket's rings or is a multiple of
    /// [`FRAME_SIZE`] below all [`FRAMES`].
    ///
    /// # Panics
    /// When it is not within the memory.
    pub(super) fn frame(&mut self, frame: Descriptor) -> &mut [u8] {
        let (start, length) = (frame.address as usize, frame.length as usize);
        assert!(
            start
                .checked_add(length)
                .is_some_and(|end| end <= self.memory.length),
            "the kernel keeps within the memory"
        );
        // SAFETY: within the mapping, as just checked, which lives as long as `self`; `self` is
        // borrowed mutably, and the kernel leaves a frame alone that is on no ring of its.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start.as_ptr().add(start), length) }
    }

    /// Tells the kernel to send what is on the transmit ring; in copy mode it does so here and now.
    pub(super) fn kick(&self) -> io::Result<()> {
        match send(&self.descriptor, &[], SendFlags::DONTWAIT) {
            Ok(_) => Ok(()),
            // The kernel takes a number of frames at a time, and has limits that pass: kick again later.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::BUSY | rustix::io::Errno::NOBUFS) => {
                Ok(())
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Producer,
    Consumer,
}

/// This side's end of a ring that is shared with the kernel: one side produces, the other consumes.
#[derive(Debug)]
pub(super) struct Ring<T> {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    entries: usize,
    /// The next entry of ours.
    own: u32,
    /// How far the far side is known to have come; a producer's is a whole ring ahead.
    other: u32,
    kind: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn map(
        descriptor: &OwnedFd,
        place: u64,
        offsets: XdpRingOffset,
        role: Role,
    ) -> io::Result<Self> {
        let length = offsets.desc as usize + FRAMES as usize * size_of::<T>();
        // Both indices begin at zero: a producer has a whole ring to fill.
        let other = if role == Role::Producer { FRAMES } else { 0 };
        Ok(Self {
            mapping: Mapping::of(descriptor, place, length)?,
            producer: offsets.producer as usize,
            consumer: offsets.consumer as usize,
            entries: offsets.desc as usize,
            own: 0,
            other,
            kind: PhantomData,
        })
    }

    fn index(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the kernel gave the offset of an aligned index within this mapping, which is shared
        // with nobody but the kernel and lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.mapping.start.as_ptr().add(offset).cast()) }
    }

    fn entry(&self, index: u32) -> *mut T {
        let place = (index & (FRAMES - 1)) as usize;
        // SAFETY: there are `FRAMES` entries from here on, by the length of the mapping.
        unsafe {
            self.mapping
                .start
                .as_ptr()
                .add(self.entries)
                .cast::<T>()
                .add(place)
        }
    }

    /// The producer's: whether there is room for one more.
    pub(super) fn has_room(&mut self) -> bool {
        if self.own == self.other {
            // Acquire: pairs with the kernel's release of the entries it has consumed.
            self.other = self
                .index(self.consumer)
                .load(Ordering::Acquire)
                .wrapping_add(FRAMES);
        }
        self.own != self.other
    }

    /// The producer's: puts one entry, which the kernel sees after [`publish`](Self::publish).
    ///
    /// # Panics
    /// When the ring is full; ask [`has_room`](Self::has_room).
    pub(super) fn put(&mut self, entry: T) {
        assert!(
            self.has_room(),
            "a ring has as many entries as there are frames"
        );
        // SAFETY: the entry is aligned and within the ring, and the producer's until it is published.
        unsafe { self.entry(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
    }

    /// The producer's: shows the kernel all that was put.
    pub(super) fn publish(&self) {
        // Release: pairs with the kernel's acquire of the producer index.
        self.index(self.producer).store(self.own, Ordering::Release);
    }

    /// The consumer's: takes one entry, if there is one.
    pub(super) fn take(&mut self) -> Option<T> {
        if self.own == self.other {
            // Acquire: pairs with the kernel's release of the entries it has produced.
            self.other = self.index(self.producer).load(Ordering::Acquire);
            if self.own == self.other {
                return None;
            }
        }
        // SAFETY: the entry is aligned and within the ring, and the consumer's until it is released.
        let entry = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        Some(entry)
    }

    /// The consumer's: gives all taken entries back.
    pub(super) fn release(&self) {
        // Release: pairs with the kernel's acquire of the consumer index; our reads stay before it.
        self.index(self.consumer).store(self.own, Ordering::Release);
    }
}

/// Memory that is unmapped when this is dropped.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory belongs to this value alone on this side, whichever thread holds it.
unsafe impl Send for Mapping {}

impl Mapping {
    fn anonymous(length: usize) -> io::Result<Self> {
        let (protection, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::POPULATE,
        );
        // SAFETY: without a wished address the kernel chooses one where nothing is mapped.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags)? };
        Self::new(start, length)
    }

    fn of(descriptor: &OwnedFd, place: u64, length: usize) -> io::Result<Self> {
        let (protection, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::POPULATE,
        );
        // SAFETY: as in `anonymous`.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                protection,
                flags,
                descriptor,
                place,
            )?
        };
        Self::new(start, length)
    }

    fn new(start: *mut std::ffi::c_void, length: usize) -> io::Result<Self> {
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and nothing borrowed from it outlives its owner.
        // Unmapping a mapping as it was made cannot fail.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
