//! Cycles for datagrams without a launch time, for programs that cannot name one: rules of the environment
//! ([`takt::grid`]) say which.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use takt::TrafficClass;
use takt::grid::{Grid, Rule, rules};

use crate::announce::{self, Mode};

/// The variable that has the rules.
const VARIABLE: &str = "TAKT_PRELOAD_GRID";

static ON: AtomicBool = AtomicBool::new(false);
static RULES: OnceLock<Vec<Rule>> = OnceLock::new();

/// Reads the environment.
pub fn start() {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    match rules(&text) {
        Ok(rules) => {
            let on = !rules.is_empty() && announce::mode() != Mode::Off;
            let _ = RULES.set(rules);
            ON.store(on, Ordering::Release); // Partner: `is_on`.
        }
        Err(error) => announce::say(&format!(
            "{VARIABLE}: {error}; nothing is snapped to a cycle"
        )),
    }
}

/// Whether there are rules.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Acquire)
}

/// The cycle of datagrams of this class to this destination: that of the first rule that holds for them.
pub fn find(destination: SocketAddr, class: TrafficClass) -> Option<Grid> {
    let mut rules = RULES.get()?.iter();
    let rule = rules.find(|rule| rule.holds_for(destination, class))?;
    Some(rule.grid)
}
