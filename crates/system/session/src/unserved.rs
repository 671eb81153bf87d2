//! Why datagrams with a launch time do not go by way of the runtime: what a preloaded program tells of those that it left to
//! the kernel or refused.

/// How many reasons there are.
pub const REASONS: usize = NAMES.len();

/// Their names, each at the place of its count.
pub const NAMES: [&str; 15] = [
    "no-runtime",
    "foreign-source-address",
    "other-interface",
    "this-machine",
    "no-route",
    "station-out-of-reach",
    "next-hop-silent",
    "control-message",
    "send-flag",
    "socket-option",
    "vlan-tag",
    "foreign-frame",
    "malformed",
    "socket-kind",
    "signal-handler",
];

/// How many datagrams each has been the reason for.
pub type Counts = [u64; REASONS];
