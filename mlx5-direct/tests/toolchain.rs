//! Tests that need a tool in addition to cargo: a C compiler, objdump, valgrind. If the tool is
//! missing, the test is reported as ignored, and its name says why.

use std::{
    collections::BTreeMap,
    fs,
    mem::{offset_of, size_of},
    path::{Path, PathBuf},
    process::Command,
};

use libtest_mimic::{Arguments, Failed, Trial};
use mlx5_direct::{
    cqe::{self, RawCqe},
    dv::abi,
    wqe,
};

fn main() {
    let args = Arguments::from_args();
    let trials = vec![
        needs("cc", "dv_structs_and_queue_layouts_match_the_installed_header", layouts_match_the_header),
        needs("objdump", "hot_loops_have_no_fence_no_lock_and_no_call", hot_loops_are_plain),
        needs("objdump", "hot_loops_are_the_reviewed_ones", hot_loops_are_blessed),
        needs("objdump", "posts_to_send_queues_have_one_fence_and_no_lock", sends_are_plain),
        needs("objdump", "functions_of_send_queues_are_the_reviewed_ones", sends_are_blessed),
        needs("valgrind", "hot_loops_stay_within_their_instruction_counts", counts_are_within_limits),
    ];
    libtest_mimic::run(&args, trials).exit();
}

fn needs(tool: &str, name: &str, test: fn() -> Result<(), Failed>) -> Trial {
    let here = Command::new(tool).arg("--version").output().is_ok();
    let x86 = cfg!(target_arch = "x86_64") || tool == "cc";
    let name = match (here, x86) {
        (true, true) => name.to_owned(),
        (false, _) => format!("{name} (ignored: no {tool})"),
        (_, false) => format!("{name} (ignored: not x86-64)"),
    };
    Trial::test(name, test).with_ignored_flag(!(here && x86))
}

