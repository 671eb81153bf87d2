//! Which topics participants write and read, by what they say of themselves: state alone, no clock and no channel.
//!
//! Every participant says what changed ([`Said::Update`]), and every two seconds that it is still there
//! ([`Said::Alive`]). Who finds that it has missed something asks ([`Said::Ask`]), and is told everything. A participant
//! of which nothing is heard for ten seconds is gone.

mod joiners;
mod service;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub(crate) use service::{Service, Watch, inbox};

use crate::header::Encoding;
use crate::topic::{Asked, Name, Pattern};

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
    /// How many of the last messages a publisher keeps, or a subscriber wants of each publisher when it joins. A pattern
    /// is sent nothing: its subscriber tells of each topic that it reads.
    #[serde(default)]
    pub history: u32,
    /// Of a subscriber: the number of the inbox that what was kept is sent to, opened after the topic's channel. 0: `id`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub inbox: u64,
    /// A topic that a subscriber reads by a pattern: the `id` of that.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub of: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_zero(number: &u64) -> bool {
    *number == 0
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
    /// Topics came or went; these subscribers of whole names want what publishers have kept.
    Changed(Vec<Entry>),
    /// This one's list is not known as it is now: ask.
    Unknown(u64),
    /// Somebody asks for the whole list of this one, or of all.
    Asked(Option<u64>),
    /// There are more participants, or topics, than are remembered; the rest has changed.
    Full(Vec<Entry>),
}

#[derive(Debug)]
struct Other {
    name: String,
    version: u64,
    heard: Instant,
    entries: BTreeMap<u64, Entry>,
    /// What it had when it last began to tell its whole list, and has not told again: those have had what was kept.
    former: HashSet<u64>,
}

impl Other {
    /// What is remembered of it.
    fn len(&self) -> usize {
        self.entries.len() + self.former.len()
    }
}

/// What is known of all participants.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    others: HashMap<u64, Other>,
    /// What is remembered of all of them.
    entries: usize,
    written: Written,
}

/// The topics that are written, and by how many publishers.
#[derive(Debug, Default)]
struct Written(BTreeMap<String, usize>);

impl Written {
    fn add(&mut self, entry: &Entry) {
        if entry.role == Role::Publisher {
            *self.0.entry(entry.topic.clone()).or_default() += 1;
        }
    }

    fn remove(&mut self, entry: &Entry) {
        if entry.role == Role::Publisher
            && let Some(count) = self.0.get_mut(&entry.topic)
        {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&entry.topic);
            }
        }
    }
}

/// A topic, with who writes and reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// The names of the participants that write it, once for each publisher.
    pub publishers: Vec<String>,
    /// The names of the participants that read it, once for each subscriber; those of patterns are counted where they
    /// match, as far as a list has room: for 262,144 of them.
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
                    return Heard::Full(Vec::new());
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
            former: HashSet::new(),
        });
        name.truncate(name.floor_char_boundary(LONGEST_NAME));
        name.retain(|c| !c.is_control());
        let before = other.len();
        if from == 0 {
            // The list may come in several updates.
            other.former = other.entries.keys().copied().collect();
            for entry in std::mem::take(&mut other.entries).values() {
                self.written.remove(entry);
            }
        }
        for id in remove {
            if let Some(entry) = other.entries.remove(id) {
                self.written.remove(&entry);
            }
        }
        let mut joined = Vec::new();
        let mut full = false;
        for entry in add {
            let Some(pattern) = entry.is_pattern() else {
                continue;
            };
            // What is told again takes the room that it had.
            let again = other.former.remove(&entry.id);
            if !again && !other.entries.contains_key(&entry.id) && other.len() >= before + room {
                full = true;
                continue;
            }
            if entry.role == Role::Subscriber && entry.history > 0 && !pattern && !again {
                joined.push(entry.clone());
            }
            self.written.add(&entry);
            if let Some(replaced) = other.entries.insert(entry.id, entry) {
                self.written.remove(&replaced);
            }
        }
        (other.name, other.version, other.heard) = (name, to.max(1), now);
        self.entries = self.entries - before + other.len();
        if full {
            Heard::Full(joined)
        } else {
            Heard::Changed(joined)
        }
    }

    fn remove(&mut self, participant: u64) -> bool {
        let Some(removed) = self.others.remove(&participant) else {
            return false;
        };
        for entry in removed.entries.values() {
            self.written.remove(entry);
        }
        self.entries -= removed.len();
        !removed.entries.is_empty()
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
    pub(crate) fn written(&self) -> impl Iterator<Item = &str> {
        self.written.0.keys().map(String::as_str)
    }

    /// Subscribers of one of these topics that want what is kept.
    pub(crate) fn wanting(&self, topics: &HashSet<String>) -> Vec<Entry> {
        self.all()
            .map(|(_, entry)| entry)
            .filter(|entry| entry.role == Role::Subscriber && entry.history > 0)
            .filter(|entry| topics.contains(&entry.topic))
            .cloned()
            .collect()
    }

    /// Whether a participant still tells of this publisher or subscriber.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.others
            .values()
            .any(|other| other.entries.contains_key(&id))
    }

    /// All that is known, to make a list of.
    pub(crate) fn snapshot(&self) -> Vec<(String, Entry)> {
        self.all()
            .map(|(other, entry)| (other.name.clone(), entry.clone()))
            .collect()
    }

    /// Another topic that meets a condition.
    pub(crate) fn other_topic(&self, name: &Name, is: impl Fn(&Name) -> bool) -> Option<String> {
        let names: std::collections::BTreeSet<&str> =
            self.all().map(|(_, entry)| entry.topic.as_str()).collect();
        names
            .into_iter()
            .filter_map(|topic| Name::new(topic).ok())
            .find(|other| other.text != name.text && is(other))
            .map(|other| other.text)
    }
}

