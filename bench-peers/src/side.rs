//! What the sides of all systems share: the loops, and the lines they print.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;

use crate::Ping;
use crate::pace::{BURST, PAUSE};
use crate::statistics::{Latencies, Percentiles, Throughput};

/// Whatever a system reports.
pub type Failure = Box<dyn Error + Send + Sync>;

/// A message carries a sequence number and a time, so it has this many octets at least.
pub const LEAST_PAYLOAD: u32 = 16;

/// The message that ends a measurement: shorter than any other.
pub const END: [u8; 1] = [0];

/// How long a side waits for the other before it gives up.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Pins the process, as yet of one thread, to `core`.
pub fn pin_to(core: usize) -> Result<(), Failure> {
    if core >= CpuSet::MAX_CPU {
        return Err(format!("cannot run on core {core}: there is none").into());
    }
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only)
        .map_err(|errno| format!("cannot run on core {core}: {errno}").into())
}

/// Says that the other side may come.
pub fn tell_ready() -> Result<(), Failure> {
    print_line(&BTreeMap::from([("ready", true)]))
}

/// What a side has measured, in the format of the bench's samples.
#[derive(Default, Serialize)]
pub struct Measured {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latencies: Option<Latencies>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput: Option<Throughput>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<&'static str, f64>,
}

impl Measured {
    /// Prints the sample, with its percentiles.
    pub fn tell(&self) -> Result<(), Failure> {
        #[derive(Serialize)]
        struct Line<'a> {
            #[serde(flatten)]
            measured: &'a Measured,
            #[serde(skip_serializing_if = "Option::is_none")]
            percentiles_ns: Option<Percentiles>,
        }
        let percentiles_ns = self.latencies.as_ref().and_then(Latencies::percentiles);
        print_line(&Line {
            measured: self,
            percentiles_ns,
        })
    }

    /// How many messages a publisher has sent.
    pub fn sent(messages: u64) -> Self {
        Self {
            figures: BTreeMap::from([("sent", messages as f64)]),
            ..Self::default()
        }
    }
}

impl From<Latencies> for Measured {
    fn from(latencies: Latencies) -> Self {
        Self {
            latencies: Some(latencies),
            ..Self::default()
        }
    }
}

fn print_line(value: &impl Serialize) -> Result<(), Failure> {
    let mut output = std::io::stdout().lock();
    serde_json::to_writer(&mut output, value)?;
    output.write_all(b"\n")?;
    output.flush()?;
    Ok(())
}

/// What a subscriber counts. It does not read the clock for each message.
#[derive(Default)]
pub struct Counter {
    messages: u64,
    bytes: u64,
    first: Option<Instant>,
}

impl Counter {
    /// Counts a message; when it is the one that ends the measurement, gives what was counted.
    #[inline]
    pub fn count(&mut self, message: &[u8]) -> Option<Measured> {
        if message.len() == END.len() {
            return Some(self.finish());
        }
        if self.first.is_none() {
            self.first = Some(Instant::now());
        }
        self.messages += 1;
        self.bytes += message.len() as u64;
        None
    }

    fn finish(&self) -> Measured {
        let elapsed = self.first.map_or(Duration::ZERO, |first| first.elapsed());
        let throughput = Throughput {
            messages: self.messages,
            bytes: self.bytes,
            // The publisher knows; whoever runs both puts that together.
            lost: 0,
            nanoseconds: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
        };
        Measured {
            throughput: Some(throughput),
            ..Measured::default()
        }
    }
}

/// Sends for as long as asked; how many messages it was.
pub fn send_for(
    duration_ms: u64,
    mut send: impl FnMut() -> Result<(), Failure>,
) -> Result<u64, Failure> {
    /// Messages between two looks at the clock.
    const STRIDE: u64 = 32;
    let (start, duration) = (Instant::now(), Duration::from_millis(duration_ms));
    let mut sent = 0;
    while start.elapsed() < duration {
        for _ in 0..STRIDE {
            send()?;
        }
        sent += STRIDE;
    }
    Ok(sent)
}

/// The same in bursts, with pauses between them.
pub fn send_in_bursts(
    duration_ms: u64,
    mut send: impl FnMut() -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let (start, duration) = (Instant::now(), Duration::from_millis(duration_ms));
    let mut sent = 0;
    while start.elapsed() < duration {
        std::thread::sleep(PAUSE);
        sent += send_for(BURST.as_millis() as u64, &mut send)?;
    }
    Ok(sent)
}

/// Times `round_trip`, which gets a sequence number.
pub fn measure_round_trips(
    ping: &Ping,
    mut round_trip: impl FnMut(u64) -> Result<(), Failure>,
) -> Result<Latencies, Failure> {
    let mut latencies = Latencies::new();
    for sequence in 0..u64::from(ping.warm_up) + u64::from(ping.count) {
        let start = Instant::now();
        round_trip(sequence)?;
        if sequence >= u64::from(ping.warm_up) {
            latencies.record(start.elapsed());
        }
    }
    Ok(latencies)
}

/// Repeats `attempt` until it gives something, for [`PATIENCE`] at most.
pub fn wait_for<T>(
    what: &str,
    mut attempt: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let start = Instant::now();
    loop {
        if let Some(result) = attempt()? {
            return Ok(result);
        }
        if start.elapsed() > PATIENCE {
            return Err(format!("no {what} within {} s", PATIENCE.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
