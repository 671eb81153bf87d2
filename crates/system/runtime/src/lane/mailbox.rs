//! What the control thread and a lane tell each other, and how: commands one way, events the other.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use takt_datapath::Way;
use takt_session::layout::{SinkBlock, SourceBlock};
use takt_session::{ChannelId, Failure, Reliability, SinkMode};
use takt_wire::channel::Protection;

use super::departure::ScheduleChange;
use super::guard::LaneKeys;
use super::network::{self, Owner, Stations};
use super::remote::{Carrier, Standing};
use super::session::LaneSession;
use super::tap::Tap;
use crate::config;
use crate::counters::{ChannelCounters, Counter, NetworkCounters};
use crate::ids::{RemoteId, SessionId};
use crate::peering::message::SourceProgress;
use crate::policing::Policer;
use crate::slots::{SinkSlot, SourceSlot};

/// What the control thread tells a lane.
pub enum Command {
    /// A new session.
    AddSession(Box<LaneSession>),
    /// The application has left: send what it had emitted, then hand the session back.
    LeaveSession(SessionId),
    /// The session has ended: hand it back.
    RemoveSession(SessionId),
    /// A new source of a session.
    AddSource {
        session: SessionId,
        source: SourceSlot,
        block: SourceBlock,
        target: SourceTarget,
        carrier: Carrier,
        /// Its number, which no other source of the node has.
        number: u32,
        /// The number of its first message.
        first: u64,
        /// What is promised for its messages.
        reliability: Reliability,
        /// Nothing is taken from its ring before `Begin`.
        waits: bool,
    },
    /// Sources of a session that have waited do no more.
    Begin(SessionId),
    /// Something else carries what is taken from a source's ring from now on.
    Carry {
        session: SessionId,
        source: SourceSlot,
        carrier: Carrier,
    },
    /// What a tenant's sessions send is held to its streams as they are now.
    Police { tenant: u32, policer: Arc<Policer> },
    /// No more will be emitted at this source; what is in its ring is still sent.
    CloseSource {
        session: SessionId,
        source: SourceSlot,
    },
    /// A new sink of a session.
    AddSink {
        session: SessionId,
        sink: SinkSlot,
        block: SinkBlock,
        channel: ChannelId,
        notify: Option<OwnedFd>,
        /// Which messages it gets.
        mode: SinkMode,
    },
    /// The session is told by this descriptor when messages are complete.
    TellRoom { session: SessionId, notify: OwnedFd },
    /// Count the readers of a source's channel.
    Readers {
        session: SessionId,
        source: SourceSlot,
        request: u32,
    },
    /// A sink gets the messages of a source from the source itself, from this epoch on, or does no more.
    Direct {
        source: (SessionId, SourceSlot),
        sink: (SessionId, SinkSlot),
        epoch: u16,
        begins: bool,
    },
    /// The sink takes no more.
    CloseSink { session: SessionId, sink: SinkSlot },
    /// A lane elsewhere: where its datagrams come from (nowhere: a lane of this node), its address at each of this
    /// lane's ports that ask for no way, and the longest payload that it takes from each port, no limit where none is
    /// given.
    AddRemote {
        id: RemoteId,
        incarnation: u32,
        label: u32,
        protection: Protection,
        addresses: Vec<IpAddr>,
        endpoints: Vec<Option<SocketAddr>>,
        takes: Vec<usize>,
    },
    /// The addresses of a lane elsewhere at those of this lane's ports that ask for a way.
    Reach {
        remote: RemoteId,
        endpoints: Vec<Option<RemoteEndpoint>>,
    },
    /// How what ports of this lane lead to stands at a lane elsewhere.
    Standing {
        remote: RemoteId,
        /// Per port of this lane.
        ports: Vec<Standing>,
    },
    /// That lane is leaving: no more messages are sent to it, and what it has sent is still taken.
    LeaveRemote { id: RemoteId },
    /// That lane is gone. `clean`: it has told how far its sources were.
    RemoveRemote { id: RemoteId, clean: bool },
    /// Datagrams to and from a remote lane may be protected by these keys.
    Keys {
        remote: RemoteId,
        keys: Box<LaneKeys>,
    },
    /// Datagrams to a remote lane are protected by the keys of this number.
    SendKeys { remote: RemoteId, number: u8 },
    /// The keys of this number are void.
    RetireKeys { remote: RemoteId, number: u8 },
    /// Channels on which a remote lane has sinks from now on, and no more.
    Subscriptions {
        remote: RemoteId,
        add: Vec<u64>,
        remove: Vec<u64>,
    },
    /// A remote lane has sinks on no channel any more.
    WantNothing { remote: RemoteId },
    /// After that, it has sinks on these again.
    WantAgain {
        remote: RemoteId,
        channels: Vec<u64>,
    },
    /// How far the sources of a remote lane are.
    Progress {
        remote: RemoteId,
        sources: Vec<SourceProgress>,
    },
    /// Another schedule for a port.
    Schedule { port: usize, change: ScheduleChange },
    /// Where the stations of a network are, from now on.
    Network {
        network: usize,
        carrier: config::Carrier,
        stations: Arc<Stations>,
        counters: Arc<NetworkCounters>,
    },
    /// Datapaths have failed or work again: networks look for ways by them.
    ReconnectNetworks,
    /// The way to a destination behind this host as a router; none any more.
    Route {
        network: usize,
        destination: std::net::IpAddr,
        routed: Option<network::Routed>,
    },
    /// What passes is copied for a capture from now on.
    Tap(Tap),
    /// No more is copied for the capture with this number.
    EndTap(u64),
}

/// Where a lane elsewhere is for a port, with the way there as far as it was asked for.
pub struct RemoteEndpoint {
    pub address: SocketAddr,
    pub way: Option<Way>,
}

