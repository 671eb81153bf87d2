//! A credit-based class (IEEE 802.1Q-2022, clause 8.6.8.2) on the wire: frames that are all there at once, captured at the
//! peer.
//!
//! A machine that is busy delays frames at any moment, and those that were delayed come closer together then. What
//! holds however late a lane is: a class that was idle has no credit, so a frame does not begin before the idle slope has paid
//! for all that were sent before it.

use std::sync::atomic::{AtomicBool, Ordering};

use takt::{FrameOptions, Outcome, Token, TrafficClass};
use takt_clock::{Clock, SystemTai};
use takt_lab::Capture;
use takt_schedule::Link;
use takt_wire::frame::parse_udp_frame;
use takt_wire::vxlan;
use taktd::admin::proto::{ClassSelection, GateEntry, GateSchedule};

use crate::gates::{capture, tai_offset};
use crate::support::overlay::{emit, flow, frame, frames, lab, sections, station};
use crate::support::{Datapath, Node, attach, skip};
use takt_testing::until;

const CLASS: u32 = 5;
const IDLE_SLOPE: u64 = 20_000_000;
const FRAMES: u64 = 200;

fn no_frame_begins_before_its_credit_is_there(datapath: Datapath) {
    if skip() {
        return;
    }
    let lab = lab(2);
    let (here, there) = (lab.container(0, 0), lab.container(1, 0));
    let sections = sections(here, &station(there, lab.host(1)), datapath);
    let node = Node::start(lab.host(0), &[], &sections);
    let mut admin = node.admin();
    let at_peer = Capture::open(lab.host(1)).expect("a capture");
    let begins = admin.install_schedule(
        datapath.name(),
        GateSchedule {
            cycle_time_ns: 1_000_000,
            entries: vec![GateEntry {
                gates: 0xff,
                interval_ns: 1_000_000,
            }],
            selection: vec![ClassSelection {
                class: CLASS,
                algorithm: "credit-based".into(),
                idle_slope_bps: IDLE_SLOPE,
                ..ClassSelection::default()
            }],
            ..GateSchedule::default()
        },
    );
    until("the schedule runs", || {
        (SystemTai.now().as_nanos() > begins).then_some(())
    });
    let session = attach(&node, "audio");
    let source = frames(&session, datapath);
    let flow = flow(here, there, there.mac());
    let options = FrameOptions {
        class: TrafficClass::new(CLASS as u8).expect("a class"),
        ..FrameOptions::default()
    };
    let stop = AtomicBool::new(false);
    let (before, captured) = std::thread::scope(|scope| {
        let captured = scope.spawn(|| capture(&at_peer, &stop));
        let before = SystemTai.now().as_nanos();
        let tokens: Vec<Token> = (0..FRAMES)
            .map(|number| {
                let mut payload = vec![0; 1000];
                payload[..8].copy_from_slice(&number.to_le_bytes());
                emit(&source, &frame(&flow, &payload), &options)
            })
            .collect();
        for token in tokens {
            let outcome = until("it has left", || {
                let outcome = source.outcome(token);
                (outcome != Outcome::Pending).then_some(outcome)
            });
            assert_eq!(outcome, Outcome::Sent);
        }
        stop.store(true, Ordering::Release);
        (before, captured.join().expect("the capture"))
    });
    let ahead = tai_offset();
    let link = Link::ethernet(1_000_000_000);
    let (mut number, mut paid) = (0, 0);
    for one in &captured {
        let outer = parse_udp_frame(&one.frame, false).ok();
        let inner = outer.and_then(|outer| outer.payload.get(vxlan::HEADER_LEN..));
        let inner = inner.and_then(|inner| parse_udp_frame(inner, false).ok());
        let Some(first) = inner.and_then(|inner| inner.payload.first_chunk().copied()) else {
            continue;
        };
        assert_eq!(u64::from_le_bytes(first), number, "in order");
        let since = one.realtime_ns + ahead - before;
        let earliest = (paid * 1_000_000_000 / IDLE_SLOPE) as i64;
        assert!(
            since >= earliest,
            "{datapath:?}: frame {number} began after {since} ns, and is paid for after {earliest}"
        );
        number += 1;
        paid += link.wire_octets(one.frame.len() as u32) * 8;
    }
    assert_eq!(number, FRAMES, "{datapath:?}: all came");
}

#[test]
fn no_frame_of_a_credit_based_class_begins_before_its_credit_is_there() {
    for datapath in [Datapath::Udp, Datapath::Xdp] {
        no_frame_begins_before_its_credit_is_there(datapath);
    }
}
