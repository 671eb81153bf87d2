//! The daemon as a process: exit codes, readiness, signals.

mod support;

use std::io::BufRead;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;

use support::{Daemon, LISTENER, command, configuration, taktd};
use takt::{ChannelId, Error, Qos, Wait};
use takt_testing::{Directory, until};

const SIGTERM: i32 = 15;
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

fn output(mut command: std::process::Command) -> (Option<i32>, String, String) {
    let output = command.output().expect("the daemon");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

fn written(text: &str) -> Directory {
    let directory = Directory::new();
    std::fs::write(directory.join("takt.toml"), text).expect("write");
    directory
}

#[test]
fn check_prints_what_would_run_and_opens_nothing() {
    let directory = written(
        "[node]\nname = \"press\"\nport = 9000\n[security]\nprotection = \"none\"\n[[peer]]\naddress = \"10.0.0.2\"\n[[lane]]\nidle = \"spin\"\n\
         [[listener]]\npath = \"/nonexistent/press.sock\"\nwrite = [\"1-9\"]\n\
         [mapping]\nfast_frugal = [\"udp\"]\n[[mapping.rule]]\nname = \"control\"\ntenants = [\"press\"]\nclasses = [6, 7]\ndatapaths = [\"dpdk\"]\n\
         [datapath.xdp]\ninterface = \"takt-t-none\"\n[metrics]\naddress = \"127.0.0.1:9464\"\n",
    );
    let mut check = command(&directory);
    check.arg("--check");
    let (code, text, errors) = output(check);
    assert_eq!(code, Some(0), "{errors}");
    for expected in [
        "press",
        "0.0.0.0:9000",
        "udp port 9001, xdp port 9002; spin",
        "10.0.0.2:7400",
        "/nonexistent/press.sock mode 0660",
        "write 1-9, read *",
        "xdp on takt-t-none",
        "there is no interface takt-t-none",
        "fast frugal: udp",
        "rule control: tenants press, classes 6,7: dpdk\nwarning    none of these",
        "http://127.0.0.1:9464/metrics",
    ] {
        assert!(text.contains(expected), "{expected} in\n{text}");
    }
    assert!(!Path::new("/nonexistent").exists());
}

#[test]
fn exit_codes_tell_configuration_usage_and_start_apart() {
    let directory = written("[node]\nport = \"x\"\n");
    for check in [true, false] {
        let mut daemon = command(&directory);
        if check {
            daemon.arg("--check");
        }
        let (code, _, errors) = output(daemon);
        assert_eq!(code, Some(4));
        assert!(
            errors.contains("takt.toml:2:8: `node.port` = \"x\""),
            "{errors}"
        );
    }
    let mut nowhere = taktd();
    nowhere.args(["--config", "/nonexistent/takt.toml"]);
    let (code, _, errors) = output(nowhere);
    assert_eq!(code, Some(4));
    assert!(errors.contains("--config"), "{errors}");
    let mut usage = taktd();
    usage.arg("--colour");
    assert_eq!(output(usage).0, Some(2));
}

#[test]
fn a_port_that_is_in_use_is_named_with_the_remedy_and_nothing_is_left_behind() {
    let taken = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let port = taken.local_addr().expect("an address").port();
    let directory = Directory::new();
    let text = configuration(&directory, LISTENER).replace("port = 0", &format!("port = {port}"));
    std::fs::write(directory.join("takt.toml"), text).expect("write");
    let (code, _, errors) = output(command(&directory));
    assert_eq!(code, Some(1));
    assert!(errors.contains(&format!("127.0.0.1:{port}")), "{errors}");
    assert!(errors.contains("another `port`"), "{errors}");
    assert!(!directory.join("takt.sock").exists());
    assert!(!directory.join("admin.sock").exists());
}

#[test]
fn a_metrics_address_that_is_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = taken.local_addr().expect("an address");
    let directory = Directory::new();
    let more = format!("[metrics]\naddress = \"{address}\"\n{LISTENER}");
    std::fs::write(
        directory.join("takt.toml"),
        configuration(&directory, &more),
    )
    .expect("write");
    let (code, _, errors) = output(command(&directory));
    assert_eq!(code, Some(1));
    assert!(errors.contains(&address.to_string()), "{errors}");
    assert!(errors.contains("`metrics.address`"), "{errors}");
}

#[test]
fn a_second_daemon_with_the_same_sockets_refuses_to_start_and_disturbs_nothing() {
    let daemon = Daemon::start(LISTENER);
    let (code, _, errors) = output(command(&daemon.directory));
    assert_eq!(code, Some(1));
    assert!(errors.contains("admin.sock: stop it"), "{errors}");
    daemon.application("still served");
}

#[test]
fn a_signal_to_stop_sends_what_was_emitted_and_removes_the_sockets() {
    for signal in [SIGTERM, SIGINT] {
        let mut daemon = Daemon::start(LISTENER);
        let session = daemon.application("app");
        let stream = session.stream(Qos::slow()).expect("a stream");
        let sink = stream.sink(ChannelId(3)).expect("a sink");
        let source = stream.source(ChannelId(3)).expect("a source");
        for number in 0..100u8 {
            let mut buffer = source.buffer(1).expect("a buffer");
            buffer[0] = number;
            buffer.emit().expect("emitted");
        }
        daemon.signal(signal);
        daemon.expect_notification("STOPPING=1");
        let (code, log, directory) = daemon.end();
        assert_eq!(code, Some(0), "{log}");
        for number in 0..100u8 {
            let message = sink.consume(Wait::Never).expect("delivered before the end");
            assert_eq!(&*message, &[number]);
        }
        let after = until("the session learns of it", || {
            sink.consume(Wait::Never).err()
        });
        assert!(
            !matches!(after, Error::TimedOut | Error::InvalidArgument(_)),
            "{after}"
        );
        assert!(!directory.join("takt.sock").exists());
        assert!(!directory.join("admin.sock").exists());
        assert!(log.contains("draining") && log.contains("stopped"), "{log}");
    }
}

