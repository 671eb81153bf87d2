//! Pages and figures for browsers and collectors, over HTTP/1.1.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::failure::Failure;

/// What pages are.
pub const HTML: &str = "text/html; charset=utf-8";
pub const TEXT: &str = "text/plain; charset=utf-8";

/// Connections at a time.
const MOST_CONNECTIONS: usize = 32;
/// How long a connection may take to send a request, and may stay idle.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);
/// A connection is closed after so long; an answer that is under way then may take so much more.
const CONNECTION_WITHIN: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(30)];

pub type Answer = Response<Full<Bytes>>;

/// What is served.
pub trait Site: Send + Sync + 'static {
    /// Whether it answers whatever name the host goes by: not for pages, see [`by_address`].
    const BY_ANY_NAME: bool = false;

    /// The answer to a GET.
    fn answer(&self, path: &str) -> impl Future<Output = Answer> + Send;
}

/// Serves a site at the first of these addresses that is free, from a thread that ends with the process. Returns the address.
pub fn serve<S: Site>(addresses: &[SocketAddr], site: Arc<S>) -> io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(addresses)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::spawn(move || {
        runtime.block_on(async move {
            if let Ok(listener) = TcpListener::from_std(listener) {
                accept(listener, site).await;
            }
        });
    });
    Ok(address)
}

async fn accept<S: Site>(listener: TcpListener, site: Arc<S>) {
    let mut places = Places::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => places.spawn(connection(stream, Arc::clone(&site))),
            // No descriptors, for instance.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// The connections that there are, the oldest first.
#[derive(Default)]
struct Places(VecDeque<AbortHandle>);

impl Places {
    /// Serves one more; where there is no place, in that of the oldest.
    fn spawn(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        self.0.retain(|place| !place.is_finished());
        if self.0.len() >= MOST_CONNECTIONS
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back(tokio::spawn(connection).abort_handle());
    }
}

async fn connection<S: Site>(stream: TcpStream, site: Arc<S>) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_WITHIN)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| respond(request, Arc::clone(&site))),
        );
    let mut served = pin!(served);
    // It ends with an error when the browser goes: that is no news.
    let [usual, last] = CONNECTION_WITHIN;
    if tokio::time::timeout(usual, served.as_mut()).await.is_err() {
        served.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(last, served).await;
    }
}

/// Whether a request names this page by an address. Another name may be that of a web page elsewhere which has it lead here, so
/// that its script could read the pictures (DNS rebinding).
fn by_address(request: &Request<Incoming>) -> bool {
    let host = request
        .headers()
        .get(HOST)
        .and_then(|host| host.to_str().ok());
    let authority = host.and_then(|host| host.parse::<Authority>().ok());
    authority.is_some_and(|authority| {
        let name = authority.host();
        let inner = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'));
        name == "localhost" || inner.unwrap_or(name).parse::<IpAddr>().is_ok()
    })
}

async fn respond<S: Site>(request: Request<Incoming>, site: Arc<S>) -> Result<Answer, Infallible> {
    if !S::BY_ANY_NAME && !by_address(&request) {
        let told = "name this host by its address\n";
        return Ok(answer(StatusCode::MISDIRECTED_REQUEST, TEXT, told));
    }
    if request.method() != Method::GET {
        return Ok(answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, "use GET\n"));
    }
    Ok(site.answer(request.uri().path()).await)
}

/// What a page and who fills it share. A thread that panicked leaves it as it was.
pub fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why there is no page.
pub fn no_page(address: SocketAddr, error: &io::Error) -> Failure {
    Failure::Other(format!(
        "cannot serve the page at {address}: {error}; choose another address and port with --http, or port 0 for any"
    ))
}

/// An answer that nobody is to keep.
pub fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_connection_gives_its_place_to_a_new_one() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut places = Places::default();
            let (tell, ended) = std::sync::mpsc::channel::<usize>();
            let (open, _) = tokio::sync::watch::channel(());
            for number in 0..MOST_CONNECTIONS + 2 {
                let (tell, mut waits) = (Tell(number, tell.clone()), open.subscribe());
                places.spawn(async move {
                    let _tell = tell;
                    let _ = waits.changed().await;
                });
                settle().await;
            }
            settle().await;
            assert_eq!(places.0.len(), MOST_CONNECTIONS);
            assert_eq!(ended.try_iter().collect::<Vec<_>>(), [0, 1]);
            // Those that have ended have no place.
            open.send_replace(());
            settle().await;
            places.spawn(async {});
            assert_eq!(places.0.len(), 1);
        });
    }

    /// Has the others go as far as they can.
    async fn settle() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    /// Says that it is gone.
    struct Tell(usize, std::sync::mpsc::Sender<usize>);

    impl Drop for Tell {
        fn drop(&mut self) {
            let _ = self.1.send(self.0);
        }
    }
}
