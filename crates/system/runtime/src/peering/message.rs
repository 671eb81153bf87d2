//! What runtimes tell each other about themselves, and its encoding: one datagram per message.
//!
//! Little-endian. Header: `TKTP`, `u8` version, `u8` type, `u16` zero, `u64` node incarnation. Drawn in
//! `docs/reference/wire-format.md`. Every byte is checked; unknown versions and types are counted and dropped.
//! Unless a site does without protection, these messages travel sealed ([`super::association`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{Buf, BufMut};

use super::keys::{KEY_LEN, PeerConfig, PublicKey};

/// First bytes of every peering datagram.
pub const MAGIC: [u8; 4] = *b"TKTP";
/// The version of these messages.
pub const VERSION: u8 = 3;
/// Most bytes of a datagram: fits every path without fragmentation (RFC 8200, minimum MTU less headers).
pub const MAX_BYTES: usize = 1200;
/// Most bytes of a message: sealed, it fits a datagram.
pub const MAX_MESSAGE: usize = MAX_BYTES - 32;
/// Most lanes of a node.
pub const MAX_LANES: usize = 32;
/// Most datapaths of a node: ports of a lane, each of a datapath of its own.
pub const MAX_ENDPOINTS: usize = 8;
/// Changes of subscriptions in one page.
pub const PAGE_ENTRIES: usize = 120;
/// Sources in one message on their progress.
pub const PROGRESS_ENTRIES: usize = 60;
/// Nodes in one message that introduces them.
pub const INTRODUCED: usize = 20;
const MAX_NAME: usize = 63;
/// Longest name of a datapath.
const MAX_DATAPATH: usize = 15;

/// A datapath of a node that has failed: what is for the node goes by others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Its name.
    pub datapath: String,
    /// It works again, and has not for long: what asks for it and no other goes there already.
    pub returns: bool,
}

/// A port of a remote lane: datagrams for the lane may be sent there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The technology that receives there.
    pub datapath: String,
    /// UDP port.
    pub port: u16,
    /// Most octets of a datagram's payload that it takes.
    pub takes: u16,
    /// What it sends and takes is UDP on the wire, so that other technologies which speak it may send there too.
    pub udp: bool,
    /// Its address, where that is its own and not the node's.
    pub address: Option<IpAddr>,
}

impl Endpoint {
    /// Whether both are ports of one technology of one node.
    fn is_like(&self, other: &Self) -> bool {
        let of = |e: &Self| (e.takes, e.udp, e.address);
        self.datapath == other.datapath && of(self) == of(other)
    }
}

/// A lane as its node announces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneAnnouncement {
    /// The number its datagrams carry as `sender`.
    pub incarnation: u32,
    /// Where it receives.
    pub endpoints: Vec<Endpoint>,
}

/// A wish to receive: this lane has sinks on this channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subscription {
    /// The channel.
    pub channel: u64,
    /// Index of the lane in the announcement.
    pub lane: u8,
}

/// Changes of a node's subscriptions, in the order of their versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Grows each time that the sender begins anew, from nothing.
    pub stream: u32,
    /// The version that the changes apply to; 0: to nothing.
    pub base: u64,
    /// The version that they lead to.
    pub to: u64,
    /// The entries, and whether they are wanted.
    pub entries: Vec<(Subscription, bool)>,
}

/// How far a source of a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceProgress {
    /// The channel that it writes.
    pub channel: u64,
    /// Its number on its lane.
    pub source: u32,
    /// All its messages below this number (its low 32 bits) have left the lane.
    pub next: u32,
    /// It is closed: there will be no more.
    pub ended: bool,
}

