//! The state of one flow, and the figures that come out of it.
//!
//! Everything is updated by one packet in constant time and without a look at the past. Delay is
//! - the reception less the send time, where packets carry one (cases 2 and 3 of the paper's section IV.B), or
//! - the *shift* of the last beat of a periodic flow: how much later it came than the earliest beats let expect (case
//!   1). A jump by more than half a period at once looks like a missing beat. The envelope of the earliest beats follows a sender whose clock is slow by up to [`DRIFT_PPM`], so a shift
//!   that lasts is forgotten at this pace.

use serde::Serialize;

use crate::histogram::Histogram;
use crate::key::FlowKey;
use crate::level::{Level, Signal};
use crate::rule::{Kpi, RuleState};
use crate::sequence::{Sequence, Step};
use crate::spec::Spec;
use crate::stamp::{Marks, Rtp, SenderReport, Stamp};

/// How much slower a periodic sender's clock may run than ours: twice what Ethernet allows (IEEE 802.3: 100 ppm).
pub const DRIFT_PPM: i64 = 200;
/// Windows whose largest delay is kept for a sparkline.
pub const TREND: usize = 16;
/// A delay is unknown once as many packets, over so many windows, have come without one.
const STALE_PACKETS: u32 = 16;
const STALE_WINDOWS: i64 = 2;
/// Synchronisation sources of a flow that are told apart.
const SOURCES: usize = 16;
/// As many RTP packets in a row make a flow RTP (RFC 3550, appendix A.1 has 2).
const RTP_PROBATION: u8 = 3;

/// Smallest, largest and sum of samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Range {
    /// How many.
    pub count: u64,
    /// The smallest; 0 without samples.
    pub min: i64,
    /// The largest; 0 without samples.
    pub max: i64,
    sum: i128,
}

impl Range {
    fn take(&mut self, value: i64) {
        if self.count == 0 {
            (self.min, self.max) = (value, value);
        }
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.sum += i128::from(value);
        self.count += 1;
    }

    /// The mean; `None` without samples.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }
}

/// What was counted in a window.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    start_ns: i64,
    packets: u32,
    lost: u32,
    missing: u32,
    bytes: u64,
    worst_ns: i64,
}

/// RTP of one synchronisation source.
#[derive(Clone, Copy, Debug)]
struct RtpState {
    ssrc: u32,
    timestamp: u32,
    sequence: u16,
    in_row: u8,
    payload_type: u8,
    /// Of the last packet, in nanoseconds of the media clock since the first.
    media_ns: i64,
    /// The media time and instant of the last sender report.
    report: Option<(u32, i64)>,
}

/// The jitter of RFC 3550, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Jitter {
    value: f64,
    max: f64,
    sum: f64,
    count: u64,
    /// Reception less send time of the packet before, nanoseconds.
    transit: Option<i64>,
}

impl Jitter {
    fn take(&mut self, transit: i64) {
        if let Some(last) = self.transit {
            let difference = transit.saturating_sub(last).unsigned_abs() as f64;
            self.value += (difference - self.value) / 16.0;
            self.max = self.max.max(self.value);
            self.sum += self.value;
            self.count += 1;
        }
        self.transit = Some(transit);
    }

    /// As of now; `None` also where what it goes by is unknown by now.
    fn now(&self) -> Option<f64> {
        (self.count > 0 && self.transit.is_some()).then_some(self.value)
    }
}

/// A synchronisation source that does not send at present: several may share a flow (RFC 8843).
#[derive(Clone, Debug)]
struct Source {
    state: RtpState,
    sequence: Option<Sequence>,
    jitter: Jitter,
}

/// What a table lets flows do.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Length of a window, nanoseconds.
    pub window_ns: i64,
    /// Packets closer than this are of one burst, where no period says better. Nanoseconds.
    pub burst_gap_ns: i64,
    /// TAI less UTC, nanoseconds: for RTCP, whose time is UTC.
    pub tai_offset_ns: i64,
    /// Packets of until then may have come and not been seen here: what is missing since a flow's last one is nobody's fault.
    pub unseen_ns: i64,
}

