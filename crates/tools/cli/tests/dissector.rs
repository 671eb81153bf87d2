//! `deploy/wireshark/takt.lua`, run by tshark on what runtimes send and on what nobody should.
//!
//! Needs root; `tshark` comes with `scripts/setup.sh test`.

mod support;

use std::fs::File;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use support::{Daemon, takt};
use takt_balance_xdp::beat::{Beat, Ends, PORT as PORT_OF_BEATS};
use takt_capture::Meta;
use takt_capture::pcapng::Writer;
use takt_capture::socket::PromptSocket;
use takt_lab::{Lab, LabConfig};
use takt_testing::{Directory, until_true};
use takt_time::TrafficClass;
use takt_wire::channel::{DatagramCursor, DatagramHeader, Kind, Protection, Record, RecordHeader};
use takt_wire::trailer::Trailer;

const SCRIPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../deploy/wireshark/takt.lua"
);
/// One of those that the dissector takes for Takt's, whatever comes by it.
const PORT: u16 = 7401;

/// What tshark says of a capture: of each packet, the fields by their names.
fn dissect(path: &str) -> Vec<Value> {
    dissect_as(path, "takt frame udp pkt_comment")
}

/// Of these protocols alone.
fn dissect_as(path: &str, protocols: &str) -> Vec<Value> {
    let output = Command::new("tshark")
        .args(["-X", &format!("lua_script:{SCRIPT}"), "-r", path])
        .args(["-T", "json", "--no-duplicate-keys", "-J", protocols])
        .stderr(Stdio::piped())
        .output()
        .expect("tshark runs: scripts/setup.sh test installs it");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    let text = String::from_utf8_lossy(&output.stdout);
    for fault in ["Lua Error", "takt.lua:"] {
        assert!(!err.contains(fault) && !text.contains(fault), "{err}{text}");
    }
    let packets: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let layers = packets.into_iter();
    layers
        .map(|mut packet| packet["_source"]["layers"].take())
        .collect()
}

/// All values of a field, however deep.
fn values(layers: &Value, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    match layers {
        Value::Object(fields) => {
            for (field, value) in fields {
                match value {
                    Value::String(text) if field == name => found.push(text.clone()),
                    Value::Array(texts) if field == name => {
                        found.extend(
                            texts
                                .iter()
                                .filter_map(|text| Some(text.as_str()?.to_owned())),
                        );
                    }
                    value => found.extend(values(value, name)),
                }
            }
        }
        Value::Array(parts) => {
            for part in parts {
                found.extend(values(part, name));
            }
        }
        _ => {}
    }
    found
}

/// Whether the dissector found a fault.
fn is_faulty(layers: &Value) -> bool {
    layers.to_string().contains("takt.malformed")
}

fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let total = (28 + payload.len()) as u16;
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(port.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend((total - 20).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend_from_slice(payload);
    frame
}

fn write(path: &str, frames: impl IntoIterator<Item = Vec<u8>>) {
    let mut writer = Writer::new(File::create(path).expect("a file"), 65_535).expect("written");
    for (at, frame) in (1_700_000_000_000_000_000..).zip(frames) {
        let meta = Meta {
            utc_ns: at,
            length: frame.len() as u32,
            link_type: 1,
        };
        writer.packet(&meta, &frame).expect("written");
    }
    writer.flush().expect("written");
}

#[test]
fn trailers_are_shown_and_padding_is_none() {
    let directory = Directory::new();
    let path = directory.text("stamped.pcapng");
    let (sequence, sent_ns) = (0xf000_0001, 1_700_000_037_000_000_042);
    let trailer = Trailer { sequence, sent_ns }.emit();
    let mut broken = trailer;
    broken[9] ^= 1;
    let padded = [&trailer[..], &[0; 5]].concat();
    let behind = [&trailer[..], &padded, &broken, &[0; 18]];
    write(
        &path,
        behind.map(|behind| [&udp(9, b"anything"), behind].concat()),
    );
    let packets = dissect_as(&path, "takt.trailer");
    let fields = |name| packets.iter().map(move |packet| values(packet, name));
    let of = |value: String| vec![vec![value.clone()], vec![value], vec![], vec![]];
    let told: Vec<_> = fields("takt.trailer.sequence").collect();
    assert_eq!(told, of(sequence.to_string()));
    let told: Vec<_> = fields("takt.trailer.sent").collect();
    assert_eq!(told, of(sent_ns.to_string()));
}

/// A datagram with records of all kinds that hold data.
fn datagram() -> Vec<u8> {
    let mut bytes = vec![0; 400];
    let mut cursor = DatagramCursor::new();
    let record = RecordHeader {
        channel: 0x0102_0304_0506_0708,
        source: 9,
        sequence: 3,
        message_length: 5,
        fragment_index: 0,
        fragment_stride: 3,
        class: TrafficClass::new(7).expect("a class"),
        kind: Kind::Message,
    };
    for (index, part) in [(0, &b"hel"[..]), (1, b"lo")] {
        let header = RecordHeader {
            fragment_index: index,
            ..record
        };
        let payload = cursor.push(&mut bytes, &header).expect("room");
        payload.copy_from_slice(part);
    }
    let whole = RecordHeader {
        fragment_stride: 0,
        kind: Kind::Reliable { number: 12 },
        ..record
    };
    let payload = cursor.push(&mut bytes, &whole).expect("room");
    payload.copy_from_slice(b"whole");
    let length = cursor.finish(&mut bytes, Protection::None, 77, 123, 0);
    bytes.truncate(length);
    bytes
}

#[test]
fn records_are_shown_as_they_were_written_on_any_port() {
    let directory = Directory::new();
    let path = directory.text("records.pcapng");
    write(&path, [udp(PORT, &datagram()), udp(9, &datagram())]);
    let packets = dissect(&path);
    assert_eq!(packets.len(), 2);
    for layers in packets {
        assert!(!is_faulty(&layers), "{layers}");
        let of = |name| values(&layers, name);
        assert_eq!(of("takt.channel"), ["72623859790382856"; 3]);
        assert_eq!(of("takt.payload"), ["68:65:6c", "6c:6f", "77:68:6f:6c:65"]);
        assert_eq!(of("takt.fragment"), ["0", "1", "0"]);
        assert_eq!(of("takt.number"), ["0", "0", "12"]);
        assert_eq!(of("takt.class"), ["7"; 3]);
        assert_eq!(of("takt.sender"), ["0x0000004d"]);
        assert_eq!(of("takt.send_time"), ["123"]);
    }
}

/// The records that a receiver takes, and whether it refuses anything.
fn received(datagram: &[u8]) -> (usize, bool) {
    let Ok((header, body)) = DatagramHeader::parse(datagram) else {
        return (0, true);
    };
    if header.protection == Protection::Encrypt {
        return (0, false);
    }
    let records: Vec<_> = header.records(body.records).collect();
    let whole = records.iter().flatten().count();
    // What follows is the runtime's to refuse, and has a length of its own.
    let fits = |record: &&Record<'_>| match record.header.kind {
        Kind::Announce => record.payload.len() == 40,
        Kind::Acknowledge => record.payload.len() == 72,
        Kind::Message | Kind::Reliable { .. } => true,
    };
    let good = records.iter().flatten().filter(fits).count();
    (whole, good < records.len())
}

fn hex(bytes: &[u8]) -> Vec<u8> {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    digits.collect::<String>().into_bytes()
}

