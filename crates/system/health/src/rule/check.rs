//! Finds rules that cannot be meant.
//!
//! Whether a condition can hold is exact: figures are independent, and between two neighbouring values that a figure
//! is compared with, nothing changes, so one value of each such interval stands for all.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Action, Expression, Kpi, Rule};
use crate::spec::{Document, exact};

/// More combinations than these are not tried.
const MAX_COMBINATIONS: usize = 100_000;
/// Comparisons of a figure with a value that a check makes of all rules and pairs of rules together: well below a second's.
const MAX_COMPARISONS: usize = 20_000_000;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// It runs, but probably not as meant.
    Warning,
    /// It can do nothing, or undoes itself.
    Error,
}

/// Something that is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// A word that stays the same.
    pub code: &'static str,
    /// The flow or rule.
    pub place: String,
    /// In a sentence.
    pub text: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let severity = match self.severity {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(
            f,
            "{severity}: {}: {} [{}]",
            self.place, self.text, self.code
        )
    }
}

/// Values that stand for all that a figure can have, as far as expressions tell them apart.
fn samples(expressions: &[&Expression]) -> Option<Vec<(Kpi, Vec<f64>)>> {
    let mut limits: BTreeMap<Kpi, Vec<f64>> = BTreeMap::new();
    for expression in expressions {
        expression.visit(&mut |kpi, value| limits.entry(kpi).or_default().push(value));
    }
    let mut combinations = 1_usize;
    let mut all = Vec::new();
    for (kpi, mut values) in limits {
        values.sort_by(f64::total_cmp);
        values.dedup();
        let whole = !matches!(kpi.unit(), Some(unit) if unit != crate::quantity::Unit::Count);
        // A delay is below 0 where clocks differ; nothing else is.
        let lowest = if kpi == Kpi::Delay { -1e18 } else { 0.0 };
        let highest = match kpi {
            Kpi::Level => 2.0,
            Kpi::Loss => 1.0,
            _ => 1e18,
        };
        let mut found = vec![lowest, highest];
        for (at, value) in values.iter().enumerate() {
            let next = values.get(at + 1).copied().unwrap_or(highest);
            let before = if at == 0 { lowest } else { values[at - 1] };
            let between = |low: f64, high: f64| if whole { low + 1.0 } else { (low + high) / 2.0 };
            found.extend([between(before, *value), *value, between(*value, next)]);
        }
        found.retain(|value| (lowest..=highest).contains(value));
        found.sort_by(f64::total_cmp);
        found.dedup();
        combinations = combinations.saturating_mul(found.len());
        if combinations > MAX_COMBINATIONS {
            return None;
        }
        all.push((kpi, found));
    }
    Some(all)
}

/// Why it was not tried whether something is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Untried {
    /// There are more than [`MAX_COMBINATIONS`].
    TooMany,
    /// The check has made its [`MAX_COMPARISONS`].
    Spent,
}

/// What a check may still do.
struct Budget {
    comparisons: usize,
}

impl Budget {
    /// Whether some values satisfy `wanted`.
    fn possible(
        &mut self,
        expressions: &[&Expression],
        wanted: impl Fn(&[bool]) -> bool,
    ) -> Result<bool, Untried> {
        let mut each = 1;
        for expression in expressions {
            expression.visit(&mut |_, _| each += 1);
        }
        // To find the values costs as much as a few combinations.
        self.take(each)?;
        let samples = samples(expressions).ok_or(Untried::TooMany)?;
        possible(&samples, expressions, wanted, || self.take(each))
    }

    fn take(&mut self, comparisons: usize) -> Result<(), Untried> {
        let left = self.comparisons.checked_sub(comparisons);
        self.comparisons = left.unwrap_or(0);
        left.map(drop).ok_or(Untried::Spent)
    }
}

