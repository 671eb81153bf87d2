//! Ways to a lane elsewhere whose datapaths have failed there.

use super::*;
use crate::counters::ChannelReading;
use crate::ids::RemoteId;
use crate::slots::SourceSlot;

/// Two messages do not fit in a datagram, and one datagram is under way at a time.
const MESSAGE: u32 = 800;

/// A lane with two ports of networks of their own, and a lane elsewhere that has an end in each.
struct Ways {
    scene: Scene,
    tx: Producer<TxDescriptor>,
    ends: [Box<dyn Port>; 2],
    emitted: usize,
}

impl Ways {
    fn new() -> Self {
        let networks = [(); 2].map(|()| {
            MemoryNetwork::new(MemoryNetworkConfig {
                max_payload: 1000,
                queue_depth: 1,
                ..MemoryNetworkConfig::default()
            })
        });
        let ports = networks
            .iter()
            .map(|network| untimed(open(network, "192.0.2.1:1")));
        let mut scene = Scene::with(ports.collect(), Arc::new(Ticking::default()));
        let ends = networks.each_ref().map(|of| open(of, "192.0.2.2:1"));
        scene.add_reader(ends.iter().map(|end| Some(end.local())).collect());
        scene.add_source();
        scene.lane.poll();
        let tx = scene.tx(0);
        Self {
            scene,
            tx,
            ends,
            emitted: 0,
        }
    }

    fn carry(&self, only: bool) {
        self.scene.handle.send(Command::Carry {
            session: SESSION,
            source: SourceSlot(0),
            carrier: Carrier { port: 0, only },
        });
    }

    fn stand(&self, ports: &[Standing]) {
        self.scene.handle.send(Command::Standing {
            remote: RemoteId(7),
            ports: ports.to_vec(),
        });
    }

    fn counted(&self) -> ChannelReading {
        let channels = &self.scene.lane.state.channels;
        let at = channels.find(CHANNEL.0).expect("the channel");
        channels.get(at).expect("the channel").counters.read()
    }

    /// Sends so many messages: how many come by each way, and how many were counted as detoured and unreachable.
    fn send(&mut self, count: usize) -> ([usize; 2], u64, u64) {
        let before = self.counted();
        for _ in 0..count {
            let message = TxDescriptor {
                chunk: self.emitted as u32,
                length: MESSAGE,
                ..TxDescriptor::default()
            };
            assert!(self.tx.push(message).expect("a sane ring"));
            self.emitted += 1;
        }
        self.scene.bell.ring();
        let mut came = [0; 2];
        let done = |of: &ChannelReading| (of.sent + of.unreachable) as usize;
        while done(&self.counted()) < done(&before) + count || self.scene.lane.poll() {
            self.scene.lane.poll();
            for (came, end) in came.iter_mut().zip(&mut self.ends) {
                *came += end.receive(64, &mut |_| ());
            }
        }
        let after = self.counted();
        (
            came,
            after.detoured - before.detoured,
            after.unreachable - before.unreachable,
        )
    }
}

#[test]
fn what_is_for_a_datapath_that_has_failed_there_goes_by_another_and_each_message_counts_once() {
    use Standing::{Failed, Returns, Works};
    let mut ways = Ways::new();
    assert_eq!(ways.send(3), ([3, 0], 0, 0));
    ways.stand(&[Failed, Works]);
    assert_eq!(ways.send(3), ([0, 3], 3, 0));
    ways.stand(&[Returns, Works]);
    assert_eq!(ways.send(3), ([0, 3], 3, 0));
    ways.stand(&[Works, Works]);
    assert_eq!(ways.send(3), ([3, 0], 0, 0));
    // Where nothing is left, as if nothing were known.
    ways.stand(&[Failed, Failed]);
    assert_eq!(ways.send(3), ([3, 0], 0, 0));
}

#[test]
fn what_asks_for_a_datapath_and_no_other_waits_for_nothing_but_its_return() {
    use Standing::{Failed, Returns, Works};
    let mut ways = Ways::new();
    ways.carry(true);
    ways.stand(&[Failed, Works]);
    assert_eq!(ways.send(3), ([0, 0], 0, 3));
    ways.stand(&[Returns, Works]);
    assert_eq!(ways.send(3), ([3, 0], 0, 0));
    ways.stand(&[Works, Failed]);
    assert_eq!(ways.send(3), ([3, 0], 0, 0));
}

#[test]
fn a_peer_that_tells_of_more_or_fewer_ports_than_there_are_harms_nobody() {
    let mut ways = Ways::new();
    ways.stand(&[Standing::Failed; 9]);
    assert_eq!(ways.send(1), ([1, 0], 0, 0));
    ways.stand(&[Standing::Failed]);
    assert_eq!(ways.send(1), ([0, 1], 1, 0));
    ways.stand(&[]);
    assert_eq!(ways.send(1), ([1, 0], 0, 0));
    ways.scene.handle.send(Command::Standing {
        remote: RemoteId(8),
        ports: vec![Standing::Failed; 2],
    });
    assert_eq!(ways.send(1), ([1, 0], 0, 0));
}

#[test]
fn without_a_key_messages_are_unreachable_and_none_counts_as_sent() {
    use crate::lane::guard::LaneKeys;
    use crate::peering::association::aead;
    let mut ways = Ways::new();
    let remote = RemoteId(7);
    // The same lane, and it proves who it is.
    ways.scene.handle.send(Command::AddRemote {
        id: remote,
        incarnation: 70,
        label: 71,
        protection: Protection::Integrity,
        addresses: vec![[192, 0, 2, 2].into()],
        endpoints: ways.ends.iter().map(|end| Some(end.local())).collect(),
        takes: Vec::new(),
    });
    ways.scene.handle.send(Command::Subscriptions {
        remote,
        add: vec![CHANNEL.0],
        remove: Vec::new(),
    });
    assert_eq!(ways.send(3), ([0, 0], 0, 3));
    let keys = Box::new(LaneKeys::new(1, (aead(&[1; 32]), aead(&[2; 32]))));
    ways.scene.handle.send(Command::Keys { remote, keys });
    let number = 1;
    ways.scene.handle.send(Command::SendKeys { remote, number });
    assert_eq!(ways.send(3), ([3, 0], 0, 0));
    ways.scene
        .handle
        .send(Command::RetireKeys { remote, number });
    assert_eq!(ways.send(3), ([0, 0], 0, 3));
}
