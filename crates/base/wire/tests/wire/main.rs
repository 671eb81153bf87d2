//! Every format: frames that other software made, round trips, truncations, arbitrary bytes.

mod captures;
mod channel;
mod frame;
mod link;
mod network;
mod vxlan;
