//! A program under the eyes of the kernel's context switch records.
//!
//! One event per CPU. Of a program that is started here it is opened on the calling thread, off, inherited by what it
//! starts, and switched on by the program's `execve`: so every thread is seen from its first instruction, ours never
//! (perf_event_open(2): `inherit`, `enable_on_exec`, `context_switch`). That needs no root: the records are of the user's
//! own threads, and none of the kernel's doings. A program that runs already is picked out of the records of all, which
//! needs a privilege (`CAP_PERFMON`): an event on a thread would not follow the threads that others of its program start.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use perf_event_open::config::{Clock, Cpu, Inherit, OnExecve, Opts, Proc, Target};
use perf_event_open::count::Counter;
use perf_event_open::event::sw::Software;
use perf_event_open::sample::Sampler;
use perf_event_open::sample::record::Record;
use perf_event_open::sample::record::ctx::Switch as Kernel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use takt_reserve::Nanos;
use takt_reserve::measure::{Change, Switch};

use super::source::Percent;
use crate::failure::Failure;

/// What of the threads that are watched counts.
#[derive(Debug, Args)]
pub struct Counted {
    /// Only threads whose names contain one of these texts
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    only: Vec<String>,
    /// What is added to the longest job seen
    #[arg(long, value_name = "PERCENT", default_value = "20%")]
    margin: Percent,
    /// A shorter sleep than this is part of a job
    #[arg(long, value_name = "TIME", default_value = "0")]
    pub join: Nanos,
}

impl Counted {
    /// Whether it was asked for.
    pub fn wants(&self, thread: &Thread) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| thread.name.contains(text))
    }

    /// The margin in millionths of the longest job.
    pub fn margin(&self) -> Result<u32, Failure> {
        u32::try_from(self.margin.0).map_err(|_| {
            Failure::Other("the margin is more than forty times the job: use less".to_owned())
        })
    }
}

/// Set when the user, or the system, says that it is enough.
pub fn until_told() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())
            .map_err(Failure::io("wait for signals"))?;
    }
    Ok(stop)
}

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
    /// How it ended, if it was started here.
    pub status: Option<ExitStatus>,
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
    /// The kernel shows the records of others only to who may see them.
    #[error(
        "cannot watch context switches of a program that runs already: {0}; that needs root, or CAP_PERFMON"
    )]
    OpenAll(io::Error),
    /// There is no such process.
    #[error("there is no process {0}: `ps` or `pgrep` names those there are")]
    NoProcess(u32),
    /// It is a thread.
    #[error(
        "{thread} is a thread of process {process}: name the process, and the thread by --only"
    )]
    IsThread {
        /// What was named.
        thread: u32,
        /// Whose it is.
        process: u32,
    },
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
    let windows = on_every_cpu(Window::of_what_is_started, WatchError::Open)?;
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
        status: Some(status),
        stopped: stopped.is_some(),
        watched,
    })
}

/// Watches all threads of processes that run already, and those of processes that they have started or start, for at most
/// `limit`, until `stop` is set, or until all that were named have ended. Nothing is done to them.
pub fn follow(
    processes: &[u32],
    limit: Option<Duration>,
    stop: &Arc<AtomicBool>,
) -> Result<Watched, WatchError> {
    // Held before anything is asked of them: a number says who it is only as long as that one is known to be there.
    let held = processes
        .iter()
        .map(|&process| hold(process))
        .collect::<Result<Vec<_>, _>>()?;
    let windows = on_every_cpu(Window::of_all, WatchError::OpenAll)?;
    // After the events: what begins from here on is in the records.
    let only = with_descendants(processes);
    let mut records = Records {
        names: only.iter().flat_map(|&id| names(id)).collect(),
        only: Some(only),
        ..Records::default()
    };
    let begun = Instant::now();
    let mut stopped = false;
    let mut running = true;
    while running && !stopped {
        running = !all_ended(&held)?;
        for window in &windows {
            records.fetch(window);
        }
        stopped =
            stop.load(Ordering::Relaxed) || limit.is_some_and(|limit| begun.elapsed() >= limit);
        std::thread::sleep(FETCH);
    }
    Ok(Watched {
        lost: records.lost,
        threads: records.threads("thread"),
        status: None,
        stopped,
        watched: begun.elapsed(),
    })
}

