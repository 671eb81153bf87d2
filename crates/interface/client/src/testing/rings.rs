//! Rings as the runtime tells of them: in which order, and to whom.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use takt_session::layout::{DirectBlock, FLAG_NUMBERED, Release, RxDescriptor};
use takt_session::message::{DirectEnd, Reply, Request};
use takt_shm::{Arena, CHUNK, Consumer, Producer, Region, RingLayout, SinkBell, SinkBellHost};
use takt_time::TaiTime;

use super::peer::Peer;
use super::{LONG, emit, next, settle};
use crate::{ChannelId, Error, Outcome, Qos, Session, SinkOptions, Source, SourceOptions};

const CHANNEL: ChannelId = ChannelId(5);
const DEPTH: u32 = 16;

/// The sink's end of a ring.
struct Ring {
    number: u32,
    arena: Arc<Arena>,
    messages: Consumer<RxDescriptor>,
    returns: Producer<Release>,
}

impl Ring {
    fn new(number: u32) -> Self {
        Self::named(number, "takt-test")
    }

    fn named(number: u32, name: &str) -> Self {
        let block = DirectBlock { depth: DEPTH };
        let arena = Arc::new(Arena::create(name, block.bytes()).expect("an arena"));
        RingLayout::reset(&arena, DirectBlock::MESSAGES).expect("a ring");
        RingLayout::reset(&arena, block.returns()).expect("a ring");
        let messages = Consumer::attach(&arena, DirectBlock::MESSAGES, DEPTH).expect("a ring");
        let returns = Producer::attach(&arena, block.returns(), DEPTH).expect("a ring");
        Self {
            number,
            arena,
            messages,
            returns,
        }
    }

    /// Tells a source of it.
    fn begin(&self, peer: &Peer, source: u32, epoch: u16) {
        let begins = Reply::DirectSource {
            source,
            ring: self.number,
            epoch,
            depth: DEPTH,
        };
        tell(peer, begins, &[self.arena.fd()]);
    }

    fn end(&self, peer: &Peer, epoch: u16, free: bool) {
        let ring = self.number;
        tell(peer, Reply::DirectEnded { ring, epoch, free }, &[]);
    }

    /// Messages that the source has given it.
    fn got(&mut self) -> Vec<RxDescriptor> {
        let got = std::iter::from_fn(|| self.messages.pop().expect("the ring"));
        let got = got.collect();
        self.messages.release();
        got
    }
}

fn tell(peer: &Peer, message: Reply, descriptors: &[std::os::fd::BorrowedFd<'_>]) {
    peer.with(|host| {
        let served = host.served.as_ref().expect("a session");
        served.tell(message, descriptors);
    });
}

/// The session has heard all that it was told: it hears in order.
fn heard(source: &Source) {
    source.readers().expect("an answer");
}

fn lent(source: &Source) -> usize {
    let control = source.shared().lock();
    let link = control.link.as_ref().expect("attached");
    link.attachment.memory.lent()
}

/// A session whose source 0 had a ring and is closed, and who hears of the ring's end when there is a new source 0.
fn reopened(peer: &Peer, session: &Session, open: impl FnOnce(&Session) -> Source) -> Source {
    let stream = session.stream(Qos::fast()).expect("stream");
    let former = stream.source(CHANNEL).expect("source");
    let ring = Ring::new(1);
    ring.begin(peer, 0, 1);
    heard(&former);
    assert_eq!(former.direct_sinks(), 1);
    drop(former);
    ring.end(peer, 2, false);
    let source = open(session);
    ring.end(peer, 2, true);
    heard(&source);
    peer.with(|host| {
        host.frozen = true;
        let served = host.served.as_ref().expect("a session");
        assert!(
            served.sources[0].is_some() && served.sources.len() == 1,
            "the new source has the number of the former"
        );
    });
    source
}

#[test]
fn what_is_told_of_a_closed_source_is_not_for_the_next_of_its_number() {
    let opens: [fn(&Session) -> Source; 3] = [
        |session| {
            let stream = session.stream(Qos::fast()).expect("stream");
            stream.source(CHANNEL).expect("source")
        },
        |session| {
            let stream = session.stream(Qos::fast().reliable()).expect("stream");
            stream.source(CHANNEL).expect("source")
        },
        |session| {
            let stream = session.stream(Qos::fast()).expect("stream");
            let source = stream.frame_source(SourceOptions::default());
            source.expect("source").0
        },
    ];
    for open in opens {
        let peer = Peer::start();
        let session = peer.session();
        let source = reopened(&peer, &session, open);
        emit(&source, &[1; 60]).expect("emit");
        let descriptor = peer.with(|host| host.served.as_mut().expect("a session").peek(0));
        assert_eq!((descriptor.flags & FLAG_NUMBERED, descriptor.epoch), (0, 0));
        peer.with(|host| host.frozen = false);
    }
}

#[test]
fn a_source_that_has_no_rings_by_its_kind_takes_no_news_of_them() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast().reliable()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    Ring::new(1).begin(&peer, 0, 1);
    heard(&source);
    peer.with(|host| host.frozen = true);
    emit(&source, b"reliable").expect("emit");
    let descriptor = peer.with(|host| host.served.as_mut().expect("a session").peek(0));
    assert_eq!((descriptor.flags & FLAG_NUMBERED, descriptor.epoch), (0, 0));
    peer.with(|host| host.frozen = false);
}

