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
