//! The flows of a source or of one thread's share of it, and what is done with their packets.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use takt_balance_xdp::beat::Key;
use takt_capture::Meta;
use takt_capture::file::Reader;
use takt_capture::pcapng::Writer;
use takt_capture::socket::PacketSocket;
use takt_health::key::FlowKey;
use takt_health::packet::LinkType;
use takt_health::rule::Action;
use takt_health::table::{Config, Event, Seen, Table, What};
use taktd::admin::proto::CapturedPacket;

use super::curve::Curve;
use super::node::{self, Node};
use super::relieve::Relieve;
use super::remap::Remap;
use super::tai::{self, utc_now};
use crate::balance::message;
use crate::capture::copy;
use crate::failure::Failure;

/// How long a live source is waited for between two looks at signals and flows.
pub const WAIT: Duration = Duration::from_millis(50);
/// Packets of a file between two looks at signals and flows.
const STRIDE: usize = 4096;
/// Flows that are looked at after each stride.
const SWEEP: usize = 8192;
/// Time of a file between two looks at flows, nanoseconds: as of a live source.
const PASS_NS: i64 = WAIT.as_nanos() as i64;
/// In a long pause looks are as much of it apart.
const PASS_SHARE: i64 = 1000;
/// No packet comes from further in the future than this.
const AHEAD_NS: i64 = 1_000_000_000;
/// For how long copies may come that were made before TAI less UTC was another.
const CHANGING_NS: i64 = 5_000_000_000;
/// Curves that are kept.
const CURVES: usize = 32;

/// `ENETDOWN`.
const ENETDOWN: i32 = rustix::io::Errno::NETDOWN.raw_os_error();

/// Where rules send what they are to send; threads share it.
#[derive(Default)]
pub struct Outlets {
    mirror: Option<Mutex<Mirror>>,
    control: Option<Receiver>,
    /// Messages that could not be sent, and where and why the first could not.
    control_failed: AtomicU64,
    control_trouble: OnceLock<String>,
    remap: Option<Remap>,
    relieve: Option<Relieve>,
}

/// Who gets control messages.
struct Receiver {
    socket: UdpSocket,
    to: SocketAddr,
    key: Option<Key>,
}

/// A file, or why it is none any more.
type Mirror = Result<Writer<BufWriter<File>>, io::Error>;

impl Outlets {
    /// Packets go to this file.
    pub fn mirror(&mut self, writer: Writer<BufWriter<File>>) {
        self.mirror = Some(Mutex::new(Ok(writer)));
    }

    /// Messages go to this address, signed if there is a key.
    pub fn control(&mut self, socket: UdpSocket, to: SocketAddr, key: Option<Key>) {
        self.control = Some(Receiver { socket, to, key });
    }

    /// Channels are mapped here.
    pub fn remap(&mut self, remap: Remap) {
        self.remap = Some(remap);
    }

    /// Sessions leave their lanes here.
    pub fn relieve(&mut self, relieve: Relieve) {
        self.relieve = Some(relieve);
    }

    /// Whether there is one for this.
    pub fn has(&self, action: Action) -> bool {
        match action {
            Action::Mirror => self.mirror.is_some(),
            Action::Control => self.control.is_some(),
            Action::Remap => self.remap.is_some(),
            Action::Move => self.relieve.is_some(),
            Action::Event | Action::Metric => true,
        }
    }

    /// How many messages could not be sent, and where and why the first could not.
    pub fn control_failed(&self) -> Option<(u64, &str)> {
        let trouble = self.control_trouble.get()?;
        Some((self.control_failed.load(Ordering::Relaxed), trouble))
    }

    fn send(&self, event: &Event) {
        if let Some(Receiver { socket, to, key }) = &self.control {
            let sent = message::write(event, utc_now(), key.as_ref())
                .map_err(io::Error::other)
                .and_then(|message| socket.send_to(&message, to));
            if let Err(error) = sent {
                self.control_failed.fetch_add(1, Ordering::Relaxed);
                self.control_trouble
                    .get_or_init(|| format!("{to}: {error}"));
            }
        }
    }

