//! A tenant that sends outside its declared streams beside a victim, both with frames of their own, captured at the peer:
//! what was declared arrives and nothing else does, not before its time, and each of the others is told and counted.

use std::sync::atomic::{AtomicBool, Ordering};

use takt::{FrameOptions, FrameSource, Outcome, TaiTime, TrafficClass};
use takt_clock::{Clock, SystemTai};
use takt_lab::{Capture, Host, Lab, LabConfig};
use takt_wire::frame::{UdpFlow, parse_udp_frame};
use takt_wire::vxlan;

use crate::gates::{capture, tai_offset};
use crate::support::overlay::{PORTS, flow, frame, frames, mac, sections, send, station};
use crate::support::{Datapath, Node, attach, attach_at, skip};

const MS: i64 = 1_000_000;
const PERIOD: i64 = 10 * MS;
const CLASS: u8 = 5;
const ROUNDS: u64 = 20;

/// A program of a tenant.
struct Talker {
    /// In each payload.
    tenant: u8,
    source: FrameSource,
    flow: UdpFlow,
    /// Its launches, from the begin of each period.
    offset: i64,
    /// Numbers of frames that have left, with their launch times.
    left: Vec<(u64, i64)>,
    emitted: u64,
}

impl Talker {
    /// The launch time of a period that is not over yet.
    fn next_launch(&self) -> i64 {
        let soon = SystemTai.now().as_nanos() + 2 * PERIOD;
        soon - soon.rem_euclid(PERIOD) + self.offset
    }

    /// Sends a frame of so many octets of payload, and waits for what becomes of it.
    fn send(&mut self, port: u16, launch: Option<i64>, deadline: bool, octets: usize) -> Outcome {
        self.emitted += 1;
        let mut payload = vec![0; octets];
        payload[0] = self.tenant;
        payload[1..9].copy_from_slice(&self.emitted.to_le_bytes());
        let mut flow = self.flow;
        flow.dst.set_port(port);
        let options = FrameOptions {
            class: TrafficClass::new(CLASS).expect("a class"),
            launch: launch.map(TaiTime::from_nanos),
            deadline,
        };
        send(&self.source, &frame(&flow, &payload), &options)
    }

    /// Sends as is declared.
    fn send_inside(&mut self, launch: i64) {
        match self.send(PORTS[1], Some(launch), false, 100) {
            Outcome::Sent => self.left.push((self.emitted, launch)),
            // Whoever is stopped for a second is late.
            Outcome::Late => {}
            other => panic!("a frame of tenant {} was {other:?}", self.tenant),
        }
    }
}

/// The sections of a listener's stream.
fn stream(to: &Host, offset: i64) -> String {
    format!(
        "[[listener.stream]]\nname = \"axis\"\nclass = {CLASS}\ndestination = \"{}:{}\"\nperiod = \"{PERIOD}ns\"\n\
         offset = \"{offset}ns\"\nframe = 250\n",
        to.address(),
        PORTS[1],
    )
}

