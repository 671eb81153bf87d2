//! What flows are to keep to, and the file in which that and the rules are written.

use serde::Deserialize;

use crate::pattern::Pattern;
use crate::quantity::{self, Unit};
use crate::rule::{Action, Rule};
use crate::stamp::Stamp;

/// How many flows, and how many rules, a file may have.
pub const MAX_ENTRIES: usize = 4096;
/// The longest file, in bytes.
pub const MAX_LENGTH: usize = 1 << 20;

/// The longest time, nanoseconds: a day.
const LONGEST_NS: f64 = 86_400e9;

/// What the flows of a pattern are to keep to. What is `None` is not judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// For people.
    pub name: String,
    /// Which flows.
    pub pattern: Pattern,
    /// From beat to beat: from packet to packet, or from burst to burst where bursts are allowed. Nanoseconds.
    pub period_ns: Option<i64>,
    /// By how much the time between two beats may differ from the period, nanoseconds.
    pub tolerance_ns: Option<i64>,
    /// The largest one-way delay, nanoseconds.
    pub max_delay_ns: Option<i64>,
    /// The largest interarrival jitter (RFC 3550, section 6.4.1), nanoseconds.
    pub max_jitter_ns: Option<i64>,
    /// The largest share of lost packets in the present window and the one before.
    pub max_loss: Option<f64>,
    /// The most packets that follow each other closely; more than one makes bursts the beats.
    pub max_burst: Option<u32>,
    /// What packets carry.
    pub stamp: Stamp,
    /// The rate of RTP's media clock, for payload types without a static one. Hz.
    pub rtp_clock: Option<u32>,
    /// What a talker adds to AVTP's presentation time (IEEE 1722-2016, clause 6.4.1): 2 ms in class A. Nanoseconds.
    pub max_transit_ns: i64,
    /// From which share of a limit on the level is yellow.
    pub warn: f64,
    /// How long a level stays after it was called for last, nanoseconds.
    pub hold_ns: i64,
}

/// The presentation time of class A streams.
pub const CLASS_A_TRANSIT_NS: i64 = 2_000_000;

impl Spec {
    /// A specification that judges nothing yet.
    pub fn new(name: impl Into<String>, pattern: Pattern) -> Self {
        Self {
            name: name.into(),
            pattern,
            period_ns: None,
            tolerance_ns: None,
            max_delay_ns: None,
            max_jitter_ns: None,
            max_loss: None,
            max_burst: None,
            stamp: Stamp::Auto,
            rtp_clock: None,
            max_transit_ns: CLASS_A_TRANSIT_NS,
            warn: 0.8,
            hold_ns: 1_000_000_000,
        }
    }

    /// What it says, with what stands where nothing is said.
    pub fn explain(&self) -> String {
        let time = |name: &str, value: Option<i64>| Some(format!("{name} {}", exact(value?)));
        let share = |value: f64| Unit::Ratio.write_exactly(value);
        let said = [
            time("period", self.period_ns),
            time("tolerance", self.tolerance_ns),
            time("max-delay", self.max_delay_ns),
            time("max-jitter", self.max_jitter_ns),
            self.max_loss
                .map(|loss| format!("max-loss {}", share(loss))),
            self.max_burst.map(|burst| format!("max-burst {burst}")),
            Some(match self.stamp {
                Stamp::Auto => "stamp auto".into(),
                Stamp::Ptp { offset } => format!("stamp ptp@{offset}"),
                stamp => format!("stamp {}", stamp.name()),
            }),
            self.rtp_clock.map(|rate| format!("rtp-clock {rate}")),
            (self.max_transit_ns != CLASS_A_TRANSIT_NS)
                .then(|| format!("max-transit {}", exact(self.max_transit_ns))),
            Some(format!("warn {}", share(self.warn))),
            time("hold", Some(self.hold_ns)),
        ];
        let said: Vec<String> = said.into_iter().flatten().collect();
        format!("{}: {}", self.pattern, said.join(", "))
    }

