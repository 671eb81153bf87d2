//! `takt_source_*`, `takt_buffer_*` and `takt_emit*`.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::time::Duration;

use takt_client::{
    Buffer, ChannelId, Error, Mapping, Outcome, Source, SourceOptions, Stream, TaiTime, Token,
    Wait, Waker,
};

use crate::error::{guard, invalid};
use crate::loans::Loans;
use crate::pointers::{borrow, hand_out, place, sized, take_back};
use crate::sink::{CSink, consumed};

/// `takt_buffer`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CBuffer {
    pub data: *mut c_void,
    pub length: usize,
    /// Key of the loan, and who lends.
    pub reserved: [u64; 2],
}

impl CBuffer {
    /// Of no one.
    pub const NONE: Self = Self {
        data: std::ptr::null_mut(),
        length: 0,
        reserved: [0; 2],
    };
}

/// `takt_source_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    size: usize,
    depth: u32,
    notify_fd: c_int,
}

const USUAL: Options = Options {
    size: size_of::<Options>(),
    depth: 0,
    notify_fd: 0,
};

/// `timeout_ns` as the client understands it.
#[inline]
pub fn wait(timeout_ns: i64) -> Result<Wait, Error> {
    match timeout_ns {
        0 => Ok(Wait::Never),
        -1 => Ok(Wait::Forever),
        1.. => Ok(Wait::For(Duration::from_nanos(timeout_ns as u64))),
        _ => Err(invalid(&format!(
            "`timeout_ns` is {timeout_ns}: it must be nanoseconds, TAKT_NOWAIT or TAKT_FOREVER"
        ))),
    }
}

/// `takt_source`: the source, and the buffers of it that C holds.
pub struct CSource {
    /// A box of ours. The buffers refer to it, so it may not be one that moves with this structure.
    source: NonNull<Source>,
    waker: Waker,
    lent: RefCell<Loans<Buffer<'static>>>,
}

impl CSource {
    fn new(source: Source) -> Self {
        Self {
            waker: source.waker(),
            source: NonNull::from(Box::leak(Box::new(source))),
            lent: RefCell::new(Loans::new()),
        }
    }

    #[inline]
    fn source(&self) -> &'static Source {
        // SAFETY: the box lives until `drop`, before which all buffers are dropped; references go
        // nowhere else.
        unsafe { self.source.as_ref() }
    }

    fn name(&self) -> u64 {
        std::ptr::from_ref(self) as usize as u64
    }

    #[inline]
    fn lend(&self, mut buffer: Buffer<'static>, out: &mut CBuffer) {
        let data = buffer.as_mut_ptr().cast();
        let length = buffer.len();
        let key = self.lent.borrow_mut().lend(buffer);
        *out = CBuffer {
            data,
            length,
            reserved: [key, self.name()],
        };
    }

    /// What keeps the memory of a buffer mapped that C holds.
    pub fn mapping(&self, of: &CBuffer) -> Result<Option<Mapping>, Error> {
        let [key, name] = of.reserved;
        if name != self.name() {
            return Err(invalid(
                "the buffer is not of this source, or was emitted or abandoned",
            ));
        }
        Ok(self.lent.borrow().get(key).and_then(Buffer::mapping))
    }

    /// Takes a buffer that C held, with the length that it has there.
    #[inline]
    fn take(&self, out: &mut CBuffer) -> Result<Buffer<'static>, Error> {
        let mut lent = self.lent.borrow_mut();
        let [key, name] = out.reserved;
        if name != self.name() {
            return Err(invalid(
                "the buffer is not of this source, or was emitted or abandoned",
            ));
        }
        let Some(buffer) = lent.get_mut(key) else {
            return Err(invalid("the buffer was emitted or abandoned already"));
        };
        buffer.set_len(out.length)?;
        let buffer = lent.take(key);
        *out = CBuffer::NONE;
        buffer.ok_or_else(|| invalid("the buffer was emitted or abandoned already"))
    }
}

