//! Plot: latency over throughput, as SVG.
//!
//! **Invariants**
//! - Latency is on a logarithmic scale, throughput from zero on a linear one.
//!
//! **Not here**: figures (`generator`).

use plotters::prelude::*;

use crate::Result;
use crate::generator::{Outcome, Pace};

/// Pixels.
const SIZE: (u32, u32) = (900, 560);
/// What is drawn of each run.
const LINES: [(&str, f64, RGBColor); 3] = [
    ("p50", 0.5, RGBColor(0x1b, 0x7f, 0x5c)),
    ("p99", 0.99, RGBColor(0xd0, 0x82, 0x1c)),
    ("p99.9", 0.999, RGBColor(0xb0, 0x30, 0x30)),
];

/// One run.
pub struct Point {
    records_per_s: f64,
    /// Milliseconds, in the order of [`LINES`].
    latency_ms: [f64; 3],
    open: bool,
}

impl Point {
    /// What is drawn of a run.
    pub fn of(outcome: &Outcome) -> Self {
        let ms = |(_, quantile, _): (&str, f64, RGBColor)| outcome.latencies().us(quantile) / 1e3;
        Self {
            records_per_s: outcome.records_per_s(),
            latency_ms: LINES.map(ms),
            open: outcome.pace != Pace::Closed,
        }
    }
}

/// The picture; open loops are joined by lines, closed ones stand alone.
///
/// # Errors
/// The plotting library's.
pub fn plot(title: &str, points: &[Point]) -> Result<String> {
    let mut svg = String::new();
    let most = points.iter().map(|p| p.records_per_s).fold(1.0, f64::max);
    let all = || points.iter().flat_map(|p| p.latency_ms);
    let high = all().fold(0.1, f64::max);
    let low = all().fold(high, f64::min).max(1e-3);
    let range = low / 1.5..high * 1.5;
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..most * 1.05, range.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("records/s")
        .y_desc("latency, ms")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .draw()?;
    for (index, (name, _, color)) in LINES.into_iter().enumerate() {
        let at = |p: &Point| (p.records_per_s, p.latency_ms[index].max(1e-3));
        let (open, closed): (Vec<&Point>, Vec<&Point>) = points.iter().partition(|p| p.open);
        let mut open: Vec<(f64, f64)> = open.into_iter().map(at).collect();
        open.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart
            .draw_series(LineSeries::new(open.clone(), color.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        let dots = open
            .into_iter()
            .map(|at| Circle::new(at, 3, color.filled()));
        chart.draw_series(dots)?;
        let marks = closed.into_iter().map(|p| Cross::new(at(p), 5, color));
        chart.draw_series(marks)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    drop(chart);
    drop(area);
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_of_points_is_svg_with_all_of_them() {
        let point = |records_per_s, open| Point {
            records_per_s,
            latency_ms: [0.2, 1.0, 4.0],
            open,
        };
        let points = [
            point(1000.0, true),
            point(2000.0, true),
            point(3000.0, false),
        ];
        let svg = plot("a title", &points).expect("a picture");
        assert!(svg.starts_with("<svg"), "{svg}");
        assert!(svg.contains("a title") && svg.contains("p99.9"));
        assert_eq!(svg.matches("<circle").count(), 6);
        assert!(svg.matches("<polyline").count() > 3);
    }

    #[test]
    fn plot_of_nothing_is_empty_axes() {
        assert!(plot("empty", &[]).expect("a picture").contains("records/s"));
    }
}
