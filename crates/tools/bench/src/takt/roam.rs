//! Streams that are mapped to one technology after the other while their messages flow (`takt demo roam`).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use takt::{ChannelId, Error, Qos, Session, Sink, Source, Stream, Wait};

use super::daemon::{self, Daemon};
use super::process::Scratch;
use super::{PATIENCE, Takt, TaktError};
use crate::experiment::Sample;
use crate::peers::Pair;
use crate::statistics::Latencies;

/// Messages a second of each stream, and their bytes.
const RATE: f64 = 1000.0;
const SIZE: usize = 64;
/// How often a stream is asked whether it has moved.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How long a sink waits before it looks whether all is there.
const PAUSE: Wait = Wait::For(Duration::from_millis(50));
/// The line of a node's configuration that is changed.
const MAPPING: &str = "fast_unlimited";
/// Until it is known.
const UNKNOWN: u64 = u64::MAX;

/// What became of the messages of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// Sent.
    pub sent: u64,
    /// Received.
    pub received: u64,
    /// Lost or dropped, by the receiver's counters.
    pub counted: u64,
    /// Received behind one that was sent later, or twice.
    pub disordered: u64,
}

impl Fate {
    /// Neither received nor counted as lost.
    pub fn missing(&self) -> u64 {
        self.sent.saturating_sub(self.received + self.counted)
    }
}

/// What a sink has received since it was last asked.
#[derive(Debug)]
struct Seen {
    latencies: Latencies,
    messages: u64,
    last: Instant,
    silence: Duration,
}

impl Seen {
    fn since(last: Instant) -> Self {
        Self {
            latencies: Latencies::new(),
            messages: 0,
            last,
            silence: Duration::ZERO,
        }
    }
}

/// What the threads of a stream have in common.
#[derive(Debug)]
struct Shared {
    origin: Instant,
    end: AtomicBool,
    /// How many messages were sent, once the last one was.
    sent: AtomicU64,
    seen: Mutex<Seen>,
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends at a steady pace until told to end.
    fn send(&self, source: Source) -> Result<Source, Error> {
        let start = Instant::now();
        let mut number: u64 = 0;
        while !self.end.load(Ordering::Relaxed) {
            let due = Duration::from_secs_f64(number as f64 / RATE);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
            let mut buffer = source.buffer_wait(SIZE, Wait::For(PATIENCE))?;
            let now = self.origin.elapsed().as_nanos() as u64;
            buffer[..8].copy_from_slice(&number.to_le_bytes());
            buffer[8..16].copy_from_slice(&now.to_le_bytes());
            buffer.emit()?;
            number += 1;
        }
        self.sent.store(number, Ordering::Release);
        Ok(source)
    }

