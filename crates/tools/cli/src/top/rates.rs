//! Rates from two pictures of a node: pure.

use std::collections::HashMap;

use serde::Serialize;
use taktd::admin::json::state_name;
use taktd::admin::proto::{
    Channel, ChannelCounters, Lane, LaneCounters, PeerState, Port, PortCounters, Session,
    SessionCounters, WatchResponse,
};

/// What a node did between two pictures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// The node.
    pub node: String,
    /// Version of its daemon.
    pub version: String,
    /// Its peering address.
    pub address: String,
    /// Time since its start.
    pub uptime_seconds: u64,
    /// Whether it is about to stop.
    pub draining: bool,
    /// Time between the pictures.
    pub seconds: f64,
    /// By number.
    pub lanes: Vec<LaneRates>,
    /// By lane.
    pub ports: Vec<PortRates>,
    /// Busiest first.
    pub channels: Vec<ChannelRates>,
    /// Busiest first.
    pub sessions: Vec<SessionRates>,
    /// As the node lists them.
    pub peers: Vec<PeerRow>,
}

/// A lane.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LaneRates {
    /// Its number.
    pub lane: u32,
    /// Sessions on it.
    pub sessions: u32,
    /// Share of time spent in rounds that found work, 0 to 1.
    pub busy: f64,
    /// Rounds.
    pub polls_per_second: f64,
    /// Times that it went to sleep.
    pub parks_per_second: f64,
    /// Datagrams and messages that it refused: malformed, of strangers, duplicate, incomplete.
    pub refused_per_second: f64,
}

/// A lane's port.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PortRates {
    /// The lane.
    pub lane: u32,
    /// Technology.
    pub datapath: String,
    /// Local address.
    pub local: String,
    /// Datagrams sent.
    pub tx_datagrams_per_second: f64,
    /// Payload bytes sent.
    pub tx_bytes_per_second: f64,
    /// Datagrams received.
    pub rx_datagrams_per_second: f64,
    /// Payload bytes received.
    pub rx_bytes_per_second: f64,
    /// Datagrams that the technology refused to send.
    pub tx_errors_per_second: f64,
    /// Datagrams lost below the port or refused by it.
    pub rx_lost_per_second: f64,
}

/// A channel.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChannelRates {
    /// Its number.
    pub channel: u64,
    /// Sources here.
    pub sources: u32,
    /// Sinks here.
    pub sinks: u32,
    /// Peers that want it.
    pub peers: usize,
    /// Messages emitted here.
    pub emitted_per_second: f64,
    /// Payload bytes emitted here.
    pub emitted_bytes_per_second: f64,
    /// Copies sent to other nodes.
    pub sent_per_second: f64,
    /// Messages that arrived from other nodes.
    pub received_per_second: f64,
    /// Payload bytes that arrived from other nodes.
    pub received_bytes_per_second: f64,
    /// Copies put into sinks.
    pub delivered_per_second: f64,
    /// Messages of other nodes that did not arrive. Below 0 when some arrived late.
    pub lost_per_second: f64,
    /// Copies dropped: no path, or no room in a sink.
    pub dropped_per_second: f64,
}

/// A session.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SessionRates {
    /// Its number.
    pub session: u64,
    /// The tenant.
    pub identity: String,
    /// What the application calls itself.
    pub name: String,
    /// Its process.
    pub pid: i32,
    /// Messages emitted.
    pub emitted_per_second: f64,
    /// Payload bytes emitted.
    pub emitted_bytes_per_second: f64,
    /// Messages put into its sinks.
    pub delivered_per_second: f64,
    /// Messages for its sinks that never arrived.
    pub lost_per_second: f64,
    /// Messages for its sinks for which there was no room.
    pub dropped_per_second: f64,
    /// Times that its rate limit held a message back.
    pub throttled_per_second: f64,
}

/// A peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PeerRow {
    /// Its address.
    pub address: String,
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub state: &'static str,
    /// Channels that it wants.
    pub channels: u32,
}

/// Counters per second.
#[derive(Clone, Copy)]
struct Per {
    seconds: f64,
}

impl Per {
    /// A counter that is lower than before belongs to something new of the same number: it began at 0.
    fn second(self, before: u64, now: u64) -> f64 {
        let count = if now >= before { now - before } else { now };
        count as f64 / self.seconds
    }
}

