//! The runtime as one who gives it frames of others sees it: whose endpoint they are of, what it reaches, what became of them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use takt::{
    Endpoint, Error as RuntimeError, FrameOptions, FrameSource, Outcome, Qos, Session,
    SourceOptions, Token, TrafficClass,
};

use crate::counters::{Counters, Unserved};
use crate::record::{Foreign, Summary, Towards, check_source};

/// Frames that may be on their way at once: as many as a runtime keeps waiting for a session.
pub(crate) const DEPTH: u32 = 256;
/// Memory for that many of a usual MTU, and next to none to receive.
const TX_BYTES: usize = 2 << 20;
const RX_BYTES: usize = 64 << 10;
/// How often the runtime is asked what became of frames, and told of those that it did not get.
pub(crate) const TICK: Duration = Duration::from_millis(200);
/// How long is waited between two looks for room: completions ring no bell.
pub(crate) const ROOM: Duration = Duration::from_micros(500);
/// How long the runtime may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// For how long it is believed what the runtime has said of a destination. It follows those that were asked for of late.
const BELIEVED: Duration = Duration::from_secs(5);
/// The same, of one that it does not reach.
const DOUBTED: Duration = Duration::from_secs(1);
/// Destinations that are remembered: as many as a network of the runtime follows.
const MOST_DESTINATIONS: usize = 4096;

/// The session, and what it has said.
pub(crate) struct Runtime {
    frames: FrameSource,
    _session: Session,
    /// What the frames must come from, as far as that has ever been known, and until when it is believed.
    endpoint: Option<(Endpoint, Instant)>,
    /// The station by which the runtime reaches a destination, if it does, and until when that is believed.
    destinations: HashMap<Towards, (Option<[u8; 6]>, Instant)>,
    /// Frames whose outcome is not known, with where they go.
    pending: Vec<(Token, Towards)>,
    /// Until when it is not asked, because it did not answer in time.
    silent: Option<Instant>,
    /// The frames are those of a link, of which the station alone says where they go.
    by_link: bool,
}

/// What became of the wish to send a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emitted {
    /// The runtime has it.
    Yes,
    /// There is no room for it now.
    NoRoom,
    /// It does not get it.
    Unserved(Unserved),
}

/// How a turn of who gives it frames has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There may be more.
    More,
    /// There is nothing to send now.
    Empty,
    /// The runtime has no room for what is in hand.
    Held,
}

impl Runtime {
    /// A session of a listener, as other applications find it if `socket` is `None`.
    pub(crate) fn open(name: String, socket: Option<&Path>) -> Result<Self, RuntimeError> {
        let mut session = Session::builder()
            .name(name)
            .request_timeout(PATIENCE)
            .tx_bytes(TX_BYTES)
            .rx_bytes(RX_BYTES);
        if let Some(socket) = socket {
            session = session.socket(socket);
        }
        let session = session.open()?;
        let stream = session.stream(Qos::fast())?;
        Ok(Self {
            frames: stream.frame_source(SourceOptions {
                depth: DEPTH,
                ..SourceOptions::default()
            })?,
            _session: session,
            endpoint: None,
            destinations: HashMap::new(),
            pending: Vec::new(),
            silent: None,
            by_link: false,
        })
    }

    /// Of a link.
    pub(crate) fn by_link(self) -> Self {
        Self {
            by_link: true,
            ..self
        }
    }

