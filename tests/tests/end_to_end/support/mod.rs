//! Nodes in lab hosts, and the applications' part of every test.

pub mod application;
mod held;
pub mod node;
pub mod overlay;
pub mod traffic;

pub use application::{attach, attach_at, exchange, introduce, number_of, put, put_at, take};
pub use held::Held;
pub use node::{Datapath, Node, Pair, datapath_plugin, sent_by};

/// Whether labs cannot be made here; says why.
pub fn skip() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: network namespaces need root");
    }
    !root
}
