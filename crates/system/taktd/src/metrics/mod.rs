//! Metrics for Prometheus, on an optional address: a small HTTP server with one page.
//!
//! Each scrape takes a snapshot of the runtime as the admin API does; nothing is collected in between.
//! [`exposition`] names the metrics.

pub mod exposition;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::node::Node;

/// Connections and pages that are made at a time: scrapers are few.
pub const MOST_CONNECTIONS: usize = 16;
/// How long a connection may take from beginning to end: as long as Prometheus waits unless told otherwise.
const SERVED_WITHIN: Duration = Duration::from_secs(10);
/// After the kernel refuses a connection (no descriptors, for instance): how long until the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The path of the page.
pub const PATH: &str = "/metrics";

/// Makes the page; `None`: the node is stopping.
type Page = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Metrics cannot be served.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot serve metrics on {address}: {source}; choose another `metrics.address`, or stop the program that holds it"
)]
pub struct BindError {
    address: SocketAddr,
    source: std::io::Error,
}

/// A bound address that is not yet served.
pub struct MetricsServer {
    listener: TcpListener,
}

impl MetricsServer {
    /// Binds `address`.
    ///
    /// # Errors
    /// [`BindError`].
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        match TcpListener::bind(address).await {
            Ok(listener) => Ok(Self { listener }),
            Err(source) => Err(BindError { address, source }),
        }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The kernel's.
    pub fn local_address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is true; connections end then.
    pub async fn serve(self, node: Arc<Node>, stop: watch::Receiver<bool>) {
        let page = move || exposition::page(&node).ok();
        self.serve_page(Arc::new(page), SERVED_WITHIN, stop).await;
    }

    /// The same of any page. `within`: how long a connection may take.
    async fn serve_page(self, page: Page, within: Duration, mut stop: watch::Receiver<bool>) {
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let mut connections = tokio::task::JoinSet::new();
        let stop = async move {
            // An error: nobody is left to say stop, which is as good.
            let _ = stop.wait_for(|stop| *stop).await;
        };
        tokio::pin!(stop);
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let Ok(place) = places.clone().try_acquire_owned() else {
                            continue;
                        };
                        connections.spawn(connection(stream, page.clone(), within, place));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a scrape of metrics");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
                () = &mut stop => return,
            }
        }
    }
}

/// Serves one request: who reads no answer, or sends no request, keeps its place for so long at most.
async fn connection(stream: TcpStream, page: Page, within: Duration, place: OwnedSemaphorePermit) {
    let place = Arc::new(place);
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(within)
        .keep_alive(false)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| answer(request, page.clone(), place.clone())),
        );
    match tokio::time::timeout(within, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "scrape of metrics broken off"),
        Err(_) => tracing::debug!("scrape of metrics broken off: its client is too slow"),
    }
}

