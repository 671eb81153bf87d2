//! `takt_session_*`.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use takt_client::{Error, Session};

use crate::embedded;
use crate::error::{guard, invalid};
use crate::pointers::{borrow, hand_out, sized, take_back, text};

/// `takt_session_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    size: usize,
    socket: *const c_char,
    name: *const c_char,
    tx_bytes: u64,
    rx_bytes: u64,
    request_timeout_ns: u64,
    no_reconnect: c_int,
    allow_embedded: c_int,
}

const USUAL: Options = Options {
    size: size_of::<Options>(),
    socket: std::ptr::null(),
    name: std::ptr::null(),
    tx_bytes: 0,
    rx_bytes: 0,
    request_timeout_ns: 0,
    no_reconnect: 0,
    allow_embedded: 0,
};

unsafe fn open(from: *const Options) -> Result<Session, Error> {
    // SAFETY: the promises of `takt_session_open`'s caller.
    let (from, socket, name) = unsafe {
        let from = sized(from, "options", USUAL)?;
        (
            from,
            text(from.socket, "options->socket")?,
            text(from.name, "options->name")?,
        )
    };
    let bytes = |value: u64, name: &str| {
        usize::try_from(value).map_err(|_| invalid(&format!("`options->{name}` is {value}")))
    };
    let mut builder = Session::builder()
        .tx_bytes(bytes(from.tx_bytes, "tx_bytes")?)
        .rx_bytes(bytes(from.rx_bytes, "rx_bytes")?)
        .reconnect(from.no_reconnect == 0);
    if let Some(socket) = socket {
        builder = builder.socket(socket);
    }
    if let Some(name) = name {
        builder = builder.name(name);
    }
    if from.request_timeout_ns > 0 {
        builder = builder.request_timeout(Duration::from_nanos(from.request_timeout_ns));
    }
    match builder.clone().open() {
        Err(Error::NoRuntime { .. }) if from.allow_embedded != 0 => {
            let (socket, runtime) = embedded::start()?;
            builder.over(socket, Some(runtime))
        }
        result => result,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_session_open(from: *const Options, session: *mut *mut Session) -> c_int {
    // SAFETY: the caller's promises are those of the functions called.
    guard(|| unsafe { hand_out(session, "session", || open(from)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_session_close(session: *mut Session) {
    // SAFETY: null or a session, which the caller gives up.
    unsafe { take_back(session) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_session_end(session: *const Session) -> c_int {
    guard(|| {
        // SAFETY: null or a session.
        unsafe { borrow(session, "session")? }.end();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_session_attached(session: *const Session) -> c_int {
    // SAFETY: null or a session.
    guard(|| match unsafe { borrow(session, "session") } {
        Ok(session) => Ok(session.is_attached().into()),
        // What a child asks that wants to know whether it has to open its own.
        Err(Error::Forked) => Ok(0),
        Err(error) => Err(error),
    })
}
