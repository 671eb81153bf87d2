//! Descriptors of every origin, threads, signals, packet sockets, wrong arguments, full queues.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use takt_lab::Capture;
use takt_testing::{PATIENCE, until};
use takt_wire::ethernet::MacAddress;

use super::support::{Listener, Running, Site, ended_well, program, script, tai};

#[test]
fn a_socket_is_what_it_is_by_whatever_descriptor() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    let running = Running::start(site.command(program("descriptors")).arg(address));
    let mut expected = vec![
        "dup",
        "F_DUPFD",
        "F_DUPFD_CLOEXEC",
        "dup2",
        "dup3",
        "still dup3",
        "original",
        "copy",
        "original alone",
        "parent",
        "child",
        "child's own",
        "parent again",
        "after exec",
        "parent after vfork",
        "handed over",
    ];
    let mut received: Vec<String> = expected
        .iter()
        .map(|_| String::from_utf8(listener.next_in_time().0).expect("a text"))
        .collect();
    received.sort_unstable();
    expected.sort_unstable();
    assert_eq!(received, expected);
    let (_, err) = running.end();
    assert_eq!(err, "");
    assert!(listener.is_empty());
    assert_eq!(site.sent(), expected.len() as u64, "by the runtime");
}

#[test]
fn a_program_that_closes_what_it_did_not_open_is_served_all_the_same() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    for way in ["close", "close_range", "closefrom", "dup2"] {
        let mut command = site.command(program("closing"));
        command
            .args([&address, way])
            .env("TAKT_PRELOAD", "required");
        let (_, err) = ended_well(command.output());
        assert_eq!(err, "", "{way}");
        for _ in 0..4 {
            assert_eq!(listener.next_in_time().0, way.as_bytes());
        }
    }
    assert_eq!(site.sent(), 16, "by the runtime");
}

#[test]
fn threads_signals_and_cancellations_neither_lock_up_nor_lose_datagrams() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    let running = Running::start(site.command(program("threads")).arg(address));
    // Read as they come, in whatever pace this process gets: the listener's buffer has room for all.
    let mut received: BTreeMap<String, usize> = BTreeMap::new();
    loop {
        let text = String::from_utf8(listener.next().0[8..].to_vec()).expect("a text");
        let last = text == "uncancelled";
        *received.entry(text).or_default() += 1;
        if last {
            break;
        }
    }
    running.end();
    let counted = site.counters();
    assert_eq!(
        received.get("shared"),
        Some(&200),
        "{received:?} {counted:?}"
    );
    assert_eq!(received.get("own"), Some(&200), "{received:?} {counted:?}");
    assert_eq!(received.get("main"), Some(&400), "{received:?} {counted:?}");
}

#[test]
fn wrong_messages_get_the_kernels_errors() {
    let site = Site::new();
    for address in site.addresses() {
        let address = address.to_string();
        let wrong = program("hostile");
        // First without the preload: the program expects what the kernel does.
        let plain = site
            .here()
            .command(&wrong)
            .expect("the lab is up")
            .arg(&address)
            .output();
        ended_well(plain);
        ended_well(site.command(&wrong).arg(&address).output());
    }
}

#[test]
fn packet_sockets_send_frames_at_their_times() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    let output = site
        .command(program("raw"))
        .arg(site.here().address().to_string())
        .arg(site.there().address().to_string())
        .arg(MacAddress(site.there().mac()).to_string())
        .output();
    let (_, err) = ended_well(output);
    // The tagged one.
    assert!(err.contains("VLAN tag"), "{err}");
    for text in ["frame", "packet"] {
        let (received, from) = listener.next_in_time();
        assert!(received.starts_with(text.as_bytes()));
        assert_eq!(from.port(), 1234);
    }
    assert_eq!(site.sent(), 2);
}

