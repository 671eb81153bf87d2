//! `takt man-pages`: the help of the commands as manual pages, for `make install` and the packages.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use crate::command::command;
use crate::failure::Failure;

/// Writes the manual pages of `takt`, its commands and `taktd`
#[derive(Debug, Args)]
pub struct ManPages {
    /// Existing directory for the pages, such as /usr/local/share/man/man1
    directory: PathBuf,
}

impl ManPages {
    pub fn run(self) -> Result<(), Failure> {
        let takt = command().disable_help_subcommand(true);
        let taktd = taktd::daemon::Arguments::command();
        for command in [takt, taktd] {
            clap_mangen::generate_to(command, &self.directory).map_err(|error| {
                Failure::Other(format!(
                    "cannot write manual pages into {}: {error}; name a directory that exists",
                    self.directory.display()
                ))
            })?;
        }
        Ok(())
    }
}
