#![expect(unsafe_code, reason = "calls of libc")]
//! What was taken over and what not: counts, and one line for each object that was left.
//!
//! `DOORBELL_LOG=info` (or `debug`, `trace`) prints a line for each object as it is created.
//! `DOORBELL_VERBS_STATS=1` prints the counts when the process exits. Both go to stderr. If the
//! value of `DOORBELL_VERBS_STATS` is an absolute path, the counts are appended to that file.

use core::{
    ffi::{CStr, c_char},
    fmt::{self, Write as _},
    mem::zeroed,
    ptr,
};
use std::{
    ffi::OsStr,
    fs::OpenOptions,
    io::Write as _,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
};

/// A class of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Context,
    Cq,
    Srq,
    Qp,
}

const NAMES: [&str; 4] = ["contexts", "CQs", "SRQs", "QPs"];

#[derive(Debug)]
struct Counts {
    taken: [AtomicU64; 4],
    left: [AtomicU64; 4],
    refused: AtomicU64,
}

static COUNTS: Counts = Counts {
    taken: [const { AtomicU64::new(0) }; 4],
    left: [const { AtomicU64::new(0) }; 4],
    refused: AtomicU64::new(0),
};

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// A variable of the environment; none for a program with more rights than its user.
pub(crate) fn variable(name: &CStr) -> Option<&OsStr> {
    // SAFETY: a C string, and a string of the environment, which the program does not change while
    // this thread is in a call of verbs. (The same holds for the variables that libmlx5 reads.)
    unsafe {
        let value = secure_getenv(name.as_ptr());
        (!value.is_null()).then(|| OsStr::from_bytes(CStr::from_ptr(value).to_bytes()))
    }
}

/// A question whose answer does not change. Two threads may find it at the same time: no thread
/// waits for another, which may be missing in the child of a fork.
struct Once(AtomicU8);

impl Once {
    fn get(&self, find: impl FnOnce() -> bool) -> bool {
        let (no, yes) = (1, 2);
        match self.0.load(Relaxed) {
            0 => {
                let is_so = find();
                self.0.store(if is_so { yes } else { no }, Relaxed);
                is_so
            }
            found => found == yes,
        }
    }
}

fn set(name: &CStr, values: &[&str]) -> bool {
    variable(name).is_some_and(|value| values.iter().any(|known| *known == value))
}

/// Whether the environment turns the library off.
pub(crate) fn is_off() -> bool {
    static OFF: Once = Once(AtomicU8::new(0));
    OFF.get(|| set(c"DOORBELL_VERBS", &["off", "0"]))
}

fn logs() -> bool {
    static LOGS: Once = Once(AtomicU8::new(0));
    LOGS.get(|| set(c"DOORBELL_LOG", &["info", "debug", "trace"]))
}

/// Text of limited length on the stack. What does not fit is left out.
struct Text {
    bytes: [u8; 1024],
    len: usize,
}

impl Text {
    fn of(text: fmt::Arguments<'_>) -> Self {
        let mut all = Self { bytes: [0; 1024], len: 0 };
        let _ = all.write_fmt(text);
        all
    }

