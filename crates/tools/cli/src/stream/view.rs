//! `takt stream view`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::net::sockopt;
use serde::Serialize;
use takt::Wait;
use takt_streaming::rtp::{self, Packetizer};
use takt_streaming::{Client, ClientCounters, ClientOptions, Error, Format, Frame, Keep, Pixels};

use super::page::{Page, Shown, USUAL};
use crate::application::Application;
use crate::failure::Failure;
use crate::output::{Form, counted, print_json_line};
use crate::signals::Stop;
use crate::subscribe::LOOK_EVERY;
use crate::topic::Joined;

const HELP: &str = "\
Without --output and --rtp a page with the live picture and its latency is served, for browsers of this machine if --http
does not say otherwise: whoever reaches its address sees the pictures (names other than localhost are refused). A line each
second says how many frames came, and how long they took from their capture until they were whole: that is as true as the
clocks of both nodes agree. The last line's frames a second are those from the first frame to the last.

Another program shows them through a pipe or as RTP of raw video (RFC 4175):
  takt stream view camera/1 --output - |
    gst-launch-1.0 fdsrc ! \\
      rawvideoparse format=rgb width=1280 height=720 framerate=30/1 ! autovideosink
  takt stream view camera/1 --rtp 127.0.0.1:5004

Examples:
  takt stream view camera/1
  takt stream view camera/1 --count 100 --all --output frames.rgb
  takt stream view camera/1 --json --http 127.0.0.1:0";

/// Between two lines.
const LINE: Duration = Duration::from_secs(1);
/// Latencies that are remembered.
const REMEMBERED: usize = 600;
/// Packets of RTP that are sent together, before a look at the time.
const TOGETHER: usize = 16;

/// Receives frames.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct View {
    /// The stream
    stream: String,
    /// Serve the page here; port 0 for any [default: 127.0.0.1:8088, or any port if another program has that one]
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["output", "rtp"])]
    http: Option<SocketAddr>,
    /// Write raw frames to a file one after another; `-` for standard output
    #[arg(long, value_name = "FILE", conflicts_with = "rtp")]
    output: Option<PathBuf>,
    /// Send frames as RTP packets of raw video to this address
    #[arg(long, value_name = "ADDRESS:PORT")]
    rtp: Option<String>,
    /// Bytes of an RTP packet at most, without the headers of IP and UDP
    #[arg(long, value_name = "BYTES", default_value_t = 1400, requires = "rtp")]
    packet: usize,
    /// Every frame counts: keep some that wait, and let a reliable server wait for this viewer, in the place of the
    /// latest frame alone
    #[arg(long)]
    all: bool,
    /// Take frames that lack slices, too
    #[arg(long)]
    holes: bool,
    /// The longest frame that is taken; memory is held for three of them, or 1 GiB if that is more
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20, value_parser = clap::value_parser!(u32).range(1..))]
    most_bytes: u32,
    /// End after this many frames
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// End if no frame comes for this long, with exit code 1
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    application: Application,
    #[command(flatten)]
    form: Form,
}

/// The last second, and all since the beginning, as JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    pub stream: String,
    pub format: String,
    /// Of the last line: from the first frame to the last.
    pub fps: f64,
    /// From capture until the frame was whole, nanoseconds: of the last 600 frames.
    pub latency_p50_ns: i64,
    pub latency_p99_ns: i64,
    pub latency_max_ns: i64,
    pub frames: u64,
    pub with_holes: u64,
    pub incomplete: u64,
    pub lost: u64,
    pub skipped: u64,
    pub no_memory: u64,
    /// Frames longer than `most_bytes`.
    pub too_large: u64,
    pub most_bytes: u32,
    /// Slices that were lost on their way, or for lack of room or memory.
    pub lost_slices: u64,
    /// Slices that came again, or too late.
    pub late: u64,
    pub other_server: u64,
    pub malformed: u64,
}