impl Rates {
    /// What happened between two pictures. Counters of another life of the node, or of things that were not
    /// there before, count from 0.
    pub fn between(before: &WatchResponse, now: &WatchResponse) -> Self {
        let seconds = (now.monotonic_ns - before.monotonic_ns).max(1) as f64 / 1e9;
        let per = Per { seconds };
        let node = now.node.clone().unwrap_or_default();
        let same = before
            .node
            .as_ref()
            .is_some_and(|old| old.incarnation == node.incarnation);
        let nothing = WatchResponse::default();
        let before = if same { before } else { &nothing };
        let old_lanes = before.node.as_ref().map_or(&[][..], |old| &old.lanes);
        let old_lane = |lane: u32| old_lanes.iter().find(|old| old.lane == lane);
        let mut ports = Vec::new();
        for lane in &node.lanes {
            for port in &lane.ports {
                let old = old_lane(lane.lane).and_then(|old| {
                    let mut ports = old.ports.iter();
                    ports.find(|old| old.datapath == port.datapath && old.local == port.local)
                });
                ports.push(port_rates(per, lane.lane, old, port));
            }
        }
        let old_channels: HashMap<u64, &Channel> =
            before.channels.iter().map(|c| (c.channel, c)).collect();
        let mut channels: Vec<ChannelRates> = now
            .channels
            .iter()
            .map(|c| channel_rates(per, old_channels.get(&c.channel).copied(), c))
            .collect();
        channels.sort_by(|a, b| busier(b.traffic(), a.traffic()).then(a.channel.cmp(&b.channel)));
        let old_sessions: HashMap<u64, &Session> =
            before.sessions.iter().map(|s| (s.session, s)).collect();
        let mut sessions: Vec<SessionRates> = now
            .sessions
            .iter()
            .map(|s| session_rates(per, old_sessions.get(&s.session).copied(), s))
            .collect();
        sessions.sort_by(|a, b| busier(b.traffic(), a.traffic()).then(a.session.cmp(&b.session)));
        Self {
            lanes: node
                .lanes
                .iter()
                .map(|lane| lane_rates(per, old_lane(lane.lane), lane))
                .collect(),
            ports,
            channels,
            sessions,
            peers: now
                .peers
                .iter()
                .map(|peer| PeerRow {
                    address: peer.address.clone(),
                    name: peer.name.clone(),
                    state: state_name(peer.state),
                    channels: peer.subscriptions,
                })
                .collect(),
            seconds,
            node: node.name,
            version: node.version,
            address: node.address,
            uptime_seconds: node.uptime_seconds,
            draining: node.draining,
        }
    }

    /// Peers that are up.
    pub fn peers_up(&self) -> usize {
        let up = state_name(PeerState::Up.into());
        self.peers.iter().filter(|peer| peer.state == up).count()
    }
}

impl ChannelRates {
    fn traffic(&self) -> f64 {
        self.emitted_per_second + self.received_per_second
    }
}

impl SessionRates {
    fn traffic(&self) -> f64 {
        self.emitted_per_second + self.delivered_per_second
    }
}

fn busier(a: f64, b: f64) -> std::cmp::Ordering {
    a.total_cmp(&b)
}

fn lane_rates(per: Per, before: Option<&Lane>, now: &Lane) -> LaneRates {
    let old: LaneCounters = before.and_then(|lane| lane.counters).unwrap_or_default();
    let new = now.counters.unwrap_or_default();
    let refused = |c: &LaneCounters| {
        c.rx_malformed
            + c.rx_unknown_sender
            + c.rx_misdirected
            + c.rx_duplicate
            + c.rx_stale_fragments
            + c.reassembly_refused
            + c.reassembly_expired
    };
    LaneRates {
        lane: now.lane,
        sessions: now.sessions,
        busy: (per.second(old.busy_nanos, new.busy_nanos) / 1e9).min(1.0),
        polls_per_second: per.second(old.polls, new.polls),
        parks_per_second: per.second(old.parks, new.parks),
        refused_per_second: per.second(refused(&old), refused(&new)),
    }
}

fn port_rates(per: Per, lane: u32, before: Option<&Port>, now: &Port) -> PortRates {
    let old: PortCounters = before.and_then(|port| port.counters).unwrap_or_default();
    let new = now.counters.unwrap_or_default();
    PortRates {
        lane,
        datapath: now.datapath.clone(),
        local: now.local.clone(),
        tx_datagrams_per_second: per.second(old.tx_datagrams, new.tx_datagrams),
        tx_bytes_per_second: per.second(old.tx_bytes, new.tx_bytes),
        rx_datagrams_per_second: per.second(old.rx_datagrams, new.rx_datagrams),
        rx_bytes_per_second: per.second(old.rx_bytes, new.rx_bytes),
        tx_errors_per_second: per.second(old.tx_errors, new.tx_errors),
        rx_lost_per_second: per.second(
            old.rx_dropped + old.rx_invalid,
            new.rx_dropped + new.rx_invalid,
        ),
    }
}

