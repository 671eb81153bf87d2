//! Asks a node by its admin socket.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use tonic::transport::{Channel, Endpoint};

use super::LONGEST_ANSWER;
use super::proto::admin_client::AdminClient;
use super::proto::{Channel as ChannelOfNode, ListChannelsRequest, ListSessionsRequest, Session};

/// A connection to a node.
pub type Client = AdminClient<Channel>;

/// Why a node cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens.
    #[error(
        "no daemon answers on {path} ({source}): start one with `takt run` or `systemctl start taktd`, or name its socket with --admin"
    )]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The socket's mode keeps us out.
    #[error(
        "may not open {path} ({source}): run as root, or as a user that `admin.mode` of the configuration lets in"
    )]
    Permission {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// There is something else.
    #[error("{path} is no socket: name the admin socket of a daemon with --admin")]
    NoSocket {
        /// What was named.
        path: PathBuf,
    },
    /// What listens there does not speak the admin API.
    #[error("cannot talk to {path}: {source}; is it the admin socket of a daemon?")]
    Transport {
        /// The socket.
        path: PathBuf,
        /// The transport's answer.
        source: tonic::transport::Error,
    },
}

/// Connects to the node whose admin socket is `path`.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect(path: &Path) -> Result<Client, ConnectError> {
    // The transport hides the kernel's answer: ask for it first.
    if let Err(source) = tokio::net::UnixStream::connect(path).await {
        let path = path.to_owned();
        return Err(match source.kind() {
            _ if path
                .metadata()
                .is_ok_and(|found| !found.file_type().is_socket()) =>
            {
                ConnectError::NoSocket { path }
            }
            io::ErrorKind::PermissionDenied => ConnectError::Permission { path, source },
            _ => ConnectError::NoDaemon { path, source },
        });
    }
    let failed = |source| ConnectError::Transport {
        path: path.to_owned(),
        source,
    };
    let channel = Endpoint::from_shared(format!("unix://{}", path.display()))
        .map_err(failed)?
        .connect()
        .await
        .map_err(failed)?;
    Ok(Client::new(channel).max_decoding_message_size(LONGEST_ANSWER))
}

/// Sessions in a page.
const SESSIONS: u32 = 64;
/// Channels in a page.
const CHANNELS: u32 = 512;

/// All sessions of a tenant, or of all where it is empty: page by page, so that nobody at the node waits for a long list.
///
/// # Errors
/// The node's answer.
pub async fn sessions(client: &mut Client, identity: &str) -> Result<Vec<Session>, tonic::Status> {
    let (mut all, mut first) = (Vec::new(), 0);
    loop {
        let request = ListSessionsRequest {
            identity: identity.to_owned(),
            first,
            limit: SESSIONS,
        };
        let page = client.list_sessions(request).await?.into_inner();
        all.extend(page.sessions);
        // Also of a node that knows no pages and answers all at once.
        match page.next {
            next if next > first => first = next,
            _ => return Ok(all),
        }
    }
}

/// All channels, as [`sessions`].
///
/// # Errors
/// The node's answer.
pub async fn channels(client: &mut Client) -> Result<Vec<ChannelOfNode>, tonic::Status> {
    let (mut all, mut first) = (Vec::new(), Some(0));
    while let Some(from) = first {
        let request = ListChannelsRequest {
            first: from,
            limit: CHANNELS,
        };
        let page = client.list_channels(request).await?.into_inner().channels;
        let full = page.len() >= CHANNELS as usize;
        let last = page.last().filter(|_| full);
        first = last.and_then(|last| last.channel.checked_add(1));
        all.extend(page);
    }
    Ok(all)
}
