//! Sequence numbers of sources on other lanes: what is new, what was lost, what came twice.
//!
//! At most once: a number is accepted at most one time. The last [`WINDOW`] numbers are remembered as in
//! the anti-replay window of RFC 4303, section 3.4.3; anything older is taken for a duplicate. What is lost
//! behind the last message that arrived, the sender's announcements show ([`Tracks::announce`]). Sources of a node that
//! is gone are remembered for a while: when its daemon is back and their applications go on, under the same numbers,
//! what the former one had accepted and not sent is known by what is missing.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::slots::RemoteSlot;
use slab::Slab;

/// How far behind the newest a message may arrive.
pub const WINDOW: u64 = 64;

/// Most sources elsewhere that a lane follows; beyond, it forgets one for each new one.
const MOST_TRACKS: usize = 65_536;
/// Most sources of lanes that are gone; beyond, the oldest are forgotten.
const MOST_ORPHANS: usize = 4096;

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Deliver; so many before it have not arrived.
    New {
        /// The full sequence number.
        sequence: u64,
        /// Messages skipped.
        lost: u64,
    },
    /// Deliver; it had been counted as lost.
    Late {
        /// The full sequence number.
        sequence: u64,
    },
    /// Drop.
    Duplicate,
}

/// The receive state of a sender's channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track {
    /// The next number expected.
    next: u64,
    /// Bit `i`: number `next - 1 - i` has been seen.
    seen: u64,
    /// Nothing before this has been counted as lost.
    first: u64,
}

impl Track {
    /// Starts with the first message seen: nothing before it counts as lost.
    pub fn start(sequence: u32) -> Self {
        Self {
            next: u64::from(sequence) + 1,
            seen: u64::MAX,
            first: u64::from(sequence),
        }
    }

    /// Waits for this number: nothing before it counts as lost, but it may still arrive.
    fn waiting_for(sequence: u32) -> Self {
        Self {
            next: u64::from(sequence),
            seen: 0,
            first: u64::from(sequence),
        }
    }

    /// The sender has sent all below `low` long ago: what of it is newer than the newest seen is lost.
    fn give_up_below(&mut self, low: u32) -> u64 {
        let ahead = i64::from(low.wrapping_sub(self.next as u32) as i32);
        if ahead <= 0 {
            return 0;
        }
        let lost = ahead as u64;
        self.seen = if lost >= 64 { 0 } else { self.seen << lost };
        self.next += lost;
        lost
    }

    /// Judges the number whose low 32 bits are `low`.
    pub fn accept(&mut self, low: u32) -> Verdict {
        // The number nearest to what is expected that has these low bits.
        let ahead = i64::from(low.wrapping_sub(self.next as u32) as i32);
        let Some(sequence) = self.next.checked_add_signed(ahead) else {
            return Verdict::Duplicate;
        };
        if ahead >= 0 {
            let lost = ahead as u64;
            self.seen = if lost + 1 >= 64 {
                1
            } else {
                (self.seen << (lost + 1)) | 1
            };
            self.next = sequence + 1;
            return Verdict::New { sequence, lost };
        }
        let age = self.next - 1 - sequence;
        if age >= WINDOW || self.seen & (1 << age) != 0 {
            return Verdict::Duplicate;
        }
        self.seen |= 1 << age;
        match sequence < self.first {
            true => Verdict::New { sequence, lost: 0 },
            false => Verdict::Late { sequence },
        }
    }
}

/// Names a source on another lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceKey {
    /// Index of the remote lane.
    pub remote: RemoteSlot,
    /// Number of the source there.
    pub source: u32,
}

/// What is known of a source elsewhere.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: SourceKey,
    /// The same source at a lane that is leaving, of which it was heard before: what still comes of it there is judged here.
    before: Option<SourceKey>,
    channel: u64,
    /// Since when its channel has listeners here: what was seen before them counts no more.
    since: u64,
    /// The number under which sinks know it.
    sender: u32,
    track: Option<Track>,
    announced: Option<u32>,
}

/// What a lane has to know of a message's channel to judge the message.
#[derive(Clone, Copy, Debug)]
pub struct Listening {
    /// The channel's number.
    pub channel: u64,
    /// Since when it has listeners.
    pub since: u64,
    /// What the remote lane's sources are numbered by for sinks.
    pub label: u32,
}

