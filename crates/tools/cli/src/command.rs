//! The tree of commands.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::failure::Failure;
use crate::{
    balance, bench, capture, channel, clock, completions, daemon, datapaths, demo, doctor, guest,
    key, kube, lab, listener, manual, monitor, network, peer, preload, publish, reload, reserve,
    schedule, session, simulate, stamp, status, stream, subscribe, top, topic, uplink, veth,
};

const HELP: &str = "\
Exit codes:
  0  done
  1  failed: the message says why and what to do
  2  wrong arguments
  3  no daemon answers
  4  the configuration, the schedule, the rules or the task set cannot be read or is at fault
     (`takt run`, `takt check`, `takt schedule`, `takt health`, `takt monitor`, `takt reserve`)
  5  two schedules differ (`takt schedule diff`)
  6  the reservation does not suffice, or none does (`takt reserve`)

Environment:
  TAKT_ADMIN_SOCKET  socket of the admin API
  TAKT_SOCKET        socket for applications (`pub`, `sub`, `topic`, `stream`, `preload`, `veth`, `guest`)
  without them       the user's own node ($XDG_RUNTIME_DIR/takt), then the system's (/run/takt)

Examples:
  takt run --config takt.toml      a node in the foreground
  takt status                      what it does
  takt top                         what it does, live
  takt sub weather                 print the messages of a channel, by name or number
  takt pub weather hello           write one; both work without a daemon on one machine";

/// Deterministic, accelerated networking as a service: runs, watches and administers a node of Takt.
#[derive(Debug, Parser)]
#[command(name = "takt", version, after_help = HELP, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

/// The commands, in the order of the help.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon in the foreground
    Run(daemon::Run),
    /// Check a configuration and print what would run
    Check(daemon::Check),
    /// Look at what Takt depends on here, and say what to do
    Doctor(doctor::Doctor),
    /// Show which technologies a node has, which it could have, and why not the others
    Datapaths(datapaths::Datapaths),
    /// Show what a node has and does
    Status(status::Status),
    /// Show what a node does, live
    Top(top::Top),
    /// Read the configuration again and put in force what can change
    Reload(reload::Reload),
    /// Add, remove and list other nodes
    Peer(peer::Peer),
    Key(key::Key),
    /// Set, remove and list sockets for applications
    Listener(listener::Listener),
    /// Show networks, and enter where their stations are
    Network(network::Network),
    /// Show channels, and have another datapath carry one
    Channel(channel::Channel),
    /// List, move and end sessions of applications
    Session(session::Session),
    /// Show or write what tenants send and get past the kernel
    Capture(capture::Capture),
    /// Write messages on a channel
    Pub(publish::Publish),
    /// Read the messages of a channel
    Sub(subscribe::Subscribe),
    /// Publish and subscribe by topic, and see who does
    Topic(topic::TopicCommand),
    /// Send and receive frames, as of cameras
    Stream(stream::StreamCommand),
    /// Show how good the clock is that launch times and gates go by
    Clock(clock::Clock),
    /// Run a program whose datagrams leave at the times that it names
    Preload(preload::Preload),
    /// Take launch times of programs that cannot be preloaded
    Veth(veth::Veth),
    /// Take what this host sends by an interface without Takt into the schedule of its link
    Uplink(uplink::Uplink),
    Guest(guest::Guest),
    /// Show the time-sensitive pods of a Kubernetes cluster, as `kubectl takt` does
    Kube(kube::Kube),
    /// Check, show, convert and compare schedules in files
    Schedule(schedule::Schedule),
    /// Find, check and ask for CPU reservations
    Reserve(reserve::Reserve),
    /// Watch the health of every flow of a capture or an interface
    Monitor(monitor::Monitor),
    /// Put the time behind packets of others, for who watches them at the other end
    Stamp(stamp::Stamp),
    /// Check and learn what flows are to keep to
    Health(monitor::Health),
    /// Move the flows of any service between processors and neighbours, in order
    Balance(balance::Balance),
    /// Find by simulation what load management saves
    Simulate(simulate::Simulate),
    /// Make and remove hosts in network namespaces
    Lab(lab::Lab),
    /// Measure Takt beside its peers
    Bench(bench::Bench),
    /// An isochronous talker with Takt beside bare metal and Flannel, in two minutes
    Demo(demo::Demo),
    /// One side of a measurement, in a process that `takt bench` starts
    #[command(hide = true)]
    BenchApp(bench::Application),
    /// One program of the isochronous experiment, in a process that `takt bench` starts
    #[command(hide = true)]
    BenchSocket(bench::SocketProgram),
    /// Print completions for a shell
    Completions(completions::Completions),
    /// Write the manual pages of `takt`, its commands and `taktd`
    #[command(hide = true)]
    ManPages(manual::ManPages),
}

