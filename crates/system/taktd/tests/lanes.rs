//! Sessions that leave overloaded lanes, of a daemon with two of them: a process, as operators run it.

mod support;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use support::Daemon;
use takt::{ChannelId, Error, Qos, Session, Sink, SinkOptions, Source, Stream, Wait};
use takt_testing::until;
use taktd::admin::client::Client;
use taktd::admin::proto::{
    self, GetStatusRequest, ListSessionsRequest, MoveSessionRequest, RelieveChannelRequest,
    ReloadRequest,
};

/// Low marks: a lane gets no more than a part of a machine that is busy otherwise.
const MARKS: &str = "high_percent = 10\nlow_percent = 5\nhold_seconds = 3600\n";

/// Two lanes and a tenant for each of three programs; `lanes`: whether sessions leave by themselves, `victim`: keys of the victim's
/// listener.
fn configuration(lanes: bool, victim: &str) -> String {
    let listener = |name: &str, more: &str| {
        format!("[[listener]]\npath = \"DIR/{name}.sock\"\nidentity = \"{name}\"\n{more}")
    };
    format!(
        "[[lane]]\n[[lane]]\n[balance]\nlanes = {lanes}\n{MARKS}{}{}{}",
        listener("hog", ""),
        listener("partner", "lanes = [1]\n"),
        listener("victim", victim)
    )
}

async fn node(client: &mut Client) -> proto::Node {
    let status = client.get_status(GetStatusRequest {}).await;
    status.expect("status").into_inner().node.expect("a node")
}

/// The only session of a tenant.
async fn session(client: &mut Client, identity: &str) -> Option<proto::Session> {
    let identity = identity.to_owned();
    let list = client
        .list_sessions(ListSessionsRequest {
            identity,
            ..ListSessionsRequest::default()
        })
        .await;
    let mut sessions = list.expect("sessions").into_inner().sessions;
    sessions.retain(|session| !session.streams.is_empty());
    (sessions.len() == 1).then(|| sessions.remove(0))
}

