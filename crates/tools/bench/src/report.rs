//! The report of a run: one JSON file with every sample, and one page with plots that needs nothing else.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::outcome::Outcome;

mod canvas;
mod distribution;
mod page;
mod responses;
mod rows;
mod table;

/// What a run of the bench gave, and what a reader needs to judge it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What was measured.
    pub title: String,
    /// The one sentence that a reader is to take away; the first picture stands below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headline: Option<String>,
    /// A paragraph for the reader: what the figures answer. Paragraphs are parted by an empty line.
    pub introduction: String,
    /// The command line that gave them.
    pub command: Vec<String>,
    /// The machine they were measured on.
    pub machine: Machine,
    /// What each experiment gave; those of one name are shown together, in this order.
    pub outcomes: Vec<Outcome>,
}

/// Why a report could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The machine could not be described.
    #[error("cannot describe this machine: {0}")]
    Machine(#[source] io::Error),
    /// A file could not be written or read.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// "write", "read" or "create".
        action: &'static str,
        /// The file.
        path: String,
        /// The reason.
        source: io::Error,
    },
    /// A plot could not be drawn.
    #[error("cannot draw a plot: {0}")]
    Plot(String),
}

impl ReportError {
    fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }
}

impl Report {
    /// A report on this machine and process, without outcomes yet.
    ///
    /// # Errors
    /// When the machine cannot be described.
    pub fn new(
        title: impl Into<String>,
        introduction: impl Into<String>,
    ) -> Result<Self, ReportError> {
        Ok(Self {
            title: title.into(),
            headline: None,
            introduction: introduction.into(),
            command: std::env::args().collect(),
            machine: Machine::describe().map_err(ReportError::Machine)?,
            outcomes: Vec::new(),
        })
    }

    /// Reads a report that [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// When the file cannot be read, or is not such a report.
    pub fn read(json: &Path) -> Result<Self, ReportError> {
        let text = fs::read(json).map_err(ReportError::file("read", json))?;
        serde_json::from_slice(&text).map_err(|error| ReportError::file("read", json)(error.into()))
    }

    /// Writes `<name>.json` and `<name>.html` into `directory`, which is created if need be, and says
    /// where they are.
    ///
    /// # Errors
    /// When a file cannot be written or a plot not drawn.
    pub fn write(&self, directory: &Path, name: &str) -> Result<Written, ReportError> {
        write_both(self, &page::render(self)?, directory, name)
    }
}

/// Writes an account of a run for programs and its page for people.
fn write_both(
    account: &impl Serialize,
    page: &str,
    directory: &Path,
    name: &str,
) -> Result<Written, ReportError> {
    fs::create_dir_all(directory).map_err(ReportError::file("create", directory))?;
    let written = Written {
        json: directory.join(format!("{name}.json")),
        html: directory.join(format!("{name}.html")),
    };
    write_json(account, &written.json).map_err(ReportError::file("write", &written.json))?;
    fs::write(&written.html, page).map_err(ReportError::file("write", &written.html))?;
    Ok(written)
}

fn write_json(account: &impl Serialize, path: &Path) -> io::Result<()> {
    let file = BufWriter::new(File::create(path)?);
    serde_json::to_writer(file, account)?;
    Ok(())
}

/// Where a report was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Every sample, for programs.
    pub json: PathBuf,
    /// The page, for people.
    pub html: PathBuf,
}
