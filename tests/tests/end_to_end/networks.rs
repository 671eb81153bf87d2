//! Frames of tenants, from containers of one host to ordinary sockets in containers of others.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use takt::{ErrorCode, FrameOptions, Outcome, Session, SourceOptions, TrafficClass};
use takt_clock::{Clock, SystemTai};
use takt_lab::{Host, Lab, LabConfig, LinkState, OVERLAY_DEVICE, OVERLAY_ID};
use takt_wire::ethernet::MacAddress;
use takt_wire::frame::UdpFlow;
use takt_wire::vxlan;
use taktd::admin::proto::Network;

use crate::support::overlay::{
    PORTS, emit, flow, frame, frames, lab, mac, outcome, sections, send, station, udp_socket,
};
use crate::support::{Datapath, Node, attach, skip};
use takt_testing::{PATIENCE, until, until_true};

/// An ordinary socket in a container.
fn listen(container: &Host) -> UdpSocket {
    udp_socket(container, (container.address(), PORTS[1]))
}

fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 2048];
    let (length, from) = socket.recv_from(&mut buffer).expect("a datagram");
    (buffer[..length].to_vec(), from)
}

fn in_ms(ms: i64) -> Option<takt::TaiTime> {
    Some(SystemTai.now().saturating_add_nanos(ms * 1_000_000))
}

#[test]
fn a_frame_reaches_an_ordinary_socket_behind_the_kernels_vxlan_not_before_its_time() {
    if skip() {
        return;
    }
    for datapath in [Datapath::Udp, Datapath::Xdp] {
        let lab = lab(2);
        let (here, there) = (lab.container(0, 0), lab.container(1, 0));
        let listener = listen(there);
        let sections = sections(here, &station(there, lab.host(1)), datapath);
        let node = Node::start(lab.host(0), &[], &sections);
        let session = attach(&node, "talker");
        let source = frames(&session, datapath);
        let endpoint = source.endpoint().expect("attached");
        assert_eq!(
            (endpoint.network.as_str(), endpoint.mac),
            ("pods", here.mac())
        );
        assert_eq!(endpoint.addresses, [(here.address().into(), 16)]);
        assert_eq!(u32::from(endpoint.mtu), there.mtu());
        // The runtime knows its station: no address is to be resolved.
        let resolved = source.resolve(there.address().into(), there.address().into(), None);
        assert_eq!(resolved.expect("an answer"), Some(there.mac()));
        let flow = flow(here, there, there.mac());
        let talker = udp_socket(here, (here.address(), PORTS[0]));
        for (number, length) in [(1u8, 1), (2, 64), (3, 1450 - 28)] {
            let payload = vec![number; length];
            let launch = in_ms(5);
            let options = FrameOptions {
                class: TrafficClass::new(6).expect("a class"),
                launch,
                deadline: false,
            };
            assert_eq!(
                send(&source, &frame(&flow, &payload), &options),
                Outcome::Sent
            );
            let (received, from) = receive(&listener);
            assert!(Some(SystemTai.now()) >= launch, "before its time");
            assert_eq!(received, payload, "{datapath:?}");
            assert_eq!(from, SocketAddr::from((here.address(), PORTS[0])));
            // The answer comes to the very socket, over the kernel.
            listener.send_to(&payload, from).expect("sent");
            assert_eq!(receive(&talker).0, payload);
        }
        // Without a launch time it leaves at once; later than its launch time not at all.
        let at_once = FrameOptions::default();
        assert_eq!(
            send(&source, &frame(&flow, b"now"), &at_once),
            Outcome::Sent
        );
        assert_eq!(receive(&listener).0, b"now");
        for (launch, outcome) in [
            (in_ms(-2000), Outcome::Late),
            (in_ms(i64::MIN / 1_000_000), Outcome::Late),
            (in_ms(3_600_000), Outcome::NotScheduled),
        ] {
            let options = FrameOptions {
                launch,
                ..FrameOptions::default()
            };
            assert_eq!(send(&source, &frame(&flow, b"never"), &options), outcome);
        }
        let deadline = FrameOptions {
            launch: in_ms(60_000 - 1_000),
            deadline: true,
            ..FrameOptions::default()
        };
        assert_eq!(
            send(&source, &frame(&flow, b"soon"), &deadline),
            Outcome::Sent
        );
        assert_eq!(receive(&listener).0, b"soon");
        let network = node.admin().network("pods");
        assert_eq!(network.endpoints, 1);
        assert_eq!(network.counters.expect("counters").sent, 5);
    }
}

