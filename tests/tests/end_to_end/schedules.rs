//! Schedules of a node: over a crash, and with a table of priorities.

use takt::{FrameOptions, Outcome, TrafficClass};
use takt_clock::{Clock, SystemTai};
use takt_testing::{Directory, until};
use taktd::admin::proto::{GateEntry, GateSchedule};

use crate::support::overlay::{emit, flow, frame, frames, lab, sections, station};
use crate::support::{Datapath, Node, attach, skip};

/// An hour, of which only the gates of these classes are open in the first part, and none in the rest.
fn hour(gates: u32, open_ns: u32, base_time_ns: i64) -> GateSchedule {
    let closed = GateEntry {
        gates: 0,
        interval_ns: 1_000_000_000,
    };
    GateSchedule {
        base_time_ns,
        cycle_time_ns: 3_600_000_000_000,
        entries: vec![
            GateEntry {
                gates,
                interval_ns: open_ns,
            },
            closed,
        ],
        ..GateSchedule::default()
    }
}

fn of_class(number: u8) -> FrameOptions {
    FrameOptions {
        class: TrafficClass::new(number).expect("a class"),
        ..FrameOptions::default()
    }
}

#[test]
fn gates_do_not_open_by_a_crash_of_the_node() {
    if skip() {
        return;
    }
    let lab = lab(2);
    let (here, there) = (lab.container(0, 0), lab.container(1, 0));
    let sections = sections(here, &station(there, lab.host(1)), Datapath::Udp);
    let state = Directory::new();
    let state = format!("STATE_DIRECTORY={}", state.join("takt").display());
    let mut node = Node::start_under(&["env", &state], lab.host(0), &[], &sections);
    let flow = flow(here, there, there.mac());
    let mut admin = node.admin();
    // A cycle lasts an hour: it is told to begin in time, whoever keeps the node waiting.
    let soon = SystemTai.now().as_nanos() + 5_000_000_000;
    let running = hour(0x81, 100_000, soon);
    admin.install_schedule("udp", running.clone());
    until("it runs", || admin.schedule("udp").operational);
    // And one that is still to come.
    let later = hour(0x41, 100_000, soon + 7_200_000_000_000);
    let begins = admin.install_schedule("udp", later.clone());
    assert_eq!(begins, later.base_time_ns);

    for _ in 0..2 {
        node.kill();
        node.restart();
        let mut admin = until("the node is back", || {
            let mut admin = node.runs().then(|| node.admin())?;
            (!admin.node().lanes.is_empty()).then_some(admin)
        });
        let told = admin.schedule("udp");
        let gates = |schedule: &GateSchedule| schedule.entries[0].gates;
        assert_eq!(told.operational.as_ref().map(gates), Some(0x81));
        assert_eq!(told.pending.as_ref().map(gates), Some(0x41));
        assert_eq!(told.pending_begins_ns, Some(begins));
        assert_eq!(told.link_rate_bps, 1_000_000_000);
        // What is sent now waits for its gate.
        let session = attach(&node, "talker");
        let source = frames(&session, Datapath::Udp);
        let token = emit(&source, &frame(&flow, b"too early"), &of_class(0));
        until("it waits", || {
            (admin.schedule("udp").classes[0].queued == 1).then_some(())
        });
        assert_eq!(source.outcome(token), Outcome::Pending);
        assert_eq!(admin.schedule("udp").classes[0].sent, 0);
    }
}

#[test]
fn frames_pass_the_gate_of_the_class_that_serves_their_priority() {
    if skip() {
        return;
    }
    let lab = lab(2);
    let (here, there) = (lab.container(0, 0), lab.container(1, 0));
    let directory = Directory::new();
    let file = directory.join("line.toml");
    // Priority 3 has class 1, which is open for an hour but for a moment, when class 0 is, which serves the others.
    let soon = SystemTai.now().as_nanos() + 50_000_000;
    let text = format!(
        "base-time = {soon}\ncycle-time = \"3600s\"\n[[entry]]\ngates = [0]\ninterval = \"100us\"\n\
         [[entry]]\ngates = [1]\ninterval = \"1s\"\n\
         [priorities]\nclasses = 2\nmap = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]\n"
    );
    std::fs::write(&file, text).expect("written");
    let sections = sections(here, &station(there, lab.host(1)), Datapath::Udp)
        + &format!(
            "[[schedule]]\ndatapath = \"udp\"\nfile = \"{}\"\nvlan = true\n",
            file.display()
        );
    let node = Node::start(lab.host(0), &[], &sections);
    let mut admin = node.admin();
    let told = until("it runs", || {
        let told = admin.schedule("udp");
        told.operational.is_some().then_some(told)
    });
    assert_eq!(told.priorities, [0, 0, 0, 1, 0, 0, 0, 0]);
    assert!(told.vlan);
    let session = attach(&node, "talker");
    let source = frames(&session, Datapath::Udp);
    let flow = flow(here, there, there.mac());
    let emit = |class| emit(&source, &frame(&flow, b"x"), &of_class(class));
    let (other, served) = (emit(5), emit(3));
    until("it is sent", || {
        (source.outcome(served) == Outcome::Sent).then_some(())
    });
    until("it is counted in its class", || {
        let classes = admin.schedule("udp").classes;
        (classes[1].sent == 1 && classes[0].queued == 1).then_some(())
    });
    assert_eq!(source.outcome(other), Outcome::Pending);
}
