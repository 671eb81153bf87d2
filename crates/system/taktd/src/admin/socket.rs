//! The Unix socket of the admin API.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixListener;

/// Connections that may wait to be accepted. A client that does not wait itself is refused by the kernel where there are more.
const BACKLOG: i32 = 1024;

/// Why the admin socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody answers on the path.
    #[error(
        "another daemon has its admin socket at {0}: stop it, or name another by `admin.socket` of the configuration or the \
         variable TAKT_ADMIN_SOCKET"
    )]
    InUse(PathBuf),
    /// The path holds something that is no socket.
    #[error("{0} exists and is no socket: remove it, or configure another `admin.socket`")]
    NoSocket(PathBuf),
    /// A system call failed.
    #[error("cannot {action} the admin socket {path}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The open socket; its path goes with it.
pub struct AdminSocket {
    pub listener: UnixListener,
    pub path: Unlink,
}

/// Removes a path when dropped.
pub struct Unlink(PathBuf);

impl Drop for Unlink {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Opens the socket at `path` for those whom `mode` lets in; takes over a path that a dead daemon has left.
pub fn open(path: &Path, mode: u32) -> Result<AdminSocket, SocketError> {
    let failed = |action| {
        move |source: io::Error| SocketError::System {
            action,
            path: path.to_owned(),
            source,
        }
    };
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(failed("make the directory of"))?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(SocketError::NoSocket(path.to_owned()));
        }
        Ok(_) => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(SocketError::InUse(path.to_owned()));
            }
            std::fs::remove_file(path).map_err(failed("remove the stale file of"))?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("examine")(error)),
    }
    let kernel = |action| move |error: rustix::io::Errno| failed(action)(error.into());
    let address = SocketAddrUnix::new(path).map_err(kernel("use the path of"))?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(kernel("make"))?;
    // The file takes the socket's own mode, less the umask, as it comes into being: there is no moment at which
    // more than these may open it.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(mode))
        .map_err(kernel("set the mode of"))?;
    rustix::net::bind(&socket, &address).map_err(kernel("bind"))?;
    let unlink = Unlink(path.to_owned());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(failed("set the mode of"))?;
    rustix::net::listen(&socket, BACKLOG).map_err(kernel("listen on"))?;
    let listener = UnixListener::from_std(socket.into()).map_err(failed("watch"))?;
    Ok(AdminSocket {
        listener,
        path: unlink,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("takt-t-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        path
    }

    #[tokio::test]
    async fn the_socket_has_its_mode_and_goes_with_its_owner() {
        let directory = directory("admin-mode");
        let path = directory.join("new/admin.sock");
        let socket = open(&path, 0o600).expect("open");
        let mode = std::fs::metadata(&path)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(socket);
        assert!(!path.exists());
        std::fs::remove_dir_all(directory).expect("clean up");
    }

    #[tokio::test]
    async fn a_live_socket_is_left_alone_and_a_stale_one_taken_over() {
        let directory = directory("admin-stale");
        let path = directory.join("admin.sock");
        let first = open(&path, 0o600).expect("open");
        assert!(matches!(open(&path, 0o600), Err(SocketError::InUse(_))));
        let AdminSocket {
            listener,
            path: unlink,
        } = first;
        drop(listener);
        std::mem::forget(unlink);
        assert!(path.exists());
        let second = open(&path, 0o600).expect("take over");
        drop(second);
        std::fs::write(&path, "text").expect("write");
        assert!(matches!(open(&path, 0o600), Err(SocketError::NoSocket(_))));
        std::fs::remove_dir_all(directory).expect("clean up");
    }
}