#[test]
fn blocks_come_back_of_a_sink_that_closes_while_its_source_waits_to_hear_of_it() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let (mut first, second) = (Ring::new(1), Ring::new(2));
    first.begin(&peer, 0, 1);
    heard(&source);
    assert_eq!(source.direct_sinks(), 1);
    peer.with(|host| host.frozen = true);
    emit(&source, b"one").expect("emit");
    let got = first.got();
    assert_eq!(got.len(), 1);
    assert_eq!(first.returns.push(got[0].chunk), Ok(true));
    // The lane has not completed what it was given: the second ring waits, and with it all that is told later.
    second.begin(&peer, 0, 2);
    first.end(&peer, 3, true);
    heard(&source);
    let last = emit(&source, b"two").expect("emit");
    assert!(
        first.got().is_empty(),
        "nothing is given to a sink that is gone"
    );
    peer.with(|host| host.frozen = false);
    settle(|| (source.outcome(last) != Outcome::Pending).then_some(()));
    assert_eq!(source.direct_sinks(), 1);
    second.end(&peer, 4, true);
    heard(&source);
    assert_eq!(source.direct_sinks(), 0);
    assert_eq!(lent(&source), 0);
}

#[test]
fn a_source_goes_on_whose_session_keeps_a_message_when_another_session_gets_a_ring() {
    let peer = Peer::start();
    peer.with(|host| host.zero_copy = true);
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let own = stream.sink(CHANNEL).expect("sink");
    emit(&source, b"kept").expect("emit");
    let kept = next(&own);
    let mut ring = Ring::new(1);
    ring.begin(&peer, 0, 1);
    heard(&source);
    // More than a source emits before a ring that waits.
    let mut got = Vec::new();
    for number in 1..3000u32 {
        emit(&source, &number.to_ne_bytes()).expect("emit");
        assert_eq!(*next(&own), number.to_ne_bytes());
        for message in ring.got() {
            assert_eq!(ring.returns.push(message.chunk), Ok(true));
            got.push(message.sequence);
        }
    }
    assert_eq!(source.direct_sinks(), 1);
    let first = got.first().copied().expect("messages");
    assert!(
        got.into_iter().eq(first..3000),
        "all since the ring is used"
    );
    assert_eq!((&*kept, source.pending() > 0), (&b"kept"[..], true));
}

