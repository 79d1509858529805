//! The rows, as a table for people and as JSON for programs.

use std::{fmt::Write as _, io, path::Path};

use crate::{case::Key, sample::Timing};

/// One measured case.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured.
    pub key: Key,
    /// Nanoseconds per operation.
    pub timing: Timing,
    /// Instructions per operation; none where no counter was available.
    pub instructions: Option<f64>,
}

/// The rows as a JSON array of objects.
pub fn to_json(rows: &[Row]) -> String {
    let mut out = String::from("[\n");
    for (n, Row { key, timing, instructions }) in rows.iter().enumerate() {
        let instructions = instructions.map_or("null".to_owned(), |i| format!("{i:.2}"));
        let comma = if n + 1 < rows.len() { "," } else { "" };
        let _ = writeln!(
            out,
            "  {{\"case\": \"{}\", \"subject\": \"{}\", \"batch\": {}, \"segments\": {}, \"depth\": {}, \
             \"ns_per_op\": {:.3}, \"p50_ns\": {:.3}, \"p99_ns\": {:.3}, \"p999_ns\": {:.3}, \
             \"instructions_per_op\": {instructions}}}{comma}",
            key.case,
            key.subject,
            key.batch,
            key.segments,
            key.depth,
            timing.mean,
            timing.p50,
            timing.p99,
            timing.p999,
        );
    }
    out.push_str("]\n");
    out
}

/// Writes the JSON, creating the folder.
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

/// The rows as a table.
pub fn to_table(rows: &[Row]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "case", "subject", "batch", "segs", "depth", "ns/op", "p50", "p99", "p99.9", "instr/op",
    ]);
    for Row { key, timing, instructions } in rows {
        table.add_row([
            key.case.to_owned(),
            key.subject.to_owned(),
            key.batch.to_string(),
            key.segments.to_string(),
            key.depth.to_string(),
            format!("{:.2}", timing.mean),
            format!("{:.2}", timing.p50),
            format!("{:.2}", timing.p99),
            format!("{:.2}", timing.p999),
            instructions.map_or("-".to_owned(), |i| format!("{i:.1}")),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_carries_every_key_and_null_for_a_missing_count() {
        let key = Key { case: "poll", subject: "direct", batch: 1, segments: 1, depth: 7 };
        let timing = Timing { mean: 1.5, p50: 1.0, p99: 2.0, p999: 3.25 };
        let json = to_json(&[Row { key, timing, instructions: None }]);
        assert_eq!(
            json,
            "[\n  {\"case\": \"poll\", \"subject\": \"direct\", \"batch\": 1, \"segments\": 1, \"depth\": 7, \
             \"ns_per_op\": 1.500, \"p50_ns\": 1.000, \"p99_ns\": 2.000, \"p999_ns\": 3.250, \
             \"instructions_per_op\": null}\n]\n"
        );
    }
}
