//! What is about to be executed: whether the dynamic loader runs for it, which alone can bring the preload along.
//!
//! Called in `vfork` children too, on their parents' memory: no memory is allocated here, and nothing is locked.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::announce::{self, Mode};
use crate::real;

/// Longest path, with the zero behind it.
const PATH: usize = libc::PATH_MAX as usize;
/// Segments that are looked at.
const SEGMENTS: u16 = 64;
/// Bytes of an ELF header, and of a segment's, of 64 bits.
const HEADER: usize = 64;
const SEGMENT: usize = 56;
/// Types of segments.
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// Bytes of a segment of notes that are looked at.
const NOTES: usize = 1024;

/// Whether it has been told, in memory that forked children share: a shell forks for each program.
static TOLD: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Before the program's `main`.
pub fn start() {
    // SAFETY: a new mapping of our own, which the kernel makes as large as its pages.
    let word = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<AtomicU32>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if word != libc::MAP_FAILED {
        TOLD.store(word.cast(), Ordering::Release);
    }
}

/// Why the preload does not come along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alone {
    Static,
    Go,
}

/// A file, closed at the end.
struct File(c_int);

impl File {
    fn open(path: &CStr) -> Option<Self> {
        // SAFETY: a C string.
        let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), OPEN) };
        c_int::try_from(fd).ok().filter(|fd| *fd >= 0).map(Self)
    }

    /// What is at an offset, as far as there is something.
    fn read<'b>(&self, offset: u64, into: &'b mut [u8]) -> &'b [u8] {
        let (at, length) = (into.as_mut_ptr(), into.len());
        // SAFETY: `length` bytes at `at` are writable.
        let read = unsafe { libc::syscall(libc::SYS_pread64, self.0, at, length, offset) };
        &into[..usize::try_from(read).unwrap_or(0)]
    }
}

const OPEN: c_int = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this one's.
        unsafe { real::close(self.0) };
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Whether a file is a program that the preload does not come along with.
fn examine(file: &File) -> Option<Alone> {
    let mut header = [0; HEADER];
    let header = file.read(0, &mut header);
    // Of this machine's byte order and 64 bits: of others the loader complains itself.
    if !header.starts_with(&[0x7f, b'E', b'L', b'F', 2]) {
        return None;
    }
    let first = u64::from_ne_bytes(number(header, 32)?);
    let size = u16::from_ne_bytes(number(header, 54)?);
    let count = u16::from_ne_bytes(number(header, 56)?).min(SEGMENTS);
    let mut interpreted = false;
    for at in 0..count {
        let mut segment = [0; SEGMENT];
        let offset = first.checked_add(u64::from(at) * u64::from(size))?;
        let segment = file.read(offset, &mut segment);
        match u32::from_ne_bytes(number(segment, 0)?) {
            PT_INTERP => interpreted = true,
            PT_NOTE => {
                let mut notes = [0; NOTES];
                let length = u64::from_ne_bytes(number(segment, 32)?).min(NOTES as u64) as usize;
                let offset = u64::from_ne_bytes(number(segment, 8)?);
                let notes = file.read(offset, &mut notes[..length]);
                // Name of four bytes, type 4, "Go": the build's identification.
                let is_go = |note: &[u8]| {
                    note.starts_with(&4u32.to_ne_bytes()) && note[8..] == *b"\x04\0\0\0Go\0\0"
                };
                if notes.windows(16).any(is_go) {
                    return Some(Alone::Go);
                }
            }
            _ => {}
        }
    }
    (!interpreted).then_some(Alone::Static)
}

