//! Transmission times: from the clock that a socket names to TAI, and instants back to the program's clock.

use std::ffi::c_int;

use takt::TaiTime;

use crate::kernel;

/// A clock that transmission times may be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// `CLOCK_TAI`, the clock that the kernel's etf queueing discipline insists on.
    Tai,
    /// `CLOCK_MONOTONIC`, that of fq.
    Monotonic,
    /// `CLOCK_REALTIME`.
    Realtime,
}

const SECOND: i64 = 1_000_000_000;

impl Clock {
    /// `None`: another clock. That of a socket whose times nobody has asked for is 0, `CLOCK_REALTIME`.
    pub fn new(clock: c_int) -> Option<Self> {
        match clock {
            libc::CLOCK_TAI => Some(Self::Tai),
            libc::CLOCK_MONOTONIC => Some(Self::Monotonic),
            libc::CLOCK_REALTIME => Some(Self::Realtime),
            _ => None,
        }
    }

    /// The clock of an instant that a socket with this one is given. A machine that has run for 36 years there is none:
    /// the process that left the socket to this one has `CLOCK_TAI`, for which the monotonic one stands in in the kernel.
    pub fn of(self, instant: u64) -> Self {
        match self {
            Self::Monotonic if instant >= 1 << 60 => Self::Tai,
            clock => clock,
        }
    }

    /// An instant of TAI, or of another clock, by the monotonic one.
    pub fn to_monotonic(self, instant: u64) -> u64 {
        let tai = self.to_tai(instant as i64).as_nanos();
        tai.saturating_sub(Self::Monotonic.behind_tai()).max(1) as u64
    }

    /// An instant of this clock, in nanoseconds, as TAI. What lies outside the scale is held at its end.
    pub fn to_tai(self, instant: i64) -> TaiTime {
        TaiTime::from_nanos(instant.saturating_add(self.behind_tai()))
    }

    /// How much TAI is ahead.
    fn behind_tai(self) -> i64 {
        match self {
            Self::Tai => 0,
            Self::Realtime => leap_seconds(),
            Self::Monotonic => {
                // The closest of some tries: a call may be interrupted between two clocks.
                let tries = std::array::from_fn::<_, 3, _>(|_| {
                    let before = kernel::monotonic();
                    let tai = kernel::clock(libc::CLOCK_TAI);
                    (before, tai, kernel::monotonic())
                });
                closest(&tries)
            }
        }
    }
}

/// By how much the middle instants were ahead of the outer ones around them, from the try that took least.
fn closest(tries: &[(i64, i64, i64)]) -> i64 {
    tries
        .iter()
        .min_by_key(|(before, _, after)| after - before)
        .map_or(0, |(before, middle, after)| {
            middle - (before + (after - before) / 2)
        })
}

/// TAI less UTC as the kernel knows it: whole seconds.
fn leap_seconds() -> i64 {
    let utc = kernel::clock(libc::CLOCK_REALTIME);
    let tai = kernel::clock(libc::CLOCK_TAI);
    whole_seconds(tai - utc)
}

fn whole_seconds(nanos: i64) -> i64 {
    (nanos + SECOND / 2).div_euclid(SECOND) * SECOND
}

/// An instant as time stamps tell it: `CLOCK_REALTIME`.
pub fn to_realtime(instant: TaiTime) -> libc::timespec {
    to_timespec(instant.as_nanos().saturating_sub(leap_seconds()))
}

/// Nanoseconds as the kernel has them.
pub fn to_timespec(nanos: i64) -> libc::timespec {
    libc::timespec {
        tv_sec: nanos.div_euclid(SECOND),
        tv_nsec: nanos.rem_euclid(SECOND),
    }
}

/// Now.
pub fn now() -> TaiTime {
    TaiTime::from_nanos(kernel::clock(libc::CLOCK_TAI))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_clocks_that_sockets_may_name_are_three() {
        let known: Vec<c_int> = (-20..40)
            .filter(|&clock| Clock::new(clock).is_some())
            .collect();
        assert_eq!(
            known,
            [libc::CLOCK_REALTIME, libc::CLOCK_MONOTONIC, libc::CLOCK_TAI]
        );
    }

    #[test]
    fn now_is_now_by_every_clock() {
        for (clock, id) in [
            (Clock::Tai, libc::CLOCK_TAI),
            (Clock::Monotonic, libc::CLOCK_MONOTONIC),
            (Clock::Realtime, libc::CLOCK_REALTIME),
        ] {
            let before = now();
            let instant = clock.to_tai(kernel::clock(id));
            let after = now();
            // The conversion reads clocks of its own, so it may be off by as much as the test took.
            let slack = after.nanos_since(before);
            assert!(instant.nanos_since(before) >= -slack, "{clock:?}");
            assert!(after.nanos_since(instant) >= -slack, "{clock:?}");
        }
    }

    #[test]
    fn instants_beyond_the_scale_are_held_at_its_ends() {
        assert_eq!(Clock::Tai.to_tai(i64::MAX), TaiTime::from_nanos(i64::MAX));
        assert!(Clock::Monotonic.to_tai(i64::MAX).as_nanos() == i64::MAX);
    }

    #[test]
    fn a_stamp_before_the_epoch_has_nanoseconds_from_zero_on() {
        let stamp = to_realtime(TaiTime::from_nanos(leap_seconds() - 1));
        assert_eq!((stamp.tv_sec, stamp.tv_nsec), (-1, SECOND - 1));
    }

    proptest! {
        #[test]
        fn leap_seconds_are_whole_however_late_the_second_look(
            seconds in -100i64..100, gap in 0..SECOND / 2,
        ) {
            prop_assert_eq!(whole_seconds(seconds * SECOND + gap), seconds * SECOND);
        }
    }
}
