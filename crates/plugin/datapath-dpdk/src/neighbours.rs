//! Who is behind which address, where no kernel keeps track of it: ARP (RFC 826), neighbour discovery
//! (RFC 4861) and echo (RFC 792, RFC 4443) for a device's own addresses. Bytes and times in, bytes out.
//!
//! An entry exists for as long as somebody wants it, so the table is as long as the peers are many: what
//! arrives changes entries and makes none. All that arrives is hostile. It is believed as ARP is everywhere:
//! whoever is on the link can say that an address is theirs, unless the neighbour is a static one.
//!
//! Not done: duplicate address detection, redirects, router solicitation, and link-local addresses that are
//! not configured.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use takt_wire::arp;
use takt_wire::checksum::PartialSum;
use takt_wire::ethernet::{self, EtherType, MacAddress};
use takt_wire::ip::{Addresses, Dscp, Protocol};
use takt_wire::{ipv4, ipv6};

use crate::config::Subnet;

/// Between two questions for the same address (RFC 4861, section 10: `RETRANS_TIMER`).
const RETRY: Duration = Duration::from_secs(1);
/// How long an answer is believed before it is asked for again (`REACHABLE_TIME`).
const REACHABLE: Duration = Duration::from_secs(30);
/// Questions without an answer after which the neighbour is gone (`MAX_UNICAST_SOLICIT`).
const PATIENCE: u32 = 3;
/// Who asks who has an address has one of so many shares of the answers, by its link address.
const SHARES: usize = 64;
/// Answers of a share in [`RETRY`]: what more is asked is counted.
const MOST_ANSWERS: u32 = 100;
/// Echoes in [`RETRY`], to whomever, which take nothing from the answers.
const MOST_ECHOES: u32 = 1000;

const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
/// ICMPv6 header, flags and target of a solicitation or an advertisement (RFC 4861, sections 4.3 and 4.4).
const DISCOVERY_LEN: usize = 24;
const LINK_OPTION_LEN: usize = 8;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// What has been seen, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeighbourCounters {
    /// Packets of ARP, neighbour discovery or ICMP that were refused: malformed, or not what their standard
    /// allows.
    pub refused: u64,
    /// Questions and echoes that were not answered, for there were too many.
    pub unanswered: u64,
}

/// The neighbours of a device.
#[derive(Debug)]
pub struct Neighbours {
    mac: MacAddress,
    addresses: Vec<Subnet>,
    gateways: Vec<IpAddr>,
    fixed: HashMap<IpAddr, MacAddress>,
    wanted: HashMap<IpAddr, Entry>,
    counters: NeighbourCounters,
    answers: Box<[Budget; SHARES]>,
    echoes: Budget,
}

/// How much has been answered since then.
#[derive(Clone, Copy, Debug, Default)]
struct Budget {
    since: Duration,
    count: u32,
}

impl Budget {
    /// Whether there may be one more, which counts.
    fn take(&mut self, most: u32, now: Duration) -> bool {
        if now.saturating_sub(self.since) >= RETRY {
            *self = Self {
                since: now,
                count: 0,
            };
        }
        let some = self.count < most;
        self.count += u32::from(some);
        some
    }
}

#[derive(Debug)]
struct Entry {
    /// Who is known.
    mac: Option<MacAddress>,
    /// Before this nobody else has it: who takes turns with another is not followed each time.
    settled: Duration,
    /// Questions since the last answer.
    questions: u32,
    /// When to ask.
    next: Duration,
    /// How many want it.
    users: usize,
}

impl Neighbours {
    /// Nobody is known but the static ones.
    pub fn new(
        mac: MacAddress,
        addresses: &[Subnet],
        gateways: &[IpAddr],
        fixed: &[(IpAddr, MacAddress)],
    ) -> Self {
        Self {
            mac,
            addresses: addresses.to_vec(),
            gateways: gateways.to_vec(),
            fixed: fixed.iter().copied().collect(),
            wanted: HashMap::new(),
            counters: NeighbourCounters::default(),
            answers: Box::new([Budget::default(); SHARES]),
            echoes: Budget::default(),
        }
    }

