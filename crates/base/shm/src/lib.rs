//! Arenas in sealed memfds, index rings and doorbells between mutually distrusting processes.
//!
//! An application and the runtime share one [`Arena`]. Whatever the other side can write is
//! untrusted: each side keeps its own indices and all bookkeeping in private memory, reads the
//! other side's index once, checks it, and uses the checked copy (architecture, section 4).
//!
//! This crate is the home of the unsafe shared-memory code. It knows no session, no message and no
//! datapath: what the bytes of an arena mean is laid out by the crates above.
//!
//! | module | subject |
//! |---|---|
//! | [`arena`] | the mapping, and bounds-checked windows on it |
//! | [`ring`] | single-producer single-consumer rings of plain entries |
//! | [`newest`] | a place for the newest entry alone, which replaces what was not taken |
//! | [`doorbell`] | waking a parked lane, waking a sleeping application |
//! | [`heap`] | private memory that goes back to the kernel |
//! | [`buddy`] | handing out blocks of a region, with its bookkeeping in private memory |

pub mod arena;
pub mod buddy;
pub mod doorbell;
pub mod heap;
pub mod newest;
pub mod ring;
mod sync;

pub use arena::{Arena, ArenaError, OutOfBounds, Region, SharedSlice};
pub use buddy::{Buddy, CHUNK, NotAllocated};
pub use doorbell::{LaneBell, LaneBellHost, SinkBell, SinkBellHost, WaitOutcome, Wake};
pub use newest::{Newest, NewestReader, NewestWriter};
pub use ring::{Consumer, Pod, Producer, RingError, RingLayout};
