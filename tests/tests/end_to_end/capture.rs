//! Captures of what tenants send and get past the kernel, beside what was sent, what came, and what the kernel saw of it.

use std::collections::BTreeMap;

use takt::{ChannelId, FrameOptions, Qos, Session, TaiTime, TrafficClass, Wait};
use takt_clock::{Clock, SystemTai};
use takt_lab::{Capture, LabConfig};
use takt_testing::{PATIENCE, until, until_true};
use takt_wire::channel::{DatagramHeader, Record};
use taktd::admin::proto::CapturedPacket;
use tonic::Code;

use crate::gates::tai_offset;
use crate::support::overlay::{
    PORTS, emit, flow, frame, frames, lab, sections, station, udp_socket,
};
use crate::support::{
    Capturing, Datapath, Node, Pair, attach, attach_at, introduce, number_of, put, put_at, skip,
};

const CHANNEL: ChannelId = ChannelId(5);
const OTHER: ChannelId = ChannelId(6);
/// Sockets of two tenants.
pub const LISTENERS: &str = "\
[[listener]]
path = \"DIR/press.sock\"
identity = \"press\"
[[listener]]
path = \"DIR/other.sock\"
identity = \"other\"
";

/// An application of a tenant.
pub fn tenant(node: &Node, name: &str) -> Session {
    attach_at(&node.directory.join(&format!("{name}.sock")), name)
}

/// What a copy of a message holds.
fn record(packet: &CapturedPacket) -> Record<'_> {
    assert_eq!(packet.length as usize, packet.packet.len(), "all of it");
    let (header, body) = DatagramHeader::parse(&packet.packet).expect("a datagram");
    assert_eq!((header.records, body.tag), (1, &[][..]));
    let record = header.records(body.records).next().expect("a record");
    record.expect("consistent")
}

/// A message whose parts are put together: its bytes, how many each part has, and when the last of them passed.
type Parts = (Vec<u8>, BTreeMap<u32, usize>, i64);

/// The messages of a channel that copies are of, by number, each with when its last part passed. Repetitions count once.
fn messages(packets: &[CapturedPacket], channel: ChannelId) -> BTreeMap<u64, (usize, i64)> {
    let mut parts: BTreeMap<(u32, u32), Parts> = BTreeMap::new();
    for packet in packets {
        let record = record(packet);
        let h = record.header;
        if !h.is_message() || h.channel != channel.0 {
            continue;
        }
        let new = || (vec![0; h.message_length as usize], BTreeMap::new(), 0);
        let (message, here, at) = parts.entry((h.source, h.sequence)).or_insert_with(new);
        let start = h.fragment_offset();
        message[start..start + record.payload.len()].copy_from_slice(record.payload);
        here.insert(h.fragment_index, record.payload.len());
        *at = packet.tai_ns.max(*at);
    }
    let whole = parts.into_values().filter(|(message, here, _)| {
        here.values().sum::<usize>() == message.len() && message.len() >= 8
    });
    let all = whole.map(|(message, _, at)| (number_of(&message), (message.len(), at)));
    all.collect()
}

