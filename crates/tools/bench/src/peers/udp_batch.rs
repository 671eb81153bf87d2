//! One-way throughput of the kernel's UDP, many datagrams to a system call.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::ptr;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use super::udp::{MOST_PAYLOAD, connected};
use super::{Pair, PeerError, Stream, check_payload, count_received, run_both, send_for};
use crate::experiment::Sample;

/// The kernel takes no more messages in one call (UIO_MAXIOV).
pub(super) const MOST_MESSAGES: usize = 1024;
/// Octets the receiver's socket may hold, as the kernel counts them: enough for a lull of milliseconds.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Sends with `sendmmsg` and receives with a polling `recvmmsg`, `batch` datagrams a call.
///
/// # Errors
/// When a socket cannot be made or used.
pub fn stream(pair: &Pair<'_>, options: &Stream) -> Result<Sample, PeerError> {
    check_payload("UDP", options.payload, MOST_PAYLOAD)?;
    if !(1..=MOST_MESSAGES).contains(&options.batch) {
        return Err(PeerError::Batch(options.batch));
    }
    let (near, far) = connected(pair)?;
    set_socket_recv_buffer_size_force(&far, RECEIVE_BUFFER).map_err(|errno| {
        PeerError::io("enlarge a UDP receive buffer (root is needed)")(errno.into())
    })?;
    let send = || {
        // Every datagram is the same, so all of a batch share one buffer.
        let mut batch = Batch::new(options.batch, options.payload, Buffers::Shared);
        send_for(options.duration, || batch.send(&near))
    };
    let (sent, received) = run_both(pair, send, |done| {
        let mut batch = Batch::new(options.batch, options.payload, Buffers::Separate);
        count_received(done, || batch.receive(&far))
    })?;
    Ok(received.of(sent).into())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Buffers {
    Shared,
    Separate,
}

/// Message headers for one call, each with one buffer.
struct Batch {
    headers: Vec<libc::mmsghdr>,
    // What the headers point to. Neither is touched again, so the pointers stay good.
    _vectors: Vec<libc::iovec>,
    _memory: Vec<u8>,
}

impl Batch {
    fn new(messages: usize, payload: usize, buffers: Buffers) -> Self {
        let stride = if buffers == Buffers::Shared {
            0
        } else {
            payload
        };
        let mut memory = vec![0_u8; stride * (messages - 1) + payload];
        let base = memory.as_mut_ptr();
        let buffer = |i| libc::iovec {
            iov_base: base.wrapping_add(i * stride).cast(),
            iov_len: payload,
        };
        let mut vectors: Vec<_> = (0..messages).map(buffer).collect();
        let vector_base = vectors.as_mut_ptr();
        let header = |i| {
            // SAFETY: all zero is a message of nothing to nobody.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = vector_base.wrapping_add(i);
            header.msg_hdr.msg_iovlen = 1;
            header
        };
        Self {
            headers: (0..messages).map(header).collect(),
            _vectors: vectors,
            _memory: memory,
        }
    }

    /// Sends a whole batch, or as much of it as the kernel takes.
    fn send(&mut self, socket: &UdpSocket) -> Result<u64, PeerError> {
        // SAFETY: the headers, and the vectors and memory they point to, live as long as `self`; the
        // kernel only reads the memory.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as libc::c_uint,
                0,
            )
        };
        u64::try_from(sent)
            .map_err(|_| PeerError::io("send UDP datagrams")(io::Error::last_os_error()))
    }

    /// Messages and octets that are there now, a batch at most.
    fn receive(&mut self, socket: &UdpSocket) -> Result<(u64, u64), PeerError> {
        // SAFETY: as in `send`; the kernel writes to the memory, which nothing else refers to while
        // `self` is borrowed mutably, and whose buffers are separate or all the same length.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let Ok(messages) = usize::try_from(received) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok((0, 0)),
                _ => Err(PeerError::io("receive UDP datagrams")(error)),
            };
        };
        let octets = self.headers[..messages]
            .iter()
            .map(|header| u64::from(header.msg_len))
            .sum();
        Ok((messages as u64, octets))
    }
}
