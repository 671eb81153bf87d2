//! What is known of cores and neighbours: how loaded they are, whether they live, up to when their work is done.

use crate::Refused;
use crate::set::Set;
use crate::table::Target;

/// The most cores of a node.
pub const MAX_CORES: usize = 256;
/// The most neighbours of a node.
pub const MAX_NEIGHBOURS: usize = 1024;

/// From which load on a target is overloaded, and until when it stays so. In the unit of [`Report::load`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    high: u32,
    low: u32,
}

impl Marks {
    /// Overloaded from `high` on, until the load is `low` or less.
    ///
    /// # Errors
    /// [`Refused::Marks`].
    pub fn new(high: u32, low: u32) -> Result<Self, Refused> {
        match low < high {
            true => Ok(Self { high, low }),
            false => Err(Refused::Marks { high, low }),
        }
    }
}

/// What a target tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// How full its queue is, in a unit that all targets of a kind share: packets, bytes or time.
    pub load: u32,
    /// Everything that was sent to it before this instant is done; nanoseconds, by the clock of whoever steers. May be
    /// late, never early. Without it, only δ keeps the order.
    pub done_before: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    load: u32,
    overloaded: bool,
    usable: bool,
    /// The greatest value if it does not tell.
    done_before: i64,
    heard_ns: i64,
}

/// Targets of one kind.
#[derive(Clone, Debug)]
struct Pool {
    what: &'static str,
    marks: Marks,
    states: Box<[State]>,
    /// Usable, and not overloaded.
    free: Set,
    /// Usable, and at the low mark or below.
    calm: Set,
}

impl Pool {
    fn new(what: &'static str, count: usize, marks: Marks) -> Self {
        let state = State {
            load: 0,
            overloaded: false,
            usable: true,
            done_before: i64::MAX,
            heard_ns: i64::MIN,
        };
        let mut pool = Self {
            what,
            marks,
            states: vec![state; count].into(),
            free: Set::new(count),
            calm: Set::new(count),
        };
        for number in 0..count {
            pool.sort(number as u16);
        }
        pool
    }

    fn state(&mut self, number: u16) -> Result<&mut State, Refused> {
        let (what, count) = (self.what, self.states.len());
        self.states
            .get_mut(usize::from(number))
            .ok_or(Refused::NoSuch {
                what,
                number,
                count,
            })
    }

    fn report(&mut self, number: u16, report: Report, now_ns: i64) -> Result<(), Refused> {
        let marks = self.marks;
        let state = self.state(number)?;
        state.load = report.load;
        state.done_before = report.done_before.unwrap_or(i64::MAX);
        state.heard_ns = state.heard_ns.max(now_ns);
        state.overloaded =
            report.load >= marks.high || (state.overloaded && report.load > marks.low);
        self.sort(number);
        Ok(())
    }

    fn set_usable(&mut self, number: u16, usable: bool) -> Result<(), Refused> {
        self.state(number)?.usable = usable;
        self.sort(number);
        Ok(())
    }

    /// Enters a target into the sets it belongs to.
    fn sort(&mut self, number: u16) {
        let state = self.states[usize::from(number)];
        self.free.put(number, state.usable && !state.overloaded);
        let calm = state.usable && !state.overloaded && state.load <= self.marks.low;
        self.calm.put(number, calm);
    }

    #[inline]
    fn load(&self, number: u16) -> u32 {
        let state = self.states.get(usize::from(number));
        state.map_or(u32::MAX, |state| state.load)
    }
}

/// Which functions a neighbour provides: a bit for each.
pub type Functions = u64;

/// The cores of a node, and its neighbours. Every table of the node goes by it.
#[derive(Clone, Debug)]
pub struct Resources {
    cores: Pool,
    neighbours: Pool,
    provides: Box<[Functions]>,
    silence_ns: Option<i64>,
    /// Since when a core has been calm without a break; the greatest value if none is.
    calm_since_ns: i64,
}

