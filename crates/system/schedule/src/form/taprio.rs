//! The command line of Linux's taprio: `tc qdisc replace dev eth0 parent root … taprio …`.
//!
//! Grammar and meaning after tc-taprio(8) and iproute2's parser: gate masks are hexadecimal, durations
//! nanoseconds, a cycle without a cycle time is as long as its entries. Lines may be continued with a
//! backslash; `sudo`, a prompt and comments at the beginning are passed over.

mod read;

use std::fmt;
use std::fmt::Write as _;

use super::{Document, Form, FormError, PriorityMap, Written, lost_own};
use crate::check::{Finding, Severity};
use crate::gate::GateMask;
use crate::schedule::GateOperation;

pub(super) use read::{begins, read};

/// What a taprio command line says besides the schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaprioOptions {
    /// `add`, `replace`, `change` or `link`.
    pub command: String,
    /// The parent, as written: `root`, `1:`.
    pub parent: Option<String>,
    /// The handle, as written: `100:`.
    pub handle: Option<String>,
    /// The size table, as written behind `stab`: `overhead 24`.
    pub stab: Option<String>,
    /// The transmit queues of each class.
    pub queues: Vec<QueueRange>,
    /// The clock that the schedule goes by.
    pub clock: Option<ClockId>,
    /// Bit 0: txtime-assist; bit 1: full offload.
    pub flags: Option<u32>,
    /// How long a packet may need from taprio to the device, in txtime-assist mode.
    pub txtime_delay_ns: Option<u32>,
    /// Which classes are preemptible (`fp`); empty where nothing is said.
    pub preemptible: Vec<bool>,
}

impl Default for TaprioOptions {
    /// A software schedule at the root of an interface, by `CLOCK_TAI`.
    fn default() -> Self {
        Self {
            command: "replace".into(),
            parent: Some("root".into()),
            handle: None,
            stab: None,
            queues: Vec::new(),
            clock: Some(ClockId::Tai),
            flags: None,
            txtime_delay_ns: None,
            preemptible: Vec::new(),
        }
    }
}

impl TaprioOptions {
    const TXTIME_ASSIST: u32 = 1;
    const FULL_OFFLOAD: u32 = 2;
    /// What a command line that sets a qdisc may command.
    pub(super) const COMMANDS: [&str; 4] = ["add", "replace", "change", "link"];
}

impl TaprioOptions {
    /// Every option that shapes what the qdisc does, with its name; empty where it is not said.
    pub(crate) fn parameters(&self) -> [(&'static str, String); 7] {
        let option = |value: Option<String>| value.unwrap_or_default();
        let list = |values: Vec<String>| values.join(" ");
        let kind = |preemptible: &bool| if *preemptible { "P" } else { "E" };
        [
            ("parent", option(self.parent.clone())),
            ("stab", option(self.stab.clone())),
            (
                "queues",
                list(self.queues.iter().map(QueueRange::to_string).collect()),
            ),
            ("clockid", option(self.clock.map(|clock| clock.to_string()))),
            (
                "flags",
                option(self.flags.map(|flags| format!("{flags:#x}"))),
            ),
            (
                "txtime-delay",
                option(self.txtime_delay_ns.map(|delay| delay.to_string())),
            ),
            (
                "fp",
                list(
                    self.preemptible
                        .iter()
                        .map(|p| kind(p).to_owned())
                        .collect(),
                ),
            ),
        ]
    }
}

/// A range of transmit queues: `count@offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRange {
    /// How many.
    pub count: u16,
    /// The first one.
    pub offset: u16,
}

impl QueueRange {
    const WANTED: &str = "a range of queues such as 2@1, count and offset";

    fn parse(text: &str) -> Option<Self> {
        let (count, offset) = text.split_once('@')?;
        Some(Self {
            count: count.parse().ok()?,
            offset: offset.parse().ok()?,
        })
    }

    pub(super) fn read(text: &str, at: &str) -> Result<Self, FormError> {
        Self::parse(text).ok_or_else(|| FormError::Value {
            at: at.to_owned(),
            text: text.to_owned(),
            wanted: Self::WANTED,
        })
    }

