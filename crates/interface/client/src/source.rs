//! Sources: the writing ends of channels.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use takt_session::contention::Contention;
use takt_session::layout::{
    self, FLAG_AT_ONCE_HERE, FLAG_LAUNCH_TIME, FLAG_NUMBERED, MAX_DEPTH, RX_REGION, RxDescriptor,
    SourceBlock, TxDescriptor,
};
use takt_session::message::{DirectEnd, Reply, Request};
use takt_session::{ChannelId, Reliability};
use takt_shm::{Consumer, Producer};
use takt_time::TaiTime;

use crate::attachment::Attachment;
use crate::control::{Lingering, OpenSource, Shared, unexpected};
use crate::direct::{NoRoom, SourceNews, SourceRing};
use crate::error::Error;
use crate::fork::{Slot, State, Status};
use crate::interrupt::Interrupt;
use crate::mapping::Mapping;
use crate::memory::{Account, Block, Impossible, Outcomes, Stock};
use crate::notify::Event;
use crate::owner::StreamCore;
use crate::progress::Progress;
use crate::sink::Message;
use crate::sys;
use crate::wait::{Spin, Step, Wait};
use crate::wake::Waker;

/// First and longest sleep while waiting for a buffer: completions ring no bell.
const BUFFER_SLEEP: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];

/// First and longest pause between two looks for readers: each is a request.
const READER_LOOK: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// How to open a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceOptions {
    /// Most messages that may be on their way at once, a power of two up to 65536; 0: 1024.
    pub depth: u32,
    /// A descriptor for an event loop is wanted, which tells of room: [`Source::fd`]. Lanes tell of it, so that such a source
    /// gives all its messages to its lane, also in a trust domain. [`Error::Refused`] with [`NotAvailable`](crate::ErrorCode::NotAvailable)
    /// by runtimes of releases that have no such descriptor.
    pub notify_fd: bool,
}

/// Names a message that was emitted, among those of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(u64);

impl Token {
    /// How many messages the source had emitted before.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The token with this number.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// What became of an emitted message. Delivery is at most once, and acknowledged on reliable streams only: there a message is
/// [`Pending`](Self::Pending) until every sink has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It is still on its way, or a sink of this very session holds it.
    Pending,
    /// Handed to all local sinks and to the network for all remote ones. Sinks of other sessions may still hold it.
    Sent,
    /// No sink was known on the channel; the message went nowhere.
    NoSink,
    /// At least one remote sink could not be reached at that moment.
    Unreachable,
    /// Its launch time had passed or could not be met: it was not sent to remote sinks.
    Late,
    /// Its launch time is more than 60 s ahead, or no window of its class is long enough: it was not
    /// sent to remote sinks.
    NotScheduled,
    /// It is outside what the operator has declared of the tenant's streams: it was not sent to remote sinks. Or
    /// it is no frame that the endpoint may send.
    Refused,
    /// At least one sink does without it: its deadline has passed, or the sink or its node took nothing for too long, or
    /// went. Of a reliable stream.
    Undelivered,
    /// The runtime went away before it told.
    Lost,
    /// Too long ago: outcomes are kept for at least the latest two times `depth` messages.
    Unknown,
}

/// A received message that was not forwarded, and why.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotForwarded<'m> {
    /// Why.
    pub error: Error,
    /// The message: it is held as before.
    pub message: Message<'m>,
}

impl From<NotForwarded<'_>> for Error {
    fn from(of: NotForwarded<'_>) -> Self {
        of.error
    }
}

/// The writing end of a channel.
///
/// `Send`, not `Sync`: one thread at a time. Threads that write the same channel open a source each.
pub struct Source {
    key: u32,
    channel: ChannelId,
    class: u8,
    slot: &'static Slot,
    inner: RefCell<Inner>,
    core: Cell<Contention>,
    at_once_here: Cell<bool>,
    /// The state that the last failed call told of.
    told: Cell<State>,
    interrupt: Arc<Interrupt>,
    room: Option<Arc<Event>>,
    stream: Arc<StreamCore>,
}

struct Inner {
    binding: Binding,
    /// Former bindings with buffers still out.
    retired: Vec<Binding>,
    /// Messages emitted ever: the next token.
    emitted: u64,
    /// The same for whoever opens the source again at a runtime that has come back.
    counted: Arc<AtomicU64>,
    /// The next token when the present binding was made.
    bound_at: u64,
    lost: u64,
    /// A buffer that was taken and put aside.
    reserved: Option<Reserved>,
}

/// A buffer without its source.
struct Reserved {
    len: usize,
    capacity: usize,
    block: Block,
    state: State,
}

/// A source at one attachment.
struct Binding {
    /// The session's state while this is the present one.
    state: State,
    attachment: Arc<Attachment>,
    account: Arc<Account>,
    stock: Stock,
    tx: Producer<TxDescriptor>,
    depth: u64,
    /// Buffers handed out and neither emitted nor dropped.
    lent: u64,
    /// Messages given to the lane at this attachment, and of those the ones known to be completed.
    emitted: u64,
    completed: u64,
    /// Its number at the runtime.
    id: u32,
    /// What was last heard of rings.
    heard: u64,
    direct: Direct,
}

/// What a source gives to sinks of its trust domain itself.
#[derive(Default)]
struct Direct {
    rings: Vec<SourceRing>,
    /// What is told and not done yet, and how many messages have been emitted since the first of it came.
    news: VecDeque<SourceNews>,
    waited: u32,
    /// How many messages the lane had been given with the last one that it gives the sinks of rings as well; 0: they have
    /// all of those. And how many have been emitted behind it, which would overtake it in the rings.
    by_lane: u64,
    behind: u32,
    /// Messages since it last looked what has come back.
    unseen: u32,
    /// The last change that it knows of; 0: there was none.
    epoch: u16,
    /// `None`: it can have no rings.
    block: Option<SourceBlock>,
    /// Messages and bytes that went by no lane.
    told: [u64; 2],
    /// By token: 1 + the token of a message that went by no lane.
    alone: Box<[u64]>,
}

