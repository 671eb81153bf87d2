//! The virtqueues of a guest's network device: rings, descriptors and buffers that a hostile driver made.
//!
//! Input: where the three rings are (2 octets each), how long they are (1), whether notifications go by index (1), and the guest's memory,
//! which is repeated as far as there is memory.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_ingress::guest::ring::{HEADER, LONGEST, Memory, Put, Taken, put, signal, take};
use vhost_user_backend::{VringRwLock, VringT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const MEMORY: usize = 64 << 10;

fuzz_target!(|bytes: &[u8]| {
    let Some((head, content)) = bytes.split_first_chunk::<8>() else {
        return;
    };
    if content.is_empty() {
        return;
    }
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).expect("memory");
    let all: Vec<u8> = content.iter().copied().cycle().take(MEMORY).collect();
    memory
        .write_slice(&all, GuestAddress(0))
        .expect("all of it");
    let memory = Memory::new(memory);
    let ring = VringRwLock::new(memory.clone(), 1024).expect("a ring");
    let place = |at: usize| u64::from(u16::from_le_bytes([head[at], head[at + 1]]));
    ring.set_queue_size(1 << (head[6] % 11));
    if ring.set_queue_info(place(0), place(2), place(4)).is_err() {
        return;
    }
    ring.set_queue_event_idx(head[7] & 1 == 1);
    ring.set_queue_ready(true);
    ring.set_enabled(true);
    let mut packet = Vec::new();
    let mut frame = vec![7; HEADER + 1514];
    // A device's turn is bounded, too: a ring that a driver fills without end has none.
    for _ in 0..64 {
        match take(&ring, &memory, &mut packet) {
            Taken::Frame => assert!((HEADER + 1..=HEADER + LONGEST).contains(&packet.len())),
            Taken::Malformed => {}
            // A ring that cannot be is stopped: it tells so once.
            Taken::Broken => assert_eq!(take(&ring, &memory, &mut packet), Taken::Stopped),
            Taken::Empty | Taken::Stopped => break,
        }
        let _ = ring.disable_notification();
        if put(&ring, &memory, &mut frame) == Put::NoBuffer {
            break;
        }
        signal(&ring);
        let _ = ring.enable_notification();
    }
});
