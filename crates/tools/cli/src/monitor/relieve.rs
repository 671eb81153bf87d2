//! Sessions of the watched node that leave their lanes, because rules say so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use takt_health::key::{FlowKey, Way};
use taktd::admin::proto::RelieveChannelRequest;

use super::source::Source;
use crate::admin::Daemon;

/// Wishes that wait for the node at most. More of them say nothing new: a session that was moved stays for a while.
const MOST_WAITING: usize = 256;

/// How long the node may take to answer one.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Tells the node, on a thread of its own: who watches waits for no answer.
pub struct Relieve {
    wishes: SyncSender<RelieveChannelRequest>,
    /// It is over: what still waits is told for a moment only.
    over: Arc<AtomicBool>,
    teller: JoinHandle<()>,
}

fn tell(daemon: &Daemon, wishes: &Receiver<RelieveChannelRequest>, over: &AtomicBool) {
    let (mut untold, mut ends) = (0, None);
    for wish in wishes {
        if over.load(Ordering::Relaxed) {
            let ends = *ends.get_or_insert_with(|| Instant::now() + ANSWERS_WITHIN);
            if Instant::now() >= ends {
                untold += 1;
                continue;
            }
        }
        let (channel, rule) = (wish.channel, wish.rule.clone());
        let answer = daemon.ask_within(ANSWERS_WITHIN, async |mut client| {
            Ok(client.relieve_channel(wish).await?.into_inner())
        });
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
    if untold > 0 {
        eprintln!(
            "takt: at the end {untold} wishes of rules that sessions move were not told to the node"
        );
    }
}

impl Relieve {
    /// Moves sessions of the node that is watched.
    pub fn open(source: &Source) -> Self {
        let (wishes, told) = sync_channel(MOST_WAITING);
        let daemon = source.daemon.clone();
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let teller = std::thread::spawn(move || tell(&daemon, &told, &ends));
        Self {
            wishes,
            over,
            teller,
        }
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

    /// Waits until the node was told, if that does not take long: each answer may take its time.
    pub fn finish(self) {
        self.over.store(true, Ordering::Relaxed);
        drop(self.wishes);
        let _ = self.teller.join();
    }
}
