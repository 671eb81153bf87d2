//! Two programs in Python on two nodes, written from the documentation: messages of 16 MiB, Ctrl-C, fork, and a daemon that is
//! started again.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::{Pid, Signal, kill_process};
use takt_testing::{PATIENCE, built, until};
use taktd::admin::proto::PeerState;

use crate::support::{Datapath, Node, Pair, skip};

const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/end_to_end/python");
const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bindings/python");

/// A program in Python; killed at the latest with the test.
struct Program {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Program {
    fn start(name: &str, node: &Node) -> Self {
        let mut child = Command::new("python3")
            .arg(Path::new(HERE).join(name))
            .env("PYTHONPATH", PACKAGE)
            .env("TAKT_LIBRARY", built().join("libtakt.so"))
            .env("TAKT_SOCKET", node.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let output = child.stdout.take().expect("its output");
        let (to, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if to.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            input: child.stdin.take().expect("its input"),
            child,
            lines,
        }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line")
    }

    /// Asks the writer for something, and what it says to that.
    fn asked(&mut self, what: &str) -> String {
        writeln!(self.input, "{what}").expect("it runs");
        self.line()
    }

    /// Ctrl-C.
    fn interrupt(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it runs");
        self.end()
    }

    fn end(&mut self) -> ExitStatus {
        until("it ends", || self.child.try_wait().expect("its state"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn programs_exchange_long_messages_through_forks_and_restarts(datapath: Datapath) {
    if skip() {
        return;
    }
    let mut pair = Pair::over(datapath);
    let mut reader = Program::start("reader.py", &pair.nodes[1]);
    assert_eq!(reader.line(), "ready");
    let mut writer = Program::start("writer.py", &pair.nodes[0]);
    assert_eq!(writer.line(), "ready");
    let got = |reader: &Program, numbers: std::ops::Range<u64>| {
        for number in numbers {
            assert_eq!(reader.line(), format!("got {number} True"));
        }
    };
    assert_eq!(writer.asked("send 0 4"), "sent SENT");
    got(&reader, 0..4);
    assert_eq!(writer.asked("fork"), "forked 0");
    got(&reader, 1000..1001);
    assert_eq!(writer.asked("send 4 6"), "sent SENT");
    got(&reader, 4..6);

    // The reader waits meanwhile, and is told once, however long it takes.
    let mut leaves = Program::start("leaves.py", &pair.nodes[1]);
    assert_eq!(leaves.line(), "ready");
    let mut views = Program::start("views.py", &pair.nodes[1]);
    assert_eq!(views.line(), "ready");
    pair.nodes[1].kill();
    assert_eq!(reader.line(), "disconnected");
    assert_eq!([leaves.line(), leaves.line()], ["disconnected"; 2]);
    assert!(leaves.end().success());
    assert_eq!(views.line(), "waits");
    pair.nodes[1].restart();
    pair.await_peers(PeerState::Up);
    assert_eq!(views.asked("read"), "read 5 5");
    assert!(views.end().success());
    // The writer's own, while it does nothing: what it sends then it sends when the daemon is back.
    pair.nodes[0].kill();
    pair.nodes[0].restart();
    pair.await_peers(PeerState::Up);
    let mut next = 6;
    // Until the two nodes know of each other's sinks again, nobody listens.
    loop {
        let said = writer.asked(&format!("send {next} {}", next + 1));
        next += 1;
        if said == "sent SENT" {
            break;
        }
        assert!(
            ["sent NO_SINK", "sent LOST", "sent UNDELIVERED"].contains(&said.as_str()),
            "{said}"
        );
    }
    assert_eq!(
        writer.asked(&format!("send {next} {}", next + 2)),
        "sent SENT"
    );
    loop {
        let line = reader.line();
        assert!(line.ends_with(" True"), "{line}");
        if line == format!("got {} True", next + 1) {
            break;
        }
    }

    let ended = reader.interrupt();
    assert_eq!(reader.line(), "lost 0");
    assert!(ended.success(), "{ended}");
    // It is not asked for anything, and does not handle the signal.
    let ended = writer.interrupt();
    assert!(!ended.success(), "{ended}");
}

#[test]
fn programs_in_python_exchange_16_mib_through_forks_and_restarts_over_kernel_udp() {
    programs_exchange_long_messages_through_forks_and_restarts(Datapath::Udp);
}

#[test]
fn programs_in_python_exchange_16_mib_through_forks_and_restarts_over_af_xdp() {
    programs_exchange_long_messages_through_forks_and_restarts(Datapath::Xdp);
}
