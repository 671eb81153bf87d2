//! A specification learned from a stretch that was good, for people to confirm.
//!
//! What is proposed is what was seen plus a margin, rounded to what people write. Nothing is put in force. How late beats come, and how many
//! are missing, is only known once their period is: flows that carry no send times and numbers are watched twice, the
//! second time by [`periods`].

use crate::flow::Flow;
use crate::pattern::Pattern;
use crate::spec::{Document, MAX_ENTRIES, Spec};
use crate::stamp::Stamp;

/// What was learned of a flow, with what it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// The specification.
    pub spec: Spec,
    /// What was seen, in sentences.
    pub because: Vec<String>,
}

/// The fewest bursts or packets that something is learned from.
pub const FEWEST: u64 = 20;
/// Clocks differ by as much (IEEE 802.3: 100 ppm), and what a flow's envelope follows is twice that.
const SURE: f64 = 100e-6;

/// What flows are to be watched by once more: the periods, of those that have one.
pub fn periods<'a>(flows: impl Iterator<Item = &'a Flow>) -> Document {
    let proposals = flows.filter_map(|flow| propose(flow, "period".into(), 1.0).ok());
    let specs = proposals.filter(|proposal| proposal.spec.period_ns.is_some());
    let specs = specs.map(|Proposal { spec, .. }| Spec {
        period_ns: spec.period_ns,
        max_burst: spec.max_burst,
        ..Spec::new(spec.name, spec.pattern)
    });
    Document {
        specs: specs.take(MAX_ENTRIES).collect(),
        rules: Vec::new(),
    }
}

/// Proposes what a flow is to keep to; `factor` (at least 1) is how far limits are from what was seen.
///
/// # Errors
/// Why nothing can be learned of it, for people.
pub fn propose(flow: &Flow, name: String, factor: f64) -> Result<Proposal, String> {
    let report = flow.report(None);
    if report.packets < FEWEST {
        return Err(format!("{} packets, and it takes {FEWEST}", report.packets));
    }
    let factor = factor.max(1.0);
    let mut spec = Spec::new(name, Pattern::of(&flow.key));
    let mut because = Vec::new();
    let time = |nanos: f64| crate::quantity::Unit::Time.write(nanos);
    // Times to two digits, upwards.
    let limit = |nanos: f64| {
        let step = 10_f64.powf((nanos * factor).max(10.0).log10().floor() - 1.0);
        ((nanos * factor / step).ceil() * step) as i64
    };
    let (beats, distance) = flow.beats();
    let mean = distance.mean().unwrap_or_default();
    let apart = format!(
        "{beats} beats {} to {} apart, {} in the mean",
        time(distance.min as f64),
        time(distance.max as f64),
        time(mean)
    );
    // Twice the mean is a beat that was missing, and the mean is no period then.
    let is_periodic = beats >= FEWEST
        && (distance.max - distance.min) as f64 <= mean
        && distance.max as f64 <= mean * 1.75;
    // The mean is wrong by no more than what the first and the last beat were late.
    let is_sure = (distance.max - distance.min) as f64 <= mean * beats as f64 * SURE;
    let no_period = format!("no period: {apart}; was one missing, or late?");
    if is_periodic {
        let period = nice(mean);
        let spread = (distance.max as f64 - period)
            .abs()
            .max((period - distance.min as f64).abs());
        spec.period_ns = Some(period as i64);
        spec.tolerance_ns = Some(limit(spread.max(1000.0)));
        because.push(apart);
    }
    if report.longest_burst > 1 {
        spec.max_burst = Some(report.longest_burst);
        because.push(format!("bursts of up to {} packets", report.longest_burst));
    }
    match report.delay.map(|delay| delay.max_ns as f64) {
        Some(most) if flow.is_stamped() && most > 0.0 => {
            spec.max_delay_ns = Some(limit(most));
            because.push(format!("delays up to {}", time(most)));
        }
        Some(_) if !flow.is_stamped() && is_periodic && !is_sure => {
            because.push("the period is not sure within 100 ppm, so how late beats may be is not said: take a longer stretch".into());
        }
        Some(most) if !flow.is_stamped() && is_periodic => {
            spec.max_delay_ns = Some(limit(most.max(1000.0)));
            because.push(format!(
                "beats up to {} later than the earliest",
                time(most)
            ));
        }
        _ => {}
    }
    if let Some(jitter) = report.max_jitter_ns {
        spec.max_jitter_ns = Some(limit(jitter.max(1000.0)));
        because.push(format!("jitter up to {}", time(jitter)));
    }
    if let Some(lost) = report.lost {
        // What comes late is lost until it comes.
        let late = report.reordered.unwrap_or(0);
        let all = lost + report.packets;
        let share = (lost + late) as f64 / all as f64;
        spec.max_loss = Some((share * factor * 1e4).ceil() / 1e4);
        because.push(match late {
            0 => format!("{lost} of {all} packets lost"),
            late => format!("{lost} of {all} packets lost, and {late} late"),
        });
    } else if let (Some(missing), true) = (report.missing, is_periodic) {
        let all = missing + beats;
        spec.max_loss = Some((missing as f64 / all as f64 * factor * 1e4).ceil() / 1e4);
        because.push(format!("{missing} of {all} beats missing"));
    }
    if flow.is_rtp() {
        spec.stamp = Stamp::Rtp;
    } else if !matches!(flow.stamp, Stamp::Auto | Stamp::None) {
        spec.stamp = flow.stamp;
    }
    if because.is_empty() {
        return Err(format!("{no_period} It carries no send times or numbers"));
    }
    if !is_periodic && beats >= FEWEST {
        because.push(no_period);
    }
    Ok(Proposal { spec, because })
}

/// The period that was probably meant: the roundest one, or a whole frequency, within 100 ppm of what was seen.
fn nice(nanos: f64) -> f64 {
    let near = |meant: &f64| (meant - nanos).abs() <= nanos * SURE;
    for digits in 1..6 {
        let step = 10_f64.powi(nanos.log10().floor() as i32 + 1 - digits);
        let rounded = (nanos / step).round() * step;
        if near(&rounded) {
            return rounded.round();
        }
        let frequency = (1e9 / nanos).round();
        if frequency >= 1.0 && near(&(1e9 / frequency)) {
            return (1e9 / frequency).round();
        }
    }
    nanos.round()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_that_was_meant_is_found() {
        assert_eq!(nice(999_993.0), 1_000_000.0);
        assert_eq!(nice(16_666_100.0), 16_666_667.0);
        assert_eq!(nice(125_003.0), 125_000.0);
        assert_eq!(nice(1_234_567.0), 1_234_568.0, "810 Hz");
    }
}
