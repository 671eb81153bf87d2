//! `takt pub`.

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;
use takt::{Error, Outcome, Reliability, SlowSinks, Source, Token, Wait};

use crate::application::{Application, Channel};
use crate::failure::Failure;
use crate::output::{Form, counted, name, print_json};
use crate::signals::{Stop, readable};

const HELP: &str = "\
A message is sent once, and what is lost is counted; with `--reliable` it is sent again until every reader has it. A
message that nobody reads goes nowhere. `--wait` holds the first message back until somebody reads the channel, here or on a
peer.

Examples:
  takt pub weather hello
  takt pub 7 --count 1000 --interval 1ms --size 64
  tail -f log | takt pub 7 --stdin --reliable
  takt pub 7 --count 1000 --size 1200 --within 2ms --slow-readers drop
  TAKT_GROUP_KEY=$(cat group.key) takt pub 7 hello --embedded --port 0 --peer 10.0.0.2:7400";

/// How long to wait between two looks at outcomes.
pub const PAUSE: Duration = Duration::from_millis(1);
/// How long to look for a reader where there is no daemon: it has to be found first.
const FIND_WITHIN: Duration = Duration::from_secs(10);
/// How long to wait for the outcomes of the last messages, where no slow reader is waited for.
const SETTLE: Duration = Duration::from_secs(5);
/// The same once a signal asks for the end.
pub const SETTLE_AT_SIGNAL: Duration = Duration::from_secs(1);
/// Bytes of a message that may be asked for. A runtime may take fewer, and says so.
const MOST_BYTES: usize = 1 << 30;
/// Bytes of standard input that are read at once.
const READ: usize = 65_536;

/// Writes messages on a channel.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Publish {
    /// The channel: its number, or a name of your own
    channel: Channel,
    #[command(flatten)]
    messages: Messages,
    #[command(flatten)]
    application: Application,
    #[command(flatten)]
    form: Form,
}

/// What to write, when, and how it is delivered.
#[derive(Debug, Args)]
pub struct Messages {
    /// What to write; `message N` if not given
    #[arg(conflicts_with_all = ["size", "stdin"])]
    text: Option<String>,
    /// How many messages to write
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        conflicts_with = "stdin",
        allow_negative_numbers = true
    )]
    count: u64,
    /// Time between two messages, such as 1s, 10ms or 50us; without it as fast as they go
    #[arg(long, value_name = "TIME", value_parser = crate::time::parse)]
    interval: Option<Duration>,
    /// Write messages of this many bytes: their number, then zeros
    #[arg(long, value_name = "BYTES", conflicts_with = "stdin", value_parser = size)]
    size: Option<usize>,
    /// Write each line of standard input as a message
    #[arg(long)]
    stdin: bool,
    /// Wait this long for somebody to read it before the first message [default: 10s without a daemon,
    /// else not at all]
    #[arg(long, value_name = "TIME", value_parser = crate::time::parse)]
    wait: Option<Duration>,
    #[command(flatten)]
    reliable: Reliable,
}

/// Bytes of a message.
fn size(written: &str) -> Result<usize, String> {
    let size: u128 = written
        .parse()
        .map_err(|error: std::num::ParseIntError| error.to_string())?;
    match usize::try_from(size) {
        Ok(size) if size <= MOST_BYTES => Ok(size),
        _ => Err(format!(
            "{size} bytes are too many: write at most {MOST_BYTES}"
        )),
    }
}

/// Whether messages are sent again.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reliability")]
pub struct Reliable {
    /// In order, and sent again until every reader has it
    #[arg(long)]
    reliable: bool,
    /// The same, but only while a message can arrive this long after it was emitted
    #[arg(long, value_name = "TIME", value_parser = crate::time::parse)]
    within: Option<Duration>,
    /// In order, and sent again until every reader's node has it or a newer one is written, which never waits
    #[arg(long, conflicts_with_all = ["reliable", "within"])]
    latest: bool,
    /// What happens while a reader has no room: it does without after `--patience`, it is waited for, or it does
    /// without at once
    #[arg(long, value_enum, default_value_t = Slow::Evict)]
    slow_readers: Slow,
    /// How long `evict` waits
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::time::parse)]
    patience: Duration,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Slow {
    Evict,
    Wait,
    Drop,
}

impl Reliable {
    /// How long to wait for the outcomes of the last messages.
    pub fn settle(&self) -> Result<Duration, Failure> {
        Ok(match self.reliability()? {
            Reliability::BestEffort | Reliability::Latest => SETTLE,
            Reliability::Reliable { .. } => SETTLE + self.patience,
        })
    }

    pub fn reliability(&self) -> Result<Reliability, Failure> {
        if self.latest {
            return Ok(Reliability::Latest);
        }
        if !self.reliable && self.within.is_none() {
            return Ok(Reliability::BestEffort);
        }
        let reliability = Reliability::Reliable {
            deadline: self.within,
            slow_sinks: match self.slow_readers {
                Slow::Evict => SlowSinks::Evict(self.patience),
                Slow::Wait => SlowSinks::Wait,
                Slow::Drop => SlowSinks::Drop,
            },
        };
        match reliability.is_possible() {
            true => Ok(reliability),
            false => Err(Failure::Arguments(
                "`--within` and `--patience` must be times from 1ns to 1h".into(),
            )),
        }
    }
}