/// All topics, in the order of their names. Patterns are none: who asks by one is a subscriber of what it matches.
pub(crate) fn topics(all: &[(String, Entry)]) -> Vec<Topic> {
    let mut topics: BTreeMap<&str, Topic> = BTreeMap::new();
    let mut patterns: BTreeMap<&str, (Pattern, Vec<&String>)> = BTreeMap::new();
    for (participant, entry) in all {
        if let Ok(Asked::Pattern(pattern)) = Asked::new(&entry.topic) {
            let (_, names) = patterns
                .entry(&entry.topic)
                .or_insert_with(|| (pattern, Vec::new()));
            names.push(participant);
            continue;
        }
        if entry.of != 0 {
            // Counted by its pattern.
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
                topic.publishers.push(participant.clone());
                topic.encodings.push(Encoding(entry.encoding));
            }
            Role::Subscriber => topic.subscribers.push(participant.clone()),
        }
    }
    let mut topics: Vec<Topic> = topics.into_values().collect();
    let mut room = MOST_ENTRIES;
    for topic in &mut topics {
        for (pattern, names) in patterns.values() {
            if room >= names.len() && pattern.matches(&topic.name) {
                room -= names.len();
                topic.subscribers.extend(names.iter().copied().cloned());
            }
        }
        topic.publishers.sort();
        topic.subscribers.sort();
        topic.encodings.sort();
        topic.encodings.dedup();
    }
    topics
}

impl Entry {
    /// Whether it is of a pattern, if what others say of it can be: names of publishers, names or patterns of
    /// subscribers.
    fn is_pattern(&self) -> Option<bool> {
        match Asked::new(&self.topic) {
            Ok(Asked::Name(_)) => Some(false),
            Ok(Asked::Pattern(_)) => (self.role == Role::Subscriber).then_some(true),
            Err(_) => None,
        }
    }

    /// Where it gets what was kept.
    pub(crate) fn inbox(&self) -> u64 {
        match self.inbox {
            0 => self.id,
            inbox => inbox,
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
            let counted: usize = directory.others.values().map(Other::len).sum();
            assert_eq!(counted, directory.entries);
            assert!(directory.others.len() <= MOST_PARTICIPANTS && counted <= MOST_ENTRIES);
        }
    }
    let topics = topics(&directory.snapshot());
    assert!(topics.is_sorted_by(|a, b| a.name < b.name));
    assert_eq!(
        directory.written().count(),
        topics
            .iter()
            .filter(|topic| !topic.publishers.is_empty())
            .count()
    );
    directory.expire(now + LEASE);
    assert_eq!((directory.others.len(), directory.entries), (0, 0));
    assert!(directory.written.0.is_empty());
}

#[cfg(test)]
mod tests;