    fn write(&self, write: impl FnOnce(&mut Writer<BufWriter<File>>) -> io::Result<()>) {
        if let Some(mirror) = &self.mirror {
            let mut mirror = mirror.lock().unwrap_or_else(PoisonError::into_inner);
            if let Ok(writer) = &mut *mirror
                && let Err(error) = write(writer)
            {
                *mirror = Err(error);
            }
        }
    }

    /// Ends what rules have begun. Why packets were not written.
    pub fn finish(&mut self) -> Option<String> {
        if let Some(remap) = self.remap.take() {
            remap.finish();
        }
        if let Some(relieve) = self.relieve.take() {
            relieve.finish();
        }
        self.write(Writer::flush);
        let mirror = self.mirror.as_ref()?.lock();
        match &*mirror.unwrap_or_else(PoisonError::into_inner) {
            Err(error) => Some(format!("cannot write mirrored packets: {error}")),
            Ok(_) => None,
        }
    }
}

/// What a part has taken.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Share {
    pub packets: u64,
    /// Packets that came faster than they were taken, and were dropped by the kernel or not copied by the node, or were copied by another TAI; none for files.
    pub dropped: Option<u64>,
    /// How long after its reception the last packet was taken, nanoseconds; none for files.
    pub backlog_ns: Option<i64>,
    /// Packets whose times are the network card's.
    pub by_device: u64,
}

/// A part at work.
pub struct Part {
    name: String,
    pub table: Table,
    config: Config,
    /// The kernel's TAI less UTC is followed.
    follows: bool,
    /// When the kernel was told another, TAI, as long as copies of before may come.
    anew_ns: Option<i64>,
    /// Copies of before that were left out.
    of_before: u64,
    /// By the flow's place in the table, which may be another one's later.
    curves: Option<HashMap<usize, (FlowKey, Curve)>>,
    /// Since they were taken.
    pub events: Vec<Event>,
    /// Why the source ended early.
    pub trouble: Option<String>,
    dropped: Option<u64>,
    backlog_ns: Option<i64>,
    by_device: u64,
    /// When flows of a file were looked at last, by its time.
    passed_ns: i64,
    /// The interface is down.
    down: bool,
    pub unknown_link: Option<i32>,
}

impl Part {
    pub fn new(name: &str, is_live: bool, table: Table, config: Config) -> Self {
        Self {
            name: name.to_owned(),
            dropped: is_live.then_some(0),
            table,
            config,
            follows: false,
            anew_ns: None,
            of_before: 0,
            curves: None,
            events: Vec::new(),
            trouble: None,
            backlog_ns: None,
            by_device: 0,
            passed_ns: i64::MIN,
            down: false,
            unknown_link: None,
        }
    }

    /// The same, by the kernel's TAI less UTC at any time.
    pub fn following(self) -> Self {
        Self {
            follows: true,
            ..self
        }
    }

    /// Takes what the kernel has for TAI less UTC. Whether that is another than before: then all figures begin anew.
    fn follow(&mut self, offset_ns: i64) -> bool {
        let changed = self.follows && offset_ns != self.config.tai_offset_ns;
        if changed {
            self.config.tai_offset_ns = offset_ns;
            self.anew_ns = Some(utc_now().saturating_add(offset_ns));
            self.table.begin_anew(offset_ns);
            if let Some(curves) = &mut self.curves {
                curves.clear();
            }
        }
        changed
    }

    /// Whether curves are kept.
    pub fn keep_curves(&mut self, keep: bool) {
        self.curves = keep.then(HashMap::new);
    }

    /// Curves by the places of their flows.
    pub fn drawn(&self) -> impl Iterator<Item = (usize, &Curve)> {
        let curves = self.curves.iter().flatten();
        let there = curves.filter(|(at, (of, _))| {
            let flow = self.table.flow(**at);
            flow.is_some_and(|flow| flow.key == *of)
        });
        there.map(|(at, (_, curve))| (*at, curve))
    }

