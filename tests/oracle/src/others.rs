//! Runs in the virtual machine: what `takt schedule install --other-traffic taprio` makes of the kernel's own taprio, and of what
//! others send.
//!
//! Usage: `oracle-others`. A line for each thing that holds; ends with a panic at the first that does not.

use std::fs;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Output, Stdio};
use std::{thread, time::Duration};

mod packets;

use packets::{Packets, now, sleep_until};

const DEVICE: &str = "veth0";
const HERE: &str = "10.9.0.1";
const THERE: &str = "10.9.0.2";
/// Where others send to.
const PORT: u16 = 9000;
/// The first lane's port.
const LANE: u16 = 7401;
const CYCLE: i64 = 100_000_000;
const HALF: i64 = CYCLE / 2;
/// What the kernel, and a timer of taprio, take for themselves.
const BEHIND: i64 = 1_000_000;
/// What all of the programs on the one slow processor may take from the daemon between its decision and its system call.
const DAEMON_BEHIND: i64 = 10_000_000;

fn main() {
    fs::create_dir_all("/run/takt").expect("a directory");
    fs::write(
        "/run/group.key",
        "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n",
    )
    .expect("a key");
    set_mode("/run/group.key");
    configure("/run/takt.toml", "state = \"/run/state\"\n", "");
    done(&format!("ip address add {HERE}/24 dev {DEVICE}"));
    done(&format!("ip -n peer address add {THERE}/24 dev veth1"));
    schedule("/run/late.toml", "[1, 2, 3, 4, 5, 6, 7]", "[0]", "");
    let mut daemon = start("/run/takt.toml");

    nothing_of_others_is_touched();
    what_cannot_be_done_is_refused();
    install("/run/late.toml", "taprio");
    let told = qdisc();
    assert!(told.contains("qdisc taprio 7a97: root"), "{told}");
    assert!(
        told.contains("clockid TAI") && told.contains("cycle-time 100000000"),
        "{told}"
    );
    holds(&format!("the kernel's taprio is as asked for:\n{told}"));
    let status = takt("schedule status").stdout;
    let status = String::from_utf8_lossy(&status);
    assert!(
        status.contains("(the kernel's taprio on veth0, software)"),
        "{status}"
    );
    others_are_within(HALF, CYCLE);
    the_runtimes_own_are_within(0, HALF);

    // Changed at an instant.
    let base = (now() / CYCLE + 15) * CYCLE;
    let base_time = format!(
        "base-time = \"{}.{:09}\"\n",
        base / 1_000_000_000,
        base % 1_000_000_000
    );
    schedule(
        "/run/early.toml",
        "[0]",
        "[1, 2, 3, 4, 5, 6, 7]",
        &base_time,
    );
    install("/run/early.toml", "taprio");
    others_change_at(base);
    others_are_within(0, HALF);
    the_runtimes_own_are_within(HALF, CYCLE);

    // Killed: others stay inside, and a new daemon knows what is its own.
    daemon.kill().expect("killed");
    daemon.wait().expect("ended");
    assert!(qdisc().contains("qdisc taprio 7a97: root"), "{}", qdisc());
    others_are_within(0, HALF);
    daemon = start("/run/takt.toml");
    assert_eq!(by(), "taprio");
    others_are_within(0, HALF);
    the_runtimes_own_are_within(HALF, CYCLE);
    holds("after a crash the gates are those of before, and the next daemon goes on with them");

    // Taken away by somebody: it comes back.
    done(&format!("tc qdisc del dev {DEVICE} root"));
    until("taprio is back", || {
        qdisc().contains("qdisc taprio 7a97: root")
    });
    holds("what somebody removes comes back");

    done_by_takt("schedule remove --datapath udp");
    assert!(!qdisc().contains("taprio"), "{}", qdisc());
    holds("with the schedule goes the queueing discipline");

    // A crash, and a start without the schedule, at another interface.
    install("/run/late.toml", "auto");
    assert_eq!(by(), "taprio");
    daemon.kill().expect("killed");
    daemon.wait().expect("ended");
    fs::remove_dir_all("/run/state").expect("a state");
    done(&format!("ip address del {HERE}/24 dev {DEVICE}"));
    done(&format!("ip address add {HERE}/32 dev lo"));
    daemon = start("/run/takt.toml");
    assert!(!qdisc().contains("taprio"), "{}", qdisc());
    holds("what a crash has left is removed where nobody wants it any more");

    // From the configuration; and the end.
    terminate(daemon);
    done(&format!("ip address del {HERE}/32 dev lo"));
    done(&format!("ip address add {HERE}/24 dev {DEVICE}"));
    configure(
        "/run/configured.toml",
        "",
        "[[schedule]]\ndatapath = \"udp\"\nfile = \"/run/late.toml\"\nother_traffic = \"taprio\"\n",
    );
    daemon = start("/run/configured.toml");
    assert_eq!(by(), "taprio");
    others_are_within(HALF, CYCLE);
    terminate(daemon);
    assert!(!qdisc().contains("taprio"), "{}", qdisc());
    holds("a schedule of the configuration has it from the start to the end of the daemon");
}

