//! A frame from the interface: what is read is inside the frame, what verification accepts is read
//! without verification too, and the headers of an accepted datagram can be written.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_wire::ethernet;
use takt_wire::frame::{UdpFlow, UdpHeaderTemplate, parse_udp_frame};
use takt_wire::ip::Dscp;
use takt_wire::vlan::VlanTags;

fuzz_target!(|frame: &[u8]| {
    let unverified = parse_udp_frame(frame, false);
    let Ok(datagram) = parse_udp_frame(frame, true) else {
        return;
    };
    assert_eq!(unverified, Ok(datagram));
    let link = ethernet::Packet::new_checked(frame).expect("a frame with a datagram has a header");
    let vlan = match datagram.vlan {
        VlanTags::None => None,
        VlanTags::Single(tag) | VlanTags::Double { inner: tag, .. } => Some(tag),
    };
    let flow = UdpFlow {
        src_mac: link.source(),
        dst_mac: link.destination(),
        vlan,
        src: datagram.src,
        dst: datagram.dst,
        dscp: Dscp::BEST_EFFORT,
        hop_limit: 64,
    };
    let template = UdpHeaderTemplate::new(&flow).expect("what was received can be sent");
    let mut again = vec![0; template.header_len()];
    again.extend_from_slice(datagram.payload);
    let written = template.emit(&mut again, datagram.payload.len(), 1, true);
    assert_eq!(written, Some(again.len()));
    let read = parse_udp_frame(&again, true).expect("what was sent can be received");
    assert_eq!(
        (read.src, read.dst, read.payload),
        (datagram.src, datagram.dst, datagram.payload)
    );
    assert_eq!(read.vlan, vlan.map_or(VlanTags::None, VlanTags::Single));
});
