//! The memory that frames lie in, shared with the kernel (a *UMEM*).
//!
//! One anonymous mapping, cut into chunks of a page. It knows nothing of who owns which chunk: that is the
//! business of the rings and of [`crate::port`].

use std::io;
use std::ptr::NonNull;

/// Bytes of a chunk: a page, the largest that the kernel takes in aligned mode (Linux `af_xdp.rst`, "UMEM").
pub const CHUNK: usize = 4096;

/// Bytes that the kernel keeps free before a received frame (`XDP_PACKET_HEADROOM`).
const KERNEL_HEADROOM: usize = 256;

/// Longest frame that fits one chunk on receive.
pub const RX_CHUNK_CAPACITY: usize = CHUNK - KERNEL_HEADROOM;

/// Frame memory. Unmapped on drop; the kernel keeps its own hold on the pages while a socket uses them.
#[derive(Debug)]
pub struct Umem {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: `Umem` owns its mapping, which is not bound to a thread.
unsafe impl Send for Umem {}

impl Umem {
    /// Maps `chunks` chunks of zeros.
    ///
    /// # Errors
    /// The kernel's answer, for instance when there is not enough memory.
    pub fn new(chunks: usize) -> io::Result<Self> {
        let length = chunks
            .checked_mul(CHUNK)
            .filter(|length| *length > 0 && *length <= isize::MAX as usize)
            .ok_or(io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Fewer TLB misses where the kernel grants it; a refusal costs nothing else.
        // SAFETY: the range is the mapping just made.
        unsafe { libc::madvise(base, length, libc::MADV_HUGEPAGE) };
        // A child of fork(2) would otherwise share the pages copy-on-write, and the kernel's view of them
        // would part from ours at the next write.
        // SAFETY: as above.
        unsafe { libc::madvise(base, length, libc::MADV_DONTFORK) };
        let base = NonNull::new(base.cast()).ok_or(io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { base, length })
    }

    /// Bytes in all.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Address of the first byte, as the kernel registers it.
    pub fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// `length` bytes at `offset`, or `None` when they do not all lie in the memory.
    ///
    /// The kernel writes to chunks that are in the fill ring only, so what it has handed over stays as it is.
    #[inline]
    pub fn bytes(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let offset = self.checked(offset, length)?;
        // SAFETY: `checked` keeps the range inside the mapping; the mapping is initialised (zeros) and lives
        // as long as `self`; the shared borrow keeps `bytes_mut` away.
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), length) })
    }

    /// `length` bytes at `offset` to write, or `None` when they do not all lie in the memory.
    #[inline]
    pub fn bytes_mut(&mut self, offset: u64, length: usize) -> Option<&mut [u8]> {
        let offset = self.checked(offset, length)?;
        // SAFETY: as in `bytes`; the exclusive borrow keeps all others away.
        Some(unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset), length) })
    }

    #[inline]
    fn checked(&self, offset: u64, length: usize) -> Option<usize> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(length)?;
        (end <= self.length).then_some(offset)
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: the range is our own mapping and no borrow of it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_outside_the_memory_are_refused() {
        let mut umem = Umem::new(2).expect("map two pages");
        let end = umem.length() as u64;
        assert!(umem.bytes(end - 1, 1).is_some());
        assert!(umem.bytes(end, 0).is_some());
        assert!(umem.bytes(end, 1).is_none());
        assert!(umem.bytes(end - 1, 2).is_none());
        assert!(umem.bytes(u64::MAX, 2).is_none());
        assert!(umem.bytes_mut(1, usize::MAX).is_none());
    }

    #[test]
    fn what_is_written_is_read_at_the_same_offset() {
        let mut umem = Umem::new(2).expect("map two pages");
        umem.bytes_mut(4090, 12)
            .expect("in range")
            .copy_from_slice(b"across pages");
        assert_eq!(umem.bytes(4090, 12), Some(&b"across pages"[..]));
    }
}
