//! The peers of a port.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use takt_datapath::{ConnectError, PeerHandle};

use crate::config::{FabricConfig, Provider};
use crate::endpoint::{self, Address, Endpoint, Outcome};
use crate::header::{self, Kind};

/// How long a peer that is disconnected is kept, for what the provider has of it may not have left yet.
const KEPT: Duration = Duration::from_secs(1);
/// Between two attempts at a peer that does not answer, at first; doubled so many times.
const RETRY: Duration = Duration::from_millis(50);
const DOUBLED: u32 = 5;

/// Somebody to send to.
#[derive(Debug)]
pub(crate) struct Peer {
    remote: SocketAddr,
    /// Of its handle.
    generation: u16,
    /// `None`: disconnected, since then.
    connected: Result<(), Instant>,
    /// Whether libfabric may know it: shared memory reaches nobody of another host.
    enters: bool,
    /// libfabric's name of it; none: it is not known there, or not yet.
    pub(crate) fabric: Option<u64>,
    /// What its datagrams begin with.
    pub(crate) header: [u8; header::LEN],
    /// It has taken something.
    pub(crate) resolved: bool,
    /// Something has failed since.
    broken: bool,
    /// Attempts since.
    attempts: u32,
    /// Frames that it has not taken, and that have not ended.
    pub(crate) outstanding: u32,
    /// Those of them that the provider has.
    pub(crate) posted: usize,
    /// Since when it has taken nothing of what waits for it.
    pub(crate) blocked: Option<Instant>,
    /// Given up: what it does not take at once is lost.
    pub(crate) gone: bool,
    /// When to try again while it is gone or not resolved.
    pub(crate) retry: Instant,
    /// The last flush in which it took nothing.
    pub(crate) turn: u64,
}

