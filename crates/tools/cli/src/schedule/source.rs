//! Where a schedule is read from, and the port it is looked at for.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use takt_schedule::form::{self, Document, Form};
use takt_schedule::{Link, PortModel};

use crate::failure::{Failure, unreadable};

/// How files are read.
#[derive(Debug, Args)]
pub struct Reading {
    /// Form of the file: toml, tc, json or xml; without it the file's name and content tell
    #[arg(long, value_name = "FORM")]
    from: Option<Form>,
    /// Interface whose schedule is meant, where a YANG document has several
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
}

/// What a file says.
pub struct Source {
    /// The file's name for messages.
    pub name: String,
    /// The form it is in.
    pub form: Form,
    /// What it says.
    pub document: Document,
    /// What of it is left out, a sentence each.
    pub lost: Vec<String>,
}

impl Reading {
    /// Reads a schedule; `-` is standard input.
    pub fn read(&self, path: &Path) -> Result<Source, Failure> {
        let (name, text) = text(path)?;
        let form = self.from.unwrap_or_else(|| form_of(path, &text));
        let parsed = form::read(form, &text, self.interface.as_deref())
            .map_err(|error| Failure::Schedule(format!("{name}: {error}")))?;
        Ok(Source {
            name,
            form,
            document: parsed.document,
            lost: parsed.lost,
        })
    }
}

impl Source {
    /// Tells on standard error what of the file is left out.
    pub fn tell_lost(&self) {
        for lost in &self.lost {
            eprintln!("takt: {}: not read: {lost}", self.name);
        }
    }

    /// The port that `options` describe, with the classes that the schedule speaks of.
    pub fn port(&self, options: &Port) -> PortModel {
        let port = self.port_at(&options.link);
        PortModel {
            classes: options.classes.unwrap_or(port.classes),
            largest_frame: options.frame,
            ..port
        }
    }

    /// The port on a link, with the classes that the schedule speaks of.
    pub fn port_at(&self, link: &LinkOptions) -> PortModel {
        let said = self.document.priorities;
        let default = PortModel::default();
        PortModel {
            link: link.link(),
            classes: said.map_or(default.classes, |priorities| priorities.classes),
            ..default
        }
    }
}

/// What of a schedule, called `name`, is refused.
pub fn not_done(name: &str, refused: &[String]) -> Failure {
    let lines = refused
        .iter()
        .map(|why| format!("{name}: not done here: {why}"));
    Failure::Schedule(lines.collect::<Vec<_>>().join("\n"))
}

/// A file's name for messages, and what it has; `-` is standard input.
pub fn text(path: &Path) -> Result<(String, String), Failure> {
    // One more than is read tells that there is more.
    let most = form::MAX_LENGTH as u64 + 1;
    let mut bytes = Vec::new();
    let (name, read) = if path == Path::new("-") {
        let read = io::stdin().lock().take(most).read_to_end(&mut bytes);
        ("standard input".to_owned(), read)
    } else {
        let read = File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
        (path.display().to_string(), read)
    };
    read.map_err(|error| Failure::Schedule(unreadable(&name, &error)))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok((name, text)),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            Err(Failure::Schedule(format!(
                "{name}: octet {at} is no UTF-8: schedules are text"
            )))
        }
    }
}

fn form_of(path: &Path, text: &str) -> Form {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => Form::Toml,
        Some("json") => Form::YangJson,
        Some("xml") => Form::YangXml,
        _ => Form::of(text),
    }
}

/// The file of a command that reads one.
#[derive(Debug, Args)]
pub struct One {
    /// The schedule; `-` reads standard input
    #[arg(value_name = "FILE")]
    path: PathBuf,
    #[command(flatten)]
    reading: Reading,
}

impl One {
    pub fn read(&self) -> Result<Source, Failure> {
        self.reading.read(&self.path)
    }
}

/// The link that a schedule is for.
#[derive(Debug, Args)]
pub struct LinkOptions {
    /// Rate of the link, such as 100mbit, 1gbit or 2500000000 (bit/s); 0 where frames take no time
    #[arg(long, value_name = "RATE", default_value = "1gbit")]
    rate: Rate,
    /// The port inserts a VLAN tag: 4 octets more on the wire
    #[arg(long)]
    pub vlan: bool,
}

/// The port that a schedule is looked at for.
#[derive(Debug, Args)]
pub struct Port {
    #[command(flatten)]
    link: LinkOptions,
    /// Traffic classes of the port, 1 to 8; without it those that the file speaks of, or 8
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    classes: Option<u8>,
    /// Largest frame, octets from the destination address on, without FCS
    #[arg(long, value_name = "OCTETS", default_value_t = PortModel::default().largest_frame)]
    frame: u32,
}

impl LinkOptions {
    /// The link.
    pub fn link(&self) -> Link {
        Link::tagged(self.rate.0, self.vlan)
    }

    /// Rate of the link, bits per second.
    pub fn rate_bps(&self) -> u64 {
        self.rate.0
    }
}

/// Bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub u64);

impl std::str::FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        takt_schedule::link::rate(text).map(Self).ok_or_else(|| {
            "a rate is a whole number of bit/s, or of kbit, mbit, gbit: 100mbit".to_owned()
        })
    }
}
