//! The rows of the report, as a table for people and as JSON for programs.

use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};

use crate::{
    plan::{Spec, Subject, plan},
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

/// A row as the report has it.
#[derive(serde::Deserialize, serde::Serialize)]
struct Entry {
    case: String,
    subject: String,
    batch: u32,
    segments: u32,
    depth: u32,
    ns_per_op: f64,
    p50_ns: f64,
    p99_ns: f64,
    p999_ns: f64,
    instructions_per_op: Option<f64>,
    locked_per_op: Option<f64>,
}

/// Thousandths are more than the clock tells.
fn rounded(figure: f64) -> f64 {
    (figure * 1000.0).round() / 1000.0
}

impl From<&Row> for Entry {
    fn from(Row { spec, subject, timing, instructions, locked }: &Row) -> Self {
        Self {
            case: spec.case.name().to_owned(),
            subject: subject.name().to_owned(),
            batch: spec.batch,
            segments: spec.segments,
            depth: spec.depth,
            ns_per_op: rounded(timing.mean),
            p50_ns: rounded(timing.p50),
            p99_ns: rounded(timing.p99),
            p999_ns: rounded(timing.p999),
            instructions_per_op: instructions.map(rounded),
            locked_per_op: locked.map(rounded),
        }
    }
}

impl Entry {
    /// `None` if there is no such case or subject any more.
    fn row(&self) -> Option<Row> {
        let Self { batch, segments, depth, .. } = *self;
        let specs = [true, false].into_iter().flat_map(plan);
        let case = specs.map(|spec| spec.case).find(|case| case.name() == self.case)?;
        let timing = Timing { mean: self.ns_per_op, p50: self.p50_ns, p99: self.p99_ns, p999: self.p999_ns };
        Some(Row {
            spec: Spec { case, batch, segments, depth },
            subject: Subject::by_name(&self.subject)?,
            timing,
            instructions: self.instructions_per_op,
            locked: self.locked_per_op,
        })
    }
}

/// Writes the rows as a JSON array of objects.
///
/// # Errors
///
/// The error of the file system.
pub fn write(rows: &[Row], path: &Path) -> Result<()> {
    write_json(&rows.iter().map(Entry::from).collect::<Vec<_>>(), path)
}

/// The rows of a report that [`write()`] has written.
///
/// # Errors
///
/// The error of the file system; a text if it is no report.
pub fn read(path: &Path) -> Result<Vec<Row>> {
    Ok(read_json::<Vec<Entry>>(path)?.iter().filter_map(Entry::row).collect())
}

/// Writes a value as JSON; creates the folder.
///
/// # Errors
///
/// The error of the file system.
pub fn write_json(value: &impl serde::Serialize, path: &Path) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let text = serde_json::to_string_pretty(value)?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

/// Reads what [`write_json`] has written.
///
/// # Errors
///
/// The error of the file system; that of the text.
pub fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no report", path.display()))
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
    fn a_report_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/report.json");
        let rows = [row(Subject::Mlx5Direct, 1.5), row(Subject::Verbs, 1234.567)];
        write(&rows, &path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.contains("\"ns_per_op\": 1234.567") && text.contains("\"locked_per_op\": null"),
            "{text}"
        );
        assert_eq!(format!("{:?}", read(&path).unwrap()), format!("{rows:?}"));
    }

    #[test]
    fn ratios_say_how_many_times_faster() {
        let rows = [row(Subject::Libmlx5Lock, 9.0), row(Subject::Mlx5Direct, 1.5)];
        assert!(reference(&rows, &rows[0]).is_none());
        assert!(to_table(&rows).to_string().contains("6.00"));
    }
}