/// Runs a command and returns what it printed.
fn output(command: &mut Command) -> Result<String, Failed> {
    let out = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if !out.status.success() {
        return Err(format!("{command:?}: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr)).into());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

// ---- layouts against the header ----

fn layouts_match_the_header() -> Result<(), Failed> {
    macro_rules! expected {
        ($($c:literal, $field:literal => $rust:expr;)*) => { vec![$(($c, $field, $rust)),*] };
    }
    let mut offsets = expected! {
        "mlx5dv_qp", "dbrec" => offset_of!(abi::DvQp, dbrec);
        "mlx5dv_qp", "sq.buf" => offset_of!(abi::DvQp, sq.buf);
        "mlx5dv_qp", "sq.wqe_cnt" => offset_of!(abi::DvQp, sq.wqe_cnt);
        "mlx5dv_qp", "sq.stride" => offset_of!(abi::DvQp, sq.stride);
        "mlx5dv_qp", "rq.buf" => offset_of!(abi::DvQp, rq.buf);
        "mlx5dv_qp", "rq.stride" => offset_of!(abi::DvQp, rq.stride);
        "mlx5dv_qp", "bf.reg" => offset_of!(abi::DvQp, bf.reg);
        "mlx5dv_qp", "bf.size" => offset_of!(abi::DvQp, bf.size);
        "mlx5dv_qp", "comp_mask" => offset_of!(abi::DvQp, comp_mask);
        "mlx5dv_ah", "av" => offset_of!(abi::DvAh, av);
        "mlx5dv_obj", "qp.in" => offset_of!(abi::DvObj, qp.object);
        "mlx5dv_obj", "ah.in" => offset_of!(abi::DvObj, ah.object);
        "mlx5dv_obj", "ah.out" => offset_of!(abi::DvObj, ah.out);
        "mlx5dv_srq", "buf" => offset_of!(abi::DvSrq, buf);
        "mlx5dv_srq", "dbrec" => offset_of!(abi::DvSrq, dbrec);
        "mlx5dv_srq", "stride" => offset_of!(abi::DvSrq, stride);
        "mlx5dv_srq", "head" => offset_of!(abi::DvSrq, head);
        "mlx5dv_srq", "tail" => offset_of!(abi::DvSrq, tail);
        "mlx5dv_srq", "comp_mask" => offset_of!(abi::DvSrq, comp_mask);
        "mlx5dv_srq", "srqn" => offset_of!(abi::DvSrq, srqn);
        "mlx5dv_cq", "buf" => offset_of!(abi::DvCq, buf);
        "mlx5dv_cq", "dbrec" => offset_of!(abi::DvCq, dbrec);
        "mlx5dv_cq", "cqe_cnt" => offset_of!(abi::DvCq, cqe_cnt);
        "mlx5dv_cq", "cqe_size" => offset_of!(abi::DvCq, cqe_size);
        "mlx5dv_cq", "cq_uar" => offset_of!(abi::DvCq, cq_uar);
        "mlx5dv_cq", "cqn" => offset_of!(abi::DvCq, cqn);
        "mlx5dv_cq", "comp_mask" => offset_of!(abi::DvCq, comp_mask);
        "mlx5dv_obj", "cq.in" => offset_of!(abi::DvObj, cq.object);
        "mlx5dv_obj", "cq.out" => offset_of!(abi::DvObj, cq.out);
        "mlx5dv_obj", "srq.in" => offset_of!(abi::DvObj, srq.object);
        "mlx5dv_obj", "srq.out" => offset_of!(abi::DvObj, srq.out);
        "mlx5dv_qp_init_attr", "comp_mask" => offset_of!(abi::DvQpInit, comp_mask);
        "mlx5dv_qp_init_attr", "create_flags" => offset_of!(abi::DvQpInit, create_flags);
        "mlx5dv_context", "flags" => offset_of!(abi::DvContext, flags);
        "mlx5dv_context", "comp_mask" => offset_of!(abi::DvContext, comp_mask);
        "mlx5_wqe_srq_next_seg", "next_wqe_index" => wqe::NEXT_INDEX_OFFSET;
        "mlx5_wqe_data_seg", "addr" => wqe::FIRST_ADDR_OFFSET - wqe::FIRST_SEG_OFFSET;
        "mlx5_cqe64", "srqn_uidx" => offset_of!(RawCqe, srqn_uidx);
        "mlx5_cqe64", "imm_inval_pkey" => offset_of!(RawCqe, imm_inval_pkey);
        "mlx5_cqe64", "byte_cnt" => offset_of!(RawCqe, byte_cnt);
        "mlx5_cqe64", "timestamp" => offset_of!(RawCqe, timestamp);
        "mlx5_cqe64", "sop_drop_qpn" => offset_of!(RawCqe, sop_drop_qpn);
        "mlx5_cqe64", "wqe_counter" => offset_of!(RawCqe, wqe_counter);
        "mlx5_cqe64", "op_own" => offset_of!(RawCqe, op_own);
        "mlx5_err_cqe", "vendor_err_synd" => cqe::VENDOR_SYNDROME_OFFSET;
        "mlx5_err_cqe", "syndrome" => cqe::VENDOR_SYNDROME_OFFSET + 1;
    };
    offsets.extend(wqe::send::OFFSETS);
    // The structs here are at least as large, so that the library never writes past them.
    let sizes = [
        ("mlx5dv_srq", size_of::<abi::DvSrq>()),
        ("mlx5dv_cq", size_of::<abi::DvCq>()),
        ("mlx5dv_qp", size_of::<abi::DvQp>()),
        ("mlx5dv_ah", size_of::<abi::DvAh>()),
        ("mlx5dv_obj", size_of::<abi::DvObj>()),
        ("mlx5dv_context", size_of::<abi::DvContext>()),
        ("mlx5dv_qp_init_attr", size_of::<abi::DvQpInit>()),
    ];
    let mut exact_sizes = vec![
        ("mlx5_wqe_srq_next_seg", wqe::SEGMENT_BYTES),
        ("mlx5_wqe_data_seg", wqe::SEGMENT_BYTES),
        ("mlx5_cqe64", size_of::<RawCqe>()),
        ("mlx5_err_cqe", size_of::<RawCqe>()),
    ];
    exact_sizes.extend(wqe::send::SIZES);
    let mut values = vec![
        ("MLX5DV_OBJ_QP", abi::OBJ_QP),
        ("MLX5DV_OBJ_AH", abi::OBJ_AH),
        ("MLX5DV_OBJ_CQ", abi::OBJ_CQ),
        ("MLX5DV_OBJ_SRQ", abi::OBJ_SRQ),
        ("MLX5DV_SRQ_MASK_SRQN", abi::SRQ_MASK_SRQN),
        ("MLX5DV_CONTEXT_FLAGS_CQE_V1", abi::CONTEXT_FLAGS_CQE_V1),
        ("MLX5_INVALID_LKEY", wqe::TERMINATOR_LKEY.into()),
    ];

    values.extend(wqe::send::VALUES);

    let mut c = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/mlx5dv.h>\nint main(void) {\n",
    );
    for (s, f, _) in &offsets {
        c += &format!("printf(\"{s}.{f} %zu\\n\", offsetof(struct {s}, {f}));\n");
    }
    for (s, _) in sizes.iter().chain(&exact_sizes) {
        c += &format!("printf(\"{s} %zu\\n\", sizeof(struct {s}));\n");
    }
    for (v, _) in &values {
        c += &format!("printf(\"{v} %zu\\n\", (size_t)({v}));\n");
    }
    c += "return 0;\n}\n";

    let dir = tempfile::tempdir()?;
    let (source, program) = (dir.path().join("layout.c"), dir.path().join("layout"));
    fs::write(&source, c)?;
    output(Command::new("cc").arg(&source).arg("-o").arg(&program))?;
    let printed = output(&mut Command::new(&program))?;
    let header: BTreeMap<&str, usize> = printed
        .lines()
        .filter_map(|l| l.rsplit_once(' '))
        .map(|(k, v)| (k, v.parse().expect("a number")))
        .collect();

    for (s, f, rust) in offsets {
        assert_eq!(header[format!("{s}.{f}").as_str()], rust, "offset of {s}.{f}");
    }
    for (s, rust) in sizes {
        assert!(rust >= header[s], "{s} has {} bytes, ours {rust}", header[s]);
    }
    for (s, rust) in exact_sizes {
        assert_eq!(header[s], rust, "size of {s}");
    }
    for (v, rust) in values {
        assert_eq!(header[v] as u64, rust, "{v}");
    }
    Ok(())
}

// ---- machine code and instruction counts of examples/probe.rs ----

fn probe() -> Result<PathBuf, Failed> {
    let printed = output(
        Command::new(env!("CARGO"))
            .args(["build", "--release", "--quiet", "--message-format=json", "-p", "mlx5-direct"])
            .args(["--example", "probe"])
            .current_dir(env!("CARGO_MANIFEST_DIR")),
    )?;
    let path = printed
        .lines()
        .filter(|l| l.contains("\"name\":\"probe\""))
        .find_map(|l| l.split_once("\"executable\":\"")?.1.split_once('"'));
    Ok(PathBuf::from(path.ok_or("cargo did not name the probe")?.0))
}

/// The instructions of a function of the probe, in order: address and text.
fn disassemble(probe: &Path, function: &str) -> Result<Vec<(u64, String)>, Failed> {
    let text = output(Command::new("objdump").args(["-d", "-C", "--no-show-raw-insn"]).arg(probe))?;
    let start = format!("<probe::{function}>:");
    let body = text.lines().skip_while(|l| !l.ends_with(&start)).skip(1).take_while(|l| !l.is_empty());
    let lines: Vec<_> = body
        .filter_map(|l| l.split_once(":\t"))
        .map(|(at, text)| {
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            (u64::from_str_radix(at.trim(), 16).expect("an address"), text)
        })
        .collect();
    if lines.is_empty() { Err(format!("no function {function} in the probe").into()) } else { Ok(lines) }
}

/// The loops that fill a run of slots: straight-line code from the target of a backward jump to
/// that jump, with a store for body and cookie. Leaves out the search for the next run and other
/// backward jumps.
fn run_loops(lines: &[(u64, String)]) -> Vec<&[(u64, String)]> {
    let mut loops: Vec<(usize, usize)> = vec![];
    for (end, (at, text)) in lines.iter().enumerate() {
        let mut words = text.split(' ');
        let (Some(op), Some(target)) = (words.next(), words.next()) else { continue };
        let Ok(target) = u64::from_str_radix(target, 16) else { continue };
        if op.starts_with('j')
            && target <= *at
            && let Some(start) = lines.iter().position(|(a, _)| *a == target)
        {
            loops.push((start, end));
        }
    }
    let fills = |body: &&[(u64, String)]| {
        let has = |op: &str| body.iter().any(|(_, t)| t.starts_with(op));
        let stores = body.iter().filter(|(_, t)| is_store(t)).count();
        body.len() <= 32 && stores >= 2 && !has("ret") && !has("jmp") && !has("pop")
    };
    loops.iter().map(|l| &lines[l.0..=l.1]).filter(fills).collect()
}

const LOOPS: [&str; 4] = ["post_batch", "post_batch_address", "post_slice", "post_slice_address"];

fn hot_loops_are_plain() -> Result<(), Failed> {
    let probe = probe()?;
    for function in LOOPS {
        let lines = disassemble(&probe, function)?;
        let bad = ["mfence", "lfence", "sfence", "lock ", "xchg "];
        for (at, text) in &lines {
            let padding = text.starts_with("xchg %ax,%ax");
            assert!(padding || !bad.iter().any(|b| text.starts_with(b)), "{function}: {text} at {at:x}");
        }
        let loops = run_loops(&lines);
        assert!(!loops.is_empty(), "{function} has no loop");
        for body in loops {
            let texts: Vec<&str> = body.iter().map(|(_, t)| t.as_str()).collect();
            assert!(!texts.iter().any(|t| t.starts_with("call")), "{function} calls in its loop: {texts:#?}");
            // Each WQE needs a load and a store for its body and for its cookie. A read of queue
            // memory, or a counter in memory, would add a load.
            let stores = texts.iter().filter(|t| is_store(t)).count();
            let loads = texts.iter().filter(|t| is_load(t)).count();
            assert!(loads <= stores + 1, "{function}: {loads} loads for {stores} stores: {texts:#?}");
        }
    }
    Ok(())
}

/// The functions of send queues, and the fences of each in the code that is not in a call. The
/// poll takes no fence, a post one: between the record and the register.
const SENDS: [(&str, usize); 6] = [
    ("send_inline", 1),
    ("send_long", 1),
    ("send_segment", 1),
    ("send_prepared", 1),
    ("send_template", 1),
    ("poll_sends", 0),
];

fn sends_are_plain() -> Result<(), Failed> {
    let probe = probe()?;
    for (function, fences) in SENDS {
        let lines = disassemble(&probe, function)?;
        let count = |op: &str| lines.iter().filter(|(_, text)| text.starts_with(op)).count();
        assert_eq!(count("sfence"), fences, "{function}: sfence");
        for op in ["mfence", "lfence", "lock ", "xchg %r", "xchg %e"] {
            assert_eq!(count(op), 0, "{function}: {op}");
        }
    }
    Ok(())
}

/// The text of a function without addresses: targets of jumps are numbers of lines, and everything
/// that the linker places has no offset.
fn without_addresses(lines: &[(u64, String)]) -> String {
    let mut text = String::new();
    for (_, line) in lines.iter().filter(|(_, line)| line != "int3") {
        let line = line.split('#').next().unwrap_or_default().trim_end();
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let target = words.get(1).and_then(|word| u64::from_str_radix(word, 16).ok());
        if words[0].starts_with('j')
            && let Some(target) = target
        {
            let at = lines.iter().position(|(at, _)| *at == target);
            words = vec![words[0].clone(), at.map_or("out".into(), |at| format!("line{at}"))];
        } else if words[0] == "call" && target.is_some() {
            words.remove(1);
        }
        for word in &mut words {
            if let Some(end) = word.find("(%rip)") {
                let start = word[..end].rfind([',', '*']).map_or(0, |at| at + 1);
                word.replace_range(start..end, "placed");
            }
        }
        text += &format!("    {}\n", words.join(" "));
    }
    text
}

fn sends_are_blessed() -> Result<(), Failed> {
    let Some(compiler) = reviewed_compiler()? else { return Ok(()) };
    let probe = probe()?;
    let mut text = format!(
        "# The functions of examples/probe.rs that use a send queue, {compiler}, release. BLESS=1 cargo test rewrites this file.\n"
    );
    for (function, _) in SENDS {
        text += &format!("\n{function}:\n{}", without_addresses(&disassemble(&probe, function)?));
    }
    compare_with_blessed("sends.x86_64.s", &text)
}

fn is_store(text: &str) -> bool {
    text.starts_with("mov") && text.ends_with(')')
}

fn is_load(text: &str) -> bool {
    text.contains('(') && !text.ends_with(')') && !text.starts_with("lea") && !text.starts_with("nop")
}

/// The compiler that generated the reviewed code.
const BLESSED_WITH: &str = "rustc 1.95.0";

/// The compiler, if it is the one of the reviewed code. The properties of the code are checked for
/// every compiler, its text for this one only.
fn reviewed_compiler() -> Result<Option<&'static str>, Failed> {
    let version = output(Command::new("rustc").arg("--version"))?;
    let same = version.starts_with(BLESSED_WITH);
    if !same {
        eprintln!("the reviewed code is of {BLESSED_WITH}, this is {version}");
    }
    Ok(same.then_some(BLESSED_WITH))
}

/// Compares code with the reviewed code, or replaces that if `BLESS` is set.
fn compare_with_blessed(name: &str, text: &str) -> Result<(), Failed> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blessed").join(name);
    if std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(file.parent().expect("a folder"))?;
        fs::write(&file, text)?;
    }
    let blessed = fs::read_to_string(&file)?;
    assert!(
        blessed == text,
        "the code changed: review this, then run with BLESS=1\n--- on file\n{blessed}\n--- now\n{text}"
    );
    Ok(())
}

fn hot_loops_are_blessed() -> Result<(), Failed> {
    let Some(compiler) = reviewed_compiler()? else { return Ok(()) };
    let probe = probe()?;
    let mut text = format!(
        "# The loops of examples/probe.rs that fill a run of slots, {compiler}, release. BLESS=1 cargo test rewrites this file.\n"
    );
    for function in LOOPS {
        for body in run_loops(&disassemble(&probe, function)?) {
            text += &format!("\n{function}:\n");
            let start = body[0].0;
            for (_, line) in body {
                let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
                if words[0].starts_with('j') {
                    let target = u64::from_str_radix(&words[1], 16).unwrap_or(0);
                    words = vec![words[0].clone(), if target == start { "loop" } else { "out" }.into()];
                }
                text += &format!("    {}\n", words.join(" "));
            }
        }
    }
    compare_with_blessed("hot_loops.x86_64.s", &text)
}

fn counts_are_within_limits() -> Result<(), Failed> {
    let probe = probe()?;
    // Loop, function, batch, instructions per operation as counted. The count includes the
    // function's own loop and its use of the results: five instructions per operation if a call
    // handles one operation.
    let counted = [
        ("post_one", "post_one", 32, 24.9),
        ("post_one_address", "post_one_address", 32, 23.7),
        ("post_batch", "post_batch", 16, 21.6),
        ("post_batch", "post_batch", 32, 19.3),
        ("post_batch", "post_batch", 64, 18.1),
        ("post_batch", "post_slice", 16, 14.5),
        ("post_batch", "post_slice", 64, 10.7),
        ("post_batch_address", "post_batch_address", 32, 15.2),
        ("post_batch_address", "post_slice_address", 32, 12.9),
        ("repost_bound", "repost_bound", 16, 2.6),
        ("repost_bound", "repost_bound", 32, 2.1),
        ("complete_list", "complete_list", 32, 21.2),
        ("poll_receives", "poll_receives", 32, 27.8),
        ("poll_receives", "poll_each_receive", 32, 24.6),
        ("poll_receives", "poll_empty", 32, 24.2),
        ("send_inline", "send_inline", 32, 42.8),
        ("send_long", "send_long", 32, 68.4),
        ("send_segment", "send_segment", 32, 39.8),
        ("send_batch", "send_batch", 32, 20.3),
        ("send_prepared", "send_prepared", 32, 43.9),
        ("send_template", "send_template", 32, 40.9),
        ("poll_sends", "poll_sends", 32, 23.1),
        ("echo", "echo", 32, 124.6),
    ];
    // The difference that another build of the same compiler may make.
    let tolerance = |count: f64| count * 1.03 + 0.2;
    let mut over = vec![];
    for (case, function, batch, count) in counted {
        let limit = tolerance(count);
        const ROUNDS: u32 = 500;
        let out = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(format!("--toggle-collect=*probe::{function}"))
            .arg(&probe)
            .args([case, &ROUNDS.to_string(), &batch.to_string()])
            .output()?;
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        let collected = text.lines().find_map(|l| l.split_once("Collected :")?.1.trim().parse::<f64>().ok());
        let per_op = collected.ok_or_else(|| format!("no count from valgrind:\n{text}"))?
            / f64::from(ROUNDS * batch as u32);
        println!("{function}, batch {batch}: {per_op:.2} instructions per operation (limit {limit:.2})");
        if per_op < 1.0 || per_op > limit {
            over.push(format!("{function}, batch {batch}: {per_op:.2}, limit {limit:.2}"));
        }
    }
    if over.is_empty() { Ok(()) } else { Err(over.join("\n").into()) }
}
