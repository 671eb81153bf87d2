//! What a socket is told on its error queue: transmission times that were not kept, in the words of the
//! kernel's etf queueing discipline (`net/sched/sch_etf.c`), and time stamps
//! (`Documentation/networking/timestamping.rst`).

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use takt::{Outcome, TaiTime, Token};

use crate::abi::{self, ExtendedError, timestamping};
use crate::runtime::{self, Source};

/// What an entry costs beside its packet: about what it costs in the kernel.
const OVERHEAD: usize = 512;
/// Datagrams that the kernel has sent and whose numbers are remembered, a power of two.
const NUMBERS: usize = 1024;
/// Frames whose outcome is awaited at most: a source remembers that of two times its depth.
const AWAITED: usize = 2 * runtime::DEPTH as usize;

/// Who sent a packet to whom, for entries that tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Out of which interface.
    pub interface: u32,
    /// The sender.
    pub source: IpAddr,
    /// The receiver.
    pub destination: SocketAddr,
}

/// What a datagram's sender wants to know about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// If its time was not kept.
    pub errors: bool,
    /// A stamp when it left.
    pub departure: bool,
    /// The same in the place of a hardware time stamp.
    pub hardware: bool,
    /// A stamp when it was queued.
    pub queueing: bool,
}

impl Wanted {
    /// From the socket's wish for errors and the stamps that it or the send asked for; `as_hardware`: instants of
    /// departure stand for hardware time stamps.
    pub fn new(errors: bool, stamps: u32, as_hardware: bool) -> Self {
        let hardware = as_hardware && stamps & timestamping::TX_HARDWARE != 0;
        // As `skb_tx_timestamp` has it.
        let both = stamps & timestamping::OPT_TX_SWHW != 0;
        Self {
            errors,
            departure: stamps & timestamping::TX_SOFTWARE != 0 && (both || !hardware),
            hardware,
            queueing: stamps & timestamping::TX_SCHED != 0,
        }
    }

    fn outcome(&self) -> bool {
        self.errors || self.departure || self.hardware
    }
}

/// A datagram as the error queue tells of it.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Its transmission time as the program gave it.
    pub launch: u64,
    /// When it leaves, if it does, within two seconds.
    pub about: TaiTime,
    /// When it was handed over: not after it left.
    pub queued: TaiTime,
    /// Its time had passed by then.
    pub late: bool,
    /// Its number in time stamps.
    pub number: u32,
    /// The whole frame; empty if stamps are to come without, and no error is to.
    pub packet: Vec<u8>,
    /// Of UDP datagrams.
    pub ends: Option<Ends>,
}

impl Datagram {
    /// By the bit of its frame's destination (IEEE 802, 8.2.2).
    fn is_for_a_group(&self) -> bool {
        self.packet.first().is_some_and(|octet| octet & 1 != 0)
    }
}

/// A frame whose outcome is awaited.
struct Awaited {
    token: Token,
    wanted: Wanted,
    stamps_alone: bool,
    datagram: Datagram,
}

/// A time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// Of software.
    Software(TaiTime),
    /// In the place of one of hardware, by whose clock it would be: TAI.
    Hardware(TaiTime),
}

/// An entry of the error queue.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What the kernel calls an extended error.
    pub error: ExtendedError,
    /// If it is a time stamp.
    pub stamp: Option<Stamp>,
    /// The packet that it is about.
    pub packet: Vec<u8>,
    /// Its ends.
    pub ends: Option<Ends>,
}

/// The error queue of a socket, and what will come to it.
#[derive(Default)]
pub struct Reports {
    awaited: VecDeque<Awaited>,
    queue: VecDeque<Entry>,
    /// Bytes in the queue.
    bytes: usize,
    /// Entries ever.
    total: u64,
    /// The next datagram's number, and the kernel's idea of it.
    number: u32,
    kernel_number: u32,
    /// The numbers of the datagrams that the kernel has sent, by the kernel's.
    numbers: Vec<u32>,
}

fn error(errno: i32, code: u8, launch: u64) -> ExtendedError {
    ExtendedError {
        errno: errno as u32,
        origin: abi::EE_ORIGIN_TXTIME,
        code,
        info: launch as u32,
        data: (launch >> 32) as u32,
    }
}

/// The time could not be met from the beginning: it has passed, or is too far ahead.
pub fn invalid(launch: u64) -> ExtendedError {
    error(libc::EINVAL, abi::EE_TXTIME_INVALID_PARAM, launch)
}

/// The time passed while the datagram waited.
pub fn missed(launch: u64) -> ExtendedError {
    error(libc::ECANCELED, abi::EE_TXTIME_MISSED, launch)
}

