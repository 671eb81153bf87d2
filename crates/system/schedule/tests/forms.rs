//! Every form is read back as it was written, and no text makes reading fail but with an error.

use proptest::prelude::*;
use takt_schedule::form::{
    ClockId, Document, Form, FormError, PriorityMap, QueueRange, TaprioOptions, read, write,
};
use takt_schedule::{GateEntry, GateMask, GateOperation, Schedule, Selection};
use takt_time::TaiTime;

const MANUAL_PAGE: &str = "\
# tc qdisc replace dev eth0 parent root handle 100 taprio \\
              num_tc 3 \\
              map 2 2 1 0 2 2 2 2 2 2 2 2 2 2 2 2 \\
              queues 1@0 1@1 2@2 \\
              base-time 1528743495910289987 \\
              sched-entry S 01 300000 \\
              sched-entry S 02 300000 \\
              sched-entry S 04 300000 \\
              clockid CLOCK_TAI
";

fn parse(form: Form, text: &str) -> Document {
    read(form, text, None).unwrap().document
}

fn error(form: Form, text: &str) -> String {
    read(form, text, None).unwrap_err().to_string()
}

fn manual_page() -> Document {
    Document {
        interface: Some("eth0".into()),
        schedule: Schedule {
            base_time: TaiTime::from_nanos(1_528_743_495_910_289_987),
            cycle_time_ns: 900_000,
            entries: [1, 2, 4]
                .map(|gates| GateEntry::new(GateMask::from_bits(gates), 300_000))
                .into(),
            ..Schedule::default()
        },
        priorities: Some(PriorityMap {
            classes: 3,
            class_of: [2, 2, 1, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2],
        }),
        taprio: Some(TaprioOptions {
            handle: Some("100".into()),
            queues: vec![
                QueueRange {
                    count: 1,
                    offset: 0,
                },
                QueueRange {
                    count: 1,
                    offset: 1,
                },
                QueueRange {
                    count: 2,
                    offset: 2,
                },
            ],
            ..TaprioOptions::default()
        }),
    }
}

#[test]
fn the_example_of_the_manual_page_is_read() {
    assert_eq!(parse(Form::Taprio, MANUAL_PAGE), manual_page());
    assert_eq!(manual_page().check(), []);
}

#[test]
fn every_parameter_of_taprio_is_read() {
    let document = parse(
        Form::Taprio,
        "sudo /sbin/tc qdisc add dev eth1 root handle 1: stab overhead 24 taprio num_tc 2 map 0 1 queues 1@0 1@0 \
         sched-entry S 0x1 0x100000 sched-entry H 2 300 sched-entry R 3 010 base-time 5 cycle-time 2000000 \
         cycle-time-extension 1000 clockid tai flags 0x1 txtime-delay 200000 max-sdu 100 200 fp E P",
    );
    let options = document.taprio.clone().unwrap();
    assert_eq!(document.interface.as_deref(), Some("eth1"));
    assert_eq!(options.command, "add");
    assert_eq!(options.parent.as_deref(), Some("root"));
    assert_eq!(options.handle.as_deref(), Some("1:"));
    assert_eq!(options.stab.as_deref(), Some("overhead 24"));
    assert_eq!(options.clock, Some(ClockId::Tai));
    assert_eq!(options.flags, Some(1));
    assert_eq!(options.txtime_delay_ns, Some(200_000));
    assert_eq!(options.preemptible, [false, true]);
    let schedule = &document.schedule;
    assert_eq!(schedule.base_time, TaiTime::from_nanos(5));
    assert_eq!(schedule.cycle_time_ns, 2_000_000);
    assert_eq!(schedule.cycle_time_extension_ns, 1_000);
    assert_eq!(schedule.max_sdu, [100, 200, 0, 0, 0, 0, 0, 0]);
    let entries: Vec<_> = schedule
        .entries
        .iter()
        .map(|entry| (entry.operation, entry.gates.bits(), entry.interval_ns))
        .collect();
    assert_eq!(
        entries,
        [
            (GateOperation::Set, 1, 0x10_0000),
            (GateOperation::SetAndHold, 2, 300),
            (GateOperation::SetAndRelease, 3, 8),
        ]
    );
}

