//! What others see of load management at an interface, and what they may write: by maps alone, past whoever runs it.

use aya::maps::{Array, Map, MapData, MapInfo};
use aya::programs::{ProgramInfo, loaded_programs};
use std::sync::atomic::Ordering;
use takt_balance::Refused;
use takt_balance::table::Target;

use crate::balancer::{now_ns, target};
use crate::error::{Error, TO_FIND};
use crate::maps::{About, Counters, LAYOUT, Maps, Waiting};
use crate::program::BALANCE;

/// The load management of an interface, as anybody may see it.
pub struct Look {
    maps: Maps,
    waiting: Waiting,
    /// The program's number.
    id: u32,
}

/// A core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreStatus {
    /// The processor.
    pub cpu: u32,
    /// Bundles that go there, of all receive queues.
    pub bundles: usize,
    /// Packets that were sent to it.
    pub packets: u64,
    /// Packets that wait for it, or for which its queue had no room since the last one that came out.
    pub waiting: u64,
    /// Packets for which its queue had no room, as far as later ones tell.
    pub lost: u64,
}

/// A neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourStatus {
    /// Bundles that go there, of all receive queues.
    pub bundles: usize,
    /// It is reachable and its beats come.
    pub alive: bool,
    /// Its beats come, or none are waited for.
    pub beats: bool,
    /// There is a way to it, and it answers there (ARP).
    pub reachable: bool,
}

/// What is going on at an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Receive queues.
    pub queues: u32,
    /// Bundles of each.
    pub bundles: u32,
    /// Flowlet time-out, nanoseconds.
    pub delta_ns: u64,
    /// In the order that they were named.
    pub cores: Vec<CoreStatus>,
    /// In the order that they were named.
    pub neighbours: Vec<NeighbourStatus>,
    /// Bundles that were told to go elsewhere and have not had a chance.
    pub pending: usize,
    /// What the program has counted, in the order of [`COUNTERS`](crate::COUNTERS).
    pub counters: Counters,
}

impl Look {
    /// Finds it at an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error`]; `NotThere` if there is none.
    pub fn at(interface: &str) -> Result<Self, Error> {
        let ifindex =
            takt_xdp::index(interface).ok_or_else(|| Error::NoInterface(interface.to_owned()))?;
        let (device, inode) = takt_xdp::namespace()
            .map_err(Error::system("identify the network namespace", TO_FIND))?;
        for program in loaded_programs() {
            // One may go away between two looks; the kernel's refusal is of interest.
            let program = match program {
                Ok(program) => program,
                Err(error) => match Error::find("look at BPF programs")(error) {
                    error @ Error::Privilege { .. } => return Err(error),
                    _ => continue,
                },
            };
            if program.name_as_str() != Some(BALANCE) {
                continue;
            }
            let Some(about) = about(&program) else {
                continue;
            };
            if (about.ifindex, about.namespace) != (ifindex, [device, inode]) {
                continue;
            }
            if about.layout != LAYOUT {
                return Err(Error::OtherLayout(interface.to_owned()));
            }
            let maps = Maps::new(about, |name| find(&program, name))?;
            return Ok(Self {
                waiting: Waiting::new(&maps.about, now_ns()),
                maps,
                id: program.id(),
            });
        }
        Err(Error::NotThere(interface.to_owned()))
    }

    /// Whether the program is still there. Its maps outlive it as long as somebody looks at them, and tell nothing any more.
    pub fn is_there(&self) -> bool {
        loaded_programs()
            .flatten()
            .any(|program| program.id() == self.id)
    }

    /// What is going on.
    ///
    /// # Errors
    /// [`Error`].
    pub fn status(&self) -> Result<Status, Error> {
        status(&self.maps)
    }

    /// How many packets wait for the core that has the fewest; to be asked every so often, so that those for which a queue had no room
    /// are told from those that wait.
    pub fn load(&mut self) -> u32 {
        let now = now_ns();
        let cores = 0..self.maps.about.cores;
        let waiting = cores.map(|core| self.waiting.look(&self.maps, core, now));
        waiting.min().unwrap_or(0)
    }

    /// The bundle of flows with this hash.
    pub fn bundle(&self, hash: u32) -> u32 {
        hash & self.maps.about.mask
    }

