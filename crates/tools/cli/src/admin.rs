//! Asking a daemon.

use std::path::PathBuf;

use clap::Args;
use taktd::admin::client::{Client, connect};

use crate::failure::Failure;

/// Which daemon to ask.
#[derive(Clone, Debug, Args)]
pub struct Daemon {
    /// Socket of the daemon's admin API
    #[arg(
        long,
        value_name = "SOCKET",
        env = "TAKT_ADMIN_SOCKET",
        hide_env_values = true,
        default_value = taktd::DEFAULT_ADMIN_SOCKET
    )]
    pub admin: PathBuf,
}

impl Daemon {
    /// Connects and lets `job` ask.
    pub fn ask<R, F>(&self, job: impl FnOnce(Client) -> F) -> Result<R, Failure>
    where
        F: Future<Output = Result<R, Failure>>,
    {
        block_on(async { job(connect(&self.admin).await?).await })
    }
}

/// Waits for a future on this thread.
pub fn block_on<R>(future: impl Future<Output = Result<R, Failure>>) -> Result<R, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::io("wait for the daemon"))?
        .block_on(future)
}
