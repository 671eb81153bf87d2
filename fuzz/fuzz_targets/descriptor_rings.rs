//! A hostile application: what it writes into its arena, its rings and its socket, in any order, beside a runtime
//! that works. Nothing panics or hangs, and two other applications still exchange messages afterwards.
//!
//! Input: operations, see [`Hostile::operation`]. One runtime serves all inputs, as a daemon would.

#![no_main]

// The applications of the runtime's own tests, which end a process that waits for ever.
#[path = "../../crates/system/runtime/tests/support/mod.rs"]
mod support;

use std::cell::RefCell;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use support::{App, Sink, Source};
use takt_datapath::memory::{MemoryNetwork, MemoryNetworkConfig};
use takt_runtime::policy::Policy;
use takt_runtime::{Config, InlineLane, Runtime};
use takt_session::layout::{HEADER_BYTES, Outcome, TxDescriptor};
use takt_session::{Qos, transport};
use takt_testing::until_true;

/// Ring space that two sources and two sinks of 16 entries take, and some more.
const RINGS: usize = 16 << 10;
const DEPTH: u32 = 16;
/// Operations of an input; more only take time.
const MOST_OPERATIONS: usize = 256;

struct Scene {
    runtime: Runtime,
    lane: Arc<InlineLane>,
    writer: App,
    source: Source,
    reader: App,
    sink: Sink,
    number: u32,
}

thread_local! {
    static SCENE: RefCell<Option<Scene>> = const { RefCell::new(None) };
}

impl Scene {
    fn new() -> Self {
        let network = MemoryNetwork::new(MemoryNetworkConfig::default());
        let config = Config {
            address: [127, 0, 0, 1].into(),
            port: 0,
            ..Config::default()
        };
        let (runtime, lane) =
            Runtime::start_inline(config, &[network.datapath()], Vec::new()).expect("a runtime");
        let (mut writer, mut reader) =
            (App::attach(runtime.handle()), App::attach(runtime.handle()));
        let (from, to) = (writer.stream(Qos::slow()), reader.stream(Qos::slow()));
        let source = writer.source(from, 5, 0);
        let sink = reader.sink(to, 5, 0);
        Self {
            runtime,
            lane,
            writer,
            source,
            reader,
            sink,
            number: 0,
        }
    }

    /// The others still work.
    fn honest(&mut self) {
        let number = self.number;
        self.number += 1;
        self.writer.emit(
            &mut self.source,
            number % 1000,
            &number.to_le_bytes(),
            number,
        );
        let mut received = None;
        until_true("a message", || {
            self.lane.drive();
            received = self.reader.take(&mut self.sink);
            received.is_some()
        });
        let (_, bytes) = received.expect("a message");
        assert_eq!(bytes, number.to_le_bytes(), "cross-talk or loss");
        let mut completion = None;
        until_true("a completion", || {
            self.lane.drive();
            completion = self.source.completions.pop().expect("an honest ring");
            completion.is_some()
        });
        self.source.completions.release();
        let completion = completion.expect("a completion");
        assert_eq!(
            (completion.token, completion.outcome),
            (number, Outcome::Sent as u32)
        );
    }

    fn sessions(&self) -> usize {
        self.runtime.handle().sessions().expect("it runs").len()
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
    fn new(runtime: &Runtime) -> Self {
        let policy = Policy {
            identity: "hostile".into(),
            write: vec![6..=6],
            read: vec![6..=6],
            memory: 24 << 20,
            ..Policy::default()
        };
        let mut app = App::attach_with(runtime.handle(), policy);
        let stream = app.stream(Qos::slow());
        Self {
            sources: [0; 2].map(|_| app.source(stream, 6, DEPTH)),
            sinks: [0; 2].map(|_| app.sink(stream, 6, DEPTH)),
            app,
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

    fn operation(&mut self, input: &mut Bytes<'_>, lane: &InlineLane) {
        let kind = input.u8();
        let which = usize::from(kind >> 7);
        match kind & 0x7f {
            // One word of the header or the rings.
            0 => self.write(
                usize::from(input.u16()) % (HEADER_BYTES + RINGS),
                &input.take::<4>(),
            ),
            // More of it, with the small numbers that pass the first checks.
            1 => {
                let offset = usize::from(input.u16()) % (HEADER_BYTES + RINGS);
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
                    launch_time_ns: i64::from_le_bytes(input.take()),
                    ..TxDescriptor::default()
                };
                // Its own view of a ring that it has spoilt may be an error.
                let _ = self.sources[which].tx.push(descriptor);
            }
            // A message that is in order.
            4 => {
                let descriptor = TxDescriptor {
                    chunk: u32::from(input.u8()),
                    length: u32::from(input.u16()),
                    ..TxDescriptor::default()
                };
                let _ = self.sources[which].tx.push(descriptor);
            }
            // Something given back.
            5 => {
                let _ = self.sinks[which].release.push(input.u32());
            }
            // What was received given back in order.
            6 => {
                if let Ok(Some(descriptor)) = self.sinks[which].rx.pop() {
                    self.sinks[which].rx.release();
                    let _ = self.sinks[which].release.push(descriptor.chunk);
                }
            }
            // A packet on the session's socket.
            7 => {
                let mut packet = vec![0; usize::from(input.u8())];
                packet.iter_mut().for_each(|byte| *byte = input.u8());
                let _ = transport::send(&self.app.socket, &packet, &[], false);
            }
            8..64 => self.app.bell.ring(),
            _ => {
                self.app.bell.ring();
                lane.drive();
            }
        }
    }
}

fuzz_target!(|input: &[u8]| {
    SCENE.with_borrow_mut(|scene| {
        let scene = scene.get_or_insert_with(Scene::new);
        let mut hostile = Hostile::new(&scene.runtime);
        let mut input = Bytes(input);
        for _ in 0..MOST_OPERATIONS {
            if input.0.is_empty() {
                break;
            }
            hostile.operation(&mut input, &scene.lane);
        }
        hostile.app.bell.ring();
        scene.lane.drive();
        scene.honest();
        drop(hostile);
        until_true("the hostile session is gone", || {
            scene.lane.drive();
            scene.sessions() == 2
        });
        scene.honest();
    });
});
