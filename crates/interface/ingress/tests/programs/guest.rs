//! Virtual machines, whose time-sensitive frames leave by the runtime and all else by the kernel; and drivers and VMMs that do what none
//! may. The guest is one of ours ([`Vmm`]); real ones are in `qemu`.

use std::io::Write;
use std::net::{Ipv6Addr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::Command;

use takt_clock::{Clock, SystemTai};
use takt_lab::Host;
use takt_testing::until;
use takt_wire::checksum::PartialSum;
use vmm_sys_util::eventfd::EFD_NONBLOCK;

use super::support::{GUEST, GUEST_MAC, PORT, Site, TAP, refused};
use super::vmm::{NEXT, RING, Vmm, WRITE};

/// A datagram of the guest's, its DSCP's class selector a class.
fn datagram(site: &Site, class: u8, number: u32) -> Vec<u8> {
    let there = site.there();
    // As the talkers' payload: a launch time, which nobody here asks for, and the number.
    let payload = [&0u64.to_ne_bytes()[..], &number.to_ne_bytes()].concat();
    let length = 8 + payload.len() as u16;
    let mut header = vec![0x45, class << 5];
    header.extend((20 + length).to_be_bytes());
    header.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    header.extend(GUEST.octets());
    header.extend(there.address().octets());
    let checksum = PartialSum::of(&header).checksum();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = [&there.mac()[..], &GUEST_MAC, &[8, 0], &header].concat();
    frame.extend(5000u16.to_be_bytes());
    frame.extend(PORT.to_be_bytes());
    frame.extend(length.to_be_bytes());
    // No checksum (RFC 768).
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// The same, from a station that is not the guest's.
fn foreign(site: &Site, number: u32) -> Vec<u8> {
    let mut frame = datagram(site, 0, number);
    frame[6..12].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    frame
}

/// The guest's question for an address.
fn arp() -> Vec<u8> {
    let asks = [&[0, 1, 8, 0, 6, 4, 0, 1], &GUEST_MAC[..], &GUEST.octets()].concat();
    [&[0xff; 6][..], &GUEST_MAC, &[8, 6], &asks, &[0; 10]].concat()
}

fn site() -> Site {
    let site = Site::bridged();
    site.add_tap();
    site
}

/// Receives so many datagrams: their numbers, in the order in which they come.
pub fn numbers(socket: &std::net::UdpSocket, count: usize) -> Vec<u32> {
    let mut buffer = [0; 64];
    let one = |buffer: &mut [u8; 64]| {
        let length = socket.recv(buffer).expect("a datagram");
        assert!(length >= 12);
        u32::from_ne_bytes(buffer[8..12].try_into().expect("four"))
    };
    (0..count).map(|_| one(&mut buffer)).collect()
}

#[test]
fn queues_of_a_class_leave_by_the_runtime_and_all_else_is_the_kernels_as_is_what_arrives() {
    let site = site();
    let (listener, wire) = (site.listener(), site.capture());
    let device = site.attach_guest(&["--queue", "kernel", "--queue", "class=5"]);
    assert!(!site.guest_status().connected);
    let mut vmm = Vmm::start(&site.vhost_user(), 2);
    site.until_plugged_in();
    let frames: Vec<_> = (0..100).map(|number| datagram(&site, 0, number)).collect();
    vmm.send(0, &frames[..50]);
    assert_eq!(numbers(&listener, 50), (0..50).collect::<Vec<_>>());
    // One after the other: those that leave together are captured as one.
    for (frame, number) in frames[50..].iter().zip(50..) {
        vmm.send(1, std::slice::from_ref(frame));
        assert_eq!(numbers(&listener, 1), [number]);
    }
    site.until_guest(0, "kernel", 50);
    site.until_guest(1, "sent", 50);
    site.until_guest(1, "kernel", 0);
    // Of the class that the queue is for, not of the frames' DSCP; what the kernel sends has none.
    let classes: Vec<_> = wire
        .wait(100)
        .iter()
        .map(|one| (one.number >= 50, one.class))
        .collect();
    let expected = [[(false, 0); 50], [(true, 5); 50]].concat();
    assert_eq!(classes, expected);
    // The far pod answers: by the kernel's tunnel and bridge to the tap device.
    knows_guest(site.there());
    let answer = b"to the guest";
    listener.send_to(answer, (GUEST, 7)).expect("sent");
    until("the answer comes", || {
        vmm.receive().ends_with(answer).then_some(())
    });
    let status = site.guest_status();
    assert!(status.connected);
    assert_eq!((status.connections, status.fault), (1, None));
    device.terminate();
}

/// Tells a host where the guest is: it does not answer such questions.
fn knows_guest(host: &Host) {
    let neighbour = format!("neighbour replace {GUEST} lladdr {} dev eth0", mac());
    let status = Command::new("ip")
        .args(["-n", host.namespace()])
        .args(neighbour.split(' '))
        .status();
    assert!(status.expect("ip").success());
}

pub fn mac() -> String {
    GUEST_MAC.map(|octet| format!("{octet:02x}")).join(":")
}

#[test]
fn frames_of_a_cycle_leave_at_its_instants_and_their_class_is_their_own() {
    const CYCLE: i64 = 400_000_000;
    let site = site();
    let wire = site.capture();
    let queue = "class=frame,cycle=400ms+100ms,lead=100ms";
    let device = site.attach_guest(&["--queue", queue, "--required"]);
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    let earliest = SystemTai.now().as_nanos() + 100_000_000;
    let frames: Vec<_> = (0..20).map(|number| datagram(&site, 3, number)).collect();
    vmm.send(0, &frames);
    let arrivals = wire.wait(20);
    // The payload's launch time is 0: what is told is the instant of the arrival.
    let instant = earliest + (100_000_000 - earliest).rem_euclid(CYCLE);
    assert!(
        arrivals.iter().all(|arrival| arrival.after >= instant),
        "{arrivals:?}"
    );
    site.until_guest(0, "sent", 20);
    until("the runtime has counted their times", || {
        let classes = site.departures();
        let third = classes.iter().find(|class| class.class == 3)?;
        (third.sent == 20).then_some(())
    });
    device.terminate();
}

/// More than the runtime keeps waiting: the others are of instants that come.
#[test]
fn frames_that_wait_for_room_leave_at_an_instant_of_the_cycle_as_well() {
    const CYCLE: i64 = 1_000_000_000;
    const FRAMES: usize = 600;
    const KEPT: usize = 256;
    let site = site();
    let listener = site.listener();
    let device = site.attach_guest(&["--queue", "class=5,cycle=1s,lead=100ms", "--required"]);
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    // Who is at the other end of the tunnel is known.
    vmm.send(0, &[datagram(&site, 0, 0)]);
    numbers(&listener, 1);
    let frames: Vec<_> = (0..FRAMES)
        .map(|number| datagram(&site, 0, number as u32))
        .collect();
    let into_cycle = || SystemTai.now().as_nanos().rem_euclid(CYCLE);
    until("a cycle begins", || {
        (into_cycle() < CYCLE / 5).then_some(())
    });
    let begin = SystemTai.now().as_nanos();
    let first = begin + CYCLE - begin.rem_euclid(CYCLE);
    std::thread::scope(|scope| {
        scope.spawn(|| vmm.send(0, &frames));
        for number in 0..FRAMES {
            assert_eq!(numbers(&listener, 1), [number as u32]);
            let instant = first + (number / KEPT) as i64 * CYCLE;
            let early = instant - SystemTai.now().as_nanos();
            assert!(early <= 0, "{number} is {early} ns early");
        }
    });
    site.until_guest(0, "sent", 1 + FRAMES as u64);
    assert_eq!(site.guest_counted(0, "late"), 0);
    device.terminate();
}

#[test]
fn tagged_frames_are_of_the_class_of_their_priority_where_the_vlan_is_the_guests() {
    let site = site();
    let wire = site.capture();
    let device = site.attach_guest(&["--required"]);
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    let tagged = |vlan: u8| {
        let mut frame = datagram(&site, 0, 1);
        frame.splice(12..12, [0x81, 0, 5 << 5, vlan]);
        frame
    };
    vmm.send(0, &[tagged(7), tagged(8)]);
    site.until_guest(0, "sent", 1);
    site.until_guest(0, "vlan-tag", 1);
    let arrival = wire.wait(1)[0];
    assert_eq!(arrival.class, 5);
    device.terminate();
}

#[test]
fn what_the_runtime_does_not_send_is_the_kernels_or_with_required_nobodys() {
    let site = site();
    let foreign = foreign(&site, 1);
    for required in [false, true] {
        let more: &[&str] = if required { &["--required"] } else { &[] };
        let device = site.attach_guest(more);
        let mut vmm = Vmm::start(&site.vhost_user(), 1);
        vmm.send(0, &[arp(), foreign.clone()]);
        site.until_guest(0, "foreign-frame", 1);
        site.until_guest(0, "foreign-source-address", 1);
        site.until_guest(0, "kernel", if required { 0 } else { 2 });
        site.until_guest(0, "given-back", if required { 0 } else { 2 });
        device.terminate();
    }
}

#[test]
fn what_the_runtime_does_not_send_overtakes_nothing_that_it_has_for_the_same_place() {
    let site = site();
    let wire = site.capture();
    // The runtime has the first one for at least a second.
    let queue = "class=frame,cycle=1s,lead=1s";
    let device = site.attach_guest(&["--queue", queue]);
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    site.until_plugged_in();
    // What goes elsewhere does not wait.
    let mut elsewhere = foreign(&site, 3);
    elsewhere[..6].fill(0xff);
    vmm.send(0, &[datagram(&site, 0, 1), elsewhere, foreign(&site, 2)]);
    site.until_guest(0, "kernel", 2);
    site.until_guest(0, "sent", 1);
    let numbers: Vec<_> = wire.wait(3).iter().map(|one| one.number).collect();
    assert_eq!(numbers, [3, 1, 2]);
    device.terminate();
}

#[test]
fn what_waits_behind_frames_of_a_runtime_that_ends_goes_the_kernels_way() {
    let mut site = site();
    let listener = site.listener();
    // The runtime has the first one for as long as it is there.
    let queue = "class=frame,cycle=10s,lead=10s";
    let device = site.attach_guest(&["--queue", queue]);
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    site.until_plugged_in();
    vmm.send(0, &[datagram(&site, 0, 1), foreign(&site, 2)]);
    site.until_guest(0, "foreign-source-address", 1);
    site.until_guest(0, "kernel", 0);
    site.kill_daemon();
    assert_eq!(numbers(&listener, 1), [2]);
    site.until_guest(0, "lost", 1);
    site.until_guest(0, "given-back", 1);
    device.terminate();
}

#[test]
fn what_a_queue_of_one_class_sends_by_the_addresses_of_others_goes_nowhere() {
    let mut site = site();
    let listener = site.listener();
    let device = site.attach_guest(&["--queue", "class=5"]);
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    site.until_plugged_in();
    let by_mac = foreign(&site, 1);
    let mut by_address = datagram(&site, 0, 2);
    // The sum of the header stays right.
    by_address[14 + 12..14 + 16].rotate_left(2);
    // The same in what the runtime would not send from any source: too long, of a VLAN that is not the guest's, with destination options.
    let mut too_long = by_address.clone();
    too_long.resize(14 + 1501, 0);
    let mut tagged = by_address.clone();
    tagged.splice(12..12, [0x81, 0, 0, 9]);
    let mut six = [
        &by_address[..12],
        &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 16, 60, 64],
    ]
    .concat();
    let source: Ipv6Addr = "fd00::99".parse().expect("one");
    six.extend([source.octets(), source.octets()].concat());
    six.extend([17, 0, 1, 4, 0, 0, 0, 0, 0, 9, 0, 9, 0, 8, 0, 0]);
    let mut answer = arp();
    answer[14 + 14..14 + 18].copy_from_slice(&site.there().address().octets());
    let foreign = [by_mac, by_address.clone(), too_long, tagged, six, answer];
    vmm.send(0, &foreign);
    // Nobody can tell whose this is.
    let mut no_header = by_address.clone();
    no_header[14] = 0x4f;
    vmm.send(0, &[no_header, arp(), datagram(&site, 0, 3)]);
    assert_eq!(numbers(&listener, 1), [3]);
    site.until_guest(0, "foreign-source-address", foreign.len() as u64);
    site.until_guest(0, "malformed", 1);
    site.until_guest(0, "foreign-frame", 1);
    site.until_guest(0, "given-back", 1);
    site.until_guest(0, "kernel", 1);
    // Nor while the runtime is away.
    site.kill_daemon();
    until("its end is noticed", || {
        vmm.send(0, std::slice::from_ref(&by_address));
        (site.guest_counted(0, "no-runtime") > 0).then_some(())
    });
    site.until_guest(0, "kernel", 1);
    vmm.send(0, &[datagram(&site, 0, 4)]);
    assert_eq!(numbers(&listener, 1), [4]);
    site.until_guest(0, "kernel", 2);
    device.terminate();
}

#[test]
fn vmms_come_and_go_and_so_does_the_runtime() {
    let mut site = site();
    let listener = site.listener();
    let device = site.attach_guest(&["--queue", "class=5", "--required"]);
    let mut held = Vec::new();
    for turn in 0..5 {
        let mut vmm = Vmm::start(&site.vhost_user(), 1);
        vmm.send(0, &[datagram(&site, 0, turn)]);
        assert_eq!(numbers(&listener, 1), [turn]);
        // The ring is the guest's again, and starts anew where it ended.
        assert_eq!(vmm.stop_ring(1), 1);
        drop(vmm);
        until("the VMM has gone", || {
            (!site.guest_status().connected).then_some(())
        });
        held.push(device.descriptors());
    }
    assert_eq!(site.guest_status().connections, 5);
    // A VMM that has gone leaves nothing behind.
    assert_eq!(held[0], held[4], "{held:?}");
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    site.kill_daemon();
    until("its end is noticed", || {
        vmm.send(0, &[datagram(&site, 0, 9)]);
        (site.guest_counted(0, "no-runtime") > 0).then_some(())
    });
    site.start_daemon();
    until("it is used again", || {
        vmm.send(0, &[datagram(&site, 0, 10)]);
        let mut buffer = [0; 64];
        listener.set_nonblocking(true).expect("set");
        listener.recv(&mut buffer).ok().map(|_| ())
    });
    device.terminate();
}

/// More than the runtime keeps waiting, until an instant that comes when nobody is there.
#[test]
fn what_a_guest_that_went_has_sent_leaves_or_is_lost_before_the_next_one_comes() {
    const KEPT: u32 = 256;
    let site = site();
    let listener = site.listener();
    let device = site.attach_guest(&["--queue", "class=5,cycle=10s,lead=10s"]);
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    let frames: Vec<_> = (0..=KEPT)
        .map(|number| datagram(&site, 0, number))
        .collect();
    vmm.send(0, &frames);
    drop(vmm);
    // What had no room there.
    site.until_guest(0, "lost", 1);
    assert!(!site.guest_status().connected);
    site.until_guest(0, "sent", KEPT.into());
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    vmm.send(0, &[datagram(&site, 0, KEPT + 1)]);
    let expected: Vec<_> = (0..KEPT).chain([KEPT + 1]).collect();
    assert_eq!(numbers(&listener, expected.len()), expected);
    device.terminate();
}

#[test]
fn the_memory_of_a_guest_that_was_reset_is_left_alone() {
    let site = site();
    let listener = site.listener();
    // The frame leaves when the rings have been stopped.
    let queue = "class=5,cycle=1s,lead=1s";
    let device = site.attach_guest(&["--queue", queue]);
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    site.until_plugged_in();
    vmm.send(0, &[datagram(&site, 0, 1)]);
    for ring in [0, 1] {
        vmm.stop_ring(ring);
    }
    // The memory is somebody else's by now.
    vmm.overwrite(0xaa);
    // The thread of the sending ring has had a turn when it knows what became of the frame, and the other one when something came.
    site.until_guest(0, "sent", 1);
    let before = site.guest_counted(0, "received-down");
    until("something comes for the guest", || {
        listener.send_to(b"asks", (GUEST, 7)).expect("sent");
        (site.guest_counted(0, "received-down") > before).then_some(())
    });
    assert!(vmm.is_all(0xaa));
    device.terminate();
}

#[test]
fn what_came_for_a_guest_that_went_is_counted() {
    const FRAMES: u64 = 300;
    let site = site();
    let device = site.attach_guest(&[]);
    let vmm = Vmm::start(&site.vhost_user(), 1);
    site.until_plugged_in();
    knows_guest(site.pod());
    let pod = {
        let _inside = site.pod().enter().expect("the lab is up");
        UdpSocket::bind("0.0.0.0:0").expect("bind")
    };
    // More than its driver has buffers for.
    for _ in 0..FRAMES {
        pod.send_to(b"to the guest", (GUEST, 7)).expect("sent");
    }
    let received = || site.guest_counted(0, "received");
    until("its buffers are used", || {
        (received() == u64::from(RING)).then_some(())
    });
    drop(vmm);
    let _vmm = Vmm::start(&site.vhost_user(), 1);
    until("all have been counted", || {
        (received() + site.guest_counted(0, "received-down") >= FRAMES).then_some(())
    });
    device.terminate();
}

#[test]
fn a_device_that_is_served_anew_goes_on_where_it_was_left() {
    let site = site();
    let listener = site.listener();
    let device = site.attach_guest(&["--queue", "class=5"]);
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    vmm.send(0, &[datagram(&site, 0, 1)]);
    assert_eq!(numbers(&listener, 1), [1]);
    device.kill();
    // What it has left behind is in nobody's way.
    let device = site.attach_guest(&["--queue", "class=5"]);
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    vmm.send(0, &[datagram(&site, 0, 2)]);
    assert_eq!(numbers(&listener, 1), [2]);
    device.terminate();
    assert!(!site.vhost_user().exists());
}

#[test]
fn a_driver_that_does_what_none_may_is_served_as_far_as_it_makes_sense_and_harms_itself() {
    let site = site();
    let listener = site.listener();
    let device = site.attach_guest(&["--queue", "class=5", "--required"]);
    let good = datagram(&site, 0, 77);
    let socket = site.vhost_user();
    // Chains that make no sense: each is given back, and counted.
    let mut vmm = Vmm::start(&socket, 1);
    let chains: [&[(u64, u32, u16, u16)]; 8] = [
        // Outside its memory, at its end, and beyond what an address can be.
        &[(1 << 40, 100, 0, 0)],
        &[((4 << 20) - 4, 100, 0, 0)],
        &[(u64::MAX - 4, 100, 0, 0)],
        // Longer than any frame, also together.
        &[(0x10_0000, u32::MAX, 0, 0)],
        &[(0x10_0000, 9000, NEXT, 1), (0x10_0000, 9000, 0, 0)],
        // In a circle.
        &[(0x10_0000, 10, NEXT, 1), (0x10_0000, 10, NEXT, 0)],
        // To be written to; and nothing but a header.
        &[(0x10_0000, 100, WRITE, 0)],
        &[(0x10_0000, 12, 0, 0)],
    ];
    for (at, chain) in chains.iter().enumerate() {
        for (place, (address, length, flags, next)) in chain.iter().enumerate() {
            vmm.describe(1, place as u16, *address, *length, *flags, *next);
        }
        vmm.offer(1, 0);
        vmm.kick(1);
        until("it is given back", || {
            (usize::from(vmm.used(1)) == at + 1).then_some(())
        });
    }
    // What is in a circle is read as far as the ring is long, and is a frame of nobody.
    site.until_guest(0, "malformed", chains.len() as u64 - 1);
    site.until_guest(0, "foreign-source-address", 1);
    // An index that jumps: nothing more of this ring is taken until it is reset.
    vmm.set_offered(1, 20_000);
    vmm.kick(1);
    site.until_guest(0, "ring-broken", 1);
    vmm.replace_call(1);
    vmm.kick(1);
    vmm.until_heard(1);
    vmm.restart_ring(1);
    vmm.send(0, std::slice::from_ref(&good));
    assert_eq!(numbers(&listener, 1), [77]);
    site.until_guest(0, "ring-broken", 1);
    // Rings in a place where there is no memory are refused, and the connection with them.
    drop(vmm);
    // A head outside the table, and a buffer to receive in that is none.
    let mut vmm = Vmm::start(&socket, 1);
    vmm.offer(1, RING + 7);
    vmm.kick(1);
    for at in 0..RING {
        vmm.describe(0, at, 1 << 40, 2048, WRITE, 0);
    }
    drop(vmm);
    // Who only talks nonsense.
    for nonsense in [
        &[0xff; 64][..],
        b"GET / HTTP/1.1\r\n\r\n",
        &[1, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
    ] {
        let mut stream = UnixStream::connect(&socket).expect("connected");
        stream.write_all(nonsense).expect("sent");
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    }
    assert!(site.guest_status().fault.is_some());
    let mut vmm = Vmm::start(&socket, 1);
    vmm.send(0, &[good]);
    assert_eq!(numbers(&listener, 1), [77]);
    device.terminate();
}

/// The VMM is told that a queue's thread has ended, and the next one is served.
fn served_again_after_a_thread(site: &Site, listener: &UdpSocket) {
    until("the VMM has been told", || {
        (!site.guest_status().connected).then_some(())
    });
    let fault = site.guest_status().fault;
    assert_eq!(fault.as_deref(), Some("a queue's thread has ended"));
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    vmm.send(0, &[datagram(site, 0, 2)]);
    assert_eq!(numbers(listener, 1), [2]);
}

#[test]
fn a_thread_that_ends_by_itself_ends_the_connection_with_a_reason() {
    let site = site();
    let listener = site.listener();
    let device = site.attach_guest(&["--queue", "class=5", "--required"]);
    for flags in [EFD_NONBLOCK, 0] {
        let mut vmm = Vmm::start(&site.vhost_user(), 1);
        vmm.send(0, &[datagram(&site, 0, 1)]);
        assert_eq!(numbers(&listener, 1), [1]);
        // The library takes an event for one that it is told of and finds none there.
        let _former = vmm.replace_kick(1, flags);
        served_again_after_a_thread(&site, &listener);
    }
    device.terminate();
}

#[test]
fn a_thread_that_ends_at_its_first_event_ends_the_connection_as_well() {
    let site = site();
    let listener = site.listener();
    let device = site.attach_guest(&["--queue", "class=5", "--required"]);
    let _vmm = Vmm::start_without_event(&site.vhost_user(), 1);
    served_again_after_a_thread(&site, &listener);
    device.terminate();
}

#[test]
fn a_vmm_that_reads_no_answers_harms_itself() {
    let site = site();
    let listener = site.listener();
    let device = site.attach_guest(&["--queue", "class=5", "--required"]);
    let mut stream = UnixStream::connect(site.vhost_user()).expect("connected");
    let patience = std::time::Duration::from_millis(500);
    stream.set_write_timeout(Some(patience)).expect("a timeout");
    // What features there are.
    let request = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    while stream.write_all(&request).is_ok() {}
    assert!(site.guest_status().connected);
    drop(stream);
    until("it has gone", || {
        (!site.guest_status().connected).then_some(())
    });
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    vmm.send(0, &[datagram(&site, 0, 2)]);
    assert_eq!(numbers(&listener, 1), [2]);
    device.terminate();
}

/// An event counts up to a number, and who would count further waits.
#[test]
fn a_call_that_takes_no_more_keeps_no_thread() {
    let site = site();
    let listener = site.listener();
    let device = site.attach_guest(&["--queue", "class=5", "--required"]);
    let mut vmm = Vmm::start_with_full_call(&site.vhost_user(), 1);
    for number in 0..3 {
        vmm.send_unheard(0, &[datagram(&site, 0, number)]);
        assert_eq!(numbers(&listener, 1), [number]);
    }
    device.terminate();
}

#[test]
fn a_driver_of_before_virtio_1_is_refused_with_a_reason() {
    let site = site();
    let listener = site.listener();
    let device = site.attach_guest(&["--queue", "class=5", "--required"]);
    let _vmm = Vmm::start_legacy(&site.vhost_user());
    until("the VMM has been told", || site.guest_status().fault);
    let fault = site.guest_status().fault.expect("a reason");
    assert!(fault.contains("VIRTIO_F_VERSION_1"), "{fault}");
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    vmm.send(0, &[datagram(&site, 0, 2)]);
    assert_eq!(numbers(&listener, 1), [2]);
    device.terminate();
}

#[test]
fn a_queue_that_never_stops_does_not_keep_the_process_from_its_end() {
    let site = site();
    let device = site.attach_guest(&["--queue", "class=5", "--required"]);
    let mut vmm = Vmm::start(&site.vhost_user(), 1);
    // Frames of nobody, offered again as soon as they are given back.
    let end = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            vmm.describe(1, 0, 0x10_0000, 100, 0, 0);
            for index in 1.. {
                vmm.offer(1, 0);
                vmm.kick(1);
                while vmm.used(1) != index as u16 {
                    if end.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                }
            }
        });
        until("it is under way", || {
            (site.guest_counted(0, "foreign-source-address") > 10_000).then_some(())
        });
        device.terminate();
        end.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let site = site();
    let socket = site.vhost_user().display().to_string();
    let attach = |more: &[&str]| {
        let arguments = [&["attach", "--vhost-user", &socket], more].concat();
        refused(site.guest(&arguments).output())
    };
    let told = attach(&["--tap", "nowhere"]);
    assert!(told.contains("ip tuntap add dev nowhere"), "{told}");
    let told = attach(&["--tap", "cni0"]);
    assert!(told.contains("no tap device cni0"), "{told}");
    let told = attach(&["--tap", TAP, "--queue", "class=9"]);
    assert!(told.contains("\"9\""), "{told}");
    let many = ["--queue", "kernel"].repeat(17);
    let told = attach(&[&["--tap", TAP], &many[..]].concat());
    assert!(told.contains("17 queue pairs"), "{told}");
    let told = attach(&["--tap", TAP, "--socket", "/nowhere.sock"]);
    assert!(told.contains("/nowhere.sock"), "{told}");
    let running = site.attach_guest(&[]);
    let told = attach(&["--tap", TAP]);
    assert!(told.contains("in use"), "{told}");
    let namespace = site.lab.host(0).namespace();
    let status = Command::new("ip")
        .args([
            "-n", namespace, "tuntap", "add", "dev", "vm2", "mode", "tap",
        ])
        .status();
    assert!(status.expect("ip").success());
    let told = attach(&["--tap", "vm2"]);
    assert!(told.contains("somebody listens there already"), "{told}");
    running.terminate();
    let told = refused(site.guest(&["status", "--vhost-user", &socket]).output());
    assert!(told.contains("takt guest attach"), "{told}");
    std::fs::write(site.vhost_user(), "a file").expect("written");
    let told = attach(&["--tap", TAP]);
    assert!(told.contains("no socket"), "{told}");
    assert!(site.vhost_user().exists());
}
