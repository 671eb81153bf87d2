//! One page with all flows by level and the delay of some over time; needs nothing else. As a file, or served and always the
//! latest.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use hyper::StatusCode;
use takt_health::level::Level;
use takt_health::rule::Kpi;

use super::curve::Curve;
use super::engine::Engine;
use super::text::{self, figure};
use crate::failure::Failure;
use crate::web::{self, Answer, Site, lock};

/// Flows in the table.
const FLOWS: usize = 500;
const WIDTH: f64 = 940.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 28.0;
const TOP: f64 = 8.0;

const STYLE: &str = "\
body{margin:0;color:#1f2730;font:15px/1.5 system-ui,sans-serif}main{max-width:980px;margin:0 auto;padding:40px 24px}\
h1{font-size:26px;margin:0 0 8px}h2{font-size:18px;margin:36px 0 4px}p{margin:6px 0;color:#66707c}\
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}\
th,td{padding:4px 8px;text-align:right;border-bottom:1px solid #e3e7eb;white-space:nowrap}\
th{color:#66707c;font-weight:550}th:nth-child(-n+2),td:nth-child(-n+2){text-align:left}\
td:nth-child(2){white-space:normal;overflow-wrap:anywhere}.wide{overflow-x:auto}\
.green{color:#0b7a4b}.yellow{color:#8a6400}.red{color:#b3261e;font-weight:650}svg{display:block;width:100%;height:auto}\
svg text{font:12px system-ui,sans-serif;fill:#66707c}li{margin:2px 0}";

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// The colours of levels: told apart by the colour-blind too, and named in the legend.
fn colour(level: Level) -> &'static str {
    match level {
        Level::Green => "#009e73",
        Level::Yellow => "#e69f00",
        Level::Red => "#d55e00",
    }
}

/// Has a browser show the latest.
const SCRIPT: &str = include_str!("page.html");

/// What is served.
pub struct Live {
    name: String,
    flows: Mutex<String>,
    asked: AtomicBool,
}

impl Live {
    /// Serves the page, and where: at the address, or at a free port of it.
    pub fn serve(address: SocketAddr, name: &str) -> Result<(Arc<Self>, SocketAddr), Failure> {
        let live = Arc::new(Self {
            name: name.to_owned(),
            flows: Mutex::default(),
            // The first one who looks sees something.
            asked: AtomicBool::new(true),
        });
        let at = web::serve(&[address], Arc::clone(&live))
            .map_err(|error| web::no_page(address, &error))?;
        Ok((live, at))
    }

    /// Shows the flows as they are now, if somebody looked since the last time.
    pub fn show(&self, engine: &Engine) {
        if self.asked.swap(false, Ordering::Relaxed) {
            let flows = flows(engine);
            *lock(&self.flows) = flows;
        }
    }
}

impl Site for Live {
    async fn answer(&self, path: &str) -> Answer {
        self.asked.store(true, Ordering::Relaxed);
        match path {
            "/" => web::answer(StatusCode::OK, web::HTML, whole(&self.name, "", SCRIPT)),
            "/flows" => {
                let flows = lock(&self.flows).clone();
                web::answer(StatusCode::OK, web::HTML, flows)
            }
            _ => web::answer(StatusCode::NOT_FOUND, web::TEXT, "the flows are at /\n"),
        }
    }
}

/// The page as a file.
pub fn render(engine: &Engine) -> String {
    whole(engine.name(), &flows(engine), "")
}

fn whole(name: &str, flows: &str, script: &str) -> String {
    let name = escaped(name);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Flows of {name}</title><style>{STYLE}</style></head>\n<body><main>\n\
         {flows}</main>\n{script}</body></html>\n"
    )
}

