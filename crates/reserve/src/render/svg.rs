//! Supply and demand as a self-contained SVG picture: no fonts, scripts or files from elsewhere.

use std::fmt::Write;

use super::curve::{Curves, curves};
use crate::check::{Outcome, Verdict};
use crate::nanos::Nanos;

const WIDTH: f64 = 960.0;
const PLOT_LEFT: f64 = 96.0;
const PLOT_TOP: f64 = 92.0;
const PLOT_WIDTH: f64 = 824.0;
const PLOT_HEIGHT: f64 = 330.0;
const ROW_HEIGHT: f64 = 24.0;
const BAR_LEFT: f64 = 220.0;
/// Where a response equal to the deadline ends; late ones run on beyond it.
const BAR_FULL: f64 = 430.0;
const BAR_MOST: f64 = 500.0;

const SUPPLY: &str = "#0b63b8";
const DEMAND: &str = "#b8470b";
const LATE: &str = "#b00020";
const INK: &str = "#1d2329";
const FAINT: &str = "#d5dae0";

/// The picture for the task that decides: the one that fails first, else the one nearest to its
/// deadline.
pub fn supply_and_demand(verdict: &Verdict) -> String {
    picture(verdict, verdict.decisive_task())
}

/// The picture for the task of that name, or `None` when there is none.
pub fn supply_and_demand_of(verdict: &Verdict, name: &str) -> Option<String> {
    let task = verdict.tasks().iter().position(|task| task.name == name)?;
    Some(picture(verdict, task))
}

fn picture(verdict: &Verdict, task: usize) -> String {
    let curves = curves(verdict, task);
    let rows = verdict.tasks().len() as f64;
    let bars_top = PLOT_TOP + PLOT_HEIGHT + 84.0;
    let height = bars_top + rows * ROW_HEIGHT + 24.0;
    let name = escape(&verdict.tasks()[task].name);
    let mut svg = String::new();
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, sans-serif\" \
         font-size=\"13\" fill=\"{INK}\" role=\"img\">\n\
         <title>Supply and demand of {name} under {reservation}</title>\n\
         <desc>{reason}</desc>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"24\" y=\"32\" font-size=\"18\" font-weight=\"600\">{reservation}: {answer}</text>\n",
        reservation = verdict.reservation(),
        reason = escape(&verdict.reason()),
        answer = if verdict.is_schedulable() {
            "every deadline is met"
        } else {
            "does not suffice"
        },
    );
    let per_core = if verdict.reservation().cores() == 1 {
        ""
    } else {
        ", per core"
    };
    let _ = writeln!(
        svg,
        "<g transform=\"translate(24 58)\">{}<text x=\"34\" y=\"4\">CPU time guaranteed{per_core}</text>\
         <g transform=\"translate(290 0)\">{}<text x=\"34\" y=\"4\">needed by {name} and what may delay it{per_core}</text></g></g>",
        stroke(SUPPLY),
        stroke(DEMAND),
    );
    plot(&mut svg, &curves);
    bars(&mut svg, verdict, bars_top);
    svg.push_str("</svg>\n");
    svg
}

fn stroke(colour: &str) -> String {
    format!("<line x1=\"0\" x2=\"26\" y1=\"0\" y2=\"0\" stroke=\"{colour}\" stroke-width=\"3\"/>")
}

