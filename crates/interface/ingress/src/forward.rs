//! From the ring to the runtime: one thread, frame by frame, in the order in which the pod has sent them.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};
use takt::{
    Endpoint, Error as RuntimeError, FrameOptions, FrameSource, Outcome, Qos, Session,
    SourceOptions, TaiTime, Token,
};

use crate::counters::{Counters, Unserved};
use crate::error::Error;
use crate::programs::{Attached, Device};
use crate::record::{Foreign, LaunchClock, Record, Summary, Towards, complete_checksum};
use crate::{ClassFrom, Options};

/// Frames that may be on their way at once: as many as a runtime keeps waiting for a session.
const DEPTH: u32 = 256;
/// Memory for that many of a usual MTU, and next to none to receive.
const TX_BYTES: usize = 2 << 20;
const RX_BYTES: usize = 64 << 10;
/// How long the runtime may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often is looked whether the device is there, what became of frames, and others are told.
const TICK: Duration = Duration::from_millis(200);
/// How long is waited between two looks for room: completions ring no bell.
const ROOM: Duration = Duration::from_micros(500);
/// For how long it is believed what the runtime has said of a destination. It follows those that were asked for of late.
const BELIEVED: Duration = Duration::from_secs(5);
/// The same, of one that it does not reach.
const DOUBTED: Duration = Duration::from_secs(1);
/// Destinations that are remembered: as many as a network of the runtime follows.
const MOST_DESTINATIONS: usize = 4096;

/// The programs at a pod's veth with a session of the pod's listener.
pub struct Attachment {
    programs: Attached,
    runtime: Runtime,
    counters: Counters,
    required: bool,
    class: ClassFrom,
    next_tick: Instant,
}

/// The session, and what it has said.
struct Runtime {
    frames: FrameSource,
    _session: Session,
    /// What the frames must come from, and until when that is believed.
    endpoint: Option<(Endpoint, Instant)>,
    /// Whether the runtime reaches a destination, and until when that is believed.
    destinations: HashMap<Towards, (bool, Instant)>,
    /// Frames whose outcome is not known, with where they go.
    pending: Vec<(Token, Towards)>,
}

impl Attachment {
    /// Opens a session with the runtime and attaches the programs. From then on what has a launch time is taken; it waits for
    /// [`run`](Self::run).
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(options: &Options) -> Result<Self, Error> {
        let device = Device::find(&options.device)?;
        let mut session = Session::builder()
            .name(format!("takt veth {}", device.name))
            .request_timeout(PATIENCE)
            .tx_bytes(TX_BYTES)
            .rx_bytes(RX_BYTES);
        if let Some(socket) = &options.socket {
            session = session.socket(socket);
        }
        let session = session.open()?;
        let stream = session.stream(Qos::fast())?;
        let frames = stream.frame_source(SourceOptions { depth: DEPTH })?;
        let programs = Attached::new(device, options.required)?;
        Ok(Self {
            programs,
            runtime: Runtime {
                frames,
                _session: session,
                endpoint: None,
                destinations: HashMap::new(),
                pending: Vec::new(),
            },
            counters: Counters::default(),
            required: options.required,
            class: options.class,
            next_tick: Instant::now(),
        })
    }

    /// Why times by `CLOCK_REALTIME` are lost at the veth; `None`: they are taken as others. Never with
    /// [`Options::required`].
    pub fn without_realtime(&self) -> Option<&Error> {
        self.programs.without_realtime()
    }

