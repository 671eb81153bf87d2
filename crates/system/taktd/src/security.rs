//! The files of a node's keys: read with care, and made where one is missing.

use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use takt_runtime::peering::keys::Security;
pub use takt_runtime::peering::keys::{GroupKey, KeyError, PrivateKey, PublicKey};
use takt_session::place;

use crate::config::file;

/// Where the key of a node is kept that root runs.
pub const SYSTEM_KEY_FILE: &str = "/var/lib/takt/node.key";

/// Where a node's own key is kept unless configured otherwise: in `/var/lib/takt` if root runs the node, else in the
/// user's state directory (XDG base directory specification: `$XDG_STATE_HOME/takt`, or `~/.local/state/takt`).
pub fn default_key_file() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return SYSTEM_KEY_FILE.into();
    }
    let of = |variable| {
        let path = PathBuf::from(std::env::var_os(variable)?);
        path.is_absolute().then_some(path)
    };
    of("XDG_STATE_HOME")
        .or_else(|| Some(of("HOME")?.join(".local/state")))
        .map_or_else(place::user_directory, |state| state.join("takt"))
        .join("node.key")
}

/// Where the key is kept that a node is going to have.
pub fn next_file(key_file: &Path) -> PathBuf {
    let mut next = resolved(key_file).into_os_string();
    next.push(".next");
    next.into()
}

/// The file itself, where links lead to it: what a link names has the key, also when somebody makes the link anew.
fn resolved(key_file: &Path) -> PathBuf {
    std::fs::canonicalize(key_file).unwrap_or_else(|_| key_file.to_owned())
}

/// The key that the node of this key file is going to have. It is made if it is not there yet, `like` that one if it is given, and
/// with the modes of the key file.
///
/// # Errors
/// [`KeyFileError`].
pub fn next(key_file: &Path, like: Option<&PrivateKey>) -> Result<PrivateKey, KeyFileError> {
    let path = next_file(key_file);
    match read(&path) {
        Err(KeyFileError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {}
        there => return there,
    }
    let key = like.cloned().unwrap_or_else(PrivateKey::generate);
    let as_before = |file: &std::fs::File| {
        let before = std::fs::metadata(key_file)?;
        let there = file.metadata()?;
        if (before.uid(), before.gid()) != (there.uid(), there.gid()) {
            fchown(file, Some(before.uid()), Some(before.gid()))?;
        }
        file.set_permissions(before.permissions())
    };
    write_as(&path, &key.reveal(), as_before)?;
    Ok(key)
}

/// The next key takes the place of the node's key in its file, in one step: after a crash it is the one or the other.
///
/// # Errors
/// [`KeyFileError::Write`].
pub fn switch(key_file: &Path) -> Result<(), KeyFileError> {
    let (next, file) = (next_file(key_file), resolved(key_file));
    let switched = std::fs::rename(&next, &file);
    switched
        .and_then(|()| sync(&file))
        .map_err(|source| KeyFileError::Write {
            path: key_file.to_owned(),
            source,
        })
}

/// Has what has become of a file in its directory outlast a loss of power.
fn sync(path: &Path) -> std::io::Result<()> {
    std::fs::File::open(directory_of(path))?.sync_all()
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if directory != Path::new("") => directory,
        _ => Path::new("."),
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read.
    #[error("cannot read the key file {path}: {source}; `takt key generate {path}` makes one")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// It cannot be made.
    #[error(
        "cannot make the key file {path}: {source}; {}", remedy(.source)
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// It is there already.
    #[error(
        "the key file {path} is there already and is left as it is: `takt key show {path}` prints the public key of a node's; name another file, or remove this one first"
    )]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Others may read it.
    #[error("the key file {path} has mode {mode:04o}: anybody can read it; chmod 600 {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// There is something else in it.
    #[error(
        "{path} holds no key: {source}; if it is of no use remove it: `takt key generate {path}` makes one"
    )]
    Key {
        /// The file.
        path: PathBuf,
        /// What a key is.
        source: KeyError,
    },
}

fn remedy(source: &std::io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "make room there, or name a file elsewhere"
        }
        _ => "name a file that this user may write, or run it as root",
    }
}

