//! `syscall(2)`: system calls by their numbers. Those that have a function of their own here are what that function is, but for
//! cancellation: `syscall` is no place where a thread ends. All others jump to the C library's with every register and the stack
//! as the program has left them, so that also calls that return twice, or elsewhere, are what they were.

use std::arch::naked_asm;
use std::ffi::{c_int, c_long, c_uint, c_ulong};

use super::{descriptors, receive, send, sockets, wait};
use crate::announce::{self, Mode};
use crate::process::uncancelled;
use crate::{grid, real, socket, table};

/// The calls that are covered on all processors.
const CALLS: [c_long; 20] = [
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_epoll_ctl,
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
];

/// Those that newer processors do not have, and `fcntl`.
#[cfg(target_arch = "x86_64")]
const MORE: [c_long; 4] = [
    libc::SYS_fcntl,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_dup2,
];
#[cfg(not(target_arch = "x86_64"))]
const MORE: [c_long; 1] = [libc::SYS_fcntl];

/// More than the number of any of them.
const NUMBERS: usize = 448;

/// Whether the call of a number is covered.
static COVERED: [bool; NUMBERS] = {
    let mut covered = [false; NUMBERS];
    let mut at = 0;
    while at < CALLS.len() + MORE.len() {
        let call = if at < CALLS.len() {
            CALLS[at]
        } else {
            MORE[at - CALLS.len()]
        };
        covered[call as usize] = true;
        at += 1;
    }
    covered
};

/// `syscall(2)`, variadic in C: its arguments are where those of a function with seven integers are.
///
/// # Safety
/// As the C library's.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall() {
    naked_asm!(
        ".cfi_startproc",
        "cmp rdi, {numbers}",
        "jae 2f",
        "lea r11, [rip + {covered}]",
        "cmp byte ptr [r11 + rdi], 0",
        "jne {call}",
        "2:",
        "jmp qword ptr [rip + {next}]",
        ".cfi_endproc",
        numbers = const NUMBERS,
        covered = sym COVERED,
        call = sym call,
        next = sym real::SYSCALL,
    )
}

/// `syscall(2)`, variadic in C: its arguments are where those of a function with seven integers are.
///
/// # Safety
/// As the C library's.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall() {
    naked_asm!(
        ".cfi_startproc",
        "cmp x0, #{numbers}",
        "b.hs 2f",
        "adrp x16, {covered}",
        "add x16, x16, :lo12:{covered}",
        "ldrb w16, [x16, x0]",
        "cbnz w16, 3f",
        "2:",
        "adrp x16, {next}",
        "ldr x16, [x16, :lo12:{next}]",
        "br x16",
        "3:",
        "b {call}",
        ".cfi_endproc",
        numbers = const NUMBERS,
        covered = sym COVERED,
        call = sym call,
        next = sym real::SYSCALL,
    )
}

/// A call that is covered. What concerns no socket of ours is the C library's `syscall`.
unsafe extern "C-unwind" fn call(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: the program's call.
    unsafe {
        match ours(number, [a, b, c, d, e, f]) {
            Some(result) => result,
            None => real::syscall(number, [a, b, c, d, e, f]),
        }
    }
}

/// What a call returns that one of our functions makes. `None`: there is nothing to do for it.
///
/// # Safety
/// As the system call's.
unsafe fn ours(number: c_long, arguments: [c_long; 6]) -> Option<c_long> {
    let [a, b, c, d, e, f] = arguments;
    // As the kernel: of a descriptor, a flag or a length it looks at the lower half.
    let fd = a as c_int;
    let is_ours = || table::lookup(fd).is_some();
    let sends = || send::accelerated(fd).is_some();
    // What cannot name a time.
    let sends_plain = || if grid::is_on() { sends() } else { is_ours() };
    let sends_message = || sends() || announce::mode() == Mode::Required;
    let asks = |flags: c_long| receive::error_queue(fd, flags as c_int).is_some();
    let option = (b as c_int, c as c_int);
    let times = option == (libc::SOL_SOCKET, libc::SO_TXTIME);
    let group = option == (libc::SOL_IP, libc::IP_MULTICAST_IF);
    // SAFETY: the program's call, here and below.
    let result: c_long = unsafe {
        match number {
            libc::SYS_sendto if sends_plain() => {
                uncancelled(|| send::sendto(fd, b as _, c as _, d as _, e as _, f as _) as c_long)
            }
            libc::SYS_sendmsg if sends_message() => {
                uncancelled(|| send::sendmsg(fd, b as _, c as _) as c_long)
            }
            libc::SYS_sendmmsg if sends_message() => {
                uncancelled(|| send::sendmmsg(fd, b as _, c as _, d as _).into())
            }
            libc::SYS_write if sends_plain() => {
                uncancelled(|| send::write(fd, b as _, c as _) as c_long)
            }
            // The kernel's count of parts is as wide as a pointer.
            libc::SYS_writev if sends_plain() => {
                let count = c_int::try_from(c).unwrap_or(c_int::MAX);
                uncancelled(|| send::writev(fd, b as _, count) as c_long)
            }
            libc::SYS_recvfrom if asks(d) => uncancelled(|| {
                receive::recvfrom(fd, b as _, c as _, d as _, e as _, f as _) as c_long
            }),
            libc::SYS_recvmsg if asks(c) => {
                uncancelled(|| receive::recvmsg(fd, b as _, c as _) as c_long)
            }
            libc::SYS_recvmmsg if asks(d) => {
                uncancelled(|| receive::recvmmsg(fd, b as _, c as _, d as _, e as _).into())
            }
            libc::SYS_epoll_pwait if waits(e, f) => {
                uncancelled(|| wait::epoll_pwait(fd, b as _, c as _, d as _, e as _).into())
            }
            libc::SYS_epoll_pwait2 if waits(e, f) => {
                uncancelled(|| wait::epoll_pwait2(fd, b as _, c as _, d as _, e as _).into())
            }
            libc::SYS_epoll_ctl => wait::epoll_ctl(fd, b as _, c as _, d as _).into(),
            libc::SYS_socket => sockets::socket(a as _, b as _, c as _).into(),
            libc::SYS_bind if is_ours() => sockets::bind(fd, b as _, c as _).into(),
            libc::SYS_connect if is_ours() => {
                uncancelled(|| sockets::connect(fd, b as _, c as _).into())
            }
            libc::SYS_setsockopt if times || group || is_ours() => {
                sockets::setsockopt(fd, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_getsockopt if times && is_ours() => {
                sockets::getsockopt(fd, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_close => {
                descriptors::close_by(fd, || real::syscall(number, arguments) as c_int).into()
            }
            libc::SYS_close_range => {
                descriptors::close_range(a as c_uint, b as c_uint, c as _).into()
            }
            libc::SYS_dup => descriptors::dup(fd).into(),
            libc::SYS_dup3 => descriptors::dup3(fd, b as _, c as _).into(),
            libc::SYS_fcntl if matches!(b as c_int, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => {
                descriptors::fcntl(fd, b as _, c as c_ulong).into()
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll if socket::any_telling() => {
                uncancelled(|| wait::poll(a as _, c_ulong::from(b as c_uint), c as _).into())
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => {
                uncancelled(|| wait::epoll_wait(fd, b as _, c as _, d as _).into())
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => descriptors::dup2(fd, b as _).into(),
            _ => return None,
        }
    };
    Some(result)
}

/// Whether a wait with a set of signals, and its size, is one that we know: the size is the kernel's.
fn waits(signals: c_long, size: c_long) -> bool {
    signals == 0 || size as usize == real::KERNEL_SIGSET
}
