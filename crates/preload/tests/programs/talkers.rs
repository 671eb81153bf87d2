//! Programs that others have written: they name times, and know nothing of us.

use super::support::{Listener, Running, Site, script};

#[test]
fn a_talker_in_python_sends_and_reads_its_error_queue() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    for address in site.addresses() {
        let running = Running::start(
            site.command("python3")
                .arg(script("talker.py"))
                .arg(address.to_string()),
        );
        for number in 0..20 {
            let (text, _) = listener.next_in_time();
            assert_eq!(text, format!("cycle {number}").as_bytes());
        }
        let (out, err) = running.end();
        assert_eq!((out.as_str(), err.as_str()), ("20 stamps, 1 error\n", ""));
    }
    assert_eq!(site.sent(), 40);
}