/// All sources elsewhere that a lane hears.
#[derive(Debug, Default)]
pub struct Tracks {
    entries: Slab<Entry>,
    by_key: HashMap<SourceKey, usize, foldhash::fast::RandomState>,
    /// By channel and the number under which sinks know it: of sources that have these in common, one.
    by_name: HashMap<(u64, u32), usize, foldhash::fast::RandomState>,
    homes: HashMap<RemoteSlot, Home, foldhash::fast::RandomState>,
    /// The last one looked for: messages mostly follow others of the same source.
    last: Option<(SourceKey, usize)>,
    /// Where the next one is forgotten if there are too many.
    hand: usize,
    /// What was heard of sources whose lane is gone, by channel and the number under which sinks know them; and the
    /// order in which they came.
    orphans: HashMap<(u64, u32), Orphan, foldhash::fast::RandomState>,
    orphaned: VecDeque<(u64, u32)>,
}

/// A remote lane: where it is, and whether only its last messages still come.
#[derive(Clone, Copy, Debug)]
struct Home {
    address: Option<IpAddr>,
    leaving: bool,
}

/// What was heard of a source whose lane is gone.
#[derive(Clone, Copy, Debug)]
struct Orphan {
    since: u64,
    track: Track,
}

/// The number of a source for sinks: it tells nothing that would help to forge its datagrams.
pub fn sender_number(label: u32, source: u32) -> u32 {
    // The finaliser of MurmurHash3: a permutation, so that sources of one lane never share a number.
    let mut n = label ^ source;
    n = (n ^ (n >> 16)).wrapping_mul(0x85eb_ca6b);
    n = (n ^ (n >> 13)).wrapping_mul(0xc2b2_ae35);
    n ^ (n >> 16)
}

impl Tracks {
    /// Judges a message: by which number sinks know its source, and whether it is new. `None`: the source
    /// writes another channel, so its sender contradicts itself.
    #[inline]
    pub fn accept(
        &mut self,
        key: SourceKey,
        listening: &Listening,
        sequence: u32,
    ) -> Option<(u32, Verdict)> {
        let entry = self.entry(key, listening)?;
        let sender = entry.sender;
        let verdict = match &mut entry.track {
            Some(track) => track.accept(sequence),
            None => {
                entry.track = Some(Track::start(sequence));
                Verdict::New {
                    sequence: u64::from(sequence),
                    lost: 0,
                }
            }
        };
        Some((sender, verdict))
    }

    /// The sender says that all numbers of a source below `next` have left it. What it said the time before
    /// and has not arrived until now is lost: so many. `ended`: the source is gone.
    pub fn announce(
        &mut self,
        key: SourceKey,
        listening: &Listening,
        next: u32,
        ended: bool,
    ) -> u64 {
        let Some(entry) = self.entry(key, listening) else {
            return 0;
        };
        let before = entry.announced.replace(next);
        let mut lost = 0;
        if let Some(before) = before {
            let track = entry.track.get_or_insert(Track::waiting_for(before));
            lost = track.give_up_below(before);
        }
        if ended && before == Some(next) {
            self.forget(key);
        }
        lost
    }

    /// A remote lane is there, at this address.
    pub fn enter(&mut self, remote: RemoteSlot, address: Option<IpAddr>) {
        let leaving = false;
        self.homes.insert(remote, Home { address, leaving });
    }

    /// Only the last messages of a remote lane still come. Another one at its address goes on with its sources where they were.
    pub fn leave(&mut self, remote: RemoteSlot) {
        if let Some(home) = self.homes.get_mut(&remote) {
            home.leaving = true;
        }
    }

    /// Forgets all sources of a remote lane from which nothing comes any more. `left` is told of each that was
    /// heard: its channel, since when that has listeners, what was announced and has not arrived, and whether
    /// anything behind it may be missing too.
    pub fn forget_remote(
        &mut self,
        remote: RemoteSlot,
        clean: bool,
        mut left: impl FnMut(u64, u64, u64, bool),
    ) {
        self.last = None;
        self.homes.remove(&remote);
        self.entries.retain(|at, entry| {
            entry.before = entry.before.filter(|before| before.remote != remote);
            if entry.key.remote != remote {
                return true;
            }
            let name = (entry.channel, entry.sender);
            if self.by_name.get(&name) == Some(&at) {
                self.by_name.remove(&name);
            }
            if let Some(track) = &mut entry.track {
                let lost = entry.announced.map_or(0, |next| track.give_up_below(next));
                left(entry.channel, entry.since, lost, !clean);
                let orphan = Orphan {
                    since: entry.since,
                    track: *track,
                };
                if self.orphans.insert(name, orphan).is_none() {
                    self.orphaned.push_back(name);
                }
            }
            false
        });
        self.by_key
            .retain(|key, at| key.remote != remote && self.entries.contains(*at));
        while self.orphaned.len() > MOST_ORPHANS {
            if let Some(oldest) = self.orphaned.pop_front() {
                self.orphans.remove(&oldest);
            }
        }
    }

