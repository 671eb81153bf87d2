//! Servers and clients, with a runtime inside each program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use takt::{Qos, Reliability, Session, SlowSinks, Wait};
use takt_embedded::{Embedded, Settings};
use takt_messaging::{Participant, PublisherOptions, SubscriberOptions};
use takt_streaming::{
    Client, ClientOptions, Error, Format, Frame, Pixels, Server, ServerOptions, Slices,
};
use takt_testing::{Directory, until_true};

const PATIENCE: Wait = Wait::For(Duration::from_secs(60));
const NAME: &str = "camera/1";

/// Programs of one user.
struct Programs {
    directory: Directory,
    runtimes: Vec<Embedded>,
}

impl Programs {
    fn new() -> Self {
        Self {
            directory: Directory::private(),
            runtimes: Vec::new(),
        }
    }

    fn session(&mut self, name: &str) -> Session {
        let settings = Settings {
            rendezvous: Some(self.directory.join("nodes")),
            ..Settings::local()
        };
        let runtime = Embedded::start(settings).expect("a runtime");
        let session = runtime.session(name).expect("a session");
        self.runtimes.push(runtime);
        session
    }

    fn participant(&mut self, name: &str) -> Participant {
        let session = self.session(name);
        let opened = Participant::builder(session).name(name).open();
        opened.expect("a participant")
    }
}

fn small() -> Format {
    Format::picture(Pixels::Rgb, 320, 240).expect("a format")
}

/// What frame `number` is, byte by byte.
fn pixel(number: u64, at: usize) -> u8 {
    (at as u64)
        .wrapping_mul(2_654_435_761)
        .wrapping_add(number * 97)
        .to_le_bytes()[2]
}

fn picture(number: u64, format: Format) -> Vec<u8> {
    (0..format.bytes()).map(|at| pixel(number, at)).collect()
}

fn check(frame: &Frame) {
    assert!(frame.holes().is_empty());
    assert_eq!(frame.len(), frame.format().bytes());
    let wrong = frame
        .iter()
        .enumerate()
        .find(|&(at, &byte)| byte != pixel(frame.number(), at));
    assert_eq!(wrong, None, "frame {}", frame.number());
    assert!(frame.completed() >= frame.captured());
}

fn reliable(slow_sinks: SlowSinks) -> Qos {
    Qos::slow().with_reliability(Reliability::Reliable {
        deadline: None,
        slow_sinks,
    })
}

fn server(of: &Participant, format: Format, qos: Qos) -> Server {
    Server::open(of, NAME, format, ServerOptions::new(qos)).expect("a server")
}

fn client(of: &Participant, options: ClientOptions) -> Client {
    Client::connect(of, NAME, options).expect("a client")
}

#[test]
fn every_frame_of_a_reliable_stream_comes_whole_and_in_order_until_the_end() {
    const FRAMES: u64 = 100;
    let mut programs = Programs::new();
    let (camera, viewer) = (
        programs.participant("camera"),
        programs.participant("viewer"),
    );
    // Beside one in the same program.
    let clients = [&viewer, &camera].map(|of| client(of, ClientOptions::default().all()));
    let mut server = server(&camera, small(), reliable(SlowSinks::Wait));
    until_true("both are known", || {
        server.wait_client(PATIENCE).expect("a client") == 2
    });
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(move || {
                for number in 0..FRAMES {
                    let frame = client.next(PATIENCE).expect("a frame");
                    assert_eq!(frame.number(), number);
                    assert_eq!(frame.format(), small());
                    check(&frame);
                }
                assert!(client.next(PATIENCE).is_err_and(|error| error.is_end()));
                let counters = client.counters();
                assert_eq!(
                    (counters.frames, counters.incomplete, counters.lost),
                    (FRAMES, 0, 0)
                );
            });
        }
        for number in 0..FRAMES {
            let sent = match number % 2 {
                0 => server.send(&picture(number, small()), PATIENCE),
                _ => server.fill(takt::TaiTime::from_nanos(1), PATIENCE, |offset, memory| {
                    for (at, byte) in memory.iter_mut().enumerate() {
                        *byte = pixel(number, offset + at);
                    }
                }),
            };
            assert_eq!(sent.expect("sent"), number);
        }
        drop(server);
    });
}

