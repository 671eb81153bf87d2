//! Whatever the network loses, repeats and reorders, and whoever starts again: no message twice, none out of order, none
//! silently lost, bounded memory, no storm.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use takt_recovery::receiver::{Delivery, Room};
use takt_recovery::{
    Acknowledgement, Action, Announce, Arrival, Config, Full, MAX_GRANT_BYTES, PeerId, Policy,
    Receiver, Sender,
};

const MS: i64 = 1_000_000;
const BYTES: u64 = 100;
const WINDOW: u32 = 32;

#[derive(Clone, Copy, Debug)]
enum Datagram {
    Message { sequence: u32, stamp: i64 },
    Announce(Announce),
    Acknowledgement(Acknowledgement),
}

/// What the network does with a datagram, taken in turn from a list.
#[derive(Clone, Copy, Debug)]
struct Fate {
    lost: bool,
    repeated: bool,
    delay: i64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Emit(u8),
    /// One message, which cannot be sent to receiver 0 or 1.
    Withhold(u8),
    /// One message that leaves after a while.
    EmitLater(i64),
    Wait(i64),
    /// The sinks of receiver 0 or 1 take so many.
    Take(u8, u8),
    RestartReceiver(u8),
    RestartSender,
}

/// A receiver's life: what it got, in order.
struct Life {
    receiver: Receiver,
    peer: PeerId,
    number: u64,
    first: u32,
    got: Vec<u32>,
    withheld: Vec<u32>,
    lost: u64,
    /// Given up before the first announcement was heard.
    skipped: Option<u64>,
}

struct World {
    now: i64,
    config: Config,
    sender: Sender,
    sender_life: u64,
    begun: i64,
    lives: Vec<Life>,
    count: u64,
    /// On the way: arrival, a number, the lives of both ends, the datagram.
    wire: BTreeMap<(i64, u64), (u64, u64, Datagram)>,
    fates: Vec<Fate>,
    perfect: bool,
    sent: usize,
    acknowledgements: u64,
    /// When messages leave, of the present sender.
    leaves: BTreeMap<u32, i64>,
}

impl World {
    fn new(config: Config, fates: Vec<Fate>) -> Self {
        let mut world = Self {
            now: 1_000 * MS,
            config,
            sender: Sender::new(config).expect("a good configuration"),
            sender_life: 0,
            begun: 1_000 * MS,
            lives: Vec::new(),
            count: 0,
            wire: BTreeMap::new(),
            fates,
            perfect: false,
            sent: 0,
            acknowledgements: 0,
            leaves: BTreeMap::new(),
        };
        for _ in 0..2 {
            let life = world.life();
            world.lives.push(life);
        }
        world
    }

    fn life(&mut self) -> Life {
        self.count += 1;
        Life {
            receiver: Receiver::new(WINDOW).expect("a good window"),
            peer: self.sender.add_peer(self.now).expect("few peers"),
            number: self.count,
            first: self.sender.next(),
            got: Vec::new(),
            withheld: Vec::new(),
            lost: 0,
            skipped: None,
        }
    }

    fn send(&mut self, receiver: u64, datagram: Datagram) {
        self.send_after(receiver, datagram, 0);
    }

    fn send_after(&mut self, receiver: u64, datagram: Datagram, later: i64) {
        let fate = match self.perfect {
            true => Fate {
                lost: false,
                repeated: false,
                delay: MS,
            },
            false => self.fates[self.sent % self.fates.len()],
        };
        self.sent += 1;
        let copies = if fate.lost {
            0
        } else {
            1 + usize::from(fate.repeated)
        };
        for copy in 0..copies as i64 {
            let at = self.now + later + fate.delay + copy * MS / 3;
            let key = (at, (2 * self.sent as i64 + copy) as u64);
            self.wire
                .insert(key, (self.sender_life, receiver, datagram));
        }
    }

