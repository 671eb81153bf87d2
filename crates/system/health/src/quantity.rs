//! Quantities as people write them: a number with its unit.

/// What a number measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds.
    Time,
    /// Of one; written in percent.
    Ratio,
    /// Bit per second.
    Rate,
    /// Bytes.
    Size,
    /// Things counted.
    Count,
}

const TIMES: [(&str, f64); 6] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("min", 60e9),
];
const RATES: [(&str, f64); 4] = [("bit", 1.0), ("kbit", 1e3), ("Mbit", 1e6), ("Gbit", 1e9)];

impl Unit {
    /// How such a quantity is written, for messages.
    pub fn example(self) -> &'static str {
        match self {
            Self::Time => "a time with its unit such as 10ms",
            Self::Ratio => "a share such as 0.1%",
            Self::Rate => "a rate such as 10Mbit",
            Self::Size => "a size in bytes such as 1500B",
            Self::Count => "a whole number",
        }
    }

    /// Reads a number with this unit; `None` if it is none, negative or not finite.
    pub fn read(self, text: &str) -> Option<f64> {
        let text = text.trim();
        let at = text
            .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
            .unwrap_or(text.len());
        let (number, unit) = (text[..at].replace('_', ""), text[at..].trim());
        let value: f64 = number.parse().ok()?;
        let named = |units: &[(&str, f64)]| Some(units.iter().find(|(name, _)| *name == unit)?.1);
        let scale = match (self, unit) {
            (Self::Time, "") if value == 0.0 => 1.0,
            (Self::Time, _) => named(&TIMES)?,
            (Self::Ratio, "%") => 0.01,
            (Self::Ratio, "") if value == 0.0 => 1.0,
            (Self::Rate, _) => named(&RATES)?,
            (Self::Size, "B" | "") => 1.0,
            (Self::Count, "") if value.fract() == 0.0 => 1.0,
            _ => return None,
        };
        let value = value * scale;
        (value.is_finite() && value < 9e18 && (self != Self::Ratio || value <= 1.0))
            .then_some(value)
    }

    /// Writes a value with its unit, with three or four digits.
    pub fn write(self, value: f64) -> String {
        self.write_with(value, digits)
    }

    /// Writes a value with its unit and all its digits.
    pub fn write_exactly(self, value: f64) -> String {
        // Of what is read, to less than a nanosecond or a millionth of a percent.
        self.write_with(value, |value| format!("{}", (value * 1e9).round() / 1e9))
    }

    fn write_with(self, value: f64, digits: impl Fn(f64) -> String) -> String {
        let scaled = |units: &[(f64, &str)]| {
            let (size, name) = units
                .iter()
                .find(|(size, _)| value.abs() >= *size)
                .or(units.last())
                .copied()
                .unwrap_or((1.0, ""));
            format!("{}{name}", digits(value / size))
        };
        match self {
            Self::Time => scaled(&[(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")]),
            Self::Rate => scaled(&[(1e9, "Gbit"), (1e6, "Mbit"), (1e3, "kbit"), (1.0, "bit")]),
            Self::Ratio => format!("{}%", digits(value * 100.0)),
            Self::Size => format!("{value}B"),
            Self::Count => format!("{value}"),
        }
    }
}

fn digits(value: f64) -> String {
    let places = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// A period: a time, or a frequency such as `60Hz`. In nanoseconds, 1 µs to 1 h.
pub fn period(text: &str) -> Option<i64> {
    let nanos = match text.trim().strip_suffix("Hz") {
        Some(frequency) => 1e9 / frequency.trim().parse::<f64>().ok().filter(|f| *f > 0.0)?,
        None => Unit::Time.read(text)?,
    };
    (1e3..=3600e9)
        .contains(&nanos)
        .then_some(nanos.round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_with_their_units_and_no_others() {
        assert_eq!(Unit::Time.read("1.5 ms"), Some(1.5e6));
        assert_eq!(Unit::Time.read("0"), Some(0.0));
        assert_eq!(Unit::Ratio.read("0.1%"), Some(0.001));
        assert_eq!(Unit::Rate.read("10Mbit"), Some(1e7));
        for (unit, text) in [
            (Unit::Time, "7"),
            (Unit::Time, "-7ms"),
            (Unit::Time, "1e3ms"),
            (Unit::Ratio, "101%"),
            (Unit::Ratio, "7"),
            (Unit::Ratio, "0.1"),
            (Unit::Count, "1.5"),
            (Unit::Count, ""),
            (Unit::Rate, "1MB"),
            (Unit::Time, "99999999999999999999999s"),
        ] {
            assert_eq!(unit.read(text), None, "{text}");
        }
        assert_eq!(period("60Hz"), Some(16_666_667));
        assert_eq!(period("0Hz"), None);
        assert_eq!(period("1ns"), None);
    }

    #[test]
    fn what_is_written_is_read_again() {
        assert_eq!(Unit::Time.write(16_666_667.0), "16.7ms");
        assert_eq!(Unit::Time.write(100_000.0), "100us");
        assert_eq!(Unit::Ratio.write(0.001), "0.1%");
        assert_eq!(Unit::Rate.write(12_345_678.0), "12.3Mbit");
        for (unit, text) in [
            (Unit::Time, "1.2345ms"),
            (Unit::Time, "2.997s"),
            (Unit::Time, "16.666667ms"),
            (Unit::Ratio, "7%"),
            (Unit::Ratio, "0.0125%"),
            (Unit::Rate, "12.345678Mbit"),
        ] {
            let value = unit.read(text).expect(text);
            assert_eq!(unit.write_exactly(value), text);
        }
    }
}
