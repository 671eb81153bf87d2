//! `takt health`: files of specifications and rules.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde::Serialize;
use std::sync::atomic::Ordering;
use takt_health::learn;
use takt_health::rule::{self, Finding, Severity};
use takt_health::spec::{Document, MAX_LENGTH};

use super::engine::Engine;
use super::source::{Observe, Source};
use crate::failure::{Failure, unreadable};
use crate::output::{Form, print, print_json, write_text};

/// Checks, explains and learns what flows are to keep to.
#[derive(Debug, Args)]
pub struct Health {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Explain every specification and rule of a file, and every mistake
    Check(Check),
    /// Propose specifications from a capture or a stretch of traffic that is good
    Learn(Learn),
}

const CHECK_HELP: &str = "\
Each finding ends in a code that stays the same. Errors: a specification or rule can never do
anything, or contradicts itself. The exit code is 0 if there is no error (with --strict: no warning
either), and 4 otherwise.

Examples:
  takt health check camera.toml
  takt health check camera.toml --json | jq '.findings[].code'";

/// Explains every specification and rule of a file, and every mistake.
#[derive(Debug, Args)]
#[command(after_help = CHECK_HELP)]
struct Check {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Take warnings for errors
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    form: Form,
}

const LEARN_HELP: &str = "\
The proposal says what it rests on. Of flows that carry no send times and numbers, how late beats may be and how many may be
missing is learned once their period is known: with -r by reading the file again (not of standard input), else in the second half of the
time of --for. Nothing is in force until you give the file to `takt monitor
--rules`: read it, and change what was seen by chance.

Examples:
  takt health learn -r good.pcapng --output plant.toml
  takt health learn -i eth0 --for 60s
  takt health learn --node --tenant press --for 60s";

/// Proposes specifications from a capture or a stretch of traffic that is good.
#[derive(Debug, Args)]
#[command(after_help = LEARN_HELP)]
struct Learn {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    observe: Observe,
    /// How far limits are from what was seen, 1 to 100
    #[arg(long, default_value_t = 1.5, value_parser = factor)]
    factor: f64,
    /// Where to write it; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
}

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "write 1 to 100".to_owned())?;
    match (1.0..=100.0).contains(&factor) {
        true => Ok(factor),
        false => Err("write 1 to 100".into()),
    }
}

/// Time between two looks at a file of rules.
const LOOK: Duration = Duration::from_secs(1);
/// Flows of which it is said why nothing was learned.
const REASONS: usize = 10;

#[derive(Serialize)]
struct Checked {
    flows: usize,
    specs: Vec<String>,
    rules: Vec<String>,
    findings: Vec<Finding>,
}

fn read_text(path: &Path) -> Result<String, Failure> {
    let name = path.display();
    let cannot = |error: std::io::Error| Failure::Schedule(unreadable(path.display(), &error));
    let length = std::fs::metadata(path).map_err(cannot)?.len();
    if length > MAX_LENGTH as u64 {
        return Err(Failure::Schedule(format!(
            "{name}: {length} bytes; at most {MAX_LENGTH} are read"
        )));
    }
    std::fs::read_to_string(path).map_err(cannot)
}

fn document(path: &Path, text: &str) -> Result<Document, Failure> {
    let name = path.display();
    Document::read(text).map_err(|error| Failure::Schedule(format!("{name}: {error}")))
}

/// What a file says, if it contradicts nothing.
fn sound(path: &Path, text: &str) -> Result<Document, Failure> {
    let document = document(path, text)?;
    let findings = rule::check(&document);
    match findings.iter().find(|f| f.severity == Severity::Error) {
        None => Ok(document),
        Some(error) => Err(Failure::Schedule(format!(
            "{name}: {error}; `takt health check {name}` tells all",
            name = path.display()
        ))),
    }
}

/// A file that is in force, and may change meanwhile.
pub struct Watched {
    path: PathBuf,
    /// The text, or why it cannot be read.
    last: Result<String, String>,
}

impl Watched {
    /// What the file says now, and what becomes of it.
    pub fn open(path: &Path) -> Result<(Document, Self), Failure> {
        let text = read_text(path)?;
        let document = sound(path, &text)?;
        let (path, last) = (path.to_owned(), Ok(text));
        Ok((document, Self { path, last }))
    }

    /// What the file says now, if it changed and is good; what is wrong is told.
    pub fn changed(&mut self) -> Option<Document> {
        // A file that is being replaced may be gone for a moment, and a pipe is read once.
        if !std::fs::metadata(&self.path).is_ok_and(|about| about.is_file()) {
            return None;
        }
        let now = read_text(&self.path).map_err(|failure| failure.to_string());
        if now == self.last {
            return None;
        }
        self.last = now;
        let text = self.last.as_ref().map_err(Clone::clone);
        let document =
            text.and_then(|text| sound(&self.path, text).map_err(|failure| failure.to_string()));
        document
            .inspect_err(|failure| eprintln!("takt: {failure}; the rules before stay"))
            .ok()
    }

