//! Reads the output of test executables and scripts.

use std::ops::AddAssign;

/// Lines of a failed test that are kept: logs are long.
const KEPT: usize = 30;
/// Bytes of such a line.
const WIDTH: usize = 400;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    pub(crate) skipped: u32,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.skipped += more.skipped;
    }
}

/// A test that failed, and the end of what it said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) test: String,
    pub(crate) lines: Vec<String>,
}

/// What an output says.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) counts: Counts,
    pub(crate) failures: Vec<Failure>,
    pub(crate) skipped: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// The output of one or several test executables.
///
/// hw-tests/run-device-tests puts `=== NAME, on DEVICE` before each and `=== NAME ended with status N
/// after N s` behind it. An executable that ends with an error and no failed test counts as one
/// failure. Its parts that have no end belong to a test machine that died: they run once more.
pub(crate) fn harness(output: &str) -> Found {
    let mut all = Found::default();
    let mut section = Section::default();
    let mut in_device_tests = false;
    for line in output.lines() {
        if let Some((name, _)) = line.strip_prefix("=== ").and_then(|title| title.split_once(", on ")) {
            section = Section { name: format!("{name}: "), ..Section::default() };
            in_device_tests = true;
        } else if let Some((_, status)) = end_of_executable(line) {
            section.end(status, &mut all);
            section = Section::default();
        } else if let Some(note) = line.strip_prefix("note: test machine: ") {
            all.notes.push(note.to_owned());
        } else if ["Doc-tests ", "Running "].iter().any(|title| line.trim_start().starts_with(title)) {
            // Another executable of cargo test.
            section.end("0", &mut all);
            section = Section { examples: line.contains("Doc-tests "), ..Section::default() };
        } else if line == "=== summary" {
            break;
        } else {
            section.line(line);
        }
    }
    if !in_device_tests {
        section.end("0", &mut all);
    }
    all
}

/// `=== NAME ended with status N after N s`: name and status.
pub(crate) fn end_of_executable(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.strip_prefix("=== ")?.split_once(" ended with status ")?;
    Some((name, rest.split(' ').next()?))
}

/// The output of a script: its own tests, and the last `N passed, N failed, N skipped`.
pub(crate) fn script(output: &str) -> Found {
    let mut found = harness(output);
    let mut section = Section::default();
    output.lines().for_each(|line| section.line(line));
    section.flush();
    if found.failures.is_empty() {
        found.failures = section.failures_or_names();
    }
    found.counts = output.lines().rev().find_map(summary).unwrap_or_default();
    if found.counts.failed == 0 {
        // A script may try a test again.
        found.failures.clear();
    }
    found
}

fn summary(line: &str) -> Option<Counts> {
    let numbers = line.split(", ").map(|part| part.split_once(' ')).collect::<Option<Vec<_>>>()?;
    let [(passed, "passed"), (failed, "failed"), (skipped, "skipped")] = numbers[..] else { return None };
    Some(Counts {
        passed: passed.parse().ok()?,
        failed: failed.parse().ok()?,
        skipped: skipped.parse().ok()?,
    })
}

/// The last lines that are not empty.
pub(crate) fn last_lines(output: &str, n: usize) -> Vec<String> {
    let lines: Vec<_> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(n)..].iter().map(|line| shortened(line)).collect()
}

fn shortened(line: &str) -> String {
    line.char_indices().take_while(|(at, _)| *at < WIDTH).map(|(_, c)| c).collect()
}

/// Output of one executable.
#[derive(Default)]
struct Section {
    name: String,
    /// Of the documentation.
    examples: bool,
    counts: Counts,
    failures: Vec<Failure>,
    /// From `test NAME ... FAILED`: scripts, and executables that crash, print no more.
    names: Vec<String>,
    skipped: Vec<String>,
    /// Between `failures:` and `test result:`.
    listing: bool,
    block: Option<Failure>,
    last: Vec<String>,
}

