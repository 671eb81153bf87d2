//! Programs that must not notice: each does what it does without the preload, and says nothing more.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use takt_testing::{Directory, until};

use super::support::{Running, Site, ended_well, preloaded, program, script, tool};

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

/// What a server at this address answers.
fn get(address: SocketAddr, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("connected");
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("asked");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let body = answer.windows(4).position(|end| end == b"\r\n\r\n");
    let text = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    answer.split_off(body.expect(&text) + 4)
}

#[test]
fn nginx_serves_while_it_reloads_and_its_workers_come_and_go() {
    let site = Site::without_daemon();
    let scratch = Directory::new();
    let file: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    std::fs::write(scratch.join("file"), &file).expect("a file");
    let address = SocketAddr::from((site.here().address(), 8080));
    let configure = |generation: u32| {
        let text = NGINX
            .replace("ADDRESS", &address.to_string())
            .replace("DIRECTORY", path(scratch.path()))
            .replace("GENERATION", &generation.to_string());
        std::fs::write(scratch.join("nginx.conf"), text).expect("a configuration");
    };
    configure(0);
    let mut command = preloaded(site.here(), tool("nginx"));
    command.args([
        "-p",
        path(scratch.path()),
        "-c",
        "nginx.conf",
        "-e",
        "stderr",
    ]);
    let server = Running::start(&mut command);
    let inside = || site.there().enter().expect("the lab is up");
    until("the server listens", || {
        let _inside = inside();
        TcpStream::connect(address).ok()
    });
    let serving = AtomicBool::new(true);
    let generation = |number: u32| {
        until("the workers are new", || {
            let told = get(address, "/generation");
            (told == number.to_string().as_bytes()).then_some(())
        });
    };
    std::thread::scope(|scope| {
        // Also when the test fails.
        let _ended = Ended(&serving);
        for _ in 0..4 {
            scope.spawn(|| {
                let _inside = inside();
                while serving.load(Ordering::Relaxed) {
                    assert!(get(address, "/file") == file, "another file");
                }
            });
        }
        let _inside = inside();
        // A signal that comes before its workers are there the master notices with the next one alone.
        generation(0);
        for number in 1..=3 {
            configure(number);
            server.signal(libc::SIGHUP);
            generation(number);
        }
    });
    server.signal(libc::SIGQUIT);
    let (out, err) = server.end();
    assert_eq!((out.as_str(), err.as_str()), ("", ""));
}

/// Ends the others' loop.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A master and two workers. The temporary directories are otherwise the system's.
const NGINX: &str = "
daemon off;
user root;
worker_processes 2;
pid nginx.pid;
error_log stderr warn;
events { worker_connections 64; }
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    sendfile on;
    server {
        listen ADDRESS;
        root DIRECTORY;
        location = /generation { return 200 GENERATION; }
    }
}
";

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
