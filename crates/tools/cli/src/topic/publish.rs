//! `takt topic pub`.

use std::cell::RefCell;

use clap::{Args, ValueEnum};
use serde::Serialize;
use takt::Wait;
use takt_messaging::{Encoding, PublisherOptions};

use super::{Joined, Warnings};
use crate::application::Application;
use crate::failure::Failure;
use crate::output::{Form, name, print_json};
use crate::publish::{Messages, Summary, Target};
use crate::signals::Stop;
use crate::subscribe::LOOK_EVERY;

const HELP: &str = "\
A message is sent once unless `--reliable` or `--within` asks for more. With `--history` the last
messages are kept for those that subscribe later (`takt topic echo --history`), and the command
stays until SIGINT, which ends it at any time with what became of the messages.

Examples:
  takt topic pub weather hello
  takt topic pub plant/7/temperature 21.5 --count 100 --interval 100ms --reliable
  takt topic pub config '{\"rate\": 10}' --encoding json --history 1";

/// Writes messages on a topic.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Pub {
    /// The topic
    topic: String,
    #[command(flatten)]
    messages: Messages,
    /// What subscribers are told of how to read the messages
    #[arg(long, value_enum, default_value_t = Encoded::Text)]
    encoding: Encoded,
    /// Keep this many of the last messages for those that subscribe later
    #[arg(long, value_name = "N", default_value_t = 0)]
    history: u32,
    #[command(flatten)]
    application: Application,
    #[command(flatten)]
    form: Form,
}

/// Encodings that people can write.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Encoded {
    Text,
    Json,
    Bytes,
}

/// What became of the messages of a topic, as JSON.
#[derive(Debug, Serialize)]
struct Line {
    topic: String,
    datapath: String,
    #[serde(flatten)]
    summary: Summary,
}

impl Pub {
    pub fn run(self) -> Result<(), Failure> {
        let reliability = self.messages.reliability()?;
        let check = |message: &[u8]| match self.encoding {
            Encoded::Json => check_json(message),
            Encoded::Text | Encoded::Bytes => Ok(()),
        };
        let text = self.messages.text();
        // Once, and before anybody is waited for.
        text.map_or(Ok(()), |text| check(text.as_bytes()))?;
        let stop = Stop::by_signals()?;
        let joined = Joined::new(&self.application, "takt topic pub")?;
        joined.warn();
        let problems = RefCell::new(Warnings::but(joined.participant.problem()));
        // Late joiners that do not get what is kept are known to this participant alone.
        let look = || {
            let mut problems = problems.borrow_mut();
            if problems.are_due() {
                problems.say(joined.participant.problem());
            }
        };
        let options = PublisherOptions {
            encoding: match self.encoding {
                Encoded::Text => Encoding::TEXT,
                Encoded::Json => Encoding::JSON,
                Encoded::Bytes => Encoding::BYTES,
            },
            history: self.history,
            ..PublisherOptions::new(self.application.quality().with_reliability(reliability))
        };
        let publisher = joined.participant.publisher_with(&self.topic, options)?;
        if let Some(warning) = publisher.warning() {
            eprintln!("takt: warning: {warning}");
        }
        stop.wakes(publisher.source().waker());
        let emit = |message: &[u8]| {
            look();
            if text.is_none() {
                check(message)?;
            }
            match publisher.publish(message, Wait::Forever) {
                Err(error) if error.is_interrupted() => Ok(None),
                token => Ok(Some(token?)),
            }
        };
        let target = Target {
            source: publisher.source(),
            emit: &emit,
            what: "topic",
            name: &self.topic,
            reads: "takt topic echo",
            kept: self.history > 0,
            // What is kept need not be read now.
            local: joined.opened.local && self.history == 0,
        };
        let summary = self.messages.write(&target, &stop)?;
        let ended = summary.ended(&target);
        let datapath = publisher.datapath();
        if !self.form.json {
            eprintln!("{}", summary.line(&target, &datapath));
        }
        if self.history > 0 && !stop.asked() {
            eprintln!("kept for those that subscribe later; SIGINT ends it");
            while !stop.asked() {
                look();
                std::thread::sleep(LOOK_EVERY);
            }
        }
        if self.form.json {
            print_json(&Line {
                topic: self.topic,
                datapath,
                summary,
            })?;
        }
        ended
    }
}

fn check_json(message: &[u8]) -> Result<(), Failure> {
    match serde_json::from_slice::<serde::de::IgnoredAny>(message) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::Arguments(format!(
            "cannot write {} with --encoding json: {error}; write JSON, such as '{{\"rate\": 10}}', or choose another encoding",
            name(&String::from_utf8_lossy(message))
        ))),
    }
}
