//! The page of `takt stream view`: the live picture, and how long frames took.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use hyper::StatusCode;
use hyper::body::Bytes;
use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, RgbImage};
use serde::Serialize;
use takt_streaming::{Format, Frame};

use super::pixels;
use super::view::{Figures, Seen};
use crate::failure::Failure;
use crate::web::{self, Answer, Site, lock};

const PAGE: &str = include_str!("page.html");
/// Where browsers of this machine find it unless it is to be elsewhere: at another port where that one is taken.
pub const USUAL: [SocketAddr; 2] = [at_home(8088), at_home(0)];
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
        let state = Arc::new(State {
            pictures: Arc::new(Pictures::new(|frame: &Frame| jpeg(frame.format(), frame))),
            shown: Mutex::default(),
        });
        let address = web::serve(addresses, Arc::clone(&state)).map_err(|error| {
            let address = addresses.last().unwrap_or(&USUAL[0]);
            web::no_page(*address, &error)
        })?;
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

impl Site for State {
    async fn answer(&self, path: &str) -> Answer {
        match path {
            "/" => web::answer(StatusCode::OK, web::HTML, PAGE),
            "/frame.jpg" => match self.pictures.latest().await {
                Ok(jpeg) => web::answer(StatusCode::OK, "image/jpeg", jpeg),
                Err(why) => {
                    let told = format!("there is no picture: {why}\n");
                    web::answer(StatusCode::NOT_FOUND, web::TEXT, told)
                }
            },
            "/figures.json" => {
                let shown = lock(&self.shown).clone();
                let text = serde_json::to_string(&shown).unwrap_or_else(|_| "null".into());
                web::answer(StatusCode::OK, "application/json", text)
            }
            _ => web::answer(StatusCode::NOT_FOUND, web::TEXT, "the picture is at /\n"),
        }
    }
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
}
