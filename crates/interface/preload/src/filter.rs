//! Where the runtime is required: the kernel is kept from taking launch times that it would not keep, also from
//! programs that the preload is not in front of: statically linked ones and those in Go that a preloaded program starts,
//! and system calls that are made by hand (seccomp(2), with a filter, which every program that is started inherits).
//!
//! No socket is ever told of launch times then (`SO_TXTIME`), not even by the preload, and without that the kernel refuses
//! messages with one (`SCM_TXTIME`, `EINVAL`). io_uring, by which options can be set as well, is refused.
//!
//! It is a net for mistakes and not a wall: who is hostile need not name launch times to send.

use std::ffi::{c_int, c_ulong};
use std::io;

use libc::{sock_filter, sock_fprog};

use crate::real;

/// `SECCOMP_SET_MODE_FILTER`.
const SET_MODE_FILTER: c_ulong = 1;
/// What the kernel calls this processor (`AUDIT_ARCH_X86_64`, `AUDIT_ARCH_AARCH64`).
const ARCHITECTURE: u32 = if cfg!(target_arch = "x86_64") {
    0xc000_003e
} else {
    0xc000_00b7
};
/// System calls from here on are those of another binary interface (`__X32_SYSCALL_BIT`).
const OTHER_INTERFACE: u32 = 0x4000_0000;
/// Where `struct seccomp_data` has the system call, the architecture, and the lower halves of the arguments.
const CALL: u32 = 0;
const MACHINE: u32 = 4;
const LEVEL: u32 = 16 + 8;
const NAME: u32 = 16 + 16;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const fn step(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// The filter. Jumps are over so many steps.
const FILTER: [sock_filter; 13] = [
    step(LOAD, MACHINE, 0, 0),
    // A program for another processor, of 32 bits: it cannot be preloaded, and its calls are not looked into.
    step(EQUAL, ARCHITECTURE, 1, 0),
    step(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
    step(LOAD, CALL, 0, 0),
    step(AT_LEAST, OTHER_INTERFACE, 6, 0),
    step(EQUAL, libc::SYS_io_uring_setup as u32, 5, 0),
    step(EQUAL, libc::SYS_setsockopt as u32, 0, 5),
    step(LOAD, LEVEL, 0, 0),
    step(EQUAL, libc::SOL_SOCKET as u32, 0, 3),
    step(LOAD, NAME, 0, 0),
    step(EQUAL, libc::SO_TXTIME as u32, 0, 1),
    step(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
    step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
];

/// Whether there is one already: from the program that has started this one.
fn is_there() -> bool {
    // SAFETY: no descriptor, and nothing is read: the filter says what the kernel would not.
    let result =
        unsafe { real::setsockopt(-1, libc::SOL_SOCKET, libc::SO_TXTIME, std::ptr::null(), 0) };
    result != 0 && crate::process::errno() == libc::EPERM
}

fn set() -> bool {
    let program = sock_fprog {
        len: FILTER.len() as u16,
        filter: FILTER.as_ptr().cast_mut(),
    };
    // SAFETY: the program is there for the call, which reads it.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, 0, &raw const program) };
    result == 0
}

/// Sets the filter, before the program's `main`.
///
/// # Errors
/// The kernel's.
pub fn install() -> io::Result<()> {
    if is_there() || set() {
        return Ok(());
    }
    const ON: c_int = 1;
    // Without CAP_SYS_ADMIN only for those who give up what setuid programs would give them.
    // SAFETY: no pointers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, ON, 0, 0, 0) } == 0 && set() {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter says to a system call.
    fn verdict(machine: u32, call: i64, level: c_int, name: c_int) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let step = FILTER[at];
            at += 1;
            let jump = |holds| usize::from(if holds { step.jt } else { step.jf });
            match step.code {
                LOAD => {
                    loaded = match step.k {
                        CALL => call as u32,
                        MACHINE => machine,
                        LEVEL => level as u32,
                        NAME => name as u32,
                        other => panic!("{other}"),
                    }
                }
                EQUAL => at += jump(loaded == step.k),
                AT_LEAST => at += jump(loaded >= step.k),
                RETURN => return step.k,
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn launch_times_and_io_uring_are_refused_and_nothing_else() {
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let here = |call, level, name| verdict(ARCHITECTURE, call, level, name);
        let (socket, time) = (libc::SOL_SOCKET, libc::SO_TXTIME);
        assert_eq!(here(libc::SYS_setsockopt, socket, time), refused);
        assert_eq!(here(libc::SYS_io_uring_setup, 0, 0), refused);
        assert_eq!(here(libc::SYS_setsockopt | 0x4000_0000, 0, 0), refused);
        for (call, level, name) in [
            (libc::SYS_setsockopt, socket, libc::SO_PRIORITY),
            (libc::SYS_setsockopt, libc::SOL_IP, time),
            (libc::SYS_getsockopt, socket, time),
            (libc::SYS_sendmsg, socket, time),
        ] {
            assert_eq!(here(call, level, name), libc::SECCOMP_RET_ALLOW, "{call}");
        }
        let other = verdict(0x4000_0003, libc::SYS_getpid, 0, 0);
        assert_eq!(other, libc::SECCOMP_RET_KILL_PROCESS);
    }
}
