//! Which topics participants write and read, by what they say of themselves: state alone, no clock and no channel.
//!
//! Every participant says what changed ([`Said::Update`]), and every two seconds that it is still there
//! ([`Said::Alive`]). Who finds that it has missed something asks ([`Said::Ask`]), and is told everything. A participant
//! of which nothing is heard for ten seconds is gone.

mod service;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub(crate) use service::{Service, Watch, inbox};

use crate::header::Encoding;

/// The name of the channel on which participants tell each other of their topics, as `takt sub topics/1` shows.
pub const DIRECTORY: &str = "topics/1";

/// How often a participant says that it is there.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(2);
/// Who has said nothing for so long is gone.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// Participants that are remembered.
const MOST_PARTICIPANTS: usize = 4096;
/// Publishers and subscribers that are remembered, of all participants.
const MOST_ENTRIES: usize = 262_144;
/// Octets of a participant's name that are kept.
const LONGEST_NAME: usize = 64;

/// What a publisher or subscriber is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It writes.
    Publisher,
    /// It reads.
    Subscriber,
}

/// A publisher or subscriber, as its participant tells of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// Random.
    pub id: u64,
    /// A name; of a subscriber also a pattern.
    pub topic: String,
    pub role: Role,
    /// Of a publisher: how its messages are to be read.
    #[serde(default)]
    pub encoding: u16,
    /// How many of the last messages a publisher keeps, or a subscriber wants when it joins.
    #[serde(default)]
    pub history: u32,
}

/// What participants say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Said {
    /// What changed between two versions of its list; from version 0: the whole list.
    Update {
        participant: u64,
        name: String,
        from: u64,
        to: u64,
        #[serde(default)]
        add: Vec<Entry>,
        #[serde(default)]
        remove: Vec<u64>,
    },
    /// It is there, with this version.
    Alive { participant: u64, version: u64 },
    /// One, or all, are asked for their whole list.
    Ask { participant: Option<u64> },
    /// It goes.
    Leave { participant: u64 },
}

/// What is to be done about what was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Nothing,
    /// Topics came or went; these subscribers want what publishers have kept.
    Changed(Vec<Entry>),
    /// This one's list is not known as it is now: ask.
    Unknown(u64),
    /// Somebody asks for the whole list of this one, or of all.
    Asked(Option<u64>),
    /// There are more participants, or topics, than are remembered.
    Full,
}

#[derive(Debug)]
struct Other {
    name: String,
    version: u64,
    heard: Instant,
    entries: BTreeMap<u64, Entry>,
}

/// What is known of all participants.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    others: HashMap<u64, Other>,
    entries: usize,
}

/// A topic, with who writes and reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// The names of the participants that write it, once for each publisher.
    pub publishers: Vec<String>,
    /// The names of the participants that read it, once for each subscriber; those of patterns are counted where they
    /// match.
    pub subscribers: Vec<String>,
    /// How its publishers' messages are to be read.
    #[serde(serialize_with = "as_text")]
    pub encodings: Vec<Encoding>,
}

fn as_text<S: serde::Serializer>(encodings: &[Encoding], s: S) -> Result<S::Ok, S::Error> {
    s.collect_seq(encodings.iter().map(ToString::to_string))
}

impl Directory {
    /// Takes in what somebody said.
    pub(crate) fn hear(&mut self, now: Instant, said: Said) -> Heard {
        match said {
            Said::Update {
                participant,
                name,
                from,
                to,
                add,
                remove,
            } => {
                let known = self
                    .others
                    .get(&participant)
                    .map_or(0, |other| other.version);
                if from != 0 && from != known {
                    return Heard::Unknown(participant);
                }
                if known == 0 && self.others.len() >= MOST_PARTICIPANTS {
                    return Heard::Full;
                }
                self.update(now, participant, name, from, to, add, &remove)
            }
            Said::Alive {
                participant,
                version,
            } => match self.others.get_mut(&participant) {
                Some(other) if other.version == version => {
                    other.heard = now;
                    Heard::Nothing
                }
                _ => Heard::Unknown(participant),
            },
            Said::Ask { participant } => Heard::Asked(participant),
            Said::Leave { participant } => match self.remove(participant) {
                true => Heard::Changed(Vec::new()),
                false => Heard::Nothing,
            },
        }
    }

