//! `takt stamp` between hosts: programs that know nothing of it get what was sent, and a monitor sees when that was.
//!
//! Needs root; `tshark`, `nft`, `ethtool` and `iperf3` come with `scripts/setup.sh test`.

mod support;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use support::{Running, run};
use takt_capture::pcapng::Writer;
use takt_capture::socket::PacketSocket;
use takt_lab::{Host, Lab, LabConfig, Wiring};
use takt_testing::{Directory, PATIENCE, uninterrupted, until_true};

const TAKT: &str = env!("CARGO_BIN_EXE_takt");
/// Behind the MTU's largest datagram there is no room: IP, UDP and 18 bytes.
const MOST_V4: usize = 1500 - 28 - 18;

fn lab() -> Option<Lab> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return None;
    }
    let config = LabConfig {
        wiring: Wiring::Bridge,
        ..LabConfig::default()
    };
    let lab = Lab::scratch(&config).expect("a lab");
    // Where the switch has bridge-netfilter, it passes on what the IP packet is and nothing behind.
    for family in ["iptables", "ip6tables"] {
        let setting = format!("net.bridge.bridge-nf-call-{family}=0");
        let switch = format!("{}-switch", lab.name());
        let mut sysctl = Command::new("ip");
        sysctl.args([
            "netns", "exec", &switch, "sysctl", "-q", "-e", "-w", &setting,
        ]);
        assert!(sysctl.status().expect("sysctl").success());
    }
    Some(lab)
}

fn inside(host: &Host, program: &str, arguments: &[&str]) -> Command {
    let mut command = host.command(program).expect("a command");
    command.args(arguments);
    command
}

fn ran(host: &Host, program: &str, arguments: &[&str]) {
    let output = inside(host, program, arguments).output().expect(program);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
}

/// Starts `takt`, until it has said this.
fn start(host: &Host, arguments: &[&str], said: &str) -> Running {
    let mut command = inside(host, TAKT, arguments);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut running = Running(child.expect("takt"));
    running.line_with(said);
    running
}

fn stamp(host: &Host, flows: &str) -> Running {
    let arguments = ["stamp", "-i", host.interface(), flows, "--json"];
    start(host, &arguments, "are stamped")
}

fn monitor(host: &Host) -> Running {
    let arguments = [
        "monitor",
        "-i",
        host.interface(),
        "--json",
        "--http",
        "127.0.0.1:0",
    ];
    start(host, &arguments, "the flows are shown at")
}

fn ended(running: Running) -> Value {
    running.signal(Signal::INT);
    let ran = running.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.json()
}

/// The flow to a port.
fn flow(account: &Value, port: u16) -> &Value {
    let flows = account["flows"].as_array().expect("flows");
    let to = format!(":{port}");
    let mut flows = flows.iter().filter(|flow| {
        let name = flow["flow"].as_str().expect("a name");
        name.starts_with("udp ") && name.ends_with(&to)
    });
    flows.next().unwrap_or_else(|| panic!("{port}: {account}"))
}

