//! Flows as a table of 80 columns, and as CSV.

use takt_health::flow::Flow;
use takt_health::key::{ChannelSource, Way};
use takt_health::quantity::Unit;
use takt_health::rule::Kpi;
use takt_health::table::What;

use super::engine::Engine;

/// How wide a flow's name may be.
const NAME: usize = 35;
/// Events below the table.
const EVENTS: usize = 5;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Windows of a sparkline.
const SPARK: usize = 8;

/// A row's cells.
pub const COLUMNS: [&str; 7] = [
    "LEVEL", "FLOW", "PACKETS", "LOST", "DELAY", "JITTER", "TREND",
];
/// How wide they are; with a blank between them, 80 columns.
pub const WIDTHS: [usize; 7] = [6, NAME, 7, 5, 7, 6, SPARK];

/// A time in at most seven columns; a dash for none.
fn time(nanos: Option<f64>) -> String {
    nanos.map_or("-".into(), |nanos| Unit::Time.write(nanos.round()))
}

/// A count in at most five columns.
fn count(value: u64) -> String {
    match value {
        0..100_000 => value.to_string(),
        100_000..10_000_000 => format!("{}k", value / 1000),
        10_000_000..10_000_000_000 => format!("{}M", value / 1_000_000),
        _ => format!("{}G", value / 1_000_000_000),
    }
}

/// A name with its middle left out if it is too long.
fn shortened(name: &str) -> String {
    let length = name.chars().count();
    if length <= NAME {
        return name.to_owned();
    }
    let tail: String = name.chars().skip(length - NAME / 2).collect();
    let head: String = name.chars().take(NAME - 1 - NAME / 2).collect();
    format!("{head}…{tail}")
}

/// A source of a channel, by what tells it from others first: `channel 7/6 to 10.8.0.2 0/42`, with class, lane and source.
fn of_channel(source: &ChannelSource) -> String {
    let way = match source.way {
        Way::From => "from",
        Way::To => "to",
    };
    let peer = source
        .peer
        .map_or_else(String::new, |peer| format!(" {way} {peer}"));
    let name = format!(
        "channel {}/{}{peer} {}/{}",
        source.channel, source.class, source.lane, source.source
    );
    match name.chars().count() <= NAME {
        true => name,
        false => name.chars().take(NAME - 1).chain(['…']).collect(),
    }
}

fn sparkline(flow: &Flow) -> String {
    let trend: Vec<u32> = flow.trend().collect();
    let last = &trend[trend.len().saturating_sub(SPARK)..];
    let most = last.iter().copied().max().unwrap_or(0);
    if most == 0 {
        return String::new();
    }
    let bar = |value: &u32| match value {
        0 => ' ',
        value => BARS[(u64::from(*value) * 7 / u64::from(most)) as usize],
    };
    last.iter().map(bar).collect()
}

/// The cells of a flow.
pub fn row(engine: &Engine, flow: &Flow) -> [String; 7] {
    let spec = engine.spec(flow);
    let report = flow.report(spec);
    let name = match spec {
        Some(spec) => spec.name.clone(),
        None => match flow.key.channel_source() {
            Some(source) => of_channel(&source),
            None => flow.key.to_string().replace(" > ", ">"),
        },
    };
    let delay = report.delay.as_ref();
    let lost = report.lost.or(report.missing);
    [
        flow.level().to_string(),
        shortened(&name),
        count(report.packets),
        lost.map_or("-".into(), count),
        time(delay.map(|delay| delay.max_ns as f64)),
        time(report.jitter_ns),
        sparkline(flow),
    ]
}

/// A row's cells in one line.
pub fn line(cells: &[String; 7]) -> String {
    let mut text = String::new();
    for (at, (cell, width)) in cells.iter().zip(WIDTHS).enumerate() {
        let blank = " ".repeat(width.saturating_sub(cell.chars().count()));
        if at > 0 {
            text.push(' ');
        }
        match at {
            0 | 1 | 6 => text.extend([cell, &*blank]),
            _ => text.extend([&*blank, cell]),
        }
    }
    text.trim_end().to_owned()
}

/// What stands above the table.
pub fn heading(engine: &Engine) -> String {
    let counters = engine.counters();
    let [green, yellow, red] = engine.levels();
    let mut text = format!(
        "{}: {} packets, {} flows: {red} red, {yellow} yellow, {green} green",
        crate::output::printable(engine.name()),
        counters.packets,
        engine.flow_count()
    );
    let (dropped, backlog) = engine.backlog();
    for (what, value) in [
        ("cut short", counters.truncated),
        ("malformed", counters.malformed),
        ("without room", counters.no_room),
        ("flows aged", counters.aged),
        ("dropped", dropped.unwrap_or(0)),
    ] {
        if value > 0 {
            text.push_str(&format!("; {value} {what}"));
        }
    }
    if let Some(backlog) = backlog.filter(|backlog| *backlog > 100_000_000) {
        text.push_str(&format!("; {} behind", time(Some(backlog as f64))));
    }
    text
}

