//! What traffic is made from: published distributions of the length of flows, and how flows send.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use serde::Serialize;

/// Bytes on the wire beside the payload of a full packet: Ethernet, IPv4, TCP.
pub const HEADERS: u16 = 54;
/// The longest frame, without its check sequence.
pub const LONGEST: u16 = 1514;
/// The shortest frame, without its check sequence.
pub const SHORTEST: u16 = 60;

/// Whose traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Flows of a campus at its Internet border, four billion of them: the mixture fitted by Jurkiewicz, Rzym and Boryło,
    /// "Flow length and size distributions in campus Internet traffic", Computer Communications 167 (2021).
    Internet,
    /// Web search in a data centre: Alizadeh et al., "Data center TCP (DCTCP)", SIGCOMM 2010, as in pFabric (2013).
    WebSearch,
    /// Data mining in a data centre: Greenberg et al., "VL2", SIGCOMM 2009, as in pFabric (2013).
    DataMining,
    /// A vehicle: cameras, lidars and control loops, after Migge et al., "Insights on the performance and configuration
    /// of AVB and TSN in automotive Ethernet networks", ERTS 2018, and Pannell et al., "Use cases - IEEE P802.1DG".
    Vehicle,
}

/// How flows of a workload send, where its source says nothing about it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pace {
    /// Median of the rate of flows of 100 packets, bit/s.
    pub rate: f64,
    /// Standard deviation of rates, in the logarithm.
    pub rate_spread: f64,
    /// Long flows are fast ones: the median grows with this power of the length. Rates that are log-normal, and correlated
    /// with sizes, are what Zhang et al. found ("On the characteristics and origins of Internet flow rates", SIGCOMM 2002).
    pub growth: f64,
    /// The fastest one, bit/s.
    pub rate_most: f64,
    /// Median round trip, nanoseconds; log-normal.
    pub round_trip_ns: f64,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Internet,
        Self::WebSearch,
        Self::DataMining,
        Self::Vehicle,
    ];

    /// As the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Internet => "internet",
            Self::WebSearch => "web-search",
            Self::DataMining => "data-mining",
            Self::Vehicle => "vehicle",
        }
    }

    /// How its flows send unless said.
    pub fn pace(self) -> Pace {
        match self {
            Self::Internet => Pace {
                rate: 5e6,
                rate_spread: 1.0,
                growth: 0.5,
                rate_most: 1e9,
                round_trip_ns: 40e6,
            },
            Self::WebSearch | Self::DataMining | Self::Vehicle => Pace {
                rate: 200e6,
                rate_spread: 0.7,
                growth: 0.0,
                rate_most: 1e9,
                round_trip_ns: 200e3,
            },
        }
    }

    /// Packets of a flow. Not for [`Workload::Vehicle`], whose flows do not end.
    pub(crate) fn packets(self, random: &mut Random) -> u64 {
        match self {
            Self::Internet => mixture(random),
            Self::WebSearch => steps(&WEB_SEARCH, random),
            Self::DataMining | Self::Vehicle => steps(&DATA_MINING, random),
        }
    }
}

/// Share, and the largest of a uniform distribution of 1 to it. Mixture `all/length/flows` of the data published with the paper
/// (github.com/piotrjurkiewicz/flow-models), rounded to four places.
const SHORT: [(f64, u64); 6] = [
    (0.3050, 1),
    (0.2484, 2),
    (0.0637, 3),
    (0.0492, 4),
    (0.0093, 5),
    (0.0822, 6),
];
/// Share, standard deviation of the logarithm, median.
const LONG: [(f64, f64, f64); 4] = [
    (0.1313, 0.5207, 7.8056),
    (0.0733, 0.7701, 22.1097),
    (0.0293, 1.1253, 128.6452),
    (0.0083, 1.9838, 1084.4708),
];

fn mixture(random: &mut Random) -> u64 {
    let mut left = random.unit();
    for (share, most) in SHORT {
        if left < share {
            return 1 + random.below(most);
        }
        left -= share;
    }
    for (share, spread, median) in LONG {
        if left < share {
            return random.log_normal(median, spread).round().max(1.0) as u64;
        }
        left -= share;
    }
    1
}

