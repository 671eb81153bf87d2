//! What a sleeping lane waits for: the provider's descriptor, or the clock, and a bell of our own.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Between two looks of a sleeping lane at a provider that wakes nobody, or not for what it still has to send.
const NAP: Duration = Duration::from_micros(100);

/// The descriptors.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// All of them.
    epoll: OwnedFd,
    /// Rung while the port holds something that the provider's descriptor does not tell of.
    bell: OwnedFd,
    rung: bool,
    timer: OwnedFd,
    /// When it goes off, or has gone off.
    until: Option<Instant>,
    /// There is no provider's descriptor.
    by_the_clock: bool,
    /// Somebody has asked for the descriptor.
    asked: Cell<bool>,
}

impl Waiting {
    pub(crate) fn new(provider: Option<BorrowedFd<'_>>) -> std::io::Result<Self> {
        // SAFETY: plain call; what is not negative is new and nobody else's.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: as above.
        let bell = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        add(&epoll, bell.as_fd())?;
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: as above.
        let timer = owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        add(&epoll, timer.as_fd())?;
        if let Some(provider) = provider {
            add(&epoll, provider)?;
        }
        Ok(Self {
            epoll,
            bell,
            rung: false,
            timer,
            until: None,
            by_the_clock: provider.is_none(),
            asked: Cell::new(false),
        })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.asked.set(true);
        self.epoll.as_fd()
    }

    /// Whether somebody may sleep.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.get()
    }

    /// Whether the clock wakes, not the provider.
    pub(crate) fn is_by_the_clock(&self) -> bool {
        self.by_the_clock
    }

    /// The provider has another descriptor; the one before is closed.
    ///
    /// # Errors
    /// The kernel's.
    #[cold]
    pub(crate) fn follow(&mut self, provider: Option<BorrowedFd<'_>>) -> std::io::Result<()> {
        self.by_the_clock = provider.is_none();
        provider.map_or(Ok(()), |provider| add(&self.epoll, provider))
    }

    /// Something waits that nothing else tells of.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if self.asked.get() && !self.rung {
            self.rung = true;
            let one = 1_u64.to_ne_bytes();
            // SAFETY: eight bytes.
            unsafe { libc::write(self.bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// Nothing waits any more.
    #[inline]
    pub(crate) fn silence(&mut self) {
        if self.rung {
            self.rung = false;
            let mut count = [0; 8];
            // SAFETY: room for eight bytes.
            unsafe {
                libc::read(
                    self.bell.as_raw_fd(),
                    count.as_mut_ptr().cast(),
                    count.len(),
                )
            };
        }
    }

    /// Wakes who sleeps after a while: sets the clock anew if it has gone off, which takes the mark of that away.
    pub(crate) fn nap(&mut self) {
        if !self.asked.get() {
            return;
        }
        let now = Instant::now();
        if self.until.is_none_or(|until| now >= until) {
            self.set(NAP);
            self.until = Some(now + NAP);
        }
    }

    /// Wakes nobody by the clock.
    #[inline]
    pub(crate) fn rest(&mut self) {
        if self.until.take().is_some() {
            self.set(Duration::ZERO);
        }
    }

    #[cold]
    fn set(&self, after: Duration) {
        let once = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: 0,
                tv_nsec: after.subsec_nanos().into(),
            },
        };
        // SAFETY: a time to be read; nothing is written.
        unsafe {
            libc::timerfd_settime(
                self.timer.as_raw_fd(),
                0,
                &raw const once,
                std::ptr::null_mut(),
            )
        };
    }
}

fn owned(fd: libc::c_int) -> std::io::Result<OwnedFd> {
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns, as the callers say.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn add(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> std::io::Result<()> {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0,
    };
    // SAFETY: both descriptors are open, and `event` is an event for the length of the call.
    let result = unsafe {
        libc::epoll_ctl(
            epoll.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            fd.as_raw_fd(),
            &raw mut event,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}
