//! Messages that wait until the kernel knows the hardware address of their next hop, as packets wait in its neighbour
//! tables (`unres_qlen` of `ip-sysctl`): what has a launch time is not sent at once for want of an address.

use std::collections::VecDeque;
use std::net::SocketAddr;

use takt::TaiTime;

use crate::destination::Key;
use crate::transmit::Request;

/// Messages of a socket that may wait. The kernel keeps about as many for each neighbour.
const MOST: usize = 64;

/// A message that waits.
pub struct Waiting {
    /// Where it goes, whatever becomes of the socket meanwhile.
    pub key: Key,
    /// Its content.
    pub payload: Vec<u8>,
    /// Its control messages, for the kernel, should it send it after all.
    pub control: Vec<u8>,
    /// What it asks for.
    pub request: Request,
    /// When it began to wait.
    pub since: TaiTime,
}

/// What waits of a socket, in the order in which it was sent.
#[derive(Default)]
pub struct Held(VecDeque<Waiting>);

impl Held {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is room for another one.
    pub fn has_room(&self) -> bool {
        self.0.len() < MOST
    }

    /// Whether there is one for this address.
    pub fn has(&self, destination: SocketAddr) -> bool {
        let mut all = self.0.iter();
        all.any(|waiting| waiting.key.destination == destination)
    }

    /// Whether there is one for this address among so many last ones.
    pub fn last_has(&self, count: usize, destination: SocketAddr) -> bool {
        let mut last = self.0.iter().rev().take(count);
        last.any(|waiting| waiting.key.destination == destination)
    }

    /// Keeps a message.
    pub fn push(&mut self, waiting: Waiting) {
        self.0.push_back(waiting);
    }

    /// Takes the first one.
    pub fn pop(&mut self) -> Option<Waiting> {
        self.0.pop_front()
    }
}
