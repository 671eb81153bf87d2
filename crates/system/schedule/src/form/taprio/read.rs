//! Reads a taprio command line, word by word.

use takt_time::TaiTime;

use super::{ClockId, QueueRange, TaprioOptions};
use crate::form::{Document, Form, FormError, Parsed, PriorityMap};
use crate::gate::GateMask;
use crate::schedule::{GateEntry, GateOperation, Schedule};

const PARAMETERS: &str = "num_tc, map, queues, base-time, sched-entry, cycle-time, cycle-time-extension, \
                          clockid, flags, txtime-delay, max-sdu, fp";

/// What ends the values of `stab`.
pub(super) const ENDS_STAB: [&str; 5] = ["taprio", "dev", "parent", "handle", "root"];

/// Words of the line, with their number from 1 for messages.
struct Words<'a> {
    words: Vec<&'a str>,
    next: usize,
}

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.next).copied()
    }

    fn next(&mut self) -> Option<&'a str> {
        let word = self.peek()?;
        self.next += 1;
        Some(word)
    }

    /// The place of the word read last.
    fn at(&self, what: &str) -> String {
        format!("word {} ({what})", self.next)
    }

    /// The value that belongs to a parameter.
    fn value(&mut self, parameter: &str) -> Result<&'a str, FormError> {
        self.next().ok_or_else(|| FormError::Missing {
            at: format!("behind {parameter}"),
            what: "its value",
        })
    }

    fn number<N>(
        &mut self,
        parameter: &str,
        parse: impl Fn(&str) -> Option<N>,
        wanted: &'static str,
    ) -> Result<N, FormError> {
        let text = self.value(parameter)?;
        parse(text).ok_or_else(|| FormError::Value {
            at: self.at(parameter),
            text: text.to_owned(),
            wanted,
        })
    }

    /// Values up to the next parameter, at least one and at most 16 as in the kernel.
    fn list<V>(
        &mut self,
        parameter: &str,
        parse: impl Fn(&str) -> Option<V>,
        wanted: &'static str,
    ) -> Result<Vec<V>, FormError> {
        let mut values = vec![self.number(parameter, &parse, wanted)?];
        while let Some(text) = self.peek() {
            let Some(value) = parse(text).filter(|_| values.len() < 16) else {
                if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
                    self.next += 1;
                    return Err(FormError::Value {
                        at: self.at(parameter),
                        text: text.to_owned(),
                        wanted,
                    });
                }
                break;
            };
            values.push(value);
            self.next += 1;
        }
        Ok(values)
    }
}

pub(in crate::form) fn read(text: &str) -> Result<Parsed, FormError> {
    let words = text
        .lines()
        .filter(|line| !is_comment(line))
        .flat_map(str::split_whitespace)
        .map(|word| word.strip_suffix('\\').unwrap_or(word))
        .filter(|word| !word.is_empty())
        .collect();
    let mut words = Words { words, next: 0 };
    let mut document = Document::default();
    let mut taprio = TaprioOptions {
        parent: None,
        clock: None,
        ..TaprioOptions::default()
    };
    command(&mut words, &mut document, &mut taprio)?;
    let mut read = Parameters::default();
    while let Some(parameter) = words.next() {
        read.parameter(parameter, &mut words, &mut taprio)?;
    }
    read.finish(&mut document)?;
    document.taprio = Some(taprio);
    Ok(Parsed {
        document,
        lost: Vec::new(),
    })
}

/// Whether a text begins with a command, whatever comments are before it.
pub(in crate::form) fn begins(text: &str) -> bool {
    text.lines()
        .find(|line| !line.trim().is_empty() && !is_comment(line))
        .is_some_and(is_command)
}

/// A line that begins with `#` is a comment, unless that is the prompt before a command.
fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#') && !is_command(line)
}

fn is_command(line: &str) -> bool {
    let mut words = line
        .trim_start()
        .trim_start_matches(['#', '$'])
        .split_whitespace()
        .skip_while(|word| *word == "sudo");
    match words.next() {
        Some("qdisc" | "taprio") => true,
        Some(tc) => is_tc(tc) && words.next() == Some("qdisc"),
        None => false,
    }
}

