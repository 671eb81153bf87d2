//! Task sets as people write them, in YAML or CSV, with errors that name line, field, value and
//! remedy.
//!
//! A task has the fields `name`, `wcet` (or `C`), `period` (or `T`), `deadline` (or `D`; the period
//! if left out), `jitter` (`J`), `blocking` (`B`), `offset` (`O`) and `priority` (1 to 99, larger is
//! more urgent; all tasks or none). Times are written `2ms`, `500us` or `1.5s`: always with a unit.

mod csv;
mod fields;
mod yaml;

use std::path::Path;

use crate::task::{TaskError, TaskSet};

pub use csv::parse_csv;
pub use yaml::{parse_yaml, to_yaml};

/// How a task set is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A mapping with the list `tasks`.
    Yaml,
    /// A header line with the names of the fields, then a line per task.
    Csv,
}

impl Format {
    /// The format that the ending of `path` stands for.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "yaml" | "yml" => Some(Self::Yaml),
            "csv" => Some(Self::Csv),
            _ => None,
        }
    }
}

/// Reads a task set written in `format`.
///
/// # Errors
/// The first thing wrong with it.
pub fn parse(text: &str, format: Format) -> Result<TaskSet, InputError> {
    match format {
        Format::Yaml => parse_yaml(text),
        Format::Csv => parse_csv(text),
    }
}

/// What is wrong with a written task set. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// Not even YAML or CSV, or not of the form of a task set.
    #[error("{}{problem}", at(*.line))]
    Syntax {
        /// The line, when it is known.
        line: Option<u64>,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A field that tasks do not have.
    #[error(
        "line {line}: unknown field `{field}`: a task has name, wcet (C), period (T), deadline (D), jitter (J), blocking (B), offset (O) and priority"
    )]
    UnknownField {
        /// The line.
        line: u64,
        /// What it is called.
        field: String,
    },
    /// A field that is there twice, perhaps by its other name.
    #[error("line {line}: `{field}` is given twice for one task: keep one of them")]
    DuplicateField {
        /// The line of the second one.
        line: u64,
        /// What it is called.
        field: String,
    },
    /// A field that no task can do without.
    #[error("line {line}: the task has no `{field}`: add it, such as `{example}`")]
    MissingField {
        /// The line where the task begins.
        line: u64,
        /// What it is called.
        field: &'static str,
        /// What it could look like.
        example: &'static str,
    },
    /// A value that is not of its field's kind.
    #[error("line {line}: {field}: {problem}")]
    Value {
        /// The line.
        line: u64,
        /// What the field is called.
        field: String,
        /// The value and what would be right.
        problem: String,
    },
    /// Values that are no task together.
    #[error("line {line}: {source}")]
    Task {
        /// The line where the task begins.
        line: u64,
        /// What is wrong with it.
        source: TaskError,
    },
    /// Tasks that are no set together.
    #[error(transparent)]
    Set(#[from] TaskError),
}

fn at(line: Option<u64>) -> String {
    line.map(|line| format!("line {line}: "))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Pieces of task sets, in any order, and a little of everything else.
    fn text() -> impl Strategy<Value = String> {
        let pieces = [
            "tasks:",
            "\n",
            "\n  - ",
            "\n    ",
            "name: a",
            "name",
            ",",
            "wcet: 2ms",
            "period",
            "jitter: 1ms",
            "offset",
            "B",
            ": ",
            "10ms",
            "T",
            "{",
            "}",
            "[",
            "]",
            "&a",
            "*a",
            "\"",
            "'",
            "#",
            "---",
            "<<: ",
            "!!int ",
            "\t",
            "\u{feff}",
            "\0",
            "99999999999999999999s",
            "-1",
            "~",
            "µs",
            "| ",
            "> ",
            "? ",
        ];
        vec(prop_oneof![8 => proptest::sample::select(pieces.to_vec()).prop_map(str::to_owned), 1 => any::<char>().prop_map(String::from)], 0..40)
            .prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_read_or_refused_in_one_line(text in text()) {
            for format in [Format::Yaml, Format::Csv] {
                if let Err(error) = parse(&text, format) {
                    let error = error.to_string();
                    prop_assert!(!error.is_empty() && error.lines().count() == 1, "{format:?}: {error:?}");
                }
            }
        }
    }

    #[test]
    fn the_format_follows_the_ending() {
        for (path, format) in [
            ("a.yaml", Some(Format::Yaml)),
            ("b/c.YML", Some(Format::Yaml)),
            ("d.csv", Some(Format::Csv)),
            ("e.json", None),
            ("yaml", None),
        ] {
            assert_eq!(Format::of(Path::new(path)), format, "{path}");
        }
    }

    #[test]
    fn both_formats_read_the_same_set() {
        let yaml = "tasks:\n  - name: control\n    wcet: 2ms\n    period: 10ms\n    deadline: 8ms\n  - {name: log, C: 500us, T: 20000000ns}\n";
        let csv = "name,wcet,period,deadline\ncontrol,2ms,10ms,8ms\nlog,500us,20000000ns,\n";
        assert_eq!(
            parse(yaml, Format::Yaml).unwrap(),
            parse(csv, Format::Csv).unwrap()
        );
    }
}
