//! Next hops whose hardware addresses are not known yet, or not any more.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use takt_lab::Host;
use takt_testing::until;
use takt_wire::ethernet::MacAddress;

use super::support::{Listener, Running, Site, ended_well, program, script};

/// An address of the same network that no station has.
fn absent_beside(present: &str) -> String {
    present.rsplit_once('.').expect("IPv4").0.to_owned() + ".253"
}

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

/// The follower begins to listen for the kernel's news after the next hop has told its address: that was news already.
#[test]
fn what_waits_for_its_next_hop_leaves_though_that_has_answered_before_anybody_listened() {
    let mut site = Site::without_daemon();
    site.start_daemon_without_addresses();
    let listener = Listener::new(site.there());
    let mut command = site.command("python3");
    let address = site.addresses()[0].to_string();
    command.arg(script("cold.py")).args([&address, "1"]);
    command.env("TAKT_PRELOAD", "required");
    let running = Running::start(&mut followed_later(&site, &command, 300_000));
    for number in 0..3 {
        let (text, _) = listener.next_in_time();
        assert_eq!(text, format!("cold {number}").as_bytes());
    }
    assert_eq!(running.end().1, "");
    assert_eq!(site.sent(), 3, "by the runtime");
}

/// Whoever sends is held up in the middle of it, and the next hop's answer is news meanwhile.
#[test]
fn what_waits_for_its_next_hop_leaves_in_time_though_that_answers_before_it_waits() {
    let mut site = Site::without_daemon();
    site.start_daemon_without_addresses();
    let listener = Listener::new(site.there());
    let mut command = site.command("python3");
    let address = site.addresses()[0].to_string();
    command.arg(script("cold.py")).args([&address, "1"]);
    command.env("TAKT_PRELOAD", "required");
    // Nothing else is news then: addresses of new links are, for a while.
    std::thread::sleep(std::time::Duration::from_secs(3));
    // Of the first thread alone, each question of whose is long on its way: those of the routes, the neighbour's.
    let trace = ["-qq", "-o", "/dev/null", "-e", "trace=sendto"];
    let slow = [&trace[..], &["-e", "inject=sendto:delay_exit=100000"]].concat();
    let running = Running::start(&mut traced(&site, &command, &slow));
    for number in 0..3 {
        // What is forgotten comes behind what was sent later, or not at all.
        let (text, _) = listener.next_in_time();
        assert_eq!(text, format!("cold {number}").as_bytes());
    }
    assert_eq!(running.end().1, "");
    assert_eq!(site.sent(), 3, "by the runtime");
}

/// The next hop has told its address, and the follower has not heard of it: what is sent next does not go in front of what waits, which would be behind its
/// period.
#[test]
fn what_waits_for_its_next_hop_keeps_its_place_in_a_declared_stream() {
    let mut site = Site::without_daemon();
    let address = site.addresses()[0].to_string();
    site.start_daemon_that_holds_to(&format!(
        "name = \"axis\"\nclass = 5\ndestination = \"{address}:5001\"\nperiod = \"100ms\"\nframe = \"256\""
    ));
    let listener = Listener::new(site.there());
    let mut command = site.command("python3");
    command.arg(script("periods.py")).arg(&address);
    command.env("TAKT_PRELOAD", "required");
    let running = Running::start(&mut followed_later(&site, &command, 400_000));
    for number in 0..4 {
        let (text, _) = listener.next_in_time();
        assert_eq!(text, format!("period {number}").as_bytes());
    }
    assert_eq!(running.end().1, "");
    assert_eq!(site.sent(), 4, "by the runtime");
}

#[test]
fn a_wait_hears_of_what_waited_for_its_next_hop_when_the_wait_began() {
    let mut site = Site::without_daemon();
    site.start_daemon_without_addresses();
    let listener = Listener::new(site.there());
    let mut command = site.command("python3");
    let address = site.addresses()[0].to_string();
    command.arg(script("held.py")).args([&address, "stamp"]);
    command.env("TAKT_PRELOAD", "required");
    let running = Running::start(&mut command);
    for number in 0..3 {
        let (text, _) = listener.next_in_time();
        assert_eq!(text, format!("held {number}").as_bytes());
    }
    assert_eq!(running.end(), ("stamped\n".into(), String::new()));
}

