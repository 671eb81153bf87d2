//! A copy that a daemon has made, as a packet of a file.

use std::borrow::Cow;
use std::io::{self, Write};
use std::net::IpAddr;

use takt_capture::Meta;
use takt_capture::pcapng::Writer;
use taktd::admin::proto::CapturedPacket;

/// LINKTYPE_ETHERNET, LINKTYPE_WIRESHARK_UPPER_PDU (www.tcpdump.org/linktypes.html).
const ETHERNET: i32 = 1;
const EXPORTED_PDU: i32 = 252;
/// Tags of the latter (Wireshark, epan/exported_pdu.h).
const DISSECTOR_NAME: u16 = 12;
const IPV4_SOURCE: u16 = 20;
const IPV4_DESTINATION: u16 = 21;
const IPV6_SOURCE: u16 = 22;
const IPV6_DESTINATION: u16 = 23;
const END_OF_TAGS: u16 = 0;

/// A channel datagram for Wireshark, with the dissector that it is for and the other node's address.
fn exported(packet: &CapturedPacket) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64 + packet.packet.len());
    let mut tag = |tag: u16, value: &[u8]| {
        let padded = value.len().next_multiple_of(4);
        bytes.extend(tag.to_be_bytes());
        bytes.extend((padded as u16).to_be_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len() + padded - value.len(), 0);
    };
    tag(DISSECTOR_NAME, b"takt");
    match (packet.peer.parse(), packet.received) {
        (Ok(IpAddr::V4(peer)), true) => tag(IPV4_SOURCE, &peer.octets()),
        (Ok(IpAddr::V4(peer)), false) => tag(IPV4_DESTINATION, &peer.octets()),
        (Ok(IpAddr::V6(peer)), true) => tag(IPV6_SOURCE, &peer.octets()),
        (Ok(IpAddr::V6(peer)), false) => tag(IPV6_DESTINATION, &peer.octets()),
        (Err(_), _) => {}
    }
    tag(END_OF_TAGS, &[]);
    bytes.extend_from_slice(&packet.packet);
    bytes
}

/// Writes a copy, with the tenant as its comment. `tai_offset_ns`: TAI less UTC.
pub fn write(
    writer: &mut Writer<impl Write>,
    packet: &CapturedPacket,
    tai_offset_ns: i64,
) -> io::Result<()> {
    let (link_type, bytes) = match packet.frame {
        true => (ETHERNET, Cow::from(&packet.packet)),
        false => (EXPORTED_PDU, Cow::from(exported(packet))),
    };
    let cut = packet.length.saturating_sub(packet.packet.len() as u32);
    let meta = Meta {
        utc_ns: packet.tai_ns - tai_offset_ns,
        length: bytes.len() as u32 + cut,
        link_type,
    };
    writer.packet_with(&meta, &bytes, Some(packet.received), &packet.identity)
}