/// Whether some of these values satisfy `wanted`, asking before each combination.
fn possible(
    samples: &[(Kpi, Vec<f64>)],
    expressions: &[&Expression],
    wanted: impl Fn(&[bool]) -> bool,
    mut may: impl FnMut() -> Result<(), Untried>,
) -> Result<bool, Untried> {
    let mut at = vec![0; samples.len()];
    loop {
        may()?;
        let value = |kpi: Kpi| {
            let place = samples.iter().position(|(known, _)| *known == kpi)?;
            samples[place].1.get(at[place]).copied()
        };
        let holds: Vec<bool> = expressions
            .iter()
            .map(|expression| expression.evaluate(&value) == Some(true))
            .collect();
        if wanted(&holds) {
            return Ok(true);
        }
        let mut digit = 0;
        loop {
            match at.get_mut(digit) {
                None => return Ok(false),
                Some(index) if *index + 1 < samples[digit].1.len() => {
                    *index += 1;
                    break;
                }
                Some(index) => {
                    *index = 0;
                    digit += 1;
                }
            }
        }
    }
}

/// Finds rules that have flows of both go elsewhere, and contradict each other.
fn pairs(rules: &[Rule], budget: &mut Budget) -> Vec<Finding> {
    let steers = |rule: &Rule, action| rule.actions.contains(&action);
    let alike = |one: &Rule, other: &Rule| {
        let actions = [Action::Control, Action::Remap, Action::Move];
        let mut both = actions
            .into_iter()
            .filter(|action| steers(one, *action) && steers(other, *action));
        both.next().filter(|_| one.pattern.overlaps(&other.pattern))
    };
    let pairs = rules.iter().enumerate().flat_map(|(at, rule)| {
        let others = rules[..at].iter();
        others.filter_map(move |other| Some((rule, other, alike(rule, other)?)))
    });
    let mut findings = Vec::new();
    for (rule, other, action) in pairs {
        let untried = match pair(rule, other, action, budget) {
            Ok(found) => {
                findings.extend(found);
                continue;
            }
            Err(untried) => untried,
        };
        let text = match untried {
            Untried::TooMany => format!(
                "is not compared with rule {}: together they compare too many figures with too many values",
                other.name
            ),
            Untried::Spent => format!(
                "is not compared with rule {} and those behind that, nor is any later rule: a check makes {MAX_COMPARISONS} comparisons; \
                 divide the file, or use simpler conditions",
                other.name
            ),
        };
        findings.push(Finding {
            severity: Severity::Note,
            code: "not-checked",
            place: format!("rule {}", rule.name),
            text,
        });
        if untried == Untried::Spent {
            break;
        }
    }
    findings
}

fn pair(
    rule: &Rule,
    other: &Rule,
    action: Action,
    budget: &mut Budget,
) -> Result<Option<Finding>, Untried> {
    let (when, before) = (&rule.when, &other.when);
    let find = |severity, code, text| {
        Ok(Some(Finding {
            severity,
            code,
            place: format!("rule {}", rule.name),
            text,
        }))
    };
    // What one of them never or always does by itself is told of it.
    let mut may = |wanted: [bool; 2]| budget.possible(&[when, before], |holds| holds == wanted);
    if !may([true, false])? || !may([false, true])? {
        return Ok(None);
    }
    if !may([false, false])? {
        let does = match action {
            Action::Remap => "is mapped",
            _ => "is to leave",
        };
        let text = format!(
            "`{when}`, or `{before}` of rule {}, always holds: a flow of both {does} whatever it does",
            other.name
        );
        return find(Severity::Error, "contradiction", text);
    }
    // One begins where the other ends, and nowhere else.
    for (begins, ends) in [(rule, other), (other, rule)] {
        let end = match &ends.until {
            Some(until) => until.clone(),
            None => Expression::Not(Box::new(ends.when.clone())),
        };
        if !budget.possible(&[&begins.when, &end], |holds| holds[0] && !holds[1])? {
            let text = format!(
                "`{}` of rule {} begins only where rule {} ends, and both have `{}`: one undoes the other for a flow of both",
                begins.when,
                begins.name,
                ends.name,
                action.name()
            );
            return find(Severity::Warning, "opposite", text);
        }
    }
    Ok(None)
}

