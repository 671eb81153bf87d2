//! What has no launch time, of a pod of which that is taken too.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use takt_testing::{PATIENCE, until};

use super::support::{
    Arrival, DEVICE, PORT, Running, Site, Stopped, arrives, ended_well, exchange, static_talker,
    taprio,
};

/// Datagrams of a talker.
const COUNT: u32 = 50;
const LEAD: &str = "200000";
/// Cycles of which best effort has the second half, and class 5 the first.
pub const HALVES: &str = "sched-entry S 20 5000000 sched-entry S df 5000000";
const CYCLE: i64 = 10_000_000;

/// How many of class 0 were beside best effort's half of the cycle, by the class that the tunnel is marked with.
pub fn beside(arrivals: &[Arrival]) -> usize {
    let beside = arrivals
        .iter()
        .filter(|arrival| arrival.class == 0 && arrival.at.rem_euclid(CYCLE) < CYCLE / 2);
    beside.count()
}

/// A socket of the pod.
fn socket(site: &Site) -> UdpSocket {
    let _inside = site.pod().enter().expect("the lab is up");
    UdpSocket::bind("0.0.0.0:0").expect("bind")
}

/// So many with launch times, of class 5: each is there, once, and none early.
pub fn all_in_time(arrivals: &[Arrival], count: u32) {
    let mut numbers: Vec<u32> = arrivals.iter().map(|arrival| arrival.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..count).collect::<Vec<_>>());
    assert!(
        arrivals
            .iter()
            .all(|arrival| arrival.class == 5 && arrival.after >= 0)
    );
}

pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7 % 251) as u8).collect()
}

/// How many segments the pod's end takes at once.
fn segments(site: &Site) -> u64 {
    let output = std::process::Command::new("ip")
        .args(["-n", site.pod().namespace(), "-json", "-details"])
        .args(["link", "show", "dev", "eth0"])
        .output();
    let links: serde_json::Value = serde_json::from_str(&ended_well(output)).expect("JSON of ip");
    links[0]["gso_max_segs"].as_u64().expect("a number")
}

/// Whether the pod's end leaves checksums to a device.
fn checksums(site: &Site) -> bool {
    let output = site
        .pod()
        .command("ethtool")
        .expect("the lab is up")
        .args(["-k", "eth0"])
        .output();
    ended_well(output).contains("tx-checksumming: on")
}

#[test]
fn it_leaves_inside_the_schedule_and_launch_times_are_kept_beside_it() {
    let site = Site::bridged();
    site.schedule(&taprio(HALVES));
    let wire = site.capture();
    let talker = static_talker();
    let to = site.addresses()[0];
    // Once a millisecond, of which every second one is beside it without us: the test can fail.
    let untimed = || {
        ended_well(site.talker(&talker, "none", to, 500, LEAD).output());
        wire.wait(500)
    };
    let attached = site.attach(&[]);
    let without = beside(&untimed());
    attached.terminate();
    let attached = site.attach(&["--all", "--class", "5"]);
    let with = beside(&untimed());
    let said = site.schedule_status();
    assert!(
        said.contains("what pod sends by c1 without a launch time"),
        "{said}"
    );
    // The kernel there looks at a frame when it comes to it.
    assert!(with * 10 <= without, "{with} with, {without} without");
    site.until_counted("other-sent", 500);

    let sent = pattern(4 << 20);
    let received = site.reader();
    std::thread::scope(|scope| {
        scope.spawn(|| site.write(to, &sent));
        ended_well(site.talker(&talker, "tai", to, COUNT, LEAD).output());
    });
    assert!(received.join().expect("read") == sent);
    let arrivals = wire.wait(COUNT as usize);
    all_in_time(&arrivals, COUNT);
    site.until_counted("sent", COUNT.into());
    // Told of from time to time.
    let segments = sent.len() as u64 / 1500;
    until("all segments are counted", || {
        (site.status().2["other-sent"] > 500 + segments).then_some(())
    });
    let (_, _, counters) = site.status();
    for none in ["other-passed", "other-refused", "late", "no-room"] {
        assert_eq!(counters[none], 0, "{none} of {counters:?}");
    }
    attached.terminate();
}