#[test]
fn mistakes_in_a_command_line_are_named_with_their_place() {
    for (line, message) in [
        (
            "tc qdisc replace dev eth0 parent root",
            "not tc: the word `taprio` is missing",
        ),
        (
            "tc qdisc show dev eth0 taprio",
            "word 3 (tc qdisc): `show` is not known here: known are add, replace",
        ),
        ("taprio num_tc", "behind num_tc: its value is missing"),
        (
            "taprio num_tc 9",
            "word 3 (num_tc): `9` is not a number of traffic classes, 1 to 8",
        ),
        ("taprio num_tc 2 num_tc 2", "word 4 (num_tc) is given twice"),
        ("taprio map 0 1", "map: num_tc is missing"),
        (
            "taprio cycle_time 5",
            "word 2 (taprio): `cycle_time` is not known here: known are num_tc, map",
        ),
        (
            "taprio cycle-time -5",
            "word 3 (cycle-time): `-5` is not a duration in nanoseconds",
        ),
        (
            "taprio base-time soon",
            "word 3 (base-time): `soon` is not nanoseconds since 1970",
        ),
        (
            "taprio sched-entry X 1 5",
            "word 3 (sched-entry): `X` is not known here: known are S (set gates)",
        ),
        (
            "taprio sched-entry S 100 5",
            "word 4 (sched-entry): `100` is not a gate mask for the classes 7 to 0",
        ),
        (
            "taprio sched-entry S 1 5us",
            "word 5 (sched-entry): `5us` is not an interval in nanoseconds",
        ),
        (
            "taprio sched-entry S 1",
            "behind sched-entry: its value is missing",
        ),
        (
            "taprio clockid CLOCK_MINE",
            "word 3 (clockid): `CLOCK_MINE` is not known here: known are CLOCK_TAI",
        ),
        (
            "taprio flags x",
            "word 3 (flags): `x` is not a number of 32 bits",
        ),
        (
            "taprio txtime-delay -1",
            "word 3 (txtime-delay): `-1` is not a duration",
        ),
        (
            "taprio max-sdu 0 0 0 0 0 0 0 0 9",
            "max-sdu of class 8: `9` is not for one of the classes 0 to 7",
        ),
        ("taprio num_tc 2 map", "behind map: its value is missing"),
        (
            "tc qdisc add stab dev eth0 taprio",
            "behind stab: its value is missing",
        ),
        (
            "taprio num_tc 2 map 0 300",
            "word 6 (map): `300` is not the class of a priority",
        ),
        (
            "taprio num_tc 2 map base-time 5",
            "word 5 (map): `base-time` is not the class of a priority",
        ),
        (
            "taprio queues 1@0 1",
            "word 4 (queues): `1` is not a range of queues such as 2@1",
        ),
        ("taprio fp E X", "word 4 (taprio): `X` is not known here"),
        (
            "taprio queues 1@0 queues 1@0",
            "word 4 (queues) is given twice",
        ),
    ] {
        let error = error(Form::Taprio, line);
        assert!(error.starts_with(message), "{line}: {error}");
    }
}

#[test]
fn what_taprio_refuses_besides_the_schedule_is_found() {
    let with = |change: fn(&mut Document)| {
        let mut document = manual_page();
        change(&mut document);
        document
            .check()
            .iter()
            .map(|finding| finding.code)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        with(|d| d.priorities.as_mut().unwrap().class_of[5] = 3),
        ["map-beyond-classes"]
    );
    assert_eq!(
        with(|d| d.taprio.as_mut().unwrap().flags = Some(4)),
        ["flags-unknown"]
    );
    assert_eq!(
        with(|d| d.taprio.as_mut().unwrap().flags = Some(3)),
        ["flags-exclusive", "clock-with-offload"]
    );
    assert_eq!(
        with(|d| d.taprio.as_mut().unwrap().clock = Some(ClockId::Realtime)),
        ["clock-not-tai"]
    );
    assert_eq!(
        with(|d| d.taprio.as_mut().unwrap().clock = None),
        ["clock-missing"]
    );
    assert_eq!(
        with(|d| d.taprio.as_mut().unwrap().txtime_delay_ns = Some(5)),
        ["txtime-delay-without-assist"]
    );
    assert_eq!(
        with(|d| d.taprio.as_mut().unwrap().queues.truncate(2)),
        ["queues-count"]
    );
    assert_eq!(
        with(|d| d.taprio.as_mut().unwrap().queues[1].count = 0),
        ["queues-empty"]
    );
    assert_eq!(
        with(|d| d.taprio.as_mut().unwrap().queues[1].count = 2),
        ["queues-overlap"]
    );
    assert_eq!(
        with(|d| d.taprio.as_mut().unwrap().preemptible = vec![true]),
        ["preemptible"]
    );
    assert_eq!(with(|d| d.schedule.enabled = false), ["taprio-disabled"]);
}

#[test]
fn a_command_line_is_written_so_that_a_shell_leaves_it_as_it_is() {
    let mut document = manual_page();
    document.interface = Some("eth0; reboot".into());
    let written = write(Form::Taprio, &document).unwrap();
    assert!(
        written
            .text
            .starts_with("tc qdisc replace dev $DEV parent root")
    );
    assert!(
        written.lost[0].contains("no name for Linux"),
        "{:?}",
        written.lost
    );
    document.taprio.as_mut().unwrap().handle = Some("1: $(reboot)".into());
    let error = write(Form::Taprio, &document).unwrap_err().to_string();
    assert_eq!(
        error,
        "tc cannot say `1: $(reboot)`: a shell would not leave it as it is, or tc would take it for an option"
    );
}

#[test]
fn what_taprio_cannot_say_is_told() {
    let mut document = manual_page();
    document.schedule.enabled = false;
    document.schedule.initial_gates = GateMask::from_bits(1);
    document.priorities = None;
    let lost = write(Form::Taprio, &document).unwrap().lost.join("\n");
    for part in [
        "gate-enabled is false",
        "the initial gates (0)",
        "maps no priorities",
    ] {
        assert!(lost.contains(part), "{lost}");
    }
    document.schedule.entries[0].operation = GateOperation::SetAndHold;
    let error = write(Form::Taprio, &document).unwrap_err().to_string();
    assert!(
        error.contains("set-and-hold-mac: its only command is S"),
        "{error}"
    );
}

const TOML: &str = r#"
interface = "eth0"
base-time = "1528743495.910289987"
cycle-time = "1ms"

[[entry]]
gates = [7]
interval = "250us"

[[entry]]
gates = "all"
interval = 750_000

[max-sdu]
7 = 256
"#;