    /// Writes it as [`Document::read`] reads it.
    pub fn to_toml(&self) -> String {
        let mut text = format!(
            "[[flow]]\nname = {:?}\nmatch = \"{}\"\n",
            self.name, self.pattern
        );
        let mut line = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                text.push_str(&format!("{name} = \"{value}\"\n"));
            }
        };
        let nanos = |value: Option<i64>| value.map(exact);
        line("period", nanos(self.period_ns));
        line("tolerance", nanos(self.tolerance_ns));
        line("max-delay", nanos(self.max_delay_ns));
        line("max-jitter", nanos(self.max_jitter_ns));
        line(
            "max-loss",
            self.max_loss.map(|loss| Unit::Ratio.write_exactly(loss)),
        );
        line(
            "stamp",
            match self.stamp {
                Stamp::Auto => None,
                Stamp::Ptp { offset } => Some(format!("ptp@{offset}")),
                stamp => Some(stamp.name().into()),
            },
        );
        if let Some(burst) = self.max_burst {
            text.push_str(&format!("max-burst = {burst}\n"));
        }
        text
    }
}

/// A time in the largest unit that keeps it whole.
pub(crate) fn exact(nanos: i64) -> String {
    match nanos {
        0 => "0ns".into(),
        nanos if nanos % 1_000_000_000 == 0 => format!("{}s", nanos / 1_000_000_000),
        nanos if nanos % 1_000_000 == 0 => format!("{}ms", nanos / 1_000_000),
        nanos if nanos % 1000 == 0 => format!("{}us", nanos / 1000),
        nanos => format!("{nanos}ns"),
    }
}

/// Specifications and rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// The first one whose pattern matches a flow is the flow's.
    pub specs: Vec<Spec>,
    /// All that match are the flow's.
    pub rules: Vec<Rule>,
}

