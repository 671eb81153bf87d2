//! How runtimes of one user on one machine find each other: a directory that no other user may look into.
//!
//! Each runtime has a file there, named by its peering address and locked for as long as the runtime lives, so that
//! the file of one that was killed is told from a live one's. A runtime watches the directory, adds who comes as a
//! peer and removes who goes. Nobody else becomes a peer: a runtime of another user is a stranger.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{FlockOperation, flock, inotify};
use takt_runtime::RuntimeHandle;

use crate::{Error, GroupKey};

/// Most runtimes that are made peers of one.
const MOST: usize = 256;

/// The key by which runtimes of the user know each other: in the directory, made by the first of them. The dot in
/// front of its name keeps it apart from runtimes.
const KEY: &str = ".group.key";

/// Makes the directory, if need be, and reads the key that its runtimes share, which the first one makes.
pub fn group_key(directory: &Path) -> Result<GroupKey, Error> {
    let read = || -> io::Result<GroupKey> {
        if let Some(parent) = directory.parent() {
            takt::place::make_private(parent)?;
        }
        takt::place::make_private(directory)?;
        let path = directory.join(KEY);
        if !path.exists() {
            // It appears whole, and once.
            let draft = directory.join(format!(".{}-key-{:p}", std::process::id(), &path));
            fs::write(&draft, GroupKey::generate().reveal())?;
            fs::set_permissions(&draft, fs::Permissions::from_mode(0o600))?;
            match fs::hard_link(&draft, &path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => fs::remove_file(&draft)?,
            }
        }
        let text = fs::read_to_string(&path)?;
        let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        text.parse::<GroupKey>().map_err(wrong)
    };
    read().map_err(|source| Error::Rendezvous {
        what: "use the key in",
        directory: directory.to_owned(),
        source,
    })
}

/// A runtime's place in the directory; gives it up when dropped.
pub struct Rendezvous {
    file: PathBuf,
    /// Locked.
    _lock: File,
    stop: OwnedFd,
    watcher: Option<JoinHandle<()>>,
}

impl Rendezvous {
    /// Registers the runtime of `handle` in `directory`, and makes whoever is there its peer.
    pub fn join(directory: &Path, handle: RuntimeHandle) -> Result<Self, Error> {
        let cannot = |what: &'static str| {
            move |source: io::Error| Error::Rendezvous {
                what,
                directory: directory.to_owned(),
                source,
            }
        };
        let own = handle.status().map_err(|_| Error::Stopped)?.control_address;
        // Before the first look: who comes later is seen.
        let changes = watch(directory).map_err(cannot("watch"))?;
        let stop =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| cannot("watch")(errno.into()))?;
        let (lock, file) = register(directory, own).map_err(cannot("register in"))?;
        let mut neighbours = Neighbours {
            directory: directory.to_owned(),
            own,
            handle,
            known: BTreeSet::new(),
        };
        let mut rendezvous = Self {
            file,
            _lock: lock,
            stop,
            watcher: None,
        };
        neighbours.look().map_err(cannot("read"))?;
        let stop = rendezvous.stop.try_clone().map_err(cannot("watch"))?;
        let thread = std::thread::Builder::new()
            .name("takt-rendezvous".into())
            .spawn(move || neighbours.follow(&changes, &stop))
            .map_err(cannot("watch"))?;
        rendezvous.watcher = Some(thread);
        Ok(rendezvous)
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        // Removed by somebody already is as good.
        let _ = fs::remove_file(&self.file);
        if let Some(watcher) = self.watcher.take() {
            // Neither can fail: the counter is far from full, and the thread does not panic.
            let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
            let _ = watcher.join();
        }
    }
}

/// Makes the runtime's file, which appears locked.
fn register(directory: &Path, own: SocketAddr) -> io::Result<(File, PathBuf)> {
    // A dot in front: nobody looks at it.
    let draft = directory.join(format!(".{}-{own}", std::process::id()));
    let file = File::create(&draft)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let path = directory.join(own.to_string());
    fs::rename(&draft, &path)?;
    Ok((file, path))
}

fn watch(directory: &Path) -> io::Result<OwnedFd> {
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    inotify::add_watch(
        &changes,
        directory,
        inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::DELETE | inotify::WatchFlags::ONLYDIR,
    )?;
    Ok(changes)
}

/// The other runtimes.
struct Neighbours {
    directory: PathBuf,
    own: SocketAddr,
    handle: RuntimeHandle,
    known: BTreeSet<SocketAddr>,
}

impl Neighbours {
    /// Makes peers of who is there now, and no more of who has gone.
    fn look(&mut self) -> io::Result<()> {
        let mut there = BTreeSet::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(address) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if address == self.own {
                continue;
            }
            if lives(&entry.path()) {
                there.insert(address);
            } else {
                // It was killed. Somebody else may have removed it meanwhile.
                let _ = fs::remove_file(entry.path());
            }
            if there.len() == MOST {
                break;
            }
        }
        // A runtime that has stopped needs no peers any more: the watcher is about to be told.
        for gone in self.known.difference(&there) {
            let _ = self.handle.remove_peer(*gone);
        }
        for new in there.difference(&self.known) {
            let _ = self.handle.add_peer((*new).into());
        }
        self.known = there;
        Ok(())
    }

    /// Looks at every change until told to stop.
    fn follow(mut self, changes: &OwnedFd, stop: &OwnedFd) {
        let mut events = [0; 4096];
        loop {
            let mut ready = [
                PollFd::new(changes, PollFlags::IN),
                PollFd::new(stop, PollFlags::IN),
            ];
            match poll(&mut ready, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            if ready[1].revents().contains(PollFlags::IN) {
                return;
            }
            // What they say does not matter: the directory is looked at whole.
            while rustix::io::read(changes, &mut events).is_ok_and(|length| length > 0) {}
            if self.look().is_err() {
                return;
            }
        }
    }
}

/// Whether somebody holds the lock of that file.
fn lives(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| {
        flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK)
    })
}
