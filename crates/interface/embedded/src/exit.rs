//! The end of a process with runtimes inside: `exit`, or the return of `main`, with nothing closed.
//!
//! The lane's thread goes with the process, so what was emitted must be sent before. Not here: `_exit` and
//! signals, after which nothing of a process runs.

use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use takt_runtime::RuntimeHandle;

/// A runtime of this process.
struct Running {
    name: u64,
    /// The process that started it. A forked child has none of its threads: there is nothing to wait for.
    process: u32,
    runtime: RuntimeHandle,
    linger: Duration,
}

struct Registry {
    next: u64,
    running: Vec<Running>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    next: 0,
    running: Vec::new(),
});

fn lock() -> MutexGuard<'static, Registry> {
    // Nothing panics between two changes.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sees to it that the runtime is drained when the process exits. Returns its name for [`forget`].
pub fn remember(runtime: RuntimeHandle, linger: Duration) -> u64 {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded, and lets no panic out.
        // It fails for lack of memory only: then `exit` is as `_exit`.
        unsafe { libc::atexit(at_exit) };
    });
    let mut registry = lock();
    let name = registry.next;
    registry.next += 1;
    registry.running.push(Running {
        name,
        process: std::process::id(),
        runtime,
        linger,
    });
    name
}

/// The runtime has stopped.
pub fn forget(name: u64) {
    lock().running.retain(|running| running.name != name);
}

extern "C" fn at_exit() {
    // A panic must not cross into C; the process ends in any case.
    let _ = std::panic::catch_unwind(|| {
        let running = match REGISTRY.try_lock() {
            Ok(mut registry) => std::mem::take(&mut registry.running),
            // Another thread starts or stops one, or did when this child was forked.
            Err(_) => return,
        };
        for one in running {
            if one.process == std::process::id() {
                // It has stopped: then nothing is left to be sent.
                let _ = one.runtime.drain(one.linger);
            } else {
                std::mem::forget(one);
            }
        }
    });
}
