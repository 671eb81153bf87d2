//! Many parameters at once, and what capacity each needs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use crate::Refused;
use crate::model::{Capacity, Outcome, Parameters, run};
use crate::trace::Trace;

/// One run.
#[derive(Clone, Copy, Debug, Serialize, PartialEq)]
pub struct Point {
    /// Which of the variants.
    pub variant: usize,
    /// What the nodes can do.
    pub capacity: Capacity,
    /// The same in billion instructions a second.
    pub gips: f64,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Plays the trace through all variants at all capacities, on `threads` threads. `done` is told how many of how many runs
/// are over.
///
/// # Errors
/// The first [`Refused`] of any run.
pub fn sweep(
    trace: &Trace,
    variants: &[Parameters],
    capacities: &[Capacity],
    threads: usize,
    done: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Point>, Refused> {
    let count = variants.len() * capacities.len();
    let (next, over) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let points = Mutex::new(vec![None; count]);
    let failed = Mutex::new(None);
    let work = || {
        loop {
            // Relaxed: only the numbers have to differ; results are behind a lock.
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            let (variant, capacity) = (
                number / capacities.len(),
                capacities[number % capacities.len()],
            );
            match run(trace, capacity, &variants[variant]) {
                Ok(outcome) => {
                    let point = Point {
                        variant,
                        capacity,
                        gips: capacity.gips(),
                        outcome,
                    };
                    if let Ok(mut points) = points.lock() {
                        points[number] = Some(point);
                    }
                    done(over.fetch_add(1, Ordering::Relaxed) + 1, count);
                }
                Err(error) => {
                    if let Ok(mut failed) = failed.lock() {
                        failed.get_or_insert(error);
                    }
                    next.store(count, Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, 256) {
            scope.spawn(work);
        }
    });
    if let Some(error) = failed.into_inner().ok().flatten() {
        return Err(error);
    }
    let points = points.into_inner().unwrap_or_default();
    Ok(points.into_iter().flatten().collect())
}

/// The least capacity from which on p99 is at most `target_ns`, interpolated between the two points around it: linear in
/// the capacity, logarithmic in the latency. `None` if even the largest one does not do, or the smallest one does.
pub fn needed(points: &[Point], variant: usize, target_ns: u64) -> Option<f64> {
    let mut own: Vec<&Point> = points
        .iter()
        .filter(|point| point.variant == variant)
        .collect();
    own.sort_by(|one, other| one.gips.total_cmp(&other.gips));
    let misses = |point: &&&Point| point.outcome.p99_ns > target_ns;
    let last = own.iter().rposition(|point| misses(&point))?;
    let (below, above) = (own[last], *own.get(last + 1)?);
    let [high, low, target] = [below.outcome.p99_ns, above.outcome.p99_ns, target_ns]
        .map(|latency| (latency.max(1) as f64).ln());
    let part = (high - target) / (high - low);
    Some(below.gips + part * (above.gips - below.gips))
}