/// The state of one flow.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Its name.
    pub key: FlowKey,
    /// Its specification, by its place in the document.
    pub spec: Option<u16>,
    /// What its packets carry.
    pub stamp: Stamp,
    /// When the first packet came, TAI nanoseconds.
    pub first_ns: i64,
    /// When the last packet came, TAI nanoseconds.
    pub last_ns: i64,
    /// How many packets.
    pub packets: u64,
    /// How many bytes, with the link's header.
    pub bytes: u64,
    smallest: u32,
    largest: u32,
    last_size: u32,
    time_back: u32,
    sequence: Option<Sequence>,
    /// The most packets lost in a row before the last such row, and those of that.
    loss_run: u64,
    last_loss: u64,
    /// Beats that were missing before a number that went astray.
    missing_astray: u64,
    rtp: Option<RtpState>,
    /// The other sources, the one that sent last at the end.
    others: Vec<Source>,
    /// The last packet is of another source than the one before.
    other_source: bool,
    gap: Range,
    last_gap_ns: Option<i64>,
    delay: Range,
    /// `None`: unknown, as before the first one.
    last_delay_ns: Option<i64>,
    /// When that was, and packets without one since.
    delay_at_ns: i64,
    undelayed: u32,
    /// Whether delays go by stamps, not by shifts. Both are never mixed.
    stamped: bool,
    /// The next packet shows what packets carry.
    pub(crate) unrecognised: bool,
    jitter: Jitter,
    /// Time between two beats less the period.
    deviation: Range,
    last_deviation_ns: Option<i64>,
    /// When the last beat was due at the latest by the earliest beats.
    due_ns: Option<i64>,
    /// What the envelope may still follow a slow sender, of less than a nanosecond, in millionths of one.
    drift_rest: u32,
    last_beat_ns: i64,
    missing: u64,
    /// Beats that were taken for missing just before the last one.
    presumed: u32,
    burst: u32,
    longest_burst: u32,
    bursts: u64,
    burst_start_ns: i64,
    burst_distance: Range,
    window: Window,
    last_window: Window,
    /// The largest delay (or gap, without delays) of the last windows, microseconds; the present one is not in it.
    trend: [u32; TREND],
    trend_next: u8,
    signal: Signal,
    worst: Level,
    /// One for each rule that is for this flow, with the rule's place in the document.
    pub(crate) rules: Vec<(u16, RuleState)>,
    /// Its place is in the table's list of those that are judged.
    pub(crate) in_judged: bool,
    histograms: Option<Box<Histograms>>,
}

/// Distributions, kept for flows of more than a few packets.
#[derive(Clone, Debug, Default)]
pub struct Histograms {
    /// Of the delay.
    pub delay: Histogram,
    /// Of the time between two packets.
    pub gap: Histogram,
}

/// What a packet changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The levels before and after, and the figure that called for the new one.
    pub level: Option<(Level, Level, Option<Kpi>)>,
}

impl Flow {
    /// A flow before its first packet.
    pub(crate) fn new(key: FlowKey, now_ns: i64, spec: Option<u16>, stamp: Stamp) -> Self {
        Self {
            key,
            spec,
            stamp,
            first_ns: now_ns,
            last_ns: now_ns,
            packets: 0,
            bytes: 0,
            smallest: u32::MAX,
            largest: 0,
            last_size: 0,
            time_back: 0,
            sequence: None,
            loss_run: 0,
            last_loss: 0,
            missing_astray: 0,
            rtp: None,
            others: Vec::new(),
            other_source: false,
            gap: Range::default(),
            last_gap_ns: None,
            delay: Range::default(),
            last_delay_ns: None,
            delay_at_ns: now_ns,
            undelayed: 0,
            stamped: false,
            unrecognised: false,
            jitter: Jitter::default(),
            deviation: Range::default(),
            last_deviation_ns: None,
            due_ns: None,
            drift_rest: 0,
            last_beat_ns: now_ns,
            missing: 0,
            presumed: 0,
            burst: 0,
            longest_burst: 0,
            bursts: 0,
            burst_start_ns: now_ns,
            burst_distance: Range::default(),
            window: Window {
                start_ns: now_ns,
                ..Window::default()
            },
            last_window: Window::default(),
            trend: [0; TREND],
            trend_next: 0,
            signal: Signal::default(),
            worst: Level::Green,
            rules: Vec::new(),
            in_judged: false,
            histograms: None,
        }
    }

    /// The present level.
    pub fn level(&self) -> Level {
        self.signal.level()
    }

    /// The delay of the last packet that told one, nanoseconds; `None`, too, if that is long ago.
    pub fn last_delay_ns(&self) -> Option<i64> {
        self.last_delay_ns
    }

    /// Whether it has to keep to anything.
    pub(crate) fn is_judged(&self) -> bool {
        self.spec.is_some() || !self.rules.is_empty()
    }

    /// Whether delays go by send times that packets carry, not by shifts.
    pub fn is_stamped(&self) -> bool {
        self.stamped
    }

    /// Distributions, if they are kept.
    pub fn histograms(&self) -> Option<&Histograms> {
        self.histograms.as_deref()
    }

    pub(crate) fn keep_histograms(&mut self) {
        self.histograms.get_or_insert_default();
    }

