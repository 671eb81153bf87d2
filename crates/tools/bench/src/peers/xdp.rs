//! Bare AF_XDP: the floor of what any datapath over it can reach.
//!
//! One thread, one queue, one socket per side; frames are built once and only the sequence number
//! changes. No routes, no checks, no scheduling. Copy mode, which is what veth devices have.

use std::ffi::CString;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use takt_lab::Host;

use self::program::Program;
use self::socket::{Descriptor, FRAME_SIZE, FRAMES, Socket};
use super::{
    ANSWER_PATIENCE, LEAST_PAYLOAD, PORT, Pair, PeerError, RoundTrips, Stream, check_payload,
    count_received, is_set, measure_round_trips, run_both, send_for,
};
use crate::experiment::Sample;

mod program;
mod socket;

/// Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;
/// What fits an MTU of 1500 octets.
const MOST_PAYLOAD: usize = 1500 - 20 - 8;
/// How many empty polls pass between two looks at the clock.
const POLLS_PER_LOOK: u32 = 4096;
/// How long a queue may stay busy after its last socket was closed.
const QUEUE_PATIENCE: Duration = Duration::from_secs(5);
/// The first half of the frames is for receiving, the second for sending.
const FIRST_TO_SEND: u32 = FRAMES / 2;

/// Polling round trips; the echo swaps the hardware addresses of each frame in place.
///
/// # Errors
/// When a program or socket cannot be set up or used, or the far end does not answer.
pub fn round_trips(pair: &Pair<'_>, options: &RoundTrips) -> Result<Sample, PeerError> {
    check_payload("AF_XDP", options.payload, MOST_PAYLOAD)?;
    let (mut near, mut far) = (Side::open(pair.near)?, Side::open(pair.far)?);
    let frame = build_frame(pair.near, pair.far, options.payload);
    let measure = || {
        let socket = &mut near.socket;
        let request = Descriptor::new(frame_address(FIRST_TO_SEND), frame.len());
        socket.frame(request).copy_from_slice(&frame);
        measure_round_trips(options, |sequence| {
            socket.frame(request)[HEADERS..HEADERS + 8].copy_from_slice(&sequence.to_ne_bytes());
            socket.transmit.put(request);
            socket.transmit.publish();
            socket
                .kick()
                .map_err(PeerError::io("send an AF_XDP frame"))?;
            receive_answer(socket, sequence)
        })
    };
    let (sample, ()) = run_both(pair, measure, |done| echo(&mut far.socket, done))?;
    Ok(sample)
}

/// One-way throughput, `batch` frames to a system call.
///
/// # Errors
/// When a program or socket cannot be set up or used.
pub fn stream(pair: &Pair<'_>, options: &Stream) -> Result<Sample, PeerError> {
    check_payload("AF_XDP", options.payload, MOST_PAYLOAD)?;
    if !(1..=FIRST_TO_SEND as usize).contains(&options.batch) {
        return Err(PeerError::Batch(options.batch));
    }
    let (mut near, mut far) = (Side::open(pair.near)?, Side::open(pair.far)?);
    let frame = build_frame(pair.near, pair.far, options.payload);
    let send = || {
        let socket = &mut near.socket;
        let mut free: Vec<u64> = (FIRST_TO_SEND..FRAMES).map(frame_address).collect();
        for &address in &free {
            socket
                .frame(Descriptor::new(address, frame.len()))
                .copy_from_slice(&frame);
        }
        let sent = send_for(options.duration, || {
            send_batch(socket, &mut free, options.batch, frame.len())
        })?;
        flush(socket, free.len())?;
        Ok(sent)
    };
    let (sent, received) = run_both(pair, send, |done| {
        count_received(done, || Ok(receive_batch(&mut far.socket)))
    })?;
    Ok(received.of(sent).into())
}

/// A socket and the program that feeds it, in one host.
struct Side {
    socket: Socket,
    _program: Program,
}

impl Side {
    fn open(host: &Host) -> Result<Self, PeerError> {
        const QUEUE: u32 = 0;
        let _inside = host.enter()?;
        let index = interface_index(host.interface()).map_err(PeerError::io(format!(
            "find {} in {}",
            host.interface(),
            host.namespace()
        )))?;
        let program = Program::attach(index, PORT).map_err(PeerError::io(format!(
            "attach an XDP program in {}",
            host.namespace()
        )))?;
        let mut socket = open_once_free(index, QUEUE).map_err(PeerError::io(format!(
            "open an AF_XDP socket in {}",
            host.namespace()
        )))?;
        program
            .direct(QUEUE, socket.as_fd())
            .map_err(PeerError::io(
                "enter an AF_XDP socket into the program's map",
            ))?;
        for frame in 0..FIRST_TO_SEND {
            socket.fill.put(frame_address(frame));
        }
        socket.fill.publish();
        Ok(Self {
            socket,
            _program: program,
        })
    }
}

