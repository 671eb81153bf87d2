//! Arenas in sealed memfds, index rings and doorbells between mutually distrusting processes
