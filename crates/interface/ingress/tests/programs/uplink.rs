//! What a host sends by its link without Takt: its own, and what it forwards for pods.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use takt_lab::Host;
use takt_testing::{PATIENCE, until};

use super::others::{HALVES, all_in_time, beside, pattern};
use super::support::{
    ATTACH, PORT, Site, Stopped, arrives, ended_well, exchange, reader, refused, static_talker,
    taprio, write,
};

const COUNT: u32 = 50;
const LEAD: &str = "200000";
/// Datagrams of which it is looked at how many arrive.
const COUNTED: u32 = 200;

/// The devices of the host, by name.
fn devices(site: &Site) -> Vec<String> {
    let output = Command::new("ip")
        .args(["-n", site.lab.host(0).namespace(), "-json", "link"])
        .output();
    let links: serde_json::Value = serde_json::from_str(&ended_well(output)).expect("JSON of ip");
    let links = links.as_array().expect("a list").iter();
    links
        .map(|link| link["ifname"].as_str().expect("a name").to_owned())
        .collect()
}

/// A socket of the host, and one of the other host.
fn sockets(site: &Site) -> (UdpSocket, UdpSocket) {
    let bind = |host, port| {
        let _inside = site.lab.host(host).enter().expect("the lab is up");
        UdpSocket::bind(("0.0.0.0", port)).expect("bind")
    };
    let (socket, listener) = (bind(0, 0), bind(1, PORT));
    // Such that one that is lost does not stop a test.
    let patience = Duration::from_millis(200);
    listener
        .set_read_timeout(Some(patience))
        .expect("a timeout");
    (socket, listener)
}

/// Changes a device of the host.
fn set_link(site: &Site, device: &str, what: &str) {
    let mut command = site.lab.host(0).command("ip").expect("the lab is up");
    command.args(["link", "set", "dev", device]);
    ended_well(command.args(what.split(' ')).output());
}

/// A stream from one host to the other, or back, whole.
fn stream(site: &Site, from: usize, sent: &[u8]) {
    let to = site.lab.host(1 - from);
    let received = reader(to);
    write(site.lab.host(from), to.address().into(), sent);
    assert!(received.join().expect("read") == sent);
}

#[test]
fn what_pods_and_the_host_send_leaves_inside_the_schedule_and_launch_times_are_kept() {
    leaves_inside_the_schedule(&Site::bridged());
}

#[test]
fn by_af_xdp_it_leaves_inside_the_schedule_too() {
    leaves_inside_the_schedule(&Site::by_xdp());
}

fn leaves_inside_the_schedule(site: &Site) {
    site.schedule(&taprio(HALVES));
    let wire = site.capture();
    let talker = static_talker();
    let to = site.addresses()[0];
    let untimed = || {
        ended_well(site.talker(&talker, "none", to, 500, LEAD).output());
        wire.wait(500)
    };
    let without = beside(&untimed());
    let attached = site.attach_uplink();
    let with = beside(&untimed());
    assert!(with * 10 <= without, "{with} with, {without} without");
    site.until_uplink("sent", 500);
    let said = site.schedule_status();
    assert!(
        said.contains("what leaves by eth0 without Takt (takt uplink)"),
        "{said}"
    );

    // Launch times of a pod leave by the same interface, from the runtime's own socket, and are not taken for others.
    let veth = site.attach(&["--class", "5"]);
    let taken = || site.uplink_status().expect("attached")["taken"];
    let before = taken();
    ended_well(site.talker(&talker, "tai", to, COUNT, LEAD).output());
    wire.wait(COUNT as usize);
    let others = taken() - before;
    assert!(others < COUNT.into(), "{others}");
    let sent = pattern(4 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| stream(site, 0, &sent));
        ended_well(site.talker(&talker, "tai", to, COUNT, LEAD).output());
    });
    let arrivals = wire.wait(COUNT as usize);
    all_in_time(&arrivals, COUNT);
    site.until_counted("sent", 2 * u64::from(COUNT));
    let segments = sent.len() as u64 / 1500;
    site.until_uplink("sent", 500 + segments);
    let counters = site.uplink_status().expect("attached");
    for none in ["passed", "refused", "lost", "returned"] {
        assert_eq!(counters[none], 0, "{none} of {counters:?}");
    }
    veth.terminate();
    attached.terminate();
    let said = site.schedule_status();
    assert!(!said.contains("takt uplink"), "{said}");
}

