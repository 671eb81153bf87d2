//! From the figures of network health to thresholds: how much of a queue a flow can still bear.
//!
//! Section IV.B of the paper: rules transform the key figures of flows to dynamic thresholds of utilisation.

/// What a flow is to keep to, and what of it is used up before it reaches the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The largest delay from end to end, nanoseconds.
    pub deadline_ns: i64,
    /// The one-way delay as measured at the node, nanoseconds.
    pub delay_ns: i64,
    /// What the node adds to the queue's wait, at most: processing of one packet and the way out, nanoseconds.
    pub own_ns: i64,
}

impl Budget {
    /// The most packets that may wait before one of this flow, if each takes `service_ns`. 0 when there is no time left: the
    /// flow goes where nothing waits.
    pub fn packets(&self, service_ns: i64) -> u32 {
        let left = self
            .deadline_ns
            .saturating_sub(self.delay_ns.max(0))
            .saturating_sub(self.own_ns);
        u32::try_from(left / service_ns.max(1)).unwrap_or(match left < 0 {
            true => 0,
            false => u32::MAX,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_network_took_is_missing_in_the_queue() {
        let mut budget = Budget {
            deadline_ns: 10_000_000,
            delay_ns: 2_000_000,
            own_ns: 500_000,
        };
        assert_eq!(budget.packets(50_000), 150);
        budget.delay_ns = 9_000_000;
        assert_eq!(budget.packets(50_000), 10);
        for late in [9_500_000, 20_000_000, i64::MAX] {
            budget.delay_ns = late;
            assert_eq!(budget.packets(50_000), 0);
        }
        // Clocks that are not synchronised make no time.
        budget.delay_ns = i64::MIN;
        assert_eq!(budget.packets(50_000), 190);
        assert_eq!(budget.packets(0), 9_500_000);
        budget.deadline_ns = i64::MAX;
        assert_eq!(budget.packets(1), u32::MAX);
    }
}
