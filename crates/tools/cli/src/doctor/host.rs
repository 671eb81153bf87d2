//! What the machine shows in files.

use std::fs;
use std::path::{Path, PathBuf};

use taktd::daemon::LEAST_MTU;

use super::{Finding, Level};

/// What `datapath.udp.receive_buffer` asks for.
const RECEIVE_BUFFER: u64 = 32 << 20;
/// Sockets, arenas and doorbells of the sessions that a listener takes by default.
const OPEN_FILES: u64 = 4096;
/// An AF_XDP socket's memory with default rings.
const LOCKED_MEMORY: u64 = 64 << 20;
/// The first kernel that the tests know.
const LEAST_KERNEL: (u32, u32) = (5, 15);

/// Capabilities that a daemon may need, by their numbers in `linux/capability.h`.
const CAPABILITIES: [(u32, &str, &str); 6] = [
    (12, "CAP_NET_ADMIN", "AF_XDP and SO_TXTIME"),
    (13, "CAP_NET_RAW", "AF_XDP"),
    (39, "CAP_BPF", "AF_XDP"),
    (38, "CAP_PERFMON", "AF_XDP"),
    (23, "CAP_SYS_NICE", "lanes under SCHED_FIFO"),
    (14, "CAP_IPC_LOCK", "locked memory"),
];

/// A machine, and the process whose rights count.
pub struct Host {
    root: PathBuf,
    process: String,
    /// Whose process that is.
    whose: &'static str,
}

impl Host {
    /// This machine. `daemon`: the process of a node; without one, what is started from here counts.
    pub fn here(daemon: Option<i32>) -> Self {
        Self {
            root: "/".into(),
            process: daemon.map_or_else(|| "self".into(), |pid| pid.to_string()),
            whose: match daemon {
                Some(_) => "the daemon",
                None => "what is started from here",
            },
        }
    }

