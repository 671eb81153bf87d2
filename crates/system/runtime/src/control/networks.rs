//! The networks of a node: a part of the control thread that says what lanes are to be told.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use takt_session::message::Reply;
use takt_session::{Endpoint, ErrorCode, Failure};
use takt_wire::ethernet::{EtherType, MacAddress};

use super::host::Host;
use super::listener::Listener;
use super::network::{Forwarded, MOST_STATIONS, Network, Published};
use super::questions::{ANSWER_WITHIN, Question, Questions};
use super::routes::Commands;
use super::session::Session;
use super::{Control, FOLLOW_EVERY, FOLLOW_SOONEST, RuntimeHandle, SERVE_FOR, Stopped};
use crate::config::{NetworkConfig, Station};
use crate::ids::SessionId;
use crate::lane::Command;
use crate::lane::network::Owner;
use crate::policy::Policy;
use crate::status::NetworkStatus;

/// How long the first look at the host's tables may keep a node from being ready.
const FIRST_WITHIN: Duration = Duration::from_secs(1);

/// What is known of an answer.
enum Resolution {
    /// The station, or that there is none.
    Known(Option<[u8; 6]>),
    /// The kernel has been asked.
    Later,
}

/// Why a station is not entered.
#[derive(Debug, thiserror::Error)]
pub enum StationError {
    /// No such network.
    #[error("there is no network `{name}` here: this node has {have}")]
    Network {
        /// As asked for.
        name: String,
        /// Those there are.
        have: String,
    },
    /// The network has another carrier.
    #[error("a station of `{0}`, a VXLAN network, is behind a tunnel endpoint: name its address")]
    NoEndpoint(String),
    /// The network has another carrier.
    #[error("`{0}` is a native network without tunnel endpoints: leave the address out")]
    Endpoint(String),
    /// Only groups of stations have such an address.
    #[error("{0} is the address of a group: enter stations, or 00:00:00:00:00:00 for the rest")]
    Group(MacAddress),
    /// The table is full.
    #[error("the network has {MOST_STATIONS} stations, its limit: remove some")]
    Full,
}

/// All networks, and the kernel's tables that they follow.
pub(super) struct Networks {
    list: Vec<Network>,
    lanes: usize,
    host: Host,
    next_look: Duration,
    /// Questions of tenants that wait for the kernel.
    questions: Questions,
    /// Questions about ways that tenants have asked.
    asked: u64,
}

impl Networks {
    pub(super) fn new(networks: Vec<NetworkConfig>, lanes: usize, host: Host) -> Self {
        let networks = networks.into_iter();
        Self {
            list: networks.map(|config| Network::new(config, lanes)).collect(),
            lanes,
            host,
            next_look: Duration::ZERO,
            questions: Questions::default(),
            asked: 0,
        }
    }

    /// Where all stations are, for lanes that know nothing yet.
    pub(super) fn all(&mut self) -> Commands {
        let networks = 0..self.list.len();
        networks.flat_map(|at| self.table(at)).collect()
    }

    /// Where the stations of a network are.
    fn table(&mut self, at: usize) -> Commands {
        let network = &mut self.list[at];
        let stations = network.publish();
        let table = |lane| {
            let table = Command::Network {
                network: at,
                carrier: network.carrier(),
                stations: stations.clone(),
                counters: network.counters(lane),
            };
            (lane, table)
        };
        (0..self.lanes).map(table).collect()
    }

    /// The ways to destinations behind this host, as far as they have changed; and the stations.
    fn publish(&mut self, at: usize, changes: Published, commands: &mut Commands) {
        if changes.stations {
            commands.extend(self.table(at));
        }
        for (destination, routed) in changes.routes {
            let route = |lane| {
                let command = Command::Route {
                    network: at,
                    destination,
                    routed,
                };
                (lane, command)
            };
            commands.extend((0..self.lanes).map(route));
        }
    }

    /// The kernel has said that its tables have changed: they are looked at as soon as that is allowed again.
    pub(super) fn note_changes(&mut self) {
        if self.host.take_changed() {
            self.look_soon();
        }
    }

