//! The daemon of a host: its configuration and its start.

use std::fs::Permissions;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::process::{Process, Scratch};
use super::{PATIENCE, PORT, TaktError};

/// How often a daemon that starts is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The file of the key that both nodes of a measurement share.
const GROUP_KEY_FILE: &str = "group.key";

/// That key: it guards nothing.
pub(crate) const GROUP_KEY: &str = "dGhlIG5vZGVzIG9mIGEgYmVuY2htYXJrIHNoYXJlIGk=";

/// How datagrams between the nodes are protected: as the environment says, else as nodes do by default.
pub(crate) fn protection() -> String {
    std::env::var("TAKT_PROTECTION").unwrap_or_else(|_| "integrity".into())
}

/// What a daemon is told.
#[derive(Clone, Debug)]
pub(crate) struct Node<'a> {
    /// Its name, which its files have too.
    pub(crate) name: &'a str,
    /// Its address.
    pub(crate) address: Ipv4Addr,
    /// The core of its lane.
    pub(crate) core: usize,
    /// The other node.
    pub(crate) peer: Option<Ipv4Addr>,
    /// The interface for AF_XDP; none: kernel UDP alone.
    pub(crate) interface: Option<&'a str>,
    /// More lines of the node's section.
    pub(crate) node: &'a str,
    /// More lines of its lane's section.
    pub(crate) lane: &'a str,
    /// More lines of its listener's section, and sections behind it.
    pub(crate) listener: &'a str,
}

/// Where applications attach to the daemon `name` whose files are in `folder`.
pub(crate) fn socket(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.sock"))
}

/// Where the admin API of the daemon `name` is.
pub(crate) fn admin(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}-admin.sock"))
}

/// The configuration of the daemon `name`.
pub(crate) fn configuration(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}-node.toml"))
}

impl Node<'_> {
    fn configuration(&self, folder: &Path) -> String {
        let mut text = format!(
            "[node]\nname = \"{name}\"\naddress = \"{address}\"\nport = {PORT}\n{node}\n\
             [security]\nprotection = \"{protection}\"\n\
             group_key_file = \"{group}\"\nkey_file = \"{own}\"\n\n\
             [[lane]]\ncore = {core}\n{lane}\n\
             [[listener]]\npath = \"{socket}\"\n{listener}\n\
             [admin]\nsocket = \"{admin}\"\n\n\
             [log]\nlevel = \"warn\"\n",
            name = self.name,
            address = self.address,
            core = self.core,
            node = self.node,
            lane = self.lane,
            listener = self.listener,
            socket = socket(folder, self.name).display(),
            protection = protection(),
            group = folder.join(GROUP_KEY_FILE).display(),
            own = folder.join(format!("{}-node.key", self.name)).display(),
            admin = admin(folder, self.name).display(),
        );
        if let Some(peer) = self.peer {
            text.push_str(&format!("\n[[peer]]\naddress = \"{peer}:{PORT}\"\n"));
        }
        if let Some(interface) = self.interface {
            text.push_str(&format!("\n[datapath.xdp]\ninterface = \"{interface}\"\n"));
        }
        text
    }
}

/// A running daemon, ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    _process: Process,
}

impl Daemon {
    /// Starts `takt`, which is the program `takt` in the daemon's host, and waits until it is ready.
    pub(crate) fn start(
        mut takt: Command,
        node: &Node<'_>,
        scratch: &Scratch,
    ) -> Result<Self, TaktError> {
        let folder = scratch.path();
        let file = |ending: &str| folder.join(format!("{}-node.{ending}", node.name));
        let configuration = configuration(folder, node.name);
        let key = folder.join(GROUP_KEY_FILE);
        std::fs::write(&key, GROUP_KEY)
            .and_then(|()| std::fs::set_permissions(&key, Permissions::from_mode(0o600)))
            .map_err(TaktError::io(format!("write {}", key.display())))?;
        std::fs::write(&configuration, node.configuration(folder))
            .map_err(TaktError::io(format!("write {}", configuration.display())))?;
        let notices = UnixDatagram::bind(file("notify"))
            .and_then(|socket| {
                socket.set_read_timeout(Some(LOOK_INTERVAL))?;
                Ok(socket)
            })
            .map_err(TaktError::io("make a socket for a daemon's notices"))?;
        takt.args(["run", "--config"])
            .arg(&configuration)
            .env("NOTIFY_SOCKET", file("notify"))
            .env_remove("RUST_LOG");
        let mut process = Process::start(takt, &file("log"))?;
        wait_until_ready(&notices, &mut process)?;
        Ok(Self { _process: process })
    }
}

/// Waits for the notice of sd_notify(3).
fn wait_until_ready(notices: &UnixDatagram, process: &mut Process) -> Result<(), TaktError> {
    let deadline = Instant::now() + PATIENCE;
    let mut notice = [0; 512];
    while Instant::now() < deadline {
        match notices.recv(&mut notice) {
            Ok(length) => {
                let mut lines = notice[..length].split(|&octet| octet == b'\n');
                if lines.any(|line| line == b"READY=1") {
                    return Ok(());
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                process.check()?;
            }
            Err(error) => return Err(TaktError::io("read a daemon's notices")(error)),
        }
    }
    Err(process.silent(PATIENCE))
}
