//! The tests that CASES.md names exist.

use std::{collections::BTreeSet, fs, path::Path};

#[test]
fn each_case_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join("tests/CASES.md")).unwrap();
    let mut numbers = BTreeSet::new();
    for line in table.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, number, _, _, tests, _] = cells[..] else { continue };
        let Ok(number) = number.parse::<u32>() else { continue };
        assert!(numbers.insert(number), "case {number} is there twice");
        let words: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!words.is_empty() && words.len().is_multiple_of(2), "case {number} names {words:?}");
        for pair in words.chunks(2) {
            let file = match pair[0].split_once('/') {
                Some(("verbs", file)) => root.join("verbs/tests").join(file),
                Some(("emu", file)) => root.join("../hw-tests/mlx5-emu/tests").join(file),
                _ => root.join("tests").join(pair[0]),
            };
            let source = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            let (function, name) = (format!("fn {}(", pair[1]), format!("\"{}\"", pair[1]));
            assert!(source.contains(&function) || source.contains(&name), "case {number}: {pair:?}");
        }
    }
    assert_eq!(numbers, (1..=40).collect());
}