fn flows(engine: &Engine) -> String {
    let mut page = format!(
        "<h1>Flows of {0}</h1>\n<p>{1}</p>\n",
        escaped(engine.name()),
        escaped(&text::heading(engine))
    );
    let drawn = engine.drawn();
    for (at, curve) in &drawn {
        let flow = engine.flow(*at);
        let spec = engine.spec(flow);
        let name = spec.map_or_else(|| flow.key.to_string(), |spec| spec.name.clone());
        let limit = spec.and_then(|spec| spec.max_delay_ns);
        let by = if flow.is_stamped() {
            "one-way delay by the packets' stamps"
        } else {
            "delay beyond the earliest beats"
        };
        let _ = write!(
            page,
            "<h2 id=\"flow-{at}\">{}</h2>\n<p>{}: {by}</p>\n",
            escaped(&name),
            escaped(&flow.key.to_string())
        );
        page.push_str(&plot(curve, limit));
    }
    let events = text::events(engine, 200);
    if !events.is_empty() {
        page.push_str("<h2>Events</h2>\n<ul>\n");
        for event in events {
            let _ = writeln!(page, "<li>{}</li>", escaped(&event));
        }
        page.push_str("</ul>\n");
    }
    page.push_str(
        "<h2>Flows</h2>\n<div class=\"wide\"><table>\n<thead><tr><th>level</th><th>flow</th><th>packets</th>\
         <th>rate</th><th>lost</th><th>reordered</th><th>delay p99</th><th>largest</th><th>jitter</th>\
         <th>gap, mean</th><th>largest</th><th>burst</th></tr></thead>\n<tbody>\n",
    );
    let order = engine.order();
    for at in order.iter().take(FLOWS) {
        let flow = engine.flow(*at);
        let report = flow.report(engine.spec(flow));
        let (delay, gap) = (report.delay.as_ref(), report.gap.as_ref());
        let number = |value: Option<u64>| value.map_or("–".into(), |value| value.to_string());
        let name = match &report.spec {
            Some(spec) => format!("{spec}: {}", report.flow),
            None => report.flow.clone(),
        };
        let mut name = escaped(&name);
        if drawn.iter().any(|(of, _)| of == at) {
            name = format!("<a href=\"#flow-{at}\">{name}</a>");
        }
        let _ = writeln!(
            page,
            "<tr><td class=\"{0}\">{0}</td><td>{1}</td><td>{2}</td><td>{3}</td><td>{4}</td><td>{5}</td><td>{6}</td>\
             <td>{7}</td><td>{8}</td><td>{9}</td><td>{10}</td><td>{11}</td></tr>",
            report.level,
            name,
            report.packets,
            figure(Kpi::Rate, report.bits_per_second),
            number(report.lost.or(report.missing)),
            number(report.reordered),
            figure(
                Kpi::Delay,
                delay
                    .and_then(|delay| delay.p99_ns)
                    .map(|nanos| nanos as f64)
            ),
            figure(Kpi::Delay, delay.map(|delay| delay.max_ns as f64)),
            figure(Kpi::Jitter, report.jitter_ns),
            figure(Kpi::Gap, gap.map(|gap| gap.mean_ns)),
            figure(Kpi::Gap, gap.map(|gap| gap.max_ns as f64)),
            report.longest_burst
        );
    }
    page.push_str("</tbody></table></div>\n");
    if order.len() > FLOWS {
        let _ = writeln!(
            page,
            "<p>{} more flows are left out: `--csv` has all.</p>",
            order.len() - FLOWS
        );
    }
    page
}

/// A flow's delay over time as SVG, each step a bar from its smallest to its largest delay in the colour of its level.
pub fn plot(curve: &Curve, limit_ns: Option<i64>) -> String {
    let points: Vec<_> = curve.points().collect();
    let Some((last, _)) = points.last().copied() else {
        return String::new();
    };
    let low = points
        .iter()
        .map(|(_, point)| point.min_ns)
        .min()
        .unwrap_or(0)
        .min(0) as f64;
    let high = points
        .iter()
        .map(|(_, point)| point.max_ns)
        .max()
        .unwrap_or(1);
    let high = high.max(limit_ns.unwrap_or(0)).max(1) as f64 * 1.05;
    let x = |at: i64| LEFT + at as f64 / last.max(1) as f64 * (WIDTH - LEFT - 10.0);
    let y = |nanos: f64| TOP + (high - nanos) / (high - low).max(1.0) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"delay over time\">\n"
    );
    for part in 0..=4 {
        let value = low + (high - low) * f64::from(part) / 4.0;
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {0:.1}H{1}\" stroke=\"#e3e7eb\"/><text x=\"{2}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>",
            y(value),
            WIDTH - 10.0,
            LEFT - 6.0,
            y(value) + 4.0,
            Kpi::Delay.write(value.round())
        );
        let at = last / 4 * i64::from(part);
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            x(at).min(WIDTH - 30.0),
            HEIGHT - 8.0,
            Kpi::Gap.write(at as f64)
        );
    }
    for level in Level::ALL {
        let mut path = String::new();
        for (at, point) in points.iter().filter(|(_, point)| point.level == level) {
            let (top, bottom) = (y(point.max_ns as f64), y(point.min_ns as f64));
            let _ = write!(path, "M{:.1} {:.1}V{:.1}", x(*at), top - 0.6, bottom + 0.6);
        }
        if !path.is_empty() {
            let _ = writeln!(
                svg,
                "<path d=\"{path}\" stroke=\"{}\" stroke-width=\"1.6\" fill=\"none\"><title>{level}</title></path>",
                colour(level)
            );
        }
    }
    if let Some(limit) = limit_ns {
        let at = y(limit as f64);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{}\" stroke=\"#333b45\" stroke-dasharray=\"5 4\"/><text x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">limit</text>",
            WIDTH - 10.0,
            WIDTH - 12.0,
            at - 4.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}
