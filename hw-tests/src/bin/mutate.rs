//! Mutants of the provider that can be selected at run time: `hw-tests/soak.d/mutants-provider` uses this.
//!
//! One executable contains all chosen mutants, so that they are compiled once. The environment
//! variable `DOORBELL_MUTANT` selects one of them by its number, and `DOORBELL_MUTANTS_REACHED`
//! names a file of bytes: byte N becomes 1 when the code of mutant N is reached.
//!
//! The kinds are those of cargo-mutants, and deleted statements: see [`Sites`].

use clap::{Parser, Subcommand};
use proc_macro2::Span;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, ReturnType, Stmt, Type};

/// Lists mutants of Rust sources, or builds some of them in.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints one line for each mutant: number, place, function and change, with tabs between
    List {
        /// The folder of the crate
        root: PathBuf,
        /// Sources, relative to the folder; their order decides the numbers
        files: Vec<PathBuf>,
    },
    /// Builds mutants into the sources, and prints where each of them is in the result: number,
    /// file, line and column of its begin, line and column of its end, with tabs between
    Apply {
        /// The folder of the crate
        root: PathBuf,
        /// The numbers of the mutants, with commas between
        #[arg(long, value_delimiter = ',')]
        only: Vec<usize>,
        /// The same files in the same order as for the list
        files: Vec<PathBuf>,
    },
}

/// The code that the changed sources call. It allocates nothing, since tests count allocations.
const RUNTIME: &str = r#"
#[allow(warnings, clippy::all, unsafe_code)]
pub(crate) mod mutant_choice {
    use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering::Relaxed};
    static SELECTED: AtomicUsize = AtomicUsize::new(usize::MAX);
    static REACHED: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());
    const SIZE: usize = 1 << 16;

    #[cold]
    fn begin() -> usize {
        // SAFETY: getenv returns null or a text that ends; the file has SIZE bytes.
        unsafe {
            let path = libc::getenv(c"DOORBELL_MUTANTS_REACHED".as_ptr());
            if !path.is_null() {
                let file = libc::open(path, libc::O_RDWR | libc::O_CLOEXEC);
                let access = libc::PROT_READ | libc::PROT_WRITE;
                let map = libc::mmap(std::ptr::null_mut(), SIZE, access, libc::MAP_SHARED, file, 0);
                libc::close(file);
                if map != libc::MAP_FAILED {
                    REACHED.store(map.cast(), Relaxed);
                }
            }
            let number = libc::getenv(c"DOORBELL_MUTANT".as_ptr());
            let selected = if number.is_null() { 0 } else { libc::atol(number) as usize };
            SELECTED.store(selected, Relaxed);
            selected
        }
    }

    #[inline(never)]
    pub(crate) fn selected(number: usize) -> bool {
        let mut selected = SELECTED.load(Relaxed);
        if selected == usize::MAX {
            selected = begin();
        }
        let reached = REACHED.load(Relaxed);
        if !reached.is_null() {
            // SAFETY: the map has SIZE bytes and stays.
            unsafe { (*reached.add(number % SIZE)).store(1, Relaxed) };
        }
        selected == number
    }
}
"#;

/// What a mutant does to the code at its place.
enum Form {
    /// An expression becomes another one.
    Expr(String),
    /// A statement is left out.
    Delete,
    /// A function returns this value at once. The place is empty, behind the opening brace.
    Return(String),
    /// A match arm does not match. The place is its guard, or empty, behind its pattern.
    NoMatch,
}

struct Site {
    place: Range<usize>,
    form: Form,
    function: String,
    line: usize,
    column: usize,
    change: String,
}

/// Finds the mutants of a file, in the order of the source:
///
/// - a function returns a value of its type at once;
/// - a binary operator becomes another of its kind;
/// - `!` and `-` in front of an operand disappear;
/// - a match arm never matches, if there is an arm `_`; a guard is always true or always false;
/// - a call or an assignment that is a statement is left out.
///
/// Not changed: tests, constants, `const` and `unsafe` functions, arguments of macros, `fmt`.
struct Sites<'a> {
    source: &'a str,
    function: Vec<String>,
    found: Vec<Site>,
}

