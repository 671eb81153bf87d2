//! Programs that others have written: they name times, and know nothing of us.

use super::support::{Listener, Running, Site, ended_well, script, until};

#[test]
fn a_talker_in_python_sends_and_reads_its_error_queue() {
    let site = Site::new();
    for address in site.addresses() {
        let listener = Listener::new(site.there());
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

/// The arguments of an isochron at both ends.
fn isochron(site: &Site, form: &[&str], sender: &[&str]) -> (String, String) {
    let receiver = site
        .there()
        .command("isochron")
        .expect("the lab is up")
        .args(["rcv", "--interface", "eth0", "--quiet"])
        .args(form)
        .stdin(std::process::Stdio::null())
        .spawn();
    let mut receiver = receiver.expect("isochron: run scripts/setup.sh");
    let command = || {
        let mut command = site.command("isochron");
        command
            .args(["send", "--interface", "eth0", "--txtime", "--omit-sync"])
            .args([
                "--num-frames",
                "50",
                "--frame-size",
                "200",
                "--priority",
                "5",
            ])
            .args(["--cycle-time", "0.005", "--advance-time", "0.002"])
            .args(["--client", &site.addresses()[0].to_string()])
            .args(form)
            .args(sender);
        command
    };
    // The receiver takes a moment to listen, and isochron has no other way to ask.
    let (out, err) = until("isochron has sent", || {
        let output = command().output().expect("isochron");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if text.contains("onnection refused") {
            return None;
        }
        Some(ended_well(Ok(output)))
    });
    receiver.kill().expect("it runs");
    receiver.wait().expect("it ends");
    (out, err)
}

#[test]
fn isochron_sends_at_its_times_over_udp_and_over_ethernet() {
    let site = Site::new();
    let address = site.addresses()[0].to_string();
    let station = takt_wire::ethernet::MacAddress(site.there().mac()).to_string();
    let mut sent = 0;
    for (form, sender) in [
        (&["--l4"][..], vec!["--ip-destination", &address]),
        (&["--l2"], vec!["--dmac", &station]),
    ] {
        let (out, err) = isochron(&site, form, &sender);
        assert!(!err.contains("takt-preload"), "{err}");
        assert!(!err.contains("imed out"), "{out}{err}");
        sent += 50;
        assert_eq!(site.sent(), sent, "{out}{err}");
    }
}