#[test]
fn where_the_gate_is_closed_for_good_nothing_leaves_the_host_beside_it() {
    let site = Site::bridged();
    let talker = static_talker();
    let send = |to| ended_well(site.talker(&talker, "none", to, COUNT, LEAD).output());
    // Who is at the other end is known before: pods ask for that within the tunnel.
    let before = site.capture();
    for to in site.addresses() {
        send(to);
    }
    before.wait(2 * COUNT as usize);
    site.schedule(&taprio("sched-entry S fe 10000000"));
    let wire = site.capture();
    let attached = site.attach_uplink();
    for (at, to) in site.addresses().into_iter().enumerate() {
        send(to);
        site.until_uplink("refused", (at as u64 + 1) * u64::from(COUNT));
    }
    assert_eq!(wire.all(), []);
    attached.terminate();
    send(site.addresses()[0]);
    wire.wait(COUNT as usize);
}

/// What waits for a gate shows no sign of getting on, and nothing may overtake it.
#[test]
fn while_the_gate_is_closed_for_longer_than_a_hang_is_told_by_nothing_leaves_beside_it() {
    // Looks of 0.2 s: longer than the program waits for a sign.
    const LOOKS: u32 = 40;
    let site = Site::bridged();
    let (socket, listener) = sockets(&site);
    let to = site.lab.host(1).address();
    until("the other host is known", || {
        arrives(&socket, (&listener, to), 0).then_some(())
    });
    site.schedule_best_effort_after(3600);
    let attached = site.attach_uplink();
    for number in 1..=LOOKS {
        assert!(!arrives(&socket, (&listener, to), number), "{number}");
    }
    let (taking, counters) = site.uplink_told();
    let counters = counters.expect("attached");
    assert!(taking, "{counters:?}");
    assert!(counters["taken"] >= LOOKS.into(), "{counters:?}");
    for none in ["passed", "sent", "refused", "lost", "returned"] {
        assert_eq!(counters[none], 0, "{none} of {counters:?}");
    }
    attached.terminate();
}

/// The schedule stands on that clock, and the stamps of departure are taken of what the kernel itself sends.
#[test]
fn clock_messages_of_the_hosts_root_pass_and_nobody_elses() {
    let site = Site::routed();
    let (here, there) = (site.lab.host(0), site.lab.host(1));
    for (host, number) in [(here, 1), (there, 2)] {
        let mut ip = host.command("ip").expect("the lab is up");
        let address = format!("address add fd77::{number}/64 dev eth0 nodad");
        ended_well(ip.args(address.split(' ')).output());
    }
    let socket = |host: &Host, port: u16| {
        let _inside = host.enter().expect("the lab is up");
        UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).expect("bind")
    };
    let listeners = [319, 320].map(|port| (port, socket(there, port)));
    let roots = socket(here, 0);
    let users = socket(here, 0);
    rustix::fs::fchown(&users, Some(rustix::fs::Uid::from_raw(1000)), None).expect("given away");
    let pods = of_pod(site.pod());
    let mapped: IpAddr = there.address().to_ipv6_mapped().into();
    let mut datagram = [0; 8];
    let mut send = |from: &UdpSocket, to: IpAddr, octet: u8, passes: bool| {
        for (port, listener) in &listeners {
            from.send_to(&[octet], (to, *port)).expect("sent");
            if passes {
                listener
                    .set_read_timeout(Some(PATIENCE))
                    .expect("a timeout");
                assert_eq!(listener.recv(&mut datagram).expect("one"), 1);
                assert_eq!(datagram[0], octet);
            }
        }
    };
    let six: IpAddr = "fd77::2".parse().expect("an address");
    // Who is at the other end is asked for before.
    for to in [mapped, six] {
        send(&roots, to, 0, true);
    }
    send(&pods, there.address().into(), 1, true);
    site.schedule(&taprio("sched-entry S fe 10000000"));
    let attached = site.attach_uplink();
    let refused = || site.uplink_status().expect("attached")["refused"];
    for (from, to) in [
        (&users, mapped),
        (&users, six),
        (&pods, there.address().into()),
    ] {
        let before = refused();
        until("both ports are taken", || {
            send(from, to, 2, false);
            (refused() >= before + 2).then_some(())
        });
    }
    for to in [mapped, six] {
        // The next that comes: nothing of the others' has.
        send(&roots, to, 4, true);
    }
    let counters = site.uplink_status().expect("attached");
    assert!(counters["passed-by-kind"] >= 4, "{counters:?}");
    attached.terminate();
}

