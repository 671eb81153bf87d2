//! Sending frames.

use std::time::Duration;

use takt::{Qos, Reliability, TaiTime, Wait};
use takt_messaging::{Participant, Publisher, PublisherOptions};

use crate::error::Error;
use crate::format::Format;
use crate::slice::{self, Header, Says};

/// Bytes of a slice, if not told otherwise, of frames that are spread and of those that burst: the first are six frames of
/// Ethernet, 68 µs of a link with 1 Gb/s, between which others may send.
const SLICE: [usize; 2] = [8192, 32_768];
/// The longest slice.
const MOST_SLICE: u32 = 1 << 20;
/// Fewest slices on their way, if not told otherwise, of frames that are spread and of those that burst, and most.
const DEPTHS: [usize; 2] = [4, 64];
const MOST_DEPTH: usize = 1024;
/// How long before its launch a slice is handed to the runtime, at least.
const LEAD: Duration = Duration::from_micros(300);
/// How long a server that closes waits for memory to say so if it could keep none for that: one that is reliable as long as a
/// slow client may take to make room, which has all of it.
const END_WITHIN: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];
/// Part of its period over which a frame is spread: the rest is for what comes late.
const SPREAD: (u32, u32) = (9, 10);

/// When the slices of a frame are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pace {
    /// As soon as possible, one after another.
    #[default]
    Burst,
    /// At even distances over nine tenths of the stream's period, each by its launch time.
    Spread,
}

/// How to open a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerOptions {
    /// How slices are carried, and delivered.
    pub qos: Qos,
    /// When they are sent.
    pub pace: Pace,
    /// From frame to frame, if it is known: at most 4.2 s.
    pub period: Option<Duration>,
    /// Bytes of a slice, 256 B to 1 MiB; 0: whole lines of 8 KiB or less with [`Pace::Spread`], of 32 KiB or less else.
    pub slice: u32,
    /// Most slices that may be on their way at once, a power of two up to 65536; 0: two frames or a little more, 1024 at
    /// most, and 64 at least with [`Pace::Burst`]. What is on its way is what a frame waits behind. One of them is kept for the end of the stream: 1 is taken as 2.
    pub depth: u32,
}

impl ServerOptions {
    /// The usual ones, with this quality.
    pub fn new(qos: Qos) -> Self {
        Self {
            qos,
            ..Self::default()
        }
    }

    /// The same, with each frame spread over this period.
    #[must_use]
    pub fn spread(mut self, period: Duration) -> Self {
        self.period = Some(period);
        self.pace = Pace::Spread;
        self
    }
}

/// Sends the frames of a stream. Dropping it tells clients that the stream has ended, in memory that was kept for that: it does
/// not wait for a client that holds all the rest.
///
/// `Send`: one thread at a time.
#[derive(Debug)]
pub struct Server {
    publisher: Publisher,
    format: Format,
    pace: Pace,
    period: Duration,
    asked_slice: u32,
    slice: u32,
    /// Frames begun: the number of the next.
    frames: u64,
    free: Free,
    /// It waits for slow clients.
    reliable: bool,
}

/// When the next frame may begin.
#[derive(Debug, Default)]
struct Free {
    /// Behind the launch times of all slices that were sent.
    at: Option<TaiTime>,
    /// When it was last asked for, by which it shows that the clock was stepped back.
    asked: Option<TaiTime>,
}

impl Free {
    /// If it is `now`. What was sent by a clock that was stepped back meanwhile holds nothing up.
    fn next(&mut self, now: TaiTime) -> TaiTime {
        if self.asked.replace(now).is_some_and(|before| now < before) {
            self.at = None;
        }
        let soonest = now.saturating_add_nanos(LEAD.as_nanos() as i64);
        self.at.map_or(soonest, |free| free.max(soonest))
    }
}

