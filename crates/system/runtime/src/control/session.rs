//! A session as the control thread sees it: who it is, what it has opened, what it may.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use takt_session::layout::{
    ABILITIES_OFFSET, APPLICATION_OFFSET, ARENA_MAGIC, ArenaMap, BEFORE_OFFSET, CAN_TELL_ROOM,
    DEFAULT_DEPTH, HEADER_BYTES, LANE_DIRTY_OFFSET, LANE_STATE_OFFSET, LATEST_DEPTH, MAGIC_OFFSET,
    MAX_DEPTH, SAYS_BEFORE, SinkBlock, SourceBlock, VERSION_OFFSET,
};
use takt_session::message::Reply;
use takt_session::printable;
use takt_session::unserved::Counts;
use takt_session::{ChannelId, ErrorCode, Failure, PROTOCOL_VERSION, Qos, SinkMode, transport};
use takt_shm::{Arena, Buddy, CHUNK, LaneBellHost, Newest, Region, RingError, RingLayout};

use super::account::{Charge, Usage};
use super::listener::{FIRST_WITHOUT, check_descriptors};
use super::moves::Moved;
use crate::config::Limits;
use crate::counters::SessionCounters;
use crate::ids::SessionId;
use crate::lane::Carrier;
use crate::lane::session::{LaneSession, SessionParts};
use crate::policing::Policer;
use crate::policy::{Policy, Rates, Trust};
use crate::slots::{SinkSlot, Slot, Slots, SourceSlot, StreamSlot};
use crate::waking::Waking;

/// Bytes of a session's ring region. Pages that are not touched cost nothing.
const RING_BYTES: usize = 8 << 20;
/// Least bytes of a transmit or receive region.
const LEAST_REGION: usize = 64 << 10;
/// Most streams of a session.
const MOST_STREAMS: usize = 1024;

/// A session.
pub struct Session {
    pub id: SessionId,
    pub socket: OwnedFd,
    /// What it takes to wake it by that.
    pub waking: Waking,
    /// Becomes readable when the process dies, whatever it has left open elsewhere.
    pub process: Option<OwnedFd>,
    /// 0: outside this process's PID namespace.
    pub pid: i32,
    pub uid: u32,
    pub name: String,
    pub policy: Arc<Policy>,
    /// Its listener: sessions of one are one tenant to the lanes.
    pub tenant: u32,
    /// What they may send together.
    pub rates: Arc<Rates>,
    /// The same of its declared streams.
    pub policer: Arc<Policer>,
    pub lane: usize,
    /// How it came to its lane, if it was moved there.
    pub moved: Option<Moved>,
    /// It was told that it is moved: it lasts until its application has hung up.
    pub moving: bool,
    /// Its sources wait until what was emitted before it was moved has left.
    pub waits: bool,
    /// Its half of the session, until it opens its first stream: that says which lanes can serve it.
    pub unplaced: Option<Box<LaneSession>>,
    /// When the connection came.
    pub since: Duration,
    pub arena: Option<AttachedArena>,
    pub streams: Slots<StreamSlot, Stream>,
    pub sources: Slots<SourceSlot, Endpoint>,
    pub sinks: Slots<SinkSlot, Endpoint>,
    pub counters: Arc<SessionCounters>,
    /// Its streams are to be mapped anew.
    pub to_map: bool,
    /// It has ended: the lane was told.
    pub ending: bool,
    /// How far the end is that the application has asked for.
    pub finish: Finish,
    /// The application has left, and its lane sends what it had emitted until then.
    pub leaving_until: Option<Duration>,
    /// The application's end of the descriptor that tells of room at its sources, once it was asked for.
    pub room: Option<OwnedFd>,
    /// Sinks that the lane does not have yet.
    pub opening_sinks: Vec<OpeningSink>,
    /// Requests to close that the lane has not answered: request number by endpoint.
    /// What it is still to be told of its rings.
    pub untold: VecDeque<Reply>,
    /// Messages and bytes of closed sources that it says went by no lane.
    pub direct_before: [u64; 2],
    /// It has not taken what it is told of its streams: its socket is waited for.
    pub telling: bool,
    /// What it has told of datagrams that did not go by the runtime.
    pub unserved: Counts,
    /// What its tenant is charged for it. The last field: it ends when all else is released.
    pub charge: Charge,
}