/// Finds what is wrong with the conditions of a rule by itself. The last: whether it ever begins.
fn conditions(rule: &Rule, budget: &mut Budget) -> Result<(Vec<Finding>, bool), Untried> {
    let mut findings = Vec::new();
    let mut find = |severity, code, text| {
        findings.push(Finding {
            severity,
            code,
            place: format!("rule {}", rule.name),
            text,
        });
    };
    if !budget.possible(&[&rule.when], |holds| holds[0])? {
        let text = format!("`{}` never holds", rule.when);
        find(Severity::Error, "never", text);
        return Ok((findings, false));
    }
    if !budget.possible(&[&rule.when], |holds| !holds[0])? {
        let text = format!("`{}` always holds once its figures are known", rule.when);
        find(Severity::Warning, "always", text);
    }
    if let Some(until) = &rule.until {
        if !budget.possible(&[until], |holds| holds[0])? {
            let text = format!("never ends, because `{until}` never holds");
            find(Severity::Error, "never-ends", text);
        } else if budget.possible(&[&rule.when, until], |holds| holds[0] && holds[1])? {
            let text = format!(
                "begins and ends at once where `{}` and `{until}` both hold",
                rule.when
            );
            find(Severity::Error, "contradiction", text);
        }
    }
    Ok((findings, true))
}

/// Finds what is wrong with specifications and rules that can be read, the worst first.
pub fn check(document: &Document) -> Vec<Finding> {
    let comparisons = MAX_COMPARISONS;
    check_within(document, &mut Budget { comparisons })
}

fn check_within(document: &Document, budget: &mut Budget) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |severity, code, place: String, text: String| {
        findings.push(Finding {
            severity,
            code,
            place,
            text,
        });
    };
    for (at, spec) in document.specs.iter().enumerate() {
        let place = format!("flow {}", spec.name);
        let earlier = &document.specs[..at];
        if earlier.iter().any(|other| other.name == spec.name) {
            find(
                Severity::Error,
                "name-twice",
                place.clone(),
                "another flow has this name".into(),
            );
        }
        if let Some(other) = earlier
            .iter()
            .find(|other| other.pattern.covers(&spec.pattern))
        {
            let text = format!(
                "never applies, because {} matches the same flows first",
                other.name
            );
            find(Severity::Error, "never-applies", place.clone(), text);
        }
        let limits = [spec.tolerance_ns, spec.max_delay_ns, spec.max_jitter_ns];
        if limits.iter().all(Option::is_none) && spec.max_loss.is_none() && spec.max_burst.is_none()
        {
            let text = "has no limit, so its level is always green".into();
            find(Severity::Warning, "no-limit", place.clone(), text);
        }
        if let (Some(period), Some(tolerance)) = (spec.period_ns, spec.tolerance_ns)
            && tolerance >= period
        {
            let text =
                "the tolerance is not below the period, so a missing packet is no deviation".into();
            find(Severity::Warning, "wide-tolerance", place, text);
        }
    }
    let mut of_conditions = Vec::new();
    for (at, rule) in document.rules.iter().enumerate() {
        let place = format!("rule {}", rule.name);
        if document.rules[..at]
            .iter()
            .any(|other| other.name == rule.name)
        {
            find(
                Severity::Error,
                "name-twice",
                place.clone(),
                "another rule has this name".into(),
            );
        }
        match conditions(rule, budget) {
            Ok((found, begins)) => {
                of_conditions.extend(found);
                if !begins {
                    continue;
                }
            }
            Err(untried) => {
                let text = match untried {
                    Untried::TooMany => {
                        "compares too many figures with too many values to be checked".into()
                    }
                    Untried::Spent => format!(
                        "is not checked: a check makes {MAX_COMPARISONS} comparisons, which those before have needed; divide the \
                         file, or use simpler conditions"
                    ),
                };
                of_conditions.push(Finding {
                    severity: Severity::Note,
                    code: "not-checked",
                    place,
                    text,
                });
                continue;
            }
        }
        let uses_level = {
            let mut uses = false;
            rule.when.visit(&mut |kpi, _| uses |= kpi == Kpi::Level);
            uses
        };
        if uses_level && document.specs.is_empty() {
            let text =
                "asks for the level, and no flow has a specification: it is always green".into();
            find(Severity::Warning, "no-level", place.clone(), text);
        }
        if rule.until.is_none() && rule.hold_ns == 0 && rule.actions.contains(&Action::Control) {
            let text =
                "sends a control message at every change: give `until` or a `hold` above 0".into();
            find(Severity::Warning, "flaps", place, text);
        }
    }
    findings.extend(of_conditions);
    findings.extend(pairs(&document.rules, budget));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

