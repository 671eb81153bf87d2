//! What a host can lack: privilege, room in a frame, a port, a socket, a configuration.

use std::io::Read;
use std::net::UdpSocket;
use std::process::{Command, Output, Stdio};

use takt::{ChannelId, Qos};
use takt_lab::{Host, Lab, LabConfig};
use taktd::admin::proto::PeerState;

use crate::support::node::{PORT, command, configure};
use crate::support::{Datapath, Node, Pair, attach, exchange, introduce, put, skip, take};
use takt_testing::{Directory, until, until_true};

const CHANNEL: ChannelId = ChannelId(5);

fn lab() -> Option<Lab> {
    (!skip()).then(|| Lab::scratch(&LabConfig::default()).expect("a lab"))
}

/// Runs a daemon that is expected to end by itself: exit code and what it said.
fn failing(directory: &Directory, host: &Host) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command(directory, host, &[]).output().expect("the daemon");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

#[test]
fn without_the_privilege_for_af_xdp_streams_use_kernel_udp_and_say_what_to_grant() {
    let Some(lab) = lab() else {
        return;
    };
    // As root, and without the capabilities that BPF and raw sockets need.
    let wrapper = [
        "setpriv",
        "--bounding-set",
        "-net_raw,-bpf,-sys_admin",
        "--",
    ];
    let addresses = [0, 1].map(|at| lab.host(at).address());
    let section = Datapath::Xdp.section();
    let poor = Node::start_under(&wrapper, lab.host(0), &[addresses[1]], section);
    let rich = Node::start(lab.host(1), &[addresses[0]], section);
    poor.await_peers(1, PeerState::Up);
    let [from, to] = [&poor, &rich].map(|node| {
        let session = attach(node, "fast");
        session.stream(Qos::fast()).expect("a stream")
    });
    assert_eq!((&*from.datapath(), &*to.datapath()), ("udp", "xdp"));
    let warning = from.warning().expect("a warning");
    for part in ["xdp", "CAP_NET_RAW", "CAP_BPF", "setcap"] {
        assert!(warning.contains(part), "{part} in {warning}");
    }
    assert_eq!(to.warning(), None);
    let datapaths = poor.admin().datapaths();
    let xdp = datapaths.iter().find(|datapath| datapath.name == "xdp");
    let xdp = xdp.expect("it is shown");
    assert!(!xdp.available && xdp.reason.contains("CAP_NET_RAW"));
    assert!(poor.log().contains("CAP_NET_RAW"), "{}", poor.log());
    // They are two ends of one channel all the same, both ways.
    for (one, other) in [(&from, &to), (&to, &from)] {
        let source = one.source(CHANNEL).expect("a source");
        let sink = other.sink(CHANNEL).expect("a sink");
        introduce(&source, &[&sink]);
        exchange(&source, &[&sink], 0, 100);
    }
}

#[test]
fn without_memory_to_lock_for_af_xdp_what_to_grant_is_said() {
    let Some(lab) = lab() else {
        return;
    };
    let wrapper = [
        "prlimit",
        "--memlock=65536:65536",
        "setpriv",
        "--bounding-set",
        "-ipc_lock,-sys_resource",
        "--",
    ];
    let node = Node::start_under(&wrapper, lab.host(0), &[], Datapath::Xdp.section());
    let datapaths = node.admin().datapaths();
    let xdp = datapaths.iter().find(|datapath| datapath.name == "xdp");
    let xdp = xdp.expect("it is shown");
    assert!(!xdp.available, "64 KiB are enough");
    for part in ["CAP_IPC_LOCK", "ulimit -l", "LimitMEMLOCK="] {
        assert!(xdp.reason.contains(part), "{part} in {}", xdp.reason);
    }
}

