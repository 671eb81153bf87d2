//! `takt stream`.

mod bench;
mod page;
mod pixels;
mod serve;
mod source;
mod view;

use std::fmt::Write as _;
use std::str::FromStr;

use clap::{Args, Subcommand};
use takt_streaming::Pixels;

use crate::failure::Failure;

const HELP: &str = "\
A stream is a topic whose messages are slices of frames: raw pictures, or any blocks of bytes of one size. A server sends
them, any number of viewers put them together again, each at its own pace. Streams work as channels do: without a daemon
on one machine, with one between nodes.

Examples:
  takt stream serve camera/1
  takt stream view camera/1
  takt topic list";

/// Sends and receives frames, as of cameras.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct StreamCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Send frames: a test pattern, pictures of a directory, those of another program, or RTP
    Serve(serve::Serve),
    /// Receive frames, and show them on a page, write them out, or send them on as RTP
    View(view::View),
    /// Measure frames between two lab hosts, beside `sendfile` over TCP
    Bench(bench::Bench),
}

impl StreamCommand {
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Serve(serve) => serve.run(),
            Action::View(view) => view.run(),
            Action::Bench(bench) => bench.run(),
        }
    }
}

/// Width and height as they are written: 1280x720.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    width: u32,
    height: u32,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(written: &str) -> Result<Self, Self::Err> {
        let size = written.split_once('x').and_then(|(width, height)| {
            Some(Self {
                width: width.parse().ok()?,
                height: height.parse().ok()?,
            })
        });
        size.ok_or_else(|| "write width and height in pixels, such as 1280x720".into())
    }
}

/// A kind of pixels by its name.
fn pixels_by_name(written: &str) -> Result<Pixels, String> {
    Pixels::from_name(written).ok_or_else(|| {
        let mut told = "write one of".to_owned();
        for name in Pixels::names() {
            let _ = write!(told, " {name}");
        }
        told
    })
}