#[test]
fn frames_with_a_tag_leave_at_their_times_where_the_tenants_policy_has_their_vlan() {
    // Outer Ethernet, IPv4, UDP and VXLAN.
    const TUNNEL: usize = 14 + 20 + 8 + 8;
    let site = Site::new();
    let wire = Capture::open(site.lab.host(1)).expect("a capture");
    let mac = MacAddress(site.there().mac());
    let says = |vlan: u16, priority: u8, number: u32| {
        let mut command = site.command(program("tagged"));
        command.env("TAKT_PRELOAD", "required").args([
            mac.to_string(),
            vlan.to_string(),
            priority.to_string(),
            number.to_string(),
        ]);
        let (out, err) = ended_well(command.output());
        (out.trim().to_owned(), err)
    };
    // A VLAN of somebody else's, and a priority that is none of the tenant's classes.
    let (said, told) = says(101, 3, 0);
    assert_eq!(said, "EOPNOTSUPP");
    assert!(told.contains("VLAN tag"), "{told}");
    let refused = site.counters().refused;
    assert_eq!(says(100, 7, 0), ("sent".into(), String::new()));
    until("the runtime has refused it", || {
        (site.counters().refused == refused + 1).then_some(())
    });
    for number in 1..=10 {
        assert_eq!(says(100, 3, number), ("sent".into(), String::new()));
    }
    const SECOND: i64 = 1_000_000_000;
    let utc = SystemTime::now().duration_since(UNIX_EPOCH);
    let utc = utc.expect("after the epoch").as_nanos() as i64;
    let leap_seconds = (tai() - utc + SECOND / 2).div_euclid(SECOND) * SECOND;
    let mut next = 1u32;
    while next <= 10 {
        let captured = wire.next(PATIENCE).expect("the capture").expect("a frame");
        let Some(inner) = captured.frame.get(TUNNEL..) else {
            continue;
        };
        // That of nobody's else: the kernel's own are not tagged.
        if inner.len() < 30 || inner[12..14] != [0x81, 0x00] {
            continue;
        }
        assert_eq!(inner[..6], mac.0);
        assert_eq!(inner[14..18], [3 << 5, 100, 0xde, 0xad]);
        assert_eq!(inner[26..30], next.to_ne_bytes());
        let launch = i64::from_ne_bytes(inner[18..26].try_into().expect("eight"));
        let at = captured.realtime_ns + leap_seconds;
        assert!(at >= launch, "{} ns early", launch - at);
        next += 1;
    }
    assert_eq!(site.sent(), 10);
}

#[test]
fn a_full_queue_blocks_or_says_so_and_holds_nothing_else_up() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    ended_well(site.command(program("full")).arg(address).output());
    assert_eq!(listener.next_in_time().0, b"");
    assert!(
        listener.is_empty(),
        "what is to leave later waits for its time"
    );
}

#[test]
fn what_waits_for_room_goes_to_nobody_who_has_its_descriptors_number_by_then() {
    let site = Site::new();
    let address = site.addresses()[0].to_string();
    let mut command = site.command(program("reused"));
    // What it sends without a time has one at the end of a cycle, for which there is no room.
    command.arg(address).env("TAKT_PRELOAD_GRID", "10s");
    ended_well(command.output());
}

#[test]
fn programs_that_wait_for_room_are_told_of_it_and_signals_interrupt_a_send() {
    let site = Site::new();
    let address = site.addresses()[0].to_string();
    let output = site.command(program("edges")).arg(address).output();
    assert_eq!(ended_well(output), ("room\n".into(), String::new()));
}

#[test]
fn what_an_epoll_descriptor_watches_with_the_same_data_is_not_mistaken_for_each_other() {
    let site = Site::new();
    let address = site.addresses()[0].to_string();
    let output = site.command(program("shared")).arg(address).output();
    assert_eq!(ended_well(output), ("apart\n".into(), String::new()));
}

#[test]
fn an_epoll_descriptor_tells_nothing_of_a_socket_that_has_the_number_of_one_that_it_watched() {
    let site = Site::new();
    let address = site.addresses()[0].to_string();
    let output = site.command(program("renumbered")).arg(address).output();
    assert_eq!(ended_well(output), ("nothing\n".into(), String::new()));
}

