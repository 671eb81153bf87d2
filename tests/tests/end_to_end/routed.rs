//! Networks whose hosts are routers for their containers, as Flannel builds them, and containers of one host.

use std::net::{IpAddr, SocketAddr};

use takt::{FrameOptions, FrameSource, Outcome, TaiTime};
use takt_clock::{Clock, SystemTai};
use takt_lab::{Capture, Host, Lab, LabConfig, OVERLAY_DEVICE, OVERLAY_ID, Overlay};
use takt_testing::{PATIENCE, until, until_true};
use takt_wire::ethernet::MacAddress;
use takt_wire::frame::{UdpFlow, parse_udp_frame};

use crate::support::overlay::{PORTS, flow, frame, frames, mac, send, udp_socket};
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
    send(source, frame, &options)
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

/// A datagram of a container for a group of IPv4, as a frame (RFC 1112, section 6.4).
fn for_group(from: &Host, payload: &[u8]) -> Vec<u8> {
    let group = UdpFlow {
        dst: SocketAddr::from(([239, 1, 2, 3], PORTS[1])),
        ..flow(from, from, [1, 0, 0x5e, 1, 2, 3])
    };
    frame(&group, payload)
}

/// What the kernel delivers of a datagram of `from`, for comparison. Brings the neighbours up too.
fn over_the_kernel(from: &Host, to: &Host, capture: &Capture) -> Vec<u8> {
    let socket = udp_socket(from, (from.address(), PORTS[0]));
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
            until_true("it is known", || {
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

#[test]
fn what_is_for_a_group_reaches_the_containers_of_this_host_too_and_each_once() {
    if skip() {
        return;
    }
    for (overlay, datapath) in [
        (Overlay::Bridged, Datapath::Xdp),
        (Overlay::Flannel, Datapath::Xdp),
        (Overlay::Flannel, Datapath::Udp),
        (Overlay::HostGateway, Datapath::Xdp),
        (Overlay::HostGateway, Datapath::Udp),
    ] {
        let lab = lab(overlay, 3);
        let [here, beside, third] = [0, 1, 2].map(|at| lab.container(0, at));
        let there = lab.container(1, 0);
        let node = Node::start(lab.host(0), &[], &sections(here, overlay, datapath));
        let mut captures = vec![
            Capture::open(beside).expect("a capture"),
            Capture::open(third).expect("a capture"),
        ];
        // The bridge has heard of the tenant.
        over_the_kernel(here, beside, &captures[0]);
        if overlay == Overlay::Bridged {
            captures.push(Capture::open(there).expect("a capture"));
        }
        let at_home = Capture::open(here).expect("a capture");
        let session = attach(&node, "talker");
        let source = frames(&session, datapath);
        let group = [1, 0, 0x5e, 1, 2, 3];
        let to = IpAddr::from([239, 1, 2, 3]);
        until("the group is reached", || {
            let resolved = source.resolve(to, to, Some(group)).expect("an answer");
            let status = node.admin().network("pods");
            let here = status.stations.iter().any(|s| s.mac == mac(here));
            (resolved == Some(group) && here).then_some(())
        });
        for number in 0..5u8 {
            let launch = soon();
            let sent = outcome(&source, &for_group(here, &[number]), Some(launch));
            assert_eq!(sent, Outcome::Sent, "{overlay:?}");
            assert!(SystemTai.now() >= launch, "before its time");
        }
        // After them, so that more than these would be seen.
        let sent = outcome(&source, &for_group(here, b"end"), None);
        assert_eq!(sent, Outcome::Sent, "{overlay:?}");
        for (at, capture) in captures.iter().enumerate() {
            let got: Vec<Vec<u8>> = (0..6)
                .map(|_| {
                    let frame = next(capture);
                    parse_udp_frame(&frame, true)
                        .expect("intact")
                        .payload
                        .to_vec()
                })
                .collect();
            let expected = [&[0][..], &[1], &[2], &[3], &[4], b"end"];
            assert_eq!(got, expected, "{overlay:?} {at}");
        }
        over_the_kernel(beside, here, &at_home);
    }
}

#[test]
fn a_silent_neighbour_on_the_bridge_is_reached_like_those_behind_tunnels() {
    if skip() {
        return;
    }
    let lab = lab(Overlay::Bridged, 2);
    let (here, beside) = (lab.container(0, 0), lab.container(0, 1));
    let capture = Capture::open(beside).expect("a capture");
    // Its entry has aged out, and there is a new daemon. By IPv6 it would speak of its own accord.
    set(beside, "ipv6/conf/eth0/disable_ipv6", "1");
    run(lab.host(0), "ip", "link set cni0 type bridge fdb_flush");
    let datapath = Datapath::Udp;
    let sections = sections(here, Overlay::Bridged, datapath);
    let node = Node::start(lab.host(0), &[], &sections);
    let stations = node.admin().network("pods").stations;
    assert!(
        !stations.iter().any(|s| s.mac == mac(beside)),
        "{stations:?}"
    );
    let session = attach(&node, "talker");
    let source = frames(&session, datapath);
    let flow = flow(here, beside, beside.mac());
    for launch in [None, Some(soon())] {
        let sent = outcome(&source, &frame(&flow, b"hello"), launch);
        assert_eq!(sent, Outcome::Sent);
        let frame = next(&capture);
        let datagram = parse_udp_frame(&frame, true).expect("intact");
        assert_eq!(datagram.payload, b"hello");
    }
}

#[test]
fn who_shares_the_interface_of_a_native_network_is_not_sent_to_by_its_link() {
    if skip() {
        return;
    }
    // macvlan devices on the host's interface, as pods have them: the kernel delivers between them, the link does not.
    let lab = lab(Overlay::Bridged, 2);
    let host = lab.host(0);
    for (at, container) in [lab.container(0, 0), lab.container(0, 1)]
        .iter()
        .enumerate()
    {
        let name = format!("mv{at}");
        run(
            host,
            "ip",
            &format!(
                "link add {name} link {} netns {} address 02:00:00:00:0a:0{at} type macvlan mode bridge",
                host.interface(),
                container.namespace()
            ),
        );
        run(container, "ip", &format!("link set {name} up"));
    }
    let (own, sibling) = ([2, 0, 0, 0, 0xa, 0], [2, 0, 0, 0, 0xa, 1]);
    let sections = format!(
        "[listener.endpoint]\nnetwork = \"line\"\nmac = \"{}\"\naddresses = [\"10.77.0.50/24\"]\nmtu = 1500\nethertypes = [0x22f0]\n\
         [[network]]\nname = \"line\"\ncarrier = \"native\"\ninterface = \"{}\"\n\
         [departure]\ntolerance_us = 1000000\n{}",
        MacAddress(own),
        host.interface(),
        Datapath::Xdp.section()
    );
    let node = Node::start(host, &[], &sections);
    let session = attach(&node, "talker");
    let source = frames(&session, Datapath::Xdp);
    let address = |last| IpAddr::from([10, 77, 0, last]);
    let resolve = |last, mac| {
        let answer = source.resolve(address(last), address(last), Some(mac));
        answer.expect("an answer")
    };
    let far = lab.host(1).mac();
    until_true("the far station is known", || resolve(2, far) == Some(far));
    assert_eq!(resolve(51, sibling), None);
    let group = [1, 0, 0x5e, 1, 2, 3];
    assert_eq!(resolve(3, group), None, "a part of it is beside");
    let to = |destination: [u8; 6]| {
        let mut frame = frame(&flow(lab.host(0), lab.host(1), destination), b"x");
        frame[6..12].copy_from_slice(&own);
        frame[12..14].copy_from_slice(&[0x22, 0xf0]);
        frame
    };
    for launch in [None, Some(soon())] {
        for destination in [sibling, group] {
            let told = outcome(&source, &to(destination), launch);
            assert_eq!(told, Outcome::Unreachable, "{destination:x?}");
        }
        assert_eq!(outcome(&source, &to(far), launch), Outcome::Sent);
    }
    // Once it is alone, the group is all on the link.
    run(lab.container(0, 1), "ip", "link del mv1");
    until("the sibling is gone", || {
        (resolve(3, group) == Some(group)).then_some(())
    });
    assert_eq!(outcome(&source, &to(group), None), Outcome::Sent);
}

/// A setting of a host's network, below `/proc/sys/net`.
fn set(host: &Host, setting: &str, value: &str) {
    let _inside = host.enter().expect("the lab is up");
    std::fs::write(format!("/proc/sys/net/{setting}"), value).expect("a setting");
}

/// Makes of Flannel's shape Calico's, as it is with VXLAN or without any overlay: no bridge; a pod has its address alone, and a gateway that is
/// nobody's, for which its end of the pair on the host answers; the host has a route to each pod of its own, and to a
/// block of each other host.
fn as_calico(lab: &Lab, overlay: Overlay, pods: usize) {
    const GATEWAY: &str = "169.254.1.1";
    for (at, other) in [(0, 1), (1, 0)] {
        let host = lab.host(at);
        let ports = run(host, "ip", "-br link show master cni0");
        let ports = ports.lines().map(|line| {
            let name = line.split(['@', ' ']).next().expect("a name");
            let index = run(host, "cat", &format!("/sys/class/net/{name}/ifindex"));
            (name.to_owned(), index.trim().to_owned())
        });
        let ports: Vec<(String, String)> = ports.collect();
        // Proxy ARP answers for what is routed by another interface.
        let far = lab.host(other).address();
        run(host, "ip", &format!("route add default via {far}"));
        for pod in 0..pods {
            let container = lab.container(at, pod);
            let index = run(container, "cat", "/sys/class/net/eth0/iflink");
            let port = ports.iter().find(|(_, own)| *own == index.trim());
            let (port, cali) = (&port.expect("a port").0, format!("cali{pod}"));
            run(host, "ip", &format!("link set {port} nomaster"));
            run(host, "ip", &format!("link set {port} down"));
            run(
                host,
                "ip",
                &format!("link set {port} name {cali} address ee:ee:ee:ee:ee:ee"),
            );
            set(host, &format!("ipv4/conf/{cali}/proxy_arp"), "1");
            set(host, &format!("ipv4/neigh/{cali}/proxy_delay"), "0");
            run(host, "ip", &format!("link set {cali} up"));
            let address = container.address();
            run(container, "ip", "address flush dev eth0");
            run(
                container,
                "ip",
                &format!("address add {address}/32 dev eth0"),
            );
            run(
                container,
                "ip",
                &format!("route add {GATEWAY} dev eth0 scope link"),
            );
            run(
                container,
                "ip",
                &format!("route add default via {GATEWAY} dev eth0"),
            );
        }
        run(host, "ip", "link del cni0");
        for pod in 0..pods {
            let address = lab.container(at, pod).address();
            run(
                host,
                "ip",
                &format!("route add {address}/32 dev cali{pod} scope link"),
            );
        }
        let block = format!("10.88.{}.0", other + 1);
        run(host, "ip", &format!("route del {block}/24"));
        let way = match overlay {
            // As its agent hears of it by BGP.
            Overlay::HostGateway => format!("via {far} dev {}", host.interface()),
            _ => format!("via {block} dev {OVERLAY_DEVICE} onlink"),
        };
        run(host, "ip", &format!("route add {block}/26 {way}"));
    }
}

#[test]
fn pods_of_calicos_shape_reach_those_of_their_node_and_of_others() {
    if skip() {
        return;
    }
    for overlay in [Overlay::Flannel, Overlay::HostGateway] {
        calicos_pods_reach_each_other(overlay);
    }
}

fn calicos_pods_reach_each_other(overlay: Overlay) {
    let lab = lab(overlay, 2);
    as_calico(&lab, overlay, 2);
    let to_others = match overlay {
        Overlay::HostGateway => lab.host(0).interface().to_owned(),
        _ => lab.host(1).address().to_string(),
    };
    let here = lab.container(0, 0);
    for (there, datapath, hops, via) in [
        (lab.container(1, 0), Datapath::Udp, 2, &*to_others),
        (lab.container(1, 0), Datapath::Xdp, 2, &*to_others),
        (lab.container(0, 1), Datapath::Udp, 1, "cali1"),
        (lab.container(0, 1), Datapath::Xdp, 1, "cali1"),
    ] {
        let capture = Capture::open(there).expect("a capture");
        let kernels = over_the_kernel(here, there, &capture);
        let sections = sections(here, overlay, datapath);
        let node = Node::start(lab.host(0), &[], &sections.replace("/24", "/32"));
        let session = attach(&node, "talker");
        let source = frames(&session, datapath);
        let router = [0xee; 6];
        let gateway = [169, 254, 1, 1].into();
        // Until the node has seen the host's tables, that is what it knows.
        until_true("the gateway is known", || {
            let resolved = source.resolve(there.address().into(), gateway, Some(router));
            resolved.expect("an answer") == Some(router)
        });
        let flow = flow(here, there, router);
        for number in 0..5u8 {
            let launch = soon();
            let sent = outcome(&source, &frame(&flow, &[number]), Some(launch));
            assert_eq!(sent, Outcome::Sent, "{overlay:?} {datapath:?} {via}");
            let frame = next(&capture);
            assert!(SystemTai.now() >= launch, "before its time");
            let datagram = parse_udp_frame(&frame, true).expect("intact");
            assert_eq!(datagram.payload, [number]);
            assert_eq!(frame[..12], kernels[..12], "{overlay:?} {datapath:?} {via}");
            assert_eq!(frame[HOP_LIMIT], kernels[HOP_LIMIT]);
            assert_eq!(frame[HOP_LIMIT], 64 - hops);
        }
        let routes = node.admin().network("pods").routes;
        assert_eq!((routes.len(), &*routes[0].via), (1, via));
    }
}

#[test]
fn a_datagram_of_ipv6_is_routed_as_the_kernel_would_have_done() {
    if skip() {
        return;
    }
    /// Where an IPv6 packet in an untagged frame has its hop limit.
    const HOP_LIMIT: usize = 14 + 7;
    let lab = lab(Overlay::Flannel, 2);
    let pod = |at: usize, number: usize| -> IpAddr {
        let text = format!("fd88:{}::{}", at + 1, number + 2);
        text.parse().expect("an address")
    };
    for (at, other) in [(0, 1), (1, 0)] {
        let host = lab.host(at);
        set(host, "ipv6/conf/all/forwarding", "1");
        let subnet = format!("fd88:{}::", at + 1);
        run(
            host,
            "ip",
            &format!("address add {subnet}1/64 dev cni0 nodad"),
        );
        run(
            host,
            "ip",
            &format!("address add {subnet}/128 dev {OVERLAY_DEVICE} nodad"),
        );
        for number in 0..2 {
            let (container, address) = (lab.container(at, number), pod(at, number));
            run(
                container,
                "ip",
                &format!("address add {address}/64 dev eth0 nodad"),
            );
            run(
                container,
                "ip",
                &format!("-6 route add default via {subnet}1"),
            );
        }
        let far = format!("fd88:{}::", other + 1);
        let mac = MacAddress(mac_of(lab.host(other), OVERLAY_DEVICE));
        run(
            host,
            "ip",
            &format!("-6 neighbour add {far} lladdr {mac} dev {OVERLAY_DEVICE} nud permanent"),
        );
        run(
            host,
            "ip",
            &format!("-6 route add {far}/64 via {far} dev {OVERLAY_DEVICE} onlink"),
        );
    }
    let here = lab.container(0, 0);
    let socket = udp_socket(here, (pod(0, 0), PORTS[0]));
    for (at, number, datapath) in [
        (1, 0, Datapath::Udp),
        (1, 0, Datapath::Xdp),
        (0, 1, Datapath::Xdp),
    ] {
        let there = lab.container(at, number);
        let capture = Capture::open(there).expect("a capture");
        let ends = [(pod(0, 0), PORTS[0]), (pod(at, number), PORTS[1])].map(SocketAddr::from);
        socket.send_to(b"kernel", ends[1]).expect("sent");
        let kernels = next(&capture);
        let sections = sections(here, Overlay::Flannel, datapath);
        let sections = sections.replace("/24\"]", &format!("/24\", \"{}/64\"]", pod(0, 0)));
        let node = Node::start(lab.host(0), &[], &sections);
        let session = attach(&node, "talker");
        let source = frames(&session, datapath);
        let (to, next_hop) = match at {
            0 => (there.mac(), ends[1].ip()),
            _ => (
                mac_of(lab.host(0), "cni0"),
                "fd88:1::1".parse().expect("an address"),
            ),
        };
        until_true("the next hop is known", || {
            let resolved = source.resolve(ends[1].ip(), next_hop, Some(to));
            resolved.expect("an answer") == Some(to)
        });
        let flow = UdpFlow {
            src: ends[0],
            dst: ends[1],
            ..flow(here, there, to)
        };
        for number in 0..3u8 {
            let launch = soon();
            let sent = outcome(&source, &frame(&flow, &[number]), Some(launch));
            assert_eq!(sent, Outcome::Sent, "{datapath:?} {at}");
            let frame = next(&capture);
            assert!(SystemTai.now() >= launch, "before its time");
            let datagram = parse_udp_frame(&frame, true).expect("intact");
            assert_eq!((datagram.src, datagram.dst), (flow.src, flow.dst));
            assert_eq!(datagram.payload, [number]);
            assert_eq!(frame[..12], kernels[..12], "{datapath:?} {at}");
            assert_eq!(frame[HOP_LIMIT], kernels[HOP_LIMIT]);
        }
    }
}