impl Drop for CSource {
    fn drop(&mut self) {
        *self.lent.get_mut() = Loans::new();
        // SAFETY: leaked in `new`, and no buffer refers to it any more.
        drop(unsafe { Box::from_raw(self.source.as_ptr()) });
    }
}

fn open(stream: &Stream, channel: u64, options: Options) -> Result<CSource, Error> {
    let options = SourceOptions {
        depth: options.depth,
        notify_fd: options.notify_fd != 0,
    };
    let source = stream.source_with(ChannelId(channel), options)?;
    Ok(CSource::new(source))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_source_open(
    stream: *const Stream,
    channel: u64,
    depth: u32,
    source: *mut *mut CSource,
) -> c_int {
    let options = Options { depth, ..USUAL };
    // SAFETY: the caller's promises: null or valid.
    guard(|| unsafe {
        let stream = borrow(stream, "stream")?;
        hand_out(source, "source", || open(stream, channel, options))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_source_open_with(
    stream: *const Stream,
    channel: u64,
    from: *const Options,
    source: *mut *mut CSource,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let stream = borrow(stream, "stream")?;
        let options = sized(from, "options", USUAL)?;
        hand_out(source, "source", || open(stream, channel, options))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_source_close(source: *mut CSource) {
    // SAFETY: null or a source, which the caller gives up.
    unsafe { take_back(source) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_source_at_once_here(source: *const CSource, at_once: c_int) -> c_int {
    guard(|| {
        // SAFETY: null or a source.
        let source = unsafe { borrow(source, "source")? }.source();
        source.set_at_once_here(at_once != 0);
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_source_max_message(source: *const CSource) -> c_int {
    guard(|| {
        // SAFETY: null or a source.
        let max = unsafe { borrow(source, "source")? }.source().max_message();
        Ok(c_int::try_from(max).unwrap_or(c_int::MAX))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_source_lost(source: *const CSource, count: *mut u64) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        *place(count, "count")? = borrow(source, "source")?.source().lost_at_disconnect();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_buffer_get(
    source: *const CSource,
    length: usize,
    timeout_ns: i64,
    buffer: *mut CBuffer,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let out = place(buffer, "buffer")?;
        *out = CBuffer::NONE;
        let source = borrow(source, "source")?;
        source.lend(source.source().buffer_wait(length, wait(timeout_ns)?)?, out);
        Ok(0)
    })
}

/// Takes the buffer from C and sends it in the given way.
///
/// # Safety
/// All pointers are null or valid.
#[inline]
unsafe fn emit(
    source: *const CSource,
    buffer: *mut CBuffer,
    token: *mut i64,
    send: impl FnOnce(&'static Source, Buffer<'static>) -> Result<Token, Error>,
) -> c_int {
    // SAFETY: the caller's promises.
    guard(|| unsafe {
        let source = borrow(source, "source")?;
        let sent = send(source.source(), source.take(place(buffer, "buffer")?)?)?;
        if let Some(token) = token.as_mut() {
            *token = sent.number() as i64;
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_emit(
    source: *const CSource,
    buffer: *mut CBuffer,
    token: *mut i64,
) -> c_int {
    // SAFETY: null or valid.
    unsafe { emit(source, buffer, token, Source::emit) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_emit_at(
    source: *const CSource,
    buffer: *mut CBuffer,
    launch_time_ns: i64,
    token: *mut i64,
) -> c_int {
    let launch = TaiTime::from_nanos(launch_time_ns);
    // SAFETY: null or valid.
    unsafe {
        emit(source, buffer, token, |source, buffer| {
            source.emit_at(buffer, launch)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_emit_more(
    source: *const CSource,
    buffer: *mut CBuffer,
    token: *mut i64,
) -> c_int {
    // SAFETY: null or valid.
    unsafe { emit(source, buffer, token, Source::emit_more) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_emit_copy(
    source: *const CSource,
    data: *const c_void,
    length: usize,
    timeout_ns: i64,
    token: *mut i64,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let source = borrow(source, "source")?.source();
        if data.is_null() && length > 0 {
            return Err(invalid("`data` is NULL although `length` is not 0"));
        }
        let mut buffer = source.buffer_wait(length, wait(timeout_ns)?)?;
        if length > 0 {
            // SAFETY: `length` bytes are readable by the caller's promise, and the buffer has as many. What they are part
            // of may be a received message, never a buffer that was just lent.
            std::ptr::copy_nonoverlapping(data.cast(), buffer.as_mut_ptr(), length);
        }
        let sent = buffer.emit()?;
        if let Some(token) = token.as_mut() {
            *token = sent.number() as i64;
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_forward(
    source: *const CSource,
    sink: *const CSink,
    message: *mut CBuffer,
    timeout_ns: i64,
    token: *mut i64,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let source = borrow(source, "source")?.source();
        let wait = wait(timeout_ns)?;
        let sink = consumed(sink)?;
        let sent = sink.forward(place(message, "message")?, |message| {
            source.forward(message, wait)
        })?;
        if let Some(token) = token.as_mut() {
            *token = sent.number() as i64;
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_source_wait_reader(source: *const CSource, timeout_ns: i64) -> c_int {
    guard(|| {
        // SAFETY: null or a source.
        let source = unsafe { borrow(source, "source")? }.source();
        let count = source.wait_reader(wait(timeout_ns)?)?;
        Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_source_fd(source: *const CSource) -> c_int {
    guard(|| {
        // SAFETY: null or a source.
        let fd = unsafe { borrow(source, "source")? }.source().fd();
        fd.map(|fd| fd.as_raw_fd())
            .ok_or_else(|| invalid("the source was opened without `notify_fd`"))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_source_arm(source: *const CSource, length: usize) -> c_int {
    guard(|| {
        // SAFETY: null or a source.
        let source = unsafe { borrow(source, "source")? }.source();
        if source.fd().is_none() {
            return Err(invalid("the source was opened without `notify_fd`"));
        }
        Ok(source.arm(length).into())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_wake_source(source: *const CSource) -> c_int {
    guard(|| {
        // SAFETY: null or a source; the waker is for any thread.
        unsafe { borrow(source, "source")? }.waker.wake();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_flush(source: *const CSource) -> c_int {
    guard(|| {
        // SAFETY: null or a source.
        unsafe { borrow(source, "source")? }.source().flush();
        Ok(0)
    })
}

/// The token that C has.
pub fn named(token: i64) -> Result<Token, Error> {
    u64::try_from(token)
        .map(Token::from_number)
        .map_err(|_| invalid(&format!("`token` is {token}: takt_emit gives none below 0")))
}

/// `enum takt_outcome`.
pub fn outcome_number(outcome: Outcome) -> c_int {
    match outcome {
        Outcome::Pending => 0,
        Outcome::Sent => 1,
        Outcome::NoSink => 2,
        Outcome::Unreachable => 3,
        Outcome::Lost => 4,
        Outcome::Unknown => 5,
        Outcome::Late => 6,
        Outcome::NotScheduled => 7,
        Outcome::Refused => 8,
        Outcome::Undelivered => 9,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_emit_outcome(source: *const CSource, token: i64) -> c_int {
    guard(|| {
        // SAFETY: null or a source.
        let source = unsafe { borrow(source, "source")? }.source();
        Ok(outcome_number(source.outcome(named(token)?)))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_buffer_abandon(source: *const CSource, buffer: *mut CBuffer) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let source = borrow(source, "source")?;
        let out = place(buffer, "buffer")?;
        // Whatever was made of its length.
        out.length = 0;
        drop(source.take(out)?);
        Ok(0)
    })
}