fn stamp(kind: u32, number: u32) -> ExtendedError {
    ExtendedError {
        errno: libc::ENOMSG as u32,
        origin: abi::EE_ORIGIN_TIMESTAMPING,
        code: 0,
        info: kind,
        data: number,
    }
}

impl Reports {
    /// A frame was handed over, `limit` bytes of queue being allowed. Returns how many entries came to the queue.
    pub fn emitted(
        &mut self,
        token: Token,
        wanted: Wanted,
        stamps_alone: bool,
        datagram: Datagram,
        limit: usize,
    ) -> u64 {
        let before = self.total;
        if wanted.queueing {
            let error = stamp(abi::TSTAMP_SCHED, datagram.number);
            let queued = Stamp::Software(datagram.queued);
            self.push_stamp(error, queued, stamps_alone, &datagram, limit);
        }
        if wanted.outcome() {
            if self.awaited.len() >= AWAITED {
                self.awaited.pop_front();
            }
            self.awaited.push_back(Awaited {
                token,
                wanted,
                stamps_alone,
                datagram,
            });
        }
        self.total - before
    }

    /// A datagram with this launch time was never handed over. Returns how many entries came to the queue.
    pub fn given_up(
        &mut self,
        launch: u64,
        packet: Vec<u8>,
        ends: Option<Ends>,
        limit: usize,
    ) -> u64 {
        let before = self.total;
        let entry = Entry {
            error: missed(launch),
            stamp: None,
            packet,
            ends,
        };
        self.push(entry, limit);
        self.total - before
    }

    /// How many outcomes are awaited.
    pub fn awaited(&self) -> usize {
        self.awaited.len()
    }

    fn push_stamp(
        &mut self,
        error: ExtendedError,
        stamp: Stamp,
        alone: bool,
        datagram: &Datagram,
        limit: usize,
    ) {
        let packet = match alone {
            true => Vec::new(),
            false => datagram.packet.clone(),
        };
        let entry = Entry {
            error,
            stamp: Some(stamp),
            packet,
            // The kernel knows them from the packet.
            ends: datagram.ends.filter(|_| !alone),
        };
        self.push(entry, limit);
    }

    fn push(&mut self, entry: Entry, limit: usize) {
        let size = entry.packet.len() + OVERHEAD;
        // As the kernel does: what does not fit is not told.
        if self.bytes + size > limit {
            return;
        }
        self.bytes += size;
        self.total += 1;
        self.queue.push_back(entry);
    }

    /// Looks what became of what is awaited. Returns how many entries came to the queue.
    pub fn look(&mut self, source: Option<&Source>, limit: usize) -> u64 {
        let before = self.total;
        let outcome = |token| match source {
            Some(source) => source.outcome(token),
            None => Outcome::Lost,
        };
        let departed = |token, about| source?.departed(token, about);
        self.settle(outcome, departed, limit);
        self.total - before
    }

    fn settle(
        &mut self,
        outcome: impl Fn(Token) -> Outcome,
        departed: impl Fn(Token, TaiTime) -> Option<TaiTime>,
        limit: usize,
    ) {
        // Not in the order of emission: by launch time, and by class.
        let mut at = 0;
        while let Some(awaited) = self.awaited.get(at) {
            let outcome = outcome(awaited.token);
            if outcome == Outcome::Pending {
                at += 1;
                continue;
            }
            let departed = departed(awaited.token, awaited.datagram.about);
            let Some(awaited) = self.awaited.remove(at) else {
                return;
            };
            let Awaited {
                wanted,
                stamps_alone,
                datagram,
                ..
            } = awaited;
            let error = match outcome {
                Outcome::Sent => {
                    let Some(instant) = departed else {
                        continue;
                    };
                    let stamps = [
                        (wanted.departure, Stamp::Software(instant)),
                        (wanted.hardware, Stamp::Hardware(instant)),
                    ];
                    for (_, told) in stamps.into_iter().filter(|(wanted, _)| *wanted) {
                        let error = stamp(abi::TSTAMP_SND, datagram.number);
                        self.push_stamp(error, told, stamps_alone, &datagram, limit);
                    }
                    continue;
                }
                Outcome::Late if datagram.late => invalid(datagram.launch),
                // Nobody need be in a group, and the frame would have left all the same.
                Outcome::Unreachable if datagram.is_for_a_group() => continue,
                // It is not known to have left at its time, and will not leave any more.
                Outcome::Late | Outcome::Lost | Outcome::Unreachable => missed(datagram.launch),
                // Refused: in a class that the tenant may not use, or outside its declared streams.
                Outcome::NotScheduled | Outcome::Refused => invalid(datagram.launch),
                _ => continue,
            };
            if wanted.errors {
                let entry = Entry {
                    error,
                    stamp: None,
                    packet: datagram.packet,
                    ends: datagram.ends,
                };
                self.push(entry, limit);
            }
        }
    }