impl Peer {
    fn is_reached(&self) -> bool {
        self.resolved && !self.broken
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Peers {
    provider: Provider,
    local: SocketAddr,
    limit: usize,
    within_process: bool,
    places: Vec<Peer>,
    by_address: HashMap<SocketAddr, u16>,
    /// Connected, and never reached so far.
    unresolved: Vec<u16>,
}

impl Peers {
    pub(crate) fn new(provider: Provider, local: SocketAddr, config: &FabricConfig) -> Self {
        Self {
            provider,
            local,
            limit: config.peers,
            within_process: config.within_process,
            places: Vec::new(),
            by_address: HashMap::new(),
            unresolved: Vec::new(),
        }
    }

    /// The place of a peer that is connected.
    #[inline]
    pub(crate) fn place(&self, handle: PeerHandle) -> Option<u16> {
        let place = (handle.0 & 0xffff) as u16;
        let peer = self.places.get(usize::from(place))?;
        let current = peer.connected.is_ok() && u32::from(peer.generation) == handle.0 >> 16;
        current.then_some(place)
    }

    #[inline]
    pub(crate) fn get(&mut self, place: u16) -> &mut Peer {
        &mut self.places[usize::from(place)]
    }

    pub(crate) fn is_reached(&self, handle: PeerHandle) -> bool {
        self.place(handle)
            .is_some_and(|place| self.places[usize::from(place)].is_reached())
    }

    fn handle(&self, place: u16) -> PeerHandle {
        let generation = self.places[usize::from(place)].generation;
        PeerHandle(u32::from(generation) << 16 | u32::from(place))
    }

    pub(crate) fn connect(
        &mut self,
        endpoint: &mut Endpoint,
        remote: SocketAddr,
    ) -> Result<PeerHandle, ConnectError> {
        if remote.is_ipv4() != self.local.is_ipv4() {
            return Err(ConnectError::AddressFamily {
                peer: remote,
                local: self.local,
            });
        }
        if remote.ip().is_unspecified() || remote.ip().is_multicast() || remote.port() == 0 {
            return Err(ConnectError::NoRoute(remote));
        }
        if let Some(&place) = self.by_address.get(&remote) {
            let peer = self.get(place);
            if peer.connected.is_err() {
                peer.connected = Ok(());
                peer.generation = peer.generation.wrapping_add(1);
                if !peer.is_reached() {
                    peer.retry = Instant::now();
                    self.unresolved.push(place);
                }
            }
            self.probe(endpoint);
            return Ok(self.handle(place));
        }
        let place = self.room(endpoint)?;
        let system = |error| ConnectError::System {
            peer: remote,
            source: error,
        };
        let mut source = self.local;
        let mut fabric = None;
        let shared = || {
            endpoint::is_own(remote)
                && (self.within_process || !endpoint::is_of_this_process(remote))
        };
        let enters = self.provider.has_ip_addresses() || shared();
        if enters {
            if self.local.ip().is_unspecified() {
                source = endpoint::source_for(self.local, remote)
                    .map_err(|_| ConnectError::NoRoute(remote))?;
            }
            fabric = match endpoint.insert(&Address::new(self.provider, remote)) {
                Ok(inserted) => Some(inserted),
                // He may come: he is tried again with the others.
                Err(libc::ENOENT) if !self.provider.has_ip_addresses() => None,
                Err(error) => {
                    let words = endpoint::words(error);
                    return Err(system(std::io::Error::other(words)));
                }
            };
        }
        let generation = place.map_or(0, |place| self.get(place).generation.wrapping_add(1));
        let peer = Peer {
            remote,
            generation,
            connected: Ok(()),
            enters,
            fabric,
            header: header::write(Kind::Datagram, source),
            resolved: false,
            broken: false,
            attempts: 0,
            outstanding: 0,
            posted: 0,
            blocked: None,
            gone: false,
            retry: Instant::now(),
            turn: 0,
        };
        let place = match place {
            Some(place) => {
                *self.get(place) = peer;
                place
            }
            None => {
                self.places.push(peer);
                // The limit keeps the number of places within 16 bits.
                (self.places.len() - 1) as u16
            }
        };
        self.by_address.insert(remote, place);
        if enters {
            self.unresolved.push(place);
            self.probe(endpoint);
        }
        Ok(self.handle(place))
    }

    /// A place that a former peer leaves; `None`: a new one.
    fn room(&mut self, endpoint: &mut Endpoint) -> Result<Option<u16>, ConnectError> {
        let now = Instant::now();
        let full = self.places.len() >= self.limit;
        for place in 0..self.places.len() {
            let peer = &self.places[place];
            let Err(since) = peer.connected else {
                continue;
            };
            if peer.outstanding == 0 && (full || now.duration_since(since) >= KEPT) {
                if let Some(fabric) = peer.fabric {
                    endpoint.remove(fabric);
                }
                self.by_address.remove(&peer.remote);
                self.unresolved.retain(|other| usize::from(*other) != place);
                return Ok(Some(place as u16));
            }
        }
        if full {
            return Err(ConnectError::TooManyPeers(self.limit));
        }
        Ok(None)
    }

    pub(crate) fn disconnect(&mut self, handle: PeerHandle) {
        if let Some(place) = self.place(handle) {
            self.get(place).connected = Err(Instant::now());
            self.unresolved.retain(|other| *other != place);
        }
    }

    /// Whether somebody is still to be reached.
    #[inline]
    pub(crate) fn is_probing(&self) -> bool {
        !self.unresolved.is_empty()
    }

    /// Tries those that were never reached: what has arrived there proves that the rest will, too.
    #[cold]
    pub(crate) fn probe(&mut self, endpoint: &mut Endpoint) {
        let now = Instant::now();
        let (places, provider) = (&mut self.places, self.provider);
        self.unresolved.retain(|place| {
            let peer = &mut places[usize::from(*place)];
            if !peer.enters {
                return false;
            }
            if now < peer.retry {
                return true;
            }
            let mut probe = peer.header;
            probe[4] = Kind::Probe as u8;
            if peer.fabric.is_none() {
                peer.fabric = endpoint.insert(&Address::new(provider, peer.remote)).ok();
            }
            let outcome = match peer.fabric {
                Some(fabric) => endpoint.inject(fabric, &probe),
                None => Outcome::Refused,
            };
            match outcome {
                Outcome::Taken => {
                    peer.resolved = true;
                    peer.broken = false;
                    peer.attempts = 0;
                    peer.gone = false;
                    peer.blocked = None;
                    false
                }
                Outcome::Later => true,
                Outcome::Refused => {
                    peer.retry = now + RETRY * (1 << peer.attempts.min(DOUBLED));
                    peer.attempts = peer.attempts.saturating_add(1);
                    true
                }
            }
        });
    }

    /// A peer has taken nothing: whether what waits for it is to be lost.
    #[cold]
    pub(crate) fn give_up(&mut self, place: u16, stuck: Duration) -> bool {
        let peer = self.get(place);
        if peer.gone {
            return true;
        }
        let now = Instant::now();
        if now.duration_since(*peer.blocked.get_or_insert(now)) < stuck {
            return false;
        }
        peer.gone = true;
        peer.retry = now + RETRY;
        self.unreach(place);
        true
    }

    /// The way to a peer has broken.
    #[cold]
    pub(crate) fn lost(&mut self, place: u16) {
        let peer = self.get(place);
        let now = Instant::now();
        peer.blocked.get_or_insert(now);
        if !peer.gone {
            peer.gone = true;
            peer.retry = now + RETRY;
        }
        self.unreach(place);
    }

    /// Others are sent to by another way, where there is one, until this one is there again.
    fn unreach(&mut self, place: u16) {
        let peer = self.get(place);
        let first = peer.is_reached();
        peer.broken = true;
        if first && peer.connected.is_ok() {
            self.unresolved.push(place);
        }
    }

    /// The endpoint is another one: nobody is reached before he has taken something from it.
    #[cold]
    pub(crate) fn enter_again(&mut self, endpoint: &mut Endpoint) {
        for place in 0..self.places.len() {
            let peer = &mut self.places[place];
            if !peer.enters {
                continue;
            }
            // Who cannot be entered would be sent to in vain: what waits for him is lost, counted. He is tried again with the others.
            peer.fabric = endpoint
                .insert(&Address::new(self.provider, peer.remote))
                .ok();
            peer.posted = 0;
            peer.blocked = None;
            peer.retry = Instant::now();
            self.unreach(place as u16);
        }
    }

    /// Whether to leave a peer alone that is gone.
    #[inline]
    pub(crate) fn is_hopeless(&mut self, place: u16) -> bool {
        let peer = self.get(place);
        if !peer.gone {
            return false;
        }
        let now = Instant::now();
        if now < peer.retry {
            return true;
        }
        peer.retry = now + RETRY;
        false
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_peer_that_could_not_be_entered_again_is_entered_later() {
        let config = FabricConfig::new(Provider::Tcp);
        if let Err(reason) = endpoint::probe(Provider::Tcp, &config) {
            println!("skipped: {reason}");
            return;
        }
        let open = |last: u8| {
            let bind = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0));
            let endpoint = Endpoint::open(Provider::Tcp, &config, bind).expect("an endpoint");
            let number = endpoint.port(bind).expect("a port");
            (endpoint, SocketAddr::new(bind.ip(), number))
        };
        let ((mut own, local), (mut other, remote)) = (open(1), open(3));
        // The end of a connection is heard behind what came by it.
        for frame in 0..config.receives {
            // SAFETY: nobody looks at the frames.
            let posted = unsafe { other.post(frame, false) };
            assert_eq!(posted, Outcome::Taken);
        }
        let mut peers = Peers::new(Provider::Tcp, local, &config);
        let handle = peers.connect(&mut own, remote).expect("a peer");
        let mut reach = |peers: &mut Peers, own: &mut Endpoint| {
            let start = Instant::now();
            while !peers.is_reached(handle) {
                peers.probe(own);
                own.read(|_| {});
                other.read(|_| {});
                assert!(start.elapsed() < PATIENCE, "it is not reached");
            }
        };
        reach(&mut peers, &mut own);
        // Nobody can be entered where there is no endpoint.
        own.close();
        peers.enter_again(&mut own);
        peers.probe(&mut own);
        assert!(!peers.is_reached(handle));
        own.reopen(&config, local).expect("the same address");
        reach(&mut peers, &mut own);
    }
}
