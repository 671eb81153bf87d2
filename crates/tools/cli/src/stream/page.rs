//! The page of `takt stream view`: the live picture, and how long frames took.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, RgbImage};
use serde::Serialize;
use takt_streaming::{Format, Frame};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::pixels;
use super::view::{Figures, Seen};
use crate::failure::Failure;

const PAGE: &str = include_str!("page.html");
/// Where browsers of this machine find it unless it is to be elsewhere: at another port where that one is taken.
pub const USUAL: [SocketAddr; 2] = [at_home(8088), at_home(0)];
/// Connections at a time.
const MOST_CONNECTIONS: usize = 32;
/// How long a connection may take to send a request, and may stay idle.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);
/// A connection is closed after so long; an answer that is under way then may take so much more.
const CONNECTION_WITHIN: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(30)];
/// Wider and higher pictures are made smaller for the page.
const MOST_SIZE: [u32; 2] = [1280, 4096];
const QUALITY: u8 = 80;
const NO_PICTURE: &str = "nothing is said of what the bytes of its frames are; serve pictures with another --pixels than bytes";

/// The page, served from a thread that ends with the process.
pub struct Page {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    pictures: Arc<Pictures<Frame>>,
    shown: Mutex<Option<Shown>>,
}

/// A frame as a picture, or why there is none.
type Picture = Result<Bytes, String>;

/// The latest frame, and its picture once somebody has asked for it: each is made once, and one at a time.
struct Pictures<F> {
    /// Which it is of those that were shown.
    latest: Mutex<(u64, Option<Arc<F>>)>,
    made: Arc<tokio::sync::Mutex<(u64, Option<Picture>)>>,
    make: fn(&F) -> Picture,
}

impl<F: Send + Sync + 'static> Pictures<F> {
    fn new(make: fn(&F) -> Picture) -> Self {
        Self {
            latest: Mutex::new((0, None)),
            made: Arc::default(),
            make,
        }
    }

    fn show(&self, frame: F) {
        let frame = Arc::new(frame);
        let mut latest = lock(&self.latest);
        latest.0 += 1;
        // What was shown before is given back without the lock.
        let before = latest.1.replace(frame);
        drop(latest);
        drop(before);
    }

    async fn latest(&self) -> Picture {
        let mut made = self.made.clone().lock_owned().await;
        let (number, frame) = lock(&self.latest).clone();
        let Some(frame) = frame else {
            return Err("no frame has come yet".into());
        };
        if let (of, Some(picture)) = &*made
            && *of == number
        {
            return picture.clone();
        }
        let make = self.make;
        // It has the lock until it is made, also when who asked for it is gone.
        let making = tokio::task::spawn_blocking(move || {
            let picture = make(&frame);
            *made = (number, Some(picture.clone()));
            picture
        });
        making
            .await
            .unwrap_or_else(|_| Err("the picture could not be made".into()))
    }
}

/// Figures with the latency of the last frames.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    #[serde(flatten)]
    figures: Figures,
    /// Microseconds, the oldest first.
    latencies_us: Vec<i64>,
}

impl Shown {
    pub fn new(figures: &Figures, seen: &Seen) -> Self {
        Self {
            figures: figures.clone(),
            latencies_us: seen.latencies.iter().map(|ns| ns / 1000).collect(),
        }
    }
}

const fn at_home(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

impl Page {
    /// Serves it at the first of these addresses that is free.
    pub fn serve(addresses: &[SocketAddr]) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            let address = addresses.last().unwrap_or(&USUAL[0]);
            Failure::Other(format!(
                "cannot serve the page at {address}: {error}; choose another address and port with --http, or port 0 for any"
            ))
        };
        let listener = std::net::TcpListener::bind(addresses).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let state = Arc::new(State {
            pictures: Arc::new(Pictures::new(|frame: &Frame| jpeg(frame.format(), frame))),
            shown: Mutex::default(),
        });
        let shared = state.clone();
        std::thread::spawn(move || {
            runtime.block_on(async move {
                if let Ok(listener) = TcpListener::from_std(listener) {
                    accept(listener, shared).await;
                }
            });
        });
        Ok(Self { address, state })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows a frame from now on.
    pub fn show(&self, frame: Frame, _: &Seen) {
        self.state.pictures.show(frame);
    }

    /// Shows figures from now on.
    pub fn tell(&self, shown: Shown) {
        *lock(&self.state.shown) = Some(shown);
    }
}