impl Figures {
    /// What was not taken, as it is told.
    fn refused(&self) -> String {
        let too_large = format!(
            "longer than {} bytes (--most-bytes takes longer ones)",
            self.most_bytes
        );
        let others = counted([
            (self.with_holes, "with holes"),
            (self.no_memory, "without memory"),
            (self.too_large, too_large.as_str()),
            (self.lost_slices, "slices lost"),
            (self.late, "slices late"),
            (self.other_server, "slices of another server"),
            (self.malformed, "messages malformed"),
        ]);
        format!(
            "{} incomplete, {} lost, {} skipped{others}",
            self.incomplete, self.lost, self.skipped
        )
    }
}

impl View {
    pub fn run(self) -> Result<(), Failure> {
        let stop = Stop::by_signals()?;
        let mut out = self.out()?;
        let joined = Joined::new(&self.application, "takt stream view")?;
        joined.warn();
        let options = ClientOptions {
            keep: if self.all { Keep::All } else { Keep::Latest },
            holes: self.holes,
            most_bytes: self.most_bytes as usize,
            ..ClientOptions::new(self.application.quality())
        };
        let client = Client::connect(&joined.participant, &self.stream, options)?;
        let mut seen = Seen::default();
        let mut format = None;
        let mut server = None;
        let mut last = Instant::now();
        let outcome = loop {
            if self.count.is_some_and(|count| seen.frames >= count) || stop.asked() {
                break Ok(());
            }
            let mut came = false;
            match client.next(Wait::For(LOOK_EVERY)) {
                Ok(frame) => {
                    last = Instant::now();
                    seen.frame(&frame, last);
                    if server
                        .replace(frame.server())
                        .is_some_and(|of| of != frame.server())
                    {
                        eprintln!(
                            "the server changed: it was started again, or another one has this name, too"
                        );
                    }
                    let now = frame.format();
                    let before = format.replace(now).filter(|&before| before != now);
                    if let Some(before) = before {
                        eprintln!("the format changed from {before} to {now}");
                        if let Some(file) = &self.output {
                            break Err(Failure::Other(format!(
                                "frames of {now} do not go behind those of {before} in {}: nobody could tell them apart; view \
                                 them into another file",
                                file.display()
                            )));
                        }
                    }
                    if seen.is_fresh() {
                        // Figures are there with the first picture, not with the first line.
                        let figures = self.figures(&seen, seen.mean(), format, &client.counters());
                        out.figures(&figures, &seen);
                    }
                    if let Err(failure) = out.frame(frame, &seen) {
                        break Err(failure);
                    }
                    came = true;
                }
                Err(Error::EndOfStream) => eprintln!("the server has ended the stream"),
                Err(error) if error.is_timed_out() || error.is_interrupted() => {}
                Err(error) => break Err(error.into()),
            }
            if let Some(timeout) = self.timeout
                && !came
                && last.elapsed() >= timeout
            {
                break Err(self.silent(timeout, &client.counters()));
            }
            if let Some(fps) = seen.fps() {
                let figures = self.figures(&seen, fps, format, &client.counters());
                out.figures(&figures, &seen);
                self.line(&figures)?;
            }
        };
        let outcome = outcome.and(out.flush());
        let figures = self.figures(&seen, seen.mean(), format, &client.counters());
        eprintln!("{}", summary(&figures));
        if self.form.json {
            print_json_line(&figures)?;
        }
        outcome
    }

    /// Why no frame came for so long, as far as that is known.
    fn silent(&self, timeout: Duration, counters: &ClientCounters) -> Failure {
        let why = if counters.too_large > 0 {
            format!(
                "{} came that are longer than {} bytes: take them with --most-bytes",
                counters.too_large, self.most_bytes
            )
        } else if counters.no_memory > 0 {
            format!("there was no memory for {}", counters.no_memory)
        } else if counters.incomplete > 0 {
            format!(
                "{} came that lack slices: take them with --holes, or serve them with --reliable",
                counters.incomplete
            )
        } else {
            "does `takt topic list` show that somebody serves it?".to_owned()
        };
        Failure::Other(format!(
            "no frame of the stream {} for {}: {why}",
            self.stream,
            humantime::format_duration(timeout)
        ))
    }

