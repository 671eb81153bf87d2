//! The forms in which schedules are written: Takt's TOML, the command line of Linux's taprio, IEEE
//! 802.1Qcw YANG in JSON and XML.
//!
//! [`read`] turns text into a [`Document`], [`write`](fn@write) turns one into text; both say what got lost on the
//! way. TOML keeps everything. Reading checks the form and the range of each value; what a schedule
//! means is [`crate::check`]'s. No text makes reading fail other than by a [`FormError`], and the
//! time it takes grows with the length of the text only.

mod json;
mod taprio;
mod time;
mod toml;
mod xml;
mod yang;

use std::fmt;
use std::str::FromStr;

use crate::check::{Finding, readable};
use crate::classes::ClassTable;
use crate::schedule::Schedule;
use crate::selection::Selection;

pub use taprio::{ClockId, QueueRange, TaprioOptions};
pub use time::{duration, write_duration, write_instant};
pub(crate) use toml::Number;

/// Longer texts are refused.
pub const MAX_LENGTH: usize = 1 << 20;

/// A way of writing a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Takt's own.
    Toml,
    /// A `tc qdisc … taprio …` command line.
    Taprio,
    /// `gate-parameter-table` of `ieee802-dot1q-sched`, JSON (RFC 7951).
    YangJson,
    /// The same in XML (RFC 7950).
    YangXml,
}

impl Form {
    /// Every form.
    pub const ALL: [Self; 4] = [Self::Toml, Self::Taprio, Self::YangJson, Self::YangXml];

    /// Guesses the form of a text from how it begins.
    pub fn of(text: &str) -> Self {
        let text = text.trim_start_matches('\u{feff}').trim_start();
        if text.starts_with('{') {
            Self::YangJson
        } else if text.starts_with('<') {
            Self::YangXml
        } else if taprio::begins(text) {
            Self::Taprio
        } else {
            Self::Toml
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Toml => "toml",
            Self::Taprio => "tc",
            Self::YangJson => "json",
            Self::YangXml => "xml",
        })
    }
}

/// No such form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a form of schedules: known are toml, tc, json, xml", shown(.0))]
pub struct UnknownForm(pub String);

impl FromStr for Form {
    type Err = UnknownForm;

    fn from_str(name: &str) -> Result<Self, UnknownForm> {
        Self::ALL
            .into_iter()
            .find(|form| form.to_string() == name)
            .ok_or_else(|| UnknownForm(name.to_owned()))
    }
}

/// Which traffic class serves which priority (IEEE 802.1Q-2022, clause 8.6.6; Linux: `num_tc`, `map`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityMap {
    /// How many classes there are, 1 to 8.
    pub classes: u8,
    /// The class of each priority 0 to 15 (`SO_PRIORITY`; 802.1Q has 0 to 7).
    pub class_of: [u8; 16],
}

/// A schedule with what belongs to it in some form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// The interface it is for.
    pub interface: Option<String>,
    /// The schedule.
    pub schedule: Schedule,
    /// The priorities of its classes.
    pub priorities: Option<PriorityMap>,
    /// What a taprio command line says besides.
    pub taprio: Option<TaprioOptions>,
}

impl Document {
    /// The document's traffic class table for frames with priorities 0 to 7.
    ///
    /// # Errors
    /// What of the document a port of Takt does not do, a sentence each with its remedy: it is refused rather than
    /// left out.
    pub fn installable(&self) -> Result<ClassTable, Vec<String>> {
        let mut refused = taprio::not_done(self);
        let numbers = self
            .priorities
            .map_or(ClassTable::default().numbers(), |map| {
                map.class_of.first_chunk().copied().unwrap_or_default()
            });
        let table = ClassTable::new(numbers);
        if table.is_none() {
            refused.push("map: there are only classes 0 to 7".to_owned());
        }
        match table {
            Some(table) if refused.is_empty() => Ok(table),
            _ => Err(refused),
        }
    }

    /// Mistakes in what a document says besides its schedule, whose own are [`crate::check`]'s.
    pub fn check(&self) -> Vec<Finding> {
        taprio::check(self)
    }
}

impl From<Schedule> for Document {
    fn from(schedule: Schedule) -> Self {
        Self {
            schedule,
            ..Self::default()
        }
    }
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// The document.
    pub document: Document,
    /// What the text says that the document does not keep, a sentence each.
    pub lost: Vec<String>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The text.
    pub text: String,
    /// What the document says that the text does not, a sentence each.
    pub lost: Vec<String>,
}

