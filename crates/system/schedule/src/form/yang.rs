//! `gate-parameter-table` of `ieee802-dot1q-sched` (IEEE 802.1Qcw-2023), whatever its encoding.
//!
//! An encoding becomes a tree of named nodes; from there on JSON and XML are the same. Reads whole
//! instance documents, with or without a NETCONF envelope, and bare tables; the table may be that
//! of a bridge port (`ieee802-dot1q-sched-bridge`) or of an interface (`ieee802-dot1dc-sched-if`).
//! The drafts' `gate-parameters` are read too. State (`oper-…`) is passed over.

use std::rc::Rc;
use std::str::FromStr;

use takt_time::{TaiTime, TrafficClass};

use super::{Document, Form, FormError, Parsed, lost_own, shown};
use crate::gate::GateMask;
use crate::schedule::{GateEntry, GateOperation, Schedule};

/// A node of an instance document: its name without prefix, its text, its children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Shared by the nodes of a JSON list, or a long name would be kept many times.
    pub name: Rc<str>,
    pub text: String,
    pub children: Vec<Node>,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            name: "".into(),
            text: String::new(),
            children: Vec::new(),
        }
    }
}

/// A node and where it is, for messages.
struct Place<'a> {
    node: &'a Node,
    at: String,
}

impl<'a> Place<'a> {
    fn new(node: &'a Node) -> Self {
        let at = node.name.to_string();
        Self { node, at }
    }

    /// The only child of this name, if there is one.
    fn child(&self, name: &str) -> Result<Option<Place<'a>>, FormError> {
        let at = format!("{}/{name}", self.at);
        let mut found = self
            .node
            .children
            .iter()
            .filter(|child| &*child.name == name);
        match (found.next(), found.next()) {
            (_, Some(_)) => Err(FormError::Duplicate { at }),
            (found, None) => Ok(found.map(|node| Place { node, at })),
        }
    }

    /// The entries of a list, numbered from 0 in the order of the text.
    fn list(&self, name: &'a str) -> impl Iterator<Item = Place<'a>> {
        let entries = self
            .node
            .children
            .iter()
            .filter(move |child| &*child.name == name);
        entries.enumerate().map(move |(number, node)| Place {
            node,
            at: format!("{name} {number}"),
        })
    }

    fn text(&self) -> &'a str {
        self.node.text.trim()
    }

    fn value(&self, text: impl ToString, wanted: &'static str) -> FormError {
        FormError::Value {
            at: self.at.clone(),
            text: text.to_string(),
            wanted,
        }
    }

    /// The number in `child`, if there is such a child.
    fn number<N: FromStr>(
        &self,
        child: &str,
        wanted: &'static str,
    ) -> Result<Option<N>, FormError> {
        let Some(child) = self.child(child)? else {
            return Ok(None);
        };
        match child.text().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(child.value(child.text(), wanted)),
        }
    }

    fn required<N: FromStr>(
        &self,
        child: &'static str,
        wanted: &'static str,
    ) -> Result<N, FormError> {
        self.number(child, wanted)?
            .ok_or_else(|| FormError::Missing {
                at: self.at.clone(),
                what: child,
            })
    }
}

fn is_table(node: &Node) -> bool {
    matches!(&*node.name, "gate-parameter-table" | "gate-parameters")
}

/// What reading makes use of. State and what other modules add is left out.
const CONFIGURATION: [&str; 9] = [
    "queue-max-sdu-table",
    "gate-enabled",
    "admin-gate-states",
    "admin-control-list",
    "admin-control-list-length",
    "admin-cycle-time",
    "admin-cycle-time-extension",
    "admin-base-time",
    "config-change",
];

const U8: &str = "a number from 0 to 255";
const U32: &str = "a number from 0 to 4294967295";
const U64: &str = "a number of 64 bits, not negative";

/// Reads the table of `interface`, or the only one.
pub(super) fn read(root: &Node, interface: Option<&str>) -> Result<Parsed, FormError> {
    let mut tables: Vec<(Option<&str>, &Node)> = Vec::new();
    collect(root, None, &mut tables);
    if let Some(wanted) = interface {
        tables.retain(|(name, _)| *name == Some(wanted));
    }
    match tables.as_slice() {
        [] => Err(FormError::NoTable {
            interface: interface.map(str::to_owned),
        }),
        [(name, table)] => {
            let mut lost = Vec::new();
            let schedule = schedule(&Place::new(table), &mut lost)?;
            Ok(Parsed {
                document: Document {
                    interface: name.map(str::to_owned),
                    schedule,
                    ..Document::default()
                },
                lost,
            })
        }
        several => {
            let names: Vec<&str> = several
                .iter()
                .map(|(name, _)| name.unwrap_or("(without a name)"))
                .collect();
            Err(FormError::Ambiguous(names.join(", ")))
        }
    }
}