    fn emit(&mut self, withhold: Option<usize>, later: i64) -> Result<u32, Full> {
        if self.config.policy == Policy::Latest {
            self.sender.supersede();
            assert_eq!(self.sender.room(BYTES), Ok(()), "it never waits");
        }
        let sequence = self
            .sender
            .emit_at(self.now, BYTES, self.now + later, self.now + later)?;
        self.leaves.insert(sequence, self.now + later);
        if let Some(at) = withhold {
            let life = &mut self.lives[at];
            life.withheld.push(sequence);
            assert!(self.sender.give_up(self.now, life.peer, sequence));
            assert!(!self.sender.give_up(self.now, life.peer, sequence));
        }
        let others = (0..self.lives.len()).filter(|at| withhold != Some(*at));
        let numbers: Vec<u64> = others.map(|at| self.lives[at].number).collect();
        for number in numbers {
            let stamp = self.now;
            self.send_after(number, Datagram::Message { sequence, stamp }, later);
        }
        Ok(sequence)
    }

    fn arrive(&mut self, receiver: u64, datagram: Datagram) {
        let now = self.now;
        let Some(life) = self.lives.iter_mut().find(|life| life.number == receiver) else {
            return;
        };
        match datagram {
            Datagram::Message { sequence, stamp } => {
                if self.config.policy == Policy::Latest {
                    life.receiver.supersede(now, sequence);
                }
                let arrival = life.receiver.receive(now, sequence, stamp);
                if life.got.contains(&sequence) {
                    assert_ne!(arrival, Arrival::Keep, "twice: {sequence}");
                }
            }
            Datagram::Announce(announce) => {
                life.receiver.announce(now, &announce).expect("honest");
                let skipped = announce.oldest.wrapping_sub(life.first);
                life.skipped.get_or_insert(u64::from(skipped));
            }
            Datagram::Acknowledgement(said) => {
                let peer = life.peer;
                self.sender.acknowledge(now, peer, &said).expect("honest");
            }
        }
    }

    /// Does what is due now.
    fn settle(&mut self) {
        while let Some((&key, &(sender, receiver, datagram))) = self.wire.iter().next()
            && key.0 <= self.now
        {
            self.wire.remove(&key);
            if sender == self.sender_life {
                self.arrive(receiver, datagram);
            }
        }
        let mut bound = 10_000;
        while let Some(action) = self.sender.poll(self.now) {
            bound -= 1;
            assert!(bound > 0, "polls without end");
            let of = |peer| {
                self.lives
                    .iter()
                    .find(|life| life.peer == peer)
                    .map(|life| life.number)
            };
            match action {
                Action::Repair(peer, sequence) => {
                    let age = self.sender.next().wrapping_sub(sequence);
                    assert!(
                        age <= self.sender.retained(),
                        "repairs what is not retained"
                    );
                    assert!(self.leaves[&sequence] < self.now, "lost before it left");
                    let withheld = self.lives.iter().find(|life| life.peer == peer);
                    let withheld = withheld.map(|life| life.withheld.contains(&sequence));
                    assert_eq!(withheld, Some(false), "sends what it gave up");
                    let to = of(peer).expect("known");
                    self.send(
                        to,
                        Datagram::Message {
                            sequence,
                            stamp: self.now,
                        },
                    );
                }
                Action::Announce(peer, announce) => {
                    self.send(of(peer).expect("known"), Datagram::Announce(announce))
                }
                Action::Evicted(..) => panic!("evicted though it answers"),
            }
        }
        for at in 0..self.lives.len() {
            while let Some(said) = self.lives[at].receiver.poll(self.now) {
                self.acknowledgements += 1;
                self.send(self.lives[at].number, Datagram::Acknowledgement(said));
            }
        }
        assert!(self.sender.retained() <= self.config.messages);
        self.no_storm();
    }

    /// At most the share, and one message for each peer and least timeout.
    fn no_storm(&self) {
        let counted = self.sender.counters();
        let floor = 2 + (self.now - self.begun) / self.config.least_timeout_ns;
        let allowed = counted.bytes * u64::from(self.config.repair_percent) / 100;
        let peers = 2 + self.count;
        assert!(counted.repaired_bytes <= allowed + peers * floor as u64 * BYTES);
        assert!(counted.announced <= peers * floor as u64 + counted.given_up + counted.withheld);
    }

    fn run_until(&mut self, until: i64) {
        loop {
            self.settle();
            let wire = self.wire.keys().next().map(|key| key.0);
            let own = self.sender.wake_ns(self.now);
            let theirs = self
                .lives
                .iter()
                .filter_map(|life| life.receiver.wake_ns())
                .min();
            match [wire, own, theirs].into_iter().flatten().min() {
                Some(next) if next <= until => {
                    assert!(
                        next > self.now,
                        "a timer that does not move: {wire:?} {own:?} {theirs:?}"
                    );
                    self.now = next;
                }
                _ => break,
            }
        }
        self.now = until;
    }

