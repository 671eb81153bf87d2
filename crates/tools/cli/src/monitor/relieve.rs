//! Sessions of the watched node that leave their lanes, because rules say so.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use takt_health::key::{FlowKey, Way};
use taktd::admin::proto::RelieveChannelRequest;

use super::source::Source;
use crate::admin::Daemon;

/// Wishes that wait for the node at most. More of them say nothing new: a session that was moved stays for a while.
const MOST_WAITING: usize = 256;

/// Tells the node, on a thread of its own: who watches waits for no answer.
pub struct Relieve {
    wishes: SyncSender<RelieveChannelRequest>,
    teller: JoinHandle<()>,
}

fn tell(daemon: &Daemon, wishes: &Receiver<RelieveChannelRequest>) {
    for wish in wishes {
        let (channel, rule) = (wish.channel, wish.rule.clone());
        let answer =
            daemon.ask(async |mut client| Ok(client.relieve_channel(wish).await?.into_inner()));
        match answer {
            Ok(answer) if answer.stay.is_empty() => {}
            Ok(answer) => eprintln!(
                "takt: rule {rule}: sessions of channel {channel} stay on their lanes: {}",
                answer.stay
            ),
            Err(failure) => {
                eprintln!(
                    "takt: rule {rule}: sessions of channel {channel} stay on their lanes: {failure}"
                );
            }
        }
    }
}

impl Relieve {
    /// Moves sessions of the node that is watched.
    pub fn open(source: &Source) -> Self {
        let (wishes, told) = sync_channel(MOST_WAITING);
        let daemon = source.daemon.clone();
        let teller = std::thread::spawn(move || tell(&daemon, &told));
        Self { wishes, teller }
    }

    /// A rule begins for a flow: of what leaves, its writers are to be served better; of what comes, its readers.
    pub fn tell(&self, key: &FlowKey, rule: &str) {
        if let Some(source) = key.channel_source() {
            // Where many wait the node is behind, and this one is left out.
            let _ = self.wishes.try_send(RelieveChannelRequest {
                channel: source.channel,
                readers: source.way == Way::From,
                rule: rule.to_owned(),
            });
        }
    }

    /// Waits until the node was told.
    pub fn finish(self) {
        drop(self.wishes);
        let _ = self.teller.join();
    }
}
