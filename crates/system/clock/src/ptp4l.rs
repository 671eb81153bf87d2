//! What ptp4l of linuxptp says about its PTP domain, by management messages over its Unix socket.
//!
//! Not for setting anything: every message here is a GET with no hops to go, so that it stays on this machine.

pub mod management;

use std::io;
use std::path::{Path, PathBuf};

use crate::datagram::Asker;
use management::{
    Answer, CurrentDataSet, DefaultDataSet, Id, ManagementError, PortProperties, PortState,
    Request, TimeProperties, TimeStamping, TimeStatus,
};

/// The Unix socket of ptp4l unless it is told otherwise (`uds_address`).
pub const DEFAULT_SOCKET: &str = "/var/run/ptp4l";

/// Ports of a clock that are asked for.
const MOST_PORTS: u16 = 64;

/// What ptp4l says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtpReading {
    /// The clock: how good it is, how many ports it has.
    pub clock: DefaultDataSet,
    /// How far from the grandmaster.
    pub current: CurrentDataSet,
    /// What the time means.
    pub time: TimeProperties,
    /// The grandmaster, and the last measured offset. linuxptp's own.
    pub status: TimeStatus,
    /// Its ports.
    pub ports: Vec<PortReading>,
}

/// A port of ptp4l.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReading {
    /// Its number, from 1.
    pub number: u16,
    /// What it does.
    pub state: PortState,
    /// Mean path delay to its neighbour, nanoseconds; 0 where delays are measured end to end.
    pub peer_delay_ns: i64,
    /// Its interface and who takes its time stamps; linuxptp's own, and not of every version.
    pub properties: Option<PortProperties>,
}

/// What ptp4l is in its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It follows a grandmaster.
    Follower,
    /// It has found a grandmaster and is not yet steady.
    Acquiring,
    /// It is the grandmaster: by definition, its time is that of the domain.
    Grandmaster,
    /// It has nobody to follow and leads nobody.
    Alone,
}

impl PtpReading {
    /// What it is in its domain.
    pub fn role(&self) -> Role {
        let any = |state| self.ports.iter().any(|port| port.state == state);
        if any(PortState::Slave) {
            Role::Follower
        } else if any(PortState::Uncalibrated) {
            Role::Acquiring
        } else if any(PortState::Master) {
            Role::Grandmaster
        } else {
            Role::Alone
        }
    }

    /// Whether it keeps the clock of a device rather than the kernel's; `None`: it does not say.
    pub fn keeps_device(&self) -> Option<bool> {
        let mut stamping = self.ports.iter().filter_map(|port| {
            let properties = port.properties.as_ref()?;
            Some(properties.stamping != TimeStamping::Software)
        });
        let first = stamping.next()?;
        Some(stamping.fold(first, |any, device| any || device))
    }

    /// Mean path delay to the neighbour or, where that is not measured, to the grandmaster's last hop; nanoseconds.
    pub fn path_delay_ns(&self) -> u64 {
        let follower = self
            .ports
            .iter()
            .find(|port| port.state == PortState::Slave);
        let peer = follower.map_or(0, |port| port.peer_delay_ns);
        self.current.mean_path_delay_ns.max(peer).max(0) as u64
    }
}

/// Why ptp4l has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Ptp4lError {
    /// Nobody listens, or no answer came.
    #[error(
        "ptp4l at {path} does not answer ({source}): is its `uds_address` this one, and its `domainNumber` {domain}?"
    )]
    Silent {
        /// Where.
        path: PathBuf,
        /// The domain that it was asked about.
        domain: u8,
        /// The kernel's words.
        source: io::Error,
    },
    /// It refuses.
    #[error("ptp4l at {path} does not tell {id:?}: {source}")]
    Refused {
        /// Where.
        path: PathBuf,
        /// What.
        id: Id,
        /// In its words.
        source: ManagementError,
    },
}

