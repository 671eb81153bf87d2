//! An outcome as a table for a terminal: one row for each variant, the figures of the report's page.

use std::collections::BTreeSet;

use crate::outcome::{Outcome, VariantOutcome};
use crate::statistics::Percentiles;

/// The table, with its heading above and the variants that failed below.
pub fn table(outcome: &Outcome) -> String {
    let summaries = || outcome.variants.iter().map(|variant| &variant.summary);
    let latencies = summaries().any(|summary| summary.latency_ns.is_some());
    let rates = summaries().any(|summary| summary.messages_per_second.is_some());
    let figures: BTreeSet<&String> = summaries()
        .flat_map(|summary| summary.figures.keys())
        .filter(|name| {
            // All zero says nothing: no answer lost, nothing dropped.
            summaries().any(|summary| {
                summary
                    .figures
                    .get(*name)
                    .is_some_and(|&value| value != 0.0)
            })
        })
        .collect();
    let mut columns = vec![Column::names(outcome)];
    if latencies {
        // The mean of a skewed distribution says the least, and a terminal is narrow.
        for (index, name) in Percentiles::NAMES.iter().enumerate().take(6) {
            columns.push(Column::of(outcome, format!("{name} µs"), |variant| {
                let values = variant.summary.latency_ns.as_ref()?.values();
                Some(format!("{:.2}", values[index] / 1e3))
            }));
        }
    }
    if rates {
        columns.push(Column::of(outcome, "k messages/s", |variant| {
            Some(format!("{:.1}", variant.summary.messages_per_second? / 1e3))
        }));
        columns.push(Column::of(outcome, "Mbit/s", |variant| {
            Some(format!(
                "{:.1}",
                variant.summary.goodput_bits_per_second? / 1e6
            ))
        }));
        columns.push(Column::of(outcome, "lost %", |variant| {
            Some(format!("{:.2}", 100.0 * variant.summary.loss?))
        }));
    }
    if let Some(baseline) = &outcome.baseline {
        let heading = if latencies { "p50 to" } else { "rate to" };
        columns.push(Column::of(
            outcome,
            format!("{heading} {baseline}"),
            |variant| {
                let summary = &variant.summary;
                let ratio = match latencies {
                    true => summary.latency_ratio.as_ref().map(|ratio| ratio.p50),
                    false => summary.throughput_ratio,
                };
                Some(format!("{:.2}x", ratio?))
            },
        ));
    }
    for name in figures {
        columns.push(Column::of(outcome, name.as_str(), |variant| {
            Some(format!("{:.1}", variant.summary.figures.get(name)?))
        }));
    }
    let mut text = match outcome.setting.as_str() {
        "" => format!("{}\n", outcome.name),
        setting => format!("{}, {setting}\n", outcome.name),
    };
    let rows = outcome.variants.len() + 1;
    for row in 0..rows {
        let cells: Vec<String> = columns.iter().map(|column| column.cell(row)).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    for variant in &outcome.variants {
        if let Some(reason) = variant.failures().next() {
            text.push_str(&format!(
                "{} failed in {} of {} rounds: {reason}\n",
                variant.name,
                variant.failures().count(),
                outcome.rounds
            ));
        }
    }
    text
}

/// A column: its heading and a cell for each variant.
struct Column {
    cells: Vec<String>,
    left: bool,
}

impl Column {
    fn names(outcome: &Outcome) -> Self {
        let mut column = Self::of(outcome, "", |variant| Some(variant.name.clone()));
        column.left = true;
        column
    }

    fn of(
        outcome: &Outcome,
        heading: impl Into<String>,
        cell: impl Fn(&VariantOutcome) -> Option<String>,
    ) -> Self {
        let cells = outcome
            .variants
            .iter()
            .map(|variant| cell(variant).unwrap_or_else(|| "-".to_owned()));
        Self {
            cells: std::iter::once(heading.into()).chain(cells).collect(),
            left: false,
        }
    }

    fn cell(&self, row: usize) -> String {
        let width = self.cells.iter().map(|cell| cell.chars().count()).max();
        let width = width.unwrap_or(0);
        match self.left {
            true => format!("{:<width$}", self.cells[row]),
            false => format!("{:>width$}", self.cells[row]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Experiment, Round, Sample, Variant};
    use crate::statistics::Latencies;

    #[test]
    fn each_variant_has_a_row_and_each_failure_its_reason() {
        let sample = |ns: u64| {
            let mut latencies = Latencies::new();
            latencies.record_ns(ns);
            Sample::from(latencies)
        };
        let outcome = Experiment {
            name: "Round trip".into(),
            setting: "64 B".into(),
            method: String::new(),
            rounds: 1,
            baseline: Some("slow".into()),
            variants: vec![
                Variant::new("slow", move |_: &Round| Ok(sample(20_000))),
                Variant::new("fast", move |_: &Round| Ok(sample(5_000))),
                Variant::new("broken", |_: &Round| Err("no such device".into())),
            ],
        }
        .run()
        .unwrap();
        let text = table(&outcome);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Round trip, 64 B");
        assert!(
            lines[1].contains("p50 µs") && lines[1].ends_with("p50 to slow"),
            "{text}"
        );
        assert!(
            lines[3].starts_with("fast ") && lines[3].ends_with("0.25x"),
            "{text}"
        );
        assert!(lines[4].ends_with('-'), "{text}");
        assert_eq!(lines[5], "broken failed in 1 of 1 rounds: no such device");
    }
}
