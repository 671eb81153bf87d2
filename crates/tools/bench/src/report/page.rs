//! The page for people: HTML with its style and plots inside it, and no script.

use std::collections::BTreeSet;

use super::canvas::{Look, format_value};
use super::distribution::{self, Unit};
use super::rows::{self, Group, Mark};
use super::table::{Row, Table};
use super::{Report, ReportError};
use crate::experiment::Sample;
use crate::machine::Machine;
use crate::outcome::{Outcome, VariantOutcome};
use crate::statistics::{Percentiles, median};

const STYLE: &str = include_str!("page.css");

/// The whole page.
pub(super) fn render(report: &Report) -> Result<String, ReportError> {
    let looks = Looks::of(report);
    let mut body = format!("<h1>{}</h1>\n", escape(&report.title));
    if let Some(headline) = &report.headline {
        body.push_str(&format!("<p class=\"lead\">{}</p>\n", escape(headline)));
        if let Some(section) = sections(&report.outcomes).first() {
            body.push_str(&render_legend(section, &looks));
            body.push_str(&render_spreads(section, &looks)?);
        }
    }
    for (index, paragraph) in report.introduction.split("\n\n").enumerate() {
        let lead = index == 0 && report.headline.is_none();
        let class = if lead { " class=\"lead\"" } else { "" };
        body.push_str(&format!("<p{class}>{}</p>\n", escape(paragraph.trim())));
    }
    for section in sections(&report.outcomes) {
        body.push_str(&render_section(&section, &looks)?);
    }
    body.push_str(&render_circumstances(&report.machine, &report.command));
    Ok(document(&report.title, &body))
}

/// A page with the style of all reports.
pub(super) fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escape(title)
    )
}

/// Each variant's name has one look through the whole page.
pub(super) struct Looks<'a>(Vec<&'a str>);

impl<'a> Looks<'a> {
    fn of(report: &'a Report) -> Self {
        let mut names: Vec<&str> = Vec::new();
        for variant in report.outcomes.iter().flat_map(|outcome| &outcome.variants) {
            if !names.contains(&variant.name.as_str()) {
                names.push(&variant.name);
            }
        }
        Self(names)
    }

    fn look(&self, name: &str) -> Look {
        Look::of(
            self.0
                .iter()
                .position(|known| *known == name)
                .unwrap_or(self.0.len()),
        )
    }

    /// A spot of the variant's colour, and its name.
    pub(super) fn chip(&self, name: &str) -> String {
        let look = self.look(name);
        let dashed = if look.dashed() { " dashed" } else { "" };
        format!(
            "<span class=\"chip{dashed}\" style=\"background-color:{}\"></span>{}",
            look.css(),
            escape(name)
        )
    }
}

/// Outcomes of one name, in the order in which names first occur.
fn sections(outcomes: &[Outcome]) -> Vec<Vec<&Outcome>> {
    let mut sections: Vec<Vec<&Outcome>> = Vec::new();
    for outcome in outcomes {
        match sections
            .iter_mut()
            .find(|section| section[0].name == outcome.name)
        {
            Some(section) => section.push(outcome),
            None => sections.push(vec![outcome]),
        }
    }
    sections
}

