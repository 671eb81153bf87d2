//! Tables for people, JSON for programs.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use bytesize::ByteSize;
use clap::Args;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::Serialize;

use crate::failure::Failure;

/// In which form to print.
#[derive(Clone, Copy, Debug, Args)]
pub struct Form {
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// Prints text.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Failure::io("write to standard output"))
}

/// Writes text to a file; `-` is standard output.
pub fn write_text(path: &Path, text: &str) -> Result<(), Failure> {
    if path == Path::new("-") {
        return print(text);
    }
    File::create(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| Failure::Other(format!("cannot write {}: {error}", path.display())))
}

/// Prints JSON for people to look at and programs to read.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&(json(value, true)? + "\n"))
}

/// Prints JSON on one line.
pub fn print_json_line(value: &impl Serialize) -> Result<(), Failure> {
    print(&(json(value, false)? + "\n"))
}

fn json(value: &impl Serialize, pretty: bool) -> Result<String, Failure> {
    let text = if pretty {
        serde_json::to_string_pretty(value)
    } else {
        serde_json::to_string(value)
    };
    text.map_err(|error| Failure::Other(format!("cannot write JSON: {error}")))
}

/// A column: its heading, and whether its values are numbers.
pub type Column = (&'static str, Align);

/// Where values of a column stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows below headings, without lines between them, for people and `awk` alike.
pub fn table(columns: &[Column], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(comfy_table::presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(columns.iter().map(|(heading, _)| *heading))
        .add_rows(rows);
    for (column, (_, align)) in table.column_iter_mut().zip(columns) {
        column.set_padding((0, 2));
        if *align == Align::Right {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A size as people write it.
pub fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

/// A time in the two largest units that it has.
pub fn duration(seconds: u64) -> String {
    let parts = [
        (seconds / 86_400, "d"),
        (seconds / 3600 % 24, "h"),
        (seconds / 60 % 60, "min"),
        (seconds % 60, "s"),
    ];
    let first = parts
        .iter()
        .position(|(value, _)| *value > 0)
        .unwrap_or(parts.len() - 1);
    parts[first..]
        .iter()
        .take(2)
        .map(|(value, unit)| format!("{value} {unit}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Numbers between commas; a dash for none.
pub fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let texts: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    dash(&texts.join(","))
}

/// A dash for nothing, so that columns can be told apart.
pub fn dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_blanks_behind() {
        let rows = vec![
            vec!["a".into(), "1".into(), String::new()],
            vec!["longer".into(), "1000".into(), "x".into()],
        ];
        let columns = [
            ("NAME", Align::Left),
            ("COUNT", Align::Right),
            ("LAST", Align::Left),
        ];
        assert_eq!(
            table(&columns, rows),
            "NAME    COUNT  LAST\na           1\nlonger   1000  x\n"
        );
    }

    #[test]
    fn times_have_two_units_and_sizes_one() {
        assert_eq!(duration(0), "0 s");
        assert_eq!(duration(59), "59 s");
        assert_eq!(duration(61), "1 min 1 s");
        assert_eq!(duration(7200), "2 h 0 min");
        assert_eq!(duration(90_000), "1 d 1 h");
        assert_eq!(size(64 << 20), "64.0 MiB");
    }
}
