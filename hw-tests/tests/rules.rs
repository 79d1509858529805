//! Which test covers which of the 279 rules of the SRQ: generates and checks `hw-tests/RULES.md`.
//!
//! - `rules/rules.txt`: a heading for each section; for every rule its number, slug, sentence and
//!   sources.
//! - A test covers the rule that its name begins with (`r97_srq_resize_below_outstanding`), and
//!   those that its doc comment names in the form "(R39 to R42)", "(R75, R76)" or "Also R40, R41."
//! - Tests are Rust functions and, at the C edge, `TEST(r53_...)` in a C program, whose comment is
//!   the one in front of it.
//! - `rules/reasons.txt`: why a rule has no test, or ("in part: ") which part of it is not met, one
//!   line each.
//!
//! `UPDATE_RULES=1 cargo test -p doorbell-hw-tests --test rules` writes the file anew.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Where tests named after rules may be, from the repository's root.
const SOURCES: [&str; 5] =
    ["hw-tests/tests", "hw-tests/c", "provider/src", "rxe-fallback/src", "rxe-fallback/tests"];

/// This file: its examples look like tests.
const SELF: &str = "hw-tests/tests/rules.rs";

#[derive(Debug, PartialEq, Eq)]
struct Rule {
    /// The heading of its section.
    section: String,
    slug: String,
}

/// A test named after a rule.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// File and name.
    place: String,
    name: String,
    number: u32,
    /// Rules that its doc comment names.
    more: Vec<u32>,
}

/// Which way in a test takes, by its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Rust,
    C,
}

impl Way {
    fn of(place: &str) -> Self {
        if place.contains(".c::") { Self::C } else { Self::Rust }
    }
}

/// Reads `## SECTION` and `R1 slug | sentence | sources`. Sentences may contain " | ".
fn parse_rules(text: &str) -> BTreeMap<u32, Rule> {
    let mut section = String::new();
    let mut rules = BTreeMap::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading.to_owned();
            continue;
        }
        let rule = || {
            let (head, rest) = line.split_once(" | ")?;
            let (number, slug) = head.strip_prefix('R')?.split_once(' ')?;
            rest.rsplit_once(" | ")?;
            Some((number.parse().ok()?, Rule { section: section.clone(), slug: slug.to_owned() }))
        };
        let (number, rule) = rule().unwrap_or_else(|| panic!("rules.txt: {line:?}"));
        assert!(rules.insert(number, rule).is_none(), "rules.txt: R{number} stands there twice");
    }
    rules
}

/// Numbers and reasons; what is wrong with a line goes to `problems`.
fn parse_reasons(text: &str, problems: &mut Vec<String>) -> BTreeMap<u32, String> {
    let mut reasons = BTreeMap::new();
    let mut last = 0;
    for line in text.lines() {
        let parsed = line.split_once(' ').and_then(|(number, reason)| {
            Some((number.strip_prefix('R')?.parse::<u32>().ok()?, reason.trim()))
                .filter(|(_, r)| !r.is_empty())
        });
        match parsed {
            Some((number, reason)) => {
                if number <= last {
                    problems.push(format!("reasons.txt: R{number} comes after R{last}"));
                }
                last = number;
                reasons.insert(number, reason.to_owned());
            }
            None => problems.push(format!("reasons.txt: not a number and a reason: {line:?}")),
        }
    }
    reasons
}

/// Reads references up to the first word that is none; gives them and whether that was the end of
/// the text.
fn references(text: &str) -> (Vec<u32>, bool) {
    let text = text.replace('-', " to ");
    let mut numbers = Vec::new();
    let mut range = false;
    for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
        let bare = word.trim_end_matches(['.', ';', ':', ')']);
        match (bare.strip_prefix('R').and_then(|n| n.parse::<u32>().ok()), word) {
            (Some(to), _) => {
                let from = numbers.last().map_or(to, |last| last + 1);
                numbers.extend(if range { from..=to } else { to..=to });
                range = false;
                if bare != word {
                    return (numbers, false);
                }
            }
            (None, "to") => range = true,
            (None, "and") => {}
            (None, _) => return (numbers, false),
        }
    }
    (numbers, true)
}

/// The rules that a doc comment names as covered, too.
fn named_in(doc: &str) -> Vec<u32> {
    let in_parentheses = doc
        .split('(')
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(inside, _)| references(inside))
        .filter(|(_, whole)| *whole)
        .flat_map(|(numbers, _)| numbers);
    let also = doc.split("Also ").skip(1).flat_map(|rest| references(rest).0);
    in_parentheses.chain(also).collect()
}