fn nothing_of_others_is_touched() {
    done(&format!("tc qdisc add dev {DEVICE} root handle 1: pfifo"));
    let before = qdisc();
    let refused = refusal("/run/late.toml", "taprio");
    assert!(refused.contains("`pfifo 1:` is at its root"), "{refused}");
    assert_eq!(qdisc(), before);
    install("/run/late.toml", "auto");
    assert_eq!(by(), "");
    done_by_takt("schedule remove --datapath udp");
    assert_eq!(qdisc(), before);
    done(&format!("tc qdisc del dev {DEVICE} root"));
    holds("an operator's own queueing discipline is refused by name and not touched");
}

fn what_cannot_be_done_is_refused() {
    let refused = refusal("/run/late.toml", "taprio-offload");
    assert!(refused.contains("no clock of its own"), "{refused}");
    schedule("/run/never.toml", "[1, 2]", "[3]", "");
    let refused = refusal("/run/never.toml", "taprio");
    assert!(refused.contains("has no window"), "{refused}");
    // Longer than taprio's cycles can be (`INT_MAX` nanoseconds).
    fs::write(
        "/run/long.toml",
        "cycle-time = \"3s\"\n[[entry]]\ngates = [0]\ninterval = \"3s\"\n",
    )
    .expect("written");
    let refused = refusal("/run/long.toml", "taprio");
    assert!(
        refused.contains("the kernel refuses the schedule"),
        "{refused}"
    );
    holds(&format!(
        "the kernel's own words are passed on: {}",
        refused.trim()
    ));
    assert!(!qdisc().contains("taprio"), "{}", qdisc());
}

/// Sends through several cycles, and looks where in the cycle each datagram has left.
fn others_are_within(from: i64, to: i64) {
    let wire = Wire::listen();
    let sent = send_through(now() + 8 * CYCLE);
    sleep_until(now() + 2 * CYCLE);
    let left = wire.left(|_, destination, _| destination == PORT);
    assert!(left.len() >= sent * 9 / 10, "{} of {sent}", left.len());
    within("others", &left, from, to, BEHIND);
    // They are sent at all times of the cycle, so those of the other half have waited.
    assert!(sent > 500, "{sent}");
}

/// Sends until a while after a change, and looks at both sides of it.
fn others_change_at(base: i64) {
    assert!(now() < base - 4 * CYCLE, "too late: {}", now() - base);
    let wire = Wire::listen();
    send_through(base + 6 * CYCLE);
    let left = wire.left(|_, destination, _| destination == PORT);
    let (before, after): (Vec<i64>, Vec<i64>) = left.iter().partition(|at| **at < base);
    assert!(
        before.len() > 100 && after.len() > 100,
        "{} {}",
        before.len(),
        after.len()
    );
    within("others before the change", &before, HALF, CYCLE, BEHIND);
    within("others after the change", &after, 0, HALF, BEHIND);
}

fn the_runtimes_own_are_within(from: i64, to: i64) {
    let mut subscriber = Command::new("ip");
    subscriber
        .args("netns exec peer takt sub 7 --quiet --count 300 --timeout 60s --embedded".split(' '))
        .args(["--address", THERE, "--peer", &format!("{HERE}:7400")])
        .env(
            "TAKT_GROUP_KEY",
            fs::read_to_string("/run/group.key").expect("a key").trim(),
        );
    let mut subscriber = subscriber.spawn().expect("a subscriber");
    let wire = Wire::listen();
    done_by_takt("pub 7 --class 5 --count 300 --interval 3ms --size 64 --wait 60s");
    assert!(subscriber.wait().expect("an end").success());
    let left = wire.left(|source, _, class| (source, class) == (LANE, 5));
    assert!(left.len() >= 300, "{}", left.len());
    within("the runtime's own, class 5", &left, from, to, DAEMON_BEHIND);
}

fn within(what: &str, left: &[i64], from: i64, to: i64, behind: i64) {
    let outside = left.iter().map(|at| at.rem_euclid(CYCLE));
    let outside: Vec<i64> = outside
        .filter(|phase| !(from..to + behind).contains(phase) && *phase + CYCLE >= to + behind)
        .collect();
    assert!(
        outside.is_empty(),
        "{what}: {} of {}: {outside:?}",
        outside.len(),
        left.len()
    );
    holds(&format!(
        "{what}: {} left from {} to {} ms of the cycle",
        left.len(),
        from / 1_000_000,
        to / 1_000_000
    ));
}

