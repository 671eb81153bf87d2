//! What was found, tried on the scheduler: frames of all streams over all ports, beside others that are always waiting, with
//! clocks, switches and talkers off by all that the plan allows.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::sync::Arc;

use takt_time::{TaiTime, TrafficClass};

use super::{Plan, Synthesis};
use crate::admission::{Talker, admit};
use crate::classes::ClassTable;
use crate::gate::{GateList, GateMask};
use crate::port::{Decision, Item, Port, PortConfig};
use crate::summary::PortModel;

/// How often all is replayed, each time with other errors.
const ROUNDS: u64 = 8;
/// Most frames of streams in a replay.
const MOST_FRAMES: usize = 1 << 15;
/// Most decisions of ports in a replay: those about others that are always waiting count, too.
const MOST_DECISIONS: usize = 1 << 19;

/// A promise of a synthesis that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The stream, by its place in the plan.
    pub stream: usize,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// Tries a synthesis on what runs, so that it is not believed because it was computed. Answers until when from the beginning
/// of the cycle it was tried, nanoseconds, where two cycles have more than can be looked at in some seconds.
///
/// # Errors
/// The first promise that was seen not to hold.
pub fn verify(plan: &Plan, found: &Synthesis) -> Result<Option<u64>, Broken> {
    talkers(plan, found)?;
    let mut until: Option<u64> = None;
    for round in 0..ROUNDS {
        let tried = Replay::new(plan, found, round).run()?;
        until = until.into_iter().chain(tried).min();
    }
    Ok(until)
}

/// The talkers' ports, by the rules by which a node takes declared streams.
fn talkers(plan: &Plan, found: &Synthesis) -> Result<(), Broken> {
    for (port, schedule) in &found.schedules {
        let link = &plan.ports[*port].link;
        let from_here = |at: &usize| {
            let first = found.streams[*at].hops.first();
            first.is_some_and(|hop| hop.port == *port)
        };
        let streams: Vec<usize> = (0..plan.streams.len()).filter(from_here).collect();
        let declared: Vec<Talker> = streams
            .iter()
            .map(|at| {
                let stream = &plan.streams[*at];
                Talker {
                    priority: stream.class,
                    period_ns: stream.period_ns,
                    offset_ns: found.streams[*at].offset_ns,
                    window_ns: stream.window_ns.saturating_add(plan.launch_error_ns),
                    octets: stream.octets,
                    frames: stream.frames,
                }
            })
            .collect();
        let misfits = admit(schedule, &ClassTable::default(), link, 0, &declared);
        if let Some((at, misfit)) = misfits.into_iter().next() {
            return Err(Broken {
                stream: streams[at],
                what: format!("{}: {misfit}", plan.ports[*port].name()),
            });
        }
    }
    Ok(())
}

/// A frame of a stream on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    stream: usize,
    hop: usize,
    /// When its period's launch offset is: nanoseconds.
    launch_ns: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Comes(Frame),
    Looks(usize),
}

struct Replay<'a> {
    plan: &'a Plan,
    found: &'a Synthesis,
    round: u64,
    /// By the ports of the plan; `None` where no stream passes.
    ports: Vec<Option<Port<Option<Frame>>>>,
    /// A class of each port that no stream has, whose frames are always waiting.
    others: Vec<Option<TrafficClass>>,
    /// By how much the clock of each node is ahead.
    ahead_ns: HashMap<&'a str, i64>,
    events: BinaryHeap<Reverse<(i64, u64, Event)>>,
    /// When each port is looked at next: what was noted for later is of no account then.
    looks: Vec<i64>,
    /// Events so far: they are looked at in the order in which they were noted.
    noted: u64,
    /// Frames that are to reach a listener still.
    expected: usize,
    /// The first launch that is left out, nanoseconds.
    left_out_ns: Option<i64>,
}

