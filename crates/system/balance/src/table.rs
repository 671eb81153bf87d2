//! The flow bundle table: flows by the low bits of their hash, and where each bundle goes.

use crate::Refused;
use crate::resource::Resources;

/// A table has at most 2^20 bundles, 16 MiB.
pub const MAX_BITS: u8 = 20;

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A core of this node.
    Core(u16),
    /// Another node that provides the function.
    Neighbour(u16),
}

/// A target in two bytes: neighbours from `FIRST_NEIGHBOUR` on, then numbers that are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed(u16);

const FIRST_NEIGHBOUR: u16 = 0x8000;

impl Packed {
    /// No wish, or not assigned yet.
    const NONE: Self = Self(u16::MAX);
    /// Anywhere but where it is.
    const AWAY: Self = Self(u16::MAX - 1);

    fn target(self) -> Option<Target> {
        match self {
            Self::NONE | Self::AWAY => None,
            Self(core) if core < FIRST_NEIGHBOUR => Some(Target::Core(core)),
            Self(neighbour) => Some(Target::Neighbour(neighbour - FIRST_NEIGHBOUR)),
        }
    }
}

impl From<Target> for Packed {
    fn from(target: Target) -> Self {
        match target {
            Target::Core(core) => Self(core),
            Target::Neighbour(neighbour) => Self(FIRST_NEIGHBOUR + neighbour),
        }
    }
}

/// All flows whose hashes end alike.
#[derive(Clone, Copy, Debug)]
struct Bundle {
    /// When its last packet was sent on.
    last_ns: i64,
    /// The load of a target that its flows can bear.
    limit: u32,
    target: Packed,
    wish: Packed,
}

/// What a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// 2^bits bundles.
    pub bits: u8,
    /// Packets of a bundle that come within this time of each other are of one flowlet and go one way, nanoseconds: the
    /// largest difference of two paths' latencies, as far as targets tell no watermark.
    pub delta_ns: i64,
    /// How long a core must be calm before bundles come back from neighbours, nanoseconds.
    pub hold_ns: i64,
    /// What the flows need of whom they go to, 0 to 63: a bit of [`Functions`](crate::resource::Functions). Flows of
    /// another function have a table of their own.
    pub function: u8,
}

/// What is to happen to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Where its bundle went before.
    Stay(Target),
    /// Somewhere else from now on, or for the first time.
    Move(Target),
    /// To nobody: its target is dead, and a packet that reaches another one now might overtake those before. δ after
    /// the last packet that was sent the bundle moves.
    Fenced,
}

