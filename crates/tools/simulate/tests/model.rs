//! The model against what can be said without it.

use takt_simulate::model::{Capacity, Parameters, Strategy, Work, run};
use takt_simulate::picture::curves;
use takt_simulate::sweep::{needed, sweep};
use takt_simulate::trace::{Packet, Spec, Trace};
use takt_simulate::workload::Workload;

const TWO: Capacity = Capacity {
    cores: 2,
    mhz: 1500,
};

fn parameters(strategy: Strategy) -> Parameters {
    Parameters {
        strategy,
        nodes: 4,
        neighbours: 3,
        bits: 10,
        delta_ns: 100_000,
        high: 16,
        low: 4,
        hold_ns: 1_000_000,
        hop_ns: 5_000,
        report_ns: 20_000,
        epoch_ns: 10_000_000,
        queue: 4096,
        work: Work::Packet,
        seed: 1,
    }
}

fn internet(seed: u64) -> Trace {
    let workload = Workload::Internet;
    Trace::generate(&Spec {
        workload,
        pace: workload.pace(),
        generators: 4,
        duration_ns: 300_000_000,
        rate: 2e9,
        line: 10e9,
        seed,
    })
    .expect("traffic")
}

/// Full frames of one flow, so far from each other.
fn one_flow(gap_ns: u64, count: u64) -> Trace {
    let packets = (0..count).map(|number| Packet {
        at_ns: number * gap_ns,
        flow: 0,
        length: 1514,
    });
    Trace::new(packets.collect(), vec![0x1234_5678], "one".into(), None).expect("packets")
}

#[test]
fn an_idle_node_takes_a_hop_and_its_instructions() {
    for strategy in Strategy::ALL {
        // All packets of this flow are of the cheap kind.
        let mut parameters = parameters(strategy);
        parameters.work = Work::Flow;
        let outcome = run(&one_flow(1_000_000, 100), TWO, &parameters).expect("runs");
        // 5 us, and 4500 instructions at 1.5 GHz: 3 us. The histogram has two digits.
        let cheap = (7_900..=8_100).contains(&outcome.p50_ns);
        // Or of the expensive one: 1250 and 50 for each of 1460 bytes.
        let dear = (53_900..=55_100).contains(&outcome.p50_ns);
        assert!(cheap || dear, "{}: {outcome:?}", strategy.name());
        assert_eq!(outcome.p50_ns, outcome.p999_ns);
        assert_eq!((outcome.lost, outcome.moves), (0, 0));
    }
}

#[test]
fn a_queue_has_its_bound_and_what_is_beyond_counts_as_the_worst() {
    let mut parameters = parameters(Strategy::Ecmp);
    parameters.queue = 10;
    let outcome = run(&one_flow(100, 1000), TWO, &parameters).expect("runs");
    assert!((900..990).contains(&outcome.lost), "{outcome:?}");
    assert!(outcome.p99_ns > 9_000_000_000);
}

#[test]
fn waiting_or_parking_until_all_is_done_keeps_every_flow_in_order() {
    let trace = internet(3);
    let at = |mhz| Capacity { cores: 2, mhz };
    for capacity in [at(900), at(1200), at(1500), at(2000)] {
        for strategy in [
            Strategy::IntraDone,
            Strategy::InterDone,
            Strategy::InterHold,
        ] {
            for high in [2, 16] {
                let mut parameters = parameters(strategy);
                parameters.high = high;
                parameters.low = 1;
                let outcome = run(&trace, capacity, &parameters).expect("runs");
                assert!(outcome.moves > 0, "{outcome:?}");
                assert_eq!(outcome.reordered, 0, "{} {outcome:?}", strategy.name());
            }
        }
        let ecmp = run(&trace, capacity, &parameters(Strategy::Ecmp)).expect("runs");
        assert_eq!((ecmp.reordered, ecmp.moves, ecmp.offloaded), (0, 0, 0));
    }
}

#[test]
fn without_delta_or_watermarks_flows_are_reordered_and_it_is_counted() {
    let mut parameters = parameters(Strategy::Inter);
    parameters.delta_ns = 0;
    let outcome = run(
        &internet(3),
        Capacity {
            cores: 2,
            mhz: 1200,
        },
        &parameters,
    )
    .expect("runs");
    assert!(outcome.reordered > 0 && outcome.reordered_flows > 0);
    assert!(outcome.reordered_flows <= outcome.reordered);
}

