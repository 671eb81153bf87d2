//! How good the clock is, and what that means for schedules that demand one.
//!
//! Somebody else looks at the clock (it takes a while) and tells the control thread. A schedule that runs is not
//! stopped when the clock gets worse: gates that are off by a little are better than none. It is told.

use std::time::Duration;

use takt_clock::{ClockStatus, State, Unmet};

use super::{Control, RuntimeHandle, Stopped};

impl RuntimeHandle {
    /// Tells how good the clock is: the one that the runtime goes by.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn tell_clock(&self, status: ClockStatus) -> Result<(), Stopped> {
        self.ask(move |c| c.tell_clock(status))
    }

    /// How good the clock is, as last told; `None`: nobody looks.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn clock(&self) -> Result<Option<ClockStatus>, Stopped> {
        self.ask(|c| c.clock_status.clone())
    }
}

impl Control {
    /// Whether the clock is off by so much at most.
    pub(super) fn clock_within(&self, required: Duration) -> Result<(), Unmet> {
        match &self.clock_status {
            Some(status) => status.within(required),
            None => Err(Unmet::State {
                state: State::FreeRunning,
                reference: "nobody looks at it in this runtime".into(),
                required,
                remedy: ": leave the demand out, or run the node daemon, which does".into(),
            }),
        }
    }

    fn tell_clock(&mut self, status: ClockStatus) {
        let now = self.clock.now();
        for (kind, installed) in &mut self.schedules {
            let required = installed.required(now);
            let unmet = required.and_then(|required| status.within(required).err());
            match (&installed.unmet, &unmet) {
                (None, Some(unmet)) => {
                    installed.losses += 1;
                    tracing::warn!(datapath = %kind, "the schedule runs on without the clock that it demands: {unmet}");
                }
                (Some(_), None) => {
                    tracing::info!(datapath = %kind, "the clock is again what the schedule demands");
                }
                _ => {}
            }
            installed.unmet = unmet;
        }
        self.clock_status = Some(status);
    }
}