#[test]
fn a_toml_schedule_is_read() {
    let document = parse(Form::Toml, TOML);
    assert_eq!(document.interface.as_deref(), Some("eth0"));
    let schedule = document.schedule;
    assert_eq!(
        schedule.base_time,
        TaiTime::from_nanos(1_528_743_495_910_289_987)
    );
    assert_eq!(schedule.cycle_time_ns, 1_000_000);
    assert_eq!(
        schedule.entries,
        [
            GateEntry::new(GateMask::from_bits(0x80), 250_000),
            GateEntry::new(GateMask::ALL, 750_000)
        ]
    );
    assert_eq!(schedule.max_sdu[7], 256);
}

#[test]
fn without_a_cycle_time_a_cycle_is_as_long_as_its_entries() {
    let text = TOML.replace("cycle-time = \"1ms\"", "");
    assert_eq!(parse(Form::Toml, &text).schedule.cycle_time_ns, 1_000_000);
}

#[test]
fn windows_become_entries_with_the_rest_in_between() {
    let text = r#"
cycle-time = "1ms"
otherwise = [0]
[[window]]
classes = [6]
start = "300us"
length = "100us"
[[window]]
classes = [7]
start = "0"
length = "250us"
"#;
    let gates = |bits, interval| GateEntry::new(GateMask::from_bits(bits), interval);
    assert_eq!(
        parse(Form::Toml, text).schedule.entries,
        [
            gates(0x80, 250_000),
            gates(1, 50_000),
            gates(0x40, 100_000),
            gates(1, 600_000)
        ]
    );
}

#[test]
fn overlapping_windows_are_refused_unless_they_are_meant_to() {
    let windows = |shared: bool| {
        format!(
            "cycle-time = \"1ms\"\n[[window]]\nclasses = [7]\nstart = \"0us\"\nlength = \"250us\"\nshared = {shared}\n\
             [[window]]\nclasses = [6]\nstart = \"200us\"\nlength = \"100us\"\nshared = {shared}\n"
        )
    };
    assert_eq!(
        error(Form::Toml, &windows(false)),
        "window 0 (classes 7) and window 1 (classes 6) overlap from 200 µs to 250 µs: move one of them, or set \
         `shared = true` in both"
    );
    let gates = |bits, interval| GateEntry::new(GateMask::from_bits(bits), interval);
    assert_eq!(
        parse(Form::Toml, &windows(true)).schedule.entries,
        [
            gates(0x80, 200_000),
            gates(0xc0, 50_000),
            gates(0x40, 50_000),
            gates(0, 700_000)
        ]
    );
}

#[test]
fn a_window_that_others_surround_is_found_to_overlap_too() {
    let text = "cycle-time = \"1ms\"\n\
        [[window]]\nclasses = [7]\nstart = \"0us\"\nlength = \"900us\"\nshared = true\n\
        [[window]]\nclasses = [6]\nstart = \"100us\"\nlength = \"100us\"\nshared = true\n\
        [[window]]\nclasses = [5]\nstart = \"500us\"\nlength = \"100us\"\n";
    let error = error(Form::Toml, text);
    assert!(
        error.starts_with("window 0 (classes 7) and window 2 (classes 5) overlap"),
        "{error}"
    );
}

#[test]
fn mistakes_in_toml_are_named_with_their_place() {
    for (text, message) in [
        ("cycle-time = ", "not toml: TOML parse error at line 1"),
        (
            "cycle-tiem = 5",
            "not toml: TOML parse error at line 1, column 1",
        ),
        (
            "cycle-time = \"5 hours\"",
            "cycle-time: `5 hours` is not a duration: nanoseconds, or a number with ns",
        ),
        ("cycle-time = -5", "cycle-time: `-5` is not a duration"),
        (
            "base-time = \"now\"",
            "base-time: `now` is not an instant of TAI",
        ),
        (
            "[[entry]]\ngates = [8]\ninterval = 1",
            "entry 0, gates: `8` is not a traffic class, 0 to 7",
        ),
        (
            "[[entry]]\ngates = \"some\"\ninterval = 1",
            "entry 0, gates: `some` is not a list of class numbers",
        ),
        (
            "[[entry]]\ngates = [1]",
            "not toml: TOML parse error at line 1",
        ),
        (
            "[[entry]]\ngates = [1]\ninterval = \"5s\"",
            "entry 0, interval: `5s` is not below 4.294967296 s",
        ),
        (
            "[[entry]]\ngates = [1]\ninterval = 1\noperation = \"hold\"",
            "entry 0, operation: `hold` is not known here: known are set-gate-states",
        ),
        (
            "[max-sdu]\n7 = 1\n07 = 1",
            "max-sdu: `07` is not a traffic class, 0 to 7",
        ),
        (
            "[tc]\ncommand = \"del\"",
            "tc, command: `del` is not known here: known are add, replace",
        ),
        (
            "[max-sdu]\n9 = 5",
            "max-sdu: `9` is not a traffic class, 0 to 7",
        ),
        (
            "[priorities]\nclasses = 9\nmap = []",
            "priorities, classes: `9` is not a number of classes, 1 to 8",
        ),
        (
            "[priorities]\nclasses = 1\nmap = [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]",
            "priorities, map: `17` is not at most 16 priorities",
        ),
        (
            "[tc]\nqueues = [\"1\"]",
            "tc, queues: `1` is not a range of queues such as 2@1",
        ),
        (
            "[tc]\nclock = \"UTC\"",
            "tc, clock: `UTC` is not known here: known are CLOCK_TAI",
        ),
        (
            "[tc]\ntxtime-delay = \"5s\"",
            "tc, txtime-delay: `5s` is not below 4.3 s",
        ),
        (
            "[[window]]\nclasses = [1]\nstart = 0\nlength = 1",
            "[[window]]: cycle-time is missing",
        ),
        (
            "cycle-time = 5\n[[window]]\nclasses = [1]\nstart = 3\nlength = 3",
            "window 0 ends 6 ns into a cycle of 5 ns",
        ),
        (
            "cycle-time = 5\n[[window]]\nclasses = [1]\nstart = 3\nlength = 1\n[[entry]]\ngates = [1]\ninterval = 1",
            "[[entry]] and [[window]] exclude each other",
        ),
        (
            "otherwise = [0]",
            "[[entry]] and otherwise exclude each other",
        ),
    ] {
        let error = error(Form::Toml, text);
        assert!(error.starts_with(message), "{text}: {error}");
    }
}

