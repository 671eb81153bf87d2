//! How much of the log a tenant may fill: applications that come and go by the thousand a second would else hide
//! everybody else's lines.

use std::time::Duration;

/// Lines let through at once, after some quiet.
const LINES: u32 = 50;
/// In the long run, one in this time: else a day of it would fill a disk.
const APART: Duration = Duration::from_millis(500);

/// What a tenant has written lately: a bucket of lines, which fills by and by.
#[derive(Debug, Default)]
pub struct LogBudget {
    /// From when on the bucket is full.
    full: Duration,
    left_out: u64,
}

/// Whether a line may be written.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may. So many before it were left out, and that has not been said.
    Write(u64),
    /// It is left out, and counted.
    LeaveOut,
}

impl LogBudget {
    /// Asks for a line.
    pub fn ask(&mut self, now: Duration) -> Verdict {
        let full = self.full.max(now) + APART;
        if full > now + APART * LINES {
            self.left_out += 1;
            return Verdict::LeaveOut;
        }
        self.full = full;
        Verdict::Write(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_told_of() {
        let mut budget = LogBudget::default();
        let second = Duration::from_secs;
        for _ in 0..LINES {
            assert_eq!(budget.ask(second(10)), Verdict::Write(0));
        }
        for _ in 0..7 {
            assert_eq!(budget.ask(second(10)), Verdict::LeaveOut);
        }
        assert_eq!(budget.ask(second(11)), Verdict::Write(7));
        assert_eq!(budget.ask(second(11)), Verdict::Write(0));
        assert_eq!(budget.ask(second(11)), Verdict::LeaveOut);
    }

    #[test]
    fn what_goes_on_is_two_lines_a_second_and_quiet_gives_the_rest_back() {
        let mut budget = LogBudget::default();
        let mut written = |from: u64, to: u64| {
            let asked = (from * 1000..to * 1000).map(Duration::from_millis);
            asked
                .filter(|now| budget.ask(*now) != Verdict::LeaveOut)
                .count() as u32
        };
        assert_eq!(written(10, 110), LINES + 2 * 100 - 1);
        assert_eq!(written(200, 201), LINES + 1);
    }
}
