//! From the fields of one task, each with its line, to a task: the same for every format.

use std::fmt::Display;
use std::str::FromStr;

use super::InputError;
use crate::nanos::{Nanos, quotable};
use crate::task::{Priority, Task};

/// A field as it was written.
#[derive(Clone, Debug)]
pub(super) struct Field {
    /// The line of its value.
    pub line: u64,
    pub name: String,
    pub value: String,
}

/// The fields a task may have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Name,
    Wcet,
    Period,
    Deadline,
    Jitter,
    Blocking,
    Offset,
    Priority,
}

impl Kind {
    /// The kind that is written `name`.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "name" => Some(Self::Name),
            "wcet" | "C" | "c" => Some(Self::Wcet),
            "period" | "T" | "t" => Some(Self::Period),
            "deadline" | "D" | "d" => Some(Self::Deadline),
            "jitter" | "J" | "j" => Some(Self::Jitter),
            "blocking" | "B" | "b" => Some(Self::Blocking),
            "offset" | "O" | "o" => Some(Self::Offset),
            "priority" => Some(Self::Priority),
            _ => None,
        }
    }
}

/// The task of `fields`, which begins in `line`.
pub(super) fn task(line: u64, fields: &[Field]) -> Result<Task, InputError> {
    let mut kinds = Vec::with_capacity(fields.len());
    for field in fields {
        let Some(kind) = Kind::of(&field.name) else {
            return Err(InputError::UnknownField {
                line: field.line,
                field: quotable(&field.name),
            });
        };
        if kinds.contains(&kind) {
            return Err(InputError::DuplicateField {
                line: field.line,
                field: quotable(&field.name),
            });
        }
        kinds.push(kind);
    }
    let find = |kind| {
        kinds
            .iter()
            .position(|&other| other == kind)
            .map(|index| &fields[index])
    };
    let need = |kind, field, example| {
        find(kind).ok_or(InputError::MissingField {
            line,
            field,
            example,
        })
    };

    let name = need(Kind::Name, "name", "name: control")?;
    let wcet: Nanos = parsed(need(Kind::Wcet, "wcet", "wcet: 2ms")?)?;
    let period: Nanos = parsed(need(Kind::Period, "period", "period: 10ms")?)?;
    let deadline = find(Kind::Deadline)
        .map(parsed)
        .transpose()?
        .unwrap_or(period);
    let no_task = |source| InputError::Task { line, source };
    let mut task = Task::new(name.value.trim(), wcet, period, deadline).map_err(no_task)?;
    if let Some(field) = find(Kind::Jitter) {
        task = task.released_within(parsed(field)?).map_err(no_task)?;
    }
    if let Some(field) = find(Kind::Blocking) {
        task = task.blocked_for(parsed(field)?).map_err(no_task)?;
    }
    if let Some(field) = find(Kind::Offset) {
        task = task.at_offset(parsed(field)?).map_err(no_task)?;
    }
    match find(Kind::Priority) {
        Some(field) => Ok(task.at(priority(field)?)),
        None => Ok(task),
    }
}

fn parsed<T: FromStr<Err: Display>>(field: &Field) -> Result<T, InputError> {
    field
        .value
        .parse()
        .map_err(|error: T::Err| InputError::Value {
            line: field.line,
            field: quotable(&field.name),
            problem: error.to_string(),
        })
}

fn priority(field: &Field) -> Result<Priority, InputError> {
    field
        .value
        .trim()
        .parse()
        .ok()
        .and_then(Priority::new)
        .ok_or_else(|| InputError::Value {
            line: field.line,
            field: quotable(&field.name),
            problem: format!(
                "`{}` is not a priority: use a whole number from {} to {}, larger is more urgent",
                quotable(&field.value),
                Priority::LOWEST,
                Priority::HIGHEST
            ),
        })
}