/// A source with these rings, and with nobody else who listens.
fn alone(peer: &Peer, session: &Session, rings: &[&Ring]) -> Source {
    let stream = session.stream(Qos::fast()).expect("stream");
    let options = SourceOptions {
        depth: 4096,
        ..SourceOptions::default()
    };
    let source = stream.source_with(CHANNEL, options).expect("source");
    for (ring, epoch) in rings.iter().zip(1..) {
        ring.begin(peer, 0, epoch);
    }
    heard(&source);
    assert_eq!(source.direct_sinks(), rings.len());
    peer.with(|host| {
        let served = host.served.as_ref().expect("a session");
        served.show_alone(0, rings.len() as u16);
    });
    source
}

fn numbers(ring: &mut Ring) -> Vec<u64> {
    let got = ring.got().into_iter();
    got.map(|message| message.sequence).collect()
}

#[test]
fn what_follows_a_message_that_the_lane_gives_all_sinks_does_not_overtake_it() {
    let peer = Peer::start();
    let session = peer.session();
    let mut ring = Ring::new(1);
    let source = alone(&peer, &session, &[&ring]);
    let sink = session.stream(Qos::fast()).expect("stream");
    let sink = sink.sink(ChannelId(6)).expect("sink");
    let other = session.stream(Qos::fast()).expect("stream");
    let other = other.source(ChannelId(6)).expect("source");
    emit(&other, b"forwarded").expect("emit");
    let received = sink.consume(LONG).expect("a message");
    peer.with(|host| host.frozen = true);
    // One whose launch time sinks wait for is in no order with the rest.
    let launch = || source.buffer(8).expect("a buffer");
    launch().emit_at(TaiTime::from_nanos(1)).expect("emitted");
    emit(&source, b"direct").expect("emit");
    assert_eq!(numbers(&mut ring), [1]);
    source.set_at_once_here(true);
    launch().emit_at(TaiTime::from_nanos(1)).expect("emitted");
    emit(&source, b"behind").expect("emit");
    assert_eq!(numbers(&mut ring), []);
    let by_lane = peer.with(|host| {
        let served = host.served.as_mut().expect("a session");
        [(); 3].map(|()| served.peek(0))
    });
    let stamped = by_lane.map(|message| (message.sequence, message.epoch));
    assert_eq!(stamped, [(0, 0), (2, 0), (3, 0)]);
    assert!(
        by_lane
            .iter()
            .all(|message| message.flags & FLAG_NUMBERED != 0)
    );
    let show_given = |count: u64| {
        peer.with(|host| {
            host.served
                .as_mut()
                .expect("a session")
                .show_given(0, count)
        });
    };
    show_given(2);
    emit(&source, b"behind").expect("emit");
    assert_eq!(numbers(&mut ring), []);
    show_given(4);
    emit(&source, b"direct").expect("emit");
    assert_eq!(numbers(&mut ring), [5]);
    source.forward(received, LONG).expect("forwarded");
    // No more than so many, or they would all go by the lane for as long as it is not done.
    let emitted = (0..2000).take_while(|_| {
        let buffer = source.buffer(8);
        buffer.is_ok_and(|buffer| buffer.emit().is_ok())
    });
    assert_eq!(emitted.count(), 1024);
    assert_eq!(numbers(&mut ring), []);
    show_given(u64::MAX);
    let last = emit(&source, b"direct").expect("emit");
    assert_eq!(numbers(&mut ring), [last.number()]);
}

#[test]
fn what_a_source_gave_sinks_itself_stays_sent_when_the_runtime_comes_back() {
    let peer = Peer::start();
    let session = peer.session();
    let mut ring = Ring::new(1);
    let source = alone(&peer, &session, &[&ring]);
    let token = emit(&source, b"direct").expect("emit");
    assert_eq!(ring.got().len(), 1);
    peer.vanish();
    settle(|| (!session.is_attached()).then_some(()));
    assert_eq!(source.outcome(token), Outcome::Sent);
    peer.come_back();
    let next = settle(|| emit(&source, b"next").ok());
    settle(|| (source.outcome(next) == Outcome::NoSink).then_some(()));
    assert_eq!(source.outcome(token), Outcome::Sent);
    assert_eq!(source.lost_at_disconnect(), 0);
}

