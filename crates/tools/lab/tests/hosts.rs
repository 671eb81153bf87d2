//! Labs as they are used: real namespaces, real datagrams. Needs root; skips with a reason otherwise.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use takt_lab::{
    Capture, Host, Lab, LabConfig, LabError, LinkState, Overlay, Queues, RECORDS, Wiring,
};

/// Long enough that only a link that carries nothing runs into it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether a lab cannot be made here; says why.
fn skip() -> bool {
    let privileged = std::fs::read_to_string("/proc/self/status")
        .unwrap()
        .lines()
        .any(|line| line.starts_with("Uid:\t0\t0"));
    if !privileged {
        eprintln!("skipped: network namespaces need root");
    }
    !privileged
}

fn socket_of(host: &Host) -> UdpSocket {
    let _inside = host.enter().unwrap();
    let socket = UdpSocket::bind((host.address(), 7)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn pass(from: &UdpSocket, to: &UdpSocket, text: &[u8]) {
    from.send_to(text, to.local_addr().unwrap()).unwrap();
    let mut buffer = [0; 2048];
    let (length, sender) = to.recv_from(&mut buffer).unwrap();
    assert_eq!(
        (&buffer[..length], sender),
        (text, from.local_addr().unwrap())
    );
}

fn namespace_exists(name: &str) -> bool {
    Path::new("/run/netns").join(name).exists()
}

/// A name of this process's own for labs that stay.
fn own_name(suffix: &str) -> String {
    format!("takt-t-{}-{suffix}", std::process::id())
}

/// Takes a lab down even when the test fails.
struct Cleanup(String);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _ = Lab::down(&self.0);
    }
}

#[test]
fn containers_reach_each_other_over_the_vxlan_and_go_with_the_lab() {
    if skip() {
        return;
    }
    let config = LabConfig {
        containers: 2,
        ..LabConfig::default()
    };
    let lab = Lab::scratch(&config).unwrap();
    let [here, neighbour, there] = [(0, 0), (0, 1), (1, 1)].map(|(h, c)| lab.container(h, c));
    assert_eq!((here.name(), there.name()), ("h1c1", "h2c2"));
    assert_eq!(
        (here.mtu(), there.address()),
        (1450, Ipv4Addr::new(10, 88, 2, 2))
    );
    let socket = socket_of(here);
    for far in [neighbour, there] {
        let far = socket_of(far);
        pass(&socket, &far, b"there");
        pass(&far, &socket, b"and back");
    }
    assert_eq!(lab.all().count(), 6);
    let namespaces: Vec<String> = lab.all().map(|host| host.namespace().to_owned()).collect();
    drop(lab);
    for namespace in namespaces {
        assert!(!namespace_exists(&namespace), "{namespace}");
    }
}

#[test]
fn containers_reach_each_other_over_routed_networks() {
    if skip() {
        return;
    }
    for (overlay, mtu) in [(Overlay::Flannel, 1450), (Overlay::HostGateway, 1500)] {
        let lab = Lab::scratch(&LabConfig {
            hosts: 3,
            containers: 2,
            overlay,
            ..LabConfig::default()
        })
        .unwrap();
        let [here, neighbour, there] = [(0, 0), (0, 1), (2, 1)].map(|(h, c)| lab.container(h, c));
        assert_eq!((here.name(), there.name()), ("h1c1", "h3c2"));
        assert_eq!(
            (here.mtu(), there.address(), there.prefix_length()),
            (mtu, Ipv4Addr::new(10, 88, 3, 3), 24)
        );
        let socket = socket_of(here);
        for far in [neighbour, there] {
            let far = socket_of(far);
            pass(&socket, &far, b"there");
            pass(&far, &socket, b"and back");
        }
    }
}

#[test]
fn two_hosts_on_a_cable_reach_each_other() {
    if skip() {
        return;
    }
    let lab = Lab::scratch(&LabConfig::default()).unwrap();
    assert_eq!(lab.host(0).address(), Ipv4Addr::new(10, 77, 0, 1));
    assert_eq!(lab.host(1).address(), Ipv4Addr::new(10, 77, 0, 2));
    let (near, far) = (socket_of(lab.host(0)), socket_of(lab.host(1)));
    pass(&near, &far, b"ping");
    pass(&far, &near, b"pong");
}

