//! `takt schedule`: schedules in files, with no daemon.

mod support;

use std::io::Write;
use std::process::Stdio;

use support::{Ran, run, takt};
use takt_testing::Directory;

const TOML: &str = r#"
interface = "eth0"
base-time = "1700000000.000000000"
cycle-time = "1ms"

[[entry]]
gates = [2]
interval = "250us"

[[entry]]
gates = [1, 0]
interval = "750us"

[priorities]
classes = 3
map = [0, 0, 1, 2]
"#;

const TAPRIO: &str = "\
tc qdisc replace dev eth0 parent root taprio num_tc 3 map 0 0 1 2 queues 1@0 1@1 1@2 \\
    base-time 1700000000000000000 sched-entry S 04 250000 sched-entry S 03 750000 clockid CLOCK_TAI
";

struct Files(Directory);

impl Files {
    fn new() -> Self {
        let directory = Directory::new();
        std::fs::write(directory.join("eth0.toml"), TOML).expect("write");
        std::fs::write(directory.join("eth0.sh"), TAPRIO).expect("write");
        Self(directory)
    }

    fn add(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).expect("write");
        self.0.text(name)
    }

    fn toml(&self) -> String {
        self.0.text("eth0.toml")
    }

    fn taprio(&self) -> String {
        self.0.text("eth0.sh")
    }
}