    /// Looks every now and then, in a thread of its own: whoever takes the changed documents waits for no file.
    pub fn follow(mut self) -> Result<Receiver<Document>, Failure> {
        let (to, documents) = channel();
        let look = move || {
            loop {
                thread::sleep(LOOK);
                if let Some(document) = self.changed()
                    && to.send(document).is_err()
                {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("rules".into()).spawn(look);
        thread.map_err(Failure::io("start a thread"))?;
        Ok(documents)
    }
}

impl Health {
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Check(check) => check.run(),
            Action::Learn(learn) => learn.run(),
        }
    }
}

impl Check {
    fn run(&self) -> Result<(), Failure> {
        let document = document(&self.file, &read_text(&self.file)?)?;
        let findings = rule::check(&document);
        let count = |severity| findings.iter().filter(|f| f.severity == severity).count();
        let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
        let rules: Vec<String> = document
            .rules
            .iter()
            .map(|rule| format!("rule {}: {}", rule.name, rule.explain()))
            .collect();
        let specs: Vec<String> = document
            .specs
            .iter()
            .map(|spec| format!("flow {}: {}", spec.name, spec.explain()))
            .collect();
        if self.form.json {
            print_json(&Checked {
                flows: specs.len(),
                specs,
                rules,
                findings,
            })?;
        } else {
            let mut text = String::new();
            for line in specs.iter().chain(&rules) {
                text.push_str(&(crate::output::wrap(line, 80).join("\n  ") + "\n"));
            }
            for finding in findings {
                text.push_str(&format!("{finding}\n"));
            }
            print(&text)?;
        }
        if errors > 0 || (self.strict && warnings > 0) {
            let counted = format!("{errors} errors, {warnings} warnings");
            return Err(Failure::Schedule(format!(
                "{}: {counted}",
                self.file.display()
            )));
        }
        Ok(())
    }
}

impl Learn {
    fn run(&self) -> Result<(), Failure> {
        if self.output != Path::new("-") && self.output.is_file() {
            return Err(Failure::Other(format!(
                "{} is there, and may have been changed by hand: remove it first, or name another file",
                self.output.display()
            )));
        }
        let mut engine = Engine::new(&self.source, &self.observe, Document::default())?;
        let stop = super::stop_on_signals()?;
        let watch = |engine: &mut Engine, time: Option<Duration>| {
            let begin = Instant::now();
            while !stop.load(Ordering::Relaxed)
                && time.is_none_or(|time| begin.elapsed() < time)
                && engine.step()?
            {}
            Ok::<(), Failure>(())
        };
        let half = self.source.lasts.map(|time| time / 2);
        watch(&mut engine, half)?;
        engine.finish_well()?;
        let periods = learn::periods(engine.flows());
        if !periods.specs.is_empty() {
            // How late beats come is known by their period: the file again, or the other half of the time.
            match &self.source.read {
                Some(path) if path != Path::new("-") => {
                    engine = Engine::new(&self.source, &self.observe, periods)?;
                }
                _ => engine.replace(&periods),
            }
        }
        watch(&mut engine, half)?;
        engine.finish_well()?;
        let mut text = String::new();
        let mut names = 0;
        let mut reasons = Vec::new();
        for at in engine.order() {
            let flow = engine.flow(at);
            let carrier = matches!(flow.stamp, takt_health::stamp::Stamp::Takt)
                && flow.key.addresses().is_some();
            if carrier {
                // Its channels are learned.
                continue;
            }
            match learn::propose(flow, format!("flow-{}", names + 1), self.factor) {
                Ok(proposal) => {
                    names += 1;
                    text.push_str(&format!(
                        "# {}\n# seen: {}\n",
                        flow.key,
                        proposal.because.join("; ")
                    ));
                    text.push_str(&(proposal.spec.to_toml() + "\n"));
                }
                Err(why) => reasons.push(format!("{}: {why}", flow.key)),
            }
        }
        if names == 0 {
            let shown = reasons.len().min(REASONS);
            let more = match reasons.len() - shown {
                0 => String::new(),
                more => format!("\n{more} more flows"),
            };
            return Err(Failure::Other(format!(
                "{}: nothing to learn from; take a longer or a better stretch\n{}{more}",
                engine.name(),
                reasons[..shown].join("\n")
            )));
        }
        write_text(&self.output, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use takt_testing::Directory;

    #[test]
    fn rules_stay_where_their_file_is_no_file() {
        let directory = Directory::new();
        let path = directory.join("rules.toml");
        std::fs::write(&path, "").expect("written");
        let (_, mut watched) = Watched::open(&path).expect("rules");
        std::fs::write(&path, "# Others.\n").expect("written");
        assert!(watched.changed().is_some());
        std::fs::remove_file(&path).expect("there");
        assert!(watched.changed().is_none());
        std::fs::create_dir(&path).expect("made");
        assert!(watched.changed().is_none(), "read again it would be told");
        assert_eq!(watched.last.as_deref(), Ok("# Others.\n"));
    }
}