#[test]
fn a_client_that_is_slow_gets_the_latest_frame_whole_and_disturbs_nobody() {
    const FRAMES: u64 = 300;
    let mut programs = Programs::new();
    let camera = programs.participant("camera");
    let fast = client(
        &programs.participant("fast"),
        ClientOptions::default().all(),
    );
    let slow = client(&programs.participant("slow"), ClientOptions::default());
    // Connected, and gone without a word to anybody.
    let gone = client(&programs.participant("gone"), ClientOptions::default());
    let mut server = server(&camera, small(), reliable(SlowSinks::Wait));
    until_true("all are known", || {
        server.wait_client(PATIENCE).expect("a client") == 3
    });
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..FRAMES {
                let frame = fast.next(PATIENCE).expect("a frame");
                assert_eq!(frame.number(), number);
                check(&frame);
            }
            ended.store(true, Ordering::Relaxed);
        });
        scope.spawn(|| {
            // It holds one frame for as long as the other takes all, and then gets the last.
            let held = slow.next(PATIENCE).expect("a frame");
            until_true("the fast one has all", || ended.load(Ordering::Relaxed));
            check(&held);
            let mut numbers = vec![held.number()];
            while numbers.last() != Some(&(FRAMES - 1)) {
                let frame = slow.next(PATIENCE).expect("a frame");
                check(&frame);
                numbers.push(frame.number());
            }
            assert!(numbers.is_sorted() && numbers.len() <= 3, "{numbers:?}");
            let counters = slow.counters();
            let all = counters.frames + counters.skipped + counters.no_memory;
            assert_eq!((all, counters.incomplete, counters.lost), (FRAMES, 0, 0));
        });
        for number in 0..FRAMES {
            if number == FRAMES / 2 {
                programs.runtimes.pop();
            }
            server
                .send(&picture(number, small()), PATIENCE)
                .expect("sent");
        }
    });
    drop(gone);
}

#[test]
fn a_frame_that_is_larger_than_all_memory_passes_through_it() {
    let mut programs = Programs::new();
    let (camera, viewer) = (
        programs.participant("camera"),
        programs.participant("viewer"),
    );
    // 8K: a session has 64 MiB to send from.
    let format = Format::picture(Pixels::Rgb, 7680, 4320).expect("a format");
    let client = client(&viewer, ClientOptions::default().all());
    let mut server = server(&camera, format, reliable(SlowSinks::Wait));
    server.wait_client(PATIENCE).expect("a client");
    server.send(&picture(0, format), PATIENCE).expect("sent");
    check(&client.next(PATIENCE).expect("a frame"));

    // One that its client does not want.
    let options = ClientOptions {
        most_bytes: format.bytes() - 1,
        ..ClientOptions::default()
    };
    let other = programs.participant("other");
    let short = Client::connect(&other, NAME, options).expect("a client");
    until_true("it is known", || {
        server.wait_client(PATIENCE).expect("a client") == 2
    });
    server.send(&picture(1, format), PATIENCE).expect("sent");
    check(&client.next(PATIENCE).expect("a frame"));
    until_true("it is counted", || short.counters().too_large == 1);
    assert!(
        short
            .next(Wait::Never)
            .is_err_and(|error| error.is_would_block())
    );
}

#[test]
fn a_frame_whose_slices_are_held_up_on_their_way_is_whole_when_they_come() {
    let mut programs = Programs::new();
    let (camera, viewer) = (
        programs.participant("camera"),
        programs.participant("viewer"),
    );
    let client = client(&viewer, ClientOptions::default().all());
    let options = ServerOptions {
        slice: 4096,
        // Fewer than a frame has: the first leave while the others are filled.
        depth: 4,
        ..ServerOptions::new(reliable(SlowSinks::Wait))
    };
    let mut server = Server::open(&camera, NAME, small(), options).expect("a server");
    server.wait_client(PATIENCE).expect("a client");
    for number in 0..2 {
        let frame = picture(number, small());
        let mut halfway = false;
        let copy = |offset: usize, memory: &mut [u8]| {
            if !halfway && offset > frame.len() / 2 {
                halfway = true;
                // Longer than a frame is waited for of which slices are lost.
                std::thread::sleep(Duration::from_millis(600));
            }
            memory.copy_from_slice(&frame[offset..offset + memory.len()]);
        };
        let sent = server.fill(takt_streaming::now(), PATIENCE, copy);
        assert_eq!(sent.expect("sent"), number);
        check(&client.next(PATIENCE).expect("a frame"));
    }
    assert_eq!(client.counters().incomplete, 0);
}

