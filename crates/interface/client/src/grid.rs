//! When datagrams without a launch time leave, for programs that name none: the rules of `takt preload --grid` and
//! `--all`, as its command line and the preload's environment have them.
//!
//! `CYCLE[+OFFSET][,to=ADDRESS[/LENGTH]][,port=PORT][,class=CLASS][,lead=TIME]`, or `now` in place of the cycle; several are
//! separated by `;`.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use takt_time::{TaiTime, TrafficClass};

/// The shortest cycle, in nanoseconds.
const SHORTEST: i64 = 1_000;
/// The longest cycle and lead, in nanoseconds: together less than the 60 s that a runtime keeps messages for.
const LONGEST: i64 = 10_000_000_000;
/// How long before its instant a datagram is sent at the latest, if nobody says otherwise, in nanoseconds.
const LEAD: i64 = 500_000;

/// Instants of TAI that are `offset` behind whole multiples of `cycle` since its epoch, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    cycle: i64,
    offset: i64,
    lead: i64,
}

impl Grid {
    /// The instant for what is sent at `now`: the first one that is no nearer than the lead. The same for all that are sent
    /// within a cycle, and never an earlier one for what is sent later.
    pub fn instant(&self, now: TaiTime) -> TaiTime {
        let earliest = now.as_nanos().saturating_add(self.lead);
        // What is missing to the next instant; 0 on one.
        let missing = self.offset.wrapping_sub(earliest).rem_euclid(self.cycle);
        TaiTime::from_nanos(earliest.saturating_add(missing))
    }
}

/// When a datagram without a launch time leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// As soon as its class may.
    Now,
    /// At the next instant of a cycle.
    Cycle(Grid),
}

impl When {
    /// The launch time of what is sent at `now`; `None`: it has none.
    pub fn launch(&self, now: TaiTime) -> Option<TaiTime> {
        match self {
            Self::Now => None,
            Self::Cycle(grid) => Some(grid.instant(now)),
        }
    }
}

/// When datagrams leave, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// When they leave.
    pub when: When,
    to: Option<(IpAddr, u8)>,
    port: Option<u16>,
    class: Option<TrafficClass>,
}

impl Rule {
    /// Whether it is for datagrams of this class to this destination.
    pub fn holds_for(&self, destination: SocketAddr, class: TrafficClass) -> bool {
        self.to
            .is_none_or(|prefix| is_within(prefix, destination.ip()))
            && self.port.is_none_or(|port| port == destination.port())
            && self.class.is_none_or(|wanted| wanted == class)
    }
}

fn is_within((prefix, length): (IpAddr, u8), address: IpAddr) -> bool {
    let (differing, bits) = match (prefix, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits() ^ b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits(), 128),
        _ => return false,
    };
    // A prefix of no bits is of all addresses.
    differing.checked_shr(bits - u32::from(length)).unwrap_or(0) == 0
}

/// What is wrong with a rule, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the grid {rule:?} {what}: a rule is CYCLE[+OFFSET][,to=ADDRESS[/LENGTH]][,port=PORT][,class=CLASS][,lead=TIME], as in \"1ms+250us,port=5001\", or has \"now\" for the cycle"
)]
pub struct BadRule {
    rule: String,
    what: String,
}

/// Reads rules that are separated by `;`.
///
/// # Errors
/// [`BadRule`] for the first one that is none.
pub fn rules(text: &str) -> Result<Vec<Rule>, BadRule> {
    text.split(';')
        .map(str::trim)
        .filter(|rule| !rule.is_empty())
        .map(str::parse)
        .collect()
}

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        parse(text).map_err(|what| BadRule {
            rule: text.to_owned(),
            what,
        })
    }
}

