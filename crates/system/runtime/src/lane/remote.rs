//! Lanes of other nodes, and of this node's other lanes: where to send, and the datagrams being filled.

use std::collections::{HashSet, hash_set};
use std::net::IpAddr;

use takt_datapath::{Frame, PeerHandle, Port, ReserveError};
use takt_shm::SharedSlice;
use takt_time::{TaiTime, TrafficClass};
use takt_wire::channel::{
    DatagramCursor, FRAGMENT_HEADER_LEN, HEADER_LEN, Kind, Protection, RECORD_HEADER_LEN,
    RecordHeader,
};
use takt_wire::{ethernet, ipv4, ipv6, udp};

use super::guard::Guard;
use super::port::LanePort;
use crate::slots::ChannelSlot;

/// Padding that makes a last fragment as long as the others: at most one part in so many of a datagram.
const MOST_PADDING: usize = 8;

/// A lane elsewhere.
#[derive(Debug)]
pub struct Remote {
    /// Its datagrams carry this as `sender`.
    pub incarnation: u32,
    /// What its sources are numbered by for sinks.
    pub label: u32,
    /// What ours carry.
    own_incarnation: u32,
    /// What protects datagrams to and from it.
    pub guard: Guard,
    /// The addresses its datagrams come from, the node's first; none of a lane of this node.
    pub addresses: Vec<IpAddr>,
    /// Per port of this lane: the peer there, if it can reach the remote lane.
    pub via: Vec<Option<PeerHandle>>,
    /// Per port: how what receives there stands; none: all work.
    pub standings: Vec<Standing>,
    /// Per port: the longest payload that the remote lane takes.
    takes: Vec<usize>,
    /// Channels on which it has sinks: indices into this lane's channels.
    pub channels: HashSet<ChannelSlot>,
    /// Those on which it has none any more, all at once: it is still entered there.
    going: Vec<hash_set::IntoIter<ChannelSlot>>,
    /// Numbers of channels on which it has sinks again, all at once: it is not entered there yet; but for those on which it has
    /// none any more by now.
    coming: Vec<u64>,
    gone: HashSet<u64>,
    /// It has said goodbye: no message is sent to it any more.
    pub leaving: bool,
    /// Per port: the datagram being filled.
    open: Vec<Option<OpenDatagram>>,
    /// Per port: the lane has noted that there is one.
    listed: Vec<bool>,
}

#[derive(Debug)]
struct OpenDatagram {
    frame: Frame,
    cursor: DatagramCursor,
    class: TrafficClass,
    send_time_ns: i64,
}

/// A message for [`Remote::append`].
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    pub channel: u64,
    pub source: u32,
    pub sequence: u32,
    pub class: TrafficClass,
    pub send_time_ns: i64,
    /// Of a reliable source: the number of its first record.
    pub first: Option<u32>,
}

impl Outgoing {
    /// What the record of a fragment is.
    #[inline]
    fn kind(&self, fragment: u32) -> Kind {
        match self.first {
            None => Kind::Message,
            Some(first) => Kind::Reliable {
                number: first.wrapping_add(fragment),
            },
        }
    }

    /// The header of the record of a fragment of so long a message.
    #[inline]
    pub fn record(&self, length: u32, cut: &Cut, fragment: u32) -> RecordHeader {
        RecordHeader {
            channel: self.channel,
            source: self.source,
            sequence: self.sequence,
            message_length: length,
            fragment_index: fragment as _,
            fragment_stride: cut.stride,
            class: self.class,
            kind: self.kind(fragment),
        }
    }
}

/// How a message is cut into fragments: once, with the first of them, whatever the route's MTU is later.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    length: u32,
    /// Bytes of each fragment but the last; 0: the message is whole.
    stride: u16,
}

