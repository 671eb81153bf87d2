//! A daemon run by `takt run`, and `takt` asked about it.

#![allow(dead_code)] // each test program uses its part

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Output, Stdio};

use takt_testing::{Directory, PATIENCE};

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    /// Its JSON.
    pub fn json(&self) -> serde_json::Value {
        match serde_json::from_str(&self.out) {
            Ok(value) => value,
            Err(error) => panic!("{error} in {self:?}"),
        }
    }
}

/// `takt` with these arguments, and without the environment's wishes.
pub fn takt(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_takt"));
    for variable in [
        "RUST_LOG",
        "NOTIFY_SOCKET",
        "TAKT_SOCKET",
        "TAKT_ADMIN_SOCKET",
        "TAKT_ADDRESS",
        "TAKT_PORT",
        "TAKT_PEERS",
        "TAKT_INTERFACE",
    ] {
        command.env_remove(variable);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs `takt` to its end.
pub fn run(arguments: &[&str]) -> Ran {
    takt(arguments).output().expect("takt").into()
}

/// A child that goes with its owner.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).expect("running");
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ran {
        use std::io::Read;
        let mut ran = Ran {
            code: None,
            out: String::new(),
            err: String::new(),
        };
        if let Some(mut out) = self.0.stdout.take() {
            out.read_to_string(&mut ran.out).expect("text");
        }
        if let Some(mut err) = self.0.stderr.take() {
            err.read_to_string(&mut ran.err).expect("text");
        }
        ran.code = self.0.wait().expect("an end").code();
        ran
    }
}

/// A daemon on loopback.
pub struct Daemon {
    pub directory: Directory,
    pub process: Running,
}

impl Daemon {
    pub fn start(more: &str) -> Self {
        let directory = Directory::new();
        let daemon_socket = UnixDatagram::bind(directory.join("notify.sock")).expect("bind");
        daemon_socket
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout");
        let text = format!(
            "[node]\nname = \"test\"\naddress = \"127.0.0.1\"\nport = 0\n[admin]\nsocket = \"{}\"\n\
             [[listener]]\npath = \"{}\"\n{more}",
            directory.text("admin.sock"),
            directory.text("takt.sock"),
        );
        std::fs::write(directory.join("takt.toml"), text).expect("write");
        let child = takt(&["run", "--config", &directory.text("takt.toml")])
            .env("NOTIFY_SOCKET", directory.join("notify.sock"))
            .stderr(Stdio::piped())
            .spawn()
            .expect("the daemon");
        let process = Running(child);
        let mut buffer = [0; 512];
        let length = daemon_socket.recv(&mut buffer).expect("readiness");
        assert!(buffer[..length].starts_with(b"READY=1"));
        Self { directory, process }
    }

    /// `takt` with these arguments, asking this daemon.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = takt(arguments);
        command
            .env("TAKT_ADMIN_SOCKET", self.directory.join("admin.sock"))
            .env("TAKT_SOCKET", self.directory.join("takt.sock"));
        command
    }

    /// Runs it to its end.
    pub fn takt(&self, arguments: &[&str]) -> Ran {
        self.command(arguments).output().expect("takt").into()
    }

    /// Starts it with its output to be read.
    pub fn spawn(&self, arguments: &[&str]) -> Running {
        let child = self
            .command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Running(child.expect("takt"))
    }
}
