//! The functions that the interposed ones stand in front of: the next definition behind this library, which
//! is the C library's or another preload's.
//!
//! They are looked up once, when the library is loaded: `dlsym` is not allowed in a signal handler and may
//! allocate. Calls from before that, by constructors of other libraries, are made as system calls: nothing
//! is lost by that, for a process has no threads yet that could be cancelled in them.

use std::arch::asm;
use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    FILE, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};

/// Where the next definition of a function is.
struct Symbol {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Symbol {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    #[inline]
    fn get(&self) -> Option<*mut c_void> {
        let address = self.address.load(Ordering::Relaxed);
        (!address.is_null()).then_some(address)
    }

    fn find(&self) {
        // SAFETY: the name is a C string.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
    }
}

/// Defines a caller for each function, and [`find`] that looks all of them up.
macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty, or $early:expr;)*) => {
        #[allow(non_upper_case_globals)]
        mod symbols {
            $(pub(super) static $name: super::Symbol = super::Symbol::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zero in it"),
                },
            );)*
        }

        /// Looks all functions up.
        pub fn find() {
            $(symbols::$name.find();)*
            find_syscall();
        }

        $(
            /// The C library's function of this name.
            ///
            /// # Safety
            /// As the C library's.
            #[inline]
            #[allow(clippy::too_many_arguments)]
            pub unsafe fn $name($($argument: $kind),*) -> $result {
                match symbols::$name.get() {
                    Some(address) => {
                        // "C-unwind": cancelling a thread unwinds it from within.
                        type Function = unsafe extern "C-unwind" fn($($kind),*) -> $result;
                        // SAFETY: the address is that of the C library's function of this name, whose
                        // type this is.
                        let function = unsafe { std::mem::transmute::<*mut c_void, Function>(address) };
                        // SAFETY: by the caller's promise.
                        unsafe { function($($argument),*) }
                    }
                    // SAFETY: the system call behind the function, with its arguments.
                    None => unsafe { ($early) as $result },
                }
            }
        )*
    };
}

/// `syscall(2)`, which is variadic in C: integers are in the same places.
type Syscall =
    unsafe extern "C-unwind" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

/// The C library's `syscall`, to which those of programs that are not covered jump. Never null.
pub static SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(by_hand as *mut c_void);

fn find_syscall() {
    // SAFETY: the name is a C string.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr()) };
    if !address.is_null() {
        SYSCALL.store(address, Ordering::Relaxed);
    }
}

/// The C library's `syscall`: no point of cancellation.
///
/// # Safety
/// As the system call's.
pub unsafe fn syscall(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    // SAFETY: the C library's function, or the one above.
    let function =
        unsafe { std::mem::transmute::<*mut c_void, Syscall>(SYSCALL.load(Ordering::Relaxed)) };
    // SAFETY: by the caller's promise.
    unsafe { function(number, a, b, c, d, e, f) }
}

/// A system call without the C library.
unsafe extern "C-unwind" fn by_hand(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    const ERRORS: std::ops::RangeInclusive<c_long> = -4095..=-1;
    let result: c_long;
    // SAFETY: by the caller's promise; the kernel leaves all other registers as they are.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    if ERRORS.contains(&result) {
        crate::process::set_errno(-result as c_int);
        return -1;
    }
    result
}

/// A system call before the C library's function is known, and not by `libc::syscall`, which is this library's own
/// then ([`interpose::system`](crate::interpose)).
macro_rules! early {
    ($number:expr $(, $argument:expr)*) => {
        // What arguments point to is there until the call has returned.
        by_number($number, &[$(($argument) as usize as c_long),*])
    };
}

/// The same with as many arguments as the call has.
unsafe fn by_number(number: c_long, given: &[c_long]) -> c_long {
    let mut arguments = [0; 6];
    arguments[..given.len()].copy_from_slice(given);
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: by the caller's promise.
    unsafe { by_hand(number, a, b, c, d, e, f) }
}

/// No system call: `ENOSYS`, for what the C library alone can do.
const NONE: i64 = -1;

