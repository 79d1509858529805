//! Where `unsafe` may be used: the compiler denies it for the workspace, except in the modules
//! listed here.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where unsafe code may be. For this crate and the provider, single modules. For the other
/// packages, folders: most of rxe-fallback is verbs calls, doorbell-verbs and mlx5-direct-c are
/// functions that C programs call, and mlx5-emu stands in for a kernel.
const MAY: [&str; 29] = [
    "mlx5-direct/src/queue_mem.rs",
    "mlx5-direct/src/doorbell.rs",
    "mlx5-direct/src/barrier.rs",
    "mlx5-direct/src/dv.rs",
    "mlx5-direct/src/memory.rs",
    "mlx5-direct/src/take_over.rs",
    "mlx5-direct/src/cq/deliver.rs",
    "mlx5-direct/biased-lock/src/platform.rs",
    "mlx5-direct/biased-lock/src/raw.rs",
    "mlx5-direct/biased-lock/src/lock.rs",
    "mlx5-direct/biased-lock/src/mutex.rs",
    "mlx5-direct/biased-lock/src/tests.rs",
    "provider/src/pool.rs",
    "provider/src/lmr/builder.rs",
    "provider/src/process.rs",
    "provider/capi/src/raw.rs",
    "provider/capi/src/libdat.rs",
    "provider/capi/src/lib.rs",
    "provider/src/datapath/direct/adopt.rs",
    "provider/daemons/nvmf/src/uring.rs",
    "rxe-fallback/src/",
    "rxe-fallback/sys/src/",
    "mlx5-direct/verbs/src/",
    "mlx5-direct/c/src/",
    "hw-tests/mlx5-emu/src/",
    "benches/src/",
    "/tests/",
    "/examples/",
    "hw-tests/src/",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

#[test]
fn only_named_modules_allow_unsafe_code() {
    let root = workspace();
    let mut files = vec![];
    sources(&root, &mut files);
    // The string is in two parts, so that this file does not contain it.
    let lifted = |text: &str| {
        let lint = concat!("unsafe", "_code");
        ["allow", "expect", "warn"].iter().any(|level| text.contains(&format!("{level}({lint}")))
    };
    let mut used = [false; MAY.len()];
    for file in files {
        let name = file.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        if lifted(&fs::read_to_string(&file).unwrap()) {
            let listed = MAY.iter().position(|may| name == *may || may.ends_with('/') && name.contains(may));
            used[listed.unwrap_or_else(|| panic!("{name} has unsafe code and is not on the list"))] = true;
        }
    }
    for (may, used) in MAY.iter().zip(used) {
        assert!(used || may.ends_with('/'), "{may} has no unsafe code any more: take it off the list");
    }
}

#[test]
fn every_crate_of_the_workspace_has_the_lint() {
    let root = workspace();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    assert!(manifest.contains(concat!("unsafe", "_code = \"deny\"")));
    let members = manifest.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    for member in members.split(',').map(|m| m.trim().trim_matches('"')).filter(|m| !m.is_empty()) {
        let manifest = fs::read_to_string(root.join(member).join("Cargo.toml")).unwrap();
        assert!(
            manifest.contains("[lints]\nworkspace = true"),
            "{member} does not take the workspace's lints"
        );
    }
}