fn has_given_up(peer: &Peer, source: &Source, ring: &Ring, reason: DirectEnd) -> bool {
    heard(source);
    let ring = ring.number;
    peer.with(|host| host.log.contains(&Request::EndDirect { ring, reason }))
}

#[test]
fn a_sink_that_has_nothing_is_not_blamed_for_what_others_keep() {
    let peer = Peer::start();
    let session = peer.session();
    let (mut hungry, mut first, mut second) = (Ring::new(1), Ring::new(2), Ring::new(3));
    let source = alone(&peer, &session, &[&hungry, &first, &second]);
    let most = {
        let control = source.shared().lock();
        let link = control.link.as_ref().expect("attached");
        link.attachment.most_lent()
    };
    // It gives its own back, the others keep theirs: half of what may be lent, each.
    emit(&source, &vec![7; most / 2]).expect("emit");
    assert_eq!((first.got().len(), second.got().len()), (1, 1));
    let mine = hungry.got();
    assert_eq!(hungry.returns.push(mine[0].chunk), Ok(true));
    settle(|| {
        emit(&source, &vec![7; 5000]).expect("emit");
        let both =
            [&first, &second].map(|ring| has_given_up(&peer, &source, ring, DirectEnd::Slow));
        (both == [true; 2]).then_some(())
    });
    // It has had nothing for as long as they have given nothing back.
    for _ in 0..3 {
        emit(&source, &[7; 5000]).expect("emit");
    }
    assert!(!has_given_up(&peer, &source, &hungry, DirectEnd::Slow));
    assert!(hungry.got().is_empty());
    assert_eq!(first.returns.push(mine[0].chunk), Ok(true));
    emit(&source, &[7; 5000]).expect("emit");
    assert_eq!((hungry.got().len(), source.direct_sinks()), (1, 1));
}

#[test]
fn what_the_sinks_of_rings_that_cannot_be_do_not_get_is_counted_and_all_of_them_end_at_once() {
    let peer = Peer::start();
    let session = peer.session();
    let mut rings = [1, 2, 3].map(Ring::new);
    let source = {
        let [first, second, third] = &rings;
        alone(&peer, &session, &[first, second, third])
    };
    // Two give back what they have never had.
    for ring in &mut rings[..2] {
        assert_eq!(ring.returns.push(77), Ok(true));
    }
    let mut emitted = 0;
    settle(|| {
        emit(&source, b"one").expect("emit");
        emitted += 1;
        (source.direct_sinks() < 3).then_some(())
    });
    assert_eq!(source.direct_sinks(), 1);
    for ring in &rings[..2] {
        assert!(has_given_up(&peer, &source, ring, DirectEnd::Impossible));
    }
    for ring in &mut rings {
        let dropped = ring.arena.atomic_u64(DirectBlock::DROPPED_FULL);
        let dropped = dropped.expect("a counter").load(Ordering::Relaxed);
        assert_eq!(ring.got().len() as u64 + dropped, emitted);
    }
}

#[test]
fn a_ring_that_cannot_be_mapped_while_a_session_attaches_again_is_given_up() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let _source = stream.source(CHANNEL).expect("source");
    let _sink = stream.sink(CHANNEL).expect("sink");
    peer.vanish();
    settle(|| (!session.is_attached()).then_some(()));
    peer.with(|host| {
        host.log.clear();
        // Without the descriptor: the kernel takes it away where there is no room for it.
        host.before = |request| {
            let begins = Reply::DirectSource {
                source: 0,
                ring: 9,
                epoch: 1,
                depth: DEPTH,
            };
            matches!(request, Request::OpenSink { .. }).then_some(begins)
        };
    });
    peer.come_back();
    let given_up = Request::EndDirect {
        ring: 9,
        reason: DirectEnd::Unusable,
    };
    settle(|| peer.with(|host| host.log.contains(&given_up).then_some(())));
}

