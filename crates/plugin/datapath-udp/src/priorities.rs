//! Which priorities packets have for the queueing disciplines of the host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use takt_datapath::stack::OWN_PRIORITY;
use takt_time::TrafficClass;

/// What a datapath's packets have as priority (`SO_PRIORITY`): their class; or, where the kernel's `taprio` keeps others apart from
/// them, one that only the runtime's own have. Of all ports of the datapath, from the next packet on.
#[derive(Clone, Debug, Default)]
pub struct Priorities(Arc<AtomicBool>);

impl Priorities {
    /// Whether only the runtime's own packets are to have them.
    pub fn set_own(&self, own: bool) {
        self.0.store(own, Ordering::Relaxed);
    }

    /// That of a class.
    #[inline]
    pub(crate) fn of(&self, class: TrafficClass) -> u32 {
        let class = u32::from(class.number());
        match self.0.load(Ordering::Relaxed) {
            true => OWN_PRIORITY + class,
            false => class,
        }
    }
}
