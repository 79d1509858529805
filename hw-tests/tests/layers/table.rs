//! The tables of layers in ARCHITECTURE.md and in the pages of crates.
//!
//! The table of a crate has the heading "layer of `FOLDER/`" over its first column and "files" over
//! its second. Its rows go from top to bottom: a file imports from its own layer and from those
//! below.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::Arrows;

/// One row: a layer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) name: String,
    /// Files, or folders with a slash at the end, from the crate's source folder.
    pub(crate) files: Vec<String>,
}

/// Cells of the rows of the table that has this heading over its first column.
pub(crate) fn rows<'a>(page: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let cells = |line: &'a str| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
    let mut lines = page.lines().skip_while(|line| !line.starts_with(&format!("| {heading} |")));
    let rule = lines.by_ref().nth(1);
    assert!(rule.is_some_and(|rule| rule.starts_with("|-")), "no table with the heading: {heading}");
    lines.take_while(|line| line.starts_with('|')).map(cells).collect()
}

/// The text in backticks.
pub(crate) fn spans(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The folders of source files whose tables of layers are on this page.
pub(crate) fn folders(page: &str) -> Vec<&str> {
    page.lines().filter_map(|line| line.strip_prefix("| layer of `")?.split('`').next()).collect()
}

/// The layers of the crate whose sources are in `folder`, from top to bottom.
pub(crate) fn layers(page: &str, folder: &str) -> Vec<Layer> {
    rows(page, &format!("layer of `{folder}`"))
        .into_iter()
        .map(|cells| {
            let files = spans(cells[1]).into_iter().map(|file| file.trim_start_matches(folder).to_owned());
            Layer { name: cells[0].to_owned(), files: files.collect() }
        })
        .collect()
}

/// Whether an entry is this file, or a folder that has it.
fn covers(entry: &str, file: &str) -> bool {
    entry == file || entry.ends_with('/') && file.starts_with(entry)
}

/// The layer of a file, by the longest entry that covers it, counted from the top.
fn place(layers: &[Layer], file: &str) -> Option<usize> {
    let entries = layers.iter().enumerate().flat_map(|(at, layer)| layer.files.iter().map(move |e| (at, e)));
    entries.filter(|(_, entry)| covers(entry, file)).max_by_key(|(_, entry)| entry.len()).map(|(at, _)| at)
}

/// What does not agree between the layers and the arrows of a crate.
pub(crate) fn problems(layers: &[Layer], arrows: &Arrows) -> Vec<String> {
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    for (layer, entry) in layers.iter().flat_map(|layer| layer.files.iter().map(move |e| (layer, e))) {
        if !arrows.keys().any(|file| covers(entry, file)) {
            problems.push(format!("{entry} of layer {} does not exist", layer.name));
        }
        if !seen.insert(entry) {
            problems.push(format!("{entry} is in two layers"));
        }
    }
    for (from, to) in arrows {
        let Some(own) = place(layers, from) else {
            problems.push(format!("{from} is in no layer"));
            continue;
        };
        for (to, other) in to.iter().filter_map(|to| Some((to, place(layers, to)?))) {
            if other < own {
                let (own, other) = (&layers[own].name, &layers[other].name);
                problems.push(format!("{from} ({own}) imports from {to} ({other}), a layer above"));
            }
        }
    }
    problems
}

/// Which crates a crate may use: `None` for all.
pub(crate) type Uses = BTreeMap<String, Option<BTreeSet<String>>>;

/// The table of crates, whose first columns are the crates and those that they may use.
pub(crate) fn uses(page: &str) -> Uses {
    let row = |cells: Vec<&str>| {
        let all = cells[1] == "everything";
        let may: BTreeSet<String> = spans(cells[1]).into_iter().map(str::to_owned).collect();
        let own: Vec<String> = spans(cells[0]).into_iter().map(str::to_owned).collect();
        own.into_iter().map(move |own| (own, (!all).then(|| may.clone())))
    };
    rows(page, "crate | uses").into_iter().flat_map(row).collect()
}

/// What is wrong with the crates that a crate depends on.
pub(crate) fn problem(uses: &Uses, own: &str, needed: &BTreeSet<String>) -> Option<String> {
    let Some(may) = uses.get(own) else { return Some(format!("{own} has no row in the table of crates")) };
    let more: BTreeSet<_> = needed.difference(may.as_ref()?).collect();
    (!more.is_empty()).then(|| format!("{own} may not use {more:?}"))
}
