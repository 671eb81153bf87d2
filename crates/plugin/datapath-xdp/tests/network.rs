//! Ports follow what changes in the network: neighbours, routes, links, addresses, MTUs.

mod support;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use support::{
    Family, PATIENCE, TwoHosts, connect, get_through, receive, reserve, send, wait_until,
};
use takt_datapath::conformance::Node;
use takt_datapath::{ConnectError, Datapath, Health, PeerHandle, Port, ReserveError};
use takt_datapath_xdp::Mode;
use takt_lab::{LabConfig, LinkState};
use takt_time::TrafficClass;
use takt_wire::ethernet::MacAddress;
use takt_wire::frame::{UdpFlow, UdpHeaderTemplate};
use takt_wire::ip::Dscp;
use takt_wire::vlan::VlanTag;

/// A kernel UDP socket on the right host: unlike a port, the kernel takes only frames with its own
/// MAC address, and with the tag of the VLAN that the address is on.
fn udp(hosts: &TwoHosts, bind: &str) -> UdpSocket {
    let _inside = hosts.host(Node::Right).enter().expect("enter the host");
    let socket = UdpSocket::bind(bind).expect("bind a kernel socket");
    socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .expect("set a time limit");
    socket
}

/// Sends until the kernel socket receives.
fn reach(port: &mut dyn Port, peer: PeerHandle, socket: &UdpSocket, payload: &[u8]) {
    wait_until("reaching the kernel socket", || {
        if let Ok(frame) = port.reserve(peer) {
            port.payload(&frame)[..payload.len()].copy_from_slice(payload);
            port.commit(frame, payload.len(), TrafficClass::BEST_EFFORT, None);
        }
        port.flush();
        let mut buffer = [0; 2048];
        matches!(socket.recv(&mut buffer), Ok(length) if &buffer[..length] == payload)
    });
}

fn until_unresolved(port: &mut dyn Port, peer: PeerHandle) {
    wait_until("losing the next hop", || match port.reserve(peer) {
        Ok(frame) => {
            port.cancel(frame);
            false
        }
        Err(ReserveError::Unresolved) => true,
        Err(error) => panic!("{error}"),
    });
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("address")
}

#[test]
fn a_neighbours_new_mac_address_is_followed() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let mut left = hosts.open(Node::Left, 4000);
    let socket = udp(&hosts, "10.77.0.2:5000");
    let peer = connect(&mut *left, address("10.77.0.2:5000"));
    reach(&mut *left, peer, &socket, b"before");
    hosts.ip(Node::Right, "link set eth0 address 02:00:00:00:77:01");
    // Its kernel announces the new address at the next exchange; ask for one.
    hosts.ip(Node::Left, "neigh flush dev eth0");
    reach(&mut *left, peer, &socket, b"after");
}

#[test]
fn an_unresolved_neighbour_is_resolved_once_it_answers() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let mut left = hosts.open(Node::Left, 4000);
    let peer = left
        .connect(address("10.77.0.60:5000"))
        .expect("an unresolved next hop is no error");
    until_unresolved(&mut *left, peer);
    assert_eq!(left.max_payload(peer), 1500 - 28);
    hosts.ip(Node::Right, "address add 10.77.0.60/24 dev eth0");
    let socket = udp(&hosts, "10.77.0.60:5000");
    reach(&mut *left, peer, &socket, b"there you are");
}