fn is_tc(word: &str) -> bool {
    word == "tc" || word.ends_with("/tc")
}

/// Everything up to and with the word `taprio`.
fn command(
    words: &mut Words<'_>,
    document: &mut Document,
    taprio: &mut TaprioOptions,
) -> Result<(), FormError> {
    while let Some(word) = words.peek() {
        if !is_tc(word) && !matches!(word, "#" | "$" | "sudo" | "qdisc") {
            break;
        }
        words.next += 1;
    }
    while let Some(word) = words.next() {
        match word {
            "taprio" => return Ok(()),
            "add" | "replace" | "change" | "link" => taprio.command = word.to_owned(),
            "root" => taprio.parent = Some("root".into()),
            "dev" => document.interface = Some(words.value("dev")?.to_owned()),
            "parent" => taprio.parent = Some(words.value("parent")?.to_owned()),
            "handle" => taprio.handle = Some(words.value("handle")?.to_owned()),
            "stab" => {
                let mut stab = Vec::new();
                while let Some(word) = words.peek().filter(|word| !ENDS_STAB.contains(word)) {
                    stab.push(word);
                    words.next += 1;
                }
                if stab.is_empty() {
                    return Err(FormError::Missing {
                        at: "behind stab".into(),
                        what: "its value",
                    });
                }
                taprio.stab = Some(stab.join(" "));
            }
            _ => {
                return Err(FormError::Unknown {
                    at: words.at("tc qdisc"),
                    text: word.to_owned(),
                    known: "add, replace, change, link, dev, parent, root, handle, stab, taprio",
                });
            }
        }
    }
    Err(FormError::Syntax {
        form: Form::Taprio,
        message:
            "the word `taprio` is missing: expected `tc qdisc replace dev DEV parent root taprio …`"
                .into(),
    })
}

#[derive(Default)]
struct Parameters {
    classes: Option<u8>,
    map: Option<Vec<u8>>,
    base_time: Option<i64>,
    cycle_time: Option<u64>,
    extension: Option<u64>,
    max_sdu: Option<Vec<u32>>,
    entries: Vec<GateEntry>,
}

impl Parameters {
    fn parameter(
        &mut self,
        name: &str,
        words: &mut Words<'_>,
        taprio: &mut TaprioOptions,
    ) -> Result<(), FormError> {
        let at = words.at(name);
        match name {
            "num_tc" => {
                let number = |text: &str| text.parse().ok().filter(|n| (1..=8).contains(n));
                let wanted =
                    "a number of traffic classes, 1 to 8 (the kernel's 16 are too many for 802.1Q)";
                once(&mut self.classes, words.number(name, number, wanted)?, &at)
            }
            "map" => {
                let wanted = "the class of a priority, for at most 16 of them";
                let map = words.list(name, |text| text.parse().ok(), wanted)?;
                once(&mut self.map, map, &at)
            }
            "queues" => {
                if !taprio.queues.is_empty() {
                    return Err(FormError::Duplicate { at });
                }
                taprio.queues = words.list(name, QueueRange::parse, QueueRange::WANTED)?;
                Ok(())
            }
            "base-time" => {
                let time =
                    words.number(name, |text| text.parse().ok(), "nanoseconds since 1970")?;
                once(&mut self.base_time, time, &at)
            }
            "cycle-time" => {
                let time = words.number(name, decimal, "a duration in nanoseconds")?;
                once(&mut self.cycle_time, time, &at)
            }
            "cycle-time-extension" => {
                let time = words.number(name, decimal, "a duration in nanoseconds")?;
                once(&mut self.extension, time, &at)
            }
            "clockid" => {
                let text = words.value(name)?;
                let clock = ClockId::read(text, &words.at(name))?;
                once(&mut taprio.clock, clock, &at)
            }
            "flags" => {
                let flags = words.number(name, any_base, "a number of 32 bits")?;
                once(&mut taprio.flags, flags, &at)
            }
            "txtime-delay" => {
                let delay =
                    words.number(name, any_base, "a duration in nanoseconds, below 4.3 s")?;
                once(&mut taprio.txtime_delay_ns, delay, &at)
            }
            "max-sdu" => {
                let wanted = "a number of octets, for at most 16 classes";
                let max_sdu = words.list(name, |text| text.parse().ok(), wanted)?;
                once(&mut self.max_sdu, max_sdu, &at)
            }
            "fp" => {
                if !taprio.preemptible.is_empty() {
                    return Err(FormError::Duplicate { at });
                }
                let kind = |text: &str| match text {
                    "E" => Some(false),
                    "P" => Some(true),
                    _ => None,
                };
                let wanted = "E (express) or P (preemptible), for at most 16 classes";
                taprio.preemptible = words.list(name, kind, wanted)?;
                Ok(())
            }
            "sched-entry" => {
                self.entries.push(entry(words)?);
                Ok(())
            }
            _ => Err(FormError::Unknown {
                at: words.at("taprio"),
                text: name.to_owned(),
                known: PARAMETERS,
            }),
        }
    }

