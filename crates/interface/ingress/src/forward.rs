//! From the ring to the runtime: one thread, frame by frame, in the order in which the pod has sent them. What has no launch time
//! is another one's (`others`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};
use takt::{FrameOptions, TaiTime};

use crate::counters::{self, Counters, OtherCounters, Unserved};
use crate::error::Error;
use crate::others::{Ending, Others};
use crate::programs::{Attached, Device};
use crate::record::{LaunchClock, Record, Towards, complete_checksum};
use crate::runtime::{DEPTH, Emitted, ROOM, Runtime, TICK};
use crate::{ClassFrom, Options};

/// The programs at a pod's veth with a session of the pod's listener.
pub struct Attachment {
    programs: Attached,
    runtime: Runtime,
    counters: Counters,
    required: bool,
    class: ClassFrom,
    /// What takes packets without a launch time, until it is started; and what it counts.
    others: Option<Others>,
    other_counters: Option<Arc<OtherCounters>>,
    next_tick: Instant,
    /// The frame in hand.
    frame: Vec<u8>,
}

impl Attachment {
    /// Opens a session with the runtime and attaches the programs. From then on what has a launch time is taken; it waits for
    /// [`run`](Self::run).
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(options: &Options) -> Result<Self, Error> {
        let device = Device::find(&options.device)?;
        let name = format!("takt veth {}", device.name);
        let open = |name| Runtime::open(name, options.socket.as_deref());
        let runtime = open(name.clone())?;
        let for_others = options
            .all
            .then(|| open(format!("{name} all")))
            .transpose()?;
        let mut programs = Attached::new(device, options)?;
        let others = for_others.zip(programs.take_others());
        let others = others.map(|(runtime, maps)| Others::new(runtime, maps, programs.returner()));
        Ok(Self {
            programs,
            other_counters: others.as_ref().map(Others::counters),
            others,
            runtime,
            counters: Counters::default(),
            required: options.required,
            class: options.class,
            next_tick: Instant::now(),
            frame: Vec::new(),
        })
    }

    /// Why times by `CLOCK_REALTIME` are lost at the veth; `None`: they are taken as others. Never with
    /// [`Options::required`].
    pub fn without_realtime(&self) -> Option<&Error> {
        self.programs.without_realtime()
    }

    /// Whether TCP is left to the kernel although what has no launch time is taken: the kernel would not know its connections.
    pub fn leaves_tcp(&self) -> bool {
        self.other_counters.is_some() && !self.programs.takes_tcp()
    }

    /// Gives the runtime what is taken until `stop` is readable, then takes no more and gives it what is left.
    ///
    /// # Errors
    /// [`Error::Detached`] when the device has gone or somebody has taken the program away; the kernel's.
    pub fn run(mut self, stop: impl AsFd) -> Result<(), Error> {
        let Some(others) = self.others.take() else {
            return self.run_until(stop, None);
        };
        std::thread::scope(|scope| {
            let ending = Some(others.start(scope)?);
            self.run_until(stop, ending)
        })
    }

    /// However it ends: nothing more is taken then, before what was is given away, and `ending` is dropped between the two.
    fn run_until(&mut self, stop: impl AsFd, ending: Option<Ending>) -> Result<(), Error> {
        let ended = self.serve(stop.as_fd());
        self.programs.detach();
        drop(ending);
        while self.turn(None)? {}
        self.settle();
        self.report();
        ended
    }

    /// Gives the runtime what is taken until `stop` is readable.
    fn serve(&mut self, stop: BorrowedFd<'_>) -> Result<(), Error> {
        while !readable(stop, Duration::ZERO)? {
            let more = self.turn(Some(stop))?;
            self.settle();
            self.tick()?;
            if !more {
                self.wait(stop)?;
            }
        }
        Ok(())
    }

    /// Forwards what is in the ring, as much as a turn has. Whether there may be more. Without `stop` it is the end.
    fn turn(&mut self, stop: Option<BorrowedFd<'_>>) -> Result<bool, Error> {
        let ahead = monotonic_behind_tai();
        let mut frame = std::mem::take(&mut self.frame);
        for _ in 0..DEPTH {
            let Some(item) = self.programs.ring().next() else {
                self.frame = frame;
                return Ok(false);
            };
            let Some(record) = Record::read(&item) else {
                drop(item);
                self.counters.unserved(Unserved::Malformed);
                continue;
            };
            frame.clear();
            frame.extend_from_slice(record.frame);
            let launch = record.launch.map(|(clock, launch)| match clock {
                LaunchClock::Tai => tai(launch, 0),
                LaunchClock::Monotonic => tai(launch, ahead),
            });
            // Its room is free from here on.
            drop(item);
            complete_checksum(&mut frame);
            self.forward(&frame, launch, stop)?;
        }
        self.frame = frame;
        Ok(true)
    }

