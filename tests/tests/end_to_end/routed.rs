//! Networks whose hosts are routers for their containers, as Flannel builds them, and containers of one host.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use takt::{FrameOptions, FrameSource, Outcome, TaiTime};
use takt_clock::{Clock, SystemTai};
use takt_lab::{Capture, Host, Lab, LabConfig, OVERLAY_DEVICE, OVERLAY_ID, Overlay};
use takt_testing::{PATIENCE, until};
use takt_wire::ethernet::MacAddress;
use takt_wire::frame::{UdpFlow, parse_udp_frame};

use crate::support::overlay::{PORTS, emit, flow, frame, frames, mac};
use crate::support::{Datapath, Node, attach, skip};

/// Where an IPv4 packet in an untagged frame has its hop limit.
const HOP_LIMIT: usize = 14 + 8;

fn lab(overlay: Overlay, containers: usize) -> Lab {
    let config = LabConfig {
        containers,
        overlay,
        ..LabConfig::default()
    };
    Lab::scratch(&config).expect("a lab")
}

/// The sections of a node whose tenant is a container of its host.
fn sections(container: &Host, overlay: Overlay, datapath: Datapath) -> String {
    let network = match overlay {
        Overlay::HostGateway => "carrier = \"routed\"\nrouted = [\"10.88.0.0/16\"]".to_owned(),
        _ => format!("carrier = \"vxlan:{OVERLAY_ID}\"\nfollow = \"{OVERLAY_DEVICE}\""),
    };
    format!(
        "[listener.endpoint]\nnetwork = \"pods\"\nmac = \"{}\"\naddresses = [\"{}/24\"]\nmtu = {}\n\
         [[network]]\nname = \"pods\"\n{network}\n[departure]\ntolerance_us = 1000000\n{}",
        mac(container),
        container.address(),
        container.mtu(),
        datapath.section(),
    )
}

