//! The C interface: `libtakt.so`, described by `include/takt.h`.
//!
//! Every function checks its pointers for null, turns errors into codes, and lets no panic out. Buffers
//! and messages that C holds are entries of the [`loans`] of their source or sink, so that a second
//! release is an error and not a corruption.
//!
//! Not here: documentation of the functions. The header has it, and `tests/header.rs` holds the two
//! together.

mod embedded;
mod embedded_abi;
mod error;
mod loans;
mod mapping;
mod pointers;
mod session;
mod sink;
mod source;
mod stream;
mod topic;
mod video;