#[test]
fn a_session_in_a_trust_domain_has_all_the_memory_that_others_read_before_they_can() {
    let peer = Peer::start();
    peer.with(|host| host.domain = true);
    let _session = peer.session();
    peer.with(|host| {
        let bytes = host.tx_bytes;
        let region = host
            .served
            .as_ref()
            .and_then(|served| served.region.as_ref());
        let region = region.expect("a region");
        assert!(Region::is_protected(region));
        let file = std::fs::File::from(region.try_clone().expect("a copy"));
        let has = file.metadata().expect("metadata").blocks() * 512;
        assert_eq!(has, bytes as u64);
    });
}

#[test]
fn what_sinks_have_given_back_to_a_source_that_does_nothing_is_no_longer_with_them() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let (idle, source) = (
        stream.source(CHANNEL).expect("source"),
        stream.source(CHANNEL).expect("source"),
    );
    let (mut first, mut second, mut other) = (Ring::new(1), Ring::new(2), Ring::new(3));
    first.begin(&peer, 0, 1);
    second.begin(&peer, 0, 2);
    other.begin(&peer, 1, 1);
    heard(&source);
    assert_eq!((idle.direct_sinks(), source.direct_sinks()), (2, 1));
    let most = {
        let control = source.shared().lock();
        let link = control.link.as_ref().expect("attached");
        link.attachment.most_lent()
    };
    emit(&idle, &vec![7; most / 2]).expect("emit");
    for sink in [&mut first, &mut second] {
        let got = sink.got();
        assert_eq!(got.len(), 1);
        assert_eq!(sink.returns.push(got[0].chunk), Ok(true));
    }
    assert_eq!(lent(&source), most);
    emit(&source, b"to another sink").expect("emit");
    assert_eq!(other.got().len(), 1);
    assert_eq!(lent(&source), CHUNK);
}

/// A source's end of a ring to a sink of the session.
struct Sender {
    ring: Ring,
    messages: Producer<RxDescriptor>,
    returned: Consumer<Release>,
    bell: SinkBellHost,
    sequence: u64,
}

impl Sender {
    /// Tells a sink of it. `region`: the memory of the other session, of one page.
    fn begin(peer: &Peer, number: u32, sink: u32, region: &OwnedFd) -> Self {
        let ring = Ring::new(number);
        let messages = Producer::attach(&ring.arena, DirectBlock::MESSAGES, DEPTH);
        let bell = SinkBellHost::attach(&ring.arena, DirectBlock::BELL);
        let begins = Reply::DirectSink {
            sink,
            ring: number,
            sender: 100 + number,
            depth: DEPTH,
            session: 7,
            region_bytes: PAGE,
        };
        tell(peer, begins, &[ring.arena.fd(), region.as_fd()]);
        let returned = Consumer::attach(&ring.arena, DirectBlock { depth: DEPTH }.returns(), DEPTH);
        Self {
            messages: messages.expect("a ring"),
            returned: returned.expect("a ring"),
            bell: bell.expect("a bell"),
            ring,
            sequence: 0,
        }
    }

    fn give(&mut self) {
        self.give_at(0);
    }

    /// A message that lies at a chunk.
    fn give_at(&mut self, chunk: u32) {
        while self.returned.pop().expect("the ring").is_some() {}
        self.returned.release();
        let message = RxDescriptor {
            chunk,
            length: 4,
            sequence: self.sequence,
            ..RxDescriptor::default()
        };
        self.sequence += 1;
        assert_eq!(self.messages.push(message), Ok(true));
    }
}

const PAGE: usize = 4096;

fn region() -> OwnedFd {
    let region = Region::create("takt-test-region", PAGE).expect("a region");
    Region::protect(&region).expect("protected");
    region
}

/// Whether a thread of this process sleeps on several words: its announcement comes before its last look.
fn in_futex_waitv(thread: &Path) -> bool {
    let call = std::fs::read_to_string(Path::new("/proc").join(thread).join("syscall"));
    let wanted = format!("{} ", libc::SYS_futex_waitv);
    call.expect("a thread").starts_with(&wanted)
}

