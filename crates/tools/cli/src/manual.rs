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
            self.write(command).map_err(|error| {
                Failure::Other(format!(
                    "cannot write manual pages into {}: {error}; name a directory that exists",
                    self.directory.display()
                ))
            })?;
        }
        Ok(())
    }

    /// Writes the pages of a command and of those below it, each into the file that is named after it.
    fn write(&self, command: clap::Command) -> std::io::Result<()> {
        let scratch = tempfile::tempdir()?;
        clap_mangen::generate_to(command, scratch.path())?;
        for page in std::fs::read_dir(scratch.path())? {
            let page = page?;
            let text = std::fs::read_to_string(page.path())?;
            std::fs::write(self.directory.join(page.file_name()), with_lists(&text))?;
        }
        Ok(())
    }
}

/// The page with the lists of its section EXTRA as lists, and its examples as they are: filled like text they could not be
/// read.
fn with_lists(page: &str) -> String {
    let mut out = String::new();
    let mut lines = page.lines().peekable();
    let mut extra = false;
    while let Some(line) = lines.next() {
        if line.starts_with(".SH ") {
            extra = line == ".SH EXTRA";
        }
        let Some(item) = line.strip_prefix("  ").filter(|_| extra) else {
            out += line;
            out.push('\n');
            continue;
        };
        // What continues it is indented further.
        let mut more = Vec::new();
        while let Some(next) = lines.next_if(|next| next.starts_with("   ")) {
            more.push(next.trim());
        }
        match item.trim_start().split_once("  ") {
            Some((term, text)) => {
                out += &format!(".TP\n{term}\n{}\n", text.trim_start());
                out.extend(more.iter().map(|text| format!("{text}\n")));
            }
            None => {
                out += &format!(".PP\n.nf\n{item}\n");
                out.extend(more.iter().map(|text| format!("  {text}\n")));
                out += ".fi\n";
            }
        }
        if lines.peek().is_some_and(|next| !next.starts_with("  ")) {
            out += ".PP\n";
        }
    }
    // Examples that follow each other.
    out.replace(".fi\n.PP\n.nf\n", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_become_lists_and_examples_stay_as_they_are() {
        let page = ".SH OPTIONS\n  as it is\n.SH EXTRA\nCodes:\n  0  done\n     so far\n  1  not\n\nSo:\n  takt a\n  takt b\n.SH \
                    VERSION\nv1\n";
        let expected = ".SH OPTIONS\n  as it is\n.SH EXTRA\nCodes:\n.TP\n0\ndone\nso far\n.TP\n1\nnot\n.PP\n\nSo:\n.PP\n.nf\ntakt \
                        a\ntakt b\n.fi\n.PP\n.SH VERSION\nv1\n";
        assert_eq!(with_lists(page), expected);
    }
}