/// The kernel's tunnel puts the host's address on it, and leaves it the pod's socket.
#[test]
fn a_pod_that_sends_from_a_port_of_the_runtimes_is_not_taken_for_it() {
    let site = Site::bridged();
    // Where netfilter looks at what bridges forward, the socket is gone.
    let mut sysctl = site.lab.host(0).command("sysctl").expect("the lab is up");
    sysctl.args(["-q", "-e", "-w", "net.bridge.bridge-nf-call-iptables=0"]);
    ended_well(sysctl.output());
    let talker = static_talker();
    let to = site.addresses()[0];
    let before = site.capture();
    ended_well(site.talker(&talker, "none", to, 1, LEAD).output());
    before.wait(1);
    site.schedule(&taprio("sched-entry S fe 10000000"));
    let wire = site.capture();
    let attached = site.attach_uplink();
    let ports = site.lane_ports();
    assert!(!ports.is_empty());
    for (port, nth) in ports.into_iter().zip(1..) {
        let mut talker = site.talker(&talker, "none", to, COUNT, LEAD);
        ended_well(talker.arg(format!("from={port}")).output());
        site.until_uplink("refused", nth * u64::from(COUNT));
    }
    assert_eq!(wire.all(), []);
    attached.terminate();
}

/// Connection tracking has seen both directions, so that nothing has to be said of it.
#[test]
fn tcp_is_whole_in_both_directions_from_the_host_and_from_pods_through_a_firewall() {
    let site = Site::routed();
    let rules = "add table inet guard; add chain inet guard input { type filter hook input priority 0; }; \
                 add rule inet guard input ct state invalid drop; \
                 add chain inet guard forward { type filter hook forward priority 0; }; \
                 add rule inet guard forward ct state invalid drop";
    let nft = site
        .lab
        .host(0)
        .command("nft")
        .expect("the lab is up")
        .arg(rules)
        .output();
    ended_well(nft);
    let attached = site.attach_uplink();
    let sent = pattern(4 << 20);
    stream(&site, 0, &sent);
    stream(&site, 1, &sent);
    let received = site.reader();
    site.write(site.there().address().into(), &sent);
    assert!(received.join().expect("read") == sent);
    let segments = sent.len() as u64 / 1500;
    site.until_uplink("taken", 2 * segments);
    let counters = site.uplink_status().expect("attached");
    for none in ["passed", "refused", "lost", "returned"] {
        assert_eq!(counters[none], 0, "{none} of {counters:?}");
    }
    attached.terminate();
}

#[test]
fn without_a_daemon_or_the_command_what_leaves_is_the_kernels_again_and_nothing_is_left() {
    let mut site = Site::bridged();
    let before = devices(&site);
    let to = site.lab.host(1).address();
    let (socket, listener) = sockets(&site);
    listener
        .set_read_timeout(Some(PATIENCE))
        .expect("a timeout");
    let exchange = |number| exchange(&socket, (&listener, to), number);
    let attached = site.attach_uplink();
    let second = refused(site.uplink(&ATTACH).output());
    assert!(second.contains("taken already"), "{second}");
    exchange(1);
    site.until_uplink("sent", 1);
    site.kill_daemon();
    exchange(2);
    site.until_uplink("returned", 1);
    site.start_daemon();
    let mut number = 2;
    until("the runtime sends again", || {
        number += 1;
        exchange(number);
        (site.uplink_status()?["sent"] > 1).then_some(())
    });
    attached.kill();
    exchange(0);
    assert_eq!(site.uplink_status(), None);
    // What it has left is lifted by the next one, also where the interface has changed.
    set_link(&site, "eth0", "mtu 1400");
    site.attach_uplink().terminate();
    assert_eq!(site.uplink_status(), None);
    assert_eq!(devices(&site), before);
}

