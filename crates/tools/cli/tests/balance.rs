//! `takt balance` on hosts of a lab: flows go where they are told while they flow, and none is reordered.
//!
//! Needs root.

mod support;

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde_json::Value;
use support::takt;
use takt_balance::table::Target;
use takt_balance_xdp::beat::PORT;
use takt_balance_xdp::look::Look;
use takt_capture::socket::PromptSocket;
use takt_lab::{Host, Lab, LabConfig};
use takt_testing::{Directory, PATIENCE, until, until_true};
use takt_wire::ethernet::MacAddress;

const SERVICE: &str = "10.99.0.1:5004";
/// Longer than any path of a busy machine differs from another.
const DELTA: &str = "60ms";
/// Longer than that.
const PAUSE: Duration = Duration::from_millis(90);
const FLOWS: u64 = 12;
/// Bursts of numbered frames of so many streams, a pause after each: tells the last number.
const STREAMS: &str = "
import socket, struct, sys, time
flows, pause = int(sys.argv[1]), float(sys.argv[2])
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind(('eth0', 0))
own = out.getsockname()[4]
number = 0
while True:
    for _ in range(8):
        number += 1
        for flow in range(flows):
            to = bytes([0x91, 0xe0, 0xf0, 0, 0, flow])
            out.send(to + own + struct.pack('!HQQ30x', 0x22f0, flow, number))
    print(number, flush=True)
    time.sleep(pause)
";

fn ethtool(namespace: &str, device: &str, what: &[&str]) {
    let done = Command::new("ip")
        .args(["netns", "exec", namespace, "ethtool", "-K", device])
        .args(what)
        .output()
        .expect("ip");
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{text}");
}

fn ip(host: &Host, arguments: &[&str]) -> String {
    let done = host
        .command("ip")
        .expect("the host")
        .args(arguments)
        .output();
    let done = done.expect("ip");
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{arguments:?}: {text}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// A client, a host that balances and a neighbour. Both have the service's address.
struct Site {
    lab: Lab,
}

impl Site {
    fn new() -> Self {
        let config = LabConfig {
            hosts: 3,
            ..LabConfig::default()
        };
        let lab = Lab::scratch(&config).expect("a lab: needs root");
        let site = Self { lab };
        let switch = format!("{}-switch", site.lab.name());
        for host in site.lab.hosts() {
            // veth: redirected frames need NAPI at the far end, and checksums that are there.
            ethtool(&switch, host.name(), &["gro", "on"]);
            ethtool(host.namespace(), "eth0", &["gro", "on", "tx", "off"]);
        }
        for host in [site.balancer(), site.neighbour()] {
            ip(host, &["address", "add", "10.99.0.1/32", "dev", "lo"]);
        }
        let by = site.balancer().address().to_string();
        ip(site.client(), &["route", "add", "10.99.0.1", "via", &by]);
        // The kernel lets new packets overtake those that waited for the answer to its question.
        let mac = MacAddress(site.balancer().mac()).to_string();
        ip(
            site.client(),
            &[
                "neighbour",
                "replace",
                &by,
                "lladdr",
                &mac,
                "dev",
                "eth0",
                "nud",
                "permanent",
            ],
        );
        site
    }

    fn client(&self) -> &Host {
        self.lab.host(0)
    }

    fn balancer(&self) -> &Host {
        self.lab.host(1)
    }

    fn neighbour(&self) -> &Host {
        self.lab.host(2)
    }

    /// Pulls a host's cable.
    fn unplug(&self, host: &Host) {
        let switch = format!("{}-switch", self.lab.name());
        let done = Command::new("ip")
            .args(["-n", &switch, "link", "set", host.name(), "down"])
            .status();
        assert!(done.expect("ip").success());
    }

    /// A socket of the client.
    fn client_socket(&self) -> UdpSocket {
        let _inside = self.client().enter().expect("the host");
        UdpSocket::bind("0.0.0.0:0").expect("a socket")
    }

    /// What comes to the balancer and to the neighbour, and the service there.
    fn services(&self) -> [(PromptSocket, UdpSocket); 2] {
        [self.balancer(), self.neighbour()].map(|host| {
            let _inside = host.enter().expect("the host");
            let socket = PromptSocket::open("eth0").expect("a packet socket");
            (socket, UdpSocket::bind(SERVICE).expect("the address"))
        })
    }

    /// Starts `takt` on a host.
    fn start(&self, host: &Host, arguments: &[&str]) -> Running {
        let program = takt(&[]);
        let mut child = host
            .command(program.get_program())
            .expect("the host")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("takt starts");
        let err = child.stderr.take().expect("piped");
        let (to, errors) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(err).lines().map_while(Result::ok) {
                eprintln!("{line}");
                // Read on: nobody may ask for it.
                let _ = to.send(line);
            }
        });
        let out = child.stdout.take().expect("piped");
        let (to, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let Ok(line) = serde_json::from_str::<Value>(&line) else {
                    return;
                };
                if to.send(line).is_err() {
                    return;
                }
            }
        });
        Running {
            child,
            lines,
            errors,
        }
    }

    /// Starts balancing; returns when packets are balanced.
    fn balance(&self, more: &[&str]) -> Running {
        let mut arguments = vec![
            "balance",
            "run",
            "-i",
            "eth0",
            "--json",
            "--delta",
            DELTA,
            "--bundles",
            "64",
            "--service",
            "udp:10.99.0.1:5004",
        ];
        arguments.extend(more);
        let running = self.start(self.balancer(), &arguments);
        running.line("ready");
        running
    }

    fn look(&self) -> Look {
        let _inside = self.balancer().enter().expect("the host");
        Look::at("eth0").expect("balanced")
    }

    /// The same, when the only neighbour lives and the way there is known.
    fn look_at_pair(&self) -> Look {
        let look = self.look();
        let lives = || look.status().expect("status").neighbours[0].alive;
        until_true("the neighbour lives", lives);
        look
    }
}

