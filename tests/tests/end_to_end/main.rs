//! Whole nodes on hosts of their own: what an operator and the applications see of them.

mod adversary;
mod crashes;
mod credit;
mod dpdk;
mod fabric;
mod gates;
mod hosts;
mod kills;
mod lanes;
mod links;
mod long_messages;
mod mapping;
mod networks;
mod plugins;
mod policing;
mod priority;
mod refusals;
mod remapping;
mod routed;
mod schedules;
mod scouting;
mod streams;
mod support;
mod tenants;
mod topics;
mod volume;
