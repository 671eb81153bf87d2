//! A connection whose events are given to it one by one, with a driver's memory and a tap device of the test's own.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use vhost_user_backend::VringT;
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemoryMmap};

use super::*;
use crate::guest::Options;
use crate::guest::queue::Queue;

const MEMORY: usize = 1 << 20;
const RING: u16 = 8;
/// How much each buffer holds: more than a frame may have.
const BUFFER: u32 = 16 << 10;
/// `VIRTQ_DESC_F_WRITE`.
const WRITE: u16 = 2;

/// The guest receives by the first ring and sends by the second one, which is a thread's each.
const RECEIVING: usize = 0;
const SENDING: usize = 1;

struct Guest {
    connection: Connection,
    /// The host's end of the tap device.
    host: UnixDatagram,
    memory: Memory,
    rings: [VringRwLock; 2],
}

fn descriptors(ring: usize) -> u64 {
    0x1000 + ring as u64 * 0x4000
}

fn available(ring: usize) -> u64 {
    descriptors(ring) + 0x1000
}

fn used(ring: usize) -> u64 {
    descriptors(ring) + 0x2000
}

fn buffer(ring: usize, at: u16) -> u64 {
    (128 << 10) + (ring as u64 * u64::from(RING) + u64::from(at)) * u64::from(BUFFER)
}

impl Guest {
    /// Notifications are by index, or by flags.
    fn new(by_index: bool) -> Self {
        let options = Options {
            socket: "/nowhere".into(),
            tap: "none".into(),
            queues: vec![Queue::Kernel],
            required: false,
        };
        let (host, device) = UnixDatagram::pair().expect("a pair");
        host.set_nonblocking(true).expect("set");
        device.set_nonblocking(true).expect("set");
        let tap = Arc::new(Tap::of(File::from(OwnedFd::from(device))));
        let shared = Arc::new(Shared::new(&options));
        let sends = Transmitter::new(&Queue::Kernel, 0, String::new(), false, &tap, &shared);
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]);
        let memory = Memory::new(memory.expect("memory"));
        let sends = [Mutex::new(sends.expect("of the kernel"))].into();
        let rings = [RECEIVING, SENDING].map(|at| {
            let ring = VringRwLock::new(memory.clone(), RING).expect("a ring");
            ring.set_queue_info(descriptors(at), available(at), used(at))
                .expect("places");
            ring.set_queue_event_idx(by_index);
            ring.set_enabled(true);
            ring.set_queue_ready(true);
            ring
        });
        let (end, _) = UnixStream::pair().expect("a pair");
        let threads = Threads::new(end);
        let connection = Connection::new(sends, tap, shared, memory.clone(), threads);
        Self {
            connection: connection.expect("timers"),
            host,
            memory,
            rings,
        }
    }

    /// An event of a thread: here the one for what is sent is the first.
    fn event(&self, ring: usize) {
        let thread = 1 - ring;
        let rings = std::slice::from_ref(&self.rings[ring]);
        let handled = self.connection.handle_event(0, EventSet::IN, rings, thread);
        handled.expect("it goes on");
    }

    /// Offers a buffer.
    fn offer(&self, ring: usize, at: u16, length: u32, flags: u16) {
        self.offer_at(ring, at, buffer(ring, at), length, flags);
    }

    /// The same, somewhere.
    fn offer_at(&self, ring: usize, at: u16, address: u64, length: u32, flags: u16) {
        let place = descriptors(ring) + u64::from(at) * 16;
        self.write(&address.to_le_bytes(), place);
        self.write(&length.to_le_bytes(), place + 8);
        self.write(&flags.to_le_bytes(), place + 12);
        let index = self.index(available(ring));
        let entry = available(ring) + 4 + u64::from(index % RING) * 2;
        self.write(&at.to_le_bytes(), entry);
        self.say_offered(ring, index.wrapping_add(1));
    }

    fn say_offered(&self, ring: usize, index: u16) {
        self.write(&index.to_le_bytes(), available(ring) + 2);
    }

    fn write(&self, octets: &[u8], at: u64) {
        let written = self.memory.memory().write_slice(octets, GuestAddress(at));
        written.expect("in memory");
    }

    /// How far a ring's owner is.
    fn index(&self, ring: u64) -> u16 {
        let index = self.memory.memory().read_obj(GuestAddress(ring + 2));
        index.expect("in memory")
    }

    /// Whether the thread of a ring is to have a turn although nothing comes.
    fn is_awake(&self, ring: usize) -> bool {
        let timer = &self.connection.timers[1 - ring];
        let rest = rustix::time::timerfd_gettime(timer)
            .expect("a timer")
            .it_value;
        (rest.tv_sec, rest.tv_nsec) != (0, 0) || rustix::io::read(timer, &mut [0; 8]).is_ok()
    }

    fn counted(&self, name: &str) -> u64 {
        counted(&self.connection.shared, name)
    }

    fn all_memory(&self) -> Vec<u8> {
        let mut all = vec![0; MEMORY];
        let read = self.memory.memory().read_slice(&mut all, GuestAddress(0));
        read.expect("in memory");
        all
    }
}

fn counted(shared: &Shared, name: &str) -> u64 {
    let status = shared.status();
    let mut counters = status.queues[0].counters.iter();
    let counter = counters.find(|counter| counter.name == name);
    counter.expect("a counter of that name").frames
}

