//! Admission: the declared streams of all tenants beside each other in the windows of each schedule.
//!
//! A program chooses the datapath of its messages, so a stream has to fit every link with a schedule. Checked where
//! either changes: a listener that does not fit is not set, a schedule that does not fit is not installed.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use takt_datapath::DatapathKind;
use takt_schedule::admission::{Talker, admit};

use super::listener::FIRST_WITHOUT;
use super::session::Finish;
use super::{CONTROL_THREAD, Control};
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

/// Checks the streams of tenants beside each other. `guard_ns`: what the port's scheduler leaves of a window. `asks`: the
/// place of the tenant that asks for streams beside those of the others, whose names are not for it.
///
/// # Errors
/// [`StreamsMisfit`].
pub fn check<'a>(
    asked: &LinkSchedule,
    guard_ns: u64,
    asks: Option<usize>,
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
    let named = |at: usize| asks.is_none_or(|asks| names[at].2.0 == asks);
    let (told, others): (Vec<_>, Vec<_>) = misfits.into_iter().partition(|(at, _)| named(*at));
    let (told, about_others) = match (told.is_empty(), others.is_empty()) {
        (true, true) => return Ok(()),
        (true, false) => (others, true),
        (false, _) => (told, false),
    };
    let (.., first) = names[told[0].0];
    let lines = told.iter().take(MOST_TOLD).map(|(at, misfit)| {
        let (tenant, stream, _) = names[*at];
        match about_others {
            true => {
                format!("a stream that another tenant has declared would lose its place: {misfit}")
            }
            false => format!("stream `{stream}` of tenant `{tenant}`: {misfit}"),
        }
    });
    let mut reasons: Vec<String> = lines.collect();
    if let Some(more @ 1..) = told.len().checked_sub(MOST_TOLD) {
        reasons.push(format!("and {more} more"));
    }
    Err(StreamsMisfit {
        datapath: asked.datapath.clone(),
        reasons: reasons.join("; "),
        first,
    })
}

/// Streams of tenants beside each other on a link with a schedule, still to be checked: what many launch times take
/// is for who asks, not for the control thread.
pub(super) struct Check {
    asked: LinkSchedule,
    guard_ns: u64,
    /// The last one asks.
    asked_by_last: bool,
    tenants: Vec<Arc<Policy>>,
}

impl Check {
    /// # Errors
    /// [`StreamsMisfit`].
    pub(super) fn run(&self) -> Result<(), StreamsMisfit> {
        debug_assert_ne!(std::thread::current().name(), Some(CONTROL_THREAD));
        let tenants = self.tenants.iter().map(|policy| &**policy);
        let asks = self.asked_by_last.then(|| self.tenants.len() - 1);
        check(&self.asked, self.guard_ns, asks, tenants)
    }
}

impl Control {
    /// What has to hold for a tenant's streams; `listener`: the path of its listener, whose present streams go; `from`: that
    /// of one from which streams of the same names go.
    pub(super) fn checks_of_streams(
        &mut self,
        policy: &Policy,
        listener: Option<&Path>,
        from: Option<&Path>,
    ) -> Vec<Check> {
        if policy.streams.is_empty() {
            return Vec::new();
        }
        let mut tenants = self.with_streams(listener);
        if let Some(from) = from.filter(|_| listener != from) {
            let at = |tenant: &&mut Arc<Policy>| {
                let there = self.listeners.values().find(|l| l.config.path == from);
                there.is_some_and(|there| Arc::ptr_eq(&there.policy, tenant))
            };
            if let Some(tenant) = tenants.iter_mut().find(at) {
                *tenant = Arc::new(tenant.without_streams_of(policy));
            }
        }
        // By no listener: the same as before, as far as there are sessions of it.
        let mut sessions = self.sessions.values();
        let known = sessions.any(|session| {
            session.tenant >= FIRST_WITHOUT
                && !matches!(session.finish, Finish::Done(_))
                && *session.policy == *policy
        });
        if listener.is_none() && known {
            return Vec::new();
        }
        tenants.push(Arc::new(policy.clone()));
        let schedules = self.installed_schedules().into_iter();
        schedules
            .map(|asked| Check {
                guard_ns: self.guard_of(&asked.datapath),
                asked,
                asked_by_last: true,
                tenants: tenants.clone(),
            })
            .collect()
    }

    /// What has to hold for a schedule.
    pub(super) fn check_of_schedule(&self, asked: LinkSchedule) -> Check {
        Check {
            guard_ns: self.guard_of(&asked.datapath),
            asked,
            asked_by_last: false,
            tenants: self.with_streams(None),
        }
    }

    /// The tenants with streams, but for the one of a listener.
    fn with_streams(&self, but: Option<&Path>) -> Vec<Arc<Policy>> {
        let listeners = self.listeners.values();
        let others = listeners.filter(|listener| but != Some(&*listener.config.path));
        let mut tenants: Vec<_> = others.map(|listener| listener.policy.clone()).collect();
        // Each tenant without a listener once, whatever sessions it has: who came by none, and who goes on after its own was
        // removed. One that has ended and only reads on sends nothing.
        let mut seen = BTreeSet::new();
        let sessions = self.sessions.values();
        let without = sessions.filter(|session| {
            !self.listeners.contains_key(&session.tenant)
                && !matches!(session.finish, Finish::Done(_))
                && seen.insert(session.tenant)
        });
        tenants.extend(without.map(|session| session.policy.clone()));
        tenants.retain(|policy| !policy.streams.is_empty());
        tenants
    }

    fn guard_of(&self, datapath: &str) -> u64 {
        let kind = self.kind_of(datapath);
        kind.map_or(0, |kind| self.guard_ns(kind))
    }

    /// What the scheduler of a datapath's ports leaves of each window.
    fn guard_ns(&self, kind: DatapathKind) -> u64 {
        let found = self.datapaths.iter().find(|(known, _)| *known == kind);
        let kept = found.is_some_and(|(_, capabilities)| capabilities.hardware_launch_time);
        departure::guard_ns(kept && self.clock.is_the_kernels())
    }
}