/// As after a kill, and an interface that is another device since, by the same name.
#[test]
fn pairs_of_interfaces_that_are_not_there_any_more_are_taken_away() {
    let site = Site::bridged();
    let before = devices(&site);
    // The number of the loopback interface, which is there.
    for number in [9999, 1] {
        let pair = format!("link add takt-out{number} type veth peer name takt-in{number}");
        let mut ip = site.lab.host(0).command("ip").expect("the lab is up");
        ended_well(ip.args(pair.split(' ')).output());
    }
    site.attach_uplink().terminate();
    let mut left = devices(&site);
    left.retain(|device| !before.contains(device));
    left.sort_unstable();
    assert_eq!(left, ["takt-in1", "takt-out1"]);
}

#[test]
fn the_end_of_the_command_loses_nothing_and_keeps_the_order() {
    // More than the runtime keeps waiting.
    const MANY: u32 = 400;
    let site = Site::bridged();
    let (socket, listener) = sockets(&site);
    let to = site.lab.host(1).address();
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&listener, 4 << 20).expect("memory");
    until("the other host is known", || {
        arrives(&socket, (&listener, to), MANY).then_some(())
    });
    // Class 0 waits for up to 0.2 s.
    site.schedule(&taprio(
        "sched-entry S fe 200000000 sched-entry S ff 100000000",
    ));
    let attached = site.attach_uplink();
    for number in 0..MANY {
        let sent = socket.send_to(&number.to_ne_bytes(), (to, PORT));
        sent.expect("sent");
    }
    attached.terminate();
    let mut numbers = Vec::new();
    let mut datagram = [0; 4];
    while listener.recv(&mut datagram).is_ok() {
        numbers.push(u32::from_ne_bytes(datagram));
    }
    assert_eq!(numbers, (0..MANY).collect::<Vec<_>>());
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let site = Site::bridged();
    let attach = |device, network| {
        let arguments = ["attach", "--device", device, "--network", network];
        refused(site.uplink(&arguments).output())
    };
    let said = attach("eth9", "line");
    assert!(said.contains("no interface eth9"), "{said}");
    // The other one is a tunnel, which the interface is not in.
    for network in ["none", "pods"] {
        let said = attach("eth0", network);
        assert!(said.contains("no such network"), "{said}");
        assert!(said.contains("interface = \"eth0\""), "{said}");
    }
    assert_eq!(site.uplink_status(), None);
    assert_eq!(site.listeners(), ["guest", "pod"]);
    // As long as it runs it has one of its own.
    let attached = site.attach_uplink();
    assert!(site.listeners().contains(&"uplink eth0".to_owned()));
    attached.terminate();
    assert_eq!(site.listeners(), ["guest", "pod"]);
}

/// As one that is busy for ever, or stopped.
#[test]
fn from_a_daemon_or_a_command_that_hangs_the_kernel_takes_over() {
    let site = Site::bridged();
    let (socket, listener) = sockets(&site);
    let to = site.lab.host(1).address();
    let exchange = |number| arrives(&socket, (&listener, to), number);
    let attached = site.attach_uplink();
    let mut number = 0;
    until("one arrives", || {
        number += 1;
        exchange(number).then_some(())
    });
    for hanging in [site.daemon(), attached.process()] {
        // By the program, or by the command, which has no answer from the daemon.
        let by_kernel = || {
            let counters = site.uplink_status().expect("attached");
            counters["passed"] + counters["returned"]
        };
        let before = by_kernel();
        let stopped = Stopped::new(hanging);
        until("the kernel sends", || {
            number += 1;
            exchange(number).then_some(())
        });
        until("it is counted", || (by_kernel() > before).then_some(()));
        if hanging == attached.process() {
            until("it is told", || (!site.uplink_told().0).then_some(()));
        }
        drop(stopped);
        let sent = site.uplink_status().expect("attached")["sent"];
        until("the runtime sends again", || {
            number += 1;
            exchange(number);
            let (taking, counters) = site.uplink_told();
            (taking && counters?["sent"] > sent).then_some(())
        });
    }
    // Whoever ends it need not wait for the daemon.
    let stopped = Stopped::new(site.daemon());
    attached.terminate();
    drop(stopped);
}

