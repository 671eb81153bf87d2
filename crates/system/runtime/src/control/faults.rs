//! Datapaths that fail while the node runs, and work again. Where their streams go, says [`mapping`](super::mapping).
//!
//! One that has failed is left at once. One that works again is returned to when it has worked for a while: streams do
//! not flap with a link.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use takt_datapath::{Datapath, DatapathKind, Health};

use super::Control;
use crate::lane::Command;
use crate::peering::Effects;
use crate::peering::message::Outage;

/// How often those are asked that do not tell.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Between two reasons for the same failure that are told.
const RETELL_EVERY: Duration = Duration::from_secs(10);

/// Where a datapath stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Works,
    /// Nothing passes it, and why.
    Failed(String),
    /// It works again since then; why it did not.
    Returns(Duration, String),
}

impl State {
    /// The state after a look at `now`, which found this.
    fn next(&self, fault: Option<String>, now: Duration, hold_down: Duration) -> Self {
        match (self, fault) {
            (_, Some(why)) => Self::Failed(why),
            (Self::Works, None) => Self::Works,
            (Self::Failed(why), None) if !hold_down.is_zero() => Self::Returns(now, why.clone()),
            (Self::Failed(_), None) => Self::Works,
            (Self::Returns(since, _), None) if now >= *since + hold_down => Self::Works,
            (Self::Returns(..), None) => self.clone(),
        }
    }
}

struct Watched {
    kind: DatapathKind,
    health: Box<dyn Health>,
    state: State,
    /// How often it has failed.
    failures: u64,
    /// When another reason for the same failure was told last.
    retold: Option<Duration>,
}

/// The datapaths of a node that may fail.
pub(super) struct Faults {
    watched: Vec<Watched>,
    /// Set by who tells of a change, who then wakes the control thread.
    changed: Arc<AtomicBool>,
    next: Duration,
}

impl Faults {
    /// Watches the datapaths. `wake` wakes the control thread.
    pub(super) fn watch<'a>(
        datapaths: impl Iterator<Item = &'a Arc<dyn Datapath>>,
        wake: &Arc<OwnedFd>,
    ) -> Self {
        let changed = Arc::new(AtomicBool::new(false));
        let watch = |datapath: &Arc<dyn Datapath>| {
            let (changed, wake) = (changed.clone(), wake.clone());
            let health = datapath.health(Box::new(move || {
                // Pairs with the Acquire swap in `due`.
                changed.store(true, Ordering::Release);
                // EAGAIN: the counter is full, so it is awake.
                let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
            }))?;
            Some(Watched {
                kind: datapath.kind(),
                health,
                state: State::Works,
                failures: 0,
                retold: None,
            })
        };
        Self {
            watched: datapaths.filter_map(watch).collect(),
            changed,
            next: Duration::ZERO,
        }
    }

    /// Whether to look again.
    fn due(&self, now: Duration) -> bool {
        // Pairs with the Release store of the notice.
        let told = self.changed.swap(false, Ordering::Acquire);
        (told || now >= self.next) && !self.watched.is_empty()
    }

    /// Looks at all. True: a state is another than before.
    fn look(&mut self, now: Duration, hold_down: Duration) -> bool {
        self.next = now + LOOK_EVERY;
        let mut changed = false;
        for watched in &mut self.watched {
            let state = watched.state.next(watched.health.fault(), now, hold_down);
            if let State::Returns(since, _) = state {
                self.next = self.next.min(since + hold_down);
            }
            if state == watched.state {
                continue;
            }
            if std::mem::discriminant(&state) == std::mem::discriminant(&watched.state) {
                // Said in other words, which may differ each time: all streams are told.
                if watched.retold.is_some_and(|at| now < at + RETELL_EVERY) {
                    continue;
                }
                watched.retold = Some(now);
            }
            changed = true;
            let datapath = watched.kind;
            match (&watched.state, &state) {
                (State::Works, State::Failed(why)) => {
                    tracing::warn!(%datapath, %why, "a datapath has failed: its streams move to others");
                }
                (_, State::Works) => {
                    tracing::info!(%datapath, failures = watched.failures, "a datapath works again: its streams return");
                }
                // Links that flap do not fill the log: the count tells.
                _ => {}
            }
            let failed = |state: &State| matches!(state, State::Failed(_));
            watched.failures += u64::from(failed(&state) && !failed(&watched.state));
            watched.state = state;
        }
        changed
    }

    fn of(&self, kind: DatapathKind) -> Option<&Watched> {
        self.watched.iter().find(|watched| watched.kind == kind)
    }

    /// Why streams do not get a datapath at present. Those that have it and no other get it as soon as it works again.
    pub(super) fn fault(&self, kind: DatapathKind, explicit: bool) -> Option<String> {
        match &self.of(kind)?.state {
            State::Works => None,
            State::Failed(why) => Some(why.clone()),
            State::Returns(..) if explicit => None,
            State::Returns(_, why) => Some(format!(
                "it works again, and has not for long: streams return if it goes on to (it has failed: {why})"
            )),
        }
    }

    /// Those that streams do not get at present, for peers.
    fn outages(&self) -> Vec<Outage> {
        let outage = |watched: &Watched| {
            let returns = match watched.state {
                State::Works => return None,
                State::Failed(_) => false,
                State::Returns(..) => true,
            };
            Some(Outage {
                datapath: watched.kind.to_string(),
                returns,
            })
        };
        self.watched.iter().filter_map(outage).collect()
    }

    /// How often a datapath has failed.
    pub(super) fn failures(&self, kind: DatapathKind) -> u64 {
        self.of(kind).map_or(0, |watched| watched.failures)
    }
}

