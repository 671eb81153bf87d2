//! `takt lab`: real namespaces. Needs root; skips with a reason otherwise.

mod support;

use support::run;

/// The group key of this test's programs.
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// Takes the lab down even when the test fails.
struct Cleanup(String);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _ = takt_lab::Lab::down(&self.0);
    }
}

#[test]
fn two_nodes_on_one_machine_do_what_the_lab_proposes() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let name = format!("takt-t-{}-two", std::process::id());
    let _cleanup = Cleanup(name.clone());
    let ran = run(&["lab", "up", &name, "--network", "10.79.0.0/24", "--daemons"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let commands: Vec<Vec<&str>> = ran
        .out
        .lines()
        .filter_map(|line| line.strip_prefix("  takt "))
        .map(|line| line.split(' ').collect())
        .collect();
    let [sub, publish, status, down] = commands.as_slice() else {
        panic!("four commands: {ran:?}");
    };
    // The programs inside are the ones under test.
    let mut path = std::ffi::OsString::from(
        std::path::Path::new(env!("CARGO_BIN_EXE_takt"))
            .parent()
            .expect("a directory"),
    );
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let inside = |arguments: &[&str]| {
        let mut command = support::takt(arguments);
        command.env("PATH", &path);
        command
    };
    let mut reader = inside(&[sub.as_slice(), &["--count", "1"]].concat());
    reader.stdout(std::process::Stdio::piped());
    let reader = support::Running(reader.spawn().expect("takt"));
    let publish = [publish.as_slice(), &["--wait", "1min"]].concat();
    let ran: support::Ran = inside(&publish).output().expect("takt").into();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(reader.end().out, "hello\n");
    let ran: support::Ran = inside(status).output().expect("takt").into();
    assert!(ran.out.contains("node       h1 "), "{ran:?}");
    assert!(
        ran.out.contains("1 of 1 peer(s) up") && ran.out.contains("h2"),
        "{ran:?}"
    );
    let exec = ["lab", "exec", "--lab", &name, "h2", "--", "hostname"];
    assert_eq!(run(&exec).out, "h2\n");
    let add = [
        "lab",
        "exec",
        "--lab",
        &name,
        "h2",
        "--",
        "takt",
        "peer",
        "add",
        "10.79.0.2",
    ];
    let ran: support::Ran = inside(&add).output().expect("takt").into();
    assert!(ran.err.contains("is this node itself"), "{ran:?}");
    let ran: support::Ran = inside(down).output().expect("takt").into();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!std::path::Path::new(takt_lab::RECORDS).join(&name).exists());
}

#[test]
fn nodes_that_cannot_meet_for_their_mtu_are_told_so() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let name = format!("takt-t-{}-mtu", std::process::id());
    let _cleanup = Cleanup(name.clone());
    let ran = run(&[
        "lab",
        "up",
        &name,
        "--network",
        "10.80.0.0/24",
        "--mtu",
        "68",
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let exec = ["lab", "exec", "--lab", &name, "h1", "--"];
    let program = env!("CARGO_BIN_EXE_takt");
    let ran = run(&[&exec[..], &[program, "doctor"]].concat());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.out.contains("PROBLEM  mtu         eth0 has 68"),
        "{ran:?}"
    );
    let mut node = support::takt(&[&exec[..], &[program, "run"]].concat());
    let mut node = support::Running(
        node.stderr(std::process::Stdio::piped())
            .spawn()
            .expect("takt"),
    );
    let lines = std::io::BufReader::new(node.0.stderr.take().expect("piped"));
    let said: Vec<String> = std::io::BufRead::lines(lines)
        .map(|line| line.expect("text"))
        .take_while(|line| !line.contains("ready"))
        .collect();
    let told = said
        .iter()
        .any(|line| line.contains("eth0 has an MTU of 68"));
    assert!(told, "{said:?}");
    drop(node);
    assert_eq!(run(&["lab", "down", &name]).code, Some(0));
    let left = std::path::Path::new("/run/takt/lab").join(&name);
    assert!(!left.exists(), "the sockets of what ran there");
}