/// What became of the messages of a channel, as JSON.
#[derive(Debug, Serialize)]
struct Line {
    channel: u64,
    datapath: String,
    #[serde(flatten)]
    summary: Summary,
}

/// What became of the messages.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    emitted: u64,
    /// Handed to all sinks that were known.
    sent: u64,
    /// Nobody read the channel.
    no_sink: u64,
    /// Some remote sink could not be reached.
    unreachable: u64,
    /// Not sent by the schedule of the node.
    not_scheduled: u64,
    /// Reliable, and some sink does without.
    undelivered: u64,
    /// The runtime went away before it told.
    unknown: u64,
    seconds: f64,
    /// It was told to end while it waited for a reader.
    #[serde(skip)]
    unread: bool,
}

impl Publish {
    pub fn run(self) -> Result<(), Failure> {
        let reliability = self.messages.reliability()?;
        let stop = Stop::by_signals()?;
        let attached = self.application.attach("takt pub", reliability)?;
        let source = attached.stream.source(self.channel.id)?;
        stop.wakes(source.waker());
        let emit = |message: &[u8]| {
            let mut buffer = match source.buffer_wait(message.len(), Wait::Forever) {
                Err(Error::Interrupted) => return Ok(None),
                buffer => buffer?,
            };
            buffer.copy_from_slice(message);
            Ok(Some(buffer.emit()?))
        };
        let target = Target {
            source: &source,
            emit: &emit,
            what: "channel",
            name: &self.channel.written,
            reads: "takt sub",
            kept: false,
            local: attached.local,
        };
        let summary = self.messages.write(&target, &stop)?;
        let ended = summary.ended(&target);
        let datapath = attached.stream.datapath();
        if self.form.json {
            print_json(&Line {
                channel: self.channel.id.0,
                datapath,
                summary,
            })?;
        } else {
            eprintln!("{}", summary.line(&target, &datapath));
        }
        ended
    }
}

/// Emits a message. None: the wait for room was interrupted.
pub type Emit<'a> = dyn Fn(&[u8]) -> Result<Option<Token>, Failure> + 'a;

/// What is written to, and how.
pub struct Target<'a> {
    pub source: &'a Source,
    pub emit: &'a Emit<'a>,
    /// What it is, as people call it.
    pub what: &'static str,
    /// Its name, as it was written.
    pub name: &'a str,
    /// The command that reads it.
    pub reads: &'static str,
    /// What nobody reads now is kept for those that come later.
    pub kept: bool,
    /// Readers have to be found first: there is no daemon.
    pub local: bool,
}

impl Target<'_> {
    /// The command that reads it, for a shell.
    fn reader(&self) -> String {
        let plain = |c: char| c.is_alphanumeric() || "/_.-".contains(c);
        match self.name.chars().all(plain) {
            true => format!("{} {}", self.reads, self.name),
            false => format!(
                "{} '{}'",
                self.reads,
                name(self.name).replace('\'', "'\\''")
            ),
        }
    }
}

impl Messages {
    /// How they are delivered.
    pub fn reliability(&self) -> Result<Reliability, Failure> {
        self.reliable.reliability()
    }

    /// The text that is given, if one is.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Writes them until it is told to stop, and waits for what became of them.
    pub fn write(&self, target: &Target<'_>, stop: &Stop) -> Result<Summary, Failure> {
        let mut writer = Writer {
            target,
            stop,
            settled: 0,
            interval: self.interval,
            next: Instant::now(),
            wait: self
                .wait
                .or(target.local.then_some(FIND_WITHIN))
                .map(|wait| Instant::now() + wait),
            settle: self.reliable.settle()?,
            summary: Summary::default(),
        };
        let start = Instant::now();
        if self.stdin {
            writer.lines()?;
        } else {
            for number in 0..self.count {
                let message = match (&self.text, self.size) {
                    (Some(text), _) => text.clone().into_bytes(),
                    (None, Some(size)) => sized(number, size),
                    (None, None) => format!("message {number}").into_bytes(),
                };
                if !writer.write(&message)? {
                    break;
                }
            }
        }
        let mut summary = writer.settle();
        summary.seconds = start.elapsed().as_secs_f64();
        Ok(summary)
    }
}

impl Summary {
    /// Fails if it was told to end before somebody read what it was to write.
    pub fn ended(&self, target: &Target<'_>) -> Result<(), Failure> {
        if !self.unread {
            return Ok(());
        }
        Err(Failure::Other(format!(
            "nobody reads {} {} yet, and nothing was sent: start `{}`, or do not wait for it (--wait)",
            target.what,
            name(target.name),
            target.reader()
        )))
    }