/// Asks again and again until there is an answer.
async fn await_that<T>(
    what: &str,
    client: &mut Client,
    ask: impl AsyncFn(&mut Client) -> Option<T>,
) -> T {
    let deadline = Instant::now() + takt_testing::PATIENCE;
    loop {
        if let Some(found) = ask(client).await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn attach(daemon: &Daemon, tenant: &str) -> Session {
    let socket = daemon.directory.join(&format!("{tenant}.sock"));
    let session = Session::builder().socket(socket).name(tenant).open();
    session.expect("a session")
}

/// Threads that end with their test.
struct Worker(&'static AtomicBool, Option<JoinHandle<()>>);

impl Worker {
    fn start(work: impl Fn(&AtomicBool) + Send + 'static) -> Self {
        let stop: &'static AtomicBool = Box::leak(Box::default());
        let thread = std::thread::spawn(move || work(stop));
        Self(stop, Some(thread))
    }

    fn end(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            thread.join().expect("no panic");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Gives its lane all the work that this takes: messages for several sinks, which nobody reads.
fn hog(daemon: &Daemon) -> Worker {
    let session = attach(daemon, "hog");
    let stream = session.stream(Qos::slow()).expect("a stream");
    let source = stream.source(ChannelId(1)).expect("a source");
    let sinks = [(); 4].map(|()| stream.sink(ChannelId(1)).expect("a sink"));
    Worker::start(move |stop| {
        while !stop.load(Ordering::Relaxed) {
            let wait = Wait::For(Duration::from_millis(100));
            if let Ok(buffer) = source.buffer_wait(1024, wait) {
                let _ = buffer.emit();
            }
        }
        let _ = &sinks;
    })
}

/// What has come, in its order, and what was counted as missed.
#[derive(Clone, Default)]
struct Arrived {
    numbers: Arc<Mutex<Vec<u64>>>,
    missed: Arc<AtomicU64>,
}

impl Arrived {
    fn numbers(&self) -> Vec<u64> {
        self.numbers.lock().expect("no panic").clone()
    }

    fn last(&self) -> u64 {
        self.numbers
            .lock()
            .expect("no panic")
            .last()
            .copied()
            .unwrap_or(0)
    }

    /// More has come than before.
    fn flows(&self) {
        let before = self.numbers().len();
        until("more comes", || {
            (self.numbers().len() > before + 100).then_some(())
        });
    }

    /// Each is greater than the one before; how many between them are not there.
    fn missing(&self) -> u64 {
        let numbers = self.numbers();
        let gaps = numbers.windows(2).map(|pair| {
            assert!(pair[0] < pair[1], "{} after {}", pair[1], pair[0]);
            pair[1] - pair[0] - 1
        });
        gaps.sum()
    }
}

/// Emits numbers, each once, whatever becomes of its session: so many at a time.
fn count(source: Source, emitted: &Arc<AtomicU64>, at_a_time: u64) -> Worker {
    let emitted = emitted.clone();
    Worker::start(move |stop| {
        while !stop.load(Ordering::Relaxed) {
            let next = emitted.load(Ordering::Relaxed);
            let wait = Wait::For(Duration::from_millis(100));
            let Ok(mut buffer) = source.buffer_wait(8, wait) else {
                continue;
            };
            buffer.copy_from_slice(&next.to_le_bytes());
            if buffer.emit().is_ok() {
                emitted.store(next + 1, Ordering::Relaxed);
            }
            if next.is_multiple_of(at_a_time) {
                std::thread::sleep(Duration::from_millis(3));
            }
        }
    })
}

fn read(sink: Sink, arrived: &Arrived) -> Worker {
    let arrived = arrived.clone();
    Worker::start(move |stop| {
        while !stop.load(Ordering::Relaxed) {
            match sink.consume(Wait::For(Duration::from_millis(20))) {
                Ok(message) => {
                    let number = u64::from_le_bytes(message[..].try_into().expect("8 bytes"));
                    arrived.numbers.lock().expect("no panic").push(number);
                }
                Err(Error::TimedOut | Error::Disconnected) => {}
                Err(error) => panic!("{error}"),
            }
            let counted = sink.counters();
            let dropped = counted.dropped_full + counted.dropped_memory;
            let missed = counted.lost + counted.lost_at_disconnect + dropped;
            arrived.missed.store(missed, Ordering::Relaxed);
        }
    })
}

/// Numbers both ways between a victim and its partner on the other lane.
struct Pair {
    victim: Session,
    _partner: Session,
    counting: Vec<Worker>,
    reading: Vec<Worker>,
    at_partner: Arrived,
    at_victim: Arrived,
    by_victim: Arc<AtomicU64>,
}

impl Pair {
    /// Numbers that are little work for a lane.
    fn start(daemon: &Daemon) -> Self {
        Self::with(daemon, 1)
    }

    fn with(daemon: &Daemon, at_a_time: u64) -> Self {
        let (partner, victim) = (attach(daemon, "partner"), attach(daemon, "victim"));
        let stream = |session: &Session| session.stream(Qos::slow()).expect("a stream");
        let (of_partner, of_victim) = (stream(&partner), stream(&victim));
        let options = SinkOptions {
            depth: 65_536,
            ..SinkOptions::default()
        };
        let sink = |stream: &Stream, channel| {
            let sink = stream.sink_with(ChannelId(channel), options);
            sink.expect("a sink")
        };
        let (to_partner, to_victim) = (sink(&of_partner, 10), sink(&of_victim, 9));
        let source =
            |stream: &Stream, channel| stream.source(ChannelId(channel)).expect("a source");
        let (from_victim, from_partner) = (source(&of_victim, 10), source(&of_partner, 9));
        until("both are heard", || {
            let heard = |source: &Source| source.readers().is_ok_and(|count| count == 1);
            (heard(&from_victim) && heard(&from_partner)).then_some(())
        });
        let (at_partner, at_victim) = (Arrived::default(), Arrived::default());
        let by_victim = Arc::default();
        Self {
            reading: vec![read(to_partner, &at_partner), read(to_victim, &at_victim)],
            counting: vec![
                count(from_victim, &by_victim, at_a_time),
                count(from_partner, &Arc::default(), at_a_time),
            ],
            victim,
            _partner: partner,
            at_partner,
            at_victim,
            by_victim,
        }
    }

    fn flows(&self) {
        self.at_partner.flows();
        self.at_victim.flows();
    }

    /// What the victim has emitted came, all of it in its order. What was emitted to it came in its order, and what did not is counted.
    fn check(mut self) {
        self.flows();
        self.counting.iter_mut().for_each(Worker::end);
        let emitted = self.by_victim.load(Ordering::Relaxed);
        until("the last one comes", || {
            (self.at_partner.last() + 1 == emitted).then_some(())
        });
        self.reading.iter_mut().for_each(Worker::end);
        assert_eq!(self.at_partner.numbers(), (0..emitted).collect::<Vec<_>>());
        let missed = self.at_victim.missed.load(Ordering::Relaxed);
        assert_eq!(self.at_victim.missing(), missed);
    }
}

async fn reload(daemon: &Daemon, client: &mut Client, more: &str) {
    daemon.write(more);
    client.reload(ReloadRequest {}).await.expect("reloaded");
}

/// The victim, once it is on the lane that is not the hog's.
async fn victim_is_away(client: &mut Client) -> Option<proto::Session> {
    let victim = session(client, "victim").await?;
    (victim.lane == 1).then_some(victim)
}

/// How many sessions were moved.
async fn moves(client: &mut Client) -> proto::SessionsMoved {
    node(client).await.sessions_moved.unwrap_or_default()
}

async fn is_overloaded(client: &mut Client) -> Option<()> {
    let node = node(client).await;
    let lane = &node.lanes[0];
    (lane.overloaded && lane.load_permille.is_some_and(|load| load >= 100)).then_some(())
}

/// The victim shares the first lane with the hog: by itself, unless that had more sessions than the other.
async fn on_the_hogs_lane(client: &mut Client, pair: &Pair) {
    let told = session(client, "victim").await.expect("the victim");
    if told.lane != 0 {
        let session = told.session;
        let request = MoveSessionRequest { session, lane: 0 };
        client.move_session(request).await.expect("moved");
        until("it is back", || {
            (pair.victim.attachments() == 2).then_some(())
        });
    }
}

#[tokio::test]
async fn a_session_beside_a_hog_leaves_its_lane_and_nothing_of_it_is_reordered() {
    let daemon = Daemon::start(&configuration(false, ""));
    let mut client = daemon.client().await;
    let _hog = hog(&daemon);
    let pair = Pair::start(&daemon);
    on_the_hogs_lane(&mut client, &pair).await;
    await_that("the lane is overloaded", &mut client, is_overloaded).await;
    pair.flows();
    // Off, which is the default, it suffers.
    assert_eq!(moves(&mut client).await.overload, 0);
    assert_eq!(
        session(&mut client, "victim")
            .await
            .map(|victim| victim.lane),
        Some(0)
    );

    reload(&daemon, &mut client, &configuration(true, "")).await;
    let victim = await_that("the victim leaves", &mut client, victim_is_away).await;
    assert!(victim.moved_why.contains("at work"), "{}", victim.moved_why);
    // Alone on a lane that it fills, the hog is no better off elsewhere.
    let hog = session(&mut client, "hog").await.expect("the hog");
    assert_eq!((hog.lane, hog.moved), (0, 0));
    assert_eq!(moves(&mut client).await.overload, 1);
    pair.check();
}

#[tokio::test]
async fn a_rule_has_the_readers_of_a_channel_leave_once_also_where_none_leaves_by_itself() {
    let daemon = Daemon::start(&configuration(false, ""));
    let mut client = daemon.client().await;
    let _hog = hog(&daemon);
    let pair = Pair::start(&daemon);
    on_the_hogs_lane(&mut client, &pair).await;
    await_that("the lane is overloaded", &mut client, is_overloaded).await;
    let hold = MARKS.replace("3600", "1");
    // What an operator has moved stays for a while, too.
    reload(
        &daemon,
        &mut client,
        &configuration(false, "").replace(MARKS, &hold),
    )
    .await;
    let ask = |channel, readers| RelieveChannelRequest {
        channel,
        readers,
        rule: "late".into(),
    };
    let nobody = client.relieve_channel(ask(4711, true)).await;
    let nobody = nobody.expect("answered").into_inner();
    assert_eq!((nobody.moved, &nobody.stay[..]), (0, ""));
    await_that("the victim leaves", &mut client, async |client| {
        let answer = client
            .relieve_channel(ask(9, true))
            .await
            .expect("answered");
        (answer.into_inner().moved == 1).then_some(())
    })
    .await;
    let victim = await_that("it is back", &mut client, victim_is_away).await;
    assert_eq!(victim.moved_why, "rule late");
    reload(&daemon, &mut client, &configuration(false, "")).await;
    let again = client.relieve_channel(ask(9, true)).await;
    let again = again.expect("answered").into_inner();
    assert_eq!(again.moved, 0);
    assert!(again.stay.contains("hold_seconds"), "{}", again.stay);
    let moved = moves(&mut client).await;
    assert_eq!((moved.overload, moved.rule), (0, 1));
    pair.check();
}

#[tokio::test]
async fn a_session_whose_listener_names_its_lane_stays_beside_a_hog() {
    let daemon = Daemon::start(&configuration(true, "lanes = [0]\n"));
    let mut client = daemon.client().await;
    let _hog = hog(&daemon);
    let pair = Pair::start(&daemon);
    let looks = async |client: &mut Client| node(client).await.lanes[0].load_permille;
    for _ in 0..3 {
        await_that("the lane is overloaded", &mut client, is_overloaded).await;
        // It is looked at again.
        let before = looks(&mut client).await;
        await_that("another look", &mut client, async |client| {
            (looks(client).await != before).then_some(())
        })
        .await;
    }
    let victim = session(&mut client, "victim").await.expect("the victim");
    assert_eq!((victim.lane, victim.moved), (0, 0));
    // A rule cannot have it leave either, and says why.
    let request = RelieveChannelRequest {
        channel: 9,
        readers: true,
        rule: "late".into(),
    };
    let answer = client
        .relieve_channel(request)
        .await
        .expect("answered")
        .into_inner();
    assert_eq!(answer.moved, 0);
    assert!(
        answer.stay.contains("no other lane may serve it"),
        "{}",
        answer.stay
    );
    assert_eq!(pair.victim.attachments(), 1);
    pair.check();
}

#[tokio::test]
async fn operators_move_a_session_to_and_fro_under_load_and_nothing_of_it_is_reordered() {
    let daemon = Daemon::start(&configuration(false, ""));
    let mut client = daemon.client().await;
    // Its rings are full again and again: what it has emitted is still to be sent when it emits on another lane.
    let pair = Pair::with(&daemon, 1000);
    for moves in 1..=10 {
        let told = await_that("the victim is there", &mut client, async |client| {
            session(client, "victim").await
        })
        .await;
        let request = MoveSessionRequest {
            session: told.session,
            lane: 1 - told.lane,
        };
        client.move_session(request).await.expect("moved");
        until("it is back", || {
            (pair.victim.attachments() == moves + 1).then_some(())
        });
        pair.flows();
    }
    let moved = moves(&mut client).await;
    assert_eq!((moved.operator, moved.overload), (10, 0));
    pair.check();
}

/// Gives back what it gets.
fn echo(partner: &Session) -> Worker {
    let stream = partner.stream(Qos::slow()).expect("a stream");
    let (sink, source) = (stream.sink(ChannelId(20)), stream.source(ChannelId(21)));
    let (sink, source) = (sink.expect("a sink"), source.expect("a source"));
    Worker::start(move |stop| {
        while !stop.load(Ordering::Relaxed) {
            if let Ok(message) = sink.consume(Wait::For(Duration::from_millis(100)))
                && let Ok(mut buffer) = source.buffer(message.len())
            {
                buffer.copy_from_slice(&message);
                let _ = buffer.emit();
            }
        }
    })
}

/// How long a message of a victim to its partner on the other lane and back takes, beside a hog on its own lane, with sessions that leave
/// overloaded lanes and without, in turns.
#[tokio::test]
#[ignore = "measures"]
async fn round_trips_beside_a_hog() {
    const TRIPS: usize = 3000;
    for round in 1..=3 {
        for lanes in [false, true] {
            let daemon = Daemon::start(&configuration(lanes, ""));
            let mut client = daemon.client().await;
            let _hog = hog(&daemon);
            let partner = attach(&daemon, "partner");
            let mut echo = echo(&partner);
            let victim = attach(&daemon, "victim");
            let stream = victim.stream(Qos::slow()).expect("a stream");
            let sink = stream.sink(ChannelId(21)).expect("a sink");
            let source = stream.source(ChannelId(20)).expect("a source");
            let number = Cell::new(0u64);
            let trip = || {
                let number = number.replace(number.get() + 1);
                let began = Instant::now();
                let mut buffer = source.buffer(8).ok()?;
                buffer.copy_from_slice(&number.to_le_bytes());
                buffer.emit().ok()?;
                loop {
                    let message = sink.consume(Wait::For(Duration::from_secs(1))).ok()?;
                    if message[..] == number.to_le_bytes() {
                        return Some(began.elapsed());
                    }
                }
            };
            let wanted = u32::from(lanes);
            await_that("it is where it is to be", &mut client, async |client| {
                for _ in 0..100 {
                    trip();
                }
                is_overloaded(client).await?;
                (session(client, "victim").await?.lane == wanted).then_some(())
            })
            .await;
            let mut times: Vec<Duration> = Vec::new();
            while times.len() < TRIPS {
                times.extend(trip());
            }
            times.sort_unstable();
            let at = |percent: usize| times[TRIPS * percent / 100].as_micros();
            println!(
                "round {round}, lanes = {lanes}: p50 {} us, p99 {} us",
                at(50),
                at(99)
            );
            echo.end();
        }
    }
}
