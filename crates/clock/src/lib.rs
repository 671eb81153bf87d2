//! Reads the time: the only crate that does, so that everything else can be tested in virtual time.
//!
//! Not here (yet): the synchronisation state of PHC, ptp4l and chrony.

use takt_time::TaiTime;

/// A source of TAI.
pub trait Clock: Send + Sync {
    /// The instant now.
    fn now(&self) -> TaiTime;
}

/// The kernel's `CLOCK_TAI`. Equals UTC as long as nobody has told the kernel the leap seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemTai;

impl Clock for SystemTai {
    fn now(&self) -> TaiTime {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `now` outlives the call; the clock exists on every kernel that Takt supports, so the
        // call cannot fail.
        unsafe { libc::clock_gettime(libc::CLOCK_TAI, &mut now) };
        TaiTime::from_nanos(now.tv_sec * 1_000_000_000 + now.tv_nsec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_run_backwards() {
        let tai = SystemTai.now();
        assert!(SystemTai.now() >= tai);
    }
}
