//! `takt schedule check`.

use clap::Args;
use serde::Serialize;
use takt_clock::{Clock, SystemTai};
use takt_schedule::check::{Finding, Severity};

use super::source::{One, Port};
use crate::failure::Failure;
use crate::output::{Form, print, print_json};

const HELP: &str = "\
Each finding ends in a code that stays the same. Errors: the schedule cannot run, or a class can
never send. Warnings: it runs, but probably not as meant. Notes: worth knowing. The exit code is 0
if there is no error (with --strict: no warning either), and 4 otherwise.

Examples:
  takt schedule check eth0.toml
  takt schedule check eth0.sh --rate 100mbit --strict
  takt schedule check eth0.xml --json | jq '.findings[] | select(.severity == \"error\")'";

/// Explains every mistake of a schedule.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Check {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    port: Port,
    /// Take warnings for errors
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    form: Form,
}

#[derive(Serialize)]
struct Checked {
    form: String,
    interface: Option<String>,
    findings: Vec<Finding>,
    not_read: Vec<String>,
}

impl Check {
    pub fn run(self) -> Result<(), Failure> {
        let source = self.one.read()?;
        let port = source.port(&self.port);
        let mut findings =
            takt_schedule::check(&source.document.schedule, &port, Some(SystemTai.now()));
        findings.extend(source.document.check());
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        let count = |severity| findings.iter().filter(|f| f.severity == severity).count();
        let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
        let verdict = format!("{}: {}", source.name, verdict(errors, warnings));
        if self.form.json {
            print_json(&Checked {
                form: source.form.to_string(),
                interface: source.document.interface,
                findings,
                not_read: source.lost,
            })?;
        } else {
            source.tell_lost();
            let lines: String = findings
                .iter()
                .map(|finding| format!("{finding}\n"))
                .collect();
            print(&lines)?;
        }
        if errors > 0 || (self.strict && warnings > 0) {
            return Err(Failure::Schedule(verdict));
        }
        if !self.form.json {
            print(&format!("{verdict}\n"))?;
        }
        Ok(())
    }
}

fn verdict(errors: usize, warnings: usize) -> String {
    let counted = |count: usize, what: &str| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        _ => Some(format!("{count} {what}s")),
    };
    match (counted(errors, "error"), counted(warnings, "warning")) {
        (None, None) => "good".to_owned(),
        (Some(one), None) | (None, Some(one)) => one,
        (Some(errors), Some(warnings)) => format!("{errors}, {warnings}"),
    }
}
