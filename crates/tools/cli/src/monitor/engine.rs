//! A source in one part or, of an interface, several that take packets at the same time; their figures and events together.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::Instant;

use takt_balance_xdp::beat::Key;
use takt_capture::file::Reader;
use takt_capture::pcapng::Writer;
use takt_capture::socket::PacketSocket;
use takt_capture::spread::Spread;
use takt_health::flow::Flow;
use takt_health::rule::Action;
use takt_health::spec::{Document, Spec};
use takt_health::table::{Counters, Event, RuleCount, Table};

use super::curve::Curve;
use super::node::Node;
use super::part::{Outlets, Part, Share, WAIT};
use super::relieve::Relieve;
use super::remap::Remap;
use super::source::{By, Observe, Source};
use super::tai;
use super::{Account, Levels, RuleLine};
use crate::failure::Failure;

/// Events that are kept for the account.
const EVENTS: usize = 1000;
/// Of mirrored packets.
const SNAP: u32 = 65_535;

/// Where a flow is: in which part, and in its table. What is shown first comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    at: usize,
    part: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.part, self.at)
    }
}

/// Where packets come from.
enum Input {
    File(Box<Reader>, Vec<u8>),
    /// A socket for each part.
    Live(Vec<PacketSocket>),
    Node(Node),
}

/// A monitor at work.
pub struct Engine {
    name: String,
    input: Input,
    /// At least one.
    parts: Vec<Part>,
    outlets: Outlets,
    keep: bool,
    events: VecDeque<Event>,
    left_out: u64,
    trouble: Option<String>,
}

impl Engine {
    /// Opens the source.
    pub fn new(source: &Source, observe: &Observe, document: Document) -> Result<Self, Failure> {
        let name = source.name();
        let input = match (&source.read, &source.interface) {
            (Some(path), _) => Input::file(path)?,
            (None, Some(interface)) => Input::Live(sockets(interface, source, observe)?),
            (None, None) => Input::Node(Node::open(source)?),
        };
        let count = match &input {
            Input::Live(sockets) => sockets.len(),
            _ => 1,
        };
        // What a node copies has its TAI, whatever anybody says.
        let said = observe.tai_offset.filter(|_| !source.node);
        let (offset_ns, follows) = match (said, source.is_live()) {
            (Some(said), _) => (said * 1_000_000_000, false),
            (None, true) => (tai::offset_ns(), true),
            (None, false) => (37_000_000_000, false),
        };
        let mut config = observe.config(offset_ns);
        config.capacity = config.capacity.div_ceil(count);
        config.histograms = config.histograms.div_ceil(count);
        let part = |_| {
            let table = Table::new(config, document.clone());
            let part = Part::new(&name, source.is_live(), table, config);
            if follows { part.following() } else { part }
        };
        Ok(Self {
            input,
            parts: (0..count).map(part).collect(),
            name,
            outlets: Outlets::default(),
            keep: true,
            events: VecDeque::new(),
            left_out: 0,
            trouble: None,
        })
    }

    /// Whether curves are kept.
    pub fn curves(&mut self, keep: bool) {
        for part in &mut self.parts {
            part.keep_curves(keep);
        }
    }

    /// Whether events are kept for the account.
    pub fn keep_events(&mut self, keep: bool) {
        self.keep = keep;
    }

    /// Where rules mirror to.
    pub fn mirror(&mut self, path: Option<&Path>) -> Result<(), Failure> {
        let Some(path) = path else {
            return self.needs(Action::Mirror, "--mirror FILE");
        };
        let writer = File::create(path)
            .and_then(|file| Writer::new(BufWriter::new(file), SNAP))
            .map_err(|error| Failure::Other(format!("cannot write {}: {error}", path.display())))?;
        self.outlets.mirror(writer);
        Ok(())
    }

