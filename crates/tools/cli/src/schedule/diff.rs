//! `takt schedule diff`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use takt_schedule::diff::documents;

use super::source::Reading;
use crate::failure::Failure;
use crate::output::{Form, print, print_json};

const HELP: &str = "\
The two files may be in different forms; what only one of the forms can say is no difference. The
exit code is 0 if the schedules are the same, and 5 if they differ, even where the gates open and
close at the same instants nevertheless.

Examples:
  takt schedule diff eth0.toml eth0-new.toml
  takt schedule convert eth0.toml --to tc | takt schedule diff eth0.toml -";

/// Says what changes from one schedule to another.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Diff {
    /// The schedule as it was
    before: PathBuf,
    /// The schedule as it is to be; `-` reads standard input, here or there
    after: PathBuf,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    form: Form,
}

/// Exit code where two schedules differ.
const DIFFERENT: u8 = 5;

impl Diff {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let before = self.reading.read(&self.before)?;
        let after = self.reading.read(&self.after)?;
        before.tell_lost();
        after.tell_lost();
        let difference = documents(&before.document, &after.document);
        if self.form.json {
            print_json(&difference)?;
        } else {
            let mut text = String::new();
            for change in &difference.changes {
                text.push_str(&format!("{change}\n"));
            }
            if !difference.changes.is_empty() {
                text.push_str(match difference.same_gates {
                    true => "the gates open and close at the same instants\n",
                    false => "the gates open and close at other instants\n",
                });
            }
            print(&text)?;
        }
        Ok(match difference.changes.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(DIFFERENT),
        })
    }
}