#[test]
fn a_lab_is_made_listed_used_and_removed() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let name = format!("takt-t-{}-cli", std::process::id());
    let _cleanup = Cleanup(name.clone());
    let ran = run(&["lab", "up", &name, "--network", "10.78.0.0/24", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let hosts = ran.json();
    assert_eq!(hosts[1]["address"], "10.78.0.2");
    let ran = run(&["lab", "up", &name]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let ran = run(&["lab", "list"]);
    assert!(ran.out.contains(&name), "{ran:?}");
    let inside = ["lab", "exec", "--lab", &name, "h1", "--"];
    let ran = run(&[&inside[..], &["ping", "-c", "1", "-W", "10", "10.78.0.2"]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = run(&[&inside[..], &["sh", "-c", "exit 7"]].concat());
    assert_eq!(ran.code, Some(7), "{ran:?}");
    let ran = run(&["lab", "exec", "--lab", &name, "h9", "--", "true"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("it has h1, h2"), "{ran:?}");
    assert_eq!(run(&["lab", "down", &name]).code, Some(0));
    assert_eq!(run(&["lab", "down", &name]).code, Some(1));
}

#[test]
fn pub_and_sub_of_two_hosts_find_each_other_without_a_daemon_by_the_groups_key() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let lab = takt_lab::Lab::scratch(&takt_lab::LabConfig::default()).expect("a lab");
    let takt = |host: usize, key: &str, arguments: &[&str]| {
        let mut command = lab
            .host(host)
            .command(env!("CARGO_BIN_EXE_takt"))
            .expect("the lab is up");
        command
            .args(arguments)
            .args(["--embedded", "--scout", "eth0"])
            .env("TAKT_GROUP_KEY", key)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        command
    };
    let reader = takt(1, KEY, &["sub", "weather", "--count", "1"]);
    let reader = support::Running({ reader }.spawn().expect("takt"));
    let ran = |mut command: std::process::Command| -> support::Ran {
        command.output().expect("takt").into()
    };
    let heard = ran(takt(0, KEY, &["pub", "weather", "hello", "--wait", "1min"]));
    assert_eq!(heard.code, Some(0), "{heard:?}");
    assert_eq!(reader.end().out, "hello\n");
    // Whoever has another key finds nobody.
    let reader = takt(1, KEY, &["sub", "weather", "--count", "1"]);
    let _reader = support::Running({ reader }.spawn().expect("takt"));
    let other = KEY.replace('A', "B");
    let alone = ran(takt(
        0,
        &other,
        &["pub", "weather", "hello", "--wait", "3s"],
    ));
    assert!(
        alone.err.contains("nobody reads channel weather"),
        "{alone:?}"
    );
    let mut none = takt(0, "", &["pub", "weather", "hello"]);
    none.env_remove("TAKT_GROUP_KEY");
    let none = ran(none);
    assert_eq!(none.code, Some(1), "{none:?}");
    assert!(none.err.contains("TAKT_GROUP_KEY"), "{none:?}");
}

#[test]
fn a_host_without_a_daemon_tells_which_datapaths_it_could_have() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let name = format!("takt-t-{}-dp", std::process::id());
    let _cleanup = Cleanup(name.clone());
    let ran = run(&["lab", "up", &name, "--network", "10.83.0.0/24"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let program = env!("CARGO_BIN_EXE_takt");
    let inside = |arguments: &[&str]| {
        let exec = ["lab", "exec", "--lab", &name, "h1", "--"];
        run(&[&exec[..], arguments].concat())
    };
    let look = [
        program,
        "datapaths",
        "xdp",
        "--json",
        "--admin",
        "/nonexistent",
    ];
    let ran = inside(&look);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let of = |ran: &support::Ran| ran.json()["technologies"][0].clone();
    let xdp = of(&ran);
    assert_eq!(
        (&xdp["interface"], &xdp["state"]),
        (&"eth0".into(), &"possible".into())
    );
    assert!(
        xdp["found"].as_str().expect("text").contains("driver veth"),
        "{xdp}"
    );
    let attached = || {
        inside(&["ip", "link", "show", "dev", "eth0"])
            .out
            .contains("xdp")
    };
    assert!(!attached(), "looking changes nothing");
    let ran = inside(&[&look[..], &["--try", "eth0"]].concat());
    assert!(
        of(&ran)["found"]
            .as_str()
            .expect("text")
            .contains("native XDP"),
        "{ran:?}"
    );
    assert!(!attached(), "what was tried is taken away");
    assert_eq!(
        inside(&["ip", "link", "set", "dev", "eth0", "down"]).code,
        Some(0)
    );
    let ran = inside(&look);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let remedy = of(&ran)["remedy"].clone();
    assert!(
        remedy
            .as_str()
            .expect("text")
            .contains("ip link set dev eth0 up"),
        "{remedy}"
    );
}
