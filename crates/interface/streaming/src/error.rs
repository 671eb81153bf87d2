//! Why a call failed.

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The topic below refused, or there is nothing to take.
    #[error(transparent)]
    Topic(#[from] takt_messaging::Error),
    /// An option or a format is out of range; the text names it.
    #[error("{0}")]
    Option(String),
    /// The server has ended the stream. If another begins, its frames come.
    #[error("the server has ended the stream; wait for frames of another, or close")]
    EndOfStream,
    /// Frames will not come any more.
    #[error("the stream can no longer be read: {0}")]
    Failed(String),
}

impl From<takt::Error> for Error {
    fn from(error: takt::Error) -> Self {
        Self::Topic(error.into())
    }
}

impl Error {
    /// Nothing waits: try again, or wait.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::Topic(error) if error.is_would_block())
    }

    /// The wait was as long as it might be.
    pub fn is_timed_out(&self) -> bool {
        matches!(self, Self::Topic(error) if error.is_timed_out())
    }

    /// A signal or a waker ended the wait.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Topic(error) if error.is_interrupted())
    }

    /// The server has ended the stream.
    pub const fn is_end(&self) -> bool {
        matches!(self, Self::EndOfStream)
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |source| {
            takt_messaging::Error::System {
                what,
                source: source.into(),
            }
            .into()
        }
    }
}
