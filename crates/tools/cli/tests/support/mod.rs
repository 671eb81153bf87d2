//! A daemon run by `takt run`, and `takt` asked about it.

#![allow(dead_code)] // each test program uses its part

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::Signal;
use takt_testing::{Directory, PATIENCE, uninterrupted};

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
        "XDG_RUNTIME_DIR",
    ] {
        command.env_remove(variable);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A command in namespaces of its own.
pub fn apart(command: &Command, namespaces: &[&str]) -> Command {
    let mut unshare = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        unshare.arg("--map-root-user");
    }
    unshare.args(namespaces);
    unshare.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => unshare.env(name, value),
            None => unshare.env_remove(name),
        };
    }
    unshare.stdin(Stdio::null());
    unshare
}

/// A user of this machine with a runtime directory, who sees no node of the system.
pub struct User {
    pub directory: Directory,
    uid: u32,
}

impl User {
    /// `None`, with the reason, where this process may not become another user.
    pub fn new(uid: u32) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: becoming another user needs root");
            return None;
        }
        let directory = Directory::new();
        std::os::unix::fs::chown(directory.path(), Some(uid), Some(uid)).expect("root");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(directory.path(), mode).expect("root");
        // A place of the program's own: the user may not be let into the one where it was built.
        let program = directory.join("takt-program");
        std::fs::copy(env!("CARGO_BIN_EXE_takt"), program).expect("a copy");
        Some(Self { directory, uid })
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let takt = takt(&[]);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c"]).arg(
            "mkdir -p /run/takt && mount -t tmpfs -o mode=755 none /run/takt && \
             exec setpriv --reuid=$0 --regid=$0 --clear-groups \"$@\"",
        );
        command.arg(self.uid.to_string());
        command.arg(self.directory.join("takt-program"));
        command.args(arguments).stdin(Stdio::null());
        for (name, value) in takt.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("XDG_RUNTIME_DIR", self.directory.join(""));
        command
    }

    pub fn takt(&self, arguments: &[&str]) -> Ran {
        self.command(arguments).output().expect("unshare").into()
    }

    pub fn spawn(&self, arguments: &[&str]) -> Running {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(command.spawn().expect("unshare"))
    }
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
    pub fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).expect("running");
    }

    /// It stands still from here on.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        takt_testing::until_stopped(self.0.id());
    }

    /// Until a signal does not end it any more.
    pub fn until_signals_are_its_own(&self) {
        let pid = self.0.id();
        takt_testing::until_true("signals are its own", || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("running");
            let caught = status
                .lines()
                .find_map(|line| line.strip_prefix("SigCgt:\t"));
            let caught = u64::from_str_radix(caught.expect("signals"), 16).expect("a mask");
            [Signal::INT, Signal::TERM]
                .iter()
                .all(|signal| caught & (1 << (signal.as_raw() - 1)) != 0)
        });
    }

    /// The first line on standard error that has this text; what is before it is gone.
    pub fn line_with(&mut self, text: &str) -> String {
        use std::io::Read;
        let err = self.0.stderr.as_mut().expect("its standard error");
        let mut line = Vec::new();
        let mut before = String::new();
        // Byte by byte: what follows is for `end`.
        let mut byte = [0];
        while err.read(&mut byte).expect("text") > 0 {
            if byte != *b"\n" {
                line.extend(byte);
                continue;
            }
            let read = String::from_utf8_lossy(&std::mem::take(&mut line)).into_owned();
            if read.contains(text) {
                return read;
            }
            before.push_str(&read);
            before.push('\n');
        }
        panic!("it ended without saying {text:?}, but:\n{before}");
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
        Self::start_as(more, |daemon| daemon)
    }

    /// One in a process namespace of its own, in which nobody else has a number.
    pub fn start_apart(more: &str) -> Self {
        Self::start_as(more, |daemon| {
            apart(&daemon, &["--pid", "--fork", "--kill-child"])
        })
    }

    fn start_as(more: &str, through: impl FnOnce(Command) -> Command) -> Self {
        let directory = Directory::new();
        let text = format!(
            "[node]\nname = \"test\"\naddress = \"127.0.0.1\"\nport = 0\n{}[admin]\nsocket = \"{}\"\n\
             [[listener]]\npath = \"{}\"\n{more}",
            directory.security(),
            directory.text("admin.sock"),
            directory.text("takt.sock"),
        );
        Self::start_in(directory, &text, through)
    }

    /// One with this configuration, which has its sockets in the directory.
    pub fn start_with(directory: Directory, text: &str) -> Self {
        Self::start_in(directory, text, |daemon| daemon)
    }

    fn start_in(
        directory: Directory,
        text: &str,
        through: impl FnOnce(Command) -> Command,
    ) -> Self {
        let daemon_socket = UnixDatagram::bind(directory.join("notify.sock")).expect("bind");
        daemon_socket
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout");
        std::fs::write(directory.join("takt.toml"), text).expect("write");
        let child = through(takt(&["run", "--config", &directory.text("takt.toml")]))
            .env("NOTIFY_SOCKET", directory.join("notify.sock"))
            .stderr(Stdio::piped())
            .spawn()
            .expect("the daemon");
        let process = Running(child);
        let mut buffer = [0; 512];
        let length = uninterrupted(|| daemon_socket.recv(&mut buffer)).expect("readiness");
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
