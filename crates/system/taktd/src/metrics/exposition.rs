//! The page of metrics, in the OpenMetrics text format.
//!
//! Names follow the counters of the runtime: `takt_<subject>_<counter>_total`, with the subject's identity as
//! labels. `docs/how-to/operate.md` lists what to watch.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use takt_clock::{ClockStatus, State};
use takt_runtime::control::Stopped;
use takt_runtime::delays::{DelayReading, bucket_end};
use takt_runtime::peering::PeerState;
use takt_runtime::status::{
    ChannelStatus, DatapathStatus, ListenerStatus, NodeStatus, PeerStatus, ScheduleStatus,
    TenantStatus,
};

use crate::node::Node;

/// The type of the page.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Most channels on the page: tenants choose their numbers, and a page of millions would help nobody.
const MOST_CHANNELS: usize = 4096;

/// The one number of a class that falls as well.
const QUEUED: &str = "queued";

/// Writes the page.
///
/// # Errors
/// [`Stopped`].
pub fn page(node: &Node) -> Result<String, Stopped> {
    let handle = node.handle();
    let snapshot = Snapshot {
        node: handle.status()?,
        tenants: handle.tenants()?,
        channels: handle.channels()?,
        peers: handle.peers()?,
        listeners: handle.listeners()?,
        datapaths: handle.datapaths()?,
        clock: handle.clock()?,
        schedules: handle.schedules()?,
        others_kept: node.other_traffic_kept(),
    };
    let mut registry = Registry::with_prefix("takt");
    registry.register_collector(Box::new(snapshot));
    let mut page = String::new();
    // Writing into a string cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut page, &registry);
    Ok(page)
}

#[derive(Debug)]
struct Snapshot {
    node: NodeStatus,
    tenants: Vec<TenantStatus>,
    channels: Vec<ChannelStatus>,
    peers: Vec<PeerStatus>,
    listeners: Vec<ListenerStatus>,
    datapaths: Vec<DatapathStatus>,
    clock: Option<ClockStatus>,
    schedules: Vec<ScheduleStatus>,
    others_kept: Vec<(String, bool)>,
}

/// Labels of one thing.
type Labels = Vec<(&'static str, String)>;

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let out = &mut encoder;
        self.of_node(out)?;
        self.of_lanes(out)?;
        self.of_delays(out)?;
        self.of_tenants(out)?;
        self.of_channels(out)?;
        self.of_peers(out)?;
        let listeners: Vec<_> = self
            .listeners
            .iter()
            .map(|l| {
                let labels = vec![
                    ("path", l.path.to_string_lossy().into_owned()),
                    ("tenant", l.policy.identity.clone()),
                ];
                (labels, vec![("refused", l.refused)])
            })
            .collect();
        counters(out, "listener", &listeners)?;
        let unserved: Vec<_> = self
            .listeners
            .iter()
            .flat_map(|l| {
                let reasons = takt_session::unserved::NAMES.into_iter().zip(l.unserved);
                reasons.map(|(reason, count)| {
                    let labels = vec![
                        ("path", l.path.to_string_lossy().into_owned()),
                        ("tenant", l.policy.identity.clone()),
                        ("reason", reason.to_owned()),
                    ];
                    (labels, vec![("unserved", count)])
                })
            })
            .collect();
        counters(out, "listener", &unserved)?;
        self.of_streams(out)?;
        let datapaths: Vec<_> = self
            .datapaths
            .iter()
            .map(|d| {
                let labels = vec![("datapath", d.name.clone())];
                (labels, f64::from(u8::from(d.state.is_ok())))
            })
            .collect();
        gauge(
            out,
            "datapath_available",
            "Whether streams can get the datapath",
            &datapaths,
        )?;
        let failures = |d: &DatapathStatus| {
            let labels = vec![("datapath", d.name.clone())];
            (labels, vec![("failures", d.failures)])
        };
        let failures: Vec<_> = self.datapaths.iter().map(failures).collect();
        counters(out, "datapath", &failures)?;
        self.of_schedules(out)?;
        match &self.clock {
            Some(clock) => of_clock(clock, out),
            None => Ok(()),
        }
    }
}

