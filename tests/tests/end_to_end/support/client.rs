//! An application of its own process, which writes and reads numbers at full speed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use takt::ChannelId;

/// The process; killed at the latest with the test.
pub struct Client(Child);

impl Client {
    /// Starts one, and waits until it is at work. What it complains of goes to `complaints`.
    pub fn at_work(socket: &Path, write: ChannelId, read: ChannelId, complaints: Stdio) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_takt-test-client"))
            .arg(socket)
            .args([write.0.to_string(), read.0.to_string()])
            .stdout(Stdio::piped())
            .stderr(complaints)
            .spawn()
            .expect("the client");
        let output = child.stdout.take().expect("its output");
        let client = Self(child);
        let mut line = String::new();
        BufReader::new(output)
            .read_line(&mut line)
            .expect("its output");
        assert_eq!(line, "ready\n");
        client
    }

    pub fn runs(&mut self) -> bool {
        self.0.try_wait().expect("its state").is_none()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it runs");
    }

    /// It stands still from here on.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        takt_testing::until_stopped(self.0.id());
    }

    pub fn kill(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
