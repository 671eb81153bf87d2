//! Traffic without launch times, of a pod of which that is taken too: so that it is inside the schedule of the link, and not
//! beside it. A thread and a session of its own, for which no launch time waits.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::Scope;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use takt::{FrameOptions, Outcome, TrafficClass};

use crate::counters::{OtherCounters, Unserved};
use crate::error::Error;
use crate::forward::timespec;
use crate::programs::{HANGS, OtherMaps, Returner};
use crate::record::{Record, SHARES, Towards, complete_checksum};
use crate::runtime::{Emitted, ROOM, Runtime, TICK, Turn};

/// Frames of one turn.
const BURST: usize = 64;
/// For how long the program passes what goes where the runtime does not send, before the runtime is asked again.
const ELSEWHERE: Duration = Duration::from_secs(5);
/// How many are asked for at a time.
const ASKED: usize = 16;
/// How long is waited for more while there is traffic: what comes together costs less, and no launch time depends on it.
const MORE: Duration = Duration::from_micros(50);
/// For how long the end waits for what the runtime has: some cycles of most schedules.
const LEAVING: Duration = Duration::from_millis(500);
/// Such destinations that are remembered: as many as the program's map has.
const MOST_ELSEWHERE: usize = 4096;

/// What the frame in hand waits for.
enum Held {
    /// Room in the runtime.
    Room(Towards),
    /// Frames that go to the same place and have been given to the runtime: it is the kernel's, for that reason, and is not to overtake them.
    Behind(Unserved),
}

/// A destination as the program has it: the station, two octets of nothing, the receiver.
type Key = [u8; 24];

fn key(towards: Towards) -> Key {
    let mut key = [0; 24];
    key[..6].copy_from_slice(&towards.station);
    match towards.receiver {
        Some(IpAddr::V4(address)) => key[8..12].copy_from_slice(&address.octets()),
        Some(IpAddr::V6(address)) => key[8..].copy_from_slice(&address.octets()),
        None => {}
    }
    key
}

/// What takes such traffic to the runtime.
pub(crate) struct Others {
    runtime: Runtime,
    maps: OtherMaps,
    returner: Returner,
    counters: Arc<OtherCounters>,
    frame: Vec<u8>,
    /// How many were taken from the ring.
    taken: u64,
    /// And octets, by share; those shares of which the program has not been told.
    octets: Box<[u64; SHARES]>,
    untold: Vec<usize>,
    /// What the frame in hand waits for.
    held: Option<Held>,
    /// What the program knows to be elsewhere, and since when.
    known: HashMap<Towards, Instant>,
    /// What it is told of as soon as nothing of it waits in the ring, which would be overtaken; or after a while.
    found: Vec<Towards>,
    next_tick: Instant,
    /// Whether something has become of a frame since the last tick.
    got_on: bool,
    /// When the program was told last that it gets on.
    lived: Instant,
}

/// Ends what takes packets without a launch time when it is dropped.
pub(crate) struct Ending(OwnedFd);

impl Ending {
    /// What becomes readable then, and itself.
    fn new() -> Result<(OwnedFd, Self), Error> {
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        let end = rustix::event::eventfd(0, flags).map_err(std::io::Error::from);
        let end = end.map_err(Error::system("create an eventfd"))?;
        let ending = end
            .try_clone()
            .map_err(Error::system("copy a descriptor"))?;
        Ok((end, Self(ending)))
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        // The first write to an eventfd does not fail.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Others {
    /// With a session of the runtime.
    pub(crate) fn new(runtime: Runtime, maps: OtherMaps, returner: Returner) -> Self {
        Self {
            runtime,
            maps,
            returner,
            counters: Arc::default(),
            frame: Vec::new(),
            taken: 0,
            octets: Box::new([0; SHARES]),
            untold: Vec::new(),
            held: None,
            known: HashMap::new(),
            found: Vec::new(),
            next_tick: Instant::now(),
            got_on: false,
            lived: Instant::now(),
        }
    }

    /// What it counts.
    pub(crate) fn counters(&self) -> Arc<OtherCounters> {
        Arc::clone(&self.counters)
    }

    /// Does it on a thread, until what this returns is dropped.
    pub(crate) fn start<'s>(self, scope: &'s Scope<'s, '_>) -> Result<Ending, Error> {
        let (end, ending) = Ending::new()?;
        std::thread::Builder::new()
            .name("takt-others".to_owned())
            .spawn_scoped(scope, || self.run(end))
            .map_err(Error::system("start a thread"))?;
        Ok(ending)
    }

    /// Gives the runtime what is taken until `end` is readable, when no more is taken; what is left then goes the kernel's way.
    fn run(mut self, end: impl AsFd) {
        loop {
            let before = self.taken;
            let turn = self.turn();
            for share in self.untold.drain(..) {
                self.maps.taken_out(share, self.octets[share]);
            }
            self.settle();
            self.tick();
            let patience = match turn {
                Turn::More => Duration::ZERO,
                Turn::Held => ROOM,
                Turn::Empty if self.taken != before => MORE,
                Turn::Empty => self.next_tick.saturating_duration_since(Instant::now()),
            };
            let idle = turn == Turn::Empty && self.taken == before;
            if self.wait(patience, idle, &end) {
                return self.leave();
            }
        }
    }

    /// Counts what became of frames.
    fn settle(&mut self) {
        let Self {
            runtime,
            counters,
            got_on,
            ..
        } = self;
        runtime.settle(|outcome| {
            counters.outcome(outcome);
            *got_on |= outcome != Outcome::Pending;
        });
    }

