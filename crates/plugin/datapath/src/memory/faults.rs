//! Faults on demand: the same for the same seed, order of opening and order of sending.

use std::sync::atomic::{AtomicU64, Ordering};

const MILLION: u64 = 1_000_000;

/// How many of a million datagrams meet each fault, independently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Vanish.
    pub drop_per_million: u32,
    /// Arrive twice.
    pub duplicate_per_million: u32,
    /// Change places with the next datagram to the same peer, where that has been committed too when
    /// they leave.
    pub reorder_per_million: u32,
    /// Arrive with one bit wrong. Empty datagrams have no bit to spoil.
    pub corrupt_per_million: u32,
    /// Where the sequence of faults begins.
    pub seed: u64,
}

/// How many datagrams have met each fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Vanished: their sender has counted them as handed over, nobody counts them as received.
    pub dropped: u64,
    /// Doubled.
    pub duplicated: u64,
    /// Put behind their successor.
    pub reordered: u64,
    /// Spoiled.
    pub corrupted: u64,
}

/// The counters of a whole network.
#[derive(Debug, Default)]
pub(super) struct FaultTally {
    pub(super) dropped: AtomicU64,
    pub(super) duplicated: AtomicU64,
    pub(super) reordered: AtomicU64,
    pub(super) corrupted: AtomicU64,
}

impl FaultTally {
    pub(super) fn read(&self) -> FaultCounters {
        // Relaxed here and in `count`: counters order nothing.
        FaultCounters {
            dropped: self.dropped.load(Ordering::Relaxed),
            duplicated: self.duplicated.load(Ordering::Relaxed),
            reordered: self.reordered.load(Ordering::Relaxed),
            corrupted: self.corrupted.load(Ordering::Relaxed),
        }
    }

    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What one port draws its faults from.
#[derive(Debug)]
pub(super) struct Injector {
    faults: Faults,
    state: u64,
}

impl Injector {
    pub(super) fn new(faults: Faults, port: u64) -> Self {
        let mut injector = Self {
            faults,
            state: faults.seed,
        };
        // Ports begin far apart, whatever the seed.
        injector.state = injector.draw() ^ port.wrapping_mul(0xd1b5_4a32_d192_ed03);
        injector
    }

    /// Whether anything can go wrong at all: the path of a faultless network is short.
    pub(super) fn is_idle(&self) -> bool {
        let Faults {
            drop_per_million,
            duplicate_per_million,
            reorder_per_million,
            corrupt_per_million,
            ..
        } = self.faults;
        drop_per_million == 0
            && duplicate_per_million == 0
            && reorder_per_million == 0
            && corrupt_per_million == 0
    }

    pub(super) fn drops(&mut self) -> bool {
        self.hits(self.faults.drop_per_million)
    }

    pub(super) fn duplicates(&mut self) -> bool {
        self.hits(self.faults.duplicate_per_million)
    }

    pub(super) fn reorders(&mut self) -> bool {
        self.hits(self.faults.reorder_per_million)
    }

    /// Spoils one bit of the payload, perhaps. Returns whether it has.
    pub(super) fn corrupts(&mut self, payload: &mut [u8]) -> bool {
        if payload.is_empty() || !self.hits(self.faults.corrupt_per_million) {
            return false;
        }
        let bit = self.draw() % (payload.len() as u64 * 8);
        payload[(bit / 8) as usize] ^= 1 << (bit % 8);
        true
    }

    fn hits(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.draw() % MILLION < u64::from(per_million)
    }

    /// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
