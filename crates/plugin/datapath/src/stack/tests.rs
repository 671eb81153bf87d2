//! The monitor against real tables: those of two hosts on a cable.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use takt_lab::{Host, Lab, LabConfig, LinkState};
use takt_wire::ethernet::MacAddress;

use super::{
    DeviceKind, InterfaceState, NextHop, NextHops, Root, Taprio, TaprioError, attached,
    egress_interface, root,
};

/// How long to wait for what has to happen before it is called lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two hosts; `None`, and a note, without root.
fn hosts() -> Option<Lab> {
    // SAFETY: no arguments and no failure.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: network namespaces need root");
        return None;
    }
    Some(Lab::scratch(&LabConfig::default()).expect("make two hosts"))
}

fn ip(host: &Host, arguments: &str) -> Output {
    let mut command = host.command("ip").expect("enter the host");
    let output = command
        .args(arguments.split_whitespace())
        .output()
        .expect("run ip");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "ip {arguments} on {}: {errors}",
        host.name()
    );
    output
}

/// The monitor of a host, and the index of its interface.
fn monitor(host: &Host) -> (NextHops, u32) {
    let _inside = host.enter().expect("enter the host");
    // SAFETY: the name is a string with its terminator.
    let ifindex = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) };
    (NextHops::start().expect("start the monitor"), ifindex)
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("address")
}

/// Waits for a publication that is so, by the generation as a lane does, and returns what `look`
/// finds then.
fn until<T>(monitor: &NextHops, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut seen = None;
    loop {
        let now = monitor.generation();
        // Nothing is to be seen between two generations.
        if seen != Some(now) {
            seen = Some(now);
            if let Some(found) = look() {
                return found;
            }
        }
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::yield_now();
    }
}

fn resolved(next_hop: Option<Arc<NextHop>>) -> Option<Arc<NextHop>> {
    next_hop.filter(|next_hop| next_hop.up && next_hop.dst_mac.is_some())
}

#[test]
fn a_neighbour_is_resolved_and_all_that_a_frame_needs_is_told() {
    let Some(lab) = hosts() else { return };
    let (left, right) = (lab.host(0), lab.host(1));
    let (monitor, ifindex) = monitor(left);
    let destination = monitor
        .watch(right.address().into(), None, 0)
        .expect("watch");
    let next_hop = until(&monitor, "resolving", || resolved(destination.next_hop()));
    let expected = NextHop {
        device: ifindex,
        kind: DeviceKind::Veth,
        gateway: None,
        ifindex,
        vlan: None,
        src_mac: MacAddress(left.mac()),
        dst_mac: Some(MacAddress(right.mac())),
        src_ip: left.address().into(),
        mtu: 1500,
        up: true,
    };
    assert_eq!(*next_hop, expected);
}

#[test]
fn a_source_address_decides_the_route_where_policy_routing_says_so() {
    let Some(lab) = hosts() else { return };
    let left = lab.host(0);
    ip(left, "address add 10.77.0.101/24 dev eth0");
    ip(left, "route add unreachable 10.77.0.2/32 table 77");
    ip(left, "rule add from 10.77.0.101 table 77");
    let (monitor, _) = monitor(left);
    let watch = |source: &str| {
        monitor
            .watch(address("10.77.0.2"), Some(address(source)), 0)
            .expect("watch")
    };
    assert!(watch("10.77.0.1").next_hop().is_some());
    let steered = watch("10.77.0.101");
    assert_eq!(steered.next_hop(), None);
    ip(left, "rule del from 10.77.0.101 table 77");
    let next_hop = until(&monitor, "following the rule", || {
        resolved(steered.next_hop())
    });
    assert_eq!(next_hop.src_ip, address("10.77.0.101"));
}

