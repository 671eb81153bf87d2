//! YANG in JSON (RFC 7951): 64-bit numbers are strings, names of another module have its prefix.

use std::fmt;
use std::rc::Rc;

use serde::Deserializer;
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

use super::yang::{Node, Values};
use super::{Document, Form, FormError, Written};

/// The tree of a JSON text.
pub(super) fn tree(text: &str) -> Result<Node, FormError> {
    let syntax = |error: serde_json::Error| FormError::Syntax {
        form: Form::YangJson,
        message: error.to_string(),
    };
    let mut root = Node::default();
    let mut reader = serde_json::Deserializer::from_str(text);
    Member::of(&mut root, "")
        .deserialize(&mut reader)
        .map_err(syntax)?;
    reader.end().map_err(syntax)?;
    Ok(root)
}

/// Appends a member to a node: a list becomes as many nodes of its name, and so does a name that is
/// given twice. As deep as the JSON reader's own limit at most.
struct Member<'a> {
    parent: &'a mut Node,
    name: Rc<str>,
}

impl<'a> Member<'a> {
    fn of(parent: &'a mut Node, name: &str) -> Self {
        let name = name.rsplit(':').next().unwrap_or(name).into();
        Self { parent, name }
    }

    fn push(self, text: String) {
        self.parent.children.push(Node {
            name: self.name,
            text,
            ..Node::default()
        });
    }
}

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut node = Node {
            name: self.name,
            ..Node::default()
        };
        while let Some(name) = members.next_key::<String>()? {
            members.next_value_seed(Member::of(&mut node, &name))?;
        }
        self.parent.children.push(node);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        let Self { parent, name } = self;
        loop {
            let name = Rc::clone(&name);
            let parent = &mut *parent;
            if values.next_element_seed(Member { parent, name })?.is_none() {
                return Ok(());
            }
        }
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.push(text.to_owned());
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.push(value.to_string());
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.push(value.to_string());
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.push(value.to_string());
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.push(value.to_string());
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.push(String::new());
        Ok(())
    }
}

const TABLE: &str = "ieee802-dot1q-sched-bridge:gate-parameter-table";

pub(super) fn write(document: &Document) -> Result<Written, FormError> {
    let values = Values::of(document, Form::YangJson)?;
    let schedule = values.schedule;
    let entries: Vec<Value> = schedule
        .entries
        .iter()
        .enumerate()
        .map(|(index, entry)| {
            json!({
                "index": index,
                "operation-name": format!("ieee802-dot1q-sched:{}", entry.operation),
                "time-interval-value": entry.interval_ns,
                "gate-states-value": entry.gates.bits(),
            })
        })
        .collect();
    let max_sdu: Vec<Value> = schedule
        .max_sdu
        .iter()
        .enumerate()
        .filter(|(_, octets)| **octets != 0)
        .map(|(class, octets)| json!({"traffic-class": class, "queue-max-sdu": octets}))
        .collect();
    let mut table = Map::new();
    if !max_sdu.is_empty() {
        table.insert("queue-max-sdu-table".into(), max_sdu.into());
    }
    let (numerator, denominator) = values.cycle_time;
    let (seconds, nanoseconds) = values.base_time;
    for (name, value) in [
        ("gate-enabled", json!(schedule.enabled)),
        ("admin-gate-states", json!(schedule.initial_gates.bits())),
        (
            "admin-control-list",
            json!({ "gate-control-entry": entries }),
        ),
        (
            "admin-cycle-time",
            json!({"numerator": numerator, "denominator": denominator}),
        ),
        ("admin-cycle-time-extension", json!(values.extension)),
        (
            "admin-base-time",
            json!({"seconds": seconds.to_string(), "nanoseconds": nanoseconds}),
        ),
        ("config-change", json!(true)),
    ] {
        table.insert(name.into(), value);
    }
    let document = match &document.interface {
        None => json!({ TABLE: table }),
        Some(name) => json!({
            "ietf-interfaces:interfaces": {
                "interface": [{
                    "name": name,
                    "type": "iana-if-type:ethernetCsmacd",
                    "ieee802-dot1q-bridge:bridge-port": { TABLE: table },
                }],
            },
        }),
    };
    Ok(Written {
        text: format!("{document:#}\n"),
        lost: values.lost,
    })
}