impl<'a> Replay<'a> {
    fn new(plan: &'a Plan, found: &'a Synthesis, round: u64) -> Self {
        let mut replay = Self {
            plan,
            found,
            round,
            ports: plan.ports.iter().map(|_| None).collect(),
            others: vec![None; plan.ports.len()],
            ahead_ns: HashMap::new(),
            events: BinaryHeap::new(),
            looks: vec![i64::MAX; plan.ports.len()],
            noted: 0,
            expected: 0,
            left_out_ns: None,
        };
        let half = (plan.sync_error_ns / 2) as i64;
        for port in &plan.ports {
            for node in [&port.from, &port.to] {
                let known = replay.ahead_ns.len() as u64;
                let ahead = replay.chosen(known, 2 * half as u64) - half;
                replay.ahead_ns.entry(node).or_insert(ahead);
            }
        }
        for (number, schedule) in &found.schedules {
            let Ok(list) = GateList::new(schedule) else {
                continue;
            };
            let mut port = Port::new(PortConfig {
                link: plan.ports[*number].link,
                initial_gates: GateMask::NONE,
                queue_capacity: 1 << 16,
                ..PortConfig::default()
            });
            let before = TaiTime::from_nanos(schedule.base_time.as_nanos() - 1);
            port.gates_mut().install(Arc::new(list), before);
            replay.ports[*number] = Some(port);
            let used = |class: &TrafficClass| {
                let mut passing = plan.streams.iter().zip(&found.streams);
                passing.any(|(stream, placed)| {
                    stream.class == *class && placed.hops.iter().any(|hop| hop.port == *number)
                })
            };
            replay.others[*number] = TrafficClass::all().rev().find(|class| !used(class));
        }
        replay.launch_all();
        replay
    }

