//! Where frames come from.

use std::fmt;
use std::io::Read;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};

use image::{ImageReader, RgbImage};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use serde::Serialize;
use takt_clock::{Clock, SystemTai};
use takt_streaming::{Format, Pixels, rtp::Depacketizer};
use takt_time::TaiTime;

use super::{Size, pixels};
use crate::failure::Failure;
use crate::signals::readable;
use crate::subscribe::LOOK_EVERY;

/// Of the test pattern.
const USUAL: Size = Size {
    width: 1280,
    height: 720,
};
/// What a socket for RTP keeps at most until it is read.
const RTP_BYTES: usize = 64 << 20;
/// Bytes of frames of RTP that may wait until they are sent, and how many frames at most.
const RTP_WAITING: usize = 64 << 20;
const MOST_WAITING: usize = 64;

/// Where frames come from, as it is written.
#[derive(Clone, Debug)]
pub enum From {
    Pattern,
    Input,
    Rtp(String),
    /// A pipeline of GStreamer's.
    GStreamer(String),
    Directory(PathBuf),
}

impl FromStr for From {
    type Err = String;

    fn from_str(written: &str) -> Result<Self, Self::Err> {
        Ok(match written {
            "pattern" => Self::Pattern,
            "-" => Self::Input,
            _ => {
                if let Some(address) = written.strip_prefix("rtp://") {
                    Self::Rtp(address.to_owned())
                } else if let Some(pipeline) = written.strip_prefix("gst:") {
                    Self::GStreamer(pipeline.to_owned())
                } else if written.starts_with("/dev/video") {
                    // Video4Linux.
                    Self::GStreamer(format!("v4l2src device={written}"))
                } else {
                    Self::Directory(written.into())
                }
            }
        })
    }
}

/// Gives frames.
pub trait Source {
    /// Writes the next frame and says when it was captured. `None`: there are no more, or it was told to stop.
    fn next(&mut self, frame: &mut [u8], stop: &AtomicBool) -> Result<Option<TaiTime>, Failure>;

    /// Frames come at their own pace.
    fn is_live(&self) -> bool {
        false
    }

    /// Fails if it will give no frame, as far as that can be seen without taking one.
    fn look(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// What is to be said at the end, if anything is.
    fn told(&self) -> Option<Told> {
        None
    }
}

/// What a source says at the end: in JSON an object of its kind.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// Of packets of raw video.
    Rtp {
        /// Frames whole.
        received: u64,
        /// Frames that lacked packets.
        incomplete: u64,
        /// Frames whole for which there was no place.
        skipped: u64,
        /// Packets that are none of raw video of the format.
        malformed: u64,
        /// Packets of other sources.
        strays: u64,
    },
    /// Of a directory.
    Pictures {
        /// Those that could not be read.
        skipped: u64,
    },
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rtp {
                received,
                incomplete,
                skipped,
                malformed,
                strays,
            } => write!(
                f,
                "RTP: {received} frame(s) received, {incomplete} incomplete, {skipped} skipped, {malformed} strange packet(s), \
                 {strays} of other sources"
            ),
            Self::Pictures { skipped } => {
                write!(f, "{skipped} picture(s) skipped that could not be read")
            }
        }
    }
}