/// Finds the tables below `node`, each with the interface it lies in. Trees are not deep.
fn collect<'a>(
    node: &'a Node,
    interface: Option<&'a str>,
    tables: &mut Vec<(Option<&'a str>, &'a Node)>,
) {
    if is_table(node) {
        tables.push((interface, node));
        return;
    }
    let name = node.children.iter().find(|child| &*child.name == "name");
    let interface = match name {
        Some(name) if &*node.name == "interface" => Some(name.text.trim()),
        _ => interface,
    };
    for child in &node.children {
        collect(child, interface, tables);
    }
}

fn schedule(table: &Place<'_>, lost: &mut Vec<String>) -> Result<Schedule, FormError> {
    let enabled = match table.child("gate-enabled")? {
        // The default of the leaf.
        None => false,
        Some(leaf) => match leaf.text() {
            "false" => false,
            "true" => true,
            text => return Err(leaf.value(text, "true or false")),
        },
    };
    let mut left_out: Vec<&str> = table
        .node
        .children
        .iter()
        .map(|child| &*child.name)
        .filter(|name| !CONFIGURATION.contains(name))
        .collect();
    left_out.sort_unstable();
    left_out.dedup();
    if !left_out.is_empty() {
        lost.push(format!(
            "state or not of a schedule: {}",
            shown(&left_out.join(", "))
        ));
    }
    let mut schedule = Schedule {
        enabled,
        base_time: base_time(table)?,
        cycle_time_ns: 0,
        cycle_time_extension_ns: table
            .number::<u32>("admin-cycle-time-extension", U32)?
            .unwrap_or(0)
            .into(),
        initial_gates: table
            .number("admin-gate-states", U8)?
            .map_or(GateMask::ALL, GateMask::from_bits),
        entries: entries(table)?,
        max_sdu: max_sdu(table)?,
        require_sync_ns: None,
        selection: Default::default(),
    };
    schedule.cycle_time_ns = match cycle_time(table, lost)? {
        Some(nanos) => nanos,
        None => schedule.entries_ns(),
    };
    Ok(schedule)
}

fn entries(table: &Place<'_>) -> Result<Vec<GateEntry>, FormError> {
    const LIST: &str = "admin-control-list";
    let mut entries: Vec<(u32, GateEntry)> = Vec::new();
    let mut container = false;
    for list in table.list(LIST) {
        // The drafts had no container around the list.
        if list.child("index")?.is_some() {
            entries.push((list.required("index", U32)?, entry(&list)?));
            continue;
        }
        if std::mem::replace(&mut container, true) {
            return Err(FormError::Duplicate { at: LIST.into() });
        }
        for place in list.list("gate-control-entry") {
            entries.push((place.required("index", U32)?, entry(&place)?));
        }
    }
    if let Some(length) = table.child("admin-control-list-length")?
        && length.text() != entries.len().to_string()
    {
        return Err(length.value(length.text(), "the number of entries that follow"));
    }
    entries.sort_by_key(|(index, _)| *index);
    if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(FormError::Duplicate {
            at: format!("gate-control-entry with index {}", pair[0].0),
        });
    }
    Ok(entries.into_iter().map(|(_, entry)| entry).collect())
}

fn entry(place: &Place<'_>) -> Result<GateEntry, FormError> {
    let draft = place.child("sgs-params")?;
    let parameters = draft.as_ref().unwrap_or(place);
    const NAME: &str = "operation-name";
    let Some(name) = place.child(NAME)? else {
        return Err(FormError::Missing {
            at: place.at.clone(),
            what: NAME,
        });
    };
    let operation = match name.text().rsplit(':').next() {
        Some("set-gate-states") => GateOperation::Set,
        Some("set-and-hold-mac") => GateOperation::SetAndHold,
        Some("set-and-release-mac") => GateOperation::SetAndRelease,
        _ => {
            return Err(FormError::Unknown {
                text: name.text().to_owned(),
                at: name.at,
                known: "set-gate-states, set-and-hold-mac, set-and-release-mac",
            });
        }
    };
    Ok(GateEntry {
        operation,
        gates: GateMask::from_bits(parameters.required("gate-states-value", U8)?),
        interval_ns: parameters.required("time-interval-value", U32)?,
    })
}

