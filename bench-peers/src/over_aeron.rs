//! Aeron over UDP, by its own Java client with the media driver inside, all in one thread that polls (`aeron/AeronPeer.java`). Needs a
//! JDK, and `AERON_JAR`: where the jar `aeron-all` is (Maven coordinates `io.aeron:aeron-all`).

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::side::{Failure, Measured, tell_ready};
use crate::statistics::{Latencies, Throughput};
use crate::{Common, Ping, Publish};

/// The variable that says where the jar is.
const JAR: &str = "AERON_JAR";
const SOURCE: &str = include_str!("../aeron/AeronPeer.java");

/// A running Java program, ended when this is dropped.
struct Java {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    _source: tempfile::TempDir,
}

impl Java {
    fn start(role: &str, common: &Common, options: &[String]) -> Result<Self, Failure> {
        let jar = std::env::var(JAR).map_err(|_| {
            format!("{JAR} is not set: it says where the jar aeron-all is (io.aeron:aeron-all)")
        })?;
        let (address, port) = common.address.rsplit_once(':').ok_or("no port")?;
        let source = tempfile::tempdir()?;
        let file = source.path().join("AeronPeer.java");
        std::fs::File::create(&file)?.write_all(SOURCE.as_bytes())?;
        let payload = common.payload.to_string();
        let mut child = Command::new("java")
            .args(["--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED"])
            .args(["--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"])
            .args(["-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true", "-cp", &jar])
            .arg(&file)
            .args([role, address, port, &payload])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("java (a JDK): {error}"))?;
        let output = child.stdout.take().ok_or("no output")?;
        Ok(Self {
            child,
            lines: BufReader::new(output).lines(),
            _source: source,
        })
    }

    fn line(&mut self) -> Result<String, Failure> {
        Ok(self.lines.next().ok_or("Aeron's side ended early")??)
    }

    fn number(&mut self) -> Result<u64, Failure> {
        Ok(self.line()?.parse()?)
    }

    fn wait_until_ready(&mut self) -> Result<(), Failure> {
        match self.line()?.as_str() {
            "ready" => tell_ready(),
            other => Err(format!("Aeron's side said {other:?}").into()),
        }
    }

    fn finish(mut self) -> Result<(), Failure> {
        let status = self.child.wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("Aeron's side: {status}").into()),
        }
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Publishes as fast as Aeron takes messages.
pub fn publish(options: &Publish) -> Result<(), Failure> {
    let duration = [options.duration_ms.to_string()];
    let mut java = Java::start("pub", &options.common, &duration)?;
    let sent = java.number()?;
    java.finish()?;
    Measured::sent(sent).tell()
}

/// Counts what arrives.
pub fn subscribe(common: &Common) -> Result<(), Failure> {
    let mut java = Java::start("sub", common, &[])?;
    java.wait_until_ready()?;
    let throughput = Throughput {
        messages: java.number()?,
        bytes: java.number()?,
        // The publisher knows; whoever runs both puts that together.
        lost: 0,
        nanoseconds: java.number()?,
    };
    java.finish()?;
    let measured = Measured {
        throughput: Some(throughput),
        ..Measured::default()
    };
    measured.tell()
}

/// Measures round trips.
pub fn ping(options: &Ping) -> Result<(), Failure> {
    let counts = [options.warm_up.to_string(), options.count.to_string()];
    let mut java = Java::start("ping", &options.common, &counts)?;
    let mut latencies = Latencies::new();
    for _ in 0..options.count {
        latencies.record(Duration::from_nanos(java.number()?));
    }
    java.finish()?;
    Measured::from(latencies).tell()
}

/// Echoes.
pub fn pong(common: &Common) -> Result<(), Failure> {
    let mut java = Java::start("pong", common, &[])?;
    java.wait_until_ready()?;
    java.finish()?;
    Measured::default().tell()
}