#[test]
fn a_gateway_is_used_and_route_changes_are_followed() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let mut left = hosts.open(Node::Left, 4000);
    let far = address("10.99.0.1:5000");
    assert!(matches!(left.connect(far), Err(ConnectError::NoRoute(peer)) if peer == far));

    hosts.ip(Node::Right, "address add 10.99.0.1/32 dev lo");
    hosts.ip(Node::Left, "route add 10.99.0.0/24 via 10.77.0.2 mtu 1300");
    let socket = udp(&hosts, "10.99.0.1:5000");
    let peer = connect(&mut *left, far);
    assert_eq!(left.max_payload(peer), 1300 - 28);
    reach(&mut *left, peer, &socket, b"by the gateway");

    hosts.ip(Node::Left, "route add unreachable 10.99.0.1/32");
    until_unresolved(&mut *left, peer);
    hosts.ip(Node::Left, "route del unreachable 10.99.0.1/32");
    reach(&mut *left, peer, &socket, b"again");

    // Another gateway: another address of the same host, which is another neighbour.
    hosts.ip(Node::Left, "route replace 10.99.0.0/24 via 10.77.0.102");
    wait_until("following the new route", || {
        if let Ok(frame) = left.reserve(peer) {
            left.cancel(frame);
        }
        left.max_payload(peer) == 1500 - 28
    });
    reach(&mut *left, peer, &socket, b"by another gateway");
}

#[test]
fn a_peer_of_whose_way_nothing_is_known_yet_is_reached_once_it_is() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let mut left = hosts.open(Node::Left, 4000);
    let socket = udp(&hosts, "10.77.0.2:5000");
    let peer = left
        .connect_at_once(address("10.77.0.2:5000"), None)
        .expect("nothing is known against it");
    wait_until("the way is known", || left.reaches(peer));
    reach(&mut *left, peer, &socket, b"there you are");

    // No route leads there by this port, which the tables say later.
    let far = left
        .connect_at_once(address("10.99.0.1:5000"), None)
        .expect("nothing is known against it");
    assert!(!left.reaches(far));
    assert_eq!(left.reserve(far).err(), Some(ReserveError::Unresolved));
    hosts.ip(Node::Right, "address add 10.99.0.1/32 dev lo");
    hosts.ip(Node::Left, "route add 10.99.0.0/24 via 10.77.0.2");
    wait_until("the route is followed", || left.reaches(far));
    let socket = udp(&hosts, "10.99.0.1:5000");
    reach(&mut *left, far, &socket, b"by the gateway");
    // What has gone by this port goes by no other while it has no route.
    hosts.ip(Node::Left, "route del 10.99.0.0/24");
    until_unresolved(&mut *left, far);
    assert!(left.reaches(far));

    // What was asked for ahead is known when it is told.
    let resolver = left.resolver().expect("it asks the tables");
    let ahead = |remote: &str| {
        let (told, answer) = std::sync::mpsc::channel();
        let answered = Box::new(move || told.send(()).expect("the test waits"));
        let way = resolver.resolve(address(remote), answered);
        answer.recv().expect("an answer");
        way
    };
    let way = ahead("10.77.0.2:5001");
    assert!(way.as_ref().is_some_and(|way| way.is_known()));
    let near = left
        .connect_at_once(address("10.77.0.2:5001"), way)
        .expect("a route");
    assert!(left.reaches(near));
    let way = ahead("192.0.2.1:5000");
    let nowhere = left
        .connect_at_once(address("192.0.2.1:5000"), way)
        .expect("a route may come");
    assert!(!left.reaches(nowhere));
}

#[test]
fn an_interface_that_goes_down_and_comes_back_is_used_again() {
    for mode in [Mode::Native, Mode::Generic] {
        let Some(mut hosts) = TwoHosts::new(&LabConfig::default(), Family::V4, |config| {
            config.mode = mode
        }) else {
            return;
        };
        let (mut left, mut right) = (hosts.open(Node::Left, 4000), hosts.open(Node::Right, 4000));
        let peer = connect(&mut *left, right.local());
        send(&mut *left, peer, b"before");
        assert_eq!(receive(&mut *right).1, b"before");

        let frame = reserve(&mut *left, peer);
        hosts
            .host(Node::Left)
            .link(LinkState::Down)
            .expect("pull the cable");
        until_unresolved(&mut *left, peer);
        // What is committed all the same is counted as lost, and nothing of it leaves later.
        left.commit(frame, 1, TrafficClass::BEST_EFFORT, None);
        wait_until("flushing while the interface is down", || left.flush());
        let counters = left.counters();
        assert_eq!(
            (counters.tx_datagrams, counters.tx_errors),
            (1, 1),
            "{counters:?}"
        );

        hosts
            .host(Node::Left)
            .link(LinkState::Up)
            .expect("plug in the cable");
        get_through(&mut *left, peer, &mut *right, b"after");
        // The far end's interface goes down and comes back: the near end loses its carrier.
        hosts
            .host(Node::Right)
            .link(LinkState::Down)
            .expect("pull the cable");
        until_unresolved(&mut *left, peer);
        hosts
            .host(Node::Right)
            .link(LinkState::Up)
            .expect("plug in the cable");
        get_through(&mut *left, peer, &mut *right, b"after that");
        assert_eq!(right.counters().rx_invalid, 0);
    }
}

