//! `takt schedule convert`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use takt_schedule::form::{self, Form as Written};

use super::source::One;
use crate::failure::Failure;
use crate::output::{Form, print_json, write_text};

const HELP: &str = "\
What the other form cannot say is told on standard error. Mistakes of the schedule are kept: see
`takt schedule check`.

Examples:
  takt schedule convert eth0.toml --to tc
  takt schedule convert eth0.toml --to xml --output eth0.xml
  takt schedule convert eth0.json --interface eth0 --to toml
  takt schedule convert eth0.toml --to tc --strict | sudo sh";

/// Writes a schedule in another form.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Convert {
    #[command(flatten)]
    one: One,
    /// Form to write: toml, tc, json or xml
    #[arg(long, value_name = "FORM")]
    to: Written,
    /// File to write; standard output if not given
    #[arg(
        long,
        value_name = "FILE",
        default_value = "-",
        conflicts_with = "json"
    )]
    output: PathBuf,
    /// Write nothing if something would be lost
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    form: Form,
}

#[derive(Serialize)]
struct Converted {
    form: String,
    text: String,
    lost: Vec<String>,
}

impl Convert {
    pub fn run(self) -> Result<(), Failure> {
        let source = self.one.read()?;
        let name = &source.name;
        let written = form::write(self.to, &source.document)
            .map_err(|error| Failure::Schedule(format!("{name}: {error}")))?;
        let lost: Vec<String> = source.lost.iter().chain(&written.lost).cloned().collect();
        if !self.form.json || self.strict {
            for lost in &lost {
                eprintln!("takt: {name}: not kept: {lost}");
            }
        }
        if self.strict && !lost.is_empty() {
            return Err(Failure::Schedule(format!(
                "{name}: not everything can be kept as {}: nothing is written",
                self.to
            )));
        }
        if self.form.json {
            return print_json(&Converted {
                form: self.to.to_string(),
                text: written.text,
                lost,
            });
        }
        write_text(Path::new(&self.output), &written.text)
    }
}
