//! A VMM and the driver of its guest, as far as a device needs one: memory, split virtqueues (virtio 1.2, clause 2.7), and what
//! a hostile driver makes of them.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec};
use takt_testing::{Directory, until};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Of the guest's memory.
const MEMORY: u64 = 4 << 20;
/// Where the guest's memory is for the VMM, as it says.
const USER: u64 = 0x7f00_0000_0000;
/// Descriptors of a ring.
pub const RING: u16 = 64;
/// How much each buffer holds.
const BUFFER: u64 = 2048;
/// Octets before a frame.
const HEADER: usize = 12;
/// `VIRTIO_F_VERSION_1`.
const VERSION_1: u64 = 1 << 32;
/// `VIRTQ_DESC_F_NEXT` and `VIRTQ_DESC_F_WRITE`.
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;

/// A guest with a driver for so many queue pairs.
pub struct Vmm {
    frontend: Frontend,
    pub memory: GuestMemoryMmap,
    kicks: Vec<EventFd>,
    calls: Vec<EventFd>,
    /// Of each ring: what has been offered, and what has been taken back.
    offered: Vec<u16>,
    returned: Vec<u16>,
}

/// Where a ring's descriptors are; its indices follow.
fn descriptors(ring: usize) -> u64 {
    ring as u64 * 0x4000
}

/// Where its ring of offered chains is.
fn available(ring: usize) -> u64 {
    descriptors(ring) + 0x1000
}

/// Where its ring of used chains is.
fn used(ring: usize) -> u64 {
    descriptors(ring) + 0x2000
}

fn buffer(ring: usize, at: u16) -> u64 {
    (1 << 20) + (ring as u64 * u64::from(RING) + u64::from(at)) * BUFFER
}

impl Vmm {
    /// Connects, and starts the device as QEMU does.
    pub fn start(socket: &Path, pairs: usize) -> Self {
        let mut vmm = Self::connect(socket, pairs);
        vmm.start_rings();
        vmm
    }

    /// The same, but the device is to be told of a ring by what is no event: there is always something to be read, and no reading it.
    pub fn start_without_event(socket: &Path, ring: usize) -> Self {
        let directory = Directory::new();
        let place = directory.join("listener");
        let listener = UnixListener::bind(&place).expect("a listener");
        let _connection = UnixStream::connect(&place).expect("it listens");
        let mut vmm = Self::connect(socket, 1);
        // SAFETY: its own, and no longer the listener's.
        vmm.kicks[ring] = unsafe { EventFd::from_raw_fd(OwnedFd::from(listener).into_raw_fd()) };
        vmm.start_rings();
        vmm
    }

    /// The same, but whoever calls the guest of a ring waits until it has heard that.
    pub fn start_with_full_call(socket: &Path, ring: usize) -> Self {
        let mut vmm = Self::connect(socket, 1);
        vmm.calls[ring] = EventFd::new(0).expect("an event");
        // It cannot be called once more.
        vmm.calls[ring].write(u64::MAX - 1).expect("room");
        vmm.start_rings();
        vmm
    }

    /// Connects for a driver that knows nothing of virtio 1, whose frames have a shorter header.
    pub fn start_legacy(socket: &Path) -> Frontend {
        let frontend = Frontend::connect(socket, 2).expect("the device");
        frontend.set_owner().expect("ours");
        let features = frontend.get_features().expect("features");
        frontend.set_features(features & !VERSION_1).expect("told");
        frontend
    }

