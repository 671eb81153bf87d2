//! A sheet to draw plots on: lines, boxes and text in one hand, on plotters' SVG.

use plotters::element::{DashedPathElement, Drawable, PointCollection};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::ReportError;

/// Drawing is on whole pixels, so a sheet has this many to a unit, and curves look smooth.
const PIXELS: f64 = 4.0;
/// plotters divides font sizes by this for SVG.
const FONT_FACTOR: f64 = 1.24;

/// Text and axes.
pub(super) const INK: RGBColor = RGBColor(0x33, 0x3b, 0x45);
/// Less important text.
pub(super) const FADED: RGBColor = RGBColor(0x6b, 0x75, 0x80);
/// Grid lines.
pub(super) const GRID: RGBColor = RGBColor(0xe3, 0xe7, 0xeb);

/// The palette of Okabe and Ito, which the colour-blind can tell apart too, without its yellow, which
/// nobody sees on white.
const PALETTE: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x4d, 0x4d, 0x4d),
];

/// How a variant looks wherever it is drawn: the same through a whole report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look(usize);

impl Look {
    /// The look of the report's variant number `index`.
    pub(super) fn of(index: usize) -> Self {
        Self(index)
    }

    pub(super) fn colour(self) -> RGBColor {
        PALETTE[self.0 % PALETTE.len()]
    }

    /// Whether lines are dashed, since colours come again.
    pub(super) fn dashed(self) -> bool {
        !(self.0 / PALETTE.len()).is_multiple_of(2)
    }

    /// The colour in CSS.
    pub(super) fn css(self) -> String {
        let RGBColor(red, green, blue) = self.colour();
        format!("#{red:02x}{green:02x}{blue:02x}")
    }
}

/// Where text stands with respect to its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    /// It begins there.
    Start,
    /// It is centred there.
    Middle,
    /// It ends there.
    End,
}

/// A sheet, `width` by `height` units, origin at the upper left.
pub(super) struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
}

/// Draws on a sheet of the given size; the finished SVG.
pub(super) fn draw(
    width: f64,
    height: f64,
    paint: impl FnOnce(&Canvas<'_>) -> Result<(), ReportError>,
) -> Result<String, ReportError> {
    let mut svg = String::new();
    {
        let size = ((width * PIXELS) as u32, (height * PIXELS) as u32);
        let canvas = Canvas {
            area: SVGBackend::with_string(&mut svg, size).into_drawing_area(),
        };
        paint(&canvas)?;
        canvas
            .area
            .present()
            .map_err(|error| ReportError::Plot(error.to_string()))?;
    }
    Ok(svg)
}

impl Canvas<'_> {
    /// A line through `points`, `width` units thick.
    pub(super) fn line(
        &self,
        points: &[(f64, f64)],
        colour: RGBColor,
        width: f64,
    ) -> Result<(), ReportError> {
        let points = points.iter().map(|&point| pixel(point)).collect::<Vec<_>>();
        self.put(&PathElement::new(points, stroke(colour, width)))
    }

    /// A line as [`line`](Self::line) draws it, but dashed.
    pub(super) fn dashed_line(
        &self,
        points: &[(f64, f64)],
        colour: RGBColor,
        width: f64,
    ) -> Result<(), ReportError> {
        let points = points.iter().map(|&point| pixel(point)).collect::<Vec<_>>();
        let (dash, gap) = ((8.0 * PIXELS) as i32, (5.0 * PIXELS) as i32);
        self.put(&DashedPathElement::new(
            points,
            dash,
            gap,
            stroke(colour, width),
        ))
    }

    /// A filled box between two corners.
    pub(super) fn fill(
        &self,
        from: (f64, f64),
        to: (f64, f64),
        colour: RGBColor,
    ) -> Result<(), ReportError> {
        self.put(&Rectangle::new([pixel(from), pixel(to)], colour.filled()))
    }

    /// Text whose middle height is at `at`, `size` units high.
    pub(super) fn text(
        &self,
        text: &str,
        at: (f64, f64),
        anchor: Anchor,
        size: f64,
        colour: RGBColor,
    ) -> Result<(), ReportError> {
        let horizontal = match anchor {
            Anchor::Start => HPos::Left,
            Anchor::Middle => HPos::Center,
            Anchor::End => HPos::Right,
        };
        // The page's style sheet gives all text its font.
        let style = ("sans-serif", size * PIXELS * FONT_FACTOR)
            .into_font()
            .color(&colour)
            .pos(Pos::new(horizontal, VPos::Center));
        self.put(&Text::new(text.to_owned(), pixel(at), style))
    }

    fn put<'e, E>(&self, element: &'e E) -> Result<(), ReportError>
    where
        &'e E: PointCollection<'e, (i32, i32)>,
        E: for<'b> Drawable<SVGBackend<'b>>,
    {
        self.area
            .draw(element)
            .map_err(|error| ReportError::Plot(error.to_string()))
    }
}

