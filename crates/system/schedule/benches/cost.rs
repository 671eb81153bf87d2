//! What a frame costs the scheduler: one enqueue and one dequeue with so many frames queued.
//!
//! Run with `cargo bench -p takt-schedule`, on an otherwise idle machine for figures to quote. The number
//! of queued frames is held: each round enqueues a frame at a random time ahead, waits (in virtual
//! time) for the next frame due and takes it, so a round is one `enqueue` and up to two calls of
//! `next`. What is shown is the processor time of the thread, over batches of rounds: `min` is the
//! nearest to what the code costs, the rest is what the machine adds.

use std::hint::black_box;
use std::sync::Arc;

use takt_schedule::discipline::{CreditShaper, CreditShaperConfig, LaunchTime, LaunchTimeConfig};
use takt_schedule::{
    Decision, GateEntry, GateList, GateMask, Item, Link, Port, PortConfig, Schedule,
};
use takt_time::{TaiTime, TrafficClass};

const START_NS: i64 = 1_700_000_000_000_000_000;
/// Mean distance of launch times. Windows and frames are short beside it.
const SPACING_NS: i64 = 10_000;
const BATCHES: usize = 40;
const ROUNDS: u32 = 25_000;

#[derive(Clone, Copy)]
enum Order {
    /// First come, first served.
    Fifo,
    /// By credit, at a slope that never holds a frame up.
    Credit,
    /// By launch time, under a gate control list of so many entries; none where 0.
    Launch { entries: u32 },
}

fn main() {
    println!("machine: {}", processor());
    println!(
        "one enqueue and one dequeue, processor time in ns ({BATCHES} batches of {ROUNDS}), and M frames/s at min"
    );
    println!(
        "{:>10}  {:<26} {:>7} {:>7} {:>7} {:>7} {:>10}",
        "queued", "class", "min", "p50", "p90", "max", "M/s"
    );
    for queued in [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000] {
        for (name, order) in [
            ("first come, first served", Order::Fifo),
            ("credit-based", Order::Credit),
            ("launch time, gates open", Order::Launch { entries: 0 }),
            ("launch time, 8 entries", Order::Launch { entries: 8 }),
            ("launch time, 128 entries", Order::Launch { entries: 128 }),
            ("launch time, 1024 entries", Order::Launch { entries: 1024 }),
        ] {
            let mut costs = Bench::new(queued, order).costs();
            costs.sort_by(f64::total_cmp);
            let at = |share: f64| costs[((BATCHES - 1) as f64 * share).round() as usize];
            println!(
                "{queued:>10}  {name:<26} {:>7.1} {:>7.1} {:>7.1} {:>7.1} {:>10.2}",
                at(0.0),
                at(0.5),
                at(0.9),
                at(1.0),
                1e3 / at(0.0),
            );
        }
    }
}

struct Bench {
    port: Port<u32>,
    class: TrafficClass,
    order: Order,
    now: TaiTime,
    queued: u32,
    random: u64,
}

impl Bench {
    fn new(queued: u32, order: Order) -> Self {
        let class = TrafficClass::new(5).unwrap_or_default();
        let mut port = Port::new(PortConfig {
            link: Link::ethernet(100_000_000_000),
            ..PortConfig::default()
        });
        let capacity = queued as usize + 1;
        let now = TaiTime::from_nanos(START_NS);
        let set = match order {
            Order::Fifo => {
                port.set_discipline(class, takt_schedule::discipline::Fifo::new(capacity))
            }
            Order::Credit => port.set_discipline(
                class,
                CreditShaper::new(CreditShaperConfig {
                    capacity,
                    idle_slope_bps: 100_000_000_000,
                    high_credit_bits: 1 << 40,
                }),
            ),
            Order::Launch { .. } => port.set_discipline(
                class,
                LaunchTime::new(LaunchTimeConfig {
                    capacity,
                    horizon_ns: i64::MAX as u64,
                    tolerance_ns: u32::MAX,
                    ..LaunchTimeConfig::default()
                }),
            ),
        };
        set.expect("an empty class");
        if let Order::Launch { entries: 1.. } = order {
            let list = GateList::new(&alternating(order, now)).expect("a list that runs");
            port.gates_mut().install(Arc::new(list), now);
        }
        let mut bench = Self {
            port,
            class,
            order,
            now,
            queued,
            random: 0x2545_f491_4f6c_dd1d,
        };
        for frame in 0..queued {
            bench.offer(frame);
        }
        bench
    }

    /// Processor time of a frame in each batch, nanoseconds.
    fn costs(&mut self) -> Vec<f64> {
        let batch = |_| {
            let begin = processor_time_ns();
            for frame in 0..ROUNDS {
                self.offer(frame);
                self.take();
            }
            (processor_time_ns() - begin) as f64 / f64::from(ROUNDS)
        };
        (0..BATCHES).map(batch).collect()
    }

    fn offer(&mut self, frame: u32) {
        let item = match self.order {
            Order::Launch { .. } => Item::new(200, frame).at(self.launch_time()),
            Order::Fifo | Order::Credit => Item::new(200, frame),
        };
        let taken = self.port.enqueue(self.class, item, self.now).is_ok();
        assert!(black_box(taken), "the class has room");
    }

    fn take(&mut self) {
        loop {
            match self.port.next(self.now) {
                Decision::WaitUntil(due) => self.now = due,
                decision => {
                    assert!(matches!(black_box(decision), Decision::Send(_)));
                    return;
                }
            }
        }
    }

    fn launch_time(&mut self) -> TaiTime {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let ahead = self.random % (2 * SPACING_NS as u64 * u64::from(self.queued));
        self.now.saturating_add_nanos(ahead as i64)
    }
}

/// A list that opens and closes the class by turns.
fn alternating(order: Order, now: TaiTime) -> Schedule {
    let entries = match order {
        Order::Launch { entries } => entries,
        Order::Fifo | Order::Credit => 0,
    };
    let gates = |entry: u32| GateMask::from_bits(if entry.is_multiple_of(2) { 0xff } else { 0xdf });
    Schedule {
        base_time: now,
        cycle_time_ns: u64::from(entries) * 2_000,
        entries: (0..entries)
            .map(|entry| GateEntry::new(gates(entry), 2_000))
            .collect(),
        ..Schedule::default()
    }
}

/// Time this thread has had on a processor.
fn processor_time_ns() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    model
        .map_or("unknown", |model| {
            model.trim_start_matches([' ', '\t', ':'])
        })
        .to_owned()
}
