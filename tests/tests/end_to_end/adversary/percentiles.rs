//! Whether things take longer beside the one neighbour than beside the other, so that other programs' work does not decide.
//!
//! Turns of the neighbours go round, so that each of the one has one of the other behind it: a pair. If in half of all pairs the
//! 99th percentile beside the hostile one were more than twice that beside the honest one, or in fewer, then it would be
//! in `pairs / 2 + sqrt(pairs)` or more of them in one run of forty only (a binomial distribution, two standard deviations). In so
//! many it may not be.

use super::victims::Latencies;

/// Percentiles are told of so many samples at least; turns are joined until there are as many.
const SAMPLES: usize = 200;
/// How many times longer it may take.
const MOST_TIMES: f64 = 2.0;

/// Turns of the two neighbours: what was measured beside each.
#[derive(Debug, Default)]
pub struct Pairs {
    /// Of the honest one and of the hostile one, since the last pair.
    open: [Latencies; 2],
    /// The 99th percentiles of each pair, microseconds.
    pairs: Vec<[f64; 2]>,
}

impl Pairs {
    /// A turn of each.
    pub fn add(&mut self, turns: [&Latencies; 2]) {
        for (open, turn) in self.open.iter_mut().zip(turns) {
            open.add(turn.clone());
        }
        if self.open.iter().all(|open| open.count() >= SAMPLES) {
            let mut open = std::mem::take(&mut self.open);
            self.pairs
                .push(open.each_mut().map(|turns| turns.told()[1]));
        }
    }

    /// In how many pairs it took more than twice as long beside the hostile one, of how many; and how many say that it does.
    pub fn slower(&self) -> (usize, usize, usize) {
        let slower = self
            .pairs
            .iter()
            .filter(|[honest, hostile]| *hostile > MOST_TIMES * honest);
        let pairs = self.pairs.len() as f64;
        let most = pairs / 2.0 + pairs.sqrt();
        (slower.count(), self.pairs.len(), most.ceil() as usize)
    }
}

fn pairs(of: impl IntoIterator<Item = [u128; 2]>) -> (usize, usize, usize) {
    let mut pairs = Pairs::default();
    for each in of {
        let turns = each.map(|nanoseconds| {
            let mut turn = Latencies::default();
            // In halves: two turns make a pair.
            (0..SAMPLES / 2).for_each(|_| turn.note(nanoseconds));
            turn
        });
        pairs.add(turns.each_ref());
    }
    pairs.slower()
}

#[test]
fn whoever_is_slowed_down_in_nearly_all_pairs_is_found_out_and_a_few_slow_turns_decide_nothing() {
    let (fast, slow) = (1_000, 2_001);
    assert_eq!(pairs([[fast, slow]; 32]), (16, 16, 12));
    assert_eq!(pairs([[fast, 2 * fast]; 32]), (0, 16, 12));
    // What the machine did in some of them.
    let some = (0..32).map(|turn| [fast, if turn < 20 { 100 * slow } else { fast }]);
    assert_eq!(pairs(some), (10, 16, 12));
    assert_eq!(pairs([[fast, slow]]), (0, 0, 0));
    assert_eq!(pairs([[fast, slow]; 6]), (3, 3, 4));
}