fn render_section(section: &[&Outcome], looks: &Looks<'_>) -> Result<String, ReportError> {
    let first = section[0];
    let mut html = format!("<h2>{}</h2>\n", escape(&first.name));
    let mut methods: Vec<&str> = Vec::new();
    for outcome in section {
        if !outcome.method.is_empty() && !methods.contains(&outcome.method.as_str()) {
            methods.push(&outcome.method);
        }
    }
    for method in methods {
        html.push_str(&format!("<p>{}</p>\n", escape(method)));
    }
    let rounds = if first.rounds == 1 {
        "One round.".to_owned()
    } else {
        format!(
            "Variants take turns for {} rounds; each figure is its median over the rounds{}.",
            first.rounds,
            if first.baseline.is_some() {
                ", each ratio the median of the ratios within a round"
            } else {
                ""
            }
        )
    };
    html.push_str(&format!(
        "<p class=\"when\">{rounds} Begun {}.</p>\n",
        escape(&first.started)
    ));
    html.push_str(&render_legend(section, looks));
    let (unit, factor) = rate_unit(section);
    html.push_str(&render_bars(
        section,
        looks,
        &format!("{unit} received"),
        |sample| Some(sample.throughput.as_ref()?.messages_per_second() / factor),
    )?);
    // With a single setting the curve below says it all.
    if section.len() > 1 {
        html.push_str(&render_spreads(section, looks)?);
    }
    if section.iter().any(|outcome| has_latencies(outcome)) {
        for outcome in section {
            if !outcome.setting.is_empty() {
                html.push_str(&format!("<h3>{}</h3>\n", escape(&outcome.setting)));
            }
            html.push_str(&render_latencies(outcome, looks)?);
            html.push_str(&render_rates(&[outcome], looks));
            html.push_str(&render_failures(outcome));
        }
    } else {
        html.push_str(&render_rates(section, looks));
        let rated = |outcome: &&Outcome| {
            let mut variants = outcome.variants.iter();
            variants.any(|variant| variant.summary.messages_per_second.is_some())
        };
        // Where figures are all there is, they are what the reader came for.
        if !section.iter().any(rated) {
            for name in figure_names(section) {
                html.push_str(&render_bars(section, looks, name, |sample| {
                    sample.figures.get(name).copied()
                })?);
            }
        }
        section
            .iter()
            .for_each(|outcome| html.push_str(&render_failures(outcome)));
    }
    Ok(html)
}

fn render_legend(section: &[&Outcome], looks: &Looks<'_>) -> String {
    let mut items = String::new();
    for name in &looks.0 {
        let ran =
            |variant: &VariantOutcome| variant.name == *name && variant.samples().next().is_some();
        if section
            .iter()
            .any(|outcome| outcome.variants.iter().any(ran))
        {
            items.push_str(&format!("<li>{}</li>", looks.chip(name)));
        }
    }
    format!("<ul class=\"legend\">{items}</ul>\n")
}

/// A row for each setting and variant that has a mark.
fn groups(
    section: &[&Outcome],
    looks: &Looks<'_>,
    mark: impl Fn(&VariantOutcome) -> Option<Mark>,
) -> Vec<Group> {
    let row = |variant: &VariantOutcome| {
        Some(rows::Row {
            name: variant.name.clone(),
            look: looks.look(&variant.name),
            mark: mark(variant)?,
        })
    };
    section
        .iter()
        .map(|outcome| Group {
            heading: outcome.setting.clone(),
            rows: outcome.variants.iter().filter_map(row).collect(),
        })
        .filter(|group: &Group| !group.rows.is_empty())
        .collect()
}

/// A box for the latencies of each setting and variant.
fn render_spreads(section: &[&Outcome], looks: &Looks<'_>) -> Result<String, ReportError> {
    let unit = latency_unit(section);
    let mark = |variant: &VariantOutcome| {
        let spread = variant.latencies()?.spread()?;
        Some(Mark::Spread(spread.in_units_of(unit.0)))
    };
    let caption = format!("latency in {}", unit.1);
    let svg = rows::plot(&groups(section, looks, mark), &caption)?;
    let note = "All rounds together: the box is the middle half, the stroke in it the median, which stands beside it; \
                whiskers reach from the 1st to the 99th percentile.";
    Ok(figure_of(&svg, &caption, note))
}

/// Bars of one figure of each sample, for each setting and variant that has it.
fn render_bars(
    section: &[&Outcome],
    looks: &Looks<'_>,
    caption: &str,
    figure: impl Fn(&Sample) -> Option<f64>,
) -> Result<String, ReportError> {
    let mark = |variant: &VariantOutcome| {
        let values: Vec<f64> = variant.samples().filter_map(&figure).collect();
        let range = values
            .iter()
            .fold(None, |range: Option<(f64, f64)>, &value| {
                let (low, high) = range.unwrap_or((value, value));
                Some((low.min(value), high.max(value)))
            })?;
        let value = median(values)?;
        Some(Mark::Bar { value, range })
    };
    let several = section.iter().any(|outcome| outcome.rounds > 1);
    let note = if several {
        "The thin line spans the rounds."
    } else {
        ""
    };
    let svg = rows::plot(&groups(section, looks, mark), caption)?;
    Ok(figure_of(&svg, caption, note))
}

