//! A program's place among those that publish and subscribe.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use takt::{ChannelId, Qos, Session, Stream};

use crate::directory::{Entry, Service, Topic};
use crate::error::Error;
use crate::history::History;
use crate::publisher::{Publisher, PublisherOptions};
use crate::subscriber::{Sample, Subscriber, SubscriberOptions, SubscriberTask};
use crate::topic::Name;

/// A program's place among those that publish and subscribe. Cheap to clone; its publishers and subscribers keep it.
#[derive(Clone)]
pub struct Participant(Arc<Inner>);

struct Inner {
    /// Before the session: its thread ends first.
    service: Result<Service, String>,
    session: Session,
    /// The process that opened it.
    process: u32,
    /// One for each quality: a session has room for a thousand.
    streams: Mutex<HashMap<Qos, Stream>>,
    /// Topics in use by the channels that carry them, and how often they are.
    topics: Mutex<HashMap<ChannelId, (String, usize)>>,
}

/// How to take part.
#[derive(Debug)]
pub struct ParticipantBuilder {
    session: Session,
    name: Option<String>,
    directory: bool,
}

impl ParticipantBuilder {
    /// What others see in their lists of topics; the program's name, if not set.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Whether to tell others of its topics, and to hear of theirs. True if not set. Without there are no patterns and
    /// no history, and no thread.
    #[must_use]
    pub fn directory(mut self, directory: bool) -> Self {
        self.directory = directory;
        self
    }

    /// Takes part.
    ///
    /// # Errors
    /// [`Error::Channel`] when the session cannot open a stream. If it is refused the channel of the directory it does
    /// without: [`Participant::problem`].
    pub fn open(self) -> Result<Participant, Error> {
        let name = self.name.unwrap_or_else(program_name);
        let service = match self.directory {
            false => Err("this participant was opened without; open one with it".to_owned()),
            true => match Service::start(&self.session, &name) {
                Ok(service) => Ok(service),
                Err(takt::Error::Refused(failure)) => {
                    Err(format!("the runtime refused: {failure}"))
                }
                Err(error) => return Err(error.into()),
            },
        };
        Ok(Participant(Arc::new(Inner {
            service,
            session: self.session,
            process: std::process::id(),
            streams: Mutex::default(),
            topics: Mutex::default(),
        })))
    }
}

fn program_name() -> String {
    let program = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&program).file_name();
    name.map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

impl Participant {
    /// Takes part, under the program's name.
    ///
    /// # Errors
    /// As [`ParticipantBuilder::open`].
    pub fn new(session: Session) -> Result<Self, Error> {
        Self::builder(session).open()
    }

    /// Takes part otherwise than [`new`](Self::new).
    pub fn builder(session: Session) -> ParticipantBuilder {
        ParticipantBuilder {
            session,
            name: None,
            directory: true,
        }
    }

    /// Opens a publisher of a topic.
    ///
    /// # Errors
    /// [`Error::Topic`]; [`Error::Collision`]; [`Error::Channel`] as the channels' sources.
    pub fn publisher(&self, topic: &str, qos: Qos) -> Result<Publisher, Error> {
        self.publisher_with(topic, PublisherOptions::new(qos))
    }

    /// As [`publisher`](Self::publisher), with other than the usual options.
    ///
    /// # Errors
    /// As [`publisher`](Self::publisher); [`Error::NoDirectory`] with history; [`Error::Option`].
    pub fn publisher_with(
        &self,
        topic: &str,
        options: PublisherOptions,
    ) -> Result<Publisher, Error> {
        Publisher::open(self, topic, options)
    }

    /// Opens a subscriber of a topic, or of all topics that a pattern matches: `*` stands for one level, `**` for any
    /// number of them.
    ///
    /// # Errors
    /// As [`publisher`](Self::publisher); [`Error::NoDirectory`] with a pattern.
    pub fn subscriber(&self, topic: &str, qos: Qos) -> Result<Subscriber, Error> {
        self.subscriber_with(topic, SubscriberOptions::new(qos))
    }

    /// As [`subscriber`](Self::subscriber), with other than the usual options.
    ///
    /// # Errors
    /// As [`subscriber`](Self::subscriber); [`Error::NoDirectory`] with history.
    pub fn subscriber_with(
        &self,
        topic: &str,
        options: SubscriberOptions,
    ) -> Result<Subscriber, Error> {
        Subscriber::open(self, topic, options)
    }

