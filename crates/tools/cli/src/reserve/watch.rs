//! A program run under the eyes of the kernel's context switch records.
//!
//! One event per CPU is opened on the calling thread, off, inherited by what it starts, and switched
//! on by the program's `execve`: so every thread is seen from its first instruction, ours never
//! (perf_event_open(2): `inherit`, `enable_on_exec`, `context_switch`). It needs no root: the
//! records are of the user's own threads, and none of the kernel's doings.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use perf_event_open::config::{Clock, Cpu, Inherit, OnExecve, Opts, Proc};
use perf_event_open::count::Counter;
use perf_event_open::event::sw::Software;
use perf_event_open::sample::Sampler;
use perf_event_open::sample::record::Record;
use perf_event_open::sample::record::ctx::Switch as Kernel;
use rustix::process::{Pid, Signal, kill_process};
use takt_reserve::Nanos;
use takt_reserve::measure::{Change, Switch};

/// Room for records, as a power of two of pages, for each CPU: thousands of switches.
const PAGES: u8 = 6;
/// How often records are fetched.
const FETCH: Duration = Duration::from_millis(20);
/// How long the program may take to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(2);

/// What was seen of a program.
pub struct Watched {
    /// Its threads, in the order of their numbers.
    pub threads: Vec<Thread>,
    /// How many records were lost because they came too fast.
    pub lost: u64,
    /// How it ended, and whether because it was told to.
    pub status: ExitStatus,
    /// Whether the time was over before the program.
    pub stopped: bool,
    /// For how long it was watched.
    pub watched: Duration,
}

/// What was seen of a thread.
pub struct Thread {
    /// Its number.
    pub id: u32,
    /// Its last name.
    pub name: String,
    /// Its context switches, in order.
    pub switches: Vec<Switch>,
}