/// Runs `with` on the file that a name stands for in the directories of `PATH`, as `execvp` looks for it.
fn search(name: &CStr, with: impl FnOnce(&CStr)) {
    let name = name.to_bytes();
    // SAFETY: a C string, or null.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    let path = match path.is_null() {
        true => c"/bin:/usr/bin",
        // SAFETY: not null; programs that change it meanwhile do so at their own risk, here as in the C library.
        false => unsafe { CStr::from_ptr(path) },
    };
    for directory in path.to_bytes().split(|byte| *byte == b':') {
        let mut place = [0u8; PATH];
        let Some(length) = join(&mut place, directory, name) else {
            continue;
        };
        let Ok(candidate) = CStr::from_bytes_with_nul(&place[..length]) else {
            continue;
        };
        if is_executable(candidate) {
            with(candidate);
            return;
        }
    }
}

/// Writes a path and its zero. Returns its length.
fn join(place: &mut [u8; PATH], directory: &[u8], name: &[u8]) -> Option<usize> {
    let separator: &[u8] = if directory.is_empty() { b"" } else { b"/" };
    let mut length = 0;
    for part in [directory, separator, name, b"\0"] {
        place
            .get_mut(length..length + part.len())?
            .copy_from_slice(part);
        length += part.len();
    }
    Some(length)
}

/// Whether the kernel takes it for a program: directories may be "executed" too, as far as their bits tell.
fn is_executable(path: &CStr) -> bool {
    let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a C string, and memory for the answer.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_newfstatat,
            libc::AT_FDCWD,
            path.as_ptr(),
            found.as_mut_ptr(),
            0,
        )
    };
    // SAFETY: filled where the call succeeds.
    if answer != 0 || unsafe { found.assume_init() }.st_mode & libc::S_IFMT != libc::S_IFREG {
        return false;
    }
    // SAFETY: a C string.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_faccessat,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::X_OK,
        )
    };
    answer == 0
}

/// A program is about to be executed by its path. Whether there is one.
///
/// # Safety
/// Null, or a C string.
pub unsafe fn by_path(path: *const c_char) -> bool {
    if path.is_null() || announce::mode() == Mode::Off {
        return false;
    }
    // SAFETY: by the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    let there = is_executable(path);
    if there {
        look(path);
    }
    there
}

/// The same by a path from a directory, or the descriptor itself.
///
/// # Safety
/// Null, or a C string.
pub unsafe fn by_place(directory: c_int, path: *const c_char, flags: c_int) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: by the caller's promise.
    let text = unsafe { CStr::from_ptr(path) }.to_bytes();
    if directory == libc::AT_FDCWD || text.starts_with(b"/") {
        // SAFETY: as above.
        return unsafe { by_path(path) };
    }
    if text.is_empty() && flags & libc::AT_EMPTY_PATH == 0 {
        return false;
    }
    below(directory, text)
}

/// The same by a descriptor.
pub fn by_descriptor(fd: c_int) -> bool {
    below(fd, b"")
}

/// The same by a path from what a descriptor is of; empty: that itself.
fn below(fd: c_int, path: &[u8]) -> bool {
    let mut digits = [0; 10];
    let mut left = fd.unsigned_abs();
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    let mut place = [0; PATH];
    let directory = join(&mut place, b"/proc/self/fd", &digits[first..]);
    let Some(directory) = directory.and_then(|length| place.get(..length - 1)) else {
        return false;
    };
    let mut whole = [0; PATH];
    let length = match path {
        [] => join(&mut whole, b"", directory),
        path => join(&mut whole, directory, path),
    };
    let path = length.and_then(|length| CStr::from_bytes_with_nul(&whole[..length]).ok());
    // SAFETY: a C string.
    path.is_some_and(|path| fd >= 0 && unsafe { by_path(path.as_ptr()) })
}

/// The same by its name.
///
/// # Safety
/// Null, or a C string.
pub unsafe fn by_name(name: *const c_char) -> bool {
    if name.is_null() || announce::mode() == Mode::Off {
        return false;
    }
    // SAFETY: by the caller's promise.
    let text = unsafe { CStr::from_ptr(name) };
    if text.to_bytes().contains(&b'/') {
        // SAFETY: as above.
        return unsafe { by_path(name) };
    }
    if text.is_empty() {
        // Not the directories themselves.
        return false;
    }
    let mut there = false;
    search(text, |path| {
        there = true;
        look(path);
    });
    there
}

