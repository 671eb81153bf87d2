//! Memory that changes while the lane works on it: indices of rings that jump, and payloads that are written anew.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rand::{Rng, SeedableRng, rngs::StdRng};
use takt::{ChannelId, Qos, Session, Sink, Wait};
use takt_session::SinkMode;
use takt_session::layout::{SinkBlock, SourceBlock, TxDescriptor};
use takt_shm::CHUNK;

use super::forgery::refused;
use super::raw::{DEPTH, Raw, Source};
use super::{HOSTILE, LISTENERS, Victims, Work};
use crate::support::{Pair, Stops, skip};

/// Offsets of the two indices in a ring, and of its entries.
const INDICES: [usize; 2] = [0, 64];
const ENTRIES: usize = 128;
/// Offset of the length in an entry of a transmit ring.
const LENGTH: usize = 4;
/// Payloads of the one who rewrites: whole in a datagram, and cut into a few and into many.
const LENGTHS: [u32; 4] = [64, 1_400, 20_000, 200_000];
/// Where they lie: so many, so far apart.
const PAYLOADS: u32 = 8;
const APART: usize = 256 << 10;
/// All octets that are ever in them.
const CONTENT: [u8; 2] = [0x55, 0xaa];
/// Octets that are written at a time.
const STROKE: usize = 256;
/// For each way that messages are sent.
const REWRITTEN: [ChannelId; 2] = [ChannelId(HOSTILE + 3), ChannelId(HOSTILE + 4)];

fn indices(sources: &[SourceBlock], sinks: &[SinkBlock]) -> Vec<usize> {
    let of_sources = sources
        .iter()
        .flat_map(|block| [block.tx_ring(), block.completion_ring()]);
    let of_sinks = sinks
        .iter()
        .flat_map(|block| [block.rx_ring(), block.release_ring()]);
    let rings = of_sources.chain(of_sinks);
    rings
        .flat_map(|ring| INDICES.map(|index| ring + index))
        .collect()
}

/// Indices of all rings, those of the runtime's as well, set forwards and backwards, within the ring and beyond, half round and
/// anywhere, while messages flow.
pub fn jump(work: &Work) {
    let mut rng = StdRng::seed_from_u64(5);
    let channel = ChannelId(HOSTILE);
    while work.on() {
        let Some(mut raw) = Raw::attach(&work.near, 1 << 20) else {
            std::thread::yield_now();
            continue;
        };
        let Some(stream) = raw.stream(Qos::slow()) else {
            continue;
        };
        let latest = SinkMode {
            latest: true,
            ..SinkMode::default()
        };
        let sinks =
            [SinkMode::default(), latest].map(|mode| raw.sink_with(stream, channel, false, mode));
        let sinks: Vec<_> = sinks.into_iter().flatten().map(|sink| sink.block).collect();
        let Some(mut source) = raw.source(stream, channel) else {
            continue;
        };
        let indices = indices(&[source.block], &sinks);
        for chunk in 0..2 * DEPTH {
            let one = TxDescriptor {
                chunk,
                length: 200,
                ..TxDescriptor::default()
            };
            let _ = source.tx.push(one);
            raw.bell.ring();
            if rng.random_bool(0.3) {
                let place = indices[rng.random_range(0..indices.len())];
                let index = raw.arena.atomic_u32(place).expect("in bounds");
                let now = index.load(Relaxed);
                let jumps = [1, DEPTH, DEPTH + 1, 1 << 31, rng.random()];
                let far = jumps[rng.random_range(0..jumps.len())];
                let forwards = rng.random_bool(0.5);
                index.store(
                    match forwards {
                        true => now.wrapping_add(far),
                        false => now.wrapping_sub(far),
                    },
                    Relaxed,
                );
                raw.bell.ring();
            }
            if raw.has_ended() {
                break;
            }
        }
        work.did();
    }
}

/// What reads the messages of the one who rewrites: its own tenant, at both nodes.
struct Readers {
    _sessions: Vec<Session>,
    sinks: Vec<Sink>,
    /// The number of the last message at each.
    last: Vec<Option<u64>>,
}

impl Readers {
    /// Of one channel: two at the near node and one at the other.
    fn open(work: &Work, channel: ChannelId) -> Option<Self> {
        let sessions: Option<Vec<Session>> = [&work.near, &work.near, &work.far]
            .into_iter()
            .map(|socket| {
                let session = Session::builder().socket(socket).reconnect(false);
                session.rx_bytes(8 << 20).tx_bytes(1 << 20).open().ok()
            })
            .collect();
        let sessions = sessions?;
        let sinks: Option<Vec<Sink>> = sessions
            .iter()
            .map(|session| session.stream(Qos::slow()).ok()?.sink(channel).ok())
            .collect();
        let sinks = sinks?;
        Some(Self {
            last: vec![None; sinks.len()],
            sinks,
            _sessions: sessions,
        })
    }