    /// Receives until all that was sent is there or counted, or nothing more comes.
    fn receive(&self, sink: &Sink) -> Result<Fate, Error> {
        let mut fate = Fate::default();
        let mut next = 0;
        let mut silent_since = Instant::now();
        loop {
            match sink.consume(PAUSE) {
                Ok(message) => {
                    let word = |at: usize| {
                        let bytes = message.get(at..at + 8).and_then(|b| b.first_chunk());
                        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
                    };
                    let (number, stamp) = (word(0), word(8));
                    let now = Instant::now();
                    let passed = now.duration_since(self.origin).as_nanos() as u64;
                    fate.received += 1;
                    fate.disordered += u64::from(number < next);
                    next = next.max(number + 1);
                    let mut seen = self.seen();
                    seen.latencies.record_ns(passed.saturating_sub(stamp));
                    seen.messages += 1;
                    seen.silence = seen.silence.max(now.duration_since(seen.last));
                    seen.last = now;
                    silent_since = now;
                }
                Err(Error::TimedOut) => {
                    let of = sink.counters();
                    fate.counted = of.lost + of.dropped_full + of.dropped_memory;
                    fate.sent = self.sent.load(Ordering::Acquire);
                    let complete = fate.received + fate.counted >= fate.sent;
                    if fate.sent != UNKNOWN && (complete || silent_since.elapsed() > PATIENCE) {
                        return Ok(fate);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// A stream with messages under way.
struct Flow {
    stream: Stream,
    _reader: Stream,
    shared: Arc<Shared>,
    ends: Ends,
    sender: JoinHandle<Result<Source, Error>>,
    receiver: JoinHandle<Result<Fate, Error>>,
}

impl Flow {
    fn start(near: &Session, far: &Session, channel: u64, qos: Qos) -> Result<Self, Error> {
        let channel = ChannelId(channel);
        let reader = far.stream(Qos::fast())?;
        let sink = reader.sink(channel)?;
        let stream = near.stream(qos)?;
        let source = stream.source(channel)?;
        source.wait_reader(Wait::For(PATIENCE))?;
        let origin = Instant::now();
        let shared = Arc::new(Shared {
            origin,
            end: AtomicBool::new(false),
            sent: AtomicU64::new(UNKNOWN),
            seen: Mutex::new(Seen::since(origin)),
        });
        let [sends, receives] = [0; 2].map(|_| Arc::clone(&shared));
        let ends = Ends(Arc::clone(&shared));
        Ok(Self {
            stream,
            _reader: reader,
            shared,
            ends,
            sender: std::thread::spawn(move || sends.send(source)),
            receiver: std::thread::spawn(move || receives.receive(&sink)),
        })
    }

    /// What was received since this was last asked.
    fn take(&self) -> Seen {
        let mut seen = self.shared.seen();
        let fresh = Seen::since(seen.last);
        std::mem::replace(&mut *seen, fresh)
    }

    fn finish(self) -> Result<Fate, TaktError> {
        drop(self.ends);
        let failed = |error: Error| TaktError::runtime("send")(error.to_string());
        let gone = |_| TaktError::runtime("send")("its thread has failed".into());
        // What it has sent is under way as long as it is there.
        let _source = self.sender.join().map_err(gone)?.map_err(failed)?;
        self.receiver.join().map_err(gone)?.map_err(failed)
    }
}

/// Has a stream's sender end.
struct Ends(Arc<Shared>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.end.store(true, Ordering::Relaxed);
    }
}

/// Waits until it is so; fails with what is otherwise, after [`PATIENCE`].
fn await_that(
    is_so: impl Fn() -> Result<bool, TaktError>,
    otherwise: impl Fn() -> String,
) -> Result<(), TaktError> {
    let begun = Instant::now();
    while !is_so()? {
        if begun.elapsed() > PATIENCE {
            let reason = format!("after {} s {}", PATIENCE.as_secs(), otherwise());
            return Err(TaktError::runtime("move a stream")(reason));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Two nodes with all that was asked for, and two streams between them: one reliable, one whose messages are sent once.
pub struct Roaming {
    flows: [Flow; 2],
    takt: Takt,
    admin: PathBuf,
    configuration: PathBuf,
    // Sessions before their daemons, those before the folder that has their sockets.
    _sessions: [Session; 2],
    _daemons: Vec<Daemon>,
    _scratch: Scratch,
}

impl Roaming {
    /// Starts both nodes with these datapaths, the plugins among them from `plugins`, and the streams on the first one.
    ///
    /// # Errors
    /// When a node does not start, and says why; or is not heard by the other.
    pub fn start(
        takt: &Takt,
        pair: &Pair<'_>,
        datapaths: &[String],
        plugins: &Path,
    ) -> Result<Self, TaktError> {
        let scratch = Scratch::new()?;
        let folder = scratch.path().to_owned();
        let first = datapaths.first().map_or("udp", String::as_str);
        let mut daemons = Vec::new();
        for (own, (host, core, peer)) in [
            (pair.near, pair.near_core, pair.far),
            (pair.far, pair.far_core, pair.near),
        ]
        .into_iter()
        .enumerate()
        {
            let mut sections = format!("[mapping]\n{MAPPING} = [\"{first}\"]\n");
            let has = |name: &str| datapaths.iter().any(|datapath| datapath == name);
            if has("dpdk") {
                sections.push_str(&format!(
                    "[datapath.dpdk]\ndevice = \"net_memif0,role={},socket-abstract=no,socket={}\"\n\
                     address = \"10.99.0.{}/24\"\nhugepages = \"off\"\n",
                    ["server", "client"][own],
                    folder.join("memif.sock").display(),
                    own + 1
                ));
            }
            if has("fabric") {
                sections.push_str("[datapath.fabric]\nprovider = \"tcp\"\n");
            }
            let plugins = format!("plugins = \"{}\"\n", plugins.display());
            let node = daemon::Node {
                name: host.name(),
                address: host.address(),
                core,
                peer: Some(peer.address()),
                interface: has("xdp").then(|| host.interface()),
                node: &plugins,
                lane: "",
                listener: &sections,
            };
            let command = host.command(takt.program())?;
            daemons.push(Daemon::start(command, &node, &scratch)?);
        }
        let session = |name: &str| {
            let builder = Session::builder().socket(daemon::socket(&folder, name));
            builder.name("roam").open()
        };
        let failed = |error: Error| TaktError::runtime("open a stream")(error.to_string());
        let sessions = [pair.near, pair.far].map(|host| session(host.name()));
        let [near, far] = sessions;
        let (near, far) = (near.map_err(failed)?, far.map_err(failed)?);
        // Not frugal: DPDK has a lane spin.
        let qos = Qos::fast().unlimited();
        let flow = |channel, qos| Flow::start(&near, &far, channel, qos).map_err(failed);
        Ok(Self {
            flows: [flow(1, qos.reliable())?, flow(2, qos)?],
            takt: takt.clone(),
            admin: daemon::admin(&folder, pair.near.name()),
            configuration: daemon::configuration(&folder, pair.near.name()),
            _sessions: [near, far],
            _daemons: daemons,
            _scratch: scratch,
        })
    }

    /// Has the sending node map the streams to this datapath, and measures what arrives from then on for `time`.
    ///
    /// # Errors
    /// When the node refuses it, or the streams do not move; the error has their reason.
    pub fn stay(&self, datapath: &str, time: Duration) -> Result<Sample, TaktError> {
        self.flows.iter().for_each(|flow| drop(flow.take()));
        let before = self.sent_by(datapath)?;
        let begun = Instant::now();
        self.map_to(datapath)?;
        for flow in &self.flows {
            await_that(
                || Ok(flow.stream.datapath() == datapath),
                || {
                    let reason = flow.stream.warning();
                    let reason = reason.unwrap_or_else(|| "it does not say why".into());
                    format!("it is not on {datapath}: {reason}")
                },
            )?;
        }
        let moved = begun.elapsed();
        std::thread::sleep(time);
        // On a busy machine it takes longer.
        for flow in &self.flows {
            let arrive = || Ok(flow.shared.seen().messages > 0);
            await_that(arrive, || format!("no message arrives by {datapath}"))?;
        }
        let sends = || Ok(self.sent_by(datapath)? > before);
        await_that(sends, || format!("its port of {datapath} sends nothing"))?;
        let [reliable, once] = self.flows.each_ref().map(Flow::take);
        let sent = self.sent_by(datapath)?.saturating_sub(before);
        let mut sample = Sample::from(reliable.latencies);
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let figures = [
            ("moved after ms", millis(moved)),
            ("longest silence ms", millis(reliable.silence)),
            ("reliable messages", reliable.messages as f64),
            ("messages sent once", once.messages as f64),
            ("datagrams of its port", sent as f64),
        ];
        let figures = figures.map(|(name, value)| (name.to_owned(), value));
        sample.figures.extend(figures);
        Ok(sample)
    }

    /// Ends, and says what became of the messages: those of the reliable stream, those that were sent once.
    ///
    /// # Errors
    /// When a stream has failed.
    pub fn finish(self) -> Result<[Fate; 2], TaktError> {
        let [reliable, once] = self.flows;
        Ok([reliable.finish()?, once.finish()?])
    }

    fn map_to(&self, datapath: &str) -> Result<(), TaktError> {
        let path = &self.configuration;
        let text = std::fs::read_to_string(path)
            .map_err(TaktError::io(format!("read {}", path.display())))?;
        let lines = text.lines().map(|line| match line.split_once(" = ") {
            Some((MAPPING, _)) => format!("{MAPPING} = [\"{datapath}\"]\n"),
            _ => format!("{line}\n"),
        });
        std::fs::write(path, lines.collect::<String>())
            .map_err(TaktError::io(format!("write {}", path.display())))?;
        self.takt.ask(&["reload"], &self.admin).map(drop)
    }

    /// Datagrams that the sending node's ports of this datapath have sent, by its own count.
    fn sent_by(&self, datapath: &str) -> Result<u64, TaktError> {
        let status = self.takt.ask(&["status"], &self.admin)?;
        let list = |value: &serde_json::Value, key: &str| {
            value[key].as_array().cloned().unwrap_or_default()
        };
        let lanes = list(&status["node"], "lanes");
        let ports = lanes.iter().flat_map(|lane| list(lane, "ports"));
        let ports = ports.filter(|port| port["datapath"] == datapath);
        Ok(ports
            .filter_map(|port| port["counters"]["tx_datagrams"].as_u64())
            .sum())
    }
}
