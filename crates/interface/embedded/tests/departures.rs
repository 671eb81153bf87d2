//! Messages that leave at an instant: launch times, and gates. What is asserted is order, that nothing is early,
//! and what becomes of each message; how exact departures are is measured by the benches.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use takt::{ChannelId, Outcome, Qos, Session, Sink, Source, TaiTime, TrafficClass, Wait};
use takt_clock::{Clock, SystemTai};
use takt_embedded::Security;
use takt_embedded::{Embedded, Settings};
use takt_runtime::config::{Departure, Late, LinkSchedule};
use takt_runtime::counters::DepartureReading;
use takt_runtime::status::ScheduleStatus;
use takt_schedule::{GateEntry, GateMask, Schedule};
use takt_testing::{free_port, until};

const PATIENCE: Wait = Wait::For(Duration::from_secs(60));
const CLASS: TrafficClass = match TrafficClass::new(5) {
    Some(class) => class,
    None => TrafficClass::BEST_EFFORT,
};
const MS: i64 = 1_000_000;

fn now() -> TaiTime {
    SystemTai.now()
}

fn after_ms(ms: i64) -> TaiTime {
    now().saturating_add_nanos(ms * MS)
}

/// Two runtimes, a source at the first, a sink at the second that is known there.
struct Pair {
    near: Embedded,
    _far: Embedded,
    session: Session,
    _far_session: Session,
    source: Source,
    sink: Sink,
}

impl Pair {
    fn new() -> Self {
        Self::with(Departure::default())
    }

    fn with(departure: Departure) -> Self {
        let (one, other) = (free_port(), free_port());
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let node = |port: u16, peer: u16| {
            Embedded::start(Settings {
                address,
                port,
                peers: vec![SocketAddr::new(address, peer).into()],
                security: Security::group(takt_testing::GROUP_KEY.parse().expect("a key")),
                departure,
                ..Settings::default()
            })
            .expect("runtime starts")
        };
        let (near, far) = (node(one, other), node(other, one));
        let session = near.session("near").expect("session");
        let far_session = far.session("far").expect("session");
        let qos = Qos::slow().time_sensitive(CLASS);
        let source = session.stream(qos).and_then(|s| s.source(ChannelId(3)));
        let sink = far_session.stream(qos).and_then(|s| s.sink(ChannelId(3)));
        let (source, sink) = (source.expect("source"), sink.expect("sink"));
        while emit(&source, b"known", None) != Outcome::Sent {}
        assert_eq!(&*sink.consume(PATIENCE).expect("message"), b"known");
        Self {
            near,
            _far: far,
            session,
            _far_session: far_session,
            source,
            sink,
        }
    }

    fn receive(&self) -> (Vec<u8>, TaiTime) {
        let message = self.sink.consume(PATIENCE).expect("message");
        (message.to_vec(), now())
    }

    fn status(&self) -> ScheduleStatus {
        let all = self.near.runtime().schedules().expect("a runtime");
        let udp = all.into_iter().find(|status| status.datapath == "udp");
        udp.expect("kernel UDP is there")
    }

    fn class(&self) -> DepartureReading {
        self.status().classes[usize::from(CLASS.number())]
    }
}

fn emit(source: &Source, text: &[u8], launch: Option<TaiTime>) -> Outcome {
    let mut buffer = source.buffer_wait(text.len(), PATIENCE).expect("buffer");
    buffer.copy_from_slice(text);
    let token = match launch {
        Some(launch) => buffer.emit_at(launch),
        None => buffer.emit(),
    };
    let token = token.expect("emit");
    until("the message has an outcome", || {
        match source.outcome(token) {
            Outcome::Pending => None,
            outcome => Some(outcome),
        }
    })
}