impl Rule {
    /// What it does, in sentences.
    pub fn explain(&self) -> String {
        let mut text = match self.pattern.to_string().as_str() {
            "*" => "every flow, by itself".to_owned(),
            pattern => format!("flows {pattern}"),
        };
        text.push_str(&format!(": begins when {}", self.when));
        if self.lasts_ns > 0 {
            text.push_str(&format!(" for {}", exact(self.lasts_ns)));
        }
        match &self.until {
            Some(until) => text.push_str(&format!("; ends when {until}")),
            None => text.push_str("; ends when that no longer holds"),
        }
        if self.hold_ns > 0 {
            text.push_str(&format!(" for {}", exact(self.hold_ns)));
        }
        let actions: Vec<&str> = self
            .actions
            .iter()
            .map(|action| match action {
                Action::Event => "tells both",
                Action::Metric => "is a metric",
                Action::Mirror => "writes the flow's packets to the mirror file meanwhile",
                Action::Control => "sends a control message at both",
                Action::Remap => "has another datapath carry the channel meanwhile",
                Action::Move => "has the channel's sessions leave their lanes when it begins",
            })
            .collect();
        text.push_str(&format!("; {}", actions.join(", ")));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(rules: &str) -> Vec<&'static str> {
        let document = Document::read(rules).expect("a document");
        check(&document)
            .iter()
            .map(|finding| finding.code)
            .collect()
    }

    fn rule(when: &str, until: &str) -> String {
        let until = if until.is_empty() {
            String::new()
        } else {
            format!("until = \"{until}\"\n")
        };
        format!("[[rule]]\nname = \"a\"\nwhen = \"{when}\"\n{until}do = [\"event\"]\n")
    }

    #[test]
    fn rules_that_contradict_themselves_are_found() {
        assert_eq!(codes(&rule("delay > 5ms and delay < 3ms", "")), ["never"]);
        assert_eq!(codes(&rule("delay > 5ms or delay <= 5ms", "")), ["always"]);
        assert_eq!(
            codes(&rule("delay > 5ms", "delay > 6ms")),
            ["contradiction"]
        );
        assert_eq!(
            codes(&rule("delay > 5ms", "loss > 0 and loss < 0%")),
            ["never-ends"]
        );
        assert_eq!(
            codes(&rule("delay > 5ms", "delay < 4ms")),
            Vec::<&str>::new()
        );
        assert_eq!(codes(&rule("lost > 3 and lost < 4", "")), ["never"]);
        assert_eq!(codes(&rule("level > red", "")), ["never",]);
        assert_eq!(codes(&rule("loss > 100%", "")), ["never"]);
        let twice = rule("delay > 5ms", "") + &rule("lost > 5", "");
        assert_eq!(codes(&twice), ["name-twice"]);
    }

    #[test]
    fn specifications_that_never_apply_are_found() {
        let flow = |name: &str, pattern: &str| {
            format!("[[flow]]\nname = \"{name}\"\nmatch = \"{pattern}\"\nmax-loss = \"1%\"\n")
        };
        assert_eq!(
            codes(&(flow("a", "*") + &flow("b", "udp * > *"))),
            ["never-applies"]
        );
        assert_eq!(
            codes(&(flow("a", "udp * > *:5004") + &flow("b", "udp 10.0.0.1 > *:5004"))),
            ["never-applies"]
        );
        assert_eq!(
            codes(&(flow("a", "udp * > *") + &flow("b", "*"))),
            Vec::<&str>::new()
        );
    }