#[test]
fn where_the_gate_is_closed_for_good_nothing_leaves_beside_it() {
    let site = Site::bridged();
    site.schedule(&taprio("sched-entry S fe 10000000"));
    let wire = site.capture();
    let talker = static_talker();
    let attached = site.attach(&["--all"]);
    for (at, to) in site.addresses().into_iter().enumerate() {
        ended_well(site.talker(&talker, "none", to, COUNT, LEAD).output());
        site.until_counted("other-refused", (at as u64 + 1) * u64::from(COUNT));
    }
    assert_eq!(wire.all(), []);
    attached.terminate();
    ended_well(
        site.talker(&talker, "none", site.addresses()[0], COUNT, LEAD)
            .output(),
    );
    wire.wait(COUNT as usize);
}

#[test]
fn what_the_runtime_does_not_send_overtakes_nothing_that_it_has_for_the_same_place() {
    let site = Site::bridged();
    let talker = static_talker();
    let send = |count, what: &str| {
        let mut talker = site.talker(&talker, "none", site.addresses()[0], count, LEAD);
        ended_well(
            talker
                .args(Some(what).filter(|what| !what.is_empty()))
                .output(),
        );
    };
    // The pod knows its neighbour, whose station is in what it forges.
    let before = site.capture();
    send(1, "");
    before.wait(1);
    let attached = site.attach(&["--all"]);
    let wire = site.capture();
    // The window comes when all of it is there.
    site.schedule_best_effort_after(8);
    send(3, "");
    send(1, "forge");
    site.until_counted("other-taken", 4);
    let numbers: Vec<_> = wire.wait(4).iter().map(|one| one.number).collect();
    assert_eq!(numbers, [0, 1, 2, 0]);
    site.until_counted("other-returned", 1);
    attached.terminate();
}

#[test]
fn tcp_goes_by_the_runtime_by_either_ip_whole_and_in_segments_of_the_mtu() {
    let site = Site::bridged();
    let before = segments(&site);
    let attached = site.attach(&["--all"]);
    assert_eq!(segments(&site), 1);
    let sent = pattern(1 << 20);
    let mut least = 0;
    for to in site.addresses() {
        let received = site.reader();
        site.write(to, &sent);
        assert!(received.join().expect("read") == sent);
        least += sent.len() as u64 / 1500;
        let (_, _, counters) = site.status();
        assert!(counters["other-taken"] > least, "{counters:?}");
        assert_eq!(counters["other-passed"], 0, "{counters:?}");
    }
    attached.terminate();
    assert_eq!(segments(&site), before);
}

#[test]
fn what_the_runtime_does_not_reach_is_the_kernels_in_order_and_no_longer_taken() {
    let site = Site::routed();
    let gateway = site.gateway();
    let there = {
        let _inside = site.lab.host(0).enter().expect("the lab is up");
        UdpSocket::bind((gateway, PORT)).expect("the gateway's address")
    };
    there.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let attached = site.attach(&["--all"]);
    let socket = socket(&site);
    let exchange = |number| exchange(&socket, (&there, gateway), number);
    exchange(0);
    site.until_counted("other-returned", 1);
    // From then on the program knows.
    let mut number = 0;
    until("such packets pass", || {
        let passed = |site: &Site| site.status().2["untimed"];
        let before = passed(&site);
        number += 1;
        exchange(number);
        (passed(&site) > before).then_some(())
    });
    attached.terminate();
}

