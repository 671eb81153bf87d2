//! The configuration as operators write it: every key, every kind of fault, the shipped reference.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use takt_clock::chrony::Address;
use takt_runtime::config::{Idle, OtherTraffic, SchedulingClass};
use takt_session::place::Socket;
use takt_wire::ethernet::MacAddress;
use takt_wire::vxlan::NetworkId;

use super::*;

const REFERENCE: &str = include_str!("../../../../../deploy/takt.toml");
const MANUAL: &str = include_str!("../../../../../docs/reference/configuration.md");

fn parse(text: &str) -> Result<Settings, Box<Fault>> {
    Settings::parse(Path::new("takt.toml"), text)
}

fn fault(text: &str) -> String {
    match parse(text) {
        Ok(_) => panic!("accepted: {text}"),
        Err(fault) => fault.to_string(),
    }
}

/// What a comparison of two configurations has to look at, in a form that can be compared.
fn everything(settings: &Settings) -> String {
    let Settings {
        file,
        runtime,
        drain,
        clock,
        udp,
        xdp,
        plugins,
        admin,
        metrics,
        state,
    } = settings;
    format!(
        "{runtime:#?} {drain:?} {clock:?} {udp:#?} {xdp:#?} {plugins:?} {admin:?} {metrics:?} {state:?} {:?}",
        file.log
    )
}

/// The reference with the examples of optional keys switched on.
fn reference_with_examples() -> String {
    REFERENCE
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(example) if !example.is_empty() && !example.starts_with(' ') => example,
            _ => line,
        })
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn an_empty_file_and_the_shipped_reference_are_the_defaults() {
    let defaults = everything(&parse("").expect("empty"));
    let reference = everything(&parse(REFERENCE).expect("the reference"));
    assert_eq!(reference, defaults);
}

#[test]
fn the_defaults_are_those_of_the_runtime_with_one_listener() {
    let settings = parse("").expect("empty");
    let runtime = Config::default();
    assert_eq!(settings.runtime.address, runtime.address);
    assert_eq!(settings.runtime.port, runtime.port);
    assert_eq!(settings.runtime.lanes, runtime.lanes);
    assert_eq!(settings.runtime.limits, runtime.limits);
    assert_eq!(settings.runtime.balance, runtime.balance);
    assert_eq!(settings.runtime.mapping, runtime.mapping);
    assert_eq!(settings.clock, Sources::default());
    assert_eq!(settings.udp, UdpConfig::default());
    assert_eq!(settings.runtime.listeners.len(), 1);
    let listener = &settings.runtime.listeners[0];
    assert_eq!(listener.path, Socket::Applications.of_own_node());
    assert_eq!(listener.policy, Policy::default());
}

#[test]
fn the_reference_with_its_examples_switched_on_is_good() {
    let settings = parse(&reference_with_examples()).expect("examples");
    assert_eq!(settings.runtime.name, "press-1");
    assert_eq!(settings.runtime.peers.len(), 1);
    assert_eq!(
        settings.xdp.map(|xdp| xdp.interface).as_deref(),
        Some("eth0")
    );
    assert!(settings.metrics.is_some());
}