fn bound(host: &Host, address: &str) -> UdpSocket {
    let _inside = host.enter().expect("the host");
    let socket = UdpSocket::bind(address).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

/// Sends so many of each length, and sees that each comes as it was sent.
fn exchange(from: &UdpSocket, to: &UdpSocket, lengths: &[usize], times: usize) {
    let address = to.local_addr().expect("an address");
    let mut buffer = [0; 2000];
    for (number, length) in lengths
        .iter()
        .cycle()
        .take(lengths.len() * times)
        .enumerate()
    {
        let sent = vec![number as u8 ^ 0x5a; *length];
        from.send_to(&sent, address).expect("sent");
        let (came, _) = uninterrupted(|| to.recv_from(&mut buffer)).expect("a datagram");
        assert!(
            buffer[..came] == sent[..],
            "{number}: {came} of {length} bytes"
        );
    }
}

#[test]
fn receivers_get_what_was_sent_and_a_monitor_sees_when() {
    let Some(lab) = lab() else { return };
    let [near, far] = [lab.host(0), lab.host(1)];
    for (host, address) in [(near, "fd00::1/64"), (far, "fd00::2/64")] {
        ran(
            host,
            "ip",
            &["address", "add", address, "dev", "eth0", "nodad"],
        );
    }
    // By software, so that what is captured has them.
    ran(far, "ethtool", &["-K", "eth0", "tx", "off"]);
    let directory = Directory::new();
    let file = directory.text("came.pcapng");
    let mut socket = {
        let _inside = near.enter().expect("the host");
        PacketSocket::open("eth0", 4, false).expect("a packet socket")
    };
    let mut writer = Writer::new(File::create(&file).expect("a file"), 65_535).expect("a file");
    // As it comes: a socket has few blocks, and each is full after 4 ms.
    let written = std::thread::spawn(move || {
        let mut all = 0;
        until_true("all is captured", || {
            let taken = socket.take(10, |meta, bytes, _| {
                let udp = bytes.get(23) == Some(&17) || bytes.get(20) == Some(&17);
                all += u64::from(udp);
                writer.packet(meta, bytes).expect("written");
            });
            taken.expect("captured");
            all >= 20 * (7 + 6) + 10 + 7
        });
        writer.flush().expect("written");
    });
    let (stamp, monitor) = (stamp(far, "udp * > *"), monitor(near));
    let lengths = [0, 1, 18, 17, 100, 999, MOST_V4];
    let address = near.address();
    let sockets = [
        ("0.0.0.0:0", format!("{address}:5000")),
        ("[fd00::2]:0", "[fd00::1]:5001".to_owned()),
    ];
    let [from, from6] = sockets.each_ref().map(|(from, _)| bound(far, from));
    let [to, to6] = sockets.each_ref().map(|(_, to)| bound(near, to));
    exchange(&from, &to, &lengths, 20);
    exchange(&from6, &to6, &lengths[..6], 20);
    // Without room for a stamp, and in fragments.
    exchange(&from, &to, &[MOST_V4 + 1, 1472], 5);
    let mut large = [0; 9000];
    from.send_to(&[7; 9000], to.local_addr().expect("an address"))
        .expect("sent");
    let (came, _) = uninterrupted(|| to.recv_from(&mut large)).expect("a datagram");
    assert_eq!(came, 9000);

    let counted = ended(stamp);
    assert_eq!(counted["stamped"], 20 * (7 + 6), "{counted}");
    assert_eq!(counted["too_long"], 10, "{counted}");
    assert!(counted["fragmented"].as_u64() >= Some(6), "{counted}");
    for why in ["segmented", "padded", "failed"] {
        assert_eq!(counted[why], 0, "{counted}");
    }
    let account = ended(monitor);
    for (port, packets) in [(5000, 20 * 7 + 10 + 1), (5001, 20 * 6)] {
        let flow = flow(&account, port);
        assert_eq!(
            (&flow["carries"], &flow["packets"]),
            (&"trailer".into(), &packets.into())
        );
        assert_eq!(
            ["lost", "duplicates", "reordered"].map(|what| flow[what].as_u64()),
            [Some(0); 3]
        );
        // Both clocks are one.
        let delays =
            ["min_ns", "max_ns"].map(|what| flow["delay"][what].as_i64().expect("a delay"));
        assert!(
            delays[0] > 0 && delays[1] < PATIENCE.as_nanos() as i64,
            "{flow}"
        );
    }

    // Another one's opinion: checksums are right, and lengths are those of before.
    written.join().expect("all is captured");
    let read = Command::new("tshark")
        .args(["-r", &file, "-o", "udp.check_checksum:TRUE", "-T", "fields"])
        .args([
            "-Y",
            "udp.dstport in {5000,5001} && !ip.flags.mf==1 && !ip.frag_offset>0",
        ])
        .args([
            "-e",
            "udp.checksum.status",
            "-e",
            "udp.length",
            "-e",
            "frame.len",
            "-e",
            "ipv6.plen",
        ])
        .output()
        .expect("tshark");
    assert!(read.status.success(), "{read:?}");
    let text = String::from_utf8(read.stdout).expect("text");
    let mut of_length: BTreeMap<usize, u64> = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split('\t');
        assert_eq!(fields.next(), Some("1"), "the checksum: {line}");
        let mut number = || fields.next().and_then(|field| field.parse::<usize>().ok());
        let (length, frame) = (number().expect("a length"), number().expect("a length"));
        let headers = if number().is_some() { 54 } else { 34 };
        let behind = frame - headers - length;
        assert!([0, 18].contains(&behind), "{line}");
        *of_length.entry(behind).or_default() += 1;
    }
    let expected = BTreeMap::from([(18, 20 * (7 + 6)), (0, 10)]);
    assert_eq!(of_length, expected, "{text}");
}

