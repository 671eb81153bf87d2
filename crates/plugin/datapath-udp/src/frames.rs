//! The frames that payloads are written to: one contiguous block, allocated when the port opens.

use takt_datapath::{Frame, PeerHandle};

/// What a taken frame is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose {
    /// Whom it was reserved for.
    pub(crate) peer: PeerHandle,
    /// Payload bytes promised at its reservation.
    pub(crate) room: usize,
}

/// A fixed number of equally long frames.
#[derive(Debug)]
pub(crate) struct FramePool {
    memory: Box<[u8]>,
    size: usize,
    purposes: Box<[Purpose]>,
    /// Used as a stack: the frame given back last is the one still in the caches.
    free: Vec<u32>,
}

impl FramePool {
    pub(crate) fn new(frames: u32, size: usize) -> Self {
        Self {
            memory: vec![0; frames as usize * size].into_boxed_slice(),
            size,
            purposes: vec![
                Purpose {
                    peer: PeerHandle(0),
                    room: 0
                };
                frames as usize
            ]
            .into_boxed_slice(),
            free: (0..frames).rev().collect(),
        }
    }

    /// How many frames there are.
    pub(crate) fn count(&self) -> usize {
        self.purposes.len()
    }

    /// Takes a frame, or `None` when all are in flight.
    pub(crate) fn take(&mut self, purpose: Purpose) -> Option<Frame> {
        let index = self.free.pop()?;
        self.purposes[index as usize] = purpose;
        Some(Frame(index))
    }

    pub(crate) fn purpose(&self, frame: &Frame) -> Purpose {
        self.purposes[frame.0 as usize]
    }

    /// The payload that was promised.
    pub(crate) fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        let start = frame.0 as usize * self.size;
        let room = self.purpose(frame).room;
        &mut self.memory[start..start + room]
    }

    /// The first `len` bytes of the frame `index`, for the kernel to read.
    pub(crate) fn filled(&self, index: u32, len: usize) -> &[u8] {
        let start = index as usize * self.size;
        &self.memory[start..start + len]
    }

    pub(crate) fn give_back(&mut self, index: u32) {
        self.free.push(index);
    }
}