    fn overlaps(self, other: Self) -> bool {
        let end = |range: Self| u32::from(range.offset) + u32::from(range.count);
        u32::from(self.offset) < end(other) && u32::from(other.offset) < end(self)
    }
}

impl fmt::Display for QueueRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.count, self.offset)
    }
}

/// A clock of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockId {
    /// `CLOCK_TAI`.
    Tai,
    /// `CLOCK_REALTIME`.
    Realtime,
    /// `CLOCK_MONOTONIC`.
    Monotonic,
    /// `CLOCK_BOOTTIME`.
    Boottime,
}

impl ClockId {
    /// With or without `CLOCK_`, in any case, as `tc` takes it.
    pub(super) fn read(text: &str, at: &str) -> Result<Self, FormError> {
        let upper = text.to_ascii_uppercase();
        match upper.strip_prefix("CLOCK_").unwrap_or(&upper) {
            "TAI" => Ok(Self::Tai),
            "REALTIME" => Ok(Self::Realtime),
            "MONOTONIC" => Ok(Self::Monotonic),
            "BOOTTIME" => Ok(Self::Boottime),
            _ => Err(FormError::Unknown {
                at: at.to_owned(),
                text: text.to_owned(),
                known: "CLOCK_TAI, CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME",
            }),
        }
    }
}

impl fmt::Display for ClockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tai => "CLOCK_TAI",
            Self::Realtime => "CLOCK_REALTIME",
            Self::Monotonic => "CLOCK_MONOTONIC",
            Self::Boottime => "CLOCK_BOOTTIME",
        })
    }
}

/// What a document asks for besides its schedule that is not done here, by name, and the remedy.
pub(super) fn not_done(document: &Document) -> Vec<String> {
    let mut refused = Vec::new();
    if let Some(PriorityMap { classes, class_of }) = document.priorities
        && let Some(priority) = class_of.iter().position(|class| *class >= classes)
    {
        refused.push(format!(
            "map: priority {priority} maps to class {}, but num_tc is {classes}: correct the map",
            class_of[priority]
        ));
    }
    let Some(taprio) = &document.taprio else {
        return refused;
    };
    if taprio.preemptible.contains(&true) {
        refused.push(
            "fp: no frame is preempted here: leave it out, or write E for all classes".into(),
        );
    }
    let flags = taprio.flags.unwrap_or(0);
    if flags != 0 {
        refused.push(format!(
            "flags {flags:#x}: Takt's lanes keep the gates, neither the device (0x2) nor etf (0x1): leave it out"
        ));
    }
    if taprio.txtime_delay_ns.is_some_and(|delay| delay != 0) {
        refused.push("txtime-delay: there is no txtime-assist here: leave it out".into());
    }
    if let Some(clock) = taprio.clock.filter(|clock| *clock != ClockId::Tai) {
        refused.push(format!(
            "clockid {clock}: gates go by CLOCK_TAI: convert the base time, and write CLOCK_TAI"
        ));
    }
    if let Some(stab) = &taprio.stab {
        refused.push(format!(
            "stab {stab}: frames are counted as they are on the wire of an Ethernet (24 octets more): leave it out"
        ));
    }
    refused
}