    /// Whether something waits to be read.
    pub fn are_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether something waits to be read, or may come.
    pub fn are_due(&self) -> bool {
        self.are_waiting() || !self.awaited.is_empty()
    }

    /// The first entry, to be taken off.
    pub fn take(&mut self) -> Option<Entry> {
        let entry = self.queue.pop_front()?;
        self.bytes -= entry.packet.len() + OVERHEAD;
        Some(entry)
    }

    /// The number of a datagram that has one.
    pub fn next_number(&mut self) -> u32 {
        let number = self.number;
        self.number = number.wrapping_add(1);
        number
    }

    /// The kernel has sent a datagram with this number and given it one of its own.
    pub fn numbered_by_kernel(&mut self, number: u32) {
        if self.numbers.is_empty() {
            self.numbers = (0..NUMBERS as u32).collect();
        }
        self.numbers[self.kernel_number as usize % NUMBERS] = number;
        self.kernel_number = self.kernel_number.wrapping_add(1);
    }

    /// The program's number of the datagram that the kernel has numbered so.
    pub fn number_of(&self, kernel: u32) -> u32 {
        // One that is not among the latest: nothing is known of it.
        let age = self.kernel_number.wrapping_sub(kernel);
        match (1..=NUMBERS as u32).contains(&age) {
            true => self.numbers[kernel as usize % NUMBERS],
            false => kernel,
        }
    }

