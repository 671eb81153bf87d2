//! Reading several channels as one: those of a pattern, and what publishers have kept.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use elsa::FrozenVec;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use takt::{Message, Sink, SinkCounters, Wait};

use super::{Reading, Refused, Sample, SubscriberOptions, Twice, until};
use crate::directory::{Watch, inbox};
use crate::error::Error;
use crate::header::{self, Header, Strange};
use crate::participant::Participant;
use crate::topic::{Asked, Name, Pattern};

/// Marks the watch among what epoll tells of.
const WATCH: u64 = u64::MAX;
/// Marks the inbox, there and among what is ready.
const INBOX: usize = usize::MAX - 1;

/// Topics that are read until this is dropped: also one that nobody writes any more, for it may come back.
pub(super) struct Many {
    participant: Participant,
    options: SubscriberOptions,
    pattern: Option<Pattern>,
    epoll: OwnedFd,
    watch: Arc<Watch>,
    /// Never taken out of: samples refer to them.
    readings: FrozenVec<Box<Reading>>,
    /// Their places by the check of their messages.
    places: RefCell<HashMap<u64, usize>>,
    /// Topics that could not be opened: told of once.
    unopened: RefCell<HashSet<String>>,
    /// What publishers have kept.
    inbox: Option<Sink>,
    twice: RefCell<Twice>,
    /// Those that may have something; the others are armed.
    ready: RefCell<VecDeque<usize>>,
    /// Messages until the next look at the watch and at the others.
    until_look: Cell<u32>,
}

/// Messages between two looks at what else is there.
const LOOK: u32 = 64;

impl Many {
    pub(super) fn open(
        participant: &Participant,
        asked: Asked,
        options: &SubscriberOptions,
        id: u64,
    ) -> Result<Self, Error> {
        let what = match &asked {
            Asked::Name(_) => "history",
            Asked::Pattern(_) => "a pattern",
        };
        let service = participant.service(what)?;
        let make_epoll = || epoll::create(epoll::CreateFlags::CLOEXEC);
        let mut many = Self {
            participant: participant.clone(),
            options: *options,
            pattern: None,
            epoll: make_epoll().map_err(Error::system("make an epoll instance"))?,
            watch: service.watch()?,
            readings: FrozenVec::new(),
            places: RefCell::default(),
            unopened: RefCell::default(),
            inbox: None,
            twice: RefCell::default(),
            ready: RefCell::default(),
            until_look: Cell::new(0),
        };
        many.add(&many.watch, WATCH)?;
        if options.history > 0 {
            let stream = participant.stream(options.qos)?;
            let sink = stream.sink_with(inbox(id), options.sink(true))?;
            many.add_sink(&sink, INBOX)?;
            many.inbox = Some(sink);
        }
        match asked {
            Asked::Name(name) => many.read(name)?,
            Asked::Pattern(pattern) => many.pattern = Some(pattern),
        }
        Ok(many)
    }

    fn add(&self, what: &impl AsFd, data: u64) -> Result<(), Error> {
        let data = epoll::EventData::new_u64(data);
        epoll::add(&self.epoll, what.as_fd(), data, epoll::EventFlags::IN)
            .map_err(Error::system("watch a channel"))
    }

    fn add_sink(&self, sink: &Sink, place: usize) -> Result<(), Error> {
        let fd = sink.fd().expect("a sink with a descriptor");
        self.add(&fd, place as u64)?;
        self.ready.borrow_mut().push_back(place);
        Ok(())
    }

    /// Reads one topic more.
    fn read(&self, name: Name) -> Result<(), Error> {
        let check = name.check;
        let reading = Reading::open(&self.participant, name, &self.options, true)?;
        let place = self.readings.len();
        self.add_sink(&reading.sink, place)?;
        self.readings.push(Box::new(reading));
        self.places.borrow_mut().insert(check, place);
        Ok(())
    }

