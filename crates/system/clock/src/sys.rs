//! The system calls: the only file of this crate with unsafe code.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use takt_time::TaiTime;

/// `CLOCK_TAI`.
pub fn tai() -> TaiTime {
    TaiTime::from_nanos(read_ns(libc::CLOCK_TAI))
}

/// `CLOCK_MONOTONIC`.
pub fn monotonic_ns() -> i64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

fn read_ns(clock: libc::clockid_t) -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` outlives the call; both clocks exist on every kernel that Takt supports, so the
    // call cannot fail.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// The kernel's discipline, and what the call returns: the state of leap seconds. Changes nothing.
pub fn adjtimex() -> io::Result<(libc::timex, i32)> {
    // SAFETY: all zeros are a valid `timex`; `modes` of 0 only reads.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `timex` outlives the call and is the kernel's to write.
    match unsafe { libc::adjtimex(&mut timex) } {
        -1 => Err(io::Error::last_os_error()),
        state => Ok((timex, state)),
    }
}

/// Readings of a PHC between readings of the kernel's clock, nanoseconds since each clock's epoch.
pub type Bracket = (i128, i128, i128);

fn nanos(time: &libc::ptp_clock_time) -> i128 {
    i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec)
}

/// `PTP_SYS_OFFSET_EXTENDED`: the driver reads `CLOCK_REALTIME` next to the device's register.
pub fn ptp_sys_offset_extended(device: BorrowedFd<'_>, samples: usize) -> io::Result<Vec<Bracket>> {
    // SAFETY: all zeros are valid, also for the reserved fields, which must be zero.
    let mut request: libc::ptp_sys_offset_extended = unsafe { std::mem::zeroed() };
    let samples = samples.clamp(1, request.ts.len());
    request.n_samples = samples as u32;
    // SAFETY: the request has the size that the number of the ioctl says and outlives the call.
    let result = unsafe {
        libc::ioctl(
            device.as_raw_fd(),
            libc::PTP_SYS_OFFSET_EXTENDED as _,
            &raw mut request,
        )
    };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    let samples = request.ts[..samples].iter();
    Ok(samples
        .map(|[before, device, after]| (nanos(before), nanos(device), nanos(after)))
        .collect())
}

/// `PTP_SYS_OFFSET`: the kernel reads `CLOCK_REALTIME` before and after it asks the driver.
pub fn ptp_sys_offset(device: BorrowedFd<'_>, samples: usize) -> io::Result<Vec<Bracket>> {
    // SAFETY: all zeros are valid, also for the reserved fields, which must be zero.
    let mut request: libc::ptp_sys_offset = unsafe { std::mem::zeroed() };
    let samples = samples.clamp(1, request.ts.len() / 2);
    request.n_samples = samples as u32;
    // SAFETY: the request has the size that the number of the ioctl says and outlives the call.
    let result = unsafe {
        libc::ioctl(
            device.as_raw_fd(),
            libc::PTP_SYS_OFFSET as _,
            &raw mut request,
        )
    };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    // System, device, system, device, …, system.
    let times: Vec<i128> = request.ts[..2 * samples + 1].iter().map(nanos).collect();
    Ok((0..samples)
        .map(|at| (times[2 * at], times[2 * at + 1], times[2 * at + 2]))
        .collect())
}