/// The number in `r53_name`, and the name up to the first character that is none of a name.
fn numbered(text: &str) -> Option<(u32, String)> {
    let name: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let number = name.strip_prefix('r').and_then(|n| n.split_once('_')).and_then(|(n, _)| n.parse().ok());
    number.map(|number| (number, name))
}

/// The tests of one C program: `TEST(r53_name)`, with the comment in front of it.
fn scan_c(path: &str, source: &str) -> Vec<Found> {
    let mut found = Vec::new();
    let mut doc = String::new();
    let mut comment = false;
    for line in source.lines().map(str::trim) {
        if line.starts_with("/*") {
            doc.clear();
            comment = true;
        }
        if comment {
            comment = !line.ends_with("*/");
            doc.push(' ');
            doc.push_str(line.trim_start_matches("/*").trim_end_matches("*/").trim_start_matches('*').trim());
            continue;
        }
        if let Some((number, name)) = line.strip_prefix("TEST(").and_then(numbered) {
            found.push(Found { place: format!("{path}::{name}"), name, number, more: named_in(&doc) });
        }
        doc.clear();
    }
    found
}

/// The tests of one Rust source file.
fn scan(path: &str, source: &str) -> Vec<Found> {
    let mut found = Vec::new();
    let mut doc = String::new();
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            doc.push(' ');
            doc.push_str(text.trim());
        } else if !line.starts_with("#[") {
            if let Some((number, name)) = line.strip_prefix("fn ").and_then(numbered) {
                found.push(Found { place: format!("{path}::{name}"), name, number, more: named_in(&doc) });
            }
            doc.clear();
        }
    }
    found
}

fn source_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            source_files(&path, into);
        } else if path.extension().is_some_and(|ext| ext == "rs" || ext == "c") {
            into.push(path);
        }
    }
}

/// What is wrong with the names of the tests with this number: one of them has to have the rule's
/// slug, further ones may say what else they show, but none has another rule's slug.
fn misnamed(rules: &BTreeMap<u32, Rule>, number: u32, tests: &[&Found]) -> Option<String> {
    let starts_with = |test: &Found, slug: &str| {
        let rest = test.name.strip_prefix(&format!("r{number}_{slug}"));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    };
    let Some(Rule { slug, .. }) = rules.get(&number) else {
        return Some(format!("{}: there is no R{number}", tests[0].place));
    };
    let (own, others): (Vec<_>, Vec<_>) = tests.iter().partition(|test| starts_with(test, slug));
    let wrong = |test: &&Found| rules.values().any(|rule| starts_with(test, &rule.slug));
    let test = if own.is_empty() { others.first().copied() } else { others.into_iter().find(wrong) };
    test.map(|test| format!("{}: R{number} is {slug}", test.place))
}

/// A reason that goes with a test: which part of the rule is not met.
fn partly(reason: &str) -> bool {
    reason.starts_with("in part: ")
}

/// The tests of a rule, each file once. A test that is named after another rule stands with that
/// rule's number.
fn short(number: u32, tests: &[&Found]) -> String {
    let mut files: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for test in tests {
        let file = test.place.split("::").next().unwrap_or_default();
        let numbers = files.entry(file.trim_start_matches("hw-tests/")).or_default();
        if !numbers.contains(&test.number) {
            numbers.push(test.number);
        }
    }
    let file = |(file, numbers): (&str, Vec<u32>)| {
        let others = numbers.iter().filter(|other| **other != number).map(|other| format!(" R{other}"));
        format!("{file}{}", others.collect::<String>())
    };
    files.into_iter().map(file).collect::<Vec<_>>().join(", ")
}

