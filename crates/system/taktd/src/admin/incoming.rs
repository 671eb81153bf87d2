//! Connections to the admin socket: so many at a time, of clients that have begun to speak.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, UdsConnectInfo};

/// Connections that are served at a time; one more is hung up on.
const MOST_SERVED: usize = 256;
/// Connections whose clients have not begun: for one more, the oldest is hung up on.
const MOST_SILENT: usize = 64;
/// How long a client may take to begin: it has nothing to wait for.
const BEGINS_WITHIN: Duration = Duration::from_secs(10);
/// After the kernel refuses a connection (no descriptors, for instance): how long until the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Octets with which every client begins (RFC 9113, section 3.4).
const PREFACE: usize = 24;

/// A client's connection, with what has been read of it.
pub struct Connection {
    stream: UnixStream,
    preface: [u8; PREFACE],
    /// Of it, what has not been given out again.
    left: usize,
    _place: OwnedSemaphorePermit,
}

/// Accepts connections as long as somebody takes them.
pub fn connections(listener: UnixListener) -> impl Stream<Item = io::Result<Connection>> {
    let (begun, connections) = mpsc::channel(MOST_SERVED);
    tokio::spawn(accept(listener, begun));
    ReceiverStream::new(connections)
}

async fn accept(listener: UnixListener, begun: mpsc::Sender<io::Result<Connection>>) {
    let places = Arc::new(Semaphore::new(MOST_SERVED));
    let mut silent = JoinSet::new();
    let mut oldest = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if oldest.len() == MOST_SILENT {
                        // What has come of them is read first.
                        tokio::task::yield_now().await;
                        oldest.retain(|one: &AbortHandle| !one.is_finished());
                    }
                    if oldest.len() == MOST_SILENT && let Some(one) = oldest.pop_front() {
                        one.abort();
                    }
                    let one = silent.spawn(begin(stream, places.clone(), begun.clone()));
                    oldest.push_back(one);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an operator: trying again soon");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = silent.join_next() => {}
            () = begun.closed() => return,
        }
    }
}

/// Hands a connection on when its client has begun.
async fn begin(
    mut stream: UnixStream,
    places: Arc<Semaphore>,
    begun: mpsc::Sender<io::Result<Connection>>,
) {
    let mut preface = [0; PREFACE];
    let read = tokio::time::timeout(BEGINS_WITHIN, stream.read_exact(&mut preface)).await;
    if !matches!(read, Ok(Ok(_))) {
        tracing::debug!("a client of the admin socket did not begin");
        return;
    }
    let Ok(_place) = places.try_acquire_owned() else {
        tracing::warn!("{MOST_SERVED} clients are connected to the admin socket: refused another");
        return;
    };
    let connection = Connection {
        stream,
        preface,
        left: PREFACE,
        _place,
    };
    // An error: the node is stopping, and hangs up.
    let _ = begun.send(Ok(connection)).await;
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let given = self.left.min(buffer.remaining());
        buffer.put_slice(&self.preface[PREFACE - self.left..][..given]);
        self.left -= given;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Connection {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.stream.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use takt_testing::{Directory, PATIENCE};
    use tokio::io::AsyncWriteExt;
    use tokio_stream::StreamExt;

    use super::*;

    const BEGINNING: &[u8; PREFACE] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    struct Served {
        directory: Directory,
        connections: Pin<Box<dyn Stream<Item = io::Result<Connection>>>>,
    }

    impl Served {
        fn new() -> Self {
            let directory = Directory::new();
            let listener = UnixListener::bind(directory.join("socket")).expect("bind");
            Self {
                directory,
                connections: Box::pin(connections(listener)),
            }
        }

        /// A client that has said this much.
        async fn client(&self, said: &[u8]) -> UnixStream {
            let path = self.directory.join("socket");
            let mut client = UnixStream::connect(path).await.expect("somebody listens");
            client.write_all(said).await.expect("room");
            client
        }

        async fn next(&mut self) -> Connection {
            let next = tokio::time::timeout(PATIENCE, self.connections.next()).await;
            next.expect("in time").expect("one").expect("accepted")
        }
    }

    async fn is_hung_up_on(client: &mut UnixStream) {
        let read = tokio::time::timeout(PATIENCE, client.read(&mut [0])).await;
        // Reset, where something was not read.
        assert!(matches!(read.expect("in time"), Ok(0) | Err(_)));
    }

    #[tokio::test]
    async fn clients_that_do_not_begin_are_hung_up_on_for_others_and_keep_nobody_out() {
        let mut served = Served::new();
        let mut silent = Vec::new();
        for at in 0..4 * MOST_SILENT {
            silent.push(served.client(&BEGINNING[..at % PREFACE]).await);
        }
        let mut client = served.client(BEGINNING).await;
        let mut connection = served.next().await;
        for one in &mut silent[..3 * MOST_SILENT] {
            is_hung_up_on(one).await;
        }
        // What was read to see that it begins is there, in whatever pieces it is asked for.
        client.write_all(b"more").await.expect("room");
        let mut read = [0; PREFACE + 4];
        let (first, rest) = read.split_at_mut(5);
        connection.read_exact(first).await.expect("read");
        connection.read_exact(rest).await.expect("read");
        assert_eq!(&read, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore");
        connection.write_all(b"x").await.expect("room");
        assert_eq!(client.read_u8().await.expect("an answer"), b'x');
    }

    #[tokio::test]
    async fn who_has_begun_is_served_however_many_others_wait_to_be_accepted() {
        let mut served = Served::new();
        let path = served.directory.join("socket");
        // Before anything is accepted: this test and the server take turns.
        let connect = || std::os::unix::net::UnixStream::connect(&path).expect("room");
        let mut client = connect();
        std::io::Write::write_all(&mut client, BEGINNING).expect("room");
        let _silent: Vec<_> = (0..MOST_SILENT + 32).map(|_| connect()).collect();
        served.next().await;
    }

    #[tokio::test]
    async fn one_more_than_are_served_is_hung_up_on_until_one_has_gone() {
        let mut served = Served::new();
        let (mut clients, mut connections) = (Vec::new(), Vec::new());
        for _ in 0..MOST_SERVED {
            clients.push(served.client(BEGINNING).await);
            connections.push(served.next().await);
        }
        is_hung_up_on(&mut served.client(BEGINNING).await).await;
        connections.pop();
        let _client = served.client(BEGINNING).await;
        served.next().await;
    }

    #[tokio::test]
    async fn who_takes_no_more_connections_has_the_socket_closed() {
        let served = Served::new();
        let mut silent = served.client(b"").await;
        let Served {
            directory,
            connections,
        } = served;
        drop(connections);
        is_hung_up_on(&mut silent).await;
        let again = UnixStream::connect(directory.join("socket")).await;
        assert!(again.is_err());
    }
}
