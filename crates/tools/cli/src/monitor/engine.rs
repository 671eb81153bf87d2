//! Packets in, figures, events and what rules do out.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, SystemTime};

use takt_capture::Meta;
use takt_capture::file::Reader;
use takt_capture::pcapng::Writer;
use takt_capture::socket::PacketSocket;
use takt_clock::{Clock, SystemTai};
use takt_health::packet::LinkType;
use takt_health::rule::Action;
use takt_health::spec::Document;
use takt_health::table::{Config, Event, Seen, Table, What};
use taktd::admin::proto::CapturedPacket;

use super::curve::Curve;
use super::node::{self, Node, Waited};
use super::source::{Observe, Source};
use super::{Account, Levels, RuleLine};
use crate::capture::copy;
use crate::failure::Failure;

/// How long a live source is waited for between two looks at signals and flows.
const WAIT: Duration = Duration::from_millis(50);
/// Packets of a file between two looks at signals and flows.
const STRIDE: usize = 4096;
/// Flows that are looked at after each stride.
const SWEEP: usize = 8192;
/// Curves that are kept.
const CURVES: usize = 32;
/// Events that are kept for the account.
const EVENTS: usize = 1000;
/// Of mirrored packets.
const SNAP: u32 = 65_535;

/// Captures at hand.
enum Input {
    File(Box<Reader>, Vec<u8>),
    Live(PacketSocket),
    Node(Node),
    Over,
}

/// A monitor at work.
pub struct Engine {
    name: String,
    input: Input,
    table: Table,
    config: Config,
    curves: Option<HashMap<usize, Curve>>,
    mirror: Option<Writer<BufWriter<File>>>,
    control: Option<(UdpSocket, SocketAddr)>,
    keep: bool,
    events: VecDeque<Event>,
    left_out: u64,
    trouble: Option<String>,
    dropped: Option<u64>,
    backlog_ns: Option<i64>,
    unknown_link: Option<i32>,
    /// Messages that could not be sent.
    control_failed: u64,
    mirror_failed: Option<io::Error>,
}

/// TAI less UTC by the kernel, seconds.
pub fn kernel_tai_offset() -> i64 {
    let tai = SystemTai.now().as_nanos();
    let utc = utc_now();
    (tai - utc + 500_000_000).div_euclid(1_000_000_000)
}

fn utc_now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    })
}

impl Engine {
    /// Opens the source.
    pub fn new(source: &Source, observe: &Observe, document: Document) -> Result<Self, Failure> {
        let name = source.name();
        let (input, offset) = match (&source.read, &source.interface) {
            (Some(path), _) => (Input::file(path)?, observe.tai_offset.unwrap_or(37)),
            (None, Some(interface)) => {
                let socket = PacketSocket::open(interface, source.ring as usize, source.outgoing)
                    .map_err(|error| Failure::Other(error.to_string()))?;
                let offset = observe.tai_offset.unwrap_or_else(kernel_tai_offset);
                (Input::Live(socket), offset)
            }
            (None, None) => {
                let offset = observe.tai_offset.unwrap_or_else(kernel_tai_offset);
                (Input::Node(Node::open(source)?), offset)
            }
        };
        let config = observe.config(offset);
        Ok(Self {
            name,
            dropped: source.is_live().then_some(0),
            input,
            table: Table::new(config, document),
            config,
            curves: None,
            mirror: None,
            control: None,
            keep: true,
            events: VecDeque::new(),
            left_out: 0,
            trouble: None,
            backlog_ns: None,
            unknown_link: None,
            control_failed: 0,
            mirror_failed: None,
        })
    }

    /// Whether curves are kept.
    pub fn curves(&mut self, keep: bool) {
        self.curves = keep.then(HashMap::new);
    }

    /// Whether events are kept for the account.
    pub fn keep_events(&mut self, keep: bool) {
        self.keep = keep;
    }

    /// Where rules mirror to.
    pub fn mirror(&mut self, path: Option<&Path>) -> Result<(), Failure> {
        if path.is_none() {
            return self.needs(Action::Mirror, "--mirror FILE");
        }
        if let Some(path) = path {
            let writer = File::create(path)
                .and_then(|file| Writer::new(BufWriter::new(file), SNAP))
                .map_err(|error| {
                    Failure::Other(format!("cannot write {}: {error}", path.display()))
                })?;
            self.mirror = Some(writer);
        }
        Ok(())
    }

