//! Counters that a lane writes and anybody reads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use takt_time::TrafficClass;

/// A counter with one writer. Adding is a load and a store: no read-modify-write on the data path.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; only the owning lane may call it.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Adds, where several lanes may.
    #[inline]
    pub fn add_shared(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Replaces the value; only the owning lane may call it.
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident / $snapshot:ident { $( $(#[$fdoc:meta])* $field:ident, )* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name { $( $(#[$fdoc])* pub $field: Counter, )* }

        /// A reading of the counters of the same name.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $snapshot { $( $(#[$fdoc])* pub $field: u64, )* }

        impl $name {
            /// Reads all.
            pub fn read(&self) -> $snapshot { $snapshot { $( $field: self.$field.get(), )* } }
        }

        impl $snapshot {
            /// Names and values, for metrics and tables.
            pub fn fields(&self) -> Vec<(&'static str, u64)> { vec![ $( (stringify!($field), self.$field), )* ] }
        }

        impl std::ops::AddAssign for $snapshot {
            fn add_assign(&mut self, other: Self) { $( self.$field += other.$field; )* }
        }
    };
}

counters! {
    /// What a lane did and refused.
    LaneCounters / LaneReading {
        /// Rounds of the loop.
        polls,
        /// Rounds that found work.
        busy_polls,
        /// Nanoseconds spent in rounds that found work, from one round of 16.
        busy_nanos,
        /// Times the lane went to sleep.
        parks,
        /// Datagrams of another version or not decodable.
        rx_malformed,
        /// Datagrams whose sender is no known peer.
        rx_unknown_sender,
        /// Datagrams that are not protected as they must be, or whose tag is wrong.
        rx_unauthentic,
        /// Datagrams that came before.
        rx_replayed,
        /// Datagrams passed on to the lane they were meant for.
        rx_forwarded,
        /// Datagrams for a lane that is not there, or whose queue was full.
        rx_misdirected,
        /// Messages for channels without a sink here (any more).
        rx_no_sink,
        /// Messages that came twice or too late.
        rx_duplicate,
        /// Fragments of messages that were given up, or are complete.
        rx_stale_fragments,
        /// Records of reliable sources that came before their source was known, or beyond what was granted: they come
        /// again.
        rx_early,
        /// Records of reliable sources for which a sink had no room: they come again.
        rx_no_room,
        /// Records of reliable sources that were not looked at while the lane was behind, because a tenant with several
        /// sinks had had its part: they come again.
        rx_no_part,
        /// Announcements of reliable sources that are not heard because no place for them is free: they come again.
        rx_no_place,
        /// Fragmented messages given up because no memory for their assembly was free.
        reassembly_refused,
        /// Fragmented messages given up because a fragment did not come in time.
        reassembly_expired,
        /// Committed datagrams.
        tx_datagrams,
    }
}

counters! {
    /// A channel on one lane.
    ChannelCounters / ChannelReading {
        /// Messages emitted by sources here.
        emitted,
        /// Payload bytes emitted by sources here.
        emitted_bytes,
        /// Emitted messages for which no sink was known.
        no_sink,
        /// Copies for remote lanes handed to a datapath.
        sent,
        /// Copies for remote lanes dropped because there was no path.
        unreachable,
        /// Of those sent: by another datapath than their stream's, which does not reach the lane.
        detoured,
        /// Messages that arrived from other nodes.
        received,
        /// Payload bytes that arrived from other nodes.
        received_bytes,
        /// Messages that have not come to some of the sinks here that were to get them: sent by other nodes and not arrived
        /// (gaps in the sequence), left out while a lane was behind, or past their launch times. Each once, for however
        /// many sinks.
        lost,
        /// Sources elsewhere that went without telling how many messages they had sent: more may be lost.
        unknown_tails,
        /// Messages that arrived after they had been counted as lost.
        late,
        /// Copies put into sinks.
        delivered,
        /// Copies dropped because a sink's ring was full.
        dropped_full,
        /// Copies dropped because a sink's memory was exhausted.
        dropped_memory,
        /// Records of reliable sources here that were sent again.
        repaired,
        /// Messages of reliable sources here that at least one receiver does without.
        undelivered,
        /// Times that a sink here, or a node that hears a reliable source here, took nothing for too long: the source went on without it.
        evicted,
    }
}

counters! {
    /// A network on one lane.
    NetworkCounters / NetworkReading {
        /// Frames handed to a datapath, once for each tunnel endpoint.
        sent,
        /// Octets of those frames, without what the network adds.
        sent_bytes,
        /// Frames not sent: their source is not their tenant's.
        foreign,
        /// Frames not sent: malformed, too long, or of a kind that the tenant may not send.
        refused,
        /// Frames not sent: nobody knows where their destination is.
        unknown,
        /// Frames not sent: no path to the tunnel endpoint.
        unreachable,
    }
}

counters! {
    /// A session.
    SessionCounters / SessionReading {
        /// Messages emitted.
        emitted,
        /// Payload bytes emitted.
        emitted_bytes,
        /// Messages put into its sinks.
        delivered,
        /// Payload bytes put into its sinks.
        delivered_bytes,
        /// Messages for its sinks dropped because the ring was full.
        dropped_full,
        /// Messages for its sinks dropped because its memory was exhausted.
        dropped_memory,
        /// Messages for its sinks that never arrived.
        lost,
        /// Times that the rate limit of its tenant held a message back.
        throttled,
        /// Those of the messages emitted that were not sent wholly when it ended, and were given up.
        abandoned,
        /// Messages with a launch time that have left.
        launched,
        /// Those of them that left later than their launch time and the tolerance.
        launched_late,
        /// Messages with a launch time that did not leave for all that they were for: late, outside the schedule, refused or
        /// without a path.
        launches_missed,
    }
}

counters! {
    /// A declared stream. Several lanes count here.
    StreamCounters / StreamReading {
        /// Frames that passed.
        passed,
        /// Frames refused: without a launch time, or with one outside the stream's window.
        refused_window,
        /// Frames refused: longer than the largest.
        refused_size,
        /// Frames refused: more than may be in a period, or of a period before one that was sent in.
        refused_excess,
    }
}

counters! {
    /// A lane's port, as its lane last published it.
    PortTraffic / PortReading {
        /// Datagrams handed to the technology.
        tx_datagrams,
        /// Payload bytes handed to the technology.
        tx_bytes,
        /// Datagrams that the technology refused.
        tx_errors,
        /// Datagrams received.
        rx_datagrams,
        /// Payload bytes received.
        rx_bytes,
        /// Datagrams lost below us, as far as the technology tells.
        rx_dropped,
        /// Frames refused by our checks.
        rx_invalid,
    }
}

counters! {
    /// The frames of a traffic class that have passed a port's scheduler, as its lane last published it.
    ClassTraffic / ClassReading {
        /// Frames that were to be queued.
        offered,
        /// Frames that wait.
        queued,
        /// Frames sent.
        sent,
        /// Frames not taken: the launch time had passed.
        refused_late,
        /// Frames not taken: no room, too long, no window of the class is long enough.
        refused,
        /// Frames dropped: too late for the launch time.
        dropped_late,
        /// Frames dropped: the gate was closed at the launch time.
        dropped_gate_missed,
        /// Frames dropped for another reason: the schedule changed, sender or receiver is gone.
        dropped,
        /// Frames sent later than tolerated, because the lane or the link was busy.
        sent_late,
        /// Frames sent later than tolerated, because the gate was closed.
        sent_gate_missed,
        /// Frames still on the wire when their gate closed.
        overruns,
    }
}

/// Buckets of a departure error: bucket `n` counts those of less than 2^n ns, the last one all above.
pub const ERROR_BUCKETS: usize = 32;

/// A port's scheduler.
#[derive(Debug, Default)]
pub struct DepartureCounters {
    classes: [ClassTraffic; TrafficClass::COUNT],
    errors: [[Counter; ERROR_BUCKETS]; TrafficClass::COUNT],
}

/// A reading of one class of [`DepartureCounters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepartureReading {
    /// Frames.
    pub frames: ClassReading,
    /// How much later than they were to leave frames had been taken by the technology: see [`ERROR_BUCKETS`]. That is
    /// their launch time, if they have one to be met; else when the scheduler lets them start.
    pub errors: [u64; ERROR_BUCKETS],
}

impl Default for DepartureReading {
    fn default() -> Self {
        Self {
            frames: Default::default(),
            errors: [0; ERROR_BUCKETS],
        }
    }
}

impl std::ops::AddAssign for DepartureReading {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        for (sum, more) in self.errors.iter_mut().zip(other.errors) {
            *sum += more;
        }
    }
}

impl DepartureCounters {
    /// Notes that a frame left so many nanoseconds later than planned.
    #[inline]
    pub(crate) fn departed(&self, class: TrafficClass, late_ns: u64) {
        let bucket = (u64::BITS - late_ns.leading_zeros()) as usize;
        self.errors[usize::from(class.number())][bucket.min(ERROR_BUCKETS - 1)].add(1);
    }

    /// Publishes what the scheduler counts, and how many frames it was not even offered.
    pub(crate) fn show(
        &self,
        class: TrafficClass,
        counters: &takt_schedule::port::ClassCounters,
        not_offered: u64,
        queued: usize,
    ) {
        let shown = &self.classes[usize::from(class.number())];
        let (refused, dropped) = (&counters.refused, &counters.dropped);
        shown.offered.set(counters.offered + not_offered);
        shown.queued.set(queued as u64);
        shown.sent.set(counters.sent);
        shown.refused_late.set(refused.late);
        let others = refused.total() - refused.late;
        shown.refused.set(others + not_offered);
        shown.dropped_late.set(dropped.late);
        shown.dropped_gate_missed.set(dropped.gate_missed);
        shown
            .dropped
            .set(dropped.total() - dropped.late - dropped.gate_missed);
        shown.sent_late.set(counters.sent_late);
        shown.sent_gate_missed.set(counters.sent_gate_missed);
        shown.overruns.set(counters.overruns);
    }

    /// Reads a class.
    pub fn read(&self, class: TrafficClass) -> DepartureReading {
        let at = usize::from(class.number());
        DepartureReading {
            frames: self.classes[at].read(),
            errors: std::array::from_fn(|bucket| self.errors[at][bucket].get()),
        }
    }
}

impl PortTraffic {
    /// Publishes what the port counts.
    pub fn set(&self, counters: &takt_datapath::PortCounters) {
        self.tx_datagrams.set(counters.tx_datagrams);
        self.tx_bytes.set(counters.tx_bytes);
        self.tx_errors.set(counters.tx_errors);
        self.rx_datagrams.set(counters.rx_datagrams);
        self.rx_bytes.set(counters.rx_bytes);
        self.rx_dropped.set(counters.rx_dropped);
        self.rx_invalid.set(counters.rx_invalid);
    }
}