/// A process that ends with its test.
struct Running {
    child: Child,
    lines: Receiver<Value>,
    /// What it says on standard error.
    errors: Receiver<String>,
}

impl Running {
    /// The next line of this event.
    fn line(&self, event: &str) -> Value {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("no line {event}: {error}"));
            if line["event"] == event {
                return line;
            }
        }
    }

    /// Waits until it says this on standard error.
    fn says(&self, part: &str) {
        until_true(part, || {
            let line = self.errors.recv_timeout(PATIENCE).expect("a line");
            line.contains(part)
        });
    }

    /// Asks it to end; its last line.
    fn end(mut self) -> Value {
        let process = Pid::from_child(&self.child);
        rustix::process::kill_process(process, Signal::TERM).expect("our own child");
        let end = self.line("end");
        assert!(self.child.wait().expect("waited").success());
        end
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A packet that a host got: its flow and number, and when.
#[derive(Clone, Copy, Debug)]
struct Got {
    host: usize,
    flow: u64,
    number: u64,
    at_ns: i64,
}

/// Where the flow and the number are in a packet that is one of ours.
type Payload = fn(&[u8]) -> Option<usize>;

/// Flows through the service, and who got what.
#[derive(Default)]
struct Traffic {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    got: Arc<Mutex<Vec<Got>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// Bursts of numbered packets of all flows, a pause after each.
    fn start(site: &Site) -> Self {
        let mut traffic = Self::default();
        for (number, host) in [(1, site.balancer()), (2, site.neighbour())] {
            let inside = host.enter().expect("the host");
            let socket = PromptSocket::open("eth0").expect("a packet socket");
            // Somebody is there: nothing is answered by ICMP.
            let service = UdpSocket::bind(SERVICE).expect("the service's address");
            drop(inside);
            let payload = |bytes: &[u8]| {
                let to_service = bytes.get(23) == Some(&17)
                    && bytes.get(36..38) == Some(&5004_u16.to_be_bytes()[..]);
                to_service.then_some(42)
            };
            traffic.receive(number, socket, Some(service), payload);
        }
        let inside = site.client().enter().expect("the host");
        let sockets: Vec<_> = (0..FLOWS)
            .map(|_| {
                let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
                socket.connect(SERVICE).expect("a route");
                socket
            })
            .collect();
        drop(inside);
        let (stop, sent) = (Arc::clone(&traffic.stop), Arc::clone(&traffic.sent));
        traffic.threads.push(std::thread::spawn(move || {
            let mut number = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..8 {
                    number += 1;
                    for (flow, socket) in (0_u64..).zip(&sockets) {
                        let mut bytes = [0; 16];
                        bytes[..8].copy_from_slice(&flow.to_be_bytes());
                        bytes[8..].copy_from_slice(&number.to_be_bytes());
                        // A host without the service may have answered.
                        let _ = socket.send(&bytes);
                    }
                }
                sent.store(number, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
        }));
        traffic
    }

    /// The same of streams of AVTP without IP. The neighbour's are looked at within VXLAN, as they come to it: its device of that
    /// kind has a queue for each processor, and what follows on another one may overtake there.
    fn of_streams(site: &Site) -> Self {
        fn is_stream(frame: &[u8]) -> bool {
            frame.starts_with(&[0x91, 0xe0, 0xf0, 0, 0])
                && frame.get(12..14) == Some(&[0x22, 0xf0][..])
        }
        let here = |bytes: &[u8]| is_stream(bytes).then_some(14);
        // The switch floods what the client sends to all hosts.
        let by_vxlan = |bytes: &[u8]| {
            let to_port = bytes.get(36..38) == Some(&4789_u16.to_be_bytes()[..]);
            let inner = bytes.get(50..).filter(|_| to_port)?;
            is_stream(inner).then_some(64)
        };
        let mut traffic = Self::default();
        let ends: [(_, _, Payload); 2] =
            [(1, site.balancer(), here), (2, site.neighbour(), by_vxlan)];
        for (number, host, payload) in ends {
            let inside = host.enter().expect("the host");
            let socket = PromptSocket::open("eth0").expect("a packet socket");
            drop(inside);
            traffic.receive(number, socket, None, payload);
        }
        let mut sender = site
            .client()
            .command("python3")
            .expect("the host")
            .args(["-c", STREAMS, &FLOWS.to_string()])
            .arg(PAUSE.as_secs_f64().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let out = sender.stdout.take().expect("piped");
        let (stop, sent) = (Arc::clone(&traffic.stop), Arc::clone(&traffic.sent));
        traffic.threads.push(std::thread::spawn(move || {
            for line in BufReader::new(out).lines() {
                let line = line.expect("a line");
                sent.store(line.parse().expect("a number"), Ordering::Relaxed);
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            sender.kill().expect("our own child");
            sender.wait().expect("waited");
        }));
        traffic
    }

    /// Notes what comes to a socket: flow and number, at this place of a packet that is one of ours.
    fn receive(
        &mut self,
        host: usize,
        mut socket: PromptSocket,
        service: Option<UdpSocket>,
        payload: Payload,
    ) {
        let (stop, got) = (Arc::clone(&self.stop), Arc::clone(&self.got));
        self.threads.push(std::thread::spawn(move || {
            let _service = service;
            // The kernel stamps packets from some time after the socket was opened on: those before have the times at which they
            // were worked on, which may be later than the stamps of those behind them.
            let mut latest_ns = i64::MIN;
            while !stop.load(Ordering::Relaxed) {
                let mut packets = Vec::new();
                let take = |meta: &takt_capture::Meta, bytes: &[u8]| {
                    let word = |at: usize| {
                        let word = bytes.get(at..at + 8)?;
                        Some(u64::from_be_bytes(word.try_into().ok()?))
                    };
                    latest_ns = latest_ns.max(meta.utc_ns);
                    if let Some(at) = payload(bytes)
                        && let (Some(flow), Some(number)) = (word(at), word(at + 8))
                    {
                        packets.push(Got {
                            host,
                            flow,
                            number,
                            at_ns: latest_ns,
                        });
                    }
                };
                socket.take(take).expect("captured");
                got.lock().expect("no panic").append(&mut packets);
                std::thread::sleep(Duration::from_micros(500));
            }
        }));
    }

    fn got(&self) -> Vec<Got> {
        self.got.lock().expect("no panic").clone()
    }

    /// Waits until a host has got a packet of every flow that was sent from now on.
    fn until_all_reach(&self, host: usize) {
        let from = self.sent.load(Ordering::Relaxed);
        until_true(&format!("all flows reach host {host}"), || {
            let got = self.got();
            (0..FLOWS).all(|flow| {
                let mut of = got.iter().filter(|got| got.flow == flow);
                of.any(|got| got.host == host && got.number > from)
            })
        });
    }

    /// Ends it. Every flow's packets came in their order, by the kernel's times.
    fn end(mut self) -> Vec<Got> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("no panic");
        }
        let mut got = self.got();
        // Stable: within a host as they came.
        got.sort_by_key(|got| got.at_ns);
        for flow in 0..FLOWS {
            let packets: Vec<_> = got.iter().filter(|got| got.flow == flow).collect();
            assert!(!packets.is_empty(), "flow {flow}");
            for pair in packets.windows(2) {
                assert!(pair[0].number < pair[1].number, "{pair:?}");
            }
        }
        got
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn bundles_are_moved_while_they_flow_and_no_flow_is_reordered() {
    let site = Site::new();
    let neighbour = site.neighbour().address().to_string();
    let running = site.balance(&["--neighbour", &neighbour, "--no-beats"]);
    let traffic = Traffic::start(&site);
    traffic.until_all_reach(1);
    let look = site.look_at_pair();
    let all = |target: Target| {
        for bundle in 0..64 {
            look.assign(bundle, Some(target)).expect("there");
        }
    };
    // From anywhere to anywhere, in the middle of bursts or not.
    let mut seed = 7_u32;
    for _ in 0..40 {
        for bundle in 0..64 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let target = match seed >> 16 & 3 {
                core @ (0 | 1) => Target::Core(core as u16),
                _ => Target::Neighbour(0),
            };
            look.assign(bundle, Some(target)).expect("there");
        }
        std::thread::sleep(PAUSE / 3);
    }
    all(Target::Neighbour(0));
    traffic.until_all_reach(2);
    all(Target::Core(1));
    traffic.until_all_reach(1);
    let sent = traffic.sent.load(Ordering::Relaxed);
    traffic.end();
    // On a busy machine a core's queue may have had no room; what it lost was sent to it.
    for core in look.status().expect("status").cores {
        assert!(core.lost + core.waiting <= core.packets, "{core:?}");
    }
    let end = running.end();
    let packets = &end["packets"];
    assert!(packets["moves"].as_u64() >= Some(FLOWS), "{end}");
    for nothing in ["fenced", "refused_wishes", "no_room", "other_queue"] {
        assert_eq!(packets[nothing], 0, "{nothing}: {end}");
    }
    assert!(packets["to_cores"].as_u64() >= Some(sent), "{end}");
}

#[test]
fn flows_leave_a_neighbour_that_is_killed_and_go_back_to_none_that_is_dead() {
    let site = Site::new();
    let (here, neighbour) = (site.balancer().address(), site.neighbour().address());
    let directory = Directory::new();
    let key = directory.write_secret("key", [9; 32]);
    let neighbour = neighbour.to_string();
    // Long enough for a busy machine.
    let running = site.balance(&["--neighbour", &neighbour, "--silence", "1s", "--key", &key]);
    let traffic = Traffic::start(&site);
    traffic.until_all_reach(1);
    let here = here.to_string();
    // Whoever has another key does not live.
    let other = directory.write_secret("other", [8; 32]);
    let forger = site.start(
        site.neighbour(),
        &["balance", "beat", &here, "--key", &other],
    );
    assert_eq!(running.line("other-key")["neighbour"], 0);
    let beats = site.start(site.neighbour(), &["balance", "beat", &here, "--key", &key]);
    assert_eq!(running.line("alive")["neighbour"], 0);
    let look = site.look_at_pair();
    for bundle in 0..64 {
        look.assign(bundle, Some(Target::Neighbour(0)))
            .expect("there");
    }
    traffic.until_all_reach(2);
    drop(beats);
    assert_eq!(running.line("dead")["neighbour"], 0);
    let dead = look.assign(0, Some(Target::Neighbour(0)));
    let dead = dead.expect_err("refused").to_string();
    assert!(dead.contains("neighbour 0 is dead"), "{dead}");
    traffic.until_all_reach(1);
    // Nor does one get any whose cable is pulled.
    let beats = site.start(site.neighbour(), &["balance", "beat", &here, "--key", &key]);
    assert_eq!(running.line("alive")["neighbour"], 0);
    let look = site.look_at_pair();
    for bundle in 0..64 {
        look.assign(bundle, Some(Target::Neighbour(0)))
            .expect("there");
    }
    traffic.until_all_reach(2);
    site.unplug(site.neighbour());
    assert_eq!(running.line("dead")["neighbour"], 0);
    traffic.until_all_reach(1);
    let got = traffic.end();
    assert!(got.iter().any(|got| got.host == 2));
    drop((beats, forger));
    let end = running.end();
    assert_eq!(end["neighbours"][0]["alive"], false);
    assert_eq!(end["neighbours"][0]["bundles"], 0);
    assert!(end["beats_refused"].as_u64() > Some(0), "{end}");
    assert!(end["beats"][0].as_u64() > Some(0), "{end}");
}

#[test]
fn what_its_device_would_drop_goes_to_no_neighbour() {
    let site = Site::new();
    let neighbour = site.neighbour().address().to_string();
    let switch = format!("{}-switch", site.lab.name());
    // The kernel hands redirected frames to the other end of a veth only with NAPI there.
    let gro = |how: &str| ethtool(&switch, site.balancer().name(), &["gro", how]);
    let running = site.balance(&["--neighbour", &neighbour, "--no-beats"]);
    let traffic = Traffic::start(&site);
    traffic.until_all_reach(1);
    let look = site.look_at_pair();
    let to_neighbour = || {
        for bundle in 0..64 {
            look.assign(bundle, Some(Target::Neighbour(0)))?;
        }
        Ok::<_, takt_balance_xdp::Error>(())
    };
    to_neighbour().expect("there");
    traffic.until_all_reach(2);
    gro("off");
    assert_eq!(running.line("not-taken")["neighbour"], 0);
    traffic.until_all_reach(1);
    let refused = to_neighbour().expect_err("refused").to_string();
    assert!(refused.contains("neighbour 0 is dead"), "{refused}");
    gro("on");
    assert_eq!(running.line("reachable")["neighbour"], 0);
    until_true("it is taken again", || to_neighbour().is_ok());
    traffic.until_all_reach(2);
    traffic.end();
    running.end();
    // And from the beginning.
    gro("off");
    let running = site.balance(&["--neighbour", &neighbour, "--no-beats"]);
    assert_eq!(running.line("not-taken")["neighbour"], 0);
    running.end();
}

/// A neighbour by VXLAN, and what `takt balance` calls it.
fn tunnel(to: &Host) -> String {
    let mac = "02:00:00:00:42:03";
    ip(
        to,
        &[
            "link", "add", "vx42", "address", mac, "type", "vxlan", "id", "42", "dstport", "4789",
            "dev", "eth0",
        ],
    );
    ip(to, &["link", "set", "vx42", "up"]);
    format!("{},vni=42,mac={mac}", to.address())
}

#[test]
fn streams_without_ip_are_moved_between_processors_and_neighbours_and_none_is_reordered() {
    let site = Site::new();
    let neighbour = tunnel(site.neighbour());
    let running = site.balance(&[
        "--service",
        "stream:*",
        "--neighbour",
        &neighbour,
        "--no-beats",
    ]);
    let traffic = Traffic::of_streams(&site);
    traffic.until_all_reach(1);
    let look = site.look_at_pair();
    let all = |target: Target| {
        for bundle in 0..64 {
            look.assign(bundle, Some(target)).expect("there");
        }
    };
    for target in [Target::Core(1), Target::Neighbour(0), Target::Core(0)] {
        all(target);
        let host = match target {
            Target::Core(_) => 1,
            Target::Neighbour(_) => 2,
        };
        traffic.until_all_reach(host);
    }
    traffic.end();
    let end = running.end();
    let packets = &end["packets"];
    assert!(packets["to_neighbours"].as_u64() >= Some(FLOWS), "{end}");
    assert!(packets["moves"].as_u64() > Some(0), "{end}");
    // The kernel takes them for frames of its device.
    let came = ip(site.neighbour(), &["-j", "-s", "link", "show", "vx42"]);
    let came: Value = serde_json::from_str(&came).expect("JSON");
    assert!(
        came[0]["stats64"]["rx"]["packets"].as_u64() >= Some(FLOWS),
        "{came}"
    );
    for nothing in ["fenced", "refused_wishes", "no_room", "other_queue"] {
        assert_eq!(packets[nothing], 0, "{nothing}: {end}");
    }
}

#[test]
fn by_vxlan_a_neighbour_of_the_kernels_own_device_gets_the_flows() {
    let site = Site::new();
    let to = site.neighbour();
    let neighbour = tunnel(to);
    // The client is not reached by that device.
    for filter in ["all", "vx42"] {
        let path = format!("net.ipv4.conf.{filter}.rp_filter=0");
        let set = to
            .command("sysctl")
            .expect("the host")
            .args(["-qw", &path])
            .status();
        assert!(set.expect("sysctl").success());
    }
    let running = site.balance(&["--neighbour", &neighbour, "--no-beats"]);
    let inside = to.enter().expect("the host");
    let service = UdpSocket::bind(SERVICE).expect("the service's address");
    service
        .set_read_timeout(Some(Duration::from_millis(100)))
        .expect("set");
    drop(inside);
    let client = site.client_socket();
    let look = site.look_at_pair();
    for bundle in 0..64 {
        look.assign(bundle, Some(Target::Neighbour(0)))
            .expect("there");
    }
    let (got, from) = until("the neighbour gets it", || {
        client
            .send_to(b"through the tunnel", SERVICE)
            .expect("sent");
        let mut bytes = [0; 64];
        let (length, from) = service.recv_from(&mut bytes).ok()?;
        Some((bytes[..length].to_vec(), from))
    });
    assert_eq!(got, b"through the tunnel");
    assert_eq!(from.port(), client.local_addr().expect("bound").port());
    let end = running.end();
    assert!(end["packets"]["to_neighbours"].as_u64() > Some(0), "{end}");
}

/// A camera's flow that is late now and then, and a rule that has it leave.
const LATE: &str = r#"
[[flow]]
name = "camera"
match = "udp * > 10.99.0.1:5004"
period = "100ms"
max-delay = "40ms"

[[rule]]
name = "camera late"
flow = "udp * > 10.99.0.1:5004"
when = "delay > 20ms"
do = ["control"]
"#;

/// Beats, then beats that are late by less than half a period, again and again, while `look` goes on.
fn beside_late_beats(client: &UdpSocket, look: impl FnOnce()) {
    /// Also when what goes on beside it panics.
    struct Stops<'a>(&'a AtomicBool);
    impl Drop for Stops<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| {
            for number in 0_u32.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                client.send_to(b"frame", SERVICE).expect("sent");
                let late = if number % 10 == 9 { 40 } else { 0 };
                std::thread::sleep(Duration::from_millis(100 + late));
            }
        });
        look();
    });
}

