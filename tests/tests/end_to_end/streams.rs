//! Streams of frames where things go wrong: daemons that are killed, servers and clients that are, slow clients, a link that
//! loses datagrams.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use takt::{Qos, Reliability, SlowSinks, Wait};
use takt_messaging::Participant;
use takt_streaming::{Client, ClientOptions, Format, Frame, Pixels, Server, ServerOptions};
use takt_testing::{PATIENCE, until, until_true};

use crate::long_messages::{Filter, nodes};
use crate::support::{Datapath, Node, Pair, attach, skip};

const WAIT: Wait = Wait::For(PATIENCE);

fn participant(node: &Node, name: &str) -> Participant {
    let opened = Participant::builder(attach(node, name)).name(name).open();
    opened.expect("a participant")
}

fn format() -> Format {
    Format::picture(Pixels::Rgb, 640, 360).expect("a format")
}

fn pixel(number: u64, at: usize) -> u8 {
    (at as u64)
        .wrapping_mul(2_654_435_761)
        .wrapping_add(number * 97)
        .to_le_bytes()[2]
}

fn picture(number: u64) -> Vec<u8> {
    (0..format().bytes()).map(|at| pixel(number, at)).collect()
}

/// The number of a whole frame whose every byte is right.
fn whole(frame: &Frame) -> u64 {
    assert_eq!((frame.format(), frame.holes()), (format(), &[][..]));
    assert!(
        **frame == picture(frame.number()),
        "frame {}",
        frame.number()
    );
    frame.number()
}

fn reliable(deadline: Option<Duration>) -> Qos {
    Qos::slow().with_reliability(Reliability::Reliable {
        deadline,
        slow_sinks: SlowSinks::Evict(Duration::from_secs(10)),
    })
}

#[test]
fn every_frame_arrives_whole_over_a_link_that_loses_a_twentieth() {
    if skip() {
        return;
    }
    const FRAMES: u64 = 50;
    let (pair, [near, far]) = nodes(Datapath::Udp, "");
    let [camera, viewer] =
        [near, far].map(|session| Participant::new(session).expect("a participant"));
    let client = Client::connect(&viewer, "camera", ClientOptions::default().all());
    let client = client.expect("a client");
    let mut server = Server::open(
        &camera,
        "camera",
        format(),
        ServerOptions::new(reliable(None)),
    )
    .expect("a server");
    server.wait_client(WAIT).expect("a client");
    let filter = Filter::losing(format!("{}-switch", pair.lab.name()), 5);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..FRAMES {
                server.send(&picture(number), WAIT).expect("sent");
            }
        });
        for number in 0..FRAMES {
            assert_eq!(whole(&client.next(WAIT).expect("a frame")), number);
        }
    });
    assert!(filter.dropped() > 0);
    let counters = client.counters();
    assert_eq!((counters.incomplete, counters.lost), (0, 0), "{counters:?}");
}

#[test]
fn what_is_lost_without_repair_is_dropped_as_whole_frames_or_shown_as_holes_and_all_is_counted() {
    if skip() {
        return;
    }
    let (pair, [near, far]) = nodes(Datapath::Udp, "");
    let [camera, viewer] =
        [near, far].map(|session| Participant::new(session).expect("a participant"));
    let with_holes = ClientOptions {
        holes: true,
        frames: 64,
        ..ClientOptions::default().all()
    };
    let clients = [
        ClientOptions {
            frames: 64,
            ..ClientOptions::default().all()
        },
        with_holes,
    ]
    .map(|options| Client::connect(&viewer, "camera", options).expect("a client"));
    let mut server = Server::open(&camera, "camera", format(), ServerOptions::new(Qos::slow()))
        .expect("a server");
    server.wait_client(WAIT).expect("a client");
    let _filter = Filter::losing(format!("{}-switch", pair.lab.name()), 1);
    let sends = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while sends.load(Ordering::Relaxed) {
                server.send(&picture(number), WAIT).expect("sent");
                number += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let [strict, lenient] = clients;
        // Of 500 datagrams of a frame hardly none is lost: it has holes, and what is not a hole is right.
        for _ in 0..20 {
            let frame = lenient.next(WAIT).expect("a frame");
            let number = frame.number();
            let mut holes = 0;
            for (at, &byte) in frame.iter().enumerate() {
                if !frame.holes().iter().any(|hole| hole.contains(&at)) {
                    assert_eq!(byte, pixel(number, at), "frame {number} at {at}");
                } else {
                    holes += 1;
                }
            }
            assert!(holes < frame.len());
        }
        assert!(lenient.counters().with_holes > 0);
        // The other gets none of those.
        until_true("frames are dropped", || strict.counters().incomplete > 10);
        while let Ok(frame) = strict.next(Wait::Never) {
            whole(&frame);
        }
        sends.store(false, Ordering::Relaxed);
    });
}

