//! `takt topic`.

mod echo;
mod list;
mod publish;
mod rate;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde::Serialize;
use takt::Wait;
use takt_messaging::{Error, Participant, Sample, Subscriber, SubscriberOptions};

use crate::application::{Application, Opened};
use crate::failure::Failure;
use crate::output::{Form, counted, json_line, name};
use crate::signals::Stop;
use crate::subscribe::LOOK_EVERY;

const HELP: &str = "\
A topic is a name with levels: plant/7/temperature. Subscribers may use patterns: `*` for one
level, `**` for any number of them. Topics work as channels do: without a daemon on one machine,
with one between nodes.

Examples:
  takt topic pub plant/7/temperature 21.5
  takt topic echo 'plant/*/temperature'
  takt topic list
  takt topic hz plant/7/temperature";

/// Messages of a topic that may wait while this program prints.
const DEPTH: u32 = 4096;
/// The same for each topic of a pattern: a session has memory for thousands of them.
const PATTERN_DEPTH: u32 = 64;
/// Between two looks at what is not received.
const WARN_EVERY: Duration = Duration::from_secs(1);
/// Warnings that are said: whoever may write the directory could have any number of them said.
const MOST_WARNINGS: usize = 100;

/// Publishes, subscribes, and lists topics.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct TopicCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List topics, with who writes and reads them
    List(list::List),
    /// Print the messages of a topic, or of all that a pattern matches
    Echo(echo::Echo),
    /// Write messages on a topic
    Pub(publish::Pub),
    /// Show how often messages come
    Hz(rate::Hz),
    /// Show how many bytes come
    Bw(rate::Bw),
}

impl TopicCommand {
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::List(list) => list.run(),
            Action::Echo(echo) => echo.run(),
            Action::Pub(publish) => publish.run(),
            Action::Hz(hz) => hz.run(),
            Action::Bw(bw) => bw.run(),
        }
    }
}

/// A participant, with what it needs to live.
pub struct Joined {
    pub participant: Participant,
    opened: Opened,
}

impl Joined {
    /// Attaches and takes part.
    pub fn new(application: &Application, name: &str) -> Result<Self, Failure> {
        let opened = application.open(name)?;
        let participant = Participant::builder(opened.session.clone()).name(name);
        let participant = participant.open()?;
        Ok(Self {
            participant,
            opened,
        })
    }

    /// A subscriber; says on standard error if others do not hear of it, or it is not what was asked for. As many messages
    /// wait as a session has memory for, unless the options say how many.
    fn subscriber(
        &self,
        topic: &str,
        mut options: SubscriberOptions,
    ) -> Result<Subscriber, Failure> {
        self.warn();
        if options.depth == 0 && !options.latest {
            options.depth = match topic.contains('*') {
                true => PATTERN_DEPTH,
                false => DEPTH,
            };
        }
        if let Some(warning) = self.opened.session.stream(options.qos)?.warning() {
            eprintln!("takt: warning: {warning}");
        }
        Ok(self.participant.subscriber_with(topic, options)?)
    }

    /// Says on standard error if others do not hear of it.
    pub fn warn(&self) {
        if let Some(problem) = self.participant.problem() {
            eprintln!(
                "takt: warning: others do not see this program in their lists of topics: {problem}"
            );
        }
    }
}

/// When to end, besides a signal.
#[derive(Debug, Args)]
struct End {
    /// End after this many messages
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// End if no message comes for this long, with exit code 1
    #[arg(long, value_name = "TIME", value_parser = crate::time::parse)]
    timeout: Option<Duration>,
}