#[test]
fn a_flow_that_comes_late_leaves_its_processor() {
    let site = Site::new();
    let directory = Directory::new();
    let rules = directory.write("rules.toml", LATE);
    let running = site.balance(&["--rules", &rules]);
    let inside = site.balancer().enter().expect("the host");
    let service = UdpSocket::bind(SERVICE).expect("the service's address");
    drop(inside);
    beside_late_beats(&site.client_socket(), || {
        let line = running.line("leaves");
        assert_eq!(line["rule"], "camera late");
        let look = site.look();
        until_true("the flow is somewhere else", || {
            let status = look.status().expect("status");
            status.cores.iter().filter(|core| core.packets > 0).count() == 2
        });
    });
    drop(service);
    let end = running.end();
    assert!(end["moves_to_cores"].as_u64() > Some(0), "{end}");
}

/// Writes a file of rules, at once: nobody reads half of it.
fn replace(directory: &Directory, text: String) -> String {
    let whole = directory.write("whole.toml", text);
    let path = directory.text("rules.toml");
    std::fs::rename(whole, &path).expect("renamed");
    path
}

#[test]
fn changed_rules_are_in_force_without_a_new_start_and_faulty_ones_change_nothing() {
    let site = Site::new();
    let directory = Directory::new();
    let rule = |name: &str, when: &str| {
        let text = format!(
            "[[rule]]\nname = \"{name}\"\nwhen = \"{when}\"\nhold = \"0ms\"\ndo = [\"control\"]\n"
        );
        replace(&directory, text)
    };
    let rules = rule("first", "size > 200B");
    let running = site.balance(&["--rules", &rules]);
    let client = site.client_socket();
    let leaves_by = |name: &str, sizes: [usize; 2]| {
        until_true(name, || {
            // With the second one the rule begins, with the first one it ends.
            for size in sizes {
                client.send_to(&vec![0; size], SERVICE).expect("sent");
            }
            let line = running.lines.recv_timeout(Duration::from_millis(100));
            line.is_ok_and(|line| line["event"] == "leaves" && line["rule"] == name)
        });
    };
    leaves_by("first", [10, 1000]);
    rule("third", "size > 200B and size < 100B");
    running.says("never holds [never]; `takt health check");
    leaves_by("first", [10, 1000]);
    // What is not done here is no better.
    let text = std::fs::read_to_string(&rules).expect("written");
    let mirrors = text
        .replace("control", "mirror")
        .replace(" and size < 100B", "");
    replace(&directory, mirrors);
    running.says("rule third has mirror");
    leaves_by("first", [10, 1000]);
    rule("second", "size < 200B");
    let line = running.line("rules");
    assert_eq!((&line["flows"], &line["rules"]), (&0.into(), &1.into()));
    leaves_by("second", [1000, 10]);
    running.end();
}