#[test]
fn frames_in_the_ring_when_the_interface_goes_down_are_dropped_and_counted() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let (mut left, mut right) = (hosts.open(Node::Left, 4000), hosts.open(Node::Right, 4000));
    let peer = connect(&mut *left, right.local());
    for _ in 0..10 {
        let frame = reserve(&mut *left, peer);
        left.commit(frame, 100, TrafficClass::BEST_EFFORT, None);
    }
    // The port has not looked at the link yet: what is committed goes to the kernel, which refuses
    // it.
    hosts
        .host(Node::Left)
        .link(LinkState::Down)
        .expect("pull the cable");
    wait_until("flushing while the interface is down", || left.flush());
    let counters = left.counters();
    assert_eq!(
        (counters.tx_datagrams, counters.tx_bytes, counters.tx_errors),
        (0, 0, 10),
        "{counters:?}"
    );
    hosts
        .host(Node::Left)
        .link(LinkState::Up)
        .expect("plug in the cable");
    get_through(&mut *left, peer, &mut *right, b"fresh");
    // All frames are back: as many as ever can be reserved at a time.
    let frames: Vec<_> = (0..1024).map(|_| reserve(&mut *left, peer)).collect();
    assert_eq!(left.reserve(peer).err(), Some(ReserveError::WouldBlock));
    frames.into_iter().for_each(|frame| left.cancel(frame));
}

#[test]
fn a_link_that_goes_and_comes_while_frames_are_handed_over_sends_each_of_them_once_at_most() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let (mut left, mut right) = (hosts.open(Node::Left, 4000), hosts.open(Node::Right, 4000));
    let peer = connect(&mut *left, right.local());
    send(&mut *left, peer, b"first");
    assert_eq!(receive(&mut *right).1, b"first");
    let host = hosts.host(Node::Left);
    let (mut sent, mut received) = (1, 1);
    for _ in 0..20 {
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                host.link(LinkState::Down).expect("pull the cable");
                host.link(LinkState::Up).expect("plug in the cable");
                done.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                // More than the kernel takes in one call.
                for _ in 0..200 {
                    let Ok(frame) = left.reserve(peer) else { break };
                    left.payload(&frame)[..8].copy_from_slice(b"on a way");
                    left.commit(frame, 8, TrafficClass::BEST_EFFORT, None);
                    sent += 1;
                }
                left.flush();
                received += right.receive(64, &mut |_| {});
            }
        });
        wait_until("all is handed over or given up", || left.flush());
        get_through(&mut *left, peer, &mut *right, b"again");
    }
    let counters = left.counters();
    // Those of `get_through` in addition.
    assert!(
        counters.tx_datagrams + counters.tx_errors >= sent,
        "{counters:?}"
    );
    // Nothing comes of itself.
    while right.receive(64, &mut |_| {}) > 0 {}
    let taken = right.counters();
    assert!(received as u64 <= sent);
    assert!(
        taken.rx_datagrams <= counters.tx_datagrams,
        "{taken:?} of {counters:?}"
    );
    assert_eq!(taken.rx_invalid, 0);
}

