//! Traffic classes: what a datagram shows of its own on the wire.

use std::mem;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::ptr;

use takt_datapath::{Datapath, PortRequest};
use takt_datapath_udp::{UdpConfig, UdpDatapath};
use takt_time::TrafficClass;

/// A receiver that is told each datagram's type of service or traffic class.
fn receiver(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    let (level, option) = if address.starts_with('[') {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)
    } else {
        (libc::IPPROTO_IP, libc::IP_RECVTOS)
    };
    let on: libc::c_int = 1;
    // SAFETY: pointer and length describe `on`, which outlives the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const on).cast(),
            mem::size_of_val(&on) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0);
    socket
}

/// The next datagram's first byte, and its mark.
fn receive(socket: &UdpSocket) -> (u8, u8) {
    let mut payload = [0u8; 64];
    let mut control = [0u64; 8];
    let mut part = libc::iovec {
        iov_base: payload.as_mut_ptr().cast(),
        iov_len: payload.len(),
    };
    // SAFETY: a message header is integers and pointers, for which all bits zero is a value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(&control) as _;
    // SAFETY: everything that `message` points to outlives the call and is as long as it says.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, 0) };
    assert!(length > 0);
    // SAFETY: the kernel has filled the control data, and the macros stay within its length. IPv4 gives one
    // byte, IPv6 an integer of which the lowest byte is the first on the machines that Takt is for.
    let mark = unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        assert!(!header.is_null());
        let kind = ((*header).cmsg_level, (*header).cmsg_type);
        assert!(
            kind == (libc::IPPROTO_IP, libc::IP_TOS)
                || kind == (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
        );
        ptr::read(libc::CMSG_DATA(header))
    };
    (payload[0], mark)
}

#[test]
fn every_datagram_carries_the_class_selector_of_its_class_and_keeps_its_place() {
    // Runs of one class, which leave as trains, single ones, and class 0 again at the end.
    let classes = [
        0, 5, 5, 5, 0, 0, 7, 1, 2, 3, 3, 3, 3, 4, 6, 6, 0, 7, 7, 0, 0, 0,
    ];
    for (to, from) in [("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:0", "[::1]:0")] {
        for segmentation in [true, false] {
            let receiver = receiver(to);
            let request = PortRequest {
                lane: 0,
                lanes: 1,
                bind: from.parse().unwrap(),
            };
            let config = UdpConfig {
                segmentation,
                ..UdpConfig::default()
            };
            let mut sender = UdpDatapath::new(config).open(&request).unwrap();
            let peer = sender.connect(receiver.local_addr().unwrap()).unwrap();
            for (number, class) in classes.iter().enumerate() {
                let frame = sender.reserve(peer).unwrap();
                sender.payload(&frame)[..50].fill(number as u8);
                let class = TrafficClass::new(*class).unwrap();
                sender.commit(frame, 50, class, None);
            }
            assert!(sender.flush());
            // One by one: the plain way out.
            for class in [6, 6, 0] {
                let frame = sender.reserve(peer).unwrap();
                sender.payload(&frame)[0] = 100 + class;
                sender.commit(frame, 1, TrafficClass::new(class).unwrap(), None);
                assert!(sender.flush());
            }
            for (number, class) in classes.iter().enumerate() {
                assert_eq!(
                    receive(&receiver),
                    (number as u8, class << 5),
                    "to {to}, segmentation {segmentation}"
                );
            }
            for class in [6, 6, 0] {
                assert_eq!(receive(&receiver), (100 + class, class << 5));
            }
            assert_eq!(sender.counters().tx_datagrams, classes.len() as u64 + 3);
        }
    }
}
