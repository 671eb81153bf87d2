//! What a lane does between rounds: poll on, let others run, sleep; and the thread that does it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use takt_session::contention::Contention;
use takt_session::layout::DEFAULT_DEPTH;

use super::Lane;
use super::port::RECEIVE_BUDGET;
use crate::config::{Idle, LaneConfig, SchedulingClass};

/// Empty rounds between two yields on a core of one's own.
const ROUNDS_PER_YIELD: u32 = 32;

/// Most rounds with work between two yields on a shared core while more has come in. A round takes 64 datagrams from a port: half
/// of the messages that a sink has room for, unless its application wants other room.
const ROUNDS_HELD: u32 = DEFAULT_DEPTH / 2 / RECEIVE_BUDGET as u32;

/// A round more for each such part of the last yield: those who are woken are to run soon where that costs little.
const YIELD_PER_ROUND: Duration = Duration::from_micros(100);

/// Decides, after each round, how to spend the time until the next.
#[derive(Debug)]
pub struct IdleStrategy {
    idle: Idle,
    idle_since: Option<Instant>,
    rounds: u32,
    core: Contention,
    /// Rounds with work since the last yield, and how many there may be while more has come in.
    held: u32,
    hold: u32,
    /// The time for polling is over: every empty round from now on may be the last before a sleep.
    parking: bool,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Another round at once.
    Poll,
    /// Sleep until there is work.
    Park,
}

impl IdleStrategy {
    /// A strategy of this kind.
    pub fn new(idle: Idle) -> Self {
        Self {
            idle,
            idle_since: None,
            rounds: 0,
            core: Contention::default(),
            held: 0,
            hold: 1,
            parking: false,
        }
    }

    /// After a round that found work. `more`: and left some at a port.
    #[inline]
    pub fn worked(&mut self, more: bool) {
        self.begin();
        if !self.core.is_shared() {
            return;
        }
        // The work may be for those who wait for the core. But to let go of it costs a lane a turn of everybody else there,
        // and what comes in meanwhile finds no room.
        self.held += 1;
        let now = Instant::now();
        // Where somebody does not give the core back, a lane that has nothing more to do sleeps after its next round.
        if !more && !self.core.is_crowded(now) || self.held >= self.hold {
            self.let_others_run(now);
        }
    }

    /// After a sleep.
    pub fn slept(&mut self) {
        self.held = 0;
        self.begin();
    }

    #[inline]
    fn begin(&mut self) {
        self.idle_since = None;
        self.rounds = 0;
        self.parking = false;
    }

    /// After a round that found none. Once it is time to park, so it is after every further such round:
    /// a lane that must look at something once more parks after that.
    #[inline]
    pub fn idled(&mut self) -> Step {
        if self.parking {
            return Step::Park;
        }
        let spin = match self.idle {
            Idle::Park => return Step::Park,
            Idle::Spin => Duration::MAX,
            Idle::Adaptive { spin } => spin,
        };
        self.rounds += 1;
        if self.core.is_shared() || self.rounds.is_multiple_of(ROUNDS_PER_YIELD) {
            let now = Instant::now();
            if spin != Duration::MAX && self.core.is_crowded(now) {
                self.parking = true;
                return Step::Park;
            }
            self.let_others_run(now);
            let since = *self.idle_since.get_or_insert_with(Instant::now);
            if spin != Duration::MAX && since.elapsed() >= spin {
                self.parking = true;
                return Step::Park;
            }
        } else {
            std::hint::spin_loop();
        }
        Step::Poll
    }

    /// Lets others run, and learns whether there are any.
    fn let_others_run(&mut self, now: Instant) {
        self.held = 0;
        if let Some(time) = self.core.give_way(now) {
            self.took(time);
        }
    }

    /// A yield took so long.
    fn took(&mut self, time: Duration) {
        let rounds = time.as_nanos() / YIELD_PER_ROUND.as_nanos();
        self.hold = rounds.clamp(1, ROUNDS_HELD.into()) as u32;
    }
}

/// Pins and schedules the calling thread as configured; problems are logged, not fatal.
pub fn place_thread(config: &LaneConfig, lane: usize) {
    // A launch time is met by waking in time: not up to 50 µs later, which is the usual slack of a thread.
    if let Err(error) = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)) {
        tracing::warn!(lane, %error, "cannot have exact timers");
    }
    if let Some(core) = config.core {
        let mut set = CpuSet::new();
        set.set(core);
        if let Err(error) = sched_setaffinity(None, &set) {
            tracing::warn!(lane, core, %error, "cannot pin the lane: check `core` against the cores of this process");
        }
    }
    if let SchedulingClass::Fifo(priority) = config.scheduling
        && let Err(error) = fifo(priority)
    {
        tracing::warn!(lane, priority, %error, "cannot schedule the lane as SCHED_FIFO: grant CAP_SYS_NICE");
    }
}

