//! Nodes in lab hosts, and the applications' part of every test.

use std::sync::atomic::{AtomicBool, Ordering::Release};

pub mod application;
mod client;
mod held;
pub mod node;
pub mod overlay;
pub mod traffic;

pub use application::{attach, attach_at, exchange, introduce, number_of, put, put_at, take};
pub use client::Client;
pub use held::Held;
pub use node::{Admin, Capturing, Datapath, Node, Pair, datapath_plugin, sent_by};

/// Sets all of them when it goes, also where something has failed: nobody is waited for who was not told to stop.
pub struct Stops<'a>(pub &'a [&'a AtomicBool]);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|stop| stop.store(true, Release));
    }
}

/// Whether labs cannot be made here; says why.
pub fn skip() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: network namespaces need root");
    }
    !root
}