impl Ptp4lError {
    /// Whether there is no ptp4l, rather than one that does not work.
    pub fn nobody(&self) -> bool {
        matches!(self, Self::Silent { source, .. } if crate::observer::nobody(source))
    }
}

/// A conversation with one ptp4l.
struct Conversation<'a> {
    asker: Asker,
    path: &'a Path,
    domain: u8,
    sequence: u16,
}

impl Conversation<'_> {
    fn silent(&self, source: io::Error) -> Ptp4lError {
        Ptp4lError::Silent {
            path: self.path.to_owned(),
            domain: self.domain,
            source,
        }
    }

    /// Asks for a data set and collects `expected` answers that `read` makes something of, one for each port
    /// where it is one of ports.
    fn ask<R>(
        &mut self,
        id: Id,
        expected: usize,
        read: impl Fn(&[u8]) -> Result<R, ManagementError>,
    ) -> Result<Vec<R>, Ptp4lError> {
        self.sequence = self.sequence.wrapping_add(1);
        // gPTP has another first nibble than IEEE 1588, and ptp4l hears its own only.
        for profile in [0, 1] {
            let request = Request {
                profile,
                domain: self.domain,
                sequence: self.sequence,
                id,
            };
            let sent = self.asker.send(&request.emit());
            sent.map_err(|source| self.silent(source))?;
        }
        let mut answers = Vec::new();
        let received = self.asker.receive(|message| {
            match Answer::parse(message) {
                Ok(answer) if answer.sequence != self.sequence || answer.id != id => return None,
                Ok(answer) => match answer.data.and_then(&read) {
                    Ok(data) => answers.push(data),
                    Err(error) => return Some(Err(error)),
                },
                Err(_) => return None,
            }
            (answers.len() == expected).then_some(Ok(()))
        });
        match received {
            Ok(Ok(())) => Ok(answers),
            Ok(Err(source)) => Err(Ptp4lError::Refused {
                path: self.path.to_owned(),
                id,
                source,
            }),
            Err(source) => Err(self.silent(source)),
        }
    }

    fn one<R>(
        &mut self,
        id: Id,
        read: impl Fn(&[u8]) -> Result<R, ManagementError>,
    ) -> Result<R, Ptp4lError> {
        let mut answers = self.ask(id, 1, read)?;
        // `ask` returns as many as were expected.
        Ok(answers.remove(0))
    }
}

/// Asks the ptp4l whose Unix socket is `path` about its domain.
///
/// # Errors
/// [`Ptp4lError`].
pub fn read(path: &Path, domain: u8) -> Result<PtpReading, Ptp4lError> {
    let silent = |source| Ptp4lError::Silent {
        path: path.to_owned(),
        domain,
        source,
    };
    let mut conversation = Conversation {
        asker: Asker::unix(path).map_err(silent)?,
        path,
        domain,
        sequence: 0,
    };
    let clock = conversation.one(Id::DefaultDataSet, DefaultDataSet::parse)?;
    let current = conversation.one(Id::CurrentDataSet, CurrentDataSet::parse)?;
    let time = conversation.one(Id::TimeProperties, TimeProperties::parse)?;
    let status = conversation.one(Id::TimeStatus, TimeStatus::parse)?;
    let count = usize::from(clock.ports.clamp(1, MOST_PORTS));
    let states = conversation.ask(Id::PortDataSet, count, management::PortDataSet::parse)?;
    let mut properties = match conversation.ask(Id::PortProperties, count, PortProperties::parse) {
        Ok(properties) => properties,
        Err(Ptp4lError::Refused { .. }) => Vec::new(),
        Err(error) => return Err(error),
    };
    let ports = states.into_iter().map(|port| PortReading {
        number: port.number,
        state: port.state,
        peer_delay_ns: port.peer_delay_ns,
        properties: properties
            .iter()
            .position(|properties| properties.number == port.number)
            .map(|at| properties.swap_remove(at)),
    });
    Ok(PtpReading {
        ports: ports.collect(),
        clock,
        current,
        time,
        status,
    })
}