/// Packets of SCTP and ESP; those of IPv6 also behind an extension header.
const SEALED: &str = r#"
import socket, sys
for protocol in (socket.IPPROTO_SCTP, socket.IPPROTO_ESP):
    for family, address in ((socket.AF_INET, sys.argv[1]), (socket.AF_INET6, "fd00::1")):
        s = socket.socket(family, socket.SOCK_RAW, protocol)
        s.sendto(bytes(100), (address, 0))
        if family == socket.AF_INET6:
            # An empty header of destination options.
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DSTOPTS, bytes([0, 0, 1, 4, 0, 0, 0, 0]))
            s.sendto(bytes(100), (address, 0))
"#;

#[test]
fn what_is_sealed_to_its_end_is_left_as_it_is() {
    let Some(lab) = lab() else { return };
    let [near, far] = [lab.host(0), lab.host(1)];
    for (host, address) in [(near, "fd00::1/64"), (far, "fd00::2/64")] {
        ran(
            host,
            "ip",
            &["address", "add", address, "dev", "eth0", "nodad"],
        );
    }
    let stamp = stamp(far, "*");
    ran(far, "python3", &["-c", SEALED, &near.address().to_string()]);
    let (from, to) = (
        bound(far, "0.0.0.0:0"),
        bound(near, &format!("{}:5000", near.address())),
    );
    exchange(&from, &to, &[10], 1);
    let counted = ended(stamp);
    assert_eq!(counted["sealed"], 2 * 3, "{counted}");
    assert!(counted["stamped"].as_u64() >= Some(1), "{counted}");
}

#[test]
fn losses_of_any_flow_are_numbered_and_tcp_passes() {
    let Some(lab) = lab() else { return };
    let [near, far] = [lab.host(0), lab.host(1)];
    let switch = format!("{}-switch", lab.name());
    let rule = "add table bridge t; add chain bridge t f { type filter hook forward priority 0; }; \
                add rule bridge t f udp dport 5000 numgen inc mod 10 == 4 counter drop";
    let nft = Command::new("ip")
        .args(["netns", "exec", &switch, "nft", rule])
        .status();
    assert!(nft.expect("nft").success());
    let (stamp, monitor) = (stamp(far, "*"), monitor(near));
    let (from, to) = (
        bound(far, "0.0.0.0:0"),
        bound(near, &format!("{}:5000", near.address())),
    );
    let address = to.local_addr().expect("an address");
    let mut buffer = [0; 100];
    for number in 0..200_u32 {
        from.send_to(&number.to_be_bytes(), address).expect("sent");
        if number % 10 != 4 {
            let (came, _) = uninterrupted(|| to.recv_from(&mut buffer)).expect("a datagram");
            assert_eq!(buffer[..came], number.to_be_bytes());
        }
    }
    let server = inside(near, "iperf3", &["-s"])
        .stdout(Stdio::null())
        .spawn();
    let _server = Running(server.expect("iperf3"));
    let near_address = near.address().to_string();
    until_true("a transfer", || {
        let client = ["-c", &near_address, "-n", "20M", "-J"];
        inside(far, "iperf3", &client)
            .output()
            .expect("iperf3")
            .status
            .success()
    });
    let account = ended(monitor);
    let lost = flow(&account, 5000);
    assert_eq!(
        (&lost["lost"], &lost["carries"]),
        (&20.into(), &"trailer".into()),
        "{lost}"
    );
    let counted = ended(stamp);
    assert!(counted["stamped"].as_u64() >= Some(200), "{counted}");
    assert_eq!(counted["failed"], 0, "{counted}");
}

