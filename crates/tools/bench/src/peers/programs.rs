//! Other messaging systems, by the program `takt-bench-peers`: one process per side.
//!
//! The program is built in a workspace of its own (`bench-peers`). It speaks lines of JSON: the far
//! side says `{"ready":true}`, and each side ends with its sample.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use takt_lab::Host;

use super::{Beside, COMPLETION, Critical, Incoming, LINK, Pair, PeerError, RoundTrips, Stream};
use crate::experiment::Sample;

/// The name of the program.
const PROGRAM: &str = "takt-bench-peers";
/// The variable that says where the program is.
const VARIABLE: &str = "TAKT_BENCH_PEERS";
/// The TCP port of the far side.
const PORT: u16 = 7711;
/// How long a side may take beyond what was asked of it: to start, to find the other, to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a round trip may take on average before something is wrong.
const ROUND_TRIP_PATIENCE: Duration = Duration::from_millis(20);

/// A system that the program can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Eclipse zenoh, peer to peer over TCP.
    Zenoh,
    /// ZeroMQ over TCP.
    ZeroMq,
    /// Aeron over UDP, polling.
    Aeron,
    /// Eclipse Cyclone DDS over UDP, which finds the other side by multicast; reliable, or best effort.
    CycloneDds {
        /// Samples that are lost are sent again.
        reliable: bool,
    },
    /// Eclipse iceoryx2: shared memory, so both sides are on this machine whatever their hosts.
    Iceoryx2,
}

impl System {
    /// What the program calls it.
    fn word(self) -> &'static str {
        match self {
            Self::Zenoh => "zenoh",
            Self::ZeroMq => "zmq",
            Self::Aeron => "aeron",
            Self::CycloneDds { .. } => "cyclone",
            Self::Iceoryx2 => "iceoryx2",
        }
    }

    /// Where the two sides meet.
    fn meeting_point(self, far: &Host) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        match self {
            Self::Zenoh | Self::ZeroMq | Self::Aeron | Self::CycloneDds { .. } => {
                format!("{}:{PORT}", far.address())
            }
            // A name of its own for each run. Relaxed: only the numbers have to differ.
            Self::Iceoryx2 => format!(
                "{}-{}",
                std::process::id(),
                NEXT.fetch_add(1, Ordering::Relaxed)
            ),
        }
    }
}

/// The program `takt-bench-peers`.
#[derive(Clone, Debug)]
pub struct Programs {
    program: PathBuf,
}

impl Programs {
    /// Finds the program: where the environment variable `TAKT_BENCH_PEERS` says, else beside this
    /// program, else where it is built in the source tree around the working directory.
    ///
    /// # Errors
    /// When it is nowhere.
    pub fn find() -> Result<Self, PeerError> {
        if let Some(program) = std::env::var_os(VARIABLE) {
            return Ok(Self {
                program: program.into(),
            });
        }
        let beside = std::env::current_exe()
            .ok()
            .and_then(|own| Some(own.parent()?.join(PROGRAM)));
        let built = PathBuf::from("bench-peers/target/release").join(PROGRAM);
        let program = beside
            .into_iter()
            .chain([built])
            .find(|path| path.is_file());
        program.map(|program| Self { program }).ok_or_else(|| PeerError::Program {
            command: PROGRAM.to_owned(),
            reason: format!(
                "it was not found; run `cargo build --release` in bench-peers (it needs libzmq3-dev), or set {VARIABLE} to where it is"
            ),
        })
    }

