//! Sporadic tasks and sets of them, as the analysis takes them: checked once, here.
//!
//! The model is the sporadic task (C, T, D) of the field under fixed priorities
//! (kubedeadline-ecrts2025, section 3.1): every job needs at most C of CPU time, jobs arrive at
//! least T apart, each wants to be done within D of its arrival. A job may be released up to J after
//! it arrives (release jitter: Audsley, Burns, Richardson, Tindell and Wellings, Software Engineering
//! Journal 8(5), 1993), may be kept waiting for B by a less urgent task in a section that it cannot
//! interrupt, and may arrive on a grid that all tasks with an offset share (Tindell, YCS 221,
//! University of York 1994). Tasks do not suspend themselves inside a job.

use std::collections::HashSet;
use std::fmt;

use serde::Serialize;

use crate::nanos::{Nanos, is_unprintable, quotable};

/// A fixed priority as `SCHED_FIFO` has it: 1 (least urgent) to 99 (most urgent).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[repr(transparent)]
pub struct Priority(u8);

impl Priority {
    /// The least urgent priority.
    pub const LOWEST: Self = Self(1);
    /// The most urgent priority.
    pub const HIGHEST: Self = Self(99);

    /// The priority `number`, or `None` outside 1 to 99.
    pub const fn new(number: u8) -> Option<Self> {
        if number >= Self::LOWEST.0 && number <= Self::HIGHEST.0 {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Its number, 1 to 99; larger is more urgent.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a task or a set of tasks cannot be analysed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// A task without a name.
    #[error("a task has an empty name: give every task a name")]
    EmptyName,
    /// A name that would break lines and pictures.
    #[error(
        "`{0}` cannot be a name: use at most 100 characters and none that ends a line or controls a terminal"
    )]
    Name(String),
    /// Two tasks of one name.
    #[error("two tasks are called `{0}`: give every task a name of its own")]
    DuplicateName(String),
    /// A parameter of zero.
    #[error("task `{task}`: {parameter} is 0: it must be at least 1ns")]
    Zero {
        /// The task.
        task: String,
        /// Which of its parameters.
        parameter: &'static str,
    },
    /// A parameter beyond what the analysis can add up.
    #[error("task `{task}`: {parameter} {value} is too long: at most {max} can be analysed", max = Nanos::MAX_PARAMETER)]
    TooLong {
        /// The task.
        task: String,
        /// Which of its parameters.
        parameter: &'static str,
        /// Its value.
        value: Nanos,
    },
    /// A job that cannot be done by its deadline even alone on a core.
    #[error(
        "task `{task}`: wcet {wcet} exceeds its deadline {deadline}: no reservation can meet that; shorten the job or allow it more time"
    )]
    WcetBeyondDeadline {
        /// The task.
        task: String,
        /// Its worst-case execution time.
        wcet: Nanos,
        /// Its relative deadline.
        deadline: Nanos,
    },
    /// A job that cannot be done by its deadline once it was released late or kept waiting.
    #[error(
        "task `{task}`: wcet {wcet}, jitter {jitter} and blocking {blocking} together exceed its deadline {deadline}, which counts from the arrival: no reservation can meet that; allow it more time"
    )]
    LateBeyondDeadline {
        /// The task.
        task: String,
        /// Its worst-case execution time.
        wcet: Nanos,
        /// Its release jitter.
        jitter: Nanos,
        /// How long it may be blocked.
        blocking: Nanos,
        /// Its relative deadline.
        deadline: Nanos,
    },
    /// An offset that says nothing a smaller one does not.
    #[error(
        "task `{task}`: offset {offset} is not below its period {period}: give the first arrival after the common zero"
    )]
    OffsetBeyondPeriod {
        /// The task.
        task: String,
        /// Its offset.
        offset: Nanos,
        /// Its period.
        period: Nanos,
    },
    /// Offsets whose pattern takes too long to repeat.
    #[error(
        "the tasks with an offset have more than {max} arrivals before their pattern repeats: choose periods that divide each other, or leave out the offsets of some", max = TaskSet::MAX_ARRIVALS
    )]
    Pattern,
    /// A task that needs more than one core.
    #[error(
        "task `{task}`: wcet {wcet} exceeds its period {period}: one thread cannot keep up; split the work or let it run less often"
    )]
    WcetBeyondPeriod {
        /// The task.
        task: String,
        /// Its worst-case execution time.
        wcet: Nanos,
        /// Its smallest time between arrivals.
        period: Nanos,
    },
    /// Some tasks have a priority, others none.
    #[error(
        "task `{with}` has a priority and task `{without}` has none: give all of them one, or none to have them ordered by deadline"
    )]
    SomePriorities {
        /// A task with a priority.
        with: String,
        /// A task without.
        without: String,
    },
    /// No task at all.
    #[error("the task set is empty: it needs at least one task")]
    NoTask,
    /// More tasks than the analysis is meant for.
    #[error("the task set has {0} tasks: at most {max} can be analysed at once", max = TaskSet::MAX_TASKS)]
    TooManyTasks(usize),
}

