//! What sources that give messages to sinks themselves are told of others that listen.
//!
//! A source gives its lane nothing while nobody else listens. So who comes is counted before anything else is said of him;
//! who goes may be counted for some rounds, which costs his source a message to the lane and nothing else. What is looked
//! at in a round for it is bounded: all tenants of the lane wait meanwhile.

use super::session::Target;
use super::tables::State;
use crate::slots::{ChannelSlot, SessionSlot, SinkSlot, SourceSlot};

impl State {
    /// Somebody listens to a channel from now on: this sink, or a lane elsewhere.
    pub(super) fn listener_came(
        &mut self,
        channel: ChannelSlot,
        sink: Option<(SessionSlot, SinkSlot)>,
    ) {
        let Some(channel) = self.channels.get(channel) else {
            return;
        };
        self.looks += channel.direct.len();
        for &(at, source) in &channel.direct {
            let Some(session) = self.tenants.sessions.get_mut(at) else {
                continue;
            };
            if sink.is_some_and(|(other, sink)| other == at && !session.hears_itself(sink)) {
                continue;
            }
            let arena = session.arena().clone();
            if let Some(s) = session.sources.get_mut(source) {
                s.tell_listeners(&arena, s.others.saturating_add(1));
            }
        }
    }

    /// Some listen to a channel no more.
    pub(super) fn listeners_went(&mut self, channel: ChannelSlot) {
        let Some(channel) = self.channels.get(channel) else {
            return;
        };
        self.looks += channel.direct.len();
        for &(at, source) in &channel.direct {
            let session = self.tenants.sessions.get_mut(at);
            let source_there = session.and_then(|s| s.sources.get_mut(source));
            if let Some(s) = source_there
                && !std::mem::replace(&mut s.recount, true)
            {
                self.recounts.push_back((at, source));
            }
        }
        if !self.recounts.is_empty() {
            self.mailbox.again();
        }
    }

    /// Counts again for sources some of whose listeners have gone, until so much was looked at in this round.
    pub(super) fn count_again(&mut self, most: usize) {
        while self.looks < most
            && let Some(place) = self.recounts.pop_front()
        {
            self.count_listeners(place);
        }
    }

    /// Counts who listens to a source besides the sinks that have its messages from itself, and tells it.
    pub(super) fn count_listeners(&mut self, (at, source): (SessionSlot, SourceSlot)) {
        self.looks += 1;
        let Some(session) = self.tenants.sessions.get_mut(at) else {
            return;
        };
        let Some(s) = session.sources.get_mut(source) else {
            return;
        };
        s.recount = false;
        if s.direct.epoch == 0 {
            // Another one was here.
            return;
        }
        let Target::Channel(channel) = s.target else {
            return;
        };
        let Some(channel) = self.channels.get(channel) else {
            return;
        };
        let direct = s.direct.clone();
        self.looks += channel.sinks.len() + direct.len();
        let sinks = channel.sinks.of(channel.sinks.all()).iter();
        let others = sinks.filter(|(number, (other, sink))| {
            !direct.has(*number, direct.epoch) && (*other != at || session.hears_itself(*sink))
        });
        let count = others.count() + channel.destinations.len();
        let arena = session.arena().clone();
        if let Some(s) = session.sources.get_mut(source) {
            s.tell_listeners(&arena, u32::try_from(count).unwrap_or(u32::MAX));
        }
    }
}