#[test]
fn what_a_receiver_refuses_is_shown_as_malformed_and_nothing_else_is() {
    let whole = datagram();
    // Every byte in several ways, and every length.
    let mut datagrams: Vec<Vec<u8>> = (0..whole.len()).map(|end| whole[..end].to_vec()).collect();
    for at in 0..whole.len() {
        for value in [0, 1, 2, 3, 8, 0x7f, 0xff] {
            let mut bent = whole.clone();
            bent[at] = value;
            datagrams.push(bent);
        }
    }
    datagrams.retain(|datagram| !datagram.is_empty());
    let directory = Directory::new();
    let path = directory.text("bent.pcapng");
    write(&path, datagrams.iter().map(|datagram| udp(PORT, datagram)));
    let packets = dissect(&path);
    assert_eq!(packets.len(), datagrams.len());
    let mut refused = 0;
    for (datagram, layers) in datagrams.iter().zip(packets) {
        let (good, faulty) = received(datagram);
        let text = || String::from_utf8_lossy(&hex(datagram)).into_owned();
        assert_eq!(is_faulty(&layers), faulty, "{}: {layers}", text());
        if !faulty {
            let shown = values(&layers, "takt.channel").len();
            assert_eq!(shown, good, "{}: {layers}", text());
        }
        refused += usize::from(faulty);
    }
    assert!(refused > 200 && refused < datagrams.len(), "{refused}");
}

#[test]
fn beats_of_load_management_are_shown_and_what_no_receiver_takes_is_malformed() {
    let beat = Beat {
        load: 7,
        sender: 9,
        functions: 5,
        sequence: 1_700_000_000_000_000_000,
    };
    let ends = Ends {
        from: [10, 0, 0, 3].into(),
        to: [10, 0, 0, 2].into(),
    };
    let whole = beat.write(None, ends).to_vec();
    let mut datagrams: Vec<Vec<u8>> = (4..whole.len()).map(|end| whole[..end].to_vec()).collect();
    let mut newer = whole.clone();
    newer[4] = 3;
    let mut older = whole.clone();
    older[4] = 1;
    datagrams.extend([newer, older, whole]);
    let directory = Directory::new();
    let path = directory.text("beats.pcapng");
    write(&path, datagrams.iter().map(|beat| udp(PORT_OF_BEATS, beat)));
    let packets = dissect(&path);
    assert_eq!(packets.len(), datagrams.len());
    for (datagram, layers) in datagrams.iter().zip(&packets) {
        let refused = Beat::read(datagram, None, ends).is_err();
        assert_eq!(is_faulty(layers), refused, "{datagram:x?}: {layers}");
    }
    let of = |name| values(packets.last().expect("packets"), name);
    assert_eq!(of("takt.beat.load"), ["7"]);
    assert_eq!(of("takt.beat.sender"), ["0x00000009"]);
    assert_eq!(of("takt.beat.functions"), ["0x0000000000000005"]);
    assert_eq!(of("takt.beat.sequence"), ["1700000000000000000"]);
}

#[test]
fn peering_that_is_cut_short_or_bent_is_malformed_and_never_an_error_of_the_script() {
    let mut seed = 1_u32;
    let mut random = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    let mut datagrams = Vec::new();
    for kind in 0..=22_u8 {
        for length in (0..200).step_by(7) {
            let mut datagram = b"TKTP\x03".to_vec();
            datagram.push(kind);
            datagram.extend((0..length).map(|_| random() & random()));
            datagrams.push(datagram);
        }
    }
    let directory = Directory::new();
    let path = directory.text("peering.pcapng");
    write(&path, datagrams.iter().map(|datagram| udp(9, datagram)));
    let packets = dissect(&path);
    assert_eq!(packets.len(), datagrams.len());
    assert!(packets.iter().all(|layers| layers.get("takt").is_some()));
    let faulty = packets.iter().filter(|layers| is_faulty(layers)).count();
    assert!(faulty > datagrams.len() / 2);
}

