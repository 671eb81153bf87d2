//! When messages from other nodes were whole, and so how long they were on their way.

use std::sync::Arc;

use super::remote::Remote;
use super::round::RoundTime;
use super::session::Meta;
use crate::delays::DelayCounters;

/// What a lane notes of arrivals. The clock is read once for what a port gives at once, and not where no message is.
#[derive(Default)]
pub(super) struct Arrivals {
    delays: Arc<DelayCounters>,
    /// When what is being taken had come, once that is wanted.
    now_ns: Option<i64>,
}

impl Arrivals {
    pub(super) fn delays(&self) -> Arc<DelayCounters> {
        Arc::clone(&self.delays)
    }

    /// What is taken from now on comes now.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.now_ns = None;
    }

    /// A message is whole. From a lane of this node there is no way.
    #[inline]
    pub(super) fn whole(&mut self, from: Option<&Remote>, round: &RoundTime, meta: &Meta) {
        if from.is_some_and(|remote| !remote.addresses.is_empty()) {
            let now_ns = *self.now_ns.get_or_insert_with(|| round.read());
            let delay_ns = now_ns.saturating_sub(meta.send_time_ns);
            self.delays.arrived(meta.class, delay_ns);
        }
    }
}