/// A peering message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// I am here; sent every second, and in answer to the first hello of a peer.
    Hello {
        /// A name for people.
        name: String,
        /// The incarnation that the sender knows of the receiver; 0 if none: please answer at once.
        seen: u64,
        /// The receiver's stream of subscriptions that the sender follows; 0 if none.
        stream: u32,
        /// The version in it that the sender holds.
        holds: u64,
        /// What the numbers of the node's sources are mixed with for sinks: the same after a restart.
        label: u32,
        /// The sender's lanes.
        lanes: Vec<LaneAnnouncement>,
        /// Its datapaths that have failed: what is for it goes by others.
        failed: Vec<Outage>,
    },
    /// What has changed in the sender's subscriptions.
    Subscriptions(Page),
    /// The receiver's subscriptions are known up to here.
    Acknowledge {
        /// The stream.
        stream: u32,
        /// The version in it.
        version: u64,
    },
    /// How far sources are that write channels which the receiver wants: each with the index of its lane.
    Progress(Vec<(u8, SourceProgress)>),
    /// Other nodes that the sender knows, for receivers that meet by it.
    Introductions(Vec<PeerConfig>),
    /// The sender is leaving: forget it now.
    Goodbye,
}

/// Why bytes are no peering message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not a peering datagram at all.
    #[error("not a peering datagram")]
    Magic,
    /// Another version.
    #[error("peering version {0}, here {VERSION}")]
    Version(u8),
    /// Unknown type.
    #[error("unknown peering message type {0}")]
    Type(u8),
    /// Ends inside a field, or a count is beyond its limit.
    #[error("malformed peering message of {0} bytes")]
    Malformed(usize),
}

const HELLO: u8 = 1;
const SUBSCRIPTIONS: u8 = 2;
const ACKNOWLEDGE: u8 = 3;
const GOODBYE: u8 = 4;
const PROGRESS: u8 = 5;
const INTRODUCTIONS: u8 = 6;
/// In the lane of an entry: it is wanted no more.
const DROPPED: u8 = 0x80;
/// A technology that takes less is taken for one that takes so much: whoever says less would have senders cut their messages
/// into crumbs, for all receivers of a channel.
const LEAST_TAKEN: u16 = 512;
/// Of a technology: UDP on the wire.
const UDP: u8 = 1;
/// Of a technology: its address follows.
const OWN: u8 = 2;
/// Of a technology: it has failed.
const FAILED: u8 = 4;
/// Of a technology that has failed: it works again, and has not for long.
const RETURNS: u8 = 8;

/// The datagram of `message` from the node `incarnation`.
pub fn encode(incarnation: u64, message: &Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.put_slice(&MAGIC);
    out.put_u8(VERSION);
    out.put_u8(match message {
        Message::Hello { .. } => HELLO,
        Message::Subscriptions(_) => SUBSCRIPTIONS,
        Message::Progress(_) => PROGRESS,
        Message::Introductions(_) => INTRODUCTIONS,
        Message::Acknowledge { .. } => ACKNOWLEDGE,
        Message::Goodbye => GOODBYE,
    });
    out.put_slice(&[0, 0]);
    out.put_u64_le(incarnation);
    match message {
        Message::Hello {
            name,
            seen,
            stream,
            holds,
            label,
            lanes,
            failed,
        } => {
            out.put_u64_le(*seen);
            out.put_u32_le(*stream);
            out.put_u64_le(*holds);
            out.put_u32_le(*label);
            text(&mut out, name, MAX_NAME);
            let technologies = technologies(lanes);
            out.put_u8(technologies.len() as u8);
            for technology in &technologies {
                text(&mut out, &technology.datapath, MAX_DATAPATH);
                out.put_u16_le(technology.takes);
                let flag = |set: bool, flag: u8| if set { flag } else { 0 };
                let mut outages = failed.iter();
                let outage = outages.find(|outage| outage.datapath == technology.datapath);
                out.put_u8(
                    flag(technology.udp, UDP)
                        | flag(technology.address.is_some(), OWN)
                        | flag(outage.is_some(), FAILED)
                        | flag(outage.is_some_and(|outage| outage.returns), RETURNS),
                );
                if let Some(own) = technology.address {
                    address(&mut out, own);
                }
            }
            out.put_u8(lanes.len().min(MAX_LANES) as u8);
            for lane in lanes.iter().take(MAX_LANES) {
                out.put_u32_le(lane.incarnation);
                let port = |technology: &&Endpoint| {
                    let mut of = lane.endpoints.iter();
                    of.find(|e| e.is_like(technology)).map(|e| e.port)
                };
                let ports: Vec<Option<u16>> = technologies.iter().map(port).collect();
                let bits = ports.iter().enumerate();
                out.put_u8(bits.fold(0, |mask, (at, port)| mask | u8::from(port.is_some()) << at));
                ports
                    .iter()
                    .flatten()
                    .for_each(|&port| out.put_u16_le(port));
            }
        }
        Message::Subscriptions(page) => {
            out.put_u32_le(page.stream);
            out.put_u64_le(page.base);
            out.put_u64_le(page.to);
            out.put_u8(page.entries.len().min(PAGE_ENTRIES) as u8);
            for (entry, wanted) in page.entries.iter().take(PAGE_ENTRIES) {
                out.put_u64_le(entry.channel);
                out.put_u8(entry.lane | if *wanted { 0 } else { DROPPED });
            }
        }
        Message::Acknowledge { stream, version } => {
            out.put_u32_le(*stream);
            out.put_u64_le(*version);
        }
        Message::Progress(sources) => {
            out.put_u8(sources.len().min(PROGRESS_ENTRIES) as u8);
            for (lane, source) in sources.iter().take(PROGRESS_ENTRIES) {
                out.put_u8(*lane);
                out.put_u64_le(source.channel);
                out.put_u32_le(source.source);
                out.put_u32_le(source.next);
                out.put_u8(source.ended.into());
            }
        }
        Message::Introductions(nodes) => {
            out.put_u8(nodes.len().min(INTRODUCED) as u8);
            for node in nodes.iter().take(INTRODUCED) {
                address(&mut out, node.address.ip());
                out.put_u16_le(node.address.port());
                out.put_u8(node.key.is_some().into());
                out.put_slice(node.key.as_ref().map_or(&[], |key| &key.0));
            }
        }
        Message::Goodbye => {}
    }
    out
}

