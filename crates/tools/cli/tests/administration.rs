//! `takt` against a live daemon: what operators type.

mod support;

use rustix::process::Signal;
use support::{Daemon, Ran, run};
use takt_testing::Directory;

#[test]
fn status_is_a_page_for_people_and_json_for_programs() {
    let daemon = Daemon::start("[datapath.xdp]\ninterface = \"takt-t-none\"\n");
    let ran = daemon.takt(&["status"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for expected in [
        "node       test",
        "LANE",
        "udp",
        "127.0.0.1:",
        "xdp",
        "unavailable",
    ] {
        assert!(ran.out.contains(expected), "{expected} in\n{}", ran.out);
    }
    let json = daemon.takt(&["status", "--json"]).json();
    assert_eq!(json["node"]["name"], "test");
    assert_eq!(json["node"]["incarnation"].as_str().map(str::len), Some(16));
    assert_eq!(json["datapaths"][1]["available"], false);
    assert_eq!(json["listeners"][0]["listener"]["mode"], "0660");
    for what in ["sessions", "channels", "peers", "datapaths", "listeners"] {
        let ran = daemon.takt(&["status", what]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.out.lines().count() >= 1, "{ran:?}");
        assert!(daemon.takt(&["status", what, "--json"]).json().is_array());
    }
}

#[test]
fn peers_are_added_listed_and_removed() {
    let daemon = Daemon::start("");
    let ran = daemon.takt(&["peer", "add", "127.0.0.2", "127.0.0.3:9"]);
    assert_eq!(ran.out, "peer 127.0.0.2 added\npeer 127.0.0.3:9 added\n");
    let ran = daemon.takt(&["peer", "add", "127.0.0.2:7400", "--json"]);
    assert_eq!(
        (ran.code, &ran.json()[0]["changed"]),
        (Some(0), &false.into())
    );
    let list = daemon.takt(&["peer", "list", "--json"]).json();
    assert_eq!(list[0]["address"], "127.0.0.2:7400");
    assert_eq!(list[1]["state"], "trying");
    let ran = daemon.takt(&["peer", "remove", "127.0.0.2"]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(0), "peer 127.0.0.2 removed\n")
    );
    let ran = daemon.takt(&["peer", "remove", "127.0.0.2"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("takt peer list"), "{ran:?}");
    let ran = daemon.takt(&["peer", "add", "node2"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("names are not looked up"), "{ran:?}");
}

#[test]
fn a_peer_keeps_its_key_unless_it_is_to_be_replaced() {
    let daemon = Daemon::start("");
    let key = |name: &str| {
        let file = daemon.directory.text(name);
        if name != "node.key" {
            assert_eq!(run(&["key", "generate", &file]).code, Some(0));
        }
        run(&["key", "show", &file]).out.trim().to_owned()
    };
    let [own, one, other] = ["node.key", "one.key", "other.key"].map(key);
    let add = |key: &str, more: &[&str]| {
        daemon.takt(&[&["peer", "add", "127.0.0.2", "--key", key][..], more].concat())
    };
    let ran = add(&own, &[]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.err
            .contains("the key of peer 127.0.0.2:7400 is this node's own"),
        "{ran:?}"
    );
    assert_eq!(add(&one, &[]).out, "peer 127.0.0.2 added\n");
    assert_eq!(add(&one, &[]).out, "peer 127.0.0.2 is there already\n");
    for refused in [add(&other, &[]), daemon.takt(&["peer", "add", "127.0.0.2"])] {
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let told = format!(
            "is there already, with the key {one}: to let it have another one add --replace-key"
        );
        assert!(refused.err.contains(&told), "{refused:?}");
    }
    let listed = || daemon.takt(&["peer", "list", "--json"]).json()[0]["key"].clone();
    assert_eq!(listed(), *one);
    assert_eq!(add(&other, &["--replace-key"]).code, Some(0));
    assert_eq!(listed(), *other);
}

#[test]
fn the_key_of_a_running_node_is_changed_in_two_steps() {
    let daemon = Daemon::start("");
    let key = || daemon.takt(&["status", "--json"]).json()["node"]["key"].clone();
    let old = key();
    let ran = daemon.takt(&["key", "rotate", "--switch"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("has no next key"), "{ran:?}");
    let next = daemon.takt(&["key", "rotate"]).out.trim().to_owned();
    let again = daemon.takt(&["key", "rotate", "--json"]).json();
    assert_eq!(again, serde_json::json!({"public": next, "in_use": false}));
    let shown = daemon.takt(&["status"]).out;
    assert!(shown.contains(&format!("next {next}")), "{shown}");
    assert_eq!(key(), old);
    let switched = daemon.takt(&["key", "rotate", "--switch", "--json"]).json();
    assert_eq!(
        switched,
        serde_json::json!({"public": next, "in_use": true})
    );
    assert_eq!(key(), *next);
    let file = daemon.directory.text("node.key");
    assert_eq!(run(&["key", "show", &file]).out.trim(), next);
}

#[test]
fn a_peer_may_have_two_keys_while_it_changes_from_one_to_the_other() {
    let daemon = Daemon::start("");
    let key = |name: &str| {
        let file = daemon.directory.text(name);
        let ran = run(&["key", "generate", &file]);
        ran.out.trim().to_owned()
    };
    let [old, new, other] = ["old.key", "new.key", "other.key"].map(key);
    let add = |keys: &[&str]| daemon.takt(&[&["peer", "add", "127.0.0.2"], keys].concat());
    assert_eq!(add(&["--key", &old]).code, Some(0));
    let ran = add(&["--key", &old, "--next-key", &new]);
    assert_eq!(ran.out, "peer 127.0.0.2 added\n", "{ran:?}");
    let listed = daemon.takt(&["peer", "list", "--json"]).json();
    assert_eq!(
        (&listed[0]["key"], &listed[0]["next_key"]),
        (&old.clone().into(), &new.clone().into())
    );
    let ran = add(&["--key", &other]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("--replace-key"), "{ran:?}");
    assert_eq!(add(&["--key", &new]).code, Some(0));
    let listed = daemon.takt(&["peer", "list", "--json"]).json();
    assert_eq!(
        (&listed[0]["key"], &listed[0]["next_key"]),
        (&new.clone().into(), &"".into())
    );
    assert_eq!(add(&["--next-key", &new]).code, Some(2));
}

#[test]
fn how_datagrams_are_protected_is_told() {
    for (protection, said) in [
        ("integrity", "datagrams are authenticated"),
        ("encrypt", "datagrams are authenticated and encrypted"),
    ] {
        let directory = Directory::new();
        let text = format!(
            "[node]\nname = \"kept\"\naddress = \"127.0.0.1\"\nport = 0\n{}protection = \"{protection}\"\n\
             [admin]\nsocket = \"{}\"\n[[listener]]\npath = \"{}\"\n",
            directory.security(),
            directory.text("admin.sock"),
            directory.text("takt.sock"),
        );
        let daemon = Daemon::start_with(directory, &text);
        let shown = daemon.takt(&["status"]).out;
        let said = format!("security   {said}");
        assert!(shown.lines().any(|line| line == said), "{shown}");
        let json = daemon.takt(&["status", "--json"]).json();
        assert_eq!(json["node"]["protection"], protection);
    }
}

#[test]
fn a_node_that_authenticates_nobody_says_so() {
    let directory = Directory::new();
    let text = format!(
        "[node]\nname = \"open\"\naddress = \"127.0.0.1\"\nport = 0\n[security]\nprotection = \"none\"\n\
         [admin]\nsocket = \"{}\"\n[[listener]]\npath = \"{}\"\n",
        directory.text("admin.sock"),
        directory.text("takt.sock"),
    );
    let daemon = Daemon::start_with(directory, &text);
    let shown = daemon.takt(&["status"]).out;
    let said = "security   NONE: whoever can send to this node uses its channels";
    assert!(shown.lines().any(|line| line == said), "{shown}");
    assert!(
        shown.contains("known by   nothing: it has no key"),
        "{shown}"
    );
    let json = daemon.takt(&["status", "--json"]).json();
    assert_eq!(json["node"]["protection"], "none");
    assert_eq!(daemon.takt(&["peer", "add", "127.0.0.2"]).code, Some(0));
    let peers = daemon.takt(&["peer", "list"]).out;
    assert!(peers.contains("NONE"), "{peers}");
    let ran = daemon.takt(&["key", "rotate"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("authenticates nobody"), "{ran:?}");
}

#[test]
fn a_key_is_written_whole_or_not_at_all() {
    let directory = Directory::new();
    // No file may have any bytes, as on a full disk.
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" key generate \"$1\"";
    let generate = |script: &str| {
        let mut command = std::process::Command::new("sh");
        command.args([
            "-c",
            script,
            env!("CARGO_BIN_EXE_takt"),
            &directory.text("node.key"),
        ]);
        support::Ran::from(command.output().expect("sh"))
    };
    let ran = generate(script);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("cannot make the key file"), "{ran:?}");
    let left = std::fs::read_dir(directory.path())
        .expect("a directory")
        .count();
    assert_eq!(left, 0);
    assert_eq!(generate("exec \"$0\" key generate \"$1\"").code, Some(0));
    let again = generate("exec \"$0\" key generate \"$1\"");
    assert!(
        again.err.contains("is there already and is left as it is"),
        "{again:?}"
    );
}

#[test]
fn everything_for_people_fits_80_columns_and_has_no_colours_in_a_file() {
    let daemon = Daemon::start(
        "[datapath.xdp]\ninterface = \"takt-t-none\"\n[[peer]]\naddress = \"127.100.100.100:65535\"\n\
         [[listener]]\npath = \"/tmp/takt-t-a-rather-long-name-of-a-socket.sock\"\nidentity = \"a-rather-long-tenant\"\n",
    );
    let _sub = daemon.spawn(&["sub", "weather", "--qos", "fast"]);
    takt_testing::until_true("the subscriber attaches", || {
        daemon.takt(&["status", "channels"]).out.lines().count() > 1
    });
    for arguments in [
        &["status"][..],
        &["status", "sessions"],
        &["status", "channels"],
        &["status", "peers"],
        &["status", "datapaths"],
        &["status", "listeners"],
        &["network", "list"],
        &["top", "--once", "--interval", "100ms"],
        &["clock"],
        &["doctor"],
    ] {
        let ran = daemon.takt(arguments);
        assert!(!ran.out.contains('\x1b'), "{arguments:?}\n{}", ran.out);
        let wide: Vec<&str> = ran
            .out
            .lines()
            .filter(|line| line.chars().count() > 80)
            .collect();
        assert!(wide.is_empty(), "{arguments:?}\n{}", wide.join("\n"));
    }
}

#[test]
fn the_doctor_names_a_peer_that_does_not_answer_and_what_to_do() {
    let daemon = Daemon::start("[[peer]]\naddress = \"127.0.0.2:9\"\n");
    let ran = daemon.takt(&["doctor"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.out
            .starts_with("PROBLEM  peers       127.0.0.2:9 has not answered"),
        "{ran:?}"
    );
    assert!(ran.out.contains("-> there: does a daemon run"), "{ran:?}");
    assert!(ran.err.contains("1 problem(s)"), "{ran:?}");
    let json = daemon.takt(&["doctor", "--json"]).json();
    assert_eq!(
        (&json[0]["level"], &json[0]["check"]),
        (&"problem".into(), &"peers".into())
    );
    let checks: Vec<&str> = json
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|finding| finding["check"].as_str())
        .collect();
    for check in [
        "kernel",
        "af_xdp",
        "privileges",
        "open files",
        "memlock",
        "mtu",
        "buffers",
        "huge pages",
        "etf",
        "time stamps",
        "clock",
        "daemon",
        "datapath",
    ] {
        assert!(checks.contains(&check), "{check}: {checks:?}");
    }
}

#[test]
fn a_node_does_not_become_its_own_peer() {
    let daemon = Daemon::start("");
    let address = daemon.takt(&["status", "--json"]).json()["node"]["address"].clone();
    let address = address.as_str().expect("an address");
    let ran = daemon.takt(&["peer", "add", address]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("is this node itself"), "{ran:?}");
    assert_eq!(
        daemon.takt(&["peer", "list", "--json"]).json(),
        serde_json::json!([])
    );
}

#[test]
fn a_listener_is_set_with_its_streams() {
    let daemon = Daemon::start("");
    let path = daemon.directory.text("axis.sock");
    let file = daemon.directory.text("axis.toml");
    let set = ["listener", "set", &path, "--identity", "axis"];
    let with = |more: &[&str]| daemon.takt(&[&set[..], &["--streams", &file], more].concat());
    let stream = "[[stream]]\nname = \"axis\"\nclass = 3\nchannel = 7\nperiod = \"1ms\"\nwindow = \"50us\"\nframe = 128\n";
    std::fs::write(&file, stream).expect("written");
    let ran = with(&["--send-undeclared"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let list = daemon.takt(&["listener", "list", "--json"]).json();
    let mut found = list.as_array().into_iter().flatten();
    let axis = found
        .find(|status| status["listener"]["identity"] == "axis")
        .expect("set");
    let declared = &axis["listener"]["streams"][0];
    assert_eq!(declared["name"], "axis");
    assert_eq!(declared["period_ns"], 1_000_000);
    assert_eq!(declared["window_ns"], 50_000);
    assert_eq!(axis["listener"]["undeclared_streams"], true);

    // What is wrong is told with its place in the file, or by the node.
    std::fs::write(&file, stream.replace("1ms", "soon")).expect("written");
    let ran = with(&[]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("axis.toml:5:"), "{ran:?}");
    std::fs::write(&file, stream.replace("50us", "2ms")).expect("written");
    let ran = with(&[]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("stream[0].window"), "{ran:?}");

    // A node without a place for it keeps nothing, and says so.
    let ran = daemon.takt(&[&set[..], &["--keep"]].concat());
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("node.state"), "{ran:?}");
}

#[test]
fn listeners_are_set_listed_and_removed() {
    let daemon = Daemon::start("");
    let path = daemon.directory.text("press.sock");
    let ran = daemon.takt(&[
        "listener",
        "set",
        &path,
        "--identity",
        "press",
        "--mode",
        "0600",
        "--write",
        "1-9,20",
        "--no-read",
        "--classes",
        "0,3",
        "--memory",
        "32MiB",
        "--bytes-per-second",
        "1MiB",
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let list = daemon.takt(&["listener", "list", "--json"]).json();
    let found = list.as_array().into_iter().flatten();
    let press = found
        .map(|status| &status["listener"])
        .find(|listener| listener["identity"] == "press")
        .expect("set");
    assert_eq!(press["mode"], "0600");
    assert_eq!(press["write"][1]["first"], 20);
    assert_eq!(press["read"], serde_json::json!([]));
    assert_eq!(press["memory_bytes"], 32 << 20);
    let table = daemon.takt(&["listener", "list"]).out;
    assert!(table.contains("1-9,20"), "{table}");
    assert_eq!(daemon.takt(&["listener", "remove", &path]).code, Some(0));
    let ran = daemon.takt(&["listener", "remove", &path]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("takt listener list"), "{ran:?}");
    let ran = daemon.takt(&["listener", "set", "relative.sock", "--identity", "x"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("the whole path"), "{ran:?}");
    let ran = daemon.takt(&[
        "listener",
        "set",
        &path,
        "--identity",
        "x",
        "--write",
        "9-1",
    ]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("\"1-99\""), "{ran:?}");
}

#[test]
fn reload_says_what_changed_what_waits_and_what_failed() {
    let daemon = Daemon::start("");
    assert_eq!(daemon.takt(&["reload"]).out, "nothing differs\n");
    let file = daemon.directory.join("takt.toml");
    let text = std::fs::read_to_string(&file).expect("read");
    let more = "[[peer]]\naddress = \"127.0.0.2\"\n[limits]\nreassemblies = 3\n";
    std::fs::write(&file, format!("{text}{more}")).expect("write");
    let ran = daemon.takt(&["reload"]);
    assert_eq!(ran.code, Some(1), "a restart is needed: {ran:?}");
    assert_eq!(
        ran.out,
        "peer 127.0.0.2:7400 added\n`limits` differs: needs a restart\n"
    );
    let json = daemon.takt(&["reload", "--json"]).json();
    assert_eq!(json["needs_restart"][0], "limits");
    std::fs::write(&file, format!("{text}mode = 5\n")).expect("write");
    let ran = daemon.takt(&["reload"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("`listener[0].mode` = 5"), "{ran:?}");
    let blocked = daemon.directory.text("takt.toml");
    let blocked = format!("{text}[[listener]]\npath = \"{blocked}\"\n");
    std::fs::write(&file, blocked).expect("write");
    let ran = daemon.takt(&["reload"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.out.contains("failed: listener"), "{ran:?}");
}

#[test]
fn check_and_run_tell_a_bad_configuration_by_code_4() {
    let directory = Directory::new();
    let file = directory.text("takt.toml");
    std::fs::write(&file, "[node]\nname = \"press\"\n").expect("write");
    let ran = run(&["check", "--config", &file]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.out.contains("press"), "{ran:?}");
    std::fs::write(&file, "[node]\nport = -1\n").expect("write");
    for command in ["check", "run"] {
        let ran = run(&[command, "--config", &file]);
        assert_eq!(ran.code, Some(4));
        assert!(ran.err.contains("`node.port` = -1"), "{ran:?}");
    }
}

#[test]
fn without_a_daemon_the_code_is_3_and_the_message_says_what_to_do() {
    let directory = Directory::new();
    let socket = directory.text("none.sock");
    for command in [
        &["status"][..],
        &["top", "--once"],
        &["reload"],
        &["peer", "list"],
        &["session", "end", "1"],
    ] {
        let mut arguments = command.to_vec();
        arguments.extend(["--admin", &socket]);
        let ran = run(&arguments);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        assert!(ran.err.contains("takt run"), "{ran:?}");
    }
    let ran = run(&["pub", "7", "hello", "--socket", &socket]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.err.contains("taktd"), "{ran:?}");
}

#[test]
fn wrong_arguments_are_told_by_code_2() {
    for arguments in [
        &["status", "weather"][..],
        &["peer", "add"],
        &["pub", ""],
        &["sub", "7", "--class", "8"],
        &["top", "--interval", "1h"],
    ] {
        assert_eq!(run(arguments).code, Some(2), "{arguments:?}");
    }
}

#[test]
fn a_reader_that_has_had_enough_is_no_failure() {
    let daemon = Daemon::start("");
    let mut top = daemon.spawn(&["top", "--interval", "100ms"]);
    let mut line = String::new();
    let mut out = std::io::BufReader::new(top.0.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut out, &mut line).expect("a line");
    assert!(line.starts_with("test "), "{line}");
    drop(out);
    let ran = top.end();
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
}

#[test]
fn top_tells_rates_once_or_again_and_again() {
    let daemon = Daemon::start("");
    let ran = daemon.takt(&["top", "--once", "--interval", "100ms"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.out.contains("POLLS/s") && ran.out.contains("RECEIVED/s"),
        "{ran:?}"
    );
    let json = daemon
        .takt(&["top", "--once", "--json", "--interval", "100ms"])
        .json();
    assert_eq!(json["node"], "test");
    assert!(
        json["seconds"]
            .as_f64()
            .is_some_and(|seconds| seconds > 0.0)
    );
    assert_eq!(json["ports"][0]["datapath"], "udp");
    let mut top = daemon.spawn(&["top", "--json", "--interval", "100ms"]);
    let out = std::io::BufReader::new(top.0.stdout.take().expect("piped"));
    for line in std::io::BufRead::lines(out).take(2) {
        let line: serde_json::Value =
            serde_json::from_str(&line.expect("a line")).expect("an object");
        assert_eq!(line["node"], "test");
    }
}

#[test]
fn a_daemon_that_stops_ends_top_with_code_3() {
    let daemon = Daemon::start("");
    let mut top = daemon.spawn(&["top", "--json", "--interval", "100ms"]);
    let mut out = std::io::BufReader::new(top.0.stdout.take().expect("piped"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).expect("a line");
    daemon.process.signal(Signal::TERM);
    std::io::Read::read_to_string(&mut out, &mut line).expect("the rest");
    let ran = top.end();
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.err.contains("stopping"), "{ran:?}");
    assert_eq!(daemon.process.end().code, Some(0));
}

#[test]
fn completions_are_made_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = run(&["completions", shell]);
        assert_eq!(ran.code, Some(0));
        assert!(
            ran.out.contains("takt") && ran.out.contains("listener"),
            "{shell}"
        );
    }
}

#[test]
fn a_schedule_whose_datapath_is_not_there_is_told_of() {
    let directory = takt_testing::Directory::new();
    let file = directory.join("gates.toml");
    let text = "base-time = \"0\"\ncycle-time = \"1ms\"\n\
                [[entry]]\ngates = [0]\ninterval = \"1ms\"\n";
    std::fs::write(&file, text).expect("written");
    let daemon = Daemon::start(&format!(
        "[datapath.xdp]\ninterface = \"takt-none\"\n[[schedule]]\ndatapath = \"xdp\"\nfile = \"{}\"\n",
        file.display()
    ));
    let ran = daemon.takt(&["schedule", "status"]);
    assert!(
        ran.out
            .starts_with("udp: no schedule, all gates are open\n")
            && ran.out.contains(
                "xdp: not there, nobody keeps the gates of its schedule (a cycle of 1.000 ms)"
            ),
        "{ran:?}"
    );
    let json = daemon.takt(&["schedule", "status", "--json"]).json();
    assert_eq!(json[0]["absent"], serde_json::Value::Null);
    assert_eq!(json[1]["datapath"], "xdp");
    assert_eq!(json[1]["operational"], serde_json::Value::Null);
    assert_eq!(json[1]["absent"]["cycle_time_ns"], 1_000_000);
}

#[test]
fn a_schedule_is_installed_shown_and_removed() {
    let daemon = Daemon::start("");
    let text = "base-time = \"0\"\ncycle-time = \"1ms\"\n\
                [[entry]]\ngates = [7]\ninterval = \"300us\"\n\
                [[entry]]\ngates = [1, 0]\ninterval = \"700us\"\n";
    std::fs::write(daemon.directory.join("gates.toml"), text).expect("write");
    let file = daemon.directory.text("gates.toml");
    let ran = daemon.takt(&["schedule", "status"]);
    assert_eq!(ran.out, "udp: no schedule, all gates are open\n", "{ran:?}");
    let ran = daemon.takt(&["schedule", "install", &file, "--datapath", "udp"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let start = std::time::Instant::now();
    loop {
        let ran = daemon.takt(&["schedule", "status"]);
        if ran.out.contains("of 1.000 ms with") {
            break;
        }
        assert!(start.elapsed() < takt_testing::PATIENCE, "{ran:?}");
    }
    let json = daemon.takt(&["schedule", "status", "--json"]).json();
    assert_eq!(json[0]["operational"]["cycle_time_ns"], 1_000_000);
    let ran = daemon.takt(&["schedule", "install", &file, "--datapath", "dpdk"]);
    assert_ne!(ran.code, Some(0));
    assert!(
        ran.err.contains("dpdk") && ran.err.contains("udp"),
        "{ran:?}"
    );
    let ran = daemon.takt(&["schedule", "remove", "--datapath", "udp", "--json"]);
    assert_eq!(ran.json()["removed"], true);
    let ran = daemon.takt(&["schedule", "remove", "--datapath", "udp"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("takt schedule status"), "{ran:?}");
}

/// The rows of `takt datapaths --json` about a technology.
fn technologies<'a>(json: &'a serde_json::Value, name: &str) -> Vec<&'a serde_json::Value> {
    let all = json["technologies"].as_array().expect("a list");
    all.iter().filter(|t| t["name"] == name).collect()
}

#[test]
fn datapaths_are_told_with_what_is_in_their_way() {
    let daemon = Daemon::start("[datapath.xdp]\ninterface = \"takt-t-none\"\n");
    let json = daemon.takt(&["datapaths", "--json"]).json();
    assert_eq!(json["node"], "test");
    let [udp] = technologies(&json, "udp")[..] else {
        panic!("{json}");
    };
    assert_eq!(udp["state"], "open");
    assert!(
        udp["ports"][0]["local"]
            .as_str()
            .expect("an address")
            .starts_with("127.0.0.1:")
    );
    let [xdp] = technologies(&json, "xdp")[..] else {
        panic!("{json}");
    };
    assert_eq!(
        (&xdp["state"], xdp["ports"].as_array()),
        (&"closed".into(), None)
    );
    // Which of the two, hangs on who runs the test.
    let remedy = xdp["remedy"].as_str().expect("a remedy");
    assert!(
        remedy.contains("ip link") || remedy.contains("run as root"),
        "{xdp}"
    );
    // What the node was not told to use, is looked for here.
    let none = daemon.directory.text("no-plugins");
    let arguments = ["datapaths", "dpdk", "--plugins", &none];
    let ran = daemon.takt(&arguments);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.out.contains("-> `make datapaths` builds"), "{ran:?}");
    assert!(
        ran.out.lines().all(|line| line.chars().count() <= 80),
        "{ran:?}"
    );
    assert_eq!(daemon.takt(&["datapaths", "udp"]).code, Some(0));
    let ran = daemon.takt(&["datapaths", "ipoac"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.err.contains("there is no technology \"ipoac\""),
        "{ran:?}"
    );
}

#[test]
fn datapaths_of_a_daemon_elsewhere_are_not_mixed_with_what_is_here() {
    let daemon = Daemon::start("");
    let root = rustix::process::geteuid().is_root();
    let apart = |namespaces: &[&str], arguments: &[&str]| -> Ran {
        let mut takt = support::apart(&daemon.command(arguments), namespaces);
        takt.output().expect("unshare").into()
    };
    // Where its process is seen: what is here is not looked at.
    let ran = apart(&["--net"], &["datapaths", "xdp"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told = match root {
        true => "xdp is not the daemon's, and the daemon is in another network namespace",
        false => "xdp is not there",
    };
    assert!(ran.err.contains(told), "{ran:?}");
    // Where it is not, as from another container: that is said.
    let ran = apart(
        &["--net", "--pid", "--fork", "--mount-proc"],
        &["datapaths"],
    );
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("may not be looked at from"), "{ran:?}");
}
