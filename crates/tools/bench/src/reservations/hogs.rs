//! Threads that want all the time there is, in this program or in another one of the same machine: a
//! neighbour, which tells over a socket what they saw.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::gaps::{Gap, Observer};
use super::{ReservationsError, machine};

/// How long a neighbour may take to be there, and to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Threads that want all the time there is.
pub struct Hogs {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Observer>>,
}

impl Hogs {
    /// Lets so many begin.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub fn start(count: u32) -> Result<Self, ReservationsError> {
        let mut hogs = Self {
            stop: Arc::default(),
            threads: Vec::new(),
        };
        for number in 0..count {
            let stop = Arc::clone(&hogs.stop);
            let thread = Builder::new()
                .name(format!("hog-{number}"))
                .spawn(move || {
                    let mut observer = Observer::new();
                    // Relaxed: nothing but the flag itself is communicated.
                    while !stop.load(Ordering::Relaxed) {
                        observer.look();
                    }
                    observer
                })
                .map_err(machine("start a thread"))?;
            hogs.threads.push(thread);
        }
        Ok(hogs)
    }

    /// What they saw from an instant on.
    pub fn stop(mut self, start_ns: u64) -> Vec<Gap> {
        self.stop.store(true, Ordering::Relaxed);
        let threads = std::mem::take(&mut self.threads);
        let observers = threads.into_iter().filter_map(|thread| thread.join().ok());
        observers
            .flat_map(|observer| observer.gaps_from(start_ns))
            .collect()
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        // Relaxed: as above. On an error they end by themselves after this.
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Has so many hogs run for whoever connects to the socket first, and tells them what they saw: the question is the instant of the
/// monotonic clock from which on, in nanoseconds, on a line; the answer a list of [`Gap`] in JSON.
///
/// # Errors
/// When the socket cannot be made, or the other side ends or asks for something else.
pub fn serve(socket: &Path, count: u32) -> Result<(), ReservationsError> {
    let listener = UnixListener::bind(socket).map_err(machine("make the neighbour's socket"))?;
    let served = serve_first(&listener, count);
    // There is nothing to be done about one that somebody else has removed.
    let _ = std::fs::remove_file(socket);
    served
}

fn serve_first(listener: &UnixListener, count: u32) -> Result<(), ReservationsError> {
    let (mut stream, _) = listener
        .accept()
        .map_err(machine("wait for a task set's program"))?;
    let hogs = Hogs::start(count)?;
    let mut question = String::new();
    let asked = BufReader::new(&stream)
        .read_line(&mut question)
        .and_then(|_| {
            let instant = question.trim().parse::<u64>();
            instant.map_err(|_| io::ErrorKind::InvalidData.into())
        });
    let seen = hogs.stop(asked.map_err(machine("hear from the task set's program"))?);
    serde_json::to_vec(&seen)
        .map_err(io::Error::from)
        .and_then(|answer| stream.write_all(&answer))
        .map_err(machine("tell the task set's program"))
}

/// Hogs of another program.
pub struct Neighbour(UnixStream);

impl Neighbour {
    /// Waits for them to be there.
    ///
    /// # Errors
    /// When they are not within a minute.
    pub fn connect(socket: &Path) -> Result<Self, ReservationsError> {
        let begun = Instant::now();
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if begun.elapsed() > PATIENCE => {
                    return Err(machine("connect to the neighbour's socket")(error));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        stream
            .set_read_timeout(Some(PATIENCE))
            .map_err(machine("ask the neighbour"))?;
        Ok(Self(stream))
    }

    /// What they saw from an instant on.
    pub fn stop(mut self, start_ns: u64) -> Result<Vec<Gap>, ReservationsError> {
        writeln!(self.0, "{start_ns}").map_err(machine("ask the neighbour"))?;
        serde_json::from_reader(self.0)
            .map_err(|error| machine("hear from the neighbour")(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::thread::now_ns;
    use super::*;

    #[test]
    fn a_neighbour_runs_for_whoever_connects_and_tells_what_it_saw() {
        let socket = std::env::temp_dir().join(format!("takt-t-hogs-{}", std::process::id()));
        let at = socket.clone();
        let serving = std::thread::spawn(move || serve(&at, 2));
        let neighbour = Neighbour::connect(&socket).unwrap();
        let start = now_ns();
        let seen = neighbour.stop(start).unwrap();
        let end = now_ns() - start;
        assert!(seen.iter().all(|gap| gap.end_ns <= end), "{seen:?} {end}");
        serving.join().unwrap().unwrap();
        assert!(!socket.exists());
    }

    #[test]
    fn whoever_asks_nonsense_or_goes_is_not_waited_for() {
        let socket = std::env::temp_dir().join(format!("takt-t-hogs-n-{}", std::process::id()));
        for said in ["later\n", ""] {
            let at = socket.clone();
            let serving = std::thread::spawn(move || serve(&at, 1));
            let Neighbour(mut stream) = Neighbour::connect(&socket).unwrap();
            stream.write_all(said.as_bytes()).unwrap();
            drop(stream);
            serving.join().unwrap().unwrap_err();
        }
    }
}
