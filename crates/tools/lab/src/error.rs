//! What can go wrong with a lab.

use std::io;

/// Why a lab could not be made, found, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The name cannot be used for namespaces and files.
    #[error(
        "cannot use {name:?} as a lab name: it needs 1 to 32 characters of a-z, 0-9 and '-', \
         beginning and ending with a letter or digit"
    )]
    Name {
        /// The name at fault.
        name: String,
    },
    /// A value of the configuration is out of range.
    #[error("cannot build a lab with {field} {value}: {remedy}")]
    Config {
        /// The field at fault.
        field: &'static str,
        /// Its value.
        value: String,
        /// What would be right.
        remedy: String,
    },
    /// A lab of this name is up already, or left something behind.
    #[error(
        "cannot create the lab {name}: {what} exists already; remove it with `takt lab down {name}`"
    )]
    Exists {
        /// The lab's name.
        name: String,
        /// The namespace or record in the way.
        what: String,
    },
    /// No lab of this name.
    #[error(
        "cannot find the lab {name}: there is neither a record nor a namespace of it; `takt lab list` shows what there is"
    )]
    NotFound {
        /// The lab's name.
        name: String,
    },
    /// A program of iproute2 refused.
    #[error("cannot {purpose}: {program} said {said:?}{remedy}")]
    Command {
        /// What was being done.
        purpose: String,
        /// `ip` or `tc`.
        program: &'static str,
        /// Its error output, or its exit status when it said nothing.
        said: String,
        /// What to do about it, with its separator; may be empty.
        remedy: &'static str,
    },
    /// A program of iproute2 could not be started.
    #[error("cannot {purpose}: cannot run {program}: {source}; install iproute2")]
    Program {
        /// What was being done.
        purpose: String,
        /// `ip` or `tc`.
        program: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// A link did not become operational.
    #[error(
        "cannot bring up {interface} of {namespace}: its state is {state:?} after {waited_ms} ms; see `ip -n {namespace} link`"
    )]
    Link {
        /// The interface.
        interface: String,
        /// Its namespace.
        namespace: String,
        /// The last state the kernel reported.
        state: String,
        /// How long it was watched.
        waited_ms: u128,
    },
    /// `ip` described a link in an unknown way.
    #[error(
        "cannot read what ip says of {interface} in {namespace}: {source}; iproute2 5.0 or later is needed"
    )]
    Description {
        /// The interface.
        interface: String,
        /// Its namespace.
        namespace: String,
        /// Where it is not understood.
        source: serde_json::Error,
    },
    /// The record of a lab is not what this version writes.
    #[error(
        "cannot read the record {path}: {source}; remove the lab with `takt lab down` and its name"
    )]
    Record {
        /// The file.
        path: String,
        /// Where it is wrong.
        source: serde_json::Error,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was being done, with the path or name.
        action: String,
        /// The reason.
        source: io::Error,
    },
}

impl LabError {
    /// Wraps a failed system call with what was being done.
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }
}
