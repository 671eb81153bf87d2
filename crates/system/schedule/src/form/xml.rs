//! YANG in XML (RFC 7950), with or without a NETCONF envelope.
//!
//! Document types are refused: a configuration has none, and entities of its own are how XML readers
//! are made to run out of memory.

use std::fmt::{Display, Write as _};

use quick_xml::Reader;
use quick_xml::escape::{escape, resolve_predefined_entity};
use quick_xml::events::{BytesStart, Event};

use super::yang::{Node, Values};
use super::{Document, Form, FormError, Written, shown};

/// Elements within each other; a gate parameter table in a NETCONF reply has ten.
const MAX_DEPTH: usize = 32;

/// The tree of an XML text. Prefixes of names are left out.
pub(super) fn tree(text: &str) -> Result<Node, FormError> {
    let mut reader = Reader::from_str(text);
    let mut open = vec![Node::default()];
    loop {
        let at = reader.buffer_position();
        let event = match reader.read_event() {
            Ok(event) => event,
            Err(problem) => return Err(error(text, reader.error_position(), problem)),
        };
        let error = |message: String| error(text, at, message);
        match event {
            Event::Start(element) => {
                if open.len() > MAX_DEPTH {
                    return Err(error(format!(
                        "more than {MAX_DEPTH} elements within each other"
                    )));
                }
                open.push(node(&element).map_err(error)?);
            }
            Event::Empty(element) => {
                let node = node(&element).map_err(error)?;
                if let Some(parent) = open.last_mut() {
                    parent.children.push(node);
                }
            }
            Event::End(_) => {
                if let (Some(node), Some(parent)) = (open.pop(), open.last_mut()) {
                    parent.children.push(node);
                }
            }
            Event::Text(characters) => append(&mut open, &characters.xml10_content()),
            Event::CData(characters) => append(&mut open, &characters.xml10_content()),
            Event::GeneralRef(reference) => {
                let character = reference.resolve_char_ref();
                if let Some(character) = character.map_err(|problem| error(problem.to_string()))? {
                    append(&mut open, character.encode_utf8(&mut [0; 4]));
                } else if let Some(characters) = resolve_predefined_entity(&reference) {
                    append(&mut open, characters);
                } else {
                    let name = shown(&reference);
                    return Err(error(format!(
                        "the entity &{name}; is not known: write the character itself"
                    )));
                }
            }
            Event::DocType(_) => {
                return Err(error(
                    "document types are not read: remove the <!DOCTYPE …>".into(),
                ));
            }
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            Event::Eof => break,
        }
    }
    let error = |message: String| error(text, text.len() as u64, message);
    match (open.pop(), open.is_empty()) {
        (Some(root), true) if !root.children.is_empty() => Ok(root),
        (Some(unclosed), false) => {
            let name = shown(&unclosed.name);
            Err(error(format!("the element {name} is not closed")))
        }
        _ => Err(error("there is no element".into())),
    }
}

fn error(text: &str, at: u64, message: impl Display) -> FormError {
    let at = usize::try_from(at).unwrap_or(usize::MAX);
    let line = 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
    FormError::Syntax {
        form: Form::YangXml,
        message: format!("{message} (line {line})"),
    }
}

fn node(element: &BytesStart<'_>) -> Result<Node, String> {
    let name = element.local_name();
    for attribute in element.attributes() {
        let attribute = attribute.map_err(|problem| problem.to_string())?;
        let deletes = matches!(&*attribute.value, "delete" | "remove");
        if deletes && attribute.key.local_name().as_ref() == "operation" {
            return Err(format!(
                "{} is to be deleted (operation, RFC 6241): give a document that states what is to be",
                shown(name.as_ref())
            ));
        }
    }
    Ok(Node {
        name: name.as_ref().into(),
        ..Node::default()
    })
}

fn append(open: &mut [Node], characters: &str) {
    if let Some(node) = open.last_mut() {
        node.text.push_str(characters);
    }
}