fn channel_rates(per: Per, before: Option<&Channel>, now: &Channel) -> ChannelRates {
    let old: ChannelCounters = before.and_then(|c| c.counters).unwrap_or_default();
    let new = now.counters.unwrap_or_default();
    let dropped = |c: &ChannelCounters| c.unreachable + c.dropped_full + c.dropped_memory;
    ChannelRates {
        channel: now.channel,
        sources: now.sources,
        sinks: now.sinks,
        peers: now.peers.len(),
        emitted_per_second: per.second(old.emitted, new.emitted),
        emitted_bytes_per_second: per.second(old.emitted_bytes, new.emitted_bytes),
        sent_per_second: per.second(old.sent, new.sent),
        received_per_second: per.second(old.received, new.received),
        received_bytes_per_second: per.second(old.received_bytes, new.received_bytes),
        delivered_per_second: per.second(old.delivered, new.delivered),
        lost_per_second: per.second(old.lost, new.lost) - per.second(old.late, new.late),
        dropped_per_second: per.second(dropped(&old), dropped(&new)),
    }
}

fn session_rates(per: Per, before: Option<&Session>, now: &Session) -> SessionRates {
    let old: SessionCounters = before.and_then(|s| s.counters).unwrap_or_default();
    let new = now.counters.unwrap_or_default();
    let dropped = |c: &SessionCounters| c.dropped_full + c.dropped_memory;
    SessionRates {
        session: now.session,
        identity: now.identity.clone(),
        name: now.name.clone(),
        pid: now.pid,
        emitted_per_second: per.second(old.emitted, new.emitted),
        emitted_bytes_per_second: per.second(old.emitted_bytes, new.emitted_bytes),
        delivered_per_second: per.second(old.delivered, new.delivered),
        lost_per_second: per.second(old.lost, new.lost),
        dropped_per_second: per.second(dropped(&old), dropped(&new)),
        throttled_per_second: per.second(old.throttled, new.throttled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taktd::admin::proto::Node;

    fn picture(seconds: i64, incarnation: u64, channels: &[(u64, u64)]) -> WatchResponse {
        WatchResponse {
            monotonic_ns: seconds * 1_000_000_000,
            node: Some(Node {
                incarnation,
                lanes: vec![Lane {
                    counters: Some(LaneCounters {
                        busy_nanos: seconds as u64 * 250_000_000,
                        ..LaneCounters::default()
                    }),
                    ..Lane::default()
                }],
                ..Node::default()
            }),
            channels: channels
                .iter()
                .map(|&(channel, emitted)| Channel {
                    channel,
                    counters: Some(ChannelCounters {
                        emitted,
                        ..ChannelCounters::default()
                    }),
                    ..Channel::default()
                })
                .collect(),
            ..WatchResponse::default()
        }
    }

    fn emitted(rates: &Rates) -> Vec<(u64, f64)> {
        let channels = rates.channels.iter();
        channels
            .map(|c| (c.channel, c.emitted_per_second))
            .collect()
    }

    #[test]
    fn rates_are_differences_over_time_busiest_first() {
        let before = picture(10, 1, &[(1, 100), (2, 100)]);
        let now = picture(12, 1, &[(1, 110), (2, 300)]);
        let rates = Rates::between(&before, &now);
        assert_eq!(rates.seconds, 2.0);
        assert_eq!(emitted(&rates), [(2, 100.0), (1, 5.0)]);
        assert_eq!(rates.lanes[0].busy, 0.25);
    }

    #[test]
    fn what_is_new_or_began_anew_counts_from_zero() {
        let before = picture(10, 1, &[(1, 100)]);
        let now = picture(11, 1, &[(1, 7), (2, 9)]);
        assert_eq!(
            emitted(&Rates::between(&before, &now)),
            [(2, 9.0), (1, 7.0)]
        );
        let restarted = picture(11, 2, &[(1, 150)]);
        assert_eq!(emitted(&Rates::between(&before, &restarted)), [(1, 150.0)]);
    }

    #[test]
    fn pictures_of_one_instant_do_not_divide_by_zero() {
        let rates = Rates::between(&picture(5, 1, &[(1, 1)]), &picture(5, 1, &[(1, 1)]));
        assert_eq!(emitted(&rates), [(1, 0.0)]);
    }
}