#[test]
fn the_mtu_is_followed_within_what_frames_have_room_for() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let (mut left, mut right) = (hosts.open(Node::Left, 4000), hosts.open(Node::Right, 4000));
    let peer = connect(&mut *left, right.local());
    assert_eq!(left.max_payload(peer), 1472);
    // Frames of an interface with 1500 have 2 KiB, of which some are for headers.
    for (mtu, most) in [(1000, 972), (1900, 1872)] {
        for node in [Node::Left, Node::Right] {
            hosts.ip(node, &format!("link set eth0 mtu {mtu}"));
        }
        wait_until("following the MTU", || {
            if let Ok(frame) = left.reserve(peer) {
                left.cancel(frame);
            }
            left.max_payload(peer) == most
        });
        let payload = vec![7; most];
        get_through(&mut *left, peer, &mut *right, &payload);
    }
    // One that is opened with a longer one has longer frames, and shorter ones hear it all the same, in several chunks.
    for node in [Node::Left, Node::Right] {
        hosts.ip(node, "link set eth0 mtu 3000");
    }
    let from = left.local();
    drop(left);
    let mut left = hosts.open(Node::Left, from.port());
    let peer = connect(&mut *left, right.local());
    assert_eq!(left.max_payload(peer), 2972);
    get_through(&mut *left, peer, &mut *right, &[7; 2972]);
}

#[test]
fn frames_on_a_vlan_carry_its_tag_and_are_received_with_it() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    for (node, host) in [(Node::Left, 1), (Node::Right, 2)] {
        let added = hosts.run(node, "ip link add link eth0 name vlan5 type vlan id 5");
        if String::from_utf8_lossy(&added.stderr).contains("Unknown device type") {
            println!("skipped: this kernel has no VLAN interfaces (CONFIG_VLAN_8021Q)");
            return;
        }
        assert!(added.status.success(), "{added:?}");
        hosts.ip(node, &format!("address add 10.55.0.{host}/24 dev vlan5"));
        hosts.ip(node, "link set vlan5 up");
    }
    let bind = address("0.0.0.0:4000");
    let mut left = hosts.open_lane(Node::Left, (0, 1), bind).expect("open");
    let mut right = hosts.open_lane(Node::Right, (0, 1), bind).expect("open");
    let socket = udp(&hosts, "10.55.0.2:5000");
    let to_socket = connect(&mut *left, address("10.55.0.2:5000"));
    reach(
        &mut *left,
        to_socket,
        &socket,
        b"to the kernel's VLAN interface",
    );
    let to_port = connect(&mut *left, address("10.55.0.2:4000"));
    send(&mut *left, to_port, b"to the port");
    assert_eq!(
        receive(&mut *right),
        (address("10.55.0.1:4000"), b"to the port".to_vec())
    );
    // Untagged beside it, from the same ports.
    let untagged = connect(&mut *left, address("10.77.0.2:4000"));
    send(&mut *left, untagged, b"untagged");
    assert_eq!(
        receive(&mut *right),
        (address("10.77.0.1:4000"), b"untagged".to_vec())
    );
}

/// Puts a whole frame on the left host's interface (`packet(7)`).
fn inject(hosts: &TwoHosts, frame: &[u8]) {
    let _inside = hosts.host(Node::Left).enter().expect("enter the host");
    // SAFETY: plain call; a descriptor that is not negative is new and owned by nobody else.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: the name is a string with its terminator.
    let ifindex = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) };
    // SAFETY: `sockaddr_ll` is plain integers, for which zeros are values.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_ifindex = ifindex as i32;
    // SAFETY: the descriptor is open, frame and address are readable for the lengths given.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            (&raw const to).cast(),
            size_of::<libc::sockaddr_ll>() as u32,
        )
    };
    assert_eq!(
        sent,
        frame.len() as isize,
        "{}",
        std::io::Error::last_os_error()
    );
}