/// The technologies of a node's lanes.
fn technologies(lanes: &[LaneAnnouncement]) -> Vec<&Endpoint> {
    let mut found: Vec<&Endpoint> = Vec::new();
    for endpoint in lanes.iter().flat_map(|lane| &lane.endpoints) {
        if found.len() < MAX_ENDPOINTS && !found.iter().any(|known| known.is_like(endpoint)) {
            found.push(endpoint);
        }
    }
    found
}

/// Those of the outages that concern the lanes, one for each datapath, in the order of their technologies.
fn failures(lanes: &[LaneAnnouncement], outages: &[Outage]) -> Vec<Outage> {
    let mut failed: Vec<Outage> = Vec::new();
    for technology in technologies(lanes) {
        let of = |outage: &&Outage| outage.datapath == technology.datapath;
        if !failed.iter().any(|known| of(&known)) {
            failed.extend(outages.iter().find(of).cloned());
        }
    }
    failed
}

fn address(out: &mut Vec<u8>, ip: IpAddr) {
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    out.put_slice(&ip.octets());
}

fn text(out: &mut Vec<u8>, text: &str, longest: usize) {
    let mut end = text.len().min(longest);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.put_u8(end as u8);
    out.put_slice(&text.as_bytes()[..end]);
}

/// Reads a datagram: the sender's incarnation and its message.
///
/// # Errors
/// [`DecodeError`]; count it and drop the datagram.
pub fn decode(bytes: &[u8]) -> Result<(u64, Message), DecodeError> {
    let malformed = DecodeError::Malformed(bytes.len());
    if bytes.len() < 16 || bytes[..4] != MAGIC {
        return Err(DecodeError::Magic);
    }
    if bytes[4] != VERSION {
        return Err(DecodeError::Version(bytes[4]));
    }
    let kind = bytes[5];
    let mut rest = &bytes[8..];
    let r = &mut rest;
    let mut read = || -> Option<Result<(u64, Message), DecodeError>> {
        let incarnation = r.try_get_u64_le().ok()?;
        let message = match kind {
            HELLO => {
                let seen = r.try_get_u64_le().ok()?;
                let stream = r.try_get_u32_le().ok()?;
                let holds = r.try_get_u64_le().ok()?;
                let label = r.try_get_u32_le().ok()?;
                let name = read_text(r, MAX_NAME)?;
                let count = usize::from(r.try_get_u8().ok()?);
                if count > MAX_ENDPOINTS {
                    return None;
                }
                let mut technologies = Vec::with_capacity(count);
                let mut outages = Vec::new();
                for _ in 0..count {
                    let (technology, outage) = read_technology(r)?;
                    // Each once: a lane has one port of it.
                    if technologies
                        .iter()
                        .any(|known: &Endpoint| known.is_like(&technology))
                    {
                        return None;
                    }
                    technologies.push(technology);
                    outages.extend(outage);
                }
                let count = usize::from(r.try_get_u8().ok()?);
                if count > MAX_LANES {
                    return None;
                }
                let mut lanes = Vec::with_capacity(count);
                for _ in 0..count {
                    let incarnation = r.try_get_u32_le().ok()?;
                    let mask = r.try_get_u8().ok()?;
                    if u32::from(mask) >> technologies.len() != 0 {
                        return None;
                    }
                    let mut endpoints = Vec::with_capacity(mask.count_ones() as usize);
                    for (at, technology) in technologies.iter().enumerate() {
                        if mask & 1 << at != 0 {
                            let port = r.try_get_u16_le().ok()?;
                            endpoints.push(Endpoint {
                                port,
                                ..Endpoint::clone(technology)
                            });
                        }
                    }
                    lanes.push(LaneAnnouncement {
                        incarnation,
                        endpoints,
                    });
                }
                Message::Hello {
                    name,
                    seen,
                    stream,
                    holds,
                    label,
                    failed: failures(&lanes, &outages),
                    lanes,
                }
            }
            SUBSCRIPTIONS => {
                let (stream, base, to) = (
                    r.try_get_u32_le().ok()?,
                    r.try_get_u64_le().ok()?,
                    r.try_get_u64_le().ok()?,
                );
                let count = usize::from(r.try_get_u8().ok()?);
                if count > PAGE_ENTRIES || to < base {
                    return None;
                }
                let mut entries = Vec::with_capacity(count);
                for _ in 0..count {
                    let channel = r.try_get_u64_le().ok()?;
                    let lane = r.try_get_u8().ok()?;
                    let entry = Subscription {
                        channel,
                        lane: lane & !DROPPED,
                    };
                    entries.push((entry, lane & DROPPED == 0));
                }
                Message::Subscriptions(Page {
                    stream,
                    base,
                    to,
                    entries,
                })
            }
            ACKNOWLEDGE => Message::Acknowledge {
                stream: r.try_get_u32_le().ok()?,
                version: r.try_get_u64_le().ok()?,
            },
            PROGRESS => {
                let count = usize::from(r.try_get_u8().ok()?);
                if count > PROGRESS_ENTRIES {
                    return None;
                }
                let mut sources = Vec::with_capacity(count);
                for _ in 0..count {
                    let lane = r.try_get_u8().ok()?;
                    let source = SourceProgress {
                        channel: r.try_get_u64_le().ok()?,
                        source: r.try_get_u32_le().ok()?,
                        next: r.try_get_u32_le().ok()?,
                        ended: read_flag(r)?,
                    };
                    sources.push((lane, source));
                }
                Message::Progress(sources)
            }
            INTRODUCTIONS => {
                let count = usize::from(r.try_get_u8().ok()?);
                if count > INTRODUCED {
                    return None;
                }
                let mut nodes = Vec::with_capacity(count);
                for _ in 0..count {
                    nodes.push(read_node(r)?);
                }
                Message::Introductions(nodes)
            }
            GOODBYE => Message::Goodbye,
            other => return Some(Err(DecodeError::Type(other))),
        };
        if incarnation == 0 || !r.is_empty() {
            None
        } else {
            Some(Ok((incarnation, message)))
        }
    };
    read().unwrap_or(Err(malformed))
}