/// A source, and what its frames are.
pub fn open(
    from: &From,
    pixels: Pixels,
    size: Option<Size>,
) -> Result<(Box<dyn Source>, Format), Failure> {
    let format = |size: Size| {
        let format = Format::picture(pixels, size.width, size.height)?;
        // The sources' own are of lines or frames, too, and have no way to say that there is no memory for them.
        reserved(format, 8 * format.line_bytes())?;
        Ok::<_, Failure>(format)
    };
    let needed = |what: &str| {
        size.ok_or_else(|| {
            Failure::Arguments(format!(
                "{what} do not say how large they are: give --size, such as --size 1280x720"
            ))
        })
    };
    Ok(match from {
        From::Pattern => {
            let format = format(size.unwrap_or(USUAL))?;
            (Box::new(Pattern::new(format)), format)
        }
        From::Input => {
            let format = format(needed("raw frames on standard input")?)?;
            let input = Pipe {
                from: standard_input()?,
                name: "standard input",
                frames: 0,
            };
            (Box::new(input), format)
        }
        From::GStreamer(pipeline) => {
            let format = format(size.unwrap_or(USUAL))?;
            (Box::new(GStreamer::start(pipeline, format)?), format)
        }
        From::Rtp(address) => {
            let format = format(needed("RTP packets of raw video")?)?;
            (Box::new(Rtp::open(address, format)?), format)
        }
        From::Directory(directory) => {
            let mut files = Pictures::of(directory)?;
            // One has to be there, also where it need not say the size.
            let first = files.next()?;
            files.next = 0;
            let size = size.unwrap_or(Size {
                width: first.width(),
                height: first.height(),
            });
            let format = format(size)?;
            if format.pixels() == Pixels::Bytes {
                return Err(Failure::Arguments(
                    "pictures have pixels: give --pixels another value than bytes".into(),
                ));
            }
            let source = Directory {
                files,
                format,
                read: None,
            };
            (Box::new(source), format)
        }
    })
}

/// Memory for a frame.
pub fn memory(format: Format) -> Result<Vec<u8>, Failure> {
    let mut memory = reserved(format, 0)?;
    memory.resize(format.bytes(), 0);
    Ok(memory)
}

/// Memory for a frame and more, not written yet.
fn reserved(format: Format, more: usize) -> Result<Vec<u8>, Failure> {
    let mut memory = Vec::new();
    match memory.try_reserve_exact(format.bytes().saturating_add(more)) {
        Ok(()) => Ok(memory),
        Err(_) => Err(Failure::Other(format!(
            "no memory for frames of {} bytes: choose a smaller --size, or other --pixels",
            format.bytes()
        ))),
    }
}

/// Standard input without a buffer, so that whether there is something to read is the kernel's word.
fn standard_input() -> Result<std::fs::File, Failure> {
    let input = std::io::stdin().as_fd().try_clone_to_owned();
    Ok(input.map_err(Failure::io("read standard input"))?.into())
}

/// Bars that move, under a line that falls: whoever looks sees frames that are missing or mixed.
struct Pattern {
    format: Format,
    /// A line of twice the width; each frame begins further right.
    line: Vec<u8>,
    number: usize,
}

impl Pattern {
    fn new(format: Format) -> Self {
        const COLOURS: [[u8; 3]; 8] = [
            [235, 235, 235],
            [235, 235, 16],
            [16, 235, 235],
            [16, 235, 16],
            [235, 16, 235],
            [235, 16, 16],
            [16, 16, 235],
            [16, 16, 16],
        ];
        let width = format.width() as usize;
        let bytes = format.line_bytes();
        let mut line = vec![0; 2 * bytes];
        let rgb: Vec<u8> = (0..width).flat_map(|x| COLOURS[x * 8 / width]).collect();
        let row = Format::picture(format.pixels(), format.width(), 1);
        let drawn = row.is_ok_and(|row| pixels::from_rgb(row, &rgb, &mut line[..bytes]));
        if !drawn {
            for (at, byte) in line[..bytes].iter_mut().enumerate() {
                *byte = at as u8;
            }
        }
        line.copy_within(..bytes, bytes);
        Self {
            format,
            line,
            number: 0,
        }
    }
}

impl Source for Pattern {
    fn next(&mut self, frame: &mut [u8], _: &AtomicBool) -> Result<Option<TaiTime>, Failure> {
        let captured = SystemTai.now();
        let bytes = self.format.line_bytes();
        // Two pixels, so that those that share their colour stay together.
        let shift = (self.number * 2 * self.format.pixels().bits() / 8) % bytes;
        for line in frame.chunks_exact_mut(bytes) {
            line.copy_from_slice(&self.line[shift..shift + bytes]);
        }
        let falls = self.number % self.format.height() as usize;
        frame[falls * bytes..][..bytes].fill(0xeb);
        self.number += 1;
        Ok(Some(captured))
    }
}

