//! `takt monitor --node`: the health of what tenants send and get past the kernel, beside what was sent; and its page, in a
//! browser.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use takt::{ChannelId, Qos, TrafficClass, Wait};
use takt_lab::LabConfig;
use takt_testing::{PATIENCE, browsed, until, until_true};

use crate::capture::{LISTENERS, tenant};
use crate::mapping::three_datapaths;

use crate::support::{
    Datapath, Node, Pair, Stops, attach, attach_at, introduce, number_of, put, skip,
};

const CHANNEL: ChannelId = ChannelId(5);
/// No machine keeps to a nanosecond.
const RULES: &str = "\
[[flow]]
name = \"press\"
match = \"channel 5\"
max-delay = \"1ns\"
hold = \"60s\"

[[rule]]
name = \"late\"
flow = \"channel 5\"
when = \"delay > 1ns\"
do = [\"event\", \"mirror\"]
";
/// Any traffic at all is too much, until there is none.
const REMAP: &str = "\
[[rule]]
name = \"busy\"
flow = \"channel 5\"
when = \"silence < 1ms\"
until = \"silence > 200ms\"
hold = \"0s\"
do = [\"remap\"]
";
/// As often as traffic begins.
const MOVE: &str = "\
[[rule]]
name = \"busy\"
flow = \"channel 5\"
when = \"silence < 1ms\"
until = \"silence > 50ms\"
hold = \"0s\"
do = [\"move\"]
";
/// Low marks: a lane gets no more than a part of a machine that is busy otherwise. No session leaves by itself.
const TWO_LANES: &str = "\
[[lane]]
[[lane]]
[balance]
lanes = false
high_percent = 10
low_percent = 5
hold_seconds = 1
[[listener]]
path = \"DIR/hog.sock\"
identity = \"hog\"
lanes = [0]
";
const MESSAGES: u64 = 300;

/// A monitor of a node, and where its page is.
struct Monitor {
    child: Child,
    page: String,
}

impl Monitor {
    fn start(node: &Node, more: &[&str]) -> Self {
        Self::of_all(node, &[&["--tenant", "press"], more].concat())
    }

    fn of_all(node: &Node, more: &[&str]) -> Self {
        let mut child = Command::new(takt_testing::built().join("takt"))
            .args(["monitor", "--node", "--json"])
            .args(["--http", "127.0.0.1:0", "--interval", "100ms", "--admin"])
            .arg(node.directory.join("admin.sock"))
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("takt");
        let mut line = String::new();
        let err = child.stderr.take().expect("its errors");
        let mut err = BufReader::new(err);
        err.read_line(&mut line).expect("text");
        child.stderr = Some(err.into_inner());
        let at = line.find("http://").unwrap_or_else(|| panic!("{line}"));
        let page = line[at..].trim().to_owned();
        Self { child, page }
    }

    /// What it says when it is to end.
    fn end(mut self) -> Value {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it runs");
        let mut text = String::new();
        let mut out = self.child.stdout.take().expect("its output");
        out.read_to_string(&mut text).expect("text");
        assert!(self.child.wait().expect("an end").success(), "{text}");
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("JSON: {text}"))
    }
}

/// A reader beside somebody who keeps its lane busy, without an operator.
#[test]
fn the_reader_of_a_channel_leaves_its_lane_when_a_rule_of_the_monitor_says_so() {
    if skip() {
        return;
    }
    let pair = Pair::with(&LabConfig::default(), TWO_LANES);
    let [far, near] = &pair.nodes;
    let stop = AtomicBool::new(false);
    let stops = [&stop];
    std::thread::scope(|scope| {
        let _stops = Stops(&stops);
        let hog = attach_at(&near.directory.join("hog.sock"), "hog");
        let stream = hog.stream(Qos::slow()).expect("a stream");
        let loud = stream.source(ChannelId(1)).expect("a source");
        let _deaf = [(); 4].map(|()| stream.sink(ChannelId(1)).expect("a sink"));
        let stop = &stop;
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                if let Ok(buffer) = loud.buffer_wait(1024, Wait::For(Duration::from_millis(100))) {
                    let _ = buffer.emit();
                }
            }
        });
        let [talker, reader] = [far, near].map(|node| attach(node, "reader"));
        let source = talker
            .stream(Qos::slow())
            .expect("a stream")
            .source(CHANNEL);
        let sink = reader.stream(Qos::slow()).expect("a stream").sink(CHANNEL);
        let (source, sink) = (source.expect("a source"), sink.expect("a sink"));
        introduce(&source, &[&sink]);
        let told = || {
            let sessions = near.admin().sessions();
            sessions
                .into_iter()
                .find(|s| s.name == "reader" && !s.streams.is_empty())
        };
        let first = told().expect("the reader");
        if first.lane != 0 {
            near.admin().move_session(first.session, 0);
            until_true("it is beside the hog", || {
                told().is_some_and(|told| told.lane == 0)
            });
        }
        let rules = near.directory.join("rules.toml");
        std::fs::write(&rules, MOVE).expect("a file");
        let rules = rules.to_str().expect("UTF-8");
        let watched = Monitor::of_all(near, &["--rules", rules, "--move"]);
        // While the reader was moved lately, or the loads are not known, it stays; the rule begins again with the next messages.
        let mut number = 0;
        let moved = until("the rule moves the reader", || {
            for _ in 0..20 {
                put(&source, number, 64);
                number += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            while sink.consume(Wait::Never).is_ok() {}
            // That is the silence that ends the rule.
            std::thread::sleep(Duration::from_millis(200));
            told().filter(|told| told.lane == 1)
        });
        assert_eq!(moved.moved_why, "rule busy");
        introduce(&source, &[&sink]);
        let told = watched.end();
        assert!(
            told["rules"][0]["begun"].as_u64() >= Some(1),
            "{}",
            told["rules"]
        );
        assert_eq!(
            near.admin().node().sessions_moved.map(|moved| moved.rule),
            Some(1)
        );
    });
}

