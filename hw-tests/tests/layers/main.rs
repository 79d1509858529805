//! Every crate of the workspace is made of layers.
//!
//! No files of a crate import each other in a circle, and no folders do. In crates with a table of
//! layers, a file imports from its own layer and from those below. Crates depend on those that
//! ARCHITECTURE.md names. A module with a folder is a file beside the folder.

mod graph;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Pages with tables of layers.
const PAGES: [&str; 4] = [
    "ARCHITECTURE.md",
    "mlx5-direct/verbs/README.md",
    "mlx5-direct/biased-lock/README.md",
    "hw-tests/mlx5-emu/README.md",
];

/// Sources of crates that have such a table.
const LAYERED: [&str; 7] = [
    "provider/capi/src/",
    "provider/src/",
    "mlx5-direct/src/",
    "mlx5-direct/biased-lock/src/",
    "mlx5-direct/verbs/src/",
    "rxe-fallback/src/",
    "hw-tests/mlx5-emu/src/",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("hw-tests is in the workspace").to_owned()
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The folders of the workspace's crates, with a slash at the end, and those of the crates on which
/// each depends.
fn crates() -> BTreeMap<String, BTreeSet<String>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version=1"]).current_dir(root());
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let known: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let folder = |path: &str| -> Option<String> {
        let path = Path::new(path).strip_prefix(root()).ok()?;
        Some(format!("{}/", path.to_str()?))
    };
    let crates = known["packages"].as_array().into_iter().flatten().map(|package| {
        let manifest = package["manifest_path"].as_str().expect("a package has a manifest");
        let own =
            manifest.strip_suffix("/Cargo.toml").and_then(folder).expect("members are in the workspace");
        let needed = package["dependencies"].as_array().into_iter().flatten();
        // Those for tests and builds have a kind.
        let needed = needed.filter(|needed| needed["kind"].is_null());
        (own, needed.filter_map(|needed| folder(needed["path"].as_str()?)).collect())
    });
    crates.collect()
}

fn sources(member: &str) -> Vec<(String, String)> {
    graph::read(&root().join(member).join("src"))
}

/// The circles of one graph, with the arrows in them.
fn circles_in(arrows: &graph::Arrows) -> impl Iterator<Item = String> {
    graph::circles(arrows).into_iter().map(|circle| {
        let inside = |from: &String| -> Vec<&String> {
            arrows[from].iter().filter(|to| circle.contains(to)).collect()
        };
        let lines = circle.iter().map(|from| format!("\n    {from} imports from {:?}", inside(from)));
        format!("circle of {}:{}", circle.len(), lines.collect::<String>())
    })
}

/// The circles of a crate: of its files, and in each folder of the modules there.
fn circles(arrows: &graph::Arrows) -> Vec<String> {
    let folders: BTreeSet<&str> = arrows
        .keys()
        .flat_map(|file| file.match_indices('/').map(|(at, _)| &file[..=at]).chain([""]))
        .collect();
    let mut found: Vec<_> = circles_in(arrows).collect();
    for folder in folders {
        let between = graph::between_modules(arrows, folder);
        found.extend(circles_in(&between).map(|circle| format!("in src/{folder}, {circle}")));
    }
    found
}

