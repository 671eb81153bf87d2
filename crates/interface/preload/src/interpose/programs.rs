//! Programs that are executed: whether the preload comes along, and what this one leaves behind.

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