/// A client that takes nothing, and a server that it holds up: all memory that the server has is on its way. How many frames were
/// sent whole; the next one was cut short, after so many bytes.
fn held_up(programs: &mut Programs) -> (Client, Server, u64, usize) {
    let (camera, viewer) = (
        programs.participant("camera"),
        programs.participant("viewer"),
    );
    let options = ClientOptions {
        frames: 1,
        depth: 16,
        ..ClientOptions::default().all()
    };
    let client = client(&viewer, options);
    let mut server = server(&camera, small(), reliable(SlowSinks::Wait));
    server.wait_client(PATIENCE).expect("a client");
    loop {
        let (sent, mut filled) = (server.frames(), 0);
        let frame = picture(sent, small());
        let result = server.fill(
            takt_streaming::now(),
            // Long beside what a busy machine may hold up.
            Wait::For(Duration::from_secs(15)),
            |offset, memory| {
                assert_eq!(offset, filled, "once each, in order");
                memory.copy_from_slice(&frame[offset..offset + memory.len()]);
                filled += memory.len();
            },
        );
        if let Err(error) = result {
            assert!(error.is_timed_out(), "{error}");
            assert!(filled < frame.len());
            return (client, server, sent, filled);
        }
    }
}

#[test]
fn a_client_that_holds_all_memory_of_a_reliable_server_hears_of_the_end() {
    let mut programs = Programs::new();
    let (client, mut server, sent, filled) = held_up(&mut programs);
    // Of one more nothing is sent.
    let failed = server.fill(takt_streaming::now(), Wait::Never, |_, _| {
        panic!("there is no memory")
    });
    assert!(failed.expect_err("no memory").is_would_block());
    // Before the client takes anything: memory for it was kept.
    drop(server);
    for number in 0..sent {
        let frame = client.next(PATIENCE).expect("a frame");
        assert_eq!(frame.number(), number);
        check(&frame);
    }
    let end = client.next(PATIENCE).map(drop);
    assert!(end.is_err_and(|error| error.is_end()));
    let counters = client.counters();
    let cut = u64::from(filled > 0);
    assert_eq!(
        (counters.frames, counters.incomplete, counters.lost),
        (sent, cut, 2 - cut),
        "{counters:?}"
    );
}

#[test]
fn a_frame_for_which_there_is_too_little_memory_is_dropped_and_those_after_it_are_whole() {
    let mut programs = Programs::new();
    let (client, mut server, sent, filled) = held_up(&mut programs);
    // Not for one slice more.
    let failed = server.fill(takt_streaming::now(), Wait::Never, |_, _| {
        panic!("there is no memory")
    });
    assert!(failed.expect_err("no memory").is_would_block());
    assert_eq!(server.frames(), sent + 2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            server
                .send(&picture(sent + 2, small()), PATIENCE)
                .expect("sent");
        });
        for number in (0..sent).chain([sent + 2]) {
            let frame = client.next(PATIENCE).expect("a frame");
            assert_eq!(frame.number(), number);
            check(&frame);
        }
    });
    let cut = u64::from(filled > 0);
    // They are shown right after the frame.
    until_true("all is counted", || {
        let counters = client.counters();
        assert_eq!((counters.frames, counters.incomplete), (sent + 1, cut));
        counters.lost == 2 - cut
    });
}