impl Section {
    fn line(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.flush();
            self.listing = false;
            // The last one counts: others are output of processes that a failed test has started. The
            // examples of a crate are several executables.
            if !self.examples {
                self.counts = Counts::default();
            }
            self.counts += result_line(result);
            return;
        }
        if line == "failures:" {
            self.flush();
            self.listing = true;
        } else if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" ----")) {
            self.flush();
            let name = name.strip_suffix(" stdout").unwrap_or(name);
            self.block = self.listing.then(|| Failure { test: self.name.clone() + name, lines: Vec::new() });
        } else if let Some((name, result)) = test_line(line) {
            if result.starts_with("FAILED") {
                self.names.push(self.name.clone() + name);
            } else if result.starts_with("ignored") {
                self.skipped.push(self.name.clone() + name + result.trim_start_matches("ignored"));
            }
        } else if let Some(block) = &mut self.block {
            block.lines.push(line.to_owned());
        }
        if !line.trim().is_empty() {
            self.last.push(shortened(line));
            if self.last.len() > 2 * KEPT {
                self.last.drain(..KEPT);
            }
        }
    }

    fn flush(&mut self) {
        if let Some(mut block) = self.block.take() {
            block.lines = last_lines(&block.lines.join("\n"), KEPT);
            self.failures.push(block);
        }
    }

    fn failures_or_names(&mut self) -> Vec<Failure> {
        let named = std::mem::take(&mut self.failures);
        if !named.is_empty() {
            return named;
        }
        let names = std::mem::take(&mut self.names);
        names.into_iter().map(|test| Failure { test, lines: self.last.clone() }).collect()
    }

    fn end(&mut self, status: &str, all: &mut Found) {
        self.flush();
        if status != "0" && self.counts.failed == 0 {
            self.counts.failed = 1;
            let test = format!("{}ended with status {status}", self.name);
            self.failures.push(Failure { test, lines: self.last.clone() });
        }
        all.counts += self.counts;
        for failure in self.failures_or_names() {
            if all.failures.iter().all(|known| known.test != failure.test) {
                all.failures.push(failure);
            }
        }
        all.skipped.append(&mut self.skipped);
    }
}

/// `ok. 3 passed; 0 failed; 1 ignored; ...`
fn result_line(result: &str) -> Counts {
    let mut counts = Counts::default();
    let words: Vec<_> = result.split([' ', ';', '.']).filter(|word| !word.is_empty()).collect();
    for pair in words.windows(2) {
        if let Ok(number) = pair[0].parse() {
            match pair[1] {
                "passed" => counts.passed = number,
                "failed" => counts.failed = number,
                "ignored" => counts.skipped = number,
                _ => {}
            }
        }
    }
    counts
}

/// `test NAME ... RESULT`
fn test_line(line: &str) -> Option<(&str, &str)> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    Some((name.trim_end(), result))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u32, failed: u32, skipped: u32) -> Counts {
        Counts { passed, failed, skipped }
    }

    #[test]
    fn results_of_executables_are_added() {
        let found = harness(
            "     Running unittests src/lib.rs\nrunning 3 tests\ntest a ... ok\ntest b ... FAILED\ntest [no device] c ... ignored\n\nfailures:\n\n\
             ---- b ----\nfirst\n\nlast\n\n\nfailures:\n    b\n\n\
             test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
             \x20  Doc-tests doorbell\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
             test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!(found.counts, counts(4, 1, 1));
        let lines = vec!["first".to_owned(), "last".to_owned()];
        assert_eq!(found.failures, [Failure { test: "b".to_owned(), lines }]);
        assert_eq!(found.skipped, ["[no device] c"]);
    }

    #[test]
    fn a_test_that_shows_the_output_of_another_process_counts_once() {
        let inner = "failures:\n---- a ----\nwhy\nfailures:\n    a\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n";
        let output = format!(
            "failures:\n\n---- a ----\ntest panicked: {inner}\n\nfailures:\n    a\n\n\
             test result: FAILED. 7 passed; 1 failed; 0 ignored\n"
        );
        let found = harness(&output);
        assert_eq!((found.counts, found.failures.len()), (counts(7, 1, 0), 1));
    }

    #[test]
    fn executables_of_a_list_count_by_their_end() {
        let output = "\n=== one, on rxeA,rxeB\ntest a ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored\n\
             === one ended with status 0 after 1 s\n\n=== two, on rxeA,rxeB\nlast words\n\
             === two ended with status 139 after 2 s\n\n=== three, on rxeA,rxeB\n\
             test result: ok. 1 passed; 0 failed; 0 ignored\n";
        let found = harness(output);
        // Nobody knows how `three` has ended.
        assert_eq!(found.counts, counts(1, 1, 0));
        assert_eq!(found.failures[0].test, "two: ended with status 139");
        assert_eq!(found.failures[0].lines, ["last words"]);
    }

    #[test]
    fn the_last_line_of_a_script_counts() {
        let found = script(
            "test a ... ok\n0 passed, 9 failed, 0 skipped\ntest b ... FAILED\n1 passed, 1 failed, 2 skipped\n",
        );
        assert_eq!(found.counts, counts(1, 1, 2));
        assert_eq!(found.failures[0].test, "b");
        let again = script("test a ... FAILED\ntest a ... ok\n1 passed, 0 failed, 0 skipped\n");
        assert_eq!((again.counts, again.failures.len()), (counts(1, 0, 0), 0));
        assert_eq!(script("nothing\n").counts, Counts::default());
    }

    #[test]
    fn long_output_of_a_failed_test_is_cut_at_its_beginning() {
        let lines: Vec<_> = (0..100).map(|n| format!("line {n}")).collect();
        let output =
            format!("failures:\n---- a ----\n{}\ntest result: FAILED. 0 passed; 1 failed;", lines.join("\n"));
        let found = harness(&output);
        assert_eq!(found.failures[0].lines, lines[70..]);
        assert_eq!(last_lines(&"x".repeat(1000), 1)[0].len(), WIDTH);
    }
}