fn parse(text: &str) -> Result<Rule, String> {
    let (times, conditions) = text
        .split_once(',')
        .map_or((text, None), |(a, b)| (a, Some(b)));
    let mut grid = match times {
        "now" => None,
        times => Some(cycle(times)?),
    };
    let (mut to, mut port, mut class) = (None, None, None);
    let mut said = Vec::new();
    for condition in conditions.into_iter().flat_map(|all| all.split(',')) {
        let (key, value) = condition
            .split_once('=')
            .ok_or_else(|| format!("has {condition:?}, which is no KEY=VALUE"))?;
        if said.contains(&key) {
            return Err(format!("says {key} twice"));
        }
        said.push(key);
        let none = |kind| format!("has {value:?}, which is no {kind}");
        match key {
            "to" => to = Some(prefix(value).ok_or_else(|| none("address or prefix"))?),
            "port" => {
                let number = value.parse().ok().filter(|port| *port != 0);
                port = Some(number.ok_or_else(|| none("port"))?);
            }
            "class" => {
                let number = value.parse().ok().and_then(TrafficClass::new);
                class = Some(number.ok_or_else(|| none("traffic class (0 to 7)"))?);
            }
            "lead" => {
                let grid = grid.as_mut().ok_or("has a lead, but no cycle")?;
                grid.lead = time(value)?;
                if grid.lead > LONGEST {
                    return Err("has a lead that is longer than 10s".into());
                }
            }
            key => {
                return Err(format!(
                    "has {key:?}, which is none of to, port, class, lead"
                ));
            }
        }
    }
    Ok(Rule {
        when: grid.map_or(When::Now, When::Cycle),
        to,
        port,
        class,
    })
}

fn cycle(text: &str) -> Result<Grid, String> {
    let (cycle, offset) = text.split_once('+').unwrap_or((text, "0ns"));
    let (cycle, offset) = (time(cycle)?, time(offset)?);
    if !(SHORTEST..=LONGEST).contains(&cycle) {
        return Err("has a cycle that is shorter than 1us or longer than 10s".into());
    }
    if offset >= cycle {
        return Err("has an offset that is not within its cycle".into());
    }
    Ok(Grid {
        cycle,
        offset,
        lead: LEAD,
    })
}

/// A whole number with a unit, in nanoseconds.
fn time(text: &str) -> Result<i64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ns" => Some(1),
        "us" => Some(1_000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        _ => None,
    };
    let number = number.parse::<i64>().ok();
    number
        .zip(factor)
        .and_then(|(number, factor)| number.checked_mul(factor))
        .ok_or_else(|| format!("has {text:?}, which is no time with a unit (ns, us, ms, s)"))
}