/// Bytes of the kernel's signal set, which is not the C library's.
pub const KERNEL_SIGSET: usize = 8;

fn from_timeval(timeout: *const timeval) -> Option<timespec> {
    // SAFETY: null, or a timeout by the caller's promise.
    unsafe { timeout.as_ref() }.map(|timeout| timespec {
        tv_sec: timeout.tv_sec,
        tv_nsec: timeout.tv_usec * 1000,
    })
}

fn pointer(timeout: &Option<timespec>) -> *const timespec {
    timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref)
}

fn from_milliseconds(timeout: c_int) -> Option<timespec> {
    (timeout >= 0).then_some(timespec {
        tv_sec: (timeout / 1000).into(),
        tv_nsec: i64::from(timeout % 1000) * 1_000_000,
    })
}

functions! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int,
        or early!(libc::SYS_socket, domain, kind, protocol);
    bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int,
        or early!(libc::SYS_bind, fd, address, length);
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int,
        or early!(libc::SYS_connect, fd, address, length);
    close(fd: c_int) -> c_int, or early!(libc::SYS_close, fd);
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int,
        or early!(libc::SYS_close_range, first, last, flags);
    closefrom(first: c_int) -> (),
        or { early!(libc::SYS_close_range, first.max(0), c_uint::MAX, 0); };
    fclose(stream: *mut FILE) -> c_int, or early!(NONE);
    dup(fd: c_int) -> c_int, or early!(libc::SYS_dup, fd);
    dup2(old: c_int, new: c_int) -> c_int,
        or if old == new {
            match early!(libc::SYS_fcntl, old, libc::F_GETFD) {
                -1 => -1,
                _ => i64::from(new),
            }
        } else {
            early!(libc::SYS_dup3, old, new, 0)
        };
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int,
        or early!(libc::SYS_dup3, old, new, flags);
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int,
        or early!(libc::SYS_fcntl, fd, command, argument);
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int,
        or early!(libc::SYS_ioctl, fd, request, argument);
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int,
        or early!(libc::SYS_setsockopt, fd, level, name, value, length);
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int,
        or early!(libc::SYS_getsockopt, fd, level, name, value, length);
    send(fd: c_int, data: *const c_void, length: size_t, flags: c_int) -> ssize_t,
        or early!(libc::SYS_sendto, fd, data, length, flags, 0usize, 0usize);
    sendto(
        fd: c_int, data: *const c_void, length: size_t, flags: c_int, to: *const sockaddr, to_length: socklen_t
    ) -> ssize_t,
        or early!(libc::SYS_sendto, fd, data, length, flags, to, to_length);
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t,
        or early!(libc::SYS_sendmsg, fd, message, flags);
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int,
        or early!(libc::SYS_sendmmsg, fd, messages, count, flags);
    write(fd: c_int, data: *const c_void, length: size_t) -> ssize_t,
        or early!(libc::SYS_write, fd, data, length);
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t,
        or early!(libc::SYS_writev, fd, parts, count);
    recv(fd: c_int, data: *mut c_void, length: size_t, flags: c_int) -> ssize_t,
        or early!(libc::SYS_recvfrom, fd, data, length, flags, 0usize, 0usize);
    recvfrom(
        fd: c_int, data: *mut c_void, length: size_t, flags: c_int, from: *mut sockaddr, from_length: *mut socklen_t
    ) -> ssize_t,
        or early!(libc::SYS_recvfrom, fd, data, length, flags, from, from_length);
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t,
        or early!(libc::SYS_recvmsg, fd, message, flags);
    recvmmsg(
        fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec
    ) -> c_int,
        or early!(libc::SYS_recvmmsg, fd, messages, count, flags, timeout);
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int,
        or early!(
            libc::SYS_ppoll, fds, count, pointer(&from_milliseconds(timeout)), 0usize, KERNEL_SIGSET
        );
    ppoll(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int,
        or early!(libc::SYS_ppoll, fds, count, timeout, mask, KERNEL_SIGSET);
    select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval
    ) -> c_int,
        or early!(
            libc::SYS_pselect6, count, read, write, except, pointer(&from_timeval(timeout)), 0usize
        );
    pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t
    ) -> c_int,
        or early!(
            libc::SYS_pselect6, count, read, write, except, timeout, std::ptr::from_ref(&(mask, KERNEL_SIGSET))
        );
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int,
        or early!(libc::SYS_epoll_ctl, epoll, operation, fd, event);
    epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int,
        or early!(libc::SYS_epoll_pwait, epoll, events, count, timeout, 0usize, KERNEL_SIGSET);
    epoll_pwait(
        epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int, mask: *const sigset_t
    ) -> c_int,
        or early!(libc::SYS_epoll_pwait, epoll, events, count, timeout, mask, KERNEL_SIGSET);
    epoll_pwait2(
        epoll: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int,
        or early!(libc::SYS_epoll_pwait2, epoll, events, count, timeout, mask, KERNEL_SIGSET);
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int,
        or early!(libc::SYS_execve, path, arguments, environment);
    execv(path: *const c_char, arguments: *const *const c_char) -> c_int, or early!(NONE);
    execvp(name: *const c_char, arguments: *const *const c_char) -> c_int, or early!(NONE);
    execvpe(name: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int,
        or early!(NONE);
    execveat(
        directory: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char,
        flags: c_int
    ) -> c_int,
        or early!(libc::SYS_execveat, directory, path, arguments, environment, flags);
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int,
        or early!(NONE);
    posix_spawn(
        child: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *const c_char, environment: *const *const c_char
    ) -> c_int,
        or { early!(NONE); libc::ENOSYS };
    posix_spawnp(
        child: *mut libc::pid_t, name: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *const c_char, environment: *const *const c_char
    ) -> c_int,
        or { early!(NONE); libc::ENOSYS };
    __chk_fail() -> (), or libc::abort();
}

/// Which file standard error was at the start: device and number.
static STANDARD_ERROR: OnceLock<(u64, u64)> = OnceLock::new();

fn standard_error() -> Option<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: written if the call succeeds, and read only then.
    let status = unsafe {
        if libc::fstat(libc::STDERR_FILENO, status.as_mut_ptr()) != 0 {
            return None;
        }
        status.assume_init()
    };
    Some((status.st_dev, status.st_ino))
}