    pub(crate) fn has_histograms(&self) -> bool {
        self.histograms.is_some()
    }

    /// How many bursts (a packet alone is one) there were, and how far apart their starts were.
    pub fn beats(&self) -> (u64, Range) {
        (self.bursts, self.burst_distance)
    }

    /// Largest delays (or gaps) of the last windows, the oldest first, microseconds.
    pub fn trend(&self) -> impl Iterator<Item = u32> {
        let at = usize::from(self.trend_next);
        let all = self.trend[at..].iter().chain(&self.trend[..at]);
        all.copied()
    }

    /// Takes a packet. `marks` is what the packet carries, if its stamp is none of RTP's.
    #[inline]
    pub(crate) fn take(
        &mut self,
        now_ns: i64,
        size: u32,
        marks: Option<Marks>,
        rtp: Option<Rtp>,
        spec: Option<&Spec>,
        rules: &Rules,
    ) -> Change {
        let first = self.packets == 0;
        let mut now_ns = now_ns;
        if now_ns < self.last_ns {
            // The clock of the capture went back: the figures of time rest for this packet.
            self.time_back = self.time_back.saturating_add(1);
            now_ns = self.last_ns;
        }
        self.packets += 1;
        self.bytes += u64::from(size);
        self.smallest = self.smallest.min(size);
        self.largest = self.largest.max(size);
        self.last_size = size;
        self.roll(now_ns, rules.window_ns);
        self.window.packets = self.window.packets.saturating_add(1);
        self.window.bytes += u64::from(size);

        // Whether what is missing is missing.
        let seen = self.last_ns > rules.unseen_ns;
        let gap = now_ns - self.last_ns;
        if !first {
            self.gap.take(gap);
            self.last_gap_ns = seen.then_some(gap);
            if let Some(histograms) = &mut self.histograms {
                histograms.gap.record(gap);
            }
        }
        self.last_ns = now_ns;

        let marks = match rtp {
            Some(header) => self.rtp(header, now_ns, spec, rules),
            None => marks.unwrap_or_default(),
        };
        let period = spec.and_then(|spec| spec.period_ns);
        let lost_before = self.sequence.as_ref().map_or(0, |sequence| sequence.lost);
        let step = marks.sequence.map(|(number, bits)| {
            let sequence = self.sequence.get_or_insert_with(|| Sequence::new(bits));
            match period {
                // Few numbers have come round meanwhile, perhaps more than once.
                Some(period) if (gap / period) as u64 > sequence.dropout() => {
                    sequence.go_on(number)
                }
                _ => sequence.take(number),
            }
        });
        let lost_now = match step {
            Some(Step::Next { lost } | Step::Jump { lost }) => lost,
            _ => 0,
        };
        let lost = self.sequence.as_ref().map_or(0, |sequence| sequence.lost);
        self.take_loss_back((lost_before.saturating_add(lost_now)).saturating_sub(lost));
        if lost_now > 0 && seen {
            self.note_loss(lost_now);
        }
        let starts_burst = self.bursts(now_ns, gap, first, spec, rules);
        let is_beat = starts_burst || spec.is_none_or(|spec| spec.max_burst.unwrap_or(1) <= 1);
        self.last_deviation_ns = None;
        // Beats stand in for stamps only where none is known of.
        let by_stamp = marks.sent_ns.is_some();
        let by_beat = !by_stamp && !(self.stamped && self.last_delay_ns.is_some());
        let (missing, in_window) = (self.missing, self.window.missing);
        if let (Some(period), Some(Step::Restart { late })) = (period, step) {
            // These were beats.
            self.last_beat_ns += period.saturating_mul(late as i64);
            self.due_ns = (self.due_ns).map(|due| due + period.saturating_mul(late as i64));
        }
        let shift = match period {
            Some(period) if is_beat && !matches!(step, Some(Step::Late | Step::Duplicate)) => {
                // Numbers of packets are numbers of beats only where each packet is a beat.
                let by_number = match step {
                    Some(Step::Next { lost })
                        if !self.other_source
                            && spec.is_none_or(|s| s.max_burst.unwrap_or(1) <= 1) =>
                    {
                        Some(lost as i64 + 1)
                    }
                    _ => None,
                };
                self.beat(now_ns, period, by_number, rtp.is_some() || !by_beat)
            }
            _ => None,
        };
        if !seen {
            self.window.missing = self.window.missing.min(in_window);
        }
        let missing = self.missing.saturating_sub(missing);
        match step {
            Some(Step::Astray) => self.missing_astray += missing,
            // What numbers do not tell of, beats do.
            Some(Step::Restart { .. }) => {
                let lost = missing + std::mem::take(&mut self.missing_astray);
                if let Some(sequence) = &mut self.sequence {
                    sequence.lose(lost);
                }
                if seen {
                    self.note_loss(lost);
                }
            }
            Some(_) => self.missing_astray = 0,
            None => {}
        }
        let shift = shift.filter(|_| by_beat);
        let delay = marks.sent_ns.map(|sent| now_ns.saturating_sub(sent));
        if (by_stamp || shift.is_some()) && by_stamp != self.stamped {
            self.stamped = by_stamp;
            self.forget_delay(rtp.is_some());
        }
        if by_stamp
            && rtp.is_none()
            && !matches!(step, Some(Step::Late | Step::Duplicate))
            && let Some(transit) = delay
        {
            self.jitter.take(transit);
        }
        if let Some(delay) = delay.or(shift) {
            self.last_delay_ns = Some(delay);
            (self.delay_at_ns, self.undelayed) = (now_ns, 0);
            self.delay.take(delay);
            self.window.worst_ns = self.window.worst_ns.max(delay);
            if let Some(histograms) = &mut self.histograms {
                histograms.delay.record(delay);
            }
        } else {
            self.undelayed = self.undelayed.saturating_add(1);
            let stale_ns = rules.window_ns.saturating_mul(STALE_WINDOWS);
            if self.undelayed >= STALE_PACKETS && now_ns - self.delay_at_ns >= stale_ns {
                self.last_delay_ns = None;
                if rtp.is_none() {
                    self.jitter.transit = None;
                }
            }
            if self.delay.count == 0 {
                self.window.worst_ns = self.window.worst_ns.max(gap);
            }
        }
        let Some(spec) = spec else {
            return Change::default();
        };
        let (wanted, why) = self.assess(spec);
        self.call(wanted, why, now_ns, spec)
    }

