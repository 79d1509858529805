//! The programs of provider/examples: a server and a client of each in processes of their own,
//! judged by their exit statuses and by what they print.
//!
//! Cargo.toml builds the sources as programs of this crate, so that cargo keeps them up to date
//! and names their executables.

use doorbell_hw_tests::{devices, tests};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Output, Stdio};

fn main() {
    doorbell_hw_tests::run(tests![
        srq_echo_returns_every_message,
        many_clients_share_fewer_buffers,
        rdma_write_notify_tells_of_every_write,
        storage_survives_clients_that_vanish_and_ends_cleanly,
        examples_explain_their_arguments,
    ])
    .exit();
}

const ECHO: &str = env!("CARGO_BIN_EXE_example-srq-echo");
const CLIENTS: &str = env!("CARGO_BIN_EXE_example-many-clients");
const WRITE: &str = env!("CARGO_BIN_EXE_example-rdma-write-notify");
const STORAGE: &str = env!("CARGO_BIN_EXE_example-storage");

/// The command line of a program that is ended, with status 124, if it takes too long.
fn limited(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["120", program]).args(arguments).stdin(Stdio::null());
    command
}

/// A server that listens; killed when dropped.
struct Server {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    address: String,
    port: String,
}

impl Server {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let (device, _) = devices().unwrap();
        let arguments = [&["server", &device], arguments].concat();
        let mut child = limited(program, &arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let place =
            line.trim().strip_prefix("listening at ").unwrap_or_else(|| panic!("{program}: {line:?}"));
        let (address, port) = place.split_once(' ').unwrap();
        Self { address: address.to_owned(), port: port.to_owned(), child, out }
    }

    fn client(&self, program: &str, arguments: &[&str]) -> Output {
        let (_, device) = devices().unwrap();
        let arguments = [&["client", &device, &self.address, &self.port], arguments].concat();
        limited(program, &arguments).output().unwrap()
    }

    /// Waits for its end; the rest of its output.
    #[track_caller]
    fn finish(mut self) -> String {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {rest}");
        rest
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs both ends and expects these last lines of them.
#[track_caller]
fn expect(program: &str, arguments: &[&str], server_says: &str, client_says: &str) {
    let server = Server::start(program, arguments);
    let client = server.client(program, arguments);
    let said = String::from_utf8_lossy(&client.stdout);
    let complained = String::from_utf8_lossy(&client.stderr);
    assert!(client.status.success(), "{}: {said}{complained}", client.status);
    assert_eq!(said.trim(), client_says);
    assert_eq!(server.finish().trim(), server_says);
}

fn srq_echo_returns_every_message() {
    expect(ECHO, &[], "echoed 100 messages; 64 of 64 buffers are on the SRQ", "verified 100 messages");
}

fn many_clients_share_fewer_buffers() {
    expect(
        CLIENTS,
        &["40"],
        "1000 messages from 40 clients through 16 buffers; 16 available, 16 outstanding",
        "sent 25 messages on each of 40 connections",
    );
}

fn rdma_write_notify_tells_of_every_write() {
    expect(WRITE, &[], "32 records of 64 bytes were written and verified", "wrote 32 records");
}

/// A client whose output is read line by line; killed when dropped.
struct Client {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Client {
    fn start(server: &Server, arguments: &[&str]) -> Self {
        let (_, device) = devices().unwrap();
        let arguments = [&["client", &device, &server.address, &server.port], arguments].concat();
        let mut child = limited(STORAGE, &arguments).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// Waits for its next line.
    #[track_caller]
    fn expect(&mut self, line: &str) {
        let mut said = String::new();
        self.out.read_line(&mut said).unwrap();
        assert_eq!(said.trim(), line);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // An error means that the processes have ended already.
        let _ = killpg(group(&self.child), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// timeout(1) has a process group of its own, with the program in it.
fn group(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().unwrap())
}

fn signal(child: &Child, signal: Signal) {
    killpg(group(child), signal).unwrap();
}

fn storage_survives_clients_that_vanish_and_ends_cleanly() {
    let server = Server::start(STORAGE, &[]);
    let mut polite = Client::start(&server, &[]);
    polite.expect("connecting");
    polite.expect("stored and read 64 records");
    let mut silent = Client::start(&server, &[]);
    silent.expect("connecting");
    silent.expect("stored and read 64 records");
    signal(&silent.child, Signal::SIGSTOP);

    // At some moment of the handshake, as chance has it.
    for _ in 0..10 {
        Client::start(&server, &[]).expect("connecting");
    }
    // Certainly before the accept: while the server stands still, the client gives up.
    signal(&server.child, Signal::SIGSTOP);
    let mut impatient = Client::start(&server, &["300"]);
    impatient.expect("connecting");
    assert!(!impatient.child.wait().unwrap().success());
    signal(&server.child, Signal::SIGCONT);
    let mut another = Client::start(&server, &[]);
    another.expect("connecting");
    another.expect("stored and read 64 records");

    signal(&server.child, Signal::SIGTERM);
    polite.expect("left");
    another.expect("left");
    // The silent client has to be disconnected. A graceful disconnect may do: then the device or the
    // kernel has taken its goodbye. All EPs, buffers and objects are gone without an error.
    let said = server.finish();
    assert!(said.contains("Graceful disconnect of 1 clients\n"), "{said}");
    let counts = said.lines().last().unwrap();
    let numbers: Vec<u64> = counts.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    let [stored, connected, not_accepted, not_connected] = numbers[..] else { panic!("{said}") };
    assert!(stored >= 3 * 64 && connected >= 3 && not_accepted + not_connected >= 1, "{said}");
}

fn examples_explain_their_arguments() {
    for program in [ECHO, CLIENTS, WRITE, STORAGE] {
        let output = limited(program, &["nonsense"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("usage: "), "{program}: {said}");
    }
}
