//! Next hops whose hardware addresses are not known yet, or not any more.

use super::support::{Listener, Running, Site, ended_well, program, script};

#[test]
fn a_first_datagram_waits_for_its_next_hop_and_leaves_at_its_time() {
    for closing in ["0", "1"] {
        for version in 0..2 {
            // Nobody has spoken to anybody.
            let mut site = Site::without_daemon();
            site.start_daemon_without_addresses();
            let listener = Listener::new(site.there());
            let address = site.addresses()[version].to_string();
            let mut command = site.command("python3");
            command.arg(script("cold.py")).args([&address, closing]);
            command.env("TAKT_PRELOAD", "required");
            let running = Running::start(&mut command);
            for number in 0..3 {
                let (text, _) = listener.next_in_time();
                assert_eq!(text, format!("cold {number}").as_bytes());
            }
            let (out, err) = running.end();
            assert_eq!(site.sent(), 3, "by the runtime: {err}");
            match closing {
                "0" => {
                    assert_eq!(out, "missed\n");
                    assert!(err.contains("hardware address"), "{err}");
                }
                _ => assert_eq!(err, ""),
            }
        }
    }
}

/// Lines of a trace between the two marks of `traced.c`.
fn marked(trace: &str) -> Vec<&str> {
    let lines = trace.lines().skip_while(|line| !line.contains("getppid"));
    let lines = lines.skip(1).take_while(|line| !line.contains("getppid"));
    lines.collect()
}

#[test]
fn a_send_asks_nobody_whatever_the_time_and_the_number_of_destinations() {
    let site = Site::new();
    let trace = takt_testing::Directory::new();
    let file = trace.join("trace");
    let mut command = site.here().command("strace").expect("the lab is up");
    let traced = site.command(program("traced"));
    command.arg("-o").arg(&file);
    for (name, value) in traced.get_envs() {
        if let Some(value) = value {
            let mut assignment = name.to_owned();
            assignment.push("=");
            assignment.push(value);
            command.arg("-E").arg(assignment);
        }
    }
    command.arg(traced.get_program());
    command.arg(site.addresses()[0].to_string());
    let (_, err) = ended_well(command.output());
    assert_eq!(err, "");
    let text = std::fs::read_to_string(&file).expect("a trace: install strace");
    let calls = marked(&text);
    // A datagram each 10 ms for 3 s to 40 stations in turn, each with a pause: and nothing else but the doorbell.
    let allowed = |line: &&&str| {
        ["clock_nanosleep(", "write(", "restart_syscall("]
            .iter()
            .any(|name| line.starts_with(name))
    };
    let others: Vec<_> = calls.iter().filter(|line| !allowed(line)).collect();
    assert!(
        others.is_empty(),
        "{} others: {:#?}",
        others.len(),
        &others[..others.len().min(20)]
    );
    let bells = calls
        .iter()
        .filter(|line| line.starts_with("write("))
        .count();
    assert!(bells <= 300, "{bells} doorbells");
}
