//! A control message: how it is written, and which of those that come are taken.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use takt_balance_xdp::beat::{Key, TAG_LENGTH, Tag};
use takt_health::key::FlowKey;
use takt_health::table::Event;

/// How far the clocks of who sends and who takes may be apart, with the time on the way.
pub const HOLDS_NS: i64 = 10_000_000_000;
/// Messages that are remembered, all of the last seconds: more in that time are refused.
const REMEMBERED: usize = 1 << 16;

#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    event: &'a Event,
    sent_ns: i64,
}

/// What is of interest in a message; there is more.
#[derive(Debug, PartialEq, Deserialize)]
struct Message {
    sent_ns: i64,
    event: String,
    flow: String,
    rule: String,
    begins: bool,
}

/// What a rule elsewhere has told: it begins for a flow.
#[derive(Debug, PartialEq)]
pub struct Begun {
    pub flow: FlowKey,
    pub rule: String,
    pub sent_ns: i64,
}

/// Why a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("its tag is not by this key: give `takt monitor` the same file with --control-key")]
    Tag,
    #[error("it is no message of a rule, of this version")]
    Form,
    #[error(
        "it was sent more than 10 s ago, or as much later than now: the clocks of both hosts must agree within 10 s"
    )]
    Time,
    #[error("it was sent before this began")]
    Before,
    #[error("it has come before")]
    Again,
    #[error("more than 65,536 have come within 10 s")]
    TooMany,
    #[error("its flow is of no service that is balanced here")]
    Flow,
}

/// A message as it is sent.
pub fn write(event: &Event, sent_ns: i64, key: Option<&Key>) -> serde_json::Result<Vec<u8>> {
    let mut message = serde_json::to_vec(&Written { event, sent_ns })?;
    if let Some(key) = key {
        message.push(b'\n');
        let tag = u128::from_be_bytes(key.tag(&message));
        message.extend(format!("{tag:032x}").into_bytes());
    }
    Ok(message)
}

/// What of messages is taken.
pub struct Reader {
    key: Key,
    /// What was sent before may have been taken by one that ran then.
    began_ns: i64,
    /// Those that still hold, by their tags: when they were sent.
    taken: HashMap<Tag, i64>,
}

impl Reader {
    /// Takes messages of this key that are sent from now on.
    pub fn new(key: Key, began_ns: i64) -> Self {
        Self {
            key,
            began_ns,
            taken: HashMap::new(),
        }
    }

