//! The network device of a virtual machine: the back end of its virtio-net (OASIS virtio 1.2, clause 5.1), which a VMM hands over by vhost-user.
//!
//! What the guest sends by a queue of a class goes to the runtime as frames of its listener; all else goes to a tap device of the host,
//! and what arrives there goes to the guest. So the guest has the network that the host gives it, and its time-sensitive frames leave in their
//! windows, at their times, whatever else is on their way.
//!
//! ```text
//!     guest ── queue pair ── shared memory ──┬── of a class ──► runtime: frame source of the guest's listener
//!                                            └── kernel ──────► tap ── bridge, routes
//!     guest ◄── first queue pair ◄────────────────────────────── tap
//! ```
//!
//! | module | subject |
//! |---|---|
//! | `connection` | a VMM's connection: features, threads, events |
//! | `relay` | what a VMM says, on its way to the library that understands it |
//! | `ring` | one virtqueue: frames out of it and into it |
//! | `transmit` | what becomes of a frame that the guest sends |
//! | [`queue`] | what a queue pair is for, as its operator says it |
//! | `tap` | the device of the host |
//! | `status` | what is told to who asks |
//!
//! The guest is hostile: rings, descriptors, lengths and frames are checked, each queue is a thread's own, and this is a process for each
//! guest, so that one that finds a fault harms itself (`docs/decisions/0022`).

mod connection;
pub mod queue;
mod relay;
#[doc(hidden)] // for fuzz targets
pub mod ring;
mod status;
mod tap;
mod transmit;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use vhost_user_backend::VhostUserDaemon;
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use crate::error::Error;
use crate::forward::timespec;
use connection::{Connection, Ending, Threads};
use queue::Queue;
pub use status::{Counter, QueueStatus, Status, status};
use status::{Own, Shared};
use tap::Tap;
use transmit::Transmitter;

/// The most queue pairs of a guest: two for each class.
pub const MOST_QUEUES: usize = 16;

/// How long is waited after a connection that did not go well.
const PAUSE: Duration = Duration::from_millis(100);

/// The device of a guest, and for whom it is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the VMM finds it; it is made, and what was there is replaced if it is a socket.
    pub socket: PathBuf,
    /// The tap device of this network namespace.
    pub tap: String,
    /// What each queue pair is for, the first one first.
    pub queues: Vec<Queue>,
    /// Drop what a queue of a class sends and the runtime does not, instead of leaving it to the kernel.
    pub required: bool,
}

/// A guest's device, for one VMM after the other.
pub struct Guest {
    socket: PathBuf,
    listener: UnixListener,
    transmitters: Arc<[Mutex<Transmitter>]>,
    tap: Arc<Tap>,
    shared: Arc<Shared>,
}

impl Guest {
    /// Opens the tap device, the sessions with the runtime, and the sockets.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(options: &Options) -> Result<Self, Error> {
        if !(1..=MOST_QUEUES).contains(&options.queues.len()) {
            return Err(Error::Queues(options.queues.len()));
        }
        let tap = Arc::new(Tap::open(&options.tap)?);
        let shared = Arc::new(Shared::new(options));
        let name = options.socket.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let transmitters = options.queues.iter().enumerate().map(|(at, queue)| {
            let session = format!("takt guest {name} {at}");
            Transmitter::new(queue, at, session, options.required, &tap, &shared).map(Mutex::new)
        });
        let transmitters = transmitters.collect::<Result<_, _>>()?;
        status::serve(&options.socket, &shared)?;
        let listener = status::listen(&options.socket)?;
        Ok(Self {
            socket: options.socket.clone(),
            listener,
            transmitters,
            tap,
            shared,
        })
    }

    /// Serves one VMM after the other until `stop` is readable.
    ///
    /// # Errors
    /// The kernel's.
    pub fn run(self, stop: impl AsFd) -> Result<(), Error> {
        let stop = stop.as_fd();
        while self.wait(stop)? {
            // What has come for nobody is not for who comes now.
            self.shared.add(0, Own::Down, self.tap.discard());
            // A VMM that talks nonsense: the next one is as welcome.
            if let Err(told) = self.serve(stop) {
                self.shared.note(told);
                // Nor is it waited for without a pause where it cannot even be taken, for want of descriptors say.
                std::thread::sleep(PAUSE);
            }
            self.tap.set_carrier(false);
            self.transmitters().for_each(|mut one| one.leave());
            self.shared.connected.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What sends for the guest, each when nobody else has it.
    fn transmitters(&self) -> impl Iterator<Item = MutexGuard<'_, Transmitter>> {
        let all = self.transmitters.iter();
        all.map(|one| one.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until a VMM connects, and looks what becomes of the former one's frames; `false`: `stop` is readable.
    fn wait(&self, stop: BorrowedFd<'_>) -> Result<bool, Error> {
        loop {
            let patience = self.transmitters().filter_map(|one| one.patience()).min();
            let mut waiting = [
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
                PollFd::new(&self.listener, PollFlags::IN),
            ];
            match rustix::event::poll(&mut waiting, patience.map(timespec).as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(waiting[0].revents().is_empty()),
                Err(error) => return Err(Error::system("wait for a VMM")(io::Error::from(error))),
            }
            self.transmitters().for_each(|mut one| one.tick());
        }
    }

    /// Takes the VMM that has connected and serves it until it goes or `stop` is readable. What went wrong, if something did.
    fn serve(&self, stop: BorrowedFd<'_>) -> Result<(), String> {
        let told = |error: io::Error| error.to_string();
        let (vmm, _) = self.listener.accept().map_err(told)?;
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let (ended, watched) = UnixStream::pair().map_err(told)?;
        let threads = Threads::new(ended);
        let connection = Arc::new(Connection::new(
            Arc::clone(&self.transmitters),
            Arc::clone(&self.tap),
            Arc::clone(&self.shared),
            memory.clone(),
            Arc::clone(&threads),
        )?);
        let text = |error: vhost_user_backend::Error| error.to_string();
        let mut daemon = VhostUserDaemon::new("vhost-user".into(), Arc::clone(&connection), memory)
            .map_err(text)?;
        if let Err(told) = connection.register(&daemon.get_epoll_handlers()) {
            // Its threads cannot be reached.
            std::mem::forget(daemon);
            return Err(told);
        }
        // Before the daemon, which waits for its threads.
        let _ending = Ending(&connection);
        connection.await_threads();
        let (mut inner, library) = relay::inner().map_err(told)?;
        // Does not wait: it is connected.
        daemon.start(&mut inner).map_err(text)?;
        drop(inner);
        self.shared.connected.store(true, Ordering::Relaxed);
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        self.tap.set_carrier(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut waiting = [
                    PollFd::from_borrowed_fd(stop, PollFlags::IN),
                    PollFd::new(&watched, PollFlags::IN),
                ];
                while rustix::event::poll(&mut waiting, None) == Err(rustix::io::Errno::INTR) {}
                relay::end(&vmm, &library);
            });
            scope.spawn(|| relay::answers(&library, &vmm));
            let passed_on = relay::requests(&vmm, &library);
            threads.end();
            let ended = daemon.wait();
            if let Some(fault) = threads.fault() {
                return Err(fault.into());
            }
            match ended {
                Ok(()) => {}
                Err(vhost_user_backend::Error::HandleRequest(
                    vhost::vhost_user::Error::Disconnected
                    | vhost::vhost_user::Error::PartialMessage,
                )) => {}
                Err(error) => return Err(error.to_string()),
            }
            passed_on.map_err(told)
        })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        for place in [&self.socket, &status::place(&self.socket)] {
            let _ = std::fs::remove_file(place);
        }
    }
}
