//! Takt as `takt bench` measures it: the benchmarking application in processes of its own, one per lab
//! host and core, with the runtime inside or with a daemon of its host's beside it.
//!
//! Daemon and application of one host share the host's core, as the two threads of a peer's side share
//! theirs. Every run starts and ends all its processes, so that no variant inherits another's state.
//! What runs in the processes is in [`app`]; what is measured without such processes in [`departures`], [`local`], [`roam`] and
//! [`sinks`].

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use takt_lab::{Host, LabError};

use crate::application::Received;
use crate::experiment::Sample;
use crate::peers::{Pair, RoundTrips, Stream};
use crate::statistics::{Latencies, Throughput};

pub mod app;
pub mod control;
pub mod critical;
pub(crate) mod daemon;
pub mod departures;
pub mod frames;
pub mod local;
pub mod parts;
pub(crate) mod process;
pub mod roam;
pub mod sinks;
pub mod topics;
mod wire;

use daemon::Daemon;
use process::{Process, Scratch};

/// The peering port of both nodes.
const PORT: u16 = 7400;
/// How long a side may take beyond what was asked of it: to start, to find the other, to end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// How long a round trip may take on average before something is wrong.
const ROUND_TRIP_PATIENCE: Duration = Duration::from_millis(5);

/// Where the runtime is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Inside the application.
    Embedded,
    /// In a daemon.
    Daemon,
}

/// The datapath between the hosts, which also says what quality of service is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datapath {
    /// Kernel UDP, for streams that ask for nothing.
    Udp,
    /// AF_XDP, for streams that ask for acceleration.
    Xdp,
}

/// Why Takt could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum TaktError {
    /// A host could not be entered.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// The link cannot be looked at.
    #[error(transparent)]
    Link(#[from] crate::peers::PeerError),
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was being done.
        action: String,
        /// The reason.
        source: io::Error,
    },
    /// A process ended that was still needed, or with a failure.
    #[error("{command} ended early ({status}){said}")]
    Ended {
        /// Its command line.
        command: String,
        /// How it ended.
        status: String,
        /// What it said on standard error, after a colon; may be empty.
        said: String,
    },
    /// A process did not do its part in time, and was ended.
    #[error("{command} said nothing for {seconds} s{said}")]
    Silent {
        /// Its command line.
        command: String,
        /// How long it was waited for.
        seconds: u64,
        /// As in [`TaktError::Ended`].
        said: String,
    },
    /// A process said something that means nothing.
    #[error("{command} said {line:?}, which is no result: {reason}")]
    Answer {
        /// Its command line.
        command: String,
        /// What it said.
        line: String,
        /// Why it means nothing.
        reason: String,
    },
    /// The runtime in this process could not be used.
    #[error("cannot {action}: {reason}")]
    Runtime {
        /// What was being done.
        action: &'static str,
        /// The reason.
        reason: String,
    },
}

impl TaktError {
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }

    fn runtime(action: &'static str) -> impl FnOnce(String) -> Self {
        move |reason| Self::Runtime { action, reason }
    }
}

/// The program `takt`, which is daemon and benchmarking application in one.
#[derive(Clone, Debug)]
pub struct Takt {
    program: PathBuf,
    reliable: bool,
    topics: bool,
}

impl Takt {
    /// The program that this process runs.
    ///
    /// # Errors
    /// When the kernel does not tell which that is.
    pub fn this_program() -> Result<Self, TaktError> {
        let program =
            std::env::current_exe().map_err(TaktError::io("find the program of this process"))?;
        Ok(Self {
            program,
            reliable: false,
            topics: false,
        })
    }

    /// The same, over reliable streams.
    pub fn reliable(&self) -> Self {
        Self {
            reliable: true,
            ..self.clone()
        }
    }

    /// The same, by topic.
    pub fn topics(&self) -> Self {
        Self {
            topics: true,
            ..self.clone()
        }
    }

    /// Its path.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Round trips between two applications, each waiting for the other in blocking calls.
    ///
    /// # Errors
    /// When a process cannot be started, fails, or does not end; the error has what it said.
    pub fn round_trips(
        &self,
        form: Form,
        path: Datapath,
        pair: &Pair<'_>,
        options: &RoundTrips,
    ) -> Result<Sample, TaktError> {
        let sides = Sides::start(self, form, path, pair)?;
        let size = options.payload.to_string();
        let count = options.count.to_string();
        let _echo = sides.far(&["pong"])?;
        let mut near = sides.near(&["ping", "--size", &size, "--count", &count])?;
        let patience = PATIENCE + ROUND_TRIP_PATIENCE * options.count;
        let latencies: Latencies = near.answer(patience)?;
        Ok(latencies.into())
    }

