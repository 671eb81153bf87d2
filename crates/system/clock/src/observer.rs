//! Asks everybody about the clock, again and again.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};

use crate::assess::{History, Readings, assess};
use crate::status::ClockStatus;
use crate::{Clock, SystemTai, chrony, host, kernel, phc, ptp4l};

/// Whether to ask a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask<A> {
    /// At its usual place, if it is there.
    IfThere(A),
    /// Here, and it is a fault if it does not answer.
    Expected(A),
    /// Not at all.
    Never,
}

impl<A> Ask<A> {
    fn address(&self) -> Option<&A> {
        match self {
            Self::IfThere(address) | Self::Expected(address) => Some(address),
            Self::Never => None,
        }
    }

    /// Asks by `read`; `nobody` tells that there is no such program from an error of it.
    fn read<R, E: std::fmt::Display>(
        &self,
        read: impl FnOnce(&A) -> Result<R, E>,
        nobody: impl FnOnce(&E) -> bool,
    ) -> Option<Result<R, String>> {
        match read(self.address()?) {
            Err(error) if matches!(self, Self::IfThere(_)) && nobody(&error) => None,
            answer => Some(answer.map_err(|error| error.to_string())),
        }
    }
}

/// Whom to ask. The kernel is asked always.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// ptp4l: its Unix socket.
    pub ptp4l: Ask<PathBuf>,
    /// The PTP domain.
    pub ptp_domain: u8,
    /// chronyd.
    pub chrony: Ask<chrony::Address>,
    /// The clock of a network device.
    pub device: Option<PathBuf>,
    /// Where the physical host answers NTP, if this machine is its guest and has its time.
    pub host: Option<SocketAddr>,
    /// No kernel of the network knows TAI - UTC, and none is to: `CLOCK_TAI` is UTC on all nodes.
    pub utc: bool,
}

impl Default for Sources {
    /// Programs at their usual places if they are there, domain 0, no device.
    fn default() -> Self {
        Self {
            ptp4l: Ask::IfThere(ptp4l::DEFAULT_SOCKET.into()),
            ptp_domain: 0,
            chrony: Ask::IfThere(chrony::Address::default()),
            device: None,
            host: None,
            utc: false,
        }
    }
}

/// Whether an error says that no such program is there.
pub(crate) fn nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// Looks at the clock, and remembers what it saw.
pub struct Observer {
    sources: Sources,
    clock: Arc<dyn Clock>,
    history: History,
}

impl Observer {
    /// Nothing is asked yet. `clock`: the one that drives the gates, of which steps are seen.
    pub fn new(sources: Sources, clock: Arc<dyn Clock>) -> Self {
        Self {
            sources,
            clock,
            history: History::default(),
        }
    }

    /// Asks everybody. Takes a millisecond, or a second for each program that does not answer.
    pub fn observe(&mut self) -> ClockStatus {
        let sources = &self.sources;
        let ptp4l = sources.ptp4l.read(
            |path| ptp4l::read(path, sources.ptp_domain),
            ptp4l::Ptp4lError::nobody,
        );
        let chrony = sources
            .chrony
            .read(chrony::read, chrony::ChronyError::nobody);
        let device = sources.device.as_ref().map(|path| {
            let reading = phc::read(path).map_err(|error| error.to_string());
            (path.clone(), reading)
        });
        let host = sources
            .host
            .map(|address| host::read(address).map_err(|error| error.to_string()));
        let kernel = kernel::read().map_err(|error| error.to_string());
        let before = monotonic_ns();
        let tai_ns = self.clock.now().as_nanos();
        let after = monotonic_ns();
        let readings = Readings {
            kernel: Some(kernel),
            chrony,
            ptp4l,
            device,
            host,
            utc: sources.utc,
            tai_ns,
            monotonic_ns: before + (after - before) / 2,
            reading_ns: after - before,
        };
        assess(readings, &mut self.history)
    }
}

impl Default for Observer {
    fn default() -> Self {
        Self::new(Sources::default(), Arc::new(SystemTai))
    }
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
