//! The main figures as an SVG chart.

use std::{fs, path::Path};

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;

use crate::{
    plan::{CaseName, Spec, Subject},
    report::{Row, find},
};

const SIZE: (u32, u32) = (1100, 560);
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x9a, 0x9a, 0x9a),
    RGBColor(0xc4, 0xc4, 0xc4),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0xd6, 0x8a, 0x2c),
    RGBColor(0x7a, 0x5c, 0x3e),
];

/// The subjects that have a bar in a group, in the order of [`COLOURS`].
fn subjects() -> impl Iterator<Item = (usize, Subject)> {
    Subject::ALL.into_iter().filter(|subject| *subject != Subject::Ucx).enumerate()
}

/// Groups of bars: a label, and a case with one segment at depth 1023.
fn groups() -> Vec<(&'static str, Spec)> {
    let spec = |case, batch| Spec { case, batch, segments: 1, depth: 1023 };
    vec![
        ("post", spec(CaseName::Post, 1)),
        ("post, 32", spec(CaseName::Post, 32)),
        ("post+free, 32", spec(CaseName::PostFree, 32)),
        ("repost, 32", spec(CaseName::Repost, 32)),
        ("random, 32", spec(CaseName::RandomCompletion, 32)),
        ("poll", spec(CaseName::Poll, 1)),
        ("empty poll", spec(CaseName::EmptyPoll, 1)),
        ("dat-post", spec(CaseName::DatPost, 1)),
    ]
}

/// Draws nanoseconds per operation of the main cases, one bar per subject.
///
/// # Errors
///
/// Those of the file system and of the chart library.
pub fn write_svg(rows: &[Row], path: &Path) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let text = svg(rows).map_err(|e| anyhow!("cannot draw the chart: {e}"))?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn svg(rows: &[Row]) -> Result<String, Box<dyn std::error::Error>> {
    let groups = groups();
    let bars: Vec<(usize, usize, f64)> = groups
        .iter()
        .enumerate()
        .flat_map(|(group, (_, spec))| {
            let bar = move |(n, subject)| Some((group, n, find(rows, subject, *spec)?.timing.mean));
            subjects().filter_map(bar)
        })
        .collect();
    let most = bars.iter().map(|bar| bar.2).fold(1.0, f64::max);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let width = groups.len() as f64;
        let mut chart = ChartBuilder::on(&root)
            .caption("ns per operation, depth 1023, one segment (less is better)", ("sans-serif", 20))
            .margin(16)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..width, (0.1..most * 8.0).log_scale())?;
        chart.configure_mesh().disable_x_mesh().x_labels(0).y_desc("ns (logarithmic)").draw()?;
        // A group is one unit wide: six bars and a gap.
        let left = |group: usize, n: usize| group as f64 + 0.08 + n as f64 * 0.145;
        for (n, subject) in subjects() {
            let own = bars.iter().filter(|bar| bar.1 == n);
            let style = COLOURS[n].filled();
            chart
                .draw_series(own.clone().map(|&(group, n, ns)| {
                    Rectangle::new([(left(group, n), 0.1), (left(group, n) + 0.13, ns.max(0.1))], style)
                }))?
                .label(subject.name())
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], style));
            chart.draw_series(own.map(|&(group, n, ns)| {
                Text::new(format!("{ns:.1}"), (left(group, n), ns.max(0.1) * 1.22), ("sans-serif", 11))
            }))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .border_style(BLACK)
            .background_style(WHITE)
            .draw()?;
        for (group, (label, _)) in groups.iter().enumerate() {
            let (x, _) = chart.backend_coord(&(left(group, 0), 0.1));
            root.draw(&Text::new(*label, (x, SIZE.1 as i32 - 44), ("sans-serif", 14)))?;
        }
        root.present()?;
    }
    Ok(text)
}