impl Sites<'_> {
    fn text(&self, span: Span) -> &str {
        &self.source[span.byte_range()]
    }

    fn add(&mut self, at: Span, place: Range<usize>, form: Form, change: String) {
        let start = at.start();
        let function = self.function.join("::");
        let change = change.split_whitespace().collect::<Vec<_>>().join(" ");
        self.found.push(Site { place, form, function, line: start.line, column: start.column + 1, change });
    }

    fn body(&mut self, signature: &syn::Signature, block: &syn::Block) {
        if signature.constness.is_some() || signature.unsafety.is_some() || signature.ident == "fmt" {
            return;
        }
        self.function.push(signature.ident.to_string());
        if !block.stmts.is_empty() {
            let brace = block.brace_token.span.open();
            let inner = block.brace_token.span.join().byte_range();
            let is = self.source[inner.start + 1..inner.end - 1].trim().to_owned();
            for value in values(&signature.output) {
                if value != is {
                    let place = brace.byte_range().end..brace.byte_range().end;
                    let change = format!("return {value} at once");
                    self.add(signature.ident.span(), place, Form::Return(value), change);
                }
            }
        }
        visit::visit_block(self, block);
        self.function.pop();
    }

    fn replace(&mut self, at: Span, whole: Span, new: String, change: String) {
        self.add(at, whole.byte_range(), Form::Expr(new), change);
    }
}

/// Values that a function of this type can return.
fn values(output: &ReturnType) -> Vec<String> {
    let ReturnType::Type(_, ty) = output else { return vec!["()".to_owned()] };
    values_of(ty)
}

fn values_of(ty: &Type) -> Vec<String> {
    let default = || vec!["Default::default()".to_owned()];
    match ty {
        Type::Never(_) | Type::ImplTrait(_) => Vec::new(),
        Type::Reference(_) => Vec::new(),
        Type::Tuple(tuple) if tuple.elems.is_empty() => vec!["()".to_owned()],
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else { return default() };
            let inner = |n: usize| match &last.arguments {
                syn::PathArguments::AngleBracketed(args) => match args.args.iter().nth(n) {
                    Some(syn::GenericArgument::Type(ty)) => values_of(ty),
                    _ => Vec::new(),
                },
                _ => Vec::new(),
            };
            match last.ident.to_string().as_str() {
                "bool" => vec!["false".to_owned(), "true".to_owned()],
                "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" | "Count" => {
                    vec!["0".to_owned(), "1".to_owned()]
                }
                "Option" => vec!["None".to_owned()],
                "Result" => inner(0).iter().map(|value| format!("Ok({value})")).collect(),
                "Self" | "Arc" | "Box" => Vec::new(),
                _ => default(),
            }
        }
        _ => default(),
    }
}

fn for_tests(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| match &attr.meta {
        syn::Meta::List(list) => {
            let text = list.tokens.to_string();
            list.path.is_ident("cfg") && (text == "test" || text == "loom")
        }
        meta => meta.path().is_ident("test"),
    })
}

/// What an operator may become.
fn others(op: &BinOp) -> &'static [&'static str] {
    match op {
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::Lt(_) => &["<=", "==", ">"],
        BinOp::Gt(_) => &[">=", "==", "<"],
        BinOp::Le(_) => &["<", ">"],
        BinOp::Ge(_) => &[">", "<"],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::Add(_) => &["-", "*"],
        BinOp::Sub(_) => &["+", "/"],
        BinOp::Mul(_) => &["+", "/"],
        BinOp::Div(_) => &["*", "%"],
        BinOp::Rem(_) => &["/", "+"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::BitAnd(_) => &["|", "^"],
        BinOp::BitOr(_) => &["&", "^"],
        BinOp::BitXor(_) => &["|", "&"],
        BinOp::AddAssign(_) => &["-=", "*="],
        BinOp::SubAssign(_) => &["+=", "/="],
        BinOp::MulAssign(_) => &["+=", "/="],
        BinOp::BitOrAssign(_) => &["&=", "^="],
        BinOp::BitAndAssign(_) => &["|=", "^="],
        _ => &[],
    }
}

/// Whether the operand is a `let` of a chain: such a chain is not an expression.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => {
            matches!(binary.op, BinOp::And(_)) && (has_let(&binary.left) || has_let(&binary.right))
        }
        _ => false,
    }
}

