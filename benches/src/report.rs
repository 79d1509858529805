//! The rows of the report, as a table for people and as JSON for programs.

use std::{fmt::Write as _, io, path::Path};

use comfy_table::{CellAlignment, Table, presets};

use crate::{
    plan::{Spec, Subject},
    sample::Timing,
};

/// One measured case of one subject.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Case and shape.
    pub spec: Spec,
    /// The measured subject.
    pub subject: Subject,
    /// Nanoseconds per operation.
    pub timing: Timing,
    /// Instructions per operation; `None` if they were not counted.
    pub instructions: Option<f64>,
    /// Locked instructions per operation; `None` if they were not counted.
    pub locked: Option<f64>,
}

/// The row of a subject for a case.
pub fn find(rows: &[Row], subject: Subject, spec: Spec) -> Option<&Row> {
    rows.iter().find(|row| row.subject == subject && row.spec == spec)
}

/// The row that a row is compared with: libmlx5 with its lock, or libdaplofa.
pub fn reference(rows: &[Row], row: &Row) -> Option<Row> {
    let subject = if row.spec.case.through_libdat() { Subject::Libdaplofa } else { Subject::Libmlx5Lock };
    if subject == row.subject { None } else { find(rows, subject, row.spec).copied() }
}

/// The rows as a JSON array of objects.
pub fn to_json(rows: &[Row]) -> String {
    let mut out = String::from("[\n");
    for (n, Row { spec, subject, timing, instructions, locked }) in rows.iter().enumerate() {
        let or_null = |count: &Option<f64>| count.map_or("null".to_owned(), |i| format!("{i:.2}"));
        let (instructions, locked) = (or_null(instructions), or_null(locked));
        let comma = if n + 1 < rows.len() { "," } else { "" };
        let _ = writeln!(
            out,
            "  {{\"case\": \"{}\", \"subject\": \"{}\", \"batch\": {}, \"segments\": {}, \"depth\": {}, \
             \"ns_per_op\": {:.3}, \"p50_ns\": {:.3}, \"p99_ns\": {:.3}, \"p999_ns\": {:.3}, \
             \"instructions_per_op\": {instructions}, \"locked_per_op\": {locked}}}{comma}",
            spec.case.name(),
            subject.name(),
            spec.batch,
            spec.segments,
            spec.depth,
            timing.mean,
            timing.p50,
            timing.p99,
            timing.p999,
        );
    }
    out.push_str("]\n");
    out
}

/// Writes the JSON; creates the folder.
///
/// # Errors
///
/// The error of the file system.
pub fn write_json(rows: &[Row], path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, to_json(rows))
}

/// An empty table in the style of this project. Columns from the `left`-th on hold numbers.
pub fn table(header: &[&str], left: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_header(header);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The rows as a table. `x lock` is how many times faster a row is than libmlx5 with its lock
/// (through libdat2: than libdaplofa).
pub fn to_table(rows: &[Row]) -> Table {
    let header = [
        "case",
        "subject",
        "batch",
        "segs",
        "depth",
        "ns/op",
        "x lock",
        "x nolock",
        "p50",
        "p99",
        "p99.9",
        "instr/op",
        "locked/op",
    ];
    let mut table = table(&header, 2);
    for row in rows {
        let times = |other: Option<Row>| match other {
            Some(other) => format!("{:.2}", other.timing.mean / row.timing.mean),
            None => "-".to_owned(),
        };
        let unlocked = match row.subject {
            Subject::Libmlx5Lock | Subject::Libmlx5Nolock => None,
            _ => find(rows, Subject::Libmlx5Nolock, row.spec).copied(),
        };
        table.add_row([
            row.spec.case.name().to_owned(),
            row.subject.name().to_owned(),
            row.spec.batch.to_string(),
            row.spec.segments.to_string(),
            row.spec.depth.to_string(),
            format!("{:.2}", row.timing.mean),
            times(reference(rows, row)),
            times(unlocked),
            format!("{:.2}", row.timing.p50),
            format!("{:.2}", row.timing.p99),
            format!("{:.2}", row.timing.p999),
            row.instructions.map_or("-".to_owned(), |i| format!("{i:.1}")),
            row.locked.map_or("-".to_owned(), |i| format!("{i:.1}")),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(subject: Subject, ns: f64) -> Row {
        let spec = Spec { case: crate::plan::CaseName::Poll, batch: 1, segments: 1, depth: 7 };
        let timing = Timing { mean: ns, p50: 1.0, p99: 2.0, p999: 3.25 };
        Row { spec, subject, timing, instructions: None, locked: None }
    }

    #[test]
    fn a_row_has_every_key_and_null_counts() {
        assert_eq!(
            to_json(&[row(Subject::Mlx5Direct, 1.5)]),
            "[\n  {\"case\": \"poll\", \"subject\": \"mlx5-direct\", \"batch\": 1, \"segments\": 1, \"depth\": 7, \
             \"ns_per_op\": 1.500, \"p50_ns\": 1.000, \"p99_ns\": 2.000, \"p999_ns\": 3.250, \
             \"instructions_per_op\": null, \"locked_per_op\": null}\n]\n"
        );
    }

    #[test]
    fn ratios_say_how_many_times_faster() {
        let rows = [row(Subject::Libmlx5Lock, 9.0), row(Subject::Mlx5Direct, 1.5)];
        assert!(reference(&rows, &rows[0]).is_none());
        assert!(to_table(&rows).to_string().contains("6.00"));
    }
}
