//! Loading the XDP program and attaching it.

use std::os::fd::{AsFd, OwnedFd};

use aya::maps::{CpuMap, HashMap as BpfHashMap, Map, MapData};
use aya::programs::Xdp;
use aya::{Ebpf, EbpfLoader};
use takt_wire::ethernet::MacAddress;
use takt_xdp::AttachMode;

use crate::error::{Error, TO_LOAD, TO_PRIORITISE};
use crate::flow::Service;
use crate::maps::{About, Maps};

/// The compiled `bpf/takt_balance.bpf.c`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/takt_balance.bpf.o"));

pub(crate) const BALANCE: &str = "takt_balance";
const ARRIVE: &str = "takt_arrive";

/// The programs, loaded, and their maps.
pub(crate) struct Program {
    /// Keeps programs and maps.
    ebpf: Ebpf,
    pub(crate) maps: Maps,
    /// Source addresses that are neighbours'.
    neighbours: BpfHashMap<MapData, u64, u32>,
    /// The map of queues, by which their threads are named.
    cpus: u32,
    /// Keeps the queues.
    _cpus: CpuMap<MapData>,
}

impl Program {
    /// Loads them for services and processors, each with a queue of `length` packets.
    pub(crate) fn load(
        about: About,
        services: &[Service],
        cpus: &[u32],
        length: u32,
    ) -> Result<Self, Error> {
        let bundles = about.queues * (about.mask + 1);
        let cells = about.cores * about.queues;
        let most_cpu = cpus.iter().max().map_or(1, |most| most + 1);
        let mut ebpf = EbpfLoader::new()
            .btf(None)
            .map_max_entries("takt_bundles", bundles)
            .map_max_entries("takt_wishes", bundles)
            .map_max_entries("takt_targets", about.targets)
            .map_max_entries("takt_sent", cells)
            .map_max_entries("takt_done", cells)
            .map_max_entries("takt_cpus", most_cpu)
            .override_global("takt_about", &about, true)
            .load(OBJECT)
            .map_err(Error::load("create BPF maps"))?;
        load(&mut ebpf, ARRIVE)?;
        load(&mut ebpf, BALANCE)?;
        let cpu_map = take(&mut ebpf, "takt_cpus")?;
        let id = match &cpu_map {
            Map::CpuMap(map) => map.info().map_err(Error::load("look at the queues"))?.id(),
            _ => return Err(missing("takt_cpus")),
        };
        let mut cpu_map: CpuMap<MapData> =
            cpu_map.try_into().map_err(Error::load("open the queues"))?;
        let arrive = program(&mut ebpf, ARRIVE)?;
        let arrive = arrive.fd().map_err(Error::load("load the XDP program"))?;
        for cpu in cpus {
            let set = cpu_map.set(*cpu, length, Some(arrive), 0);
            set.map_err(|error| match Error::load("make a queue")(error) {
                Error::Load { told, .. } => Error::Cpu { cpu: *cpu, told },
                error => error,
            })?;
        }
        let mut known: BpfHashMap<MapData, _, u32> = take(&mut ebpf, "takt_services")?
            .try_into()
            .map_err(Error::load("open the services"))?;
        for key in services.iter().flat_map(Service::keys) {
            known
                .insert(key, 1, 0)
                .map_err(Error::load("name a service"))?;
        }
        let neighbours = take(&mut ebpf, "takt_neighbours")?
            .try_into()
            .map_err(Error::load("open the neighbours' addresses"))?;
        let maps = Maps::new(about, |name| match take(&mut ebpf, name)? {
            Map::Array(map) | Map::PerCpuArray(map) => Ok(map),
            _ => Err(missing(name)),
        })?;
        Ok(Self {
            ebpf,
            maps,
            neighbours,
            cpus: id,
            _cpus: cpu_map,
        })
    }

