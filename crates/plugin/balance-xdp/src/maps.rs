//! The program's maps, mapped: each array is memory that the kernel and this process share.

use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aya::maps::{Map, MapData, PerCpuArray};
use rustix::mm::{MapFlags, ProtFlags};
use takt_wire::ethernet::MacAddress;

use crate::error::{Error, TO_LOAD};

/// Names of [`Counters`], in the order of `enum counter` of the program.
pub const COUNTERS: [&str; 11] = [
    "to_cores",
    "to_neighbours",
    "passed",
    "moves",
    "held",
    "fenced",
    "refused_wishes",
    "too_long",
    "no_room",
    "from_neighbours",
    "other_queue",
];

/// What the program has counted, in the order of [`COUNTERS`].
pub type Counters = [u64; COUNTERS.len()];

/// `struct about` of the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) delta_ns: u64,
    pub(crate) namespace: [u64; 2],
    pub(crate) ifindex: u32,
    pub(crate) layout: u32,
    pub(crate) queues: u32,
    pub(crate) mask: u32,
    pub(crate) cores: u32,
    pub(crate) targets: u32,
    pub(crate) loops: u32,
    pub(crate) virtual_time: u32,
}

// SAFETY: integers alone, without padding; any bit pattern is a value.
unsafe impl aya::Pod for About {}

/// The layout that this build has.
pub(crate) const LAYOUT: u32 = 1;

/// `struct bundle` of the program.
#[repr(C)]
pub(crate) struct Bundle {
    pub(crate) last_ns: AtomicU64,
    pub(crate) last_number: AtomicU64,
    /// The target's place and 1, or 0.
    pub(crate) target: AtomicU32,
    pub(crate) moves: AtomicU32,
}

/// `struct done` of the program.
#[repr(C)]
pub(crate) struct Done {
    pub(crate) last: AtomicU64,
    pub(crate) last_ns: AtomicU64,
    checkpoints: [AtomicU64; 3],
    pub(crate) packets: AtomicU64,
    zero: [AtomicU64; 2],
}

/// `struct target` of the program, in words of the map's stride.
#[repr(C)]
pub(crate) struct Target([AtomicU64; 7]);

/// How a target is reached, as the program has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// A processor.
    Core(u32),
    /// A frame with other addresses.
    Redirect {
        ifindex: u32,
        most: u32,
        to: MacAddress,
        from: MacAddress,
    },
    /// A frame in a datagram.
    Vxlan {
        ifindex: u32,
        most: u32,
        to: MacAddress,
        from: MacAddress,
        inner: MacAddress,
        source: [u8; 4],
        destination: [u8; 4],
        network: u32,
    },
}

impl Reach {
    /// The device by which a frame leaves, if it does.
    pub(crate) fn ifindex(&self) -> Option<u32> {
        match *self {
            Self::Core(_) => None,
            Self::Redirect { ifindex, .. } | Self::Vxlan { ifindex, .. } => Some(ifindex),
        }
    }
}

#[cfg(test)]
impl Done {
    /// What `takt_arrive` of the program does, which the kernel runs in queues alone.
    pub(crate) fn arrive(&self, number: u64, now: u64, delta: u64) {
        let [before, before_ns, earlier] = &self.checkpoints;
        let order = Ordering::SeqCst;
        if now.saturating_sub(before_ns.load(order)) > delta {
            earlier.store(before.load(order), order);
            before_ns.store(now, order);
            before.store(self.last.load(order), order);
        }
        self.last_ns.store(now, order);
        self.last.store(number, order);
        self.packets.fetch_add(1, order);
    }
}

/// Why a target is dead: its beats do not come.
pub(crate) const SILENT: u32 = 1;
/// Why a target is dead: there is no way to it.
pub(crate) const NO_WAY: u32 = 2;

impl Target {
    /// Writes how it is reached. It is not there while that changes: the first word goes first and comes last.
    pub(crate) fn set(&self, reach: Option<Reach>, dead: bool) {
        let mut bytes = [0; 56];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(4, &u32::from(dead).to_ne_bytes());
        match reach {
            None => {}
            Some(Reach::Core(cpu)) => {
                put(0, &1_u32.to_ne_bytes());
                put(8, &cpu.to_ne_bytes());
            }
            Some(Reach::Redirect {
                ifindex,
                most,
                to,
                from,
            }) => {
                put(0, &2_u32.to_ne_bytes());
                put(8, &ifindex.to_ne_bytes());
                put(12, &most.to_ne_bytes());
                put(16, &to.0);
                put(22, &from.0);
            }
            Some(Reach::Vxlan {
                ifindex,
                most,
                to,
                from,
                inner,
                source,
                destination,
                network,
            }) => {
                put(0, &3_u32.to_ne_bytes());
                put(8, &ifindex.to_ne_bytes());
                put(12, &most.to_ne_bytes());
                put(16, &to.0);
                put(22, &from.0);
                put(28, &inner.0);
                put(36, &source);
                put(40, &destination);
                put(44, &(network << 8).to_be_bytes());
            }
        }
        let words = bytes
            .as_chunks()
            .0
            .iter()
            .map(|word| u64::from_ne_bytes(*word));
        let words: Vec<u64> = words.collect();
        let rest = || self.0.iter().zip(&words).skip(1);
        // Nothing but whether it is dead has changed, as a rule.
        if rest().any(|(cell, word)| cell.load(Ordering::Relaxed) != *word) {
            self.0[0].store(0, Ordering::SeqCst);
            for (cell, word) in rest() {
                cell.store(*word, Ordering::SeqCst);
            }
        }
        // SeqCst: after all of the rest; the program reads this word first.
        self.0[0].store(words[0], Ordering::SeqCst);
    }