/// Takes all turns that a processor has for programs without a priority, until it is dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn on(core: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut only = rustix::thread::CpuSet::new();
            only.set(core);
            rustix::thread::sched_setaffinity(None, &only).expect("the processor");
            let this = Some(rustix::thread::gettid());
            rustix::process::setpriority_process(this, -10).expect("root");
            while !stops.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        Self(stop)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_flow_that_would_be_late_leaves_a_core_that_is_not_overloaded() {
    let site = Site::new();
    let directory = Directory::new();
    let (client, others) = (site.client_socket(), site.client_socket());
    let address = site.client().address();
    let flow_of = |socket: &UdpSocket| {
        let port = socket.local_addr().expect("bound").port();
        format!("udp {address}:{port} > {SERVICE}")
    };
    let flow = flow_of(&client);
    let limit = format!(
        "[[flow]]\nname = \"control\"\nmatch = \"{flow}\"\nstamp = \"ptp@0\"\nmax-delay = \"1ms\"\n"
    );
    let rules = directory.write("rules.toml", limit);
    // A queue holds less than what overloads.
    let running = site.balance(&[
        "--rules",
        &rules,
        "--cores",
        "0,1",
        "--queue",
        "256",
        "--overload",
        "16384",
    ]);
    let inside = site.balancer().enter().expect("the host");
    let service = UdpSocket::bind(SERVICE).expect("the service's address");
    drop(inside);
    let status = |flow: &str| -> Value {
        let program = takt(&[]);
        let mut status = site
            .balancer()
            .command(program.get_program())
            .expect("the host");
        status.args(["balance", "status", "-i", "eth0", "--json", "--flow", flow]);
        serde_json::from_slice(&status.output().expect("takt starts").stdout).expect("JSON")
    };
    let bundle = |flow: &str| status(flow)["bundle"].as_u64().expect("a number") as u32;
    let look = site.look();
    let [of_flow, of_others] = [flow, flow_of(&others)].map(|flow| bundle(&flow));
    for bundle in [of_flow, of_others] {
        look.assign(bundle, Some(Target::Core(0))).expect("there");
    }
    let send = || {
        let now = takt_clock::Clock::now(&takt_clock::SystemTai).as_nanos();
        let mut bytes = [0; 10];
        bytes[2..6].copy_from_slice(&((now / 1_000_000_000) as u32).to_be_bytes());
        bytes[6..].copy_from_slice(&((now % 1_000_000_000) as u32).to_be_bytes());
        client.send_to(&bytes, SERVICE).expect("sent");
        std::thread::sleep(PAUSE);
        let status = look.status().expect("status");
        status
            .cores
            .iter()
            .map(|core| core.packets)
            .collect::<Vec<_>>()
    };
    send();
    assert_eq!(send()[1], 0);
    // Those of others stay.
    if of_flow != of_others {
        look.assign(of_flow, None).expect("there");
    }
    let _busy = Busy::on(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // More than the core does, and fewer than could wait for it before it is looked at.
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..100 {
                    let _ = others.send_to(&[0; 20], SERVICE);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until_true("the flow is on the other core", || send()[1] > 0);
        }));
        stop.store(true, Ordering::Relaxed);
        left.unwrap_or_else(|why| std::panic::resume_unwind(why));
    });
    drop(service);
    let end = running.end();
    assert!(end["moves_to_cores"].as_u64() > Some(0), "{end}");
}