#[test]
fn without_a_daemon_or_the_command_it_is_the_kernels_again() {
    let mut site = Site::bridged();
    let listener = site.listener();
    let socket = socket(&site);
    let to = site.there().address();
    let exchange = |number| exchange(&socket, (&listener, to), number);
    let before = segments(&site);
    let attached = site.attach(&["--all"]);
    exchange(1);
    site.until_counted("other-sent", 1);
    site.kill_daemon();
    exchange(2);
    site.until_counted("other-returned", 1);
    site.start_daemon();
    let mut number = 2;
    until("the runtime sends again", || {
        number += 1;
        exchange(number);
        (site.status().2["other-sent"] > 1).then_some(())
    });
    attached.kill();
    exchange(0);
    // What it has left is lifted by the next one.
    assert_eq!(segments(&site), 1);
    site.attach(&["--all"]).terminate();
    assert_eq!(segments(&site), before);
}

/// A pod that has ended takes its devices along, of which the command hears.
#[test]
fn the_network_of_a_pod_that_has_ended_is_not_kept() {
    let site = Site::bridged();
    let namespace = format!("{}-gone", site.pod().namespace());
    let of = |namespace: &str, what: &str| {
        let mut ip = std::process::Command::new("ip");
        ended_well(ip.args(["-n", namespace]).args(what.split(' ')).output());
    };
    let ip = |what: [&str; 3]| std::process::Command::new("ip").args(what).output();
    ended_well(ip(["netns", "add", &namespace]));
    let here = site.lab.host(0).namespace();
    of(
        here,
        &format!("link add v9 type veth peer name p9 netns {namespace}"),
    );
    of(here, "link set v9 up");
    let attached = Running::start(&mut site.veth(&["attach", "--device", "v9", "--all"]));
    until("it is taken", || {
        attached
            .output()
            .contains("taking launch times")
            .then_some(())
    });
    ended_well(ip(["netns", "delete", &namespace]));
    until("the device has gone", || {
        let shown = site.veth(&["status", "--device", "v9"]).output();
        (!shown.expect("takt").status.success()).then_some(())
    });
    let (well, said) = attached.end();
    assert!(!well && said.contains("v9"), "{said}");
}

/// Checksums that are left to a device are finished, also behind headers of the pod's own.
#[test]
fn what_a_tunnel_of_the_pods_own_carries_arrives() {
    let mut site = Site::bridged();
    let [_, to] = site.tunnel();
    let listener = site.listener();
    let socket = socket(&site);
    let exchange = |number| exchange(&socket, (&listener, to), number);
    // Who is at the other end is asked for within the tunnel.
    exchange(0);
    let before = checksums(&site);
    let attached = site.attach(&["--all"]);
    assert_eq!((before, checksums(&site)), (true, false));
    (1..=COUNT).for_each(exchange);
    let counted = |name| site.status().2[name];
    until("they are counted", || {
        (counted("other-sent") >= COUNT.into()).then_some(())
    });
    // What is given back, too.
    site.kill_daemon();
    (1..=COUNT).for_each(exchange);
    until("it is counted", || {
        (site.status().2["other-returned"] > 0).then_some(())
    });
    attached.terminate();
    assert!(checksums(&site));
    exchange(0);
}

