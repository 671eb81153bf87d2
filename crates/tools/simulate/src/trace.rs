//! Packets, when they leave their generators, and of which flow they are.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::Serialize;

use crate::workload::{HEADERS, LONGEST, Pace, Random, SHORTEST, Workload};
use crate::{Refused, mix};

/// The most packets of a trace, 16 bytes each.
pub const MAX_PACKETS: usize = 256_000_000;
/// Flows begin so long before the trace does, so that it shows a network at work.
const BEFORE_NS: f64 = 60e9;
/// The first window of a TCP connection, packets (RFC 6928).
const FIRST_WINDOW: u64 = 10;
/// Flows of which the trace has no packet count too: more of them than this for one packet, and there is none to come.
const MAX_TRIES: u64 = 50_000_000;

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Packet {
    /// When it has left its generator, nanoseconds since the trace began.
    pub at_ns: u64,
    /// Its flow, from 0.
    pub flow: u32,
    /// Bytes of its frame, without the check sequence.
    pub length: u16,
}

/// Packets in the order of their times.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The packets.
    pub packets: Vec<Packet>,
    /// What hashes of flows are made from: one for each flow.
    pub names: Vec<u64>,
    /// What it is.
    pub about: About,
}

/// What a trace is.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct About {
    /// The workload's name, or that of a capture.
    pub source: String,
    /// How its flows send.
    pub pace: Option<Pace>,
    /// Packets.
    pub packets: usize,
    /// Flows of which there is a packet.
    pub flows: usize,
    /// From the first to the last packet, nanoseconds.
    pub duration_ns: u64,
    /// Of all generators together, bit/s.
    pub rate: f64,
    /// Mean frame, bytes.
    pub length: f64,
}

/// Traffic that is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// Whose.
    pub workload: Workload,
    /// How its flows send.
    pub pace: Pace,
    /// How many generators.
    pub generators: usize,
    /// How long, nanoseconds.
    pub duration_ns: u64,
    /// Mean rate of each generator, bit/s.
    pub rate: f64,
    /// Rate of the link that each generator sends on, bit/s.
    pub line: f64,
    /// What determines all random numbers.
    pub seed: u64,
}

impl Trace {
    /// Makes traffic.
    ///
    /// # Errors
    /// [`Refused`], if it would be empty or too much, or a rate makes no sense.
    pub fn generate(spec: &Spec) -> Result<Self, Refused> {
        if !(spec.rate > 0.0 && spec.rate <= 0.9 * spec.line && spec.line <= 1e12) {
            return Err(Refused::Parameter {
                what: "rate",
                value: format!("{:.0} bit/s", spec.rate),
                allowed: "more than 0, at most 90 % of the line's, that at most 1 Tbit/s",
            });
        }
        // The shortest frames there are, to be safe before anything is allocated.
        let most = spec.rate * spec.duration_ns as f64 / 1e9 / (8.0 * f64::from(SHORTEST));
        if most * spec.generators as f64 > 20.0 * MAX_PACKETS as f64 {
            return Err(Refused::Packets);
        }
        let (mut packets, mut names) = (Vec::new(), Vec::new());
        for generator in 0..spec.generators {
            let seed = mix(spec.seed ^ mix(generator as u64));
            let mut random = Random(ChaCha8Rng::seed_from_u64(seed));
            let mut own = Vec::new();
            match spec.workload {
                Workload::Vehicle => vehicle(spec, &mut random, &mut own, &mut names)?,
                _ => flows(spec, &mut random, &mut own, &mut names)?,
            }
            own.sort_unstable();
            serialise(&mut own, spec.line);
            if packets.len() + own.len() > MAX_PACKETS {
                return Err(Refused::Packets);
            }
            packets.extend(own);
        }
        Self::new(
            packets,
            names,
            spec.workload.name().to_owned(),
            Some(spec.pace),
        )
    }

    /// Of packets in any order. `names` has something for each flow that its hashes are made from.
    ///
    /// # Errors
    /// [`Refused`], if there are none or too many.
    pub fn new(
        mut packets: Vec<Packet>,
        names: Vec<u64>,
        source: String,
        pace: Option<Pace>,
    ) -> Result<Self, Refused> {
        if packets.len() > MAX_PACKETS {
            return Err(Refused::Packets);
        }
        packets.sort_unstable();
        let (Some(first), Some(last)) = (packets.first(), packets.last()) else {
            return Err(Refused::Empty);
        };
        let duration_ns = last.at_ns - first.at_ns;
        let bytes: u64 = packets.iter().map(|packet| u64::from(packet.length)).sum();
        let about = About {
            source,
            pace,
            packets: packets.len(),
            flows: names.len(),
            duration_ns,
            rate: bytes as f64 * 8e9 / duration_ns.max(1) as f64,
            length: bytes as f64 / packets.len() as f64,
        };
        Ok(Self {
            packets,
            names,
            about,
        })
    }
}