/// Raw frames, one after another.
struct Pipe<R> {
    from: R,
    name: &'static str,
    frames: u64,
}

impl<R: Read + AsFd> Source for Pipe<R> {
    fn next(&mut self, frame: &mut [u8], stop: &AtomicBool) -> Result<Option<TaiTime>, Failure> {
        let mut read = 0;
        while read < frame.len() {
            if !readable(&self.from, stop) {
                return Ok(None);
            }
            match self.from.read(&mut frame[read..]) {
                Ok(0) if read == 0 => return Ok(None),
                Ok(0) => {
                    return Err(Failure::Other(format!(
                        "{} ends within frame {}, after {read} of {} bytes: do --size and --pixels say what comes?",
                        self.name,
                        self.frames,
                        frame.len()
                    )));
                }
                Ok(bytes) => read += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let what = format!("cannot read {}: {error}", self.name);
                    return Err(Failure::Other(what));
                }
            }
        }
        self.frames += 1;
        Ok(Some(SystemTai.now()))
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// What a pipeline of GStreamer's makes, such as a camera's picture, scaled and converted to what the stream carries.
struct GStreamer {
    pipe: Pipe<ChildStdout>,
    child: Child,
    pipeline: String,
}

impl GStreamer {
    fn start(pipeline: &str, format: Format) -> Result<Self, Failure> {
        let name = match format.pixels() {
            Pixels::Rgb => "RGB",
            Pixels::Rgba => "RGBA",
            Pixels::Bgr => "BGR",
            Pixels::Bgra => "BGRA",
            Pixels::Uyvy => "UYVY",
            Pixels::Gray => "GRAY8",
            _ => {
                let what = "GStreamer's frames have pixels: give --pixels another value than bytes";
                return Err(Failure::Arguments(what.into()));
            }
        };
        let line = format.line_bytes();
        if !line.is_multiple_of(4) {
            return Err(Failure::Arguments(format!(
                "GStreamer pads lines to a multiple of 4 bytes, and those of {format} have {line}: choose another width in --size"
            )));
        }
        let caps = format!(
            "video/x-raw,format={name},width={},height={}",
            format.width(),
            format.height()
        );
        let mut command = Command::new("gst-launch-1.0");
        command.arg("-q").args(pipeline.split_whitespace());
        command.args([
            "!",
            "videoconvert",
            "!",
            "videoscale",
            "!",
            &caps,
            "!",
            "fdsink",
        ]);
        // A signal to the terminal's programs ends it as well.
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = started.map_err(|error| {
            Failure::Other(format!(
                "cannot start gst-launch-1.0: {error}; install GStreamer (gstreamer1.0-tools, gstreamer1.0-plugins-base, and \
                 gstreamer1.0-plugins-good for cameras)"
            ))
        })?;
        let Some(from) = child.stdout.take() else {
            return Err(Failure::Other("gst-launch-1.0 has no output".into()));
        };
        Ok(Self {
            pipe: Pipe {
                from,
                name: "the pipeline",
                frames: 0,
            },
            child,
            pipeline: pipeline.to_owned(),
        })
    }

    fn failed(&self) -> Failure {
        Failure::Other(format!(
            "the pipeline `{}` fails: gst-launch-1.0 says why above; try it alone first",
            self.pipeline
        ))
    }
}

impl Source for GStreamer {
    fn next(&mut self, frame: &mut [u8], stop: &AtomicBool) -> Result<Option<TaiTime>, Failure> {
        let captured = self.pipe.next(frame, stop)?;
        if captured.is_none() && !stop.load(Ordering::Relaxed) {
            let ended = self.child.wait();
            if !ended.is_ok_and(|status| status.success()) {
                return Err(self.failed());
            }
        }
        Ok(captured)
    }