/// Gives sessions their numbers.
#[derive(Debug)]
pub struct SessionIds(u32);

impl Default for SessionIds {
    fn default() -> Self {
        Self(1)
    }
}

impl SessionIds {
    /// A number that no session has, not 0: all others come round again, and one that has lasted keeps its own.
    pub fn next(&mut self, is_taken: impl Fn(SessionId) -> bool) -> SessionId {
        loop {
            let id = SessionId(self.0);
            self.0 = self.0.wrapping_add(1).max(1);
            if !is_taken(id) {
                return id;
            }
        }
    }
}

/// The end of a session of which the application keeps the connection, for received messages that it still reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It has not asked for one.
    No,
    /// With this request: its lane sends what was emitted.
    Asked(u32),
    /// Its lane has released it. By the time until which it might have sent, the oldest is found.
    Done(Duration),
}

/// What exists once the application has attached.
pub struct AttachedArena {
    pub arena: Arc<Arena>,
    pub map: ArenaMap,
    /// Allocator of the ring region.
    rings: Buddy,
    /// The file of its transmit region, of a session in a trust domain.
    pub region: Option<OwnedFd>,
    /// That has all its pages, and nobody can take them away.
    filled: bool,
    /// Nobody reads it any more: its memory is given back with it, whoever still has it mapped.
    pub abandoned: bool,
}

impl AttachedArena {
    /// Refuses sources until all pages of the transmit region of a session in a trust domain are there. They count
    /// for who touches them first, and the file lasts as long as somebody has it open: what the lane touched would count
    /// for the runtime, after the session as well.
    fn check_filled(&mut self) -> Result<(), Failure> {
        let Some(region) = self.region.as_ref().filter(|_| !self.filled) else {
            return Ok(());
        };
        // This first: without it they could be taken away again.
        if !Region::is_protected(region) {
            return Err(refuse(
                ErrorCode::NotPermitted,
                "the transmit region can still be written by others and lose pages: an application of a trust domain touches all of it (MADV_POPULATE_WRITE), then seals it (F_SEAL_FUTURE_WRITE), then opens sources; a client library of this release does, or attach without a domain".into(),
            ));
        }
        let file = rustix::fs::fstat(region).map_err(|error| {
            refuse(
                ErrorCode::System,
                format!("cannot examine the transmit region: {error}"),
            )
        })?;
        // In units of 512 bytes, stat(2); pages that are swapped out are counted.
        let there = u64::try_from(file.st_blocks)
            .unwrap_or(0)
            .saturating_mul(512);
        if there < self.map.tx_bytes as u64 {
            return Err(refuse(
                ErrorCode::NotPermitted,
                format!(
                    "the transmit region has memory for {there} of its {} bytes: an application of a trust domain touches all of it (MADV_POPULATE_WRITE) before it seals it; a client library of this release does, or attach without a domain",
                    self.map.tx_bytes
                ),
            ));
        }
        self.filled = true;
        Ok(())
    }
}

impl Drop for AttachedArena {
    fn drop(&mut self) {
        // Where it fails the memory goes with the last mapping.
        if self.abandoned {
            let _ = self.arena.empty();
        }
    }
}

/// A stream.
pub struct Stream {
    pub qos: Qos,
    /// Index of the lane's port.
    pub port: usize,
    pub datapath: String,
    pub warning: String,
    /// The rule of the mapping that has chosen it; empty if none has.
    pub rule: String,
    /// How often it was mapped to another datapath since it was opened.
    pub moved: u64,
    /// The application is still to be told where it is now.
    pub untold: bool,
}

