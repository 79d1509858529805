//! `doorbell-run [--stats] [--log] PROGRAM ARGS...`: runs a program with the preloaded library.
//!
//! The program gets everything else as it was: descriptors, signals and their mask, environment. So
//! this is a C program without the initialisation of Rust, which would open closed descriptors and
//! ignore SIGPIPE.
#![no_main]
#![expect(unsafe_code, reason = "the entry of a C program, and execvp(3)")]

use std::{
    env,
    ffi::{CString, OsStr, OsString, c_char, c_int},
    fmt,
    fs::{File, Metadata},
    io::{self, Read as _, Write as _},
    os::{
        fd::FromRawFd as _,
        unix::{
            ffi::{OsStrExt as _, OsStringExt as _},
            fs::{MetadataExt as _, PermissionsExt as _},
        },
    },
    path::{Path, PathBuf, absolute},
};

const USAGE: &str = "\
usage: doorbell-run [--stats] [--log] PROGRAM ARGUMENTS...

Runs PROGRAM with its verbs queues on the direct path of mlx5 devices.
  --stats  prints at exit how many contexts, CQs, SRQs and QPs were taken over
  --log    prints each object as it is created, and why it was left to its driver
The manual page is doorbell-run(1).";

const INSTALLED: &str = "libdoorbell-verbs.so";
const BUILT: &str = "libdoorbell_verbs.so";

/// What is wrong, and the exit status that says so, as that of env(1).
#[derive(Debug)]
struct Fault(c_int, String);

/// doorbell-run was called wrongly, or cannot write its usage.
const FAILED: c_int = 125;
/// The program or the library is there and cannot be used.
const UNUSABLE: c_int = 126;
/// The program or the library is not there.
const MISSING: c_int = 127;

fn fault<T>(status: c_int, text: impl Into<String>) -> Result<T, Fault> {
    Err(Fault(status, text.into()))
}

/// The fault of a file that cannot be used.
fn of_file(path: &Path, error: &io::Error) -> Fault {
    let is_missing = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR));
    Fault(if is_missing { MISSING } else { UNUSABLE }, format!("{}: {error}", path.display()))
}

/// Writes a line to stderr. Errors are ignored.
fn say(text: impl fmt::Display) {
    let line = format!("doorbell-run: {text}\n");
    // SAFETY: bytes of the line.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// The library: `DOORBELL_VERBS_LIBRARY`, or next to this program, or in the lib folder beside its
/// folder.
fn library() -> Result<PathBuf, Fault> {
    if let Some(named) = env::var_os("DOORBELL_VERBS_LIBRARY") {
        return absolute(&named).map_err(|error| of_file(Path::new(&named), &error));
    }
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            let text = format!(
                "my own path is unknown ({error}): set DOORBELL_VERBS_LIBRARY to the path of {INSTALLED}"
            );
            return fault(MISSING, text);
        }
    };
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [
        folder.join(BUILT),
        folder.join("../lib").join(INSTALLED),
        folder.join("../lib").join(format!("{}-linux-gnu", env::consts::ARCH)).join(INSTALLED),
        folder.join("../lib64").join(INSTALLED),
    ];
    match places.into_iter().find(|place| place.exists()) {
        Some(found) => Ok(found),
        None => fault(
            MISSING,
            format!("no {INSTALLED} near {}: set DOORBELL_VERBS_LIBRARY to its path", folder.display()),
        ),
    }
}

/// What matters of an executable or a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Elf {
    /// Class (32 or 64 bits), byte order and machine.
    kind: [u8; 4],
    /// Whether the dynamic linker loads it.
    is_dynamic: bool,
}

/// A file's beginning, as far as it is needed here.
fn beginning(mut file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    io::Read::by_ref(&mut file).take(4096).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// `None` if these are not the first bytes of an ELF file.
fn elf(bytes: &[u8]) -> Option<Elf> {
    const INTERPRETER: u32 = 3;
    let is_64 = match bytes.get(..6)? {
        [0x7f, b'E', b'L', b'F', class, 1] => *class == 2,
        _ => return None,
    };
    let number = |at: usize, bytes_of: usize| {
        let field = bytes.get(at..at + bytes_of)?;
        Some(field.iter().rev().fold(0_usize, |number, byte| number << 8 | usize::from(*byte)))
    };
    let (table, size, count) = if is_64 {
        (number(32, 8)?, number(54, 2)?, number(56, 2)?)
    } else {
        (number(28, 4)?, number(42, 2)?, number(44, 2)?)
    };
    let is_dynamic = (0..count).any(|n| number(table + n * size, 4) == Some(INTERPRETER as usize));
    Some(Elf { kind: [bytes[4], bytes[5], *bytes.get(18)?, *bytes.get(19)?], is_dynamic })
}

/// The kind of the library, which is there and can be loaded.
fn check_library(path: &Path) -> Result<Elf, Fault> {
    let bytes = File::open(path).and_then(|file| beginning(&file)).map_err(|error| of_file(path, &error))?;
    let Some(found) = elf(&bytes) else {
        return fault(UNUSABLE, format!("{}: not a shared library", path.display()));
    };
    // LD_PRELOAD has no way to quote them.
    if path.as_os_str().as_bytes().iter().any(|byte| b" \t\n:;$".contains(byte)) {
        let text = format!(
            "{}: a path with a blank, `:`, `;` or `$` cannot be preloaded: make a link to the library without them, \
             and set DOORBELL_VERBS_LIBRARY to the link",
            path.display()
        );
        return fault(UNUSABLE, text);
    }
    Ok(found)
}

/// Where execvp(3) finds a program.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    env::split_paths(&path).map(|folder| folder.join(program)).find(|path| {
        path.metadata().is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    })
}

