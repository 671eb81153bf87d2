//! `takt topic hz` and `takt topic bw`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use takt_messaging::{Sample, SubscriberOptions};

use super::{End, Joined, sum_up};
use crate::application::Application;
use crate::failure::Failure;
use crate::output::{Form, print, print_json_line, size};
use crate::signals::Stop;

const HZ_HELP: &str = "\
A line each second: messages a second, the shortest and longest time between two, and their
standard deviation, over the last --window messages. The times are those at which this program
took them.

Examples:
  takt topic hz plant/7/temperature
  takt topic hz 'plant/**' --window 1000 --json";

const BW_HELP: &str = "\
A line each second: bytes a second, and the mean, the smallest and the largest message, over the
last --window messages.

Examples:
  takt topic bw camera/1
  takt topic bw '**' --json";

/// Between two lines.
const LINE: Duration = Duration::from_secs(1);

/// Shows how often messages come.
#[derive(Debug, Args)]
#[command(after_help = HZ_HELP)]
pub struct Hz {
    #[command(flatten)]
    measure: Measure,
}

/// Shows how many bytes come.
#[derive(Debug, Args)]
#[command(after_help = BW_HELP)]
pub struct Bw {
    #[command(flatten)]
    measure: Measure,
}

#[derive(Debug, Args)]
struct Measure {
    /// The topic, or a pattern
    topic: String,
    /// Over how many messages, at least 2
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    window: u32,
    #[command(flatten)]
    end: End,
    #[command(flatten)]
    application: Application,
    #[command(flatten)]
    form: Form,
}

impl Hz {
    pub fn run(self) -> Result<(), Failure> {
        self.measure.run("takt topic hz", Rate::of, Rate::line)
    }
}

impl Bw {
    pub fn run(self) -> Result<(), Failure> {
        self.measure
            .run("takt topic bw", Bandwidth::of, Bandwidth::line)
    }
}

/// The last messages: when they came, and how long they were.
type Window = VecDeque<(Instant, usize)>;

impl Measure {
    fn run<T: Serialize>(
        &self,
        name: &str,
        of: fn(&Window) -> Option<T>,
        line: fn(&T) -> String,
    ) -> Result<(), Failure> {
        let stop = Stop::by_signals()?;
        let joined = Joined::new(&self.application, name)?;
        let options = SubscriberOptions::new(self.application.quality());
        let mut subscriber = joined.subscriber(&self.topic, options)?;
        let most = self.window as usize;
        let window = std::cell::RefCell::new(Window::new());
        let take = |sample: &Sample<'_>| {
            let mut window = window.borrow_mut();
            if window.len() >= most {
                window.pop_front();
            }
            window.push_back((Instant::now(), sample.len()));
            Ok(())
        };
        let say = || match of(&window.borrow()) {
            Some(value) if self.form.json => print_json_line(&value),
            Some(value) => print(&(line(&value) + "\n")),
            None => Ok(()),
        };
        let mut next = Instant::now() + LINE;
        let mut said = None;
        let look = |now: Instant| {
            if now < next {
                return Ok(());
            }
            next = now + LINE;
            let newest = window.borrow().back().map(|(at, _)| *at);
            // Nothing new is nothing to say but that.
            if newest == said {
                eprintln!("no new messages");
                return Ok(());
            }
            said = newest;
            say()
        };
        let mut received = 0;
        let ended = (self.end).take(&mut subscriber, &stop, &mut received, take, look);
        if self.end.count.is_some() && ended.is_ok() {
            say()?;
        }
        sum_up(&subscriber, received, self.form)?;
        ended
    }
}

/// How often messages come.
#[derive(Debug, PartialEq, Serialize)]
struct Rate {
    hz: f64,
    min_s: f64,
    max_s: f64,
    deviation_s: f64,
    messages: usize,
}

impl Rate {
    fn of(window: &Window) -> Option<Self> {
        let times = window.iter().map(|(at, _)| *at);
        let gaps = times.clone().zip(times.skip(1));
        let gaps: Vec<f64> = gaps.map(|(a, b)| (b - a).as_secs_f64()).collect();
        if gaps.is_empty() {
            return None;
        }
        let count = gaps.len() as f64;
        let mean = gaps.iter().sum::<f64>() / count;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / count;
        Some(Self {
            hz: 1.0 / mean.max(f64::MIN_POSITIVE),
            min_s: gaps.iter().copied().fold(f64::INFINITY, f64::min),
            max_s: gaps.iter().copied().fold(0.0, f64::max),
            deviation_s: variance.sqrt(),
            messages: window.len(),
        })
    }

    fn line(&self) -> String {
        let ms = |seconds: f64| seconds * 1e3;
        format!(
            "{:.3} messages/s, min {:.3} ms, max {:.3} ms, deviation {:.3} ms, of {}",
            self.hz,
            ms(self.min_s),
            ms(self.max_s),
            ms(self.deviation_s),
            self.messages
        )
    }
}

/// How many bytes come.
#[derive(Debug, PartialEq, Serialize)]
struct Bandwidth {
    bytes_per_second: f64,
    mean_bytes: f64,
    min_bytes: usize,
    max_bytes: usize,
    messages: usize,
}

impl Bandwidth {
    fn of(window: &Window) -> Option<Self> {
        let ((first, _), (last, _)) = (window.front()?, window.back()?);
        let sizes = || window.iter().map(|(_, size)| *size);
        let seconds = (*last - *first).as_secs_f64();
        if window.len() < 2 || seconds <= 0.0 {
            return None;
        }
        // The first one came before the time began.
        let bytes = sizes().skip(1).sum::<usize>() as f64;
        Some(Self {
            bytes_per_second: bytes / seconds,
            mean_bytes: sizes().sum::<usize>() as f64 / window.len() as f64,
            min_bytes: sizes().min()?,
            max_bytes: sizes().max()?,
            messages: window.len(),
        })
    }

    fn line(&self) -> String {
        format!(
            "{}/s, mean {}, min {}, max {}, of {}",
            size(self.bytes_per_second as u64),
            size(self.mean_bytes as u64),
            size(self.min_bytes as u64),
            size(self.max_bytes as u64),
            self.messages
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_over_the_times_between_messages() {
        let start = Instant::now();
        let at = |ms: u64, size: usize| (start + Duration::from_millis(ms), size);
        let window = Window::from([at(0, 100), at(100, 200), at(300, 600)]);
        let rate = Rate::of(&window).expect("a rate");
        assert!((rate.hz - 1.0 / 0.15).abs() < 1e-6, "{rate:?}");
        let line = "6.667 messages/s, min 100.000 ms, max 200.000 ms, deviation 50.000 ms, of 3";
        assert_eq!(rate.line(), line);
        let bandwidth = Bandwidth::of(&window).expect("a bandwidth");
        assert_eq!(
            bandwidth.line(),
            "2.6 KiB/s, mean 300 B, min 100 B, max 600 B, of 3"
        );
        assert_eq!(Rate::of(&Window::from([at(0, 1)])), None);
        assert_eq!(Bandwidth::of(&Window::new()), None);
    }
}