pub(super) fn figure_of(svg: &str, what: &str, note: &str) -> String {
    if svg.is_empty() {
        return String::new();
    }
    let note = if note.is_empty() {
        String::new()
    } else {
        format!("<figcaption>{note}</figcaption>\n")
    };
    format!(
        "<figure role=\"img\" aria-label=\"{}\">\n{svg}{note}</figure>\n",
        escape(what)
    )
}

fn has_latencies(outcome: &Outcome) -> bool {
    outcome
        .variants
        .iter()
        .any(|variant| variant.summary.latency_ns.is_some())
}

/// The plot and the table of latencies; empty where there are none.
fn render_latencies(outcome: &Outcome, looks: &Looks<'_>) -> Result<String, ReportError> {
    let unit = latency_unit(&[outcome]);
    let variants = outcome.variants.iter();
    let curves: Vec<_> = variants
        .filter_map(|variant| Some((looks.look(&variant.name), variant.latencies()?)))
        .collect();
    let what = format!(
        "{} {}: share of messages by latency",
        outcome.name, outcome.setting
    );
    let note = "Share of messages that took no longer, all rounds together; the vertical scale widens towards the tail.";
    let plot = figure_of(&distribution::plot(&curves, unit)?, &what, note);

    let mut table = Table::new(format!("latency in {}", unit.1));
    table.headings.extend(Percentiles::NAMES.map(str::to_owned));
    // The median is the figure people look for.
    table.strong = Some(1);
    if let Some(baseline) = &outcome.baseline {
        table
            .headings
            .extend(["p50", "p99"].map(|name| format!("{name} to {baseline}")));
    }
    let figures = figure_names(&[outcome]);
    table
        .headings
        .extend(figures.iter().map(|name| name.to_string()));
    for variant in &outcome.variants {
        let Some(percentiles) = variant.summary.latency_ns else {
            continue;
        };
        let mut cells = percentiles
            .values()
            .map(|value| format_value(value / unit.0))
            .to_vec();
        if outcome.baseline.is_some() {
            let ratio = variant.summary.latency_ratio;
            cells.extend([ratio.map(|r| r.p50), ratio.map(|r| r.p99)].map(format_ratio));
        }
        cells.extend(
            figures
                .iter()
                .map(|name| format_option(variant.summary.figures.get(*name).copied())),
        );
        table.rows.push(Row {
            name: &variant.name,
            cells,
        });
    }
    Ok(plot + &table.render(looks))
}

