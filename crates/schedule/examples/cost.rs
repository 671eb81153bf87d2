//! What a frame costs the scheduler: one enqueue and one dequeue with so many frames queued.
//!
//! Run with `cargo run --release -p takt-schedule --example cost`. The number of queued frames is
//! held: each round enqueues a frame at a random time ahead, waits (in virtual time) for the next
//! frame due and takes it, so a round is one `enqueue` and up to two calls of `next`. What is shown is
//! the processor time of the thread, so that others on the machine do not count.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use takt_schedule::discipline::{LaunchTime, LaunchTimeConfig};
use takt_schedule::{
    Decision, GateEntry, GateList, GateMask, Item, Link, Port, PortConfig, Schedule,
};
use takt_time::{TaiTime, TrafficClass};

const START_NS: i64 = 1_700_000_000_000_000_000;
/// Mean distance of launch times. Windows and frames are short beside it.
const SPACING_NS: i64 = 10_000;

fn main() {
    println!("frames queued   gates        ns/frame   M frames/s");
    for queued in [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000] {
        for entries in [0, 8, 128] {
            let each = round(queued, entries);
            println!(
                "{queued:>13}   {:<10} {:>10.1}   {:>10.2}",
                if entries == 0 {
                    "open".to_owned()
                } else {
                    format!("{entries} entries")
                },
                each.as_nanos() as f64 / f64::from(ROUNDS),
                f64::from(ROUNDS) / each.as_secs_f64() / 1e6,
            );
        }
    }
}

const ROUNDS: u32 = 1_000_000;

fn round(queued: u32, entries: u32) -> Duration {
    let class = TrafficClass::new(5).unwrap_or_default();
    let mut port = Port::new(PortConfig {
        link: Link::ethernet(100_000_000_000),
        ..PortConfig::default()
    });
    let launch_times = LaunchTime::new(LaunchTimeConfig {
        capacity: queued as usize + 1,
        horizon_ns: i64::MAX as u64,
        tolerance_ns: u32::MAX,
        ..LaunchTimeConfig::default()
    });
    if let Err(busy) = port.set_discipline(class, launch_times) {
        eprintln!("{busy}");
    }
    let mut now = TaiTime::from_nanos(START_NS);
    if entries > 0 {
        let schedule = Schedule {
            base_time: now,
            cycle_time_ns: u64::from(entries) * 2_000,
            entries: (0..entries)
                .map(|entry| {
                    GateEntry::new(GateMask::from_bits(0xdf | ((entry as u8) & 1) << 5), 2_000)
                })
                .collect(),
            ..Schedule::default()
        };
        match GateList::new(&schedule) {
            Ok(list) => drop(port.gates_mut().install(Arc::new(list), now)),
            Err(error) => eprintln!("{error}"),
        }
    }
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut ahead = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % (2 * SPACING_NS as u64 * u64::from(queued))) as i64
    };
    for frame in 0..queued {
        let item = Item::new(200, frame).at(now.saturating_add_nanos(ahead()));
        black_box(port.enqueue(class, item, now).is_ok());
    }
    let begin = processor_time();
    for frame in 0..ROUNDS {
        let item = Item::new(200, frame).at(now.saturating_add_nanos(ahead()));
        black_box(port.enqueue(class, item, now).is_ok());
        while let Decision::WaitUntil(due) = port.next(now) {
            now = due;
        }
    }
    processor_time() - begin
}

/// Time this thread has had on a processor (proc_pid_schedstat(5), first field).
fn processor_time() -> Duration {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = statistics.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}
