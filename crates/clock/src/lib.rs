//! Reads TAI and says how good the clock is
