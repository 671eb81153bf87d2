//! The live picture on a terminal.

use std::path::Path;
use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table};
use taktd::admin::client::connect;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::Pictures;
use super::plain::{self, Rows};
use super::rates::Rates;
use crate::failure::Failure;
use crate::output::Align;

/// How long to wait before looking for a daemon that has gone.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// What fills the lower part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum View {
    #[default]
    Channels,
    Sessions,
    Peers,
}

impl View {
    fn next(self) -> Self {
        match self {
            Self::Channels => Self::Sessions,
            Self::Sessions => Self::Peers,
            Self::Peers => Self::Channels,
        }
    }

    fn rows(self, rates: &Rates) -> Rows {
        match self {
            Self::Channels => plain::channels(rates),
            Self::Sessions => plain::sessions(rates),
            Self::Peers => plain::peers(rates),
        }
    }
}

/// What is shown.
#[derive(Debug, Default)]
struct Screen {
    rates: Rates,
    view: View,
    /// First row of the lower part.
    offset: usize,
    /// First column of all parts behind the one that names the row.
    column: usize,
    /// In the place of the last line, while there is no daemon.
    trouble: Option<String>,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Quit,
    NextView,
    Scroll(isize),
    Sideways(isize),
    /// The window has another size.
    Redraw,
}

/// Shows the node until a key or a signal ends it. A daemon that goes away is waited for; one that is not
/// there at the beginning is an error.
pub async fn show(admin: &Path, period: Duration) -> Result<(), Failure> {
    let mut client = connect(admin).await?;
    let mut pictures = Pictures::new(&mut client, period).await?;
    let mut terminate =
        signal(SignalKind::terminate()).map_err(Failure::io("watch for signals"))?;
    let mut wishes = keys();
    let mut terminal = ratatui::try_init().map_err(Failure::io("take the terminal"))?;
    let mut screen = Screen::default();
    let result = async {
        loop {
            terminal
                .draw(|frame| screen.draw(frame))
                .map_err(Failure::io("draw on the terminal"))?;
            tokio::select! {
                next = pictures.next() => match next {
                    Ok(rates) => {
                        screen.rates = rates;
                        screen.trouble = None;
                    }
                    Err(failure) => {
                        screen.trouble = Some(format!("{failure}; trying again"));
                        tokio::time::sleep(TRY_AGAIN).await;
                        if let Ok(mut client) = connect(admin).await
                            && let Ok(again) = Pictures::new(&mut client, period).await
                        {
                            pictures = again;
                        }
                    }
                },
                wish = wishes.recv() => match wish {
                    Some(Wish::Quit) | None => return Ok(()),
                    Some(wish) => screen.act(wish),
                },
                _ = terminate.recv() => return Ok(()),
            }
        }
    }
    .await;
    ratatui::restore();
    result
}

/// Keys as they are pressed. The thread that waits for them ends with the process.
fn keys() -> mpsc::Receiver<Wish> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if let Some(wish) = wish(&event)
                && sender.blocking_send(wish).is_err()
            {
                return;
            }
        }
    });
    receiver
}

fn wish(event: &Event) -> Option<Wish> {
    let key = match event {
        Event::Resize(..) => return Some(Wish::Redraw),
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return None,
    };
    Some(match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Wish::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Wish::Quit,
        KeyCode::Tab => Wish::NextView,
        KeyCode::Up | KeyCode::Char('k') => Wish::Scroll(-1),
        KeyCode::Down | KeyCode::Char('j') => Wish::Scroll(1),
        KeyCode::Left | KeyCode::Char('h') => Wish::Sideways(-1),
        KeyCode::Right | KeyCode::Char('l') => Wish::Sideways(1),
        KeyCode::PageUp => Wish::Scroll(-10),
        KeyCode::PageDown => Wish::Scroll(10),
        _ => return None,
    })
}