fn of_clock(clock: &ClockStatus, out: &mut DescriptorEncoder) -> fmt::Result {
    let states = [State::Synchronised, State::Holdover, State::FreeRunning].map(|state| {
        let labels = vec![("state", state.to_string())];
        (labels, f64::from(u8::from(state == clock.state)))
    });
    gauge(out, "clock_state", "1 for the state of the clock", &states)?;
    let seconds = |nanos: f64| [(Labels::new(), nanos / 1e9)];
    // What nobody says is not on the page.
    let told = [
        (
            clock.offset_ns.map(|offset| offset as f64),
            "clock_offset_seconds",
            "The clock minus its reference, as last measured",
        ),
        (
            clock.bound_ns.map(|bound| bound as f64),
            "clock_bound_seconds",
            "The most that the clock is off its reference",
        ),
    ];
    for (nanos, name, help) in told {
        if let Some(nanos) = nanos {
            gauge(out, name, help, &seconds(nanos))?;
        }
    }
    gauge(
        out,
        "clock_tai_offset_seconds",
        "TAI minus UTC as the kernel has it; 0: nobody has told it",
        &[(Labels::new(), clock.tai_offset.seconds.into())],
    )?;
    let mut warnings: BTreeMap<&str, f64> = BTreeMap::new();
    for warning in &clock.warnings {
        *warnings.entry(warning.code).or_default() += 1.0;
    }
    let warnings: Vec<_> = warnings
        .into_iter()
        .map(|(code, count)| (vec![("code", code.to_owned())], count))
        .collect();
    gauge(out, "clock_warnings", "Warnings about the clock", &warnings)?;
    let mut steps = out.encode_descriptor(
        "clock_steps",
        "Steps of the clock that were seen",
        None,
        MetricType::Counter,
    )?;
    steps.encode_counter::<NoLabelSet, _, f64>(&clock.steps, None)
}

impl Snapshot {
    fn of_node(&self, out: &mut DescriptorEncoder) -> fmt::Result {
        let node = &self.node;
        let labels: Labels = vec![
            ("name", node.name.clone()),
            ("version", env!("CARGO_PKG_VERSION").into()),
        ];
        out.encode_descriptor("node", "The node", None, MetricType::Info)?
            .encode_info(&labels)?;
        let single = |value: f64| [(Labels::new(), value)];
        gauge(
            out,
            "uptime_seconds",
            "Time since the start of the node",
            &single(node.uptime_seconds as f64),
        )?;
        gauge(
            out,
            "draining",
            "Whether the node is about to stop",
            &single(f64::from(u8::from(node.draining))),
        )?;
        let moved = [(Labels::new(), vec![("moved", node.streams_moved)])];
        counters(out, "streams", &moved)?;
        let moved = &node.sessions_moved;
        let by: Vec<_> = [
            ("operator", moved.operator),
            ("overload", moved.overload),
            ("rule", moved.rule),
        ]
        .map(|(by, count)| (vec![("by", by.to_owned())], vec![("moved", count)]))
        .into();
        counters(out, "sessions", &by)?;
        let refused = &node.peering;
        let reasons: Vec<_> = [
            ("stranger", refused.strangers),
            ("malformed", refused.malformed),
            ("version", refused.version),
            ("too_many", refused.too_many),
            ("unauthenticated", refused.unauthenticated),
            ("replayed", refused.replayed),
        ]
        .map(|(reason, count)| {
            (
                vec![("reason", reason.to_owned())],
                vec![("refused", count)],
            )
        })
        .into();
        counters(out, "peering", &reasons)
    }

    fn of_delays(&self, out: &mut DescriptorEncoder) -> fmt::Result {
        let heard = |reading: &DelayReading| reading.count() > 0 || reading.negative > 0;
        let classes = || {
            let classes = self.node.delays.iter().enumerate();
            let classes = classes.filter(|(_, reading)| heard(reading));
            classes.map(|(class, reading)| (vec![("class", class.to_string())], reading))
        };
        if classes().next().is_none() {
            return Ok(());
        }
        let mut metric = out.encode_descriptor(
            "one_way_delay_seconds",
            "From when the sender's lane took a message of another node until it was whole here, as good as the clocks agree",
            None,
            MetricType::Histogram,
        )?;
        for (labels, reading) in classes() {
            metric
                .encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(
                    reading.sum_ns as f64 / 1e9,
                    reading.count(),
                    &by_powers_of_two(reading),
                    None,
                )?;
        }
        let negative: Vec<_> = classes()
            .map(|(labels, reading)| (labels, vec![("negative", reading.negative)]))
            .collect();
        counters(out, "one_way_delay", &negative)
    }