/// The command ends with an error, and its programs are there until then.
#[test]
fn where_it_ends_with_an_error_what_waits_is_the_kernels_once_or_is_counted() {
    // More than the runtime keeps waiting.
    const MANY: u32 = 400;
    const KEPT: u32 = 256;
    let site = Site::bridged();
    let to = site.there().address();
    let listener = site.listener();
    let socket = socket(&site);
    exchange(&socket, (&listener, to), 0);
    // Best effort has a window for the last four seconds of twenty.
    site.schedule(&taprio(
        "sched-entry S 20 4000000000 sched-entry S 20 4000000000 sched-entry S 20 4000000000 \
         sched-entry S 20 4000000000 sched-entry S df 4000000000",
    ));
    let required = ["--all", "--required", "--class", "5"];
    let attached = site.attach(&required);
    let into_cycle = || takt_clock::Clock::now(&takt_clock::SystemTai).as_nanos() % 20_000_000_000;
    until("the window is far", || {
        (into_cycle() < 10_000_000_000).then_some(())
    });
    // To another port than the others.
    let mut talker = site.talker(&static_talker(), "tai", to.into(), MANY, "30000000");
    ended_well(talker.arg(format!("to={}", PORT + 1)).output());
    for number in 0..MANY {
        let sent = socket.send_to(&number.to_ne_bytes(), (to, PORT));
        sent.expect("sent");
    }
    until("both wait", || {
        let counters = site.status().2;
        let all = |name| counters[name] >= u64::from(MANY);
        (all("taken") && all("other-taken")).then_some(())
    });
    let before = Instant::now();
    site.detach_at_pod();
    let (well, said) = attached.end();
    assert!(!well && said.contains("any more"), "{said}");
    // What circles does so for five seconds.
    assert!(before.elapsed() < Duration::from_secs(4));
    let patience = Some(Duration::from_millis(500));
    listener.set_read_timeout(patience).expect("a timeout");
    let mut datagram = [0; 4];
    let mut numbers = Vec::new();
    while listener.recv(&mut datagram).is_ok() {
        numbers.push(u32::from_ne_bytes(datagram));
    }
    assert_eq!(numbers.last(), Some(&(MANY - 1)), "{numbers:?}");
    assert!(numbers[0] <= KEPT + 1, "{numbers:?}");
    assert!(
        numbers.is_sorted_by(|one, next| one + 1 == *next),
        "{numbers:?}"
    );
    let told = site.unserved()["no-runtime"];
    assert!(told >= (MANY - KEPT).into(), "{told}");
    ended_well(site.veth(&["detach", "--device", DEVICE]).output());
}

/// As one that is busy for ever, or stopped.
#[test]
fn from_a_daemon_or_a_command_that_hangs_the_kernel_takes_over() {
    let site = Site::bridged();
    let listener = site.listener();
    let socket = socket(&site);
    let to = site.there().address();
    let mut number = 0;
    let mut exchange = || {
        number += 1;
        arrives(&socket, (&listener, to), number)
    };
    let attached = site.attach(&["--all"]);
    let counted = |name: &str| site.status().2[name];
    for hanging in [site.daemon(), attached.process()] {
        let stopped = Stopped::new(hanging);
        // By the program, or by the command, which has no answer from the daemon.
        let by_kernel = || counted("other-passed") + counted("other-returned");
        let before = by_kernel();
        until("the kernel sends", || exchange().then_some(()));
        until("it is counted", || (by_kernel() > before).then_some(()));
        drop(stopped);
        let sent = counted("other-sent");
        until("the runtime sends again", || {
            exchange();
            (counted("other-sent") > sent).then_some(())
        });
    }
    attached.terminate();
}

/// As kube-proxy has it: what belongs to no connection that is known is dropped.
#[test]
fn tcp_gets_through_a_firewall_that_follows_connections() {
    let site = Site::routed();
    let on_host = |program: &str, arguments: &[&str]| {
        let command = site.lab.host(0).command(program);
        ended_well(command.expect("the lab is up").args(arguments).output());
    };
    let rules = "add table inet guard; add chain inet guard forward { type filter hook forward priority 0; }; \
                 add rule inet guard forward ct state invalid drop";
    on_host("nft", &[rules]);
    let sent = pattern(1 << 20);
    let exchange = || {
        let received = site.reader();
        site.write(site.addresses()[0], &sent);
        assert!(received.join().expect("read") == sent);
    };
    exchange();
    let attached = site.attach(&["--all"]);
    assert!(attached.output().contains("TCP stays the kernel's"));
    exchange();
    let (_, _, counters) = site.status();
    assert_eq!(counters["other-taken"], 0, "{counters:?}");
    // From then on it does not mind; the command looks from time to time.
    on_host(
        "sysctl",
        &["-q", "net.netfilter.nf_conntrack_tcp_be_liberal=1"],
    );
    until("TCP is the runtime's", || {
        exchange();
        let (_, _, counters) = site.status();
        (counters["other-taken"] > sent.len() as u64 / 1500).then_some(())
    });
    attached.terminate();
}