/// Packets of 1460 bytes, and the share of flows that have at most as many.
const WEB_SEARCH: [(f64, f64); 12] = [
    (1.0, 0.0),
    (6.0, 0.15),
    (13.0, 0.2),
    (19.0, 0.3),
    (33.0, 0.4),
    (53.0, 0.53),
    (133.0, 0.6),
    (667.0, 0.7),
    (1333.0, 0.8),
    (3333.0, 0.9),
    (6667.0, 0.97),
    (20000.0, 1.0),
];
const DATA_MINING: [(f64, f64); 9] = [
    (1.0, 0.0),
    (1.0, 0.5),
    (2.0, 0.6),
    (3.0, 0.7),
    (7.0, 0.8),
    (267.0, 0.9),
    (2107.0, 0.95),
    (66667.0, 0.99),
    (666_667.0, 1.0),
];

fn steps(steps: &[(f64, f64)], random: &mut Random) -> u64 {
    let share = random.unit();
    let mut before = (1.0, 0.0);
    for step in steps {
        if share < step.1 {
            let part = (share - before.1) / (step.1 - before.1);
            return (before.0 + part * (step.0 - before.0)).round() as u64;
        }
        before = *step;
    }
    before.0 as u64
}

/// Random numbers that a seed determines.
pub(crate) struct Random(pub(crate) ChaCha8Rng);

impl Random {
    /// 0 up to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// 0 up to a bound.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// By Box and Muller.
    pub(crate) fn log_normal(&mut self, median: f64, spread: f64) -> f64 {
        let (one, two) = (1.0 - self.unit(), self.unit());
        let normal = (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * two).cos();
        median * (spread * normal).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::rand_core::SeedableRng;

    fn sorted(workload: Workload) -> Vec<u64> {
        let mut random = Random(ChaCha8Rng::seed_from_u64(1));
        let mut lengths: Vec<u64> = (0..400_000)
            .map(|_| workload.packets(&mut random))
            .collect();
        lengths.sort_unstable();
        lengths
    }

    fn share_up_to(lengths: &[u64], most: u64) -> f64 {
        lengths.partition_point(|length| *length <= most) as f64 / lengths.len() as f64
    }

    /// The paper's table 2: 47.1 % of flows are of one packet... of the mixture itself: 0.305 + 0.248/2 + 0.064/3 +
    /// 0.049/4 + 0.009/5 + 0.082/6 and a little of the first log-normal one.
    #[test]
    fn internet_flows_are_mostly_short_and_packets_mostly_of_long_ones() {
        let lengths = sorted(Workload::Internet);
        assert!((share_up_to(&lengths, 1) - 0.478).abs() < 0.005);
        assert!((share_up_to(&lengths, 6) - 0.806).abs() < 0.01);
        let sum: u64 = lengths.iter().sum();
        let mean = sum as f64 / lengths.len() as f64;
        // 316,857,594,090 packets of 4,032,376,751 flows are 78.6; four hundred thousand flows have a wide sample mean.
        assert!((50.0..110.0).contains(&mean), "{mean}");
        let top: u64 = lengths[lengths.len() * 99 / 100..].iter().sum();
        assert!(top as f64 > 0.7 * sum as f64, "{top} of {sum}");
    }

    #[test]
    fn data_centre_flows_have_the_published_shares() {
        let web = sorted(Workload::WebSearch);
        assert!((share_up_to(&web, 53) - 0.53).abs() < 0.005);
        assert!((share_up_to(&web, 3333) - 0.9).abs() < 0.005);
        let mining = sorted(Workload::DataMining);
        assert!((share_up_to(&mining, 1) - 0.55).abs() < 0.06);
        assert!((share_up_to(&mining, 267) - 0.9).abs() < 0.005);
        assert_eq!(mining.last().map(|last| *last > 600_000), Some(true));
    }
}