fn what_is_not_declared_does_not_arrive(datapath: Datapath) {
    if skip() {
        return;
    }
    let config = LabConfig {
        hosts: 2,
        containers: 2,
        ..LabConfig::default()
    };
    let lab = Lab::scratch(&config).expect("a lab");
    let [victim, pirate] = [0, 1].map(|at| lab.container(0, at));
    let there = lab.container(1, 0);
    let offsets = [5 * MS, 2 * MS];
    let sections = sections(victim, &station(there, lab.host(1)), datapath);
    let sections = sections.replacen(
        "[[network]]",
        &format!(
            "{}[[listener]]\npath = \"DIR/pirate.sock\"\nidentity = \"pirate\"\n[listener.endpoint]\nnetwork = \"pods\"\n\
             mac = \"{}\"\naddresses = [\"{}/16\"]\n{}[[network]]",
            stream(there, offsets[0]),
            mac(pirate),
            pirate.address(),
            stream(there, offsets[1]),
        ),
        1,
    );
    let node = Node::start(lab.host(0), &[], &sections);
    let at_peer = Capture::open(lab.host(1)).expect("a capture");
    let sessions = [
        attach(&node, "victim"),
        attach_at(&node.directory.join("pirate.sock"), "pirate"),
    ];
    let talker = |at: usize, from: &Host| Talker {
        tenant: at as u8,
        source: frames(&sessions[at], datapath),
        flow: flow(from, there, there.mac()),
        offset: offsets[at],
        left: Vec::new(),
        emitted: 0,
    };
    let [mut good, mut bad] = [talker(0, victim), talker(1, pirate)];
    let stop = AtomicBool::new(false);
    let captured = std::thread::scope(|scope| {
        let captured = scope.spawn(|| capture(&at_peer, &stop));
        for _ in 0..ROUNDS {
            let (others, own) = (good.next_launch(), bad.next_launch());
            let port = PORTS[1];
            for (port, launch, deadline, octets) in [
                // At the victim's instant, close to its own, by then, or at once.
                (port, Some(others), false, 100),
                (port, Some(own - 1), false, 100),
                (port, Some(own), true, 100),
                (port, None, false, 100),
                // Too long; to another port.
                (port, Some(own), false, 400),
                (port + 1, Some(own), false, 100),
            ] {
                let outcome = bad.send(port, launch, deadline, octets);
                assert_eq!(outcome, Outcome::Refused, "{port} {launch:?} {octets}");
            }
            bad.send_inside(own);
            let outcome = bad.send(port, Some(own), false, 100);
            assert_eq!(outcome, Outcome::Refused, "once more");
            let others = good.next_launch();
            good.send_inside(others);
        }
        stop.store(true, Ordering::Release);
        captured.join().expect("the capture")
    });
    let ahead = tai_offset();
    let mut arrived = [Vec::new(), Vec::new()];
    for one in &captured {
        let outer = parse_udp_frame(&one.frame, false).ok();
        let inner = outer.and_then(|outer| outer.payload.get(vxlan::HEADER_LEN..));
        let inner = inner.and_then(|inner| parse_udp_frame(inner, false).ok());
        let number = inner.and_then(|inner| inner.payload.get(1..)?.first_chunk());
        if let (Some(inner), Some(number)) = (inner, number) {
            let number = u64::from_le_bytes(*number);
            arrived[usize::from(inner.payload[0])].push((number, one.realtime_ns + ahead));
        }
    }
    for (talker, arrived) in [&good, &bad].into_iter().zip(&arrived) {
        let numbers =
            |all: &[(u64, i64)]| all.iter().map(|(number, _)| *number).collect::<Vec<_>>();
        assert_eq!(
            numbers(arrived),
            numbers(&talker.left),
            "tenant {}",
            talker.tenant
        );
        for ((number, at), (_, launch)) in arrived.iter().zip(&talker.left) {
            assert!(at >= launch, "frame {number} came {} ns early", launch - at);
        }
    }
    let mut listeners = node.admin().listeners();
    let mut counted = |path: &str| {
        let found = listeners.iter_mut().find(|status| {
            let listener = status.listener.as_ref();
            listener.is_some_and(|listener| listener.path.ends_with(path))
        });
        let status = found.expect("its listener");
        let stream = status.streams.remove(0);
        let refused = (
            stream.refused_window,
            stream.refused_size,
            stream.refused_excess,
        );
        let launches = status.counters.expect("set");
        (
            (stream.passed, refused, status.undeclared),
            (launches.launched, launches.launches_missed),
        )
    };
    // What came, and what did not leave: those that its lane was late for among them.
    let launches = |talker: &Talker, refused: u64| {
        let left = talker.left.len() as u64;
        (left, refused + ROUNDS - left)
    };
    assert_eq!(
        counted("takt.sock"),
        ((ROUNDS, (0, 0, 0), 0), launches(&good, 0))
    );
    let (window, size, excess) = (4 * ROUNDS, ROUNDS, ROUNDS);
    let without_launch_time = ROUNDS;
    let refused = window - without_launch_time + size + excess + ROUNDS;
    assert_eq!(
        counted("pirate.sock"),
        (
            (ROUNDS, (window, size, excess), ROUNDS),
            launches(&bad, refused)
        )
    );
}

#[test]
fn frames_outside_declared_streams_do_not_arrive_over_kernel_udp() {
    what_is_not_declared_does_not_arrive(Datapath::Udp);
}

#[test]
fn frames_outside_declared_streams_do_not_arrive_over_af_xdp() {
    what_is_not_declared_does_not_arrive(Datapath::Xdp);
}