/// The text of RULES.md.
fn table(
    rules: &BTreeMap<u32, Rule>,
    tests: &[Found],
    reasons: &BTreeMap<u32, String>,
    problems: &mut Vec<String>,
) -> String {
    let mut covered: BTreeMap<u32, Vec<&Found>> = BTreeMap::new();
    let mut names: BTreeMap<u32, Vec<&Found>> = BTreeMap::new();
    for test in tests {
        names.entry(test.number).or_default().push(test);
        for number in [test.number].iter().chain(&test.more) {
            if !rules.contains_key(number) {
                problems.push(format!("{}: names R{number}, which there is not", test.place));
            }
            let tests = covered.entry(*number).or_default();
            if !tests.contains(&test) {
                tests.push(test);
            }
        }
    }
    for (number, tests) in names {
        problems.extend(misnamed(rules, number, &tests));
    }
    for (number, reason) in reasons {
        if !rules.contains_key(number) {
            problems.push(format!("reasons.txt: there is no R{number}"));
        }
        if let Some(tests) = covered.get(number).filter(|_| !partly(reason)) {
            let places: Vec<_> = tests.iter().map(|test| test.place.as_str()).collect();
            problems.push(format!("R{number} has a reason and a test: {}", places.join(", ")));
        }
    }
    let mut text = String::from(
        "# Rules and their tests\n\n\
         The rules of the SRQ and of the EPs on it, and the tests that show them. What each rule says, and where it comes\n\
         from, stands in [rules/rules.txt](rules/rules.txt); where the sources contradict themselves, in\n\
         [rules/errata.md](rules/errata.md). Files are below `hw-tests/`: C programs use libdat2, Rust tests the crate. A test\n\
         is named after its rule (`r1_...`); a number behind the file is that of another test, which covers this rule too.\n\
         `UPDATE_RULES=1 cargo test -p doorbell-hw-tests --test rules` writes this page, and without the variable checks it.\n",
    );
    let (mut by_test, mut in_rust, mut in_c, mut by_reason, mut in_part) = (0, 0, 0, 0, 0);
    let mut last = "";
    for (number, Rule { section, slug }) in rules {
        if section != last {
            writeln!(text, "\n## {section}\n\n| rule | tests |\n|---|---|").unwrap();
            last = section;
        }
        let how = match (covered.get(number), reasons.get(number)) {
            (Some(tests), reason) => {
                let has = |way| tests.iter().any(|test| Way::of(&test.place) == way);
                in_rust += usize::from(has(Way::Rust));
                in_c += usize::from(has(Way::C));
                *if reason.is_some() { &mut in_part } else { &mut by_test } += 1;
                let files = short(*number, tests);
                reason.map_or_else(|| files.clone(), |reason| format!("{reason}<br>{files}"))
            }
            (None, Some(reason)) => {
                by_reason += 1;
                format!("no test: {reason}")
            }
            (None, None) => "open".to_owned(),
        };
        writeln!(text, "| R{number} {slug} | {how} |").unwrap();
    }
    let (all, open) = (rules.len(), rules.len() - by_test - in_part - by_reason);
    writeln!(
        text,
        "\ncovered {by_test} ({in_rust} in Rust, {in_c} in C), in part {in_part}, reasoned {by_reason}, open {open} of {all}"
    )
    .unwrap();
    text
}

/// The table is what sources and reasons say, every test is named as its rule is, and no rule has
/// both a test and a reason why there is none.
#[test]
fn the_table_of_rules_is_true() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().unwrap();
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut problems = Vec::new();
    let rules = parse_rules(&read(&here.join("rules/rules.txt")));
    assert!(rules.keys().copied().eq(1..=279), "rules.txt is not R1 to R279");
    let reasons = parse_reasons(&read(&here.join("rules/reasons.txt")), &mut problems);
    let mut files = Vec::new();
    for folder in SOURCES {
        source_files(&root.join(folder), &mut files);
    }
    files.sort();
    let tests: Vec<_> = files
        .iter()
        .map(|file| (file.strip_prefix(root).unwrap().to_str().unwrap(), file))
        .filter(|(path, _)| *path != SELF)
        .flat_map(|(path, file)| match Way::of(&format!("{path}::")) {
            Way::Rust => scan(path, &read(file)),
            Way::C => scan_c(path, &read(file)),
        })
        .collect();
    let text = table(&rules, &tests, &reasons, &mut problems);
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
    let target = here.join("RULES.md");
    if std::env::var_os("UPDATE_RULES").is_some() {
        fs::write(&target, text).unwrap();
        return;
    }
    let now = fs::read_to_string(&target).unwrap_or_default();
    let changed = text.lines().zip(now.lines()).find(|(new, old)| new != old).map(|(new, _)| new);
    assert!(
        text == now,
        "RULES.md is old (first at {:?}): UPDATE_RULES=1 cargo test -p doorbell-hw-tests --test rules",
        changed.unwrap_or("its end")
    );
}

fn sample() -> BTreeMap<u32, Rule> {
    parse_rules(
        "## A. First\nR1 one | s | M: p\nR2 two | s, A | B | D\n## B. Second\nR3 three | s | H\nR4 four | s | M\n",
    )
}