/// Why the dynamic linker will not preload a library into a program, if that can be told.
fn not_preloaded(path: &Path, library: Elf) -> Option<String> {
    let file = File::open(path).ok()?;
    let (about, bytes) = (file.metadata().ok()?, beginning(&file).ok()?);
    if let Some(line) = bytes.strip_prefix(b"#!") {
        // The rights of a script's file do not count.
        let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
        let interpreter = line.split(|byte| b" \t".contains(byte)).next()?;
        return not_preloaded(Path::new(OsStr::from_bytes(interpreter)), library);
    }
    let program = elf(&bytes)?;
    if program.kind != library.kind {
        Some("it is for another kind of processor than the library".into())
    } else if !program.is_dynamic {
        Some("it is linked statically; link it dynamically".into())
    } else if gains_rights(path, &about) {
        Some("it gets more rights than you have (setuid, setgid or capabilities); run it as a user who has them".into())
    } else {
        None
    }
}

fn gains_rights(path: &Path, about: &Metadata) -> bool {
    // SAFETY: calls without arguments; a C string, and no room for a value, whose length counts.
    let (user, group, has_capabilities) = unsafe {
        let name = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
        let value = (c"security.capability".as_ptr(), std::ptr::null_mut());
        let bytes = libc::getxattr(name.as_ptr(), value.0, value.1, 0);
        (libc::getuid(), libc::getgid(), bytes > 0)
    };
    let mode = about.permissions().mode();
    mode & libc::S_ISUID != 0 && about.uid() != user
        || mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0 && about.gid() != group
        || has_capabilities && user != 0
}

/// `LD_PRELOAD` with the library behind what is there.
fn preload(before: Option<&OsStr>, library: &Path) -> OsString {
    let mut all = before.unwrap_or_default().to_os_string();
    if !all.is_empty() {
        all.push(":");
    }
    all.push(library);
    all
}

/// Prints the usage to stdout.
fn help() -> Result<c_int, Fault> {
    // SAFETY: the descriptor stays open, as the file is never dropped; it is closed if the caller
    // has closed it, and then the write fails.
    let mut stdout = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(libc::STDOUT_FILENO) });
    match stdout.write_all(format!("{USAGE}\n").as_bytes()) {
        Ok(()) => Ok(0),
        Err(error) => fault(FAILED, format!("cannot write to stdout: {error}")),
    }
}

fn c_string(text: OsString) -> CString {
    // Arguments and variables of a program have no NUL.
    CString::new(text.into_vec()).unwrap_or_default()
}

fn run(arguments: impl Iterator<Item = OsString>) -> Result<c_int, Fault> {
    let mut arguments = arguments.peekable();
    let (mut stats, mut log) = (false, false);
    while let Some(option) = arguments.next_if(|argument| argument.as_bytes().starts_with(b"-")) {
        match option.to_str() {
            Some("--stats") => stats = true,
            Some("--log") => log = true,
            Some("--help" | "-h") => return help(),
            Some("--") => break,
            _ => return fault(FAILED, format!("unknown option {}\n{USAGE}", option.display())),
        }
    }
    let Some(program) = arguments.next() else { return fault(FAILED, format!("no program\n{USAGE}")) };
    let library = library()?;
    let kind = check_library(&library)?;
    if let Some(why) = find(&program).and_then(|path| not_preloaded(&path, kind)) {
        say(format_args!("{} runs without the library: {why}", program.display()));
    }
    let mut variables = vec![(c"LD_PRELOAD", preload(env::var_os("LD_PRELOAD").as_deref(), &library))];
    if stats {
        variables.push((c"DOORBELL_VERBS_STATS", "1".into()));
    }
    if log {
        variables.push((c"DOORBELL_LOG", "info".into()));
    }
    for (name, value) in variables {
        // SAFETY: C strings; there is one thread.
        if unsafe { libc::setenv(name.as_ptr(), c_string(value).as_ptr(), 1) } != 0 {
            return fault(FAILED, format!("setenv: {}", io::Error::last_os_error()));
        }
    }
    let words: Vec<CString> = std::iter::once(program.clone()).chain(arguments).map(c_string).collect();
    let mut pointers: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: C strings, and a list of them that ends with NULL.
    unsafe { libc::execvp(pointers[0], pointers.as_ptr()) };
    Err(of_file(Path::new(&program), &io::Error::last_os_error()))
}

/// The entry of the program.
#[unsafe(no_mangle)]
extern "C" fn main(_count: c_int, _arguments: *const *const c_char) -> c_int {
    run(env::args_os().skip(1)).unwrap_or_else(|Fault(status, text)| {
        say(text);
        status
    })
}
