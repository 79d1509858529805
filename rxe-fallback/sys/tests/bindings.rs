//! `src/bindings.rs` against the headers of this machine.
//!
//! The C compiler says whether sizes, offsets and constants agree, with any rdma-core from 44 on.
//! libclang says whether the file is what bindgen makes of the headers, with the version that the
//! file was made from. `UPDATE_BINDINGS=1 cargo test -p doorbell-sys` writes the file, and the
//! list of layouts, anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use bindgen::{EnumVariation, Formatter, RustEdition, RustTarget};
use doorbell_sys::*;
use libtest_mimic::{Arguments, Failed, Trial};

/// The version of libibverbs that the files were made from: rdma-core 44, Debian 12.
const MADE_FROM: &str = "1.14.44";

/// `src/verbs.rs` has these: they hold unions that have no name in C.
const BY_HAND: [&str; 6] =
    ["ibv_wc", "ibv_send_wr", "ibv_ops_wr", "ibv_async_event", "rdma_addr", "rdma_cm_event"];

/// The crate libc has these.
const OF_LIBC: &str = "sockaddr.*|timespec|in6?_addr.*|pthread_(mutex|cond)_t|sa_family_t|in_(addr|port)_t|__(time|syscall_slong)_t|__pthread_.*|__atomic_wide_counter.*";

/// Enums whose values are or'ed.
const BITS: &str = "ibv_(.*_flags2?|.*_mask|.*_bits|.*_caps)|ib_uverbs_access_flags";