impl Screen {
    fn act(&mut self, wish: Wish) {
        match wish {
            Wish::NextView => {
                self.view = self.view.next();
                self.offset = 0;
            }
            Wish::Scroll(rows) => self.offset = self.offset.saturating_add_signed(rows),
            Wish::Sideways(columns) => self.column = self.column.saturating_add_signed(columns),
            Wish::Quit | Wish::Redraw => {}
        }
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let lanes = plain::lanes(&self.rates);
        let ports = plain::ports(&self.rates);
        let height = |rows: &Rows| rows.rows.len() as u16 + 2;
        let [top, upper, middle, lower, bottom] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(height(&lanes)),
            Constraint::Length(height(&ports)),
            Constraint::Min(3),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let heading = match self.rates.node.as_str() {
            "" => "asking the daemon".to_owned(),
            _ => plain::heading(&self.rates),
        };
        frame.render_widget(Paragraph::new(heading), top);
        let rows = self.view.rows(&self.rates);
        self.offset = self.offset.min(rows.rows.len().saturating_sub(1));
        // As far as there is something.
        let most = [&lanes, &ports, &rows].map(|rows| columns_left_of_the_last(rows, lower.width));
        self.column = self.column.min(most.into_iter().max().unwrap_or_default());
        let wide = most.into_iter().any(|most| most > 0);
        draw_table(frame, upper, lanes, 0, self.column.min(most[0]));
        draw_table(frame, middle, ports, 0, self.column.min(most[1]));
        draw_table(frame, lower, rows, self.offset, self.column.min(most[2]));
        let hint = match &self.trouble {
            Some(trouble) => Line::from(trouble.as_str()).style(Modifier::REVERSED),
            None if wide => {
                Line::from("Tab: channels, sessions, peers   Up/Down, Left/Right: scroll   q: quit")
            }
            None => Line::from("Tab: channels, sessions, peers   Up/Down: scroll   q: quit"),
        };
        frame.render_widget(hint, bottom);
    }
}

/// Between two columns.
const SPACING: usize = 2;

/// How wide each column is.
fn widths(rows: &Rows) -> Vec<usize> {
    let columns = rows.columns.iter().enumerate();
    columns
        .map(|(at, (heading, _))| {
            let cells = rows.rows.iter().map(|row| row[at].chars().count());
            cells.chain([heading.len()]).max().unwrap_or_default()
        })
        .collect()
}

/// How many columns behind the first have to be left out so that the last one is seen.
fn columns_left_of_the_last(rows: &Rows, width: u16) -> usize {
    let widths = widths(rows);
    let Some((first, rest)) = widths.split_first() else {
        return 0;
    };
    let mut room = usize::from(width).saturating_sub(*first);
    let fit = rest.iter().rev().take_while(|width| {
        let left = room.checked_sub(**width + SPACING);
        room = left.unwrap_or_default();
        left.is_some()
    });
    // One at least is shown, however narrow the window is.
    rest.len() - fit.count().max(1).min(rest.len())
}

