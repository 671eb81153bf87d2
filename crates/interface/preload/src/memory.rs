//! The program's memory, read and written as the kernel would: an address that means nothing is `EFAULT` and
//! not the end of the program.
//!
//! The kernel copies what was not read before. Pages that it could read once are read without it afterwards, so that
//! a send makes no system call for its message: a program that has given such memory back since, and sends from it all
//! the same, ends there.

use std::ffi::{c_int, c_ulong, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::iovec;

use crate::process;

/// The kernel does not copy for us (a filter of system calls forbids it): we do it ourselves, and a wrong
/// address ends the program, as it does in any other library.
static BY_HAND: AtomicBool = AtomicBool::new(false);

/// Parts of the program's memory that are copied in one go at most.
const MOST_PARTS: usize = 1024;

/// Bytes of a page, or less where pages are larger.
const PAGE: usize = 4096;
/// Pages that are remembered, a power of two.
const PAGES: usize = 4096;
/// Pages that the kernel could read, by their numbers plus one, each in the place of its number's lower part.
static READABLE: [AtomicUsize; PAGES] = [const { AtomicUsize::new(0) }; PAGES];

/// The pages that a part touches; `None`: it has no end.
fn pages(part: &iovec) -> Option<std::ops::RangeInclusive<usize>> {
    let first = part.iov_base.addr();
    let last = first.checked_add(part.iov_len.checked_sub(1)?)?;
    Some(first / PAGE..=last / PAGE)
}

/// Whether all of it could be read before.
fn was_readable(part: &iovec) -> bool {
    part.iov_len == 0
        || pages(part).is_some_and(|mut pages| {
            pages.clone().count() <= PAGES
                && pages.all(|page| READABLE[page % PAGES].load(Ordering::Relaxed) == page + 1)
        })
}

fn note_readable(part: &iovec) {
    for page in pages(part).into_iter().flatten().take(PAGES) {
        READABLE[page % PAGES].store(page + 1, Ordering::Relaxed);
    }
}

/// A value as it lies in memory.
///
/// # Safety
/// Every pattern of bytes is a value of the type.
pub unsafe trait Raw: Copy {}
// SAFETY: integers and raw pointers.
unsafe impl Raw for libc::msghdr {}
// SAFETY: integers and raw pointers.
unsafe impl Raw for libc::mmsghdr {}
// SAFETY: an integer and a raw pointer.
unsafe impl Raw for iovec {}
// SAFETY: integers.
unsafe impl Raw for libc::timespec {}
// SAFETY: integers.
unsafe impl Raw for libc::timeval {}
// SAFETY: two integers.
unsafe impl Raw for crate::abi::SockTxtime {}
// SAFETY: an integer.
unsafe impl Raw for libc::socklen_t {}
// SAFETY: integers.
unsafe impl Raw for libc::epoll_event {}
// SAFETY: a name, and a union of integers and pointers.
unsafe impl Raw for libc::ifreq {}

/// `system`: `process_vm_readv` or `process_vm_writev`, which differ in direction alone.
fn copy(system: i64, ours: iovec, theirs: &[iovec]) -> Result<(), c_int> {
    if theirs.len() > MOST_PARTS {
        return Err(libc::EMSGSIZE);
    }
    // SAFETY: `ours` is memory of ours, by the callers, and what is wrong with `theirs` the kernel says.
    let copied = unsafe {
        libc::syscall(
            system,
            process::id(),
            &raw const ours,
            1 as c_ulong,
            theirs.as_ptr(),
            theirs.len() as c_ulong,
            0 as c_ulong,
        )
    };
    match usize::try_from(copied) {
        Ok(copied) if copied == ours.iov_len => Ok(()),
        Ok(_) => Err(libc::EFAULT),
        Err(_) => match process::errno() {
            libc::EPERM | libc::ENOSYS | libc::EACCES => {
                BY_HAND.store(true, Ordering::Relaxed);
                copy_by_hand(system, ours, theirs);
                Ok(())
            }
            errno => Err(errno),
        },
    }
}

#[cold]
fn copy_by_hand(system: i64, ours: iovec, theirs: &[iovec]) {
    let mut done = 0;
    for part in theirs {
        let count = part.iov_len.min(ours.iov_len - done);
        // SAFETY: `done + count` is within ours; theirs is as the program says, see `BY_HAND`.
        unsafe {
            let here = ours.iov_base.cast::<u8>().add(done);
            let there = part.iov_base.cast::<u8>();
            match system {
                libc::SYS_process_vm_readv => std::ptr::copy(there, here, count),
                _ => std::ptr::copy(here, there, count),
            }
        }
        done += count;
    }
}

fn transfer(system: i64, ours: iovec, theirs: &[iovec]) -> Result<(), c_int> {
    if ours.iov_len == 0 {
        return Ok(());
    }
    let reading = system == libc::SYS_process_vm_readv;
    if BY_HAND.load(Ordering::Relaxed) || reading && theirs.iter().all(was_readable) {
        let there: usize = theirs
            .iter()
            .fold(0, |sum, part| sum.saturating_add(part.iov_len));
        if there < ours.iov_len {
            return Err(libc::EFAULT);
        }
        copy_by_hand(system, ours, theirs);
        return Ok(());
    }
    copy(system, ours, theirs)?;
    if reading {
        // As far as it was read.
        let mut left = ours.iov_len;
        for part in theirs {
            let length = part.iov_len.min(left);
            note_readable(&iovec {
                iov_len: length,
                ..*part
            });
            left -= length;
        }
    }
    Ok(())
}

/// Fills `to` from parts of the program's memory that are as long together, or longer. `Err`: the errno.
pub fn gather(to: &mut [u8], from: &[iovec]) -> Result<(), c_int> {
    let ours = iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    transfer(libc::SYS_process_vm_readv, ours, from)
}

/// Copies `from` into parts of the program's memory, as far as they reach. `Err`: the errno.
pub fn scatter(from: &[u8], to: &[iovec]) -> Result<(), c_int> {
    let room: usize = to
        .iter()
        .fold(0, |sum, part| sum.saturating_add(part.iov_len));
    let ours = iovec {
        iov_base: from.as_ptr().cast_mut().cast(),
        iov_len: from.len().min(room),
    };
    transfer(libc::SYS_process_vm_writev, ours, to)
}

fn part(address: *const c_void, length: usize) -> iovec {
    iovec {
        iov_base: address.cast_mut(),
        iov_len: length,
    }
}

/// Fills `to` from one place. `Err`: the errno.
pub fn read_bytes(to: &mut [u8], from: *const c_void) -> Result<(), c_int> {
    let length = to.len();
    gather(to, &[part(from, length)])
}

/// Copies to one place. `Err`: the errno.
pub fn write_bytes(from: &[u8], to: *mut c_void) -> Result<(), c_int> {
    scatter(from, &[part(to, from.len())])
}

/// A value. `Err`: the errno.
pub fn read<T: Raw>(from: *const T) -> Result<T, c_int> {
    let mut value = MaybeUninit::<T>::uninit();
    let ours = part(value.as_mut_ptr().cast(), size_of::<T>());
    let theirs = part(from.cast(), size_of::<T>());
    transfer(libc::SYS_process_vm_readv, ours, &[theirs])?;
    // SAFETY: all its bytes were written.
    Ok(unsafe { value.assume_init() })
}

/// Puts a value in its place. `Err`: the errno.
pub fn write<T: Raw>(value: &T, to: *mut T) -> Result<(), c_int> {
    let ours = part(std::ptr::from_ref(value).cast(), size_of::<T>());
    transfer(
        libc::SYS_process_vm_writev,
        ours,
        &[part(to.cast(), size_of::<T>())],
    )
}

/// A list of parts of memory. `Err`: the errno.
pub fn read_parts(from: *const iovec, count: usize) -> Result<Vec<iovec>, c_int> {
    if count > MOST_PARTS {
        return Err(libc::EMSGSIZE);
    }
    let mut parts = vec![part(std::ptr::null(), 0); count];
    let ours = part(parts.as_mut_ptr().cast(), size_of_val(parts.as_slice()));
    let theirs = part(from.cast(), ours.iov_len);
    transfer(libc::SYS_process_vm_readv, ours, &[theirs])?;
    Ok(parts)
}

/// How many bytes parts have together; `None`: more than a size can say.
pub fn total(parts: &[iovec]) -> Option<usize> {
    parts
        .iter()
        .try_fold(0usize, |sum, part| sum.checked_add(part.iov_len))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address where nothing is.
    const NOWHERE: *mut c_void = std::ptr::without_provenance_mut(8);

    fn start() {
        process::start();
    }

    #[test]
    fn parts_are_gathered_in_their_order() {
        start();
        let (first, second) = (*b"first ", *b"second");
        let parts = [
            part(first.as_ptr().cast(), first.len()),
            part(NOWHERE, 0),
            part(second.as_ptr().cast(), second.len()),
        ];
        let mut all = [0; 12];
        assert_eq!(gather(&mut all, &parts), Ok(()));
        assert_eq!(&all, b"first second");
        assert_eq!(total(&parts), Some(12));
        let mut by_hand = [0; 12];
        let ours = part(by_hand.as_mut_ptr().cast(), 12);
        copy_by_hand(libc::SYS_process_vm_readv, ours, &parts);
        assert_eq!(by_hand, all);
    }

    #[test]
    fn a_copy_ends_where_the_parts_do() {
        start();
        let (mut first, mut second) = ([0u8; 2], [0u8; 3]);
        let parts = [
            part(first.as_mut_ptr().cast(), 2),
            part(second.as_mut_ptr().cast(), 3),
        ];
        assert_eq!(scatter(b"abcdefgh", &parts), Ok(()));
        assert_eq!((&first, &second), (b"ab", b"cde"));
    }

    #[test]
    fn addresses_that_mean_nothing_are_faults() {
        start();
        assert_eq!(read::<iovec>(NOWHERE.cast()).err(), Some(libc::EFAULT));
        assert_eq!(read::<iovec>(std::ptr::null()).err(), Some(libc::EFAULT));
        assert_eq!(write(&part(NOWHERE, 0), NOWHERE.cast()), Err(libc::EFAULT));
        assert_eq!(read_bytes(&mut [0; 4], NOWHERE), Err(libc::EFAULT));
        assert_eq!(write_bytes(&[0; 4], NOWHERE), Err(libc::EFAULT));
        assert_eq!(read_parts(NOWHERE.cast(), 3).err(), Some(libc::EFAULT));
        let good = *b"good";
        let half = [part(good.as_ptr().cast(), 4), part(NOWHERE, 4)];
        assert_eq!(gather(&mut [0; 8], &half), Err(libc::EFAULT));
    }

    #[test]
    fn what_could_be_read_once_is_read_without_the_kernel_and_nothing_beyond_it() {
        start();
        let page = vec![7u8; 3 * PAGE];
        let inner = page.as_ptr().wrapping_add(PAGE).cast::<c_void>();
        let read = part(inner, 10);
        assert_eq!(gather(&mut [0; 10], &[read]), Ok(()));
        assert!(was_readable(&read));
        assert!(was_readable(&part(inner, 0)) && was_readable(&part(NOWHERE, 0)));
        assert!(!was_readable(&part(inner, 100 * PAGE)));
        assert!(!was_readable(&part(NOWHERE, 1)));
        assert!(!was_readable(&part(inner, usize::MAX)));
        // Parts that are shorter than what is wanted of them.
        assert_eq!(gather(&mut [0; 11], &[read]), Err(libc::EFAULT));
    }

    #[test]
    fn lists_longer_than_the_kernel_takes_are_refused() {
        start();
        assert_eq!(read_parts(NOWHERE.cast(), 1025).err(), Some(libc::EMSGSIZE));
        let parts = [part(NOWHERE, usize::MAX), part(NOWHERE, 1)];
        assert_eq!(total(&parts), None);
    }
}