    /// Waits for something to do.
    fn wait(&mut self, stop: impl AsFd) -> Result<(), Error> {
        let patience = self.next_tick.saturating_duration_since(Instant::now());
        let patience = timespec(patience);
        let mut waiting = [
            PollFd::new(self.programs.ring(), PollFlags::IN),
            PollFd::new(&stop, PollFlags::IN),
        ];
        match rustix::event::poll(&mut waiting, Some(&patience)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::system("wait for packets")(error.into())),
        }
    }

    /// Gives a frame to the runtime, or does with it what is to be done with those that it does not send.
    fn forward(
        &mut self,
        frame: &[u8],
        launch: Option<TaiTime>,
        stop: Option<BorrowedFd<'_>>,
    ) -> Result<(), Error> {
        let (unserved, failed) = match self.runtime.admit(frame) {
            Ok((towards, class)) => {
                let options = FrameOptions {
                    class: self.class.of(class),
                    launch,
                    deadline: false,
                };
                match self.emit(frame, &options, towards, stop) {
                    Ok(()) => return Ok(()),
                    Err(why) => why,
                }
            }
            Err(unserved) => (unserved, None),
        };
        self.counters.unserved(unserved);
        if !self.required && self.programs.returner().give_back(frame) {
            self.counters.given_back();
        }
        failed.map_or(Ok(()), Err)
    }

    /// Emits it when there is room. Meanwhile the ring fills, and what does not fit there goes as the programs decide. Why the runtime
    /// does not have it, and what else has failed.
    fn emit(
        &mut self,
        frame: &[u8],
        options: &FrameOptions,
        towards: Towards,
        stop: Option<BorrowedFd<'_>>,
    ) -> Result<(), (Unserved, Option<Error>)> {
        loop {
            match self.runtime.emit(frame, options, towards) {
                Emitted::Yes => return Ok(()),
                Emitted::NoRoom => {}
                Emitted::Unserved(why) => return Err((why, None)),
            }
            match self.wait_for_room(stop) {
                Ok(true) => {}
                Ok(false) => return Err((Unserved::Runtime, None)),
                Err(error) => return Err((Unserved::Runtime, Some(error))),
            }
        }
    }

    /// Waits a little; whether it is worth it: the end does not wait for room.
    fn wait_for_room(&mut self, stop: Option<BorrowedFd<'_>>) -> Result<bool, Error> {
        let Some(stop) = stop else {
            return Ok(false);
        };
        if readable(stop, ROOM)? {
            return Ok(false);
        }
        self.settle();
        self.tick()?;
        Ok(true)
    }

    /// Looks after the device, and tells others, from time to time.
    fn tick(&mut self) -> Result<(), Error> {
        if Instant::now() < self.next_tick {
            return Ok(());
        }
        self.next_tick = Instant::now() + TICK;
        self.report();
        self.programs.check()
    }

    /// Counts what became of frames.
    fn settle(&mut self) {
        let Self {
            runtime, counters, ..
        } = self;
        runtime.settle(|outcome| counters.outcome(outcome));
    }

    /// Tells others what has been counted.
    fn report(&mut self) {
        let others = self.other_counters.as_ref();
        let counts = others.map(|counters| counters.all()).unwrap_or_default();
        let takes = match others {
            None => 0,
            Some(_) if self.programs.takes_tcp() => counters::ALL,
            Some(_) => counters::ALL_BUT_TCP,
        };
        let all = self.counters.all().iter();
        self.programs.tell(all.chain(&counts).chain([&takes]));
        self.runtime
            .tell(&mut self.counters, &self.programs.counted());
    }
}

/// Whether there is something to read within a time.
pub(crate) fn readable(fd: impl AsFd, patience: Duration) -> Result<bool, Error> {
    let mut waiting = [PollFd::new(&fd, PollFlags::IN)];
    match rustix::event::poll(&mut waiting, Some(&timespec(patience))) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(Error::system("look for the end")(io::Error::from(error))),
    }
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// An instant of a clock that is so much behind TAI. What lies outside the scale is held at its end.
fn tai(instant: u64, behind: i64) -> TaiTime {
    let instant = i64::try_from(instant).unwrap_or(i64::MAX);
    TaiTime::from_nanos(instant.saturating_add(behind))
}

/// By how much `CLOCK_TAI` is ahead of `CLOCK_MONOTONIC`: from the closest of some tries, as a call may be interrupted between two
/// clocks.
fn monotonic_behind_tai() -> i64 {
    let nanos = |now: Timespec| now.tv_sec * 1_000_000_000 + now.tv_nsec;
    let monotonic = || nanos(clock_gettime(ClockId::Monotonic));
    (0..3)
        .filter_map(|_| {
            let before = monotonic();
            let tai = nanos(clock_gettime_dynamic(DynamicClockId::Tai).ok()?);
            let after = monotonic();
            Some((after - before, tai - (before + (after - before) / 2)))
        })
        .min()
        .map_or(0, |(_, ahead)| ahead)
}
