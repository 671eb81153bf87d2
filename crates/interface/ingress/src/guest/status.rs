//! What is counted of a guest, and the socket at which everybody who can open it hears of that: beside the VMM's, with `.status` behind its
//! name.

use std::io::{Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Options;
use super::queue::Queue;
use crate::counters::READER_COUNTERS;
use crate::error::Error;

/// How long who asks may take to hear the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer.
const LONGEST: u64 = 1 << 20;

/// What is counted beside what becomes of frames that the runtime is given.
#[derive(Clone, Copy, Debug)]
pub(super) enum Own {
    /// Frames that the host's kernel got.
    Kernel,
    /// Frames that it did not take.
    KernelRefused,
    /// Frames that the guest got.
    Received,
    /// Frames for the guest that its buffers were too small for, or that are longer than a frame may be.
    Unfit,
    /// Frames for the guest that came while it had its device down, or none.
    Down,
    /// No frame: a ring that cannot be.
    Broken,
}
/// Their names.
const OWN: [&str; 6] = [
    "kernel",
    "kernel-refused",
    "received",
    "received-too-long",
    "received-down",
    "ring-broken",
];
const COUNTERS: usize = READER_COUNTERS.len() + OWN.len();

/// What threads count, and who asks reads.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) connected: AtomicBool,
    pub(super) connections: AtomicU64,
    tap: String,
    required: bool,
    fault: Mutex<Option<String>>,
    queues: Vec<(String, [AtomicU64; COUNTERS])>,
}

impl Shared {
    pub(super) fn new(options: &Options) -> Self {
        let queues = options.queues.iter().map(|queue| {
            let text = match queue {
                Queue::Kernel => "kernel".to_owned(),
                Queue::Runtime(served) => match served.class {
                    crate::ClassFrom::Frame => "class of each frame".to_owned(),
                    crate::ClassFrom::Fixed(class) => format!("class {}", class.number()),
                },
            };
            (text, [const { AtomicU64::new(0) }; COUNTERS])
        });
        Self {
            connected: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            tap: options.tap.clone(),
            required: options.required,
            fault: Mutex::new(None),
            queues: queues.collect(),
        }
    }

    /// Counts something of a queue.
    pub(super) fn count(&self, queue: usize, own: Own) {
        self.add(queue, own, 1);
    }

    /// Counts something of a queue that there is so often.
    pub(super) fn add(&self, queue: usize, own: Own, count: u64) {
        let counter = &self.queues[queue].1[READER_COUNTERS.len() + own as usize];
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// What has become of a queue's frames so far, in the order of [`READER_COUNTERS`].
    pub(super) fn set(&self, queue: usize, all: &[u64]) {
        for (counter, count) in self.queues[queue].1.iter().zip(all) {
            counter.store(*count, Ordering::Relaxed);
        }
    }

    /// Why a VMM's connection ended that did not end by itself.
    pub(super) fn note(&self, fault: String) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
    }

    pub(super) fn status(&self) -> Status {
        let queues = self
            .queues
            .iter()
            .enumerate()
            .map(|(at, (purpose, counts))| {
                let names = READER_COUNTERS.into_iter().chain(OWN).zip(counts);
                // Only the first one receives.
                let told = names.filter(|(name, _)| at == 0 || !name.starts_with("received"));
                QueueStatus {
                    queue: at,
                    purpose: purpose.clone(),
                    counters: told
                        .map(|(name, count)| Counter {
                            name: name.to_owned(),
                            frames: count.load(Ordering::Relaxed),
                        })
                        .collect(),
                }
            });
        Status {
            connected: self.connected.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
            tap: self.tap.clone(),
            required: self.required,
            fault: self
                .fault
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            queues: queues.collect(),
        }
    }
}

/// What is known of a guest's device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Whether a VMM is connected.
    pub connected: bool,
    /// How many have been so far.
    pub connections: u64,
    /// The tap device of the host.
    pub tap: String,
    /// Whether what the runtime does not send is dropped.
    pub required: bool,
    /// Why the last connection ended that was broken off.
    pub fault: Option<String>,
    /// The queue pairs, the first one first.
    pub queues: Vec<QueueStatus>,
}

/// What is known of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Its number, from 0.
    pub queue: usize,
    /// What it is for.
    pub purpose: String,
    /// Frames by what became of them, in a fixed order.
    pub counters: Vec<Counter>,
}

/// A counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Its name.
    pub name: String,
    /// How many frames.
    pub frames: u64,
}

/// Where a device's status is told.
pub(super) fn place(socket: &Path) -> PathBuf {
    let mut place = socket.as_os_str().to_owned();
    place.push(".status");
    place.into()
}

/// Asks the process that serves a guest.
///
/// # Errors
/// [`Error::NoGuest`]: nobody serves one there. [`Error::Socket`]: somebody else answers.
pub fn status(socket: &Path) -> Result<Status, Error> {
    let wrong = |told: String| Error::Socket {
        path: place(socket),
        told,
    };
    let stream = UnixStream::connect(place(socket)).map_err(|error| Error::NoGuest {
        socket: socket.to_owned(),
        told: error.to_string(),
    })?;
    stream
        .set_read_timeout(Some(PATIENCE))
        .map_err(|error| wrong(error.to_string()))?;
    let mut text = String::new();
    let read = stream.take(LONGEST).read_to_string(&mut text);
    read.map_err(|error| wrong(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| wrong(format!("what answers is no guest: {error}")))
}

/// Answers whoever asks, for as long as the process.
pub(super) fn serve(socket: &Path, shared: &Arc<Shared>) -> Result<(), Error> {
    let listener = listen(&place(socket))?;
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("guest-status".into());
    let answer = move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else {
                // Out of descriptors, say.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            let text = serde_json::to_vec(&shared.status()).unwrap_or_default();
            // Who does not listen hears nothing, and keeps nobody.
            let _ = stream
                .set_write_timeout(Some(PATIENCE))
                .and_then(|()| stream.write_all(&text));
        }
    };
    thread
        .spawn(answer)
        .map_err(Error::system("start a thread"))?;
    Ok(())
}

/// Listens at a path, in the place of a socket that nobody listens at any more.
pub(super) fn listen(path: &Path) -> Result<UnixListener, Error> {
    let wrong = |told: String| Error::Socket {
        path: path.to_owned(),
        told,
    };
    if let Ok(found) = path.symlink_metadata() {
        if !found.file_type().is_socket() {
            return Err(wrong(
                "there is a file that is no socket; name another path".into(),
            ));
        }
        if UnixStream::connect(path).is_ok() {
            return Err(wrong(
                "somebody listens there already; end the other one first".into(),
            ));
        }
        std::fs::remove_file(path).map_err(|error| wrong(error.to_string()))?;
    }
    UnixListener::bind(path).map_err(|error| wrong(error.to_string()))
}
