//! Programs under the preload, in containers, with a real daemon, a real overlay and ordinary sockets at the
//! far end. Needs root, iproute2, a C compiler and the programs that `scripts/setup.sh` installs.

mod calls;
mod grid;
mod musl;
mod neighbours;
mod numbers;
mod robustness;
mod routed;
mod runtimes;
mod sending;
mod support;
mod talkers;
mod tenants;
mod unaware;
mod unserved;
mod untimed;