    /// Who has the next frame to `destination`: itself on the link, or a gateway. `None`: no way there.
    pub fn next_hop(&self, destination: IpAddr) -> Option<IpAddr> {
        let link_local =
            matches!(destination, IpAddr::V6(address) if address.is_unicast_link_local());
        if link_local || self.addresses.iter().any(|own| own.contains(destination)) {
            return Some(destination);
        }
        let family = |gateway: &&IpAddr| gateway.is_ipv4() == destination.is_ipv4();
        self.gateways.iter().find(family).copied()
    }

    /// The own address that packets to `destination` are sent from: one of its network, or the first of its
    /// family.
    pub fn source(&self, destination: IpAddr) -> Option<IpAddr> {
        let hop = self.next_hop(destination)?;
        let own = self.addresses.iter();
        own.clone()
            .find(|own| own.contains(hop))
            .or_else(|| {
                own.clone()
                    .find(|own| own.address.is_ipv4() == destination.is_ipv4())
            })
            .map(|own| own.address)
    }

    /// Begins to ask who has `hop`, at the next [`poll`](Self::poll).
    pub fn want(&mut self, hop: IpAddr, now: Duration) {
        let entry = self.wanted.entry(hop).or_insert(Entry {
            mac: None,
            settled: Duration::ZERO,
            questions: 0,
            next: now,
            users: 0,
        });
        entry.users += 1;
    }

    /// Takes one [`want`](Self::want) back.
    pub fn forget(&mut self, hop: IpAddr) {
        if let Some(entry) = self.wanted.get_mut(&hop) {
            entry.users = entry.users.saturating_sub(1);
            if entry.users == 0 {
                self.wanted.remove(&hop);
            }
        }
    }

    /// Who has the address, as far as that is known.
    pub fn resolve(&self, hop: IpAddr) -> Option<MacAddress> {
        let fixed = self.fixed.get(&hop).copied();
        fixed.or_else(|| self.wanted.get(&hop)?.mac)
    }

    /// What has been seen.
    pub fn counters(&self) -> NeighbourCounters {
        self.counters
    }

