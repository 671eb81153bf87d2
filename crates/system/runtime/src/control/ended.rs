//! What tenants had counted by sessions that have ended. Tenants come and go, as pods do: it is kept for as long as somebody looks.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use crate::counters::SessionReading;

/// How long it is kept of a tenant that has neither a listener nor a session any more: many times what metrics are asked for.
const KEPT: Duration = Duration::from_secs(600);

/// Of one tenant.
#[derive(Debug, Default)]
pub struct OfTenant {
    /// How many sessions have ended.
    pub sessions: u64,
    /// What they counted.
    pub counters: SessionReading,
    /// When the tenant was there last.
    last: Duration,
}

/// By the tenant's identity.
#[derive(Debug, Default)]
pub struct Ended(BTreeMap<String, OfTenant>);

impl Ended {
    /// A session has ended.
    pub fn note(&mut self, identity: &str, counters: SessionReading, now: Duration) {
        let tenant = self.0.entry(identity.to_owned()).or_default();
        tenant.sessions += 1;
        tenant.counters += counters;
        tenant.last = now;
    }

    /// One that was not there comes: what another of its name had counted is not its own, as that of a pod that is made anew.
    pub fn begin(&mut self, identity: &str) {
        self.0.remove(identity);
    }

    /// Forgets tenants that have not been there for long.
    pub fn forget<'a>(&mut self, now: Duration, there: impl FnOnce() -> HashSet<&'a str>) {
        if self.0.values().all(|tenant| now < tenant.last + KEPT) {
            return;
        }
        let there = there();
        self.0.retain(|identity, tenant| {
            if there.contains(identity.as_str()) {
                tenant.last = now;
            }
            now < tenant.last + KEPT
        });
    }

    /// All of them, by identity.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &OfTenant)> {
        let all = self.0.iter();
        all.map(|(identity, tenant)| (identity.as_str(), tenant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_gone_is_forgotten_after_a_while_and_who_is_there_is_not() {
        let mut ended = Ended::default();
        let second = Duration::from_secs(1);
        for identity in ["press", "pod-1"] {
            ended.note(identity, SessionReading::default(), second);
        }
        let names = |ended: &Ended| -> Vec<String> {
            ended
                .iter()
                .map(|(identity, _)| identity.to_owned())
                .collect()
        };
        ended.forget(KEPT, || unreachable!("nobody has gone for so long"));
        assert_eq!(names(&ended), ["pod-1", "press"]);
        ended.forget(KEPT + second, || HashSet::from(["press"]));
        assert_eq!(names(&ended), ["press"]);
        // It counts from when it was there last.
        ended.forget(2 * KEPT, HashSet::new);
        assert_eq!(names(&ended), ["press"]);
        ended.forget(2 * KEPT + second, HashSet::new);
        assert!(names(&ended).is_empty());
    }
}
