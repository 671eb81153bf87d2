//! `takt kube`: the plugin of kubectl, by this program.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::failure::Failure;

/// As kubectl finds it for `kubectl takt`.
const PLUGIN: &str = "kubectl-takt";

const HELP: &str = "\
The same as `kubectl takt`: which pods of a cluster are time-sensitive, where, by which path, and what they have
reserved. Arguments and exit code are those of the plugin, which `make -C kubernetes build` makes
(kubernetes/bin/kubectl-takt): beside `takt`, or in PATH.

Examples:
  takt kube
  takt kube -n factory -o json
  takt kube -help";

/// Show the time-sensitive pods of a Kubernetes cluster.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Kube {
    /// Arguments of `kubectl takt`
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    arguments: Vec<OsString>,
}

impl Kube {
    pub fn run(self) -> Result<(), Failure> {
        let beside = std::env::current_exe().ok().and_then(beside);
        let program = beside.unwrap_or_else(|| PLUGIN.into());
        // Returns only if it fails.
        let error = Command::new(&program).args(self.arguments).exec();
        Err(Failure::Other(format!(
            "cannot run {}: {error}; `make -C kubernetes build` makes it, as kubernetes/bin/{PLUGIN}: put it beside `takt`, or where PATH leads",
            program.display()
        )))
    }
}

fn beside(takt: PathBuf) -> Option<PathBuf> {
    let plugin = takt.parent()?.join(PLUGIN);
    plugin.exists().then_some(plugin)
}
