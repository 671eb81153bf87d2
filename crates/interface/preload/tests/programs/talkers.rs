//! Programs that others have written: they name times, and know nothing of us.

use takt_wire::ethernet::MacAddress;

use takt_testing::{Directory, until};

use super::support::{Listener, PORT, Running, Site, script};

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

/// isochron of NXP's, which tests networks for time-sensitive traffic. It insists on hardware time stamps, and looks
/// whether a frame left before its time or a cycle after it.
#[test]
fn isochron_sends_and_finds_every_frame_stamped_in_its_time() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    let to = site.there().address().to_string();
    let scratch = Directory::new();
    let isochron = |way: &[&str]| {
        let mut command = site.there().command("python3").expect("the lab is up");
        let receiver = Running::start(command.arg(script("receiver.py")));
        until("the receiver listens", || {
            receiver.output().0.contains("ready").then_some(())
        });
        let mut command = site.command("isochron");
        command
            .args(["send", "--interface", "eth0", "--omit-sync", "--txtime"])
            .args(["--num-frames", &FRAMES.to_string(), "--cycle-time", "0.5"])
            .args(["--frame-size", "200", "--priority", "5", "--client", &to])
            .args(way)
            .arg("--output-file")
            .arg(scratch.join("isochron.dat"))
            .env("TAKT_PRELOAD_HWTSTAMP", "on");
        let (out, err) = Running::start(&mut command).end();
        receiver.end();
        // Of those that were not stamped, or not in time.
        assert!(!err.contains("seqid"), "{out}{err}");
    };
    let port = PORT.to_string();
    isochron(&["--l4", "--ip-destination", &to, "--data-port", &port]);
    for number in 1..=FRAMES {
        let (header, _) = listener.next();
        // When it is to leave, when the program woke up, and its number.
        assert_eq!(header[16..20], u32::to_be_bytes(number));
    }
    assert_eq!(site.sent(), u64::from(FRAMES));
    let mac = MacAddress(site.there().mac()).to_string();
    isochron(&["--l2", "--dmac", &mac]);
    assert_eq!(site.sent(), u64::from(2 * FRAMES));
    isochron(&["--l2", "--dmac", &mac, "--vid", "100"]);
    assert_eq!(site.sent(), u64::from(3 * FRAMES));
}

/// Half a second apart: a machine that is busy for longer is not what is tested.
const FRAMES: u32 = 8;