/// Tells, once, of a program that is without the preload.
fn look(path: &CStr) {
    // SAFETY: the word that `start` has mapped for ever, or null.
    let Some(told) = (unsafe { TOLD.load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    if told.load(Ordering::Relaxed) != 0 {
        return;
    }
    let Some(alone) = File::open(path).and_then(|file| examine(&file)) else {
        return;
    };
    if told.swap(1, Ordering::Relaxed) != 0 {
        return;
    }
    let what: &[u8] = match alone {
        Alone::Static => b" is statically linked",
        Alone::Go => b" is a Go program",
    };
    let then: &[u8] = match announce::mode() {
        Mode::Required => {
            b", which cannot be preloaded: the kernel refuses its launch times; `takt veth attach` on the node serves it\n"
        }
        Mode::Wanted | Mode::Off => {
            b", which cannot be preloaded: its launch times are left to the kernel; `takt veth attach` on the node serves it\n"
        }
    };
    real::say_parts([b"takt-preload: ", path.to_bytes(), what, then]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_interpreter_is_without_the_preload() {
        let own = std::env::current_exe().expect("a path");
        let own =
            std::ffi::CString::new(own.into_os_string().into_encoded_bytes()).expect("a path");
        let examined = |path: &CStr| File::open(path).map(|file| examine(&file));
        assert_eq!(examined(&own), Some(None));
        assert_eq!(examined(c"/etc/passwd"), Some(None));
        assert_eq!(examined(c"/nonexistent"), None);
    }

    #[test]
    fn directories_are_no_programs() {
        assert!(is_executable(c"/bin/sh"));
        for path in [c"/tmp", c"/bin/", c"/etc/passwd", c"/nonexistent", c""] {
            assert!(!is_executable(path), "{path:?}");
        }
    }

    #[test]
    fn programs_are_found_from_directories_and_by_descriptors() {
        use std::os::fd::AsRawFd;
        let directory = std::fs::File::open("/bin").expect("a directory");
        let program = std::fs::File::open("/bin/sh").expect("a program");
        let (directory, program) = (directory.as_raw_fd(), program.as_raw_fd());
        announce::start();
        let at = |directory, path: &CStr, flags| {
            // SAFETY: a C string.
            unsafe { by_place(directory, path.as_ptr(), flags) }
        };
        assert!(at(directory, c"sh", 0) && at(directory, c"/bin/sh", 0));
        assert!(at(libc::AT_FDCWD, c"/bin/sh", 0));
        assert!(!at(directory, c"nothing", 0) && !at(directory, c"", 0));
        assert!(at(program, c"", libc::AT_EMPTY_PATH));
        assert!(!at(directory, c"", libc::AT_EMPTY_PATH) && !at(program, c"", 0));
        assert!(by_descriptor(program) && !by_descriptor(directory));
        assert!(!by_descriptor(-1) && !by_descriptor(c_int::MAX));
    }

    #[test]
    fn headers_that_lie_are_none() {
        let directory = takt_testing::Directory::new();
        let path = directory.join("program");
        let name = std::ffi::CString::new(path.clone().into_os_string().into_encoded_bytes());
        let name = name.expect("a path");
        let mut header = vec![0u8; HEADER];
        header[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2]);
        let expect = |header: &[u8], alone| {
            std::fs::write(&path, header).expect("write");
            assert_eq!(File::open(&name).and_then(|file| examine(&file)), alone);
        };
        // No segments at all: nothing asks for the loader.
        expect(&header, Some(Alone::Static));
        header[56..58].copy_from_slice(&[0xff; 2]);
        header[32..40].copy_from_slice(&[0xff; 8]);
        expect(&header, None);
        expect(&header[..40], None);
    }
}
