//! What leaves, and when; what programs are told about it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use super::support::{Listener, Running, Site, ended_well, program, script};

#[test]
fn datagrams_leave_at_their_times_however_they_are_sent() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    for address in site.addresses() {
        let before = site.sent();
        let talker = Running::start(site.command(program("talker")).arg(address.to_string()));
        let (text, from) = listener.next_in_time();
        assert_eq!(text, b"unconnected");
        listener.answer(b"answer", from);
        let mut expected = vec![
            "connected",
            "long",
            "marked",
            "monotonic",
            "realtime",
            "tai",
        ];
        if address.is_ipv4() {
            expected.push("mapped");
        }
        expected.extend(["many 0", "many 1", "many 2", "many 3", "many 4"]);
        expected.sort_unstable();
        let mut taken = Vec::new();
        let mut by_kernel = 0;
        while taken.len() < expected.len() {
            let (text, _) = listener.next_in_time();
            match String::from_utf8(text).expect("a text") {
                text if text.is_empty() => by_kernel += 1,
                text if text.starts_with("xxx") => {
                    let headers = if address.is_ipv4() { 28 } else { 48 };
                    assert_eq!(text.len(), 1450 - headers - 8);
                    taken.push("long".into());
                }
                text => taken.push(text),
            }
        }
        // Between sockets there is no order but that of their times.
        taken.sort_unstable();
        assert_eq!(taken, expected, "{address}");
        assert_eq!(by_kernel, 4, "without a time");
        let (_, err) = talker.end();
        assert_eq!(err, "", "no warning");
        assert_eq!(
            site.sent() - before,
            1 + taken.len() as u64,
            "by the runtime"
        );
    }
}

#[test]
fn datagrams_for_groups_leave_at_their_times_by_the_interface_that_is_set_for_them() {
    let site = Site::following();
    let there = site.there();
    let _members = {
        let _inside = there.enter().expect("the lab is up");
        // SAFETY: a C string.
        let interface = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) };
        let four = UdpSocket::bind("0.0.0.0:0").expect("bind");
        let joined = four.join_multicast_v4(&Ipv4Addr::new(239, 1, 2, 3), &there.address());
        joined.expect("a member");
        let six = UdpSocket::bind("[::]:0").expect("bind");
        let group = "ff05::99".parse().expect("a group");
        six.join_multicast_v6(&group, interface).expect("a member");
        (four, six)
    };
    let own = site.here().address().to_string();
    for (group, ways) in [
        ("239.1.2.3", &["address", "number"][..]),
        ("ff05::99", &["number"]),
    ] {
        // What is for a group of IPv4 comes to no socket of IPv6.
        let any: IpAddr = match group.contains(':') {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        };
        let listener = Listener::bound(there, any);
        for way in ways {
            let before = site.sent();
            let mut command = site.command("python3");
            command
                .arg(script("group.py"))
                .args([group, way, &own])
                .env("TAKT_PRELOAD", "required");
            assert_eq!(ended_well(command.output()).1, "", "{group} {way}");
            for number in 0..3 {
                let (text, _) = listener.next_in_time();
                let expected = format!("{way} {number}");
                assert_eq!(text, expected.as_bytes(), "{group}");
            }
            assert_eq!(site.sent() - before, 3, "{group} {way}: by the runtime");
        }
        assert!(listener.is_empty());
    }
}

#[test]
fn programs_of_a_host_and_behind_macvlan_devices_send_at_their_times() {
    let site = Site::native();
    let (host, far) = (site.lab.host(0), site.lab.host(1));
    let listener = Listener::new(far);
    let to = [far.address().to_string(), "fd77::2".to_owned()];
    for (tenant, (place, own)) in [(host, 1), (site.here(), 50)].into_iter().enumerate() {
        for (to, own) in to
            .iter()
            .zip([format!("10.77.0.{own}"), format!("fd77::{own}")])
        {
            for mode in ["on", "required"] {
                let before = site.sent();
                let mut command = site.command_in(place, tenant, "python3");
                command.arg(script("cold.py")).args([to, "1"]);
                let (_, err) = ended_well(command.env("TAKT_PRELOAD", mode).output());
                assert_eq!(err, "", "{own} {mode}");
                for number in 0..3 {
                    let (text, from) = listener.next_in_time();
                    assert_eq!(text, format!("cold {number}").as_bytes());
                    assert_eq!(from.ip().to_canonical().to_string(), own);
                }
                assert_eq!(site.sent() - before, 3, "{own} {mode}: by the runtime");
            }
        }
    }
    assert!(listener.is_empty());
}

