//! Which source files of a crate need each other.
//!
//! An arrow goes from a file to the file that defines an item which it names: in a `use`, or with a
//! path in the code, also inside of macro calls. A re-export is followed to the definition and is
//! no arrow itself. Left out are the crate's root, programs in `bin/`, code for tests, and method
//! calls, whose receivers only the compiler knows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use syn::visit::Visit;

type Names = Vec<String>;

/// Each file with the files that it imports from.
pub(crate) type Arrows = BTreeMap<String, BTreeSet<String>>;

/// One module.
#[derive(Default)]
struct Module {
    file: String,
    /// Items that it defines.
    items: BTreeSet<String>,
    /// Names that a `use` brings in, with the path that it names.
    imports: HashMap<String, Names>,
    /// Modules that a `use` takes everything from.
    globs: Vec<Names>,
    /// Paths in the code and in private `use` items.
    paths: BTreeSet<Names>,
}

/// The modules of a crate by their paths.
#[derive(Default)]
struct Crate {
    modules: BTreeMap<Names, Module>,
    /// Modules that only tests have.
    for_tests: BTreeSet<Names>,
}

/// Reads a file into a crate.
struct Reader<'c> {
    found: &'c mut Crate,
    at: Names,
    module: Module,
}

fn for_tests(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| match &attr.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let text = list.tokens.to_string();
            let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            !words.contains(&"not") && ["test", "loom", "doctest"].iter().any(|word| words.contains(word))
        }
        _ => false,
    })
}

impl Reader<'_> {
    fn read_use(&mut self, tree: &syn::UseTree, mut path: Names, public: bool) {
        match tree {
            syn::UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.read_use(&part.tree, path, public);
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.read_use(tree, path.clone(), public));
            }
            syn::UseTree::Glob(_) => self.module.globs.push(path),
            syn::UseTree::Name(syn::UseName { ident }) => {
                self.import(path, &ident.to_string(), &ident.to_string(), public);
            }
            syn::UseTree::Rename(syn::UseRename { ident, rename, .. }) => {
                self.import(path, &ident.to_string(), &rename.to_string(), public);
            }
        }
    }

    fn import(&mut self, mut path: Names, name: &str, to: &str, public: bool) {
        let name = match name {
            "self" => path.pop().unwrap(),
            other => other.to_owned(),
        };
        let to = if to == "self" { name.clone() } else { to.to_owned() };
        path.push(name);
        if !public {
            self.module.paths.insert(path.clone());
        }
        self.module.imports.insert(to, path);
    }

    fn read_tokens(&mut self, tokens: proc_macro2::TokenStream) {
        use proc_macro2::TokenTree as T;
        let mut path: Names = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                T::Punct(punct) if punct.as_char() == ':' => colons += 1,
                T::Ident(ident) => {
                    if colons != 2 {
                        self.end(&mut path);
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                other => {
                    self.end(&mut path);
                    colons = 0;
                    if let T::Group(group) = other {
                        self.read_tokens(group.stream());
                    }
                }
            }
        }
        self.end(&mut path);
    }

    fn end(&mut self, path: &mut Names) {
        if !path.is_empty() {
            self.module.paths.insert(std::mem::take(path));
        }
    }

    /// A module in the braces of another: the file is the same, its paths begin one level below.
    fn read_inner(&mut self, name: &syn::Ident, items: &[syn::Item]) {
        let mut at = self.at.clone();
        at.push(name.to_string());
        let module = Module { file: self.module.file.clone(), ..Module::default() };
        let mut inner = Reader { found: self.found, at, module };
        items.iter().for_each(|item| inner.visit_item(item));
        let (at, module) = (inner.at, inner.module);
        self.found.modules.insert(at, module);
    }
}