#[test]
fn tagged_frames_are_received_behind_one_tag_and_behind_two() {
    for mode in [Mode::Native, Mode::Generic] {
        let Some(mut hosts) = TwoHosts::new(&LabConfig::default(), Family::V6, |config| {
            config.mode = mode
        }) else {
            return;
        };
        let mut right = hosts.open(Node::Right, 4000);
        let source = SocketAddr::new(hosts.address(Node::Left), 5000);
        let flow = UdpFlow {
            src_mac: MacAddress(hosts.host(Node::Left).mac()),
            dst_mac: MacAddress(hosts.host(Node::Right).mac()),
            vlan: VlanTag::new(5, 3, false),
            src: source,
            dst: right.local(),
            dscp: Dscp::BEST_EFFORT,
            hop_limit: 64,
        };
        let headers = UdpHeaderTemplate::new(&flow).expect("headers");
        let mut frame = vec![0; headers.header_len()];
        frame.extend_from_slice(b"tagged");
        headers.emit(&mut frame, 6, 0, true).expect("fits");
        inject(&hosts, &frame);
        assert_eq!(receive(&mut *right), (source, b"tagged".to_vec()));
        // A service tag before the customer tag (IEEE 802.1Q-2022, clause 9.5).
        frame.splice(12..12, [0x88, 0xa8, 0, 9]);
        inject(&hosts, &frame);
        assert_eq!(receive(&mut *right), (source, b"tagged".to_vec()));
    }
}

#[test]
fn link_local_ipv6_addresses_can_be_answered() {
    let Some(mut hosts) = TwoHosts::new(&LabConfig::default(), Family::V6, |_| {}) else {
        return;
    };
    for (node, host) in [(Node::Left, 1), (Node::Right, 2)] {
        hosts.ip(
            node,
            &format!("address add fe80::77:{host}/64 dev eth0 nodad"),
        );
    }
    let bind = address("[::]:4000");
    let mut left = hosts.open_lane(Node::Left, (0, 1), bind).expect("open");
    let mut right = hosts.open_lane(Node::Right, (0, 1), bind).expect("open");
    let to_right = connect(&mut *left, address("[fe80::77:2]:4000"));
    send(&mut *left, to_right, b"there");
    let (source, payload) = receive(&mut *right);
    assert_eq!(payload, b"there");
    assert!(
        matches!(source, SocketAddr::V6(source) if source.scope_id() != 0),
        "{source}"
    );
    let to_left = connect(&mut *right, source);
    send(&mut *right, to_left, b"back");
    assert_eq!(receive(&mut *left).1, b"back");
}

#[test]
fn destinations_on_this_host_or_by_another_interface_have_no_route() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    hosts.ip(Node::Left, "link add other0 type veth peer name other1");
    hosts.ip(Node::Left, "address add 10.88.0.1/24 dev other0");
    hosts.ip(Node::Left, "link set other0 up");
    let mut left = hosts.open(Node::Left, 4000);
    for remote in [
        "127.0.0.1:5000",
        "10.77.0.1:5000",
        "10.77.0.101:5000",
        "10.88.0.2:5000",
        "192.0.2.1:5000",
    ] {
        match left.connect(address(remote)) {
            Err(ConnectError::NoRoute(peer)) => assert_eq!(peer, address(remote)),
            other => panic!("{remote}: {other:?}"),
        }
    }
}

#[test]
fn a_peer_whose_route_moves_to_another_interface_is_unresolved_until_it_is_back() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    for arguments in [
        "link add other0 type veth peer name other1",
        "link set other1 up",
        "link set other0 up",
        "address add 10.88.0.1/24 dev other0",
        "neigh add 10.88.0.2 lladdr 02:00:00:00:00:88 dev other0",
    ] {
        hosts.ip(Node::Left, arguments);
    }
    hosts.ip(Node::Right, "address add 10.99.0.1/32 dev lo");
    hosts.ip(Node::Left, "route add 10.99.0.1/32 via 10.77.0.2");
    let mut left = hosts.open(Node::Left, 4000);
    let socket = udp(&hosts, "10.99.0.1:5000");
    let peer = connect(&mut *left, address("10.99.0.1:5000"));
    reach(&mut *left, peer, &socket, b"before");
    hosts.ip(Node::Left, "route replace 10.99.0.1/32 via 10.88.0.2");
    until_unresolved(&mut *left, peer);
    hosts.ip(Node::Left, "route replace 10.99.0.1/32 via 10.77.0.2");
    reach(&mut *left, peer, &socket, b"after");
}

