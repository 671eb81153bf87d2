//! `takt schedule`: schedules in files, and on a node.

mod check;
mod convert;
mod diff;
mod manifest;
mod node;
mod show;
mod source;
mod synthesize;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::failure::Failure;

const HELP: &str = "\
A schedule says when the gate of each traffic class of a port is open (IEEE 802.1Q, 8.6.8.4). It is
read and written in four forms:
  toml  Takt's own, see docs/concepts/schedule.md
  tc    a command line of Linux's taprio: `tc qdisc replace dev eth0 parent root taprio …`
  json  IEEE 802.1Qcw YANG (`gate-parameter-table` of ieee802-dot1q-sched), RFC 7951
  xml   the same in XML, with or without a NETCONF envelope

Examples:
  takt schedule check eth0.toml --rate 100mbit
  takt schedule show eth0.toml
  takt schedule convert eth0.sh --to toml --output eth0.toml
  takt schedule manifest eth0.sh --name line --datapath xdp --rate 1gbit | kubectl apply -f -
  takt schedule diff eth0.toml eth0-new.toml
  takt schedule synthesize plan.toml --output plan
  takt schedule install eth0-new.toml --datapath xdp
  takt schedule status";

/// Computes, checks, shows, converts and compares schedules in files, and installs them on a node.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Schedule {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Explain every mistake of a schedule
    Check(check::Check),
    /// Draw the gates over a cycle, with what each class gets
    Show(show::Show),
    /// Write a schedule in another form
    Convert(convert::Convert),
    /// Write a schedule as a GateSchedule of Kubernetes
    Manifest(manifest::Manifest),
    /// Say what changes from one schedule to another
    Diff(diff::Diff),
    /// Compute schedules and launch offsets from what streams require
    Synthesize(synthesize::Synthesize),
    /// Install a schedule on the link of a datapath of this node
    Install(node::Install),
    /// Open all gates of a link again
    Remove(node::Remove),
    /// Show the schedules that run, and what became of the frames of each class
    Status(node::Status),
}

impl Schedule {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self.action {
            Action::Check(check) => check.run(),
            Action::Show(show) => show.run(),
            Action::Convert(convert) => convert.run(),
            Action::Manifest(manifest) => manifest.run(),
            Action::Diff(diff) => return diff.run(),
            Action::Synthesize(synthesize) => synthesize.run(),
            Action::Install(install) => install.run(),
            Action::Remove(remove) => remove.run(),
            Action::Status(status) => status.run(),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
