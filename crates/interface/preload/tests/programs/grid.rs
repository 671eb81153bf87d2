//! Datagrams without a launch time that are snapped to a cycle (`takt preload --grid`).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use takt::TaiTime;
use takt::grid::Rule;
use takt_testing::until;

use super::support::{Listener, PORT, Running, Site, ended_well, script, tai};

fn rule(text: &str) -> Rule {
    text.parse().expect(text)
}

fn publisher(site: &Site, to: &str, port: u16, count: usize, way: &str) -> Command {
    let mut command = site.command("python3");
    command
        .arg(script("publisher.py"))
        .args([to, &port.to_string(), &count.to_string(), way])
        .env("TAKT_PRELOAD", "required");
    command
}

#[test]
fn datagrams_of_a_program_that_names_no_times_leave_on_the_grid_however_they_are_sent() {
    const COUNT: usize = 6;
    let mut site = Site::without_daemon();
    // The first one waits for its next hop.
    site.start_daemon_without_addresses();
    let listener = Listener::new(site.there());
    let text = format!("100ms+30ms,port={PORT}");
    let grid = rule(&text).when;
    for to in site.addresses() {
        for way in ["sendto", "sendmsg", "send", "write", "writev"] {
            let before = site.sent();
            let mut command = publisher(&site, &to.to_string(), PORT, COUNT, way);
            let running = Running::start(command.env("TAKT_PRELOAD_GRID", &text));
            for number in 0..COUNT {
                let (payload, _) = listener.next();
                let now = tai();
                let (words, _) = payload.as_chunks::<8>();
                let [found, sent] = [words[0], words[1]].map(i64::from_ne_bytes);
                assert_eq!(found, number as i64, "{way}: in their order");
                let instant = grid.launch(TaiTime::from_nanos(sent));
                let instant = instant.expect("it has a cycle").as_nanos();
                assert!(
                    now >= instant,
                    "{way}: {} ns before the grid",
                    instant - now
                );
            }
            assert_eq!(running.end(), ("sent\n".into(), String::new()), "{way}");
            assert_eq!(site.sent() - before, COUNT as u64, "{way}: by the runtime");
        }
    }
}

#[test]
fn launch_times_of_the_grid_are_on_it_to_the_nanosecond() {
    const COUNT: usize = 12;
    let (cycle, offset) = (7_000_000_001, 123_456_789);
    let text = format!("{cycle}ns+{offset}ns,lead=10s");
    let mut site = Site::new();
    let to = site.addresses()[0].to_string();
    let mut command = publisher(&site, &to, PORT, COUNT, "missed");
    let running = Running::start(command.env("TAKT_PRELOAD_GRID", &text));
    until("it has sent", || {
        running.output().0.contains("sent").then_some(())
    });
    until("all of it waits", || {
        let queued: u64 = site.departures().iter().map(|class| class.queued).sum();
        (queued == COUNT as u64).then_some(())
    });
    let now = tai();
    // What it has not sent yet it tells of, with the launch times.
    site.kill_daemon();
    let (out, _) = running.end();
    let times: Vec<i64> = out
        .lines()
        .skip(1)
        .map(|line| line.parse().expect("a time"))
        .collect();
    assert_eq!(times.len(), COUNT, "{out}");
    assert!(times.is_sorted(), "{out}");
    for time in times {
        assert_eq!((time - offset).rem_euclid(cycle), 0, "{time}");
        assert!(time < now + 10_000_000_000 + cycle, "{time}");
    }
}

#[test]
fn what_no_rule_is_for_is_the_kernels() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    let to = site.addresses()[0].to_string();
    for text in [
        format!("1ms,port={}", PORT + 1),
        "1ms,to=192.0.2.0/24".into(),
        "1ms,class=5".into(),
        String::new(),
    ] {
        let mut command = publisher(&site, &to, PORT, 2, "sendto");
        let (_, err) = ended_well(command.env("TAKT_PRELOAD_GRID", &text).output());
        assert_eq!(err, "", "{text}");
        listener.next();
        listener.next();
        assert_eq!(site.sent(), 0, "{text}");
    }
    // The first rule that is for it.
    let text = format!("10s,port=9;1ms,to={to};10s");
    let mut command = publisher(&site, &to, PORT, 2, "send");
    let (_, err) = ended_well(command.env("TAKT_PRELOAD_GRID", text).output());
    assert_eq!(err, "");
    listener.next();
    listener.next();
    assert_eq!(site.sent(), 2);
    // What is no rule is told of, and nothing is snapped.
    let mut command = publisher(&site, &to, PORT, 1, "send");
    command.env("TAKT_PRELOAD", "on");
    let (_, err) = ended_well(command.env("TAKT_PRELOAD_GRID", "1").output());
    assert!(err.contains("no time with a unit"), "{err}");
    listener.next();
    assert_eq!(site.sent(), 2);
    // Where the runtime is required, nothing begins that would send it at once.
    for text in [OsStr::new("1"), OsStr::from_bytes(b"1ms,\xff")] {
        let mut command = publisher(&site, &to, PORT, 1, "send");
        let output = command
            .env("TAKT_PRELOAD_GRID", text)
            .output()
            .expect("a program");
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{err}");
        assert!(err.contains("TAKT_PRELOAD_GRID"), "{err}");
    }
    let mut command = publisher(&site, &to, PORT, 1, "send");
    ended_well(command.env("TAKT_PRELOAD_GRID", "1ms").output());
    let (payload, _) = listener.next();
    assert_eq!(payload[..8], 0i64.to_ne_bytes(), "nothing came before it");
    assert_eq!(site.sent(), 3);
}