/// One sporadic task.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Task {
    name: String,
    wcet: Nanos,
    period: Nanos,
    deadline: Nanos,
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    jitter: Nanos,
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    blocking: Nanos,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<Nanos>,
    priority: Option<Priority>,
}

impl Task {
    /// A task that needs at most `wcet` (C) of CPU time per job, whose jobs arrive at least
    /// `period` (T) apart and must be done within `deadline` (D) of their arrival.
    ///
    /// # Errors
    /// An empty or unprintable name, a parameter that is zero or beyond [`Nanos::MAX_PARAMETER`], C
    /// above D or T.
    pub fn new(
        name: impl Into<String>,
        wcet: Nanos,
        period: Nanos,
        deadline: Nanos,
    ) -> Result<Self, TaskError> {
        let name = name.into();
        if name.trim().is_empty() {
            return Err(TaskError::EmptyName);
        }
        if name.chars().count() > 100 || name.contains(is_unprintable) {
            return Err(TaskError::Name(quotable(&name)));
        }
        for (parameter, value) in [("wcet", wcet), ("period", period), ("deadline", deadline)] {
            if value == Nanos::ZERO {
                return Err(TaskError::Zero {
                    task: name,
                    parameter,
                });
            }
            limited(&name, parameter, value)?;
        }
        if wcet > deadline {
            return Err(TaskError::WcetBeyondDeadline {
                task: name,
                wcet,
                deadline,
            });
        }
        if wcet > period {
            return Err(TaskError::WcetBeyondPeriod {
                task: name,
                wcet,
                period,
            });
        }
        Ok(Self {
            name,
            wcet,
            period,
            deadline,
            jitter: Nanos::ZERO,
            blocking: Nanos::ZERO,
            offset: None,
            priority: None,
        })
    }

    /// A task whose deadline is its period.
    ///
    /// # Errors
    /// As [`Task::new`].
    pub fn implicit(
        name: impl Into<String>,
        wcet: Nanos,
        period: Nanos,
    ) -> Result<Self, TaskError> {
        Self::new(name, wcet, period, period)
    }

    /// The same task, whose jobs are released up to `jitter` (J) after they arrive: by a timer that is
    /// late, a message whose delay varies. T still lies between arrivals, and D counts from them.
    ///
    /// # Errors
    /// C, J and B above D together, or a J beyond [`Nanos::MAX_PARAMETER`].
    pub fn released_within(self, jitter: Nanos) -> Result<Self, TaskError> {
        limited(&self.name, "jitter", jitter)?;
        Self { jitter, ..self }.checked()
    }

    /// The same task, which less urgent ones may keep waiting for `blocking` (B) in all while it has work:
    /// in sections that it cannot interrupt, under a lock that it or a more urgent task takes too or
    /// without preemption. Such a section was begun before: of priority ceilings it is the longest one
    /// that counts, of priority inheritance the longest one of each lock (Sha, Rajkumar and Lehoczky,
    /// IEEE Transactions on Computers 39(9), 1990).
    ///
    /// # Errors
    /// C, J and B above D together, or a B beyond [`Nanos::MAX_PARAMETER`].
    pub fn blocked_for(self, blocking: Nanos) -> Result<Self, TaskError> {
        limited(&self.name, "blocking", blocking)?;
        Self { blocking, ..self }.checked()
    }

