//! What keeps memory mapped beyond the messages that lie in it.

use std::any::Any;
use std::sync::Arc;

/// Memory where a buffer or message lies: it stays mapped while this lives, also when the buffer or message is gone and the
/// runtime has come back, or the session of the source has ended. What is written there changes.
///
/// For those who show the memory to others, and cannot keep them from looking later.
#[derive(Clone)]
pub struct Mapping {
    _of: Arc<dyn Any + Send + Sync>,
}

impl Mapping {
    pub(crate) fn of(memory: &Arc<impl Any + Send + Sync>) -> Self {
        Self {
            _of: memory.clone(),
        }
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapping").finish_non_exhaustive()
    }
}
