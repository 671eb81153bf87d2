//! The one place that runs programs of iproute2.

use std::process::{Command, Stdio};

use crate::LabError;

/// Runs `ip` with `arguments`, in order to `purpose` (which completes the sentence "cannot …").
pub(crate) fn ip(purpose: &str, arguments: &[&str]) -> Result<String, LabError> {
    run(purpose, "ip", arguments)
}

/// Runs `bridge` with `arguments`, in order to `purpose`.
pub(crate) fn bridge(purpose: &str, arguments: &[&str]) -> Result<String, LabError> {
    run(purpose, "bridge", arguments)
}

/// Runs `tc` with `arguments`, in order to `purpose`.
pub(crate) fn tc(purpose: &str, arguments: &[&str]) -> Result<String, LabError> {
    run(purpose, "tc", arguments)
}

fn run(purpose: &str, program: &'static str, arguments: &[&str]) -> Result<String, LabError> {
    let output = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| LabError::Program {
            purpose: purpose.to_owned(),
            program,
            source,
        })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let complaint = complaint.trim();
    let said = if complaint.is_empty() {
        output.status.to_string()
    } else {
        complaint.to_owned()
    };
    let remedy = if rustix::process::geteuid().is_root() {
        ""
    } else {
        "; run as root"
    };
    Err(LabError::Command {
        purpose: purpose.to_owned(),
        program,
        said,
        remedy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_purpose_and_quotes_the_program() {
        let error = ip("count the moons", &["netns", "frobnicate"]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("cannot count the moons: ip said"),
            "{text}"
        );
        assert!(text.contains("frobnicate"), "{text}");
    }
}
