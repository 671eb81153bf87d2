//! Launch times that are kept.

use takt_testing::until;

use super::guest;
use super::support::{Cgroup, DEVICE, Site, ended_well, go_talker, refused, static_talker};

/// Datagrams of a talker.
const COUNT: u32 = 50;
/// Long enough ahead that a busy machine is not what is tested, microseconds.
const LEAD: &str = "200000";

/// All numbers, once each, none before its launch time.
fn in_time(arrivals: &[super::support::Arrival]) {
    let mut numbers: Vec<u32> = arrivals.iter().map(|arrival| arrival.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..COUNT).collect::<Vec<_>>());
    let early: Vec<_> = arrivals
        .iter()
        .filter(|arrival| arrival.after < 0)
        .collect();
    assert!(early.is_empty(), "{early:?}");
}

#[test]
fn programs_that_cannot_be_preloaded_have_their_launch_times_by_either_clock_and_ip() {
    let site = Site::bridged();
    let wire = site.capture();
    let talkers = [Some(static_talker()), go_talker()];
    // Without us every one of them is early: the test can fail.
    let talker = static_talker();
    ended_well(
        site.talker(&talker, "tai", site.addresses()[0], COUNT, LEAD)
            .output(),
    );
    assert!(
        wire.wait(COUNT as usize)
            .iter()
            .all(|arrival| arrival.after < 0)
    );
    let attached = site.attach(&[]);
    let mut sent = 0;
    for talker in talkers.iter().flatten() {
        for clock in ["tai", "monotonic", "realtime"] {
            for to in site.addresses() {
                ended_well(site.talker(talker, clock, to, COUNT, LEAD).output());
                in_time(&wire.wait(COUNT as usize));
                sent += u64::from(COUNT);
                site.until_counted("sent", sent);
            }
        }
    }
    // Its kernel checks what it receives.
    let (taking, required, counters) = site.status();
    assert_eq!((taking, required), (true, false));
    assert_eq!(counters["taken"], sent);
    assert_eq!(counters["realtime"], sent / 3);
    let others = ["late", "no-room", "given-back", "refused", "lost"];
    assert!(
        others.iter().all(|name| counters[*name] == 0),
        "{counters:?}"
    );
    until("all have left", || {
        let left: u64 = site.departures().iter().map(|class| class.sent).sum();
        (left == sent).then_some(())
    });
    attached.terminate();
    assert_eq!(site.status(), (false, false, [].into()));
}

#[test]
fn frames_with_a_tag_are_of_its_priority_where_the_policy_has_its_vlan() {
    let site = Site::bridged();
    let wire = site.capture();
    let to = site.addresses()[0];
    // The pod knows its neighbour.
    ended_well(site.talker(&static_talker(), "none", to, 1, "0").output());
    wire.wait(1);
    let attached = site.attach(&["--required"]);
    for what in ["vlan", "own"] {
        let mut talker = site.talker(&static_talker(), "tai", to, COUNT, LEAD);
        ended_well(talker.arg(what).output());
    }
    let arrivals = wire.wait(COUNT as usize);
    in_time(&arrivals);
    assert!(arrivals.iter().all(|arrival| arrival.class == 5));
    site.until_counted("sent", COUNT.into());
    site.until_counted("vlan-tag", COUNT.into());
    assert_eq!(wire.all(), []);
    attached.terminate();
}

#[test]
fn programs_of_the_pods_cgroup_name_tai_without_a_capability() {
    let site = Site::bridged();
    let wire = site.capture();
    let cgroup = Cgroup::new();
    let path = cgroup.path();
    let path = path.to_str().expect("a path");
    let to = site.addresses()[0];
    let talkers = [Some(static_talker()), go_talker()];
    let talkers: Vec<_> = talkers.iter().flatten().collect();
    let unprivileged = |talker, clock| {
        let command = site.talker(talker, clock, to, COUNT, LEAD);
        cgroup.without_privilege(site.pod(), &command)
    };
    // The kernel alone does not let them.
    let attached = site.attach(&[]);
    for talker in &talkers {
        let said = refused(unprivileged(talker, "tai").output());
        assert!(said.contains("ermitted"), "{said}");
    }
    attached.terminate();
    let attached = site.attach(&["--required", "--cgroup", path]);
    for talker in &talkers {
        for clock in ["tai", "monotonic"] {
            ended_well(unprivileged(talker, clock).output());
            in_time(&wire.wait(COUNT as usize));
        }
    }
    // It is of that clock alone, and of those in the cgroup.
    refused(unprivileged(talkers[0], "realtime").output());
    attached.terminate();
    refused(unprivileged(talkers[0], "tai").output());
    let no_cgroup = [
        "attach",
        "--device",
        DEVICE,
        "--required",
        "--cgroup",
        "/proc",
    ];
    let said = refused(site.veth(&no_cgroup).output());
    assert!(said.contains("below the mount of cgroup v2"), "{said}");
}

