//! Traffic classes: what a datagram shows of its own on the wire.

use std::mem;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::Duration;

use takt_datapath::conformance::readable_within;
use takt_datapath::{Datapath, OpenError, PeerHandle, Port, PortRequest};
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

/// A port at this address, with a small receive buffer.
fn port(bind: &str, segmentation: bool) -> Box<dyn Port> {
    let config = UdpConfig {
        // Room for some hundred, and for tens of what is marked, however much a kernel counts for one.
        receive_buffer: 256 << 10,
        segmentation,
        ..UdpConfig::default()
    };
    let request = PortRequest {
        lane: 0,
        lanes: 1,
        bind: bind.parse().unwrap(),
    };
    UdpDatapath::new(config).open(&request).unwrap()
}

fn send(sender: &mut dyn Port, peer: PeerHandle, class: u8, number: u8, length: usize) {
    let frame = sender.reserve(peer).unwrap();
    sender.payload(&frame)[..length].fill(number);
    sender.commit(frame, length, TrafficClass::new(class).unwrap(), None);
    while !sender.flush() {}
}

#[test]
fn what_is_marked_finds_room_beside_what_is_not_and_comes_first_and_shuts_out_nothing() {
    const MARKED: u8 = 14;
    const SENT: u64 = 500;
    for (bind, segmentation) in [
        ("127.0.0.1:0", false),
        ("127.0.0.1:0", true),
        ("[::1]:0", true),
    ] {
        let mut receiver = port(bind, segmentation);
        let mut sender = port(bind, segmentation);
        let peer = sender.connect(receiver.local()).unwrap();
        let mut other = port(bind, segmentation);
        let from_other = other.connect(receiver.local()).unwrap();
        // Far more than finds room.
        for _ in 0..SENT {
            send(&mut *sender, peer, 0, 0, 1000);
        }
        // Each class above 0, twice, of two senders.
        for number in 0..MARKED {
            let (sender, peer) = match number % 2 {
                0 => (&mut sender, peer),
                _ => (&mut other, from_other),
            };
            send(&mut **sender, peer, 1 + number / 2, 1 + number, 1000);
        }
        let mut got = Vec::new();
        let mut take =
            |budget| receiver.receive(budget, &mut |datagram| got.push(datagram.payload[0]));
        while take(8) > 0 {}
        let marked: Vec<u8> = got.iter().copied().filter(|&number| number > 0).collect();
        assert_eq!(marked, Vec::from_iter(1..=MARKED), "{bind}");
        let before_the_last = got.iter().position(|&number| number == MARKED).unwrap();
        assert!(before_the_last <= 2 * usize::from(MARKED), "{got:?}");
        let first = got.iter().position(|&number| number == 0).unwrap();
        assert!(first < 8, "{got:?}");
        let counters = receiver.counters();
        assert_eq!(counters.rx_datagrams, got.len() as u64);
        assert!(counters.rx_dropped > 0, "{counters:?}");
        assert_eq!(
            counters.rx_datagrams + counters.rx_dropped,
            SENT + u64::from(MARKED)
        );
        // Either alone wakes, and is had by the smallest budget there is.
        for class in [1, 0] {
            assert!(!readable_within(&*receiver, Duration::ZERO));
            send(&mut *sender, peer, class, 9, 1);
            assert!(readable_within(&*receiver, Duration::from_secs(10)));
            assert_eq!(
                receiver.receive(1, &mut |datagram| assert_eq!(datagram.payload, [9])),
                1
            );
        }
    }
}

#[test]
fn the_address_of_a_port_is_its_own_and_free_after_it() {
    let first = port("127.0.0.1:0", true);
    let request = PortRequest {
        lane: 0,
        lanes: 1,
        bind: first.local(),
    };
    let second = UdpDatapath::default().open(&request);
    assert!(matches!(second, Err(OpenError::Bind { .. })));
    drop(first);
    UdpDatapath::default().open(&request).unwrap();
}
