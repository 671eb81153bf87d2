//! One shared mapping of a sealed memfd, and bounds-checked windows on it.
//!
//! The runtime creates an arena, passes its file descriptor to the application over a Unix socket,
//! and both map it. The seals keep the file's size fixed: a truncation on one side would otherwise
//! kill the other with SIGBUS. What lies in the arena is not this module's business.
//!
//! Memory of an arena is never borrowed as `&[u8]` or `&mut [u8]`: the other side may change it at
//! any instant. It is copied in or out, or reached by atomics. Bytes copied while the other side
//! writes them are arbitrary, and that is all that can go wrong.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use thiserror::Error;

/// Why an arena could not be created or opened.
#[derive(Debug, Error)]
pub enum ArenaError {
    /// The name does not fit a memfd: it has a zero byte.
    #[error("arena name {name:?} contains a zero byte; leave it out")]
    Name {
        /// The name that was asked for.
        name: String,
    },
    /// The length is zero, or too large to round up to whole pages.
    #[error("arena length {len} is not possible; ask for at least one byte and at most {max}", max = MAX_LEN)]
    Length {
        /// The length that was asked for, in bytes.
        len: usize,
    },
    /// memfd_create failed.
    #[error("cannot create the memfd {name:?}: {source}")]
    Create {
        /// The name that was asked for.
        name: String,
        /// What the kernel said (EINVAL: longer than 249 bytes).
        source: io::Error,
    },
    /// ftruncate failed.
    #[error("cannot give the arena {len} bytes: {source}")]
    Resize {
        /// Length in bytes, in whole pages.
        len: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The seals could not be set.
    #[error("cannot seal the arena: {source}")]
    Seal {
        /// What the kernel said.
        source: io::Error,
    },
    /// The descriptor that was handed over is not a memfd, or cannot be examined.
    #[error("cannot examine the arena's file descriptor: {source}; it must be a memfd")]
    Examine {
        /// What the kernel said (EINVAL: not a memfd).
        source: io::Error,
    },
    /// The memfd that was handed over could still be truncated under its user.
    #[error("arena has seals {seals:#x}; it must have F_SEAL_SHRINK and F_SEAL_GROW set")]
    NotSealed {
        /// The seals that are set (F_GET_SEALS).
        seals: i32,
    },
    /// The memfd that was handed over is smaller than the layout that is to lie in it.
    #[error("arena has {actual} bytes; the layout needs {wanted}")]
    TooSmall {
        /// Size of the file in bytes.
        actual: u64,
        /// Length that was asked for in bytes.
        wanted: usize,
    },
    /// mmap or madvise failed.
    #[error("cannot map the arena's {len} bytes: {source}")]
    Map {
        /// Length in bytes.
        len: usize,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A range that does not lie in an arena (or in the window it was asked of), or a word that is not
/// aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "{len} bytes at offset {offset} do not lie within {limit} bytes, or are not aligned to {align}"
)]
pub struct OutOfBounds {
    /// Offset that was asked for, in bytes.
    pub offset: usize,
    /// Length that was asked for, in bytes.
    pub len: usize,
    /// Length of the arena or window, in bytes.
    pub limit: usize,
    /// Alignment that the offset must have, in bytes.
    pub align: usize,
}

/// Largest length of an arena: pointer offsets are `isize`, and a length is rounded up to pages.
const MAX_LEN: usize = isize::MAX as usize - (1 << 16);

/// A shared mapping of a sealed memfd.
///
/// Unmapped when dropped. `Send` and `Sync`: it hands out atomics and windows that copy, never
/// references to plain memory.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
    /// `None`: the mapping alone is kept.
    fd: Option<OwnedFd>,
    /// Process that made the mapping: a forked child does not inherit it (MADV_DONTFORK) and must
    /// not unmap what may lie there since.
    owner: u32,
}

