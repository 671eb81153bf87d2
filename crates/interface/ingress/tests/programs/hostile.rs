//! What a pod sends that is not its own to send, or that cannot be taken.

use super::support::{DEVICE, Site, ended_well, refused, static_talker};

const COUNT: u32 = 20;
const LEAD: &str = "200000";

/// What a hostile pod tries, how it is counted, and by which name the node's operator sees it.
const TRIED: [(&str, &str, &str); 5] = [
    ("forge", "foreign-source-address", "foreign-source-address"),
    ("vlan", "vlan-tag", "vlan-tag"),
    ("arp", "foreign-frame", "foreign-frame"),
    ("short", "malformed", "malformed"),
    ("gso", "segmented", "socket-option"),
];

/// The pod knows its neighbour, and the tables are full.
fn greet(site: &Site) {
    let to = site.addresses()[0];
    ended_well(site.talker(&static_talker(), "none", to, 1, "0").output());
}

#[test]
fn where_it_is_required_nothing_of_it_leaves_and_all_of_it_is_counted() {
    let site = Site::bridged();
    let wire = site.capture();
    greet(&site);
    wire.wait(1);
    let attached = site.attach(&["--required"]);
    let to = site.addresses()[0];
    for (what, counter, told) in TRIED {
        ended_well(
            site.talker(&static_talker(), "tai", to, COUNT, LEAD)
                .arg(what)
                .output(),
        );
        site.until_counted(counter, COUNT.into());
        takt_testing::until(&format!("the runtime knows of {what}"), || {
            (site.unserved().get(told) == Some(&u64::from(COUNT))).then_some(())
        });
    }
    // The pod's own are served beside that, behind all that came before.
    ended_well(
        site.talker(&static_talker(), "tai", to, COUNT, LEAD)
            .output(),
    );
    let arrivals = wire.wait(COUNT as usize);
    assert_eq!(arrivals.len(), COUNT as usize, "{arrivals:?}");
    assert!(arrivals.iter().all(|arrival| arrival.after >= 0));
    let (_, _, counters) = site.status();
    // The guard's: what the other program does not take.
    assert_eq!(counters["dropped"], u64::from(COUNT), "{counters:?}");
    assert_eq!(counters["given-back"], 0);
    attached.terminate();
}

#[test]
fn where_it_is_not_required_it_goes_the_kernels_way_and_is_counted() {
    let site = Site::bridged();
    let listener = site.listener();
    greet(&site);
    listener.recv(&mut [0]).expect("a datagram");
    let attached = site.attach(&[]);
    let to = site.addresses()[0];
    // No kernel forwards a packet without a header, and some refuse to have one given back.
    for (what, counter, _) in TRIED.into_iter().filter(|(what, ..)| *what != "short") {
        ended_well(
            site.talker(&static_talker(), "tai", to, COUNT, LEAD)
                .arg(what)
                .output(),
        );
        site.until_counted(counter, COUNT.into());
    }
    site.until_counted("given-back", 3 * u64::from(COUNT));
    // What is UDP has come: a datagram of each forged frame, eight of each packet of eight.
    let (mut forged, mut segments) = (0, 0);
    while (forged, segments) != (COUNT, 8 * COUNT) {
        match listener.recv(&mut [0; 512]).expect("a datagram") {
            32 => forged += 1,
            200 => segments += 1,
            other => panic!("{other} octets"),
        }
    }
    attached.terminate();
}

#[test]
fn what_cannot_be_attached_to_is_refused_by_name() {
    let site = Site::bridged();
    let says = |arguments: &[&str], words: &str| {
        let said = refused(site.veth(arguments).output());
        assert!(said.contains(words), "{said}");
    };
    says(&["attach", "--device", "nowhere"], "no device nowhere");
    says(&["attach", "--device", "cni0"], "cni0 is no veth");
    says(&["status", "--device", "lo"], "lo is no veth");
    says(
        &[
            "attach",
            "--device",
            DEVICE,
            "--socket",
            "/nonexistent/takt.sock",
        ],
        "/nonexistent/takt.sock",
    );
    says(
        &["attach", "--device", DEVICE, "--class", "8"],
        "neither a class",
    );
    let attached = site.attach(&["--required"]);
    says(
        &["attach", "--device", DEVICE, "--required"],
        "taken already",
    );
    attached.kill();
    says(&["attach", "--device", DEVICE], "dropped at c1");
    let said = ended_well(site.veth(&["detach", "--device", DEVICE]).output());
    assert!(said.contains("pass again"), "{said}");
    let said = ended_well(site.veth(&["detach", "--device", DEVICE]).output());
    assert!(said.contains("nothing to detach"), "{said}");
    site.attach(&[]).terminate();
}

#[test]
fn an_attachment_ends_with_its_device_and_says_so() {
    let site = Site::bridged();
    let attached = site.attach(&["--required"]);
    let status = std::process::Command::new("ip")
        .args(["-n", site.pod().namespace(), "link", "delete", "eth0"])
        .status();
    assert!(status.expect("ip").success());
    let (well, said) = attached.end();
    assert!(!well && said.contains("the device has gone"), "{said}");
}