    #[inline]
    fn entry(&mut self, key: SourceKey, listening: &Listening) -> Option<&mut Entry> {
        let at = match self.last {
            Some((last, at)) if last == key => at,
            _ => match self.by_key.get(&key) {
                Some(&at) => at,
                None => self.insert(key, listening),
            },
        };
        self.last = Some((key, at));
        let entry = self.entries.get_mut(at)?;
        if entry.channel != listening.channel {
            return None;
        }
        if entry.since != listening.since {
            entry.since = listening.since;
            entry.track = None;
            entry.announced = None;
        }
        Some(entry)
    }

    #[cold]
    fn insert(&mut self, key: SourceKey, listening: &Listening) -> usize {
        let sender = sender_number(listening.label, key.source);
        let name = (listening.channel, sender);
        if let Some(at) = self.take_over(key, name) {
            return at;
        }
        if self.entries.len() >= MOST_TRACKS {
            self.hand = (self.hand + 1) % MOST_TRACKS;
            if let Some(old) = self.entries.get(self.hand).map(|entry| entry.key) {
                self.forget(old);
            }
        }
        let orphan = self.orphans.remove(&name);
        if orphan.is_some() {
            self.orphaned.retain(|orphaned| *orphaned != name);
        }
        let at = self.entries.insert(Entry {
            key,
            before: None,
            channel: listening.channel,
            since: listening.since,
            sender,
            track: orphan
                .filter(|orphan| orphan.since == listening.since)
                .map(|orphan| orphan.track),
            announced: None,
        });
        self.by_key.insert(key, at);
        self.by_name.entry(name).or_insert(at);
        at
    }

    /// Where a source is known of a lane at the same address that is leaving: it goes on there under this key.
    fn take_over(&mut self, key: SourceKey, name: (u64, u32)) -> Option<usize> {
        let at = *self.by_name.get(&name)?;
        let entry = self.entries.get_mut(at)?;
        let (home, now) = (
            self.homes.get(&entry.key.remote)?,
            self.homes.get(&key.remote)?,
        );
        if !home.leaving || home.address != now.address {
            return None;
        }
        let before = std::mem::replace(&mut entry.key, key);
        if let Some(older) = entry.before.replace(before) {
            self.by_key.remove(&older);
        }
        self.by_key.insert(key, at);
        Some(at)
    }

