//! Delivery within one node: between two applications, and within one.
//!
//! The time under way is told by the clock that all processes of a machine share. A message is sent once
//! the one before is acknowledged, so that none waits for another.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use takt::{ChannelId, Error, Qos, Session, Wait};
use takt_lab::Host;

use super::daemon::{self, Daemon, Node};
use super::process::{Process, Scratch};
use super::{Form, PATIENCE, ROUND_TRIP_PATIENCE, Takt, TaktError};
use crate::experiment::Sample;
use crate::peers::RoundTrips;
use crate::statistics::Latencies;

const THERE: ChannelId = ChannelId(4);
const BACK: ChannelId = ChannelId(5);
/// A run whose other side is silent for this long has failed.
const SILENCE: Duration = Duration::from_secs(5);
/// How long to wait for an acknowledgement before the other side is taken for not being there yet.
const RENDEZVOUS: Duration = Duration::from_millis(20);
/// Octets of the time in a message.
const STAMP: usize = 8;
/// Tells the receiver that the run is over; no time is this early.
const OVER: u64 = 0;
/// Tells the receiver that this message is not measured.
const NOT_MEASURED: u64 = 1;

/// Whether two applications of a node are members of one trust domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Their messages go by the lane.
    None,
    /// They exchange them themselves.
    One,
}

/// The cores of a run within one node.
#[derive(Clone, Copy, Debug)]
pub struct Cores {
    /// Of the sender, and of the only application where there is one.
    pub near: usize,
    /// Of the receiver.
    pub far: usize,
    /// Of the daemon's lane.
    pub lane: usize,
}

impl Takt {
    /// The way of each message between two applications of one daemon in `host`.
    ///
    /// # Errors
    /// When a process cannot be started, fails, or does not end; the error has what it said.
    pub fn local_one_way(
        &self,
        domain: Domain,
        host: &Host,
        cores: Cores,
        options: &RoundTrips,
    ) -> Result<Sample, TaktError> {
        let local = Local::start(self, Form::Daemon, domain, host, cores.lane)?;
        let (size, count) = (options.payload.to_string(), options.count.to_string());
        let mut far = local.application("receiver", cores.far, &[])?;
        let near = ["--size", &size, "--count", &count];
        let mut near = local.application("sender", cores.near, &near)?;
        let sent: u64 = near.answer(patience(options))?;
        let latencies: Latencies = far.answer(PATIENCE)?;
        if latencies.count() != sent {
            return Err(TaktError::runtime("measure local delivery")(format!(
                "{sent} messages were sent and {} received",
                latencies.count()
            )));
        }
        Ok(latencies.into())
    }

    /// Round trips between two applications of one daemon in `host`.
    ///
    /// # Errors
    /// As [`local_one_way`](Self::local_one_way).
    pub fn local_round_trips(
        &self,
        domain: Domain,
        host: &Host,
        cores: Cores,
        options: &RoundTrips,
    ) -> Result<Sample, TaktError> {
        let local = Local::start(self, Form::Daemon, domain, host, cores.lane)?;
        let (size, count) = (options.payload.to_string(), options.count.to_string());
        let _echo = local.application("pong", cores.far, &[])?;
        let near = ["--size", &size, "--count", &count];
        let mut near = local.application("ping", cores.near, &near)?;
        let latencies: Latencies = near.answer(patience(options))?;
        Ok(latencies.into())
    }

    /// The way of each message from a source to a sink of the same session.
    ///
    /// # Errors
    /// As [`local_one_way`](Self::local_one_way).
    pub fn within_session(
        &self,
        form: Form,
        host: &Host,
        cores: Cores,
        options: &RoundTrips,
    ) -> Result<Sample, TaktError> {
        let local = Local::start(self, form, Domain::None, host, cores.lane)?;
        let (size, count) = (options.payload.to_string(), options.count.to_string());
        let near = ["--size", &size, "--count", &count];
        let mut near = local.application("loop", cores.near, &near)?;
        let latencies: Latencies = near.answer(patience(options))?;
        Ok(latencies.into())
    }
}

fn patience(options: &RoundTrips) -> Duration {
    PATIENCE + ROUND_TRIP_PATIENCE * options.count
}

/// One node in one host.
struct Local<'a> {
    takt: &'a Takt,
    form: Form,
    host: &'a Host,
    // Before the folder that has its socket.
    _daemon: Option<Daemon>,
    scratch: Scratch,
}

impl<'a> Local<'a> {
    fn start(
        takt: &'a Takt,
        form: Form,
        domain: Domain,
        host: &'a Host,
        lane_core: usize,
    ) -> Result<Self, TaktError> {
        let scratch = Scratch::new()?;
        let daemon = match form {
            Form::Embedded => None,
            Form::Daemon => {
                let node = Node {
                    name: host.name(),
                    address: host.address(),
                    core: lane_core,
                    peer: None,
                    interface: None,
                    node: "",
                    lane: "",
                    listener: match domain {
                        Domain::None => "",
                        Domain::One => "trust = \"user\"\n",
                    },
                };
                Some(Daemon::start(
                    host.command(&takt.program)?,
                    &node,
                    &scratch,
                )?)
            }
        };
        Ok(Self {
            takt,
            form,
            host,
            _daemon: daemon,
            scratch,
        })
    }

