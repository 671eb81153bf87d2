//! The memory that frames lie in, shared with the kernel (a *UMEM*).
//!
//! One anonymous mapping, cut into chunks of half a page, or of a page for long frames: first those that the kernel receives into,
//! then one area of chunks to send from for each port. Areas do not overlap, and what the kernel
//! has received is only read, so no two owners write to the same place. Which chunk is whose at a
//! time is the business of the rings.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of a chunk: a page, the largest that the kernel takes in aligned mode (Linux `af_xdp.rst`,
/// "UMEM"), or half of one, the smallest, where all frames have room in that: half the memory, and of the caches.
const CHUNKS: [usize; 2] = [2048, 4096];

/// The longest IP packet for frames of which chunks of half a page are taken.
const SHORT_MTU: u32 = 1500;

/// Bytes that the kernel keeps free before a received frame (`XDP_PACKET_HEADROOM`).
const KERNEL_HEADROOM: usize = 256;

/// Bytes of a chunk for an interface with this MTU.
pub fn chunk_for(mtu: u32) -> usize {
    CHUNKS[usize::from(mtu > SHORT_MTU)]
}

/// Longest frame that fits one such chunk on receive.
pub fn rx_capacity(chunk: usize) -> usize {
    chunk - KERNEL_HEADROOM
}

/// The mapping. Unmapped when the last area is gone; the kernel keeps its own hold on the pages
/// while a socket uses them.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is owned and not bound to a thread; what may be accessed is decided by the
// areas.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is our own mapping and no area of it is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// The chunks that the kernel receives into, from offset 0 on.
#[derive(Clone, Debug)]
pub struct RxArea {
    mapping: Arc<Mapping>,
    chunks: u32,
    chunk: usize,
}

/// Chunks to send from, owned by one sender.
#[derive(Debug)]
pub struct TxArea {
    mapping: Arc<Mapping>,
    start: usize,
    length: usize,
    chunk: usize,
}

/// Maps `rx_chunks` chunks to receive into and `areas` areas of `tx_chunks` chunks each to send
/// from, of so many bytes each: [`chunk_for`] the MTU.
///
/// # Errors
/// The kernel's answer, for instance when there is not enough memory.
pub fn map(
    rx_chunks: u32,
    areas: u32,
    tx_chunks: u32,
    chunk: usize,
) -> io::Result<(RxArea, Vec<TxArea>)> {
    let chunks = u64::from(areas) * u64::from(tx_chunks) + u64::from(rx_chunks);
    let length = usize::try_from(chunks)
        .ok()
        .and_then(|chunks| chunks.checked_mul(chunk))
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
    // A child of fork(2) would otherwise share the pages copy-on-write, and the kernel's view of
    // them would part from ours at the next write.
    // SAFETY: as above.
    unsafe { libc::madvise(base, length, libc::MADV_DONTFORK) };
    let base = NonNull::new(base.cast()).ok_or(io::Error::from(io::ErrorKind::OutOfMemory))?;
    let mapping = Arc::new(Mapping { base, length });
    let (first, area) = (rx_chunks as usize * chunk, tx_chunks as usize * chunk);
    let tx = (0..areas as usize)
        .map(|index| TxArea {
            mapping: Arc::clone(&mapping),
            start: first + index * area,
            length: area,
            chunk,
        })
        .collect();
    Ok((
        RxArea {
            mapping,
            chunks: rx_chunks,
            chunk,
        },
        tx,
    ))
}

impl RxArea {
    /// How many chunks it has.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Bytes of each.
    #[inline]
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Where the chunk begins that this address lies in.
    #[inline]
    pub fn chunk_at(&self, address: u64) -> u64 {
        // A power of two.
        address & !(self.chunk as u64 - 1)
    }

    /// Address and length of the whole memory, as the kernel registers it.
    pub(crate) fn registration(&self) -> (u64, u64) {
        (
            self.mapping.base.as_ptr().addr() as u64,
            self.mapping.length as u64,
        )
    }

