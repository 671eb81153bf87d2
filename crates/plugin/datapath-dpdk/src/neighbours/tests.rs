//! Two nodes that talk to each other by their frames, and hostile ones.

use proptest::prelude::*;

use super::*;

const LEFT: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const RIGHT: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const THIRD: MacAddress = MacAddress([2, 0, 0, 0, 0, 3]);

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn node(mac: MacAddress, host: u8) -> Neighbours {
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.into());
    let own = [
        Subnet {
            address: [10, 0, 0, host].into(),
            prefix: 24,
        },
        Subnet {
            address: v6.into(),
            prefix: 64,
        },
    ];
    Neighbours::new(mac, &own, &[ip("10.0.0.254"), ip("fd00::ff")], &[])
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// What polling sends.
fn polled(node: &mut Neighbours, now: Duration) -> Vec<Vec<u8>> {
    let mut sent = Vec::new();
    node.poll(now, &mut |frame| sent.push(frame.to_vec()));
    sent
}

/// What a frame is answered with.
fn answered(node: &mut Neighbours, frame: &[u8], now: Duration) -> Vec<Vec<u8>> {
    let mut sent = Vec::new();
    node.handle(frame, now, &mut |frame| sent.push(frame.to_vec()));
    sent
}

#[test]
fn a_neighbour_is_asked_for_and_answers() {
    for hop in [ip("10.0.0.2"), ip("fd00::2")] {
        let (mut left, mut right) = (node(LEFT, 1), node(RIGHT, 2));
        left.want(hop, seconds(1));
        assert_eq!(left.resolve(hop), None);
        let questions = polled(&mut left, seconds(1));
        assert_eq!(questions.len(), 1);
        assert!(
            polled(&mut left, seconds(1)).is_empty(),
            "asked twice at once"
        );
        let answers = answered(&mut right, &questions[0], seconds(1));
        assert_eq!(answers.len(), 1);
        assert!(left.handle(&answers[0], seconds(1), &mut |_| panic!(
            "answered an answer"
        )));
        assert_eq!(left.resolve(hop), Some(RIGHT));
        assert_eq!(left.counters(), NeighbourCounters::default());
        assert_eq!(right.counters(), NeighbourCounters::default());
    }
}

#[test]
fn a_neighbour_is_asked_again_and_gone_when_it_stays_silent() {
    let hop = ip("fd00::2");
    let (mut left, mut right) = (node(LEFT, 1), node(RIGHT, 2));
    left.want(hop, seconds(0));
    let question = polled(&mut left, seconds(0)).remove(0);
    let answer = answered(&mut right, &question, seconds(0)).remove(0);
    left.handle(&answer, seconds(0), &mut |_| {});
    assert!(polled(&mut left, seconds(29)).is_empty());
    // Those who know the way ask by it.
    let question = polled(&mut left, seconds(30)).remove(0);
    assert_eq!(question[..6], RIGHT.0);
    assert_eq!(answered(&mut right, &question, seconds(30)).len(), 1);
    for second in 31..33 {
        assert_eq!(polled(&mut left, seconds(second)).len(), 1);
        assert_eq!(left.resolve(hop), Some(RIGHT));
    }
    let mut sent = 0;
    assert!(left.poll(seconds(33), &mut |frame| {
        assert_eq!(frame[..2], [0x33, 0x33], "asks all now");
        sent += 1;
    }));
    assert_eq!((sent, left.resolve(hop)), (1, None));
    // And for as long as anybody wants it.
    assert_eq!(polled(&mut left, seconds(1000)).len(), 1);
    left.forget(hop);
    assert!(polled(&mut left, seconds(2000)).is_empty());
}

#[test]
fn the_way_leads_by_the_network_or_by_a_gateway() {
    let left = node(LEFT, 1);
    assert_eq!(left.next_hop(ip("10.0.0.9")), Some(ip("10.0.0.9")));
    assert_eq!(left.next_hop(ip("10.0.1.9")), Some(ip("10.0.0.254")));
    assert_eq!(left.next_hop(ip("fd01::9")), Some(ip("fd00::ff")));
    assert_eq!(left.source(ip("10.0.1.9")), Some(ip("10.0.0.1")));
    assert_eq!(left.source(ip("fd01::9")), Some(ip("fd00::1")));
    let alone = Neighbours::new(LEFT, &left.addresses, &[], &[]);
    assert_eq!(alone.next_hop(ip("10.0.1.9")), None);
}