impl Stream {
    /// What carries its messages.
    pub fn carrier(&self) -> Carrier {
        Carrier {
            port: self.port,
            only: self.qos.datapath.is_some(),
        }
    }
}

/// A sink on its way to the lane, with what its request will be answered.
pub struct OpeningSink {
    pub sink: SinkSlot,
    pub request: u32,
    pub block: SinkBlock,
    pub notify: Option<OwnedFd>,
}

/// A source or sink.
#[derive(Clone, Copy)]
pub struct Endpoint {
    pub stream: u32,
    /// Its channel; none for a source of frames.
    pub channel: Option<ChannelId>,
    chunk: u32,
    /// Entries of its rings.
    pub depth: u32,
    /// Under which number sinks know it, of a source.
    pub sender: u32,
    /// The last change of its rings to sinks, of a source.
    pub epoch: u16,
    /// Of a sink: it keeps all messages, and waits without a descriptor.
    plain: bool,
    /// Of a source: it gives its messages to no sink itself.
    pub by_lane: bool,
    /// Of a sink: its application knows of it.
    pub told: bool,
    /// Descriptors of this process that it needs.
    descriptors: usize,
    /// The application has closed it; the lane has not released it yet.
    pub closing: bool,
    /// The request that closes it, which is to be answered when the lane has.
    pub asked: Option<u32>,
}

impl Endpoint {
    /// Whether a sink takes its messages from rings, if those are of this source's channel. Who is not told of its sink
    /// yet gets its rings when it is.
    pub fn takes_rings(&self, source: &Self) -> bool {
        self.plain && self.told && self.channel.is_some() && self.channel == source.channel
    }

    fn usage(&self) -> Usage {
        Usage {
            endpoints: 1,
            descriptors: self.descriptors,
            ..Usage::default()
        }
    }
}

fn refuse(code: ErrorCode, message: String) -> Failure {
    Failure::new(code, message)
}

