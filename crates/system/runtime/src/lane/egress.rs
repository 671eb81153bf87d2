//! From sources to datagrams and local sinks: take, number, deliver here, append there, complete.

use takt_session::Failure;
use takt_session::layout::{Outcome, TxDescriptor};
use takt_time::{TaiTime, TrafficClass};

use super::departure::{Departures, Destination, End, Leaving, PER_SESSION, Piece};
use super::remote::{Appended, Cut, Outgoing, Remote};
use super::session::{InProgress, Meta, Target};
use super::{LanePort, State};

/// Messages of one source that a lane takes before it looks at others.
const SOURCE_BURST: usize = 64;

/// Whether a source has more to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing left in its ring.
    Empty,
    /// The burst is used up.
    More,
    /// A port has no frame free.
    Blocked,
    /// A scheduler has no room: a departure makes some.
    Held,
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
            session.active |= matches!(step, Step::More | Step::Blocked) || session.throttled;
            self.held |= step == Step::Held;
            let Some(Some(s)) = session.sources.get_mut(source) else {
                continue;
            };
            s.publish();
            if step == Step::Empty && s.is_finished() {
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
            let mut pieces = 0;
            let sent = self.send(ports, at, source, progress, now_ns, &mut pieces);
            if pieces > 0
                && let Some(session) = self.tenants.sessions.get_mut(at)
            {
                session.hold(source, progress.descriptor.chunk, pieces);
            }
            match sent {
                Sent::Finished(outcome) => {
                    let Some(session) = self.tenants.sessions.get_mut(at) else {
                        return Ok(Step::Empty);
                    };
                    session.finish(&progress.descriptor, outcome, now_ns)?;
                }
                Sent::Unfinished { progress, step } => {
                    if let Some(session) = self.tenants.sessions.get_mut(at)
                        && let Some(Some(s)) = session.sources.get_mut(source)
                    {
                        s.current = Some(progress);
                    }
                    return Ok(step);
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
            cut: None,
            outcome: Outcome::NoSink,
        };
        let session = self.tenants.sessions.get_mut(at);
        let Some(Some(s)) = session.and_then(|session| session.sources.get_mut(source)) else {
            return progress;
        };
        let Target::Channel(channel) = s.target else {
            return progress;
        };
        let Some(channel) = self.channels.get_mut(channel) else {
            return progress;
        };
        let sender = s.sender;
        progress.sequence = s.next_sequence;
        progress.generation = channel.generation;
        s.next_sequence += 1;
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
                sender,
                sequence: progress.sequence,
                send_time_ns: now_ns,
            };
            self.tenants
                .deliver_emitted(at, descriptor.chunk, channel, &meta);
        }
        progress
    }

    /// Appends a message to the datagrams for its remote lanes, or gives it to the schedulers of their
    /// ports, as far as it goes. `pieces`: how many frames wait there and hold the message.
    #[inline]
    fn send(
        &mut self,
        ports: &mut [LanePort],
        at: usize,
        source: usize,
        mut progress: InProgress,
        now_ns: i64,
        pieces: &mut u16,
    ) -> Sent {
        let Some(session) = self.tenants.sessions.get(at) else {
            return Sent::Finished(progress.outcome);
        };
        let Some(Some(s)) = session.sources.get(source) else {
            return Sent::Finished(progress.outcome);
        };
        let channel = match &s.target {
            Target::Channel(channel) => self.channels.get(*channel),
            Target::Network(owner) => {
                let from = (at, source);
                return self.send_frame(
                    ports, from, session, owner, s.port, progress, now_ns, pieces,
                );
            }
        };
        let Some(channel) = channel else {
            return Sent::Finished(progress.outcome);
        };
        if channel.generation != progress.generation {
            // The set of remote lanes changed while a long message was under way: those that are still
            // there miss it, and count it by its number.
            return Sent::Finished(Outcome::Unreachable);
        }
        let room = PER_SESSION.saturating_sub(session.departing);
        let payload = session.emitted(progress.descriptor.chunk, progress.descriptor.length);
        let message = Outgoing {
            channel: channel.id,
            source: s.number,
            sequence: progress.sequence as u32,
            class: class_of(&progress.descriptor),
            send_time_ns: progress.send_time_ns,
        };
        while let Some(&destination) = channel.destinations.get(progress.destination) {
            let path = self.remotes.get_mut(destination).and_then(|remote| {
                let port = remote.port(s.port)?;
                let length = progress.descriptor.length;
                let now = || remote.cut(port, ports[port].port.as_ref(), length);
                let cut = progress.cut.or_else(now)?;
                progress.cut = Some(cut);
                Some((remote, port, cut))
            });
            let appended = match path {
                Some((remote, port, cut)) if ports[port].schedules(&progress.descriptor) => {
                    let piece = Piece {
                        session: at,
                        source,
                        tenant: session.tenant,
                        descriptor: progress.descriptor,
                        destination: Destination::Remote {
                            remote: destination,
                            message,
                            cut,
                            fragment: progress.fragment,
                        },
                    };
                    let room = room.saturating_sub(u32::from(*pieces));
                    let now = TaiTime::from_nanos(now_ns);
                    let (appended, refused, queued) =
                        schedule(remote, port, &mut ports[port], piece, room, now);
                    *pieces += queued;
                    progress.outcome = refused.unwrap_or(progress.outcome);
                    appended
                }
                Some((remote, port, cut)) => {
                    let appended = remote.append(
                        port,
                        ports[port].port.as_mut(),
                        &message,
                        payload,
                        &cut,
                        progress.fragment,
                    );
                    if remote.enlist(port) {
                        ports[port].open.push(destination);
                    }
                    ports[port].dirty = true;
                    appended
                }
                None => Appended::Unreachable,
            };
            match appended {
                Appended::Done => channel.counters.sent.add(1),
                Appended::Unreachable => {
                    channel.counters.unreachable.add(1);
                    progress.outcome = Outcome::Unreachable;
                }
                Appended::Until { fragment, blocked } => {
                    progress.goes_on(fragment);
                    let step = if blocked { Step::Blocked } else { Step::More };
                    return Sent::Unfinished { progress, step };
                }
                Appended::Held { fragment } => {
                    progress.goes_on(fragment);
                    let step = Step::Held;
                    return Sent::Unfinished { progress, step };
                }
            }
            progress.destination += 1;
            progress.goes_on(0);
        }
        Sent::Finished(progress.outcome)
    }
}

