//! Sinks: the reading ends of channels.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use takt_session::contention::Contention;
use takt_session::layout::{MAX_DEPTH, Release, RxDescriptor, SinkBlock, SinkCounter, TX_REGION};
use takt_session::message::{DirectEnd, Request};
use takt_session::{ChannelId, SinkMode};
use takt_shm::{Arena, Consumer, Newest, NewestReader, Producer, RingError, SinkBell, WaitOutcome};

use crate::attachment::Attachment;
use crate::control::{Connection, Link, OpenSink, Shared};
use crate::direct::{MOST_NOISE, SinkNews, SinkRing};
use crate::error::Error;
use crate::fork::{Slot, State, Status};
use crate::gaps::Gaps;
use crate::interrupt::Interrupt;
use crate::mapping::Mapping;
use crate::notify::Notify;
use crate::owner::StreamCore;
use crate::wait::{Spin, Step, Wait};
use crate::wake::Waker;

mod message;

pub use message::Message;

/// How to open a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkOptions {
    /// Most messages that wait or are held at once, a power of two up to 65536; 0: 1024, or 16 with `latest`. Further ones
    /// are dropped and counted.
    pub depth: u32,
    /// A descriptor for an event loop is wanted: [`Sink::fd`].
    pub notify_fd: bool,
    /// What this very session emits is not for this sink.
    pub no_local: bool,
    /// The newest message alone, of whichever source: it takes the place of one that was not consumed, which counts in
    /// [`SinkCounters::superseded`]. For states, of which only the newest counts; see also [`Qos::latest`](crate::Qos::latest),
    /// by which the newest is sent again if it is lost.
    pub latest: bool,
}

impl SinkOptions {
    pub(crate) fn mode(&self) -> SinkMode {
        SinkMode {
            no_local: self.no_local,
            latest: self.latest,
        }
    }
}

/// What happened to the messages of a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkCounters {
    /// Put into the sink.
    pub delivered: u64,
    /// Dropped because `depth` messages waited or were held.
    pub dropped_full: u64,
    /// Dropped because the memory for received messages was used up.
    pub dropped_memory: u64,
    /// Sent on the channel and never arrived, by gaps in sequence numbers.
    pub lost: u64,
    /// Sent while the session was detached, by the gaps in the numbers of the senders heard before. Not counted by a
    /// sink of the newest message alone, which misses nothing by what was sent before it.
    pub lost_at_disconnect: u64,
    /// Delivered, and replaced by newer ones before they were consumed: [`SinkOptions::latest`].
    pub superseded: u64,
}

/// A reading end of a channel.
///
/// `Send`, not `Sync`: one thread at a time. Each sink of a channel gets every message.
pub struct Sink {
    key: u32,
    channel: ChannelId,
    slot: &'static Slot,
    inner: RefCell<Inner>,
    core: Cell<Contention>,
    /// The state that the last failed call told of.
    told: Cell<State>,
    interrupt: Arc<Interrupt>,
    notify: Option<Arc<Notify>>,
    stream: Arc<StreamCore>,
}

struct Inner {
    binding: Binding,
    /// Former bindings with messages still out.
    retired: Vec<Binding>,
    /// Of former bindings.
    counters: SinkCounters,
    gaps: Gaps,
}

/// A sink at one attachment.
struct Binding {
    /// The session's state while this is the present one.
    state: State,
    attachment: Arc<Attachment>,
    /// Kept for the messages that are lent, also when the application has ended the session.
    connection: Option<Arc<Connection>>,
    rx: Receive,
    release: Producer<Release>,
    bell: Arc<SinkBell>,
    block: SinkBlock,
    /// Messages handed out and not dropped.
    lent: u64,
    /// Its number at the runtime.
    id: u32,
    /// What was last heard of rings.
    heard: u64,
    /// Rings of sources of other sessions, the next to be looked at, and whether the lane comes next.
    rings: Vec<SinkRing>,
    next_ring: usize,
    lane_next: bool,
    /// Messages of a ring that have come before the lane's next, which the same source has emitted later.
    preferred: u32,
    /// Of rings that are gone: delivered, dropped for want of room, and of memory.
    gone: [u64; 3],
    /// The receive ring shows the impossible: not to be read any more.
    broken: bool,
}

/// Where the messages are shown.
enum Receive {
    All(Consumer<RxDescriptor>),
    Newest(NewestReader<RxDescriptor>),
}

