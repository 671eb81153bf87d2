//! The gates beside the state machines of IEEE 802.1Q-2022, clause 8.6.9, executed as written.
//!
//! The machines below tick in nanoseconds, hold the variables of clause 8.6.9.4 under their own
//! names and know nothing of timelines. Random management acts on both; at every tick both must
//! show the same gates, the same operational list and the same counters. Their one addition is what
//! `gate/control.rs` states for a change that is replaced or cancelled in its last cycle.

use std::sync::Arc;

use proptest::prelude::*;
use takt_schedule::{GateEntry, GateList, GateMask, Gates, Schedule};
use takt_time::TaiTime;

/// The variables and machines of clause 8.6.9 for one port.
struct Machines {
    gate_enabled: bool,
    admin_gate_states: GateMask,
    oper_gate_states: GateMask,
    admin: Option<Schedule>,
    oper: Option<Schedule>,
    config_change: bool,
    asked_while_disabled: bool,
    config_pending: bool,
    config_change_time: i64,
    config_change_error: u64,
    config_changes: u64,
    cycle_start: bool,
    cycle_start_time: i64,
    /// When the cycle in progress began, and whether its end is the configuration change.
    cycle_began: i64,
    last_cycle: bool,
    list_pointer: usize,
    exit_timer: i64,
}

const NEVER: i64 = i64::MAX;

impl Machines {
    fn new(admin_gate_states: GateMask) -> Self {
        Self {
            gate_enabled: true,
            admin_gate_states,
            oper_gate_states: admin_gate_states,
            admin: None,
            oper: None,
            config_change: false,
            asked_while_disabled: false,
            config_pending: false,
            config_change_time: NEVER,
            config_change_error: 0,
            config_changes: 0,
            cycle_start: false,
            cycle_start_time: NEVER,
            cycle_began: 0,
            last_cycle: false,
            list_pointer: usize::MAX,
            exit_timer: 0,
        }
    }

    fn manage(&mut self, act: &Act, current_time: i64) {
        match act {
            Act::Install(schedule) => {
                self.admin = Some(schedule.clone());
                self.config_change = true;
                self.asked_while_disabled = !self.gate_enabled;
                if self.gate_enabled {
                    self.list_config(current_time);
                    self.replan(current_time);
                }
            }
            Act::Cancel => {
                self.config_change = false;
                self.config_pending = false;
                self.replan(current_time);
            }
            Act::Enable(enabled) if *enabled != self.gate_enabled => {
                self.gate_enabled = *enabled;
                self.config_pending = false;
                self.last_cycle = false;
                self.cycle_start_time = NEVER;
                self.list_pointer = usize::MAX;
                self.oper_gate_states = self.admin_gate_states;
                if *enabled && self.oper.is_some() {
                    self.set_cycle_start_time(current_time);
                }
            }
            Act::Enable(_) => {}
            Act::Initial(states) => {
                self.admin_gate_states = *states;
                if !self.gate_enabled || self.list_pointer == usize::MAX {
                    self.oper_gate_states = *states;
                }
            }
        }
    }

    /// A change replaced or cancelled while the cycle in progress was to end with it.
    fn replan(&mut self, current_time: i64) {
        if !std::mem::take(&mut self.last_cycle) {
            return;
        }
        let oper = self.oper.as_ref().unwrap();
        let longest = self.cycle_began + (oper.cycle_time_ns + oper.cycle_time_extension_ns) as i64;
        if self.config_pending && self.config_change_time <= longest {
            self.cycle_start_time = self.config_change_time;
            self.last_cycle = true;
        } else {
            self.cycle_start_time = smallest(oper, current_time);
        }
    }

    fn tick(&mut self, current_time: i64) {
        self.settle(current_time);
        if self.gate_enabled {
            self.cycle_timer(current_time);
            self.list_execute();
        }
    }

    fn settle(&mut self, current_time: i64) {
        if self.gate_enabled {
            self.list_config(current_time);
            self.update_config(current_time);
        }
    }

    /// Figure "List Config", state UPDATE_CONFIG, and figure "Cycle Timer", state CYCLE_IDLE.
    fn update_config(&mut self, current_time: i64) {
        if self.config_pending && self.config_change_time <= current_time {
            self.oper = self.admin.clone();
            self.config_pending = false;
            self.config_changes += 1;
            self.cycle_start = false;
            self.set_cycle_start_time(current_time);
        }
    }

    /// Figure "List Config", state CONFIG_PENDING, and 8.6.9.3.1 SetConfigChangeTime().
    fn list_config(&mut self, current_time: i64) {
        if !std::mem::take(&mut self.config_change) {
            return;
        }
        let admin = self.admin.as_ref().unwrap();
        let base = admin.base_time.as_nanos();
        if base >= current_time {
            self.config_change_time = base;
        } else {
            if self.oper.is_some() && !self.asked_while_disabled {
                self.config_change_error += 1;
            }
            self.config_change_time = smallest(admin, current_time);
        }
        self.config_pending = true;
    }

    /// Figure "Cycle Timer".
    fn cycle_timer(&mut self, current_time: i64) {
        if self.cycle_start_time <= current_time {
            // State START_CYCLE, then SET_CYCLE_START_TIME an instant later.
            self.cycle_start = true;
            self.cycle_began = current_time;
            self.set_cycle_start_time(current_time + 1);
        }
    }