#[test]
fn a_rule_of_a_monitor_elsewhere_has_a_flow_leave_if_it_has_the_key() {
    let site = Site::new();
    let directory = Directory::new();
    let rules = directory.write("rules.toml", LATE);
    let (key, other) = (
        directory.write_secret("key", [9; 32]),
        directory.write_secret("other", [8; 32]),
    );
    let by = format!("{}:7485", site.balancer().address());
    let running = site.balance(&["--control", &by, "--key", &key]);
    let monitor = |key: &str| {
        let arguments = [
            "monitor",
            "-i",
            "eth0",
            "--outgoing",
            "--events",
            "--rules",
            &rules,
            "--control",
            &by,
            "--control-key",
            key,
        ];
        site.start(site.client(), &arguments)
    };
    let client = site.client_socket();
    let port = client.local_addr().expect("bound").port();
    let flow = format!("udp {}:{port} > {SERVICE}", site.client().address());
    let status = || -> Value {
        let program = takt(&[]);
        let mut status = site
            .balancer()
            .command(program.get_program())
            .expect("the host");
        status.args(["balance", "status", "-i", "eth0", "--json", "--flow", &flow]);
        let told = status.output().expect("takt starts").stdout;
        serde_json::from_slice(&told).expect("JSON")
    };
    beside_late_beats(&client, || {
        let strangers = monitor(&other);
        // Also those of nobody.
        client.send_to(b"{\"event\":\"rule\"}", &by).expect("sent");
        let look = site.look();
        let bundle = status()["bundle"].as_u64().expect("a number") as u32;
        // What an operator has put somewhere stays there.
        look.assign(bundle, Some(Target::Core(0))).expect("there");
        let first = monitor(&key);
        let line = running.line("stays");
        assert_eq!(
            (&line["flow"], &line["bundle"]),
            (&flow.clone().into(), &bundle.into())
        );
        drop(first);
        look.assign(bundle, None).expect("there");
        let second = monitor(&key);
        let line = running.line("leaves");
        assert_eq!(
            (&line["flow"], &line["rule"]),
            (&flow.clone().into(), &"camera late".into())
        );
        until_true("the flow is somewhere else", || {
            let status = look.status().expect("status");
            status.cores.iter().filter(|core| core.packets > 0).count() == 2
        });
        let told = status();
        assert_eq!(told["bundle"], bundle);
        let mut targets = told["targets"].as_array().expect("targets").iter();
        assert!(
            targets.any(|target| target.as_str().is_some_and(|to| to.starts_with("core:"))),
            "{told}"
        );
        drop((strangers, second));
    });
    let end = running.end();
    assert!(end["control_messages"].as_u64() > Some(0), "{end}");
    assert!(end["control_refused"].as_u64() > Some(0), "{end}");
}

