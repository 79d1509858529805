//! The library as a guest in processes that fork, block signals, cancel threads, close descriptors
//! or lose their standard error: the programs of hw-tests/guest, each by the data paths of the
//! device and, where libdaplofa behaves in the same way, on that.

use doorbell::Ia;
use doorbell_hw_tests::{devices, log};
use libtest_mimic::{Arguments, Failed, Trial};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The folder into which the build script compiled the programs.
const PROGRAMS: &str = env!("DOORBELL_GUESTS");
const OFA: &str = "/usr/lib/x86_64-linux-gnu/libdaplofa.so.2";

/// A program.
#[derive(Clone, Copy)]
struct Host {
    name: &'static str,
    /// What the log shows.
    log: &'static str,
    /// Whether it also runs on libdaplofa.
    on_libdaplofa: bool,
    needs_root: bool,
}

const fn host(name: &'static str) -> Host {
    Host { name, log: "", on_libdaplofa: false, needs_root: false }
}

const fn also_on_libdaplofa(name: &'static str) -> Host {
    Host { on_libdaplofa: true, ..host(name) }
}

const HOSTS: &[Host] = &[
    also_on_libdaplofa("stderr"),
    Host { log: "trace", ..host("stderr") },
    also_on_libdaplofa("signals"),
    host("cancel"),
    also_on_libdaplofa("cancel_post"),
    host("exit_in_agent"),
    host("last_calls"),
    Host { log: "trace", ..host("last_calls") },
    host("closefrom"),
    also_on_libdaplofa("no_timers"),
    also_on_libdaplofa("patches"),
    host("forks"),
    Host { log: "trace", ..host("forks") },
    Host { needs_root: true, ..host("chroot") },
];

/// The provider, and the names of its IAs.
#[derive(Clone, Copy)]
enum On {
    /// Doorbell, by this data path.
    Doorbell(&'static str),
    Libdaplofa,
}

fn main() {
    log();
    let mut args = Arguments::from_args();
    args.test_threads = args.test_threads.or(Some(2));
    let no_device = devices().is_none().then_some("no device: set DOORBELL_TEST_DEVICES");
    let no_ofa = (!Path::new(OFA).exists()).then_some("no libdaplofa: install libdapl2");
    let no_root = (std::fs::metadata("/proc/self").unwrap().uid() != 0).then_some("needs root");
    let mut trials = Vec::new();
    for &host in HOSTS {
        let log = if host.log.is_empty() { String::new() } else { format!("_with_log_{}", host.log) };
        let missing = no_device.or(no_root.filter(|_| host.needs_root));
        for &path in paths() {
            let name = format!("{}{log}_by_{path}", host.name);
            trials.push(trial(missing, name, move || run(host, On::Doorbell(path))));
        }
        if host.on_libdaplofa {
            let name = format!("{}_on_libdaplofa", host.name);
            trials.push(trial(missing.or(no_ofa), name, move || run(host, On::Libdaplofa)));
        }
    }
    let no_setuid = no_root.or(no_setuid());
    trials.push(trial(no_setuid, "privileges".to_owned(), programs_with_privileges_use_no_variables));
    let conclusion = libtest_mimic::run(&args, trials);
    if let Some(conf) = CONF.get() {
        let _ = std::fs::remove_dir_all(conf);
    }
    conclusion.exit();
}

fn trial(
    missing: Option<&str>,
    name: String,
    body: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let trial = Trial::test(name, body);
    match missing {
        Some(reason) => trial.with_kind(reason).with_ignored_flag(true),
        None => trial,
    }
}

/// The data paths of the devices at hand.
fn paths() -> &'static [&'static str] {
    if devices().is_some_and(|(device, _)| device.starts_with("mlx5")) {
        &["direct", "verbs"]
    } else {
        &["verbs"]
    }
}

static CONF: OnceLock<PathBuf> = OnceLock::new();