#[test]
fn what_is_not_the_tenants_is_refused_counted_and_keeps_nothing_else_from_leaving() {
    if skip() {
        return;
    }
    let lab = lab(2);
    let (here, there) = (lab.container(0, 0), lab.container(1, 0));
    let listener = listen(there);
    let listener_of_its_own =
        "[[listener]]\npath = \"DIR/liar.sock\"\nclasses = [0, 5]\n".to_owned();
    let sections =
        listener_of_its_own + &sections(here, &station(there, lab.host(1)), Datapath::Udp);
    let node = Node::start(lab.host(0), &[], &sections);
    let session = Session::builder()
        .name("liar")
        .socket(node.directory.join("liar.sock"))
        .request_timeout(PATIENCE)
        .open()
        .expect("a session");
    let source = frames(&session, Datapath::Udp);
    let good = flow(here, there, there.mac());
    let foreign_mac = UdpFlow {
        src_mac: MacAddress([2, 0, 0, 0, 0, 99]),
        ..good
    };
    let foreign_ip = UdpFlow {
        src: SocketAddr::from((Ipv4Addr::new(10, 88, 1, 99), PORTS[0])),
        ..good
    };
    let foreign_v6 = UdpFlow {
        src: "[fd00::1]:1".parse().expect("an address"),
        dst: "[fd00::2]:2".parse().expect("an address"),
        ..good
    };
    let foreign = [foreign_mac, foreign_ip, foreign_v6].map(|flow| frame(&flow, b"liar"));
    let mut arp = frame(&good, &[0; 20]);
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let mut tagged = frame(&good, &[0; 20]);
    tagged[12..14].copy_from_slice(&[0x81, 0x00]);
    let mut length_field = frame(&good, &[0; 20]);
    length_field[12..14].copy_from_slice(&[0x00, 0x10]);
    let mut header = frame(&good, &[0; 20]);
    header[14] = 0x4f;
    header[16..18].copy_from_slice(&[0, 30]);
    let refused = [
        arp,
        tagged,
        length_field,
        header,
        frame(&good, &[0; 1450 - 27]),
        vec![0; 11],
        frame(&good, b"short")[..33].to_vec(),
    ];
    for launch in [None, in_ms(20)] {
        let options = FrameOptions {
            launch,
            ..FrameOptions::default()
        };
        for frame in foreign.iter().chain(&refused) {
            let outcome = send(&source, frame, &options);
            assert_eq!(outcome, Outcome::Refused, "{frame:02x?}");
        }
    }
    for (class, outcome) in [
        (5, Outcome::Sent),
        (6, Outcome::Refused),
        (7, Outcome::Refused),
    ] {
        let options = FrameOptions {
            class: TrafficClass::new(class).expect("a class"),
            ..FrameOptions::default()
        };
        assert_eq!(send(&source, &frame(&good, b"class"), &options), outcome);
    }
    assert_eq!(receive(&listener).0, b"class");
    let unknown = frame(&flow(here, there, [2, 0, 0, 0, 0, 42]), b"where");
    let nowhere = send(&source, &unknown, &FrameOptions::default());
    assert_eq!(nowhere, Outcome::Unreachable);
    let resolved = source.resolve(
        Ipv4Addr::new(10, 88, 9, 9).into(),
        Ipv4Addr::new(10, 88, 9, 9).into(),
        Some([2, 0, 0, 0, 0, 42]),
    );
    assert_eq!(resolved.expect("an answer"), None);
    // Nothing of it was seen, and what is right still leaves.
    let right = frame(&good, b"right");
    assert_eq!(
        send(&source, &right, &FrameOptions::default()),
        Outcome::Sent
    );
    assert_eq!(receive(&listener).0, b"right");
    let counters = node.admin().network("pods").counters.expect("counters");
    assert_eq!(
        (
            counters.foreign,
            counters.refused,
            counters.unknown,
            counters.sent
        ),
        (6, 16, 1, 2)
    );
}