fn pixel((x, y): (f64, f64)) -> (i32, i32) {
    ((x * PIXELS).round() as i32, (y * PIXELS).round() as i32)
}

fn stroke(colour: RGBColor, width: f64) -> ShapeStyle {
    ShapeStyle {
        color: colour.to_rgba(),
        filled: false,
        stroke_width: (width * PIXELS) as u32,
    }
}

/// The values 1, 2 and 5 times powers of ten from `low` to `high`, or powers of ten alone when those
/// are enough.
pub(super) fn logarithmic_ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = (high / low).log10();
    let steps: &[f64] = if decades > 3.0 {
        &[1.0]
    } else {
        &[1.0, 2.0, 5.0]
    };
    let exponents = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let values =
        exponents.flat_map(|exponent| steps.iter().map(move |step| step * 10_f64.powi(exponent)));
    values
        .filter(|value| (low..=high).contains(value))
        .collect()
}

/// About `count` round values from 0 to the first one that is not below `high`.
pub(super) fn linear_ticks(high: f64, count: f64) -> Vec<f64> {
    let rough = high / count;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|step| step * power)
        .into_iter()
        .find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    let steps = (high / step).ceil().max(1.0) as u32;
    (0..=steps).map(|index| f64::from(index) * step).collect()
}

/// Three significant digits, thousands parted by thin spaces.
pub(super) fn format_value(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "–".to_owned();
    }
    let decimals = match size {
        _ if size == 0.0 || size >= 99.95 => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.01 => 2,
        _ => 4,
    };
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text
        .split_once('.')
        .map_or((text.as_str(), ""), |(whole, _)| {
            (whole, &text[whole.len()..])
        });
    let (sign, digits) = whole
        .strip_prefix('-')
        .map_or(("", whole), |digits| ("−", digits));
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && digits.len() > 4 {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{rest}")
}

/// An axis label: as short as the value allows.
pub(super) fn format_tick(value: f64) -> String {
    let text = format_value(value);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_three_digits_and_parted_thousands() {
        let cases = [
            (0.0, "0"),
            (0.0023, "0.0023"),
            (0.16, "0.16"),
            (5.123, "5.12"),
            (9.999, "10.0"),
            (42.06, "42.1"),
            (99.96, "100"),
            (2396.4, "2396"),
            (123_456.0, "123\u{202f}456"),
            (-12.3, "−12.3"),
            (f64::NAN, "–"),
        ];
        for (value, text) in cases {
            assert_eq!(format_value(value), text, "{value}");
        }
    }

    #[test]
    fn axis_labels_have_no_zeros_to_spare() {
        assert_eq!(
            [0.5, 2.0, 10.0, 0.05, 100.0].map(format_tick),
            ["0.5", "2", "10", "0.05", "100"]
        );
    }

    #[test]
    fn logarithmic_ticks_lie_within_and_thin_out_over_many_decades() {
        assert_eq!(logarithmic_ticks(3.0, 60.0), [5.0, 10.0, 20.0, 50.0]);
        assert_eq!(
            logarithmic_ticks(0.9, 90_000.0),
            [1.0, 10.0, 100.0, 1000.0, 10_000.0]
        );
    }

    #[test]
    fn linear_ticks_are_round_and_reach_the_end() {
        assert_eq!(linear_ticks(2_682.0, 5.0), [0.0, 1000.0, 2000.0, 3000.0]);
        assert_eq!(
            linear_ticks(0.9, 5.0),
            [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]
        );
    }

    #[test]
    fn looks_repeat_colours_dashed() {
        assert_eq!(Look::of(0).css(), "#0072b2");
        assert_eq!(Look::of(7).colour(), Look::of(0).colour());
        assert!(Look::of(7).dashed() && !Look::of(0).dashed());
    }
}
