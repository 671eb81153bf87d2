//! What happens to launch times while nobody takes them.

use super::support::{Running, Site, ended_well, refused, static_talker};

const LEAD: &str = "200000";
/// Runs for longer than what is done to it.
const LONG: u32 = 1_000_000;

#[test]
fn a_reader_that_is_killed_under_load_lets_nothing_leave_untimed_where_it_is_required() {
    let site = Site::bridged();
    let wire = site.capture();
    let attached = site.attach(&["--required"]);
    let to = site.addresses()[0];
    let talker = Running::start(&mut site.talker(&static_talker(), "tai", to, LONG, LEAD));
    let before = wire.wait(50);
    attached.kill();
    // The pod goes on; nothing is taken, and nothing passes.
    takt_testing::until("packets are dropped", || {
        let (taking, required, counters) = site.status();
        assert!(required);
        (!taking && counters["dropped"] >= 500).then_some(())
    });
    let between = wire.all();
    // In its place another one takes over.
    let attached = site.attach(&["--required"]);
    let after = wire.wait(50);
    let all = [before, between, after].concat();
    let early: Vec<_> = all.iter().filter(|arrival| arrival.after < 0).collect();
    assert!(
        early.is_empty(),
        "{} of {} early: {early:?}",
        early.len(),
        all.len()
    );
    // The end as a service manager wants it, too, leaves the guard.
    attached.terminate();
    let (taking, required, counters) = site.status();
    assert!(!taking && required);
    takt_testing::until("packets are dropped", || {
        (site.status().2["dropped"] > counters["dropped"]).then_some(())
    });
    assert!(wire.all().iter().all(|arrival| arrival.after >= 0));
    // Only the operator lifts it. Then they come, untimed.
    ended_well(site.veth(&["detach", "--device", "c1"]).output());
    takt_testing::until("the kernel's way is open", || {
        wire.all()
            .iter()
            .any(|arrival| arrival.after < 0)
            .then_some(())
    });
    talker.kill();
}

#[test]
fn what_does_not_start_leaves_nothing_that_drops() {
    let site = Site::bridged();
    let wire = site.capture();
    let to = site.addresses()[0];
    for cgroup in ["/nowhere", "/proc"] {
        let attach = ["attach", "--device", "c1", "--required", "--cgroup", cgroup];
        let said = refused(site.veth(&attach).output());
        assert!(said.contains(cgroup), "{said}");
        assert_eq!(site.status(), (false, false, [].into()), "{cgroup}");
        ended_well(site.talker(&static_talker(), "tai", to, 1, "0").output());
        wire.wait(1);
    }
    // What was there before stays.
    site.attach(&["--required"]).terminate();
    let attach = [
        "attach",
        "--device",
        "c1",
        "--required",
        "--cgroup",
        "/proc",
    ];
    refused(site.veth(&attach).output());
    assert!(site.status().1);
    ended_well(site.veth(&["detach", "--device", "c1"]).output());
}

#[test]
fn the_pods_root_can_neither_see_nor_remove_what_drops() {
    let site = Site::bridged();
    let wire = site.capture();
    site.attach(&["--required"]).terminate();
    // All that it has: its own end, its queueing disciplines and filters.
    let script = "tc qdisc add dev eth0 clsact; tc qdisc del dev eth0 clsact; ip link set eth0 down; ip link set eth0 up; \
                  ip link set eth0 mtu 1300; ip link set eth0 promisc on; ip link set eth0 name eth1 && ip link set eth1 name eth0; \
                  tc filter show dev eth0 ingress; tc -s qdisc show dev eth0";
    let mut shell = site.pod().command("sh").expect("the lab is up");
    let said = shell.args(["-c", script]).output().expect("a shell");
    assert!(
        !String::from_utf8_lossy(&said.stdout).contains("takt"),
        "{said:?}"
    );
    let mut restored = site.pod().command("sh").expect("the lab is up");
    let restored = restored.args(["-c", "ip link set eth0 up"]).status();
    assert!(restored.expect("a shell").success());
    let to = site.addresses()[0];
    takt_testing::until("it sends again", || {
        ended_well(site.talker(&static_talker(), "none", to, 1, "0").output());
        (!wire.all().is_empty()).then_some(())
    });
    let before = site.status().2["dropped"];
    ended_well(
        site.talker(&static_talker(), "monotonic", to, 50, LEAD)
            .output(),
    );
    site.until_counted("dropped", before + 50);
    ended_well(site.talker(&static_talker(), "none", to, 1, LEAD).output());
    // Behind the fifty: had one of them passed, it had come first.
    assert_eq!(wire.wait(1).len(), 1);
}

