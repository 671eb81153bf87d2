//! `takt veth`: launch times of programs that cannot be preloaded, at the host's end of their pod's veth.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use takt_ingress::{Attachment, ClassFrom, Options};

use crate::failure::Failure;
use crate::output::{Align, Form, print, print_json, table};
use crate::signals::{readable_at_signal, tell_ready};

const HELP: &str = "\
For programs that `takt preload` cannot serve: statically linked ones, programs in Go, io_uring, system calls made by
hand. Nothing is put into the pod. Packets that its programs send with a launch time (SO_TXTIME) are taken at the
host's end of its veth and leave at that time, by way of the runtime of this node; everything else is the kernel's,
untouched, and beside any schedule, unless --all takes that too. Linux 6.11 or later; CAP_NET_ADMIN and CAP_BPF, and CAP_SYS_ADMIN and CAP_SYS_PTRACE for times by
CLOCK_REALTIME and for --required.

Examples:
  takt veth attach --device veth1a2b3c --socket /run/takt/line.sock
  takt veth attach --device veth1a2b3c --socket /run/takt/line.sock --required --class 5
  takt veth attach --device veth1a2b3c --socket /run/takt/line.sock --all
  takt veth attach --device veth1a2b3c --socket /run/takt/line.sock --cgroup /sys/fs/cgroup/line.slice
  takt veth status --device veth1a2b3c
  takt veth detach --device veth1a2b3c";

/// Takes launch times at the host's end of a pod's veth.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Veth {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Take packets that have a launch time, until a signal ends it
    Attach(Attach),
    /// Show what is taken, and what became of it
    Status(Status),
    /// Let packets with a launch time pass again that an earlier --required has dropped
    Detach(Detach),
}

#[derive(Debug, Args)]
struct Attach {
    #[command(flatten)]
    device: Device,
    /// The pod's socket of the runtime: what its listener may send, and where to [default: $TAKT_SOCKET, or
    /// /run/takt/takt.sock]
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// Drop packets with a launch time that the runtime does not send, instead of leaving them to the kernel. This holds until `takt veth
    /// detach`, also when the command has ended
    #[arg(long)]
    required: bool,
    /// Their traffic class: 0 to 7 for all of them, or `dscp` for the class selector of each packet's DSCP, which programs set by IP_TOS.
    /// SO_PRIORITY does not leave the pod
    #[arg(long, value_name = "CLASS", default_value = "dscp", value_parser = class)]
    class: ClassFrom,
    /// The pod's directory below the mount of cgroup v2: its programs may name CLOCK_TAI (SO_TXTIME) without CAP_NET_ADMIN, as long as the
    /// command runs. Without it they name CLOCK_MONOTONIC
    #[arg(long, value_name = "DIRECTORY")]
    cgroup: Option<PathBuf>,
    /// Take what has no launch time as well, TCP too unless the node follows connections strictly, so that it is inside the schedule of the link and not beside it: it leaves in class 0
    /// as soon as the gates and the priority of others let it. What does not go to one station of the network is the kernel's, as before.
    /// The pod's kernel makes segments of TCP itself meanwhile. Needs a listener with class 0 and one session more
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Args)]
struct Status {
    #[command(flatten)]
    device: Device,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Args)]
struct Detach {
    #[command(flatten)]
    device: Device,
}

#[derive(Debug, Args)]
struct Device {
    /// The host's end of the pod's veth
    #[arg(long, value_name = "INTERFACE")]
    device: String,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Told {
    device: String,
    taking: bool,
    required: bool,
    all: bool,
    tcp: bool,
    counters: Vec<Counter>,
}

#[derive(Debug, Serialize)]
pub struct Counter {
    name: &'static str,
    packets: u64,
}

impl Counter {
    /// Of what the programs count.
    pub fn all(counters: Vec<(&'static str, u64)>) -> Vec<Self> {
        let counters = counters.into_iter();
        let counters = counters.map(|(name, packets)| Self { name, packets });
        counters.collect()
    }

    /// For people; nothing where nothing is counted.
    pub fn table(counters: &[Self]) -> String {
        let columns = [("packets", Align::Left), ("count", Align::Right)];
        let row = |counter: &Self| vec![counter.name.to_owned(), counter.packets.to_string()];
        match counters.is_empty() {
            true => String::new(),
            false => table(&columns, counters.iter().map(row).collect()),
        }
    }
}

impl Veth {
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Attach(attach) => attach.run(),
            Action::Status(status) => status.run(),
            Action::Detach(Detach {
                device: Device { device },
            }) => {
                let text = match takt_ingress::lift(&device)? {
                    true => "packets with a launch time pass again unless they are taken",
                    false => {
                        "nothing to detach: packets with a launch time pass unless they are taken"
                    }
                };
                print(&format!("{device}: {text}\n"))
            }
        }
    }
}

impl Attach {
    fn run(self) -> Result<(), Failure> {
        let device = self.device.device;
        let stop = readable_at_signal()?;
        let options = Options {
            device: device.clone(),
            socket: self.socket,
            required: self.required,
            class: self.class,
            cgroup: self.cgroup,
            all: self.all,
        };
        let attachment = Attachment::new(&options)?;
        if let Some(why) = attachment.without_realtime() {
            eprintln!("takt: warning: {why}");
        }
        if attachment.leaves_tcp() {
            eprintln!(
                "takt: warning: TCP stays the kernel's, beside the schedule: connections are followed on this node, and rules such as \
                 kube-proxy's would drop replies to what they have not seen; `sysctl net.netfilter.nf_conntrack_tcp_be_liberal=1` \
                 (kube-proxy: conntrack.tcpBeLiberal) lets it be taken"
            );
        }
        let otherwise = match self.required {
            true => "is dropped",
            false => "goes the kernel's way",
        };
        let all = match self.all {
            true => " and what has none",
            false => "",
        };
        print(&format!(
            "{device}: taking launch times{all}; what has one and the runtime does not send {otherwise}\n"
        ))?;
        tell_ready();
        Ok(attachment.run(stop)?)
    }
}

impl Status {
    fn run(self) -> Result<(), Failure> {
        let device = self.device.device;
        let status = takt_ingress::status(&device)?;
        let counters = Counter::all(status.counters);
        if self.form.json {
            return print_json(&Told {
                device,
                taking: status.taking,
                required: status.required,
                all: status.all,
                tcp: status.tcp,
                counters,
            });
        }
        let text = match (status.taking, status.required) {
            (true, false) => {
                "launch times are taken; what the runtime does not send goes the kernel's way"
            }
            (true, true) => "launch times are taken; what the runtime does not send is dropped",
            (false, true) => {
                "nobody takes launch times, and what has one is dropped: run `takt veth attach --required`, or lift that by `takt veth detach`"
            }
            (false, false) => "nobody takes launch times: what has one goes the kernel's way",
        };
        let counters = Counter::table(&counters);
        let all = match (status.all, status.tcp) {
            (true, true) => "; what has none is sent by the runtime too",
            (true, false) => "; what has none is sent by the runtime too, but TCP is the kernel's",
            (false, _) => "",
        };
        print(&format!("{device}: {text}{all}\n{counters}"))
    }
}

/// Packets with a tag are not taken at a veth, so that a frame's class is that of its DSCP.
fn class(text: &str) -> Result<ClassFrom, &'static str> {
    match text {
        "dscp" => Ok(ClassFrom::Frame),
        number => number
            .parse()
            .ok()
            .filter(|class| *class != ClassFrom::Frame)
            .ok_or("neither a class from 0 to 7 nor `dscp`"),
    }
}
