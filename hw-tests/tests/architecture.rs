//! ARCHITECTURE.md and other pages name files and functions: each has to exist.
//!
//! In code spans, `FOLDER/FILE` is a path from the repository's root or from provider/src,
//! `capi/FILE` one from provider/capi/src, and `FILE::NAME` or `FILE::TYPE::FIELD` is a name that
//! this file defines. The table of locks has the levels and the names of provider/src/sync/order.rs.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The page without the files in its tables of layers, which `layers` checks.
fn without_layers(page: &str) -> String {
    let mut in_table = false;
    let lines = page.lines().map(|line| {
        in_table = line.starts_with('|') && (in_table || line.starts_with("| layer of `"));
        match line.splitn(4, '|').collect::<Vec<_>>()[..] {
            [_, layer, _, rest] if in_table => format!("|{layer}|{rest}\n"),
            _ => format!("{line}\n"),
        }
    });
    lines.collect()
}

/// The text in single backticks, outside of code blocks.
fn code_spans(page: &str) -> Vec<&str> {
    // Blocks are every second piece.
    let text = page.split("```").step_by(2);
    // A span ends in its paragraph, so that a lone backtick spoils no more than that.
    text.flat_map(|text| text.split("\n\n")).flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

/// A file or folder of this repository that a code span names, and a name in the file.
#[derive(Debug, PartialEq, Eq)]
struct Reference<'a> {
    path: &'a str,
    name: Option<&'a str>,
}

/// `None` for spans that are no paths: words, commands, patterns, absolute paths.
fn reference(span: &str) -> Option<Reference<'_>> {
    const ENDINGS: [&str; 8] = [".rs", ".c", ".h", ".md", ".txt", ".toml", ".7", "/"];
    let (path, name) = match span.split_once("::") {
        Some((path, name)) => (path, Some(name)),
        None => (span, None),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let is_path = path.chars().all(plain)
        && !path.starts_with('/')
        && (path.contains('/') || ENDINGS.iter().any(|ending| path.ends_with(ending)));
    is_path.then_some(Reference { path, name })
}

fn find(path: &str) -> Option<PathBuf> {
    let capi = path.strip_prefix("capi/").map(|path| root().join("provider/capi/src").join(path));
    [root().join(path), root().join("provider/src").join(path)]
        .into_iter()
        .chain(capi)
        .find(|path| path.exists())
}

/// Whether the file defines this name: as an item, as a field at the start of a line, or as an item
/// of C. Comments and uses of the name do not count.
fn defines(text: &str, name: &str) -> bool {
    const ITEMS: [&str; 10] =
        ["fn", "struct", "enum", "static", "const", "trait", "type", "mod", "macro_rules!", "#define"];
    let in_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.lines().map(str::trim_start).filter(|line| !line.starts_with("//")).any(|line| {
        line.match_indices(name).any(|(at, _)| {
            let (before, after) = (line[..at].trim_end(), &line[at + name.len()..]);
            let whole = !line[..at].ends_with(in_word) && !after.starts_with(in_word);
            let item = ITEMS.iter().any(|item| before.ends_with(item));
            let field = (before.is_empty() || before.starts_with("pub") && !before.contains(' '))
                && after.starts_with(": ");
            whole && (item || field)
        })
    })
}

/// What is wrong with this reference.
fn problem(reference: &Reference<'_>) -> Option<String> {
    let Some(file) = find(reference.path) else { return Some(format!("no file {}", reference.path)) };
    let text = fs::read_to_string(file).unwrap_or_default();
    let missing = reference.name?.split("::").find(|name| !defines(&text, name))?;
    Some(format!("no {missing} in {}", reference.path))
}

#[test]
fn every_file_and_name_on_the_page_exists() {
    for (name, at_least) in
        [("ARCHITECTURE.md", 120), ("mlx5-direct/verbs/README.md", 15), ("CONTRIBUTING.md", 3)]
    {
        let page = without_layers(&page(name));
        let references: Vec<_> = code_spans(&page).into_iter().filter_map(reference).collect();
        assert!(references.len() >= at_least, "{name}: only {} references were found", references.len());
        let problems: Vec<_> = references.iter().filter_map(problem).collect();
        assert!(problems.is_empty(), "{name}:\n{}", problems.join("\n"));
    }
}

/// Level and name of each lock in `sync::rank`.
fn ranks() -> Vec<(u32, String)> {
    let source = page("provider/src/sync/order.rs");
    let (_, list) = source.split_once("    ranks! {").expect("sync/order.rs has the list of ranks");
    let (list, _) = list.split_once("\n    }").expect("the list has an end");
    let rank = |line: &str| {
        let (name, rest) = line.trim().split_once(" = ")?;
        let (level, text) = rest.split_once(' ')?;
        let text = text.trim_matches(|c| "\";".contains(c));
        name.chars()
            .all(|c| c.is_ascii_uppercase() || c == '_')
            .then(|| Some((level.parse().ok()?, text.to_owned())))?
    };
    list.lines().filter_map(rank).collect()
}

#[test]
fn the_table_of_locks_has_every_level() {
    let page = page("ARCHITECTURE.md");
    let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| ")).collect();
    let ranks = ranks();
    assert!(ranks.len() >= 10, "only {ranks:?} were found in sync/order.rs");
    for (level, name) in ranks {
        // The last part of a name in sync/order.rs is the field or the static; tables have several locks.
        let lock = name.rsplit("::").next().unwrap_or_default();
        let has = |row: &&str| {
            row.starts_with(&format!("| {level} | "))
                && (lock.starts_with("a ")
                    || row.contains(&format!("`{lock}`"))
                    || row.contains(&format!("::{lock}`")))
        };
        assert!(rows.iter().any(has), "no row for level {level}, {name}");
    }
}

#[test]
fn broken_references_are_noticed() {
    let spans = "A `gone.rs` and `srq.rs::resize`, `srq.rs::no_such_function`, `make test`, `/dev/null`,\n\
                 ```sh\n`x/y.rs`\n```\n`provider/src/`, `provider/nowhere/`, `device_*`, `OK`.";
    let problems: Vec<_> =
        code_spans(spans).into_iter().filter_map(reference).filter_map(|found| problem(&found)).collect();
    let expected = ["no file gone.rs", "no no_such_function in srq.rs", "no file provider/nowhere/"];
    assert_eq!(problems, expected);
    for (text, is_defined) in [
        ("fn post_recv() {}", true),
        ("    pub(crate) post_recv: u32,", true),
        ("fn post_recv_quick() {}", false),
        ("// fn post_recv() {}", false),
        ("self.post_recv();", false),
        ("take(post_recv: u32)", false),
    ] {
        assert_eq!(defines(text, "post_recv"), is_defined, "{text}");
    }
}
