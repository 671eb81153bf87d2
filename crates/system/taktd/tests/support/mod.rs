//! A daemon as a service manager runs it: a process with a configuration file and a readiness socket.

#![allow(dead_code)] // each test program uses its part

use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use takt::Session;
use takt_testing::{Directory, PATIENCE, uninterrupted};
use taktd::admin::client::{Client, connect};

/// A running daemon.
pub struct Daemon {
    pub directory: Directory,
    child: Child,
    notifications: UnixDatagram,
}

/// A configuration on loopback, with any port and sockets in `directory`, and `more` behind it.
pub fn configuration(directory: &Directory, more: &str) -> String {
    format!(
        "[node]\nname = \"test\"\naddress = \"127.0.0.1\"\nport = 0\ndrain_seconds = 60\n\
         {}[admin]\nsocket = \"{}\"\n{}",
        directory.security(),
        directory.join("admin.sock").display(),
        more.replace("DIR", &directory.path().display().to_string()),
    )
}

/// A listener in the daemon's directory.
pub const LISTENER: &str = "[[listener]]\npath = \"DIR/takt.sock\"\n";

impl Daemon {
    /// Starts one, and waits until it is ready. `DIR` in `more` stands for its directory.
    pub fn start(more: &str) -> Self {
        let directory = Directory::new();
        let text = configuration(&directory, more);
        std::fs::write(directory.join("takt.toml"), text).expect("write");
        Self::start_in(directory)
    }

    /// Starts one with the configuration `takt.toml` of the directory.
    pub fn start_in(directory: Directory) -> Self {
        let path = directory.join("notify.sock");
        let _ = std::fs::remove_file(&path);
        let notifications = UnixDatagram::bind(&path).expect("bind");
        notifications
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout");
        let child = command(&directory)
            .env("NOTIFY_SOCKET", &path)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the daemon");
        let mut daemon = Self {
            directory,
            child,
            notifications,
        };
        daemon.expect_notification("READY=1");
        daemon
    }

    /// Waits for a notification that has this line.
    pub fn expect_notification(&mut self, line: &str) {
        let mut buffer = [0; 4096];
        loop {
            match uninterrupted(|| self.notifications.recv(&mut buffer)) {
                Ok(length) => {
                    let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                    if text.lines().any(|found| found == line) {
                        return;
                    }
                }
                Err(error) => {
                    let _ = self.child.kill();
                    panic!("no {line}: {error}; the daemon says: {}", self.log());
                }
            }
        }
    }

    /// All that the daemon has said; it must have ended.
    fn log(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut text);
        }
        text
    }

    pub fn signal(&self, signal: i32) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let signal = rustix::process::Signal::from_named_raw(signal).expect("a signal");
        rustix::process::kill_process(pid, signal).expect("the daemon runs");
    }

    /// Waits for its end: exit code and log.
    pub fn end(mut self) -> (Option<i32>, String, Directory) {
        let log = self.log();
        let status = self.child.wait().expect("an end");
        // The rest of this value is done with.
        let directory = std::mem::replace(&mut self.directory, Directory::new());
        (status.code(), log, directory)
    }

    pub fn file(&self) -> PathBuf {
        self.directory.join("takt.toml")
    }

    /// Replaces the configuration.
    pub fn write(&self, more: &str) {
        std::fs::write(self.file(), configuration(&self.directory, more)).expect("write");
    }

    pub async fn client(&self) -> Client {
        connect(&self.directory.join("admin.sock"))
            .await
            .expect("the admin API")
    }

    /// An application attached to `takt.sock`.
    pub fn application(&self, name: &str) -> Session {
        Session::builder()
            .socket(self.directory.join("takt.sock"))
            .name(name)
            .reconnect(false)
            .open()
            .expect("a session")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The daemon with the configuration `takt.toml` of the directory.
pub fn command(directory: &Directory) -> Command {
    let mut command = taktd();
    command.arg("--config").arg(directory.join("takt.toml"));
    command
}

/// The daemon without arguments and without the environment's wishes.
pub fn taktd() -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_taktd")));
    command
        .env_remove("RUST_LOG")
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .stdin(Stdio::null());
    command
}