    /// Looks at everything.
    pub fn examine(&self) -> Vec<Finding> {
        let mut findings = vec![self.kernel(), self.af_xdp(), self.privileges()];
        findings.extend(self.limits());
        findings.extend(self.mtu());
        findings.push(self.receive_buffer());
        findings.push(self.huge_pages());
        findings.push(self.queueing_disciplines());
        findings.push(self.time_stamps());
        findings
    }

    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.root.join(path)).ok()?;
        Some(text.trim_end().to_owned())
    }

    fn release(&self) -> String {
        self.read("proc/sys/kernel/osrelease").unwrap_or_default()
    }

    fn kernel(&self) -> Finding {
        let release = self.release();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let mut number = || {
            numbers
                .next()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0)
        };
        let found = format!("Linux {release}");
        if (number(), number()) < LEAST_KERNEL {
            let (major, minor) = LEAST_KERNEL;
            return Finding::new(Level::Warning, "kernel", found).remedy(format!(
                "Takt is not tested below Linux {major}.{minor}: use a newer kernel"
            ));
        }
        let real_time = self
            .read("sys/kernel/realtime")
            .is_some_and(|text| text == "1");
        let found = found + if real_time { ", PREEMPT_RT" } else { "" };
        Finding::new(Level::Ok, "kernel", found)
    }

    fn af_xdp(&self) -> Finding {
        let protocols = self.read("proc/net/protocols").unwrap_or_default();
        if protocols.lines().any(|line| line.starts_with("XDP ")) {
            Finding::new(Level::Ok, "af_xdp", "in the kernel")
        } else {
            Finding::new(
                Level::Warning,
                "af_xdp",
                "not in this kernel: streams use kernel UDP",
            )
            .remedy("use a kernel with CONFIG_XDP_SOCKETS if they are to be faster")
        }
    }

    fn privileges(&self) -> Finding {
        let status = self.read(format!("proc/{}/status", self.process));
        let effective = status
            .as_deref()
            .unwrap_or_default()
            .lines()
            .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
        let Some(effective) = effective else {
            return Finding::new(
                Level::Note,
                "privileges",
                format!("cannot see those of {}", self.whose),
            )
            .remedy("run `takt doctor` as root");
        };
        let missing: Vec<&(u32, &str, &str)> = CAPABILITIES
            .iter()
            .filter(|(number, ..)| effective & 1 << number == 0)
            .collect();
        if missing.is_empty() {
            return Finding::new(Level::Ok, "privileges", format!("{} has all", self.whose));
        }
        let list = |part: fn(&(u32, &'static str, &'static str)) -> &'static str| {
            let mut parts: Vec<&str> = missing.iter().map(|missing| part(missing)).collect();
            parts.dedup();
            parts.join(", ")
        };
        Finding::new(
            Level::Note,
            "privileges",
            format!("{} has no {}", self.whose, list(|capability| capability.1)),
        )
        .remedy(format!(
            "kernel UDP needs none; for {}: run the node as root or by its unit (taktd.service)",
            list(|capability| capability.2)
        ))
    }

    fn limits(&self) -> Vec<Finding> {
        let text = self
            .read(format!("proc/{}/limits", self.process))
            .unwrap_or_default();
        let limit = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            match line.split_whitespace().next()? {
                "unlimited" => Some(u64::MAX),
                number => number.parse().ok(),
            }
        };
        let judge = |check, name, least: u64, key, why| {
            let value = limit(name)?;
            let told = match value {
                u64::MAX => "unlimited".to_owned(),
                value => value.to_string(),
            };
            let found = format!("{} for {}", told, self.whose);
            Some(if value >= least {
                Finding::new(Level::Ok, check, found)
            } else {
                Finding::new(Level::Warning, check, found).remedy(format!(
                    "{why}: {key} of taktd.service, or `ulimit` before `takt run`"
                ))
            })
        };
        [
            judge(
                "open files",
                "Max open files",
                OPEN_FILES,
                "LimitNOFILE=65536",
                "many applications need 4096 and more",
            ),
            judge(
                "memlock",
                "Max locked memory",
                LOCKED_MEMORY,
                "LimitMEMLOCK=infinity",
                "AF_XDP locks its memory, unless it has CAP_IPC_LOCK",
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Names of network interfaces that are up.
    fn interfaces(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root.join("sys/class/net"))
            .into_iter()
            .flatten();
        let names = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names
            .filter(|name| {
                let state = self.read(format!("sys/class/net/{name}/operstate"));
                // Loopback and tunnels do not know theirs.
                state.is_some_and(|state| state == "up" || state == "unknown")
            })
            .collect();
        names.sort_unstable();
        names
    }

    fn mtu(&self) -> Vec<Finding> {
        let mut good = Vec::new();
        let mut findings = Vec::new();
        for name in self.interfaces() {
            let Some(mtu) = self.read(format!("sys/class/net/{name}/mtu")) else {
                continue;
            };
            if mtu.parse().is_ok_and(|mtu: u32| mtu < LEAST_MTU) {
                findings.push(
                    Finding::new(
                        Level::Problem,
                        "mtu",
                        format!("{name} has {mtu}: peers do not find each other over it"),
                    )
                    .remedy(format!(
                        "ip link set dev {name} mtu 1500, or {LEAST_MTU} at least"
                    )),
                );
            } else {
                good.push(format!("{name} {mtu}"));
            }
        }
        if !good.is_empty() {
            findings.push(Finding::new(Level::Ok, "mtu", good.join(", ")));
        }
        findings
    }

    fn receive_buffer(&self) -> Finding {
        let most = self.read("proc/sys/net/core/rmem_max");
        let most: u64 = most.and_then(|text| text.parse().ok()).unwrap_or(0);
        let found = format!("net.core.rmem_max is {most}");
        if most >= RECEIVE_BUFFER {
            return Finding::new(Level::Ok, "buffers", found);
        }
        Finding::new(Level::Warning, "buffers", found).remedy(format!(
            "bursts are lost over kernel UDP: sysctl -w net.core.rmem_max={RECEIVE_BUFFER}"
        ))
    }

    fn huge_pages(&self) -> Finding {
        let enabled = self.read("sys/kernel/mm/transparent_hugepage/enabled");
        let reserved = self
            .read("proc/sys/vm/nr_hugepages")
            .unwrap_or_else(|| "0".into());
        match enabled {
            Some(text) if !text.contains("[never]") => Finding::new(
                Level::Ok,
                "huge pages",
                format!("transparent ones are on, {reserved} reserved (none needed)"),
            ),
            _ => Finding::new(Level::Warning, "huge pages", "transparent ones are off").remedy(
                "AF_XDP is slower without: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            ),
        }
    }

    fn queueing_disciplines(&self) -> Finding {
        let modules = format!("lib/modules/{}", self.release());
        let lists =
            ["modules.builtin", "modules.dep"].map(|list| self.read(format!("{modules}/{list}")));
        if lists.iter().all(Option::is_none) {
            return Finding::new(
                Level::Note,
                "etf",
                format!("cannot tell: /{modules} is not there"),
            )
            .remedy("`modprobe sch_etf` shows whether the kernel can keep launch times");
        }
        if lists
            .iter()
            .flatten()
            .any(|list| list.contains("/sch_etf.ko"))
        {
            Finding::new(Level::Ok, "etf", "the kernel can keep launch times")
        } else {
            Finding::new(
                Level::Note,
                "etf",
                "not in this kernel: lanes keep launch times themselves",
            )
            .remedy("nothing is needed; CONFIG_NET_SCH_ETF frees a lane's core")
        }
    }

    fn time_stamps(&self) -> Finding {
        let clocks: Vec<String> = self
            .interfaces()
            .into_iter()
            .filter_map(|name| {
                let path = self.root.join(format!("sys/class/net/{name}/device/ptp"));
                let clock = fs::read_dir(path).ok()?.flatten().next()?;
                Some(format!(
                    "{name} has /dev/{}",
                    clock.file_name().to_string_lossy()
                ))
            })
            .collect();
        if clocks.is_empty() {
            Finding::new(
                Level::Note,
                "time stamps",
                "no interface has a clock of its own: software time stamps",
            )
            .remedy("a network device with a PTP clock makes clocks exact below a microsecond")
        } else {
            Finding::new(Level::Ok, "time stamps", clocks.join(", "))
                .remedy("name it as `clock.device` if ptp4l uses hardware time stamps")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use takt_testing::Directory;

    fn host(files: &[(&str, &str)]) -> (Directory, Host) {
        let directory = Directory::new();
        for (path, text) in files {
            let path = directory.join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(path, format!("{text}\n")).expect("written");
        }
        let host = Host {
            root: directory.path().to_owned(),
            process: "7".into(),
            whose: "the daemon",
        };
        (directory, host)
    }

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units\n\
        Max open files            1024                 524288               files\n\
        Max locked memory         unlimited            unlimited            bytes";

    #[test]
    fn a_machine_that_lacks_everything_is_told_what_to_do() {
        let (_directory, host) = host(&[
            ("proc/sys/kernel/osrelease", "5.4.0-42-generic"),
            ("proc/net/protocols", "protocol  size\nUDP       1024"),
            ("proc/7/status", "Name:\ttaktd\nCapEff:\t0000000000002000"),
            ("proc/7/limits", LIMITS),
            ("proc/sys/net/core/rmem_max", "212992"),
            ("sys/class/net/eth0/operstate", "up"),
            ("sys/class/net/eth0/mtu", "68"),
            ("sys/class/net/eth1/operstate", "down"),
            ("sys/class/net/eth1/mtu", "68"),
            (
                "sys/kernel/mm/transparent_hugepage/enabled",
                "always madvise [never]",
            ),
            (
                "lib/modules/5.4.0-42-generic/modules.dep",
                "kernel/net/sched/sch_fq.ko:",
            ),
        ]);
        let findings = host.examine();
        let found = |check: &str| {
            let found = findings.iter().find(|finding| finding.check == check);
            found.unwrap_or_else(|| panic!("{check}: {findings:?}"))
        };
        for (check, level, remedy) in [
            ("kernel", Level::Warning, "5.15"),
            ("af_xdp", Level::Warning, "CONFIG_XDP_SOCKETS"),
            ("privileges", Level::Note, "AF_XDP"),
            ("open files", Level::Warning, "LimitNOFILE"),
            ("memlock", Level::Ok, ""),
            ("mtu", Level::Problem, "ip link set dev eth0 mtu 1500"),
            ("buffers", Level::Warning, "net.core.rmem_max=33554432"),
            ("huge pages", Level::Warning, "madvise"),
            ("etf", Level::Note, "CONFIG_NET_SCH_ETF"),
            ("time stamps", Level::Note, "PTP"),
        ] {
            assert_eq!(found(check).level, level, "{:?}", found(check));
            assert!(found(check).remedy.contains(remedy), "{:?}", found(check));
        }
        assert!(
            !found("privileges").found.contains("CAP_NET_RAW"),
            "{findings:?}"
        );
        assert_eq!(
            findings
                .iter()
                .filter(|finding| finding.check == "mtu")
                .count(),
            1
        );
    }

    #[test]
    fn a_good_machine_has_nothing_to_mend() {
        let (_directory, host) = host(&[
            ("proc/sys/kernel/osrelease", "6.12.1"),
            ("sys/kernel/realtime", "1"),
            ("proc/net/protocols", "XDP       1024"),
            ("proc/7/status", "CapEff:\t000001ffffffffff"),
            ("proc/7/limits", &LIMITS.replace("1024 ", "65536")),
            ("proc/sys/net/core/rmem_max", "67108864"),
            ("sys/class/net/eth0/operstate", "up"),
            ("sys/class/net/eth0/mtu", "1500"),
            ("sys/class/net/eth0/device/ptp/ptp0/clock_name", "igc"),
            (
                "sys/kernel/mm/transparent_hugepage/enabled",
                "always [madvise] never",
            ),
            (
                "lib/modules/6.12.1/modules.builtin",
                "kernel/net/sched/sch_etf.ko",
            ),
        ]);
        let findings = host.examine();
        assert!(
            findings.iter().all(|finding| finding.level == Level::Ok),
            "{findings:?}"
        );
        assert!(findings[0].found.contains("PREEMPT_RT"), "{findings:?}");
    }
}
