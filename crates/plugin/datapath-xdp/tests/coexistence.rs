//! What is not Takt's stays as it was, and nothing of Takt's stays behind.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Stdio};

use support::{
    Family, INTERFACE, PATIENCE, TwoHosts, connect, privileged, receive, send, wait_until,
};
use takt_datapath::conformance::Node;
use takt_datapath::{Datapath, OpenError, PortRequest};
use takt_datapath_xdp::{Mode, XdpConfig, XdpDatapath};
use takt_lab::LabConfig;

/// A kernel UDP socket on a host.
fn udp(hosts: &TwoHosts, node: Node, bind: &str) -> UdpSocket {
    let _inside = hosts.host(node).enter().expect("enter the host");
    let socket = UdpSocket::bind(bind).expect("bind a kernel socket");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("set a time limit");
    socket
}

fn get(socket: &UdpSocket) -> (SocketAddr, Vec<u8>) {
    let mut buffer = [0; 2048];
    let (length, source) = socket.recv_from(&mut buffer).expect("a datagram in time");
    (source, buffer[..length].to_vec())
}

/// Sends an ICMP echo request from the left host and waits for the answer (RFC 792).
fn ping(hosts: &TwoHosts, to: &str) {
    let _inside = hosts.host(Node::Left).enter().expect("enter the host");
    // SAFETY: plain call; a descriptor that is not negative is new and owned by nobody else.
    let socket = unsafe {
        let fd = libc::socket(
            libc::AF_INET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::IPPROTO_ICMP,
        );
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        UdpSocket::from(OwnedFd::from_raw_fd(fd))
    };
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("set a time limit");
    // Type 8, code 0, checksum, identifier 0x7461, sequence number 1.
    let mut request = [8, 0, 0, 0, 0x74, 0x61, 0, 1];
    let checksum = !(0x0800 + 0x7461 + 0x0001u16);
    request[2..4].copy_from_slice(&checksum.to_be_bytes());
    socket
        .send_to(&request, SocketAddr::new(to.parse().expect("address"), 0))
        .expect("send");
    loop {
        let (_, packet) = get(&socket);
        // The IPv4 header comes first; an answer is of type 0 and has our identifier.
        let message = &packet[usize::from(packet[0] & 0xf) * 4..];
        if message[0] == 0 && message[4..6] == [0x74, 0x61] {
            return;
        }
    }
}

#[test]
fn ping_tcp_and_udp_of_others_flow_beside_a_ports_traffic() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let (mut left, mut right) = (hosts.open(Node::Left, 4000), hosts.open(Node::Right, 4000));
    let to_right = connect(&mut *left, right.local());
    let (near, far) = (
        udp(&hosts, Node::Left, "10.77.0.1:5000"),
        udp(&hosts, Node::Right, "10.77.0.2:5000"),
    );
    for round in 0..20u8 {
        send(&mut *left, to_right, &[round]);
        near.send_to(&[round], far.local_addr().expect("address"))
            .expect("send");
        assert_eq!(get(&far).1, [round]);
        ping(&hosts, "10.77.0.2");
        assert_eq!(receive(&mut *right).1, [round]);
    }
    let listener = {
        let _inside = hosts.host(Node::Right).enter().expect("enter the host");
        TcpListener::bind("10.77.0.2:6000").expect("listen")
    };
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            let mut all = Vec::new();
            stream.read_to_end(&mut all).expect("read");
            all
        });
        let data: Vec<u8> = (0..300_000u32)
            .map(|number| number.to_le_bytes()[1])
            .collect();
        let mut stream = {
            let _inside = hosts.host(Node::Left).enter().expect("enter the host");
            TcpStream::connect("10.77.0.2:6000").expect("connect")
        };
        stream.write_all(&data).expect("write");
        drop(stream);
        assert!(
            server.join().expect("the server") == data,
            "TCP data changed on its way"
        );
    });
    assert!(
        hosts
            .xdp(Node::Right)
            .program_counters()
            .expect("counters")
            .redirected
            >= 20
    );
    assert_eq!(right.counters().rx_invalid, 0);
}

fn kernel_socket_and_port_talk(mode: Mode, family: Family) {
    let Some(mut hosts) = TwoHosts::new(&LabConfig::default(), family, |config| config.mode = mode)
    else {
        return;
    };
    let mut port = hosts.open(Node::Right, 4000);
    let bind = SocketAddr::new(hosts.address(Node::Left), 5000).to_string();
    let socket = udp(&hosts, Node::Left, &bind);
    // The kernel leaves the checksum of what it sends over veth to a device that does not exist.
    socket.send_to(b"to the port", port.local()).expect("send");
    let (source, payload) = receive(&mut *port);
    assert_eq!(
        (source, payload.as_slice()),
        (socket.local_addr().expect("address"), &b"to the port"[..])
    );
    let peer = connect(&mut *port, source);
    send(&mut *port, peer, b"to the socket");
    assert_eq!(get(&socket), (port.local(), b"to the socket".to_vec()));
    assert_eq!(port.counters().rx_invalid, 0);
}