    fn take(&mut self, at: usize, most: usize) {
        let life = &mut self.lives[at];
        for _ in 0..most {
            match life.receiver.deliver(self.now) {
                Some(Delivery::Message(sequence)) => {
                    let before =
                        life.got.len() as u64 + life.lost + life.skipped.expect("announced");
                    let expected = life.first.wrapping_add(before as u32);
                    assert_eq!(sequence, expected, "out of order, twice or left out");
                    life.got.push(sequence);
                }
                Some(Delivery::Lost(count)) => life.lost += count,
                None => break,
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Emit(count) => {
                for _ in 0..count {
                    if self.emit(None, 0).is_err() {
                        break;
                    }
                }
            }
            Step::Withhold(at) => {
                let _ = self.emit(Some(usize::from(at)), 0);
            }
            Step::EmitLater(later) => {
                let _ = self.emit(None, later);
            }
            Step::Wait(ns) => self.run_until(self.now + ns),
            Step::Take(at, most) => self.take(usize::from(at), usize::from(most)),
            Step::RestartReceiver(at) => {
                let old = self.lives[usize::from(at)].peer;
                assert!(self.sender.remove_peer(old));
                self.lives[usize::from(at)] = self.life();
            }
            Step::RestartSender => {
                self.sender = Sender::new(self.config).expect("a good configuration");
                (self.sender_life, self.begun) = (self.sender_life + 1, self.now);
                for at in 0..self.lives.len() {
                    self.lives[at] = self.life();
                }
            }
        }
    }

    /// The network recovers and the sinks take what there is: everything is delivered or counted, and then it is quiet.
    fn end(&mut self) {
        self.perfect = true;
        for _ in 0..3_000 {
            if self.sender.retained() == 0
                && self.wire.is_empty()
                && self.sender.wake_ns(self.now).is_none()
            {
                break;
            }
            self.run_until(self.now + 10 * MS);
            self.take(0, usize::MAX);
            self.take(1, usize::MAX);
        }
        self.take(0, usize::MAX);
        self.take(1, usize::MAX);
        assert_eq!(self.sender.retained(), 0, "not everything was acknowledged");
        let end = self.sender.next();
        for life in &self.lives {
            let skipped = life.skipped.expect("announced");
            let known = life.got.len() as u64 + life.lost + skipped;
            assert_eq!(
                u64::from(end.wrapping_sub(life.first)),
                known,
                "silently lost"
            );
            if self.config.policy == Policy::Reliable {
                let withheld = life.withheld.len() as u64;
                assert_eq!(life.lost + skipped, withheld, "lost though reliable");
            }
        }
        if self.config.policy == Policy::Latest {
            let newest = |life: &&Life| !life.withheld.contains(&end.wrapping_sub(1));
            let lives = self.lives.iter().filter(|life| life.first != end);
            for life in lives.filter(newest) {
                assert_eq!(
                    life.got.last(),
                    Some(&end.wrapping_sub(1)),
                    "without the newest"
                );
            }
        }
        if self.config.policy == Policy::Reliable {
            assert_eq!(self.sender.counters().given_up, 0);
        }
        let lost: u64 = self
            .lives
            .iter()
            .map(|life| life.lost + life.skipped.unwrap_or(0))
            .sum();
        // What came after it was given up at the sender counts there alone.
        let counted = self.sender.counters();
        assert!(
            lost <= counted.given_up + counted.superseded + counted.withheld,
            "counted at one end only"
        );
        let quiet = self.now;
        self.run_until(quiet + 100_000 * MS);
        assert_eq!(
            self.sender.wake_ns(self.now),
            None,
            "timers of an idle flow"
        );
        assert!(
            self.lives
                .iter()
                .all(|life| life.receiver.wake_ns().is_none())
        );
    }
}

fn fate(loss: u32) -> impl Strategy<Value = Fate> {
    let delay = prop_oneof![4 => Just(MS), 1 => 0..8 * MS];
    (0..100u32, 0..100u32, delay).prop_map(move |(lost, repeated, delay)| Fate {
        lost: lost < loss,
        repeated: repeated < 10,
        delay,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..40u8).prop_map(Step::Emit),
        2 => (0..2u8).prop_map(Step::Withhold),
        2 => (0..100 * MS).prop_map(Step::EmitLater),
        8 => (0..30 * MS).prop_map(Step::Wait),
        6 => (0..2u8, 1..60u8).prop_map(|(at, most)| Step::Take(at, most)),
        1 => (0..2u8).prop_map(Step::RestartReceiver),
        1 => Just(Step::RestartSender),
    ]
}

fn config(policy: Policy) -> Config {
    Config {
        policy,
        messages: 64,
        bytes: 50 * BYTES,
        least_timeout_ns: MS,
        silence_ns: 1_000_000 * MS,
        ..Config::default()
    }
}

fn run(config: Config, fates: Vec<Fate>, steps: &[Step]) {
    let mut world = World::new(config, fates);
    for step in steps {
        world.step(*step);
        world.settle();
    }
    world.end();
}

/// `TAKT_CASES` asks for more than in every run.
fn cases() -> ProptestConfig {
    let cases = std::env::var("TAKT_CASES")
        .ok()
        .and_then(|text| text.parse().ok());
    ProptestConfig::with_cases(cases.unwrap_or(400))
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn reliable(
        fates in (0..60u32).prop_flat_map(|loss| proptest::collection::vec(fate(loss), 50..300)),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        run(config(Policy::Reliable), fates, &steps);
    }

    #[test]
    fn within_a_deadline(
        fates in (0..60u32).prop_flat_map(|loss| proptest::collection::vec(fate(loss), 50..300)),
        steps in proptest::collection::vec(step(), 1..80),
        deadline in MS..100 * MS,
    ) {
        run(config(Policy::Within(deadline)), fates, &steps);
    }

    #[test]
    fn latest(
        fates in (0..60u32).prop_flat_map(|loss| proptest::collection::vec(fate(loss), 50..300)),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        run(config(Policy::Latest), fates, &steps);
    }

    /// Messages leave later than anybody may be silent, and nothing is lost: who answers is not evicted.
    #[test]
    fn whoever_answers_stays(
        policy in prop_oneof![
            Just(Policy::Reliable), Just(Policy::Latest), (MS..100 * MS).prop_map(Policy::Within)
        ],
        fates in proptest::collection::vec(fate(0), 50..300),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let short = Config { most_timeout_ns: 20 * MS, silence_ns: 60 * MS, ..config(policy) };
        run(short, fates, &steps);
    }
}

/// Numbers near what may be right, and any.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![
        0..600u32,
        (0..600u32).prop_map(|back| 0u32.wrapping_sub(back)),
        any::<u32>()
    ]
}