impl About {
    /// Billion instructions a second that each node has to do on average, by table II of the paper.
    pub fn demand(&self, nodes: usize) -> f64 {
        let payload = (self.length - f64::from(HEADERS)).max(0.0);
        let instructions = 0.9 * 4500.0 + 0.1 * (1250.0 + 50.0 * payload);
        let packets = self.packets as f64 / self.duration_ns.max(1) as f64;
        packets * instructions / nodes.max(1) as f64
    }
}

/// A link sends one packet after the other.
fn serialise(packets: &mut [Packet], line: f64) {
    let mut free_ns = 0;
    for packet in packets {
        // Preamble, check sequence, gap between frames (IEEE 802.3): 24 bytes.
        let takes = (f64::from(packet.length) + 24.0) * 8e9 / line;
        free_ns = packet.at_ns.max(free_ns) + takes as u64;
        packet.at_ns = free_ns;
    }
}

/// Flows that begin at any instant, until they carry what the generator is to send.
fn flows(
    spec: &Spec,
    random: &mut Random,
    packets: &mut Vec<Packet>,
    names: &mut Vec<u64>,
) -> Result<(), Refused> {
    let end = spec.duration_ns as f64;
    let wanted = (spec.rate * end / 8e9) as u64;
    let (mut bytes, mut tries) = (0, 0);
    while bytes < wanted {
        tries += 1;
        if tries > MAX_TRIES || names.len() > u32::MAX as usize / 2 {
            return Err(Refused::Packets);
        }
        let begins = random.unit() * (BEFORE_NS + end) - BEFORE_NS;
        let count = spec.workload.packets(random);
        let before = packets.len();
        let flow = names.len() as u32;
        send(spec, random, begins, count, flow, packets);
        if packets.len() > before {
            names.push(mix(spec.seed ^ random.below(u64::MAX)));
            let sent = &packets[before..];
            bytes += sent
                .iter()
                .map(|packet| u64::from(packet.length))
                .sum::<u64>();
        }
        if packets.len() > MAX_PACKETS {
            return Err(Refused::Packets);
        }
    }
    Ok(())
}

/// The packets of one flow within the trace: windows that double with each round trip until they fill the bottleneck,
/// at the bottleneck's rate. Two flows of five only acknowledge, one packet for two of the other direction.
fn send(
    spec: &Spec,
    random: &mut Random,
    begins: f64,
    count: u64,
    flow: u32,
    packets: &mut Vec<Packet>,
) {
    let pace = &spec.pace;
    let end = spec.duration_ns as f64;
    let rate =
        random.log_normal(pace.rate, pace.rate_spread) * (count as f64 / 100.0).powf(pace.growth);
    let rate = rate.clamp(1e3, pace.rate_most);
    let round_trip = random.log_normal(pace.round_trip_ns, 0.6);
    let acknowledges = random.below(5) < 2;
    let last = SHORTEST + random.below(u64::from(LONGEST - SHORTEST)) as u16;
    let full = f64::from(LONGEST) * 8e9 / rate;
    let spacing = if acknowledges { 2.0 * full } else { full };
    let fills = (round_trip / spacing).max(1.0) as u64;
    let (mut at, mut sent, mut window) = (begins, 0, FIRST_WINDOW);
    while sent < count && at < end {
        let (burst, next) = match window >= fills {
            // It never pauses again.
            true => (count - sent, f64::INFINITY),
            false => (window.min(count - sent), at + round_trip),
        };
        // What was before the trace is only counted.
        let skipped = ((-at / spacing).ceil().max(0.0) as u64).min(burst);
        for number in skipped..burst {
            let when = at + number as f64 * spacing;
            if when >= end {
                break;
            }
            let length = match (acknowledges, sent + number + 1 == count) {
                (true, _) => SHORTEST + 6,
                (false, true) => last,
                (false, false) => LONGEST,
            };
            packets.push(Packet {
                at_ns: when as u64,
                flow,
                length,
            });
        }
        sent += burst;
        at = next;
        window = window.saturating_mul(2);
    }
}

