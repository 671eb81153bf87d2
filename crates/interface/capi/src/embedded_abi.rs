//! What `libtakt_embedded.so` exports: the contract between the two libraries.
//!
//! ```c
//! struct takt_embedded {
//!     int socket;                      // of a session with the runtime; the caller owns it
//!     void *state;                     // the runtime
//!     void (*progress)(void *state);   // drives it once; from any thread, until close
//!     void (*close)(void *state);      // stops it
//! };
//! int takt_embedded_open(const char *reserved, struct takt_embedded *out);  // reserved: NULL
//! const char *takt_embedded_error(void);   // the sentence for this thread's last failure
//! void takt_embedded_sleeps(void *state);  // the calling thread goes to sleep; a library may lack it
//! ```

use std::ffi::{CStr, c_char, c_int, c_void};

/// The library's file name.
pub const LIBRARY: &CStr = c"libtakt_embedded.so";
/// The environment variable that names another file.
pub const LIBRARY_VARIABLE: &str = "TAKT_EMBEDDED_LIBRARY";
/// Name of [`Open`].
pub const OPEN: &CStr = c"takt_embedded_open";
/// Name of [`Sleeps`].
pub const SLEEPS: &CStr = c"takt_embedded_sleeps";
/// Name of [`LastError`].
pub const ERROR: &CStr = c"takt_embedded_error";

/// `struct takt_embedded`.
#[repr(C)]
#[derive(Debug)]
pub struct EmbeddedSession {
    /// The session's socket.
    pub socket: c_int,
    /// The runtime.
    pub state: *mut c_void,
    /// Drives it.
    pub progress: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Stops it.
    pub close: Option<unsafe extern "C" fn(*mut c_void)>,
}

/// `takt_embedded_open`.
pub type Open = unsafe extern "C" fn(*const c_char, *mut EmbeddedSession) -> c_int;
/// `takt_embedded_sleeps`.
pub type Sleeps = unsafe extern "C" fn(*mut c_void);
/// `takt_embedded_error`.
pub type LastError = unsafe extern "C" fn() -> *const c_char;
