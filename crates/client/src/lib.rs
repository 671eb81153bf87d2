//! The channel API of an application
