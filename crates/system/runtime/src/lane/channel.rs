//! The channels that a lane knows: who writes, who reads, here and elsewhere.

use std::collections::HashMap;
use std::sync::Arc;

use slab::Slab;

use super::track::Track;
use crate::counters::ChannelCounters;

/// A channel on one lane.
#[derive(Debug)]
pub struct Channel {
    pub id: u64,
    /// Number of the next message emitted here.
    pub next_sequence: u64,
    /// Which beginning of the sequence this is.
    pub epoch: u8,
    /// Sources here.
    pub sources: usize,
    /// Sinks here: indices of session and sink.
    pub sinks: Vec<(usize, usize)>,
    /// Remote lanes with sinks: indices.
    pub destinations: Vec<usize>,
    /// Changes with `destinations`: a message in progress notices.
    pub generation: u32,
    /// Per remote lane: what has come from there.
    pub tracks: Vec<Option<Track>>,
    pub counters: Arc<ChannelCounters>,
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
    slab: Slab<Channel>,
    by_id: HashMap<u64, usize, foldhash::fast::RandomState>,
    next_epoch: u8,
}

impl Channels {
    /// The channel's index, if it is known.
    #[inline]
    pub fn find(&self, id: u64) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// The channel's index; makes it if it is new and then says so.
    pub fn open(&mut self, id: u64) -> (usize, bool) {
        if let Some(at) = self.find(id) {
            return (at, false);
        }
        self.next_epoch = self.next_epoch.wrapping_add(1);
        let at = self.slab.insert(Channel {
            id,
            next_sequence: 0,
            epoch: self.next_epoch,
            sources: 0,
            sinks: Vec::new(),
            destinations: Vec::new(),
            generation: 0,
            tracks: Vec::new(),
            counters: Arc::default(),
        });
        self.by_id.insert(id, at);
        (at, true)
    }

    /// Removes the channel if nobody uses it; returns its number then.
    pub fn close_unused(&mut self, at: usize) -> Option<u64> {
        let channel = self.slab.get(at)?;
        if !channel.is_unused() {
            return None;
        }
        let id = channel.id;
        self.slab.remove(at);
        self.by_id.remove(&id);
        Some(id)
    }

    #[inline]
    pub fn get(&self, at: usize) -> Option<&Channel> {
        self.slab.get(at)
    }

    #[inline]
    pub fn get_mut(&mut self, at: usize) -> Option<&mut Channel> {
        self.slab.get_mut(at)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Channel)> {
        self.slab.iter_mut()
    }
}