#[test]
fn whoever_asks_for_what_there_is_not_is_told_and_what_is_killed_leaves_nothing() {
    let site = Site::new();
    let on = |arguments: &[&str]| {
        let program = takt(&[]);
        let command = site.balancer().command(program.get_program());
        let output = command.expect("the host").args(arguments).output();
        let output = output.expect("takt starts");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), err)
    };
    let refused = |arguments: &[&str], part: &str| {
        let (code, err) = on(arguments);
        assert_eq!(code, Some(1), "{err}");
        assert!(err.contains(part), "{err}");
    };
    let service = ["--service", "udp:10.99.0.1:5004"];
    let run = |more: &[&'static str]| {
        let mut arguments = vec!["balance", "run"];
        arguments.extend(service);
        arguments.extend(more);
        arguments
    };
    refused(
        &["balance", "status", "-i", "eth0"],
        "nothing balances flows at eth0",
    );
    refused(&run(&["-i", "eth7"]), "no interface \"eth7\"");
    let own = site.balancer().address().to_string();
    refused(&["balance", "beat", &own], "is an address of this host");
    refused(
        &run(&["-i", "eth0", "--cores", "0,0"]),
        "processor 0 is named twice",
    );
    refused(&run(&["-i", "eth0", "--cores", "9999"]), "processor 9999");
    refused(
        &run(&[
            "-i",
            "eth0",
            "--bundles",
            "1048576",
            "--neighbour",
            "fd00::1,vni=1,mac=02:00:00:00:00:01",
        ]),
        "IPv4",
    );
    refused(
        &run(&[
            "-i",
            "eth0",
            "--service",
            "stream:91:e0:f0:00:00:01/2",
            "--neighbour",
            "10.0.0.3",
        ]),
        "stream:91:e0:f0:00:00:01/2 goes to a neighbour as it is",
    );
    refused(&run(&["-i", "lo"]), "native XDP program");
    let directory = Directory::new();
    let key = directory.write_secret("key", [9; 32]);
    let open = directory.write("open", [9; 32]);
    refused(
        &[&run(&[]), &["-i", "eth0", "--key", &open][..]].concat(),
        "anybody can read it; chmod 600",
    );
    let arguments = ["-i", "eth0", "--no-beats", "--key", &key];
    refused(
        &[&run(&[]), &arguments[..]].concat(),
        "with --no-beats leave it out",
    );
    let arguments = ["-i", "eth0", "--key", &key, "--control", "192.0.2.1:7485"];
    refused(
        &[&run(&[]), &arguments[..]].concat(),
        "name another address with --control",
    );
    let never =
        "[[rule]]\nname = \"a\"\nwhen = \"delay < 1ms and delay > 2ms\"\ndo = [\"control\"]\n";
    let never = directory.write("never.toml", never);
    let arguments = [&run(&[]), &["-i", "eth0", "--rules", &never][..]].concat();
    let (code, err) = on(&arguments);
    assert!(
        code == Some(4) && err.contains("never holds [never]"),
        "{err}"
    );
    let program = takt(&[]);
    let without = site
        .balancer()
        .command("setpriv")
        .expect("the host")
        .args(["--bounding-set=-all", "--inh-caps=-all"])
        .arg(program.get_program())
        .args(["balance", "status", "-i", "eth0"])
        .output()
        .expect("setpriv");
    let err = String::from_utf8_lossy(&without.stderr);
    assert!(err.contains("CAP_SYS_ADMIN is needed"), "{err}");

    let running = site.balance(&[]);
    refused(&run(&["-i", "eth0"]), "already carries an XDP program");
    let assign = |bundle, target| ["balance", "assign", "-i", "eth0", bundle, target];
    refused(&assign("64", "core:0"), "bundle 64: there are 64");
    refused(&assign("1", "core:77"), "core 77: there are");
    refused(&assign("1", "neighbour:0"), "neighbour 0: there are 0");
    assert_eq!(on(&assign("1", "core:0")).0, Some(0));
    assert_eq!(on(&assign("1", "auto")).0, Some(0));
    drop(running);
    let mut running = site.balance(&["--priority", "3", "--cores", "0"]);
    let pid = running.child.id();
    let policy = |task: String| {
        let stat = std::fs::read_to_string(format!("/proc/{task}/stat")).ok()?;
        let fields: Vec<_> = stat
            .rsplit(") ")
            .next()
            .expect("fields")
            .split(' ')
            .collect();
        // proc_pid_stat(5): rt_priority and policy are 40 and 41, the state is 3.
        Some((fields[37].to_owned(), fields[38].to_owned()))
    };
    let realtime = Some(("3".to_owned(), "1".to_owned()));
    assert_eq!(policy(format!("{pid}/task/{pid}")), realtime);
    let kernels = std::fs::read_dir("/proc").expect("/proc").flatten();
    let names = kernels.filter_map(|process| {
        let name = std::fs::read_to_string(process.path().join("comm")).ok()?;
        let task = process.file_name().into_string().ok()?;
        (name.starts_with("cpumap/0/") && policy(task) == realtime).then_some(())
    });
    assert_eq!(names.count(), 1);
    assert!(ip(site.balancer(), &["link", "show", "eth0"]).contains("xdp"));
    running.child.kill().expect("killed");
    running.child.wait().expect("waited");
    // The kernel takes it away when the process has gone.
    until_true("the program is gone", || {
        !ip(site.balancer(), &["link", "show", "eth0"]).contains("xdp")
    });
    refused(
        &["balance", "status", "-i", "eth0"],
        "nothing balances flows at eth0",
    );
}