impl Session {
    /// Sends by its socket, without waiting.
    ///
    /// # Errors
    /// The socket's; or that each time wakes so many that it is not done again.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if let Some(failure) = self.waking.failure() {
            return Err(io::Error::other(failure.message));
        }
        self.waking
            .by(|| transport::send(&self.socket, bytes, descriptors, false))
    }

    /// Whether neither it nor the runtime has ended it, or moves it.
    pub fn goes_on(&self) -> bool {
        !self.ending && !self.moving && self.finish == Finish::No
    }

    /// Whether its application says that it can do something besides what its version says.
    pub fn application_can(&self, ability: u32) -> bool {
        let word = self
            .arena
            .as_ref()
            .map(|arena| arena.arena.atomic_u32(APPLICATION_OFFSET));
        let word = word.and_then(Result::ok);
        word.is_some_and(|word| word.load(std::sync::atomic::Ordering::Relaxed) & ability != 0)
    }

    /// The number of the session that it was, as its application says; 0: it is a new one. None: an older one does not say.
    pub fn says_before(&self) -> Option<u64> {
        let arena = self
            .arena
            .as_ref()
            .filter(|_| self.application_can(SAYS_BEFORE))?;
        let word = arena.arena.atomic_u64(BEFORE_OFFSET).ok()?;
        Some(word.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// Notes how many datagrams did not go by the runtime so far; a count that goes back is none.
    pub fn note_unserved(&mut self, counts: &Counts) {
        let more = std::array::from_fn(|at| counts[at].saturating_sub(self.unserved[at]));
        self.unserved = std::array::from_fn(|at| self.unserved[at].saturating_add(more[at]));
        self.charge.add_unserved(&more);
    }

    /// Makes the arena and the lane's half of the session.
    pub fn attach(
        &mut self,
        name: String,
        tx_bytes: u64,
        rx_bytes: u64,
        domain: bool,
        limits: &Limits,
    ) -> Result<(Reply, Vec<OwnedFd>), Failure> {
        if self.arena.is_some() {
            return Err(refuse(
                ErrorCode::Protocol,
                "the session is attached already".into(),
            ));
        }
        let region = |asked: u64, default: usize| -> Result<usize, Failure> {
            let bytes = if asked == 0 {
                default as u64
            } else {
                asked.max(LEAST_REGION as u64)
            };
            // An application may ask for anything: also for what cannot be rounded up.
            let whole_pages = bytes
                .checked_next_multiple_of(4096)
                .and_then(|bytes| usize::try_from(bytes).ok());
            match whole_pages {
                Some(bytes) if bytes <= self.policy.memory => Ok(bytes),
                _ => Err(refuse(
                    ErrorCode::NoMemory,
                    format!(
                        "a region of {bytes} bytes exceeds the {} bytes that tenant `{}` may use: ask for less, or the operator to raise `memory`",
                        self.policy.memory, self.policy.identity
                    ),
                )),
            }
        };
        let map = ArenaMap {
            ring_bytes: RING_BYTES,
            tx_bytes: region(tx_bytes, limits.tx_bytes.min(self.policy.memory / 4))?,
            rx_bytes: region(rx_bytes, limits.rx_bytes.min(self.policy.memory / 4))?,
        };
        if map.total() > self.policy.memory {
            return Err(refuse(
                ErrorCode::NoMemory,
                format!(
                    "an arena of {} bytes exceeds the {} bytes that tenant `{}` may use: ask for smaller regions, or the operator to raise `memory`",
                    map.total(),
                    self.policy.memory,
                    self.policy.identity
                ),
            ));
        }
        let domain = domain && self.policy.trust == Trust::User && self.tenant < FIRST_WITHOUT;
        let memory = Usage {
            memory: map.total(),
            descriptors: usize::from(domain),
            ..Usage::default()
        };
        self.charge.add(&self.policy, memory)?;
        let made = self.make_arena(name, map, domain, limits);
        if made.is_err() {
            self.charge.subtract(memory);
        }
        made
    }

    fn make_arena(
        &mut self,
        name: String,
        map: ArenaMap,
        domain: bool,
        limits: &Limits,
    ) -> Result<(Reply, Vec<OwnedFd>), Failure> {
        let system = |what: &str, error: &dyn std::fmt::Display| {
            refuse(ErrorCode::System, format!("cannot {what}: {error}"))
        };
        let mut arena = Arena::create(&format!("takt-session-{}", self.id), map.total())
            .map_err(|e| system("make the arena", &e))?;
        let region = match domain {
            true => {
                let region = Region::create(&format!("takt-region-{}", self.id), map.tx_bytes)
                    .map_err(|e| system("make the transmit region", &e))?;
                arena
                    .overlay(&region, map.tx_offset(), map.tx_bytes, true)
                    .map_err(|e| system("map the transmit region", &e))?;
                Some(region)
            }
            false => None,
        };
        let arena = Arc::new(arena);
        for (offset, word) in [
            (MAGIC_OFFSET, ARENA_MAGIC),
            (VERSION_OFFSET, PROTOCOL_VERSION.into()),
            (ABILITIES_OFFSET, CAN_TELL_ROOM),
        ] {
            arena
                .atomic_u32(offset)
                .map_err(|e| system("lay out the arena", &e))?
                .store(word, std::sync::atomic::Ordering::Relaxed);
        }
        let bell = LaneBellHost::new(&arena, LANE_STATE_OFFSET, LANE_DIRTY_OFFSET)
            .map_err(|e| system("make the doorbell", &e))?;
        let copy = |fd: std::os::fd::BorrowedFd<'_>| {
            fd.try_clone_to_owned()
                .map_err(|e| system("copy a descriptor", &e))
        };
        let mut descriptors = vec![copy(arena.fd())?, copy(bell.fd().as_fd())?];
        if let Some(region) = &region {
            descriptors.push(copy(region.as_fd())?);
        }
        check_descriptors(&descriptors)?;
        // The largest block of either region bounds a message.
        let max_message = limits.max_message.min(map.tx_bytes);
        self.unplaced = Some(Box::new(LaneSession::new(SessionParts {
            id: self.id,
            tenant: self.tenant,
            arena: arena.clone(),
            map,
            bell,
            max_message,
            classes: self.policy.classes,
            rates: self.rates.clone(),
            policer: self.policer.clone(),
            counters: self.counters.clone(),
        })));
        self.name = printable(&name);
        self.arena = Some(AttachedArena {
            arena,
            map,
            rings: Buddy::new(RING_BYTES),
            region,
            filled: false,
            abandoned: false,
        });
        let reply = Reply::Attached {
            session: self.id.0.into(),
            map,
            max_message: max_message as u32,
            domain,
        };
        Ok((reply, descriptors))
    }

    /// Registers a stream; returns its number.
    pub fn add_stream(&mut self, stream: Stream) -> Result<u32, Failure> {
        self.attached()?;
        self.streams
            .insert(stream, MOST_STREAMS)
            .map(|at| at.0 as u32)
            .ok_or_else(|| {
                refuse(
                    ErrorCode::Limit,
                    format!("the session has {MOST_STREAMS} streams, its limit: close some"),
                )
            })
    }

    /// The stream with this number.
    pub fn stream(&self, stream: u32) -> Result<&Stream, Failure> {
        self.streams
            .get(StreamSlot(stream as usize))
            .ok_or_else(|| {
                refuse(
                    ErrorCode::NotFound,
                    format!("the session has no stream {stream}"),
                )
            })
    }

    fn attached(&mut self) -> Result<&mut AttachedArena, Failure> {
        self.arena.as_mut().ok_or_else(|| {
            refuse(
                ErrorCode::Protocol,
                "the first request of a session must be to attach".into(),
            )
        })
    }

    fn depth(asked: u32) -> Result<u32, Failure> {
        match asked {
            0 => Ok(DEFAULT_DEPTH),
            depth if depth.is_power_of_two() && depth <= MAX_DEPTH => Ok(depth),
            depth => Err(refuse(
                ErrorCode::InvalidArgument,
                format!(
                    "a ring of {depth} entries is not possible: use a power of two up to {MAX_DEPTH}"
                ),
            )),
        }
    }

    fn block(&mut self, bytes: usize) -> Result<(u32, usize), Failure> {
        let attached = self.attached()?;
        let chunk = attached.rings.allocate(bytes).ok_or_else(|| {
            refuse(
                ErrorCode::NoMemory,
                format!("no room for {bytes} bytes of rings: close sources or sinks, or use smaller depths"),
            )
        })?;
        Ok((chunk, HEADER_BYTES + chunk as usize * CHUNK))
    }

    /// Allocates and clears a source's rings; returns its number and where they are.
    pub fn add_source(
        &mut self,
        stream: u32,
        channel: Option<ChannelId>,
        depth: u32,
    ) -> Result<(SourceSlot, SourceBlock), Failure> {
        self.stream(stream)?;
        let depth = Self::depth(depth)?;
        self.attached()?.check_filled()?;
        let (chunk, offset) = self.block(SourceBlock::bytes(depth))?;
        let block = SourceBlock { offset, depth };
        let attached = self.attached()?;
        let cleared = RingLayout::reset(&attached.arena, block.tx_ring())
            .and_then(|()| RingLayout::reset(&attached.arena, block.completion_ring()))
            .and_then(|()| {
                let words = attached.arena.slice(block.listeners(), RingLayout::ALIGN)?;
                Ok(words.write_from(0, &[0; RingLayout::ALIGN])?)
            });
        let endpoint = Endpoint {
            stream,
            channel,
            chunk,
            depth,
            sender: 0,
            epoch: 0,
            plain: false,
            by_lane: false,
            told: false,
            descriptors: 0,
            closing: false,
            asked: None,
        };
        let at = self.place(endpoint, cleared, |session| &mut session.sources, "sources")?;
        Ok((at, block))
    }

    /// Notes that the application waits for room at a source. The lane's end of the session's descriptor, if that is new.
    pub fn tell_room(&mut self, source: SourceSlot) -> Result<Option<OwnedFd>, Failure> {
        let Some(endpoint) = self.sources.get_mut(source) else {
            return Err(refuse(
                ErrorCode::NotFound,
                format!("the session has no source {source}"),
            ));
        };
        endpoint.by_lane = true;
        if self.room.is_some() {
            return Ok(None);
        }
        // Both ends of the pair: the application is sent the same again as often as it asks.
        let usage = Usage {
            descriptors: 2,
            ..Usage::default()
        };
        self.charge.add(&self.policy, usage)?;
        let made = notify_pair("the descriptor that tells of room");
        let (ours, theirs) = made.inspect_err(|_| self.charge.subtract(usage))?;
        self.room = Some(theirs);
        Ok(Some(ours))
    }

    /// Allocates and clears a sink's rings; returns its number and where they are.
    pub fn add_sink(
        &mut self,
        stream: u32,
        channel: ChannelId,
        depth: u32,
        notify: bool,
        mode: SinkMode,
    ) -> Result<(SinkSlot, SinkBlock), Failure> {
        self.policy.check_read(channel)?;
        self.stream(stream)?;
        let depth = match (mode.latest, depth) {
            (true, 0) => LATEST_DEPTH,
            // The newest message lies where a ring would.
            (true, depth) => Self::depth(depth)?.max(Newest::CAPACITY),
            (false, depth) => Self::depth(depth)?,
        };
        let (chunk, offset) = self.block(SinkBlock::bytes(depth))?;
        let block = SinkBlock { offset, depth };
        let attached = self.attached()?;
        let cleared = attached
            .arena
            .slice(offset, block.rx_ring() - offset)
            .and_then(|header| header.write_from(0, &[0; 128]))
            .map_err(takt_shm::RingError::from)
            .and_then(|()| RingLayout::reset(&attached.arena, block.rx_ring()))
            .and_then(|()| RingLayout::reset(&attached.arena, block.release_ring()));
        let endpoint = Endpoint {
            stream,
            channel: Some(channel),
            chunk,
            depth,
            sender: 0,
            epoch: 0,
            plain: !notify && !mode.latest,
            by_lane: false,
            told: false,
            // Both ends of the pair: the application's until it is sent.
            descriptors: if notify { 2 } else { 0 },
            closing: false,
            asked: None,
        };
        let at = self.place(endpoint, cleared, |session| &mut session.sinks, "sinks")?;
        Ok((at, block))
    }

    /// Gives an endpoint its number, and charges the tenant for it; or frees its rings.
    fn place<S: Slot>(
        &mut self,
        endpoint: Endpoint,
        cleared: Result<(), RingError>,
        list: impl Fn(&mut Self) -> &mut Slots<S, Endpoint>,
        what: &str,
    ) -> Result<S, Failure> {
        let (limit, usage) = (self.policy.endpoints, endpoint.usage());
        let system = |error| {
            refuse(
                ErrorCode::System,
                format!("cannot lay out the rings: {error}"),
            )
        };
        let charged = cleared
            .map_err(system)
            .and_then(|()| self.charge.add(&self.policy, usage));
        let placed = charged.and_then(|()| {
            list(self).insert(endpoint, limit).ok_or_else(|| {
                self.charge.subtract(usage);
                refuse(
                    ErrorCode::Limit,
                    format!("the session has {limit} {what}, its limit: close some"),
                )
            })
        });
        if placed.is_err() {
            self.free(endpoint.chunk);
        }
        placed
    }

    /// Its streams with sources of a channel.
    pub fn streams_that_write(&self, channel: u64) -> BTreeSet<StreamSlot> {
        let sources = self.sources.iter();
        let writing = sources.filter(|s| s.channel.is_some_and(|c| c.0 == channel) && !s.closing);
        writing.map(|s| StreamSlot(s.stream as usize)).collect()
    }

    /// Messages and bytes that it says went by no lane.
    pub fn direct_messages(&self) -> [u64; 2] {
        let mut sum = self.direct_before;
        for source in self.sources.iter() {
            let told = self.direct_of(source);
            sum = [0, 1].map(|at| sum[at].saturating_add(told[at]));
        }
        sum
    }

    fn direct_of(&self, source: &Endpoint) -> [u64; 2] {
        let Some(attached) = &self.arena else {
            return [0; 2];
        };
        let block = SourceBlock {
            offset: HEADER_BYTES + source.chunk as usize * CHUNK,
            depth: source.depth,
        };
        [block.direct_messages(), block.direct_bytes()].map(|at| {
            let word = attached.arena.atomic_u64(at);
            word.map_or(0, |word| word.load(std::sync::atomic::Ordering::Relaxed))
        })
    }

    /// The lane has released all of it: what is left is the memory, and the connection. Returns the requests that this answers.
    pub fn free_all(&mut self) -> Vec<u32> {
        let mut asked = Vec::new();
        for at in self.sources.places() {
            asked.extend(self.free_source(at).and_then(|endpoint| endpoint.asked));
        }
        for at in self.sinks.places() {
            asked.extend(self.free_sink(at).and_then(|endpoint| endpoint.asked));
        }
        self.streams.take_all();
        asked
    }

    /// The lane has released a source.
    pub fn free_source(&mut self, at: SourceSlot) -> Option<Endpoint> {
        let told = self.direct_of(self.sources.get(at)?);
        self.direct_before = [0, 1].map(|at| self.direct_before[at].saturating_add(told[at]));
        let endpoint = self.sources.remove(at)?;
        self.free(endpoint.chunk);
        self.charge.subtract(endpoint.usage());
        Some(endpoint)
    }

    /// The lane has released a sink.
    pub fn free_sink(&mut self, at: SinkSlot) -> Option<Endpoint> {
        let endpoint = self.sinks.remove(at)?;
        self.free(endpoint.chunk);
        self.charge.subtract(endpoint.usage());
        Some(endpoint)
    }

    fn free(&mut self, chunk: u32) {
        if let Some(attached) = &mut self.arena {
            // Allocated by `block`, freed once.
            let _ = attached.rings.free(chunk);
        }
    }
}