    /// The program at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            program: path.into(),
        }
    }

    /// One-way throughput. How much is handed over at once is the system's own choice.
    ///
    /// # Errors
    /// When a side cannot be started, fails, or does not end.
    pub fn stream(
        &self,
        system: System,
        pair: &Pair<'_>,
        options: &Stream,
    ) -> Result<Sample, PeerError> {
        let duration = [
            "--duration-ms".to_owned(),
            options.duration.as_millis().to_string(),
        ];
        let patience = options.duration + PATIENCE;
        let (near, far) = self.run(
            system,
            pair,
            options.payload,
            ["pub", "sub"],
            &duration,
            patience,
        )?;
        self.throughput(system, &near, &far)
    }

    /// Round trips.
    ///
    /// # Errors
    /// As [`stream`](Self::stream).
    pub fn round_trips(
        &self,
        system: System,
        pair: &Pair<'_>,
        options: &RoundTrips,
    ) -> Result<Sample, PeerError> {
        self.ping(system, pair, options).map(|(near, _)| near)
    }

    /// The way of each message to the far side of iceoryx2, by the clock that both sides share; warming
    /// up counts, since the far side does not know of it.
    ///
    /// # Errors
    /// As [`stream`](Self::stream).
    pub fn iceoryx2_one_way(
        &self,
        pair: &Pair<'_>,
        options: &RoundTrips,
    ) -> Result<Sample, PeerError> {
        self.ping(System::Iceoryx2, pair, options)
            .map(|(_, far)| far)
    }

    fn ping(
        &self,
        system: System,
        pair: &Pair<'_>,
        options: &RoundTrips,
    ) -> Result<(Sample, Sample), PeerError> {
        let counts = [("--warm-up", options.warm_up), ("--count", options.count)];
        let counts: Vec<_> = counts
            .into_iter()
            .flat_map(|(name, n)| [name.to_owned(), n.to_string()])
            .collect();
        let patience =
            PATIENCE + ROUND_TRIP_PATIENCE * options.warm_up.saturating_add(options.count);
        let samples = self.run(
            system,
            pair,
            options.payload,
            ["ping", "pong"],
            &counts,
            patience,
        )?;
        if samples.0.latencies.is_none() {
            return Err(self.error(system, "the near side told no latencies"));
        }
        Ok(samples)
    }

    /// A critical flow by Cyclone DDS, reliable, beside other traffic of the same host by the same system, best effort.
    ///
    /// # Errors
    /// As [`stream`](Self::stream).
    pub fn critical(
        &self,
        pair: &Pair<'_>,
        flow: &Critical,
        beside: Beside,
    ) -> Result<Sample, PeerError> {
        let patience = 4 * flow.pace.duration + PATIENCE;
        let duration = |duration: Duration| {
            let milliseconds = duration.as_millis().to_string();
            ["--duration-ms".to_owned(), milliseconds]
        };
        let mut load = match beside {
            Beside::Nothing => None,
            Beside::Saturating | Beside::Bursts => {
                // Until it is ended.
                let mut options = duration(2 * patience).to_vec();
                if beside == Beside::Bursts {
                    options.push("--bursts".to_owned());
                }
                let system = System::CycloneDds { reliable: false };
                let topic = ["--topic".to_owned(), "takt_bench_load".to_owned()];
                let roles = ["pub", "sub"];
                Some(self.begin(system, pair, Beside::PAYLOAD, roles, &options, &topic)?)
            }
        };
        let system = System::CycloneDds { reliable: true };
        let mut options = duration(flow.pace.duration).to_vec();
        options.extend(["--rate".to_owned(), flow.pace.rate.to_string()]);
        let [near, far] = self.begin(system, pair, flow.payload, ["pub", "sub"], &options, &[])?;
        let incoming = Incoming::begin(pair.far)?;
        let (near, far) = (near.finish(patience)?, far.finish(PATIENCE)?);
        let link = incoming.megabits_per_second()?;
        for side in load.iter_mut().flatten() {
            side.check()?;
        }
        let mut sample = self.throughput(system, &near, &far)?;
        if let Some(throughput) = &sample.throughput {
            let seconds = throughput.nanoseconds as f64 / 1e9;
            sample.figures.insert(COMPLETION.to_owned(), seconds);
            sample.figures.insert(LINK.to_owned(), link);
        }
        Ok(sample)
    }

    /// What the sides of a stream have told, together.
    fn throughput(&self, system: System, near: &Sample, far: &Sample) -> Result<Sample, PeerError> {
        let (Some(mut throughput), Some(sent)) = (far.throughput, near.figures.get("sent")) else {
            return Err(self.error(system, "the sides did not tell what they sent and received"));
        };
        throughput.lost = (*sent as u64).saturating_sub(throughput.messages);
        Ok(throughput.into())
    }

    /// Runs both sides to their ends; the samples of the near and the far one.
    fn run(
        &self,
        system: System,
        pair: &Pair<'_>,
        payload: usize,
        roles: [&str; 2],
        near_options: &[String],
        patience: Duration,
    ) -> Result<(Sample, Sample), PeerError> {
        let [near, far] = self.begin(system, pair, payload, roles, near_options, &[])?;
        Ok((near.finish(patience)?, far.finish(PATIENCE)?))
    }

    /// Starts both sides, the near one once the far one is ready.
    fn begin(
        &self,
        system: System,
        pair: &Pair<'_>,
        payload: usize,
        [near, far]: [&str; 2],
        near_options: &[String],
        options: &[String],
    ) -> Result<[Side; 2], PeerError> {
        let address = system.meeting_point(pair.far);
        let command = |host: &Host, role: &str, core: usize| -> Result<Command, PeerError> {
            let mut command = host.command(&self.program)?;
            command.arg(format!("{}-{role}", system.word()));
            command.args([
                "--address",
                &address,
                "--core",
                &core.to_string(),
                "--payload",
                &payload.to_string(),
            ]);
            command.args(options);
            if system == (System::CycloneDds { reliable: false }) {
                command.arg("--best-effort");
            }
            Ok(command)
        };
        let mut far = Side::start(command(pair.far, far, pair.far_core)?)?;
        far.wait_until_ready()?;
        let mut near_command = command(pair.near, near, pair.near_core)?;
        near_command.args(near_options);
        Ok([Side::start(near_command)?, far])
    }

    fn error(&self, system: System, reason: &str) -> PeerError {
        let command = format!("{} {}", self.program.display(), system.word());
        PeerError::Program {
            command,
            reason: reason.to_owned(),
        }
    }
}

