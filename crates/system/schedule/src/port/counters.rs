//! What became of the frames of a class. Every frame offered is in exactly one place.

use serde::Serialize;

use super::frame::{DropReason, RefusalReason};

/// Frames that were not taken, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RefusalCounters {
    /// The queue was full.
    pub full: u64,
    /// Longer than `queueMaxSDU`.
    pub oversize: u64,
    /// No window was long enough.
    pub no_window: u64,
    /// No launch time where one is needed.
    pub no_launch_time: u64,
    /// The other kind of launch time.
    pub mode: u64,
    /// The launch time had passed.
    pub late: u64,
    /// The launch time was too far ahead.
    pub too_far_ahead: u64,
}

impl RefusalCounters {
    pub(super) fn count(&mut self, reason: RefusalReason) {
        *match reason {
            RefusalReason::Full => &mut self.full,
            RefusalReason::Oversize => &mut self.oversize,
            RefusalReason::NoWindow => &mut self.no_window,
            RefusalReason::NoLaunchTime => &mut self.no_launch_time,
            RefusalReason::Mode => &mut self.mode,
            RefusalReason::Late => &mut self.late,
            RefusalReason::TooFarAhead => &mut self.too_far_ahead,
        } += 1;
    }

    /// All of them.
    pub const fn total(&self) -> u64 {
        self.full
            + self.oversize
            + self.no_window
            + self.no_launch_time
            + self.mode
            + self.late
            + self.too_far_ahead
    }
}

/// Frames that were taken and not sent, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DropCounters {
    /// Too late for the launch time.
    pub late: u64,
    /// The gate was closed at the launch time.
    pub gate_missed: u64,
    /// No window was long enough any more.
    pub no_window: u64,
    /// Longer than `queueMaxSDU`.
    pub oversize: u64,
    /// Taken back by the caller.
    pub removed: u64,
}

impl DropCounters {
    pub(super) fn count(&mut self, reason: DropReason) {
        *match reason {
            DropReason::Late => &mut self.late,
            DropReason::GateMissed => &mut self.gate_missed,
            DropReason::NoWindow => &mut self.no_window,
            DropReason::Oversize => &mut self.oversize,
        } += 1;
    }

    /// All of them.
    pub const fn total(&self) -> u64 {
        self.late + self.gate_missed + self.no_window + self.oversize + self.removed
    }
}

/// What became of the frames of a class:
/// `offered = refused + sent + dropped + queued`, always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClassCounters {
    /// Frames that callers wanted to enqueue.
    pub offered: u64,
    /// Frames sent.
    pub sent: u64,
    /// Their octets, without what the medium adds.
    pub sent_octets: u64,
    /// Frames refused.
    pub refused: RefusalCounters,
    /// Frames dropped.
    pub dropped: DropCounters,
    /// Of those sent: later than tolerated, because the lane or the link was busy.
    pub sent_late: u64,
    /// Of those sent: later than tolerated, because the gate was closed.
    pub sent_gate_missed: u64,
    /// Of those sent: still on the wire when the gate closed (`TransmissionOverrun`).
    pub overruns: u64,
    /// Of those taken: had a launch time that the class's discipline does not know.
    pub launch_ignored: u64,
}

impl ClassCounters {
    /// Frames that were late in any way: refused, dropped or sent so.
    pub const fn late(&self) -> u64 {
        self.refused.late + self.dropped.late + self.sent_late
    }

    /// Frames that missed their gate: dropped or sent so.
    pub const fn gate_missed(&self) -> u64 {
        self.dropped.gate_missed + self.sent_gate_missed
    }

    /// Frames that must be queued for nothing to be lost.
    pub const fn expected_queued(&self) -> u64 {
        self.offered - self.refused.total() - self.sent - self.dropped.total()
    }
}
