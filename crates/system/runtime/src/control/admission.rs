//! Admission: the declared streams of all tenants beside each other in the windows of each schedule.
//!
//! A program chooses the datapath of its messages, so a stream has to fit every link with a schedule. Checked where
//! either changes: a listener that does not fit is not set, a schedule that does not fit is not installed.

use takt_datapath::DatapathKind;
use takt_schedule::admission::{Talker, admit};

use super::Control;
use crate::config::LinkSchedule;
use crate::lane::departure;
use crate::policy::Policy;

/// What is told of at most so many streams that do not fit.
const MOST_TOLD: usize = 8;

/// Streams that do not fit a schedule: a line of reasons.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("declared streams do not fit the schedule of datapath `{datapath}`: {reasons}")]
pub struct StreamsMisfit {
    /// The datapath.
    pub datapath: String,
    /// Which, and why, with what would help.
    pub reasons: String,
    /// The first of them: the tenant's place and the stream's.
    pub first: (usize, usize),
}

/// Checks the streams of tenants beside each other. `guard_ns`: what the port's scheduler leaves of a window.
///
/// # Errors
/// [`StreamsMisfit`].
pub fn check<'a>(
    asked: &LinkSchedule,
    guard_ns: u64,
    tenants: impl Iterator<Item = &'a Policy>,
) -> Result<(), StreamsMisfit> {
    let mut names = Vec::new();
    let mut talkers: Vec<Talker> = Vec::new();
    for (tenant, policy) in tenants.enumerate() {
        for (at, stream) in policy.streams.iter().enumerate() {
            names.push((policy.identity.as_str(), stream.name.as_str(), (tenant, at)));
            talkers.push(stream.talker.clone());
        }
    }
    let misfits = admit(
        &asked.schedule,
        &asked.classes,
        &asked.link(),
        guard_ns,
        &talkers,
    );
    let Some((first, _)) = misfits.first() else {
        return Ok(());
    };
    let (.., first) = names[*first];
    let told = misfits.iter().take(MOST_TOLD).map(|(at, misfit)| {
        let (tenant, stream, _) = names[*at];
        format!("stream `{stream}` of tenant `{tenant}`: {misfit}")
    });
    let mut reasons: Vec<String> = told.collect();
    if let Some(more @ 1..) = misfits.len().checked_sub(MOST_TOLD) {
        reasons.push(format!("and {more} more"));
    }
    Err(StreamsMisfit {
        datapath: asked.datapath.clone(),
        reasons: reasons.join("; "),
        first,
    })
}

impl Control {
    /// What the scheduler of a datapath's ports leaves of each window.
    pub(super) fn guard_ns(&self, kind: DatapathKind) -> u64 {
        let found = self.datapaths.iter().find(|(known, _)| *known == kind);
        let kept = found.is_some_and(|(_, capabilities)| capabilities.hardware_launch_time);
        departure::guard_ns(kept && self.clock.is_the_kernels())
    }
}
