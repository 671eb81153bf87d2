//! The bare provider, as a program of its own would use it: what a port is measured against. No header, no peers but
//! one, no counters, no order beyond libfabric's.

use std::net::SocketAddr;

use takt_datapath::OpenError;

use crate::config::{FabricConfig, Provider};
use crate::endpoint::{Address, Endpoint, Outcome};
use crate::port::bound;

/// An endpoint with one peer.
#[derive(Debug)]
pub struct BareEndpoint {
    endpoint: Endpoint,
    local: SocketAddr,
    provider: Provider,
    peer: u64,
    receives: usize,
    free: Vec<usize>,
    arrived: Vec<(usize, usize)>,
}

impl BareEndpoint {
    /// # Errors
    /// [`OpenError`].
    pub fn open(config: &FabricConfig, bind: SocketAddr) -> Result<Self, OpenError> {
        let provider = config.provider.unwrap_or(Provider::Tcp);
        let mut endpoint = Endpoint::open(provider, config, bind)?;
        let local = bound(&endpoint, bind)?;
        for frame in 0..config.receives {
            // SAFETY: nobody looks at the frame before it has ended.
            unsafe { endpoint.post(frame, true) };
        }
        Ok(Self {
            endpoint,
            local,
            provider,
            peer: u64::MAX,
            receives: config.receives,
            free: (config.receives..config.receives + config.sends).collect(),
            arrived: Vec::with_capacity(config.receives),
        })
    }

    /// Where it is reached.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// # Errors
    /// libfabric's, as errno.
    pub fn connect(&mut self, remote: SocketAddr) -> Result<(), i32> {
        self.peer = self.endpoint.insert(&Address::new(self.provider, remote))?;
        Ok(())
    }

    /// Sends so many bytes of this value. Returns whether there was a frame, and the provider took it.
    pub fn send(&mut self, value: u8, length: usize) -> bool {
        let Some(frame) = self.free.pop() else {
            return false;
        };
        let length = length.min(self.endpoint.arena.message());
        // SAFETY: a free frame of at least so many bytes.
        let sent = unsafe {
            self.endpoint.arena.start(frame).write_bytes(value, length);
            self.endpoint.send(self.peer, frame, length, false)
        };
        if sent != Outcome::Taken {
            self.free.push(frame);
        }
        sent == Outcome::Taken
    }

    /// Shows what has arrived. Returns how much it was.
    pub fn poll(&mut self, mut deliver: impl FnMut(&[u8])) -> usize {
        let Self {
            endpoint,
            free,
            arrived,
            receives,
            ..
        } = self;
        endpoint.read(|ended| {
            if ended.frame < *receives {
                arrived.push((ended.frame, ended.length));
            } else {
                free.push(ended.frame);
            }
        });
        let count = self.arrived.len();
        for (frame, length) in self.arrived.drain(..) {
            // SAFETY: so much has been received into the frame, which is posted again after it has been looked at.
            unsafe {
                let start = self.endpoint.arena.start(frame);
                deliver(std::slice::from_raw_parts(start, length));
                self.endpoint.post(frame, false);
            }
        }
        count
    }
}
