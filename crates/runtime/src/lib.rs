//! The system layer: sessions, memory, lanes, routing and peers
