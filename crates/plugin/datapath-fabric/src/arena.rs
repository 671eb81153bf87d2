//! The memory of a port: its frames, in one piece, to be registered once.

use std::ptr::NonNull;

use crate::header;

/// From the start of a frame to its payload: a header right before a payload that is at the start of a cache line.
const PAYLOAD: usize = 64;

/// Frames of a size, side by side.
#[derive(Debug)]
pub(crate) struct Arena {
    memory: NonNull<u8>,
    length: usize,
    stride: usize,
    /// Of a message: header and payload.
    message: usize,
}

// SAFETY: the memory belongs to this alone.
unsafe impl Send for Arena {}

impl Arena {
    /// # Errors
    /// The kernel's.
    pub(crate) fn new(frames: usize, message: usize) -> std::io::Result<Self> {
        let stride = (PAYLOAD - header::LEN + message).next_multiple_of(PAYLOAD);
        let length = frames * stride;
        // SAFETY: new memory, wherever the kernel likes.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        let failed = memory == libc::MAP_FAILED;
        match NonNull::new(memory.cast()) {
            Some(memory) if !failed => Ok(Self {
                memory,
                length,
                stride,
                message,
            }),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// All of it.
    pub(crate) fn whole(&self) -> (*mut u8, usize) {
        (self.memory.as_ptr(), self.length)
    }

    /// Most bytes of a payload.
    pub(crate) fn capacity(&self) -> usize {
        self.message - header::LEN
    }

    /// Most bytes of a message.
    pub(crate) fn message(&self) -> usize {
        self.message
    }

    /// Where the message of a frame begins.
    ///
    /// # Panics
    /// When there is no such frame.
    #[inline]
    pub(crate) fn start(&self, frame: usize) -> *mut u8 {
        assert!(frame < self.length / self.stride, "no frame {frame}");
        // SAFETY: within the memory, for there are so many frames.
        unsafe {
            self.memory
                .as_ptr()
                .add(frame * self.stride + PAYLOAD - header::LEN)
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody refers to it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.length) };
    }
}
