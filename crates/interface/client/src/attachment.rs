//! One attachment to a runtime: its arena, the lane's doorbell, the transmit memory.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use takt_session::layout::{
    ABILITIES_OFFSET, APPLICATION_OFFSET, ARENA_MAGIC, ArenaMap, BEFORE_OFFSET, CAN_TELL_ROOM,
    HEADER_BYTES, LANE_DIRTY_OFFSET, LANE_STATE_OFFSET, MAGIC_OFFSET, ROOM_OFFSET, SMALL_MESSAGE,
    TX_REGION, VERSION_OFFSET, large_share,
};
use takt_session::{ErrorCode, Failure, PROTOCOL_VERSION};
use takt_shm::{Arena, ArenaError, CHUNK, LaneBell, Region, SharedSlice, SinkBell};

use crate::descriptors::Registered;
use crate::error::Error;
use crate::fork::State;
use crate::memory::{Block, TxMemory};
use crate::room::Room;

/// Most bytes of a part of an arena: far above any memory, so that sums of them do not overflow.
const MOST_BYTES: usize = 1 << 46;

/// What a session holds while, and because, it is attached. Handles keep it for as long as they lend
/// memory of it, also when the runtime is long gone.
#[derive(Debug)]
pub(crate) struct Attachment {
    /// The first field: it ends before the descriptors are closed.
    _registered: [Registered; 2],
    pub(crate) arena: Arc<Arena>,
    map: ArenaMap,
    pub(crate) bell: LaneBell,
    pub(crate) memory: TxMemory,
    /// Asks the lane to signal completions.
    pub(crate) room_bell: SinkBell,
    /// By what it does, once a source wants to be told of room.
    pub(crate) room_signal: OnceLock<OwnedFd>,
    pub(crate) max_message: usize,
    /// The session's state under which it is the present one.
    pub(crate) state: State,
    /// Raw descriptors of arena and doorbell, for the fork handler.
    pub(crate) descriptors: [RawFd; 2],
}

/// There is not so much memory for a transmit region, which is all there from the beginning in a trust domain.
fn no_memory(bytes: usize, error: &ArenaError) -> Error {
    let what = format!(
        "no memory for the {} KiB of the transmit region: {error}; ask for less with `tx_bytes`, or let the process have more",
        bytes >> 10
    );
    Error::Refused(Failure::new(ErrorCode::NoMemory, what))
}

impl Attachment {
    /// Maps what the runtime has handed over.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it does not fit together.
    pub(crate) fn new(
        map: ArenaMap,
        max_message: u32,
        domain: bool,
        mut descriptors: Vec<OwnedFd>,
        state: State,
        room: Arc<Room>,
    ) -> Result<Self, Error> {
        let broken = |text: String| Error::Protocol(text);
        // In a trust domain the transmit region is a file of its own, the last.
        let region = match domain {
            true => descriptors.pop(),
            false => None,
        };
        let [memory, bell]: [OwnedFd; 2] =
            descriptors.try_into().map_err(|found: Vec<OwnedFd>| {
                broken(format!(
                    "the runtime sent {} descriptors, not the arena's and the doorbell's",
                    found.len()
                ))
            })?;
        let parts = [map.ring_bytes, map.tx_bytes, map.rx_bytes];
        if parts
            .iter()
            .any(|&bytes| bytes > MOST_BYTES || !bytes.is_multiple_of(CHUNK))
        {
            return Err(broken(format!(
                "the runtime describes an impossible arena: {map:?}"
            )));
        }
        let numbers = [memory.as_raw_fd(), bell.as_raw_fd()];
        let mut arena = Arena::open(memory, map.total()).map_err(|e| broken(e.to_string()))?;
        if let Some(region) = &region {
            arena
                .overlay(region, map.tx_offset(), map.tx_bytes, false)
                .map_err(|e| broken(e.to_string()))?;
            // Its memory is charged to this process, not to who reads it first. Neither is to be had after the seal.
            arena
                .populate(map.tx_offset(), map.tx_bytes)
                .map_err(|e| no_memory(map.tx_bytes, &e))?;
            // From here on nobody else can write what this session sends.
            Region::protect(region).map_err(|e| broken(e.to_string()))?;
        }
        let arena = Arc::new(arena);
        for (what, offset, wanted) in [
            ("magic number", MAGIC_OFFSET, ARENA_MAGIC),
            ("layout version", VERSION_OFFSET, PROTOCOL_VERSION.into()),
        ] {
            let word = arena
                .atomic_u32(offset)
                .map_err(|e| broken(e.to_string()))?;
            let found = word.load(Ordering::Relaxed);
            if found != wanted {
                return Err(broken(format!(
                    "the arena's {what} is {found:#x}, not {wanted:#x}"
                )));
            }
        }
        let bell = LaneBell::attach(&arena, LANE_STATE_OFFSET, LANE_DIRTY_OFFSET, bell)
            .map_err(|e| broken(e.to_string()))?;
        let room_bell = SinkBell::attach(&arena, ROOM_OFFSET).map_err(|e| broken(e.to_string()))?;
        Ok(Self {
            _registered: numbers.map(Registered::new),
            arena,
            map,
            bell,
            memory: TxMemory::new(map.tx_bytes, map.rx_bytes, room),
            room_bell,
            room_signal: OnceLock::new(),
            // One block holds a message, and the largest is a power of two.
            max_message: (max_message as usize).min(1 << map.tx_bytes.max(1).ilog2()),
            state,
            descriptors: numbers,
        })
    }

