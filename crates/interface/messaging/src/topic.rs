//! Names of topics, and patterns that many of them match.

use sha2::{Digest, Sha256};
use takt::ChannelId;

/// What stands before a topic's name in the name of its channel: channels and topics of one name do not meet.
const PREFIX: &str = "topic/";

/// A text that names no topic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot use {name:?} as a topic: {problem}; write levels with `/` between them, such as plant/7/temperature"
)]
pub struct BadTopic {
    /// The text, or its beginning.
    pub name: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// The name of a topic: 1 to 200 octets, in levels that `/` separates, none of them empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub text: String,
    /// The channel that carries it: the one that is named `topic/` and the name, see [`ChannelId::named`].
    pub channel: ChannelId,
    /// A second hash of the name, which each message carries: octets 8 to 15, little-endian, of the same SHA-256.
    pub check: u64,
}

/// The longest name, octets.
const LONGEST: usize = 200;

impl Name {
    pub(crate) fn new(text: &str) -> Result<Self, BadTopic> {
        levels(text)?;
        if text.contains('*') {
            return Err(bad(text, "`*` is of patterns, which only subscribers have"));
        }
        let name = format!("{PREFIX}{text}");
        let channel = ChannelId::named(&name).map_err(|error| bad(text, error.problem))?;
        let digest = Sha256::digest(&name);
        let mut second = [0; 8];
        second.copy_from_slice(&digest[8..16]);
        Ok(Self {
            text: text.to_owned(),
            channel,
            check: u64::from_le_bytes(second),
        })
    }
}

/// What a subscriber asks for.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    /// One topic.
    Name(Name),
    /// All that match.
    Pattern(Pattern),
}

impl Asked {
    pub(crate) fn new(text: &str) -> Result<Self, BadTopic> {
        if text.contains('*') {
            Pattern::new(text).map(Self::Pattern)
        } else {
            Name::new(text).map(Self::Name)
        }
    }
}

/// Names with `*` in the place of one level, or `**` in the place of any number of them, none included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(String);

impl Pattern {
    pub(crate) fn new(text: &str) -> Result<Self, BadTopic> {
        levels(text)?;
        if text
            .split('/')
            .any(|level| level.contains('*') && level != "*" && level != "**")
        {
            return Err(bad(text, "`*` and `**` stand for whole levels"));
        }
        Ok(Self(text.to_owned()))
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        let pattern: Vec<&str> = self.0.split('/').collect();
        let name: Vec<&str> = name.split('/').collect();
        let (mut p, mut n) = (0, 0);
        // Where to go on when what follows the last `**` does not fit: it takes one level more.
        let mut again = None;
        while n < name.len() {
            match pattern.get(p) {
                Some(&"**") => {
                    again = Some((p, n));
                    p += 1;
                }
                Some(&level) if level == "*" || level == name[n] => {
                    p += 1;
                    n += 1;
                }
                _ => {
                    let Some((star, taken)) = again else {
                        return false;
                    };
                    again = Some((star, taken + 1));
                    p = star + 1;
                    n = taken + 1;
                }
            }
        }
        pattern[p..].iter().all(|&level| level == "**")
    }
}

fn bad(name: &str, problem: &'static str) -> BadTopic {
    BadTopic {
        name: name.chars().take(40).collect(),
        problem,
    }
}

/// What names and patterns have in common.
fn levels(text: &str) -> Result<(), BadTopic> {
    if text.is_empty() {
        return Err(bad(text, "it is empty"));
    }
    if text.len() > LONGEST {
        return Err(bad(text, "it is longer than 200 octets"));
    }
    if text.chars().any(char::is_control) {
        return Err(bad(text, "it has a control character"));
    }
    if text.split('/').any(str::is_empty) {
        return Err(bad(
            text,
            "it has an empty level: a `/` at an end, or two in a row",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_topic_is_the_channel_of_its_name_with_a_prefix() {
        let name = Name::new("plant/7").expect("a name");
        assert_eq!(Ok(name.channel), ChannelId::named("topic/plant/7"));
        assert_ne!(name.check, Name::new("plant/8").expect("a name").check);
    }

    #[test]
    fn what_names_no_topic_is_refused_by_name() {
        let long = "x".repeat(201);
        for (text, problem) in [
            ("", "it is empty"),
            (&*long, "it is longer than 200 octets"),
            ("a\nb", "it has a control character"),
            (
                "/a",
                "it has an empty level: a `/` at an end, or two in a row",
            ),
            (
                "a//b",
                "it has an empty level: a `/` at an end, or two in a row",
            ),
            ("a/*", "`*` is of patterns, which only subscribers have"),
        ] {
            assert_eq!(Name::new(text).expect_err(text).problem, problem);
        }
        assert!(Asked::new("a/b*").is_err());
        assert!(matches!(Asked::new("a/**/c"), Ok(Asked::Pattern(_))));
        assert!(matches!(Asked::new("a/b"), Ok(Asked::Name(_))));
        assert!(Name::new("42").is_ok(), "a topic may be a number");
    }

    #[test]
    fn patterns_match_whole_levels() {
        for (pattern, name, fits) in [
            ("*", "a", true),
            ("*", "a/b", false),
            ("a/*/c", "a/b/c", true),
            ("a/*/c", "a/b/b/c", false),
            ("**", "a/b/c", true),
            ("a/**", "a", true),
            ("a/**", "b/a", false),
            ("**/c", "a/b/c", true),
            ("**/c", "c", true),
            ("a/**/c/**", "a/b/c/d/c/e", true),
            ("**/b/*", "a/b/b/c", true),
            ("**/b/*", "a/b", false),
        ] {
            let matched = Pattern::new(pattern).expect("a pattern").matches(name);
            assert_eq!(matched, fits, "{pattern} {name}");
        }
    }

    /// The same by the definition.
    fn defined(pattern: &[&str], name: &[&str]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((&"**", rest)) => (0..=name.len()).any(|taken| defined(rest, &name[taken..])),
            Some((level, rest)) => name.split_first().is_some_and(|(first, others)| {
                (*level == "*" || level == first) && defined(rest, others)
            }),
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_defined(
            pattern in prop::collection::vec(prop::sample::select(vec!["a", "b", "*", "**"]), 1..7),
            name in prop::collection::vec(prop::sample::select(vec!["a", "b"]), 1..8),
        ) {
            let matched = Pattern::new(&pattern.join("/")).expect("a pattern").matches(&name.join("/"));
            prop_assert_eq!(matched, defined(&pattern, &name));
        }
    }
}
