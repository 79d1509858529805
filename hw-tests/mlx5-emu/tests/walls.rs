//! The device of one user is out of reach of another user on the same machine: sockets, shared
//! memory, keys and files. It refuses and goes on.
//!
//! The tests of two users need root, to become the other one.
#![expect(unsafe_code, reason = "packet sockets")]
#![allow(missing_docs)]

mod common;
#[path = "common/programs.rs"]
mod programs;

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use common::*;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use programs::{installed, library};

const PATIENCE: Duration = Duration::from_secs(30);
/// The other user: nobody.
const STRANGER: u32 = 65_534;
/// What the stranger does, with the name of a socket.
const ROLE: &str = "WALLS_ROLE";

/// Of this process's user, and of its fabric.
fn name_of(rest: &str) -> String {
    format!("mlx5-emu/{}/{rest}", session())
}

fn session() -> String {
    std::env::var("MLX5_EMU_SESSION").expect("set by main")
}

fn is_root() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() == 0 }
}

/// A folder that everybody can enter, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("walls-{name}-{}", std::process::id()));
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process of the other user.
struct Stranger {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    _folder: Folder,
}

impl Stranger {
    /// `role` is `connect` or `listen`, and `stream` or `packets`.
    fn start(role: &str, name: &str) -> Result<Self, Failed> {
        let folder = Folder::new(role)?;
        let program = folder.0.join("stranger");
        fs::copy(std::env::current_exe()?, &program)?;
        let mut child = Command::new(program)
            .uid(STRANGER)
            .gid(STRANGER)
            .env(ROLE, role)
            .arg(name)
            .env("MLX5_EMU_SESSION", "strangers")
            .env_remove("SYSFS_PATH")
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Ok(Self { child, output, _folder: folder })
    }

    /// The next line; `meanwhile` runs until the line is there.
    fn says(&mut self, mut meanwhile: impl FnMut()) -> Result<String, Failed> {
        let fd = self.output.get_ref().as_raw_fd();
        let start = Instant::now();
        while start.elapsed() < PATIENCE && self.output.buffer().is_empty() {
            let mut list = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: a list of one.
            if unsafe { libc::syscall(libc::SYS_poll, &raw mut list, 1, 5) } > 0 {
                break;
            }
            meanwhile();
        }
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the process of the other user.
fn stranger(role: &str, name: &str) -> io::Result<()> {
    let (act, kind) = role.split_once('-').unwrap_or((role, ""));
    let kind = if kind == "packets" { libc::SOCK_SEQPACKET } else { libc::SOCK_STREAM };
    // SAFETY: plain system calls; the address is valid, and each descriptor has one owner.
    let connection = unsafe {
        let socket = OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0));
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as u16;
        for (slot, byte) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
            *slot = byte.cast_signed();
        }
        let (at, len) = ((&raw const address).cast(), (3 + name.len()) as u32);
        let own = socket.as_raw_fd();
        if act == "connect" {
            assert_eq!(libc::connect(own, at, len), 0, "{name}: {}", io::Error::last_os_error());
            socket
        } else {
            assert_eq!(libc::bind(own, at, len), 0, "{name}: {}", io::Error::last_os_error());
            assert_eq!(libc::listen(own, 8), 0);
            println!("listening");
            OwnedFd::from_raw_fd(libc::accept(own, null_mut(), null_mut()))
        }
    };
    let mut stream = UnixStream::from(connection);
    stream.set_read_timeout(Some(PATIENCE / 2))?;
    // A client writes first, and a server of this device answers nothing on its own: only the end
    // of the connection is a refusal.
    match stream.read(&mut [0; 64]) {
        Ok(0) => println!("refused"),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => println!("refused"),
        other => println!("served: {other:?}"),
    }
    Ok(())
}

fn with_root(test: fn() -> Result<(), Failed>) -> Result<Completion, Failed> {
    if !is_root() {
        return Ok(Completion::ignored_with("not root: cannot become another user"));
    }
    test().map(|()| Completion::Completed)
}

fn expect(what: &str, said: &str, wanted: &str) -> Result<(), Failed> {
    if said == wanted { Ok(()) } else { Err(format!("{what}: {said:?}").into()) }
}

fn stranger_cannot_connect() -> Result<(), Failed> {
    let mut rig = Rig::new();
    let cq = rig.cq(16);
    let qp = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut());
    let mut stranger = Stranger::start("connect-stream", &name_of(&(qpn(qp) >> 15).to_string()))?;
    expect("a stranger", &stranger.says(mlx5_emu::step)?, "refused")?;
    // The device goes on.
    let (a, b) = rig.pair(cq, null_mut());
    let memory = rig.memory(64);
    post_recv(b, 1, &[memory.sge(0, 8)]);
    send(a, 2, SIGNALED, &[memory.sge(8, 8)]);
    poll(cq, 2);
    Ok(())
}

