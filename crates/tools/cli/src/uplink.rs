//! `takt uplink`: what this host sends by an interface without Takt, inside the schedule of its link.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde::Serialize;
use takt_ingress::{Uplink as Link, UplinkOptions, uplink_status};
use taktd::admin::proto::GetStatusRequest;

use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Align, Form, print, print_json, table};
use crate::signals::{readable_at_signal, tell_ready};

/// How often the daemon is asked where its own datagrams come from, which changes when it is started with other lanes.
const ASKED: Duration = Duration::from_secs(1);

const HELP: &str = "\
A schedule is kept for what the runtime sends. What leaves the same interface by the kernel (this host's programs, pods,
virtual machines, through routes, tunnels and translation) is beside it, in the windows of others. This command takes it where
it would leave, and the runtime sends it in class 0, in order, as soon as the gates let it: downloads, image pulls, SSH.

The kernel's stay ARP, neighbour discovery, what is not IP, tagged frames, and frames from other MAC addresses than the
interface's (macvlan, ports of its bridge). WHERE CLASS 0 HAS NO WINDOW, NOTHING ELSE LEAVES THIS HOST. While the command or the
daemon is away, all is the kernel's again, beside the schedule. It costs throughput: single packets, one thread.

It needs Linux 6.11 or later, CAP_NET_ADMIN and CAP_BPF, a daemon with CAP_NET_RAW or AF_XDP on the interface, and
a listener of its own in the daemon's configuration:

  [[network]]
  name = \"line\"
  carrier = \"native\"
  interface = \"eth0\"

  [[listener]]
  path = \"/run/takt/uplink.sock\"
  mode = \"0600\"
  identity = \"uplink\"
  classes = [0]
  [listener.endpoint]
  network = \"line\"
  mac = \"02:00:00:00:00:01\"                    # eth0's
  addresses = [\"0.0.0.0/0\", \"::/0\"]
  mtu = 1500

Examples:
  takt uplink attach --device eth0 --socket /run/takt/uplink.sock
  takt uplink status --device eth0
  takt uplink status --device eth0 --json | jq .taking";

/// Takes what this host sends by an interface without Takt into the schedule of its link.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Uplink {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Take what would leave, until a signal ends it
    Attach(Attach),
    /// Show whether it is taken, and what became of it
    Status(Status),
}

#[derive(Debug, Args)]
struct Attach {
    #[command(flatten)]
    device: Device,
    /// The listener whose endpoint is the interface [default: $TAKT_SOCKET, or /run/takt/takt.sock]
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, Args)]
struct Status {
    #[command(flatten)]
    device: Device,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Args)]
struct Device {
    /// The interface whose link has the schedule
    #[arg(long, value_name = "INTERFACE")]
    device: String,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Told {
    device: String,
    taking: bool,
    counters: Vec<Counter>,
}

#[derive(Debug, Serialize)]
struct Counter {
    name: &'static str,
    packets: u64,
}

impl Uplink {
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Attach(attach) => attach.run(),
            Action::Status(status) => status.run(),
        }
    }
}

/// Where the datagrams of the daemon's own datapaths of the kernel come from.
fn own(daemon: &Daemon) -> Result<Vec<SocketAddr>, Failure> {
    daemon.ask(async |mut client| {
        let answer = client.get_status(GetStatusRequest {}).await?;
        let node = answer.into_inner().node.unwrap_or_default();
        let ports = node.lanes.iter().flat_map(|lane| &lane.ports);
        let of_kernel = ports.filter(|port| port.datapath == "udp");
        let mut own: Vec<SocketAddr> = of_kernel
            .filter_map(|port| port.local.parse().ok())
            .collect();
        own.sort_unstable();
        own.dedup();
        Ok(own)
    })
}

impl Attach {
    fn run(self) -> Result<(), Failure> {
        let device = self.device.device;
        let stop = readable_at_signal()?;
        let link = Link::new(&UplinkOptions {
            device: device.clone(),
            socket: self.socket,
            own: own(&self.daemon)?,
        })?;
        print(&format!(
            "{device}: taking what leaves without Takt, for class 0; while the daemon is away it is the kernel's\n"
        ))?;
        tell_ready();
        let mut next = Instant::now() + ASKED;
        let own = || {
            let now = Instant::now();
            if now < next {
                return None;
            }
            next = now + ASKED;
            own(&self.daemon).ok()
        };
        Ok(link.run(stop, own)?)
    }
}

impl Status {
    fn run(self) -> Result<(), Failure> {
        let device = self.device.device;
        let counters = uplink_status(&device)?;
        if self.form.json {
            return print_json(&Told {
                device,
                taking: counters.is_some(),
                counters: counters
                    .into_iter()
                    .flatten()
                    .map(|(name, packets)| Counter { name, packets })
                    .collect(),
            });
        }
        let Some(counters) = counters else {
            return print(&format!(
                "{device}: what leaves without Takt is the kernel's, beside any schedule\n"
            ));
        };
        let columns = [("packets", Align::Left), ("count", Align::Right)];
        let rows = counters.iter();
        let rows = rows.map(|(name, count)| vec![(*name).to_owned(), count.to_string()]);
        let counters = table(&columns, rows.collect());
        print(&format!(
            "{device}: what leaves without Takt is taken, for class 0\n{counters}"
        ))
    }
}