impl Server {
    /// Opens the stream of this name, with the rules for names of topics.
    ///
    /// # Errors
    /// As [`Participant::publisher`]; [`Error::Option`].
    pub fn open(
        participant: &Participant,
        name: &str,
        format: Format,
        options: ServerOptions,
    ) -> Result<Self, Error> {
        let period = options.period.unwrap_or_default();
        if u32::try_from(period.as_nanos()).is_err() || options.period == Some(Duration::ZERO) {
            return Err(Error::Option(format!(
                "a period of {period:?} is not possible: write more than 0 and at most 4.2 s"
            )));
        }
        if options.pace == Pace::Spread && period.is_zero() {
            return Err(Error::Option(
                "frames can be spread only over a known period: give one".into(),
            ));
        }
        if options.qos.reliability == Reliability::Latest {
            return Err(Error::Option(
                "a stream whose newest message alone is sent again loses the other slices of its frames: choose reliable, or within a deadline; each client keeps the latest frame by itself".into(),
            ));
        }
        let slice = slice_bytes(format, options.slice, options.pace)?;
        let publisher = participant.publisher_with(
            name,
            PublisherOptions {
                qos: options.qos,
                depth: match options.depth {
                    0 => usual_depth(format, slice, options.pace),
                    // One is kept for the end.
                    depth => depth.max(2),
                },
                encoding: crate::ENCODING,
                history: 0,
                history_bytes: 0,
            },
        )?;
        // If there is no memory now there may be at the next frame.
        let _ = publisher.reserve(slice::BYTES, Wait::Never);
        Ok(Self {
            publisher,
            format,
            pace: options.pace,
            period,
            asked_slice: options.slice,
            slice,
            frames: 0,
            free: Free::default(),
            reliable: matches!(options.qos.reliability, Reliability::Reliable { .. }),
        })
    }

    /// What its frames are.
    pub const fn format(&self) -> Format {
        self.format
    }

    /// The frames that follow are of this format. The depth stays that of the first one, unless it was given.
    pub fn set_format(&mut self, format: Format) {
        // The slice that was asked for was possible when the server was opened.
        if let Ok(slice) = slice_bytes(format, self.asked_slice, self.pace) {
            (self.slice, self.format) = (slice, format);
        }
    }

    /// Bytes of each slice but the last of a frame.
    pub const fn slice(&self) -> usize {
        self.slice as usize
    }

    /// Frames begun so far.
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// The publisher below: where it is carried, and what became of it.
    pub const fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// Waits until the stream has a client; how many there are then on this node, and how many other nodes have some.
    ///
    /// # Errors
    /// As [`Publisher::wait_subscriber`].
    pub fn wait_client(&self, wait: Wait) -> Result<u32, Error> {
        Ok(self.publisher.wait_subscriber(wait)?)
    }

    /// Sends a frame that is captured now. Waits for memory, with [`Pace::Spread`] also as long as earlier slices wait for
    /// their launch times.
    ///
    /// # Errors
    /// As [`fill`](Self::fill); [`Error::Option`] when the frame has not as many bytes as the format says.
    pub fn send(&mut self, frame: &[u8], wait: Wait) -> Result<u64, Error> {
        self.send_captured(frame, crate::now(), wait)
    }

