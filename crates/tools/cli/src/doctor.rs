//! `takt doctor`: looks at what Takt depends on here, and says what to do, the gravest first.
//!
//! [`host`] has what the machine shows in files, [`node`] what a daemon answers; the clock is `takt-clock`'s.

mod host;
mod node;

use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use takt_clock::{Observer, Sources, SystemTai};

use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Form, print, print_json, wrap};

const HELP: &str = "\
Nothing is changed. The exit code is 1 if there is a problem: something that Takt cannot work with.
Warnings are things that it works less well with.

Examples:
  takt doctor
  takt doctor --json | jq -r '.[] | select(.level != \"ok\") | .remedy'";

/// Looks at what Takt depends on here, and says what to do
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Doctor {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

/// How grave a finding is. The order is that of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Takt cannot work with it.
    Problem,
    /// Takt works less well with it.
    Warning,
    /// Worth knowing.
    Note,
    /// As it should be.
    Ok,
}

/// What was looked at, what was found, what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    level: Level,
    check: &'static str,
    found: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    remedy: String,
}

impl Finding {
    fn new(level: Level, check: &'static str, found: impl Into<String>) -> Self {
        Self {
            level,
            check,
            found: found.into(),
            remedy: String::new(),
        }
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }
}

impl Doctor {
    pub fn run(self) -> Result<(), Failure> {
        let socket = self.daemon.socket();
        let (node, pid) = node::examine(&socket);
        let mut findings = host::Host::here(pid).examine();
        findings.extend(node);
        findings.extend(clock());
        // Stable: within a level, what others depend on comes first.
        findings.sort_by_key(|finding| finding.level);
        if self.form.json {
            print_json(&findings)?;
        } else {
            print(&text(&findings))?;
        }
        match count(&findings, Level::Problem) {
            0 => Ok(()),
            problems => Err(Failure::Other(format!(
                "{problems} problem(s): do what stands behind the arrows, the first one first"
            ))),
        }
    }
}

fn clock() -> Vec<Finding> {
    let status = Observer::new(Sources::default(), Arc::new(SystemTai)).observe();
    if status.warnings.is_empty() {
        let found = format!("{}: {}", status.state, status.reference);
        return vec![Finding::new(Level::Ok, "clock", found)];
    }
    let warning = |warning: &takt_clock::Warning| {
        // A warning says what is the matter, and what to do behind a colon.
        let (found, remedy) = warning
            .message
            .split_once(": ")
            .unwrap_or((&warning.message, "see docs/reference/clock.md"));
        Finding::new(Level::Warning, "clock", found).remedy(remedy)
    };
    status.warnings.iter().map(warning).collect()
}

fn count(findings: &[Finding], level: Level) -> usize {
    let same = findings.iter().filter(|finding| finding.level == level);
    same.count()
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let level = match finding.level {
            Level::Problem => "PROBLEM",
            Level::Warning => "warning",
            Level::Note => "note",
            Level::Ok => "ok",
        };
        let head = format!("{level:<8} {:<11} ", finding.check);
        let indent = " ".repeat(head.len());
        for (at, line) in wrap(&finding.found, 80 - head.len()).iter().enumerate() {
            text.push_str(if at == 0 { &head } else { &indent });
            text.push_str(line);
            text.push('\n');
        }
        if !finding.remedy.is_empty() {
            for (at, line) in wrap(&finding.remedy, 77 - head.len()).iter().enumerate() {
                text.push_str(&indent);
                text.push_str(if at == 0 { "-> " } else { "   " });
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text.push_str(&format!(
        "\n{} problem(s), {} warning(s)\n",
        count(findings, Level::Problem),
        count(findings, Level::Warning)
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_has_its_remedy_below_and_fits_the_page() {
        let finding =
            Finding::new(Level::Problem, "mtu", "a b c ".repeat(40)).remedy("do ".repeat(60));
        let text = text(&[finding, Finding::new(Level::Ok, "kernel", "Linux 6.12")]);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.starts_with("PROBLEM  mtu         a b c"), "{text}");
        assert!(text.contains("\n                     -> do do"), "{text}");
        assert!(text.ends_with("\n1 problem(s), 0 warning(s)\n"), "{text}");
    }
}