    /// Something up to `most` that is another in each round: none in the first, all in the second.
    fn chosen(&self, of: u64, most: u64) -> i64 {
        let part = match self.round {
            0 => return 0,
            1 => return most as i64,
            // SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
            round => {
                let mut mixed = (of ^ (round << 48)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                mixed ^ (mixed >> 31)
            }
        };
        (part % (most + 1)) as i64
    }

    fn note(&mut self, at_ns: i64, event: Event) {
        self.noted += 1;
        self.events.push(Reverse((at_ns, self.noted, event)));
    }

    fn look_at(&mut self, at_ns: i64, port: usize) {
        if at_ns < self.looks[port] {
            self.looks[port] = at_ns;
            self.note(at_ns, Event::Looks(port));
        }
    }

    /// Two cycles of what every stream sends, or so much of it that it ends soon.
    fn launch_all(&mut self) {
        let cycles = self.found.schedules.iter().map(|(_, s)| s.cycle_time_ns);
        let until_ns = cycles.max().unwrap_or(0).saturating_mul(2) as i64;
        let mut launches: Vec<(i64, usize)> = Vec::new();
        for (stream, planned) in self.plan.streams.iter().enumerate() {
            let offset = self.found.streams[stream].offset_ns as i64;
            let all = (offset..until_ns).step_by(planned.period_ns as usize);
            launches.extend(all.take(MOST_FRAMES).map(|at| (at, stream)));
        }
        launches.sort_unstable();
        self.left_out_ns = launches.get(MOST_FRAMES).map(|(at, _)| *at);
        launches.truncate(MOST_FRAMES);
        for (launch_ns, stream) in launches {
            let planned = &self.plan.streams[stream];
            if self.noted as usize > MOST_FRAMES {
                self.left_out_ns = Some(launch_ns);
                break;
            }
            let most = planned.window_ns.saturating_add(self.plan.launch_error_ns);
            let later = self.chosen(self.noted, most);
            let ahead = self.ahead_ns.get(planned.talker.as_str()).copied();
            let at_ns = launch_ns + later - ahead.unwrap_or(0);
            for _ in 0..planned.frames {
                self.expected += planned.listeners.len();
                let hop = 0;
                self.note(
                    at_ns,
                    Event::Comes(Frame {
                        stream,
                        hop,
                        launch_ns,
                    }),
                );
            }
        }
    }

    fn ahead(&self, port: usize) -> i64 {
        let node = self.plan.ports[port].from.as_str();
        self.ahead_ns.get(node).copied().unwrap_or(0)
    }

    /// Until when it was run, if not to its end.
    fn run(mut self) -> Result<Option<u64>, Broken> {
        let mut decisions = 0;
        while let Some(Reverse((at_ns, _, event))) = self.events.pop() {
            let port = match event {
                Event::Comes(frame) => {
                    self.comes(at_ns, frame)?;
                    self.found.streams[frame.stream].hops[frame.hop].port
                }
                Event::Looks(port) if at_ns != self.looks[port] => continue,
                Event::Looks(port) => {
                    self.looks[port] = i64::MAX;
                    port
                }
            };
            decisions += 1;
            if self.expected == 0 {
                break;
            }
            if decisions > MOST_DECISIONS {
                return Ok(Some(at_ns.max(0) as u64));
            }
            self.look(at_ns, port)?;
        }
        match self.expected {
            0 => Ok(self.left_out_ns.map(|at| at.max(0) as u64)),
            missing => Err(Broken {
                stream: 0,
                what: format!("{missing} frames reached no listener"),
            }),
        }
    }

    fn broken(&self, frame: Frame, what: &str) -> Broken {
        let placed = &self.found.streams[frame.stream];
        let port = self.plan.ports[placed.hops[frame.hop].port].name();
        let stream = frame.stream;
        let name = &self.plan.streams[stream].name;
        let launch_ns = frame.launch_ns;
        Broken {
            stream,
            what: format!("at {port}: the frame that {name} launched at {launch_ns} ns {what}"),
        }
    }

    fn comes(&mut self, at_ns: i64, frame: Frame) -> Result<(), Broken> {
        let stream = &self.plan.streams[frame.stream];
        let number = self.found.streams[frame.stream].hops[frame.hop].port;
        let now = TaiTime::from_nanos(at_ns + self.ahead(number));
        let item = Item::new(stream.octets, Some(frame));
        let taken = match &mut self.ports[number] {
            Some(port) => port.enqueue(stream.class, item, now).is_ok(),
            None => false,
        };
        match taken {
            true => Ok(()),
            false => Err(self.broken(frame, "is not taken")),
        }
    }

    fn look(&mut self, at_ns: i64, number: usize) -> Result<(), Broken> {
        let ahead = self.ahead(number);
        let now = TaiTime::from_nanos(at_ns + ahead);
        let Some(port) = &mut self.ports[number] else {
            return Ok(());
        };
        if let Some(other) = self.others[number].filter(|other| port.queued(*other) == 0) {
            let largest = PortModel::default().largest_frame;
            // Where the time that is left is too short for it, it waits nowhere.
            let _ = port.enqueue(other, Item::new(largest, None), now);
        }
        match port.next(now) {
            Decision::Send(sent) => {
                let start = sent.start.as_nanos() - ahead;
                let end = start + port.link().transmission_ns(sent.item.len) as i64;
                self.look_at(at_ns, number);
                match sent.item.handle {
                    Some(frame) => self.sent(frame, start, end),
                    None => Ok(()),
                }
            }
            Decision::WaitUntil(until) => {
                self.look_at(until.as_nanos() - ahead, number);
                Ok(())
            }
            Decision::Drop(_) | Decision::Idle => Ok(()),
        }
    }

    /// A frame was on the wire between these instants, by a clock that is right.
    fn sent(&mut self, frame: Frame, start_ns: i64, end_ns: i64) -> Result<(), Broken> {
        let placed = &self.found.streams[frame.stream];
        let hop = placed.hops[frame.hop];
        let planned = &self.plan.ports[hop.port];
        let ahead = self.ahead(hop.port);
        if start_ns + ahead < frame.launch_ns + hop.opens_ns {
            return Err(self.broken(frame, "leaves before its window"));
        }
        if end_ns + ahead > frame.launch_ns + hop.closes_ns {
            return Err(self.broken(frame, "leaves behind its window"));
        }
        let there_ns = end_ns + planned.delay_ns as i64;
        let here = &self.plan.streams[frame.stream];
        if here.listeners.contains(&planned.to) {
            let talker = self.ahead_ns.get(here.talker.as_str()).copied();
            let late_ns = there_ns + talker.unwrap_or(0) - frame.launch_ns;
            if late_ns > placed.latency_ns.min(here.deadline_ns) as i64 {
                return Err(self.broken(frame, "is there too late"));
            }
            self.expected = self.expected.saturating_sub(1);
        }
        let behind = placed.hops.iter().enumerate();
        let behind: Vec<usize> = behind
            .filter(|(_, next)| next.from == Some(frame.hop))
            .map(|(at, _)| at)
            .collect();
        for next in behind {
            let most = self.plan.ports[placed.hops[next].port].forwarding_ns;
            let later = self.chosen(self.noted, most);
            self.note(there_ns + later, Event::Comes(Frame { hop: next, ..frame }));
        }
        Ok(())
    }
}