/// After so many messages that sinks have got from the source itself, or a large one, it looks what has come back.
const LOOK_AFTER: u32 = 8;
const LARGE: usize = 64 << 10;

/// So many messages are emitted while a new ring, or all of them, wait for the lane to have given the sinks what it was given
/// before, which what is given to the sink itself would overtake. Then there is no memory until it has.
const MOST_BEFORE_RING: u32 = 1024;

impl Direct {
    /// Whether nobody but the sinks of its rings gets what it emits, as far as the lane knows.
    #[inline]
    fn is_alone(&self, arena: &takt_shm::Arena) -> bool {
        let Some(block) = self.block.filter(|_| !self.rings.is_empty()) else {
            return false;
        };
        let word = arena.atomic_u64(block.listeners());
        // Acquire: partner is the store by the lane.
        word.is_ok_and(|word| word.load(Ordering::Acquire) == u64::from(self.epoch) << 32)
    }

    /// A message went by no lane.
    #[inline]
    fn tell(&mut self, arena: &takt_shm::Arena, token: u64, bytes: usize) {
        let Some(block) = self.block else { return };
        self.told = [self.told[0] + 1, self.told[1] + bytes as u64];
        for (at, told) in [block.direct_messages(), block.direct_bytes()]
            .into_iter()
            .zip(self.told)
        {
            if let Ok(word) = arena.atomic_u64(at) {
                word.store(told, Ordering::Relaxed);
            }
        }
        if let Some(mask) = self.alone.len().checked_sub(1) {
            self.alone[token as usize & mask] = token + 1;
        }
    }

    fn went_alone(&self, token: u64) -> bool {
        let mask = self.alone.len().checked_sub(1);
        mask.is_some_and(|mask| self.alone[token as usize & mask] == token + 1)
    }
}

impl Binding {
    fn new(
        attachment: Arc<Attachment>,
        open: &OpenSource,
        may_have_rings: bool,
        outcomes: impl FnOnce(u32) -> Outcomes,
    ) -> Result<Self, Error> {
        let block = open.block;
        let depth = block.depth;
        if !depth.is_power_of_two()
            || depth > MAX_DEPTH
            || !attachment.holds_rings(block.offset, SourceBlock::bytes(depth))
        {
            return Err(Error::Protocol(format!(
                "the runtime describes an impossible source: {block:?}"
            )));
        }
        let broken = |e: takt_shm::RingError| Error::Protocol(format!("the source's rings: {e}"));
        let tx = Producer::attach(&attachment.arena, block.tx_ring(), depth).map_err(broken)?;
        let completions =
            Consumer::attach(&attachment.arena, block.completion_ring(), depth).map_err(broken)?;
        Ok(Self {
            state: attachment.state,
            account: attachment.memory.open(completions, outcomes(depth)),
            attachment,
            stock: Stock::default(),
            tx,
            depth: depth.into(),
            lent: 0,
            emitted: 0,
            completed: 0,
            id: open.id,
            heard: 0,
            direct: Direct {
                block: may_have_rings.then_some(block),
                ..Direct::default()
            },
        })
    }

    fn pending(&self) -> u64 {
        self.emitted - self.completed
    }

    /// Whether the sinks here have the first so many messages that the lane was given. They may hold some of them for ever:
    /// completions do not tell.
    fn lane_has_given(&self, count: u64) -> bool {
        let Some(block) = self.direct.block else {
            return true;
        };
        let word = self.attachment.arena.atomic_u64(block.given());
        // Acquire: partner is the store by the lane.
        word.is_ok_and(|word| word.load(Ordering::Acquire) >= count)
    }

    /// Whether the sinks of rings are still to get something from the lane, behind which they get what is emitted next.
    #[inline]
    fn follows_lane(&mut self) -> bool {
        if self.direct.by_lane == 0 {
            return false;
        }
        let follows = !self.lane_has_given(self.direct.by_lane);
        if !follows {
            (self.direct.by_lane, self.direct.behind) = (0, 0);
        }
        follows
    }

    /// Nothing more is given to the sink of a ring, at once: the epoch alone waits for its turn. `free`: what it has been
    /// given since the reader thread took back what it had comes back as well.
    fn ends(&mut self, ring: u32, free: bool) {
        let mut rings = self.direct.rings.iter_mut();
        let Some(ring) = rings.find(|other| other.ring == ring) else {
            return;
        };
        ring.given_up = true;
        if free {
            let memory = &self.attachment.memory;
            memory.free_lent(&self.account, &mut self.stock, &ring.lent);
        }
    }

    /// Looks for room for one more message under way.
    fn room(&mut self, shared: &Shared) -> Result<(), Error> {
        if self.lent + self.pending() >= self.depth {
            self.harvest(shared)?;
            if self.lent + self.pending() >= self.depth {
                return Err(Error::WouldBlock);
            }
        }
        Ok(())
    }

    /// Looks for completions.
    fn harvest(&mut self, shared: &Shared) -> Result<(), Error> {
        let result = self
            .attachment
            .memory
            .harvest(&self.account, &mut self.stock);
        // Others may have taken some in search of memory.
        self.completed = self.account.completed().min(self.emitted);
        result.map_err(|impossible| shared.violated(self.state, impossible.0))
    }
}

/// Whether a source may give its messages to sinks itself: others, and frames, go by the lane alone, and so does what it is
/// to be told of room for.
fn may_have_rings(open: &OpenSource, reliability: Reliability, tells_room: bool) -> bool {
    open.endpoint.is_none() && reliability == Reliability::BestEffort && !tells_room
}

