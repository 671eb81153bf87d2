//! How messages of the admin API look as JSON: enums by name, identifiers that are no numbers in hexadecimal.

use serde::Serializer;

use super::proto::{Acceleration, ClockState, PeerState, Protection, ResourceUse};

/// `up`, `down`, `trying`.
pub fn state_name(state: i32) -> &'static str {
    match PeerState::try_from(state) {
        Ok(PeerState::Trying) => "trying",
        Ok(PeerState::Up) => "up",
        Ok(PeerState::Down) => "down",
        Ok(PeerState::Unspecified) | Err(_) => "unknown",
    }
}

/// `slow`, `fast`.
pub fn acceleration_name(acceleration: i32) -> &'static str {
    match Acceleration::try_from(acceleration) {
        Ok(Acceleration::Slow) => "slow",
        Ok(Acceleration::Fast) => "fast",
        Ok(Acceleration::Unspecified) | Err(_) => "unknown",
    }
}

/// `frugal`, `unlimited`.
pub fn resource_use_name(resource_use: i32) -> &'static str {
    match ResourceUse::try_from(resource_use) {
        Ok(ResourceUse::Frugal) => "frugal",
        Ok(ResourceUse::Unlimited) => "unlimited",
        Ok(ResourceUse::Unspecified) | Err(_) => "unknown",
    }
}

/// `none`, `integrity`, `encrypt`: as `security.protection` of the configuration.
pub fn protection_name(protection: i32) -> &'static str {
    match Protection::try_from(protection) {
        Ok(Protection::None) => "none",
        Ok(Protection::Integrity) => "integrity",
        Ok(Protection::Encrypt) => "encrypt",
        Ok(Protection::Unspecified) | Err(_) => "unknown",
    }
}

/// Serialises [`PeerState`].
///
/// # Errors
/// The serialiser's.
pub fn peer_state<S: Serializer>(state: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state_name(*state))
}

/// Serialises [`Acceleration`].
///
/// # Errors
/// The serialiser's.
pub fn acceleration<S: Serializer>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(acceleration_name(*value))
}

/// Serialises [`ResourceUse`].
///
/// # Errors
/// The serialiser's.
pub fn resource_use<S: Serializer>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(resource_use_name(*value))
}

/// Serialises [`Protection`].
///
/// # Errors
/// The serialiser's.
pub fn protection<S: Serializer>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(protection_name(*value))
}

/// `synchronised`, `holdover`, `free-running`.
pub fn clock_state_name(state: i32) -> &'static str {
    match ClockState::try_from(state) {
        Ok(ClockState::Synchronised) => "synchronised",
        Ok(ClockState::Holdover) => "holdover",
        Ok(ClockState::FreeRunning) => "free-running",
        Ok(ClockState::Unspecified) | Err(_) => "unknown",
    }
}

/// Serialises [`ClockState`].
///
/// # Errors
/// The serialiser's.
pub fn clock_state<S: Serializer>(state: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(clock_state_name(*state))
}

/// Serialises an identifier that uses all 64 bits: most readers of JSON would round it.
///
/// # Errors
/// The serialiser's.
pub fn hexadecimal<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:016x}"))
}

/// Serialises permission bits as people write them.
///
/// # Errors
/// The serialiser's.
pub fn octal<S: Serializer>(value: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:04o}"))
}