    /// Why it is dead ([`SILENT`], [`NO_WAY`]; 0: it is not), and the way that it had.
    pub(crate) fn mark(&self, dead: u32) {
        let mut bytes = self.0[0].load(Ordering::Relaxed).to_ne_bytes();
        bytes[4..].copy_from_slice(&dead.to_ne_bytes());
        self.0[0].store(u64::from_ne_bytes(bytes), Ordering::SeqCst);
    }

    /// Whether it can be reached and was not told to be dead: the program sends packets there.
    pub(crate) fn gets_packets(&self) -> bool {
        let bytes = self.0[0].load(Ordering::Relaxed).to_ne_bytes();
        let (there, dead) = bytes.split_at(4);
        there != [0; 4] && dead == [0; 4]
    }

    /// Why it is dead.
    fn dead(&self) -> u32 {
        (self.0[0].load(Ordering::Relaxed).to_ne_bytes())[4..]
            .first_chunk()
            .map_or(0, |word| u32::from_ne_bytes(*word))
    }

    /// Whether its beats come, or none are waited for.
    pub(crate) fn beats(&self) -> bool {
        self.dead() & SILENT == 0
    }

    /// Whether there is a way to it.
    pub(crate) fn is_reachable(&self) -> bool {
        let kind = &self.0[0].load(Ordering::Relaxed).to_ne_bytes()[..4];
        kind != [0; 4] && self.dead() & NO_WAY == 0
    }

    /// The processor, or the interface.
    pub(crate) fn number(&self) -> u32 {
        let bytes = self.0[1].load(Ordering::Relaxed).to_ne_bytes();
        u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

/// An array map in this process's memory.
pub(crate) struct Mapped<T> {
    at: NonNull<T>,
    count: usize,
    bytes: usize,
    cells: PhantomData<T>,
}

// SAFETY: the cells are atomic integers, as `Mapped::new` demands, and the memory belongs to no thread.
unsafe impl<T: Sync> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Mapped<T> {}

impl<T> Mapped<T> {
    /// Maps an array of `count` values.
    ///
    /// # Safety
    /// `T` consists of atomic integers alone and is as long as the map's stride.
    unsafe fn new(map: &MapData, count: usize) -> Result<Self, Error> {
        // The kernel rounds the array up to pages.
        let bytes = (count * size_of::<T>()).next_multiple_of(4096);
        // SAFETY: a new mapping at an address of the kernel's choice; it refuses one that is longer than the array.
        let at = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                map.fd().as_fd(),
                0,
            )
        }
        .map_err(|error| Error::system("map the program's maps", TO_LOAD)(error.into()))?;
        let at = NonNull::new(at.cast()).ok_or(Error::Config("a map at address 0".into()))?;
        Ok(Self {
            at,
            count,
            bytes,
            cells: PhantomData,
        })
    }
}

impl<T> Deref for Mapped<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: mapped for as long as this value, page-aligned, all of it initialised; others change the cells only as atomic
        // integers may be.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.count) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// All that is shared.
pub(crate) struct Maps {
    pub(crate) about: About,
    pub(crate) bundles: Mapped<Bundle>,
    pub(crate) wishes: Mapped<AtomicU64>,
    pub(crate) targets: Mapped<Target>,
    pub(crate) sent: Mapped<AtomicU64>,
    pub(crate) done: Mapped<Done>,
    counters: PerCpuArray<MapData, u64>,
}