/// Why a text cannot be read, or a document not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// The text is longer than [`MAX_LENGTH`].
    #[error("the text has {0} octets: a schedule of more than {MAX_LENGTH} is not read")]
    TooLong(usize),
    /// The text breaks the rules of its form.
    #[error("not {form}: {}", shown_lines(message))]
    Syntax {
        /// The form it should have.
        form: Form,
        /// What is wrong and where.
        message: String,
    },
    /// A value is not of its kind, or out of range.
    #[error("{at}: `{}` is not {wanted}", shown(text))]
    Value {
        /// Where.
        at: String,
        /// What stands there.
        text: String,
        /// What should.
        wanted: &'static str,
    },
    /// Something must be there and is not.
    #[error("{at}: {what} is missing")]
    Missing {
        /// Where.
        at: String,
        /// What.
        what: &'static str,
    },
    /// A name that is not known there.
    #[error("{at}: `{}` is not known here: known are {known}", shown(text))]
    Unknown {
        /// Where.
        at: String,
        /// The name.
        text: String,
        /// Which names are.
        known: &'static str,
    },
    /// The same thing twice.
    #[error("{at} is given twice")]
    Duplicate {
        /// What and where.
        at: String,
    },
    /// Two things of which only one may be.
    #[error("{first} and {second} exclude each other: give one of them")]
    Exclusive {
        /// One.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// Windows that may not overlap do.
    #[error(
        "window {first} (classes {first_classes}) and window {second} (classes {second_classes}) overlap from \
         {from} to {to}: move one of them, or set `shared = true` in both"
    )]
    Overlap {
        /// The one that begins first, by its place in the text from 0.
        first: usize,
        /// Its classes.
        first_classes: String,
        /// The other one.
        second: usize,
        /// Its classes.
        second_classes: String,
        /// Where the overlap begins in the cycle.
        from: String,
        /// Where it ends.
        to: String,
    },
    /// A window reaches beyond its cycle.
    #[error("window {window} ends {end} into a cycle of {cycle}: windows lie within their cycle")]
    WindowBeyondCycle {
        /// Which window, from 0.
        window: usize,
        /// Where it ends.
        end: String,
        /// The cycle time.
        cycle: String,
    },
    /// No gate parameter table in an instance document.
    #[error("no gate-parameter-table{}: is this configuration of ieee802-dot1q-sched?", of_interface(.interface))]
    NoTable {
        /// The interface asked for.
        interface: Option<String>,
    },
    /// Several interfaces have a table and none was asked for.
    #[error("the interfaces {} have a gate-parameter-table each: say which one is meant", shown(.0))]
    Ambiguous(String),
    /// The form has no way to say it.
    #[error("{form} cannot say {}", shown_lines(what))]
    NotExpressible {
        /// The form.
        form: Form,
        /// What it would have to say, with the reason.
        what: String,
    },
}

/// What forms other than Takt's own do not say: the clock that is demanded, and how classes choose.
fn lost_own(schedule: &Schedule) -> impl Iterator<Item = String> {
    let clock = schedule.require_sync_ns.map(|within| {
        let within = readable(within);
        format!("the clock that is demanded (require-sync, within {within}): only Takt's own form has it")
    });
    let chosen = schedule
        .selection
        .iter()
        .any(|selection| *selection != Selection::default());
    let selection = chosen.then(|| {
        "how classes choose among their frames (selection): only Takt's own form has it".to_owned()
    });
    clock.into_iter().chain(selection)
}

fn of_interface(interface: &Option<String>) -> String {
    interface.as_ref().map_or_else(String::new, |name| {
        format!(" for the interface {}", shown(name))
    })
}

/// Text from outside as a message may quote it: on one line, not long, and without characters that a
/// terminal would act upon.
pub(crate) fn shown(text: &str) -> String {
    harmless(text, 80)
}

/// The same for a message of several lines, as readers give it.
fn shown_lines(text: &str) -> String {
    const MOST: usize = 8;
    let lines: Vec<String> = text
        .lines()
        .take(MOST)
        .map(|line| harmless(line, 300))
        .collect();
    lines.join("\n")
}

fn harmless(text: &str, most: usize) -> String {
    let mut harmless = String::new();
    for (at, character) in text.chars().enumerate() {
        if at == most {
            harmless.push('…');
            break;
        }
        match character {
            '\'' | '"' | '\\' => harmless.push(character),
            _ => harmless.extend(character.escape_debug()),
        }
    }
    harmless
}

/// Reads a schedule. `interface` chooses among the interfaces of a YANG document; other forms have
/// one schedule and leave it aside.
///
/// # Errors
/// [`FormError`], the first mistake found.
pub fn read(form: Form, text: &str, interface: Option<&str>) -> Result<Parsed, FormError> {
    if text.len() > MAX_LENGTH {
        return Err(FormError::TooLong(text.len()));
    }
    let text = text.trim_start_matches('\u{feff}');
    match form {
        Form::Toml => toml::read(text),
        Form::Taprio => taprio::read(text),
        Form::YangJson => yang::read(&json::tree(text)?, interface),
        Form::YangXml => yang::read(&xml::tree(text)?, interface),
    }
}

/// Writes a schedule.
///
/// # Errors
/// [`FormError::NotExpressible`].
pub fn write(form: Form, document: &Document) -> Result<Written, FormError> {
    match form {
        Form::Toml => Ok(toml::write(document)),
        Form::Taprio => taprio::write(document),
        Form::YangJson => json::write(document),
        Form::YangXml => xml::write(document),
    }
}