    /// So many packets in a row were lost.
    fn note_loss(&mut self, lost: u64) {
        self.loss_run = self.loss_run.max(self.last_loss);
        self.last_loss = lost;
        let lost = u32::try_from(lost).unwrap_or(u32::MAX);
        self.window.lost = self.window.lost.saturating_add(lost);
    }

    /// So many packets that were taken for lost were late: as a rule those of the last row.
    fn take_loss_back(&mut self, late: u64) {
        self.last_loss = self.last_loss.saturating_sub(late);
        let mut late = u32::try_from(late).unwrap_or(u32::MAX);
        for window in [&mut self.window, &mut self.last_window] {
            let of_it = late.min(window.lost);
            window.lost -= of_it;
            late -= of_it;
        }
    }

    fn call(&mut self, wanted: Level, why: Option<Kpi>, now_ns: i64, spec: &Spec) -> Change {
        self.worst = self.worst.max(wanted);
        let change = self.signal.call(wanted, now_ns, spec.hold_ns);
        Change {
            level: change.map(|(from, to)| (from, to, if to > from { why } else { None })),
        }
    }

    /// Ends windows that are over.
    fn roll(&mut self, now_ns: i64, window_ns: i64) {
        let passed = now_ns - self.window.start_ns;
        if passed < window_ns {
            return;
        }
        let whole = passed / window_ns;
        self.trend[usize::from(self.trend_next)] = u32::try_from(self.window.worst_ns / 1000)
            .unwrap_or(if self.window.worst_ns < 0 {
                0
            } else {
                u32::MAX
            });
        self.trend_next = (self.trend_next + 1) % TREND as u8;
        // Windows without a packet, as far as the trend goes back.
        for _ in 1..whole.min(TREND as i64) {
            self.trend[usize::from(self.trend_next)] = 0;
            self.trend_next = (self.trend_next + 1) % TREND as u8;
        }
        self.last_window = match whole {
            1 => self.window,
            _ => Window::default(),
        };
        self.window = Window {
            start_ns: self.window.start_ns + whole * window_ns,
            ..Window::default()
        };
    }