fn nothing_is_sent_to_a_stranger() -> Result<(), Failed> {
    const RETRY_EXC: u32 = 12;
    let mut rig = Rig::new();
    let cq = rig.cq(16);
    let qp = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut());
    let slot = if qpn(qp) >> 15 == 1 { 2 } else { 1 };
    let mut stranger = Stranger::start("listen-stream", &name_of(&slot.to_string()))?;
    expect("the other slot", &stranger.says(|| ())?, "listening")?;
    to_init(qp);
    to_rtr(qp, slot << 15);
    to_rts_with(qp, 1, 1, 1);
    let memory = rig.memory(64);
    send(qp, 1, SIGNALED, &[memory.sge(0, 64)]);
    let said = stranger.says(|| {
        mlx5_emu::advance_clock(Duration::from_millis(1));
        mlx5_emu::step();
    })?;
    expect("a stranger", &said, "refused")?;
    mlx5_emu::advance_clock(Duration::from_millis(10));
    let found = poll(cq, 1);
    if found[0].status == RETRY_EXC { Ok(()) } else { Err(format!("status {}", found[0].status).into()) }
}

/// A program on the preloaded device, ended with the test.
struct Program(Child);

impl Program {
    fn start(command: &str, folder: &Folder) -> Result<Self, Failed> {
        let mut words = command.split(' ');
        let child = Command::new(words.next().ok_or("no program")?)
            .args(words)
            .env("LD_PRELOAD", library()?)
            .env("MLX5_EMU_CM_TIMEOUT_MS", "200")
            .env("TMPDIR", &folder.0)
            .env_remove("SYSFS_PATH")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.0.join("said"))?)
            .spawn()?;
        Ok(Self(child))
    }

    fn ends(&mut self) -> Result<std::process::ExitStatus, Failed> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() > PATIENCE {
                return Err("the program hangs".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn stranger_cannot_call_a_listener() -> Result<(), Failed> {
    let folder = Folder::new("listener")?;
    let mut server = Program::start("rping -s -a 127.0.0.1 -p 7481", &folder)?;
    let name = name_of("cm/0106/7481/127.0.0.1");
    let start = Instant::now();
    let listens = || {
        let list = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        list.lines().any(|line| line.contains(" 00010000 ") && line.ends_with(&name))
    };
    while !listens() {
        if start.elapsed() > PATIENCE || server.0.try_wait()?.is_some() {
            return Err("the server does not listen".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut stranger = Stranger::start("connect-packets", &name)?;
    expect("a stranger", &stranger.says(|| ())?, "refused")?;
    let said = fs::read_to_string(folder.0.join("said"))?;
    if !said.contains("belongs to user 65534") {
        return Err(format!("the server said {said:?}").into());
    }
    // The server goes on.
    let mut client = Program::start("rping -c -a 127.0.0.1 -p 7481 -C 2", &folder)?;
    let status = client.ends()?;
    if status.success() { Ok(()) } else { Err(format!("client of the same user: {status}").into()) }
}

fn stranger_that_listens_serves_nobody() -> Result<(), Failed> {
    let folder = Folder::new("caller")?;
    let mut stranger = Stranger::start("listen-packets", &name_of("cm/0106/7482/127.0.0.1"))?;
    expect("the stranger", &stranger.says(|| ())?, "listening")?;
    let mut client = Program::start("rping -c -a 127.0.0.1 -p 7482 -C 1", &folder)?;
    client.ends()?;
    expect("a stranger", &stranger.says(|| ())?, "refused")
}

/// Trees of another user stay, and are not used.
fn trees_of_others_are_left_alone() -> Result<(), Failed> {
    let folder = Folder::new("trees")?;
    let theirs = folder.0.join("mlx5-emu-sysfs-1-0");
    fs::create_dir(&theirs)?;
    fs::write(theirs.join("lock"), "")?;
    fs::write(theirs.join("complete"), "")?;
    std::os::unix::fs::chown(&theirs, Some(STRANGER), Some(STRANGER))?;
    let mut own = Command::new("ibv_devices")
        .env("LD_PRELOAD", library()?)
        .env("TMPDIR", &folder.0)
        .env("SYSFS_PATH", &theirs)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    own.stdout.take().ok_or("no pipe")?.read_to_string(&mut said)?;
    own.wait()?;
    if !said.contains("mlx5_0") {
        return Err(format!("the device is not in a tree of its own: {said}").into());
    }
    if theirs.join("lock").exists() { Ok(()) } else { Err("the tree of another user is gone".into()) }
}

/// What lies in the temporary folder under names of the device neither stops a program nor is
/// followed: a pipe at the place of a lock, a link to a folder.
fn pipes_and_links_are_no_trees() -> Result<Completion, Failed> {
    if !installed("ibv_devices") {
        return Ok(Completion::ignored_with("ibv_devices is not installed"));
    }
    let folder = Folder::new("pipes")?;
    let precious = folder.0.join("precious");
    fs::create_dir(&precious)?;
    fs::write(precious.join("lock"), "")?;
    symlink(&precious, folder.0.join("mlx5-emu-sysfs-2-0"))?;
    let pipe = folder.0.join("mlx5-emu-sysfs-3-0");
    fs::create_dir(&pipe)?;
    let status = Command::new("mkfifo").arg(pipe.join("lock")).status()?;
    assert!(status.success());
    let status = Program::start("ibv_devices", &folder)?.ends()?;
    if !status.success() || !precious.join("lock").exists() {
        return Err(format!("{status}, {}", precious.join("lock").exists()).into());
    }
    Ok(Completion::Completed)
}

/// Only the user enters the tree.
fn tree_is_the_users_alone() -> Result<Completion, Failed> {
    let tree = PathBuf::from(std::env::var_os("SYSFS_PATH").ok_or("no SYSFS_PATH")?);
    let meta = fs::metadata(tree)?;
    // SAFETY: no arguments.
    let own = unsafe { libc::geteuid() };
    if (meta.mode() & 0o777, meta.uid()) == (0o700, own) {
        Ok(Completion::Completed)
    } else {
        Err(format!("mode {:o}, user {}", meta.mode(), meta.uid()).into())
    }
}

/// Connections that offer nothing do not use up the descriptors of a process.
fn idle_connections_are_bounded() -> Result<Completion, Failed> {
    const MANY: usize = 200;
    const KEPT: usize = 64;
    let mut rig = Rig::new();
    let cq = rig.cq(16);
    let qp = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut());
    let address = SocketAddr::from_abstract_name(name_of(&(qpn(qp) >> 15).to_string()))?;
    let mut idle = Vec::new();
    for _ in 0..MANY {
        let stream = UnixStream::connect_addr(&address)?;
        stream.set_nonblocking(true)?;
        idle.push(stream);
        mlx5_emu::step();
    }
    let is_open = |stream: &mut UnixStream| !matches!(stream.read(&mut [0]), Ok(0));
    let open = idle.iter_mut().map(is_open).filter(|open| *open).count();
    if open != KEPT || !is_open(&mut idle[MANY - 1]) {
        return Err(format!("{open} are open").into());
    }
    Ok(Completion::Completed)
}

/// Keys cannot be guessed: each process has others.
fn keys_differ_from_process_to_process() -> Result<Completion, Failed> {
    let key = |seed: &str| -> Result<Vec<u8>, Failed> {
        let mut program = Command::new(std::env::current_exe()?);
        Ok(program.arg("key").env(ROLE, "key").env("MLX5_EMU_KEY_SEED", seed).output()?.stdout)
    };
    if key("7")? != key("7")? {
        return Err("the keys of one seed differ".into());
    }
    let keys = [key("")?, key("")?, key("")?];
    if keys[0] == keys[1] || keys[1] == keys[2] {
        return Err(format!("{keys:?}").into());
    }
    Ok(Completion::Completed)
}

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        let name = std::env::args().nth(1).expect("a name");
        if role == "key" {
            let mut rig = Rig::new();
            let memory = rig.memory(64);
            println!("{}", memory.rkey);
            return ExitCode::SUCCESS;
        }
        return if stranger(&role, &name).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    // SAFETY: no other thread reads the environment yet.
    unsafe { std::env::set_var("MLX5_EMU_SESSION", format!("walls-{}", std::process::id())) };
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    let rping = |test: fn() -> Result<(), Failed>| {
        move || match installed("rping") {
            true => with_root(test),
            false => Ok(Completion::ignored_with("rping is not installed")),
        }
    };
    let trials = vec![
        Trial::ignorable_test("stranger_cannot_connect", || with_root(stranger_cannot_connect)),
        Trial::ignorable_test("nothing_is_sent_to_a_stranger", || with_root(nothing_is_sent_to_a_stranger)),
        Trial::ignorable_test("stranger_cannot_call_a_listener", rping(stranger_cannot_call_a_listener)),
        Trial::ignorable_test(
            "stranger_that_listens_serves_nobody",
            rping(stranger_that_listens_serves_nobody),
        ),
        Trial::ignorable_test("trees_of_others_are_left_alone", || with_root(trees_of_others_are_left_alone)),
        Trial::ignorable_test("pipes_and_links_are_no_trees", pipes_and_links_are_no_trees),
        Trial::ignorable_test("tree_is_the_users_alone", tree_is_the_users_alone),
        Trial::ignorable_test("idle_connections_are_bounded", idle_connections_are_bounded),
        Trial::ignorable_test("keys_differ_from_process_to_process", keys_differ_from_process_to_process),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}
