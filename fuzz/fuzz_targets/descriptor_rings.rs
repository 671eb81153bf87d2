//! A hostile application: what it writes into its arena and its rings, in any order, beside a lane that works. Nothing
//! panics or hangs, it ends or goes on, and two other applications still exchange messages afterwards.
//!
//! Input: operations, see [`Hostile::operation`]. One lane serves all inputs, as a daemon's would.

#![no_main]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use libfuzzer_sys::fuzz_target;
use takt_clock::SystemTai;
use takt_runtime::config::Limits;
use takt_runtime::ids::SessionId;
use takt_runtime::lane::session::{LaneSession, SessionParts};
use takt_runtime::lane::{Carrier, Command, Event, EventSender, Lane, LaneHandle, SourceTarget};
use takt_runtime::policy::{Policy, Rates};
use takt_runtime::slots::{SinkSlot, SourceSlot};
use takt_session::layout::{
    ArenaMap, Completion, HEADER_BYTES, LANE_DIRTY_OFFSET, LANE_STATE_OFFSET, Outcome, Release,
    RxDescriptor, SinkBlock, SourceBlock, TX_REGION, TxDescriptor,
};
use takt_session::{ChannelId, Qos, Reliability, SinkMode};
use takt_shm::{Arena, Consumer, LaneBell, LaneBellHost, Producer, RingLayout};

const DEPTH: u32 = 16;
/// Operations of an input; more only take time.
const MOST_OPERATIONS: usize = 256;
/// Rounds in which an honest message must have come.
const MOST_ROUNDS: usize = 1000;

/// An application, with what it needs of its arena.
struct App {
    id: SessionId,
    arena: Arc<Arena>,
    map: ArenaMap,
    bell: LaneBell,
    /// Where the next block of rings goes.
    free: usize,
}

struct Source {
    tx: Producer<TxDescriptor>,
    completions: Consumer<Completion>,
}

struct Sink {
    rx: Consumer<RxDescriptor>,
    release: Producer<Release>,
}

struct Scene {
    lane: Lane,
    handle: LaneHandle,
    events: Receiver<Event>,
    next_session: u32,
    next_source: u32,
    honest: Option<(App, Source, App, Sink)>,
    number: u32,
}

thread_local! {
    static SCENE: RefCell<Scene> = RefCell::new(Scene::new());
}

impl Scene {
    fn new() -> Self {
        let (sender, events) = channel();
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        let wake = Arc::new(rustix::event::eventfd(0, flags).expect("an eventfd"));
        let (lane, handle) = Lane::new(
            0,
            1,
            2,
            Vec::new(),
            &Limits::default(),
            Arc::new(SystemTai),
            Arc::default(),
            EventSender {
                events: sender,
                wake,
            },
        )
        .expect("a lane");
        let mut scene = Self {
            lane,
            handle,
            events,
            next_session: 1,
            next_source: 0,
            honest: None,
            number: 0,
        };
        let (mut writer, mut reader) = (scene.attach(), scene.attach());
        let source = scene.source(&mut writer, 0, 5, Reliability::BestEffort);
        let sink = scene.sink(&mut reader, 0, 5, SinkMode::default());
        scene.honest = Some((writer, source, reader, sink));
        scene
    }

    fn attach(&mut self) -> App {
        let map = ArenaMap {
            ring_bytes: 16 << 10,
            tx_bytes: 64 << 10,
            rx_bytes: 64 << 10,
        };
        let arena = Arc::new(Arena::create("fuzzed", map.total()).expect("an arena"));
        let bell = LaneBellHost::new(&arena, LANE_STATE_OFFSET, LANE_DIRTY_OFFSET).expect("bell");
        let fd = bell.fd().try_clone_to_owned().expect("a descriptor");
        let own = LaneBell::attach(&arena, LANE_STATE_OFFSET, LANE_DIRTY_OFFSET, fd).expect("bell");
        let id = SessionId(self.next_session);
        self.next_session += 1;
        let session = LaneSession::new(SessionParts {
            id,
            tenant: id.0,
            arena: arena.clone(),
            map,
            bell,
            max_message: 64 << 10,
            classes: 0x0f,
            policer: Arc::default(),
            rates: Arc::new(Rates::new(&Policy::default())),
            counters: Arc::default(),
        });
        self.handle.send(Command::AddSession(Box::new(session)));
        App {
            id,
            arena,
            map,
            bell: own,
            free: HEADER_BYTES,
        }
    }