#[test]
fn local_unreachable_and_unknown_destinations_have_no_next_hop() {
    let Some(lab) = hosts() else { return };
    let left = lab.host(0);
    for kind in ["unreachable", "prohibit", "blackhole"] {
        ip(left, &format!("route add {kind} 10.99.0.{}/32", kind.len()));
    }
    let (monitor, _) = monitor(left);
    let to = [
        "127.0.0.1",
        "10.77.0.1",
        "10.77.0.255",
        "::1",
        "10.99.0.11",
        "10.99.0.8",
        "10.99.0.9",
        "192.0.2.1",
        "2001:db8::1",
    ];
    for destination in to {
        let watched = monitor.watch(address(destination), None, 0).expect("watch");
        assert_eq!(watched.next_hop(), None, "{destination}");
    }
}

#[test]
fn a_link_that_goes_down_and_comes_back_is_told() {
    let Some(lab) = hosts() else { return };
    let (left, right) = (lab.host(0), lab.host(1));
    let (monitor, ifindex) = monitor(left);
    let interface = monitor.watch_interface(ifindex).expect("watch");
    let destination = monitor
        .watch(right.address().into(), None, 0)
        .expect("watch");
    until(&monitor, "resolving", || resolved(destination.next_hop()));
    right.link(LinkState::Down).expect("pull the cable");
    until(&monitor, "losing the carrier", || {
        interface.state().filter(|state| !state.up)
    });
    until(&monitor, "losing the next hop", || {
        match destination.next_hop() {
            Some(next_hop) if next_hop.up => None,
            other => Some(other),
        }
    });
    right.link(LinkState::Up).expect("plug in the cable");
    until(&monitor, "getting the carrier back", || {
        interface.state().filter(|state| state.up)
    });
    until(&monitor, "resolving again", || {
        resolved(destination.next_hop())
    });
}

#[test]
fn an_interface_tells_its_changes_to_watchers_and_to_callers() {
    let Some(lab) = hosts() else { return };
    let left = lab.host(0);
    let (monitor, ifindex) = monitor(left);
    let told = Arc::new(Mutex::new(Vec::<Option<InterfaceState>>::new()));
    let log = Arc::clone(&told);
    let interface = monitor
        .on_interface_change(ifindex, move |state| {
            log.lock().expect("log").push(state.cloned())
        })
        .expect("watch");
    // The first call has been made before the watch begins.
    assert_eq!(told.lock().expect("log").len(), 1);
    let state = interface.state().expect("there is one");
    assert_eq!(
        (state.name.as_str(), state.mtu, state.up),
        ("eth0", 1500, true)
    );
    assert_eq!(state.mac, Some(MacAddress(left.mac())));
    assert!(
        state.addresses.contains(&left.address().into()),
        "{state:?}"
    );

    ip(left, "address add fd77::1/64 dev eth0 nodad");
    ip(left, "link set eth0 mtu 1400 address 02:00:00:00:00:77");
    until(&monitor, "following the interface", || {
        interface.state().filter(|state| {
            state.mtu == 1400
                && state.mac == Some(MacAddress([2, 0, 0, 0, 0, 0x77]))
                && state.addresses.contains(&address("fd77::1"))
        })
    });
    ip(left, "link del eth0");
    until(&monitor, "missing the interface", || {
        interface.state().is_none().then_some(())
    });
    let start = Instant::now();
    while !matches!(told.lock().expect("log").last(), Some(None)) {
        assert!(
            start.elapsed() < PATIENCE,
            "the caller is not told of the end"
        );
    }
}

/// Also where it is quicker than the end of a burst of changes.
#[test]
fn an_interface_that_is_replaced_by_one_of_its_index_is_told_to_have_gone() {
    let Some(lab) = hosts() else { return };
    let left = lab.host(0);
    let (monitor, ifindex) = monitor(left);
    let told = Arc::new(Mutex::new(Vec::<bool>::new()));
    let log = Arc::clone(&told);
    let interface = monitor
        .on_interface_change(ifindex, move |state| {
            log.lock().expect("log").push(state.is_some())
        })
        .expect("watch");
    let anew = std::env::temp_dir().join(format!("takt-anew-index-{}", std::process::id()));
    let commands =
        format!("link del eth0\nlink add eth0 index {ifindex} mtu 1400 type veth peer name far0\n");
    std::fs::write(&anew, commands).expect("write");
    ip(left, &format!("-batch {}", anew.display()));
    std::fs::remove_file(&anew).expect("ours");
    until(&monitor, "following the new one", || {
        interface.state().filter(|state| state.mtu == 1400)
    });
    let start = Instant::now();
    while told.lock().expect("log").last() != Some(&true) {
        assert!(start.elapsed() < PATIENCE, "the caller is told of no state");
    }
    let told = told.lock().expect("log").clone();
    assert!(
        told.starts_with(&[true]) && told.contains(&false),
        "{told:?}"
    );
}

