//! What a host sends to a port, as it comes by at the other end of its cable, by the stamps of that end's kernel.

use std::collections::HashMap;

use takt::TaiTime;
use takt_lab::{Capture, Host};
use takt_wire::channel::{HEADER_LEN, RECORD_HEADER_LEN};

use super::{Datapath, PORT, TaktError};
use crate::isochronous::sys::tai_offset_ns;

/// A capture that has begun.
pub(super) struct Wire {
    capture: Capture,
    /// Octets of a datagram before the message.
    headers: usize,
}

impl Wire {
    /// Of datagrams that are messages.
    pub(super) fn of(host: &Host, port: u16) -> Result<Self, TaktError> {
        Ok(Self {
            capture: Capture::sent_by(host, port)?,
            headers: 0,
        })
    }

    /// Of messages to the one lane of another node, one in a datagram.
    pub(super) fn of_lane(host: &Host, path: Datapath) -> Result<Self, TaktError> {
        // Kernel UDP's comes first.
        let port = match path {
            Datapath::Udp => PORT + 1,
            Datapath::Xdp => PORT + 2,
        };
        Ok(Self {
            headers: HEADER_LEN + RECORD_HEADER_LEN,
            ..Self::of(host, port)?
        })
    }

    /// When messages came by, by the eight octets that they begin with.
    pub(super) fn captured(&self) -> Result<HashMap<i64, TaiTime>, TaktError> {
        let offset = tai_offset_ns();
        let mut captured = HashMap::new();
        let next = || {
            let frame = self.capture.take();
            frame.map_err(TaktError::io("read what was captured"))
        };
        while let Some(frame) = next()? {
            let message = frame.datagram().get(self.headers..);
            if let Some(stamp) = message.and_then(<[u8]>::first_chunk) {
                let at = TaiTime::from_nanos(frame.realtime_ns + offset);
                captured.insert(i64::from_le_bytes(*stamp), at);
            }
        }
        Ok(captured)
    }
}
