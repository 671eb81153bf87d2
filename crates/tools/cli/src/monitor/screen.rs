//! The live table on a terminal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use takt_health::level::Level;

use super::engine::Engine;
use super::text;
use crate::failure::Failure;

/// A terminal that is ours until this is dropped.
pub struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    /// Takes the terminal. Keys `q`, Escape and Ctrl+C set `stop`; the thread that waits for them ends with the process.
    pub fn new(stop: Arc<AtomicBool>) -> Result<Self, Failure> {
        let terminal = ratatui::try_init().map_err(Failure::io("take the terminal"))?;
        std::thread::spawn(move || {
            while let Ok(event) = event::read() {
                let Event::Key(key) = event else { continue };
                let interrupt = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => stop.store(true, Ordering::Relaxed),
                    KeyCode::Char('c') if interrupt => stop.store(true, Ordering::Relaxed),
                    _ => {}
                }
            }
        });
        Ok(Self { terminal })
    }

    /// Draws the present figures.
    pub fn draw(&mut self, interface: &str, engine: &Engine) -> Result<(), Failure> {
        self.terminal
            .draw(|frame| {
                let area = frame.area();
                frame.render_widget(picture(interface, engine, area.height), area);
            })
            .map_err(Failure::io("draw on the terminal"))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// How a level looks, beside its word.
fn colour(level: Level) -> Style {
    Style::new().fg(match level {
        Level::Green => Color::Green,
        Level::Yellow => Color::Yellow,
        Level::Red => Color::Red,
    })
}

fn picture<'a>(interface: &str, engine: &Engine, height: u16) -> Text<'a> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines: Vec<Line<'a>> = crate::output::wrap(&text::heading(engine), 80)
        .into_iter()
        .map(|line| Line::styled(line, bold))
        .collect();
    lines.push(Line::styled(
        text::line(&text::COLUMNS.map(str::to_owned)),
        bold,
    ));
    let events = text::events(engine, 4);
    let room = usize::from(height).saturating_sub(lines.len() + events.len() + 2);
    for at in engine.order().into_iter().take(room) {
        let flow = engine.flow(at);
        let cells = text::row(engine, flow);
        lines.push(Line::styled(
            text::line(&cells),
            match flow.spec {
                Some(_) => colour(flow.level()),
                None => Style::new(),
            },
        ));
    }
    lines.push(Line::from(""));
    lines.extend(events.into_iter().map(Line::from));
    lines.push(Line::styled(
        format!("{interface}   q: quit"),
        Style::new().add_modifier(Modifier::DIM),
    ));
    Text::from(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;
    use std::fs::File;
    use takt_capture::Meta;
    use takt_capture::pcapng::Writer;
    use takt_health::spec::Document;
    use takt_testing::Directory;

    use crate::monitor::source::{Observe, Source};

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        source: Source,
        #[command(flatten)]
        observe: Observe,
    }

    /// Ten packets a second of four streams, for nine seconds. With each second those of stream 1 come a millisecond later, and
    /// of stream 2 less so; streams 3 and 4 come in time.
    fn capture(directory: &Directory) -> String {
        let file = File::create(directory.join("four.pcapng")).expect("a file");
        let mut writer = Writer::new(file, 65_535).expect("written");
        let beats = (0..90_i64).flat_map(|beat| (1..5_u8).map(move |stream| (beat, stream)));
        let mut packets: Vec<_> = beats
            .map(|(beat, stream)| {
                let later_ns = match stream {
                    1 => 1_000_000,
                    2 => 700_000,
                    _ => 0,
                };
                (beat * 100_000_000 + beat / 10 * later_ns, stream)
            })
            .collect();
        packets.sort_unstable();
        for (at_ns, stream) in packets {
            let mut frame = vec![0x91, 0xe0, 0xf0, 0, 0, stream, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
            frame.resize(60, 0);
            let meta = Meta {
                utc_ns: 1_700_000_000_000_000_000 + at_ns,
                length: 60,
                link_type: 1,
            };
            writer.packet(&meta, &frame).expect("written");
        }
        writer.flush().expect("written");
        directory.text("four.pcapng")
    }

    /// The line that has this text, and the colour of its first letter.
    fn line(buffer: &Buffer, text: &str) -> (String, Color) {
        let area = *buffer.area();
        let rows = (0..area.height).map(|y| {
            let cells = (0..area.width).map(|x| &buffer[(x, y)]);
            let row: String = cells.map(|cell| cell.symbol()).collect();
            (row, buffer[(0, y)].fg)
        });
        let mut found = rows.filter(|(row, _)| row.contains(text));
        found
            .next()
            .unwrap_or_else(|| panic!("{text} in {buffer:?}"))
    }

    #[test]
    fn flows_have_the_colours_of_their_levels_and_a_line_of_their_last_windows() {
        let directory = Directory::new();
        let path = capture(&directory);
        let flow = |name: &str, stream: u8| {
            format!(
                "[[flow]]\nname = \"{name}\"\nmatch = \"stream 91:e0:f0:00:00:0{stream}\"\nperiod = \"100ms\"\nmax-delay = \"5ms\"\n"
            )
        };
        let document = flow("late", 1) + &flow("soon late", 2) + &flow("in time", 3);
        let document = Document::read(&document).expect("a document");
        let arguments = Arguments::parse_from(["test", "-r", path.as_str()]);
        let mut engine =
            Engine::new(&arguments.source, &arguments.observe, document).expect("an engine");
        while engine.step().expect("read") {}
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a terminal");
        terminal
            .draw(|frame| {
                let area = frame.area();
                frame.render_widget(picture("eth0", &engine, area.height), area);
            })
            .expect("drawn");
        let buffer = terminal.backend().buffer();
        let (late, colour) = line(buffer, "late  ");
        assert!(late.starts_with("red") && colour == Color::Red, "{late}");
        // Seven of its eight windows before the last one, each later than the one before.
        assert!(late.trim_end().ends_with("▂▃▄▅▆▇█"), "{late}");
        let (soon, colour) = line(buffer, "soon late");
        assert!(
            soon.starts_with("yellow") && colour == Color::Yellow,
            "{soon}"
        );
        let (in_time, colour) = line(buffer, "in time");
        assert!(
            in_time.starts_with("green") && colour == Color::Green,
            "{in_time}"
        );
        // What nobody declared is green and is not said to be.
        let (other, colour) = line(buffer, "stream 91:e0:f0");
        assert!(
            other.starts_with("green") && colour == Color::Reset,
            "{other}"
        );
        assert_eq!(engine.levels(), [2, 1, 1]);
        line(buffer, "eth0   q: quit");
    }
}
