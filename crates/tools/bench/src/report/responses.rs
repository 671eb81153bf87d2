//! The page of [`reservations`](crate::reservations): the distribution of responses over periods, and the
//! figures below it.

use std::path::Path;

use super::canvas::{Anchor, Canvas, FADED, GRID, INK, Look, draw, format_tick, logarithmic_ticks};
use super::page::{document, escape, figure_of, render_circumstances};
use super::{ReportError, Written, write_both};
use crate::reservations::account::{Account, NORMALISED};

const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = HEIGHT - 50.0;

impl Account {
    /// Writes `reservations.json` and `reservations.html` into `directory`, which is created if need be.
    ///
    /// # Errors
    /// When a file cannot be written or the plot not drawn.
    pub fn write(&self, directory: &Path) -> Result<Written, ReportError> {
        write_both(self, &page(self)?, directory, "reservations")
    }
}

fn page(account: &Account) -> Result<String, ReportError> {
    let title = "Random task sets with and without CPU reservations";
    let setting = &account.setting;
    let curves = [
        ("with reservations (SCHED_DEADLINE)", account.reserved()),
        ("without (SCHED_OTHER)", account.ordinary()),
    ];
    let mut body = format!(
        "<h1>{title}</h1>\n<p class=\"lead\">{}</p>\n",
        escape(&account.finding())
    );
    body.push_str(&format!(
        "<p>{} task sets of 4 to 12 tasks, drawn by RandFixedSum with utilisations of 0.6 to {:.2} ({} more were left \
         out: their reservations exceed what the kernel admits). Each runs for {:.1} s with reservations from \
         takt reserve plan --per-task and for as long without, in turns, beside {} CPU hogs. All tasks of a set are \
         released together at first. After figure 6 of KubeDeadline (Samimi et al., ECRTS 2025).</p>\n",
        account.sets.len(),
        setting.admitted_ppm as f64 / 1e6,
        account.refused,
        setting.run_ns as f64 / 1e9,
        setting.hogs_per_core * setting.cores,
    ));
    let legend = curves.iter().enumerate().map(|(index, (name, _))| {
        format!(
            "<li><span class=\"chip\" style=\"background-color:{}\"></span>{name}</li>",
            Look::of(index).css()
        )
    });
    body.push_str(&format!(
        "<p class=\"when\">Begun {}.</p>\n<ul class=\"legend\">{}</ul>\n",
        escape(&account.started),
        legend.collect::<String>()
    ));
    let responses = curves.map(|(_, responses)| responses);
    body.push_str(&figure_of(
        &plot(&responses)?,
        "share of jobs by response over period",
        "Share of jobs whose response, over their period, was no longer. Jobs right of the line missed their deadline.",
    ));
    body.push_str(&table(account));
    body.push_str(
        "<p class=\"note\">Taken: time in which a running thread did not run although the kernel had not taken its core, that \
         is, the hypervisor's and that of interrupts, observed by the tasks and hogs themselves, which read the clock all the \
         time; share of all cores' time, and the longest single stretch. Stolen: the same by the kernel's own count (/proc/stat), which \
         has only the hypervisor's. A missed deadline is explained if the machine took at least as much, over all \
         cores and from the last instant before the job's release at which no job was pending, as the job was late by; or if an \
         interruption took the task beyond its runtime, which the kernel has it repay in the periods that follow. Sets only \
         admitted pass the kernel's test, under which global EDF may be late by a bounded time.</p>\n",
    );
    body.push_str(&render_circumstances(&account.machine, &account.command));
    Ok(document(title, &body))
}

fn table(account: &Account) -> String {
    let headings = ["sets", "jobs", "missed", "unexplained"];
    let headings = headings.into_iter().chain(NORMALISED);
    let headings = headings.chain(["taken in %", "longest in ms", "stolen in %"]);
    let headings: String = headings.map(|name| format!("<th>{name}</th>")).collect();
    let mut html = format!(
        "<div class=\"wide\"><table>\n<thead><tr><th>response over period</th>{headings}</tr></thead>\n<tbody>\n"
    );
    for row in account.rows.iter().filter(|row| row.sets > 0) {
        let cells = row.cells();
        let (name, figures) = cells.split_first().map_or(("", &[][..]), |(n, f)| (n, f));
        let figures: String = figures
            .iter()
            .map(|cell| format!("<td>{}</td>", escape(cell)))
            .collect();
        html.push_str(&format!(
            "<tr><th scope=\"row\">{}</th>{figures}</tr>\n",
            escape(name.trim())
        ));
    }
    html.push_str("</tbody>\n</table></div>\n");
    html
}

/// Draws the distributions of responses over periods, each ascending.
fn plot(curves: &[Vec<f64>]) -> Result<String, ReportError> {
    let all = || curves.iter().flatten().copied();
    let (low, high) = (all().fold(1.0, f64::min), all().fold(1.0, f64::max));
    // Some air, and never a range so narrow that it has no tick.
    let (low, high) = ((low / 1.1).max(1e-4), (high * 1.1).max(2.0));
    let x = |ratio: f64| LEFT + (RIGHT - LEFT) * (ratio.max(low) / low).ln() / (high / low).ln();
    let y = |share: f64| BOTTOM - (BOTTOM - TOP) * share;
    draw(WIDTH, HEIGHT, |canvas| {
        grid(canvas, (low, high), &x, &y)?;
        for (index, responses) in curves.iter().enumerate().rev() {
            let count = responses.len() as f64;
            let mut points = Vec::new();
            for (rank, &ratio) in responses.iter().enumerate() {
                let point = (x(ratio), y((rank + 1) as f64 / count));
                if points.is_empty() {
                    points.push((point.0, BOTTOM));
                }
                let differs = points.last().is_none_or(|last: &(f64, f64)| {
                    (point.0 - last.0).abs() + (point.1 - last.1).abs() > 0.7
                });
                if differs || rank + 1 == responses.len() {
                    points.push(point);
                }
            }
            if points.len() > 1 {
                canvas.line(&points, Look::of(index).colour(), 2.0)?;
            }
        }
        Ok(())
    })
}

fn grid(
    canvas: &Canvas<'_>,
    (low, high): (f64, f64),
    x: &dyn Fn(f64) -> f64,
    y: &dyn Fn(f64) -> f64,
) -> Result<(), ReportError> {
    for tenths in [0, 2, 4, 6, 8, 10] {
        let y = y(f64::from(tenths) / 10.0);
        canvas.line(&[(LEFT, y), (RIGHT, y)], GRID, 1.0)?;
        let label = format!("{} %", tenths * 10);
        canvas.text(&label, (LEFT - 10.0, y), Anchor::End, 12.5, INK)?;
    }
    for tick in logarithmic_ticks(low, high) {
        canvas.line(&[(x(tick), TOP), (x(tick), BOTTOM)], GRID, 1.0)?;
        let at = (x(tick), BOTTOM + 16.0);
        canvas.text(&format_tick(tick), at, Anchor::Middle, 12.5, INK)?;
    }
    canvas.line(&[(LEFT, BOTTOM), (RIGHT, BOTTOM)], FADED, 1.0)?;
    canvas.dashed_line(&[(x(1.0), TOP - 6.0), (x(1.0), BOTTOM)], INK, 1.4)?;
    canvas.text("deadline", (x(1.0), TOP - 16.0), Anchor::Middle, 12.5, INK)?;
    let middle = ((LEFT + RIGHT) / 2.0, HEIGHT - 12.0);
    let caption = "response over period (logarithmic)";
    canvas.text(caption, middle, Anchor::Middle, 12.5, FADED)
}