#[test]
fn three_hosts_on_a_bridge_reach_each_other() {
    if skip() {
        return;
    }
    let lab = Lab::scratch(&LabConfig {
        hosts: 3,
        ..LabConfig::default()
    })
    .unwrap();
    let sockets: Vec<_> = lab.hosts().iter().map(socket_of).collect();
    for from in &sockets {
        for to in &sockets {
            pass(from, to, b"around");
        }
    }
}

#[test]
fn a_pulled_link_carries_nothing_until_it_is_plugged_in() {
    if skip() {
        return;
    }
    for wiring in [Wiring::Cable, Wiring::Bridge] {
        let lab = Lab::scratch(&LabConfig {
            wiring,
            ..LabConfig::default()
        })
        .unwrap();
        let (near, far) = (socket_of(lab.host(0)), socket_of(lab.host(1)));
        pass(&near, &far, b"before");
        lab.host(0).link(LinkState::Down).unwrap();
        let refusal = near
            .send_to(b"lost", far.local_addr().unwrap())
            .unwrap_err();
        assert_eq!(
            refusal.raw_os_error(),
            Some(101),
            "network unreachable: {refusal}"
        );
        lab.host(0).link(LinkState::Up).unwrap();
        pass(&near, &far, b"after");
    }
}

#[test]
fn a_link_can_be_plugged_in_while_the_far_end_is_pulled() {
    if skip() {
        return;
    }
    let lab = Lab::scratch(&LabConfig::default()).unwrap();
    for state in [LinkState::Down, LinkState::Up] {
        for host in lab.hosts() {
            host.link(state).unwrap();
        }
    }
    pass(
        &socket_of(lab.host(0)),
        &socket_of(lab.host(1)),
        b"both are back",
    );
}

