//! The record of a lab: a small JSON file that says how it was configured and who owns it.
//!
//! A record is published whole, by a hard link, so it is also the lock that makes a name unique.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{LabConfig, LabError};

/// Where records live: one `<lab>.json` each. `/run` is empty after a restart, as the namespaces are gone.
pub const RECORDS: &str = "/run/takt/lab";

/// What is written about a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) config: LabConfig,
    /// The process that a scratch lab lives and dies with.
    pub(crate) owner: Option<Owner>,
}

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Owner {
    pid: u32,
    /// Clock ticks from boot to its start, as `/proc/<pid>/stat` has them.
    start_ticks: u64,
}

impl Owner {
    /// The calling process.
    pub(crate) fn this_process() -> Result<Self, LabError> {
        let pid = std::process::id();
        let start_ticks = start_ticks(pid)
            .and_then(|ticks| ticks.ok_or_else(|| io::ErrorKind::NotFound.into()))
            .map_err(LabError::io(format!("read /proc/{pid}/stat")))?;
        Ok(Self { pid, start_ticks })
    }

    /// Whether the process still runs. Unknown counts as alive: nothing is removed on a guess.
    pub(crate) fn is_alive(&self) -> bool {
        match start_ticks(self.pid) {
            Ok(Some(ticks)) => ticks == self.start_ticks,
            Ok(None) => false,
            Err(_) => true,
        }
    }
}

/// When process `pid` was started, in clock ticks since boot; `None` if there is no such process.
fn start_ticks(pid: u32) -> io::Result<Option<u64>> {
    let stat = match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // The command's name is in parentheses and may hold anything, so fields count from the last one:
    // the start time is field 22 of proc_pid_stat(5), the 20th after the name.
    let ticks = stat
        .rsplit_once(')')
        .and_then(|(_, fields)| fields.split_whitespace().nth(19)?.parse().ok());
    ticks
        .map(Some)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

impl Record {
    /// Publishes the record under `name`; `Ok(false)` when the name is taken.
    pub(crate) fn publish(&self, name: &str) -> Result<bool, LabError> {
        fs::create_dir_all(RECORDS)
            .map_err(LabError::io(format!("create {RECORDS} (root is needed)")))?;
        let path = path(name);
        // A dot cannot begin a lab's name, so a draft is never taken for a record.
        let draft = Path::new(RECORDS).join(format!(".{name}.{}", std::process::id()));
        let action = format!("write {}", path.display());
        let write = || {
            let mut file = fs::File::create(&draft)?;
            serde_json::to_writer(&mut file, self)?;
            file.write_all(b"\n")?;
            match fs::hard_link(&draft, &path) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                Err(error) => Err(error),
            }
        };
        let published = write();
        let removed = fs::remove_file(&draft);
        published
            .and_then(|published| removed.map(|()| published))
            .map_err(LabError::io(action))
    }

    /// The record of `name`, if there is one.
    pub(crate) fn read(name: &str) -> Result<Option<Self>, LabError> {
        let path = path(name);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(LabError::Io {
                    action: format!("read {}", path.display()),
                    source,
                });
            }
        };
        let record: Self = serde_json::from_slice(&text).map_err(|source| LabError::Record {
            path: path.display().to_string(),
            source,
        })?;
        record.config.validate()?;
        Ok(Some(record))
    }
}

/// Removes the record of `name`; whether there was one.
pub(crate) fn remove(name: &str) -> Result<bool, LabError> {
    let path = path(name);
    let removed = match fs::remove_file(&path) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(source) => {
            return Err(LabError::Io {
                action: format!("remove {}", path.display()),
                source,
            });
        }
    };
    if removed {
        // Sockets of what ran in its hosts: what is left of them harms nobody.
        let _ = fs::remove_dir_all(Path::new(RECORDS).join(name));
    }
    Ok(removed)
}

/// The names of all records, sorted.
pub(crate) fn names() -> Result<Vec<String>, LabError> {
    let entries = match fs::read_dir(RECORDS) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            return Err(LabError::Io {
                action: format!("list {RECORDS}"),
                source,
            });
        }
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(LabError::io(format!("list {RECORDS}")))?;
        if let Some(name) = entry
            .file_name()
            .to_str()
            .and_then(|file| file.strip_suffix(".json"))
        {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn path(name: &str) -> PathBuf {
    Path::new(RECORDS).join(format!("{name}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_a_later_one_with_the_same_number() {
        let this = Owner::this_process().unwrap();
        assert!(this.is_alive());
        assert!(
            !Owner {
                start_ticks: this.start_ticks + 1,
                ..this
            }
            .is_alive()
        );
    }

    #[test]
    fn a_process_that_has_ended_is_dead() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let owner = Owner {
            pid: child.id(),
            start_ticks: start_ticks(child.id()).unwrap().unwrap(),
        };
        child.wait().unwrap();
        assert!(!owner.is_alive());
    }
}