impl Source {
    pub(crate) fn new(
        stream: Arc<StreamCore>,
        key: u32,
        channel: ChannelId,
        counted: Arc<AtomicU64>,
        room: Option<Arc<Event>>,
    ) -> Result<Self, Error> {
        let shared = &stream.owner.shared;
        let bound = shared.source(key).and_then(|(attachment, open)| {
            let rings = may_have_rings(&open, stream.qos.reliability, room.is_some());
            Binding::new(attachment, &open, rings, |depth| {
                Outcomes::new(2 * depth as usize)
            })
        });
        let binding = match bound {
            Ok(binding) => binding,
            Err(error) => {
                forget(shared, key, None);
                return Err(error);
            }
        };
        Ok(Self {
            key,
            channel,
            class: stream.qos.time_sensitivity.class().number(),
            slot: shared.slot,
            told: Cell::new(binding.state),
            inner: RefCell::new(Inner {
                binding,
                retired: Vec::new(),
                emitted: 0,
                counted,
                bound_at: 0,
                lost: 0,
                reserved: None,
            }),
            core: Cell::default(),
            at_once_here: Cell::new(false),
            interrupt: Arc::default(),
            room,
            stream,
        })
    }

    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// The channel that it writes.
    pub fn channel(&self) -> ChannelId {
        self.channel
    }

    /// Longest message, in bytes.
    pub fn max_message(&self) -> usize {
        self.inner.borrow().binding.attachment.max_message
    }