#[test]
fn signals_that_a_wait_s_mask_lets_through_end_it_though_the_kernel_has_something_to_say() {
    let site = Site::new();
    let address = site.addresses()[0].to_string();
    let output = site.command(program("masked")).arg(address).output();
    assert_eq!(ended_well(output), ("interrupted\n".into(), String::new()));
}

#[test]
fn what_a_signal_handler_sends_within_another_send_is_told_of_or_refused() {
    let site = Site::new();
    let address = site.addresses()[0].to_string();
    for (mode, said, fate) in [
        ("on", "0\n", "kernel's way"),
        ("required", "EAGAIN\n", "refused"),
    ] {
        let mut command = site.command(program("handler"));
        command.arg(&address).env("TAKT_PRELOAD", mode);
        let (out, err) = ended_well(command.output());
        assert_eq!(out, said, "{mode}");
        assert!(
            err.contains(fate) && err.contains("signal handler"),
            "{mode}: {err}"
        );
    }
}

#[test]
fn a_grandchild_leaves_the_session_of_a_child_alone_that_has_closed_what_it_inherited() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    let mut command = site.command(program("generations"));
    let _running = Running::start(command.arg(address));
    for text in [b"parent".as_slice(), b"child"] {
        assert_eq!(listener.next_in_time().0, text);
    }
    until("the parent's session alone is left", || {
        (site.sessions().len() == 1).then_some(())
    });
}

#[test]
fn a_socket_that_is_bound_to_an_address_without_a_port_keeps_it() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    let own = [site.here().address().to_string(), site.six().to_string()];
    for (to, own) in site.addresses().into_iter().zip(own) {
        let mut command = site.command("python3");
        command
            .arg(script("bound.py"))
            .args([&to.to_string(), &own])
            .env("TAKT_PRELOAD", "required");
        let (out, _) = ended_well(command.output());
        let (text, from) = listener.next_in_time();
        let from = format!("{} {}\n", from.ip().to_canonical(), from.port());
        assert_eq!((text.as_slice(), from), (b"bound".as_slice(), out));
    }
}

#[test]
fn threads_that_wait_already_are_told_of_what_becomes_ready_by_the_sends_of_others() {
    let site = Site::new();
    let address = site.addresses()[0].to_string();
    let running = Running::start(site.command(program("woken")).arg(address));
    let all = "room\nan error\nanother error\nroom\n";
    until("all was told", || (running.output().0 == all).then_some(()));
    assert_eq!(running.end(), (all.into(), String::new()));
}

#[test]
fn a_socket_without_room_costs_nothing_who_waits_for_something_else() {
    let site = Site::new();
    let address = site.addresses()[0].to_string();
    let output = site.command(program("quiet")).arg(address).output();
    assert_eq!(ended_well(output), ("quiet\n".into(), String::new()));
}

#[test]
fn what_a_process_has_to_tell_its_threads_is_told_to_no_fork() {
    let site = Site::new();
    let address = site.addresses()[0].to_string();
    let running = Running::start(site.command(program("forked")).arg(address));
    assert_eq!(running.end(), ("apart\n".into(), String::new()));
}

#[test]
fn a_child_that_the_c_library_knows_nothing_of_leaves_its_parents_session_alone() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    let address = site.addresses()[0].to_string();
    let mut command = site.command(program("cloned"));
    command.arg(address).env("TAKT_PRELOAD", "required");
    let running = Running::start(&mut command);
    for text in [b"parent".as_slice(), b"child"] {
        assert_eq!(listener.next_in_time().0, text);
    }
    // Its parent has none any more.
    until("the child's alone is left", || {
        (site.sessions().len() == 1).then_some(())
    });
    assert_eq!(running.output().1, "");
    assert_eq!(site.sent(), 2, "by the runtime");
}