/// Runs a program of iproute2 in a host.
fn run(host: &Host, program: &str, arguments: &str) -> String {
    let mut command = host.command(program).expect("the lab is up");
    let output = command.args(arguments.split_whitespace()).output();
    let output = output.expect("iproute2");
    assert!(
        output.status.success(),
        "{program} {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// The hardware address of an interface of a host.
fn mac_of(host: &Host, interface: &str) -> [u8; 6] {
    let text = run(host, "ip", &format!("-br link show dev {interface}"));
    let text = text.split_whitespace().nth(2).expect("an address");
    let octets = text.split(':');
    let octets: Vec<u8> = octets
        .map(|octet| u8::from_str_radix(octet, 16).expect("an octet"))
        .collect();
    octets.try_into().expect("six octets")
}

fn gateway(host: usize) -> IpAddr {
    [10, 88, host as u8 + 1, 1].into()
}

fn soon() -> TaiTime {
    SystemTai.now().saturating_add_nanos(5_000_000)
}

fn outcome(source: &FrameSource, frame: &[u8], launch: Option<TaiTime>) -> Outcome {
    let options = FrameOptions {
        launch,
        ..FrameOptions::default()
    };
    let token = emit(source, frame, &options);
    until("the frame is dealt with", || match source.outcome(token) {
        Outcome::Pending => None,
        outcome => Some(outcome),
    })
}

/// The next datagram for the listening port that comes to a container.
fn next(capture: &Capture) -> Vec<u8> {
    loop {
        let captured = capture.next(PATIENCE).expect("captured");
        let frame = captured.expect("a datagram").frame;
        let parsed = parse_udp_frame(&frame, false);
        if parsed.is_ok_and(|datagram| datagram.dst.port() == PORTS[1]) {
            return frame;
        }
    }
}

/// What the kernel delivers of a datagram of `from`, for comparison. Brings the neighbours up too.
fn over_the_kernel(from: &Host, to: &Host, capture: &Capture) -> Vec<u8> {
    let socket = {
        let _inside = from.enter().expect("the lab is up");
        UdpSocket::bind((from.address(), PORTS[0])).expect("bind")
    };
    let there = SocketAddr::from((to.address(), PORTS[1]));
    socket.send_to(b"kernel", there).expect("sent");
    next(capture)
}

#[test]
fn a_datagram_over_a_routed_network_arrives_as_the_kernel_would_have_delivered_it() {
    if skip() {
        return;
    }
    for (overlay, datapath) in [
        (Overlay::Flannel, Datapath::Udp),
        (Overlay::Flannel, Datapath::Xdp),
        (Overlay::HostGateway, Datapath::Udp),
        (Overlay::HostGateway, Datapath::Xdp),
    ] {
        let lab = lab(overlay, 1);
        let (here, there) = (lab.container(0, 0), lab.container(1, 0));
        let capture = Capture::open(there).expect("a capture");
        let kernels = over_the_kernel(here, there, &capture);
        let node = Node::start(lab.host(0), &[], &sections(here, overlay, datapath));
        let session = attach(&node, "talker");
        let source = frames(&session, datapath);
        let router = mac_of(lab.host(0), "cni0");
        let resolved = source.resolve(there.address().into(), gateway(0), Some(router));
        assert_eq!(
            resolved.expect("an answer"),
            Some(router),
            "{overlay:?} {datapath:?}: {:?}",
            node.admin().network("pods")
        );
        let flow = flow(here, there, router);
        for (number, length) in [(1u8, 1), (2, 64), (3, here.mtu() as usize - 28)] {
            let payload = vec![number; length];
            let launch = soon();
            let sent = outcome(&source, &frame(&flow, &payload), Some(launch));
            assert_eq!(sent, Outcome::Sent, "{overlay:?} {datapath:?}");
            let frame = next(&capture);
            assert!(SystemTai.now() >= launch, "before its time");
            let datagram = parse_udp_frame(&frame, true).expect("intact");
            assert_eq!(datagram.payload, payload);
            assert_eq!((datagram.src, datagram.dst), (flow.src, flow.dst));
            // The same addresses, and as many routers on the way.
            assert_eq!(frame[..12], kernels[..12], "{overlay:?} {datapath:?}");
            assert_eq!(frame[HOP_LIMIT], kernels[HOP_LIMIT]);
            assert_eq!(frame[HOP_LIMIT], 64 - 2);
        }
        let status = node.admin().network("pods");
        assert_eq!(status.counters.expect("counters").sent, 3);
        let [route] = &status.routes[..] else {
            panic!("{:?}", status.routes);
        };
        assert_eq!(route.destination, there.address().to_string());
        let via = match overlay {
            Overlay::HostGateway => lab.host(0).interface().to_owned(),
            _ => lab.host(1).address().to_string(),
        };
        assert_eq!((&route.via, route.problem.as_str()), (&via, ""));
    }
}

#[test]
fn what_a_router_would_not_forward_or_must_translate_is_not_sent() {
    if skip() {
        return;
    }
    let lab = lab(Overlay::Flannel, 1);
    let (here, there) = (lab.container(0, 0), lab.container(1, 0));
    run(
        lab.host(0),
        "ip",
        &format!("route add default via {}", lab.host(1).address()),
    );
    let sections = sections(here, Overlay::Flannel, Datapath::Udp);
    let node = Node::start(lab.host(0), &[], &sections);
    let session = attach(&node, "talker");
    let source = frames(&session, Datapath::Udp);
    let router = mac_of(lab.host(0), "cni0");
    let resolve = |to: IpAddr, known| source.resolve(to, gateway(0), Some(known));
    let beyond: IpAddr = [198, 51, 100, 7].into();
    assert_eq!(resolve(beyond, router).expect("an answer"), None);
    // This host itself is no destination of frames, and its other interfaces are nobody's router.
    let itself = source.resolve(gateway(0), gateway(0), Some(router));
    assert_eq!(itself.expect("an answer"), None);
    let uplink = lab.host(0).mac();
    assert_eq!(resolve(there.address().into(), uplink).expect("one"), None);
    assert_eq!(
        resolve(there.address().into(), router).expect("an answer"),
        Some(router)
    );
    // What nobody asked for, has no hop left, or is no packet at all.
    let flow = flow(here, there, router);
    let unasked = UdpFlow {
        dst: SocketAddr::from((beyond, PORTS[1])),
        ..flow
    };
    let dying = UdpFlow {
        hop_limit: 1,
        ..flow
    };
    let mut strange = frame(&flow, &[0; 40]);
    strange[12..14].copy_from_slice(&[0x22, 0xf0]);
    for (launch, text) in [(None, "at once"), (Some(soon()), "at its time")] {
        let outcome = |frame: &[u8]| outcome(&source, frame, launch);
        assert_eq!(
            outcome(&frame(&unasked, b"x")),
            Outcome::Unreachable,
            "{text}"
        );
        assert_eq!(outcome(&frame(&dying, b"x")), Outcome::Refused, "{text}");
        assert_eq!(outcome(&strange), Outcome::Unreachable, "{text}");
    }
    let status = node.admin().network("pods");
    let problem = status
        .routes
        .iter()
        .find(|r| r.destination == "198.51.100.7");
    let problem = &problem.expect("shown").problem;
    assert!(
        problem.contains("eth0") && problem.contains("routed"),
        "{problem}"
    );
    assert_eq!(status.counters.expect("counters").sent, 0);
}

#[test]
fn ways_over_a_routed_network_are_followed() {
    if skip() {
        return;
    }
    let lab = lab(Overlay::Flannel, 1);
    let (here, there) = (lab.container(0, 0), lab.container(1, 0));
    let capture = Capture::open(there).expect("a capture");
    let sections = sections(here, Overlay::Flannel, Datapath::Udp);
    let node = Node::start(lab.host(0), &[], &sections);
    let session = attach(&node, "talker");
    let source = frames(&session, Datapath::Udp);
    let router = mac_of(lab.host(0), "cni0");
    let resolved = source.resolve(there.address().into(), gateway(0), Some(router));
    assert_eq!(resolved.expect("an answer"), Some(router));
    let flow = flow(here, there, router);
    assert_eq!(
        outcome(&source, &frame(&flow, b"first"), None),
        Outcome::Sent
    );
    next(&capture);
    // The far host's device is made anew, as by a restart of its network: with another address.
    let (old, new) = (mac_of(lab.host(1), OVERLAY_DEVICE), "02:00:00:00:77:77");
    run(
        lab.host(1),
        "ip",
        &format!("link set {OVERLAY_DEVICE} address {new}"),
    );
    let far = lab.host(1).address();
    let device = OVERLAY_DEVICE;
    run(
        lab.host(0),
        "ip",
        &format!("neighbour replace 10.88.2.0 lladdr {new} dev {device} nud permanent"),
    );
    run(
        lab.host(0),
        "bridge",
        &format!("fdb append {new} dev {device} dst {far}"),
    );
    run(
        lab.host(0),
        "bridge",
        &format!("fdb del {} dev {device} dst {far}", MacAddress(old)),
    );
    let at_far_host = Capture::open(lab.host(1)).expect("a capture");
    until("frames go to the new address", || {
        let sent = outcome(&source, &frame(&flow, b"again"), None);
        if sent != Outcome::Sent {
            return None;
        }
        let frame = at_far_host.next(PATIENCE).expect("captured")?.frame;
        // Outer headers: Ethernet, IPv4, UDP, VXLAN.
        (frame.get(50..56)? == [2, 0, 0, 0, 0x77, 0x77]).then_some(())
    });
    assert_eq!(
        parse_udp_frame(&next(&capture), true)
            .expect("intact")
            .payload,
        b"again"
    );
    // A route that is gone is served no longer.
    run(lab.host(0), "ip", "route del 10.88.2.0/24");
    until("the route is gone", || {
        let sent = outcome(&source, &frame(&flow, b"gone"), None);
        (sent == Outcome::Unreachable).then_some(())
    });
}

#[test]
fn containers_of_one_host_reach_each_other_at_their_times() {
    if skip() {
        return;
    }
    for overlay in [Overlay::Bridged, Overlay::Flannel, Overlay::HostGateway] {
        let lab = lab(overlay, 2);
        let (here, beside) = (lab.container(0, 0), lab.container(0, 1));
        let capture = Capture::open(beside).expect("a capture");
        let datapath = Datapath::Xdp;
        let node = Node::start(lab.host(0), &[], &sections(here, overlay, datapath));
        if overlay == Overlay::Bridged {
            // An entry for all others is known: it must not swallow what is for the neighbour.
            let mut admin = node.admin();
            takt_testing::until_true("it is known", || {
                let stations = admin.network("pods").stations;
                stations.iter().any(|s| s.mac == "00:00:00:00:00:00")
            });
        }
        let kernels = over_the_kernel(here, beside, &capture);
        let session = attach(&node, "talker");
        let source = frames(&session, datapath);
        let to = beside.address().into();
        let resolved = source.resolve(to, to, Some(beside.mac()));
        assert_eq!(
            resolved.expect("an answer"),
            Some(beside.mac()),
            "{overlay:?}"
        );
        let flow = flow(here, beside, beside.mac());
        for number in 0..10u8 {
            let launch = soon();
            let sent = outcome(&source, &frame(&flow, &[number]), Some(launch));
            assert_eq!(sent, Outcome::Sent, "{overlay:?}");
            let frame = next(&capture);
            assert!(SystemTai.now() >= launch, "before its time");
            assert_eq!(
                parse_udp_frame(&frame, true).expect("intact").payload,
                [number]
            );
            assert_eq!(frame[..12], kernels[..12]);
            assert_eq!(frame[HOP_LIMIT], 64);
        }
    }
}