#[test]
fn load_management_of_an_interface_that_goes_ends_and_says_so() {
    let site = Site::new();
    let host = site.balancer();
    for arguments in [
        "link add gone0 type veth peer name gone1",
        "link set gone0 up",
        "link set gone1 up",
    ] {
        ip(host, &arguments.split(' ').collect::<Vec<_>>());
    }
    let program = takt(&[]);
    let mut child = host
        .command(program.get_program())
        .expect("the host")
        .args(["balance", "run", "-i", "gone0", "--json"])
        .args(["--service", "udp:10.99.0.1:5004"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("takt starts");
    let mut ready = String::new();
    let out = child.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut ready).expect("a line");
    assert!(ready.contains("ready"), "{ready}");
    // By another name it is still there.
    ip(host, &["link", "set", "gone0", "down"]);
    ip(host, &["link", "set", "gone0", "name", "still0"]);
    assert!(ip(host, &["link", "show", "still0"]).contains("xdp"));
    assert!(child.try_wait().expect("waited").is_none());
    ip(host, &["link", "delete", "still0"]);
    let output = child.wait_with_output().expect("waited");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("gone0 is gone"), "{err}");
}

#[test]
fn whoever_tells_its_load_notices_that_load_management_was_started_again() {
    let site = Site::new();
    let running = site.balance(&[]);
    let inside = site.balancer().enter().expect("the host");
    let listener = UdpSocket::bind(("127.0.0.1", PORT)).expect("the port of beats");
    drop(inside);
    listener.set_read_timeout(Some(PATIENCE)).expect("set");
    let arguments = ["balance", "beat", "127.0.0.1", "--of", "eth0"];
    let beats = site.start(site.balancer(), &arguments);
    // Not before it has looked: it would be refused.
    listener.recv(&mut [0; 64]).expect("a beat");
    running.end();
    beats.says("nothing balances flows at eth0 any more");
    let running = site.balance(&[]);
    beats.says("flows are balanced at eth0 again");
    drop((beats, running));
}

/// Prints how long it takes from the first late packet, or from a neighbour's last beat, to the first packet on the new path.
#[test]
#[ignore = "a measurement: docs/performance.md"]
fn reaction() {
    for period in [Duration::from_millis(1), Duration::from_micros(300)] {
        reaction_of(period);
    }
}

