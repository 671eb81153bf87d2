//! How much of the log a tenant may fill: applications that come and go by the thousand a second would else hide
//! everybody else's lines.

use std::time::Duration;

/// Lines let through within a [`WINDOW`].
const LINES: u32 = 50;
const WINDOW: Duration = Duration::from_secs(1);

/// What a tenant has written lately.
#[derive(Debug, Default)]
pub struct LogBudget {
    since: Duration,
    lines: u32,
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
        if now >= self.since + WINDOW {
            self.since = now;
            self.lines = 0;
        }
        if self.lines == LINES {
            self.left_out += 1;
            return Verdict::LeaveOut;
        }
        self.lines += 1;
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
    }
}