#[test]
fn a_sink_with_many_rings_that_have_ended_is_woken_by_the_one_that_has_not() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let source = stream.source(ChannelId(6)).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    let region = region();
    // Of rings that have ended, each is kept for the message of it that is held.
    let mut held = Vec::new();
    for number in 0..SinkBell::MOST_BELLS as u32 {
        let mut from = Sender::begin(&peer, number, 0, &region);
        from.give();
        from.ring.end(&peer, 0, false);
        heard(&source);
        held.push(sink.consume(LONG).expect("a message"));
    }
    let mut last = Sender::begin(&peer, 1000, 0, &region);
    heard(&source);
    assert_eq!(sink.direct_sources(), 1);
    let thread = std::fs::read_link("/proc/thread-self").expect("a thread");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            settle(|| in_futex_waitv(&thread).then_some(()));
            last.give();
            last.bell.ring();
        });
        let message = sink.consume(LONG).expect("a message");
        assert_eq!(message.sender(), 1100);
    });
}

/// Whether the session has said so of a ring, after it has heard what it was told.
fn is_done_with(peer: &Peer, source: &Source, ring: u32) -> bool {
    heard(source);
    let reason = DirectEnd::Done;
    peer.with(|host| host.log.contains(&Request::EndDirect { ring, reason }))
}

#[test]
fn a_sink_says_when_it_has_let_go_of_a_ring_that_has_ended() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let source = stream.source(ChannelId(6)).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    let region = region();
    let done = |number: u32| is_done_with(&peer, &source, number);
    let mut full = Sender::begin(&peer, 1, 0, &region);
    full.give();
    full.ring.end(&peer, 0, false);
    assert!(!done(1));
    let message = sink.consume(LONG).expect("a message");
    assert!(!done(1), "a message of it is held");
    drop(message);
    assert!(done(1));
    let empty = Sender::begin(&peer, 2, 0, &region);
    heard(&source);
    assert_eq!(sink.direct_sources(), 1);
    assert!(!done(2));
    empty.ring.end(&peer, 0, false);
    heard(&source);
    assert_eq!(sink.available(), 0);
    assert!(done(2));
    // One that it has given up, and hears of afterwards.
    let mut bad = Sender::begin(&peer, 3, 0, &region);
    bad.give_at(u32::MAX);
    heard(&source);
    sink.available();
    assert!(matches!(
        sink.consume(crate::Wait::Never),
        Err(Error::WouldBlock)
    ));
    assert!(!done(3));
    bad.ring.end(&peer, 0, false);
    heard(&source);
    assert_eq!(sink.available(), 0);
    assert!(done(3));
}

#[test]
fn a_source_says_when_it_gives_nothing_more_to_a_ring_that_has_ended() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let done = |number: u32| is_done_with(&peer, &source, number);
    let mut used = Ring::new(1);
    used.begin(&peer, 0, 1);
    heard(&source);
    emit(&source, b"one").expect("emit");
    assert_eq!(used.got().len(), 1);
    used.end(&peer, 2, false);
    assert!(!done(1), "its handle does not know yet");
    emit(&source, b"two").expect("emit");
    assert!(used.got().is_empty());
    assert!(done(1));
    // One that it has never used, nor heard of.
    let unused = Ring::new(2);
    unused.begin(&peer, 0, 3);
    unused.end(&peer, 4, false);
    settle(|| done(2).then_some(()));
    // One that waits for the lane.
    peer.with(|host| host.frozen = true);
    emit(&source, b"three").expect("emit");
    let waits = Ring::new(3);
    waits.begin(&peer, 0, 5);
    heard(&source);
    assert_eq!(source.direct_sinks(), 0);
    waits.end(&peer, 6, false);
    assert!(!done(3));
    assert_eq!(source.direct_sinks(), 0);
    assert!(done(3));
    peer.with(|host| host.frozen = false);
    // Of one whose sink is gone nothing need be said.
    let gone = Ring::new(4);
    gone.begin(&peer, 0, 7);
    heard(&source);
    settle(|| (source.direct_sinks() == 1).then_some(()));
    gone.end(&peer, 8, true);
    heard(&source);
    assert_eq!(source.direct_sinks(), 0);
    assert!(!done(4));
}