#[test]
fn frames_go_on_after_either_daemon_was_killed() {
    if skip() {
        return;
    }
    let Pair {
        nodes: [mut near, mut far],
        lab: _lab,
    } = Pair::over(Datapath::Udp);
    let (camera, viewer) = (participant(&near, "camera"), participant(&far, "viewer"));
    let client = Client::connect(&viewer, "camera", ClientOptions::default()).expect("a client");
    let mut server = Server::open(
        &camera,
        "camera",
        format(),
        ServerOptions::new(reliable(None)),
    )
    .expect("a server");
    let mut latest = None;
    let mut meet_again = || {
        until("a frame arrives", || {
            // While the daemon is away it fails, and the frame has a number nevertheless.
            let _ = server.send(&picture(server.frames()), WAIT);
            let frame = client.next(Wait::For(Duration::from_millis(50))).ok()?;
            let number = whole(&frame);
            assert!(latest.replace(number) < Some(number));
            Some(())
        });
    };
    meet_again();
    for _ in 0..2 {
        for node in [&mut near, &mut far] {
            node.kill();
            node.restart();
            meet_again();
        }
    }
}

/// A program that serves or views frames until it is killed.
fn program(node: &Node, what: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_takt-test-client"));
    command.arg(node.socket()).args([what, "camera"]);
    command.stdout(Stdio::null()).spawn().expect("a program")
}

fn killed(mut program: Child) {
    program.kill().expect("running");
    program.wait().expect("an end");
}

#[test]
fn a_server_that_is_killed_within_a_frame_gives_way_to_the_next_and_a_killed_client_stops_nobody() {
    if skip() {
        return;
    }
    let pair = Pair::over(Datapath::Udp);
    let [near, far] = &pair.nodes;
    let viewer = participant(far, "viewer");
    let client = Client::connect(&viewer, "camera", ClientOptions::default()).expect("a client");
    let next = || {
        let frame = client.next(WAIT).expect("a frame");
        assert!(frame.holes().is_empty());
        let number = frame.number();
        assert!(
            frame.iter().all(|&byte| byte == number as u8),
            "frame {number}"
        );
        number
    };
    let mut last = 0;
    for round in 0..3 {
        // They send without a pause: each is killed within a frame.
        let (server, other) = (program(near, "--serve"), program(far, "--view"));
        let mut number = next();
        // What had come of the one before; the new one begins anew.
        while round > 0 && number > last {
            (last, number) = (number, next());
        }
        for _ in 0..20 {
            (last, number) = (number, next());
            assert!(last < number);
        }
        killed(other);
        for _ in 0..20 {
            (last, number) = (number, next());
            assert!(last < number);
        }
        killed(server);
        last = number;
    }
}

#[test]
fn a_client_that_is_a_hundred_times_too_slow_costs_the_others_nothing() {
    if skip() {
        return;
    }
    const FRAMES: u64 = 200;
    let pair = Pair::over(Datapath::Udp);
    let camera = participant(&pair.nodes[0], "camera");
    let fast = participant(&pair.nodes[1], "fast");
    let fast = Client::connect(&fast, "camera", ClientOptions::default().all()).expect("a client");
    // Every frame counts for it, but it takes two.
    let stubborn = participant(&pair.nodes[1], "stubborn");
    let options = ClientOptions {
        depth: 16,
        ..ClientOptions::default().all()
    };
    let stubborn = Client::connect(&stubborn, "camera", options).expect("a client");
    let drops = Qos::slow().with_reliability(Reliability::Reliable {
        deadline: None,
        slow_sinks: SlowSinks::Drop,
    });
    let mut server =
        Server::open(&camera, "camera", format(), ServerOptions::new(drops)).expect("a server");
    server.wait_client(WAIT).expect("a client");
    for number in 0..FRAMES {
        server.send(&picture(number), WAIT).expect("sent");
        assert_eq!(whole(&fast.next(WAIT).expect("a frame")), number);
        if number % 100 == 99 {
            whole(&stubborn.next(WAIT).expect("a frame"));
        }
    }
    // It tells once it takes slices again.
    until_true("what it had no room for is counted", || {
        let _ = stubborn.next(Wait::Never);
        stubborn.counters().slices.channels.dropped_full > 0
    });
    assert_eq!(fast.counters().incomplete, 0);
}

