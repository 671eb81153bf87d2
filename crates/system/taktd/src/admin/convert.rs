//! The runtime's snapshots as messages of the admin API.

use takt_runtime::counters::{
    ChannelReading, LaneReading, NetworkReading, PortReading, SessionReading,
};
use takt_runtime::delays::DelayReading;
use takt_runtime::peering::keys::{Protection, PublicKey};
use takt_runtime::peering::message::Outage;
use takt_runtime::peering::{Authentication, PeerState, PeeringCounters};
use takt_runtime::status::{
    ChannelStatus, DatapathStatus, DirectStatus, LaneStatus, NodeStatus, PeerStatus, PortStatus,
    SessionStatus, StreamStatus,
};
use takt_session::{Acceleration, ResourceUse, TimeSensitivity};

use super::proto;

macro_rules! same_fields {
    ($reading:ty => $message:ident { $($field:ident),* $(,)? }) => {
        impl From<$reading> for proto::$message {
            fn from(reading: $reading) -> Self {
                Self { $($field: reading.$field),* }
            }
        }
    };
}

same_fields!(LaneReading => LaneCounters {
    polls, busy_polls, busy_nanos, parks, rx_malformed, rx_unknown_sender, rx_forwarded, rx_misdirected,
    rx_no_sink, rx_duplicate, reassembly_refused, reassembly_expired, tx_datagrams, rx_unauthentic, rx_replayed,
    rx_early, rx_no_room, rx_no_place, rx_stale_fragments, rx_no_part,
});
same_fields!(PortReading => PortCounters {
    tx_datagrams, tx_bytes, tx_errors, rx_datagrams, rx_bytes, rx_dropped, rx_invalid,
});
same_fields!(ChannelReading => ChannelCounters {
    emitted, emitted_bytes, no_sink, sent, unreachable, received, received_bytes, lost, late, delivered,
    dropped_full, dropped_memory, unknown_tails, repaired, undelivered, evicted,
    detoured,
});
same_fields!(SessionReading => SessionCounters {
    emitted, emitted_bytes, delivered, delivered_bytes, dropped_full, dropped_memory, lost, throttled, abandoned, launched,
    launched_late, launches_missed,
});
same_fields!(NetworkReading => NetworkCounters {
    sent, sent_bytes, foreign, refused, unknown, unreachable,
});
same_fields!(PeeringCounters => PeeringCounters {
    strangers, malformed, version, too_many, unauthenticated, replayed,
});

impl From<NodeStatus> for proto::Node {
    fn from(status: NodeStatus) -> Self {
        Self {
            name: status.name,
            version: env!("CARGO_PKG_VERSION").into(),
            incarnation: status.incarnation,
            address: status.control_address.to_string(),
            uptime_seconds: status.uptime_seconds,
            draining: status.draining,
            streams_moved: status.streams_moved,
            sessions: u32::try_from(status.sessions).unwrap_or(u32::MAX),
            channels: u32::try_from(status.channels).unwrap_or(u32::MAX),
            sessions_moved: Some(proto::SessionsMoved {
                operator: status.sessions_moved.operator,
                overload: status.sessions_moved.overload,
                rule: status.sessions_moved.rule,
            }),
            lanes: status.lanes.into_iter().map(Into::into).collect(),
            peering: Some(status.peering.into()),
            protection: match status.protection {
                Protection::None => proto::Protection::None,
                Protection::Integrity => proto::Protection::Integrity,
                Protection::Encrypt => proto::Protection::Encrypt,
            }
            .into(),
            delays: (0..).zip(&status.delays).filter_map(delays).collect(),
            clock_state: status
                .clock
                .map_or(proto::ClockState::Unspecified, Into::into)
                .into(),
            key: written(status.key),
            next_key: written(status.next_key),
            group_key: status.group,
        }
    }
}

/// A class of which messages came.
fn delays((class, reading): (u32, &DelayReading)) -> Option<proto::ClassDelays> {
    let messages = reading.count();
    (messages > 0 || reading.negative > 0).then(|| proto::ClassDelays {
        class,
        messages,
        p50_ns: reading.quantile(500).unwrap_or(0),
        p99_ns: reading.quantile(990).unwrap_or(0),
        p999_ns: reading.quantile(999).unwrap_or(0),
        longest_ns: reading.longest_ns,
        negative: reading.negative,
    })
}

