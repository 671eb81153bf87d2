//! Writing a topic.

use std::cell::Cell;
use std::sync::Arc;

use serde::Serialize;
use takt::{Buffer, Outcome, Qos, Source, SourceOptions, Stream, TaiTime, Token, Wait};

use crate::directory::{Entry, Role};
use crate::error::Error;
use crate::header::{BYTES, Encoding, Header, kept_bytes};
use crate::history::History;
use crate::participant::{Claim, Participant, Registered};
use crate::topic::Name;

/// Most messages that a publisher keeps for late joiners.
const MOST_HISTORY: u32 = 65_536;

/// Bytes of messages that a publisher keeps, if not told otherwise.
const HISTORY_BYTES: usize = 64 << 20;

/// The usual depth of publishers and subscribers: a session has memory for 512 of that depth, and for 128 of the depth that
/// sources and sinks usually have.
pub const DEPTH: u32 = 256;

/// The depth that was asked for, or the usual one.
pub(crate) fn depth(asked: u32) -> u32 {
    match asked {
        0 => DEPTH,
        asked => asked,
    }
}

/// How to open a publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublisherOptions {
    /// How its messages are carried, and delivered.
    pub qos: Qos,
    /// Most messages that may be on their way at once, a power of two up to 65536; 0: [`DEPTH`].
    pub depth: u32,
    /// How its messages are to be read.
    pub encoding: Encoding,
    /// How many of its last messages it keeps for late joiners, 65536 at most. Each is copied once when it is published, and
    /// the longest message is shorter by the name of the topic and one byte, which late joiners get with it.
    pub history: u32,
    /// How many bytes of them, with 24 more of each; 0: 64 MiB. The newest message is kept however long it is. As many bytes
    /// again may be in use while late joiners get what was kept.
    pub history_bytes: usize,
}

impl PublisherOptions {
    /// The usual ones, with this quality.
    pub fn new(qos: Qos) -> Self {
        Self {
            qos,
            ..Self::default()
        }
    }
}

/// Writes a topic.
///
/// `Send`, not `Sync`: one thread at a time. Threads that write the same topic open a publisher each.
pub struct Publisher {
    source: Source,
    stream: Stream,
    topic: String,
    header: Header,
    /// Messages published: the number of the next.
    number: Cell<u64>,
    history: Option<Arc<History>>,
    /// Others do not hear of it any more before its channel is free for another topic.
    registered: Registered,
    _claim: Claim,
}

impl Publisher {
    pub(crate) fn open(
        participant: &Participant,
        topic: &str,
        options: PublisherOptions,
    ) -> Result<Self, Error> {
        let name = Name::new(topic)?;
        let history = match options.history {
            0 => None,
            most if most > MOST_HISTORY => {
                return Err(Error::Option(format!(
                    "a history of {most} messages is too long: write at most {MOST_HISTORY}"
                )));
            }
            most => {
                participant.service("history")?;
                let bytes = match options.history_bytes {
                    0 => HISTORY_BYTES,
                    bytes => bytes,
                };
                Some(Arc::new(History::new(most as usize, bytes)))
            }
        };
        let claim = participant.claim(&name)?;
        let stream = participant.stream(options.qos)?;
        let depth = depth(options.depth);
        let source = stream.source_with(
            name.channel,
            SourceOptions {
                depth,
                ..SourceOptions::default()
            },
        )?;
        let entry = Entry {
            id: rand::random(),
            topic: name.text.clone(),
            role: Role::Publisher,
            encoding: options.encoding.0,
            history: options.history,
            inbox: 0,
            of: 0,
        };
        Ok(Self {
            source,
            stream,
            header: Header {
                history: false,
                encoding: options.encoding,
                publisher: rand::random(),
                number: 0,
                check: name.check,
            },
            topic: name.text,
            number: Cell::new(0),
            registered: participant.register(entry, history.clone()),
            history,
            _claim: claim,
        })
    }

