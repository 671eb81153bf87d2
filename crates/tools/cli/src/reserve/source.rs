//! Where a task set is read from, and options that several commands take.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use takt_reserve::input::{self, Format};
use takt_reserve::{Nanos, Overheads, TaskSet};

use crate::failure::{Failure, unreadable};

/// The longest file that is read: a thousand tasks need a tenth of it.
const MAX_LENGTH: u64 = 1 << 20;

/// How a task set is written.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Written {
    /// A mapping with the list `tasks`
    Yaml,
    /// A header line and a line for each task
    Csv,
}

/// The task set of a command.
#[derive(Debug, Args)]
pub struct Source {
    /// The task set; `-` reads standard input
    #[arg(value_name = "FILE")]
    path: PathBuf,
    /// Form of the file; without it the ending of its name tells, and else it is YAML
    #[arg(long, value_name = "FORM")]
    from: Option<Written>,
}

impl Source {
    /// Reads it.
    pub fn read(&self) -> Result<TaskSet, Failure> {
        let (name, text) = text(&self.path)?;
        let format = match self.from {
            Some(Written::Yaml) => Format::Yaml,
            Some(Written::Csv) => Format::Csv,
            None => Format::of(&self.path).unwrap_or(Format::Yaml),
        };
        input::parse(&text, format).map_err(|error| Failure::Tasks(format!("{name}: {error}")))
    }
}

fn text(path: &Path) -> Result<(String, String), Failure> {
    let mut bytes = Vec::new();
    let (name, read) = if path == Path::new("-") {
        let mut input = io::stdin().lock().take(MAX_LENGTH + 1);
        ("standard input".to_owned(), input.read_to_end(&mut bytes))
    } else {
        let file = File::open(path);
        let read = file.and_then(|file| file.take(MAX_LENGTH + 1).read_to_end(&mut bytes));
        (path.display().to_string(), read)
    };
    read.map_err(|error| Failure::Tasks(unreadable(&name, &error)))?;
    if bytes.len() as u64 > MAX_LENGTH {
        return Err(Failure::Tasks(format!(
            "{name} has more than {MAX_LENGTH} octets: a task set of {} tasks needs fewer",
            TaskSet::MAX_TASKS
        )));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok((name, text)),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            Err(Failure::Tasks(format!(
                "{name}: octet {at} is no UTF-8: task sets are text"
            )))
        }
    }
}

/// What the machine takes away from the model.
#[derive(Clone, Copy, Debug, Args)]
pub struct Costs {
    /// Cost of a context switch with the cache misses after it; each job and each budget pays two
    #[arg(long, value_name = "TIME", default_value = "0")]
    switch: Nanos,
    /// How much later than the model says a budget may come: wake-up latency, ticks, tardiness
    #[arg(long, value_name = "TIME", default_value = "0")]
    latency: Nanos,
}

impl Costs {
    /// As the analysis takes them.
    pub fn overheads(self) -> Overheads {
        Overheads {
            context_switch: self.switch,
            supply_latency: self.latency,
        }
    }
}

/// A share as people write it, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(pub u64);

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is no percentage: write a number and %, with at most four decimals: 90%"
            )
        };
        let number = text.trim().strip_suffix('%').ok_or_else(wrong)?;
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || decimals.len() > 4 || !digits(whole) || !digits(decimals) {
            return Err(wrong());
        }
        format!("{whole}{decimals:0<4}")
            .parse()
            .map(Self)
            .map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_millionths_and_nothing_is_guessed() {
        for (text, ppm) in [
            ("90%", 900_000),
            ("0.0001%", 1),
            ("12.5%", 125_000),
            ("100%", 1_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Percent(ppm)), "{text}");
        }
        for text in [
            "",
            "%",
            "90",
            "-1%",
            "1.23456%",
            "1.2.3%",
            "a%",
            "99999999999999999999%",
        ] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
    }
}
