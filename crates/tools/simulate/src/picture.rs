//! Latency over capacity, as an SVG.

use plotters::prelude::*;

use crate::sweep::Point;

/// The palette of Okabe and Ito without its yellow, which nobody sees on white.
const PALETTE: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x4d, 0x4d, 0x4d),
];
const SIZE: (u32, u32) = (900, 520);
/// Latencies beyond are drawn at the upper edge, microseconds.
const HIGHEST_US: f64 = 1e5;

/// p99 of each variant over GIPS, with the target as a line.
///
/// # Errors
/// What the drawing library says.
pub fn curves(
    title: &str,
    names: &[String],
    points: &[Point],
    target_ns: u64,
) -> Result<String, String> {
    let us = |ns: u64| (ns as f64 / 1000.0).min(HIGHEST_US);
    let gips = || points.iter().map(|point| point.gips);
    let left = gips().fold(f64::INFINITY, f64::min);
    let right = gips().fold(0.0, f64::max);
    let latencies = points.iter().map(|point| us(point.outcome.p99_ns));
    let lowest = latencies.fold(us(target_ns), f64::min) * 0.8;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let told = |error: &dyn std::fmt::Display| error.to_string();
        area.fill(&WHITE).map_err(|error| told(&error))?;
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(70)
            .build_cartesian_2d(left..right, (lowest..HIGHEST_US).log_scale())
            .map_err(|error| told(&error))?;
        chart
            .configure_mesh()
            .x_desc("capacity of a node, GIPS")
            .y_desc("latency p99, us")
            .y_label_formatter(&|value| format!("{value:.0}"))
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(|error| told(&error))?;
        for (number, name) in names.iter().enumerate() {
            let colour = PALETTE[number % PALETTE.len()];
            let own = points.iter().filter(|point| point.variant == number);
            let mut line: Vec<(f64, f64)> = own
                .map(|point| (point.gips, us(point.outcome.p99_ns)))
                .collect();
            line.sort_by(|one, other| one.0.total_cmp(&other.0));
            chart
                .draw_series([PathElement::new(line, colour.stroke_width(2))])
                .map_err(|error| told(&error))?
                .label(name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
                });
        }
        let target = [(left, us(target_ns)), (right, us(target_ns))];
        chart
            .draw_series([PathElement::new(target, BLACK.mix(0.6).stroke_width(1))])
            .map_err(|error| told(&error))?;
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.9))
            .border_style(BLACK.mix(0.2))
            .draw()
            .map_err(|error| told(&error))?;
        area.present().map_err(|error| told(&error))?;
    }
    Ok(svg)
}
