//! Frames that tell whether they arrived as they were sent.

/// Frames of one length: each is one of two noises, with its number at the beginning and at the end.
#[derive(Debug)]
pub struct Frames([Vec<u8>; 2]);

/// Octets of a number.
const NUMBER: usize = 8;

impl Frames {
    /// Of `size` octets, 16 at least.
    pub fn new(size: usize) -> Self {
        let noise = |seed: u32| {
            let mut state = seed;
            let byte = || {
                // Numerical Recipes' generator: only that neighbours differ counts.
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            std::iter::repeat_with(byte)
                .take(size.max(2 * NUMBER))
                .collect()
        };
        Self([noise(1), noise(2)])
    }

    /// The frame with this number.
    pub fn number(&mut self, number: u64) -> &[u8] {
        let frame = &mut self.0[(number % 2) as usize];
        let end = frame.len() - NUMBER;
        frame[..NUMBER].copy_from_slice(&number.to_le_bytes());
        frame[end..].copy_from_slice(&number.to_le_bytes());
        frame
    }
}