    /// Whether the address is the node's own.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.address == address)
    }

    /// Asks whom it is time to ask. Returns whether a neighbour is gone.
    pub fn poll(&mut self, now: Duration, send: &mut dyn FnMut(&[u8])) -> bool {
        let mut changed = false;
        let mut questions = Vec::new();
        for (hop, entry) in &mut self.wanted {
            if now < entry.next || self.fixed.contains_key(hop) {
                continue;
            }
            if entry.questions >= PATIENCE && entry.mac.take().is_some() {
                changed = true;
            }
            entry.questions = entry.questions.saturating_add(1);
            entry.next = now + RETRY;
            questions.push((*hop, entry.mac));
        }
        for (hop, mac) in questions {
            self.ask(hop, mac, send);
        }
        changed
    }

    /// Takes in a frame that is no datagram for a port. Returns whether the way to a neighbour has changed.
    pub fn handle(&mut self, frame: &[u8], now: Duration, send: &mut dyn FnMut(&[u8])) -> bool {
        match self.read(frame, now, send) {
            Some(changed) => changed,
            None => {
                self.counters.refused += 1;
                false
            }
        }
    }

    /// `None`: refused.
    fn read(&mut self, frame: &[u8], now: Duration, send: &mut dyn FnMut(&[u8])) -> Option<bool> {
        let view = ethernet::Packet::new_checked(frame).ok()?;
        if !view.source().is_unicast() {
            return None;
        }
        // Addressed to another station: a switch floods what it does not know.
        if view.destination() != self.mac && !view.destination().is_multicast() {
            return Some(false);
        }
        match view.ether_type() {
            EtherType::ARP => self.read_arp(view.source(), view.payload(), now, send),
            EtherType::IPV4 => self.read_v4(view.source(), view.payload(), now, send),
            EtherType::IPV6 => self.read_v6(view.source(), view.payload(), now, send),
            _ => Some(false),
        }
    }

    fn read_arp(
        &mut self,
        from: MacAddress,
        packet: &[u8],
        now: Duration,
        send: &mut dyn FnMut(&[u8]),
    ) -> Option<bool> {
        let packet = arp::Repr::parse(&arp::Packet::new_checked(packet).ok()?).ok()?;
        if !packet.sender_mac.is_unicast() {
            return None;
        }
        let (sender, target) = (packet.sender_ip.into(), packet.target_ip.into());
        if self.is_own(sender) {
            // Somebody claims our address; there is nobody to tell but whoever reads the counters.
            return None;
        }
        let changed = self.learn(sender, packet.sender_mac, true, now);
        if packet.operation == arp::Operation::Request
            && self.is_own(target)
            && self.may_answer(from, now)
        {
            let answer = arp::Repr {
                operation: arp::Operation::Reply,
                sender_mac: self.mac,
                sender_ip: packet.target_ip,
                target_mac: packet.sender_mac,
                target_ip: packet.sender_ip,
            };
            send(&self.arp_frame(&answer, packet.sender_mac));
        }
        Some(changed)
    }

    fn read_v4(
        &mut self,
        from: MacAddress,
        packet: &[u8],
        now: Duration,
        send: &mut dyn FnMut(&[u8]),
    ) -> Option<bool> {
        let view = ipv4::Packet::new_checked(packet).ok()?;
        let header = ipv4::Repr::parse(&view).ok()?;
        if header.protocol != Protocol::ICMP || !self.is_own(header.destination.into()) {
            return Some(false);
        }
        let message = view.payload();
        if message.len() < 8 || !PartialSum::of(message).is_intact() {
            return None;
        }
        if message[..2] != [8, 0] || !host_v4(header.source) || !self.may_echo(now) {
            return Some(false);
        }
        let answer = ipv4::Repr {
            source: header.destination,
            destination: header.source,
            protocol: Protocol::ICMP,
            dscp: header.dscp,
            hop_limit: 64,
            identification: 0,
            dont_fragment: true,
        };
        let mut frame = self.frame(from, EtherType::IPV4, ipv4::HEADER_LEN + message.len());
        let packet = &mut frame[ethernet::HEADER_LEN..];
        let body = &mut packet[ipv4::HEADER_LEN..];
        body.copy_from_slice(message);
        body[0] = 0;
        body[2..4].fill(0);
        let checksum = PartialSum::of(body).checksum();
        body[2..4].copy_from_slice(&checksum.to_be_bytes());
        answer.emit(packet).ok()?;
        send(&frame);
        Some(false)
    }

    fn read_v6(
        &mut self,
        from: MacAddress,
        packet: &[u8],
        now: Duration,
        send: &mut dyn FnMut(&[u8]),
    ) -> Option<bool> {
        let view = ipv6::Packet::new_checked(packet).ok()?;
        // Extension headers are another's: what a group is told by listener reports, for instance.
        let Ok(header) = ipv6::Repr::parse(&view) else {
            return Some(false);
        };
        if header.protocol != Protocol::ICMPV6 {
            return Some(false);
        }
        let message = view.payload();
        let addresses = Addresses::V6 {
            source: header.source,
            destination: header.destination,
        };
        if message.len() < 8 || !icmp_v6_sum(&addresses, message).is_intact() {
            return None;
        }
        match message[0] {
            // RFC 4861, sections 7.1.1 and 7.1.2: what has passed a router is refused, and other codes are.
            NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT
                if header.hop_limit != 255 || message[1] != 0 =>
            {
                None
            }
            NEIGHBOUR_SOLICITATION => self.read_solicitation(from, &header, message, now, send),
            NEIGHBOUR_ADVERTISEMENT => self.read_advertisement(&header, message, now),
            128 if self.is_own(header.destination.into()) && message[1] == 0 => {
                let source = header.source;
                if source.is_unspecified() || source.is_multicast() || !self.may_echo(now) {
                    return Some(false);
                }
                let mut answer = message.to_vec();
                answer[0] = 129;
                self.send_v6(from, header.destination, source, 64, &mut answer, send);
                Some(false)
            }
            _ => Some(false),
        }
    }

    fn read_solicitation(
        &mut self,
        from: MacAddress,
        header: &ipv6::Repr,
        message: &[u8],
        now: Duration,
        send: &mut dyn FnMut(&[u8]),
    ) -> Option<bool> {
        let (target, options) = discovery(message)?;
        if !self.is_own(target.into()) {
            return Some(false);
        }
        let link = link_address(options, SOURCE_LINK_ADDRESS)?;
        let mut changed = false;
        // From nobody: the sender finds out whether its address is taken. It is, and all are told.
        let (to, mac, flags) = if header.source.is_unspecified() {
            (ALL_NODES, group_mac(ALL_NODES), 0x20)
        } else {
            if header.source.is_multicast() || self.is_own(header.source.into()) {
                return None;
            }
            let mac = match link {
                Some(mac) => {
                    changed = self.learn(header.source.into(), mac, true, now);
                    mac
                }
                // A question to us alone may leave its link address out: answer whom we know.
                None => match self.resolve(header.source.into()) {
                    Some(mac) => mac,
                    None => return Some(false),
                },
            };
            (header.source, mac, 0x60)
        };
        if self.may_answer(from, now) {
            let mut answer = [0; DISCOVERY_LEN + LINK_OPTION_LEN];
            answer[0] = NEIGHBOUR_ADVERTISEMENT;
            answer[4] = flags;
            answer[8..24].copy_from_slice(&target.octets());
            answer[24..26].copy_from_slice(&[TARGET_LINK_ADDRESS, 1]);
            answer[26..32].copy_from_slice(&self.mac.0);
            self.send_v6(mac, target, to, 255, &mut answer, send);
        }
        Some(changed)
    }

    fn read_advertisement(
        &mut self,
        header: &ipv6::Repr,
        message: &[u8],
        now: Duration,
    ) -> Option<bool> {
        let (target, options) = discovery(message)?;
        let (solicited, overriding) = (message[4] & 0x40 != 0, message[4] & 0x20 != 0);
        if self.is_own(target.into()) || header.destination.is_multicast() && solicited {
            return None;
        }
        let link = link_address(options, TARGET_LINK_ADDRESS)?;
        let Some(mac) = link.or_else(|| self.resolve(target.into())) else {
            return Some(false);
        };
        Some(self.learn(target.into(), mac, overriding, now))
    }

    /// Believes that `mac` has `address`, if anybody wants to know and it is new or may replace what is known.
    fn learn(&mut self, address: IpAddr, mac: MacAddress, replace: bool, now: Duration) -> bool {
        let Some(entry) = self.wanted.get_mut(&address) else {
            return false;
        };
        let other = entry.mac.is_some_and(|known| known != mac);
        if !mac.is_unicast() || other && (!replace || now < entry.settled) {
            return false;
        }
        entry.questions = 0;
        entry.next = now + REACHABLE;
        let changed = entry.mac.replace(mac) != Some(mac);
        if changed {
            entry.settled = now + RETRY;
        }
        changed
    }

    /// Whether one who asks who has an address may have one more answer.
    fn may_answer(&mut self, asker: MacAddress, now: Duration) -> bool {
        let share = asker.0.iter().fold(0_usize, |sum, octet| {
            sum.wrapping_mul(31) + usize::from(*octet)
        });
        let may = self.answers[share % SHARES].take(MOST_ANSWERS, now);
        self.counters.unanswered += u64::from(!may);
        may
    }

    /// Whether there may be one more echo.
    fn may_echo(&mut self, now: Duration) -> bool {
        let may = self.echoes.take(MOST_ECHOES, now);
        self.counters.unanswered += u64::from(!may);
        may
    }

    /// Asks who has `hop`: the one who had it, or all.
    fn ask(&self, hop: IpAddr, known: Option<MacAddress>, send: &mut dyn FnMut(&[u8])) {
        let Some(source) = self.source(hop) else {
            return;
        };
        match (hop, source) {
            (IpAddr::V4(target_ip), IpAddr::V4(sender_ip)) => {
                let question = arp::Repr {
                    operation: arp::Operation::Request,
                    sender_mac: self.mac,
                    sender_ip,
                    target_mac: MacAddress::ZERO,
                    target_ip,
                };
                send(&self.arp_frame(&question, known.unwrap_or(MacAddress::BROADCAST)));
            }
            (IpAddr::V6(target), IpAddr::V6(source)) => {
                let mut question = [0; DISCOVERY_LEN + LINK_OPTION_LEN];
                question[0] = NEIGHBOUR_SOLICITATION;
                question[8..24].copy_from_slice(&target.octets());
                question[24..26].copy_from_slice(&[SOURCE_LINK_ADDRESS, 1]);
                question[26..32].copy_from_slice(&self.mac.0);
                let group = solicited_node(target);
                let (to, mac) = match known {
                    Some(mac) => (target, mac),
                    None => (group, group_mac(group)),
                };
                self.send_v6(mac, source, to, 255, &mut question, send);
            }
            // Sources are of the destination's family.
            _ => {}
        }
    }

    /// Completes an ICMPv6 message's checksum and sends it.
    fn send_v6(
        &self,
        mac: MacAddress,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        hop_limit: u8,
        message: &mut [u8],
        send: &mut dyn FnMut(&[u8]),
    ) {
        message[2..4].fill(0);
        let addresses = Addresses::V6 {
            source,
            destination,
        };
        let checksum = icmp_v6_sum(&addresses, message).checksum();
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        let header = ipv6::Repr {
            source,
            destination,
            protocol: Protocol::ICMPV6,
            dscp: Dscp::BEST_EFFORT,
            hop_limit,
        };
        let mut frame = self.frame(mac, EtherType::IPV6, ipv6::HEADER_LEN + message.len());
        let packet = &mut frame[ethernet::HEADER_LEN..];
        packet[ipv6::HEADER_LEN..].copy_from_slice(message);
        if header.emit(packet).is_ok() {
            send(&frame);
        }
    }

    fn arp_frame(&self, packet: &arp::Repr, to: MacAddress) -> Vec<u8> {
        let mut frame = self.frame(to, EtherType::ARP, arp::PACKET_LEN);
        if let Some(place) = frame[ethernet::HEADER_LEN..].first_chunk_mut() {
            packet.emit(place);
        }
        frame
    }

    /// A frame with its header and `len` bytes of zeros, at least as long as a frame has to be.
    fn frame(&self, destination: MacAddress, ether_type: EtherType, len: usize) -> Vec<u8> {
        let mut frame = vec![0; ethernet::HEADER_LEN + len];
        let header = ethernet::Repr {
            destination,
            source: self.mac,
            ether_type,
        };
        if let Some(place) = frame.first_chunk_mut() {
            header.emit(place);
        }
        frame
    }
}