    fn look(&mut self) -> Result<(), Failure> {
        match self.child.try_wait() {
            Ok(Some(ended)) if !ended.success() => Err(self.failed()),
            _ => Ok(()),
        }
    }

    fn is_live(&self) -> bool {
        true
    }
}

impl Drop for GStreamer {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The pictures of a directory, as frames.
struct Directory {
    files: Pictures,
    format: Format,
    /// The picture that was read last: where there is one only it is read once.
    read: Option<RgbImage>,
}

/// The pictures of a directory, by name, over and over. One that cannot be read is left out.
struct Pictures {
    directory: PathBuf,
    files: Vec<PathBuf>,
    next: usize,
    skipped: u64,
}

impl Pictures {
    fn of(directory: &Path) -> Result<Self, Failure> {
        let told = |error: std::io::Error| {
            Failure::Other(format!(
                "cannot read {}: {error}; --from takes a directory of pictures, `pattern`, `-`, rtp://ADDRESS:PORT, gst:PIPELINE or /dev/videoN",
                directory.display()
            ))
        };
        let entries = std::fs::read_dir(directory).map_err(told)?;
        let mut files = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<PathBuf>, _>>()
            .map_err(told)?;
        files.retain(|file| {
            image::ImageFormat::from_path(file).is_ok_and(|kind| kind.reading_enabled())
        });
        files.sort();
        if files.is_empty() {
            return Err(Failure::Other(format!(
                "{} has no pictures: put files there that end in .png, .jpg, .bmp, .ppm or .pgm",
                directory.display()
            )));
        }
        Ok(Self {
            directory: directory.to_owned(),
            files,
            next: 0,
            skipped: 0,
        })
    }

    /// The next picture that can be read; fails if there is none at all.
    fn next(&mut self) -> Result<RgbImage, Failure> {
        while !self.files.is_empty() {
            let at = self.next % self.files.len();
            match read(&self.files[at]) {
                Ok(picture) => {
                    self.next = at + 1;
                    return Ok(picture);
                }
                Err(why) => {
                    eprintln!("takt: warning: {why}: it is skipped");
                    self.skipped += 1;
                    self.files.remove(at);
                    self.next = at;
                }
            }
        }
        Err(Failure::Other(format!(
            "no picture of {} can be read: put some there that another program can show",
            self.directory.display()
        )))
    }
}

fn read(file: &Path) -> Result<RgbImage, Failure> {
    let decoded = ImageReader::open(file)
        .and_then(ImageReader::with_guessed_format)
        .map_err(image::ImageError::IoError)
        .and_then(ImageReader::decode);
    match decoded {
        Ok(picture) => Ok(picture.into_rgb8()),
        Err(error) => Err(Failure::Other(format!(
            "cannot read {}: {error}",
            file.display()
        ))),
    }
}

impl Source for Directory {
    fn next(&mut self, frame: &mut [u8], _: &AtomicBool) -> Result<Option<TaiTime>, Failure> {
        let picture = match self.read.take() {
            // There is no other.
            Some(picture) if self.files.files.len() == 1 => picture,
            _ => {
                let (width, height) = (self.format.width(), self.format.height());
                let picture = self.files.next()?;
                match picture.dimensions() == (width, height) {
                    true => picture,
                    false => image::imageops::resize(
                        &picture,
                        width,
                        height,
                        image::imageops::FilterType::Triangle,
                    ),
                }
            }
        };
        let captured = SystemTai.now();
        pixels::from_rgb(self.format, picture.as_raw(), frame);
        self.read = Some(picture);
        Ok(Some(captured))
    }