impl Cut {
    /// For datagrams that take `max_payload` bytes, by records with this header. `None`: they take nothing.
    #[inline]
    pub fn of(length: u32, max_payload: usize, header: usize) -> Option<Self> {
        if length as usize + HEADER_LEN + header <= max_payload {
            return Some(Self { length, stride: 0 });
        }
        let capacity = max_payload.saturating_sub(HEADER_LEN + FRAGMENT_HEADER_LEN);
        // As equal as can be, so that they leave as one train; multiples of 8 keep records aligned.
        let most = capacity.min(usize::from(u16::MAX)) as u32 & !7;
        if most == 0 {
            return None;
        }
        let stride = length.div_ceil(length.div_ceil(most)).next_multiple_of(8);
        Some(Self {
            length,
            stride: stride as u16,
        })
    }

    /// The one of the two that suits the way with the smaller MTU; both are of the same message.
    pub fn shorter(self, other: Self) -> Self {
        let stride = |cut: Self| {
            if cut.stride == 0 {
                u16::MAX
            } else {
                cut.stride
            }
        };
        match stride(self) <= stride(other) {
            true => self,
            false => other,
        }
    }

    /// Fragments.
    #[inline]
    pub fn count(&self) -> u32 {
        match self.stride {
            0 => 1,
            stride => self.length.div_ceil(u32::from(stride)),
        }
    }

    /// Where a fragment lies in the message.
    #[inline]
    pub fn part(&self, index: u32) -> std::ops::Range<usize> {
        let length = self.length as usize;
        let stride = match self.stride {
            0 => length,
            stride => usize::from(stride),
        };
        let start = index as usize * stride;
        start.min(length)..(start + stride).min(length)
    }
}

/// What became of an attempt to append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The whole message is in datagrams.
    Done,
    /// Fragments up to this one are in datagrams; the turn is used up or the port is full.
    Until {
        /// The next fragment.
        fragment: u32,
        /// No frame was free: flush first.
        blocked: bool,
    },
    /// Fragments up to this one are in a scheduler, which has no room for more.
    Held { fragment: u32 },
    /// No path; the message is not sent.
    Unreachable,
}

impl Remote {
    /// `own_incarnation`: what datagrams to it carry as `sender`. `takes`: per port, as far as there is a limit.
    pub fn new(
        own_incarnation: u32,
        incarnation: u32,
        label: u32,
        addresses: Vec<IpAddr>,
        protection: Protection,
        via: Vec<Option<PeerHandle>>,
        takes: &[usize],
    ) -> Self {
        let takes = (0..via.len()).map(|at| takes.get(at).copied().unwrap_or(usize::MAX));
        let takes = takes.collect();
        let open = via.iter().map(|_| None).collect();
        let listed = vec![false; via.len()];
        Self {
            incarnation,
            label,
            own_incarnation,
            guard: Guard::new(protection),
            addresses,
            via,
            standings: Vec::new(),
            takes,
            channels: HashSet::new(),
            going: Vec::new(),
            coming: Vec::new(),
            gone: HashSet::new(),
            leaving: false,
            open,
            listed,
        }
    }

    /// The port by which to send: the wished one, else kernel UDP or any other that will do.
    pub fn port(&self, ports: &mut [LanePort], carrier: Carrier) -> Option<usize> {
        usable_port(&self.via, &self.standings, ports, carrier)
    }

    /// The port by which to send a fragment of a message that was cut for another port, or for the same one when its
    /// route carried more: one that takes it whole if there is any, else one whose datagrams IP may fragment.
    pub fn port_for(
        &self,
        ports: &mut [LanePort],
        carrier: Carrier,
        fragment: usize,
    ) -> Option<usize> {
        let length = HEADER_LEN + FRAGMENT_HEADER_LEN + fragment + self.tag_len();
        let usual = self.port(ports, carrier)?;
        let whole = |at: usize, ports: &mut [LanePort]| {
            self.max_payload(at, ports[at].port.as_ref()) >= length
        };
        if carrier.only || whole(usual, ports) {
            return Some(usual);
        }
        let fragmented = |at: usize, ports: &mut [LanePort]| {
            let most = self.via[at].map_or(0, |peer| ports[at].port.max_fragmented(peer));
            most.min(self.takes[at]) >= length
        };
        let reached =
            |at: usize, ports: &mut [LanePort]| self.port(ports, Carrier::any(at)) == Some(at);
        let all = 0..self.via.len();
        let takes_whole = all
            .clone()
            .find(|&at| reached(at, ports) && whole(at, ports));
        let takes = takes_whole
            .or_else(|| Some(usual).filter(|&at| fragmented(at, ports)))
            .or_else(|| { all }.find(|&at| reached(at, ports) && fragmented(at, ports)));
        Some(takes.unwrap_or(usual))
    }

