//! Where the sockets of a node are on this machine.
//!
//! A node that root runs has them in `/run/takt`. One that another user runs has them in a directory of that user,
//! which nobody else may look into: two users of a machine do not meet by accident. Environment variables name others.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where the node of the system has its sockets.
pub const SYSTEM_DIRECTORY: &str = "/run/takt";

/// A socket of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// The one that applications attach to.
    Applications,
    /// The one of the admin API.
    Admin,
}

impl Socket {
    /// The environment variable that names it.
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Applications => crate::SOCKET_VARIABLE,
            Self::Admin => "TAKT_ADMIN_SOCKET",
        }
    }

    const fn file(self) -> &'static str {
        match self {
            Self::Applications => "takt.sock",
            Self::Admin => "admin.sock",
        }
    }

    /// What its environment variable says.
    pub fn from_environment(self) -> Option<PathBuf> {
        std::env::var_os(self.variable())
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
    }

    /// Where a node that this process runs makes it, unless its configuration says otherwise.
    pub fn of_own_node(self) -> PathBuf {
        self.from_environment()
            .unwrap_or_else(|| own_directory().join(self.file()))
    }

    /// Where a program looks for it, unless told otherwise: the user's own node first, then the system's.
    pub fn to_attach_to(self) -> PathBuf {
        self.from_environment().unwrap_or_else(|| {
            let directory = user_directory();
            let own = directory.join(self.file());
            if !rustix::process::geteuid().is_root() && is_private(&directory) && own.exists() {
                own
            } else {
                Path::new(SYSTEM_DIRECTORY).join(self.file())
            }
        })
    }
}

/// Where a node that this process runs has its sockets: the system's directory if it may write there.
pub fn own_directory() -> PathBuf {
    let system = Path::new(SYSTEM_DIRECTORY);
    let writable = || rustix::fs::access(system, rustix::fs::Access::WRITE_OK).is_ok();
    if rustix::process::geteuid().is_root() || writable() {
        system.to_owned()
    } else {
        user_directory()
    }
}

/// The directory of this process's user: `$XDG_RUNTIME_DIR/takt`, or `/tmp/takt-UID` where there is no such variable.
/// It need not be there.
pub fn user_directory() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(directory) if directory.is_absolute() => directory.join("takt"),
        _ => format!("/tmp/takt-{}", rustix::process::geteuid().as_raw()).into(),
    }
}

/// Makes `directory` for this process's user alone, if it is not there.
///
/// # Errors
/// When it cannot be made, or when what is there belongs to somebody else or lets others in.
pub fn make_private(directory: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(io::Error::new(
                error.kind(),
                format!(
                    "cannot make the directory {} for this user's sockets: {error}; set XDG_RUNTIME_DIR to a directory of \
                     this user, or configure other paths",
                    directory.display()
                ),
            ));
        }
        _ => {}
    }
    if is_private(directory) {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{} must be a directory of this user with mode 0700: remove it, or set XDG_RUNTIME_DIR",
                directory.display()
            ),
        ))
    }
}

/// Whether it is a directory of this process's user that nobody else may look into.
pub fn is_private(directory: &Path) -> bool {
    std::fs::symlink_metadata(directory).is_ok_and(|found| {
        found.is_dir()
            && found.uid() == rustix::process::geteuid().as_raw()
            && found.mode() & 0o077 == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_that_lets_others_in_is_not_used() {
        let directory = std::env::temp_dir().join(format!("takt-t-{}-place", std::process::id()));
        make_private(&directory).expect("made");
        make_private(&directory).expect("there");
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).expect("mode");
        let error = make_private(&directory).expect_err("open to others");
        assert!(error.to_string().contains("0700"), "{error}");
        let link = directory.with_extension("link");
        std::os::unix::fs::symlink(&directory, &link).expect("a link");
        assert!(
            !is_private(&link),
            "whoever made a link may lead it elsewhere"
        );
        std::fs::remove_file(&link).expect("clean up");
        std::fs::remove_dir(&directory).expect("clean up");
    }
}