#[test]
fn applications_outside_the_daemons_pid_namespace_are_served_and_their_death_is_seen() {
    let Some(lab) = lab() else {
        return;
    };
    let wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--"];
    let node = Node::start_under(&wrapper, lab.host(0), &[], "");
    let session = attach(&node, "outside");
    let stream = session.stream(Qos::slow()).expect("a stream");
    let source = stream.source(CHANNEL).expect("a source");
    let sink = stream.sink(CHANNEL).expect("a sink");
    introduce(&source, &[&sink]);
    exchange(&source, &[&sink], 0, 100);
    let mut admin = node.admin();
    assert_eq!(admin.sessions()[0].pid, 0, "no number there");
    let mut other = Command::new(env!("CARGO_BIN_EXE_takt-test-client"))
        .arg(node.socket())
        .args(["6", "6"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the client");
    let mut ready = [0; 6];
    let output = other.stdout.as_mut().expect("its output");
    let at_work = output.read_exact(&mut ready);
    let sessions = admin.sessions().len();
    other.kill().expect("it runs");
    other.wait().expect("it ends");
    at_work.expect("it is at work");
    assert_eq!(sessions, 2);
    until_true("its session has ended", || admin.sessions().len() == 1);
    exchange(&source, &[&sink], 100, 100);
}

#[test]
fn a_path_that_holds_a_file_keeps_no_other_listener_from_its_work() {
    let Some(lab) = lab() else {
        return;
    };
    // Its own configuration is a file.
    let node = Node::start(lab.host(0), &[], "[[listener]]\npath = \"DIR/takt.toml\"\n");
    let log = node.log();
    assert!(
        log.contains("takt.toml exists and is no socket: remove it"),
        "{log}"
    );
    assert!(node.directory.join("takt.toml").is_file());
    assert!(attach(&node, "served").stream(Qos::slow()).is_ok());
}

#[test]
fn an_interface_that_is_not_there_is_named_and_kernel_udp_carries() {
    let Some(lab) = lab() else {
        return;
    };
    let section = "[datapath.xdp]\ninterface = \"eth7\"\n";
    let node = Node::start(lab.host(0), &[], section);
    let session = attach(&node, "fast");
    let stream = session.stream(Qos::fast()).expect("a stream");
    assert_eq!(stream.datapath(), "udp");
    let warning = stream.warning().expect("a warning");
    assert!(warning.contains("eth7"), "{warning}");
}

/// Over an MTU that any IPv4 host must have, and one that changes while messages pass.
fn narrow_links(datapath: Datapath) {
    if skip() {
        return;
    }
    let config = LabConfig {
        mtu: 576,
        ..LabConfig::default()
    };
    let pair = Pair::with(&config, datapath.section());
    let [from, to] = pair.nodes.each_ref().map(|node| {
        let session = attach(node, "narrow");
        session.stream(datapath.qos()).expect("a stream")
    });
    assert_eq!(from.datapath(), datapath.name());
    let source = from.source(CHANNEL).expect("a source");
    let sink = to.sink(CHANNEL).expect("a sink");
    introduce(&source, &[&sink]);
    let mut number = 0;
    let mut all_lengths = || {
        for length in [8, 500, 576, 1500, 100_000] {
            number += 1;
            put(&source, number, length);
            assert_eq!(take(&sink), number, "{length} bytes");
        }
    };
    all_lengths();
    for mtu in [1500, 576] {
        for at in [0, 1] {
            set_mtu(pair.lab.host(at), mtu);
        }
        // The change is noticed by itself; a message that was cut for the former MTU may be lost.
        introduce(&source, &[&sink]);
        until("messages longer than a frame pass", || {
            put(&source, u64::from(mtu), 3000);
            let deadline = takt::Wait::For(std::time::Duration::from_millis(100));
            sink.consume(deadline).ok().map(|_| ())
        });
        introduce(&source, &[&sink]);
        all_lengths();
    }
}

fn set_mtu(host: &Host, mtu: u32) {
    let status = std::process::Command::new("ip")
        .args(["-n", host.namespace(), "link", "set", host.interface()])
        .args(["mtu", &mtu.to_string()])
        .status()
        .expect("ip");
    assert!(status.success());
}

#[test]
fn messages_of_every_length_pass_where_frames_are_short_over_kernel_udp() {
    narrow_links(Datapath::Udp);
}

#[test]
fn messages_of_every_length_pass_where_frames_are_short_over_af_xdp() {
    narrow_links(Datapath::Xdp);
}

#[test]
fn a_port_that_another_program_has_is_named_with_the_remedy_and_nothing_is_left() {
    let Some(lab) = lab() else {
        return;
    };
    let host = lab.host(0);
    // The peering port, and that of the lane behind it.
    for port in [PORT, PORT + 1] {
        let taken = {
            let _inside = host.enter().expect("the lab is up");
            UdpSocket::bind((host.address(), port)).expect("free")
        };
        let directory = Directory::new();
        configure(&directory, host, &[], "");
        let (code, said) = failing(&directory, host);
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains(&format!("{}:{port}", host.address())),
            "{said}"
        );
        assert!(said.contains("another") && said.contains("port"), "{said}");
        assert!(!directory.join("takt.sock").exists());
        assert!(!directory.join("admin.sock").exists());
        // The same on another host is nobody's business.
        let _node = Node::start(lab.host(1), &[], "");
        drop(taken);
    }
}

#[test]
fn a_second_daemon_on_the_same_sockets_or_host_refuses_and_disturbs_nothing() {
    if skip() {
        return;
    }
    let mut pair = Pair::over(Datapath::Xdp);
    let [from, to] = pair.nodes.each_ref().map(|node| {
        let session = attach(node, "served");
        session.stream(Qos::fast()).expect("a stream")
    });
    let source = from.source(CHANNEL).expect("a source");
    let sink = to.sink(CHANNEL).expect("a sink");
    introduce(&source, &[&sink]);
    let host = pair.lab.host(0);
    // With the sockets of the first; and with sockets of its own, on the ports of the first.
    let own = Directory::new();
    configure(&own, host, &[], Datapath::Xdp.section());
    for (directory, part) in [(&pair.nodes[0].directory, "stop it"), (&own, "7400")] {
        let (code, said) = failing(directory, host);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(part), "{said}");
        exchange(&source, &[&sink], 0, 100);
    }
    assert!(pair.nodes.iter_mut().all(Node::runs));
    // A socket that another node's applications use, from another host: paths are the machine's. The node does its
    // other work without it, and says so.
    let socket = pair.nodes[0].socket().display().to_string();
    let section = format!("[[listener]]\npath = \"{socket}\"\n");
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
    let mut third = Node::start(lab.host(0), &[], &section);
    let said = third.log();
    assert!(
        said.lines()
            .any(|line| line.contains("listener left out") && line.contains(&socket)),
        "{said}"
    );
    attach(&third, "served by the third");
    assert!(third.runs());
    attach(&pair.nodes[0], "newcomer");
    exchange(&source, &[&sink], 1000, 100);
}

