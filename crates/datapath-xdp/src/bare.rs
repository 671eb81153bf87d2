//! A socket without a port around it.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use takt_datapath::OpenError;

use crate::XdpDatapath;
use crate::attachment::Claim;
use crate::port::open_error;
use crate::socket::{Socket, SocketOptions};

/// A bound [`Socket`] that the XDP program sends the datagrams of one UDP port to.
///
/// Chunks `0..tx_frames` of its memory are for sending, one for each frame.
#[derive(Debug)]
pub struct BareSocket {
    /// Given back first: the program stops redirecting before the socket closes.
    _claim: Claim,
    socket: Socket,
}

impl BareSocket {
    pub(crate) fn open(
        datapath: &XdpDatapath,
        queue: u32,
        bind: SocketAddr,
    ) -> Result<Self, OpenError> {
        let (config, device) = (&datapath.config, &datapath.device);
        let mut claim = datapath.attachment.claim(device, &[queue], bind)?;
        let options = SocketOptions {
            ifindex: device.ifindex,
            queue,
            rx_ring: config.rx_ring,
            rx_chunks: config.rx_frames,
            tx_chunks: config.tx_frames,
            zero_copy: datapath.traits.zero_copy,
            multi_buffer: datapath.traits.multi_buffer,
            busy_poll: config.busy_poll,
        };
        let socket = Socket::open(&options)
            .map_err(|error| open_error(error, &format!("queue {queue} of {}", device.name)))?;
        claim.reserve(bind)?;
        claim.steer(queue, &socket)?;
        Ok(Self {
            _claim: claim,
            socket,
        })
    }
}

impl Deref for BareSocket {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}

impl DerefMut for BareSocket {
    fn deref_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }
}
