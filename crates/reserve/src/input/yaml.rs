//! Task sets in YAML: a mapping with the list `tasks`.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Spanned};

use super::InputError;
use super::fields::{Field, task};
use crate::nanos::quotable;
use crate::task::TaskSet;

/// How the whole thing must look, for errors.
const FORM: &str = "write `tasks:` and below it a list of tasks, each with name, wcet and period";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    tasks: Vec<Spanned<Entries>>,
}

/// A mapping just as it was written: its keys are looked at together with their lines, later.
struct Entries(Vec<(Spanned<String>, Spanned<String>)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a task: a mapping of fields")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// Reads a task set written in YAML.
///
/// # Errors
/// The first thing wrong with it.
pub fn parse_yaml(text: &str) -> Result<TaskSet, InputError> {
    // A field that is there twice is reported with its line and remedy further down.
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    let document: Document =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| syntax(&error))?;
    let tasks = document.tasks.into_iter().map(|entries| {
        let line = entries.referenced.line();
        let fields = entries.value.0.into_iter().map(|(name, value)| Field {
            line: value.referenced.line(),
            name: name.value,
            value: value.value,
        });
        task(line, &fields.collect::<Vec<_>>())
    });
    Ok(TaskSet::new(tasks.collect::<Result<Vec<_>, _>>()?)?)
}

/// Writes a task set so that [`parse_yaml`] reads the same one.
pub fn to_yaml(set: &TaskSet) -> String {
    let mut text = "tasks:\n".to_owned();
    for task in set.tasks() {
        // Names hold no control characters: these two are all that a quoted text cannot have.
        let name = task.name().replace('\\', "\\\\").replace('"', "\\\"");
        text.push_str(&format!(
            "  - {{name: \"{name}\", wcet: {}, period: {}",
            task.wcet(),
            task.period()
        ));
        if task.deadline() != task.period() {
            text.push_str(&format!(", deadline: {}", task.deadline()));
        }
        let more = [("jitter", task.jitter()), ("blocking", task.blocking())];
        for (name, time) in more.into_iter().filter(|(_, time)| !time.is_zero()) {
            text.push_str(&format!(", {name}: {time}"));
        }
        if let Some(offset) = task.offset() {
            text.push_str(&format!(", offset: {offset}"));
        }
        if let Some(priority) = task.priority() {
            text.push_str(&format!(", priority: {priority}"));
        }
        text.push_str("}\n");
    }
    text
}

