//! Results as tables of plain text, columns aligned, no colours.

use std::fmt::Write;

use crate::check::{Outcome, Verdict};
use crate::measure::{Activation, Estimate};
use crate::packing::Packing;
use crate::per_task::PerTaskPlan;
use crate::plan::Plan;
use crate::reservation::Bandwidth;

/// Rows under a header, the first column aligned to the left and all others to the right.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(header: &[&str]) -> Self {
        Self {
            rows: vec![header.iter().map(|&name| name.to_owned()).collect()],
        }
    }

    fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 {
                    let _ = write!(line, "{cell:<width$}");
                } else {
                    let _ = write!(line, "  {cell:>width$}");
                }
            }
            let _ = writeln!(text, "{}", line.trim_end());
            if number == 0 {
                let _ = writeln!(
                    text,
                    "{}",
                    "-".repeat(widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1))
                );
            }
        }
        text
    }
}

/// Task by task how its worst response compares with its deadline, and the verdict in a sentence.
pub fn verdict_table(verdict: &Verdict) -> String {
    let tasks = verdict.tasks();
    // Only what some task has.
    let jitter = tasks.iter().any(|task| !task.jitter.is_zero());
    let blocking = tasks.iter().any(|task| !task.blocking.is_zero());
    let offset = tasks.iter().any(|task| task.offset.is_some());
    let more = [(jitter, "J"), (blocking, "B"), (offset, "O")];
    let more: Vec<&str> = more.iter().filter(|(has, _)| *has).map(|of| of.1).collect();
    let header = ["task", "prio", "C", "T", "D"].into_iter().chain(more);
    let header: Vec<&str> = header.chain(["response", "slack", "verdict"]).collect();
    let mut table = Table::new(&header);
    for task in verdict.tasks() {
        let response = task.outcome.response();
        let slack = response
            .filter(|response| *response <= task.deadline)
            .map(|_| task.slack().to_string());
        let judged = match task.outcome {
            Outcome::Meets { .. } => "meets",
            Outcome::Misses { .. } => "MAY MISS",
            Outcome::NotAnalysed => "open",
        };
        let dash = || "-".to_owned();
        let mut row = vec![
            task.name.clone(),
            task.priority.to_string(),
            task.wcet.to_string(),
            task.period.to_string(),
            task.deadline.to_string(),
        ];
        row.extend(jitter.then(|| task.jitter.to_string()));
        row.extend(blocking.then(|| task.blocking.to_string()));
        row.extend(offset.then(|| task.offset.map_or_else(dash, |offset| offset.to_string())));
        row.extend([
            response.map_or_else(dash, |response| response.to_string()),
            slack.unwrap_or_else(dash),
            judged.to_owned(),
        ]);
        table.row(row);
    }
    let reservation = verdict.reservation();
    let unused = match offset && reservation.cores() > 1 {
        true => "offsets are of no use on several cores: the bounds hold for tasks without\n",
        false => "",
    };
    format!(
        "{reservation} ({} of each, {} in all)\n\n{}\n{}\n{unused}",
        reservation.core_bandwidth(),
        reservation.total_bandwidth(),
        table.render(),
        verdict.reason()
    )
}

/// The chosen reservation with its verdict, and the best `alternatives` of the others.
pub fn plan_table(plan: &Plan, alternatives: usize) -> String {
    let mut text = verdict_table(&plan.verdict);
    if plan.alternatives.len() > 1 && alternatives > 0 {
        let mut table = Table::new(&[
            "alternative",
            "runtime",
            "period",
            "cores",
            "of each",
            "in all",
        ]);
        for (number, alternative) in plan
            .alternatives
            .iter()
            .skip(1)
            .take(alternatives)
            .enumerate()
        {
            let reservation = &alternative.reservation;
            table.row([
                (number + 1).to_string(),
                reservation.runtime().to_string(),
                reservation.period().to_string(),
                reservation.cores().to_string(),
                reservation.core_bandwidth().to_string(),
                alternative.total_bandwidth.to_string(),
            ]);
        }
        let _ = write!(text, "\n{}", table.render());
    }
    text
}

