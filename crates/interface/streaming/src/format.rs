//! What frames are.

use crate::error::Error;

/// How the pixels of a frame lie in memory: line after line without gaps, from the upper left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pixels {
    /// Bytes of which nothing is said: a frame has any number of them.
    #[default]
    Bytes,
    /// 8 bits of each of red, green, blue.
    Rgb,
    /// The same with 8 bits of opacity behind.
    Rgba,
    /// 8 bits of each of blue, green, red.
    Bgr,
    /// The same with 8 bits of opacity behind.
    Bgra,
    /// Two pixels in four bytes: U, Y of the first, V, Y of the second. The width is even.
    Uyvy,
    /// 8 bits of brightness.
    Gray,
}

impl Pixels {
    const ALL: [(Self, u32, &'static str, usize); 7] = [
        (Self::Bytes, 0, "bytes", 8),
        (Self::Rgb, 1, "rgb", 24),
        (Self::Rgba, 2, "rgba", 32),
        (Self::Bgr, 3, "bgr", 24),
        (Self::Bgra, 4, "bgra", 32),
        (Self::Uyvy, 5, "uyvy", 16),
        (Self::Gray, 6, "gray", 8),
    ];

    fn row(self) -> (Self, u32, &'static str, usize) {
        let found = Self::ALL.into_iter().find(|row| row.0 == self);
        found.unwrap_or(Self::ALL[0])
    }

    /// Its number: in slices, and in C.
    pub fn number(self) -> u32 {
        self.row().1
    }

    /// The one with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        let row = Self::ALL.into_iter().find(|row| row.1 == number)?;
        Some(row.0)
    }

    /// Its name, in lower case.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// The one with this name, see [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        let row = Self::ALL.into_iter().find(|row| row.2 == name)?;
        Some(row.0)
    }

    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::ALL.into_iter().map(|row| row.2)
    }

    /// Bits of a pixel.
    pub fn bits(self) -> usize {
        self.row().3
    }
}

/// What every frame of a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Format {
    pixels: Pixels,
    width: u32,
    height: u32,
}

/// The longest frame, in bytes.
pub const MOST_BYTES: usize = u32::MAX as usize;

impl Format {
    /// Pictures of so many pixels.
    ///
    /// # Errors
    /// [`Error::Option`]: none at all, an odd width of [`Pixels::Uyvy`], more than 4 GiB.
    pub fn picture(pixels: Pixels, width: u32, height: u32) -> Result<Self, Error> {
        let bad = |problem: &str| {
            let name = pixels.name();
            Err(Error::Option(format!(
                "cannot have frames of {width}x{height} {name}: {problem}"
            )))
        };
        if width == 0 || height == 0 {
            return bad("write a width and a height of at least 1");
        }
        if pixels == Pixels::Uyvy && !width.is_multiple_of(2) {
            return bad("two pixels share their colour: write an even width");
        }
        let bytes = (u64::from(width) * u64::from(height)).checked_mul(pixels.bits() as u64 / 8);
        if bytes.is_none_or(|bytes| bytes > MOST_BYTES as u64) {
            return bad("a frame has at most 4294967295 bytes");
        }
        Ok(Self {
            pixels,
            width,
            height,
        })
    }

    /// Frames of so many bytes, of which nothing more is said.
    ///
    /// # Errors
    /// [`Error::Option`]: 0 bytes, or more than 4 GiB.
    pub fn of_bytes(bytes: usize) -> Result<Self, Error> {
        match u32::try_from(bytes) {
            Ok(width) if width > 0 => Self::picture(Pixels::Bytes, width, 1),
            _ => Err(Error::Option(format!(
                "cannot have frames of {bytes} bytes: write 1 to {MOST_BYTES}"
            ))),
        }
    }

    /// How the pixels lie.
    pub const fn pixels(self) -> Pixels {
        self.pixels
    }

    /// Pixels of a line.
    pub const fn width(self) -> u32 {
        self.width
    }

    /// Lines.
    pub const fn height(self) -> u32 {
        self.height
    }

    /// Bytes of a line.
    pub fn line_bytes(self) -> usize {
        self.width as usize * self.pixels.bits() / 8
    }

    /// Bytes of a frame.
    pub fn bytes(self) -> usize {
        self.line_bytes() * self.height as usize
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pixels {
            Pixels::Bytes => write!(f, "{} bytes", self.bytes()),
            pixels => write!(f, "{}x{} {}", self.width, self.height, pixels.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_of_table_7_3_and_impossible_ones() {
        for (width, height, bytes) in [
            (1280, 720, 2_764_800),
            (1920, 1080, 6_220_800),
            (7680, 4320, 99_532_800),
        ] {
            let format = Format::picture(Pixels::Rgb, width, height).expect("a format");
            assert_eq!(format.bytes(), bytes);
        }
        let uyvy = Format::picture(Pixels::Uyvy, 1920, 1080).expect("a format");
        assert_eq!((uyvy.line_bytes(), uyvy.bytes()), (3840, 4_147_200));
        for (pixels, width, height, told) in [
            (Pixels::Rgb, 0, 1, "at least 1"),
            (Pixels::Uyvy, 3, 1, "an even width"),
            (Pixels::Rgba, u32::MAX, u32::MAX, "at most 4294967295 bytes"),
        ] {
            let error = Format::picture(pixels, width, height).expect_err("impossible");
            assert!(error.to_string().contains(told), "{error}");
        }
        assert!(Format::of_bytes(0).is_err());
        for name in Pixels::names() {
            let pixels = Pixels::from_name(name).expect("a name");
            assert_eq!(Pixels::from_number(pixels.number()), Some(pixels));
        }
    }
}
