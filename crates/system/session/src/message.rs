//! Control messages between an application and the runtime, and their encoding.
//!
//! One message is one packet of a `SOCK_SEQPACKET` socket: a header (`u16` version, `u16` type, `u32`
//! request number, little-endian) and the fields of its type. File descriptors travel beside it. A
//! reply carries the number of its request; 0 is for what the runtime says unasked.

use std::net::IpAddr;
use std::time::Duration;

use bytes::{Buf, BufMut};
use takt_time::TrafficClass;

use crate::endpoint::{Endpoint, MOST_ADDRESSES, MOST_VLANS};
use crate::error::{ErrorCode, Failure};
use crate::layout::{ArenaMap, SinkBlock, SourceBlock};
use crate::qos::{
    Acceleration, DatapathName, NotADatapathName, Qos, Reliability, ResourceUse, SinkMode,
    SlowSinks, TimeSensitivity,
};
use crate::unserved::{Counts, REASONS};
use crate::{ChannelId, PROTOCOL_VERSION};

/// Most bytes of a message.
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// Most bytes of a text field; longer texts are cut when encoded.
pub const MAX_TEXT_BYTES: usize = 1024;

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by another version of the protocol.
    #[error(
        "protocol version {found}, here {PROTOCOL_VERSION}: upgrade the older of application and runtime"
    )]
    Version {
        /// The version found.
        found: u16,
    },
    /// The type is not known.
    #[error("unknown message type {0}")]
    Type(u16),
    /// The packet ends inside a field.
    #[error("message of {0} bytes ends inside a field")]
    Truncated(usize),
    /// Bytes follow the last field.
    #[error("{0} bytes follow the last field")]
    Trailing(usize),
    /// A field has a value that its type does not know.
    #[error("field {field} has the value {value}, which means nothing")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A text is not UTF-8 or too long.
    #[error("text field of {0} bytes is too long or not UTF-8")]
    Text(usize),
    /// A stream is to be over something that cannot be a datapath.
    #[error(transparent)]
    Datapath(#[from] NotADatapathName),
}

impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Self {
        let code = match error {
            DecodeError::Version { .. } => ErrorCode::Version,
            _ => ErrorCode::Protocol,
        };
        Failure::new(code, error.to_string())
    }
}

/// What an application asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// First message of a session.
    Attach {
        /// A name for people.
        name: String,
        /// Wished bytes of the transmit region; 0 = the runtime's default.
        tx_bytes: u64,
        /// Wished bytes of the receive region; 0 = the runtime's default.
        rx_bytes: u64,
        /// It can exchange messages with other sessions of its trust domain itself, if it is in one.
        domain: bool,
    },
    /// Open a stream with these qualities.
    OpenStream(Qos),
    /// Close a stream with its sources and sinks.
    CloseStream(u32),
    /// Open a source.
    OpenSource {
        /// The stream.
        stream: u32,
        /// The channel to write.
        channel: ChannelId,
        /// Entries of its rings, a power of two; 0 = default.
        depth: u32,
        /// A random number that the application chooses for the source, the same when it opens it again at a runtime
        /// that has come back.
        origin: u64,
        /// The number of its first message: how many it has emitted at runtimes that are gone.
        first: u64,
    },
    /// Close a source. Messages emitted before are still sent.
    CloseSource(u32),
    /// Open a sink.
    OpenSink {
        /// The stream.
        stream: u32,
        /// The channel to read.
        channel: ChannelId,
        /// Entries of its rings, a power of two; 0 = default.
        depth: u32,
        /// A descriptor that becomes readable with news is wanted.
        notify_fd: bool,
        /// Which messages it gets.
        mode: SinkMode,
    },
    /// Close a sink.
    CloseSink(u32),
    /// Open a source of whole Ethernet frames, sent from the tenant's endpoint. Closed as any source.
    OpenFrameSource {
        /// The stream.
        stream: u32,
        /// Entries of its rings, a power of two; 0 = default.
        depth: u32,
    },
    /// Which MAC address frames need whose packets are for a destination.
    Resolve {
        /// The packets' destination.
        destination: IpAddr,
        /// Where they go on the link: to the destination, or to a gateway.
        next_hop: IpAddr,
        /// The MAC address that the application knows for it.
        known: Option<[u8; 6]>,
    },
    /// How many readers the channel of this source has.
    Readers(u32),
    /// How many of this application's datagrams with a launch time have not been given to the runtime so far.
    Unserved(Counts),
    /// End the session: its sinks at once, its sources when what was emitted is sent. Answered then. Until the connection
    /// is closed its memory stays, for received messages that the application still reads.
    End,
    /// A ring to or from a session of the same trust domain is not used any more.
    EndDirect {
        /// Its number.
        ring: u32,
        /// Why.
        reason: DirectEnd,
    },
    /// Tell of room at this source: a descriptor is wanted that becomes readable when messages of the session are
    /// complete. The source gives no messages to sinks itself from then on: what they give back, no lane sees.
    TellRoom(u32),
}

