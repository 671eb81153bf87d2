//! Copies of what the tenants of a node send and get, from its daemon.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use takt_health::key::Way;
use taktd::admin::client::connect;
use taktd::admin::proto::{CaptureRequest, CaptureResponse, CapturedPacket};

use super::source::Source;
use crate::admin::block_on;
use crate::failure::Failure;

/// Bytes of each that are looked at: all headers, and the stamps of frames' payloads.
const SNAP: u32 = 256;
/// Answers that wait here. Beyond them the daemon waits, then leaves copies out and counts them.
const ANSWERS: usize = 64;

/// A capture that the daemon makes for this program.
pub struct Node {
    answers: Receiver<Result<CaptureResponse, Failure>>,
}

impl Node {
    /// Has the daemon copy; from when this returns on, it does.
    pub fn open(source: &Source) -> Result<Self, Failure> {
        let (tell, answers) = sync_channel(ANSWERS);
        let socket = source.daemon.socket();
        let request = CaptureRequest {
            identities: source.tenant.clone(),
            snap: SNAP,
        };
        // It ends when nobody takes what it tells.
        std::thread::spawn(move || {
            let ended = block_on(async {
                let mut answers = connect(&socket).await?.capture(request).await?.into_inner();
                while let Some(answer) = answers.message().await? {
                    if tell.send(Ok(answer)).is_err() {
                        break;
                    }
                }
                Ok(())
            });
            let _ = tell.send(Err(ended.err().unwrap_or_else(over)));
        });
        let this = Self { answers };
        // The first answer says that all lanes copy, or why none does.
        match this.answers.recv() {
            Ok(answer) => answer.map(|_| this),
            Err(_) => Err(over()),
        }
    }

    /// The next copies, and how many were left out since the beginning, if they come within this time.
    pub fn take(&self, within: Duration) -> Result<Option<(Vec<CapturedPacket>, u64)>, Failure> {
        match self.answers.recv_timeout(within) {
            Ok(answer) => answer.map(|answer| Some((answer.packets, answer.lost))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(over()),
        }
    }
}

fn over() -> Failure {
    Failure::Other("the daemon has ended: start the monitor again when it is back".into())
}

/// Which way a copy went, and who is at the other end.
pub fn way(packet: &CapturedPacket) -> (Way, Option<IpAddr>) {
    let way = match packet.received {
        true => Way::From,
        false => Way::To,
    };
    (way, packet.peer.parse().ok())
}
