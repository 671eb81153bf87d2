//! SIGKILL, SIGSTOP and SIGCONT of applications and daemons at random, in the middle of traffic, again and again
//! (`TAKT_KILLS` times, 20 unless said; `TAKT_KILL_SEED` repeats a run): nothing comes twice or out of order, what is
//! missing is counted and nothing else, and the daemon that lives through it holds in the end what it held at first.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng};
use rustix::process::{Pid, Signal, kill_process};
use takt::{ChannelId, Error, Sink, SinkOptions, Source, Wait};

use crate::support::application::is_introduction;
use crate::support::{Client, Datapath, Held, Pair, attach, introduce, number_of, skip};
use takt_testing::{PATIENCE, until};
use taktd::admin::proto::PeerState;

/// What is numbered and checked.
const CHECKED: ChannelId = ChannelId(5);
/// What the applications that are to be killed write and read.
const OTHERS: ChannelId = ChannelId(6);
/// Longer than what comes at once from a daemon that goes on.
const DEPTH: u32 = 16_384;
/// Between two messages: a rate that is sustained on a busy machine.
const PAUSE: Duration = Duration::from_micros(200);
/// Messages that are to come after each act, before the next one.
const BETWEEN: u64 = 200;
/// Memory that an allocator may keep.
const KEPT_KIB: u64 = 16 << 10;

fn acts() -> u32 {
    let text = std::env::var("TAKT_KILLS").unwrap_or_default();
    text.parse().unwrap_or(20)
}

pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a process");
    kill_process(pid, signal).expect("it runs");
}

/// Emits numbers until told to stop, through whatever happens.
fn write_on(source: &Source, stop: &AtomicBool, emitted: &AtomicU64) {
    let mut number = 0u64;
    while !stop.load(Relaxed) {
        let written = source
            .buffer_wait(8, Wait::For(PATIENCE))
            .and_then(|mut buffer| {
                buffer.copy_from_slice(&number.to_le_bytes());
                buffer.emit()
            });
        match written {
            Ok(_) => {
                number += 1;
                emitted.store(number, Relaxed);
            }
            Err(Error::Disconnected) => {}
            Err(error) => panic!("message {number}: {error}"),
        }
        std::thread::sleep(PAUSE);
    }
}

/// What a reader has got.
#[derive(Default)]
struct Got {
    count: AtomicU64,
    /// The highest number, and one.
    next: AtomicU64,
}

/// Takes numbers until told to stop and nothing comes any more.
fn read_on(sink: &Sink, stop: &AtomicBool, got: &Got) {
    loop {
        // Before the last look: nothing comes after that.
        let last_look = stop.load(Relaxed);
        // Which may take as long as a busy machine keeps a daemon.
        let wait = Duration::from_millis(if last_look { 15_000 } else { 200 });
        match sink.consume(Wait::For(wait)) {
            Ok(message) if is_introduction(&message) => {}
            Ok(message) => {
                let (number, next) = (number_of(&message), got.next.load(Relaxed));
                assert!(number >= next, "{number} when {next} was the next");
                got.next.store(number + 1, Relaxed);
                got.count.fetch_add(1, Relaxed);
            }
            Err(Error::WouldBlock | Error::TimedOut | Error::Disconnected) if last_look => return,
            Err(Error::WouldBlock | Error::TimedOut | Error::Disconnected) => {}
            Err(error) => panic!("after {}: {error}", got.count.load(Relaxed)),
        }
    }
}

/// Waits until so many messages more have come, of those that are emitted from now on.
fn go_on(emitted: &AtomicU64, got: &Got, more: u64) {
    let from = emitted.load(Relaxed);
    until("messages go on", || {
        (got.next.load(Relaxed) >= from + more).then_some(())
    });
}

/// One act: kills or stops somebody, but never kills the daemon that is to live.
fn act(
    rng: &mut StdRng,
    pair: &mut Pair,
    victim: usize,
    others: &mut [Option<Client>; 2],
) -> String {
    let at = rng.random_range(0..2);
    if !others[at].as_mut().is_some_and(Client::runs) {
        // The first, or its daemon was killed, so it has ended.
        others[at] = Some(Client::at_work(
            &pair.nodes[at].socket(),
            OTHERS,
            OTHERS,
            Stdio::null(),
        ));
    }
    let Some(other) = &others[at] else {
        unreachable!("just started");
    };
    let while_it = |rng: &mut StdRng| {
        // Now and then so long that the other node takes it for gone.
        let micros = match rng.random_range(0..8) {
            0 => rng.random_range(4_000_000..6_000_000),
            _ => rng.random_range(0..400_000),
        };
        std::thread::sleep(Duration::from_micros(micros));
    };
    match rng.random_range(0..7) {
        0 | 1 => {
            others[at] = None;
            format!("kill the application of node {at}")
        }
        2 => {
            other.stop();
            while_it(rng);
            others[at] = None;
            format!("stop the application of node {at} and kill it")
        }
        3 => {
            other.stop();
            while_it(rng);
            other.signal(Signal::CONT);
            format!("stop the application of node {at} for a while")
        }
        4 => {
            let pid = pair.nodes[at].pid();
            signal(pid, Signal::STOP);
            while_it(rng);
            signal(pid, Signal::CONT);
            format!("stop the daemon of node {at} for a while")
        }
        5 => {
            let node = &mut pair.nodes[victim];
            signal(node.pid(), Signal::STOP);
            while_it(rng);
            node.kill();
            node.restart();
            format!("stop the daemon of node {victim} and kill it")
        }
        _ => {
            let node = &mut pair.nodes[victim];
            node.kill();
            while_it(rng);
            node.restart();
            format!("kill the daemon of node {victim}")
        }
    }
}