#[test]
fn a_deleted_interface_leaves_a_dead_port_that_harms_nobody() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let (mut left, mut right) = (hosts.open(Node::Left, 4000), hosts.open(Node::Right, 4000));
    let peer = connect(&mut *left, right.local());
    send(&mut *left, peer, b"before");
    assert_eq!(receive(&mut *right).1, b"before");
    let frame = reserve(&mut *left, peer);
    hosts.ip(Node::Left, "link del eth0");
    until_unresolved(&mut *left, peer);
    left.commit(frame, 1, TrafficClass::BEST_EFFORT, None);
    wait_until("flushing without an interface", || left.flush());
    let counters = left.counters();
    assert_eq!(
        (counters.tx_datagrams, counters.tx_errors),
        (1, 1),
        "{counters:?}"
    );
    for port in [&mut left, &mut right] {
        assert_eq!(port.receive(8, &mut |datagram| panic!("{datagram:?}")), 0);
        // A parked lane is not kept awake.
        let mut polled: Vec<libc::pollfd> = port
            .wait_fds()
            .iter()
            .map(|fd| libc::pollfd {
                fd: fd.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        // SAFETY: so many initialised entries, whose descriptors are open.
        let count = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 0) };
        let revents: Vec<_> = polled.iter().map(|polled| polled.revents).collect();
        assert_eq!(count, 0, "{revents:?}");
    }
    // Another interface of the same name is another one.
    hosts.ip(Node::Left, "link add eth0 type veth peer name far0");
    hosts.ip(Node::Left, "address add 10.77.0.1/24 dev eth0");
    hosts.ip(Node::Left, "link set far0 up");
    hosts.ip(Node::Left, "link set eth0 up");
    assert_eq!(left.reserve(peer).err(), Some(ReserveError::Unresolved));
    drop(left);
    hosts.forget_datapaths();
    // After which a new datapath works.
    let mut again = hosts.open(Node::Left, 4000);
    assert!(again.connect(address("10.77.0.2:4000")).is_ok());
}

/// Sockets are made anew beside the lane, which has committed something meanwhile.
#[test]
fn what_waits_on_an_interface_that_is_replaced_is_counted() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let (mut left, right) = (hosts.open(Node::Left, 4000), hosts.open(Node::Right, 4000));
    let peer = connect(&mut *left, right.local());
    let health = hosts.xdp(Node::Left).health(Box::new(|| ()));
    let health = health.expect("the link is watched");
    for _ in 0..10 {
        let frame = reserve(&mut *left, peer);
        left.commit(frame, 100, TrafficClass::BEST_EFFORT, None);
    }
    hosts.ip(Node::Left, "link del eth0");
    wait_until("the loss to be noticed", || health.fault().is_some());
    hosts.ip(Node::Left, "link add eth0 type veth peer name far0");
    hosts.ip(Node::Left, "address add 10.77.0.1/24 dev eth0");
    hosts.ip(Node::Left, "link set far0 up");
    hosts.ip(Node::Left, "link set eth0 up");
    wait_until("the new sockets to be in use", || {
        let _inside = hosts.host(Node::Left).enter().expect("enter the host");
        let _ = health.fault();
        left.reaches(peer)
    });
    let counters = left.counters();
    assert_eq!(
        (counters.tx_datagrams, counters.tx_errors),
        (0, 10),
        "{counters:?}"
    );
    assert!(left.flush());
    assert_eq!(left.counters(), counters);
}

/// A network namespace with nothing in it, where an interface keeps its index. Gone when dropped.
struct Empty(String);

impl Empty {
    fn new(hosts: &TwoHosts) -> Self {
        let empty = Self(format!("{}-e", hosts.host(Node::Left).namespace()));
        let add = ["netns", "add", &empty.0];
        let added = std::process::Command::new("ip").args(add).status();
        assert!(added.is_ok_and(|status| status.success()));
        empty
    }
}

impl Drop for Empty {
    fn drop(&mut self) {
        let delete = ["netns", "delete", &self.0];
        let _ = std::process::Command::new("ip").args(delete).status();
    }
}

