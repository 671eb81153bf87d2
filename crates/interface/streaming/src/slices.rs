//! Reading a stream slice by slice, in place.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use takt::{TaiTime, Wait};
use takt_messaging::{
    Participant, Sample, Subscriber, SubscriberCounters, SubscriberOptions, SubscriberWaker,
};

use crate::error::Error;
use crate::format::Format;
use crate::slice::{self, Header, Says};

/// Reads the slices of a stream as they come. What becomes of frames that lack some is the reader's matter.
///
/// `Send`, not `Sync`: one thread at a time.
#[derive(Debug)]
pub struct Slices {
    subscriber: Subscriber,
    malformed: Cell<u64>,
}

/// A slice of a frame, read in place. Dropping it gives its memory back.
#[derive(Debug)]
pub struct Slice<'s> {
    sample: Sample<'s>,
    header: Header,
}

impl Slice<'_> {
    /// Number of its frame among those of its server. A gap is a loss.
    pub const fn frame(&self) -> u64 {
        self.header.frame
    }

    /// What its frame is.
    pub const fn format(&self) -> Format {
        self.header.format
    }

    /// Where in the frame its bytes begin.
    pub const fn offset(&self) -> usize {
        self.header.offset as usize
    }

    /// When its frame was captured.
    pub const fn captured(&self) -> TaiTime {
        self.header.captured
    }

    /// From frame to frame, if the server knows.
    pub fn period(&self) -> Option<Duration> {
        period(&self.header)
    }

    /// Which server sent it: a number that is random at each opening.
    pub fn server(&self) -> u32 {
        self.sample.publisher()
    }

    pub(crate) const fn header(&self) -> &Header {
        &self.header
    }
}

impl std::ops::Deref for Slice<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.sample[slice::BYTES..]
    }
}

pub(crate) fn period(header: &Header) -> Option<Duration> {
    (header.period_ns > 0).then(|| Duration::from_nanos(header.period_ns.into()))
}

/// What came.
pub(crate) enum Came<'s> {
    Slice(Slice<'s>),
    /// This server has ended, and has begun so many frames.
    End {
        server: u32,
        frames: u64,
    },
}

impl Slices {
    /// Begins to read a stream.
    ///
    /// # Errors
    /// As [`Participant::subscriber`]; [`Error::Option`] for a pattern: a stream has one name.
    pub fn connect(
        participant: &Participant,
        name: &str,
        options: SubscriberOptions,
    ) -> Result<Self, Error> {
        if name.contains('*') {
            return Err(Error::Option(format!(
                "cannot read the streams {name:?} together: write the name of one"
            )));
        }
        Ok(Self {
            subscriber: participant.subscriber_with(name, options)?,
            malformed: Cell::new(0),
        })
    }

    /// The next slice. Several may be held at once; dropping one releases it.
    ///
    /// # Errors
    /// As [`Subscriber::take`]; [`Error::EndOfStream`].
    pub fn take(&self, wait: Wait) -> Result<Slice<'_>, Error> {
        match self.next(wait)? {
            Came::Slice(slice) => Ok(slice),
            Came::End { .. } => Err(Error::EndOfStream),
        }
    }

    /// What is malformed does not prolong the wait.
    pub(crate) fn next(&self, wait: Wait) -> Result<Came<'_>, Error> {
        let wait = wait.from_now();
        loop {
            let sample = self.subscriber.take(wait)?;
            match slice::read(&sample) {
                Some((Says::Slice(header), _)) => {
                    return Ok(Came::Slice(Slice { sample, header }));
                }
                Some((Says::End(frames), _)) => {
                    let server = sample.publisher();
                    return Ok(Came::End { server, frames });
                }
                None => self.malformed.set(self.malformed.get() + 1),
            }
            if matches!(wait, Wait::Until(deadline) if Instant::now() >= deadline) {
                return Err(takt::Error::TimedOut.into());
            }
        }
    }

    /// What happened to its messages; those that no server has written are among `malformed`.
    pub fn counters(&self) -> SubscriberCounters {
        let mut counters = self.subscriber.counters();
        counters.malformed += self.malformed.get();
        counters
    }

    /// As [`Subscriber::fd`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.subscriber.fd()
    }

    /// As [`Subscriber::arm`].
    pub fn arm(&self) -> bool {
        self.subscriber.arm()
    }

    /// Ends this reader's waits from other threads.
    pub fn waker(&self) -> SubscriberWaker {
        self.subscriber.waker()
    }
}
