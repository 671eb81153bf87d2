//! Kubernetes' manifests, as they are written.

use serde_json::Value;
use takt_reserve::Nanos;

/// Whether Kubernetes takes it as a label of RFC 1123.
pub fn is_label(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=63).contains(&name.len())
        && name.bytes().all(|byte| plain(byte) || byte == b'-')
        && [name.bytes().next(), name.bytes().next_back()]
            .into_iter()
            .flatten()
            .all(plain)
}

/// The order in which people look for the fields of a manifest; others follow in alphabetical order.
const ORDER: [&str; 12] = [
    "apiVersion",
    "kind",
    "name",
    "metadata",
    "spec",
    "requests",
    "deviceClassName",
    "count",
    "runtime",
    "period",
    "class",
    "gates",
];

/// A manifest in YAML: mappings, lists and texts, which is all it is made of.
pub fn yaml(document: &Value) -> String {
    let mut text = String::new();
    write_value(document, 0, &mut text);
    text
}

fn write_value(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) => {
            let place = |name: &str| ORDER.iter().position(|known| *known == name);
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort_by_key(|name| (place(name).unwrap_or(ORDER.len()), name.as_str()));
            for name in names {
                let field = &fields[name];
                text.push_str(&format!("{indent}{name}:"));
                write_below(field, depth + 1, text);
            }
        }
        Value::Array(items) => {
            for item in items {
                let mut inner = String::new();
                write_value(item, depth + 1, &mut inner);
                // The dash takes the place of the first field's indentation.
                text.push_str(&format!("{indent}- {}", inner.trim_start()));
            }
        }
        scalar => text.push_str(&format!("{indent}{}\n", plain(scalar))),
    }
}

fn write_below(value: &Value, depth: usize, text: &mut String) {
    if value.as_array().is_some_and(Vec::is_empty) {
        text.push_str(" []\n");
    } else if value.is_object() || value.is_array() {
        text.push('\n');
        write_value(value, depth, text);
    } else {
        text.push_str(&format!(" {}\n", plain(value)));
    }
}

/// A text without quotes where YAML cannot take it for anything else.
fn plain(value: &Value) -> String {
    let Value::String(text) = value else {
        return value.to_string();
    };
    let harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte);
    let begins = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
    let duration = text.parse::<Nanos>().is_ok() && text.ends_with('s');
    let reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .contains(&text.to_ascii_lowercase().as_str());
    match (begins || duration) && text.bytes().all(harmless) && !reserved {
        true => text.clone(),
        false => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_of_rfc_1123() {
        for good in ["a", "0", "a-b", &"a".repeat(63)] {
            assert!(is_label(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "ä", &"a".repeat(64)] {
            assert!(!is_label(bad), "{bad}");
        }
    }
}
