//! What operators see.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use takt_time::TrafficClass;

use super::Control;
use super::ends::Count;
use super::session::Session;
use crate::counters::{ChannelReading, SessionReading};
use crate::delays::DelayReading;
use crate::ids::SessionId;
use crate::status::{
    ChannelStatus, DatapathStatus, LaneLoad, LaneStatus, ListenerStatus, NodeStatus, Page,
    PortStatus, SessionStatus, StreamStatus, TenantStatus,
};

/// Sessions, streams, sources and sinks that are looked at in one turn of the control thread, for whoever asks for all.
const TURN: usize = 512;

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
            sessions: self.sessions.values().filter(|s| is_listed(s)).count(),
            channels: self.ends.count(),
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

    /// Sessions from this number on, of one tenant if it is named: so many at most, and no more than one turn may take.
    pub(super) fn session_page(
        &self,
        identity: Option<&str>,
        first: u64,
        limit: usize,
    ) -> Page<SessionStatus> {
        let mut page = Page::default();
        let Ok(first) = u32::try_from(first) else {
            return page;
        };
        let mut looked = 0;
        for (id, session) in self.sessions.range(SessionId(first)..) {
            if looked >= TURN || page.entries.len() == limit {
                page.next = Some(id.0.into());
                break;
            }
            looked += 1;
            let asked = identity.is_none_or(|identity| session.policy.identity == identity);
            if asked && is_listed(session) {
                let status = SessionStatus {
                    direct: self.direct_status(session.id),
                    ..session_status(session)
                };
                let of_it = [session.sources.count(), session.sinks.count()];
                looked += status.streams.len() + of_it.iter().sum::<usize>() + status.direct.len();
                page.entries.push(status);
            }
        }
        page
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

    /// Channels from this one on: so many at most, and no more than one turn may take.
    pub(super) fn channel_page(&self, first: u64, limit: usize) -> Page<ChannelStatus> {
        let most = limit.min(TURN);
        let known = self.channels.range(first..).map(|(channel, _)| *channel);
        let mapped = self
            .mapped_channels
            .range(first..)
            .map(|(channel, _)| *channel);
        // One more, for where the next page begins.
        let (known, mapped) = (known.take(most + 1), mapped.take(most + 1));
        let opened = self.ends.from(first).take(most + 1);
        let all: BTreeSet<u64> = known.chain(mapped).chain(opened).collect();
        let status = |channel: &u64| {
            let Count { sources, sinks } = self.ends.of(*channel);
            let mut counters = ChannelReading::default();
            for (_, counted) in self.channels.get(channel).into_iter().flatten() {
                counters += counted.read();
            }
            ChannelStatus {
                channel: *channel,
                sources,
                sinks,
                peers: self.routes.peers_of(*channel),
                datapath: self.mapped_channels.get(channel).map(ToString::to_string),
                counters,
            }
        };
        Page {
            entries: all.iter().take(most).map(status).collect(),
            next: all.iter().nth(most).copied(),
        }
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

/// Whether operators are told of a session.
fn is_listed(session: &Session) -> bool {
    session.arena.is_some() && session.goes_on()
}

fn session_status(session: &Session) -> SessionStatus {
    let mut streams: BTreeMap<u32, StreamStatus> = session
        .streams
        .entries()
        .map(|(at, stream)| {
            let number = at.0 as u32;
            let status = StreamStatus {
                stream: number,
                qos: stream.qos,
                datapath: stream.datapath.clone(),
                warning: stream.warning.clone(),
                rule: stream.rule.clone(),
                moved: stream.moved,
                sources: Vec::new(),
                sinks: Vec::new(),
            };
            (number, status)
        })
        .collect();
    for source in session.sources.iter() {
        if let Some(stream) = streams.get_mut(&source.stream) {
            stream
                .sources
                .extend(source.channel.map(|channel| channel.0));
        }
    }
    for sink in session.sinks.iter() {
        if let Some(stream) = streams.get_mut(&sink.stream) {
            stream.sinks.extend(sink.channel.map(|channel| channel.0));
        }
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
        streams: streams.into_values().collect(),
        counters: session.counters.read(),
        unserved: session.unserved,
        direct: Vec::new(),
        direct_messages: session.direct_messages(),
    }
}