/// Why one end of a ring between two sessions has given it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DirectEnd {
    /// It cannot be mapped.
    Unusable = 0,
    /// The source: its sink has given nothing back for too long.
    Slow = 1,
    /// The other end has written what cannot be.
    Impossible = 2,
    /// The sink: its source rings and has nothing to give.
    Noise = 3,
    /// It has been told that the ring has ended. The sink: it has none of its messages any more; the source: it gives none any
    /// more.
    Done = 4,
}

impl DirectEnd {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Unusable,
        Self::Slow,
        Self::Impossible,
        Self::Noise,
        Self::Done,
    ];
}

impl std::fmt::Display for DirectEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Unusable => "cannot be mapped",
            Self::Slow => "its sink has given nothing back for too long",
            Self::Impossible => "the other end has written what cannot be",
            Self::Noise => "its source rings and has nothing to give",
            Self::Done => "it is done with",
        })
    }
}

/// What the runtime answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// With two descriptors: the arena's memfd, the lane's eventfd; in a trust domain a third, the memfd of the transmit
    /// region.
    Attached {
        /// Number of the session at this runtime.
        session: u64,
        /// The arena.
        map: ArenaMap,
        /// Longest message that this session may send.
        max_message: u32,
        /// It is in a trust domain: its transmit region is a file of its own, mapped over its place in the arena, and the
        /// application protects it before it opens a source.
        domain: bool,
    },
    /// A stream is open.
    StreamOpened {
        /// Its number.
        stream: u32,
        /// The datapath it got.
        datapath: String,
        /// Why it is not what was asked for; empty if it is.
        warning: String,
    },
    /// Unasked: a stream has moved to another datapath, or the reason has changed why it is not what was asked for.
    StreamMoved {
        /// Its number.
        stream: u32,
        /// The datapath that carries what is emitted from now on.
        datapath: String,
        /// Why it is not what was asked for; empty if it is.
        warning: String,
    },
    /// A source is open.
    SourceOpened {
        /// Its number.
        source: u32,
        /// Where its rings are.
        block: SourceBlock,
    },
    /// A sink is open; with one descriptor if it was asked for.
    SinkOpened {
        /// Its number.
        sink: u32,
        /// Where its rings are.
        block: SinkBlock,
    },
    /// A source of frames is open.
    FrameSourceOpened {
        /// Its number.
        source: u32,
        /// Where its rings are.
        block: SourceBlock,
        /// Where its frames come from.
        endpoint: Endpoint,
    },
    /// The MAC address to send to; none: the network does not reach the address.
    Resolved(Option<[u8; 6]>),
    /// So many sinks of this node's lane and lanes elsewhere get what is emitted from now on.
    Readers(u32),
    /// Stream, source or sink is closed.
    Closed,
    /// What was told is noted.
    Noted,
    /// With one descriptor, the same for all sources of the session: readable when messages are complete and the word at
    /// [`ROOM_OFFSET`](crate::layout::ROOM_OFFSET) asked for it.
    RoomTold,
    /// Refused; nothing changed.
    Failed(Failure),
    /// The session has ended; nothing follows.
    Ended(Failure),
    /// Unasked: the source gives its messages to a sink itself, from this epoch on. With one descriptor: the ring.
    DirectSource {
        /// The source.
        source: u32,
        /// The ring's number.
        ring: u32,
        /// Which of the source's messages it begins with: see [`TxDescriptor::epoch`](crate::layout::TxDescriptor::epoch).
        epoch: u16,
        /// Entries of the ring.
        depth: u32,
    },
    /// Unasked: the sink gets messages of a source from the source itself. With two descriptors: the ring, and the
    /// transmit region of the source's session, to be read only.
    DirectSink {
        /// The sink.
        sink: u32,
        /// The ring's number.
        ring: u32,
        /// The source, as in [`RxDescriptor::sender`](crate::layout::RxDescriptor::sender).
        sender: u32,
        /// Entries of the ring.
        depth: u32,
        /// Number of the source's session.
        session: u64,
        /// Bytes of its transmit region.
        region_bytes: usize,
    },
    /// Unasked: a ring is not used any more. The sink takes what is in it.
    DirectEnded {
        /// The ring's number.
        ring: u32,
        /// From this epoch on the lane serves the sink, if it is still there; 0 for the sink itself.
        epoch: u16,
        /// For the source: the sink holds no block any more, and reads none.
        free: bool,
    },
}