fn reaction_of(period: Duration) {
    const ROUNDS: usize = 100;
    const LATE_NS: i64 = 8_000_000;
    let site = Site::new();
    let directory = Directory::new();
    let rules = directory.write(
        "rules.toml",
        r#"
[[flow]]
name = "flow"
match = "udp * > 10.99.0.1:5004"
stamp = "ptp@0"

[[rule]]
name = "late"
flow = "udp * > 10.99.0.1:5004"
when = "delay > 6ms"
until = "delay < 4ms"
hold = "1ms"
do = ["control"]
"#,
    );
    let neighbour = site.neighbour().address().to_string();
    let mut arguments = vec!["balance", "run", "-i", "eth0", "--json", "--cores", "0"];
    arguments.extend(["--service", "udp:10.99.0.1:5004", "--neighbour", &neighbour]);
    arguments.extend(["--no-beats", "--rules", &rules, "--hold", "40ms"]);
    arguments.extend(["--priority", "50"]);
    let running = site.start(site.balancer(), &arguments);
    running.line("ready");
    let [mut here, mut there] = site.services();
    let client = site.client_socket();
    // What was sent, whether late, and where and when it came: number, late, host, instant.
    let mut got: Vec<(u64, bool, usize, i64)> = Vec::new();
    let take = |socket: &mut PromptSocket, host: usize, got: &mut Vec<(u64, bool, usize, i64)>| {
        let packet = |meta: &takt_capture::Meta, bytes: &[u8]| {
            if bytes.get(36..38) == Some(&5004_u16.to_be_bytes()[..]) && bytes.len() >= 61 {
                let number = u64::from_be_bytes(bytes[52..60].try_into().expect("eight"));
                got.push((number, bytes[60] == 1, host, meta.utc_ns));
            }
        };
        socket.take(packet).expect("captured");
    };
    let (mut reactions, mut number, mut lost, mut disturbed) = (Vec::new(), 0_u64, 0, 0);
    let mut reordered = 0;
    let mut next = std::time::Instant::now();
    while reactions.len() < ROUNDS {
        // Until it is here for a while, then late until it is there.
        let (mut calm, mut late) = (0, None);
        got.clear();
        let first = number + 1;
        loop {
            // No burst where the machine stood still.
            next = (next + period).max(std::time::Instant::now());
            std::thread::sleep(next.saturating_duration_since(std::time::Instant::now()));
            number += 1;
            let is_late = calm >= 100;
            let now = takt_clock::Clock::now(&takt_clock::SystemTai).as_nanos();
            // A stamp of the past is a packet that the network has held.
            let stamp = now - if is_late { LATE_NS } else { 0 };
            let mut bytes = [0; 19];
            bytes[2..6].copy_from_slice(&((stamp / 1_000_000_000) as u32).to_be_bytes());
            bytes[6..10].copy_from_slice(&((stamp % 1_000_000_000) as u32).to_be_bytes());
            bytes[10..18].copy_from_slice(&number.to_be_bytes());
            bytes[18] = u8::from(is_late);
            client.send_to(&bytes, SERVICE).expect("sent");
            let before = got.len();
            take(&mut here.0, 1, &mut got);
            take(&mut there.0, 2, &mut got);
            for packet in &got[before..] {
                match packet.2 {
                    1 if !packet.1 => calm += 1,
                    1 => late = late.or(Some(packet.3)),
                    _ => {}
                }
            }
            if is_late && got[before..].iter().any(|packet| packet.1 && packet.2 == 2) {
                break;
            }
        }
        let there = got.iter().filter(|packet| packet.1 && packet.2 == 2);
        let there = there.map(|packet| packet.3).min();
        let Some(late) = late else {
            // The machine was late by itself, and the flow there already.
            disturbed += 1;
            continue;
        };
        reactions.push(there.expect("it came") - late);
        let mut numbers: Vec<u64> = got.iter().map(|packet| packet.0).collect();
        numbers.retain(|came| *came >= first);
        numbers.sort_unstable();
        let last = numbers.last().copied().unwrap_or(first);
        lost += (last - first + 1) as usize - numbers.len();
        let mut by_time: Vec<_> = got.iter().map(|packet| (packet.3, packet.0)).collect();
        by_time.sort_by_key(|(at, _)| *at);
        let pairs = by_time.windows(2).filter(|pair| pair[0].1 > pair[1].1);
        reordered += pairs.count();
    }
    reactions.sort_unstable();
    let at = |share: usize| reactions[(reactions.len() - 1) * share / 100] as f64 / 1e3;
    println!(
        "a packet every {period:?}, {ROUNDS} times: first late packet to first on the new path: median {:.0} µs, p90 {:.0} µs, \
         longest {:.0} µs; of {number} packets lost {lost}, reordered {reordered}; {disturbed} rounds left out",
        at(50),
        at(90),
        at(100)
    );
    println!("{}", running.end()["packets"]);
}

/// Prints how long a killed neighbour's flows take to be elsewhere.
#[test]
#[ignore = "a measurement: docs/performance.md"]
fn death() {
    const ROUNDS: usize = 20;
    let site = Site::new();
    let (here, neighbour) = (
        site.balancer().address().to_string(),
        site.neighbour().address().to_string(),
    );
    let mut arguments = vec!["balance", "run", "-i", "eth0", "--json", "--hold", "1h"];
    arguments.extend(["--service", "udp:10.99.0.1:5004", "--neighbour", &neighbour]);
    let running = site.start(site.balancer(), &arguments);
    running.line("ready");
    let mut deaths = Vec::new();
    let mut lost = 0;
    for _ in 0..ROUNDS {
        let mut beats = site.start(site.neighbour(), &["balance", "beat", &here]);
        running.line("alive");
        let look = site.look_at_pair();
        for bundle in 0..1024 {
            look.assign(bundle, Some(Target::Neighbour(0)))
                .expect("there");
        }
        let [mut to_here, mut to_there] = site.services();
        let client = site.client_socket();
        let (mut killed, mut first) = (None, None);
        let count = |socket: &mut PromptSocket| {
            let mut last = None;
            let packet = |meta: &takt_capture::Meta, bytes: &[u8]| {
                if bytes.get(36..38) == Some(&5004_u16.to_be_bytes()[..]) {
                    last = Some(meta.utc_ns);
                }
            };
            socket.take(packet).expect("captured");
            last
        };
        let mut there = 0;
        let mut after = 0;
        while first.is_none() {
            client.send_to(b"packet", SERVICE).expect("sent");
            std::thread::sleep(Duration::from_micros(500));
            there += usize::from(count(&mut to_there.0).is_some());
            let came = count(&mut to_here.0);
            if there == 50 && killed.is_none() {
                beats.child.kill().expect("killed");
                beats.child.wait().expect("waited");
                killed = Some(std::time::SystemTime::now());
            }
            after += usize::from(killed.is_some());
            if killed.is_some() {
                first = came;
            }
        }
        lost += after;
        let killed = killed.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        deaths.push(first.unwrap_or(0) - killed.map_or(0, |at| at.as_nanos() as i64));
        running.line("dead");
        for bundle in 0..1024 {
            look.assign(bundle, None).expect("there");
        }
    }
    deaths.sort_unstable();
    println!(
        "a killed neighbour, {ROUNDS} times: median {:.1} ms, longest {:.1} ms to the first packet elsewhere, {} packets of one every 0.5 ms \
         meanwhile",
        deaths[ROUNDS / 2] as f64 / 1e6,
        deaths[ROUNDS - 1] as f64 / 1e6,
        lost / ROUNDS
    );
    running.end();
}
