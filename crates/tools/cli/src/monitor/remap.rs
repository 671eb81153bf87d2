//! Which channels of the watched node another datapath carries, because rules say so.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use takt_health::key::{FlowKey, Way};
use taktd::admin::proto::{ListChannelsRequest, ListDatapathsRequest};

use super::source::Source;
use crate::admin::Daemon;
use crate::channel;
use crate::failure::Failure;

/// Tells the node, on a thread of its own: who watches waits for no answer.
pub struct Remap {
    wanted: Arc<Wanted>,
    teller: JoinHandle<()>,
}

/// What the node is to have. However often rules begin and end meanwhile, it is told what holds in the end.
#[derive(Default)]
struct Wanted {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// For how many flows of each channel a rule holds.
    held: HashMap<u64, u32>,
    /// Channels of which the node may have something else.
    untold: BTreeSet<u64>,
    ends: bool,
}

impl Wanted {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for something to tell: channels, and whether each is mapped. `None`: it is over.
    fn next(&self) -> Option<BTreeMap<u64, bool>> {
        let nothing = |state: &mut State| state.untold.is_empty() && !state.ends;
        let state = self.changed.wait_while(self.state(), nothing);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let untold = std::mem::take(&mut state.untold);
        let told = untold
            .into_iter()
            .map(|channel| (channel, state.held.contains_key(&channel)));
        let told: BTreeMap<u64, bool> = told.collect();
        (!told.is_empty()).then_some(told)
    }
}

/// Where somebody has mapped a channel; `None` also where the node does not say, which what follows finds out.
fn mapped_to(daemon: &Daemon, channel: u64) -> Option<String> {
    let request = ListChannelsRequest {
        first: channel,
        limit: 1,
    };
    let listed = daemon.ask(async |mut client| {
        let answer = client.list_channels(request).await?;
        Ok(answer.into_inner().channels)
    });
    let first = listed.ok()?.into_iter().next()?;
    (first.channel == channel && !first.datapath.is_empty()).then_some(first.datapath)
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
        let wanted = Arc::new(Wanted::default());
        let (daemon, datapath) = (source.daemon.clone(), datapath.to_owned());
        let told = Arc::clone(&wanted);
        let teller = std::thread::spawn(move || {
            let mut mapped = BTreeSet::new();
            while let Some(wanted) = told.next() {
                for (channel, wanted) in wanted {
                    if wanted == mapped.contains(&channel) {
                        continue;
                    }
                    if wanted && let Some(to) = mapped_to(&daemon, channel) {
                        eprintln!(
                            "takt: channel {channel} is mapped to {to} already, by hand or by another monitor: it stays so"
                        );
                        continue;
                    }
                    let to = if wanted { &*datapath } else { "" };
                    match channel::ask(&daemon, channel, to) {
                        Ok(_) if wanted => _ = mapped.insert(channel),
                        Ok(_) => _ = mapped.remove(&channel),
                        Err(failure) => {
                            eprintln!("takt: channel {channel} stays where it is: {failure}");
                        }
                    }
                }
            }
        });
        Ok(Self { wanted, teller })
    }

    /// A rule begins or ends for a flow. Only what this node sends is its own to carry.
    pub fn tell(&self, key: &FlowKey, begins: bool) {
        let Some(source) = key.channel_source().filter(|source| source.way == Way::To) else {
            return;
        };
        let mut state = self.wanted.state();
        let flows = state.held.entry(source.channel).or_default();
        *flows = match begins {
            true => *flows + 1,
            false => flows.saturating_sub(1),
        };
        if *flows == 0 {
            state.held.remove(&source.channel);
        }
        state.untold.insert(source.channel);
        self.wanted.changed.notify_one();
    }

    /// Maps everything back: nobody watches whether the rules still hold.
    pub fn finish(self) {
        let mut state = self.wanted.state();
        let held = std::mem::take(&mut state.held);
        state.untold.extend(held.into_keys());
        state.ends = true;
        drop(state);
        self.wanted.changed.notify_one();
        let _ = self.teller.join();
    }
}