/// The keys that a section has, from the complaint about one that it has not.
fn keys_of(section: &str) -> Vec<String> {
    // A table in a table of which there may be several.
    let above = match section {
        "[listener.endpoint]" | "[[listener.stream]]" => "[[listener]]\n",
        _ => "",
    };
    let complaint = fault(&format!("{above}{section}\nno_such_key = 1\n"));
    let (_, list) = complaint.split_once("expected ").expect("a list of keys");
    list.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_key_is_in_the_reference_and_in_the_manual() {
    let sections = [
        "[node]",
        "[[lane]]",
        "[security]",
        "[[peer]]",
        "[[network]]",
        "[[schedule]]",
        "[[listener]]",
        "[listener.endpoint]",
        "[[listener.stream]]",
        "[limits]",
        "[departure]",
        "[clock]",
        "[balance]",
        "[mapping]",
        "[[mapping.rule]]",
        "[datapath.udp]",
        "[datapath.xdp]",
        "[admin]",
        "[metrics]",
        "[log]",
    ];
    for section in sections {
        let keys = keys_of(section);
        assert!(!keys.is_empty(), "{section}");
        let written = reference_with_examples();
        // All that there are of it.
        let text: Vec<&str> = written
            .split(section)
            .skip(1)
            .filter_map(|text| text.split("\n[").next())
            .collect();
        let text = text.concat();
        let (_, manual) = MANUAL
            .split_once(&format!("## `{section}`\n"))
            .expect(section);
        let manual = manual.split("\n## ").next().expect("a chapter");
        for key in keys {
            // A table in a table has a section of its own.
            let shown = text.contains(&format!("\n{key} ="))
                || written.contains(&format!(".{key}]\n"))
                || written.contains(&format!(".{key}]]\n"));
            assert!(shown, "{section} {key}");
            assert!(manual.contains(&format!("`{key}`")), "{section} {key}");
        }
    }
}

#[test]
fn every_key_is_read() {
    let settings = parse(
        r#"
        [node]
        name = "a"
        address = "10.0.0.1"
        port = 9000
        accept = ["10.0.0.0/8"]
        drain_seconds = 9
        [[lane]]
        idle = "adaptive"
        spin_us = 7
        core = 1
        scheduling = "fifo:50"
        [[lane]]
        idle = "spin"
        [[lane]]
        idle = "park"
        [[peer]]
        address = "10.0.0.2"
        [security]
        protection = "encrypt"
        key_file = "/run/own.key"
        group_key_file = "/run/group.key"
        [[listener]]
        path = "/run/press.sock"
        mode = "0600"
        identity = "press"
        uids = [1000]
        write = ["1-9", 20]
        read = ["*"]
        classes = [0, 7]
        undeclared = "send"
        trust = "nobody"
        messages_per_second = 5
        bytes_per_second = "1 KiB"
        memory = "32 MiB"
        total_memory = "64 MiB"
        sessions = 3
        endpoints = 4
        total_endpoints = 5
        descriptors = 6
        [listener.endpoint]
        network = "pods"
        mac = "02:00:00:00:00:05"
        addresses = ["10.244.1.5/24"]
        mtu = 1400
        ethertypes = [0x22f0, 0x88b5]
        vlans = [0, 100]
        [[listener.stream]]
        name = "axis"
        class = 7
        channel = 5
        period = "1ms"
        offset = "100us"
        window = "10us"
        frame = 300
        frames = 2
        [[listener.stream]]
        name = "valve"
        class = 7
        destination = "10.244.2.6:4000"
        period = "2.5 ms"
        frame = "1 KiB"
        [[network]]
        name = "pods"
        carrier = "vxlan:42"
        port = 8472
        follow = "flannel.1"
        routed = ["10.244.0.0/16", "fd00::/8"]
        stations = [{ mac = "02:00:00:00:00:06", vtep = "10.0.0.2", addresses = ["10.244.2.6"] }]
        [[network]]
        name = "line"
        carrier = "vlan:7"
        interface = "eth2"
        [limits]
        max_message = "1 MiB"
        tx_bytes = "2 MiB"
        rx_bytes = "3 MiB"
        reassemblies = 5
        reassembly_timeout_ms = 6
        linger_ms = 7
        [mapping]
        fast_frugal = ["xdp"]
        fast_unlimited = ["dpdk"]
        hold_down_ms = 20
        [[mapping.rule]]
        name = "control"
        tenants = ["press"]
        classes = [6, 7]
        datapaths = ["xdp", "udp"]
        [[mapping.rule]]
        datapaths = ["udp"]
        [datapath.udp]
        frames = 10
        frame_size = 1400
        peers = 11
        receive_buffer = "1 MiB"
        send_buffer = "2 MiB"
        segmentation = false
        [datapath.xdp]
        interface = "eth1"
        mode = "native"
        zero_copy = "required"
        queues = "1-2"
        rx_ring = 512
        ports_per_queue = 2
        tx_frames = 100
        peers = 12
        checksum = false
        busy_poll = { micros = 20, budget = 64 }
        [admin]
        socket = "/run/a.sock"
        mode = "0660"
        [metrics]
        address = "127.0.0.1:9000"
        [log]
        level = "info,takt_runtime=debug"
        format = "json"
        "#,
    )
    .expect("good");
    let config = &settings.runtime;
    assert_eq!(config.name, "a");
    assert_eq!(
        (config.address.to_string(), config.port),
        ("10.0.0.1".into(), 9000)
    );
    assert_eq!(config.accept[0].prefix, 8);
    assert_eq!(settings.drain, Duration::from_secs(9));
    let idles: Vec<Idle> = config.lanes.iter().map(|lane| lane.idle).collect();
    let spin = Duration::from_micros(7);
    assert_eq!(idles, [Idle::Adaptive { spin }, Idle::Spin, Idle::Park]);
    assert_eq!(config.lanes[0].core, Some(1));
    assert_eq!(config.lanes[0].scheduling, SchedulingClass::Fifo(50));
    let id = NetworkId::new(42).expect("an identifier");
    assert_eq!(
        config.networks,
        [
            NetworkConfig {
                name: "pods".into(),
                carrier: Carrier::Vxlan { id, port: 8472 },
                stations: vec![Station {
                    mac: MacAddress([2, 0, 0, 0, 0, 6]),
                    vtep: Some([10, 0, 0, 2].into()),
                    addresses: vec![[10, 244, 2, 6].into()],
                }],
                follow: Some("flannel.1".into()),
                interface: None,
                routed: vec![
                    ([10, 244, 0, 0].into(), 16),
                    ("fd00::".parse().expect("an address"), 8),
                ],
            },
            NetworkConfig {
                name: "line".into(),
                carrier: Carrier::Native { vlan: Some(7) },
                stations: Vec::new(),
                follow: None,
                interface: Some("eth2".into()),
                routed: Vec::new(),
            },
        ]
    );
    assert_eq!(
        config.peers,
        [SocketAddr::from(([10, 0, 0, 2], 7400)).into()]
    );
    assert_eq!(
        config.listeners,
        [ListenerConfig {
            path: "/run/press.sock".into(),
            mode: 0o600,
            policy: Policy {
                identity: "press".into(),
                uids: vec![1000],
                write: vec![1..=9, 20..=20],
                read: vec![0..=u64::MAX],
                classes: 0b1000_0001,
                messages_per_second: 5,
                bytes_per_second: 1024,
                memory: 32 << 20,
                total_memory: 64 << 20,
                sessions: 3,
                endpoints: 4,
                total_endpoints: 5,
                descriptors: 6,
                lanes: Vec::new(),
                endpoint: Some(takt_session::Endpoint {
                    network: "pods".into(),
                    mac: [2, 0, 0, 0, 0, 5],
                    addresses: vec![([10, 244, 1, 5].into(), 24)],
                    mtu: 1400,
                    vlans: vec![0, 100],
                }),
                ether_types: vec![0x22f0, 0x88b5],
                streams: vec![
                    DeclaredStream {
                        name: "axis".into(),
                        flow: Flow::Channel(ChannelId(5)),
                        talker: Talker {
                            priority: TrafficClass::new(7).expect("a class"),
                            period_ns: 1_000_000,
                            offset_ns: 100_000,
                            window_ns: 10_000,
                            octets: 300,
                            frames: 2,
                        },
                    },
                    DeclaredStream {
                        name: "valve".into(),
                        flow: Flow::Destination(SocketAddr::from(([10, 244, 2, 6], 4000))),
                        talker: Talker {
                            priority: TrafficClass::new(7).expect("a class"),
                            period_ns: 2_500_000,
                            offset_ns: 0,
                            window_ns: 0,
                            octets: 1024,
                            frames: 1,
                        },
                    },
                ],
                undeclared_streams: true,
                trust: Trust::Nobody,
            },
        }]
    );
    assert_eq!(
        config.limits,
        Limits {
            max_message: 1 << 20,
            tx_bytes: 2 << 20,
            rx_bytes: 3 << 20,
            reassemblies: 5,
            reassembly_timeout: Duration::from_millis(6),
            linger: Duration::from_millis(7),
        }
    );
    assert_eq!(config.mapping.fast_frugal, ["xdp"]);
    assert_eq!(config.mapping.fast_unlimited, ["dpdk"]);
    assert_eq!(config.mapping.hold_down, Duration::from_millis(20));
    assert_eq!(
        config.mapping.rules,
        [
            MappingRule {
                name: "control".into(),
                tenants: vec!["press".into()],
                classes: 0b1100_0000,
                datapaths: vec!["xdp".into(), "udp".into()],
            },
            MappingRule {
                name: "2".into(),
                datapaths: vec!["udp".into()],
                ..MappingRule::default()
            },
        ]
    );
    assert_eq!(
        settings.udp,
        UdpConfig {
            frames: 10,
            frame_size: 1400,
            peers: 11,
            receive_buffer: 1 << 20,
            class_buffers: true,
            send_buffer: 2 << 20,
            segmentation: false,
        }
    );
    let xdp = settings.xdp.expect("xdp");
    assert_eq!((xdp.interface.as_str(), xdp.mode), ("eth1", Mode::Native));
    assert_eq!(
        (xdp.zero_copy, xdp.queues),
        (ZeroCopy::Required, Some(1..3))
    );
    assert_eq!(
        (xdp.rx_ring, xdp.ports_per_queue, xdp.tx_frames),
        (512, 2, 100)
    );
    assert_eq!((xdp.peers, xdp.checksum), (12, false));
    assert_eq!(
        xdp.busy_poll,
        Some(BusyPoll {
            micros: 20,
            budget: 64
        })
    );
    assert_eq!(settings.admin, ("/run/a.sock".into(), 0o660));
    assert_eq!(
        settings.metrics,
        Some(SocketAddr::from(([127, 0, 0, 1], 9000)))
    );
    assert_eq!(settings.file.log.level, "info,takt_runtime=debug");
    assert_eq!(settings.file.log.format, file::LogFormat::Json);
}

#[test]
fn whom_to_ask_about_the_clock_is_an_address_a_path_or_nobody() {
    let clock = |text: &str| parse(&format!("[clock]\n{text}")).expect("good").clock;
    let asked = clock(
        "ptp4l = \"/run/p\"\nptp_domain = 24\nchrony = \"/run/c\"\ndevice = \"/dev/ptp1\"\nhost = \"10.0.0.1:123\"\ntimescale = \"utc\"",
    );
    assert_eq!(
        asked,
        Sources {
            ptp4l: Ask::Expected("/run/p".into()),
            ptp_domain: 24,
            chrony: Ask::Expected(Address::Unix("/run/c".into())),
            device: Some("/dev/ptp1".into()),
            host: Some(SocketAddr::from(([10, 0, 0, 1], 123))),
            utc: true,
        }
    );
    let nobody = clock("ptp4l = \"none\"\nchrony = \"none\"");
    assert_eq!((nobody.ptp4l, nobody.chrony), (Ask::Never, Ask::Never));
    assert_eq!(
        clock("chrony = \"[::1]:323\"").chrony,
        Ask::Expected(Address::Udp(SocketAddr::from((
            std::net::Ipv6Addr::LOCALHOST,
            323
        ))))
    );
}

#[test]
fn no_listener_at_all_can_be_asked_for() {
    let settings = parse("listener = []").expect("good");
    assert!(settings.runtime.listeners.is_empty());
}

#[test]
fn every_fault_names_line_key_value_and_remedy() {
    let long = "x".repeat(130);
    let cases: &[(&str, &str, &str)] = &[
        (
            "[node]\nprot = 1",
            "takt.toml:2:1: `node.prot`",
            "expected one of `name`",
        ),
        (
            "[nodes]",
            "takt.toml:1:2: `nodes`",
            "expected one of `node`",
        ),
        (
            "[node]\nport = 70000",
            "takt.toml:2:8: `node.port` = 70000",
            "0 to 65535",
        ),
        (
            "[node]\nport = \"x\"",
            "`node.port` = \"x\"",
            "an integer from 0 to 65535",
        ),
        (
            "[node]\naddress = \"node1\"",
            "`node.address` = \"node1\"",
            "an IP address",
        ),
        (
            "[node]\naddress = \"224.0.0.1\"",
            "`node.address`",
            "an address of this node",
        ),
        (
            "[node]\nport = 65535",
            "`node.port` = 65535",
            "write 65534 or less",
        ),
        (
            "[node]\nport = 65533\n[[lane]]\n[[lane]]\n[datapath.xdp]\ninterface = \"eth0\"",
            "`node.port` = 65533",
            "write 65531 or less",
        ),
        (
            "[[lane]]\n[[lane]]\n[datapath.udp]\nlanes = [0, 2]",
            "`datapath.udp.lanes`",
            "there is no lane 2: [[lane]] is written for lanes 0 to 1",
        ),
        (
            "[[listener]]\nlanes = [0, 0]",
            "`listener[0].lanes`",
            "lane 0 is named twice",
        ),
        (
            "[[lane]]\n[[lane]]\n[[class]]\nnumber = 6\nlanes = [2]",
            "`class[0].lanes`",
            "there is no lane 2: [[lane]] is written for lanes 0 to 1",
        ),
        (
            "[[class]]\nnumber = 8\nlanes = [0]",
            "`class[0].number` = 8",
            "write numbers from 0 to 7",
        ),
        (
            "[[class]]\nnumber = 6\nlanes = [0]\n[[class]]\nnumber = 6\nlanes = [0]",
            "`class[1].number` = 6",
            "has its lanes already",
        ),
        (
            "[[lane]]\n[[lane]]\n[[class]]\nnumber = 6\nlanes = [1]\n[[listener]]\nlanes = [0]",
            "`listener[0].lanes`",
            "none of them serves class 6, whose `lanes` are [1]",
        ),
        (
            "[datapath.xdp]\ninterface = \"eth0\"\nlanes = []",
            "`datapath.xdp.lanes`",
            "name one, or leave it out for all",
        ),
        (
            "[node]\naccept = [\"10.0.0.0\"]",
            "`node.accept[0]` = \"10.0.0.0\"",
            "a network as",
        ),
        (
            "[node]\ndrain_seconds = 3601",
            "`node.drain_seconds` = 3601",
            "0 to 3600",
        ),
        (
            "[node]\nname = \"\"",
            "`node.name` = \"\"",
            "1 to 128 bytes",
        ),
        (
            "[[network]]\nname = \"a\"\ncarrier = \"gre:1\"",
            "`network[0].carrier` = \"gre:1\"",
            "\"vxlan:42\"",
        ),
        (
            "[[network]]\nname = \"a\"\ncarrier = \"native\"\n[[network]]\nname = \"a\"\ncarrier = \"native\"",
            "takt.toml:5:8: `network[1].name` = \"a\"",
            "give each its own",
        ),
        (
            "[[network]]\nname = \"a\"\ncarrier = \"native\"\nfollow = \"vx\"",
            "`network[0].follow` = \"vx\"",
            "only a VXLAN",
        ),
        (
            "[[network]]\nname = \"a\"\ncarrier = \"vxlan:1\"\nport = 0",
            "`network[0].port` = 0",
            "4789",
        ),
        (
            "[[network]]\nname = \"a\"\ncarrier = \"vxlan:1\"\nstations = [{ mac = \"02:00:00:00:00:01\" }]",
            "`network[0].stations[0]`",
            "`vtep` is missing",
        ),
        (
            "[[network]]\nname = \"a\"\ncarrier = \"native\"\nstations = [{ mac = \"02:00:00:00:00:01\", vtep = \"10.0.0.1\" }]",
            "`network[0].stations[0]`",
            "remove `vtep`",
        ),
        (
            "[[network]]\nname = \"a\"\ncarrier = \"vxlan:1\"\nstations = [{ mac = \"01:00:00:00:00:01\", vtep = \"10.0.0.1\" }]",
            "`network[0].stations[0]`",
            "the MAC address of a group",
        ),
        (
            "[[listener]]\n[listener.endpoint]\nnetwork = \"x\"\nmac = \"02:00:00:00:00:01\"\naddresses = []",
            "`listener[0].endpoint.network` = \"x\"",
            "add a [[network]]",
        ),
        (
            "[[listener]]\n[listener.endpoint]\nnetwork = \"x\"\nmac = \"03:00:00:00:00:01\"\naddresses = []",
            "`listener[0].endpoint.mac` = \"03:00:00:00:00:01\"",
            "write a unicast one",
        ),
        (
            "[[listener]]\n[listener.endpoint]\nnetwork = \"x\"\nmac = \"02:00:00:00:00:01\"\naddresses = [\"10.0.0.1\"]",
            "`listener[0].endpoint.addresses[0]` = \"10.0.0.1\"",
            "length of its prefix",
        ),
        (
            "[[listener]]\n[listener.endpoint]\nnetwork = \"x\"\nmac = \"02:00:00:00:00:01\"\naddresses = []\nmtu = 68",
            "`listener[0].endpoint.mtu` = 68",
            "write 576",
        ),
        (
            "[[listener]]\n[listener.endpoint]\nnetwork = \"x\"\nmac = \"02:00:00:00:00:01\"\naddresses = []\nvlans = [4095]",
            "`listener[0].endpoint.vlans`: 4095",
            "write 1 to 4094",
        ),
        (
            "[[listener]]\n[listener.endpoint]\nnetwork = \"x\"\nmac = \"02:00:00:00:00:01\"\naddresses = []\nethertypes = [0x8808]",
            "`listener[0].endpoint.ethertypes`: 0x8808",
            "control links",
        ),
        (
            "[[listener]]\n[listener.endpoint]\nnetwork = \"x\"\nmac = \"02:00:00:00:00:01\"\naddresses = []\nethertypes = [0x0800]",
            "`listener[0].endpoint.ethertypes`: 0x0800",
            "leave it out",
        ),
        (
            "[[listener]]\ntrust = \"user\"\nmessages_per_second = 5",
            "`listener[0].trust`",
            "leave out `trust`",
        ),
        (
            "[[listener]]\ntrust = \"user\"\nbytes_per_second = \"1 KiB\"",
            "`listener[0].trust`",
            "lanes keep rates",
        ),
        (
            "[[listener]]\ntrust = \"group\"",
            "`listener[0].trust`",
            "`nobody` or `user`",
        ),
        (
            "[[listener]]\nundeclared = \"drop\"",
            "`listener[0].undeclared`",
            "`refuse` or `send`",
        ),
        (
            "[[listener]]\n[[listener.stream]]\nname = \"a\"\nclass = 5\nchannel = 1\nframe = 64\nperiod = 1000",
            "takt.toml:7:10: `listener[0].stream[0].period` = 1000",
            "a duration with its unit",
        ),
        (
            "[[listener]]\n[[listener.stream]]\nname = \"a\"\nclass = 5\nchannel = 1\nframe = 64\nperiod = \"100ns\"",
            "`listener[0].stream[0].period` = \"100ns\"",
            "1us to 60s",
        ),
        (
            "[[listener]]\n[[listener.stream]]\nname = \"a\"\nclass = 5\nchannel = 1\nframe = 64\nperiod = \"1ms\"\noffset = \"1ms\"",
            "`listener[0].stream[0].offset` = \"1ms\"",
            "not within a period",
        ),
        (
            "[[listener]]\n[[listener.stream]]\nname = \"a\"\nclass = 5\nchannel = 1\nframe = 64\nperiod = \"1ms\"\nwindow = \"2ms\"",
            "`listener[0].stream[0].window` = \"2ms\"",
            "shorter than a period",
        ),
        (
            "[[listener]]\nclasses = [0, 1]\n[[listener.stream]]\nname = \"a\"\nclass = 5\nchannel = 1\nframe = 64\nperiod = \"1ms\"",
            "`listener[0].stream[0].class` = 5",
            "`classes`, [0, 1]",
        ),
        (
            "[[listener]]\nwrite = [\"2-9\"]\n[[listener.stream]]\nname = \"a\"\nclass = 5\nchannel = 1\nframe = 64\nperiod = \"1ms\"",
            "`listener[0].stream[0].channel` = 1",
            "may `write`",
        ),
        (
            "[[listener]]\n[[listener.stream]]\nname = \"a\"\nclass = 5\nframe = 64\nperiod = \"1ms\"",
            "`listener[0].stream[0].channel`",
            "either `channel` or `destination`",
        ),
        (
            "[[listener]]\n[[listener.stream]]\nname = \"a\"\nclass = 5\ndestination = \"10.0.0.1:5\"\nframe = 64\nperiod = \"1ms\"",
            "`listener[0].stream[0].destination` = \"10.0.0.1:5\"",
            "add a [listener.endpoint]",
        ),
        (
            "[[listener]]\n[[listener.stream]]\nname = \"a\"\nclass = 5\nchannel = 1\nframe = 0\nperiod = \"1ms\"",
            "`listener[0].stream[0].frame` = 0",
            "1 to 16384",
        ),
        (
            "[[listener]]\n[[listener.stream]]\nname = \"a\"\nclass = 5\nchannel = 1\nframe = 64\nperiod = \"1ms\"\nframes = 2000",
            "`listener[0].stream[0].frames` = 2000",
            "1 to 1024",
        ),
        (
            "[[listener]]\n[[listener.stream]]\nname = \"a\"\nclass = 5\nchannel = 1\nframe = 64\nperiod = \"1ms\"\n[[listener.stream]]\nname = \"a\"\nclass = 5\nchannel = 2\nframe = 64\nperiod = \"1ms\"",
            "`listener[0].stream[1].name`",
            "give each its own",
        ),
        (
            "[[listener]]\n[[listener.stream]]\nname = \"a\"\nclass = 5\nchannel = 1\nframe = 64\nperiod = \"1ms\"\n[[listener.stream]]\nname = \"b\"\nclass = 5\nchannel = 1\nframe = 64\nperiod = \"2ms\"",
            "`listener[0].stream[1]`",
            "of the same frames",
        ),
        ("lane = []", "`lane`", "leave it out for one"),
        (
            "[[lane]]\nidle = \"sleep\"",
            "`lane[0].idle` = \"sleep\"",
            "`spin`, `adaptive`, `park`",
        ),
        (
            "[[lane]]\nidle = \"park\"\nspin_us = 5",
            "`lane[0].spin_us` = 5",
            "choose adaptive",
        ),
        (
            "[[lane]]\nscheduling = \"rr\"",
            "`lane[0].scheduling` = \"rr\"",
            "\"fifo:50\"",
        ),
        (
            "[[lane]]\n[[lane]]\nidle = \"spin\"\nscheduling = \"fifo:1\"",
            "takt.toml:4:14: `lane[1].scheduling` = \"fifo:1\"",
            "choose `idle = \"adaptive\"`",
        ),
        ("[[lane]]\ncore = 99999", "`lane[0].core` = 99999", "lscpu"),
        ("[[peer]]", "`peer", "missing field `address`"),
        (
            "[[peer]]\naddress = \"10.0.0.2\"",
            "`peer[0].address`",
            "takt key show",
        ),
        (
            "[[peer]]\naddress = \"10.0.0.2\"\nkey = \"short\"",
            "`peer[0].key` = \"short\"",
            "44 characters",
        ),
        (
            "[node]\naccept = [\"10.0.0.0/8\"]",
            "`node.accept`",
            "no key of those who are accepted is known",
        ),
        (
            "[scout]\ninterface = \"eth0\"",
            "`scout.interface`",
            "node.accept",
        ),
        ("[scout]", "`scout`", "introduce = true"),
        (
            "[scout]\nrendezvous = [\"10.0.0.1\"]",
            "`scout.rendezvous[0]`",
            "[[peer]]",
        ),
        (
            "[security]\nprotection = \"none\"\n[scout]\nrendezvous = [\"fd00::1\"]",
            "`scout.rendezvous[0]`",
            "address family",
        ),
        (
            "[security]\nprotection = \"none\"\n[node]\naddress = \"10.0.0.1\"\n[scout]\nrendezvous = [\"10.0.0.1\"]",
            "`scout.rendezvous[0]`",
            "introduce = true",
        ),
        (
            "[security]\nprotection = \"none\"\n[node]\naccept = [\"10.0.0.0/8\"]\n[scout]\ninterface = \"eth0\"\ngroup = \"10.0.0.1:7398\"",
            "`scout.group` = \"10.0.0.1:7398\"",
            "239.255.116.107:7398",
        ),
        (
            "[security]\nrekey_seconds = 14",
            "takt.toml:2:17: `security.rekey_seconds` = 14",
            "15 to 600",
        ),
        (
            "[security]\ngroup_key_file = \"/k\"\n[[peer]]\naddress = \"10.0.0.2\"\nnext_key = \"3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=\"",
            "`peer[0].next_key`",
            "give both",
        ),
        (
            "[security]\nprotection = \"weak\"",
            "`security.protection`",
            "`integrity`",
        ),
        (
            "[[peer]]\naddress = \"node2\"",
            "`peer[0].address` = \"node2\"",
            "names are not looked up",
        ),
        (
            "[security]\nprotection = \"none\"\n[[peer]]\naddress = \"10.0.0.2\"\n[[peer]]\naddress = \"10.0.0.2:7400\"",
            "takt.toml:6:11: `peer[1].address`",
            "remove one",
        ),
        (
            "[[peer]]\naddress = \"fd00::2\"",
            "`peer[0].address`",
            "another address family",
        ),
        (
            "[node]\naddress = \"10.0.0.1\"\n[[peer]]\naddress = \"10.0.0.1\"",
            "`peer[0].address`",
            "the node itself",
        ),
        (
            "[[listener]]\npath = \"a.sock\"",
            "`listener[0].path` = \"a.sock\"",
            "the whole path",
        ),
        (
            "[[listener]]\n[[listener]]",
            "`listener[1].path`",
            "give each its own",
        ),
        (
            "[[listener]]\npath = \"/run/takt/admin.sock\"",
            "`listener[0].path`",
            "the path of `admin.socket`",
        ),
        (
            "[[listener]]\nmode = \"0999\"",
            "`listener[0].mode` = \"0999\"",
            "\"0660\"",
        ),
        (
            "[[listener]]\nmode = 660",
            "`listener[0].mode` = 660",
            "octal, as a string",
        ),
        (
            "[[listener]]\nuids = 5",
            "`listener[0].uids` = 5",
            "an array, in [ ]",
        ),
        (
            "[[listener]]\nuids = [-1]",
            "`listener[0].uids[0]` = -1",
            "0 to 4294967295",
        ),
        (
            "[[listener]]\nwrite = [\"9-1\"]",
            "`listener[0].write[0]` = \"9-1\"",
            "\"1-99\"",
        ),
        (
            "[[listener]]\nread = [-1]",
            "`listener[0].read[0]` = -1",
            "\"1-99\"",
        ),
        (
            "[[listener]]\nclasses = [8]",
            "`listener[0].classes[0]` = 8",
            "0 to 7",
        ),
        (
            "[[listener]]\nmemory = \"1 MiB\"",
            "`listener[0].memory` = \"1 MiB\"",
            "24 MiB",
        ),
        (
            "[[listener]]\nmemory = \"some\"",
            "`listener[0].memory` = \"some\"",
            "\"64 MiB\"",
        ),
        (
            "[[listener]]\nsessions = 0",
            "`listener[0].sessions` = 0",
            "1 to",
        ),
        (
            "[[listener]]\nendpoints = 0",
            "`listener[0].endpoints` = 0",
            "1 to",
        ),
        (
            "[[listener]]\nidentity = \"a\\nb\"",
            "`listener[0].identity`",
            "control characters",
        ),
        (
            "[limits]\nmax_message = 0",
            "`limits.max_message` = 0",
            "1 B to",
        ),
        (
            "[limits]\nmax_message = \"2 GiB\"",
            "`limits.max_message` = \"2 GiB\"",
            "1024 MiB",
        ),
        ("[limits]\ntx_bytes = 1", "`limits.tx_bytes` = 1", "64 KiB"),
        ("[limits]\nrx_bytes = 1", "`limits.rx_bytes` = 1", "64 KiB"),
        (
            "[limits]\nreassemblies = 0",
            "`limits.reassemblies` = 0",
            "1 to 65536",
        ),
        (
            "[limits]\nreassembly_timeout_ms = 0",
            "`limits.reassembly_timeout_ms` = 0",
            "milliseconds",
        ),
        (
            "[limits]\nlinger_ms = 3600001",
            "`limits.linger_ms` = 3600001",
            "0 to 3600000 milliseconds",
        ),
        (
            "[balance]\nhigh_percent = 101",
            "`balance.high_percent` = 101",
            "1 to 100 per cent",
        ),
        (
            "[balance]\nhigh_percent = 60",
            "`balance.low_percent`",
            "not below `high_percent`, 60",
        ),
        (
            "[balance]\nhold_seconds = 0",
            "`balance.hold_seconds` = 0",
            "1 to 86400 seconds",
        ),
        (
            "[mapping]\nfast_frugal = [\"xdp\", \"rdma\"]",
            "`mapping.fast_frugal[1]` = \"rdma\"",
            "known are udp, xdp, dpdk, fabric",
        ),
        (
            "[mapping]\nhold_down_ms = 3600001",
            "`mapping.hold_down_ms` = 3600001",
            "0 to 3600000 milliseconds",
        ),
        (
            "[[mapping.rule]]\ntenants = [\"press\"]",
            "`mapping.rule[0].datapaths`",
            "best first",
        ),
        (
            "[[mapping.rule]]\ndatapaths = [\"udp\"]\n[[mapping.rule]]\ndatapaths = [\"xdp\", \"rdma\"]",
            "`mapping.rule[1].datapaths[1]` = \"rdma\"",
            "known are udp, xdp, dpdk, fabric",
        ),
        (
            "[[mapping.rule]]\nclasses = [7, 8]\ndatapaths = [\"udp\"]",
            "`mapping.rule[0].classes[1]` = 8",
            "0 to 7",
        ),
        (
            "[[mapping.rule]]\npeers = [\"192.0.2.1\"]\ndatapaths = [\"udp\"]",
            "`mapping.rule[0].peers`",
            "",
        ),
        (
            "[datapath.RDMA]",
            "`datapath.RDMA`",
            "udp and xdp are built in",
        ),
        (
            "[datapath.lossy]\nrates = { loss = 1 }",
            "`datapath.lossy.rates`",
            "options of plugins have no tables",
        ),
        (
            "[datapath.lossy]\nlanes = [1]",
            "`datapath.lossy.lanes`",
            "there is no lane 1",
        ),
        (
            "datapath.a.x = 1\ndatapath.b.x = 1\ndatapath.c.x = 1\ndatapath.d.x = 1\ndatapath.e.x = 1\ndatapath.f.x = 1\ndatapath.g.x = 1\ndatapath.last.x = 1",
            "`datapath.last`",
            "a node announces 8 at most",
        ),
        (
            "[node]\nplugins = \"datapaths\"",
            "`node.plugins` = \"datapaths\"",
            "not absolute",
        ),
        (
            "[datapath.udp]\nframes = 0",
            "`datapath.udp.frames` = 0",
            "1 to 1048576",
        ),
        (
            "[datapath.udp]\nframe_size = \"64 KiB\"",
            "`datapath.udp.frame_size`",
            "1 to 65507",
        ),
        (
            "[datapath.udp]\npeers = 0",
            "`datapath.udp.peers` = 0",
            "1 to 65535",
        ),
        (
            "[datapath.udp]\nsegmentation = 1",
            "`datapath.udp.segmentation` = 1",
            "true or false",
        ),
        (
            "[datapath.xdp]",
            "`datapath.xdp`",
            "missing field `interface`",
        ),
        (
            "[datapath.xdp]\ninterface = \"\"",
            "`datapath.xdp.interface` = \"\"",
            "ip link",
        ),
        (
            "[datapath.xdp]\ninterface = \"eth0\"\nmode = \"fast\"",
            "`datapath.xdp.mode` = \"fast\"",
            "`auto`, `native`, `generic`",
        ),
        (
            "[datapath.xdp]\ninterface = \"eth0\"\nqueues = \"3-1\"",
            "`datapath.xdp.queues` = \"3-1\"",
            "\"0-3\"",
        ),
        (
            "[datapath.xdp]\ninterface = \"eth0\"\nrx_ring = 1000",
            "`datapath.xdp.rx_ring` = 1000",
            "a power of two",
        ),
        (
            "[datapath.xdp]\ninterface = \"eth0\"\ntx_frames = 0",
            "`datapath.xdp.tx_frames` = 0",
            "1 to 65536",
        ),
        (
            "[admin]\nsocket = \"admin\"",
            "`admin.socket` = \"admin\"",
            "the whole path",
        ),
        (
            "[admin]\nsocket = \"/\"",
            "`admin.socket` = \"/\"",
            "the whole path",
        ),
        (
            "[metrics]\naddress = \"9464\"",
            "`metrics.address` = \"9464\"",
            "127.0.0.1:9464",
        ),
        (
            "[log]\nlevel = \"loud\"",
            "`log.level` = \"loud\"",
            "off, error, warn",
        ),
        (
            "[log]\nlevel = \"loud=very\"",
            "`log.level` = \"loud=very\"",
            "off, error, warn",
        ),
        (
            "[log]\nformat = \"xml\"",
            "`log.format` = \"xml\"",
            "`text` or `json`",
        ),
        (
            "[clock]\nptp4l = \"ptp4l\"",
            "`clock.ptp4l` = \"ptp4l\"",
            "/var/run/ptp4l",
        ),
        (
            "[clock]\nptp4l = \"/\"",
            "`clock.ptp4l` = \"/\"",
            "the whole path",
        ),
        (
            "[clock]\nchrony = \"localhost\"",
            "`clock.chrony` = \"localhost\"",
            "127.0.0.1:323",
        ),
        (
            "[clock]\nchrony = \"/\"",
            "`clock.chrony` = \"/\"",
            "the whole path",
        ),
        (
            "[clock]\nptp_domain = 256",
            "`clock.ptp_domain` = 256",
            "0 to 255",
        ),
        (
            "[clock]\ndevice = \"ptp0\"",
            "`clock.device` = \"ptp0\"",
            "/dev/ptp0",
        ),
        ("[node", "takt.toml:1:6: ", ""),
    ];
    for (text, place, remedy) in cases {
        let complaint = fault(text);
        assert!(complaint.contains(place), "{text}\n{complaint}");
        assert!(complaint.contains(remedy), "{text}\n{complaint}");
        assert!(complaint.starts_with("takt.toml:"), "{complaint}");
    }
    let complaint = fault(&format!("[admin]\nsocket = \"/{long}\""));
    assert!(complaint.contains("131 bytes long"), "{complaint}");
}

#[test]
fn a_file_that_is_named_and_not_there_is_an_error_and_the_default_one_is_not() {
    let error = Settings::load(Some(Path::new("/nonexistent/takt.toml"))).expect_err("not there");
    assert!(
        error.to_string().contains("/nonexistent/takt.toml"),
        "{error}"
    );
    assert!(error.to_string().contains("--config"), "{error}");
    if !Path::new(DEFAULT_FILE).exists() {
        let settings = Settings::load(None).expect("defaults");
        assert_eq!(
            everything(&settings),
            everything(&parse("").expect("empty"))
        );
    }
}

#[test]
fn a_file_that_is_no_text_is_an_error() {
    let path = std::env::temp_dir().join(format!("takt-t-{}-binary.toml", std::process::id()));
    std::fs::write(&path, [0xff, 0xfe, 0x00]).expect("write");
    let error = Settings::load(Some(&path)).expect_err("binary");
    let _ = std::fs::remove_file(&path);
    assert!(matches!(error, ConfigError::Read { .. }), "{error}");
}

#[test]
fn nodes_that_introduce_others_are_peers_once() {
    let key = "5Ub7mbXTjJ5OZlKYFpOIoTLdnDIrKZkDKhAVlfgqfGE=";
    let text = format!(
        "[[peer]]\naddress = \"10.0.0.1\"\nkey = \"{key}\"\n[security]\ngroup_key_file = \"/k\"\n\
         [scout]\nrendezvous = [\"10.0.0.1\", \"10.0.0.2:7500\"]\nintroduce = true\n"
    );
    let settings = Settings::parse(Path::new("x"), &text)
        .expect("good")
        .runtime;
    let peers = settings
        .peers
        .iter()
        .map(|peer| (peer.address.to_string(), peer.key.is_some()));
    assert_eq!(
        peers.collect::<Vec<_>>(),
        [
            ("10.0.0.1:7400".to_owned(), true),
            ("10.0.0.2:7500".to_owned(), false)
        ]
    );
    assert_eq!(settings.meeting.rendezvous.len(), 2);
    assert!(settings.meeting.introduce && settings.scout.is_none());
}

#[test]
fn schedules_are_read_from_their_files_and_what_is_not_done_is_refused_by_name() {
    let directory = takt_testing::Directory::new();
    let load = |schedule: &str, more: &str| {
        let file = directory.join("line");
        std::fs::write(&file, schedule).expect("written");
        let text = format!(
            "[node]\nstate = \"/s\"\n[[schedule]]\ndatapath = \"udp\"\nfile = \"{}\"\n{more}",
            file.display()
        );
        let path = directory.join("takt.toml");
        std::fs::write(&path, text).expect("written");
        Settings::load(Some(&path)).map_err(|error| error.to_string())
    };
    let taprio = |more: &str| {
        format!(
            "tc qdisc replace dev eth0 parent root taprio num_tc 2 map 0 0 1 1 0 0 0 1 0 0 0 0 0 0 0 0 \
             queues 1@0 1@1 base-time 0 sched-entry S 01 500000 sched-entry S 02 500000 clockid CLOCK_TAI {more}"
        )
    };
    let settings = load(
        &taprio(""),
        "rate = 5_000_000\nvlan = true\nother_traffic = \"auto\"\n",
    )
    .expect("good");
    assert_eq!(settings.state.as_deref(), Some(Path::new("/s")));
    let [schedule] = &settings.runtime.schedules[..] else {
        panic!("{:?}", settings.runtime.schedules);
    };
    assert_eq!(
        (schedule.datapath.as_str(), schedule.rate_bps),
        ("udp", 5_000_000)
    );
    assert!(schedule.vlan);
    assert_eq!(schedule.other_traffic, OtherTraffic::Auto);
    let refused = load(&taprio(""), "other_traffic = \"htb\"\n").expect_err("no such");
    assert!(refused.contains("\"taprio-offload\""), "{refused}");
    assert_eq!(schedule.classes.numbers(), [0, 0, 1, 1, 0, 0, 0, 1]);
    assert_eq!(schedule.schedule.cycle_time_ns, 1_000_000);
    // Class 1 is open in the second half of each millisecond.
    let stream = |offset: &str| {
        format!(
            "[[listener]]\nidentity = \"press\"\n[[listener.stream]]\nname = \"axis\"\nclass = 3\nchannel = 1\nframe = 100\nperiod = \"1ms\"\noffset = \"{offset}\"\n"
        )
    };
    load(&taprio(""), &stream("600us")).expect("fits");
    let (closed, late) = (stream("400us"), stream("999.999us"));
    let slow = format!("rate = 1_000_000\n{late}");
    let credit = |slope: &str| {
        format!(
            "cycle-time = \"1ms\"\n[[entry]]\ngates = [6]\ninterval = \"1ms\"\n[selection.6]\nalgorithm = \"credit-based\"\nidle-slope = {slope}\n"
        )
    };
    load(
        &credit("100_000_000"),
        "rate = 100_000_000\n[datapath.udp]\nlanes = [1]\n[[lane]]\n[[lane]]\n",
    )
    .expect("good");
    for (text, more, named) in [
        (
            taprio(""),
            closed.as_str(),
            "takt.toml:8:1: `listener[0].stream[0]`: declared streams do not fit the schedule of datapath `udp`: stream `axis` of tenant `press`: a launch time at 400 µs of the cycle finds class 1 closed: it is open from 500 µs to 1 ms",
        ),
        (
            taprio(""),
            slow.as_str(),
            "its last frame may end at 1.991999 ms",
        ),
        (credit("100"), "rate = 0\n", "`schedule[0].rate`"),
        (credit("100_000_001"), "rate = 100_000_000\n", "idle slopes"),
        (credit("0"), "rate = 100_000_000\n", "idle slope of 0"),
        (taprio(""), "[[lane]]\n[[lane]]\n", "2 lanes carry"),
        (
            taprio(""),
            "[datapath.udp]\nlanes = [0, 2]\n[[lane]]\n[[lane]]\n[[lane]]\n",
            "`schedule[0].datapath`",
        ),
        (
            taprio("cycle-time 900000"),
            "",
            "entry 1 overlaps the next cycle: 100 µs of its 500 µs are cut",
        ),
        (
            taprio(""),
            "rate = 500_000\n",
            "the cycle of 1 ms is shorter than the smallest frame",
        ),
        (taprio("fp E P"), "", "fp:"),
        (
            taprio("flags 0x2").replace("clockid CLOCK_TAI", ""),
            "",
            "flags 0x2",
        ),
        (taprio("flags 0x1 txtime-delay 5"), "", "txtime-delay"),
        (
            taprio("").replace("CLOCK_TAI", "CLOCK_REALTIME"),
            "",
            "clockid",
        ),
        (
            taprio("").replace("map 0 0 1 1", "map 0 0 3 1"),
            "",
            "map: priority 2",
        ),
        ("cycle-time = \"1ms\"".into(), "", "takt schedule check"),
        ("nonsense".into(), "", "`schedule[0].file`"),
        (
            taprio(""),
            "[[schedule]]\ndatapath = \"udp\"\nfile = \"x\"\n",
            "`schedule[1].datapath`",
        ),
        (
            taprio(""),
            "[[schedule]]\ndatapath = \"eth0\"\nfile = \"x\"\n",
            "`schedule[1].datapath`",
        ),
    ] {
        let refused = load(&text, more).expect_err(&text);
        assert!(refused.contains(named), "{named}: {refused}");
    }
}