    fn out(&self) -> Result<Out, Failure> {
        if let Some(file) = &self.output {
            return Ok(Out::File(match file.to_str() {
                Some("-") => {
                    if self.form.json {
                        return Err(Failure::Arguments(
                            "frames and JSON cannot both go to standard output: leave --json out, or write frames to a \
                             file"
                                .into(),
                        ));
                    }
                    Box::new(std::io::stdout())
                }
                _ => Box::new(File::create(file).map_err(|error| {
                    Failure::Other(format!("cannot write {}: {error}", file.display()))
                })?),
            }));
        }
        if let Some(address) = &self.rtp {
            return Ok(Out::Rtp(Box::new(RtpOut::open(address, self.packet)?)));
        }
        let page = Page::serve(self.http.as_ref().map_or(&USUAL, std::slice::from_ref))?;
        eprintln!("the picture is at http://{}/", page.address());
        Ok(Out::Page(page))
    }

    fn figures(
        &self,
        seen: &Seen,
        fps: f64,
        format: Option<Format>,
        counters: &ClientCounters,
    ) -> Figures {
        let mut sorted: Vec<i64> = seen.latencies.iter().copied().collect();
        sorted.sort_unstable();
        let at = |part: f64| {
            let place = (sorted.len() as f64 * part) as usize;
            sorted
                .get(place.min(sorted.len().saturating_sub(1)))
                .copied()
                .unwrap_or_default()
        };
        let channels = &counters.slices.channels;
        Figures {
            stream: self.stream.clone(),
            format: format.map(|format| format.to_string()).unwrap_or_default(),
            fps,
            latency_p50_ns: at(0.5),
            latency_p99_ns: at(0.99),
            latency_max_ns: at(1.0),
            frames: counters.frames,
            with_holes: counters.with_holes,
            incomplete: counters.incomplete,
            lost: counters.lost,
            skipped: counters.skipped,
            no_memory: counters.no_memory,
            too_large: counters.too_large,
            most_bytes: self.most_bytes,
            lost_slices: channels.lost
                + channels.lost_at_disconnect
                + channels.dropped_full
                + channels.dropped_memory,
            late: counters.late,
            other_server: counters.other_server,
            malformed: counters.slices.malformed + counters.slices.foreign,
        }
    }

    fn line(&self, figures: &Figures) -> Result<(), Failure> {
        // Standard output is for frames, if they go there.
        if self.form.json {
            return print_json_line(figures);
        }
        eprintln!("{}", summary(figures));
        Ok(())
    }
}

fn summary(figures: &Figures) -> String {
    let refused = figures.refused();
    if figures.frames == 0 {
        return format!("no frame of {} yet; {refused}", figures.stream);
    }
    let ms = |ns: i64| ns as f64 / 1e6;
    format!(
        "{}: {} frames, {:.1} fps, latency median {:.2} ms, p99 {:.2} ms; {refused}",
        figures.format,
        figures.frames,
        figures.fps,
        ms(figures.latency_p50_ns),
        ms(figures.latency_p99_ns),
    )
}

/// What has come.
pub struct Seen {
    frames: u64,
    /// When the first frame came, and the last.
    between: Option<(Instant, Instant)>,
    /// Nanoseconds.
    pub latencies: VecDeque<i64>,
    /// At the last line.
    line: (Instant, u64),
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            frames: 0,
            between: None,
            latencies: VecDeque::with_capacity(REMEMBERED),
            line: (Instant::now(), 0),
        }
    }
}

impl Seen {
    fn frame(&mut self, frame: &Frame, now: Instant) {
        self.came(now);
        if self.latencies.len() >= REMEMBERED {
            self.latencies.pop_front();
        }
        let latency = frame
            .completed()
            .as_nanos()
            .saturating_sub(frame.captured().as_nanos());
        self.latencies.push_back(latency);
    }

    fn came(&mut self, now: Instant) {
        self.frames += 1;
        let first = self.between.map_or(now, |(first, _)| first);
        self.between = Some((first, now));
    }

    /// Whether the first frames come: no line has told of any.
    fn is_fresh(&self) -> bool {
        self.line.1 == 0
    }

    /// Frames a second from the first frame to the last; 0 where there is one only.
    fn mean(&self) -> f64 {
        match self.between {
            Some((first, last)) if last > first => {
                (self.frames - 1) as f64 / (last - first).as_secs_f64()
            }
            _ => 0.0,
        }
    }

