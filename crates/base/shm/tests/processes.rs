//! An arena shared by two real processes: the parent is the runtime, a forked child the application.
#![cfg(not(loom))]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use takt_shm::{
    Arena, Consumer, LaneBell, LaneBellHost, Pod, Producer, RingError, RingLayout, SinkBell,
    SinkBellHost,
};

/// An entry that shows when it was torn: both words tell the same story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Entry {
    number: u64,
    check: u64,
}
// SAFETY: two u64, no padding.
unsafe impl Pod for Entry {}

impl Entry {
    fn new(number: u64) -> Entry {
        Entry {
            number,
            check: !number.rotate_left(17),
        }
    }
}

/// Runs `body` in a forked child, which exits with status 0 only when it returns true.
fn fork(body: impl FnOnce() -> bool + std::panic::UnwindSafe) -> Child {
    // SAFETY: the child runs `body` and leaves by _exit, so nothing of the parent's test harness runs
    // in it; it uses no lock that another thread of the parent could have held but the C library's
    // allocator, which is fork-safe.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "cannot fork");
    if pid == 0 {
        let passed = std::panic::catch_unwind(body).unwrap_or(false);
        // SAFETY: leaves the child without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!passed)) };
    }
    Child { pid, reaped: false }
}

/// A child of a test; killed if the test fails before it ends.
struct Child {
    pid: i32,
    reaped: bool,
}

impl Child {
    fn passed(mut self) -> bool {
        let mut status = -1;
        // SAFETY: waits for the child made by `fork`.
        let pid = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        self.reaped = pid == self.pid;
        self.reaped && status == 0
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            // SAFETY: the child is ours and not reaped, so the number still names it.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, core::ptr::null_mut(), 0);
            }
        }
    }
}

/// The application's mapping of an arena that it inherited as a descriptor.
fn open(arena: &Arena) -> Arc<Arena> {
    let fd = arena.fd().try_clone_to_owned().unwrap();
    Arc::new(Arena::open(fd, arena.len()).unwrap())
}

#[test]
fn a_million_entries_cross_between_processes_whole_and_in_order() {
    const ENTRIES: u64 = 1_000_000;
    const CAPACITY: u32 = 256;
    let size = RingLayout::size::<Entry>(CAPACITY);
    let arena = Arc::new(Arena::create("takt-test", 64 + size).unwrap());
    let mut consumer = Consumer::<Entry>::attach(&arena, 64, CAPACITY).unwrap();

    let child = fork({
        let arena = Arc::clone(&arena);
        move || {
            let arena = open(&arena);
            let mut producer = Producer::<Entry>::attach(&arena, 64, CAPACITY).unwrap();
            let mut number = 0;
            while number < ENTRIES {
                // Batches of different sizes, so that both ends meet at every distance.
                let batch = (number % 37 + 1).min(ENTRIES - number);
                for _ in 0..batch {
                    while !producer.stage(Entry::new(number)).unwrap() {
                        producer.publish();
                        std::thread::yield_now();
                    }
                    number += 1;
                }
                producer.publish();
            }
            true
        }
    });

    let mut number = 0;
    while number < ENTRIES {
        match consumer.pop().unwrap() {
            Some(entry) => {
                assert_eq!(entry, Entry::new(number));
                number += 1;
                if number.is_multiple_of(8) {
                    consumer.release();
                }
            }
            None => {
                consumer.release();
                std::thread::yield_now();
            }
        }
    }
    assert_eq!(consumer.available().unwrap(), 0);
    assert!(child.passed());
}