/// Whose a first datagram is comes out when its next hop answers: here a router, beyond which the runtime reaches nobody.
#[test]
fn what_waits_for_a_next_hop_that_the_runtime_does_not_reach_is_the_kernels() {
    let site = Site::routed();
    let node = site.lab.host(0);
    let listener = Listener::new(node);
    let to = node.address().to_string();
    let forget = || {
        let flush = ["neigh", "flush", "all"];
        let status = Command::new("ip")
            .args(["-n", site.here().namespace()])
            .args(flush)
            .status();
        assert!(status.expect("ip").success());
    };
    for way in ["sendto", "sendmsg", "write"] {
        forget();
        let mut command = site.command("python3");
        command
            .arg(script("publisher.py"))
            .args([to.as_str(), "5001", "3", way])
            .env("TAKT_PRELOAD", "required")
            .env("TAKT_PRELOAD_GRID", "now");
        let (_, err) = ended_well(command.output());
        assert_eq!(err, "", "{way}: without a word");
        for number in 0..3i64 {
            let (payload, _) = listener.next();
            assert_eq!(payload[..8], number.to_ne_bytes(), "{way}: in their order");
        }
    }
    let timed = |mode: &str| {
        forget();
        let mut command = site.command("python3");
        command.arg(script("cold.py")).args([to.as_str(), "1"]);
        ended_well(command.env("TAKT_PRELOAD", mode).output()).1
    };
    let err = timed("on");
    assert!(err.contains("go the kernel's way"), "{err}");
    for number in 0..3 {
        let (payload, _) = listener.next();
        assert_eq!(payload[8..], *format!("cold {number}").as_bytes());
    }
    let err = timed("required");
    assert!(err.contains("are refused"), "{err}");
    assert!(listener.is_empty(), "untimed");
    assert_eq!(site.sent(), 0);
}

#[test]
fn what_waits_for_a_next_hop_is_sent_or_counted_however_its_socket_ends() {
    let executions = ["execl", "execlp", "execle", "execveat", "fexecve"];
    let ways = [
        "close",
        "dup",
        "dup2",
        "close_range",
        "exit",
        "_exit",
        "exec",
        "failing exec",
        "child",
    ];
    let ways = || ways.into_iter().chain(executions);
    let mut site = Site::without_daemon();
    site.start_daemon_without_addresses();
    let start = |way: &str, address: &str| {
        let mut command = match way.starts_with("exec") && way != "exec" || way == "fexecve" {
            true => site.command(program("executing")),
            false => {
                let mut command = site.command("python3");
                command.arg(script("held.py"));
                command
            }
        };
        command.args([address, way]);
        Running::start(command.env("TAKT_PRELOAD", "required"))
    };
    // Of a station that is not there, nobody tells an address.
    let [present, _] = site.addresses();
    let absent = absent_beside(&present.to_string());
    let running: Vec<_> = ways().map(|way| (way, start(way, &absent))).collect();
    for (way, running) in running {
        let (_, err) = running.end();
        assert!(
            err.contains("3 datagrams in all: the next hop"),
            "{way}: {err}"
        );
        assert_eq!(err.matches("in all").count(), 1, "once: {way}: {err}");
    }
    // One that is there is forgotten before each.
    let listener = Listener::new(site.there());
    for way in ways() {
        let mut forget = site.here().command("ip").expect("the lab is up");
        forget.args(["neigh", "flush", "all"]);
        ended_well(forget.output());
        let running = start(way, &present.to_string());
        for number in 0..3 {
            let (text, _) = listener.next_in_time();
            assert_eq!(text, format!("held {number}").as_bytes(), "{way}");
        }
        assert_eq!(running.end().1, "", "{way}");
    }
}

/// A next hop that answers after the program has done it in this way, which it says in this word.
fn is_sent_after(way: &str, word: &str) {
    let mut site = Site::without_daemon();
    site.start_daemon_without_addresses();
    let listener = Listener::new(site.there());
    let [present, _] = site.addresses();
    let present = present.to_string();
    let late = absent_beside(&present);
    let mut command = site.command("python3");
    command.arg(script("held.py")).args([late.as_str(), way]);
    let running = Running::start(command.env("TAKT_PRELOAD", "required"));
    until("it has done so", || {
        running.output().0.contains(word).then_some(())
    });
    let mut answer = site.there().command("ip").expect("the lab is up");
    answer.args(["address", "add", &format!("{late}/32"), "dev", "eth0"]);
    ended_well(answer.output());
    for number in 0..3 {
        let (text, _) = listener.next_in_time();
        assert_eq!(text, format!("held {number}").as_bytes());
    }
}

#[test]
fn what_waits_for_a_next_hop_is_sent_though_the_descriptor_is_closed_that_was_used_last() {
    is_sent_after("stays", "closed");
}

#[test]
fn what_waits_for_a_next_hop_is_not_given_up_for_a_program_that_is_none() {
    is_sent_after("no program", "stays");
}

