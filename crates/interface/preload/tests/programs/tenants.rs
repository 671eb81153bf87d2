//! Several tenants on one node, one of them hostile.

use takt_testing::until;

use super::support::{Listener, Running, Site, script};

/// The class that tenants may not use.
const FORBIDDEN: usize = 7;
/// The talkers' class, in which the hostile tenant floods.
const CLASS: usize = 5;

#[test]
fn a_hostile_tenant_takes_nothing_from_others() {
    let site = Site::with_tenants(4);
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    // The flood of one program fills its part of the queue; those of four would fill it all, were their parts
    // not their tenant's together.
    let floods: Vec<Running> = [2, 2, 2, 2, 3]
        .map(|tenant| {
            let mut flood = site.command_of(tenant, "python3");
            Running::start(flood.arg(script("hostile.py")).arg(&address))
        })
        .into();
    until("queues are full, and all else is refused", || {
        let counters = site.counters();
        let queued = site.departures()[CLASS].queued;
        (queued > 600 && counters.refused > 0).then_some(())
    });
    for round in 0..3 {
        let talkers = [0, 1].map(|tenant| {
            let mut talker = site.command_of(tenant, "python3");
            Running::start(talker.arg(script("talker.py")).arg(&address))
        });
        // In time, every one of them, in the order of each.
        let mut next = [0; 2];
        let containers = [0, 1].map(|at| site.lab.container(0, at).address());
        while next != [20, 20] {
            let (text, from) = listener.next_in_time();
            let tenant = containers
                .iter()
                .position(|address| from.ip().to_canonical() == *address);
            let next = &mut next[tenant.expect("a talker")];
            assert_eq!(text, format!("cycle {next}").as_bytes(), "round {round}");
            *next += 1;
        }
        for talker in talkers {
            let (out, err) = talker.end();
            assert_eq!((out.as_str(), err.as_str()), ("20 stamps, 1 error\n", ""));
        }
    }
    let classes = site.departures();
    assert_eq!(classes[FORBIDDEN].offered, 0);
    assert!(classes[CLASS].refused > 0 && classes[CLASS].refused_late > 0);
    // Refused frames are all that became of it: nobody was thrown out.
    assert_eq!(site.sessions().len(), floods.len());
    for flood in floods {
        assert_eq!(flood.output().1, "");
    }
}
