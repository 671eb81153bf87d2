//! The tables of a lane: sessions, channels, networks, remote lanes, and what is under way between them.

use std::collections::VecDeque;
use std::sync::Arc;

use takt_clock::Clock;

use super::arrivals::Arrivals;
use super::channel::Channels;
use super::endpoints::Closing;
use super::ingress::Early;
use super::local::Local;
use super::mailbox::Mailbox;
use super::network::Network;
use super::reassembly::Reassembly;
use super::reliable::Reliable;
use super::remote::Remote;
use super::round::RoundTime;
use super::senders::Senders;
use super::tap::Taps;
use super::tenants::Tenants;
use super::track::Tracks;
use crate::config::Limits;
use crate::counters::LaneCounters;
use crate::slots::{ChannelSlot, RemoteSlot, SessionSlot, SourceSlot, Table};

/// Longest datagram that may be decrypted: the longest that UDP can carry.
const LONGEST_DATAGRAM: usize = 1 << 16;

/// Everything of a lane but its ports: what a received datagram may change.
pub(super) struct State {
    pub(super) incarnation: u32,
    /// What its sources are numbered by for sinks.
    pub(super) label: u32,
    pub(super) tracks: Tracks,
    /// Where a datagram is decrypted.
    pub(super) scratch: Vec<u8>,
    pub(super) round: RoundTime,
    pub(super) tenants: Tenants,
    pub(super) channels: Channels,
    pub(super) networks: Vec<Network>,
    pub(super) remotes: Table<RemoteSlot, Remote>,
    pub(super) senders: Senders,
    pub(super) last_channel: Option<(u64, ChannelSlot)>,
    pub(super) reassembly: Reassembly,
    /// Messages that wait for sinks of this lane.
    pub(super) local: Local,
    pub(super) reliable: Reliable,
    /// Datagrams that are judged again when commands are carried out.
    pub(super) early: Vec<Early>,
    /// The port that is being looked at.
    pub(super) receiving: usize,
    /// What has been received from the port that is being looked at, in the unit of [`fair`]; and what was before, since
    /// nothing was left there.
    pub(super) received_cost: i64,
    pub(super) behind: i64,
    /// What looks at sinks for room have cost in this round.
    pub(super) recovery_cost: i64,
    pub(super) max_message: usize,
    pub(super) finished_sources: Vec<(SessionSlot, SourceSlot)>,
    /// Sources for which it is to be counted again who else listens: indices of session and source.
    pub(super) recounts: VecDeque<(SessionSlot, SourceSlot)>,
    /// Closed sinks that still hold messages, in the order in which they were closed.
    pub(super) closing: VecDeque<Closing>,
    /// Sources, sinks, rings and messages that were looked at for commands in this round.
    pub(super) looks: usize,
    /// Some source waits for room in a scheduler.
    pub(super) held: bool,
    pub(super) counters: Arc<LaneCounters>,
    /// Where the control thread's commands are announced.
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) arrivals: Arrivals,
    pub(super) taps: Taps,
}

impl State {
    pub(super) fn new(
        incarnation: u32,
        label: u32,
        limits: &Limits,
        clock: Arc<dyn Clock>,
        counters: Arc<LaneCounters>,
        mailbox: Arc<Mailbox>,
    ) -> Self {
        Self {
            incarnation,
            label,
            tracks: Tracks::default(),
            scratch: vec![0; LONGEST_DATAGRAM],
            round: RoundTime::new(clock),
            tenants: Tenants::default(),
            channels: Channels::default(),
            networks: Vec::new(),
            remotes: Table::default(),
            senders: Senders::default(),
            last_channel: None,
            reassembly: Reassembly::new(
                limits.reassemblies,
                limits.max_message,
                limits.reassembly_timeout,
            ),
            local: Local::default(),
            reliable: Reliable::default(),
            early: Vec::new(),
            receiving: 0,
            received_cost: 0,
            behind: 0,
            recovery_cost: 0,
            max_message: limits.max_message,
            finished_sources: Vec::new(),
            recounts: VecDeque::new(),
            closing: VecDeque::new(),
            looks: 0,
            held: false,
            counters,
            mailbox,
            arrivals: Arrivals::default(),
            taps: Taps::default(),
        }
    }
}
