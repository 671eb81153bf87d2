//! Per-stream filtering and policing of what tenants send (IEEE 802.1Q-2022, clause 8.6.5.2), at the node where it begins.
//!
//! A tenant's streams are declared: when each launches, how long its frames are and how many there are in a period.
//! As a stream filter of the standard it has a maximum SDU size; as a stream gate, an interval in which it is open, by
//! the launch time that a frame names and will leave at; as a flow meter, a number of frames. A frame outside is refused,
//! and counted by stream and reason. Nothing here reads a clock, and a frame costs a search among the streams of
//! its tenant and one atomic update: several lanes may carry one tenant.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicI64,
    Ordering::{Relaxed, SeqCst},
};

use takt_schedule::admission::Talker;
use takt_session::ChannelId;
use takt_session::layout::Outcome;
use takt_time::TrafficClass;
use takt_wire::ethernet::EtherType;

use crate::counters::{Counter, StreamCounters, StreamReading};
use crate::policy::Policy;

/// Most streams that a tenant may declare: each frame is looked up among them.
pub const MOST_STREAMS: usize = 1024;
/// Shortest period, nanoseconds, and most frames in one: what the meter counts with.
pub const LEAST_PERIOD_NS: u64 = 1_000;
/// See [`LEAST_PERIOD_NS`].
pub const MOST_FRAMES: u32 = 1024;
/// A launch time lies within so many nanoseconds of now: nobody's meter is moved further.
const HORIZON_NS: i64 = crate::lane::departure::HORIZON.as_nanos() as i64;
/// Time goes backwards by so many nanoseconds only if the clock was stepped, not because lanes read it apart.
const STEP_NS: i64 = 1_000_000_000;
/// Octets of a frame that tell its destination: Ethernet's header, the longest of IP without extensions, and UDP's ports.
pub const HEAD: usize = 14 + 60 + 4;

/// What tells a stream's frames from others, besides their class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flow {
    /// Messages of a channel.
    Channel(ChannelId),
    /// UDP datagrams to this address, from the tenant's endpoint in a network.
    Destination(SocketAddr),
}

impl Flow {
    /// Which one a frame is of, as its first octets say; `None`: it is no UDP datagram, or a part of one.
    pub fn of_frame(head: &[u8]) -> Option<Self> {
        const UDP: u8 = 17;
        let packet = head.get(14..)?;
        let (address, ports): (IpAddr, usize) =
            match EtherType(u16::from_be_bytes([*head.get(12)?, *head.get(13)?])) {
                EtherType::IPV4 => {
                    let whole = packet.get(6)? & 0x3f == 0 && *packet.get(7)? == 0;
                    if !whole || *packet.get(9)? != UDP {
                        return None;
                    }
                    let address: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
                    (address.into(), usize::from(packet.first()? & 0xf) * 4)
                }
                EtherType::IPV6 => {
                    if *packet.get(6)? != UDP {
                        return None;
                    }
                    let address: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
                    (address.into(), 40)
                }
                _ => return None,
            };
        let port = packet.get(ports + 2..ports + 4)?.try_into().ok()?;
        let port = u16::from_be_bytes(port);
        Some(Self::Destination(SocketAddr::new(address, port)))
    }
}

/// A stream as an operator declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredStream {
    /// For people, logs and metrics; no other of the tenant has it.
    pub name: String,
    /// Which frames are its own, of those with its class.
    pub flow: Flow,
    /// When it sends, and what.
    pub talker: Talker,
}

/// A stream with what it has used.
#[derive(Debug)]
struct Stream {
    declared: DeclaredStream,
    meter: Meter,
    repairs: Repairs,
    counters: Arc<StreamCounters>,
}

/// How many frames of which period have passed. The frames of all periods are numbered, as many to a period as may be
/// in it: what is kept is the number of the next one that may pass.
#[derive(Debug)]
struct Meter {
    next: AtomicI64,
    /// When a frame passed last, TAI nanoseconds.
    passed_at: AtomicI64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            next: AtomicI64::new(i64::MIN),
            passed_at: AtomicI64::new(i64::MIN),
        }
    }
}