    fn source(
        &mut self,
        app: &mut App,
        source: usize,
        channel: u64,
        reliability: Reliability,
    ) -> Source {
        let block = SourceBlock {
            offset: app.free,
            depth: DEPTH,
        };
        app.free += SourceBlock::bytes(DEPTH).next_multiple_of(256);
        let (tx, completions) = (block.tx_ring(), block.completion_ring());
        for ring in [tx, completions] {
            RingLayout::reset(&app.arena, ring).expect("rings fit");
        }
        self.next_source += 1;
        self.handle.send(Command::AddSource {
            session: app.id,
            source: SourceSlot(source),
            block,
            target: SourceTarget::Channel(ChannelId(channel)),
            carrier: Carrier::any(0),
            number: self.next_source,
            first: 0,
            reliability,
            waits: false,
        });
        Source {
            tx: Producer::attach(&app.arena, tx, DEPTH).expect("rings fit"),
            completions: Consumer::attach(&app.arena, completions, DEPTH).expect("rings fit"),
        }
    }

    fn sink(&mut self, app: &mut App, sink: usize, channel: u64, mode: SinkMode) -> Sink {
        let block = SinkBlock {
            offset: app.free,
            depth: DEPTH,
        };
        app.free += SinkBlock::bytes(DEPTH).next_multiple_of(256);
        let (rx, release) = (block.rx_ring(), block.release_ring());
        for ring in [rx, release] {
            RingLayout::reset(&app.arena, ring).expect("rings fit");
        }
        self.handle.send(Command::AddSink {
            session: app.id,
            sink: SinkSlot(sink),
            block,
            channel: ChannelId(channel),
            notify: None,
            mode,
        });
        Sink {
            rx: Consumer::attach(&app.arena, rx, DEPTH).expect("rings fit"),
            release: Producer::attach(&app.arena, release, DEPTH).expect("rings fit"),
        }
    }

    /// Rounds until something has happened.
    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..MOST_ROUNDS {
            self.lane.poll();
            if done(self) {
                return;
            }
        }
        panic!("not in {MOST_ROUNDS} rounds");
    }

    /// The others still work.
    fn honest(&mut self) {
        let (writer, mut source, reader, mut sink) = self.honest.take().expect("they are there");
        let number = self.number;
        self.number = self.number.wrapping_add(1);
        let place = writer.map.tx_offset();
        let memory = writer.arena.slice(place, 4).expect("inside");
        memory.write_from(0, &number.to_le_bytes()).expect("fits");
        let descriptor = TxDescriptor {
            length: 4,
            token: number,
            ..TxDescriptor::default()
        };
        assert!(source.tx.push(descriptor).expect("an honest ring"));
        writer.bell.ring();
        self.until(|_| {
            let Some(received) = sink.rx.pop().expect("an honest ring") else {
                return false;
            };
            sink.rx.release();
            assert_eq!((received.length, received.chunk & TX_REGION), (4, 0));
            let place = reader.map.rx_offset() + received.chunk as usize * takt_shm::CHUNK;
            let mut bytes = [0; 4];
            let memory = reader.arena.slice(place, 4).expect("inside");
            memory.read_into(0, &mut bytes).expect("inside");
            assert_eq!(bytes, number.to_le_bytes(), "cross-talk or loss");
            assert!(sink.release.push(received.chunk).expect("an honest ring"));
            true
        });
        self.until(|_| {
            let Some(completion) = source.completions.pop().expect("an honest ring") else {
                return false;
            };
            source.completions.release();
            let told = (completion.token, completion.outcome);
            assert_eq!(told, (number, Outcome::Sent as u32));
            true
        });
        self.honest = Some((writer, source, reader, sink));
    }
}

/// The bytes of an input, zeroes behind its end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let count = N.min(self.0.len());
        let (head, rest) = self.0.split_at(count);
        out[..count].copy_from_slice(head);
        self.0 = rest;
        out
    }

    fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
}

struct Hostile {
    app: App,
    sources: [Source; 2],
    sinks: [Sink; 2],
}

