//! Launch times that the device keeps: metadata before a frame to send (Linux 6.14,
//! `Documentation/networking/xsk-tx-metadata.rst`).
//!
//! A device says that it can by the family `netdev`; its drivers (igc, stmmac) do so only on queues that have
//! been set up for it, with `etf` and `offload` (`tc-etf(8)`). Both are looked at when the datapath is probed.
//! The device goes by its own clock, which ptp4l or phc2sys keeps to TAI.

use takt_datapath::stack;
use takt_time::TaiTime;

use crate::interface::Device;

/// Octets of `struct xsk_tx_metadata` since Linux 6.14: flags, the place of a checksum and padding, the launch
/// time.
pub(crate) const LENGTH: usize = 24;
/// `XDP_TXMD_FLAGS_LAUNCH_TIME` of `linux/if_xdp.h`.
const LAUNCH_TIME: u64 = 1 << 2;

/// What stands before a frame that is to leave at an instant.
pub(crate) fn launch_at(at: TaiTime) -> [u8; LENGTH] {
    let mut metadata = [0; LENGTH];
    metadata[..8].copy_from_slice(&LAUNCH_TIME.to_ne_bytes());
    metadata[16..].copy_from_slice(&(at.as_nanos() as u64).to_ne_bytes());
    metadata
}

/// The queues of a device that send frames at launch times given so. A kernel that does not say has none.
pub(crate) fn queues(device: &Device) -> Vec<u32> {
    let answer = match stack::xsk_launch_time(device.ifindex) {
        Ok(true) => stack::offloading_queues(device.ifindex, device.queues),
        Ok(false) => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    answer.unwrap_or_else(|error| {
        tracing::warn!(interface = %device.name, %error, "cannot find out about launch times");
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metadata_is_what_the_kernel_reads() {
        let at = TaiTime::from_nanos(0x0102_0304_0506_0708);
        let metadata = launch_at(at);
        assert_eq!(metadata[..8], 4u64.to_ne_bytes());
        assert_eq!(metadata[8..16], [0; 8]);
        assert_eq!(metadata[16..], 0x0102_0304_0506_0708_u64.to_ne_bytes());
    }
}
