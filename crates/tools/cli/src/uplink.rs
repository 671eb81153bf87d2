//! `takt uplink`: what this host sends by an interface without Takt, inside the schedule of its link.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde::Serialize;
use takt_ingress::{Uplink as Link, UplinkOptions, uplink_status};
use takt_wire::ethernet::MacAddress;
use taktd::admin::proto::{
    Endpoint, GetStatusRequest, ListListenersRequest, ListNetworksRequest, Listener, Network,
    RemoveListenerRequest, SetListenerRequest,
};

use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Form, print, print_json};
use crate::signals::{readable_at_signal, tell_ready};
use crate::veth::Counter;

/// How long it may take to answer: the interface is not looked after meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the daemon is asked where its own datagrams come from, which changes when it is started with other lanes.
const ASKED: Duration = Duration::from_secs(1);

const HELP: &str = "\
A schedule is kept for what the runtime sends. What leaves the same interface by the kernel (this host's programs, pods,
virtual machines, through routes, tunnels and translation) is beside it, in the windows of others. This command takes it where
it would leave, and the runtime sends it in class 0, in order, as soon as the gates let it: downloads, image pulls, SSH.

The kernel's stay ARP, neighbour discovery, what is not IP, tagged frames, and frames from other MAC addresses than the
interface's (macvlan, ports of its bridge). WHERE CLASS 0 HAS NO WINDOW, NOTHING ELSE LEAVES THIS HOST. While the command or the
daemon is away, all is the kernel's again, beside the schedule. It costs throughput: single packets, one thread. The exit code
of `takt uplink status` is 0 while it is taken, and 6 while it is the kernel's.

It needs Linux 6.6 or later, CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON, a daemon with CAP_NET_RAW or with AF_XDP on the interface, and a
network on the interface in the daemon's configuration, in which the command makes a listener for itself:

  [[network]]
  name = \"line\"
  carrier = \"native\"
  interface = \"eth0\"

Examples:
  takt uplink attach --device eth0 --network line
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
    /// The native network on the interface, see `takt network list`
    #[arg(long, value_name = "NAME")]
    network: String,
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
struct Told<'a> {
    device: &'a str,
    /// Somebody is there to take it.
    attached: bool,
    /// And does.
    taking: bool,
    counters: Vec<Counter>,
}

impl Uplink {
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Attach(attach) => attach.run(),
            Action::Status(status) => status.run(),
        }
    }
}

/// Whether frames of a network leave by an interface, as they are.
fn check_network(daemon: &Daemon, device: &str, network: &str) -> Result<(), Failure> {
    let networks = daemon.ask(async |mut client| {
        let answer = client.list_networks(ListNetworksRequest {}).await?;
        Ok(answer.into_inner().networks)
    })?;
    let of_link = |other: &&Network| {
        other.name == network
            && !other.routed
            && other.vxlan.or(other.vlan).is_none()
            && other.interface == device
    };
    match networks.iter().find(of_link) {
        Some(_) => Ok(()),
        None => Err(Failure::Other(format!(
            "{network}: the daemon has no such network whose frames leave by {device} as they are: write into its configuration\n\n  \
             [[network]]\n  name = \"{network}\"\n  carrier = \"native\"\n  interface = \"{device}\"\n\n\
             and start it again, or name another one of `takt network list`"
        ))),
    }
}

/// The daemon, and the listener that it has for us.
struct Place {
    daemon: Daemon,
    listener: Listener,
}

impl Place {
    /// For an interface as it is now.
    fn of(daemon: Daemon, device: &str, network: String) -> Result<Self, Failure> {
        let endpoint = takt_ingress::uplink_endpoint(device, network)?;
        check_network(&daemon, device, &endpoint.network)?;
        let addresses = endpoint.addresses.iter();
        let addresses = addresses.map(|(address, prefix)| format!("{address}/{prefix}"));
        let path = daemon
            .socket()
            .with_file_name(format!("uplink-{device}.sock"));
        let listener = Listener {
            path: path.to_string_lossy().into_owned(),
            mode: 0o600,
            identity: format!("uplink {device}"),
            classes: vec![0],
            endpoint: Some(Endpoint {
                network: endpoint.network,
                mac: MacAddress(endpoint.mac).to_string(),
                addresses: addresses.collect(),
                mtu: endpoint.mtu.into(),
                ..Endpoint::default()
            }),
            ..Listener::default()
        };
        Ok(Self { daemon, listener })
    }

    /// Makes the listener: at the `begin` also in the place of one of an interface that has changed, later where there is none any more, as
    /// after the daemon has been started again. Where the datagrams of its own datapaths of the kernel come from.
    fn prepare(&self, begin: bool) -> Result<Vec<SocketAddr>, Failure> {
        self.daemon.ask_within(PATIENCE, async |mut client| {
            let there = client.list_listeners(ListListenersRequest {}).await?;
            let there = there.into_inner().listeners.into_iter();
            let mut there = there.filter_map(|status| status.listener);
            if begin || !there.any(|listener| listener.path == self.listener.path) {
                let listener = Some(self.listener.clone());
                let request = SetListenerRequest {
                    listener,
                    ..SetListenerRequest::default()
                };
                client.set_listener(request).await?;
            }
            let answer = client.get_status(GetStatusRequest {}).await?;
            let node = answer.into_inner().node.unwrap_or_default();
            let ports = node.lanes.iter().flat_map(|lane| &lane.ports);
            let of_kernel = ports.filter(|port| port.datapath == "udp");
            let own = of_kernel.filter_map(|port| port.local.parse().ok());
            Ok(own.collect())
        })
    }

    /// Takes the listener away, if the daemon is there.
    fn remove(self) {
        let path = self.listener.path;
        let request = RemoveListenerRequest { path };
        let _ = self.daemon.ask_within(PATIENCE, async |mut client| {
            client.remove_listener(request).await?;
            Ok(())
        });
    }
}

impl Attach {
    fn run(self) -> Result<(), Failure> {
        let device = self.device.device;
        let stop = readable_at_signal()?;
        let place = Place::of(self.daemon, &device, self.network)?;
        let done = take(&device, &place, stop);
        place.remove();
        done
    }
}

fn take(device: &str, place: &Place, stop: impl AsFd) -> Result<(), Failure> {
    let own = place.prepare(true)?;
    let link = Link::new(&UplinkOptions {
        device: device.to_owned(),
        socket: Some(place.listener.path.clone().into()),
        own,
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
        place.prepare(false).ok()
    };
    Ok(link.run(stop, own)?)
}

impl Status {
    fn run(self) -> Result<(), Failure> {
        let device = self.device.device;
        let status = uplink_status(&device)?;
        let attached = status.is_some();
        let taking = status.as_ref().is_some_and(|status| status.taking);
        let counters = Counter::all(status.map(|status| status.counters).unwrap_or_default());
        let text = match (taking, attached) {
            (true, _) => "is taken, for class 0",
            (false, true) => {
                "is the kernel's, beside any schedule: what takes it has given no sign of itself for 5 s"
            }
            (false, false) => "is the kernel's, beside any schedule",
        };
        match self.form.json {
            true => print_json(&Told {
                device: &device,
                attached,
                taking,
                counters,
            })?,
            false => print(&format!(
                "{device}: what leaves without Takt {text}\n{}",
                Counter::table(&counters)
            ))?,
        }
        match taking {
            true => Ok(()),
            false => Err(Failure::Insufficient(format!(
                "nobody takes what leaves by {device}: `takt uplink attach --device {device} --network NAME` does"
            ))),
        }
    }
}