    fn connect(socket: &Path, pairs: usize) -> Self {
        let rings = 2 * pairs;
        let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC);
        let file = File::from(file.expect("memory"));
        file.set_len(MEMORY).expect("memory");
        let part = FileOffset::new(file.try_clone().expect("a descriptor"), 0);
        let memory = GuestMemoryMmap::from_ranges_with_files([(
            GuestAddress(0),
            MEMORY as usize,
            Some(part),
        )]);
        let mut frontend = Frontend::connect(socket, rings as u64).expect("the device");
        frontend.set_owner().expect("ours");
        let features = frontend.get_features().expect("features");
        let protocol = frontend.get_protocol_features().expect("features");
        let wanted =
            protocol & (VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK);
        frontend.set_protocol_features(wanted).expect("agreed");
        assert_eq!(frontend.get_queue_num().expect("a number"), rings as u64);
        // All but notifications by index: this driver asks for each.
        frontend
            .set_features(features & !(1 << 29))
            .expect("agreed");
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        frontend.set_mem_table(&[region]).expect("mapped");
        let event = || EventFd::new(EFD_NONBLOCK).expect("an event");
        Self {
            frontend,
            memory: memory.expect("mapped"),
            kicks: (0..rings).map(|_| event()).collect(),
            calls: (0..rings).map(|_| event()).collect(),
            offered: vec![0; rings],
            returned: vec![0; rings],
        }
    }

    fn start_rings(&mut self) {
        for ring in 0..self.kicks.len() {
            self.start_ring(ring);
        }
        for at in 0..RING {
            self.offer_room(at);
        }
        self.kick(0);
    }

    fn start_ring(&mut self, ring: usize) {
        let frontend = &mut self.frontend;
        frontend.set_vring_num(ring, RING).expect("taken");
        let addresses = VringConfigData {
            queue_max_size: RING,
            queue_size: RING,
            flags: 0,
            desc_table_addr: USER + descriptors(ring),
            used_ring_addr: USER + used(ring),
            avail_ring_addr: USER + available(ring),
            log_addr: None,
        };
        frontend.set_vring_addr(ring, &addresses).expect("taken");
        frontend.set_vring_base(ring, 0).expect("taken");
        frontend
            .set_vring_call(ring, &self.calls[ring])
            .expect("taken");
        frontend
            .set_vring_kick(ring, &self.kicks[ring])
            .expect("taken");
        frontend.set_vring_enable(ring, true).expect("taken");
    }

    /// Stops a ring: where the device was.
    pub fn stop_ring(&self, ring: usize) -> u32 {
        self.frontend.get_vring_base(ring).expect("a place")
    }

    /// Starts one anew, as after a reset of the guest's device.
    pub fn restart_ring(&mut self, ring: usize) {
        self.stop_ring(ring);
        for place in [available(ring), used(ring)] {
            self.memory
                .write_obj(0u32, GuestAddress(place))
                .expect("in memory");
        }
        self.offered[ring] = 0;
        self.returned[ring] = 0;
        self.start_ring(ring);
    }

    /// Writes over all of the guest's memory.
    pub fn overwrite(&self, octet: u8) {
        let all = vec![octet; MEMORY as usize];
        let written = self.memory.write_slice(&all, GuestAddress(0));
        written.expect("in memory");
    }

    /// Whether it is all as it was written over.
    pub fn is_all(&self, octet: u8) -> bool {
        let mut all = vec![0; MEMORY as usize];
        let read = self.memory.read_slice(&mut all, GuestAddress(0));
        read.expect("in memory");
        all.iter().all(|found| *found == octet)
    }

    /// Has the device be told of a ring by another event, and tells it by the former one, which is there for as long as it is kept.
    pub fn replace_kick(&mut self, ring: usize, flags: i32) -> EventFd {
        let other = EventFd::new(flags).expect("an event");
        self.frontend.set_vring_kick(ring, &other).expect("taken");
        // It has taken that when it answers what is asked next.
        self.frontend.get_features().expect("features");
        self.kick(ring);
        std::mem::replace(&mut self.kicks[ring], other)
    }

    /// Has the guest be called by another event.
    pub fn replace_call(&mut self, ring: usize) {
        let other = EventFd::new(EFD_NONBLOCK).expect("an event");
        self.frontend.set_vring_call(ring, &other).expect("taken");
        // It has taken that when it answers what is asked next.
        self.frontend.get_features().expect("features");
        self.calls[ring] = other;
    }

    /// Waits until the device has heard what it was told of a ring.
    pub fn until_heard(&self, ring: usize) {
        until("the kick is taken", || {
            let kick = &self.kicks[ring];
            // SAFETY: it is open for as long as it is borrowed.
            let kick = unsafe { BorrowedFd::borrow_raw(kick.as_raw_fd()) };
            let mut waiting = [PollFd::from_borrowed_fd(kick, PollFlags::IN)];
            let ready = rustix::event::poll(&mut waiting, Some(&Timespec::default()));
            (ready == Ok(0)).then_some(())
        });
    }

    /// Tells the device that there is something.
    pub fn kick(&self, ring: usize) {
        self.kicks[ring].write(1).expect("told");
    }

    /// Writes a descriptor.
    pub fn describe(&self, ring: usize, at: u16, address: u64, length: u32, flags: u16, next: u16) {
        let place = descriptors(ring) + u64::from(at) * 16;
        let write = |value: &[u8], offset: u64| {
            let written = self.memory.write_slice(value, GuestAddress(place + offset));
            written.expect("in memory");
        };
        write(&address.to_le_bytes(), 0);
        write(&length.to_le_bytes(), 8);
        write(&flags.to_le_bytes(), 12);
        write(&next.to_le_bytes(), 14);
    }

    /// Offers the chain that begins with a descriptor.
    pub fn offer(&mut self, ring: usize, head: u16) {
        let at = available(ring) + 4 + u64::from(self.offered[ring] % RING) * 2;
        self.memory
            .write_obj(head, GuestAddress(at))
            .expect("in memory");
        self.offered[ring] = self.offered[ring].wrapping_add(1);
        self.set_offered(ring, self.offered[ring]);
    }

    /// Says how many chains have been offered so far.
    pub fn set_offered(&self, ring: usize, index: u16) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let at = GuestAddress(available(ring) + 2);
        self.memory.write_obj(index, at).expect("in memory");
    }

    fn offer_room(&mut self, at: u16) {
        self.describe(0, at, buffer(0, at), BUFFER as u32, WRITE, 0);
        self.offer(0, at);
    }

    /// How many chains the device has given back of a ring so far.
    pub fn used(&self, ring: usize) -> u16 {
        let at = GuestAddress(used(ring) + 2);
        let index = self.memory.read_obj(at).expect("in memory");
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        index
    }

    /// Sends frames by a queue pair, in two descriptors each, and waits until the device has taken them and has said so.
    pub fn send(&mut self, pair: usize, frames: &[Vec<u8>]) {
        self.send_unheard(pair, frames);
        let call = &self.calls[2 * pair + 1];
        until("the driver is told", || call.read().ok());
    }

    /// The same, but does not listen.
    pub fn send_unheard(&mut self, pair: usize, frames: &[Vec<u8>]) {
        let ring = 2 * pair + 1;
        for frames in frames.chunks(usize::from(RING) / 2) {
            for frame in frames {
                let at = self.offered[ring] % (RING / 2) * 2;
                let place = buffer(ring, at);
                let packet = [&[0; HEADER][..], frame].concat();
                self.memory
                    .write_slice(&packet, GuestAddress(place))
                    .expect("in memory");
                let length = packet.len() as u32 - HEADER as u32;
                self.describe(ring, at, place, HEADER as u32, NEXT, at + 1);
                self.describe(ring, at + 1, place + HEADER as u64, length, 0, 0);
                self.offer(ring, at);
            }
            self.kick(ring);
            let offered = self.offered[ring];
            until("the device has taken what was sent", || {
                (self.used(ring) == offered).then_some(())
            });
        }
    }

    /// The next frame for the guest.
    pub fn receive(&mut self) -> Vec<u8> {
        let returned = self.returned[0];
        until("a frame comes", || (self.used(0) != returned).then_some(()));
        let at = used(0) + 4 + u64::from(returned % RING) * 8;
        let head: u32 = self.memory.read_obj(GuestAddress(at)).expect("in memory");
        let length: u32 = self
            .memory
            .read_obj(GuestAddress(at + 4))
            .expect("in memory");
        self.returned[0] = returned.wrapping_add(1);
        let mut packet = vec![0; length as usize];
        let place = buffer(0, head as u16);
        self.memory
            .read_slice(&mut packet, GuestAddress(place))
            .expect("in memory");
        // One buffer, as the header has to say.
        assert_eq!(packet[..HEADER], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        self.offer_room(head as u16);
        self.kick(0);
        packet.split_off(HEADER)
    }
}
