//! `takt monitor` and `takt health`: captures of others beside tools of others, files made here, an interface.
//!
//! `tshark`, `pmacct` and the captures of `sip-tester` come with `scripts/setup.sh test`.

mod support;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use support::{Running, run, takt};
use takt_capture::Meta;
use takt_capture::pcapng::Writer;
use takt_lab::{Host, Lab, LabConfig};
use takt_testing::{Directory, until_true};

/// RTP of a SIP test tool: G.711, 30 ms.
const G711: &str = "/usr/share/sip-tester/g711a.pcap";

fn account(arguments: &[&str]) -> Value {
    let ran = run(arguments);
    assert!(ran.code == Some(0), "{arguments:?}: {}", ran.err);
    serde_json::from_str(&ran.out).expect("JSON")
}

fn tshark(arguments: &[&str]) -> String {
    let output = Command::new("tshark")
        .args(arguments)
        .stderr(Stdio::null())
        .output()
        .expect("tshark runs: scripts/setup.sh test installs it");
    String::from_utf8(output.stdout).expect("text")
}

/// A UDP datagram over IPv4 and Ethernet.
fn udp(ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let total = (28 + payload.len()) as u16;
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(ports[0].to_be_bytes());
    frame.extend(ports[1].to_be_bytes());
    frame.extend((total - 20).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend_from_slice(payload);
    frame
}

fn rtp(sequence: u16) -> Vec<u8> {
    let mut packet = vec![0x80, 8];
    packet.extend(sequence.to_be_bytes());
    packet.extend((u32::from(sequence) * 160).to_be_bytes());
    packet.extend([0, 0, 0, 9]);
    packet.extend([0; 160]);
    packet
}

fn capture(directory: &Directory, name: &str, packets: &[(i64, Vec<u8>)]) -> String {
    let path = directory.join(name);
    let mut writer = Writer::new(File::create(path).expect("a file"), 65_535).expect("written");
    for (at, bytes) in packets {
        let meta = Meta {
            utc_ns: *at,
            length: bytes.len() as u32,
            link_type: 1,
        };
        writer.packet(&meta, bytes).expect("written");
    }
    directory.text(name)
}

/// Packets, lost, and the jitter (mean and largest) of the only RTP stream, as tshark tells them, in ms; no jitter where it does not know the
/// media clock. What came twice counts as received, so that there may be fewer than none lost (RFC 3550, section 6.4.1).
fn tshark_rtp(path: &str) -> (u64, i64, Option<[f64; 2]>) {
    let text = tshark(&[
        "-q",
        "-r",
        path,
        "-o",
        "rtp.heuristic_rtp:TRUE",
        "-z",
        "rtp,streams",
    ]);
    let line = text
        .lines()
        .find(|line| line.contains("0x"))
        .unwrap_or_else(|| panic!("a stream in {text}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words
        .iter()
        .position(|word| word.starts_with("0x"))
        .expect("an SSRC");
    // SSRC, payload, packets, lost, (share), three deltas, three jitters.
    let number = |at: usize| words[at].parse::<f64>().expect("a number");
    (
        number(at + 2) as u64,
        number(at + 3) as i64,
        (number(at + 8) >= 0.0).then(|| [number(at + 9), number(at + 10)]),
    )
}

fn agrees_with_tshark(path: &str) {
    let (packets, lost, jitter) = tshark_rtp(path);
    let account = account(&["monitor", "-r", path, "--json"]);
    let flow = &account["flows"][0];
    assert_eq!(flow["carries"], "rtp");
    assert_eq!(flow["packets"].as_u64(), Some(packets));
    let counted = |name: &str| flow[name].as_i64().expect(name);
    assert_eq!(
        counted("lost") - counted("duplicates"),
        lost,
        "{path}: {flow}"
    );
    let Some([mean, max]) = jitter else {
        assert!(flow["max_jitter_ns"].is_null(), "{path}: {flow}");
        return;
    };
    // tshark prints microseconds.
    let ours = |name: &str| flow[name].as_f64().expect(name) / 1e6;
    assert!((ours("max_jitter_ns") - max).abs() < 0.001, "{flow} {max}");
    assert!(
        (ours("mean_jitter_ns") - mean).abs() < 0.005,
        "{flow} {mean}"
    );
}

/// Packets and bytes of IP of each flow of UDP and TCP, as pmacct counts them.
fn pmacct(directory: &Directory, path: &str) -> BTreeMap<String, (u64, u64)> {
    let config = directory.write(
        "pmacct.conf",
        format!(
            "daemonize: false\npcap_savefile: {path}\nplugins: print\nprint_output: csv\n\
             aggregate: src_host,dst_host,src_port,dst_port,proto\nprint_refresh_time: 3600\n"
        ),
    );
    let output = Command::new("pmacctd")
        .arg("-f")
        .arg(config)
        .stderr(Stdio::null())
        .output()
        .expect("pmacctd runs: scripts/setup.sh test installs it");
    let text = String::from_utf8(output.stdout).expect("text");
    let flows = text.lines().filter_map(|line| {
        let columns: Vec<&str> = line.split(',').collect();
        let &[from, to, from_port, to_port, protocol, packets, bytes] = &columns[..] else {
            return None;
        };
        let count = |text: &str| text.parse().expect("a number");
        let written = |address: &str| match address.contains(':') {
            true => format!("[{address}]"),
            false => address.to_owned(),
        };
        ["udp", "tcp"].contains(&protocol).then(|| {
            let (from, to) = (written(from), written(to));
            let flow = format!("{protocol} {from}:{from_port} > {to}:{to_port}");
            (flow, (count(packets), count(bytes)))
        })
    });
    flows.collect()
}

/// A capture that comes with the sources of the library that reads captures.
fn sample(name: &str) -> String {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(takt_testing::repository())
        .output()
        .expect("cargo");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut packages = metadata["packages"].as_array().expect("packages").iter();
    let package = packages.find(|package| package["name"] == "pcap-parser");
    let manifest = package.expect("the library")["manifest_path"].as_str();
    let directory = std::path::Path::new(manifest.expect("a path")).parent();
    let path = directory.expect("a directory").join("assets").join(name);
    path.to_str().expect("text").to_owned()
}

#[test]
fn flows_of_udp_and_tcp_have_the_packets_and_bytes_that_pmacct_counts() {
    const ETHERNET: u64 = 14;
    // Without frame check sequence: shorter ones are filled up, of which a capture may show a part.
    const SHORTEST: u64 = 60;
    let directory = Directory::new();
    let (mut compared, mut of_tcp, mut of_ipv6) = (0, 0, 0);
    for path in [
        G711.to_owned(),
        sample("wireshark_samples-test.pcapng"),
        sample("ntp.pcap"),
        // TLS over TCP.
        sample("err-buffertoosmall.pcapng"),
    ] {
        let theirs = pmacct(&directory, &path);
        let account = account(&["monitor", "-r", &path, "--json"]);
        let mut ours = BTreeMap::new();
        for flow in account["flows"].as_array().expect("flows") {
            let name = flow["flow"].as_str().expect("a name");
            if ["udp", "tcp"].iter().any(|kind| name.starts_with(kind)) {
                ours.insert(name.to_owned(), flow);
            }
        }
        assert!(!theirs.is_empty(), "{path}");
        let names = |all: Vec<&String>| all.into_iter().cloned().collect::<Vec<_>>();
        assert_eq!(
            names(ours.keys().collect()),
            names(theirs.keys().collect()),
            "{path}"
        );
        for (name, (packets, bytes)) in &theirs {
            let flow = ours[name];
            let told = |what: &str| flow[what].as_u64().expect("a number");
            assert_eq!(told("packets"), *packets, "{path}: {flow}");
            let least = bytes + ETHERNET * packets;
            match told("smallest") {
                0..=SHORTEST => assert!(told("bytes") >= least, "{path}: {flow}"),
                _ => assert_eq!(told("bytes"), least, "{path}: {flow}"),
            }
            compared += 1;
            of_tcp += usize::from(name.starts_with("tcp"));
            of_ipv6 += usize::from(name.contains('['));
        }
    }
    assert!(compared > 500, "{compared} flows");
    assert!(
        of_tcp >= 6 && of_ipv6 >= 5,
        "{of_tcp} of TCP, {of_ipv6} over IPv6"
    );
}

#[test]
fn jitter_and_loss_of_rtp_are_those_of_tshark() {
    let captures = std::fs::read_dir("/usr/share/sip-tester").expect("scripts/setup.sh test");
    let mut compared = 0;
    for capture in captures {
        let path = capture.expect("a file").path();
        let path = path.to_str().expect("text");
        if path.ends_with(".pcap") {
            agrees_with_tshark(path);
            compared += 1;
        }
    }
    assert!(compared > 12, "{compared} captures");
    let directory = Directory::new();
    // Every thirteenth lost, times that a generator of fixed seed moves by up to 5 ms.
    let mut seed = 1_u32;
    let packets: Vec<(i64, Vec<u8>)> = (0..500_u16)
        .filter(|number| number % 13 != 12)
        .map(|number| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let moved = i64::from(seed >> 16) * 5_000_000 / 65_536;
            let at = 1_700_000_000_000_000_000 + i64::from(number) * 20_000_000 + moved;
            (
                at / 1000 * 1000,
                udp([4000, 5004], &rtp(number.wrapping_add(65_400))),
            )
        })
        .collect();
    // To where the number wraps: this generator's media clock starts anew there.
    let packets: Vec<_> = packets.into_iter().take(120).collect();
    agrees_with_tshark(&capture(&directory, "lossy.pcapng", &packets));
}

#[test]
fn flows_are_the_conversations_of_tshark() {
    for file in ["dtmf_2833_1.pcap", "dtmf_2833_pound.pcap", "g711a.pcap"] {
        let path = format!("/usr/share/sip-tester/{file}");
        let fields = tshark(&[
            "-r",
            &path,
            "-T",
            "fields",
            "-E",
            "separator=,",
            "-e",
            "ip.src",
            "-e",
            "udp.srcport",
            "-e",
            "ip.dst",
            "-e",
            "udp.dstport",
            "-e",
            "frame.len",
        ]);
        let mut expected: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for line in fields.lines() {
            let [from, from_port, to, to_port, length] = line.split(',').collect::<Vec<_>>()[..]
            else {
                panic!("five fields in {line}");
            };
            let flow = expected
                .entry(format!("udp {from}:{from_port} > {to}:{to_port}"))
                .or_default();
            flow.0 += 1;
            flow.1 += length.parse::<u64>().expect("a length");
        }
        let account = account(&["monitor", "-r", &path, "--json"]);
        let found: BTreeMap<String, (u64, u64)> = account["flows"]
            .as_array()
            .expect("flows")
            .iter()
            .map(|flow| {
                let number = |name: &str| flow[name].as_u64().expect(name);
                let name = flow["flow"].as_str().expect("a name").to_owned();
                (name, (number("packets"), number("bytes")))
            })
            .collect();
        assert!(
            !expected.is_empty(),
            "tshark and {path} are there: scripts/setup.sh test"
        );
        assert_eq!(found, expected, "{path}");
    }
}

const RULES: &str = r#"
[[flow]]
name = "camera"
match = "udp * > *:5004"
period = "60Hz"
max-delay = "5ms"
hold = "200ms"

[[rule]]
name = "late"
when = "delay > 5ms"
do = ["event", "metric", "mirror", "control"]
"#;

/// 200 packets, one every 60th of a second, 7 ms late in the second second.
fn camera() -> Vec<(i64, Vec<u8>)> {
    (0..200_i64)
        .map(|number| {
            let late = if (60..120).contains(&number) {
                7_000_000
            } else {
                0
            };
            let at = 1_700_000_000_000_000_000 + number * 16_666_667 + late;
            (at, udp([4000, 5004], &[0; 200]))
        })
        .collect()
}

#[test]
fn a_late_camera_is_red_its_rule_acts_and_the_page_shows_it() {
    let directory = Directory::new();
    let path = capture(&directory, "camera.pcapng", &camera());
    std::fs::write(directory.join("rules.toml"), RULES).expect("written");
    let rules = directory.text("rules.toml");
    let (mirror, page) = (directory.text("mirror.pcapng"), directory.text("page.html"));
    let control = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    control
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("a time limit");
    let to = control.local_addr().expect("an address").to_string();
    let account = account(&[
        "monitor",
        "-r",
        &path,
        "--rules",
        &rules,
        "--mirror",
        &mirror,
        "--control",
        &to,
        "--report",
        &page,
        "--json",
    ]);
    let flow = &account["flows"][0];
    assert_eq!(flow["worst_level"], "red");
    assert_eq!(flow["delay_by"], "shift");
    assert_eq!(account["rules"][0]["begun"], 1);
    let mut message = [0; 2000];
    for begins in [true, false] {
        let length = control.recv(&mut message).expect("a control message");
        let message: Value = serde_json::from_slice(&message[..length]).expect("JSON");
        assert_eq!(message["rule"], "late");
        assert_eq!(message["begins"], begins);
    }
    // What was mirrored: from the first late packet until the rule ended, a second after the last one.
    let account = self::account(&["monitor", "-r", &mirror, "--json"]);
    assert_eq!(account["flows"][0]["packets"], 120);
    let page = std::fs::read_to_string(page).expect("the page");
    for expected in [
        "<svg",
        "limit",
        "camera",
        "#d55e00",
        "green to red",
        "rule late begins",
    ] {
        assert!(page.contains(expected), "{expected} in the page");
    }
    // Rules that mirror or control need a place to.
    let ran = run(&["monitor", "-r", &path, "--rules", &rules]);
    assert!(
        ran.code != Some(0) && ran.err.contains("--mirror FILE"),
        "{}",
        ran.err
    );
}

#[test]
fn the_table_fits_80_columns_and_csv_has_a_line_for_each_flow() {
    let directory = Directory::new();
    let packets: Vec<_> = (0..100_u16)
        .map(|port| (i64::from(port), udp([40_000 + port, 65_535], &[0; 1400])))
        .collect();
    let path = capture(&directory, "many.pcapng", &packets);
    let ran = run(&["monitor", "-r", &path]);
    assert!(
        ran.code == Some(0) && ran.out.contains("80 more"),
        "{}",
        ran.out
    );
    let widest = ran
        .out
        .lines()
        .skip(1)
        .map(|line| line.chars().count())
        .max();
    assert!(widest <= Some(80), "{}", ran.out);
    let ran = run(&["monitor", "-r", &path, "--csv"]);
    assert_eq!(ran.out.lines().count(), 101);
    let columns: Vec<usize> = ran
        .out
        .lines()
        .map(|line| line.split(',').count())
        .collect();
    assert!(
        columns.iter().all(|count| *count == columns[0]),
        "{columns:?}"
    );
}

const SILENCE: &str = r#"
[[flow]]
name = "control"
match = "udp * > *:300"
period = "10ms"

[[rule]]
name = "gone"
flow = "udp * > *:300"
when = "silence > 50ms"
hold = "0ms"
do = ["event"]
"#;

/// A flow pauses for 5 s, in which another one sends or none, and then ends before the other.
#[test]
fn silence_is_judged_by_the_times_of_a_capture() {
    let directory = Directory::new();
    std::fs::write(directory.join("rules.toml"), SILENCE).expect("written");
    for pause_has_packets in [true, false] {
        let sent = (0..100).chain(600..700);
        let sent = sent.map(|at| (at * 10_000_000, udp([200, 300], &[1; 50])));
        let others = (0..900).filter(|at| pause_has_packets || !(100..600).contains(at));
        let others = others.map(|at| (at * 10_000_000 + 1, udp([200, 301], &[1; 50])));
        let mut packets: Vec<_> = sent.chain(others).collect();
        packets.sort_by_key(|(at, _)| *at);
        let path = capture(&directory, "silent.pcapng", &packets);
        let rules = directory.text("rules.toml");
        let account = account(&["monitor", "-r", &path, "--rules", &rules, "--json"]);
        let events = account["events"].as_array().expect("events");
        let begun: Vec<i64> = events
            .iter()
            .filter(|event| event["event"] == "rule" && event["begins"] == true)
            .map(|event| event["at_ns"].as_i64().expect("a time") - 37_000_000_000)
            .collect();
        assert_eq!(begun.len(), 2, "{events:?}");
        for (begun, last) in begun.iter().zip([990_000_000, 6_990_000_000]) {
            assert!(
                (50_000_000..=150_000_000).contains(&(begun - last)),
                "{events:?}"
            );
        }
        assert_eq!(account["levels"]["red"], 1, "{account}");
    }
}

#[test]
fn what_is_no_capture_or_ends_early_is_told() {
    let directory = Directory::new();
    let path = capture(&directory, "whole.pcapng", &camera());
    let whole = std::fs::read(&path).expect("the capture");
    std::fs::write(directory.join("cut.pcapng"), &whole[..whole.len() - 10]).expect("written");
    let ran = run(&["monitor", "-r", &directory.text("cut.pcapng")]);
    assert!(
        ran.code != Some(0) && ran.err.contains("within packet 200"),
        "{}",
        ran.err
    );
    assert!(ran.out.contains("199"), "{}", ran.out);
    std::fs::write(directory.join("text"), "hello, world: this is no capture").expect("written");
    let ran = run(&["monitor", "-r", &directory.text("text")]);
    assert!(
        ran.code != Some(0) && ran.err.contains("neither pcap nor pcapng"),
        "{}",
        ran.err
    );
    let ran = run(&["monitor", "-i", "takt-none0"]);
    assert!(
        ran.code != Some(0) && ran.err.contains("ip link"),
        "{}",
        ran.err
    );
}

#[test]
fn what_was_learned_holds_for_the_stretch_that_it_was_learned_from() {
    let directory = Directory::new();
    let good: Vec<_> = camera().into_iter().take(60).collect();
    let path = capture(&directory, "good.pcapng", &good);
    let learned = directory.text("learned.toml");
    let ran = run(&["health", "learn", "-r", &path, "--output", &learned]);
    assert!(ran.code == Some(0), "{}", ran.err);
    let again = run(&["health", "learn", "-r", &path, "--output", &learned]);
    assert!(
        again.code != Some(0) && again.err.contains("is there"),
        "{}",
        again.err
    );
    let text = std::fs::read_to_string(&learned).expect("the proposal");
    assert!(
        text.contains("period = \"16666667ns\"")
            && text.contains("# seen: 60 beats")
            && text.contains("0 of 60 beats missing")
            && text.contains("max-delay = ")
            && text.contains("max-loss = \"0%\""),
        "{text}"
    );
    let ran = run(&["health", "check", &learned]);
    assert!(ran.code == Some(0), "{}{}", ran.out, ran.err);
    let account = self::account(&["monitor", "-r", &path, "--rules", &learned, "--json"]);
    assert_eq!(account["flows"][0]["worst_level"], "green");
    let late = capture(&directory, "late.pcapng", &camera());
    let account = self::account(&["monitor", "-r", &late, "--rules", &learned, "--json"]);
    assert_eq!(account["flows"][0]["worst_level"], "red");
}

#[test]
fn rules_are_explained_and_contradictions_are_errors() {
    let directory = Directory::new();
    let check = |text: &str| {
        std::fs::write(directory.join("rules.toml"), text).expect("written");
        run(&["health", "check", &directory.text("rules.toml")])
    };
    let ran = check(RULES);
    assert!(
        ran.code == Some(0) && ran.out.contains("begins when delay > 5ms"),
        "{}",
        ran.out
    );
    let ran = check(
        "[[flow]]\nname = \"x\"\nmatch = \"*\"\nmax-delay = \"1.2345ms\"\nmax-loss = \"0.1%\"\n",
    );
    assert!(
        ran.out
            .contains("flow x: *: max-delay 1234500ns, max-loss 0.1%"),
        "{}",
        ran.out
    );
    let ran =
        check("[[rule]]\nname = \"x\"\nwhen = \"loss > 2% and loss < 1%\"\ndo = [\"event\"]\n");
    assert!(
        ran.code != Some(0) && ran.out.contains("[never]"),
        "{}",
        ran.out
    );
    let ran = check("[[rule]]\nname = \"x\"\nwhen = \"dleay > 2ms\"\ndo = [\"event\"]\n");
    assert!(
        ran.code != Some(0) && ran.err.contains("delay, jitter"),
        "{}",
        ran.err
    );
}

#[test]
fn rules_that_contradict_are_refused_at_the_start() {
    let directory = Directory::new();
    let path = capture(&directory, "camera.pcapng", &camera());
    let rule = |name: &str, when: &str| {
        format!("[[rule]]\nname = \"{name}\"\nwhen = \"{when}\"\ndo = [\"control\"]\n")
    };
    let rules = rule("late", "delay > 2ms") + &rule("early", "delay <= 2ms");
    let rules = directory.write("rules.toml", rules);
    let ran = run(&["monitor", "-r", &path, "--rules", &rules]);
    assert!(
        ran.code == Some(4)
            && ran
                .err
                .contains("or `delay > 2ms` of rule late, always holds")
            && ran.err.contains("`takt health check "),
        "{ran:?}"
    );
}

#[test]
fn changed_rules_are_in_force_and_faulty_ones_change_nothing() {
    let directory = Directory::new();
    let receiver = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let to = receiver.local_addr().expect("an address");
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let rule = |name: &str, when: &str| {
        let text = format!(
            "[[rule]]\nname = \"{name}\"\nflow = \"udp * > {to}\"\nwhen = \"{when}\"\ndo = [\"event\"]\n"
        );
        // At once: nobody reads half of it.
        let whole = directory.write("whole.toml", text);
        let path = directory.text("rules.toml");
        std::fs::rename(whole, &path).expect("renamed");
        path
    };
    let rules = rule("first", "size > 200B");
    let arguments = [
        "monitor",
        "-i",
        "lo",
        "--ring",
        "4",
        "--events",
        "--interval",
        "100ms",
        "--rules",
        &rules,
    ];
    let child = takt(&arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("takt starts");
    let mut monitor = Running(child);
    let out = monitor.0.stdout.take().expect("piped");
    let (to_here, events) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let _ = to_here.send(serde_json::from_str::<Value>(&line).expect("JSON"));
        }
    });
    let begins = |name: &str, size: usize| {
        until_true(name, || {
            sender.send_to(&vec![0; size], to).expect("sent");
            let event = events.recv_timeout(Duration::from_millis(10));
            event.is_ok_and(|event| event["rule"] == name && event["begins"] == true)
        });
    };
    let ends = |name: &str| {
        until_true(name, || {
            let event = events
                .recv_timeout(takt_testing::PATIENCE)
                .expect("an event");
            event["rule"] == name && event["begins"] == false
        });
    };
    begins("first", 1000);
    rule("faulty", "size > 200B and size < 100B");
    monitor.line_with("the rules before stay");
    sender.send_to(&[0; 10], to).expect("sent");
    ends("first");
    begins("first", 1000);
    rule("second", "size < 200B");
    ends("first");
    begins("second", 10);
    monitor.signal(Signal::INT);
    assert_eq!(monitor.end().code, Some(0));
}

