//! Opening ports and connecting peers: what is refused, and with which words.

use std::net::{SocketAddr, UdpSocket};

use takt_datapath::{ConnectError, Datapath, OpenError, Port, PortRequest};
use takt_datapath_udp::{UdpConfig, UdpDatapath};
use takt_time::TrafficClass;

fn open(config: UdpConfig, bind: &str) -> Result<Box<dyn Port>, OpenError> {
    UdpDatapath::new(config).open(&PortRequest {
        lane: 0,
        lanes: 1,
        bind: bind.parse().unwrap(),
    })
}

fn refused(config: UdpConfig, bind: &str) -> OpenError {
    match open(config, bind) {
        Err(error) => error,
        Ok(port) => panic!("opened at {}", port.local()),
    }
}

#[test]
fn an_address_that_a_program_holds_is_refused_by_the_kernels_words() {
    let program = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = program.local_addr().unwrap();
    let error = refused(UdpConfig::default(), &address.to_string());
    assert!(
        matches!(error, OpenError::Bind { address: refused, .. } if refused == address),
        "{error}"
    );
    assert!(
        error.to_string().contains("Address already in use"),
        "{error}"
    );
}

#[test]
fn an_address_that_is_not_of_this_host_is_refused() {
    let error = refused(UdpConfig::default(), "192.0.2.1:0");
    assert!(
        error
            .to_string()
            .starts_with("cannot bind 192.0.2.1:0: Cannot assign requested address"),
        "{error}"
    );
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    for config in [
        UdpConfig {
            frames: 0,
            ..UdpConfig::default()
        },
        UdpConfig {
            frames: 1 << 21,
            ..UdpConfig::default()
        },
        UdpConfig {
            frame_size: 0,
            ..UdpConfig::default()
        },
        UdpConfig {
            frame_size: 65_508,
            ..UdpConfig::default()
        },
    ] {
        let error = refused(config, "127.0.0.1:0");
        assert!(matches!(error, OpenError::Unavailable(_)), "{error}");
        assert!(error.to_string().contains("choose 1 to"), "{error}");
    }
}

#[test]
fn peers_beyond_the_limit_are_refused_until_one_is_disconnected() {
    let mut port = open(
        UdpConfig {
            peers: 2,
            ..UdpConfig::default()
        },
        "127.0.0.1:0",
    )
    .unwrap();
    let [first, second, third]: [SocketAddr; 3] =
        ["127.0.0.1:1001", "127.0.0.1:1002", "127.0.0.1:1003"]
            .map(|address| address.parse().unwrap());
    let handle = port.connect(first).unwrap();
    port.connect(second).unwrap();
    assert!(matches!(
        port.connect(third),
        Err(ConnectError::TooManyPeers(2))
    ));
    assert_eq!(port.connect(first).unwrap(), handle);
    port.disconnect(handle);
    let reused = port.connect(third).unwrap();
    assert_ne!(reused, handle, "a former handle must not name another peer");
    assert_eq!(port.max_payload(handle), 0);
}

#[test]
fn refused_peers_take_no_place() {
    let mut port = open(
        UdpConfig {
            peers: 2,
            ..UdpConfig::default()
        },
        "127.0.0.1:0",
    )
    .unwrap();
    let handle = port.connect("127.0.0.1:1001".parse().unwrap()).unwrap();
    port.disconnect(handle);
    for _ in 0..5 {
        let nobody = port.connect("127.0.0.1:0".parse().unwrap());
        assert!(
            matches!(nobody, Err(ConnectError::System { .. })),
            "{nobody:?}"
        );
        let broadcast = port.connect("255.255.255.255:9".parse().unwrap());
        assert!(
            matches!(broadcast, Err(ConnectError::System { .. })),
            "{broadcast:?}"
        );
    }
    port.connect("127.0.0.1:1001".parse().unwrap()).unwrap();
    port.connect("127.0.0.1:1002".parse().unwrap()).unwrap();
}

#[test]
fn ipv6_ports_exchange_datagrams_and_refuse_mapped_addresses() {
    let mut left = open(UdpConfig::default(), "[::1]:0").unwrap();
    let mut right = open(UdpConfig::default(), "[::]:0").unwrap();
    let peer = left
        .connect(format!("[::1]:{}", right.local().port()).parse().unwrap())
        .unwrap();
    let frame = left.reserve(peer).unwrap();
    left.payload(&frame)[..5].copy_from_slice(b"hello");
    left.commit(frame, 5, TrafficClass::BEST_EFFORT, None);
    assert!(left.flush());
    let mut arrived = None;
    while arrived.is_none() {
        right.receive(1, &mut |datagram| {
            arrived = Some((datagram.source, datagram.payload.to_vec()))
        });
    }
    assert_eq!(arrived, Some((left.local(), b"hello".to_vec())));
    let mapped = left.connect("[::ffff:127.0.0.1]:9".parse().unwrap());
    assert!(
        matches!(mapped, Err(ConnectError::AddressFamily { .. })),
        "{mapped:?}"
    );
}

#[test]
fn an_ipv6_port_leaves_its_number_to_ipv4() {
    // Another program may hold one of the IPv4 ports, but not all.
    let both = (0..20).any(|_| {
        let six = open(UdpConfig::default(), "[::]:0").unwrap();
        open(
            UdpConfig::default(),
            &format!("0.0.0.0:{}", six.local().port()),
        )
        .is_ok()
    });
    assert!(both);
}

#[test]
fn capabilities_tell_what_the_kernel_offers() {
    let with = UdpDatapath::default().capabilities();
    assert!(
        !with.accelerated && !with.needs_polling && !with.hardware_launch_time && !with.zero_copy
    );
    assert!(with.detail.contains("GSO on, GRO on"), "{}", with.detail);
    let without = UdpDatapath::new(UdpConfig {
        segmentation: false,
        ..UdpConfig::default()
    })
    .capabilities();
    assert!(
        without.detail.contains("GSO off, GRO off"),
        "{}",
        without.detail
    );
}