/// What became of the frames of a stream that were sent over a link that lost a twentieth of all datagrams.
struct Passed {
    sent: u64,
    taken: u64,
    counters: takt_streaming::ClientCounters,
}

/// Sends short frames, of a datagram or two, while every twentieth datagram is lost, and then without loss until one arrives.
fn pass(qos: Qos) -> Passed {
    const FRAMES: u64 = 500;
    let format = Format::picture(Pixels::Gray, 64, 32).expect("a format");
    let picture = |number: u64| vec![number as u8; format.bytes()];
    let (pair, [near, far]) = nodes(Datapath::Udp, "");
    let [camera, viewer] =
        [near, far].map(|session| Participant::new(session).expect("a participant"));
    // Room for all: what is missing was lost on the way.
    let options = ClientOptions {
        frames: 1024,
        ..ClientOptions::default().all()
    };
    let client = Client::connect(&viewer, "camera", options).expect("a client");
    let options = ServerOptions::new(qos);
    let mut server = Server::open(&camera, "camera", format, options).expect("a server");
    server.wait_client(WAIT).expect("a client");
    let mut send = || {
        let number = server.frames();
        server.send(&picture(number), WAIT).expect("sent")
    };
    send();
    assert_eq!(client.next(WAIT).expect("a frame").number(), 0);
    let filter = Filter::losing(format!("{}-switch", pair.lab.name()), 5);
    for _ in 1..FRAMES {
        send();
    }
    assert!(filter.dropped() > 0);
    let (mut taken, mut last) = (1, 0);
    let mut take = |wait| {
        while let Ok(frame) = client.next(wait) {
            let number = frame.number();
            assert!(last < number, "{number} after {last}");
            assert!(*frame == *picture(number), "frame {number}");
            (last, taken) = (number, taken + 1);
        }
        (last, taken)
    };
    // What is repaired is repaired under loss.
    until_true("nothing comes any more", || {
        let before = take(Wait::Never);
        take(Wait::For(Duration::from_millis(300))) == before
    });
    drop(filter);
    let mut sent = FRAMES;
    let mut taken = 0;
    until_true("a frame arrives that was not lost", || {
        let number = send();
        sent = number + 1;
        let (last, so_far) = take(Wait::For(Duration::from_millis(50)));
        taken = so_far;
        last == number
    });
    let mut counters = client.counters();
    // Of a frame that never got its other half it is told when nothing has come for a while.
    until_true("nothing is under way", || {
        counters = client.counters();
        counters.frames + counters.incomplete + counters.lost == sent
    });
    Passed {
        sent,
        taken,
        counters,
    }
}

#[test]
fn every_frame_that_best_effort_loses_is_counted() {
    if skip() {
        return;
    }
    let passed = pass(Qos::slow());
    let counters = passed.counters;
    assert!(counters.incomplete + counters.lost > 0, "{counters:?}");
    assert!(counters.slices.channels.lost > 0, "{counters:?}");
    assert_eq!(
        (counters.frames, counters.skipped, counters.no_memory),
        (passed.taken, 0, 0),
        "{counters:?}"
    );
    assert_eq!(
        counters.frames + counters.incomplete + counters.lost,
        passed.sent
    );
}

#[test]
fn frames_that_cannot_be_repaired_in_time_are_dropped_and_counted_and_others_are_whole() {
    if skip() {
        return;
    }
    // Shorter than any way there and back.
    let late = pass(reliable(Some(Duration::from_micros(1))));
    let counters = late.counters;
    assert!(counters.incomplete + counters.lost > 0, "{counters:?}");
    assert!(counters.slices.channels.lost > 0, "{counters:?}");
    assert_eq!(counters.frames, late.taken, "{counters:?}");
    assert_eq!(
        counters.frames + counters.incomplete + counters.lost,
        late.sent
    );
    let in_time = pass(reliable(Some(PATIENCE)));
    let counters = in_time.counters;
    assert_eq!(
        (counters.frames, counters.incomplete, counters.lost),
        (in_time.sent, 0, 0),
        "{counters:?}"
    );
}