    fn of_lanes(&self, out: &mut DescriptorEncoder) -> fmt::Result {
        let lane_labels = |lane: usize| vec![("lane", lane.to_string())];
        let lanes = &self.node.lanes;
        let readings: Vec<_> = lanes
            .iter()
            .map(|l| {
                let fields = l.counters.fields();
                let fields = fields
                    .into_iter()
                    .filter(|(name, _)| *name != "busy_nanos")
                    .collect();
                (lane_labels(l.lane), fields)
            })
            .collect();
        counters(out, "lane", &readings)?;
        let mut busy = out.encode_descriptor(
            "lane_busy_seconds",
            "Time spent in rounds that found work",
            None,
            MetricType::Counter,
        )?;
        for lane in lanes {
            busy.encode_family(&lane_labels(lane.lane))?
                .encode_counter::<NoLabelSet, _, f64>(
                    &(lane.counters.busy_nanos as f64 / 1e9),
                    None,
                )?;
        }
        let sessions: Vec<_> = lanes
            .iter()
            .map(|l| (lane_labels(l.lane), l.sessions as f64))
            .collect();
        gauge(out, "lane_sessions", "Sessions on the lane", &sessions)?;
        let loads = || {
            lanes
                .iter()
                .filter_map(|l| Some((lane_labels(l.lane), l.load?)))
        };
        let shares: Vec<_> = loads()
            .map(|(labels, of)| (labels, f64::from(of.load) / 1000.0))
            .collect();
        gauge(
            out,
            "lane_load",
            "The share of the last second in which the lane was at work",
            &shares,
        )?;
        let overloaded: Vec<_> = loads()
            .map(|(labels, of)| (labels, f64::from(u8::from(of.overloaded))))
            .collect();
        gauge(
            out,
            "lane_overloaded",
            "Whether the lane has reached the high mark of load, and not yet gone down to the low one",
            &overloaded,
        )?;
        let ports: Vec<_> = lanes
            .iter()
            .flat_map(|l| l.ports.iter().map(move |p| (l.lane, p)))
            .map(|(lane, port)| {
                let mut labels = lane_labels(lane);
                labels.push(("datapath", port.datapath.to_owned()));
                labels.push(("local", port.local.to_string()));
                (labels, port.counters.fields())
            })
            .collect();
        counters(out, "port", &ports)
    }

    fn of_tenants(&self, out: &mut DescriptorEncoder) -> fmt::Result {
        let labels = |t: &TenantStatus| vec![("tenant", t.identity.clone())];
        let sessions: Vec<_> = self
            .tenants
            .iter()
            .map(|t| (labels(t), t.sessions as f64))
            .collect();
        gauge(out, "tenant_sessions", "Sessions of the tenant", &sessions)?;
        let readings: Vec<_> = self
            .tenants
            .iter()
            .map(|t| {
                let mut fields = t.counters.fields();
                fields.push(("ended_sessions", t.ended));
                (labels(t), fields)
            })
            .collect();
        counters(out, "tenant", &readings)
    }

    fn of_streams(&self, out: &mut DescriptorEncoder) -> fmt::Result {
        let of = |l: &ListenerStatus| {
            vec![
                ("path", l.path.to_string_lossy().into_owned()),
                ("tenant", l.policy.identity.clone()),
            ]
        };
        let streams: Vec<_> = self
            .listeners
            .iter()
            .flat_map(|l| {
                let streams = l.policy.streams.iter().zip(&l.streams);
                streams.map(move |(stream, reading)| {
                    let mut labels = of(l);
                    labels.push(("stream", stream.name.clone()));
                    (labels, reading.fields())
                })
            })
            .collect();
        counters(out, "stream", &streams)?;
        let policed = self
            .listeners
            .iter()
            .filter(|l| !l.policy.streams.is_empty());
        let undeclared: Vec<_> = policed
            .map(|l| (of(l), vec![("undeclared", l.undeclared)]))
            .collect();
        counters(out, "listener", &undeclared)
    }

