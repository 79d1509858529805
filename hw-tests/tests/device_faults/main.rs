//! Bad input and faults: each ends in a typed error or in the event that the rules name, in bounded
//! time, and leaks nothing. The tests run one at a time, since they count objects of the whole
//! process.

mod connections;
mod network;
mod refusals;

use doorbell_hw_tests::rig::*;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::time::Instant;

/// Selects the role of a process that these tests start.
const ROLE: &str = "DOORBELL_FAULTS_ROLE";

/// Where the sender connects to: address and connection qualifier.
const SERVER: &str = "DOORBELL_FAULTS_SERVER";

fn main() {
    match std::env::var(ROLE).as_deref() {
        Ok("sender") => return connections::send_for_ever(),
        Ok("locked") => return refusals::register_with_little_memlock(),
        _ => {}
    }
    let tests = &[refusals::TESTS, connections::TESTS, network::TESTS].concat();
    let netdev = network::client_netdev().is_some();
    doorbell_hw_tests::run_unless(tests, 1, |name| match name {
        "port_without_address_is_refused_with_the_cure" | "port_going_down_is_told_and_survived"
            if !netdev =>
        {
            Some("needs a client device on a veth interface, and root")
        }
        _ => None,
    })
    .exit();
}

const LARGE: usize = 1 << 20;

/// Descriptors and threads of this process, and its objects of the devices.
#[derive(Debug, PartialEq)]
struct Holdings {
    fds: usize,
    threads: usize,
    /// Objects of each kind, as `rdma resource show` lists them; `None` if this program is not
    /// installed.
    objects: Option<Vec<(&'static str, usize)>>,
}

impl Holdings {
    fn now() -> Self {
        let entries = |path: &str| std::fs::read_dir(path).unwrap().count();
        Self { objects: device_objects(), fds: entries("/proc/self/fd"), threads: entries("/proc/self/task") }
    }
}

/// Threads of the provider: each IA has one. The kernel may list a thread for a moment after it was
/// joined.
fn provider_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "doorbell\n")
        })
        .count()
}

/// One batch of commands for all kinds: each line of the output is one object, and begins with the
/// kind's word for its number.
fn device_objects() -> Option<Vec<(&'static str, usize)>> {
    const KINDS: [(&str, &str); 6] = [
        ("pd", " pdn "),
        ("mr", " mrn "),
        ("cq", " cqn "),
        ("srq", " srqn "),
        ("qp", " lqpn "),
        ("cm_id", " cm-idn "),
    ];
    let pid = std::process::id();
    let mut rdma = Command::new("rdma")
        .args(["-b", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut stdin = rdma.stdin.take()?;
    for (kind, _) in KINDS {
        writeln!(stdin, "resource show {kind} pid {pid}").ok()?;
    }
    drop(stdin);
    let output = rdma.wait_with_output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let count = |word| text.lines().filter(|line| line.contains(word)).count();
    output.status.success().then(|| KINDS.map(|(kind, word)| (kind, count(word))).to_vec())
}

/// Runs the body of a test and checks that it leaves nothing behind.
fn leaks_nothing(body: impl FnOnce()) {
    // Libraries keep a few descriptors after their first use.
    static WARM: Once = Once::new();
    WARM.call_once(|| {
        let rig = Rig::new();
        let srq = rig.server.srq(1);
        let pair = rig.connect_srq(&srq);
        assert!(provider_threads() > 0, "they are known by their name");
        match Holdings::now().objects {
            None => {
                eprintln!("objects of the devices are not counted: `rdma resource show` does not work here");
            }
            // The counts would include objects that the test left behind.
            Some(objects) => assert!(objects.iter().all(|(_, n)| *n > 0), "{objects:?}"),
        }
        rig.disconnect(&pair);
    });
    // No IA is open before the body or after it. The kernel may list objects and threads for a
    // moment after their end.
    until("no thread of an IA is left", || provider_threads() == 0);
    let before = Holdings::now();
    body();
    let mut after = Holdings::now();
    let start = Instant::now();
    while after != before {
        assert!(start.elapsed() < LONG, "left behind: {after:?}, before: {before:?}");
        after = Holdings::now();
    }
}

/// A process of our own, killed when it goes out of scope.
struct Process(Child);

impl Process {
    fn start(role: &str, server: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(ROLE, role).env(SERVER, server).stdin(Stdio::null());
        command
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
