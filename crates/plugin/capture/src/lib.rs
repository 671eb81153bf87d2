//! Captured packets: read from files, written to files, taken live from an interface.
//!
//! [`file`] reads pcap and pcapng by the crate `pcap-parser`, [`pcapng`] writes the latter, [`socket`] is a packet
//! socket with a ring that it shares with the kernel, [`spread`] how several share the packets. What packets mean is `takt-health`'s.

pub mod file;
pub mod pcapng;
pub mod socket;
pub mod spread;

/// A packet's circumstances. Its bytes stand apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// When it came, nanoseconds since 1970, UTC.
    pub utc_ns: i64,
    /// Its length on the wire, bytes.
    pub length: u32,
    /// What its bytes begin with (registry of link types, www.tcpdump.org/linktypes.html).
    pub link_type: i32,
}