const JSON: &str = r#"{
  "ietf-interfaces:interfaces": {
    "interface": [
      { "name": "eth0" },
      {
        "name": "eth1",
        "ieee802-dot1q-bridge:bridge-port": {
          "ieee802-dot1q-sched-bridge:gate-parameter-table": {
            "queue-max-sdu-table": [{"traffic-class": 7, "queue-max-sdu": 256, "transmission-overrun": "0"}],
            "gate-enabled": true,
            "admin-gate-states": 255,
            "oper-gate-states": 128,
            "admin-control-list": {
              "gate-control-entry": [
                {"index": 2, "operation-name": "ieee802-dot1q-sched:set-gate-states",
                 "time-interval-value": 750000, "gate-states-value": 127},
                {"index": 1, "operation-name": "ieee802-dot1q-sched:set-gate-states",
                 "time-interval-value": 250000, "gate-states-value": 128}
              ]
            },
            "admin-cycle-time": {"numerator": 1, "denominator": 1000},
            "admin-cycle-time-extension": 10000,
            "admin-base-time": {"seconds": "1528743495", "nanoseconds": 910289987},
            "config-change": true
          }
        }
      }
    ]
  }
}"#;

fn of_the_module() -> Document {
    let mut max_sdu = [0; 8];
    max_sdu[7] = 256;
    Document {
        interface: Some("eth1".into()),
        schedule: Schedule {
            base_time: TaiTime::from_nanos(1_528_743_495_910_289_987),
            cycle_time_ns: 1_000_000,
            cycle_time_extension_ns: 10_000,
            entries: vec![
                GateEntry::new(GateMask::from_bits(0x80), 250_000),
                GateEntry::new(GateMask::from_bits(0x7f), 750_000),
            ],
            max_sdu,
            ..Schedule::default()
        },
        ..Document::default()
    }
}

#[test]
fn an_instance_document_in_json_is_read_by_the_order_of_its_indices() {
    let parsed = read(Form::YangJson, JSON, None).unwrap();
    assert_eq!(parsed.document, of_the_module());
    assert_eq!(
        parsed.lost,
        ["state or not of a schedule: oper-gate-states"]
    );
}

#[test]
fn an_instance_document_in_xml_is_read_through_its_netconf_envelope() {
    let text = r#"<?xml version="1.0"?>
<rpc xmlns="urn:ietf:params:xml:ns:netconf:base:1.0" message-id="1"><edit-config><config>
<if:interfaces xmlns:if="urn:ietf:params:xml:ns:yang:ietf-interfaces"><if:interface><if:name> eth1 </if:name>
<bridge-port xmlns="urn:ieee:std:802.1Q:yang:ieee802-dot1q-bridge"><!-- a comment -->
<t:gate-parameter-table xmlns:t="urn:ieee:std:802.1Q:yang:ieee802-dot1q-sched-bridge"
    xmlns:s="urn:ieee:std:802.1Q:yang:ieee802-dot1q-sched">
  <t:queue-max-sdu-table><t:traffic-class>7</t:traffic-class><t:queue-max-sdu>256</t:queue-max-sdu></t:queue-max-sdu-table>
  <t:gate-enabled>true</t:gate-enabled><t:admin-gate-states>255</t:admin-gate-states>
  <t:admin-control-list>
    <t:gate-control-entry><t:index>0</t:index><t:operation-name>s:set-gate-states</t:operation-name>
      <t:time-interval-value>250000</t:time-interval-value><t:gate-states-value>128</t:gate-states-value></t:gate-control-entry>
    <t:gate-control-entry><t:index>1</t:index><t:operation-name>s:set-gate-states</t:operation-name>
      <t:time-interval-value>&#55;50000</t:time-interval-value><t:gate-states-value><![CDATA[127]]></t:gate-states-value></t:gate-control-entry>
  </t:admin-control-list>
  <t:admin-cycle-time><t:numerator>1000</t:numerator><t:denominator>1000000</t:denominator></t:admin-cycle-time>
  <t:admin-cycle-time-extension>10000</t:admin-cycle-time-extension>
  <t:admin-base-time><t:seconds>1528743495</t:seconds><t:nanoseconds>910289987</t:nanoseconds></t:admin-base-time>
</t:gate-parameter-table></bridge-port></if:interface></if:interfaces></config></edit-config></rpc>"#;
    assert_eq!(
        read(Form::YangXml, text, None).unwrap().document,
        of_the_module()
    );
}

#[test]
fn the_drafts_of_the_module_are_read_too() {
    let text = r#"{"interface": {"name": "eth1", "ieee802-dot1q-sched:gate-parameters": {
        "gate-enabled": true, "admin-control-list-length": 1,
        "admin-control-list": [{"index": 0, "operation-name": "set-gate-states",
            "sgs-params": {"gate-states-value": 128, "time-interval-value": 250000}}],
        "admin-base-time": {"seconds": "7", "fractional-seconds": "0"}}}}"#;
    let document = parse(Form::YangJson, text);
    assert_eq!(
        document.schedule.entries,
        [GateEntry::new(GateMask::from_bits(0x80), 250_000)]
    );
    assert_eq!(
        document.schedule.base_time,
        TaiTime::from_nanos(7_000_000_000)
    );
    let text = text.replace(
        "\"fractional-seconds\": \"0\"",
        "\"fractional-seconds\": \"5\"",
    );
    assert!(error(Form::YangJson, &text).contains("fractional-seconds have no agreed unit"));
}