#[test]
fn an_interface_that_is_not_there_has_no_state() {
    let Some(lab) = hosts() else { return };
    let (monitor, _) = monitor(lab.host(0));
    assert_eq!(
        monitor.watch_interface(12_345).expect("watch").state(),
        None
    );
}

#[test]
fn destinations_no_longer_watched_are_forgotten_and_the_generation_rests() {
    let Some(lab) = hosts() else { return };
    let (left, right) = (lab.host(0), lab.host(1));
    let (monitor, _) = monitor(left);
    let kept = monitor
        .watch(right.address().into(), None, 0)
        .expect("watch");
    until(&monitor, "resolving", || resolved(kept.next_hop()));
    drop(
        monitor
            .watch(address("10.77.0.50"), None, 0)
            .expect("watch"),
    );
    let before = monitor.generation();
    // A neighbour that only the forgotten destination needed, and a route that nobody does.
    ip(
        left,
        "neigh replace 10.77.0.50 lladdr 02:00:00:00:00:50 dev eth0",
    );
    ip(left, "route add 10.98.0.0/24 dev eth0");
    // The first of these may be handled before the events, the second comes after them.
    for _ in 0..2 {
        let after = monitor.watch(address("10.77.0.1"), None, 0).expect("watch");
        assert_eq!(after.next_hop(), None);
    }
    // Each new destination raises it once, when the tables have been asked about it.
    assert_eq!(monitor.generation(), before + 2);
}

#[test]
fn a_stale_neighbour_is_confirmed_again() {
    let Some(lab) = hosts() else { return };
    let (left, right) = (lab.host(0), lab.host(1));
    let (monitor, _) = monitor(left);
    let destination = monitor
        .watch(right.address().into(), None, 0)
        .expect("watch");
    until(&monitor, "resolving", || resolved(destination.next_hop()));
    ip(left, "neigh change 10.77.0.2 dev eth0 nud stale");
    // The kernel probes an entry that is in use, and the far end answers.
    let start = Instant::now();
    loop {
        let shown = ip(left, "neigh show 10.77.0.2").stdout;
        if !String::from_utf8_lossy(&shown).contains("STALE") {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the entry stays stale");
    }
    assert!(resolved(destination.next_hop()).is_some());
}

#[test]
fn a_path_mtu_that_the_kernel_has_learnt_is_taken_over() {
    let Some(lab) = hosts() else { return };
    let (left, right) = (lab.host(0), lab.host(1));
    // The right host forwards to a link of smaller MTU that leads to nobody, and says so.
    ip(right, "link add small0 type veth peer name small1");
    ip(right, "link set small0 mtu 1280 up");
    ip(right, "link set small1 up");
    ip(right, "address add 10.66.0.1/24 dev small0");
    ip(
        right,
        "neigh add 10.66.0.2 lladdr 02:00:00:00:00:66 dev small0",
    );
    let status = right
        .command("sysctl")
        .expect("enter")
        .args(["-qw", "net.ipv4.ip_forward=1"])
        .status();
    assert!(status.expect("run sysctl").success());
    ip(left, "route add 10.66.0.0/24 via 10.77.0.2");
    let (monitor, _) = monitor(left);
    let destination = monitor.watch(address("10.66.0.2"), None, 0).expect("watch");
    let next_hop = until(&monitor, "resolving", || resolved(destination.next_hop()));
    assert_eq!(next_hop.mtu, 1500);
    let socket = {
        let _inside = left.enter().expect("enter the host");
        UdpSocket::bind("10.77.0.1:0").expect("bind")
    };
    let far = SocketAddr::new(address("10.66.0.2"), 9);
    let start = Instant::now();
    while destination
        .next_hop()
        .is_none_or(|next_hop| next_hop.mtu != 1280)
    {
        // Refused once the kernel knows.
        let _ = socket.send_to(&[0; 1400], far);
        assert!(start.elapsed() < PATIENCE, "the path MTU is not followed");
        std::thread::yield_now();
    }
}

#[test]
fn packets_leave_by_the_routes_interface_and_for_a_vlan_by_the_one_below() {
    let Some(lab) = hosts() else { return };
    let host = lab.host(0);
    let mut vlan = host.command("ip").expect("enter the host");
    vlan.args("link add link eth0 name eth0.5 type vlan id 5".split(' '));
    // A kernel without VLAN interfaces has the first half of this to show.
    let vlan = vlan.status().expect("run ip").success();
    if vlan {
        ip(host, "address add 10.55.0.1/24 dev eth0.5");
        ip(host, "link set eth0.5 up");
    }
    let _inside = host.enter().expect("enter the host");
    // SAFETY: the name is a string with its terminator.
    let ifindex = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) };
    let neighbour = IpAddr::from(lab.host(1).address());
    let towards = |destination, source| egress_interface(destination, source).expect("an answer");
    assert_eq!(towards(neighbour, None), Some(ifindex));
    let own = Some(IpAddr::from(host.address()));
    assert_eq!(towards(neighbour, own), Some(ifindex));
    let tagged = towards(address("10.55.0.2"), None);
    assert_eq!(tagged, vlan.then_some(ifindex));
    assert_eq!(towards(address("192.0.2.1"), None), None);
    assert_eq!(towards(neighbour, Some(address("192.0.2.9"))), None);
}