#[test]
fn messages_leave_at_their_launch_times_in_that_order_and_never_early() {
    let pair = Pair::new();
    let launches = [after_ms(900), after_ms(500), after_ms(700)];
    for launch in launches {
        let mut buffer = pair.source.buffer_wait(8, PATIENCE).expect("buffer");
        buffer.copy_from_slice(&launch.as_nanos().to_le_bytes());
        buffer.emit_at(launch).expect("emit");
    }
    let mut expected = launches;
    expected.sort();
    for launch in expected {
        let (text, at) = pair.receive();
        assert_eq!(text, launch.as_nanos().to_le_bytes());
        assert!(at >= launch, "early by {} ns", launch.nanos_since(at));
    }
    // A message of many fragments.
    let long: Vec<u8> = (0..200_000).map(|i| i as u8).collect();
    let launch = after_ms(50);
    assert_eq!(emit(&pair.source, &long, Some(launch)), Outcome::Sent);
    let (text, at) = pair.receive();
    assert!(text == long && at >= launch);
    let class = until("they are counted", || {
        let class = pair.class();
        (class.frames.sent > 3 && class.frames.sent == class.frames.offered).then_some(class)
    });
    assert_eq!(class.errors.iter().sum::<u64>(), class.frames.sent);
}

#[test]
fn launch_times_that_cannot_be_met_are_told_and_what_follows_is_sent() {
    let late = Late::Drop;
    let tolerance = Duration::from_secs(1);
    let pair = Pair::with(Departure { late, tolerance });
    let year = 365 * 86_400_000;
    for (launch, told) in [
        (after_ms(-1001), Outcome::Late),
        (TaiTime::from_nanos(i64::MIN), Outcome::Late),
        (TaiTime::from_nanos(-1), Outcome::Late),
        (after_ms(200 * year), Outcome::NotScheduled),
        (TaiTime::from_nanos(i64::MAX), Outcome::NotScheduled),
    ] {
        assert_eq!(emit(&pair.source, b"no", Some(launch)), told, "{launch:?}");
    }
    assert_eq!(
        emit(&pair.source, b"yes", Some(after_ms(20))),
        Outcome::Sent
    );
    assert_eq!(emit(&pair.source, b"at once", None), Outcome::Sent);
    assert_eq!(pair.receive().0, b"yes");
    assert_eq!(pair.receive().0, b"at once");
}

/// The gate of `CLASS` is open in the second half of a cycle of 100 ms, all others in the first.
fn half_and_half() -> Schedule {
    let only: GateMask = [CLASS].into_iter().collect();
    let others: GateMask = TrafficClass::all()
        .filter(|class| *class != CLASS)
        .collect();
    Schedule {
        cycle_time_ns: 100_000_000,
        entries: vec![
            GateEntry::new(others, 50_000_000),
            GateEntry::new(only, 50_000_000),
        ],
        ..Schedule::default()
    }
}

#[test]
fn a_schedule_holds_messages_until_their_gate_opens_and_can_be_changed_and_removed() {
    let pair = Pair::new();
    let runtime = pair.near.runtime();
    let begins = runtime.install_schedule(LinkSchedule::new("udp", half_and_half(), 1_000_000_000));
    let begins = begins.expect("a runtime").expect("installed");
    assert_eq!(
        begins.as_nanos() % (100 * MS),
        0,
        "cycles begin at multiples"
    );
    until("the schedule runs", || pair.status().operational);
    for _ in 0..4 {
        // In the closed half of a cycle, wherever we are now.
        let cycle = until("a cycle begins", || pair.status().cycle);
        let launch = cycle.start.saturating_add_nanos(1_010 * MS);
        let opens = cycle.start.saturating_add_nanos(1_050 * MS);
        assert_eq!(emit(&pair.source, b"gated", Some(launch)), Outcome::Sent);
        let (_, at) = pair.receive();
        assert!(at >= opens, "{} ns before its gate", opens.nanos_since(at));
    }
    let class = until("they are counted", || {
        let class = pair.class();
        (class.frames.sent == 4).then_some(class)
    });
    assert_eq!(class.frames.offered, 4, "{class:?}");
    assert_eq!(class.frames.sent_gate_missed, 4, "{class:?}");

    // A gate that never opens.
    let mut closed = half_and_half();
    closed.entries = vec![GateEntry::new(GateMask::NONE, 100_000_000)];
    let installed = runtime.install_schedule(LinkSchedule::new("udp", closed.clone(), 0));
    installed.expect("a runtime").expect("installed");
    until("the schedule runs", || {
        (pair.status().operational == Some(closed.clone())).then_some(())
    });
    assert_eq!(emit(&pair.source, b"never", None), Outcome::NotScheduled);

    assert!(runtime.remove_schedule("udp".into()).expect("a runtime"));
    assert!(!runtime.remove_schedule("udp".into()).expect("a runtime"));
    until("a message is sent", || {
        (emit(&pair.source, b"free", None) == Outcome::Sent).then_some(())
    });
    assert_eq!(pair.receive().0, b"free");
    let status = pair.status();
    assert!(status.operational.is_none() && status.pending.is_none());
}

