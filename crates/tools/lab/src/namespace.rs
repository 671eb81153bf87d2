//! Entering a persistent network namespace, from a thread and from a child process.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use rustix::system::sethostname;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::LabError;

/// Where `ip netns` keeps the names of namespaces.
const NAMES: &str = "/run/netns";

/// The file that stands for the namespace `name`.
fn path(name: &str) -> PathBuf {
    Path::new(NAMES).join(name)
}

/// Whether the namespace `name` exists.
pub(crate) fn exists(name: &str) -> Result<bool, LabError> {
    let path = path(name);
    path.try_exists()
        .map_err(LabError::io(format!("look for {}", path.display())))
}

/// The names of all persistent network namespaces.
pub(crate) fn names() -> Result<Vec<String>, LabError> {
    let entries = match std::fs::read_dir(NAMES) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            return Err(LabError::Io {
                action: format!("list {NAMES}"),
                source,
            });
        }
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(LabError::io(format!("list {NAMES}")))?;
        if let Some(name) = entry.file_name().to_str() {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn open(name: &str) -> Result<OwnedFd, LabError> {
    let path = path(name);
    File::open(&path)
        .map(OwnedFd::from)
        .map_err(LabError::io(format!(
            "open the namespace {}",
            path.display()
        )))
}

/// The calling thread is in a host of a lab for as long as this lives, then back where it was.
///
/// Only the network changes: sockets made meanwhile belong to the host and keep working anywhere,
/// threads started meanwhile are in the host for good, `/sys/class/net` still shows the outside.
#[derive(Debug)]
#[must_use = "the thread leaves the host when this is dropped"]
pub struct Inside {
    outside: OwnedFd,
    /// A namespace belongs to a thread, so the guard may not move to another.
    not_send: PhantomData<*const ()>,
}

/// Moves the calling thread into the namespace `name`.
pub(crate) fn enter(name: &str) -> Result<Inside, LabError> {
    let inside = open(name)?;
    let outside = File::open("/proc/thread-self/ns/net")
        .map_err(LabError::io("open /proc/thread-self/ns/net"))?;
    move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Network)).map_err(
        |errno| LabError::io(format!("enter the namespace {name} (root is needed)"))(errno.into()),
    )?;
    Ok(Inside {
        outside: outside.into(),
        not_send: PhantomData,
    })
}

impl Drop for Inside {
    fn drop(&mut self) {
        let back =
            move_into_link_name_space(self.outside.as_fd(), Some(LinkNameSpaceType::Network));
        // A thread that cannot leave would send its next packet in the wrong network. It takes
        // giving up CAP_SYS_ADMIN in between to get here.
        if let Err(errno) = back
            && !std::thread::panicking()
        {
            panic!("cannot leave the host's network namespace: {errno}");
        }
    }
}

/// Has `command` run with `name` as the name of the host.
pub(crate) fn name_host(command: &mut Command, name: &str) {
    let name = name.as_bytes().to_vec();
    // SAFETY: between fork and exec the closure makes two system calls on memory that it owns; it neither allocates nor
    // takes a lock.
    unsafe {
        command.pre_exec(move || {
            // SAFETY: a UTS namespace of its own takes no file descriptor from this process.
            unshare_unsafe(UnshareFlags::NEWUTS)?;
            sethostname(&name)?;
            Ok(())
        });
    }
}

/// A command that will run in the namespace `name`, with a `/sys` that shows it, as `ip netns exec` does.
pub(crate) fn command(name: &str, program: &std::ffi::OsStr) -> Result<Command, LabError> {
    let namespace = open(name)?;
    let mut command = Command::new(program);
    // SAFETY: between fork and exec the closure makes five system calls on constants and on a file
    // descriptor it owns; it neither allocates nor takes a lock (an `io::Error` from an errno is plain).
    unsafe {
        command.pre_exec(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            // SAFETY: a mount namespace of its own takes no file descriptor from this process.
            unshare_unsafe(UnshareFlags::NEWNS)?;
            mount_change(
                c"/",
                MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
            )?;
            unmount(c"/sys", UnmountFlags::DETACH)?;
            mount(
                c"takt-lab",
                c"/sys",
                c"sysfs",
                MountFlags::empty(),
                None::<&std::ffi::CStr>,
            )?;
            Ok(())
        });
    }
    Ok(command)
}
