//! Sporadic tasks and sets of them, as the analysis takes them: checked once, here.
//!
//! The model is the sporadic task (C, T, D) of the field under fixed priorities
//! (kubedeadline-ecrts2025, section 3.1): every job needs at most C of CPU time, jobs arrive at
//! least T apart, each wants to be done within D of its arrival. Tasks do not block one another and
//! do not suspend themselves inside a job.

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
            if value > Nanos::MAX_PARAMETER {
                return Err(TaskError::TooLong {
                    task: name,
                    parameter,
                    value,
                });
            }
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

    /// Its priority, when one was given.
    pub fn priority(&self) -> Option<Priority> {
        self.priority
    }
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

    /// The set of `tasks`, in their order.
    ///
    /// Without given priorities the tasks are ordered deadline monotonic (Leung and Whitehead 1982:
    /// the best order for one core while no deadline exceeds its period): the shorter the deadline
    /// the more urgent, the earlier one of equals first. The least urgent task then has priority 1;
    /// beyond 99 tasks the last ones share it, and the analysis knows that they do.
    ///
    /// # Errors
    /// No task, too many, two of one name, or priorities on some of them only.
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

fn deadline_monotonic(tasks: &[Task]) -> Vec<Priority> {
    let mut by_deadline: Vec<usize> = (0..tasks.len()).collect();
    by_deadline.sort_by_key(|&index| tasks[index].deadline);
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