#[test]
fn a_sink_that_is_closed_keeps_no_memory_of_others() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let source = stream.source(ChannelId(6)).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    let name = "takt-test-left";
    let region = Region::create(name, PAGE).expect("a region");
    Region::protect(&region).expect("protected");
    let _unheard = Sender::begin(&peer, 1, 0, &region);
    heard(&source);
    assert_eq!(mappings(name), 1);
    drop(sink);
    assert_eq!(mappings(name), 0);
    // Told before the runtime knew.
    let late = Sender::begin(&peer, 2, 0, &region);
    late.ring.end(&peer, 0, false);
    heard(&source);
    assert_eq!(mappings(name), 0);
    let sink = stream.sink(CHANNEL).expect("sink");
    let _of_another = Sender::begin(&peer, 3, 0, &region);
    heard(&source);
    assert_eq!((sink.direct_sources(), mappings(name)), (1, 1));
}

#[test]
fn what_a_source_says_that_it_has_dropped_may_be_anything() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let options = SinkOptions {
        depth: 1,
        ..SinkOptions::default()
    };
    let sink = stream.sink_with(CHANNEL, options).expect("sink");
    let ring = Sender::begin(&peer, 1, 0, &region());
    heard(&source);
    assert_eq!(sink.direct_sources(), 1);
    for place in [DirectBlock::DROPPED_FULL, DirectBlock::DROPPED_MEMORY] {
        let word = ring.ring.arena.atomic_u64(place).expect("a counter");
        word.store(u64::MAX, Ordering::Relaxed);
    }
    // Of two the lane drops one.
    let overflow = || {
        settle(|| emit(&source, b"first").ok());
        let second = settle(|| emit(&source, b"second").ok());
        settle(|| (source.outcome(second) != Outcome::Pending).then_some(()));
        assert_eq!(&*next(&sink), b"first");
        let counters = sink.counters();
        assert_eq!(counters.dropped_full, u64::MAX);
        assert_eq!(counters.dropped_memory, u64::MAX);
    };
    overflow();
    peer.vanish();
    settle(|| (!session.is_attached()).then_some(()));
    peer.come_back();
    settle(|| session.is_attached().then_some(()));
    overflow();
}

/// What files of these names the process has open.
fn files(name: &str) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let names = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    names
        .filter(|to| to.to_string_lossy().contains(name))
        .count()
}

/// How often files of these names are mapped by the process.
fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
    maps.lines().filter(|line| line.contains(name)).count()
}

#[test]
fn a_source_that_does_nothing_keeps_nothing_of_rings_that_come_and_go() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let mut stays = Ring::new(1);
    stays.begin(&peer, 0, 1);
    let name = "takt-test-passing";
    let mut epoch = 1;
    for number in 2..200 {
        let ring = Ring::named(number, name);
        ring.begin(&peer, 0, epoch + 1);
        epoch += 2;
        // The runtime may tell first that it is over, and then that the sink is gone.
        if number % 2 == 0 {
            ring.end(&peer, epoch, false);
        }
        ring.end(&peer, epoch, true);
    }
    heard(&source);
    assert_eq!(mappings(name), 0);
    let news = {
        let control = source.shared().lock();
        control.mail.of_source_waiting(0)
    };
    assert!(news <= 2, "{news} of 200 rings are kept");
    assert_eq!(source.direct_sinks(), 1);
    peer.with(|host| host.frozen = true);
    emit(&source, b"one").expect("emit");
    assert_eq!(stays.got().len(), 1);
    let descriptor = peer.with(|host| host.served.as_mut().expect("a session").peek(0));
    assert_eq!(
        descriptor.epoch, epoch,
        "the lane is told of the last change"
    );
    peer.with(|host| host.frozen = false);
}