#[test]
fn one_interface_is_chosen_among_several() {
    let text = JSON.replace(
        "{ \"name\": \"eth0\" }",
        "{ \"name\": \"eth0\", \"gate-parameter-table\": {\"gate-enabled\": true} }",
    );
    assert_eq!(
        error(Form::YangJson, &text),
        "the interfaces eth0, eth1 have a gate-parameter-table each: say which one is meant"
    );
    let chosen = read(Form::YangJson, &text, Some("eth1")).unwrap();
    assert_eq!(chosen.document, of_the_module());
    let none = read(Form::YangJson, &text, Some("eth9")).unwrap_err();
    assert_eq!(
        none.to_string(),
        "no gate-parameter-table for the interface eth9: is this configuration of ieee802-dot1q-sched?"
    );
}

#[test]
fn a_cycle_time_that_is_no_whole_number_of_nanoseconds_is_rounded_and_told() {
    let text = JSON.replace("\"denominator\": 1000}", "\"denominator\": 3}");
    let parsed = read(Form::YangJson, &text, None).unwrap();
    assert_eq!(parsed.document.schedule.cycle_time_ns, 333_333_333);
    assert!(
        parsed
            .lost
            .iter()
            .any(|lost| lost.contains("1/3 s is no whole number")),
        "{:?}",
        parsed.lost
    );
}

#[test]
fn mistakes_in_an_instance_document_are_named_with_their_place() {
    for (from, to, message) in [
        ("]\n  }\n}", "]\n  }\n", "not json: EOF while parsing"),
        (
            "gate-parameter-table",
            "gate-parameter-tabel",
            "no gate-parameter-table: is this configuration",
        ),
        (
            "\"gate-enabled\": true",
            "\"gate-enabled\": 1",
            "gate-parameter-table/gate-enabled: `1` is not true or false",
        ),
        (
            "\"gate-enabled\": true",
            "\"gate-enabled\": true, \"gate-enabled\": false",
            "gate-parameter-table/gate-enabled is given twice",
        ),
        (
            "\"gate-enabled\": true",
            "\"admin-control-list-length\": 3",
            "gate-parameter-table/admin-control-list-length: `3` is not the number of entries that follow",
        ),
        (
            "\"admin-gate-states\": 255",
            "\"admin-gate-states\": 256",
            "gate-parameter-table/admin-gate-states: `256`",
        ),
        (
            "\"index\": 2",
            "\"index\": 1",
            "gate-control-entry with index 1 is given twice",
        ),
        (
            "\"index\": 2,",
            "",
            "gate-control-entry 0: index is missing",
        ),
        (
            "sched:set-gate-states",
            "sched:set",
            "gate-control-entry 0/operation-name: `ieee802-dot1q-sched:set` is not known",
        ),
        (
            "\"operation-name\": \"ieee802-dot1q-sched:set-gate-states\",",
            "",
            "gate-control-entry 0: operation-name is missing",
        ),
        (
            "\"time-interval-value\": 750000,",
            "",
            "gate-control-entry 0: time-interval-value is missing",
        ),
        (
            "\"gate-states-value\": 127",
            "\"gate-states-value\": -1",
            "gate-control-entry 0/gate-states-value: `-1`",
        ),
        (
            "\"denominator\": 1000",
            "\"denominator\": 0",
            "gate-parameter-table/admin-cycle-time: `1/0 s` is not a number of seconds: the",
        ),
        (
            "\"denominator\": 1000",
            "\"d\": 0",
            "gate-parameter-table/admin-cycle-time: denominator is missing",
        ),
        (
            "910289987",
            "1000000000",
            "gate-parameter-table/admin-base-time: `1000000000` is not a number of nanoseconds below a second",
        ),
        (
            "\"1528743495\"",
            "\"18446744073709551615\"",
            "gate-parameter-table/admin-base-time: `18446744073709551615` is not a number of seconds",
        ),
        (
            "\"traffic-class\": 7",
            "\"traffic-class\": 8",
            "queue-max-sdu-table 0: `8` is not a traffic class",
        ),
        (
            "[{\"traffic-class\": 7,",
            "[{\"traffic-class\": 7}, {\"traffic-class\": 7,",
            "queue-max-sdu-table of traffic class 7 is given twice",
        ),
    ] {
        let text = JSON.replacen(from, to, 1);
        assert_ne!(text, JSON, "{from}");
        let error = error(Form::YangJson, &text);
        assert!(error.starts_with(message), "{from} -> {to}: {error}");
    }
}

#[test]
fn mistakes_in_xml_are_named() {
    for (text, message) in [
        ("<a><b></a>", "not xml: "),
        ("<a>\n", "not xml: the element a is not closed (line 2)"),
        (
            "<a>\n<b operation='delete'/></a>",
            "not xml: b is to be deleted (operation, RFC 6241)",
        ),
        ("<a>\n<b x=5/></a>", "not xml: "),
        ("", "not xml: there is no element"),
        ("<a>&nbsp;</a>", "not xml: the entity &nbsp; is not known"),
        (
            "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
            "not xml: document types are not read",
        ),
        ("<a/>", "no gate-parameter-table: is this"),
    ] {
        let error = error(Form::YangXml, text);
        assert!(error.starts_with(message), "{text}: {error}");
    }
    let deep = "<a>".repeat(100);
    assert_eq!(
        error(Form::YangXml, &deep),
        "not xml: more than 32 elements within each other (line 1)"
    );
}

