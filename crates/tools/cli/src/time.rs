//! Times as they are written.

use std::time::Duration;

/// Longer ones are of no use, and the end of some could not be said.
const MOST: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);

/// A time of at most a hundred years.
pub fn parse(written: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(written).map_err(|error| error.to_string())?;
    match time <= MOST {
        true => Ok(time),
        false => Err(format!("{written} is too long: write at most 100years")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_which_nobody_sees_the_end_are_refused() {
        assert_eq!(parse("10ms"), Ok(Duration::from_millis(10)));
        assert!(parse("100years").is_ok());
        let told = "500000000000years is too long: write at most 100years";
        assert_eq!(parse("500000000000years"), Err(told.to_owned()));
        assert!(parse("ten").is_err());
    }
}