/// Why a program could not be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The kernel has no such event, or not for this user.
    #[error(
        "cannot watch context switches: {0}; the kernel needs perf events, and without root /proc/sys/kernel/perf_event_paranoid at most 2"
    )]
    Open(io::Error),
    /// The program cannot be run.
    #[error("cannot run {program}: {source}")]
    Run {
        /// What was to be run.
        program: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Anything else.
    #[error("cannot {0}: {1}")]
    Io(&'static str, io::Error),
}

/// The records of one CPU.
struct Window {
    // Closed after its sampler.
    sampler: Sampler,
    _counter: Counter,
}

/// Runs `command` for at most `limit`, or until `stop` is set, and watches all its threads and those of
/// processes that it starts.
pub fn watch(
    command: &[String],
    limit: Option<Duration>,
    stop: &Arc<AtomicBool>,
) -> Result<Watched, WatchError> {
    let windows = online_cpus()?
        .into_iter()
        .map(|cpu| Window::open(cpu).map_err(WatchError::Open))
        .collect::<Result<Vec<_>, _>>()?;
    let mut records = Records::default();
    let begun = Instant::now();
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .spawn()
        .map_err(|source| WatchError::Run {
            program: command[0].clone(),
            source,
        })?;
    let mut stopped = None;
    let status = loop {
        let ended = child
            .try_wait()
            .map_err(|error| WatchError::Io("wait for the program", error))?;
        for window in &windows {
            records.fetch(window);
        }
        if let Some(status) = ended {
            break status;
        }
        let over = limit.is_some_and(|limit| begun.elapsed() >= limit);
        // Relaxed: the flag is all there is to know.
        let told = stop.load(Ordering::Relaxed);
        match stopped {
            None if over || told => {
                stopped = Some(Instant::now());
                end(&mut child, Signal::TERM);
            }
            Some(since) if since.elapsed() > PATIENCE => end(&mut child, Signal::KILL),
            _ => {}
        }
        std::thread::sleep(FETCH);
    };
    let watched = begun.elapsed();
    Ok(Watched {
        lost: records.lost,
        threads: records.threads(&command[0]),
        status,
        stopped: stopped.is_some(),
        watched,
    })
}

/// Signals a child that has not been waited for: its number cannot be another's.
fn end(child: &mut Child, signal: Signal) {
    // It may have ended by itself, which is as good.
    let _ = kill_process(Pid::from_child(child), signal);
}

impl Window {
    fn open(cpu: u32) -> io::Result<Self> {
        let mut options = Opts::default();
        options.exclude.kernel = true;
        options.exclude.hv = true;
        options.inherit = Some(Inherit::NewChild);
        options.on_execve = Some(OnExecve::Enable);
        options.extra_record.ctx_switch = true;
        options.extra_record.comm = true;
        options.extra_record.task = true;
        options.record_id_all = true;
        options.record_id_format.task = true;
        options.record_id_format.time = true;
        options.timer = Some(Clock::Monotonic);
        let counter = Counter::new(Software::Dummy, (Proc::CURRENT, Cpu(cpu)), options)?;
        Ok(Self {
            sampler: counter.sampler(PAGES)?,
            _counter: counter,
        })
    }
}

/// The CPUs that are online: a program may run on any of them.
fn online_cpus() -> Result<Vec<u32>, WatchError> {
    let path = "/sys/devices/system/cpu/online";
    let text = fs::read_to_string(path)
        .map_err(|error| WatchError::Io("ask which CPUs are online", error))?;
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let range = |part: &str| match part.split_once('-') {
        Some((first, last)) => Some(number(first)?..=number(last)?),
        None => Some(number(part)?..=number(part)?),
    };
    let ranges: Option<Vec<_>> = text.trim().split(',').map(range).collect();
    ranges
        .map(|ranges| ranges.into_iter().flatten().collect())
        .ok_or_else(|| {
            WatchError::Io(
                "ask which CPUs are online",
                io::ErrorKind::InvalidData.into(),
            )
        })
}

/// What the records said so far.
#[derive(Default)]
struct Records {
    switches: BTreeMap<u32, Vec<Switch>>,
    names: HashMap<u32, String>,
    lost: u64,
}

impl Records {
    fn fetch(&mut self, window: &Window) {
        let records = window.sampler.iter();
        for (_, record) in records.into_iter().flatten() {
            match record {
                Record::CtxSwitch(switch) => {
                    let id = switch.record_id.as_ref();
                    let thread = id.and_then(|id| id.task.as_ref()).map(|task| task.tid);
                    let at = id.and_then(|id| id.time);
                    let change = match switch.info {
                        Kernel::InFrom(_) => Change::On,
                        Kernel::OutTo { preempt: true, .. } => Change::Preempted,
                        Kernel::OutTo { preempt: false, .. } => Change::Asleep,
                    };
                    if let (Some(thread), Some(at)) = (thread, at) {
                        let at = Nanos::new(at);
                        self.switches
                            .entry(thread)
                            .or_default()
                            .push(Switch { at, change });
                    }
                }
                Record::Comm(comm) => {
                    let name = comm.comm.to_string_lossy().into_owned();
                    self.names.insert(comm.task.tid, name);
                }
                Record::Fork(fork) => {
                    // A thread is called like the one that started it until it says otherwise.
                    let parent = self.names.get(&fork.parent_task.tid).cloned();
                    if let Some(name) = parent {
                        self.names.entry(fork.task.tid).or_insert(name);
                    }
                }
                Record::LostRecords(lost) => self.lost += lost.lost_records,
                _ => {}
            }
        }
    }

    fn threads(mut self, program: &str) -> Vec<Thread> {
        let threads = self.switches.into_iter().map(|(id, mut switches)| {
            // A thread that changes its core is in the records of both.
            switches.sort_by_key(|switch| switch.at);
            let name = self.names.remove(&id).unwrap_or_else(|| program.to_owned());
            Thread { id, name, switches }
        });
        threads.collect()
    }
}