    #[allow(clippy::too_many_arguments)] // the fields of an update
    fn update(
        &mut self,
        now: Instant,
        participant: u64,
        mut name: String,
        from: u64,
        to: u64,
        add: Vec<Entry>,
        remove: &[u64],
    ) -> Heard {
        let room = MOST_ENTRIES.saturating_sub(self.entries);
        let other = self.others.entry(participant).or_insert_with(|| Other {
            name: String::new(),
            version: 0,
            heard: now,
            entries: BTreeMap::new(),
        });
        name.truncate(name.floor_char_boundary(LONGEST_NAME));
        name.retain(|c| !c.is_control());
        let before = other.entries.len();
        // Those that were there already have had what was kept.
        let mut known = BTreeMap::new();
        if from == 0 {
            known = std::mem::take(&mut other.entries);
        }
        for id in remove {
            other.entries.remove(id);
        }
        let mut joined = Vec::new();
        let mut full = false;
        for entry in add.into_iter().filter(Entry::is_possible) {
            if other.entries.len() >= before + room {
                full = true;
                break;
            }
            if entry.role == Role::Subscriber && entry.history > 0 && !known.contains_key(&entry.id)
            {
                joined.push(entry.clone());
            }
            other.entries.insert(entry.id, entry);
        }
        (other.name, other.version, other.heard) = (name, to.max(1), now);
        self.entries = self.entries - before + other.entries.len();
        if full {
            Heard::Full
        } else {
            Heard::Changed(joined)
        }
    }

    fn remove(&mut self, participant: u64) -> bool {
        let removed = self.others.remove(&participant);
        let entries = removed.as_ref().map_or(0, |other| other.entries.len());
        self.entries -= entries;
        entries > 0
    }

    /// Takes out who has said nothing for too long. Whether topics went with them.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let gone: Vec<u64> = self
            .others
            .iter()
            .filter(|(_, other)| now.saturating_duration_since(other.heard) >= LEASE)
            .map(|(participant, _)| *participant)
            .collect();
        gone.into_iter()
            .fold(false, |any, participant| self.remove(participant) | any)
    }

    fn all(&self) -> impl Iterator<Item = (&Other, &Entry)> {
        self.others
            .values()
            .flat_map(|other| other.entries.values().map(move |entry| (other, entry)))
    }

    /// The names of all topics that are written, in order, each once.
    pub(crate) fn written(&self) -> std::collections::BTreeSet<&str> {
        self.all()
            .filter(|(_, entry)| entry.role == Role::Publisher)
            .map(|(_, entry)| entry.topic.as_str())
            .collect()
    }

    /// All topics, in the order of their names. Patterns are none: who asks by one is a subscriber of what it matches.
    pub(crate) fn topics(&self) -> Vec<Topic> {
        let mut topics: BTreeMap<&str, Topic> = BTreeMap::new();
        let mut patterns = Vec::new();
        for (other, entry) in self.all() {
            if let Ok(crate::topic::Asked::Pattern(pattern)) =
                crate::topic::Asked::new(&entry.topic)
            {
                patterns.push((pattern, &other.name));
                continue;
            }
            let topic = topics.entry(&entry.topic).or_insert_with(|| Topic {
                name: entry.topic.clone(),
                publishers: Vec::new(),
                subscribers: Vec::new(),
                encodings: Vec::new(),
            });
            match entry.role {
                Role::Publisher => {
                    topic.publishers.push(other.name.clone());
                    topic.encodings.push(Encoding(entry.encoding));
                }
                Role::Subscriber => topic.subscribers.push(other.name.clone()),
            }
        }
        let mut topics: Vec<Topic> = topics.into_values().collect();
        for topic in &mut topics {
            let matching = patterns
                .iter()
                .filter(|(pattern, _)| pattern.matches(&topic.name));
            topic
                .subscribers
                .extend(matching.map(|(_, name)| (*name).clone()));
            topic.publishers.sort();
            topic.subscribers.sort();
            topic.encodings.sort();
            topic.encodings.dedup();
        }
        topics
    }
}

impl Entry {
    /// Whether what others say of it can be: names of publishers, names or patterns of subscribers.
    fn is_possible(&self) -> bool {
        match crate::topic::Asked::new(&self.topic) {
            Ok(crate::topic::Asked::Name(_)) => true,
            Ok(crate::topic::Asked::Pattern(_)) => self.role == Role::Subscriber,
            Err(_) => false,
        }
    }
}

/// Hears anything that may come; what is known stays within its bounds.
#[doc(hidden)]
pub fn fuzz(messages: &[u8]) {
    let mut directory = Directory::default();
    let now = Instant::now();
    for message in messages.split(|byte| *byte == 0) {
        if let Ok(said) = serde_json::from_slice::<Said>(message) {
            directory.hear(now, said);
            let counted: usize = directory
                .others
                .values()
                .map(|other| other.entries.len())
                .sum();
            assert_eq!(counted, directory.entries);
            assert!(directory.others.len() <= MOST_PARTICIPANTS && counted <= MOST_ENTRIES);
        }
    }
    let topics = directory.topics();
    assert!(topics.is_sorted_by(|a, b| a.name < b.name));
    assert_eq!(
        directory.written().len(),
        topics
            .iter()
            .filter(|topic| !topic.publishers.is_empty())
            .count()
    );
    directory.expire(now + LEASE);
    assert_eq!((directory.others.len(), directory.entries), (0, 0));
}

#[cfg(test)]
mod tests;
