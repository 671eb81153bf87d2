//! A schedule as an operator states it: the administrative parameters of a port, not yet checked.
//!
//! This is what the forms ([`crate::form`]) read and write, what [`crate::check`] explains and what
//! [`GateList::new`](crate::GateList::new) turns into a list that runs. Source: IEEE 802.1Q-2022,
//! clauses 8.6.9.4 (variables) and 12.29.1 (managed objects).

use std::fmt;

use takt_time::TaiTime;

use crate::gate::GateMask;
use crate::selection::Selection;

/// What a gate control entry does when its turn comes (IEEE 802.1Q-2022, table 8-7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GateOperation {
    /// `SetGateStates`: set the gates.
    #[default]
    Set,
    /// `Set-And-Hold-MAC`: set the gates and hold preemptible frames. Read and written by the forms;
    /// refused by [`GateList::new`](crate::GateList::new), because no datapath here preempts frames.
    SetAndHold,
    /// `Set-And-Release-MAC`: set the gates and release preemptible frames. As `SetAndHold`.
    SetAndRelease,
}

impl fmt::Display for GateOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Set => "set-gate-states",
            Self::SetAndHold => "set-and-hold-mac",
            Self::SetAndRelease => "set-and-release-mac",
        })
    }
}

/// One entry of a gate control list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GateEntry {
    /// What it does besides setting the gates.
    pub operation: GateOperation,
    /// The gates' states while it lasts.
    pub gates: GateMask,
    /// How long it lasts, nanoseconds.
    pub interval_ns: u32,
}

impl GateEntry {
    /// A `SetGateStates` entry.
    pub const fn new(gates: GateMask, interval_ns: u32) -> Self {
        Self {
            operation: GateOperation::Set,
            gates,
            interval_ns,
        }
    }
}

/// The administrative parameters of scheduled traffic on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// `GateEnabled`: whether gates work at all.
    pub enabled: bool,
    /// `AdminBaseTime`: an instant at which a cycle begins; cycles begin at every multiple of the
    /// cycle time from it.
    pub base_time: TaiTime,
    /// `AdminCycleTime`, nanoseconds.
    pub cycle_time_ns: u64,
    /// `AdminCycleTimeExtension`, nanoseconds: by how much the last cycle of this schedule may be
    /// stretched instead of beginning one more that would be cut.
    pub cycle_time_extension_ns: u64,
    /// `AdminGateStates`: the gates before the first cycle of the first schedule.
    pub initial_gates: GateMask,
    /// `AdminControlList`.
    pub entries: Vec<GateEntry>,
    /// `queueMaxSDU` per class, octets behind the MAC header; 0 means no limit but the MAC's own
    /// (clause 12.29.1.1.1).
    pub max_sdu: [u32; 8],
    /// How far the clock may be off for the schedule to make sense, nanoseconds; `None`: nothing is demanded.
    /// Not of the standard: it is Takt that refuses to install what the clock does not meet.
    pub require_sync_ns: Option<u64>,
    /// The transmission selection algorithm of each class (clause 12.20.2).
    pub selection: [Selection; 8],
}

impl Default for Schedule {
    /// Gates enabled and open, no entry, no cycle time.
    fn default() -> Self {
        Self {
            enabled: true,
            base_time: TaiTime::from_nanos(0),
            cycle_time_ns: 0,
            cycle_time_extension_ns: 0,
            initial_gates: GateMask::ALL,
            entries: Vec::new(),
            max_sdu: [0; 8],
            require_sync_ns: None,
            selection: [Selection::default(); 8],
        }
    }
}

impl Schedule {
    /// The sum of the entries' intervals, nanoseconds.
    pub fn entries_ns(&self) -> u64 {
        self.entries
            .iter()
            .map(|entry| u64::from(entry.interval_ns))
            .sum()
    }
}
