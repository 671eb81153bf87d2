//! Writes pcapng (draft-ietf-opsawg-pcapng) with nanoseconds: one section, an interface for each link type.

use std::io::{self, Write};

use crate::Meta;

/// A capture that is being written.
#[derive(Debug)]
pub struct Writer<W: Write> {
    inner: W,
    snap: u32,
    link_types: Vec<i32>,
}

impl<W: Write> Writer<W> {
    /// Begins a file. Of each packet, at most `snap` bytes are kept.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(mut inner: W, snap: u32) -> io::Result<Self> {
        let mut block = Vec::new();
        // Section header: magic, version 1.0, length unknown.
        block.extend(0x1a2b_3c4d_u32.to_le_bytes());
        block.extend([1, 0, 0, 0]);
        block.extend((-1_i64).to_le_bytes());
        write_block(&mut inner, 0x0a0d_0d0a, &block)?;
        Ok(Self {
            inner,
            snap,
            link_types: Vec::new(),
        })
    }

    /// Adds a packet.
    ///
    /// # Errors
    /// The kernel's, and for link types beyond 16 bits.
    pub fn packet(&mut self, meta: &Meta, bytes: &[u8]) -> io::Result<()> {
        self.packet_with(meta, bytes, None, "")
    }

    /// Adds a packet that came (`true`) or went, with a comment unless that is empty.
    ///
    /// # Errors
    /// As [`packet`](Self::packet).
    pub fn packet_with(
        &mut self,
        meta: &Meta,
        bytes: &[u8],
        inbound: Option<bool>,
        comment: &str,
    ) -> io::Result<()> {
        let known = self
            .link_types
            .iter()
            .position(|link| *link == meta.link_type);
        let interface = match known {
            Some(interface) => interface,
            None => {
                let link = u16::try_from(meta.link_type).map_err(io::Error::other)?;
                let mut block = link.to_le_bytes().to_vec();
                block.extend([0; 2]);
                block.extend(self.snap.to_le_bytes());
                // if_tsresol: 10^-9 s; then the end of options.
                block.extend([9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
                write_block(&mut self.inner, 1, &block)?;
                self.link_types.push(meta.link_type);
                self.link_types.len() - 1
            }
        };
        let bytes = &bytes[..bytes.len().min(self.snap as usize)];
        let units = u64::try_from(meta.utc_ns).unwrap_or(0);
        let mut block = Vec::with_capacity(24 + bytes.len());
        for word in [
            interface as u32,
            (units >> 32) as u32,
            units as u32,
            bytes.len() as u32,
            meta.length,
        ] {
            block.extend(word.to_le_bytes());
        }
        block.extend_from_slice(bytes);
        block.resize(block.len().next_multiple_of(4), 0);
        if !comment.is_empty() {
            option(&mut block, 1, comment.as_bytes());
        }
        if let Some(inbound) = inbound {
            // epb_flags: 1 inbound, 2 outbound.
            let flags = if inbound { 1_u32 } else { 2 };
            option(&mut block, 2, &flags.to_le_bytes());
        }
        if !comment.is_empty() || inbound.is_some() {
            option(&mut block, 0, &[]);
        }
        write_block(&mut self.inner, 6, &block)
    }

    /// Hands what was written to the kernel.
    ///
    /// # Errors
    /// The kernel's.
    pub fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    /// What it was written to.
    pub fn into_inner(self) -> W {
        self.inner
    }
}

/// Adds an option to a block; of one that is too long, what fits.
fn option(block: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    block.extend(code.to_le_bytes());
    block.extend((value.len() as u16).to_le_bytes());
    block.extend_from_slice(value);
    block.resize(block.len().next_multiple_of(4), 0);
}

fn write_block(inner: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    let length = (body.len() as u32 + 12).to_le_bytes();
    inner.write_all(&kind.to_le_bytes())?;
    inner.write_all(&length)?;
    inner.write_all(body)?;
    inner.write_all(&length)
}
