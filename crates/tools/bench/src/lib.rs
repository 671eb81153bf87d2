//! Experiments that measure Takt beside its peers, and the report they end in.
//!
//! An [`Experiment`](experiment::Experiment) runs its variants in turns, round after round, because
//! a machine's mood changes more from minute to minute than most variants differ; a
//! [`Report`](report::Report) puts outcomes, the machine and the method into one JSON file and one
//! page with plots. [`peers`] are what Takt is measured against.
//!
//! Not for micro-benchmarks of a function: those stand beside the function.

pub mod application;
pub mod awake;
pub mod experiment;
pub mod frames;
pub mod isochronous;
pub mod machine;
pub mod outcome;
pub mod pace;
pub mod peers;
pub mod report;
pub mod reservations;
pub mod statistics;
pub mod takt;
pub mod text;
