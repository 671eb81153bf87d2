//! The frames that payloads are written to: one contiguous block, allocated when the port opens.

use takt_datapath::{Frame, PeerHandle};

use crate::LONGEST_PAYLOAD;

/// What a taken frame is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose {
    /// Whom it was reserved for.
    pub(crate) peer: PeerHandle,
    /// Payload bytes promised at its reservation.
    pub(crate) room: usize,
}

/// Frames as long as a datagram can be, for those that IP fragments. Their memory is touched by use only.
const LONG_FRAMES: u32 = 16;

/// A fixed number of equally long frames, and a few long ones behind them.
#[derive(Debug)]
pub(crate) struct FramePool {
    memory: Box<[u8]>,
    size: usize,
    /// Frames that are not long.
    count: u32,
    purposes: Box<[Purpose]>,
    /// Used as a stack: the frame given back last is the one still in the caches.
    free: Vec<u32>,
    free_long: Vec<u32>,
}

impl FramePool {
    pub(crate) fn new(frames: u32, size: usize) -> Self {
        let all = frames + LONG_FRAMES;
        let purpose = Purpose {
            peer: PeerHandle(0),
            room: 0,
        };
        let bytes = frames as usize * size + LONG_FRAMES as usize * LONGEST_PAYLOAD;
        Self {
            memory: vec![0; bytes].into_boxed_slice(),
            size,
            count: frames,
            purposes: vec![purpose; all as usize].into_boxed_slice(),
            free: (0..frames).rev().collect(),
            free_long: (frames..all).rev().collect(),
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

    /// Takes a long frame, or `None` when all are in flight.
    pub(crate) fn take_long(&mut self, purpose: Purpose) -> Option<Frame> {
        let index = self.free_long.pop()?;
        self.purposes[index as usize] = purpose;
        Some(Frame(index))
    }

    /// Whether IP may fragment what this frame holds.
    pub(crate) fn is_long(&self, index: u32) -> bool {
        index >= self.count
    }

    pub(crate) fn purpose(&self, frame: &Frame) -> Purpose {
        self.purposes[frame.0 as usize]
    }

    fn start(&self, index: u32) -> usize {
        let long = index.saturating_sub(self.count) as usize;
        index.min(self.count) as usize * self.size + long * LONGEST_PAYLOAD
    }

    /// The payload that was promised.
    pub(crate) fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        let start = self.start(frame.0);
        let room = self.purpose(frame).room;
        &mut self.memory[start..start + room]
    }

    /// The first `len` bytes of the frame `index`, for the kernel to read.
    pub(crate) fn filled(&self, index: u32, len: usize) -> &[u8] {
        let start = self.start(index);
        &self.memory[start..start + len]
    }

    pub(crate) fn give_back(&mut self, index: u32) {
        match self.is_long(index) {
            true => self.free_long.push(index),
            false => self.free.push(index),
        }
    }
}
