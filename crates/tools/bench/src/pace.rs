//! When messages are sent where it is not as fast as they go. The standard library is all that it needs: `bench-peers` has it as well.

use std::time::{Duration, Instant};

/// Messages that are due within so long are sent together.
const BATCH: Duration = Duration::from_micros(500);
/// Before each burst nothing is sent for so long (naaas-thesis-2024, figure 7.4).
pub const PAUSE: Duration = Duration::from_secs(2);
/// A burst: messages as fast as they go for so long.
pub const BURST: Duration = Duration::from_secs(1);

/// Messages at a steady rate.
#[derive(Clone, Copy, Debug)]
pub struct Steady {
    /// Messages a second.
    pub rate: f64,
    /// How long.
    pub duration: Duration,
}

impl Steady {
    /// How many messages that is.
    pub fn count(&self) -> u64 {
        (self.rate * self.duration.as_secs_f64()) as u64
    }

    /// Has `send` send each, by its number, when it is due. If that has to wait, those that are due by then follow at once.
    pub fn run<E>(&self, mut send: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
        let batch = ((self.rate * BATCH.as_secs_f64()) as u64).max(1);
        let start = Instant::now();
        for number in 0..self.count() {
            if number.is_multiple_of(batch) {
                let due = Duration::from_secs_f64(number as f64 / self.rate);
                std::thread::sleep(due.saturating_sub(start.elapsed()));
            }
            send(number)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_messages_are_sent_and_none_before_it_is_due() {
        let steady = Steady {
            rate: 20_000.0,
            duration: Duration::from_millis(50),
        };
        let start = Instant::now();
        let mut sent = Vec::new();
        let result = steady.run(|number| {
            let early = number as f64 / 20_000.0 - start.elapsed().as_secs_f64();
            assert!(early < BATCH.as_secs_f64(), "{number} by {early} s");
            sent.push(number);
            Ok::<_, ()>(())
        });
        assert_eq!((result, sent), (Ok(()), (0..1000).collect::<Vec<_>>()));
        let failed = steady.run(|number| if number == 7 { Err(number) } else { Ok(()) });
        assert_eq!(failed, Err(7));
    }
}
