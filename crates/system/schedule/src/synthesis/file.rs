//! Plans in TOML.

use std::collections::HashSet;
use std::net::SocketAddr;

use serde::Deserialize;
use takt_time::TrafficClass;

use super::{
    Flow, LONGEST_PERIOD_NS, MOST_STREAMS, Plan, PlannedPort, Stream, USUAL_LAUNCH_ERROR_NS,
    USUAL_SYNC_ERROR_NS,
};
use crate::form::{Form, FormError, MAX_LENGTH, Number};
use crate::link::{self, Link};

/// Octets of the longest frame: a jumbo frame.
const LONGEST_FRAME: u32 = 9_018;
/// Most frames of a stream in a period.
const MOST_FRAMES: u32 = 65_536;
/// Longer delays are mistakes.
const LONGEST_DELAY_NS: u64 = 1_000_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    launch_error: Option<Number>,
    sync_error: Option<Number>,
    #[serde(default)]
    link: Vec<FileLink>,
    #[serde(default)]
    switch: Vec<FileSwitch>,
    #[serde(default)]
    stream: Vec<FileStream>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileLink {
    between: [String; 2],
    rate: Rate,
    delay: Option<Number>,
    #[serde(default)]
    vlan: bool,
}

/// Bits per second, or text with a unit.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a whole number or a string")]
enum Rate {
    Bits(u64),
    Text(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileSwitch {
    name: String,
    forwarding: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileStream {
    name: String,
    class: u8,
    from: String,
    to: Vec<String>,
    period: Number,
    frame: u32,
    #[serde(default = "one")]
    frames: u32,
    deadline: Option<Number>,
    window: Option<Number>,
    earliest: Option<Number>,
    latest: Option<Number>,
    channel: Option<u64>,
    destination: Option<String>,
}

fn one() -> u32 {
    1
}

/// Reads a plan.
///
/// ```toml
/// launch-error = "20us"            # how much later than its offset a frame begins at its talker; 20us unless said
/// sync-error = "1us"               # how far the clocks of two nodes are apart; 1us unless said
///
/// [[link]]                         # a cable: both directions
/// between = ["press", "line"]
/// rate = "1gbit"
/// delay = "100ns"                  # from one end to the other; 0 unless said
///
/// [[link]]
/// between = ["line", "robot"]
/// rate = "100mbit"
///
/// [[switch]]
/// name = "line"
/// forwarding = "3us"               # from the last bit of a frame to when it may be sent on, at most; 0 unless said
///
/// [[stream]]
/// name = "axis"
/// class = 7
/// from = "press"
/// to = ["robot"]
/// period = "1ms"
/// frame = 128                      # octets of the largest, without FCS
/// deadline = "200us"               # from its launch to its last bit at the last listener; the period unless said
/// ```
///
/// # Errors
/// [`FormError`], the first mistake found.
pub fn read(text: &str) -> Result<Plan, FormError> {
    if text.len() > MAX_LENGTH {
        return Err(FormError::TooLong(text.len()));
    }
    let text = text.trim_start_matches('\u{feff}');
    let file: File = ::toml::from_str(text).map_err(|error| FormError::Syntax {
        form: Form::Toml,
        message: error.to_string().trim_end().to_owned(),
    })?;
    if file.link.is_empty() || file.stream.is_empty() {
        let what = match file.link.is_empty() {
            true => "a [[link]], the cable from the talker to what is next to it,",
            false => "a [[stream]]",
        };
        let at = "the plan".to_owned();
        return Err(FormError::Missing { at, what });
    }
    let (nodes, ports) = ports(&file.link, &file.switch)?;
    if file.stream.len() > MOST_STREAMS {
        return Err(FormError::Value {
            at: "[[stream]]".to_owned(),
            text: file.stream.len().to_string(),
            wanted: "4096 streams or fewer",
        });
    }
    let mut names = HashSet::new();
    let mut streams = Vec::new();
    for stream in file.stream {
        if !names.insert(stream.name.clone()) {
            let at = format!("stream {}", crate::form::shown(&stream.name));
            return Err(FormError::Duplicate { at });
        }
        streams.push(self::stream(stream, &nodes)?);
    }
    let short = |number: Option<Number>, at, usual| match number {
        None => Ok(usual),
        Some(number) => delay(&number, at),
    };
    Ok(Plan {
        ports,
        streams,
        launch_error_ns: short(file.launch_error, "launch-error", USUAL_LAUNCH_ERROR_NS)?,
        sync_error_ns: short(file.sync_error, "sync-error", USUAL_SYNC_ERROR_NS)?,
    })
}

fn delay(number: &Number, at: &str) -> Result<u64, FormError> {
    let delay = number.duration(at)?;
    if delay > LONGEST_DELAY_NS {
        return Err(FormError::Value {
            at: at.to_owned(),
            text: crate::form::write_duration(delay),
            wanted: "a second or less",
        });
    }
    Ok(delay)
}

/// The names of all nodes, and the ports of all cables.
fn ports(
    links: &[FileLink],
    switches: &[FileSwitch],
) -> Result<(HashSet<String>, Vec<PlannedPort>), FormError> {
    let nodes: HashSet<String> = links.iter().flat_map(|l| l.between.clone()).collect();
    for (at, switch) in switches.iter().enumerate() {
        known(&nodes, &format!("switch {at}, name"), &switch.name)?;
        if switches[..at].iter().any(|other| other.name == switch.name) {
            let at = format!("switch {}", crate::form::shown(&switch.name));
            return Err(FormError::Duplicate { at });
        }
    }
    let mut ports = Vec::new();
    for (at, cable) in links.iter().enumerate() {
        let value = |key: &str, text: &str, wanted| FormError::Value {
            at: format!("link {at}, {key}"),
            text: text.to_owned(),
            wanted,
        };
        for name in &cable.between {
            // They become names of files.
            let plain = |c: char| c.is_ascii_alphanumeric() || "._".contains(c);
            if name.is_empty()
                || name.len() > 64
                || name.starts_with('.')
                || !name.chars().all(plain)
            {
                let wanted = "a name of 64 letters, digits, dots and underscores at most";
                return Err(value("between", name, wanted));
            }
        }
        if cable.between[0] == cable.between[1] {
            return Err(value("between", &cable.between[1], "another node"));
        }
        let rate = match &cable.rate {
            Rate::Bits(bits) => Some(*bits),
            Rate::Text(text) => link::rate(text),
        };
        let Some(rate) = rate.filter(|rate| *rate > 0) else {
            let text = match &cable.rate {
                Rate::Bits(bits) => bits.to_string(),
                Rate::Text(text) => text.clone(),
            };
            return Err(value("rate", &text, "a rate such as 100mbit or 1gbit"));
        };
        let delay_ns = match &cable.delay {
            None => 0,
            Some(number) => delay(number, &format!("link {at}, delay"))?,
        };
        let [one, other] = &cable.between;
        for (from, to) in [(one, other), (other, one)] {
            let switch = switches.iter().position(|switch| switch.name == *from);
            let forwarding_ns = match switch {
                None => 0,
                Some(at) => delay(
                    &switches[at].forwarding,
                    &format!("switch {at}, forwarding"),
                )?,
            };
            ports.push(PlannedPort {
                from: from.clone(),
                to: to.clone(),
                link: Link::tagged(rate, cable.vlan),
                delay_ns,
                forwarding_ns,
            });
        }
    }
    Ok((nodes, ports))
}

fn known(nodes: &HashSet<String>, at: &str, name: &str) -> Result<(), FormError> {
    match nodes.contains(name) {
        true => Ok(()),
        false => Err(FormError::Value {
            at: at.to_owned(),
            text: name.to_owned(),
            wanted: "an end of a [[link]]",
        }),
    }
}

fn stream(file: FileStream, nodes: &HashSet<String>) -> Result<Stream, FormError> {
    let at = |key: &str| format!("stream {}, {key}", crate::form::shown(&file.name));
    let value = |key: &str, text: String, wanted| FormError::Value {
        at: at(key),
        text,
        wanted,
    };
    let duration = |number: &Option<Number>, key: &str, usual: u64| match number {
        None => Ok(usual),
        Some(number) => number.duration(&at(key)),
    };
    // They are written into other files.
    let plain = |c: char| c.is_ascii_graphic() && !"\"\\".contains(c);
    if file.name.is_empty() || file.name.len() > 64 || !file.name.chars().all(plain) {
        let wanted =
            "a name of 64 visible characters of ASCII at most, without quotes and backslashes";
        return Err(value("name", file.name.clone(), wanted));
    }
    known(nodes, &at("from"), &file.from)?;
    for (number, to) in file.to.iter().enumerate() {
        known(nodes, &at("to"), to)?;
        if *to == file.from || file.to[..number].contains(to) {
            return Err(value("to", to.clone(), "another node each"));
        }
    }
    if file.to.is_empty() {
        return Err(FormError::Missing {
            at: at("to"),
            what: "a node that receives it",
        });
    }
    let Some(class) = TrafficClass::new(file.class) else {
        return Err(value("class", file.class.to_string(), "a class, 0 to 7"));
    };
    let period_ns = file.period.duration(&at("period"))?;
    if !(1..=LONGEST_PERIOD_NS).contains(&period_ns) {
        let text = crate::form::write_duration(period_ns);
        return Err(value("period", text, "longer than 0, and a day at most"));
    }
    if !(15..=LONGEST_FRAME).contains(&file.frame) {
        let text = file.frame.to_string();
        return Err(value("frame", text, "15 to 9018 octets, without FCS"));
    }
    if !(1..=MOST_FRAMES).contains(&file.frames) {
        return Err(value("frames", file.frames.to_string(), "1 to 65536"));
    }
    let earliest = duration(&file.earliest, "earliest", 0)?;
    let latest = duration(&file.latest, "latest", period_ns - 1)?;
    if earliest > latest || latest >= period_ns {
        let text = crate::form::write_duration(if latest >= period_ns {
            latest
        } else {
            earliest
        });
        let wanted = "within its period, the earliest offset before the latest";
        return Err(value("earliest, latest", text, wanted));
    }
    let window_ns = duration(&file.window, "window", 0)?;
    if window_ns >= period_ns {
        let text = crate::form::write_duration(window_ns);
        return Err(value("window", text, "less than its period"));
    }
    let flow = match (file.channel, &file.destination) {
        (Some(_), Some(_)) => {
            return Err(FormError::Exclusive {
                first: "channel",
                second: "destination",
            });
        }
        (Some(channel), None) => Some(Flow::Channel(channel)),
        (None, Some(text)) => match text.parse::<SocketAddr>() {
            Ok(address) => Some(Flow::Destination(address)),
            Err(_) => {
                let wanted = "an address with a port such as 10.244.1.9:4000";
                return Err(value("destination", text.clone(), wanted));
            }
        },
        (None, None) => None,
    };
    Ok(Stream {
        class,
        period_ns,
        octets: file.frame,
        frames: file.frames,
        deadline_ns: duration(&file.deadline, "deadline", period_ns)?,
        window_ns,
        offsets_ns: (earliest, latest),
        flow,
        name: file.name.clone(),
        talker: file.from.clone(),
        listeners: file.to.clone(),
    })
}
