//! The search for offsets.

use takt_time::TrafficClass;

use super::{Hop, Placed, Plan, Reason, Unmet, route};
use crate::admission::common_divisor;

/// How often the search begins anew, with those first that found no place.
const ATTEMPTS: usize = 400;
/// How often two streams are compared in a search, after which it ends: some seconds.
const MOST_COMPARISONS: usize = 50_000_000;

/// A stream of which all but the offset is known.
struct Shape {
    class: TrafficClass,
    period_ns: u64,
    offsets_ns: (u64, u64),
    hops: Vec<Hop>,
}

/// What a placed stream has of a port: when it is there, opens and closes, nanoseconds from the beginning of its period.
#[derive(Clone, Copy)]
struct Taken {
    class: TrafficClass,
    period_ns: u64,
    arrives_ns: i64,
    opens_ns: i64,
    closes_ns: i64,
}

impl Taken {
    fn new(shape: &Shape, hop: &Hop, offset_ns: u64) -> Self {
        let offset = offset_ns as i64;
        Self {
            class: shape.class,
            period_ns: shape.period_ns,
            arrives_ns: hop.arrives_ns + offset,
            opens_ns: hop.opens_ns + offset,
            closes_ns: hop.closes_ns + offset,
        }
    }

    /// When it begins to be in the way of one of `class`: queues give frames out as they came.
    fn from(&self, class: TrafficClass) -> i64 {
        if self.class == class {
            self.arrives_ns
        } else {
            self.opens_ns
        }
    }

    fn length_beside(&self, class: TrafficClass) -> u64 {
        (self.closes_ns - self.from(class)) as u64
    }

    /// By how much this one has to move on to be clear of another one; 0 if it is. Both need less than `within`, the
    /// greatest common divisor of their periods, together: in that time they meet once, wherever they are.
    fn move_on(&self, other: &Self) -> u64 {
        let within = common_divisor(self.period_ns, other.period_ns);
        let distance = other.from(self.class) - self.from(other.class);
        let distance = distance.rem_euclid(within as i64) as u64;
        let (mine, theirs) = (
            self.length_beside(other.class),
            other.length_beside(self.class),
        );
        if (mine..=within - theirs).contains(&distance) {
            0
        } else {
            (distance + theirs) % within
        }
    }
}

pub(super) fn place(plan: &Plan) -> Result<Vec<Placed>, Vec<Unmet>> {
    let shapes = shapes(plan)?;
    let certain = impossible(plan, &shapes);
    if !certain.is_empty() {
        return Err(certain);
    }
    // Those that come round most often first, and of these the longest.
    let mut order: Vec<usize> = (0..shapes.len()).collect();
    let longest = |at: &usize| {
        let windows = shapes[*at].hops.iter();
        windows.map(|hop| hop.closes_ns - hop.arrives_ns).max()
    };
    order.sort_by_key(|at| (shapes[*at].period_ns, std::cmp::Reverse(longest(at)), *at));
    let mut wishes = vec![0_u32; shapes.len()];
    let mut fewest: Option<Vec<usize>> = None;
    let (mut attempts, mut comparisons) = (0, 0);
    while attempts < ATTEMPTS && comparisons < MOST_COMPARISONS {
        attempts += 1;
        let (offsets, left) = attempt(plan.ports.len(), &shapes, &order, &mut comparisons);
        if left.is_empty() {
            return Ok(placed(plan, shapes, &offsets));
        }
        left.iter().for_each(|at| wishes[*at] += 1);
        order.sort_by_key(|at| std::cmp::Reverse(wishes[*at]));
        if fewest
            .as_ref()
            .is_none_or(|fewest| left.len() < fewest.len())
        {
            fewest = Some(left);
        }
    }
    let mut left = fewest.unwrap_or_default();
    left.sort_unstable();
    let share = shares(plan, &shapes);
    let unmet = left.into_iter().map(|stream| {
        let ports = shapes[stream].hops.iter().map(|hop| hop.port);
        let busiest = ports.max_by_key(|port| share[*port]).unwrap_or(0);
        let reason = Reason::NotFound {
            port: plan.ports[busiest].name(),
            share: share[busiest],
            attempts,
        };
        Unmet { stream, reason }
    });
    Err(unmet.collect())
}

