//! The machine code of `examples/probe.rs` for arm64, which is built but not run here. Needs a
//! cross compiler and objdump: `make arm64` installs them. Without them the test is reported as
//! ignored, and its name says why.

use std::{fs, path::Path, process::Command};

use libtest_mimic::{Arguments, Failed, Trial};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const OBJDUMP: &str = "aarch64-linux-gnu-objdump";
/// The compiler that generated the reviewed code.
const BLESSED_WITH: &str = "rustc 1.95.0";

/// Functions of the probe, and the barriers that each executes in the order of its code:
///
/// - a post makes WQEs visible before their count (`dmb oshst`);
/// - a send makes its count visible before the register's store (`dsb st`), and ends the
///   write-combined copy after it (`hint #6`, DGH);
/// - a poll reads an entry after its ownership test, and returns entries after reading them
///   (`dmb oshld`).
const FUNCTIONS: [(&str, &[&str]); 8] = [
    ("post_one", &["dmb oshst"]),
    ("post_one_address", &["dmb oshst"]),
    ("post_batch", &["dmb oshst"]),
    ("post_slice", &["dmb oshst"]),
    ("send_inline", &["dmb oshst", "dsb st", "hint #0x6"]),
    ("send_segment", &["dmb oshst", "dsb st", "hint #0x6"]),
    ("send_prepared", &["dmb oshst", "dsb st", "hint #0x6"]),
    ("poll_sends", &["dmb oshld"]),
];

fn main() {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let why = if !has(OBJDUMP) || !has("aarch64-linux-gnu-gcc") {
        " (ignored: no cross compiler; make arm64 installs it)"
    } else if !std_is_installed() {
        " (ignored: no standard library for arm64; make arm64 installs it)"
    } else {
        ""
    };
    let trial = |name: &str, test: fn() -> Result<(), Failed>| {
        Trial::test(format!("{name}{why}"), test).with_ignored_flag(!why.is_empty())
    };
    let trials = vec![
        trial("barriers_stand_where_a_weak_memory_order_needs_them", barriers),
        trial("functions_for_arm64_are_the_reviewed_ones", blessed),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn std_is_installed() -> bool {
    let out = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output();
    out.is_ok_and(|out| Path::new(String::from_utf8_lossy(&out.stdout).trim()).exists())
}

fn output(command: &mut Command) -> Result<String, Failed> {
    let out = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if !out.status.success() {
        return Err(format!("{command:?}: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr)).into());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The disassembled probe. Its libraries are stubs, because it is not run.
fn probe() -> Result<String, Failed> {
    // Always the same folder: another would be another flag, and everything would be built again.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("arm64-stubs");
    fs::create_dir_all(&folder)?;
    for library in ["ibverbs", "rdmacm"] {
        let stub = folder.join(format!("lib{library}.so"));
        output(
            Command::new("aarch64-linux-gnu-gcc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(stub),
        )?;
    }
    let printed = output(
        Command::new(env!("CARGO"))
            .args(["build", "--release", "--quiet", "--message-format=json", "--target", TARGET])
            .args(["-p", "mlx5-direct", "--example", "probe"])
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
            .env(
                "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
                format!("-L native={} -C link-arg=-Wl,--unresolved-symbols=ignore-all", folder.display()),
            )
            .env_remove("RUSTFLAGS")
            .current_dir(env!("CARGO_MANIFEST_DIR")),
    )?;
    let path = printed
        .lines()
        .filter(|l| l.contains("\"name\":\"probe\""))
        .find_map(|l| l.split_once("\"executable\":\"")?.1.split_once('"'));
    let path = path.ok_or("cargo did not name the probe")?.0;
    output(Command::new(OBJDUMP).args(["-d", "-C", "--no-show-raw-insn"]).arg(path))
}

/// The instructions of a function without addresses: targets of branches are numbers of lines, and
/// what the linker places has no offset.
fn function(probe: &str, name: &str) -> Result<Vec<String>, Failed> {
    let start = format!("<probe::{name}>:");
    let body = probe.lines().skip_while(|l| !l.ends_with(&start)).skip(1).take_while(|l| !l.is_empty());
    let lines: Vec<(&str, String)> = body
        .filter_map(|l| l.trim().split_once(":\t"))
        .map(|(at, text)| {
            (at, text.split("//").next().unwrap_or_default().replace('\t', " ").trim().to_owned())
        })
        .collect();
    if lines.is_empty() {
        return Err(format!("no function {name} in the probe").into());
    }
    let line_of = |target: &str| lines.iter().position(|(at, _)| *at == target);
    // Registers that have the page of something that the linker placed.
    let mut pages = std::collections::BTreeSet::new();
    let mut text = |line: &str| {
        if let Some((register, _)) = line.strip_prefix("adrp ").and_then(|rest| rest.split_once(',')) {
            pages.insert(register.to_owned());
        } else if let Some((before, offset)) = line.rsplit_once('#')
            && pages
                .iter()
                .any(|page| before.ends_with(&format!("{page}, ")) || before.ends_with(&format!("[{page}, ")))
        {
            let end = if offset.ends_with(']') { "]" } else { "" };
            return format!("{before}placed{end}");
        }
        let Some(place) = line.find(" <") else { return line.to_owned() };
        let (before, target) = line[..place].rsplit_once(' ').unwrap_or(("", &line[..place]));
        match line_of(target) {
            Some(n) => format!("{before} line{n}"),
            None if before.starts_with("adr") => format!("{before} placed"),
            None => format!("{before} out"),
        }
    };
    Ok(lines.iter().map(|(_, line)| text(line)).collect())
}

fn barriers() -> Result<(), Failed> {
    let probe = probe()?;
    for (name, expected) in FUNCTIONS {
        let lines = function(&probe, name)?;
        let is_barrier = |line: &&String| ["dmb", "dsb", "isb", "hint"].iter().any(|b| line.starts_with(b));
        let found: Vec<&str> = lines.iter().filter(is_barrier).map(|line| line.trim_end()).collect();
        for barrier in expected {
            assert!(found.contains(barrier), "{name} has no {barrier}: {found:?}");
        }
        // One thread pays no atomic instruction.
        for op in ["ldaxr", "stlxr", "ldxr", "stxr", "cas", "swp", "ldadd", "ldset"] {
            assert!(!lines.iter().any(|line| line.starts_with(op)), "{name}: {op}");
        }
    }
    Ok(())
}

fn blessed() -> Result<(), Failed> {
    let version = output(Command::new("rustc").arg("--version"))?;
    if !version.starts_with(BLESSED_WITH) {
        eprintln!("the reviewed code is of {BLESSED_WITH}, this is {version}");
        return Ok(());
    }
    let probe = probe()?;
    let mut now = format!(
        "# Functions of examples/probe.rs for arm64, {BLESSED_WITH}, release. BLESS=1 cargo test rewrites this file.\n"
    );
    for (name, _) in FUNCTIONS {
        now += &format!("\n{name}:\n");
        for line in function(&probe, name)? {
            now += &format!("    {line}\n");
        }
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blessed/functions.aarch64.s");
    if std::env::var_os("BLESS").is_some() {
        fs::write(&file, &now)?;
    }
    let before = fs::read_to_string(&file)?;
    assert!(
        before == now,
        "the code changed: review this, then run with BLESS=1\n--- on file\n{before}\n--- now\n{now}"
    );
    Ok(())
}
