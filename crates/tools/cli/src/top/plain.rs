//! Rates as text and as cells of tables: for `--once` and for the screen alike.

use super::rates::Rates;
use crate::output::{Align, Column, dash, duration, table};

/// Headings and rows.
pub struct Rows {
    /// What the table is about.
    pub title: &'static str,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows.
    pub rows: Vec<Vec<String>>,
}

/// A rate with three significant digits and its magnitude: `12.3k`.
pub fn rate(value: f64) -> String {
    let magnitude = value.abs();
    let (scaled, unit) = match magnitude {
        m if m >= 999.5e6 => (value / 1e9, "G"),
        m if m >= 999.5e3 => (value / 1e6, "M"),
        m if m >= 999.5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        _ if value == 0.0 => 0,
        s if s >= 99.95 => 0,
        s if s >= 9.995 => 1,
        _ => 2,
    };
    format!("{scaled:.digits$}{unit}")
}

/// The lines above the tables.
pub fn heading(rates: &Rates) -> String {
    format!(
        "{} (taktd {}) at {}, up {}{}: {} session(s), {} channel(s), {} of {} peer(s) up",
        rates.node,
        rates.version,
        rates.address,
        duration(rates.uptime_seconds),
        if rates.draining { ", draining" } else { "" },
        rates.sessions.len(),
        rates.channels.len(),
        rates.peers_up(),
        rates.peers.len()
    )
}

/// Everything as text.
pub fn text(rates: &Rates) -> String {
    // On two lines: a page has 80 columns.
    let mut text = heading(rates).replacen(": ", "\n", 1) + "\n";
    for part in [
        lanes(rates),
        ports(rates),
        channels(rates),
        sessions(rates),
        peers(rates),
    ] {
        if !part.rows.is_empty() {
            text.push('\n');
            text.push_str(&table(&part.columns, part.rows));
        }
    }
    text
}

fn columns(left: &[&'static str], right: &[&'static str]) -> Vec<Column> {
    let left = left.iter().map(|heading| (*heading, Align::Left));
    let right = right.iter().map(|heading| (*heading, Align::Right));
    left.chain(right).collect()
}

/// Lanes.
pub fn lanes(rates: &Rates) -> Rows {
    Rows {
        title: "lanes",
        columns: columns(
            &["LANE"],
            &["BUSY", "POLLS/s", "PARKS/s", "REFUSED/s", "SESSIONS"],
        ),
        rows: rates
            .lanes
            .iter()
            .map(|lane| {
                vec![
                    lane.lane.to_string(),
                    format!("{:.1} %", lane.busy * 100.0),
                    rate(lane.polls_per_second),
                    rate(lane.parks_per_second),
                    rate(lane.refused_per_second),
                    lane.sessions.to_string(),
                ]
            })
            .collect(),
    }
}

/// Ports.
pub fn ports(rates: &Rates) -> Rows {
    Rows {
        title: "ports",
        columns: columns(
            &["LANE", "PORT", "LOCAL"],
            &[
                "SENT/s",
                "BYTES/s",
                "RECEIVED/s",
                "BYTES/s",
                "ERRORS/s",
                "LOST/s",
            ],
        ),
        rows: rates
            .ports
            .iter()
            .map(|port| {
                vec![
                    port.lane.to_string(),
                    port.datapath.clone(),
                    port.local.clone(),
                    rate(port.tx_datagrams_per_second),
                    rate(port.tx_bytes_per_second),
                    rate(port.rx_datagrams_per_second),
                    rate(port.rx_bytes_per_second),
                    rate(port.tx_errors_per_second),
                    rate(port.rx_lost_per_second),
                ]
            })
            .collect(),
    }
}

/// Channels.
pub fn channels(rates: &Rates) -> Rows {
    Rows {
        title: "channels",
        columns: columns(
            &["CHANNEL"],
            &[
                "SOURCES",
                "SINKS",
                "PEERS",
                "EMITTED/s",
                "BYTES/s",
                "SENT/s",
                "RECEIVED/s",
                "BYTES/s",
                "DELIVERED/s",
                "LOST/s",
                "DROPPED/s",
            ],
        ),
        rows: rates
            .channels
            .iter()
            .map(|channel| {
                vec![
                    channel.channel.to_string(),
                    channel.sources.to_string(),
                    channel.sinks.to_string(),
                    channel.peers.to_string(),
                    rate(channel.emitted_per_second),
                    rate(channel.emitted_bytes_per_second),
                    rate(channel.sent_per_second),
                    rate(channel.received_per_second),
                    rate(channel.received_bytes_per_second),
                    rate(channel.delivered_per_second),
                    rate(channel.lost_per_second),
                    rate(channel.dropped_per_second),
                ]
            })
            .collect(),
    }
}

/// Sessions.
pub fn sessions(rates: &Rates) -> Rows {
    Rows {
        title: "sessions",
        columns: columns(
            &["SESSION", "TENANT", "NAME"],
            &[
                "PID",
                "EMITTED/s",
                "BYTES/s",
                "DELIVERED/s",
                "LOST/s",
                "DROPPED/s",
                "THROTTLED/s",
            ],
        ),
        rows: rates
            .sessions
            .iter()
            .map(|session| {
                vec![
                    session.session.to_string(),
                    session.identity.clone(),
                    dash(&session.name),
                    session.pid.to_string(),
                    rate(session.emitted_per_second),
                    rate(session.emitted_bytes_per_second),
                    rate(session.delivered_per_second),
                    rate(session.lost_per_second),
                    rate(session.dropped_per_second),
                    rate(session.throttled_per_second),
                ]
            })
            .collect(),
    }
}

/// Peers.
pub fn peers(rates: &Rates) -> Rows {
    Rows {
        title: "peers",
        columns: columns(&["PEER", "NAME", "STATE"], &["CHANNELS"]),
        rows: rates
            .peers
            .iter()
            .map(|peer| {
                vec![
                    peer.address.clone(),
                    dash(&peer.name),
                    peer.state.to_owned(),
                    peer.channels.to_string(),
                ]
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rates::{ChannelRates, LaneRates};

    #[test]
    fn rates_have_three_digits_and_a_magnitude() {
        let cases = [
            (0.0, "0"),
            (0.5, "0.50"),
            (12.34, "12.3"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (12_345.0, "12.3k"),
            (999_600.0, "1.00M"),
            (1_234_567_890.0, "1.23G"),
            (-2.0, "-2.00"),
        ];
        for (value, text) in cases {
            assert_eq!(rate(value), text);
        }
    }

    #[test]
    fn the_text_has_a_table_for_everything_that_is_there() {
        let rates = Rates {
            node: "press".into(),
            lanes: vec![LaneRates {
                busy: 0.123,
                ..LaneRates::default()
            }],
            channels: vec![ChannelRates {
                channel: 7,
                lost_per_second: 1500.0,
                ..ChannelRates::default()
            }],
            ..Rates::default()
        };
        let text = text(&rates);
        assert!(text.starts_with("press "), "{text}");
        assert!(text.contains("12.3 %") && text.contains("1.50k"), "{text}");
        assert!(!text.contains("TENANT"), "{text}");
    }
}