#[test]
fn what_the_module_cannot_say_is_told() {
    let mut document = manual_page();
    let lost = write(Form::YangXml, &document).unwrap().lost.join("\n");
    assert!(
        lost.contains("traffic-class-table") && lost.contains("clockid"),
        "{lost}"
    );
    document.schedule.base_time = TaiTime::from_nanos(-1);
    let error = |document: &Document| write(Form::YangJson, document).unwrap_err().to_string();
    assert!(error(&document).starts_with("json cannot say a base time before 1970"));
    document.schedule.base_time = TaiTime::from_nanos(0);
    document.schedule.cycle_time_extension_ns = 1 << 32;
    assert!(
        error(&document).starts_with("json cannot say a cycle time extension of 4294967296 ns")
    );
    document.schedule.cycle_time_extension_ns = 0;
    document.schedule.cycle_time_ns = (1 << 32) + 1;
    assert!(error(&document).starts_with("json cannot say a cycle time of 4294967297 ns"));
    document.schedule.cycle_time_ns = 5_000_000_000;
    assert!(
        write(Form::YangJson, &document)
            .unwrap()
            .text
            .contains("\"numerator\": 5\n")
    );
}

#[test]
fn the_form_of_a_text_is_guessed() {
    for (text, form) in [
        (MANUAL_PAGE, Form::Taprio),
        ("sudo tc qdisc add", Form::Taprio),
        ("$ /usr/sbin/tc qdisc", Form::Taprio),
        (JSON, Form::YangJson),
        ("\u{feff} <?xml?>", Form::YangXml),
        (TOML, Form::Toml),
        ("# A Takt schedule\n", Form::Toml),
        ("# tc may read this\ncycle-time = 5", Form::Toml),
        (
            "#!/bin/sh\n# My schedule.\n\nsudo tc qdisc replace",
            Form::Taprio,
        ),
        ("", Form::Toml),
    ] {
        assert_eq!(Form::of(text), form, "{text}");
    }
    for form in Form::ALL {
        assert_eq!(form.to_string().parse(), Ok(form));
    }
    let unknown = "yaml".parse::<Form>().unwrap_err().to_string();
    assert_eq!(
        unknown,
        "`yaml` is not a form of schedules: known are toml, tc, json, xml"
    );
}

#[test]
fn messages_do_not_hand_control_characters_and_long_texts_to_the_terminal() {
    let long = "x".repeat(100_000);
    let strange = format!("\u{1b}[2J\u{202e}{long}");
    let escaped = format!("\\u001b[2J\\u202e{long}");
    for (form, text) in [
        (Form::Taprio, format!("taprio clockid {strange}")),
        (Form::Taprio, format!("taprio {strange}")),
        (Form::Toml, format!("[max-sdu]\n\"{escaped}\" = 5")),
        (Form::Toml, format!("cycle-time = \"{escaped}\"")),
        (Form::Toml, format!("cycle-time = \"{strange}\"")),
        (Form::Toml, format!("{long} = 5")),
        (
            Form::YangJson,
            JSON.replace(
                "\"denominator\": 1000",
                &format!("\"denominator\": \"{escaped}\""),
            ),
        ),
        (Form::YangXml, format!("<a>&{long};</a>")),
        (Form::YangXml, format!("<a><{long}>")),
    ] {
        let message = error(form, &text);
        assert!(message.len() < 3_000, "{form}: {} octets", message.len());
        let harmless = |c: char| c == '\n' || !c.is_control() && c != '\u{202e}';
        assert!(message.chars().all(harmless), "{form}: {message:?}");
    }
    let table = format!("{{\"gate-parameter-table\": {{\"{escaped}\": [0, 0]}}}}");
    let lost = read(Form::YangJson, &table, None).unwrap().lost.join("");
    assert!(lost.len() < 1_000 && !lost.contains('\u{1b}'), "{lost:?}");
}

/// A mebioctet made to cost much: deep, wide, or of one long name.
#[test]
fn texts_made_to_cost_much_do_not() {
    let many = |text: &str| text.repeat(1_000_000 / text.len());
    let windows = format!(
        "cycle-time = 2\nwindow = [{}]",
        many("{classes=[1],start=0,length=2,shared=true},")
    );
    assert_eq!(
        parse(Form::Toml, &windows).schedule.entries,
        [GateEntry::new(GateMask::from_bits(2), 2)]
    );
    let long = "x".repeat(500_000);
    let window = "[[window]]\nclasses = [1]\nstart = 0\nlength = 1";
    for (form, text) in [
        (
            Form::Toml,
            format!("cycle-time = \"18446744073s\"\n{window}"),
        ),
        (Form::Toml, format!("a = {}", many("["))),
        (Form::Toml, format!("a = {}", many("{a="))),
        (Form::Toml, format!("{}a = 1", many("a."))),
        (Form::Toml, format!("[{}a]", many("a."))),
        (Form::Toml, many("[[entry]]\n")),
        (Form::YangJson, many("[")),
        (Form::YangJson, many("{\"a\":")),
        (
            Form::YangJson,
            format!("{{\"{long}\": [{}0]}}", "0,".repeat(200_000)),
        ),
        (Form::YangXml, many("<a>")),
        (Form::YangXml, many("<a/>")),
        (Form::YangXml, format!("<a>{}", many("&lt;"))),
        (Form::Taprio, many("qdisc ")),
        (Form::Taprio, format!("taprio {}", many("map 0 "))),
    ] {
        error(form, &text);
    }
    let entries = format!("taprio {}", many("sched-entry S 1 1 "));
    let entries = parse(Form::Taprio, &entries).schedule.entries;
    assert_eq!(entries.len(), 1_000_000 / 18);
}

