//! The gates over a cycle as a self-contained SVG picture: no fonts, scripts or files from elsewhere.

use std::fmt::Write as _;

use super::{duration, readable, scale_step, share, subtitle, wait};
use crate::schedule::Schedule;
use crate::summary::{ClassSummary, PortModel, summary};
use crate::window::{Window, slots, windows};

const WIDTH: f64 = 1120.0;
const CHART_LEFT: f64 = 92.0;
const CHART_WIDTH: f64 = 780.0;
const CHART_TOP: f64 = 112.0;
const ROW: f64 = 44.0;
const BAR: f64 = 28.0;
const OPEN_RIGHT: f64 = 960.0;
const WAIT_RIGHT: f64 = 1084.0;

const INK: &str = "#1d2329";
const SOFT: &str = "#5c6670";
const FAINT: &str = "#e3e7eb";
const LANE: &str = "#f5f7f9";
/// One colour a class, from the lowest, apart for the colour-blind too (Okabe and Ito).
const COLOURS: [&str; 8] = [
    "#8b949e", "#56b4e9", "#009e73", "#e69f00", "#cc79a7", "#0072b2", "#d55e00", "#b3202c",
];
/// What can be read on each of them.
const LABELS: [&str; 8] = [INK, INK, INK, INK, INK, "#ffffff", INK, "#ffffff"];

/// Draws the gates of each class over a cycle. Hatched is the guard band: the time at the end of a
/// window in which the class's largest frame may not start any more.
pub fn svg(schedule: &Schedule, port: &PortModel, title: &str) -> String {
    let summary = summary(schedule, port);
    let rows = summary.classes.len() as f64;
    let chart_bottom = CHART_TOP + rows * ROW;
    let height = chart_bottom + 84.0;
    let mut svg = String::new();
    // Writing to a string does not fail.
    let _ = (|| {
        write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"{INK}\" role=\"img\">\n\
             <title>{title}</title>\n\
             <defs><pattern id=\"guard\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect width=\"2.4\" height=\"6\" fill=\"#ffffff\" fill-opacity=\"0.65\"/>\
             </pattern></defs>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"24\" y=\"36\" font-size=\"19\" font-weight=\"600\">{title}</text>\n\
             <text x=\"24\" y=\"60\" fill=\"{SOFT}\">cycle {cycle}, {subtitle}</text>\n\
             <g font-size=\"12\" fill=\"{SOFT}\" text-anchor=\"end\"><text x=\"{label}\" y=\"{head}\">class</text>\
             <text x=\"{OPEN_RIGHT}\" y=\"{head}\">open</text><text x=\"{WAIT_RIGHT}\" y=\"{head}\">worst wait</text></g>\n",
            title = escape(title),
            cycle = readable(schedule.cycle_time_ns),
            subtitle = escape(&subtitle(schedule)),
            label = CHART_LEFT - 16.0,
            head = CHART_TOP - 12.0,
        )?;
        scale(&mut svg, schedule, chart_bottom)?;
        for (row, (class, of_class)) in port.classes().rev().zip(&summary.classes).enumerate() {
            let top = CHART_TOP + row as f64 * ROW;
            lane(&mut svg, schedule, &windows(schedule, class), of_class, top)?;
        }
        boundaries(&mut svg, schedule, chart_bottom)?;
        writeln!(
            svg,
            "<g font-size=\"12\" fill=\"{SOFT}\"><rect x=\"{CHART_LEFT}\" y=\"{box_top}\" width=\"26\" height=\"14\" rx=\"2\" \
             fill=\"{SOFT}\"/><rect x=\"{CHART_LEFT}\" y=\"{box_top}\" width=\"26\" height=\"14\" fill=\"url(#guard)\"/>\
             <text x=\"{text_left}\" y=\"{text_bottom}\">too late for the largest frame of the class to start</text>\
             <text x=\"{WAIT_RIGHT}\" y=\"{text_bottom}\" text-anchor=\"end\">worst wait: for the gate and a frame already on \
             the link</text></g>\n</svg>",
            box_top = chart_bottom + 48.0,
            text_left = CHART_LEFT + 36.0,
            text_bottom = chart_bottom + 60.0,
        )
    })();
    svg
}

fn x(nanos: u64, cycle_ns: u64) -> f64 {
    if cycle_ns == 0 {
        return CHART_LEFT;
    }
    CHART_LEFT + CHART_WIDTH * (nanos as f64 / cycle_ns as f64).min(1.0)
}