/// A technology, as an endpoint without a port, and whether it has failed.
fn read_technology(r: &mut &[u8]) -> Option<(Endpoint, Option<Outage>)> {
    let datapath = read_text(r, MAX_DATAPATH)?;
    let takes = r.try_get_u16_le().ok()?.max(LEAST_TAKEN);
    let flags = r.try_get_u8().ok()?;
    if flags & !(UDP | OWN | FAILED | RETURNS) != 0 || flags & (FAILED | RETURNS) == RETURNS {
        return None;
    }
    let address = match flags & OWN {
        0 => None,
        _ => Some(read_address(r).filter(|ip| !ip.is_loopback() && *ip != Ipv4Addr::BROADCAST)?),
    };
    let outage = (flags & FAILED != 0).then(|| Outage {
        datapath: datapath.clone(),
        returns: flags & RETURNS != 0,
    });
    let endpoint = Endpoint {
        datapath,
        port: 0,
        takes,
        udp: flags & UDP != 0,
        address,
    };
    Some((endpoint, outage))
}

fn read_address(r: &mut &[u8]) -> Option<IpAddr> {
    let mut ip = [0; 16];
    r.try_copy_to_slice(&mut ip).ok()?;
    let ip = Ipv6Addr::from(ip).to_canonical();
    (!ip.is_unspecified() && !ip.is_multicast()).then_some(ip)
}