#[test]
fn what_has_no_launch_time_passes_untouched_and_tcp_is_not_taken_for_timed() {
    let site = Site::bridged();
    let wire = site.capture();
    // Required: nothing of this may be dropped.
    let attached = site.attach(&["--required"]);
    let talker = static_talker();
    for (clock, to) in [("none", 0), ("none", 1)] {
        ended_well(
            site.talker(&talker, clock, site.addresses()[to], COUNT, LEAD)
                .output(),
        );
        let arrivals = wire.wait(COUNT as usize);
        assert!(
            arrivals.iter().all(|arrival| arrival.after < 0),
            "{arrivals:?}"
        );
    }
    // TCP paces by times of delivery of its own.
    let received = site.reader();
    site.write(site.addresses()[0], &vec![7; 4 << 20]);
    assert_eq!(received.join().expect("read").len(), 4 << 20);
    let (_, _, counters) = site.status();
    assert_eq!(
        (counters["taken"], counters["dropped"]),
        (0, 0),
        "{counters:?}"
    );
    assert!(counters["untimed"] > 2 * u64::from(COUNT));
    attached.terminate();
}

/// A VXLAN in the pod: the kernel leaves what is sent by it its socket, its time, and a checksum to be finished.
#[test]
fn within_a_tunnel_of_the_pods_own_launch_times_are_kept_and_tcp_is_not_taken_for_timed() {
    let site = Site::bridged();
    let [_, to] = site.tunnel();
    let listener = site.listener();
    let attached = site.attach(&["--required"]);
    ended_well(
        site.talker(&static_talker(), "tai", to.into(), COUNT, LEAD)
            .output(),
    );
    for number in 0..COUNT {
        let mut datagram = [0; 64];
        assert_eq!(listener.recv(&mut datagram).expect("a datagram"), 32);
        assert_eq!(datagram[8..12], number.to_ne_bytes());
        let launch = i64::from_ne_bytes(datagram[..8].try_into().expect("eight"));
        let now = takt_clock::Clock::now(&takt_clock::SystemTai).as_nanos();
        assert!(now >= launch, "{} ns early", launch - now);
    }
    site.until_counted("sent", COUNT.into());
    let received = site.reader();
    site.write(to.into(), &vec![7; 1 << 20]);
    assert_eq!(received.join().expect("read").len(), 1 << 20);
    let (_, _, counters) = site.status();
    assert_eq!(
        (counters["taken"], counters["dropped"]),
        (COUNT.into(), 0),
        "{counters:?}"
    );
    attached.terminate();
}

#[test]
fn the_class_is_that_of_the_dscp_or_the_operators() {
    let site = Site::bridged();
    let talker = static_talker();
    let to = site.addresses()[0];
    let sent = |class: usize| site.departures()[class].sent;
    let attached = site.attach(&[]);
    // Expedited forwarding; the priority of the socket ends at the veth.
    for what in ["tos=184", "prio=3"] {
        ended_well(
            site.talker(&talker, "tai", to, COUNT, LEAD)
                .arg(what)
                .output(),
        );
    }
    site.until_counted("sent", 2 * u64::from(COUNT));
    let each = u64::from(COUNT);
    until("both have left", || {
        ((sent(0), sent(5)) == (each, each)).then_some(())
    });
    assert_eq!(sent(3), 0);
    attached.terminate();
    let attached = site.attach(&["--class", "3"]);
    ended_well(site.talker(&talker, "tai", to, COUNT, LEAD).output());
    site.until_counted("sent", COUNT.into());
    until("all have left", || (sent(3) == each).then_some(()));
    attached.terminate();
    // What the listener may not use is refused by the lane.
    let attached = site.attach(&["--class", "6"]);
    ended_well(site.talker(&talker, "tai", to, COUNT, LEAD).output());
    site.until_counted("refused", COUNT.into());
    attached.terminate();
}

