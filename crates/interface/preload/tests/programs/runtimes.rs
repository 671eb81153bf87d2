//! Nodes without a runtime, runtimes that refuse, and runtimes that die.

use std::process::Command;

use takt_lab::OVERLAY_DEVICE;
use takt_testing::{Directory, until};

use super::support::{Listener, Running, Site, ended_well, program, script};

/// The program that sends one datagram `a` after 10 ms.
fn one_datagram(site: &Site) -> Command {
    let mut command = site.command(program("so_txtime"));
    command.args(["mono", &site.addresses()[0].to_string(), "a,10"]);
    command
}

#[test]
fn without_a_runtime_the_kernel_sends_and_one_warning_is_given() {
    let site = Site::without_daemon();
    let listener = Listener::new(site.there());
    let (_, err) = ended_well(one_datagram(&site).output());
    assert_eq!(listener.next().0, b"a");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(
        err.starts_with("takt-preload: so_txtime: ") && err.contains("cannot reach"),
        "{err}"
    );
    assert!(err.contains("takt0.sock"), "{err}");
}

/// As it does of one that is there and says nothing: the kernel would have a program wait for such a one's room for ever.
#[test]
fn a_runtime_that_has_stopped_and_accepts_nobody_is_as_none() {
    let site = Site::without_daemon();
    let listener = Listener::new(site.there());
    let place = Directory::new();
    let socket = place.join("takt.sock");
    let mut full = Command::new("python3");
    let stopped = Running::start(full.arg(script("full.py")).arg(&socket));
    until("it has no room", || {
        stopped.output().0.contains("full").then_some(())
    });
    let output = one_datagram(&site).env("TAKT_SOCKET", &socket).output();
    let (_, err) = ended_well(output);
    assert_eq!(listener.next().0, b"a");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.contains("the deadline passed"), "{err}");
}

#[test]
fn a_required_runtime_that_is_not_there_fails_the_call_that_asks_for_times() {
    let site = Site::without_daemon();
    let output = one_datagram(&site)
        .env("TAKT_PRELOAD", "required")
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("SO_TXTIME"), "{err}");
    assert!(err.contains("not connected"), "{err}");
}

#[test]
fn what_it_is_to_do_is_not_guessed_from_a_value_that_is_none() {
    let site = Site::without_daemon();
    for value in ["Required", "required ", "1"] {
        let mut command = one_datagram(&site);
        let output = command.env("TAKT_PRELOAD", value).output();
        let output = output.expect("it starts");
        assert_eq!(output.status.code(), Some(1), "{value}");
        let err = String::from_utf8_lossy(&output.stderr);
        for word in [value, "\"on\"", "\"required\"", "\"off\""] {
            assert!(err.contains(word), "{value}: {err}");
        }
    }
}

#[test]
fn switched_off_it_does_nothing() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    let (_, err) = ended_well(one_datagram(&site).env("TAKT_PRELOAD", "off").output());
    assert_eq!(err, "");
    assert_eq!(listener.next().0, b"a");
    assert_eq!(site.sent(), 0);
}

#[test]
fn a_runtime_that_gives_no_endpoint_is_as_none() {
    let mut site = Site::without_daemon();
    site.start_daemon_without_endpoint();
    let listener = Listener::new(site.there());
    let (_, err) = ended_well(one_datagram(&site).output());
    assert_eq!(listener.next().0, b"a");
    assert!(err.contains("endpoint"), "{err}");
}

#[test]
fn the_kernel_sends_while_the_runtime_is_gone_and_no_longer() {
    let mut site = Site::new();
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    let running = Running::start(site.command(program("steady")).arg(address));
    let on_time = || {
        let (payload, _) = listener.next();
        let launch = i64::from_ne_bytes(*payload.first_chunk().expect("a time"));
        super::support::tai() >= launch
    };
    until("datagrams leave at their times", || on_time().then_some(()));
    site.kill_daemon();
    until("the kernel sends at once", || (!on_time()).then_some(()));
    site.start_daemon();
    until("the runtime sends again", || {
        (site.sent() > 0).then_some(())
    });
    until("datagrams leave at their times again", || {
        on_time().then_some(())
    });
    let (_, err) = running.output();
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.contains("went away"), "{err}");
}

