//! The Takt node daemon.
fn main() {}