    /// Reads topics that match and were not there before.
    fn look(&self) -> Result<(), Error> {
        self.until_look.set(LOOK);
        self.watch.drain();
        if !self.watch.take_change() {
            return Ok(());
        }
        let Some(pattern) = &self.pattern else {
            return Ok(());
        };
        let service = self.participant.service("a pattern")?;
        for topic in service.matching(pattern) {
            let Ok(name) = Name::new(&topic) else {
                continue;
            };
            if self.places.borrow().contains_key(&name.check) {
                continue;
            }
            match self.read(name) {
                Ok(()) => drop(self.unopened.borrow_mut().remove(&topic)),
                Err(
                    Error::Channel(takt::Error::Refused(_))
                    | Error::Collision { .. }
                    | Error::System { .. },
                ) => drop(self.unopened.borrow_mut().insert(topic)),
                Err(error) => {
                    // The next look is at all of them.
                    self.watch.tell();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    pub(super) fn take(&self, wait: Wait, refused: &RefCell<Refused>) -> Result<Sample<'_>, Error> {
        let wait = until(wait);
        loop {
            match self.until_look.get().checked_sub(1) {
                Some(left) => self.until_look.set(left),
                None => {
                    self.look()?;
                    self.poll(Some(Timespec::default()))?;
                }
            }
            if wait != Wait::Never && self.watch.take_wake() {
                return Err(takt::Error::Interrupted.into());
            }
            let next = self.ready.borrow_mut().pop_front();
            let Some(place) = next else {
                self.look()?;
                if !self.ready.borrow().is_empty() {
                    continue;
                }
                if !self.sleep(wait)? {
                    return Err(match wait {
                        Wait::Never => takt::Error::WouldBlock.into(),
                        _ => takt::Error::TimedOut.into(),
                    });
                }
                continue;
            };
            match self.take_from(place, refused) {
                Ok(Some(sample)) => return Ok(sample),
                Ok(None) => {}
                Err(error) => {
                    self.ready.borrow_mut().push_back(place);
                    return Err(error);
                }
            }
        }
    }

    /// A message of the sink at this place, if it has one; otherwise it is armed. With one, and whenever there may be
    /// more, the place is ready again.
    fn take_from(
        &self,
        place: usize,
        refused: &RefCell<Refused>,
    ) -> Result<Option<Sample<'_>>, Error> {
        let reading = self.readings.get(place);
        let Some(sink) = reading.map(|reading| &reading.sink).or(self.inbox.as_ref()) else {
            return Ok(None);
        };
        let mut message = match sink.consume(Wait::Never) {
            Ok(message) => message,
            Err(takt::Error::WouldBlock | takt::Error::Disconnected | takt::Error::Protocol(_)) => {
                if !sink.arm() {
                    self.ready.borrow_mut().push_back(place);
                }
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        self.ready.borrow_mut().push_back(place);
        let read = match reading {
            Some(reading) => {
                Header::read(&message, reading.name.check).map(|header| (header, reading))
            }
            None => self.kept(&mut message),
        };
        match read {
            Ok((header, _)) if self.inbox.is_some() && self.twice.borrow_mut().is(&header) => {
                Ok(None)
            }
            Ok((header, reading)) => Ok(Some(Sample {
                message,
                header,
                topic: &reading.name.text,
            })),
            Err(strange) => {
                refused.borrow_mut().count(strange);
                Ok(None)
            }
        }
    }

    /// The header and topic of a message that was kept, which is cut to what was published.
    fn kept(&self, message: &mut Message<'_>) -> Result<(Header, &Reading), Strange> {
        let (topic, bytes) = header::read_kept(message).ok_or(Strange::Malformed)?;
        let name = Name::new(topic).map_err(|_| Strange::Malformed)?;
        let read = Header::read(message, name.check)?;
        let find = || {
            let place = self.places.borrow().get(&read.check).copied();
            place.and_then(|place| self.readings.get(place))
        };
        if find().is_none()
            && self
                .pattern
                .as_ref()
                .is_some_and(|pattern| pattern.matches(topic))
        {
            // Of a publisher that was not heard of before. If it cannot be read that is told then.
            let _ = self.read(name);
        }
        let reading = find().ok_or(Strange::Foreign)?;
        message.truncate(bytes);
        match read.history {
            true => Ok((read, reading)),
            false => Err(Strange::Malformed),
        }
    }

    pub(super) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(super) fn arm(&self) -> bool {
        self.ready.borrow().is_empty()
    }

    pub(super) fn counters(&self) -> (SinkCounters, u64) {
        let mut sum = SinkCounters::default();
        let sinks = self.readings.iter().map(|reading| &reading.sink);
        for counters in sinks.chain(&self.inbox).map(Sink::counters) {
            sum.delivered += counters.delivered;
            sum.dropped_full += counters.dropped_full;
            sum.dropped_memory += counters.dropped_memory;
            sum.lost += counters.lost;
            sum.lost_at_disconnect += counters.lost_at_disconnect;
            sum.superseded += counters.superseded;
        }
        (sum, self.unopened.borrow().len() as u64)
    }

    /// Waits until something is ready, or the watch has something. False: there was nothing as long as `wait` says.
    fn sleep(&self, wait: Wait) -> Result<bool, Error> {
        let timeout = match wait {
            Wait::Forever => None,
            Wait::Never => Some(Timespec::default()),
            Wait::For(duration) => Timespec::try_from(duration).ok(),
            Wait::Until(deadline) => {
                Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok()
            }
        };
        self.poll(timeout)
    }

    /// Takes in what is ready. Whether there was something.
    fn poll(&self, timeout: Option<Timespec>) -> Result<bool, Error> {
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 64];
        let told = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((told, _)) => told,
            Err(Errno::INTR) => return Err(takt::Error::Interrupted.into()),
            Err(errno) => return Err(Error::system("wait for channels")(errno)),
        };
        let mut ready = self.ready.borrow_mut();
        for event in &*told {
            match event.data.u64() {
                WATCH => self.until_look.set(0),
                place => {
                    let place = usize::try_from(place).unwrap_or(INBOX);
                    if !ready.contains(&place) {
                        ready.push_back(place);
                    }
                }
            }
        }
        Ok(!told.is_empty())
    }
}