/// A folder with the dat.conf of these IAs: `guest` and `ofa`, and `nothing` and `ofa-nothing`, whose
/// devices do not exist.
fn conf() -> &'static Path {
    CONF.get_or_init(|| {
        let (device, _) = devices().expect("DOORBELL_TEST_DEVICES names the devices");
        let folder = std::env::temp_dir().join(format!("doorbell-guest-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let library = library().display().to_string();
        let address = Ia::open(&device).unwrap().address().to_string();
        let line = |ia: &str, library: &str, version: &str, device: &str| {
            format!("{ia} u2.0 nonthreadsafe default {library} {version} \"{device}\" \"\"\n")
        };
        let ofa = |ia: &str, device: &str| line(ia, "libdaplofa.so.2", "dapl.2.0", &format!("{device} 0"));
        let text = line("guest", &library, "doorbell.0.1", &device)
            + &line("nothing", &library, "doorbell.0.1", "no_such_device")
            + &ofa("ofa", &address)
            + &ofa("ofa-nothing", "no_such_device");
        std::fs::write(folder.join("dat.conf"), text).unwrap();
        folder
    })
}

/// libdoorbell.so, in the folder of the test executable.
fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has an executable");
    let library = exe.parent().expect("an executable is in a folder").join("libdoorbell.so");
    assert!(library.exists(), "no {}: cargo build -p doorbell-capi", library.display());
    library
}

/// A program with the names of two IAs. It ends itself if it hangs.
fn command(program: &Path, on: On) -> Command {
    let mut command = Command::new(program);
    command.env("DAT_OVERRIDE", conf().join("dat.conf"));
    if env!("DOORBELL_ONLY_OUR_LIBDAT2") == "true" {
        let others = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        command.env("LD_LIBRARY_PATH", format!("{}:{others}", env!("DOORBELL_OUR_LIBDAT2")));
    }
    match on {
        On::Doorbell(path) => command.args(["guest", "nothing"]).env("DOORBELL_DATAPATH", path),
        On::Libdaplofa => command.args(["ofa", "ofa-nothing"]).env("GUEST_OF_LIBDAPLOFA", "1"),
    };
    command
}

fn run(host: Host, on: On) -> Result<(), Failed> {
    let mut command = command(&Path::new(PROGRAMS).join(host.name), on);
    command.env("DOORBELL_LOG", host.log);
    expect_passed(&command.output()?)
}

/// The program ended by itself, and all its checks passed.
fn expect_passed(output: &Output) -> Result<(), Failed> {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() && said.contains(" checks passed") {
        return Ok(());
    }
    let log = String::from_utf8_lossy(&output.stderr);
    let last: Vec<_> = log.lines().rev().take(30).collect();
    let last: Vec<_> = last.into_iter().rev().collect();
    Err(format!("{}:\n{said}\n{}", output.status, last.join("\n")).into())
}

/// Why no program in the folder for temporary files can have privileges.
fn no_setuid() -> Option<&'static str> {
    let flags = nix::sys::statvfs::statvfs(&std::env::temp_dir()).map(|stat| stat.flags());
    let nosuid = flags.is_ok_and(|flags| flags.contains(nix::sys::statvfs::FsFlags::ST_NOSUID));
    nosuid.then_some("the folder for temporary files is mounted nosuid")
}

/// A program that belongs to root and is setuid, started by a user who chooses its environment.
fn programs_with_privileges_use_no_variables() -> Result<(), Failed> {
    const NOBODY: u32 = 65534;
    let folder = std::env::temp_dir().join(format!("doorbell-privileges-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755))?;
    let program = folder.join("program");
    std::fs::copy(Path::new(PROGRAMS).join("privileges"), &program)?;
    let conf = folder.join("conf");
    std::fs::write(&conf, "evil u2.0 nonthreadsafe default /nonexistent/evil.so evil.0.1 \"\" \"\"\n")?;
    let run = |mode, user| {
        std::fs::set_permissions(&program, PermissionsExt::from_mode(mode))?;
        let mut command = Command::new(&program);
        command.arg(library()).env("DAT_OVERRIDE", &conf).env("DOORBELL_LOG", "debug").uid(user);
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        expect_passed(&output)?;
        Ok::<_, Failed>((said.contains("has evil"), log.contains("DEBUG"), said + &log))
    };
    let without = run(0o755, 0);
    let with = run(0o4755, NOBODY);
    std::fs::remove_dir_all(&folder)?;
    match (without?, with?) {
        ((true, true, _), (false, false, _)) => Ok(()),
        ((.., without), (.., with)) => Err(format!("without privileges:\n{without}with:\n{with}").into()),
    }
}
