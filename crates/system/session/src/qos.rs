//! Quality-of-service policies of a stream (naaas-thesis-2024, section 6.3.2).
//!
//! They are wishes about behaviour: the runtime maps them to a datapath, and to another one when what the node has, or
//! its configuration, changes. Who must have one certain technology and no other names it ([`DatapathName`]).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use takt_time::TrafficClass;

/// Datapath acceleration: whether the kernel's network stack suffices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Acceleration {
    /// Kernel networking suffices.
    #[default]
    Slow,
    /// Bypass the kernel's network stack where the node can.
    Fast,
}

/// Resource use: whether cores may be spent to lower latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ResourceUse {
    /// Sleep when idle; a blocking receive spins for microseconds at most.
    #[default]
    Frugal,
    /// Cores may spin, and a technology that must poll may be chosen.
    Unlimited,
}

/// Time sensitivity: which scheduling strategy sends the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TimeSensitivity {
    /// First in, first out, as soon as emitted.
    #[default]
    BestEffort,
    /// Scheduled in this traffic class of IEEE 802.1Q.
    TimeSensitive(TrafficClass),
}

impl TimeSensitivity {
    /// The traffic class that frames are marked with.
    pub fn class(self) -> TrafficClass {
        match self {
            Self::BestEffort => TrafficClass::BEST_EFFORT,
            Self::TimeSensitive(class) => class,
        }
    }
}

/// Reliability: what happens to messages that are lost on their way, or come while a sink has no room. It is the sources'
/// matter; the sinks of a channel get what its sources promise, whatever their own stream asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reliability {
    /// Sent once. What is lost is counted.
    #[default]
    BestEffort,
    /// In order, and sent again until every sink has it: what is not is counted, and told to the source
    /// (`Outcome::Undelivered`).
    Reliable {
        /// Sent again only while it can arrive this long after it was emitted. `None`: however long it takes.
        deadline: Option<Duration>,
        /// What happens while a sink has no room.
        slow_sinks: SlowSinks,
    },
    /// In order, and sent again until every sink's node has it or a newer message is emitted: for states, of which only the
    /// newest counts. The source never waits for a sink; a sink without room does without, so open it as one that
    /// [keeps the newest alone](crate::SinkMode::latest).
    Latest,
}

/// What a reliable source does about a sink that has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlowSinks {
    /// The source waits, and all its other sinks with it: its application gets no buffer.
    Wait,
    /// The sink does without what it has no room for, which is counted there.
    Drop,
    /// As [`Wait`](Self::Wait), for so long; then the sink does without, until it has room again.
    Evict(Duration),
}

/// Which messages a sink gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SinkMode {
    /// Not what this very session emits.
    pub no_local: bool,
    /// The newest alone: it takes the place of one that was not consumed.
    pub latest: bool,
}

/// How long a source waits for a sink that takes nothing, if not told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Longest deadline and patience.
pub const LONGEST: Duration = Duration::from_secs(3600);

impl Default for SlowSinks {
    fn default() -> Self {
        Self::Evict(PATIENCE)
    }
}

impl Reliability {
    /// Whether its durations are possible: 1 ns to an hour.
    pub fn is_possible(&self) -> bool {
        let Self::Reliable {
            deadline,
            slow_sinks,
        } = self
        else {
            return true;
        };
        let patience = match slow_sinks {
            SlowSinks::Evict(patience) => Some(*patience),
            _ => None,
        };
        let possible = |duration: Duration| !duration.is_zero() && duration <= LONGEST;
        deadline.is_none_or(possible) && patience.is_none_or(possible)
    }
}

/// Longest name of a datapath, bytes.
pub const DATAPATH_NAME_BYTES: usize = 15;

/// The name of a datapath: `udp`, `xdp`, or that of a plugin. 1 to 15 lower-case letters, digits and hyphens.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DatapathName {
    /// Followed by zeros.
    bytes: [u8; DATAPATH_NAME_BYTES],
}