    /// Opens a subscriber that hands every message to `receive`, on a thread of its own. The message is released when
    /// `receive` returns.
    ///
    /// # Errors
    /// As [`subscriber_with`](Self::subscriber_with); [`Error::System`] when no thread can be started.
    pub fn subscribe(
        &self,
        topic: &str,
        options: SubscriberOptions,
        receive: impl FnMut(&Sample<'_>) + Send + 'static,
    ) -> Result<SubscriberTask, Error> {
        SubscriberTask::start(self.subscriber_with(topic, options)?, receive)
    }

    /// The topics that are known, in the order of their names: at once, what has been heard by now.
    ///
    /// # Errors
    /// [`Error::NoDirectory`].
    pub fn topics(&self) -> Result<Vec<Topic>, Error> {
        Ok(self.service("a list of topics")?.topics())
    }

    /// The same, once nothing new has been heard of for `quiet`, or after `most`.
    ///
    /// # Errors
    /// [`Error::NoDirectory`].
    pub fn discover(&self, quiet: Duration, most: Duration) -> Result<Vec<Topic>, Error> {
        let service = self.service("a list of topics")?;
        service.settle(quiet, most);
        Ok(service.topics())
    }

    /// Another topic with the channel of this one, if the directory has one: each refuses what the other writes.
    pub(crate) fn collision(&self, topic: &str) -> Option<String> {
        let name = Name::new(topic).ok()?;
        let service = self.0.service.as_ref().ok()?;
        let other = service.other_topic(&name, |other| other.channel == name.channel)?;
        Some(
            Error::Collision {
                name: name.text,
                other,
            }
            .to_string(),
        )
    }

    /// Why others do not hear of its topics, or not of all, or late joiners did not get what was kept, if so.
    pub fn problem(&self) -> Option<String> {
        match &self.0.service {
            Ok(service) => service.problem(),
            Err(why) => Some(why.clone()),
        }
    }

    /// The session below.
    pub fn session(&self) -> &Session {
        &self.0.session
    }

    /// The stream of this quality.
    pub(crate) fn stream(&self, qos: Qos) -> Result<Stream, Error> {
        let mut streams = self
            .0
            .streams
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = streams.get(&qos) {
            return Ok(stream.clone());
        }
        let stream = self.0.session.stream(qos)?;
        streams.insert(qos, stream.clone());
        Ok(stream)
    }

    pub(crate) fn service(&self, what: &'static str) -> Result<&Service, Error> {
        self.0.service.as_ref().map_err(|why| Error::NoDirectory {
            what,
            why: why.clone(),
        })
    }

    /// Tells others of a publisher or subscriber, if it tells others of any.
    pub(crate) fn register(&self, entry: Entry, history: Option<Arc<History>>) -> Registered {
        let id = entry.id;
        if let Ok(service) = &self.0.service {
            service.add(entry, history);
        }
        Registered {
            participant: self.clone(),
            id,
        }
    }

    /// Holds the channel of a topic against other topics.
    pub(crate) fn claim(&self, name: &Name) -> Result<Claim, Error> {
        let mut topics = self.topics_in_use();
        match topics.entry(name.channel) {
            Place::Occupied(place) if place.get().0 != name.text => {
                return Err(Error::Collision {
                    name: name.text.clone(),
                    other: place.get().0.clone(),
                });
            }
            Place::Occupied(mut place) => place.get_mut().1 += 1,
            Place::Vacant(place) => {
                place.insert((name.text.clone(), 1));
            }
        }
        drop(topics);
        Ok(Claim {
            participant: self.clone(),
            channel: name.channel,
        })
    }

    fn topics_in_use(&self) -> std::sync::MutexGuard<'_, HashMap<ChannelId, (String, usize)>> {
        self.0.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Participant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Participant").finish_non_exhaustive()
    }
}

/// Others know of a publisher or subscriber until this is dropped.
pub(crate) struct Registered {
    pub participant: Participant,
    id: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Ok(service) = &self.participant.0.service {
            service.remove(self.id);
        }
    }
}

/// A channel is of one topic until this is dropped.
pub(crate) struct Claim {
    participant: Participant,
    channel: ChannelId,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.participant.0.process != std::process::id() {
            // In a forked child the lock may be another thread's for ever.
            return;
        }
        let mut topics = self.participant.topics_in_use();
        if let Place::Occupied(mut place) = topics.entry(self.channel) {
            place.get_mut().1 -= 1;
            if place.get().1 == 0 {
                place.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use takt_embedded::{Embedded, Settings};

    use super::*;

    #[test]
    fn topics_with_one_channel_are_refused_as_long_as_the_first_is_in_use() {
        let runtime = Embedded::start(Settings::local()).expect("a runtime");
        let session = runtime.session("test").expect("a session");
        let participant = Participant::new(session).expect("a participant");
        let first = Name::new("first").expect("a name");
        let mut second = Name::new("second").expect("a name");
        second.channel = first.channel;

        let claims = [participant.claim(&first), participant.claim(&first)];
        let error = participant.claim(&second).err().expect("a collision");
        let told = "the topics \"second\" and \"first\" have the same channel: rename one of them";
        assert_eq!(error.to_string(), told);
        drop(claims);
        assert!(participant.claim(&second).is_ok());
    }
}