fn instant() -> impl Strategy<Value = i64> {
    prop_oneof![0..2_000 * MS, any::<i64>()]
}

prop_compose! {
    fn acknowledgement()(
        next in number(), room in number(), span in number(), here in any::<[u64; 4]>(), stamp_ns in instant(),
        held_ns in instant(), messages in number(), bytes in number(),
    ) -> Acknowledgement {
        let limit = next.wrapping_add(room);
        Acknowledgement { next, limit, span, here, lacking: next, stamp_ns, held_ns, messages, bytes }
    }
}

prop_compose! {
    fn announcement()(
        oldest in number(), ahead in number(), round_trip_ns in instant(), stamp_ns in instant(),
    ) -> Announce {
        Announce { oldest, next: oldest.wrapping_add(ahead), round_trip_ns, stamp_ns }
    }
}

#[derive(Clone, Copy, Debug)]
enum Telling {
    Emit,
    /// One message, which cannot be sent to peer 0 or 1.
    Withhold(usize),
    /// Peer 0 or 1 says what it has: of what it may have, these bits more.
    Say(usize, u64),
    Wait(i64),
}

fn telling() -> impl Strategy<Value = Telling> {
    prop_oneof![
        6 => Just(Telling::Emit),
        2 => (0..2usize).prop_map(Telling::Withhold),
        3 => (0..2usize, any::<u64>(), any::<u64>()).prop_map(|(at, few, some)| Telling::Say(at, few & some)),
        2 => (0..60 * MS).prop_map(Telling::Wait),
    ]
}

