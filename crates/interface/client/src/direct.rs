//! Rings between sessions of a trust domain: what a source gives a sink without asking a lane.
//!
//! The runtime hands both the ring, and the sink the source's transmit region, which the sink can only read. Whose blocks
//! a sink has is kept in memory of the source alone: [`Lent`]. All that the other side writes is checked; who writes what
//! cannot be has its ring given up, and is served by the lane again.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use takt_session::layout::{DirectBlock, Release, RxDescriptor};
use takt_session::message::{DirectEnd, Reply};
use takt_shm::{Arena, CHUNK, Consumer, Producer, Region, SinkBell, SinkBellHost};

use crate::attachment::Attachment;
use crate::fork::State;
use crate::lent::Lent;
use crate::mapping::Mapping;

/// A sink that gives nothing back for so long, and has as much as it may have, is served by the lane again.
const PATIENCE: Duration = Duration::from_secs(1);
/// So many wake-ups for nothing since the last message are too many: an honest source causes one at most.
pub(crate) const MOST_NOISE: u32 = 1000;

/// What the runtime has told of rings and their handles have not heard yet, of one attachment.
#[derive(Default)]
pub(crate) struct Mail {
    /// The session's state under that attachment: handles that are bound to another hear nothing of it.
    state: Option<State>,
    sources: HashMap<u32, VecDeque<SourceNews>>,
    /// Of each sink that is open: one that is closed keeps nothing of others' memory.
    sinks: HashMap<u32, Vec<SinkNews>>,
    ends: HashMap<u32, End>,
    regions: Vec<(u64, Weak<Mapped>)>,
}

/// Which end of a ring this session has.
#[derive(Clone, Copy)]
enum End {
    Source(u32),
    Sink(u32),
}

/// What a source is told.
pub(crate) enum SourceNews {
    Begins(Box<SourceRing>),
    /// The lane serves the sink from this epoch on. `free`: it has none of the source's blocks any more.
    Ends {
        ring: u32,
        epoch: u16,
        free: bool,
    },
    /// What is left of rings that have ended before they were used: the last change.
    Epoch(u16),
}

impl SourceNews {
    /// Adds what is told next. Of a ring that ends before it is used nothing is kept but its epoch: a source that does nothing
    /// hears of any number of them.
    pub(crate) fn add(self, to: &mut VecDeque<Self>) {
        let mut next = self;
        if let Self::Ends { ring, epoch, .. } = next
            && let Some(at) = to.iter().position(|news| news.begins(ring))
        {
            to.remove(at);
            // The last tells of those before it.
            to.retain(|news| !matches!(news, Self::Epoch(_)));
            next = Self::Epoch(epoch);
        }
        to.push_back(next);
    }

    pub(crate) fn begins(&self, ring: u32) -> bool {
        matches!(self, Self::Begins(begun) if begun.ring == ring)
    }
}

/// What a sink is told.
pub(crate) enum SinkNews {
    Begins(Box<SinkRing>),
    Ends(u32),
}

/// A region of another session's, mapped once for all its rings.
pub(crate) struct Mapped {
    region: Region,
}

impl Mail {
    /// That of the attachment under this state, of which nothing has been told yet.
    pub(crate) fn of(state: State) -> Self {
        Self {
            state: Some(state),
            ..Self::default()
        }
    }

    /// A source or sink of this number is new: what is there of another of its number has nothing to do with it.
    pub(crate) fn opens(&mut self, reply: &Reply) {
        match reply {
            Reply::SourceOpened { source, .. } | Reply::FrameSourceOpened { source, .. } => {
                self.sources.remove(source);
                self.ends
                    .retain(|_, end| !matches!(end, End::Source(of) if of == source));
            }
            Reply::SinkOpened { sink, .. } => {
                self.drop_sink(*sink);
                self.sinks.insert(*sink, Vec::new());
            }
            _ => {}
        }
    }

    /// A sink of the attachment under this state is about to be closed. What is told of it from then on is for nobody.
    pub(crate) fn forget_sink(&mut self, state: State, sink: u32) {
        if self.state == Some(state) {
            self.drop_sink(sink);
        }
    }

    fn drop_sink(&mut self, sink: u32) {
        self.sinks.remove(&sink);
        self.ends
            .retain(|_, end| !matches!(end, End::Sink(of) if *of == sink));
    }