    /// Where rules send control messages to.
    pub fn control(&mut self, to: Option<SocketAddr>, key: Option<Key>) -> Result<(), Failure> {
        let Some(to) = to else {
            return self.needs(Action::Control, "--control ADDRESS");
        };
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any)
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
            .map_err(Failure::io("open a socket for control messages"))?;
        self.outlets.control(socket, to, key);
        Ok(())
    }

    /// Which datapath of the watched node rules map channels to.
    pub fn remap(&mut self, to: Option<&str>, source: &Source) -> Result<(), Failure> {
        let Some(to) = to else {
            return self.needs(
                Action::Remap,
                "--remap DATAPATH, and watch a node with --node",
            );
        };
        self.outlets.remap(Remap::open(source, to)?);
        Ok(())
    }

    /// Whether rules may have sessions of the watched node leave their lanes.
    pub fn relieve(&mut self, moves: bool, source: &Source) -> Result<(), Failure> {
        if !moves {
            return self.needs(Action::Move, "--move, and watch a node with --node");
        }
        self.outlets.relieve(Relieve::open(source));
        Ok(())
    }

    /// Refuses rules that do what nothing was named for.
    fn needs(&self, action: Action, option: &str) -> Result<(), Failure> {
        let rules = &self.document().rules;
        match rules.iter().find(|rule| rule.actions.contains(&action)) {
            None => Ok(()),
            Some(rule) => Err(Failure::Other(format!(
                "rule {} has {}: allow it, and say where to, with {option}",
                rule.name,
                action.name()
            ))),
        }
    }

    /// Puts other rules in force, if they do nothing that has no target.
    pub fn replace(&mut self, document: &Document) {
        let mut actions = document.rules.iter().flat_map(|rule| &rule.actions);
        if actions.any(|action| !self.outlets.has(*action)) {
            eprintln!(
                "takt: the changed rules mirror, control, remap or move, and no --mirror, --control, --remap or --move is given: the old ones stay"
            );
            return;
        }
        for part in &mut self.parts {
            part.table.replace_document(document.clone());
        }
    }

    fn tables(&self) -> impl Iterator<Item = &Table> {
        self.parts.iter().map(|part| &part.table)
    }

    /// What flows are to keep to: the same in all parts.
    pub fn document(&self) -> &Document {
        self.parts[0].table.document()
    }

    /// The specification of a flow.
    pub fn spec(&self, flow: &Flow) -> Option<&Spec> {
        self.document().specs.get(usize::from(flow.spec?))
    }

    /// A flow by its place.
    pub fn flow(&self, place: Place) -> &Flow {
        &self.parts[place.part].table.flows()[place.at]
    }

    /// All flows, in no order that lasts.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.tables().flat_map(Table::flows)
    }

    /// How many flows there are.
    pub fn flow_count(&self) -> usize {
        self.tables().map(|table| table.flows().len()).sum()
    }

    /// What was counted beside the flows.
    pub fn counters(&self) -> Counters {
        self.tables().map(Table::counters).sum()
    }

    /// How many flows are green, yellow and red.
    pub fn levels(&self) -> [usize; 3] {
        self.tables().map(Table::levels).fold([0; 3], |sum, more| {
            [sum[0] + more[0], sum[1] + more[1], sum[2] + more[2]]
        })
    }

    /// Rules over all flows, in the document's order.
    pub fn rules(&self) -> Vec<(&str, RuleCount)> {
        let mut rules: Vec<_> = self.parts[0].table.rules().collect();
        for table in self.tables().skip(1) {
            for (sum, (_, more)) in rules.iter_mut().zip(table.rules()) {
                sum.1.begun += more.begun;
                sum.1.active += more.active;
            }
        }
        rules
    }

    /// Curves by the flows' places.
    pub fn drawn(&self) -> Vec<(Place, &Curve)> {
        let parts = self.parts.iter().enumerate();
        let curves = parts.flat_map(|(part, of)| {
            let curves = of.drawn();
            curves.map(move |(at, curve)| (Place { part, at }, curve))
        });
        let mut curves: Vec<_> = curves.collect();
        curves.sort_by_key(|(place, _)| *place);
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

    /// What was dropped, and how far behind the last part is.
    pub fn backlog(&self) -> (Option<u64>, Option<i64>) {
        let shares = || self.parts.iter().map(Part::share);
        let dropped = shares()
            .filter_map(|share| share.dropped)
            .reduce(|a, b| a + b);
        (dropped, shares().filter_map(|share| share.backlog_ns).max())
    }

    /// Events since the last call, where they are not kept.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }

    /// Takes some packets. False at the end of a file.
    pub fn step(&mut self) -> Result<bool, Failure> {
        let outlets = &self.outlets;
        let mut goes_on = true;
        match (&mut self.input, &mut self.parts[..]) {
            (_, []) => goes_on = false,
            (Input::File(reader, packet), [part, ..]) => {
                goes_on = part.read(reader, packet, outlets);
            }
            (Input::Node(node), [part, ..]) => part.copies(node, outlets)?,
            (Input::Live(sockets), [part]) => part.receive(&mut sockets[0], outlets)?,
            (Input::Live(sockets), parts) => {
                let end = Instant::now() + WAIT;
                thread::scope(|scope| {
                    let both = parts.iter_mut().zip(sockets);
                    let running: Vec<_> = both
                        .map(|(part, socket)| {
                            scope.spawn(move || part.receive_until(end, socket, outlets))
                        })
                        .collect();
                    running.into_iter().try_for_each(|running| {
                        let received = running.join();
                        received.unwrap_or_else(|why| std::panic::resume_unwind(why))
                    })
                })?;
            }
        }
        self.gather();
        Ok(goes_on)
    }

    /// Takes what a live source has had before its end and not handed out yet: blocks that are not full, copies under way.
    pub fn take_the_rest(&mut self) -> Result<(), Failure> {
        let end = Instant::now() + WAIT;
        while Instant::now() < end {
            self.step()?;
        }
        Ok(())
    }

    /// Keeps what has happened, in the order of time.
    fn gather(&mut self) {
        let parts = self.parts.iter_mut();
        let mut events: Vec<_> = parts.flat_map(|part| part.events.drain(..)).collect();
        if self.parts.len() > 1 {
            events.sort_by_key(|event| event.at_ns);
        }
        for event in events {
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

    /// The source has ended early.
    pub fn ends(&mut self, why: &Failure) {
        self.parts[0].trouble = Some(why.to_string());
    }

    /// Ends what is being written, and says what went wrong meanwhile.
    pub fn finish(&mut self) -> Result<(), Failure> {
        self.trouble = self.parts.iter().find_map(|part| part.trouble.clone());
        if let Some(failed) = self.outlets.finish() {
            self.trouble = Some(failed);
        }
        if let Some((failed, trouble)) = self.outlets.control_failed() {
            eprintln!("takt: {failed} control messages could not be sent: the first to {trouble}");
        }
        if let Some(link) = self.parts.iter().find_map(|part| part.unknown_link) {
            let text = format!(
                "{}: packets of link type {link} were left out: Ethernet (1), IP (101), Linux cooked (113, 276) and \
                 loopback (0) are read{}",
                self.name,
                match link {
                    252 =>
                        "; what `takt capture` writes is for Wireshark: watch the node itself with --node",
                    _ => "",
                }
            );
            self.trouble.get_or_insert(text);
        }
        Ok(())
    }

    /// [`finish`](Self::finish), and fails if anything did.
    pub fn finish_well(&mut self) -> Result<(), Failure> {
        self.finish()?;
        match self.trouble() {
            Some(trouble) => Err(Failure::Other(trouble.to_owned())),
            None => Ok(()),
        }
    }

    /// Places of all flows, the worst first.
    pub fn order(&self) -> Vec<Place> {
        let parts = self.parts.iter().enumerate();
        let places = parts.flat_map(|(part, of)| {
            let flows = 0..of.table.flows().len();
            flows.map(move |at| Place { part, at })
        });
        let mut order: Vec<Place> = places.collect();
        order.sort_by(|one, other| {
            let (one, other) = (self.flow(*one), self.flow(*other));
            let key = |flow: &Flow| (flow.level(), flow.spec.is_some(), flow.packets);
            key(other).cmp(&key(one)).then(one.key.cmp(&other.key))
        });
        order
    }

    /// Everything that was seen.
    pub fn account(&self) -> Account {
        let [green, yellow, red] = self.levels();
        let (dropped, backlog_ns) = self.backlog();
        let flows = self.order().into_iter().map(|place| {
            let flow = self.flow(place);
            flow.report(self.spec(flow))
        });
        let shares: Vec<Share> = self.parts.iter().map(Part::share).collect();
        Account {
            source: self.name.clone(),
            packets: self.counters(),
            dropped,
            backlog_ns,
            threads: shares,
            levels: Levels { green, yellow, red },
            rules: self
                .rules()
                .into_iter()
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

/// Sockets that share an interface's packets.
fn sockets(
    interface: &str,
    source: &Source,
    observe: &Observe,
) -> Result<Vec<PacketSocket>, Failure> {
    let failed = |error: takt_capture::socket::OpenError| Failure::Other(error.to_string());
    let ring = source.ring as usize;
    let mut sockets = match source.threads {
        1 => PacketSocket::open(interface, ring, source.outgoing).map(|socket| vec![socket]),
        threads => {
            let spread = match observe.by {
                By::Tuple => Spread::Tuples,
                By::Stream => Spread::Destinations,
            };
            let among = (threads.into(), spread);
            PacketSocket::open_several(interface, ring, source.outgoing, among)
        }
    }
    .map_err(failed)?;
    if source.device_times {
        let said = observe.tai_offset.map(|said| said * 1_000_000_000);
        let ahead_ns = said.unwrap_or_else(tai::offset_ns);
        for socket in &mut sockets {
            (socket.take_device_times(interface, ahead_ns)).map_err(failed)?;
        }
    }
    Ok(sockets)
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