impl End {
    /// Hands samples to `sample` until it is time to end, and calls `look` between them, several times a second. `received` says
    /// how many they were, however it ended.
    fn take(
        &self,
        subscriber: &mut Subscriber,
        stop: &Stop,
        received: &mut u64,
        mut sample: impl FnMut(&Sample<'_>) -> Result<(), Failure>,
        mut look: impl FnMut(Instant) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut last = Instant::now();
        let mut away = false;
        let mut warnings = Warnings::default();
        while self.count.is_none_or(|count| *received < count) && !stop.asked() {
            if warnings.are_due() {
                // Topics that nobody publishes any more make room for others.
                subscriber.prune();
                warnings.say(subscriber.warning());
            }
            match subscriber.take(Wait::For(LOOK_EVERY)) {
                Ok(message) => {
                    *received += 1;
                    (last, away) = (Instant::now(), false);
                    sample(&message)?;
                    look(last)?;
                }
                // Interrupted: perhaps by the signal that asks for the end.
                Err(error) if error.is_timed_out() || error.is_interrupted() => {
                    look(Instant::now())?;
                    if let Some(timeout) = self.timeout
                        && last.elapsed() >= timeout
                    {
                        return Err(Failure::Other(format!(
                            "no message on topic {} for {}",
                            name(subscriber.topic()),
                            humantime::format_duration(timeout)
                        )));
                    }
                }
                Err(Error::Channel(takt::Error::Disconnected)) => {
                    if !std::mem::replace(&mut away, true) {
                        eprintln!("takt: the runtime went away: waiting for it");
                    }
                    std::thread::sleep(LOOK_EVERY);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// What a subscriber does not get, or a participant cannot do, said when it is new.
#[derive(Default)]
struct Warnings {
    looked: Option<Instant>,
    said: HashSet<String>,
}

impl Warnings {
    /// But for this, which has been said.
    fn but(said: Option<String>) -> Self {
        Self {
            looked: None,
            said: said.into_iter().collect(),
        }
    }

    /// Whether it is time for a look; at most one each second.
    fn are_due(&mut self) -> bool {
        let due = self.looked.is_none_or(|at| at.elapsed() >= WARN_EVERY);
        if due {
            self.looked = Some(Instant::now());
        }
        due
    }

    /// Says it on standard error, unless it has been said.
    fn say(&mut self, warning: Option<String>) {
        let new = |warning: &String| !self.said.contains(warning);
        let Some(warning) = warning.filter(new) else {
            return;
        };
        if self.said.len() < MOST_WARNINGS {
            eprintln!("takt: warning: {warning}");
            self.said.insert(warning);
        }
    }
}

/// What was received, and what was not.
#[derive(Debug, Serialize)]
struct Summary {
    topic: String,
    received: u64,
    lost: u64,
    dropped: u64,
    /// In the place of which a newer one was taken.
    superseded: u64,
    /// Of other topics with the same channel.
    foreign: u64,
    /// Written by no publisher.
    malformed: u64,
    /// Topics that could not be opened.
    unopened: u64,
}

impl Summary {
    fn of(subscriber: &Subscriber, received: u64) -> Self {
        let counters = subscriber.counters();
        let channels = counters.channels;
        Self {
            topic: subscriber.topic().to_owned(),
            received,
            lost: channels.lost + channels.lost_at_disconnect,
            dropped: channels.dropped_full + channels.dropped_memory,
            superseded: channels.superseded,
            foreign: counters.foreign,
            malformed: counters.malformed,
            unopened: counters.unopened,
        }
    }

    fn line(&self) -> String {
        let others = counted([
            (self.superseded, "superseded by newer ones"),
            (self.foreign, "of other topics with the same channel"),
            (self.malformed, "that no publisher has written"),
            (self.unopened, "topic(s) could not be opened"),
        ]);
        format!(
            "{} message(s) received on topic {}, {} lost, {} dropped{others}",
            self.received,
            name(&self.topic),
            self.lost,
            self.dropped
        )
    }
}

/// Says on standard error what was received, and what was not.
fn sum_up(subscriber: &Subscriber, received: u64, form: Form) -> Result<(), Failure> {
    let summary = Summary::of(subscriber, received);
    if form.json {
        eprint!("{}", json_line(&summary)?);
    } else {
        eprintln!("{}", summary.line());
    }
    if let Some(warning) = subscriber.warning() {
        eprintln!("takt: warning: {warning}");
    }
    Ok(())
}
