//! Links of the Markdown files: every relative link leads to a file of the repository, and every
//! `#part` of it to a heading there. The book's table of contents names all its pages.
//! The page on storage shows code of an example.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// All Markdown files, but for what builds have written.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_dir() {
            if !matches!(&*name, "target" | ".git" | "cache" | "node_modules") {
                pages(&path, found);
            }
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// The text without fenced code blocks.
fn prose(text: &str) -> String {
    let mut code = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The targets of `[text](target)`.
fn links(prose: &str) -> Vec<&str> {
    prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target).collect()
}

/// The names that a page's headings have in links, as GitHub and mdBook make them.
fn anchors(prose: &str) -> HashSet<String> {
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let name = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(name).collect()
}

/// What is wrong with the links of this page.
fn broken(page: &Path, text: &str) -> Vec<String> {
    let mut wrong = vec![];
    let prose = prose(text);
    for link in links(&prose) {
        if link.contains("://") || link.starts_with("mailto:") {
            continue;
        }
        let (file, part) = link.split_once('#').unwrap_or((link, ""));
        let target = if file.is_empty() { page.to_owned() } else { page.parent().unwrap().join(file) };
        if !target.exists() {
            wrong.push(format!("{}: no {link}", page.display()));
        } else if !part.is_empty() && target.extension().is_some_and(|e| e == "md") {
            let headings = anchors(&self::prose(&fs::read_to_string(&target).unwrap()));
            if !headings.contains(part) {
                wrong.push(format!("{}: no heading for {link}", page.display()));
            }
        }
    }
    wrong
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut all = vec![];
    pages(&root(), &mut all);
    assert!(all.len() > 20, "only {} pages", all.len());
    let wrong: Vec<String> =
        all.iter().flat_map(|page| broken(page, &fs::read_to_string(page).unwrap())).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_book_names_all_its_pages() {
    let book = root().join("book/src");
    let summary = fs::read_to_string(book.join("SUMMARY.md")).unwrap();
    let named: HashSet<&str> = links(&summary).into_iter().collect();
    for entry in fs::read_dir(&book).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let page = name.ends_with(".md") && name != "SUMMARY.md";
        assert!(!page || named.contains(name.as_str()), "SUMMARY.md does not name {name}");
    }
}

/// The code blocks of a page that rustdoc does not take for Rust: they are parts of a program.
fn parts_of_programs(text: &str) -> Vec<&str> {
    let blocks = text.split("```rs\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap()).collect()
}

/// The lines of code, without what depends on the place: indentation and empty lines.
fn lines(code: &str) -> String {
    code.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_page_on_storage_shows_the_example() {
    let page = fs::read_to_string(root().join("book/src/storage.md")).unwrap();
    let example = lines(&fs::read_to_string(root().join("provider/examples/storage.rs")).unwrap());
    let blocks = parts_of_programs(&page);
    assert!(blocks.len() > 5, "only {} blocks", blocks.len());
    for block in blocks {
        assert!(example.contains(&lines(block)), "provider/examples/storage.rs has no longer:\n{block}");
    }
}

#[test]
fn a_link_to_nothing_is_found() {
    let page = root().join("README.md");
    assert_eq!(broken(&page, "[a](#limits) [b](Makefile) [c](https://nowhere.example)").len(), 0);
    assert_eq!(broken(&page, "[a](nothing.md)").len(), 1);
    assert_eq!(broken(&page, "[a](README.md#no-such-heading)").len(), 1);
    assert_eq!(broken(&page, "```\n[a](nothing.md)\n```").len(), 0);
}