#[test]
fn a_text_of_more_than_a_mebioctet_is_refused() {
    let long = " ".repeat((1 << 20) + 1);
    for form in Form::ALL {
        assert_eq!(
            read(form, &long, None),
            Err(FormError::TooLong((1 << 20) + 1))
        );
    }
}

fn schedule(preemption: bool) -> impl Strategy<Value = Schedule> {
    let operation = if preemption {
        prop_oneof![
            Just(GateOperation::Set),
            Just(GateOperation::SetAndHold),
            Just(GateOperation::SetAndRelease)
        ]
        .boxed()
    } else {
        Just(GateOperation::Set).boxed()
    };
    let entry = (operation, any::<u8>(), 1u32..).prop_map(|(operation, gates, interval_ns)| {
        let gates = GateMask::from_bits(gates);
        GateEntry {
            operation,
            gates,
            interval_ns,
        }
    });
    (
        0..i64::MAX,
        1u64..u64::from(u32::MAX),
        any::<u32>(),
        prop::collection::vec(entry, 0..8),
        prop::array::uniform8(prop_oneof![Just(0u32), any::<u32>()]),
    )
        .prop_map(|(base, cycle, extension, entries, max_sdu)| Schedule {
            base_time: TaiTime::from_nanos(base),
            cycle_time_ns: cycle,
            cycle_time_extension_ns: extension.into(),
            entries,
            max_sdu,
            ..Schedule::default()
        })
}

fn options() -> impl Strategy<Value = TaprioOptions> {
    (
        prop_oneof![Just("add"), Just("replace"), Just("change")],
        prop::option::of("[0-9a-f]{1,4}:"),
        prop::option::of("(overhead -?[0-9]{1,3}|mtu 1500 tsize 64)"),
        prop::collection::vec((any::<u16>(), any::<u16>()), 0..8),
        prop::option::of(prop_oneof![
            Just(ClockId::Tai),
            Just(ClockId::Realtime),
            Just(ClockId::Monotonic),
            Just(ClockId::Boottime)
        ]),
        prop::option::of(any::<u32>()),
        prop::option::of(any::<u32>()),
        prop::collection::vec(any::<bool>(), 0..8),
    )
        .prop_map(
            |(command, handle, stab, queues, clock, flags, delay, preemptible)| TaprioOptions {
                command: command.into(),
                parent: Some("root".into()),
                handle,
                stab,
                queues: queues
                    .into_iter()
                    .map(|(count, offset)| QueueRange { count, offset })
                    .collect(),
                clock,
                flags,
                txtime_delay_ns: delay,
                preemptible,
            },
        )
}

fn priorities() -> impl Strategy<Value = PriorityMap> {
    (1u8..=8, any::<[u8; 16]>()).prop_map(|(classes, class_of)| PriorityMap { classes, class_of })
}

#[test]
fn only_our_own_form_says_which_clock_is_demanded_and_the_others_tell_so() {
    let text = format!("require-sync = \"1us\"\n{TOML}");
    let document = parse(Form::Toml, &text);
    assert_eq!(document.schedule.require_sync_ns, Some(1_000));
    for form in [Form::Taprio, Form::YangJson, Form::YangXml] {
        let written = write(form, &document).unwrap();
        let lost = written.lost.join("\n");
        assert!(lost.contains("require-sync, within 1 µs"), "{form}: {lost}");
        let schedule = parse(form, &written.text).schedule;
        assert_eq!(schedule.require_sync_ns, None, "{form}");
    }
    let wrong = read(Form::Toml, "require-sync = \"soon\"", None).unwrap_err();
    assert!(
        wrong.to_string().contains("require-sync: `soon`"),
        "{wrong}"
    );
}

