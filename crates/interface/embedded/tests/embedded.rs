//! Applications with the runtime inside, over kernel UDP on loopback.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use takt::{ChannelId, Error, Outcome, Qos, Source, Wait};
use takt_datapath::Datapath;
use takt_datapath::memory::{MemoryNetwork, MemoryNetworkConfig};
use takt_embedded::Security;
use takt_embedded::{Embedded, Settings};

const PATIENCE: Wait = Wait::For(Duration::from_secs(20));

fn node(port: u16, peers: &[u16]) -> Embedded {
    node_over(port, peers, Vec::new())
}

fn node_over(port: u16, peers: &[u16], more: Vec<Arc<dyn Datapath>>) -> Embedded {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let peers = peers
        .iter()
        .map(|&port| SocketAddr::new(address, port).into())
        .collect();
    let settings = Settings {
        address,
        port,
        peers,
        security: Security::group(takt_testing::GROUP_KEY.parse().expect("a key")),
        ..Settings::default()
    };
    Embedded::start_over(settings, more).expect("runtime starts")
}

fn ports() -> (u16, u16) {
    // Below those that the kernel gives away by itself.
    let base = 16_000 + (std::process::id() % 1000) as u16 * 16;
    (base, base + 8)
}

/// Emits until the message is handed to somebody.
fn emit_until_heard(source: &Source, text: &[u8]) {
    loop {
        let mut buffer = source.buffer_wait(text.len(), PATIENCE).expect("buffer");
        buffer.copy_from_slice(text);
        let token = buffer.emit().expect("emit");
        let outcome = loop {
            match source.outcome(token) {
                Outcome::Pending => std::thread::yield_now(),
                outcome => break outcome,
            }
        };
        if outcome == Outcome::Sent {
            return;
        }
    }
}

#[test]
fn a_program_brings_further_datapaths_which_fast_streams_may_name() {
    let network = MemoryNetwork::new(MemoryNetworkConfig::default());
    let port = ports().0 + 4;
    let [a, b] = [(port, port + 400), (port + 400, port)]
        .map(|(own, peer)| node_over(own, &[peer], vec![network.datapath()]));
    let (sa, sb) = (
        a.session("a").expect("session"),
        b.session("b").expect("session"),
    );
    let named = |name: &str| Qos::fast().only_over(name.parse().expect("a name"));
    let source = sa.stream(named("memory")).expect("stream");
    let sink = sb.stream(named("memory")).expect("stream");
    assert_eq!(source.datapath(), "memory");
    let (source, sink) = (
        source.source(ChannelId(3)).expect("source"),
        sink.sink(ChannelId(3)).expect("sink"),
    );
    emit_until_heard(&source, b"hello");
    assert_eq!(&*sink.consume(PATIENCE).expect("message"), b"hello");
    // Who has not brought it has it not.
    let without = node(0, &[]);
    let session = without.session("c").expect("session");
    let refused = session.stream(named("memory")).expect_err("not there");
    assert!(refused.to_string().contains("memory"), "{refused}");
}

#[test]
fn two_programs_with_the_runtime_inside_exchange_messages_of_all_sizes() {
    let (pa, pb) = ports();
    let (a, b) = (node(pa, &[pb]), node(pb, &[pa]));
    let (sa, sb) = (
        a.session("a").expect("session"),
        b.session("b").expect("session"),
    );
    let (sa, sb) = (
        sa.stream(Qos::slow()).expect("stream"),
        sb.stream(Qos::slow()).expect("stream"),
    );
    assert_eq!(sa.datapath(), "udp");
    let sink = sb.sink(ChannelId(3)).expect("sink");
    let source = sa.source(ChannelId(3)).expect("source");
    emit_until_heard(&source, b"hello");
    assert_eq!(&*sink.consume(PATIENCE).expect("message"), b"hello");
    for size in [0usize, 1, 1000, 100_000, 16 << 20] {
        // Kernel UDP drops what its buffers have no room for while the receiver is kept from its core: then it is counted,
        // and sent again.
        let message = takt_testing::until("the message comes", || {
            let (began, lost) = (Instant::now(), sink.counters().lost);
            let mut buffer = source.buffer_wait(size, PATIENCE).expect("buffer");
            buffer
                .iter_mut()
                .enumerate()
                .for_each(|(i, byte)| *byte = i as u8);
            buffer.emit().expect("emit");
            loop {
                match sink.consume(Wait::For(Duration::from_millis(100))) {
                    Ok(message) => return Some(message),
                    Err(Error::TimedOut) if sink.counters().lost > lost => return None,
                    Err(Error::TimedOut) => assert!(
                        began.elapsed() < takt_testing::PATIENCE,
                        "{size} bytes neither came nor are counted as lost"
                    ),
                    Err(error) => panic!("{size} bytes: {error}"),
                }
            }
        });
        assert_eq!(message.len(), size);
        assert!(message.iter().enumerate().all(|(i, byte)| *byte == i as u8));
    }
}