#[test]
fn what_is_too_late_is_dropped_and_counted_as_for_other_programs() {
    let site = Site::bridged();
    let wire = site.capture();
    let attached = site.attach(&[]);
    // Beyond what the node tolerates.
    let to = site.addresses()[0];
    ended_well(
        site.talker(&static_talker(), "monotonic", to, COUNT, "-2000000")
            .output(),
    );
    site.until_counted("late", COUNT.into());
    assert_eq!(wire.all(), []);
    attached.terminate();
}

/// Whoever is on the link may say that an address is theirs.
#[test]
fn what_is_for_a_station_reaches_it_whatever_the_pods_neighbour_cache_was_made_to_say() {
    let site = Site::bridged();
    site.enter_there();
    let to = site.addresses()[0];
    let mut poisoned = site.pod().command("ip").expect("the lab is up");
    poisoned
        .args(["neigh", "replace", &to.to_string()])
        .args(["lladdr", &guest::mac(), "dev", "eth0"])
        .args(["nud", "permanent"]);
    ended_well(poisoned.output());
    let listener = site.listener();
    let attached = site.attach(&["--required"]);
    let talker = static_talker();
    ended_well(site.talker(&talker, "tai", to, COUNT, LEAD).output());
    site.until_counted("sent", COUNT.into());
    let all = guest::numbers(&listener, COUNT as usize);
    assert_eq!(all, (0..COUNT).collect::<Vec<_>>());
    attached.terminate();
}

#[test]
fn large_datagrams_and_fragments_leave_in_time() {
    let site = Site::bridged();
    let listener = site.listener();
    let attached = site.attach(&["--required"]);
    for (what, length) in [("large", 1400), ("long", 4000)] {
        let to = site.addresses()[0];
        ended_well(
            site.talker(&static_talker(), "tai", to, COUNT, LEAD)
                .arg(what)
                .output(),
        );
        for number in 0..COUNT {
            let mut datagram = [0; 8192];
            // The kernel there has checked the sum, and put it together.
            let received = listener.recv(&mut datagram).expect("a datagram");
            assert_eq!(received, length);
            assert_eq!(datagram[8..12], number.to_ne_bytes());
            let launch = i64::from_ne_bytes(datagram[..8].try_into().expect("eight"));
            let now = takt_clock::Clock::now(&takt_clock::SystemTai).as_nanos();
            assert!(now >= launch, "{} ns early", launch - now);
        }
    }
    attached.terminate();
}

#[test]
fn over_a_routed_network_what_is_for_the_other_node_is_in_time_and_what_is_for_this_one_arrives() {
    let site = Site::routed();
    let wire = site.capture();
    let talker = static_talker();
    let attached = site.attach(&[]);
    ended_well(
        site.talker(&talker, "monotonic", site.addresses()[0], COUNT, LEAD)
            .output(),
    );
    in_time(&wire.wait(COUNT as usize));
    site.until_counted("sent", COUNT.into());
    // The gateway is this node's kernel, which the runtime does not stand in for.
    let gateway = site.gateway();
    let listener = {
        let _inside = site.lab.host(0).enter().expect("the lab is up");
        std::net::UdpSocket::bind((gateway, super::support::PORT)).expect("the gateway's address")
    };
    listener
        .set_read_timeout(Some(takt_testing::PATIENCE))
        .expect("a timeout");
    ended_well(
        site.talker(&talker, "tai", gateway.into(), COUNT, LEAD)
            .output(),
    );
    for number in 0..COUNT {
        let mut datagram = [0; 64];
        assert_eq!(listener.recv(&mut datagram).expect("a datagram"), 32);
        assert_eq!(datagram[8..12], number.to_ne_bytes());
    }
    site.until_counted("station-out-of-reach", COUNT.into());
    site.until_counted("given-back", COUNT.into());
    attached.terminate();
}
