//! Frames by GStreamer as RTP of raw video (RFC 4175) over UDP: one pipeline on each host, by its own program.
//!
//! RTP repairs nothing and holds nobody back. A frame that lacks a packet shows what was there before, so only those that are as they were sent count;
//! the others are lost.

use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use takt_clock::{Clock, SystemTai};
use takt_lab::Host;

use super::{PORT, Pair, PeerError, Stream, is_set, run_both};
use crate::experiment::Sample;
use crate::frames::Frames;
use crate::statistics::{Latencies, Throughput};

/// What the receiving socket keeps until it is read, as far as it may.
const BUFFER: u32 = 64 << 20;
/// Without a frame for so long once the sender is done, none comes any more.
const QUIET: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};
/// How long a pipeline may take to start.
const PATIENCE: Duration = Duration::from_secs(10);

/// A pipeline that is running, ended when this is dropped.
struct Pipeline(Child);

impl Drop for Pipeline {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pipeline(host: &Host, text: &str) -> Result<Command, PeerError> {
    let mut command = host.command("gst-launch-1.0")?;
    command.arg("-q").args(text.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command)
}

fn start(mut command: Command) -> Result<Pipeline, PeerError> {
    let child = command.spawn().map(Pipeline);
    child.map_err(|error| PeerError::Program {
        command: "gst-launch-1.0".into(),
        reason: format!("{error}; install gstreamer1.0-tools and gstreamer1.0-plugins-good"),
    })
}

/// Frames of `width` times `height` RGB pixels as fast as the sender's pipeline takes them; each that comes is compared with what was sent.
///
/// # Errors
/// [`PeerError`].
pub fn stream(
    pair: &Pair<'_>,
    options: &Stream,
    (width, height): (u32, u32),
) -> Result<Sample, PeerError> {
    let size = options.payload;
    let sent_at = &Mutex::new(Vec::new());
    let (ready, listening) = sync_channel(1);
    let near = move || {
        listening
            .recv()
            .map_err(|_| PeerError::Silent { lost: 1 })?;
        let text = format!(
            "fdsrc blocksize={size} ! rawvideoparse format=rgb width={width} height={height} framerate=30/1 ! rtpvrawpay mtu=1400 ! \
             udpsink host={} port={PORT} sync=false async=false",
            pair.far.address()
        );
        let mut command = pipeline(pair.near, &text)?;
        let running = start({
            command.stdin(Stdio::piped());
            command
        })?;
        send(running, size, options, sent_at).map_err(PeerError::io("feed a pipeline"))
    };
    let far = move |done: &AtomicBool| {
        let text = format!(
            "udpsrc port={PORT} buffer-size={BUFFER} \
             caps=application/x-rtp,media=video,clock-rate=90000,encoding-name=RAW,sampling=RGB,depth=(string)8,width=(string){width},height=(string){height},payload=96 \
             ! rtpvrawdepay ! fdsink"
        );
        let mut command = pipeline(pair.far, &text)?;
        command.stdout(Stdio::piped());
        let running = start(command)?;
        await_socket(&running)?;
        // The near side has gone if nobody takes it: no frame comes then.
        let _ = ready.send(());
        receive(running, size, done, sent_at).map_err(PeerError::io("read a pipeline"))
    };
    let (sent, (latencies, throughput)) = run_both(pair, near, far)?;
    let mut sample = Sample::from(latencies);
    sample.throughput = Some(Throughput {
        lost: sent - throughput.messages,
        ..throughput
    });
    Ok(sample)
}

/// Waits until the pipeline's socket is there, by the kernel's list of its network.
fn await_socket(running: &Pipeline) -> Result<(), PeerError> {
    let list = format!("/proc/{}/net/udp", running.0.id());
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let sockets = std::fs::read_to_string(&list).map_err(PeerError::io("list sockets"))?;
        if sockets.contains(&format!(":{PORT:04X} ")) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(PeerError::Program {
        command: "gst-launch-1.0".into(),
        reason: format!("it does not listen after {} s", PATIENCE.as_secs()),
    })
}

fn send(
    mut running: Pipeline,
    size: usize,
    options: &Stream,
    sent_at: &Mutex<Vec<i64>>,
) -> io::Result<u64> {
    let Some(mut input) = running.0.stdin.take() else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let mut frames = Frames::new(size);
    let start = Instant::now();
    let mut number = 0;
    while start.elapsed() < options.duration {
        if let Ok(mut sent_at) = sent_at.lock() {
            sent_at.push(SystemTai.now().as_nanos());
        }
        input.write_all(frames.number(number))?;
        number += 1;
    }
    drop(input);
    // It sends what it has, and ends.
    running.0.wait()?;
    Ok(number)
}

fn receive(
    mut running: Pipeline,
    size: usize,
    done: &AtomicBool,
    sent_at: &Mutex<Vec<i64>>,
) -> io::Result<(Latencies, Throughput)> {
    let Some(mut output) = running.0.stdout.take() else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let mut frames = Frames::new(size);
    let mut frame = vec![0; size];
    let (mut latencies, mut throughput) = (Latencies::new(), Throughput::default());
    let (mut read, mut first) = (0, None);
    loop {
        let mut waits = [PollFd::new(&output, PollFlags::IN)];
        if poll(&mut waits, Some(&QUIET))? == 0 {
            if is_set(done) {
                break;
            }
            continue;
        }
        match output.read(&mut frame[read..])? {
            0 => break,
            more => read += more,
        }
        if read < size {
            continue;
        }
        read = 0;
        let now = SystemTai.now().as_nanos();
        let mut number = [0; 8];
        number.copy_from_slice(&frame[..8]);
        let number = u64::from_le_bytes(number);
        let sent = usize::try_from(number).ok().and_then(|at| {
            let sent_at = sent_at.lock().ok()?;
            sent_at.get(at).copied()
        });
        if let Some(sent) = sent
            && frame == frames.number(number)
        {
            latencies.record_ns(now.abs_diff(sent));
            throughput.messages += 1;
            throughput.bytes += size as u64;
            throughput.nanoseconds = (now - *first.get_or_insert(now)).unsigned_abs();
        }
    }
    Ok((latencies, throughput))
}