    fn of_channels(&self, out: &mut DescriptorEncoder) -> fmt::Result {
        gauge(
            out,
            "channels",
            "Channels in use; those with the lowest numbers have metrics of their own",
            &[(Labels::new(), self.channels.len() as f64)],
        )?;
        let shown = || self.channels.iter().take(MOST_CHANNELS);
        let labels = |c: &ChannelStatus| vec![("channel", c.channel.to_string())];
        let counts = |count: fn(&ChannelStatus) -> usize| -> Vec<(Labels, f64)> {
            shown().map(|c| (labels(c), count(c) as f64)).collect()
        };
        gauge(
            out,
            "channel_sources",
            "Sources of the channel here",
            &counts(|c| c.sources),
        )?;
        gauge(
            out,
            "channel_sinks",
            "Sinks of the channel here",
            &counts(|c| c.sinks),
        )?;
        gauge(
            out,
            "channel_peers",
            "Peers that want the channel",
            &counts(|c| c.peers.len()),
        )?;
        let readings: Vec<_> = shown().map(|c| (labels(c), c.counters.fields())).collect();
        counters(out, "channel", &readings)
    }

    fn of_schedules(&self, out: &mut DescriptorEncoder) -> fmt::Result {
        let labels = |s: &ScheduleStatus| vec![("datapath", s.datapath.clone())];
        let unmet: Vec<_> = self
            .schedules
            .iter()
            .map(|s| (labels(s), f64::from(u8::from(s.unmet.is_some()))))
            .collect();
        gauge(
            out,
            "schedule_clock_unmet",
            "Whether the schedule runs without the clock that it demands",
            &unmet,
        )?;
        let kept: Vec<_> = self
            .others_kept
            .iter()
            .map(|(datapath, kept)| {
                let labels = vec![("datapath", datapath.clone())];
                (labels, f64::from(u8::from(*kept)))
            })
            .collect();
        gauge(
            out,
            "schedule_other_traffic_kept",
            "Whether the kernel keeps what others send by the link inside the schedule, where it is to",
            &kept,
        )?;
        let losses: Vec<_> = self
            .schedules
            .iter()
            .map(|s| (labels(s), vec![("clock_losses", s.losses)]))
            .collect();
        counters(out, "schedule", &losses)?;
        let classes = || {
            self.schedules.iter().flat_map(|s| {
                let numbered = s.classes.iter().enumerate();
                numbered.map(|(class, reading)| {
                    let labels = vec![
                        ("datapath", s.datapath.clone()),
                        ("class", class.to_string()),
                    ];
                    (labels, reading.frames.fields())
                })
            })
        };
        let queued: Vec<_> = classes()
            .map(|(labels, fields)| {
                let waiting = fields.iter().find(|(field, _)| *field == QUEUED);
                (labels, waiting.map_or(0.0, |(_, value)| *value as f64))
            })
            .collect();
        gauge(out, "class_queued", "Frames that wait", &queued)?;
        let passed: Vec<_> = classes()
            .map(|(labels, mut fields)| {
                fields.retain(|(field, _)| *field != QUEUED);
                (labels, fields)
            })
            .collect();
        counters(out, "class", &passed)
    }

    fn of_peers(&self, out: &mut DescriptorEncoder) -> fmt::Result {
        let labels =
            |p: &PeerStatus| vec![("peer", p.address.to_string()), ("name", p.name.clone())];
        let up: Vec<_> = self
            .peers
            .iter()
            .map(|p| (labels(p), f64::from(u8::from(p.state == PeerState::Up))))
            .collect();
        gauge(out, "peer_up", "Whether the peer was heard lately", &up)?;
        let wanted: Vec<_> = self
            .peers
            .iter()
            .map(|p| (labels(p), p.subscriptions as f64))
            .collect();
        gauge(
            out,
            "peer_subscriptions",
            "Channels that the peer wants",
            &wanted,
        )
    }
}

/// Messages by their delay, and up to how many seconds: a bucket for each power of two.
fn by_powers_of_two(reading: &DelayReading) -> Vec<(f64, u64)> {
    let (mut all, mut messages) = (Vec::new(), 0);
    for (bucket, more) in reading.buckets.iter().enumerate() {
        messages += more;
        let end = match bucket_end(bucket) {
            Some(end) if end.is_power_of_two() => end as f64 / 1e9,
            Some(_) => continue,
            None => f64::INFINITY,
        };
        all.push((end, std::mem::take(&mut messages)));
    }
    all
}

