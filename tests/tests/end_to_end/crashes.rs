//! SIGKILL, in the middle of traffic: of an application, of its daemon, of the peer's daemon.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use takt::{ChannelId, Error, Qos, Sink, Source, Wait};
use takt_lab::LabConfig;
use taktd::admin::proto::PeerState;

use crate::support::{
    Client, Datapath, Node, Pair, Stops, attach, exchange, introduce, number_of, put, skip, take,
};
use takt_testing::{PATIENCE, until};

const CHANNEL: ChannelId = ChannelId(5);
/// What the client that is to be killed writes and reads.
const VICTIM: ChannelId = ChannelId(6);

/// What is in shared memory under a name, and of ours.
fn left_in_shared_memory() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/dev/shm").expect("a directory");
    entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| name.contains("takt"))
        .collect()
}

#[test]
fn a_client_that_is_killed_is_gone_and_disturbs_nobody() {
    if skip() {
        return;
    }
    let pair = Pair::over(Datapath::Udp);
    let near = attach(&pair.nodes[0], "near");
    let far = attach(&pair.nodes[1], "far");
    let streams = [&near, &far].map(|session| session.stream(Qos::slow()).expect("a stream"));
    let source = streams[0].source(CHANNEL).expect("a source");
    let local = streams[0].sink(CHANNEL).expect("a sink");
    let remote = streams[1].sink(CHANNEL).expect("a sink");
    // Reads what the victim writes, so that it has messages on the way to another node as well.
    let witness = streams[1].sink(VICTIM).expect("a sink");
    introduce(&source, &[&local, &remote]);
    let mut number = 0;
    let mut on = || {
        exchange(&source, &[&local, &remote], number, 200);
        number += 200;
    };
    let mut admin = pair.nodes[0].admin();
    let arenas = || open_files(&pair.nodes[0], "/memfd:takt");
    let arenas_before = arenas();
    for _ in 0..3 {
        let mut client = Client::at_work(&pair.nodes[0].socket(), VICTIM, VICTIM, Stdio::inherit());
        until("its messages come", || witness.consume(Wait::Never).ok());
        assert_eq!(admin.sessions().len(), 2);
        assert_eq!(arenas(), arenas_before + 1);
        on();
        client.kill();
        on();
        until("its session is gone", || {
            (admin.sessions().len() == 1).then_some(())
        });
        // The lane's half goes a moment after the session is not shown any more.
        until("its memory is gone", || {
            (arenas() == arenas_before).then_some(())
        });
        // Other tests may have something there for a moment.
        until("nothing is left in shared memory", || {
            left_in_shared_memory().is_empty().then_some(())
        });
        on();
    }
    let sessions = admin.sessions();
    assert_eq!(sessions[0].name, "near");
    let counters = local.counters();
    assert_eq!((counters.lost, counters.dropped_full), (0, 0));
}

/// How many descriptors of the daemon lead there.
pub fn open_files(node: &Node, what: &str) -> usize {
    let entries = std::fs::read_dir(format!("/proc/{}/fd", node.pid())).expect("it runs");
    entries
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.to_string_lossy().starts_with(what))
        .count()
}

/// Writes numbers until told to stop, through whatever happens. How many.
fn write_on(source: &Source, stop: &AtomicBool) -> u64 {
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let emitted = source
            .buffer_wait(8, Wait::For(PATIENCE))
            .and_then(|mut buffer| {
                buffer.copy_from_slice(&number.to_le_bytes());
                buffer.emit()
            });
        match emitted {
            Ok(_) => number += 1,
            // Told only if a call is under way meanwhile.
            Err(Error::Disconnected) => {}
            Err(error) => panic!("message {number}: {error}"),
        }
        // A rate that every sink sustains.
        until("it is sent", || (source.pending() < 64).then_some(()));
    }
    number
}

/// Reads until `enough` says so. How many came, and how often it was told of a loss of the runtime.
fn read_on(sink: &Sink, mut enough: impl FnMut(u64, u32) -> bool) -> (u64, u32) {
    let (mut count, mut told, mut last) = (0, 0, None);
    while !enough(count, told) {
        match sink.consume(Wait::For(PATIENCE)) {
            Ok(message) => {
                let number = number_of(&message);
                assert!(last < Some(number), "{number} after {last:?}");
                last = Some(number);
                count += 1;
            }
            Err(Error::Disconnected) => told += 1,
            Err(error) => panic!("after {count} messages: {error}"),
        }
    }
    (count, told)
}

