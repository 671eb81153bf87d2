//! Where packets come from, and how flows are told: options that commands share.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use takt_health::packet::Identify;
use takt_health::table::Config;

use crate::admin::Daemon;

/// Where packets come from: one of the first three.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("origin").required(true)))]
pub struct Source {
    /// Read a capture, pcap or pcapng; - is standard input
    #[arg(short = 'r', long, value_name = "FILE", group = "origin")]
    pub read: Option<PathBuf>,
    /// Watch an interface of this host: copies of what it receives
    #[arg(short = 'i', long, value_name = "INTERFACE", group = "origin")]
    pub interface: Option<String>,
    /// Watch what the tenants of this node's daemon send to other nodes and get from them, by channel and class
    #[arg(long, group = "origin")]
    pub node: bool,
    /// Only this tenant, by its identity; several times for several
    #[arg(long, value_name = "TENANT", requires = "node")]
    pub tenant: Vec<String>,
    #[command(flatten)]
    pub daemon: Daemon,
    /// Watch what the host sends, too
    #[arg(long, requires = "interface")]
    pub outgoing: bool,
    /// Stop after this time
    #[arg(long = "for", value_name = "TIME", conflicts_with = "read", value_parser = humantime::parse_duration)]
    pub lasts: Option<Duration>,
    /// Memory between the kernel and the monitor
    #[arg(long, value_name = "MEGABYTES", default_value_t = 64, requires = "interface", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ring: u32,
    /// Times by the network card's own clock, where it tells when it received a packet (`ethtool -T`); PTP is to keep it in TAI
    #[arg(long, requires = "interface")]
    pub device_times: bool,
    /// Threads that share the packets, each with its part of the memory and of the flows
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "interface", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
}

impl Source {
    /// Bytes of the file, if it has an end.
    pub fn length(&self) -> Option<u64> {
        let file = std::fs::metadata(self.read.as_ref()?).ok()?;
        file.is_file().then_some(file.len())
    }

    /// In a word.
    pub fn name(&self) -> String {
        match (&self.read, &self.interface) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(interface)) => interface.clone(),
            (None, None) => "node".into(),
        }
    }

    /// Whether packets come as they pass.
    pub fn is_live(&self) -> bool {
        self.read.is_none()
    }
}

/// By what flows are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// 5-tuple; frames without IP by destination address and VLAN
    #[default]
    Tuple,
    /// Destination address and VLAN
    Stream,
}

/// How flows are told and kept.
#[derive(Debug, Args)]
pub struct Observe {
    /// By what flows are told apart
    #[arg(long, value_enum, default_value_t)]
    pub by: By,
    /// The most flows that are kept
    #[arg(long, value_name = "COUNT", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    pub flows: u32,
    /// A flow without packets for this long gives its place where room is needed
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    pub idle: Duration,
    /// Length of a window of loss, rate and trend
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = window)]
    pub window: Duration,
    /// Packets closer than this are of one burst, where no period is declared
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = humantime::parse_duration)]
    pub burst_gap: Duration,
    /// TAI less UTC, for stamps of TAI in captures whose times are UTC [default: 37 for files, the kernel's for
    /// what is live]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(-1000..=1000))]
    pub tai_offset: Option<i64>,
}

fn window(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match (Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&time) {
        true => Ok(time),
        false => Err("write 1ms to 1h".into()),
    }
}

impl Observe {
    /// What the table is to do.
    pub fn config(&self, tai_offset_ns: i64) -> Config {
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        Config {
            capacity: self.flows as usize,
            idle_ns: nanos(self.idle),
            window_ns: nanos(self.window),
            burst_gap_ns: nanos(self.burst_gap),
            tai_offset_ns,
            identify: match self.by {
                By::Tuple => Identify::Tuple,
                By::Stream => Identify::Stream,
            },
            ..Config::default()
        }
    }
}