#[test]
fn stations_are_entered_removed_and_followed_from_the_kernel_while_the_node_runs() {
    if skip() {
        return;
    }
    let lab = lab(3);
    let here = lab.container(0, 0);
    let others = [lab.container(1, 0), lab.container(2, 0)];
    let listeners = others.map(listen);
    let node = Node::start(lab.host(0), &[], &sections(here, "", Datapath::Udp));
    let session = attach(&node, "talker");
    let source = frames(&session, Datapath::Udp);
    let send_to = |container: &Host, mac, text: &[u8]| {
        let frame = frame(&flow(here, container, mac), text);
        send(&source, &frame, &FrameOptions::default())
    };
    let mut admin = node.admin();
    assert_eq!(
        send_to(others[0], others[0].mac(), b"x"),
        Outcome::Unreachable
    );
    // Entered, it is found; removed, it is not.
    let vteps = [lab.host(1), lab.host(2)].map(|host| host.address().to_string());
    admin.set_station("pods", &mac(others[0]), &vteps[0]);
    assert_eq!(
        send_to(others[0], others[0].mac(), b"entered"),
        Outcome::Sent
    );
    assert_eq!(receive(&listeners[0]).0, b"entered");
    assert!(admin.remove_station("pods", &mac(others[0])));
    assert!(!admin.remove_station("pods", &mac(others[0])));
    assert_eq!(
        send_to(others[0], others[0].mac(), b"x"),
        Outcome::Unreachable
    );
    // Entries for the rest add up: what is for all is for all.
    for vtep in &vteps {
        admin.set_station("pods", "00:00:00:00:00:00", vtep);
    }
    let all = frame(
        &UdpFlow {
            dst_mac: MacAddress::BROADCAST,
            dst: SocketAddr::from((Ipv4Addr::new(10, 88, 255, 255), PORTS[1])),
            ..flow(here, others[0], others[0].mac())
        },
        b"all",
    );
    let listeners_of_all =
        others.map(|container| udp_socket(container, (Ipv4Addr::new(10, 88, 255, 255), PORTS[1])));
    assert_eq!(send(&source, &all, &FrameOptions::default()), Outcome::Sent);
    for listener in &listeners_of_all {
        assert_eq!(receive(listener).0, b"all");
    }
    drop(node);

    // What the kernel's device has learnt is followed.
    let follow = format!("follow = \"{OVERLAY_DEVICE}\"");
    let node = Node::start(lab.host(0), &[], &sections(here, &follow, Datapath::Udp));
    let talker = udp_socket(here, (here.address(), PORTS[0]));
    let far = SocketAddr::from((others[1].address(), PORTS[1]));
    talker.send_to(b"over the kernel", far).expect("sent");
    let (_, from) = receive(&listeners[1]);
    listeners[1].send_to(b"back", from).expect("sent");
    receive(&talker);
    let mut admin = node.admin();
    until("the station is followed", || {
        let stations = admin.network("pods").stations;
        let found = stations.iter().find(|s| s.mac == mac(others[1]))?;
        assert!(found.followed);
        assert_eq!(found.vtep, vteps[1]);
        Some(())
    });
    let session = attach(&node, "talker");
    let source = frames(&session, Datapath::Udp);
    let known = source.resolve(
        others[1].address().into(),
        others[1].address().into(),
        Some(others[1].mac()),
    );
    assert_eq!(known.expect("an answer"), Some(others[1].mac()));
    let text = frame(&flow(here, others[1], others[1].mac()), b"followed");
    assert_eq!(
        send(&source, &text, &FrameOptions::default()),
        Outcome::Sent
    );
    assert_eq!(receive(&listeners[1]).0, b"followed");
}

