//! What a daemon holds, as the kernel tells it.

use super::Node;

/// Memory of arenas that may have come to be used, KiB: applications that are still there go round in theirs.
const USED_KIB: u64 = 4 << 10;

/// Descriptors, threads and memory of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub descriptors: usize,
    pub arenas: usize,
    /// BPF programs, their links and maps.
    pub bpf: usize,
    /// But for those that serve operators and look at the clock, of which there are as many as happen to be needed.
    pub threads: usize,
    /// Memory of its own.
    pub own_kib: u64,
    /// Of arenas: as much as those who have them have used.
    pub shared_kib: u64,
}

impl Held {
    pub fn by(node: &Node) -> Self {
        let list = |what: &str| {
            let place = format!("/proc/{}/{what}", node.pid());
            let entries = std::fs::read_dir(place).expect("it runs").flatten();
            entries.collect::<Vec<_>>()
        };
        let descriptors: Vec<String> = list("fd")
            .iter()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .map(|link| link.to_string_lossy().into_owned())
            .collect();
        let count = |what: &str| {
            descriptors
                .iter()
                .filter(|link| link.contains(what))
                .count()
        };
        let threads = list("task");
        let own = threads.iter().filter(|thread| {
            let name = std::fs::read_to_string(thread.path().join("comm"));
            // One that has just ended has no name.
            name.is_ok_and(|name| !name.starts_with("tokio"))
        });
        let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid()));
        let status = status.expect("it runs");
        let kib = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
            kib.and_then(|kib| kib.parse().ok()).expect("a number")
        };
        Self {
            descriptors: descriptors.len(),
            arenas: count("/memfd:takt"),
            bpf: count("bpf"),
            threads: own.count(),
            own_kib: kib("RssAnon:"),
            shared_kib: kib("RssShmem:"),
        }
    }

    /// Whether it is no more than before, but for memory that an allocator may keep and that applications have come to use.
    pub fn is_within(self, before: Self, kept_kib: u64) -> bool {
        self.descriptors <= before.descriptors
            && self.arenas <= before.arenas
            && self.bpf == before.bpf
            && self.threads <= before.threads
            && self.own_kib <= before.own_kib + kept_kib
            && self.shared_kib <= before.shared_kib + USED_KIB
    }
}
