//! Lanes elsewhere that are back, with the same sources, before they are forgotten as what they were.

use super::*;
use crate::peering::message::SourceProgress;

/// A lane with a sink, and a port of the lane elsewhere that writes.
struct Heard {
    scene: Scene,
    elsewhere: Box<dyn Port>,
    to: PeerHandle,
}

impl Heard {
    fn new() -> Self {
        let network = MemoryNetwork::new(MemoryNetworkConfig::default());
        let port = open(&network, "192.0.2.1:1");
        let mut elsewhere = open(&network, "192.0.2.2:1");
        let to = elsewhere.connect(port.local()).expect("known");
        let mut scene = Scene::with(vec![untimed(port)], Arc::new(SystemTai));
        scene.add_sink();
        scene.lane.poll();
        Self {
            scene,
            elsewhere,
            to,
        }
    }

    /// The lane is there, under this number and incarnation.
    fn comes(&self, id: u64, incarnation: u32) {
        self.scene.handle.send(Command::AddRemote {
            id: RemoteId(id),
            incarnation,
            label: 78,
            protection: Protection::None,
            addresses: vec![self.elsewhere.local().ip()],
            endpoints: vec![None],
            takes: Vec::new(),
        });
    }

    /// It sends these messages of a source.
    fn sends(&mut self, incarnation: u32, sequences: std::ops::Range<u32>) {
        for sequence in sequences {
            let datagram = datagram_with(incarnation, sequence);
            let frame = self.elsewhere.reserve(self.to).expect("a frame");
            self.elsewhere.payload(&frame)[..datagram.len()].copy_from_slice(&datagram);
            let class = TrafficClass::BEST_EFFORT;
            (self.elsewhere).commit(frame, datagram.len(), class, None);
        }
        assert!(self.elsewhere.flush());
    }

    /// Lets the lane carry out all that it was told: what has come, and what counts as lost.
    fn settle(&mut self) -> (u32, u64) {
        let lane = &mut self.scene.lane;
        lane.poll();
        while lane.mailbox.full.load(Ordering::Acquire) {
            lane.poll();
        }
        assert!(lane.ending.is_empty() && lane.by_remote.len() == 1);
        let channels = &lane.state.channels;
        let channel = channels.find(CHANNEL.0).and_then(|at| channels.get(at));
        let read = channel.expect("in use").counters.read();
        (self.scene.received(), read.lost - read.late)
    }
}

#[test]
fn what_a_daemon_had_accepted_when_it_was_killed_is_lost_however_soon_it_is_back() {
    let mut heard = Heard::new();
    heard.comes(1, 77);
    heard.sends(77, 10..11);
    assert_eq!(heard.settle(), (1, 0));
    let (id, clean) = (RemoteId(1), false);
    let handle = &heard.scene.handle;
    handle.send(Command::RemoveRemote { id, clean });
    heard.comes(2, 78);
    // The application had emitted 11 to 15 and goes on with 16; 12 was under way.
    heard.sends(78, 16..17);
    heard.sends(77, 12..13);
    assert_eq!(heard.settle(), (3, 4));
}

#[test]
fn what_comes_after_a_goodbye_is_not_lost_if_its_lane_is_back_by_then() {
    let mut heard = Heard::new();
    heard.comes(1, 77);
    heard.sends(77, 95..96);
    assert_eq!(heard.settle(), (1, 0));
    let remote = RemoteId(1);
    let sources = vec![SourceProgress {
        channel: CHANNEL.0,
        source: 1,
        next: 100,
        ended: false,
    }];
    let handle = &heard.scene.handle;
    handle.send(Command::Progress { remote, sources });
    handle.send(Command::LeaveRemote { id: remote });
    heard.comes(2, 77);
    heard.sends(77, 96..100);
    assert_eq!(heard.settle(), (5, 0));
}