#[test]
fn stamps_end_with_their_process_and_a_second_one_adds_none() {
    let Some(lab) = lab() else { return };
    let [near, far] = [lab.host(0), lab.host(1)];
    let (from, to) = (
        bound(far, "0.0.0.0:0"),
        bound(near, &format!("{}:5000", near.address())),
    );
    let first = stamp(far, "udp * > *:5000");
    let second = stamp(far, "udp * > *");
    exchange(&from, &to, &[10, 100], 5);
    let counted = ended(second);
    assert_eq!(
        (&counted["stamped"], &counted["padded"]),
        (&0.into(), &10.into()),
        "{counted}"
    );
    first.signal(Signal::KILL);
    first.end();
    let monitor = monitor(near);
    exchange(&from, &to, &[10, 100], 5);
    let account = ended(monitor);
    assert_eq!(flow(&account, 5000)["carries"], "none", "{account}");

    // What there is not, or cannot be stamped.
    for (arguments, told) in [
        (
            ["stamp", "-i", "nothing", "*"],
            "there is no interface \"nothing\"",
        ),
        (
            ["stamp", "-i", "lo", "channel 7"],
            "only IP packets are stamped",
        ),
        (["stamp", "-i", "lo", "udp"], "names no flows"),
    ] {
        let ran = run(&arguments);
        assert!(ran.code != Some(0) && ran.err.contains(told), "{ran:?}");
    }
    // The interface goes.
    let gone = stamp(far, "*");
    ran(far, "ip", &["link", "del", "eth0"]);
    let ended = gone.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("eth0 is gone"), "{ended:?}");
}

/// Sends 60 bursts a second until its input ends, and then says when the kernel took each datagram (`SOF_TIMESTAMPING_TX_SCHED`,
/// in front of queueing disciplines): UTC nanoseconds.
const CAMERA: &str = r#"
import json, select, socket, struct, sys, time
SO_TIMESTAMPING, SCHED, SOFTWARE, OPT_ID, TSONLY = 37, 1 << 8, 1 << 4, 1 << 7, 1 << 11
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, SCHED | SOFTWARE | OPT_ID | TSONLY)
# SO_SNDBUFFORCE.
s.setsockopt(socket.SOL_SOCKET, 32, 4 << 20)
s.connect((sys.argv[1], 5000))
taken = {}
def drain():
    while True:
        try:
            _, control, _, _ = s.recvmsg(0, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionRefusedError:
            continue
        at = number = None
        for level, kind, data in control:
            if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPING):
                seconds, nanos = struct.unpack_from("qq", data)
                at = seconds * 10**9 + nanos
            elif len(data) >= 16 and struct.unpack_from("IBBBB", data)[1] == 4:
                number = struct.unpack_from("IBBBBII", data)[6]
        if at and number is not None:
            # The switch's port tells of it once more.
            taken.setdefault(number, at)
number, next_burst = 0, time.monotonic()
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(40):
        s.send(struct.pack("!I", number) + bytes(1396))
        number += 1
    drain()
    next_burst += 1 / 60
    time.sleep(max(0, next_burst - time.monotonic()))
time.sleep(0.2)
drain()
json.dump([taken.get(at) for at in range(number)], sys.stdout)
"#;

/// When the kernel received each datagram (`SO_TIMESTAMPNS`), until one second passes without any.
const VIEWER: &str = r#"
import json, socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 35, 1)
# SO_RCVBUFFORCE: whatever the machine's limit.
s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)
s.bind((sys.argv[1], 5000))
print("ready", file=sys.stderr, flush=True)
came = {}
while True:
    try:
        data, control, _, _ = s.recvmsg(2000, 128)
    except TimeoutError:
        break
    s.settimeout(1)
    seconds, nanos = struct.unpack_from("qq", control[0][2])
    came[struct.unpack_from("!I", data)[0]] = seconds * 10**9 + nanos
