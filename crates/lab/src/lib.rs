//! Throw-away hosts in network namespaces for tests, benches and demos