fn plot(svg: &mut String, curves: &Curves) {
    let end = curves.points.last().map_or(1, |point| point.0).max(1);
    let most = curves
        .points
        .iter()
        .map(|point| point.1.max(point.2))
        .max()
        .unwrap_or(1)
        .max(1);
    // Room for the marks above the curves.
    let top = most + most / 6 + 1;
    let x = |at: u128| PLOT_LEFT + PLOT_WIDTH * at as f64 / end as f64;
    let y = |amount: u128| PLOT_TOP + PLOT_HEIGHT * (1.0 - amount as f64 / top as f64);
    let (right, bottom) = (PLOT_LEFT + PLOT_WIDTH, PLOT_TOP + PLOT_HEIGHT);

    for at in ticks(end) {
        let (x, label) = (x(at), Nanos::from_wide(at));
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{PLOT_TOP}\" y2=\"{bottom}\" stroke=\"{FAINT}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            bottom + 20.0
        );
    }
    for amount in ticks(top) {
        let (y, label) = (y(amount), Nanos::from_wide(amount));
        let _ = writeln!(
            svg,
            "<line x1=\"{PLOT_LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{FAINT}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            PLOT_LEFT - 8.0,
            y + 4.0
        );
    }
    let mut polyline = |colour: &str, amount: fn(&(u128, u128, u128)) -> u128| {
        let points: Vec<String> = curves
            .points
            .iter()
            .map(|point| format!("{:.1},{:.1}", x(point.0), y(amount(point))))
            .collect();
        let points = points.join(" ");
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\" points=\"{points}\"/>"
        );
    };
    polyline(DEMAND, |point| point.2);
    polyline(SUPPLY, |point| point.1);

    let late = curves.done.is_none_or(|done| done > curves.due);
    let mut mark = |at: u128, colour: &str, dash: &str, label: &str, line: f64| {
        let (x, label_y) = (x(at), PLOT_TOP + 18.0 * line);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{PLOT_TOP}\" y2=\"{bottom}\" stroke=\"{colour}\" stroke-width=\"1.5\" \
             stroke-dasharray=\"{dash}\"/>\
             <text x=\"{:.1}\" y=\"{label_y:.1}\" text-anchor=\"end\" fill=\"{colour}\" \
             stroke=\"#ffffff\" stroke-width=\"4\" paint-order=\"stroke\">{label}</text>",
            x - 6.0
        );
    };
    mark(
        curves.due,
        INK,
        "6 4",
        &format!("deadline {}", Nanos::from_wide(curves.due)),
        1.0,
    );
    if let Some(done) = curves.done {
        let colour = if late { LATE } else { SUPPLY };
        mark(
            done,
            colour,
            "2 3",
            &format!("done {}", Nanos::from_wide(done)),
            2.0,
        );
    }
    let _ = writeln!(
        svg,
        "<rect x=\"{PLOT_LEFT}\" y=\"{PLOT_TOP}\" width=\"{PLOT_WIDTH}\" height=\"{PLOT_HEIGHT}\" fill=\"none\" stroke=\"{INK}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">time from the worst instant</text>",
        PLOT_LEFT + PLOT_WIDTH / 2.0,
        bottom + 42.0
    );
}

fn bars(svg: &mut String, verdict: &Verdict, top: f64) {
    let bottom = top + verdict.tasks().len() as f64 * ROW_HEIGHT;
    let limit = BAR_LEFT + BAR_FULL;
    let _ = writeln!(
        svg,
        "<text x=\"24\" y=\"{:.1}\" font-weight=\"600\">worst response of each task, of its deadline</text>",
        top - 10.0
    );
    for (row, task) in verdict.tasks().iter().enumerate() {
        let y = top + row as f64 * ROW_HEIGHT;
        let text_y = y + 16.0;
        let response = task.outcome.response();
        let length = response.map_or(0.0, |response| {
            (BAR_FULL * response.get() as f64 / task.deadline.get() as f64).min(BAR_MOST)
        });
        let (colour, said) = match (task.outcome, response) {
            (Outcome::Meets { .. }, Some(response)) => {
                (SUPPLY, format!("{response} of {}", task.deadline))
            }
            (Outcome::Misses { .. }, Some(response)) => {
                (LATE, format!("may miss: {response} of {}", task.deadline))
            }
            (Outcome::Misses { .. }, None) => {
                (LATE, format!("may miss {}: no bound", task.deadline))
            }
            _ => (INK, "open".to_owned()),
        };
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{text_y:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{BAR_LEFT}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"14\" fill=\"{colour}\" opacity=\"0.8\"/>\
             <text x=\"{:.1}\" y=\"{text_y:.1}\" fill=\"{colour}\">{said}</text>",
            BAR_LEFT - 10.0,
            escape(&shortened(&task.name)),
            y + 5.0,
            BAR_LEFT + BAR_FULL.max(length) + 10.0,
        );
    }
    let _ = writeln!(
        svg,
        "<line x1=\"{limit:.1}\" x2=\"{limit:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\" stroke=\"{INK}\" stroke-dasharray=\"6 4\"/>"
    );
}

/// Round numbers between 0 and `end`: about five of them.
fn ticks(end: u128) -> impl Iterator<Item = u128> {
    let rough = (end / 5).max(1);
    let decade = 10u128.pow(rough.ilog10());
    let step = [1, 2, 5, 10]
        .into_iter()
        .map(|factor| factor * decade)
        .find(|&step| step >= rough)
        .unwrap_or(rough);
    (0..=end / step).map(move |number| number * step)
}

fn shortened(name: &str) -> String {
    const MOST: usize = 26;
    if name.chars().count() <= MOST {
        name.to_owned()
    } else {
        name.chars().take(MOST - 1).chain(['…']).collect()
    }
}

