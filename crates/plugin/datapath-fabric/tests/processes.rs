//! Peers in other processes, which are killed, stopped, and hostile.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use support::probe;
use takt_datapath::conformance::readable_within;
use takt_datapath::{Datapath, OpenError, PeerHandle, Port, PortRequest, ReserveError};
use takt_datapath_fabric::{FabricConfig, FabricDatapath, Provider};
use takt_time::TrafficClass;

const PATIENCE: Duration = Duration::from_secs(60);
/// What a process of [`echo_process`] is told.
const ROLE: &str = "TAKT_TEST_ECHO";

fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::yield_now();
    }
}

fn open(datapath: &FabricDatapath, bind: SocketAddr) -> Box<dyn Port> {
    try_open(datapath, bind).unwrap_or_else(|error| panic!("cannot open {bind}: {error}"))
}

fn try_open(datapath: &FabricDatapath, bind: SocketAddr) -> Result<Box<dyn Port>, OpenError> {
    datapath.open(&PortRequest {
        lane: 0,
        lanes: 1,
        bind,
    })
}

fn own(last: u8) -> SocketAddr {
    (Ipv4Addr::new(127, 0, 0, last), 0).into()
}

/// Whether there was a frame.
fn send(port: &mut dyn Port, peer: PeerHandle, payload: &[u8]) -> bool {
    match port.reserve(peer) {
        Ok(frame) => {
            port.payload(&frame)[..payload.len()].copy_from_slice(payload);
            port.commit(frame, payload.len(), TrafficClass::BEST_EFFORT, None);
            true
        }
        Err(ReserveError::WouldBlock | ReserveError::Unresolved) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Sends numbers until one comes back.
fn await_echo(port: &mut dyn Port, peer: PeerHandle, next: &mut u32) {
    wait_until("an echo", || {
        *next += 1;
        let wanted = next.to_be_bytes();
        send(port, peer, &wanted);
        port.flush();
        let start = Instant::now();
        let mut come = false;
        while !come && start.elapsed() < Duration::from_millis(20) {
            port.flush();
            port.receive(64, &mut |datagram| come |= datagram.payload == wanted);
        }
        come
    });
}

/// Has a process inherit none of libfabric's descriptors, which would keep ports open.
fn alone(command: &mut Command) -> &mut Command {
    let close = || {
        // SAFETY: plain call, which marks descriptors.
        unsafe {
            libc::syscall(
                libc::SYS_close_range,
                3,
                u32::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            )
        };
        Ok(())
    };
    // SAFETY: one system call between `fork` and `exec`.
    unsafe { command.pre_exec(close) }
}

/// Another process, which sends back what arrives; killed at the latest with the test.
struct Echo {
    child: Child,
    address: SocketAddr,
}

impl Echo {
    fn start(provider: Provider, bind: SocketAddr) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("the test's own path"));
        let mut child = alone(&mut command)
            .args(["--exact", "echo_process", "--ignored", "--nocapture"])
            .env(ROLE, format!("{} {bind}", provider.name()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let address = output
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("echo at ")?.parse().ok())
            .expect("its address");
        Self { child, address }
    }

    fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: a process of ours, which nobody has waited for.
        let result = unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
        assert_eq!(result, 0);
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Who is killed leaves its region.
        let ending = self.address.to_string().replace(':', "_");
        for entry in std::fs::read_dir("/dev/shm")
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("takt-") && name.ends_with(&format!("-{ending}")) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// Not a test: what [`Echo`] runs.
#[test]
#[ignore = "what other tests start"]
fn echo_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (provider, bind) = role.split_once(' ').expect("a provider and an address");
    let config = FabricConfig::from_options([("provider", provider)]).expect("a configuration");
    let datapath = FabricDatapath::probe(&config).expect("the provider");
    let bind = bind.parse().expect("an address");
    let mut opened = None;
    wait_until("a predecessor's address to become free", || {
        opened = try_open(&datapath, bind).ok();
        opened.is_some()
    });
    let mut port = opened.expect("a port");
    println!("\necho at {}", port.local());
    let mut arrived = Vec::new();
    loop {
        port.receive(64, &mut |datagram| {
            arrived.push((datagram.source, datagram.payload.to_vec()));
        });
        for (source, payload) in arrived.drain(..) {
            if let Ok(peer) = port.connect(source) {
                send(&mut *port, peer, &payload);
            }
        }
        port.flush();
        std::thread::yield_now();
    }
}

#[test]
fn a_peer_that_is_killed_comes_back() {
    let provider = Provider::Tcp;
    let Some(datapath) = probe(&FabricConfig::new(provider)) else {
        return;
    };
    let mut port = open(&datapath, own(1));
    let mut other = Echo::start(provider, own(3));
    let steady = Echo::start(provider, own(4));
    let peer = port.connect(other.address).expect("a peer");
    let to_steady = port.connect(steady.address).expect("a peer");
    let mut next = 0;
    await_echo(&mut *port, peer, &mut next);
    await_echo(&mut *port, to_steady, &mut next);
    for _ in 0..3 {
        // In the middle of traffic.
        for _ in 0..20 {
            send(&mut *port, peer, &[7; 200]);
        }
        port.flush();
        other.kill();
        // Somebody else does not notice, and what cannot be delivered is counted.
        let before = port.counters().tx_errors;
        wait_until("the loss is counted", || {
            send(&mut *port, peer, &[8; 200]);
            await_echo(&mut *port, to_steady, &mut next);
            port.counters().tx_errors > before
        });
        wait_until("others are left to other ways", || {
            send(&mut *port, peer, &[8; 200]);
            port.flush();
            port.receive(64, &mut |_| {});
            !port.reaches(peer)
        });
        assert!(port.reaches(to_steady));
        let address = other.address;
        other = Echo::start(provider, address);
        assert_eq!(other.address, address);
        await_echo(&mut *port, peer, &mut next);
        wait_until("it is reached again", || {
            port.receive(64, &mut |_| {});
            port.reaches(peer)
        });
        await_echo(&mut *port, to_steady, &mut next);
    }
    drop(other);
    // Frames come back, so all of them are there.
    wait_until("the port is idle", || {
        port.receive(64, &mut |_| {});
        port.flush()
    });
    for _ in 0..1000 {
        wait_until("a frame", || {
            port.receive(64, &mut |_| {});
            let sent = send(&mut *port, to_steady, &[9; 100]);
            port.flush();
            sent
        });
    }
}

#[test]
fn a_peer_that_is_stopped_holds_up_nobody() {
    let provider = Provider::Tcp;
    let config = FabricConfig {
        sends: 32,
        ..FabricConfig::new(provider)
    };
    let Some(datapath) = probe(&config) else {
        return;
    };
    let mut port = open(&datapath, own(1));
    let stopped = Echo::start(provider, own(3));
    let steady = Echo::start(provider, own(4));
    let peer = port.connect(stopped.address).expect("a peer");
    let to_steady = port.connect(steady.address).expect("a peer");
    let mut next = 0;
    await_echo(&mut *port, peer, &mut next);
    await_echo(&mut *port, to_steady, &mut next);
    stopped.signal(libc::SIGSTOP);
    wait_until("what is stopped takes no more", || {
        while send(&mut *port, peer, &[1; 4000]) {
            port.flush();
        }
        port.receive(64, &mut |_| {});
        port.counters().tx_errors > 100 || !port.flush()
    });
    // All frames wait for the one that takes nothing, and the other is served all the same, again and again.
    for _ in 0..20 {
        for _ in 0..64 {
            send(&mut *port, peer, &[1; 4000]);
        }
        await_echo(&mut *port, to_steady, &mut next);
    }
    wait_until("the loss is counted", || {
        send(&mut *port, peer, &[1; 4000]);
        port.receive(64, &mut |_| {});
        port.flush();
        port.counters().tx_errors > 0
    });
    stopped.signal(libc::SIGCONT);
    await_echo(&mut *port, peer, &mut next);
    await_echo(&mut *port, to_steady, &mut next);
}

/// Whoever knows the address can connect: strangers' octets, and connections that say nothing.
#[test]
fn hostile_connections_end_nothing() {
    let Some(datapath) = probe(&FabricConfig::new(Provider::Tcp)) else {
        return;
    };
    let mut port = open(&datapath, own(1));
    let echo = Echo::start(Provider::Tcp, own(3));
    let peer = port.connect(echo.address).expect("a peer");
    let mut next = 0;
    await_echo(&mut *port, peer, &mut next);
    let mut silent = Vec::new();
    let mut seed = 1_u32;
    for round in 0..200_usize {
        let mut stream = TcpStream::connect(port.local()).expect("a listener");
        let octets: Vec<u8> = (0..round * 13)
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Half of them small numbers, as versions and lengths are.
                if round % 2 == 0 {
                    seed.to_be_bytes()[0]
                } else {
                    seed.to_be_bytes()[0] % 5
                }
            })
            .collect();
        // Refused is as good.
        let _ = stream.write_all(&octets);
        if round % 3 == 0 {
            silent.push(stream);
        }
        port.receive(64, &mut |datagram| panic!("nobody sent {datagram:?}"));
    }
    await_echo(&mut *port, peer, &mut next);
    drop(silent);
    await_echo(&mut *port, peer, &mut next);
    // Somebody new can still connect.
    let other = Echo::start(Provider::Tcp, own(4));
    let peer = port.connect(other.address).expect("a peer");
    await_echo(&mut *port, peer, &mut next);
}

