//! Log lines to standard error. What is logged at which level: `docs/how-to/operate.md`.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::config::file::{Log, LogFormat};

/// Overrides `log.level` of the configuration.
pub const LEVEL_VARIABLE: &str = "RUST_LOG";

/// Changes the level of a running process.
pub struct LogLevel {
    filter: reload::Handle<EnvFilter, Registry>,
    overridden: bool,
}

impl LogLevel {
    /// Starts logging for the whole process. Only the first call of a process has an effect on its log.
    pub fn install(log: &Log) -> Self {
        let overriding = std::env::var(LEVEL_VARIABLE)
            .ok()
            .filter(|text| !text.is_empty())
            .and_then(|text| EnvFilter::try_new(text).ok());
        let overridden = overriding.is_some();
        let filter = overriding.unwrap_or_else(|| EnvFilter::new(&log.level));
        let (filter, handle) = reload::Layer::new(filter);
        let lines = fmt::layer().with_writer(std::io::stderr);
        // The journal has its own clock and no use for colours.
        let journal = std::env::var_os("JOURNAL_STREAM").is_some();
        let lines: Box<dyn Layer<_> + Send + Sync> = match log.format {
            LogFormat::Json => Box::new(lines.json()),
            LogFormat::Text if journal => Box::new(lines.without_time().with_ansi(false)),
            LogFormat::Text => Box::new(lines.with_ansi(std::io::stderr().is_terminal())),
        };
        // A program that has a logger of its own keeps it.
        let _ = tracing_subscriber::registry()
            .with(filter)
            .with(lines)
            .try_init();
        Self {
            filter: handle,
            overridden,
        }
    }

    /// Changes the level, unless the environment overrides it; false then.
    pub fn change(&self, level: &str) -> bool {
        if self.overridden {
            return false;
        }
        match EnvFilter::try_new(level) {
            Ok(filter) => self.filter.reload(filter).is_ok(),
            Err(_) => false,
        }
    }
}
