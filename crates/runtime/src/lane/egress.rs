//! From sources to datagrams and local sinks: take, number, deliver here, append there, complete.

use takt_session::Failure;
use takt_session::layout::{Outcome, TxDescriptor};
use takt_time::TrafficClass;

use super::remote::{Appended, Outgoing};
use super::session::{InProgress, Meta};
use super::{LanePort, State};

/// Messages of one source that a lane takes before it looks at others.
const SOURCE_BURST: usize = 64;

/// Whether a source has more to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing left in its ring.
    Empty,
    /// The burst is used up.
    More,
    /// A port has no frame free.
    Blocked,
}

impl State {
    /// Serves the sessions that have news or unfinished work. True if anything was done.
    pub(super) fn egress(&mut self, ports: &mut [LanePort]) -> bool {
        let mut worked = false;
        for at in 0..self.tenants.sessions.capacity() {
            let Some(session) = self.tenants.sessions.get_mut(at) else {
                continue;
            };
            let news = session.bell.take_dirty();
            if !news && !session.active {
                continue;
            }
            session.active = false;
            session.throttled = false;
            let now_ns = self.round.now_ns();
            if let Err(failure) = self.serve(ports, at, now_ns, &mut worked) {
                self.tenants.fail(at, failure);
            }
        }
        worked
    }

    fn serve(
        &mut self,
        ports: &mut [LanePort],
        at: usize,
        now_ns: i64,
        worked: &mut bool,
    ) -> Result<(), Failure> {
        let Some(session) = self.tenants.sessions.get_mut(at) else {
            return Ok(());
        };
        session.reclaim_own()?;
        for source in 0..session.sources.len() {
            let step = self.serve_source(ports, at, source, now_ns, worked)?;
            let Some(session) = self.tenants.sessions.get_mut(at) else {
                return Ok(());
            };
            session.active |= step != Step::Empty || session.throttled;
            let Some(Some(s)) = session.sources.get_mut(source) else {
                continue;
            };
            s.publish();
            if s.closing && step == Step::Empty && !session.throttled {
                self.finished_sources.push((at, source));
            }
        }
        Ok(())
    }

    fn serve_source(
        &mut self,
        ports: &mut [LanePort],
        at: usize,
        source: usize,
        now_ns: i64,
        worked: &mut bool,
    ) -> Result<Step, Failure> {
        for _ in 0..SOURCE_BURST {
            let Some(session) = self.tenants.sessions.get_mut(at) else {
                return Ok(Step::Empty);
            };
            let Some(Some(s)) = session.sources.get_mut(source) else {
                return Ok(Step::Empty);
            };
            let progress = match s.current.take() {
                Some(progress) => progress,
                None => match session.take(source, now_ns)? {
                    Some(descriptor) => self.begin(at, source, descriptor, now_ns),
                    None => return Ok(Step::Empty),
                },
            };
            *worked = true;
            match self.send(ports, at, source, progress) {
                Sent::Finished(outcome) => {
                    let Some(session) = self.tenants.sessions.get_mut(at) else {
                        return Ok(Step::Empty);
                    };
                    session.finish(&progress.descriptor, outcome)?;
                }
                Sent::Unfinished { progress, blocked } => {
                    if let Some(session) = self.tenants.sessions.get_mut(at)
                        && let Some(Some(s)) = session.sources.get_mut(source)
                    {
                        s.current = Some(progress);
                    }
                    return Ok(if blocked { Step::Blocked } else { Step::More });
                }
            }
        }
        Ok(Step::More)
    }

    /// Numbers a message and gives it to the sinks of this lane.
    #[inline]
    fn begin(
        &mut self,
        at: usize,
        source: usize,
        descriptor: TxDescriptor,
        now_ns: i64,
    ) -> InProgress {
        let mut progress = InProgress {
            descriptor,
            sequence: 0,
            send_time_ns: now_ns,
            destination: 0,
            generation: 0,
            fragment: 0,
            outcome: Outcome::NoSink,
        };
        let Some(channel) = self
            .source_channel(at, source)
            .and_then(|c| self.channels.get_mut(c))
        else {
            return progress;
        };
        progress.sequence = channel.next_sequence;
        progress.generation = channel.generation;
        channel.next_sequence += 1;
        channel.counters.emitted.add(1);
        channel
            .counters
            .emitted_bytes
            .add(u64::from(descriptor.length));
        if channel.sinks.is_empty() && channel.destinations.is_empty() {
            channel.counters.no_sink.add(1);
            return progress;
        }
        progress.outcome = Outcome::Sent;
        if !channel.sinks.is_empty() {
            let meta = Meta {
                length: descriptor.length,
                class: class_of(&descriptor),
                sender: self.incarnation,
                sequence: progress.sequence,
                send_time_ns: now_ns,
            };
            self.tenants
                .deliver_emitted(at, descriptor.chunk, channel, &meta);
        }
        progress
    }

    fn source_channel(&self, at: usize, source: usize) -> Option<usize> {
        Some(
            self.tenants
                .sessions
                .get(at)?
                .sources
                .get(source)?
                .as_ref()?
                .channel,
        )
    }

    /// Appends a message to the datagrams for its remote lanes, as far as it goes.
    #[inline]
    fn send(
        &mut self,
        ports: &mut [LanePort],
        at: usize,
        source: usize,
        mut progress: InProgress,
    ) -> Sent {
        let Some(session) = self.tenants.sessions.get(at) else {
            return Sent::Finished(progress.outcome);
        };
        let Some(Some(s)) = session.sources.get(source) else {
            return Sent::Finished(progress.outcome);
        };
        let Some(channel) = self.channels.get(s.channel) else {
            return Sent::Finished(progress.outcome);
        };
        if channel.generation != progress.generation {
            // The set of remote lanes changed while a long message was under way: those that are still
            // there miss it, and count it by its number.
            return Sent::Finished(Outcome::Unreachable);
        }
        let payload = session.emitted(progress.descriptor.chunk, progress.descriptor.length);
        let message = Outgoing {
            channel: channel.id,
            sequence: progress.sequence as u32,
            epoch: channel.epoch,
            class: class_of(&progress.descriptor),
            send_time_ns: progress.send_time_ns,
        };
        while let Some(&destination) = channel.destinations.get(progress.destination) {
            let appended = match self.remotes.get_mut(destination) {
                Some(remote) => match remote.port(s.port) {
                    Some(port) => {
                        let appended = remote.append(
                            port,
                            ports[port].port.as_mut(),
                            self.incarnation,
                            &message,
                            payload,
                            progress.fragment,
                        );
                        if remote.enlist(port) {
                            ports[port].open.push(destination);
                        }
                        ports[port].dirty = true;
                        appended
                    }
                    None => Appended::Unreachable,
                },
                None => Appended::Unreachable,
            };
            match appended {
                Appended::Done => channel.counters.sent.add(1),
                Appended::Unreachable => {
                    channel.counters.unreachable.add(1);
                    progress.outcome = Outcome::Unreachable;
                }
                Appended::Until { fragment, blocked } => {
                    progress.fragment = fragment;
                    return Sent::Unfinished { progress, blocked };
                }
            }
            progress.destination += 1;
            progress.fragment = 0;
        }
        Sent::Finished(progress.outcome)
    }
}

enum Sent {
    Finished(Outcome),
    Unfinished { progress: InProgress, blocked: bool },
}

fn class_of(descriptor: &TxDescriptor) -> TrafficClass {
    // Checked when it was taken.
    TrafficClass::new(descriptor.class).unwrap_or_default()
}
