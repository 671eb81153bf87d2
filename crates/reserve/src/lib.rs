//! Which CPU reservation a task set needs: runtime Q, period P and cores m.
//!
//! The model has two levels (kubedeadline-ecrts2025, section 3.1): outside, a reservation
//! guarantees Q of CPU time in every P on each of m cores; inside, fixed priorities decide who uses
//! it. From tasks (C, T, D) this crate
//!
//! - checks whether a reservation suffices, with each task's worst response and the reason
//!   ([`check`]),
//! - finds the smallest one that does, for all tasks together ([`plan`]) or one per task
//!   ([`plan_per_task`]),
//! - reads task sets from YAML and CSV ([`input`]), draws random ones ([`generate`](mod@generate)),
//!   estimates one from a running program ([`measure`]), and shows results as tables and pictures
//!   ([`render`]).
//!
//! It is pure: no clock, no files, no threads; it neither reserves nor measures anything itself.
//! All times are whole nanoseconds and all rounding is to the safe side. Formulas, sources and
//! limits: `docs/concepts/reservation-analysis.md`.
//!
//! ```
//! use takt_reserve::{Constraints, Nanos, Periods, Task, TaskSet, plan};
//!
//! let ms = Nanos::from_millis;
//! let set = TaskSet::new(vec![
//!     Task::implicit("camera", ms(7), ms(50))?,
//!     Task::implicit("planner", ms(9), ms(75))?,
//! ])?;
//! let constraints = Constraints { periods: Periods::Listed(vec![ms(10)]), ..Constraints::default() };
//! let plan = plan(&set, &constraints)?;
//! assert_eq!(plan.reservation.to_string(), "3.5ms every 10ms on 1 core");
//! assert_eq!(plan.total_bandwidth.ppm(), 350_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod admission;
mod check;
pub mod generate;
mod global;
pub mod input;
pub mod measure;
mod model;
mod nanos;
pub mod packing;
mod per_task;
mod plan;
pub mod render;
mod reservation;
mod single;
mod supply;
mod task;
pub mod tune;

pub use check::{Cause, Failure, Outcome, TaskVerdict, Verdict, check};
pub use nanos::{Nanos, ParseNanosError};
pub use per_task::{OwnReservation, PerTaskPlan, own_response, plan_per_task};
pub use plan::{Alternative, Constraints, Periods, Plan, PlanError, plan};
pub use reservation::{Bandwidth, Overheads, Reservation, ReservationError};
pub use supply::Supply;
pub use task::{Priority, Task, TaskError, TaskSet};