/// A running side, ended when this is dropped.
struct Side {
    child: Child,
    lines: Receiver<io::Result<String>>,
    command: String,
    /// Whether it has told its sample.
    told: bool,
}

impl Side {
    fn start(mut command: Command) -> Result<Self, PeerError> {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let text = words
            .map(OsStr::to_string_lossy)
            .collect::<Vec<_>>()
            .join(" ");
        let failed = |reason: String| PeerError::Program {
            command: text.clone(),
            reason,
        };
        // What the program complains of is for the one who runs the bench.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let Some(output) = child.stdout.take() else {
            return Err(failed("its output is not a pipe".to_owned()));
        };
        let (send, lines) = sync_channel(1);
        // Ends with the program, which closes the pipe, or with the receiver.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            lines,
            command: text,
            told: false,
        })
    }

    fn wait_until_ready(&mut self) -> Result<(), PeerError> {
        let line = self.line(PATIENCE)?;
        if line == r#"{"ready":true}"# {
            Ok(())
        } else {
            Err(self.error(format!("it said {line:?} instead of being ready")))
        }
    }

    fn finish(mut self, patience: Duration) -> Result<Sample, PeerError> {
        let line = self.line(patience)?;
        self.told = true;
        serde_json::from_str(&line)
            .map_err(|error| self.error(format!("it said {line:?}, which is no sample: {error}")))
    }

    /// Fails if it has ended.
    fn check(&mut self) -> Result<(), PeerError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.error(format!("it ended early ({status})"))),
            Err(error) => Err(self.error(error.to_string())),
        }
    }

    fn line(&mut self, patience: Duration) -> Result<String, PeerError> {
        match self.lines.recv_timeout(patience) {
            Ok(Ok(line)) => Ok(line),
            Ok(Err(error)) => Err(self.error(format!("its output cannot be read: {error}"))),
            Err(RecvTimeoutError::Timeout) => {
                Err(self.error(format!("it said nothing for {} s", patience.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self
                    .child
                    .wait()
                    .map_or_else(|error| error.to_string(), |status| status.to_string());
                Err(self.error(format!("it ended early ({status})")))
            }
        }
    }

    fn error(&self, reason: String) -> PeerError {
        PeerError::Program {
            command: self.command.clone(),
            reason,
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // A side that has told its sample takes its leave by itself (iceoryx2 removes its files then)
        // and closes its output by that; any other is of no use any more.
        let leaves = self.told
            && self
                .lines
                .recv_timeout(PATIENCE)
                .is_err_and(|error| error == RecvTimeoutError::Disconnected);
        if !leaves {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