/// Notes what standard error is: whatever else gets its number later is the program's own.
pub fn note_standard_error() {
    if let Some(file) = standard_error() {
        let _ = STANDARD_ERROR.set(file);
    }
}

/// Says on standard error, without anything of the program's.
pub fn say(text: &str) {
    say_parts([text.as_bytes()]);
}

/// The same in one piece, where no memory may be allocated. Nothing where standard error is another file than at the start, or has
/// no room now; and nobody's death if it has no reader any more.
pub fn say_parts<const N: usize>(parts: [&[u8]; N]) {
    if standard_error().is_none_or(|now| STANDARD_ERROR.get() != Some(&now)) {
        return;
    }
    let mut entry = libc::pollfd {
        fd: libc::STDERR_FILENO,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one entry.
    if unsafe { poll(&mut entry, 1, 0) } != 1 || entry.revents & libc::POLLOUT == 0 {
        return;
    }
    let parts = parts.map(|part| iovec {
        iov_base: part.as_ptr().cast_mut().cast(),
        iov_len: part.len(),
    });
    crate::kernel::without_broken_pipe(|| {
        // SAFETY: the parts are there for the call.
        unsafe { writev(libc::STDERR_FILENO, parts.as_ptr(), N as c_int) }
    });
}

/// The name of this program.
pub fn program_name() -> &'static CStr {
    unsafe extern "C" {
        static program_invocation_short_name: *const c_char;
    }
    // SAFETY: the C library's, set before any code of a program or library runs.
    let name = unsafe { program_invocation_short_name };
    match name.is_null() {
        true => c"",
        // SAFETY: a C string of the C library's, which stays.
        false => unsafe { CStr::from_ptr(name) },
    }
}

/// The same, for messages.
pub fn program() -> String {
    program_name().to_string_lossy().into_owned()
}
