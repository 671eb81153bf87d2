//! Schedules of the datapaths' links: installed on the port of every lane, and followed here to be shown.
//!
//! Gates are a function of time, so the control thread's copy says what a lane does without asking it. A link
//! with a schedule has one queue: one lane carries its datapath, and serves whoever sends by it (decision 12).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use takt_clock::Unmet;
use takt_datapath::DatapathKind;
use takt_schedule::{ClassTable, GateList, GateMask, Gates};
use takt_time::{TaiTime, TrafficClass};

use super::admission::StreamsMisfit;
use super::{Control, RuntimeHandle, Stopped};
use crate::config::{KeptSchedule, LinkSchedule};
use crate::counters::DepartureReading;
use crate::lane::Command;
use crate::lane::departure::ScheduleChange;
use crate::status::ScheduleStatus;

/// A datapath's schedule.
pub(super) struct Installed {
    gates: Gates,
    /// As asked for: the operational one and the pending one.
    schedules: Vec<Request>,
    /// Why the clock is not what a schedule demands, and how often it ceased to be.
    pub(super) unmet: Option<Unmet>,
    pub(super) losses: u64,
}

/// What was asked for, and what was made of it.
struct Request {
    list: Arc<GateList>,
    asked: LinkSchedule,
    origin: Origin,
}

impl Installed {
    /// What was asked for when this list was made of it.
    fn request(&self, list: &Arc<GateList>) -> Option<&Request> {
        let mut requests = self.schedules.iter();
        requests.find(|request| Arc::ptr_eq(&request.list, list))
    }

    /// The schedule that runs (true) and the one that will, in this order.
    fn requests(&mut self, now: TaiTime) -> impl Iterator<Item = (&Request, bool)> {
        self.gates.advance(now);
        let gates = self.gates.status(now);
        let running = gates.oper.map(|list| (list, true));
        let pending = gates.pending.map(|(list, _)| (list, false));
        let lists = running.into_iter().chain(pending);
        let known: &Self = self;
        lists.filter_map(move |(list, runs)| Some((known.request(&list)?, runs)))
    }

    /// How far the clock may be off for the schedules here, the one that runs and the one that will.
    pub(super) fn required(&mut self, now: TaiTime) -> Option<Duration> {
        let demands = self.requests(now);
        let demands = demands.filter_map(|(request, _)| request.asked.schedule.require_sync_ns);
        demands.min().map(Duration::from_nanos)
    }
}

