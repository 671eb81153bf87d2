//! The protocol between an application and the runtime, and the arena layout both share