/// Why a file is no document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// It is too long.
    #[error("{0} bytes; a file of specifications has at most {MAX_LENGTH}")]
    TooLong(usize),
    /// It has too many entries.
    #[error("{0} flows or rules; a file has at most {MAX_ENTRIES} of each")]
    TooMany(usize),
    /// It is no TOML, or has other keys.
    #[error("{0}")]
    Syntax(String),
    /// A value is wrong.
    #[error("{place}: {key} = {value:?}: {why}")]
    Value {
        /// Which flow or rule.
        place: String,
        /// The key at fault.
        key: &'static str,
        /// What is written.
        value: String,
        /// What would be right.
        why: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    flow: Vec<WrittenFlow>,
    #[serde(default)]
    rule: Vec<WrittenRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenFlow {
    name: String,
    #[serde(rename = "match")]
    pattern: String,
    period: Option<String>,
    tolerance: Option<String>,
    max_delay: Option<String>,
    max_jitter: Option<String>,
    max_loss: Option<String>,
    max_burst: Option<u32>,
    stamp: Option<String>,
    rtp_clock: Option<u32>,
    max_transit: Option<String>,
    warn: Option<String>,
    hold: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    name: String,
    flow: Option<String>,
    when: String,
    until: Option<String>,
    #[serde(rename = "for")]
    lasts: Option<String>,
    hold: Option<String>,
    #[serde(rename = "do")]
    actions: Vec<String>,
}

/// Where a value stands, for errors.
struct Place(String);

impl Place {
    fn wrong(&self, key: &'static str, value: &str, why: impl ToString) -> DocumentError {
        DocumentError::Value {
            place: self.0.clone(),
            key,
            value: value.chars().take(200).collect(),
            why: why.to_string(),
        }
    }

    fn name(&self, text: &str) -> Result<String, DocumentError> {
        let good = |c: char| c.is_ascii_alphanumeric() || "-_. ".contains(c);
        if text.is_empty() || text.len() > 64 || !text.chars().all(good) {
            let why = "a name has 1 to 64 letters, digits, blanks, points, dashes and underscores";
            return Err(self.wrong("name", text, why));
        }
        Ok(text.to_owned())
    }

    fn quantity(
        &self,
        key: &'static str,
        unit: Unit,
        text: Option<&str>,
    ) -> Result<Option<f64>, DocumentError> {
        text.map(|text| {
            unit.read(text)
                .ok_or_else(|| self.wrong(key, text, format!("write {}", unit.example())))
        })
        .transpose()
    }

    fn time(&self, key: &'static str, text: &Option<String>) -> Result<Option<i64>, DocumentError> {
        let Some(nanos) = self.quantity(key, Unit::Time, text.as_deref())? else {
            return Ok(None);
        };
        if nanos > LONGEST_NS {
            let value = text.as_deref().unwrap_or_default();
            return Err(self.wrong(key, value, "write 0 to 1440min, a day"));
        }
        Ok(Some(nanos.round() as i64))
    }
}

impl Document {
    /// Reads a file.
    ///
    /// # Errors
    /// [`DocumentError`], for the first thing that is wrong.
    pub fn read(text: &str) -> Result<Self, DocumentError> {
        if text.len() > MAX_LENGTH {
            return Err(DocumentError::TooLong(text.len()));
        }
        let written: Written =
            toml::from_str(text).map_err(|error| DocumentError::Syntax(error.to_string()))?;
        let most = written.flow.len().max(written.rule.len());
        if most > MAX_ENTRIES {
            return Err(DocumentError::TooMany(most));
        }
        let mut document = Self::default();
        for (at, flow) in written.flow.iter().enumerate() {
            document.specs.push(flow.check(at)?);
        }
        for (at, rule) in written.rule.iter().enumerate() {
            document.rules.push(rule.check(at)?);
        }
        Ok(document)
    }
}

impl WrittenFlow {
    fn check(&self, at: usize) -> Result<Spec, DocumentError> {
        let place = Place(format!("flow {} ({:.64})", at + 1, self.name));
        let pattern = self
            .pattern
            .parse()
            .map_err(|error| place.wrong("match", &self.pattern, error))?;
        let mut spec = Spec::new(place.name(&self.name)?, pattern);
        if let Some(text) = &self.period {
            let why = "write a period such as 10ms or 60Hz, 1us to 1h";
            let period = quantity::period(text).ok_or_else(|| place.wrong("period", text, why))?;
            spec.period_ns = Some(period);
        }
        spec.tolerance_ns = place.time("tolerance", &self.tolerance)?;
        if let (Some(_), None, Some(text)) = (spec.tolerance_ns, spec.period_ns, &self.tolerance) {
            return Err(place.wrong(
                "tolerance",
                text,
                "a tolerance is of a period: give that, too",
            ));
        }
        spec.max_delay_ns = place.time("max-delay", &self.max_delay)?;
        spec.max_jitter_ns = place.time("max-jitter", &self.max_jitter)?;
        spec.max_loss = place.quantity("max-loss", Unit::Ratio, self.max_loss.as_deref())?;
        if self.max_burst == Some(0) {
            return Err(place.wrong("max-burst", "0", "a burst has at least 1 packet"));
        }
        spec.max_burst = self.max_burst;
        if let Some(name) = &self.stamp {
            let why = "write rtp, avtp, takt, isochron, rtc-testbench, trailer, ptp@OFFSET (of 0 to 9000), none or auto";
            spec.stamp = Stamp::from_name(name).ok_or_else(|| place.wrong("stamp", name, why))?;
        }
        if let Some(rate) = self.rtp_clock {
            if !(1..=10_000_000).contains(&rate) {
                return Err(place.wrong(
                    "rtp-clock",
                    &rate.to_string(),
                    "write 1 to 10000000 (Hz)",
                ));
            }
            spec.rtp_clock = Some(rate);
        }
        if let Some(transit) = place.time("max-transit", &self.max_transit)? {
            spec.max_transit_ns = transit;
        }
        if let Some(warn) = place.quantity("warn", Unit::Ratio, self.warn.as_deref())? {
            spec.warn = warn;
        }
        if let Some(hold) = place.time("hold", &self.hold)? {
            spec.hold_ns = hold;
        }
        Ok(spec)
    }
}

impl WrittenRule {
    fn check(&self, at: usize) -> Result<Rule, DocumentError> {
        let place = Place(format!("rule {} ({:.64})", at + 1, self.name));
        let expression = |key: &'static str, text: &str| {
            text.parse().map_err(|error| place.wrong(key, text, error))
        };
        let pattern = match &self.flow {
            None => Pattern::all(),
            Some(text) => text
                .parse()
                .map_err(|error| place.wrong("flow", text, error))?,
        };
        let mut actions = Vec::new();
        for name in &self.actions {
            let why = "write event, metric, mirror, control or remap";
            let action = Action::from_name(name).ok_or_else(|| place.wrong("do", name, why))?;
            if !actions.contains(&action) {
                actions.push(action);
            }
        }
        if actions.is_empty() {
            return Err(place.wrong(
                "do",
                "",
                "a rule does something: event, metric, mirror, control or remap",
            ));
        }
        Ok(Rule {
            name: place.name(&self.name)?,
            pattern,
            when: expression("when", &self.when)?,
            until: self
                .until
                .as_deref()
                .map(|text| expression("until", text))
                .transpose()?,
            lasts_ns: place.time("for", &self.lasts)?.unwrap_or(0),
            hold_ns: place.time("hold", &self.hold)?.unwrap_or(1_000_000_000),
            actions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read() {
        let document = Document::read(
            r#"
            [[flow]]
            name = "camera"
            match = "udp * > *:5004"
            period = "60Hz"
            tolerance = "2ms"
            max-delay = "10ms"
            max-loss = "0.1%"
            max-burst = 20
            stamp = "rtp"
            rtp-clock = 90000

            [[rule]]
            name = "late"
            flow = "udp * > *:5004"
            when = "delay > 8ms or loss > 1%"
            until = "delay < 6ms"
            do = ["event", "metric"]
            "#,
        )
        .expect("a document");
        assert_eq!(document.specs[0].period_ns, Some(16_666_667));
        assert_eq!(document.rules[0].actions.len(), 2);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place_and_what_would_be_right() {
        let flow = |line: &str| format!("[[flow]]\nname = \"a\"\nmatch = \"*\"\n{line}\n");
        let rule = |line: &str| format!("[[rule]]\nname = \"b\"\n{line}\n");
        for (text, expected) in [
            (flow("max-delay = \"10\""), "max-delay"),
            (flow("period = \"0ms\""), "1us to 1h"),
            (flow("max-loss = \"0.1\""), "0.1%"),
            (flow("max-delay = \"5000000min\""), "a day"),
            (flow("tolerance = \"1ms\""), "period"),
            (flow("max-burst = 0"), "at least 1"),
            (flow("stamp = \"ntp\""), "isochron"),
            (flow("rtp-clock = 0"), "Hz"),
            (flow("max-dealy = \"1ms\""), "max-dealy"),
            (rule("when = \"delay > 1ms\"\ndo = []"), "does something"),
            (rule("when = \"delay > 1ms\"\ndo = [\"reboot\"]"), "mirror"),
            (rule("when = \"delay > 1B\"\ndo = [\"event\"]"), "time"),
            (rule("when = \"\"\ndo = [\"event\"]"), "when"),
        ] {
            let error = Document::read(&text).expect_err(&text).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut spec = Spec::new("x", "stream * vlan 7".parse().expect("a pattern"));
        spec.period_ns = Some(16_666_667);
        spec.tolerance_ns = Some(1_000_000);
        spec.max_delay_ns = Some(10_000_000);
        spec.max_loss = Some(0.001);
        spec.max_burst = Some(4);
        spec.stamp = Stamp::Ptp { offset: 4 };
        let told = spec.explain();
        assert!(
            told.contains("period 16666667ns, tolerance 1ms, max-delay 10ms, max-loss 0.1%, max-burst 4, stamp ptp@4, warn 80%, hold 1s"),
            "{told}"
        );
        let plain = Spec::new("y", Pattern::all()).explain();
        assert_eq!(plain, "*: stamp auto, warn 80%, hold 1s");
        let read = Document::read(&spec.to_toml()).expect("a document");
        assert_eq!(read.specs, [spec]);
    }
}