/// A message with its request number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<M> {
    /// Request number.
    pub request: u32,
    /// The message.
    pub message: M,
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u16, request: u32) -> Self {
        let mut w = Self(Vec::with_capacity(128));
        w.u16(PROTOCOL_VERSION);
        w.u16(kind);
        w.u32(request);
        w
    }
    fn u8(&mut self, v: u8) {
        self.0.put_u8(v);
    }
    fn u16(&mut self, v: u16) {
        self.0.put_u16_le(v);
    }
    fn u32(&mut self, v: u32) {
        self.0.put_u32_le(v);
    }
    fn u64(&mut self, v: u64) {
        self.0.put_u64_le(v);
    }
    fn text(&mut self, v: &str) {
        let mut end = v.len().min(MAX_TEXT_BYTES);
        while !v.is_char_boundary(end) {
            end -= 1;
        }
        self.u16(end as u16);
        self.0.extend_from_slice(&v.as_bytes()[..end]);
    }
    fn bytes(&mut self, v: &[u8]) {
        self.0.extend_from_slice(v);
    }
    fn address(&mut self, v: IpAddr) {
        match v {
            IpAddr::V4(v4) => {
                self.u8(4);
                self.bytes(&v4.octets());
            }
            IpAddr::V6(v6) => {
                self.u8(6);
                self.bytes(&v6.octets());
            }
        }
    }
    fn mac(&mut self, v: Option<[u8; 6]>) {
        self.u8(u8::from(v.is_some()));
        if let Some(mac) = v {
            self.bytes(&mac);
        }
    }
    fn endpoint(&mut self, v: &Endpoint) {
        self.text(&v.network);
        self.bytes(&v.mac);
        self.u16(v.mtu);
        let addresses = v.addresses.iter().take(MOST_ADDRESSES);
        self.u8(addresses.len() as u8);
        for (address, prefix) in addresses {
            self.address(*address);
            self.u8(*prefix);
        }
        let vlans = v.vlans.iter().take(MOST_VLANS);
        self.u8(vlans.len() as u8);
        vlans.for_each(|vlan| self.u16(*vlan));
    }
    fn reliability(&mut self, v: Reliability) {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let (kind, deadline, patience) = match v {
            Reliability::BestEffort => (0, 0, 0),
            Reliability::Latest => (4, 0, 0),
            Reliability::Reliable {
                deadline,
                slow_sinks,
            } => {
                let (kind, patience) = match slow_sinks {
                    SlowSinks::Wait => (1, 0),
                    SlowSinks::Drop => (2, 0),
                    SlowSinks::Evict(patience) => (3, nanos(patience)),
                };
                (kind, deadline.map_or(0, nanos), patience)
            }
        };
        self.u8(kind);
        self.u64(deadline);
        self.u64(patience);
    }
    fn failure(&mut self, v: &Failure) {
        self.u32(v.code as i32 as u32);
        self.text(&v.message);
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    total: usize,
}

impl<'a> Reader<'a> {
    /// Checks the header; returns type and request number.
    fn open(bytes: &'a [u8]) -> Result<(Self, u16, u32), DecodeError> {
        let mut r = Self {
            rest: bytes,
            total: bytes.len(),
        };
        let version = r.u16()?;
        if version != PROTOCOL_VERSION {
            return Err(DecodeError::Version { found: version });
        }
        let kind = r.u16()?;
        let request = r.u32()?;
        Ok((r, kind, request))
    }
    fn truncated(&self) -> DecodeError {
        DecodeError::Truncated(self.total)
    }
    fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(self.truncated())?;
        self.rest = rest;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        let copied = self.rest.try_copy_to_slice(&mut out);
        copied.map_err(|_| self.truncated())?;
        Ok(out)
    }
    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.rest.try_get_u8().map_err(|_| self.truncated())
    }
    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.rest.try_get_u16_le().map_err(|_| self.truncated())
    }
    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.rest.try_get_u32_le().map_err(|_| self.truncated())
    }
    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.rest.try_get_u64_le().map_err(|_| self.truncated())
    }
    fn size(&mut self, field: &'static str) -> Result<usize, DecodeError> {
        let value = self.u64()?;
        usize::try_from(value).map_err(|_| DecodeError::Value { field, value })
    }
    fn text(&mut self) -> Result<String, DecodeError> {
        let len = usize::from(self.u16()?);
        if len > MAX_TEXT_BYTES {
            return Err(DecodeError::Text(len));
        }
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| DecodeError::Text(len))
    }
    /// The name of a datapath, or none.
    fn datapath(&mut self) -> Result<Option<DatapathName>, DecodeError> {
        let name = self.text()?;
        match name.is_empty() {
            true => Ok(None),
            false => Ok(Some(name.parse()?)),
        }
    }
    fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::Value {
                field,
                value: value.into(),
            }),
        }
    }
    fn address(&mut self) -> Result<IpAddr, DecodeError> {
        match self.u8()? {
            4 => Ok(IpAddr::from(self.array::<4>()?)),
            6 => Ok(IpAddr::from(self.array::<16>()?)),
            value => Err(DecodeError::Value {
                field: "address family",
                value: value.into(),
            }),
        }
    }
    fn mac(&mut self) -> Result<Option<[u8; 6]>, DecodeError> {
        match self.flag("MAC address present")? {
            true => self.array().map(Some),
            false => Ok(None),
        }
    }
    fn endpoint(&mut self) -> Result<Endpoint, DecodeError> {
        let (network, mac, mtu) = (self.text()?, self.array()?, self.u16()?);
        let count = usize::from(self.u8()?);
        if count > MOST_ADDRESSES {
            return Err(DecodeError::Value {
                field: "number of addresses",
                value: count as u64,
            });
        }
        let mut addresses = Vec::with_capacity(count);
        for _ in 0..count {
            addresses.push((self.address()?, self.u8()?));
        }
        let count = usize::from(self.u8()?);
        if count > MOST_VLANS {
            return Err(DecodeError::Value {
                field: "number of VLANs",
                value: count as u64,
            });
        }
        let vlans = (0..count).map(|_| self.u16()).collect::<Result<_, _>>()?;
        Ok(Endpoint {
            network,
            mac,
            addresses,
            mtu,
            vlans,
        })
    }
    fn reliability(&mut self) -> Result<Reliability, DecodeError> {
        let (kind, deadline, patience) = (self.u8()?, self.u64()?, self.u64()?);
        let meaningless = match kind {
            0 | 4 => deadline | patience,
            1 | 2 => patience,
            _ => 0,
        };
        if meaningless != 0 {
            return Err(DecodeError::Value {
                field: "deadline or patience of a stream that has none",
                value: meaningless,
            });
        }
        let slow_sinks = match kind {
            0 => return Ok(Reliability::BestEffort),
            4 => return Ok(Reliability::Latest),
            1 => SlowSinks::Wait,
            2 => SlowSinks::Drop,
            3 => SlowSinks::Evict(Duration::from_nanos(patience)),
            value => {
                return Err(DecodeError::Value {
                    field: "reliability",
                    value: value.into(),
                });
            }
        };
        let deadline = (deadline != 0).then_some(Duration::from_nanos(deadline));
        let reliability = Reliability::Reliable {
            deadline,
            slow_sinks,
        };
        match reliability.is_possible() {
            true => Ok(reliability),
            false => Err(DecodeError::Value {
                field: "deadline or patience (1 ns to 1 h)",
                value: deadline.map_or(patience, |ns| ns.as_nanos() as u64),
            }),
        }
    }
    fn failure(&mut self) -> Result<Failure, DecodeError> {
        let number = self.u32()?;
        let code = ErrorCode::from_number(number as i32).ok_or(DecodeError::Value {
            field: "error code",
            value: number.into(),
        })?;
        Ok(Failure {
            code,
            message: self.text()?,
        })
    }
    fn close<T>(self, value: T) -> Result<T, DecodeError> {
        if self.rest.is_empty() {
            Ok(value)
        } else {
            Err(DecodeError::Trailing(self.rest.len()))
        }
    }
}

