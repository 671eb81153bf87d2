//! TAI and UTC as the kernel has them.

use std::time::SystemTime;

use takt_clock::{Clock, SystemTai};

/// Two looks at a clock that are this far apart were not one.
const AT_ONCE_NS: i64 = 100_000_000;

/// What the kernel's clock says, UTC nanoseconds.
pub fn utc_now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    })
}

/// TAI less UTC by the kernel, nanoseconds; whole seconds. It is 0 until somebody has told the kernel, as chrony and ptp4l do when they
/// know, so that it may change at any time.
pub fn offset_ns() -> i64 {
    loop {
        let before = SystemTai.now().as_nanos();
        let utc = utc_now();
        // It may have been told between the looks, or this thread have waited.
        if (0..AT_ONCE_NS).contains(&(SystemTai.now().as_nanos() - before)) {
            return (before - utc + 500_000_000).div_euclid(1_000_000_000) * 1_000_000_000;
        }
    }
}