    /// The same task with arrivals exactly at `offset` (O), O + T, O + 2T and so on, on a clock that it
    /// shares with all other tasks that have an offset.
    ///
    /// # Errors
    /// An offset that is not below T.
    pub fn at_offset(self, offset: Nanos) -> Result<Self, TaskError> {
        if offset >= self.period {
            return Err(TaskError::OffsetBeyondPeriod {
                task: self.name,
                offset,
                period: self.period,
            });
        }
        let offset = Some(offset);
        Ok(Self { offset, ..self })
    }

    fn checked(self) -> Result<Self, TaskError> {
        let late = self.wcet.wide() + self.jitter.wide() + self.blocking.wide();
        if late <= self.deadline.wide() {
            return Ok(self);
        }
        Err(TaskError::LateBeyondDeadline {
            task: self.name,
            wcet: self.wcet,
            jitter: self.jitter,
            blocking: self.blocking,
            deadline: self.deadline,
        })
    }

    /// The same task at the fixed priority `priority`.
    pub fn at(self, priority: Priority) -> Self {
        Self {
            priority: Some(priority),
            ..self
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// C: the longest CPU time of a job.
    pub fn wcet(&self) -> Nanos {
        self.wcet
    }

    /// T: the shortest time between two arrivals.
    pub fn period(&self) -> Nanos {
        self.period
    }

    /// D: how long after its arrival a job must be done.
    pub fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// J: how long after its arrival a job may be released.
    pub fn jitter(&self) -> Nanos {
        self.jitter
    }

    /// B: how long less urgent tasks may keep a job waiting.
    pub fn blocking(&self) -> Nanos {
        self.blocking
    }

    /// O: when the first job arrives after the zero of the clock that tasks with an offset share.
    pub fn offset(&self) -> Option<Nanos> {
        self.offset
    }

    /// Its priority, when one was given.
    pub fn priority(&self) -> Option<Priority> {
        self.priority
    }
}

fn limited(task: &str, parameter: &'static str, value: Nanos) -> Result<(), TaskError> {
    if value <= Nanos::MAX_PARAMETER {
        return Ok(());
    }
    Err(TaskError::TooLong {
        task: task.to_owned(),
        parameter,
        value,
    })
}

/// Tasks that share a reservation, every one of them checked, each with a priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskSet {
    tasks: Vec<Task>,
    #[serde(skip)]
    priorities: Vec<Priority>,
}

impl TaskSet {
    /// How many tasks one set may have.
    pub const MAX_TASKS: usize = 1_000;
    /// How many jobs of tasks with an offset may arrive before their pattern repeats.
    pub const MAX_ARRIVALS: u128 = 10_000;

    /// The set of `tasks`, in their order.
    ///
    /// Without given priorities the tasks are ordered deadline monotonic (Leung and Whitehead 1982:
    /// the best order for one core while no deadline exceeds its period): the shorter the deadline
    /// the more urgent, the earlier one of equals first; with release jitter, the shorter D − J (the
    /// best order then: Zuhily and Burns, Information Processing Letters 101, 2007). The least urgent
    /// task then has priority 1; beyond 99 tasks the last ones share it, and the analysis knows that
    /// they do.
    ///
    /// # Errors
    /// No task, too many, two of one name, priorities on some of them only, or offsets whose pattern
    /// repeats only after more than [`TaskSet::MAX_ARRIVALS`].
    pub fn new(tasks: Vec<Task>) -> Result<Self, TaskError> {
        if tasks.is_empty() {
            return Err(TaskError::NoTask);
        }
        if tasks.len() > Self::MAX_TASKS {
            return Err(TaskError::TooManyTasks(tasks.len()));
        }
        let mut names = HashSet::new();
        if let Some(twice) = tasks.iter().find(|task| !names.insert(task.name())) {
            return Err(TaskError::DuplicateName(twice.name.clone()));
        }
        let given: Option<Vec<Priority>> = tasks.iter().map(Task::priority).collect();
        let with = tasks.iter().find(|task| task.priority.is_some());
        let without = tasks.iter().find(|task| task.priority.is_none());
        if let (Some(with), Some(without)) = (with, without) {
            return Err(TaskError::SomePriorities {
                with: with.name.clone(),
                without: without.name.clone(),
            });
        }
        repeats_soon(&tasks)?;
        let priorities = given.unwrap_or_else(|| deadline_monotonic(&tasks));
        Ok(Self { tasks, priorities })
    }