fn shapes(plan: &Plan) -> Result<Vec<Shape>, Vec<Unmet>> {
    let (mut shapes, mut unmet) = (Vec::new(), Vec::new());
    for (number, stream) in plan.streams.iter().enumerate() {
        let hops = route::hops(plan, stream).and_then(|hops| {
            let needs_ns = route::latency_ns(plan, &hops);
            let has_ns = stream.deadline_ns;
            if needs_ns > has_ns {
                return Err(Reason::Deadline { needs_ns, has_ns });
            }
            Ok(hops)
        });
        match hops {
            Ok(hops) => shapes.push(Shape {
                class: stream.class,
                period_ns: stream.period_ns,
                offsets_ns: stream.offsets_ns,
                hops,
            }),
            Err(reason) => unmet.push(Unmet {
                stream: number,
                reason,
            }),
        }
    }
    if unmet.is_empty() {
        Ok(shapes)
    } else {
        Err(unmet)
    }
}

/// Parts of 1000 of each port's time that its streams need.
fn shares(plan: &Plan, shapes: &[Shape]) -> Vec<u64> {
    let mut parts = vec![0_u128; plan.ports.len()];
    for shape in shapes {
        for hop in &shape.hops {
            let window = (hop.closes_ns - hop.opens_ns) as u128;
            parts[hop.port] += window * 1_000_000_000 / u128::from(shape.period_ns);
        }
    }
    let share = |parts: u128| u64::try_from(parts.div_ceil(1_000_000)).unwrap_or(u64::MAX);
    parts.into_iter().map(share).collect()
}

/// What no offsets could help.
fn impossible(plan: &Plan, shapes: &[Shape]) -> Vec<Unmet> {
    let share = shares(plan, shapes);
    let mut unmet: Vec<Unmet> = Vec::new();
    for (stream, shape) in shapes.iter().enumerate() {
        let too_much = shape.hops.iter().find(|hop| share[hop.port] > 1000);
        let meets = || {
            let earlier = shapes[..stream].iter().enumerate();
            earlier
                .flat_map(|(at, other)| other.hops.iter().map(move |hop| (at, other, hop)))
                .find_map(|(at, other, theirs)| {
                    let mine = shape.hops.iter().find(|hop| hop.port == theirs.port)?;
                    let one = Taken::new(shape, mine, 0).length_beside(other.class);
                    let two = Taken::new(other, theirs, 0).length_beside(shape.class);
                    let within_ns = common_divisor(shape.period_ns, other.period_ns);
                    (one + two > within_ns).then(|| Reason::Meets {
                        port: plan.ports[mine.port].name(),
                        other: plan.streams[at].name.clone(),
                        need_ns: one + two,
                        within_ns,
                    })
                })
        };
        let reason = match too_much {
            Some(hop) => Some(Reason::TooMuch {
                port: plan.ports[hop.port].name(),
                share: share[hop.port],
            }),
            None => meets(),
        };
        unmet.extend(reason.map(|reason| Unmet { stream, reason }));
    }
    unmet
}

/// Offsets of those that found a place, in this order, and those that did not.
fn attempt(
    ports: usize,
    shapes: &[Shape],
    order: &[usize],
    comparisons: &mut usize,
) -> (Vec<u64>, Vec<usize>) {
    let mut taken: Vec<Vec<Taken>> = vec![Vec::new(); ports];
    let mut offsets = vec![0; shapes.len()];
    let mut left = Vec::new();
    for &at in order {
        let shape = &shapes[at];
        match offset(shape, &taken, comparisons) {
            Some(offset_ns) => {
                offsets[at] = offset_ns;
                for hop in &shape.hops {
                    taken[hop.port].push(Taken::new(shape, hop, offset_ns));
                }
            }
            None => left.push(at),
        }
    }
    (offsets, left)
}

/// The earliest offset that is clear of all that are placed.
fn offset(shape: &Shape, taken: &[Vec<Taken>], comparisons: &mut usize) -> Option<u64> {
    let (mut offset_ns, latest_ns) = shape.offsets_ns;
    while offset_ns <= latest_ns && *comparisons < MOST_COMPARISONS {
        let by = shape.hops.iter().find_map(|hop| {
            let mine = Taken::new(shape, hop, offset_ns);
            let mut others = taken[hop.port].iter();
            others.find_map(|other| {
                *comparisons += 1;
                Some(mine.move_on(other)).filter(|by| *by > 0)
            })
        });
        match by {
            None => return Some(offset_ns),
            Some(by) => offset_ns = offset_ns.checked_add(by)?,
        }
    }
    None
}

fn placed(plan: &Plan, shapes: Vec<Shape>, offsets: &[u64]) -> Vec<Placed> {
    let both = shapes.into_iter().zip(offsets);
    let placed = both.map(|(shape, &offset_ns)| Placed {
        offset_ns,
        latency_ns: route::latency_ns(plan, &shape.hops),
        hops: shape.hops,
    });
    placed.collect()
}