    /// One-way throughput; messages are announced in bursts as large as the application's own.
    ///
    /// # Errors
    /// As [`round_trips`](Self::round_trips).
    pub fn stream(
        &self,
        form: Form,
        path: Datapath,
        pair: &Pair<'_>,
        options: &Stream,
    ) -> Result<Sample, TaktError> {
        let sides = Sides::start(self, form, path, pair)?;
        let size = options.payload.to_string();
        let seconds = options.duration.as_secs_f64().to_string();
        let mut far = sides.far(&["sink"])?;
        let mut near = sides.near(&["source", "--size", &size, "--seconds", &seconds])?;
        let sent: u64 = near.answer(options.duration + PATIENCE)?;
        let received: Received = far.answer(PATIENCE)?;
        let mut sample = Sample::from(Throughput {
            messages: received.messages,
            bytes: received.bytes,
            lost: sent.saturating_sub(received.messages),
            nanoseconds: received.nanos,
        });
        sample
            .figures
            .insert("dropped at the sink".to_owned(), received.dropped as f64);
        Ok(sample)
    }

    /// What each of so many sinks receives on average, in applications of their own on the receiving host (naaas-thesis-2024,
    /// figure 7.8b). Each counts from its first message to its last.
    ///
    /// # Errors
    /// As [`round_trips`](Self::round_trips).
    pub fn fan_out(
        &self,
        path: Datapath,
        pair: &Pair<'_>,
        options: &Stream,
        sinks: u32,
    ) -> Result<Sample, TaktError> {
        let sides = Sides::start(self, Form::Daemon, path, pair)?;
        let size = options.payload.to_string();
        let seconds = options.duration.as_secs_f64().to_string();
        let far: Result<Vec<Process>, _> = (0..sinks).map(|_| sides.far(&["sink"])).collect();
        let mut near = sides.near(&["source", "--size", &size, "--seconds", &seconds])?;
        let _sent: u64 = near.answer(options.duration + PATIENCE)?;
        let (mut rate, mut total) = (0.0, Received::default());
        for mut sink in far? {
            let received: Received = sink.answer(PATIENCE)?;
            rate += 1e9 * received.messages as f64 / received.nanos.max(1) as f64;
            total.messages += received.messages;
            total.bytes += received.bytes;
            total.lost += received.lost;
            total.dropped += received.dropped;
        }
        let each = u64::from(sinks.max(1));
        let mut sample = Sample::from(Throughput {
            messages: total.messages / each,
            bytes: total.bytes / each,
            lost: (total.lost + total.dropped) / each,
            nanoseconds: (1e9 * total.messages as f64 / rate.max(f64::MIN_POSITIVE)) as u64,
        });
        let all = rate / 1e3;
        (sample.figures).insert("k messages/s of all sinks".to_owned(), all);
        Ok(sample)
    }

    /// Frames of `payload` octets as fast as they go, each compared with what was sent.
    ///
    /// # Errors
    /// As [`round_trips`](Self::round_trips).
    pub fn frames(
        &self,
        form: Form,
        path: Datapath,
        pair: &Pair<'_>,
        options: &Stream,
    ) -> Result<Sample, TaktError> {
        let sides = Sides::start(self, form, path, pair)?;
        let size = options.payload.to_string();
        let seconds = options.duration.as_secs_f64().to_string();
        let mut far = sides.far(&["viewer", "--size", &size])?;
        let mut near = sides.near(&["camera", "--size", &size, "--seconds", &seconds])?;
        let _sent: u64 = near.answer(options.duration + PATIENCE)?;
        let viewed: frames::Viewed = far.answer(PATIENCE)?;
        let mut sample = Sample::from(viewed.latencies);
        sample.throughput = Some(Throughput {
            messages: viewed.frames,
            bytes: viewed.frames * options.payload as u64,
            lost: viewed.lost,
            nanoseconds: viewed.nanos,
        });
        let wrong = viewed.wrong as f64;
        sample.figures.insert("wrong frames".to_owned(), wrong);
        Ok(sample)
    }

