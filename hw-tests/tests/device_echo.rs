//! The echo program from outside: what it prints, how it ends, and what a crash of one end does to
//! the other.

use doorbell_hw_tests::echo::pair::ServerProcess;
use doorbell_hw_tests::rig::until;
use doorbell_hw_tests::{devices, tests};
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

fn main() {
    // Each test has two processes, with buffers for messages of a megabyte.
    let tests = tests![
        messages_of_all_sizes_come_back,
        messages_come_back_without_an_srq,
        more_connections_than_buffers_share_the_credits,
        a_killed_client_takes_nothing_from_the_others,
        a_killed_server_ends_the_client_with_an_error,
        credits_are_for_all_clients_together,
        bad_input_gets_one_line_and_status_2,
    ];
    doorbell_hw_tests::run_with_threads(tests, 2).exit();
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_doorbell-echo");

/// The time limit of a run, in seconds; status 124 if it takes longer.
const LIMIT: Duration = Duration::from_secs(120);

fn echo(arguments: &[&str]) -> Output {
    Command::new("timeout")
        .arg(LIMIT.as_secs().to_string())
        .arg(PROGRAM)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn pair(arguments: &[&str]) -> Output {
    let (server, client) = devices().unwrap();
    echo(&[&["pair", "--server-device", &server, "--client-device", &client], arguments].concat())
}

fn server(arguments: &[&str]) -> ServerProcess {
    let device = format!("--device={}", devices().unwrap().0);
    let arguments: Vec<_> = arguments.iter().copied().chain([&*device]).map(str::to_owned).collect();
    ServerProcess::start(Path::new(PROGRAM), &arguments).unwrap()
}

/// The command line of a client of this server.
fn client_arguments(server: &ServerProcess, arguments: &[&str]) -> Vec<String> {
    let fixed = ["client", "--device", &devices().unwrap().1, "--server", &server.address.to_string()];
    fixed.iter().chain(arguments).map(|&argument| argument.to_owned()).collect()
}

fn client(server: &ServerProcess, arguments: &[&str]) -> Output {
    let arguments = client_arguments(server, arguments);
    echo(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A client whose first message has come back. Killed when dropped.
struct Begun {
    child: Child,
    progress: Option<BufReader<ChildStderr>>,
}

impl Begun {
    fn new(server: &ServerProcess, arguments: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(client_arguments(server, arguments))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut progress = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        progress.read_line(&mut line).unwrap();
        assert!(line.contains(" messages ("), "{line}");
        Self { child, progress: Some(progress) }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end. Returns status, standard output and standard error.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut said, mut complained) = (self.child.stdout.take().unwrap(), self.progress.take().unwrap());
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (mut out, mut err) = (String::new(), String::new());
            complained.read_to_string(&mut err).unwrap();
            said.read_to_string(&mut out).unwrap();
            // The receiver is gone if it took too long.
            let _ = done.send((out, err));
        });
        let (out, err) = ended.recv_timeout(LIMIT).expect("the client ends");
        (self.child.wait().unwrap().code(), out, err)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

/// The cells of the row that begins with this word.
fn row(text: &str, name: &str) -> Vec<String> {
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    text.lines()
        .map(cells)
        .find(|cells| cells.get(1).is_some_and(|cell| cell == name))
        .map(|cells| cells[2..cells.len() - 1].to_vec())
        .unwrap_or_else(|| panic!("no row {name} in\n{text}"))
}

fn expect_verified(output: &Output, messages: u64) -> String {
    let text = out(output);
    let status = output.status.code();
    assert_eq!(status, Some(0), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(last_line(&text), format!("verified {messages} of {messages} messages"));
    text
}

/// The server's open files.
fn files(server: &ServerProcess) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap().count()
}

/// Every size comes back over every connection, and every buffer is where it was.
fn messages_of_all_sizes_come_back() {
    let text = expect_verified(&pair(&["--connections", "8", "--messages", "100", "--seed", "5"]), 800);
    for size in ["0", "1", "24", "32", "64", "4096", "65536", "1048576"] {
        assert_ne!(row(&text, size)[0], "0", "size {size}:\n{text}");
    }
    assert_eq!(row(&text, "all")[0], "800");
    assert_eq!(row(&text, "SRQ available"), ["64", "64", "yes"]);
    assert_eq!(row(&text, "SRQ outstanding"), ["64", "64", "yes"]);
}

/// Endpoints with receives of their own carry the same messages.
fn messages_come_back_without_an_srq() {
    let text = expect_verified(&pair(&["--plain", "--connections", "8", "--messages", "50"]), 400);
    assert_eq!(row(&text, "SRQ available"), ["-", "-", "-"]);
}

/// With fewer buffers than connections each connection still gets its turn.
fn more_connections_than_buffers_share_the_credits() {
    let load = ["--connections", "12", "--messages", "40", "--srq-depth", "5", "--sizes", "0,9,300"];
    let text = expect_verified(&pair(&load), 480);
    assert_eq!(row(&text, "SRQ available"), ["5", "5", "yes"]);
}

/// A client that dies with messages half sent does not harm the server: another client continues
/// meanwhile, and in the end all buffers, credits and files are back.
fn a_killed_client_takes_nothing_from_the_others() {
    let server = server(&["--srq-depth", "32"]);
    // After this run, everything that stays open is open.
    expect_verified(&client(&server, &["--connections", "1", "--messages", "5"]), 5);
    let before = files(&server);

    let survivor = ["--connections", "4", "--messages", "400", "--window", "2", "--sizes", "0,64,4096"];
    let survivor = Begun::new(&server, &survivor);
    let victim = ["--connections", "6", "--messages", "1000000", "--window", "2", "--sizes", "65536,1048576"];
    Begun::new(&server, &victim).kill();
    let (status, text, err) = survivor.end();
    assert_eq!(last_line(&text), "verified 1600 of 1600 messages", "{err}");
    assert_eq!(status, Some(0), "{err}");

    let load = ["--connections", "8", "--messages", "60", "--sizes", "0,64,65536"];
    until("all buffers are back", || {
        let next = client(&server, &load);
        let text = out(&next);
        assert_eq!(last_line(&text), "verified 480 of 480 messages");
        assert!(next.status.success(), "{}", String::from_utf8_lossy(&next.stderr));
        // Not reported as long as the server considers the killed process a client.
        let back = |name| row(&text, name) == ["32", "32", "yes"];
        back("SRQ available") && back("SRQ outstanding")
    });
    // Fewer where the first client's were not all closed yet when they were counted.
    until("the server has no more files than before", || files(&server) <= before);
}

/// A client whose server dies reports that in bounded time, with the number of verified messages.
fn a_killed_server_ends_the_client_with_an_error() {
    let mut server = server(&[]);
    let client = Begun::new(&server, &["--connections", "4", "--messages", "1000000"]);
    server.kill();
    let (status, text, err) = client.end();
    assert_eq!(status, Some(1), "{err}");
    let last = last_line(&text);
    assert!(last.starts_with("verified ") && last.ends_with(" of 4000000 messages"), "{last}");
    let reasons = err.lines().filter(|line| line.starts_with("doorbell-echo: ")).count();
    assert_eq!(reasons, 1, "{err}");
}

/// A client gets the credits that others leave; without any left it is refused, and a client that
/// ends returns its credits.
fn credits_are_for_all_clients_together() {
    let server = server(&["--srq-depth", "4", "--largest", "64"]);
    let greedy = Begun::new(&server, &["--connections", "2", "--messages", "1000000", "--sizes", "8"]);
    let late = client(&server, &["--connections", "1", "--messages", "1", "--sizes", "8"]);
    assert_eq!(late.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&late.stderr).contains("try again later"));
    greedy.kill();
    until("its credits are back", || {
        let next = client(&server, &["--connections", "2", "--messages", "20", "--sizes", "8,64"]);
        next.status.success() && last_line(&out(&next)) == "verified 40 of 40 messages"
    });
}

/// One line on standard error with the error, and status 2.
fn bad_input_gets_one_line_and_status_2() {
    let (server_device, client_device) = devices().unwrap();
    let small = server(&["--largest", "1024", "--srq-depth", "4"]);
    let taken = small.address.port().to_string();
    let nobody = SocketAddr::new(small.address.ip(), 1).to_string();
    let open = small.address.to_string();
    let cases: &[(&[&str], &str)] = &[
        (&["server", "--device", "nonesuch"], &client_device),
        (&["client", "--device", "nonesuch", "--server", "10.9.0.1"], &server_device),
        (&["pair", "--server-device", "nonesuch", "--client-device", &client_device], &server_device),
        (&["server", "--device", &server_device, "--bind", &taken], "already"),
        (&["server", "--device", &server_device, "--bind", "0", "--srq-depth", "2000000000"], "depth"),
        (&["client", "--device", &client_device, "--server", &nobody], "nobody listens"),
        (&["client", "--device", &client_device, "--server", &open, "--sizes", "1025"], "--largest 1025"),
    ];
    for (arguments, expected) in cases {
        let output = echo(arguments);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {err}");
        let line = err.lines().next().unwrap_or_default();
        assert!(line.starts_with("doorbell-echo: ") && line.contains(expected), "{arguments:?}: {err}");
        // In a pair, the server prints its own line first.
        assert_eq!(err.lines().count(), if arguments[0] == "pair" { 2 } else { 1 }, "{err}");
        assert_eq!(out(&output), "", "{arguments:?}");
    }
    for arguments in
        [["client", "--server", "somewhere"], ["pair", "--sizes", "x"], ["server", "--srq-depth", "0"]]
    {
        let output = echo(&arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: "));
    }
}