/// A reservation per task.
pub fn per_task_table(plan: &PerTaskPlan) -> String {
    let mut table = Table::new(&[
        "task",
        "runtime",
        "deadline",
        "period",
        "of a core",
        "response",
    ]);
    for own in &plan.tasks {
        let period = own.reservation.period();
        table.row([
            own.task.clone(),
            own.reservation.runtime().to_string(),
            own.deadline.unwrap_or(period).to_string(),
            period.to_string(),
            own.density().to_string(),
            own.response.to_string(),
        ]);
    }
    format!(
        "{}\n{} of a core in all\n",
        table.render(),
        plan.total_bandwidth
    )
}

/// Which of the requests, by their names, are on which core.
pub fn packing_table(packing: &Packing, names: &[String]) -> String {
    let mut table = Table::new(&["core  reservations", "used", "left"]);
    for (number, core) in packing.cores.iter().enumerate() {
        let on: Vec<&str> = core.requests.iter().map(|&r| names[r].as_str()).collect();
        table.row([
            format!("{number:<4}  {}", on.join(", ")),
            Bandwidth::from_ppm(core.used).to_string(),
            // Rounded down: so much there is.
            Bandwidth::from_ppm(core.left / 1_000 * 1_000).to_string(),
        ]);
    }
    table.render()
}

