//! Takt's own form: TOML with one entry, or one window, per table.
//!
//! Entries are the gate control list itself. Windows say the same from the classes' point of view;
//! they may not overlap unless they say so, and are turned into entries when read.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use takt_time::{TaiTime, TrafficClass};

use super::taprio::{ClockId, QueueRange, TaprioOptions};
use super::{Document, Form, FormError, Parsed, PriorityMap, Written, time};
use crate::check::readable;
use crate::gate::{GateList, GateMask};
use crate::schedule::{GateEntry, GateOperation, Schedule};
use crate::selection::Selection;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    interface: Option<String>,
    enabled: Option<bool>,
    base_time: Option<Number>,
    cycle_time: Option<Number>,
    cycle_time_extension: Option<Number>,
    initial_gates: Option<Gates>,
    require_sync: Option<Number>,
    #[serde(default)]
    entry: Vec<Entry>,
    #[serde(default)]
    window: Vec<Window>,
    otherwise: Option<Gates>,
    #[serde(default)]
    max_sdu: BTreeMap<String, u32>,
    #[serde(default)]
    selection: BTreeMap<String, Algorithm>,
    priorities: Option<Priorities>,
    tc: Option<Tc>,
}

/// `[selection.6]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Algorithm {
    algorithm: String,
    /// Bits per second.
    idle_slope: Option<u64>,
    /// Bits.
    hi_credit: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Entry {
    gates: Gates,
    interval: Number,
    operation: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Window {
    classes: Gates,
    start: Number,
    length: Number,
    #[serde(default)]
    shared: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Priorities {
    classes: u8,
    map: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Tc {
    command: Option<String>,
    parent: Option<String>,
    handle: Option<String>,
    stab: Option<String>,
    #[serde(default)]
    queues: Vec<String>,
    clock: Option<String>,
    flags: Option<u32>,
    txtime_delay: Option<Number>,
    #[serde(default)]
    preemptible: Vec<bool>,
}

/// Nanoseconds, or text with a unit.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a whole number or a string")]
pub(crate) enum Number {
    Nanos(i64),
    Text(String),
}

/// Class numbers, or `all` or `none`.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a list of class numbers, \"all\" or \"none\""
)]
enum Gates {
    Classes(Vec<u8>),
    Name(String),
}

pub(super) fn read(text: &str) -> Result<Parsed, FormError> {
    let file: File = ::toml::from_str(text).map_err(|error| FormError::Syntax {
        form: Form::Toml,
        message: error.to_string().trim_end().to_owned(),
    })?;
    let cycle_time_ns = file
        .cycle_time
        .map(|number| number.duration("cycle-time"))
        .transpose()?;
    let entries = match (file.entry.is_empty(), file.window.is_empty()) {
        (false, false) => {
            return Err(FormError::Exclusive {
                first: "[[entry]]",
                second: "[[window]]",
            });
        }
        (_, true) if file.otherwise.is_some() => {
            return Err(FormError::Exclusive {
                first: "[[entry]]",
                second: "otherwise",
            });
        }
        (_, true) => entries(file.entry)?,
        (true, false) => {
            let cycle = cycle_time_ns.ok_or(FormError::Missing {
                at: "[[window]]".into(),
                what: "cycle-time",
            })?;
            // The time between windows becomes entries too, each of 4.3 s at most.
            if cycle > GateList::MAX_CYCLE_NS {
                return Err(FormError::Value {
                    at: "cycle-time".into(),
                    text: time::write_duration(cycle),
                    wanted: "a day or less, the longest cycle that windows may have",
                });
            }
            let otherwise = match file.otherwise {
                Some(gates) => gates.mask("otherwise")?,
                None => GateMask::NONE,
            };
            windows(file.window, cycle, otherwise)?
        }
    };
    let mut schedule = Schedule {
        enabled: file.enabled.unwrap_or(true),
        base_time: match file.base_time {
            Some(number) => number.instant("base-time")?,
            None => TaiTime::from_nanos(0),
        },
        cycle_time_extension_ns: match file.cycle_time_extension {
            Some(number) => number.duration("cycle-time-extension")?,
            None => 0,
        },
        initial_gates: match file.initial_gates {
            Some(gates) => gates.mask("initial-gates")?,
            None => GateMask::ALL,
        },
        entries,
        max_sdu: max_sdu(&file.max_sdu)?,
        selection: selection(&file.selection)?,
        cycle_time_ns: 0,
        require_sync_ns: file
            .require_sync
            .map(|number| number.duration("require-sync"))
            .transpose()?,
    };
    schedule.cycle_time_ns = cycle_time_ns.unwrap_or_else(|| schedule.entries_ns());
    Ok(Parsed {
        document: Document {
            interface: file.interface,
            schedule,
            priorities: file.priorities.map(Priorities::map).transpose()?,
            taprio: file.tc.map(Tc::options).transpose()?,
        },
        lost: Vec::new(),
    })
}

fn entries(entries: Vec<Entry>) -> Result<Vec<GateEntry>, FormError> {
    entries
        .into_iter()
        .enumerate()
        .map(|(at, entry)| {
            let interval = entry.interval.duration(&format!("entry {at}, interval"))?;
            Ok(GateEntry {
                operation: match entry.operation {
                    Some(name) => operation(&format!("entry {at}, operation"), &name)?,
                    None => GateOperation::Set,
                },
                gates: entry.gates.mask(&format!("entry {at}, gates"))?,
                interval_ns: u32::try_from(interval).map_err(|_| FormError::Value {
                    at: format!("entry {at}, interval"),
                    text: time::write_duration(interval),
                    wanted: "below 4.294967296 s, the most that an entry lasts",
                })?,
            })
        })
        .collect()
}

fn operation(at: &str, name: &str) -> Result<GateOperation, FormError> {
    [
        GateOperation::Set,
        GateOperation::SetAndHold,
        GateOperation::SetAndRelease,
    ]
    .into_iter()
    .find(|operation| operation.to_string() == name)
    .ok_or_else(|| FormError::Unknown {
        at: at.to_owned(),
        text: name.to_owned(),
        known: "set-gate-states, set-and-hold-mac, set-and-release-mac",
    })
}

fn windows(
    windows: Vec<Window>,
    cycle_ns: u64,
    otherwise: GateMask,
) -> Result<Vec<GateEntry>, FormError> {
    struct Span {
        number: usize,
        start: u64,
        end: u64,
        gates: GateMask,
        shared: bool,
    }
    let mut spans = Vec::with_capacity(windows.len());
    for (number, window) in windows.into_iter().enumerate() {
        let start = window.start.duration(&format!("window {number}, start"))?;
        let length = window
            .length
            .duration(&format!("window {number}, length"))?;
        let end = start.saturating_add(length);
        if end > cycle_ns {
            return Err(FormError::WindowBeyondCycle {
                window: number,
                end: readable(end),
                cycle: readable(cycle_ns),
            });
        }
        spans.push(Span {
            number,
            start,
            end,
            gates: window.classes.mask(&format!("window {number}, classes"))?,
            shared: window.shared,
        });
    }
    spans.retain(|span| span.start < span.end);
    spans.sort_by_key(|span| span.start);
    // The window so far that ends last, and the one of those that share with none.
    let mut last: Option<&Span> = None;
    let mut last_alone: Option<&Span> = None;
    for span in &spans {
        let before = if span.shared { last_alone } else { last };
        if let Some(before) = before.filter(|before| before.end > span.start) {
            return Err(FormError::Overlap {
                first: before.number,
                first_classes: before.gates.to_string(),
                second: span.number,
                second_classes: span.gates.to_string(),
                from: readable(span.start),
                to: readable(span.end.min(before.end)),
            });
        }
        let later = |other: Option<&Span>| other.is_none_or(|other| other.end < span.end);
        if later(last) {
            last = Some(span);
        }
        if !span.shared && later(last_alone) {
            last_alone = Some(span);
        }
    }
    // Every opening and closing in order of time, and how many windows hold each class open.
    let mut edges: Vec<(u64, bool, GateMask)> = spans
        .iter()
        .flat_map(|span| {
            [
                (span.start, true, span.gates),
                (span.end, false, span.gates),
            ]
        })
        .collect();
    edges.push((cycle_ns, false, GateMask::NONE));
    edges.sort_unstable_by_key(|(at, _, _)| *at);
    let mut holding = [0u32; TrafficClass::COUNT];
    let mut entries: Vec<GateEntry> = Vec::new();
    let mut from = 0;
    for (at, opens, gates) in edges {
        if at > from {
            let open: GateMask = TrafficClass::all()
                .filter(|class| holding[usize::from(class.number())] > 0)
                .collect();
            let gates = if open == GateMask::NONE {
                otherwise
            } else {
                open
            };
            push(&mut entries, gates, at - from);
            from = at;
        }
        for class in gates.classes() {
            let holding = &mut holding[usize::from(class.number())];
            // In whatever order edges of one instant come, the sum is right when it is looked at.
            *holding = match opens {
                true => holding.wrapping_add(1),
                false => holding.wrapping_sub(1),
            };
        }
    }
    Ok(entries)
}

/// Appends time with these gates: to the last entry if it has the same, in as many as it takes.
fn push(entries: &mut Vec<GateEntry>, gates: GateMask, mut length_ns: u64) {
    if let Some(last) = entries.last_mut().filter(|last| last.gates == gates) {
        let more = length_ns.min(u64::from(u32::MAX - last.interval_ns));
        last.interval_ns += more as u32;
        length_ns -= more;
    }
    while length_ns > 0 {
        let interval_ns = u32::try_from(length_ns).unwrap_or(u32::MAX);
        entries.push(GateEntry::new(gates, interval_ns));
        length_ns -= u64::from(interval_ns);
    }
}

fn max_sdu(table: &BTreeMap<String, u32>) -> Result<[u32; 8], FormError> {
    let mut max_sdu = [0; 8];
    for (class, octets) in table {
        // Digits in one way only, so that no class is there twice.
        let number = Some(class)
            .filter(|class| class.len() == 1)
            .and_then(|class| class.parse().ok())
            .and_then(TrafficClass::new)
            .ok_or_else(|| FormError::Value {
                at: "max-sdu".into(),
                text: class.clone(),
                wanted: CLASS,
            })?;
        max_sdu[usize::from(number.number())] = *octets;
    }
    Ok(max_sdu)
}

fn selection(table: &BTreeMap<String, Algorithm>) -> Result<[Selection; 8], FormError> {
    let mut selection = [Selection::default(); 8];
    for (class, written) in table {
        let at = format!("selection, {class}");
        let number = Some(class)
            .filter(|class| class.len() == 1)
            .and_then(|class| TrafficClass::new(class.parse().ok()?))
            .ok_or_else(|| FormError::Value {
                at: "selection".into(),
                text: class.clone(),
                wanted: CLASS,
            })?;
        let unshaped = |selection| match (written.idle_slope, written.hi_credit) {
            (None, None) => Ok(selection),
            _ => Err(FormError::Value {
                at: at.clone(),
                text: written.algorithm.clone(),
                wanted: "credit-based, the only algorithm with idle-slope and hi-credit",
            }),
        };
        selection[usize::from(number.number())] = match written.algorithm.as_str() {
            "launch-time" => unshaped(Selection::LaunchTime)?,
            "first-come" => unshaped(Selection::FirstCome)?,
            "credit-based" => Selection::CreditBased {
                idle_slope_bps: written.idle_slope.ok_or(FormError::Missing {
                    at,
                    what: "idle-slope, in bits per second",
                })?,
                high_credit_bits: written.hi_credit.unwrap_or(0),
            },
            other => {
                return Err(FormError::Unknown {
                    at,
                    text: other.to_owned(),
                    known: "launch-time, first-come, credit-based",
                });
            }
        };
    }
    Ok(selection)
}

const CLASS: &str = "a traffic class, 0 to 7";

impl Number {
    pub(crate) fn duration(&self, at: &str) -> Result<u64, FormError> {
        match self {
            Self::Nanos(nanos) => u64::try_from(*nanos).ok(),
            Self::Text(text) => time::duration(text),
        }
        .ok_or_else(|| self.error(at, time::DURATION))
    }

    fn instant(&self, at: &str) -> Result<TaiTime, FormError> {
        match self {
            Self::Nanos(nanos) => Some(TaiTime::from_nanos(*nanos)),
            Self::Text(text) => time::instant(text),
        }
        .ok_or_else(|| self.error(at, time::INSTANT))
    }

    fn error(&self, at: &str, wanted: &'static str) -> FormError {
        FormError::Value {
            at: at.to_owned(),
            text: match self {
                Self::Nanos(nanos) => nanos.to_string(),
                Self::Text(text) => text.clone(),
            },
            wanted,
        }
    }
}

impl Gates {
    fn mask(&self, at: &str) -> Result<GateMask, FormError> {
        let value = |text: String, wanted| FormError::Value {
            at: at.to_owned(),
            text,
            wanted,
        };
        match self {
            Self::Name(name) if name == "all" => Ok(GateMask::ALL),
            Self::Name(name) if name == "none" => Ok(GateMask::NONE),
            Self::Name(name) => Err(value(
                name.clone(),
                "a list of class numbers, \"all\" or \"none\"",
            )),
            Self::Classes(classes) => classes
                .iter()
                .map(|class| {
                    TrafficClass::new(*class).ok_or_else(|| value(class.to_string(), CLASS))
                })
                .collect(),
        }
    }
}

impl Priorities {
    fn map(self) -> Result<PriorityMap, FormError> {
        let value = |at: &str, text: String, wanted| FormError::Value {
            at: at.to_owned(),
            text,
            wanted,
        };
        if !(1..=8).contains(&self.classes) {
            let text = self.classes.to_string();
            return Err(value(
                "priorities, classes",
                text,
                "a number of classes, 1 to 8",
            ));
        }
        if self.map.len() > 16 {
            let text = self.map.len().to_string();
            return Err(value("priorities, map", text, "at most 16 priorities"));
        }
        let mut class_of = [0; 16];
        for (priority, class) in self.map.into_iter().enumerate() {
            class_of[priority] = class;
        }
        let classes = self.classes;
        Ok(PriorityMap { classes, class_of })
    }
}

impl Tc {
    fn options(self) -> Result<TaprioOptions, FormError> {
        let command = self.command.unwrap_or_else(|| "replace".into());
        if !TaprioOptions::COMMANDS.contains(&command.as_str()) {
            return Err(FormError::Unknown {
                at: "tc, command".into(),
                text: command,
                known: "add, replace, change, link",
            });
        }
        if self.preemptible.len() > 16 {
            return Err(FormError::Value {
                at: "tc, preemptible".into(),
                text: self.preemptible.len().to_string(),
                wanted: "at most 16 classes",
            });
        }
        Ok(TaprioOptions {
            command,
            parent: self.parent,
            handle: self.handle,
            stab: self.stab,
            queues: self
                .queues
                .iter()
                .map(|text| QueueRange::read(text, "tc, queues"))
                .collect::<Result<_, _>>()?,
            clock: self
                .clock
                .map(|name| ClockId::read(&name, "tc, clock"))
                .transpose()?,
            flags: self.flags,
            txtime_delay_ns: self
                .txtime_delay
                .map(|delay| {
                    let nanos = delay.duration("tc, txtime-delay")?;
                    u32::try_from(nanos).map_err(|_| delay.error("tc, txtime-delay", "below 4.3 s"))
                })
                .transpose()?,
            preemptible: self.preemptible,
        })
    }
}

pub(super) fn write(document: &Document) -> Written {
    let schedule = &document.schedule;
    let mut text = String::from("# A Takt schedule: times are TAI, durations have a unit.\n");
    // Writing to a string does not fail.
    let _ = (|| {
        if let Some(interface) = &document.interface {
            writeln!(text, "interface = {}", quoted(interface))?;
        }
        if !schedule.enabled {
            writeln!(text, "enabled = false")?;
        }
        match time::write_instant(schedule.base_time) {
            Some(instant) => writeln!(text, "base-time = \"{instant}\"")?,
            None => writeln!(text, "base-time = {}", schedule.base_time.as_nanos())?,
        }
        let duration = time::write_duration;
        writeln!(
            text,
            "cycle-time = \"{}\"",
            duration(schedule.cycle_time_ns)
        )?;
        if schedule.cycle_time_extension_ns != 0 {
            let extension = duration(schedule.cycle_time_extension_ns);
            writeln!(text, "cycle-time-extension = \"{extension}\"")?;
        }
        if schedule.initial_gates != GateMask::ALL {
            writeln!(text, "initial-gates = {}", gates(schedule.initial_gates))?;
        }
        if let Some(within) = schedule.require_sync_ns {
            writeln!(text, "require-sync = \"{}\"", duration(within))?;
        }
        for entry in &schedule.entries {
            writeln!(text, "\n[[entry]]\ngates = {}", gates(entry.gates))?;
            writeln!(
                text,
                "interval = \"{}\"",
                duration(entry.interval_ns.into())
            )?;
            if entry.operation != GateOperation::Set {
                writeln!(text, "operation = \"{}\"", entry.operation)?;
            }
        }
        if schedule.max_sdu != [0; 8] {
            writeln!(
                text,
                "\n# Octets behind the MAC header, per class.\n[max-sdu]"
            )?;
            for (class, octets) in schedule.max_sdu.iter().enumerate().rev() {
                if *octets != 0 {
                    writeln!(text, "{class} = {octets}")?;
                }
            }
        }
        for (class, selection) in schedule.selection.iter().enumerate().rev() {
            if *selection == Selection::default() {
                continue;
            }
            writeln!(text, "\n[selection.{class}]\nalgorithm = \"{selection}\"")?;
            if let Selection::CreditBased {
                idle_slope_bps,
                high_credit_bits,
            } = selection
            {
                writeln!(text, "idle-slope = {idle_slope_bps}")?;
                if *high_credit_bits != 0 {
                    writeln!(text, "hi-credit = {high_credit_bits}")?;
                }
            }
        }
        if let Some(PriorityMap { classes, class_of }) = document.priorities {
            writeln!(text, "\n# The class of each priority from 0.\n[priorities]")?;
            writeln!(text, "classes = {classes}\nmap = {class_of:?}")?;
        }
        if let Some(taprio) = &document.taprio {
            write_tc(&mut text, taprio)?;
        }
        Ok::<_, std::fmt::Error>(())
    })();
    Written {
        text,
        lost: Vec::new(),
    }
}

fn write_tc(text: &mut String, taprio: &TaprioOptions) -> std::fmt::Result {
    writeln!(text, "\n# What a taprio command line says besides.\n[tc]")?;
    writeln!(text, "command = {}", quoted(&taprio.command))?;
    for (name, value) in [
        ("parent", &taprio.parent),
        ("handle", &taprio.handle),
        ("stab", &taprio.stab),
    ] {
        if let Some(value) = value {
            writeln!(text, "{name} = {}", quoted(value))?;
        }
    }
    if !taprio.queues.is_empty() {
        let queues: Vec<String> = taprio.queues.iter().map(|q| format!("\"{q}\"")).collect();
        writeln!(text, "queues = [{}]", queues.join(", "))?;
    }
    if let Some(clock) = taprio.clock {
        writeln!(text, "clock = \"{clock}\"")?;
    }
    if let Some(flags) = taprio.flags {
        writeln!(text, "flags = {flags}")?;
    }
    if let Some(delay) = taprio.txtime_delay_ns {
        writeln!(
            text,
            "txtime-delay = \"{}\"",
            time::write_duration(delay.into())
        )?;
    }
    if !taprio.preemptible.is_empty() {
        writeln!(text, "preemptible = {:?}", taprio.preemptible)?;
    }
    Ok(())
}

fn gates(gates: GateMask) -> String {
    match gates {
        GateMask::ALL | GateMask::NONE => format!("\"{gates}\""),
        _ => format!("[{}]", gates.to_string().replace(',', ", ")),
    }
}

/// A basic string (TOML 1.0).
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                // Writing to a string does not fail.
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
