//! Best-effort traffic beside the flow that is measured: as much as is asked for, in trains.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use clap::Args;

use super::sys;

/// Payload bytes of a datagram: fits a packet in a VXLAN over 1500.
const DATAGRAM: usize = 1400;
/// Datagrams of a train, which passes the kernel as one (UDP GSO).
const TRAIN: usize = 40;
/// Between two bursts.
const TICK: Duration = Duration::from_millis(1);

/// What the flood is told.
#[derive(Clone, Debug, Args)]
pub struct FloodOptions {
    /// The drain
    #[arg(long)]
    pub to: SocketAddr,
    /// Payload bits per second
    #[arg(long)]
    pub rate: u64,
    /// Core to stay on
    #[arg(long)]
    pub core: Option<usize>,
}

/// Sends until it is ended.
///
/// # Errors
/// The kernel's.
pub fn flood(options: &FloodOptions) -> io::Result<()> {
    if let Some(core) = options.core {
        crate::awake::pin_to(core)?;
    }
    let socket = UdpSocket::bind(SocketAddr::from(([0, 0, 0, 0], 0)))?;
    socket.connect(options.to)?;
    let train = vec![0; DATAGRAM * TRAIN];
    let segment = (DATAGRAM as u16).to_ne_bytes();
    let (start, mut sent) = (Instant::now(), 0u64);
    loop {
        let due = (start.elapsed().as_nanos() * u128::from(options.rate) / 8_000_000_000) as u64;
        while sent < due {
            match sys::send(
                &socket,
                &train,
                Some((libc::SOL_UDP, libc::UDP_SEGMENT, &segment)),
            ) {
                // What the link does not take is lost, as best effort is.
                Ok(_) => {}
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::ENOBUFS | libc::ECONNREFUSED | libc::EAGAIN)
                    ) => {}
                Err(error) => return Err(error),
            }
            sent += train.len() as u64;
        }
        std::thread::sleep(TICK);
    }
}

/// What the drain is told.
#[derive(Clone, Debug, Args)]
pub struct DrainOptions {
    /// Where to receive
    #[arg(long)]
    pub at: SocketAddr,
    /// Seconds to receive
    #[arg(long)]
    pub seconds: f64,
    /// Core to stay on
    #[arg(long)]
    pub core: Option<usize>,
}

/// Receives for a while; returns payload bits per second.
///
/// # Errors
/// The kernel's.
pub fn drain(options: &DrainOptions) -> io::Result<f64> {
    if let Some(core) = options.core {
        crate::awake::pin_to(core)?;
    }
    let socket = UdpSocket::bind(options.at)?;
    sys::set(&socket, libc::SOL_UDP, libc::UDP_GRO, &1i32)?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut buffer = vec![0; 1 << 16];
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed().as_secs_f64() < options.seconds {
        match socket.recv(&mut buffer) {
            Ok(length) => bytes += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(8.0 * bytes as f64 / start.elapsed().as_secs_f64())
}