    /// A line of this process.
    fn line(text: fmt::Arguments<'_>) -> Self {
        let mut all = Self::of(format_args!("doorbell-verbs[{}]: {text}", std::process::id()));
        all.len = all.len.min(all.bytes.len() - 1);
        let _ = all.write_str("\n");
        all
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let len = room.len().min(more.len());
        room[..len].copy_from_slice(&more.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

/// Writes a line to stderr: one system call, no lock, and no result. A stderr that is closed or
/// full is the program's affair, and so is a pipe that nobody reads: a SIGPIPE of this write is
/// taken back.
fn line(text: fmt::Arguments<'_>) {
    let line = Text::line(text);
    // SAFETY: sets of signals, for which zero is a value, and bytes of the line. The signal mask is
    // this thread's, and is set back. A SIGPIPE that was pending before stays so.
    unsafe {
        let before_errno = *libc::__errno_location();
        let (mut pipe, mut mask, mut pending): (libc::sigset_t, libc::sigset_t, libc::sigset_t) =
            (zeroed(), zeroed(), zeroed());
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        let is_blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut mask) == 0;
        let written = libc::write(libc::STDERR_FILENO, line.bytes().as_ptr().cast(), line.len);
        if is_blocked {
            if written < 0
                && *libc::__errno_location() == libc::EPIPE
                && libc::sigismember(&raw const pending, libc::SIGPIPE) == 0
            {
                let at_once: libc::timespec = zeroed();
                libc::sigtimedwait(&raw const pipe, ptr::null_mut(), &raw const at_once);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut());
        }
        *libc::__errno_location() = before_errno;
    }
}

/// Appends to a file, by one system call. Errors are ignored.
fn append(file: &Path, text: &Text) {
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(file) {
        let _ = file.write_all(text.bytes());
    }
}

/// The file of `MLX5_DEBUG_FILE`, to which libmlx5 writes the completion entry of a failed request.
pub(crate) fn debug_file() -> Option<PathBuf> {
    let name = variable(c"MLX5_DEBUG_FILE")?;
    let mut file = PathBuf::new();
    file.try_reserve(name.len()).ok()?;
    file.push(name);
    Some(file)
}

/// Writes the entry of a failed request to the debug file, as libmlx5 does.
#[cold]
pub(crate) fn failed(file: &Path, entry: &[u8; 64]) {
    let mut host = [0_u8; 256];
    // SAFETY: room for a name, whose last byte stays 0.
    unsafe { libc::gethostname(host.as_mut_ptr().cast(), host.len() - 1) };
    let host = CStr::from_bytes_until_nul(&host).unwrap_or_default().to_string_lossy();
    let mut text = Text::of(format_args!("mlx5: {host}: got completion with error:\n"));
    for line in entry.chunks(16) {
        for (n, word) in line.chunks(4).enumerate() {
            let word = word.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
            let end = if n == 3 { "\n" } else { " " };
            let _ = write!(text, "{word:08x}{end}");
        }
    }
    append(file, &text);
}

/// An object was taken over.
pub(crate) fn taken(class: Class, name: fmt::Arguments<'_>) {
    COUNTS.taken[class as usize].fetch_add(1, Relaxed);
    if logs() {
        line(format_args!("{name} taken over"));
    }
}

/// An object that had been taken over went back to libmlx5.
pub(crate) fn given_back(class: Class) {
    COUNTS.taken[class as usize].fetch_sub(1, Relaxed);
}

/// An object was left to its driver.
pub(crate) fn left(class: Class, name: fmt::Arguments<'_>, why: &dyn fmt::Display) {
    COUNTS.left[class as usize].fetch_add(1, Relaxed);
    if logs() {
        line(format_args!("{name} left to the driver: {why}"));
    }
}

/// A creation was refused. This line is always printed.
pub(crate) fn refused(what: &str, why: &dyn fmt::Display) {
    COUNTS.refused.fetch_add(1, Relaxed);
    line(format_args!("{what} refused (EOPNOTSUPP): {why}; without doorbell-run the program may use both"));
}

/// Prints the counts, if `DOORBELL_VERBS_STATS` asks for them.
pub(crate) fn print_at_exit() {
    let Some(to) = variable(c"DOORBELL_VERBS_STATS") else { return };
    let file = Path::new(to);
    if to != "1" && !file.is_absolute() {
        return;
    }
    let mut counts = Text::of(format_args!("taken over:"));
    for (n, name) in NAMES.iter().enumerate() {
        let (taken, left) = (COUNTS.taken[n].load(Relaxed), COUNTS.left[n].load(Relaxed));
        let end = if n + 1 < NAMES.len() { "," } else { ";" };
        let _ = write!(counts, " {taken} of {} {name}{end}", taken + left);
    }
    let _ = write!(counts, " refused: {}", COUNTS.refused.load(Relaxed));
    let counts = String::from_utf8_lossy(counts.bytes());
    if to == "1" {
        line(format_args!("{counts}"));
    } else {
        append(file, &Text::line(format_args!("{counts}")));
    }
}
