//! What the environment asks for, and how it is answered on standard error.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::real;

/// The variable that says what the preload is to do.
pub const MODE_VARIABLE: &str = "TAKT_PRELOAD";

/// The variable that asks for the instants of departure in the place of hardware time stamps.
pub const HARDWARE_VARIABLE: &str = "TAKT_PRELOAD_HWTSTAMP";

/// What it is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Take what has a transmission time; without a runtime the kernel sends it.
    Wanted,
    /// As `Wanted`; without a runtime the program's calls fail.
    Required,
    /// Nothing.
    Off,
}

static MODE: AtomicU8 = AtomicU8::new(Mode::Off as u8);
static HARDWARE: AtomicBool = AtomicBool::new(false);

/// Reads the environment.
pub fn start() {
    real::note_standard_error();
    let value = std::env::var_os(MODE_VARIABLE).unwrap_or_default();
    let mode = match &*value.to_string_lossy() {
        "" | "on" => Mode::Wanted,
        "required" => Mode::Required,
        "off" => Mode::Off,
        other => {
            // Whoever wants the runtime required, and mistypes it, must not have times that nobody keeps.
            say(&format!(
                "{MODE_VARIABLE} is \"{other}\", which is none of its values \"on\", \"required\" and \"off\": taken as \
                 \"required\""
            ));
            Mode::Required
        }
    };
    MODE.store(mode as u8, Ordering::Relaxed);
    let value = std::env::var(HARDWARE_VARIABLE).unwrap_or_default();
    let hardware = match value.as_str() {
        "" | "off" => false,
        "on" => true,
        other => {
            say(&format!(
                "{HARDWARE_VARIABLE} is \"{other}\", not \"on\" or \"off\"; taken as \"off\""
            ));
            false
        }
    };
    HARDWARE.store(hardware, Ordering::Relaxed);
}

/// What the preload is to do. `Off` before it has started.
pub fn mode() -> Mode {
    match MODE.load(Ordering::Relaxed) {
        0 => Mode::Wanted,
        1 => Mode::Required,
        _ => Mode::Off,
    }
}

/// Whether instants of departure stand for hardware time stamps.
pub fn stamps_as_hardware() -> bool {
    HARDWARE.load(Ordering::Relaxed)
}

/// Says on standard error why something is not as it was asked for.
pub fn say(text: &str) {
    real::say(&format!("takt-preload: {}: {text}\n", real::program()));
}
