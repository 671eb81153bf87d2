//! Rules: a condition over a flow's figures, and what is to happen while it holds.
//!
//! The language is total: an expression is a finite tree of comparisons, evaluated in one pass, and every figure has a
//! value or is unknown. A comparison with an unknown figure is unknown (Kleene's logic), and an unknown condition does
//! not hold. [`check`] finds conditions that never or always hold and rules that contradict each other.

use std::fmt;

use crate::level::Level;
use crate::pattern::Pattern;
use crate::quantity::Unit;

mod check;
mod parse;

pub use check::{Finding, Severity, check};
pub use parse::NoExpression;

/// A figure of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kpi {
    /// One-way delay of the last packet, or the shift of the last beat where nothing tells when it was sent.
    Delay,
    /// Interarrival jitter (RFC 3550, section 6.4.1).
    Jitter,
    /// How far the last time between two beats was from the period.
    Deviation,
    /// The last time between two packets.
    Gap,
    /// Since the last packet.
    Silence,
    /// Share of lost packets in the present window and the one before.
    Loss,
    /// Lost packets in the same windows.
    Lost,
    /// Missing beats in the same windows.
    Missing,
    /// Packets that came twice, since the flow began.
    Duplicates,
    /// Packets that came late, since the flow began.
    Reordered,
    /// Packets of the present burst.
    Burst,
    /// Bits per second of the last whole window.
    Rate,
    /// Packets of the last whole window.
    Packets,
    /// Bytes of the last packet.
    Size,
    /// How far behind the packets that came is who watches them.
    Backlog,
    /// Packets that came faster than they were watched, in the same windows.
    Dropped,
    /// The warning level.
    Level,
}

impl Kpi {
    /// All, in the order of the reference.
    pub const ALL: [Self; 17] = [
        Self::Delay,
        Self::Jitter,
        Self::Deviation,
        Self::Gap,
        Self::Silence,
        Self::Loss,
        Self::Lost,
        Self::Missing,
        Self::Duplicates,
        Self::Reordered,
        Self::Burst,
        Self::Rate,
        Self::Packets,
        Self::Size,
        Self::Backlog,
        Self::Dropped,
        Self::Level,
    ];

    /// As rules have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Jitter => "jitter",
            Self::Deviation => "deviation",
            Self::Gap => "gap",
            Self::Silence => "silence",
            Self::Loss => "loss",
            Self::Lost => "lost",
            Self::Missing => "missing",
            Self::Duplicates => "duplicates",
            Self::Reordered => "reordered",
            Self::Burst => "burst",
            Self::Rate => "rate",
            Self::Packets => "packets",
            Self::Size => "size",
            Self::Backlog => "backlog",
            Self::Dropped => "dropped",
            Self::Level => "level",
        }
    }

    /// What it measures; a level has none.
    pub fn unit(self) -> Option<Unit> {
        Some(match self {
            Self::Delay | Self::Jitter | Self::Deviation | Self::Gap | Self::Silence => Unit::Time,
            Self::Backlog => Unit::Time,
            Self::Loss => Unit::Ratio,
            Self::Rate => Unit::Rate,
            Self::Size => Unit::Size,
            Self::Level => return None,
            _ => Unit::Count,
        })
    }

    /// A value as people write it.
    pub fn write(self, value: f64) -> String {
        self.write_by(value, Unit::write)
    }

    /// A value with all its digits.
    pub fn write_exactly(self, value: f64) -> String {
        self.write_by(value, Unit::write_exactly)
    }

    fn write_by(self, value: f64, write: impl Fn(Unit, f64) -> String) -> String {
        match self.unit() {
            Some(unit) => write(unit, value),
            None => Level::ALL
                .get(value as usize)
                .copied()
                .unwrap_or(Level::Red)
                .to_string(),
        }
    }
}

/// How a figure is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    More,
    /// `>=`
    AtLeast,
    /// `==`
    Equal,
    /// `!=`
    Unequal,
}

impl Operator {
    fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Self::Less => left < right,
            Self::AtMost => left <= right,
            Self::More => left > right,
            Self::AtLeast => left >= right,
            Self::Equal => left == right,
            Self::Unequal => left != right,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::More => ">",
            Self::AtLeast => ">=",
            Self::Equal => "==",
            Self::Unequal => "!=",
        }
    }
}

/// A condition.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// A figure beside a value in the figure's base unit (nanoseconds, bit per second, bytes, shares of one).
    Compare(Kpi, Operator, f64),
    /// Not the condition.
    Not(Box<Self>),
    /// All conditions.
    All(Vec<Self>),
    /// At least one.
    Any(Vec<Self>),
}

impl Expression {
    /// Whether it holds; `None` where a figure that decides is unknown.
    pub fn evaluate(&self, value: &impl Fn(Kpi) -> Option<f64>) -> Option<bool> {
        match self {
            Self::Compare(kpi, operator, right) => {
                value(*kpi).map(|left| operator.holds(left, *right))
            }
            Self::Not(inner) => inner.evaluate(value).map(|holds| !holds),
            Self::All(parts) => Self::fold(parts, value, false),
            Self::Any(parts) => Self::fold(parts, value, true),
        }
    }