/// Opens a socket on `queue`. The kernel releases a queue only some time after its last socket was
/// closed, so one that is busy is tried again for a while.
fn open_once_free(index: u32, queue: u32) -> io::Result<Socket> {
    let start = Instant::now();
    loop {
        match Socket::open(index, queue) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy
                    && start.elapsed() < QUEUE_PATIENCE =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

fn interface_index(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: the name is a live C string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

fn frame_address(frame: u32) -> u64 {
    u64::from(frame) * FRAME_SIZE as u64
}

/// A UDP datagram of zeros from `from` to `to`. Built here and not by `takt-wire`: the floor does not
/// rest on what it is the floor of.
fn build_frame(from: &Host, to: &Host, payload: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADERS + payload);
    frame.extend(to.mac());
    frame.extend(from.mac());
    frame.extend([0x08, 0x00]);
    frame.extend(ipv4_header(
        from.address(),
        to.address(),
        28 + payload as u16,
    ));
    frame.extend(
        [PORT, PORT, 8 + payload as u16]
            .map(u16::to_be_bytes)
            .as_flattened(),
    );
    frame.extend([0, 0]); // no checksum, which IPv4 allows
    frame.resize(HEADERS + payload, 0);
    frame
}

fn ipv4_header(from: Ipv4Addr, to: Ipv4Addr, total_length: u16) -> [u8; 20] {
    let [length_high, length_low] = total_length.to_be_bytes();
    // Version and length, class, total length; identification, "do not fragment"; hops, UDP, checksum.
    let mut header = [
        0x45,
        0,
        length_high,
        length_low,
        0,
        0,
        0x40,
        0,
        64,
        17,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ];
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let sum: u32 = header
        .as_chunks()
        .0
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    header[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    header
}

/// Whether the answer to `sequence` comes in time; answers to earlier messages are passed over.
fn receive_answer(socket: &mut Socket, sequence: u64) -> Result<bool, PeerError> {
    let mut waiting_since: Option<Instant> = None;
    let mut polls = 0_u32;
    loop {
        if let Some(received) = socket.receive.take() {
            socket.receive.release();
            let frame = socket.frame(received);
            let is_answer = frame.get(HEADERS..HEADERS + 8) == Some(&sequence.to_ne_bytes()[..]);
            socket.fill.put(received.address);
            socket.fill.publish();
            if is_answer {
                reclaim(socket, |_| {});
                return Ok(true);
            }
            continue;
        }
        polls += 1;
        if polls.is_multiple_of(POLLS_PER_LOOK) {
            if waiting_since.get_or_insert_with(Instant::now).elapsed() > ANSWER_PATIENCE {
                reclaim(socket, |_| {});
                return Ok(false);
            }
            // The kernel may have had no room to send in.
            socket
                .kick()
                .map_err(PeerError::io("send an AF_XDP frame"))?;
        }
        std::hint::spin_loop();
    }
}

/// Sends each frame back as it is, but for the hardware addresses.
fn echo(socket: &mut Socket, done: &AtomicBool) -> Result<(), PeerError> {
    let mut outstanding = 0_u32;
    while !is_set(done) {
        while let Some(received) = socket.receive.take() {
            let frame = socket.frame(received);
            if let Some((destination, source)) = frame
                .get_mut(..12)
                .map(|addresses| addresses.split_at_mut(6))
            {
                destination.swap_with_slice(source);
            }
            socket.transmit.put(received);
            outstanding += 1;
        }
        if outstanding > 0 {
            socket.receive.release();
            socket.transmit.publish();
            socket
                .kick()
                .map_err(PeerError::io("echo an AF_XDP frame"))?;
            while let Some(address) = socket.completion.take() {
                socket.fill.put(address);
                outstanding -= 1;
            }
            socket.completion.release();
            socket.fill.publish();
        }
        std::hint::spin_loop();
    }
    Ok(())
}

/// Hands every frame that has been sent to `use_again`.
fn reclaim(socket: &mut Socket, mut use_again: impl FnMut(u64)) {
    while let Some(address) = socket.completion.take() {
        use_again(address);
    }
    socket.completion.release();
}

/// Sends up to `batch` free frames; how many it was.
fn send_batch(
    socket: &mut Socket,
    free: &mut Vec<u64>,
    batch: usize,
    length: usize,
) -> Result<u64, PeerError> {
    let mut sent = 0;
    for address in free.drain(free.len().saturating_sub(batch)..) {
        socket.transmit.put(Descriptor::new(address, length));
        sent += 1;
    }
    socket.transmit.publish();
    socket.kick().map_err(PeerError::io("send AF_XDP frames"))?;
    reclaim(socket, |address| free.push(address));
    Ok(sent)
}

/// Kicks until all frames but `free` are sent too: the kernel takes only so many at a time.
fn flush(socket: &mut Socket, mut free: usize) -> Result<(), PeerError> {
    let start = Instant::now();
    while free < FIRST_TO_SEND as usize && start.elapsed() < ANSWER_PATIENCE {
        socket.kick().map_err(PeerError::io("send AF_XDP frames"))?;
        reclaim(socket, |_| free += 1);
    }
    Ok(())
}

/// Messages and octets that are there now.
fn receive_batch(socket: &mut Socket) -> (u64, u64) {
    let (mut messages, mut octets) = (0, 0);
    while let Some(received) = socket.receive.take() {
        let payload = socket.frame(received).get(HEADERS..).unwrap_or_default();
        // A receiver looks at what it gets, so the first octets are read.
        std::hint::black_box(payload.first_chunk::<LEAST_PAYLOAD>().copied());
        octets += payload.len() as u64;
        messages += 1;
        socket.fill.put(received.address);
    }
    if messages > 0 {
        socket.receive.release();
        socket.fill.publish();
    }
    (messages, octets)
}