impl Meter {
    /// The first period from this one on of which not all frames have passed, and how many have.
    fn first(&self, period: i64, most: i64) -> (i64, i64) {
        let next = self.next.load(Relaxed).max(period * most);
        (next.div_euclid(most), next.rem_euclid(most))
    }

    /// Lets so many frames of a period pass, or none of them: of `most` in a period, at most `limit` in this one.
    fn take(&self, period: i64, (most, limit): (i64, i64), frames: i64, now_ns: i64) -> bool {
        let begin = period * most;
        let pass =
            |next: i64| Some(next.max(begin) + frames).filter(|after| *after <= begin + limit);
        let mut passed = self.next.try_update(SeqCst, SeqCst, pass).is_ok();
        if !passed && now_ns < self.passed_at.load(Relaxed).saturating_sub(STEP_NS) {
            // The periods that were used are in the future of the clock as it is now.
            self.next.store(i64::MIN, SeqCst);
            passed = self.next.try_update(SeqCst, SeqCst, pass).is_ok();
        }
        if passed {
            self.passed_at.store(now_ns, Relaxed);
        }
        passed
    }

    /// Frames of a period that have passed; all of it when it is over.
    fn used(&self, period: i64, most: i64) -> i64 {
        let next = self.next.load(SeqCst);
        next.saturating_sub(period * most).clamp(0, most)
    }

    /// Takes back that frames of a period have passed, unless the next period's have since.
    fn give_back(&self, period: i64, most: i64, frames: i64) {
        let begin = period * most;
        let back = |next: i64| {
            (begin + frames..=begin + most)
                .contains(&next)
                .then_some(next - frames)
        };
        let _ = self.next.try_update(SeqCst, SeqCst, back);
    }
}

/// Frames that are sent again in the two periods that were used last, by their parity: a period's number in units of
/// [`Repairs::UNIT`], and how many.
#[derive(Debug)]
struct Repairs([AtomicI64; 2]);

impl Default for Repairs {
    fn default() -> Self {
        Self([const { AtomicI64::new(i64::MIN) }; 2])
    }
}

impl Repairs {
    const UNIT: i64 = 2 * MOST_FRAMES as i64;

    fn count(&self, period: i64) -> i64 {
        let noted = self.0[(period & 1) as usize].load(SeqCst);
        match noted.div_euclid(Self::UNIT) == period {
            true => noted.rem_euclid(Self::UNIT),
            false => 0,
        }
    }

    /// Lets one more of a period pass. `stepped`: what is further ahead was noted before the clock was stepped back.
    fn take(&self, period: i64, most: i64, stepped: i64) -> bool {
        let pass = |noted: i64| {
            let (of, count) = (noted.div_euclid(Self::UNIT), noted.rem_euclid(Self::UNIT));
            let count = match of - period {
                0 => count,
                ahead if (1..stepped).contains(&ahead) => return None,
                _ => 0,
            };
            (count < most).then_some(period * Self::UNIT + count + 1)
        };
        let noted = &self.0[(period & 1) as usize];
        noted.try_update(SeqCst, SeqCst, pass).is_ok()
    }

    /// Takes back that one more of a period has passed.
    fn give_back(&self, period: i64) {
        let some = period * Self::UNIT + 1..(period + 1) * Self::UNIT;
        let back = |noted: i64| some.contains(&noted).then_some(noted - 1);
        let _ = self.0[(period & 1) as usize].try_update(SeqCst, SeqCst, back);
    }
}

/// Frames that are to leave: those of one message for one receiver.
#[derive(Clone, Copy, Debug)]
pub struct Offered {
    /// What they are marked with.
    pub class: TrafficClass,
    /// The instant at which they are to leave, TAI nanoseconds; `None`: as soon as they can, or at the latest then.
    pub launch_ns: Option<i64>,
    /// Octets of the longest, without FCS, as it leaves.
    pub octets: usize,
    /// How many.
    pub frames: u32,
}

/// What becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They may leave. Their class is none in which streams are declared, or others are allowed there.
    Undeclared,
    /// They are a declared stream's, and may leave in time, or not at all.
    Declared,
    /// They do not leave.
    Refused(Outcome),
}