    /// It has no sinks any more. It is taken out of their channels [one by one](Self::next_going).
    pub fn want_nothing(&mut self) {
        self.coming = Vec::new();
        self.gone = HashSet::new();
        if !self.channels.is_empty() {
            self.going
                .push(std::mem::take(&mut self.channels).into_iter());
        }
    }

    /// It has sinks again. It is entered at their channels [one by one](Self::next_coming).
    pub fn want_again(&mut self, channels: Vec<u64>) {
        self.coming = channels;
    }

    /// Another channel that it is to be entered at, if it still wants it.
    pub fn next_coming(&mut self) -> Option<(u64, bool)> {
        let Some(channel) = self.coming.pop() else {
            self.gone = HashSet::new();
            return None;
        };
        let wanted = !self.gone.remove(&channel);
        Some((channel, wanted))
    }

    /// It has a sink on a channel, or none any more.
    pub fn told(&mut self, channel: u64, wanted: bool) {
        if self.coming.is_empty() {
            return;
        }
        match wanted {
            true => self.gone.remove(&channel),
            false => self.gone.insert(channel),
        };
    }

    /// Another channel that it may still be entered at.
    pub fn next_going(&mut self) -> Option<ChannelSlot> {
        loop {
            let channel = self.going.last_mut()?.next();
            if channel.is_some() {
                return channel;
            }
            self.going.pop();
        }
    }

    /// Whether there may be others.
    pub fn is_going(&self) -> bool {
        !self.going.is_empty()
    }

    /// Its first address.
    pub fn address(&self) -> Option<IpAddr> {
        self.addresses.first().copied()
    }

    /// Octets of a frame to it that are not message, at most: headers from Ethernet to the record's.
    pub fn overhead(&self) -> usize {
        datagram_overhead(self.address()) + HEADER_LEN + FRAGMENT_HEADER_LEN + self.tag_len()
    }

    #[inline]
    fn tag_len(&self) -> usize {
        self.guard.protection().tag_len()
    }

    /// Most octets of a datagram by a port: what the route carries, and the remote lane takes. 0: it has no path.
    #[inline]
    fn max_payload(&self, at: usize, port: &dyn Port) -> usize {
        let carried = self.via[at].map_or(0, |peer| port.max_payload(peer));
        carried.min(self.takes[at])
    }

    /// How a message of this length is cut for the route's present MTU. `None`: it has no path.
    #[inline]
    pub fn cut(&self, at: usize, port: &dyn Port, length: u32) -> Option<Cut> {
        self.cut_for(at, port, length, RECORD_HEADER_LEN)
    }

    /// The same of a reliable source's message.
    #[inline]
    pub fn reliable_cut(&self, at: usize, port: &dyn Port, length: u32) -> Option<Cut> {
        self.cut_for(at, port, length, FRAGMENT_HEADER_LEN)
    }

    #[inline]
    fn cut_for(&self, at: usize, port: &dyn Port, length: u32, header: usize) -> Option<Cut> {
        let most = self.max_payload(at, port);
        Cut::of(length, most.saturating_sub(self.tag_len()), header)
    }

    /// Puts what one end of a reliable flow says to the other into a datagram through `port`.
    pub fn say(
        &mut self,
        at: usize,
        port: &mut dyn Port,
        record: &RecordHeader,
        bytes: &[u8],
        now_ns: i64,
    ) -> Result<(), ReserveError> {
        let peer = self.via[at].ok_or(ReserveError::UnknownPeer)?;
        self.record(at, port, peer, now_ns, record, |space| {
            space.copy_from_slice(bytes);
        })
    }