#[test]
fn a_kernel_socket_and_a_port_talk_in_native_mode() {
    kernel_socket_and_port_talk(Mode::Native, Family::V4);
}

#[test]
fn a_kernel_socket_and_a_port_talk_over_ipv6_in_generic_mode() {
    kernel_socket_and_port_talk(Mode::Generic, Family::V6);
}

#[test]
fn a_datagram_with_a_wrong_checksum_is_counted_and_not_delivered() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let mut port = hosts.open(Node::Right, 4000);
    let socket = udp(&hosts, Node::Left, "10.77.0.1:5000");
    // The right kernel knows our MAC address from this one, and we know that traffic passes.
    socket.send_to(b"intact", port.local()).expect("send");
    assert_eq!(receive(&mut *port).1, b"intact");

    // SAFETY: plain call; a descriptor that is not negative is new and owned by nobody else.
    let raw = unsafe {
        let _inside = hosts.host(Node::Left).enter().expect("enter the host");
        let fd = libc::socket(
            libc::AF_INET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::IPPROTO_UDP,
        );
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        UdpSocket::from(OwnedFd::from_raw_fd(fd))
    };
    // Source port 5000, destination port 4000, length 12, checksum 1.
    let mut datagram = vec![0x13, 0x88, 0x0f, 0xa0, 0, 12, 0, 1];
    datagram.extend_from_slice(b"evil");
    raw.send_to(&datagram, "10.77.0.2:0").expect("send");
    wait_until("counting the bad datagram", || {
        port.receive(8, &mut |datagram| panic!("delivered: {datagram:?}"));
        port.counters().rx_invalid == 1
    });
}

#[test]
fn what_goes_to_other_addresses_on_the_same_port_number_reaches_the_kernel() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let mut port = hosts.open(Node::Right, 4000);
    hosts.ip(Node::Right, "address add 10.99.0.1/32 dev lo");
    hosts.ip(Node::Left, "route add 10.99.0.1/32 via 10.77.0.2");
    let (near, far) = (
        udp(&hosts, Node::Left, "10.77.0.1:5000"),
        udp(&hosts, Node::Right, "10.99.0.1:4000"),
    );
    near.send_to(b"past the port", "10.99.0.1:4000")
        .expect("send");
    assert_eq!(get(&far).1, b"past the port");
    near.send_to(b"to the port", port.local()).expect("send");
    assert_eq!(receive(&mut *port).1, b"to the port");
}

#[test]
fn a_port_of_any_address_follows_the_interfaces_addresses() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let bind = "0.0.0.0:4000".parse().expect("address");
    let mut port = hosts.open_lane(Node::Right, (0, 1), bind).expect("open");
    assert_eq!(port.local(), "10.77.0.2:4000".parse().expect("address"));
    let socket = udp(&hosts, Node::Left, "10.77.0.1:5000");
    hosts.ip(Node::Right, "address add 10.77.0.50/24 dev eth0");
    wait_until("receiving at the new address", || {
        socket
            .send_to(b"at the new address", "10.77.0.50:4000")
            .expect("send");
        port.receive(8, &mut |datagram| {
            assert_eq!(datagram.payload, b"at the new address")
        }) > 0
    });
}

#[test]
fn the_address_of_a_closed_port_is_the_kernels_again_though_another_port_is_open() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let closed = hosts.open(Node::Right, 4000);
    let address = closed.local();
    drop(closed);
    let mut port = hosts.open(Node::Right, 4001);
    let near = udp(&hosts, Node::Left, "10.77.0.1:5000");
    let far = udp(&hosts, Node::Right, &address.to_string());
    near.send_to(b"to the kernel", address).expect("send");
    assert_eq!(get(&far).1, b"to the kernel");
    near.send_to(b"to the port", port.local()).expect("send");
    assert_eq!(receive(&mut *port).1, b"to the port");
}

#[test]
fn an_address_that_a_kernel_socket_holds_is_refused() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let socket = udp(&hosts, Node::Left, "10.77.0.1:4000");
    let bind = socket.local_addr().expect("address");
    match hosts.open_lane(Node::Left, (0, 1), bind) {
        Err(OpenError::Bind { address, source }) => {
            assert_eq!(
                (address, source.raw_os_error()),
                (bind, Some(libc::EADDRINUSE))
            );
        }
        Err(error) => panic!("refused for another reason: {error}"),
        Ok(_) => panic!("two owners of {bind}"),
    }
}

#[test]
fn an_address_that_the_interface_does_not_have_is_refused() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let bind = "127.0.0.1:4000".parse().expect("address");
    match hosts.open_lane(Node::Left, (0, 1), bind) {
        Err(OpenError::Bind { address, .. }) => assert_eq!(address, bind),
        Err(error) => panic!("refused for another reason: {error}"),
        Ok(_) => panic!("a port at an address of another interface"),
    }
}

