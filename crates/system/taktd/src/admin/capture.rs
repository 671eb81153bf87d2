//! Copies of what tenants send and get, until the caller goes or the node stops.

use std::time::Duration;

use takt_runtime::capture::{Capture, Captured, Direction, What};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};
use tonic::Status;

use super::proto::{CaptureResponse, CapturedPacket};
use super::watch::goes_on;

/// Most bytes of a copy, and what 0 stands for.
pub const MOST_SNAP: u32 = 1 << 16;
/// How often lanes are asked for what they have copied.
const EVERY: Duration = Duration::from_millis(20);
/// Bytes of each lane in an answer.
const MOST: usize = 1 << 20;

fn packet(capture: &mut Capture, copy: Captured) -> CapturedPacket {
    let head = copy.head;
    CapturedPacket {
        tai_ns: head.at_ns,
        identity: capture.identity(head.tenant).to_owned(),
        received: head.direction == Direction::In,
        class: head.class.number().into(),
        peer: head.peer.map_or_else(String::new, |peer| peer.to_string()),
        length: copy.length,
        frame: head.what == What::Frame,
        packet: copy.bytes,
    }
}

/// What there is.
fn answer(capture: &mut Capture) -> CaptureResponse {
    let copies = capture.take(MOST);
    CaptureResponse {
        packets: copies
            .into_iter()
            .map(|copy| packet(capture, copy))
            .collect(),
        lost: capture.lost(),
    }
}

/// Sends copies until nobody takes them.
pub async fn send(
    mut capture: Capture,
    mut stop: watch::Receiver<bool>,
    answers: mpsc::Sender<Result<CaptureResponse, Status>>,
) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = None;
    while goes_on(&mut ticks, &mut stop, &answers).await {
        // It may have to ask the control thread for an identity.
        let taken = tokio::task::spawn_blocking(move || {
            let answer = answer(&mut capture);
            (capture, answer)
        });
        let Ok((back, answer)) = taken.await else {
            return;
        };
        capture = back;
        if answer.packets.is_empty() && told == Some(answer.lost) {
            continue;
        }
        told = Some(answer.lost);
        if answers.send(Ok(answer)).await.is_err() {
            return;
        }
    }
}
