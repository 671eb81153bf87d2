//! From C pointers to Rust references and back, with the checks that are possible.

use std::ffi::{CStr, c_char};

use takt_client::Error;

use crate::error::invalid;

/// What a handle of C points to: its value is at its beginning.
#[repr(C)]
struct Handle<T> {
    value: T,
    /// [`takt_client::forks`] when it was made: at another number it is the parent's.
    forks: u32,
}

/// What a handle refers to.
///
/// # Errors
/// [`Error::Forked`] in a forked child.
///
/// # Safety
/// `handle` is null or came from [`hand_out`] as a `T` and was not taken back.
#[inline]
pub unsafe fn borrow<'a, T>(handle: *const T, name: &str) -> Result<&'a T, Error> {
    // SAFETY: null, or alive by the caller's promise; handles are only ever borrowed shared.
    let handle = unsafe { given(handle.cast::<Handle<T>>(), name)? };
    match handle.forks == takt_client::forks() {
        true => Ok(&handle.value),
        false => Err(Error::Forked),
    }
}

/// What the caller gives to be read, and is no handle.
///
/// # Safety
/// `from` is null or valid for as long as the result is used.
#[inline]
pub unsafe fn given<'a, T>(from: *const T, name: &str) -> Result<&'a T, Error> {
    // SAFETY: the caller's promise.
    unsafe { from.as_ref() }.ok_or_else(|| invalid(&format!("`{name}` is NULL")))
}

/// Makes a handle of a value, in the place that the caller has given for it.
///
/// # Safety
/// `out` is null or writable for a pointer.
pub unsafe fn hand_out<T>(
    out: *mut *mut T,
    name: &str,
    make: impl FnOnce() -> Result<T, Error>,
) -> Result<i32, Error> {
    if out.is_null() {
        return Err(invalid(&format!(
            "`{name}` is NULL: there is no place for the result"
        )));
    }
    // SAFETY: writable by the caller's promise.
    unsafe { out.write(std::ptr::null_mut()) };
    let value = make()?;
    let forks = takt_client::forks();
    let handle = Box::into_raw(Box::new(Handle { value, forks }));
    // SAFETY: as above.
    unsafe { out.write(handle.cast()) };
    Ok(0)
}

/// Takes a handle back and drops what it refers to. Null is nothing.
///
/// # Safety
/// As [`borrow`]; nobody uses the handle any more.
pub unsafe fn take_back<T>(handle: *mut T) {
    if handle.is_null() {
        return;
    }
    // SAFETY: made by `hand_out` from a box, and given up by the caller.
    let value = unsafe { Box::from_raw(handle.cast::<Handle<T>>()) };
    // A panic while dropping must not reach C; what is left is leaked.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(value)));
}

/// The place for a result.
///
/// # Safety
/// `out` is null, or writable for a `T` while the result is used.
pub unsafe fn place<'a, T>(out: *mut T, name: &str) -> Result<&'a mut T, Error> {
    // SAFETY: null, or writable by the caller's promise.
    unsafe { out.as_mut() }.ok_or_else(|| {
        invalid(&format!(
            "`{name}` is NULL: there is no place for the result"
        ))
    })
}

/// A text that may be missing.
///
/// # Safety
/// `text` is null or a C string that stays while the result is used.
pub unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>, Error> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: a C string by the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(invalid(&format!("`{name}` is not UTF-8"))),
    }
}

/// Writes a text as `snprintf` does; returns its whole length.
///
/// # Safety
/// `to` is writable for `size` bytes.
pub unsafe fn write_text(text: &str, to: *mut c_char, size: usize) -> Result<i32, Error> {
    if size > 0 {
        if to.is_null() {
            return Err(invalid("`text` is NULL although `size` is not 0"));
        }
        let length = text.len().min(size - 1);
        // SAFETY: `length + 1 <= size` bytes are written, to memory of the caller's that cannot be part
        // of a text of ours.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), length);
            to.add(length).write(0);
        }
    }
    Ok(i32::try_from(text.len()).unwrap_or(i32::MAX))
}

/// Reads a structure that began with its size and may have grown since, or not yet.
///
/// # Safety
/// `from` is null or points to a `size_t`, and to as many bytes as that says.
pub unsafe fn sized<T: Copy>(from: *const T, name: &str, usual: T) -> Result<T, Error> {
    if from.is_null() {
        return Ok(usual);
    }
    // SAFETY: the caller's promise.
    let size = unsafe { size_of_caller(from, name)? };
    let mut result = usual;
    // SAFETY: `size` bytes are readable by the caller's promise and fit `result`, whose fields are integers and
    // pointers that any bytes are valid for.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut result).cast(), size);
    }
    Ok(result)
}

/// Writes a structure that began with its size, as far as the caller knows it. What it knows beyond is unchanged.
///
/// # Safety
/// `to` is null or points to a `size_t`, and to as many writable bytes as that says.
pub unsafe fn fill<T: Copy>(to: *mut T, name: &str, value: T) -> Result<(), Error> {
    if to.is_null() {
        return Err(invalid(&format!(
            "`{name}` is NULL: there is no place for the result"
        )));
    }
    // SAFETY: the caller's promise.
    let size = unsafe { size_of_caller(to, name)? };
    let own = size_of::<usize>();
    // SAFETY: `size` bytes are writable by the caller's promise, of which the first say so and stay.
    unsafe {
        let from = (&raw const value).cast::<u8>();
        std::ptr::copy_nonoverlapping(from.add(own), to.cast::<u8>().add(own), size - own);
    }
    Ok(())
}

/// How many bytes of a structure both sides know. All structures of version 0.1 are known whole.
///
/// # Safety
/// A `size_t` lies there.
unsafe fn size_of_caller<T>(at: *const T, name: &str) -> Result<usize, Error> {
    // SAFETY: the caller's promise.
    let size = unsafe { at.cast::<usize>().read() };
    if size < size_of::<T>() {
        return Err(invalid(&format!(
            "`{name}->size` is {size}: begin with the structure's _INIT macro"
        )));
    }
    Ok(size_of::<T>())
}
