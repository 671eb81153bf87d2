//! The four rings that an AF_XDP socket shares with the kernel (Linux
//! `Documentation/networking/af_xdp.rst`, "Rings").
//!
//! Single producer, single consumer; we are one side, the kernel the other. Each of our two types
//! keeps its own index locally and publishes it once for a batch. Indices run free over 32 bits and
//! are masked at each access, so no value that the kernel might leave in the shared words leads
//! outside the mapping.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// A descriptor of the receive and transmit rings: `struct xdp_desc`.
pub use libc::xdp_desc as Descriptor;

/// Descriptor option: the frame goes on in the next descriptor (`XDP_PKT_CONTD`).
pub const CONTINUED: u32 = libc::XDP_PKT_CONTD;

/// A ring as mapped: `T` is [`Descriptor`] or `u64`.
#[derive(Debug)]
struct Mapping<T> {
    base: NonNull<u8>,
    length: usize,
    offsets: libc::xdp_ring_offset,
    mask: u32,
    entry: PhantomData<T>,
}

// SAFETY: the mapping is owned and not bound to a thread; entries are plain integers.
unsafe impl<T: Send> Send for Mapping<T> {}

impl<T: Copy> Mapping<T> {
    /// Maps the ring of `entries` entries that `socket` offers at `page_offset`.
    fn new(
        socket: BorrowedFd<'_>,
        page_offset: i64,
        offsets: libc::xdp_ring_offset,
        entries: u32,
    ) -> io::Result<Self> {
        if !entries.is_power_of_two() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let length = offsets.desc as usize + entries as usize * size_of::<T>();
        // SAFETY: a new shared mapping touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                socket.as_raw_fd(),
                page_offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self {
            base,
            length,
            offsets,
            mask: entries - 1,
            entry: PhantomData,
        })
    }

    /// One of the shared words, by its offset in the mapping.
    #[inline]
    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel reports offsets of aligned 32-bit words before the entries, inside the
        // mapping, which lives as long as `self`; both sides access them atomically.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset as usize).cast()) }
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        self.word(self.offsets.producer)
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        self.word(self.offsets.consumer)
    }

    #[inline]
    fn needs_wakeup(&self) -> bool {
        // Relaxed: a hint, read after the index was published by a Release store.
        self.word(self.offsets.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[inline]
    fn entry(&self, index: u32) -> *mut T {
        let index = (index & self.mask) as usize;
        // SAFETY: the mask keeps the index inside the entries, which the mapping contains whole.
        unsafe {
            self.base
                .as_ptr()
                .add(self.offsets.desc as usize)
                .cast::<T>()
                .add(index)
        }
    }

    #[inline]
    fn entries(&self) -> u32 {
        self.mask + 1
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: the range is our own mapping and no borrow of it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// A ring that we fill: the fill and the transmit ring.
#[derive(Debug)]
pub struct Producer<T> {
    mapping: Mapping<T>,
    /// Index of the next entry to write.
    next: u32,
    /// What the kernel has been told.
    published: u32,
}

impl<T: Copy> Producer<T> {
    pub(crate) fn new(
        socket: BorrowedFd<'_>,
        page_offset: i64,
        offsets: libc::xdp_ring_offset,
        entries: u32,
    ) -> io::Result<Self> {
        Ok(Self {
            mapping: Mapping::new(socket, page_offset, offsets, entries)?,
            next: 0,
            published: 0,
        })
    }

    /// Entries that can be pushed now.
    #[inline]
    pub fn room(&self) -> u32 {
        self.mapping
            .entries()
            .saturating_sub(self.next.wrapping_sub(self.consumed()))
    }

    /// Writes an entry, to be seen after the next [`publish`](Self::publish). The caller has made
    /// sure that there is [`room`](Self::room): an entry too many overwrites one that the kernel
    /// has not read, which the kernel treats as any descriptor.
    #[inline]
    pub fn push(&mut self, entry: T) {
        // SAFETY: `entry` points into the mapping, aligned for `T` as the kernel lays it out; the
        // kernel does not read it before `publish`.
        unsafe { self.mapping.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the kernel everything pushed so far.
    #[inline]
    pub fn publish(&mut self) {
        self.published = self.next;
        // Pairs with the kernel's acquire of the producer index (`xskq_cons_*`,
        // `smp_load_acquire`).
        self.mapping.producer().store(self.next, Ordering::Release);
    }

    /// Entries pushed and not yet published.
    #[inline]
    pub fn unpublished(&self) -> u32 {
        self.next.wrapping_sub(self.published)
    }

    /// Entries published that the kernel has not taken.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.published.wrapping_sub(self.consumed())
    }

    /// The kernel asks to be woken by a system call.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.mapping.needs_wakeup()
    }

    /// Takes away everything that the kernel has not taken, oldest first, by `take`, and leaves `void` in its place. How
    /// far the ring is filled stays as it was told: the kernel may have noted that, and would read on to there.
    ///
    /// Only for a ring that the kernel reads inside our own system calls and never beside them: the
    /// transmit ring of a socket in copy mode.
    pub fn void(&mut self, void: T, mut take: impl FnMut(T)) {
        let first = self.consumed();
        for offset in 0..self.next.wrapping_sub(first).min(self.mapping.entries()) {
            let entry = self.mapping.entry(first.wrapping_add(offset));
            // SAFETY: inside the mapping; written by `push` before, and the kernel does not read it meanwhile.
            take(unsafe { entry.replace(void) });
        }
        self.publish();
    }

    /// Takes back everything that the kernel will not take, oldest first, by `take`, of a ring that nothing is pushed to any
    /// more. Returns how many entries more it may take, or have taken by now: `beside` our own calls a driver reads the
    /// transmit ring in zero-copy mode, until the ring is unmapped, which closes its socket. How far the ring is filled stays
    /// as it was told, for the driver may have noted that.
    pub fn give_up(&mut self, beside: bool, mut take: impl FnMut(T)) -> u32 {
        let (first, doubtful) = if beside {
            (self.published, self.waiting())
        } else {
            (self.consumed(), 0)
        };
        for offset in 0..self.next.wrapping_sub(first).min(self.mapping.entries()) {
            // SAFETY: inside the mapping; written by `push` before.
            take(unsafe { self.mapping.entry(first.wrapping_add(offset)).read() });
        }
        doubtful
    }

    #[inline]
    fn consumed(&self) -> u32 {
        // Pairs with the kernel's release of the consumer index: its reads of the entries are over.
        self.mapping.consumer().load(Ordering::Acquire)
    }
}

/// A ring that the kernel fills: the receive and the completion ring.
#[derive(Debug)]
pub struct Consumer<T> {
    mapping: Mapping<T>,
    /// Index of the next entry to read.
    next: u32,
    /// The kernel's index as last seen.
    seen: u32,
}

impl<T: Copy> Consumer<T> {
    pub(crate) fn new(
        socket: BorrowedFd<'_>,
        page_offset: i64,
        offsets: libc::xdp_ring_offset,
        entries: u32,
    ) -> io::Result<Self> {
        Ok(Self {
            mapping: Mapping::new(socket, page_offset, offsets, entries)?,
            next: 0,
            seen: 0,
        })
    }

    /// Entries that can be popped now, at most `wanted`: looks at the shared index only when it has
    /// to.
    #[inline]
    pub fn available(&mut self, wanted: u32) -> u32 {
        let mut known = self.seen.wrapping_sub(self.next);
        if known < wanted {
            // Pairs with the kernel's release of the producer index: the entries before it are
            // written.
            self.seen = self.mapping.producer().load(Ordering::Acquire);
            known = self
                .seen
                .wrapping_sub(self.next)
                .min(self.mapping.entries());
        }
        known.min(wanted)
    }

    /// The next entry. The caller has seen it [`available`](Self::available).
    #[inline]
    pub fn pop(&mut self) -> T {
        // SAFETY: inside the mapping; any bit pattern is a value of the plain integers in `T`.
        let entry = unsafe { self.mapping.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        entry
    }

    /// Gives everything popped so far back to the kernel.
    #[inline]
    pub fn release(&mut self) {
        // Pairs with the kernel's acquire of the consumer index: our reads of the entries are over.
        self.mapping.consumer().store(self.next, Ordering::Release);
    }
}