    /// Tells the runtime which session it was, 0 if none, before what this side can.
    pub(crate) fn tell_before(&self, before: u64) {
        if let Ok(word) = self.arena.atomic_u64(BEFORE_OFFSET) {
            word.store(before, Ordering::Relaxed);
        }
    }

    /// Tells the runtime what this side can do besides what its version says.
    pub(crate) fn tell_abilities(&self, abilities: u32) {
        if let Ok(word) = self.arena.atomic_u32(APPLICATION_OFFSET) {
            word.store(abilities, Ordering::Relaxed);
        }
    }

    /// Whether the runtime tells of room at sources by a descriptor.
    pub(crate) fn can_tell_room(&self) -> bool {
        let word = self.arena.atomic_u32(ABILITIES_OFFSET);
        word.is_ok_and(|word| word.load(Ordering::Relaxed) & CAN_TELL_ROOM != 0)
    }

    /// Bytes of its transmit region that sinks of other sessions may have together.
    pub(crate) fn most_lent(&self) -> usize {
        self.map.tx_bytes / 2
    }

    /// What the receive region is too small for.
    pub(crate) fn receive_warning(&self) -> Option<String> {
        let (longest, region) = (
            self.max_message.max(1).next_power_of_two(),
            self.map.rx_bytes,
        );
        // A sink holds half of the region at most.
        let beside = match (large_share(region) / longest).min(region / 2 / longest) {
            _ if longest <= SMALL_MESSAGE => return None,
            0 if longest > region => "a message of that length does not fit",
            0 | 1 => {
                "a second one that comes while one is held or being put together is dropped, or its reliable source waits"
            }
            _ => return None,
        };
        let enough = (4 * longest) >> 10;
        Some(format!(
            "the session receives into {} KiB and messages may have {} KiB: {beside}; open the session with `rx_bytes` of {enough} KiB or more",
            region >> 10,
            self.max_message >> 10
        ))
    }

    /// Whether a block of that many bytes at `offset` lies in the ring region.
    pub(crate) fn holds_rings(&self, offset: usize, bytes: usize) -> bool {
        offset >= HEADER_BYTES
            && offset
                .checked_add(bytes)
                .is_some_and(|end| end <= HEADER_BYTES + self.map.ring_bytes)
    }

    /// The memory of a block of ours.
    #[inline]
    pub(crate) fn transmit_window(&self, block: Block) -> Option<SharedSlice<'_>> {
        let start = block.chunk as usize * CHUNK;
        if start + block.bytes() > self.map.tx_bytes {
            return None;
        }
        self.arena
            .slice(self.map.tx_offset() + start, block.bytes())
            .ok()
    }

    /// The memory of a received message.
    #[inline]
    pub(crate) fn received_window(&self, chunk: u32, length: u32) -> Option<SharedSlice<'_>> {
        let (offset, bytes) = if chunk & TX_REGION == 0 {
            (self.map.rx_offset(), self.map.rx_bytes)
        } else {
            (self.map.tx_offset(), self.map.tx_bytes)
        };
        let start = (chunk & !TX_REGION) as usize * CHUNK;
        if start + length as usize > bytes {
            return None;
        }
        self.arena.slice(offset + start, length as usize).ok()
    }
}