pub(super) fn write(document: &Document) -> Result<Written, FormError> {
    let values = Values::of(document, Form::YangXml)?;
    let schedule = values.schedule;
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let indent = if let Some(name) = &document.interface {
        // What XML 1.0 has no way to say.
        if name
            .chars()
            .any(|c| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'))
        {
            return Err(FormError::NotExpressible {
                form: Form::YangXml,
                what: format!("the interface name `{}`", name.escape_default()),
            });
        }
        let name = escape(name.as_str());
        // Writing to a string does not fail, here and below.
        let _ = write!(
            text,
            "<interfaces xmlns=\"urn:ietf:params:xml:ns:yang:ietf-interfaces\">\n\
             {s}<interface>\n\
             {s}{s}<name>{name}</name>\n\
             {s}{s}<type xmlns:ianaift=\"urn:ietf:params:xml:ns:yang:iana-if-type\">ianaift:ethernetCsmacd</type>\n\
             {s}{s}<bridge-port xmlns=\"urn:ieee:std:802.1Q:yang:ieee802-dot1q-bridge\">\n",
            s = "  "
        );
        "      "
    } else {
        ""
    };
    table(&mut text, indent, &values, schedule.entries.len());
    if document.interface.is_some() {
        text.push_str("    </bridge-port>\n  </interface>\n</interfaces>\n");
    }
    Ok(Written {
        text,
        lost: values.lost,
    })
}

fn table(text: &mut String, indent: &str, values: &Values<'_>, entries: usize) {
    let schedule = values.schedule;
    let mut lines: Vec<String> = Vec::with_capacity(20 + 6 * entries);
    let leaf = |depth: usize, name: &str, value: String| {
        format!("{}<{name}>{value}</{name}>", "  ".repeat(depth))
    };
    lines.push(
        "<gate-parameter-table xmlns=\"urn:ieee:std:802.1Q:yang:ieee802-dot1q-sched-bridge\" \
         xmlns:sched=\"urn:ieee:std:802.1Q:yang:ieee802-dot1q-sched\">"
            .into(),
    );
    for (class, octets) in schedule.max_sdu.iter().enumerate() {
        if *octets != 0 {
            lines.push("  <queue-max-sdu-table>".into());
            lines.push(leaf(2, "traffic-class", class.to_string()));
            lines.push(leaf(2, "queue-max-sdu", octets.to_string()));
            lines.push("  </queue-max-sdu-table>".into());
        }
    }
    lines.push(leaf(1, "gate-enabled", schedule.enabled.to_string()));
    let initial = schedule.initial_gates.bits().to_string();
    lines.push(leaf(1, "admin-gate-states", initial));
    lines.push("  <admin-control-list>".into());
    for (index, entry) in schedule.entries.iter().enumerate() {
        lines.push("    <gate-control-entry>".into());
        lines.push(leaf(3, "index", index.to_string()));
        lines.push(leaf(
            3,
            "operation-name",
            format!("sched:{}", entry.operation),
        ));
        lines.push(leaf(
            3,
            "time-interval-value",
            entry.interval_ns.to_string(),
        ));
        lines.push(leaf(3, "gate-states-value", entry.gates.bits().to_string()));
        lines.push("    </gate-control-entry>".into());
    }
    lines.push("  </admin-control-list>".into());
    lines.push("  <admin-cycle-time>".into());
    lines.push(leaf(2, "numerator", values.cycle_time.0.to_string()));
    lines.push(leaf(2, "denominator", values.cycle_time.1.to_string()));
    lines.push("  </admin-cycle-time>".into());
    lines.push(leaf(
        1,
        "admin-cycle-time-extension",
        values.extension.to_string(),
    ));
    lines.push("  <admin-base-time>".into());
    lines.push(leaf(2, "seconds", values.base_time.0.to_string()));
    lines.push(leaf(2, "nanoseconds", values.base_time.1.to_string()));
    lines.push("  </admin-base-time>".into());
    lines.push(leaf(1, "config-change", true.to_string()));
    lines.push("</gate-parameter-table>".into());
    for line in lines {
        text.push_str(indent);
        text.push_str(&line);
        text.push('\n');
    }
}