#[test]
fn a_command_runs_inside_the_host_and_sees_its_interface() {
    if skip() {
        return;
    }
    let lab = Lab::scratch(&LabConfig {
        mtu: 1400,
        queues: 2,
        ..LabConfig::default()
    })
    .unwrap();
    let host = lab.host(1);
    let read = |file: &str| {
        let path = format!("/sys/class/net/{}/{file}", host.interface());
        let output = host.command("cat").unwrap().arg(path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(read("mtu"), "1400");
    assert_eq!(
        read("address"),
        host.mac().map(|octet| format!("{octet:02x}")).join(":")
    );
    assert_eq!(read("queues/rx-1/rps_cpus").trim_matches(['0', ',']), "");
    assert_eq!(read("queues/tx-1/tx_timeout"), "0");
}

#[test]
fn a_thread_is_back_outside_when_it_drops_the_guard() {
    if skip() {
        return;
    }
    let here = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let lab = Lab::scratch(&LabConfig::default()).unwrap();
    let outside = here();
    let inside = lab.host(0).enter().unwrap();
    assert_ne!(here(), outside);
    drop(inside);
    assert_eq!(here(), outside);
}

#[test]
fn a_lab_that_is_up_is_found_listed_and_taken_down_by_name() {
    if skip() {
        return;
    }
    let name = own_name("stays");
    let _cleanup = Cleanup(name.clone());
    let config = LabConfig {
        hosts: 3,
        network: "10.99.4.0/28".parse().unwrap(),
        ..LabConfig::default()
    };
    let hosts = Lab::up(&name, &config).unwrap().hosts().to_vec();

    let found = Lab::find(&name).unwrap();
    assert_eq!((found.config(), found.hosts()), (&config, &hosts[..]));
    assert_eq!(found.host(2).name(), "h3");
    assert_eq!(found.host(2).namespace(), format!("{name}-h3"));
    assert!(Lab::list().unwrap().iter().any(|lab| lab.name() == name));
    assert!(matches!(
        Lab::up(&name, &config),
        Err(LabError::Exists { .. })
    ));
    assert!(
        namespace_exists(&format!("{name}-h1")),
        "a refused second lab leaves the first alone"
    );

    Lab::down(&name).unwrap();
    for part in ["h1", "h2", "h3", "switch"] {
        assert!(!namespace_exists(&format!("{name}-{part}")), "{part}");
    }
    assert!(matches!(Lab::find(&name), Err(LabError::NotFound { .. })));
    assert!(matches!(Lab::down(&name), Err(LabError::NotFound { .. })));
    assert!(
        hosts[0].enter().is_err(),
        "a host of a lab that is down cannot be entered"
    );
}

#[test]
fn a_scratch_lab_goes_when_it_is_dropped_even_by_a_panic() {
    if skip() {
        return;
    }
    let (send, receive) = std::sync::mpsc::channel();
    let panicked = std::thread::spawn(move || {
        let lab = Lab::scratch(&LabConfig::default()).unwrap();
        send.send(lab.name().to_owned()).unwrap();
        panic!("on purpose");
    });
    let name = receive.recv().unwrap();
    assert!(panicked.join().is_err());
    assert!(!namespace_exists(&format!("{name}-h1")));
    assert!(matches!(Lab::find(&name), Err(LabError::NotFound { .. })));
}

#[test]
fn leftovers_without_a_record_are_taken_down_by_name() {
    if skip() {
        return;
    }
    let name = own_name("leftover");
    let _cleanup = Cleanup(name.clone());
    Lab::up(&name, &LabConfig::default()).unwrap();
    std::fs::remove_file(Path::new(RECORDS).join(format!("{name}.json"))).unwrap();
    assert!(matches!(
        Lab::up(&name, &LabConfig::default()),
        Err(LabError::Exists { .. })
    ));
    Lab::down(&name).unwrap();
    assert!(!namespace_exists(&format!("{name}-h1")));
}

#[test]
fn a_broken_record_is_named_and_can_be_taken_down() {
    if skip() {
        return;
    }
    let name = own_name("broken");
    let _cleanup = Cleanup(name.clone());
    Lab::up(&name, &LabConfig::default()).unwrap();
    let path = Path::new(RECORDS).join(format!("{name}.json"));
    std::fs::write(&path, b"{\"config\": 7").unwrap();
    let error = Lab::find(&name).unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    Lab::down(&name).unwrap();
    assert!(!path.exists());
    assert!(!namespace_exists(&format!("{name}-h2")));
}

#[test]
fn a_scratch_lab_whose_process_is_gone_is_removed_by_the_next_one() {
    if skip() {
        return;
    }
    let name = own_name("orphan");
    let _cleanup = Cleanup(name.clone());
    Lab::up(&name, &LabConfig::default()).unwrap();
    // What a process killed before its destructors leaves behind: its lab, with its number.
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let path = Path::new(RECORDS).join(format!("{name}.json"));
    let record = std::fs::read_to_string(&path).unwrap();
    let owned = record.replace(
        "\"owner\":null",
        &format!("\"owner\":{{\"pid\":{},\"start_ticks\":1}}", gone.id()),
    );
    assert_ne!(record, owned);
    std::fs::write(&path, owned).unwrap();

    let _next = Lab::scratch(&LabConfig::default()).unwrap();
    assert!(!namespace_exists(&format!("{name}-h1")));
    assert!(!path.exists());
}

#[test]
fn a_lab_that_cannot_be_finished_leaves_nothing() {
    if skip() {
        return;
    }
    // A search path without `tc` stops the making of a rate-limited lab half-way. The path belongs to
    // a process, so this test runs itself in one of its own.
    const CHILD: &str = "TAKT_LAB_TEST_WITHOUT_TC";
    if let Some(name) = std::env::var_os(CHILD) {
        let config = LabConfig {
            rate: Some(1_000_000),
            ..LabConfig::default()
        };
        let error = Lab::up(name.to_str().unwrap(), &config).unwrap_err();
        assert!(
            matches!(error, LabError::Program { program: "tc", .. }),
            "{error}"
        );
        assert!(error.to_string().contains("install iproute2"), "{error}");
        return;
    }
    let name = own_name("partial");
    let _cleanup = Cleanup(name.clone());
    let programs = std::env::temp_dir().join(&name);
    std::fs::create_dir(&programs).unwrap();
    let ip = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    std::os::unix::fs::symlink(ip.unwrap(), programs.join("ip")).unwrap();
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_lab_that_cannot_be_finished_leaves_nothing"])
        .env(CHILD, &name)
        .env("PATH", &programs)
        .status();
    std::fs::remove_dir_all(&programs).unwrap();
    assert!(status.unwrap().success());
    assert!(!namespace_exists(&format!("{name}-h1")));
    assert!(matches!(Lab::find(&name), Err(LabError::NotFound { .. })));
}

#[test]
fn a_rate_limit_is_held_at_each_end_of_every_cable() {
    if skip() {
        return;
    }
    let rate = 8_000_000;
    let lab = Lab::scratch(&LabConfig {
        rate: Some(rate),
        wiring: Wiring::Bridge,
        ..LabConfig::default()
    })
    .unwrap();
    let (near, far) = (socket_of(lab.host(0)), socket_of(lab.host(1)));
    pass(&near, &far, b"resolve the neighbour");
    let payload = [0; 1000];
    let start = std::time::Instant::now();
    let mut octets = 0;
    let mut buffer = [0; 2048];
    for _ in 0..50 {
        near.send_to(&payload, far.local_addr().unwrap()).unwrap();
        octets += 1000;
    }
    for _ in 0..50 {
        far.recv_from(&mut buffer).unwrap();
    }
    // Less one burst of 3036 octets, which passes at once.
    let least = Duration::from_secs_f64(f64::from(octets - 3036) * 8.0 / rate as f64);
    assert!(
        start.elapsed() >= least,
        "{octets} octets in {:?}, sooner than {least:?}",
        start.elapsed()
    );
}

#[test]
fn what_a_host_sends_is_captured_at_the_far_end_of_its_cable_in_a_vxlan_or_not() {
    if skip() {
        return;
    }
    let lab = Lab::scratch(&LabConfig {
        containers: 1,
        rate: Some(100_000_000),
        wiring: Wiring::Bridge,
        ..LabConfig::default()
    })
    .unwrap();
    let capture = Capture::sent_by(lab.host(0), 7).unwrap();
    for (queues, near, far) in [
        (Queues::One, lab.host(0), lab.host(1)),
        (Queues::ByPriority, lab.container(0, 0), lab.container(1, 0)),
        (Queues::One, lab.container(0, 0), lab.container(1, 0)),
    ] {
        lab.set_queues(0, queues).unwrap();
        let (near, far) = (socket_of(near), socket_of(far));
        let other = (far.local_addr().unwrap().ip(), 9);
        near.send_to(b"for another port", other).unwrap();
        pass(&near, &far, b"out");
        pass(&far, &near, b"and back");
        let captured = capture.next(PATIENCE).unwrap().unwrap();
        assert_eq!(captured.datagram(), b"out");
        assert_eq!(capture.take().unwrap(), None, "nothing that comes back");
        let long = vec![7; 1000];
        pass(&near, &far, &long);
        let captured = capture.next(PATIENCE).unwrap().unwrap();
        assert_eq!(captured.frame.len(), takt_lab::HEAD as usize);
        assert!(captured.datagram().iter().all(|octet| *octet == 7));
    }
}

#[test]
fn a_switch_loses_the_share_that_it_is_told_and_counts_what_it_loses() {
    if skip() {
        return;
    }
    let config = LabConfig {
        wiring: Wiring::Bridge,
        loss_ppm: Some(100_000),
        ..LabConfig::default()
    };
    let lab = Lab::scratch(&config).unwrap();
    let [near, far] = [0, 1].map(|host| socket_of(lab.host(host)));
    far.set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let to = far.local_addr().unwrap();
    let mut buffer = [0; 64];
    // Until the hosts know each other: what they ask may be lost as well.
    loop {
        near.send_to(b"are you there", to).unwrap();
        if far.recv_from(&mut buffer).is_ok() {
            break;
        }
    }
    far.set_nonblocking(true).unwrap();
    while far.recv_from(&mut buffer).is_ok() {}
    let before = lab.lost(0).unwrap();
    const SENT: u64 = 20_000;
    let mut received = 0;
    for _ in 0..SENT {
        near.send_to(b"number", to).unwrap();
        // The switch is behind a soft interrupt of the same call.
        while far.recv_from(&mut buffer).is_ok() {
            received += 1;
        }
    }
    far.set_nonblocking(false).unwrap();
    far.set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    while far.recv_from(&mut buffer).is_ok() {
        received += 1;
    }
    let lost = lab.lost(0).unwrap() - before;
    // Hosts may ask for each other once more meanwhile.
    assert!(
        (SENT..SENT + 10).contains(&(received + lost)),
        "{received} {lost}"
    );
    // Seven standard deviations.
    assert!((1_700..2_300).contains(&lost), "{lost} of {SENT}");

    for (wiring, loss_ppm, remedy) in [
        (Wiring::Cable, 1, "use the wiring bridge"),
        (Wiring::Bridge, 600_000, "use 0 to 500000"),
    ] {
        let config = LabConfig {
            wiring,
            loss_ppm: Some(loss_ppm),
            ..LabConfig::default()
        };
        let refused = config.validate().unwrap_err().to_string();
        assert!(refused.contains(remedy), "{refused}");
    }
}