    /// Takes an RTP header; what it says as soon as it is believed.
    fn rtp(&mut self, header: Rtp, now_ns: i64, spec: Option<&Spec>, rules: &Rules) -> Marks {
        let rate = spec
            .and_then(|spec| spec.rtp_clock)
            .or_else(|| Rtp::clock_rate(header.payload_type));
        let follows = |state: &RtpState| state.sequence.wrapping_add(1) == header.sequence;
        self.other_source = self.rtp.is_some_and(|state| state.ssrc != header.ssrc);
        if self.other_source {
            self.change_source(header.ssrc);
        }
        let state = match &mut self.rtp {
            Some(state) => state,
            known => {
                self.jitter = Jitter::default();
                known.insert(RtpState {
                    ssrc: header.ssrc,
                    timestamp: header.timestamp,
                    sequence: header.sequence,
                    in_row: 0,
                    payload_type: header.payload_type,
                    media_ns: 0,
                    report: None,
                })
            }
        };
        if state.in_row < RTP_PROBATION {
            let goes_on = state.in_row == 0 || follows(state);
            state.in_row = if goes_on { state.in_row + 1 } else { 1 };
        }
        state.sequence = header.sequence;
        state.payload_type = header.payload_type;
        let mut sent_ns = None;
        if let Some(rate) = rate {
            let scale = |ticks: u32| i64::from(ticks as i32) * 1_000_000_000 / i64::from(rate);
            state.media_ns += scale(header.timestamp.wrapping_sub(state.timestamp));
            sent_ns = state.report.map(|(timestamp, utc_ns)| {
                utc_ns + scale(header.timestamp.wrapping_sub(timestamp)) + rules.tai_offset_ns
            });
            self.jitter.take(now_ns.saturating_sub(state.media_ns));
        }
        state.timestamp = header.timestamp;
        Marks {
            sequence: Some((u64::from(header.sequence), 16)),
            sent_ns,
        }
    }

    /// Puts the source that has sent so far aside, and goes on with another one if that is known; else it has to begin anew.
    fn change_source(&mut self, ssrc: u32) {
        let next = self.others.iter().position(|of| of.state.ssrc == ssrc);
        let next = next.map(|at| self.others.remove(at));
        let mut sequence = None;
        if next.is_none() && self.others.len() + 1 >= SOURCES {
            sequence = self.others.remove(0).sequence.map(|old| old.of_another());
        }
        if let Some(state) = self.rtp.take() {
            self.others.push(Source {
                state,
                sequence: self.sequence.take(),
                jitter: std::mem::take(&mut self.jitter),
            });
        }
        self.sequence = sequence;
        if let Some(next) = next {
            self.rtp = Some(next.state);
            (self.sequence, self.jitter) = (next.sequence, next.jitter);
        }
    }

    /// The sum of what was counted by the numbers of each source; `None` if there are none.
    fn counted(&self, count: impl Fn(&Sequence) -> u64) -> Option<u64> {
        let others = self.others.iter().flat_map(|of| &of.sequence);
        let all = self.sequence.iter().chain(others);
        all.map(count).reduce(u64::saturating_add)
    }

    /// Takes a sender report about this flow.
    pub(crate) fn report_sent(&mut self, report: &SenderReport) {
        let others = self.others.iter_mut().map(|of| &mut of.state);
        let mut all = self.rtp.iter_mut().chain(others);
        if let Some(state) = all.find(|state| state.ssrc == report.ssrc) {
            state.report = Some((report.timestamp, report.utc_ns));
        }
    }

    /// What looked like RTP was not.
    pub(crate) fn forget_rtp(&mut self) {
        if self.rtp.take().is_some() {
            self.others.clear();
            (self.jitter, self.sequence) = (Jitter::default(), None);
            (self.window.lost, self.last_window.lost) = (0, 0);
            (self.loss_run, self.last_loss) = (0, 0);
            self.last_delay_ns = None;
            self.delay = Range::default();
        }
    }

    /// Delays go by something else from now on. Jitter, too, but RTP's, which has its own clock.
    fn forget_delay(&mut self, has_media_clock: bool) {
        self.last_delay_ns = None;
        self.delay = Range::default();
        if let Some(histograms) = &mut self.histograms {
            histograms.delay = Histogram::default();
        }
        if !has_media_clock {
            self.jitter = Jitter::default();
        }
    }

    /// Another specification, or none: the level begins anew, and delays by beats. `stamp`: where packets are to be read in another way,
    /// how; then all that goes by what they carry begins anew.
    pub(crate) fn set_spec(&mut self, spec: Option<u16>, stamp: Option<Stamp>) {
        self.spec = spec;
        self.signal = Signal::default();
        (self.due_ns, self.presumed, self.last_deviation_ns) = (None, 0, None);
        if let Some(stamp) = stamp {
            self.stamp = stamp;
            self.unrecognised = stamp == Stamp::Auto;
            (self.rtp, self.sequence) = (None, None);
            (self.loss_run, self.last_loss) = (0, 0);
            self.others.clear();
            (self.window.lost, self.last_window.lost) = (0, 0);
            self.stamped = false;
            self.forget_delay(false);
        } else if !self.stamped {
            self.forget_delay(self.rtp.is_some());
        }
    }

    /// Whether RTP was believed: enough packets in a row.
    pub fn is_rtp(&self) -> bool {
        let others = self.others.iter().map(|of| &of.state);
        let mut all = self.rtp.iter().chain(others);
        all.any(|state| state.in_row >= RTP_PROBATION)
    }

