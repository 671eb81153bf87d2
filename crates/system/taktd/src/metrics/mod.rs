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
use tokio::sync::{Semaphore, watch};

use crate::node::Node;

/// Connections at a time: scrapers are few.
const MOST_CONNECTIONS: usize = 16;
/// How long a connection may take to send its request, and may stay idle.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// After the kernel refuses a connection (no descriptors, for instance): how long until the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The path of the page.
pub const PATH: &str = "/metrics";

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
    pub async fn serve(self, node: Arc<Node>, mut stop: watch::Receiver<bool>) {
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
                        let node = node.clone();
                        connections.spawn(async move {
                            connection(stream, node).await;
                            drop(place);
                        });
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

async fn connection(stream: TcpStream, node: Arc<Node>) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_WITHIN)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| answer(request, node.clone())),
        )
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "scrape of metrics broken off");
    }
}

async fn answer(
    request: Request<Incoming>,
    node: Arc<Node>,
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
    let page = tokio::task::spawn_blocking(move || exposition::page(node.handle())).await;
    Ok(match page {
        Ok(Ok(page)) => {
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
