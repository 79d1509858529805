//! The chart of the storage daemon, from the section that hw-tests/nvmf/bench has written.

use crate::chart::{Bar, Group, grouped};

/// The target with which the chart compares.
const PEER: &str = "nvmet";
/// Those of the daemon.
const OURS: [&str; 2] = ["doorbell-nvmf, its own memory", "doorbell-nvmf, /dev/ram0"];

/// A line of the table: queue depth, target, IOPS.
fn rows(section: &str) -> Vec<(u32, &str, f64)> {
    let row = |line| {
        let cells: Vec<&str> = str::split(line, '|').map(str::trim).collect();
        match cells[..] {
            ["", depth, target, iops, _, _, _, _, ""] => {
                Some((depth.parse().ok()?, target, iops.parse().ok()?))
            }
            _ => None,
        }
    };
    section.lines().filter_map(row).collect()
}

/// The time of a read relative to that of the kernel's target, by queue depth. Nothing to draw if the
/// section has no such figures.
#[must_use]
pub fn group(section: &str) -> Group {
    let rows = rows(section);
    let mut depths: Vec<u32> = rows.iter().map(|(depth, ..)| *depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let iops = |depth: u32, name: &str| {
        rows.iter().find(|(at, target, _)| (*at, *target) == (depth, name)).map(|(.., iops)| *iops)
    };
    let bars = |depth| {
        let peer = iops(depth, PEER)?;
        let bar = |(series, name): (usize, &&str)| {
            let own = iops(depth, name).filter(|own| *own > 0.0)?;
            let label = format!("{} of {} IOPS", grouped(own), grouped(peer));
            Some(Bar { series, cold: false, ratio: peer / own, label })
        };
        Some((format!("QD {depth}"), OURS.iter().enumerate().filter_map(bar).collect()))
    };
    Group {
        heading: "Random reads of 4 KiB by Linux's initiator over rxe; the peer is nvmet on /dev/ram0",
        series: OURS,
        rows: depths.into_iter().filter_map(bars).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_section_is_drawn_by_depth() {
        let group = group(
            "## Storage daemon\n\n| 4 KiB | instructions direct | by verbs |\n|---|---|---|\n| read | 1 | 2 |\n\n\
             | QD | target | IOPS | of nvmet | p50 us | p99 us | p99.9 us |\n|---|---|---|---|---|---|---|\n\
             | 32 | doorbell-nvmf, /dev/ram0 | 9000 | 0.90 | 1 | 2 | 3 |\n\
             | 32 | nvmet | 10000 | 1.00 | 1 | 2 | 3 |\n| 1 | nvmet | 1000 | 1.00 | 1 | 2 | 3 |\n\
             | 32 | doorbell-nvmf, its own memory | 12500 | 1.25 | 1 | 2 | 3 |\n\
             | 1 | doorbell-nvmf, its own memory | 500 | 0.50 | 1 | 2 | 3 |\n\n| target | KiB |\n|---|---|\n| nvmet | 1 |\n",
        );
        let drawn: Vec<_> = group
            .rows
            .iter()
            .map(|(depth, bars)| (&**depth, bars.iter().map(|bar| (bar.series, bar.ratio)).collect()))
            .collect();
        let expected: [(&str, Vec<(usize, f64)>); 2] =
            [("QD 1", vec![(0, 2.0)]), ("QD 32", vec![(0, 0.8), (1, 10000.0 / 9000.0)])];
        assert_eq!(drawn, expected);
        assert_eq!(group.rows[1].1[1].label, "9,000 of 10,000 IOPS");
    }

    #[test]
    fn without_figures_there_is_nothing_to_draw() {
        assert!(group("").rows.is_empty());
    }
}