    /// 8.6.9.1.1 SetCycleStartTime(), with its cases in their order.
    #[allow(clippy::if_same_then_else)]
    fn set_cycle_start_time(&mut self, current_time: i64) {
        let oper = self.oper.as_ref().unwrap();
        let base = oper.base_time.as_nanos();
        let reach = (oper.cycle_time_ns + oper.cycle_time_extension_ns) as i64;
        self.last_cycle = false;
        if !self.config_pending && base >= current_time {
            self.cycle_start_time = base;
        } else if !self.config_pending {
            self.cycle_start_time = smallest(oper, current_time);
        } else if self.config_change_time > self.cycle_began + reach {
            self.cycle_start_time = smallest(oper, current_time);
        } else {
            self.cycle_start_time = self.config_change_time;
            self.last_cycle = true;
        }
    }

    /// Figure "List Execute" and 8.6.9.2.1 ExecuteOperation().
    fn list_execute(&mut self) {
        let Some(oper) = &self.oper else { return };
        if std::mem::take(&mut self.cycle_start) {
            self.list_pointer = 0;
            self.exit_timer = 0;
        } else if self.list_pointer == usize::MAX {
            return;
        } else if self.exit_timer > 0 {
            self.exit_timer -= 1;
        }
        if self.exit_timer == 0 && self.list_pointer < oper.entries.len() {
            let entry = oper.entries[self.list_pointer];
            self.oper_gate_states = entry.gates;
            self.exit_timer = i64::from(entry.interval_ns);
            self.list_pointer += 1;
        }
    }
}

/// Base time + N · cycle time for the smallest N at which it is not before `current_time`.
fn smallest(schedule: &Schedule, current_time: i64) -> i64 {
    let mut start = schedule.base_time.as_nanos();
    while start < current_time {
        start += schedule.cycle_time_ns as i64;
    }
    start
}

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // a few steps of a test
enum Act {
    Install(Schedule),
    Cancel,
    Enable(bool),
    Initial(GateMask),
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let entry = (0u8..4, 1u32..12)
        .prop_map(|(gates, interval)| GateEntry::new(GateMask::from_bits(gates), interval));
    (
        -120i64..160,
        1u64..40,
        prop_oneof![Just(0u64), 0u64..70],
        prop::collection::vec(entry, 1..6),
    )
        .prop_map(|(base, cycle, extension, entries)| Schedule {
            // Relative to the instant of the request; made absolute there.
            base_time: TaiTime::from_nanos(base),
            cycle_time_ns: cycle,
            cycle_time_extension_ns: extension,
            entries,
            ..Schedule::default()
        })
}

fn acts() -> impl Strategy<Value = Vec<(i64, Act)>> {
    let act = prop_oneof![
        6 => schedule().prop_map(Act::Install),
        1 => Just(Act::Cancel),
        1 => any::<bool>().prop_map(Act::Enable),
        1 => (0u8..4).prop_map(|bits| Act::Initial(GateMask::from_bits(bits))),
    ];
    prop::collection::vec((0i64..90, act), 1..8)
}

const START: i64 = 1_000;

fn compare(acts: Vec<(i64, Act)>) -> Result<(), TestCaseError> {
    let mut machines = Machines::new(GateMask::ALL);
    let mut gates = Gates::new(GateMask::ALL);
    let mut due = START;
    let mut acts = acts
        .into_iter()
        .map(|(after, act)| {
            due += after;
            (due, act)
        })
        .collect::<Vec<_>>();
    acts.reverse();
    for t in START..due + 300 {
        let now = TaiTime::from_nanos(t);
        gates.advance(now);
        while acts.last().is_some_and(|(at, _)| *at == t) {
            let (_, mut act) = acts.pop().unwrap();
            // A change due at this very instant has been made when management acts.
            machines.settle(t);
            if let Act::Install(schedule) = &mut act {
                schedule.base_time = now.saturating_add_nanos(schedule.base_time.as_nanos());
            }
            machines.manage(&act, t);
            match &act {
                Act::Install(schedule) => {
                    let list = Arc::new(GateList::new(schedule).unwrap());
                    let change = gates.install(list, now);
                    let expected = machines.gate_enabled.then_some(machines.config_change_time);
                    prop_assert_eq!(change.map(TaiTime::as_nanos), expected);
                }
                Act::Cancel => drop(gates.cancel(now)),
                Act::Enable(enabled) => gates.set_enabled(*enabled, now),
                Act::Initial(states) => gates.set_initial(*states, now),
            }
        }
        machines.tick(t);
        prop_assert_eq!(
            gates.state(now),
            machines.oper_gate_states,
            "gates at {}",
            t
        );
        let status = gates.status(now);
        prop_assert_eq!(status.config_change_errors, machines.config_change_error);
        prop_assert_eq!(
            status.config_changes,
            machines.config_changes,
            "changes at {}",
            t
        );
        prop_assert_eq!(
            status.pending.is_some(),
            machines.config_pending || machines.config_change
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn gates_do_at_every_nanosecond_what_the_state_machines_do(acts in acts()) {
        compare(acts)?;
    }

    #[test]
    fn what_gates_say_of_the_future_is_what_they_show_when_it_comes(
        acts in acts(),
        horizon in 1i64..120,
    ) {
        let mut gates = Gates::new(GateMask::from_bits(2));
        let mut t = START;
        for (after, act) in acts {
            t += after;
            let now = TaiTime::from_nanos(t);
            match act {
                Act::Install(mut schedule) => {
                    schedule.base_time = now.saturating_add_nanos(schedule.base_time.as_nanos());
                    gates.install(Arc::new(GateList::new(&schedule).unwrap()), now);
                }
                Act::Cancel => drop(gates.cancel(now)),
                Act::Enable(enabled) => gates.set_enabled(enabled, now),
                Act::Initial(states) => gates.set_initial(states, now),
            }
        }
        let foreseen = gates.clone();
        for ahead in 0..horizon {
            let later = TaiTime::from_nanos(t + ahead);
            gates.advance(later);
            prop_assert_eq!(foreseen.state(later), gates.state(later));
        }
    }
}
