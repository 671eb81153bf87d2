//! What a daemon answers.

use std::path::Path;

use taktd::admin::client::{Client, ConnectError, connect};
use taktd::admin::proto::{
    GetStatusRequest, ListDatapathsRequest, ListPeersRequest, Node, Peer, PeerState,
};

use super::{Finding, Level};
use crate::admin::{block_on, listening_process};
use crate::failure::Failure;

/// Asks the daemon at `socket`. Returns its process, too.
pub fn examine(socket: &Path) -> (Vec<Finding>, Option<i32>) {
    let pid = listening_process(socket);
    let answer = block_on(async {
        match connect(socket).await {
            Ok(mut client) => ask(&mut client).await,
            Err(error) => Ok(vec![unreachable(&error)]),
        }
    });
    let findings = answer.unwrap_or_else(|error| {
        vec![
            Finding::new(
                Level::Problem,
                "daemon",
                format!("it does not answer: {error}"),
            )
            .remedy("see its log: `journalctl -u taktd`"),
        ]
    });
    (findings, pid)
}

fn unreachable(error: &ConnectError) -> Finding {
    let text = error.to_string();
    let (found, remedy) = text.split_once(": ").unwrap_or((&text, ""));
    let finding = Finding::new(Level::Warning, "daemon", found);
    match error {
        ConnectError::NoDaemon { .. } => finding.remedy(format!(
            "{remedy}; without one, programs of one user on this machine find each other"
        )),
        _ => finding.remedy(remedy),
    }
}

async fn ask(client: &mut Client) -> Result<Vec<Finding>, Failure> {
    let status = client.get_status(GetStatusRequest {}).await?.into_inner();
    let node = status.node.unwrap_or_default();
    let mut findings = vec![daemon(&node)];
    let datapaths = client.list_datapaths(ListDatapathsRequest {}).await?;
    for datapath in datapaths.into_inner().datapaths {
        findings.push(if datapath.available {
            Finding::new(
                Level::Ok,
                "datapath",
                format!("{}: {}", datapath.name, datapath.detail),
            )
        } else {
            let (found, remedy) = datapath
                .reason
                .split_once(": ")
                .unwrap_or((&datapath.reason, "see `takt status datapaths`"));
            Finding::new(
                Level::Warning,
                "datapath",
                format!("{} is unavailable: {found}", datapath.name),
            )
            .remedy(remedy)
        });
    }
    let peers = client.list_peers(ListPeersRequest {}).await?;
    findings.extend(self::peers(&peers.into_inner().peers));
    let strangers = node.peering.unwrap_or_default().strangers;
    if strangers > 0 {
        findings.push(
            Finding::new(
                Level::Warning,
                "peers",
                format!("{strangers} datagram(s) of nodes that are no peers were refused"),
            )
            .remedy("if they are to be peers: `takt peer add ADDRESS`, on both nodes"),
        );
    }
    Ok(findings)
}

fn daemon(node: &Node) -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    let found = format!("{} at {}, taktd {}", node.name, node.address, node.version);
    if node.version == own {
        Finding::new(Level::Ok, "daemon", found)
    } else {
        Finding::new(Level::Warning, "daemon", found).remedy(format!(
            "this command is of version {own}: restart the daemon after an upgrade"
        ))
    }
}

fn peers(peers: &[Peer]) -> Vec<Finding> {
    let mut up = Vec::new();
    let mut findings = Vec::new();
    for peer in peers {
        if peer.state() == PeerState::Up {
            up.push(format!("{} ({})", peer.address, peer.name));
            continue;
        }
        findings.push(
            Finding::new(
                Level::Problem,
                "peers",
                format!(
                    "{} has not answered {} hello(s)",
                    peer.address, peer.attempts
                ),
            )
            .remedy(
                "there: does a daemon run, does `takt peer list` show this node, does the firewall \
                 let UDP pass to its port and those behind it, has each node the key of the other \
                 (`takt key show`), or both the group's?",
            ),
        );
    }
    if !up.is_empty() {
        findings.push(Finding::new(
            Level::Ok,
            "peers",
            format!("up: {}", up.join(", ")),
        ));
    }
    findings
}