    fn look_soon(&mut self) {
        let soonest = self.next_look.saturating_sub(FOLLOW_EVERY - FOLLOW_SOONEST);
        self.next_look = self.next_look.min(soonest);
    }

    /// Has the host's tables looked at when that is due.
    fn look(&mut self, now: Duration) {
        if !self.list.is_empty() && now >= self.next_look {
            self.next_look = now + FOLLOW_EVERY;
            if let Err(error) = self.host.begin_look() {
                self.say_unreadable(&error);
            }
        }
    }

    /// When something is to be done next.
    fn due(&self) -> Option<Duration> {
        let look = (!self.list.is_empty()).then_some(self.next_look);
        self.questions.due().into_iter().chain(look).min()
    }

    /// Takes over what the kernel has answered. `endpoints`: those of tenants.
    fn take_seen(
        &mut self,
        within: Duration,
        endpoints: impl FnOnce() -> Vec<Endpoint>,
    ) -> Commands {
        let seen = self.host.take_seen(within);
        if seen.is_some() || self.host.take_answered() {
            self.questions.reconsider();
        }
        if seen.is_some() && self.questions.want_a_look(self.host.looks()) {
            self.look_soon();
        }
        match seen {
            Some(Ok(())) => self.follow(&endpoints()),
            Some(Err(error)) => {
                self.say_unreadable(&error);
                Commands::new()
            }
            None => Commands::new(),
        }
    }

    /// The next question that may be answered now.
    fn next_question(&mut self, now: Duration) -> Option<(u64, Question)> {
        self.questions.take(self.host.looks(), now)
    }

    fn say_unreadable(&mut self, error: &str) {
        for network in &mut self.list {
            network.say(Some(format!("cannot read the host's tables: {error}")));
        }
    }

    /// Takes over what the host's devices and tables say now.
    fn follow(&mut self, endpoints: &[Endpoint]) -> Commands {
        self.host.keep_arrivals(|address| {
            let mut addresses = endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
            addresses.any(|(own, _)| own == address)
        });
        let mut commands = Commands::new();
        for at in 0..self.list.len() {
            let changes = self.list[at].look(&self.host, endpoints);
            self.publish(at, changes, &mut commands);
        }
        commands
    }

    /// The number of a network.
    pub(super) fn number(&self, name: &str) -> Result<usize, StationError> {
        let at = self.list.iter().position(|network| network.name() == name);
        at.ok_or_else(|| {
            let have: Vec<&str> = self.list.iter().map(Network::name).collect();
            StationError::Network {
                name: name.into(),
                have: match have.is_empty() {
                    true => "none: add a [[network]] to its configuration".into(),
                    false => have.join(", "),
                },
            }
        })
    }

    fn set_station(&mut self, network: &str, station: Station) -> Result<Commands, StationError> {
        let at = self.number(network)?;
        self.list[at].enter(station)?;
        Ok(self.table(at))
    }

    /// `None`: an operator has not entered it.
    fn remove_station(
        &mut self,
        network: &str,
        mac: MacAddress,
        vtep: Option<IpAddr>,
    ) -> Result<Option<Commands>, StationError> {
        let at = self.number(network)?;
        let removed = self.list[at].remove(mac, vtep);
        Ok(removed.then(|| self.table(at)))
    }

