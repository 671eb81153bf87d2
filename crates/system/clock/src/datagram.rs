//! Questions to a daemon on this machine by datagrams: over a Unix socket, or UDP.
//!
//! A daemon answers to the address that a question came from. On a Unix socket that is a path next to the
//! daemon's own, as its own tools have it; where that directory is not ours to write, an abstract address.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a daemon on this machine may take for its answers.
const PATIENCE: Duration = Duration::from_millis(200);

/// A socket connected to a daemon.
pub struct Asker {
    socket: Socket,
    /// The socket's file, if it has one.
    _file: Option<SocketFile>,
}

enum Socket {
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

/// A file that goes with its owner.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Asker {
    /// Asks the daemon whose Unix socket is `path`.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let (socket, file) = match beside(path) {
            Ok((socket, file)) => (socket, Some(file)),
            Err(_) => {
                let name = std::os::unix::net::SocketAddr::from_abstract_name(name())?;
                (UnixDatagram::bind_addr(&name)?, None)
            }
        };
        socket.connect(path)?;
        Ok(Self {
            socket: Socket::Unix(socket),
            _file: file,
        })
    }

    /// Asks the daemon at `address`.
    pub fn udp(address: SocketAddr) -> io::Result<Self> {
        let any = match address {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(address)?;
        Ok(Self {
            socket: Socket::Udp(socket),
            _file: None,
        })
    }

    pub fn send(&self, question: &[u8]) -> io::Result<()> {
        match &self.socket {
            Socket::Unix(socket) => socket.send(question),
            Socket::Udp(socket) => socket.send(question),
        }?;
        Ok(())
    }

    /// Passes datagrams to `take` until it has what it wants: `None` waits for more.
    ///
    /// # Errors
    /// The kernel's; `TimedOut` when the answer does not come.
    pub fn receive<R>(&self, mut take: impl FnMut(&[u8]) -> Option<R>) -> io::Result<R> {
        let mut buffer = [0u8; 2048];
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"));
            }
            let received = match &self.socket {
                Socket::Unix(socket) => {
                    socket.set_read_timeout(Some(left))?;
                    socket.recv(&mut buffer)
                }
                Socket::Udp(socket) => {
                    socket.set_read_timeout(Some(left))?;
                    socket.recv(&mut buffer)
                }
            };
            match received {
                Ok(length) => {
                    if let Some(result) = take(&buffer[..length]) {
                        return Ok(result);
                    }
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// A name that no other socket of this machine has.
fn name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("takt.{}.{number}.sock", std::process::id())
}

/// A socket with a file next to `path` that the daemon may write to.
fn beside(path: &Path) -> io::Result<(UnixDatagram, SocketFile)> {
    let own = path.with_file_name(name());
    // Left behind by a process of the same number that was killed.
    let _ = std::fs::remove_file(&own);
    let socket = UnixDatagram::bind(&own)?;
    let file = SocketFile(own);
    // chronyd answers as another user.
    std::fs::set_permissions(&file.0, std::fs::Permissions::from_mode(0o666))?;
    Ok((socket, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon whose socket's path has so many octets at least; what it hears it says again.
    fn echo(length: usize) -> &'static str {
        let mut directory = std::env::temp_dir().join(format!("takt-t-{}", name()));
        let taken = directory.as_os_str().len() + "//d".len();
        if let Some(more) = length.checked_sub(taken) {
            directory.push("x".repeat(more));
        }
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join("d");
        let daemon = UnixDatagram::bind(&path).expect("bind");
        let asker = Asker::unix(&path).expect("connect");
        asker.send(b"again").expect("send");
        let mut buffer = [0; 16];
        let (heard, from) = daemon.recv_from(&mut buffer).expect("receive");
        daemon
            .send_to_addr(&buffer[..heard], &from)
            .expect("an address to answer to");
        let answer = asker.receive(|answer| (answer == b"again").then_some(()));
        answer.expect("the answer");
        drop(asker);
        let left = std::fs::read_dir(&directory).expect("read").count();
        assert_eq!(left, 1, "only the daemon's own file");
        let _ = std::fs::remove_dir_all(&directory);
        match from.as_pathname() {
            Some(_) => "beside",
            None => "abstract",
        }
    }

    #[test]
    fn answers_come_to_a_socket_beside_the_daemons_or_to_an_abstract_one() {
        assert_eq!(echo(0), "beside");
        // unix(7): a path has 107 octets at most, so that there is no room beside this one.
        assert_eq!(echo(107), "abstract");
    }

    #[test]
    fn whoever_does_not_answer_is_not_waited_for_for_ever() {
        let daemon = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let asker = Asker::udp(daemon.local_addr().expect("bound")).expect("connect");
        asker.send(b"question").expect("send");
        let mut buffer = [0; 16];
        let (_, from) = daemon.recv_from(&mut buffer).expect("receive");
        daemon.send_to(b"something else", from).expect("send");
        let answer = asker.receive(|answer| (answer == b"answer").then_some(()));
        let error = answer.expect_err("no answer");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