    /// Puts a message, or these of its fragments, into datagrams through `port`.
    ///
    /// Messages for one remote lane share a datagram as long as they fit and are of one class; it leaves
    /// when the lane has taken what there is ([`close`](Self::close)), never later.
    pub fn append(
        &mut self,
        at: usize,
        port: &mut dyn Port,
        message: &Outgoing,
        payload: SharedSlice<'_>,
        cut: &Cut,
        fragments: std::ops::Range<u32>,
    ) -> Appended {
        let count = cut.count();
        let end = count.min(fragments.end);
        for index in fragments.start..end {
            match self.part(at, port, message, payload, cut, index) {
                Ok(()) => {}
                Err(ReserveError::WouldBlock) => {
                    return Appended::Until {
                        fragment: index,
                        blocked: true,
                    };
                }
                Err(_) => return Appended::Unreachable,
            }
        }
        if end < count {
            return Appended::Until {
                fragment: end,
                blocked: false,
            };
        }
        if count > 1 {
            self.pad_last(at, port, cut);
        }
        Appended::Done
    }

    /// Puts one fragment of a message, or all of a short one, into a datagram through `port`.
    #[inline]
    pub fn part(
        &mut self,
        at: usize,
        port: &mut dyn Port,
        message: &Outgoing,
        payload: SharedSlice<'_>,
        cut: &Cut,
        index: u32,
    ) -> Result<(), ReserveError> {
        let peer = self.via[at].ok_or(ReserveError::UnknownPeer)?;
        let record = message.record(payload.len() as u32, cut, index);
        let range = cut.part(index);
        let part = payload
            .sub(range.start, range.len())
            .map_err(|_| ReserveError::UnknownPeer)?;
        self.record(at, port, peer, message.send_time_ns, &record, |space| {
            fill(space, part);
        })
    }

    /// Makes the datagram of a last fragment as long as the others, if little is missing.
    fn pad_last(&mut self, at: usize, port: &mut dyn Port, cut: &Cut) {
        let stride = usize::from(cut.stride);
        let missing = cut.count() as usize * stride - cut.length as usize;
        if let Some(open) = &mut self.open[at]
            && open.cursor.records() == 1
            && missing <= stride / MOST_PADDING
        {
            open.cursor.pad(
                port.payload(&open.frame),
                HEADER_LEN + FRAGMENT_HEADER_LEN + stride,
            );
        }
    }

    #[inline]
    fn record(
        &mut self,
        at: usize,
        port: &mut dyn Port,
        peer: PeerHandle,
        send_time_ns: i64,
        record: &RecordHeader,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), ReserveError> {
        let (tag, takes) = (self.tag_len(), self.takes[at]);
        if let Some(open) = &mut self.open[at] {
            if open.class == record.class
                && let Some(space) = open
                    .cursor
                    .push(room(port.payload(&open.frame), takes, tag), record)
            {
                fill(space);
                return Ok(());
            }
            self.commit(at, port, None);
        }
        if !self.guard.sends() {
            // Nothing that is filled now could leave: its source is told so, and a reliable one repeats it.
            return Err(ReserveError::UnknownPeer);
        }
        let mut frame = port.reserve(peer)?;
        let mut cursor = DatagramCursor::new();
        let mut space = cursor.push(room(port.payload(&frame), takes, tag), record);
        if space.is_none() {
            // It was cut for another port, or the route's MTU has shrunk since.
            port.cancel(frame);
            frame = port.reserve_fragmented(peer)?;
            cursor = DatagramCursor::new();
            space = cursor.push(room(port.payload(&frame), takes, tag), record);
        }
        let Some(space) = space else {
            // The receiver counts a gap.
            port.cancel(frame);
            return Err(ReserveError::Unresolved);
        };
        fill(space);
        self.open[at] = Some(OpenDatagram {
            frame,
            cursor,
            class: record.class,
            send_time_ns,
        });
        Ok(())
    }

