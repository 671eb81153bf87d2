//! The machine a report was made on, as far as it explains the figures.

use std::fs;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::awake::usable_cores;

/// What a reader must know of the machine to judge a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel name and release.
    pub kernel: String,
    /// The machine hardware name, such as `x86_64`.
    pub architecture: String,
    /// The processor's model.
    pub processor: String,
    /// Cores that the bench could use.
    pub cores: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Whether the processor says that a hypervisor runs below.
    pub virtual_machine: bool,
    /// The kernel's clock source, such as `tsc`.
    pub clock_source: String,
    /// The frequency governor, or "none" where frequency is not the kernel's to choose.
    pub governor: String,
    /// What the kernel was booted with that sets cores apart (`isolcpus`, `nohz_full`, `rcu_nocbs`,
    /// `idle`), in its own words; empty if nothing.
    pub core_options: Vec<String>,
}

/// The kernel's unit of time in `/proc/stat`: a hundredth of a second.
const TICK: Duration = Duration::from_millis(10);

/// What the hypervisor has taken of all cores since the start of the machine, as the kernel counts it (`proc(5)`).
///
/// # Errors
/// When `/proc/stat` cannot be read.
pub fn stolen() -> io::Result<Duration> {
    let text = fs::read_to_string("/proc/stat")?;
    let ticks = text
        .lines()
        .next()
        .and_then(|all| all.split_whitespace().nth(8));
    let ticks = ticks.and_then(|ticks| ticks.parse().ok());
    Ok(TICK * ticks.unwrap_or(0))
}

impl Machine {
    /// Describes the machine this runs on.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn describe() -> io::Result<Self> {
        let names = rustix::system::uname();
        let processors = fs::read_to_string("/proc/cpuinfo")?;
        let memory = fs::read_to_string("/proc/meminfo")?;
        let options = fs::read_to_string("/proc/cmdline")?;
        let or_none = |path| {
            fs::read_to_string(path)
                .map_or_else(|_| "none".to_owned(), |text| text.trim().to_owned())
        };
        Ok(Self {
            kernel: format!(
                "{} {}",
                names.sysname().to_string_lossy(),
                names.release().to_string_lossy()
            ),
            architecture: names.machine().to_string_lossy().into_owned(),
            processor: processor_model(&processors),
            cores: usable_cores()?.len(),
            memory_mib: memory_kib(&memory) / 1024,
            virtual_machine: field(&processors, "flags")
                .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
            clock_source: or_none(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            ),
            governor: or_none("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            core_options: core_options(&options),
        })
    }

    /// The description as headings and values, for people.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let cores = if self.core_options.is_empty() {
            format!("{}, none set apart", self.cores)
        } else {
            format!("{}, {}", self.cores, self.core_options.join(" "))
        };
        vec![
            (
                "Processor",
                format!("{} ({})", self.processor, self.architecture),
            ),
            ("Cores", cores),
            (
                "Memory",
                format!("{:.1} GiB", self.memory_mib as f64 / 1024.0),
            ),
            (
                "Virtual machine",
                if self.virtual_machine { "yes" } else { "no" }.to_owned(),
            ),
            ("Kernel", self.kernel.clone()),
            ("Clock source", self.clock_source.clone()),
            ("Frequency governor", self.governor.clone()),
        ]
    }
}

/// Whether this process is root's, which hosts in network namespaces need.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The value of the first line `key : value`.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then_some(value.trim())
    })
}

/// The model, which architectures name differently or not at all.
fn processor_model(processors: &str) -> String {
    let names = ["model name", "Model", "Processor", "CPU part"];
    names
        .iter()
        .find_map(|name| field(processors, name))
        .unwrap_or("unknown")
        .to_owned()
}

fn memory_kib(memory: &str) -> u64 {
    let total = field(memory, "MemTotal").and_then(|value| value.split_whitespace().next());
    total.and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

fn core_options(options: &str) -> Vec<String> {
    let telling = ["isolcpus=", "nohz_full=", "rcu_nocbs=", "idle="];
    let words = options.split_whitespace();
    words
        .filter(|word| telling.iter().any(|start| word.starts_with(start)))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_described() {
        let machine = Machine::describe().unwrap();
        assert!(machine.kernel.starts_with("Linux "), "{machine:?}");
        assert!(machine.cores > 0 && machine.memory_mib > 0, "{machine:?}");
        assert_eq!(machine.architecture, std::env::consts::ARCH);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "processor\t: 0\nmodel\t\t: 2\nmodel name\t: Some CPU: fast\nflags\t\t: fpu hypervisor\n";
        assert_eq!(processor_model(text), "Some CPU: fast");
        assert_eq!(field(text, "mode"), None);
        assert_eq!(memory_kib("MemTotal:       2048 kB\n"), 2048);
    }

    #[test]
    fn options_that_set_cores_apart_are_kept() {
        let options = core_options("ro isolcpus=2,3 quiet nohz_full=2 console=ttyS0\n");
        assert_eq!(options, ["isolcpus=2,3", "nohz_full=2"]);
    }
}