#[test]
fn a_second_signal_ends_a_drain_that_takes_long() {
    let slow = format!("{LISTENER}messages_per_second = 1\n");
    let mut daemon = Daemon::start(&slow);
    let session = daemon.application("app");
    let stream = session.stream(Qos::slow()).expect("a stream");
    let _sink = stream.sink(ChannelId(3)).expect("a sink");
    let source = stream.source(ChannelId(3)).expect("a source");
    // More than a minute's worth.
    for _ in 0..100 {
        source.buffer(1).expect("a buffer").emit().expect("emitted");
    }
    daemon.signal(SIGTERM);
    daemon.expect_notification("STOPPING=1");
    daemon.signal(SIGTERM);
    let (code, log, _directory) = daemon.end();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("stopped at once"), "{log}");
}

#[test]
fn a_drain_whose_time_is_over_before_everything_is_sent_says_so() {
    let slow = format!("{LISTENER}messages_per_second = 1\n");
    let directory = takt_testing::Directory::new();
    let text = configuration(&directory, &slow);
    let text = text.replacen("drain_seconds = 60", "drain_seconds = 1", 1);
    std::fs::write(directory.join("takt.toml"), text).expect("written");
    let mut daemon = Daemon::start_in(directory);
    let session = daemon.application("app");
    let stream = session.stream(Qos::slow()).expect("a stream");
    let _sink = stream.sink(ChannelId(3)).expect("a sink");
    let source = stream.source(ChannelId(3)).expect("a source");
    for _ in 0..100 {
        source.buffer(1).expect("a buffer").emit().expect("emitted");
    }
    daemon.signal(SIGTERM);
    daemon.expect_notification("STOPPING=1");
    let (code, log, _directory) = daemon.end();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("before everything was sent"), "{log}");
}

/// Stops one thread of a process by ptrace(2), tells so, and waits for its end.
const HANG: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
SEIZE, INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
pid, name = sys.argv[1:]
tasks = f"/proc/{pid}/task"
(task,) = [int(t) for t in os.listdir(tasks) if open(f"{tasks}/{t}/comm").read() == name + "\n"]
for request in (SEIZE, INTERRUPT):
    if libc.ptrace(ctypes.c_long(request), ctypes.c_long(task), None, None) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
while os.WIFSTOPPED(os.waitpid(task, WALL)[1]):
    print("stopped", flush=True)
"#;

#[test]
fn a_daemon_with_a_watchdog_ends_when_a_lane_or_the_control_thread_hangs() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: stopping a thread of another process needs root");
        return;
    }
    for thread in ["takt-lane-0", "takt-control"] {
        let daemon = Daemon::start(LISTENER);
        daemon.signal(SIGTERM);
        let (_, _, directory) = daemon.end();
        let mut watched = command(&directory);
        watched.args(["--watchdog", "1"]);
        let mut child = watched
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("the daemon");
        let mut lines = std::io::BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut said = |what: &str| lines.any(|line| line.is_ok_and(|line| line.contains(what)));
        assert!(said("ready"));
        let mut hang = Command::new("python3")
            .args(["-c", HANG, &child.id().to_string(), thread])
            .spawn()
            .expect("python3");
        assert!(said("the runtime hangs"), "{thread}");
        assert!(said("(--watchdog)"), "{thread}");
        assert!(hang.wait().expect("an end").success());
        assert_eq!(child.wait().expect("an end").code(), Some(1), "{thread}");
    }
}

#[test]
fn a_daemon_that_was_killed_leaves_nothing_in_the_way_of_the_next() {
    let daemon = Daemon::start(LISTENER);
    daemon.signal(SIGKILL);
    let (code, _, directory) = daemon.end();
    assert_eq!(code, None);
    assert!(directory.join("takt.sock").exists(), "the stale socket");
    let daemon = Daemon::start_in(directory);
    daemon.application("served again");
}

#[test]
fn the_log_level_comes_from_the_configuration_and_the_environment_overrides_it() {
    let quiet = format!("[log]\nlevel = \"error\"\n{LISTENER}");
    let daemon = Daemon::start(&quiet);
    daemon.signal(SIGTERM);
    let (_, log, directory) = daemon.end();
    assert_eq!(log, "");
    let mut loud = command(&directory);
    loud.env("RUST_LOG", "info")
        .stderr(std::process::Stdio::piped());
    let mut child = loud.spawn().expect("the daemon");
    // The log itself tells when it has come so far.
    let mut lines =
        std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().expect("piped")));
    let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("ready")));
    assert!(ready.is_some());
    child.kill().expect("running");
    child.wait().expect("an end");
}

#[test]
fn log_lines_can_be_json() {
    let daemon = Daemon::start(&format!("[log]\nformat = \"json\"\n{LISTENER}"));
    daemon.signal(SIGTERM);
    let (_, log, _directory) = daemon.end();
    let mut levels = 0;
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("an object");
        levels += u32::from(line["level"] == "INFO");
    }
    assert!(levels >= 2, "{log}");
}

#[test]
fn a_directory_that_is_not_there_and_cannot_be_made_is_named() {
    let directory = Directory::new();
    std::fs::write(directory.join("file"), "").expect("write");
    let text = configuration(&directory, "[[listener]]\npath = \"DIR/file/takt.sock\"\n");
    std::fs::write(directory.join("takt.toml"), text).expect("write");
    let (code, _, errors) = output(command(&directory));
    assert_eq!(code, Some(1));
    assert!(errors.contains("file/takt.sock"), "{errors}");
}
