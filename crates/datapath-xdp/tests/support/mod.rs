//! Throw-away network namespaces with a veth pair between them.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A network namespace; removed on drop with everything in it.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    pub fn new(role: &str) -> Self {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("takt-t-{}-{count}-{role}", std::process::id());
        run("ip", &["netns", "add", &name]);
        let namespace = Self { name };
        namespace.ip("link set lo up");
        namespace
    }

    /// Runs `ip` here, which must succeed.
    pub fn ip(&self, arguments: &str) -> String {
        let mut all = vec!["-n", &self.name];
        all.extend(arguments.split_whitespace());
        run("ip", &all)
    }

    /// Runs a program here; it may fail.
    pub fn exec(&self, command: &str) -> Output {
        Command::new("ip")
            .args(["netns", "exec", &self.name])
            .args(command.split_whitespace())
            .output()
            .expect("run ip netns exec")
    }

    /// Runs a program here, which must succeed.
    pub fn sh(&self, command: &str) -> String {
        let output = self.exec(command);
        assert!(
            output.status.success(),
            "{command}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `work` on a thread of its own in this namespace.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let file =
                    File::open(format!("/run/netns/{}", self.name)).expect("open the namespace");
                // SAFETY: the descriptor is open and names a network namespace; only this thread moves.
                let moved = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(moved, 0, "setns: {}", std::io::Error::last_os_error());
                work()
            });
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A failure leaves an empty namespace behind, no reason to hide the test's own result.
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
    }
}

/// Two namespaces with interface `takt0` in each, joined, with addresses 10.77.0.1 and .2 and fd77::1 and ::2.
pub struct Pair {
    pub left: Namespace,
    pub right: Namespace,
}

impl Pair {
    pub fn new() -> Self {
        Self::with(1, 1500)
    }

    pub fn with(queues: u32, mtu: u32) -> Self {
        let (left, right) = (Namespace::new("l"), Namespace::new("r"));
        left.ip(&format!(
            "link add takt0 mtu {mtu} numrxqueues {queues} numtxqueues {queues} type veth \
             peer name takt0 mtu {mtu} numrxqueues {queues} numtxqueues {queues} netns {}",
            right.name
        ));
        for (namespace, host) in [(&left, 1), (&right, 2)] {
            // Duplicate address detection would keep the address unusable for seconds.
            namespace.ip(&format!("address add 10.77.0.{host}/24 dev takt0"));
            namespace.ip(&format!("address add fd77::{host}/64 dev takt0 nodad"));
        }
        for namespace in [&left, &right] {
            namespace.ip("link set takt0 up");
        }
        Self { left, right }
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("run {program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether namespaces and AF_XDP can be had; says why not.
pub fn privileged() -> bool {
    // SAFETY: no arguments, no failure.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("skipped: needs root, to make network namespaces and AF_XDP sockets");
    }
    root
}