fn syntax(error: &serde_saphyr::Error) -> InputError {
    let line = error.location().map(|location| location.line());
    // The place is told by the line already, and a picture of it does not fit one line.
    let message = error.without_snippet().to_string();
    let what = message.split(" at line ").next().unwrap_or(&message);
    InputError::Syntax {
        line,
        problem: format!("{}: {FORM}", quotable(what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nanos::Nanos;
    use crate::task::{Priority, Task};

    #[test]
    fn what_is_written_is_read_as_the_same_set() {
        let us = Nanos::from_micros;
        let awkward = [
            "a",
            "y",
            "1e3",
            "\"\\ \\n",
            "{x: 1}, # ' %",
            "é, ü",
            "- null",
        ];
        let tasks = awkward.iter().zip(1u8..).map(|(name, number)| {
            let short = us(u64::from(number) * 1_111);
            let task = Task::new(*name, short, us(50_000), us(40_000)).unwrap();
            task.at(Priority::new(number).unwrap())
        });
        let set = TaskSet::new(tasks.collect()).unwrap();
        assert_eq!(parse_yaml(&to_yaml(&set)), Ok(set));
        let task = Task::implicit("a", us(1), us(20)).unwrap();
        let task = task.released_within(us(3)).unwrap();
        let task = task.blocked_for(us(4)).unwrap().at_offset(us(5)).unwrap();
        let all = TaskSet::new(vec![task]).unwrap();
        assert!(to_yaml(&all).contains("jitter: 3us, blocking: 4us, offset: 5us"));
        assert_eq!(parse_yaml(&to_yaml(&all)), Ok(all));
        let plain = TaskSet::new(vec![Task::implicit("a", us(1), us(2)).unwrap()]).unwrap();
        assert_eq!(parse_yaml(&to_yaml(&plain)), Ok(plain));
    }

    #[test]
    fn every_way_to_write_a_task_is_read() {
        let set = parse_yaml(
            "# the control loop\n\
             tasks:\n\
             \x20 - name: control   # most urgent\n\
             \x20   wcet: 2ms\n\
             \x20   period: 10ms\n\
             \x20   deadline: 8ms\n\
             \x20   priority: 80\n\
             \x20 - {name: \"log\", C: 500000ns, T: 0.02s, priority: 10}\n",
        )
        .unwrap();
        let [control, log] = set.tasks() else {
            panic!("two tasks")
        };
        assert_eq!(
            (control.name(), control.deadline()),
            ("control", Nanos::from_millis(8))
        );
        assert_eq!(
            control.priority().map(|priority| priority.number()),
            Some(80)
        );
        assert_eq!(
            (log.wcet(), log.period(), log.deadline()),
            (
                Nanos::from_micros(500),
                Nanos::from_millis(20),
                Nanos::from_millis(20)
            )
        );
    }

    #[test]
    fn errors_name_the_line_the_field_the_value_and_the_remedy() {
        let task = |fields: &str| format!("tasks:\n - name: a\n{fields}");
        for (text, line, says) in [
            (
                task("   wcet: 2 min\n   period: 10ms\n"),
                3,
                vec!["wcet", "`2 min`", "use ns, us, ms or s"],
            ),
            (
                task("   wcet: soon\n   period: 10ms\n"),
                3,
                vec!["wcet", "`soon`", "2ms"],
            ),
            (
                task("   wcet: 2ms\n"),
                2,
                vec!["no `period`", "`period: 10ms`"],
            ),
            (
                task("   wcet: 2ms\n   period: 10ms\n   budget: 3ms\n"),
                5,
                vec!["unknown field `budget`", "wcet (C)"],
            ),
            (
                task("   wcet: 2ms\n   period: 10ms\n   jitter: 9ms\n"),
                2,
                vec!["jitter 9ms", "exceed its deadline 10ms"],
            ),
            (
                task("   wcet: 2ms\n   period: 10ms\n   O: 10ms\n"),
                2,
                vec!["offset 10ms", "not below its period 10ms"],
            ),
            (
                task("   wcet: 2ms\n   wcet: 3ms\n   period: 10ms\n"),
                4,
                vec!["`wcet` is given twice"],
            ),
            (
                task("   wcet: 2ms\n   period: 10ms\n   T: 20ms\n"),
                5,
                vec!["`T` is given twice"],
            ),
            (
                task("   wcet: 2ms\n   period: 10ms\n   priority: 100\n"),
                5,
                vec!["priority", "`100`", "1 to 99"],
            ),
            (
                task("   wcet: 2ms\n   period: 10ms\n   deadline: 1ms\n"),
                2,
                vec!["`a`", "wcet 2ms exceeds its deadline 1ms"],
            ),
            (
                task("   wcet: [2ms]\n   period: 10ms\n"),
                3,
                vec!["string scalar"],
            ),
            (task("  wcet: 2ms\n"), 3, vec!["write `tasks:`"]),
            (
                "task:\n - name: a\n".to_owned(),
                1,
                vec!["unknown field `task`", "write `tasks:`"],
            ),
            (
                "tasks: 3\n".to_owned(),
                1,
                vec!["sequence", "write `tasks:`"],
            ),
            (String::new(), 1, vec!["end of input", "write `tasks:`"]),
        ] {
            let error = parse_yaml(&text).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("line {line}: ")),
                "{text:?}: {error}"
            );
            assert!(!error.contains('\n'), "{error}");
            for said in says {
                assert!(error.contains(said), "{text:?}: {error} lacks {said:?}");
            }
        }
    }

    #[test]
    fn what_is_wrong_with_the_set_is_told_too() {
        let error = parse_yaml("tasks: []\n").unwrap_err().to_string();
        assert!(error.contains("empty"), "{error}");
        let twins = "tasks:\n - {name: a, C: 1ms, T: 9ms}\n - {name: a, C: 1ms, T: 9ms}\n";
        assert!(
            parse_yaml(twins)
                .unwrap_err()
                .to_string()
                .contains("two tasks are called `a`")
        );
    }

    #[test]
    fn a_document_that_unfolds_without_end_is_refused() {
        let mut bomb = "a: &a [x, x, x, x, x, x, x, x]\n".to_owned();
        for (from, to) in ('a'..='y').zip('b'..='z') {
            bomb += &format!(
                "{to}: &{to} [*{from}, *{from}, *{from}, *{from}, *{from}, *{from}, *{from}, *{from}]\n"
            );
        }
        assert!(parse_yaml(&format!("{bomb}tasks: [*z]\n")).is_err());
    }
}