    /// What it has taken.
    pub fn share(&self) -> Share {
        Share {
            packets: self.table.counters().packets,
            dropped: self.dropped,
            backlog_ns: self.backlog_ns,
            by_device: self.by_device,
        }
    }

    /// Takes some packets of a file. False at its end.
    pub fn read(&mut self, reader: &mut Reader, packet: &mut Vec<u8>, outlets: &Outlets) -> bool {
        for _ in 0..STRIDE {
            match reader.next(packet) {
                Ok(Some(meta)) => {
                    self.pass(self.tai(&meta), outlets);
                    self.take(&meta, packet, outlets);
                }
                Ok(None) => {
                    self.end(outlets);
                    return false;
                }
                Err(error) => {
                    self.trouble = Some(format!("{}: {error}", self.name));
                    self.end(outlets);
                    return false;
                }
            }
        }
        true
    }

    /// Looks after the flows of a file as time passes there until its next packet.
    fn pass(&mut self, to_ns: i64, outlets: &Outlets) {
        let Some(from_ns) = self.table.latest_ns() else {
            self.passed_ns = to_ns;
            return;
        };
        if !self.table.judges() {
            return;
        }
        loop {
            let step = (self.passed_ns.saturating_sub(from_ns) / PASS_SHARE).max(PASS_NS);
            let next = self.passed_ns.saturating_add(step);
            if next >= to_ns {
                return;
            }
            self.passed_ns = next;
            self.look(next, outlets);
        }
    }

    /// Looks at all flows as of the last packet of a file.
    fn end(&mut self, outlets: &Outlets) {
        if let Some(now_ns) = self.table.latest_ns() {
            self.table.sweep(now_ns, usize::MAX);
            self.act(outlets);
        }
    }

    /// Takes what comes to a socket, waiting for some.
    pub fn receive(&mut self, socket: &mut PacketSocket, outlets: &Outlets) -> Result<(), Failure> {
        if self.follow(tai::offset_ns()) {
            socket.set_ahead(self.config.tai_offset_ns);
        }
        let mut last = None;
        let taken = socket.take(WAIT.as_millis() as u32, |meta, bytes, losing| {
            last = Some(meta.utc_ns);
            // What had no room here was not lost on its way.
            if losing {
                self.table.note_unseen(self.tai(meta));
            }
            self.take(meta, bytes, outlets);
        });
        match taken {
            Ok(taken) => self.down &= taken == 0,
            // It is told once when the interface goes down, and may come up again.
            Err(error) if error.raw_os_error() == Some(ENETDOWN) => {
                if !std::mem::replace(&mut self.down, true) && socket.is_there() {
                    eprintln!("takt: warning: {} is down", self.name);
                }
            }
            Err(error) => return Err(Failure::io("capture")(error)),
        }
        if self.down && !socket.is_there() {
            return Err(Failure::Other(format!(
                "cannot capture on {} any more: it was removed",
                self.name
            )));
        }
        self.by_device = socket.by_device();
        if let Ok(statistics) = socket.statistics()
            && statistics.drops > 0
        {
            *self.dropped.get_or_insert(0) += u64::from(statistics.drops);
            self.table.note_unseen(self.now());
        }
        self.took_until(last.map(|last| last + self.config.tai_offset_ns), outlets);
        Ok(())
    }

    /// As [`receive`](Self::receive), until an instant.
    pub fn receive_until(
        &mut self,
        end: Instant,
        socket: &mut PacketSocket,
        outlets: &Outlets,
    ) -> Result<(), Failure> {
        while Instant::now() < end {
            self.receive(socket, outlets)?;
        }
        Ok(())
    }

