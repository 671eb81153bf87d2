//! What a thread asks of the kernel for itself: its scheduling class, its clocks, its sleep.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};
use takt_reserve::Reservation;

use super::deadline::Deadline;

/// For how long a reservation may be refused because others that have ended still hold theirs: the
/// kernel takes them back when their last period is over.
const GIVING_BACK: Duration = Duration::from_secs(1);

/// How long a thread waits for a reservation that somebody else is to give it.
const GIVEN_WITHIN: Duration = Duration::from_secs(60);

/// Gives the calling thread a reservation.
pub fn reserve(reservation: &Reservation) -> io::Result<()> {
    let begun = Instant::now();
    // What the thread starts does not inherit it.
    let reserved = Deadline {
        runtime: reservation.runtime(),
        deadline: reservation.period(),
        period: reservation.period(),
        flags: libc::SCHED_FLAG_RESET_ON_FORK as u64,
    };
    loop {
        match reserved.give(0) {
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && begun.elapsed() < GIVING_BACK =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            answer => return answer,
        }
    }
}

/// Waits until the calling thread has been given the reservation.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`].
pub fn await_reservation(reservation: &Reservation) -> io::Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < GIVEN_WITHIN {
        let holds = |has: Deadline| {
            (has.runtime, has.period) == (reservation.runtime(), reservation.period())
        };
        if Deadline::of(0)?.is_some_and(holds) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Nanoseconds of the monotonic clock.
pub fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Nanoseconds that the calling thread has run.
pub fn cpu_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
}

fn nanoseconds(time: Timespec) -> u64 {
    Duration::try_from(time).map_or(0, |time| time.as_nanos() as u64)
}

/// Sleeps until an instant of the monotonic clock; not at all if it has passed.
pub fn sleep_until(instant_ns: u64) {
    let instant = Timespec {
        tv_sec: (instant_ns / 1_000_000_000) as i64,
        tv_nsec: (instant_ns % 1_000_000_000) as _,
    };
    // A signal's interruption is the only failure there is for a valid instant.
    while clock_nanosleep_absolute(ClockId::Monotonic, &instant).is_err() {}
}

/// How often the kernel took the core from the calling thread, or the thread left it.
pub fn switches() -> i64 {
    // SAFETY: all zeros is a valid `rusage`, which the call fills.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live `rusage`.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw + usage.ru_nvcsw
}

/// The kernel's account of how long a thread was ready and had no core (proc_pid_schedstat(5)).
pub struct Waiting(File);

impl Waiting {
    /// Of the calling thread; `None` where the kernel keeps no such account.
    pub fn of_this_thread() -> Option<Self> {
        File::open("/proc/thread-self/schedstat").ok().map(Self)
    }

    /// Nanoseconds so far.
    pub fn ns(&self) -> u64 {
        let mut buffer = [0; 96];
        let length = self.0.read_at(&mut buffer, 0).unwrap_or(0);
        // Time on a core, time waiting, times that it got a core.
        let text = str::from_utf8(&buffer[..length]).unwrap_or_default();
        let waited = text.split_whitespace().nth(1);
        waited.and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}
