//! What an operator may choose, with defaults and limits.

use std::ops::Range;

use takt_datapath::OpenError;

use crate::maps::MOST_PORTS;
use crate::program::Mode;
use crate::socket::BusyPoll;

/// Whether frames move between user space and the device without a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Where the driver can.
    #[default]
    Auto,
    /// Or not at all.
    Required,
    /// Never, even where the driver could.
    Never,
}

/// The set-up of a datapath. [`XdpConfig::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// Name of the interface, in the network namespace that [`crate::XdpDatapath::probe`] is called
    /// in.
    pub interface: String,
    /// Receive queues to serve; all of them where `None`. Steer the traffic there in that case
    /// (`ethtool -N`): what arrives on other queues goes to the kernel.
    pub queues: Option<Range<u32>>,
    /// Where the program runs.
    pub mode: Mode,
    /// Whether to share memory with the device.
    pub zero_copy: ZeroCopy,
    /// Frames that can wait to be received on each queue of a port, a power of two; each takes a
    /// chunk of 2 KiB, or of 4 KiB where the interface's MTU is above 1500. A quarter as many more can wait of those that are marked with a traffic class. In
    /// zero-copy mode the device has as many more.
    pub rx_ring: u32,
    /// Ports that can share a queue. Raised by itself to what the number of lanes demands, where
    /// there are more lanes than queues. Each brings its own memory to the queue when the queue is
    /// first opened.
    pub ports_per_queue: u16,
    /// Frames that a port can have reserved or under way; each takes as many chunks as the
    /// interface's MTU demands.
    pub tx_frames: u32,
    /// Peers that a port can have at a time.
    pub peers: u16,
    /// Compute UDP checksums when sending and verify them when receiving. IPv6 has them in any
    /// case.
    pub checksum: bool,
    /// Have the lanes drive the device; costs a system call for each poll.
    pub busy_poll: Option<BusyPoll>,
}

impl XdpConfig {
    /// The defaults for `interface`: all queues, the fastest modes available, checksums, no busy
    /// polling.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            queues: None,
            mode: Mode::Auto,
            zero_copy: ZeroCopy::Auto,
            rx_ring: 2048,
            ports_per_queue: 1,
            tx_frames: 1024,
            peers: 4096,
            checksum: true,
            busy_poll: None,
        }
    }

    /// Checks what needs no interface.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let refuse = |what: String| Err(OpenError::Unavailable(what));
        if !self.rx_ring.is_power_of_two() || self.rx_ring > MOST_FRAMES {
            return refuse(format!(
                "a receive ring of {} entries: choose a power of two up to {MOST_FRAMES}",
                self.rx_ring
            ));
        }
        if self.tx_frames == 0 || self.tx_frames > MOST_FRAMES {
            return refuse(format!(
                "tx_frames of {}: choose 1 to {MOST_FRAMES}",
                self.tx_frames
            ));
        }
        if self.ports_per_queue == 0 || u32::from(self.ports_per_queue) > MOST_PORTS {
            return refuse(format!(
                "{} ports for each queue: choose 1 to {MOST_PORTS}",
                self.ports_per_queue
            ));
        }
        if self.queues.as_ref().is_some_and(Range::is_empty) {
            return refuse(format!(
                "no queue in the range {:?}: name at least one",
                self.queues
            ));
        }
        Ok(())
    }
}

/// Limit of rings and frame counts: 128 MiB of chunks, or 256 MiB.
const MOST_FRAMES: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_within_the_limits() {
        assert!(XdpConfig::new("eth0").check().is_ok());
    }

    #[test]
    fn sizes_out_of_range_are_refused_with_the_value_at_fault() {
        let refused = |change: fn(&mut XdpConfig), value: &str| {
            let mut config = XdpConfig::new("eth0");
            change(&mut config);
            let message = config.check().expect_err("must be refused").to_string();
            assert!(message.contains(value), "{message}");
        };
        refused(|config| config.rx_ring = 1000, "1000");
        refused(|config| config.ports_per_queue = 0, "0 ports");
        refused(|config| config.tx_frames = 1 << 20, "1048576");
        refused(|config| config.queues = Some(3..3), "3..3");
    }
}