#[test]
fn slices_are_read_in_place_as_they_come() {
    let mut programs = Programs::new();
    let (camera, viewer) = (
        programs.participant("camera"),
        programs.participant("viewer"),
    );
    let slices = Slices::connect(&viewer, NAME, SubscriberOptions::default()).expect("slices");
    let options = ServerOptions {
        slice: 3840,
        period: Some(Duration::from_millis(20)),
        ..ServerOptions::new(reliable(SlowSinks::Wait))
    };
    let mut server = Server::open(&camera, NAME, small(), options).expect("a server");
    server.wait_client(PATIENCE).expect("a client");
    server.send(&picture(0, small()), PATIENCE).expect("sent");
    // The first lines before there is a second frame.
    for line in (0..240).step_by(4) {
        let slice = slices.take(PATIENCE).expect("a slice");
        assert_eq!(
            (slice.frame(), slice.offset(), slice.len()),
            (0, line * 960, 3840)
        );
        assert_eq!(slice.period(), Some(Duration::from_millis(20)));
        assert!(
            slice
                .iter()
                .enumerate()
                .all(|(at, &byte)| byte == pixel(0, line * 960 + at))
        );
    }
    drop(server);
    assert!(slices.take(PATIENCE).is_err_and(|error| error.is_end()));
}

#[test]
fn slices_of_a_frame_that_is_spread_leave_at_their_launch_times() {
    const PERIOD: Duration = Duration::from_secs(1);
    const SLICES: usize = 60;
    let mut programs = Programs::new();
    let (camera, viewer) = (
        programs.participant("camera"),
        programs.participant("viewer"),
    );
    let slices = Slices::connect(&viewer, NAME, SubscriberOptions::default()).expect("slices");
    let options = ServerOptions {
        slice: 3840,
        ..ServerOptions::new(Qos::slow()).spread(PERIOD)
    };
    let mut server = Server::open(&camera, NAME, small(), options).expect("a server");
    server.wait_client(PATIENCE).expect("a client");
    // Both read one clock. Slice i of n has its launch 0.3 ms + 0.9 * period * i / n after the call, at least; a second frame
    // follows the slices of the first.
    let spread = (PERIOD * 9 / 10).as_nanos() as i64;
    let begin = takt_streaming::now().as_nanos() + 300_000;
    let mut even = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..2 {
                server
                    .send(&picture(number, small()), PATIENCE)
                    .expect("sent");
            }
        });
        for frame in 0..2 {
            for index in 0..SLICES {
                let slice = slices.take(PATIENCE).expect("a slice");
                let came = takt_streaming::now().as_nanos();
                assert_eq!((slice.frame(), slice.offset()), (frame, index * 3840));
                let launch = begin + frame as i64 * spread + spread * index as i64 / SLICES as i64;
                assert!(
                    came >= launch,
                    "slice {index} of frame {frame} is there {} ns before its launch",
                    launch - came
                );
                // Not all at the end.
                even += usize::from(came < begin + (frame as i64 + 1) * spread);
            }
        }
    });
    assert!(even > 0, "all slices waited for the last one");
}

#[test]
fn what_no_server_has_written_is_counted_and_harms_nothing() {
    let mut programs = Programs::new();
    let (camera, viewer) = (
        programs.participant("camera"),
        programs.participant("viewer"),
    );
    let client = client(&viewer, ClientOptions::default().all());
    let mut server = server(&camera, small(), reliable(SlowSinks::Wait));
    server.wait_client(PATIENCE).expect("a client");
    server.send(&picture(0, small()), PATIENCE).expect("sent");
    check(&client.next(PATIENCE).expect("a frame"));
    let options = PublisherOptions::new(reliable(SlowSinks::Wait));
    let forger = camera.publisher_with(NAME, options).expect("a publisher");
    for message in [&b""[..], &[0; 47], &[0xff; 48], &[1; 100]] {
        forger.publish(message, PATIENCE).expect("published");
    }
    server.send(&picture(1, small()), PATIENCE).expect("sent");
    check(&client.next(PATIENCE).expect("a frame"));
    until_true("they are counted", || {
        client.counters().slices.malformed == 4
    });
}