    /// Takes what is there: each message has a length that it was emitted with, holds nothing but what its sender wrote at some
    /// time, and comes once and in order. Whether the other node had one.
    fn take(&mut self) -> bool {
        let mut far = false;
        for (at, sink) in self.sinks.iter().enumerate() {
            while let Ok(message) = sink.consume(Wait::Never) {
                let length = message.len();
                assert!(LENGTHS.contains(&(length as u32)), "{length} octets");
                let strange = message.iter().find(|octet| !CONTENT.contains(octet));
                assert_eq!(strange, None, "of {length} octets");
                let number = Some(message.sequence());
                assert!(number > self.last[at], "doubled or out of order");
                self.last[at] = number;
                far |= at == self.sinks.len() - 1;
            }
        }
        far
    }
}

/// Writes payloads and lengths anew without end, in a session that emits them.
fn write_anew(raw: &Raw, rings: &[SourceBlock], stop: &AtomicBool) {
    let mut rng = StdRng::seed_from_u64(6);
    while !stop.load(Relaxed) {
        for stroke in (0..LENGTHS[3] as usize).step_by(STROKE) {
            let payload = rng.random_range(0..PAYLOADS as usize);
            let content = CONTENT[rng.random_range(0..2)];
            let end = APART - STROKE;
            let at = raw.map.tx_offset() + payload * APART + stroke.min(end);
            raw.write(at, &[content; STROKE]);
        }
        for ring in rings {
            let entry = rng.random_range(0..DEPTH as usize) * size_of::<TxDescriptor>();
            let length = LENGTHS[rng.random_range(0..LENGTHS.len())];
            let at = ring.tx_ring() + ENTRIES + entry + LENGTH;
            let word = raw.arena.atomic_u32(at).expect("in bounds");
            word.store(length, Relaxed);
        }
    }
}

/// Emits each payload again as soon as it may, while others write into it. False: no room for it now.
fn emit_rewritten(work: &Work) -> Option<()> {
    let mut raw = Raw::attach(&work.near, 8 << 20)?;
    let mut sources: Vec<(Source, Readers)> = Vec::new();
    for (channel, qos) in REWRITTEN
        .into_iter()
        .zip([Qos::slow(), Qos::slow().reliable()])
    {
        let readers = Readers::open(work, channel)?;
        let stream = raw.stream(qos)?;
        sources.push((raw.source(stream, channel)?, readers));
    }
    for payload in 0..PAYLOADS as usize {
        let at = raw.map.tx_offset() + payload * APART;
        raw.write(at, &vec![CONTENT[0]; LENGTHS[3] as usize]);
    }
    let rings: Vec<SourceBlock> = sources.iter().map(|(source, _)| source.block).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stops = [&stop];
        let _stops = Stops(&stops);
        scope.spawn(|| write_anew(&raw, &rings, &stop));
        let mut free: Vec<u32> = (0..PAYLOADS).collect();
        let mut emitted = 0;
        while work.on() {
            for (source, readers) in &mut sources {
                if let Some(payload) = free.pop() {
                    let one = TxDescriptor {
                        chunk: payload * (APART / CHUNK) as u32,
                        length: LENGTHS[emitted % LENGTHS.len()],
                        token: payload,
                        ..TxDescriptor::default()
                    };
                    emitted += 1;
                    assert!(source.tx.push(one).expect("the runtime keeps to it"));
                    raw.bell.ring();
                }
                while let Some(done) = source.completions.pop().expect("it keeps to it") {
                    source.completions.release();
                    free.push(done.token);
                }
                if readers.take() {
                    work.did();
                }
            }
            assert!(!raw.has_ended(), "it has broken no rule");
        }
    });
    Some(())
}

/// Payloads, and lengths in the ring, that change while the lane copies them, for several sinks, and cuts them for the other
/// node.
pub fn rewrite(work: &Work) {
    while work.on() {
        if emit_rewritten(work).is_none() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn what_is_written_anew_while_it_is_sent_is_its_writers_own_octets_and_no_datagram_is_damaged() {
    if skip() {
        return;
    }
    const MESSAGES: u64 = 500;
    let pair = Pair::with(&takt_lab::LabConfig::default(), LISTENERS);
    let mut victims = Victims::new(&pair);
    let work = Work::new("rewrite", &pair, "hostile.sock");
    std::thread::scope(|scope| {
        let stops = [&work.stop];
        let stops = Stops(&stops);
        let rewriting = scope.spawn(|| rewrite(&work));
        let done = || work.done.load(Relaxed) >= MESSAGES || rewriting.is_finished();
        victims.work(&pair, || !done());
        drop(stops);
    });
    victims.compare();
    // What leaves is the lane's own copy: each has the tag of what it holds.
    let far = refused(&pair.nodes[1]);
    assert_eq!((far.unauthentic, far.replayed), (0, 0), "{far:?}");
}

#[test]
fn whichever_index_jumps_while_messages_flow_nobody_else_notices() {
    if skip() {
        return;
    }
    const SESSIONS: u64 = 300;
    let pair = Pair::with(&takt_lab::LabConfig::default(), LISTENERS);
    let mut victims = Victims::new(&pair);
    let work = Work::new("jump", &pair, "hostile.sock");
    std::thread::scope(|scope| {
        let stops = [&work.stop];
        let stops = Stops(&stops);
        scope.spawn(|| jump(&work));
        victims.work(&pair, || work.done.load(Relaxed) < SESSIONS);
        drop(stops);
    });
    victims.compare();
    let log = pair.nodes[0].log();
    assert!(log.contains("ring is corrupt"), "no jump was found out");
}