/// The last events, one a line.
pub fn events(engine: &Engine, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = engine
        .events()
        .rev()
        .take(most)
        .map(|event| {
            let flow = event.spec.as_deref().unwrap_or(&event.flow);
            let at = event.at_ns.rem_euclid(86_400_000_000_000) / 1_000_000;
            let clock = format!(
                "{:02}:{:02}:{:02}.{:03}",
                at / 3_600_000,
                at / 60_000 % 60,
                at / 1000 % 60,
                at % 1000
            );
            match &event.what {
                What::Level {
                    from,
                    to,
                    because,
                    value,
                } => {
                    let because = match (because, value) {
                        (Some(because), Some(value)) => format!(": {because} {value}"),
                        _ => String::new(),
                    };
                    format!("{clock} TAI {flow}: {from} to {to}{because}")
                }
                What::Rule { rule, begins, .. } => {
                    let what = if *begins { "begins" } else { "ends" };
                    format!("{clock} TAI {flow}: rule {rule} {what}")
                }
            }
        })
        .collect();
    lines.reverse();
    lines
}

/// The heading, the worst flows and the last events.
pub fn table(engine: &Engine, top: usize) -> String {
    let mut lines = crate::output::wrap(&heading(engine), 80);
    lines.push(line(&COLUMNS.map(str::to_owned)));
    let order = engine.order();
    for at in order.iter().take(top) {
        lines.push(line(&row(engine, engine.flow(*at))));
    }
    if order.len() > top {
        lines.push(format!(
            "… {} more: --top {}, or --csv",
            order.len() - top,
            order.len()
        ));
    }
    for (rule, count) in engine.rules() {
        if count.begun > 0 {
            lines.push(format!(
                "rule {rule}: began {} times, holds for {} flows",
                count.begun, count.active
            ));
        }
    }
    for event in events(engine, EVENTS) {
        lines.extend(crate::output::wrap(&event, 80));
    }
    lines.join("\n") + "\n"
}

/// A line for each flow. Times are in nanoseconds; what is unknown is empty.
pub fn csv(engine: &Engine) -> String {
    let mut text = String::from(
        "flow,spec,level,worst_level,packets,bytes,first_tai_ns,last_tai_ns,lost,duplicates,reordered,missing,\
         delay_by,delay_min_ns,delay_mean_ns,delay_p99_ns,delay_max_ns,jitter_ns,jitter_max_ns,gap_min_ns,\
         gap_mean_ns,gap_max_ns,longest_burst\n",
    );
    fn cell(value: Option<impl ToString>) -> String {
        value.map_or(String::new(), |value| value.to_string())
    }
    for at in engine.order() {
        let flow = engine.flow(at);
        let report = flow.report(engine.spec(flow));
        let (delay, gap) = (report.delay.as_ref(), report.gap.as_ref());
        let cells = [
            report.flow.clone(),
            cell(report.spec),
            report.level.to_string(),
            report.worst_level.to_string(),
            report.packets.to_string(),
            report.bytes.to_string(),
            report.first_ns.to_string(),
            report.last_ns.to_string(),
            cell(report.lost),
            cell(report.duplicates),
            cell(report.reordered),
            cell(report.missing),
            cell(report.delay_by),
            cell(delay.map(|delay| delay.min_ns)),
            cell(delay.map(|delay| delay.mean_ns.round())),
            cell(delay.and_then(|delay| delay.p99_ns)),
            cell(delay.map(|delay| delay.max_ns)),
            cell(report.jitter_ns.map(f64::round)),
            cell(report.max_jitter_ns.map(f64::round)),
            cell(gap.map(|gap| gap.min_ns)),
            cell(gap.map(|gap| gap.mean_ns.round())),
            cell(gap.map(|gap| gap.max_ns)),
            report.longest_burst.to_string(),
        ];
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    text
}

/// A figure with its unit, for pages.
pub fn figure(kpi: Kpi, value: Option<f64>) -> String {
    value.map_or("–".into(), |value| kpi.write(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_is_wider_than_80_columns() {
        let widest = [
            "yellow".to_owned(),
            shortened("udp [2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535>[::1]:1"),
            count(u64::from(u32::MAX)),
            count(999_999),
            time(Some(59.9 * 60e9)),
            time(Some(999_999.0)),
            "████████".to_owned(),
        ];
        let text = line(&widest);
        assert!(text.chars().count() <= 80, "{text}");
        assert!(widest[1].ends_with("[::1]:1"), "{}", widest[1]);
    }

    #[test]
    fn of_a_channel_the_way_and_the_peer_are_shown_first() {
        let source = ChannelSource {
            channel: 7,
            lane: 1,
            source: 42,
            class: 6,
            way: Way::To,
            peer: Some([10, 8, 0, 2].into()),
        };
        assert_eq!(of_channel(&source), "channel 7/6 to 10.8.0.2 1/42");
        let long = of_channel(&ChannelSource {
            channel: u64::MAX,
            source: u32::MAX,
            ..source
        });
        assert_eq!(long, "channel 18446744073709551615/6 to …");
        assert_eq!(long.chars().count(), NAME);
    }
}