/// Gives a message, from the fragment of `piece` on, to the scheduler of a port, at most `room` frames of
/// it: what became of it, why it is not taken, and how many frames wait.
#[cold]
fn schedule(
    remote: &Remote,
    at: usize,
    port: &mut LanePort,
    piece: Piece,
    room: u32,
    now: TaiTime,
) -> (Appended, Option<Outcome>, u16) {
    let unreachable = (Appended::Unreachable, None, 0);
    let Some(peer) = remote.via[at] else {
        return unreachable;
    };
    let kept = port.keeps(peer, class_of(&piece.descriptor));
    let Some(departures) = &mut port.departures else {
        return unreachable;
    };
    if kept {
        departures.hand_ahead(class_of(&piece.descriptor));
    }
    let queued = departures.queue_message(piece, room, remote.overhead(), now);
    let (appended, refused) = match queued.end {
        End::Done => (Appended::Done, None),
        End::Full { fragment } => (Appended::Held { fragment }, None),
        End::Refused(outcome) => (Appended::Done, Some(outcome)),
    };
    (appended, refused, queued.pieces)
}

impl State {
    /// Sends what is due at the ports that have a scheduler. True if there was anything.
    pub(super) fn depart(&mut self, ports: &mut [LanePort]) -> bool {
        let mut worked = false;
        for (at, lane_port) in ports.iter_mut().enumerate() {
            let waiting = |departures: &mut Box<Departures>| departures.due().is_some();
            let Some(mut departures) = lane_port.departures.take_if(waiting) else {
                continue;
            };
            self.round.work();
            let clock = self.round.clock.clone();
            worked |= departures.run(&*clock, &mut |leaving| match leaving {
                Leaving::Send(departure) => {
                    let piece = &departure.item.handle;
                    let left = self.leave(lane_port, at, piece, departure.start);
                    self.departed(piece, left);
                    left.ok()
                }
                Leaving::Drop(piece, outcome) => {
                    self.departed(piece, Err(outcome));
                    None
                }
            });
            lane_port.departures = Some(departures);
        }
        if worked {
            self.room_made();
        }
        worked
    }