impl Resources {
    /// All usable, without load. A neighbour that tells nothing for `silence_ns` is taken for dead; without it, none is.
    ///
    /// # Errors
    /// [`Refused`], if a number or a time is out of bounds.
    pub fn new(
        cores: usize,
        neighbours: usize,
        of_cores: Marks,
        of_neighbours: Marks,
        silence_ns: Option<i64>,
    ) -> Result<Self, Refused> {
        if !(1..=MAX_CORES).contains(&cores) {
            return Err(Refused::Cores(cores));
        }
        if neighbours > MAX_NEIGHBOURS {
            return Err(Refused::Neighbours(neighbours));
        }
        if let Some(ns) = silence_ns.filter(|ns| *ns < 0) {
            let what = "silence";
            return Err(Refused::Negative { what, ns });
        }
        Ok(Self {
            cores: Pool::new("core", cores, of_cores),
            neighbours: Pool::new("neighbour", neighbours, of_neighbours),
            provides: vec![Functions::MAX; neighbours].into(),
            silence_ns,
            calm_since_ns: i64::MIN,
        })
    }

    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.cores.states.len()
    }

    /// How many neighbours there are.
    pub fn neighbours(&self) -> usize {
        self.neighbours.states.len()
    }

    /// Whether there is such a target.
    ///
    /// # Errors
    /// [`Refused::NoSuch`].
    pub fn check(&self, target: Target) -> Result<(), Refused> {
        let (what, number, count) = match target {
            Target::Core(core) => ("core", core, self.cores()),
            Target::Neighbour(neighbour) => ("neighbour", neighbour, self.neighbours()),
        };
        match usize::from(number) < count {
            true => Ok(()),
            false => Err(Refused::NoSuch {
                what,
                number,
                count,
            }),
        }
    }

    /// What a core tells.
    ///
    /// # Errors
    /// [`Refused::NoSuch`].
    #[inline]
    pub fn report_core(&mut self, core: u16, report: Report, now_ns: i64) -> Result<(), Refused> {
        self.cores.report(core, report, now_ns)?;
        self.look_for_calm(now_ns);
        Ok(())
    }

    /// What a neighbour tells. Also the beat that it lives by.
    ///
    /// # Errors
    /// [`Refused::NoSuch`].
    pub fn report_neighbour(
        &mut self,
        neighbour: u16,
        report: Report,
        now_ns: i64,
    ) -> Result<(), Refused> {
        self.neighbours.report(neighbour, report, now_ns)
    }

    /// Which functions a neighbour provides: all unless said.
    ///
    /// # Errors
    /// [`Refused::NoSuch`].
    pub fn set_provides(&mut self, neighbour: u16, functions: Functions) -> Result<(), Refused> {
        self.neighbours.state(neighbour)?;
        self.provides[usize::from(neighbour)] = functions;
        Ok(())
    }

    /// Takes a core out of service, or in: bundles leave it as if it were overloaded.
    ///
    /// # Errors
    /// [`Refused::NoSuch`].
    pub fn set_core_usable(&mut self, core: u16, usable: bool, now_ns: i64) -> Result<(), Refused> {
        self.cores.set_usable(core, usable)?;
        self.look_for_calm(now_ns);
        Ok(())
    }

    /// Takes a neighbour out of service, or in.
    ///
    /// # Errors
    /// [`Refused::NoSuch`].
    pub fn set_neighbour_usable(&mut self, neighbour: u16, usable: bool) -> Result<(), Refused> {
        self.neighbours.set_usable(neighbour, usable)
    }

    fn look_for_calm(&mut self, now_ns: i64) {
        if self.cores.calm.is_empty() {
            self.calm_since_ns = i64::MAX;
        } else if self.calm_since_ns == i64::MAX {
            self.calm_since_ns = now_ns;
        }
    }

    /// Whether a core has been calm for `hold_ns`.
    #[inline]
    pub(crate) fn calm_for(&self, hold_ns: i64, now_ns: i64) -> bool {
        self.calm_since_ns != i64::MAX && now_ns.saturating_sub(self.calm_since_ns) >= hold_ns
    }

    /// Whether a neighbour has told nothing for too long.
    #[inline]
    pub fn is_dead(&self, neighbour: u16, now_ns: i64) -> bool {
        let Some(silence_ns) = self.silence_ns else {
            return false;
        };
        let state = self.neighbours.states.get(usize::from(neighbour));
        state.is_none_or(|state| now_ns.saturating_sub(state.heard_ns) > silence_ns)
    }

    /// Whether a core is beyond its mark, out of service, or above a bundle's own limit (`u32::MAX`: none). One that there is
    /// not is.
    #[inline]
    pub fn core_overloaded(&self, core: u16, limit: u32) -> bool {
        !self.cores.free.has(core) || self.cores.load(core) > limit
    }

    /// The same of a neighbour.
    #[inline]
    pub(crate) fn neighbour_overloaded(&self, neighbour: u16, limit: u32) -> bool {
        !self.neighbours.free.has(neighbour) || self.neighbours.load(neighbour) > limit
    }

    #[inline]
    pub(crate) fn core_done_before(&self, core: u16) -> i64 {
        let state = self.cores.states.get(usize::from(core));
        state.map_or(i64::MAX, |state| state.done_before)
    }

    #[inline]
    pub(crate) fn neighbour_done_before(&self, neighbour: u16) -> i64 {
        let state = self.neighbours.states.get(usize::from(neighbour));
        state.map_or(i64::MAX, |state| state.done_before)
    }

    /// The first core from the seed's on, but one, that can take a bundle of this limit.
    #[inline]
    pub(crate) fn free_core(&self, seed: u32, limit: u32, except: Option<Target>) -> Option<u16> {
        let mut free = self.cores.free.from(seed);
        free.find(|core| self.cores.load(*core) <= limit && except != Some(Target::Core(*core)))
    }

    /// The first calm core from the seed's on.
    #[inline]
    pub(crate) fn calm_core(&self, seed: u32, limit: u32) -> Option<u16> {
        let mut calm = self.cores.calm.from(seed);
        calm.find(|core| self.cores.load(*core) <= limit)
    }

    /// Some core, overloaded or not: in service if one is.
    pub(crate) fn any_core(&self, seed: u32) -> u16 {
        let count = self.cores() as u64;
        let start = (u64::from(seed) * count) >> 32;
        let in_order = (0..count).map(|step| ((start + step) % count) as u16);
        let usable = |core: &u16| self.cores.states[usize::from(*core)].usable;
        in_order.clone().find(usable).unwrap_or(start as u16)
    }

    /// The first neighbour from the seed's on, but one, that provides the function and can take a bundle of this limit.
    #[inline]
    pub(crate) fn free_neighbour(
        &self,
        seed: u32,
        limit: u32,
        function: u8,
        except: Option<Target>,
        now_ns: i64,
    ) -> Option<u16> {
        self.neighbours.free.from(seed).find(|neighbour| {
            self.provides(*neighbour, function)
                && self.neighbours.load(*neighbour) <= limit
                && except != Some(Target::Neighbour(*neighbour))
                && !self.is_dead(*neighbour, now_ns)
        })
    }

    /// Whether a neighbour provides a function.
    #[inline]
    pub(crate) fn provides(&self, neighbour: u16, function: u8) -> bool {
        let functions = self.provides.get(usize::from(neighbour));
        functions.is_some_and(|functions| functions >> function & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(load: u32) -> Report {
        let done_before = None;
        Report { load, done_before }
    }

    #[test]
    fn a_target_is_overloaded_from_the_high_mark_until_the_low_one() {
        let marks = Marks::new(10, 4).expect("marks");
        let mut node = Resources::new(1, 0, marks, marks, None).expect("node");
        for (now, report, overloaded) in [
            (0, 9, false),
            (1, 10, true),
            (2, 5, true),
            (3, 4, false),
            (4, 9, false),
        ] {
            node.report_core(0, load(report), now).expect("core");
            assert_eq!(
                node.core_overloaded(0, u32::MAX),
                overloaded,
                "load {report}"
            );
        }
        assert!(node.core_overloaded(0, 8), "a bundle's own limit");
    }

    #[test]
    fn calm_counts_from_when_it_began_and_ends_at_once() {
        let marks = Marks::new(10, 4).expect("marks");
        let mut node = Resources::new(2, 0, marks, marks, None).expect("node");
        for core in 0..2 {
            node.report_core(core, load(9), 100).expect("core");
        }
        assert!(!node.calm_for(0, 200), "neither is overloaded, none calm");
        node.report_core(1, load(3), 300).expect("core");
        assert!(node.calm_for(50, 350) && !node.calm_for(51, 350));
        node.set_core_usable(1, false, 400).expect("core");
        assert!(!node.calm_for(0, 400));
    }

    #[test]
    fn a_neighbour_is_dead_when_it_is_silent() {
        let marks = Marks::new(10, 4).expect("marks");
        let mut node = Resources::new(1, 2, marks, marks, Some(100)).expect("node");
        node.report_neighbour(0, load(0), 1000).expect("neighbour");
        assert!(!node.is_dead(0, 1100) && node.is_dead(0, 1101));
        assert!(node.is_dead(1, 0), "was never heard");
        assert_eq!(node.free_neighbour(0, u32::MAX, 0, None, 1050), Some(0));
        node.set_provides(0, 0b10).expect("neighbour");
        assert_eq!(node.free_neighbour(0, u32::MAX, 0, None, 1050), None);
        assert_eq!(node.free_neighbour(0, u32::MAX, 1, None, 1050), Some(0));
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_by_name() {
        let marks = Marks::new(10, 4).expect("marks");
        let refused = |cores, neighbours, silence| {
            Resources::new(cores, neighbours, marks, marks, silence)
                .expect_err("out of bounds")
                .to_string()
        };
        assert_eq!(refused(0, 0, None), "0 cores: 1 to 256 can be balanced");
        assert_eq!(refused(257, 0, None), "257 cores: 1 to 256 can be balanced");
        assert_eq!(
            refused(1, 1025, None),
            "1025 neighbours: at most 1024 can be balanced"
        );
        assert_eq!(
            refused(1, 0, Some(-1)),
            "silence of -1 ns: a time must not be negative"
        );
        assert_eq!(Marks::new(4, 4), Err(Refused::Marks { high: 4, low: 4 }));
        let mut node = Resources::new(1, 0, marks, marks, None).expect("node");
        let missing = node.report_core(1, load(0), 0).expect_err("no such core");
        assert_eq!(missing.to_string(), "core 1: there are 1");
    }
}