    /// What is worth saying: how many were sent, and of the others which there are.
    pub fn line(&self, target: &Target<'_>, datapath: &str) -> String {
        let others = counted([
            (self.no_sink, "without a sink"),
            (self.unreachable, "unreachable"),
            (self.not_scheduled, "not scheduled"),
            (self.undelivered, "undelivered"),
            (self.unknown, "unknown"),
        ]);
        let (what, name) = (target.what, name(target.name));
        let line = format!(
            "{what} {name} over {datapath}: {} sent{others} in {:.3} s",
            self.sent, self.seconds
        );
        if self.no_sink == 0 || self.sent > 0 || target.kept {
            return line;
        }
        format!(
            "{line}; nobody reads it: start `{}` first, or hold messages back until somebody does with --wait",
            target.reader()
        )
    }
}

fn sized(number: u64, size: usize) -> Vec<u8> {
    let mut message = vec![0; size];
    let number = number.to_le_bytes();
    let length = size.min(number.len());
    message[..length].copy_from_slice(&number[..length]);
    message
}

struct Writer<'a> {
    target: &'a Target<'a>,
    stop: &'a Stop,
    /// Messages whose outcome has been counted.
    settled: u64,
    interval: Option<Duration>,
    /// When the next message is due.
    next: Instant,
    /// Until when to wait for a reader; none: somebody reads, or it does not matter.
    wait: Option<Instant>,
    /// How long to wait for the outcomes of the last messages.
    settle: Duration,
    summary: Summary,
}

impl Writer<'_> {
    /// Writes each line of standard input.
    fn lines(&mut self) -> Result<(), Failure> {
        let input = std::io::stdin();
        let mut read = Vec::new();
        let mut more = vec![0; READ];
        while readable(&input, self.stop) {
            let length = match rustix::io::read(&input, &mut more) {
                Err(rustix::io::Errno::INTR) => continue,
                length => length
                    .map_err(Into::into)
                    .map_err(Failure::io("read standard input"))?,
            };
            if length == 0 {
                if !read.is_empty() {
                    self.write(&read)?;
                }
                break;
            }
            let mut lines = more[..length].split(|byte| *byte == b'\n');
            // Behind the last end of a line there is the beginning of the next.
            let rest = lines.next_back().unwrap_or_default();
            for line in lines {
                read.extend_from_slice(line);
                if !self.write(&read)? {
                    return Ok(());
                }
                read.clear();
            }
            read.extend_from_slice(rest);
        }
        Ok(())
    }

    /// Writes a message; false: told to stop.
    fn write(&mut self, message: &[u8]) -> Result<bool, Failure> {
        if let Some(interval) = self.interval {
            if !self.stop.sleep_until(self.next) {
                return Ok(false);
            }
            self.next += interval;
        }
        while let Some(deadline) = self.wait.take() {
            let (what, name) = (self.target.what, name(self.target.name));
            match self.target.source.wait_reader(Wait::Until(deadline)) {
                Ok(_) => {}
                Err(Error::Interrupted) if !self.stop.asked() => self.wait = Some(deadline),
                Err(Error::Interrupted) => {
                    self.summary.unread = true;
                    return Ok(false);
                }
                Err(Error::TimedOut) => {
                    return Err(Failure::Other(format!(
                        "nobody reads {what} {name} yet: start `{}`, or wait longer (--wait)",
                        self.target.reader()
                    )));
                }
                Err(error) => return Err(error.into()),
            }
        }
        while !self.stop.asked() {
            if (self.target.emit)(message)?.is_some() {
                self.summary.emitted += 1;
                self.count(false);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The outcome of a message, unless it takes longer than `deadline`, which a signal draws near.
    fn outcome(&self, token: Token, deadline: &mut Instant) -> Outcome {
        loop {
            match self.target.source.outcome(token) {
                Outcome::Pending if Instant::now() < *deadline => std::thread::sleep(PAUSE),
                outcome => return outcome,
            }
            if self.stop.asked() {
                *deadline = (*deadline).min(Instant::now() + SETTLE_AT_SIGNAL);
            }
        }
    }

    /// Counts outcomes in order, as far as they are known; all of them if `to_the_end`.
    fn count(&mut self, to_the_end: bool) {
        let mut deadline = Instant::now() + self.settle;
        while self.settled < self.summary.emitted {
            let token = Token::from_number(self.settled);
            let outcome = if to_the_end {
                self.outcome(token, &mut deadline)
            } else {
                self.target.source.outcome(token)
            };
            match outcome {
                Outcome::Pending if !to_the_end => return,
                Outcome::Sent => self.summary.sent += 1,
                Outcome::NoSink => self.summary.no_sink += 1,
                Outcome::Unreachable => self.summary.unreachable += 1,
                Outcome::Undelivered => self.summary.undelivered += 1,
                // Refused: outside what is declared of the tenant's streams.
                Outcome::Late | Outcome::NotScheduled | Outcome::Refused => {
                    self.summary.not_scheduled += 1;
                }
                Outcome::Pending | Outcome::Lost | Outcome::Unknown => self.summary.unknown += 1,
            }
            self.settled += 1;
        }
    }

    fn settle(mut self) -> Summary {
        self.target.source.flush();
        self.count(true);
        self.summary
    }
}
