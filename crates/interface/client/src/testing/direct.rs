use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;
use takt_session::layout::{Completion, Release};
use takt_shm::{Arena, CHUNK, Consumer, Producer, RingLayout};

use crate::lent::Lent;
use crate::memory::{Account, Block, Outcomes, Stock, TxMemory};

const BYTES: usize = 64 << 10;
const DEPTH: u32 = 64;
const RINGS: usize = 3;

#[derive(Clone, Debug)]
enum Act {
    /// A message of this length, by the lane or not, for these sinks.
    Emit(usize, bool, u8),
    /// The lane completes one.
    Complete(prop::sample::Index),
    /// A sink gives back what it has.
    Return(usize, prop::sample::Index),
    /// A sink gives back anything.
    Cheat(usize, u32),
    /// A sink gives back the same twice.
    Twice(usize, prop::sample::Index),
    /// A sink is gone.
    Gone(usize),
}

fn acts() -> impl Strategy<Value = Act> {
    let which = || any::<prop::sample::Index>();
    prop_oneof![
        8 => (1..9000usize, any::<bool>(), 0..1u8 << RINGS).prop_map(|(l, lane, s)| Act::Emit(l, lane, s)),
        6 => which().prop_map(Act::Complete),
        12 => (0..RINGS, which()).prop_map(|(ring, at)| Act::Return(ring, at)),
        1 => (0..RINGS, any::<u32>()).prop_map(|(ring, chunk)| Act::Cheat(ring, chunk)),
        1 => (0..RINGS, 0..300u32).prop_map(|(ring, chunk)| Act::Cheat(ring, chunk)),
        1 => (0..RINGS, which()).prop_map(|(ring, at)| Act::Twice(ring, at)),
        1 => (0..RINGS).prop_map(Act::Gone),
    ]
}

/// A sink as it is behind its ring.
struct Sink {
    lent: Arc<Lent>,
    returns: Producer<Release>,
    has: Vec<u32>,
    cheats: bool,
    gone: bool,
}

struct World {
    memory: TxMemory,
    account: Arc<Account>,
    stock: Stock,
    completions: Producer<Completion>,
    lane: Vec<u32>,
    sinks: Vec<Sink>,
    token: u32,
}

impl World {
    fn new() -> Self {
        let arena = Arc::new(Arena::create("takt-test", 64 << 10).expect("an arena"));
        let memory = TxMemory::new(BYTES, 0, std::sync::Arc::default());
        let ring = |at: usize| at * 4096;
        let done = Consumer::<Completion>::attach(&arena, ring(0), DEPTH).expect("a ring");
        let account = memory.open(done, Outcomes::new(2 * DEPTH as usize));
        assert!(RingLayout::size::<Completion>(DEPTH) <= 4096);
        let sinks = (0..RINGS).map(|at| {
            let lent = Arc::new(Lent::new(at as u32, memory.chunks()));
            let place = ring(at + 1);
            let returns = Consumer::<Release>::attach(&arena, place, DEPTH).expect("a ring");
            account.add_ring(returns, lent.clone());
            Sink {
                lent,
                returns: Producer::attach(&arena, place, DEPTH).expect("a ring"),
                has: Vec::new(),
                cheats: false,
                gone: false,
            }
        });
        let sinks = sinks.collect();
        Self {
            completions: Producer::attach(&arena, ring(0), DEPTH).expect("a ring"),
            memory,
            account,
            stock: Stock::default(),
            lane: Vec::new(),
            sinks,
            token: 0,
        }
    }

    /// Chunks that somebody who does not cheat may still read.
    fn in_use(&self) -> HashSet<u32> {
        let honest = self.sinks.iter().filter(|sink| !sink.cheats && !sink.gone);
        honest
            .flat_map(|sink| sink.has.clone())
            .chain(self.lane.clone())
            .collect()
    }

    fn allocate(&mut self, len: usize) -> Option<Block> {
        let block = self.memory.allocate(&self.account, &mut self.stock, len);
        block.expect("the lane is honest")
    }