impl From<LaneStatus> for proto::Lane {
    fn from(status: LaneStatus) -> Self {
        Self {
            lane: status.lane as u32,
            sessions: status.sessions as u32,
            load_permille: status.load.map(|of| of.load),
            overloaded: status.load.is_some_and(|of| of.overloaded),
            counters: Some(status.counters.into()),
            ports: status.ports.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<PortStatus> for proto::Port {
    fn from(status: PortStatus) -> Self {
        Self {
            datapath: status.datapath.into(),
            local: status.local.to_string(),
            counters: Some(status.counters.into()),
        }
    }
}

/// The reasons that there were, with their counts.
pub fn unserved(counts: &takt_session::unserved::Counts) -> Vec<proto::Unserved> {
    let names = takt_session::unserved::NAMES;
    let all = names.into_iter().zip(counts);
    all.filter(|(_, count)| **count > 0)
        .map(|(reason, count)| proto::Unserved {
            reason: reason.into(),
            count: *count,
        })
        .collect()
}

impl From<SessionStatus> for proto::Session {
    fn from(status: SessionStatus) -> Self {
        Self {
            session: status.session,
            name: status.name,
            identity: status.identity,
            pid: status.pid,
            uid: status.uid,
            lane: status.lane as u32,
            moved: status.moved,
            moved_why: status.moved_why,
            arena_bytes: status.arena_bytes as u64,
            streams: status.streams.into_iter().map(Into::into).collect(),
            counters: Some(status.counters.into()),
            unserved: unserved(&status.unserved),
            direct: status.direct.into_iter().map(Into::into).collect(),
            direct_messages: status.direct_messages[0],
            direct_bytes: status.direct_messages[1],
        }
    }
}

impl From<DirectStatus> for proto::Direct {
    fn from(status: DirectStatus) -> Self {
        Self {
            ring: status.ring,
            channel: status.channel,
            session: status.session,
            name: status.name,
            ended: status.ended,
        }
    }
}

impl From<StreamStatus> for proto::Stream {
    fn from(status: StreamStatus) -> Self {
        let acceleration = match status.qos.acceleration {
            Acceleration::Slow => proto::Acceleration::Slow,
            Acceleration::Fast => proto::Acceleration::Fast,
        };
        let resource_use = match status.qos.resource_use {
            ResourceUse::Frugal => proto::ResourceUse::Frugal,
            ResourceUse::Unlimited => proto::ResourceUse::Unlimited,
        };
        Self {
            stream: status.stream,
            acceleration: acceleration.into(),
            resource_use: resource_use.into(),
            traffic_class: match status.qos.time_sensitivity {
                TimeSensitivity::BestEffort => None,
                TimeSensitivity::TimeSensitive(class) => Some(class.number().into()),
            },
            datapath: status.datapath,
            warning: status.warning,
            rule: status.rule,
            moved: status.moved,
            asked_datapath: status
                .qos
                .datapath
                .map_or_else(String::new, |name| name.to_string()),
            sources: status.sources,
            sinks: status.sinks,
        }
    }
}

impl From<ChannelStatus> for proto::Channel {
    fn from(status: ChannelStatus) -> Self {
        Self {
            channel: status.channel,
            sources: status.sources as u32,
            sinks: status.sinks as u32,
            peers: status.peers.iter().map(ToString::to_string).collect(),
            counters: Some(status.counters.into()),
            datapath: status.datapath.unwrap_or_default(),
        }
    }
}

fn written(key: Option<PublicKey>) -> String {
    key.map_or_else(String::new, |key| key.to_string())
}

impl From<PeerStatus> for proto::Peer {
    fn from(status: PeerStatus) -> Self {
        let state = match status.state {
            PeerState::Trying => proto::PeerState::Trying,
            PeerState::Up => proto::PeerState::Up,
            PeerState::Down => proto::PeerState::Down,
        };
        let (authentication, key) = match status.authentication {
            Authentication::None => (proto::Authentication::None, String::new()),
            Authentication::Group => (proto::Authentication::Group, String::new()),
            Authentication::Node(key) => (proto::Authentication::Node, key.to_string()),
            Authentication::NoKey => (proto::Authentication::NoKey, String::new()),
        };
        Self {
            authentication: authentication.into(),
            key,
            next_key: written(status.other_key),
            address: status.address.to_string(),
            name: status.name,
            state: state.into(),
            silent_ms: status
                .silent
                .map(|silent| u64::try_from(silent.as_millis()).unwrap_or(u64::MAX)),
            incarnation: status.incarnation,
            subscriptions: status.subscriptions as u32,
            configured: status.configured,
            attempts: status.attempts,
            warning: {
                let clash = status.clash.map(|clash| clash.to_string());
                let failed = status.failed.iter().map(|Outage { datapath, returns }| {
                    let state = if *returns {
                        "works again"
                    } else {
                        "has failed"
                    };
                    let yet = if *returns { " for now" } else { "" };
                    format!("{datapath} {state} there: what is for it goes by other datapaths{yet}")
                });
                let behind = status.is_behind.then(|| {
                    "it has not taken this node's new key yet: if that lasts, add it there as its `next_key`"
                        .to_owned()
                });
                let warnings: Vec<String> = clash.into_iter().chain(failed).chain(behind).collect();
                warnings.join("; ")
            },
        }
    }
}

impl From<DatapathStatus> for proto::Datapath {
    fn from(status: DatapathStatus) -> Self {
        match status.state {
            Ok(capabilities) => Self {
                name: status.name,
                available: true,
                reason: String::new(),
                accelerated: capabilities.accelerated,
                needs_polling: capabilities.needs_polling,
                hardware_launch_time: capabilities.hardware_launch_time,
                zero_copy: capabilities.zero_copy,
                detail: capabilities.detail,
                failures: status.failures,
            },
            Err(reason) => Self {
                name: status.name,
                reason,
                failures: status.failures,
                ..Self::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_counter_of_the_runtime_is_missing_from_the_contract() {
        let cases = [
            (
                LaneReading::default().fields(),
                format!("{:?}", proto::LaneCounters::default()),
            ),
            (
                PortReading::default().fields(),
                format!("{:?}", proto::PortCounters::default()),
            ),
            (
                ChannelReading::default().fields(),
                format!("{:?}", proto::ChannelCounters::default()),
            ),
            (
                SessionReading::default().fields(),
                format!("{:?}", proto::SessionCounters::default()),
            ),
        ];
        for (fields, message) in cases {
            for (name, _) in fields {
                assert!(
                    message.contains(&format!(" {name}: ")),
                    "{name} in {message}"
                );
            }
        }
    }

    #[test]
    fn a_missing_datapath_tells_why() {
        let message = proto::Datapath::from(DatapathStatus {
            name: "xdp".into(),
            state: Err("missing privilege: CAP_BPF".into()),
            failures: 0,
        });
        assert!(!message.available);
        assert!(message.reason.contains("CAP_BPF"));
    }
}