#[test]
fn no_crate_has_a_circle() {
    let mut problems = Vec::new();
    let mut files = 0;
    for member in crates().keys() {
        let arrows = graph::arrows(&sources(member));
        files += arrows.len();
        problems.extend(circles(&arrows).into_iter().map(|circle| format!("{member}: {circle}")));
    }
    assert!(files >= 200, "only {files} files were found");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn files_import_from_their_layer_and_below() {
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    for page in PAGES.map(page) {
        for folder in table::folders(&page) {
            let layers = table::layers(&page, folder);
            let arrows = graph::arrows(&graph::read(&root().join(folder)));
            problems.extend(table::problems(&layers, &arrows).into_iter().map(|p| format!("{folder}: {p}")));
            seen.insert(folder.to_owned());
        }
    }
    let without = LAYERED.iter().filter(|folder| !seen.contains(**folder));
    problems.extend(without.map(|folder| format!("{folder} has no table of layers")));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn crates_depend_on_those_that_the_page_names() {
    let page = page("ARCHITECTURE.md");
    let uses = table::uses(&page);
    let crates = crates();
    assert!(crates.len() >= 12, "only {:?} were found", crates.keys());
    let problems: Vec<_> =
        crates.iter().filter_map(|(own, needed)| table::problem(&uses, own, needed)).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_module_with_a_folder_is_a_file_beside_it() {
    let inside = |member: &String| sources(member).into_iter().map(|(file, _)| file).collect::<Vec<_>>();
    let crates = crates();
    let files =
        crates.keys().flat_map(|member| inside(member).into_iter().map(move |f| format!("{member}src/{f}")));
    let found: Vec<_> = files.filter(|file| file.ends_with("/mod.rs")).collect();
    assert!(found.is_empty(), "FOLDER.rs beside FOLDER/, not FOLDER/mod.rs: {found:?}");
}

/// A made-up crate.
fn made_up(files: &[(&str, &str)]) -> graph::Arrows {
    let files: Vec<_> = files.iter().map(|&(file, text)| (file.to_owned(), text.to_owned())).collect();
    graph::arrows(&files)
}

const TOP: (&str, &str) = ("top.rs", "use crate::low::Low; pub struct Top(Low); pub fn f() {}");
const LOW: (&str, &str) = ("low.rs", "pub struct Low; mod inner; pub use inner::Inner;");
const LIB: (&str, &str) = ("lib.rs", "mod low; mod top; pub use low::{Low, Inner}; pub use top::Top;");

#[test]
fn circles_are_noticed() {
    for (inner, noticed) in [
        ("pub struct Inner;", false),
        ("pub struct Inner; #[cfg(test)] mod tests { use crate::top::Top; }", false),
        ("use super::Low; pub struct Inner(Low);", false),
        ("use crate::top::Top; pub struct Inner(Top);", true),
        ("pub fn f() { crate::top::f(); }", true),
        ("pub fn f() { println!(\"{}\", crate::top::f()); }", true),
        ("mod deep { pub fn f() { super::super::super::top::f(); } }", true),
        // By a name that the crate's root gives on.
        ("use crate::Top; pub struct Inner(Top);", true),
        ("use crate::*; pub struct Inner(Top);", true),
    ] {
        // By folder: top uses low, and low/inner uses top.
        let found = circles(&made_up(&[TOP, LOW, LIB, ("low/inner.rs", inner)]));
        let circle = "in src/, circle of 2:\n    low imports from [\"top\"]\n    top imports from [\"low\"]";
        assert_eq!(found, if noticed { vec![circle] } else { vec![] }, "{inner}");
    }
    // By file.
    let both = made_up(&[LIB, TOP, ("low.rs", "use super::top::Top; pub struct Low(Top);")]);
    let found = circles(&both);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("\n    low.rs imports from [\"top.rs\"]"), "{found:?}");
}

#[test]
fn layers_that_are_broken_are_noticed() {
    let arrows = made_up(&[TOP, LOW, LIB, ("low/inner.rs", "pub struct Inner;")]);
    let layers = |rows: &str| {
        let page = format!("Text.\n\n| layer of `x/src/` | files | owns |\n|---|---|---|\n{rows}\nText.");
        table::problems(&table::layers(&page, "x/src/"), &arrows)
    };
    assert!(layers("| first | `top.rs` | a |\n| second | `x/src/low.rs`, `low/` | b |\n").is_empty());
    assert!(layers("| one | `top.rs`, `low.rs` | a |\n| two | `low/` | b |\n").is_empty());
    for (rows, problem) in [
        (
            "| a | `low.rs`, `low/` | |\n| b | `top.rs` | |",
            "top.rs (b) imports from low.rs (a), a layer above",
        ),
        ("| a | `top.rs` | |\n| b | `low.rs` | |", "low/inner.rs is in no layer"),
        ("| a | `top.rs`, `gone.rs` | |\n| b | `low.rs`, `low/` | |", "gone.rs of layer a does not exist"),
        ("| a | `top.rs`, `low/` | |\n| b | `low.rs`, `low/` | |", "low/ is in two layers"),
    ] {
        assert_eq!(layers(rows), [problem]);
    }
}

#[test]
fn dependencies_that_no_row_allows_are_noticed() {
    let page = "| crate | uses | knows |\n|---|---|---|\n| `a/` | `b/` | |\n| `b/`, `b/c/` | | |\n\
                | `tests/` | everything | |\n";
    let uses = table::uses(page);
    let problem = |own: &str, needed: &str| table::problem(&uses, own, &BTreeSet::from([needed.to_owned()]));
    assert_eq!(problem("a/", "b/"), None);
    assert_eq!(problem("tests/", "a/"), None);
    assert_eq!(problem("b/", "a/").as_deref(), Some("b/ may not use {\"a/\"}"));
    assert_eq!(problem("b/c/", "b/").as_deref(), Some("b/c/ may not use {\"b/\"}"));
    assert_eq!(problem("d/", "b/").as_deref(), Some("d/ has no row in the table of crates"));
}
