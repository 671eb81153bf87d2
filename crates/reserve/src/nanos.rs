//! Lengths of time in whole nanoseconds, and how people write them.
//!
//! Not an instant: nothing here knows when anything happens.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A length of time in whole nanoseconds.
///
/// Written and read as `2ms`, `500us` or `1.5s`; serialised as an integer of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Nanos(u64);

impl Nanos {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The longest execution time, period or deadline the analysis takes: 10⁶ s, about eleven days.
    ///
    /// It leaves room for every product of the analysis in 128 bits.
    pub const MAX_PARAMETER: Self = Self::from_secs(1_000_000);

    /// `nanos` nanoseconds.
    pub const fn new(nanos: u64) -> Self {
        Self(nanos)
    }

    /// `micros` microseconds, held at the end of the range.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// `millis` milliseconds, held at the end of the range.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// `secs` seconds, held at the end of the range.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// The number of nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum, held at the end of the range.
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, held at zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Whether it is no time at all.
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn wide(self) -> u128 {
        self.0 as u128
    }

    /// `value`, held at the end of the range: only for lengths that are bounded by construction or
    /// shown to people.
    pub(crate) fn from_wide(value: u128) -> Self {
        Self(u64::try_from(value).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, digits, suffix) = match self.0 {
            0..1_000 => (1, 0, "ns"),
            1_000..1_000_000 => (1_000, 3, "us"),
            1_000_000..1_000_000_000 => (1_000_000, 6, "ms"),
            _ => (1_000_000_000, 9, "s"),
        };
        let (whole, rest) = (self.0 / unit, self.0 % unit);
        let text = if rest == 0 {
            format!("{whole}{suffix}")
        } else {
            let decimals = format!("{rest:0digits$}");
            format!("{whole}.{}{suffix}", decimals.trim_end_matches('0'))
        };
        f.pad(&text)
    }
}

impl Serialize for Nanos {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

/// Whether a character ends a line or does worse.
pub(crate) fn is_unprintable(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}' | '\u{2029}')
}

/// What somebody wrote, fit for one line of an error: unprintable characters are escaped and a long
/// text is cut off.
pub(crate) fn quotable(text: &str) -> String {
    const MOST: usize = 100;
    let mut quotable = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == MOST {
            quotable.push('…');
            break;
        }
        if is_unprintable(character) {
            quotable.extend(character.escape_default());
        } else {
            quotable.push(character);
        }
    }
    quotable
}

/// Why a text is not a length of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseNanosError {
    /// No number in front of the unit.
    #[error("`{0}` is not a length of time: write a number and a unit, such as 2ms, 500us or 1.5s")]
    Number(String),
    /// A number without a unit.
    #[error("`{0}` has no unit: write {0}ns, {0}us, {0}ms or {0}s")]
    NoUnit(String),
    /// A unit that is not known.
    #[error("`{text}` has the unknown unit `{unit}`: use ns, us, ms or s")]
    Unit {
        /// What was written.
        text: String,
        /// Its unit.
        unit: String,
    },
    /// More decimals than a nanosecond can hold.
    #[error("`{0}` is finer than a nanosecond: write whole nanoseconds")]
    TooFine(String),
    /// More than 64 bits of nanoseconds.
    #[error("`{text}` is too long: at most {max} can be used", max = Nanos::MAX_PARAMETER)]
    TooLong {
        /// What was written.
        text: String,
    },
}

impl FromStr for Nanos {
    type Err = ParseNanosError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        let unit_at = trimmed
            .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(unit_at);
        let not_a_number = || ParseNanosError::Number(quotable(trimmed));
        let number = number.replace('_', "");
        let (whole, decimals) = number.split_once('.').unwrap_or((&number, ""));
        if whole.is_empty()
            || decimals.contains('.')
            || (number.contains('.') && decimals.is_empty())
        {
            return Err(not_a_number());
        }
        let digits = match unit.trim() {
            // Nothing is as long in every unit.
            "" if number.chars().all(|digit| digit == '0') => 0,
            "" => return Err(ParseNanosError::NoUnit(quotable(trimmed))),
            "ns" => 0,
            "us" | "µs" | "μs" => 3,
            "ms" => 6,
            "s" => 9,
            other => {
                return Err(ParseNanosError::Unit {
                    text: quotable(trimmed),
                    unit: quotable(other),
                });
            }
        };
        let decimals = decimals.trim_end_matches('0');
        if decimals.len() > digits {
            return Err(ParseNanosError::TooFine(quotable(trimmed)));
        }
        // Both halves are decimal digits by now: all that can go wrong is their size.
        let too_long = || ParseNanosError::TooLong {
            text: quotable(trimmed),
        };
        let padded = format!("{whole}{decimals:0<digits$}");
        padded.parse().map(Self).map_err(|_| too_long())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_with_units_are_read() {
        for (text, nanos) in [
            ("2ms", 2_000_000),
            ("500us", 500_000),
            ("500 µs", 500_000),
            ("1s", 1_000_000_000),
            ("1.5ms", 1_500_000),
            ("0.000000001s", 1),
            ("0", 0),
            ("7ns", 7),
            ("1_000ns", 1_000),
            ("1.50us", 1_500),
        ] {
            assert_eq!(text.parse(), Ok(Nanos::new(nanos)), "{text}");
        }
    }

    #[test]
    fn what_is_no_length_of_time_is_refused_with_its_remedy() {
        for (text, says) in [
            ("", "write a number and a unit"),
            ("ms", "write a number and a unit"),
            ("-2ms", "write a number and a unit"),
            ("7", "write 7ns, 7us, 7ms or 7s"),
            ("1.ms", "write a number and a unit"),
            ("1.2.3ms", "write a number and a unit"),
            ("2 minutes", "use ns, us, ms or s"),
            ("1.5ns", "whole nanoseconds"),
            ("0.0001us", "whole nanoseconds"),
            ("99999999999999999999s", "too long"),
        ] {
            let error = text.parse::<Nanos>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back_as_the_same_length(nanos in any::<u64>()) {
            let shown = Nanos::new(nanos).to_string();
            prop_assert_eq!(shown.parse(), Ok(Nanos::new(nanos)));
        }
    }
}
