//! Frames by `sendfile` over TCP, as naaas-thesis-2024, section 7.4 compares with: the kernel sends from its own memory.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use takt_clock::{Clock, SystemTai};

use super::{PORT, Pair, PeerError, Stream, run_both};
use crate::experiment::Sample;
use crate::frames::Frames;
use crate::statistics::{Latencies, Throughput};

/// Number and time before each frame.
const HEADER: usize = 16;

/// Frames of `payload` octets as fast as they go; each is compared with what was sent.
///
/// # Errors
/// [`PeerError`].
pub fn stream(pair: &Pair<'_>, options: &Stream) -> Result<Sample, PeerError> {
    let size = options.payload;
    let (ready, listening) = sync_channel(1);
    let far = pair.far.address();
    let (sent, received) = run_both(
        pair,
        move || {
            let to: SocketAddr = listening
                .recv()
                .map_err(|_| PeerError::Silent { lost: 1 })?;
            let _inside = pair.near.enter()?;
            let mut stream = TcpStream::connect(to).map_err(PeerError::io("connect by TCP"))?;
            send(&mut stream, size, options).map_err(PeerError::io("send frames"))
        },
        move |_| {
            let _inside = pair.far.enter()?;
            let listener = TcpListener::bind((far, PORT));
            let listener = listener.map_err(PeerError::io("listen for TCP"))?;
            let address = listener
                .local_addr()
                .map_err(PeerError::io("listen for TCP"))?;
            // The near side has gone if nobody takes it: accepting tells.
            let _ = ready.send(address);
            let (mut stream, _) = listener.accept().map_err(PeerError::io("accept TCP"))?;
            receive(&mut stream, size).map_err(PeerError::io("receive frames"))
        },
    )?;
    let (latencies, wrong, throughput) = received;
    let mut sample = Sample::from(latencies);
    sample.throughput = Some(Throughput {
        lost: sent - throughput.messages - wrong,
        ..throughput
    });
    sample
        .figures
        .insert("wrong frames".to_owned(), wrong as f64);
    Ok(sample)
}

fn send(stream: &mut TcpStream, size: usize, options: &Stream) -> io::Result<u64> {
    stream.set_nodelay(true)?;
    let mut frames = Frames::new(size);
    // Two files, so that the one that is written is not the one that is on its way.
    let files: Vec<OwnedFd> = (0..2)
        .map(|_| memfd_create("takt-bench-frame", MemfdFlags::CLOEXEC))
        .collect::<Result<_, _>>()?;
    for (number, file) in (0..).zip(&files) {
        rustix::io::pwrite(file, frames.number(number), 0)?;
    }
    let start = Instant::now();
    let mut number = 0_u64;
    while start.elapsed() < options.duration {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&number.to_le_bytes());
        header[8..].copy_from_slice(&SystemTai.now().as_nanos().to_le_bytes());
        stream.write_all(&header)?;
        // What is sent is the file's memory: its numbers stay those of the first frames.
        let file = &files[(number % 2) as usize];
        let mut at = 0_u64;
        while at < size as u64 {
            let rest = size - at as usize;
            sendfile(&*stream, file, Some(&mut at), rest)?;
        }
        number += 1;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    Ok(number)
}

fn receive(stream: &mut TcpStream, size: usize) -> io::Result<(Latencies, u64, Throughput)> {
    let mut frames = Frames::new(size);
    let mut frame = vec![0; size];
    let mut latencies = Latencies::new();
    let (mut wrong, mut throughput, mut first) = (0, Throughput::default(), None);
    loop {
        let mut header = [0; HEADER];
        match stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
        stream.read_exact(&mut frame)?;
        let now = SystemTai.now().as_nanos();
        let [number, sent] = [0, 8].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(word)
        });
        latencies.record_ns(now.unsigned_abs().saturating_sub(sent));
        throughput.nanoseconds = (now - *first.get_or_insert(now)).unsigned_abs();
        if frame == frames.number(number % 2) {
            throughput.messages += 1;
            throughput.bytes += size as u64;
        } else {
            wrong += 1;
        }
    }
    Ok((latencies, wrong, throughput))
}
