//! `takt_sink_*`, `takt_consume` and what belongs to them.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use takt_client::{
    CallbackSink, ChannelId, Error, Mapping, Message, NotForwarded, Sink, SinkCounters,
    SinkOptions, Stream, Token, Waker,
};

use crate::error::{guard, invalid};
use crate::loans::Loans;
use crate::pointers::{borrow, fill, given, hand_out, place, sized, take_back, write_text};
use crate::source::{CBuffer, wait};

/// `takt_message_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Info {
    size: usize,
    sequence: u64,
    send_time_ns: i64,
    sender: u32,
    traffic_class: u32,
}

impl Info {
    fn of(message: &Message<'_>) -> Self {
        Self {
            size: size_of::<Self>(),
            sequence: message.sequence(),
            send_time_ns: message.send_time().as_nanos(),
            sender: message.sender(),
            traffic_class: message.class().number().into(),
        }
    }
}

/// `takt_callback`.
type Callback = unsafe extern "C" fn(*mut c_void, *const CBuffer, *const Info);

/// `takt_sink_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    size: usize,
    callback: Option<Callback>,
    user: *mut c_void,
    depth: u32,
    notify_fd: c_int,
    no_local: c_int,
    latest: c_int,
}

const USUAL: Options = Options {
    size: size_of::<Options>(),
    callback: None,
    user: std::ptr::null_mut(),
    depth: 0,
    notify_fd: 0,
    no_local: 0,
    latest: 0,
};

/// `takt_sink_counters`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    size: usize,
    delivered: u64,
    dropped_full: u64,
    dropped_memory: u64,
    lost: u64,
    lost_at_disconnect: u64,
    superseded: u64,
}

impl From<SinkCounters> for Counters {
    fn from(of: SinkCounters) -> Self {
        Self {
            size: size_of::<Self>(),
            delivered: of.delivered,
            dropped_full: of.dropped_full,
            dropped_memory: of.dropped_memory,
            lost: of.lost,
            lost_at_disconnect: of.lost_at_disconnect,
            superseded: of.superseded,
        }
    }
}

/// `takt_sink`: one that the application consumes, with the messages that C holds, or one with a callback.
pub enum CSink {
    /// Consumed.
    Consumed(Consumed),
    /// With a callback.
    Called(CallbackSink),
}

/// A sink and its messages.
pub struct Consumed {
    /// A box of ours. The messages refer to it, so it may not be one that moves with this structure.
    sink: NonNull<Sink>,
    waker: Waker,
    held: RefCell<Loans<Message<'static>>>,
}

impl Consumed {
    fn new(sink: Sink) -> Self {
        Self {
            waker: sink.waker(),
            sink: NonNull::from(Box::leak(Box::new(sink))),
            held: RefCell::new(Loans::new()),
        }
    }

    #[inline]
    fn sink(&self) -> &'static Sink {
        // SAFETY: the box lives until `drop`, before which all messages are dropped; references go
        // nowhere else.
        unsafe { self.sink.as_ref() }
    }

    fn name(&self) -> u64 {
        std::ptr::from_ref(self) as usize as u64
    }

    #[inline]
    fn key(&self, message: &CBuffer) -> Result<u64, Error> {
        let [key, name] = message.reserved;
        if name != self.name() {
            return Err(invalid("the message is not of this sink, or was released"));
        }
        Ok(key)
    }

    /// What keeps the memory of a message mapped that C holds.
    pub fn mapping(&self, of: &CBuffer) -> Result<Option<Mapping>, Error> {
        let key = self.key(of)?;
        Ok(self.held.borrow().get(key).and_then(Message::mapping))
    }

    /// Takes a message from C, with the length that it has there, and sends it; gives it back if that fails.
    pub fn forward(
        &self,
        out: &mut CBuffer,
        send: impl FnOnce(Message<'static>) -> Result<Token, NotForwarded<'static>>,
    ) -> Result<Token, Error> {
        let key = self.key(out)?;
        let taken = self.held.borrow_mut().take(key);
        let Some(mut message) = taken else {
            return Err(invalid("the message was released or forwarded already"));
        };
        if out.length > message.len() {
            let (length, max) = (out.length, message.len());
            self.held.borrow_mut().restore(key, message);
            return Err(Error::TooLarge { length, max });
        }
        message.truncate(out.length);
        match send(message) {
            Ok(token) => {
                *out = CBuffer::NONE;
                Ok(token)
            }
            Err(NotForwarded { error, message }) => {
                self.held.borrow_mut().restore(key, message);
                Err(error)
            }
        }
    }
}

impl Drop for Consumed {
    fn drop(&mut self) {
        *self.held.get_mut() = Loans::new();
        // SAFETY: leaked in `new`, and no message refers to it any more.
        drop(unsafe { Box::from_raw(self.sink.as_ptr()) });
    }
}

/// The sink behind a handle, if it has no callback.
///
/// # Safety
/// Null or a sink.
#[inline]
pub unsafe fn consumed<'a>(sink: *const CSink) -> Result<&'a Consumed, Error> {
    // SAFETY: the caller's promise.
    match unsafe { borrow(sink, "sink")? } {
        CSink::Consumed(consumed) => Ok(consumed),
        CSink::Called(_) => Err(invalid(
            "the sink has a callback: its messages are not consumed",
        )),
    }
}

/// The callback's argument, on its way to the callback's thread.
pub struct User(pub *mut c_void);

// SAFETY: whoever opens a sink with a callback lets the callback's thread use it.
unsafe impl Send for User {}