fn gauge(
    out: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    values: &[(Labels, f64)],
) -> fmt::Result {
    let mut metric = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        if labels.is_empty() {
            metric.encode_gauge(value)?;
        } else {
            metric.encode_family(labels)?.encode_gauge(value)?;
        }
    }
    Ok(())
}

/// Counters of the same fields for several things.
fn counters(
    out: &mut DescriptorEncoder,
    subject: &str,
    things: &[(Labels, Vec<(&'static str, u64)>)],
) -> fmt::Result {
    let Some((_, fields)) = things.first() else {
        return Ok(());
    };
    for (at, (field, _)) in fields.iter().enumerate() {
        let name = format!("{subject}_{field}");
        let mut metric = out.encode_descriptor(
            &name,
            help(subject, field).unwrap_or(field),
            None,
            MetricType::Counter,
        )?;
        for (labels, fields) in things {
            match fields.get(at) {
                Some((_, value)) if labels.is_empty() => {
                    metric.encode_counter::<NoLabelSet, _, f64>(value, None)?;
                }
                Some((_, value)) => metric
                    .encode_family(labels)?
                    .encode_counter::<NoLabelSet, _, f64>(value, None)?,
                None => {}
            }
        }
    }
    Ok(())
}

/// What a counter counts.
fn help(subject: &str, field: &str) -> Option<&'static str> {
    Some(match (subject, field) {
        ("lane", "polls") => "Rounds of the loop",
        ("lane", "busy_polls") => "Rounds that found work",
        ("lane", "parks") => "Times that the lane went to sleep",
        ("lane", "rx_malformed") => "Datagrams of another version or not decodable",
        ("lane", "rx_unknown_sender") => "Datagrams whose sender is no known peer",
        ("lane", "rx_unauthentic") => {
            "Datagrams not protected as they must be, or with a wrong tag"
        }
        ("lane", "rx_replayed") => "Datagrams that came before",
        ("lane", "rx_forwarded") => "Datagrams passed on to the lane that they were meant for",
        ("lane", "rx_misdirected") => "Datagrams for a lane that is not there or is full",
        ("lane", "rx_no_sink") => "Messages for channels without a sink here",
        ("lane", "rx_duplicate") => "Messages that came twice or too late",
        ("lane", "rx_stale_fragments") => "Fragments of messages given up, or complete",
        ("lane", "rx_early") => "Records of reliable sources not known yet, or beyond the grant",
        ("lane", "rx_no_room") => "Records of reliable sources for which a sink had no room",
        ("lane", "rx_no_part") => {
            "Records of reliable sources not looked at: a tenant had had its part"
        }
        ("lane", "rx_no_place") => "Announcements of reliable sources for which no place was free",
        ("datapath", "failures") => "Times that the datapath has failed",
        ("channel", "detoured") => {
            "Of those sent: by another datapath than the stream's, which does not reach the peer"
        }
        ("channel", "repaired") => "Records of reliable sources that were sent again",
        ("channel", "undelivered") => {
            "Messages of reliable sources that at least one receiver does without"
        }
        ("channel", "evicted") => {
            "Sinks that took nothing for too long, and nodes that were not heard"
        }
        ("lane", "reassembly_refused") => "Fragmented messages given up for want of memory",
        ("lane", "reassembly_expired") => "Fragmented messages of which a fragment did not come",
        ("lane" | "port", "tx_datagrams") => "Datagrams handed to the datapath",
        ("port", "tx_bytes") => "Payload bytes handed to the datapath",
        ("port", "tx_errors") => "Datagrams that the technology refused",
        ("port", "rx_datagrams") => "Datagrams received",
        ("port", "rx_bytes") => "Payload bytes received",
        ("port", "rx_dropped") => "Datagrams lost below the port, as far as the technology tells",
        ("port", "rx_invalid") => "Frames refused: truncated, bad checksum, not for this node",
        ("channel" | "tenant", "emitted") => "Messages emitted",
        ("channel" | "tenant", "emitted_bytes") => "Payload bytes emitted",
        ("channel" | "tenant", "delivered") => "Copies put into sinks",
        ("tenant", "delivered_bytes") => "Payload bytes put into sinks",
        ("channel" | "tenant", "dropped_full") => "Copies dropped because a sink's ring was full",
        ("channel" | "tenant", "dropped_memory") => {
            "Copies dropped because a sink's memory was exhausted"
        }
        ("channel", "lost") => {
            "Messages that have not come to some sinks here, mostly sent by other nodes and not arrived"
        }
        ("channel", "unknown_tails") => {
            "Sources elsewhere that went without telling how many messages they had sent"
        }
        ("channel", "no_sink") => "Emitted messages for which no sink was known",
        ("channel", "sent") => "Copies for remote lanes handed to a datapath",
        ("channel", "unreachable") => "Copies for remote lanes dropped: there was no path",
        ("channel", "received") => "Messages that arrived from other nodes",
        ("channel", "received_bytes") => "Payload bytes that arrived from other nodes",
        ("channel", "late") => "Messages that arrived after they had been counted as lost",
        ("tenant", "lost") => "Messages for its sinks that never arrived",
        ("tenant", "abandoned") => "Emitted messages that were given up when their sessions ended",
        ("tenant", "launched") => "Messages with a launch time that have left",
        ("tenant", "launched_late") => {
            "Messages that left later than their launch time and the tolerance"
        }
        ("tenant", "launches_missed") => {
            "Messages with a launch time that did not leave for all that they were for"
        }
        ("tenant", "throttled") => "Times that the rate limit held a message back",
        ("tenant", "ended_sessions") => "Sessions that have ended",
        ("listener", "refused") => "Connections refused",
        ("listener", "unserved") => {
            "Datagrams with a launch time that preloaded programs did not give to the runtime"
        }
        ("listener", "undeclared") => "Frames refused because they are of no declared stream",
        ("stream", "passed") => "Frames of the declared stream that passed",
        ("stream", "refused_window") => {
            "Frames refused: no launch time, or one outside the stream's window"
        }
        ("stream", "refused_size") => "Frames refused: longer than the stream's largest",
        ("stream", "refused_excess") => "Frames refused: more than the stream may have in a period",
        ("class", "offered") => "Frames that were to be queued",
        ("class", "sent") => "Frames sent",
        ("class", "refused_late") => "Frames not taken: the launch time had passed",
        ("class", "refused") => {
            "Frames not taken: no room, too long, no window of the class is long enough"
        }
        ("class", "dropped_late") => "Frames dropped: too late for the launch time",
        ("class", "dropped_gate_missed") => {
            "Frames dropped: the gate was closed at the launch time"
        }
        ("class", "dropped") => "Frames dropped for another reason",
        ("class", "sent_late") => "Frames sent later than tolerated: the lane or the link was busy",
        ("class", "sent_gate_missed") => "Frames sent later than tolerated: the gate was closed",
        ("class", "overruns") => "Frames still on the wire when their gate closed",
        ("one_way_delay", "negative") => {
            "Messages that came before they were sent: the clocks of the nodes differ"
        }
        ("schedule", "clock_losses") => "Times that the clock ceased to be what is demanded",
        ("peering", "refused") => "Peering datagrams refused",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use takt_runtime::counters::{
        ChannelReading, ClassReading, DepartureReading, LaneReading, PortReading, SessionReading,
        StreamReading,
    };
    use takt_runtime::delays::BUCKETS;

    #[test]
    fn every_counter_says_what_it_counts() {
        let all = [
            ("lane", LaneReading::default().fields()),
            ("port", PortReading::default().fields()),
            ("channel", ChannelReading::default().fields()),
            ("tenant", SessionReading::default().fields()),
            ("stream", StreamReading::default().fields()),
            ("class", ClassReading::default().fields()),
        ];
        let elsewhere = ["busy_nanos", QUEUED];
        for (subject, fields) in all {
            for (field, _) in fields.iter().filter(|(name, _)| !elsewhere.contains(name)) {
                assert!(help(subject, field).is_some(), "{subject} {field}");
            }
        }
    }

    #[test]
    fn names_that_tenants_choose_cannot_break_the_page() {
        let mut delays = DelayReading {
            sum_ns: 4_000_000_000,
            negative: 5,
            ..Default::default()
        };
        // Two up to 1.024 µs, one in each of the buckets up to twice as much, one above all.
        delays.buckets[0] = 2;
        delays.buckets[1..=16].fill(1);
        delays.buckets[BUCKETS - 1] = 1;
        let mut registry = Registry::with_prefix("takt");
        registry.register_collector(Box::new(Snapshot {
            node: NodeStatus {
                protection: takt_runtime::peering::keys::Protection::Integrity,
                key: None,
                next_key: None,
                group: true,
                name: "a\"b\\c\nd".into(),
                incarnation: 1,
                control_address: std::net::SocketAddr::from(([127, 0, 0, 1], 7400)),
                uptime_seconds: 5,
                draining: false,
                sessions: 0,
                channels: 0,
                streams_moved: 3,
                sessions_moved: takt_runtime::status::SessionsMoved {
                    overload: 2,
                    ..Default::default()
                },
                lanes: vec![takt_runtime::status::LaneStatus {
                    lane: 1,
                    counters: LaneReading::default(),
                    sessions: 4,
                    load: Some(takt_runtime::status::LaneLoad {
                        load: 905,
                        overloaded: true,
                    }),
                    ports: Vec::new(),
                }],
                delays: vec![DelayReading::default(), delays],
                clock: None,
                peering: Default::default(),
            },
            tenants: Vec::new(),
            channels: Vec::new(),
            peers: Vec::new(),
            listeners: Vec::new(),
            datapaths: vec![DatapathStatus {
                name: "xdp".into(),
                state: Err("eth1 is down".into()),
                failures: 2,
            }],
            clock: None,
            schedules: vec![ScheduleStatus {
                datapath: "udp".into(),
                rate_bps: 0,
                beside: Vec::new(),
                address: None,
                vlan: false,
                priorities: Default::default(),
                operational: None,
                pending: None,
                running: None,
                latest: None,
                cycle: None,
                changes: 0,
                late_changes: 0,
                unmet: None,
                losses: 0,
                classes: vec![DepartureReading {
                    frames: ClassReading {
                        queued: 3,
                        sent_late: 2,
                        ..Default::default()
                    },
                    ..Default::default()
                }],
            }],
            others_kept: vec![("udp".into(), false)],
        }));
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).expect("a page");
        assert!(page.contains(r#"name="a\"b\\c\nd""#), "{page}");
        assert!(page.contains("\ntakt_uptime_seconds 5.0\n"), "{page}");
        assert!(page.contains("\ntakt_streams_moved_total 3\n"), "{page}");
        for line in [
            r#"takt_sessions_moved_total{by="overload"} 2"#,
            r#"takt_lane_load{lane="1"} 0.905"#,
            r#"takt_lane_overloaded{lane="1"} 1.0"#,
            r#"takt_datapath_available{datapath="xdp"} 0.0"#,
            r#"takt_datapath_failures_total{datapath="xdp"} 2"#,
            r#"takt_class_queued{datapath="udp",class="0"} 3.0"#,
            r#"takt_schedule_other_traffic_kept{datapath="udp"} 0.0"#,
            r#"takt_class_sent_late_total{datapath="udp",class="0"} 2"#,
            "# TYPE takt_one_way_delay_seconds histogram",
            r#"takt_one_way_delay_seconds_sum{class="1"} 4.0"#,
            r#"takt_one_way_delay_seconds_count{class="1"} 19"#,
            r#"takt_one_way_delay_seconds_bucket{le="0.000001024",class="1"} 2"#,
            r#"takt_one_way_delay_seconds_bucket{le="0.000002048",class="1"} 18"#,
            r#"takt_one_way_delay_seconds_bucket{le="17.179869184",class="1"} 18"#,
            r#"takt_one_way_delay_seconds_bucket{le="+Inf",class="1"} 19"#,
            r#"takt_one_way_delay_negative_total{class="1"} 5"#,
        ] {
            assert!(page.contains(&format!("\n{line}\n")), "{page}");
        }
        assert!(
            !page.contains(r#"one_way_delay_seconds_sum{class="0"}"#),
            "{page}"
        );
        assert!(page.ends_with("# EOF\n"), "{page}");
    }
}
