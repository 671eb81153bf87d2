//! Programs in containers whose hosts are routers, as Flannel builds them.

use super::support::{Listener, Site, ended_well, script};

#[test]
fn a_program_that_requires_the_runtime_is_served_over_a_routed_network() {
    let site = Site::routed();
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    let mut talker = site.command("python3");
    talker.arg(script("talker.py")).arg(&address);
    let (out, err) = ended_well(talker.env("TAKT_PRELOAD", "required").output());
    assert_eq!((out.as_str(), err.as_str()), ("20 stamps, 1 error\n", ""));
    for cycle in 0..20 {
        let (text, from) = listener.next_in_time();
        assert_eq!(text, format!("cycle {cycle}").as_bytes());
        assert_eq!(from.ip().to_canonical(), site.here().address());
    }
    assert_eq!(site.sent(), 20, "by the runtime");
    // What leaves the network is nobody's to send at its time.
    let mut beyond = site.command("python3");
    beyond.arg(script("held.py")).args(["198.51.100.7", "exit"]);
    let refused = beyond.env("TAKT_PRELOAD", "required").output();
    let refused = refused.expect("python3: run scripts/setup.sh");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("does not reach their station"), "{said}");
    assert_eq!(site.sent(), 20);
    // Its operator sees it, also after its end.
    assert_eq!(site.unserved(), [("station-out-of-reach".into(), 1)]);
}