#[test]
fn a_configuration_that_cannot_be_read_or_is_wrong_names_the_place_and_the_remedy() {
    let Some(lab) = lab() else {
        return;
    };
    let host = lab.host(0);
    let cases = [
        ("[lane]\n", "lane"),
        ("[limits]\nmax_message = \"a lot\"\n", "limits.max_message"),
        ("[[lane]]\nidle = \"doze\"\n", "lane[0].idle"),
        ("[datapath.xdp]\n", "datapath.xdp"),
        ("[colour]\n", "colour"),
        (
            "[[listener]]\npath = \"DIR/takt.sock\"\n",
            "listener[1].path",
        ),
    ];
    for (section, key) in cases {
        let directory = Directory::new();
        configure(&directory, host, &[], section);
        let (code, said) = failing(&directory, host);
        assert_eq!(code, Some(4), "{section}: {said}");
        assert!(said.contains("takt.toml:") && said.contains(key), "{said}");
        assert!(!directory.join("takt.sock").exists());
    }
    let directory = Directory::new();
    let (code, said) = failing(&directory, host);
    assert_eq!(code, Some(4), "{said}");
    assert!(
        said.contains("takt.toml") && said.contains("--config"),
        "{said}"
    );
    std::fs::write(directory.join("takt.toml"), [0xff, 0xfe, 0x00]).expect("write");
    let (code, said) = failing(&directory, host);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("takt.toml"), "{said}");
}