#[test]
fn what_a_tenant_sends_and_gets_is_captured_at_both_nodes_and_nothing_of_others() {
    if skip() {
        return;
    }
    for datapath in [Datapath::Udp, Datapath::Xdp] {
        let listeners = format!("{LISTENERS}{}", datapath.section());
        let pair = Pair::with(&LabConfig::default(), &listeners);
        let [near, far] = &pair.nodes;
        let (from, to) = (tenant(near, "press"), tenant(far, "press"));
        let ends = |from: &Session, to: &Session, channel, qos: Qos| {
            let source = from.stream(qos).expect("a stream").source(channel);
            let sink = to.stream(qos).expect("a stream").sink(channel);
            let (source, sink) = (source.expect("a source"), sink.expect("a sink"));
            introduce(&source, &[&sink]);
            (source, sink)
        };
        let (source, sink) = ends(&from, &to, CHANNEL, datapath.qos());
        let (reliable, reliable_sink) = ends(&from, &to, OTHER, datapath.qos().reliable());
        // Another tenant on the same channel, at both nodes.
        let others = (tenant(near, "other"), tenant(far, "other"));
        let (stranger, _strangers_sink) = ends(&others.0, &others.1, CHANNEL, datapath.qos());
        let press = ["press".to_owned()];
        let mut out = near.admin().capture(&press, 0).expect("a capture");
        let mut came = far.admin().capture(&press, 0).expect("a capture");
        let mut all = near.admin().capture(&[], 0).expect("a capture");
        let sent: Vec<(u64, usize, Option<TaiTime>)> = (0..40)
            .map(|number| {
                let length = [8, 300, 5000, 60_000][number as usize % 4];
                let launch =
                    (number % 5 == 0).then(|| SystemTai.now().saturating_add_nanos(5_000_000));
                match launch {
                    Some(launch) => put_at(&source, number, length, launch),
                    None => put(&source, number, length),
                };
                put(&reliable, number, length);
                put(&stranger, 1000 + number, 64);
                for sink in [&sink, &reliable_sink] {
                    // What the stranger sends comes as well.
                    until_true("the message comes", || {
                        let message = sink.consume(Wait::For(PATIENCE)).expect("a message");
                        number_of(&message) == number
                    });
                }
                (number, length, launch)
            })
            .collect();
        let is_last = |packets: &[CapturedPacket]| {
            [CHANNEL, OTHER]
                .iter()
                .all(|channel| messages(packets, *channel).contains_key(&39))
        };
        let out = out.until(is_last);
        let came = came.until(is_last);
        for (packets, received, peer) in [
            (&out, false, pair.lab.host(1).address()),
            (&came, true, pair.lab.host(0).address()),
        ] {
            for packet in packets {
                assert_eq!(
                    (packet.identity.as_str(), packet.received),
                    ("press", received)
                );
                assert_eq!(
                    (packet.peer.clone(), packet.frame),
                    (peer.to_string(), false)
                );
            }
        }
        for channel in [CHANNEL, OTHER] {
            let (left, arrived) = (messages(&out, channel), messages(&came, channel));
            for &(number, length, launch) in &sent {
                let (bytes, at) = left[&number];
                let (bytes_there, _) = arrived[&number];
                assert_eq!((bytes, bytes_there), (length, length), "{number}");
                if let (CHANNEL, Some(launch)) = (channel, launch) {
                    assert!(at >= launch.as_nanos(), "{number} left at {at}");
                }
            }
        }
        // What the stranger sends comes for both; it leaves as its own.
        assert!(
            !messages(&out, CHANNEL)
                .keys()
                .any(|number| (1000..2000).contains(number))
        );
        let all = all.until(|packets| messages(packets, CHANNEL).contains_key(&1039));
        let of_others = all.iter().filter(|packet| packet.identity == "other");
        let of_others: Vec<_> = of_others.cloned().collect();
        assert_eq!(messages(&of_others, CHANNEL).len(), 40);
    }
}