#[test]
fn a_channel_goes_another_way_while_a_rule_of_the_monitor_holds() {
    if skip() {
        return;
    }
    let (_plugin, pair) = three_datapaths();
    let [near, far] = &pair.nodes;
    let sessions = pair.nodes.each_ref().map(|node| attach(node, "monitor"));
    let streams = sessions
        .each_ref()
        .map(|s| s.stream(Qos::fast()).expect("a stream"));
    let source = streams[0].source(CHANNEL).expect("a source");
    let sink = streams[1].sink(CHANNEL).expect("a sink");
    introduce(&source, &[&sink]);
    let rules = near.directory.join("rules.toml");
    std::fs::write(&rules, REMAP).expect("a file");
    let rules = rules.to_str().expect("UTF-8");
    let more = ["--rules", rules, "--remap", "udp"];
    let [watched, _] = [near, far].map(|node| Monitor::of_all(node, &more));
    let number = Cell::new(0);
    let send = || {
        put(&source, number.get(), 64);
        number.set(number.get() + 1);
        while sink.consume(Wait::Never).is_ok() {}
    };
    until_true("the rule moves the stream", || {
        send();
        streams[0].datapath() == "udp"
    });
    until_true("silence ends the rule", || streams[0].datapath() == "lossy");
    until_true("it moves again", || {
        send();
        streams[0].datapath() == "udp"
    });
    let told = watched.end();
    assert!(
        told["rules"][0]["begun"].as_u64() >= Some(2),
        "{}",
        told["rules"]
    );
    until_true("with the monitor's end all is as before", || {
        streams[0].datapath() == "lossy"
    });
    // What an operator has mapped stays, also when the monitor ends.
    let channel = |action: &[&str]| {
        let done = Command::new(takt_testing::built().join("takt"))
            .arg("channel")
            .args(action)
            .arg("--admin")
            .arg(near.directory.join("admin.sock"))
            .output();
        let done = done.expect("takt");
        assert!(done.status.success(), "{done:?}");
    };
    channel(&["map", "5", "udp"]);
    let mut watched = Monitor::of_all(near, &more);
    let said = BufReader::new(watched.child.stderr.take().expect("its errors"));
    let told = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for line in said.lines().map_while(Result::ok) {
                told.fetch_or(line.contains("mapped to udp already"), Ordering::Relaxed);
            }
        });
        until_true("the monitor leaves it to the operator", || {
            send();
            told.load(Ordering::Relaxed)
        });
        watched.end();
    });
    assert_eq!(streams[0].datapath(), "udp");
    channel(&["unmap", "5"]);
    until_true("the operator maps it back", || {
        streams[0].datapath() == "lossy"
    });
}

