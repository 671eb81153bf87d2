//! Experiments that measure Takt beside its peers.
//!
//! An [`Experiment`](experiment::Experiment) runs its variants in turns, round after round, because
//! a machine's mood changes more from minute to minute than most variants differ.
//!
//! Not for micro-benchmarks of a function: those stand beside the function.

pub mod awake;
pub mod experiment;
pub mod machine;
pub mod outcome;
pub mod peers;
pub mod statistics;