mod kind {
    pub const ATTACH: u16 = 1;
    pub const OPEN_STREAM: u16 = 2;
    pub const CLOSE_STREAM: u16 = 3;
    pub const OPEN_SOURCE: u16 = 4;
    pub const CLOSE_SOURCE: u16 = 5;
    pub const OPEN_SINK: u16 = 6;
    pub const CLOSE_SINK: u16 = 7;
    pub const OPEN_FRAME_SOURCE: u16 = 8;
    pub const RESOLVE: u16 = 9;
    pub const READERS: u16 = 10;
    pub const UNSERVED: u16 = 11;
    pub const END: u16 = 12;
    pub const END_DIRECT: u16 = 13;
    pub const TELL_ROOM: u16 = 14;
    pub const ATTACHED: u16 = 129;
    pub const STREAM_OPENED: u16 = 130;
    pub const SOURCE_OPENED: u16 = 131;
    pub const SINK_OPENED: u16 = 132;
    pub const CLOSED: u16 = 133;
    pub const FAILED: u16 = 134;
    pub const ENDED: u16 = 135;
    pub const FRAME_SOURCE_OPENED: u16 = 136;
    pub const RESOLVED: u16 = 137;
    pub const READERS_TOLD: u16 = 138;
    pub const NOTED: u16 = 139;
    pub const STREAM_MOVED: u16 = 140;
    pub const DIRECT_SOURCE: u16 = 141;
    pub const DIRECT_SINK: u16 = 142;
    pub const DIRECT_ENDED: u16 = 143;
    pub const ROOM_TOLD: u16 = 144;
}

const NO_CLASS: u8 = 255;