    /// Numbers begin again.
    pub fn restart_numbers(&mut self) {
        self.number = 0;
        self.kernel_number = 0;
        self.numbers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: usize = 1 << 20;

    fn datagram(launch: u64, number: u32) -> Datagram {
        Datagram {
            launch,
            about: TaiTime::from_nanos(launch as i64),
            queued: TaiTime::from_nanos(5),
            late: false,
            number,
            packet: vec![0, 2, 3],
            ends: None,
        }
    }

    fn everything() -> Wanted {
        Wanted::new(true, timestamping::TX_SOFTWARE, false)
    }

    fn token(number: u64) -> Token {
        Token::from_number(number)
    }

    #[test]
    fn errors_have_the_numbers_of_the_kernels_etf() {
        let time = 0x1234_5678_9abc_def0;
        assert_eq!(
            missed(time),
            ExtendedError {
                errno: 125,
                origin: 6,
                code: 2,
                data: 0x1234_5678,
                info: 0x9abc_def0,
            }
        );
        let invalid = invalid(time);
        assert_eq!((invalid.errno, invalid.code), (22, 1));
    }

    #[test]
    fn what_has_left_is_stamped_and_what_has_not_is_reported() {
        let mut reports = Reports::default();
        for (number, launch) in [(0, 10), (1, 20), (2, 30), (3, 40), (4, 50)] {
            let datagram = datagram(launch, number);
            reports.emitted(token(number.into()), everything(), false, datagram, LIMIT);
        }
        let outcomes = [
            Outcome::Sent,
            Outcome::Late,
            Outcome::NotScheduled,
            Outcome::Refused,
            Outcome::Pending,
        ];
        let instant = TaiTime::from_nanos(77);
        reports.settle(
            |t| outcomes[t.number() as usize],
            |_, _| Some(instant),
            LIMIT,
        );
        let first = reports.take().expect("a stamp");
        assert_eq!(
            (first.stamp, first.error.data),
            (Some(Stamp::Software(instant)), 0)
        );
        assert_eq!(first.error.origin, abi::EE_ORIGIN_TIMESTAMPING);
        assert_eq!(first.packet, [0, 2, 3]);
        assert_eq!(reports.take().expect("an error").error, missed(20));
        assert_eq!(reports.take().expect("an error").error, invalid(30));
        assert_eq!(reports.take().expect("an error").error, invalid(40));
        assert!(reports.take().is_none());
        assert!(reports.are_due(), "one is on its way");
        reports.settle(|_| Outcome::Lost, |_, _| None, LIMIT);
        assert_eq!(reports.take().expect("an error").error, missed(50));
        assert!(!reports.are_due());
    }

    #[test]
    fn what_was_late_from_the_beginning_was_invalid() {
        let mut reports = Reports::default();
        let late = Datagram {
            late: true,
            ..datagram(7, 0)
        };
        reports.emitted(token(0), everything(), false, late.clone(), LIMIT);
        reports.settle(|_| Outcome::Late, |_, _| None, LIMIT);
        assert_eq!(reports.take().expect("an error").error, invalid(7));
        // Within what the runtime tolerates.
        reports.emitted(token(1), Wanted::new(true, 0, false), false, late, LIMIT);
        reports.settle(|_| Outcome::Sent, |_, _| None, LIMIT);
        assert!(!reports.are_due());
    }

    #[test]
    fn what_had_no_way_any_more_was_missed_but_a_group_without_members_is_no_error() {
        let mut reports = Reports::default();
        let errors = Wanted::new(true, 0, false);
        let mut to_a_group = datagram(1, 0);
        to_a_group.packet[0] = 1;
        reports.emitted(token(0), errors, false, to_a_group, LIMIT);
        reports.emitted(token(1), errors, false, datagram(2, 0), LIMIT);
        reports.settle(|_| Outcome::Unreachable, |_, _| None, LIMIT);
        assert_eq!(reports.take().expect("an error").error, missed(2));
        assert!(!reports.are_due());
    }

    #[test]
    fn stamps_come_without_the_packet_on_wish_and_errors_never() {
        let mut reports = Reports::default();
        for number in 0..2 {
            reports.emitted(token(number), everything(), true, datagram(1, 0), LIMIT);
        }
        let outcomes = [Outcome::Sent, Outcome::Late];
        let instant = Some(TaiTime::from_nanos(1));
        reports.settle(|t| outcomes[t.number() as usize], |_, _| instant, LIMIT);
        assert!(reports.take().expect("a stamp").packet.is_empty());
        assert!(!reports.take().expect("an error").packet.is_empty());
    }

    #[test]
    fn only_what_is_asked_for_is_told() {
        let mut reports = Reports::default();
        let stamps = Wanted::new(false, timestamping::TX_SOFTWARE, false);
        reports.emitted(token(0), stamps, false, datagram(1, 0), LIMIT);
        reports.settle(|_| Outcome::Late, |_, _| None, LIMIT);
        assert!(!reports.are_due());
        let errors = Wanted::new(true, 0, false);
        reports.emitted(token(1), errors, false, datagram(1, 0), LIMIT);
        reports.settle(
            |_| Outcome::Sent,
            |_, _| Some(TaiTime::from_nanos(1)),
            LIMIT,
        );
        assert!(!reports.are_due());
        reports.emitted(token(2), Wanted::default(), false, datagram(1, 0), LIMIT);
        assert!(!reports.are_due());
        let queueing = Wanted::new(false, timestamping::TX_SCHED, false);
        reports.emitted(token(3), queueing, false, datagram(1, 9), LIMIT);
        let entry = reports.take().expect("a stamp at once");
        assert_eq!((entry.error.info, entry.error.data), (abi::TSTAMP_SCHED, 9));
    }

    #[test]
    fn the_queue_is_bounded_by_the_sockets_receive_buffer() {
        let mut reports = Reports::default();
        let tell = |reports: &mut Reports, limit| {
            let queueing = Wanted::new(false, timestamping::TX_SCHED, false);
            reports.emitted(token(0), queueing, false, datagram(1, 0), limit)
        };
        let told: u64 = (0..100)
            .map(|_| tell(&mut reports, 10 * (OVERHEAD + 3)))
            .sum();
        assert_eq!(told, 10);
        assert_eq!(std::iter::from_fn(|| reports.take()).count(), 10);
        tell(&mut reports, OVERHEAD + 3);
        assert!(reports.are_waiting(), "there is room again");
    }

    #[test]
    fn datagrams_without_an_outcome_are_bounded_too() {
        let mut reports = Reports::default();
        for number in 0..2 * AWAITED as u64 {
            reports.emitted(token(number), everything(), true, datagram(1, 0), LIMIT);
        }
        assert_eq!(reports.awaited.len(), AWAITED);
    }

    proptest! {
        #[test]
        fn a_stamp_of_the_kernels_gets_the_number_that_the_program_counts(
            by_kernel in prop::collection::vec(any::<bool>(), 1..3000),
        ) {
            let mut reports = Reports::default();
            let mut expected = Vec::new();
            for (number, by_kernel) in by_kernel.into_iter().enumerate() {
                if by_kernel {
                    let counted = reports.next_number();
                    reports.numbered_by_kernel(counted);
                    expected.push(number as u32);
                } else {
                    prop_assert_eq!(reports.next_number(), number as u32);
                }
            }
            let latest = expected.len().saturating_sub(NUMBERS);
            for (kernel, number) in expected.iter().enumerate().skip(latest) {
                prop_assert_eq!(reports.number_of(kernel as u32), *number);
            }
        }
    }
}
