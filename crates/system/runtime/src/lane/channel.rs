//! The channels that a lane knows: who writes, who reads, here and elsewhere.

use std::collections::HashMap;
use std::sync::Arc;

use super::fair;
use super::members::Members;
use crate::counters::ChannelCounters;
use crate::slots::{
    ChannelSlot, OutboundSlot, RemoteSlot, SessionSlot, SinkSlot, SourceSlot, Table, TenantSlot,
};

/// A channel on one lane.
#[derive(Debug)]
pub struct Channel {
    pub id: u64,
    /// Sources here.
    pub sources: usize,
    /// Of those, the reliable ones: their places among the lane's.
    pub reliable: Vec<OutboundSlot>,
    /// Those that give messages to sinks themselves: indices of session and source.
    pub direct: Vec<(SessionSlot, SourceSlot)>,
    /// Sinks here: indices of session and sink.
    pub sinks: Members<(SessionSlot, SinkSlot)>,
    /// The same by tenant: what comes from elsewhere is given to all of a tenant's, or to none.
    pub groups: Vec<Group>,
    /// Remote lanes with sinks.
    pub destinations: Members<RemoteSlot>,
    /// Since when somebody listens here: differs each time that the first sink comes. What was missed before
    /// was not lost.
    pub since: u64,
    pub counters: Arc<ChannelCounters>,
}

/// The sinks of one tenant on a channel.
#[derive(Debug)]
pub struct Group {
    /// On this lane.
    pub tenant: TenantSlot,
    pub sinks: Vec<(SessionSlot, SinkSlot)>,
    /// Messages that were passed over for all of them, which are not counted at the sinks yet.
    pub missed: u64,
}

impl Group {
    /// What it costs to do so much for each of them.
    #[inline]
    pub fn cost(&self, each: i64) -> i64 {
        self.sinks.len() as i64 * each
    }

    /// What of that is for its sinks beyond the first: that one costs no more than to receive what is for it.
    #[inline]
    pub fn cost_of_others(&self, each: i64) -> i64 {
        self.cost(each) - each
    }
}

impl Channel {
    /// Nobody writes or reads it, here or elsewhere.
    pub fn is_unused(&self) -> bool {
        self.sources == 0 && self.sinks.is_empty() && self.destinations.is_empty()
    }
}

/// All channels of a lane.
#[derive(Debug, Default)]
pub struct Channels {
    table: Table<ChannelSlot, Channel>,
    by_id: HashMap<u64, ChannelSlot, foldhash::fast::RandomState>,
    next_since: u64,
    /// How many channels have so many sinks here, of those that have more than a few; up to the most that any has.
    widths: Vec<u32>,
}

/// As few sinks of a channel make no difference to what is taken from a port at a time.
const FEW: usize = 16;

/// A channel has so many sinks now, and had others before. What is looked at is as much as it has lost, at most.
fn widen(widths: &mut Vec<u32>, before: usize, now: usize) {
    if now > FEW {
        if widths.len() < now {
            widths.resize(now, 0);
        }
        widths[now - 1] += 1;
    }
    if before > FEW {
        widths[before - 1] -= 1;
    }
    while widths.last() == Some(&0) {
        widths.pop();
    }
}

impl Channels {
    /// The channel's index, if it is known.
    #[inline]
    pub fn find(&self, id: u64) -> Option<ChannelSlot> {
        self.by_id.get(&id).copied()
    }

    /// The channel's index; makes it if it is new and then says so.
    pub fn open(&mut self, id: u64) -> (ChannelSlot, bool) {
        if let Some(at) = self.find(id) {
            return (at, false);
        }
        let at = self.table.insert(Channel {
            id,
            sources: 0,
            reliable: Vec::new(),
            direct: Vec::new(),
            sinks: Members::default(),
            groups: Vec::new(),
            destinations: Members::default(),
            since: 0,
            counters: Arc::default(),
        });
        self.by_id.insert(id, at);
        (at, true)
    }

    /// A tenant's sink has come to a channel: the first one listens from now on.
    pub fn add_sink(
        &mut self,
        at: ChannelSlot,
        tenant: TenantSlot,
        session: SessionSlot,
        sink: SinkSlot,
    ) {
        if let Some(channel) = self.table.get_mut(at) {
            if channel.sinks.is_empty() {
                self.next_since += 1;
                channel.since = self.next_since;
            }
            channel.sinks.push((session, sink));
            let sinks = channel.sinks.len();
            widen(&mut self.widths, sinks - 1, sinks);
            match channel.groups.iter_mut().find(|g| g.tenant == tenant) {
                Some(group) => group.sinks.push((session, sink)),
                None => channel.groups.push(Group {
                    tenant,
                    sinks: vec![(session, sink)],
                    missed: 0,
                }),
            }
        }
    }

    /// Removes the sinks of a channel that do not satisfy the condition. True if none is left.
    pub fn retain_sinks(
        &mut self,
        at: ChannelSlot,
        keep: impl Fn(&(SessionSlot, SinkSlot)) -> bool,
    ) -> bool {
        let Some(channel) = self.table.get_mut(at) else {
            return false;
        };
        let before = channel.sinks.len();
        channel.sinks.retain(&keep);
        channel.groups.retain_mut(|group| {
            group.sinks.retain(&keep);
            !group.sinks.is_empty()
        });
        let empty = channel.sinks.is_empty();
        widen(&mut self.widths, before, channel.sinks.len());
        empty
    }

    /// What a short message may cost that is received, at most.
    #[inline]
    pub fn widest_cost(&self) -> i64 {
        fair::MESSAGE + self.widths.len() as i64 * fair::COPY
    }

    /// Removes the channel if nobody uses it; returns its number then.
    pub fn close_unused(&mut self, at: ChannelSlot) -> Option<u64> {
        let channel = self.table.get(at)?;
        if !channel.is_unused() {
            return None;
        }
        let id = channel.id;
        self.table.remove(at);
        self.by_id.remove(&id);
        Some(id)
    }

    #[inline]
    pub fn get(&self, at: ChannelSlot) -> Option<&Channel> {
        self.table.get(at)
    }

    #[inline]
    pub fn get_mut(&mut self, at: ChannelSlot) -> Option<&mut Channel> {
        self.table.get_mut(at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_widest_channel_is_known_whoever_comes_and_goes(
            acts in proptest::collection::vec((0usize..3, any::<bool>(), 1usize..30), 0..60),
        ) {
            let mut channels = Channels::default();
            let known = [5, 6, 7].map(|id| channels.open(id).0);
            let mut next = 0;
            for (at, come, count) in acts {
                let at = known[at];
                if come {
                    for _ in 0..count {
                        channels.add_sink(at, TenantSlot(0), SessionSlot(0), SinkSlot(next));
                        next += 1;
                    }
                } else {
                    let sinks = channels.get(at).expect("there").sinks.iter();
                    let going = Vec::from_iter(sinks.map(|(_, sink)| sink).take(count));
                    channels.retain_sinks(at, |(_, sink)| !going.contains(sink));
                }
                let all = known.map(|at| channels.get(at).expect("there").sinks.len());
                let most = all.into_iter().max().filter(|most| *most > FEW);
                let widest = most.unwrap_or(0) as i64;
                prop_assert_eq!(channels.widest_cost(), fair::MESSAGE + widest * fair::COPY);
            }
        }
    }
}