// SAFETY: the mapping is shared memory that other processes change at will in any case; it is only
// reached by atomics and by copies that tolerate concurrent writes. Nothing is tied to a thread.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Runtime side: makes a memfd of `len` bytes (rounded up to whole pages, zeroed), seals its size
    /// for ever, and maps it. `name` shows in `/proc/<pid>/maps` and `/proc/<pid>/fd`.
    ///
    /// # Errors
    /// [`ArenaError::Name`], [`ArenaError::Length`], or what the kernel refuses.
    pub fn create(name: &str, len: usize) -> Result<Arena, ArenaError> {
        let (fd, len) = create_file(name, len)?;
        add_seals(&fd, libc::F_SEAL_SEAL)?;
        Arena::map(fd, len)
    }

    /// Application side: maps the first `len` bytes of an arena that the runtime handed over.
    ///
    /// The mapping is not inherited by forked children (MADV_DONTFORK), so that two processes never
    /// act as the same side of a ring. A child must not use an `Arena` that it inherited (it would
    /// fault); dropping it there is harmless.
    ///
    /// # Errors
    /// [`ArenaError::NotSealed`] or [`ArenaError::TooSmall`] when the file could make an access fault
    /// later; [`ArenaError::Length`]; or what the kernel refuses.
    pub fn open(fd: OwnedFd, len: usize) -> Result<Arena, ArenaError> {
        if len == 0 || len > MAX_LEN {
            return Err(ArenaError::Length { len });
        }
        check_file(&fd, len)?;
        let arena = Arena::map(fd, len)?;
        arena.keep_from_children(0, len)?;
        Ok(arena)
    }

    /// As [`open`](Self::open), and closes the descriptor: the mapping alone is kept.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_mapping(fd: OwnedFd, len: usize) -> Result<Arena, ArenaError> {
        let mut arena = Arena::open(fd, len)?;
        arena.fd = None;
        Ok(arena)
    }

    /// Forked children do not inherit this range of the mapping.
    fn keep_from_children(&self, offset: usize, len: usize) -> Result<(), ArenaError> {
        let range = self.slice(offset, len).map(|range| range.as_ptr());
        // SAFETY: the range lies within the mapping.
        let advised = range.map(|at| unsafe { libc::madvise(at.cast(), len, libc::MADV_DONTFORK) });
        check(advised.unwrap_or(-1))
            .map(drop)
            .map_err(|source| ArenaError::Map { len, source })
    }

    /// Maps a region's `len` bytes in the place of those at `offset`, which belong to it from then on and not to the
    /// arena's own file. `inherited`: forked children inherit it, as they do all of an arena that was created.
    ///
    /// # Errors
    /// [`ArenaError::Length`] unless both are whole pages within the arena; as [`open`](Self::open).
    pub fn overlay(
        &mut self,
        region: &OwnedFd,
        offset: usize,
        len: usize,
        inherited: bool,
    ) -> Result<(), ArenaError> {
        let page = page_size();
        let place = self.slice(offset, len).map(|place| place.as_ptr());
        let Ok(place) = place.map_err(drop).and_then(|place| {
            match len > 0 && offset.is_multiple_of(page) && len.is_multiple_of(page) {
                true => Ok(place),
                false => Err(()),
            }
        }) else {
            return Err(ArenaError::Length { len });
        };
        check_file(region, len)?;
        // SAFETY: the range lies within our own mapping, of which no window exists: `self` is borrowed exclusively.
        let mapped = unsafe {
            libc::mmap(
                place.cast(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                region.as_raw_fd(),
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(ArenaError::Map {
                len,
                source: io::Error::last_os_error(),
            });
        }
        match inherited {
            true => Ok(()),
            false => self.keep_from_children(offset, len),
        }
    }

    /// Has the kernel find memory for this range now, charged to this process: none is left for another to be charged with,
    /// and it cannot run out later. Its contents stay. Needs Linux 5.14.
    ///
    /// # Errors
    /// [`ArenaError::Length`] unless the range lies within the arena; [`ArenaError::Map`] when there is not so much memory.
    pub fn populate(&self, offset: usize, len: usize) -> Result<(), ArenaError> {
        let range = self.slice(offset, len);
        let range = range.map_err(|_| ArenaError::Length { len })?;
        loop {
            // SAFETY: the range lies within the mapping, and what is in it stays as it is.
            let done =
                unsafe { libc::madvise(range.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) };
            match check(done) {
                Ok(_) => return Ok(()),
                // It has got so far: a signal came.
                Err(source) if source.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ArenaError::Map { len, source }),
            }
        }
    }

    fn map(fd: OwnedFd, len: usize) -> Result<Arena, ArenaError> {
        Arena::map_as(fd, len, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn map_as(fd: OwnedFd, len: usize, protection: libc::c_int) -> Result<Arena, ArenaError> {
        // SAFETY: a fresh mapping at an address of the kernel's choice; it aliases nothing of ours.
        let base = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(ArenaError::Map {
                len,
                source: io::Error::last_os_error(),
            });
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| ArenaError::Map {
            len,
            source: io::Error::from_raw_os_error(libc::ENOMEM),
        })?;
        Ok(Arena {
            base,
            len,
            fd: Some(fd),
            owner: std::process::id(),
        })
    }

    /// The memfd, to hand over with SCM_RIGHTS.
    ///
    /// # Panics
    /// If it was [opened to be mapped alone](Self::open_mapping).
    pub fn fd(&self) -> BorrowedFd<'_> {
        let fd = self.fd.as_ref();
        fd.expect("an arena with its descriptor").as_fd()
    }

    /// Gives all its memory back, whoever has it mapped: it reads as zeroes from then on, and what is written later is
    /// charged to who writes it.
    ///
    /// # Errors
    /// The kernel's; `InvalidInput` if it was [opened to be mapped alone](Self::open_mapping).
    pub fn empty(&self) -> io::Result<()> {
        let fd = self.fd.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
        let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: plain system call on a descriptor that we own. The mapping stays as it is.
        let result = unsafe { libc::fallocate(fd.as_raw_fd(), flags, 0, self.len as i64) };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Length in bytes: whole pages where it was created, what was asked for where it was opened.
    #[allow(clippy::len_without_is_empty)] // an arena is never empty
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// A window on the bytes `offset .. offset + len`.
    ///
    /// # Errors
    /// [`OutOfBounds`] when any of them lies outside the arena.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Result<SharedSlice<'_>, OutOfBounds> {
        self.whole().sub(offset, len)
    }

    /// The 32-bit word at `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] when it lies outside the arena or is not aligned to 4 bytes.
    #[inline]
    pub fn atomic_u32(&self, offset: usize) -> Result<&AtomicU32, OutOfBounds> {
        let word = self.aligned(offset, 4)?;
        // SAFETY: in bounds and aligned by `aligned`, zeroed by the kernel, mapped while `self`
        // lives, and other processes that write it do so as to an atomic or only hurt themselves.
        Ok(unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) })
    }

    /// The 64-bit word at `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] when it lies outside the arena or is not aligned to 8 bytes.
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, OutOfBounds> {
        let word = self.aligned(offset, 8)?;
        // SAFETY: as in `atomic_u32`.
        Ok(unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) })
    }

    fn whole(&self) -> SharedSlice<'_> {
        SharedSlice {
            base: self.base,
            len: self.len,
            arena: PhantomData,
        }
    }

    /// A word of `size` bytes at an offset that is a multiple of `size`; the base is page-aligned.
    fn aligned(&self, offset: usize, size: usize) -> Result<SharedSlice<'_>, OutOfBounds> {
        if !offset.is_multiple_of(size) {
            return Err(OutOfBounds {
                offset,
                len: size,
                limit: self.len,
                align: size,
            });
        }
        self.slice(offset, size)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if std::process::id() == self.owner {
            // SAFETY: exactly the mapping made by `map` in this process; windows borrow `self` and
            // rings and bells hold an `Arc` of it, so none is left.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

/// Memory of one process that others may read and cannot write: the kernel refuses every writable mapping made, and every
/// write, after [`protect`](Self::protect), by whatever descriptor (`F_SEAL_FUTURE_WRITE`, Linux 5.1). A mapping made
/// before stays writable: its owner's.
#[derive(Debug)]
pub struct Region(Arena);

impl Region {
    /// Makes the file of a region of `len` bytes, rounded up to whole pages, zeroed, its size sealed. It can be written
    /// until it is protected.
    ///
    /// # Errors
    /// As [`Arena::create`].
    pub fn create(name: &str, len: usize) -> Result<OwnedFd, ArenaError> {
        create_file(name, len).map(|(fd, _)| fd)
    }

    /// From now on nobody maps it to write: for its owner, which has.
    ///
    /// # Errors
    /// [`ArenaError::Seal`].
    pub fn protect(fd: &OwnedFd) -> Result<(), ArenaError> {
        add_seals(fd, libc::F_SEAL_FUTURE_WRITE)
    }

    /// Whether that is so.
    pub fn is_protected(fd: &OwnedFd) -> bool {
        seals_of(fd).is_ok_and(|seals| seals & libc::F_SEAL_FUTURE_WRITE != 0)
    }

    /// Maps the first `len` bytes of a protected region to be read, and closes its descriptor. Forked children do not inherit
    /// it.
    ///
    /// # Errors
    /// [`ArenaError::NotSealed`] also when others could map it to write; as [`Arena::open`].
    pub fn open(fd: OwnedFd, len: usize) -> Result<Region, ArenaError> {
        if len == 0 || len > MAX_LEN {
            return Err(ArenaError::Length { len });
        }
        check_file(&fd, len)?;
        if !Self::is_protected(&fd) {
            let seals = seals_of(&fd).map_err(|source| ArenaError::Examine { source })?;
            return Err(ArenaError::NotSealed { seals });
        }
        let mut arena = Arena::map_as(fd, len, libc::PROT_READ)?;
        arena.keep_from_children(0, len)?;
        arena.fd = None;
        Ok(Region(arena))
    }

    /// Where the bytes `offset .. offset + len` are, to be read while the region is mapped. Their owner may change them at
    /// any instant.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn at(&self, offset: usize, len: usize) -> Result<NonNull<u8>, OutOfBounds> {
        self.0.slice(offset, len).map(|window| window.base())
    }
}

