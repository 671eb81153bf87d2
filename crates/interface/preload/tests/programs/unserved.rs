//! Launch times that the runtime does not keep: refused where it is required, else told, once for each reason, and
//! left to the kernel with their times.

use std::process::Command;

use takt_wire::ethernet::MacAddress;

use super::support::{
    Listener, Site, ended_well, program, script, static_program, static_program_of_musl,
};

/// A container with a second interface, and a second address of the first.
fn site() -> Site {
    let site = Site::new();
    for arguments in [
        "link add dev other type veth peer name far",
        "address add 192.0.2.1/24 dev other",
        "link set other up",
        "link set far up",
        "address add 10.99.0.9/32 dev eth0",
    ] {
        let status = Command::new("ip")
            .args(["-n", site.here().namespace()])
            .args(arguments.split(' '))
            .status()
            .expect("ip");
        assert!(status.success(), "{arguments}");
    }
    site
}

fn command(site: &Site) -> Command {
    let mut command = site.command("python3");
    command
        .arg(script("unserved.py"))
        .arg(site.addresses()[0].to_string())
        .arg(site.here().address().to_string())
        .arg(MacAddress(site.there().mac()).to_string());
    command
}

/// What each call says when the runtime is required, and a word of what is told.
const REFUSED: &[(&str, &str, &str)] = &[
    ("foreign_source", "EADDRNOTAVAIL", "10.99.0.9"),
    ("foreign_source_of_one", "EADDRNOTAVAIL", ""),
    ("other_interface_for_groups", "ENODEV", "interface other"),
    ("other_interface_for_groups_by_number", "ENODEV", ""),
    ("other_interface_for_stations", "ENODEV", ""),
    ("other_interface_bound", "ENODEV", ""),
    ("other_interface_of_one", "ENODEV", ""),
    ("loopback", "ENOTSUP", "this machine"),
    ("own_address", "ENOTSUP", ""),
    ("members_here", "ENOTSUP", ""),
    ("members_here_of_six", "ENOTSUP", ""),
    ("unknown_control", "ENOTSUP", "control message"),
    ("zero_copy", "ENOTSUP", "MSG_ZEROCOPY"),
    ("corked_flag", "ENOTSUP", ""),
    ("corked", "ENOTSUP", "UDP_CORK"),
    ("segmented", "ENOTSUP", ""),
    ("options", "ENOTSUP", ""),
    ("tagged", "ENOTSUP", "VLAN"),
    ("speaks_for_others", "ENOTSUP", "ARP"),
    ("foreign_station", "ENOTSUP", ""),
    ("stream", "ENOTSUP", "socket is no"),
];

#[test]
fn what_cannot_be_served_is_refused_where_the_runtime_is_required() {
    let site = site();
    let listener = Listener::new(site.there());
    let (out, err) = ended_well(command(&site).env("TAKT_PRELOAD", "required").output());
    let expected: String = REFUSED
        .iter()
        .map(|(case, errno, _)| format!("{case} {errno}\n"))
        .collect();
    assert_eq!(out, expected, "{err}");
    for (case, _, word) in REFUSED {
        assert!(err.contains(word), "{case}: {err}");
    }
    assert!(listener.is_empty(), "untimed");
    assert_eq!(site.sent(), 0);
}

#[test]
fn what_cannot_be_served_is_told_for_each_reason_and_left_to_the_kernel() {
    let site = site();
    let listener = Listener::new(site.there());
    let (out, err) = ended_well(command(&site).output());
    // A socket that is not of those that the runtime serves is none of ours to speak about.
    for (case, _, word) in &REFUSED[..REFUSED.len() - 1] {
        assert!(
            out.contains(&format!("{case} sent\n")),
            "{case}: {out}{err}"
        );
        let told = err
            .lines()
            .filter(|line| line.contains("go the kernel's way"));
        let told = told.filter(|line| line.contains(word)).count();
        assert!(word.is_empty() || told == 1, "{case}: {err}");
    }
    assert!(err.contains("5 datagrams in all"), "{err}");
    assert_eq!(site.sent(), 0);
    // Three have a foreign source or a flag and still a way there.
    assert!(!listener.is_empty());
}

#[test]
fn nothing_gets_past_a_required_runtime_with_a_launch_time() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    let run = |mut command: Command| {
        command.env("TAKT_PRELOAD", "required");
        let (out, err) = ended_well(command.output());
        assert_eq!(out, "no way past\n", "{err}");
        err
    };
    let mut dynamic = site.command(program("past"));
    dynamic.arg(&address);
    assert_eq!(run(dynamic), "");
    assert_eq!(listener.next_in_time().0, b"by the runtime");
    // A script starts it: the loader does not run for it.
    let mut script = site.command("sh");
    let binary = static_program("past");
    script
        .arg("-c")
        .arg(format!("{} {address}; true $?", binary.display()));
    let told = run(script);
    assert!(told.contains("the kernel refuses"), "{told}");
    // Without the capability to set a filter as such.
    let mut unprivileged = site.command("setpriv");
    unprivileged
        .args(["--inh-caps=-all", "--bounding-set=-all", "sh", "-c"])
        .arg(format!("{} {address}", binary.display()));
    let told = run(unprivileged);
    assert!(told.contains("statically linked"), "{told}");
    assert!(listener.is_empty(), "untimed");
    assert_eq!(site.sent(), 1);
}

#[test]
fn a_wrapper_tells_once_that_what_it_starts_is_not_preloaded() {
    let site = Site::without_daemon();
    let listener = Listener::new(site.there());
    let address = site.addresses()[0];
    let send = |binary: std::path::PathBuf| format!("{} mono {address} a,10", binary.display());
    let musl = send(static_program_of_musl("so_txtime"));
    let send = send(static_program("so_txtime"));
    // By a shell that forks for each, and by a program that spawns them.
    let spawn = format!(
        "import os, subprocess\nfor _ in range(2): subprocess.run({:?}.split())",
        send
    );
    for (program, text) in [("sh", format!("{send}; {musl}; true")), ("python3", spawn)] {
        let mut command = site.command(program);
        let (_, err) = ended_well(command.arg("-c").arg(text).output());
        let told: Vec<&str> = err.lines().collect();
        assert_eq!(told.len(), 1, "{program}: {err}");
        assert!(
            told[0].contains("statically linked") && told[0].contains("takt veth attach"),
            "{err}"
        );
        for _ in 0..2 {
            assert_eq!(listener.next().0, b"a", "{program}");
        }
    }
}