/// One table of rates, grouped by setting, and of all figures that no latency table tells; empty where
/// there are none.
fn render_rates(outcomes: &[&Outcome], looks: &Looks<'_>) -> String {
    let mut summaries = outcomes
        .iter()
        .flat_map(|outcome| &outcome.variants)
        .map(|variant| &variant.summary);
    let has_rate = summaries.any(|summary| summary.messages_per_second.is_some());
    let told = outcomes.iter().any(|outcome| has_latencies(outcome));
    let figures = if told {
        BTreeSet::new()
    } else {
        figure_names(outcomes)
    };
    let baseline = outcomes
        .iter()
        .find_map(|outcome| outcome.baseline.as_ref());
    let (rate, factor) = rate_unit(outcomes);
    let mut table = Table::new(String::new());
    if has_rate {
        table
            .headings
            .extend([rate, "goodput in Mbit/s", "lost in %"].map(str::to_owned));
        table
            .headings
            .extend(baseline.map(|baseline| format!("rate to {baseline}")));
        table.strong = Some(0);
    }
    table
        .headings
        .extend(figures.iter().map(|name| name.to_string()));
    if table.headings.is_empty() {
        return String::new();
    }
    for outcome in outcomes {
        if outcomes.len() > 1 {
            table.rows.push(Row {
                name: &outcome.setting,
                cells: Vec::new(),
            });
        }
        // A variant of which all rounds failed has no row; the reasons stand below.
        for variant in outcome
            .variants
            .iter()
            .filter(|variant| variant.samples().next().is_some())
        {
            let summary = &variant.summary;
            let mut cells = Vec::new();
            if has_rate {
                cells.push(format_option(
                    summary.messages_per_second.map(|rate| rate / factor),
                ));
                cells.push(format_option(
                    summary.goodput_bits_per_second.map(|bits| bits / 1e6),
                ));
                cells.push(format_option(summary.loss.map(|share| 100.0 * share)));
                cells.extend(baseline.map(|_| format_ratio(summary.throughput_ratio)));
            }
            cells.extend(
                figures
                    .iter()
                    .map(|name| format_option(summary.figures.get(*name).copied())),
            );
            table.rows.push(Row {
                name: &variant.name,
                cells,
            });
        }
    }
    table.render(looks)
}

fn figure_names<'a>(outcomes: &[&'a Outcome]) -> BTreeSet<&'a String> {
    let variants = outcomes.iter().flat_map(|outcome| &outcome.variants);
    variants
        .flat_map(|variant| variant.summary.figures.keys())
        .collect()
}

fn render_failures(outcome: &Outcome) -> String {
    let mut html = String::new();
    for variant in &outcome.variants {
        let count = variant.failures().count();
        if let Some(reason) = variant.failures().next() {
            html.push_str(&format!(
                "<p class=\"failures\"><b>{}</b> failed in {count} of {} rounds: {}</p>\n",
                escape(&variant.name),
                outcome.rounds,
                escape(reason)
            ));
        }
    }
    html
}

/// The machine and the command line.
pub(super) fn render_circumstances(machine: &Machine, command: &[String]) -> String {
    let mut html = "<h2>Circumstances</h2>\n<table class=\"machine\"><tbody>\n".to_owned();
    for (heading, value) in machine.rows() {
        html.push_str(&format!(
            "<tr><th>{heading}</th><td>{}</td></tr>\n",
            escape(&value)
        ));
    }
    html.push_str("</tbody></table>\n<p class=\"note\">The command line:</p>\n");
    html.push_str(&format!("<pre>{}</pre>\n", escape(&quote(command))));
    html
}

/// A command line as it would be typed.
fn quote(command: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    let word = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn latency_unit(outcomes: &[&Outcome]) -> Unit {
    let medians = outcomes.iter().flat_map(|outcome| &outcome.variants);
    let medians = medians
        .filter_map(|variant| Some(variant.summary.latency_ns?.p50))
        .collect();
    Unit::for_latency(median(medians).unwrap_or(1e3))
}

/// What rates are told in, and how many messages a second that is.
fn rate_unit(outcomes: &[&Outcome]) -> (&'static str, f64) {
    let rates = outcomes.iter().flat_map(|outcome| &outcome.variants);
    let most = rates
        .filter_map(|variant| variant.summary.messages_per_second)
        .fold(0.0, f64::max);
    if most < 10e3 {
        ("messages/s", 1.0)
    } else {
        ("thousand messages/s", 1e3)
    }
}

fn format_option(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), format_value)
}

fn format_ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(
        || "–".to_owned(),
        |ratio| format!("{}×", format_value(ratio)),
    )
}

pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_typed_again() {
        let words = ["takt", "bench", "--set=a b", "", "it's"].map(str::to_owned);
        assert_eq!(quote(&words), r"takt bench '--set=a b' '' 'it'\''s'");
    }

    #[test]
    fn text_cannot_break_out_of_the_page() {
        assert_eq!(escape("<b a='1'>&\""), "&lt;b a=&#39;1&#39;&gt;&amp;&quot;");
    }
}
