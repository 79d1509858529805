//! Shared code of tests that run programs on the preloaded device.

use std::path::PathBuf;

use libtest_mimic::Failed;

/// The preloaded device, built together with this test.
pub(crate) fn library() -> Result<PathBuf, Failed> {
    if let Some(path) = std::env::var_os("MLX5_EMU_LIBRARY") {
        return Ok(path.into());
    }
    let exe = std::env::current_exe()?;
    let deps = exe.parent().ok_or("no folder")?;
    [Some(deps), deps.parent()]
        .into_iter()
        .flatten()
        .map(|dir| dir.join("libmlx5_emu.so"))
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .max()
        .map(|(_, path)| path)
        .ok_or_else(|| "libmlx5_emu.so is missing: run cargo build -p mlx5-emu".into())
}

/// Whether a program is on the PATH.
pub(crate) fn installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).exists()))
}