fn scale(svg: &mut String, schedule: &Schedule, bottom: f64) -> std::fmt::Result {
    let cycle_ns = schedule.cycle_time_ns;
    let step = scale_step(cycle_ns, 10);
    writeln!(
        svg,
        "<g font-size=\"12\" fill=\"{SOFT}\" text-anchor=\"middle\" stroke-width=\"1\">"
    )?;
    let mut at = 0;
    while at <= cycle_ns {
        let x = x(at, cycle_ns);
        writeln!(
            svg,
            "<line x1=\"{x:.2}\" y1=\"{CHART_TOP}\" x2=\"{x:.2}\" y2=\"{end:.2}\" stroke=\"{FAINT}\"/>\
             <text x=\"{x:.2}\" y=\"{label:.2}\">{text}</text>",
            end = bottom + 6.0,
            label = bottom + 22.0,
            text = readable(at),
        )?;
        match at.checked_add(step) {
            Some(next) => at = next,
            None => break,
        }
    }
    writeln!(svg, "</g>")
}

fn lane(
    svg: &mut String,
    schedule: &Schedule,
    windows: &[Window],
    class: &ClassSummary,
    top: f64,
) -> std::fmt::Result {
    let cycle_ns = schedule.cycle_time_ns;
    let bar_top = top + (ROW - BAR) / 2.0;
    let middle = top + ROW / 2.0 + 4.5;
    let colour = COLOURS[usize::from(class.class) % COLOURS.len()];
    writeln!(
        svg,
        "<g><text x=\"{label}\" y=\"{middle:.2}\" text-anchor=\"end\" font-size=\"15\" font-weight=\"600\">{number}</text>\
         <rect x=\"{CHART_LEFT}\" y=\"{bar_top:.2}\" width=\"{CHART_WIDTH}\" height=\"{BAR}\" rx=\"3\" fill=\"{LANE}\"/>",
        label = CHART_LEFT - 16.0,
        number = class.class,
    )?;
    let always = windows.iter().any(|window| window.length_ns >= cycle_ns);
    for window in windows {
        // A window over the end of the cycle is drawn at both ends.
        let parts = |from: u64, to: u64| {
            [0, cycle_ns].into_iter().filter_map(move |shift| {
                let (from, to) = (from.saturating_sub(shift), to.saturating_sub(shift));
                let drawn = from < to && from < cycle_ns;
                drawn.then(|| {
                    let left = x(from, cycle_ns);
                    (left, (x(to, cycle_ns) - left).max(1.0))
                })
            })
        };
        for (left, width) in parts(window.start_ns, window.end_ns()) {
            write!(
                svg,
                "<rect x=\"{left:.2}\" y=\"{bar_top:.2}\" width=\"{width:.2}\" height=\"{BAR}\" rx=\"2\" fill=\"{colour}\">\
                 <title>class {number}: {from} for {length}</title></rect>",
                number = class.class,
                from = readable(window.start_ns),
                length = readable(window.length_ns),
            )?;
        }
        let guard_from = window.end_ns() - class.guard_ns.min(window.length_ns);
        for (left, width) in parts(guard_from, window.end_ns()).filter(|_| !always) {
            write!(
                svg,
                "<rect x=\"{left:.2}\" y=\"{bar_top:.2}\" width=\"{width:.2}\" height=\"{BAR}\" fill=\"url(#guard)\"/>",
            )?;
        }
        let label = duration(window.length_ns);
        let room = 12.0 * label.chars().count() as f64;
        let widest =
            parts(window.start_ns, window.end_ns()).max_by(|one, other| one.1.total_cmp(&other.1));
        if let Some((left, width)) = widest.filter(|(_, width)| *width > room) {
            write!(
                svg,
                "<text x=\"{x:.2}\" y=\"{middle:.2}\" fill=\"{ink}\" font-size=\"12\" font-weight=\"600\" \
                 text-anchor=\"middle\">{label}</text>",
                ink = LABELS[usize::from(class.class) % LABELS.len()],
                x = left + width / 2.0,
            )?;
        }
    }
    writeln!(
        svg,
        "<text x=\"{OPEN_RIGHT}\" y=\"{middle:.2}\" text-anchor=\"end\">{share}</text>\
         <text x=\"{WAIT_RIGHT}\" y=\"{middle:.2}\" text-anchor=\"end\">{wait}</text></g>",
        share = share(class),
        wait = wait(class),
    )
}

/// Where entries begin, as fine lines over the lanes.
fn boundaries(svg: &mut String, schedule: &Schedule, bottom: f64) -> std::fmt::Result {
    writeln!(
        svg,
        "<g stroke=\"{INK}\" stroke-opacity=\"0.35\" stroke-dasharray=\"2 3\">"
    )?;
    for slot in slots(schedule).iter().skip(1) {
        let x = x(slot.start_ns, schedule.cycle_time_ns);
        writeln!(
            svg,
            "<line x1=\"{x:.2}\" y1=\"{CHART_TOP}\" x2=\"{x:.2}\" y2=\"{bottom:.2}\"/>"
        )?;
    }
    writeln!(svg, "</g>")
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML has no way to say them.
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}