#[test]
fn where_the_way_to_the_runtime_is_cut_it_ends_and_the_kernel_sends() {
    let site = Site::bridged();
    for cut in ["down", "mtu 9000", "address 02:00:00:00:00:99"] {
        let attached = site.attach_uplink();
        let out = devices(&site)
            .into_iter()
            .find(|name| name.starts_with("takt-out"));
        let device = match cut {
            "down" => out.expect("the pair"),
            _ => "eth0".to_owned(),
        };
        set_link(&site, &device, cut);
        let (well, said) = attached.end();
        assert!(!well, "{cut}");
        assert!(said.contains("eth0"), "{cut}: {said}");
        assert_eq!(site.uplink_status(), None, "{cut}");
        set_link(&site, "eth0", "mtu 1500");
    }
}

/// Has the kernel make datagrams of such a size of what is sent (`UDP_SEGMENT`).
fn segment(socket: &UdpSocket, size: libc::c_int) {
    // SAFETY: pointer and length describe `size`, which outlives the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const size).cast(),
            size_of_val(&size) as libc::socklen_t,
        )
    };
    assert_eq!(done, 0);
}

/// A socket of a pod.
fn of_pod(pod: &Host) -> UdpSocket {
    let _inside = pod.enter().expect("the lab is up");
    UdpSocket::bind("0.0.0.0:0").expect("bind")
}

/// How many of [`COUNTED`] datagrams arrive that are sent once a millisecond while somebody floods the link, in datagrams that are as long.
fn beside_flood(
    site: &Site,
    (flood, size): (&UdpSocket, usize),
    (socket, length): (&UdpSocket, usize),
    listener: &UdpSocket,
    to: Ipv4Addr,
) -> u32 {
    let dropped = || site.uplink_status().expect("attached")["dropped"];
    // Sixty packets with each call.
    segment(flood, size as libc::c_int);
    let burst = vec![0; 60 * size];
    let victim = (site.there().address(), PORT + 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = flood.send_to(&burst, victim);
                }
            });
        }
        until("the ring is full", || (dropped() > 1000).then_some(()));
        let before = dropped();
        let ended = AtomicBool::new(false);
        let counted = std::thread::scope(|scope| {
            let counted = scope.spawn(|| {
                let (mut counted, mut datagram) = (0, vec![0; length]);
                let mut number = 0;
                while number < COUNTED {
                    if listener.recv(&mut datagram).is_ok() {
                        counted += 1;
                        number = u32::from_ne_bytes(*datagram.first_chunk().expect("four"));
                    }
                }
                ended.store(true, Ordering::Relaxed);
                counted - 1
            });
            let mut numbers = 0_u32..;
            while !ended.load(Ordering::Relaxed) {
                let number = numbers.next().expect("not so many");
                let mut datagram = number.to_ne_bytes().to_vec();
                datagram.resize(length, 0);
                socket.send_to(&datagram, (to, PORT)).expect("sent");
                std::thread::sleep(Duration::from_millis(1));
            }
            counted.join().expect("no panic")
        });
        // It went on all the while.
        assert!(dropped() > before);
        stop.store(true, Ordering::Relaxed);
        counted
    })
}

/// A download, or a neighbour that means harm.
#[test]
fn a_pod_that_floods_the_link_leaves_room_to_the_host() {
    let site = Site::bridged();
    let (socket, listener) = sockets(&site);
    let to = site.lab.host(1).address();
    let attached = site.attach_uplink();
    let flood = (&of_pod(site.pod()), 1000);
    let received = beside_flood(&site, flood, (&socket, 4), &listener, to);
    assert!(received * 20 >= COUNTED * 19, "{received} of {COUNTED}");
    attached.terminate();
}

/// Both are behind the same tunnel, and their packets are as long.
#[test]
fn a_pod_that_floods_the_link_leaves_room_to_other_pods() {
    let site = Site::of_two_pods();
    let listener = site.listener();
    let patience = Duration::from_millis(200);
    listener
        .set_read_timeout(Some(patience))
        .expect("a timeout");
    let attached = site.attach_uplink();
    let flood = (&of_pod(site.pod()), 100);
    let socket = of_pod(site.lab.container(0, 1));
    let to = site.there().address();
    let received = beside_flood(&site, flood, (&socket, 100), &listener, to);
    assert!(received * 20 >= COUNTED * 19, "{received} of {COUNTED}");
    attached.terminate();
}
