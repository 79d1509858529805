//! The programs of provider/examples: a server and a client of each in processes of their own,
//! judged by their exit statuses and by what they print.
//!
//! Cargo.toml builds the sources as programs of this crate, so that cargo keeps them up to date
//! and names their executables.

use doorbell_hw_tests::{devices, tests};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Output, Stdio};

fn main() {
    doorbell_hw_tests::run(tests![
        srq_echo_returns_every_message,
        many_clients_share_fewer_buffers,
        rdma_write_notify_tells_of_every_write,
        examples_explain_their_arguments,
    ])
    .exit();
}

const ECHO: &str = env!("CARGO_BIN_EXE_example-srq-echo");
const CLIENTS: &str = env!("CARGO_BIN_EXE_example-many-clients");
const WRITE: &str = env!("CARGO_BIN_EXE_example-rdma-write-notify");

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

fn examples_explain_their_arguments() {
    for program in [ECHO, CLIENTS, WRITE] {
        let output = limited(program, &["nonsense"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("usage: "), "{program}: {said}");
    }
}