    /// A tenant's endpoint, and the number of its network.
    fn endpoint<'p>(&self, policy: &'p Policy) -> Result<(&'p Endpoint, usize), Failure> {
        let endpoint = policy.check_endpoint()?;
        let network = self
            .number(&endpoint.network)
            .map_err(|error| Failure::new(ErrorCode::NotFound, error.to_string()))?;
        Ok((endpoint, network))
    }

    /// A tenant's endpoint, and what its frames must come from.
    pub(super) fn owner(&self, policy: &Policy) -> Result<(Endpoint, Owner), Failure> {
        let (endpoint, network) = self.endpoint(policy)?;
        let owner = Owner {
            network,
            mac: MacAddress(endpoint.mac),
            addresses: endpoint.addresses.clone(),
            mtu: endpoint.mtu.into(),
            ether_types: policy.ether_types.iter().copied().map(EtherType).collect(),
            vlans: endpoint.vlans.clone(),
            classes: policy.classes,
        };
        Ok((endpoint.clone(), owner))
    }

    /// Answers a tenant's question, as far as that is known. `owner`: whose an address is in a network, among this node's tenants.
    fn consider(
        &mut self,
        question: &mut Question,
        policy: &Policy,
        owner: impl Fn(&str, IpAddr) -> Option<MacAddress>,
        now: Duration,
        commands: &mut Commands,
    ) -> Result<Resolution, Failure> {
        let (endpoint, at) = self.endpoint(policy)?;
        let tenant = MacAddress(endpoint.mac);
        let (destination, next_hop) = (question.destination, question.next_hop);
        let known = question.known.map(MacAddress);
        let in_time = now < question.until;
        // Who has found the next hop by itself does not say which one that is: on the link it is the destination.
        let asked_for = match next_hop.is_unspecified() {
            true => destination,
            false => next_hop,
        };
        if let Some(mac) = known
            && self.list[at].resolve(tenant, next_hop, None).is_none()
            && self.host.has(mac)
        {
            // This host is asked to forward. What is for itself is its kernel's.
            if destination == next_hop {
                return Ok(Resolution::Known(None));
            }
            self.asked += 1;
            let way = (destination, mac, self.asked);
            let (forwarded, changes) = self.list[at].forward(&mut self.host, policy, way);
            self.publish(at, changes, commands);
            return Ok(match forwarded {
                Forwarded::Asked if in_time => Resolution::Later,
                Forwarded::Served => Resolution::Known(Some(mac.0)),
                Forwarded::Asked | Forwarded::Not => Resolution::Known(None),
            });
        }
        // An address of a tenant is nobody else's, whatever the asking one's neighbour cache was made to say.
        let known = owner(self.list[at].name(), asked_for).or(known);
        // It may have come since the tables were looked at last: as a rule it has just been resolved.
        if in_time && known.is_some_and(|mac| self.list[at].has_not_seen(mac)) {
            let look = *question.look.get_or_insert(self.host.next_look());
            if self.host.looks() < look {
                self.look_soon();
                return Ok(Resolution::Later);
            }
        }
        let found = self.list[at].find(tenant, asked_for, known);
        Ok(Resolution::Known(found.map(|mac| mac.0)))
    }

    fn status(&self, endpoints: &[Endpoint]) -> Vec<NetworkStatus> {
        let networks = self.list.iter();
        let status = networks.map(|network| network.status(&self.host, endpoints));
        status.collect()
    }
}

impl RuntimeHandle {
    /// All networks.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn networks(&self) -> Result<Vec<NetworkStatus>, Stopped> {
        self.ask(|c| c.networks.status(&endpoints(&c.listeners)))
    }

    /// Enters a station into a network, or changes what is known of the one with this MAC address. With the
    /// address zero, tunnel endpoints add up: each gets what is for groups and for unknown stations.
    ///
    /// # Errors
    /// [`Stopped`]; inside, [`StationError`]: then nothing has changed.
    pub fn set_station(
        &self,
        network: String,
        station: Station,
    ) -> Result<Result<(), StationError>, Stopped> {
        self.change(move |c| {
            let commands = c.networks.set_station(&network, station)?;
            c.command_all(commands);
            Ok(())
        })
    }

    /// Takes a station out of a network; false if an operator has not entered it. With the address zero
    /// only the entry of this tunnel endpoint.
    ///
    /// # Errors
    /// [`Stopped`]; inside, [`StationError::Network`].
    pub fn remove_station(
        &self,
        network: String,
        mac: MacAddress,
        vtep: Option<IpAddr>,
    ) -> Result<Result<bool, StationError>, Stopped> {
        self.change(move |c| {
            let removed = c.networks.remove_station(&network, mac, vtep)?;
            let found = removed.is_some();
            c.command_all(removed.unwrap_or_default());
            Ok(found)
        })
    }
}

