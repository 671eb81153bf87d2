//! The text of a configuration file, and where in it something is at fault.
//!
//! Every complaint about a configuration, from the TOML grammar to the sense of two values together, becomes
//! a [`Fault`]: file, line, key, value, and what would be right.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What is wrong at one place of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Fault {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The key with its sections, such as `listener[1].mode`; empty where the text is no TOML.
    pub key: String,
    /// The value as written; empty where a whole section is meant.
    pub value: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file.display(), self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, "`{}`", self.key)?;
            if !self.value.is_empty() {
                write!(f, " = {}", self.value)?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.problem)
    }
}

/// A step of the way to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Into a table.
    Key(&'a str),
    /// Into an array.
    Index(usize),
}

impl<'a> From<&'a str> for Step<'a> {
    fn from(key: &'a str) -> Self {
        Self::Key(key)
    }
}

impl From<usize> for Step<'_> {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// The way to a value: `way!["listener", 1, "mode"]`.
macro_rules! way {
    ($($step:expr),+ $(,)?) => { &[$($crate::config::document::Step::from($step)),+] };
}
pub(super) use way;

/// A configuration file as text.
pub struct Document<'a> {
    file: &'a Path,
    text: &'a str,
}

impl<'a> Document<'a> {
    /// The text of `file`.
    pub fn new(file: &'a Path, text: &'a str) -> Self {
        Self { file, text }
    }

    /// Reads the document as `T`.
    pub fn read<T: serde::de::DeserializeOwned>(&self) -> Result<T, Fault> {
        toml::from_str(self.text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            self.fault_at(span, plain(error.message()))
        })
    }

    /// Something is wrong with the value at the end of the way; or with the innermost section of it that is
    /// there, if the value itself is a default.
    pub fn fault(&self, way: &[Step<'_>], problem: impl Into<String>) -> Fault {
        let Ok(table) = DeTable::parse(self.text) else {
            return self.fault_at(0..0, problem.into());
        };
        let mut span = table.span();
        let mut steps = way.iter();
        let mut value: Option<&Spanned<DeValue<'_>>> = match steps.next() {
            Some(Step::Key(key)) => table.get_ref().get(*key),
            _ => None,
        };
        while let Some(found) = value {
            span = found.span();
            value = match steps.next() {
                Some(Step::Key(key)) => found.get_ref().get(*key),
                Some(Step::Index(index)) => found.get_ref().get(*index),
                None => None,
            };
        }
        Fault {
            key: written(way),
            ..self.fault_at(span, problem.into())
        }
    }

    fn fault_at(&self, span: Range<usize>, problem: String) -> Fault {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let mut path = Vec::new();
        let mut value = "";
        if let Ok(table) = DeTable::parse(self.text) {
            within(table.get_ref(), &span, &mut path);
            let text = self.text.get(span).unwrap_or_default();
            // Of a section, which may be long, the key says enough.
            if !path.is_empty() && !text.contains('\n') && !text.starts_with('[') {
                value = text;
            }
        }
        let key = path.concat();
        Fault {
            file: self.file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            value: if key.ends_with(value) {
                String::new()
            } else {
                value.to_owned()
            },
            key,
            problem,
        }
    }
}

fn written(way: &[Step<'_>]) -> String {
    let mut text = String::new();
    for step in way {
        match step {
            Step::Key(key) if text.is_empty() => text.push_str(key),
            Step::Key(key) => {
                text.push('.');
                text.push_str(key);
            }
            Step::Index(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

/// Whether `span` lies in `outer`.
fn holds(outer: &Range<usize>, span: &Range<usize>) -> bool {
    outer.start <= span.start && span.end <= outer.end
}

/// Finds the key whose name or value is at `span`, and writes down the way to it.
fn within(table: &DeTable<'_>, span: &Range<usize>, path: &mut Vec<String>) -> bool {
    for (name, value) in table {
        let dot = if path.is_empty() { "" } else { "." };
        path.push(format!("{dot}{}", name.get_ref()));
        if within_value(value, span, path) || holds(&name.span(), span) {
            return true;
        }
        path.pop();
    }
    false
}

fn within_value(value: &Spanned<DeValue<'_>>, span: &Range<usize>, path: &mut Vec<String>) -> bool {
    let inner = match value.get_ref() {
        DeValue::Table(table) => within(table, span, path),
        DeValue::Array(array) => array.iter().enumerate().any(|(index, element)| {
            path.push(format!("[{index}]"));
            within_value(element, span, path) || {
                path.pop();
                false
            }
        }),
        _ => false,
    };
    inner || holds(&value.span(), span)
}

/// The words of a deserialiser in those of an operator.
fn plain(message: &str) -> String {
    let types = [
        ("u8", "an integer from 0 to 255"),
        ("u16", "an integer from 0 to 65535"),
        ("u32", "an integer from 0 to 4294967295"),
        ("u64", "an integer, 0 or more"),
        ("usize", "an integer, 0 or more"),
        ("a sequence", "an array, in [ ]"),
        ("a boolean", "true or false"),
    ];
    for (code, words) in types {
        if let Some(start) = message.strip_suffix(&format!("expected {code}")) {
            return format!("{start}expected {words}");
        }
    }
    message.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document<'_> {
        Document::new(Path::new("takt.toml"), text)
    }

    const TEXT: &str = "[node]\nport = 1\n\n[[listener]]\npath = \"/a\"\n\n[[listener]]\npath = \"/b\"\nuids = [1, 2]\n";

    #[test]
    fn a_fault_points_at_the_value_and_names_the_way_to_it() {
        let fault = document(TEXT).fault(way!["listener", 1, "path"], "taken");
        assert_eq!(
            fault.to_string(),
            "takt.toml:8:8: `listener[1].path` = \"/b\": taken"
        );
        let fault = document(TEXT).fault(way!["listener", 1, "uids", 1], "unknown");
        assert_eq!(
            fault.to_string(),
            "takt.toml:9:12: `listener[1].uids[1]` = 2: unknown"
        );
    }

    #[test]
    fn a_fault_of_a_default_points_at_its_section() {
        let fault = document(TEXT).fault(way!["listener", 1, "mode"], "unusable");
        assert_eq!((fault.line, fault.key.as_str()), (7, "listener[1].mode"));
        assert_eq!(fault.value, "");
        assert_eq!(document("").fault(way!["lane"], "none").line, 1);
    }

    #[test]
    fn a_text_that_is_no_toml_is_reported_by_its_line() {
        let fault = document("[node]\nport = = 3\n")
            .read::<toml::Table>()
            .expect_err("not TOML");
        assert_eq!((fault.line, fault.key.as_str()), (2, ""));
    }
}