    /// A buffer of `len` bytes in the memory that is sent from. Its content is arbitrary.
    ///
    /// A source has at most `depth` messages between this call and their completion; dropping the
    /// buffer gives it back.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when none is free; [`Error::TooLarge`]; [`Error::Disconnected`],
    /// [`Error::Ended`], [`Error::Forked`]; [`Error::Refused`] when the runtime came back and did not
    /// open the source again.
    #[inline]
    pub fn buffer(&self, len: usize) -> Result<Buffer<'_>, Error> {
        match self.try_buffer(len) {
            Err(Error::WouldBlock) => self.buffer_after_progress(len),
            result => result,
        }
    }

    #[inline]
    fn try_buffer(&self, len: usize) -> Result<Buffer<'_>, Error> {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        if self.slot.state() != inner.binding.state {
            self.rebind(inner)?;
        }
        let binding = &mut inner.binding;
        let max = binding.attachment.max_message;
        if len > max {
            return Err(Error::TooLarge { length: len, max });
        }
        binding.room(self.shared())?;
        if binding.direct.waited >= MOST_BEFORE_RING && self.waits_for_lane(binding)
            || binding.direct.behind >= MOST_BEFORE_RING && binding.follows_lane()
        {
            return Err(Error::WouldBlock);
        }
        let memory = &binding.attachment.memory;
        let block = match memory.allocate(&binding.account, &mut binding.stock, len) {
            Ok(Some(block)) => block,
            Ok(None) => return Err(Error::WouldBlock),
            Err(impossible) => return Err(self.shared().violated(binding.state, impossible.0)),
        };
        let base = binding.attachment.transmit_window(block);
        let Some(base) = base.and_then(|window| NonNull::new(window.as_ptr())) else {
            return Err(self
                .shared()
                .violated(binding.state, format!("no memory at {block:?}")));
        };
        binding.lent += 1;
        Ok(Buffer {
            source: self,
            base,
            len,
            capacity: block.bytes().min(max),
            block,
            state: binding.state,
        })
    }

    #[cold]
    fn buffer_after_progress(&self, len: usize) -> Result<Buffer<'_>, Error> {
        // A lane that has nothing to do shows completions that others made possible when it looks again.
        self.flush();
        if self.progress().is_some() {
            return self.try_buffer(len);
        }
        Err(Error::WouldBlock)
    }

    /// As [`buffer`](Self::buffer), waiting for one to become free.
    ///
    /// # Errors
    /// As [`buffer`](Self::buffer), and [`Error::TimedOut`], [`Error::Interrupted`]. If the session is detached at the start it
    /// waits for the runtime until the deadline, if it is detached meanwhile it fails at once.
    pub fn buffer_wait(&self, len: usize, wait: Wait) -> Result<Buffer<'_>, Error> {
        self.wait_until(wait, || self.buffer(len))
    }

    /// Attempts it until there is room.
    fn wait_until<T>(
        &self,
        wait: Wait,
        attempt: impl Fn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        match attempt() {
            Err(Error::WouldBlock | Error::Disconnected) if wait != Wait::Never => {}
            result => return result,
        }
        let deadline = wait.deadline();
        self.shared().await_attached(deadline, &self.interrupt)?;
        let mut spin = Spin::new(
            self.stream.qos.resource_use,
            deadline,
            self.progress().is_some(),
            &self.core,
        );
        let [mut pause, longest] = BUFFER_SLEEP;
        loop {
            match attempt() {
                Err(Error::WouldBlock) => {}
                result => return result,
            }
            self.interrupt.take()?;
            match spin.step() {
                Step::Poll => {}
                Step::TimedOut => return Err(Error::TimedOut),
                Step::Interrupted => return Err(Error::Interrupted),
                Step::Sleep => {
                    if let Some(progress) = self.progress() {
                        progress.sleeps();
                    }
                    let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
                    sys::sleep(left.map_or(pause, |left| pause.min(left)))?;
                    pause = (pause * 2).min(longest);
                }
            }
        }
    }

    /// Takes a buffer of `len` bytes and puts it aside, for a message that must be sent even when all memory is in use by then,
    /// such as the last one: [`reserved`](Self::reserved) hands it out. It is one of the `depth` messages meanwhile. A source has one:
    /// nothing happens if there is one of this length at least, and a shorter one is given back.
    ///
    /// # Errors
    /// As [`buffer_wait`](Self::buffer_wait).
    pub fn reserve(&self, len: usize, wait: Wait) -> Result<(), Error> {
        let kept = self.reserved().filter(|kept| kept.len() >= len);
        let buffer = ManuallyDrop::new(match kept {
            Some(kept) => kept,
            None => self.buffer_wait(len, wait)?,
        });
        self.inner.borrow_mut().reserved = Some(Reserved {
            len: buffer.len,
            capacity: buffer.capacity,
            block: buffer.block,
            state: buffer.state,
        });
        Ok(())
    }

    /// The buffer that was [put aside](Self::reserve), with arbitrary content. `None`: there is none, or the runtime that it was of
    /// is gone.
    pub fn reserved(&self) -> Option<Buffer<'_>> {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let kept = inner.reserved.take()?;
        let binding = &inner.binding;
        let base = (kept.state == binding.state && kept.state == self.slot.state())
            .then(|| binding.attachment.transmit_window(kept.block))
            .flatten()
            .and_then(|window| NonNull::new(window.as_ptr()));
        let Some(base) = base else {
            self.take_back(inner, kept.block, kept.state);
            return None;
        };
        Some(Buffer {
            source: self,
            base,
            len: kept.len,
            capacity: kept.capacity,
            block: kept.block,
            state: kept.state,
        })
    }

    /// Sends the buffer's bytes as one message. It never blocks: the room for it came with the buffer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a buffer of another source; [`Error::Disconnected`] also for one
    /// that was taken before the runtime went away; [`Error::Ended`], [`Error::Forked`].
    #[inline]
    pub fn emit(&self, buffer: Buffer<'_>) -> Result<Token, Error> {
        let (token, by_lane) = self.push_out(buffer, self.class, 0, 0)?;
        if by_lane {
            self.flush();
        }
        Ok(token)
    }

    /// As [`emit`](Self::emit), with more to follow at once: the runtime is told with the next `emit` or
    /// [`flush`](Self::flush), or when no buffer is free. Saves a little for each message of a burst, most
    /// in the embedded form, where each telling drives the lane.
    ///
    /// # Errors
    /// As [`emit`](Self::emit).
    #[inline]
    pub fn emit_more(&self, buffer: Buffer<'_>) -> Result<Token, Error> {
        self.push(buffer, self.class, 0, 0)
    }

    /// Tells the runtime of what [`emit_more`](Self::emit_more) has left behind.
    #[inline]
    pub fn flush(&self) {
        if self.slot.forked() {
            return;
        }
        self.inner.borrow().binding.attachment.bell.ring();
        if let Some(progress) = self.progress() {
            progress.progress();
        }
    }

    /// As [`emit`](Self::emit), at `launch`, not as soon as possible: then it is sent to remote sinks, and sinks of this node get
    /// it, unless they [are to get it at once](Self::set_at_once_here). Whether that was possible is its
    /// [outcome](Self::outcome).
    ///
    /// # Errors
    /// As [`emit`](Self::emit).
    #[inline]
    pub fn emit_at(&self, buffer: Buffer<'_>, launch: TaiTime) -> Result<Token, Error> {
        let token = self.push(buffer, self.class, self.timed(), launch.as_nanos())?;
        self.flush();
        Ok(token)
    }

    /// Whether sinks of this node get messages with a launch time at once, from the next one on; they do not if nothing is said.
    pub fn set_at_once_here(&self, at_once: bool) {
        self.at_once_here.set(at_once);
    }

    /// The flags of a message with a launch time.
    #[inline]
    fn timed(&self) -> u8 {
        match self.at_once_here.get() {
            true => FLAG_LAUNCH_TIME | FLAG_AT_ONCE_HERE,
            false => FLAG_LAUNCH_TIME,
        }
    }

    /// Sends a received message as it is, and gives it up. Where sink and source are of one session it is not copied:
    /// it is sent from the memory that it was received into. Otherwise, or if the session itself had emitted it, it is
    /// copied and dropped. Waits for room as [`buffer_wait`](Self::buffer_wait).
    ///
    /// # Errors
    /// As [`buffer_wait`](Self::buffer_wait) and [`emit`](Self::emit), with the message.
    pub fn forward<'m>(&self, message: Message<'m>, wait: Wait) -> Result<Token, NotForwarded<'m>> {
        self.forward_with(message, wait, 0, 0)
    }

    /// As [`forward`](Self::forward), at `launch` as [`emit_at`](Self::emit_at).
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_at<'m>(
        &self,
        message: Message<'m>,
        wait: Wait,
        launch: TaiTime,
    ) -> Result<Token, NotForwarded<'m>> {
        self.forward_with(message, wait, self.timed(), launch.as_nanos())
    }

    fn forward_with<'m>(
        &self,
        message: Message<'m>,
        wait: Wait,
        flags: u8,
        launch_time_ns: i64,
    ) -> Result<Token, NotForwarded<'m>> {
        let in_place = || match self.try_forward(&message, flags, launch_time_ns) {
            Err(Error::WouldBlock) => {
                self.flush();
                self.try_forward(&message, flags, launch_time_ns)
            }
            result => result,
        };
        let copied = || {
            let mut buffer = self.buffer_wait(message.len(), wait)?;
            buffer.copy_from_slice(&message);
            self.push(buffer, self.class, flags, launch_time_ns)
        };
        let token = match self.wait_until(wait, in_place) {
            Ok(Some(token)) => {
                message.forwarded();
                token
            }
            Ok(None) => match copied() {
                Ok(token) => token,
                Err(error) => return Err(NotForwarded { error, message }),
            },
            Err(error) => return Err(NotForwarded { error, message }),
        };
        self.flush();
        Ok(token)
    }

    /// Emits a message from where it was received. `None`: it lies where this source does not send from.
    fn try_forward(
        &self,
        message: &Message<'_>,
        flags: u8,
        launch_time_ns: i64,
    ) -> Result<Option<Token>, Error> {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        if self.slot.state() != inner.binding.state {
            self.rebind(inner)?;
        }
        let binding = &mut inner.binding;
        let Some(chunk) = message
            .received_at()
            .filter(|_| message.sink.lends(message.state, &binding.attachment))
        else {
            return Ok(None);
        };
        binding.room(self.shared())?;
        binding.attachment.memory.forwarded(chunk, true);
        let descriptor = TxDescriptor {
            chunk: chunk | RX_REGION,
            length: message.len() as u32,
            class: self.class,
            // What lies in the receive region no other session reads: the lane gives it to all.
            flags: match binding.direct.epoch {
                0 => flags,
                _ => flags | FLAG_NUMBERED,
            },
            sequence: inner.emitted,
            launch_time_ns,
            ..TxDescriptor::default()
        };
        match self.enqueue(inner, descriptor) {
            Ok(token) => Ok(Some(token)),
            Err(error) => {
                inner.binding.attachment.memory.forwarded(chunk, false);
                Err(error)
            }
        }
    }

    /// Puts a message into the transmit ring, for which there is room.
    #[inline]
    fn enqueue(&self, inner: &mut Inner, descriptor: TxDescriptor) -> Result<Token, Error> {
        let binding = &mut inner.binding;
        let token = inner.emitted;
        let descriptor = TxDescriptor {
            token: token as u32,
            ..descriptor
        };
        match binding.tx.push(descriptor) {
            Ok(true) => {}
            full => {
                let what = match full {
                    Err(error) => format!("transmit ring: {error}"),
                    // Completed messages have left the ring.
                    Ok(_) => "transmit ring full although messages were completed".into(),
                };
                return Err(self.shared().violated(binding.state, what));
            }
        }
        binding.emitted += 1;
        // What waits for a launch time is in no order with the rest.
        let at_once = descriptor.flags & (FLAG_LAUNCH_TIME | FLAG_AT_ONCE_HERE) != FLAG_LAUNCH_TIME;
        if binding.direct.epoch > 0 && descriptor.epoch == 0 && at_once {
            binding.direct.by_lane = binding.emitted;
        }
        inner.emitted += 1;
        inner.counted.store(inner.emitted, Ordering::Relaxed);
        Ok(Token(token))
    }

    #[inline]
    pub(crate) fn push(
        &self,
        buffer: Buffer<'_>,
        class: u8,
        flags: u8,
        launch_time_ns: i64,
    ) -> Result<Token, Error> {
        let (token, _) = self.push_out(buffer, class, flags, launch_time_ns)?;
        Ok(token)
    }

    /// As [`push`](Self::push); also says whether a lane has something to do with it.
    #[inline]
    fn push_out(
        &self,
        buffer: Buffer<'_>,
        class: u8,
        flags: u8,
        launch_time_ns: i64,
    ) -> Result<(Token, bool), Error> {
        if !std::ptr::eq(self, buffer.source) {
            return Err(Error::InvalidArgument(
                "the buffer belongs to another source: emit it there".into(),
            ));
        }
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let binding = &mut inner.binding;
        if self.slot.state() != binding.state || buffer.state != binding.state {
            return Err(self.cannot_emit(inner, buffer));
        }
        let news = self.shared().news.load(Ordering::Acquire);
        if news != binding.heard || !binding.direct.news.is_empty() {
            self.hear(binding, news);
        }
        let buffer = ManuallyDrop::new(buffer);
        let descriptor = TxDescriptor {
            chunk: buffer.block.chunk,
            length: buffer.len as u32,
            class,
            flags,
            launch_time_ns,
            ..TxDescriptor::default()
        };
        binding.lent -= 1;
        if binding.direct.epoch > 0 {
            return self.push_direct(inner, buffer.block, descriptor);
        }
        binding.attachment.memory.emitted(buffer.block);
        let token = self.enqueue(inner, descriptor).inspect_err(|_| {
            let binding = &mut inner.binding;
            let memory = &binding.attachment.memory;
            memory.not_emitted(buffer.block);
            memory.free(&binding.account, &mut binding.stock, buffer.block);
        })?;
        Ok((token, true))
    }

    /// Gives a message to the sinks that have rings, and to the lane if anybody else listens.
    fn push_direct(
        &self,
        inner: &mut Inner,
        block: Block,
        descriptor: TxDescriptor,
    ) -> Result<(Token, bool), Error> {
        let token = inner.emitted;
        let binding = &mut inner.binding;
        // Launch times are kept by lanes.
        let timed = descriptor.flags & FLAG_LAUNCH_TIME != 0;
        let direct = !timed && !binding.follows_lane();
        binding.direct.behind += u32::from(!timed && !direct);
        let by_lane = !direct || !binding.direct.is_alone(&binding.attachment.arena);
        let (memory, account) = (&binding.attachment.memory, &binding.account);
        let mut sinks = 0;
        let mut over: Vec<(u32, DirectEnd)> = Vec::new();
        if direct {
            let most = binding.attachment.most_lent();
            let mut looked_at_all = false;
            let violated =
                |impossible: Impossible| self.shared().violated(binding.state, impossible.0);
            for ring in &mut binding.direct.rings {
                let mut room = ring.room(most, memory.lent());
                if !ring.given_up && !matches!(room, Ok(None)) {
                    // What has come back is not counted yet.
                    memory
                        .harvest(account, &mut binding.stock)
                        .map_err(violated)?;
                    room = ring.room(most, memory.lent());
                }
                if matches!(room, Ok(Some(NoRoom::Memory)))
                    && !looked_at_all
                    && memory.lent() > account.lent()
                {
                    // Nor is what has come back to other sources of the session, which may do nothing.
                    looked_at_all = true;
                    memory.collect_returned().map_err(violated)?;
                    room = ring.room(most, memory.lent());
                }
                let end = match room {
                    Ok(None) => {
                        sinks += 1;
                        ring.chosen = true;
                        continue;
                    }
                    Ok(Some(why)) => ring.drop_one(why).err(),
                    Err(end) => {
                        ring.count_dropped(NoRoom::Ring);
                        Some(end)
                    }
                };
                ring.chosen = false;
                over.extend(end.map(|end| (ring.ring, end)));
            }
        }
        if by_lane {
            memory.emitted(block);
        }
        if sinks > 0 {
            memory.lend(block, sinks);
            let message = RxDescriptor {
                chunk: block.chunk,
                length: descriptor.length,
                class: descriptor.class.into(),
                sender: 0,
                sequence: token,
                send_time_ns: sys::tai_ns(),
            };
            for ring in binding.direct.rings.iter_mut().filter(|ring| ring.chosen) {
                memory.lend_to(&ring.lent, block);
                if let Err(end) = ring.give(message) {
                    ring.count_dropped(NoRoom::Ring);
                    over.push((ring.ring, end));
                    memory.not_lent(account, &mut binding.stock, &ring.lent, block.chunk);
                }
            }
        }
        for (ring, reason) in over {
            self.give_up(binding, ring, reason);
        }
        binding.direct.unseen += 1;
        if binding.direct.unseen >= LOOK_AFTER || block.bytes() > LARGE {
            // Now, while the sinks are at work, and not when the next message waits for memory.
            binding.direct.unseen = 0;
            binding.harvest(self.shared())?;
            binding.stock.looked = true;
        }
        if by_lane {
            let descriptor = TxDescriptor {
                flags: descriptor.flags | FLAG_NUMBERED,
                epoch: if direct {
                    inner.binding.direct.epoch
                } else {
                    0
                },
                sequence: token,
                ..descriptor
            };
            return Ok((self.enqueue(inner, descriptor)?, true));
        }
        let binding = &mut inner.binding;
        let bytes = descriptor.length as usize;
        binding.direct.tell(&binding.attachment.arena, token, bytes);
        if sinks == 0 {
            let memory = &binding.attachment.memory;
            memory.free(&binding.account, &mut binding.stock, block);
        }
        inner.emitted += 1;
        inner.counted.store(inner.emitted, Ordering::Relaxed);
        Ok((Token(token), false))
    }

    /// A ring is given up: its sink gets nothing until the lane serves it, and keeps what it has until it gives it back or
    /// is gone.
    #[cold]
    fn give_up(&self, binding: &mut Binding, ring: u32, reason: DirectEnd) {
        let mut rings = binding.direct.rings.iter_mut();
        if let Some(ring) = rings.find(|other| other.ring == ring) {
            ring.given_up = true;
        }
        let request = Request::EndDirect { ring, reason };
        self.shared().post_in(binding.state, request);
    }

    /// Nothing is given to the sink of a ring any more, nor counted there, which has ended: the sink may let go of it.
    #[cold]
    fn let_go(&self, state: State, ring: u32) {
        let reason = DirectEnd::Done;
        let request = Request::EndDirect { ring, reason };
        self.shared().post_in(state, request);
    }

    /// Does what the runtime has told of rings.
    #[cold]
    fn hear(&self, binding: &mut Binding, news: u64) {
        if news != binding.heard {
            let told = self
                .shared()
                .lock()
                .mail
                .of_source(binding.state, binding.id);
            binding.heard = news;
            if binding.direct.block.is_none() {
                return;
            }
            for next in told {
                if let SourceNews::Ends { ring, free, .. } = next {
                    binding.ends(ring, free);
                    let mut waiting = binding.direct.news.iter();
                    if !free && waiting.any(|news| news.begins(ring)) {
                        self.let_go(binding.state, ring);
                    }
                }
                next.add(&mut binding.direct.news);
            }
        }
        while let Some(next) = binding.direct.news.front() {
            if matches!(next, SourceNews::Begins(_)) && !binding.lane_has_given(binding.emitted) {
                binding.direct.waited = binding.direct.waited.saturating_add(1);
                return;
            }
            binding.direct.waited = 0;
            let direct = &mut binding.direct;
            match direct.news.pop_front() {
                Some(SourceNews::Begins(mut ring)) => {
                    if let Some(returns) = ring.returns.take() {
                        binding.account.add_ring(returns, ring.lent.clone());
                    }
                    if direct.alone.is_empty() {
                        direct.alone = vec![0; 2 * binding.depth as usize].into();
                    }
                    direct.epoch = direct.epoch.max(ring.epoch);
                    direct.rings.push(*ring);
                }
                Some(SourceNews::Ends { ring, epoch, free }) => {
                    direct.epoch = direct.epoch.max(epoch);
                    direct.rings.retain(|other| other.ring != ring);
                    binding.account.end_ring(ring);
                    if !free {
                        self.let_go(binding.state, ring);
                    }
                }
                Some(SourceNews::Epoch(epoch)) => direct.epoch = direct.epoch.max(epoch),
                None => {}
            }
        }
    }

    /// Whether a new ring still waits for what the lane was given before.
    #[cold]
    fn waits_for_lane(&self, binding: &mut Binding) -> bool {
        self.hear(binding, self.shared().news.load(Ordering::Acquire));
        binding.direct.waited > 0
    }

    /// How many sinks of other sessions it gives its messages itself, in memory that they share, now; none unless the
    /// listener is a trust domain.
    pub fn direct_sinks(&self) -> usize {
        if self.slot.forked() {
            return 0;
        }
        let mut inner = self.inner.borrow_mut();
        let binding = &mut inner.binding;
        if self.slot.state() != binding.state {
            return 0;
        }
        self.hear(binding, self.shared().news.load(Ordering::Acquire));
        let rings = binding.direct.rings.iter();
        rings.filter(|ring| !ring.given_up).count()
    }

    #[cold]
    fn cannot_emit(&self, inner: &mut Inner, buffer: Buffer<'_>) -> Error {
        let buffer = ManuallyDrop::new(buffer);
        self.take_back(inner, buffer.block, buffer.state);
        // Attached again: but the buffer is of the former arena.
        self.shared().check().err().unwrap_or(Error::Disconnected)
    }

    /// What became of a message. Takes in completions, which also frees memory. In the embedded form it
    /// also drives the runtime while the message is on its way.
    pub fn outcome(&self, token: Token) -> Outcome {
        match self.known_outcome(token) {
            Outcome::Pending if self.progress().is_some() => {
                self.flush();
                self.known_outcome(token)
            }
            outcome => outcome,
        }
    }

    fn known_outcome(&self, token: Token) -> Outcome {
        if self.slot.forked() {
            return Outcome::Unknown;
        }
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        // An error is for the calls that can tell it.
        let _ = inner.binding.harvest(self.shared());
        let age = inner.emitted.wrapping_sub(token.0);
        let account = &inner.binding.account;
        if age == 0 || age > account.remembered() {
            return Outcome::Unknown;
        }
        match account
            .outcome(token.0 as u32)
            .map(|known| layout::Outcome::from_number(known.outcome.into()))
        {
            Some(Some(layout::Outcome::Sent)) => Outcome::Sent,
            Some(Some(layout::Outcome::NoSink)) => Outcome::NoSink,
            Some(Some(layout::Outcome::Unreachable)) => Outcome::Unreachable,
            Some(Some(layout::Outcome::Late)) => Outcome::Late,
            Some(Some(layout::Outcome::NotScheduled)) => Outcome::NotScheduled,
            Some(Some(layout::Outcome::Refused)) => Outcome::Refused,
            Some(Some(layout::Outcome::Undelivered)) => Outcome::Undelivered,
            Some(None) => Outcome::Unknown,
            None if inner.binding.direct.went_alone(token.0) => Outcome::Sent,
            None if token.0 < inner.bound_at || self.slot.state() != inner.binding.state => {
                Outcome::Lost
            }
            None => Outcome::Pending,
        }
    }

    /// When the last frame of a message that was [`Outcome::Sent`] left; `now` is at most two seconds off.
    pub(crate) fn departed(&self, token: Token, now: TaiTime) -> Option<TaiTime> {
        if self.outcome(token) != Outcome::Sent {
            return None;
        }
        let inner = self.inner.borrow();
        let known = inner.binding.account.outcome(token.0 as u32)?;
        let now = now.as_nanos();
        let ahead = known.departed_ns_low.wrapping_sub(now as u32) as i32;
        Some(TaiTime::from_nanos(now.saturating_add(ahead.into())))
    }

    /// Messages emitted whose outcome is not known yet. In the embedded form it also drives the runtime
    /// while there are any.
    pub fn pending(&self) -> u64 {
        match self.known_pending() {
            0 => 0,
            _ if self.progress().is_some() => {
                self.flush();
                self.known_pending()
            }
            pending => pending,
        }
    }

    fn known_pending(&self) -> u64 {
        if self.slot.forked() {
            return 0;
        }
        let mut inner = self.inner.borrow_mut();
        if self.slot.state() != inner.binding.state {
            // The runtime they were given to is gone: their outcome is known to be `Lost`.
            return 0;
        }
        let _ = inner.binding.harvest(self.shared());
        inner.binding.pending()
    }

    /// Messages of this source whose outcome the runtime did not tell before it went away.
    pub fn lost_at_disconnect(&self) -> u64 {
        let mut inner = self.inner.borrow_mut();
        let state = self.slot.state();
        if state == inner.binding.state || state.status() == Status::Forked {
            return inner.lost;
        }
        let _ = inner.binding.harvest(self.shared());
        inner.lost + inner.binding.pending()
    }

    /// Readers of the channel: sinks of this node that get what this source emits, and lanes of other nodes with
    /// sinks. Whoever is counted gets what is emitted from now on. Asks the runtime.
    ///
    /// # Errors
    /// [`Error::Disconnected`], [`Error::Ended`], [`Error::Forked`], [`Error::TimedOut`].
    pub fn readers(&self) -> Result<u32, Error> {
        let shared = self.shared();
        let (_, open) = shared.source(self.key)?;
        let (answer, _) = shared.request(Request::Readers(open.id))?;
        match answer.reply {
            Reply::Readers(count) => Ok(count),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until the channel has a reader; how many it has then.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with [`Wait::Never`] and none; [`Error::TimedOut`], [`Error::Interrupted`]; as
    /// [`readers`](Self::readers).
    pub fn wait_reader(&self, wait: Wait) -> Result<u32, Error> {
        let deadline = wait.deadline();
        let [mut pause, longest] = READER_LOOK;
        loop {
            match self.readers() {
                Ok(0) => {}
                Err(Error::Disconnected) if wait != Wait::Never => {
                    self.shared().await_attached(deadline, &self.interrupt)?;
                }
                result => return result,
            }
            if wait == Wait::Never {
                return Err(Error::WouldBlock);
            }
            self.interrupt.take()?;
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::TimedOut);
            }
            sys::sleep(left.map_or(pause, |left| pause.min(left)))?;
            pause = (pause * 2).min(longest);
        }
    }

    /// A descriptor that becomes readable when there may be room, if [`SourceOptions::notify_fd`] was set. It is the same for the
    /// source's whole life.
    ///
    /// An event loop calls [`buffer`](Self::buffer) until [`Error::WouldBlock`] (or [`Error::Disconnected`]), then
    /// [`arm`](Self::arm), and waits for the descriptor if that says true.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.room.as_ref().map(|room| room.as_fd())
    }

    /// Asks for the descriptor to become readable with the next room that may do for a message of `len` bytes, or change of the
    /// session. False: there is room already, or an error to be told; or the source has no descriptor. Armed for one event.
    ///
    /// Room comes as messages are complete, of this source or, for its memory is used by all, of another of the session, and
    /// as buffers are dropped. Not as sinks of a trust domain give back what another source of the session has given them
    /// itself: that is found when that source emits.
    pub fn arm(&self, len: usize) -> bool {
        let Some(event) = self.room.as_ref().filter(|_| !self.slot.forked()) else {
            return false;
        };
        event.drain();
        self.flush();
        if let Some(progress) = self.progress() {
            progress.sleeps();
        }
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let mut state = self.slot.state();
        if state != inner.binding.state && state.status() == Status::Attached {
            if self.rebind(inner).is_err() {
                return false;
            }
            state = inner.binding.state;
        }
        let room = &self.shared().room;
        room.arm(event);
        // Nothing more is to be told of a state that is not attached: the change that ends it comes as an event of its own.
        let nothing = match state == inner.binding.state {
            true => {
                let bell = &inner.binding.attachment.room_bell;
                // Others may be armed as well: it is looked for room afterwards, and never disarmed.
                bell.arm_fd(|| false);
                !self.has_room(&mut inner.binding, len)
            }
            false => self.told.get() == state,
        };
        let armed = nothing && self.slot.state() == state;
        if !armed {
            room.disarm(event);
        }
        armed
    }

    /// Whether a call for a buffer would give one, or an error.
    fn has_room(&self, binding: &mut Binding, len: usize) -> bool {
        if len > binding.attachment.max_message {
            return true;
        }
        if let Err(error) = binding.room(self.shared()) {
            return !matches!(error, Error::WouldBlock);
        }
        let memory = &binding.attachment.memory;
        match memory.allocate(&binding.account, &mut binding.stock, len) {
            Ok(Some(block)) => {
                memory.free(&binding.account, &mut binding.stock, block);
                true
            }
            Ok(None) => false,
            Err(impossible) => {
                self.shared().violated(binding.state, impossible.0);
                true
            }
        }
    }

    /// Ends this source's waits from other threads.
    pub fn waker(&self) -> Waker {
        Waker::new(&self.stream.owner.shared, &self.interrupt, None)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.stream.owner.shared
    }

    #[inline]
    fn progress(&self) -> Option<&dyn Progress> {
        self.shared().progress.as_deref()
    }

    /// Moves to the present attachment.
    #[cold]
    fn rebind(&self, inner: &mut Inner) -> Result<(), Error> {
        let shared = self.shared();
        let state = self.slot.state();
        let bound = shared.source(self.key);
        let (attachment, open) = bound.inspect_err(|_| self.told.set(state))?;
        // What the runtime had completed before it went.
        let _ = inner.binding.harvest(shared);
        let old = &inner.binding.account;
        let rings = may_have_rings(&open, self.stream.qos.reliability, self.room.is_some());
        let mut new = Binding::new(attachment, &open, rings, |_| old.take_outcomes())?;
        // Outcomes as well: no runtime told of those.
        new.direct.alone = std::mem::take(&mut inner.binding.direct.alone);
        let old = std::mem::replace(&mut inner.binding, new);
        inner.lost += old.pending();
        inner.bound_at = inner.emitted;
        if old.lent > 0 {
            inner.retired.push(old);
        }
        Ok(())
    }

    /// A buffer comes back that was not emitted.
    fn take_back(&self, inner: &mut Inner, block: Block, state: State) {
        if self.slot.forked() {
            return;
        }
        let binding = &mut inner.binding;
        if state == binding.state {
            binding.lent -= 1;
            let memory = &binding.attachment.memory;
            memory.free(&binding.account, &mut binding.stock, block);
        } else if let Some(at) = inner.retired.iter().position(|old| old.state == state) {
            inner.retired[at].lent -= 1;
            if inner.retired[at].lent == 0 {
                inner.retired.swap_remove(at);
            }
        }
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}