#[test]
fn what_two_runtimes_send_each_other_is_shown_without_a_fault() {
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab: needs root");
    let directory = Directory::new();
    let host = lab.host(0);
    let inside = host.enter().expect("the host");
    let mut socket = PromptSocket::open("lo").expect("a packet socket");
    drop(inside);
    let start = |arguments: &[&str]| {
        let program = takt(&[]);
        let mut command = host.command(program.get_program()).expect("the host");
        command
            .args(arguments)
            .env("XDG_RUNTIME_DIR", directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Child(command.spawn().expect("takt starts"))
    };
    let mut reader = start(&["sub", "7", "--count", "1"]);
    let mut writer = start(&["pub", "7", "seen on the wire", "--wait", "1min"]);
    let mut frames = Vec::new();
    until_true("the message arrives", || {
        let packet = |_: &Meta, bytes: &[u8]| frames.push(bytes.to_vec());
        socket.take(packet).expect("captured");
        reader.0.try_wait().expect("waited").is_some()
    });
    assert!(writer.0.wait().expect("waited").success());
    let packet = |_: &Meta, bytes: &[u8]| frames.push(bytes.to_vec());
    socket.take(packet).expect("captured");
    let path = directory.text("runtimes.pcapng");
    write(&path, frames);
    let packets = dissect(&path);
    let ours: Vec<_> = packets
        .iter()
        .filter(|layers| layers.get("takt").is_some())
        .collect();
    let of = |name: &str| -> Vec<String> {
        ours.iter()
            .flat_map(|layers| values(layers, name))
            .collect()
    };
    assert!(ours.iter().all(|layers| !is_faulty(layers)), "{ours:?}");
    assert!(!of("takt.magic").is_empty(), "peering is recognised");
    assert!(!of("takt.peering.type").is_empty());
    assert_eq!(of("takt.channel").first().map(String::as_str), Some("7"));
    let text = "seen on the wire".bytes().map(|byte| format!("{byte:02x}"));
    let text: Vec<_> = text.collect();
    assert!(of("takt.payload").contains(&text.join(":")), "{ours:?}");
}

#[test]
fn a_capture_of_the_admin_api_is_shown_with_tenants_and_directions() {
    let nodes = [(); 2].map(|()| Daemon::start(""));
    let address = |node: &Daemon| {
        let status = node.takt(&["status", "--json"]).json();
        let address = status["node"]["address"].as_str();
        address.expect("an address").to_owned()
    };
    for (one, other) in [(0, 1), (1, 0)] {
        let added = nodes[one].takt(&["peer", "add", &address(&nodes[other])]);
        assert_eq!(added.code, Some(0), "{added:?}");
    }
    let sub = nodes[1].spawn(&["sub", "7", "--count", "3"]);
    let path = nodes[0].directory.text("capture.pcapng");
    let mut to_file = nodes[0].spawn(&["capture", "--write", &path, "--count", "3"]);
    let mut lines = nodes[1].spawn(&["capture", "default", "--count", "3", "--json"]);
    for capture in [&mut to_file, &mut lines] {
        capture.line_with("capturing");
    }
    let sent = nodes[0].takt(&["pub", "7", "captured", "--count", "3", "--wait", "60s"]);
    assert_eq!(sent.code, Some(0), "{sent:?}");
    assert_eq!(sub.end().out, "captured\n".repeat(3));
    let text = lines.end();
    assert!(text.err.contains("3 captured, 0 left out"), "{text:?}");
    for (number, line) in (0..).zip(text.out.lines()) {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let expected = [("channel", 7), ("sequence", number), ("message_length", 8)];
        for (field, value) in expected {
            assert_eq!(line[field], value, "{line}");
        }
        assert_eq!(
            (&line["received"], &line["identity"]),
            (&true.into(), &"default".into())
        );
    }
    let ended = to_file.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains("3 captured, 0 left out"), "{ended:?}");
    let mut nothing = nodes[0].spawn(&["capture"]);
    nothing.line_with("capturing");
    nothing.signal(Signal::INT);
    let ended = nothing.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""));
    assert!(ended.err.contains("0 captured"), "{ended:?}");
    let packets = dissect(&path);
    assert_eq!(packets.len(), 3);
    let payload = "captured".bytes().map(|byte| format!("{byte:02x}"));
    let payload: Vec<_> = payload.collect();
    for layers in &packets {
        assert!(!is_faulty(layers), "{layers}");
        let of = |name: &str| values(layers, name);
        assert_eq!(of("takt.channel"), ["7"]);
        assert_eq!(of("takt.payload"), [payload.join(":")]);
        assert_eq!(of("frame.packet_flags_direction").len(), 1, "{layers}");
        assert!(layers.to_string().contains("default"), "{layers}");
    }
}

/// A process that ends with its test.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
