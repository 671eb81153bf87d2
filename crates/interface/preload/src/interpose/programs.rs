//! Programs that are executed: whether the preload comes along, and what this one leaves behind.

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_void};

use crate::image;
use crate::process;
use crate::real;

/// An execution is about to take this process's place: what waits for a next hop is waited for, as at its end.
fn leave(there: bool) {
    // A child that shares or copies its parent's memory has nothing that waits.
    if there && process::is_home() {
        super::end();
    }
}

type Strings = *const *const c_char;

/// `execve(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execve(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: by the caller's promise, here and below.
    leave(unsafe { image::by_path(path) });
    // SAFETY: the caller's arguments, here and below.
    unsafe { real::execve(path, arguments, environment) }
}

/// `execv(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: as above.
    leave(unsafe { image::by_path(path) });
    // SAFETY: as above.
    unsafe { real::execv(path, arguments) }
}

/// `execvp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvp(name: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: as above.
    leave(unsafe { image::by_name(name) });
    // SAFETY: as above.
    unsafe { real::execvp(name, arguments) }
}

/// `execvpe(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvpe(
    name: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: as above.
    leave(unsafe { image::by_name(name) });
    // SAFETY: as above.
    unsafe { real::execvpe(name, arguments, environment) }
}

/// `AT_EXECVE_CHECK`: nothing is executed (Linux 6.14).
const EXECVE_CHECK: c_int = 0x10000;

/// `execveat(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execveat(
    directory: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    // SAFETY: as above.
    leave(flags & EXECVE_CHECK == 0 && unsafe { image::by_place(directory, path, flags) });
    // SAFETY: as above.
    unsafe { real::execveat(directory, path, arguments, environment, flags) }
}

/// `fexecve(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fexecve(
    fd: c_int,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    leave(image::by_descriptor(fd));
    // SAFETY: as above.
    unsafe { real::fexecve(fd, arguments, environment) }
}

/// Arguments behind the first one that are in registers.
#[cfg(target_arch = "x86_64")]
const REGISTERS: usize = 5;
#[cfg(target_arch = "aarch64")]
const REGISTERS: usize = 7;

/// A function that is variadic in C: a path or name, and strings up to a null pointer, and perhaps an environment. It is
/// what `call` is for the first one, those in registers, and those on the stack.
macro_rules! variadic {
    ($(#[$documentation:meta])* $name:ident, $call:ident) => {
        $(#[$documentation])*
        ///
        /// # Safety
        /// As the C library's.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                ".cfi_adjust_cfa_offset 40",
                "mov rsi, rsp",
                "lea rdx, [rsp + 48]",
                "call {call}",
                "add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
                "ret",
                ".cfi_endproc",
                call = sym $call,
            )
        }

        $(#[$documentation])*
        ///
        /// # Safety
        /// As the C library's.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-80]!",
                ".cfi_def_cfa_offset 80",
                ".cfi_offset x29, -80",
                ".cfi_offset x30, -72",
                "stp x1, x2, [sp, #16]",
                "stp x3, x4, [sp, #32]",
                "stp x5, x6, [sp, #48]",
                "str x7, [sp, #64]",
                "add x1, sp, #16",
                "add x2, sp, #80",
                "bl {call}",
                "ldp x29, x30, [sp], #80",
                ".cfi_def_cfa_offset 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "ret",
                ".cfi_endproc",
                call = sym $call,
            )
        }
    };
}

variadic! {
    /// `execl(3)`.
    execl, execute_path
}
variadic! {
    /// `execlp(3)`.
    execlp, execute_name
}
variadic! {
    /// `execle(3)`.
    execle, execute_with_environment
}

unsafe extern "C-unwind" fn execute_path(
    path: *const c_char,
    registers: Strings,
    stack: Strings,
) -> c_int {
    // SAFETY: by the caller's promise, here and below.
    unsafe { listed(registers, stack, |arguments, _| execv(path, arguments)) }
}

unsafe extern "C-unwind" fn execute_name(
    name: *const c_char,
    registers: Strings,
    stack: Strings,
) -> c_int {
    // SAFETY: as above.
    unsafe { listed(registers, stack, |arguments, _| execvp(name, arguments)) }
}

unsafe extern "C-unwind" fn execute_with_environment(
    path: *const c_char,
    registers: Strings,
    stack: Strings,
) -> c_int {
    // SAFETY: as above.
    let execute = |arguments, next: *const c_char| unsafe { execve(path, arguments, next.cast()) };
    // SAFETY: as above.
    unsafe { listed(registers, stack, execute) }
}

/// Runs `execute` on the list of arguments of a variadic call, its null pointer included, and what is behind that.
///
/// # Safety
/// `REGISTERS` arguments are at the first place, and more at the second one if no null pointer is among them.
unsafe fn listed(
    registers: Strings,
    stack: Strings,
    execute: impl FnOnce(Strings, *const c_char) -> c_int,
) -> c_int {
    /// So many are on the stack: a `vfork` child should leave its parent's heap alone.
    const FEW: usize = 256;
    // SAFETY: by the caller's promise.
    let at = |number: usize| unsafe {
        match number.checked_sub(REGISTERS) {
            None => *registers.add(number),
            Some(number) => *stack.add(number),
        }
    };
    let length = (0..).take_while(|number| !at(*number).is_null()).count() + 1;
    let (mut few, mut many) = ([std::ptr::null(); FEW], Vec::new());
    let list = match few.get_mut(..length) {
        Some(list) => list,
        None => {
            many.resize(length, std::ptr::null());
            &mut many[..]
        }
    };
    list.iter_mut()
        .enumerate()
        .for_each(|(number, place)| *place = at(number));
    execute(list.as_ptr(), at(length))
}

/// `posix_spawn(3)`: this process stays.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn(
    child: *mut libc::pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: as above.
    unsafe { image::by_path(path) };
    // SAFETY: as above.
    unsafe { real::posix_spawn(child, path, actions, attributes, arguments, environment) }
}

/// `posix_spawnp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawnp(
    child: *mut libc::pid_t,
    name: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: as above.
    unsafe { image::by_name(name) };
    // SAFETY: as above.
    unsafe { real::posix_spawnp(child, name, actions, attributes, arguments, environment) }
}