fn outcome(source: &str, reasons: &str) -> (String, Vec<String>) {
    let mut problems = Vec::new();
    let reasons = parse_reasons(reasons, &mut problems);
    let text = table(&sample(), &scan("a.rs", source), &reasons, &mut problems);
    (text, problems)
}

#[test]
fn a_rule_met_in_part_has_test_and_reason() {
    let (text, problems) = outcome("fn r1_one() {", "R1 in part: not in C");
    assert_eq!(problems, Vec::<String>::new());
    assert!(text.contains("| in part: not in C<br>a.rs |"), "{text}");
    assert!(text.ends_with("covered 0 (1 in Rust, 0 in C), in part 1, reasoned 0, open 3 of 4\n"), "{text}");
}

#[test]
fn each_rule_is_covered_reasoned_or_open() {
    let (text, problems) = outcome("/// Shown.\n#[test]\nfn r1_one() {\n", "R3 C edge: NULL\n");
    assert_eq!(problems, [""; 0]);
    assert!(text.contains("| R1 one | a.rs |\n| R2 two | open |\n"), "{text}");
    assert!(text.contains("\n## B. Second\n\n| rule |"));
    assert!(text.contains("| R3 three | no test: C edge: NULL |\n"));
    assert!(text.ends_with("\ncovered 1 (1 in Rust, 0 in C), in part 0, reasoned 1, open 2 of 4\n"));
}

#[test]
fn doc_comments_name_further_rules() {
    for (doc, numbers) in [
        ("All four (R1 to R4).", vec![1, 2, 3, 4]),
        ("All four (R1-R4).", vec![1, 2, 3, 4]),
        ("Two (R2, R4) of them. Also R1.", vec![2, 4, 1]),
        ("Also R2, R3 and R4.", vec![2, 3, 4]),
        ("Also R2. What R3 says is something else.", vec![2]),
        ("Other words in it (see R2) and R4 (R1; R2 too).", vec![]),
    ] {
        assert_eq!(named_in(doc), numbers, "{doc}");
    }
    let (text, _) = outcome("/// First line,\n/// then more. Also R2,\n/// R3.\nfn r1_one() {\n", "");
    assert!(text.contains("\ncovered 3 ("), "{text}");
    let (text, _) = outcome("/// Another function. Also R4.\nfn helper() {}\nfn r1_one() {\n", "");
    assert!(text.contains("\ncovered 1 ("), "{text}");
}

#[test]
fn tests_in_c_count_with_their_comments() {
    let source =
        "/* Other. Also R4. */\nint x;\n/* First,\n * second. Also R2,\n * R3. */\nTEST(r1_one)\n{\n}\n";
    let found = scan_c("p.c", source);
    assert_eq!(
        found,
        [Found { place: "p.c::r1_one".into(), name: "r1_one".into(), number: 1, more: vec![2, 3] }]
    );
    let text = table(&sample(), &found, &BTreeMap::new(), &mut Vec::new());
    assert!(text.contains("| R1 one | p.c |\n| R2 two | p.c R1 |\n"), "{text}");
    assert!(
        text.ends_with("\ncovered 3 (0 in Rust, 3 in C), in part 0, reasoned 0, open 1 of 4\n"),
        "{text}"
    );
}

#[test]
fn contradictions_and_unknown_rules_are_found() {
    for (source, reasons, problem) in [
        ("fn r5_five() {", "", "there is no R5"),
        ("fn r1_two() {", "", "R1 is one"),
        ("fn r1_onefold() {", "", "R1 is one"),
        ("fn r1_one() {}\nfn r1_two_again() {", "", "r1_two_again: R1 is one"),
        ("/// Also R9.\nfn r1_one() {", "", "names R9"),
        ("fn r1_one() {", "R1 C edge: NULL", "R1 has a reason and a test"),
        ("/// Also R2.\nfn r1_one() {", "R2 C edge: NULL", "R2 has a reason and a test"),
        ("", "R7 C edge: NULL", "there is no R7"),
        ("", "R2 x\nR1 x", "R1 comes after R2"),
        ("", "R1", "not a number and a reason"),
    ] {
        let (_, problems) = outcome(source, reasons);
        assert!(problems.iter().any(|p| p.contains(problem)), "{source:?} {reasons:?}: {problems:?}");
    }
    for source in ["fn r1_one_in_some_way() {", "fn r1_one() {}\nfn r1_onefold() {"] {
        assert_eq!(outcome(source, "").1, [""; 0]);
    }
}