    fn application(&self, role: &str, core: usize, options: &[&str]) -> Result<Process, TaktError> {
        let mut command = self.takt.application(self.host, &[role])?;
        command.args(["--core", &core.to_string()]).args(options);
        match self.form {
            Form::Embedded => command
                .arg("--embedded")
                .env("TAKT_ADDRESS", self.host.address().to_string())
                .env_remove("TAKT_PORT")
                .env_remove("TAKT_PEERS")
                .env_remove("TAKT_INTERFACE"),
            Form::Daemon => command.env(
                takt::SOCKET_VARIABLE,
                daemon::socket(self.scratch.path(), self.host.name()),
            ),
        };
        Process::start(command, &self.scratch.path().join(format!("{role}.log")))
    }
}

/// Nanoseconds of the clock that all processes share.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sends `count` messages of at least `size` bytes, each with the time it was sent, once the one before is
/// acknowledged; how many of them are measured.
///
/// # Errors
/// What the API says, or that nobody acknowledges.
pub fn send(session: &Session, qos: Qos, size: usize, count: usize) -> Result<u64, Error> {
    let stream = session.stream(qos)?;
    let (source, sink) = (stream.source(THERE)?, stream.sink(BACK)?);
    let emit = |stamp: Option<u64>| -> Result<(), Error> {
        let mut buffer = source.buffer_wait(size.max(STAMP), Wait::For(SILENCE))?;
        buffer[..STAMP].copy_from_slice(&stamp.unwrap_or_else(now_ns).to_ne_bytes());
        buffer.emit().map(drop)
    };
    let deadline = std::time::Instant::now() + 2 * SILENCE;
    loop {
        emit(Some(NOT_MEASURED))?;
        match sink.consume(Wait::For(RENDEZVOUS)) {
            Ok(_) => break,
            Err(Error::TimedOut) if std::time::Instant::now() < deadline => {}
            Err(error) => return Err(error),
        }
    }
    // Acknowledgements of the messages before.
    while sink.consume(Wait::For(RENDEZVOUS)).is_ok() {}
    for round in 0..count + count / 10 {
        let warming_up = round < count / 10;
        emit(warming_up.then_some(NOT_MEASURED))?;
        sink.consume(Wait::For(SILENCE))?;
    }
    emit(Some(OVER))?;
    sink.consume(Wait::For(SILENCE))?;
    Ok(count as u64)
}

/// Takes the time that each message of [`send`] was under way, and acknowledges it.
///
/// # Errors
/// What the API says, or that nothing comes any more before the sender is done.
pub fn receive(session: &Session, qos: Qos) -> Result<Latencies, Error> {
    let stream = session.stream(qos)?;
    let (sink, source) = (stream.sink(THERE)?, stream.source(BACK)?);
    let mut latencies = Latencies::new();
    loop {
        let message = sink.consume(Wait::For(2 * SILENCE))?;
        let arrived = now_ns();
        let stamp = stamp_of(&message);
        drop(message);
        if stamp > NOT_MEASURED {
            latencies.record_ns(arrived.saturating_sub(stamp));
        }
        source.buffer_wait(0, Wait::For(SILENCE))?.emit()?;
        if stamp == OVER {
            return Ok(latencies);
        }
    }
}

/// The way of `count` messages from a source to a sink of one thread.
///
/// # Errors
/// What the API says, or that a message does not come.
pub fn around(session: &Session, qos: Qos, size: usize, count: usize) -> Result<Latencies, Error> {
    let stream = session.stream(qos)?;
    let (source, sink) = (stream.source(THERE)?, stream.sink(THERE)?);
    let mut latencies = Latencies::new();
    for round in 0..count + count / 10 {
        let mut buffer = source.buffer_wait(size.max(STAMP), Wait::For(SILENCE))?;
        buffer[..STAMP].copy_from_slice(&now_ns().to_ne_bytes());
        buffer.emit()?;
        let message = sink.consume(Wait::For(SILENCE))?;
        if round >= count / 10 {
            latencies.record_ns(now_ns().saturating_sub(stamp_of(&message)));
        }
    }
    Ok(latencies)
}

fn stamp_of(message: &[u8]) -> u64 {
    match message.first_chunk::<STAMP>() {
        Some(stamp) => u64::from_ne_bytes(*stamp),
        None => NOT_MEASURED,
    }
}

#[cfg(test)]
mod tests {
    use takt_embedded::{Embedded, Settings};

    use super::*;

    fn node() -> Embedded {
        Embedded::start(Settings {
            port: 0,
            ..Settings::default()
        })
        .unwrap()
    }

    #[test]
    fn every_measured_message_has_its_time_and_no_other() {
        let node = node();
        let (near, far) = (node.session("near").unwrap(), node.session("far").unwrap());
        std::thread::scope(|scope| {
            let far = scope.spawn(move || receive(&far, Qos::slow()).unwrap());
            let near = scope.spawn(move || send(&near, Qos::slow(), 64, 200).unwrap());
            assert_eq!(near.join().unwrap(), 200);
            let latencies = far.join().unwrap();
            assert_eq!(latencies.count(), 200);
            assert!(latencies.percentiles().unwrap().p50 > 0.0);
        });
    }

    #[test]
    fn one_thread_can_send_to_itself() {
        let session = node();
        let session = session.session("one").unwrap();
        let latencies = around(&session, Qos::slow(), 0, 50).unwrap();
        assert_eq!(latencies.count(), 50);
    }
}