#[test]
fn a_ring_that_ends_while_it_waits_for_the_lane_is_not_used() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    peer.with(|host| host.frozen = true);
    emit(&source, b"one").expect("emit");
    let name = "takt-test-waiting";
    let ring = Ring::named(1, name);
    ring.begin(&peer, 0, 1);
    heard(&source);
    assert_eq!(source.direct_sinks(), 0);
    ring.end(&peer, 2, false);
    heard(&source);
    // Nothing is left for which it would have to wait, though the lane has given out nothing.
    for _ in 0..100 {
        emit(&source, b"more").expect("emit");
    }
    drop(ring);
    assert_eq!((source.direct_sinks(), mappings(name)), (0, 0));
    peer.with(|host| host.frozen = false);
}

#[test]
fn rings_and_regions_of_others_take_no_descriptors_of_the_session() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    let name = "takt-test-counted";
    let block = DirectBlock { depth: DEPTH };
    let arena = Arena::create(name, block.bytes()).expect("an arena");
    let region = Region::create(name, PAGE).expect("a region");
    Region::protect(&region).expect("protected");
    assert_eq!(files(name), 2);
    let begins = Reply::DirectSource {
        source: 0,
        ring: 1,
        epoch: 1,
        depth: DEPTH,
    };
    tell(&peer, begins, &[arena.fd()]);
    let begins = Reply::DirectSink {
        sink: 0,
        ring: 2,
        sender: 9,
        depth: DEPTH,
        session: 7,
        region_bytes: PAGE,
    };
    tell(&peer, begins, &[arena.fd(), region.as_fd()]);
    heard(&source);
    assert_eq!((source.direct_sinks(), sink.direct_sources()), (1, 1));
    assert_eq!(files(name), 2, "the runtime's alone");
}

#[test]
fn a_source_keeps_neither_the_lane_nor_other_rings_from_a_sink_by_its_numbers() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    let region = region();
    let mut first = Sender::begin(&peer, 1, 0, &region);
    let mut other = Sender::begin(&peer, 2, 0, &region);
    heard(&source);
    assert_eq!(sink.direct_sources(), 2);
    // As if the first had given the lane a message of a far number.
    peer.with(|host| (host.sender, host.sequence) = (101, 1 << 62));
    first.give();
    other.give();
    let by_lane = emit(&source, b"lane").expect("emit");
    settle(|| (source.outcome(by_lane) != Outcome::Pending).then_some(()));
    let mut seen = Vec::new();
    for _ in 0..2 * DEPTH {
        let message = sink.consume(LONG).expect("a message");
        seen.push((message.sender(), message.sequence()));
        drop(message);
        if seen
            .last()
            .is_some_and(|(sender, sequence)| *sender == 101 && *sequence < 1 << 62)
        {
            first.give();
        }
    }
    let place = |wanted| seen.iter().position(|seen| *seen == wanted);
    assert!(place((102, 0)).is_some_and(|at| at <= 1), "{seen:?}");
    assert!(
        place((101, 1 << 62)).is_some_and(|at| at as u32 <= DEPTH + 1),
        "{seen:?}"
    );
}

#[test]
fn a_sink_gets_what_a_source_has_given_its_ring_before_it_gave_the_lane_the_next() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    let region = region();
    let mut ring = Sender::begin(&peer, 1, 0, &region);
    heard(&source);
    peer.with(|host| (host.sender, host.sequence) = (101, u64::from(DEPTH)));
    (0..DEPTH).for_each(|_| ring.give());
    let by_lane = emit(&source, b"lane").expect("emit");
    settle(|| (source.outcome(by_lane) != Outcome::Pending).then_some(()));
    for sequence in 0..=u64::from(DEPTH) {
        assert_eq!(sink.consume(LONG).expect("a message").sequence(), sequence);
    }
}
