//! Tables for people, JSON for programs.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;

use bytesize::ByteSize;
use clap::Args;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::Serialize;
use takt_session::is_unseen;

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
    print(&json_line(value)?)
}

/// JSON on one line.
pub fn json_line(value: &impl Serialize) -> Result<String, Failure> {
    Ok(json(value, false)? + "\n")
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

/// Rows below headings, without lines between them, for people and `awk` alike. Where they are wider than the terminal, or
/// than 80 columns where there is none, further columns follow in a table of their own that begins with the first column.
pub fn table(columns: &[Column], rows: Vec<Vec<String>>) -> String {
    folded(columns, rows, page_width())
}

/// How wide a page may be.
fn page_width() -> usize {
    let terminal = std::io::stdout()
        .is_terminal()
        .then(|| rustix::termios::tcgetwinsize(std::io::stdout()).ok())
        .flatten();
    terminal
        .map_or(0, |size| usize::from(size.ws_col))
        .max(PAGE)
}

/// The narrowest page.
const PAGE: usize = 80;
/// Between two columns.
const GAP: usize = 2;

fn folded(columns: &[Column], rows: Vec<Vec<String>>, page: usize) -> String {
    let length = |text: &str| text.chars().count();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(at, (heading, _))| {
            let cells = rows
                .iter()
                .map(|row| row.get(at).map_or(0, |cell| length(cell)));
            cells.chain([length(heading)]).max().unwrap_or(0)
        })
        .collect();
    let Some((key, others)) = widths.split_first() else {
        return String::new();
    };
    let mut tables: Vec<Vec<usize>> = vec![vec![0]];
    let mut used = *key;
    for (at, width) in others.iter().enumerate() {
        if used + GAP + width > page && tables.last().is_some_and(|table| table.len() > 1) {
            tables.push(vec![0]);
            used = *key;
        }
        used += GAP + width;
        if let Some(table) = tables.last_mut() {
            table.push(at + 1);
        }
    }
    let room = page.saturating_sub(key + GAP).max(20);
    let texts = tables.iter().enumerate().map(|(number, table)| {
        let mut shown = Vec::new();
        let mut key = String::new();
        for row in &rows {
            let cell = |at: &usize| row.get(*at).cloned().unwrap_or_default();
            let mut cells: Vec<String> = table.iter().map(cell).collect();
            if tables.len() > 1 && cells.iter().all(String::is_empty) {
                continue;
            }
            // A row that goes on with the one above has no key; below it the reader could not tell which row it belongs to.
            if cells[0].is_empty() && number > 0 {
                cells[0].clone_from(&key);
            }
            key.clone_from(&cells[0]);
            shown.extend(wrapped(cells, room));
        }
        let columns: Vec<Column> = table.iter().map(|at| columns[*at]).collect();
        aligned(&columns, shown)
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// A row whose last cell is longer than `room` as several rows.
fn wrapped(mut row: Vec<String>, room: usize) -> Vec<Vec<String>> {
    let columns = row.len();
    let text = match row.last_mut() {
        Some(last) if columns == 2 && last.chars().count() > room => std::mem::take(last),
        _ => return vec![row],
    };
    let lines = wrap(&text, room);
    let key = std::mem::take(&mut row[0]);
    let mut keys = vec![key];
    keys.resize(lines.len(), String::new());
    keys.into_iter()
        .zip(lines)
        .map(|(key, line)| vec![key, line])
        .collect()
}

/// A text that may hold a stranger's words, without what a terminal would obey.
pub fn printable(text: &str) -> String {
    let escaped = |c: char| match c.is_control() && c != '\n' {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

/// Lines of whole words, as wide as `room` where a word is not wider.
pub fn wrap(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let fits = |line: &String| {
            line.is_empty() || line.chars().count() + 1 + word.chars().count() <= room
        };
        match lines.last_mut() {
            Some(line) if fits(line) => {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn aligned(columns: &[Column], rows: Vec<Vec<String>>) -> String {
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

/// Those of the counts that are not zero, to be put behind others: `, 3 lost`.
pub fn counted<'a>(counts: impl IntoIterator<Item = (u64, &'a str)>) -> String {
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    counts
        .map(|(count, what)| format!(", {count} {what}"))
        .collect()
}

/// A name of others for people: what is not seen, or turns the direction of what is, or ends the line, is escaped.
pub fn name(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if is_unseen(c) || c.is_control() => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
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
    fn what_is_too_wide_goes_on_below_and_no_line_is_wider_than_the_page() {
        let columns = [
            ("CHANNEL", Align::Right),
            ("SENT", Align::Right),
            ("RECEIVED", Align::Right),
            ("DETAIL", Align::Left),
        ];
        let row = |channel: &str, detail: &str| {
            [channel, "1000", "2000", detail]
                .map(str::to_owned)
                .to_vec()
        };
        let long = "a text of words that is by far too long for the page that it is on";
        let text = folded(
            &columns,
            vec![row("7", "-"), row("18446744073709551615", long)],
            42,
        );
        assert_eq!(
            text,
            "             CHANNEL  SENT  RECEIVED\n                   7  1000      2000\n18446744073709551615  1000      2000\n\n\
             \x20            CHANNEL  DETAIL\n                   7  -\n18446744073709551615  a text of words that\n\
             \x20                     is by far too long\n                      for the page that it\n                      is on\n"
        );
        assert!(text.lines().all(|line| line.len() <= 42), "{text}");
        assert_eq!(folded(&columns, vec![row("7", "-")], 80).lines().count(), 2);
    }

    #[test]
    fn names_show_what_they_are_made_of() {
        assert_eq!(name("plant/7/größe e\u{301}"), "plant/7/größe e\u{301}");
        assert_eq!(name("a\u{202e}b\u{2028}\n"), "a\\u{202e}b\\u{2028}\\u{a}");
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
