//! Payloads as slices.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};

use crate::sink::Message;
use crate::source::Buffer;

impl Deref for Buffer<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the window was checked against the arena and is at least `len()` long; the source,
        // which the buffer borrows, keeps the arena mapped while buffers are out; the block is this
        // buffer's alone until it is emitted, which consumes it. The runtime reads only what was emitted.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }
}

impl DerefMut for Buffer<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` excludes every other view.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }
}

impl Deref for Message<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the window was checked against the arena; the sink, which the message borrows, keeps
        // it mapped while messages are out. Nobody writes the block before it is released: the runtime,
        // whom an application trusts as it does the kernel, keeps it for this message, and a buffer
        // of this session that was emitted has no owner who could write it.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }
}