/// Period, packets of a burst, bytes of a frame, and how many of ten flows are so.
const DEVICES: [(u64, u64, u16, u64); 4] = [
    // A camera: 60 frames a second, 30 to 40 Mbit/s compressed.
    (16_666_667, 50, 1460, 3),
    // A lidar: 754 packets a second of 1206 bytes (Velodyne VLP-16), times the sensors behind one unit.
    (1_326_260, 4, 1248, 3),
    // A control loop.
    (10_000_000, 1, 256, 3),
    // Audio of AVB class A, aggregated.
    (1_000_000, 1, 300, 1),
];

/// Devices that send for ever, as many as make the rate.
fn vehicle(
    spec: &Spec,
    random: &mut Random,
    packets: &mut Vec<Packet>,
    names: &mut Vec<u64>,
) -> Result<(), Refused> {
    let mut rate = 0.0;
    while rate < spec.rate {
        let mut kind = random.below(10);
        let device = DEVICES.iter().find(|device| {
            let found = kind < device.3;
            kind = kind.saturating_sub(device.3);
            found
        });
        let (period, burst, length, _) = *device.unwrap_or(&DEVICES[0]);
        let flow = names.len() as u32;
        names.push(mix(spec.seed ^ random.below(u64::MAX)));
        rate += (burst * u64::from(length)) as f64 * 8e9 / period as f64;
        let spacing = u64::from(length + HEADERS) * 8; // at 1 Gbit/s
        let mut beat = random.below(period);
        while beat < spec.duration_ns {
            for number in 0..burst {
                let at_ns = beat + number * spacing;
                packets.push(Packet {
                    at_ns,
                    flow,
                    length,
                });
            }
            beat += period;
        }
        if packets.len() > MAX_PACKETS {
            return Err(Refused::Packets);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(workload: Workload) -> Spec {
        Spec {
            workload,
            pace: workload.pace(),
            generators: 2,
            duration_ns: 200_000_000,
            rate: 500e6,
            line: 10e9,
            seed: 7,
        }
    }

    #[test]
    fn every_workload_has_the_rate_that_was_asked_for_in_order_and_no_faster_than_the_line() {
        for workload in Workload::ALL {
            let trace = Trace::generate(&spec(workload)).expect("traffic");
            let name = workload.name();
            assert!(
                trace.packets.is_sorted_by_key(|packet| packet.at_ns),
                "{name}"
            );
            let rate = trace.about.rate;
            assert!((0.8e9..1.5e9).contains(&rate), "{name}: {rate}");
            for packet in &trace.packets {
                assert!((packet.flow as usize) < trace.names.len(), "{name}");
                assert!((SHORTEST..=LONGEST).contains(&packet.length), "{name}");
            }
            // Two lines of 10 Gbit/s: no three full frames within 1.2 µs of each other's end.
            let close = trace.packets.windows(3).filter(|three| {
                three.iter().all(|packet| packet.length > 1400)
                    && three[2].at_ns - three[0].at_ns < 1200
            });
            assert_eq!(close.count(), 0, "{name}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_trace_and_another_one_another() {
        let one = Trace::generate(&spec(Workload::Internet)).expect("traffic");
        let same = Trace::generate(&spec(Workload::Internet)).expect("traffic");
        assert_eq!(one.packets, same.packets);
        assert_eq!(one.names, same.names);
        let mut other = spec(Workload::Internet);
        other.seed = 8;
        assert_ne!(
            one.packets,
            Trace::generate(&other).expect("traffic").packets
        );
    }

    #[test]
    fn what_is_too_much_or_nothing_is_refused_before_memory_is_taken() {
        let refused = |change: &dyn Fn(&mut Spec)| {
            let mut spec = spec(Workload::Internet);
            change(&mut spec);
            Trace::generate(&spec).expect_err("refused").to_string()
        };
        assert!(refused(&|spec| spec.rate = 9.5e9).contains("at most 90 %"));
        assert!(refused(&|spec| spec.rate = f64::NAN).contains("more than 0"));
        assert!(refused(&|spec| spec.duration_ns = 1 << 50).contains("shorten --duration"));
        let empty = Trace::new(Vec::new(), Vec::new(), String::new(), None);
        assert_eq!(empty.err(), Some(Refused::Empty));
    }
}