    fn finish(self, document: &mut Document) -> Result<(), FormError> {
        document.priorities = match (self.classes, self.map) {
            (None, None) => None,
            (Some(classes), map) => {
                let mut class_of = [0; 16];
                for (priority, class) in map.unwrap_or_default().into_iter().enumerate() {
                    class_of[priority] = class;
                }
                Some(PriorityMap { classes, class_of })
            }
            (None, Some(_)) => {
                return Err(FormError::Missing {
                    at: "map".into(),
                    what: "num_tc",
                });
            }
        };
        let mut max_sdu = [0; 8];
        for (class, octets) in self.max_sdu.unwrap_or_default().into_iter().enumerate() {
            match max_sdu.get_mut(class) {
                Some(limit) => *limit = octets,
                None if octets == 0 => {}
                None => {
                    return Err(FormError::Value {
                        at: format!("max-sdu of class {class}"),
                        text: octets.to_string(),
                        wanted: "for one of the classes 0 to 7, which are all that there are",
                    });
                }
            }
        }
        let schedule = &mut document.schedule;
        *schedule = Schedule {
            base_time: TaiTime::from_nanos(self.base_time.unwrap_or(0)),
            cycle_time_extension_ns: self.extension.unwrap_or(0),
            entries: self.entries,
            max_sdu,
            ..Schedule::default()
        };
        schedule.cycle_time_ns = self
            .cycle_time
            .filter(|cycle| *cycle != 0)
            .unwrap_or_else(|| schedule.entries_ns());
        Ok(())
    }
}

fn entry(words: &mut Words<'_>) -> Result<GateEntry, FormError> {
    const NAME: &str = "sched-entry";
    let command = words.value(NAME)?;
    // iproute2 takes S only; the kernel's interface and other tools know the others.
    let operation = match command {
        "S" => GateOperation::Set,
        "H" => GateOperation::SetAndHold,
        "R" => GateOperation::SetAndRelease,
        _ => {
            return Err(FormError::Unknown {
                at: words.at(NAME),
                text: command.to_owned(),
                known: "S (set gates), H (set and hold), R (set and release)",
            });
        }
    };
    let gates = words.number(
        NAME,
        |text| {
            let digits = text.strip_prefix("0x").or(text.strip_prefix("0X"));
            u8::from_str_radix(digits.unwrap_or(text), 16).ok()
        },
        "a gate mask for the classes 7 to 0, hexadecimal up to ff",
    )?;
    let interval_ns = words.number(NAME, any_base, "an interval in nanoseconds, below 4.3 s")?;
    Ok(GateEntry {
        operation,
        gates: GateMask::from_bits(gates),
        interval_ns,
    })
}

fn once<V>(place: &mut Option<V>, value: V, at: &str) -> Result<(), FormError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(FormError::Duplicate { at: at.to_owned() }),
    }
}

/// Nanoseconds of a signed 64-bit attribute that may not be negative.
fn decimal(text: &str) -> Option<u64> {
    let nanos: i64 = text.parse().ok()?;
    u64::try_from(nanos).ok()
}

/// As C reads numbers: 0x… hexadecimal, 0… octal, decimal.
fn any_base(text: &str) -> Option<u32> {
    if let Some(digits) = text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        u32::from_str_radix(digits, 16).ok()
    } else if text.len() > 1 && text.starts_with('0') {
        u32::from_str_radix(&text[1..], 8).ok()
    } else {
        text.parse().ok()
    }
}
