//! The functions of the shim (`shim/shim.c`), and what they pass.

use std::ffi::{c_char, c_int, c_uint};

/// A packet's buffer, DPDK's own.
#[repr(C)]
pub(crate) struct Mbuf {
    _opaque: [u8; 0],
}

/// Memory for packets.
#[repr(C)]
pub(crate) struct Pool {
    _opaque: [u8; 0],
}

/// A received packet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) mbuf: *mut Mbuf,
    /// The first segment.
    pub(crate) data: *const u8,
    /// Bytes of all segments.
    pub(crate) length: u32,
    pub(crate) flags: u32,
}

/// The packet has more segments.
pub(crate) const CONTINUED: u32 = 1;
/// The device vouches for the UDP checksum.
pub(crate) const GOOD_CHECKSUM: u32 = 2;
/// The device says that the UDP checksum does not hold.
pub(crate) const BAD_CHECKSUM: u32 = 4;

/// What a device is and has.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traits {
    pub(crate) mac: [u8; 6],
    pub(crate) queues: u16,
    pub(crate) mtu: u16,
    pub(crate) most_mtu: u16,
    pub(crate) rx_descriptors: u16,
    pub(crate) tx_descriptors: u16,
    pub(crate) rx_checksums: u8,
    pub(crate) can_scatter: u8,
    pub(crate) driver: [u8; 32],
}

/// What a device has lost.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Losses {
    pub(crate) rx_missed: u64,
    pub(crate) rx_errors: u64,
    pub(crate) tx_errors: u64,
}

/// Bytes in front of the room of a buffer.
pub(crate) const HEADROOM: usize = 128;

/// Most packets that one call receives.
pub(crate) const BURST: usize = 32;

/// What `takt_dpdk_link` says of a memif whose link is up, and that is not used.
pub(crate) const UNGUARDED: c_int = -1;
/// What it says of one that is not used any more.
pub(crate) const STUCK: c_int = -2;

unsafe extern "C" {
    pub(crate) fn takt_dpdk_init(argc: c_int, argv: *mut *mut c_char) -> c_int;
    pub(crate) fn takt_dpdk_said(buffer: *mut u8, size: usize) -> usize;
    pub(crate) fn takt_dpdk_version() -> *const c_char;
    pub(crate) fn takt_dpdk_register_thread() -> c_int;
    pub(crate) fn takt_dpdk_unregister_thread();
    pub(crate) fn takt_dpdk_attach(device: *const c_char, name: *const c_char) -> c_int;
    pub(crate) fn takt_dpdk_detach(port: u16);
    pub(crate) fn takt_dpdk_traits(port: u16, traits: *mut Traits) -> c_int;
    pub(crate) fn takt_dpdk_pool(
        name: *const c_char,
        count: c_uint,
        cache: c_uint,
        room: u16,
        error: *mut c_int,
    ) -> *mut Pool;
    pub(crate) fn takt_dpdk_free_pool(pool: *mut Pool);
    pub(crate) fn takt_dpdk_start(
        port: u16,
        queues: u16,
        mtu: u16,
        accepts: c_int,
        pool: *mut Pool,
        traits: *mut Traits,
    ) -> c_int;
    pub(crate) fn takt_dpdk_link(port: u16) -> c_int;
    pub(crate) fn takt_dpdk_is_removed(port: u16) -> c_int;
    #[cfg(test)]
    pub(crate) fn takt_dpdk_tells_of_change(text: *const c_char, size: usize) -> c_int;
    pub(crate) fn takt_dpdk_losses(port: u16, losses: *mut Losses);
    pub(crate) fn takt_dpdk_cycles() -> u64;
    pub(crate) fn takt_dpdk_cycles_per_second() -> u64;
    pub(crate) fn takt_dpdk_receive(port: u16, queue: u16, packets: *mut Packet, count: u16)
    -> u16;
    pub(crate) fn takt_dpdk_gather(mbuf: *const Mbuf, buffer: *mut u8);
    pub(crate) fn takt_dpdk_allocate(pool: *mut Pool, room: *mut *mut u8) -> *mut Mbuf;
    pub(crate) fn takt_dpdk_shape(mbuf: *mut Mbuf, before: u16, length: u16);
    pub(crate) fn takt_dpdk_send(port: u16, queue: u16, mbufs: *mut *mut Mbuf, count: u16) -> u16;
    pub(crate) fn takt_dpdk_free(mbufs: *mut *mut Mbuf, count: c_uint);
    #[cfg(test)]
    pub(crate) fn takt_dpdk_sizes(sizes: *mut usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_are_those_of_the_shim() {
        let mut sizes = [0; 4];
        // SAFETY: the shim writes four numbers.
        unsafe { takt_dpdk_sizes(sizes.as_mut_ptr()) };
        let ours = [
            size_of::<Packet>(),
            size_of::<Traits>(),
            size_of::<Losses>(),
            HEADROOM,
        ];
        assert_eq!(sizes, ours);
    }

    /// Newer versions put the name of the driver in front.
    #[test]
    fn what_the_memif_driver_tells_is_heard_whatever_is_in_front() {
        for (line, tells) in [
            ("memif_msg_receive(): Receive msg type: 1.\n", true),
            ("MEMIF: memif_msg_receive(): Receive msg type: 1.\n", true),
            ("memif_connect(): Connected.\n", false),
            ("", false),
        ] {
            // SAFETY: a text of that length.
            let heard = unsafe { takt_dpdk_tells_of_change(line.as_ptr().cast(), line.len()) };
            assert_eq!(heard != 0, tells, "{line:?}");
        }
    }
}