/// What was measured of a program, and what to bear in mind.
pub fn estimate_table(estimate: &Estimate) -> String {
    let mut table = Table::new(&["measured", ""]);
    let mut line = |what: &str, value: String| table.row([what.to_owned(), value]);
    line("jobs", estimate.jobs.to_string());
    line("CPU time, median", estimate.cpu_p50.to_string());
    line("CPU time, 99%", estimate.cpu_p99.to_string());
    line("CPU time, longest", estimate.cpu_max.to_string());
    match estimate.activation {
        Activation::Periodic { period, jitter } => {
            line("period", period.to_string());
            line("jitter", jitter.to_string());
        }
        Activation::Sporadic => line("period", "none seen".to_owned()),
    }
    line("shortest distance", estimate.min_interarrival.to_string());
    line("C to plan with", estimate.task.wcet().to_string());
    line("T to plan with", estimate.task.period().to_string());
    line("J to plan with", estimate.task.jitter().to_string());
    let mut text = table.render();
    for note in &estimate.notes {
        let _ = write!(text, "\nnote: {note}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Server;
    use crate::check::check;
    use crate::measure::{Sample, estimate};
    use crate::nanos::Nanos;
    use crate::packing::{Fit, Request, pack};
    use crate::per_task::plan_per_task;
    use crate::plan::{Constraints, Periods, plan};
    use crate::reservation::{Overheads, Reservation};
    use crate::task::{Task, TaskSet};

    fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    fn example() -> TaskSet {
        let tasks = [("camera", 7, 50), ("planner", 9, 75)];
        TaskSet::new(
            tasks
                .map(|(name, c, t)| Task::implicit(name, ms(c), ms(t)).unwrap())
                .to_vec(),
        )
        .unwrap()
    }

    #[test]
    fn a_verdict_shows_every_task_and_its_reason() {
        let reservation = Reservation::new(Nanos::from_micros(3_500), ms(10), 1).unwrap();
        let shown = verdict_table(&check(&example(), &reservation, &Overheads::default()));
        let expected = "\
3.5ms every 10ms on 1 core (35.0% of each, 35.0% in all)

task     prio    C     T     D  response   slack  verdict
---------------------------------------------------------
camera      2  7ms  50ms  50ms    26.5ms  23.5ms    meets
planner     1  9ms  75ms  75ms      75ms     0ns    meets

every task meets its deadline; the tightest, `planner` (priority 1), is done within 75ms of its 75ms
";
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_verdict_shows_what_some_task_has() {
        let us = Nanos::from_micros;
        let [camera, planner] = example().tasks().to_vec().try_into().unwrap();
        let late = planner.released_within(us(500)).unwrap();
        let clocked = camera
            .at_offset(ms(5))
            .unwrap()
            .blocked_for(us(200))
            .unwrap();
        let set = TaskSet::new(vec![clocked, late]).unwrap();
        let reservation = Reservation::new(ms(4), ms(10), 1).unwrap();
        let shown = verdict_table(&check(&set, &reservation, &Overheads::default()));
        let expected = "\
task     prio    C     T     D      J      B    O  response   slack  verdict
----------------------------------------------------------------------------
camera      2  7ms  50ms  50ms    0ns  200us  5ms    25.2ms  24.8ms    meets
planner     1  9ms  75ms  75ms  500us    0ns    -    46.5ms  28.5ms    meets
";
        assert!(shown.contains(expected), "{shown}");
        assert!(!shown.contains("offsets are of no use"), "{shown}");
        let offsets = example().tasks().to_vec().into_iter();
        let set = TaskSet::new(offsets.map(|task| task.at_offset(ms(1)).unwrap()).collect());
        let two = Reservation::new(ms(6), ms(10), 2).unwrap();
        let shown = verdict_table(&check(&set.unwrap(), &two, &Overheads::default()));
        assert!(shown.contains("offsets are of no use"), "{shown}");
    }

    #[test]
    fn a_task_without_a_bound_has_a_dash_and_is_marked() {
        let shown = verdict_table(&check(
            &example(),
            &Reservation::new(ms(2), ms(10), 1).unwrap(),
            &Overheads::default(),
        ));
        let planner = shown
            .lines()
            .find(|line| line.starts_with("planner"))
            .unwrap();
        assert!(
            planner.contains(" - ") && planner.ends_with("MAY MISS"),
            "{planner}"
        );
    }

    #[test]
    fn a_plan_shows_the_alternatives_it_turned_down() {
        let constraints = Constraints {
            periods: Periods::Listed(vec![ms(5), ms(10), ms(20)]),
            ..Constraints::default()
        };
        let plan = plan(&example(), &constraints).unwrap();
        let shown = plan_table(&plan, 2);
        let rows: Vec<&str> = shown
            .lines()
            .skip_while(|line| !line.starts_with("alternative"))
            .collect();
        assert_eq!(rows.len(), 4, "{shown}");
        assert!(!plan_table(&plan, 0).contains("alternative"));
    }

    #[test]
    fn reservations_per_task_are_summed_up() {
        let shown = per_task_table(&plan_per_task(&example(), &Constraints::default()).unwrap());
        assert!(
            shown.contains("camera") && shown.ends_with("26.0% of a core in all\n"),
            "{shown}"
        );
    }

    #[test]
    fn a_packing_shows_who_is_on_which_core_and_what_is_left() {
        let request = |millis| Request {
            server: Server::new(Reservation::new(ms(millis), ms(10), 1).unwrap(), None),
            threads: 1,
        };
        let requests = [request(2), request(5)];
        let packing = pack(2, Bandwidth::from_ppm(900_000), &requests, Fit::First);
        let expected = "\
core  reservations      used   left
-----------------------------------
0     planner, camera  70.0%  20.0%
1                       0.0%  90.0%
";
        let names = ["camera", "planner"].map(str::to_owned);
        assert_eq!(packing_table(&packing, &names), expected);
    }

    #[test]
    fn an_estimate_shows_its_notes() {
        let samples: Vec<Sample> = (0..20)
            .map(|job| Sample {
                activation: ms(job * 10),
                cpu: ms(2),
            })
            .collect();
        let shown = estimate_table(&estimate("p", &samples, 100_000).unwrap());
        assert!(
            shown.contains("C to plan with") && shown.contains("2.2ms"),
            "{shown}"
        );
        assert!(shown.contains("note: only 20 jobs were seen"), "{shown}");
    }
}
