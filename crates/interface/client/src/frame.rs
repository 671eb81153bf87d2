//! Sources of whole Ethernet frames, which leave the node from the endpoint of the tenant.

use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};

use takt_session::layout::{FLAG_DEADLINE, FLAG_LAUNCH_TIME};
use takt_session::message::{Reply, Request};
use takt_session::{ChannelId, Endpoint};
use takt_time::{TaiTime, TrafficClass};

use crate::control::unexpected;
use crate::error::Error;
use crate::notify::Event;
use crate::owner::StreamCore;
use crate::source::{Buffer, Outcome, Source, Token};
use crate::wait::Wait;

/// How a frame is to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameOptions {
    /// Its traffic class.
    pub class: TrafficClass,
    /// When to send it; as soon as possible if not set. A frame that cannot leave then is dropped.
    pub launch: Option<TaiTime>,
    /// `launch` is the latest instant, not the exact one.
    pub deadline: bool,
}

/// A source of Ethernet frames: untagged, without frame check sequence, from the MAC and IP addresses of
/// the tenant's [`Endpoint`].
///
/// `Send`, not `Sync`, as a [`Source`].
pub struct FrameSource(pub(crate) Source);

impl FrameSource {
    pub(crate) fn new(
        stream: Arc<StreamCore>,
        key: u32,
        counted: Arc<AtomicU64>,
        room: Option<Arc<Event>>,
    ) -> Result<Self, Error> {
        // Nobody sees its channel: frames have none.
        Source::new(stream, key, ChannelId(0), counted, room).map(Self)
    }

    /// Where its frames must come from. After the runtime came back it may be another one.
    ///
    /// # Errors
    /// [`Error::Disconnected`], [`Error::Ended`], [`Error::Forked`]; [`Error::Refused`] when the runtime
    /// came back and the tenant has no endpoint any more.
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        let (_, open) = self.0.shared().source(self.0.key())?;
        open.endpoint
            .ok_or_else(|| Error::Protocol("the runtime opened a source without endpoint".into()))
    }

    /// Memory for a frame of `len` bytes.
    ///
    /// # Errors
    /// As [`Source::buffer`].
    pub fn buffer(&self, len: usize) -> Result<FrameBuffer<'_>, Error> {
        self.0.buffer(len).map(FrameBuffer)
    }

    /// As [`buffer`](Self::buffer), waiting for one to become free.
    ///
    /// # Errors
    /// As [`Source::buffer_wait`].
    pub fn buffer_wait(&self, len: usize, wait: Wait) -> Result<FrameBuffer<'_>, Error> {
        self.0.buffer_wait(len, wait).map(FrameBuffer)
    }

    /// A descriptor that tells of room, see [`Source::fd`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }

    /// Asks for it to become readable with room for a frame of `len` bytes, see [`Source::arm`].
    pub fn arm(&self, len: usize) -> bool {
        self.0.arm(len)
    }

    /// Sends a frame. Whether it left is its [outcome](Self::outcome).
    ///
    /// # Errors
    /// As [`Source::emit`].
    pub fn emit(&self, frame: FrameBuffer<'_>, options: &FrameOptions) -> Result<Token, Error> {
        let flags = match (options.launch, options.deadline) {
            (None, _) => 0,
            (Some(_), false) => FLAG_LAUNCH_TIME,
            (Some(_), true) => FLAG_LAUNCH_TIME | FLAG_DEADLINE,
        };
        let launch = options.launch.unwrap_or_default().as_nanos();
        let class = options.class.number();
        let token = self.0.push(frame.0, class, flags, launch)?;
        self.0.flush();
        Ok(token)
    }

    /// What became of a frame, see [`Source::outcome`].
    pub fn outcome(&self, token: Token) -> Outcome {
        self.0.outcome(token)
    }

    /// When a frame left that was [`Outcome::Sent`]. It must be asked for within two seconds: the runtime
    /// tells the low half of the instant, and `now` the rest.
    pub fn departed(&self, token: Token, now: TaiTime) -> Option<TaiTime> {
        self.0.departed(token, now)
    }

    /// Frames whose outcome is not known yet, see [`Source::pending`].
    pub fn pending(&self) -> u64 {
        self.0.pending()
    }

    /// Which MAC address to send to for packets to a destination. `next_hop`: where they go on the link, the
    /// destination itself or a gateway; `known`: what the application knows of that one's address. `None`: the
    /// network does not reach it.
    ///
    /// # Errors
    /// [`Error::Disconnected`], [`Error::Ended`], [`Error::TimedOut`], [`Error::Forked`];
    /// [`Error::Refused`] when the tenant has no endpoint.
    pub fn resolve(
        &self,
        destination: IpAddr,
        next_hop: IpAddr,
        known: Option<[u8; 6]>,
    ) -> Result<Option<[u8; 6]>, Error> {
        let request = Request::Resolve {
            destination,
            next_hop,
            known,
        };
        let (answer, _) = self.0.shared().request(request)?;
        match answer.reply {
            Reply::Resolved(mac) => Ok(mac),
            other => Err(unexpected(&other)),
        }
    }

    /// Tells the runtime of so many more datagrams with a launch time that this application has not given to it, by
    /// reason ([`takt_session::unserved::NAMES`]), so that its operator sees it. After an error they are told of again, with
    /// those that came since: the same attachment counts them once, another one once more if the first had just heard of them.
    ///
    /// # Errors
    /// [`Error::Disconnected`], [`Error::Ended`], [`Error::TimedOut`], [`Error::Forked`].
    pub fn tell_unserved(&self, more: takt_session::unserved::Counts) -> Result<(), Error> {
        let shared = self.0.shared();
        shared.check()?;
        let generation = shared.slot.state().generation();
        let mut told = shared
            .unserved
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if told.0 != generation {
            *told = (generation, Default::default());
        }
        // To each attachment, the sum of what it was told.
        let counts = std::array::from_fn(|at| told.1[at].saturating_add(more[at]));
        let answer = shared.request_in(generation, Request::Unserved(counts))?;
        match answer.reply {
            Reply::Noted => {
                told.1 = counts;
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }
}

impl std::fmt::Debug for FrameSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameSource").finish_non_exhaustive()
    }
}

/// Memory for one frame, written in place.
#[derive(Debug)]
pub struct FrameBuffer<'s>(Buffer<'s>);

impl Deref for FrameBuffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for FrameBuffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