impl User {
    /// A method, so that a closure takes the whole and not the pointer in it.
    pub fn get(&self) -> *mut c_void {
        self.0
    }
}

fn open(stream: &Stream, channel: u64, options: Options) -> Result<CSink, Error> {
    let channel = ChannelId(channel);
    let how = SinkOptions {
        depth: options.depth,
        notify_fd: options.notify_fd != 0,
        no_local: options.no_local != 0,
        latest: options.latest != 0,
    };
    let Some(callback) = options.callback else {
        return Ok(CSink::Consumed(Consumed::new(
            stream.sink_with(channel, how)?,
        )));
    };
    if how.notify_fd {
        return Err(invalid("a sink has a callback or a descriptor, not both"));
    }
    let user = User(options.user);
    let sink = stream.sink_callback_with(channel, how, move |message| {
        let buffer = CBuffer {
            data: message.as_ptr().cast_mut().cast(),
            length: message.len(),
            reserved: [0; 2],
        };
        let info = Info::of(message);
        // SAFETY: the application's function, with its own argument and values that outlive the call.
        unsafe { callback(user.get(), &raw const buffer, &raw const info) };
    })?;
    Ok(CSink::Called(sink))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_sink_open(
    stream: *const Stream,
    channel: u64,
    callback: Option<Callback>,
    user: *mut c_void,
    sink: *mut *mut CSink,
) -> c_int {
    let options = Options {
        callback,
        user,
        ..USUAL
    };
    // SAFETY: null or valid.
    guard(|| unsafe {
        let stream = borrow(stream, "stream")?;
        hand_out(sink, "sink", || open(stream, channel, options))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_sink_open_with(
    stream: *const Stream,
    channel: u64,
    from: *const Options,
    sink: *mut *mut CSink,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let stream = borrow(stream, "stream")?;
        let options = sized(from, "options", USUAL)?;
        hand_out(sink, "sink", || open(stream, channel, options))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_sink_close(sink: *mut CSink) {
    // SAFETY: null or a sink, which the caller gives up.
    unsafe { take_back(sink) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_data_available(sink: *const CSink) -> c_int {
    guard(|| {
        // SAFETY: null or a sink.
        let count = unsafe { consumed(sink)? }.sink().available();
        Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_sink_wait(sink: *const CSink, timeout_ns: i64) -> c_int {
    guard(|| {
        // SAFETY: null or a sink.
        let sink = unsafe { consumed(sink)? }.sink();
        let count = sink.wait_available(wait(timeout_ns)?)?;
        Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_wake(sink: *const CSink) -> c_int {
    guard(|| {
        // SAFETY: null or a sink; the waker is for any thread.
        unsafe { consumed(sink)? }.waker.wake();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_sink_warning(
    sink: *const CSink,
    text: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: null or a sink; `text` is writable for `size` bytes.
    guard(|| unsafe {
        let warning = match borrow(sink, "sink")? {
            CSink::Consumed(sink) => sink.sink().warning(),
            CSink::Called(sink) => sink.warning(),
        };
        write_text(&warning.unwrap_or_default(), text, size)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_consume(
    sink: *const CSink,
    timeout_ns: i64,
    message: *mut CBuffer,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let out = place(message, "message")?;
        *out = CBuffer::NONE;
        let sink = consumed(sink)?;
        let received = sink.sink().consume(wait(timeout_ns)?)?;
        let (data, length) = (received.as_ptr().cast_mut().cast(), received.len());
        let key = sink.held.borrow_mut().lend(received);
        *out = CBuffer {
            data,
            length,
            reserved: [key, sink.name()],
        };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_message_information(
    sink: *const CSink,
    message: *const CBuffer,
    info: *mut Info,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let sink = consumed(sink)?;
        let key = sink.key(given(message, "message")?)?;
        let held = sink.held.borrow();
        let message = held
            .get(key)
            .ok_or_else(|| invalid("the message was released already"))?;
        fill(info, "info", Info::of(message))?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_release(sink: *const CSink, message: *mut CBuffer) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let out = place(message, "message")?;
        let sink = consumed(sink)?;
        let held = sink.held.borrow_mut().take(sink.key(out)?);
        drop(held.ok_or_else(|| invalid("the message was released already"))?);
        *out = CBuffer::NONE;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_sink_fd(sink: *const CSink) -> c_int {
    guard(|| {
        // SAFETY: null or a sink.
        let fd = unsafe { consumed(sink)? }.sink().fd();
        fd.map(|fd| fd.as_raw_fd())
            .ok_or_else(|| invalid("the sink was opened without `notify_fd`"))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_sink_arm(sink: *const CSink) -> c_int {
    guard(|| {
        // SAFETY: null or a sink.
        let sink = unsafe { consumed(sink)? }.sink();
        if sink.fd().is_none() {
            return Err(invalid("the sink was opened without `notify_fd`"));
        }
        Ok(sink.arm().into())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_sink_read_counters(sink: *const CSink, counters: *mut Counters) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let now = consumed(sink)?.sink().counters();
        fill(counters, "counters", Counters::from(now))?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_sink_failure(sink: *const CSink) -> c_int {
    // SAFETY: null or a sink.
    guard(|| match unsafe { borrow(sink, "sink")? } {
        CSink::Called(sink) => match sink.failure() {
            Some(failure) => Err(Error::Ended(failure)),
            None => Ok(0),
        },
        CSink::Consumed(_) => Err(invalid("the sink has no callback: consuming tells")),
    })
}