    /// Whoever was held back for want of room in a scheduler looks again.
    pub(super) fn room_made(&mut self) {
        if std::mem::take(&mut self.held) {
            for (_, session) in &mut self.tenants.sessions {
                session.active = true;
            }
        }
    }

    /// Builds the datagram of one frame and holds it until its start, unless the port does that: when it left, or
    /// why it does not.
    fn leave(
        &mut self,
        lane_port: &mut LanePort,
        at: usize,
        piece: &Piece,
        start: TaiTime,
    ) -> Result<TaiTime, Outcome> {
        let kept = match piece.destination {
            Destination::Remote {
                remote,
                message,
                cut,
                fragment,
            } => self
                .build_fragment(
                    lane_port, at, piece, remote, &message, &cut, fragment, start,
                )
                .ok_or(Outcome::Unreachable)?,
            Destination::Network { network, exit } => {
                self.build_frame(lane_port, at, piece, network, exit, start)?
            }
        };
        let start = start.as_nanos();
        let mut now = self.round.read();
        if kept {
            // Its departure is the port's matter from here on: late is what was handed over late.
            now = now.max(start);
        }
        // The scheduler is ahead by its lead at most: further only if the clock was stepped back.
        while now < start && start - now <= super::departure::DEVICE_LEAD_NS {
            std::hint::spin_loop();
            now = self.round.read();
        }
        lane_port.dirty = !lane_port.port.flush();
        self.counters.tx_datagrams.add(1);
        Ok(TaiTime::from_nanos(now))
    }

    /// Commits the datagram of one fragment: whether the port keeps its start. `None`: it has no path.
    #[allow(clippy::too_many_arguments)] // one fragment: where, of what, when
    fn build_fragment(
        &mut self,
        lane_port: &mut LanePort,
        at: usize,
        piece: &Piece,
        remote: usize,
        message: &Outgoing,
        cut: &Cut,
        fragment: u32,
        start: TaiTime,
    ) -> Option<bool> {
        let remote = self.remotes.get_mut(remote)?;
        let session = self.tenants.sessions.get(piece.session)?;
        let kept = lane_port.keeps(remote.via[at]?, message.class);
        let port = lane_port.port.as_mut();
        // What is being filled leaves before, not with it.
        remote.close(at, port, None);
        let payload = session.emitted(piece.descriptor.chunk, piece.descriptor.length);
        let put = remote.part(at, port, message, payload, cut, fragment);
        if put.is_err() {
            lane_port.dirty = true;
            return None;
        }
        remote.close(at, port, kept.then_some(start));
        Some(kept)
    }

    /// A frame has left its scheduler: sent at an instant, or not for the reason given.
    pub(super) fn departed(&mut self, piece: &Piece, left: Result<TaiTime, Outcome>) {
        let Some(session) = self.tenants.sessions.get_mut(piece.session) else {
            return;
        };
        if let Err(failure) = session.departed(piece.source, piece.descriptor.chunk, left) {
            self.tenants.fail(piece.session, failure);
        }
    }
}

pub(super) enum Sent {
    Finished(Outcome),
    Unfinished { progress: InProgress, step: Step },
}

pub(super) fn class_of(descriptor: &TxDescriptor) -> TrafficClass {
    // Checked when it was taken.
    TrafficClass::new(descriptor.class).unwrap_or_default()
}