/// A notification: the lane sends a byte, the application polls and drains. A datagram socket,
/// because sending can be told not to wait whatever the other side does to its end. The lane's end takes
/// nothing: the lane closes it, and what an application had put into it, descriptors among it, would be closed
/// with it. Fails when it, which is `what`, cannot be made, or the process has too few descriptors left.
pub fn notify_pair(what: &str) -> Result<(OwnedFd, OwnedFd), Failure> {
    use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
    let made = socketpair(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    );
    let made = made.and_then(|(ours, theirs)| {
        shutdown(&ours, Shutdown::Read)?;
        Ok((ours, theirs))
    });
    let (ours, theirs) = made.map_err(|e| {
        let e = std::io::Error::from(e);
        refuse(ErrorCode::System, format!("cannot make {what}: {e}"))
    })?;
    check_descriptors([&ours, &theirs])?;
    Ok((ours, theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_sessions_come_round_and_none_is_anothers() {
        let mut ids = SessionIds(u32::MAX - 1);
        let mut taken = [1, 2, u32::MAX].map(SessionId).to_vec();
        for expected in [u32::MAX - 1, 3, 4].map(SessionId) {
            let id = ids.next(|id| taken.contains(&id));
            assert_eq!(id, expected);
            taken.push(id);
        }
    }
}
