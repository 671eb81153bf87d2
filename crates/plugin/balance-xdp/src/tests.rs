//! The program itself, run by the kernel on frames of ours in virtual time.
//!
//! Needs root.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use aya::maps::Array;
use aya::programs::{TestRun, TestRunOptions, Xdp};
use proptest::prelude::*;
use takt_wire::ethernet::MacAddress;

use crate::flow::{hash, hash_of_stream};
use crate::maps::{About, COUNTERS, LAYOUT, Reach};
use crate::program::{BALANCE, Program};

const DELTA: u64 = 1000;
const CORES: u32 = 2;
const NEIGHBOURS: u32 = 2;
const BITS: u32 = 2;
const DROP: u32 = 1;
const PASS: u32 = 2;
const REDIRECT: u32 = 4;
const LOOPBACK: u32 = 1;

fn mac(last: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, last])
}

fn load(bits: u32) -> Program {
    load_for(
        bits,
        &["udp:10.0.0.1:5004", "tcp:*:80", "udp:[fd00::1]:5004"],
    )
}

fn load_for(bits: u32, services: &[&str]) -> Program {
    let about = About {
        delta_ns: DELTA,
        layout: LAYOUT,
        queues: 1,
        mask: (1 << bits) - 1,
        cores: CORES,
        targets: CORES + NEIGHBOURS,
        loops: 1,
        virtual_time: 1,
        ..About::default()
    };
    let services = services.iter();
    let services = services.map(|text| text.parse().expect("a service"));
    let services: Vec<_> = services.collect();
    // Both cores are the same processor: nothing is sent.
    let program = Program::load(about, &services, &[0], 64).expect("loaded: needs root");
    for core in 0..CORES {
        program.maps.targets[core as usize].set(Some(Reach::Core(0)), false);
    }
    let redirect = Reach::Redirect {
        ifindex: LOOPBACK,
        most: 200,
        to: mac(9),
        from: mac(8),
    };
    let vxlan = Reach::Vxlan {
        ifindex: LOOPBACK,
        most: 200,
        to: mac(7),
        from: mac(6),
        inner: mac(5),
        source: [10, 9, 0, 1],
        destination: [10, 9, 0, 2],
        network: 42,
    };
    program.maps.targets[CORES as usize].set(Some(redirect), false);
    program.maps.targets[CORES as usize + 1].set(Some(vxlan), false);
    program
}

fn clock(program: &mut Program, now: u64) {
    let map = program.ebpf().map_mut(".bss").expect("the clock");
    let mut clock: Array<_, u64> = map.try_into().expect("the clock");
    clock.set(0, now, 0).expect("set");
}

/// What the program does with a frame, and the frame afterwards.
fn run(program: &mut Program, frame: &[u8]) -> (u32, Vec<u8>) {
    let xdp: &mut Xdp = program
        .ebpf()
        .program_mut(BALANCE)
        .and_then(|program| program.try_into().ok())
        .expect("the program");
    let mut out = vec![0; frame.len() + 256];
    let mut options = TestRunOptions::new();
    options.data_in = Some(frame);
    options.data_out = Some(&mut out);
    let result = xdp.test_run(options).expect("run");
    let (action, length) = (result.return_value, result.data_size_out as usize);
    out.truncate(length);
    (action, out)
}

fn counted(program: &Program, name: &str) -> u64 {
    let at = COUNTERS.iter().position(|counter| *counter == name);
    program.maps.counters().expect("counters")[at.expect("a counter")]
}

