//! From datagrams to sinks: check, find sender and channel, put together, deliver, count.

use std::net::SocketAddr;

use takt_datapath::Datagram;
use takt_wire::channel::{DatagramHeader, Kind, Record};

use super::guard::Refused;
use super::port;
use super::reassembly::{self, Fragment, Key, Target};
use super::session::Meta;
use super::tap::Passed;
use super::track::{Listening, SourceKey, Verdict};
use super::{State, fair};
use crate::peering::message::SourceProgress;
use crate::slots::{ChannelSlot, RemoteSlot};

/// Datagrams that are kept at most to be judged again.
const MOST_EARLY: usize = 64;

/// A datagram that may have come before the lane has taken over who its sender is.
#[derive(Debug)]
pub(super) struct Early {
    source: SocketAddr,
    destination_port: u16,
    payload: Box<[u8]>,
    pub(super) recipient: Recipient,
    /// The port that it came by.
    pub(super) port: usize,
}

/// Whom a datagram is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Recipient {
    /// This lane. `mesh`: it came from a lane of this node.
    This { mesh: bool },
    /// Another lane of this node, behind the same device.
    Sibling,
}

impl Early {
    pub(super) fn datagram(&self) -> Datagram<'_> {
        Datagram {
            source: self.source,
            destination_port: self.destination_port,
            payload: &self.payload,
        }
    }
}

impl State {
    /// Takes a datagram that came from a lane of this node: one of that lane's own, or one that it passes on.
    #[inline]
    pub(super) fn ingress_between_lanes(&mut self, datagram: &Datagram<'_>) {
        match port::passed_on(datagram) {
            Some(passed_on) => self.ingress(&passed_on, false),
            None => self.ingress(datagram, true),
        }
    }

    /// Takes a datagram. `mesh`: a lane of this node has sent it. Those that such a lane passes on are checked as if they had
    /// come here.
    pub(super) fn ingress(&mut self, datagram: &Datagram<'_>, mesh: bool) {
        self.round.work();
        self.received_cost += fair::MESSAGE;
        let Ok((header, _)) = DatagramHeader::parse(datagram.payload) else {
            return self.counters.rx_malformed.add(1);
        };
        let source = (!mesh).then(|| datagram.source.ip());
        let Some(at) = self.senders.find(header.sender, source) else {
            if !self.keep_early(datagram, Recipient::This { mesh }) {
                self.counters.rx_unknown_sender.add(1);
            }
            return;
        };
        let Some(remote) = self.remotes.get_mut(at) else {
            return self.counters.rx_unknown_sender.add(1);
        };
        // Out of the state while records are taken.
        let mut scratch = std::mem::take(&mut self.scratch);
        match remote.guard.open(&header, datagram.payload, &mut scratch) {
            Ok(records) => {
                for record in header.records(records) {
                    match record {
                        Ok(record) => self.record(at, &header, &record),
                        Err(_) => self.counters.rx_malformed.add(1),
                    }
                }
            }
            Err(Refused::Unauthentic) => {
                if !self.keep_early(datagram, Recipient::This { mesh }) {
                    self.counters.rx_unauthentic.add(1);
                }
            }
            Err(Refused::Replayed) => self.counters.rx_replayed.add(1),
        }
        self.scratch = scratch;
    }

    /// Keeps a datagram whose sender, or key, may be among what the control thread has told and the lane has not taken over: it
    /// is judged again then. False: all is taken over, or many are kept.
    #[cold]
    fn keep_early(&mut self, datagram: &Datagram<'_>, recipient: Recipient) -> bool {
        if self.early.len() >= MOST_EARLY || self.mailbox.has_done(self.mailbox.told()) {
            return false;
        }
        self.early.push(Early {
            source: datagram.source,
            destination_port: datagram.destination_port,
            payload: datagram.payload.into(),
            recipient,
            port: self.receiving,
        });
        true
    }

    /// Whether a datagram for another lane comes from where its sender is. A lane of this node never sends that way.
    /// One that may have come before its sender was told of is judged again.
    pub(super) fn admits(&mut self, datagram: &Datagram<'_>) -> bool {
        let Ok((header, _)) = DatagramHeader::parse(datagram.payload) else {
            self.counters.rx_malformed.add(1);
            return false;
        };
        let source = Some(datagram.source.ip());
        let admitted = self.senders.find(header.sender, source).is_some();
        if !admitted && !self.keep_early(datagram, Recipient::Sibling) {
            self.counters.rx_unknown_sender.add(1);
        }
        admitted
    }