fn main() {
    let arguments = Arguments::from_args();
    let version = libibverbs();
    if std::env::var_os("UPDATE_BINDINGS").is_some() {
        std::fs::write(path("src/bindings.rs"), generate(false)).unwrap();
        std::fs::write(path("tests/layouts.in"), layouts_of(&generate(true))).unwrap();
        println!("written from libibverbs {version}; run the test again");
        return;
    }
    let reason = format!("made from libibverbs {MADE_FROM}, here is {version}");
    let other = !version.starts_with(MADE_FROM);
    let trials = vec![
        Trial::test("the_c_compiler_agrees", c_compiler_agrees),
        Trial::test("the_files_are_what_bindgen_makes", files_are_current)
            .with_kind(if other { reason } else { String::new() })
            .with_ignored_flag(other),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn libibverbs() -> String {
    let output =
        Command::new("pkg-config").args(["--modversion", "libibverbs"]).output().expect("pkg-config");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// What bindgen makes of the headers for the names in `names.txt`.
fn generate(layout_tests: bool) -> String {
    let names = std::fs::read_to_string(path("tests/names.txt")).unwrap();
    let mut builder = bindgen::builder()
        .header(path("tests/headers.h").to_str().unwrap())
        .raw_line("// Made by tests/bindings.rs from the headers of rdma-core 44. Do not edit.\n")
        .rust_target(RustTarget::stable(88, 0).unwrap())
        .rust_edition(RustEdition::Edition2024)
        .formatter(Formatter::Prettyplease)
        .layout_tests(layout_tests)
        .generate_comments(false)
        .derive_debug(false)
        .prepend_enum_name(false)
        .default_enum_style(EnumVariation::ModuleConsts)
        .bitfield_enum(BITS)
        .rustified_enum("ibv_event_type")
        .blocklist_type(OF_LIBC)
        .blocklist_type(format!("({})(__bindgen.*)?", BY_HAND.join("|")));
    for name in names.lines() {
        builder = builder.allowlist_function(name).allowlist_type(name);
    }
    builder.generate().expect("libclang reads the headers").to_string()
}

fn files_are_current() -> Result<(), Failed> {
    for (name, made) in
        [("src/bindings.rs", generate(false)), ("tests/layouts.in", layouts_of(&generate(true)))]
    {
        if std::fs::read_to_string(path(name))? != made {
            return Err(format!("{name} is out of date: UPDATE_BINDINGS=1 cargo test -p doorbell-sys").into());
        }
    }
    Ok(())
}

/// The types and fields that bindgen's own layout tests name, as lines of `layouts.in`.
fn layouts_of(bindings: &str) -> String {
    let mut text = String::from("// Made by bindings.rs. Do not edit.\n{\n");
    for fact in bindings.split('"').filter(|fact| !fact.contains("__bindgen_")) {
        if let Some(name) = fact.strip_prefix("Size of ") {
            let kind = if bindings.contains(&format!("pub union {name} ")) { "union" } else { "struct" };
            writeln!(text, "    size!(\"{kind} {name}\", {name});").unwrap();
        } else if let Some((name, field)) =
            fact.strip_prefix("Offset of field: ").and_then(|f| f.split_once("::"))
        {
            let kind = if bindings.contains(&format!("pub union {name} ")) { "union" } else { "struct" };
            writeln!(text, "    offset!(\"{kind} {name}\", {name}, {field});").unwrap();
        }
    }
    text + "}\n"
}

/// C expressions with the values that they have in Rust.
type Facts = BTreeMap<String, i64>;

macro_rules! facts {
    ($facts:ident) => {
        macro_rules! size {
            ($c:literal, $rust:ty) => {
                $facts.insert(concat!("sizeof(", $c, ")").to_owned(), size_of::<$rust>() as i64);
                $facts.insert(concat!("_Alignof(", $c, ")").to_owned(), align_of::<$rust>() as i64);
            };
        }
        macro_rules! offset {
            ($c:literal, $rust:ty, $field:ident) => {
                let field = stringify!($field).trim_end_matches('_');
                $facts.insert(format!("offsetof({}, {field})", $c), offset_of!($rust, $field) as i64);
            };
            ($c:literal, $rust:ty, $field:ident is $in_c:literal) => {
                $facts.insert(format!("offsetof({}, {})", $c, $in_c), offset_of!($rust, $field) as i64);
            };
        }
    };
}

/// Layouts of the types that bindgen made.
fn generated_layouts(facts: &mut Facts) {
    facts!(facts);
    include!("layouts.in");
}

/// Layouts of the types in `src/verbs.rs`.
#[rustfmt::skip]
fn layouts_by_hand(facts: &mut Facts) {
    facts!(facts);
    macro_rules! all {
        ($c:literal, $rust:ty: $($field:ident $(is $in_c:literal)?),* $(,)?) => {
            size!($c, $rust);
            $(offset!($c, $rust, $field $(is $in_c)?);)*
        };
    }
    all!("struct ibv_wc", ibv_wc: wr_id, status, opcode, vendor_err, byte_len,
        imm_data_invalidated_rkey_union is "imm_data", imm_data_invalidated_rkey_union is "invalidated_rkey",
        qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits);
    all!("struct ibv_send_wr", ibv_send_wr: wr_id, next, sg_list, num_sge, opcode, send_flags,
        imm_data_invalidated_rkey_union is "imm_data", imm_data_invalidated_rkey_union is "invalidate_rkey",
        wr, qp_type, bind_mw_tso_union is "bind_mw", bind_mw_tso_union is "tso");
    all!("__typeof__(((struct ibv_send_wr *)0)->wr)", wr_t: rdma, atomic, ud);
    all!("__typeof__(((struct ibv_send_wr *)0)->wr.rdma)", rdma_t: remote_addr, rkey);
    all!("__typeof__(((struct ibv_send_wr *)0)->wr.atomic)", atomic_t: remote_addr, compare_add, swap, rkey);
    all!("__typeof__(((struct ibv_send_wr *)0)->wr.ud)", ud_t: ah, remote_qpn, remote_qkey);
    all!("__typeof__(((struct ibv_send_wr *)0)->qp_type)", qp_type_t: xrc);
    all!("__typeof__(((struct ibv_send_wr *)0)->qp_type.xrc)", xrc_t: remote_srqn);
    all!("__typeof__(((struct ibv_send_wr *)0)->bind_mw)", bind_mw_t: mw, rkey, bind_info);
    all!("__typeof__(((struct ibv_send_wr *)0)->tso)", tso_t: hdr, hdr_sz, mss);
    all!("struct ibv_async_event", ibv_async_event: element, event_type);
    all!("__typeof__(((struct ibv_async_event *)0)->element)", ibv_async_event_element_t: cq, qp, srq, wq, port_num);
    all!("struct rdma_addr", rdma_addr: src_addr_union is "src_storage", dst_addr_union is "dst_storage", addr);
    all!("struct rdma_cm_event", rdma_cm_event: id, listen_id, event, status, param);
    all!("__typeof__(((struct rdma_cm_event *)0)->param)", param_t: conn, ud);
}

/// The constants in the file, by their name in C.
fn constants(facts: &mut Facts) {
    let bindings = std::fs::read_to_string(path("src/bindings.rs")).unwrap();
    for line in bindings.lines().map(str::trim) {
        let (name, value) = match line.strip_prefix("pub const ").and_then(|rest| rest.split_once(": ")) {
            Some((name, rest)) => match rest.split_once(" = ") {
                Some((_, value)) => (name, value.trim_end_matches(';')),
                None => continue,
            },
            // A variant of a Rust enum.
            None => match line.strip_suffix(',').and_then(|line| line.split_once(" = ")) {
                Some((name, value)) => (name, value),
                None => continue,
            },
        };
        // Of a bit: `ibv_access_flags(1)`.
        let value = value.rsplit('(').next().unwrap().trim_end_matches(')');
        if let Ok(value) = value.parse() {
            facts.insert(name.to_owned(), value);
        }
    }
}

fn c_compiler_agrees() -> Result<(), Failed> {
    let mut facts = Facts::new();
    generated_layouts(&mut facts);
    layouts_by_hand(&mut facts);
    let layouts = facts.len();
    constants(&mut facts);
    // As many as there are, so that a parser that finds none is noticed.
    assert!(layouts > 300 && facts.len() - layouts > 300, "{layouts} of {}", facts.len());
    let in_c = values_in_c(facts.keys())?;
    let made_from = libibverbs().starts_with(MADE_FROM);
    let context = in_c["offsetof(struct verbs_context, context)"];
    let mut different = String::new();
    for (what, rust) in &facts {
        let c = in_c[what];
        let agree = if what.contains("verbs_context") {
            // libibverbs allocates this struct, which grows at its front. What counts is the
            // distance from the member `context`.
            what.contains("of(s") && !what.contains("offsetof")
                || context - c == facts["offsetof(struct verbs_context, context)"] - rust
        } else if what.starts_with("sizeof") && !made_from {
            // Structs that the library allocates or that come with their size grow at the end.
            c >= *rust
        } else {
            c == *rust
        };
        if !agree {
            writeln!(different, "{what} is {c} in C and {rust} in Rust").unwrap();
        }
    }
    if different.is_empty() { Ok(()) } else { Err(different.into()) }
}

/// What a C program prints for these expressions.
fn values_in_c<'a>(expressions: impl Iterator<Item = &'a String>) -> Result<Facts, Failed> {
    let headers = std::fs::read_to_string(path("tests/headers.h"))?;
    let mut program = format!("#include <stdio.h>\n#include <stddef.h>\n{headers}int main(void) {{\n");
    for expression in expressions {
        writeln!(program, "printf(\"%s\\t%lld\\n\", \"{expression}\", (long long)({expression}));")?;
    }
    program.push_str("return 0; }\n");
    let folder = tempfile::tempdir()?;
    let (source, binary) = (folder.path().join("facts.c"), folder.path().join("facts"));
    std::fs::write(&source, program)?;
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let compiled = Command::new(&compiler).arg("-o").arg(&binary).arg(&source).output()?;
    if !compiled.status.success() {
        return Err(String::from_utf8_lossy(&compiled.stderr).into_owned().into());
    }
    let output = String::from_utf8(Command::new(&binary).output()?.stdout)?;
    output
        .lines()
        .map(|line| {
            let (expression, value) = line.split_once('\t').ok_or("expression and value")?;
            Ok((expression.to_owned(), value.parse()?))
        })
        .collect()
}
