//! Captures: copies of what tenants send to other nodes and get from them, past the kernel, for operators.
//!
//! A lane copies into a ring of bytes and goes on; what finds no room there is counted. Messages are captured as the records
//! that they leave and come in, each as a datagram of its own without protection (`takt_wire::channel`), whatever it shared a
//! datagram with on the wire and however that was protected. Frames of networks are captured as the tenant gave them, before
//! they are wrapped or routed.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use rtrb::{Consumer, Producer, RingBuffer};
use takt_time::TrafficClass;

use crate::control::RuntimeHandle;
use crate::counters::Counter;

/// Captures of a node at a time.
pub const MOST_CAPTURES: usize = 4;
/// Bytes of a lane's copies that may wait to be taken.
const RING: usize = 8 << 20;
/// What is in front of the copy in the ring.
const HEAD: usize = 40;

/// Why there is no capture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// Nobody has that identity.
    #[error(
        "no listener and no session has the identity `{0}`: `takt listener list` shows those that there are"
    )]
    Unknown(String),
    /// So many run already.
    #[error("{MOST_CAPTURES} captures run already: end one of them")]
    TooMany,
}

/// Which way a copy went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To another node.
    Out,
    /// From another node.
    In,
}

/// What a copy is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A datagram with one record of a channel.
    Message,
    /// An Ethernet frame of a network, without frame check sequence.
    Frame,
}

/// What a copy is of, whose, and when it passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// When it was handed to its datapath, or taken from it; without a launch time or gates: when the round began that did so. TAI,
    /// nanoseconds.
    pub at_ns: i64,
    /// The number of its tenant on this node.
    pub tenant: u32,
    /// Which way it went.
    pub direction: Direction,
    /// What it is.
    pub what: What,
    /// The class in which it was sent.
    pub class: TrafficClass,
    /// The other node's address, where it is known: of a frame the tunnel endpoint's.
    pub peer: Option<IpAddr>,
}

/// A copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// What it is of.
    pub head: Head,
    /// Bytes of the whole.
    pub length: u32,
    /// The first of them.
    pub bytes: Vec<u8>,
}

/// A lane's end of a capture.
pub struct Tap {
    /// The capture's number.
    pub(crate) capture: u64,
    /// Tenants whose traffic is copied; none: all.
    tenants: Box<[u32]>,
    /// Most bytes of each copy.
    snap: usize,
    ring: Producer<u8>,
    /// Where a copy is put together: its head, and room for the longest datagram.
    scratch: Box<[u8]>,
    lost: Arc<Counter>,
}

impl Tap {
    /// Whose, of these, it is to copy; the first.
    pub(crate) fn wants(&self, mut tenants: impl Iterator<Item = u32>) -> Option<u32> {
        match self.tenants.is_empty() {
            true => tenants.next(),
            false => tenants.find(|tenant| self.tenants.contains(tenant)),
        }
    }

    /// Counts a copy that there is not.
    pub(crate) fn lose(&self) {
        self.lost.add(1);
    }

    /// Copies what `write` puts into the space that it is given; it returns the length, 0 if there is nothing.
    pub(crate) fn copy(&mut self, head: &Head, write: impl FnOnce(&mut [u8]) -> usize) {
        let (before, space) = self.scratch.split_at_mut(HEAD);
        let length = write(space);
        if length == 0 {
            return self.lose();
        }
        let taken = length.min(self.snap);
        let (family, peer) = match head.peer {
            None => (0, Ipv6Addr::UNSPECIFIED),
            Some(IpAddr::V4(v4)) => (4, v4.to_ipv6_mapped()),
            Some(IpAddr::V6(v6)) => (6, v6),
        };
        before[..8].copy_from_slice(&head.at_ns.to_le_bytes());
        before[8..12].copy_from_slice(&head.tenant.to_le_bytes());
        before[12..16].copy_from_slice(&(length as u32).to_le_bytes());
        before[16..20].copy_from_slice(&(taken as u32).to_le_bytes());
        before[20] = u8::from(head.direction == Direction::In);
        before[21] = u8::from(head.what == What::Frame);
        before[22] = head.class.number();
        before[23] = family;
        before[24..HEAD].copy_from_slice(&peer.octets());
        // All of it or nothing.
        if self
            .ring
            .push_entire_slice(&self.scratch[..HEAD + taken])
            .is_err()
        {
            self.lose();
        }
    }
}

/// The other end of a lane's ring.
pub(crate) struct Source {
    ring: Consumer<u8>,
    lost: Arc<Counter>,
}

/// The two ends of a capture on one lane. `longest`: the longest datagram or frame.
pub(crate) fn ends(
    capture: u64,
    tenants: Box<[u32]>,
    snap: usize,
    longest: usize,
) -> (Tap, Source) {
    let (producer, consumer) = RingBuffer::new(RING);
    let lost = Arc::<Counter>::default();
    let tap = Tap {
        capture,
        tenants,
        snap,
        ring: producer,
        scratch: vec![0; HEAD + longest].into(),
        lost: lost.clone(),
    };
    let source = Source {
        ring: consumer,
        lost,
    };
    (tap, source)
}

impl Source {
    /// The next copy.
    fn take(&mut self) -> Option<Captured> {
        let mut head = [0; HEAD];
        // The other end pushes a head and its bytes at once.
        self.ring.pop_entire_slice(&mut head).ok()?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let mut bytes = vec![0; word(16) as usize];
        self.ring.pop_entire_slice(&mut bytes).ok()?;
        let address = head.last_chunk().copied().map(Ipv6Addr::from);
        let head = Head {
            at_ns: i64::from_le_bytes(*head.first_chunk()?),
            tenant: word(8),
            direction: match head[20] {
                0 => Direction::Out,
                _ => Direction::In,
            },
            what: match head[21] {
                0 => What::Message,
                _ => What::Frame,
            },
            class: TrafficClass::new(head[22]).unwrap_or_default(),
            peer: match (head[23], address?) {
                (4, v6) => v6.to_ipv4_mapped().map(Ipv4Addr::into),
                (6, v6) => Some(v6.into()),
                _ => None,
            },
        };
        let length = word(12);
        Some(Captured {
            head,
            length,
            bytes,
        })
    }
}

/// A capture that runs; dropping it ends it.
pub struct Capture {
    pub(crate) number: u64,
    pub(crate) sources: Vec<Source>,
    /// Identities of tenants by number.
    pub(crate) identities: HashMap<u32, String>,
    pub(crate) runtime: RuntimeHandle,
}

impl Capture {
    /// What was copied since it was last asked, up to about so many bytes of each lane, in the order of time.
    pub fn take(&mut self, most: usize) -> Vec<Captured> {
        let mut taken = Vec::new();
        for source in &mut self.sources {
            let mut bytes = 0;
            while bytes < most
                && let Some(copy) = source.take()
            {
                bytes += HEAD + copy.bytes.len();
                taken.push(copy);
            }
        }
        taken.sort_by_key(|copy| copy.head.at_ns);
        taken
    }

    /// Copies that found no room so far, or could not be made.
    pub fn lost(&self) -> u64 {
        self.sources.iter().map(|source| source.lost.get()).sum()
    }

    /// The identity of a tenant; one that came after the capture began is asked for.
    pub fn identity(&mut self, tenant: u32) -> &str {
        if !self.identities.contains_key(&tenant)
            && let Ok(identities) = self.runtime.identities()
        {
            self.identities = identities;
        }
        self.identities.get(&tenant).map_or("", String::as_str)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.runtime.end_capture(self.number);
    }
}
