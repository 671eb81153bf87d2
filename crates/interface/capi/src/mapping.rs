//! `takt_mapping_*`.

use std::ffi::c_int;

use takt_client::{Error, Mapping};

use crate::error::{guard, invalid};
use crate::pointers::{borrow, given, hand_out, take_back};
use crate::sink::{CSink, consumed};
use crate::source::{CBuffer, CSource};
use crate::topic::{CSample, CSubscriber, taken};

/// # Safety
/// `mapping` is null or writable for a pointer.
unsafe fn hand(
    of: Result<Option<Mapping>, Error>,
    mapping: *mut *mut Mapping,
) -> Result<c_int, Error> {
    let gone = || invalid("it was emitted, abandoned or released already");
    // SAFETY: the caller's promise.
    unsafe { hand_out(mapping, "mapping", || of?.ok_or_else(gone)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_buffer_mapping(
    source: *const CSource,
    buffer: *const CBuffer,
    mapping: *mut *mut Mapping,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let of = borrow(source, "source")?.mapping(given(buffer, "buffer")?);
        hand(of, mapping)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_message_mapping(
    sink: *const CSink,
    message: *const CBuffer,
    mapping: *mut *mut Mapping,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let of = consumed(sink)?.mapping(given(message, "message")?);
        hand(of, mapping)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_sample_mapping(
    subscriber: *const CSubscriber,
    sample: *const CSample,
    mapping: *mut *mut Mapping,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let of = taken(subscriber)?.mapping(given(sample, "sample")?);
        hand(of, mapping)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_mapping_close(mapping: *mut Mapping) {
    // SAFETY: null or a mapping, which the caller gives up.
    unsafe { take_back(mapping) };
}