/// Draws a table from its `column`-th column behind the first: as many whole columns as there is room for.
fn draw_table(frame: &mut Frame<'_>, area: Rect, rows: Rows, offset: usize, column: usize) {
    let widths = widths(&rows);
    let mut room = usize::from(area.width);
    let shown: Vec<usize> = (0..widths.len())
        .filter(|&at| at == 0 || at > column)
        .take_while(|&at| {
            let fits = widths[at] <= room;
            room = room.saturating_sub(widths[at] + SPACING);
            fits || at == 0
        })
        .collect();
    let cells = |texts: &[String]| {
        let cells = shown.iter().map(|&at| {
            let line = Line::from(texts[at].clone());
            match rows.columns[at].1 {
                Align::Left => line,
                Align::Right => line.right_aligned(),
            }
        });
        Row::new(cells.collect::<Vec<_>>())
    };
    let headings: Vec<String> = rows
        .columns
        .iter()
        .map(|(heading, _)| (*heading).to_owned())
        .collect();
    let table = Table::new(
        rows.rows.iter().skip(offset).map(|row| cells(row)),
        shown
            .iter()
            .map(|&at| Constraint::Length(widths[at] as u16)),
    )
    .column_spacing(SPACING as u16)
    .header(cells(&headings).style(Style::new().add_modifier(Modifier::BOLD)))
    .block(Block::new().borders(Borders::TOP).title(rows.title));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rates::{ChannelRates, LaneRates, PeerRow};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(screen: &mut Screen) -> String {
        let mut terminal = Terminal::new(TestBackend::new(120, 16)).expect("a terminal");
        terminal.draw(|frame| screen.draw(frame)).expect("drawn");
        terminal.backend().to_string()
    }

    fn screen() -> Screen {
        Screen {
            rates: Rates {
                node: "press".into(),
                lanes: vec![LaneRates::default()],
                channels: (0..50)
                    .map(|channel| ChannelRates {
                        channel,
                        emitted_per_second: 12_345.0,
                        ..ChannelRates::default()
                    })
                    .collect(),
                peers: vec![PeerRow {
                    address: "10.0.0.2:7400".into(),
                    state: "up",
                    ..PeerRow::default()
                }],
                ..Rates::default()
            },
            ..Screen::default()
        }
    }

    #[test]
    fn the_screen_has_node_lanes_and_channels() {
        let text = drawn(&mut screen());
        for expected in [
            "press",
            "1 of 1 peer(s) up",
            "BUSY",
            "EMITTED/s",
            "12.3k",
            "q: quit",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }

    #[test]
    fn keys_change_the_view_and_scroll_and_stay_within_what_is_there() {
        let mut screen = screen();
        screen.act(Wish::Scroll(7));
        screen.act(Wish::Scroll(-1));
        let text = drawn(&mut screen);
        assert!(
            text.contains("\n\"6 ") && !text.contains("\n\"5 "),
            "{text}"
        );
        screen.act(Wish::Scroll(1000));
        drawn(&mut screen);
        assert_eq!(screen.offset, 49);
        screen.act(Wish::NextView);
        screen.act(Wish::NextView);
        assert_eq!(screen.view, View::Peers);
        assert!(drawn(&mut screen).contains("10.0.0.2:7400"));
    }

    #[test]
    fn trouble_replaces_the_hint() {
        let mut screen = screen();
        screen.trouble = Some("the daemon has gone; trying again".into());
        let text = drawn(&mut screen);
        assert!(
            text.contains("trying again") && !text.contains("q: quit"),
            "{text}"
        );
    }

    #[test]
    fn in_a_narrow_window_columns_are_whole_and_the_rest_is_beside() {
        let mut screen = screen();
        let draw = |screen: &mut Screen| {
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a terminal");
            terminal.draw(|frame| screen.draw(frame)).expect("drawn");
            terminal.backend().to_string()
        };
        let text = draw(&mut screen);
        assert!(text.contains("CHANNEL  SOURCES  SINKS  PEERS"), "{text}");
        assert!(
            text.contains("Left/Right") && text.contains("1 of 1 peer(s) up"),
            "{text}"
        );
        assert!(!text.contains("DROPPED/s"), "{text}");
        screen.act(Wish::Sideways(100));
        let text = draw(&mut screen);
        assert!(
            text.contains("DROPPED/s") && text.contains("CHANNEL"),
            "{text}"
        );
        assert!(!text.contains("SOURCES"), "{text}");
        screen.act(Wish::Sideways(-100));
        assert!(draw(&mut screen).contains("SOURCES"));
        // Before there is anything.
        assert!(draw(&mut Screen::default()).contains("asking the daemon"));
    }

    #[test]
    fn a_small_window_is_no_reason_to_fail() {
        let mut screen = screen();
        let mut terminal = Terminal::new(TestBackend::new(5, 3)).expect("a terminal");
        terminal.draw(|frame| screen.draw(frame)).expect("drawn");
    }

    #[test]
    fn keys_are_understood() {
        let key = |key: event::KeyEvent| Event::Key(key);
        assert_eq!(
            wish(&key(event::KeyEvent::from(KeyCode::Char('q')))),
            Some(Wish::Quit)
        );
        let interrupt = event::KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(wish(&key(interrupt)), Some(Wish::Quit));
        assert_eq!(wish(&key(KeyCode::Tab.into())), Some(Wish::NextView));
        assert_eq!(wish(&key(KeyCode::Down.into())), Some(Wish::Scroll(1)));
        assert_eq!(wish(&key(KeyCode::Char('x').into())), None);
    }
}