    fn forget(&mut self, key: SourceKey) {
        self.last = None;
        let at = self.by_key.get(&key).copied();
        let Some((at, entry)) = at.and_then(|at| Some((at, self.entries.try_remove(at)?))) else {
            return;
        };
        for key in [Some(entry.key), entry.before].into_iter().flatten() {
            self.by_key.remove(&key);
        }
        let name = (entry.channel, entry.sender);
        if self.by_name.get(&name) == Some(&at) {
            self.by_name.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn no_number_is_accepted_twice_and_lost_less_late_is_what_is_missing(
            start in any::<u32>(),
            steps in proptest::collection::vec(0u64..40, 1..300),
            echo in proptest::collection::vec(0usize..70, 300),
        ) {
            let mut track = Track::start(start);
            let mut newest = u64::from(start);
            let mut seen = HashSet::from([newest]);
            let (mut lost, mut late) = (0u64, 0u64);
            for (step, back) in steps.into_iter().zip(echo) {
                newest += step + 1;
                for number in [newest, newest.saturating_sub(back as u64)] {
                    match track.accept(number as u32) {
                        Verdict::New { sequence, lost: n } => {
                            prop_assert_eq!(sequence, number);
                            prop_assert!(seen.insert(number));
                            lost += n;
                        }
                        Verdict::Late { sequence } => {
                            prop_assert_eq!(sequence, number);
                            prop_assert!(seen.insert(number));
                            late += 1;
                        }
                        Verdict::Duplicate => {}
                    }
                }
            }
            let missing = (u64::from(start)..=newest).filter(|n| !seen.contains(n)).count() as u64;
            prop_assert_eq!(lost - late, missing);
        }
    }

    #[test]
    fn numbers_before_the_first_are_not_accepted() {
        let mut track = Track::start(100);
        assert_eq!(track.accept(99), Verdict::Duplicate);
        assert_eq!(
            track.accept(101),
            Verdict::New {
                sequence: 101,
                lost: 0
            }
        );
    }

    #[test]
    fn the_low_half_wraps() {
        let mut track = Track::start(u32::MAX - 1);
        assert_eq!(
            track.accept(u32::MAX),
            Verdict::New {
                sequence: u64::from(u32::MAX),
                lost: 0
            }
        );
        assert_eq!(
            track.accept(0),
            Verdict::New {
                sequence: 1 << 32,
                lost: 0
            }
        );
        assert_eq!(
            track.accept(2),
            Verdict::New {
                sequence: (1 << 32) + 2,
                lost: 1
            }
        );
        assert_eq!(
            track.accept(1),
            Verdict::Late {
                sequence: (1 << 32) + 1
            }
        );
    }

    const KEY: SourceKey = SourceKey {
        remote: RemoteSlot(3),
        source: 9,
    };

    fn listening(since: u64) -> Listening {
        Listening {
            channel: 5,
            since,
            label: 77,
        }
    }

    fn take(tracks: &mut Tracks, source: u32, sequence: u32) -> Option<Verdict> {
        let key = SourceKey { source, ..KEY };
        let accepted = tracks.accept(key, &listening(1), sequence)?;
        assert_eq!(accepted.0, sender_number(77, source));
        Some(accepted.1)
    }

    fn new(sequence: u64, lost: u64) -> Option<Verdict> {
        Some(Verdict::New { sequence, lost })
    }

    #[test]
    fn a_jump_of_one_source_leaves_the_others_alone() {
        let mut tracks = Tracks::default();
        assert_eq!(take(&mut tracks, 1, 0), new(0, 0));
        assert_eq!(take(&mut tracks, 2, 0), new(0, 0));
        assert_eq!(take(&mut tracks, 1, 1000), new(1000, 999));
        assert_eq!(take(&mut tracks, 2, 1), new(1, 0));
        assert_eq!(take(&mut tracks, 2, 4), new(4, 2));
    }

    #[test]
    fn a_tail_that_was_announced_twice_and_did_not_arrive_is_lost() {
        let mut tracks = Tracks::default();
        take(&mut tracks, 9, 0);
        let mut announce = |next| tracks.announce(KEY, &listening(1), next, false);
        assert_eq!(announce(1), 0);
        assert_eq!(announce(4), 0, "may still be under way");
        assert_eq!(announce(4), 3);
        assert_eq!(announce(4), 0, "counted once");
        // What comes after all is no loss, and what comes next has no gap.
        assert_eq!(take(&mut tracks, 9, 2), Some(Verdict::Late { sequence: 2 }));
        assert_eq!(take(&mut tracks, 9, 4), new(4, 0));
    }

    #[test]
    fn a_source_of_which_nothing_arrived_is_counted_from_its_first_announcement_on() {
        let mut tracks = Tracks::default();
        let mut announce = |next| tracks.announce(KEY, &listening(1), next, false);
        assert_eq!((announce(10), announce(15), announce(15)), (0, 0, 5));
        assert_eq!(take(&mut tracks, 9, 17), new(17, 2));
    }

    #[test]
    fn what_was_never_counted_as_lost_does_not_come_late() {
        let mut tracks = Tracks::default();
        for _ in 0..2 {
            assert_eq!(tracks.announce(KEY, &listening(1), 3, false), 0);
        }
        assert_eq!(take(&mut tracks, 9, 2), new(2, 0));
        assert_eq!(take(&mut tracks, 9, 2), Some(Verdict::Duplicate));
        assert_eq!(take(&mut tracks, 9, 4), new(4, 1));
        assert_eq!(take(&mut tracks, 9, 3), Some(Verdict::Late { sequence: 3 }));
    }

    #[test]
    fn an_announcement_takes_nothing_from_what_is_still_under_way() {
        let mut tracks = Tracks::default();
        assert_eq!(tracks.announce(KEY, &listening(1), 3, false), 0);
        for sequence in 0..3 {
            assert_eq!(take(&mut tracks, 9, sequence), new(u64::from(sequence), 0));
        }
    }

    #[test]
    fn what_was_missed_before_anybody_listened_is_not_lost() {
        let mut tracks = Tracks::default();
        take(&mut tracks, 9, 0);
        let (_, verdict) = tracks.accept(KEY, &listening(2), 50).expect("its channel");
        assert_eq!(Some(verdict), new(50, 0));
    }

    #[test]
    fn a_source_that_changes_its_channel_is_refused() {
        let mut tracks = Tracks::default();
        take(&mut tracks, 9, 0);
        let other = Listening {
            channel: 6,
            ..listening(1)
        };
        assert_eq!(tracks.accept(KEY, &other, 1), None);
        assert_eq!(take(&mut tracks, 9, 1), new(1, 0));
    }

    /// The daemon of the sources' node is killed and comes back.
    fn restarted(tracks: &mut Tracks) -> SourceKey {
        tracks.forget_remote(KEY.remote, false, |_, _, lost, unknown| {
            assert!(lost == 0 && unknown);
        });
        SourceKey {
            remote: RemoteSlot(4),
            ..KEY
        }
    }

    #[test]
    fn what_a_daemon_had_accepted_when_it_was_killed_is_lost_when_the_source_goes_on() {
        let mut tracks = Tracks::default();
        take(&mut tracks, 9, 10);
        let back = restarted(&mut tracks);
        // The application had emitted 11 to 15 and goes on with 16.
        let (_, verdict) = tracks.accept(back, &listening(1), 16).expect("its channel");
        assert_eq!(Some(verdict), new(16, 5));
        assert!(tracks.orphans.is_empty() && tracks.orphaned.is_empty());
    }

    #[test]
    fn it_is_also_lost_if_the_source_says_nothing_more() {
        let mut tracks = Tracks::default();
        take(&mut tracks, 9, 10);
        let back = restarted(&mut tracks);
        let mut announce = |next| tracks.announce(back, &listening(1), next, false);
        assert_eq!((announce(16), announce(16), announce(16)), (0, 5, 0));
    }

    #[test]
    fn a_source_that_comes_back_to_other_listeners_begins_anew() {
        let mut tracks = Tracks::default();
        take(&mut tracks, 9, 10);
        let back = restarted(&mut tracks);
        let (_, verdict) = tracks.accept(back, &listening(2), 16).expect("its channel");
        assert_eq!(Some(verdict), new(16, 0));
    }

    /// The same source at another lane, which comes while the last messages of the one before are still taken.
    fn followed(tracks: &mut Tracks) -> SourceKey {
        let key = SourceKey {
            remote: RemoteSlot(4),
            ..KEY
        };
        for remote in [KEY.remote, key.remote] {
            tracks.enter(remote, Some([192, 0, 2, 1].into()));
        }
        tracks.leave(KEY.remote);
        key
    }

    #[test]
    fn a_source_that_is_back_before_its_lane_is_forgotten_goes_on_where_it_was() {
        let mut tracks = Tracks::default();
        take(&mut tracks, 9, 10);
        let back = followed(&mut tracks);
        let mut there = |sequence| {
            let accepted = tracks.accept(back, &listening(1), sequence);
            accepted.map(|(_, verdict)| verdict)
        };
        assert_eq!(there(16), new(16, 5));
        assert_eq!(there(10), Some(Verdict::Duplicate));
        // What comes behind it of the lane before.
        let late = Some(Verdict::Late { sequence: 12 });
        assert_eq!(take(&mut tracks, 9, 12), late);
        for sequence in [10, 12, 16] {
            assert_eq!(take(&mut tracks, 9, sequence), Some(Verdict::Duplicate));
        }
        tracks.forget_remote(KEY.remote, false, |_, _, _, _| panic!("it goes on"));
        let (_, verdict) = tracks.accept(back, &listening(1), 18).expect("its channel");
        assert_eq!(Some(verdict), new(18, 1));
        tracks.forget_remote(back.remote, true, |_, _, lost, unknown| {
            assert!(lost == 0 && !unknown);
        });
        assert!(tracks.entries.is_empty() && tracks.by_key.is_empty());
        assert!(tracks.by_name.is_empty() && tracks.homes.is_empty());
    }

    #[test]
    fn what_was_announced_of_it_holds_on() {
        let mut tracks = Tracks::default();
        take(&mut tracks, 9, 95);
        tracks.announce(KEY, &listening(1), 100, false);
        let back = followed(&mut tracks);
        for sequence in 96..99 {
            let accepted = tracks.accept(back, &listening(1), sequence);
            assert_eq!(
                accepted.map(|(_, verdict)| verdict),
                new(sequence.into(), 0)
            );
        }
        assert_eq!(tracks.announce(back, &listening(1), 100, false), 1);
    }

    #[test]
    fn a_source_of_a_lane_that_is_there_is_nobody_elses() {
        let mut tracks = Tracks::default();
        take(&mut tracks, 9, 10);
        let back = followed(&mut tracks);
        tracks.enter(KEY.remote, Some([192, 0, 2, 1].into()));
        let there = |tracks: &mut Tracks, remote, sequence: u64| {
            let key = SourceKey { remote, ..KEY };
            let accepted = tracks.accept(key, &listening(1), sequence as u32);
            assert_eq!(accepted.map(|(_, verdict)| verdict), new(sequence, 0));
        };
        there(&mut tracks, back.remote, 16);
        there(&mut tracks, KEY.remote, 11);
        // Nor is one that is leaving a stranger's.
        let stranger = RemoteSlot(5);
        tracks.enter(stranger, Some([192, 0, 2, 2].into()));
        tracks.leave(KEY.remote);
        there(&mut tracks, stranger, 40);
        there(&mut tracks, KEY.remote, 12);
    }

    #[test]
    fn lanes_that_follow_each_other_leave_nothing_behind() {
        let mut tracks = Tracks::default();
        let key = |remote| SourceKey {
            remote: RemoteSlot(remote),
            ..KEY
        };
        for remote in 0..5 {
            tracks.enter(RemoteSlot(remote), None);
            let sequence = 10 * remote as u32;
            let accepted = tracks.accept(key(remote), &listening(1), sequence);
            assert!(matches!(accepted, Some((_, Verdict::New { .. }))));
            tracks.leave(RemoteSlot(remote));
        }
        tracks.announce(key(4), &listening(1), 41, true);
        tracks.announce(key(4), &listening(1), 41, true);
        assert!(tracks.entries.is_empty() && tracks.by_key.is_empty());
        assert!(tracks.by_name.is_empty());
        assert!(tracks.accept(key(4), &listening(1), 50).is_some());
        for remote in 0..5 {
            tracks.forget_remote(RemoteSlot(remote), true, |_, _, _, _| {});
        }
        assert!(tracks.entries.is_empty() && tracks.by_key.is_empty());
        assert!(tracks.by_name.is_empty() && tracks.homes.is_empty());
    }

    #[test]
    fn sources_of_lanes_that_are_gone_are_bounded() {
        let mut tracks = Tracks::default();
        for source in 0..MOST_ORPHANS as u32 + 10 {
            take(&mut tracks, source, 0);
        }
        tracks.forget_remote(KEY.remote, true, |_, _, _, _| {});
        assert_eq!(tracks.orphans.len(), MOST_ORPHANS);
        assert_eq!(tracks.orphaned.len(), MOST_ORPHANS);
    }

    #[test]
    fn sources_are_bounded_and_forgotten_with_their_lane_or_when_they_end() {
        let mut tracks = Tracks::default();
        for source in 0..MOST_TRACKS as u32 + 100 {
            take(&mut tracks, source, 0);
        }
        assert_eq!(tracks.entries.len(), MOST_TRACKS);
        assert_eq!(tracks.by_key.len(), MOST_TRACKS);
        let key = SourceKey {
            source: MOST_TRACKS as u32,
            ..KEY
        };
        tracks.announce(key, &listening(1), 1, true);
        tracks.announce(key, &listening(1), 1, true);
        assert_eq!(tracks.entries.len(), MOST_TRACKS - 1);
        let mut count = 0;
        tracks.forget_remote(RemoteSlot(3), false, |_, _, _, _| count += 1);
        assert_eq!(count, MOST_TRACKS - 1);
        assert!(tracks.entries.is_empty() && tracks.by_key.is_empty());
    }

    #[test]
    fn what_was_announced_and_never_came_is_lost_with_its_lane_and_the_rest_is_unknown() {
        let mut tracks = Tracks::default();
        take(&mut tracks, 9, 0);
        tracks.announce(KEY, &listening(1), 6, false);
        let mut told = Vec::new();
        tracks.forget_remote(RemoteSlot(3), false, |channel, since, lost, unknown| {
            told.push((channel, since, lost, unknown));
        });
        assert_eq!(told, [(5, 1, 5, true)]);
    }
}