/// The thread that hands over what waits is in another network namespace than the socket.
#[test]
fn sockets_of_another_network_namespace_than_the_first_one_s_are_served_or_refused_at_once() {
    let mut site = Site::without_daemon();
    site.start_daemon_without_addresses();
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    // Begun on the node, with the container's socket of the runtime.
    let mut command = site.lab.host(0).command("nsenter").expect("the lab is up");
    let inside = site.command("python3");
    for (name, value) in inside.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let namespace = format!("/run/netns/{}", site.here().namespace());
    command
        .args(["--preserve-credentials", "python3"])
        .arg(script("elsewhere.py"))
        .args([&namespace, &address])
        .env("TAKT_PRELOAD", "required")
        .stdin(Stdio::null());
    let running = Running::start(&mut command);
    for number in 0..3 {
        let (text, _) = listener.next_in_time();
        assert_eq!(text, format!("elsewhere {number}").as_bytes());
    }
    running.end();
    assert_eq!(site.sent(), 3, "by the runtime");
}

#[test]
fn stamps_of_what_waited_and_was_the_kernel_s_then_have_the_numbers_that_the_program_counts() {
    let site = Site::routed();
    let mut command = site.command("python3");
    command
        .arg(script("numbered.py"))
        .arg(absent_beside(&site.here().address().to_string()))
        .arg(site.lab.host(0).address().to_string());
    let mut flush = site.here().command("ip").expect("the lab is up");
    ended_well(flush.args(["neigh", "flush", "all"]).output());
    let (out, err) = ended_well(command.output());
    assert_eq!(out, "1 2 3\n", "{err}");
}

#[test]
fn what_waits_for_a_next_hop_goes_there_though_its_socket_is_connected_elsewhere() {
    let mut site = Site::without_daemon();
    site.start_daemon_without_addresses();
    let listener = Listener::new(site.there());
    let [present, _] = site.addresses();
    let present = present.to_string();
    let late = absent_beside(&present);
    let mut command = site.command(program("reconnected"));
    command.args([&late, &present]);
    let running = Running::start(command.env("TAKT_PRELOAD", "required"));
    let told = until("it is connected elsewhere", || {
        let (out, _) = running.output();
        out.contains("elsewhere").then_some(out)
    });
    let ports: Vec<u16> = told.split(' ').flat_map(str::parse).collect();
    let mut answer = site.there().command("ip").expect("the lab is up");
    answer.args(["address", "add", &format!("{late}/32"), "dev", "eth0"]);
    ended_well(answer.output());
    for (text, port) in [(b"first".as_slice(), ports[0]), (b"second", ports[1])] {
        let (payload, from) = listener.next_in_time();
        assert_eq!((payload.as_slice(), from.port()), (text, port));
    }
}

/// The peer comes back with another hardware address, and says so to nobody.
#[test]
fn a_neighbour_whose_hardware_address_has_changed_is_asked_and_found_again() {
    let site = Site::following();
    let ip = |host: &Host, arguments: &str| {
        let mut command = host.command("ip").expect("the lab is up");
        ended_well(command.args(arguments.split(' ')).output());
    };
    // As doubtful after a second as it is after half a minute else.
    for name in ["base_reachable_time_ms", "delay_first_probe_time"] {
        let _inside = site.here().enter().expect("the lab is up");
        let value = if name.ends_with("ms") { "1000" } else { "1" };
        let file = format!("/proc/sys/net/ipv4/neigh/eth0/{name}");
        std::fs::write(&file, value).expect("a setting of the kernel");
    }
    let listener = Listener::new(site.there());
    let mut command = site.command("python3");
    command
        .arg(script("stubborn.py"))
        .arg(site.addresses()[0].to_string());
    // By the runtime, or not at all.
    let _talker = Running::start(command.env("TAKT_PRELOAD", "required"));
    for _ in 0..20 {
        listener.next_in_time();
    }
    ip(site.there(), "link set eth0 down");
    ip(site.there(), "link set eth0 address 02:00:00:00:77:01");
    ip(site.there(), "link set eth0 up");
    while !listener.is_empty() {
        listener.next();
    }
    for _ in 0..20 {
        listener.next_in_time();
    }
}

/// Whoever is on the link may say that an address is theirs.
#[test]
fn what_is_for_a_tenant_of_this_node_reaches_it_whatever_the_neighbour_cache_was_made_to_say() {
    let site = Site::with_tenants(3);
    let (receiver, thief) = (site.lab.container(0, 1), site.lab.container(0, 2));
    let mut poisoned = site.here().command("ip").expect("the lab is up");
    poisoned
        .args(["neigh", "replace", &receiver.address().to_string()])
        .args(["lladdr", &MacAddress(thief.mac()).to_string()])
        .args(["dev", "eth0", "nud", "permanent"]);
    ended_well(poisoned.output());
    let listener = Listener::new(receiver);
    let mut command = site.command("python3");
    command
        .arg(script("stubborn.py"))
        .arg(receiver.address().to_string());
    // By the runtime, or not at all.
    let _talker = Running::start(command.env("TAKT_PRELOAD", "required"));
    for _ in 0..20 {
        listener.next_in_time();
    }
}