    /// What its frames must come from.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, RuntimeError> {
        self.frames.endpoint()
    }

    /// Where a frame goes, as far as that is of interest.
    pub(crate) fn towards(&self, frame: &[u8]) -> Option<Towards> {
        Towards::of(frame).map(|towards| self.whole_or_station(towards))
    }

    fn whole_or_station(&self, towards: Towards) -> Towards {
        Towards {
            receiver: towards.receiver.filter(|_| !self.by_link),
            ..towards
        }
    }

    /// Where a frame goes and of which class it is, if it is the runtime's to send.
    pub(crate) fn admit(&mut self, frame: &[u8]) -> Result<(Towards, TrafficClass), Unserved> {
        let now = Instant::now();
        if self.silent.is_some_and(|until| now < until) {
            return Err(Unserved::Runtime);
        }
        let known = self.endpoint.take_if(|(_, until)| now < *until);
        let (endpoint, until) = match known {
            Some(known) => known,
            None => {
                let endpoint = self.frames.endpoint().map_err(|why| self.away(&why))?;
                (endpoint, now + DOUBTED)
            }
        };
        let summary = Summary::of(frame, &endpoint);
        self.endpoint = Some((endpoint, until));
        let summary = summary.map_err(|foreign| match foreign {
            Foreign::Source => Unserved::Source,
            Foreign::Kind => Unserved::Kind,
            Foreign::Tag => Unserved::Tag,
            Foreign::Malformed => Unserved::Malformed,
        })?;
        let towards = self.whole_or_station(summary.towards);
        match self.station(towards, now)? {
            Some(_) => Ok((towards, summary.class)),
            None => Err(Unserved::Station),
        }
    }

    /// Whether a frame comes from the endpoint, as it was when the runtime told it last.
    pub(crate) fn is_own(&self, frame: &[u8]) -> bool {
        let endpoint = self.endpoint.as_ref();
        endpoint.is_some_and(|(endpoint, _)| check_source(frame, endpoint).is_ok())
    }

    /// Whether the runtime reaches a destination, as far as it answers.
    pub(crate) fn may_reach(&mut self, towards: Towards) -> bool {
        let now = Instant::now();
        let silent = self.silent.is_some_and(|until| now < until);
        !silent && matches!(self.station(towards, now), Ok(Some(_)))
    }

    /// The station by which the runtime reaches a destination, if it does. The first time it is asked, and the pod's further packets
    /// wait for that.
    fn station(&mut self, towards: Towards, now: Instant) -> Result<Option<[u8; 6]>, Unserved> {
        if let Some((station, until)) = self.destinations.get(&towards)
            && now < *until
        {
            return Ok(*station);
        }
        let station = self.ask(towards)?;
        if self.destinations.len() >= MOST_DESTINATIONS {
            self.destinations.retain(|_, (_, until)| now < *until);
            if self.destinations.len() >= MOST_DESTINATIONS {
                self.destinations.clear();
            }
        }
        let until = now + station.map_or(DOUBTED, |_| BELIEVED);
        self.destinations.insert(towards, (station, until));
        Ok(station)
    }

    /// Asks it for that station.
    fn ask(&mut self, towards: Towards) -> Result<Option<[u8; 6]>, Unserved> {
        // The pod has found the station of the next hop by itself, so that it is of no interest which hop that is. Where the runtime
        // knows whose the receiver's address is, that counts, and not what the pod's neighbours have said.
        let nowhere = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        let receiver = towards.receiver.unwrap_or(nowhere);
        let resolved = self
            .frames
            .resolve(receiver, nowhere, Some(towards.station));
        match resolved {
            Ok(found) => Ok(found),
            Err(RuntimeError::Refused(_)) => Ok(None),
            Err(why) => Err(self.away(&why)),
        }
    }

    /// Whether it answers, of frames that it has for a long time. One that has not of late is not asked.
    pub(crate) fn answers(&mut self) -> bool {
        let is_silent = self.silent.is_some_and(|until| Instant::now() < until);
        let Some(&(_, towards)) = self.pending.first().filter(|_| !is_silent) else {
            return false;
        };
        self.ask(towards).is_ok()
    }

    /// It does not answer. One that hangs is not asked again for a while: others wait meanwhile.
    fn away(&mut self, why: &RuntimeError) -> Unserved {
        if matches!(why, RuntimeError::TimedOut) {
            self.silent = Some(Instant::now() + DOUBTED);
        }
        Unserved::Runtime
    }

    /// Gives it a frame that it [admits](Self::admit).
    pub(crate) fn emit(
        &mut self,
        frame: &[u8],
        options: &FrameOptions,
        towards: Towards,
    ) -> Emitted {
        let frames = &self.frames;
        let station = self.destinations.get(&towards);
        let station = station.and_then(|(station, _)| *station);
        let emitted = frames.buffer(frame.len()).and_then(|mut buffer| {
            buffer.copy_from_slice(frame);
            buffer[..6].copy_from_slice(&station.unwrap_or(towards.station));
            frames.emit(buffer, options)
        });
        match emitted {
            Ok(token) => {
                self.pending.push((token, towards));
                Emitted::Yes
            }
            Err(RuntimeError::WouldBlock) => Emitted::NoRoom,
            Err(RuntimeError::TooLarge { .. }) => Emitted::Unserved(Unserved::Malformed),
            Err(_) => Emitted::Unserved(Unserved::Runtime),
        }
    }

    /// Tells it what was counted since it was told last; `program`: as in [`Counters::news`].
    pub(crate) fn tell(&self, counters: &mut Counters, program: &[u64]) {
        let (more, all) = counters.news(program);
        if more.iter().any(|count| *count > 0) && self.frames.tell_unserved(more).is_ok() {
            counters.told(all);
        }
    }

    /// Whether it has to be asked what became of frames.
    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The same of frames that go to a place.
    pub(crate) fn is_pending_towards(&self, towards: Towards) -> bool {
        self.pending.iter().any(|(_, other)| *other == towards)
    }

    /// Tells what became of frames.
    pub(crate) fn settle(&mut self, mut tell: impl FnMut(Outcome)) {
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
            tell(outcome);
            outcome == Outcome::Pending
        });
    }
}
