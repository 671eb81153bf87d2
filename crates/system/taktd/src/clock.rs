//! Looks at the clock once a second, and says when something is wrong with it: loudly, once for each thing.
//!
//! Never a lane's business: whoever is asked may take his time, so each look has a thread to wait on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use takt_clock::{ClockStatus, Observer, Source, State};
use tokio::time::{MissedTickBehavior, interval};

use crate::node::Node;

/// Time between looks.
const PERIOD: Duration = Duration::from_secs(1);

/// Looks, tells the runtime, and logs what is new.
pub struct Watch {
    node: Arc<Node>,
    /// In a thread while it looks.
    observer: Option<Observer>,
    told: Told,
}

impl Watch {
    pub fn new(node: Arc<Node>) -> Self {
        let settings = node.settings();
        Self {
            observer: Some(Observer::new(settings.clock, settings.runtime.clock)),
            node,
            told: Told::default(),
        }
    }

    /// Looks once. False: the node has stopped.
    pub async fn look(&mut self) -> bool {
        let Some(mut observer) = self.observer.take() else {
            return false;
        };
        let handle = self.node.handle().clone();
        let looked = tokio::task::spawn_blocking(move || {
            let status = observer.observe();
            let told = handle.tell_clock(status.clone());
            (observer, status, told)
        });
        let Ok((observer, status, Ok(()))) = looked.await else {
            return false;
        };
        self.observer = Some(observer);
        self.told.tell(&status);
        true
    }

    /// Looks again and again until the node stops.
    pub async fn run(mut self) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if !self.look().await {
                return;
            }
        }
    }
}

/// What the log says already.
#[derive(Default)]
struct Told {
    state: Option<(State, Source)>,
    /// By code: how often it is there.
    warnings: BTreeMap<&'static str, usize>,
    steps: u64,
}

impl Told {
    fn tell(&mut self, status: &ClockStatus) {
        if self.state.is_none() {
            return self.tell_first(status);
        }
        let state = (status.state, status.source);
        if self.state.replace(state) != Some(state) {
            let ClockStatus {
                state,
                source,
                reference,
                bound_ns,
                ..
            } = status;
            match state {
                State::Synchronised => {
                    tracing::info!(%state, %source, bound_ns, "clock: {reference}");
                }
                _ => tracing::warn!(%state, %source, bound_ns, "clock: {reference}"),
            }
        }
        let mut now: BTreeMap<&'static str, usize> = BTreeMap::new();
        for warning in &status.warnings {
            let count = now.entry(warning.code).or_default();
            *count += 1;
            let known = self.warnings.get(warning.code).copied().unwrap_or(0);
            let again = warning.code == "clock-stepped" && status.steps > self.steps;
            if *count > known || again {
                tracing::warn!(code = warning.code, "clock: {}", warning.message);
            }
        }
        for gone in self.warnings.keys().filter(|code| !now.contains_key(*code)) {
            tracing::info!(code = gone, "clock: no more of that warning");
        }
        self.warnings = now;
        self.steps = status.steps;
    }

    /// The start of a node is told in one line, however much is wrong; but for programs that the configuration names, which
    /// somebody relies on.
    fn tell_first(&mut self, status: &ClockStatus) {
        self.state = Some((status.state, status.source));
        self.steps = status.steps;
        for warning in &status.warnings {
            *self.warnings.entry(warning.code).or_default() += 1;
        }
        let (state, source) = (status.state, status.source);
        if status.warnings.is_empty() {
            tracing::info!(%state, %source, "clock: {}", status.reference);
        } else {
            let codes: Vec<&str> = self.warnings.keys().copied().collect();
            tracing::warn!(
                %state, %source, warnings = codes.join(","),
                "clock: {}; `takt clock` says what to do", status.reference
            );
            let silent = |warning: &&takt_clock::Warning| warning.code == "source-silent";
            for warning in status.warnings.iter().filter(silent) {
                tracing::warn!(code = warning.code, "clock: {}", warning.message);
            }
        }
    }
}
