//! Why a call failed.

use crate::header::Encoding;
use crate::topic::BadTopic;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name of a topic, or a pattern, is not possible.
    #[error(transparent)]
    Topic(#[from] BadTopic),
    /// The channels below refused, or there is nothing to take.
    #[error(transparent)]
    Channel(#[from] takt::Error),
    /// Another topic of this participant has the same channel.
    #[error("the topics {name:?} and {other:?} have the same channel: rename one of them")]
    Collision {
        /// The topic.
        name: String,
        /// The one that was there before.
        other: String,
    },
    /// What was asked for needs the directory of topics, which this participant does without.
    #[error(
        "{what} needs the directory of topics, the channel named {}: {why}",
        crate::DIRECTORY
    )]
    NoDirectory {
        /// What was asked for.
        what: &'static str,
        /// Why there is none, and what to do.
        why: String,
    },
    /// An option is out of range; the text names it.
    #[error("{0}")]
    Option(String),
    /// What is asked for is not what the publisher declares.
    #[error(
        "the {what} of {topic:?} has the encoding {encoding}, not json: open the publisher with Encoding::JSON"
    )]
    Encoding {
        /// What has it: a publisher or a message.
        what: &'static str,
        /// The topic.
        topic: String,
        /// What is declared.
        encoding: Encoding,
    },
    /// The message has no room for the name of its topic, with which late joiners would get it.
    #[error(
        "a message of {length} bytes of {topic:?} is too long to be kept for late joiners: publish at most {max} bytes, or without history"
    )]
    TooLongToKeep {
        /// The topic.
        topic: String,
        /// Bytes of the message.
        length: usize,
        /// Bytes possible.
        max: usize,
    },
    /// The message cannot be read or written in its encoding.
    #[error("cannot read or write a message as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
}

impl Error {
    /// Nothing waits, or no buffer is free: try again, or wait.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::Channel(takt::Error::WouldBlock))
    }

    /// The wait was as long as it might be.
    pub fn is_timed_out(&self) -> bool {
        matches!(self, Self::Channel(takt::Error::TimedOut))
    }

    /// A signal or a waker ended the wait.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Channel(takt::Error::Interrupted))
    }

    pub(crate) fn unless_json(
        what: &'static str,
        topic: &str,
        encoding: Encoding,
    ) -> Result<(), Self> {
        match encoding {
            Encoding::JSON => Ok(()),
            encoding => Err(Self::Encoding {
                what,
                topic: topic.to_owned(),
                encoding,
            }),
        }
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |source| Self::System {
            what,
            source: source.into(),
        }
    }
}