/// The class of what `ahead.py` sends, and nobody else.
const CLASS: usize = 3;

/// The runtime has taken what it has sent.
fn all_of_it_waits(site: &Site) {
    until("all of it waits", || {
        (site.departures()[CLASS].queued == 10).then_some(())
    });
}

#[test]
fn what_a_program_has_queued_survives_its_end_however_it_ends() {
    let site = Site::with_tenants(2);
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    for way in ["_exit", "exit", "exec", "term", "kill", "abort", "child"] {
        let before = site.sent();
        let mut command = site.command(program("ending"));
        let status = command.args([&address, way]).status();
        let status = status.expect("it starts");
        assert_ne!(status.code(), Some(1), "{way}");
        for number in 0..20 {
            let (text, _) = listener.next_in_time();
            assert_eq!(text, number.to_string().as_bytes(), "{way}");
        }
        assert_eq!(site.sent() - before, 20, "{way}: by the runtime");
    }
    until("their sessions are gone", || {
        site.sessions().is_empty().then_some(())
    });
}

#[test]
fn what_a_killed_program_has_queued_takes_nothing_from_others() {
    let site = Site::with_tenants(2);
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    // Another tenant's, which goes on.
    let other = Running::start(site.command_of(1, program("steady")).arg(&address));
    listener.next_in_time();
    let mut ahead = Running::start(
        site.command("python3")
            .arg(script("ahead.py"))
            .args([&address, "30"]),
    );
    until("it has sent", || {
        ahead.output().0.contains("sent").then_some(())
    });
    all_of_it_waits(&site);
    ahead.kill();
    for _ in 0..20 {
        assert_eq!(listener.next_in_time().0, b"steady");
    }
    all_of_it_waits(&site);
    let (_, err) = other.output();
    assert_eq!(err, "");
}

/// It will not leave, and its error is the only word of that.
#[test]
fn what_has_lost_its_station_by_its_time_is_told_as_missed() {
    let site = Site::routed();
    let address = site.addresses()[0].to_string();
    let mut command = site.command("python3");
    let ahead = Running::start(command.arg(script("ahead.py")).args([&address, "8"]));
    all_of_it_waits(&site);
    let bridge = |arguments: &[&str]| {
        let mut bridge = site.lab.host(0).command("bridge").expect("the lab is up");
        let output = bridge.arg("fdb").args(arguments).output();
        ended_well(output).0
    };
    // Of the other node, all of whose containers are behind its tunnel.
    for entry in bridge(&["show", "dev", OVERLAY_DEVICE]).lines() {
        let station = entry.split(' ').next().expect("its address");
        bridge(&["del", station, "dev", OVERLAY_DEVICE]);
    }
    let (out, err) = ahead.end();
    assert!(out.ends_with("10 missed\n"), "{out}");
    assert_eq!(site.sent(), 0, "{err}");
}

#[test]
fn what_a_killed_runtime_had_queued_is_told_as_missed() {
    let mut site = Site::new();
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    let ahead = Running::start(
        site.command("python3")
            .arg(script("ahead.py"))
            .args([&address, "60"]),
    );
    until("it has sent", || {
        ahead.output().0.contains("sent").then_some(())
    });
    all_of_it_waits(&site);
    site.kill_daemon();
    // Ends once it has read ten errors, and its one message without a time.
    let (out, err) = ahead.end();
    assert!(out.ends_with("10 missed\n"), "{out}");
    assert_eq!(err, "");
    assert_eq!(listener.next().0, b"without");
    assert!(listener.is_empty(), "late, or twice");
}
