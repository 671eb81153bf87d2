//! Schedules of the datapaths' links: installed on the port of every lane, and followed here to be shown.
//!
//! Gates are a function of time, so the control thread's copy says what every lane does without asking it.
//! Each lane serves its own frames by strict priority; lanes that share a link share its windows.

use std::sync::Arc;
use std::time::Duration;

use takt_clock::Unmet;
use takt_schedule::{GateList, GateMask, Gates, Link, Schedule};
use takt_time::{TaiTime, TrafficClass};

use super::{Control, RuntimeHandle, Stopped};
use crate::counters::DepartureReading;
use crate::lane::Command;
use crate::lane::departure::ScheduleChange;
use crate::status::ScheduleStatus;

/// A datapath's schedule.
pub(super) struct Installed {
    gates: Gates,
    link: Link,
    /// As asked for: the operational one and the pending one.
    schedules: Vec<(Arc<GateList>, Schedule)>,
    /// Why the clock is not what a schedule demands, and how often it ceased to be.
    pub(super) unmet: Option<Unmet>,
    pub(super) losses: u64,
}

impl Installed {
    /// What was asked for when this list was made of it.
    fn schedule(&self, list: &Arc<GateList>) -> Option<&Schedule> {
        let mut asked = self.schedules.iter();
        let found = asked.find(|(known, _)| Arc::ptr_eq(known, list));
        found.map(|(_, schedule)| schedule)
    }

    /// How far the clock may be off for the schedules here, the one that runs and the one that will.
    pub(super) fn required(&mut self, now: TaiTime) -> Option<Duration> {
        self.gates.advance(now);
        let gates = self.gates.status(now);
        let pending = gates.pending.as_ref().map(|(list, _)| list);
        let lists = gates.oper.iter().chain(pending);
        let demands = lists.filter_map(|list| self.schedule(list)?.require_sync_ns);
        demands.min().map(Duration::from_nanos)
    }
}

/// Why a schedule is not installed.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    /// No such datapath.
    #[error("there is no datapath `{name}` here: this node has {have}")]
    Datapath {
        /// As asked for.
        name: String,
        /// Those there are.
        have: String,
    },
    /// The list cannot run.
    #[error("the schedule cannot run: {0} (`takt schedule check` explains every mistake)")]
    List(#[from] takt_schedule::gate::ListError),
    /// Gates that are switched off.
    #[error(
        "the schedule says that gates are disabled: remove the present one instead of installing it"
    )]
    Disabled,
    /// The clock is not what the schedule demands.
    #[error("the schedule demands a clock: {0}")]
    Clock(#[from] Unmet),
}

impl RuntimeHandle {
    /// Installs a schedule on the link of a datapath, by the rules of IEEE 802.1Q-2022, clause 8.6.9.3: the
    /// instant at which it begins. `rate_bps`: the link's rate, from which guard bands follow; 0: frames take
    /// no time.
    ///
    /// # Errors
    /// [`Stopped`]; inside, [`ScheduleError`]: then nothing has changed.
    pub fn install_schedule(
        &self,
        datapath: String,
        schedule: Schedule,
        rate_bps: u64,
    ) -> Result<Result<TaiTime, ScheduleError>, Stopped> {
        self.ask(move |c| c.install_schedule(&datapath, schedule, rate_bps))
    }

    /// Opens all gates of a datapath's link again; false if it has no schedule.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn remove_schedule(&self, datapath: String) -> Result<bool, Stopped> {
        self.ask(move |c| c.remove_schedule(&datapath))
    }

    /// The schedulers of all datapaths, with and without a schedule.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn schedules(&self) -> Result<Vec<ScheduleStatus>, Stopped> {
        self.ask(|c| c.schedule_status())
    }
}