/// What becomes of a frame that is to be sent again, because it was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// It may leave at any time.
    Undeclared,
    /// It is a declared stream's, and is to leave at this instant, TAI nanoseconds.
    At(i64),
    /// Not for now: it is to be asked again at this instant.
    Later(i64),
    /// It does not leave.
    Never,
}

/// What the streams of a tenant may send.
#[derive(Debug, Default)]
pub struct Policer {
    /// By class and flow.
    streams: Vec<Arc<Stream>>,
    /// Classes in which streams are declared, and those that the tenant may not use any more, a bit each.
    classes: u8,
    /// Those that it may use.
    allowed: u8,
    /// Other frames of these classes pass.
    undeclared: bool,
    /// Those that did not.
    refused: Arc<Counter>,
}

impl Policer {
    /// That of a policy. What stays declared as it was in `before` goes on as it was, and names keep their counts.
    pub fn new(policy: &Policy, before: &Self) -> Self {
        let known = |name: &str| before.streams.iter().find(|s| s.declared.name == name);
        let streams = policy
            .streams
            .iter()
            .map(|declared| match known(&declared.name) {
                Some(stream) if stream.declared == *declared => stream.clone(),
                known => Arc::new(Stream {
                    declared: declared.clone(),
                    meter: Meter::default(),
                    repairs: Repairs::default(),
                    counters: known.map(|s| s.counters.clone()).unwrap_or_default(),
                }),
            });
        let mut streams: Vec<Arc<Stream>> = streams.collect();
        streams.sort_by_key(|stream| key(&stream.declared));
        let bit = |stream: &Arc<Stream>| 1 << stream.declared.talker.priority.number();
        Self {
            classes: streams
                .iter()
                .map(bit)
                .fold(!policy.classes, |classes, bit: u8| classes | bit),
            allowed: policy.classes,
            streams,
            undeclared: policy.undeclared_streams,
            refused: before.refused.clone(),
        }
    }

    /// Whether streams are declared in a class, or it has been taken away.
    #[inline]
    pub fn polices(&self, class: TrafficClass) -> bool {
        self.classes & 1 << class.number() != 0
    }

    /// The classes, by bit, that are policed.
    pub fn policed(&self) -> u8 {
        self.classes
    }

    /// The classes that its tenant may use, by bit.
    pub fn allowed(&self) -> u8 {
        self.allowed
    }

    /// Whether what is of no stream passes.
    fn passes_undeclared(&self, class: TrafficClass) -> bool {
        self.undeclared && self.allowed & 1 << class.number() != 0
    }

    fn find(&self, class: TrafficClass, flow: Option<Flow>) -> Option<&Stream> {
        let wanted = (class, flow?);
        let at = self
            .streams
            .binary_search_by_key(&wanted, |s| key(&s.declared));
        Some(self.streams.get(at.ok()?)?)
    }

    /// Decides on a frame of so many octets that is to be sent again, of a message that had so many frames, in a class that is
    /// policed: a declared stream's leaves in the next window, from `from_ns` on, in which its frames leave room beside a
    /// message's own.
    pub fn decide_again(
        &self,
        flow: Option<Flow>,
        offered: &Offered,
        from_ns: i64,
        now_ns: i64,
    ) -> Again {
        let Some(stream) = self.find(offered.class, flow) else {
            return match self.passes_undeclared(offered.class) {
                true => Again::Undeclared,
                false => Again::Never,
            };
        };
        let again = stream.repeat(offered, from_ns, now_ns);
        if let Again::At(_) = again {
            stream.counters.passed.add_shared(1);
        }
        again
    }

    /// Decides on frames of a class that is policed, and counts them.
    pub fn decide(&self, flow: Option<Flow>, offered: &Offered, now_ns: i64) -> Verdict {
        let Some(stream) = self.find(offered.class, flow) else {
            if self.passes_undeclared(offered.class) {
                return Verdict::Undeclared;
            }
            self.refused.add_shared(offered.frames.into());
            return Verdict::Refused(Outcome::Refused);
        };
        let counters = &stream.counters;
        let (counter, verdict) = match stream.admit(offered, now_ns) {
            Ok(()) => (&counters.passed, Verdict::Declared),
            Err((reason, outcome)) => (
                match reason {
                    Reason::Window => &counters.refused_window,
                    Reason::Size => &counters.refused_size,
                    Reason::Excess => &counters.refused_excess,
                },
                Verdict::Refused(outcome),
            ),
        };
        counter.add_shared(offered.frames.into());
        verdict
    }