#[test]
fn a_runtime_that_is_killed_is_waited_for_and_what_comes_meanwhile_goes_as_asked() {
    for required in [false, true] {
        let mut site = Site::bridged();
        let wire = site.capture();
        let options: &[&str] = if required { &["--required"] } else { &[] };
        let attached = site.attach(options);
        let to = site.addresses()[0];
        let talker = Running::start(&mut site.talker(&static_talker(), "tai", to, LONG, LEAD));
        let served = wire.wait(50);
        assert!(served.iter().all(|arrival| arrival.after >= 0));
        site.kill_daemon();
        takt_testing::until("they are counted", || {
            (site.status().2["no-runtime"] >= 200).then_some(())
        });
        let meanwhile = wire.all();
        let early = meanwhile.iter().filter(|arrival| arrival.after < 0).count();
        if required {
            assert_eq!(early, 0, "{meanwhile:?}");
        } else {
            assert!(early >= 200, "{early}");
        }
        site.start_daemon();
        takt_testing::until("they are in time again", || {
            wire.all()
                .iter()
                .any(|arrival| arrival.after >= 0)
                .then_some(())
        });
        takt_testing::until("the operator is told", || {
            (site.unserved().get("no-runtime") >= Some(&200)).then_some(())
        });
        talker.kill();
        attached.terminate();
    }
}

#[test]
fn a_reader_that_is_killed_leaves_the_kernels_way_open_where_it_is_not_required() {
    let site = Site::bridged();
    let wire = site.capture();
    let attached = site.attach(&[]);
    let to = site.addresses()[0];
    let talker = Running::start(&mut site.talker(&static_talker(), "tai", to, LONG, LEAD));
    let served = wire.wait(50);
    assert!(served.iter().all(|arrival| arrival.after >= 0));
    attached.kill();
    takt_testing::until("the kernel's way is open", || {
        wire.all()
            .iter()
            .any(|arrival| arrival.after < 0)
            .then_some(())
    });
    assert_eq!(site.status(), (false, false, [].into()));
    talker.kill();
}

#[test]
fn the_end_of_an_attachment_under_load_loses_nothing() {
    let site = Site::bridged();
    let wire = site.capture();
    let attached = site.attach(&[]);
    let to = site.addresses()[0];
    let talker = Running::start(&mut site.talker(&static_talker(), "tai", to, 2000, LEAD));
    let first = wire.wait(100);
    attached.terminate();
    let (well, said) = talker.end();
    assert!(well, "{said}");
    let rest = wire.wait(2000 - first.len());
    let mut numbers: Vec<u32> = [first, rest]
        .concat()
        .iter()
        .map(|arrival| arrival.number)
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..2000).collect::<Vec<_>>());
}

#[test]
fn times_by_the_clock_that_a_veth_clears_do_not_get_past_what_is_required() {
    let site = Site::bridged();
    let wire = site.capture();
    let attached = site.attach(&["--required"]);
    let to = site.addresses()[0];
    let talker = Running::start(&mut site.talker(&static_talker(), "realtime", to, LONG, LEAD));
    let before = wire.wait(50);
    attached.kill();
    takt_testing::until("packets are dropped", || {
        let (taking, required, counters) = site.status();
        (required && !taking && counters["dropped"] >= 500).then_some(())
    });
    let between = wire.all();
    // In the place of what the killed one has left.
    let attached = site.attach(&["--required"]);
    let after = wire.wait(50);
    let all = [before, between, after].concat();
    let early: Vec<_> = all.iter().filter(|arrival| arrival.after < 0).collect();
    assert!(early.is_empty(), "{early:?}");
    talker.kill();
    // Only IP can be given another clock.
    let (_, _, counters) = site.status();
    assert_eq!(counters["realtime-not-ip"], 0);
    let said = refused(
        site.talker(&static_talker(), "realtime", to, 1, LEAD)
            .arg("vlan")
            .output(),
    );
    assert!(said.contains("No buffer space"), "{said}");
    site.until_counted("realtime-not-ip", 1);
    // The pod may give its interface another name.
    let mut shell = site.pod().command("sh").expect("the lab is up");
    let script = "ip link set eth0 down && ip link set eth0 name eth9 && ip link set eth9 name eth0 && ip link set eth0 up";
    assert!(
        shell
            .args(["-c", script])
            .status()
            .expect("a shell")
            .success()
    );
    let sent = site.status().2["realtime"];
    takt_testing::until("it is taken as before", || {
        ended_well(
            site.talker(&static_talker(), "realtime", to, 1, LEAD)
                .output(),
        );
        (site.status().2["realtime"] > sent).then_some(())
    });
    attached.terminate();
    // Only the operator lifts it, at both ends.
    ended_well(site.veth(&["detach", "--device", "c1"]).output());
    assert_eq!(site.status(), (false, false, [].into()));
}