impl Control {
    fn install_schedule(
        &mut self,
        name: &str,
        schedule: Schedule,
        rate_bps: u64,
    ) -> Result<TaiTime, ScheduleError> {
        let Some(port) = self.datapaths.iter().position(|(kind, _)| kind.0 == name) else {
            let have: Vec<&str> = self.datapaths.iter().map(|(kind, _)| kind.0).collect();
            return Err(ScheduleError::Datapath {
                name: name.into(),
                have: have.join(", "),
            });
        };
        if !schedule.enabled {
            return Err(ScheduleError::Disabled);
        }
        let list = Arc::new(GateList::new(&schedule)?);
        if let Some(within) = schedule.require_sync_ns {
            self.clock_within(Duration::from_nanos(within))?;
        }
        let link = Link::ethernet(rate_bps);
        let now = self.clock.now();
        let kind = self.datapaths[port].0;
        let installed = self.schedules.entry(kind).or_insert_with(|| Installed {
            gates: Gates::new(GateMask::ALL),
            link,
            schedules: Vec::new(),
            unmet: None,
            losses: 0,
        });
        installed.link = link;
        installed.gates.set_initial(schedule.initial_gates, now);
        let begins = installed.gates.install(list.clone(), now).unwrap_or(now);
        let running = installed.gates.status(now).oper;
        installed
            .schedules
            .retain(|(old, _)| running.as_ref().is_some_and(|oper| Arc::ptr_eq(oper, old)));
        let initial = schedule.initial_gates;
        installed.schedules.push((list.clone(), schedule));
        for lane in &self.lanes {
            let change = ScheduleChange::Install {
                list: list.clone(),
                initial,
                link,
                now,
            };
            lane.handle.send(Command::Schedule { port, change });
        }
        tracing::info!(
            datapath = name,
            begins = begins.as_nanos(),
            "schedule installed"
        );
        Ok(begins)
    }

    fn remove_schedule(&mut self, name: &str) -> bool {
        let Some(port) = self.datapaths.iter().position(|(kind, _)| kind.0 == name) else {
            return false;
        };
        let removed = self.schedules.remove(&self.datapaths[port].0).is_some();
        if removed {
            for lane in &self.lanes {
                let change = ScheduleChange::Remove;
                lane.handle.send(Command::Schedule { port, change });
            }
            tracing::info!(datapath = name, "schedule removed");
        }
        removed
    }

    fn schedule_status(&mut self) -> Vec<ScheduleStatus> {
        let now = self.clock.now();
        let mut all = Vec::new();
        for (kind, _) in &self.datapaths {
            let ports = self.lanes.iter().flat_map(|lane| &lane.ports);
            let counters: Vec<_> = ports
                .filter(|port| port.kind == *kind)
                .filter_map(|port| port.departures.clone())
                .collect();
            let classes = TrafficClass::all().map(|class| {
                let mut sum = DepartureReading::default();
                for lane in &counters {
                    sum += lane.read(class);
                }
                sum
            });
            let installed = self.schedules.get_mut(kind).map(|installed| {
                installed.gates.advance(now);
                &*installed
            });
            let gates = installed.map(|installed| installed.gates.status(now));
            let find = |list| installed?.schedule(list).cloned();
            let rate = installed.and_then(|installed| installed.link.rate_bps);
            all.push(ScheduleStatus {
                datapath: kind.to_string(),
                rate_bps: rate.map_or(0, std::num::NonZero::get),
                operational: gates.as_ref().and_then(|g| find(g.oper.as_ref()?)),
                pending: gates.as_ref().and_then(|g| {
                    let (list, begins) = g.pending.as_ref()?;
                    Some((find(list)?, (*begins)?))
                }),
                cycle: gates.as_ref().and_then(|g| g.cycle),
                changes: gates.as_ref().map_or(0, |g| g.config_changes),
                late_changes: gates.as_ref().map_or(0, |g| g.config_change_errors),
                unmet: installed.and_then(|installed| installed.unmet.clone()),
                losses: installed.map_or(0, |installed| installed.losses),
                classes: classes.collect(),
            });
        }
        all
    }
}
