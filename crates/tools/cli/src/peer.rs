//! `takt peer`.

use clap::{Args, Subcommand};
use serde::Serialize;
use taktd::admin::client::Client;
use taktd::admin::proto::{self, AddPeerRequest, ListPeersRequest, RemovePeerRequest};

use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Form, print, print_json};
use crate::status::{Listing, What};

const HELP: &str = "\
Peers that are added here last until they are removed or the node stops; write them into the
configuration as `[[peer]]` to keep them. An address without a port has 7400.

A peer proves who it is by its key (`takt key`), or by the key of the group.

Examples:
  takt peer add 10.0.0.2
  takt peer add 10.0.0.2 --key 3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=
  takt peer add 10.0.0.2 --key OLD --next-key NEW
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
    /// Add peers; one that is there already is left as it is, and with another key refused
    Add(Add),
    /// Remove peers and the routes to them
    Remove(Addresses),
    /// List peers
    List(Listing),
}

#[derive(Debug, Args)]
struct Add {
    /// The peer's public key, as `takt key show` prints it there; without it the peer has the key of the group
    #[arg(long, value_name = "PUBLIC_KEY")]
    key: Option<String>,
    /// Another public key, which the peer is going to have (`takt key rotate`): it may prove itself by either
    #[arg(long, value_name = "PUBLIC_KEY", requires = "key")]
    next_key: Option<String>,
    /// Let a peer that is there already have this key from now on; what is under way to it and from it is lost
    #[arg(long)]
    replace_key: bool,
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
                let next_key = add.next_key.unwrap_or_default();
                let done = add.addresses.each(async |client, address| {
                    let (key, next_key) = (key.clone(), next_key.clone());
                    if !add.replace_key {
                        has_no_other_key(client, &address, [&key, &next_key]).await?;
                    }
                    let request = AddPeerRequest {
                        address,
                        key,
                        next_key,
                    };
                    let answer = client.add_peer(request.clone()).await?;
                    if !add.replace_key {
                        return Ok(answer.into_inner().added);
                    }
                    // Also what was begun with a key that it has been left: it is not refused, and what is there goes.
                    let address = request.address.clone();
                    client.remove_peer(RemovePeerRequest { address }).await?;
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
            Action::List(list) => list.show(What::Peers),
        }
    }
}

/// Fails if the peer is there with another key.
async fn has_no_other_key(
    client: &mut Client,
    address: &str,
    keys: [&str; 2],
) -> Result<(), Failure> {
    let peers = client
        .list_peers(ListPeersRequest {})
        .await?
        .into_inner()
        .peers;
    // As the daemon has it: with a port.
    let same = |listed: &str| listed == address || listed.strip_suffix(":7400") == Some(address);
    match peers
        .iter()
        .find(|peer| peer.configured && same(&peer.address))
    {
        Some(peer) if !is_same(peer, keys) => Err(Failure::Other(format!(
            "peer {address} is there already, with {}: to let it have another one add --replace-key",
            match peer.key.as_str() {
                "" => "the key of the group".to_owned(),
                key => format!("the key {key}"),
            }
        ))),
        _ => Ok(()),
    }
}

/// Whether one of these keys is one that the peer has.
fn is_same(peer: &proto::Peer, [key, next_key]: [&str; 2]) -> bool {
    let has = [&*peer.key, &*peer.next_key];
    peer.key == key
        || [key, next_key]
            .iter()
            .any(|key| !key.is_empty() && has.contains(key))
}

impl Addresses {
    fn each(
        &self,
        mut job: impl AsyncFnMut(&mut Client, String) -> Result<bool, Failure>,
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
