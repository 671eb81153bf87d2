//! How good the clock is, in one value.

use std::fmt;
use std::time::Duration;

use crate::chrony::Tracking;
use crate::host::HostReading;
use crate::kernel::KernelReading;
use crate::phc::PhcReading;
use crate::ptp4l::PtpReading;

/// Whether the clock follows a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It does.
    Synchronised,
    /// It did, and runs on by what it has learnt: the bound grows.
    Holdover,
    /// It never did, or nobody can tell.
    FreeRunning,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Synchronised => "synchronised",
            Self::Holdover => "holdover",
            Self::FreeRunning => "free-running",
        })
    }
}

/// Whose word the state rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// ptp4l.
    Ptp4l,
    /// chronyd.
    Chrony,
    /// The kernel's flag, as some program has left it.
    Kernel,
    /// Nobody's.
    None,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ptp4l => "ptp4l",
            Self::Chrony => "chrony",
            Self::Kernel => "kernel",
            Self::None => "none",
        })
    }
}

/// TAI minus UTC, as the kernel has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaiOffset {
    /// Seconds; 0 where nobody has told the kernel.
    pub seconds: i32,
    /// Somebody has.
    pub set: bool,
    /// The same as ptp4l has it from its grandmaster, where that is known to be right.
    pub by_ptp: Option<i32>,
}

/// Something that an operator should know, and do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// A short name that stays the same: `tai-offset-unset`.
    pub code: &'static str,
    /// What is the matter and what to do about it.
    pub message: String,
}

/// How good `CLOCK_TAI` is, which drives the gates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockStatus {
    /// Whether it follows a reference.
    pub state: State,
    /// Whose word that is.
    pub source: Source,
    /// What it follows, or why it does not, for people.
    pub reference: String,
    /// The clock minus its reference as last measured, nanoseconds; `None`: nobody says.
    pub offset_ns: Option<i64>,
    /// The most that it is off its reference, nanoseconds; `None`: nobody says.
    pub bound_ns: Option<u64>,
    /// TAI minus UTC.
    pub tai_offset: TaiOffset,
    /// What an operator should know, the gravest first.
    pub warnings: Vec<Warning>,
    /// Steps seen since observation began.
    pub steps: u64,
    /// What the kernel says.
    pub kernel: Option<KernelReading>,
    /// What chronyd says.
    pub chrony: Option<Tracking>,
    /// What ptp4l says.
    pub ptp4l: Option<PtpReading>,
    /// What a device's clock says.
    pub device: Option<PhcReading>,
    /// What the host says that this machine is a guest of.
    pub host: Option<HostReading>,
}

/// A clock that is not good enough.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unmet {
    /// It follows nothing.
    #[error(
        "the clock is {state} ({reference}), and must be synchronised within {required:?}{remedy}"
    )]
    State {
        /// Its state.
        state: State,
        /// Why.
        reference: String,
        /// What is demanded.
        required: Duration,
        /// What to do.
        remedy: String,
    },
    /// Nobody says how far it is off.
    #[error(
        "the clock is {state} by {reference}, which does not say how far it is off, and must be within {required:?}: \
         name ptp4l or chrony in [clock] of the configuration"
    )]
    Unknown {
        /// Its state.
        state: State,
        /// What it follows.
        reference: String,
        /// What is demanded.
        required: Duration,
    },
    /// It follows UTC, and nobody knows what it is off from TAI.
    #[error("the clock is {state} by {reference}, but CLOCK_TAI is not TAI: {problem}")]
    TaiOffset {
        /// Its state.
        state: State,
        /// What it follows.
        reference: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// It is too far off.
    #[error(
        "the clock is {state} by {reference} within {bound:?}, and must be within {required:?}: see `takt clock`"
    )]
    Bound {
        /// Its state.
        state: State,
        /// What it follows.
        reference: String,
        /// What is known of it.
        bound: Duration,
        /// What is demanded.
        required: Duration,
    },
}

impl ClockStatus {
    /// What keeps `CLOCK_TAI` from being TAI, however good the clock is otherwise. A domain with a timescale of its
    /// own has no TAI: all of its nodes have the same time.
    fn tai_problem(&self) -> Option<&Warning> {
        let arbitrary = self.source == Source::Ptp4l
            && (self.ptp4l.as_ref()).is_some_and(|ptp| !ptp.time.ptp_timescale);
        let codes = ["tai-offset-disagrees", "tai-offset-unset"];
        let problem = |warning: &&Warning| codes.contains(&warning.code);
        self.warnings.iter().find(problem).filter(|_| !arbitrary)
    }

    /// Whether the clock is known to be off its reference by `required` at most. One in holdover is, as long as its
    /// bound has not grown beyond that.
    ///
    /// One that follows UTC is not while the kernel has no offset of TAI, or another than ptp4l.
    ///
    /// # Errors
    /// [`Unmet`]: its state, and what to do.
    pub fn within(&self, required: Duration) -> Result<(), Unmet> {
        if self.state == State::FreeRunning {
            let remedy = self
                .warnings
                .iter()
                .find(|warning| warning.code == "unsynchronised");
            return Err(Unmet::State {
                state: self.state,
                reference: self.reference.clone(),
                required,
                remedy: remedy.map_or_else(String::new, |w| format!(": {}", w.message)),
            });
        }
        // Whoever keeps the clock keeps UTC in it and says how good that is: gates go by TAI.
        if let Some(problem) = self.tai_problem() {
            return Err(Unmet::TaiOffset {
                state: self.state,
                reference: self.reference.clone(),
                problem: problem.message.clone(),
            });
        }
        let Some(bound) = self.bound_ns.map(Duration::from_nanos) else {
            return Err(Unmet::Unknown {
                state: self.state,
                reference: self.reference.clone(),
                required,
            });
        };
        if bound > required {
            return Err(Unmet::Bound {
                state: self.state,
                reference: self.reference.clone(),
                bound,
                required,
            });
        }
        Ok(())
    }
}
