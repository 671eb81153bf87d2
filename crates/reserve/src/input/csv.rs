//! Task sets in CSV: a header line with the names of the fields, then a line per task. Lines that
//! begin with `#` are remarks.

use ::csv::{ErrorKind, Position, ReaderBuilder, Trim};

use super::InputError;
use super::fields::{Field, Kind, task};
use crate::nanos::quotable;
use crate::task::TaskSet;

/// Reads a task set written in CSV.
///
/// # Errors
/// The first thing wrong with it.
pub fn parse_csv(text: &str) -> Result<TaskSet, InputError> {
    let mut reader = ReaderBuilder::new()
        .comment(Some(b'#'))
        .trim(Trim::All)
        .from_reader(text.as_bytes());
    let header = reader
        .headers()
        .map_err(|error| syntax(text, &error))?
        .clone();
    let line = line_of(text, header.position());
    if header.is_empty() {
        let problem =
            "there is nothing in it: begin with the header `name,wcet,period,deadline,priority`"
                .to_owned();
        return Err(InputError::Syntax {
            line: None,
            problem,
        });
    }
    if let Some(unknown) = header.iter().find(|name| Kind::of(name).is_none()) {
        return Err(InputError::UnknownField {
            line,
            field: quotable(unknown),
        });
    }
    let mut tasks = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| syntax(text, &error))?;
        let line = line_of(text, record.position());
        // An empty cell is a field left out.
        let cells = header
            .iter()
            .zip(&record)
            .filter(|(_, value)| !value.is_empty());
        let fields: Vec<Field> = cells
            .map(|(name, value)| Field {
                line,
                name: name.to_owned(),
                value: value.to_owned(),
            })
            .collect();
        tasks.push(task(line, &fields)?);
    }
    Ok(TaskSet::new(tasks)?)
}

/// The line of what was read from `position` on: the reader tells where it began to look for it,
/// which is before any empty lines and remarks in between.
fn line_of(text: &str, position: Option<&Position>) -> u64 {
    let Some(position) = position else { return 1 };
    let ahead = usize::try_from(position.byte())
        .ok()
        .and_then(|byte| text.get(byte..))
        .unwrap_or_default();
    position.line()
        + ahead
            .lines()
            .take_while(|line| line.is_empty() || line.starts_with('#'))
            .count() as u64
}

fn syntax(text: &str, error: &::csv::Error) -> InputError {
    let line = error
        .position()
        .map(|position| line_of(text, Some(position)));
    let problem = match error.kind() {
        ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => {
            format!(
                "{len} cells under a header of {expected_len}: give every line as many cells as the header, empty ones if need be"
            )
        }
        _ => format!("not readable as CSV: {error}"),
    };
    InputError::Syntax { line, problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nanos::Nanos;

    #[test]
    fn columns_may_come_in_any_order_and_cells_may_be_empty() {
        let set = parse_csv(
            "# made by hand\n T , C, name, D\n10ms, 2ms, control, 8ms\n20ms,500us,\"log, slow\",\n",
        )
        .unwrap();
        let [control, log] = set.tasks() else {
            panic!("two tasks")
        };
        assert_eq!(
            (control.wcet(), control.deadline()),
            (Nanos::from_millis(2), Nanos::from_millis(8))
        );
        assert_eq!(
            (log.name(), log.deadline()),
            ("log, slow", Nanos::from_millis(20))
        );
    }

    #[test]
    fn errors_name_the_line_the_field_the_value_and_the_remedy() {
        for (text, says) in [
            (
                "name,wcet,period\na,2ms,10ms\nb,2 min,10ms\n",
                vec!["line 3: wcet", "`2 min`", "use ns, us, ms or s"],
            ),
            (
                "# remark\nname,wcet,period\n\na,,10ms\n",
                vec!["line 4: the task has no `wcet`", "`wcet: 2ms`"],
            ),
            (
                "name,wcet\na,2ms\n",
                vec!["line 2: the task has no `period`"],
            ),
            (
                "name,wcet,period,budget\na,2ms,10ms,1\n",
                vec!["line 1: unknown field `budget`"],
            ),
            (
                "name,wcet,C,period\na,2ms,2ms,10ms\n",
                vec!["line 2: `C` is given twice"],
            ),
            (
                "name,wcet,period,priority\na,2ms,10ms,-1\n",
                vec!["line 2: priority", "`-1`", "1 to 99"],
            ),
            (
                "name,wcet,period\n#\n\na,2ms\n",
                vec!["line 4: 2 cells under a header of 3"],
            ),
            (
                "\n# remark\nname,budget\na,2ms\n",
                vec!["line 3: unknown field `budget`"],
            ),
            (
                "name,wcet,period\na,12ms,10ms\n",
                vec!["line 2: task `a`", "exceeds its deadline"],
            ),
            ("", vec!["begin with the header"]),
            ("name,wcet,period\n", vec!["task set is empty"]),
        ] {
            let error = parse_csv(text).unwrap_err().to_string();
            for said in says {
                assert!(error.contains(said), "{text:?}: {error} lacks {said:?}");
            }
        }
    }
}