impl Receive {
    fn attach(arena: &Arc<Arena>, block: SinkBlock, latest: bool) -> Result<Self, RingError> {
        let offset = block.rx_ring();
        Ok(match latest {
            true => Self::Newest(NewestReader::attach(arena, offset)?),
            false => Self::All(Consumer::attach(arena, offset, block.depth)?),
        })
    }

    fn available(&mut self) -> Result<u32, RingError> {
        match self {
            Self::All(ring) => ring.available(),
            Self::Newest(newest) => Ok(u32::from(newest.has_news())),
        }
    }

    #[inline]
    fn take(&mut self) -> Result<Option<RxDescriptor>, RingError> {
        match self {
            Self::All(ring) => {
                let taken = ring.pop()?;
                if taken.is_some() {
                    ring.release();
                }
                Ok(taken)
            }
            Self::Newest(newest) => newest.take(),
        }
    }
}

impl Binding {
    fn new(link: Link, open: OpenSink) -> Result<Self, Error> {
        let Link {
            socket, attachment, ..
        } = link;
        let OpenSink {
            block,
            bell,
            latest,
            id,
        } = open;
        let depth = block.depth;
        if !depth.is_power_of_two()
            || depth > MAX_DEPTH
            || (latest && depth < Newest::CAPACITY)
            || !attachment.holds_rings(block.offset, SinkBlock::bytes(depth))
        {
            return Err(Error::Protocol(format!(
                "the runtime describes an impossible sink: {block:?}"
            )));
        }
        let broken = |e: RingError| Error::Protocol(format!("the sink's rings: {e}"));
        Ok(Self {
            state: attachment.state,
            rx: Receive::attach(&attachment.arena, block, latest).map_err(broken)?,
            release: Producer::attach(&attachment.arena, block.release_ring(), depth)
                .map_err(broken)?,
            attachment,
            connection: Some(socket),
            bell,
            block,
            lent: 0,
            id,
            heard: 0,
            rings: Vec::new(),
            next_ring: 0,
            lane_next: false,
            preferred: 0,
            gone: [0; 3],
            broken: false,
        })
    }

    fn available(&mut self) -> usize {
        if self.broken {
            return 0;
        }
        // A corrupt ring counts as news: consuming tells.
        let here = self.rx.available().map_or(1, |count| count as usize);
        let rings = self.rings.iter_mut();
        here + rings.map(SinkRing::available).sum::<usize>()
    }

    /// The ring whose message comes next; `None`: the lane's does, if it has one.
    #[inline]
    fn next_of_rings(&mut self) -> Option<usize> {
        let count = self.rings.len();
        // Before the lane's is looked at: what a source gave the lane before it gave this is there then.
        let first = self.next_ring;
        let next_in_turn = |rings: &mut [SinkRing], but: Option<usize>| {
            let places = (0..count).map(|at| (first + at) % count);
            let mut others = places.filter(|at| Some(*at) != but);
            others.find(|at| rings[*at].next_sequence().is_some())
        };
        let found = next_in_turn(&mut self.rings, None);
        let by_lane = match &mut self.rx {
            Receive::All(ring) => ring.peek().ok().flatten(),
            Receive::Newest(_) => None,
        };
        let Some(by_lane) = by_lane else { return found };
        let of_sender = |ring: &SinkRing| ring.sender == by_lane.sender;
        let mut candidate = found;
        if let Some(at) = self.rings.iter().position(of_sender)
            && let Some(sequence) = self.rings[at].next_sequence()
        {
            // What one source has emitted comes in that order. The others take their turns all the same, and what was in its
            // ring before the lane got something is a ring full at most: the numbers are the source's.
            if sequence < by_lane.sequence && self.preferred < self.rings[at].depth {
                self.preferred += u32::from(found == Some(at));
                return found;
            }
            if sequence < by_lane.sequence {
                candidate = None;
            } else if found == Some(at) {
                candidate = next_in_turn(&mut self.rings, Some(at));
            }
        }
        self.lane_next = !self.lane_next;
        candidate = candidate.filter(|_| !self.lane_next);
        if candidate.is_none() {
            self.preferred = 0;
        }
        candidate
    }