impl Hostile {
    fn new(scene: &mut Scene) -> Self {
        let mut app = scene.attach();
        let kinds = [Reliability::BestEffort, Qos::slow().reliable().reliability];
        let sources = [0, 1].map(|at| scene.source(&mut app, at, 6, kinds[at]));
        // It hears itself, and the others.
        let sinks = [(0, 6, false), (1, 5, true)].map(|(at, channel, latest)| {
            let mode = SinkMode {
                latest,
                ..SinkMode::default()
            };
            scene.sink(&mut app, at, channel, mode)
        });
        scene.lane.poll();
        Self {
            app,
            sources,
            sinks,
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let offset = offset.min(self.app.map.total() - bytes.len());
        let slice = self.app.arena.slice(offset, bytes.len());
        slice
            .expect("inside")
            .write_from(0, bytes)
            .expect("as long");
    }

    fn operation(&mut self, input: &mut Bytes<'_>, scene: &mut Scene) {
        let kind = input.u8();
        let which = usize::from(kind >> 7);
        let rings = self.app.free;
        match kind & 0x7f {
            // One word of the header or the rings.
            0 => self.write(usize::from(input.u16()) % rings, &input.take::<4>()),
            // More of it, with the small numbers that pass the first checks.
            1 => {
                let offset = usize::from(input.u16()) % rings;
                let mut bytes = [0; 32];
                bytes[0] = input.u8();
                self.write(offset, &bytes);
            }
            // Anywhere.
            2 => self.write(input.u32() as usize, &input.take::<16>()),
            // A descriptor in good form.
            3 => {
                let [class, flags] = input.take();
                let descriptor = TxDescriptor {
                    chunk: input.u32(),
                    length: input.u32(),
                    token: input.u32(),
                    class,
                    flags,
                    launch_time_ns: i64::from(input.u32()),
                    ..TxDescriptor::default()
                };
                let _ = self.sources[which].tx.push(descriptor);
            }
            // One in order.
            4 => {
                let descriptor = TxDescriptor {
                    chunk: u32::from(input.u8()),
                    length: u32::from(input.u16()),
                    ..TxDescriptor::default()
                };
                let _ = self.sources[which].tx.push(descriptor);
            }
            // Something given back.
            5 => drop(self.sinks[which].release.push(input.u32())),
            // What was received given back in order.
            6 => {
                if let Ok(Some(descriptor)) = self.sinks[which].rx.pop() {
                    self.sinks[which].rx.release();
                    let _ = self.sinks[which].release.push(descriptor.chunk);
                }
            }
            // Completions taken.
            7 => {
                if let Ok(Some(_)) = self.sources[which].completions.pop() {
                    self.sources[which].completions.release();
                }
            }
            // A source or sink closed.
            8 => {
                let session = self.app.id;
                scene.handle.send(match input.u8() & 3 {
                    source @ 0..2 => Command::CloseSource {
                        session,
                        source: SourceSlot(source.into()),
                    },
                    sink => Command::CloseSink {
                        session,
                        sink: SinkSlot(usize::from(sink) - 2),
                    },
                });
            }
            // What was received emitted, and given back or emitted again if it says so.
            9 => {
                let again = input.u8();
                let sink = &mut self.sinks[usize::from(again & 1)];
                if let Ok(Some(held)) = sink.rx.pop() {
                    sink.rx.release();
                    let descriptor = TxDescriptor {
                        chunk: held.chunk ^ TX_REGION,
                        length: held.length,
                        ..TxDescriptor::default()
                    };
                    let _ = self.sources[which].tx.push(descriptor);
                    if again & 2 != 0 {
                        let _ = sink.release.push(held.chunk);
                    }
                    if again & 4 != 0 {
                        let _ = self.sources[which ^ 1].tx.push(descriptor);
                    }
                }
            }
            // The others exchange a message, which it hears.
            10 => scene.honest(),
            11..64 => self.app.bell.ring(),
            _ => {
                self.app.bell.ring();
                scene.lane.poll();
            }
        }
    }
}

fuzz_target!(|input: &[u8]| {
    SCENE.with_borrow_mut(|scene| {
        let mut hostile = Hostile::new(scene);
        let mut input = Bytes(input);
        for _ in 0..MOST_OPERATIONS {
            if input.0.is_empty() {
                break;
            }
            hostile.operation(&mut input, scene);
        }
        hostile.app.bell.ring();
        scene.lane.poll();
        scene.honest();
        let id = hostile.app.id;
        let leaves = id.0.is_multiple_of(2);
        scene.handle.send(match leaves {
            // It has gone: what it had emitted is sent.
            true => Command::LeaveSession(id),
            false => Command::RemoveSession(id),
        });
        for round in 0.. {
            assert!(round < MOST_ROUNDS, "the hostile session stays");
            if round == MOST_ROUNDS / 2 {
                // As the control thread does with what has a launch time or waits for somebody.
                scene.handle.send(Command::RemoveSession(id));
            }
            scene.lane.poll();
            let gone = |event| matches!(event, Event::SessionRemoved(session) if session.id == id);
            if scene.events.try_iter().any(gone) {
                break;
            }
        }
        drop(hostile);
    });
});