    fn told(&self) -> Option<Told> {
        let skipped = self.files.skipped;
        (skipped > 0).then_some(Told::Pictures { skipped })
    }
}

/// RTP packets of raw video (RFC 4175), as another program sends them.
struct Rtp {
    frames: Receiver<(TaiTime, Vec<u8>)>,
    shared: Arc<RtpShared>,
}

#[derive(Default)]
struct RtpShared {
    ends: AtomicBool,
    counted: std::sync::Mutex<(takt_streaming::rtp::DepacketizerCounters, u64)>,
}

impl Rtp {
    fn open(address: &str, format: Format) -> Result<Self, Failure> {
        let depacketizer = Depacketizer::new(format)?;
        let failed = |error: std::io::Error| {
            Failure::Other(format!(
                "cannot receive RTP at {address}: {error}; write an address of this machine and a free port, such as \
                 rtp://0.0.0.0:5004"
            ))
        };
        let socket = with_room(address).map_err(failed)?;
        socket.set_read_timeout(Some(LOOK_EVERY)).map_err(failed)?;
        let (sender, frames) = sync_channel(places(format));
        let shared = Arc::<RtpShared>::default();
        let told = shared.clone();
        std::thread::spawn(move || receive(&socket, depacketizer, &sender, &told));
        Ok(Self { frames, shared })
    }
}

/// A socket that has room for bursts of frames from the first packet on.
fn with_room(address: &str) -> std::io::Result<UdpSocket> {
    let mut failed = std::io::ErrorKind::AddrNotAvailable.into();
    for address in address.to_socket_addrs()? {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        // Without the right to more it has what everybody has.
        if sockopt::set_socket_recv_buffer_size_force(&socket, RTP_BYTES).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&socket, RTP_BYTES);
        }
        match net::bind(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            Err(error) => failed = error.into(),
        }
    }
    Err(failed)
}

/// Frames that may wait for a server that is busy: as many as [`RTP_WAITING`] bytes have room for, one at least.
fn places(format: Format) -> usize {
    (RTP_WAITING / format.bytes()).clamp(1, MOST_WAITING)
}

/// Puts frames together until it is told to end. A frame that comes while there is no place is counted.
fn receive(
    socket: &UdpSocket,
    mut depacketizer: Depacketizer,
    frames: &SyncSender<(TaiTime, Vec<u8>)>,
    shared: &RtpShared,
) {
    let mut packet = vec![0; 65_536];
    let mut skipped = 0;
    while !shared.ends.load(Ordering::Relaxed) {
        // Timed out, interrupted: a look at whether it is to end.
        let length = match socket.recv(&mut packet) {
            Ok(length) => length,
            Err(error) => {
                use std::io::ErrorKind;
                // What fails at once may do so again: no core is spent on it.
                if !matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) {
                    std::thread::sleep(LOOK_EVERY);
                }
                continue;
            }
        };
        if let Some(frame) = depacketizer.packet(&packet[..length]) {
            match frames.try_send((SystemTai.now(), frame.to_vec())) {
                Ok(()) => {}
                Err(TrySendError::Full(_)) => skipped += 1,
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
        if let Ok(mut counted) = shared.counted.lock() {
            *counted = (depacketizer.counters(), skipped);
        }
    }
}

impl Source for Rtp {
    fn next(&mut self, frame: &mut [u8], stop: &AtomicBool) -> Result<Option<TaiTime>, Failure> {
        while !stop.load(Ordering::Relaxed) {
            match self.frames.recv_timeout(LOOK_EVERY) {
                Ok((captured, received)) => {
                    frame.copy_from_slice(&received);
                    return Ok(Some(captured));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
        Ok(None)
    }

    fn is_live(&self) -> bool {
        true
    }

    fn told(&self) -> Option<Told> {
        let (counters, skipped) = *self.shared.counted.lock().ok()?;
        Some(Told::Rtp {
            received: counters.frames,
            incomplete: counters.incomplete,
            skipped,
            malformed: counters.malformed,
            strays: counters.strays,
        })
    }
}

impl Drop for Rtp {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
    }
}
