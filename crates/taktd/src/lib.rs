//! The node daemon: runtime, datapaths, configuration and admin API