    /// Forgets rings that are over. Those of them that have ended at the runtime, too.
    fn tidy(&mut self) -> Vec<u32> {
        let gone = &mut self.gone;
        let mut ended = Vec::new();
        self.rings.retain_mut(|ring| {
            let over = ring.is_over();
            if over {
                add_ring(gone, ring);
                ended.extend(ring.ended.then_some(ring.ring));
            }
            !over
        });
        self.next_ring = 0;
        ended
    }

    fn counters(&self) -> SinkCounters {
        let read = |counter| {
            self.attachment
                .arena
                .atomic_u64(self.block.counter(counter))
                .map_or(0, |word| word.load(Ordering::Relaxed))
        };
        let mut by_rings = self.gone;
        for ring in &self.rings {
            add_ring(&mut by_rings, ring);
        }
        SinkCounters {
            delivered: read(SinkCounter::Delivered).saturating_add(by_rings[0]),
            dropped_full: read(SinkCounter::DroppedFull).saturating_add(by_rings[1]),
            dropped_memory: read(SinkCounter::DroppedMemory).saturating_add(by_rings[2]),
            lost: read(SinkCounter::Lost),
            lost_at_disconnect: 0,
            superseded: read(SinkCounter::Superseded),
        }
    }
}

impl Sink {
    pub(crate) fn new(
        stream: Arc<StreamCore>,
        key: u32,
        channel: ChannelId,
        notify: Option<Arc<Notify>>,
    ) -> Result<Self, Error> {
        let shared = &stream.owner.shared;
        let bound = shared
            .sink(key)
            .and_then(|(link, open)| Binding::new(link, open));
        let binding = match bound {
            Ok(binding) => binding,
            Err(error) => {
                forget(shared, key);
                return Err(error);
            }
        };
        Ok(Self {
            key,
            channel,
            slot: shared.slot,
            told: Cell::new(binding.state),
            inner: RefCell::new(Inner {
                binding,
                retired: Vec::new(),
                counters: SinkCounters::default(),
                gaps: Gaps::default(),
            }),
            core: Cell::default(),
            interrupt: Arc::default(),
            notify,
            stream,
        })
    }

    /// The channel that it reads.
    pub fn channel(&self) -> ChannelId {
        self.channel
    }

    /// Messages that wait. In the embedded form it also drives the runtime if there is none.
    pub fn available(&self) -> usize {
        if self.slot.forked() {
            return 0;
        }
        let count = self.look();
        match &self.shared().progress {
            Some(progress) if count == 0 => {
                progress.progress();
                self.look()
            }
            _ => count,
        }
    }

    fn look(&self) -> usize {
        let mut inner = self.inner.borrow_mut();
        if self.is_over(&mut inner.binding) {
            return 0;
        }
        self.hear_news(&mut inner.binding);
        let count = inner.binding.available();
        if count == 0 && self.slot.state() != inner.binding.state && self.rebind(&mut inner).is_ok()
        {
            return inner.binding.available();
        }
        count
    }

