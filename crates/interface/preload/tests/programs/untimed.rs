//! Programs that others have written and that name no times: their datagrams are snapped to a cycle (`takt preload --grid`), and
//! what they count themselves must come out right.

use std::process::Command;

use takt_lab::Host;
use takt_testing::{Directory, repository, until};

use super::support::{Listener, PORT, Running, Site, ended_well, preloaded};

/// What a rule is not for, or the runtime does not serve, would be missing in what it has sent.
fn on_the_grid(mut command: Command, rule: &str) -> Command {
    command
        .env("TAKT_PRELOAD", "required")
        .env("TAKT_PRELOAD_GRID", rule);
    command
}

/// Answers on [`PORT`], and counts what comes.
fn sockperf_server(mut command: Command, at: &Host) -> Running {
    let (address, port) = (at.address().to_string(), PORT.to_string());
    command.args(["server", "--ip", &address, "--port", &port]);
    let server = Running::start(&mut command);
    until("the server listens", || {
        server.output().0.contains("to block").then_some(())
    });
    server
}

/// Sends to it for a second. How many messages, and how many answers came.
fn sockperf_client(mut command: Command, way: &str, to: &Host) -> (u64, u64) {
    let (address, port) = (to.address().to_string(), PORT.to_string());
    command.args([way, "--ip", &address, "--port", &port, "--mps", "200"]);
    if way == "under-load" {
        command.args(["--reply-every", "1"]);
    }
    let (out, err) = ended_well(command.output());
    assert_eq!(err, "", "{way}: {out}");
    if way == "throughput" {
        return (number_behind(&out, "Total of "), 0);
    }
    let told = "# duplicated messages = 0; # out-of-order messages = 0";
    assert!(out.contains(told), "{way}: {out}");
    let counted = |name| number_behind(&out, name);
    (counted("SentMessages="), counted("ReceivedMessages="))
}

fn number_behind(text: &str, word: &str) -> u64 {
    let (_, rest) = text.split_once(word).expect(text);
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).expect(text)
}

/// Datagrams that programs in a container have read.
fn read_by_programs(host: &Host) -> u64 {
    let mut command = host.command("cat").expect("the lab is up");
    let (out, _) = ended_well(command.arg("/proc/net/snmp").output());
    let mut lines = out.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let numbers = lines.next_back().expect("what it counts of UDP");
    let first = numbers.split(' ').next().expect("InDatagrams");
    first.parse().expect("a number")
}

/// Ends a server when it has read so many messages and all else that came; it must have counted them.
fn sockperf_counted(server: Running, at: &Host, read: u64, messages: u64) {
    until("the server has read all", || {
        (read_by_programs(at) >= read).then_some(())
    });
    server.signal(libc::SIGINT);
    let (out, err) = server.end();
    let told = format!("Total {messages} messages received and handled");
    assert!(out.contains(&told), "{told}: {out}");
    assert_eq!(err, "");
}

#[test]
fn sockperf_sends_on_the_grid_and_the_server_counts_every_message() {
    let site = Site::new();
    let before = read_by_programs(site.there());
    let server = sockperf_server(preloaded(site.there(), "sockperf"), site.there());
    let mut messages = 0;
    for way in ["ping-pong", "under-load", "throughput"] {
        let command = on_the_grid(site.command("sockperf"), &format!("1ms,port={PORT}"));
        let (sent, received) = sockperf_client(command, way, site.there());
        match way {
            // It may end while the last answer is on its way.
            "ping-pong" => assert!(sent > 1 && sent - received <= 1, "{sent} {received}"),
            "under-load" => assert!((1..=sent).contains(&received), "{sent} {received}"),
            _ => assert!(sent > 1),
        }
        messages += sent;
    }
    // The client has ended, and what it sent last may wait for its instant.
    let sent = until("the runtime has sent them", || {
        let sent = site.sent();
        (sent >= messages).then_some(sent)
    });
    sockperf_counted(server, site.there(), before + sent, messages);
}

#[test]
fn a_server_of_sockperf_answers_on_the_grid() {
    let site = Site::new();
    let rule = format!("1ms,to={}", site.there().address());
    let server = sockperf_server(on_the_grid(site.command("sockperf"), &rule), site.here());
    let before = read_by_programs(site.here());
    let command = site.there().command("sockperf").expect("the lab is up");
    let (sent, received) = sockperf_client(command, "ping-pong", site.here());
    assert!(sent > 1 && sent - received <= 1, "{sent} {received}");
    sockperf_counted(server, site.here(), before + sent, sent);
    until("the runtime has sent the answers", || {
        (site.sent() >= sent).then_some(())
    });
}

/// More datagrams than may be on their way at once: libuv 1.44, of Node.js 18, sends by `syscall` what waits for room.
const MANY: usize = 300;

