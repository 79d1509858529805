//! The table and the chart of a load.

use super::run::Measured;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

/// Percentiles that are shown, with their names and colours.
const PERCENTILES: [(&str, f64, RGBColor); 5] = [
    ("p50", 50.0, RGBColor(0x1b, 0x7f, 0x79)),
    ("p99", 99.0, RGBColor(0x2f, 0x6f, 0xc4)),
    ("p99.9", 99.9, RGBColor(0x8a, 0x4f, 0xbf)),
    ("p99.99", 99.99, RGBColor(0xd9, 0x7b, 0x1a)),
    ("max", 100.0, RGBColor(0xc0, 0x39, 0x2b)),
];

/// A step that reached less than this part of its rate is marked.
const REACHED: f64 = 0.99;

fn microseconds(measured: &Measured, percentile: f64) -> f64 {
    measured.latency.value_at_percentile(percentile) as f64 / 1000.0
}

/// A row for each step.
pub fn table(measured: &[Measured]) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    let names = PERCENTILES.iter().map(|(name, ..)| format!("{name} µs"));
    table.set_header(
        ["sessions", "rate", "reached"]
            .map(str::to_owned)
            .into_iter()
            .chain(names)
            .chain(["messages", "executions", "rejected"].map(str::to_owned)),
    );
    for row in measured {
        let missed = row.reached < row.step.rate as f64 * REACHED;
        let mut cells = vec![
            row.step.sessions.to_string(),
            row.step.rate.to_string(),
            format!("{:.0}{}", row.reached, if missed { " (missed)" } else { "" }),
        ];
        cells.extend(
            PERCENTILES.iter().map(|&(_, percentile, _)| format!("{:.0}", microseconds(row, percentile))),
        );
        let verified = row.verified;
        cells.extend(
            [verified.answered + verified.ignored, verified.executions, verified.rejected]
                .map(|n| n.to_string()),
        );
        table.add_row(cells);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// The end of the first tag, and a style by which a dark page shows a dark chart.
const DARK: &str =
    ">\n<style>@media (prefers-color-scheme: dark){svg>*{filter:invert(1) hue-rotate(180deg)}}</style>\n";

/// Writes the chart: latencies by rate, for the number of sessions that was measured at most rates; and
/// by sessions, for the rate that was measured with most numbers of sessions.
///
/// # Errors
/// Those of the file.
pub fn chart(measured: &[Measured], title: &str, file: &Path) -> anyhow::Result<()> {
    let mut picture = String::new();
    draw(measured, title, &mut picture)?;
    std::fs::write(file, picture.replacen(">\n", DARK, 1))?;
    Ok(())
}

fn draw(measured: &[Measured], title: &str, picture: &mut String) -> anyhow::Result<()> {
    let area = SVGBackend::with_string(picture, (960, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let (head, panels) = area.split_vertically(30);
    let style = ("sans-serif", 16).into_font().color(&BLACK);
    head.draw(&plotters::element::Text::new(title.to_owned(), (12, 8), style))?;
    // The names in the colours of their lines, from the highest line to the lowest.
    for (n, (name, _, color)) in (0..).zip(PERCENTILES.iter().rev()) {
        let style = ("sans-serif", 16).into_font().color(color);
        head.draw(&plotters::element::Text::new(*name, (560 + 80 * n, 8), style))?;
    }
    let (left, right) = panels.split_horizontally(480);
    let sessions = most_common(measured, |step| step.step.sessions as u64);
    let rate = most_common(measured, |step| step.step.rate);
    let by_rate = points(measured, |m| m.step.sessions as u64 == sessions, |m| m.step.rate);
    panel(&left, &format!("{sessions} sessions, by messages a second"), &by_rate)?;
    let by_sessions = points(measured, |m| m.step.rate == rate, |m| m.step.sessions as u64);
    panel(&right, &format!("{rate} messages a second, by sessions"), &by_sessions)?;
    area.present()?;
    Ok(())
}

/// The value that most steps have.
fn most_common(measured: &[Measured], value: impl Fn(&Measured) -> u64) -> u64 {
    let count = |wanted: u64| measured.iter().filter(|m| value(m) == wanted).count();
    measured.iter().map(&value).max_by_key(|&wanted| (count(wanted), wanted)).unwrap_or(0)
}

/// The steps to show, with their places on the x axis, in order.
fn points(
    measured: &[Measured],
    shown: impl Fn(&Measured) -> bool,
    x: impl Fn(&Measured) -> u64,
) -> Vec<(f64, &Measured)> {
    let mut points: Vec<_> = measured.iter().filter(|m| shown(m)).map(|m| (x(m) as f64, m)).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    points: &[(f64, &Measured)],
) -> anyhow::Result<()> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Ok(()) };
    let lowest = points.iter().map(|(_, m)| microseconds(m, 50.0)).fold(f64::MAX, f64::min);
    let highest = points.iter().map(|(_, m)| microseconds(m, 100.0)).fold(0.0, f64::max);
    // A single point needs some room as well.
    let (from, to) = (first.0 * 0.8, last.0 * 1.25);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 14))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d((from..to).log_scale(), (lowest / 2.0..highest * 2.0).log_scale())?;
    let number = |n: &f64| if *n < 1.0 { format!("{n:.1}") } else { format!("{n:.0}") };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_labels(4)
        .y_desc("µs from the intended time")
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .draw()?;
    for (_, percentile, color) in PERCENTILES {
        let line: Vec<_> = points.iter().map(|(x, m)| (*x, microseconds(m, percentile))).collect();
        chart.draw_series([PathElement::new(line.clone(), color.stroke_width(2))])?;
        chart.draw_series(line.into_iter().map(|point| Circle::new(point, 3, color.filled())))?;
    }
    Ok(())
}