fn fifo(priority: u8) -> Result<(), thread_priority::Error> {
    use thread_priority::{
        RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
        set_thread_priority_and_policy, thread_native_id,
    };
    let value = priority
        .try_into()
        .map_err(|_| thread_priority::Error::PriorityNotInRange(1..=99))?;
    set_thread_priority_and_policy(
        thread_native_id(),
        ThreadPriority::Crossplatform(value),
        ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo),
    )
}

/// Ends the process if the thread that holds it panics: a lane that is gone would leave its tenants waiting, and
/// a supervisor starts a process again that has ended. What had panicked and where is told by then.
pub struct EndsWithProcess(pub usize);

impl Drop for EndsWithProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            panicked(self.0);
        }
    }
}

/// Ends the process because a lane has panicked.
pub fn panicked(lane: usize) -> ! {
    // A log may not be set up, and need not be written any more.
    eprintln!("takt: lane {lane} has panicked, which is a defect: the process ends");
    std::process::abort()
}

/// Runs a lane until `stop`.
pub fn run(mut lane: Lane, config: &LaneConfig, stop: &Arc<AtomicBool>) {
    let _guard = EndsWithProcess(lane.index);
    place_thread(config, lane.index);
    let mut idle = IdleStrategy::new(config.idle);
    let mut sleeper = match lane.sleeper() {
        Ok(sleeper) => sleeper,
        Err(error) => {
            return tracing::error!(lane = lane.index, %error, "cannot copy descriptors: the lane does not run");
        }
    };
    while !stop.load(Ordering::Relaxed) {
        if lane.poll() {
            idle.worked(lane.has_more());
        } else if idle.idled() == Step::Park
            && let Some(timeout) = lane.park()
        {
            sleeper.follow(&lane);
            sleeper.sleep(timeout);
            lane.unpark();
            idle.slept();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn park_sleeps_at_once_and_spin_never() {
        assert_eq!(IdleStrategy::new(Idle::Park).idled(), Step::Park);
        let mut spin = IdleStrategy::new(Idle::Spin);
        assert!((0..10_000).all(|_| spin.idled() == Step::Poll));
    }

    #[test]
    fn a_shared_core_is_let_go_of_after_work_the_more_seldom_the_more_it_costs_while_more_has_come_in()
     {
        let mut idle = IdleStrategy::new(Idle::Park);
        let rounds = |idle: &mut IdleStrategy, yield_took, more| {
            for _ in 0..2 {
                idle.core.learn(Instant::now(), yield_took);
            }
            idle.took(yield_took);
            idle.slept();
            (1..=2 * ROUNDS_HELD).find(|_| {
                idle.worked(more);
                idle.held == 0
            })
        };
        let cheap = Duration::from_micros(50);
        let dear = Duration::from_secs(3);
        assert_eq!(rounds(&mut idle, cheap, true), Some(1));
        assert_eq!(rounds(&mut idle, cheap, false), Some(1));
        assert_eq!(rounds(&mut idle, 2 * YIELD_PER_ROUND, true), Some(2));
        assert_eq!(rounds(&mut idle, 2 * YIELD_PER_ROUND, false), Some(1));
        assert_eq!(rounds(&mut idle, dear, true), Some(ROUNDS_HELD));
        // Whoever has it does not give it back: it is left by a sleep.
        assert_eq!(rounds(&mut idle, dear, false), Some(ROUNDS_HELD));
    }

    #[test]
    fn on_a_crowded_core_an_adaptive_lane_sleeps_at_once_and_a_spinning_one_never() {
        let spin = Duration::from_secs(3600);
        for (kind, step) in [
            (Idle::Adaptive { spin }, Step::Park),
            (Idle::Spin, Step::Poll),
        ] {
            let mut idle = IdleStrategy::new(kind);
            for _ in 0..2 {
                idle.core.learn(Instant::now(), spin);
            }
            for _ in 0..3 {
                assert_eq!(idle.idled(), step);
                idle.slept();
            }
        }
    }

    #[test]
    fn adaptive_sleeps_after_its_time_and_work_begins_it_anew() {
        let mut idle = IdleStrategy::new(Idle::Adaptive {
            spin: Duration::from_millis(1),
        });
        while idle.idled() == Step::Poll {}
        // Others may have crowded the core meanwhile: then it does not wait so long.
        let since = idle.idle_since;
        assert!(since.is_none_or(|since| since.elapsed() >= Duration::from_millis(1)));
        // The lane had to look once more and found nothing.
        assert_eq!(idle.idled(), Step::Park);
        let has_begun_anew = |idle: &IdleStrategy| !idle.parking && idle.idle_since.is_none();
        assert!(!has_begun_anew(&idle));
        idle.worked(false);
        assert!(has_begun_anew(&idle));
        while idle.idled() == Step::Poll {}
        idle.slept();
        assert!(has_begun_anew(&idle));
    }
}
