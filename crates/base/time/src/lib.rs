//! Instants, durations and classes as plain types: nothing here reads a clock.
//!
//! Every instant inside Takt and on its wire is TAI, signed 64-bit nanoseconds since
//! 1970-01-01T00:00:00 TAI (`CLOCK_TAI`); durations are nanoseconds.

use std::fmt;

/// An instant on the TAI time scale, nanoseconds since 1970-01-01T00:00:00 TAI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct TaiTime(i64);

impl TaiTime {
    /// The instant `nanos` nanoseconds after the epoch.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// This instant moved by `nanos`, held at the ends of the scale.
    pub const fn saturating_add_nanos(self, nanos: i64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds from `earlier` to `self`, negative when `earlier` is later; held at the ends of the range.
    pub const fn nanos_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for TaiTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09} TAI",
            self.0.div_euclid(1_000_000_000),
            self.0.rem_euclid(1_000_000_000)
        )
    }
}

/// A traffic class of IEEE 802.1Q, 0 (lowest) to 7.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct TrafficClass(u8);

impl TrafficClass {
    /// The class of best-effort traffic.
    pub const BEST_EFFORT: Self = Self(0);
    /// How many classes there are (IEEE 802.1Q-2022, clause 8.6.6).
    pub const COUNT: usize = 8;

    /// The class `number`, or `None` above 7.
    pub const fn new(number: u8) -> Option<Self> {
        if number < Self::COUNT as u8 {
            Some(Self(number))
        } else {
            None
        }
    }

    /// All classes, the lowest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }

    /// Its number, 0 to 7.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for TrafficClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
