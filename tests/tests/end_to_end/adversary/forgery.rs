//! Datagrams that a tenant sends from an ordinary UDP socket in its node's own network namespace, and another host:
//! made from real ones that were overheard, to every port of both nodes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use rand::{Rng, SeedableRng, rngs::StdRng};
use takt_lab::{Capture, Host};
use takt_wire::channel::{DatagramHeader, HEADER_LEN, Protection, TAG_LEN};

use super::victims::MESSAGES;
use super::*;
use crate::support::Datapath;

/// Two lanes with a queue each: what is for one arrives at the other as well. And a tenant that may
/// write channel 7 only.
const SECTIONS: &str = "\
[[lane]]
[[lane]]
[[listener]]
path = \"DIR/limited.sock\"
identity = \"limited\"
write = [7]
read = [7]
";

/// Octets in front of a UDP datagram's payload: Ethernet, IPv4 without options, UDP.
const HEADERS: usize = 14 + 20 + 8;
/// Where a record has its sequence, from the datagram's start.
const SEQUENCE: usize = HEADER_LEN + 12;

/// A datagram of the victim with messages, as it came to the other node.
fn overheard(capture: &Capture, from: Ipv4Addr) -> Vec<u8> {
    until("a datagram of the victim", || {
        let captured = capture.next(Duration::from_millis(100)).ok()??;
        let (headers, datagram) = captured.frame.split_at_checked(HEADERS)?;
        let is_udp_of =
            headers[12..14] == [8, 0] && headers[23] == 17 && headers[26..30] == from.octets();
        let (header, body) = DatagramHeader::parse(datagram).ok().filter(|_| is_udp_of)?;
        let record = header.records(body.records).next()?.ok()?;
        (record.header.channel == MESSAGES.0).then(|| datagram.to_vec())
    })
}

/// What can be made of a datagram without its key. The first is the datagram itself.
fn forged(datagram: &[u8], rng: &mut StdRng) -> Vec<Vec<u8>> {
    let changed = |at: usize, bytes: &[u8]| {
        let mut forged = datagram.to_vec();
        forged[at..at + bytes.len()].copy_from_slice(bytes);
        forged
    };
    let sequence = datagram[SEQUENCE..SEQUENCE + 4]
        .try_into()
        .expect("4 bytes");
    let sequence = u32::from_le_bytes(sequence);
    let jump = changed(SEQUENCE, &(sequence.wrapping_add(1000)).to_le_bytes());
    let counter = changed(16, &rng.random::<u64>().to_le_bytes());
    // Without protection, which a peer could have configured.
    let mut plain = jump.clone();
    plain.truncate(plain.len() - TAG_LEN);
    plain[1] = Protection::None as u8;
    plain[16..HEADER_LEN].fill(0);
    let last = datagram.len() - 1;
    vec![
        datagram.to_vec(),
        jump.clone(),
        counter,
        plain,
        changed(last - TAG_LEN, &[!datagram[last - TAG_LEN]]),
        changed(last, &[!datagram[last]]),
        jump[..jump.len() - 1].to_vec(),
    ]
}

/// What the lanes of a node have counted together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refused {
    pub unauthentic: u64,
    pub replayed: u64,
    pub unknown_sender: u64,
    forwarded: u64,
}

pub fn refused(node: &Node) -> Refused {
    let lanes = node.admin().node().lanes;
    let counters = lanes.iter().filter_map(|lane| lane.counters);
    counters.fold(Refused::default(), |all, of| Refused {
        unauthentic: all.unauthentic + of.rx_unauthentic,
        replayed: all.replayed + of.rx_replayed,
        unknown_sender: all.unknown_sender + of.rx_unknown_sender,
        forwarded: all.forwarded + of.rx_forwarded,
    })
}

/// Where the lanes of a node receive.
fn ports(node: &Node, address: Ipv4Addr) -> Vec<SocketAddr> {
    let lanes = node.admin().node().lanes;
    let ports = lanes.iter().flat_map(|lane| &lane.ports);
    let ports = ports.filter_map(|port| port.local.parse::<SocketAddr>().ok());
    let ports = ports.filter(|port| port.ip() == IpAddr::from(address));
    ports.collect()
}

/// Sends all of it from a host to all ports, again and again until `done`.
fn flood(host: &Host, datagrams: &[Vec<u8>], to: &[SocketAddr], done: impl Fn() -> bool) {
    until("all is counted", || {
        // From another port each time, for which a device may choose another queue.
        let inside = host.enter().expect("the lab is up");
        let socket = UdpSocket::bind((host.address(), 0)).expect("bind");
        drop(inside);
        for (datagram, to) in datagrams
            .iter()
            .flat_map(|d| to.iter().map(move |to| (d, to)))
        {
            let _ = socket.send_to(datagram, to);
        }
        done().then_some(())
    });
}

#[test]
fn what_a_limited_tenant_or_another_host_forges_reaches_no_sink_and_is_counted() {
    if skip() {
        return;
    }
    let config = LabConfig {
        hosts: 3,
        queues: 2,
        ..LabConfig::default()
    };
    let pair = Pair::with(&config, &format!("{SECTIONS}{}", Datapath::Xdp.section()));
    let [near, far] = &pair.nodes;
    let [own, other, stranger] = [0, 1, 2].map(|at| pair.lab.host(at));
    let capture = Capture::open(other).expect("a capture");
    let mut victims = Victims::new(&pair);

    let tenant = Session::builder()
        .socket(near.directory.join("limited.sock"))
        .request_timeout(PATIENCE)
        .open()
        .expect("a session");
    let stream = tenant.stream(Qos::slow()).expect("a stream");
    assert!(stream.source(ChannelId(7)).is_ok());
    let refusal = stream.source(MESSAGES).expect_err("not its channel");
    assert!(refusal.to_string().contains("limited"), "{refusal}");

    let mut rng = StdRng::seed_from_u64(4);
    let datagrams = forged(&overheard(&capture, own.address()), &mut rng);
    let to_far = ports(far, other.address());
    let to_near = ports(near, own.address());
    assert!(
        to_far.len() >= 4 && to_near.len() >= 4,
        "{to_far:?} {to_near:?}"
    );

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, victims, pair) = (&stop, &mut victims, &pair);
        let _stops = Stops(&[stop]);
        let working = scope.spawn(move || victims.work(pair, || !stop.load(Relaxed)));
        // A host with another address is told apart before anything is passed on.
        let before = refused(far);
        let many = (datagrams.len() * to_far.len()) as u64;
        flood(stranger, &datagrams, &to_far, || {
            refused(far).unknown_sender >= before.unknown_sender + many
        });
        let after = refused(far);
        assert_eq!(
            after.forwarded, before.forwarded,
            "passed on to another lane"
        );
        assert_eq!(
            after.unauthentic, before.unauthentic,
            "looked at any further"
        );
        // The node's own address: refused by the lane that it is for, by whichever it came.
        let before = after;
        flood(own, &datagrams, &to_far, || {
            let now = refused(far);
            now.unauthentic >= before.unauthentic + many
                && now.replayed > before.replayed
                && now.forwarded > before.forwarded
        });
        // Nor does a node take from a socket of its own what its lanes would send each other.
        let before = refused(near);
        flood(own, &datagrams, &to_near, || {
            refused(near).unknown_sender >= before.unknown_sender + many
        });
        stop.store(true, Relaxed);
        working.join().expect("the victims lose nothing");
    });
    let missing = victims.compare();
    println!(
        "{:?}, {:?}, {missing} lost and counted",
        refused(near),
        refused(far)
    );
}