/// Target and options of a solicitation or an advertisement.
fn discovery(message: &[u8]) -> Option<(Ipv6Addr, &[u8])> {
    let target: [u8; 16] = *message.get(8..)?.first_chunk()?;
    let target = Ipv6Addr::from(target);
    (!target.is_multicast()).then_some((target, message.get(DISCOVERY_LEN..)?))
}

/// The link address in the options, if there is one; `None`: malformed options.
fn link_address(mut options: &[u8], kind: u8) -> Option<Option<MacAddress>> {
    let mut found = None;
    while let [of, length, ..] = *options {
        let length = usize::from(length) * 8;
        let option = options.get(..length).filter(|option| !option.is_empty())?;
        if of == kind && length == LINK_OPTION_LEN {
            let mac: [u8; 6] = *option[2..].first_chunk()?;
            found = Some(MacAddress(mac));
        }
        options = &options[length..];
    }
    (options.is_empty()).then_some(found)
}

fn icmp_v6_sum(addresses: &Addresses, message: &[u8]) -> PartialSum {
    // Of no IPv6 packet without a jumbo option is the length more than 16 bits.
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    addresses
        .pseudo_header(Protocol::ICMPV6)
        .plus(PartialSum::of_word(length))
        .plus(PartialSum::of(message))
}

/// Whether a host may have the address.
fn host_v4(address: Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_multicast() || address.is_broadcast())
}

/// The group of nodes whose addresses end so (RFC 4291, section 2.7.1).
fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// The group's address on the link (RFC 2464, section 7).
fn group_mac(group: Ipv6Addr) -> MacAddress {
    let [.., a, b, c, d] = group.octets();
    MacAddress([0x33, 0x33, a, b, c, d])
}

#[cfg(test)]
mod tests;
