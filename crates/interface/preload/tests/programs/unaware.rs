//! Programs that must not notice: each does what it does without the preload, and says nothing more.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use takt_testing::{Directory, until};

use super::support::{Running, Site, ended_well, preloaded, program, script};

/// Runs a command in a container with the preload, and without; both must end well and print the same.
fn same_output(site: &Site, program: &str, arguments: &[&str]) {
    let plain = site
        .here()
        .command(program)
        .expect("the lab is up")
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let plain = ended_well(plain);
    let preloaded = ended_well(preloaded(site.here(), program).args(arguments).output());
    assert_eq!(preloaded, plain, "{program}");
}

#[test]
fn python_java_and_openssh_do_what_they_do() {
    let site = Site::without_daemon();
    same_output(&site, "python3", &[path(&script("unaware.py"))]);
    let scratch = Directory::new();
    let key = scratch.join("key");
    let generate = ["-q", "-t", "ed25519", "-N", "", "-f", path(&key)];
    let (out, err) = ended_well(preloaded(site.here(), "ssh-keygen").args(generate).output());
    assert_eq!((out.as_str(), err.as_str()), ("", ""));
    same_output(&site, "ssh-keygen", &["-l", "-f", path(&key)]);
    let class = scratch.join("Unaware.java");
    std::fs::write(&class, JAVA).expect("a source file");
    same_output(&site, "java", &[path(&class)]);
}

fn path(path: &std::path::Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Sockets of every kind that the class library has, in threads.
const JAVA: &str = r#"
import java.net.*;
import java.nio.*;
import java.nio.channels.*;

public class Unaware {
    public static void main(String[] arguments) throws Exception {
        ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        Thread answering = new Thread(() -> {
            try (Socket socket = server.accept()) {
                socket.getOutputStream().write(socket.getInputStream().read() + 1);
            } catch (Exception exception) {
                throw new RuntimeException(exception);
            }
        });
        answering.start();
        try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), server.getLocalPort())) {
            socket.getOutputStream().write(41);
            System.out.println(socket.getInputStream().read());
        }
        answering.join();
        DatagramChannel channel = DatagramChannel.open();
        channel.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        channel.configureBlocking(false);
        Selector selector = Selector.open();
        channel.register(selector, SelectionKey.OP_READ);
        channel.send(ByteBuffer.wrap("datagram".getBytes()), channel.getLocalAddress());
        selector.select();
        ByteBuffer buffer = ByteBuffer.allocate(64);
        channel.receive(buffer);
        System.out.println(new String(buffer.array(), 0, buffer.position()));
        Process process = new ProcessBuilder("echo", "child").redirectErrorStream(true).start();
        System.out.print(new String(process.getInputStream().readAllBytes()));
    }
}
"#;

#[test]
fn a_threaded_server_serves_under_load() {
    const CLIENTS: usize = 8;
    const REQUESTS: usize = 50;
    let site = Site::without_daemon();
    let server = Running::start(preloaded(site.here(), "python3").arg(script("server.py")));
    let port: u16 = until("the server listens", || {
        server.output().0.trim().parse().ok()
    });
    let address = SocketAddr::from((site.here().address(), port));
    // From the far container, through everything.
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let there = site.there().clone();
            std::thread::spawn(move || {
                let _inside = there.enter().expect("the lab is up");
                for request in 0..REQUESTS {
                    let mut stream = TcpStream::connect(address).expect("connected");
                    let text = format!("GET /{client}/{request} HTTP/1.0\r\n\r\n");
                    stream.write_all(text.as_bytes()).expect("asked");
                    let mut answer = String::new();
                    stream.read_to_string(&mut answer).expect("an answer");
                    assert!(
                        answer.ends_with(&format!("/{client}/{request}")),
                        "{answer}"
                    );
                }
            })
        })
        .collect();
    for client in clients {
        client.join().expect("all answers are right");
    }
    // And a preloaded client.
    let url = format!("http://{address}/curl");
    let curl = preloaded(site.here(), "curl")
        .args(["--silent", "--show-error", &url])
        .output();
    assert_eq!(ended_well(curl), ("/curl".into(), String::new()));
}

#[test]
fn iperf_measures_over_tcp_and_udp_at_both_ends() {
    let site = Site::without_daemon();
    for options in [&[][..], &["--udp", "--bitrate", "10M"]] {
        let server = Running::start(preloaded(site.there(), "iperf3").args([
            "--server",
            "--one-off",
            "--json",
        ]));
        let client = || -> Command {
            let mut command = preloaded(site.here(), "iperf3");
            command
                .args(["--client", &site.there().address().to_string(), "--json"])
                .args(["--bytes", "1M"])
                .args(options);
            command
        };
        let (out, _) = until("the server listens", || {
            let (out, err) = ended_well(client().output());
            // In JSON, iperf3 ends well also when nobody listens yet.
            (!out.contains("Connection refused")).then_some((out, err))
        });
        assert!(
            out.contains("\"end\"") && !out.contains("\"error\""),
            "{out}"
        );
        assert!(!out.contains("takt-preload"), "{out}");
        let (_, err) = server.end();
        assert_eq!(err, "");
    }
}

#[test]
fn every_pass_through_is_the_c_librarys() {
    let site = Site::without_daemon();
    let plain = program("unaware");
    same_output(&site, path(&plain), &[]);
}