    /// What the daemon behind `admin` answers to a command of `takt`.
    pub(crate) fn ask(
        &self,
        command: &[&str],
        admin: &Path,
    ) -> Result<serde_json::Value, TaktError> {
        let output = Command::new(&self.program)
            .args(command)
            .args(["--json", "--admin"])
            .arg(admin)
            .output();
        let command = format!("takt {}", command.join(" "));
        let output = output.map_err(TaktError::io(format!("run {command}")))?;
        if !output.status.success() {
            return Err(TaktError::Ended {
                command,
                status: output.status.to_string(),
                said: format!(": {}", String::from_utf8_lossy(&output.stderr).trim()),
            });
        }
        serde_json::from_slice(&output.stdout).map_err(|error| TaktError::Answer {
            command,
            reason: error.to_string(),
            line: String::from_utf8_lossy(&output.stdout).into_owned(),
        })
    }

    /// A command that runs a role of the benchmarking application in `host`.
    fn application(&self, host: &Host, role: &[&str]) -> Result<Command, TaktError> {
        let mut command = host.command(&self.program)?;
        command.arg("bench-app").args(role);
        Ok(command)
    }
}

/// Two hosts made ready for applications.
struct Sides<'a> {
    takt: &'a Takt,
    form: Form,
    path: Datapath,
    pair: &'a Pair<'a>,
    // Daemons before the folder that has their sockets.
    daemons: Vec<Daemon>,
    scratch: Scratch,
}

impl<'a> Sides<'a> {
    fn start(
        takt: &'a Takt,
        form: Form,
        path: Datapath,
        pair: &'a Pair<'a>,
    ) -> Result<Self, TaktError> {
        let mut sides = Self {
            takt,
            form,
            path,
            pair,
            daemons: Vec::new(),
            scratch: Scratch::new()?,
        };
        if form == Form::Daemon {
            for (host, core, peer) in [
                (pair.far, pair.far_core, pair.near),
                (pair.near, pair.near_core, pair.far),
            ] {
                let node = daemon::Node {
                    name: host.name(),
                    address: host.address(),
                    core,
                    peer: Some(peer.address()),
                    interface: (path == Datapath::Xdp).then(|| host.interface()),
                    node: "",
                    lane: "",
                    listener: "",
                };
                let command = host.command(&takt.program)?;
                let daemon = Daemon::start(command, &node, &sides.scratch)?;
                sides.daemons.push(daemon);
            }
        }
        Ok(sides)
    }

    fn far(&self, role: &[&str]) -> Result<Process, TaktError> {
        self.application(self.pair.far, self.pair.far_core, self.pair.near, role)
    }

    fn near(&self, role: &[&str]) -> Result<Process, TaktError> {
        self.application(self.pair.near, self.pair.near_core, self.pair.far, role)
    }

    fn application(
        &self,
        host: &Host,
        core: usize,
        peer: &Host,
        role: &[&str],
    ) -> Result<Process, TaktError> {
        let mut command = self.takt.application(host, role)?;
        command.args(["--core", &core.to_string()]);
        if self.path == Datapath::Xdp {
            command.arg("--fast");
        }
        if self.takt.reliable {
            command.arg("--reliable");
        }
        if self.takt.topics {
            command.arg("--topics");
        }
        match self.form {
            Form::Daemon => {
                let socket = daemon::socket(self.scratch.path(), host.name());
                command.env(takt::SOCKET_VARIABLE, socket);
            }
            Form::Embedded => {
                let address = |host: Ipv4Addr| format!("{host}:{PORT}");
                command
                    .arg("--embedded")
                    .env("TAKT_ADDRESS", host.address().to_string())
                    .env("TAKT_PORT", PORT.to_string())
                    .env("TAKT_PEERS", address(peer.address()))
                    .env("TAKT_PROTECTION", daemon::protection())
                    .env("TAKT_GROUP_KEY", daemon::GROUP_KEY)
                    .env_remove("TAKT_INTERFACE");
                if self.path == Datapath::Xdp {
                    command.env("TAKT_INTERFACE", host.interface());
                }
            }
        }
        let log = self.scratch.path().join(format!("{}.log", host.name()));
        Process::start(command, &log)
    }
}
