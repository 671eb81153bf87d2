//! Which channels of the watched node another datapath carries, because rules say so.

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use takt_health::key::{FlowKey, Way};
use taktd::admin::client::connect;
use taktd::admin::proto::{ListDatapathsRequest, MapChannelRequest};

use super::source::Source;
use crate::admin::{Daemon, block_on};
use crate::failure::Failure;

/// Tells the node, on a thread of its own: who watches waits for no answer.
pub struct Remap {
    /// For how many flows of each channel a rule holds.
    held: Mutex<HashMap<u64, u32>>,
    /// A channel, and whether it is mapped.
    tell: Sender<(u64, bool)>,
    teller: JoinHandle<()>,
}

impl Remap {
    /// Channels go to this datapath of the node that is watched.
    pub fn open(source: &Source, datapath: &str) -> Result<Self, Failure> {
        let known = source.daemon.ask(async |mut client| {
            let answer = client.list_datapaths(ListDatapathsRequest {}).await?;
            Ok(answer.into_inner().datapaths)
        })?;
        if !known.iter().any(|known| known.name == datapath) {
            let have: Vec<_> = known.into_iter().map(|known| known.name).collect();
            return Err(Failure::Other(format!(
                "--remap {datapath}: the node has no such datapath; it has {}",
                have.join(", ")
            )));
        }
        let (tell, told) = channel();
        let (daemon, datapath) = (source.daemon.clone(), datapath.to_owned());
        let teller = std::thread::spawn(move || {
            for (channel, mapped) in told {
                let to = if mapped {
                    datapath.clone()
                } else {
                    String::new()
                };
                if let Err(failure) = map(&daemon, channel, to) {
                    eprintln!("takt: channel {channel} stays where it is: {failure}");
                }
            }
        });
        Ok(Self {
            held: Mutex::default(),
            tell,
            teller,
        })
    }

    /// A rule begins or ends for a flow. Only what this node sends is its own to carry.
    pub fn tell(&self, key: &FlowKey, begins: bool) {
        let Some(source) = key.channel_source().filter(|source| source.way == Way::To) else {
            return;
        };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let flows = held.entry(source.channel).or_default();
        let before = *flows > 0;
        *flows = match begins {
            true => *flows + 1,
            false => flows.saturating_sub(1),
        };
        let now = *flows > 0;
        if !now {
            held.remove(&source.channel);
        }
        if now != before {
            // The thread ends behind this alone.
            let _ = self.tell.send((source.channel, now));
        }
    }

    /// Maps everything back: nobody watches whether the rules still hold.
    pub fn finish(self) {
        let held = self
            .held
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        for channel in held.into_keys() {
            let _ = self.tell.send((channel, false));
        }
        drop(self.tell);
        let _ = self.teller.join();
    }
}

/// Has a node map a channel to a datapath, or, without one, back.
fn map(daemon: &Daemon, channel: u64, datapath: String) -> Result<(), Failure> {
    let socket = daemon.socket();
    let request = MapChannelRequest { channel, datapath };
    block_on(async {
        connect(&socket).await?.map_channel(request).await?;
        Ok(())
    })
}