/// It is not the name of a datapath.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the name of a datapath: 1 to 15 lower-case letters, digits and hyphens, such as \"xdp\" (`takt status datapaths` lists what there is)"
)]
pub struct NotADatapathName(pub String);

impl DatapathName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        let end = self.bytes.iter().position(|byte| *byte == 0);
        let name = &self.bytes[..end.unwrap_or(DATAPATH_NAME_BYTES)];
        // Always text: `from_str` lets in nothing else.
        std::str::from_utf8(name).unwrap_or_default()
    }
}

impl FromStr for DatapathName {
    type Err = NotADatapathName;

    fn from_str(name: &str) -> Result<Self, NotADatapathName> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.is_empty() || name.len() > DATAPATH_NAME_BYTES || !name.bytes().all(allowed) {
            return Err(NotADatapathName(name.chars().take(64).collect()));
        }
        let mut bytes = [0; DATAPATH_NAME_BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self { bytes })
    }
}

impl fmt::Display for DatapathName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for DatapathName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// The quality requirements of a stream. The default is what costs least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Qos {
    /// This datapath and no other, whatever the acceleration: the stream is refused where the node has it not, and its
    /// messages do not reach nodes that it does not reach. `None`: the runtime chooses.
    pub datapath: Option<DatapathName>,
    /// Datapath acceleration.
    pub acceleration: Acceleration,
    /// Resource use.
    pub resource_use: ResourceUse,
    /// Time sensitivity.
    pub time_sensitivity: TimeSensitivity,
    /// Reliability of what its sources emit.
    pub reliability: Reliability,
}

impl Qos {
    /// `acceleration = fast`, everything else as cheap as it can be.
    pub const fn fast() -> Self {
        Self {
            datapath: None,
            acceleration: Acceleration::Fast,
            resource_use: ResourceUse::Frugal,
            time_sensitivity: TimeSensitivity::BestEffort,
            reliability: Reliability::BestEffort,
        }
    }

    /// `acceleration = slow`: kernel networking.
    pub const fn slow() -> Self {
        Self {
            datapath: None,
            acceleration: Acceleration::Slow,
            resource_use: ResourceUse::Frugal,
            time_sensitivity: TimeSensitivity::BestEffort,
            reliability: Reliability::BestEffort,
        }
    }

    /// The same over this datapath, and no other.
    pub const fn only_over(mut self, datapath: DatapathName) -> Self {
        self.datapath = Some(datapath);
        self
    }

    /// The same with cores to spend.
    pub const fn unlimited(mut self) -> Self {
        self.resource_use = ResourceUse::Unlimited;
        self
    }

    /// The same, reliable: however long it takes, but for sinks that take nothing for [`PATIENCE`].
    pub const fn reliable(mut self) -> Self {
        self.reliability = Reliability::Reliable {
            deadline: None,
            slow_sinks: SlowSinks::Evict(PATIENCE),
        };
        self
    }

    /// The same; of what is lost, the newest message is sent again.
    pub const fn latest(mut self) -> Self {
        self.reliability = Reliability::Latest;
        self
    }

    /// The same, with this reliability.
    pub const fn with_reliability(mut self, reliability: Reliability) -> Self {
        self.reliability = reliability;
        self
    }

    /// The same, time sensitive in `class`.
    pub const fn time_sensitive(mut self, class: TrafficClass) -> Self {
        self.time_sensitivity = TimeSensitivity::TimeSensitive(class);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_datapath_is_short_and_plain() {
        for name in ["udp", "x", "my-datapath-123"] {
            let parsed: DatapathName = name.parse().expect(name);
            assert_eq!(parsed.as_str(), name);
            assert_eq!(format!("{parsed} {parsed:?}"), format!("{name} {name:?}"));
        }
        for name in ["", "XDP", "my-datapath-1234", "a b", "é", "a\0"] {
            let refused = name.parse::<DatapathName>().expect_err(name);
            assert!(refused.to_string().contains("takt status datapaths"));
        }
    }
}