    /// The channel with this number. Messages mostly follow others of the same channel.
    #[inline]
    fn channel(&mut self, id: u64) -> Option<ChannelSlot> {
        match self.last_channel {
            Some((last, at)) if last == id => Some(at),
            _ => {
                let at = self.channels.find(id)?;
                self.last_channel = Some((id, at));
                Some(at)
            }
        }
    }

    /// Takes a record as if a datagram had held it.
    #[cfg(test)]
    pub(super) fn hostile(
        &mut self,
        remote: RemoteSlot,
        header: &DatagramHeader,
        record: &Record<'_>,
    ) {
        self.record(remote, header, record);
    }

    #[inline]
    fn record(&mut self, remote: RemoteSlot, header: &DatagramHeader, record: &Record<'_>) {
        let h = &record.header;
        if h.kind == Kind::Acknowledge {
            return self.take_acknowledgement(remote, record);
        }
        let Some(at) = self.channel(h.channel) else {
            return self.counters.rx_no_sink.add(1);
        };
        if self.taps.any() && h.is_message() {
            self.tap_received(remote, at, header, record);
        }
        match h.kind {
            Kind::Message | Kind::Acknowledge => {}
            Kind::Reliable { .. } => return self.take_reliable(remote, at, header, record),
            Kind::Announce => return self.take_announcement(remote, at, record),
        }
        let key = Key {
            remote,
            channel: at,
            source: h.source,
            sequence: h.sequence,
        };
        if h.is_fragment()
            && let Some(assembly) = self.reassembly.find(key)
        {
            return self.fragment(assembly, record);
        }
        let Some(channel) = self.channels.get_mut(at) else {
            return;
        };
        if channel.sinks.is_empty() {
            return self.counters.rx_no_sink.add(1);
        }
        let listening = Listening {
            channel: channel.id,
            since: channel.since,
            label: self.remotes.get(remote).map_or(0, |r| r.label),
        };
        let source = SourceKey {
            remote,
            source: h.source,
        };
        let Some((sender, verdict)) = self.tracks.accept(source, &listening, h.sequence) else {
            return self.counters.rx_malformed.add(1);
        };
        let sequence = match verdict {
            Verdict::New { sequence, lost } => {
                if lost > 0 {
                    channel.counters.lost.add(lost);
                    self.received_cost += self.tenants.add_lost(channel, lost as i64);
                }
                sequence
            }
            Verdict::Late { sequence } => {
                channel.counters.late.add(1);
                self.received_cost += self.tenants.add_lost(channel, -1);
                sequence
            }
            Verdict::Duplicate if h.is_fragment() => {
                return self.counters.rx_stale_fragments.add(1);
            }
            Verdict::Duplicate => return self.counters.rx_duplicate.add(1),
        };
        let meta = Meta {
            length: h.message_length,
            class: h.class,
            sender,
            sequence,
            send_time_ns: header.send_time_ns,
        };
        if h.is_fragment() {
            return self.first_fragment(key, &meta, record);
        }
        channel.counters.received.add(1);
        channel
            .counters
            .received_bytes
            .add(u64::from(h.message_length));
        self.arrivals
            .whole(self.remotes.get(remote), &self.round, &meta);
        let behind = self.behind + self.received_cost;
        self.received_cost +=
            (self.tenants).deliver_bytes(channel, at, &meta, record.payload, behind);
    }

    /// Copies what a record has for captures of the tenants that listen to it.
    #[cold]
    fn tap_received(
        &mut self,
        remote: RemoteSlot,
        channel: ChannelSlot,
        header: &DatagramHeader,
        record: &Record<'_>,
    ) {
        let now_ns = self.round.now_ns();
        let (Some(remote), Some(channel)) = (self.remotes.get(remote), self.channels.get(channel))
        else {
            return;
        };
        let from = remote.address();
        let tenants = channel.groups.iter();
        let tenants = tenants.filter_map(|group| self.tenants.id_of(group.tenant));
        let came = Passed::here(tenants, now_ns, from);
        let of = (header.sender, header.send_time_ns);
        self.taps.record(&came, of, &record.header, |space| {
            space.copy_from_slice(record.payload);
            Some(())
        });
    }