impl Envelope<Request> {
    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        let new = |kind| Writer::new(kind, self.request);
        let w = match &self.message {
            Request::Attach {
                name,
                tx_bytes,
                rx_bytes,
                domain,
            } => {
                let mut w = new(kind::ATTACH);
                w.text(name);
                w.u64(*tx_bytes);
                w.u64(*rx_bytes);
                w.u8(u8::from(*domain));
                w
            }
            Request::OpenStream(qos) => {
                let mut w = new(kind::OPEN_STREAM);
                w.u8(matches!(qos.acceleration, Acceleration::Fast) as u8);
                w.u8(matches!(qos.resource_use, ResourceUse::Unlimited) as u8);
                w.u8(match qos.time_sensitivity {
                    TimeSensitivity::BestEffort => NO_CLASS,
                    TimeSensitivity::TimeSensitive(class) => class.number(),
                });
                w.reliability(qos.reliability);
                w.text(qos.datapath.as_ref().map_or("", |name| name.as_str()));
                w
            }
            Request::CloseStream(id) => {
                let mut w = new(kind::CLOSE_STREAM);
                w.u32(*id);
                w
            }
            Request::OpenSource {
                stream,
                channel,
                depth,
                origin,
                first,
            } => {
                let mut w = new(kind::OPEN_SOURCE);
                w.u32(*stream);
                w.u64(channel.0);
                w.u32(*depth);
                w.u64(*origin);
                w.u64(*first);
                w
            }
            Request::CloseSource(id) => {
                let mut w = new(kind::CLOSE_SOURCE);
                w.u32(*id);
                w
            }
            Request::OpenSink {
                stream,
                channel,
                depth,
                notify_fd,
                mode,
            } => {
                let mut w = new(kind::OPEN_SINK);
                w.u32(*stream);
                w.u64(channel.0);
                w.u32(*depth);
                w.u8(u8::from(*notify_fd)
                    | u8::from(mode.no_local) << 1
                    | u8::from(mode.latest) << 2);
                w
            }
            Request::Readers(id) => {
                let mut w = new(kind::READERS);
                w.u32(*id);
                w
            }
            Request::TellRoom(id) => {
                let mut w = new(kind::TELL_ROOM);
                w.u32(*id);
                w
            }
            Request::Unserved(counts) => {
                let mut w = new(kind::UNSERVED);
                counts.iter().for_each(|count| w.u64(*count));
                w
            }
            Request::End => new(kind::END),
            Request::EndDirect { ring, reason } => {
                let mut w = new(kind::END_DIRECT);
                w.u32(*ring);
                w.u8(*reason as u8);
                w
            }
            Request::CloseSink(id) => {
                let mut w = new(kind::CLOSE_SINK);
                w.u32(*id);
                w
            }
            Request::OpenFrameSource { stream, depth } => {
                let mut w = new(kind::OPEN_FRAME_SOURCE);
                w.u32(*stream);
                w.u32(*depth);
                w
            }
            Request::Resolve {
                destination,
                next_hop,
                known,
            } => {
                let mut w = new(kind::RESOLVE);
                w.address(*destination);
                w.address(*next_hop);
                w.mac(*known);
                w
            }
        };
        w.0
    }

    /// Reads a packet from an application.
    ///
    /// # Errors
    /// [`DecodeError`] for anything but exactly one request of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (mut r, kind, request) = Reader::open(bytes)?;
        let message = match kind {
            kind::ATTACH => Request::Attach {
                name: r.text()?,
                tx_bytes: r.u64()?,
                rx_bytes: r.u64()?,
                domain: r.flag("trust domain")?,
            },
            kind::OPEN_STREAM => {
                let acceleration = if r.flag("acceleration")? {
                    Acceleration::Fast
                } else {
                    Acceleration::Slow
                };
                let resource_use = if r.flag("resource use")? {
                    ResourceUse::Unlimited
                } else {
                    ResourceUse::Frugal
                };
                let time_sensitivity = match r.u8()? {
                    NO_CLASS => TimeSensitivity::BestEffort,
                    class => TimeSensitivity::TimeSensitive(TrafficClass::new(class).ok_or(
                        DecodeError::Value {
                            field: "traffic class",
                            value: class.into(),
                        },
                    )?),
                };
                Request::OpenStream(Qos {
                    acceleration,
                    resource_use,
                    time_sensitivity,
                    reliability: r.reliability()?,
                    datapath: r.datapath()?,
                })
            }
            kind::CLOSE_STREAM => Request::CloseStream(r.u32()?),
            kind::OPEN_SOURCE => Request::OpenSource {
                stream: r.u32()?,
                channel: ChannelId(r.u64()?),
                depth: r.u32()?,
                origin: r.u64()?,
                first: r.u64()?,
            },
            kind::CLOSE_SOURCE => Request::CloseSource(r.u32()?),
            kind::OPEN_SINK => {
                let (stream, channel, depth) = (r.u32()?, ChannelId(r.u64()?), r.u32()?);
                let flags = r.u8()?;
                if flags > 7 {
                    return Err(DecodeError::Value {
                        field: "sink flags",
                        value: flags.into(),
                    });
                }
                Request::OpenSink {
                    stream,
                    channel,
                    depth,
                    notify_fd: flags & 1 != 0,
                    mode: SinkMode {
                        no_local: flags & 2 != 0,
                        latest: flags & 4 != 0,
                    },
                }
            }
            kind::READERS => Request::Readers(r.u32()?),
            kind::TELL_ROOM => Request::TellRoom(r.u32()?),
            kind::CLOSE_SINK => Request::CloseSink(r.u32()?),
            kind::UNSERVED => {
                let mut counts = [0; REASONS];
                for count in &mut counts {
                    *count = r.u64()?;
                }
                Request::Unserved(counts)
            }
            kind::END => Request::End,
            kind::END_DIRECT => {
                let (ring, number) = (r.u32()?, r.u8()?);
                let reason = DirectEnd::ALL.get(usize::from(number)).copied();
                let reason = reason.ok_or(DecodeError::Value {
                    field: "reason",
                    value: number.into(),
                })?;
                Request::EndDirect { ring, reason }
            }
            kind::OPEN_FRAME_SOURCE => Request::OpenFrameSource {
                stream: r.u32()?,
                depth: r.u32()?,
            },
            kind::RESOLVE => Request::Resolve {
                destination: r.address()?,
                next_hop: r.address()?,
                known: r.mac()?,
            },
            other => return Err(DecodeError::Type(other)),
        };
        r.close(Self { request, message })
    }
}

