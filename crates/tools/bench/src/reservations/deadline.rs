//! What a thread has of the kernel's scheduling class `SCHED_DEADLINE` (sched_setattr(2)).

use std::fs;
use std::io;

use takt_reserve::Nanos;

/// The reservation of a thread, as the kernel says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Q.
    pub runtime: Nanos,
    /// How long after the start of a period it has been given.
    pub deadline: Nanos,
    /// P.
    pub period: Nanos,
    /// `SCHED_FLAG_...`.
    pub flags: u64,
}

impl Deadline {
    /// That of a thread by its number, 0 being the calling one; none if it has another scheduling class.
    pub fn of(thread: u32) -> io::Result<Option<Self>> {
        let mut attributes = empty();
        let size = attributes.size;
        // SAFETY: the pointer is to a live `sched_attr` of the size that is told.
        let done = unsafe {
            libc::syscall(
                libc::SYS_sched_getattr,
                thread,
                &raw mut attributes,
                size,
                0,
            )
        };
        match done {
            0 if attributes.sched_policy == libc::SCHED_DEADLINE as u32 => Ok(Some(Self {
                runtime: Nanos::new(attributes.sched_runtime),
                deadline: Nanos::new(attributes.sched_deadline),
                period: Nanos::new(attributes.sched_period),
                flags: attributes.sched_flags,
            })),
            0 => Ok(None),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Gives it to a thread by its number, 0 being the calling one.
    ///
    /// # Errors
    /// `ESRCH` for one that has begun to exit, which the kernel would count wrongly for ever; `EBUSY` where the kernel has no room, `EPERM` without `CAP_SYS_NICE`, `EINVAL` for times that it does not take.
    pub fn give(&self, thread: u32) -> io::Result<()> {
        if thread != 0 && exits(thread) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let attributes = libc::sched_attr {
            sched_policy: libc::SCHED_DEADLINE as u32,
            sched_flags: self.flags,
            sched_runtime: self.runtime.get(),
            sched_deadline: self.deadline.get(),
            sched_period: self.period.get(),
            ..empty()
        };
        // SAFETY: the pointer is to a live `sched_attr` of the size that it tells.
        match unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Whether a thread has begun to exit: PF_EXITING (include/linux/sched.h) in the flags of proc(5), field 9.
fn exits(thread: u32) -> bool {
    const EXITING: u64 = 0x4;
    let stat = fs::read_to_string(format!("/proc/{thread}/task/{thread}/stat"));
    let flags = stat.ok().and_then(|text| {
        let (_, fields) = text.rsplit_once(')')?;
        fields.split_whitespace().nth(6)?.parse::<u64>().ok()
    });
    flags.is_none_or(|flags| flags & EXITING != 0)
}

fn empty() -> libc::sched_attr {
    libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    }
}
