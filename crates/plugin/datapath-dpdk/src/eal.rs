//! DPDK's environment: started once in a process, for all datapaths, and never stopped.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::sync::{Mutex, PoisonError};

use takt_datapath::OpenError;

use crate::config::{DpdkConfig, HugePages};
use crate::ffi;

/// What the environment has become.
#[derive(Clone, Debug)]
pub(crate) struct Environment {
    /// Packets lie in huge pages.
    pub(crate) huge_pages: bool,
    /// Why not, where they do not.
    pub(crate) reason: String,
}

/// The first attempt's result: DPDK cannot be started twice in a process.
static STARTED: Mutex<Option<Result<Environment, String>>> = Mutex::new(None);

/// Starts DPDK, if this is the process's first datapath over it.
///
/// # Errors
/// [`OpenError::Unavailable`] with what DPDK says.
pub(crate) fn start(config: &DpdkConfig) -> Result<Environment, OpenError> {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    let unavailable = OpenError::Unavailable;
    if let Some(result) = &*started {
        let environment = result.clone().map_err(|error| {
            unavailable(format!("{error} (the process has to be started anew)"))
        })?;
        if config.huge_pages == HugePages::On && !environment.huge_pages {
            return Err(unavailable(
                "hugepages = \"on\", but DPDK runs without them in this process already: set it for the first \
                 datapath over DPDK as well"
                    .into(),
            ));
        }
        return Ok(environment);
    }
    // Refused before DPDK has seen anything: may be tried again.
    let environment = choose_pages(config)?;
    let arguments = arguments(config, &environment);
    // DPDK binds the thread that starts it to a processor, and keeps its marks in it: not in the caller's.
    let thread = std::thread::Builder::new()
        .name("takt-dpdk-start".into())
        .spawn(move || init(&arguments))
        .map_err(|source| OpenError::System {
            action: "cannot start a thread for DPDK".into(),
            source,
        })?;
    let error = thread.join().unwrap_or(libc::EINVAL);
    let result = if error == 0 {
        Ok(environment)
    } else {
        Err(format!(
            "DPDK cannot be started: {}{}{}",
            errno_text(error),
            said(),
            advice(error)
        ))
    };
    started.insert(result).clone().map_err(unavailable)
}

/// Whether there are huge pages for the memory asked for, and whether that is needed.
fn choose_pages(config: &DpdkConfig) -> Result<Environment, OpenError> {
    let free = free_huge_memory();
    let enough = free >= u64::from(config.memory) << 20;
    let reason = format!(
        "{} MiB of huge pages are free, {} are wanted: reserve some with `sysctl vm.nr_hugepages={}`",
        free >> 20,
        config.memory,
        config.memory.div_ceil(2)
    );
    match config.huge_pages {
        HugePages::On if !enough => Err(OpenError::Unavailable(reason)),
        HugePages::On => Ok(Environment {
            huge_pages: true,
            reason: String::new(),
        }),
        HugePages::Auto => Ok(Environment {
            huge_pages: enough,
            reason,
        }),
        HugePages::Off => Ok(Environment {
            huge_pages: false,
            reason: "as configured".into(),
        }),
    }
}

/// Bytes of the huge pages that nobody has, of all sizes.
fn free_huge_memory() -> u64 {
    let Ok(sizes) = fs::read_dir("/sys/kernel/mm/hugepages") else {
        return 0;
    };
    sizes
        .flatten()
        .filter_map(|size| {
            let name = size.file_name();
            let kib: u64 = (name
                .to_str()?
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?)
            .parse()
            .ok()?;
            let read = |file| -> Option<u64> {
                fs::read_to_string(size.path().join(file))
                    .ok()?
                    .trim()
                    .parse()
                    .ok()
            };
            let free = read("free_hugepages")?.saturating_sub(read("resv_hugepages")?);
            Some((free * kib) << 10)
        })
        .sum()
}

