//! The kernel's own idea of its clock: adjtimex(2), as the programs that discipline it have left it.
//!
//! chronyd and ntpd keep the flag and the errors up to date (chronyd only with `rtcsync`), phc2sys sets the
//! errors to zero, ptp4l with software time stamping leaves all of it alone.

use std::io;

use crate::sys;

/// What adjtimex(2) says about leap seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leap {
    /// None is ahead.
    None,
    /// One will be inserted at the end of the UTC day.
    Insert,
    /// One will be deleted at the end of the UTC day.
    Delete,
    /// It is being inserted now.
    InProgress,
    /// It has just been.
    Occurred,
}

/// The kernel's discipline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelReading {
    /// `CLOCK_TAI` minus `CLOCK_REALTIME`, seconds. 0: nobody has told the kernel.
    pub tai_offset_s: i32,
    /// `STA_UNSYNC` is not set: a program says that it keeps the clock.
    pub synchronised: bool,
    /// `maxerror`, nanoseconds: the most that the clock is off. Grows by 500 µs per second by itself. 0: whoever
    /// keeps the clock did not say.
    pub max_error_ns: u64,
    /// `esterror`, nanoseconds.
    pub estimated_error_ns: u64,
    /// Leap seconds.
    pub leap: Leap,
}

impl KernelReading {
    /// What a call of adjtimex(2) has written and returned.
    fn new(timex: &libc::timex, state: i32) -> Self {
        let micros = |value: libc::c_long| u64::try_from(value).unwrap_or(0).saturating_mul(1_000);
        Self {
            tai_offset_s: timex.tai,
            synchronised: timex.status & libc::STA_UNSYNC == 0,
            max_error_ns: micros(timex.maxerror),
            estimated_error_ns: micros(timex.esterror),
            leap: match state {
                libc::TIME_INS => Leap::Insert,
                libc::TIME_DEL => Leap::Delete,
                libc::TIME_OOP => Leap::InProgress,
                libc::TIME_WAIT => Leap::Occurred,
                // TIME_ERROR: not synchronised, which `status` says too.
                _ => Leap::None,
            },
        }
    }
}

/// Asks the kernel.
///
/// # Errors
/// The kernel's: a filter of system calls that does not let adjtimex(2) pass.
pub fn read() -> io::Result<KernelReading> {
    let (timex, state) = sys::adjtimex()?;
    Ok(KernelReading::new(&timex, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_in_nanoseconds() {
        let (mut timex, _) = sys::adjtimex().expect("adjtimex");
        timex.tai = 37;
        timex.maxerror = 250;
        timex.esterror = 3;
        timex.status &= !libc::STA_UNSYNC;
        let reading = KernelReading::new(&timex, libc::TIME_INS);
        assert_eq!(
            reading,
            KernelReading {
                tai_offset_s: 37,
                synchronised: true,
                max_error_ns: 250_000,
                estimated_error_ns: 3_000,
                leap: Leap::Insert,
            }
        );
        timex.status |= libc::STA_UNSYNC;
        assert!(!KernelReading::new(&timex, libc::TIME_ERROR).synchronised);
    }

    #[test]
    fn the_offset_is_that_between_the_two_clocks() {
        let reading = read().expect("adjtimex");
        let realtime = || {
            let now = std::time::SystemTime::now();
            now.duration_since(std::time::UNIX_EPOCH).expect("later")
        };
        let seconds = i128::from(reading.tai_offset_s) * 1_000_000_000;
        let before = realtime().as_nanos() as i128;
        let tai = i128::from(sys::tai().as_nanos()) - seconds;
        let after = realtime().as_nanos() as i128;
        assert!(before <= tai && tai <= after, "{before} {tai} {after}");
    }
}