/// An address, or a prefix of addresses without bits behind it.
fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text
        .split_once('/')
        .map_or((text, None), |(a, b)| (a, Some(b)));
    let address: IpAddr = address.parse().ok()?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        Some(length) => length.parse().ok().filter(|length| *length <= bits)?,
        None => bits,
    };
    Some((address, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(text: &str) -> Rule {
        text.parse().expect(text)
    }

    fn grid(text: &str) -> Grid {
        match rule(text).when {
            When::Cycle(grid) => grid,
            When::Now => panic!("{text} has no cycle"),
        }
    }

    fn class(number: u8) -> TrafficClass {
        TrafficClass::new(number).expect("a class")
    }

    #[test]
    fn a_rule_is_a_cycle_and_what_is_snapped_to_it() {
        let plain = rule("1ms");
        let cycle = grid("1ms");
        assert_eq!((cycle.cycle, cycle.offset), (1_000_000, 0));
        assert_eq!(cycle.lead, LEAD);
        let text = "2s+250us,to=10.1.0.0/16,port=5001,class=5,lead=0ns";
        let (all, cycle) = (rule(text), grid(text));
        assert_eq!(cycle.cycle, 2_000_000_000);
        assert_eq!((cycle.offset, cycle.lead), (250_000, 0));
        let holds =
            |to: &str, number| all.holds_for(to.parse().expect("an address"), class(number));
        assert!(holds("10.1.2.3:5001", 5));
        assert!(!holds("10.2.2.3:5001", 5) && !holds("10.1.2.3:5002", 5));
        assert!(!holds("10.1.2.3:5001", 4) && !holds("[fd00::1]:5001", 5));
        assert!(plain.holds_for("[fd00::1]:9".parse().expect("an address"), class(0)));
    }

    #[test]
    fn a_rule_without_a_cycle_has_no_launch_time() {
        let now = rule("now,port=5001");
        assert_eq!(now.when.launch(TaiTime::from_nanos(7)), None);
        let holds = |to: &str| now.holds_for(to.parse().expect("an address"), class(0));
        assert!(holds("10.0.0.1:5001") && !holds("10.0.0.1:5002"));
    }

    #[test]
    fn prefixes_are_of_either_version_and_of_any_length() {
        for (prefix, within, beyond) in [
            ("0.0.0.0/0", "203.0.113.9:1", "[::1]:1"),
            ("10.0.0.1", "10.0.0.1:1", "10.0.0.2:1"),
            ("10.0.0.0/31", "10.0.0.1:1", "10.0.0.2:1"),
            ("::/0", "[fd00::1]:1", "0.0.0.0:1"),
            ("fd00::/8", "[fdff::1]:1", "[fe00::1]:1"),
            ("fd00::1/128", "[fd00::1]:1", "[fd00::2]:1"),
        ] {
            let rule = rule(&format!("1ms,to={prefix}"));
            let holds = |to: &str| rule.holds_for(to.parse().expect("an address"), class(0));
            assert!(holds(within) && !holds(beyond), "{prefix}");
        }
    }

    #[test]
    fn what_is_no_rule_is_refused_by_name() {
        for (text, word) in [
            ("", "no time"),
            ("1", "\"1\""),
            ("1m", "\"1m\""),
            ("-1ms", "\"-1ms\""),
            ("99999999999999999999s", "no time"),
            ("9999999999999s", "no time"),
            ("0ms", "shorter"),
            ("999ns", "shorter"),
            ("11s", "longer"),
            ("1ms+1ms", "offset"),
            ("1ms+", "no time"),
            ("1ms,", "KEY=VALUE"),
            ("1ms,port", "KEY=VALUE"),
            ("1ms,port=0", "no port"),
            ("1ms,port=65536", "no port"),
            ("1ms,class=8", "class"),
            ("1ms,to=10.0.0.0/33", "prefix"),
            ("1ms,to=here", "address"),
            ("1ms,lead=11s", "lead"),
            ("1ms,from=10.0.0.1", "\"from\""),
            ("1ms,port=1,port=2", "twice"),
            ("now,lead=1ms", "no cycle"),
            ("now+1ms", "\"now\""),
        ] {
            let error = text.parse::<Rule>().expect_err(text).to_string();
            assert!(
                error.contains(word) && error.contains("CYCLE[+OFFSET]"),
                "{error}"
            );
        }
    }

    #[test]
    fn rules_are_several() {
        let all = rules("1ms,port=1; 2ms+1us,class=3;").expect("two rules");
        assert_eq!(all, [rule("1ms,port=1"), rule("2ms+1us,class=3")]);
        assert_eq!(rules(" ; "), Ok(vec![]));
        assert!(rules("1ms;;x").is_err());
    }

    proptest! {
        #[test]
        fn an_instant_is_the_first_on_the_grid_that_is_far_enough_ahead(
            cycle in SHORTEST..=LONGEST,
            part in 0.0..1.0f64,
            lead in 0..=LONGEST,
            now in 0..i64::MAX / 2,
        ) {
            let offset = (part * cycle as f64) as i64;
            let grid = Grid { cycle, offset, lead };
            let instant = grid.instant(TaiTime::from_nanos(now)).as_nanos();
            prop_assert_eq!((instant - offset).rem_euclid(cycle), 0);
            prop_assert!((now + lead..now + lead + cycle).contains(&instant));
            let later = grid.instant(TaiTime::from_nanos(now + 1)).as_nanos();
            prop_assert!(later == instant || later == instant + cycle);
        }

        #[test]
        fn no_instant_makes_it_overflow(now: i64) {
            grid("10s+9s,lead=10s").instant(TaiTime::from_nanos(now));
        }

        #[test]
        fn no_text_makes_it_panic(text in "[0-9a-z+,=./:;]{0,40}") {
            let _ = rules(&text);
        }
    }
}
