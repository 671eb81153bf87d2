//! The runtime of the node: one session for the process, a frame source for each socket.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use takt::{
    Endpoint, Error, ErrorCode, FrameBuffer, FrameOptions, FrameSource, Outcome, Qos, Session,
    SourceOptions, Stream, TaiTime, Token,
};

use crate::kernel;
use crate::own;
use crate::process::Inside;
use crate::socket::ForkLock;
use crate::unserved::Reason;

/// How long nobody asks for a runtime again that was not there, in nanoseconds.
pub const RETRY: i64 = 1_000_000_000;
/// How long what it has said of the endpoint is believed: no question is asked for it.
const BELIEVED: i64 = 1_000_000_000;
/// How long the runtime may take to answer. A program waits meanwhile.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// Frames of a socket that may be on their way at once: as many as a runtime keeps waiting for a session.
pub const DEPTH: u32 = 256;
/// Memory for many times that of a usual MTU, and next to none to receive: the tenant is charged all of it, for each program.
const TX_BYTES: usize = 16 << 20;
const RX_BYTES: usize = 64 << 10;

/// The process's session.
struct Attachment {
    session: Session,
    stream: Stream,
}

#[derive(Default)]
struct State {
    attachment: Option<Attachment>,
    /// When it may be tried again, by the monotonic clock.
    retry_at: i64,
}

static STATE: ForkLock<State> = ForkLock::new(State {
    attachment: None,
    retry_at: 0,
});

/// In a forked child: the session is the parent's.
pub fn after_fork() {
    STATE.forget(State::default());
}

/// Where the frames of a socket go.
pub struct Source {
    frames: FrameSource,
    /// What this program owns, and until when that is believed, by the monotonic clock.
    endpoint: RefCell<Option<(Arc<Endpoint>, i64)>>,
}

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No room: what was emitted before is still waiting for its time.
    Full,
    /// It is too long.
    TooLong,
    /// The runtime is gone; it may come back by itself.
    Away,
    /// The runtime does not answer this question now, since too many wait, or has no room.
    Busy,
    /// This source is of no use any more.
    Over,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            Error::WouldBlock => Self::Full,
            Error::TooLarge { .. } => Self::TooLong,
            Error::Disconnected | Error::TimedOut => Self::Away,
            Error::Refused(failure)
                if matches!(failure.code, ErrorCode::Limit | ErrorCode::NoMemory) =>
            {
                Reason::Runtime.tell(|| failure.to_string());
                Self::Busy
            }
            error => {
                Reason::Runtime.tell(|| error.to_string());
                Self::Over
            }
        }
    }
}

impl Source {
    /// Opens one, and the session if there is none yet. `None`: there is no runtime, or it does not want us,
    /// which the program is told once.
    pub fn open(inside: &Inside) -> Option<Self> {
        Self::with_depth(DEPTH, inside)?
            .inspect_err(|error| Reason::Runtime.tell(|| error.to_string()))
            .ok()
    }

    /// As [`open`](Self::open), for questions alone. The program is told nothing: no datagram of its is concerned.
    pub fn to_ask(inside: &Inside) -> Option<Self> {
        Self::with_depth(1, inside)?.ok()
    }

    /// `None`: it was tried a short time ago.
    fn with_depth(depth: u32, inside: &Inside) -> Option<Result<Self, Error>> {
        let mut state = STATE.lock(inside);
        let now = kernel::monotonic();
        if state.attachment.is_none() && now < state.retry_at {
            return None;
        }
        let opened = open(&mut state, depth).map(|frames| Self {
            frames,
            endpoint: RefCell::default(),
        });
        if opened.is_err() {
            // From now on: it may have been waited for.
            state.retry_at = kernel::monotonic() + RETRY;
        }
        Some(opened)
    }

    /// What this program owns.
    pub fn endpoint(&self) -> Result<Arc<Endpoint>, Refusal> {
        let now = kernel::monotonic();
        let mut known = self.endpoint.borrow_mut();
        if let Some((endpoint, until)) = &*known
            && now < *until
        {
            return Ok(endpoint.clone());
        }
        let endpoint = Arc::new(self.frames.endpoint().map_err(Refusal::from)?);
        *known = Some((endpoint.clone(), now + BELIEVED));
        Ok(endpoint)
    }

    /// Which station packets to `destination` by way of `next_hop` are for, `known` being what the kernel knows; see
    /// [`FrameSource::resolve`].
    pub fn resolve(
        &self,
        destination: IpAddr,
        next_hop: IpAddr,
        known: Option<[u8; 6]>,
    ) -> Result<Option<[u8; 6]>, Refusal> {
        self.frames
            .resolve(destination, next_hop, known)
            .map_err(Refusal::from)
    }

    /// Tells the runtime of so many more that it did not get.
    pub fn tell_unserved(&self, more: takt::unserved::Counts) -> Result<(), Refusal> {
        self.frames.tell_unserved(more).map_err(Refusal::from)
    }

    /// Whether frames to a station go anywhere.
    pub fn reaches(&self, station: [u8; 6]) -> Result<bool, Refusal> {
        // No station has this address, so that what is known decides.
        let nowhere = Ipv4Addr::UNSPECIFIED.into();
        Ok(self.resolve(nowhere, nowhere, Some(station))?.is_some())
    }

    /// Whether there is room for a frame of so many bytes, or nothing to wait for.
    pub fn has_room(&self, length: usize) -> bool {
        self.frames.pending() < u64::from(DEPTH) && self.buffer(length).err() != Some(Refusal::Full)
    }

    /// Memory for a frame.
    pub fn buffer(&self, length: usize) -> Result<FrameBuffer<'_>, Refusal> {
        self.frames.buffer(length).map_err(Refusal::from)
    }

    /// Hands a frame over.
    pub fn emit(&self, frame: FrameBuffer<'_>, options: &FrameOptions) -> Result<Token, Refusal> {
        self.frames.emit(frame, options).map_err(Refusal::from)
    }

    /// What became of it.
    pub fn outcome(&self, token: Token) -> Outcome {
        self.frames.outcome(token)
    }

    /// When it left, which was within two seconds of `about`.
    pub fn departed(&self, token: Token, about: TaiTime) -> Option<TaiTime> {
        self.frames.departed(token, about)
    }
}

fn open(state: &mut State, depth: u32) -> Result<FrameSource, Error> {
    if let Some(attachment) = &state.attachment {
        match source_of(&attachment.stream, depth) {
            // The session is over; a new one may do better.
            Err(Error::Ended(_) | Error::Closed) if !attachment.session.is_attached() => {
                state.attachment = None;
            }
            result => return result,
        }
    }
    let session = Session::builder()
        .request_timeout(PATIENCE)
        .tx_bytes(TX_BYTES)
        .rx_bytes(RX_BYTES)
        .descriptors_from(own::lowest())
        .open()?;
    let stream = session.stream(Qos::fast())?;
    let source = source_of(&stream, depth)?;
    state.attachment = Some(Attachment { session, stream });
    Ok(source)
}

fn source_of(stream: &Stream, depth: u32) -> Result<FrameSource, Error> {
    stream.frame_source(SourceOptions {
        depth,
        ..SourceOptions::default()
    })
}
