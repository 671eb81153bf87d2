//! Figures in the text form of OpenMetrics 1.0, served over HTTP.
//!
//! Only flows with a specification are metrics of their own: a label for each of a million flows would be the end of
//! whatever collects them.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use hyper::StatusCode;

use takt_health::flow::FlowReport;
use takt_health::level::Level;

use super::engine::Engine;
use crate::failure::Failure;
use crate::web::{self, Answer, Site, lock};

const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// The exposition.
pub fn text(engine: &Engine) -> String {
    let mut out = String::new();
    let counters = engine.counters();
    let (dropped, backlog) = engine.backlog();
    for (name, help, value) in [
        ("packets", "Packets taken", counters.packets),
        ("bytes", "Bytes taken", counters.bytes),
        (
            "truncated_packets",
            "Packets cut short within a header",
            counters.truncated,
        ),
        (
            "malformed_packets",
            "Packets with a malformed header",
            counters.malformed,
        ),
        (
            "packets_without_room",
            "Packets of flows for which there was no room",
            counters.no_room,
        ),
        ("aged_flows", "Flows that gave their place", counters.aged),
        (
            "dropped_packets",
            "Packets that the kernel dropped, or the node did not copy",
            dropped.unwrap_or(0),
        ),
    ] {
        let name = format!("takt_health_{name}");
        let _ = writeln!(
            out,
            "# TYPE {name} counter\n# HELP {name} {help}.\n{name}_total {value}"
        );
    }
    let behind = backlog.unwrap_or(0) as f64 / 1e9;
    let _ = writeln!(
        out,
        "# TYPE takt_health_backlog_seconds gauge\n# UNIT takt_health_backlog_seconds seconds\n\
         takt_health_backlog_seconds {behind}"
    );
    let _ = writeln!(out, "# TYPE takt_health_flows gauge");
    for (level, count) in Level::ALL.iter().zip(engine.levels()) {
        let _ = writeln!(out, "takt_health_flows{{level=\"{level}\"}} {count}");
    }
    let metric = |rule: &str| {
        let rules = engine.document().rules.iter();
        rules.into_iter().any(|known| {
            known.name == rule && known.actions.contains(&takt_health::rule::Action::Metric)
        })
    };
    for (name, kind) in [("begun_total", "counter"), ("active", "gauge")] {
        let family = name.trim_end_matches("_total");
        let _ = writeln!(out, "# TYPE takt_health_rule_{family} {kind}");
        for (rule, count) in engine.rules().into_iter().filter(|(rule, _)| metric(rule)) {
            let value = if kind == "counter" {
                count.begun
            } else {
                count.active
            };
            let _ = writeln!(
                out,
                "takt_health_rule_{name}{{rule=\"{}\"}} {value}",
                escaped(rule)
            );
        }
    }
    let declared: Vec<FlowReport> = engine
        .flows()
        .filter(|flow| flow.spec.is_some())
        .map(|flow| flow.report(engine.spec(flow)))
        .collect();
    type Read = fn(&FlowReport) -> Option<f64>;
    let families: [(&str, &str, Read); 8] = [
        ("flow_level", "gauge", |flow| {
            Some(f64::from(flow.level as u8))
        }),
        ("flow_packets", "counter", |flow| Some(flow.packets as f64)),
        ("flow_bytes", "counter", |flow| Some(flow.bytes as f64)),
        ("flow_lost_packets", "counter", |flow| {
            flow.lost.map(|lost| lost as f64)
        }),
        ("flow_missing_beats", "counter", |flow| {
            flow.missing.map(|missing| missing as f64)
        }),
        ("flow_delay_max_seconds", "gauge", |flow| {
            Some(flow.delay.as_ref()?.max_ns as f64 / 1e9)
        }),
        ("flow_delay_p99_seconds", "gauge", |flow| {
            Some(flow.delay.as_ref()?.p99_ns? as f64 / 1e9)
        }),
        ("flow_jitter_seconds", "gauge", |flow| {
            Some(flow.jitter_ns? / 1e9)
        }),
    ];
    for (name, kind, read) in families {
        let _ = writeln!(out, "# TYPE takt_health_{name} {kind}");
        let suffix = if kind == "counter" { "_total" } else { "" };
        for flow in &declared {
            if let (Some(value), Some(spec)) = (read(flow), &flow.spec) {
                let (flow, spec) = (escaped(&flow.flow), escaped(spec));
                let _ = writeln!(
                    out,
                    "takt_health_{name}{suffix}{{flow=\"{flow}\",spec=\"{spec}\"}} {value}"
                );
            }
        }
    }
    out.push_str("# EOF\n");
    out
}

/// The last exposition.
#[derive(Default)]
pub struct Exposition(Mutex<String>);

impl Exposition {
    /// From now on this one.
    pub fn set(&self, text: String) {
        *lock(&self.0) = text;
    }
}

impl Site for Exposition {
    // Collectors name hosts as they like, and no figure is a secret from who may connect.
    const BY_ANY_NAME: bool = true;

    async fn answer(&self, _: &str) -> Answer {
        let text = lock(&self.0).clone();
        let status = match text.is_empty() {
            true => StatusCode::SERVICE_UNAVAILABLE,
            false => StatusCode::OK,
        };
        web::answer(status, KIND, text)
    }
}

/// Serves expositions.
pub fn serve(address: SocketAddr) -> Result<Arc<Exposition>, Failure> {
    let served = Arc::new(Exposition::default());
    web::serve(&[address], Arc::clone(&served))
        .map_err(|error| Failure::Other(format!("cannot serve metrics at {address}: {error}")))?;
    Ok(served)
}
