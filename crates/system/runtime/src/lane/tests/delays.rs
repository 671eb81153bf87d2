//! How long messages from other nodes were on their way.

use takt_wire::channel::{DatagramCursor, Kind, RecordHeader};

use super::fairness::{House, no_limits};
use super::*;
use crate::delays::{DelayReading, LONGEST_NS};
use crate::ids::RemoteId;

/// A lane whose clock is set by hand, with a sink, and remote lane 7, which sends to it.
struct Way {
    house: House,
    clock: Arc<Steps>,
    port: Box<dyn Port>,
    to: PeerHandle,
    sent: u32,
}

impl Way {
    /// From another node, or from a lane of this one.
    fn new(elsewhere: bool) -> Self {
        let network = MemoryNetwork::new(MemoryNetworkConfig::default());
        let mut port = open(&network, "192.0.2.2:1");
        let own = open(&network, "192.0.2.1:1");
        let to = port.connect(own.local()).expect("known");
        let own = LanePort::new(
            MemoryNetwork::KIND,
            own,
            !elsewhere,
            Arc::default(),
            None,
            false,
        );
        let clock = Arc::new(Steps(AtomicI64::new(0)));
        let mut house = House::new(vec![own], clock.clone());
        let address = [192, 0, 2, 2].into();
        house.handle.send(Command::AddRemote {
            id: RemoteId(7),
            incarnation: 7,
            label: 7,
            protection: Protection::None,
            addresses: if elsewhere { vec![address] } else { Vec::new() },
            endpoints: vec![Some(port.local())],
            takes: Vec::new(),
        });
        let mut guest = house.guest(1, 1 << 20, &no_limits());
        guest.sink(5, 64);
        house.settle();
        Self {
            house,
            clock,
            port,
            to,
            sent: 0,
        }
    }

    /// A message of this class, or the part of one, that says when it was sent arrives at an instant.
    fn arrive(&mut self, class: u8, part: Option<u32>, sent_ns: i64, arrives_ns: i64) {
        let stride = if part.is_some() { 8 } else { 0 };
        let record = RecordHeader {
            channel: 5,
            source: 1,
            sequence: self.sent,
            message_length: if part.is_some() { 16 } else { 8 },
            fragment_index: part.unwrap_or(0),
            fragment_stride: stride,
            class: TrafficClass::new(class).expect("below 8"),
            kind: Kind::Message,
        };
        if part != Some(0) {
            self.sent += 1;
        }
        let frame = self.port.reserve(self.to).expect("a frame");
        let buf = self.port.payload(&frame);
        let mut cursor = DatagramCursor::new();
        cursor.push(buf, &record).expect("it fits").fill(7);
        let length = cursor.finish(buf, Protection::None, 7, sent_ns, 0);
        self.port.commit(frame, length, record.class, None);
        assert!(self.port.flush());
        self.clock.0.store(arrives_ns, Ordering::Relaxed);
        assert!(self.house.lane.poll());
    }

    fn told(&self, class: u8) -> DelayReading {
        let class = TrafficClass::new(class).expect("below 8");
        self.house.lane.delays().read(class)
    }
}

#[test]
fn a_message_is_on_its_way_until_it_is_whole() {
    let mut way = Way::new(true);
    way.arrive(5, None, 1_000, 51_000);
    // In the same round's terms: each arrival is looked at anew.
    way.arrive(5, None, 60_000, 90_000);
    way.arrive(3, Some(0), 100_000, 110_000);
    assert_eq!(way.told(3).count(), 0);
    way.arrive(3, Some(1), 100_500, 190_000);
    let (five, three) = (way.told(5), way.told(3));
    assert_eq!(
        (five.count(), five.sum_ns, five.longest_ns),
        (2, 80_000, 50_000)
    );
    assert_eq!((three.count(), three.sum_ns), (1, 90_000));
    assert_eq!((five.negative, way.told(0)), (0, DelayReading::default()));
}

#[test]
fn what_came_before_it_was_sent_is_counted_apart_and_what_was_sent_long_ago_is_as_old_as_can_be() {
    let mut way = Way::new(true);
    way.arrive(0, None, 1_001, 1_000);
    way.arrive(0, None, i64::MAX, 1_000);
    assert_eq!((way.told(0).count(), way.told(0).negative), (0, 2));
    way.arrive(0, None, i64::MIN, 1_000);
    way.arrive(0, None, i64::MIN, 1_000);
    let told = way.told(0);
    assert_eq!((told.count(), told.negative), (2, 2));
    assert_eq!((told.sum_ns, told.longest_ns), (2 * LONGEST_NS, LONGEST_NS));
}

#[test]
fn between_lanes_of_a_node_there_is_no_way() {
    let mut way = Way::new(false);
    way.arrive(0, None, 1_000, 51_000);
    assert_eq!(way.told(0), DelayReading::default());
    let counted = way.house.lane.state.channels.find(5);
    let channel = counted.and_then(|at| way.house.lane.state.channels.get(at));
    assert_eq!(channel.expect("a channel").counters.received.get(), 1);
}
