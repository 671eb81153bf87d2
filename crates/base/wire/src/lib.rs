//! Packet formats, and nothing else: bytes in, plain types out, and back.
//!
//! One file per format, each with a view of bytes (`Packet`), a plain header (`Repr`) and its own
//! error. Parsing and emitting neither allocate nor read a clock nor touch a socket, and no input
//! makes them panic: a parser answers with its format's error, which carries the value at fault.
//! Deciding what to do with a packet is the caller's work.
//!
//! [`frame`] combines them for a datapath's hot path. [`channel`] is Takt's own datagram between
//! two runtimes, drawn bit by bit in `docs/reference/wire-format.md`, [`trailer`] what
//! `takt stamp` puts behind packets of others.

#![forbid(unsafe_code)]

pub mod arp;
pub mod channel;
pub mod checksum;
pub mod ethernet;
pub mod frame;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod trailer;
pub mod udp;
pub mod vlan;
pub mod vxlan;
