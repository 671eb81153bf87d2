//! `takt_participant_*`, `takt_publisher_*`, `takt_subscriber_*` and what belongs to them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::time::Duration;

use takt_client::{Error, ErrorCode, Failure, Mapping, Session, Token};
use takt_messaging::{
    Encoding, Participant, Publisher, PublisherOptions, Sample, Subscriber, SubscriberCounters,
    SubscriberOptions, SubscriberTask, SubscriberWaker,
};

use crate::error::{guard, invalid};
use crate::loans::Loans;
use crate::pointers::{borrow, fill, hand_out, place, sized, take_back, text, write_text};
use crate::sink::{Counters, User};
use crate::source::{named, outcome_number, wait};
use crate::stream::CQos;

/// An error of messaging as one of the codes.
pub(crate) fn failed(error: takt_messaging::Error) -> Error {
    match error {
        takt_messaging::Error::Channel(error) => error,
        takt_messaging::Error::System { what, source } => Error::System { what, source },
        takt_messaging::Error::NoDirectory { .. } => {
            Error::Refused(Failure::new(ErrorCode::NotPermitted, error.to_string()))
        }
        takt_messaging::Error::TooLongToKeep { .. } => {
            Error::Refused(Failure::new(ErrorCode::TooLarge, error.to_string()))
        }
        error => invalid(&error.to_string()),
    }
}

