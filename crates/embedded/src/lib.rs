//! The runtime linked into one process: no daemon, no privileges