/// Takes a source off the record, and closes it unless messages of `binding` are under way.
fn forget(shared: &Shared, key: u32, binding: Option<&mut Binding>) {
    let mut control = shared.lock();
    let Some(record) = control.sources.remove(&key) else {
        return;
    };
    let (Ok(OpenSource { id, .. }), Some(link)) = (record.opened, &control.link) else {
        return;
    };
    if let Some(binding) = binding.filter(|binding| binding.state == link.attachment.state) {
        let lingering = Lingering {
            stream: record.stream,
            id,
            attachment: binding.attachment.clone(),
            account: binding.account.clone(),
            emitted: binding.emitted,
        };
        if !lingering.is_done() {
            control.lingering.push(lingering);
            drop(control);
            shared.wake_reader();
            return;
        }
    }
    drop(control);
    shared.post(Request::CloseSource(id));
}

impl Drop for Source {
    fn drop(&mut self) {
        drop(self.reserved());
        if !self.slot.forked() {
            if let Some(event) = &self.room {
                self.shared().room.disarm(event);
            }
            let binding = &mut self.inner.get_mut().binding;
            let memory = &binding.attachment.memory;
            for ring in &binding.direct.rings {
                memory.leave(&binding.account, &mut binding.stock, &ring.lent);
            }
            memory.close(&binding.account);
            let shared = self.stream.owner.shared.clone();
            forget(&shared, self.key, Some(&mut self.inner.get_mut().binding));
        }
    }
}

