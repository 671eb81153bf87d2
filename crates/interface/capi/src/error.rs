//! Codes, sentences, and the boundary that no panic crosses.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use takt_client::{Error, ErrorCode};

/// The last failure of this thread. Its sentence is written when somebody asks: a call that finds nothing
/// is no occasion to allocate.
#[derive(Default)]
struct Last {
    error: Option<Error>,
    text: CString,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

fn c_string(text: String) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// Keeps an error for `takt_last_error`; returns its code.
pub fn fail(error: Error) -> c_int {
    let code = error.code() as c_int;
    // A thread that is ending has no last error any more.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            last.error = Some(error);
        }
    });
    code
}

/// Runs the body of a function: its value, or the code of its error.
#[inline]
pub fn guard(body: impl FnOnce() -> Result<c_int, Error>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => fail(error),
        Err(_) => panicked(),
    }
}

#[cold]
fn panicked() -> c_int {
    let text =
        "a defect in libtakt, or a handle used by two threads at once: the call was given up";
    fail(Error::System {
        what: "go on",
        source: std::io::Error::other(text),
    })
}

/// An argument is wrong.
#[cold]
pub fn invalid(text: &str) -> Error {
    Error::InvalidArgument(text.to_owned())
}

#[unsafe(no_mangle)]
extern "C" fn takt_strerror(code: c_int) -> *const c_char {
    static TEXTS: OnceLock<Vec<CString>> = OnceLock::new();
    if code >= 0 {
        return c"success".as_ptr();
    }
    let texts = TEXTS.get_or_init(|| {
        let text = |code: &ErrorCode| c_string(code.text().to_owned());
        ErrorCode::ALL.iter().map(text).collect()
    });
    ErrorCode::ALL
        .iter()
        .position(|&known| known as c_int == code)
        .and_then(|at| texts.get(at))
        .map_or(
            c"unknown error code: this is not a code of takt.h",
            |text| text.as_c_str(),
        )
        .as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn takt_last_error() -> *const c_char {
    let text = LAST.try_with(|last| {
        let Ok(mut last) = last.try_borrow_mut() else {
            return c"".as_ptr();
        };
        if let Some(error) = last.error.take() {
            last.text = c_string(error.to_string());
        }
        last.text.as_ptr()
    });
    text.unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn takt_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    const TEXT: &CStr = match CStr::from_bytes_with_nul(VERSION.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a version has no zero byte"),
    };
    TEXT.as_ptr()
}