proptest! {
    #![proptest_config(cases())]

    /// Every message is, for every peer, either acknowledged, or counted: once, and as one thing.
    #[test]
    fn what_is_not_acknowledged_is_counted_once(
        policy in prop_oneof![
            Just(Policy::Reliable), Just(Policy::Latest), (MS..100 * MS).prop_map(Policy::Within)
        ],
        steps in proptest::collection::vec(telling(), 1..200),
    ) {
        let mut sender = Sender::new(config(policy)).expect("a good configuration");
        let mut now = 1_000 * MS;
        // Each has said that it has these, and cannot be sent those.
        let mut peers = Vec::new();
        for _ in 0..2 {
            let peer = sender.add_peer(now).expect("few");
            peers.push((peer, BTreeSet::new(), BTreeSet::new()));
        }
        for step in steps {
            match step {
                Telling::Emit | Telling::Withhold(_) => {
                    if policy == Policy::Latest {
                        sender.supersede();
                    }
                    let (Ok(sequence), Telling::Withhold(at)) = (sender.emit(now, BYTES), step) else {
                        continue;
                    };
                    let (peer, _, withheld) = &mut peers[at];
                    prop_assert!(sender.give_up(now, *peer, sequence));
                    withheld.insert(sequence);
                }
                Telling::Say(at, bits) => {
                    let (peer, has, withheld) = &mut peers[at];
                    let (oldest, end) = (sender.acknowledged(*peer).expect("nobody is evicted"), sender.next());
                    has.extend((oldest..end).filter(|sequence| {
                        bits >> (sequence % 64) & 1 != 0 && !withheld.contains(sequence)
                    }));
                    let next = (oldest..end).find(|sequence| !has.contains(sequence)).unwrap_or(end);
                    let mut here = [0; 4];
                    for sequence in has.range(next..) {
                        here[(sequence - next) as usize / 64] |= 1 << ((sequence - next) % 64);
                    }
                    let said = Acknowledgement {
                        next, limit: next + WINDOW, span: end - next, here, lacking: next, stamp_ns: 0, held_ns: 0,
                        messages: WINDOW, bytes: MAX_GRANT_BYTES,
                    };
                    sender.acknowledge(now, *peer, &said).expect("honest");
                }
                Telling::Wait(ns) => now += ns,
            }
            while let Some(action) = sender.poll(now) {
                prop_assert!(!matches!(action, Action::Evicted(..)), "evicted");
            }
        }
        let mut acknowledged = 0;
        for (peer, has, _) in &peers {
            acknowledged += has.len() as u64;
            prop_assert!(sender.remove_peer(*peer));
        }
        let counted = sender.counters();
        let without = counted.given_up + counted.withheld + counted.superseded + counted.abandoned;
        prop_assert_eq!(acknowledged + without, 2 * counted.emitted, "{:?}", counted);
    }
}