    /// Attaches it; it stays as long as the descriptor.
    pub(crate) fn attach(&mut self, interface: &str, ifindex: u32) -> Result<OwnedFd, Error> {
        let program = program(&mut self.ebpf, BALANCE)?;
        let descriptor = program.fd().map_err(Error::load("load the XDP program"))?;
        let attached = takt_xdp::attach(descriptor.as_fd(), ifindex, AttachMode::Native);
        attached.map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM) => Error::Privilege {
                action: "attach an XDP program",
                needs: TO_LOAD,
            },
            Some(libc::EBUSY | libc::EEXIST) => Error::Taken(interface.to_owned()),
            _ => Error::NotNative {
                interface: interface.to_owned(),
                source,
            },
        })
    }

    /// Has the threads of the queues, and the calling one, run before all that has no such priority (`SCHED_FIFO`).
    pub(crate) fn prioritise(&self, cpus: &[u32], priority: u8) -> Result<(), Error> {
        let mut left: Vec<String> = cpus
            .iter()
            .map(|cpu| format!("cpumap/{cpu}/map:{}", self.cpus))
            .collect();
        let parameters = libc::sched_param {
            sched_priority: priority.into(),
        };
        let set = |process: libc::pid_t| {
            // SAFETY: the parameters are readable, and the kernel copies them.
            match unsafe { libc::sched_setscheduler(process, libc::SCHED_FIFO, &parameters) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
            .map_err(Error::system(
                "give queues a real-time priority",
                TO_PRIORITISE,
            ))
        };
        let processes =
            std::fs::read_dir("/proc").map_err(Error::system("look for threads", TO_LOAD))?;
        for process in processes.flatten() {
            let Some(number) = process
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            // One may have ended meanwhile.
            let read =
                |file| std::fs::read_to_string(process.path().join(file)).unwrap_or_default();
            let name = read("comm");
            // Anybody may take such a name.
            if is_of_kernel(&read("stat"))
                && let Some(at) = left.iter().position(|wanted| wanted == name.trim_end())
            {
                set(number)?;
                left.swap_remove(at);
            }
        }
        match left.first() {
            None => set(0),
            Some(name) => Err(Error::Config(format!(
                "cannot see the kernel's thread {name} in /proc, to give it a priority: run this where the host's processes are seen, or without \
                 --priority (Linux 5.17 at least)"
            ))),
        }
    }

    /// Frames from this address are a neighbour's, or are not.
    pub(crate) fn know(&mut self, address: MacAddress, is_neighbour: bool) {
        let mut key = [0; 8];
        key[..6].copy_from_slice(&address.0);
        let key = u64::from_ne_bytes(key);
        // There is room for all neighbours; one that is not known is at worst sent back once.
        let _ = match is_neighbour {
            true => self.neighbours.insert(key, 1, 0),
            false => self.neighbours.remove(&key),
        };
    }

    #[cfg(test)]
    pub(crate) fn ebpf(&mut self) -> &mut Ebpf {
        &mut self.ebpf
    }
}

fn missing(name: &str) -> Error {
    Error::Load {
        action: "use the eBPF object",
        told: format!("it has no {name}: build again"),
    }
}

fn take(ebpf: &mut Ebpf, name: &str) -> Result<Map, Error> {
    ebpf.take_map(name).ok_or_else(|| missing(name))
}

fn program<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut Xdp, Error> {
    ebpf.program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or_else(|| missing(name))
}

fn load(ebpf: &mut Ebpf, name: &str) -> Result<(), Error> {
    program(ebpf, name)?
        .load()
        .map_err(Error::load("load the XDP program"))
}

/// Whether `/proc/…/stat` is of a thread of the kernel's own (proc_pid_stat(5)).
fn is_of_kernel(stat: &str) -> bool {
    /// `include/linux/sched.h`.
    const PF_KTHREAD: u64 = 0x0020_0000;
    // The name, which may have anything in it, ends with the last of these.
    let behind = stat.rsplit_once(')').map(|(_, behind)| behind);
    let flags = behind.and_then(|behind| behind.split_whitespace().nth(6)?.parse().ok());
    flags.is_some_and(|flags: u64| flags & PF_KTHREAD != 0)
}

#[cfg(test)]
mod tests {
    use super::is_of_kernel;

    #[test]
    fn a_program_with_the_name_of_a_queue_is_no_thread_of_the_kernel() {
        let kernel = std::fs::read_to_string("/proc/2/stat");
        // kthreadd, unless this runs in a namespace of processes.
        if kernel
            .as_ref()
            .is_ok_and(|stat| stat.contains("(kthreadd)"))
        {
            assert!(is_of_kernel(&kernel.expect("read")));
        }
        let own = std::fs::read_to_string("/proc/self/stat").expect("read");
        assert!(!is_of_kernel(&own));
        let named = "7 (cpumap/0/map:7) 2 69238880) S 1 1 1 0 -1 4194304 1 0";
        assert!(!is_of_kernel(named));
        assert!(!is_of_kernel(""));
        assert!(is_of_kernel("7 (cpumap/0/map:7) S 2 0 0 0 -1 69238880 0 0"));
    }
}