fn udp(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let length = (8 + payload.len()) as u16;
    match (source, destination) {
        (SocketAddr::V4(source), SocketAddr::V4(destination)) => {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + length).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
            frame.extend(source.ip().octets());
            frame.extend(destination.ip().octets());
        }
        (SocketAddr::V6(source), SocketAddr::V6(destination)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(length.to_be_bytes());
            frame.extend([17, 64]);
            frame.extend(source.ip().octets());
            frame.extend(destination.ip().octets());
        }
        _ => panic!("two versions"),
    }
    frame.extend(source.port().to_be_bytes());
    frame.extend(destination.port().to_be_bytes());
    frame.extend(length.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn client(port: u16) -> SocketAddr {
    SocketAddr::new([10, 0, 0, 2].into(), port)
}

fn service() -> SocketAddr {
    address("10.0.0.1:5004")
}

#[test]
fn the_hash_is_that_of_user_space() {
    let mut program = load(16);
    clock(&mut program, 1);
    let flows: Vec<_> = (1..40)
        .map(|port| (client(port * 1201), service()))
        .chain([(address("[fd00::2]:77"), address("[fd00::1]:5004"))])
        .collect();
    for (source, destination) in flows {
        let (action, _) = run(&mut program, &udp(source, destination, &[0; 20]));
        assert_eq!(action, REDIRECT);
        let bundle = hash(17, source, destination).expect("one version") & 0xffff;
        let entry = &program.maps.bundles[bundle as usize];
        assert_ne!(entry.target.load(Ordering::Relaxed), 0, "{source}");
        entry.target.store(0, Ordering::Relaxed);
    }
    let left = program.maps.bundles.iter();
    assert!(
        left.into_iter()
            .all(|b| b.target.load(Ordering::Relaxed) == 0)
    );
}

#[test]
fn what_is_no_service_or_no_whole_packet_is_left_to_the_kernel() {
    let mut program = load(BITS);
    let whole = udp(client(7), service(), &[0; 20]);
    assert_eq!(run(&mut program, &whole).0, REDIRECT);
    let mut others = vec![
        udp(client(7), address("10.0.0.1:5005"), &[0; 20]),
        udp(client(7), address("10.0.0.3:5004"), &[0; 20]),
    ];
    let mut change = |at: usize, value: u8| {
        let mut frame = whole.clone();
        frame[at] = value;
        others.push(frame);
    };
    change(12, 9); // EtherType
    change(14, 0x44); // a header that is too short
    change(14, 0x65); // version 6 in a frame of IPv4
    change(20, 0x20); // more fragments
    change(21, 1); // a later fragment
    change(23, 47); // GRE
    // Cut short anywhere before the end of the ports. The kernel takes no frame without an Ethernet header.
    others.extend((14..38).map(|length| whole[..length].to_vec()));
    let count = others.len() as u64;
    for frame in others {
        let (action, after) = run(&mut program, &frame);
        assert_eq!((action, &after), (PASS, &frame));
    }
    assert_eq!(counted(&program, "passed"), count);
}

const STREAM: MacAddress = MacAddress([0x91, 0xe0, 0xf0, 0, 0, 1]);
const AVTP: u16 = 0x22f0;

/// A frame of a stream without IP.
fn stream(destination: MacAddress, vlan: Option<u16>, ether_type: u16) -> Vec<u8> {
    let mut frame = destination.0.to_vec();
    frame.extend([2, 0, 0, 0, 0, 2]);
    if let Some(vlan) = vlan {
        frame.extend([0x81, 0]);
        frame.extend((0x6000 | vlan).to_be_bytes());
    }
    frame.extend(ether_type.to_be_bytes());
    frame.extend([7; 46]);
    frame
}

#[test]
fn streams_are_told_by_destination_and_vlan_and_what_keeps_a_link_is_nobodys() {
    let other = MacAddress([0x91, 0xe0, 0xf0, 0, 0, 2]);
    let taken = |services: &[&str], frames: Vec<Vec<u8>>| -> Vec<bool> {
        let mut program = load_for(BITS, services);
        let mut take = |frame: Vec<u8>| {
            let (action, after) = run(&mut program, &frame);
            assert!(action == REDIRECT || (action, &after) == (PASS, &frame));
            action == REDIRECT
        };
        frames.into_iter().map(&mut take).collect()
    };
    let frames = || {
        vec![
            stream(STREAM, None, AVTP),
            stream(STREAM, Some(2), AVTP),
            stream(STREAM, Some(3), AVTP),
            stream(STREAM, Some(2), 0x8892),
            stream(other, Some(2), AVTP),
            stream(other, Some(2), 0x8892),
        ]
    };
    let by_destination = "stream:91:e0:f0:00:00:01";
    assert_eq!(
        taken(&[by_destination], frames()),
        [true, true, true, true, false, false]
    );
    let in_vlan = "stream:91:e0:f0:00:00:01/2";
    assert_eq!(
        taken(&[in_vlan], frames()),
        [false, true, false, true, false, false]
    );
    // Any destination is that of AVTP alone.
    assert_eq!(
        taken(&["stream:*"], frames()),
        [true, true, true, false, true, false]
    );
    assert_eq!(
        taken(&["stream:*/2"], frames()),
        [false, true, false, false, true, false]
    );
    assert_eq!(taken(&["udp:*:5004"], frames()), [false; 6]);

    let kept = [
        0x0806, 0x888e, 0x8809, 0x88cc, 0x88f5, 0x88f6, 0x88f7, 0x22ea, 0x22f1, 46,
    ];
    let kept = kept.map(|kind| stream(STREAM, None, kind)).to_vec();
    assert!(!taken(&[by_destination, "stream:*"], kept).contains(&true));
    // Cut short within the tag.
    let whole = stream(STREAM, Some(2), AVTP);
    let cut = (14..18).map(|length| whole[..length].to_vec()).collect();
    assert!(!taken(&[in_vlan], cut).contains(&true));
}

#[test]
fn a_streams_bundle_is_that_of_its_hash_and_its_frames_reach_neighbours_as_they_are() {
    let mut program = load_for(16, &["stream:*"]);
    clock(&mut program, 1);
    for vlan in [None, Some(0), Some(2), Some(4094)] {
        assert_eq!(run(&mut program, &stream(STREAM, vlan, AVTP)).0, REDIRECT);
        let bundle = hash_of_stream(STREAM, vlan) & 0xffff;
        let entry = &program.maps.bundles[bundle as usize];
        assert_ne!(entry.target.load(Ordering::Relaxed), 0, "{vlan:?}");
    }

    let mut program = load_for(0, &["stream:*"]);
    clock(&mut program, 1);
    let frame = stream(STREAM, Some(2), AVTP);
    program.maps.wishes[0].store(u64::from(CORES) + 2, Ordering::Relaxed);
    let (action, after) = run(&mut program, &frame);
    assert_eq!(action, REDIRECT);
    assert_eq!(after[50..], frame, "behind VXLAN's headers");
    // Another destination would be another stream's.
    clock(&mut program, 2 + DELTA);
    program.maps.wishes[0].store(u64::from(CORES) + 1, Ordering::Relaxed);
    assert_eq!(run(&mut program, &frame).0, DROP);
    assert_eq!(counted(&program, "fenced"), 1);
}

#[test]
fn frames_for_neighbours_are_those_that_they_expect() {
    let mut program = load(0);
    clock(&mut program, 1);
    let frame = udp(client(7), service(), &[3; 20]);
    program.maps.wishes[0].store(u64::from(CORES) + 1, Ordering::Relaxed);
    let (action, after) = run(&mut program, &frame);
    assert_eq!(action, REDIRECT);
    assert_eq!(after[..12], [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8]);
    assert_eq!(after[12..], frame[12..]);

    program.maps.wishes[0].store(u64::from(CORES) + 2, Ordering::Relaxed);
    clock(&mut program, 2 + DELTA);
    let (action, after) = run(&mut program, &frame);
    assert_eq!(action, REDIRECT);
    let (outer, inner) = after.split_at(50);
    assert_eq!(outer[..14], [2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 6, 8, 0]);
    let ip = &outer[14..34];
    let length = (frame.len() + 36) as u16;
    assert_eq!(ip[..4], [0x45, 0, (length >> 8) as u8, length as u8]);
    assert_eq!(ip[8..10], [64, 17]);
    assert_eq!(ip[12..], [10, 9, 0, 1, 10, 9, 0, 2]);
    let sum = ip.as_chunks().0.iter().fold(0_u32, |sum, word| {
        sum + u32::from(u16::from_be_bytes(*word))
    });
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "RFC 1071");
    assert_eq!(outer[36..38], 4789_u16.to_be_bytes());
    assert_eq!(outer[38..40], (length - 20).to_be_bytes());
    assert_eq!(outer[42..], [8, 0, 0, 0, 0, 0, 42, 0], "RFC 7348");
    assert_eq!(inner[..6], [2, 0, 0, 0, 0, 5]);
    assert_eq!(inner[6..], frame[6..]);

    // With the header it is longer than the way takes.
    let (action, _) = run(&mut program, &udp(client(7), service(), &[3; 120]));
    assert_eq!(action, DROP);
    assert_eq!(counted(&program, "too_long"), 1);
}