json.dump(came, sys.stdout)
"#;

fn script(host: &Host, text: &str, argument: &str) -> Running {
    let mut python = inside(host, "python3", &["-c", text, argument]);
    let child = python
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    Running(child.expect("python3"))
}

/// Figure 5 of NOMS 2022 without its hardware: a camera's flow whose delay rises and falls, here by the rate of its link.
#[test]
fn the_level_of_a_camera_follows_its_delay_which_is_that_by_the_kernels_own_stamps() {
    let Some(lab) = lab() else { return };
    let [near, far] = [lab.host(0), lab.host(1)];
    let address = near.address().to_string();
    let rate = |rate: &str| {
        let tbf = [
            "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate,
        ];
        ran(
            far,
            "tc",
            &[&tbf[..], &["burst", "3000", "limit", "4000000"]].concat(),
        );
    };
    let directory = Directory::new();
    let rules = directory.text("rules.toml");
    let text = "[[flow]]\nname = \"camera\"\nmatch = \"udp * > *:5000\"\nmax-delay = \"10ms\"\n";
    std::fs::write(&rules, text).expect("a file");
    let watching = [
        "monitor",
        "-i",
        "eth0",
        "--rules",
        &rules,
        "--http",
        "127.0.0.1:0",
    ];
    let said = "the flows are shown at";
    // 40 datagrams of 1,460 bytes: 4.7 ms at this rate.
    rate("100mbit");
    let _stamp = stamp(far, "udp * > *:5000");
    let account = start(near, &[&watching[..], &["--json"]].concat(), said);
    let mut events = start(near, &[&watching[..], &["--events"]].concat(), said);
    let mut viewer = script(near, VIEWER, &address);
    viewer.line_with("ready");
    let mut camera = script(far, CAMERA, &address);

    let lines = BufReader::new(events.0.stdout.take().expect("its output")).lines();
    let mut levels = lines.filter_map(|line| {
        let event: Value = serde_json::from_str(&line.expect("text")).expect("JSON");
        Some(event["to"].as_str()?.to_owned())
    });
    for (at, level) in [
        ("50mbit", "yellow"),
        ("30mbit", "red"),
        ("100mbit", "green"),
    ] {
        rate(at);
        assert!(
            levels.any(|to| to == level),
            "it ended before it was {level} at {at}"
        );
    }
    drop(camera.0.stdin.take());
    let taken: Vec<Option<i64>> = serde_json::from_str(&camera.end().out).expect("JSON");
    let came: BTreeMap<u32, i64> = serde_json::from_str(&viewer.end().out).expect("JSON");
    let account = ended(account);
    let flow = flow(&account, 5000);
    assert_eq!(
        (&flow["carries"], &flow["lost"]),
        (&"trailer".into(), &0.into()),
        "{flow}"
    );
    assert_eq!(flow["packets"], taken.len(), "{flow}");
    assert_eq!(flow["worst_level"], "red", "{flow}");
    let delays = (0..)
        .zip(&taken)
        .map(|(number, taken)| came[&number] - taken.expect("a stamp"));
    let delays: Vec<i64> = delays.collect();
    let mean = delays.iter().sum::<i64>() as f64 / delays.len() as f64;
    let told = flow["delay"]["mean_ns"].as_f64().expect("a delay");
    let most = *delays.iter().max().expect("some");
    println!(
        "{} datagrams; by the kernel's stamps: mean {mean:.0} ns, largest {most} ns; by the monitor: mean {told:.0} ns, largest {}",
        delays.len(),
        flow["delay"]["max_ns"]
    );
    // Both begin at the same place of the sender's path, a few instructions apart: its stamp first.
    assert!(told <= mean && told > mean / 2.0, "{told} {mean}");
}