/// What a new source writes.
pub enum SourceTarget {
    /// Messages of a channel.
    Channel(ChannelId),
    /// Frames of a network.
    Network(Arc<Owner>),
}

/// What a lane tells the control thread.
pub enum Event {
    /// The application broke the protocol: end the session.
    SessionFailed {
        session: SessionId,
        failure: Failure,
    },
    /// Answer to `RemoveSession`: nothing of it is left here.
    SessionRemoved(Box<LaneSession>),
    /// Answer to `Readers`.
    Readers {
        session: SessionId,
        request: u32,
        count: u32,
    },
    /// The sink gets what is emitted from now on.
    SinkOpened { session: SessionId, sink: SinkSlot },
    /// A source writes a channel under this number; `left` counts the messages that have left the lane.
    SourceOpened {
        lane: usize,
        channel: u64,
        number: u32,
        left: Arc<Counter>,
    },
    /// The source is gone, its block is free.
    SourceClosed {
        session: SessionId,
        source: SourceSlot,
    },
    /// No source writes under this number any more.
    SourceEnded { lane: usize, number: u32 },
    /// The sink is gone, its block is free.
    SinkClosed { session: SessionId, sink: SinkSlot },
    /// A channel came into use.
    ChannelOpened {
        lane: usize,
        channel: u64,
        counters: Arc<ChannelCounters>,
    },
    /// A channel went out of use.
    ChannelClosed { lane: usize, channel: u64 },
    /// Answer to `EndTap`: its memory is let go of elsewhere.
    TapEnded(Tap),
}

/// How to reach a lane.
#[derive(Clone)]
pub struct LaneHandle {
    commands: Sender<Command>,
    mailbox: Arc<Mailbox>,
}

pub(super) struct Mailbox {
    pub(super) full: AtomicBool,
    pub(super) wake: OwnedFd,
    /// How often the lane was asked whether it is at work, and the last of it that it has seen.
    pub(super) asked: AtomicU64,
    pub(super) answered: AtomicU64,
    /// How many commands the lane was given, and how many of them it has carried out.
    told: AtomicU64,
    pub(super) done: AtomicU64,
}

impl Mailbox {
    /// The lane, whose thread this is, has more to do for commands in its next round.
    pub(super) fn again(&self) {
        // Not a store: what takes it then must still see what a sender has done before it set it.
        self.full.fetch_or(true, Ordering::Relaxed);
    }

    /// How many commands the lane was given, at least those that were given before what it has just taken from a ring.
    #[inline]
    pub(super) fn told(&self) -> u64 {
        self.told.load(Ordering::Acquire) // Partner: `LaneHandle::send`.
    }

    /// Whether so many are carried out.
    #[inline]
    pub(super) fn has_done(&self, told: u64) -> bool {
        self.done.load(Ordering::Relaxed) >= told
    }
}

impl LaneHandle {
    /// Gives the lane a command. False if the lane is gone.
    pub fn send(&self, command: Command) -> bool {
        let sent = self.commands.send(command).is_ok();
        self.mailbox.full.store(true, Ordering::Release); // Partner: `commands` in the lane.
        // When it is there: a lane that waits for it need not wait for this thread. Partner: `Mailbox::told`.
        self.mailbox.told.fetch_add(1, Ordering::Release);
        self.wake();
        sent
    }

    /// Asks the lane whether it is at work: the number that [`answered`](Self::answered) will reach.
    pub fn ask(&self) -> u64 {
        let asked = self.mailbox.asked.fetch_add(1, Ordering::Relaxed) + 1;
        self.mailbox.full.store(true, Ordering::Release); // Partner: `commands` in the lane.
        self.wake();
        asked
    }

    /// The last question that the lane has answered.
    pub fn answered(&self) -> u64 {
        self.mailbox.answered.load(Ordering::Relaxed)
    }

    /// How many commands the lane was given so far: what [`done`](Self::done) will reach.
    pub fn told(&self) -> u64 {
        self.mailbox.told()
    }

    /// How many commands the lane has carried out.
    pub fn done(&self) -> u64 {
        self.mailbox.done.load(Ordering::Acquire) // Partner: `commands` in the lane.
    }

    /// How many commands the lane was given and has not carried out.
    pub fn behind(&self) -> u64 {
        self.told().saturating_sub(self.done())
    }

    /// Wakes the lane if it sleeps.
    pub fn wake(&self) {
        // EAGAIN: the counter is full, so it is awake.
        let _ = rustix::io::write(&self.mailbox.wake, &1u64.to_ne_bytes());
    }
}

/// A way to tell a lane something, with the two ends that the lane keeps. `wake`: an eventfd of the lane.
pub(super) fn new(wake: OwnedFd) -> (LaneHandle, Arc<Mailbox>, Receiver<Command>) {
    let mailbox = Arc::new(Mailbox {
        full: AtomicBool::new(false),
        wake,
        asked: AtomicU64::new(0),
        answered: AtomicU64::new(0),
        told: AtomicU64::new(0),
        done: AtomicU64::new(0),
    });
    let (sender, commands) = std::sync::mpsc::channel();
    let handle = LaneHandle {
        commands: sender,
        mailbox: mailbox.clone(),
    };
    (handle, mailbox, commands)
}

/// How a lane reaches the control thread.
#[derive(Clone)]
pub struct EventSender {
    /// The events.
    pub events: Sender<Event>,
    /// An eventfd that wakes the control thread.
    pub wake: Arc<OwnedFd>,
}

impl EventSender {
    pub(super) fn send(&self, event: Event) {
        // Without a control thread the runtime is being dropped: nobody wants to know.
        let _ = self.events.send(event);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}