#[test]
fn a_static_neighbour_is_never_asked_for_and_never_replaced() {
    let hop = ip("10.0.0.2");
    let mut left = Neighbours::new(LEFT, &node(LEFT, 1).addresses, &[], &[(hop, THIRD)]);
    left.want(hop, seconds(0));
    assert!(polled(&mut left, seconds(1)).is_empty());
    let mut right = node(RIGHT, 2);
    right.want(ip("10.0.0.1"), seconds(0));
    let question = polled(&mut right, seconds(0)).remove(0);
    assert_eq!(answered(&mut left, &question, seconds(1)).len(), 1);
    assert_eq!(left.resolve(hop), Some(THIRD));
}

#[test]
fn strangers_make_no_entries() {
    let mut left = node(LEFT, 1);
    for host in 2..250 {
        let mut other = node(MacAddress([2, 0, 0, 0, 1, host]), host);
        for own in ["10.0.0.1", "fd00::1"] {
            other.want(ip(own), seconds(0));
        }
        for question in polled(&mut other, seconds(0)) {
            assert_eq!(answered(&mut left, &question, seconds(0)).len(), 1);
        }
    }
    assert!(left.wanted.is_empty());
}

#[test]
fn who_asks_too_often_is_counted_and_others_are_answered() {
    let (mut left, mut right) = (node(LEFT, 1), node(RIGHT, 2));
    let mut third = node(THIRD, 3);
    for asker in [&mut right, &mut third] {
        asker.want(ip("10.0.0.1"), seconds(0));
    }
    let question = polled(&mut right, seconds(0)).remove(0);
    let other = polled(&mut third, seconds(0)).remove(0);
    let count = |left: &mut Neighbours, now| {
        (0..2 * MOST_ANSWERS)
            .map(|_| answered(left, &question, now).len())
            .sum::<usize>()
    };
    assert_eq!(count(&mut left, seconds(5)), MOST_ANSWERS as usize);
    assert_eq!(left.counters().unanswered, u64::from(MOST_ANSWERS));
    assert_eq!(answered(&mut left, &other, seconds(5)).len(), 1);
    assert_eq!(count(&mut left, seconds(6)), MOST_ANSWERS as usize);
}

#[test]
fn a_flood_of_echoes_takes_nothing_from_who_asks_for_addresses() {
    let (mut left, mut right) = (node(LEFT, 1), node(RIGHT, 2));
    let (mut v4, mut v6) = (0, 0);
    for _ in 0..MOST_ECHOES + 100 {
        v4 += answered(&mut left, &echo_v4().0, seconds(5)).len();
        v6 += answered(&mut left, &echo_v6(), seconds(5)).len();
    }
    assert_eq!(v4 + v6, MOST_ECHOES as usize);
    assert!(v4 > 0 && v6 > 0);
    assert_eq!(left.counters().unanswered, u64::from(MOST_ECHOES) + 200);
    for own in ["10.0.0.1", "fd00::1"] {
        right.want(ip(own), seconds(0));
    }
    let questions = polled(&mut right, seconds(0));
    assert_eq!(questions.len(), 2);
    for question in questions {
        assert_eq!(answered(&mut left, &question, seconds(5)).len(), 1);
    }
}

#[test]
fn what_has_passed_a_router_is_no_neighbours_word() {
    let (mut left, mut right) = (node(LEFT, 1), node(RIGHT, 2));
    right.want(ip("fd00::1"), seconds(0));
    let mut question = polled(&mut right, seconds(0)).remove(0);
    question[ethernet::HEADER_LEN + 7] = 254;
    assert!(answered(&mut left, &question, seconds(0)).is_empty());
    assert_eq!(left.counters().refused, 1);
}

#[test]
fn an_address_in_use_is_defended() {
    let (mut left, mut newcomer) = (node(LEFT, 1), node(RIGHT, 2));
    newcomer.want(ip("fd00::1"), seconds(0));
    let mut question = polled(&mut newcomer, seconds(0)).remove(0);
    // Detection of duplicates: from nobody, without a link address.
    let packet = &mut question[ethernet::HEADER_LEN..ethernet::HEADER_LEN + 40 + DISCOVERY_LEN];
    packet[4..6].copy_from_slice(&(DISCOVERY_LEN as u16).to_be_bytes());
    packet[8..24].fill(0);
    let view = ipv6::Packet::new_checked(&*packet).expect("a packet");
    let destination = view.destination();
    packet[42..44].fill(0);
    let source = Ipv6Addr::UNSPECIFIED;
    let sum = icmp_v6_sum(
        &Addresses::V6 {
            source,
            destination,
        },
        &packet[40..],
    );
    packet[42..44].copy_from_slice(&sum.checksum().to_be_bytes());
    question.truncate(ethernet::HEADER_LEN + 40 + DISCOVERY_LEN);
    let answer = answered(&mut left, &question, seconds(0)).remove(0);
    assert_eq!(answer[..6], group_mac(ALL_NODES).0);
    assert_eq!(answer[ethernet::HEADER_LEN + 40 + 4], 0x20, "not solicited");
}

