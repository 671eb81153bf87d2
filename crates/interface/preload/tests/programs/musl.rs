//! Programs of musl, which Alpine's images have: a library of their own, found by their loader.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use takt_testing::repository;

use super::support::{Listener, Running, Site, built, ended_well, musl_program, script};

/// What `LD_PRELOAD` names for programs of either C library: `scripts/preload.sh` builds what is there. `None`, and said:
/// this machine has no standard library for musl, and cannot get it.
pub fn libraries() -> Option<&'static Path> {
    static LIBRARIES: OnceLock<Option<PathBuf>> = OnceLock::new();
    let libraries = LIBRARIES.get_or_init(|| {
        let output = Command::new(repository().join("scripts/preload.sh"))
            .env("PROFILE", "dev")
            .env("BUILD", built(""))
            .output()
            .expect("the script");
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        if said.contains("is left out") {
            eprintln!("SKIPPED: {said}");
            return None;
        }
        let path = built("takt-preload/$LIB/libtakt_preload.so");
        assert!(path.is_file(), "{output:?}");
        Some(path)
    });
    libraries.as_deref()
}

/// A command under the preload as its loader chooses it.
fn command(site: &Site, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = site.command(program);
    command.env("LD_PRELOAD", libraries().expect("seen before"));
    command
}

#[test]
fn datagrams_of_a_program_of_musl_leave_at_their_times_however_they_are_sent() {
    if libraries().is_none() {
        return;
    }
    let site = Site::new();
    let listener = Listener::new(site.there());
    for address in site.addresses() {
        let before = site.sent();
        let mut talker = command(&site, musl_program("talker"));
        let talker = Running::start(
            talker
                .arg(address.to_string())
                .env("TAKT_PRELOAD", "required"),
        );
        let (text, from) = listener.next_in_time();
        assert_eq!(text, b"unconnected");
        listener.answer(b"answer", from);
        // The rest is what a program of glibc sends: `sending.rs` has the names.
        let (timed, untimed) = (12 + u64::from(address.is_ipv4()), 4);
        let empty = (0..timed - 1 + untimed)
            .filter(|_| listener.next_in_time().0.is_empty())
            .count();
        assert_eq!(empty as u64, untimed, "by the kernel");
        let (_, err) = talker.end();
        assert_eq!(err, "", "no warning");
        assert!(listener.is_empty());
        assert_eq!(site.sent() - before, timed, "by the runtime");
    }
}

#[test]
fn error_queues_tell_programs_of_musl_of_missed_times_and_of_departures() {
    if libraries().is_none() {
        return;
    }
    let site = Site::new();
    let listener = Listener::new(site.there());
    for address in site.addresses() {
        let mut errors = command(&site, musl_program("errors"));
        let (_, err) = ended_well(errors.arg(address.to_string()).output());
        assert_eq!(err, "");
        assert!(!listener.is_empty());
        while !listener.is_empty() {
            assert!(!listener.next().0.ends_with(b"never"));
        }
    }
}

#[test]
fn descriptors_of_programs_of_musl_are_followed_to_their_children() {
    if libraries().is_none() {
        return;
    }
    let site = Site::new();
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    let running = Running::start(command(&site, musl_program("descriptors")).arg(address));
    for _ in 0..16 {
        listener.next_in_time();
    }
    let (_, err) = running.end();
    assert_eq!(err, "");
    assert_eq!(site.sent(), 16);
}

#[test]
fn lengths_are_as_wide_as_musl_has_them_and_what_pads_them_is_nobodys() {
    if libraries().is_none() {
        return;
    }
    let site = Site::new();
    let listener = Listener::new(site.there());
    let mut padded = command(&site, musl_program("padded"));
    let address = site.addresses()[0].to_string();
    let running = Running::start(padded.arg(address).env("TAKT_PRELOAD", "required"));
    assert_eq!(listener.next_in_time().0, b"one");
    assert_eq!(listener.next_in_time().0, b"two");
    let (_, err) = running.end();
    assert_eq!(err, "");
    assert_eq!(site.sent(), 2);
}

/// A shell of one C library that starts a program of the other, as an entry point of an image may.
#[test]
fn programs_of_both_c_libraries_start_each_other() {
    if libraries().is_none() {
        return;
    }
    let site = Site::new();
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    let (musl, python) = (musl_program("starter"), script("talker.py"));
    let python = python.to_str().expect("a path in UTF-8");
    // musl, glibc, musl, glibc.
    let mut chain = command(&site, &musl);
    chain.args(["sh", "-c", "exec \"$0\" \"$@\""]);
    chain.arg(&musl).args(["python3", python, &address]);
    let running = Running::start(chain.env("TAKT_PRELOAD", "required"));
    for number in 0..20 {
        let (text, _) = listener.next_in_time();
        assert_eq!(text, format!("cycle {number}").as_bytes());
    }
    let (out, err) = running.end();
    assert_eq!((out.as_str(), err.as_str()), ("20 stamps, 1 error\n", ""));
    assert_eq!(site.sent(), 20);
    // And a talker of musl's behind a shell of glibc's.
    let mut chain = command(&site, "sh");
    chain.args(["-c", "\"$0\" \"$@\"; exit $?"]);
    chain.arg(musl_program("padded")).arg(&address);
    let running = Running::start(&mut chain);
    assert_eq!(listener.next_in_time().0, b"one");
    assert_eq!(listener.next_in_time().0, b"two");
    assert_eq!(running.end().1, "");
    assert_eq!(site.sent(), 22);
}