    #[test]
    fn rules_that_contradict_each_other_are_found() {
        let rule = |name: &str, flow: &str, when: &str, does: &str| {
            format!(
                "[[rule]]\nname = \"{name}\"\nflow = \"{flow}\"\nwhen = \"{when}\"\ndo = [\"{does}\"]\n"
            )
        };
        let both = |one: [&str; 3], other: [&str; 3]| {
            let written = |name, [flow, when, does]: [&str; 3]| rule(name, flow, when, does);
            codes(&(written("a", one) + &written("b", other)))
        };
        let none = Vec::<&str>::new();
        for does in ["control", "remap", "move"] {
            let late = ["udp * > *", "delay > 5ms", does];
            assert_eq!(both(late, ["*", "delay < 6ms", does]), ["contradiction"]);
            assert_eq!(both(late, ["*", "delay < 2ms", does]), ["opposite"]);
            // One after the other is worse, and each has its reason.
            assert_eq!(both(late, ["*", "delay > 8ms", does]), none);
            assert_eq!(both(late, ["*", "lost > 3", does]), none);
            // No flow is of both, or nothing happens to it.
            assert_eq!(both(late, ["tcp * > *", "delay < 6ms", does]), none);
            assert_eq!(both(late, ["*", "delay < 6ms", "event"]), none);
        }
        let until = "until = \"delay < 3ms\"\n";
        let late = rule("a", "*", "delay > 5ms", "control") + until;
        let calm = rule("b", "*", "delay < 3ms and lost == 0", "control");
        assert_eq!(codes(&(late + &calm)), ["opposite"]);
    }

    #[test]
    fn more_combinations_than_can_be_tried_are_a_note() {
        let terms: Vec<String> = super::Kpi::ALL
            .iter()
            .filter(|kpi| kpi.unit() == Some(crate::quantity::Unit::Time))
            .flat_map(|kpi| (1..9).map(move |n| format!("{} > {n}ms", kpi.name())))
            .collect();
        assert_eq!(codes(&rule(&terms.join(" or "), "")), ["not-checked"]);
    }

    #[test]
    fn the_largest_file_of_rules_is_checked_within_its_comparisons_and_what_is_not_is_named() {
        // Conditions of four figures, of which each pair has as many combinations as are tried.
        let condition = |shift: usize| {
            let figures = super::Kpi::ALL
                .iter()
                .filter(|kpi| kpi.unit() == Some(crate::quantity::Unit::Time))
                .take(4);
            let terms: Vec<String> = figures
                .flat_map(|kpi| {
                    (1..3).map(move |n| format!("{} > {}ms", kpi.name(), 10 * n + shift % 7))
                })
                .collect();
            // Never, which takes all combinations to see.
            format!("({}) and level > red", terms.join(" or "))
        };
        let rules: String = (0..crate::spec::MAX_ENTRIES)
            .map(|at| {
                let when = condition(at);
                format!("[[rule]]\nname = \"r{at}\"\nwhen = \"{when}\"\ndo = [\"control\"]\n")
            })
            .scan(0, |length, rule| {
                *length += rule.len();
                (*length <= crate::spec::MAX_LENGTH).then_some(rule)
            })
            .collect();
        let document = Document::read(&rules).expect("a document");
        let mut budget = Budget {
            comparisons: MAX_COMPARISONS,
        };
        let findings = check_within(&document, &mut budget);
        assert_eq!(budget.comparisons, 0);
        let unchecked: Vec<_> = findings
            .iter()
            .filter(|finding| finding.code == "not-checked")
            .collect();
        let last = unchecked.last().expect("not all of them");
        assert!(last.text.contains("nor is any later rule"), "{last}");
        let of_one = |finding: &&&Finding| finding.text.contains("is not checked: a check makes");
        assert!(unchecked.iter().filter(of_one).count() > 0);
    }

    #[test]
    fn pairs_of_rules_for_which_no_comparisons_are_left_are_named() {
        let rule = |name: &str, when: &str| {
            format!(
                "[[rule]]\nname = \"{name}\"\nwhen = \"{when}\"\nuntil = \"delay < 1ms\"\ndo = [\"control\"]\n"
            )
        };
        let text = rule("a", "delay > 5ms") + &rule("b", "delay > 6ms") + &rule("c", "delay > 7ms");
        let document = Document::read(&text).expect("a document");
        let found = |comparisons| {
            let findings = check_within(&document, &mut Budget { comparisons });
            findings.first().map(ToString::to_string)
        };
        assert_eq!(found(MAX_COMPARISONS), None);
        // All rules, and not all pairs.
        let enough = (0..).find(|most| {
            found(*most).is_some_and(|text| text.contains("is not compared with rule"))
        });
        let text = found(enough.expect("some")).expect("a note");
        assert!(
            text.starts_with("note: rule b: is not compared with rule a and those behind that, nor is any later rule"),
            "{text}"
        );
    }
}
