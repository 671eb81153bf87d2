//! Network health by flow: what every flow suffers, against what it is to bear.
//!
//! Packets and their times come in as arguments, key figures and events come out: nothing here reads a clock, a file
//! or a socket. [`packet`] finds a packet's flow, [`stamp`] its send time and sequence number, [`table`] keeps a
//! bounded number of flows, [`flow`] their figures. [`spec`] says what a flow is to keep to, [`rule`] what is to
//! happen when it does not, [`learn`] proposes a specification from a stretch that was good.
//!
//! Follows section IV.B (Network Health Monitoring) of "SmartNIC-based load management and network health monitoring
//! for time sensitive applications", NOMS 2022. Not here: where packets come from, and load management.

#![forbid(unsafe_code)]

pub mod flow;
pub mod histogram;
pub mod key;
pub mod learn;
pub mod level;
pub mod packet;
pub mod pattern;
pub mod quantity;
pub mod rule;
pub mod sequence;
pub mod spec;
pub mod stamp;
pub mod table;
