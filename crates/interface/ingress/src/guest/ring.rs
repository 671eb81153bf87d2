//! One virtqueue: frames that a guest sends out of it, and frames for the guest into it.
//!
//! Rings, descriptors and what they point to are the guest's. Nothing here trusts them: addresses are looked up in its memory, a chain is
//! followed as long as the ring is at most, and what a chain holds is copied once before it is looked at.

use std::sync::RwLockWriteGuard;
use std::sync::atomic::Ordering;

use vhost_user_backend::{VringRwLock, VringState, VringT};
use virtio_queue::{DescriptorChain, QueueOwnedT, QueueT};
use vm_memory::atomic::GuestMemoryLoadGuard;
use vm_memory::{Bytes, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};

/// The memory of a guest.
pub type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// Octets before each frame (`struct virtio_net_hdr_v1`, virtio 1.2, clause 5.1.6).
pub const HEADER: usize = 12;
/// The longest frame: a jumbo frame with two tags. As a runtime takes at most.
pub const LONGEST: usize = 9728;
/// Where in the header the number of buffers is that a frame has taken.
const BUFFERS: std::ops::Range<usize> = 10..12;

type Loaded = GuestMemoryLoadGuard<GuestMemoryMmap>;

/// A ring that the guest uses now; `None`: it does not, and nothing may be written there, for the memory may be something else's by now. While
/// this is held nobody stops it.
fn running(ring: &VringRwLock) -> Option<RwLockWriteGuard<'_, VringState>> {
    let state = ring.get_mut();
    // A VMM may say where it is after it has started it.
    let queue = state.get_queue();
    let is_running = state.is_enabled() && queue.ready() && queue.avail_ring() != 0;
    is_running.then_some(state)
}

/// What there is instead of a chain.
enum Without {
    /// Nothing waits.
    Empty,
    /// What the guest says of the ring cannot be. Its place is forgotten until a VMM tells it anew, as it does when it starts the ring: looking at
    /// it any more would always find something, and nothing that can be taken.
    Broken,
    /// The guest does not use this ring now.
    Stopped,
}

/// Takes the next chain of a ring.
fn next<'a>(
    ring: &'a VringRwLock,
    memory: &Memory,
) -> Result<(RwLockWriteGuard<'a, VringState>, DescriptorChain<Loaded>), Without> {
    let mut state = running(ring).ok_or(Without::Stopped)?;
    let (memory, queue) = (memory.memory(), state.get_queue_mut());
    let offered = queue.avail_idx(&*memory, Ordering::Acquire);
    if offered.is_ok_and(|index| index.0 == queue.next_avail()) {
        return Err(Without::Empty);
    }
    let chains = queue.iter(memory);
    match chains.ok().and_then(|mut chains| chains.next()) {
        Some(chain) => Ok((state, chain)),
        None => {
            // Not `set_ready`: the library starts what is not ready whenever the VMM tells of an event.
            queue.set_avail_ring_address(Some(0), Some(0));
            Err(Without::Broken)
        }
    }
}

/// What came out of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A frame, behind its header.
    Frame,
    /// Something that is none: what a guest is not to send.
    Malformed,
    /// Nothing waits.
    Empty,
    /// The ring cannot be, and is not used from here on.
    Broken,
    /// The guest does not use this ring now.
    Stopped,
}

/// Takes the next frame that a guest sends; `packet` has it with its header then.
pub fn take(ring: &VringRwLock, memory: &Memory, packet: &mut Vec<u8>) -> Taken {
    packet.clear();
    let (mut state, chain) = match next(ring, memory) {
        Ok(next) => next,
        Err(Without::Empty) => return Taken::Empty,
        Err(Without::Broken) => return Taken::Broken,
        Err(Without::Stopped) => return Taken::Stopped,
    };
    let head = chain.head_index();
    let size = usize::from(state.get_queue().size());
    let mut whole = true;
    let mut parts = chain.clone();
    for part in parts.by_ref().take(size) {
        if part.is_write_only() {
            continue;
        }
        let (at, length) = (packet.len(), part.len() as usize);
        if length > HEADER + LONGEST - at {
            whole = false;
            break;
        }
        packet.resize(at + length, 0);
        let read = chain.memory().read_slice(&mut packet[at..], part.addr());
        if read.is_err() {
            whole = false;
            break;
        }
    }
    // An indirect table may have more than a chain may be long (virtio 1.2, clause 2.7.5.3.1).
    whole &= parts.next().is_none();
    // None of the offloads is offered, so that all fields are zero but, maybe, those without a meaning.
    let plain = packet.first_chunk::<2>() == Some(&[0, 0]);
    if state.add_used(head, 0).is_err() || !whole || !plain || packet.len() <= HEADER {
        return Taken::Malformed;
    }
    Taken::Frame
}

/// What became of a frame for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The guest has it.
    Done,
    /// It does not fit into the buffer that the guest has provided, or the buffer is none.
    Unfit,
    /// The guest has no buffer now.
    NoBuffer,
    /// The ring cannot be, and is not used from here on.
    Broken,
    /// The guest does not use this ring now.
    Stopped,
}

/// Puts a frame into the ring, with room for its header before it.
pub fn put(ring: &VringRwLock, memory: &Memory, packet: &mut [u8]) -> Put {
    let (mut state, chain) = match next(ring, memory) {
        Ok(next) => next,
        Err(Without::Empty) => return Put::NoBuffer,
        Err(Without::Broken) => return Put::Broken,
        Err(Without::Stopped) => return Put::Stopped,
    };
    let head = chain.head_index();
    packet[..HEADER].fill(0);
    packet[BUFFERS].copy_from_slice(&1u16.to_le_bytes());
    // As far as a chain may be long: an indirect table may have more (virtio 1.2, clause 2.7.5.3.1).
    let parts = chain.clone().take(usize::from(state.get_queue().size()));
    let parts = parts.filter(|part| part.is_write_only());
    let room: u64 = parts.clone().map(|part| u64::from(part.len())).sum();
    let mut rest = &*packet;
    if room >= packet.len() as u64 {
        for part in parts {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at(rest.len().min(part.len() as usize));
            if chain.memory().write_slice(now, part.addr()).is_err() {
                break;
            }
            rest = later;
        }
    }
    // A buffer that does not do is given back as empty, which the guest counts.
    let written = if rest.is_empty() { packet.len() } else { 0 };
    if state.add_used(head, written as u32).is_err() || written == 0 {
        return Put::Unfit;
    }
    Put::Done
}

/// Has the guest keep to itself what it gives: it is looked for.
pub fn quiet(ring: &VringRwLock) {
    if let Some(mut state) = running(ring) {
        // An error is the guest's, and found again when the ring is read.
        let _ = state.disable_notification();
    }
}

/// Has the guest tell of what it gives from here on. Whether it has given something already, which it has told of or not.
pub fn listen(ring: &VringRwLock) -> bool {
    running(ring).is_some_and(|mut state| state.enable_notification().unwrap_or(false))
}

/// Tells the guest that buffers have been used, if it wants to be told.
pub fn signal(ring: &VringRwLock) {
    if ring.needs_notification().unwrap_or(true) {
        // A VMM that has gone is told of by its connection.
        let _ = ring.signal_used_queue();
    }
}
