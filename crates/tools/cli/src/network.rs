//! `takt network`.

use clap::{Args, Subcommand};
use serde::Serialize;
use taktd::admin::proto::{
    self, ListNetworksRequest, RemoveStationRequest, SetStationRequest, Station,
};

use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Form, print, print_json};
use crate::status::{self, Listing};

const HELP: &str = "\
A network is a segment of Ethernet between endpoints of tenants on any nodes: a VXLAN (RFC 7348), or the
link itself. Networks are in the configuration as `[[network]]`; a tenant's endpoint is part of its
listener. A station is where frames can be sent to; in a VXLAN it is behind the tunnel endpoint of its
node. Stations that are entered here last until they are removed or the node stops; those of a device
that the network follows come and go with that device's forwarding table.

Examples:
  takt network list
  takt network set pods 02:00:00:00:00:07 --vtep 10.0.0.2 --address 10.244.2.7
  takt network set pods 00:00:00:00:00:00 --vtep 10.0.0.2     for unknown stations and groups
  takt network remove pods 02:00:00:00:00:07";

/// Shows networks, and enters where their stations are.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Network {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List networks with their stations and counters
    List(Listing),
    /// Enter a station, or change what is known of it
    Set(Set),
    /// Take a station out
    Remove(Remove),
}

#[derive(Debug, Args)]
struct Set {
    /// The network
    network: String,
    /// The station's MAC address; 00:00:00:00:00:00: whatever has no entry of its own, and groups
    mac: String,
    /// The tunnel endpoint that it is behind; none on a native network
    #[arg(long, value_name = "ADDRESS")]
    vtep: Option<String>,
    /// Its IP addresses: frames for them need no address resolution
    #[arg(long = "address", value_name = "ADDRESS", value_delimiter = ',')]
    addresses: Vec<String>,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Args)]
struct Remove {
    /// The network
    network: String,
    /// The station's MAC address
    mac: String,
    /// Only the entry with this tunnel endpoint
    #[arg(long, value_name = "ADDRESS")]
    vtep: Option<String>,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Serialize)]
struct Removed {
    network: String,
    mac: String,
    removed: bool,
}

impl Network {
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::List(list) => {
                let networks: Vec<proto::Network> = list.daemon.ask(async |mut client| {
                    let answer = client.list_networks(ListNetworksRequest {}).await?;
                    Ok(answer.into_inner().networks)
                })?;
                if list.form.json {
                    print_json(&networks)
                } else {
                    print(&status::networks(&networks))
                }
            }
            Action::Set(set) => set.run(),
            Action::Remove(remove) => remove.run(),
        }
    }
}

impl Set {
    fn run(self) -> Result<(), Failure> {
        let station = Station {
            mac: self.mac,
            vtep: self.vtep.unwrap_or_default(),
            addresses: self.addresses,
            followed: false,
        };
        let request = SetStationRequest {
            network: self.network.clone(),
            station: Some(station.clone()),
        };
        self.daemon.ask(async |mut client| {
            client.set_station(request).await?;
            Ok(())
        })?;
        if self.form.json {
            print_json(&station)
        } else {
            print(&format!(
                "station {} of {} set\n",
                station.mac, self.network
            ))
        }
    }
}

impl Remove {
    fn run(self) -> Result<(), Failure> {
        let Self { network, mac, .. } = self;
        let request = RemoveStationRequest {
            network: network.clone(),
            mac: mac.clone(),
            vtep: self.vtep.unwrap_or_default(),
        };
        let removed = self.daemon.ask(async |mut client| {
            Ok(client.remove_station(request).await?.into_inner().removed)
        })?;
        if self.form.json {
            let (network, mac) = (network.clone(), mac.clone());
            print_json(&Removed {
                network,
                mac,
                removed,
            })?;
        } else if removed {
            print(&format!("station {mac} of {network} removed\n"))?;
        }
        if removed {
            Ok(())
        } else {
            Err(Failure::Other(format!(
                "{network} has no station {mac} that was entered: see `takt network list`"
            )))
        }
    }
}
