//! Nodes in lab hosts, and the applications' part of every test.

pub mod application;
pub mod node;
pub mod overlay;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub use application::{attach, exchange, introduce, number_of, put, take};
pub use node::{Datapath, Node, Pair};

/// Long enough that only what never happens runs into it, on a machine that does other work as well.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Whether labs cannot be made here; says why.
pub fn skip() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: network namespaces need root");
    }
    !root
}

/// Waits for something to be so, without guessing how long that takes.
pub fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "not in {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}

/// A directory of the test's own, removed again.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("takt-t-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
