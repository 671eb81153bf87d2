//! Bundles that leave at once: their packets wait where it is decided, until those before them are done.
//!
//! With the guards of [`Table::steer`] a bundle whose packets never pause stays on an overloaded target. Here its packets
//! go there no more from the moment that it is to leave; once the target has told that every packet of the bundle is done, those
//! that were parked go on, in their order, to where is best then. So no flow is reordered, whatever the latencies are, and δ
//! is not needed.
//!
//! A target has to tell of each packet, or of the bundle's last one, and packets that are lost are to be told as done, too: of
//! a neighbour that is dead, when none of them can arrive any more.

use std::collections::VecDeque;

use crate::Refused;
use crate::resource::Resources;
use crate::table::{Table, Target};

#[derive(Clone, Debug)]
struct Parked<P> {
    /// Packets that were sent on and are not told as done.
    under_way: u32,
    waiting: VecDeque<P>,
    /// How many of those that wait are counted as kept: all but the last ones.
    counted: usize,
}

/// The packets of a table's bundles that wait.
#[derive(Clone, Debug)]
pub struct Park<P> {
    bundles: Box<[Parked<P>]>,
    room: usize,
    kept: u64,
}

impl<P> Park<P> {
    /// Nothing waits. Of each bundle `room` packets may.
    pub fn new(table: &Table, room: usize) -> Self {
        let bundle = || Parked {
            under_way: 0,
            waiting: VecDeque::new(),
            counted: 0,
        };
        Self {
            bundles: (0..table.count()).map(|_| bundle()).collect(),
            room,
            kept: 0,
        }
    }

    /// How many packets did not go on at once.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Takes a packet of a bundle, to go on with [`next`](Self::next).
    ///
    /// # Errors
    /// The packet, if there is no room for it, or no such bundle.
    pub fn push(&mut self, bundle: u32, packet: P) -> Result<(), P> {
        match self.bundles.get_mut(bundle as usize) {
            Some(of) if of.waiting.len() < self.room => {
                of.waiting.push_back(packet);
                Ok(())
            }
            _ => Err(packet),
        }
    }

    /// The next packet of a bundle that may go on, and where to. To be asked until there is none, after each
    /// [`push`](Self::push) and each [`done`](Self::done).
    ///
    /// # Errors
    /// [`Refused`], if the table is not of these resources.
    pub fn next(
        &mut self,
        bundle: u32,
        table: &mut Table,
        now_ns: i64,
        resources: &Resources,
    ) -> Result<Option<(P, Target)>, Refused> {
        let Some(of) = self.bundles.get_mut(bundle as usize) else {
            return Ok(None);
        };
        if of.waiting.is_empty() {
            return Ok(None);
        }
        let (current, wanted) = (
            table.target(bundle),
            table.advise(bundle, now_ns, resources),
        );
        let target = match (current, wanted) {
            (Some(current), None) => current,
            (_, Some(wanted)) if of.under_way == 0 => {
                table.moved(bundle, wanted, resources)?;
                wanted
            }
            _ => {
                self.kept += (of.waiting.len() - of.counted) as u64;
                of.counted = of.waiting.len();
                return Ok(None);
            }
        };
        of.under_way += 1;
        of.counted = of.counted.saturating_sub(1);
        Ok(of.waiting.pop_front().map(|packet| (packet, target)))
    }

    /// A packet of a bundle that was sent on is done, or lost.
    pub fn done(&mut self, bundle: u32) {
        if let Some(of) = self.bundles.get_mut(bundle as usize) {
            of.under_way = of.under_way.saturating_sub(1);
        }
    }
}
