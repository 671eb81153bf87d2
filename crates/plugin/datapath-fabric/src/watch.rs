//! Whether what is posted for arrivals still ends. Libfabric has a frame for each message that has begun, whoever sends it,
//! until it ends; and does not tell.
//!
//! Messages take frames in the order in which these were posted. So a frame that was overtaken by another has been taken, and
//! one that cannot be cancelled has been, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use takt_datapath::Health;

/// Between two looks, and what a message has to end in at least.
const LOOK: Duration = Duration::from_secs(1);
/// So long a port that had to be opened again counts as failed: who has ended it may do so again.
const FAILED: Duration = Duration::from_secs(30);

/// The frames of a port for arrivals.
#[derive(Debug)]
pub(crate) struct Watch {
    /// By frame, which posting of all it was; 0: it is not posted.
    posted: Box<[u64]>,
    /// The last posting, and its frame.
    last: u64,
    newest: usize,
    /// The last posting that a message has taken, as far as known; and so at the last look.
    taken: u64,
    taken_before: u64,
    /// The frame that was cancelled.
    cancelled: usize,
    next: Instant,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing.
    Fine,
    /// Nothing has ended since the last look: cancel this frame, and read all that has ended. Then [`Watch::asked`].
    Ask(usize),
    /// So many frames have been taken and have not ended for too long: most of them.
    Stuck(u64),
}

impl Watch {
    pub(crate) fn new(frames: usize) -> Self {
        Self {
            posted: vec![0; frames].into_boxed_slice(),
            last: 0,
            newest: 0,
            taken: 0,
            taken_before: 0,
            cancelled: usize::MAX,
            next: Instant::now() + LOOK,
        }
    }

    #[inline]
    pub(crate) fn post(&mut self, frame: usize) {
        self.last += 1;
        self.newest = frame;
        self.posted[frame] = self.last;
    }

    /// A frame has ended. Returns whether a message has had it; `cancelled`: it says that none has.
    #[inline]
    pub(crate) fn end(&mut self, frame: usize, cancelled: bool) -> bool {
        let number = std::mem::take(&mut self.posted[frame]);
        if cancelled && frame == self.cancelled {
            return false;
        }
        self.taken = self.taken.max(number);
        true
    }

    #[inline]
    pub(crate) fn look(&mut self, now: Instant) -> Look {
        if now < self.next {
            return Look::Fine;
        }
        self.look_closely(now)
    }

    #[cold]
    fn look_closely(&mut self, now: Instant) -> Look {
        self.next = now + LOOK;
        let held = |number: &&u64| **number != 0 && **number <= self.taken_before;
        let held = self.posted.iter().filter(held).count();
        if held * 2 > self.posted.len() {
            return Look::Stuck(held as u64);
        }
        let nothing_ended = self.taken == self.taken_before;
        self.taken_before = self.taken;
        if nothing_ended && self.posted[self.newest] == self.last && self.taken < self.last {
            self.cancelled = self.newest;
            return Look::Ask(self.newest);
        }
        Look::Fine
    }

    /// What could end after the frame was cancelled has ended.
    #[cold]
    pub(crate) fn asked(&mut self) {
        let number = self.posted[self.cancelled];
        self.cancelled = usize::MAX;
        // It has not: a message has it, and those before it.
        self.taken = self.taken.max(number);
        self.taken_before = self.taken;
    }

    /// Nothing is posted any more.
    pub(crate) fn forget(&mut self) {
        self.posted.fill(0);
        (self.taken, self.taken_before) = (self.last, self.last);
    }

    /// Whether a frame is posted.
    pub(crate) fn is_posted(&self, frame: usize) -> bool {
        self.posted[frame] != 0
    }

    /// The frames that are posted.
    pub(crate) fn posted(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.posted.len()).filter(|frame| self.is_posted(*frame))
    }
}