fn read_node(r: &mut &[u8]) -> Option<PeerConfig> {
    let ip = read_address(r)?;
    let port = r.try_get_u16_le().ok()?;
    let key = match read_flag(r)? {
        true => {
            let mut key = [0; KEY_LEN];
            r.try_copy_to_slice(&mut key).ok()?;
            Some(PublicKey(key))
        }
        false => None,
    };
    if port == 0 {
        return None;
    }
    let address = SocketAddr::new(ip, port);
    Some(PeerConfig::known_by(address, key))
}

fn read_flag(r: &mut &[u8]) -> Option<bool> {
    match r.try_get_u8().ok()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn read_text(r: &mut &[u8], longest: usize) -> Option<String> {
    let length = usize::from(r.try_get_u8().ok()?);
    if length > longest {
        return None;
    }
    let (head, rest) = r.split_at_checked(length)?;
    *r = rest;
    std::str::from_utf8(head).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use proptest::prelude::*;

    /// Each lane's endpoints in the order in which the technologies appear first.
    fn in_order(mut lanes: Vec<LaneAnnouncement>) -> Vec<LaneAnnouncement> {
        let all = lanes.clone();
        let technologies = technologies(&all);
        for lane in &mut lanes {
            let place = |e: &Endpoint| technologies.iter().position(|known| known.is_like(e));
            lane.endpoints.sort_by_key(place);
        }
        lanes
    }

    fn messages() -> impl Strategy<Value = Message> {
        let technology = ("[a-z]{1,15}", any::<(u16, bool, Option<[u8; 3]>)>()).prop_map(
            |(datapath, (takes, udp, address))| Endpoint {
                datapath,
                port: 0,
                takes: takes.max(LEAST_TAKEN),
                udp,
                address: address.map(|[a, b, c]| IpAddr::from([10, a, b, c])),
            },
        );
        let technologies = proptest::collection::vec(technology, 0..=MAX_ENDPOINTS);
        let ports = any::<(u32, [Option<u16>; MAX_ENDPOINTS])>();
        let lanes = (
            technologies,
            proptest::collection::vec(ports, 0..=MAX_LANES),
        )
            .prop_map(|(technologies, lanes)| {
                let endpoints = |ports: [Option<u16>; MAX_ENDPOINTS]| {
                    let mut endpoints: Vec<Endpoint> = Vec::new();
                    for (technology, port) in technologies.iter().zip(ports) {
                        let port =
                            port.filter(|_| !endpoints.iter().any(|e| e.is_like(technology)));
                        endpoints.extend(port.map(|port| Endpoint {
                            port,
                            ..technology.clone()
                        }));
                    }
                    endpoints
                };
                let lanes = lanes.into_iter();
                let lanes = lanes.map(|(incarnation, ports)| LaneAnnouncement {
                    incarnation,
                    endpoints: endpoints(ports),
                });
                in_order(lanes.collect())
            });
        let entry = (any::<u64>(), 0u8..128, any::<bool>())
            .prop_map(|(channel, lane, wanted)| (Subscription { channel, lane }, wanted));
        let source = (any::<(u8, u64, u32, u32, bool)>()).prop_map(
            |(lane, channel, source, next, ended)| {
                let progress = SourceProgress {
                    channel,
                    source,
                    next,
                    ended,
                };
                (lane, progress)
            },
        );
        let node = (
            any::<([u8; 4], bool)>(),
            1u16..,
            any::<Option<[u8; KEY_LEN]>>(),
        );
        let node = node.prop_map(|((ip, mapped), port, key)| {
            let [a, b, c, _] = ip.map(u16::from);
            let address = match mapped {
                true => IpAddr::from([10, ip[1], ip[2], ip[3]]),
                false => Ipv6Addr::new(0xfd00, a, b, c, 0, 0, 0, 1).into(),
            };
            PeerConfig::known_by(SocketAddr::new(address, port), key.map(PublicKey))
        });
        prop_oneof![
            (
                "[a-z]{0,20}",
                any::<(u64, u32, u64, u32)>(),
                lanes,
                any::<[Option<bool>; MAX_ENDPOINTS]>()
            )
                .prop_map(|(name, (seen, stream, holds, label), lanes, fails)| {
                    let technologies = super::technologies(&lanes);
                    let mut named = HashSet::new();
                    let failed = technologies.iter().zip(fails).filter_map(|(of, fails)| {
                        let first = named.insert(&of.datapath);
                        Some(Outage {
                            datapath: of.datapath.clone(),
                            returns: fails.filter(|_| first)?,
                        })
                    });
                    let failed = failed.collect();
                    Message::Hello {
                        failed,
                        name,
                        seen,
                        stream,
                        holds,
                        label,
                        lanes,
                    }
                }),
            (
                any::<(u32, u32, u32)>(),
                proptest::collection::vec(entry, 0..=PAGE_ENTRIES)
            )
                .prop_map(|((stream, base, more), entries)| Message::Subscriptions(
                    Page {
                        stream,
                        base: base.into(),
                        to: u64::from(base) + u64::from(more),
                        entries,
                    }
                )),
            any::<(u32, u64)>()
                .prop_map(|(stream, version)| Message::Acknowledge { stream, version }),
            proptest::collection::vec(source, 0..=PROGRESS_ENTRIES).prop_map(Message::Progress),
            proptest::collection::vec(node, 0..=INTRODUCED).prop_map(Message::Introductions),
            Just(Message::Goodbye),
        ]
    }

    proptest! {
        #[test]
        fn a_message_survives_its_encoding_and_no_prefix_of_it_is_a_message(message in messages(), incarnation in 1u64..) {
            let bytes = encode(incarnation, &message);
            prop_assert_eq!(decode(&bytes), Ok((incarnation, message)));
            for end in 0..bytes.len() {
                prop_assert!(decode(&bytes[..end]).is_err());
            }
        }

        #[test]
        fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..1300), valid_magic: bool) {
            if valid_magic && bytes.len() > 6 {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4] = VERSION;
                bytes[5] %= 7;
            }
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn the_longest_messages_fit_a_datagram() {
        let entry = Subscription {
            channel: 1,
            lane: 1,
        };
        let source = SourceProgress {
            channel: 1,
            source: 1,
            next: 1,
            ended: true,
        };
        let address = "[2001:db8::1]:7400".parse().expect("an address");
        let node = PeerConfig::known_by(address, Some(PublicKey([1; KEY_LEN])));
        let page = Page {
            stream: 1,
            base: 1,
            to: 2,
            entries: vec![(entry, true); PAGE_ENTRIES],
        };
        for message in [
            Message::Subscriptions(page),
            Message::Progress(vec![(0, source); PROGRESS_ENTRIES]),
            Message::Introductions(vec![node; INTRODUCED]),
        ] {
            let length = encode(1, &message).len();
            assert!(length <= MAX_MESSAGE, "{length}");
        }
        let lane = LaneAnnouncement {
            incarnation: 1,
            endpoints: (0..MAX_ENDPOINTS)
                .map(|at| Endpoint {
                    datapath: format!("a-datapath-of-{at:02}"),
                    port: 1,
                    takes: LEAST_TAKEN,
                    udp: true,
                    address: Some(Ipv6Addr::LOCALHOST.into()),
                })
                .collect(),
        };
        let hello = Message::Hello {
            name: "n".repeat(99),
            seen: 1,
            stream: 1,
            holds: 1,
            label: 1,
            lanes: vec![lane; MAX_LANES],
            failed: Vec::new(),
        };
        assert!(
            encode(1, &hello).len() <= MAX_MESSAGE,
            "{}",
            encode(1, &hello).len()
        );
    }

    /// A hello that names these technologies, with these flags, of which each takes a little more than the one before, and has two
    /// lanes with ports of as many of them.
    fn hello_of(technologies: &[(&str, u8)], carried: usize) -> Result<Vec<Outage>, DecodeError> {
        hello_apart(technologies, carried, 1)
    }

    /// The same, each taking so much more.
    fn hello_apart(
        technologies: &[(&str, u8)],
        carried: usize,
        more: u16,
    ) -> Result<Vec<Outage>, DecodeError> {
        let mut bytes = encode(
            1,
            &Message::Hello {
                name: String::new(),
                seen: 1,
                stream: 1,
                holds: 1,
                label: 1,
                lanes: Vec::new(),
                failed: Vec::new(),
            },
        );
        // Neither a technology nor a lane.
        assert_eq!(bytes.split_off(bytes.len() - 2), [0, 0]);
        bytes.put_u8(technologies.len() as u8);
        for (at, (name, flags)) in (0..).zip(technologies) {
            text(&mut bytes, name, MAX_DATAPATH);
            bytes.put_u16_le(9000 + at * more);
            bytes.put_u8(*flags);
        }
        // The first lane goes without the first of them.
        bytes.put_u8(2);
        let all = (1 << carried) - 1;
        for mask in [all & !1, all] {
            bytes.put_u32_le(mask);
            bytes.put_u8(mask as u8);
            (0..mask.count_ones()).for_each(|port| bytes.put_u16_le(port as u16));
        }
        match decode(&bytes)?.1 {
            Message::Hello { failed, .. } => Ok(failed),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_hello_tells_which_datapaths_have_failed_and_flags_without_a_meaning_are_refused() {
        let outage = |datapath: &str, returns| Outage {
            datapath: datapath.into(),
            returns,
        };
        let told = [
            ("udp", UDP),
            ("xdp", UDP | FAILED),
            ("fabric", FAILED | RETURNS),
        ];
        assert_eq!(
            hello_of(&told, 3),
            Ok(vec![outage("xdp", false), outage("fabric", true)])
        );
        // What no lane has is nobody's loss.
        assert_eq!(hello_of(&told, 2), Ok(vec![outage("xdp", false)]));
        // Of a version that tells of no failures.
        assert_eq!(hello_of(&[("udp", UDP)], 1), Ok(Vec::new()));
        // Once for each name, however often it comes: the first failure counts.
        let twice = [
            ("udp", UDP),
            ("xdp", UDP),
            ("xdp", UDP | FAILED),
            ("xdp", UDP | FAILED | RETURNS),
        ];
        assert_eq!(hello_of(&twice, 4), Ok(vec![outage("xdp", false)]));
        // The very same one twice: which port of a lane is it?
        let same = hello_apart(&twice, 4, 0);
        assert!(matches!(same, Err(DecodeError::Malformed(_))), "{same:?}");
        for flags in [RETURNS, UDP | RETURNS, 16, 128, FAILED | 16] {
            let refused = hello_of(&[("udp", UDP), ("xdp", flags)], 2);
            assert!(
                matches!(refused, Err(DecodeError::Malformed(_))),
                "{flags}: {refused:?}"
            );
        }
    }

    /// A seed by its name: datagrams with their sender and the time since the one before in 100 ms.
    type Seed = (&'static str, Vec<(u8, u8, Vec<u8>)>);

    /// What the fuzzer of `fuzz/fuzz_targets/peering.rs` begins with.
    fn seeds() -> Vec<Seed> {
        const NODE: u64 = 9;
        let udp = Endpoint {
            datapath: "udp".into(),
            port: 7401,
            takes: 65_507,
            udp: true,
            address: None,
        };
        let hello = |seen: u64, failed: Vec<Outage>| {
            let message = Message::Hello {
                name: "peer".into(),
                seen,
                stream: 1,
                holds: 0,
                label: 3,
                lanes: vec![LaneAnnouncement {
                    incarnation: 77,
                    endpoints: vec![
                        udp.clone(),
                        Endpoint {
                            datapath: "xdp".into(),
                            takes: 1458,
                            ..udp.clone()
                        },
                    ],
                }],
                failed,
            };
            encode(NODE, &message)
        };
        let page = |base: u64, to: u64, channel: u64, wanted: bool| {
            let entry = Subscription { channel, lane: 0 };
            let page = Page {
                stream: 5,
                base,
                to,
                entries: vec![(entry, wanted)],
            };
            encode(NODE, &Message::Subscriptions(page))
        };
        let first = || hello(0, Vec::new());
        let outage = |returns| Outage {
            datapath: "xdp".into(),
            returns,
        };
        let mut other = first();
        other[4] = VERSION - 1;
        let progress = SourceProgress {
            channel: 5,
            source: 1,
            next: 100,
            ended: true,
        };
        let introduced = ["10.0.0.3:7400", "10.0.0.4:7400"];
        let introduced = introduced.map(|text| {
            let address: SocketAddr = text.parse().expect("an address");
            address.into()
        });
        vec![
            ("hello", vec![(1, 1, first())]),
            (
                "accepted",
                vec![(2, 1, first()), (2, 1, hello(7, Vec::new()))],
            ),
            ("stranger", vec![(150, 1, first())]),
            ("other_version", vec![(1, 1, other)]),
            (
                "hello_and_channels",
                vec![(1, 1, hello(7, Vec::new())), (1, 1, page(0, 1, 5, true))],
            ),
            (
                "two_pages",
                vec![
                    (1, 1, hello(7, Vec::new())),
                    (1, 1, page(0, 1, 5, true)),
                    (1, 1, page(1, 2, 5, false)),
                    (
                        1,
                        1,
                        encode(
                            NODE,
                            &Message::Acknowledge {
                                stream: 1,
                                version: 0,
                            },
                        ),
                    ),
                ],
            ),
            (
                "goodbye",
                vec![
                    (1, 1, first()),
                    (1, 1, encode(NODE, &Message::Progress(vec![(0, progress)]))),
                    (1, 1, encode(NODE, &Message::Goodbye)),
                ],
            ),
            ("silence_and_back", vec![(1, 1, first()), (1, 90, first())]),
            (
                "a_datapath_that_failed",
                vec![
                    (1, 1, hello(7, vec![outage(false)])),
                    (1, 10, hello(7, vec![outage(true)])),
                    (1, 10, hello(7, Vec::new())),
                ],
            ),
            (
                "introductions",
                vec![
                    (1, 1, first()),
                    (
                        1,
                        1,
                        encode(NODE, &Message::Introductions(introduced.into())),
                    ),
                ],
            ),
        ]
    }

    #[test]
    fn the_fuzzer_begins_with_datagrams_of_this_version() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/seeds/peering");
        let write = std::env::var_os("TAKT_WRITE_SEEDS").is_some();
        for (name, datagrams) in seeds() {
            let mut bytes = Vec::new();
            for (from, later, datagram) in datagrams {
                assert!(decode(&datagram).is_ok() || name == "other_version");
                let length = u8::try_from(datagram.len()).expect("short");
                bytes.extend([from, later, length]);
                bytes.extend(datagram);
            }
            let path = std::path::Path::new(directory).join(name);
            if write {
                std::fs::write(&path, &bytes).expect("written");
            }
            assert!(
                std::fs::read(&path).is_ok_and(|known| known == bytes),
                "{name} is of another version: TAKT_WRITE_SEEDS=1 cargo test -p takt-runtime the_fuzzer_begins"
            );
        }
    }
}
