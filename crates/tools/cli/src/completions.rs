//! `takt completions`.

use clap::Args;
use clap_complete::Shell;

use crate::command::command;
use crate::failure::Failure;
use crate::output::print;

const HELP: &str = "\
Examples:
  takt completions bash > /etc/bash_completion.d/takt
  takt completions zsh > \"${fpath[1]}/_takt\"
  takt completions fish > ~/.config/fish/completions/takt.fish";

/// Prints completions for a shell.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub fn run(self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command(), "takt", &mut script);
        print(&String::from_utf8_lossy(&script))
    }
}
