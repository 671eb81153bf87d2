//! What goes wrong, with the exit code that tells it.

use std::io;
use std::process::ExitCode;

use taktd::admin::client::ConnectError;
use taktd::daemon::DaemonError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No daemon answers, or it keeps us out.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The daemon refused, or went away.
    #[error("{}", told(.0))]
    Refused(#[from] tonic::Status),
    /// The daemon could not run.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// A lab could not be made, found or removed.
    #[error(transparent)]
    Lab(#[from] takt_lab::LabError),
    /// A call of the channel API.
    #[error(transparent)]
    Channel(#[from] takt::Error),
    /// Publishing and subscribing.
    #[error(transparent)]
    Messaging(#[from] takt_messaging::Error),
    /// Streams of frames.
    #[error(transparent)]
    Streaming(#[from] takt_streaming::Error),
    /// The embedded runtime.
    #[error(transparent)]
    Embedded(#[from] takt_embedded::Error),
    /// Frames of pods and guests.
    #[error(transparent)]
    Ingress(#[from] takt_ingress::Error),
    /// Load management.
    #[error(transparent)]
    Balance(#[from] takt_balance_xdp::Error),
    /// Standard input or output.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A schedule that cannot be read, written or run.
    #[error("{0}")]
    Schedule(String),
    /// A task set that cannot be read or is none.
    #[error("{0}")]
    Tasks(String),
    /// A reservation that does not suffice, or none that does.
    #[error("{0}")]
    Insufficient(String),
    /// Arguments that are wrong, or do not fit each other.
    #[error("{0}")]
    Arguments(String),
    /// Whatever a sentence says best.
    #[error("{0}")]
    Other(String),
}

/// That a file cannot be read, why, and what to do about it.
pub fn unreadable(name: impl std::fmt::Display, error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "; name a file that exists",
        io::ErrorKind::PermissionDenied => "; run as a user that may read it",
        io::ErrorKind::IsADirectory => "; name a file in it",
        _ => "",
    };
    format!("cannot read {name}: {error}{remedy}")
}

impl Failure {
    /// For `map_err` of input and output.
    pub fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// Whether whoever read our output has had enough: no failure of ours.
    fn reader_gone(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Connect(_)
            | Self::Channel(takt::Error::NoRuntime { .. })
            | Self::Ingress(takt_ingress::Error::Runtime(takt::Error::NoRuntime { .. })) => 3,
            Self::Refused(status) if status.code() == tonic::Code::Unavailable => 3,
            Self::Daemon(error) => error.exit_code(),
            Self::Schedule(_) | Self::Tasks(_) => 4,
            Self::Insufficient(_) => 6,
            Self::Arguments(_) => 2,
            // What names, patterns and options are is known to those crates alone; the command has them from its arguments.
            Self::Messaging(error) | Self::Streaming(takt_streaming::Error::Topic(error)) => {
                match error {
                    takt_messaging::Error::Topic(_) | takt_messaging::Error::Option(_) => 2,
                    _ => 1,
                }
            }
            Self::Streaming(takt_streaming::Error::Option(_)) => 2,
            _ => 1,
        }
    }

    /// Says it, and how to exit.
    pub fn report(&self) -> ExitCode {
        if self.reader_gone() {
            return ExitCode::SUCCESS;
        }
        eprintln!("takt: {}", crate::output::printable(&self.to_string()));
        ExitCode::from(self.exit_code())
    }
}

/// What the daemon said; the transport's words where it could not.
fn told(status: &tonic::Status) -> String {
    match status.code() {
        tonic::Code::InvalidArgument | tonic::Code::FailedPrecondition => {
            status.message().to_owned()
        }
        tonic::Code::Unavailable => {
            "the daemon has gone or is stopping: see its log, and start it again".into()
        }
        tonic::Code::Unimplemented => {
            "the daemon is older than this command: use the `takt` that came with it".into()
        }
        _ => format!(
            "the daemon answers {:?}: {}",
            status.code(),
            status.message()
        ),
    }
}
