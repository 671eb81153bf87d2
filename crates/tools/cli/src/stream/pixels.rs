//! Pictures as people's files have them, and as streams have them.

use takt_streaming::{Format, Pixels};

/// Red, green and blue of each pixel of a frame; `None` where nothing is said of its bytes.
pub fn to_rgb(format: Format, frame: &[u8]) -> Option<Vec<u8>> {
    let take = |bytes: usize, order: [usize; 3]| -> Vec<u8> {
        let pixels = frame.chunks_exact(bytes);
        pixels.flat_map(|pixel| order.map(|at| pixel[at])).collect()
    };
    Some(match format.pixels() {
        Pixels::Rgb => frame.to_vec(),
        Pixels::Rgba => take(4, [0, 1, 2]),
        Pixels::Bgr => take(3, [2, 1, 0]),
        Pixels::Bgra => take(4, [2, 1, 0]),
        Pixels::Gray => take(1, [0, 0, 0]),
        Pixels::Uyvy => frame
            .as_chunks::<4>()
            .0
            .iter()
            .flat_map(|&[u, first, v, second]| [from_yuv(first, u, v), from_yuv(second, u, v)])
            .flatten()
            .collect(),
        _ => return None,
    })
}

/// A frame from red, green and blue of each pixel, into `frame`. False where nothing is said of its bytes.
pub fn from_rgb(format: Format, rgb: &[u8], frame: &mut [u8]) -> bool {
    let (rgb, _) = rgb.as_chunks::<3>();
    let put = |frame: &mut [u8], bytes: usize, of: fn(&[u8; 3]) -> [u8; 4]| {
        for (pixel, rgb) in frame.chunks_exact_mut(bytes).zip(rgb) {
            pixel.copy_from_slice(&of(rgb)[..bytes]);
        }
    };
    match format.pixels() {
        Pixels::Rgb => put(frame, 3, |&[r, g, b]| [r, g, b, 255]),
        Pixels::Rgba => put(frame, 4, |&[r, g, b]| [r, g, b, 255]),
        Pixels::Bgr => put(frame, 3, |&[r, g, b]| [b, g, r, 255]),
        Pixels::Bgra => put(frame, 4, |&[r, g, b]| [b, g, r, 255]),
        Pixels::Gray => put(frame, 1, |rgb| [luma(rgb) as u8; 4]),
        Pixels::Uyvy => {
            let ((spaces, _), (pairs, _)) = (frame.as_chunks_mut(), rgb.as_chunks());
            for (space, [a, b]) in spaces.iter_mut().zip(pairs) {
                let [a, b] = [to_yuv(a), to_yuv(b)];
                let mean = |at: usize| (u16::from(a[at]) + u16::from(b[at])).div_ceil(2) as u8;
                *space = [mean(1), a[0], mean(2), b[0]];
            }
        }
        _ => return false,
    }
    true
}

/// Brightness by ITU-R BT.709, full range.
fn luma(&[r, g, b]: &[u8; 3]) -> u32 {
    (u32::from(r) * 54 + u32::from(g) * 183 + u32::from(b) * 19) >> 8
}

/// Y, U, V by ITU-R BT.709, in the range of video: 16 to 235, and 16 to 240.
fn to_yuv(&[r, g, b]: &[u8; 3]) -> [u8; 3] {
    let [r, g, b] = [r, g, b].map(f32::from);
    let y = 0.2126 * r + 0.7152 * g + 0.0722 * b;
    let (u, v) = ((b - y) / 1.8556, (r - y) / 1.5748);
    [
        16.0 + y * 219.0 / 255.0,
        128.0 + u * 224.0 / 255.0,
        128.0 + v * 224.0 / 255.0,
    ]
    .map(|value| value.round() as u8)
}

fn from_yuv(y: u8, u: u8, v: u8) -> [u8; 3] {
    let y = (f32::from(y) - 16.0) * 255.0 / 219.0;
    let [u, v] = [u, v].map(|value| (f32::from(value) - 128.0) * 255.0 / 224.0);
    let (r, b) = (y + 1.5748 * v, y + 1.8556 * u);
    let g = (y - 0.2126 * r - 0.0722 * b) / 0.7152;
    // Saturating.
    [r, g, b].map(|value| value.round() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_come_back_from_every_format() {
        let rgb: Vec<u8> = (0..8)
            .flat_map(|pixel: u8| {
                [
                    255 * (pixel & 1),
                    255 * (pixel >> 1 & 1),
                    255 * (pixel >> 2),
                ]
            })
            .flat_map(|value| [value; 2])
            .collect();
        // Two pixels alike side by side, so that they may share their colour.
        let rgb: Vec<u8> = rgb
            .as_chunks::<6>()
            .0
            .iter()
            .flat_map(|c| [c[0], c[2], c[4], c[0], c[2], c[4]])
            .collect();
        for name in ["rgb", "rgba", "bgr", "bgra", "uyvy"] {
            let pixels = Pixels::from_name(name).expect("a name");
            let format = Format::picture(pixels, 4, 4).expect("a format");
            let mut frame = vec![0; format.bytes()];
            assert!(from_rgb(format, &rgb, &mut frame));
            let back = to_rgb(format, &frame).expect("a picture");
            assert_eq!(back.len(), rgb.len());
            let most = rgb.iter().zip(&back).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(most <= Some(2), "{name}: {most:?}");
        }
        // White and black of BT.709.
        assert_eq!(
            (to_yuv(&[255; 3]), to_yuv(&[0; 3])),
            ([235, 128, 128], [16, 128, 128])
        );
        let gray = Format::picture(Pixels::Gray, 4, 4).expect("a format");
        let mut frame = vec![0; 16];
        assert!(from_rgb(gray, &[255; 48], &mut frame));
        assert_eq!(frame, [255; 16]);
        let bytes = Format::of_bytes(16).expect("a format");
        assert!(!from_rgb(bytes, &rgb, &mut frame) && to_rgb(bytes, &frame).is_none());
    }
}
