//! Peering between runtimes in a simulated network.