/// Whether the right host's interface carries an XDP program.
fn carries_a_program(hosts: &TwoHosts) -> bool {
    hosts
        .ip(Node::Right, "link show dev eth0")
        .contains("prog/xdp")
}

#[test]
fn the_program_stays_as_long_as_anybody_uses_it() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    assert!(!carries_a_program(&hosts));
    let port = hosts.open(Node::Right, 4000);
    hosts.forget_datapaths();
    assert!(carries_a_program(&hosts));
    drop(port);
    wait_until("detaching the program", || !carries_a_program(&hosts));
    // And it can be attached again.
    hosts.open(Node::Right, 4000);
}

/// Tells a child of these tests what to do.
const ROLE: &str = "TAKT_XDP_TEST_CHILD";

/// Runs the test `name` of this file in a process of its own on the right host, as the child that
/// [`ROLE`] names.
fn child(hosts: &TwoHosts, name: &str) -> Child {
    let program = std::env::current_exe().expect("this program");
    hosts
        .host(Node::Right)
        .command(program)
        .expect("enter the host")
        .args(["--exact", name, "--nocapture"])
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start a child")
}

#[test]
fn a_killed_process_leaves_no_program_behind() {
    if std::env::var_os(ROLE).is_some() {
        let datapath = XdpDatapath::probe(XdpConfig::new(INTERFACE)).expect("probe");
        let request = PortRequest {
            lane: 0,
            lanes: 1,
            bind: "10.77.0.2:4000".parse().expect("address"),
        };
        let _port = datapath.open(&request).expect("open");
        println!("\nholding");
        // Until it is killed, or its parent has gone.
        let _ = std::io::stdin().read(&mut [0]);
        return;
    }
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let mut holder = child(&hosts, "a_killed_process_leaves_no_program_behind");
    let lines = BufReader::new(holder.stdout.take().expect("its output")).lines();
    let held = lines.map_while(Result::ok).any(|line| line == "holding");
    assert!(held, "the child has not opened its port");
    assert!(carries_a_program(&hosts));

    // Nobody else gets at the interface meanwhile, and is told why.
    let refused = hosts
        .probe(Node::Right, XdpConfig::new(INTERFACE))
        .expect_err("the interface is taken");
    assert!(matches!(refused, OpenError::Unavailable(_)), "{refused:?}");
    assert!(
        refused
            .to_string()
            .contains("already carries an XDP program"),
        "{refused}"
    );

    holder.kill().expect("kill the child");
    holder.wait().expect("wait for the child");
    wait_until("detaching the program of a killed process", || {
        !carries_a_program(&hosts)
    });
    hosts.open(Node::Right, 4000);
}

/// Gives up capabilities of the calling thread (`capset(2)`).
fn keep_capabilities(kept: u64) {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    // _LINUX_CAPABILITY_VERSION_3 and the calling thread.
    let header = Header {
        version: 0x2008_0522,
        pid: 0,
    };
    let data = [kept as u32, (kept >> 32) as u32].map(|bits| Data {
        effective: bits,
        permitted: bits,
        inheritable: 0,
    });
    // SAFETY: both structures are as version 3 of the call wants them and are readable for its
    // length.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_missing_privilege_is_named_with_the_way_to_grant_it() {
    if !privileged() {
        return;
    }
    // Capabilities belong to a thread: CAP_NET_ADMIN is 12, CAP_NET_RAW 13.
    let refused = |kept: u64| {
        std::thread::spawn(move || {
            keep_capabilities(kept);
            XdpDatapath::probe(XdpConfig::new("lo")).expect_err("must be refused")
        })
        .join()
        .expect("the thread without privileges")
    };
    for (kept, missing) in [
        (0, "CAP_NET_ADMIN and CAP_NET_RAW and CAP_BPF is missing"),
        (1 << 12 | 1 << 13, "CAP_BPF is missing"),
    ] {
        let error = refused(kept);
        assert!(matches!(error, OpenError::Privilege(_)), "{error:?}");
        let message = error.to_string();
        assert!(
            message.contains(missing) && message.contains("setcap"),
            "{message}"
        );
    }
}

#[test]
fn interfaces_that_cannot_be_used_are_named_in_the_error() {
    if !privileged() {
        return;
    }
    for (interface, reason) in [
        ("no-such-interface", "no interface"),
        ("lo", "not an Ethernet interface"),
    ] {
        let error = XdpDatapath::probe(XdpConfig::new(interface)).expect_err("must be refused");
        assert!(matches!(error, OpenError::Unavailable(_)), "{error:?}");
        let message = error.to_string();
        assert!(
            message.contains(interface) && message.contains(reason),
            "{message}"
        );
    }
}