proptest! {
    #![proptest_config(cases())]

    /// What a peer says never harms the others: bounds hold, timers move, and an honest peer gets everything.
    #[test]
    fn a_hostile_receiver(said in proptest::collection::vec((acknowledgement(), 0..20 * MS, 0..20u8), 1..200)) {
        let config = Config { stall_ns: Some(300 * MS), ..config(Policy::Reliable) };
        let mut sender = Sender::new(config).expect("a good configuration");
        let mut now = 1_000 * MS;
        let (honest, hostile) = (sender.add_peer(now).expect("few"), sender.add_peer(now).expect("few"));
        let mut receiver = Receiver::new(WINDOW).expect("a good window");
        let mut got = 0;
        for (said, wait, emit) in said {
            for _ in 0..emit {
                if let Ok(sequence) = sender.emit(now, BYTES) {
                    receiver.receive(now, sequence, now);
                }
            }
            let refused = sender.acknowledge(now, hostile, &said).is_err();
            prop_assert!(!refused || sender.counters().refused > 0);
            for _ in 0..1_000 {
                match sender.poll(now) {
                    Some(Action::Repair(peer, sequence)) if peer == honest => {
                        receiver.receive(now, sequence, now);
                    }
                    Some(Action::Announce(peer, said)) if peer == honest => {
                        receiver.announce(now, &said).expect("honest");
                    }
                    Some(Action::Evicted(peer, _)) => prop_assert_eq!(peer, hostile),
                    Some(_) => {}
                    None => break,
                }
            }
            prop_assert_eq!(sender.poll(now), None, "polls without end");
            prop_assert!(sender.wake_ns(now).is_none_or(|at| at > now), "a timer that does not move");
            while receiver.deliver(now).is_some() {
                got += 1;
            }
            if let Some(said) = receiver.poll(now) {
                sender.acknowledge(now, honest, &said).expect("honest");
            }
            prop_assert!(sender.retained() <= config.messages);
            now += wait;
        }
        // The hostile one stops, and is evicted: whoever is honest has everything.
        for _ in 0..2_000 {
            while let Some(action) = sender.poll(now) {
                match action {
                    Action::Repair(peer, sequence) if peer == honest => {
                        receiver.receive(now, sequence, now);
                    }
                    Action::Announce(peer, said) if peer == honest => {
                        receiver.announce(now, &said).expect("honest");
                    }
                    _ => {}
                }
            }
            while receiver.deliver(now).is_some() {
                got += 1;
            }
            if let Some(said) = receiver.poll(now) {
                sender.acknowledge(now, honest, &said).expect("honest");
            }
            now += MS;
        }
        prop_assert_eq!(sender.retained(), 0);
        prop_assert_eq!(got, sender.counters().emitted);
    }

    #[test]
    fn a_hostile_sender(steps in proptest::collection::vec((announcement(), number(), 0..20 * MS), 1..200)) {
        let mut receiver = Receiver::new(WINDOW).expect("a good window");
        let mut now = 1_000 * MS;
        let mut kept = 0i64;
        for (said, sequence, wait) in steps {
            let _ = receiver.announce(now, &said);
            if receiver.receive(now, sequence, said.stamp_ns) == Arrival::Keep {
                kept += 1;
            }
            prop_assert!(kept <= i64::from(WINDOW), "keeps more than its window");
            if now % 2 == 0 {
                while let Some(delivery) = receiver.deliver(now) {
                    kept -= i64::from(matches!(delivery, Delivery::Message(_)));
                }
            }
            if receiver.poll(now).is_some() {
                prop_assert!(receiver.poll(now).is_none(), "acknowledges without end");
            }
            now += wait;
        }
    }
}

/// A sink with entries and memory for whole messages, which come in parts.
struct Memory {
    entries: u32,
    bytes: u64,
    /// By first part: how many parts, and bytes; those that have a place.
    placed: BTreeMap<u32, (u32, u64)>,
    /// Not consumed yet, in order, behind what is placed.
    waiting: Vec<u64>,
}

impl Memory {
    fn free(&self) -> (u32, u64) {
        let placed = self.placed.values().map(|(_, bytes)| *bytes);
        let used: u64 = placed.chain(self.waiting.iter().copied()).sum();
        let entries = self.placed.len() + self.waiting.len();
        (self.entries - entries as u32, self.bytes - used)
    }

    /// As a lane does: in units of the part, and of messages that begin with the first missing one or behind it.
    fn room(&self, next: u32) -> Room {
        let (entries, free) = self.free();
        let behind = self.placed.range(next..);
        let (count, bytes) = behind.fold((0, 0), |sum, (_, (_, bytes))| (sum.0 + 1, sum.1 + bytes));
        let open = if entries > 0 { WINDOW } else { 0 };
        let last = self.placed.iter().next_back();
        let placed = last.map_or(0, |(first, (parts, _))| {
            (first + parts).saturating_sub(next)
        });
        Room {
            window: open + placed,
            messages: entries + count,
            bytes: free + bytes,
        }
    }
}

