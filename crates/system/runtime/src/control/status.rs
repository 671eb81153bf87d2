//! What operators see.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use takt_time::TrafficClass;

use super::Control;
use super::session::{Endpoint, Session};
use crate::counters::{ChannelReading, SessionReading};
use crate::delays::DelayReading;
use crate::slots::StreamSlot;
use crate::status::{
    ChannelStatus, DatapathStatus, LaneLoad, LaneStatus, ListenerStatus, NodeStatus, PortStatus,
    SessionStatus, StreamStatus, TenantStatus,
};

impl Control {
    pub(super) fn status(&self) -> NodeStatus {
        NodeStatus {
            name: self.config.name.clone(),
            incarnation: self.incarnation,
            control_address: self
                .socket
                .local_addr()
                .unwrap_or_else(|_| SocketAddr::new(self.config.address, self.config.port)),
            uptime_seconds: self.started.elapsed().as_secs(),
            draining: self.drain.is_some(),
            streams_moved: self.streams_moved,
            sessions_moved: self.moves.counts,
            lanes: self
                .lanes
                .iter()
                .enumerate()
                .map(|(lane, info)| LaneStatus {
                    lane,
                    counters: info.counters.read(),
                    sessions: info.sessions,
                    load: (self.balancing.load(lane))
                        .map(|(load, overloaded)| LaneLoad { load, overloaded }),
                    ports: info
                        .ports
                        .iter()
                        .map(|p| PortStatus {
                            datapath: p.kind.0,
                            local: p.local,
                            counters: p.traffic.read(),
                        })
                        .collect(),
                })
                .collect(),
            delays: TrafficClass::all()
                .map(|class| {
                    let mut sum = DelayReading::default();
                    for lane in &self.lanes {
                        sum += &lane.delays.read(class);
                    }
                    sum
                })
                .collect(),
            clock: self.clock_status.as_ref().map(|status| status.state),
            peering: self.peering.counters(),
            protection: self.config.security.protection,
            key: self.config.security.node.as_ref().map(|key| key.public()),
            next_key: self.config.security.next.as_ref().map(|key| key.public()),
            group: self.config.security.group.is_some(),
        }
    }

    pub(super) fn datapath_status(&self) -> Vec<DatapathStatus> {
        let there = self
            .datapaths
            .iter()
            .map(|(kind, capabilities)| DatapathStatus {
                name: kind.0.into(),
                state: match self.faults.fault(*kind, false) {
                    None => Ok(capabilities.clone()),
                    Some(why) => Err(why),
                },
                failures: self.faults.failures(*kind),
            });
        let missing = self.unavailable.iter().map(|(name, why)| DatapathStatus {
            name: name.clone(),
            state: Err(why.clone()),
            failures: 0,
        });
        there.chain(missing).collect()
    }

    pub(super) fn session_status(&self) -> Vec<SessionStatus> {
        let mut all: Vec<SessionStatus> = self
            .sessions
            .values()
            .filter(|s| s.arena.is_some() && s.goes_on())
            .map(|session| SessionStatus {
                direct: self.direct_status(session.id),
                ..session_status(session)
            })
            .collect();
        all.sort_by_key(|s| s.session);
        all
    }

    pub(super) fn tenant_status(&self) -> Vec<TenantStatus> {
        let mut all: BTreeMap<&str, TenantStatus> = BTreeMap::new();
        let entry = |identity: &str| TenantStatus {
            identity: identity.to_owned(),
            sessions: 0,
            ended: 0,
            counters: SessionReading::default(),
        };
        for (identity, ended) in self.ended.iter() {
            let tenant = all.entry(identity).or_insert_with(|| entry(identity));
            tenant.ended += ended.sessions;
            tenant.counters += ended.counters;
        }
        for session in self.sessions.values().filter(|s| s.arena.is_some()) {
            let identity = session.policy.identity.as_str();
            let tenant = all.entry(identity).or_insert_with(|| entry(identity));
            tenant.sessions += 1;
            tenant.counters += session.counters.read();
        }
        all.into_values().collect()
    }

    pub(super) fn channel_status(&self) -> Vec<ChannelStatus> {
        let mut all: BTreeMap<u64, ChannelStatus> = BTreeMap::new();
        let entry = |channel: u64| ChannelStatus {
            channel,
            sources: 0,
            sinks: 0,
            peers: self.routes.peers_of(channel),
            datapath: self.mapped_channels.get(&channel).map(ToString::to_string),
            counters: ChannelReading::default(),
        };
        for (&channel, lanes) in &self.channels {
            let status = all.entry(channel).or_insert_with(|| entry(channel));
            for (_, counters) in lanes {
                status.counters += counters.read();
            }
        }
        for &channel in self.mapped_channels.keys() {
            all.entry(channel).or_insert_with(|| entry(channel));
        }
        for session in self.sessions.values().filter(|s| !s.ending) {
            for channel in session.sources.iter().filter_map(|e| e.channel) {
                all.entry(channel.0)
                    .or_insert_with(|| entry(channel.0))
                    .sources += 1;
            }
            for channel in session.sinks.iter().filter_map(|e| e.channel) {
                all.entry(channel.0)
                    .or_insert_with(|| entry(channel.0))
                    .sinks += 1;
            }
        }
        all.into_values().collect()
    }

    pub(super) fn listener_status(&self) -> Vec<ListenerStatus> {
        let tenants = self.tenant_status();
        let counted = |identity: &str| {
            // They are in this order.
            let found = tenants.binary_search_by_key(&identity, |tenant| tenant.identity.as_str());
            found.map(|at| tenants[at].counters).unwrap_or_default()
        };
        self.listeners
            .values()
            .map(|l| {
                let held = l.account.usage();
                let (streams, undeclared) = l.policer.read(&l.policy);
                ListenerStatus {
                    path: l.config.path.clone(),
                    mode: l.config.mode,
                    policy: (*l.policy).clone(),
                    sessions: held.sessions,
                    memory: held.memory,
                    endpoints: held.endpoints,
                    descriptors: held.descriptors,
                    refused: l.refused,
                    counters: counted(&l.policy.identity),
                    unserved: l.account.unserved(),
                    streams,
                    undeclared,
                }
            })
            .collect()
    }
}

fn session_status(session: &Session) -> SessionStatus {
    fn channels<'a>(of: impl Iterator<Item = &'a Endpoint>, stream: StreamSlot) -> Vec<u64> {
        of.filter(|e| e.stream as usize == stream.0)
            .filter_map(|e| Some(e.channel?.0))
            .collect()
    }

    SessionStatus {
        session: session.id.0.into(),
        name: session.name.clone(),
        identity: session.policy.identity.clone(),
        pid: session.pid,
        uid: session.uid,
        lane: session.lane,
        moved: session.moved.as_ref().map_or(0, |moved| moved.times),
        moved_why: (session.moved.as_ref()).map_or(String::new(), |moved| moved.why.clone()),
        arena_bytes: session.arena.as_ref().map_or(0, |a| a.map.total()),
        streams: session
            .streams
            .entries()
            .map(|(at, stream)| StreamStatus {
                stream: at.0 as u32,
                qos: stream.qos,
                datapath: stream.datapath.clone(),
                warning: stream.warning.clone(),
                rule: stream.rule.clone(),
                moved: stream.moved,
                sources: channels(session.sources.iter(), at),
                sinks: channels(session.sinks.iter(), at),
            })
            .collect(),
        counters: session.counters.read(),
        unserved: session.unserved,
        direct: Vec::new(),
        direct_messages: session.direct_messages(),
    }
}