    /// As [`send`](Self::send), of a frame that was captured at another time.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_captured(
        &mut self,
        frame: &[u8],
        captured: TaiTime,
        wait: Wait,
    ) -> Result<u64, Error> {
        self.fits(frame.len())?;
        self.fill(captured, wait, |offset, memory| {
            memory.copy_from_slice(&frame[offset..offset + memory.len()]);
        })
    }

    /// Whether a frame of so many bytes is one of its format.
    ///
    /// # Errors
    /// [`Error::Option`] if not.
    pub fn fits(&self, bytes: usize) -> Result<(), Error> {
        if bytes == self.format.bytes() {
            return Ok(());
        }
        Err(Error::Option(format!(
            "a frame of {bytes} bytes is not one of {}, which has {}",
            self.format,
            self.format.bytes()
        )))
    }

    /// Sends a frame that `fill` writes where it is sent from: called once for each slice, with where in the frame its bytes
    /// begin, in order. Returns the frame's number.
    ///
    /// # Errors
    /// [`Error::Topic`] as [`Publisher::fill`], with [`TimedOut`](takt::Error::TimedOut) when there is no memory for the
    /// whole frame in the time. What has been sent of it then is not followed by the rest, and is dropped by clients.
    pub fn fill(
        &mut self,
        captured: TaiTime,
        wait: Wait,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<u64, Error> {
        let wait = wait.from_now();
        let launches = self.launches();
        let number = self.frames;
        let mut header = Header {
            frame: number,
            captured,
            format: self.format,
            slice: self.slice,
            offset: 0,
            // Checked when it was opened.
            period_ns: self.period.as_nanos() as u32,
        };
        let slices = header.slices();
        self.frames += 1;
        // It is there but for the first time, and after the runtime was restarted.
        let _ = self.publisher.reserve(slice::BYTES, Wait::Never);
        for index in 0..slices {
            // Within the frame, which has fewer than 4 GiB.
            header.offset = index as u32 * self.slice;
            let write = |memory: &mut [u8]| {
                slice::write(&Says::Slice(header), memory);
                fill(header.offset as usize, &mut memory[slice::BYTES..]);
            };
            let len = slice::BYTES + header.len();
            match launches {
                Some((first, spread)) => {
                    let launch = |index: usize| {
                        let after = spread.as_nanos() * index as u128 / slices as u128;
                        first.saturating_add_nanos(after as i64)
                    };
                    let sent = self.publisher.fill_at(len, launch(index), wait, write)?;
                    self.free.at = Some(launch(index + 1));
                    sent
                }
                None if index + 1 < slices => self.publisher.fill_more(len, wait, write)?,
                None => self.publisher.fill(len, wait, write)?,
            };
        }
        Ok(number)
    }

    /// When the first slice of the next frame is to be sent, and over how long all of them.
    fn launches(&mut self) -> Option<(TaiTime, Duration)> {
        if self.pace == Pace::Burst {
            return None;
        }
        let spread = self.period * SPREAD.0 / SPREAD.1;
        Some((self.free.next(crate::now()), spread))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let end = Says::End(self.frames);
        let write = |memory: &mut [u8]| {
            slice::write(&end, memory);
        };
        // Behind the last slice.
        let launch = self.free.at;
        let kept = self.publisher.fill_reserved(slice::BYTES, launch, write);
        if !kept.is_err_and(|error| error.is_would_block()) {
            return;
        }
        // Who does not hear it waits for frames, as after a crash.
        let wait = Wait::For(END_WITHIN[usize::from(self.reliable)]);
        let _ = match launch {
            Some(launch) => self.publisher.fill_at(slice::BYTES, launch, wait, write),
            None => self.publisher.fill(slice::BYTES, wait, write),
        };
    }
}

/// Two frames and the end.
fn usual_depth(format: Format, slice: u32, pace: Pace) -> u32 {
    let two = 2 * format.bytes().div_ceil(slice as usize) + 1;
    let least = DEPTHS[usize::from(pace == Pace::Burst)];
    two.next_power_of_two().clamp(least, MOST_DEPTH) as u32
}

fn slice_bytes(format: Format, asked: u32, pace: Pace) -> Result<u32, Error> {
    let least = slice::LEAST;
    if asked != 0 && !(least..=MOST_SLICE).contains(&asked) {
        return Err(Error::Option(format!(
            "slices of {asked} bytes are not possible: write {least} to {MOST_SLICE}, or 0 for the usual ones"
        )));
    }
    let most = match (asked, pace) {
        (0, Pace::Spread) => SLICE[0],
        (0, Pace::Burst) => SLICE[1],
        (asked, _) => asked as usize,
    };
    let line = format.line_bytes();
    let bytes = match most / line {
        0 => most,
        _ if asked != 0 => most,
        lines => lines * line,
    };
    // No longer than a frame, so far as that may be.
    Ok(bytes.min(format.bytes()) as u32)
}

#[cfg(test)]
mod tests {
    use takt::SlowSinks;
    use takt_embedded::{Embedded, Settings};
    use takt_messaging::SubscriberOptions;
    use takt_testing::Directory;

    use super::*;
    use crate::format::Pixels;
    use crate::slices::Slices;

    const PATIENCE: Wait = Wait::For(Duration::from_secs(60));