/// The command line: nothing of DPDK's outlives the process, and nothing of the host is touched that was not
/// asked for.
fn arguments(config: &DpdkConfig, environment: &Environment) -> Vec<String> {
    let mut arguments = vec![
        "takt".to_owned(),
        // One logical core, of which no thread is on our way, and which may run anywhere.
        format!("--lcores=0@({})", processors()),
        "--no-telemetry".into(),
        format!("--file-prefix=takt-{}", std::process::id()),
    ];
    if environment.huge_pages {
        arguments.push("--in-memory".into());
    } else {
        arguments.extend(["--no-shconf".into(), "--no-huge".into()]);
        arguments.extend(["-m".into(), config.memory.to_string()]);
    }
    if config.device.starts_with("net_") {
        arguments.push("--no-pci".into());
    } else {
        // Of the cards only those that are asked for by name; there is no such card.
        arguments.extend(["-a".into(), "ffff:ff:1f.7".into()]);
    }
    arguments.extend(config.eal.iter().cloned());
    arguments
}

/// The processors that this thread may run on, as DPDK reads them.
fn processors() -> String {
    // SAFETY: zeros are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes as much of the set as its length says.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    let numbers: Vec<String> = (0..8 * size_of_val(&set))
        // SAFETY: the number is within the set.
        .filter(|number| result == 0 && unsafe { libc::CPU_ISSET(*number, &set) })
        // DPDK of the distributions knows so many.
        .filter(|number| *number < 128)
        .map(|number| number.to_string())
        .collect();
    if numbers.is_empty() {
        "0".into()
    } else {
        numbers.join(",")
    }
}

/// Runs `rte_eal_init`; 0, or an errno.
fn init(arguments: &[String]) -> c_int {
    let words: Vec<CString> = arguments
        .iter()
        .filter_map(|word| CString::new(word.as_str()).ok())
        .collect();
    let mut pointers: Vec<*mut c_char> =
        words.iter().map(|word| word.as_ptr().cast_mut()).collect();
    pointers.push(std::ptr::null_mut());
    // DPDK keeps the pointers: the words stay for good, once in a process.
    std::mem::forget(words);
    let argv = pointers.leak();
    // SAFETY: a command line as `main` has it, which lives for good.
    unsafe { ffi::takt_dpdk_init(argv.len() as c_int - 1, argv.as_mut_ptr()) }
}

/// What DPDK has said since the last time, as the rest of an error's text.
pub(crate) fn said() -> String {
    let mut buffer = [0; 2048];
    // SAFETY: the buffer has the length that is told.
    let length = unsafe { ffi::takt_dpdk_said(buffer.as_mut_ptr(), buffer.len()) };
    let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    // The last ones say most.
    format!(
        " (DPDK: {})",
        lines[lines.len().saturating_sub(4)..].join("; ")
    )
}

/// The kernel's word for an errno.
pub(crate) fn errno_text(error: c_int) -> String {
    std::io::Error::from_raw_os_error(error.abs()).to_string()
}

/// What to do about it.
fn advice(error: c_int) -> &'static str {
    match error {
        libc::ENOMEM | libc::EACCES | libc::EPERM => {
            ": reserve huge pages with `sysctl vm.nr_hugepages=256`, or set hugepages = \"off\""
        }
        _ => ": see `eal` in the configuration",
    }
}

/// The version that runs.
pub(crate) fn version() -> String {
    // SAFETY: a text with its end, which lives for good.
    let text = unsafe { CStr::from_ptr(ffi::takt_dpdk_version()) };
    text.to_string_lossy().into_owned()
}

/// Gives a thread's place among DPDK's back at its end.
struct Registered(Cell<bool>);

impl Drop for Registered {
    fn drop(&mut self) {
        if self.0.get() {
            // SAFETY: this thread has been registered.
            unsafe { ffi::takt_dpdk_unregister_thread() }
        }
    }
}

thread_local! {
    static REGISTERED: Registered = const { Registered(Cell::new(false)) };
    static ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// Lets this thread have caches of buffers of its own. Cheap but for the first time.
#[inline]
pub(crate) fn enter_thread() {
    if !ENTERED.get() {
        register();
    }
}

#[cold]
fn register() {
    ENTERED.set(true);
    // SAFETY: DPDK runs: there is a port. Where no place is left, buffers come from the pool itself.
    let registered = unsafe { ffi::takt_dpdk_register_thread() } == 0;
    REGISTERED.with(|place| place.0.set(registered));
}