/// Reads a key.
///
/// # Errors
/// [`KeyFileError`].
pub fn read<K: FromStr<Err = KeyError>>(path: &Path) -> Result<K, KeyFileError> {
    let failed = |source| KeyFileError::Read {
        path: path.to_owned(),
        source,
    };
    let mode = std::fs::metadata(path).map_err(failed)?.mode() & 0o7777;
    if mode & 0o007 != 0 {
        return Err(KeyFileError::Open {
            path: path.to_owned(),
            mode,
        });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    text.parse().map_err(|source| KeyFileError::Key {
        path: path.to_owned(),
        source,
    })
}

/// Writes a key into a new file that its owner alone can read, all of it or nothing; one that is there is left as it is.
///
/// # Errors
/// [`KeyFileError::Exists`], [`KeyFileError::Write`].
pub fn write(path: &Path, key: &str) -> Result<(), KeyFileError> {
    write_as(path, key, |_| Ok(()))
}

fn write_as(
    path: &Path,
    key: &str,
    prepare: impl FnOnce(&std::fs::File) -> std::io::Result<()>,
) -> Result<(), KeyFileError> {
    let write = || -> std::io::Result<()> {
        let directory = directory_of(path);
        std::fs::create_dir_all(directory)?;
        // Of mode 0600, and removed again if anything fails.
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        prepare(file.as_file())?;
        file.write_all(format!("{key}\n").as_bytes())?;
        file.as_file().sync_all()?;
        file.persist_noclobber(path)?;
        sync(path)
    };
    let path = path.to_owned();
    write().map_err(|source| match source.kind() {
        ErrorKind::AlreadyExists => KeyFileError::Exists { path },
        _ => KeyFileError::Write { path, source },
    })
}

/// The keys that a section names. The node's own is made if it is not there.
///
/// # Errors
/// [`KeyFileError`]. A node's own key that cannot be made is missed only by peers that are listed with theirs: that
/// is told when there are such.
pub fn load(section: &file::Security) -> Result<Security, KeyFileError> {
    let mut security = Security {
        protection: section.protection.into(),
        allow: section.allow.iter().map(|key| key.0).collect(),
        rekey: Duration::from_secs(section.rekey_seconds),
        ..Security::default()
    };
    if !security.is_on() {
        return Ok(security);
    }
    if let Some(path) = &section.group_key_file {
        security.group = Some(read(path)?);
    }
    let key_file = section.key_file.clone().unwrap_or_else(default_key_file);
    security.node = match read(&key_file) {
        Ok(key) => Some(key),
        // A directory that this user may not look into, where nobody has asked for that one, is as good as none.
        Err(KeyFileError::Read { source, .. })
            if source.kind() == ErrorKind::NotFound
                || section.key_file.is_none() && source.kind() == ErrorKind::PermissionDenied =>
        {
            let key = PrivateKey::generate();
            match write(&key_file, &key.reveal()) {
                Ok(()) => {
                    tracing::info!(file = %key_file.display(), public = %key.public(), "made a key for this node");
                    Some(key)
                }
                Err(error) => {
                    tracing::warn!(%error, "this node has no key of its own");
                    None
                }
            }
        }
        Err(error) => return Err(error),
    };
    security.next = match read(&next_file(&key_file)) {
        Ok(key) => security.node.is_some().then_some(key),
        Err(KeyFileError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(%error, "the next key of this node is not used");
            None
        }
    };
    Ok(security)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use takt_testing::Directory;

    #[test]
    fn the_first_start_makes_a_key_that_the_next_one_finds() {
        let directory = Directory::new();
        let section = file::Security {
            key_file: Some(directory.join("state/node.key")),
            ..file::Security::default()
        };
        let first = load(&section).expect("made");
        let made = std::fs::metadata(directory.join("state/node.key"));
        let mode = made.expect("there").mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert!(first.node.is_some());
        assert_eq!(load(&section).expect("read"), first);
    }

    #[test]
    fn a_key_file_that_is_a_link_stays_one() {
        let directory = Directory::new();
        let (file, link) = (directory.join("real.key"), directory.join("node.key"));
        write(&file, &PrivateKey::generate().reveal()).expect("written");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        let made = next(&link, None).expect("the next one");
        switch(&link).expect("switched");
        assert!(
            std::fs::symlink_metadata(&link)
                .expect("there")
                .is_symlink()
        );
        for path in [&file, &link] {
            let key = read::<PrivateKey>(path).expect("a key");
            assert_eq!(key.public(), made.public());
        }
    }

    #[test]
    fn a_key_that_others_can_read_or_that_is_none_is_refused_with_a_remedy() {
        let directory = Directory::new();
        let path = directory.join("group.key");
        write(&path, &GroupKey::generate().reveal()).expect("written");
        assert!(matches!(
            write(&path, "x"),
            Err(KeyFileError::Exists { .. })
        ));
        let set = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode));
        set(0o644).expect("its mode");
        let error = read::<GroupKey>(&path).expect_err("open");
        assert!(error.to_string().contains("chmod 600"), "{error}");
        set(0o600).expect("its mode");
        assert!(read::<GroupKey>(&path).is_ok());
        std::fs::write(&path, "secret").expect("written");
        let error = read::<GroupKey>(&path).expect_err("no key");
        assert!(error.to_string().contains("takt key generate"), "{error}");
    }
}