/// The numbered messages go from node 0 to node 1; the daemon of node `victim` is killed.
fn kills(datapath: Datapath, victim: usize) {
    let seed = std::env::var("TAKT_KILL_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| rand::rng().random());
    println!("TAKT_KILL_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    all_are_counted(datapath, 1 - victim, |pair, go_on| {
        let mut others = [None, None];
        for number in 1..=acts() {
            let what = act(&mut rng, pair, victim, &mut others);
            println!("{number}: {what}");
            go_on();
        }
    });
}

/// Numbered messages go from node 0 to node 1, whatever is done `meanwhile`, which is told how to wait for more of them. The
/// daemon of `survivor` lives through it.
fn all_are_counted(
    datapath: Datapath,
    survivor: usize,
    meanwhile: impl FnOnce(&mut Pair, &dyn Fn()),
) {
    if skip() {
        return;
    }
    let mut pair = Pair::over(datapath);
    let [near, far] = [0, 1].map(|at| attach(&pair.nodes[at], "numbered"));
    let [out, into] =
        [&near, &far].map(|session| session.stream(datapath.qos()).expect("a stream"));
    let mut source = out.source(CHECKED).expect("a source");
    let options = SinkOptions {
        depth: DEPTH,
        ..SinkOptions::default()
    };
    let mut sink = into.sink_with(CHECKED, options).expect("a sink");
    introduce(&source, &[&sink]);
    let before = Held::by(&pair.nodes[survivor]);

    let [stop, quiet] = [false; 2].map(AtomicBool::new);
    let (emitted, got) = (AtomicU64::new(0), Got::default());
    std::thread::scope(|scope| {
        let (stop, quiet, emitted, got) = (&stop, &quiet, &emitted, &got);
        let (source, sink) = (&mut source, &mut sink);
        let writing = scope.spawn(move || write_on(source, stop, emitted));
        let reading = scope.spawn(move || read_on(sink, quiet, got));
        go_on(emitted, got, BETWEEN);
        meanwhile(&mut pair, &|| go_on(emitted, got, BETWEEN));
        go_on(emitted, got, BETWEEN);
        stop.store(true, Relaxed);
        writing.join().expect("the writer");
        quiet.store(true, Relaxed);
        reading.join().expect("the reader");
    });
    let (count, next) = (got.count.load(Relaxed), got.next.load(Relaxed));
    let counters = sink.counters();
    let missing = next - count;
    println!(
        "{} emitted, {count} received, {missing} missing before the last; {counters:?}; {} lost by the source",
        emitted.load(Relaxed),
        source.lost_at_disconnect()
    );
    let counted = counters.lost
        + counters.lost_at_disconnect
        + counters.dropped_full
        + counters.dropped_memory;
    assert_eq!(
        counted, missing,
        "what is missing is counted, and nothing else"
    );
    let survivor = &pair.nodes[survivor];
    let mut last = None;
    until("the daemon that lived holds what it held before", || {
        let held = Held::by(survivor);
        if last.replace(held) != Some(held) {
            println!("{held:?}, before {before:?}");
        }
        held.is_within(before, KEPT_KIB).then_some(())
    });
}

#[test]
fn what_is_missing_is_counted_while_subscribers_and_their_daemon_are_killed_over_kernel_udp() {
    kills(Datapath::Udp, 1);
}

#[test]
fn what_is_missing_is_counted_while_subscribers_and_their_daemon_are_killed_over_af_xdp() {
    kills(Datapath::Xdp, 1);
}

#[test]
fn what_is_missing_is_counted_while_publishers_and_their_daemon_are_killed_over_kernel_udp() {
    kills(Datapath::Udp, 0);
}

#[test]
fn what_is_missing_is_counted_while_publishers_and_their_daemon_are_killed_over_af_xdp() {
    kills(Datapath::Xdp, 0);
}

/// The daemon of a node is stopped until the other node takes it for gone, and goes on.
fn stopped(datapath: Datapath, at: usize) {
    all_are_counted(datapath, 1 - at, |pair, go_on| {
        for _ in 0..2 {
            let pid = pair.nodes[at].pid();
            signal(pid, Signal::STOP);
            pair.nodes[1 - at].await_peers(1, PeerState::Down);
            signal(pid, Signal::CONT);
            pair.await_peers(PeerState::Up);
            go_on();
        }
    });
}

#[test]
fn what_is_missing_is_counted_when_the_senders_daemon_is_stopped_until_it_is_taken_for_gone() {
    stopped(Datapath::Udp, 0);
}

#[test]
fn what_is_missing_is_counted_when_the_receivers_daemon_is_stopped_until_it_is_taken_for_gone() {
    stopped(Datapath::Udp, 1);
}