proptest! {
    #[test]
    fn a_command_line_is_read_as_it_was_written(
        schedule in schedule(false),
        taprio in options(),
        priorities in prop::option::of(priorities()),
        interface in prop::option::of("[a-z][a-z0-9._-]{0,12}"),
    ) {
        let document = Document {
            interface: interface.or(Some("$DEV".into())),
            schedule,
            priorities,
            taprio: Some(taprio),
        };
        let written = write(Form::Taprio, &document).unwrap();
        prop_assert_eq!(parse(Form::Taprio, &written.text), document);
        prop_assert_eq!(Form::of(&written.text), Form::Taprio);
    }

    #[test]
    fn toml_keeps_everything(
        schedule in schedule(true),
        base in any::<i64>(),
        taprio in prop::option::of(options()),
        priorities in prop::option::of(priorities()),
        interface in prop::option::of("\\PC{0,12}|[\"\\\\\n\t\u{0}-\u{1f}]{1,4}"),
        enabled in any::<bool>(),
        initial in any::<u8>(),
        require_sync_ns in any::<Option<u64>>(),
        chosen in prop::collection::vec((0usize..8, 0u8..3, 0u64..1 << 63, 0u64..1 << 63), 0..4),
    ) {
        let mut selection = [Selection::default(); 8];
        for (class, algorithm, idle_slope_bps, high_credit_bits) in chosen {
            selection[class] = match algorithm {
                0 => Selection::LaunchTime,
                1 => Selection::FirstCome,
                _ => Selection::CreditBased { idle_slope_bps, high_credit_bits },
            };
        }
        let document = Document {
            interface,
            schedule: Schedule {
                enabled,
                require_sync_ns,
                selection,
                base_time: TaiTime::from_nanos(base),
                initial_gates: GateMask::from_bits(initial),
                ..schedule
            },
            priorities,
            taprio,
        };
        let written = write(Form::Toml, &document).unwrap();
        prop_assert_eq!(&parse(Form::Toml, &written.text), &document);
        prop_assert!(written.lost.is_empty());
        prop_assert_eq!(Form::of(&written.text), Form::Toml);
    }

    #[test]
    fn instance_documents_keep_the_schedule_and_the_interface(
        schedule in schedule(true),
        interface in prop::option::of("[ -~]{0,8}[!-~]"),
        enabled in any::<bool>(),
        initial in any::<u8>(),
    ) {
        // XML has no way to keep blanks at the ends of a name.
        let interface = interface.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
        let initial_gates = GateMask::from_bits(initial);
        let document = Document {
            interface,
            schedule: Schedule { enabled, initial_gates, ..schedule },
            ..Document::default()
        };
        for form in [Form::YangJson, Form::YangXml] {
            let written = write(form, &document).unwrap();
            prop_assert_eq!(&parse(form, &written.text), &document);
            prop_assert_eq!(Form::of(&written.text), form);
        }
    }

    #[test]
    fn no_text_makes_reading_fail_but_with_an_error(
        text in "\\PC{0,60}|[-a-z0-9@ =\"\\[\\]\n.]{0,120}",
    ) {
        for form in Form::ALL {
            if let Err(error) = read(form, &text, None) {
                prop_assert!(!error.to_string().is_empty());
            }
        }
        Form::of(&text);
    }

    #[test]
    fn no_damage_to_a_good_text_makes_reading_fail_but_with_an_error(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<char>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        for (form, text) in [
            (Form::Taprio, MANUAL_PAGE),
            (Form::Toml, TOML),
            (Form::YangJson, JSON),
        ] {
            let mut characters: Vec<char> = text.chars().collect();
            for (at, character) in &damage {
                let at = at.index(characters.len());
                characters[at] = *character;
            }
            let text: String = characters.iter().collect();
            for text in [text.as_str(), text.get(..cut.index(text.len())).unwrap_or("")] {
                if let Ok(parsed) = read(form, text, None) {
                    for form in Form::ALL {
                        if let Ok(written) = write(form, &parsed.document) {
                            prop_assert!(read(form, &written.text, None).is_ok(), "{}", written.text);
                        }
                    }
                }
            }
        }
        let xml = write(Form::YangXml, &of_the_module()).unwrap().text;
        let mut characters: Vec<char> = xml.chars().collect();
        for (at, character) in &damage {
            let at = at.index(characters.len());
            characters[at] = *character;
        }
        let text: String = characters.into_iter().collect();
        let _ = read(Form::YangXml, &text, None);
    }

    #[test]
    fn random_words_of_the_grammar_do_not_make_reading_fail(
        words in prop::collection::vec(
            prop_oneof![
                Just("taprio"), Just("num_tc"), Just("map"), Just("queues"), Just("sched-entry"), Just("S"),
                Just("base-time"), Just("cycle-time"), Just("1"), Just("0x"), Just("ff"), Just("1@0"), Just("-1"),
                Just("clockid"), Just("max-sdu"), Just("fp"), Just("E"), Just("99999999999999999999"), Just("\\"),
                Just("flags"), Just("dev"), Just("stab"), Just("0"), Just("@"),
            ],
            0..30,
        ),
    ) {
        let _ = read(Form::Taprio, &words.join(" "), None);
        let _ = read(Form::Taprio, &format!("taprio {}", words.join(" ")), None);
    }
}

#[test]
fn how_classes_choose_is_read_and_what_is_wrong_with_it_is_told() {
    let read = |text: &str| {
        let text =
            format!("cycle-time = \"1ms\"\n[[entry]]\ngates = \"all\"\ninterval = \"1ms\"\n{text}");
        takt_schedule::form::read(Form::Toml, &text, None)
    };
    let good = read(
        "[selection.6]\nalgorithm = \"credit-based\"\nidle-slope = 100_000_000\n[selection.1]\nalgorithm = \"first-come\"\n",
    );
    let document = good.unwrap().document;
    let selection = document.schedule.selection;
    assert_eq!(selection[1], Selection::FirstCome);
    let shaped = Selection::CreditBased {
        idle_slope_bps: 100_000_000,
        high_credit_bits: 0,
    };
    assert_eq!(selection[6], shaped);
    for form in [Form::YangJson, Form::YangXml] {
        let mut document = document.clone();
        document.interface = Some("eth0".into());
        let lost = write(form, &document).unwrap().lost;
        assert!(
            lost.iter().any(|lost| lost.contains("selection")),
            "{form}: {lost:?}"
        );
    }
    for (text, told) in [
        (
            "[selection.8]\nalgorithm = \"first-come\"\n",
            "`8` is not a traffic class",
        ),
        (
            "[selection.6]\nalgorithm = \"fifo\"\n",
            "`fifo` is not known here",
        ),
        (
            "[selection.6]\nalgorithm = \"credit-based\"\n",
            "idle-slope, in bits per second is missing",
        ),
        (
            "[selection.6]\nalgorithm = \"first-come\"\nidle-slope = 1\n",
            "is not credit-based",
        ),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}
