//! Pictures of the node, again and again, until the caller goes or the node stops.

use std::sync::Arc;
use std::time::Duration;

use takt_runtime::control::Stopped;
use tokio::sync::{mpsc, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::Status;

use super::proto::WatchResponse;
use super::server::unavailable;
use crate::node::Node;

/// One picture.
fn picture(node: &Node) -> Result<WatchResponse, Stopped> {
    let handle = node.handle();
    Ok(WatchResponse {
        monotonic_ns: i64::try_from(node.since_start().as_nanos()).unwrap_or(i64::MAX),
        node: Some(handle.status()?.into()),
        sessions: handle.sessions()?.into_iter().map(Into::into).collect(),
        channels: handle.channels()?.into_iter().map(Into::into).collect(),
        peers: handle.peers()?.into_iter().map(Into::into).collect(),
    })
}

/// Waits for the next tick. False: nobody takes answers any more, or the node stops, which they are told.
pub async fn goes_on<T>(
    ticks: &mut Interval,
    stop: &mut watch::Receiver<bool>,
    answers: &mpsc::Sender<Result<T, Status>>,
) -> bool {
    tokio::select! {
        _ = ticks.tick() => true,
        () = answers.closed() => false,
        _ = stop.wait_for(|stop| *stop) => {
            // Whoever does not take the farewell has gone already.
            let _ = answers.try_send(Err(unavailable()));
            false
        }
    }
}

/// Sends pictures until nobody takes them.
pub async fn send(
    node: Arc<Node>,
    period: Duration,
    mut stop: watch::Receiver<bool>,
    pictures: mpsc::Sender<Result<WatchResponse, Status>>,
) {
    let mut ticks = interval(period);
    // Who reads slowly gets fewer pictures, not a queue of old ones.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while goes_on(&mut ticks, &mut stop, &pictures).await {
        let node = node.clone();
        let next = match tokio::task::spawn_blocking(move || picture(&node)).await {
            Ok(Ok(picture)) => Ok(picture),
            _ => Err(unavailable()),
        };
        let last = next.is_err();
        if pictures.send(next).await.is_err() || last {
            return;
        }
    }
}