#[test]
fn schedules_that_cannot_run_are_refused_by_reason_and_change_nothing() {
    let pair = Pair::new();
    let runtime = pair.near.runtime();
    let refused = |datapath: &str, schedule: Schedule| {
        let answer = runtime.install_schedule(LinkSchedule::new(datapath, schedule, 0));
        answer.expect("a runtime").expect_err("refused").to_string()
    };
    let unknown = refused("dpdk", half_and_half());
    assert!(
        unknown.contains("dpdk") && unknown.contains("udp"),
        "{unknown}"
    );
    assert!(refused("udp", Schedule::default()).contains("schedule check"));
    let disabled = Schedule {
        enabled: false,
        ..half_and_half()
    };
    assert!(refused("udp", disabled).contains("remove"));
    assert!(pair.status().operational.is_none() && pair.status().pending.is_none());
    assert_eq!(emit(&pair.source, b"free", None), Outcome::Sent);
}

#[test]
fn a_session_that_is_ended_takes_its_waiting_messages_with_it() {
    let pair = Pair::new();
    let other = pair.near.session("other").expect("session");
    let stream = other
        .stream(Qos::slow().time_sensitive(CLASS))
        .expect("stream");
    let source = stream.source(ChannelId(3)).expect("source");
    for text in [&b"waits"[..], &vec![0; 10_000]] {
        let mut buffer = source.buffer_wait(text.len(), PATIENCE).expect("buffer");
        buffer.copy_from_slice(text);
        buffer.emit_at(after_ms(30_000)).expect("emit");
    }
    until("frames wait", || {
        (pair.class().frames.queued > 2).then_some(())
    });
    let runtime = pair.near.runtime();
    let sessions = runtime.sessions().expect("a runtime");
    let ended = sessions.iter().find(|session| session.name == "other");
    let ended = ended.expect("the session").session;
    let done = runtime.end_session(ended, "enough".into());
    assert!(done.expect("a runtime"));
    let frames = until("they are withdrawn", || {
        let frames = pair.class().frames;
        (frames.queued == 0).then_some(frames)
    });
    assert_eq!(frames.dropped, frames.offered, "{frames:?}");
    assert_eq!(emit(&pair.source, b"on", Some(after_ms(10))), Outcome::Sent);
    assert_eq!(pair.receive().0, b"on");
    let sessions = pair.near.runtime().sessions().expect("a runtime");
    assert_eq!(sessions.len(), 1, "{:?}", pair.session);
}

#[test]
fn a_session_with_launch_times_far_ahead_keeps_nobody_out() {
    let pair = Pair::new();
    let greedy = pair.near.session("greedy").expect("session");
    let stream = greedy
        .stream(Qos::slow().time_sensitive(CLASS))
        .expect("stream");
    let source = stream.source(ChannelId(3)).expect("source");
    while let Ok(buffer) = source.buffer(8) {
        buffer.emit_at(after_ms(50_000)).expect("emit");
    }
    until("frames wait", || {
        (pair.class().frames.queued == 256).then_some(())
    });
    for _ in 0..10 {
        assert_eq!(emit(&pair.source, b"on", Some(after_ms(5))), Outcome::Sent);
        assert_eq!(pair.receive().0, b"on");
    }
    until("frames wait", || {
        (pair.class().frames.queued == 256).then_some(())
    });
    // The lane sleeps meanwhile: it does not look again and again whether there is room.
    let counters = || pair.near.runtime().status().expect("a runtime").lanes[0].counters;
    until("the lane sleeps", || {
        let polls = counters().polls;
        std::thread::sleep(Duration::from_millis(20));
        (counters().polls == polls).then_some(())
    });
}