#[test]
fn taprio_is_put_where_the_kernel_has_it_and_nothing_of_others_is_touched() {
    let Some(lab) = hosts() else { return };
    let host = lab.host(0);
    ip(
        host,
        "link add many numtxqueues 4 numrxqueues 4 type veth peer name far numtxqueues 4 numrxqueues 4",
    );
    ip(host, "address add 10.99.0.1/24 dev many");
    ip(host, "link set many up");
    let tc = |arguments: &str| {
        let mut command = host.command("tc").expect("enter the host");
        let done = command.args(arguments.split_whitespace()).status();
        assert!(done.expect("run tc").success(), "{arguments}");
    };
    let _inside = host.enter().expect("enter the host");
    let many = attached(address("10.99.0.1")).expect("an answer");
    let many = many.expect("the interface");
    assert_eq!(
        (many.name.as_str(), many.mtu, many.queues),
        ("many", 1500, 4)
    );
    assert_eq!(attached(address("10.99.0.9")).expect("an answer"), None);
    let taprio = Taprio {
        base_time: takt_time::TaiTime::from_nanos(0),
        others: vec![(true, 1_000_000), (false, 1_000_000)],
        own_queues: 1,
        queues: 4,
        offload: false,
    };
    let single = Taprio {
        queues: 1,
        ..taprio.clone()
    };
    assert!(matches!(single.program(&many), Err(TaprioError::Queues(1))));
    match taprio.program(&many) {
        Err(TaprioError::Absent) => {
            assert_eq!(root(many.ifindex).expect("an answer"), Root::Default)
        }
        programmed => {
            programmed.expect("programmed");
            assert_eq!(root(many.ifindex).expect("an answer"), Root::Own);
            assert!(many.release().expect("released"));
        }
    }
    assert!(!many.release().expect("nothing of ours"));
    tc("qdisc add dev many root handle 5: pfifo");
    let foreign = Root::Foreign("pfifo 5:".into());
    assert_eq!(root(many.ifindex).expect("an answer"), foreign);
    let refused = taprio.program(&many).expect_err("somebody else's");
    assert!(
        refused.to_string().contains("tc qdisc del dev many root"),
        "{refused}"
    );
    assert!(!many.release().expect("nothing of ours"));
    assert_eq!(root(many.ifindex).expect("an answer"), foreign);
}
