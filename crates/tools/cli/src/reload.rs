//! `takt reload`.

use clap::Args;
use taktd::admin::proto::{ReloadRequest, ReloadResponse};

use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Form, print, print_json};

const HELP: &str = "\
Listeners, peers, `node.accept`, `node.drain_seconds`, `[mapping]` and `log.level` change at once.
Everything else is named as needing a restart. A configuration that is at fault changes nothing. The
exit code is 1 if something could not be put in force.

Examples:
  takt check && takt reload
  takt reload --json | jq .needs_restart";

/// Has the daemon read its configuration again.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Reload {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

impl Reload {
    pub fn run(self) -> Result<(), Failure> {
        let report = self
            .daemon
            .ask(async |mut client| Ok(client.reload(ReloadRequest {}).await?.into_inner()))?;
        if self.form.json {
            print_json(&report)?;
        } else {
            print(&text(&report))?;
        }
        match (report.failed.len(), report.needs_restart.len()) {
            (0, 0) => Ok(()),
            (0, waiting) => Err(Failure::Other(format!(
                "{waiting} change(s) need a restart of the daemon: {}",
                report.needs_restart.join(", ")
            ))),
            (failed, _) => Err(Failure::Other(format!(
                "{failed} change(s) could not be put in force: see above"
            ))),
        }
    }
}

fn text(report: &ReloadResponse) -> String {
    let mut text = String::new();
    for line in &report.changed {
        text.push_str(&format!("{line}\n"));
    }
    for name in &report.needs_restart {
        text.push_str(&format!("`{name}` differs: needs a restart\n"));
    }
    for line in &report.failed {
        text.push_str(&format!("failed: {line}\n"));
    }
    if text.is_empty() {
        text.push_str("nothing differs\n");
    }
    text
}
