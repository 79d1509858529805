//! An echo server through libdat2 under callgrind: on the direct path, none of its threads executes
//! a function of libmlx5 between connection and disconnection. On the verbs path, they do.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
};

use doorbell_benches::{
    count,
    dat::{DatPost, compile},
    plan::Subject,
};
use libtest_mimic::{Arguments, Failed, Trial};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

/// Of four messages each.
const BURSTS: u64 = 25;
const MESSAGES: u64 = 4 * BURSTS;

fn main() {
    let args = Arguments::from_args();
    let header = |name: &str| Path::new("/usr/include").join(name).exists();
    let able = count::available() && header("valgrind/callgrind.h") && header("dat2/udat.h");
    let why = if able { "" } else { " (ignored: no valgrind or no libdat2; packages valgrind, libdapl-dev)" };
    let name = format!("an_echo_server_executes_no_function_of_libmlx5{why}");
    libtest_mimic::run(&args, vec![Trial::test(name, echo).with_ignored_flag(!able)]).exit();
}

/// What callgrind counted.
#[derive(Debug, Default)]
struct Profile {
    /// File and function.
    executed: BTreeSet<(String, String)>,
    /// Calls of each function.
    calls: BTreeMap<String, u64>,
}

impl Profile {
    /// Reads a file that callgrind wrote with `--compress-strings=no`.
    fn read(path: &Path) -> Result<Self, Failed> {
        let text = fs::read_to_string(path)?;
        let mut this = Self::default();
        let file = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
        let (mut object, mut callee) = (String::new(), String::new());
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else { continue };
            match key {
                "ob" => object = file(value),
                "fn" => drop(this.executed.insert((object.clone(), value.to_owned()))),
                "cfn" => callee = value.to_owned(),
                "calls" => {
                    let times: u64 = value.split(' ').next().unwrap_or("").parse()?;
                    *this.calls.entry(callee.clone()).or_default() += times;
                }
                _ => {}
            }
        }
        Ok(this)
    }

    /// Functions of libmlx5, and those with which libibverbs begins an operation of a data path.
    fn of_libmlx5(&self) -> Vec<&(String, String)> {
        let operations = ["ibv_post_", "ibv_poll_cq", "ibv_req_notify_cq", "ibv_wr_"];
        let is = |(object, function): &&(String, String)| {
            object.starts_with("libmlx5.so")
                || object.starts_with("libmlx5-rdmav")
                || operations.iter().any(|operation| function.contains(operation))
        };
        self.executed.iter().filter(is).collect()
    }

    /// How often a function was called that callgrind may print with a recursion level or an
    /// offset.
    fn calls_of(&self, name: &str) -> u64 {
        let is = |function: &str| function.split('\'').next() == Some(name);
        self.calls.iter().filter(|(function, _)| is(function)).map(|(_, times)| times).sum()
    }
}

/// Ends the processes that a failed test leaves: `timeout`, which leads a group, and its child.
struct Server(Child);

impl Server {
    fn kill(&self) {
        if let Ok(leader) = self.0.id().try_into() {
            let _ = killpg(Pid::from_raw(leader), Signal::SIGKILL);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = self.0.wait();
    }
}

/// Runs server and client on a subject; what the server executed while it was connected.
fn profile(dat: &DatPost, subject: Subject) -> Result<Profile, Failed> {
    let folder = tempfile::tempdir()?;
    let (program, counts) = (folder.path().join("echo"), folder.path().join("counts"));
    compile("echo.c", &program, &["-ldat2"])?;
    let environment: BTreeMap<_, _> = dat.environment(subject).into_iter().collect();
    // Both processes are in one fabric.
    let command = |launcher: &[String], side: &str| {
        let mut command = Command::new("timeout");
        command.arg("300").args(launcher).arg(&program).arg(&environment["IA"]).arg(side);
        command.arg(BURSTS.to_string()).envs(&environment);
        command.env("LD_PRELOAD", &environment["DEVICE_LIBRARY"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let valgrind = [
        "valgrind",
        "--tool=callgrind",
        "--quiet",
        // The server polls. Without this, valgrind may never let its other threads run.
        "--fair-sched=yes",
        "--instr-atstart=no",
        "--compress-strings=no",
        &format!("--callgrind-out-file={}", counts.display()),
    ];
    let mut server = Server(command(&valgrind.map(str::to_owned), "server").spawn()?);
    let mut output = BufReader::new(server.0.stdout.take().ok_or("no output")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    let client = if line == "listening\n" { Some(command(&[], "client").output()?) } else { None };
    let good = client.as_ref().is_some_and(|client| client.status.success());
    if !good {
        server.kill();
    }
    let status = server.0.wait()?;
    if !good || !status.success() {
        let mut errors = String::new();
        server.0.stderr.take().ok_or("no errors")?.read_to_string(&mut errors)?;
        return Err(format!("server: {status}, {line}{errors}\nclient: {client:?}").into());
    }
    Profile::read(&counts)
}

fn echo() -> Result<(), Failed> {
    let dat = DatPost::new()?;
    let direct = profile(&dat, Subject::Provider)?;
    // The calls whose way is in question were made, and counted.
    for (call, least) in [
        ("dat_srq_post_recv", MESSAGES),
        ("dat_ep_post_send", MESSAGES),
        ("dat_evd_dequeue", MESSAGES),
        ("dat_evd_wait", BURSTS),
    ] {
        let times = direct.calls_of(call);
        assert!(times >= least, "{call} was called {times} times in {MESSAGES} messages");
    }
    // Waits that slept had armed a CQ.
    assert!(direct.calls_of("ppoll") > 0, "no wait slept");
    assert!(direct.of_libmlx5().is_empty(), "by the direct path: {:#?}", direct.of_libmlx5());
    // The same on standard verbs: one function each for posting receives, posting sends, polling
    // and arming.
    let verbs = profile(&dat, Subject::ProviderVerbs)?;
    let executed = verbs.of_libmlx5();
    assert!(executed.len() >= 4, "by standard verbs: {executed:#?}");
    Ok(())
}
