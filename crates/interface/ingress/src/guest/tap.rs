//! The tap device of the host, which a guest has for all that the runtime does not send, and for all that arrives.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::error::Error;
use crate::sys;

/// A tap device that is ours while this is there.
#[derive(Debug)]
pub(super) struct Tap(File);

impl Tap {
    /// Takes the device.
    pub(super) fn open(name: &str) -> Result<Self, Error> {
        if sys::index(name).is_err() {
            return Err(Error::NoTap(name.to_owned()));
        }
        let file = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")
            .map_err(Error::system("open /dev/net/tun"))?;
        match sys::take_tap(file.as_fd(), name) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                return Err(Error::TapBusy(name.to_owned()));
            }
            // It is there and of another kind.
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                return Err(Error::NoTap(name.to_owned()));
            }
            Err(error) => return Err(Error::system("take the tap device")(error)),
        }
        let tap = Self(file);
        tap.set_carrier(false);
        Ok(tap)
    }

    /// Something else that frames come from and go to.
    #[cfg(test)]
    pub(super) fn of(file: File) -> Self {
        Self(file)
    }

    /// Whether the host is to see a cable.
    pub(super) fn set_carrier(&self, carrier: bool) {
        // A kernel before 5.0 cannot: the host sees a cable that leads nowhere then.
        let _ = sys::set_carrier(self.0.as_fd(), carrier);
    }

    /// Puts the next frame into `frame`, as far as there is room. Its length; `None`: there is none.
    pub(super) fn read(&self, frame: &mut [u8]) -> Option<usize> {
        (&self.0).read(frame).ok().filter(|length| *length > 0)
    }

    /// Gives the host a frame. Whether it took it.
    pub(super) fn write(&self, frame: &[u8]) -> bool {
        (&self.0).write(frame).is_ok()
    }

    /// Drops what waits, as far as it waits now. How many frames that were.
    pub(super) fn discard(&self) -> u64 {
        // As many as such a device queues, and more.
        let frames = (0..16_384).map_while(|_| self.read(&mut [0; 64]));
        frames.count() as u64
    }

    /// For an event of its.
    pub(super) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