#[test]
fn what_no_server_has_written_prolongs_no_wait() {
    let mut programs = Programs::new();
    let [camera, viewer, reader] =
        ["camera", "viewer", "reader"].map(|name| programs.participant(name));
    let client = client(&viewer, ClientOptions::default().all());
    let slices = Slices::connect(&reader, NAME, SubscriberOptions::default()).expect("slices");
    let forger = camera.publisher_with(NAME, PublisherOptions::new(Qos::slow()));
    let forger = forger.expect("a publisher");
    until_true("both are known", || {
        forger.wait_subscriber(PATIENCE).expect("a reader") == 2
    });
    // The first of two slices of a frame of 512 bytes, and no other.
    let mut half = vec![0; 48 + 256];
    half[0] = 1;
    for (at, word) in [(4, 256u32), (24, 512), (36, 512), (40, 1)] {
        half[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    forger.publish(&half, PATIENCE).expect("published");
    slices.take(PATIENCE).expect("a slice");
    let [done, ended] = &[const { AtomicBool::new(false) }; 2];
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // More often than anybody gives up; a minute if nobody does.
            for _ in 0..6000 {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                forger.publish(b"junk", PATIENCE).expect("published");
                std::thread::sleep(Duration::from_millis(10));
            }
            ended.store(true, Ordering::Relaxed);
        });
        let waited = slices.take(Wait::For(Duration::from_millis(100)));
        let in_time = !ended.load(Ordering::Relaxed);
        until_true("half a frame is given up", || {
            client.counters().incomplete == 1 || ended.load(Ordering::Relaxed)
        });
        let given_up = !ended.load(Ordering::Relaxed);
        done.store(true, Ordering::Relaxed);
        assert!(waited.is_err_and(|error| error.is_timed_out()));
        assert!(in_time && given_up, "{in_time} {given_up}");
    });
    assert!(client.counters().slices.malformed > 0);
}

#[test]
fn waits_end_by_time_by_others_and_with_a_descriptor() {
    let mut programs = Programs::new();
    let (camera, viewer) = (
        programs.participant("camera"),
        programs.participant("viewer"),
    );
    let client = Arc::new(client(&viewer, ClientOptions::default().all()));
    let ready = |most: i64| {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::from_borrowed_fd(client.fd(), PollFlags::IN)];
        let most = Timespec {
            tv_sec: most,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&most)).expect("a poll") == 1
    };
    assert!(
        client
            .next(Wait::Never)
            .is_err_and(|error| error.is_would_block())
    );
    let soon = Wait::For(Duration::from_millis(1));
    assert!(client.next(soon).is_err_and(|error| error.is_timed_out()));
    let waits = {
        let client = client.clone();
        std::thread::spawn(move || client.next(Wait::Forever).map(drop))
    };
    client.wake();
    let woken = waits.join().expect("a thread");
    assert!(woken.is_err_and(|error| error.is_interrupted()));
    assert!(!ready(0));

    let mut server = server(&camera, small(), reliable(SlowSinks::Wait));
    server.wait_client(PATIENCE).expect("a client");
    for number in 0..2 {
        server
            .send(&picture(number, small()), PATIENCE)
            .expect("sent");
    }
    for _ in 0..2 {
        assert!(ready(60));
        check(&client.next(Wait::Never).expect("a frame"));
    }
    assert!(!ready(0));
}

#[test]
fn wrong_options_are_refused_by_name() {
    let mut programs = Programs::new();
    let participant = programs.participant("wrong");
    let client = |name: &str, options| Client::connect(&participant, name, options).map(drop);
    let server = |name: &str, options| Server::open(&participant, name, small(), options).map(drop);
    let usual = ServerOptions::default();
    let refused = |result: Result<(), Error>, told: &str| {
        let error = result.expect_err("wrong").to_string();
        assert!(error.contains(told), "{error}");
    };
    let many = ClientOptions {
        frames: 1025,
        ..ClientOptions::default()
    };
    refused(client(NAME, many), "1025 frames are too many to wait");
    refused(
        client("camera/*", ClientOptions::default()),
        "write the name of one",
    );
    refused(server("camera/*", usual), "only subscribers have");
    refused(
        server(NAME, usual.spread(Duration::ZERO)),
        "more than 0 and at most 4.2 s",
    );
    refused(
        server(NAME, usual.spread(Duration::from_secs(5))),
        "a period of 5s",
    );
    let pace = ServerOptions {
        period: None,
        ..usual.spread(Duration::from_secs(1))
    };
    refused(server(NAME, pace), "only over a known period");
    let newest = ServerOptions::new(Qos::slow().latest());
    refused(server(NAME, newest), "loses the other slices of its frames");
    let mut server = Server::open(&participant, NAME, small(), usual).expect("a server");
    let short = server.send(&[0; 7], PATIENCE).map(drop);
    refused(
        short,
        "a frame of 7 bytes is not one of 320x240 rgb, which has 230400",
    );
}