impl Decision {
    /// Where the packet goes.
    pub fn target(self) -> Option<Target> {
        match self {
            Self::Stay(target) | Self::Move(target) => Some(target),
            Self::Fenced => None,
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets steered.
    pub packets: u64,
    /// Bundles that came to another core.
    pub to_cores: u64,
    /// Bundles that came to a neighbour.
    pub to_neighbours: u64,
    /// Bundles that came back from a neighbour.
    pub returns: u64,
    /// Packets that stayed on an overloaded target for the sake of order.
    pub held: u64,
    /// Packets that stayed on an overloaded target because there was no better one.
    pub stuck: u64,
    /// Packets that nobody got.
    pub fenced: u64,
}

/// Bundles of one function. Its memory is fixed when it is made; a packet costs one look at its bundle and, where that
/// may and should move, a search among cores and neighbours.
#[derive(Clone, Debug)]
pub struct Table {
    config: Config,
    bundles: Box<[Bundle]>,
    counters: Counters,
}

/// Where a bundle is to go.
struct Chosen {
    /// `None`: there is nothing better than where it is.
    found: Option<Target>,
    /// Whether it should leave.
    away: bool,
}

/// Spreads what is left of a hash over all its bits.
#[inline]
fn seed(hash: u32) -> u32 {
    hash.wrapping_mul(0x9e37_79b1)
}

impl Table {
    /// No bundle is assigned.
    ///
    /// # Errors
    /// [`Refused`], if a number or a time is out of bounds.
    pub fn new(config: Config) -> Result<Self, Refused> {
        if config.bits > MAX_BITS {
            return Err(Refused::Bits(config.bits));
        }
        if config.function > 63 {
            return Err(Refused::Function(config.function));
        }
        for (what, ns) in [("δ", config.delta_ns), ("hold", config.hold_ns)] {
            if ns < 0 {
                return Err(Refused::Negative { what, ns });
            }
        }
        let bundle = Bundle {
            last_ns: i64::MIN,
            limit: u32::MAX,
            target: Packed::NONE,
            wish: Packed::NONE,
        };
        Ok(Self {
            config,
            bundles: vec![bundle; 1 << config.bits].into(),
            counters: Counters::default(),
        })
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How many bundles there are.
    pub fn count(&self) -> usize {
        self.bundles.len()
    }

    /// The bundle of a flow.
    #[inline]
    pub fn bundle(&self, hash: u32) -> u32 {
        hash & (self.bundles.len() as u32 - 1)
    }

    /// Where a bundle goes at present.
    pub fn target(&self, bundle: u32) -> Option<Target> {
        self.bundles.get(bundle as usize)?.target.target()
    }

    /// The most load of a target that a bundle bears, beside the target's own mark: what
    /// [`Budget::packets`](crate::budget::Budget::packets) says of its most urgent flow. `u32::MAX` for none.
    ///
    /// # Errors
    /// [`Refused::Bundle`].
    pub fn set_limit(&mut self, bundle: u32, limit: u32) -> Result<(), Refused> {
        self.entry(bundle)?.limit = limit;
        Ok(())
    }

    /// Has a bundle go to a target with its next flowlet, whatever the target's load, if it is there and provides the
    /// function.
    ///
    /// # Errors
    /// [`Refused`], if there is no such bundle or target.
    pub fn assign(
        &mut self,
        bundle: u32,
        target: Target,
        resources: &Resources,
    ) -> Result<(), Refused> {
        resources.check(target)?;
        self.entry(bundle)?.wish = target.into();
        Ok(())
    }

    /// Has a bundle leave its target with its next flowlet, as if that were overloaded.
    ///
    /// # Errors
    /// [`Refused::Bundle`].
    pub fn evict(&mut self, bundle: u32) -> Result<(), Refused> {
        self.entry(bundle)?.wish = Packed::AWAY;
        Ok(())
    }

    fn entry(&mut self, number: u32) -> Result<&mut Bundle, Refused> {
        let count = self.bundles.len();
        let bundle = self.bundles.get_mut(number as usize);
        bundle.ok_or(Refused::Bundle { number, count })
    }

    /// Where the packet goes that comes now. A clock that goes back only delays moves.
    #[inline]
    pub fn steer(&mut self, now_ns: i64, hash: u32, resources: &Resources) -> Decision {
        let at = hash as usize & (self.bundles.len() - 1);
        let mut bundle = self.bundles[at];
        let decision = self.decide(&mut bundle, now_ns, hash, resources);
        self.counters.packets += 1;
        match decision {
            Decision::Fenced => self.counters.fenced += 1,
            Decision::Stay(_) => bundle.last_ns = bundle.last_ns.max(now_ns),
            Decision::Move(target) => {
                self.count_move(bundle.target, target);
                bundle.target = target.into();
                bundle.last_ns = bundle.last_ns.max(now_ns);
            }
        }
        self.bundles[at] = bundle;
        decision
    }

    /// Where a bundle's next flowlet is to go, for a data path that keeps time-outs and watermarks by itself and tells what it
    /// did by [`moved`](Self::moved). `None`: where it is.
    pub fn advise(&self, bundle: u32, now_ns: i64, resources: &Resources) -> Option<Target> {
        let entry = self.bundles.get(bundle as usize)?;
        let chosen = self.choose(entry, now_ns, seed(bundle), resources);
        chosen
            .found
            .filter(|found| entry.target.target() != Some(*found))
    }

    /// A bundle has gone to a target, as the data path tells.
    ///
    /// # Errors
    /// [`Refused`], if there is no such bundle or target.
    pub fn moved(
        &mut self,
        bundle: u32,
        target: Target,
        resources: &Resources,
    ) -> Result<(), Refused> {
        resources.check(target)?;
        let entry = self.entry(bundle)?;
        let before = std::mem::replace(&mut entry.target, target.into());
        if entry.wish == Packed::AWAY || entry.wish == entry.target {
            entry.wish = Packed::NONE;
        }
        self.count_move(before, target);
        Ok(())
    }

    #[inline]
    fn count_move(&mut self, before: Packed, target: Target) {
        match (before.target(), target) {
            (Some(Target::Neighbour(_)), Target::Core(_)) => self.counters.returns += 1,
            (Some(_), Target::Core(_)) => self.counters.to_cores += 1,
            (_, Target::Neighbour(_)) => self.counters.to_neighbours += 1,
            (None, Target::Core(_)) => {}
        }
    }

    #[inline]
    fn decide(
        &mut self,
        bundle: &mut Bundle,
        now_ns: i64,
        hash: u32,
        resources: &Resources,
    ) -> Decision {
        let seed = seed(hash);
        let Some(current) = bundle.target.target() else {
            let chosen = self.choose(bundle, now_ns, seed, resources);
            bundle.wish = Packed::NONE;
            let any = || Target::Core(resources.any_core(seed));
            return Decision::Move(chosen.found.unwrap_or_else(any));
        };
        let silent = now_ns.saturating_sub(bundle.last_ns) > self.config.delta_ns;
        let (dead, done_before) = match current {
            Target::Core(core) => (false, resources.core_done_before(core)),
            // A dead one tells no more what is done: δ alone is left.
            Target::Neighbour(neighbour) if resources.is_dead(neighbour, now_ns) => {
                (true, i64::MAX)
            }
            Target::Neighbour(neighbour) => (false, resources.neighbour_done_before(neighbour)),
        };
        if !(silent && bundle.last_ns < done_before) {
            if dead {
                return Decision::Fenced;
            }
            let away = bundle.wish != Packed::NONE || self.overloaded(bundle, current, resources);
            self.counters.held += u64::from(away);
            return Decision::Stay(current);
        }
        let chosen = self.choose(bundle, now_ns, seed, resources);
        if !dead {
            bundle.wish = Packed::NONE;
        }
        match chosen.found {
            Some(target) if target != current => Decision::Move(target),
            _ => {
                self.counters.stuck += u64::from(chosen.away);
                Decision::Stay(current)
            }
        }
    }

    /// Whether a target is too loaded for a bundle, or does not provide the function.
    #[inline]
    fn overloaded(&self, bundle: &Bundle, target: Target, resources: &Resources) -> bool {
        match target {
            Target::Core(core) => resources.core_overloaded(core, bundle.limit),
            Target::Neighbour(neighbour) => {
                resources.neighbour_overloaded(neighbour, bundle.limit)
                    || !resources.provides(neighbour, self.config.function)
            }
        }
    }

    /// Where a bundle is to go once it may.
    #[inline]
    fn choose(&self, bundle: &Bundle, now_ns: i64, seed: u32, resources: &Resources) -> Chosen {
        let wish = bundle.wish.target();
        let found = |target| Chosen {
            found: Some(target),
            away: false,
        };
        let Some(current) = bundle.target.target() else {
            return found(match wish {
                Some(wish) if self.can_go(wish, now_ns, resources) => wish,
                _ => self.first(bundle, now_ns, seed, resources),
            });
        };
        if let Target::Neighbour(neighbour) = current
            && resources.is_dead(neighbour, now_ns)
        {
            return found(self.first(bundle, now_ns, seed, resources));
        }
        if let Some(wish) = wish {
            return match self.can_go(wish, now_ns, resources) {
                true => found(wish),
                false => found(current),
            };
        }
        let away = bundle.wish != Packed::NONE || self.overloaded(bundle, current, resources);
        let mut found = None;
        if matches!(current, Target::Neighbour(_))
            && resources.calm_for(self.config.hold_ns, now_ns)
        {
            found = resources.calm_core(seed, bundle.limit).map(Target::Core);
        }
        if found.is_none() && away {
            found = self.elsewhere(bundle, Some(current), now_ns, seed, resources);
        }
        Chosen { found, away }
    }

    /// Where a bundle goes that is nowhere, or on a dead neighbour.
    fn first(&self, bundle: &Bundle, now_ns: i64, seed: u32, resources: &Resources) -> Target {
        let found = self.elsewhere(bundle, None, now_ns, seed, resources);
        found.unwrap_or_else(|| Target::Core(resources.any_core(seed)))
    }

    /// Another core, or else another neighbour.
    fn elsewhere(
        &self,
        bundle: &Bundle,
        current: Option<Target>,
        now_ns: i64,
        seed: u32,
        resources: &Resources,
    ) -> Option<Target> {
        let core = resources.free_core(seed, bundle.limit, current);
        core.map(Target::Core).or_else(|| {
            resources
                .free_neighbour(seed, bundle.limit, self.config.function, current, now_ns)
                .map(Target::Neighbour)
        })
    }

    /// Whether a target that somebody asked for is there and provides the function.
    fn can_go(&self, wish: Target, now_ns: i64, resources: &Resources) -> bool {
        match wish {
            Target::Core(_) => true,
            Target::Neighbour(neighbour) => {
                !resources.is_dead(neighbour, now_ns)
                    && resources.provides(neighbour, self.config.function)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Marks, Report};

    const DELTA: i64 = 100;
    const HOLD: i64 = 1000;

    fn load(load: u32) -> Report {
        let done_before = None;
        Report { load, done_before }
    }

    fn node(cores: usize, neighbours: usize, silence_ns: Option<i64>) -> (Resources, Table) {
        let marks = Marks::new(10, 4).expect("marks");
        let node = Resources::new(cores, neighbours, marks, marks, silence_ns).expect("node");
        let config = Config {
            bits: 4,
            delta_ns: DELTA,
            hold_ns: HOLD,
            function: 3,
        };
        (node, Table::new(config).expect("table"))
    }

    #[test]
    fn a_bundle_is_small_and_a_table_is_bounded() {
        assert_eq!(size_of::<Bundle>(), 16);
        let config = Config {
            bits: MAX_BITS + 1,
            delta_ns: 0,
            hold_ns: 0,
            function: 0,
        };
        assert_eq!(Table::new(config).err(), Some(Refused::Bits(21)));
        let bad = |config| Table::new(config).expect_err("refused").to_string();
        let bits = 4;
        assert_eq!(
            bad(Config {
                bits,
                function: 64,
                ..config
            }),
            "function 64: there are 0 to 63"
        );
        assert_eq!(
            bad(Config {
                bits,
                delta_ns: -1,
                ..config
            }),
            "δ of -1 ns: a time must not be negative"
        );
    }

    #[test]
    fn a_bundle_stays_until_its_core_is_overloaded_and_then_for_the_rest_of_the_flowlet() {
        let (mut node, mut table) = node(2, 0, None);
        let Decision::Move(Target::Core(core)) = table.steer(0, 5, &node) else {
            panic!("a core");
        };
        let here = Target::Core(core);
        assert_eq!(table.steer(1_000_000, 5, &node), Decision::Stay(here));
        node.report_core(core, load(10), 1_000_001).expect("core");
        assert_eq!(table.steer(1_000_100, 5, &node), Decision::Stay(here));
        assert_eq!(table.counters().held, 1);
        let there = Target::Core(1 - core);
        assert_eq!(table.steer(1_000_201, 5, &node), Decision::Move(there));
        node.report_core(core, load(0), 1_000_300).expect("core");
        assert_eq!(table.steer(2_000_000, 5, &node), Decision::Stay(there));
    }

    #[test]
    fn a_neighbour_takes_over_when_no_core_can_and_gives_back_when_one_is_calm_for_long() {
        let (mut node, mut table) = node(2, 2, None);
        node.set_provides(0, 0b0111).expect("neighbour");
        table.steer(0, 5, &node);
        for core in 0..2 {
            node.report_core(core, load(10), 10).expect("core");
        }
        let away = Target::Neighbour(1);
        assert_eq!(table.steer(1000, 5, &node), Decision::Move(away));
        assert_eq!(table.target(5), Some(away));
        node.report_core(0, load(4), 1500).expect("core");
        assert_eq!(table.steer(2499, 5, &node), Decision::Stay(away));
        assert_eq!(table.steer(2600, 5, &node), Decision::Move(Target::Core(0)));
        assert_eq!(table.counters().returns, 1);
    }

    #[test]
    fn without_a_better_target_it_stays() {
        let (mut node, mut table) = node(1, 1, None);
        table.steer(0, 5, &node);
        node.report_core(0, load(10), 10).expect("core");
        node.report_neighbour(0, load(10), 10).expect("neighbour");
        assert_eq!(table.steer(1000, 5, &node), Decision::Stay(Target::Core(0)));
        assert_eq!(table.counters().stuck, 1);
        // A new bundle goes somewhere all the same.
        assert_eq!(table.steer(1000, 6, &node), Decision::Move(Target::Core(0)));
    }

    #[test]
    fn a_target_that_tells_what_is_done_is_left_only_when_the_last_packet_is() {
        let (mut node, mut table) = node(2, 0, None);
        let Some(Target::Core(core)) = table.steer(0, 5, &node).target() else {
            panic!("a core");
        };
        let done = |load, before| Report {
            load,
            done_before: Some(before),
        };
        node.report_core(core, done(12, 0), 10).expect("core");
        assert_eq!(
            table.steer(10_000, 5, &node),
            Decision::Stay(Target::Core(core))
        );
        node.report_core(core, done(12, 10_000), 20_000)
            .expect("core");
        assert_eq!(
            table.steer(30_000, 5, &node),
            Decision::Stay(Target::Core(core)),
            "the one sent at that very instant may wait still"
        );
        node.report_core(core, done(12, 30_001), 40_000)
            .expect("core");
        assert_eq!(
            table.steer(50_000, 5, &node),
            Decision::Move(Target::Core(1 - core))
        );
    }

    #[test]
    fn a_dead_neighbour_gets_nothing_and_its_bundles_move_by_themselves() {
        let (mut node, mut table) = node(1, 2, Some(500));
        for (neighbour, core) in [(0, 0), (1, 0)] {
            node.report_neighbour(neighbour, load(0), 0).expect("alive");
            node.report_core(core, load(10), 0).expect("core");
        }
        table.assign(5, Target::Neighbour(0), &node).expect("there");
        assert_eq!(
            table.steer(10, 5, &node),
            Decision::Move(Target::Neighbour(0)),
            "a bundle without a target goes where it is wanted"
        );
        table.steer(490, 5, &node);
        node.report_neighbour(1, load(0), 500).expect("alive");
        assert_eq!(table.steer(520, 5, &node), Decision::Fenced);
        assert_eq!(table.steer(590, 5, &node), Decision::Fenced);
        assert_eq!(
            table.steer(591, 5, &node),
            Decision::Move(Target::Neighbour(1))
        );
        // Both dead: the core takes it, overloaded as it is.
        assert_eq!(table.steer(5000, 5, &node), Decision::Move(Target::Core(0)));
        assert_eq!(table.counters().fenced, 2);
    }

    #[test]
    fn whoever_administers_it_can_assign_evict_and_limit_bundles() {
        let (mut node, mut table) = node(3, 1, None);
        table.steer(0, 5, &node);
        table.assign(5, Target::Neighbour(0), &node).expect("there");
        let there = Target::Neighbour(0);
        assert_ne!(table.steer(50, 5, &node).target(), Some(there));
        // Nothing was ever loaded: the next flowlet comes back at once, since cores are calm.
        assert_eq!(table.steer(1000, 5, &node), Decision::Move(there));
        assert!(matches!(
            table.steer(2000, 5, &node),
            Decision::Move(Target::Core(_))
        ));

        let before = table.target(5).expect("assigned");
        table.evict(5).expect("there");
        let Decision::Move(after @ Target::Core(_)) = table.steer(3000, 5, &node) else {
            panic!("another core is free");
        };
        assert_ne!(before, after);

        let Target::Core(core) = after else { panic!() };
        node.report_core(core, load(3), 3500).expect("core");
        table.set_limit(5, 2).expect("there");
        let Decision::Move(Target::Core(calm)) = table.steer(4000, 5, &node) else {
            panic!("its limit is lower than the mark");
        };
        assert_ne!(calm, core);

        let error = |result: Result<(), Refused>| result.expect_err("refused").to_string();
        assert_eq!(error(table.evict(16)), "bundle 16: there are 16");
        assert_eq!(
            error(table.assign(5, Target::Core(3), &node)),
            "core 3: there are 3"
        );
        assert_eq!(
            error(table.assign(5, Target::Neighbour(1), &node)),
            "neighbour 1: there are 1"
        );
    }
}