/// On loopback: what is sent there is seen, and served as metrics.
#[test]
fn an_interface_is_watched_live() {
    let receiver = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port = receiver.local_addr().expect("an address").port();
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let wanted = format!(":{port}");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let child = takt(&[
            "monitor", "-i", "lo", "--for", "1s", "--ring", "4", "--json",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("takt starts");
        // Read meanwhile: others' flows may make it longer than a pipe holds.
        let reads = std::thread::spawn(move || child.wait_with_output());
        while !reads.is_finished() {
            let _ = sender.send_to(&[7; 100], ("127.0.0.1", port));
            std::thread::sleep(Duration::from_millis(1));
        }
        let output = reads.join().expect("no panic").expect("its output");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        let account: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let flows = account["flows"].as_array().expect("flows");
        let flow = flows.iter().find(|flow| {
            flow["flow"]
                .as_str()
                .is_some_and(|name| name.ends_with(&wanted))
        });
        if let Some(flow) = flow {
            assert_eq!(flow["largest"], 142);
            return;
        }
        assert!(Instant::now() < deadline, "no packet was seen");
    }
}

/// A monitor that was stopped while packets came has no room for all of them. None was lost on its way.
#[test]
fn what_the_ring_had_no_room_for_is_no_loss_of_the_network() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let directory = Directory::new();
    std::fs::write(
        directory.join("rules.toml"),
        "[[rule]]\nname = \"lossy\"\nwhen = \"lost > 0 or missing > 0\"\ndo = [\"event\"]\n",
    )
    .expect("written");
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
    let [near, far] = [lab.host(0), lab.host(1)];
    let child = near
        .command(env!("CARGO_BIN_EXE_takt"))
        .expect("a command")
        .args(["monitor", "-i", "eth0", "--ring", "1", "--json"])
        .args(["--rules", &directory.text("rules.toml")])
        .args(["--openmetrics", "127.0.0.1:9464", "--interval", "100ms"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("takt starts");
    let monitor = Running(child);
    let inside = far.enter().expect("the host");
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket
        .connect((near.address(), 5004))
        .expect("an address that it reaches");
    drop(inside);
    let sequence = Cell::new(0_u16);
    let send = |count: u16| {
        for _ in 0..count {
            // Nobody listens: the answer to one is the next one's error.
            let packet = [&rtp(sequence.get())[..], &[0; 1000]].concat();
            while socket.send(&packet).is_err() {}
            sequence.set(sequence.get() + 1);
        }
    };
    let taken = |least: u64| {
        until_true("packets are taken", || {
            send(10);
            metric(near, "takt_health_packets_total") >= least
        });
        metric(near, "takt_health_packets_total")
    };
    let before = taken(100);
    monitor.signal(Signal::STOP);
    // Some three times what the ring has room for, and few enough to be a gap and no new beginning.
    send(2500);
    monitor.signal(Signal::CONT);
    taken(before + 100);
    monitor.signal(Signal::INT);
    let account = monitor.end().json();
    let flows = account["flows"].as_array().expect("flows");
    let stream = flows.iter().find(|flow| flow["carries"] == "rtp");
    let lost = stream.and_then(|flow| flow["lost"].as_u64());
    assert!(lost.is_some_and(|lost| lost > 0), "{account}");
    assert!(account["dropped"].as_u64() >= lost, "{account}");
    assert_eq!(
        account["events"].as_array().map(Vec::len),
        Some(0),
        "{account}"
    );
}

#[test]
fn an_interface_that_was_down_is_watched_on_and_what_was_seen_of_one_that_goes_is_told() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
    let [near, far] = [lab.host(0), lab.host(1)];
    let child = near
        .command(env!("CARGO_BIN_EXE_takt"))
        .expect("a command")
        .args(["monitor", "-i", "eth0", "--ring", "1", "--json"])
        .args(["--openmetrics", "127.0.0.1:9464", "--interval", "100ms"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("takt starts");
    let monitor = Running(child);
    let inside = far.enter().expect("the host");
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    drop(inside);
    let ip = |arguments: &[&str]| {
        let ran = near
            .command("ip")
            .expect("a command")
            .args(arguments)
            .status();
        assert!(ran.expect("ip runs").success(), "{arguments:?}");
    };
    let taken = |more: u64| {
        let before = metric(near, "takt_health_packets_total");
        until_true("packets are taken", || {
            let _ = socket.send_to(&[1; 100], (near.address(), 5004));
            metric(near, "takt_health_packets_total") >= before + more
        });
    };
    taken(20);
    ip(&["link", "set", "eth0", "down"]);
    ip(&["link", "set", "eth0", "up"]);
    taken(20);
    ip(&["link", "delete", "eth0"]);
    let ended = monitor.end();
    assert!(
        ended.code != Some(0) && ended.err.contains("it was removed"),
        "{ended:?}"
    );
    let account: Value = serde_json::from_str(&ended.out).expect("JSON");
    assert!(
        account["packets"]["packets"].as_u64() >= Some(40),
        "{account}"
    );
}

#[test]
fn times_that_a_device_does_not_tell_are_refused() {
    let ran = run(&["monitor", "-i", "lo", "--device-times", "--for", "1s"]);
    let told = "lo does not tell when it received each packet (";
    assert!(ran.code == Some(1) && ran.err.contains(told), "{ran:?}");
}

/// The metrics of a monitor at this port of a host's loopback.
fn metric(host: &Host, name: &str) -> u64 {
    let mut curl = host.command("curl").expect("a command");
    let output = curl.args(["-s", "http://127.0.0.1:9464/"]).output();
    let text = String::from_utf8(output.expect("curl").stdout).expect("text");
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or(0)
}

#[test]
fn threads_share_the_packets_of_an_interface_and_a_flow_is_one_threads() {
    const FLOWS: u16 = 24;
    const SMALL: u64 = 20;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
    let [near, far] = [lab.host(0), lab.host(1)];
    for (host, address) in [(near, "fd00::1/64"), (far, "fd00::2/64")] {
        let mut ip = host.command("ip").expect("a command");
        ip.args(["address", "add", address, "dev", "eth0", "nodad"]);
        assert!(ip.status().expect("ip").success());
    }
    for by in ["tuple", "stream"] {
        let child = near
            .command(env!("CARGO_BIN_EXE_takt"))
            .expect("a command")
            .args(["monitor", "-i", "eth0", "--threads", "3", "--by", by])
            .args(["--http", "127.0.0.1:0", "--openmetrics", "127.0.0.1:9464"])
            .args(["--interval", "100ms", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("takt starts");
        let mut monitor = Running(child);
        monitor.line_with("the flows are shown at ");
        let inside = far.enter().expect("the host");
        for number in 0..FLOWS {
            for (from, to) in [
                (
                    "0.0.0.0:0".to_owned(),
                    format!("{}:{}", near.address(), 5000 + number),
                ),
                ("[::]:0".to_owned(), format!("[fd00::1]:{}", 5000 + number)),
            ] {
                let socket = UdpSocket::bind(from).expect("a socket");
                for _ in 0..SMALL {
                    // Nobody listens: the answer to one is the next one's error.
                    let _ = socket.send_to(&[1; 100], &to);
                    std::thread::sleep(Duration::from_micros(100));
                }
                // In fragments, of which the first has the ports.
                if to.starts_with('1') {
                    while socket.send_to(&[2; 4000], &to).is_err() {}
                }
            }
        }
        drop(inside);
        let least = u64::from(FLOWS) * (2 * SMALL + 3) * 9 / 10;
        until_true("the packets are taken", || {
            metric(near, "takt_health_packets_total") >= least
        });
        monitor.signal(Signal::INT);
        let ran = monitor.end();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let account = ran.json();

        let threads = account["threads"].as_array().expect("threads");
        let shares = threads
            .iter()
            .map(|thread| thread["packets"].as_u64().expect("a number"));
        let shares: Vec<u64> = shares.collect();
        assert_eq!(account["packets"]["packets"], shares.iter().sum::<u64>());
        let mut names = BTreeMap::new();
        for flow in account["flows"].as_array().expect("flows") {
            let name = flow["flow"].as_str().expect("a name").to_owned();
            let packets = flow["packets"].as_u64().expect("a number");
            assert_eq!(names.insert(name, packets), None, "twice: {account}");
        }
        if by == "stream" {
            // All that is for one host, by EtherType.
            let mac = near.mac().map(|byte| format!("{byte:02x}")).join(":");
            let to = names.iter().filter(|(name, _)| name.contains(&mac));
            let (count, packets) = to.fold((0, 0), |sum, flow| (sum.0 + 1, sum.1 + flow.1));
            assert!(count == 2 && packets >= least, "{names:?}");
            continue;
        }
        assert_eq!(shares.len(), 3);
        assert!(shares.iter().all(|packets| *packets > 0), "{shares:?}");
        for number in 0..FLOWS {
            let port = 5000 + number;
            for (to, most) in [
                (format!(" > {}:{port}", near.address()), SMALL + 1),
                (format!(" > [fd00::1]:{port}"), SMALL),
            ] {
                let mut flows = names.iter().filter(|(name, _)| name.ends_with(&to));
                let flow = flows
                    .next()
                    .unwrap_or_else(|| panic!("{to} is not in {names:?}"));
                assert!(flows.next().is_none(), "{names:?}");
                assert!(*flow.1 <= most, "{flow:?}");
            }
        }
    }
}