#[test]
fn what_a_neighbour_sends_on_goes_to_a_core_and_not_round() {
    let mut program = load(0);
    clock(&mut program, 1);
    program.know(mac(2), true);
    program.maps.wishes[0].store(u64::from(CORES) + 1, Ordering::Relaxed);
    let frame = udp(client(7), service(), &[3; 20]);
    assert_eq!(run(&mut program, &frame).0, REDIRECT);
    let counts = |program: &Program| {
        ["to_cores", "to_neighbours", "from_neighbours"].map(|name| counted(program, name))
    };
    assert_eq!(counts(&program), [1, 0, 1]);
    program.know(mac(2), false);
    assert_eq!(run(&mut program, &frame).0, REDIRECT);
    assert_eq!(counts(&program), [1, 1, 1]);
}

#[test]
fn a_wish_that_names_nothing_changes_nothing_and_is_counted() {
    let mut program = load(0);
    let frame = udp(client(7), service(), &[3; 20]);
    for (number, wish) in (1..).zip([
        u64::from(CORES + NEIGHBOURS) + 1,
        0x7fff_ffff,
        0xffff_ffff,
        u64::MAX,
    ]) {
        clock(&mut program, number * 10 * DELTA);
        program.maps.wishes[0].store(wish, Ordering::Relaxed);
        assert_eq!(run(&mut program, &frame).0, REDIRECT);
        assert_eq!(program.maps.bundles[0].target.load(Ordering::Relaxed), 1);
        assert_eq!(counted(&program, "refused_wishes"), number);
    }
    // A target that there is not, in a bundle itself: nobody gets the packet.
    program.maps.wishes[0].store(0, Ordering::Relaxed);
    program.maps.bundles[0].target.store(99, Ordering::Relaxed);
    assert_eq!(run(&mut program, &frame).0, DROP);
}

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// A packet of a flow, so long after the last step; to a neighbour it takes so long.
    Packet {
        flow: u16,
        after: u64,
        takes: u64,
    },
    /// A core takes some packets out of its queue, and the kernel takes so long for them.
    Work {
        core: u32,
        packets: usize,
        takes: u64,
    },
    /// The queue of a core has no room for the next packets.
    Full {
        core: u32,
        full: bool,
    },
    Wish {
        bundle: usize,
        wish: u64,
    },
    Dead {
        neighbour: u32,
        dead: bool,
    },
    Wait {
        time: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let wish = prop_oneof![
        20 => 0_u64..=u64::from(CORES + NEIGHBOURS),
        1 => any::<u64>(),
    ];
    prop_oneof![
        8 => (0_u16..9, 0_u64..300, 0..=DELTA).prop_map(|(flow, after, takes)| Step::Packet { flow, after, takes }),
        4 => (0_u16..9, 0..3 * DELTA, 0..=DELTA).prop_map(|(flow, after, takes)| Step::Packet { flow, after, takes }),
        6 => (0..CORES, 1_usize..8, 0..=DELTA).prop_map(|(core, packets, takes)| Step::Work { core, packets, takes }),
        1 => (0..CORES, any::<bool>()).prop_map(|(core, full)| Step::Full { core, full }),
        6 => (0_usize..1 << BITS, wish).prop_map(|(bundle, wish)| Step::Wish { bundle, wish }),
        1 => (0..NEIGHBOURS, any::<bool>()).prop_map(|(neighbour, dead)| Step::Dead { neighbour, dead }),
        2 => (0..4 * DELTA).prop_map(|time| Step::Wait { time }),
    ]
}