#[test]
fn what_a_tenant_sends_and_gets_has_its_health_and_a_browser_shows_it() {
    if skip() {
        return;
    }
    let pair = Pair::with(&LabConfig::default(), LISTENERS);
    let [near, far] = &pair.nodes;
    let class = TrafficClass::new(6).expect("a class");
    let ends = |name: &str, channel, qos: Qos| {
        let sessions = [tenant(near, name), tenant(far, name)];
        let [source, sink] = sessions
            .each_ref()
            .map(|s| s.stream(qos).expect("a stream"));
        let source = source.source(channel).expect("a source");
        let sink = sink.sink(channel).expect("a sink");
        introduce(&source, &[&sink]);
        (source, sink, sessions)
    };
    let (source, sink, _press) = ends("press", CHANNEL, Datapath::Udp.qos().time_sensitive(class));
    let (stranger, _strangers, _other) = ends("other", ChannelId(6), Datapath::Udp.qos());

    let (rules, mirror) = (
        near.directory.join("rules.toml"),
        near.directory.join("late.pcapng"),
    );
    std::fs::write(&rules, RULES).expect("a file");
    let [rules, mirror] = [&rules, &mirror].map(|path| path.to_str().expect("UTF-8"));
    let sends = Monitor::start(near, &[]);
    let gets = Monitor::start(far, &["--rules", rules, "--mirror", mirror]);
    for number in 0..MESSAGES {
        // One that is cut short for the monitor, and one that goes in fragments.
        put(&source, number, [64, 1000, 10_000][number as usize % 3]);
        put(&stranger, number, 64);
        until_true("the message comes", || {
            let message = sink.consume(Wait::For(PATIENCE)).expect("a message");
            number_of(&message) == number
        });
    }

    let addresses = [0, 1].map(|host| pair.lab.host(host).address().to_string());
    let name = |way: &str, peer: &str| format!("channel 5 class 6 {way} {peer} lane ");
    // The browser's script has put in what was not on the page that it got.
    let row = name("from", &addresses[0]);
    until_true("the browser shows the flow, red", || {
        let page = browsed(&gets.page);
        page.contains(&row) && page.contains("<td class=\"red\">red</td>")
    });
    // What is shown is what was asked for the time before.
    let parts = [
        "<p id=\"told\" role=\"status\"></p>",
        "<svg viewBox",
        "one-way delay by the packets' stamps",
        "<a href=\"#flow-",
        "<td class=\"green\">green</td>",
        &name("to", &addresses[1]),
    ];
    until_true("the browser shows the other one, green", || {
        let page = browsed(&sends.page);
        parts.iter().all(|part| page.contains(part))
    });

    for (monitor, row) in [(sends, name("to", &addresses[1])), (gets, row)] {
        let account = monitor.end();
        let flows = account["flows"].as_array().expect("flows");
        // One source of one tenant.
        let [flow] = &flows[..] else {
            panic!("{account}");
        };
        assert!(
            flow["flow"].as_str().expect("text").starts_with(&row),
            "{account}"
        );
        // Two of three are one datagram, the third is more.
        assert!(flow["packets"].as_u64() > Some(MESSAGES), "{account}");
        let of_order = ["lost", "duplicates", "reordered"].map(|name| flow[name].as_u64());
        assert_eq!(of_order, [Some(0); 3], "{account}");
        assert_eq!(account["dropped"], 0, "{account}");
        // Without gates the datapath has it in the round in which the lane took it; the other lane gets it later.
        let delay = flow["delay"]["max_ns"].as_i64().expect("a delay");
        assert_eq!(delay > 0, row.contains(" from "), "{account}");
        assert_eq!(flow["carries"], "takt", "{account}");
    }
    let mirrored = Command::new("tshark")
        .args(["-r", mirror, "-T", "fields", "-e", "frame.comment"])
        .output();
    let mirrored = String::from_utf8(mirrored.expect("tshark").stdout).expect("text");
    assert!(mirrored.lines().count() as u64 > MESSAGES / 2, "{mirrored}");
    assert!(
        mirrored.lines().all(|comment| comment == "press"),
        "{mirrored}"
    );
}

#[test]
fn a_monitor_of_a_node_says_when_that_has_ended() {
    if skip() {
        return;
    }
    let mut pair = Pair::with(&LabConfig::default(), LISTENERS);
    let mut monitor = Monitor::start(&pair.nodes[0], &[]);
    pair.nodes[0].kill();
    let mut text = String::new();
    let mut err = monitor.child.stderr.take().expect("its errors");
    err.read_to_string(&mut text).expect("text");
    assert_eq!(
        monitor.child.wait().expect("an end").code(),
        Some(1),
        "{text}"
    );
    assert!(text.contains("daemon"), "{text}");
}