/// A command whose follower begins so many microseconds later: it gives itself its name before anything else.
fn followed_later(site: &Site, command: &Command, microseconds: u32) -> Command {
    let delay = format!("inject=prctl:delay_enter={microseconds}");
    let options = ["-f", "-qq", "-o", "/dev/null", "-e", "trace=prctl", "-e"];
    traced(site, command, &[&options[..], &[&delay]].concat())
}

/// A command under strace with some options: it has the preload, and strace has not.
fn traced(site: &Site, command: &Command, options: &[impl AsRef<OsStr>]) -> Command {
    let mut strace = site.here().command("strace").expect("the lab is up");
    strace.args(options).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            let mut assignment = name.to_owned();
            assignment.push("=");
            assignment.push(value);
            strace.arg("-E").arg(assignment);
        }
    }
    strace.arg(command.get_program()).args(command.get_args());
    strace
}

/// The system calls of a program's first thread between its two marks.
fn calls_of(site: &Site, name: &str) -> Vec<String> {
    let mut command = site.command(program(name));
    command.arg(site.addresses()[0].to_string());
    let (_, err, calls) = calls_between(site, &command, &[]);
    assert_eq!(err, "");
    calls
}

/// What a program says, and the system calls between the two marks of the thread that sets them, which strace is told to follow.
fn calls_between(
    site: &Site,
    command: &Command,
    options: &[&str],
) -> (String, String, Vec<String>) {
    let trace = takt_testing::Directory::new();
    let file = trace.join("trace");
    let place = ["-qq", "-o", file.to_str().expect("a path")];
    let (out, err) = ended_well(traced(site, command, &[&place[..], options].concat()).output());
    let text = std::fs::read_to_string(&file).expect("a trace: install strace");
    // With `-f`, behind the number of the thread.
    let lines = text.lines().map(|line| {
        let digits = line.bytes().take_while(u8::is_ascii_digit).count();
        let (thread, call) = line.split_at(digits);
        (thread, call.trim_start())
    });
    let mut lines = lines.skip_while(|(_, call)| !call.starts_with("getppid"));
    let marked = lines.next().expect("a mark").0;
    let lines = lines.filter(|(thread, _)| *thread == marked);
    let calls = lines.take_while(|(_, call)| !call.starts_with("getppid"));
    (out, err, calls.map(|(_, call)| call.to_owned()).collect())
}

#[test]
fn a_close_waits_for_no_next_hop_where_the_socket_stays_open_or_is_another_process_s() {
    let mut site = Site::without_daemon();
    site.start_daemon_without_addresses();
    let absent = absent_beside(&site.addresses()[0].to_string());
    for way in ["duplicate", "vfork"] {
        let mut command = site.command(program("holding"));
        command.args([&absent, way]);
        let (_, _, calls) = calls_between(&site, &command, &["-f"]);
        assert!(calls.iter().any(|call| call.starts_with("close(")), "{way}");
        let waits = |call: &&String| call.contains("nanosleep");
        assert_eq!(calls.iter().find(waits), None, "{way}: {calls:#?}");
    }
}

#[test]
fn a_wait_costs_what_the_kernels_does_however_many_descriptors_there_are() {
    let site = Site::new();
    let calls = calls_of(&site, "watching");
    let waits = calls.iter().filter(|line| line.starts_with("epoll_"));
    assert_eq!(waits.count(), 100, "{calls:#?}");
    // What a wait collects is in the preload's heap, whose lock the follower may have at that moment.
    let allowed = |line: &&String| line.starts_with("epoll_") || line.starts_with("futex(");
    let others: Vec<_> = calls.iter().filter(|line| !allowed(line)).collect();
    assert!(others.is_empty(), "{others:#?}");
}

#[test]
fn a_send_asks_nobody_whatever_the_time_and_the_number_of_destinations() {
    let site = Site::new();
    let calls = calls_of(&site, "traced");
    // A datagram each 10 ms for 3 s to 40 stations in turn, each with a pause: and nothing else but the doorbell.
    // The follower, which finds things out meanwhile, has no lock that a send would wait for.
    let allowed = |line: &&String| {
        ["clock_nanosleep(", "write(", "restart_syscall("]
            .iter()
            .any(|name| line.starts_with(name))
    };
    let others: Vec<_> = calls.iter().filter(|line| !allowed(line)).collect();
    assert!(others.is_empty(), "{others:#?}");
    let bells = calls
        .iter()
        .filter(|line| line.starts_with("write("))
        .count();
    assert!(bells <= 300, "{bells} doorbells");
}