    /// Where a [`bundle`](Self::bundle) goes, by receive queue; `None`: nothing of it has come by that one.
    pub fn targets(&self, bundle: u32) -> impl Iterator<Item = Option<Target>> {
        let about = self.maps.about;
        (0..about.queues).map(move |queue| {
            let at = queue * self.maps.of_queue() + (bundle & about.mask);
            let goes = &self.maps.bundles[at as usize].target;
            let place = goes.load(Ordering::Relaxed).checked_sub(1)?;
            target(place, about.cores as usize)
        })
    }

    /// Has a bundle of each receive queue go to a target with its next flowlet and stay there as long as that lives, or (`None`) go
    /// where load management has it again.
    ///
    /// # Errors
    /// [`Error::Refused`], also for a neighbour that is dead or cannot be reached.
    pub fn assign(&self, bundle: u32, target: Option<Target>) -> Result<(), Error> {
        assign(&self.maps, bundle, target)
    }
}

/// What a program tells of itself: its only read-only data.
fn about(program: &ProgramInfo) -> Option<About> {
    let rodata = find(program, ".rodata").ok()?;
    let array: Array<_, About> = Map::Array(rodata).try_into().ok()?;
    array.get(&0, 0).ok()
}

/// A map of a program that is loaded, by its name.
fn find(program: &ProgramInfo, name: &str) -> Result<MapData, Error> {
    let ids = program.map_ids();
    let ids = ids.map_err(Error::find("look at the program"))?;
    for id in ids.unwrap_or_default() {
        let info = MapInfo::from_id(id).map_err(Error::find("look at the program's maps"))?;
        if info.name_as_str() == Some(name) {
            return MapData::from_id(id).map_err(Error::find("open the program's maps"));
        }
    }
    Err(Error::Load {
        action: "look at the program's maps",
        told: format!("there is no {name}: it is of another version of takt"),
    })
}

pub(crate) fn status(maps: &Maps) -> Result<Status, Error> {
    let about = maps.about;
    let mut at = vec![0; about.targets as usize];
    let mut pending = 0;
    for (bundle, wish) in maps.bundles.iter().zip(&*maps.wishes) {
        let target = bundle.target.load(Ordering::Relaxed);
        let wish = wish.load(Ordering::Relaxed) as u32;
        let here = target
            .checked_sub(1)
            .and_then(|at| usize::try_from(at).ok());
        if let Some(here) = here.and_then(|here| at.get_mut(here)) {
            *here += 1;
            pending += usize::from(wish != 0 && wish != target);
        }
    }
    let cores = (0..about.cores).map(|core| {
        let (sent, out) = maps.queue(core);
        CoreStatus {
            cpu: maps.targets[core as usize].number(),
            bundles: at[core as usize],
            packets: sent,
            waiting: sent.saturating_sub(out),
            lost: out.saturating_sub(maps.taken(core)),
        }
    });
    let neighbours = (about.cores..about.targets).map(|at_target| {
        let target = &maps.targets[at_target as usize];
        NeighbourStatus {
            bundles: at[at_target as usize],
            alive: target.gets_packets(),
            beats: target.beats(),
            reachable: target.is_reachable(),
        }
    });
    Ok(Status {
        queues: about.queues,
        bundles: about.mask + 1,
        delta_ns: about.delta_ns,
        cores: cores.collect(),
        neighbours: neighbours.collect(),
        pending,
        counters: maps.counters()?,
    })
}

pub(crate) fn assign(maps: &Maps, bundle: u32, target: Option<Target>) -> Result<(), Error> {
    let about = maps.about;
    let count = about.mask as usize + 1;
    if bundle > about.mask {
        let number = bundle;
        return Err(Refused::Bundle { number, count }.into());
    }
    let (what, number, first, count) = match target {
        None => ("core", 0, 0, about.cores),
        Some(Target::Core(core)) => ("core", core, 0, about.cores),
        Some(Target::Neighbour(neighbour)) => (
            "neighbour",
            neighbour,
            about.cores,
            about.targets - about.cores,
        ),
    };
    if u32::from(number) >= count {
        let count = count as usize;
        return Err(Refused::NoSuch {
            what,
            number,
            count,
        }
        .into());
    }
    if let Some(Target::Neighbour(number)) = target
        && !maps.targets[first as usize + usize::from(number)].gets_packets()
    {
        return Err(Refused::Dead(number).into());
    }
    let wish = match target {
        None => 0,
        Some(_) => 1 << 32 | u64::from(first + u32::from(number) + 1),
    };
    for queue in 0..about.queues {
        let at = queue * maps.of_queue() + bundle;
        maps.wishes[at as usize].store(wish, Ordering::SeqCst);
    }
    Ok(())
}