    /// A program with a server of frames that are spread over 4 s, and who reads its slices.
    fn spread(format: Format, qos: Qos, depth: u32) -> (Directory, Embedded, Server, Slices) {
        let directory = Directory::private();
        let settings = Settings {
            rendezvous: Some(directory.join("nodes")),
            ..Settings::local()
        };
        let runtime = Embedded::start(settings).expect("a runtime");
        let session = runtime.session("camera").expect("a session");
        let participant = Participant::builder(session).open().expect("a participant");
        let options = ServerOptions {
            depth,
            ..ServerOptions::new(qos).spread(Duration::from_secs(4))
        };
        let server = Server::open(&participant, "a", format, options).expect("a server");
        let slices = Slices::connect(&participant, "a", SubscriberOptions::default());
        let slices = slices.expect("slices");
        server.wait_client(PATIENCE).expect("a client");
        (directory, runtime, server, slices)
    }

    #[test]
    fn a_clock_that_is_stepped_back_holds_up_no_frame() {
        let second = 1_000_000_000;
        let at = |seconds: i64| TaiTime::from_nanos(seconds * second);
        let soon = |seconds: i64| at(seconds).saturating_add_nanos(LEAD.as_nanos() as i64);
        let mut free = Free::default();
        assert_eq!(free.next(at(7200)), soon(7200));
        free.at = Some(at(7201));
        assert_eq!(free.next(at(7200)), at(7201), "behind those before it");
        assert_eq!(free.next(at(3600)), soon(3600));
        assert_eq!(free.next(at(3601)), soon(3601));
    }

    #[test]
    fn frames_of_which_nothing_was_sent_do_not_put_off_those_that_follow() {
        let format = Format::picture(Pixels::Rgb, 64, 48).expect("a format");
        let qos = Qos::slow().with_reliability(Reliability::Reliable {
            deadline: None,
            slow_sinks: SlowSinks::Wait,
        });
        let (_directory, _runtime, mut server, slices) = spread(format, qos, 2);
        // All memory but that for the end is with the reader.
        let _ = server.send(&vec![0; format.bytes()], Wait::Never);
        let held = slices.take(PATIENCE).expect("a slice");
        let free = server.free.at;
        for _ in 0..200 {
            let refused = server.send(&vec![0; format.bytes()], Wait::Never);
            assert!(refused.expect_err("no memory").is_would_block());
        }
        assert_eq!(server.free.at, free);
        drop(held);
    }

    #[test]
    fn few_small_frames_that_are_spread_are_on_their_way() {
        let depth = |bytes, pace| {
            let format = Format::of_bytes(bytes).expect("a format");
            usual_depth(format, 8192, pace)
        };
        assert_eq!(depth(100, Pace::Spread), 4);
        assert_eq!(depth(100, Pace::Burst), 64);
        assert_eq!(depth(8192 * 60, Pace::Spread), 128);
        assert_eq!(depth(8192 * 600, Pace::Spread), 1024);
        let format = Format::of_bytes(100).expect("a format");
        let (_directory, _runtime, mut server, _slices) = spread(format, Qos::slow(), 0);
        // One may leave at once, three wait for their times or are being read.
        let sent = (0..64).take_while(|_| server.send(&[0; 100], Wait::Never).is_ok());
        let sent = sent.count();
        assert!((2..=5).contains(&sent), "{sent}");
    }

    #[test]
    fn slices_are_whole_lines_where_lines_are_short() {
        let bytes = |pixels, width, height, slice, pace| {
            let format = Format::picture(pixels, width, height).expect("a format");
            slice_bytes(format, slice, pace).map_err(|error| error.to_string())
        };
        assert_eq!(bytes(Pixels::Rgb, 1280, 720, 0, Pace::Spread), Ok(7680));
        assert_eq!(bytes(Pixels::Rgb, 1280, 720, 0, Pace::Burst), Ok(30_720));
        assert_eq!(bytes(Pixels::Rgb, 7680, 4320, 0, Pace::Spread), Ok(8192));
        assert_eq!(bytes(Pixels::Rgb, 1280, 720, 9000, Pace::Burst), Ok(9000));
        assert_eq!(bytes(Pixels::Gray, 10, 10, 0, Pace::Burst), Ok(100));
        assert_eq!(bytes(Pixels::Gray, 1, 1000, 0, Pace::Burst), Ok(1000));
        let told =
            "slices of 255 bytes are not possible: write 256 to 1048576, or 0 for the usual ones";
        let refused = bytes(Pixels::Gray, 1, 1, 255, Pace::Burst);
        assert_eq!(refused, Err(told.to_owned()));
    }
}