impl Command {
    /// Does it.
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Self::Run(run) => run.run(),
            Self::Check(check) => check.run(),
            Self::Doctor(doctor) => doctor.run(),
            Self::Datapaths(datapaths) => datapaths.run(),
            Self::Status(status) => status.run(),
            Self::Top(top) => top.run(),
            Self::Reload(reload) => reload.run(),
            Self::Peer(peer) => peer.run(),
            Self::Key(key) => key.run(),
            Self::Listener(listener) => listener.run(),
            Self::Network(network) => network.run(),
            Self::Channel(channel) => channel.run(),
            Self::Session(session) => session.run(),
            Self::Capture(capture) => capture.run(),
            Self::Pub(publish) => publish.run(),
            Self::Sub(subscribe) => subscribe.run(),
            Self::Topic(topic) => topic.run(),
            Self::Stream(stream) => stream.run(),
            Self::Clock(clock) => clock.run(),
            Self::Preload(preload) => preload.run(),
            Self::Veth(veth) => veth.run(),
            Self::Uplink(uplink) => uplink.run(),
            Self::Guest(guest) => guest.run(),
            Self::Kube(kube) => kube.run(),
            Self::Schedule(schedule) => return schedule.run(),
            Self::Reserve(reserve) => reserve.run(),
            Self::Monitor(monitor) => monitor.run(),
            Self::Stamp(stamp) => stamp.run(),
            Self::Health(health) => health.run(),
            Self::Balance(balance) => balance.run(),
            Self::Simulate(simulate) => simulate.run(),
            Self::Lab(lab) => lab.run(),
            Self::Bench(bench) => bench.run(),
            Self::Demo(demo) => demo.run(),
            Self::BenchApp(application) => application.run(),
            Self::BenchSocket(program) => program.run(),
            Self::Completions(completions) => completions.run(),
            Self::ManPages(pages) => pages.run(),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The commands, with the texts behind their help as paragraphs: the terminal breaks them.
pub fn command() -> clap::Command {
    fn walk(mut command: clap::Command) -> clap::Command {
        if let Some(text) = command.get_after_help() {
            let text = paragraphs(&text.to_string());
            command = command.after_help(text);
        }
        command.mut_subcommands(walk)
    }
    walk(Arguments::command())
}

/// Joins lines that were broken in a paragraph; indented ones, and what follows a colon, stay as they are.
fn paragraphs(text: &str) -> String {
    let mut out = String::new();
    let mut open = false;
    for line in text.lines() {
        let plain = !line.is_empty() && !line.starts_with(' ');
        if !out.is_empty() {
            out.push(if open && plain { ' ' } else { '\n' });
        }
        out.push_str(line);
        open = plain && !line.ends_with(':');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_joined_and_lists_are_not() {
        let text = "One\ntwo.\n\nExamples:\n  takt a\n  takt b\nEnd";
        assert_eq!(
            paragraphs(text),
            "One two.\n\nExamples:\n  takt a\n  takt b\nEnd"
        );
    }

    #[test]
    fn the_tree_of_commands_is_consistent() {
        command().debug_assert();
    }

    /// Every command's long help, as the reference prints it.
    fn reference() -> String {
        fn walk(command: &mut clap::Command, path: &str, text: &mut String) {
            let heading = if path.contains(' ') { "##" } else { "#" };
            let help = command
                .clone()
                .term_width(100)
                .render_long_help()
                .to_string();
            let help: Vec<&str> = help.lines().map(str::trim_end).collect();
            text.push_str(&format!(
                "\n{heading} `{path}`\n\n```text\n{}\n```\n",
                help.join("\n").trim_end()
            ));
            let names: Vec<String> = command
                .get_subcommands()
                .filter(|sub| sub.get_name() != "help")
                .map(|sub| sub.get_name().to_owned())
                .collect();
            for name in names {
                if let Some(sub) = command.find_subcommand_mut(&name) {
                    walk(sub, &format!("{path} {name}"), text);
                }
            }
        }
        let mut text = String::from(
            "<!-- The help of the commands, written by a test of crates/tools/cli: TAKT_WRITE_REFERENCE=1 cargo test -p takt-cli -->\n",
        );
        let mut command = command().version("");
        command.build();
        walk(&mut command, "takt", &mut text);
        text
    }

    #[test]
    fn pipelines_go_on_in_the_next_line_for_shells_too() {
        let how_to = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../docs/how-to/first-stream.md"
        );
        let how_to = std::fs::read_to_string(how_to).expect("the how-to");
        let reference = reference();
        let mut helps = reference.split("\n## ");
        let serve = helps.find(|help| help.starts_with("`takt stream serve`"));
        for text in [&how_to, serve.expect("the command's help")] {
            assert!(text.contains("gst-launch-1.0"), "{text}");
            let broken = text.lines().find(|line| line.ends_with(" !"));
            assert_eq!(broken, None);
        }
    }

    #[test]
    fn the_reference_is_the_help_of_the_commands() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../docs/reference/cli.md"
        );
        let text = reference();
        if std::env::var_os("TAKT_WRITE_REFERENCE").is_some() {
            std::fs::write(path, &text).expect("write the reference");
        }
        let written = std::fs::read_to_string(path).expect("the reference");
        assert!(
            written == text,
            "{path} is not the present help: run TAKT_WRITE_REFERENCE=1 cargo test -p takt-cli"
        );
    }
}