#[test]
fn a_stranger_who_makes_the_kernel_learn_thousands_of_stations_displaces_none_of_them() {
    /// What a node takes from a kernel's table, and what it is offered.
    const MOST_FOLLOWED: usize = 4096;
    const STRANGERS: u32 = 20_002;
    if skip() {
        return;
    }
    let lab = lab(3);
    let (here, there, newcomer) = (
        lab.container(0, 0),
        lab.container(1, 0),
        lab.container(2, 0),
    );
    let [near, far, stranger] = [0, 1, 2].map(|at| lab.host(at));
    let follow = format!("follow = \"{OVERLAY_DEVICE}\"");
    let node = Node::start(near, &[], &sections(here, &follow, Datapath::Udp));
    let mut admin = node.admin();
    let session = attach(&node, "talker");
    let source = frames(&session, Datapath::Udp);
    let reaches = |container: &Host, listener: &UdpSocket, text: &[u8]| {
        let frame = frame(&flow(here, container, container.mac()), text);
        let outcome = send(&source, &frame, &FrameOptions::default());
        assert_eq!(outcome, Outcome::Sent, "{}", container.name());
        assert_eq!(receive(listener).0, text);
    };
    // The kernel learns where the victim is from what it answers.
    let listener = listen(there);
    let talker = udp_socket(here, (here.address(), PORTS[0]));
    let to = SocketAddr::from((there.address(), PORTS[1]));
    talker.send_to(b"over the kernel", to).expect("sent");
    let (_, from) = receive(&listener);
    listener.send_to(b"back", from).expect("sent");
    receive(&talker);
    let place = (mac(there), far.address().to_string());
    let is_followed = |network: &Network| {
        let mut stations = network.stations.iter();
        stations.any(|s| s.followed && (&s.mac, &s.vtep) == (&place.0, &place.1))
    };
    until_true("the victim's station is followed", || {
        is_followed(&admin.network("pods"))
    });
    reaches(there, &listener, b"before");

    let mut header = [0; vxlan::HEADER_LEN];
    let network = vxlan::NetworkId::new(OVERLAY_ID).expect("24 bits");
    vxlan::Repr { network }.emit(&mut header);
    let forged: Vec<Vec<u8>> = (0..STRANGERS)
        .map(|number| {
            let [_, a, b, c] = number.to_be_bytes();
            let flow = UdpFlow {
                src_mac: MacAddress([2, 0xbb, 0, a, b, c]),
                ..flow(newcomer, here, here.mac())
            };
            [&header[..], &frame(&flow, b"here I am")].concat()
        })
        .collect();
    let socket = udp_socket(stranger, (stranger.address(), 0));
    let network = until("the kernel has learnt them, and each is counted", || {
        for forged in &forged {
            let _ = socket.send_to(forged, (near.address(), vxlan::UDP_PORT));
        }
        let network = admin.network("pods");
        let tunnels = network.stations.iter().filter(|s| !s.vtep.is_empty());
        let taken = tunnels.count();
        assert!(taken <= MOST_FOLLOWED, "{taken} stations");
        (taken as u64 + network.left_out > STRANGERS.into()).then_some(network)
    });
    assert!(is_followed(&network), "the victim's is displaced");
    let limit = format!("beyond the limits of {MOST_FOLLOWED} stations");
    assert!(network.problem.contains(&limit), "{}", network.problem);
    reaches(there, &listener, b"beside them");
    // One that an operator enters has its place all the same.
    admin.set_station("pods", &mac(newcomer), &stranger.address().to_string());
    reaches(newcomer, &listen(newcomer), b"entered");
}