fn a_killed_daemon(datapath: Datapath) {
    if skip() {
        return;
    }
    let Pair {
        nodes: [mut near, far],
        lab: _lab,
    } = Pair::over(datapath);
    let [writer, reader, other] = ["writer", "reader", "other"]
        .map(|name| attach(if name == "other" { &far } else { &near }, name));
    let streams =
        [&writer, &reader, &other].map(|session| session.stream(datapath.qos()).expect("a stream"));
    let source = streams[0].source(CHANNEL).expect("a source");
    let local = streams[1].sink(CHANNEL).expect("a sink");
    let remote = streams[2].sink(CHANNEL).expect("a sink");
    introduce(&source, &[&local, &remote]);

    let [stop, restarted, noticed] = [false; 3].map(AtomicBool::new);
    let [lost_by_source, lost_by_sink, lost_remotely] = std::thread::scope(|scope| {
        let [stop, restarted, noticed] = [&stop, &restarted, &noticed];
        let stops = Stops(&[stop]);
        let writing = scope.spawn(move || {
            let emitted = write_on(&source, stop);
            assert!(emitted > 0);
            source.lost_at_disconnect()
        });
        let reading = scope.spawn(move || {
            let mut after = None;
            let (_, told) = read_on(&local, |count, told| {
                noticed.store(told > 0, Ordering::Relaxed);
                if told > 0 && restarted.load(Ordering::Relaxed) {
                    count - *after.get_or_insert(count) > 1000
                } else {
                    false
                }
            });
            assert_eq!(told, 1, "told once of one loss");
            local.counters().lost_at_disconnect
        });
        let far_reading = scope.spawn(move || {
            let mut after = None;
            let (_, told) = read_on(&remote, |count, _| {
                restarted.load(Ordering::Relaxed) && count - *after.get_or_insert(count) > 1000
            });
            assert_eq!(told, 0, "its own daemon was there");
            remote.counters().lost
        });
        near.kill();
        // Back before the reader has read what it had, it would not be told.
        until("the reader is told", || {
            noticed.load(Ordering::Relaxed).then_some(())
        });
        near.restart();
        restarted.store(true, Ordering::Relaxed);
        let sink = reading.join().expect("the reader");
        let remotely = far_reading.join().expect("the far reader");
        drop(stops);
        [writing.join().expect("the writer"), sink, remotely]
    });
    println!(
        "lost at disconnect: {lost_by_source} by the source, {lost_by_sink} by the sink; {lost_remotely} at the peer"
    );
    for (session, stream) in [&writer, &reader].into_iter().zip(&streams) {
        assert!(session.is_attached());
        assert_eq!(stream.datapath(), datapath.name());
    }
    let mut names: Vec<String> = near
        .admin()
        .sessions()
        .into_iter()
        .map(|s| s.name)
        .collect();
    names.sort();
    assert_eq!(names, ["reader", "writer"]);
}

#[test]
fn clients_of_a_killed_daemon_are_told_and_go_on_once_it_is_back_over_kernel_udp() {
    a_killed_daemon(Datapath::Udp);
}

#[test]
fn clients_of_a_killed_daemon_are_told_and_go_on_once_it_is_back_over_af_xdp() {
    a_killed_daemon(Datapath::Xdp);
}

#[test]
fn a_call_under_way_when_the_daemon_is_killed_gets_the_typed_error() {
    if skip() {
        return;
    }
    let mut pair = Pair::over(Datapath::Udp);
    let session = attach(&pair.nodes[0], "waiting");
    let stream = session.stream(Qos::slow()).expect("a stream");
    let sink = stream.sink(CHANNEL).expect("a sink");
    let source = stream.source(CHANNEL).expect("a source");
    std::thread::scope(|scope| {
        let (begun, begins) = std::sync::mpsc::channel();
        let waiting = scope.spawn(move || {
            begun.send(()).expect("somebody listens");
            let error = sink
                .consume(Wait::Forever)
                .map(|_| ())
                .expect_err("no message");
            (sink, error)
        });
        begins.recv().expect("it begins");
        pair.nodes[0].kill();
        let (sink, error) = waiting.join().expect("the reader");
        assert!(matches!(error, Error::Disconnected), "{error}");
        let refused = until("the source is told", || source.buffer(8).err());
        assert!(matches!(refused, Error::Disconnected), "{refused}");
        assert!(matches!(
            session.stream(Qos::slow()),
            Err(Error::Disconnected)
        ));
        pair.nodes[0].restart();
        introduce(&source, &[&sink]);
        exchange(&source, &[&sink], 0, 100);
    });
}

/// Between nodes with these sections of configuration.
pub fn a_killed_peer(sections: &str, qos: Qos) {
    if skip() {
        return;
    }
    let mut pair = Pair::with(&LabConfig::default(), sections);
    let near = attach(&pair.nodes[0], "near");
    let far = attach(&pair.nodes[1], "far");
    let streams = [&near, &far].map(|session| session.stream(qos).expect("a stream"));
    let source = streams[0].source(CHANNEL).expect("a source");
    let local = streams[0].sink(CHANNEL).expect("a sink");
    let remote = streams[1].sink(CHANNEL).expect("a sink");
    introduce(&source, &[&local, &remote]);
    exchange(&source, &[&local, &remote], 0, 500);
    pair.nodes[1].kill();
    // The near node's own applications do not notice.
    exchange(&source, &[&local], 1000, 500);
    pair.nodes[0].await_peers(1, PeerState::Down);
    exchange(&source, &[&local], 2000, 500);
    pair.nodes[1].restart();
    pair.await_peers(PeerState::Up);
    let mut number = 3000;
    until("the remote sink hears again", || {
        number += 1;
        put(&source, number, 64);
        assert_eq!(take(&local), number);
        match remote.consume(Wait::Never) {
            Ok(message) => Some(number_of(&message)),
            Err(Error::WouldBlock | Error::Disconnected) => None,
            Err(error) => panic!("{error}"),
        }
    });
    introduce(&source, &[&local, &remote]);
    exchange(&source, &[&local, &remote], 100_000_000, 500);
    let counters = local.counters();
    assert_eq!((counters.lost, counters.dropped_full), (0, 0));
    // Sent while the far session was detached.
    assert!(remote.counters().lost_at_disconnect > 0);
}

#[test]
fn a_peer_whose_daemon_was_killed_comes_back_by_itself_over_kernel_udp() {
    a_killed_peer(Datapath::Udp.section(), Datapath::Udp.qos());
}

#[test]
fn a_peer_whose_daemon_was_killed_comes_back_by_itself_over_af_xdp() {
    a_killed_peer(Datapath::Xdp.section(), Datapath::Xdp.qos());
}