fn lock<T>(state: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut places = Places::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => places.spawn(connection(stream, state.clone())),
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

async fn connection(stream: TcpStream, state: Arc<State>) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_WITHIN)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| answer(request, state.clone())),
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

async fn answer(
    request: Request<Incoming>,
    state: Arc<State>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if !by_address(&request) {
        return Ok(response(
            StatusCode::MISDIRECTED_REQUEST,
            "text/plain",
            "name this host by its address\n",
        ));
    }
    if request.method() != Method::GET {
        return Ok(response(
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain",
            "use GET\n",
        ));
    }
    Ok(match request.uri().path() {
        "/" => response(StatusCode::OK, "text/html; charset=utf-8", PAGE),
        "/frame.jpg" => match state.pictures.latest().await {
            Ok(jpeg) => response(StatusCode::OK, "image/jpeg", jpeg),
            Err(why) => {
                let told = format!("there is no picture: {why}\n");
                response(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", told)
            }
        },
        "/figures.json" => {
            let shown = lock(&state.shown).clone();
            let text = serde_json::to_string(&shown).unwrap_or_else(|_| "null".into());
            response(StatusCode::OK, "application/json", text)
        }
        _ => response(StatusCode::NOT_FOUND, "text/plain", "the picture is at /\n"),
    })
}

fn response(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Width and height of a picture on the page.
fn shown_size(width: u32, height: u32) -> [u32; 2] {
    let [most_width, most_height] = MOST_SIZE;
    if width <= most_width && height <= most_height {
        return [width, height];
    }
    // No longer than `most`, as `of` is in its proportion to `to`.
    let scaled = |most: u32, of: u32, to: u32| {
        let scaled = u64::from(most) * u64::from(of) / u64::from(to);
        u32::try_from(scaled).unwrap_or(u32::MAX).max(1)
    };
    let high = scaled(most_width, height, width);
    if high <= most_height {
        [most_width, high]
    } else {
        [scaled(most_height, width, height), most_height]
    }
}

/// A frame as a picture for browsers.
fn jpeg(format: Format, frame: &[u8]) -> Picture {
    let rgb = pixels::to_rgb(format, frame).ok_or(NO_PICTURE)?;
    let mut picture = RgbImage::from_raw(format.width(), format.height(), rgb).ok_or(NO_PICTURE)?;
    let [width, height] = shown_size(format.width(), format.height());
    if picture.dimensions() != (width, height) {
        picture = image::imageops::thumbnail(&picture, width, height);
    }
    let mut jpeg = Vec::new();
    JpegEncoder::new_with_quality(&mut jpeg, QUALITY)
        .encode(&picture, width, height, ExtendedColorType::Rgb8)
        .map_err(|error| error.to_string())?;
    Ok(jpeg.into())
}

#[cfg(test)]
mod tests {
    use takt_streaming::Pixels;

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

    #[test]
    fn a_frame_is_made_a_picture_once_however_many_ask() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static MADE: AtomicU32 = AtomicU32::new(0);

        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let pictures = Arc::new(Pictures::new(|frame: &u8| {
            MADE.fetch_add(1, Ordering::Relaxed);
            Ok(vec![*frame].into())
        }));
        runtime.block_on(async {
            assert!(pictures.latest().await.is_err());
            for frame in 0..3 {
                pictures.show(frame);
                let asking: Vec<_> = (0..40)
                    .map(|_| {
                        let pictures = pictures.clone();
                        tokio::spawn(async move { pictures.latest().await })
                    })
                    .collect();
                for asking in asking {
                    let picture = asking.await.expect("a task").expect("a picture");
                    assert_eq!(picture[..], [frame]);
                }
                assert_eq!(MADE.load(Ordering::Relaxed), u32::from(frame) + 1);
            }
        });
    }

    #[test]
    fn pictures_of_any_size_have_a_page_and_bytes_say_why_not() {
        assert_eq!(shown_size(1280, 720), [1280, 720]);
        assert_eq!(shown_size(3840, 2160), [1280, 720]);
        assert_eq!(shown_size(2560, 81_920), [128, 4096]);
        assert_eq!(shown_size(2, 70_000), [1, 4096]);
        let gray = Format::picture(Pixels::Gray, 2, 70_000).expect("a format");
        let jpeg = jpeg(gray, &vec![0; gray.bytes()]).expect("a picture");
        assert_eq!(jpeg[..2], [0xff, 0xd8]);
        let bytes = Format::of_bytes(16).expect("a format");
        let why = super::jpeg(bytes, &[0; 16]).expect_err("no picture");
        assert!(why.contains("another --pixels than bytes"), "{why}");
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