pub(super) fn check(document: &Document) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |severity, code, message: String| {
        findings.push(Finding::new(severity, code, message));
    };
    if let Some(PriorityMap { classes, class_of }) = document.priorities {
        for (priority, class) in class_of.iter().enumerate() {
            if *class >= classes {
                find(
                    Severity::Error,
                    "map-beyond-classes",
                    format!(
                        "priority {priority} maps to class {class}: there are only classes 0 to {}",
                        classes.saturating_sub(1)
                    ),
                );
            }
        }
    }
    let Some(taprio) = &document.taprio else {
        return findings;
    };
    let flags = taprio.flags.unwrap_or(0);
    let assist = flags & TaprioOptions::TXTIME_ASSIST != 0;
    let offload = flags & TaprioOptions::FULL_OFFLOAD != 0;
    if flags & !3 != 0 {
        let message = format!(
            "flags {flags:#x} has bits that taprio does not know: 0x1 is txtime-assist, 0x2 full offload"
        );
        find(Severity::Error, "flags-unknown", message);
    }
    if assist && offload {
        let message = "flags 0x3: txtime-assist and full offload exclude each other".into();
        find(Severity::Error, "flags-exclusive", message);
    }
    match taprio.clock {
        Some(clock) if offload => {
            let message = format!(
                "clockid {clock} with full offload: the device's own clock counts, leave clockid out"
            );
            find(Severity::Error, "clock-with-offload", message);
        }
        Some(clock) if clock != ClockId::Tai => {
            let message =
                format!("clockid {clock}: Takt's schedules go by CLOCK_TAI, whose time differs");
            find(Severity::Warning, "clock-not-tai", message);
        }
        None if !offload => {
            let message =
                "clockid is missing: taprio needs one without full offload, CLOCK_TAI for instance"
                    .into();
            find(Severity::Error, "clock-missing", message);
        }
        _ => {}
    }
    if taprio.txtime_delay_ns.is_some_and(|delay| delay != 0) && !assist {
        let message =
            "txtime-delay has no meaning without txtime-assist (flags 0x1): taprio refuses it"
                .into();
        find(Severity::Error, "txtime-delay-without-assist", message);
    }
    if let Some(PriorityMap { classes, .. }) = document.priorities
        && taprio.queues.len() != usize::from(classes)
        && !taprio.queues.is_empty()
    {
        let message = format!(
            "{} queue ranges for {classes} classes: give one for each",
            taprio.queues.len()
        );
        find(Severity::Error, "queues-count", message);
    }
    for (at, range) in taprio.queues.iter().enumerate() {
        let overlapping = taprio.queues[..at]
            .iter()
            .position(|other| other.overlaps(*range));
        if range.count == 0 {
            let message = format!("class {at} has no queue ({range})");
            find(Severity::Error, "queues-empty", message);
        } else if let Some(other) = overlapping.filter(|_| !assist) {
            let message = format!(
                "the queues of classes {other} and {at} overlap ({range}): only txtime-assist allows it"
            );
            find(Severity::Error, "queues-overlap", message);
        }
    }
    if taprio.preemptible.contains(&true) {
        let message =
            "fp: frame preemption is up to the device; Takt sends every frame whole".into();
        find(Severity::Warning, "preemptible", message);
    }
    if !document.schedule.enabled {
        let message =
            "the gates are disabled, which taprio cannot say: delete the qdisc instead".into();
        find(Severity::Warning, "taprio-disabled", message);
    }
    findings
}

/// A word that a shell leaves as it is and that is no option. A variable may stand for the interface.
fn is_word(text: &str) -> bool {
    let name = text.strip_prefix('$').unwrap_or(text);
    !name.is_empty()
        && !name.starts_with('-')
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._:@-".contains(c))
}