/// What the ports of a datapath have come to, for those who ask from elsewhere.
#[derive(Debug)]
pub(crate) struct Failures {
    started: Instant,
    /// Ports that are closed, and are to be opened again.
    closed: AtomicUsize,
    /// How often one was, and when last, in milliseconds since the start.
    count: AtomicU64,
    last: AtomicU64,
}

impl Failures {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            closed: AtomicUsize::new(0),
            count: AtomicU64::new(0),
            last: AtomicU64::new(0),
        }
    }

    pub(crate) fn close(&self) {
        let now = self.started.elapsed().as_millis() as u64;
        self.last.store(now, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn open(&self) {
        self.closed.fetch_sub(1, Ordering::Relaxed);
    }

    fn fault(&self, now: Duration) -> Option<String> {
        let count = self.count.load(Ordering::Relaxed);
        let since = now.saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)));
        if count == 0 || self.closed.load(Ordering::Relaxed) == 0 && since >= FAILED {
            return None;
        }
        Some(format!(
            "messages have held the frames of a lane's port without ending, or libfabric has failed: ports were closed and \
             opened again, {count} times so far. Have a firewall admit the other nodes only"
        ))
    }
}

/// Tells of them.
pub(crate) struct Ports(pub(crate) Arc<Failures>);

impl Health for Ports {
    fn fault(&self) -> Option<String> {
        self.0.fault(self.0.started.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: usize = 8;

    fn posted() -> Watch {
        let mut watch = Watch::new(FRAMES);
        (0..FRAMES).for_each(|frame| watch.post(frame));
        watch
    }

    fn later(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }

    #[test]
    fn who_receives_nothing_is_not_stuck() {
        let mut watch = posted();
        assert_eq!(watch.look(Instant::now()), Look::Fine);
        for round in 1..100 {
            let Look::Ask(frame) = watch.look(later(2 * round)) else {
                panic!("nothing has ended");
            };
            assert!(!watch.end(frame, true), "no message");
            watch.asked();
            watch.post(frame);
        }
    }

    #[test]
    fn who_receives_is_not_stuck() {
        let mut watch = posted();
        for round in 0..1000 {
            let frame = round % FRAMES;
            assert!(watch.end(frame, false));
            watch.post(frame);
            assert_eq!(watch.look(later(2 * round as u64 + 2)), Look::Fine);
        }
    }

    #[test]
    fn messages_that_have_all_frames_and_do_not_end_are_noticed() {
        let mut watch = posted();
        let Look::Ask(_) = watch.look(later(2)) else {
            panic!("nothing has ended");
        };
        watch.asked();
        assert_eq!(watch.look(later(4)), Look::Stuck(FRAMES as u64));
        watch.forget();
        assert_eq!(watch.posted().count(), 0);
        (0..FRAMES).for_each(|frame| watch.post(frame));
        assert!(matches!(watch.look(later(6)), Look::Ask(_)));
    }

    /// Some that end do not hide the others.
    #[test]
    fn messages_that_have_most_frames_and_do_not_end_are_noticed() {
        let mut watch = posted();
        let mut looks = Vec::new();
        for round in 0..4 {
            assert!(watch.end(FRAMES - 1, false));
            watch.post(FRAMES - 1);
            looks.push(watch.look(later(2 * round + 2)));
        }
        assert!(looks.contains(&Look::Stuck(FRAMES as u64 - 1)), "{looks:?}");
    }

    #[test]
    fn a_port_that_was_opened_again_has_failed_for_a_while() {
        let failures = Failures::new();
        let at = Duration::from_secs;
        assert_eq!(failures.fault(at(0)), None);
        failures.close();
        assert!(failures.fault(at(1000)).is_some(), "it is closed");
        failures.open();
        let fault = failures.fault(at(1)).expect("it may happen again");
        assert!(fault.contains("1 times"), "{fault}");
        assert_eq!(failures.fault(at(1000)), None);
    }
}