#[test]
fn node_sends_on_the_grid_and_gets_its_answers() {
    let count = MANY;
    let site = Site::new();
    let listener = Listener::new(site.there());
    let script = repository()
        .join("crates/interface/preload/tests/programs/node")
        .join("datagrams.js");
    for to in site.addresses() {
        for way in ["exit", "close"] {
            let before = site.sent();
            let mut command = on_the_grid(site.command("node"), &format!("1ms,port={PORT}"));
            command.arg(&script).args([
                &to.to_string(),
                &PORT.to_string(),
                &count.to_string(),
                way,
            ]);
            let running = Running::start(&mut command);
            for number in 0..2 * count {
                let (payload, from) = listener.next();
                assert_eq!(
                    payload,
                    format!("datagram {number}").as_bytes(),
                    "{to}, {way}"
                );
                if number < count {
                    listener.answer(&payload, from);
                }
            }
            let told = format!("{count} answers, {} sent\n", 2 * count);
            assert_eq!(running.end(), (told, String::new()), "{to}, {way}");
            assert_eq!(
                site.sent() - before,
                2 * count as u64,
                "{to}, {way}: by the runtime"
            );
        }
    }
}

#[test]
fn busybox_sends_a_file_on_the_grid_by_tftp() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    let scratch = Directory::new();
    let (file, content) = (scratch.join("sent"), "busybox ".repeat(160));
    std::fs::write(&file, &content).expect("a file");
    for to in site.addresses() {
        let before = site.sent();
        let mut command = on_the_grid(site.command("busybox"), &format!("1ms,port={PORT}"));
        // By its shell, which starts it once more.
        command.args([
            "sh",
            "-c",
            "busybox tftp -p -l \"$1\" -r received \"$2\" \"$3\"",
            "sh",
        ]);
        command.arg(&file).args([to.to_string(), PORT.to_string()]);
        let running = Running::start(&mut command);
        let mut received = Vec::new();
        // The request and three blocks (RFC 1350), each of which is acknowledged.
        for block in 0..=3u8 {
            let (packet, from) = listener.next();
            let header: &[u8] = match block {
                0 => b"\0\x02received\0",
                block => &[0, 3, 0, block],
            };
            assert!(packet.starts_with(header), "{to}, {block}: {packet:?}");
            if block > 0 {
                received.extend_from_slice(&packet[4..]);
            }
            listener.answer(&[0, 4, 0, block], from);
        }
        // Its progress.
        let (_, err) = running.end();
        assert!(!err.contains("takt-preload"), "{to}: {err}");
        assert_eq!(received, content.as_bytes(), "{to}");
        assert_eq!(site.sent() - before, 4, "{to}: by the runtime");
    }
}

/// Channels and sockets of the class library, which are of IPv6 also where addresses are not; more datagrams than may be on their way
/// at once.
const JAVA: &str = r#"
import java.net.*;
import java.nio.*;
import java.nio.channels.*;

public class Datagrams {
    static byte[] text(int number) {
        return ("datagram " + number).getBytes();
    }

    public static void main(String[] arguments) throws Exception {
        InetSocketAddress to = new InetSocketAddress(arguments[0], Integer.parseInt(arguments[1]));
        int count = Integer.parseInt(arguments[2]);
        try (DatagramChannel channel = DatagramChannel.open(); Selector selector = Selector.open()) {
            for (int number = 0; number < count; number++)
                channel.send(ByteBuffer.wrap(text(number)), to);
            channel.connect(to);
            channel.configureBlocking(false);
            channel.register(selector, SelectionKey.OP_WRITE);
            for (int number = count; number < 2 * count; number++) {
                while (channel.write(ByteBuffer.wrap(text(number))) == 0)
                    selector.select();
            }
        }
        try (DatagramSocket socket = new DatagramSocket()) {
            byte[] last = text(2 * count);
            socket.send(new DatagramPacket(last, last.length, to));
        }
        System.out.println("sent");
    }
}
"#;

#[test]
fn a_jvm_sends_on_the_grid_by_channels_and_sockets() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    let scratch = Directory::new();
    let class = scratch.join("Datagrams.java");
    std::fs::write(&class, JAVA).expect("a source file");
    for to in site.addresses() {
        let before = site.sent();
        let mut command = on_the_grid(site.command("java"), &format!("1ms,port={PORT}"));
        command.arg(&class);
        command.args([to.to_string(), PORT.to_string(), MANY.to_string()]);
        let running = Running::start(&mut command);
        for number in 0..=2 * MANY {
            let (payload, _) = listener.next();
            assert_eq!(payload, format!("datagram {number}").as_bytes(), "{to}");
        }
        assert_eq!(running.end(), ("sent\n".into(), String::new()), "{to}");
        let sent = site.sent() - before;
        assert_eq!(sent, 2 * MANY as u64 + 1, "{to}: by the runtime");
    }
}