    /// The tasks in the order they were given.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// The priority of each task, in the same order: as given, or deadline monotonic.
    pub fn priorities(&self) -> &[Priority] {
        &self.priorities
    }

    /// Whether a task may be kept waiting by less urgent ones, which is bounded on one core only.
    pub fn has_blocking(&self) -> bool {
        self.tasks.iter().any(|task| !task.blocking.is_zero())
    }

    /// Whether no deadline exceeds its task's period.
    pub fn has_constrained_deadlines(&self) -> bool {
        self.tasks.iter().all(|task| task.deadline <= task.period)
    }

    /// The share of one core that all tasks together need in the long run, in millionths, rounded
    /// up per task.
    pub fn utilisation_ppm(&self) -> u64 {
        self.tasks
            .iter()
            .map(|task| {
                Nanos::from_wide((task.wcet.wide() * 1_000_000).div_ceil(task.period.wide())).get()
            })
            .sum()
    }
}

/// When what repeats after `a` and what repeats after `b` repeat together: their least common multiple.
pub(crate) fn pattern(a: u128, b: u128) -> u128 {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a / divisor * b
}

fn repeats_soon(tasks: &[Task]) -> Result<(), TaskError> {
    let on_clock = tasks.iter().filter(|task| task.offset.is_some());
    let periods = on_clock.map(|task| task.period.wide());
    let mut length: u128 = 1;
    for period in periods.clone() {
        // Within 64 bits each: no product overflows, and no sum of a thousand.
        length = pattern(length, period);
        let arrivals: u128 = periods.clone().map(|period| length / period).sum();
        if arrivals > TaskSet::MAX_ARRIVALS || length > u128::from(u64::MAX) {
            return Err(TaskError::Pattern);
        }
    }
    Ok(())
}

fn deadline_monotonic(tasks: &[Task]) -> Vec<Priority> {
    let mut by_deadline: Vec<usize> = (0..tasks.len()).collect();
    by_deadline.sort_by_key(|&index| tasks[index].deadline.saturating_sub(tasks[index].jitter));
    let mut priorities = vec![Priority::LOWEST; tasks.len()];
    let levels = tasks.len().min(usize::from(Priority::HIGHEST.0)) as u8;
    for (number, &index) in (Priority::LOWEST.0..=levels).rev().zip(&by_deadline) {
        priorities[index] = Priority(number);
    }
    priorities
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    #[test]
    fn impossible_tasks_are_refused_with_the_reason() {
        for (task, says) in [
            (Task::implicit(" ", ms(1), ms(2)), "empty name"),
            (
                Task::implicit("a\nb\u{1b}", ms(1), ms(2)),
                "`a\\nb\\u{1b}` cannot be a name",
            ),
            (
                Task::implicit("n".repeat(101), ms(1), ms(2)),
                "at most 100 characters",
            ),
            (Task::implicit("a", Nanos::ZERO, ms(2)), "wcet is 0"),
            (Task::implicit("a", ms(1), Nanos::ZERO), "period is 0"),
            (Task::new("a", ms(1), ms(2), Nanos::ZERO), "deadline is 0"),
            (Task::implicit("a", ms(1), Nanos::new(u64::MAX)), "too long"),
            (
                Task::new("a", ms(3), ms(10), ms(2)),
                "exceeds its deadline 2ms",
            ),
            (
                Task::new("a", ms(11), ms(10), ms(20)),
                "exceeds its period 10ms",
            ),
            (
                Task::implicit("a", ms(4), ms(10)).and_then(|task| task.released_within(ms(7))),
                "jitter 7ms and blocking 0ns together exceed its deadline 10ms",
            ),
            (
                Task::implicit("a", ms(4), ms(10)).and_then(|task| task.blocked_for(ms(7))),
                "blocking 7ms together exceed its deadline 10ms",
            ),
            (
                Task::implicit("a", ms(4), ms(10)).and_then(|task| task.at_offset(ms(10))),
                "offset 10ms is not below its period 10ms",
            ),
        ] {
            let error = task.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn without_given_priorities_the_shorter_deadline_is_more_urgent_and_the_earlier_of_equals_first()
     {
        let set = TaskSet::new(vec![
            Task::implicit("slow", ms(1), ms(100)).unwrap(),
            Task::new("urgent", ms(1), ms(100), ms(5)).unwrap(),
            Task::implicit("first", ms(1), ms(20)).unwrap(),
            Task::implicit("second", ms(1), ms(20)).unwrap(),
        ])
        .unwrap();
        let numbers: Vec<u8> = set
            .priorities()
            .iter()
            .map(|priority| priority.number())
            .collect();
        assert_eq!(numbers, [1, 4, 3, 2]);
    }

    #[test]
    fn with_release_jitter_it_is_what_is_left_of_the_deadline_that_counts() {
        let late = Task::implicit("late", ms(1), ms(20)).unwrap();
        let set = TaskSet::new(vec![
            Task::implicit("punctual", ms(1), ms(15)).unwrap(),
            late.released_within(ms(10)).unwrap(),
        ]);
        let numbers = set.unwrap().priorities().to_vec();
        assert_eq!(numbers, [Priority(1), Priority(2)]);
    }

    #[test]
    fn offsets_whose_pattern_hardly_ever_repeats_are_refused() {
        let on_clock = |micros: &[u64]| {
            let tasks = micros.iter().map(|&period| {
                let period = Nanos::from_micros(period);
                let task = Task::implicit(format!("t{period}"), Nanos::new(1), period).unwrap();
                task.at_offset(Nanos::new(period.get() / 2)).unwrap()
            });
            TaskSet::new(tasks.collect())
        };
        assert!(on_clock(&[1_000, 2_000, 10_000, 1_000_000]).is_ok());
        // 10,000 and 1 in ten seconds.
        assert_eq!(on_clock(&[1_000, 10_000_000]), Err(TaskError::Pattern));
        assert_eq!(on_clock(&[99_991, 99_989, 99_971]), Err(TaskError::Pattern));
        let longest = Nanos::MAX_PARAMETER.get() / 1_000;
        let hostile = [longest, longest - 1, longest - 2, 1];
        assert_eq!(on_clock(&hostile), Err(TaskError::Pattern));
    }

    #[test]
    fn beyond_99_tasks_the_least_urgent_share_the_lowest_priority() {
        let tasks = (1..=120)
            .map(|n| Task::implicit(format!("t{n}"), Nanos::new(1), ms(n)).unwrap())
            .collect();
        let set = TaskSet::new(tasks).unwrap();
        assert_eq!(set.priorities()[0], Priority::HIGHEST);
        assert_eq!(set.priorities()[98], Priority::LOWEST);
        assert_eq!(set.priorities()[119], Priority::LOWEST);
    }

    #[test]
    fn priorities_on_some_tasks_only_are_refused() {
        let with = Task::implicit("with", ms(1), ms(10))
            .unwrap()
            .at(Priority::new(5).unwrap());
        let without = Task::implicit("without", ms(1), ms(10)).unwrap();
        let error = TaskSet::new(vec![with, without]).unwrap_err().to_string();
        assert!(
            error.contains("`with`") && error.contains("`without`"),
            "{error}"
        );
    }

    #[test]
    fn sets_without_tasks_or_with_twins_are_refused() {
        assert_eq!(TaskSet::new(Vec::new()), Err(TaskError::NoTask));
        let twin = Task::implicit("twin", ms(1), ms(10)).unwrap();
        assert_eq!(
            TaskSet::new(vec![twin.clone(), twin]),
            Err(TaskError::DuplicateName("twin".into()))
        );
    }

    #[test]
    fn utilisation_is_rounded_up() {
        let third = Task::implicit("third", ms(1), ms(3)).unwrap();
        assert_eq!(
            TaskSet::new(vec![third]).unwrap().utilisation_ppm(),
            333_334
        );
    }

    #[test]
    fn priorities_outside_1_to_99_do_not_exist() {
        assert_eq!(Priority::new(0), None);
        assert_eq!(Priority::new(100), None);
        assert_eq!(Priority::new(99), Some(Priority::HIGHEST));
    }
}