    /// Takes what the daemon has copied, waiting for some.
    pub fn copies(&mut self, node: &Node, outlets: &Outlets) -> Result<(), Failure> {
        let mut last = None;
        if let Some((packets, lost)) = node.take(WAIT)? {
            self.follow(tai::offset_ns());
            let packets = self.of_now(&packets);
            let lost = lost + self.of_before;
            if self.dropped.replace(lost).is_some_and(|had| lost > had) {
                self.table.note_unseen(self.now());
            }
            last = packets.last().map(|packet| packet.tai_ns);
            for packet in packets {
                self.take_copy(packet, outlets);
            }
        }
        self.took_until(last, outlets);
        Ok(())
    }

    /// Copies without those that were made before TAI less UTC was another: they have the other time.
    fn of_now<'p>(&mut self, packets: &'p [CapturedPacket]) -> Vec<&'p CapturedPacket> {
        let now_ns = self.now();
        // One that is to come was noted before the clock went back.
        let is_changing = |anew_ns: &i64| (0..CHANGING_NS).contains(&(now_ns - anew_ns));
        let Some(anew_ns) = self.anew_ns.filter(is_changing) else {
            self.anew_ns = None;
            return packets.iter().collect();
        };
        let times = anew_ns..now_ns + AHEAD_NS;
        let of_now = packets.iter().filter(|one| times.contains(&one.tai_ns));
        let of_now: Vec<_> = of_now.collect();
        self.of_before += (packets.len() - of_now.len()) as u64;
        if !packets.is_empty() && of_now.len() == packets.len() {
            self.anew_ns = None;
        }
        of_now
    }

    /// Notes when the last packet came of those that were taken now, TAI, if any was.
    fn took_until(&mut self, last_ns: Option<i64>, outlets: &Outlets) {
        let now_ns = self.now();
        let backlog_ns = last_ns.map_or(0, |last| (now_ns - last).max(0));
        self.backlog_ns = Some(backlog_ns);
        let dropped = self.dropped.unwrap_or(0);
        self.table.note_own(now_ns, backlog_ns, dropped);
        self.look(now_ns, outlets);
    }

    /// TAI.
    fn now(&self) -> i64 {
        utc_now().saturating_add(self.config.tai_offset_ns)
    }

    /// When a packet came, TAI.
    fn tai(&self, meta: &Meta) -> i64 {
        meta.utc_ns.saturating_add(self.config.tai_offset_ns)
    }

    /// Looks after flows that have become silent.
    fn look(&mut self, now_ns: i64, outlets: &Outlets) {
        self.table.sweep(now_ns, SWEEP);
        self.act(outlets);
    }

    fn take_copy(&mut self, packet: &CapturedPacket, outlets: &Outlets) {
        let (now_ns, bytes) = (packet.tai_ns, &packet.packet[..]);
        let taken = match packet.frame {
            true => (self.table).take(now_ns, LinkType::Ethernet, bytes, packet.length),
            false => (self.table).take_copy(now_ns, node::way(packet), bytes, packet.length),
        };
        let Ok(seen) = taken else { return };
        let offset_ns = self.config.tai_offset_ns;
        self.seen(seen, now_ns, outlets, |writer| {
            copy::write(writer, packet, offset_ns)
        });
    }

    fn take(&mut self, meta: &Meta, bytes: &[u8], outlets: &Outlets) {
        let Some(link) = LinkType::from_number(meta.link_type) else {
            self.unknown_link = Some(meta.link_type);
            return;
        };
        let now_ns = self.tai(meta);
        if let Ok(seen) = self.table.take(now_ns, link, bytes, meta.length) {
            self.seen(seen, now_ns, outlets, |writer| writer.packet(meta, bytes));
        }
    }

    /// Does what is to be done with a packet that the table has taken; `mirror` writes it.
    fn seen(
        &mut self,
        seen: Seen,
        now_ns: i64,
        outlets: &Outlets,
        mirror: impl FnOnce(&mut Writer<BufWriter<File>>) -> io::Result<()>,
    ) {
        if seen.mirror {
            outlets.write(mirror);
        }
        if let (Some(curves), Some(at)) = (&mut self.curves, seen.flow)
            && let Some(flow) = self.table.flow(at)
            && let Some(delay) = flow.last_delay_ns()
        {
            let declared = flow.spec.is_some();
            let room = curves.len() < if declared { CURVES } else { CURVES / 2 };
            if room || curves.contains_key(&at) {
                let new = || (flow.key, Curve::new(now_ns));
                let (of, curve) = curves.entry(at).or_insert_with(new);
                if *of != flow.key {
                    (*of, *curve) = new();
                }
                curve.take(now_ns, delay, flow.level());
            }
        }
        if self.table.has_events() {
            self.act(outlets);
        }
    }

    /// Does what rules ask for, and keeps what happened.
    fn act(&mut self, outlets: &Outlets) {
        let events: Vec<Event> = self.table.take_events().collect();
        for event in events {
            let wanted = |action| match &event.what {
                What::Level { .. } => action == Action::Event,
                What::Rule { actions, .. } => actions.contains(&action),
            };
            if wanted(Action::Control) {
                outlets.send(&event);
            }
            if let What::Rule { begins, .. } = event.what
                && wanted(Action::Remap)
                && let Some(remap) = &outlets.remap
            {
                remap.tell(&event.key, begins);
            }
            if let What::Rule {
                begins: true, rule, ..
            } = &event.what
                && wanted(Action::Move)
                && let Some(relieve) = &outlets.relieve
            {
                relieve.tell(&event.key, rule);
            }
            if wanted(Action::Event) {
                self.events.push(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use takt_health::spec::Document;

    #[test]
    fn copies_of_another_tai_are_left_out_until_the_first_of_this_one() {
        let config = Config {
            tai_offset_ns: 0,
            ..Config::default()
        };
        let table = Table::new(config, Document::default());
        let mut part = Part::new("node", true, table, config).following();
        let copy = |ahead_ns: i64| CapturedPacket {
            tai_ns: utc_now() + ahead_ns,
            ..CapturedPacket::default()
        };
        const TAI: i64 = 37_000_000_000;
        assert!(part.follow(TAI));
        let (before, now) = (copy(0), copy(TAI));
        assert_eq!(part.of_now(&[before.clone(), now.clone()]), [&now]);
        assert_eq!(part.of_now(std::slice::from_ref(&before)).len(), 0);
        assert_eq!(part.of_before, 2);
        // All are of this one: from here on the clock may go back.
        assert_eq!(part.of_now(std::slice::from_ref(&now)), [&now]);
        assert_eq!(part.of_now(std::slice::from_ref(&before)), [&before]);
        // It does so before any has come.
        part.anew_ns = Some(part.now() + CHANGING_NS);
        assert_eq!(part.of_now(std::slice::from_ref(&before)), [&before]);
        assert_eq!(part.of_before, 2);
    }

    #[test]
    fn packets_and_looks_are_by_one_clock_when_the_kernel_is_told_of_tai() {
        let document = "[[flow]]\nname = \"a\"\nmatch = \"*\"\nperiod = \"1s\"\n";
        let document = Document::read(document).expect("a document");
        let config = Config {
            tai_offset_ns: 0,
            ..Config::default()
        };
        let table = Table::new(config, document);
        let mut part = Part::new("node", true, table, config).following();
        let outlets = Outlets::default();
        let mut packet = vec![0x91, 0xe0, 0xf0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
        packet.resize(60, 0);
        for offset_ns in [0, 37_000_000_000, 0] {
            let has_begun = part.table.latest_ns().is_some();
            assert_eq!(part.follow(offset_ns), has_begun);
            let copy = CapturedPacket {
                frame: true,
                tai_ns: utc_now() + offset_ns,
                length: 60,
                packet: packet.clone(),
                ..CapturedPacket::default()
            };
            part.take_copy(&copy, &outlets);
            part.took_until(None, &outlets);
            assert_eq!(part.table.levels(), [1, 0, 0]);
            let report = part.table.flows()[0].report(None);
            assert_eq!((report.packets, report.missing), (1, Some(0)));
        }
    }
}