    fn emit(&mut self, len: usize, by_lane: bool, sinks: u8) -> Result<(), TestCaseError> {
        if self.lane.len() >= DEPTH as usize {
            return Ok(());
        }
        let Some(block) = self.allocate(len) else {
            return Ok(());
        };
        prop_assert!(!self.in_use().contains(&block.chunk), "{block:?} is in use");
        let chosen: Vec<usize> = (0..RINGS)
            .filter(|at| {
                let sink = &self.sinks[*at];
                sinks & (1 << at) != 0
                    && !sink.gone
                    && !sink.cheats
                    && sink.has.len() < DEPTH as usize
            })
            .collect();
        if by_lane {
            self.memory.emitted(block);
            self.lane.push(block.chunk);
        }
        if !chosen.is_empty() {
            self.memory.lend(block, chosen.len() as u8);
        }
        for at in &chosen {
            self.memory.lend_to(&self.sinks[*at].lent, block);
            self.sinks[*at].has.push(block.chunk);
        }
        if !by_lane && chosen.is_empty() {
            self.memory.free(&self.account, &mut self.stock, block);
        }
        Ok(())
    }

    fn complete(&mut self, at: usize) {
        let chunk = self.lane.swap_remove(at);
        self.token += 1;
        let completion = Completion {
            chunk,
            token: self.token,
            ..Completion::default()
        };
        assert_eq!(self.completions.push(completion), Ok(true));
    }

    fn look(&mut self) {
        let looked = self.memory.harvest(&self.account, &mut self.stock);
        looked.expect("the lane is honest");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever sinks give back, in whatever order, and whoever goes: nobody honest loses what it reads, and in the end all
    /// memory is there again.
    #[test]
    fn a_block_is_free_when_nobody_has_it_and_never_before(acts in proptest::collection::vec(acts(), 1..120)) {
        let mut world = World::new();
        for act in acts {
            match act {
                Act::Emit(len, by_lane, sinks) => world.emit(len, by_lane, sinks)?,
                Act::Complete(at) => {
                    if !world.lane.is_empty() {
                        world.complete(at.index(world.lane.len()));
                    }
                }
                Act::Return(ring, at) => {
                    let sink = &mut world.sinks[ring];
                    if !sink.has.is_empty() && !sink.gone {
                        let chunk = sink.has.swap_remove(at.index(sink.has.len()));
                        prop_assert!(sink.cheats || sink.returns.push(chunk) == Ok(true));
                    }
                    world.look();
                }
                Act::Cheat(ring, chunk) => {
                    let sink = &mut world.sinks[ring];
                    if !sink.gone && !sink.has.contains(&chunk) && sink.returns.push(chunk) == Ok(true) {
                        sink.cheats = true;
                        world.look();
                        prop_assert!(world.sinks[ring].lent.broken.load(std::sync::atomic::Ordering::Relaxed));
                    }
                }
                Act::Twice(ring, at) => {
                    let sink = &mut world.sinks[ring];
                    if !sink.gone && !sink.cheats && !sink.has.is_empty() {
                        let chunk = sink.has.swap_remove(at.index(sink.has.len()));
                        let _ = sink.returns.push(chunk);
                        if sink.returns.push(chunk) == Ok(true) {
                            sink.cheats = true;
                            world.look();
                            prop_assert!(world.sinks[ring].lent.broken.load(std::sync::atomic::Ordering::Relaxed));
                        }
                    }
                }
                Act::Gone(ring) => {
                    world.memory.free_ring(ring as u32);
                    world.sinks[ring].gone = true;
                }
            }
            let lent: usize = world.sinks.iter().map(|sink| sink.lent.bytes()).sum();
            prop_assert_eq!(lent, world.memory.lent());
        }
        while !world.lane.is_empty() {
            world.complete(0);
        }
        world.look();
        for ring in 0..RINGS {
            world.memory.free_ring(ring as u32);
        }
        prop_assert_eq!(world.memory.lent(), 0);
        prop_assert!(world.allocate(BYTES).is_some(), "all of it is free");
        prop_assert_eq!(BYTES % CHUNK, 0);
    }
}

#[test]
fn what_a_source_lends_a_sink_that_is_gone_already_comes_back() {
    let mut world = World::new();
    world.emit(300, false, 0b11).expect("emitted");
    // The reader thread hears of it while the source gives out a message.
    world.memory.free_ring(0);
    world.emit(5000, false, 0b11).expect("emitted");
    world.emit(700, false, 0b1).expect("emitted");
    let lent = world.sinks[0].lent.clone();
    assert!(lent.bytes() > 0);
    let World {
        memory,
        account,
        stock,
        ..
    } = &mut world;
    memory.free_lent(account, stock, &lent);
    memory.free_lent(account, stock, &lent);
    assert_eq!((lent.count(), lent.bytes()), (0, 0));
    assert_eq!(memory.lent(), world.sinks[1].lent.bytes());
    world.memory.free_ring(1);
    assert!(world.allocate(BYTES).is_some(), "all of it is free");
}
