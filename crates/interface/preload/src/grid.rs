//! When datagrams without a launch time leave, for programs that cannot name one: rules of the environment
//! ([`takt::grid`]) say it.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use takt::TrafficClass;
use takt::grid::{Rule, When, rules};

use crate::announce::{self, Mode};

/// The variable that has the rules.
const VARIABLE: &str = "TAKT_PRELOAD_GRID";

/// How a program ends that requires the runtime, and whose rules cannot be read (`EX_CONFIG` of `sysexits.h`).
const NO_RULES: i32 = 78;

static ON: AtomicBool = AtomicBool::new(false);
static RULES: OnceLock<Vec<Rule>> = OnceLock::new();

/// Reads the environment.
pub fn start() {
    let text = std::env::var_os(VARIABLE).unwrap_or_default();
    // What is not UTF-8 is no rule either.
    match rules(&text.to_string_lossy()) {
        Ok(rules) => {
            let on = !rules.is_empty() && announce::mode() != Mode::Off;
            let _ = RULES.set(rules);
            ON.store(on, Ordering::Release); // Partner: `is_on`.
        }
        Err(error) if announce::mode() == Mode::Required => {
            announce::say(&format!(
                "{VARIABLE}: {error}; ending, since the runtime is required: correct it, or take it out of the environment"
            ));
            // SAFETY: a plain call; the program has not begun.
            unsafe { libc::_exit(NO_RULES) }
        }
        Err(error) => announce::say(&format!(
            "{VARIABLE}: {error}; datagrams without a time are the kernel's"
        )),
    }
}

/// Whether there are rules.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Acquire)
}

/// When datagrams of this class to this destination leave: by the first rule that holds for them.
pub fn find(destination: SocketAddr, class: TrafficClass) -> Option<When> {
    let mut rules = RULES.get()?.iter();
    let rule = rules.find(|rule| rule.holds_for(destination, class))?;
    Some(rule.when)
}