/// Its index is the one that it had, but its sockets were unbound when it left.
#[test]
fn an_interface_that_leaves_the_namespace_and_returns_is_used_again() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let (mut left, mut right) = (hosts.open(Node::Left, 4000), hosts.open(Node::Right, 4000));
    let peer = connect(&mut *left, right.local());
    send(&mut *left, peer, b"before");
    assert_eq!(receive(&mut *right).1, b"before");
    let health = hosts.xdp(Node::Left).health(Box::new(|| ()));
    let health = health.expect("the link is watched");
    let empty = Empty::new(&hosts);
    let [here, other] = [Node::Left, Node::Right].map(|node| hosts.host(node).namespace());
    // And once more by way of the other host, where its index may be taken: it returns with another then.
    for (there, name) in [(empty.0.as_str(), "eth0"), (other, "away0")] {
        hosts.ip(
            Node::Left,
            &format!("link set eth0 netns {there} name {name}"),
        );
        hosts.ip(
            Node::Right,
            &format!("-n {there} link set {name} netns {here} name eth0"),
        );
        hosts.ip(Node::Left, "address add 10.77.0.1/24 dev eth0");
        hosts.ip(Node::Left, "link set eth0 up");
        get_through_again(&hosts, &*health, &mut *left, peer, |left| {
            if let Ok(frame) = left.reserve(peer) {
                left.payload(&frame)[..name.len()].copy_from_slice(name.as_bytes());
                left.commit(frame, name.len(), TrafficClass::BEST_EFFORT, None);
            }
            left.flush();
            let mut seen = false;
            right.receive(64, &mut |datagram| {
                seen |= datagram.payload == name.as_bytes()
            });
            seen
        });
        let back = connect(&mut *right, left.local());
        send(&mut *right, back, name.as_bytes());
        assert_eq!(receive(&mut *left).1, name.as_bytes());
        right.disconnect(back);
    }
}

/// Faster than whoever follows the tables looks at them: no state is between.
#[test]
fn an_interface_that_is_made_anew_at_once_with_the_same_index_is_used_again() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let mut left = hosts.open(Node::Left, 4000);
    let peer = connect(&mut *left, address("10.77.0.2:5000"));
    let health = hosts.xdp(Node::Left).health(Box::new(|| ()));
    let health = health.expect("the link is watched");
    let there = hosts.host(Node::Right).namespace();
    let index = {
        let _inside = hosts.host(Node::Left).enter().expect("enter the host");
        // SAFETY: the name is a string with its terminator.
        unsafe { libc::if_nametoindex(c"eth0".as_ptr()) }
    };
    let anew = std::env::temp_dir().join(format!("takt-anew-{}", std::process::id()));
    let commands = format!(
        "link del eth0\nlink add eth0 index {index} type veth peer name far0 netns {there}\n\
         address add 10.77.0.1/24 dev eth0\nlink set eth0 up\n"
    );
    std::fs::write(&anew, commands).expect("write");
    hosts.ip(Node::Left, &format!("-batch {}", anew.display()));
    std::fs::remove_file(&anew).expect("ours");
    hosts.ip(Node::Right, "address add 10.77.0.2/24 dev far0");
    hosts.ip(Node::Right, "link set far0 up");
    let socket = udp(&hosts, "10.77.0.2:5000");
    let mut buffer = [0; 64];
    get_through_again(&hosts, &*health, &mut *left, peer, |left| {
        if let Ok(frame) = left.reserve(peer) {
            left.payload(&frame)[..5].copy_from_slice(b"after");
            left.commit(frame, 5, TrafficClass::BEST_EFFORT, None);
        }
        left.flush();
        socket.recv(&mut buffer).is_ok()
    });
    socket.send_to(b"and back", left.local()).expect("send");
    assert_eq!(receive(&mut *left).1, b"and back");
}