#[test]
fn a_wish_for_acceleration_that_cannot_be_met_is_answered_with_the_reason() {
    let interface = Some("no-such-interface".into());
    let a = Embedded::start(Settings {
        port: 0,
        interface,
        ..Settings::default()
    })
    .expect("starts without it");
    let session = a.session("a").expect("session");
    let stream = session.stream(Qos::fast()).expect("stream");
    assert_eq!(stream.datapath(), "udp");
    let warning = stream.warning().expect("a warning");
    assert!(warning.contains("kernel UDP"), "{warning}");
}

#[test]
fn messages_arrive_while_no_thread_of_the_application_waits() {
    let a = Embedded::start(Settings {
        port: 0,
        ..Settings::default()
    })
    .expect("runtime starts");
    let session = a.session("a").expect("session");
    let stream = session.stream(Qos::slow()).expect("stream");
    let (sender, receiver) = std::sync::mpsc::channel();
    let callback = stream
        .sink_callback(ChannelId(9), move |message| {
            // The test has its answer once; further messages are of no interest.
            let _ = sender.send(message.to_vec());
        })
        .expect("callback sink");
    let source = stream.source(ChannelId(9)).expect("source");
    emit_until_heard(&source, b"called");
    assert_eq!(
        receiver
            .recv_timeout(Duration::from_secs(20))
            .expect("called back"),
        b"called"
    );
    drop(callback);
}

#[test]
fn what_is_emitted_right_after_source_and_sink_were_opened_arrives() {
    let a = Embedded::start(Settings {
        port: 0,
        ..Settings::default()
    })
    .expect("runtime starts");
    let session = a.session("a").expect("session");
    let stream = session.stream(Qos::slow()).expect("stream");
    for round in 0..500u64 {
        let channel = ChannelId(100 + round);
        let (source, sink) = if round % 2 == 0 {
            let sink = stream.sink(channel).expect("sink");
            (stream.source(channel).expect("source"), sink)
        } else {
            let source = stream.source(channel).expect("source");
            (source, stream.sink(channel).expect("sink"))
        };
        let mut buffer = source.buffer(8).expect("buffer");
        buffer.copy_from_slice(&round.to_le_bytes());
        buffer.emit().expect("emit");
        let message = sink.consume(PATIENCE).expect("message");
        assert_eq!(&*message, round.to_le_bytes());
    }
}

#[test]
fn programs_whose_port_is_taken_get_the_next_one_where_that_is_allowed() {
    let (port, _) = ports();
    let settings = Settings {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        port: port + 500,
        next_port: true,
        ..Settings::default()
    };
    let nodes: Vec<Embedded> = (0..20)
        .map(|_| Embedded::start(settings.clone()).expect("a port"))
        .collect();
    let mut taken: Vec<u16> = nodes
        .iter()
        .map(|node| {
            node.runtime()
                .status()
                .expect("runs")
                .control_address
                .port()
        })
        .collect();
    assert_eq!(taken[0], port + 500);
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len(), nodes.len());
    let demanded = Settings {
        next_port: false,
        ..settings
    };
    let refused = Embedded::start(demanded).err().expect("the port is taken");
    assert!(
        refused.to_string().contains(&(port + 500).to_string()),
        "{refused}"
    );
}

#[test]
fn a_received_message_is_forwarded_from_the_memory_that_it_was_received_into() {
    let a = Embedded::start(Settings {
        port: 0,
        ..Settings::default()
    })
    .expect("runtime starts");
    let (here, there) = (
        a.session("here").expect("session"),
        a.session("there").expect("session"),
    );
    let (here, there) = (
        here.stream(Qos::slow()).expect("stream"),
        there.stream(Qos::slow()).expect("stream"),
    );
    let source = there.source(ChannelId(5)).expect("source");
    let far = there.sink(ChannelId(6)).expect("sink");
    let onward = here.source(ChannelId(6)).expect("source");
    let length = 4 << 20;
    // Nothing is left to copy into.
    let mut held = Vec::new();
    while let Ok(buffer) = onward.buffer(length) {
        held.push(buffer);
    }
    assert!(matches!(onward.buffer(length), Err(Error::WouldBlock)));
    for round in 0..40 {
        let sink = here.sink(ChannelId(5)).expect("sink");
        let mut buffer = source.buffer_wait(length, PATIENCE).expect("buffer");
        buffer.fill(round);
        buffer.emit().expect("emit");
        let message = sink.consume(PATIENCE).expect("message");
        let token = match round % 2 {
            0 => onward.forward(message, PATIENCE),
            _ => onward.forward_at(message, PATIENCE, takt::TaiTime::from_nanos(0)),
        };
        let token = token.expect("forwarded");
        // The sink may go while the message is under way.
        drop(sink);
        let heard = far.consume(PATIENCE).expect("message");
        assert!(heard.len() == length && heard.iter().all(|byte| *byte == round));
        drop(heard);
        takt_testing::until("completed", || match onward.outcome(token) {
            Outcome::Pending => None,
            outcome => Some(outcome),
        });
        assert_eq!(onward.pending(), 0);
    }
}