impl Envelope<Reply> {
    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        let new = |kind| Writer::new(kind, self.request);
        let w = match &self.message {
            Reply::Attached {
                session,
                map,
                max_message,
                domain,
            } => {
                let mut w = new(kind::ATTACHED);
                w.u64(*session);
                w.u64(map.ring_bytes as u64);
                w.u64(map.tx_bytes as u64);
                w.u64(map.rx_bytes as u64);
                w.u32(*max_message);
                w.u8(u8::from(*domain));
                w
            }
            Reply::StreamOpened {
                stream,
                datapath,
                warning,
            } => {
                let mut w = new(kind::STREAM_OPENED);
                w.u32(*stream);
                w.text(datapath);
                w.text(warning);
                w
            }
            Reply::StreamMoved {
                stream,
                datapath,
                warning,
            } => {
                let mut w = new(kind::STREAM_MOVED);
                w.u32(*stream);
                w.text(datapath);
                w.text(warning);
                w
            }
            Reply::SourceOpened { source, block } => {
                let mut w = new(kind::SOURCE_OPENED);
                w.u32(*source);
                w.u64(block.offset as u64);
                w.u32(block.depth);
                w
            }
            Reply::SinkOpened { sink, block } => {
                let mut w = new(kind::SINK_OPENED);
                w.u32(*sink);
                w.u64(block.offset as u64);
                w.u32(block.depth);
                w
            }
            Reply::FrameSourceOpened {
                source,
                block,
                endpoint,
            } => {
                let mut w = new(kind::FRAME_SOURCE_OPENED);
                w.u32(*source);
                w.u64(block.offset as u64);
                w.u32(block.depth);
                w.endpoint(endpoint);
                w
            }
            Reply::Readers(count) => {
                let mut w = new(kind::READERS_TOLD);
                w.u32(*count);
                w
            }
            Reply::Resolved(mac) => {
                let mut w = new(kind::RESOLVED);
                w.mac(*mac);
                w
            }
            Reply::Closed => new(kind::CLOSED),
            Reply::Noted => new(kind::NOTED),
            Reply::RoomTold => new(kind::ROOM_TOLD),
            Reply::Failed(failure) => {
                let mut w = new(kind::FAILED);
                w.failure(failure);
                w
            }
            Reply::Ended(failure) => {
                let mut w = new(kind::ENDED);
                w.failure(failure);
                w
            }
            Reply::DirectSource {
                source,
                ring,
                epoch,
                depth,
            } => {
                let mut w = new(kind::DIRECT_SOURCE);
                w.u32(*source);
                w.u32(*ring);
                w.u16(*epoch);
                w.u32(*depth);
                w
            }
            Reply::DirectSink {
                sink,
                ring,
                sender,
                depth,
                session,
                region_bytes,
            } => {
                let mut w = new(kind::DIRECT_SINK);
                w.u32(*sink);
                w.u32(*ring);
                w.u32(*sender);
                w.u32(*depth);
                w.u64(*session);
                w.u64(*region_bytes as u64);
                w
            }
            Reply::DirectEnded { ring, epoch, free } => {
                let mut w = new(kind::DIRECT_ENDED);
                w.u32(*ring);
                w.u16(*epoch);
                w.u8(u8::from(*free));
                w
            }
        };
        w.0
    }

    /// Reads a packet from the runtime.
    ///
    /// # Errors
    /// [`DecodeError`] for anything but exactly one reply of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (mut r, kind, request) = Reader::open(bytes)?;
        let message = match kind {
            kind::ATTACHED => Reply::Attached {
                session: r.u64()?,
                map: ArenaMap {
                    ring_bytes: r.size("ring bytes")?,
                    tx_bytes: r.size("transmit bytes")?,
                    rx_bytes: r.size("receive bytes")?,
                },
                max_message: r.u32()?,
                domain: r.flag("trust domain")?,
            },
            kind::STREAM_OPENED => Reply::StreamOpened {
                stream: r.u32()?,
                datapath: r.text()?,
                warning: r.text()?,
            },
            kind::STREAM_MOVED => Reply::StreamMoved {
                stream: r.u32()?,
                datapath: r.text()?,
                warning: r.text()?,
            },
            kind::SOURCE_OPENED => Reply::SourceOpened {
                source: r.u32()?,
                block: SourceBlock {
                    offset: r.size("block offset")?,
                    depth: r.u32()?,
                },
            },
            kind::SINK_OPENED => Reply::SinkOpened {
                sink: r.u32()?,
                block: SinkBlock {
                    offset: r.size("block offset")?,
                    depth: r.u32()?,
                },
            },
            kind::FRAME_SOURCE_OPENED => Reply::FrameSourceOpened {
                source: r.u32()?,
                block: SourceBlock {
                    offset: r.size("block offset")?,
                    depth: r.u32()?,
                },
                endpoint: r.endpoint()?,
            },
            kind::RESOLVED => Reply::Resolved(r.mac()?),
            kind::READERS_TOLD => Reply::Readers(r.u32()?),
            kind::CLOSED => Reply::Closed,
            kind::NOTED => Reply::Noted,
            kind::ROOM_TOLD => Reply::RoomTold,
            kind::FAILED => Reply::Failed(r.failure()?),
            kind::ENDED => Reply::Ended(r.failure()?),
            kind::DIRECT_SOURCE => Reply::DirectSource {
                source: r.u32()?,
                ring: r.u32()?,
                epoch: r.u16()?,
                depth: r.u32()?,
            },
            kind::DIRECT_SINK => Reply::DirectSink {
                sink: r.u32()?,
                ring: r.u32()?,
                sender: r.u32()?,
                depth: r.u32()?,
                session: r.u64()?,
                region_bytes: r.size("region bytes")?,
            },
            kind::DIRECT_ENDED => Reply::DirectEnded {
                ring: r.u32()?,
                epoch: r.u16()?,
                free: r.flag("free")?,
            },
            other => return Err(DecodeError::Type(other)),
        };
        r.close(Self { request, message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn requests() -> impl Strategy<Value = Request> {
        let nanos = || (1..=3_600_000_000_000u64).prop_map(Duration::from_nanos);
        let slow_sinks = prop_oneof![
            Just(SlowSinks::Wait),
            Just(SlowSinks::Drop),
            nanos().prop_map(SlowSinks::Evict),
        ];
        let reliability = (0..3u8, proptest::option::of(nanos()), slow_sinks).prop_map(
            |(kind, deadline, slow_sinks)| match kind {
                0 => Reliability::Reliable {
                    deadline,
                    slow_sinks,
                },
                1 => Reliability::Latest,
                _ => Reliability::BestEffort,
            },
        );
        let class = proptest::option::of(0u8..8);
        let datapath = proptest::option::of("[a-z0-9-]{1,15}");
        let qos = (any::<bool>(), any::<bool>(), class, reliability, datapath).prop_map(
            |(a, r, c, reliability, datapath)| Qos {
                reliability,
                datapath: datapath.map(|name| name.parse().expect("a name")),
                acceleration: if a {
                    Acceleration::Fast
                } else {
                    Acceleration::Slow
                },
                resource_use: if r {
                    ResourceUse::Unlimited
                } else {
                    ResourceUse::Frugal
                },
                time_sensitivity: c
                    .and_then(TrafficClass::new)
                    .map_or(TimeSensitivity::BestEffort, TimeSensitivity::TimeSensitive),
            },
        );
        prop_oneof![
            (".{0,40}", any::<(u64, u64, bool)>()).prop_map(
                |(name, (tx_bytes, rx_bytes, domain))| Request::Attach {
                    name,
                    tx_bytes,
                    rx_bytes,
                    domain,
                }
            ),
            (any::<u32>(), 0..DirectEnd::ALL.len()).prop_map(|(ring, reason)| {
                Request::EndDirect {
                    ring,
                    reason: DirectEnd::ALL[reason],
                }
            }),
            qos.prop_map(Request::OpenStream),
            any::<u32>().prop_map(Request::CloseStream),
            any::<(u32, u64, u32, u64, u64)>().prop_map(|(stream, c, depth, origin, first)| {
                Request::OpenSource {
                    stream,
                    channel: ChannelId(c),
                    depth,
                    origin,
                    first,
                }
            }),
            any::<u32>().prop_map(Request::CloseSource),
            any::<(u32, u64, u32, bool, bool, bool)>().prop_map(
                |(stream, c, depth, notify_fd, no_local, latest)| Request::OpenSink {
                    stream,
                    channel: ChannelId(c),
                    depth,
                    notify_fd,
                    mode: SinkMode { no_local, latest },
                }
            ),
            any::<u32>().prop_map(Request::Readers),
            any::<u32>().prop_map(Request::TellRoom),
            any::<u32>().prop_map(Request::CloseSink),
            any::<Counts>().prop_map(Request::Unserved),
            Just(Request::End),
            (any::<u32>(), any::<u32>())
                .prop_map(|(stream, depth)| Request::OpenFrameSource { stream, depth }),
            (any::<IpAddr>(), any::<IpAddr>(), any::<Option<[u8; 6]>>()).prop_map(
                |(destination, next_hop, known)| Request::Resolve {
                    destination,
                    next_hop,
                    known
                }
            ),
        ]
    }

    fn endpoints() -> impl Strategy<Value = Endpoint> {
        let addresses = proptest::collection::vec(any::<(IpAddr, u8)>(), 0..=MOST_ADDRESSES);
        let vlans = proptest::collection::vec(any::<u16>(), 0..=MOST_VLANS);
        (".{0,40}", any::<[u8; 6]>(), any::<u16>(), addresses, vlans).prop_map(
            |(network, mac, mtu, addresses, vlans)| Endpoint {
                network,
                mac,
                addresses,
                mtu,
                vlans,
            },
        )
    }

    fn replies() -> impl Strategy<Value = Reply> {
        let failure = (0..ErrorCode::ALL.len(), ".{0,40}").prop_map(|(i, message)| Failure {
            code: ErrorCode::ALL[i],
            message,
        });
        prop_oneof![
            (any::<u64>(), any::<[u32; 3]>(), any::<u32>(), any::<bool>()).prop_map(
                |(session, m, max_message, domain)| {
                    let map = ArenaMap {
                        ring_bytes: m[0] as usize,
                        tx_bytes: m[1] as usize,
                        rx_bytes: m[2] as usize,
                    };
                    Reply::Attached {
                        session,
                        map,
                        max_message,
                        domain,
                    }
                }
            ),
            any::<(u32, u32, u16, u32)>().prop_map(|(source, ring, epoch, depth)| {
                Reply::DirectSource {
                    source,
                    ring,
                    epoch,
                    depth,
                }
            }),
            any::<([u32; 4], u64, u32)>().prop_map(
                |([sink, ring, sender, depth], session, bytes)| Reply::DirectSink {
                    sink,
                    ring,
                    sender,
                    depth,
                    session,
                    region_bytes: bytes as usize,
                }
            ),
            any::<(u32, u16, bool)>().prop_map(|(ring, epoch, free)| Reply::DirectEnded {
                ring,
                epoch,
                free
            }),
            (any::<u32>(), ".{0,20}", ".{0,90}").prop_map(|(stream, datapath, warning)| {
                Reply::StreamOpened {
                    stream,
                    datapath,
                    warning,
                }
            }),
            (any::<u32>(), ".{0,20}", ".{0,90}").prop_map(|(stream, datapath, warning)| {
                Reply::StreamMoved {
                    stream,
                    datapath,
                    warning,
                }
            }),
            (any::<u32>(), any::<u32>(), any::<u32>()).prop_map(|(source, o, depth)| {
                Reply::SourceOpened {
                    source,
                    block: SourceBlock {
                        offset: o as usize,
                        depth,
                    },
                }
            }),
            (any::<u32>(), any::<u32>(), any::<u32>()).prop_map(|(sink, o, depth)| {
                Reply::SinkOpened {
                    sink,
                    block: SinkBlock {
                        offset: o as usize,
                        depth,
                    },
                }
            }),
            (any::<[u32; 3]>(), endpoints()).prop_map(|([source, o, depth], endpoint)| {
                Reply::FrameSourceOpened {
                    source,
                    block: SourceBlock {
                        offset: o as usize,
                        depth,
                    },
                    endpoint,
                }
            }),
            any::<Option<[u8; 6]>>().prop_map(Reply::Resolved),
            any::<u32>().prop_map(Reply::Readers),
            Just(Reply::Closed),
            Just(Reply::Noted),
            Just(Reply::RoomTold),
            failure.clone().prop_map(Reply::Failed),
            failure.prop_map(Reply::Ended),
        ]
    }

    proptest! {
        #[test]
        fn a_request_survives_its_encoding_and_no_prefix_of_it_is_a_request(message in requests(), request: u32) {
            let envelope = Envelope { request, message };
            let bytes = envelope.encode();
            prop_assert_eq!(Envelope::<Request>::decode(&bytes), Ok(envelope));
            for end in 0..bytes.len() {
                prop_assert!(Envelope::<Request>::decode(&bytes[..end]).is_err());
            }
        }

        #[test]
        fn a_reply_survives_its_encoding_and_no_prefix_of_it_is_a_reply(message in replies(), request: u32) {
            let envelope = Envelope { request, message };
            let bytes = envelope.encode();
            prop_assert_eq!(Envelope::<Reply>::decode(&bytes), Ok(envelope));
            for end in 0..bytes.len() {
                prop_assert!(Envelope::<Reply>::decode(&bytes[..end]).is_err());
            }
        }

        #[test]
        fn random_bytes_are_refused_or_read_without_panic(bytes: Vec<u8>) {
            let _ = Envelope::<Request>::decode(&bytes);
            let _ = Envelope::<Reply>::decode(&bytes);
        }
    }

    #[test]
    fn another_version_is_refused_by_its_number() {
        let mut bytes = Envelope {
            request: 1,
            message: Request::CloseSink(3),
        }
        .encode();
        bytes[0] = 9;
        assert_eq!(
            Envelope::<Request>::decode(&bytes),
            Err(DecodeError::Version { found: 9 })
        );
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_at_a_character() {
        let name = "ä".repeat(MAX_TEXT_BYTES);
        let bytes = Envelope {
            request: 1,
            message: Request::Attach {
                name,
                tx_bytes: 0,
                rx_bytes: 0,
                domain: false,
            },
        }
        .encode();
        assert!(bytes.len() <= MAX_MESSAGE_BYTES);
        assert!(Envelope::<Request>::decode(&bytes).is_ok());
    }
}