/// Runs `takt` with a text on its standard input.
fn run_on(arguments: &[&str], text: &str) -> Ran {
    let mut child = takt(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("takt");
    let mut input = child.stdin.take().expect("its input");
    input.write_all(text.as_bytes()).expect("written");
    drop(input);
    child.wait_with_output().expect("its end").into()
}

#[test]
fn a_good_schedule_is_called_good_and_a_bad_one_explained() {
    let files = Files::new();
    let ran = run(&["schedule", "check", &files.taprio()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.out.contains("[shared-window]") && ran.out.ends_with("eth0.sh: good\n"),
        "{ran:?}"
    );
    let bad = TOML
        .replace("interval = \"750us\"", "interval = \"1ms\"")
        .replace("gates = [2]", "gates = [5]");
    let bad = files.add("bad.toml", &bad);
    let ran = run(&["schedule", "check", &bad]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    for part in [
        "error: entry 1 overlaps the next cycle: 250 µs of its 1 ms are cut",
        "[entries-exceed-cycle]",
        "error: class 2 is never open",
        "warning: entry 0 opens the gates of classes 5, but the port has only classes 0 to 2 [no-such-class]",
    ] {
        assert!(ran.out.contains(part), "{part}: {ran:?}");
    }
    assert!(
        ran.err.ends_with("bad.toml: 2 errors, 1 warning\n"),
        "{ran:?}"
    );
}

#[test]
fn the_port_decides_what_a_mistake_is() {
    let files = Files::new();
    let check = |more: &[&str]| {
        let file = files.toml();
        run(&[&["schedule", "check", &file, "--json"], more].concat())
    };
    let codes = |ran: &Ran| -> Vec<String> {
        let json = ran.json();
        let findings = json["findings"].as_array().expect("findings").iter();
        findings
            .map(|finding| finding["code"].as_str().expect("a code").to_owned())
            .collect()
    };
    let ran = check(&[]);
    assert_eq!(
        (ran.code, ran.json()["interface"].as_str()),
        (Some(0), Some("eth0")),
        "{ran:?}"
    );
    // A full frame takes 1.2 ms at 10 Mbit/s.
    let ran = check(&["--rate", "10mbit"]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(
        codes(&ran).contains(&"window-below-largest-frame".to_owned()),
        "{ran:?}"
    );
    let ran = check(&["--rate", "10mbit", "--frame", "200"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = check(&["--rate", "50mbit"]);
    assert!(
        codes(&ran).contains(&"guard-band-large".to_owned()) && ran.code == Some(0),
        "{ran:?}"
    );
    let ran = check(&["--rate", "50mbit", "--strict"]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    let ran = check(&["--classes", "8"]);
    assert!(
        codes(&ran).contains(&"never-open".to_owned()) && ran.code == Some(4),
        "{ran:?}"
    );
    for wrong in [["--rate", "fast"], ["--classes", "9"], ["--from", "yaml"]] {
        let ran = check(&wrong);
        assert_eq!(ran.code, Some(2), "{ran:?}");
    }
}

#[test]
fn what_taprio_would_refuse_is_found() {
    let files = Files::new();
    let file = files.add(
        "offload.sh",
        &TAPRIO.replace("CLOCK_TAI", "CLOCK_TAI flags 0x2"),
    );
    let ran = run(&["schedule", "check", &file]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(
        ran.out.contains("leave clockid out [clock-with-offload]"),
        "{ran:?}"
    );
}

#[test]
fn show_draws_the_gates_and_says_what_each_class_gets() {
    let files = Files::new();
    let ran = run(&[
        "schedule",
        "show",
        &files.toml(),
        "--ascii",
        "--width",
        "70",
    ]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    let expected = "\
cycle 1 ms, base time 1700000000.000000000 TAI, 2 entries
class                                               open    worst wait
    2 ##########..............................    25.0 %        762 us
    1 ..........##############################    75.0 %        275 us
    0 ..........##############################    75.0 %        262 us
      0 ns      250 us    500 us    750 us    1 ms

CLASS  WINDOWS           LARGEST FRAME    GUARD  FRAMES/CYCLE      CAPACITY
    2  250 us at 0 ns           1514 B  12.2 us            20  242.2 Mbit/s
    1  750 us at 250 us         1514 B  12.2 us            60  726.7 Mbit/s
    0  750 us at 250 us         1514 B  12.2 us            60  726.7 Mbit/s
";
    assert_eq!(ran.out, expected);
    let json = run(&["schedule", "show", &files.toml(), "--json"]).json();
    assert_eq!(json["classes"][0]["worst_gate_wait_ns"], 762_208);
    assert_eq!(
        json["slots"][1],
        serde_json::json!({"start_ns": 250_000, "length_ns": 750_000, "open": [0, 1]})
    );
}

#[test]
fn show_draws_a_schedule_that_cannot_run_too_and_says_so() {
    let files = Files::new();
    let file = files.add("long.toml", &TOML.replace("750us", "1ms"));
    let ran = run(&["schedule", "show", &file]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.err
            .contains("does not run as it is: `takt schedule check` explains why"),
        "{ran:?}"
    );
    assert!(ran.out.contains("75.0 %"), "{ran:?}");
}

#[test]
fn show_writes_a_picture() {
    let files = Files::new();
    let picture = files.0.text("eth0.svg");
    let ran = run(&["schedule", "show", &files.toml(), "--svg", &picture]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{ran:?}");
    let svg = std::fs::read_to_string(&picture).expect("the picture");
    assert!(
        svg.starts_with("<svg ") && svg.contains(">eth0</text>"),
        "{svg}"
    );
    let ran = run(&["schedule", "show", &files.toml(), "--svg", "-"]);
    assert_eq!(ran.out, svg);
    let ran = run(&[
        "schedule",
        "show",
        &files.toml(),
        "--svg",
        "/nowhere/eth0.svg",
    ]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.err.contains("cannot write /nowhere/eth0.svg"),
        "{ran:?}"
    );
}

#[test]
fn a_schedule_goes_through_every_form_and_comes_back_the_same() {
    let files = Files::new();
    let mut file = files.taprio();
    for (form, name) in [
        ("toml", "a.toml"),
        ("xml", "a.xml"),
        ("json", "a.json"),
        ("tc", "a.sh"),
    ] {
        let output = files.0.text(name);
        let ran = run(&[
            "schedule", "convert", &file, "--to", form, "--output", &output,
        ]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{ran:?}");
        let ran = run(&["schedule", "diff", &file, &output]);
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (Some(0), ""),
            "{form}: {ran:?}"
        );
        file = output;
    }
}

#[test]
fn what_a_form_cannot_say_is_told_and_can_be_refused() {
    let files = Files::new();
    let ran = run(&["schedule", "convert", &files.taprio(), "--to", "xml"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.out.starts_with("<?xml") && ran.err.contains("not kept: the classes of priorities"),
        "{ran:?}"
    );
    let output = files.0.text("never.xml");
    let ran = run(&[
        "schedule",
        "convert",
        &files.taprio(),
        "--to",
        "xml",
        "--strict",
        "--output",
        &output,
    ]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(
        ran.err.contains("nothing is written") && !files.0.join("never.xml").exists(),
        "{ran:?}"
    );
    let json = run(&[
        "schedule",
        "convert",
        &files.taprio(),
        "--to",
        "xml",
        "--json",
    ])
    .json();
    assert!(
        json["text"]
            .as_str()
            .is_some_and(|text| text.starts_with("<?xml"))
    );
    assert!(
        json["lost"].as_array().is_some_and(|lost| !lost.is_empty()),
        "{json}"
    );
    let hold = files.add(
        "hold.toml",
        &TOML.replace(
            "interval = \"250us\"",
            "interval = \"250us\"\noperation = \"set-and-hold-mac\"",
        ),
    );
    let ran = run(&["schedule", "convert", &hold, "--to", "tc"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(4), ""), "{ran:?}");
    assert!(
        ran.err.contains("tc cannot say set-and-hold-mac"),
        "{ran:?}"
    );
}

#[test]
fn a_manifest_says_a_schedule_of_any_form_or_refuses_what_it_cannot_say() {
    let files = Files::new();
    let manifest = |file: &str| {
        run(&[
            "schedule",
            "manifest",
            file,
            "--name",
            "line",
            "--datapath",
            "xdp",
            "--rate",
            "1gbit",
        ])
    };
    let (toml, tc) = (manifest(&files.toml()), manifest(&files.taprio()));
    assert_eq!((toml.code, toml.err.as_str()), (Some(0), ""), "{toml:?}");
    assert_eq!(toml.out, tc.out);
    assert!(
        toml.out.contains("kind: GateSchedule") && toml.out.contains("rate: 1000000000\n"),
        "{toml:?}"
    );
    for (change, told) in [
        (
            (
                "interval = \"250us\"",
                "interval = \"250us\"\noperation = \"set-and-hold-mac\"",
            ),
            "set-and-hold-mac is of preemption",
        ),
        (
            ("cycle-time =", "enabled = false\ncycle-time ="),
            "gates are not enabled",
        ),
    ] {
        let file = files.add("refused.toml", &TOML.replace(change.0, change.1));
        let ran = manifest(&file);
        assert_eq!((ran.code, ran.out.as_str()), (Some(4), ""), "{ran:?}");
        assert!(ran.err.contains(told), "{ran:?}");
    }
}

#[test]
fn diff_tells_changes_and_exits_with_5() {
    let files = Files::new();
    let other = files.add(
        "other.toml",
        &TOML
            .replace("250us", "300us")
            .replace("750us", "700us")
            .replace("map = [0, 0", "map = [1, 0"),
    );
    let ran = run(&["schedule", "diff", &files.toml(), &other]);
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert_eq!(
        ran.out,
        "class of priority 0: 0 -> 1\n\
         entry 0 removed: gates 2 for 250 µs\n\
         entry 1 removed: gates 1,0 for 750 µs\n\
         entry 0 added: gates 2 for 300 µs\n\
         entry 1 added: gates 1,0 for 700 µs\n\
         the gates open and close at other instants\n"
    );
    let ran = run(&["schedule", "diff", &files.toml(), &other, "--json"]);
    assert_eq!(
        (ran.code, &ran.json()["same_gates"]),
        (Some(5), &false.into()),
        "{ran:?}"
    );
    let later = files.add(
        "later.toml",
        &TOML.replace("1700000000.000000000", "1700000000.001"),
    );
    let ran = run_on(&["schedule", "diff", &later, "-"], TOML);
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert!(
        ran.out
            .ends_with("the gates open and close at the same instants\n"),
        "{ran:?}"
    );
}

#[test]
fn an_interface_is_chosen_in_a_document_of_several() {
    let files = Files::new();
    let json = run(&["schedule", "convert", &files.toml(), "--to", "json"]).out;
    let document: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let one = &document["ietf-interfaces:interfaces"]["interface"][0];
    let mut other = one.clone();
    other["name"] = "eth1".into();
    let both = serde_json::json!({"ietf-interfaces:interfaces": {"interface": [one, other]}});
    let both = files.add("both.json", &both.to_string());
    let ran = run(&["schedule", "check", &both]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(
        ran.err
            .contains("the interfaces eth0, eth1 have a gate-parameter-table each"),
        "{ran:?}"
    );
    let ran = run(&[
        "schedule",
        "show",
        &both,
        "--interface",
        "eth1",
        "--classes",
        "3",
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn what_cannot_be_read_is_refused_with_its_place() {
    let files = Files::new();
    let no_text = files.0.join("no-text");
    std::fs::write(&no_text, b"cycle-time = \"\xff\"").expect("write");
    for (file, message) in [
        (
            "/nowhere/eth0.toml".to_owned(),
            "cannot read /nowhere/eth0.toml: No such file",
        ),
        (files.0.text("."), "cannot read"),
        (files.0.text("no-text"), "no-text: octet 14 is no UTF-8"),
        (
            files.add("long", &" ".repeat((1 << 20) + 5)),
            "a schedule of more than 1048576 is not read",
        ),
        (
            files.add("typo.toml", "cycle-tiem = 5"),
            "typo.toml: not toml: TOML parse error at line 1, column 1",
        ),
        (
            files.add("gates.toml", "[[entry]]\ngates = [8]\ninterval = 1"),
            "entry 0, gates: `8` is not a traffic class",
        ),
        (
            files.add(
                "typo.sh",
                "tc qdisc replace dev eth0 root taprio sched-entry S 1 5us",
            ),
            "word 11 (sched-entry): `5us` is not",
        ),
        (
            files.add("open.xml", "<a>\n<b>"),
            "open.xml: not xml: the element b is not closed (line 2)",
        ),
    ] {
        for command in ["check", "show"] {
            let ran = run(&["schedule", command, &file]);
            assert_eq!((ran.code, ran.out.as_str()), (Some(4), ""), "{ran:?}");
            assert!(
                ran.err.starts_with("takt: ") && ran.err.contains(message),
                "{message}: {ran:?}"
            );
        }
    }
}

#[test]
fn standard_input_is_read_to_its_limit_and_its_form_guessed() {
    let ran = run_on(&["schedule", "check", "-"], TAPRIO);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.ends_with("standard input: good\n"), "{ran:?}");
    let ran = run_on(&["schedule", "check", "-", "--from", "json"], TAPRIO);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.err.contains("not json: expected"), "{ran:?}");
}

const PLAN: &str = r#"
launch-error = "5us"

[[link]]
between = ["press", "line"]
rate = "1gbit"

[[link]]
between = ["line", "robot"]
rate = "100mbit"

[[switch]]
name = "line"
forwarding = "3us"

[[stream]]
name = "axis"
class = 7
from = "press"
to = ["robot"]
period = "1ms"
frame = 128
deadline = "200us"
channel = 7

[[stream]]
name = "state"
class = 5
from = "press"
to = ["robot"]
period = "2ms"
frame = 300
destination = "10.244.1.9:4000"
"#;

#[test]
fn schedules_are_computed_from_what_streams_require_and_are_good() {
    let files = Files::new();
    let plan = files.add("plan.toml", PLAN);
    let ran = run(&["schedule", "synthesize", &plan]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for part in [
        "STREAM",
        "axis",
        "state",
        "press-line",
        "line-robot",
        "2 ms",
    ] {
        assert!(ran.out.contains(part), "{part}: {ran:?}");
    }
    let json = run(&["schedule", "synthesize", &plan, "--json"]).json();
    assert_eq!(json["streams"][0]["offset_ns"], 0);
    assert_eq!(json["ports"].as_array().map(Vec::len), Some(2));

    let directory = files.0.text("plans");
    let ran = run(&["schedule", "synthesize", &plan, "--output", &directory]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for (port, rate) in [("press-line", "1gbit"), ("line-robot", "100mbit")] {
        let file = format!("{directory}/{port}.toml");
        let ran = run(&["schedule", "check", &file, "--rate", rate, "--frame", "300"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let streams = std::fs::read_to_string(format!("{directory}/press.streams.toml"));
    let streams = streams.expect("the talker's streams");
    for part in [
        "name = \"axis\"",
        "channel = 7",
        "destination = \"10.244.1.9:4000\"",
        "window = \"5us\"",
    ] {
        assert!(streams.contains(part), "{part}: {streams}");
    }
    let ran = run(&[
        "schedule",
        "synthesize",
        &plan,
        "--output",
        &directory,
        "--to",
        "tc",
    ]);
    assert!(
        ran.code == Some(0) && ran.err.contains("not kept: the clock"),
        "{ran:?}"
    );
    let ran = run(&[
        "schedule",
        "check",
        &format!("{directory}/press-line.sh"),
        "--frame",
        "300",
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn streams_that_cannot_be_met_are_named_with_the_reason() {
    let files = Files::new();
    let plan = files.add("plan.toml", &PLAN.replace("\"200us\"", "\"20us\""));
    let ran = run(&["schedule", "synthesize", &plan]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.err.contains("axis cannot be met: it needs"), "{ran:?}");
    let ran = run_on(&["schedule", "synthesize", "-"], "[[link]]\nbetween = 1");
    assert!(
        ran.code == Some(4) && ran.err.contains("standard input: not toml"),
        "{ran:?}"
    );
    let plan = files.add("plan.toml", PLAN);
    let ran = run(&[
        "schedule",
        "synthesize",
        &plan,
        "--node",
        "robot",
        "--install",
        "xdp",
    ]);
    assert!(
        ran.code == Some(4) && ran.err.contains("robot has no port with a schedule"),
        "{ran:?}"
    );
}
