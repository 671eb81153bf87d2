//! The clock of a network device (a PTP hardware clock, `/dev/ptp0`), and what `CLOCK_TAI` is off from it.
//!
//! The kernel reads its own clock and the device's next to each other, several times; the reading with the
//! shortest time between counts, and half of that time is how wrong it can be.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::time::{ClockId, DynamicClockId, Timespec, clock_gettime, clock_gettime_dynamic};

use crate::sys::{self, Bracket};

/// Readings at a time.
const SAMPLES: usize = 9;

/// What the kernel's clock is off from a device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhcReading {
    /// `CLOCK_REALTIME` minus the device's clock, nanoseconds. The device keeps TAI where its PTP domain has the
    /// PTP timescale: then this is minus the UTC offset when all is well.
    pub realtime_minus_phc_ns: i64,
    /// How wrong that can be, nanoseconds.
    pub error_ns: u64,
}

/// Reads `device`.
///
/// # Errors
/// The kernel's: no such device, not allowed, no PTP clock.
pub fn read(device: &Path) -> io::Result<PhcReading> {
    let file = File::from(open(
        device,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?);
    let fd = file.as_fd();
    let brackets = sys::ptp_sys_offset_extended(fd, SAMPLES)
        .or_else(|_| sys::ptp_sys_offset(fd, SAMPLES))
        .or_else(|_| by_reading(fd))?;
    closest(&brackets)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the device tells no sane time"))
}

/// The dynamic clock of the device between two readings of the kernel's.
fn by_reading(device: BorrowedFd<'_>) -> io::Result<Vec<Bracket>> {
    bracketed(|| {
        Ok(nanos(clock_gettime_dynamic(DynamicClockId::Dynamic(
            device,
        ))?))
    })
}

fn bracketed(mut device: impl FnMut() -> io::Result<i128>) -> io::Result<Vec<Bracket>> {
    let realtime = || nanos(clock_gettime(ClockId::Realtime));
    (0..SAMPLES)
        .map(|_| Ok((realtime(), device()?, realtime())))
        .collect()
}

fn nanos(time: Timespec) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// The reading with the shortest time between: system, device, system. None if none of them makes sense.
fn closest(brackets: &[Bracket]) -> Option<PhcReading> {
    let sane = brackets.iter().filter(|(before, _, after)| before <= after);
    let (before, device, after) = sane.min_by_key(|(before, _, after)| after - before)?;
    let between = after - before;
    Some(PhcReading {
        realtime_minus_phc_ns: i64::try_from(before + between / 2 - device).ok()?,
        error_ns: u64::try_from((between + 1) / 2).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_reading_with_the_least_time_between_counts() {
        let brackets = [(0, 1_000, 100), (1_000, 2_010, 1_021), (3_000, 9, 2_000)];
        let reading = closest(&brackets).expect("a reading");
        assert_eq!(reading.realtime_minus_phc_ns, 1_010 - 2_010);
        assert_eq!(reading.error_ns, 11);
    }

    #[test]
    fn a_device_that_tells_nonsense_is_no_clock() {
        assert_eq!(closest(&[]), None);
        assert_eq!(closest(&[(5, 0, 4)]), None);
        assert_eq!(closest(&[(0, i128::MAX / 2, 4)]), None);
    }

    /// No device here has a clock: the kernel's own stands in for one.
    #[test]
    fn a_clock_read_between_two_readings_is_where_it_is() {
        let brackets =
            bracketed(|| Ok(i128::from(crate::sys::tai().as_nanos()))).expect("readings");
        let reading = closest(&brackets).expect("a reading");
        let offset =
            i64::from(crate::kernel::read().expect("adjtimex").tai_offset_s) * 1_000_000_000;
        let off = reading.realtime_minus_phc_ns + offset;
        assert!(off.unsigned_abs() <= reading.error_ns, "{reading:?}");
    }

    #[test]
    fn what_is_no_device_is_told_from_one() {
        assert_eq!(
            read(Path::new("/dev/takt-none")).expect_err("none").kind(),
            io::ErrorKind::NotFound
        );
        // A file, but no PTP clock.
        assert!(read(Path::new("/dev/null")).is_err());
    }

    proptest! {
        #[test]
        fn the_device_lies_within_the_error(
            start in -1i128 << 70..1i128 << 70,
            offset in -1i64 << 60..1i64 << 60,
            parts in prop::collection::vec((0i128..1 << 40, 0i128..1 << 40), 1..9),
        ) {
            let brackets: Vec<Bracket> = parts
                .iter()
                .map(|(before, after)| {
                    (start - before, start - i128::from(offset), start + after)
                })
                .collect();
            let reading = closest(&brackets).expect("a reading");
            let wrong = reading.realtime_minus_phc_ns.abs_diff(offset);
            prop_assert!(wrong <= reading.error_ns, "{wrong} {}", reading.error_ns);
        }
    }
}