    /// What a source is to hear that is bound under this state.
    pub(crate) fn of_source(&mut self, state: State, source: u32) -> VecDeque<SourceNews> {
        let told = match self.state == Some(state) {
            true => self.sources.remove(&source),
            false => None,
        };
        told.unwrap_or_default()
    }

    /// How much a source has not heard yet.
    #[cfg(test)]
    pub(crate) fn of_source_waiting(&self, source: u32) -> usize {
        self.sources.get(&source).map_or(0, VecDeque::len)
    }

    /// The same of a sink.
    pub(crate) fn of_sink(&mut self, state: State, sink: u32) -> Vec<SinkNews> {
        match self.state == Some(state) {
            true => self.sinks.get_mut(&sink).map(std::mem::take),
            false => None,
        }
        .unwrap_or_default()
    }
}

/// What came of something that the runtime said unasked.
pub(crate) enum Heard {
    /// It was not about rings.
    Other,
    /// A handle is to look; of a sink, its number.
    News(Option<u32>),
    /// This ring cannot be used.
    Unusable(u32),
    /// This ring has ended, and its source has not used it and never will.
    Unused(u32),
}

/// Takes note of what is said of rings.
pub(crate) fn hear(
    mail: &mut Mail,
    attachment: &Attachment,
    message: &Reply,
    descriptors: Vec<OwnedFd>,
) -> Heard {
    match *message {
        Reply::DirectSource {
            source,
            ring,
            epoch,
            depth,
        } => {
            mail.ends.insert(ring, End::Source(source));
            let Some(opened) = SourceRing::open(attachment, (ring, epoch, depth), descriptors)
            else {
                return Heard::Unusable(ring);
            };
            let news = SourceNews::Begins(Box::new(opened));
            news.add(mail.sources.entry(source).or_default());
            Heard::News(None)
        }
        Reply::DirectSink {
            sink,
            ring,
            sender,
            depth,
            session,
            region_bytes,
        } => {
            if !mail.sinks.contains_key(&sink) {
                return Heard::News(None);
            }
            mail.ends.insert(ring, End::Sink(sink));
            let opened =
                mail.open_sink((ring, sender, depth), (session, region_bytes), descriptors);
            let Some(opened) = opened else {
                return Heard::Unusable(ring);
            };
            mail.tell_sink(sink, SinkNews::Begins(Box::new(opened)))
        }
        Reply::DirectEnded { ring, epoch, free } => {
            if free {
                attachment.memory.free_ring(ring);
            }
            match mail.ends.get(&ring) {
                Some(&End::Source(source)) => {
                    let told = mail.sources.entry(source).or_default();
                    let unheard = told.iter().any(|news| news.begins(ring));
                    SourceNews::Ends { ring, epoch, free }.add(told);
                    // That its sink is gone by then tells nothing to a source that has given it nothing.
                    if free || unheard {
                        mail.ends.remove(&ring);
                    }
                    match unheard && !free {
                        true => Heard::Unused(ring),
                        false => Heard::News(None),
                    }
                }
                Some(&End::Sink(sink)) => {
                    mail.ends.remove(&ring);
                    mail.tell_sink(sink, SinkNews::Ends(ring))
                }
                None => Heard::News(None),
            }
        }
        _ => Heard::Other,
    }
}

impl Mail {
    fn tell_sink(&mut self, sink: u32, news: SinkNews) -> Heard {
        if let Some(told) = self.sinks.get_mut(&sink) {
            told.push(news);
        }
        Heard::News(Some(sink))
    }

    fn open_sink(
        &mut self,
        ring: (u32, u32, u32),
        (session, bytes): (u64, usize),
        descriptors: Vec<OwnedFd>,
    ) -> Option<SinkRing> {
        let [file, region]: [OwnedFd; 2] = descriptors.try_into().ok()?;
        self.regions.retain(|(_, known)| known.strong_count() > 0);
        let known = self.regions.iter().find(|(of, _)| *of == session);
        let region = match known.and_then(|(_, known)| known.upgrade()) {
            Some(known) => known,
            None => {
                let mapped = Arc::new(Mapped {
                    region: Region::open(region, bytes).ok()?,
                });
                self.regions.push((session, Arc::downgrade(&mapped)));
                mapped
            }
        };
        SinkRing::open(ring, region, file)
    }
}