pub(super) fn write(document: &Document) -> Result<Written, FormError> {
    let schedule = &document.schedule;
    let mut lost = Vec::new();
    let default = TaprioOptions::default();
    let taprio = document.taprio.as_ref().unwrap_or(&default);
    let expressible = |what: String| FormError::NotExpressible {
        form: Form::Taprio,
        what,
    };
    if let Some(entry) = schedule
        .entries
        .iter()
        .find(|e| e.operation != GateOperation::Set)
    {
        return Err(expressible(format!(
            "{}: its only command is S (set-gate-states)",
            entry.operation
        )));
    }
    if !TaprioOptions::COMMANDS.contains(&taprio.command.as_str()) {
        return Err(expressible(format!(
            "the command `{}`: one of {} sets a qdisc",
            taprio.command,
            TaprioOptions::COMMANDS.join(", ")
        )));
    }
    let mut words: Vec<&str> = [&taprio.parent, &taprio.handle]
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    if let Some(stab) = &taprio.stab {
        // Overheads may be negative.
        let is_number = |word: &str| word.parse::<i64>().is_ok();
        words.extend(stab.split(' ').filter(|word| !is_number(word)));
        if let Some(word) = stab.split(' ').find(|word| read::ENDS_STAB.contains(word)) {
            return Err(expressible(format!(
                "`{word}` within stab: it would end there"
            )));
        }
    }
    if let Some(strange) = words.into_iter().find(|word| !is_word(word)) {
        return Err(expressible(format!(
            "`{}`: a shell would not leave it as it is, or tc would take it for an option",
            strange.escape_default()
        )));
    }
    if schedule.cycle_time_ns > i64::MAX as u64
        || schedule.cycle_time_extension_ns > i64::MAX as u64
    {
        return Err(expressible("a duration of centuries".into()));
    }
    if !schedule.enabled {
        lost.push("gate-enabled is false: a taprio queueing discipline is always enabled, delete it instead".into());
    }
    if schedule.initial_gates != GateMask::ALL {
        lost.push(format!(
            "the initial gates ({}): taprio opens all gates until the first cycle",
            schedule.initial_gates
        ));
    }
    let interface = match &document.interface {
        Some(name) if is_word(name) => name,
        Some(name) => {
            lost.push(format!(
                "the interface `{}` is no name for Linux: $DEV stands for it",
                name.escape_default()
            ));
            "$DEV"
        }
        None => {
            lost.push("the document names no interface: $DEV stands for it".into());
            "$DEV"
        }
    };
    let mut line = format!("tc qdisc {} dev {interface}", taprio.command);
    // Writing to a string does not fail.
    let _ = (|| {
        match taprio.parent.as_deref() {
            Some("root") | None => write!(line, " parent root")?,
            Some(parent) => write!(line, " parent {parent}")?,
        }
        if let Some(handle) = &taprio.handle {
            write!(line, " handle {handle}")?;
        }
        if let Some(stab) = &taprio.stab {
            write!(line, " stab {stab}")?;
        }
        write!(line, " taprio")?;
        if let Some(PriorityMap { classes, class_of }) = document.priorities {
            write!(line, " \\\n    num_tc {classes} \\\n    map")?;
            for class in class_of {
                write!(line, " {class}")?;
            }
        }
        if !taprio.queues.is_empty() {
            write!(line, " \\\n    queues")?;
            for range in &taprio.queues {
                write!(line, " {range}")?;
            }
        }
        write!(line, " \\\n    base-time {}", schedule.base_time.as_nanos())?;
        for entry in &schedule.entries {
            let gates = entry.gates.bits();
            write!(
                line,
                " \\\n    sched-entry S {gates:02x} {}",
                entry.interval_ns
            )?;
        }
        if schedule.cycle_time_ns != schedule.entries_ns() {
            write!(line, " \\\n    cycle-time {}", schedule.cycle_time_ns)?;
        }
        if schedule.cycle_time_extension_ns != 0 {
            let extension = schedule.cycle_time_extension_ns;
            write!(line, " \\\n    cycle-time-extension {extension}")?;
        }
        if let Some(flags) = taprio.flags {
            write!(line, " \\\n    flags {flags:#x}")?;
        }
        if let Some(delay) = taprio.txtime_delay_ns {
            write!(line, " \\\n    txtime-delay {delay}")?;
        }
        if let Some(last) = schedule.max_sdu.iter().rposition(|octets| *octets != 0) {
            write!(line, " \\\n    max-sdu")?;
            for octets in &schedule.max_sdu[..=last] {
                write!(line, " {octets}")?;
            }
        }
        if !taprio.preemptible.is_empty() {
            write!(line, " \\\n    fp")?;
            for preemptible in &taprio.preemptible {
                write!(line, " {}", if *preemptible { 'P' } else { 'E' })?;
            }
        }
        if let Some(clock) = taprio.clock {
            write!(line, " \\\n    clockid {clock}")?;
        }
        writeln!(line)
    })();
    lost.extend(lost_own(schedule));
    if document.priorities.is_none() {
        lost.push("the document maps no priorities to classes: add num_tc, map and queues".into());
    }
    Ok(Written { text: line, lost })
}
