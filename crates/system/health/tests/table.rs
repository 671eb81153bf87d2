//! What a table says of packets that are made here, with what was done to them known.

use std::net::IpAddr;

use proptest::prelude::*;
use takt_health::flow::Flow;
use takt_health::key::Way;
use takt_health::learn;
use takt_health::level::Level;
use takt_health::packet::LinkType;
use takt_health::rule::Kpi;
use takt_health::spec::{Document, Spec};
use takt_health::table::{Config, Table, What};
use takt_time::TrafficClass;
use takt_wire::channel::{DatagramCursor, Kind, Protection, RecordHeader};
use takt_wire::trailer::Trailer;

const MS: i64 = 1_000_000;
const START: i64 = 1_700_000_000_000_000_000;

/// An IP packet with a datagram.
fn udp(source: [u8; 4], ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let total = (28 + payload.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(total.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet.extend(source);
    packet.extend([10, 0, 0, 2]);
    packet.extend(ports[0].to_be_bytes());
    packet.extend(ports[1].to_be_bytes());
    packet.extend((total - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend_from_slice(payload);
    packet
}

fn take(table: &mut Table, now_ns: i64, packet: &[u8]) {
    let _ = table.take(now_ns, LinkType::Raw, packet, packet.len() as u32);
}

fn table(document: &str) -> Table {
    let document = Document::read(document).expect("a document");
    Table::new(Config::default(), document)
}

fn only(table: &Table) -> &Flow {
    assert_eq!(table.flows().len(), 1);
    &table.flows()[0]
}

const CAMERA: &str = r#"
[[flow]]
name = "camera"
match = "udp * > *:5004"
period = "60Hz"
max-delay = "10ms"
max-burst = 3
hold = "100ms"

[[rule]]
name = "late"
when = "delay > 9ms"
until = "delay < 5ms"
hold = "50ms"
do = ["event", "metric"]
"#;

#[test]
fn the_shift_of_a_camera_is_the_delay_that_was_added_and_levels_follow_it() {
    let mut table = table(CAMERA);
    let packet = udp([10, 0, 0, 1], [4000, 5004], &[0; 100]);
    let mut changes = Vec::new();
    let mut rules = Vec::new();
    for burst in 0..600_i64 {
        // Rises to 8.3 ms (yellow from 8 ms on, 0.8 of the limit), to 12 ms, and falls.
        let added = match burst {
            0..200 => 0,
            200..260 => 83 * MS / 10,
            260..400 => 12 * MS,
            _ => 0,
        };
        for part in 0..3 {
            let sent = START + burst * 16_666_667 + part * 20_000;
            take(&mut table, sent + added, &packet);
        }
        let told = only(&table).last_delay_ns().expect("a delay");
        // What is told differs by what the envelope has followed a slow sender meanwhile: 200 ppm.
        let followed = 16_666_667 * 200 * (burst - 199).max(0) / 1_000_000 + 20_001;
        assert!(
            told <= added && told >= (added - followed).max(0),
            "{told} of {added} in {burst}"
        );
        for event in table.take_events() {
            match event.what {
                What::Level {
                    from, to, because, ..
                } => changes.push((burst, from, to, because)),
                What::Rule { begins, .. } => rules.push((burst, begins)),
            }
        }
    }
    let kinds: Vec<_> = changes
        .iter()
        .map(|(_, from, to, why)| (*from, *to, *why))
        .collect();
    assert_eq!(
        kinds,
        [
            (Level::Green, Level::Yellow, Some("delay")),
            (Level::Yellow, Level::Red, Some("delay")),
            (Level::Red, Level::Green, None),
        ],
        "{changes:?}"
    );
    assert_eq!((changes[0].0, changes[1].0), (200, 260));
    // Six bursts are 100 ms.
    assert!((405..=407).contains(&changes[2].0), "{changes:?}");
    assert_eq!(rules.len(), 2);
    assert_eq!(rules[0], (260, true));
    let report = only(&table).report(None);
    assert_eq!(
        (report.longest_burst, report.missing, report.bursts),
        (3, Some(0), 600)
    );
}

#[test]
fn beats_of_a_slow_sender_are_followed_however_short_its_period_is() {
    // Less than twice what its clock may be slow; of the shortest one, a beat of ten is a nanosecond late.
    for (period, distance) in [
        (125_000, 1_250_120),
        (1_000_000, 10_001_000),
        (1_999_999, 20_002_000),
        (1_000, 10_001),
    ] {
        let document = format!("[[flow]]\nname = \"a\"\nmatch = \"*\"\nperiod = \"{period}ns\"\n");
        let mut table = table(&document);
        let packet = udp([10, 0, 0, 1], [4000, 5004], &[0; 100]);
        for beat in 0..100_000_i64 {
            take(&mut table, START + beat * distance / 10, &packet);
        }
        let delay = only(&table).last_delay_ns().expect("a delay");
        assert!(
            delay <= 1_000,
            "{delay} ns behind at a period of {period} ns"
        );
    }
}

#[test]
fn missing_beats_are_loss_where_there_are_no_numbers_and_silence_is_red() {
    let mut table = table(
        "[[flow]]\nname = \"a\"\nmatch = \"*\"\nperiod = \"1ms\"\ntolerance = \"100us\"\nmax-loss = \"1%\"\n",
    );
    let packet = udp([10, 0, 0, 1], [1, 2], &[0; 10]);
    for beat in 0..1000_i64 {
        if beat % 100 != 50 {
            take(&mut table, START + beat * MS, &packet);
        }
    }
    let flow = only(&table);
    assert_eq!(flow.report(None).missing, Some(10));
    assert_eq!(flow.value(Kpi::Lost, START, 1), Some(10.0));
    // By the missing beats the level was red; a second of quiet later it is green, but for the silence.
    table.take_events().count();
    table.sweep(START + 999 * MS + MS / 2, 10);
    assert_eq!(table.take_events().count(), 0);
    table.sweep(START + 3000 * MS, 10);
    assert_eq!(only(&table).level(), Level::Red);
}

fn rtp(sequence: u16, timestamp: u32) -> Vec<u8> {
    let mut header = vec![0x80, 0];
    header.extend(sequence.to_be_bytes());
    header.extend(timestamp.to_be_bytes());
    header.extend([0, 0, 0, 9]);
    header.extend([0; 160]);
    header
}

#[test]
fn rtp_has_a_one_way_delay_once_a_sender_report_has_come() {
    let mut table = table("");
    let delay = 3 * MS + 500_000;
    let mut report = vec![0x80, 200, 0, 6, 0, 0, 0, 9];
    let utc = START - 37_000_000_000;
    report.extend(((utc / 1_000_000_000 + 2_208_988_800) as u32).to_be_bytes());
    report.extend([0; 4]);
    report.extend(8000_u32.to_be_bytes());
    report.extend([0; 8]);
    for number in 0..100_u16 {
        let sent = START + i64::from(number) * 20 * MS;
        let payload = rtp(number, 8000 + u32::from(number) * 160);
        take(
            &mut table,
            sent + delay,
            &udp([10, 0, 0, 1], [4000, 5004], &payload),
        );
        if number == 10 {
            take(
                &mut table,
                sent + delay,
                &udp([10, 0, 0, 1], [4001, 5005], &report),
            );
        }
    }
    let flow = &table.flows()[0];
    assert!(flow.is_rtp() && flow.is_stamped());
    let told = flow.report(None);
    assert_eq!(told.carries, "rtp");
    assert_eq!(flow.last_delay_ns(), Some(delay));
    assert_eq!(told.delay.expect("delays").min_ns, delay);
    assert_eq!(told.jitter_ns, Some(0.0));
    assert_eq!(told.lost, Some(0));
}

#[test]
fn what_looks_like_rtp_once_is_none() {
    let mut table = table("");
    take(
        &mut table,
        START,
        &udp([10, 0, 0, 1], [4000, 5004], &rtp(7, 7)),
    );
    take(
        &mut table,
        START + MS,
        &udp([10, 0, 0, 1], [4000, 5004], b"hello"),
    );
    take(
        &mut table,
        START + MS,
        &udp([10, 0, 0, 1], [4000, 5004], &rtp(900, 7)),
    );
    let report = only(&table).report(None);
    assert_eq!(
        (report.carries, report.lost, report.jitter_ns),
        ("none", None, None)
    );
}

#[test]
fn what_comes_beside_rtp_by_its_ports_does_not_decide_that_a_flow_is_none() {
    let stun = [&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42][..], &[7; 12]].concat();
    let receiver_report = [0x81, 201, 0, 7, 0, 0, 0, 9];
    for first in [
        &stun[..],
        &[22, 0xfe, 0xfd, 0],
        &[0x40, 0, 0, 0],
        &receiver_report,
        &[],
    ] {
        let mut table = table("");
        take(&mut table, START, &udp([10, 0, 0, 1], [4000, 5004], first));
        for number in (0..100_u16).filter(|number| *number != 50) {
            let payload = rtp(number, u32::from(number) * 160);
            let now = START + i64::from(number) * 20 * MS;
            take(&mut table, now, &udp([10, 0, 0, 1], [4000, 5004], &payload));
            // And between its first packets.
            take(&mut table, now, &udp([10, 0, 0, 1], [4000, 5004], first));
        }
        let report = only(&table).report(None);
        assert_eq!(
            (report.carries, report.lost),
            ("rtp", Some(1)),
            "{first:x?}"
        );
    }
}

/// Two sources in turn on one 5-tuple, as of BUNDLE (RFC 8843).
#[test]
fn each_source_of_an_rtp_flow_has_its_own_numbers_and_losses_add_up() {
    let mut table =
        table("[[flow]]\nname = \"bundle\"\nmatch = \"*\"\nmax-loss = \"1%\"\nstamp = \"rtp\"\n");
    let of = |source: u8, sequence: u16| {
        let mut payload = rtp(sequence, u32::from(sequence) * 160);
        payload[11] = source;
        udp([10, 0, 0, 1], [4000, 5004], &payload)
    };
    for number in 0..200_u16 {
        let at = START + i64::from(number) * 20 * MS;
        if number % 10 != 7 {
            take(&mut table, at, &of(1, number));
        }
        take(&mut table, at + MS, &of(2, 5000 + number));
        if number == 100 {
            take(&mut table, at + MS, &of(2, 5000 + number));
        }
    }
    let report = only(&table).report(None);
    assert_eq!((report.lost, report.duplicates), (Some(20), Some(1)));
    assert_eq!(report.jitter_ns, Some(0.0));
    assert_eq!(report.worst_level, Level::Red);
    // Beyond as many as are told apart, what was counted stays.
    for source in 10..40 {
        for number in 0..4_u16 {
            take(&mut table, START + 5000 * MS, &of(source, number));
        }
    }
    let report = only(&table).report(None);
    assert_eq!((report.lost, report.duplicates), (Some(20), Some(1)));
}

#[test]
fn why_nothing_is_learned_of_a_flow_is_told() {
    let mut table = table("");
    let packet = udp([10, 0, 0, 1], [4000, 5004], b"hello");
    let learned = |table: &Table| takt_health::learn::propose(only(table), "a".into(), 1.5);
    take(&mut table, START, &packet);
    let why = learned(&table).expect_err("too few");
    assert_eq!(why, "1 packets, and it takes 20");
    for number in (1..600).filter(|number| *number != 300) {
        take(&mut table, START + number * 10 * MS, &packet);
    }
    let why = learned(&table).expect_err("no period");
    assert!(why.contains("599 beats 10ms to 20ms apart"), "{why}");
}

#[test]
fn malformed_headers_are_counted_also_where_the_flow_can_be_told() {
    let mut table = table("");
    let mut packet = udp([10, 0, 0, 1], [4000, 5004], b"hello");
    packet[25] = 1;
    take(&mut table, START, &packet);
    assert_eq!(table.counters().malformed, 1);
    assert_eq!(only(&table).key.ports(), Some((4000, 5004)));
}

/// A datagram of lane 5 with a message of source 3 on each of these channels.
fn channels(numbers: &[u64], sequence: u32, class: TrafficClass) -> Vec<u8> {
    let mut bytes = vec![0; 256];
    let mut cursor = DatagramCursor::new();
    for channel in numbers {
        let record = RecordHeader {
            channel: *channel,
            source: 3,
            sequence,
            message_length: 12,
            fragment_index: 0,
            fragment_stride: 0,
            class,
            kind: Kind::Message,
        };
        cursor.push(&mut bytes, &record).expect("room").fill(1);
    }
    let length = cursor.finish(&mut bytes, Protection::None, 5, START, 0);
    bytes.truncate(length);
    bytes
}

#[test]
fn channels_of_a_takt_datagram_are_flows_with_their_delays_and_losses() {
    let mut table = table("");
    for number in [0_u32, 1, 3, 4] {
        let bytes = channels(&[7, 8], number, TrafficClass::BEST_EFFORT);
        take(
            &mut table,
            START + 40_000,
            &udp([10, 0, 0, 1], [7400, 7401], &bytes),
        );
    }
    assert_eq!(table.flows().len(), 3);
    let flow = table
        .flows()
        .iter()
        .find(|flow| flow.key.channel_number() == Some(8))
        .expect("channel 8");
    assert_eq!(
        flow.key.to_string(),
        "channel 8 class 0 from 10.0.0.1 lane 5 source 3"
    );
    let report = flow.report(None);
    assert_eq!((report.packets, report.lost), (4, Some(1)));
    assert_eq!(flow.last_delay_ns(), Some(40_000));
}

#[test]
fn copies_of_a_node_are_flows_by_class_and_way_however_much_of_them_there_is() {
    let mut table = table("");
    let peer = Some(IpAddr::from([10, 0, 0, 2]));
    let class = |number| TrafficClass::new(number).expect("a class");
    for number in [0, 1, 3] {
        let of_class_6 = channels(&[8], number, class(6));
        let size = of_class_6.len() as u32;
        for (way, copy) in [
            (Way::To, &of_class_6[..]),
            // Without its payload, but for one byte.
            (Way::From, &of_class_6[..of_class_6.len() - 11]),
            (Way::From, &channels(&[8], number, class(2))),
        ] {
            let seen = table.take_copy(START + 500, (way, peer), copy, size);
            assert!(seen.is_ok_and(|seen| seen.flow.is_some()));
        }
    }
    let mut flows: Vec<_> = table.flows().iter().map(|flow| flow.report(None)).collect();
    flows.sort_by(|a, b| a.flow.cmp(&b.flow));
    let names = flows.iter().map(|flow| flow.flow.as_str());
    let source = "lane 5 source 3";
    assert_eq!(
        names.collect::<Vec<_>>(),
        [
            format!("channel 8 class 2 from 10.0.0.2 {source}"),
            format!("channel 8 class 6 from 10.0.0.2 {source}"),
            format!("channel 8 class 6 to 10.0.0.2 {source}"),
        ]
    );
    for flow in &flows {
        assert_eq!(
            (flow.packets, flow.lost, flow.carries),
            (3, Some(1), "takt")
        );
        assert_eq!(flow.delay.as_ref().map(|delay| delay.max_ns), Some(500));
    }
    // What is none is refused and counted.
    let whole = channels(&[8], 4, class(6));
    for nonsense in [&[][..], &[0; 24], &whole[..30]] {
        assert!(
            table
                .take_copy(START, (Way::To, None), nonsense, 60)
                .is_err()
        );
    }
    assert_eq!(table.counters().malformed, 3);
    assert_eq!(table.flows().len(), 3);
}

#[test]
fn trailers_tell_delay_and_loss_of_flows_that_carry_nothing() {
    let document = "[[flow]]\nname = \"deaf\"\nmatch = \"udp * > *:9\"\nstamp = \"none\"\n\
                    [[flow]]\nname = \"all\"\nmatch = \"udp * > *:10\"\nstamp = \"trailer\"\n";
    let mut table = table(document);
    for port in [8, 9, 10] {
        let packet = udp([10, 0, 0, 1], [4000, port], b"what it may be");
        for number in [0, 1, 2, 4, 5] {
            let trailer = Trailer {
                sequence: number,
                sent_ns: START,
            };
            let mut stamped = packet.clone();
            // The first one comes without, as when stamping begins later.
            if number > 0 {
                stamped.extend(trailer.emit());
                stamped.extend([0; 6]);
            }
            take(&mut table, START + 700, &stamped);
        }
        // One bit is another, and it is padding.
        let mut broken = Trailer {
            sequence: 9,
            sent_ns: 0,
        }
        .emit();
        broken[7] ^= 1;
        take(&mut table, START + 700, &[&packet[..], &broken].concat());
    }
    let flows: Vec<_> = table.flows().iter().map(|flow| flow.report(None)).collect();
    for flow in &flows {
        let delay = flow
            .delay
            .as_ref()
            .map(|delay| (delay.min_ns, delay.max_ns));
        let told = (flow.carries, flow.packets, flow.lost, delay);
        let expected = match flow.flow.ends_with(":9") {
            true => ("none", 6, None, None),
            false => ("trailer", 6, Some(1), Some((700, 700))),
        };
        assert_eq!(told, expected, "{}", flow.flow);
    }
    assert_eq!(flows.len(), 3);
}

/// A packet that `takt stamp` has stamped.
fn stamped(packet: &[u8], sequence: u32, sent_ns: i64) -> Vec<u8> {
    let trailer = Trailer { sequence, sent_ns };
    [packet, &trailer.emit()].concat()
}

#[test]
fn a_delay_is_unknown_when_stamps_have_ended_for_a_while() {
    let mut table = table(
        "[[flow]]\nname = \"a\"\nmatch = \"*\"\nmax-delay = \"1ms\"\nmax-jitter = \"100us\"\n\
         [[rule]]\nname = \"late\"\nwhen = \"delay > 1ms\"\ndo = [\"event\"]\n",
    );
    let packet = udp([10, 0, 0, 1], [4000, 5004], &[0; 100]);
    let mut now = START;
    for number in 0..20 {
        now += 10 * MS;
        let delay = 5 * MS + i64::from(number % 2) * 2 * MS;
        take(&mut table, now, &stamped(&packet, number, now - delay));
    }
    assert_eq!(only(&table).level(), Level::Red);
    // A few packets without are nothing yet.
    for _ in 0..10 {
        now += 10 * MS;
        take(&mut table, now, &packet);
    }
    assert!(only(&table).last_delay_ns().is_some());
    for _ in 0..400 {
        now += 10 * MS;
        take(&mut table, now, &packet);
    }
    let flow = only(&table);
    assert_eq!((flow.last_delay_ns(), flow.level()), (None, Level::Green));
    assert_eq!(rules(&mut table), [true, false]);
    // What there was is still told, and stamps that come again are taken.
    let report = only(&table).report(None);
    assert_eq!(report.delay.map(|delay| delay.max_ns), Some(7 * MS));
    take(&mut table, now, &stamped(&packet, 20, now - MS / 2));
    assert_eq!(only(&table).last_delay_ns(), Some(MS / 2));
}

#[test]
fn delays_of_a_flow_are_by_stamps_or_by_beats_and_never_by_both() {
    let mut table = table("[[flow]]\nname = \"a\"\nmatch = \"*\"\nperiod = \"10ms\"\n");
    let packet = udp([10, 0, 0, 1], [4000, 5004], &[0; 100]);
    let mut now = START;
    take(&mut table, now, &packet);
    assert_eq!(only(&table).report(None).delay_by, Some("shift"));
    for number in 0..100 {
        now += 10 * MS;
        take(&mut table, now, &stamped(&packet, number, now - 3 * MS));
        now += 10 * MS;
        take(&mut table, now, &packet);
        assert_eq!(only(&table).last_delay_ns(), Some(3 * MS));
    }
    let report = only(&table).report(None);
    let delay = report.delay.map(|delay| (delay.min_ns, delay.max_ns));
    assert_eq!(
        (report.delay_by, delay),
        (Some("stamp"), Some((3 * MS, 3 * MS)))
    );
    // Stamps have ended: beats tell again, from their own beginning.
    for _ in 0..300 {
        now += 10 * MS;
        take(&mut table, now, &packet);
    }
    let report = only(&table).report(None);
    let delay = report.delay.map(|delay| (delay.min_ns, delay.max_ns));
    assert_eq!((report.delay_by, delay), (Some("shift"), Some((0, 0))));
}

#[test]
fn another_stamp_of_other_specifications_is_read_from_then_on() {
    let document = |stamp: &str| {
        let text = format!(
            "[[flow]]\nname = \"a\"\nmatch = \"*\"\nmax-delay = \"1ms\"\nstamp = \"{stamp}\"\n"
        );
        Document::read(&text).expect("a document")
    };
    let mut table = Table::new(Config::default(), document("trailer"));
    let packet = udp([10, 0, 0, 1], [4000, 5004], &[0; 100]);
    let take = |table: &mut Table, at| {
        let now = START + at * MS;
        take(table, now, &stamped(&packet, at as u32 * 2, now - 3 * MS));
    };
    (0..10).for_each(|at| take(&mut table, at));
    let told = |table: &Table| {
        let flow = only(table);
        let report = flow.report(None);
        (
            report.carries,
            flow.last_delay_ns(),
            report.lost,
            flow.level(),
        )
    };
    let of_trailers = ("trailer", Some(3 * MS), Some(9), Level::Red);
    assert_eq!(told(&table), of_trailers);
    table.replace_document(document("none"));
    (10..20).for_each(|at| take(&mut table, at));
    assert_eq!(told(&table), ("none", None, None, Level::Green));
    for stamp in ["trailer", "none", "auto"] {
        table.replace_document(document(stamp));
        (20..30).for_each(|at| take(&mut table, at));
    }
    assert_eq!(told(&table), of_trailers);
}

#[test]
fn packets_that_come_late_are_lost_only_until_they_come() {
    let document = "[[flow]]\nname = \"a\"\nmatch = \"*\"\nmax-loss = \"0%\"\nhold = \"10ms\"\n";
    let packet = udp([10, 0, 0, 1], [4000, 5004], &[0; 100]);
    // One is late by one, and in a window after that in which it was missing; then those of two rows, and of one row.
    for (apart, numbers) in [
        (MS, &[0, 1, 3, 2, 4][..]),
        (700 * MS, &[0, 1, 3, 2, 4]),
        (MS, &[0, 2, 4, 1, 3, 5]),
        (MS, &[0, 4, 1, 2, 3, 5]),
    ] {
        let mut table = table(document);
        let mut now = START;
        for number in numbers {
            now += apart;
            take(&mut table, now, &stamped(&packet, *number, now));
            if *number == 2 && numbers[1] == 1 {
                assert_eq!(only(&table).value(Kpi::Lost, now, 1), Some(0.0));
            }
        }
        let flow = only(&table);
        assert_eq!(flow.value(Kpi::Lost, now, 1), Some(0.0), "{numbers:?}");
        let report = flow.report(None);
        assert_eq!(
            (report.lost, report.longest_loss),
            (Some(0), Some(0)),
            "{numbers:?}"
        );
        // Nothing holds the level up any more.
        take(&mut table, now + 11 * MS, &stamped(&packet, 6, now));
        take(&mut table, now + 12 * MS, &stamped(&packet, 5, now));
        take(&mut table, now + 30 * MS, &stamped(&packet, 7, now));
        assert_eq!(only(&table).level(), Level::Green, "{numbers:?}");
    }
    // A row that stays lost is the longest one, whatever comes late after it.
    let mut table = table(document);
    for number in [0, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17] {
        take(&mut table, START, &stamped(&packet, number, START));
    }
    let report = only(&table).report(None);
    assert_eq!((report.lost, report.longest_loss), (Some(3), Some(3)));
}

#[test]
fn what_is_learned_of_a_flow_whose_packets_come_late_allows_them() {
    let mut table = table("");
    let packet = udp([10, 0, 0, 1], [4000, 5004], &[0; 100]);
    for at in 0..100_u32 {
        // Two of ten change places.
        let number = match at % 10 {
            3 => at + 1,
            4 => at - 1,
            _ => at,
        };
        let now = START + i64::from(at) * MS;
        take(&mut table, now, &stamped(&packet, number, now));
    }
    let learned = takt_health::learn::propose(only(&table), "a".into(), 1.0).expect("learned");
    assert_eq!(learned.spec.max_loss, Some(0.1), "{:?}", learned.because);
    let told = "0 of 100 packets lost, and 10 late".to_owned();
    assert!(learned.because.contains(&told), "{:?}", learned.because);
}

/// An AVTP packet of a stream.
fn avtp(sequence: u8) -> Vec<u8> {
    let mut frame = vec![0x91, 0xe0, 0xf0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x22, 0xf0];
    frame.extend([2, 0x80, sequence, 0]);
    frame.extend([0; 40]);
    frame
}

#[test]
fn long_outages_are_loss_also_where_numbers_come_round_or_begin_anew() {
    let document = "[[flow]]\nname = \"a\"\nmatch = \"*\"\nperiod = \"1ms\"\nmax-loss = \"1%\"\n";
    // An outage of so many packets, whose numbers the sender has counted or not.
    for (missing, after) in [
        (50, 150),
        (100, 200),
        (256, 356),
        (300, 400),
        (5000, 5100),
        (300, 0),
    ] {
        let mut streams = table(document);
        let mut trailers = table(document);
        let packet = udp([10, 0, 0, 1], [4000, 5004], &[0; 100]);
        let mut take_both = |at: i64, number: u32| {
            let now = START + at * MS;
            let frame = avtp(number as u8);
            let _ = streams.take(now, LinkType::Ethernet, &frame, frame.len() as u32);
            take(&mut trailers, now, &stamped(&packet, number, now));
        };
        (0..100).for_each(|at| take_both(at.into(), at));
        (0..100).for_each(|at| take_both(i64::from(100 + missing + at), after + at));
        for table in [&streams, &trailers] {
            let flow = only(table);
            let report = flow.report(None);
            let told = (report.lost, report.longest_loss, report.worst_level);
            let missing = missing as u64;
            assert_eq!(
                told,
                (Some(missing), Some(missing), Level::Red),
                "{report:?}"
            );
        }
    }
}

#[test]
fn all_begins_anew_when_tai_is_another() {
    let mut table = table(CAMERA);
    let packet = udp([10, 0, 0, 1], [4000, 5004], &[0; 100]);
    let mut beats = |from_ns: i64| {
        let latest = (0..100).map(|burst| from_ns + burst * 16_666_667);
        latest.for_each(|now_ns| take(&mut table, now_ns, &packet));
        let now_ns = table.latest_ns().expect("packets");
        table.sweep(now_ns, 10);
        let report = only(&table).report(None);
        assert_eq!(
            (report.worst_level, report.missing),
            (Level::Green, Some(0))
        );
        assert_eq!((report.packets, report.lost), (100, None));
        table.begin_anew(37_000 * MS);
        assert!(table.flows().is_empty());
    };
    beats(START);
    // Back and forth.
    beats(START + 38_667 * MS);
    beats(START + 3_000 * MS);
}

#[test]
fn what_was_not_seen_here_is_no_loss_that_levels_and_rules_go_by() {
    let document = "[[flow]]\nname = \"a\"\nmatch = \"*\"\nperiod = \"10ms\"\nmax-loss = \"1%\"\n\
                    [[rule]]\nname = \"lossy\"\nwhen = \"lost > 0 or missing > 0 or silence > 100ms or gap > 100ms\"\ndo = [\"event\"]\n";
    let packet = udp([10, 0, 0, 1], [4000, 5004], &[0; 100]);
    for unseen in [true, false] {
        let [mut numbered, mut bare] = [table(document), table(document)];
        for number in 0..200_u32 {
            // Half a second is missing, with the kernel's word for it or not.
            if (50..100).contains(&number) {
                continue;
            }
            let now = START + i64::from(number) * 10 * MS;
            for table in [&mut numbered, &mut bare] {
                if number == 100 && unseen {
                    table.note_unseen(now);
                    table.sweep(now, 10);
                }
            }
            take(&mut numbered, now, &stamped(&packet, number, now));
            take(&mut bare, now, &packet);
        }
        let level = if unseen { Level::Green } else { Level::Red };
        for table in [&mut numbered, &mut bare] {
            assert_eq!(only(table).report(None).worst_level, level);
            assert_eq!(rules(table).is_empty(), unseen);
        }
    }
}

const SILENT: &str = "[[flow]]\nname = \"a\"\nmatch = \"*\"\nperiod = \"10ms\"\nhold = \"100ms\"\n\
                      [[rule]]\nname = \"silent\"\nwhen = \"silence > 100ms\"\nhold = \"100ms\"\ndo = [\"event\"]\n";

#[test]
fn a_flow_that_is_not_seen_stays_as_it_was() {
    let packet = udp([10, 0, 0, 1], [4000, 5004], &[0; 100]);
    for is_dead in [true, false] {
        let mut table = table(SILENT);
        take(&mut table, START, &packet);
        let mut now = START;
        let mut sweep = |table: &mut Table, ms: i64, unseen: bool| {
            for _ in 0..ms / 10 {
                now += 10 * MS;
                if unseen {
                    table.note_unseen(now);
                }
                table.sweep(now, 10);
            }
            now
        };
        let (level, told) = match is_dead {
            true => (Level::Red, vec![true]),
            false => (Level::Green, vec![]),
        };
        if is_dead {
            sweep(&mut table, 500, false);
        }
        assert_eq!((only(&table).level(), rules(&mut table)), (level, told));
        sweep(&mut table, 5000, true);
        assert_eq!((only(&table).level(), rules(&mut table)), (level, vec![]));
        // All is seen again, and of this flow there is nothing.
        let end = sweep(&mut table, 500, false);
        assert_eq!(only(&table).level(), Level::Red);
        assert_eq!(rules(&mut table), if is_dead { vec![] } else { vec![true] });
        // It comes again.
        for beat in 1..100 {
            take(&mut table, end + beat * 10 * MS, &packet);
        }
        assert_eq!(only(&table).level(), Level::Green);
        assert_eq!(rules(&mut table), [false]);
    }
}

#[test]
fn what_was_not_seen_is_of_the_past_when_the_clock_goes_back() {
    let packet = udp([10, 0, 0, 1], [4000, 5004], &[0; 100]);
    let mut table = table(SILENT);
    table.note_unseen(START + 3_600_000 * MS);
    take(&mut table, START, &packet);
    // Silence counts from the first look on.
    table.sweep(START, 10);
    table.sweep(START + 500 * MS, 10);
    assert_eq!(only(&table).level(), Level::Red);
    assert_eq!(rules(&mut table), [true]);
}

#[test]
fn a_declared_flow_is_looked_at_in_its_turn_among_the_declared_ones_alone() {
    const CAPACITY: u32 = 1 << 16;
    let document = "[[flow]]\nname = \"beat\"\nmatch = \"udp * > *:9\"\nperiod = \"10ms\"\n";
    let read = |document: &str| Document::read(document).expect("a document");
    let config = Config {
        capacity: CAPACITY as usize,
        ..Config::default()
    };
    let mut table = Table::new(config, read(document));
    let from = |number: u32| {
        let [_, a, b, c] = number.to_be_bytes();
        [10, a, b, c]
    };
    for number in 0..CAPACITY - 1 {
        take(&mut table, START, &udp(from(number), [1, 2], &[]));
    }
    take(&mut table, START, &udp([11, 0, 0, 1], [1, 9], &[]));
    let level = |table: &Table| {
        let mut flows = table.flows().iter();
        let declared = flows.find(|flow| flow.spec.is_some()).expect("declared");
        (table.flows().len(), declared.level())
    };
    let full = CAPACITY as usize;
    assert_eq!(level(&table), (full, Level::Green));
    table.sweep(START + 100 * MS, 1);
    assert_eq!(level(&table), (full, Level::Red));
    // Others take the places of those that were declared, and the other way round.
    for document in ["", document] {
        table.replace_document(read(document));
        table.sweep(START + 100 * MS, 1);
    }
    assert_eq!(level(&table), (full, Level::Red));
    let later = START + 61_000 * MS;
    for number in 0..2 * CAPACITY {
        take(&mut table, later, &udp(from(number), [3, 4], &[]));
    }
    table.sweep(later, 1);
    for last in 2..100 {
        take(&mut table, later, &udp([11, 0, 0, last], [1, 9], &[]));
    }
    table.sweep(later + 100 * MS, 99);
    let flows = table.flows().iter();
    let declared = flows.filter(|flow| flow.spec.is_some() && flow.last_ns == later);
    let levels: Vec<_> = declared.map(Flow::level).collect();
    assert_eq!(levels, [Level::Red; 98]);
}

/// Whether rules began or ended, in this order.
fn rules(table: &mut Table) -> Vec<bool> {
    let events = table.take_events();
    let rules = events.filter_map(|event| match event.what {
        What::Rule { begins, .. } => Some(begins),
        What::Level { .. } => None,
    });
    rules.collect()
}

#[test]
fn what_a_rule_has_begun_ends_with_its_flow_and_with_the_rule() {
    let document = "[[rule]]\nname = \"any\"\nwhen = \"size > 0B\"\ndo = [\"event\"]\n";
    let document = Document::read(document).expect("a document");
    let config = Config {
        capacity: 1,
        ..Config::default()
    };
    let mut table = Table::new(config, document.clone());
    take(&mut table, START, &udp([10, 0, 0, 1], [1, 2], &[0; 8]));
    assert_eq!(rules(&mut table), [true]);
    // Another flow takes its place, with the rule begun for it.
    let later = START + 61_000 * MS;
    take(&mut table, later, &udp([10, 0, 0, 2], [1, 2], &[0; 8]));
    assert_eq!(rules(&mut table), [false, true]);
    let active = |table: &Table| table.rules().next().map(|(_, count)| count.active);
    assert_eq!(active(&table), Some(1));
    // The rules are read anew: it begins again when it is found to hold.
    table.replace_document(document);
    assert_eq!(rules(&mut table), [false]);
    assert_eq!(active(&table), Some(0));
    take(&mut table, later, &udp([10, 0, 0, 2], [1, 2], &[0; 8]));
    assert_eq!(rules(&mut table), [true]);
}

#[test]
fn a_full_table_takes_no_more_and_idle_or_undeclared_flows_make_room() {
    let document = "[[flow]]\nname = \"one\"\nmatch = \"udp 10.0.0.1:1 > 10.0.0.2:9\"\nmax-loss = \"1%\"\n\
                    [[flow]]\nname = \"a\"\nmatch = \"udp * > *:9\"\nmax-loss = \"1%\"\n";
    let config = Config {
        capacity: 100,
        ..Config::default()
    };
    let mut table = Table::new(config, Document::read(document).expect("a document"));
    let from = |number: u32| {
        let [_, a, b, c] = number.to_be_bytes();
        [10, a, b, c]
    };
    for number in 0..10_000 {
        take(&mut table, START, &udp(from(number), [1, 2], &[]));
    }
    assert_eq!(table.flows().len(), 100);
    assert_eq!(table.counters().no_room, 9_900);
    // Declared ones get in at once.
    for number in 0..50 {
        take(&mut table, START, &udp(from(number), [1, 9], &[]));
    }
    let declared = |table: &Table| {
        table
            .flows()
            .iter()
            .filter(|flow| flow.spec.is_some())
            .count()
    };
    assert_eq!(declared(&table), 50);
    let later = START + 61_000 * MS;
    for number in 0..10_000 {
        take(&mut table, later, &udp(from(number), [3, 4], &[]));
    }
    // The one that is named alone is not given up, however long it has been idle.
    assert_eq!((table.flows().len(), declared(&table)), (100, 1));
    assert_eq!(fresh(&table, later), 99);
}

fn fresh(table: &Table, from_ns: i64) -> usize {
    let flows = table.flows().iter();
    flows.filter(|flow| flow.last_ns >= from_ns).count()
}

/// Whoever makes up sources of a specification's flows fills its share for a while, and nothing else.
#[test]
fn a_flood_that_a_specification_means_leaves_room_for_others_and_goes_when_it_is_idle() {
    let document = "[[flow]]\nname = \"one\"\nmatch = \"udp 10.0.0.1:1 > 10.0.0.2:7\"\nmax-loss = \"1%\"\n\
                    [[flow]]\nname = \"a\"\nmatch = \"udp * > *:9\"\nmax-loss = \"1%\"\n\
                    [[flow]]\nname = \"b\"\nmatch = \"udp * > *:10\"\nmax-loss = \"1%\"\n";
    let config = Config {
        capacity: 90,
        ..Config::default()
    };
    let mut table = Table::new(config, Document::read(document).expect("a document"));
    let from = |number: u32| {
        let [_, a, b, c] = number.to_be_bytes();
        [10, a, b, c]
    };
    let of = |table: &Table, spec: u16| {
        let flows = table.flows().iter();
        flows.filter(|flow| flow.spec == Some(spec)).count()
    };
    for number in 0..10_000 {
        take(&mut table, START, &udp(from(number), [1, 9], &[]));
    }
    assert_eq!((table.flows().len(), of(&table, 1)), (90, 90));
    // Others get in, up to their share; the one that is named alone always.
    for number in 0..10_000 {
        take(&mut table, START, &udp(from(number), [1, 10], &[]));
    }
    assert_eq!((of(&table, 1), of(&table, 2)), (60, 30));
    for number in 0..10_000 {
        take(&mut table, START, &udp(from(number), [2, 9], &[]));
    }
    assert_eq!((of(&table, 1), of(&table, 2)), (60, 30));
    take(&mut table, START, &udp([10, 0, 0, 1], [1, 7], &[]));
    assert_eq!(of(&table, 0), 1);
    // The flood is over: what is idle goes, and what is not stays.
    let later = START + 61_000 * MS;
    for number in 0..10_000 {
        take(&mut table, later, &udp(from(7), [1, 10], &[]));
        take(&mut table, later, &udp(from(number), [3, 4], &[]));
    }
    let told = [0, 1, 2].map(|spec| of(&table, spec));
    assert_eq!((told, fresh(&table, later)), ([1, 0, 1], 89));
}

#[test]
fn ten_million_flows_cost_their_packets_and_a_declared_one_is_measured_all_the_same() {
    const FLOWS: u32 = 10_000_000;
    let document = "[[flow]]\nname = \"beat\"\nmatch = \"udp * > *:9\"\nmax-loss = \"1%\"\n";
    let config = Config {
        capacity: 1 << 12,
        ..Config::default()
    };
    let mut table = Table::new(config, Document::read(document).expect("a document"));
    let mut packet = udp([10, 0, 0, 0], [1, 2], &[]);
    let beat = udp([11, 0, 0, 1], [1, 9], &[]);
    for number in 0..FLOWS {
        // The source; nobody asks for the header's checksum.
        packet[12..16].copy_from_slice(&(0x0a00_0000 + number).to_be_bytes());
        let now_ns = START + i64::from(number) * 1_000;
        take(&mut table, now_ns, &packet);
        if number % 1_000 == 0 {
            take(&mut table, now_ns, &beat);
        }
    }
    assert_eq!(table.flows().len(), 1 << 12);
    let declared: Vec<_> = table
        .flows()
        .iter()
        .filter(|flow| flow.spec.is_some())
        .collect();
    assert_eq!(declared.len(), 1);
    assert_eq!(declared[0].report(None).packets, u64::from(FLOWS) / 1_000);
    // Each of the others is a flow, or counted as one that there was no room for; nothing aged, all is within 10 s.
    let counters = table.counters();
    let taken = u64::from(FLOWS) - counters.no_room;
    assert_eq!(taken, (1 << 12) - 1 + counters.aged, "{counters:?}");
}

#[test]
fn a_million_flows_fit_in_a_gigabyte() {
    assert!(size_of::<Flow>() <= 900, "{}", size_of::<Flow>());
}

#[test]
fn other_rules_are_put_in_force_for_the_flows_that_are_there() {
    let mut table = table(CAMERA);
    let packet = udp([10, 0, 0, 1], [4000, 5004], &[0; 100]);
    for burst in 0..10_i64 {
        take(&mut table, START + burst * 16_666_667, &packet);
    }
    let other = "[[flow]]\nname = \"b\"\nmatch = \"*\"\nmax-burst = 1\n";
    table.replace_document(Document::read(other).expect("a document"));
    take(&mut table, START + 170 * MS, &packet);
    take(&mut table, START + 170 * MS + 1000, &packet);
    let flow = only(&table);
    assert_eq!(table.spec(flow).map(|spec| spec.name.as_str()), Some("b"));
    assert_eq!((flow.level(), flow.packets), (Level::Red, 12));
}

proptest! {
    /// Whatever comes, in whatever order of time, everything is counted once and nothing panics.
    #[test]
    fn hostile_packets_and_clocks_cost_nothing_but_themselves(
        packets in proptest::collection::vec(
            (
                prop_oneof![Just(START), any::<i64>(), START..START + 5000 * MS, Just(i64::MIN), Just(i64::MAX)],
                0..3_u8,
                prop_oneof![Just(5004_u16), Just(5005), Just(7400)],
                proptest::collection::vec(any::<u8>(), 0..64),
                any::<bool>(),
            ),
            1..200,
        ),
    ) {
        let mut table = table(&(CAMERA.to_owned()
            + "[[flow]]\nname = \"avtp\"\nmatch = \"udp * > *:5005\"\nstamp = \"ptp@0\"\nperiod = \"1us\"\ntolerance = \"0ns\"\nmax-delay = \"0\"\nmax-loss = \"0%\"\nmax-jitter = \"0\"\n"));
        let count = packets.len() as u64;
        for (now, source, port, payload, sweep) in packets {
            let mut payload = payload;
            if payload.len() > 12 && source == 1 {
                payload[0] = 0x80;
                payload[1] = 0;
            }
            take(&mut table, now, &udp([10, 0, 0, source], [4000, port], &payload));
            if sweep {
                table.sweep(now.clamp(i64::MIN / 4, i64::MAX / 4), 2);
            }
        }
        let counters = table.counters();
        prop_assert_eq!(counters.packets, count);
        let carriers = table.flows().iter().filter(|flow| flow.key.addresses().is_some());
        let of_flows: u64 = carriers.map(|flow| flow.packets).sum();
        prop_assert_eq!(of_flows, count - counters.truncated - counters.malformed);
        for flow in table.flows() {
            let report = flow.report(table.spec(flow));
            let _ = serde_json::to_string(&report).expect("JSON");
        }
    }
}

#[test]
fn rules_go_by_what_who_watches_has_not_got_and_how_far_behind_it_is() {
    let document = r#"
[[rule]]
name = "behind"
when = "backlog > 100ms"
hold = "0ms"
do = ["event"]

[[rule]]
name = "dropped"
when = "dropped > 5"
hold = "0ms"
do = ["event"]
"#;
    let document = Document::read(document).expect("a document");
    let window = Config::default().window_ns;
    let mut table = Table::new(Config::default(), document);
    let packet = udp([10, 0, 0, 1], [4000, 5004], &[0; 100]);
    let mut begun = |own: Option<(i64, u64)>, now_ns: i64| {
        if let Some((backlog_ns, dropped)) = own {
            table.note_own(now_ns, backlog_ns, dropped);
        }
        take(&mut table, now_ns, &packet);
        let rules = table.rules();
        rules.map(|(_, count)| count.active).collect::<Vec<_>>()
    };
    // Of a file nobody tells.
    assert_eq!(begun(None, START), [0, 0]);
    assert_eq!(begun(Some((100_000_000, 5)), START), [0, 0]);
    assert_eq!(begun(Some((100_000_001, 6)), START + 1), [1, 1]);
    // In the window after it still counts, in the next one no more.
    assert_eq!(begun(Some((0, 6)), START + window), [0, 1]);
    assert_eq!(begun(Some((0, 6)), START + 2 * window), [0, 0]);
    assert_eq!(begun(Some((0, 11)), START + 2 * window + 1), [0, 0]);
    assert_eq!(begun(Some((0, 12)), START + 3 * window), [0, 1]);
    // After a long time none.
    assert_eq!(begun(Some((0, 12)), START + 9 * window), [0, 0]);
    // Nor does a clock that is set make them new ones.
    table.begin_anew(37_000 * MS);
    table.note_own(START + 9 * window + 1, 0, 12);
    take(&mut table, START + 9 * window + 1, &packet);
    assert!(table.rules().all(|(_, count)| count.active == 0));
}

const BEATS: i64 = 2000;

/// Beats every 10 ms, each as late as is told; `None`: it is missing.
fn beats(table: &mut Table, late_ns: impl Fn(i64) -> Option<i64>) {
    let packet = udp([10, 0, 0, 1], [4000, 5004], &[0; 100]);
    for beat in 0..=BEATS {
        if let Some(late_ns) = late_ns(beat) {
            take(table, START + beat * 10 * MS + late_ns, &packet);
        }
    }
}

#[test]
fn of_plain_periodic_flows_lateness_and_missing_beats_are_learned_at_the_second_look() {
    // Later and later, and on time again: each beat is next to its neighbours.
    let good = |beat: i64| Some(beat % 5 * MS / 10);
    let mut first = table("");
    beats(&mut first, good);
    let proposal = learn::propose(only(&first), "a".into(), 2.0).expect("it has a period");
    assert_eq!(proposal.spec.max_delay_ns, None);
    assert_eq!(proposal.spec.max_loss, None);
    let mut second = Table::new(Config::default(), learn::periods(first.flows().iter()));
    beats(&mut second, good);
    let proposal = learn::propose(only(&second), "a".into(), 2.0).expect("it has a period");
    let spec = proposal.spec.clone();
    assert_eq!(spec.period_ns, Some(10 * MS));
    // The earliest beats are followed as if the sender's clock were slow: a bit less than twice 400 us.
    assert_eq!(spec.max_delay_ns, Some(79 * MS / 100), "{proposal:?}");
    assert_eq!(spec.max_loss, Some(0.0), "{proposal:?}");
    let said = proposal.because.join("; ");
    assert!(
        said.contains("beats up to 394us later than the earliest")
            && said.contains("0 of 2001 beats missing"),
        "{said}"
    );
    // Of few beats the period is not known well enough: what is not the sender's clock would be lateness in the end.
    let few = |beat: i64| good(beat).filter(|_| beat <= 100);
    let mut table = Table::new(Config::default(), learn::periods(first.flows().iter()));
    beats(&mut table, few);
    let proposal = learn::propose(only(&table), "a".into(), 2.0).expect("it has a period");
    assert_eq!(proposal.spec.max_delay_ns, None);
    assert!(
        proposal.because.join("; ").contains("longer stretch"),
        "{proposal:?}"
    );
    // What it says, judged by itself.
    let judged = |late_ns: &dyn Fn(i64) -> Option<i64>| {
        let without = |spec: &Spec| Spec {
            tolerance_ns: None,
            max_jitter_ns: None,
            ..spec.clone()
        };
        let document = Document {
            specs: vec![without(&spec)],
            rules: Vec::new(),
        };
        let mut table = Table::new(Config::default(), document);
        beats(&mut table, late_ns);
        only(&table).report(None).worst_level
    };
    assert_eq!(judged(&good), Level::Green);
    assert_eq!(
        judged(&|beat| Some(beat.clamp(50, 62) * MS / 10)),
        Level::Red
    );
    assert_eq!(judged(&|beat| (beat != 70).then_some(0)), Level::Red);
}