    /// The next message. Several may be held at once; dropping one releases it.
    ///
    /// What was delivered before the runtime went away still comes. Then a call that waits at that
    /// moment fails with [`Error::Disconnected`]; one that begins later waits for the runtime as well.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with [`Wait::Never`] and no message; [`Error::TimedOut`]; [`Error::Interrupted`] by a
    /// signal or a [`Waker`];
    /// [`Error::Disconnected`], [`Error::Ended`], [`Error::Forked`]; [`Error::Refused`] when the runtime came
    /// back and did not open the sink again; [`Error::Protocol`] when it showed the impossible.
    #[inline]
    pub fn consume(&self, wait: Wait) -> Result<Message<'_>, Error> {
        {
            let mut inner = self.inner.borrow_mut();
            if self.slot.state() == inner.binding.state
                && let Some(message) = self.take(&mut inner)?
            {
                return Ok(message);
            }
        }
        self.wait_for(wait, Self::take)
    }

    /// Waits until a message is there, without taking it; how many are there then. In the embedded form it drives the
    /// runtime.
    ///
    /// # Errors
    /// As [`consume`](Self::consume).
    pub fn wait_available(&self, wait: Wait) -> Result<usize, Error> {
        self.wait_for(wait, |sink, inner| {
            sink.hear_news(&mut inner.binding);
            Ok(Some(inner.binding.available()).filter(|&count| count > 0))
        })
    }

    #[inline]
    fn take(&self, inner: &mut Inner) -> Result<Option<Message<'_>>, Error> {
        let binding = &mut inner.binding;
        if binding.broken {
            return Ok(None);
        }
        self.hear_news(binding);
        if !binding.rings.is_empty()
            && let Some(message) = self.take_direct(inner)
        {
            return Ok(Some(message));
        }
        let binding = &mut inner.binding;
        let descriptor = match binding.rx.take() {
            Ok(Some(descriptor)) => descriptor,
            Ok(None) => return Ok(None),
            Err(error) => return Err(self.broken(binding, format!("receive ring: {error}"))),
        };
        let window = binding
            .attachment
            .received_window(descriptor.chunk, descriptor.length);
        let Some(base) = window.and_then(|window| NonNull::new(window.as_ptr())) else {
            let what = format!(
                "message of {} bytes at chunk {:#x}",
                descriptor.length, descriptor.chunk
            );
            return Err(self.broken(binding, what));
        };
        binding.lent += 1;
        if matches!(binding.rx, Receive::Newest(_)) {
            return Ok(Some(Message {
                sink: self,
                base,
                descriptor,
                state: binding.state,
                lender: None,
            }));
        }
        let counted = || binding.counters().lost;
        inner
            .gaps
            .note(descriptor.sender, descriptor.sequence, counted);
        Ok(Some(Message {
            sink: self,
            base,
            descriptor,
            state: binding.state,
            lender: None,
        }))
    }

    /// The next message of the rings, if the lane has none that comes before.
    fn take_direct(&self, inner: &mut Inner) -> Option<Message<'_>> {
        let binding = &mut inner.binding;
        let at = binding.next_of_rings()?;
        binding.next_ring = at + 1;
        let ring = &mut binding.rings[at];
        let (descriptor, base) = match ring.take() {
            Ok(taken) => taken?,
            Err(reason) => {
                self.give_up(binding, at, reason);
                return None;
            }
        };
        let lender = Some(ring.ring);
        binding.lent += 1;
        let counted = || binding.counters().lost;
        let gaps = &mut inner.gaps;
        gaps.note(descriptor.sender, descriptor.sequence, counted);
        Some(Message {
            sink: self,
            base,
            descriptor,
            state: binding.state,
            lender,
        })
    }

    /// Forgets rings that are over.
    #[cold]
    fn tidy(&self, binding: &mut Binding) {
        let ended = binding.tidy();
        let state = binding.state;
        ended.into_iter().for_each(|ring| self.let_go(state, ring));
    }

    /// Nothing of a ring that has ended is here any more: the sink may get another in its place.
    #[cold]
    fn let_go(&self, state: State, ring: u32) {
        let reason = DirectEnd::Done;
        let request = Request::EndDirect { ring, reason };
        self.shared().post_in(state, request);
    }

    /// Takes nothing more from a ring: the lane serves this sink in its place.
    #[cold]
    fn give_up(&self, binding: &mut Binding, at: usize, reason: DirectEnd) {
        let ring = &mut binding.rings[at];
        ring.broken = true;
        let ring = ring.ring;
        let state = binding.state;
        self.tidy(binding);
        let request = Request::EndDirect { ring, reason };
        self.shared().post_in(state, request);
    }

    /// Looks whether something was told of rings; of the present attachment, that is.
    #[inline]
    fn hear_news(&self, binding: &mut Binding) {
        let news = self.shared().news.load(Ordering::Acquire);
        if news != binding.heard && self.slot.state() == binding.state {
            self.hear(binding, news);
        }
    }

    /// Does what the runtime has told of rings.
    #[cold]
    fn hear(&self, binding: &mut Binding, news: u64) {
        let told = self.shared().lock().mail.of_sink(binding.state, binding.id);
        binding.heard = news;
        for news in told {
            match news {
                SinkNews::Begins(ring) => binding.rings.push(*ring),
                SinkNews::Ends(ring) => {
                    let mut rings = binding.rings.iter_mut();
                    match rings.find(|known| known.ring == ring) {
                        Some(ring) => ring.ended = true,
                        // It was given up here.
                        None => self.let_go(binding.state, ring),
                    }
                }
            }
        }
        self.tidy(binding);
    }

    /// How many sources of other sessions give it their messages themselves, in memory that they share, now; none unless
    /// the listener is a trust domain.
    pub fn direct_sources(&self) -> usize {
        if self.slot.forked() {
            return 0;
        }
        let mut inner = self.inner.borrow_mut();
        let binding = &mut inner.binding;
        if self.slot.state() == binding.state {
            self.hear(binding, self.shared().news.load(Ordering::Acquire));
        }
        binding.rings.iter().filter(|ring| !ring.ended).count()
    }

    #[cold]
    fn broken(&self, binding: &mut Binding, what: String) -> Error {
        binding.broken = true;
        // The memory of a session that has ended is given back, and shows nothing any more.
        if self.slot.state() != binding.state
            && let Err(error) = self.shared().check()
        {
            return error;
        }
        self.shared().violated(binding.state, what)
    }

    /// Whether the application has ended the session: then nothing comes any more, also of what was delivered. The
    /// connection, and with it the memory, is kept no longer than the messages that are lent.
    fn is_over(&self, binding: &mut Binding) -> bool {
        if self.slot.state().status() != Status::Ended || !self.shared().lock().closing {
            return false;
        }
        if binding.lent == 0 {
            binding.connection = None;
        }
        true
    }

    /// Looks with `take`, and waits as long as it finds nothing.
    fn wait_for<'s, T>(
        &'s self,
        wait: Wait,
        take: impl Fn(&'s Self, &mut Inner) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let shared = self.shared();
        let deadline = wait.deadline();
        let mut spin = Spin::new(
            self.stream.qos.resource_use,
            deadline,
            shared.progress.is_some(),
            &self.core,
        );
        // A loss of the runtime during this call is told, however soon it is back.
        let mut attached = self.slot.state() == self.inner.borrow().binding.state;
        let mut progressed = false;
        loop {
            // Before anything of the arena: it is not there in a forked child.
            let state = self.slot.state();
            if state.status() == Status::Forked {
                return Err(Error::Forked);
            }
            let mut inner = self.inner.borrow_mut();
            if self.is_over(&mut inner.binding) {
                self.told.set(state);
                return Err(shared.check().err().unwrap_or(Error::Disconnected));
            }
            if let Some(found) = take(self, &mut inner)? {
                return Ok(found);
            }
            if wait != Wait::Never {
                self.interrupt.take()?;
            }
            if state != inner.binding.state {
                if !attached && state.status() == Status::Attached {
                    self.rebind(&mut inner)?;
                    attached = true;
                    continue;
                }
                drop(inner);
                if attached || wait == Wait::Never || state.status() == Status::Ended {
                    self.told.set(state);
                    return Err(shared.check().err().unwrap_or(Error::Disconnected));
                }
                shared.await_attached(deadline, &self.interrupt)?;
                continue;
            }
            drop(inner);
            if let Some(progress) = shared.progress.as_deref() {
                progress.progress();
                if !progressed {
                    progressed = true;
                    continue;
                }
            }
            if wait == Wait::Never {
                return Err(Error::WouldBlock);
            }
            match spin.step() {
                Step::Poll => {}
                Step::TimedOut => return Err(Error::TimedOut),
                Step::Interrupted => return Err(Error::Interrupted),
                Step::Sleep => self.sleep(deadline)?,
            }
        }
    }

    /// Sleeps until the lane rings, the deadline, a signal, or a reason not to go on.
    fn sleep(&self, deadline: Option<Instant>) -> Result<(), Error> {
        if let Some(progress) = &self.shared().progress {
            progress.sleeps();
        }
        let mut inner = self.inner.borrow_mut();
        let binding = &mut inner.binding;
        let (state, bell) = (binding.state, binding.bell.clone());
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let news = &self.shared().news;
        let heard = binding.heard;
        // Rings that have ended stand behind the others: a source may have something on its way into one still.
        let of = |ended: bool| {
            let rings = binding.rings.iter();
            rings.filter(move |ring| !ring.broken && ring.ended == ended)
        };
        let (numbers, bells): (Vec<u32>, Vec<_>) = of(false)
            .chain(of(true))
            .map(|ring| (ring.ring, ring.bell.clone()))
            .take(SinkBell::MOST_BELLS)
            .unzip();
        let mut others = [&*bell; SinkBell::MOST_BELLS];
        for (place, other) in others.iter_mut().zip(&bells) {
            *place = other;
        }
        let (outcome, bells_rung) = bell.wait_with(
            &others[..bells.len()],
            || {
                binding.available() > 0
                    || self.slot.state() != state
                    || self.interrupt.is_set()
                    || news.load(Ordering::Acquire) != heard
            },
            left,
        );
        if bells_rung != 0 {
            let rung = numbers.iter().enumerate();
            let rung = rung.filter(|(bit, _)| bells_rung & (1 << bit) != 0);
            self.count_noise(binding, rung.map(|(_, number)| *number));
        }
        // What came at the same time is consumed by the next call.
        match outcome {
            WaitOutcome::Interrupted => Err(Error::Interrupted),
            _ => Ok(()),
        }
    }

    /// These rings have rung: those that have nothing to give make noise.
    fn count_noise(&self, binding: &mut Binding, rung: impl Iterator<Item = u32>) {
        for number in rung {
            // Where it is now: one that is given up leaves the list, and others that are over with it.
            let mut rings = binding.rings.iter();
            let Some(at) = rings.position(|ring| ring.ring == number) else {
                continue;
            };
            let ring = &mut binding.rings[at];
            if ring.available() > 0 {
                continue;
            }
            ring.noise += 1;
            if ring.noise > MOST_NOISE {
                self.give_up(binding, at, DirectEnd::Noise);
            }
        }
    }

    /// Ends this sink's waits from other threads.
    pub fn waker(&self) -> Waker {
        Waker::new(&self.stream.owner.shared, &self.interrupt, Some(self.key))
    }

    /// A descriptor that becomes readable when there is something to do, if [`SinkOptions::notify_fd`]
    /// was set. It is the same for the sink's whole life.
    ///
    /// An event loop consumes with [`Wait::Never`] until [`Error::WouldBlock`] (or
    /// [`Error::Disconnected`]), calls [`arm`](Self::arm), and waits for the descriptor if that says true.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.notify.as_ref().map(|notify| notify.as_fd())
    }

    /// Asks for the descriptor to become readable with the next message or change of the session. False:
    /// there is something to consume already, or an error to be told; or the sink has no descriptor.
    /// Armed for one event.
    pub fn arm(&self) -> bool {
        let Some(notify) = self.notify.as_ref().filter(|_| !self.slot.forked()) else {
            return false;
        };
        notify.drain();
        if let Some(progress) = &self.shared().progress {
            progress.sleeps();
        }
        let mut inner = self.inner.borrow_mut();
        let mut state = self.slot.state();
        if state != inner.binding.state {
            let over = self.is_over(&mut inner.binding);
            if !over && inner.binding.available() > 0 {
                return false;
            }
            if state.status() != Status::Attached {
                // The change that ends this state comes as an event of its own.
                return self.told.get() == state;
            }
            if self.rebind(&mut inner).is_err() {
                return false;
            }
            state = inner.binding.state;
        }
        let binding = &mut inner.binding;
        let bell = binding.bell.clone();
        bell.arm_fd(|| binding.broken || binding.available() > 0 || self.slot.state() != state)
    }

    /// What the receive region of the session cannot do for this sink, and what to ask for instead, if something.
    pub fn warning(&self) -> Option<String> {
        self.inner.borrow().binding.attachment.receive_warning()
    }

    /// What happened to the sink's messages since it was opened.
    pub fn counters(&self) -> SinkCounters {
        let inner = self.inner.borrow();
        let now = match self.slot.forked() {
            true => SinkCounters::default(),
            false => inner.binding.counters(),
        };
        SinkCounters {
            lost_at_disconnect: inner.gaps.lost(),
            ..add(&inner.counters, &now)
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.stream.owner.shared
    }

    pub(crate) fn stream(&self) -> &Arc<StreamCore> {
        &self.stream
    }

    /// Moves to the present attachment. Everything of the former one has been consumed.
    #[cold]
    fn rebind(&self, inner: &mut Inner) -> Result<(), Error> {
        let (link, open) = self.shared().sink(self.key)?;
        let old = std::mem::replace(&mut inner.binding, Binding::new(link, open)?);
        inner.counters = add(&inner.counters, &old.counters());
        inner.gaps.detached();
        if old.lent > 0 {
            inner.retired.push(old);
        }
        Ok(())
    }

    /// A message of the present binding is forwarded: the runtime has it.
    pub(crate) fn forwarded(&self) {
        self.inner.borrow_mut().binding.lent -= 1;
    }

    /// Whether messages with this state lie in this attachment.
    pub(crate) fn lends(&self, state: State, attachment: &Arc<Attachment>) -> bool {
        let binding = &self.inner.borrow().binding;
        binding.state == state && Arc::ptr_eq(&binding.attachment, attachment)
    }

    /// What keeps the memory of a message mapped that is held.
    pub(crate) fn mapping(&self, state: State, ring: Option<u32>) -> Option<Mapping> {
        let mut inner = self.inner.borrow_mut();
        let binding = inner.lender(state)?;
        let Some(ring) = ring else {
            return Some(Mapping::of(&binding.attachment));
        };
        let of = binding.rings.iter().find(|known| known.ring == ring);
        of.map(SinkRing::mapping)
    }

    /// A message of a ring is dropped.
    #[inline]
    pub(crate) fn give_back(&self, ring: u32, chunk: u32, state: State) {
        let now = self.slot.state();
        if now.status() == Status::Forked {
            return;
        }
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let Some(binding) = inner.lender(state) else {
            return;
        };
        binding.lent -= 1;
        if let Some(at) = binding.rings.iter().position(|known| known.ring == ring) {
            let known = &mut binding.rings[at];
            match known.give_back(chunk) {
                Err(reason) if !known.broken => self.give_up(binding, at, reason),
                _ if known.ended || known.broken => self.tidy(binding),
                _ => {}
            }
        }
        if state == inner.binding.state {
            if now != state {
                self.is_over(&mut inner.binding);
            }
        } else {
            inner.retired.retain(|old| old.lent > 0);
        }
    }

    /// A message is dropped.
    #[inline]
    pub(crate) fn release(&self, chunk: u32, state: State) {
        let now = self.slot.state();
        if now.status() == Status::Forked {
            return;
        }
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let binding = &mut inner.binding;
        if state != binding.state {
            if let Some(at) = inner.retired.iter().position(|old| old.state == state) {
                inner.retired[at].lent -= 1;
                if inner.retired[at].lent == 0 {
                    inner.retired.swap_remove(at);
                }
            }
            return;
        }
        binding.lent -= 1;
        if now != state && self.is_over(binding) {
            // Nobody takes it back.
            return;
        }
        match binding.release.push(chunk) {
            // The source of the message waits for it.
            Ok(true) if chunk & TX_REGION != 0 => binding.attachment.bell.ring(),
            Ok(true) => {}
            full => {
                let what = match full {
                    Err(error) => format!("release ring: {error}"),
                    Ok(_) => "more messages delivered than the release ring holds".into(),
                };
                // Told by the next call.
                let _ = self.broken(binding, what);
            }
        }
    }
}