impl<'a> Visit<'a> for Reader<'_> {
    fn visit_item(&mut self, item: &'a syn::Item) {
        use syn::Item as I;
        let (attrs, name) = match item {
            I::Const(item) => (&item.attrs, Some(&item.ident)),
            I::Enum(item) => (&item.attrs, Some(&item.ident)),
            I::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
            I::Static(item) => (&item.attrs, Some(&item.ident)),
            I::Struct(item) => (&item.attrs, Some(&item.ident)),
            I::Trait(item) => (&item.attrs, Some(&item.ident)),
            I::Type(item) => (&item.attrs, Some(&item.ident)),
            I::Union(item) => (&item.attrs, Some(&item.ident)),
            I::Impl(item) => (&item.attrs, None),
            I::Mod(item) => {
                let tests = for_tests(&item.attrs);
                match &item.content {
                    Some((_, items)) if !tests => self.read_inner(&item.ident, items),
                    None if tests => {
                        let at = self.at.iter().cloned().chain([item.ident.to_string()]);
                        self.found.for_tests.insert(at.collect());
                    }
                    _ => {}
                }
                return;
            }
            I::Macro(item) => {
                // An item in a macro, as of bitflags!, belongs to this file.
                let words: Vec<_> = item.mac.tokens.clone().into_iter().map(|t| t.to_string()).collect();
                let kinds = ["struct", "enum", "fn", "const", "static"];
                let defined = words.windows(2).filter(|pair| kinds.contains(&pair[0].as_str()));
                self.module.items.extend(defined.map(|pair| pair[1].clone()));
                (&item.attrs, item.ident.as_ref())
            }
            I::Use(item) => {
                if !for_tests(&item.attrs) {
                    let public = !matches!(item.vis, syn::Visibility::Inherited);
                    self.read_use(&item.tree, Vec::new(), public);
                }
                return;
            }
            _ => return syn::visit::visit_item(self, item),
        };
        if for_tests(attrs) {
            return;
        }
        self.module.items.extend(name.map(ToString::to_string));
        syn::visit::visit_item(self, item);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.module.paths.insert(path.segments.iter().map(|part| part.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }

    /// `pub(super)` names no item.
    fn visit_visibility(&mut self, _: &'a syn::Visibility) {}

    fn visit_macro(&mut self, mac: &'a syn::Macro) {
        self.read_tokens(mac.tokens.clone());
        syn::visit::visit_macro(self, mac);
    }
}

impl Crate {
    /// A crate of files with their names and texts.
    fn new(files: &[(String, String)]) -> Self {
        let mut found = Self::default();
        for (file, text) in files {
            let at = file.trim_end_matches(".rs").trim_end_matches("/mod");
            let at: Names = if matches!(at, "lib" | "main") {
                Names::new()
            } else {
                at.split('/').map(str::to_owned).collect()
            };
            let module = Module { file: file.clone(), ..Module::default() };
            let mut reader = Reader { found: &mut found, at, module };
            reader.visit_file(&syn::parse_file(text).unwrap_or_else(|e| panic!("{file}: {e}")));
            let (at, module) = (reader.at, reader.module);
            found.modules.insert(at, module);
        }
        let Self { modules, for_tests } = &mut found;
        modules.retain(|at, _| !for_tests.iter().any(|tests| at.starts_with(tests)));
        found
    }

    /// The file that defines what `path` names in the module `at`; `None` for another crate's.
    fn find(&self, at: &Names, path: &[String], depth: usize) -> Option<&str> {
        let mut at = at.clone();
        let mut rest = path;
        while let [first, others @ ..] = rest {
            match first.as_str() {
                "crate" => at = Names::new(),
                "super" => drop(at.pop()),
                "self" => {}
                _ => break,
            }
            rest = others;
        }
        let module = self.modules.get(&at)?;
        let Some((name, others)) = rest.split_first() else { return Some(&module.file) };
        let mut below = at.clone();
        below.push(name.clone());
        if self.modules.contains_key(&below) {
            return self.find(&below, others, depth);
        }
        if module.items.contains(name) {
            return Some(&module.file);
        }
        if depth == 0 {
            return None;
        }
        if let Some(import) = module.imports.get(name) {
            let whole: Names = import.iter().chain(others).cloned().collect();
            return self.find(&at, &whole, depth - 1);
        }
        module.globs.iter().find_map(|glob| {
            let whole: Names = glob.iter().chain(rest).cloned().collect();
            self.find(&at, &whole, depth - 1).filter(|file| !is_root(file))
        })
    }

    fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (at, module) in self.modules.iter().filter(|(_, module)| !is_root(&module.file)) {
            let to = module.paths.iter().filter_map(|path| self.find(at, path, 8));
            let to = to.filter(|to| *to != module.file && !is_root(to)).map(str::to_owned);
            arrows.entry(module.file.clone()).or_default().extend(to);
        }
        arrows
    }
}

fn is_root(file: &str) -> bool {
    matches!(file, "lib.rs" | "main.rs") || file.starts_with("bin/")
}

/// The names and texts of the source files in this folder and below.
pub(crate) fn read(source: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = vec![source.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(source).unwrap().to_str().unwrap().to_owned();
                files.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files
}

/// The arrows of a crate with these files.
pub(crate) fn arrows(files: &[(String, String)]) -> Arrows {
    Crate::new(files).arrows()
}

/// Arrows between the modules of a folder, each with all that lies below it: between `a` and `b` for
/// `FOLDER/a.rs` and `FOLDER/b/c.rs`.
pub(crate) fn between_modules(arrows: &Arrows, folder: &str) -> Arrows {
    let module = |file: &str| -> Option<String> {
        let rest = file.strip_prefix(folder)?;
        Some(rest.split('/').next()?.trim_end_matches(".rs").to_owned()).filter(|name| name != "mod")
    };
    let mut between = Arrows::new();
    for (from, to) in arrows {
        let Some(from) = module(from) else { continue };
        let to = to.iter().filter_map(|to| module(to)).filter(|to| *to != from);
        between.entry(from.clone()).or_default().extend(to);
    }
    between
}

/// Members that reach each other, of those that reach another and are reached by it.
pub(crate) fn circles(arrows: &Arrows) -> Vec<Vec<String>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = arrows
        .keys()
        .map(|from| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![from.as_str()]);
            while let Some(file) = open.pop() {
                let next = arrows.get(file).into_iter().flatten().map(String::as_str);
                open.extend(next.filter(|&to| seen.insert(to)));
            }
            (from.as_str(), seen)
        })
        .collect();
    let circles: BTreeSet<Vec<String>> = reach
        .iter()
        .filter(|(file, seen)| seen.contains(*file))
        .map(|(file, seen)| {
            seen.iter().filter(|to| reach[**to].contains(file)).map(|&to| to.into()).collect()
        })
        .collect();
    circles.into_iter().collect()
}