    /// `length` bytes at `offset` of the memory, or `None` when they do not all lie in this area.
    ///
    /// # Safety
    /// The kernel writes to chunks that are in the fill ring: the range must be of a frame that it
    /// has handed over, and its chunk must not go back there as long as the bytes are borrowed.
    #[inline]
    pub(crate) unsafe fn bytes(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(length)? > self.chunks as usize * self.chunk {
            return None;
        }
        // SAFETY: the range lies inside the mapping, before all sending areas, so that nobody in
        // this process writes to it, and the caller vouches for the kernel; it is initialised
        // (zeros at first) and lives as long as `self`.
        Some(unsafe { std::slice::from_raw_parts(self.mapping.base.as_ptr().add(offset), length) })
    }
}

impl TxArea {
    /// The area, with an empty one left behind.
    pub(crate) fn take(&mut self) -> Self {
        let empty = Self {
            mapping: Arc::clone(&self.mapping),
            start: self.start,
            length: 0,
            chunk: self.chunk,
        };
        std::mem::replace(self, empty)
    }

    /// Where it begins in the memory.
    #[inline]
    pub fn start(&self) -> u64 {
        self.start as u64
    }

    /// How many chunks it has.
    pub fn chunks(&self) -> u32 {
        (self.length / self.chunk) as u32
    }

    /// Bytes of each.
    #[inline]
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Whether `offset` of the memory lies in this area.
    #[inline]
    pub fn contains(&self, offset: u64) -> bool {
        offset.wrapping_sub(self.start as u64) < self.length as u64
    }

    /// `length` bytes at `offset` of the area to write, or `None` when they do not all lie in it.
    #[inline]
    pub fn bytes_mut(&mut self, offset: u64, length: usize) -> Option<&mut [u8]> {
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(length)? > self.length {
            return None;
        }
        // SAFETY: the range lies inside this area, hence inside the mapping, which is initialised
        // (zeros at first) and lives as long as `self`. No other area overlaps it, and the
        // exclusive borrow keeps other borrows of this one away; the kernel merely reads it.
        Some(unsafe {
            std::slice::from_raw_parts_mut(
                self.mapping.base.as_ptr().add(self.start + offset),
                length,
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 2048;

    #[test]
    fn a_frame_with_two_tags_has_room_in_one_chunk_up_to_the_usual_mtu_and_beyond() {
        for mtu in [576, 1280, 1500, 1501, 3000] {
            assert!(
                mtu as usize + 14 + 2 * 4 <= rx_capacity(chunk_for(mtu)),
                "{mtu}"
            );
        }
        assert_eq!((chunk_for(1500), chunk_for(1501)), (2048, 4096));
    }

    #[test]
    fn ranges_outside_an_area_are_refused() {
        let (rx, mut tx) = map(2, 2, 1, CHUNK).expect("map four chunks");
        let end = 2 * CHUNK as u64;
        // SAFETY: the kernel has never been given the memory.
        let readable = |offset, length| unsafe { rx.bytes(offset, length) }.is_some();
        assert!(readable(end - 1, 1));
        assert!(readable(end, 0));
        assert!(!readable(end, 1));
        assert!(!readable(end - 1, 2));
        assert!(!readable(u64::MAX, 2));
        assert!(tx[0].bytes_mut(0, CHUNK).is_some());
        assert!(tx[0].bytes_mut(1, CHUNK).is_none());
        assert!(tx[0].bytes_mut(1, usize::MAX).is_none());
    }

    #[test]
    fn areas_follow_one_another_and_do_not_share_bytes() {
        let (rx, mut tx) = map(1, 2, 1, CHUNK).expect("map three chunks");
        assert_eq!(
            (tx[0].start(), tx[1].start()),
            (CHUNK as u64, 2 * CHUNK as u64)
        );
        assert!(tx[1].contains(2 * CHUNK as u64) && !tx[0].contains(2 * CHUNK as u64));
        assert!(!tx[0].contains(CHUNK as u64 - 1));
        tx[0].bytes_mut(0, CHUNK).expect("in range").fill(1);
        tx[1].bytes_mut(0, CHUNK).expect("in range").fill(2);
        assert!(
            tx[0]
                .bytes_mut(0, CHUNK)
                .expect("in range")
                .iter()
                .all(|byte| *byte == 1)
        );
        // SAFETY: the kernel has never been given the memory.
        let received = unsafe { rx.bytes(0, CHUNK) }.expect("in range");
        assert!(received.iter().all(|byte| *byte == 0));
    }
}