    #[cold]
    fn first_fragment(&mut self, key: Key, meta: &Meta, record: &Record<'_>) {
        let now_ns = self.round.steady_ns();
        let header = reassembly::Header {
            length: meta.length,
            stride: record.header.fragment_stride,
            class: meta.class,
            sender: meta.sender,
            send_time_ns: meta.send_time_ns,
        };
        let acceptable =
            self.reassembly.accepts(&header) && meta.length as usize <= self.max_message;
        let Some(channel) = self.channels.get_mut(key.channel) else {
            return;
        };
        // It counts as one tenant's of those that it is for: one that has a place.
        let tenant = {
            let mut tenants = channel.groups.iter().map(|group| group.tenant);
            tenants.find(|tenant| self.reassembly.has_room(key.remote, *tenant))
        };
        let begun = match tenant {
            Some(tenant) if acceptable => {
                self.reassembly
                    .begin(key, meta.sequence, &header, tenant, now_ns)
            }
            _ => None,
        };
        let Some(assembly) = begun else {
            self.counters.reassembly_refused.add(1);
            channel.counters.lost.add(1);
            self.received_cost += self.tenants.add_lost(channel, 1);
            return;
        };
        for group in &mut channel.groups {
            let behind = self.behind + self.received_cost;
            if !self.tenants.admits(group, fair::COPY, behind) {
                self.received_cost += self.tenants.pass_over(group, key.channel);
                let first = self.reassembly.get(assembly).lose();
                channel.counters.lost.add(first.into());
                continue;
            }
            self.received_cost += group.cost(fair::COPY);
            for &(session, sink) in &group.sinks {
                let placed = match self.tenants.sessions.get_mut(session) {
                    Some(s) => s.place(sink, meta.length as usize),
                    None => continue,
                };
                match placed {
                    Ok(Ok(chunk)) => self.reassembly.get(assembly).targets.push(Target {
                        session,
                        sink,
                        chunk,
                    }),
                    Ok(Err(dropped)) => {
                        let counters = &channel.counters;
                        self.tenants.account_received(
                            session,
                            sink,
                            meta.class,
                            counters,
                            Ok(dropped),
                        );
                    }
                    Err(failure) => self.tenants.fail(session, failure),
                }
            }
        }
        if self.reassembly.get(assembly).targets.is_empty() {
            // No sink had room, which is counted: nobody waits for the rest of it.
            return self.reassembly.end(assembly);
        }
        self.fragment(assembly, record);
    }

    /// A fragment of a message that has begun.
    fn fragment(&mut self, assembly: usize, record: &Record<'_>) {
        let now_ns = self.round.steady_ns();
        let h = &record.header;
        let Fragment::New { complete } = self.reassembly.note(
            assembly,
            h.message_length,
            h.fragment_stride,
            h.fragment_index,
            now_ns,
        ) else {
            return self.counters.rx_duplicate.add(1);
        };
        if !self.leave_out(assembly, fair::COPY + record.payload.len() as i64) {
            return self.reassembly.end(assembly);
        }
        let message = self.reassembly.get(assembly);
        let copies = message.targets.len() as i64;
        self.received_cost += copies * (fair::COPY + record.payload.len() as i64);
        for target in &message.targets {
            if let Some(session) = self.tenants.sessions.get(target.session) {
                let place = session.placed(target.chunk, message.length as usize);
                let copied = place.write_from(h.fragment_offset(), record.payload);
                debug_assert!(copied.is_ok(), "a checked fragment lies inside its message");
            }
        }
        if complete {
            self.complete(assembly);
        }
    }

    /// Gives a message up for the tenants that have had their part of the round, when the next fragment costs so much for
    /// each sink. False: nobody is left.
    #[inline]
    fn leave_out(&mut self, assembly: usize, each: i64) -> bool {
        let behind = self.behind + self.received_cost;
        // Whom it is for is found out when it matters.
        if self.tenants.is_far(behind) {
            self.leave_out_now(assembly, each);
        }
        !self.reassembly.get(assembly).targets.is_empty()
    }

    #[cold]
    fn leave_out_now(&mut self, assembly: usize, each: i64) {
        let message = self.reassembly.get(assembly);
        let Some(channel) = self.channels.get(message.key.channel) else {
            return;
        };
        let tenants = &mut self.tenants;
        let (targets, mut lost) = (&mut message.targets, false);
        self.received_cost += targets.len() as i64 * fair::LOOK;
        // Those of one tenant follow each other.
        let (mut kept, mut next) = (0, 0);
        while let Some(first) = targets.get(next) {
            let tenant = tenants.of_session(first.session);
            let same = |target: &&Target| tenants.of_session(target.session) == tenant;
            let count = targets[next..].iter().take_while(same).count();
            let has = tenant.is_none_or(|tenant| tenants.has_part(tenant, count));
            if has && let Some(tenant) = tenant {
                tenants.charge_part(tenant, (count as i64 - 1) * each);
            }
            for at in next..next + count {
                let target = targets[at];
                if has {
                    targets[kept] = target;
                    kept += 1;
                } else {
                    tenants.lose(&target);
                }
            }
            lost |= !has;
            next += count;
        }
        targets.truncate(kept);
        if lost {
            channel.counters.lost.add(message.lose().into());
        }
    }

