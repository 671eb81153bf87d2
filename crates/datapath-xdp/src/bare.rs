//! A socket without a port around it.

use std::net::SocketAddr;

use takt_datapath::OpenError;

use crate::XdpDatapath;
use crate::attachment::Claim;
use crate::port::open_error;
use crate::socket::{Pool, PoolOptions, Socket, SocketError, SocketOptions};
use crate::umem::{self, CHUNK, RxArea, TxArea};

/// A queue with one [`Socket`] that the XDP program sends the datagrams of one UDP port to: for
/// programs that read and write whole frames themselves.
#[derive(Debug)]
pub struct BareSocket {
    /// Dropped first: the program stops redirecting before the socket closes.
    _claim: Claim,
    /// The socket's own rings.
    pub socket: Socket,
    /// The queue's rings.
    pub pool: Pool,
    /// Chunks that frames are received into; all of them are in the fill ring at first.
    pub rx: RxArea,
    /// Chunks to send from.
    pub tx: TxArea,
}

impl BareSocket {
    pub(crate) fn open(
        datapath: &XdpDatapath,
        queue: u32,
        bind: SocketAddr,
    ) -> Result<Self, OpenError> {
        let (config, device) = (&datapath.config, &datapath.device);
        let refused = |error| open_error(error, &format!("queue {queue} of {}", device.name));
        let claim = datapath.attachment.claim(bind)?;
        let (rx, tx) = umem::map(config.rx_ring, 1, config.tx_frames).map_err(|source| {
            refused(SocketError {
                action: "map memory for frames",
                source,
            })
        })?;
        let options = PoolOptions {
            ifindex: device.ifindex,
            queue,
            tx_chunks: config.tx_frames,
            zero_copy: datapath.traits.zero_copy,
            multi_buffer: datapath.traits.multi_buffer,
        };
        let mut pool = Pool::open(&options, &rx).map_err(refused)?;
        let options = SocketOptions {
            rx_ring: config.rx_ring,
            tx_chunks: config.tx_frames,
            busy_poll: config.busy_poll,
        };
        let socket = Socket::join(&pool, &options).map_err(refused)?;
        for chunk in 0..rx.chunks() {
            pool.fill.push(u64::from(chunk) * CHUNK as u64);
        }
        pool.fill.publish();
        claim.place(queue, &socket)?;
        claim.accept()?;
        let [tx] = <[TxArea; 1]>::try_from(tx)
            .map_err(|_| OpenError::Unavailable("no memory to send from".into()))?;
        Ok(Self {
            _claim: claim,
            socket,
            pool,
            rx,
            tx,
        })
    }
}
