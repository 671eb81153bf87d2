//! Durations and instants as people write them, to the nanosecond.

use takt_time::TaiTime;

const UNITS: [(&str, u64); 5] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
];

/// What [`duration`] reads, for error messages.
pub(super) const DURATION: &str =
    "a duration: nanoseconds, or a number with ns, us, ms or s such as \"250us\"";
/// What [`instant`] reads, for error messages.
pub(super) const INSTANT: &str =
    "an instant of TAI: nanoseconds since 1970, or seconds with up to nine digits behind the point";

/// Reads `250us`, `1.5 ms`, `0`; whole nanoseconds only.
pub fn duration(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let size = if unit.is_empty() {
        1
    } else {
        UNITS.iter().find(|(name, _)| *name == unit)?.1
    };
    scaled(number, size)
}

/// A number times `size`, if that is whole.
fn scaled(number: &str, size: u64) -> Option<u64> {
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    if whole.is_empty() || (number.contains('.') && fraction.is_empty()) {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let mut nanos = whole.checked_mul(size)?;
    let mut digit_size = size;
    for digit in fraction.chars() {
        let digit = u64::from(digit.to_digit(10)?);
        if !digit_size.is_multiple_of(10) {
            // Below a nanosecond nothing but zeros.
            if digit != 0 {
                return None;
            }
            continue;
        }
        digit_size /= 10;
        nanos = nanos.checked_add(digit * digit_size)?;
    }
    Some(nanos)
}

/// A duration in the largest unit that keeps it whole: `250us`.
pub fn write_duration(nanos: u64) -> String {
    let (unit, size) = if nanos == 0 {
        ("ns", 1)
    } else {
        UNITS
            .iter()
            .rev()
            .find(|(unit, size)| *unit != "µs" && nanos.is_multiple_of(*size))
            .copied()
            .unwrap_or(("ns", 1))
    };
    format!("{}{unit}", nanos / size)
}

/// Reads `1528743495.910289987` or `1528743495.910289987 TAI`, seconds of TAI since 1970.
pub(super) fn instant(text: &str) -> Option<TaiTime> {
    let text = text.trim();
    let text = text.strip_suffix("TAI").unwrap_or(text).trim_end();
    let nanos = scaled(text, 1_000_000_000)?;
    i64::try_from(nanos).ok().map(TaiTime::from_nanos)
}

/// Seconds of TAI with nine digits behind the point; `None` before 1970.
pub fn write_instant(instant: TaiTime) -> Option<String> {
    let nanos = u64::try_from(instant.as_nanos()).ok()?;
    Some(format!(
        "{}.{:09}",
        nanos / 1_000_000_000,
        nanos % 1_000_000_000
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_in_every_unit() {
        for (text, nanos) in [
            ("0", 0),
            ("17", 17),
            ("250us", 250_000),
            ("250 µs", 250_000),
            ("1.5ms", 1_500_000),
            ("0.000000001s", 1),
            ("1.000s", 1_000_000_000),
            ("1.50ns", 0),
            ("1_000_000ns", 1_000_000),
        ] {
            let expected = (text != "1.50ns").then_some(nanos);
            assert_eq!(duration(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_whole_number_of_nanoseconds_is_refused() {
        for text in [
            "",
            "us",
            "-1us",
            "1.us",
            ".5us",
            "1.5",
            "1.0005us",
            "1e3",
            "1 hour",
            "1..2ms",
            "99999999999s",
            "0x10",
            "1us2",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn instants_are_seconds_with_a_fraction() {
        let expected = Some(TaiTime::from_nanos(1_528_743_495_910_289_987));
        assert_eq!(instant("1528743495.910289987"), expected);
        assert_eq!(instant("1528743495.910289987 TAI"), expected);
        assert_eq!(instant("12"), Some(TaiTime::from_nanos(12_000_000_000)));
        for text in ["", "-1", "1.0000000001", "99999999999", "now"] {
            assert_eq!(instant(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(nanos in any::<u64>(), time in 0..i64::MAX) {
            prop_assert_eq!(duration(&write_duration(nanos)), Some(nanos));
            let time = TaiTime::from_nanos(time);
            prop_assert_eq!(write_instant(time).and_then(|text| instant(&text)), Some(time));
        }

        #[test]
        fn no_text_makes_reading_fail(text in "[-0-9._ a-zµ]{0,12}") {
            duration(&text);
            instant(&text);
        }
    }
}