proptest! {
    #![proptest_config(cases())]

    /// What is begun while anything is on its way finds room, whatever the messages before it were like; and whatever is
    /// lost, grants among it, the flow goes on to its end.
    #[test]
    fn no_message_begins_that_a_sink_has_no_room_for(
        messages in proptest::collection::vec((1..9u32, prop_oneof![3 => 1..100u64, 1 => 100..1_500u64]), 1..120),
        (entries, bytes) in (1..12u32, 100..2_000u64),
        fates in (0..40u32).prop_flat_map(|loss| proptest::collection::vec(fate(loss), 50..300)),
        pace in 1..6usize,
    ) {
        let config = Config { messages: 256, bytes: 1 << 30, ..config(Policy::Reliable) };
        let mut sender = Sender::new(config).expect("a good configuration");
        let peer = sender.add_peer(0).expect("the first");
        let mut receiver = Receiver::new(WINDOW).expect("a good window");
        let mut memory = Memory { entries, bytes, placed: BTreeMap::new(), waiting: Vec::new() };
        // Of each part: which message it is of, and whether that was begun without anything on its way, or before it was heard.
        let mut parts: Vec<(u32, u32, u64, bool)> = Vec::new();
        let mut left = messages.iter().filter(|(_, needed)| *needed <= bytes);
        let (mut next, mut part) = (left.next(), 0);
        let (mut now, mut sent, mut greeted, mut consumed) = (0i64, 0usize, false, 0);
        let wanted = messages.iter().filter(|(_, needed)| *needed <= bytes).count();
        let mut wire: BTreeMap<(i64, usize), Datagram> = BTreeMap::new();
        let mut turns = 0;
        while consumed < wanted {
            turns += 1;
            prop_assert!(turns < 200_000, "it stands still");
            let mut out = Vec::new();
            while let Some(&(count, needed)) = next {
                let alone = !greeted || sender.acknowledged(peer) == Some(sender.next());
                let begins = (part == 0).then_some(needed);
                let Ok(sequence) = sender.emit_part(now, 10, now, now, begins) else {
                    break;
                };
                let tried = if part == 0 { alone } else { parts.last().expect("begun").3 };
                parts.push((sequence - part, count, needed, tried));
                out.push(Datagram::Message { sequence, stamp: now });
                part += 1;
                if part == count {
                    (next, part) = (left.next(), 0);
                }
            }
            while let Some(action) = sender.poll(now) {
                match action {
                    Action::Repair(_, sequence) => out.push(Datagram::Message { sequence, stamp: now }),
                    Action::Announce(_, said) => out.push(Datagram::Announce(said)),
                    Action::Evicted(..) => prop_assert!(false, "evicted though it answers"),
                }
            }
            receiver.set_room(now, memory.room(receiver.next()));
            out.extend(receiver.poll(now).map(Datagram::Acknowledgement));
            for datagram in out {
                let fate = fates[sent % fates.len()];
                sent += 1;
                // A loss of everything, for ever, is none that can be repaired.
                if !fate.lost || sent % 7 == 0 {
                    wire.insert((now + fate.delay, sent), datagram);
                }
            }
            let at = wire.keys().next().map_or(i64::MAX, |key| key.0);
            now = (now + MS).min(at.max(now + 1));
            while let Some(entry) = wire.first_entry()
                && entry.key().0 <= now
            {
                match entry.remove() {
                    Datagram::Announce(said) => receiver.announce(now, &said).expect("honest"),
                    Datagram::Acknowledgement(said) => {
                        sender.acknowledge(now, peer, &said).expect("honest");
                        greeted = true;
                    }
                    Datagram::Message { sequence, stamp } => {
                        let (first, count, needed, tried) = parts[sequence as usize];
                        if receiver.judge(sequence) == Arrival::Keep
                            && !memory.placed.contains_key(&first)
                        {
                            let (entries, free) = memory.free();
                            if entries == 0 || free < needed {
                                prop_assert!(tried, "message {} of {} bytes: {} are free", first, needed, free);
                                // What all others wait for comes before them.
                                if receiver.next() < first || memory.placed.range(first..).next().is_none() {
                                    continue;
                                }
                                let (&last, &(parts, _)) = memory.placed.iter().next_back().expect("one");
                                receiver.forget(now, last..last + parts);
                                memory.placed.remove(&last);
                                continue;
                            }
                            memory.placed.insert(first, (count, needed));
                        }
                        receiver.receive(now, sequence, stamp);
                        while let Some(Delivery::Message(sequence)) = receiver.deliver(now) {
                            let (first, count, needed, _) = parts[sequence as usize];
                            if sequence + 1 == first + count {
                                memory.placed.remove(&first).expect("placed");
                                memory.waiting.push(needed);
                            }
                        }
                    }
                }
            }
            if turns % pace == 0 && !memory.waiting.is_empty() {
                memory.waiting.remove(0);
                consumed += 1;
            }
        }
    }
}