    /// Gives the runtime what is taken until `stop` is readable, then takes no more and gives it what is left.
    ///
    /// # Errors
    /// [`Error::Detached`] when the device has gone or somebody has taken the program away; the kernel's.
    pub fn run(mut self, stop: impl AsFd) -> Result<(), Error> {
        let stop = stop.as_fd();
        let mut frame = Vec::new();
        loop {
            let stopped = readable(stop, Duration::ZERO)?;
            if stopped {
                self.programs.detach();
            }
            let ahead = monotonic_behind_tai();
            let mut emptied = false;
            for _ in 0..DEPTH {
                let Some(item) = self.programs.ring().next() else {
                    emptied = true;
                    break;
                };
                let Some(record) = Record::read(&item) else {
                    drop(item);
                    self.counters.unserved(Unserved::Malformed);
                    continue;
                };
                frame.clear();
                frame.extend_from_slice(record.frame);
                let launch = match record.clock {
                    LaunchClock::Tai => tai(record.launch, 0),
                    LaunchClock::Monotonic => tai(record.launch, ahead),
                };
                // Its room is free from here on.
                drop(item);
                complete_checksum(&mut frame);
                self.forward(&frame, launch, stop)?;
            }
            self.runtime.settle(&mut self.counters);
            if stopped && emptied {
                self.report();
                return Ok(());
            }
            if !stopped {
                self.tick()?;
            }
            if !stopped && emptied {
                self.wait(stop)?;
            }
        }
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
    fn forward(&mut self, frame: &[u8], launch: TaiTime, stop: impl AsFd) -> Result<(), Error> {
        let unserved = match self.runtime.admit(frame) {
            Ok((towards, class)) => {
                let class = match self.class {
                    ClassFrom::Dscp => class,
                    ClassFrom::Fixed(class) => class,
                };
                let options = FrameOptions {
                    class,
                    launch: Some(launch),
                    deadline: false,
                };
                match self.emit(frame, &options, towards, stop)? {
                    Ok(()) => return Ok(()),
                    Err(unserved) => unserved,
                }
            }
            Err(unserved) => unserved,
        };
        self.counters.unserved(unserved);
        if !self.required && self.programs.give_back(frame) {
            self.counters.given_back();
        }
        Ok(())
    }

    /// Emits it when there is room. Meanwhile the ring fills, and what does not fit there goes as the programs decide.
    fn emit(
        &mut self,
        frame: &[u8],
        options: &FrameOptions,
        towards: Towards,
        stop: impl AsFd,
    ) -> Result<Result<(), Unserved>, Error> {
        loop {
            let frames = &self.runtime.frames;
            match frames.buffer(frame.len()).and_then(|mut buffer| {
                buffer.copy_from_slice(frame);
                frames.emit(buffer, options)
            }) {
                Ok(token) => {
                    self.runtime.pending.push((token, towards));
                    return Ok(Ok(()));
                }
                Err(RuntimeError::WouldBlock) => {}
                Err(RuntimeError::TooLarge { .. }) => return Ok(Err(Unserved::Malformed)),
                Err(_) => return Ok(Err(Unserved::Runtime)),
            }
            // The end does not wait for room.
            if readable(&stop, ROOM)? {
                return Ok(Err(Unserved::Runtime));
            }
            self.runtime.settle(&mut self.counters);
            self.tick()?;
        }
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

    /// Tells others what has been counted.
    fn report(&mut self) {
        self.programs.tell(self.counters.all());
        let (more, all) = self.counters.news(&self.programs.counted());
        if more.iter().any(|count| *count > 0) && self.runtime.frames.tell_unserved(more).is_ok() {
            self.counters.told(all);
        }
    }
}

impl Runtime {
    /// Where a frame goes and of which class it is, if it is the runtime's to send.
    fn admit(&mut self, frame: &[u8]) -> Result<(Towards, takt::TrafficClass), Unserved> {
        let now = Instant::now();
        let known = self.endpoint.take().filter(|(_, until)| now < *until);
        let (endpoint, until) = match known {
            Some(known) => known,
            None => {
                let endpoint = self.frames.endpoint().map_err(|_| Unserved::Runtime)?;
                (endpoint, now + DOUBTED)
            }
        };
        let summary = Summary::of(frame, &endpoint);
        self.endpoint = Some((endpoint, until));
        let summary = summary.map_err(|foreign| match foreign {
            Foreign::Source => Unserved::Source,
            Foreign::Kind => Unserved::Kind,
            Foreign::Malformed => Unserved::Malformed,
        })?;
        match self.reaches(summary.towards, now)? {
            true => Ok((summary.towards, summary.class)),
            false => Err(Unserved::Station),
        }
    }

    /// Whether the runtime reaches a destination. The first time it is asked, and the pod's further packets wait for that.
    fn reaches(&mut self, towards: Towards, now: Instant) -> Result<bool, Unserved> {
        if let Some((reached, until)) = self.destinations.get(&towards)
            && now < *until
        {
            return Ok(*reached);
        }
        // The pod has found the station of the next hop by itself, so that it is of no interest which one that is.
        let nowhere = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        let receiver = towards.receiver.unwrap_or(nowhere);
        let resolved = self
            .frames
            .resolve(receiver, nowhere, Some(towards.station));
        let reached = match resolved {
            Ok(found) => found.is_some(),
            Err(RuntimeError::Refused(_)) => false,
            Err(_) => return Err(Unserved::Runtime),
        };
        if self.destinations.len() >= MOST_DESTINATIONS {
            self.destinations.retain(|_, (_, until)| now < *until);
            if self.destinations.len() >= MOST_DESTINATIONS {
                self.destinations.clear();
            }
        }
        let until = now + if reached { BELIEVED } else { DOUBTED };
        self.destinations.insert(towards, (reached, until));
        Ok(reached)
    }

    /// Counts what became of frames.
    fn settle(&mut self, counters: &mut Counters) {
        let Self {
            frames,
            pending,
            destinations,
            ..
        } = self;
        pending.retain(|(token, towards)| {
            let outcome = frames.outcome(*token);
            if outcome == Outcome::Unreachable {
                destinations.remove(towards);
            }
            counters.outcome(outcome);
            outcome == Outcome::Pending
        });
    }
}

/// Whether there is something to read within a time.
fn readable(fd: impl AsFd, patience: Duration) -> Result<bool, Error> {
    let mut waiting = [PollFd::new(&fd, PollFlags::IN)];
    match rustix::event::poll(&mut waiting, Some(&timespec(patience))) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(Error::system("look for the end")(io::Error::from(error))),
    }
}

fn timespec(duration: Duration) -> Timespec {
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