/// A program of libfabric's that is none of ours, killed at the latest with the test.
struct Stranger(Child);

impl Stranger {
    /// With or without libfabric's protocol over TCP's.
    fn start(port: &dyn Port, layered: bool, arguments: &[&str]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let program = std::env::temp_dir().join(format!(
            "takt-fabric-stranger-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        ));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stranger.c");
        let built = Command::new("cc")
            .args(["-O1", "-o"])
            .arg(&program)
            .args([source, "-lfabric"])
            .status();
        assert!(built.expect("cc starts").success());
        let local = port.local();
        let child = alone(&mut Command::new(&program))
            .args([local.ip().to_string(), local.port().to_string()])
            .args(arguments)
            .env(
                "FI_OFI_RXM_ENABLE_PASSTHRU",
                if layered { "0" } else { "1" },
            )
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        std::fs::remove_file(&program).expect("ours");
        Self(child)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn messages_that_are_not_ours_are_counted_and_dropped() {
    let Some(datapath) = probe(&FabricConfig::new(Provider::Tcp)) else {
        return;
    };
    let mut port = open(&datapath, own(1));
    let _stranger = Stranger::start(&*port, false, &[]);
    // 100 short ones, one that is right, and one that is longer than a frame.
    let mut right = 0;
    wait_until("the stranger's messages", || {
        port.receive(64, &mut |datagram| {
            assert_eq!(datagram.payload, b"right");
            assert_eq!(
                datagram.source,
                SocketAddr::from((IpAddr::from([192, 0, 2, 9]), 9))
            );
            right += 1;
        });
        port.counters().rx_invalid == 101
    });
    assert_eq!(right, 1);
}

/// Whoever begins more messages than there are frames, each longer than a frame, has none of the frames.
#[test]
fn messages_that_do_not_end_hold_no_frames() {
    for layered in [true, false] {
        let Some(datapath) = probe(&FabricConfig::new(Provider::Tcp)) else {
            return;
        };
        let mut port = open(&datapath, own(1));
        let echo = Echo::start(Provider::Tcp, own(3));
        let peer = port.connect(echo.address).expect("a peer");
        let mut next = 0;
        await_echo(&mut *port, peer, &mut next);
        let mut stranger = Stranger::start(&*port, layered, &["begin"]);
        let said = stranger.0.stdout.take().expect("its output");
        let said = std::thread::spawn(move || {
            BufReader::new(said)
                .lines()
                .map_while(Result::ok)
                .any(|line| line == "begun")
        });
        wait_until("the stranger has begun", || {
            port.receive(64, &mut |_| {});
            port.flush();
            said.is_finished()
        });
        assert!(said.join().expect("it reads"), "the stranger has failed");
        for _ in 0..600 {
            await_echo(&mut *port, peer, &mut next);
        }
        assert!(port.counters().rx_invalid > 0, "{:?}", port.counters());
        drop(stranger);
        await_echo(&mut *port, peer, &mut next);
    }
}

/// A message that has begun has a frame until it ends. Whoever holds all of them this way is cut off.
#[test]
fn a_port_whose_frames_are_held_begins_anew_and_says_so() {
    let config = FabricConfig {
        receives: 16,
        ..FabricConfig::new(Provider::Tcp)
    };
    let Some(datapath) = probe(&config) else {
        return;
    };
    let health = datapath.health(Box::new(|| ())).expect("it is known");
    let mut port = open(&datapath, own(1));
    let echo = Echo::start(Provider::Tcp, own(3));
    let peer = port.connect(echo.address).expect("a peer");
    let mut next = 0;
    await_echo(&mut *port, peer, &mut next);
    assert_eq!(health.fault(), None);
    let _stranger = Stranger::start(&*port, false, &["hold"]);
    wait_until("the port to notice", || {
        port.receive(64, &mut |_| {});
        port.flush();
        health.fault().is_some()
    });
    let fault = health.fault().unwrap_or_default();
    assert!(fault.contains("firewall"), "{fault}");
    assert!(port.counters().rx_dropped > 8, "{:?}", port.counters());
    // With the same address, by which the peer finds it.
    await_echo(&mut *port, peer, &mut next);
    wait_until("the peer to be reached", || {
        port.receive(64, &mut |_| {});
        port.flush();
        port.reaches(peer)
    });
}

/// What has been sent ends, too, and is told of before it is told that no message has the frames.
#[test]
fn a_port_that_only_sends_is_not_taken_for_one_whose_frames_are_held() {
    // Several looks.
    const LONG: Duration = Duration::from_secs(5);
    let Some(datapath) = probe(&FabricConfig::new(Provider::Tcp)) else {
        return;
    };
    let health = datapath.health(Box::new(|| ())).expect("it is known");
    let (mut port, mut other) = (open(&datapath, own(1)), open(&datapath, own(3)));
    let peer = port.connect(other.local()).expect("a peer");
    let start = Instant::now();
    while start.elapsed() < LONG {
        for _ in 0..5 {
            send(&mut *port, peer, &[7; 100]);
        }
        port.flush();
        port.receive(64, &mut |_| {});
        other.receive(64, &mut |_| {});
        assert_eq!(health.fault(), None);
    }
    assert!(port.counters().tx_datagrams > 0);
    assert_eq!(port.counters().rx_dropped, 0);
}

/// As a lane does that has nothing to do but what its descriptor wakes it for.
#[test]
fn a_sleeping_sender_goes_on_when_its_receiver_does() {
    let Some(datapath) = probe(&FabricConfig::new(Provider::Tcp)) else {
        return;
    };
    let mut left = open(&datapath, own(1));
    let mut right = open(&datapath, own(3));
    let peer = left.connect(right.local()).expect("a peer");
    wait_until("a connection", || {
        left.flush();
        left.receive(1, &mut |_| {});
        right.receive(1, &mut |_| {});
        left.reaches(peer)
    });
    // More than the kernel takes at once.
    const MESSAGES: usize = 4000;
    let reader = std::thread::spawn(move || {
        let mut count = 0;
        while count < MESSAGES {
            let delivered = right.receive(64, &mut |_| {});
            count += delivered;
            if delivered == 0 {
                readable_within(&*right, Duration::from_millis(10));
            }
        }
    });
    let payload = vec![5; left.max_payload(peer)];
    let start = Instant::now();
    let mut sent = 0;
    loop {
        while sent < MESSAGES && send(&mut *left, peer, &payload) {
            sent += 1;
        }
        let all = left.flush();
        left.receive(64, &mut |_| {});
        if sent == MESSAGES && all {
            break;
        }
        assert!(
            all || readable_within(&*left, PATIENCE),
            "nothing wakes the sender: {:?}",
            left.counters()
        );
        assert!(start.elapsed() < PATIENCE, "{:?}", left.counters());
    }
    // What the provider still has leaves although this does nothing unless it is woken.
    while !reader.is_finished() {
        if readable_within(&*left, Duration::from_millis(10)) {
            left.flush();
            left.receive(64, &mut |_| {});
        }
        assert!(start.elapsed() < PATIENCE, "{:?}", left.counters());
    }
    reader.join().expect("all has arrived");
}

#[test]
fn what_is_not_there_is_told() {
    let config = FabricConfig {
        domain: Some("none0".into()),
        ..FabricConfig::default()
    };
    let error = FabricDatapath::probe(&config).expect_err("no such domain");
    let error = error.to_string();
    for word in ["verbs: ", "tcp: ", "none0", "fi_info"] {
        assert!(error.contains(word), "{error}");
    }
    let Some(datapath) = probe(&FabricConfig::new(Provider::Tcp)) else {
        return;
    };
    let foreign = SocketAddr::from(([192, 0, 2, 77], 0));
    let error = try_open(&datapath, foreign).err().expect("not ours");
    assert!(error.to_string().contains("192.0.2.77"), "{error}");
}

/// The name of a region can be foreseen.
#[test]
fn shared_memory_of_another_user_is_not_used() {
    use std::os::unix::fs::MetadataExt;
    // SAFETY: no arguments and no failure.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: another user's file needs root");
        return;
    }
    let Some(datapath) = probe(&FabricConfig::new(Provider::Shm)) else {
        return;
    };
    let mut port = open(&datapath, own(1));
    let namespace = std::fs::metadata("/proc/thread-self/ns/net").expect("a namespace");
    for (last, owner, mode) in [(77, 65_534, 0o600), (78, 0, 0o666)] {
        let number = std::process::id() as u16 | 1024;
        let file = format!("/dev/shm/takt-{}-127.0.0.{last}_{number}", namespace.ino());
        std::fs::write(&file, [0; 4096]).expect("a file");
        std::os::unix::fs::chown(&file, Some(owner), None).expect("another owner");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&file, mode).expect("another mode");
        let connected = port.connect(SocketAddr::from(([127, 0, 0, last], number)));
        std::fs::remove_file(&file).expect("ours");
        assert!(connected.is_err(), "{file}");
    }
}

/// Whoever makes the region of a peer that is not there yet has nothing of what is sent to it.
#[test]
fn a_peer_in_shared_memory_is_reached_when_it_has_come_whoever_made_its_region_before() {
    use std::os::unix::fs::MetadataExt;
    // SAFETY: no arguments and no failure.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: another user's file needs root");
        return;
    }
    let Some(datapath) = probe(&FabricConfig::new(Provider::Shm)) else {
        return;
    };
    let mut port = open(&datapath, own(1));
    let number = std::process::id() as u16 | 1024;
    let address = SocketAddr::from(([127, 0, 0, 79], number));
    let peer = port.connect(address).expect("a peer that is not there yet");
    let namespace = std::fs::metadata("/proc/thread-self/ns/net").expect("a namespace");
    let file = format!("/dev/shm/takt-{}-127.0.0.79_{number}", namespace.ino());
    std::fs::write(&file, [0; 4096]).expect("a file");
    std::os::unix::fs::chown(&file, Some(65_534), None).expect("another owner");
    for _ in 0..10_000 {
        port.receive(64, &mut |_| {});
        port.flush();
    }
    assert!(!port.reaches(peer));
    let maps = std::fs::read_to_string("/proc/self/maps").expect("ours");
    assert!(!maps.contains(&file), "{maps}");
    std::fs::remove_file(&file).expect("ours");
    let _echo = Echo::start(Provider::Shm, address);
    await_echo(&mut *port, peer, &mut 0);
}

/// Between processes: what is not of this host is not reached, and a number is one port's.
#[test]
fn shared_memory_reaches_this_host_only() {
    let Some(datapath) = probe(&FabricConfig::new(Provider::Shm)) else {
        return;
    };
    let mut port = open(&datapath, own(1));
    let peer = port
        .connect(SocketAddr::from(([192, 0, 2, 77], 9)))
        .expect("a peer that is not reached");
    assert!(!port.reaches(peer));
    assert_eq!(port.reserve(peer).err(), Some(ReserveError::Unresolved));
    // Nor this process.
    let second = open(&datapath, own(3));
    let peer = port
        .connect(second.local())
        .expect("a peer that is not reached");
    assert!(!port.reaches(peer));
    let echo = Echo::start(Provider::Shm, own(4));
    match try_open(&datapath, echo.address) {
        Err(OpenError::Bind { address, .. }) => assert_eq!(address, echo.address),
        other => panic!("{:?}", other.map(|port| port.local())),
    }
    let peer = port.connect(echo.address).expect("a peer");
    await_echo(&mut *port, peer, &mut 0);
}
