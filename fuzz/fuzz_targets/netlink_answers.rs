//! Netlink messages as the kernel's tables answer and report, or somebody who could send in its place: reading them
//! never fails otherwise than by finding nothing.
//!
//! Input: one message with its header.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_datapath::stack::read_anything;

fuzz_target!(|input: &[u8]| read_anything(input));
