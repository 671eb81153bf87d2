//! Processes that a measurement starts: their answers, their complaints, their ends.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::de::DeserializeOwned;

use super::TaktError;

/// As much of what a process complained of as an error tells.
const MOST_TOLD: usize = 2000;

/// A folder for sockets, configurations and logs, removed with all it has when this is dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Result<Self, TaktError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the numbers have to differ.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("takt-bench-{}-{number}", std::process::id()));
        // Refused if it is there: somebody else's folder would say who reads and writes in it.
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(TaktError::io(format!("create {}", path.display())))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is small, and named after this process.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running process; ended when this is dropped, or when this process ends however it does.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    command: String,
    log: PathBuf,
    lines: Receiver<io::Result<String>>,
}

impl Process {
    /// Starts it; what it complains of goes to `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self, TaktError> {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let text = words
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ");
        let complaints =
            File::create(log).map_err(TaktError::io(format!("create {}", log.display())))?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(complaints);
        let parent = rustix::process::getpid();
        // SAFETY: between fork and exec the closure makes two system calls on constants; it neither
        // allocates nor takes a lock.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                // The parent may have gone before it could be watched.
                if rustix::process::getppid() == Some(parent) {
                    Ok(())
                } else {
                    Err(io::ErrorKind::BrokenPipe.into())
                }
            });
        }
        let mut child = command
            .spawn()
            .map_err(TaktError::io(format!("start {text}")))?;
        let (send, lines) = sync_channel(1);
        if let Some(output) = child.stdout.take() {
            // Ends with the process, which closes the pipe, or with the receiver.
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines() {
                    if send.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self {
            child,
            command: text,
            log: log.to_owned(),
            lines,
        })
    }

    /// Waits for the line that is the process's result.
    pub(crate) fn answer<T: DeserializeOwned>(
        &mut self,
        patience: Duration,
    ) -> Result<T, TaktError> {
        match self.lines.recv_timeout(patience) {
            Ok(Ok(line)) => serde_json::from_str(&line).map_err(|error| TaktError::Answer {
                command: self.command.clone(),
                reason: error.to_string(),
                line,
            }),
            Ok(Err(error)) => Err(TaktError::io(format!("read from {}", self.command))(error)),
            Err(RecvTimeoutError::Timeout) => Err(self.silent(patience)),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    /// An error if it has ended.
    pub(crate) fn check(&mut self) -> Result<(), TaktError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            _ => Err(self.ended()),
        }
    }

    pub(crate) fn silent(&self, patience: Duration) -> TaktError {
        TaktError::Silent {
            command: self.command.clone(),
            seconds: patience.as_secs(),
            said: self.said(),
        }
    }

    fn ended(&mut self) -> TaktError {
        let status = self
            .child
            .wait()
            .map_or_else(|error| error.to_string(), |status| status.to_string());
        TaktError::Ended {
            command: self.command.clone(),
            status,
            said: self.said(),
        }
    }

    /// The end of what it complained of, after a colon.
    fn said(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(MOST_TOLD)..]);
        match text.trim() {
            "" => String::new(),
            text => format!(": {text}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has done its part, or failed at it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, scratch: &Scratch) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start(command, &scratch.path().join("log")).unwrap()
    }

    #[test]
    fn the_answer_is_the_line_that_a_process_prints() {
        let scratch = Scratch::new().unwrap();
        let mut process = shell("echo 17; exec sleep 1000", &scratch);
        assert_eq!(process.answer::<u64>(Duration::from_secs(60)).unwrap(), 17);
        process.check().unwrap();
    }

    #[test]
    fn the_error_of_a_process_that_fails_has_its_status_and_what_it_said() {
        let scratch = Scratch::new().unwrap();
        let mut process = shell("echo port taken >&2; exit 3", &scratch);
        let error = process.answer::<u64>(Duration::from_secs(60)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3"), "{text}");
        assert!(text.ends_with(": port taken"), "{text}");
    }

    #[test]
    fn a_process_is_gone_once_it_is_dropped_and_the_folder_with_it() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_owned();
        let process = shell("exec sleep 1000", &scratch);
        let entry = format!("/proc/{}", process.child.id());
        assert!(Path::new(&entry).exists());
        drop(process);
        assert!(!Path::new(&entry).exists());
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn a_line_that_is_no_result_is_told_as_it_is() {
        let scratch = Scratch::new().unwrap();
        let error = shell("echo hello", &scratch)
            .answer::<u64>(Duration::from_secs(60))
            .unwrap_err();
        assert!(error.to_string().contains("\"hello\""), "{error}");
    }
}
