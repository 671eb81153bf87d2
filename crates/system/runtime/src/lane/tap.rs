//! Where a lane copies what passes for captures ([`crate::capture`]).

use std::cell::RefCell;
use std::net::IpAddr;
use std::ops::Range;

use takt_shm::SharedSlice;
use takt_time::TrafficClass;
use takt_wire::channel::{DatagramCursor, Protection, RecordHeader};

use super::remote::{Cut, Outgoing};
pub use crate::capture::Tap;
use crate::capture::{Direction, Head, MOST_CAPTURES, What};

/// The captures of a lane. One thread uses it; what it is called by borrows the rest of the lane.
pub(super) struct Taps {
    /// There is one: all that the usual way looks at.
    any: bool,
    list: RefCell<Vec<Tap>>,
}

impl Default for Taps {
    fn default() -> Self {
        Self {
            any: false,
            list: RefCell::new(Vec::with_capacity(MOST_CAPTURES)),
        }
    }
}

/// That something has passed: whose, when, which way, and who is at the other end.
pub(super) struct Passed<T> {
    tenants: T,
    at_ns: i64,
    direction: Direction,
    peer: Option<IpAddr>,
}

impl Passed<std::iter::Once<u32>> {
    /// What a tenant has sent.
    pub(super) fn out(tenant: u32, at_ns: i64, peer: Option<IpAddr>) -> Self {
        Self {
            tenants: std::iter::once(tenant),
            at_ns,
            direction: Direction::Out,
            peer,
        }
    }
}

impl<T: Iterator<Item = u32> + Clone> Passed<T> {
    /// What has come for tenants.
    pub(super) fn here(tenants: T, at_ns: i64, peer: Option<IpAddr>) -> Self {
        Self {
            tenants,
            at_ns,
            direction: Direction::In,
            peer,
        }
    }

    fn head(&self, tenant: u32, what: What, class: TrafficClass) -> Head {
        Head {
            at_ns: self.at_ns,
            tenant,
            direction: self.direction,
            what,
            class,
            peer: self.peer,
        }
    }
}

impl Taps {
    /// Whether anything is to be copied.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any
    }

    /// Copies for this one, too, from now on. There are at most [`MOST_CAPTURES`].
    pub(super) fn add(&mut self, tap: Tap) {
        self.list.get_mut().push(tap);
        self.any = true;
    }

    /// The one of a capture, if it is here.
    pub(super) fn remove(&mut self, capture: u64) -> Option<Tap> {
        let list = self.list.get_mut();
        let at = list.iter().position(|tap| tap.capture == capture)?;
        let tap = list.swap_remove(at);
        self.any = !list.is_empty();
        Some(tap)
    }

    /// A frame of a tenant.
    #[cold]
    pub(super) fn frame<T: Iterator<Item = u32> + Clone>(
        &self,
        passed: &Passed<T>,
        class: TrafficClass,
        frame: SharedSlice<'_>,
    ) {
        self.each(passed, What::Frame, class, |space| {
            let space = space.get_mut(..frame.len())?;
            frame.read_into(0, space).ok()?;
            Some(space.len())
        });
    }

    /// Fragments of a message that a tenant has sent. `own`: what its datagrams carry as sender.
    #[cold]
    pub(super) fn fragments<T: Iterator<Item = u32> + Clone>(
        &self,
        passed: &Passed<T>,
        own: u32,
        message: &Outgoing,
        payload: SharedSlice<'_>,
        cut: &Cut,
        fragments: Range<u32>,
    ) {
        for fragment in fragments {
            let record = message.record(payload.len() as u32, cut, fragment);
            let range = cut.part(fragment);
            let part = payload.sub(range.start, range.len());
            let of = (own, message.send_time_ns);
            self.record(passed, of, &record, |space| {
                part.as_ref().ok()?.read_into(0, space).ok()
            });
        }
    }

    /// A record of a channel. `of`: the sending lane, and when it took the message; `fill` gives the payload.
    #[cold]
    pub(super) fn record<T: Iterator<Item = u32> + Clone>(
        &self,
        passed: &Passed<T>,
        (sender, send_time_ns): (u32, i64),
        record: &RecordHeader,
        fill: impl Fn(&mut [u8]) -> Option<()>,
    ) {
        self.each(passed, What::Message, record.class, |space| {
            let mut cursor = DatagramCursor::new();
            fill(cursor.push(space, record)?)?;
            Some(cursor.finish(space, Protection::None, sender, send_time_ns, 0))
        });
    }

    /// Counts something that has passed and cannot be copied any more.
    #[cold]
    pub(super) fn lose<T: Iterator<Item = u32> + Clone>(&self, passed: &Passed<T>) {
        let taps = self.list.borrow();
        let wanted = |tap: &&Tap| tap.wants(passed.tenants.clone()).is_some();
        taps.iter().filter(wanted).for_each(Tap::lose);
    }

    fn each<T: Iterator<Item = u32> + Clone>(
        &self,
        passed: &Passed<T>,
        what: What,
        class: TrafficClass,
        write: impl Fn(&mut [u8]) -> Option<usize>,
    ) {
        for tap in self.list.borrow_mut().iter_mut() {
            if let Some(tenant) = tap.wants(passed.tenants.clone()) {
                tap.copy(&passed.head(tenant, what, class), |space| {
                    write(space).unwrap_or(0)
                });
            }
        }
    }
}
