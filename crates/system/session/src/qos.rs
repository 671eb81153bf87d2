//! Quality-of-service policies of a stream (naaas-thesis-2024, section 6.3.2).
//!
//! They are wishes about behaviour, never names of technologies: the runtime maps them to a datapath
//! when the stream is opened.

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

/// The quality requirements of a stream. The default is what costs least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Qos {
    /// Datapath acceleration.
    pub acceleration: Acceleration,
    /// Resource use.
    pub resource_use: ResourceUse,
    /// Time sensitivity.
    pub time_sensitivity: TimeSensitivity,
}

impl Qos {
    /// `acceleration = fast`, everything else as cheap as it can be.
    pub const fn fast() -> Self {
        Self {
            acceleration: Acceleration::Fast,
            resource_use: ResourceUse::Frugal,
            time_sensitivity: TimeSensitivity::BestEffort,
        }
    }

    /// `acceleration = slow`: kernel networking.
    pub const fn slow() -> Self {
        Self {
            acceleration: Acceleration::Slow,
            resource_use: ResourceUse::Frugal,
            time_sensitivity: TimeSensitivity::BestEffort,
        }
    }

    /// The same with cores to spend.
    pub const fn unlimited(mut self) -> Self {
        self.resource_use = ResourceUse::Unlimited;
        self
    }

    /// The same, time sensitive in `class`.
    pub const fn time_sensitive(mut self, class: TrafficClass) -> Self {
        self.time_sensitivity = TimeSensitivity::TimeSensitive(class);
        self
    }
}