#[test]
fn two_processes_that_sleep_for_every_message_wake_each_other() {
    const ROUNDS: u64 = 20_000;
    const CAPACITY: u32 = 4;
    const STATE: usize = 0;
    const DIRTY: usize = 64;
    const SINK: usize = 128;
    const TX: usize = 192;
    let size = RingLayout::size::<Entry>(CAPACITY);
    let rx = TX + size;
    let arena = Arc::new(Arena::create("takt-test", rx + size).unwrap());
    let lane = LaneBellHost::new(&arena, STATE, DIRTY).unwrap();
    let sink = SinkBellHost::attach(&arena, SINK).unwrap();
    let mut requests = Consumer::<Entry>::attach(&arena, TX, CAPACITY).unwrap();
    let mut answers = Producer::<Entry>::attach(&arena, rx, CAPACITY).unwrap();
    let eventfd = lane.fd().try_clone_to_owned().unwrap();

    let child = fork({
        let arena = Arc::clone(&arena);
        move || {
            let arena = open(&arena);
            let lane = LaneBell::attach(&arena, STATE, DIRTY, eventfd).unwrap();
            let sink = SinkBell::attach(&arena, SINK).unwrap();
            let mut requests = Producer::<Entry>::attach(&arena, TX, CAPACITY).unwrap();
            let mut answers = Consumer::<Entry>::attach(&arena, rx, CAPACITY).unwrap();
            (0..ROUNDS).all(|number| {
                assert!(requests.push(Entry::new(number)).unwrap());
                lane.ring();
                let answer = loop {
                    if let Some(answer) = answers.pop().unwrap() {
                        break answer;
                    }
                    sink.wait(|| answers.available().unwrap() > 0, None);
                };
                answers.release();
                answer == Entry::new(!number)
            })
        }
    });

    let epoll = edge_triggered(&lane);
    let mut answered = 0;
    while answered < ROUNDS {
        lane.park();
        if !lane.take_dirty() {
            wait(&epoll);
        }
        lane.unpark();
        while let Some(request) = requests.pop().unwrap() {
            requests.release();
            assert_eq!(request, Entry::new(answered));
            assert!(answers.push(Entry::new(!answered)).unwrap());
            sink.ring();
            answered += 1;
        }
    }
    assert!(child.passed());
}

#[test]
fn an_application_that_scribbles_over_the_arena_is_found_corrupt_and_harms_nothing_else() {
    const CAPACITY: u32 = 8;
    let size = RingLayout::size::<Entry>(CAPACITY);
    let arena = Arc::new(Arena::create("takt-test", size).unwrap());
    let child = fork({
        let arena = Arc::clone(&arena);
        move || {
            let arena = open(&arena);
            let noise = vec![0xee; arena.len()];
            let all = arena.slice(0, arena.len()).unwrap();
            // For ever: the parent ends it.
            loop {
                all.write_from(0, &noise).unwrap();
            }
        }
    });
    let word = arena.atomic_u32(0).unwrap();
    while word.load(std::sync::atomic::Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    let mut consumer = Consumer::<Entry>::attach(&arena, 0, CAPACITY).unwrap();
    let mut producer = Producer::<Entry>::attach(&arena, 0, CAPACITY).unwrap();
    assert!(matches!(consumer.pop(), Err(RingError::Corrupt { .. })));
    // The first lap needs no look at the other side.
    for number in 0..u64::from(CAPACITY) {
        assert!(producer.push(Entry::new(number)).unwrap());
    }
    let full = loop {
        match producer.push(Entry::new(0)) {
            // The index that was shown last has not been overwritten yet, or looks possible.
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(full, RingError::Corrupt { .. }));
    drop(child);
}

fn edge_triggered(lane: &LaneBellHost) -> OwnedFd {
    // SAFETY: plain system call; the result is checked before it is owned.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    assert!(epoll >= 0);
    let mut event = libc::epoll_event {
        events: (libc::EPOLLIN | libc::EPOLLET) as u32,
        u64: 0,
    };
    let fd = lane.fd().as_raw_fd();
    // SAFETY: both descriptors are open and the event is live.
    let added = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    assert_eq!(added, 0);
    // SAFETY: made above.
    unsafe { OwnedFd::from_raw_fd(epoll) }
}

fn wait(epoll: &OwnedFd) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: the event is live and there is room for one.
    while unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, -1) } < 1 {}
}
