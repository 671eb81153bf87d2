//! The socket preload (kubernetsn-icc2023, section III; naaas-thesis-2024, section 6.3.3): a program that
//! names a transmission time for its datagrams, with `SO_TXTIME` and `SCM_TXTIME`, has them sent by the
//! runtime of its node at that very instant. The program is not changed and need not know.
//!
//! The dynamic loader puts this library in front of the C library. Calls on sockets come by [`interpose`],
//! which looks the descriptor up in the [`table`] and, for all but sockets with `SO_TXTIME`, calls the
//! C library: two loads from memory, no lock. Datagrams with a time become whole Ethernet frames in
//! [`transmit`] and go to the runtime; what became of them comes back on the socket's error queue, as the
//! kernel's etf queueing discipline and its time stamps would put it there ([`errors`], [`readiness`]).
//!
//! It lives in strangers' processes, hence some rules:
//! - nothing here panics across the C boundary, and `errno` is left alone by calls that succeed;
//! - nothing here uses the heap of the program ([`heap`]): a send is allowed in a signal handler;
//! - a call that interrupted one of ours on the same thread, by a signal, gets the C library alone
//!   ([`process::Inside`]);
//! - whatever the preload does not know to do as the kernel does it, the kernel does.
//!
//! Not here: who may send what, tunnels, and the instant itself: the runtime's. What programs may expect is
//! in `docs/reference/preload.md`.

#![cfg_attr(test, allow(dead_code))] // tests do not replace the functions of their own process

mod abi;
mod address;
mod announce;
mod control;
mod destination;
mod epoll;
mod errors;
mod filter;
mod follower;
mod frame;
mod grid;
mod hardware;
mod heap;
mod held;
mod image;
#[cfg(not(test))]
mod interpose;
mod kernel;
mod kind;
mod launch;
mod memory;
mod multicast;
mod netlink;
mod news;
mod options;
mod own;
mod process;
mod readiness;
mod real;
mod remembered;
mod reports;
mod runtime;
mod socket;
mod table;
mod transmit;
mod unserved;