impl Inner {
    /// The binding that lends messages of this state.
    fn lender(&mut self, state: State) -> Option<&mut Binding> {
        if self.binding.state == state {
            return Some(&mut self.binding);
        }
        self.retired.iter_mut().find(|old| old.state == state)
    }
}

fn add_ring(sum: &mut [u64; 3], ring: &SinkRing) {
    let [full, memory] = ring.dropped();
    let of_ring = [ring.delivered, full, memory];
    // What the source says is anything.
    *sum = std::array::from_fn(|at| sum[at].saturating_add(of_ring[at]));
}

/// What others have counted is anything, see above.
fn add(a: &SinkCounters, b: &SinkCounters) -> SinkCounters {
    SinkCounters {
        delivered: a.delivered.saturating_add(b.delivered),
        dropped_full: a.dropped_full.saturating_add(b.dropped_full),
        dropped_memory: a.dropped_memory.saturating_add(b.dropped_memory),
        lost: a.lost.saturating_add(b.lost),
        lost_at_disconnect: a.lost_at_disconnect.saturating_add(b.lost_at_disconnect),
        superseded: a.superseded.saturating_add(b.superseded),
    }
}

/// Takes a sink off the record and closes it.
fn forget(shared: &Shared, key: u32) {
    let mut control = shared.lock();
    let record = control.sinks.remove(&key);
    let Some(Ok(open)) = record.map(|record| record.opened) else {
        return;
    };
    // While there is none, the number is that of a former attachment.
    if let Some(state) = control.link.as_ref().map(|link| link.attachment.state) {
        control.mail.forget_sink(state, open.id);
    }
    drop(control);
    shared.post(Request::CloseSink(open.id));
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if !self.slot.forked() {
            forget(self.shared(), self.key);
        }
    }
}