fn open_ring(file: OwnedFd, depth: u32) -> Option<(Arc<Arena>, DirectBlock)> {
    let block = DirectBlock { depth };
    if !block.is_possible() {
        return None;
    }
    let arena = Arena::open_mapping(file, block.bytes()).ok()?;
    Some((Arc::new(arena), block))
}

/// A source's end of a ring.
pub(crate) struct SourceRing {
    pub(crate) ring: u32,
    pub(crate) epoch: u16,
    depth: u32,
    messages: Producer<RxDescriptor>,
    pub(crate) returns: Option<Consumer<Release>>,
    bell: SinkBellHost,
    pub(crate) lent: Arc<Lent>,
    arena: Arc<Arena>,
    dropped: [u64; 2],
    /// Since when there is no room, and how much had come back by then.
    full: Option<(Instant, u64)>,
    /// It gets the message that is being given out.
    pub(crate) chosen: bool,
    /// It gets none any more: until the lane serves the sink, messages are dropped for it.
    pub(crate) given_up: bool,
}

/// Why a sink does not get a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    Ring = 0,
    Memory = 1,
}

impl SourceRing {
    fn open(
        attachment: &Attachment,
        (ring, epoch, depth): (u32, u16, u32),
        descriptors: Vec<OwnedFd>,
    ) -> Option<Self> {
        let [file]: [OwnedFd; 1] = descriptors.try_into().ok()?;
        let (arena, block) = open_ring(file, depth)?;
        Some(Self {
            ring,
            epoch,
            depth,
            messages: Producer::attach(&arena, DirectBlock::MESSAGES, depth).ok()?,
            returns: Some(Consumer::attach(&arena, block.returns(), depth).ok()?),
            bell: SinkBellHost::attach(&arena, DirectBlock::BELL).ok()?,
            lent: Arc::new(Lent::new(ring, attachment.memory.chunks())),
            arena,
            dropped: [0; 2],
            full: None,
            chosen: false,
            given_up: false,
        })
    }

    /// Whether the sink may have one more block, of which all sinks of the session together may have `most` bytes and have
    /// `lent` by now: each gets what the others leave.
    #[inline]
    pub(crate) fn room(&mut self, most: usize, lent: usize) -> Result<Option<NoRoom>, DirectEnd> {
        if self.given_up {
            return Ok(Some(NoRoom::Ring));
        }
        if self.lent.broken.load(Ordering::Relaxed) {
            return Err(DirectEnd::Impossible);
        }
        if self.lent.count() >= self.depth {
            return Ok(Some(NoRoom::Ring));
        }
        if self.lent.bytes() >= most.saturating_sub(lent) {
            return Ok(Some(NoRoom::Memory));
        }
        match self.messages.free() {
            Ok(0) => Ok(Some(NoRoom::Ring)),
            Ok(_) => {
                self.full = None;
                Ok(None)
            }
            Err(_) => Err(DirectEnd::Impossible),
        }
    }

    /// Counts a message that the sink does not get.
    #[cold]
    pub(crate) fn count_dropped(&mut self, why: NoRoom) {
        let at = why as usize;
        self.dropped[at] += 1;
        let place = [DirectBlock::DROPPED_FULL, DirectBlock::DROPPED_MEMORY][at];
        if let Ok(word) = self.arena.atomic_u64(place) {
            word.store(self.dropped[at], Ordering::Relaxed);
        }
    }

    /// A message is dropped for the sink. Whether the source's patience is over.
    #[cold]
    pub(crate) fn drop_one(&mut self, why: NoRoom) -> Result<(), DirectEnd> {
        self.count_dropped(why);
        // Who has nothing can give nothing back: others have the memory.
        let has_nothing = why == NoRoom::Memory && self.lent.count() == 0;
        if self.given_up || has_nothing {
            return Ok(());
        }
        let returned = self.lent.returned();
        match self.full {
            Some((since, then)) if then == returned => match since.elapsed() > PATIENCE {
                true => Err(DirectEnd::Slow),
                false => Ok(()),
            },
            _ => {
                self.full = Some((Instant::now(), returned));
                Ok(())
            }
        }
    }