    /// Where rules send control messages to.
    pub fn control(&mut self, to: Option<SocketAddr>) -> Result<(), Failure> {
        let Some(to) = to else {
            return self.needs(Action::Control, "--control ADDRESS");
        };
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any)
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
            .map_err(Failure::io("open a socket for control messages"))?;
        self.control = Some((socket, to));
        Ok(())
    }

    /// Refuses rules that do what nothing was named for.
    fn needs(&self, action: Action, option: &str) -> Result<(), Failure> {
        let rules = &self.table.document().rules;
        match rules.iter().find(|rule| rule.actions.contains(&action)) {
            None => Ok(()),
            Some(rule) => Err(Failure::Other(format!(
                "rule {} has {}: say where to with {option}",
                rule.name,
                action.name()
            ))),
        }
    }

    /// Puts other rules in force, if they do nothing that has no target.
    pub fn replace(&mut self, document: Document) {
        let missing = |action, there: bool| {
            !there
                && document
                    .rules
                    .iter()
                    .any(|rule| rule.actions.contains(&action))
        };
        if missing(Action::Mirror, self.mirror.is_some())
            || missing(Action::Control, self.control.is_some())
        {
            eprintln!(
                "takt: the changed rules mirror or control, and no --mirror or --control is given: the old ones stay"
            );
            return;
        }
        self.table.replace_document(document);
    }

    /// The flows.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Curves by the flows' places.
    pub fn drawn(&self) -> Vec<(usize, &Curve)> {
        let curves = self.curves.iter().flatten();
        let mut curves: Vec<_> = curves.map(|(at, curve)| (*at, curve)).collect();
        curves.sort_by_key(|(at, _)| *at);
        curves
    }

    /// The source.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Why the source ended early.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// How many bytes of the file were read.
    pub fn bytes_read(&self) -> u64 {
        match &self.input {
            Input::File(reader, _) => reader.bytes(),
            _ => 0,
        }
    }

    /// What the kernel dropped, and how far behind the monitor is.
    pub fn backlog(&self) -> (Option<u64>, Option<i64>) {
        (self.dropped, self.backlog_ns)
    }

    /// Events since the last call, where they are not kept.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }

    /// Takes some packets. False at the end of a file.
    pub fn step(&mut self) -> Result<bool, Failure> {
        let mut input = std::mem::replace(&mut self.input, Input::Over);
        let goes_on = match &mut input {
            Input::File(reader, packet) => self.read(reader, packet),
            Input::Live(socket) => self.receive(socket)?,
            Input::Node(node) => self.copies(node)?,
            Input::Over => false,
        };
        self.input = input;
        if goes_on && let Some(now) = self.table.latest_ns() {
            let now = match self.input {
                Input::Live(_) | Input::Node(_) => utc_now() + self.config.tai_offset_ns,
                _ => now,
            };
            self.table.sweep(now, SWEEP);
            self.act();
        }
        Ok(goes_on)
    }

    fn read(&mut self, reader: &mut Reader, packet: &mut Vec<u8>) -> bool {
        for _ in 0..STRIDE {
            match reader.next(packet) {
                Ok(Some(meta)) => self.take(&meta, packet),
                Ok(None) => return false,
                Err(error) => {
                    self.trouble = Some(format!("{}: {error}", self.name));
                    return false;
                }
            }
        }
        true
    }

    fn receive(&mut self, socket: &mut PacketSocket) -> Result<bool, Failure> {
        let mut last = None;
        let taken = socket
            .take(WAIT.as_millis() as u32, |meta, bytes| {
                last = Some(meta.utc_ns);
                self.take(meta, bytes);
            })
            .map_err(|error| match error.raw_os_error() {
                Some(_) => Failure::Other(format!(
                    "cannot capture on {}: {error}; was it taken down or removed?",
                    self.name
                )),
                None => Failure::io("capture")(error),
            })?;
        if taken > 0 {
            self.backlog_ns = last.map(|last| (utc_now() - last).max(0));
        } else {
            self.backlog_ns = Some(0);
        }
        if let Ok(statistics) = socket.statistics() {
            let dropped = self.dropped.get_or_insert(0);
            *dropped += u64::from(statistics.drops);
        }
        Ok(true)
    }

    /// Takes what the daemon has copied.
    fn copies(&mut self, node: &Node) -> Result<bool, Failure> {
        match node.take(WAIT)? {
            Waited::Nothing => self.backlog_ns = Some(0),
            Waited::Copies(packets, lost) => {
                self.dropped = Some(lost);
                let last = packets.last().map(|packet| packet.tai_ns);
                for packet in &packets {
                    self.take_copy(packet);
                }
                let now = utc_now() + self.config.tai_offset_ns;
                self.backlog_ns = Some(last.map_or(0, |last| (now - last).max(0)));
            }
        }
        Ok(true)
    }

    fn take_copy(&mut self, packet: &CapturedPacket) {
        let (now_ns, bytes) = (packet.tai_ns, &packet.packet[..]);
        let taken = match packet.frame {
            true => (self.table).take(now_ns, LinkType::Ethernet, bytes, packet.length),
            false => (self.table).take_copy(now_ns, node::way(packet), bytes, packet.length),
        };
        let Ok(seen) = taken else { return };
        let offset_ns = self.config.tai_offset_ns;
        self.seen(seen, now_ns, |writer| {
            copy::write(writer, packet, offset_ns)
        });
    }

    fn take(&mut self, meta: &Meta, bytes: &[u8]) {
        let Some(link) = LinkType::from_number(meta.link_type) else {
            self.unknown_link = Some(meta.link_type);
            return;
        };
        let now_ns = meta.utc_ns.saturating_add(self.config.tai_offset_ns);
        if let Ok(seen) = self.table.take(now_ns, link, bytes, meta.length) {
            self.seen(seen, now_ns, |writer| writer.packet(meta, bytes));
        }
    }

    /// Does what is to be done with a packet that the table has taken; `mirror` writes it.
    fn seen(
        &mut self,
        seen: Seen,
        now_ns: i64,
        mirror: impl FnOnce(&mut Writer<BufWriter<File>>) -> io::Result<()>,
    ) {
        if seen.mirror
            && let Some(writer) = &mut self.mirror
            && let Err(error) = mirror(writer)
        {
            self.mirror_failed.get_or_insert(error);
            self.mirror = None;
        }
        if let (Some(curves), Some(at)) = (&mut self.curves, seen.flow)
            && let Some(flow) = self.table.flow(at)
            && let Some(delay) = flow.last_delay_ns()
        {
            let declared = flow.spec.is_some();
            let room = curves.len() < if declared { CURVES } else { CURVES / 2 };
            if room || curves.contains_key(&at) {
                let curve = curves.entry(at).or_insert_with(|| Curve::new(now_ns));
                curve.take(now_ns, delay, flow.level());
            }
        }
        if self.table.has_events() {
            self.act();
        }
    }

    /// Does what rules ask for, and keeps what happened.
    fn act(&mut self) {
        let events: Vec<Event> = self.table.take_events().collect();
        for event in events {
            let wanted = |action| match &event.what {
                What::Level { .. } => action == Action::Event,
                What::Rule { index, .. } => {
                    let rule = self.table.document().rules.get(*index);
                    rule.is_some_and(|rule| rule.actions.contains(&action))
                }
            };
            if wanted(Action::Control)
                && let Some((socket, to)) = &self.control
            {
                let sent = serde_json::to_vec(&event)
                    .map_err(io::Error::other)
                    .and_then(|message| socket.send_to(&message, to));
                self.control_failed += u64::from(sent.is_err());
            }
            if wanted(Action::Event) {
                if self.events.len() >= EVENTS {
                    self.left_out += 1;
                    if self.keep {
                        self.events.pop_front();
                    } else {
                        continue;
                    }
                }
                self.events.push_back(event);
            }
        }
    }

    /// Ends what is being written, and says what went wrong meanwhile.
    pub fn finish(&mut self) -> Result<(), Failure> {
        if let Some(writer) = &mut self.mirror
            && let Err(error) = writer.flush()
        {
            self.mirror_failed.get_or_insert(error);
        }
        if let Some(error) = &self.mirror_failed {
            self.trouble = Some(format!("cannot write mirrored packets: {error}"));
        }
        if self.control_failed > 0 {
            eprintln!(
                "takt: {} control messages could not be sent",
                self.control_failed
            );
        }
        if let Some(link) = self.unknown_link {
            let text = format!(
                "{}: packets of link type {link} were left out: Ethernet (1), IP (101), Linux cooked (113, 276) and \
                 loopback (0) are read",
                self.name
            );
            self.trouble.get_or_insert(text);
        }
        Ok(())
    }

    /// Places of all flows, the worst first.
    pub fn order(&self) -> Vec<usize> {
        let flows = self.table.flows();
        let mut order: Vec<usize> = (0..flows.len()).collect();
        order.sort_by(|one, other| {
            let (one, other) = (&flows[*one], &flows[*other]);
            let key =
                |flow: &takt_health::flow::Flow| (flow.level(), flow.spec.is_some(), flow.packets);
            key(other).cmp(&key(one)).then(one.key.cmp(&other.key))
        });
        order
    }

    /// Everything that was seen.
    pub fn account(&self) -> Account {
        let [green, yellow, red] = self.table.levels();
        let flows = self.order().into_iter().map(|at| {
            let flow = &self.table.flows()[at];
            flow.report(self.table.spec(flow))
        });
        Account {
            source: self.name.clone(),
            packets: self.table.counters(),
            dropped: self.dropped,
            backlog_ns: self.backlog_ns,
            levels: Levels { green, yellow, red },
            rules: self
                .table
                .rules()
                .map(|(rule, count)| RuleLine {
                    rule: rule.to_owned(),
                    begun: count.begun,
                    active: count.active,
                })
                .collect(),
            events: self.events.iter().cloned().collect(),
            events_left_out: self.left_out,
            trouble: self.trouble.clone(),
            flows: flows.collect(),
        }
    }

    /// What happened, the latest last.
    pub fn events(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.events.iter()
    }
}

impl Input {
    fn file(path: &Path) -> Result<Self, Failure> {
        let cannot = |error: &dyn std::fmt::Display| {
            Failure::Other(format!("cannot read {}: {error}", path.display()))
        };
        let file: Box<dyn Read + Send> = match path == Path::new("-") {
            true => Box::new(io::stdin()),
            false => Box::new(BufReader::new(
                File::open(path).map_err(|error| cannot(&error))?,
            )),
        };
        let reader = Reader::new(file).map_err(|error| cannot(&error))?;
        Ok(Self::File(Box::new(reader), Vec::new()))
    }
}