#[test]
fn an_endpoint_belongs_to_one_tenant_and_to_nobody_who_lost_it() {
    if skip() {
        return;
    }
    let lab = lab(2);
    let (here, there) = (lab.container(0, 0), lab.container(1, 0));
    let sections = sections(here, &station(there, lab.host(1)), Datapath::Udp)
        + "[[listener]]\npath = \"DIR/other.sock\"\nidentity = \"other\"\n";
    let node = Node::start(lab.host(0), &[], &sections);
    // A tenant without an endpoint sends no frames.
    let other = Session::builder()
        .socket(node.directory.join("other.sock"))
        .open()
        .expect("a session");
    let stream = other.stream(takt::Qos::slow()).expect("a stream");
    let Err(takt::Error::Refused(failure)) = stream.frame_source(SourceOptions::default()) else {
        panic!("a source of frames without an endpoint");
    };
    assert_eq!(failure.code, ErrorCode::NotPermitted);
    assert!(failure.message.contains("other"), "{failure}");
    // Nobody else gets the addresses.
    let mut admin = node.admin();
    let mut listener = admin.listener(&node.directory.join("other.sock"));
    let endpoint = admin
        .listener(&node.socket())
        .endpoint
        .expect("an endpoint");
    listener.endpoint = Some(endpoint.clone());
    let refusal = admin.set_listener(listener.clone()).expect_err("taken");
    assert!(
        refusal.contains("default") && refusal.contains(&mac(here)),
        "{refusal}"
    );
    // Once it is given to another, who had it has it no more.
    let session = attach(&node, "first");
    let source = frames(&session, Datapath::Udp);
    let mut first = admin.listener(&node.socket());
    first.endpoint = None;
    admin.set_listener(first).expect("set");
    admin.set_listener(listener).expect("free now");
    until("the first tenant has lost its source", || {
        match source.buffer(64) {
            Err(takt::Error::Refused(failure)) => Some(failure),
            Ok(_) | Err(takt::Error::Disconnected) => {
                std::thread::sleep(Duration::from_millis(1));
                None
            }
            Err(error) => panic!("{error}"),
        }
    });
    assert!(stream.frame_source(SourceOptions::default()).is_ok());
    // And when its listener goes, those of its sessions that are left do not begin to.
    let path = node.directory.join("other.sock");
    let left = Session::builder().socket(&path).open().expect("a session");
    let stream = left.stream(takt::Qos::slow()).expect("a stream");
    assert!(admin.remove_listener(&path));
    let Err(takt::Error::Refused(failure)) = stream.frame_source(SourceOptions::default()) else {
        panic!("a source of frames without a listener");
    };
    assert_eq!(failure.code, ErrorCode::NotPermitted);
}

#[test]
fn on_a_native_network_frames_leave_as_they_are() {
    if skip() {
        return;
    }
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
    let [here, there] = [lab.host(0), lab.host(1)];
    // The tenant's addresses are not the host's: it is a station of its own on the wire.
    let sections = format!(
        "[listener.endpoint]\nnetwork = \"line\"\nmac = \"02:00:00:00:00:50\"\n\
         addresses = [\"10.77.0.50/24\"]\nmtu = 1500\n\
         [[network]]\nname = \"line\"\ncarrier = \"native\"\n\
         [departure]\ntolerance_us = 1000000\n{}",
        Datapath::Xdp.section()
    );
    let node = Node::start(here, &[], &sections);
    let session = attach(&node, "talker");
    // Kernel UDP sends no frames: the datapath that does is found whatever was asked for.
    let source = frames(&session, Datapath::Udp);
    let listener = listen(there);
    let known = source.resolve(
        there.address().into(),
        there.address().into(),
        Some(there.mac()),
    );
    assert_eq!(known.expect("an answer"), Some(there.mac()));
    let flow = UdpFlow {
        src_mac: MacAddress([2, 0, 0, 0, 0, 0x50]),
        src: SocketAddr::from(([10, 77, 0, 50], PORTS[0])),
        ..flow(here, there, there.mac())
    };
    for length in [5, 1500 - 28] {
        let payload = vec![7; length];
        let options = FrameOptions {
            launch: in_ms(5),
            ..FrameOptions::default()
        };
        let sent = send(&source, &frame(&flow, &payload), &options);
        assert_eq!(sent, Outcome::Sent);
        assert_eq!(receive(&listener), (payload, flow.src));
    }
}

