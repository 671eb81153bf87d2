//! SIGINT and SIGTERM: the first asks for the end, a second one is the end.

use std::io::Read;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};
use takt::Waker;

use crate::failure::Failure;
use crate::subscribe::LOOK_EVERY;

/// How long a command may take to notice that it is asked to end: it may be in a call that does not return.
const NOTICE_WITHIN: Duration = Duration::from_secs(5);
/// How long one that has noticed may take for its end: outcomes, a summary, the runtime.
const END_WITHIN: Duration = Duration::from_secs(25);

/// What is readable once SIGINT or SIGTERM has come, for what waits for descriptors and does nothing long.
///
/// # Errors
/// No handler can be registered.
pub fn readable_at_signal() -> Result<UnixStream, Failure> {
    let (stop, signalled) = UnixStream::pair().map_err(Failure::io("make a pair of sockets"))?;
    for signal in [SIGINT, SIGTERM] {
        let signalled = signalled.try_clone();
        signalled
            .and_then(|to| low_level::pipe::register(signal, to))
            .map_err(Failure::io("wait for signals"))?;
    }
    Ok(stop)
}

/// Tells a service manager that what was started is ready.
pub fn tell_ready() {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        eprintln!("takt: warning: cannot tell the service manager that this is ready: {error}");
    }
}

/// True once SIGINT or SIGTERM has come. A second one kills, and so does the first one a command that does not
/// look for five seconds, or does not end within thirty.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    asked: Arc<AtomicBool>,
    /// Somebody has looked since.
    noticed: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Deref for Stop {
    type Target = AtomicBool;

    fn deref(&self) -> &AtomicBool {
        &self.0.asked
    }
}

impl Stop {
    /// From now on signals are for this.
    ///
    /// # Errors
    /// No handler can be registered.
    pub fn by_signals() -> Result<Self, Failure> {
        let stop = Self(Arc::default());
        let signal = Arc::new(AtomicUsize::new(0));
        let told = |from: UnixStream, to: UnixStream| {
            for number in [SIGINT, SIGTERM] {
                // In this order: what the flag is before this signal sets it counts.
                flag::register_conditional_default(number, stop.0.asked.clone())?;
                flag::register_usize(number, signal.clone(), number as usize)?;
                flag::register(number, stop.0.asked.clone())?;
                low_level::pipe::register(number, to.try_clone()?)?;
            }
            let watched = stop.0.clone();
            let watch = move || watched.watch(from, &signal);
            let thread = std::thread::Builder::new().name("signals".into());
            thread.spawn(watch).map(drop)
        };
        UnixStream::pair()
            .and_then(|(from, to)| told(from, to))
            .map_err(Failure::io("watch for signals"))?;
        Ok(stop)
    }

    /// Whether the command is asked to end.
    pub fn asked(&self) -> bool {
        let asked = self.load(Ordering::Relaxed);
        if asked {
            self.0.noticed.store(true, Ordering::Relaxed);
        }
        asked
    }

    /// A signal ends waits of this one, too, and those that begin later: one.
    pub fn wakes(&self, waker: Waker) {
        let mut wakers = self.0.wakers();
        // Those that came before this one have found it not.
        if self.load(Ordering::Relaxed) {
            waker.wake();
        }
        wakers.push(waker);
    }

    /// Sleeps until then, or until the command is asked to end: false.
    pub fn sleep_until(&self, until: Instant) -> bool {
        while !self.asked() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        }
        false
    }
}

/// Waits until there is something to read, or the end; false: told to stop.
pub fn readable(from: impl AsFd, stop: &AtomicBool) -> bool {
    let pause = Timespec {
        tv_sec: 0,
        tv_nsec: LOOK_EVERY.subsec_nanos().into(),
    };
    while !stop.load(Ordering::Relaxed) {
        // What cannot be waited for says why when it is read.
        let mut polled = [PollFd::new(&from, PollFlags::IN)];
        match poll(&mut polled, Some(&pause)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            _ => return true,
        }
    }
    false
}

impl Inner {
    fn wakers(&self) -> std::sync::MutexGuard<'_, Vec<Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a signal, and for the end of the process for so long as it may take.
    fn watch(&self, mut from: UnixStream, signal: &AtomicUsize) {
        if from.read_exact(&mut [0]).is_err() {
            return;
        }
        for waker in self.wakers().iter() {
            waker.wake();
        }
        std::thread::sleep(NOTICE_WITHIN);
        if self.noticed.load(Ordering::Relaxed) {
            std::thread::sleep(END_WITHIN);
        }
        let signal = signal.load(Ordering::Relaxed);
        // It does not return.
        let _ = low_level::emulate_default_handler(signal as i32);
    }
}
