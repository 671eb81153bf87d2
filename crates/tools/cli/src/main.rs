//! The `takt` command: runs, watches and administers a node, and tries channels by hand.
//!
//! One module per command; [`command`] has the tree of them. What a command prints goes through [`output`], what
//! goes wrong through [`failure`], which knows the exit codes. Not for tests of the system: `takt bench`.

#![forbid(unsafe_code)]

mod admin;
mod application;
mod balance;
mod bench;
mod capture;
mod channel;
mod clock;
mod command;
mod completions;
mod daemon;
mod datapaths;
mod demo;
mod doctor;
mod failure;
mod guest;
mod key;
mod kube;
mod lab;
mod listener;
mod manifest;
mod manual;
mod monitor;
mod network;
mod output;
mod peer;
mod preload;
mod publish;
mod reload;
mod reserve;
mod schedule;
mod session;
mod signals;
mod simulate;
mod stamp;
mod status;
mod stream;
mod subscribe;
mod time;
mod top;
mod topic;
mod uplink;
mod usage;
mod veth;
mod web;

use std::process::ExitCode;

use clap::FromArgMatches;

fn main() -> ExitCode {
    let parsed = command::command()
        .try_get_matches()
        .and_then(|matches| command::Arguments::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => return ExitCode::from(usage::explain(&error)),
    };
    match arguments.command.run() {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