impl Control {
    /// Looks whether datapaths work, when that is due, and maps their streams anew where that has changed.
    pub(super) fn look_at_datapaths(&mut self) {
        let now = self.now();
        if self.faults.due(now) && self.faults.look(now, self.config.mapping.hold_down) {
            self.map_again();
            for lane in &self.lanes {
                // It wakes the lane, too: one that works again may have something for its ports.
                lane.handle.send(Command::ReconnectNetworks);
            }
            let mut effects = Effects::default();
            let failed = self.faults.outages();
            self.peering.set_failed(failed, &mut effects);
            self.apply(effects);
        }
        if !self.faults.watched.is_empty() {
            self.next_tick = self.next_tick.min(self.faults.next);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Fails as it is told.
    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Option<&'static str>>>);

    impl Health for Told {
        fn fault(&self) -> Option<String> {
            self.0.lock().expect("no panic").map(str::to_owned)
        }
    }

    const HOLD_DOWN: Duration = Duration::from_secs(3);
    const KIND: DatapathKind = DatapathKind("xdp");

    fn watched() -> (Told, Faults) {
        let told = Told::default();
        let faults = Faults {
            watched: vec![Watched {
                kind: KIND,
                health: Box::new(told.clone()),
                state: State::Works,
                failures: 0,
                retold: None,
            }],
            changed: Arc::default(),
            next: Duration::ZERO,
        };
        (told, faults)
    }

    fn tell(told: &Told, fault: Option<&'static str>) {
        *told.0.lock().expect("no panic") = fault;
    }

    #[test]
    fn a_datapath_that_fails_is_left_at_once_and_returned_to_when_it_has_worked_for_a_while() {
        let (told, mut faults) = watched();
        let at = Duration::from_millis;
        assert!(!faults.look(at(0), HOLD_DOWN));
        tell(&told, Some("down"));
        assert!(faults.look(at(10), HOLD_DOWN));
        assert_eq!(faults.fault(KIND, false).as_deref(), Some("down"));
        assert_eq!(faults.fault(KIND, true).as_deref(), Some("down"));
        tell(&told, None);
        assert!(faults.look(at(20), HOLD_DOWN));
        let why = faults.fault(KIND, false).expect("not yet");
        assert!(
            why.contains("it works again") && why.contains("down"),
            "{why}"
        );
        assert_eq!(faults.fault(KIND, true), None, "it has no other");
        assert!(!faults.look(at(3019), HOLD_DOWN));
        assert_eq!(faults.next, at(3020), "looked at when it is over");
        assert!(faults.look(at(3020), HOLD_DOWN));
        assert_eq!(faults.fault(KIND, false), None);
        assert_eq!(faults.failures(KIND), 1);
    }

    #[test]
    fn a_link_that_flaps_is_not_returned_to_and_each_failure_counts() {
        let (told, mut faults) = watched();
        for second in 0..20 {
            tell(&told, (second % 2 == 0).then_some("down"));
            faults.look(Duration::from_secs(second), HOLD_DOWN);
            assert!(faults.fault(KIND, false).is_some(), "second {second}");
        }
        assert_eq!(faults.failures(KIND), 10);
        assert!(!faults.look(Duration::from_secs(21), HOLD_DOWN));
        assert!(faults.look(Duration::from_secs(22), HOLD_DOWN));
        assert_eq!(faults.fault(KIND, false), None);
    }

    #[test]
    fn without_a_hold_down_a_datapath_is_returned_to_as_soon_as_it_works() {
        let (told, mut faults) = watched();
        let at = Duration::from_millis;
        tell(&told, Some("down"));
        assert!(faults.look(at(0), Duration::ZERO));
        tell(&told, None);
        assert!(faults.look(at(1), Duration::ZERO));
        assert_eq!(faults.fault(KIND, false), None);
        // A shorter one counts for what waits already.
        tell(&told, Some("down"));
        faults.look(at(2), HOLD_DOWN);
        tell(&told, None);
        faults.look(at(3), HOLD_DOWN);
        assert!(faults.fault(KIND, false).is_some());
        assert!(faults.look(at(4), Duration::ZERO));
        assert_eq!(faults.fault(KIND, false), None);
    }

    #[test]
    fn another_reason_for_the_same_failure_is_told_and_does_not_count() {
        let (told, mut faults) = watched();
        tell(&told, Some("down"));
        faults.look(Duration::ZERO, HOLD_DOWN);
        tell(&told, Some("gone"));
        assert!(faults.look(LOOK_EVERY, HOLD_DOWN));
        assert_eq!(faults.fault(KIND, false).as_deref(), Some("gone"));
        assert_eq!(faults.failures(KIND), 1);
        // Not each time: all streams are told.
        tell(&told, Some("gone for long"));
        assert!(!faults.look(2 * LOOK_EVERY, HOLD_DOWN));
        assert!(faults.look(LOOK_EVERY + RETELL_EVERY, HOLD_DOWN));
        let longer = faults.fault(KIND, false);
        assert_eq!(longer.as_deref(), Some("gone for long"));
    }

    #[test]
    fn each_of_several_datapaths_fails_by_itself_and_peers_are_told_which() {
        let (first, mut faults) = watched();
        let (second, more) = watched();
        faults
            .watched
            .extend(more.watched.into_iter().map(|of| Watched {
                kind: DatapathKind("udp"),
                ..of
            }));
        let outage = |datapath: &str, returns| Outage {
            datapath: datapath.into(),
            returns,
        };
        faults.look(Duration::ZERO, HOLD_DOWN);
        assert_eq!(faults.outages(), []);
        tell(&first, Some("down"));
        tell(&second, Some("down"));
        faults.look(Duration::ZERO, HOLD_DOWN);
        let both = [outage("xdp", false), outage("udp", false)];
        assert_eq!(faults.outages(), both);
        tell(&first, None);
        faults.look(Duration::ZERO, HOLD_DOWN);
        let one = [outage("xdp", true), outage("udp", false)];
        assert_eq!(faults.outages(), one);
        faults.look(HOLD_DOWN, HOLD_DOWN);
        assert_eq!(faults.outages(), [outage("udp", false)]);
        // Of those that nobody watches nothing is known.
        let unwatched = DatapathKind("fabric");
        assert_eq!(faults.fault(unwatched, false), None);
        assert_eq!(faults.failures(unwatched), 0);
    }

    #[test]
    fn who_is_told_of_a_change_looks_at_once_and_only_once() {
        let (_, mut faults) = watched();
        assert!(faults.due(Duration::ZERO));
        faults.look(Duration::ZERO, HOLD_DOWN);
        assert!(!faults.due(Duration::from_millis(1)));
        faults.changed.store(true, Ordering::Release);
        assert!(faults.due(Duration::from_millis(1)));
        assert!(!faults.due(Duration::from_millis(1)));
        assert!(faults.due(LOOK_EVERY));
    }
}