    /// Frames a second since this was last said, if it is time to say it.
    fn fps(&mut self) -> Option<f64> {
        let (since, frames) = self.line;
        let passed = since.elapsed();
        if passed < LINE {
            return None;
        }
        self.line = (Instant::now(), self.frames);
        Some((self.frames - frames) as f64 / passed.as_secs_f64())
    }
}

/// Where frames go.
enum Out {
    Page(Page),
    File(Box<dyn Write>),
    Rtp(Box<RtpOut>),
}

impl Out {
    fn frame(&mut self, frame: Frame, seen: &Seen) -> Result<(), Failure> {
        match self {
            Self::Page(page) => {
                page.show(frame, seen);
                Ok(())
            }
            Self::File(file) => file.write_all(&frame).map_err(Failure::io("write a frame")),
            Self::Rtp(rtp) => rtp.send(&frame),
        }
    }

    fn figures(&self, figures: &Figures, seen: &Seen) {
        if let Self::Page(page) = self {
            page.tell(Shown::new(figures, seen));
        }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        match self {
            Self::File(file) => file.flush().map_err(Failure::io("write frames")),
            _ => Ok(()),
        }
    }
}

/// Frames as RTP packets, spread over half of their period where that is known.
struct RtpOut {
    socket: UdpSocket,
    packet: usize,
    packetizer: Option<(Format, Packetizer)>,
}

impl RtpOut {
    fn open(address: &str, packet: usize) -> Result<Self, Failure> {
        // The length of packets is known to be possible before a frame comes.
        Packetizer::new(Format::picture(Pixels::Rgb, 1, 1)?, packet, 96, 0)?;
        let failed = |error: std::io::Error| {
            Failure::Other(format!(
                "cannot send RTP to {address}: {error}; write an address and a port, such as 127.0.0.1:5004"
            ))
        };
        let to = address.to_socket_addrs().map_err(failed)?.next();
        let to = to.ok_or_else(|| failed(std::io::ErrorKind::AddrNotAvailable.into()))?;
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).map_err(failed)?;
        socket.connect(to).map_err(failed)?;
        // A full buffer makes it wait.
        let _ = sockopt::set_socket_send_buffer_size(&socket, 1 << 20);
        Ok(Self {
            socket,
            packet,
            packetizer: None,
        })
    }

    fn send(&mut self, frame: &Frame) -> Result<(), Failure> {
        let format = frame.format();
        let (_, packetizer) = match &mut self.packetizer {
            Some(known) if known.0 == format => known,
            place => {
                let new = Packetizer::new(format, self.packet, 96, rand::random())?;
                eprintln!("a receiver must know: {}", rtp::caps(format, 96)?);
                place.insert((format, new))
            }
        };
        let spread = frame.period().unwrap_or_default() / 2;
        let packets = packetizer.packets();
        let (began, mut sent) = (Instant::now(), 0);
        let captured = Duration::from_nanos(frame.captured().as_nanos().try_into().unwrap_or(0));
        let socket = &self.socket;
        packetizer
            .packetize(frame, captured, |packet| {
                if sent % TOGETHER == 0 {
                    let due = began + spread.mul_f64(sent as f64 / packets as f64);
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                }
                sent += 1;
                match socket.send(packet) {
                    Err(error) if !passes(&error) => Err(error),
                    _ => Ok(()),
                }
            })
            .map_err(Failure::io("send RTP"))
    }
}

/// Whether a datagram that could not be sent is lost as one may be on the way, and the next one is worth trying: nobody is
/// there yet, no way leads there just now, or the interface's queue is full.
fn passes(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::NetworkUnreachable
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkDown
    ) || error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_a_second_are_those_while_frames_came() {
        let mut seen = Seen::default();
        assert_eq!(seen.mean(), 0.0);
        let first = Instant::now() + Duration::from_secs(5);
        seen.came(first);
        assert_eq!(seen.mean(), 0.0);
        for frame in 1..=30 {
            seen.came(first + Duration::from_millis(100) * frame);
        }
        assert!((seen.mean() - 10.0).abs() < 1e-9, "{}", seen.mean());
    }
}
