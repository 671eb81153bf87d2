//! How many handshakes are looked at: each costs Diffie-Hellman operations, whoever has asked for it.

use std::time::Duration;

/// Something that may happen so often, and some more at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// Until then what has happened is paid for.
    paid: Duration,
}

/// How much a [`Budget`] is.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// One in so long a time.
    pub every: Duration,
    /// So many at once.
    pub burst: u32,
}

impl Budget {
    /// Whether one more is allowed.
    pub fn has(&self, allowance: Allowance, now: Duration) -> bool {
        self.paid <= now + allowance.every * (allowance.burst - 1)
    }

    /// Takes one that is allowed.
    pub fn take(&mut self, allowance: Allowance, now: Duration) {
        self.paid = self.paid.max(now) + allowance.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_at_once_and_then_so_many_in_a_time() {
        let allowance = Allowance {
            every: Duration::from_millis(100),
            burst: 3,
        };
        let mut budget = Budget::default();
        let mut taken = |from: u64, to: u64| {
            let times = (from..to).map(Duration::from_millis);
            let has = times.filter(|&now| {
                let has = budget.has(allowance, now);
                if has {
                    budget.take(allowance, now);
                }
                has
            });
            has.count()
        };
        assert_eq!(taken(5000, 5099), 3);
        assert_eq!(taken(5100, 6100), 10);
        assert_eq!(taken(9000, 9001), 1);
        assert_eq!(taken(9001, 9050), 2);
    }
}