/// A rational number of seconds, to the nearest nanosecond.
fn cycle_time(table: &Place<'_>, lost: &mut Vec<String>) -> Result<Option<u64>, FormError> {
    let Some(place) = table.child("admin-cycle-time")? else {
        return Ok(None);
    };
    let numerator: u32 = place.required("numerator", U32)?;
    let denominator: u32 = place.required("denominator", U32)?;
    if denominator == 0 {
        let text = format!("{numerator}/{denominator} s");
        return Err(place.value(text, "a number of seconds: the denominator is 0"));
    }
    // Below 2^62: no overflow.
    let scaled = u64::from(numerator) * 1_000_000_000;
    let divisor = u64::from(denominator);
    let nanos = (scaled + divisor / 2) / divisor;
    if !scaled.is_multiple_of(divisor) {
        lost.push(format!(
            "the cycle time of {numerator}/{denominator} s is no whole number of nanoseconds: {nanos} ns instead"
        ));
    }
    Ok(Some(nanos))
}

fn base_time(table: &Place<'_>) -> Result<TaiTime, FormError> {
    let Some(place) = table.child("admin-base-time")? else {
        return Ok(TaiTime::from_nanos(0));
    };
    let seconds: u64 = place.number("seconds", U64)?.unwrap_or(0);
    let nanoseconds: u64 = place.number("nanoseconds", U32)?.unwrap_or(0);
    let fraction: u64 = place.number("fractional-seconds", U64)?.unwrap_or(0);
    if fraction != 0 {
        let wanted = "a time of the published module: the drafts' fractional-seconds have no agreed unit, use nanoseconds";
        return Err(place.value(fraction, wanted));
    }
    if nanoseconds >= 1_000_000_000 {
        return Err(place.value(nanoseconds, "a number of nanoseconds below a second"));
    }
    seconds
        .checked_mul(1_000_000_000)
        .and_then(|nanos| nanos.checked_add(nanoseconds))
        .and_then(|nanos| i64::try_from(nanos).ok())
        .map(TaiTime::from_nanos)
        .ok_or_else(|| place.value(seconds, "a number of seconds before the year 2262"))
}

fn max_sdu(table: &Place<'_>) -> Result<[u32; 8], FormError> {
    let mut max_sdu = [0; 8];
    let mut seen = GateMask::NONE;
    for place in table.list("queue-max-sdu-table") {
        let number: u8 = place.required("traffic-class", U8)?;
        let class = TrafficClass::new(number)
            .ok_or_else(|| place.value(number, "a traffic class, 0 to 7"))?;
        if seen.is_open(class) {
            return Err(FormError::Duplicate {
                at: format!("queue-max-sdu-table of traffic class {class}"),
            });
        }
        seen = seen.with_open(class);
        max_sdu[usize::from(number)] = place.number("queue-max-sdu", U32)?.unwrap_or(0);
    }
    Ok(max_sdu)
}

/// A document's schedule in the units of the module.
pub(super) struct Values<'a> {
    pub schedule: &'a Schedule,
    /// Seconds as a fraction in lowest terms.
    pub cycle_time: (u32, u32),
    pub extension: u32,
    pub base_time: (u64, u32),
    pub lost: Vec<String>,
}

impl<'a> Values<'a> {
    pub fn of(document: &'a Document, form: Form) -> Result<Self, FormError> {
        let schedule = &document.schedule;
        let mut lost = Vec::new();
        let error = |what: String| FormError::NotExpressible { form, what };
        let divisor = greatest_common_divisor(schedule.cycle_time_ns, 1_000_000_000);
        let numerator = u32::try_from(schedule.cycle_time_ns / divisor).map_err(|_| {
            error(format!(
                "a cycle time of {} ns: it is no fraction of seconds in 32-bit numbers",
                schedule.cycle_time_ns
            ))
        })?;
        let base = u64::try_from(schedule.base_time.as_nanos())
            .map_err(|_| error(format!("a base time before 1970 ({})", schedule.base_time)))?;
        let extension = u32::try_from(schedule.cycle_time_extension_ns).map_err(|_| {
            error(format!(
                "a cycle time extension of {} ns: at most 4294967295 ns",
                schedule.cycle_time_extension_ns
            ))
        })?;
        if document.priorities.is_some() {
            lost.push("the classes of priorities: they belong to the traffic-class-table of ieee802-dot1q-bridge".into());
        }
        if document.taprio.is_some() {
            lost.push(
                "what belongs to taprio: queues, clockid, flags, txtime-delay, fp, handles".into(),
            );
        }
        if document.interface.is_none() {
            lost.push("the document names no interface: the table stands alone".into());
        }
        lost.extend(lost_own(schedule));
        Ok(Self {
            schedule,
            // A divisor of 10^9: the denominator fits.
            cycle_time: (numerator, (1_000_000_000 / divisor) as u32),
            extension,
            base_time: (base / 1_000_000_000, (base % 1_000_000_000) as u32),
            lost,
        })
    }
}

fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}