#[test]
fn neighbours_take_what_one_node_cannot() {
    let trace = internet(3);
    let of = |strategy| run(&trace, TWO, &parameters(strategy)).expect("runs");
    let (alone, together) = (of(Strategy::Intra), of(Strategy::Inter));
    assert_eq!(alone.offloaded, 0);
    assert!(together.offloaded > 0);
    assert!(together.p99_ns < alone.p99_ns, "{together:?} {alone:?}");
    // Nobody's packets are lost or done twice on the way.
    assert_eq!(together.packets, trace.packets.len() as u64);
    assert!((together.utilisation - alone.utilisation).abs() < 0.02);
}

#[test]
fn what_is_parked_goes_on_and_sooner_than_what_stays() {
    let trace = internet(3);
    let at = Capacity {
        cores: 2,
        mhz: 1300,
    };
    let of = |strategy| run(&trace, at, &parameters(strategy)).expect("runs");
    let (stays, parks) = (of(Strategy::InterDone), of(Strategy::InterHold));
    assert!(parks.held > 0 && parks.offloaded > 0, "{parks:?}");
    assert!(parks.p99_ns < stays.p99_ns, "{parks:?} {stays:?}");
    assert!(parks.lost <= stays.lost, "{parks:?} {stays:?}");
    // Where there is room for all, nothing is lost or done twice on the way.
    let of = |strategy| run(&trace, TWO, &parameters(strategy)).expect("runs");
    let (stays, parks) = (of(Strategy::InterDone), of(Strategy::InterHold));
    assert_eq!((stays.lost, parks.lost), (0, 0));
    assert!((parks.utilisation - stays.utilisation).abs() < 0.02);
}

#[test]
fn figures_do_not_depend_on_the_number_of_threads() {
    let trace = internet(5);
    let variants = [parameters(Strategy::Intra), parameters(Strategy::InterDone)];
    let capacities = Capacity::between(2.0, 4.0);
    let of = |threads| sweep(&trace, &variants, &capacities, threads, &|_, _| {}).expect("runs");
    let one = of(1);
    assert_eq!(one, of(3));
    assert_eq!(one.len(), 2 * capacities.len());
    let needed = [0, 1].map(|variant| needed(&one, variant, 300_000));
    if let [Some(alone), Some(together)] = needed {
        assert!(together <= alone, "{needed:?}");
    }
    let names = ["one".to_owned(), "two".to_owned()];
    let svg = curves("p99", &names, &one, 300_000).expect("drawn");
    assert!(svg.starts_with("<svg") && svg.contains("capacity of a node"));
}

#[test]
fn capacities_have_as_few_cores_as_do() {
    let gips: Vec<(u16, u32)> = Capacity::between(2.3, 5.1)
        .iter()
        .map(|capacity| (capacity.cores, capacity.mhz))
        .collect();
    assert_eq!(gips.first(), Some(&(1, 2300)));
    assert_eq!(gips[1..3], [(1, 2400), (2, 1300)]);
    assert_eq!(gips.last(), Some(&(3, 1700)));
}

#[test]
fn a_thousand_nodes_have_neighbours_that_are_not_themselves() {
    let trace = internet(2);
    let mut parameters = parameters(Strategy::InterDone);
    parameters.nodes = 1024;
    parameters.neighbours = 8;
    // The traffic of four generators on so many nodes: slow ones.
    let outcome = run(&trace, Capacity { cores: 1, mhz: 10 }, &parameters).expect("runs");
    assert!(outcome.offloaded > 0);
    assert_eq!(outcome.reordered, 0);
}

#[test]
fn what_has_no_meaning_is_refused_by_name() {
    let trace = one_flow(1000, 10);
    let refused = |change: &dyn Fn(&mut Parameters)| {
        let mut parameters = parameters(Strategy::Inter);
        change(&mut parameters);
        run(&trace, TWO, &parameters)
            .expect_err("refused")
            .to_string()
    };
    assert_eq!(refused(&|p| p.nodes = 0), "nodes 0: 1 to 1024");
    assert_eq!(refused(&|p| p.queue = 0), "queue 0: 1 to 1048576 packets");
    assert_eq!(refused(&|p| p.report_ns = 1), "report 1 ns: at least 1 us");
    assert!(refused(&|p| p.low = 99).contains("the low one must be below"));
    assert!(refused(&|p| p.bits = 21).contains("2^0 to 2^20"));
}