    /// What has become of the frames of each stream, in the order of the policy, and how many of no stream were refused.
    pub fn read(&self, policy: &Policy) -> (Vec<StreamReading>, u64) {
        let read = |declared: &DeclaredStream| {
            let mut streams = self.streams.iter();
            let found = streams.find(|stream| stream.declared.name == declared.name);
            found
                .map(|stream| stream.counters.read())
                .unwrap_or_default()
        };
        (
            policy.streams.iter().map(read).collect(),
            self.refused.get(),
        )
    }
}

fn key(declared: &DeclaredStream) -> (TrafficClass, Flow) {
    (declared.talker.priority, declared.flow)
}

/// What is wrong with frames of a stream.
enum Reason {
    Window,
    Size,
    Excess,
}

impl Stream {
    /// When a frame of a message that had `offered.frames` may leave again.
    fn repeat(&self, offered: &Offered, from_ns: i64, now_ns: i64) -> Again {
        let talker = &self.declared.talker;
        let most = i64::from(talker.frames);
        // What is sent again takes nobody's place: a period has room for a message as before.
        let spare = most - i64::from(offered.frames);
        if spare <= 0 || offered.octets > talker.octets as usize {
            return Again::Never;
        }
        let period_ns = talker.period_ns as i64;
        let since = from_ns.saturating_sub(talker.offset_ns as i64);
        let next = since.saturating_add(period_ns - 1).div_euclid(period_ns);
        let launch_ns = |period: i64| period * period_ns + talker.offset_ns as i64;
        // Where messages are admitted ahead, how many there are is known of the last period alone.
        let (mut period, mut used) = self.meter.first(next, most);
        let stepped_back = launch_ns(period) - now_ns > HORIZON_NS;
        if stepped_back {
            // It was used before the clock was stepped back.
            (period, used) = (next, 0);
        }
        let stepped = HORIZON_NS / period_ns + 1;
        if !self.repairs.take(period, spare.min(most - used), stepped) {
            return Again::Later(launch_ns(period));
        }
        // Another lane may have let frames pass meanwhile, and not seen this one. One of the two sees the other.
        let all = self.meter.used(period, most) + self.repairs.count(period);
        if !stepped_back && all > most {
            self.repairs.give_back(period);
            return Again::Later(launch_ns(period));
        }
        Again::At(launch_ns(period))
    }

    fn admit(&self, offered: &Offered, now_ns: i64) -> Result<(), (Reason, Outcome)> {
        let talker = &self.declared.talker;
        let Some(launch_ns) = offered.launch_ns else {
            return Err((Reason::Window, Outcome::Refused));
        };
        if offered.octets > talker.octets as usize {
            return Err((Reason::Size, Outcome::Refused));
        }
        // Whatever a program writes there.
        let ahead = launch_ns.saturating_sub(now_ns);
        if ahead > HORIZON_NS {
            return Err((Reason::Window, Outcome::NotScheduled));
        }
        if ahead < -HORIZON_NS {
            return Err((Reason::Window, Outcome::Late));
        }
        let period_ns = talker.period_ns as i64;
        let since = launch_ns.saturating_sub(talker.offset_ns as i64);
        if since.rem_euclid(period_ns) as u64 > talker.window_ns {
            return Err((Reason::Window, Outcome::Refused));
        }
        let period = since.div_euclid(period_ns);
        let (most, frames) = (i64::from(talker.frames), i64::from(offered.frames));
        // What is sent again has its part of them.
        let limit = most - self.repairs.count(period);
        if !self.meter.take(period, (most, limit), frames, now_ns) {
            return Err((Reason::Excess, Outcome::Refused));
        }
        // Another lane may have let one that is sent again pass meanwhile, and not seen these.
        let again = self.repairs.count(period);
        if most - again < limit && self.meter.used(period, most) + again > most {
            self.meter.give_back(period, most, frames);
            return Err((Reason::Excess, Outcome::Refused));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