/// Until `arrives`, with the sockets looked after as a node does.
fn get_through_again(
    hosts: &TwoHosts,
    health: &dyn Health,
    port: &mut dyn Port,
    peer: PeerHandle,
    mut arrives: impl FnMut(&mut dyn Port) -> bool,
) {
    wait_until("what is sent by the interface to arrive", || {
        let _inside = hosts.host(Node::Left).enter().expect("enter the host");
        port.reaches(peer);
        health.fault().is_none() && arrives(port)
    });
}

#[test]
fn link_local_peers_are_reached_by_an_interface_that_replaces_another() {
    let Some(mut hosts) = TwoHosts::new(&LabConfig::default(), Family::V6, |_| {}) else {
        return;
    };
    let number = |hosts: &TwoHosts| {
        hosts.ip(Node::Left, "address add fe80::77:1/64 dev eth0 nodad");
    };
    number(&hosts);
    let mut left = hosts
        .open_lane(Node::Left, (0, 1), address("[::]:4000"))
        .expect("open");
    let resolver = left.resolver().expect("it asks the tables");
    let peer = left
        .connect(address("[fe80::77:2]:4000"))
        .expect("a route to it");
    let health = hosts.xdp(Node::Left).health(Box::new(|| ()));
    let health = health.expect("the link is watched");
    for _ in 0..2 {
        hosts.ip(Node::Left, "link del eth0");
        wait_until("the loss to be noticed", || health.fault().is_some());
        hosts.ip(Node::Left, "link add eth0 type veth peer name far0");
        hosts.ip(Node::Left, "link set far0 up");
        hosts.ip(Node::Left, "link set eth0 up");
        number(&hosts);
        wait_until("the peer to be reached again", || {
            let _inside = hosts.host(Node::Left).enter().expect("enter the host");
            let _ = health.fault();
            left.reaches(peer)
        });
    }
    // Others that are asked for by who knew the port before, too.
    let (told, answer) = std::sync::mpsc::channel();
    let answered = Box::new(move || told.send(()).expect("the test waits"));
    let way = resolver.resolve(address("[fe80::77:3]:4000"), answered);
    answer.recv().expect("an answer");
    let other = left
        .connect_at_once(address("[fe80::77:3]:4000"), way)
        .expect("a route");
    assert!(left.reaches(other));
}

/// The program leaves fragments to the kernel, which has nobody to give the whole to.
#[test]
fn a_datagram_that_arrives_by_the_kernel_is_counted_as_dropped() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let mut left = hosts.open(Node::Left, 4000);
    let socket = udp(&hosts, "10.77.0.2:5000");
    for count in 1..4 {
        socket
            .send_to(&[7; 4000], left.local())
            .expect("send in fragments");
        wait_until("its loss to be counted", || {
            left.counters().rx_dropped >= count
        });
        assert_eq!(left.counters().rx_dropped, count);
    }
    assert_eq!(left.receive(8, &mut |datagram| panic!("{datagram:?}")), 0);
}

#[test]
fn a_port_of_a_jumbo_interface_sends_to_and_hears_from_kernel_sockets() {
    let jumbo = LabConfig {
        mtu: 9000,
        ..LabConfig::default()
    };
    let Some(mut hosts) = TwoHosts::new(&jumbo, Family::V4, |_| {}) else {
        return;
    };
    let mut left = hosts.open(Node::Left, 4000);
    let socket = udp(&hosts, "10.77.0.2:5000");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("set a time limit");
    let peer = connect(&mut *left, address("10.77.0.2:5000"));
    assert_eq!(left.max_payload(peer), 8972);
    for length in [3967, 3968, 3969, 4096, 8064, 8065, 8972] {
        let payload: Vec<u8> = (0..length).map(|place| (place % 251) as u8).collect();
        send(&mut *left, peer, &payload);
        let mut buffer = [0; 9000];
        let (received, source) = socket.recv_from(&mut buffer).expect("a datagram in time");
        assert!(
            buffer[..received] == payload,
            "{length} bytes arrive as {received} or others"
        );
        socket.send_to(&payload, source).expect("send");
        assert!(
            receive(&mut *left).1 == payload,
            "{length} bytes come back as others"
        );
    }
}
