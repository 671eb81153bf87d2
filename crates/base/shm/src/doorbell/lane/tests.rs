use super::*;

const STATE: usize = 0;
const DIRTY: usize = 64;

/// What a lane does with a bell: registers it edge-triggered, sleeps in epoll, never reads it.
struct Epoll(OwnedFd);

impl Epoll {
    fn of(host: &LaneBellHost) -> Epoll {
        // SAFETY: plain system call; the result is checked before it is owned.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(epoll >= 0);
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLET) as u32,
            u64: 0,
        };
        // SAFETY: both descriptors are open and the event is live.
        let added = unsafe {
            libc::epoll_ctl(
                epoll,
                libc::EPOLL_CTL_ADD,
                host.fd().as_raw_fd(),
                &raw mut event,
            )
        };
        assert_eq!(added, 0);
        // SAFETY: made above.
        Epoll(unsafe { OwnedFd::from_raw_fd(epoll) })
    }

    /// Number of events; a negative timeout waits until there is one.
    fn wait(&self, timeout_ms: i32) -> i32 {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        loop {
            // SAFETY: the event is live and there is room for one.
            let count =
                unsafe { libc::epoll_wait(self.0.as_raw_fd(), &raw mut event, 1, timeout_ms) };
            if count >= 0 {
                return count;
            }
        }
    }
}

fn pair() -> (Arc<Arena>, LaneBell, LaneBellHost) {
    let arena = Arc::new(Arena::create("takt-test", 4096).unwrap());
    let host = LaneBellHost::new(&arena, STATE, DIRTY).unwrap();
    let eventfd = host.fd().try_clone_to_owned().unwrap();
    let bell = LaneBell::attach(&arena, STATE, DIRTY, eventfd).unwrap();
    (arena, bell, host)
}

#[test]
fn a_running_lane_is_marked_but_not_woken() {
    let (_arena, bell, host) = pair();
    let epoll = Epoll::of(&host);
    assert!(!host.take_dirty());
    bell.ring();
    bell.ring();
    assert_eq!(epoll.wait(0), 0);
    assert!(host.take_dirty());
    assert!(!host.take_dirty());
}

#[test]
fn a_parked_lane_is_woken_once_per_parking() {
    let (arena, bell, host) = pair();
    let epoll = Epoll::of(&host);
    for _ in 0..3 {
        host.park();
        assert!(!host.take_dirty());
        bell.ring();
        assert_eq!(
            arena.atomic_u32(STATE).unwrap().load(Ordering::Relaxed),
            RUNNING
        );
        assert_eq!(epoll.wait(-1), 1);
        bell.ring();
        assert_eq!(epoll.wait(0), 0);
        host.unpark();
        assert!(host.take_dirty());
    }
}

#[test]
fn an_unparked_lane_is_not_woken() {
    let (_arena, bell, host) = pair();
    let epoll = Epoll::of(&host);
    host.park();
    host.unpark();
    bell.ring();
    assert_eq!(epoll.wait(0), 0);
}

#[test]
fn a_new_host_clears_what_the_words_held() {
    let (arena, _bell, _host) = pair();
    arena
        .atomic_u32(STATE)
        .unwrap()
        .store(77, Ordering::Relaxed);
    arena
        .atomic_u32(DIRTY)
        .unwrap()
        .store(77, Ordering::Relaxed);
    let host = LaneBellHost::new(&arena, STATE, DIRTY).unwrap();
    assert!(!host.take_dirty());
    assert_eq!(
        arena.atomic_u32(STATE).unwrap().load(Ordering::Relaxed),
        RUNNING
    );
}

#[test]
fn values_that_no_honest_application_writes_do_no_harm() {
    let (arena, bell, host) = pair();
    let epoll = Epoll::of(&host);
    for value in [2, u32::MAX] {
        arena
            .atomic_u32(DIRTY)
            .unwrap()
            .store(value, Ordering::Relaxed);
        assert!(host.take_dirty());
        assert!(!host.take_dirty());
        arena
            .atomic_u32(STATE)
            .unwrap()
            .store(value, Ordering::Relaxed);
        bell.ring();
        assert_eq!(epoll.wait(0), 0);
        assert!(host.take_dirty());
    }
}

#[test]
fn the_eventfd_never_blocks_even_when_its_counter_is_full() {
    let (_arena, bell, host) = pair();
    let full = u64::MAX - 1;
    // SAFETY: writes eight bytes from a live u64.
    let written = unsafe { libc::write(host.fd().as_raw_fd(), (&raw const full).cast(), 8) };
    assert_eq!(written, 8);
    host.park();
    bell.ring();
    assert!(host.take_dirty());
}

#[test]
fn words_outside_the_arena_are_refused() {
    let (arena, _bell, host) = pair();
    for (state, dirty) in [(4096, 0), (0, 4096), (2, 64), (0, usize::MAX)] {
        assert!(matches!(
            LaneBellHost::new(&arena, state, dirty),
            Err(BellError::OutOfBounds(_))
        ));
        let eventfd = host.fd().try_clone_to_owned().unwrap();
        assert!(LaneBell::attach(&arena, state, dirty, eventfd).is_err());
    }
}

#[test]
fn a_lane_that_parks_after_every_message_hears_of_each() {
    const MESSAGES: u32 = 20_000;
    let (arena, bell, host) = pair();
    let epoll = Epoll::of(&host);
    let sent = arena.atomic_u32(128).unwrap();
    let heard = arena.atomic_u32(192).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for message in 1..=MESSAGES {
                sent.store(message, Ordering::Release);
                bell.ring();
                while heard.load(Ordering::Acquire) < message {
                    std::thread::yield_now();
                }
            }
        });
        let mut last = 0;
        while last < MESSAGES {
            host.park();
            if !host.take_dirty() {
                assert_eq!(epoll.wait(-1), 1);
            }
            host.unpark();
            last = sent.load(Ordering::Acquire);
            heard.store(last, Ordering::Release);
        }
    });
}