    /// Counts bursts. Whether this packet begins one.
    fn bursts(
        &mut self,
        now_ns: i64,
        gap: i64,
        first: bool,
        spec: Option<&Spec>,
        rules: &Rules,
    ) -> bool {
        let within = match spec.and_then(|spec| spec.period_ns) {
            Some(period) => period / 4,
            None => rules.burst_gap_ns,
        };
        if !first && gap < within {
            self.burst = self.burst.saturating_add(1);
            self.longest_burst = self.longest_burst.max(self.burst);
            return false;
        }
        if !first {
            self.burst_distance.take(now_ns - self.burst_start_ns);
        }
        self.bursts += 1;
        self.burst_start_ns = now_ns;
        self.burst = 1;
        self.longest_burst = self.longest_burst.max(1);
        true
    }

    /// Takes a beat; how far it is behind the earliest ones.
    fn beat(
        &mut self,
        now_ns: i64,
        period: i64,
        by_number: Option<i64>,
        sent_is_known: bool,
    ) -> Option<i64> {
        let Some(due) = self.due_ns else {
            self.due_ns = Some(now_ns);
            self.last_beat_ns = now_ns;
            return Some(0);
        };
        // A time of more than half a period too much is a missing beat; if it was only late, the next one comes right
        // behind it.
        let by_time = || {
            let nearest = (now_ns - self.last_beat_ns + period / 2).div_euclid(period);
            nearest.max(if self.presumed > 0 { 0 } else { 1 })
        };
        let steps = by_number.unwrap_or_else(by_time);
        if steps == 0 {
            self.presumed -= 1;
            self.missing = self.missing.saturating_sub(1);
            self.window.missing = self.window.missing.saturating_sub(1);
            self.last_beat_ns = now_ns;
            return None;
        }
        self.presumed = 0;
        if by_number.is_none() && steps > 1 {
            self.missing += (steps - 1) as u64;
            let missing = u32::try_from(steps - 1).unwrap_or(u32::MAX);
            self.presumed = missing;
            self.window.missing = self.window.missing.saturating_add(missing);
        }
        let expected = steps.saturating_mul(period);
        let deviation = (now_ns - self.last_beat_ns).saturating_sub(expected);
        self.last_beat_ns = now_ns;
        self.deviation.take(deviation.saturating_abs());
        self.last_deviation_ns = Some(deviation.saturating_abs());
        if !sent_is_known {
            // Beats stand for send times: what differs from the period is the difference of transit times.
            let before = self.jitter.transit.unwrap_or(0);
            self.jitter.transit = Some(before);
            self.jitter.take(before.saturating_add(deviation));
        }
        let due = due.saturating_add(expected);
        let shift = now_ns - due;
        // Of short periods it is a part of a nanosecond for each beat.
        let drift = expected
            .saturating_mul(DRIFT_PPM)
            .saturating_add(self.drift_rest.into());
        self.drift_rest = (drift % 1_000_000) as u32;
        self.due_ns = Some(if shift < 0 {
            now_ns
        } else {
            due + shift.min(drift / 1_000_000)
        });
        Some(shift.max(0))
    }

    /// What the figures call for, and which one.
    fn assess(&self, spec: &Spec) -> (Level, Option<Kpi>) {
        let mut worst = (Level::Green, None);
        let mut judge = |kpi: Kpi, value: Option<f64>, limit: Option<f64>| {
            if let (Some(value), Some(limit)) = (value, limit) {
                let level = if value > limit {
                    Level::Red
                } else if value > limit * spec.warn && value > 0.0 {
                    Level::Yellow
                } else {
                    Level::Green
                };
                if level > worst.0 {
                    worst = (level, Some(kpi));
                }
            }
        };
        let nanos = |value: Option<i64>| value.map(|value| value as f64);
        judge(
            Kpi::Delay,
            nanos(self.last_delay_ns),
            nanos(spec.max_delay_ns),
        );
        judge(
            Kpi::Deviation,
            nanos(self.last_deviation_ns),
            nanos(spec.tolerance_ns),
        );
        judge(Kpi::Jitter, self.jitter.now(), nanos(spec.max_jitter_ns));
        judge(Kpi::Loss, self.loss(), spec.max_loss);
        // A burst of the size that is allowed is no warning: sizes are what they are.
        let burst = f64::from(self.burst);
        if spec.max_burst.is_some_and(|max| burst > f64::from(max)) {
            judge(Kpi::Burst, Some(burst), spec.max_burst.map(f64::from));
        }
        worst
    }