    /// Waits, also for packets if there are none; whether it is the end.
    fn wait(&self, patience: Duration, for_packets: bool, end: impl AsFd) -> bool {
        let packets = if for_packets {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut waiting = [
            PollFd::new(&end, PollFlags::IN),
            PollFd::new(&self.maps.ring, packets),
        ];
        // Interrupted or out of memory: another round does no harm.
        let _ = rustix::event::poll(&mut waiting, Some(&timespec(patience)));
        !waiting[0].revents().is_empty()
    }

    fn turn(&mut self) -> Turn {
        let done = match self.held.take() {
            Some(Held::Room(towards)) => self.emit(towards),
            Some(Held::Behind(why)) => self.give_back(why),
            None => true,
        };
        if !done {
            return Turn::Held;
        }
        for _ in 0..BURST {
            if !self.next() {
                self.tell_elsewhere();
                return Turn::Empty;
            }
            let done = match self.runtime.admit(&self.frame) {
                // Whatever it says of itself: what has no launch time is best effort.
                Ok((towards, _)) => self.emit(towards),
                Err(why) => self.give_back(why),
            };
            if !done {
                return Turn::Held;
            }
        }
        Turn::More
    }

    /// Takes the next frame in hand. Whether there was one.
    fn next(&mut self) -> bool {
        while let Some(item) = self.maps.ring.next() {
            self.taken = self.taken.wrapping_add(1);
            let Some(record) = Record::read(&item) else {
                self.counters.lost();
                continue;
            };
            let share = record.share;
            self.octets[share] += record.frame.len() as u64;
            if !self.untold.contains(&share) {
                self.untold.push(share);
            }
            self.frame.clear();
            self.frame.extend_from_slice(record.frame);
            // Its room is free from here on.
            drop(item);
            complete_checksum(&mut self.frame);
            return true;
        }
        false
    }

    /// Gives the frame in hand to the runtime. Whether it is done with.
    fn emit(&mut self, towards: Towards) -> bool {
        let options = FrameOptions {
            class: TrafficClass::default(),
            launch: None,
            deadline: false,
        };
        match self.runtime.emit(&self.frame, &options, towards) {
            Emitted::Yes => true,
            Emitted::NoRoom => {
                self.held = Some(Held::Room(towards));
                false
            }
            Emitted::Unserved(why) => self.give_back(why),
        }
    }

    /// Lets the frame in hand go the kernel's way, behind those that the runtime has for the same place. Whether it is done with.
    fn give_back(&mut self, why: Unserved) -> bool {
        let towards = self.runtime.towards(&self.frame);
        if towards.is_some_and(|towards| self.is_behind(towards)) {
            self.held = Some(Held::Behind(why));
            return false;
        }
        if why == Unserved::Station
            && let Some(towards) = towards
            && self.found.len() < MOST_ELSEWHERE
            && !self.found.ends_with(&[towards])
        {
            self.found.push(towards);
        }
        self.returned(self.returner.give_back_other(&self.frame));
        true
    }

    /// Whether the runtime has frames for a place, and something will become of them. While it hangs the program passes others.
    fn is_behind(&mut self, towards: Towards) -> bool {
        if !self.runtime.is_pending_towards(towards) {
            return false;
        }
        self.settle();
        self.lived.elapsed() < HANGS && self.runtime.is_pending_towards(towards)
    }

    fn returned(&self, is: bool) {
        match is {
            true => self.counters.returned(),
            false => self.counters.lost(),
        }
    }

    fn tell_elsewhere(&mut self) {
        let now = Instant::now();
        for towards in self.found.drain(..) {
            if self.known.len() >= MOST_ELSEWHERE {
                break;
            }
            // Without it they only take the longer way.
            if self.maps.elsewhere.insert(key(towards), 0, 0).is_ok() {
                self.known.insert(towards, now);
            }
        }
    }

    /// Asks again for what was elsewhere a while ago, and is still sent to; forgets what is not.
    fn tick(&mut self) {
        let now = Instant::now();
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + TICK;
        // A runtime that hangs has frames, and nothing becomes of them. So it is while their gate is closed, but then it answers.
        let got_on = std::mem::take(&mut self.got_on);
        if got_on || !self.runtime.is_pending() || self.runtime.answers() {
            self.maps.lives();
            self.lived = Instant::now();
        }
        self.tell_elsewhere();
        let old = self.known.iter();
        let old = old.filter(|(_, since)| now.duration_since(**since) >= ELSEWHERE);
        let old: Vec<Towards> = old.map(|(towards, _)| *towards).take(ASKED).collect();
        for towards in old {
            // It may have made room for another.
            let used = self
                .maps
                .elsewhere
                .get(&key(towards), 0)
                .is_ok_and(|used| used != 0);
            if used && !self.runtime.may_reach(towards) {
                let _ = self.maps.elsewhere.insert(key(towards), 0, 0);
                self.known.insert(towards, now);
            } else {
                let _ = self.maps.elsewhere.remove(&key(towards));
                self.known.remove(&towards);
            }
        }
    }

    fn leave(&mut self) {
        self.await_outcomes();
        // Nothing is taken any more, so that nobody would take a mark away.
        if self.held.take().is_some() {
            self.returned(self.returner.give_back(&self.frame));
        }
        while self.next() {
            self.returned(self.returner.give_back(&self.frame));
        }
    }

    /// Waits a while for what the runtime has, which goes with the session, and which the rest is not to overtake.
    fn await_outcomes(&mut self) {
        let until = Instant::now() + LEAVING;
        loop {
            self.settle();
            if !self.runtime.is_pending() || Instant::now() >= until {
                return;
            }
            std::thread::sleep(ROOM);
        }
    }
}
