//! Control messages: what rules of `takt monitor` tell, wherever that runs, and `takt balance run --control` does.
//!
//! A UDP datagram of one line or two: a JSON object, and with a key the tag of that line with its end (`\n`), in 32 hexadecimal digits.
//! The object is an `Event`, and has `sent_ns`, UTC: a message holds for some seconds, and once.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use takt_balance_xdp::beat::Key;

use super::message::{Begun, Reader, Refused};
use crate::failure::Failure;
use crate::monitor::tai::utc_now;

/// Bytes of a message that are read.
const LONGEST: usize = 2048;
/// Messages that are taken at a time.
const AT_ONCE: usize = 64;

/// Where messages come to.
pub struct Control {
    socket: UdpSocket,
    pub address: SocketAddr,
    reader: Reader,
    /// Reasons that were told.
    told: Vec<Refused>,
    pub messages: u64,
    pub refused: u64,
}

impl Control {
    pub fn open(address: SocketAddr, key: Key) -> Result<Self, Failure> {
        let bind = || {
            let socket = UdpSocket::bind(address)?;
            socket.set_nonblocking(true)?;
            let bound = socket.local_addr()?;
            Ok((socket, bound))
        };
        let (socket, address) = bind().map_err(|error: std::io::Error| {
            Failure::Other(format!(
                "cannot take control messages at {address}: {error}; name another address with --control"
            ))
        })?;
        Ok(Self {
            socket,
            address,
            reader: Reader::new(key, utc_now()),
            told: Vec::new(),
            messages: 0,
            refused: 0,
        })
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes what has come. `leave`: whether the flow is of a service here, and leaves.
    pub fn attend(
        &mut self,
        now_ns: i64,
        mut leave: impl FnMut(&Begun) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let mut bytes = [0; LONGEST];
        for _ in 0..AT_ONCE {
            // What the kernel tells of messages of before ends this, too, and is told once.
            let Ok((length, from)) = self.socket.recv_from(&mut bytes) else {
                break;
            };
            let read = match self.reader.read(&bytes[..length], now_ns) {
                Ok(Some(begun)) if !leave(&begun)? => Err(Refused::Flow),
                read => read,
            };
            match read {
                Ok(_) => self.messages += 1,
                Err(why) => {
                    self.refused += 1;
                    if !self.told.contains(&why) {
                        self.told.push(why);
                        eprintln!(
                            "takt: warning: a control message from {from} is refused: {why}; others like it are only counted"
                        );
                    }
                }
            }
        }
        Ok(())
    }
}