async fn answer(
    request: Request<Incoming>,
    page: Page,
    place: Arc<OwnedSemaphorePermit>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() != PATH {
        return Ok(text(
            StatusCode::NOT_FOUND,
            format!("metrics are at {PATH}\n"),
        ));
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n".into());
        response
            .headers_mut()
            .insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return Ok(response);
    }
    let page = tokio::task::spawn_blocking(move || {
        // A page that is asked for is made, also if its client has gone meanwhile: it has its place until then.
        let _place = place;
        page()
    });
    Ok(match page.await {
        Ok(Some(page)) => {
            let mut response = text(StatusCode::OK, page);
            response.headers_mut().insert(
                CONTENT_TYPE,
                hyper::header::HeaderValue::from_static(exposition::CONTENT_TYPE),
            );
            response
        }
        _ => text(
            StatusCode::SERVICE_UNAVAILABLE,
            "the node is stopping\n".into(),
        ),
    })
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Condvar, Mutex};

    use takt_testing::until;

    use super::*;

    /// A server of a page, in a thread of its own.
    struct Served {
        address: SocketAddr,
        stop: watch::Sender<bool>,
        thread: Option<std::thread::JoinHandle<()>>,
    }

    impl Served {
        fn new(
            page: impl Fn() -> Option<String> + Send + Sync + 'static,
            within: Duration,
        ) -> Self {
            let (stop, stopping) = watch::channel(false);
            let (bound, address) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime");
                runtime.block_on(async {
                    let any = SocketAddr::from(([127, 0, 0, 1], 0));
                    let server = MetricsServer::bind(any).await.expect("an address");
                    let address = server.local_address().expect("bound");
                    bound.send(address).expect("somebody waits");
                    server.serve_page(Arc::new(page), within, stopping).await;
                });
            });
            Self {
                address: address.recv().expect("bound"),
                stop,
                thread: Some(thread),
            }
        }

        /// Connects and asks for the page.
        fn ask(&self) -> std::net::TcpStream {
            let mut stream = std::net::TcpStream::connect(self.address).expect("connect");
            // It may be refused meanwhile, which reading tells.
            let _ = write!(stream, "GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n");
            stream
        }

        /// Waits for a scrape that is answered: its body.
        fn scrape(&self) -> String {
            until("a scrape is answered", || {
                let mut answer = String::new();
                // As much as has come of one that is broken off.
                let _ = self.ask().read_to_string(&mut answer);
                let (head, body) = answer.split_once("\r\n\r\n")?;
                head.starts_with("HTTP/1.1 200").then(|| body.to_owned())
            })
        }
    }

    impl Drop for Served {
        fn drop(&mut self) {
            self.stop.send_replace(true);
            // A page that is never made would be waited for.
            if let Some(thread) = self.thread.take().filter(|_| !std::thread::panicking()) {
                thread.join().expect("it stops");
            }
        }
    }

    #[test]
    fn clients_that_go_before_their_answer_leave_no_more_pages_to_be_made_than_there_are_places() {
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let begun = Arc::new(AtomicUsize::new(0));
        let served = Served::new(
            {
                let (gate, begun) = (gate.clone(), begun.clone());
                move || {
                    begun.fetch_add(1, Ordering::SeqCst);
                    let open = gate.0.lock().expect("a gate");
                    let _open = gate.1.wait_while(open, |open| !*open);
                    Some("a page".into())
                }
            },
            takt_testing::PATIENCE,
        );
        let begun = || begun.load(Ordering::SeqCst);
        let mut refused = 0;
        for asked in 1..=4 * MOST_CONNECTIONS {
            let mut stream = served.ask();
            let wait = Some(Duration::from_millis(1));
            stream.set_read_timeout(wait).expect("a timeout");
            // Either a page is begun for it, or it is hung up on.
            until("it is served or refused", || {
                match stream.read(&mut [0; 64]) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        (begun() + refused == asked).then_some(())
                    }
                    Ok(0) | Err(_) => {
                        refused += 1;
                        Some(())
                    }
                    Ok(_) => panic!("no page can be made"),
                }
            });
        }
        let pages = begun();
        *gate.0.lock().expect("a gate") = true;
        gate.1.notify_all();
        assert_eq!(pages, MOST_CONNECTIONS);
        assert_eq!(served.scrape(), "a page");
    }

    #[test]
    fn clients_that_read_nothing_do_not_keep_their_places() {
        // More than what the kernel holds for clients.
        const LONG: usize = 16 << 20;
        let pages = AtomicUsize::new(0);
        let page = move || {
            let long = pages.fetch_add(1, Ordering::SeqCst) < MOST_CONNECTIONS;
            Some("x".repeat(if long { LONG } else { 1 }))
        };
        let served = Served::new(page, Duration::from_millis(500));
        let silent: Vec<_> = (0..MOST_CONNECTIONS).map(|_| served.ask()).collect();
        for stream in &silent {
            // Its answer has begun, or was broken off already.
            let _ = stream.peek(&mut [0]);
        }
        assert!(served.scrape().starts_with('x'));
        drop(silent);
    }
}
