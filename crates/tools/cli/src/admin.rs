//! Asking a daemon.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use takt::place::Socket;
use taktd::admin::client::{Client, connect};

use crate::failure::Failure;

/// Which daemon to ask.
#[derive(Clone, Debug, Args)]
pub struct Daemon {
    /// Socket of the daemon's admin API [default: $TAKT_ADMIN_SOCKET, the user's own node, or
    /// /run/takt/admin.sock]
    #[arg(long, value_name = "SOCKET")]
    admin: Option<PathBuf>,
}

impl Daemon {
    /// Its admin socket.
    pub fn socket(&self) -> PathBuf {
        self.admin
            .clone()
            .unwrap_or_else(|| Socket::Admin.to_attach_to())
    }

    /// Connects and lets `job` ask.
    pub fn ask<R, F>(&self, job: impl FnOnce(Client) -> F) -> Result<R, Failure>
    where
        F: Future<Output = Result<R, Failure>>,
    {
        block_on(async { job(connect(&self.socket()).await?).await })
    }

    /// The same, for so long at most.
    pub fn ask_within<R, F>(
        &self,
        patience: Duration,
        job: impl FnOnce(Client) -> F,
    ) -> Result<R, Failure>
    where
        F: Future<Output = Result<R, Failure>>,
    {
        let socket = self.socket();
        block_on(async {
            let asked = async { job(connect(&socket).await?).await };
            let answered = tokio::time::timeout(patience, asked).await;
            answered.unwrap_or_else(|_| {
                Err(Failure::Other(format!(
                    "the daemon does not answer at {} within {} s: see its log, or restart it",
                    socket.display(),
                    patience.as_secs()
                )))
            })
        })
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

/// The process that listens at a socket; `None` where it is not known, as of one in another process namespace.
pub fn listening_process(socket: &Path) -> Option<i32> {
    let asked = block_on(async {
        let stream = tokio::net::UnixStream::connect(socket).await;
        Ok(stream.and_then(|stream| stream.peer_cred()))
    });
    asked.ok()?.ok()?.pid().filter(|pid| *pid > 0)
}