    /// Gives the sink a message for which there is room, and wakes it if it sleeps.
    #[inline]
    pub(crate) fn give(&mut self, message: RxDescriptor) -> Result<(), DirectEnd> {
        match self.messages.push(message) {
            Ok(true) => {
                self.bell.ring();
                Ok(())
            }
            _ => Err(DirectEnd::Impossible),
        }
    }
}

/// A sink's end of a ring.
pub(crate) struct SinkRing {
    pub(crate) ring: u32,
    pub(crate) sender: u32,
    pub(crate) depth: u32,
    region: Arc<Mapped>,
    messages: Consumer<RxDescriptor>,
    returns: Producer<Release>,
    pub(crate) bell: Arc<SinkBell>,
    arena: Arc<Arena>,
    /// Messages handed out and not given back.
    pub(crate) held: u32,
    pub(crate) delivered: u64,
    /// Nothing more comes.
    pub(crate) ended: bool,
    /// The source has written what cannot be: nothing is taken any more.
    pub(crate) broken: bool,
    pub(crate) noise: u32,
}

impl SinkRing {
    fn open(
        (ring, sender, depth): (u32, u32, u32),
        region: Arc<Mapped>,
        file: OwnedFd,
    ) -> Option<Self> {
        let (arena, block) = open_ring(file, depth)?;
        Some(Self {
            ring,
            sender,
            depth,
            region,
            messages: Consumer::attach(&arena, DirectBlock::MESSAGES, depth).ok()?,
            returns: Producer::attach(&arena, block.returns(), depth).ok()?,
            bell: Arc::new(SinkBell::attach(&arena, DirectBlock::BELL).ok()?),
            arena,
            held: 0,
            delivered: 0,
            ended: false,
            broken: false,
            noise: 0,
        })
    }

    /// The next message, without taking it. A ring that shows the impossible has one: taking it tells.
    #[inline]
    pub(crate) fn next_sequence(&mut self) -> Option<u64> {
        if self.broken {
            return None;
        }
        match self.messages.peek() {
            Ok(next) => next.map(|next| next.sequence),
            Err(_) => Some(0),
        }
    }

    pub(crate) fn available(&mut self) -> usize {
        if self.broken {
            return 0;
        }
        self.messages.available().map_or(1, |count| count as usize)
    }

    /// The next message, and where it lies. `Ok(None)`: there is none.
    #[inline]
    pub(crate) fn take(
        &mut self,
    ) -> Result<Option<(RxDescriptor, std::ptr::NonNull<u8>)>, DirectEnd> {
        let taken = self.messages.pop().map_err(|_| DirectEnd::Impossible)?;
        let Some(message) = taken else {
            return Ok(None);
        };
        self.messages.release();
        let offset = (message.chunk as usize).saturating_mul(CHUNK);
        let base = self.region.region.at(offset, message.length as usize);
        let base = base.map_err(|_| DirectEnd::Impossible)?;
        self.held += 1;
        self.delivered += 1;
        self.noise = 0;
        let sender = self.sender;
        Ok(Some((RxDescriptor { sender, ..message }, base)))
    }

    /// A message is given back.
    #[inline]
    pub(crate) fn give_back(&mut self, chunk: u32) -> Result<(), DirectEnd> {
        self.held = self.held.saturating_sub(1);
        match self.returns.push(chunk) {
            Ok(true) => Ok(()),
            // Only a source that lends more than the ring holds, or does not know its own index.
            _ => Err(DirectEnd::Impossible),
        }
    }

    /// Messages that the source says it has dropped: for want of room in the ring, and of memory.
    pub(crate) fn dropped(&self) -> [u64; 2] {
        [DirectBlock::DROPPED_FULL, DirectBlock::DROPPED_MEMORY].map(|at| {
            let word = self.arena.atomic_u64(at);
            word.map_or(0, |word| word.load(Ordering::Relaxed))
        })
    }

    /// What keeps the memory of its messages mapped.
    pub(crate) fn mapping(&self) -> Mapping {
        Mapping::of(&self.region)
    }

    /// Nothing of it is wanted any more.
    pub(crate) fn is_over(&mut self) -> bool {
        self.held == 0 && (self.broken || (self.ended && self.available() == 0))
    }
}
