//! Settings: environment variables, read once, and the values that tests set instead.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// Who runs the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only explicit [`crate::step`] calls.
    Manual,
    /// The engine runs in the caller's thread, deterministically: in [`crate::step`], in the hooked
    /// post, poll and arm functions of libmlx5, and while a thread sleeps in poll(2) on a
    /// completion channel. This is the default of a linked-in device.
    Stepped,
    /// As `Stepped`, plus a helper thread for work that no hook sees: requests of other processes,
    /// timers that expire while the program sleeps, and doorbells of drivers that bypass libmlx5.
    /// This is the default of a preloaded device.
    Auto,
    /// No hooks; a thread that polls all the time, as hardware would.
    Thread,
}

static MODE: AtomicU8 = AtomicU8::new(255);

const MODES: [Mode; 4] = [Mode::Manual, Mode::Stepped, Mode::Auto, Mode::Thread];

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// True when this copy of the device was preloaded rather than linked in.
pub(crate) fn preloaded() -> bool {
    env("LD_PRELOAD").is_some_and(|list| list.contains("mlx5_emu"))
}

/// The mode in force: the mode of [`crate::set_mode`], else `MLX5_EMU_MODE`, else the default.
pub fn mode() -> Mode {
    let known = MODE.load(Ordering::Relaxed);
    if let Some(&mode) = MODES.get(usize::from(known)) {
        return mode;
    }
    let mode = match env("MLX5_EMU_MODE").as_deref() {
        Some("manual") => Mode::Manual,
        Some("stepped") => Mode::Stepped,
        Some("auto") => Mode::Auto,
        Some("thread") => Mode::Thread,
        Some(other) => {
            crate::host::sys::say!(
                "mlx5-emu: MLX5_EMU_MODE={other}: expected manual, stepped, auto or thread; using the default"
            );
            default_mode()
        }
        None => default_mode(),
    };
    MODE.store(mode as u8, Ordering::Relaxed);
    mode
}

fn default_mode() -> Mode {
    if preloaded() { Mode::Auto } else { Mode::Stepped }
}

/// Stores who runs the engine.
pub(crate) fn store_mode(mode: Mode) {
    MODE.store(mode as u8, Ordering::Relaxed);
}

static CQE_VERSION: AtomicU8 = AtomicU8::new(255);

/// The CQE format newly opened contexts are offered: 0 or 1 (`MLX5_EMU_CQE_VERSION`).
pub(crate) fn cqe_version() -> u8 {
    let known = CQE_VERSION.load(Ordering::Relaxed);
    if known != 255 {
        return known;
    }
    let version = u8::from(env("MLX5_EMU_CQE_VERSION").as_deref() != Some("0"));
    CQE_VERSION.store(version, Ordering::Relaxed);
    version
}

/// Sets the CQE format that contexts opened from now on are offered.
pub fn set_cqe_version(version: u8) {
    CQE_VERSION.store(version.min(1), Ordering::Relaxed);
}

/// `MLX5_EMU_STATIC_UAR=1`: UAR pages the old way, all at once.
pub(crate) fn static_uars() -> bool {
    static VALUE: OnceLock<bool> = OnceLock::new();
    *VALUE.get_or_init(|| env("MLX5_EMU_STATIC_UAR").as_deref() == Some("1"))
}

/// Whether RLIMIT_MEMLOCK applies: as `MLX5_EMU_MEMLOCK` says, else only on a preloaded device.
pub(crate) fn memlock() -> bool {
    match env("MLX5_EMU_MEMLOCK").as_deref() {
        Some("0") => false,
        Some(_) => true,
        None => preloaded(),
    }
}

/// Whether the engine is registered with the workers of UCX (`MLX5_EMU_UCX=0`: it is not).
pub(crate) fn ucx_workers() -> bool {
    env("MLX5_EMU_UCX").as_deref() != Some("0")
}

/// Whether the engine runs in calls of DAT programs (`MLX5_EMU_DAT=0`: it does not).
pub(crate) fn dat_polls() -> bool {
    env("MLX5_EMU_DAT").as_deref() != Some("0")
}

/// `MLX5_EMU_STRICT=1`: complaints make a preloaded program exit with status 86.
pub(crate) fn strict() -> bool {
    env("MLX5_EMU_STRICT").as_deref() == Some("1")
}

/// `MLX5_EMU_KEY_SEED`: makes the keys of regions and windows the same in every process.
pub(crate) fn key_seed() -> Option<u64> {
    env("MLX5_EMU_KEY_SEED")?.parse().ok()
}

/// Names the set of processes that can reach each other (`MLX5_EMU_SESSION`). By default all
/// processes of a user share one session.
pub(crate) fn session() -> String {
    env("MLX5_EMU_SESSION").unwrap_or_else(|| format!("user-{}", crate::host::sys::uid()))
}