    /// Its topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Publishes a message.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    #[inline]
    pub fn publish(&self, message: &[u8], wait: Wait) -> Result<Token, Error> {
        self.fill(message.len(), wait, |memory| {
            memory.copy_from_slice(message)
        })
    }

    /// Publishes a message of `len` bytes that `fill` writes where it is sent from: called once, when there is memory, and
    /// not at all if this fails before. What it does not write is arbitrary. If it panics nothing is published.
    ///
    /// # Errors
    /// [`Error::Channel`], with [`WouldBlock`](takt::Error::WouldBlock) or [`TimedOut`](takt::Error::TimedOut) when there
    /// is no memory as long as `wait` says, and as [`Source::buffer_wait`] and [`Source::emit`]; [`Error::TooLongToKeep`]
    /// with history.
    #[inline]
    pub fn fill(
        &self,
        len: usize,
        wait: Wait,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Token, Error> {
        let fill = |memory: &mut [u8]| {
            fill(memory);
            len
        };
        self.written(len, wait, fill, |buffer| buffer.emit())
    }

    /// As [`fill`](Self::fill), of as many bytes as `fill` returns: `most` at the most.
    ///
    /// # Errors
    /// As [`fill`](Self::fill); [`Error::Option`] when it returns more: then nothing is published.
    #[inline]
    pub fn fill_up_to(
        &self,
        most: usize,
        wait: Wait,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<Token, Error> {
        self.written(most, wait, fill, |buffer| buffer.emit())
    }

    /// As [`fill`](Self::fill), with more to follow at once, see [`Source::emit_more`].
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    #[inline]
    pub fn fill_more(
        &self,
        len: usize,
        wait: Wait,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Token, Error> {
        let fill = |memory: &mut [u8]| {
            fill(memory);
            len
        };
        self.written(len, wait, fill, |buffer| buffer.emit_more())
    }

    /// As [`fill`](Self::fill), at `launch`, see [`Source::emit_at`].
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    #[inline]
    pub fn fill_at(
        &self,
        len: usize,
        launch: TaiTime,
        wait: Wait,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Token, Error> {
        let fill = |memory: &mut [u8]| {
            fill(memory);
            len
        };
        self.written(len, wait, fill, |buffer| buffer.emit_at(launch))
    }

    /// Puts memory for a message of `len` bytes aside, for one that must be published even when all memory is in use by then, such
    /// as the last one: it is one of the messages on their way meanwhile. See [`Source::reserve`].
    ///
    /// # Errors
    /// [`Error::Channel`] as [`Source::reserve`]; [`Error::TooLongToKeep`] with history.
    pub fn reserve(&self, len: usize, wait: Wait) -> Result<(), Error> {
        self.can_keep(len)?;
        self.source
            .reserve(len.saturating_add(BYTES), wait)
            .map_err(|error| self.refused(len, error))
    }

    /// Publishes a message of `len` bytes in the memory that was [put aside](Self::reserve), at `launch` if that is given, as
    /// [`fill_at`](Self::fill_at). Never waits.
    ///
    /// # Errors
    /// [`Error::Channel`], with [`WouldBlock`](takt::Error::WouldBlock) when none was put aside, or less, or its runtime is gone:
    /// then `fill` is not called. As [`Source::emit`].
    pub fn fill_reserved(
        &self,
        len: usize,
        launch: Option<TaiTime>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Token, Error> {
        self.can_keep(len)?;
        let whole = len.saturating_add(BYTES);
        let buffer = self.source.reserved();
        let buffer = buffer.filter(|buffer| buffer.len() >= whole);
        let buffer = buffer.ok_or(takt::Error::WouldBlock)?;
        let fill = |memory: &mut [u8]| {
            fill(&mut memory[..len]);
            len
        };
        self.written_in(buffer, fill, |buffer| match launch {
            Some(launch) => buffer.emit_at(launch),
            None => buffer.emit(),
        })
    }

    #[inline]
    fn written(
        &self,
        most: usize,
        wait: Wait,
        fill: impl FnOnce(&mut [u8]) -> usize,
        emit: impl FnOnce(Buffer<'_>) -> Result<Token, takt::Error>,
    ) -> Result<Token, Error> {
        self.can_keep(most)?;
        let buffer = self
            .source
            .buffer_wait(most.saturating_add(BYTES), wait)
            .map_err(|error| self.refused(most, error))?;
        self.written_in(buffer, fill, emit)
    }

    #[inline]
    fn written_in(
        &self,
        mut buffer: Buffer<'_>,
        fill: impl FnOnce(&mut [u8]) -> usize,
        emit: impl FnOnce(Buffer<'_>) -> Result<Token, takt::Error>,
    ) -> Result<Token, Error> {
        let most = buffer.len() - BYTES;
        let number = self.number.get();
        let header = Header {
            number,
            ..self.header
        };
        header.write(&mut buffer);
        let filled = fill(&mut buffer[BYTES..]);
        if filled > most {
            return Err(Error::Option(format!(
                "{filled} bytes are more than the {most} that there was memory for"
            )));
        }
        buffer.truncate(BYTES + filled);
        let token = match &self.history {
            // A late joiner that it does not reach any more finds it among what was kept.
            Some(history) => history.keep(Arc::from(&*buffer), || emit(buffer)),
            None => emit(buffer),
        }?;
        self.number.set(number + 1);
        Ok(token)
    }

    /// Longest message in bytes: less than of its source by what a message of a topic carries, and with history by the topic's
    /// name, which late joiners get with it.
    pub fn max_message(&self) -> usize {
        let beside = match self.history {
            Some(_) => kept_bytes(BYTES, &self.topic),
            None => BYTES,
        };
        self.source.max_message().saturating_sub(beside)
    }

    /// Of a message of this length, as its publisher counts.
    fn refused(&self, length: usize, error: takt::Error) -> Error {
        let error = match error {
            takt::Error::TooLarge { .. } => takt::Error::TooLarge {
                length,
                max: self.max_message(),
            },
            other => other,
        };
        error.into()
    }

    /// Late joiners get a kept message with the name of its topic.
    #[inline]
    fn can_keep(&self, len: usize) -> Result<(), Error> {
        if self.history.is_none() {
            return Ok(());
        }
        let whole = len.saturating_add(BYTES);
        let max = self.source.max_message();
        // What is too long in any case is refused when memory is asked for.
        if whole <= max && kept_bytes(whole, &self.topic) > max {
            return Err(Error::TooLongToKeep {
                topic: self.topic.clone(),
                length: len,
                max: self.max_message(),
            });
        }
        Ok(())
    }

    /// Publishes a value as JSON, if the publisher was opened with [`Encoding::JSON`].
    ///
    /// # Errors
    /// As [`fill`](Self::fill), [`Error::Encoding`], and [`Error::Json`].
    pub fn publish_json<T: Serialize>(&self, value: &T, wait: Wait) -> Result<Token, Error> {
        Error::unless_json("publisher", &self.topic, self.header.encoding)?;
        self.publish(&serde_json::to_vec(value)?, wait)
    }

    /// The datapath that carries its messages, see [`Stream::datapath`].
    pub fn datapath(&self) -> String {
        self.stream.datapath()
    }

    /// Why that is not what was asked for, if it is not; and which topic has the same channel, if another participant has
    /// one.
    pub fn warning(&self) -> Option<String> {
        let collision = self.registered.participant.collision(&self.topic);
        let warnings = [self.stream.warning(), collision];
        let warnings: Vec<String> = warnings.into_iter().flatten().collect();
        (!warnings.is_empty()).then(|| warnings.join("; "))
    }

    /// What became of a message.
    pub fn outcome(&self, token: Token) -> Outcome {
        self.source.outcome(token)
    }

    /// Waits until the topic has a subscriber; how many readers its channel has then, see [`Source::readers`].
    ///
    /// # Errors
    /// [`Error::Channel`] as [`Source::wait_reader`].
    pub fn wait_subscriber(&self, wait: Wait) -> Result<u32, Error> {
        Ok(self.source.wait_reader(wait)?)
    }

    /// The source below, for what is not here: its messages have a header before their bytes.
    pub fn source(&self) -> &Source {
        &self.source
    }
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher")
            .field("topic", &self.topic)
            .field("published", &self.number.get())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use takt_embedded::{Embedded, Settings};

    use super::*;
    use crate::history::Next;

    const PATIENCE: Wait = Wait::For(Duration::from_secs(60));

    fn participant() -> (Embedded, Participant) {
        let runtime = Embedded::start(Settings::local()).expect("a runtime");
        let session = runtime.session("test").expect("a session");
        (runtime, Participant::new(session).expect("a participant"))
    }

    fn keeps(history: u32) -> PublisherOptions {
        PublisherOptions {
            history,
            ..PublisherOptions::default()
        }
    }

    #[test]
    fn what_is_kept_stays_when_a_message_is_not_emitted() {
        let (_runtime, participant) = participant();
        let publisher = participant.publisher_with("a", keeps(2)).expect("opened");
        for text in [b"0", b"1"] {
            publisher.publish(text, PATIENCE).expect("published");
        }
        let fill = |memory: &mut [u8]| memory.len();
        let failed = publisher.written(9, PATIENCE, fill, |_| Err(takt::Error::Disconnected));
        assert!(failed.is_err());
        let kept = || {
            let mut reader = publisher.history.as_ref().expect("a history").last(9);
            let mut kept = Vec::new();
            while let Next::Message(message) = reader.next() {
                let header = Header::read(&message, publisher.header.check).expect("a header");
                kept.push((header.number, message[BYTES..].to_vec()));
                reader.advance();
            }
            kept
        };
        assert_eq!(kept(), [(0, b"0".to_vec()), (1, b"1".to_vec())]);
        publisher.publish(b"2", PATIENCE).expect("published");
        assert_eq!(kept(), [(1, b"1".to_vec()), (2, b"2".to_vec())]);
    }

    #[test]
    fn a_message_that_late_joiners_could_not_get_is_refused_by_name() {
        let (_runtime, participant) = participant();
        let plain = participant.publisher("a", Qos::slow()).expect("opened");
        let most = plain.source().max_message() - BYTES;
        plain.fill(most, PATIENCE, |_| {}).expect("published");

        let publisher = participant.publisher_with("a", keeps(1)).expect("opened");
        let told = format!(
            "a message of {most} bytes of \"a\" is too long to be kept for late joiners: publish at most {} bytes, or without history",
            most - 2
        );
        let filled = |_: &mut [u8]| panic!("it is refused before");
        let reserved = publisher.reserve(most, PATIENCE);
        for refused in [
            publisher.fill(most, PATIENCE, filled).map(drop),
            publisher.fill_reserved(most, None, filled).map(drop),
            reserved,
        ] {
            assert_eq!(refused.expect_err("too long").to_string(), told);
        }
        let refused = publisher.fill(most + 1, PATIENCE, filled);
        let refused = refused.expect_err("longer than any message");
        let longest = publisher.max_message();
        assert_eq!((plain.max_message(), longest), (most, most - 2));
        let Error::Channel(takt::Error::TooLarge { length, max }) = refused else {
            panic!("{refused}");
        };
        assert_eq!((length, max), (most + 1, longest));

        // The longest one comes.
        let fill = |memory: &mut [u8]| memory.fill(7);
        publisher.fill(most - 2, PATIENCE, fill).expect("published");
        let late = crate::SubscriberOptions {
            history: 1,
            ..crate::SubscriberOptions::default()
        };
        let late = participant.subscriber_with("a", late).expect("opened");
        let sample = late.take(PATIENCE).expect("a sample");
        assert!(sample.len() == most - 2 && sample.iter().all(|&byte| byte == 7));
    }
}
