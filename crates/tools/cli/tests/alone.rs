//! One machine, no root, no configuration: with and without a daemon of the user's own.

mod support;

use std::io::{BufRead, BufReader};

use rustix::process::Signal;
use support::{Ran, Running, User, takt};
use takt_testing::{Directory, until_true};

const USER: u32 = 65_533;
const OTHER: u32 = 65_532;

/// The names of the runtimes that can be found.
fn registered(user: &User) -> Vec<String> {
    let nodes = user.directory.join("takt/nodes");
    let Ok(entries) = std::fs::read_dir(nodes) else {
        return Vec::new();
    };
    let names = entries.flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with('.')).collect()
}

/// A subscriber that can be found.
fn subscriber(user: &User, arguments: &[&str]) -> Running {
    let before = registered(user).len();
    let sub = user.spawn(arguments);
    until_true("the subscriber registers", || {
        registered(user).len() > before
    });
    sub
}

#[test]
fn pub_and_sub_find_each_other_by_the_name_of_a_channel() {
    let Some(user) = User::new(USER) else { return };
    let sub = subscriber(&user, &["sub", "weather", "--count", "1"]);
    let ran = user.takt(&["pub", "weather", "hello"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("no daemon at"), "{ran:?}");
    assert!(
        ran.err.contains("channel weather over udp: 1 sent"),
        "{ran:?}"
    );
    let ran = sub.end();
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(0), "hello\n"),
        "{ran:?}"
    );
    assert_eq!(registered(&user), Vec::<String>::new());
}

#[test]
fn whoever_comes_first_waits_and_every_reader_is_found() {
    let Some(user) = User::new(USER) else { return };
    let publisher = user.spawn(&["pub", "weather", "late", "--wait", "1min"]);
    let first = user.takt(&["sub", "weather", "--count", "1"]);
    assert_eq!(first.out, "late\n", "{first:?}");
    assert_eq!(publisher.end().code, Some(0));
    let mut readers =
        [(); 3].map(|()| subscriber(&user, &["sub", "weather", "--count", "1", "--quiet"]));
    until_true("every reader has a message", || {
        user.takt(&["pub", "weather", "hello"]);
        let mut ended = readers.iter_mut().map(|reader| reader.0.try_wait());
        ended.all(|ended| ended.expect("a child").is_some())
    });
    for reader in readers {
        assert_eq!(reader.end().code, Some(0));
    }
}

#[test]
fn one_that_was_killed_is_forgotten() {
    let Some(user) = User::new(USER) else { return };
    let sub = subscriber(&user, &["sub", "weather"]);
    sub.signal(Signal::KILL);
    drop(sub);
    assert_eq!(registered(&user).len(), 1);
    let ran = user.takt(&["pub", "weather", "hello", "--wait", "10ms"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("takt sub weather"), "{ran:?}");
    assert_eq!(registered(&user), Vec::<String>::new());
}

#[test]
fn another_user_is_not_found_and_cannot_prepare_the_place() {
    let (Some(user), Some(other)) = (User::new(USER), User::new(OTHER)) else {
        return;
    };
    let _sub = subscriber(&user, &["sub", "weather"]);
    let ran = other.takt(&["pub", "weather", "hello", "--wait", "10ms"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    // Whoever has made the directory could read and answer.
    std::os::unix::fs::chown(other.directory.join("takt/nodes"), Some(USER), None).expect("root");
    let ran = other.takt(&["pub", "weather", "hello"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.err.contains("must be a directory of this user"),
        "{ran:?}"
    );
}

#[test]
fn a_user_runs_a_node_and_everything_finds_it() {
    let Some(user) = User::new(USER) else { return };
    std::fs::write(
        user.directory.join("takt.toml"),
        "[node]\naddress = \"127.0.0.1\"\nport = 0\n",
    )
    .expect("written");
    let mut node = user.spawn(&["run", "--config", &user.directory.text("takt.toml")]);
    let mut lines = BufReader::new(node.0.stderr.take().expect("piped")).lines();
    let said: Vec<String> = lines
        .by_ref()
        .map(|line| line.expect("text"))
        .take_while(|line| !line.contains("ready"))
        .collect();
    assert!(
        said.iter()
            .any(|line| line.contains("not run by root: sockets are in")),
        "{said:?}"
    );
    let ran = user.takt(&["status", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let sub = user.spawn(&["sub", "weather", "--count", "1"]);
    let ran = user.takt(&["pub", "weather", "hello", "--wait", "1min"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.err.contains("no daemon"), "{ran:?}");
    assert_eq!(sub.end().out, "hello\n");
    node.signal(Signal::TERM);
    assert_eq!(node.end().code, Some(0));
}

#[test]
fn the_plugin_of_kubectl_is_run_as_it_is() {
    let directory = Directory::new();
    let plugin = directory.join("kubectl-takt");
    std::fs::write(&plugin, "#!/bin/sh\nprintf %s: \"$@\"\nexit 3\n").expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&plugin, mode).expect("an executable");
    let run = |path: &str| -> Ran {
        let mut command = takt(&["kube", "-n", "factory", "-o", "json", "-help"]);
        command.env("PATH", path).output().expect("takt").into()
    };
    let ran = run(&format!("{}:/usr/bin:/bin", directory.path().display()));
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert_eq!(ran.out, "-n:factory:-o:json:-help:");
    let ran = run("/nowhere");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("make -C kubernetes build"), "{ran:?}");
}
