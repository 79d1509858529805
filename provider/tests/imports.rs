//! Which source files of the provider need each other: the circles of the import graph, and the
//! limit that keeps them from growing.
//!
//! An arrow goes from a file to the file that defines an item which it names: in a `use`, or with a
//! path in the code, also inside of macro calls. A re-export is followed to the definition and is
//! no arrow itself. Left out are lib.rs, code for tests, and method calls, whose receivers only the
//! compiler knows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use syn::visit::Visit;

/// The circles that there may be, each with its files. A change that takes a file out of a circle
/// takes its name off here.
const ALLOWED: &[&[&str]] = &[];

type Names = Vec<String>;

/// One module: a file, or the crate's root.
#[derive(Default)]
struct Module {
    file: String,
    /// Items that it defines.
    items: BTreeSet<String>,
    /// Names that a `use` brings in, with the path that it names.
    imports: HashMap<String, Names>,
    /// Modules that a `use` takes everything from.
    globs: Vec<Names>,
    /// Imported names that other modules may use from here.
    reexports: BTreeSet<String>,
    /// Paths in the code and in private `use` items.
    paths: BTreeSet<Names>,
}

fn for_tests(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| match &attr.meta {
        syn::Meta::List(list) => {
            let text = list.tokens.to_string();
            list.path.is_ident("cfg") && (text == "test" || text == "loom" || text == "doctest")
        }
        _ => false,
    })
}

impl Module {
    fn read_use(&mut self, tree: &syn::UseTree, mut path: Names, public: bool) {
        match tree {
            syn::UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.read_use(&part.tree, path, public);
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.read_use(tree, path.clone(), public));
            }
            syn::UseTree::Glob(_) => self.globs.push(path),
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
        if public {
            self.reexports.insert(to.clone());
        } else {
            self.paths.insert(path.clone());
        }
        self.imports.insert(to, path);
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
            self.paths.insert(std::mem::take(path));
        }
    }
}

impl<'a> Visit<'a> for Module {
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
            I::Mod(item) => (&item.attrs, item.content.is_some().then_some(&item.ident)),
            I::Impl(item) => (&item.attrs, None),
            I::Macro(item) => {
                // An item in a macro, as of bitflags!, belongs to this file.
                let words: Vec<_> = item.mac.tokens.clone().into_iter().map(|t| t.to_string()).collect();
                let kinds = ["struct", "enum", "fn", "const", "static"];
                let defined = words.windows(2).filter(|pair| kinds.contains(&pair[0].as_str()));
                self.items.extend(defined.map(|pair| pair[1].clone()));
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
        self.items.extend(name.map(ToString::to_string));
        syn::visit::visit_item(self, item);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.paths.insert(path.segments.iter().map(|part| part.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }

    /// `pub(super)` names no item.
    fn visit_visibility(&mut self, _: &'a syn::Visibility) {}

    fn visit_macro(&mut self, mac: &'a syn::Macro) {
        self.read_tokens(mac.tokens.clone());
        syn::visit::visit_macro(self, mac);
    }
}

/// The modules of a crate by their paths.
struct Crate(BTreeMap<Names, Module>);

impl Crate {
    fn read(source: &Path) -> Self {
        let mut modules = BTreeMap::new();
        let mut folders: Vec<PathBuf> = vec![source.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    let file = path.strip_prefix(source).unwrap().to_str().unwrap().to_owned();
                    let at = file.trim_end_matches(".rs").trim_end_matches("/mod");
                    let at =
                        if at == "lib" { Vec::new() } else { at.split('/').map(str::to_owned).collect() };
                    let text = std::fs::read_to_string(&path).unwrap();
                    let mut module = Module { file, ..Module::default() };
                    module.visit_file(&syn::parse_file(&text).unwrap());
                    modules.insert(at, module);
                }
            }
        }
        Self(modules)
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
        let module = self.0.get(&at)?;
        let Some((name, others)) = rest.split_first() else { return Some(&module.file) };
        let mut below = at.clone();
        below.push(name.clone());
        if self.0.contains_key(&below) {
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
            self.find(&at, &whole, depth - 1).filter(|file| *file != "lib.rs")
        })
    }

    fn arrows(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut arrows = BTreeMap::new();
        for (at, module) in self.0.iter().filter(|(at, _)| !at.is_empty()) {
            let mut to: BTreeSet<&str> =
                module.paths.iter().filter_map(|path| self.find(at, path, 8)).collect();
            to.remove(module.file.as_str());
            to.remove("lib.rs");
            arrows.insert(module.file.as_str(), to);
        }
        arrows
    }
}

/// Files that reach each other, of those that reach another and are reached by it.
fn circles<'a>(arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<Vec<&'a str>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = arrows
        .keys()
        .map(|&from| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
            while let Some(file) = open.pop() {
                open.extend(arrows.get(file).into_iter().flatten().filter(|&&to| seen.insert(to)));
            }
            (from, seen)
        })
        .collect();
    let circles: BTreeSet<Vec<&str>> = arrows
        .keys()
        .filter(|&&file| reach[file].contains(file))
        .map(|&file| reach[file].iter().copied().filter(|to| reach[to].contains(file)).collect())
        .collect();
    circles.into_iter().collect()
}

#[test]
fn files_import_each_other_in_the_known_circles_only() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let provider = Crate::read(&source);
    let arrows = provider.arrows();
    let found = circles(&arrows);
    let grown: Vec<_> = found
        .iter()
        .filter(|circle| !ALLOWED.iter().any(|allowed| circle.iter().all(|file| allowed.contains(file))))
        .collect();
    let mut text = String::new();
    for circle in &grown {
        text += &format!("circle of {} files: {circle:?}\n", circle.len());
        for from in circle.iter() {
            let inside: Vec<_> = arrows[from].iter().filter(|to| circle.contains(to)).collect();
            text += &format!("  {from} imports {inside:?}\n");
        }
    }
    assert!(grown.is_empty(), "these circles of imports are larger than those allowed:\n{text}");
}
