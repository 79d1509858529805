//! Bar charts in SVG: figures relative to a peer's, so 1 is the peer. Light and dark.

use std::fmt::Write as _;

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Which of its group's series it is of: 0 or 1.
    pub series: usize,
    /// Measured with cold cache lines: a colour of its own.
    pub cold: bool,
    /// Ours divided by the peer's. What is above 1 has a colour of its own.
    pub ratio: f64,
    /// Behind the bar: both figures.
    pub label: String,
}

/// Bars with a peer and two series in common.
#[derive(Clone, Debug)]
pub struct Group {
    /// The heading: what is compared with whom.
    pub heading: &'static str,
    /// The names of the series.
    pub series: [&'static str; 2],
    /// A label, and the bars of that label.
    pub rows: Vec<(String, Vec<Bar>)>,
}

/// Whole, in groups of three digits.
pub(crate) fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

const WIDTH: f64 = 880.0;
/// Where bars begin; labels end in front of it.
const LEFT: f64 = 268.0;
/// The longest bar's end; figures stand behind it.
const RIGHT: f64 = 700.0;
const BAR: f64 = 12.0;
/// The width of a character of the labels, at most.
const CHARACTER: f64 = 6.9;

const STYLE: &str = "<style>
text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}
.bg{fill:#fff}.t,.g{fill:#1f2328}.g{font-weight:600}.s{fill:#57606a}.grid{stroke:#d8dee4}
.peer{stroke:#1f2328;stroke-width:1.5}.b0{fill:#2f6fb5}.b1{fill:#5fa090}.over{fill:#d9480f}
.c0{fill:#a9c9ec}.c1{fill:#c2ded6}
@media (prefers-color-scheme: dark){.bg{fill:#0d1117}.t,.g{fill:#e6edf3}.s{fill:#9da7b3}
.grid{stroke:#30363d}.peer{stroke:#e6edf3}.b0{fill:#58a6ff}.b1{fill:#4f9c8c}.over{fill:#ff8c42}
.c0{fill:#24517f}.c1{fill:#35675c}}
</style>
";

fn text(out: &mut String, class: &str, (x, y): (f64, f64), anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ =
        writeln!(out, r#"<text class="{class}" x="{x:.0}" y="{y:.0}" text-anchor="{anchor}">{text}</text>"#);
}

fn rect(out: &mut String, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
    let _ = writeln!(
        out,
        r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"/>"#
    );
}

fn line(out: &mut String, class: &str, x: f64, (from, to): (f64, f64)) {
    let _ = writeln!(out, r#"<line class="{class}" x1="{x:.1}" x2="{x:.1}" y1="{from:.0}" y2="{to:.0}"/>"#);
}

/// The steps of the scale: at most eight lines.
fn step(most: f64) -> f64 {
    [0.25, 0.5, 1.0, 2.0, 5.0].into_iter().find(|step| most / step <= 8.0).unwrap_or(10.0)
}

/// Draws the groups below each other, on one scale.
#[must_use]
pub fn svg(title: &str, groups: &[Group]) -> String {
    let bars = || groups.iter().flat_map(|group| &group.rows).flat_map(|(_, bars)| bars);
    let most = bars().map(|bar| bar.ratio).fold(1.25, f64::max);
    let x = |ratio: f64| LEFT + ratio / most * (RIGHT - LEFT);
    let mut body = String::new();
    text(&mut body, "g", (16.0, 26.0), "start", title);
    let mut y = 40.0;
    for group in groups.iter().filter(|group| !group.rows.is_empty()) {
        y += 22.0;
        text(&mut body, "g", (16.0, y), "start", group.heading);
        y += 8.0;
        let mut at = 16.0;
        let has = |series, cold| {
            let mut bars = group.rows.iter().flat_map(|(_, bars)| bars);
            bars.any(|bar| bar.series == series && bar.cold == cold)
        };
        let shown: Vec<usize> = [0, 1].into_iter().filter(|n| has(*n, false) || has(*n, true)).collect();
        for series in &shown {
            let name = group.series[*series];
            rect(&mut body, &format!("b{series}"), (at, y + 2.0), (BAR, BAR));
            text(&mut body, "s", (at + 18.0, y + 12.0), "start", name);
            at += 40.0 + name.len() as f64 * CHARACTER;
        }
        let cold: Vec<&usize> = shown.iter().filter(|n| has(**n, true)).collect();
        for series in &cold {
            rect(&mut body, &format!("c{series}"), (at, y + 2.0), (BAR, BAR));
            at += BAR + 3.0;
        }
        if !cold.is_empty() {
            let name = "with cold cache lines";
            text(&mut body, "s", (at + 3.0, y + 12.0), "start", name);
            at += 25.0 + name.len() as f64 * CHARACTER;
        }
        rect(&mut body, "over", (at, y + 2.0), (BAR, BAR));
        text(&mut body, "s", (at + 18.0, y + 12.0), "start", "more than the peer");
        y += 24.0;
        let height = |bars: &[Bar]| bars.len() as f64 * (BAR + 2.0) + 6.0;
        let end = y + group.rows.iter().map(|(_, bars)| height(bars)).sum::<f64>();
        let each = step(most);
        for n in 0..=(most / each).floor() as u32 {
            let ratio = f64::from(n) * each;
            let class = if (ratio - 1.0).abs() < f64::EPSILON { "peer" } else { "grid" };
            line(&mut body, class, x(ratio), (y - 4.0, end));
            text(&mut body, "s", (x(ratio), end + 14.0), "middle", &format!("{ratio}"));
        }
        for (label, bars) in &group.rows {
            let middle = y + (height(bars) - 6.0) / 2.0;
            text(&mut body, "t", (LEFT - 10.0, middle + 4.0), "end", label);
            for (n, bar) in bars.iter().enumerate() {
                let top = y + n as f64 * (BAR + 2.0);
                let class = format!("{}{}", if bar.cold { 'c' } else { 'b' }, bar.series);
                rect(&mut body, &class, (LEFT, top), (x(bar.ratio.min(1.0)) - LEFT, BAR));
                if bar.ratio > 1.0 {
                    rect(&mut body, "over", (x(1.0), top), (x(bar.ratio) - x(1.0), BAR));
                }
                // No line of the scale goes through the figures.
                let size = (bar.label.chars().count() as f64 * CHARACTER, BAR);
                rect(&mut body, "bg", (x(bar.ratio) + 4.0, top), size);
                text(&mut body, "s", (x(bar.ratio) + 6.0, top + 10.0), "start", &bar.label);
            }
            y += height(bars);
        }
        y = end + 18.0;
    }
    let height = y + 8.0;
    let mut out =
        format!("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\">\n{STYLE}");
    rect(&mut out, "bg", (0.0, 0.0), (WIDTH, height));
    out + &body + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(label: &str, ratio: f64) -> Group {
        let bar = |cold| Bar { series: 1, cold, ratio, label: "1,234 of 1,234 ns".to_owned() };
        Group {
            heading: "calls & peers",
            series: ["direct path", "verbs"],
            rows: vec![(label.to_owned(), vec![bar(false), bar(true)])],
        }
    }

    /// The left and right ends of all texts.
    fn ends(svg: &str) -> Vec<(f64, f64)> {
        let number = |line: &str, name: &str| -> f64 {
            let rest = line.split(&format!(" {name}=\"")).nth(1).unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        let texts = svg.lines().filter(|line| line.starts_with("<text"));
        let end = |line: &str| {
            let inside = line.split('>').nth(1).unwrap().split('<').next().unwrap();
            let (x, width) = (number(line, "x"), inside.chars().count() as f64 * CHARACTER);
            match line {
                _ if line.contains("\"end\"") => (x - width, x),
                _ if line.contains("\"middle\"") => (x - width / 2.0, x + width / 2.0),
                _ => (x, x + width),
            }
        };
        texts.map(end).collect()
    }

    #[test]
    fn nothing_runs_off_the_edge() {
        for ratio in [0.01, 1.0, 3.9, 40.0] {
            let svg = svg(
                "Time of a call, relative to the peer's",
                &[group("dat_evd_dequeue of a receive", ratio)],
            );
            let ends = ends(&svg);
            assert!(ends.len() >= 5, "{svg}");
            assert!(ends.iter().all(|(from, to)| *from >= 0.0 && *to <= WIDTH), "{ends:?}");
        }
    }

    #[test]
    fn cold_bars_have_a_colour_and_a_legend() {
        let svg = svg("", &[group("a", 0.5)]);
        assert_eq!(svg.matches("class=\"c1\"").count(), 2, "{svg}");
        assert!(svg.contains("with cold cache lines"));
        assert!(!svg.contains("class=\"c0\""));
    }

    #[test]
    fn what_is_above_the_peer_has_its_own_colour() {
        let bars = |ratio| svg("", &[group("a", ratio)]).matches("class=\"over\"").count();
        // One is the legend.
        assert_eq!((bars(0.9), bars(1.1)), (1, 3));
        assert!(!svg("", &[Group { rows: vec![], ..group("a", 1.0) }]).contains("calls"));
    }
}