    /// Commits the datagram being filled at a port, at the end of a round. True if there was one.
    /// `launch_time`: when the port is to send it.
    pub fn close(&mut self, at: usize, port: &mut dyn Port, launch_time: Option<TaiTime>) -> bool {
        self.listed[at] = false;
        self.commit(at, port, launch_time)
    }

    fn commit(&mut self, at: usize, port: &mut dyn Port, launch_time: Option<TaiTime>) -> bool {
        let Some(open) = self.open[at].take() else {
            return false;
        };
        let protection = self.guard.protection();
        let counter = match self.guard.next() {
            Some(counter) if open.cursor.records() > 0 => counter,
            _ => {
                port.cancel(open.frame);
                return false;
            }
        };
        let buf = port.payload(&open.frame);
        let (own, time) = (self.own_incarnation, open.send_time_ns);
        let len = open.cursor.finish(buf, protection, own, time, counter);
        let Some(len) = self.guard.seal(buf, len, counter) else {
            port.cancel(open.frame);
            return false;
        };
        port.commit(open.frame, len, open.class, launch_time);
        true
    }

    /// Whether the lane must note that a datagram is being filled here: once until the next close.
    pub fn register_open(&mut self, at: usize) -> bool {
        self.open[at].is_some() && !std::mem::replace(&mut self.listed[at], true)
    }
}

/// What carries the messages of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// Index of the lane's port, of the stream's datapath.
    pub port: usize,
    /// Nothing else carries them where that does not reach; but for the ways between lanes of this node.
    pub only: bool,
}

impl Carrier {
    /// This port where it reaches, and any other elsewhere.
    pub const fn any(port: usize) -> Self {
        Self { port, only: false }
    }
}

/// How the datapath at the other end of a way stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// What is sent there arrives.
    #[default]
    Works,
    /// It has failed and works again: only what nothing else carries goes there yet.
    Returns,
    /// Nothing arrives.
    Failed,
}

/// The port by which to reach what has these peers, one for each port: the wished one, else the first. Where no
/// route is known by any, the first that may learn of one. `standings`: of the other ends; none: all work.
#[inline]
pub fn usable_port(
    via: &[Option<PeerHandle>],
    standings: &[Standing],
    ports: &mut [LanePort],
    carrier: Carrier,
) -> Option<usize> {
    let arrives = |at: usize| match standings.get(at) {
        None | Some(Standing::Works) => true,
        Some(Standing::Returns) => carrier.only,
        Some(Standing::Failed) => false,
    };
    let mut reaches = |at: usize| match (via.get(at), ports.get_mut(at)) {
        (Some(Some(peer)), Some(port)) => arrives(at) && port.port.reaches(*peer),
        _ => false,
    };
    if reaches(carrier.port) {
        return Some(carrier.port);
    }
    if carrier.only {
        let between_lanes = |at: &usize| via[*at].is_some() && ports[*at].trusted;
        return (0..via.len().min(ports.len())).find(between_lanes);
    }
    let all = 0..via.len();
    let is_known = |&at: &usize| via[at].is_some();
    (all.clone().find(|&at| reaches(at)))
        .or_else(|| all.clone().find(|at| is_known(at) && arrives(*at)))
        .or_else(|| all.clone().find(is_known))
}

/// Octets in front of the payload of a datagram to an address: the headers from Ethernet to UDP.
pub fn datagram_overhead(address: Option<IpAddr>) -> usize {
    let ip = match address {
        Some(IpAddr::V6(_)) => ipv6::HEADER_LEN,
        _ => ipv4::HEADER_LEN,
    };
    ethernet::HEADER_LEN + ip + udp::HEADER_LEN
}

/// The space of a datagram of which the receiver takes so much, less its tag.
#[inline]
fn room(buf: &mut [u8], takes: usize, tag: usize) -> &mut [u8] {
    let len = buf.len().min(takes).saturating_sub(tag);
    &mut buf[..len]
}

/// Copies a payload into its place: `space` is as long as the payload by construction of the record.
#[inline]
fn fill(space: &mut [u8], payload: SharedSlice<'_>) {
    let copied = payload.read_into(0, space);
    debug_assert!(copied.is_ok(), "record and payload differ in length");
}