/// A datagram each 1.37 ms, with priorities of all kinds that need no privilege. How many.
fn send_through(end: i64) -> usize {
    let socket = UdpSocket::bind((HERE, 0)).expect("a socket");
    let mut sent = 0;
    let mut at = now();
    while at < end {
        let priority = (sent % 7) as libc::c_int;
        // SAFETY: pointer and length are those of `priority`.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PRIORITY,
                (&raw const priority).cast(),
                size_of_val(&priority) as libc::socklen_t,
            )
        };
        assert_eq!(set, 0);
        socket.send_to(&[0; 200], (THERE, PORT)).expect("sent");
        sent += 1;
        at += 1_370_000;
        sleep_until(at);
    }
    sent
}

/// The far end of the cable.
struct Wire(Packets);

impl Wire {
    fn listen() -> Self {
        let packets = Packets::open("peer/veth1");
        packets.listen();
        Self(packets)
    }

    /// When each datagram of these ports and class left.
    fn left(&self, of: impl Fn(u16, u16, u8) -> bool) -> Vec<i64> {
        let word = |octets: &[u8], at: usize| {
            Some(u16::from_be_bytes([*octets.get(at)?, *octets.get(at + 1)?]))
        };
        let all = self.0.arrivals().into_iter();
        // IPv4 without options, UDP, from here.
        all.filter(|(octets, _)| word(octets, 12) == Some(0x0800) && octets.get(23) == Some(&17))
            .filter(|(octets, _)| octets.get(26..30) == Some(&[10, 9, 0, 1][..]))
            .filter(|(octets, _)| {
                let ports = (word(octets, 34), word(octets, 36));
                matches!(ports, (Some(source), Some(destination)) if of(source, destination, octets[15] >> 5))
            })
            .map(|(_, at)| at)
            .collect()
    }
}

fn configure(path: &str, node: &str, more: &str) {
    let text = format!(
        "[node]\naddress = \"{HERE}\"\naccept = [\"10.9.0.0/24\"]\ndrain_seconds = 1\n{node}[security]\ngroup_key_file = \"/run/group.key\"\n\
         key_file = \"/run/node.key\"\n{more}"
    );
    fs::write(path, text).expect("written");
}

/// Two halves of a cycle.
fn schedule(path: &str, first: &str, second: &str, base: &str) {
    let entry = |gates: &str| format!("[[entry]]\ngates = {gates}\ninterval = \"50ms\"\n");
    let text = format!(
        "{base}cycle-time = \"100ms\"\n{}{}",
        entry(first),
        entry(second)
    );
    fs::write(path, text).expect("written");
}

fn start(configuration: &str) -> Child {
    let daemon = Command::new("taktd")
        .args(["--config", configuration])
        .spawn()
        .expect("taktd");
    until("the daemon answers", || takt("status").status.success());
    daemon
}

fn terminate(mut daemon: Child) {
    done(&format!("kill {}", daemon.id()));
    assert!(daemon.wait().expect("an end").success());
}

fn install(file: &str, other_traffic: &str) {
    done_by_takt(&install_command(file, other_traffic));
}

fn refusal(file: &str, other_traffic: &str) -> String {
    let output = takt(&install_command(file, other_traffic));
    assert!(!output.status.success(), "{file} {other_traffic}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn install_command(file: &str, other_traffic: &str) -> String {
    format!("schedule install {file} --datapath udp --other-traffic {other_traffic}")
}

/// What of the kernel keeps others inside, as the daemon says.
fn by() -> String {
    let output = takt("schedule status --json");
    let links: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let by = links[0]["other_traffic_by"].as_str();
    by.unwrap_or_else(|| panic!("{links}")).to_owned()
}

fn qdisc() -> String {
    let output = run(&format!("tc qdisc show dev {DEVICE}"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn takt(command: &str) -> Output {
    run(&format!("takt {command}"))
}

fn done_by_takt(command: &str) {
    done(&format!("takt {command}"));
}

fn done(command: &str) {
    let output = run(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {said}");
}

fn run(command: &str) -> Output {
    let mut words = command.split(' ');
    let mut program = Command::new(words.next().expect("a program"));
    let output = program.args(words).stdin(Stdio::null()).output();
    output.unwrap_or_else(|error| panic!("{command}: {error}"))
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let patience = now() + 60_000_000_000;
    while !holds() {
        assert!(now() < patience, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn set_mode(path: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("permissions");
}

fn holds(what: &str) {
    println!("others: {what}");
}