    /// `None`: a rule has ended.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn read(&mut self, bytes: &[u8], now_ns: i64) -> Result<Option<Begun>, Refused> {
        let digits = bytes.len().checked_sub(2 * TAG_LENGTH);
        let (signed, digits) = digits.map_or((bytes, &[][..]), |at| bytes.split_at(at));
        let tag = std::str::from_utf8(digits).ok();
        let tag = tag.filter(|tag| tag.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let tag = tag.and_then(|tag| u128::from_str_radix(tag, 16).ok());
        let tag = tag.ok_or(Refused::Tag)?.to_be_bytes();
        if !self.key.proves(signed, &tag) {
            return Err(Refused::Tag);
        }
        let message: Message = serde_json::from_slice(signed).map_err(|_| Refused::Form)?;
        let holds = |sent_ns: i64| now_ns.saturating_sub(sent_ns).saturating_abs() <= HOLDS_NS;
        if message.event != "rule" {
            return Err(Refused::Form);
        }
        if !holds(message.sent_ns) {
            return Err(Refused::Time);
        }
        if message.sent_ns < self.began_ns {
            return Err(Refused::Before);
        }
        if self.taken.len() >= REMEMBERED {
            self.taken.retain(|_, sent_ns| holds(*sent_ns));
        }
        if self.taken.contains_key(&tag) {
            return Err(Refused::Again);
        }
        if self.taken.len() >= REMEMBERED {
            return Err(Refused::TooMany);
        }
        self.taken.insert(tag, message.sent_ns);
        if !message.begins {
            return Ok(None);
        }
        Ok(Some(Begun {
            flow: message.flow.parse().map_err(|_| Refused::Flow)?,
            rule: message.rule,
            sent_ns: message.sent_ns,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use takt_health::table::What;

    const NOW: i64 = 1_700_000_000_000_000_000;

    fn key(byte: u8) -> Key {
        Key::new(&[byte; 16]).expect("a key")
    }

    fn reader() -> Reader {
        Reader::new(key(1), NOW - 1)
    }

    fn event(begins: bool) -> Event {
        let key = FlowKey::v4(17, [10, 0, 0, 9], [10, 0, 0, 1], [7, 5004]);
        Event {
            at_ns: 3,
            flow: key.to_string(),
            key,
            spec: Some("camera".into()),
            what: What::Rule {
                rule: "late".into(),
                actions: Vec::new(),
                begins,
            },
        }
    }

    #[test]
    fn a_message_is_read_as_it_was_written_once_and_by_its_key_alone() {
        let bytes = write(&event(true), NOW, Some(&key(1))).expect("JSON");
        let mut reader = reader();
        for at in 0..bytes.len() {
            let mut bent = bytes.clone();
            bent[at] ^= 1;
            assert_eq!(reader.read(&bent, NOW), Err(Refused::Tag), "byte {at}");
        }
        for length in 0..bytes.len() {
            assert_eq!(reader.read(&bytes[..length], NOW), Err(Refused::Tag));
        }
        let plain = write(&event(true), NOW, None).expect("JSON");
        assert_eq!(reader.read(&plain, NOW), Err(Refused::Tag));
        let other = write(&event(true), NOW, Some(&key(2))).expect("JSON");
        assert_eq!(reader.read(&other, NOW), Err(Refused::Tag));
        let begun = Begun {
            flow: event(true).key,
            rule: "late".into(),
            sent_ns: NOW,
        };
        assert_eq!(reader.read(&bytes, NOW + 5), Ok(Some(begun)));
        assert_eq!(reader.read(&bytes, NOW + 6), Err(Refused::Again));
        let ended = write(&event(false), NOW + 1, Some(&key(1))).expect("JSON");
        assert_eq!(reader.read(&ended, NOW + 7), Ok(None));
    }

    #[test]
    fn a_message_holds_for_some_seconds_by_either_clock() {
        let bytes = write(&event(true), NOW, Some(&key(1))).expect("JSON");
        for (now_ns, holds) in [
            (NOW - HOLDS_NS - 1, false),
            (NOW - HOLDS_NS, true),
            (NOW + HOLDS_NS, true),
            (NOW + HOLDS_NS + 1, false),
            (i64::MIN, false),
        ] {
            let read = reader().read(&bytes, now_ns);
            assert_eq!(read.is_ok(), holds, "{read:?}");
        }
        let mut late = reader();
        late.began_ns = NOW + 1;
        assert_eq!(late.read(&bytes, NOW + 2), Err(Refused::Before));
    }

    #[test]
    fn what_is_remembered_has_a_bound_and_is_forgotten_when_it_holds_no_more() {
        let mut reader = reader();
        for number in 0..REMEMBERED as u128 {
            reader.taken.insert(number.to_be_bytes(), NOW);
        }
        let bytes = write(&event(true), NOW + HOLDS_NS, Some(&key(1))).expect("JSON");
        assert_eq!(reader.read(&bytes, NOW + HOLDS_NS), Err(Refused::TooMany));
        assert!(reader.read(&bytes, NOW + HOLDS_NS + 1).is_ok());
        assert_eq!(reader.taken.len(), 1);
    }

    #[test]
    fn what_is_signed_and_no_message_or_of_no_flow_is_refused_by_name() {
        let key = key(1);
        let signed = |text: &str| {
            let tag = u128::from_be_bytes(key.tag(text.as_bytes()));
            format!("{text}{tag:032x}").into_bytes()
        };
        let mut reader = reader();
        for text in ["", "{}\n", "[1]\n", "nothing"] {
            assert_eq!(
                reader.read(&signed(text), NOW),
                Err(Refused::Form),
                "{text}"
            );
        }
        let level = format!(
            "{{\"event\":\"level\",\"flow\":\"\",\"rule\":\"\",\"begins\":true,\"sent_ns\":{NOW}}}\n"
        );
        assert_eq!(reader.read(&signed(&level), NOW), Err(Refused::Form));
        let channel = Event {
            flow: "channel 7 class 1 lane 1 source 1".into(),
            ..event(true)
        };
        let bytes = write(&channel, NOW, Some(&key)).expect("JSON");
        assert_eq!(reader.read(&bytes, NOW), Err(Refused::Flow));
    }
}