#[test]
fn two_who_claim_one_address_in_turn_are_followed_once_a_second() {
    let hop = ip("10.0.0.2");
    let mut left = node(LEFT, 1);
    left.want(hop, seconds(0));
    let claims = [RIGHT, THIRD].map(|mac| {
        let mut claimant = node(mac, 2);
        claimant.want(ip("10.0.0.1"), seconds(0));
        polled(&mut claimant, seconds(0)).remove(0)
    });
    let mut changes = 0;
    for turn in 0..5000_u32 {
        let now = seconds(1) + Duration::from_millis(1) * turn;
        let claim = &claims[turn as usize % 2];
        changes += u32::from(left.handle(claim, now, &mut |_| {}));
    }
    assert!((2..=6).contains(&changes), "{changes}");
    // One that is alone is followed.
    assert!(left.resolve(hop).is_some());
    left.handle(&claims[0], seconds(100), &mut |_| {});
    assert_eq!(left.resolve(hop), Some(RIGHT));
}

/// A question of the right one's to the left one.
fn echo_v4() -> (Vec<u8>, Vec<u8>, ipv4::Repr) {
    let mut message = vec![8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7];
    let checksum = PartialSum::of(&message).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let header = ipv4::Repr {
        source: [10, 0, 0, 2].into(),
        destination: [10, 0, 0, 1].into(),
        protocol: Protocol::ICMP,
        dscp: Dscp::BEST_EFFORT,
        hop_limit: 64,
        identification: 7,
        dont_fragment: false,
    };
    let mut frame = node(RIGHT, 2).frame(LEFT, EtherType::IPV4, 20 + message.len());
    frame[34..].copy_from_slice(&message);
    header.emit(&mut frame[14..]).expect("fits");
    (frame, message, header)
}

fn echo_v6() -> Vec<u8> {
    let mut message = vec![128, 0, 0, 0, 1, 2, 3, 4, 5];
    let [source, destination] = [2, 1].map(|host| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host));
    let mut sent = Vec::new();
    let mut keep = |frame: &[u8]| sent.push(frame.to_vec());
    node(RIGHT, 2).send_v6(LEFT, source, destination, 64, &mut message, &mut keep);
    sent.remove(0)
}

#[test]
fn an_echo_comes_back_whole() {
    let mut left = node(LEFT, 1);
    let (mut frame, message, header) = echo_v4();
    let answer = answered(&mut left, &frame, seconds(0)).remove(0);
    assert_eq!(answer[..12], [RIGHT.0, LEFT.0].concat());
    let packet = ipv4::Packet::new_checked(&answer[14..]).expect("a packet");
    let answered_header = ipv4::Repr::parse(&packet).expect("a header");
    assert_eq!(answered_header.destination, header.source);
    assert_eq!(packet.payload()[0], 0);
    assert_eq!(packet.payload()[4..], message[4..]);
    assert!(PartialSum::of(packet.payload()).is_intact());
    frame[40] ^= 1;
    assert!(answered(&mut left, &frame, seconds(0)).is_empty());
    assert_eq!(left.counters().refused, 1);
}

fn anything() -> impl Strategy<Value = Vec<u8>> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..128);
    let kinds = prop_oneof![Just(0x0806u16), Just(0x0800), Just(0x86dd)];
    (bytes, kinds).prop_map(|(mut bytes, kind)| {
        if let Some(header) = bytes.first_chunk_mut::<14>() {
            header[..6].copy_from_slice(&LEFT.0);
            header[6] = 2;
            header[12..].copy_from_slice(&kind.to_be_bytes());
        }
        bytes
    })
}

proptest! {
    #[test]
    fn hostile_frames_neither_panic_nor_make_entries(frames in proptest::collection::vec(anything(), 1..20)) {
        let mut left = node(LEFT, 1);
        left.want(ip("10.0.0.2"), seconds(0));
        for frame in frames {
            left.handle(&frame, seconds(1), &mut |answer| assert!(answer.len() <= 128 + 64));
        }
        prop_assert_eq!(left.wanted.len(), 1);
    }

    /// A valid question with a byte changed is answered to a unicast address, or not at all.
    #[test]
    fn damaged_questions_do_no_harm(v6: bool, at: prop::sample::Index, to: u8) {
        let (mut left, mut right) = (node(LEFT, 1), node(RIGHT, 2));
        right.want(ip(if v6 { "fd00::1" } else { "10.0.0.1" }), seconds(0));
        let mut question = polled(&mut right, seconds(0)).remove(0);
        let at = at.index(question.len());
        question[at] = to;
        for answer in answered(&mut left, &question, seconds(0)) {
            prop_assert_eq!(&answer[6..12], &LEFT.0);
        }
        prop_assert!(left.wanted.is_empty());
    }
}