/// Whether the pattern matches everything. A name with a capital letter is one of a variant.
fn takes_all(pattern: &syn::Pat) -> bool {
    match pattern {
        syn::Pat::Wild(_) => true,
        syn::Pat::Ident(name) => {
            name.subpat.is_none() && !name.ident.to_string().starts_with(char::is_uppercase)
        }
        _ => false,
    }
}

/// Whether the statement is a call or an assignment.
fn is_call(expr: &Expr) -> bool {
    match expr {
        Expr::Call(_) | Expr::MethodCall(_) | Expr::Assign(_) => true,
        Expr::Try(inner) => is_call(&inner.expr),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Sites<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_macro(&mut self, _: &'ast syn::Macro) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if for_tests(&item.attrs) {
            return;
        }
        let name = self.text(item.self_ty.span()).split(['<', ' ']).next().unwrap_or("").to_owned();
        self.function.push(name);
        visit::visit_item_impl(self, item);
        self.function.pop();
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !for_tests(&item.attrs) {
            self.body(&item.sig, &item.block);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !for_tests(&item.attrs) {
            self.body(&item.sig, &item.block);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.body(&item.sig, block);
        }
    }

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if let Stmt::Expr(expr, Some(_)) = stmt
            && is_call(expr)
        {
            let change = format!("leave out `{}`", self.text(stmt.span()));
            self.add(stmt.span(), stmt.span().byte_range(), Form::Delete, change);
        }
        visit::visit_stmt(self, stmt);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let (left, right) = (self.text(binary.left.span()), self.text(binary.right.span()));
        if !has_let(&binary.left) && !has_let(&binary.right) {
            let (left, right) = (left.to_owned(), right.to_owned());
            let op = self.text(binary.op.span()).to_owned();
            for other in others(&binary.op) {
                // An operand keeps its place: a lower operator would take the operand of another.
                let new = if other.ends_with('=')
                    && other.len() == 2
                    && !["==", "!=", "<=", ">="].contains(other)
                {
                    format!("{left} {other} {right}")
                } else {
                    format!("({left}) {other} ({right})")
                };
                let change = format!("`{op}` becomes `{other}` in `{left} {op} {right}`");
                self.replace(binary.op.span(), binary.span(), new, change);
            }
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        if !matches!(unary.op, syn::UnOp::Deref(_)) && !matches!(*unary.expr, Expr::Lit(_)) {
            let new = self.text(unary.expr.span()).to_owned();
            let change = format!("`{}` becomes `{new}`", self.text(unary.span()));
            self.replace(unary.span(), unary.span(), format!("({new})"), change);
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_match(&mut self, whole: &'ast syn::ExprMatch) {
        let last_takes_all = whole.arms.last().is_some_and(|arm| arm.guard.is_none() && takes_all(&arm.pat));
        let before_last = whole.arms.len().saturating_sub(1);
        for (n, arm) in whole.arms.iter().enumerate() {
            let pattern = self.text(arm.pat.span()).to_owned();
            match &arm.guard {
                Some((_, guard)) if !has_let(guard) => {
                    let text = self.text(guard.span()).to_owned();
                    for value in ["true", "false"] {
                        let change = format!("the guard `{text}` becomes `{value}`");
                        self.replace(guard.span(), guard.span(), value.to_owned(), change);
                    }
                }
                None if last_takes_all && n < before_last => {
                    let end = arm.pat.span().byte_range().end;
                    let change = format!("the arm `{pattern}` does not match");
                    self.add(arm.pat.span(), end..end, Form::NoMatch, change);
                }
                _ => {}
            }
        }
        visit::visit_expr_match(self, whole);
    }
}

fn sites(source: &str) -> Result<Vec<Site>, syn::Error> {
    let file = syn::parse_file(source)?;
    let mut sites = Sites { source, function: Vec::new(), found: Vec::new() };
    sites.visit_file(&file);
    Ok(sites.found)
}

/// Writes a file with some of its mutants.
struct Writer<'a> {
    source: &'a str,
    /// Outer places come before those inside of them.
    sites: Vec<(usize, &'a Site)>,
    out: String,
    places: Vec<(usize, Range<usize>)>,
}

impl Writer<'_> {
    fn write(&mut self) {
        self.sites
            .sort_by_key(|(number, site)| (site.place.start, std::cmp::Reverse(site.place.end), *number));
        let end = self.range(0..self.source.len(), 0);
        debug_assert_eq!(end, self.sites.len());
    }

    /// Writes this range, with the mutants from `next` on that lie inside. Returns the first mutant
    /// behind it.
    fn range(&mut self, range: Range<usize>, mut next: usize) -> usize {
        let mut at = range.start;
        while next < self.sites.len() && self.sites[next].1.place.start <= range.end {
            let place = self.sites[next].1.place.clone();
            if place.end > range.end || (place.start == range.end && !place.is_empty()) {
                break;
            }
            self.out.push_str(&self.source[at..place.start]);
            next = self.place(&place, next);
            at = place.end;
        }
        self.out.push_str(&self.source[at..range.end]);
        next
    }

    /// Writes all mutants that have this place, and the code of the place with those inside.
    fn place(&mut self, place: &Range<usize>, first: usize) -> usize {
        let same = self.sites[first..].iter().take_while(|(_, site)| site.place == *place).count();
        let own: Vec<_> = self.sites[first..first + same].to_vec();
        let next = first + same;
        let began = self.out.len();
        let mut closing = String::new();
        for (n, (number, site)) in own.iter().enumerate() {
            let choice = format!("crate::mutant_choice::selected({number})");
            let before = self.out.len();
            match &site.form {
                Form::Expr(new) => {
                    let open = if n == 0 { "(" } else { "" };
                    let _ = write!(self.out, "{open}if {choice} {{ {new} }} else ");
                    closing = " })".to_owned();
                }
                Form::Delete => {
                    let _ = write!(self.out, "if !{choice} {{ ");
                    closing = " }".to_owned();
                }
                Form::Return(value) => {
                    let _ = write!(self.out, " if {choice} {{ return {value}; }}");
                }
                Form::NoMatch => {
                    let _ = write!(self.out, " if !{choice}");
                }
            }
            self.places.push((*number, before..self.out.len()));
        }
        if matches!(own[0].1.form, Form::Expr(_)) {
            self.out.push_str("{ ");
        }
        let next = if place.is_empty() { next } else { self.range(place.clone(), next) };
        self.out.push_str(&closing);
        if !place.is_empty() {
            // Errors can also name the whole.
            self.places.extend(own.iter().map(|(number, _)| (*number, began..self.out.len())));
        }
        next
    }
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let (root, files, only) = match cli.command {
        Command::List { root, files } => (root, files, None),
        Command::Apply { root, only, files } => (root, files, Some(BTreeSet::from_iter(only))),
    };
    // 0 means that no mutant is selected.
    let mut number = 0;
    for file in &files {
        let path = root.join(file);
        let source = std::fs::read_to_string(&path)?;
        let found = sites(&source)?;
        let numbered = found.iter().map(|site| {
            number += 1;
            (number, site)
        });
        let Some(only) = &only else {
            for (number, site) in numbered {
                let Site { line, column, function, change, .. } = site;
                println!("{number}\t{}:{line}:{column}\t{function}\t{change}", file.display());
            }
            continue;
        };
        let sites: Vec<_> = numbered.filter(|(number, _)| only.contains(number)).collect();
        let mut writer = Writer { source: &source, sites, out: String::new(), places: Vec::new() };
        writer.write();
        for (number, place) in &writer.places {
            let (from, to) = (position(&writer.out, place.start), position(&writer.out, place.end));
            println!("{number}\t{}\t{}\t{}\t{}\t{}", file.display(), from.0, from.1, to.0, to.1);
        }
        if !writer.places.is_empty() {
            std::fs::write(&path, writer.out)?;
        }
    }
    if only.is_some() {
        add_runtime(&root.join("src/lib.rs"))?;
        // This test includes a source of the crate.
        add_runtime(&root.join("tests/slots_order.rs"))?;
    }
    Ok(())
}

/// Line and column, both from 1.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

fn add_runtime(path: &Path) -> anyhow::Result<()> {
    let source = std::fs::read_to_string(path)?;
    std::fs::write(path, source + RUNTIME)?;
    Ok(())
}