#[test]
fn frames_are_captured_as_the_tenant_gave_them_when_they_leave() {
    if skip() {
        return;
    }
    for datapath in [Datapath::Udp, Datapath::Xdp] {
        let lab = lab(2);
        let (here, there) = (lab.container(0, 0), lab.container(1, 0));
        let _listener = udp_socket(there, (there.address(), PORTS[1]));
        let sections = sections(here, &station(there, lab.host(1)), datapath);
        let node = Node::start(lab.host(0), &[], &sections);
        let session = attach(&node, "talker");
        let source = frames(&session, datapath);
        let flow = flow(here, there, there.mac());
        let wire = Capture::open(lab.host(1)).expect("a capture");
        let mut capture = node.admin().capture(&[], 0).expect("a capture");
        let mut sent = Vec::new();
        for number in 0..20u8 {
            let frame = frame(&flow, &[number; 100]);
            let launch = (number % 2 == 0).then(|| SystemTai.now().saturating_add_nanos(3_000_000));
            let options = FrameOptions {
                class: TrafficClass::new(6).expect("a class"),
                launch,
                deadline: false,
            };
            let token = emit(&source, &frame, &options);
            until_true("it has left", || {
                source.outcome(token) != takt::Outcome::Pending
            });
            sent.push((frame, launch));
        }
        let captured = capture.until(|packets| packets.len() == sent.len());
        let offset = tai_offset();
        for (packet, (frame, launch)) in captured.iter().zip(&sent) {
            assert!(packet.frame && !packet.received);
            assert_eq!((packet.class, packet.length as usize), (6, frame.len()));
            assert_eq!(&packet.packet, frame);
            assert_eq!(packet.peer, lab.host(1).address().to_string());
            if let Some(launch) = launch {
                assert!(packet.tai_ns >= launch.as_nanos());
            }
            let at_wire = until("it is on the wire", || {
                let seen = wire.next(PATIENCE).expect("it captures").expect("a frame");
                seen.frame.ends_with(frame).then_some(seen.realtime_ns)
            });
            // What has a launch time is stamped when it has been handed over: it may have come by then.
            if launch.is_none() {
                assert!(packet.tai_ns <= at_wire + offset, "left after it had come");
            }
        }
    }
}

#[test]
fn a_capture_that_is_not_read_holds_nobody_up_and_what_it_lacks_is_counted() {
    if skip() {
        return;
    }
    let pair = Pair::with(&LabConfig::default(), LISTENERS);
    let [near, far] = &pair.nodes;
    let (from, to) = (tenant(near, "press"), tenant(far, "press"));
    let stream = from.stream(Qos::slow().reliable()).expect("a stream");
    let source = stream.source(CHANNEL).expect("a source");
    let sink = to.stream(Qos::slow().reliable()).expect("a stream");
    let sink = sink.sink(CHANNEL).expect("a sink");
    introduce(&source, &[&sink]);
    let mut slow = near.admin().capture(&[], 0).expect("a capture");
    let mut short = near.admin().capture(&[], 16).expect("a capture");
    // Much more than the rings hold.
    for number in 0..3000 {
        put(&source, number, 16 << 10);
        let message = sink.consume(Wait::For(PATIENCE)).expect("a message");
        assert_eq!(number_of(&message), number);
    }
    let repaired = near.admin().channel(CHANNEL.0).repaired;
    let records = slow.until_count(|count, lost| lost > 0 && count + lost >= 3000 * 12);
    assert!(
        records >= 3000 * 12 && records <= 3000 * 13 + repaired,
        "{records}"
    );
    // Of each only the beginning.
    let packets = short.until(|packets| packets.len() > 10_000);
    for packet in packets {
        assert!(packet.packet.len() == 16 && packet.length > 1000);
    }
}

#[test]
fn captures_that_cannot_be_are_refused_by_name_and_others_end_when_nobody_takes_them() {
    if skip() {
        return;
    }
    let lab = takt_lab::Lab::scratch(&LabConfig::default()).expect("a lab");
    let node = Node::start(lab.host(0), &[], LISTENERS);
    let refused = |identities: &[String], snap| {
        let refused = node.admin().capture(identities, snap).err();
        let status = refused.expect("refused");
        (status.code(), status.message().to_owned())
    };
    let (code, message) = refused(&["press".into(), "nobody".into()], 0);
    assert_eq!(code, Code::InvalidArgument);
    assert!(message.contains("the identity `nobody`"), "{message}");
    let (code, message) = refused(&[], 65_537);
    assert_eq!(code, Code::InvalidArgument);
    assert!(
        message.contains("snap = 65537: write 1 to 65536"),
        "{message}"
    );
    for _ in 0..3 {
        let four: Vec<Capturing> = (0..4)
            .map(|_| {
                until("there is room", || {
                    node.admin().capture(&["press".into()], 0).ok()
                })
            })
            .collect();
        let (code, message) = refused(&[], 0);
        assert_eq!(code, Code::ResourceExhausted);
        assert!(message.contains("4 captures run already"), "{message}");
        drop(four);
    }
}
