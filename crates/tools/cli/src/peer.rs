//! `takt peer`.

use clap::{Args, Subcommand};
use serde::Serialize;
use taktd::admin::proto::{AddPeerRequest, ListPeersRequest, RemovePeerRequest};

use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Form, print, print_json};
use crate::status;

const HELP: &str = "\
Peers that are added here last until they are removed or the node stops; write them into the
configuration as `[[peer]]` to keep them. An address without a port has 7400.

A peer proves who it is by its key (`takt key`), or by the key of the group.

Examples:
  takt peer add 10.0.0.2
  takt peer add 10.0.0.2 --key 3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=
  takt peer add 10.0.0.2:7400 10.0.0.3:7400
  takt peer list --json | jq '.[] | select(.state != \"up\")'
  takt peer remove 10.0.0.2";

/// Adds, removes and lists other nodes.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Peer {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add peers; one that is there already is left as it is
    Add(Add),
    /// Remove peers and the routes to them
    Remove(Addresses),
    /// List peers
    List(List),
}

#[derive(Debug, Args)]
struct Add {
    /// The peer's public key, as `takt key show` prints it there; without it the peer has the key of the group
    #[arg(long, value_name = "PUBLIC_KEY")]
    key: Option<String>,
    #[command(flatten)]
    addresses: Addresses,
}

#[derive(Debug, Args)]
struct Addresses {
    /// Peering addresses, such as 10.0.0.2 or 10.0.0.2:7400
    #[arg(required = true, value_name = "ADDRESS")]
    addresses: Vec<String>,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

/// What became of one address.
#[derive(Debug, Serialize)]
struct Done {
    address: String,
    changed: bool,
}

impl Peer {
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Add(add) => {
                let key = add.key.unwrap_or_default();
                if !key.is_empty() && add.addresses.addresses.len() > 1 {
                    return Err(Failure::Other(
                        "a key belongs to one peer: add the others by themselves".into(),
                    ));
                }
                let done = add.addresses.each(async |client, address| {
                    let key = key.clone();
                    let request = AddPeerRequest { address, key };
                    Ok(client.add_peer(request).await?.into_inner().added)
                })?;
                report(&done, add.addresses.form, "added", "is there already")
            }
            Action::Remove(remove) => {
                let done = remove.each(async |client, address| {
                    let request = RemovePeerRequest { address };
                    Ok(client.remove_peer(request).await?.into_inner().removed)
                })?;
                report(&done, remove.form, "removed", "is not there")?;
                let missing = done.iter().filter(|done| !done.changed).count();
                if missing == 0 {
                    Ok(())
                } else {
                    Err(Failure::Other(format!(
                        "{missing} address(es) were no peers: see `takt peer list`"
                    )))
                }
            }
            Action::List(list) => {
                let peers = list.daemon.ask(async |mut client| {
                    Ok(client
                        .list_peers(ListPeersRequest {})
                        .await?
                        .into_inner()
                        .peers)
                })?;
                if list.form.json {
                    print_json(&peers)
                } else {
                    print(&status::peers(&peers))
                }
            }
        }
    }
}

impl Addresses {
    fn each(
        &self,
        mut job: impl AsyncFnMut(&mut taktd::admin::client::Client, String) -> Result<bool, Failure>,
    ) -> Result<Vec<Done>, Failure> {
        self.daemon.ask(async |mut client| {
            let mut all = Vec::new();
            for address in &self.addresses {
                let changed = job(&mut client, address.clone()).await?;
                let address = address.clone();
                all.push(Done { address, changed });
            }
            Ok(all)
        })
    }
}

fn report(all: &[Done], form: Form, changed: &str, unchanged: &str) -> Result<(), Failure> {
    if form.json {
        return print_json(&all);
    }
    let mut text = String::new();
    for done in all {
        let what = if done.changed { changed } else { unchanged };
        text.push_str(&format!("peer {} {what}\n", done.address));
    }
    print(&text)
}