/// A process that is there, by its number.
fn hold(process: u32) -> Result<OwnedFd, WatchError> {
    if let Some(of) = process_of(process)
        && of != process
    {
        return Err(WatchError::IsThread {
            thread: process,
            process: of,
        });
    }
    let number = i32::try_from(process).ok().and_then(Pid::from_raw);
    let number = number.ok_or(WatchError::NoProcess(process))?;
    pidfd_open(number, PidfdFlags::empty()).map_err(|error| match error {
        Errno::SRCH => WatchError::NoProcess(process),
        error => WatchError::Io("find a process", error.into()),
    })
}

/// These processes, and all that they have started and those in turn.
fn with_descendants(processes: &[u32]) -> HashSet<u32> {
    let mut all = HashSet::new();
    let mut left = processes.to_vec();
    while let Some(process) = left.pop() {
        if all.insert(process) {
            let threads = fs::read_dir(format!("/proc/{process}/task"));
            for thread in threads.into_iter().flatten().flatten() {
                let children = fs::read_to_string(thread.path().join("children"));
                let children = children.unwrap_or_default();
                left.extend(
                    children
                        .split_whitespace()
                        .filter_map(|id| id.parse::<u32>().ok()),
                );
            }
        }
    }
    all
}

/// The process of a thread.
fn process_of(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// What a process's threads are called.
fn names(process: u32) -> Vec<(u32, String)> {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let ids = threads.into_iter().flatten().flatten().filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        Some((id, name.trim_end_matches('\n').to_owned()))
    });
    ids.collect()
}

fn all_ended(held: &[OwnedFd]) -> Result<bool, WatchError> {
    let mut fds: Vec<PollFd<'_>> = held
        .iter()
        .map(|process| PollFd::new(process, PollFlags::IN))
        .collect();
    match poll(
        &mut fds,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    ) {
        Ok(ended) => Ok(ended == held.len()),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(WatchError::Io(
            "ask whether the processes run",
            error.into(),
        )),
    }
}

/// Signals a child that has not been waited for: its number cannot be another's.
fn end(child: &mut Child, signal: Signal) {
    // It may have ended by itself, which is as good.
    let _ = kill_process(Pid::from_child(child), signal);
}

impl Window {
    fn of_what_is_started(cpu: u32) -> io::Result<Self> {
        let options = Opts {
            inherit: Some(Inherit::NewChild),
            on_execve: Some(OnExecve::Enable),
            ..Opts::default()
        };
        Self::open((Proc::CURRENT, Cpu(cpu)).into(), options)
    }

    fn of_all(cpu: u32) -> io::Result<Self> {
        let options = Opts {
            enable: true,
            ..Opts::default()
        };
        Self::open((Proc::ALL, Cpu(cpu)).into(), options)
    }

    fn open(whose: Target, mut options: Opts) -> io::Result<Self> {
        options.exclude.kernel = true;
        options.exclude.hv = true;
        options.extra_record.ctx_switch = true;
        options.extra_record.comm = true;
        options.extra_record.task = true;
        options.record_id_all = true;
        options.record_id_format.task = true;
        options.record_id_format.time = true;
        options.timer = Some(Clock::Monotonic);
        let counter = Counter::new(Software::Dummy, whose, options)?;
        Ok(Self {
            sampler: counter.sampler(PAGES)?,
            _counter: counter,
        })
    }
}

/// A window on each CPU.
fn on_every_cpu(
    open: fn(u32) -> io::Result<Window>,
    refused: fn(io::Error) -> WatchError,
) -> Result<Vec<Window>, WatchError> {
    let cpus = online_cpus()?.into_iter();
    cpus.map(|cpu| open(cpu).map_err(refused)).collect()
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
    /// The processes whose records count; `None`: there are no others.
    only: Option<HashSet<u32>>,
    lost: u64,
}

impl Records {
    fn fetch(&mut self, window: &Window) {
        let records = window.sampler.iter();
        for (_, record) in records.into_iter().flatten() {
            match record {
                Record::CtxSwitch(switch) => {
                    let id = switch.record_id.as_ref();
                    let task = id.and_then(|id| id.task.as_ref());
                    let task = task.filter(|task| self.counts(task.pid));
                    let thread = task.map(|task| task.tid);
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
                Record::Comm(comm) if self.counts(comm.task.pid) => {
                    let name = comm.comm.to_string_lossy().into_owned();
                    self.names.insert(comm.task.tid, name);
                }
                Record::Fork(fork) => {
                    if let Some(only) = &mut self.only {
                        match only.contains(&fork.parent_task.pid) {
                            true => only.insert(fork.task.pid),
                            // The number of one that has ended.
                            false => only.remove(&fork.task.pid),
                        };
                    }
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

    fn counts(&self, process: u32) -> bool {
        self.only
            .as_ref()
            .is_none_or(|only| only.contains(&process))
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
