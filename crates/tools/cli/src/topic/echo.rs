//! `takt topic echo`.

use clap::Args;
use serde::Serialize;
use takt_clock::{Clock, SystemTai};
use takt_messaging::{Sample, SubscriberOptions};

use super::{End, Joined, sum_up};
use crate::application::Application;
use crate::failure::Failure;
use crate::output::{Form, name, print, print_json_line};
use crate::signals::Stop;
use crate::subscribe::{hexadecimal, readable, shown};

const HELP: &str = "\
Text is printed with escapes for characters that are not seen (\\u{200d}), other messages in hexadecimal, one
line each; with a pattern the topic stands before it. With --json each line is an object with the text as it
is. SIGINT ends it; a summary goes to standard error, with
--json as an object.

Examples:
  takt topic echo weather
  takt topic echo 'plant/*/temperature' --count 10
  takt topic echo config --history 1 --count 1 --timeout 5s";

/// Prints the messages of a topic, or of all that a pattern matches.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Echo {
    /// The topic, or a pattern
    topic: String,
    /// Begin with this many of the last messages of each publisher, of those that publishers keep
    #[arg(long, value_name = "N", default_value_t = 0)]
    history: u32,
    /// Show the newest message of a topic alone, and leave out those that newer ones have taken the place of meanwhile
    #[arg(long)]
    latest: bool,
    #[command(flatten)]
    end: End,
    #[command(flatten)]
    application: Application,
    #[command(flatten)]
    form: Form,
}

/// A message as JSON.
#[derive(Debug, Serialize)]
struct Line<'a> {
    topic: &'a str,
    publisher: u32,
    number: u64,
    history: bool,
    encoding: String,
    send_time_ns: i64,
    /// Not of what was kept: its time is that of its being sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_ns: Option<i64>,
    bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

impl Echo {
    pub fn run(self) -> Result<(), Failure> {
        let stop = Stop::by_signals()?;
        let joined = Joined::new(&self.application, "takt topic echo")?;
        let options = SubscriberOptions {
            history: self.history,
            latest: self.latest,
            ..SubscriberOptions::new(self.application.quality())
        };
        let mut subscriber = joined.subscriber(&self.topic, options)?;
        let mut received = 0;
        let show = |sample: &Sample<'_>| self.show(sample);
        let ended = (self.end).take(&mut subscriber, &stop, &mut received, show, |_| Ok(()));
        sum_up(&subscriber, received, self.form)?;
        ended
    }

    fn show(&self, sample: &Sample<'_>) -> Result<(), Failure> {
        if !self.form.json {
            let shown = shown(sample);
            return match sample.topic() == self.topic {
                true => print(&(shown + "\n")),
                false => print(&format!("{}: {shown}\n", name(sample.topic()))),
            };
        }
        let text = readable(sample);
        let send_time_ns = sample.send_time().as_nanos();
        print_json_line(&Line {
            topic: sample.topic(),
            publisher: sample.publisher(),
            number: sample.number(),
            history: sample.is_history(),
            encoding: sample.encoding().to_string(),
            send_time_ns,
            age_ns: (!sample.is_history())
                .then(|| SystemTai.now().as_nanos().saturating_sub(send_time_ns)),
            bytes: sample.len(),
            hex: text.is_none().then(|| hexadecimal(sample)),
            text,
        })
    }
}
