//! Keeping cores from halting while something is measured.
//!
//! Most of a blocking program's latency is the wake-up of a halted core, the more so in a virtual
//! machine. Spinning in the idle scheduling class takes that part out: the spinner runs only when
//! nothing else wants the core, and yields to any wake-up at once. One of the usual class is a neighbour that wants its share of the core.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// While this lives, each core the process may use has a spinner.
#[derive(Debug)]
#[must_use = "cores may halt again when this is dropped"]
pub struct Awake {
    stop: Arc<AtomicBool>,
    spinners: Vec<JoinHandle<()>>,
}

impl Awake {
    /// Starts spinners of the class `SCHED_IDLE`; they run when this returns.
    ///
    /// # Errors
    /// When a thread cannot be started, pinned or put into the idle class.
    pub fn keep() -> io::Result<Self> {
        Self::spin(enter_idle_class)
    }

    /// Starts spinners of the class of the calling thread, which take their share of each core.
    ///
    /// # Errors
    /// When a thread cannot be started or pinned.
    pub fn busy() -> io::Result<Self> {
        Self::spin(|| Ok(()))
    }

    fn spin(enter_class: fn() -> io::Result<()>) -> io::Result<Self> {
        let mut awake = Self {
            stop: Arc::new(AtomicBool::new(false)),
            spinners: Vec::new(),
        };
        for core in usable_cores()? {
            // On an error the guard is dropped, and with it the spinners started so far.
            awake
                .spinners
                .push(start_spinner(core, enter_class, Arc::clone(&awake.stop))?);
        }
        Ok(awake)
    }

    /// How many cores are kept awake.
    pub fn cores(&self) -> usize {
        self.spinners.len()
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        // Relaxed: nothing but the flag itself is communicated.
        self.stop.store(true, Ordering::Relaxed);
        for spinner in self.spinners.drain(..) {
            // A spinner has no way to panic, and a destructor none to tell.
            let _ = spinner.join();
        }
    }
}

/// The cores that the calling thread may run on, ascending.
///
/// # Errors
/// When the kernel does not tell.
pub fn usable_cores() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&core| allowed.is_set(core))
        .collect())
}

/// Pins the calling thread to `core`.
///
/// # Errors
/// When there is no such core, or the process may not use it.
pub fn pin_to(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only)?;
    Ok(())
}

fn start_spinner(
    core: usize,
    enter_class: fn() -> io::Result<()>,
    stop: Arc<AtomicBool>,
) -> io::Result<JoinHandle<()>> {
    let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
    let spinner = std::thread::Builder::new()
        .name(format!("awake-{core}"))
        .spawn(move || {
            let prepared = pin_to(core).and_then(|()| enter_class());
            let failed = prepared.is_err();
            if ready.send(prepared).is_err() || failed {
                return;
            }
            // Relaxed: as in `drop`.
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })?;
    let prepared = is_ready
        .recv()
        .unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
    prepared.map(|()| spinner)
}

/// Puts the calling thread into the class `SCHED_IDLE`: see sched(7).
fn enter_idle_class() -> io::Result<()> {
    set_scheduler(libc::SCHED_IDLE, 0)
}

/// Puts the calling thread into a scheduling class. By the system call: musl's function refuses, since it acts on a
/// thread and not on its process.
pub(crate) fn set_scheduler(class: i32, priority: i32) -> io::Result<()> {
    // SAFETY: the kernel's `sched_param` is the priority, which outlives the call; 0 names the calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, class, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// The threads of this process called `awake-*`: their allowed cores and scheduling policies.
    fn spinners() -> Vec<(String, String)> {
        let mut found = Vec::new();
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            let path = task.unwrap().path();
            let read = |file: &str| std::fs::read_to_string(path.join(file)).unwrap_or_default();
            if read("comm").starts_with("awake-") {
                let status = read("status");
                let cores = status
                    .lines()
                    .find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"));
                let stat = read("stat");
                // Field 41 of proc_pid_stat(5), the 39th after the name.
                let policy = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(38);
                found.push((cores.unwrap().to_owned(), policy.unwrap().to_owned()));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn each_core_has_a_spinner_of_its_class_for_as_long_as_the_guard_lives() {
        for (start, class) in [
            (Awake::keep as fn() -> _, libc::SCHED_IDLE),
            (Awake::busy, libc::SCHED_OTHER),
        ] {
            let awake = start().unwrap();
            let mut expected: Vec<_> = usable_cores()
                .unwrap()
                .iter()
                .map(|core| (core.to_string(), class.to_string()))
                .collect();
            expected.sort();
            assert_eq!(awake.cores(), expected.len());
            assert_eq!(spinners(), expected);
            drop(awake);
            // The kernel lists a joined thread for a moment longer.
            let deadline = Instant::now() + Duration::from_secs(30);
            while !spinners().is_empty() {
                assert!(
                    Instant::now() < deadline,
                    "still spinning: {:?}",
                    spinners()
                );
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn pinning_to_a_core_that_is_not_there_is_refused() {
        assert!(pin_to(CpuSet::MAX_CPU).is_err());
    }
}