#[test]
fn words_on_standard_error_end_no_program_and_reach_nobody_elses_descriptor() {
    const DEFAULT_SIGNALS: &str = "import runpy, signal, sys; signal.signal(signal.SIGPIPE, signal.SIG_DFL); \
         sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')";
    let site = Site::without_daemon();
    let listener = Listener::new(site.there());
    let to = site.addresses()[0].to_string();
    let sends = |shell: &str| {
        let mut command = site.command("sh");
        command
            .args(["-c", shell, "sh", "python3", "-c", DEFAULT_SIGNALS])
            .arg(script("publisher.py"))
            .args([&*to, &PORT.to_string(), "1", "send"])
            .env("TAKT_PRELOAD_GRID", "now");
        command
    };
    // A reader that has gone: there is no runtime, which is said.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = sends("exec \"$@\"")
        .stderr(writer)
        .status()
        .expect("a program");
    assert!(status.success(), "{status}");
    let (payload, _) = listener.next();
    assert_eq!(payload[..8], 0i64.to_ne_bytes());
    // Closed: its socket gets that number.
    let status = sends("exec \"$@\" 2>&-").status().expect("a program");
    assert!(status.success(), "{status}");
    let (payload, _) = listener.next();
    assert_eq!(
        payload[..8],
        0i64.to_ne_bytes(),
        "{}",
        String::from_utf8_lossy(&payload)
    );
    assert!(
        listener.is_empty(),
        "{}",
        String::from_utf8_lossy(&listener.next().0)
    );
}

#[test]
fn all_datagrams_leave_by_the_runtime_as_far_as_it_reaches() {
    let mut site = Site::without_daemon();
    let listener = Listener::new(site.there());
    let to = site.addresses()[0].to_string();
    let send = |site: &Site, to: &str, count: usize, way: &str| {
        let mut command = publisher(site, to, PORT, count, way);
        ended_well(command.env("TAKT_PRELOAD_GRID", "now").output()).1
    };
    // Without a runtime the kernel sends, and the program is told, where it is required as well: nothing hangs on it.
    let err = send(&site, &to, 1, "sendto");
    assert!(err.contains("cannot reach the runtime"), "{err}");
    listener.next();
    site.start_daemon();
    for way in ["sendto", "sendmsg", "send", "write", "writev"] {
        let before = site.sent();
        assert_eq!(send(&site, &to, 3, way), "", "{way}");
        for number in 0..3i64 {
            let (payload, _) = listener.next();
            assert_eq!(payload[..8], number.to_ne_bytes(), "{way}: in their order");
        }
        assert_eq!(site.sent() - before, 3, "{way}: by the runtime");
    }
    // What is longer than a frame, and what is for this host, is the kernel's.
    let before = site.sent();
    assert_eq!(send(&site, &to, 2, "long"), "");
    for _ in 0..2 {
        assert_eq!(listener.next().0.len(), 20_000);
    }
    assert_eq!(send(&site, "127.0.0.1", 2, "sendto"), "");
    assert_eq!(site.sent(), before);
}

#[test]
fn what_cannot_be_snapped_is_refused_where_the_runtime_is_required() {
    let site = Site::without_daemon();
    let listener = Listener::new(site.there());
    let to = site.addresses()[0].to_string();
    let mut command = publisher(&site, &to, PORT, 1, "sendto");
    let output = command.env("TAKT_PRELOAD_GRID", "1ms").output();
    let output = output.expect("it starts");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && err.contains("not connected"),
        "{err}"
    );
    assert!(listener.is_empty());
    // Where it is not, the kernel sends, and the program is told.
    let mut command = publisher(&site, &to, PORT, 1, "sendto");
    command
        .env("TAKT_PRELOAD_GRID", "1ms")
        .env("TAKT_PRELOAD", "on");
    let (_, err) = ended_well(command.output());
    assert!(err.contains("cannot reach"), "{err}");
    listener.next();
}

#[test]
fn iperf_sends_on_the_grid() {
    let site = Site::new();
    let server = Running::start(
        site.there()
            .command("iperf3")
            .expect("the lab is up")
            .args(["--server", "--one-off", "--json"]),
    );
    let client = || {
        let mut command = site.command("iperf3");
        command
            .args(["--client", &site.there().address().to_string(), "--json"])
            .args([
                "--udp",
                "--bitrate",
                "2M",
                "--length",
                "500",
                "--bytes",
                "50K",
            ])
            .env("TAKT_PRELOAD", "required")
            .env("TAKT_PRELOAD_GRID", "2ms+1ms,port=5201");
        let (out, err) = ended_well(command.output());
        // In JSON, iperf3 ends well also when nobody listens yet.
        (!out.contains("Connection refused")).then_some((out, err))
    };
    let (out, err) = until("the server listens", client);
    assert!(
        out.contains("\"end\"") && !out.contains("\"error\""),
        "{out}"
    );
    assert_eq!(err, "");
    server.end();
    // 50 KiB in datagrams of 500 bytes, the last of which may wait for their instant.
    until("the runtime has sent them", || {
        (site.sent() >= 102).then_some(())
    });
}
