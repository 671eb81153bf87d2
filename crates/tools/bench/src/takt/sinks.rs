//! What a message costs the runtime, by the number of local sinks it goes to (naaas-thesis-2024,
//! section 7.2.3: several sinks on one channel).
//!
//! The runtime is in this process, with a lane of its own on a core of its own as in a daemon. Its cost is
//! the time the lane spent in rounds that found work, by its own count; what the application does on the
//! other core is not part of it. Each sink is a session's of its own, as if it were another application's.

use std::sync::Arc;
use std::time::Duration;

use takt::{ChannelId, Qos, Session, Sink, SinkOptions, Wait};
use takt_datapath_udp::{UdpConfig, UdpDatapath};
use takt_runtime::config::{Config, LaneConfig};
use takt_runtime::policy::Policy;
use takt_runtime::{Runtime, RuntimeHandle};

use super::TaktError;
use crate::awake::pin_to;
use crate::experiment::Sample;
use crate::statistics::median;

/// The figure that a run gives.
pub const COST: &str = "lane time per message in ns";

const CHANNEL: ChannelId = ChannelId(6);
const SILENCE: Duration = Duration::from_secs(5);
/// How many parts of a run are measured apart.
const PARTS: usize = 25;
/// Room for a burst in every sink's memory, whatever a message's size is.
const MEMORY: usize = 8 << 20;

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// How many sinks there are.
    pub sinks: usize,
    /// Octets of each message.
    pub payload: usize,
    /// Messages announced at once, 1 to 1024.
    pub burst: usize,
    /// Bursts to measure, at least: they are measured in parts of equal size.
    pub bursts: usize,
    /// The core of the lane.
    pub lane_core: usize,
    /// The core of the application.
    pub core: usize,
}

/// Measures the lane's time per message.
///
/// # Errors
/// When the runtime cannot be started or used, or a message does not arrive.
pub fn cost(run: &Run) -> Result<Sample, TaktError> {
    let run = *run;
    std::thread::scope(|scope| {
        scope
            .spawn(move || measure(&run))
            .join()
            .unwrap_or_else(|_| {
                Err(TaktError::runtime("measure the lane's time")(
                    "the application broke down".into(),
                ))
            })
    })
}

fn measure(run: &Run) -> Result<Sample, TaktError> {
    pin_to(run.core).map_err(TaktError::io(format!("pin a thread to core {}", run.core)))?;
    let config = Config {
        address: std::net::Ipv4Addr::LOCALHOST.into(),
        port: 0,
        lanes: vec![LaneConfig {
            core: Some(run.lane_core),
            ..LaneConfig::default()
        }],
        ..Config::default()
    };
    let runtime = Runtime::start(
        config,
        &[Arc::new(UdpDatapath::new(UdpConfig::default()))],
        Vec::new(),
    )
    .map_err(|error| TaktError::runtime("start a runtime")(error.to_string()))?;
    let handle = runtime.handle();
    let application = Application::attach(handle, run)
        .map_err(|error| TaktError::runtime("open source and sinks")(error.to_string()))?;
    let deliver = |bursts: usize| {
        (0..bursts)
            .try_for_each(|_| application.burst(run))
            .map_err(|error| TaktError::runtime("deliver a burst")(error.to_string()))
    };
    deliver(run.bursts / 10 + 1)?;
    // The lane's time goes on while something else has its core: a median of parts does not see that.
    let bursts = run.bursts.div_ceil(PARTS).max(1);
    let costs = (0..PARTS)
        .map(|_| {
            let before = busy_ns(handle)?;
            deliver(bursts)?;
            let spent = busy_ns(handle)?.saturating_sub(before);
            Ok(spent as f64 / (bursts * run.burst) as f64)
        })
        .collect::<Result<_, TaktError>>()?;
    let mut sample = Sample::default();
    let cost = median(costs).map(|cost| (COST.to_owned(), cost));
    sample.figures.extend(cost);
    Ok(sample)
}

fn busy_ns(handle: &RuntimeHandle) -> Result<u64, TaktError> {
    let status = handle
        .status()
        .map_err(|error| TaktError::runtime("read the lane's counters")(error.to_string()))?;
    Ok(status
        .lanes
        .iter()
        .map(|lane| lane.counters.busy_nanos)
        .sum())
}

/// A source, and sinks in sessions of their own.
struct Application {
    source: takt::Source,
    sinks: Vec<Sink>,
}

impl Application {
    fn attach(
        handle: &RuntimeHandle,
        run: &Run,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let session = || -> Result<Session, Box<dyn std::error::Error + Send + Sync>> {
            let socket = handle.connect(Policy::default())??;
            Ok(Session::builder()
                .name("bench")
                .tx_bytes(MEMORY)
                .rx_bytes(MEMORY)
                .over(socket, None)?)
        };
        let options = SinkOptions {
            depth: 2048,
            ..SinkOptions::default()
        };
        let sinks = (0..run.sinks)
            .map(|_| {
                let stream = session()?.stream(Qos::slow())?;
                Ok(stream.sink_with(CHANNEL, options)?)
            })
            .collect::<Result<_, Box<dyn std::error::Error + Send + Sync>>>()?;
        let source = session()?.stream(Qos::slow())?.source(CHANNEL)?;
        Ok(Self { source, sinks })
    }

    /// Emits a burst and takes it out of every sink.
    fn burst(&self, run: &Run) -> Result<(), takt::Error> {
        for _ in 0..run.burst {
            self.source
                .buffer_wait(run.payload, Wait::For(SILENCE))?
                .emit_more()?;
        }
        self.source.flush();
        for sink in &self.sinks {
            for _ in 0..run.burst {
                sink.consume(Wait::For(SILENCE))?;
            }
        }
        Ok(())
    }
}

/// A straight line through points, by least squares: its value at 0 and its slope; `None` with fewer than
/// two different abscissas.
pub fn fit(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let along: f64 = points
        .iter()
        .map(|point| (point.0 - x) * (point.1 - y))
        .sum();
    (spread > 0.0).then(|| {
        let slope = along / spread;
        (y - slope * x, slope)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_through_points_on_a_line_is_that_line() {
        let (start, slope) = fit(&[(1.0, 250.0), (2.0, 300.0), (16.0, 1000.0)]).unwrap();
        assert!((start - 200.0).abs() < 1e-9 && (slope - 50.0).abs() < 1e-9);
        assert_eq!(fit(&[(1.0, 2.0)]), None);
        assert_eq!(fit(&[]), None);
    }

    #[test]
    fn the_lane_says_what_each_message_cost_it() {
        let cores = crate::awake::usable_cores().unwrap();
        let run = Run {
            sinks: 3,
            payload: 1024,
            burst: 8,
            // Enough for every part to have rounds that the lane times.
            bursts: 2000,
            lane_core: cores[0],
            core: *cores.last().unwrap(),
        };
        let sample = cost(&run).unwrap();
        assert!(sample.figures[COST] > 0.0, "{sample}");
    }
}