/// A window on memory that the other side may change at any instant: bytes are copied in or out.
/// [`as_ptr`](SharedSlice::as_ptr) is there for the application, which works in place on slots that
/// it owns.
#[derive(Debug, Clone, Copy)]
pub struct SharedSlice<'a> {
    base: NonNull<u8>,
    len: usize,
    arena: PhantomData<&'a Arena>,
}

// SAFETY: a window does what `&Arena` does, and `Arena` is Sync.
unsafe impl Send for SharedSlice<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedSlice<'_> {}

impl<'a> SharedSlice<'a> {
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the window has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte, valid for `len()` bytes while the arena is mapped.
    ///
    /// Whoever dereferences it answers for the other side not writing there, or for tolerating it.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The window on the bytes `offset .. offset + len` of this one.
    ///
    /// # Errors
    /// [`OutOfBounds`] when any of them lies outside.
    #[inline]
    pub fn sub(&self, offset: usize, len: usize) -> Result<SharedSlice<'a>, OutOfBounds> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(SharedSlice {
                // SAFETY: offset <= end <= self.len, so it stays inside the mapping.
                base: unsafe { self.base.add(offset) },
                len,
                arena: PhantomData,
            }),
            _ => Err(OutOfBounds {
                offset,
                len,
                limit: self.len,
                align: 1,
            }),
        }
    }

    /// Copies the bytes at `offset` out, filling `to`. Check the copy, never the window again.
    ///
    /// # Errors
    /// [`OutOfBounds`] when the window ends before `to` is full; `to` is unchanged.
    #[inline]
    pub fn read_into(&self, offset: usize, to: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.sub(offset, to.len())?;
        // SAFETY: `from` has to.len() mapped bytes; `to` is private memory that does not overlap it.
        unsafe { copy_shared(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies `from` into the window at `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] when it does not fit; nothing is written.
    #[inline]
    pub fn write_from(&self, offset: usize, from: &[u8]) -> Result<(), OutOfBounds> {
        let to = self.sub(offset, from.len())?;
        // SAFETY: `to` has from.len() mapped bytes.
        unsafe { copy_shared(from.as_ptr(), to.as_ptr(), from.len()) };
        Ok(())
    }

    /// Copies all bytes of this window to the start of `other` (of this arena or another one; they
    /// may overlap).
    ///
    /// # Errors
    /// [`OutOfBounds`] when `other` is shorter; nothing is written.
    #[inline]
    pub fn copy_to(&self, other: SharedSlice<'_>) -> Result<(), OutOfBounds> {
        let to = other.sub(0, self.len)?;
        // SAFETY: both windows have self.len mapped bytes.
        unsafe { copy_shared(self.as_ptr(), to.as_ptr(), self.len) };
        Ok(())
    }
}

/// Copies bytes of which at least one side is shared with a process that may write meanwhile.
///
/// The compiler may not take the memory for unchanged across a compiler fence. So it reads each byte
/// for this copy only, between the two fences, and what a caller checks afterwards is the copy.
///
/// # Safety
/// Both ranges must be mapped for `len` bytes.
#[inline]
unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: mapped by the caller's contract; `copy` allows overlap.
    unsafe { core::ptr::copy(from, to, len) };
    compiler_fence(Ordering::SeqCst);
}

/// A memfd of `len` bytes, rounded up to whole pages, with its size sealed; and that size.
fn create_file(name: &str, len: usize) -> Result<(OwnedFd, usize), ArenaError> {
    let c_name = CString::new(name).map_err(|_| ArenaError::Name {
        name: name.to_owned(),
    })?;
    if len == 0 || len > MAX_LEN {
        return Err(ArenaError::Length { len });
    }
    let len = len.next_multiple_of(page_size());
    let fd = memfd(&c_name).map_err(|source| ArenaError::Create {
        name: name.to_owned(),
        source,
    })?;
    let size = i64::try_from(len).map_err(|_| ArenaError::Length { len })?;
    // SAFETY: plain system call on a descriptor that we own.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), size) })
        .map_err(|source| ArenaError::Resize { len, source })?;
    add_seals(&fd, SIZE_SEALS)?;
    Ok((fd, len))
}

/// The size stays as it is.
const SIZE_SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

fn add_seals(fd: &OwnedFd, seals: libc::c_int) -> Result<(), ArenaError> {
    // SAFETY: plain system call on a descriptor that we own.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) })
        .map(drop)
        .map_err(|source| ArenaError::Seal { source })
}

fn seals_of(fd: &OwnedFd) -> io::Result<i32> {
    // SAFETY: plain system call on a descriptor that we own.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })
}

/// That a file that was handed over has `len` bytes at least, and keeps them.
fn check_file(fd: &OwnedFd, len: usize) -> Result<(), ArenaError> {
    let seals = seals_of(fd).map_err(|source| ArenaError::Examine { source })?;
    if seals & SIZE_SEALS != SIZE_SEALS {
        return Err(ArenaError::NotSealed { seals });
    }
    let actual = file_size(fd).map_err(|source| ArenaError::Examine { source })?;
    if actual < len as u64 {
        return Err(ArenaError::TooSmall {
            actual,
            wanted: len,
        });
    }
    Ok(())
}

/// A sealable memfd, never executable where the kernel knows that (6.3 and later).
fn memfd(name: &CString) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let open = |flags: libc::c_uint| -> io::Result<RawFd> {
        // SAFETY: the name is a C string that outlives the call.
        check(unsafe { libc::memfd_create(name.as_ptr(), flags) })
    };
    let fd = match open(flags | libc::MFD_NOEXEC_SEAL) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(flags)?,
        other => other?,
    };
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn file_size(fd: &OwnedFd) -> io::Result<u64> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills the structure that the pointer leads to.
    check(unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: fstat succeeded, so it is filled.
    let stat = unsafe { stat.assume_init() };
    u64::try_from(stat.st_size).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn page_size() -> usize {
    // SAFETY: no arguments that could be wrong.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size)
        .ok()
        .filter(|size| size.is_power_of_two())
        .unwrap_or(4096)
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
