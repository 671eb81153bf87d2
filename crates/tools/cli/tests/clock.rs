//! `takt clock`, and schedules that demand a clock: against chronyd in a lab host, which cannot set any clock.

#[path = "../../../system/clock/tests/support/mod.rs"]
mod daemons;
mod support;

use daemons::{chronyd, lab};
use support::{Daemon, run};
use takt_testing::{Directory, until_true};

const NOBODY: &str = "[clock]\nptp4l = \"none\"\nchrony = \"none\"\n";

const SCHEDULE: &str = "cycle-time = \"1ms\"\n[[entry]]\ngates = \"all\"\ninterval = \"1ms\"\n";

#[test]
fn the_clock_of_a_node_is_told_in_words_and_in_json() {
    let daemon = Daemon::start(NOBODY);
    let ran = daemon.takt(&["clock"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for part in ["CLOCK_TAI", "by kernel", "TAI - UTC"] {
        assert!(ran.out.contains(part), "{part} in {ran:?}");
    }
    let node = daemon.takt(&["clock", "--json"]).json();
    let local = run(&["clock", "--local", "--json"]).json();
    for key in ["name", "tai_offset_seconds"] {
        assert_eq!(node[key], local[key], "{key}");
    }
    // Whatever keeps this machine's clock, it is off by more than nothing.
    let ran = daemon.takt(&["clock", "--require", "0s", "--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(ran.json()["name"], "CLOCK_TAI");
    assert!(ran.err.contains("must be"), "{ran:?}");
}

#[test]
fn who_is_named_and_does_not_answer_is_warned_of_in_the_log_and_by_the_command() {
    let directory = Directory::new();
    let none = directory.text("none");
    let daemon = Daemon::start(&format!("[clock]\nptp4l = \"{none}\"\nchrony = \"none\"\n"));
    let ran = daemon.takt(&["clock"]);
    assert!(ran.out.contains("[source-silent]"), "{ran:?}");
    let local = run(&["clock", "--local", "--ptp4l", &none]);
    assert!(local.out.contains(&none), "{local:?}");
    daemon.process.signal(rustix::process::Signal::TERM);
    let log = daemon.process.end().err;
    assert!(
        log.contains("source-silent") && log.contains(&none),
        "{log}"
    );
    let wrong = run(&["clock", "--local", "--chrony", "localhost"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
}

#[test]
fn a_schedule_that_demands_a_clock_is_refused_without_it_and_runs_on_when_it_is_lost() {
    let Some((lab, [program])) = lab(["chronyd"]) else {
        return;
    };
    let sockets = Directory::private();
    let (one, other) = (lab.host(0), lab.host(1));
    let _server = chronyd(&program, one, &sockets, "server", "local stratum 5\nallow");
    let follow = format!("server {} iburst minpoll -2 maxpoll -2", one.address());
    let client = chronyd(&program, other, &sockets, "client", &follow);
    let socket = sockets.join("client").display().to_string();

    // Free a moment ago.
    let metrics = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let metrics = metrics.expect("an address");
    // Whether the kernel of this machine has been told TAI - UTC.
    let knows_tai = run(&["clock", "--local", "--json"]).json()["tai_offset_seconds"] != 0;
    let timescale = if knows_tai { "tai" } else { "utc" };
    let daemon = Daemon::start(&format!(
        "[clock]\nptp4l = \"none\"\nchrony = \"{socket}\"\ntimescale = \"{timescale}\"\n\
         [metrics]\naddress = \"{metrics}\"\n"
    ));
    let clock = || daemon.takt(&["clock", "--json"]).json();
    until_true("the clock is synchronised", || {
        clock()["state"] == "synchronised"
    });
    let told = clock();
    assert_eq!(told["source"], "chrony");
    assert!(told["bound_ns"].as_u64() > Some(0), "{told}");
    assert_eq!(told["chrony"]["stratum"], 6);
    assert_eq!(daemon.takt(&["clock", "--require", "10s"]).code, Some(0));
    let refused = daemon.takt(&["clock", "--require", "1ns"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("must be within 1ns"), "{refused:?}");
    let local = run(&["clock", "--local", "--chrony", &socket, "--require", "10s"]);
    // Without a configuration a kernel that has not been told is no good.
    let code = if knows_tai { 0 } else { 1 };
    assert_eq!(local.code, Some(code), "{local:?}");
    assert!(knows_tai || local.err.contains("TAI"), "{local:?}");

    let directory = Directory::new();
    let schedule = |within: &str| {
        let text = format!("require-sync = \"{within}\"\n{SCHEDULE}");
        let path = directory.join("schedule.toml");
        std::fs::write(&path, text).expect("write");
        let path = path.display().to_string();
        daemon.takt(&["schedule", "install", &path, "--datapath", "udp"])
    };
    let refused = schedule("1ns");
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.err.contains("demands a clock") && refused.err.contains("takt clock"),
        "{refused:?}"
    );
    let installed = schedule("10s");
    assert_eq!(installed.code, Some(0), "{installed:?}");
    let status = || daemon.takt(&["schedule", "status", "--json"]).json();
    until_true("it runs", || !status()[0]["operational"].is_null());
    let told = status();
    assert_eq!(told[0]["operational"]["require_sync_ns"], 10_000_000_000u64);
    assert_eq!(told[0]["clock_problem"], "");

    drop(client);
    // Without chronyd only the kernel's word is left: whether that is enough depends on this machine.
    let kernel = run(&["clock", "--local", "--require", "10s"]);
    if kernel.code == Some(0) {
        eprintln!("skipped: the clock of this machine is within 10 s without chronyd");
        return;
    }
    until_true("the loss is told", || status()[0]["clock_losses"] == 1);
    let told = status();
    let problem = told[0]["clock_problem"].as_str().expect("a problem");
    assert!(problem.contains("must be"), "{problem}");
    assert!(!told[0]["operational"].is_null(), "it runs on: {told}");
    let ran = daemon.takt(&["schedule", "status"]);
    assert!(ran.out.contains("warning: the clock is"), "{ran:?}");
    let page = page(metrics);
    for line in [
        "takt_schedule_clock_unmet{datapath=\"udp\"} 1.0",
        "takt_schedule_clock_losses_total{datapath=\"udp\"} 1",
        "takt_clock_state{state=\"synchronised\"} 0.0",
        "takt_clock_warnings{code=\"source-silent\"} 1.0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
    }
    let refused = schedule("10s");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    daemon.process.signal(rustix::process::Signal::TERM);
    let log = daemon.process.end().err;
    assert!(log.contains("runs on without the clock"), "{log}");
}

#[test]
fn what_setup_writes_has_one_host_lead_and_the_other_follow() {
    let Some((lab, [program])) = lab(["ptp4l"]) else {
        return;
    };
    for profile in ["ieee1588", "gptp"] {
        let directory = Directory::private();
        // What the unit starts, but for where its socket is and for the right to set the clock of this machine.
        let start = |at: usize, role: &str| {
            let output = directory.text(role);
            let host = lab.host(at);
            let mut setup = host.command(env!("CARGO_BIN_EXE_takt")).expect("a host");
            setup.args([
                "clock",
                "setup",
                "--interface",
                host.interface(),
                "--role",
                role,
            ]);
            setup.args(["--profile", profile, "--domain", "24", "--output", &output]);
            let ran = setup.output().expect("takt");
            let said = String::from_utf8_lossy(&ran.stdout);
            assert!(ran.status.success(), "{ran:?}");
            for part in [
                "timescale = \"utc\"",
                "ptp_domain = 24",
                "enable --now takt-ptp4l\n",
            ] {
                assert!(said.contains(part), "{part}: {said}");
            }
            let read = |name: &str| {
                std::fs::read_to_string(format!("{output}/{name}")).expect("it is there")
            };
            let unit = read("takt-ptp4l.service");
            let command = unit
                .lines()
                .find_map(|line| line.strip_prefix("ExecStart="))
                .expect("a command");
            let arguments: Vec<&str> = command.split(' ').skip(1).collect();
            let configuration = format!("{output}/takt-ptp4l.conf");
            assert_eq!(arguments, ["-f", &configuration, "-i", host.interface()]);
            let socket = directory.text(&format!("{role}.socket"));
            let text =
                read("takt-ptp4l.conf").replace("/var/run/ptp4l", &socket) + "free_running 1\n";
            std::fs::write(&configuration, text).expect("written");
            (daemons::Daemon::start(host, &program, &arguments), socket)
        };
        let told = |socket: &str| {
            let ran = run(&[
                "clock",
                "--local",
                "--ptp4l",
                socket,
                "--ptp-domain",
                "24",
                "--json",
            ]);
            ran.json()["ptp4l"].clone()
        };
        let (_leader, socket) = start(0, "leader");
        let leads = |told: &serde_json::Value| {
            told["role"]
                .as_str()
                .is_some_and(|role| role.contains("grandmaster"))
        };
        until_true(&format!("{profile}: one leads"), || leads(&told(&socket)));
        let (_follower, follower) = start(1, "follower");
        until_true(&format!("{profile}: the other follows"), || {
            let other = told(&follower);
            !leads(&other)
                && other["grandmaster"].is_string()
                && other["grandmaster"] == told(&socket)["grandmaster"]
        });
        // One that may not set its clock measures for ever. What a neighbour measures is told once the clock is steady.
        if profile == "ieee1588" {
            until_true(&format!("{profile}: it measures"), || {
                told(&follower)["path_delay_ns"]
                    .as_i64()
                    .is_some_and(|delay| delay != 0)
            });
        }
    }
}

#[test]
fn setup_refuses_what_is_not_there() {
    let nowhere = run(&[
        "clock",
        "setup",
        "--interface",
        "nowhere0",
        "--role",
        "leader",
    ]);
    assert!(
        nowhere.code == Some(1) && nowhere.err.contains("no interface nowhere0"),
        "{nowhere:?}"
    );
    let wrong = run(&[
        "clock",
        "setup",
        "--interface",
        "eth0;reboot",
        "--role",
        "leader",
    ]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    let arguments = [
        "clock",
        "setup",
        "--interface",
        "lo",
        "--role",
        "leader",
        "--device",
        "/dev/ptp99",
    ];
    let device = run(&arguments);
    assert!(
        device.code == Some(1) && device.err.contains("--software"),
        "{device:?}"
    );
}

/// The metrics.
fn page(address: std::net::SocketAddr) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).expect("connect");
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("write");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("read");
    page
}