    fn complete(&mut self, assembly: usize) {
        let message = self.reassembly.get(assembly);
        let key = message.key;
        let meta = Meta {
            length: message.length,
            class: message.class,
            sender: message.sender,
            sequence: message.full_sequence,
            send_time_ns: message.send_time_ns,
        };
        self.arrivals
            .whole(self.remotes.get(message.key.remote), &self.round, &meta);
        if let Some(channel) = self.channels.get(message.key.channel) {
            channel.counters.received.add(1);
            channel.counters.received_bytes.add(u64::from(meta.length));
            self.received_cost += message.targets.len() as i64 * fair::COPY;
            for &Target {
                session,
                sink,
                chunk,
            } in &message.targets
            {
                let Some(s) = self.tenants.sessions.get_mut(session) else {
                    continue;
                };
                let result = s.deliver(sink, chunk, &meta);
                let counters = &channel.counters;
                self.tenants
                    .account_received(session, sink, meta.class, counters, result);
            }
        }
        self.reassembly.end(assembly);
        while let Some(earlier) = self.reassembly.superseded(&key) {
            self.counters.reassembly_expired.add(1);
            self.abandon(earlier);
        }
    }

    /// Gives up messages whose fragments have stopped coming.
    pub(super) fn expire(&mut self, now_ns: i64) {
        while let Some(assembly) = self.reassembly.expired(now_ns) {
            self.counters.reassembly_expired.add(1);
            self.abandon(assembly);
        }
    }

    /// Gives up a message on its way in: its memory is free again, and it counts as lost to the sinks that it was put together
    /// for. What became of it at others is counted.
    pub(super) fn abandon(&mut self, assembly: usize) {
        let message = self.reassembly.get(assembly);
        for target in &message.targets {
            self.tenants.lose(target);
        }
        if let Some(channel) = self.channels.get(message.key.channel) {
            let first = self.reassembly.get(assembly).lose();
            channel.counters.lost.add(first.into());
        }
        self.reassembly.end(assembly);
    }

    /// A remote lane has told how far its sources are: what was told the time before and has not arrived is lost.
    pub(super) fn progress(&mut self, remote: RemoteSlot, sources: &[SourceProgress]) {
        let Some(label) = self.remotes.get(remote).map(|r| r.label) else {
            return;
        };
        for told in sources {
            // It tells its receivers itself how far it is.
            if self.is_reliable(remote, told.source) {
                if told.ended {
                    self.reliable_ended(remote, told.source);
                }
                continue;
            }
            let Some(channel) = self.channels.find(told.channel) else {
                continue;
            };
            let Some(channel) = self.channels.get(channel).filter(|c| !c.sinks.is_empty()) else {
                continue;
            };
            let listening = Listening {
                channel: channel.id,
                since: channel.since,
                label,
            };
            let key = SourceKey {
                remote,
                source: told.source,
            };
            let lost = self.tracks.announce(key, &listening, told.next, told.ended);
            if lost > 0 {
                channel.counters.lost.add(lost);
                self.tenants.add_lost(channel, lost as i64);
            }
        }
    }

    /// A remote lane is gone: what it had announced and has not arrived is lost. Unless it went cleanly, more may be
    /// missing than anybody can know, which is counted once for each of its sources.
    pub(super) fn forget_sources(&mut self, remote: RemoteSlot, clean: bool) {
        self.forget_reliable_of(remote, clean);
        let Self {
            tracks,
            channels,
            tenants,
            ..
        } = self;
        tracks.forget_remote(remote, clean, |channel, since, lost, unknown| {
            let channel = channels.find(channel).and_then(|at| channels.get(at));
            let Some(channel) = channel.filter(|c| c.since == since && !c.sinks.is_empty()) else {
                return;
            };
            channel.counters.lost.add(lost);
            tenants.add_lost(channel, lost as i64);
            channel.counters.unknown_tails.add(unknown.into());
        });
    }
}