    /// Looks at the flow when no packet came: windows end, levels fall, and silence is told.
    pub(crate) fn look(&mut self, now_ns: i64, spec: Option<&Spec>, rules: &Rules) -> Change {
        if now_ns <= self.last_ns {
            return Change::default();
        }
        self.roll(now_ns, rules.window_ns);
        let Some(spec) = spec else {
            return Change::default();
        };
        let is_silent_since = |since_ns: i64| {
            spec.period_ns.is_some_and(|period| {
                // From a beat to the next; within a burst there may be less.
                now_ns - since_ns - period > spec.tolerance_ns.unwrap_or(period)
            })
        };
        if is_silent_since(self.last_ns.max(rules.unseen_ns)) {
            return self.call(Level::Red, Some(Kpi::Silence), now_ns, spec);
        }
        if is_silent_since(self.last_ns) {
            // Or its packets were not seen here: nobody knows, so that the level stays.
            return Change::default();
        }
        self.call(Level::Green, None, now_ns, spec)
    }

    /// Share of packets lost in the present window and the one before, by numbers or, without, by missing beats.
    fn loss(&self) -> Option<f64> {
        let (lost, packets) = (self.window_lost()?, self.window_packets());
        (packets > 0.0).then(|| lost / (lost + packets))
    }

    fn window_packets(&self) -> f64 {
        f64::from(self.window.packets) + f64::from(self.last_window.packets)
    }

    fn window_lost(&self) -> Option<f64> {
        let missing = f64::from(self.window.missing) + f64::from(self.last_window.missing);
        match (&self.sequence, self.due_ns) {
            (Some(_), _) => Some(f64::from(self.window.lost) + f64::from(self.last_window.lost)),
            (None, Some(_)) => Some(missing),
            (None, None) => None,
        }
    }

    /// The present value of a figure, in its base unit.
    pub fn value(&self, kpi: Kpi, now_ns: i64, window_ns: i64) -> Option<f64> {
        let nanos = |value: Option<i64>| value.map(|value| value as f64);
        match kpi {
            Kpi::Delay => nanos(self.last_delay_ns),
            Kpi::Jitter => self.jitter.now(),
            Kpi::Deviation => nanos(self.last_deviation_ns),
            Kpi::Gap => nanos(self.last_gap_ns),
            Kpi::Silence => Some((now_ns - self.last_ns).max(0) as f64),
            Kpi::Loss => self.loss(),
            Kpi::Lost => self.window_lost(),
            Kpi::Missing => self
                .due_ns
                .map(|_| f64::from(self.window.missing) + f64::from(self.last_window.missing)),
            Kpi::Duplicates => self.counted(|s| s.duplicates).map(|count| count as f64),
            Kpi::Reordered => self.counted(|s| s.reordered).map(|count| count as f64),
            Kpi::Burst => Some(f64::from(self.burst)),
            Kpi::Rate => Some(self.last_window.bytes as f64 * 8e9 / window_ns.max(1) as f64),
            Kpi::Packets => Some(f64::from(self.last_window.packets)),
            Kpi::Size => Some(f64::from(self.last_size)),
            Kpi::Level => Some(f64::from(self.level() as u8)),
            // Of who watches, not of a flow.
            Kpi::Backlog | Kpi::Dropped => None,
        }
    }

