//! A socket without a port around it, to measure what a port adds.

use std::net::SocketAddr;
use std::sync::Arc;

use takt_datapath::OpenError;

use crate::XdpDatapath;
use crate::attachment::Claim;
use crate::port::open_error;
use crate::reservation::Reservation;
use crate::ring::Descriptor;
use crate::socket::{Pool, PoolOptions, Socket, SocketError, SocketOptions};
use crate::umem::{self, RxArea, TxArea};

/// A queue with one socket that the XDP program sends the datagrams of one UDP port to.
///
/// It moves whole frames and looks at nothing in them: no headers, no peers, no checks. It has one
/// frame to send, which a caller that waits for answers can use again and again.
#[derive(Debug)]
pub struct BareSocket {
    /// Dropped first: the program stops redirecting before the socket closes.
    _claim: Claim,
    socket: Socket,
    pool: Pool,
    rx: RxArea,
    tx: TxArea,
}

impl BareSocket {
    pub(crate) fn open(
        datapath: &XdpDatapath,
        queue: u32,
        bind: SocketAddr,
    ) -> Result<Self, OpenError> {
        let (config, probed) = (&datapath.site.config, datapath.site.probed());
        let device = &probed.device;
        let refused = |error| open_error(error, &format!("queue {queue} of {}", device.name));
        let reservation = Arc::new(Reservation::new(bind)?);
        let claim = probed.attachment.claim(reservation)?;
        let mtu = (probed.attachment.interface_state()).map_or(u32::MAX, |state| state.mtu);
        let (rx, tx) = umem::map(config.rx_ring, 1, 1, umem::chunk_for(mtu)).map_err(|source| {
            refused(SocketError {
                action: "map memory for frames",
                source,
            })
        })?;
        let Ok([tx]) = <[TxArea; 1]>::try_from(tx) else {
            return Err(OpenError::Unavailable("no memory to send from".into()));
        };
        let options = PoolOptions {
            ifindex: device.ifindex,
            queue,
            tx_chunks: 1,
            zero_copy: probed.traits.zero_copy,
            multi_buffer: probed.traits.multi_buffer,
            launch_times: false,
        };
        let mut pool = Pool::open(&options, &rx).map_err(refused)?;
        let options = SocketOptions {
            rx_ring: config.rx_ring,
            tx_chunks: 1,
            busy_poll: config.busy_poll,
        };
        let socket = Socket::join(&pool, &options).map_err(refused)?;
        for chunk in 0..rx.chunks() {
            pool.fill.push(u64::from(chunk) * rx.chunk() as u64);
        }
        pool.fill.publish();
        claim.place(queue, &socket, &socket)?;
        claim.accept()?;
        Ok(Self {
            _claim: claim,
            socket,
            pool,
            rx,
            tx,
        })
    }

    /// The frame to send: 2 KiB, or 4 where the interface's MTU is above 1500.
    #[inline]
    pub fn frame(&mut self) -> &mut [u8] {
        self.tx.bytes_mut(0, self.tx.chunk()).unwrap_or_default()
    }

    /// Sends the first `length` bytes of the frame; false while the last one is under way.
    #[inline]
    pub fn send(&mut self, length: usize) -> bool {
        if self.pool.completion.available(1) == 1 {
            self.pool.completion.pop();
            self.pool.completion.release();
        }
        if self.socket.tx.room() == 0 {
            return false;
        }
        self.socket.tx.push(Descriptor {
            addr: self.tx.start(),
            len: length.min(self.tx.chunk()) as u32,
            options: 0,
        });
        self.socket.tx.publish();
        self.socket.kick();
        true
    }

    /// Lends up to `budget` received chunks to `deliver`; returns how many.
    #[inline]
    pub fn receive(&mut self, budget: u32, mut deliver: impl FnMut(&[u8])) -> usize {
        let count = self.socket.rx.available(budget);
        for _ in 0..count {
            let descriptor = self.socket.rx.pop();
            // SAFETY: the kernel has handed the chunk over, and it goes back below.
            let frame = unsafe { self.rx.bytes(descriptor.addr, descriptor.len as usize) };
            deliver(frame.unwrap_or_default());
            self.pool.fill.push(self.rx.chunk_at(descriptor.addr));
        }
        if count > 0 {
            self.socket.rx.release();
            self.pool.fill.publish();
        }
        count as usize
    }
}