/// What the kernel has dropped of what was to leave by a host's interface (`ip -s link`: TX dropped).
fn dropped_by_device(host: &Host) -> u64 {
    let file = format!("/sys/class/net/{}/statistics/tx_dropped", host.interface());
    let mut cat = host.command("cat").expect("the lab is up");
    let output = cat.arg(file).output().expect("the host's /sys").stdout;
    String::from_utf8_lossy(&output)
        .trim()
        .parse()
        .expect("a count")
}

fn launch_times_through_a_link_that_was_down(datapath: Datapath) {
    if skip() {
        return;
    }
    let lab = lab(2);
    let (here, there) = (lab.container(0, 0), lab.container(1, 0));
    let listener = listen(there);
    let sections = sections(here, &station(there, lab.host(1)), datapath);
    let node = Node::start(lab.host(0), &[], &sections);
    let session = attach(&node, "talker");
    let source = frames(&session, datapath);
    let flow = flow(here, there, there.mac());
    let mut admin = node.admin();
    let mut number = 0u64;
    let mut sent = 0;
    // Emits a frame for an instant soon; when that is, and its number.
    let next = |number: &mut u64| {
        *number += 1;
        let launch = in_ms(20).expect("a time");
        let frame = frame(&flow, &number.to_le_bytes());
        let options = FrameOptions {
            launch: Some(launch),
            ..FrameOptions::default()
        };
        let token = emit(&source, &frame, &options);
        (launch, *number, token)
    };
    let outcome = |token| outcome(&source, token);
    let mut received = 0;
    for round in 0..3 {
        // With the link as it should be.
        for _ in 0..10 {
            let (launch, number, token) = next(&mut number);
            assert_eq!(outcome(token), Outcome::Sent, "round {round}");
            sent += 1;
            let (payload, _) = receive(&listener);
            assert!(SystemTai.now() >= launch, "before its time");
            assert_eq!(payload, number.to_le_bytes());
            received += 1;
        }
        // Pulled while frames wait for their times.
        let waiting: Vec<_> = (0..10).map(|_| next(&mut number)).collect();
        lab.host(0).link(LinkState::Down).expect("pulled");
        let more: Vec<_> = (0..10).map(|_| next(&mut number)).collect();
        for (_, _, token) in waiting.into_iter().chain(more) {
            match outcome(token) {
                Outcome::Sent => sent += 1,
                // The kernel has no route meanwhile.
                Outcome::Unreachable => {}
                other => panic!("{other:?}"),
            }
        }
        lab.host(0).link(LinkState::Up).expect("plugged in");
        // What was handed over in time is not kept for later: it has come by now, or is lost on the way.
        listener
            .set_read_timeout(Some(Duration::from_secs(2)))
            .expect("a time-out");
        while listener.recv(&mut [0; 64]).is_ok() {
            received += 1;
        }
        listener
            .set_read_timeout(Some(PATIENCE))
            .expect("a time-out");
    }
    let counters = admin.network("pods").counters.expect("counters");
    assert_eq!((counters.sent, counters.unreachable), (sent, number - sent));
    listener
        .set_read_timeout(Some(Duration::from_millis(100)))
        .expect("a time-out");
    until("what was handed over came, or is counted", || {
        while listener.recv(&mut [0; 64]).is_ok() {
            received += 1;
        }
        // By its own port, and by the kernel's while the datapath's link was down.
        let ports = admin.node().lanes.into_iter().flat_map(|lane| lane.ports);
        let counters = ports.map(|port| port.counters.expect("its counters"));
        let refused: u64 = counters.map(|counters| counters.tx_errors).sum();
        // What AF_XDP's kernel side had taken when the carrier went is dropped by the device, as frames of others may be.
        let seen = received + refused;
        (seen..=seen + dropped_by_device(lab.host(0)))
            .contains(&sent)
            .then_some(())
    });
    assert!(received < number, "through no cable");
}

#[test]
fn frames_leave_at_their_times_again_once_a_link_is_back_over_kernel_udp() {
    launch_times_through_a_link_that_was_down(Datapath::Udp);
}

#[test]
fn frames_leave_at_their_times_again_once_a_link_is_back_over_af_xdp() {
    launch_times_through_a_link_that_was_down(Datapath::Xdp);
}