    /// Everything there is to tell.
    pub fn report(&self, spec: Option<&Spec>) -> FlowReport {
        let is_numbered = !matches!(self.stamp, Stamp::Auto) || self.rtp.is_none() || self.is_rtp();
        let counted = |count: fn(&Sequence) -> u64| self.counted(count).filter(|_| is_numbered);
        let jitters = || {
            let others = self.others.iter().map(|of| &of.jitter);
            std::iter::once(&self.jitter).chain(others)
        };
        let (jitter_sum, jitter_count) = jitters().fold((0.0, 0), |(sum, count), of| {
            (sum + of.sum, count + of.count)
        });
        let believed = self.rtp.is_none() || self.is_rtp() || self.stamp == Stamp::Rtp;
        let spread = |range: &Range, histogram: Option<&Histogram>| {
            // Its steps are coarse: none is beyond what there was.
            let most = u64::try_from(range.max).unwrap_or(0);
            let quantile = |share| Some(histogram?.quantile(share)?.min(most));
            (range.count > 0).then(|| Spread {
                min_ns: range.min,
                mean_ns: range.mean().unwrap_or_default(),
                p50_ns: quantile(0.5),
                p99_ns: quantile(0.99),
                max_ns: range.max,
            })
        };
        let histograms = self.histograms.as_deref();
        let seconds = (self.last_ns - self.first_ns) as f64 / 1e9;
        let carries = match (self.stamp, self.is_rtp()) {
            (Stamp::Auto, true) => Stamp::Rtp,
            (stamp, _) => stamp,
        };
        FlowReport {
            flow: self.key.to_string(),
            spec: spec.map(|spec| spec.name.clone()),
            level: self.level(),
            worst_level: self.worst,
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            packets: self.packets,
            bytes: self.bytes,
            bits_per_second: (seconds > 0.0).then(|| self.bytes as f64 * 8.0 / seconds),
            smallest: self.smallest.min(self.largest),
            largest: self.largest,
            carries: carries.name(),
            delay_by: (self.delay.count > 0).then_some(if self.stamped {
                "stamp"
            } else {
                "shift"
            }),
            delay: spread(&self.delay, histograms.map(|h| &h.delay)),
            gap: spread(&self.gap, histograms.map(|h| &h.gap)),
            jitter_ns: (believed && self.jitter.count > 0).then_some(self.jitter.value),
            max_jitter_ns: (believed && jitter_count > 0)
                .then(|| jitters().map(|of| of.max).fold(0.0, f64::max)),
            mean_jitter_ns: (believed && jitter_count > 0)
                .then(|| jitter_sum / jitter_count as f64),
            mean_deviation_ns: self.deviation.mean(),
            max_deviation_ns: (self.deviation.count > 0).then_some(self.deviation.max),
            lost: counted(|sequence| sequence.lost),
            // A row of before the last one may have come late, too: there are no more than all.
            longest_loss: counted(|sequence| sequence.lost)
                .map(|lost| self.loss_run.max(self.last_loss).min(lost)),
            duplicates: counted(|sequence| sequence.duplicates),
            reordered: counted(|sequence| sequence.reordered),
            restarts: counted(|sequence| sequence.restarts.into())
                .map(|count| u32::try_from(count).unwrap_or(u32::MAX)),
            missing: self.due_ns.map(|_| self.missing),
            bursts: self.bursts,
            longest_burst: self.longest_burst,
            mean_burst: self.packets as f64 / self.bursts.max(1) as f64,
            burst_distance_ns: self.burst_distance.mean(),
            time_back: self.time_back,
        }
    }
}

/// How a time is spread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The smallest.
    pub min_ns: i64,
    /// The mean.
    pub mean_ns: f64,
    /// The median, at most an eighth too large, above 32 s perhaps the largest; none for flows whose distribution is not kept.
    pub p50_ns: Option<u64>,
    /// The 99th percentile, likewise.
    pub p99_ns: Option<u64>,
    /// The largest.
    pub max_ns: i64,
}

/// What there is to tell about a flow. What is unknown is `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowReport {
    /// Its name.
    pub flow: String,
    /// The name of its specification.
    pub spec: Option<String>,
    /// The present level.
    pub level: Level,
    /// The worst that was called for.
    pub worst_level: Level,
    /// The first packet, TAI.
    pub first_ns: i64,
    /// The last packet, TAI.
    pub last_ns: i64,
    /// How many packets.
    pub packets: u64,
    /// How many bytes on the wire, from the link's header on.
    pub bytes: u64,
    /// From the first to the last packet.
    pub bits_per_second: Option<f64>,
    /// The smallest packet, bytes.
    pub smallest: u32,
    /// The largest packet, bytes.
    pub largest: u32,
    /// What its packets carry: `rtp`, `avtp`, `takt`, …
    pub carries: &'static str,
    /// `stamp`, or `shift` for delays beyond the earliest beats.
    pub delay_by: Option<&'static str>,
    /// One-way delay.
    pub delay: Option<Spread>,
    /// Time between two packets.
    pub gap: Option<Spread>,
    /// RFC 3550, at the end.
    pub jitter_ns: Option<f64>,
    /// RFC 3550, the largest.
    pub max_jitter_ns: Option<f64>,
    /// RFC 3550, the mean.
    pub mean_jitter_ns: Option<f64>,
    /// Absolute: time between two beats beside the period.
    pub mean_deviation_ns: Option<f64>,
    /// Likewise, the largest.
    pub max_deviation_ns: Option<i64>,
    /// By sequence numbers.
    pub lost: Option<u64>,
    /// The most packets lost in a row.
    pub longest_loss: Option<u64>,
    /// Packets that came twice.
    pub duplicates: Option<u64>,
    /// Packets that came late.
    pub reordered: Option<u64>,
    /// How many times the sender began anew.
    pub restarts: Option<u32>,
    /// Beats that did not come.
    pub missing: Option<u64>,
    /// How many bursts; a packet alone is one.
    pub bursts: u64,
    /// Packets of the longest one.
    pub longest_burst: u32,
    /// Packets of a burst, the mean.
    pub mean_burst: f64,
    /// From the start of one to the next, the mean.
    pub burst_distance_ns: Option<f64>,
    /// How often the clock of the capture went back.
    pub time_back: u32,
}