impl Maps {
    /// Takes them from whoever has them by name.
    pub(crate) fn new(
        about: About,
        mut map: impl FnMut(&'static str) -> Result<MapData, Error>,
    ) -> Result<Self, Error> {
        let bundles = (about.queues * (about.mask + 1)) as usize;
        let cells = (about.cores * about.queues) as usize;
        let targets = about.targets as usize;
        let counters = Map::PerCpuArray(map("takt_counters")?);
        // SAFETY: the types are the program's: checked by `LAYOUT` and, for their sizes, by a test.
        unsafe {
            Ok(Self {
                about,
                bundles: Mapped::new(&map("takt_bundles")?, bundles)?,
                wishes: Mapped::new(&map("takt_wishes")?, bundles)?,
                targets: Mapped::new(&map("takt_targets")?, targets)?,
                sent: Mapped::new(&map("takt_sent")?, cells)?,
                done: Mapped::new(&map("takt_done")?, cells)?,
                counters: counters
                    .try_into()
                    .map_err(Error::load("open the counters"))?,
            })
        }
    }

    /// Bundles of a receive queue.
    pub(crate) fn of_queue(&self) -> u32 {
        self.about.mask + 1
    }

    /// A core's cells: one for each receive queue.
    pub(crate) fn cells(&self, core: u32) -> std::ops::Range<usize> {
        let first = (core * self.about.queues) as usize;
        first..first + self.about.queues as usize
    }

    /// Packets that a core got from a receive queue, and those that are out of its queue, by what it has let out last.
    pub(crate) fn cell(&self, cell: usize) -> (u64, u64) {
        // Done first: it is never more than was sent before it was looked at.
        let out = self.done[cell].last.load(Ordering::Acquire);
        (self.sent[cell].load(Ordering::Relaxed), out)
    }

    /// Packets that a core got, and those that are out of its queue, of all receive queues.
    pub(crate) fn queue(&self, core: u32) -> (u64, u64) {
        let cells = self.cells(core).map(|cell| self.cell(cell));
        cells.fold((0, 0), |(sent, out), more| (sent + more.0, out + more.1))
    }

    /// Packets that a core took out of its queue: without those that had no room in it.
    pub(crate) fn taken(&self, core: u32) -> u64 {
        self.done[self.cells(core)]
            .iter()
            .map(|done| done.packets.load(Ordering::Relaxed))
            .sum()
    }

    /// What the program has counted.
    pub(crate) fn counters(&self) -> Result<Counters, Error> {
        let mut counters = [0; COUNTERS.len()];
        for (at, counter) in (0..).zip(&mut counters) {
            let counts = self.counters.get(&at, 0);
            let counts = counts.map_err(Error::load("read the counters"))?;
            *counter = counts.iter().sum();
        }
        Ok(counters)
    }
}

/// A cell to which nothing was sent for so long, and out of which nothing came, holds nothing: what is missing had no room in the queue.
const SETTLED_NS: i64 = 100_000_000;

/// A cell as it was when it last changed.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    sent: u64,
    out: u64,
    since_ns: i64,
}

impl Cell {
    /// How many packets wait.
    fn look(&mut self, now_ns: i64, (sent, out): (u64, u64)) -> u64 {
        if (sent, out) != (self.sent, self.out) {
            (self.sent, self.out, self.since_ns) = (sent, out, now_ns);
        }
        match now_ns - self.since_ns > SETTLED_NS {
            true => 0,
            false => sent.saturating_sub(out),
        }
    }
}

/// What waits for cores, over time. The number of a packet that had no room comes out only with a later one's: each cell settles by
/// itself, since others of its core may go on.
#[derive(Clone, Debug)]
pub(crate) struct Waiting(Vec<Cell>);

impl Waiting {
    /// From now on.
    pub(crate) fn new(about: &About, now_ns: i64) -> Self {
        let cell = Cell {
            since_ns: now_ns,
            ..Cell::default()
        };
        Self(vec![cell; (about.cores * about.queues) as usize])
    }

    /// How many packets wait for a core.
    pub(crate) fn look(&mut self, maps: &Maps, core: u32, now_ns: i64) -> u32 {
        let cells = maps.cells(core);
        let waiting = cells.map(|cell| self.0[cell].look(now_ns, maps.cell(cell)));
        u32::try_from(waiting.sum::<u64>()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_had_no_room_is_not_waited_for_though_other_cells_go_on() {
        let mut cells = [Cell::default(); 2];
        let mut look = |now_ns, numbers: [(u64, u64); 2]| {
            let waiting = cells.iter_mut().zip(numbers);
            waiting
                .map(|(cell, numbers)| cell.look(now_ns, numbers))
                .sum::<u64>()
        };
        // Of 100 packets the last 70 have had no room.
        assert_eq!(look(1, [(100, 30), (5, 5)]), 70);
        assert_eq!(look(SETTLED_NS, [(100, 30), (6, 5)]), 71);
        assert_eq!(look(SETTLED_NS + 2, [(100, 30), (7, 6)]), 1);
        assert_eq!(look(SETTLED_NS + 3, [(101, 101), (7, 7)]), 0);
    }

    #[test]
    fn cells_are_as_long_as_the_strides_of_the_maps() {
        assert_eq!(size_of::<About>(), 56);
        assert_eq!(size_of::<Bundle>(), 24);
        assert_eq!(size_of::<Done>(), 64);
        assert_eq!(size_of::<Target>(), 56);
    }
}