/// A text that must be there.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn needed<'a>(from: *const c_char, name: &str) -> Result<&'a str, Error> {
    // SAFETY: the caller's promise.
    unsafe { text(from, name)? }.ok_or_else(|| invalid(&format!("`{name}` is NULL")))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_participant_open(
    session: *const Session,
    name: *const c_char,
    participant: *mut *mut Participant,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let session = borrow(session, "session")?;
        let name = text(name, "name")?;
        hand_out(participant, "participant", || {
            let builder = Participant::builder(session.clone());
            let builder = match name {
                Some(name) => builder.name(name),
                None => builder,
            };
            builder.open().map_err(failed)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_participant_close(participant: *mut Participant) {
    // SAFETY: null or a participant, which the caller gives up.
    unsafe { take_back(participant) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_participant_problem(
    participant: *const Participant,
    text: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: null or a participant; `text` is writable for `size` bytes.
    guard(|| unsafe {
        let problem = borrow(participant, "participant")?.problem();
        write_text(&problem.unwrap_or_default(), text, size)
    })
}

/// `takt_topic`.
#[repr(C)]
#[derive(Debug)]
struct CTopic {
    name: *const c_char,
    publishers: u32,
    subscribers: u32,
}

/// `takt_topic_callback`.
type TopicCallback = unsafe extern "C" fn(*mut c_void, *const CTopic);

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_topics(
    participant: *const Participant,
    quiet_ns: u64,
    most_ns: u64,
    callback: Option<TopicCallback>,
    user: *mut c_void,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let participant = borrow(participant, "participant")?;
        let callback = callback.ok_or_else(|| invalid("`callback` is NULL"))?;
        let (quiet, most) = (
            Duration::from_nanos(quiet_ns),
            Duration::from_nanos(most_ns),
        );
        let topics = participant.discover(quiet, most).map_err(failed)?;
        for topic in &topics {
            let Ok(name) = CString::new(topic.name.as_str()) else {
                continue;
            };
            let count = |names: &[String]| u32::try_from(names.len()).unwrap_or(u32::MAX);
            let told = CTopic {
                name: name.as_ptr(),
                publishers: count(&topic.publishers),
                subscribers: count(&topic.subscribers),
            };
            callback(user, &raw const told);
        }
        Ok(c_int::try_from(topics.len()).unwrap_or(c_int::MAX))
    })
}

/// `takt_publisher_options`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PublisherHow {
    size: usize,
    qos: *const CQos,
    depth: u32,
    history: u32,
    encoding: c_int,
    history_bytes: usize,
}

const USUAL_PUBLISHER: PublisherHow = PublisherHow {
    size: size_of::<PublisherHow>(),
    qos: std::ptr::null(),
    depth: 0,
    history: 0,
    encoding: 0,
    history_bytes: 0,
};

fn encoding(number: c_int) -> Result<Encoding, Error> {
    u16::try_from(number).map(Encoding).map_err(|_| {
        invalid(&format!(
            "`options->encoding` is {number}: it must be 0 to 65535"
        ))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_publisher_open(
    participant: *const Participant,
    topic: *const c_char,
    options: *const PublisherHow,
    publisher: *mut *mut Publisher,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let participant = borrow(participant, "participant")?;
        let topic = needed(topic, "topic")?;
        let how = sized(options, "options", USUAL_PUBLISHER)?;
        let options = PublisherOptions {
            qos: sized(how.qos, "options->qos", CQos::USUAL)?.read()?,
            depth: how.depth,
            encoding: encoding(how.encoding)?,
            history: how.history,
            history_bytes: how.history_bytes,
        };
        hand_out(publisher, "publisher", || {
            participant.publisher_with(topic, options).map_err(failed)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_publisher_close(publisher: *mut Publisher) {
    // SAFETY: null or a publisher, which the caller gives up.
    unsafe { take_back(publisher) };
}

/// Tells C which message it was.
///
/// # Safety
/// `token` is null or writable.
unsafe fn told(sent: Token, token: *mut i64) -> Result<c_int, Error> {
    // SAFETY: the caller's promise.
    if let Some(token) = unsafe { token.as_mut() } {
        *token = sent.number() as i64;
    }
    Ok(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_publisher_max_message(publisher: *const Publisher) -> c_int {
    guard(|| {
        // SAFETY: null or a publisher.
        let max = unsafe { borrow(publisher, "publisher")? }.max_message();
        Ok(c_int::try_from(max).unwrap_or(c_int::MAX))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_publish(
    publisher: *const Publisher,
    data: *const c_void,
    length: usize,
    timeout_ns: i64,
    token: *mut i64,
) -> c_int {
    // SAFETY: null or valid; `data` is readable for `length` bytes.
    guard(|| unsafe {
        let publisher = borrow(publisher, "publisher")?;
        if data.is_null() && length > 0 {
            return Err(invalid("`data` is NULL although `length` is not 0"));
        }
        // Called once the length is known to be possible, with memory of that length.
        let copy = |memory: &mut [u8]| {
            if length > 0 {
                // SAFETY: `length` bytes are readable by the caller's promise, and what was just taken to write into is
                // no part of them.
                std::ptr::copy_nonoverlapping(data.cast(), memory.as_mut_ptr(), length);
            }
        };
        let sent = publisher.fill(length, wait(timeout_ns)?, copy);
        told(sent.map_err(failed)?, token)
    })
}

/// `takt_fill`.
type Fill = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> usize;

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_publish_fill(
    publisher: *const Publisher,
    most: usize,
    timeout_ns: i64,
    fill: Option<Fill>,
    user: *mut c_void,
    token: *mut i64,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let publisher = borrow(publisher, "publisher")?;
        let fill = fill.ok_or_else(|| invalid("`fill` is NULL"))?;
        let write = |memory: &mut [u8]| fill(user, memory.as_mut_ptr().cast(), memory.len());
        let sent = publisher.fill_up_to(most, wait(timeout_ns)?, write);
        told(sent.map_err(failed)?, token)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_publish_outcome(publisher: *const Publisher, token: i64) -> c_int {
    guard(|| {
        // SAFETY: null or a publisher.
        let publisher = unsafe { borrow(publisher, "publisher")? };
        Ok(outcome_number(publisher.outcome(named(token)?)))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_publisher_lost(publisher: *const Publisher, count: *mut u64) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let source = borrow(publisher, "publisher")?.source();
        *place(count, "count")? = source.lost_at_disconnect();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_publisher_wait_subscriber(
    publisher: *const Publisher,
    timeout_ns: i64,
) -> c_int {
    guard(|| {
        // SAFETY: null or a publisher.
        let publisher = unsafe { borrow(publisher, "publisher")? };
        let readers = publisher
            .wait_subscriber(wait(timeout_ns)?)
            .map_err(failed)?;
        Ok(c_int::try_from(readers).unwrap_or(c_int::MAX))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_publisher_warning(
    publisher: *const Publisher,
    text: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: null or a publisher; `text` is writable for `size` bytes.
    guard(|| unsafe {
        let warning = borrow(publisher, "publisher")?.warning();
        write_text(&warning.unwrap_or_default(), text, size)
    })
}

/// `takt_sample`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CSample {
    data: *const c_void,
    length: usize,
    topic: *const c_char,
    number: u64,
    send_time_ns: i64,
    publisher: u32,
    encoding: u16,
    kept: u16,
    /// Key of the loan, and who lends.
    reserved: [u64; 2],
}

impl CSample {
    const NONE: Self = Self {
        data: std::ptr::null(),
        length: 0,
        topic: std::ptr::null(),
        number: 0,
        send_time_ns: 0,
        publisher: 0,
        encoding: 0,
        kept: 0,
        reserved: [0; 2],
    };

    fn of(sample: &Sample<'_>, topic: &CStr) -> Self {
        Self {
            data: sample.as_ptr().cast(),
            length: sample.len(),
            topic: topic.as_ptr(),
            number: sample.number(),
            send_time_ns: sample.send_time().as_nanos(),
            publisher: sample.publisher(),
            encoding: sample.encoding().0,
            kept: sample.is_history().into(),
            reserved: [0; 2],
        }
    }
}

/// The names of topics as C has them, which stay as long as their subscriber.
#[derive(Default)]
struct Names(HashMap<String, Box<CStr>>);

impl Names {
    fn get(&mut self, topic: &str) -> &CStr {
        if !self.0.contains_key(topic) {
            // Names have no control characters.
            let name = CString::new(topic).unwrap_or_default();
            self.0.insert(topic.to_owned(), name.into_boxed_c_str());
        }
        &self.0[topic]
    }
}

/// `takt_sample_callback`.
type SampleCallback = unsafe extern "C" fn(*mut c_void, *const CSample);

/// `takt_subscriber_options`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SubscriberHow {
    size: usize,
    qos: *const CQos,
    callback: Option<SampleCallback>,
    user: *mut c_void,
    depth: u32,
    history: u32,
    notify_fd: c_int,
    no_local: c_int,
    latest: c_int,
}

const USUAL_SUBSCRIBER: SubscriberHow = SubscriberHow {
    size: size_of::<SubscriberHow>(),
    qos: std::ptr::null(),
    callback: None,
    user: std::ptr::null_mut(),
    depth: 0,
    history: 0,
    notify_fd: 0,
    no_local: 0,
    latest: 0,
};

/// `takt_subscriber`: one that the application takes from, with the samples that C holds, or one with a callback.
pub enum CSubscriber {
    /// Taken from.
    Taken(Taken),
    /// With a callback.
    Called(SubscriberTask),
}

/// A subscriber and its samples.
pub struct Taken {
    /// A box of ours. The samples refer to it, so it may not be one that moves with this structure.
    subscriber: NonNull<Subscriber>,
    waker: SubscriberWaker,
    held: RefCell<Loans<Sample<'static>>>,
    names: RefCell<Names>,
}

impl Taken {
    fn new(subscriber: Subscriber) -> Self {
        Self {
            waker: subscriber.waker(),
            subscriber: NonNull::from(Box::leak(Box::new(subscriber))),
            held: RefCell::new(Loans::new()),
            names: RefCell::default(),
        }
    }

    fn subscriber(&self) -> &'static Subscriber {
        // SAFETY: the box lives until `drop`, before which all samples are dropped; references go nowhere else.
        unsafe { self.subscriber.as_ref() }
    }

    fn name(&self) -> u64 {
        std::ptr::from_ref(self) as usize as u64
    }

    /// What keeps the memory of a sample mapped that C holds.
    pub fn mapping(&self, of: &CSample) -> Result<Option<Mapping>, Error> {
        let [key, name] = of.reserved;
        if name != self.name() {
            return Err(invalid(
                "the sample is not of this subscriber, or was released",
            ));
        }
        Ok(self.held.borrow().get(key).and_then(Sample::mapping))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        *self.held.get_mut() = Loans::new();
        // SAFETY: leaked in `new`, and no sample refers to it any more.
        drop(unsafe { Box::from_raw(self.subscriber.as_ptr()) });
    }
}

/// The subscriber behind a handle, if it has no callback.
///
/// # Safety
/// Null or a subscriber.
pub unsafe fn taken<'a>(subscriber: *const CSubscriber) -> Result<&'a Taken, Error> {
    // SAFETY: the caller's promise.
    match unsafe { borrow(subscriber, "subscriber")? } {
        CSubscriber::Taken(taken) => Ok(taken),
        CSubscriber::Called(_) => Err(invalid(
            "the subscriber has a callback: its samples are not taken",
        )),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_subscriber_open(
    participant: *const Participant,
    topic: *const c_char,
    options: *const SubscriberHow,
    subscriber: *mut *mut CSubscriber,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let participant = borrow(participant, "participant")?;
        let topic = needed(topic, "topic")?;
        let how = sized(options, "options", USUAL_SUBSCRIBER)?;
        let options = SubscriberOptions {
            qos: sized(how.qos, "options->qos", CQos::USUAL)?.read()?,
            depth: how.depth,
            notify_fd: how.notify_fd != 0,
            no_local: how.no_local != 0,
            latest: how.latest != 0,
            history: how.history,
        };
        hand_out(subscriber, "subscriber", || {
            let Some(callback) = how.callback else {
                let subscriber = participant.subscriber_with(topic, options);
                return Ok(CSubscriber::Taken(Taken::new(subscriber.map_err(failed)?)));
            };
            if options.notify_fd {
                return Err(invalid(
                    "a subscriber has a callback or a descriptor, not both",
                ));
            }
            let (user, mut names) = (User(how.user), Names::default());
            let receive = move |sample: &Sample<'_>| {
                let sample = CSample::of(sample, names.get(sample.topic()));
                // The application's function, with its own argument and values that outlive the call.
                callback(user.get(), &raw const sample);
            };
            let task = participant.subscribe(topic, options, receive);
            Ok(CSubscriber::Called(task.map_err(failed)?))
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_subscriber_close(subscriber: *mut CSubscriber) {
    // SAFETY: null or a subscriber, which the caller gives up.
    unsafe { take_back(subscriber) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_take(
    subscriber: *const CSubscriber,
    timeout_ns: i64,
    sample: *mut CSample,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let out = place(sample, "sample")?;
        *out = CSample::NONE;
        let taken = taken(subscriber)?;
        let sample = taken.subscriber().take(wait(timeout_ns)?).map_err(failed)?;
        *out = CSample::of(&sample, taken.names.borrow_mut().get(sample.topic()));
        out.reserved = [taken.held.borrow_mut().lend(sample), taken.name()];
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_sample_release(
    subscriber: *const CSubscriber,
    sample: *mut CSample,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let out = place(sample, "sample")?;
        let taken = taken(subscriber)?;
        let [key, name] = out.reserved;
        if name != taken.name() {
            return Err(invalid(
                "the sample is not of this subscriber, or was released",
            ));
        }
        let held = taken.held.borrow_mut().take(key);
        drop(held.ok_or_else(|| invalid("the sample was released already"))?);
        *out = CSample::NONE;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_subscriber_wake(subscriber: *const CSubscriber) -> c_int {
    guard(|| {
        // SAFETY: null or a subscriber; the waker is for any thread.
        unsafe { taken(subscriber)? }.waker.wake();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_subscriber_fd(subscriber: *const CSubscriber) -> c_int {
    guard(|| {
        // SAFETY: null or a subscriber.
        let fd = unsafe { taken(subscriber)? }.subscriber().fd();
        fd.map(|fd| fd.as_raw_fd())
            .ok_or_else(|| invalid("the subscriber was opened without `notify_fd`"))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_subscriber_arm(subscriber: *const CSubscriber) -> c_int {
    guard(|| {
        // SAFETY: null or a subscriber.
        let subscriber = unsafe { taken(subscriber)? }.subscriber();
        if subscriber.fd().is_none() {
            return Err(invalid("the subscriber was opened without `notify_fd`"));
        }
        Ok(subscriber.arm().into())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_subscriber_warning(
    subscriber: *const CSubscriber,
    text: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: null or a subscriber; `text` is writable for `size` bytes.
    guard(|| unsafe {
        let warning = taken(subscriber)?.subscriber().warning();
        write_text(&warning.unwrap_or_default(), text, size)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_subscriber_prune(subscriber: *const CSubscriber) -> c_int {
    guard(|| {
        // SAFETY: null or a subscriber.
        let taken = unsafe { taken(subscriber)? };
        if !taken.held.borrow().is_empty() {
            return Err(invalid(
                "samples of the subscriber are held: release them before it is pruned",
            ));
        }
        // SAFETY: as in `subscriber`; one thread at a time calls, and no sample refers to it.
        let pruned = unsafe { (*taken.subscriber.as_ptr()).prune() };
        Ok(c_int::try_from(pruned).unwrap_or(c_int::MAX))
    })
}

/// `takt_subscriber_counters`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubscriberCount {
    size: usize,
    channels: Counters,
    foreign: u64,
    malformed: u64,
    unopened: u64,
}

impl From<SubscriberCounters> for SubscriberCount {
    fn from(counters: SubscriberCounters) -> Self {
        Self {
            size: size_of::<Self>(),
            channels: counters.channels.into(),
            foreign: counters.foreign,
            malformed: counters.malformed,
            unopened: counters.unopened,
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_subscriber_read_counters(
    subscriber: *const CSubscriber,
    counters: *mut SubscriberCount,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let now = taken(subscriber)?.subscriber().counters();
        fill(counters, "counters", SubscriberCount::from(now))?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_subscriber_failure(subscriber: *const CSubscriber) -> c_int {
    // SAFETY: null or a subscriber.
    guard(|| match unsafe { borrow(subscriber, "subscriber")? } {
        CSubscriber::Called(task) => match task.failure() {
            Some(text) => Err(Error::Ended(Failure::new(ErrorCode::Closed, text))),
            None => Ok(0),
        },
        CSubscriber::Taken(_) => Err(invalid("the subscriber has no callback: taking tells")),
    })
}
