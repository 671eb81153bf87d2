//! How many sources and sinks each channel has at this node: a part that is told of each, so that nobody who asks has all
//! sessions looked through.

use std::collections::BTreeMap;

use takt_session::ChannelId;

use super::session::{Endpoint, Session};

/// Which end of a channel.
#[derive(Clone, Copy, Debug)]
pub enum End {
    Source,
    Sink,
}

/// Sources and sinks of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub sources: usize,
    pub sinks: usize,
}

impl Count {
    fn of(&mut self, end: End) -> &mut usize {
        match end {
            End::Source => &mut self.sources,
            End::Sink => &mut self.sinks,
        }
    }
}

/// The channels with a source or a sink of a session that has not ended.
#[derive(Debug, Default)]
pub struct Ends(BTreeMap<u64, Count>);

impl Ends {
    pub fn open(&mut self, channel: ChannelId, end: End) {
        *self.0.entry(channel.0).or_default().of(end) += 1;
    }

    pub fn close(&mut self, channel: Option<ChannelId>, end: End) {
        let Some((channel, count)) =
            channel.and_then(|channel| Some((channel.0, self.0.get_mut(&channel.0)?)))
        else {
            return;
        };
        let left = count.of(end);
        *left = left.saturating_sub(1);
        if *count == Count::default() {
            self.0.remove(&channel);
        }
    }

    /// All those that a session has.
    pub fn close_all(&mut self, session: &Session) {
        let close = |end| move |of: &Endpoint| (of.channel, end);
        let sources = session.sources.iter().map(close(End::Source));
        let sinks = session.sinks.iter().map(close(End::Sink));
        for (channel, end) in sources.chain(sinks) {
            self.close(channel, end);
        }
    }

    pub fn of(&self, channel: u64) -> Count {
        self.0.get(&channel).copied().unwrap_or_default()
    }

    /// Channels from this one on.
    pub fn from(&self, first: u64) -> impl Iterator<Item = u64> {
        self.0.range(first..).map(|(channel, _)| *channel)
    }

    /// How many channels these are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}
