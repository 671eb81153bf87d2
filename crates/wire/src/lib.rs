//! Packet formats, and nothing else: bytes in, plain types out, and back.
//!
//! One file per format. Parsing and emitting neither allocate nor read a clock nor touch a socket,
//! and no input makes them panic: a parser answers with its format's error, which carries the
//! value at fault. Deciding what to do with a packet is the caller's work.
//!
//! [`channel`] is Takt's own datagram between two runtimes, drawn bit by bit in
//! `docs/reference/wire-format.md`.

#![forbid(unsafe_code)]

pub mod channel;