/// The places that tenants have in networks.
fn endpoints(listeners: &HashMap<u32, Listener>) -> Vec<Endpoint> {
    let listeners = listeners.values();
    let endpoints = listeners.filter_map(|listener| listener.policy.endpoint.clone());
    endpoints.collect()
}

/// The tenant whose address this is in a network.
fn owner(listeners: &HashMap<u32, Listener>, network: &str, address: IpAddr) -> Option<MacAddress> {
    let endpoints = listeners.values();
    endpoints
        .filter_map(|listener| listener.policy.endpoint.as_ref())
        .find(|endpoint| {
            let own = endpoint.addresses.iter().any(|(own, _)| *own == address);
            endpoint.network == network && own && !address.is_unspecified()
        })
        .map(|endpoint| MacAddress(endpoint.mac))
}

impl Control {
    /// Looks at the host's tables when that is due, takes over what the kernel has answered, and answers the tenants that
    /// waited for it.
    pub(super) fn follow_host(&mut self) {
        self.networks.look(self.now());
        self.take_host(Duration::ZERO);
    }

    /// Who uses the node as soon as it is ready finds its networks known, unless the kernel is slow to answer.
    pub(super) fn take_first_of_host(&mut self) {
        self.networks.look(self.now());
        self.take_host(FIRST_WITHIN);
    }

    pub(super) fn take_host(&mut self, within: Duration) {
        let listeners = &self.listeners;
        let commands = self.networks.take_seen(within, || endpoints(listeners));
        self.command_all(commands);
        self.answer_questions();
        self.await_networks();
    }

    fn await_networks(&mut self) {
        if let Some(due) = self.networks.due() {
            self.next_tick = self.next_tick.min(due);
        }
    }

    /// Which station a tenant's frames are for whose packets have this destination and, on the link, this next
    /// hop. `known`: what the tenant knows of that. No answer: it comes when the kernel has told more.
    pub(super) fn resolve(
        &mut self,
        session: SessionId,
        request: u32,
        destination: IpAddr,
        next_hop: IpAddr,
        known: Option<[u8; 6]>,
    ) -> Result<Option<Reply>, Failure> {
        let mut question = Question {
            tenant: self.sessions.get(&session).map_or(0, |s| s.tenant),
            session,
            request,
            destination,
            next_hop,
            known,
            look: None,
            until: self.now() + ANSWER_WITHIN,
        };
        match self.consider(&mut question)? {
            Resolution::Known(found) => Ok(Some(Reply::Resolved(found))),
            Resolution::Later => {
                self.networks.questions.keep(question)?;
                self.await_networks();
                Ok(None)
            }
        }
    }

    /// Answers the questions that the kernel has told enough for, and those that have waited for too long: for a while, the others
    /// in later turns.
    fn answer_questions(&mut self) {
        let until = self.now() + SERVE_FOR;
        while let Some((number, mut question)) = self.networks.next_question(self.now()) {
            let (id, request) = (question.session, question.request);
            if self.sessions.get(&id).is_some_and(Session::goes_on) {
                let reply = match self.consider(&mut question) {
                    Ok(Resolution::Later) => {
                        self.networks.questions.put_back(number, question);
                        None
                    }
                    Ok(Resolution::Known(found)) => Some(Reply::Resolved(found)),
                    Err(failure) => Some(Reply::Failed(failure)),
                };
                let told = reply.map_or(Ok(()), |reply| self.reply(id, request, reply, &[]));
                if let Err(failure) = told {
                    self.end_session(id, Some(failure));
                }
            }
            if self.now() >= until {
                break;
            }
        }
        if self.networks.questions.are_behind() {
            self.look_again();
        }
    }

    fn consider(&mut self, question: &mut Question) -> Result<Resolution, Failure> {
        let Some(session) = self.sessions.get(&question.session) else {
            return Err(ErrorCode::Closed.into());
        };
        let (policy, now) = (session.policy.clone(), self.now());
        let listeners = &self.listeners;
        let owner = |network: &str, address: IpAddr| owner(listeners, network, address);
        let mut commands = Commands::new();
        let found = self
            .networks
            .consider(question, &policy, owner, now, &mut commands);
        self.command_all(commands);
        found
    }
}
