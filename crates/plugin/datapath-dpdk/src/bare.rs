//! The bare device, as a program of its own would use it: what a port is measured against. One set of headers written in advance, no
//! peers but one, no checksums, no counters, no neighbours.

use std::sync::Arc;

use takt_datapath::OpenError;
use takt_wire::ethernet::MacAddress;

use crate::config::DpdkConfig;
use crate::device::{Device, free};
use crate::ffi::{self, BURST, Mbuf, Packet};

/// Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;

/// A device, its first queue pair alone.
pub struct BareDevice {
    device: Arc<Device>,
    headers: [u8; HEADERS],
    packets: Box<[Packet; BURST]>,
    spent: Vec<*mut Mbuf>,
}

// SAFETY: what is pointed to is looked at within one call of the owner.
unsafe impl Send for BareDevice {}

impl BareDevice {
    /// # Errors
    /// [`OpenError`].
    pub fn open(config: &DpdkConfig) -> Result<Self, OpenError> {
        let nothing = Packet {
            mbuf: std::ptr::null_mut(),
            data: std::ptr::null(),
            length: 0,
            flags: 0,
        };
        Ok(Self {
            device: Device::get(config)?,
            headers: [0; HEADERS],
            packets: Box::new([nothing; BURST]),
            spent: Vec::with_capacity(BURST),
        })
    }

    /// Its address on the link.
    pub fn mac(&self) -> MacAddress {
        MacAddress(self.device.traits.mac)
    }

    /// Whether its other end is there.
    pub fn is_up(&self) -> bool {
        // SAFETY: the port is the device's, which lives.
        unsafe { ffi::takt_dpdk_link(self.device.port) != 0 }
    }

    /// To whom it sends.
    pub fn connect(&mut self, peer: MacAddress) {
        self.headers[..6].copy_from_slice(&peer.0);
        self.headers[6..12].copy_from_slice(&self.device.traits.mac);
        self.headers[12..15].copy_from_slice(&[8, 0, 0x45]);
    }

    /// Sends so many bytes of this value. Whether there was a buffer, and the device took it.
    pub fn send(&mut self, value: u8, length: usize) -> bool {
        let mut room = std::ptr::null_mut();
        // SAFETY: the pool lives as long as the device; a pointer to be written.
        let mbuf = unsafe { ffi::takt_dpdk_allocate(self.device.pool, &raw mut room) };
        if mbuf.is_null() {
            return false;
        }
        let length = length.min(self.device.longest_frame - HEADERS);
        let mut mbufs = [mbuf];
        // SAFETY: the buffer is ours, with headroom for the headers and room for the longest frame; the device's only queue pair is ours.
        let sent = unsafe {
            room.sub(HEADERS)
                .copy_from_nonoverlapping(self.headers.as_ptr(), HEADERS);
            room.write_bytes(value, length);
            ffi::takt_dpdk_shape(mbuf, HEADERS as u16, (HEADERS + length) as u16);
            ffi::takt_dpdk_send(self.device.port, 0, mbufs.as_mut_ptr(), 1)
        };
        if sent != 1 {
            free(&mut mbufs);
        }
        sent == 1
    }

    /// Shows what has arrived. How much it was.
    pub fn poll(&mut self, mut deliver: impl FnMut(&[u8])) -> usize {
        // SAFETY: room for so many packets, which are ours then; the device's only queue pair is ours.
        let count = unsafe {
            ffi::takt_dpdk_receive(self.device.port, 0, self.packets.as_mut_ptr(), BURST as u16)
        };
        for packet in &self.packets[..usize::from(count)] {
            // SAFETY: the first segment is the whole packet, as buffers are as long as frames; it is freed below.
            let frame = unsafe { std::slice::from_raw_parts(packet.data, packet.length as usize) };
            if let Some(payload) = frame.get(HEADERS..) {
                deliver(payload);
            }
            self.spent.push(packet.mbuf);
        }
        free(&mut self.spent);
        self.spent.clear();
        usize::from(count)
    }
}
