//! `takt sub`.

use std::fmt::Write;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use takt::{Error, Message, Reliability, SinkOptions, Wait};
use takt_clock::{Clock, SystemTai};

use crate::application::{Application, Channel};
use crate::failure::Failure;
use crate::output::{Form, name, print, print_json_line};
use crate::signals::Stop;

const HELP: &str = "\
Text is printed with escapes for characters that are not seen (\\u{200d}), other messages in hexadecimal, one
line each. With --json each line is an object with the text as it is; `age_ns` is the time since the sender's runtime took the message, as true as the clocks of
both nodes agree. SIGINT ends it; a summary goes to standard error.

Examples:
  takt sub weather
  takt sub 7 --count 1 --timeout 10s
  takt sub 7 --json | jq .age_ns
  TAKT_GROUP_KEY=$(cat group.key) takt sub 7 --embedded --peer 10.0.0.2:7400";

/// How long a wait lasts before signals are looked at.
pub const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Reads the messages of a channel.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Subscribe {
    /// The channel: its number, or a name of your own
    channel: Channel,
    /// End after this many messages
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// End if no message comes for this long, with exit code 1
    #[arg(long, value_name = "TIME", value_parser = crate::time::parse)]
    timeout: Option<Duration>,
    /// Print nothing but the summary
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
    /// Show the newest message alone, and leave out those that newer ones have taken the place of meanwhile
    #[arg(long)]
    latest: bool,
    #[command(flatten)]
    application: Application,
    #[command(flatten)]
    form: Form,
}

/// A message as JSON.
#[derive(Debug, Serialize)]
struct Line {
    channel: u64,
    sequence: u64,
    sender: u32,
    class: u8,
    send_time_ns: i64,
    age_ns: i64,
    bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

impl Subscribe {
    pub fn run(self) -> Result<(), Failure> {
        let stop = Stop::by_signals()?;
        let attached = self
            .application
            .attach("takt sub", Reliability::BestEffort)?;
        let options = SinkOptions {
            latest: self.latest,
            ..SinkOptions::default()
        };
        let sink = attached.stream.sink_with(self.channel.id, options)?;
        let mut received = 0;
        let mut last = Instant::now();
        let outcome = loop {
            if self.count.is_some_and(|count| received >= count) || stop.asked() {
                break Ok(());
            }
            match sink.consume(Wait::For(LOOK_EVERY)) {
                Ok(message) => {
                    received += 1;
                    last = Instant::now();
                    self.show(&message)?;
                }
                // Interrupted: perhaps by the signal that asks for the end.
                Err(Error::TimedOut | Error::Interrupted) => {
                    if let Some(timeout) = self.timeout
                        && last.elapsed() >= timeout
                    {
                        break Err(Failure::Other(format!(
                            "no message on channel {} for {}",
                            self.channel.written,
                            humantime::format_duration(timeout)
                        )));
                    }
                }
                Err(Error::Disconnected) => {
                    eprintln!("takt: the runtime went away: waiting for it");
                    while !sink_is_back(&sink) && !stop.asked() {
                        std::thread::sleep(LOOK_EVERY);
                    }
                }
                Err(error) => break Err(error.into()),
            }
        };
        let counters = sink.counters();
        let superseded = match counters.superseded {
            0 => String::new(),
            count => format!(", {count} superseded by newer ones"),
        };
        eprintln!(
            "{received} message(s) received on channel {} over {}, {} lost, {} dropped{superseded}",
            self.channel.written,
            attached.stream.datapath(),
            counters.lost + counters.lost_at_disconnect,
            counters.dropped_full + counters.dropped_memory
        );
        outcome
    }

    fn show(&self, message: &Message<'_>) -> Result<(), Failure> {
        if self.quiet {
            return Ok(());
        }
        if !self.form.json {
            return print(&(shown(message) + "\n"));
        }
        let text = readable(message);
        let send_time_ns = message.send_time().as_nanos();
        print_json_line(&Line {
            channel: self.channel.id.0,
            sequence: message.sequence(),
            sender: message.sender(),
            class: message.class().number(),
            send_time_ns,
            age_ns: SystemTai.now().as_nanos().saturating_sub(send_time_ns),
            bytes: message.len(),
            hex: text.is_none().then(|| hexadecimal(message)),
            text,
        })
    }
}

/// Whether the session has attached again.
fn sink_is_back(sink: &takt::Sink) -> bool {
    !matches!(sink.consume(Wait::Never), Err(Error::Disconnected))
}

/// The message, if it is text that keeps to its line.
pub fn readable(message: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(message).ok()?;
    let printable = |c: char| c == '\t' || !c.is_control();
    text.chars().all(printable).then(|| text.to_owned())
}

/// Any message for people: what is not seen in its text, or turns the direction of what is, is escaped.
pub fn shown(message: &[u8]) -> String {
    let Some(text) = readable(message) else {
        return hexadecimal(message);
    };
    text.split('\t').map(name).collect::<Vec<_>>().join("\t")
}

/// A message as digits.
pub fn hexadecimal(message: &[u8]) -> String {
    let mut text = String::with_capacity(2 * message.len());
    for byte in message {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_told_from_other_messages() {
        assert_eq!(readable(b"hello \xc3\xa9").as_deref(), Some("hello \u{e9}"));
        assert_eq!(readable(b"two\nlines"), None);
        assert_eq!(readable(b"\xff"), None);
        assert_eq!(hexadecimal(&[0, 255, 16]), "00ff10");
    }

    #[test]
    fn what_is_not_seen_in_text_is_escaped() {
        assert_eq!(shown("größe\t7".as_bytes()), "größe\t7");
        assert_eq!(
            shown("a\u{202e}b\u{2028}c\u{200d}d\u{e0041}".as_bytes()),
            "a\\u{202e}b\\u{2028}c\\u{200d}d\\u{e0041}"
        );
        assert_eq!(
            shown("\u{3164}\u{a0}\u{2800}\u{fe0f}".as_bytes()),
            "\\u{3164}\\u{a0}\\u{2800}\\u{fe0f}"
        );
        assert_eq!(shown(b"\x1b[31m"), "1b5b33316d");
    }
}