/// A queue as the kernel has it.
#[derive(Default)]
struct Queue {
    /// Flow and packet, and the number in its mark.
    waiting: std::collections::VecDeque<(u16, u64, u64)>,
    full: bool,
}

/// Runs the real program, and works off queues as `takt_arrive` does: packets arrive at the earliest when their core takes them, at
/// the latest δ after. Those of neighbours arrive within δ.
fn keeps_the_order(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut program = load(BITS);
    let mut queues: [Queue; CORES as usize] = Default::default();
    let (mut now, mut next) = (10 * DELTA, 0_u64);
    // Of each flow: arrivals as packets and their instants; checked at the end, since cores may work late.
    let mut arrivals: Vec<(u16, u64, u64)> = Vec::new();
    // On one path nothing overtakes.
    let mut latest = [0; (CORES + NEIGHBOURS) as usize];
    let mut arrive = |path: u32, at: u64| {
        let latest: &mut u64 = &mut latest[path as usize];
        *latest = at.max(*latest);
        *latest
    };
    for step in steps {
        match *step {
            Step::Packet { flow, after, takes } => {
                now += after;
                clock(&mut program, now);
                let frame = udp(client(1000 + flow), service(), &[0; 20]);
                let sent = |program: &Program| -> Vec<u64> {
                    let cells = program.maps.sent.iter();
                    cells.map(|cell| cell.load(Ordering::Relaxed)).collect()
                };
                let before = sent(&program);
                let (action, _) = run(&mut program, &frame);
                prop_assert!(action == REDIRECT || action == DROP);
                next += 1;
                if action == DROP {
                    continue;
                }
                let after = sent(&program);
                match before.iter().zip(&after).position(|(was, is)| was != is) {
                    Some(core) if queues[core].full => {}
                    Some(core) => queues[core].waiting.push_back((flow, next, after[core])),
                    None => {
                        let bundle = hash(17, client(1000 + flow), service()).expect("IPv4");
                        let bundle = &program.maps.bundles[(bundle & ((1 << BITS) - 1)) as usize];
                        let path = bundle.target.load(Ordering::Relaxed) - 1;
                        arrivals.push((flow, next, arrive(path, now + takes)));
                    }
                }
            }
            Step::Work {
                core,
                packets,
                takes,
            } => {
                let queue = &mut queues[core as usize];
                for _ in 0..packets {
                    let Some((flow, packet, number)) = queue.waiting.pop_front() else {
                        break;
                    };
                    arrivals.push((flow, packet, arrive(core, now + takes)));
                    program.maps.done[core as usize].arrive(number, now, DELTA);
                }
            }
            Step::Full { core, full } => queues[core as usize].full = full,
            Step::Wish { bundle, wish } => {
                program.maps.wishes[bundle].store(wish, Ordering::Relaxed);
            }
            Step::Dead { neighbour, dead } => {
                let target = &program.maps.targets[(CORES + neighbour) as usize];
                target.mark(dead.into());
            }
            Step::Wait { time } => now += time,
        }
    }
    for (core, queue) in (0..).zip(&mut queues) {
        for (flow, packet, _) in queue.waiting.drain(..) {
            arrivals.push((flow, packet, arrive(core, now)));
        }
    }
    // Stable: what arrives at one instant arrives as it was taken.
    arrivals.sort_by_key(|(_, _, at)| *at);
    for flow in 0..9 {
        let of = arrivals.iter().filter(|(of, _, _)| *of == flow);
        let packets: Vec<_> = of.collect();
        for pair in packets.windows(2) {
            prop_assert!(
                pair[0].1 < pair[1].1,
                "flow {}: packet {} arrives at {}, packet {} at {}",
                flow,
                pair[0].1,
                pair[0].2,
                pair[1].1,
                pair[1].2
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_flow_is_reordered_whatever_is_wished(steps in proptest::collection::vec(step(), 1..200)) {
        keeps_the_order(&steps)?;
    }
}

/// Prints what a packet costs beside a plain redirection to the same processor, in turns.
#[test]
#[ignore = "a measurement: docs/performance.md"]
fn cost() {
    let directory = takt_testing::Directory::new();
    let object = directory.join("plain.bpf.o");
    let built = std::process::Command::new("clang")
        .args([
            "-O2",
            "-g",
            "-target",
            "bpf",
            "-I/usr/include/x86_64-linux-gnu",
            "-c",
        ])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plain.bpf.c"))
        .arg("-o")
        .arg(&object)
        .status();
    assert!(built.expect("clang").success());
    let lab = takt_lab::Lab::scratch(&takt_lab::LabConfig::default()).expect("a lab");
    // Packets that are delivered go to a loopback interface where nobody has their address.
    let _inside = lab.host(0).enter().expect("the host");
    let mut plain = aya::Ebpf::load_file(&object).expect("loaded");
    let mut cpus: aya::maps::CpuMap<_> = plain
        .take_map("plain_cpus")
        .expect("the map")
        .try_into()
        .expect("a CPUMAP");
    cpus.set(1, 16384, None, 0).expect("a queue");
    let xdp: &mut Xdp = plain
        .program_mut("plain")
        .and_then(|program| program.try_into().ok())
        .expect("the program");
    xdp.load().expect("loaded");
    let about = About {
        delta_ns: 100_000,
        layout: LAYOUT,
        queues: 1,
        mask: 1023,
        cores: 1,
        targets: 1,
        ..About::default()
    };
    let services = ["udp:10.0.0.1:5004".parse().expect("a service")];
    let mut ours = Program::load(about, &services, &[1], 16384).expect("loaded");
    ours.maps.targets[0].set(Some(Reach::Core(1)), false);
    let frame = udp(client(7), service(), &[0; 64]);
    const PACKETS: u32 = 1_000_000;
    // Nanoseconds that a packet costs whoever receives, and those of them that the program takes.
    let run = |xdp: &Xdp| {
        let mut options = TestRunOptions::new();
        options.data_in = Some(&frame);
        options.repeat = PACKETS;
        options.attrs = aya::programs::TestRunAttrs::new().xdp_live_frames(64);
        let before = xdp.info().expect("info");
        let begin = std::time::Instant::now();
        xdp.test_run(options).expect("run");
        let all = begin.elapsed().as_nanos() as f64 / f64::from(PACKETS);
        let after = xdp.info().expect("info");
        let time = after.run_time() - before.run_time();
        let runs = after.run_count() - before.run_count();
        (all, time.as_nanos() as f64 / runs as f64)
    };
    let median = |figures: &mut Vec<f64>| {
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    // With the time of programs taken, which costs something itself, and without.
    for timed in [true, false] {
        let _times = timed.then(|| aya::sys::enable_stats(aya::sys::Stats::RunTime));
        let mut figures = [const { Vec::new() }; 4];
        for _ in 0..9 {
            let of = |ebpf: &aya::Ebpf, name: &str| {
                let xdp: &Xdp = ebpf
                    .program(name)
                    .and_then(|program| program.try_into().ok())
                    .expect("the program");
                run(xdp)
            };
            let (plain, ours) = (of(&plain, "plain"), of(ours.ebpf(), BALANCE));
            for (figures, figure) in figures.iter_mut().zip([plain.0, plain.1, ours.0, ours.1]) {
                figures.push(figure);
            }
        }
        let [plain, plain_program, all, program] = figures.each_mut().map(median);
        match timed {
            true => println!("the program: {program:.0} ns a packet, plain {plain_program:.0} ns"),
            false => {
                println!("with the queue to another processor: {all:.0} ns, plain {plain:.0} ns")
            }
        }
    }
    let arrive: &Xdp = ours
        .ebpf()
        .program("takt_arrive")
        .and_then(|program| program.try_into().ok())
        .expect("the program");
    let arrive = arrive.info().expect("info");
    println!(
        "where packets leave the queue: {:.0} ns",
        arrive.run_time().as_nanos() as f64 / arrive.run_count() as f64
    );
    let (sent, out) = ours.maps.queue(0);
    println!("{} of {sent} packets were taken there", ours.maps.taken(0));
    assert!(out > 0);
}