/// Memory for one message, written in place.
///
/// Do not use it in a forked child: its memory is not there.
pub struct Buffer<'s> {
    source: &'s Source,
    base: NonNull<u8>,
    len: usize,
    capacity: usize,
    block: Block,
    state: State,
}

impl Buffer<'_> {
    /// Length of the message, in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // that of the slice
    pub fn len(&self) -> usize {
        self.len
    }

    /// Most bytes that it holds: at least the length that was asked for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes the message longer or shorter.
    ///
    /// # Errors
    /// [`Error::TooLarge`] beyond the [capacity](Self::capacity).
    pub fn set_len(&mut self, len: usize) -> Result<(), Error> {
        if len > self.capacity {
            return Err(Error::TooLarge {
                length: len,
                max: self.capacity,
            });
        }
        self.len = len;
        Ok(())
    }

    /// Makes the message shorter; nothing happens if it is no longer than `len`.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// What keeps its memory mapped also when the buffer is gone.
    pub fn mapping(&self) -> Option<Mapping> {
        let inner = self.source.inner.borrow();
        let mut bindings = std::iter::once(&inner.binding).chain(&inner.retired);
        let of = bindings.find(|binding| binding.state == self.state)?;
        Some(Mapping::of(&of.attachment))
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl<'s> Buffer<'s> {
    /// The source that it is of.
    pub fn source(&self) -> &'s Source {
        self.source
    }

    /// Sends it, see [`Source::emit`].
    ///
    /// # Errors
    /// As [`Source::emit`].
    #[inline]
    pub fn emit(self) -> Result<Token, Error> {
        self.source.emit(self)
    }

    /// Sends it with more to follow, see [`Source::emit_more`].
    ///
    /// # Errors
    /// As [`Source::emit_more`].
    #[inline]
    pub fn emit_more(self) -> Result<Token, Error> {
        self.source.emit_more(self)
    }

    /// Sends it at `launch`, see [`Source::emit_at`].
    ///
    /// # Errors
    /// As [`Source::emit_at`].
    #[inline]
    pub fn emit_at(self, launch: TaiTime) -> Result<Token, Error> {
        self.source.emit_at(self, launch)
    }
}

impl std::fmt::Debug for Buffer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.source
            .take_back(&mut self.source.inner.borrow_mut(), self.block, self.state);
    }
}