#[test]
fn error_queues_tell_of_missed_times_and_of_departures() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    for address in site.addresses() {
        let output = site
            .command(program("errors"))
            .arg(address.to_string())
            .output();
        let (_, err) = ended_well(output);
        assert_eq!(err, "");
        // Nothing arrived that was said to be dropped.
        let mut arrived = 0;
        while !listener.is_empty() {
            let (text, _) = listener.next();
            assert!(!text.ends_with(b"never"));
            arrived += 1;
        }
        assert!(arrived > 0);
    }
}

/// Runs the kernel's test: letters with their delays, those that are to arrive in their order, and what the
/// error queue is to say.
fn so_txtime(site: &Site, listener: &Listener, clock: &str, sent: &str, arrive: &str, told: &str) {
    for address in site.addresses() {
        let output = site
            .command(program("so_txtime"))
            .args([clock, &address.to_string(), sent])
            .arg(told.lines().count().to_string())
            .output();
        let (out, err) = ended_well(output);
        assert_eq!((out.trim(), &*err), (told, ""), "{sent}");
        for letter in arrive.chars() {
            assert_eq!(listener.next().0, [letter as u8], "{sent} over {address}");
        }
        assert!(listener.is_empty());
    }
}

#[test]
fn the_kernels_own_test_of_transmission_times_passes() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    // Without a time and with one that has passed; then order by time, not by call.
    so_txtime(&site, &listener, "mono", "a,-1", "a", "");
    so_txtime(&site, &listener, "mono", "a,10", "a", "");
    so_txtime(&site, &listener, "mono", "a,200,b,400", "ab", "");
    so_txtime(&site, &listener, "mono", "a,400,b,200", "ba", "");
    so_txtime(&site, &listener, "tai", "a,-1", "a", "");
    so_txtime(&site, &listener, "tai", "a,-2000", "", "a invalid");
    so_txtime(&site, &listener, "tai", "a,-2000,b,10", "b", "a invalid");
    so_txtime(&site, &listener, "tai", "a,10", "a", "");
    so_txtime(&site, &listener, "tai", "a,20,b,20", "ab", "");
    so_txtime(&site, &listener, "tai", "a,600,b,200,c,400", "bca", "");
}

/// A program without CAP_NET_ADMIN, as containers have it.
fn unprivileged(site: &Site, program: impl AsRef<std::ffi::OsStr>) -> std::process::Command {
    let mut command = site.command("setpriv");
    command
        .args(["--inh-caps=-net_admin", "--bounding-set=-net_admin"])
        .arg(program);
    command
}

#[test]
fn clocks_need_no_capability_where_the_runtime_serves_the_socket() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    for address in site.addresses() {
        let before = site.sent();
        let mut talker = unprivileged(&site, "python3");
        talker.arg(script("talker.py")).arg(address.to_string());
        let running = Running::start(talker.env("TAKT_PRELOAD", "required"));
        for number in 0..20 {
            let (text, _) = listener.next_in_time();
            assert_eq!(text, format!("cycle {number}").as_bytes());
        }
        let (out, err) = running.end();
        assert_eq!((out.as_str(), err.as_str()), ("20 stamps, 1 error\n", ""));
        assert_eq!(site.sent() - before, 20);
    }
    // Duplicated, inherited, handed over: always the program's clock.
    let before = site.sent();
    let address = site.addresses()[0].to_string();
    let running = Running::start(unprivileged(&site, program("descriptors")).arg(address));
    for _ in 0..16 {
        listener.next_in_time();
    }
    let (_, err) = running.end();
    assert_eq!(err, "");
    assert_eq!(site.sent() - before, 16);
}

#[test]
fn without_a_runtime_the_kernel_says_what_a_clock_needs() {
    let site = Site::without_daemon();
    let mut talker = unprivileged(&site, "python3");
    talker.arg(script("talker.py"));
    let output = talker.arg(site.addresses()[0].to_string()).output();
    let output = output.expect("it starts");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("PermissionError"), "{err}");
}

#[test]
fn packets_are_no_longer_than_the_interface_allows_and_are_queued_before_they_leave() {
    let site = Site::new();
    let set = |mtu: &str| {
        let status = std::process::Command::new("ip")
            .args(["-n", site.here().namespace()])
            .args(["link", "set", "eth0", "mtu", mtu])
            .status();
        assert!(status.expect("ip").success());
    };
    // IPv6 has no links with less than 1280 bytes.
    for (address, mtu) in site.addresses().into_iter().zip(["576", "1280"]).rev() {
        set(mtu);
        let mut command = site.command("python3");
        command
            .arg(script("stamps.py"))
            .args([&address.to_string(), mtu]);
        let (out, err) = ended_well(command.output());
        assert_eq!((out.as_str(), err.as_str()), ("in order\n", ""));
    }
}
