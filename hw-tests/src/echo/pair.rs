//! Both ends at once: the server as a child process, the client in this one.

use super::Failure;
use super::client::{self, Load};
use super::report::Outcome;
use super::server::Buffers;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

/// A server in a process of its own; ended when this is dropped.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
}

impl ServerProcess {
    /// Starts `program`, a doorbell-echo, as a server and waits until it listens.
    ///
    /// # Errors
    /// [`Failure::Setup`] if the server does not start; it prints the reason on standard error.
    pub fn start(program: &std::path::Path, arguments: &[String]) -> Result<Self, Failure> {
        let failed = |e| Failure::setup(&format!("cannot start {}", program.display()), e);
        let mut child = Command::new(program)
            .args(["server", "--with-parent", "--bind", "0"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut lines =
            BufReader::new(child.stdout.take().ok_or_else(|| Failure::Setup("no pipe".to_owned()))?);
        let mut first = String::new();
        let address = lines.read_line(&mut first).ok().and_then(|_| listening(&first));
        let Some(address) = address else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Failure::Setup("the server did not start".to_owned()));
        };
        // A full pipe would stop the server.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Ok(Self { child, address })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it, as it would be by a crash.
    pub fn kill(&mut self) {
        // An error means that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Address and port in the first line that a server prints.
fn listening(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.strip_prefix("listening on ")?.split_once(", address ")?;
    let (address, rest) = rest.split_once(", port ")?;
    let (port, _) = rest.split_once(':')?;
    Some(SocketAddr::new(address.parse().ok()?, port.parse().ok()?))
}

/// Runs the load between two devices, or one and itself.
///
/// # Errors
/// [`Failure::Setup`] where no message could be sent; what fails later is in the outcome.
pub fn run(
    server_device: &str,
    client_device: &str,
    buffers: Buffers,
    load: &Load,
) -> Result<Outcome, Failure> {
    let program = std::env::current_exe().map_err(|e| Failure::setup("where is this program", e))?;
    let mut arguments = vec![format!("--device={server_device}"), format!("--largest={}", load.largest())];
    arguments.extend(buffers.srq_depth.map(|depth| format!("--srq-depth={depth}")));
    arguments.extend(buffers.plain.then(|| "--plain".to_owned()));
    let server = ServerProcess::start(&program, &arguments)?;
    client::run(client_device, server.address, load)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_says_where_it_listens() {
        let line = "listening on rxeA, address 10.9.0.1, port 50123: 64 buffers of 9 bytes, one SRQ\n";
        assert_eq!(listening(line), Some("10.9.0.1:50123".parse().unwrap()));
        assert_eq!(listening("thread 'main' panicked"), None);
        assert_eq!(listening(""), None);
    }
}