    /// `decisive` as soon as a part is it; else unknown if one is; else its opposite.
    fn fold(parts: &[Self], value: &impl Fn(Kpi) -> Option<f64>, decisive: bool) -> Option<bool> {
        let mut answer = Some(!decisive);
        for part in parts {
            match part.evaluate(value) {
                Some(holds) if holds == decisive => return Some(decisive),
                Some(_) => {}
                None => answer = None,
            }
        }
        answer
    }

    /// Visits every comparison.
    fn visit(&self, see: &mut impl FnMut(Kpi, f64)) {
        match self {
            Self::Compare(kpi, _, value) => see(*kpi, *value),
            Self::Not(inner) => inner.visit(see),
            Self::All(parts) | Self::Any(parts) => parts.iter().for_each(|part| part.visit(see)),
        }
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, parts: &[Self], word: &str| {
            for (at, part) in parts.iter().enumerate() {
                if at > 0 {
                    write!(f, " {word} ")?;
                }
                match part {
                    Self::Compare(..) | Self::Not(_) => write!(f, "{part}")?,
                    _ => write!(f, "({part})")?,
                }
            }
            Ok(())
        };
        match self {
            Self::Compare(kpi, operator, value) => {
                write!(
                    f,
                    "{} {} {}",
                    kpi.name(),
                    operator.name(),
                    kpi.write_exactly(*value)
                )
            }
            Self::Not(inner) => write!(f, "not ({inner})"),
            Self::All(parts) => list(f, parts, "and"),
            Self::Any(parts) => list(f, parts, "or"),
        }
    }
}

/// What a rule does while its condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Tells when it begins and ends.
    Event,
    /// Is a metric: 1 while it holds, and how often it began.
    Metric,
    /// Writes the flow's packets to a file.
    Mirror,
    /// Sends a message to load management when it begins and ends.
    Control,
    /// Has another datapath carry the flow's streams.
    Remap,
    /// Has the sessions that write or read the flow leave their lanes, when it begins.
    Move,
}

impl Action {
    /// As rules have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Metric => "metric",
            Self::Mirror => "mirror",
            Self::Control => "control",
            Self::Remap => "remap",
            Self::Move => "move",
        }
    }

    /// By its name.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [
            Self::Event,
            Self::Metric,
            Self::Mirror,
            Self::Control,
            Self::Remap,
            Self::Move,
        ];
        all.into_iter().find(|action| action.name() == name)
    }
}

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// For people and metrics.
    pub name: String,
    /// For which flows, each by itself.
    pub pattern: Pattern,
    /// When it begins.
    pub when: Expression,
    /// When it ends; without, when `when` no longer holds.
    pub until: Option<Expression>,
    /// For how long `when` must hold before, nanoseconds.
    pub lasts_ns: i64,
    /// For how long what ends it must hold, nanoseconds.
    pub hold_ns: i64,
    /// What it does.
    pub actions: Vec<Action>,
}

/// How a rule stands for one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleState {
    /// Whether it holds.
    pub active: bool,
    /// Since when what would change that holds.
    since_ns: Option<i64>,
}

impl RuleState {
    /// Takes the flow's present figures. `Some` if the rule began (true) or ended.
    pub fn step(
        &mut self,
        rule: &Rule,
        now_ns: i64,
        value: &impl Fn(Kpi) -> Option<f64>,
    ) -> Option<bool> {
        let (changes, lasts) = if self.active {
            let ends = match &rule.until {
                Some(until) => until.evaluate(value) == Some(true),
                None => rule.when.evaluate(value) != Some(true),
            };
            (ends, rule.hold_ns)
        } else {
            (rule.when.evaluate(value) == Some(true), rule.lasts_ns)
        };
        if !changes {
            self.since_ns = None;
            return None;
        }
        let since = *self.since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since) < lasts {
            return None;
        }
        self.active = !self.active;
        self.since_ns = None;
        Some(self.active)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_figure_makes_no_condition_hold() {
        let unknown = |_: Kpi| None;
        for text in [
            "delay > 1ms",
            "not delay > 1ms",
            "delay > 1ms or not delay > 1ms",
        ] {
            let expression: Expression = text.parse().expect(text);
            assert_eq!(expression.evaluate(&unknown), None, "{text}");
        }
        let some = |kpi: Kpi| (kpi == Kpi::Lost).then_some(3.0);
        let expression: Expression = "delay > 1ms or lost >= 3".parse().expect("an expression");
        assert_eq!(expression.evaluate(&some), Some(true));
        let expression: Expression = "delay > 1ms and lost < 3".parse().expect("an expression");
        assert_eq!(expression.evaluate(&some), Some(false));
    }

    #[test]
    fn a_rule_begins_after_its_time_and_ends_with_hysteresis() {
        let rule = Rule {
            name: "late".into(),
            pattern: Pattern::all(),
            when: "delay > 10us".parse().expect("an expression"),
            until: Some("delay < 5us".parse().expect("an expression")),
            lasts_ns: 20,
            hold_ns: 30,
            actions: vec![Action::Event],
        };
        let mut state = RuleState::default();
        let mut step = |now, delay: f64| state.step(&rule, now, &|_| Some(delay));
        assert_eq!(step(0, 11e3), None);
        assert_eq!(step(10, 9e3), None);
        assert_eq!(step(11, 11e3), None);
        assert_eq!(step(31, 11e3), Some(true));
        assert_eq!(step(40, 6e3), None);
        assert_eq!(step(50, 4e3), None);
        assert_eq!(step(79, 4e3), None);
        assert_eq!(step(80, 4e3), Some(false));
    }
}