#[test]
fn memory_of_a_ring_that_does_not_run_is_not_written_to() {
    for by_index in [false, true] {
        let stops: [fn(&VringRwLock); 3] = [
            |ring| ring.set_queue_ready(false),
            |ring| ring.set_enabled(false),
            // Its place is not known yet.
            |ring| ring.set_queue_info(0, 0, 0).expect("a place"),
        ];
        for stop in stops {
            let guest = Guest::new(by_index);
            guest.offer(RECEIVING, 0, BUFFER, WRITE);
            guest.offer(SENDING, 0, 100, 0);
            for ring in &guest.rings {
                stop(ring);
            }
            let all = vec![0xaa; MEMORY];
            guest.write(&all, 0);
            guest.host.send(&[7; 60]).expect("sent");
            for ring in [SENDING, RECEIVING] {
                guest.event(ring);
            }
            assert!(guest.all_memory() == all, "{by_index}");
        }
    }
}

#[test]
fn a_ring_that_cannot_be_is_left_alone_until_it_is_started_again() {
    let breaks: [fn(&Guest, usize); 2] = [
        |guest, ring| guest.say_offered(ring, 20_000),
        // The index is at the end of the memory, and what it is of behind it.
        |guest, ring| {
            let end = MEMORY as u64 - 4;
            let state = &guest.rings[ring];
            state
                .set_queue_info(descriptors(ring), end, used(ring))
                .expect("a place");
            guest.write(&1u16.to_le_bytes(), end + 2);
        },
    ];
    for (is_broken, ring) in breaks
        .into_iter()
        .flat_map(|one| [(one, RECEIVING), (one, SENDING)])
    {
        let guest = Guest::new(false);
        is_broken(&guest, ring);
        for _ in 0..3 {
            guest.host.send(&[7; 60]).expect("sent");
            guest.event(ring);
            assert!(!guest.is_awake(ring), "of {ring}");
        }
        // As the library does when it is given the event that the guest is called by.
        guest.rings[ring].set_queue_ready(true);
        guest.event(ring);
        assert_eq!(guest.counted("ring-broken"), 1);
        guest.rings[ring]
            .set_queue_info(descriptors(ring), available(ring), used(ring))
            .expect("a place");
        guest.rings[ring].set_queue_ready(true);
        guest.say_offered(ring, 0);
        guest.offer(ring, 0, 100, if ring == RECEIVING { WRITE } else { 0 });
        guest.host.send(&[7; 60]).expect("sent");
        guest.event(ring);
        assert_eq!(guest.index(used(ring)), 1);
        assert_eq!(guest.counted("ring-broken"), 1);
    }
}

/// An indirect table may be longer than the ring, and a chain may not.
#[test]
fn of_an_indirect_table_no_more_is_looked_at_than_a_chain_may_have() {
    /// Where the table is, and `VIRTQ_DESC_F_NEXT` and `VIRTQ_DESC_F_INDIRECT`.
    const TABLE: u64 = 64 << 10;
    const NEXT: u16 = 1;
    const INDIRECT: u16 = 4;
    // All but the last part have nothing in them.
    let offer = |guest: &Guest, ring: usize, parts: u16, flags: u16| {
        for part in 0..parts {
            let is_last = part + 1 == parts;
            let place = TABLE + u64::from(part) * 16;
            let length: u32 = if is_last { 100 } else { 0 };
            let next = if is_last { 0 } else { NEXT };
            guest.write(&buffer(ring, 0).to_le_bytes(), place);
            guest.write(&length.to_le_bytes(), place + 8);
            guest.write(&(flags | next).to_le_bytes(), place + 12);
            guest.write(&(part + 1).to_le_bytes(), place + 14);
        }
        guest.offer_at(ring, 0, TABLE, u32::from(parts) * 16, INDIRECT);
        guest.host.send(&[7; 60]).expect("sent");
        guest.event(ring);
    };
    for (parts, is_frame) in [(RING, true), (RING + 1, false)] {
        let guest = Guest::new(false);
        offer(&guest, SENDING, parts, 0);
        assert_eq!(guest.index(used(SENDING)), 1);
        assert_eq!(guest.counted("malformed"), u64::from(!is_frame));
        offer(&guest, RECEIVING, parts, WRITE);
        assert_eq!(guest.index(used(RECEIVING)), 1);
        assert_eq!(guest.counted("received"), u64::from(is_frame));
        assert_eq!(guest.counted("received-too-long"), u64::from(!is_frame));
    }
}

#[test]
fn a_frame_that_is_too_long_is_none_of_the_guests_and_counted() {
    let guest = Guest::new(false);
    guest.offer(RECEIVING, 0, BUFFER, WRITE);
    guest.offer(RECEIVING, 1, BUFFER, WRITE);
    for length in [LONGEST, LONGEST + 1, LONGEST + 1000] {
        guest.host.send(&vec![7; length]).expect("sent");
    }
    guest.event(RECEIVING);
    assert_eq!(guest.index(used(RECEIVING)), 1);
    assert_eq!(guest.counted("received"), 1);
    assert_eq!(guest.counted("received-too-long"), 2);
}

#[test]
fn a_frame_that_waits_for_a_buffer_when_the_vmm_goes_is_counted() {
    let guest = Guest::new(false);
    guest.host.send(&[7; 60]).expect("sent");
    guest.event(RECEIVING);
    let shared = Arc::clone(&guest.connection.shared);
    assert_eq!(guest.counted("received-down"), 0);
    drop(guest);
    assert_eq!(counted(&shared, "received-down"), 1);
}

#[test]
fn nothing_is_taken_from_a_driver_of_before_virtio_1() {
    let guest = Guest::new(false);
    guest.connection.acked_features(guest.connection.features());
    assert_eq!(guest.connection.threads.fault(), None);
    guest
        .connection
        .acked_features(guest.connection.features() & !(1 << VIRTIO_F_VERSION_1));
    guest.offer(SENDING, 0, 100, 0);
    guest.event(SENDING);
    assert_eq!(guest.index(used(SENDING)), 0);
    assert!(guest.connection.threads.fault().is_some());
}
