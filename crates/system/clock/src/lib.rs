//! Reads the time, and says how good the clock is: the only crate that does, so that everything else can be
//! tested in virtual time.
//!
//! | module | subject |
//! |---|---|
//! | [`kernel`] | the kernel's own idea of its clock: adjtimex(2) |
//! | [`phc`] | the clock of a network device, and what it is off from the kernel's |
//! | [`chrony`] | what chronyd says about its source |
//! | [`ptp4l`] | what ptp4l of linuxptp says about its domain (IEEE 1588-2019, clause 15) |
//! | [`host`] | what a guest's physical host says of its clock: NTP |
//! | [`assess`] | all of that together: a state, a bound, warnings with their remedies; pure |
//! | [`observer`] | asks all of them again and again |
//!
//! Nothing here sets a clock. Whatever chronyd, ptp4l or a device answers is hostile input: it is checked, bounded
//! and never makes reading fail other than by an error. Not for lanes: asking takes system calls and may wait.

pub mod assess;
pub mod chrony;
mod datagram;
pub mod host;
pub mod kernel;
pub mod observer;
pub mod phc;
pub mod ptp4l;
mod status;
mod stepped;
mod sys;

use std::fmt;

use takt_time::TaiTime;

pub use observer::{Ask, Observer, Sources};
pub use status::{ClockStatus, Source, State, TaiOffset, Unmet, Warning};
pub use stepped::SteppedClock;

/// A source of TAI.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The instant now.
    fn now(&self) -> TaiTime;

    /// Nanoseconds of a time that is never stepped, whatever happens to [`now`](Self::now): for durations. By itself that of a
    /// clock which is not stepped either.
    fn steady_ns(&self) -> i64 {
        self.now().as_nanos()
    }

    /// Whether this is the kernel's `CLOCK_TAI`: its queues and devices keep launch times by no other.
    fn is_the_kernels(&self) -> bool {
        false
    }
}

/// The kernel's `CLOCK_TAI`. Equals UTC as long as nobody has told the kernel the leap seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemTai;

impl Clock for SystemTai {
    fn now(&self) -> TaiTime {
        sys::tai()
    }

    fn steady_ns(&self) -> i64 {
        sys::monotonic_ns()
    }

    fn is_the_kernels(&self) -> bool {
        true
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
