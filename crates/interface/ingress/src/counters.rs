//! What is counted of a pod's packets: by the programs, and by the process behind them.

use std::sync::atomic::{AtomicU64, Ordering};

use takt::Outcome;
use takt::unserved;

/// Names of what the program that takes counts, in the order of `enum counter` of `bpf/takt_veth.bpf.c`.
pub(crate) const PROGRAM_COUNTERS: [&str; 8] = [
    "taken",
    "untimed",
    "segmented",
    "too-long",
    "no-room",
    "other-taken",
    "other-passed",
    "other-dropped",
];
/// Where those of them begin that are of what has no launch time and is taken as well.
pub(crate) const OTHERS: usize = 5;
/// Where in them is what has a launch time and was passed on, with the reason that the runtime is told
/// ([`unserved::NAMES`]).
pub(crate) const PASSED: [(usize, &str); 3] =
    [(2, "socket-option"), (3, "malformed"), (4, "no-runtime")];

/// Names of what the program at the pod's end counts, in the order of `enum realtime` there.
pub(crate) const REALTIME_COUNTERS: [&str; 2] = ["realtime", "realtime-not-ip"];

/// Names of what the process counts of frames without a launch time, in the order of its map, where they are behind
/// [`READER_COUNTERS`].
pub(crate) const OTHER_COUNTERS: [&str; 4] = [
    "other-sent",
    "other-refused",
    "other-lost",
    "other-returned",
];
/// The place in the map, behind both, that says whether those are taken, and what it says then.
pub(crate) const TAKES_OTHERS: usize = READER_COUNTERS.len() + OTHER_COUNTERS.len();
pub(crate) const ALL: u64 = 1;
pub(crate) const ALL_BUT_TCP: u64 = 2;

/// Names of what the process counts, in the order of its map.
pub(crate) const READER_COUNTERS: [&str; 13] = [
    "sent",
    "late",
    "not-scheduled",
    "refused",
    "unreachable",
    "lost",
    "no-runtime",
    "foreign-source-address",
    "station-out-of-reach",
    "foreign-frame",
    "malformed",
    "vlan-tag",
    "given-back",
];
/// Where the reasons for which the runtime was not given a frame begin, and end.
const REASONS: std::ops::Range<usize> = 6..12;

/// Why the runtime was not given a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unserved {
    Runtime,
    Source,
    Station,
    Kind,
    Malformed,
    Tag,
}

/// What the process counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    counts: [u64; READER_COUNTERS.len()],
    /// Of the programs' and ours, what the runtime has been told.
    told: unserved::Counts,
}

impl Counters {
    /// What became of a frame that the runtime was given.
    pub(crate) fn outcome(&mut self, outcome: Outcome) {
        let at = match outcome {
            Outcome::Sent => 0,
            Outcome::Late => 1,
            Outcome::NotScheduled => 2,
            Outcome::Refused => 3,
            // Frames are never reliable.
            Outcome::Unreachable | Outcome::NoSink | Outcome::Undelivered => 4,
            Outcome::Lost | Outcome::Unknown => 5,
            Outcome::Pending => return,
        };
        self.counts[at] += 1;
    }

    /// A frame that the runtime was not given.
    pub(crate) fn unserved(&mut self, why: Unserved) {
        self.counts[REASONS.start + why as usize] += 1;
    }

    /// A frame that went the kernel's way after all.
    pub(crate) fn given_back(&mut self) {
        self.counts[REASONS.end] += 1;
    }

    /// In the order of [`READER_COUNTERS`].
    pub(crate) fn all(&self) -> &[u64] {
        &self.counts
    }

    /// What the runtime is to be told, and what it will then have been told; `program`: what the program that takes has counted.
    pub(crate) fn news(&self, program: &[u64]) -> (unserved::Counts, unserved::Counts) {
        let mut all = unserved::Counts::default();
        let ours = REASONS.map(|at| (READER_COUNTERS[at], self.counts[at]));
        let programs = PASSED.map(|(at, name)| (name, program.get(at).copied().unwrap_or(0)));
        for (name, count) in ours.chain(programs) {
            if let Some(at) = unserved::NAMES.iter().position(|other| *other == name) {
                all[at] += count;
            }
        }
        let more = std::array::from_fn(|at| all[at] - self.told[at].min(all[at]));
        (more, all)
    }

    /// Whether there is something of ours that the runtime has not been told.
    pub(crate) fn has_news(&self) -> bool {
        self.news(&[]).0.iter().any(|count| *count > 0)
    }

    /// It has been told.
    pub(crate) fn told(&mut self, all: unserved::Counts) {
        self.told = all;
    }
}

/// What the process counts of frames without a launch time.
#[derive(Debug, Default)]
pub(crate) struct OtherCounters([AtomicU64; OTHER_COUNTERS.len()]);

impl OtherCounters {
    fn count(&self, at: usize) {
        self.0[at].fetch_add(1, Ordering::Relaxed);
    }

    /// What became of a frame that the runtime was given.
    pub(crate) fn outcome(&self, outcome: Outcome) {
        match outcome {
            Outcome::Sent | Outcome::Late => self.count(0),
            Outcome::NotScheduled | Outcome::Refused => self.count(1),
            Outcome::Unreachable
            | Outcome::NoSink
            | Outcome::Undelivered
            | Outcome::Lost
            | Outcome::Unknown => self.lost(),
            Outcome::Pending => {}
        }
    }

    /// A frame that went nowhere.
    pub(crate) fn lost(&self) {
        self.count(2);
    }

    /// One that went the kernel's way after all.
    pub(crate) fn returned(&self) {
        self.count(3);
    }

    /// In the order of [`OTHER_COUNTERS`].
    pub(crate) fn all(&self) -> [u64; OTHER_COUNTERS.len()] {
        std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_is_told_of_each_once_by_the_names_of_its_protocol() {
        let mut counters = Counters::default();
        counters.unserved(Unserved::Source);
        counters.unserved(Unserved::Malformed);
        counters.unserved(Unserved::Tag);
        let program = [100, 100, 2, 3, 4];
        let (more, all) = counters.news(&program);
        let named: Vec<_> = unserved::NAMES
            .into_iter()
            .zip(more)
            .filter(|(_, count)| *count > 0)
            .collect();
        let expected = [
            ("no-runtime", 4),
            ("foreign-source-address", 1),
            ("socket-option", 2),
            ("vlan-tag", 1),
            ("malformed", 4),
        ];
        assert_eq!(named, expected);
        counters.told(all);
        assert_eq!(counters.news(&program).0, unserved::Counts::default());
        for at in REASONS {
            assert!(unserved::NAMES.contains(&READER_COUNTERS[at]));
        }
        for (_, name) in PASSED {
            assert!(unserved::NAMES.contains(&name));
        }
    }
}
