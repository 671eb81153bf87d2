//! Static programs and programs in Go in pods, which nothing can be preloaded into, with a real daemon on their host, a real overlay
//! and a capture at the far end of the cable. Needs root, iproute2, a C compiler, and Go for a part.

mod guest;
mod hostile;
mod launches;
mod measure;
mod others;
mod qemu;
mod required;
mod support;
mod uplink;
mod vmm;