/// Why a schedule is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Somebody asks for it.
    Asked,
    /// Somebody asked for it before the node started.
    Kept {
        /// It had begun.
        running: bool,
    },
    /// It is in the node's configuration.
    Configured,
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
    /// Several lanes send on the link.
    #[error(
        "lanes {lanes:?} carry datapath `{name}`, each with a queue of its own, and gates must hold for the link as a whole: give it to one (`lanes = [{first}]` in [datapath.{name}]) and restart the node", first = lanes[0]
    )]
    Lanes {
        /// The datapath.
        name: String,
        /// Those that carry it.
        lanes: Vec<usize>,
    },
    /// Another datapath sends on the link, and has a schedule.
    #[error(
        "datapath `{other}` sends from the same address as `{name}` and has a schedule: each would keep its own gates, and not those of the link as a whole. Remove that one first (`takt schedule remove --datapath {other}`), or give one of them an interface of its own"
    )]
    SharedLink {
        /// The datapath.
        name: String,
        /// The one with a schedule.
        other: String,
    },
    /// Streams of tenants have no place in it.
    #[error("{0}")]
    Streams(#[from] StreamsMisfit),
    /// The list cannot run.
    #[error("the schedule cannot run: {0} (`takt schedule check` explains every mistake)")]
    List(#[from] takt_schedule::gate::ListError),
    /// Its cycle cuts it.
    #[error("{0} (`takt schedule check` explains every mistake)")]
    Cut(String),
    /// Its classes cannot be served so.
    #[error(transparent)]
    Selection(#[from] takt_schedule::selection::SelectionError),
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
    /// Whether a schedule would be installed, as everything is now.
    ///
    /// # Errors
    /// [`Stopped`]; inside, [`ScheduleError`].
    pub fn check_schedule(
        &self,
        schedule: LinkSchedule,
    ) -> Result<Result<(), ScheduleError>, Stopped> {
        let check = self.ask(move |c| {
            c.validate(&schedule, Origin::Asked)?;
            Ok(c.check_of_schedule(schedule))
        })?;
        Ok(check.and_then(|check| Ok(check.run()?)))
    }

    /// Installs a schedule on the link of a datapath, by the rules of IEEE 802.1Q-2022, clause 8.6.9.3: the
    /// instant at which it begins.
    ///
    /// # Errors
    /// [`Stopped`]; inside, [`ScheduleError`]: then nothing has changed.
    pub fn install_schedule(
        &self,
        schedule: LinkSchedule,
    ) -> Result<Result<TaiTime, ScheduleError>, Stopped> {
        loop {
            let asked = schedule.clone();
            let prepared = self.ask(move |c| {
                c.validate(&asked, Origin::Asked)?;
                Ok((c.admissions, c.check_of_schedule(asked)))
            })?;
            let (seen, check) = match prepared {
                Ok(prepared) => prepared,
                Err(error) => return Ok(Err(error)),
            };
            if let Err(misfit) = check.run() {
                return Ok(Err(misfit.into()));
            }
            let asked = schedule.clone();
            // Unless streams or schedules have changed meanwhile.
            let installed = self.change(move |c| {
                (c.admissions == seen).then(|| c.install_admitted(asked, Origin::Asked))
            })?;
            if let Some(answer) = installed {
                return Ok(answer);
            }
        }
    }

    /// What is to be kept for the next start: the schedules that were installed by command, before this start or since. Those
    /// that run and those that will, in this order for each datapath; those whose datapaths are not there too.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn kept_schedules(&self) -> Result<Vec<KeptSchedule>, Stopped> {
        self.ask(|c| c.kept_schedules())
    }

    /// Opens all gates of a datapath's link again; false if it has no schedule. That of a datapath which is not there is
    /// forgotten.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn remove_schedule(&self, datapath: String) -> Result<bool, Stopped> {
        self.change(move |c| c.remove_schedule(&datapath))
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
    /// Installs a schedule. One that is restored was accepted before: no clock is demanded of a node that
    /// starts, since gates that are off are better than none, and what the clock lacks is told.
    pub(super) fn install_schedule(
        &mut self,
        asked: LinkSchedule,
        origin: Origin,
    ) -> Result<TaiTime, ScheduleError> {
        self.validate(&asked, origin)?;
        self.check_of_schedule(asked.clone()).run()?;
        self.install_admitted(asked, origin)
    }

    /// Whether a schedule can run here, whatever streams there are.
    fn validate(
        &self,
        asked: &LinkSchedule,
        origin: Origin,
    ) -> Result<(DatapathKind, Arc<GateList>), ScheduleError> {
        let name = asked.datapath.as_str();
        let schedule = &asked.schedule;
        let Some(kind) = self.kind_of(name) else {
            return Err(ScheduleError::Datapath {
                name: name.into(),
                have: self.kinds(),
            });
        };
        let lanes: Vec<usize> = self.carriers(kind).map(|(lane, _)| lane).collect();
        if lanes.len() > 1 {
            return Err(ScheduleError::Lanes {
                name: name.into(),
                lanes,
            });
        }
        let others = self.on_same_link(kind);
        if let Some(other) = others.iter().find(|kind| self.schedules.contains_key(kind)) {
            let (name, other) = (name.to_owned(), other.0.to_owned());
            match origin {
                Origin::Asked => return Err(ScheduleError::SharedLink { name, other }),
                // Gates of each are better than those of one.
                _ => tracing::warn!(
                    datapath = name,
                    other,
                    "two schedules for one link: gates are kept, priority and guard bands between the two are not"
                ),
            }
        }
        if !schedule.enabled {
            return Err(ScheduleError::Disabled);
        }
        let list = Arc::new(GateList::new(schedule)?);
        if origin == Origin::Asked {
            if let Some(finding) = takt_schedule::check::cut(schedule, &asked.link()).first() {
                return Err(ScheduleError::Cut(finding.message.clone()));
            }
            if let Some(within) = schedule.require_sync_ns {
                self.clock_within(Duration::from_nanos(within))?;
            }
        }
        takt_schedule::selection::check(&schedule.selection, &asked.link())?;
        Ok((kind, list))
    }

    /// Installs a schedule in which all streams have their place.
    fn install_admitted(
        &mut self,
        asked: LinkSchedule,
        origin: Origin,
    ) -> Result<TaiTime, ScheduleError> {
        let (kind, list) = self.validate(&asked, origin)?;
        self.admissions += 1;
        let (name, schedule) = (asked.datapath.as_str(), &asked.schedule);
        let initial = schedule.initial_gates;
        let now = self.clock.now();
        // A schedule that is configured, or ran before a restart, runs in the cycle that it would be in, also where the
        // clock is behind its base time: that of a machine that has just started may be.
        let at_once = match origin {
            Origin::Asked => false,
            Origin::Kept { running: true } | Origin::Configured => true,
            Origin::Kept { running: false } => schedule.base_time <= now,
        };
        let installed = self.schedules.entry(kind).or_insert_with(|| Installed {
            gates: Gates::new(GateMask::ALL),
            schedules: Vec::new(),
            unmet: None,
            losses: 0,
        });
        installed.gates.set_initial(initial, now);
        let begins = if at_once {
            installed.gates.resume(list.clone(), now);
            now
        } else {
            installed.gates.install(list.clone(), now).unwrap_or(now)
        };
        let running = installed.gates.status(now).oper;
        installed.schedules.retain(|old| {
            running
                .as_ref()
                .is_some_and(|oper| Arc::ptr_eq(oper, &old.list))
        });
        let (link, classes) = (asked.link(), asked.classes);
        let selection = schedule.selection;
        tracing::info!(
            datapath = name,
            begins = begins.as_nanos(),
            runs = begins <= now,
            "schedule installed"
        );
        installed.schedules.push(Request {
            list: list.clone(),
            asked,
            origin,
        });
        for (lane, port) in self.carriers(kind) {
            let change = ScheduleChange::Install {
                list: list.clone(),
                initial,
                link,
                now,
                classes,
                selection: Box::new(selection),
                begins,
                at_once,
            };
            self.lanes[lane]
                .handle
                .send(Command::Schedule { port, change });
        }
        Ok(begins)
    }

    /// The lanes that carry a datapath, with their ports.
    fn carriers(&self, kind: DatapathKind) -> impl Iterator<Item = (usize, usize)> {
        let lanes = self.lanes.iter().enumerate();
        lanes.filter_map(move |(at, lane)| Some((at, lane.port_of(kind)?)))
    }

    /// The address that a datapath sends from.
    fn address_of(&self, kind: DatapathKind) -> Option<IpAddr> {
        let mut ports = self.carriers(kind);
        let (lane, port) = ports.next()?;
        Some(self.lanes[lane].ports[port].local.ip())
    }

    /// The other datapaths that send from an address of this one.
    fn on_same_link(&self, kind: DatapathKind) -> Vec<DatapathKind> {
        let addresses = |kind: DatapathKind| {
            let ports = self.lanes.iter().flat_map(|lane| &lane.ports);
            let own = ports.filter(move |port| port.kind == kind && !port.between_lanes);
            own.map(|port| port.local.ip())
        };
        let others = self.datapaths.iter().map(|(kind, _)| *kind);
        others
            .filter(|other| {
                *other != kind && addresses(*other).any(|of| addresses(kind).any(|own| own == of))
            })
            .collect()
    }

    pub(super) fn installed_schedules(&mut self) -> Vec<LinkSchedule> {
        let now = self.clock.now();
        let mut all = Vec::new();
        for installed in self.schedules.values_mut() {
            let requests = installed.requests(now);
            all.extend(requests.map(|(request, _)| request.asked.clone()));
        }
        all
    }

    fn kept_schedules(&mut self) -> Vec<KeptSchedule> {
        let now = self.clock.now();
        let mut all = Vec::new();
        for installed in self.schedules.values_mut() {
            let requests = installed.requests(now);
            // What is in the configuration follows the configuration.
            let by_command = requests.filter(|(request, _)| request.origin != Origin::Configured);
            all.extend(by_command.map(|(request, running)| KeptSchedule {
                asked: request.asked.clone(),
                running,
            }));
        }
        all.extend_from_slice(&self.absent_schedules);
        all
    }

    fn remove_schedule(&mut self, name: &str) -> bool {
        let Some(kind) = self.kind_of(name) else {
            let before = self.absent_schedules.len();
            self.absent_schedules
                .retain(|kept| kept.asked.datapath != name);
            return self.absent_schedules.len() < before;
        };
        let removed = self.schedules.remove(&kind).is_some();
        if removed {
            for (lane, port) in self.carriers(kind) {
                let change = ScheduleChange::Remove;
                let command = Command::Schedule { port, change };
                self.lanes[lane].handle.send(command);
            }
            tracing::info!(datapath = name, "schedule removed");
        }
        removed
    }

    fn schedule_status(&mut self) -> Vec<ScheduleStatus> {
        let now = self.clock.now();
        let mut all = Vec::new();
        for (kind, _) in &self.datapaths {
            let beside = self.on_same_link(*kind);
            let address = self.address_of(*kind);
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
            let asked = |list| Some(&installed?.request(list)?.asked);
            let find = |list| asked(list).map(|asked| asked.schedule.clone());
            let oper = gates.as_ref().and_then(|g| asked(g.oper.as_ref()?));
            // That of the one to come holds from its beginning on, or already where none runs.
            let pending = gates.as_ref().and_then(|g| asked(&g.pending.as_ref()?.0));
            let of_link = oper.or(pending);
            all.push(ScheduleStatus {
                datapath: kind.to_string(),
                rate_bps: of_link.map_or(0, |asked| asked.rate_bps),
                beside: beside.iter().map(ToString::to_string).collect(),
                address,
                vlan: of_link.is_some_and(|asked| asked.vlan),
                priorities: oper.map_or_else(ClassTable::default, |asked| asked.classes),
                operational: gates.as_ref().and_then(|g| find(g.oper.as_ref()?)),
                pending: gates.as_ref().and_then(|g| {
                    let (list, begins) = g.pending.as_ref()?;
                    Some((find(list)?, (*begins)?))
                }),
                running: oper.cloned(),
                latest: pending.or(oper).cloned(),
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
