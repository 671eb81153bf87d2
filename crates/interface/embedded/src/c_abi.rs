//! What `libtakt.so` finds in `libtakt_embedded.so`: one function that starts a runtime.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::IntoRawFd;

use takt::ErrorCode;

use crate::{Embedded, Error, Settings};

/// An embedded runtime with one session, as the C library uses it.
#[repr(C)]
pub struct EmbeddedSession {
    /// The session's socket; the caller owns it.
    pub socket: c_int,
    /// The runtime; for the functions below.
    pub state: *mut c_void,
    /// Drives the lane once. From any thread, at any time before `close`.
    pub progress: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Stops the runtime. Nothing may use it any more.
    pub close: Option<unsafe extern "C" fn(*mut c_void)>,
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Starts a runtime after the environment (see [`Settings::from_environment`]) and fills in `out`.
/// Returns 0, or a negative error code of `takt.h`; `takt_embedded_error` then has the sentence.
///
/// `reserved` must be null.
///
/// # Safety
/// `out` must be null or point to writable memory for an [`EmbeddedSession`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn takt_embedded_open(
    reserved: *const c_char,
    out: *mut EmbeddedSession,
) -> c_int {
    if !reserved.is_null() || out.is_null() {
        return ErrorCode::InvalidArgument as c_int;
    }
    let opened = std::panic::catch_unwind(|| {
        let settings = Settings::from_environment()?;
        let node = Embedded::start(settings)?;
        let socket = node.connect()?;
        Ok::<_, Error>((node, socket))
    });
    let failure = match opened {
        Ok(Ok((node, socket))) => {
            let session = EmbeddedSession {
                socket: socket.into_raw_fd(),
                state: Box::into_raw(Box::new(node)).cast(),
                progress: Some(progress),
                close: Some(close),
            };
            // SAFETY: not null, and the caller promises room for one.
            unsafe { out.write(session) };
            return 0;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the embedded runtime panicked at its start".to_owned(),
    };
    LAST_ERROR.set(CString::new(failure).unwrap_or_default());
    ErrorCode::System as c_int
}

/// The sentence that belongs to this thread's last failure of `takt_embedded_open`; valid until the next.
#[unsafe(no_mangle)]
pub extern "C" fn takt_embedded_error() -> *const c_char {
    LAST_ERROR.with_borrow(|text| CStr::as_ptr(text))
}

unsafe extern "C" fn progress(state: *mut c_void) {
    // SAFETY: `state` is the box of `takt_embedded_open`, not closed yet by contract; driving takes `&self`.
    let node = unsafe { &*state.cast::<Embedded>() };
    node.lane.drive();
}

/// The calling thread goes to sleep: the runtime's own drives the lane from now on.
///
/// # Safety
/// `state` must be what `takt_embedded_open` filled in, not closed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn takt_embedded_sleeps(state: *mut c_void) {
    // SAFETY: as above.
    let node = unsafe { &*state.cast::<Embedded>() };
    node.lane.hand_back();
}

unsafe extern "C" fn close(state: *mut c_void) {
    // SAFETY: as above, and the caller gives it up.
    let node = unsafe { Box::from_raw(state.cast::<Embedded>()) };
    // A panic must not cross into C; the process goes on without the runtime.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(node)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_arguments_are_refused() {
        // SAFETY: null is allowed and refused.
        let code = unsafe { takt_embedded_open(std::ptr::null(), std::ptr::null_mut()) };
        assert_eq!(code, ErrorCode::InvalidArgument as c_int);
    }
}
