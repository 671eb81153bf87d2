//! Sessions: opening and closing them.

use std::convert::Infallible;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use takt_session::Qos;
use takt_session::message::Request;
use takt_session::place::Socket;

use crate::connect;
use crate::control::{Options, Shared, StreamRecord};
use crate::error::Error;
use crate::owner::{Owner, StreamCore};
use crate::progress::Progress;
use crate::reader;
use crate::stream::Stream;
use crate::sys;

/// How long the runtime may take to answer unless the application says otherwise.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Some 34 years: as good as no limit.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(1 << 30);

/// An application attached to the runtime of its node.
///
/// Cheap to clone; every clone, stream, source and sink keeps the session open. Closing it, with the
/// last of them, waits up to a second for what was emitted to be sent.
#[derive(Clone)]
pub struct Session(pub(crate) Arc<Owner>);

impl Session {
    /// Attaches to the runtime that listens on `$TAKT_SOCKET`, or else to the user's own node, or else on
    /// [`DEFAULT_SOCKET`](takt_session::DEFAULT_SOCKET): see [`takt_session::place`].
    ///
    /// # Errors
    /// [`Error::NoRuntime`] when nobody is there; [`Error::TimedOut`] when it does not answer; [`Error::Refused`] when the
    /// runtime does not want us.
    pub fn open() -> Result<Self, Error> {
        Self::builder().open()
    }

    /// To open a session in another way than [`open`](Self::open) does.
    pub fn builder() -> SessionBuilder {
        SessionBuilder::default()
    }

    /// Attaches over a socket that is connected to a runtime already: the embedded form. Such a session
    /// does not reconnect.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn over(socket: OwnedFd, progress: Option<Arc<dyn Progress>>) -> Result<Self, Error> {
        Self::builder().over(socket, progress)
    }

    /// Opens a stream of this quality.
    ///
    /// # Errors
    /// [`Error::Refused`] by the policy of the socket; [`Error::Disconnected`], [`Error::Ended`],
    /// [`Error::TimedOut`].
    pub fn stream(&self, qos: Qos) -> Result<Stream, Error> {
        let shared = &self.0.shared;
        let (answer, state) = shared.request(Request::OpenStream(qos))?;
        let opened = connect::stream_opened(answer)?;
        let key = shared.record(state, |control, key, _| {
            let record = StreamRecord {
                qos,
                opened: Ok(control.up_to_date(opened)),
                closing: false,
            };
            control.streams.insert(key, record);
            Ok(())
        })?;
        Ok(Stream(Arc::new(StreamCore {
            owner: self.0.clone(),
            key,
            qos,
        })))
    }

    /// Whether the session is attached to a runtime at this moment.
    pub fn is_attached(&self) -> bool {
        self.0.shared.check().is_ok()
    }

    /// How often it has been attached to a runtime: once more each time that it comes back.
    pub fn attachments(&self) -> u64 {
        self.0.shared.slot.state().generation()
    }
}

impl Session {
    /// Ends the session now, in order, for all its clones, streams, sources and sinks: waits up to a second for
    /// what was emitted to be sent. From then on every call of theirs fails with [`Error::Ended`], and nothing more is
    /// received. Messages that are held, and counters of sinks, can be read as before: the memory is given back, and the
    /// tenant charged for it, until the last message is dropped and the sinks are.
    pub fn end(&self) {
        self.0.end();
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("options", &self.0.shared.options)
            .field("state", &self.0.shared.slot.state())
            .finish_non_exhaustive()
    }
}

/// How to open a session.
#[derive(Clone, Debug)]
pub struct SessionBuilder {
    socket: Option<PathBuf>,
    name: Option<String>,
    tx_bytes: usize,
    rx_bytes: usize,
    reconnect: bool,
    request_timeout: Duration,
    descriptors_from: Option<RawFd>,
}

impl Default for SessionBuilder {
    fn default() -> Self {
        Self {
            socket: None,
            name: None,
            tx_bytes: 0,
            rx_bytes: 0,
            reconnect: true,
            request_timeout: REQUEST_TIMEOUT,
            descriptors_from: None,
        }
    }
}

impl SessionBuilder {
    /// The runtime's socket, in the place of `$TAKT_SOCKET` and the default.
    #[must_use]
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// A name for people who look at the node's sessions. The program's, if not set.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Bytes for messages on their way out; 0: as many as the runtime thinks right.
    #[must_use]
    pub fn tx_bytes(mut self, bytes: usize) -> Self {
        self.tx_bytes = bytes;
        self
    }

    /// Bytes for received messages; 0: as many as the runtime thinks right.
    #[must_use]
    pub fn rx_bytes(mut self, bytes: usize) -> Self {
        self.rx_bytes = bytes;
        self
    }

    /// Whether to look for the runtime again when it has gone away. True if not set.
    #[must_use]
    pub fn reconnect(mut self, reconnect: bool) -> Self {
        self.reconnect = reconnect;
        self
    }

    /// How long the runtime may take to answer a request, and to accept the connection before; 5 s if not set.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        // Added to an instant, which holds no more than some.
        self.request_timeout = timeout.min(LONGEST_TIMEOUT);
        self
    }

    /// Gives the session's descriptors numbers from here on, where there is room, out of the way of programs that choose
    /// numbers themselves.
    #[must_use]
    pub fn descriptors_from(mut self, lowest: RawFd) -> Self {
        self.descriptors_from = Some(lowest);
        self
    }

    /// Opens the session.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open(self) -> Result<Session, Error> {
        let path = self
            .socket
            .clone()
            .unwrap_or_else(|| Socket::Applications.to_attach_to());
        let socket = connect::connect(&path, self.request_timeout, |pause| {
            std::thread::sleep(pause);
            Ok(())
        })?;
        self.start(Some(path), socket, None)
    }

    /// Opens the session over a socket that is connected already, see [`Session::over`].
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn over(
        self,
        socket: OwnedFd,
        progress: Option<Arc<dyn Progress>>,
    ) -> Result<Session, Error> {
        self.start(None, socket, progress)
    }

    fn start(
        self,
        path: Option<PathBuf>,
        socket: OwnedFd,
        progress: Option<Arc<dyn Progress>>,
    ) -> Result<Session, Error> {
        let options = Options {
            path,
            name: self.name.unwrap_or_else(program_name),
            tx_bytes: self.tx_bytes,
            rx_bytes: self.rx_bytes,
            reconnect: self.reconnect,
            request_timeout: self.request_timeout,
            descriptors_from: self.descriptors_from,
        };
        let shared = Arc::new(Shared::new(options, progress)?);
        connect::attach(&shared, socket).map_err(|error| match error {
            // What has not begun cannot end.
            Error::Ended(failure) => Error::Refused(failure),
            error => error,
        })?;
        let (running, gone) = mpsc::channel::<Infallible>();
        let for_thread = shared.clone();
        sys::without_signals(|| {
            std::thread::Builder::new()
                .name("takt-session".into())
                .spawn(move || {
                    reader::run(&for_thread);
                    // In this order: who waits for the end of the thread drops the session's last parts.
                    drop(for_thread);
                    drop(running);
                })
        })
        .map_err(Error::system("start the session's thread"))?;
        Ok(Session(Arc::new(Owner::new(shared, gone))))
    }
}

fn program_name() -> String {
    std::env::args_os()
        .next()
        .and_then(|program| {
            let name = std::path::Path::new(&program).file_name()?;
            Some(name.to_string_lossy().into_owned())
        })
        .unwrap_or_default()
}