/// Text that means itself inside XML. Names hold no control characters, which XML could not.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::reservation::{Overheads, Reservation};
    use crate::task::{Task, TaskSet};

    fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    fn verdict(tasks: &[(&str, u64, u64, u64)], runtime: u64, cores: u32) -> Verdict {
        let tasks = tasks
            .iter()
            .map(|&(name, c, t, d)| Task::new(name, ms(c), ms(t), ms(d)).unwrap());
        let set = TaskSet::new(tasks.collect()).unwrap();
        check(
            &set,
            &Reservation::new(ms(runtime), ms(10), cores).unwrap(),
            &Overheads::default(),
        )
    }

    /// Every tag closed in order, and nothing but plain text between them.
    fn assert_well_formed(svg: &str) {
        let mut open = Vec::new();
        let mut rest = svg;
        while let Some(start) = rest.find('<') {
            assert!(
                !rest[..start].contains('>'),
                "a stray > before {}",
                &rest[start..]
            );
            let end = start + rest[start..].find('>').expect("a tag that ends");
            let tag = &rest[start + 1..end];
            if let Some(closed) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(closed));
            } else if !tag.ends_with('/') {
                open.push(tag.split(' ').next().unwrap());
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            rest = &rest[end + 1..];
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn pictures_are_well_formed_whatever_the_verdict_and_the_names() {
        let hostile = [
            ("<a & \"b\">", 2, 10, 10),
            ("a name that is far too long for the room it has", 4, 20, 45),
        ];
        for cores in [1, 2] {
            for runtime in [2, 5, 9, 10] {
                assert_well_formed(&supply_and_demand(&verdict(&hostile, runtime, cores)));
            }
        }
    }

    #[test]
    fn a_picture_is_of_the_task_that_is_asked_for() {
        let verdict = verdict(&[("camera", 7, 50, 50), ("planner", 9, 75, 75)], 4, 1);
        assert!(
            supply_and_demand_of(&verdict, "camera")
                .unwrap()
                .contains("Supply and demand of camera")
        );
        assert!(supply_and_demand(&verdict).contains("Supply and demand of planner"));
        assert_eq!(supply_and_demand_of(&verdict, "nobody"), None);
    }

    #[test]
    fn the_curves_meet_where_the_job_is_done_and_not_before() {
        for cores in [1, 2] {
            let verdict = verdict(&[("camera", 7, 50, 50), ("planner", 9, 75, 75)], 5, cores);
            let curves = curves(&verdict, 1);
            let done = curves.done.unwrap();
            assert_eq!(
                Some(Nanos::from_wide(done)),
                verdict.tasks()[1].outcome.response()
            );
            for &(at, supply, demand) in curves.points.iter().filter(|point| point.0 > 0) {
                assert!(at >= done || supply < demand, "{at}");
                assert!(at != done || supply >= demand, "{at}");
            }
        }
    }

    #[test]
    fn the_curves_of_a_failure_are_apart_up_to_the_deadline() {
        let verdict = verdict(&[("camera", 7, 50, 50), ("planner", 9, 75, 75)], 3, 1);
        let curves = curves(&verdict, verdict.decisive_task());
        assert_eq!(
            Nanos::from_wide(curves.due),
            verdict.failure().unwrap().instant
        );
        assert!(
            curves
                .points
                .iter()
                .filter(|point| point.0 > 0 && point.0 <= curves.due)
                .all(|point| point.1 < point.2)
        );
    }

    #[test]
    fn a_picture_of_extremes_stays_small() {
        let tasks = vec![
            Task::implicit("fast", Nanos::new(1), Nanos::new(10)).unwrap(),
            Task::implicit("slow", Nanos::from_secs(1), Nanos::from_secs(900_000)).unwrap(),
        ];
        let set = TaskSet::new(tasks).unwrap();
        let reservation = Reservation::new(Nanos::new(900), Nanos::new(1_000), 1).unwrap();
        let svg = supply_and_demand(&check(&set, &reservation, &Overheads::default()));
        assert!(svg.len() < 200_000, "{}", svg.len());
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(75).collect::<Vec<_>>(), [0, 20, 40, 60]);
        assert_eq!(ticks(1).collect::<Vec<_>>(), [0, 1]);
        for end in [3u128, 99, 12_345_678, 10u128.pow(17)] {
            assert!((2..=7).contains(&ticks(end).count()), "{end}");
        }
    }
}
