//! A server and a client program, and what they have to print.

use crate::case::{Ends, is_mlx5};
use crate::setting;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The time limit of a pair of programs; `DOORBELL_PROGRAM_PATIENCE` sets it, in seconds.
fn patience() -> Duration {
    static PATIENCE: OnceLock<Duration> = OnceLock::new();
    *PATIENCE.get_or_init(|| match std::env::var("DOORBELL_PROGRAM_PATIENCE") {
        Ok(text) => {
            Duration::from_secs(text.parse().expect("DOORBELL_PROGRAM_PATIENCE is a number of seconds"))
        }
        // dtest's buffers of 4 MiB take minutes on an emulated processor.
        Err(_) => Duration::from_secs(if is_mlx5() { 240 } else { 600 }),
    })
}

/// A line of Doorbell's log. A program that causes it waits for a request that will never come.
pub(crate) const REFUSED_DATAGRAMS: &str = "no service point takes datagram requests there";

/// For `LD_LIBRARY_PATH`: the libdat2 of provider/dat2 before that of the system.
pub(crate) fn our_libdat2() -> String {
    let others = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    format!("{}:{others}", env!("DOORBELL_OUR_LIBDAT2"))
}

/// Whether everything runs under the libdat2 of provider/dat2: the system had none at build time,
/// or `DOORBELL_LIBDAT2=ours` is set.
pub(crate) fn only_ours() -> bool {
    env!("DOORBELL_ONLY_OUR_LIBDAT2") == "true"
        || std::env::var("DOORBELL_LIBDAT2").is_ok_and(|which| which == "ours")
}

/// The interval between two looks at a state that causes no event.
const GLANCE: Duration = Duration::from_millis(5);

/// How to tell that a server can be called.
#[derive(Clone, Copy)]
pub(crate) enum Ready {
    /// It prints this.
    Says(&'static str),
    /// It listens on this TCP port, where the programs exchange addresses.
    Tcp(u16),
}

/// A running program; dropping the value kills it.
pub(crate) struct Running {
    child: Child,
    name: String,
    output: Arc<Mutex<String>>,
    lines: Receiver<String>,
}

impl Running {
    /// Starts a program with this dat.conf and these environment variables. Standard output comes
    /// line by line, so that progress can be seen. An empty variable is removed.
    pub(crate) fn start_with(program: &str, args: &[String], conf: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new("stdbuf");
        command.arg("-oL").arg(program).args(args);
        if only_ours() {
            command.env("LD_LIBRARY_PATH", our_libdat2());
        }
        for (name, value) in variables {
            if value.is_empty() {
                command.env_remove(name)
            } else {
                command.env(name, value)
            };
        }
        command.env("DAT_OVERRIDE", setting().conf.join(conf));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{program}: {e}"));
        let output = Arc::new(Mutex::new(String::new()));
        let (sender, lines) = channel();
        let stdout = child.stdout.take().expect("it is piped");
        let stderr = child.stderr.take().expect("it is piped");
        let streams: [Box<dyn std::io::Read + Send>; 2] = [Box::new(stdout), Box::new(stderr)];
        for stream in streams {
            let (output, sender) = (output.clone(), sender.clone());
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                let mut bytes = Vec::new();
                while matches!(reader.read_until(b'\n', &mut bytes), Ok(n) if n > 0) {
                    let line = String::from_utf8_lossy(&bytes).into_owned();
                    output.lock().unwrap().push_str(&line);
                    // The receiver may have gone.
                    let _ = sender.send(line);
                    bytes.clear();
                }
            });
        }
        Self { child, name: format!("{program} {}", args.join(" ")), output, lines }
    }

    /// Waits until the server can be called.
    ///
    /// # Errors
    /// The program ended, or was not ready in time.
    pub(crate) fn await_ready(&mut self, ready: Ready) -> Result<(), String> {
        let end = Instant::now() + patience();
        match ready {
            Ready::Says(words) => {
                let mut said = String::new();
                while !said.contains(words) {
                    let left = end.saturating_duration_since(Instant::now());
                    said = self
                        .lines
                        .recv_timeout(left)
                        .map_err(|_| format!("{} never said {words:?}:\n{}", self.name, self.said()))?;
                }
            }
            Ready::Tcp(port) => {
                while !is_listening(port) {
                    if self.child.try_wait().unwrap().is_some() {
                        return Err(format!("{} ended:\n{}", self.name, self.said()));
                    }
                    if Instant::now() > end {
                        return Err(format!("{} does not listen:\n{}", self.name, self.said()));
                    }
                    std::thread::sleep(GLANCE);
                }
            }
        }
        Ok(())
    }

    /// Waits for the end of the program, and returns its output and its status.
    ///
    /// # Errors
    /// The program did not end in time, or has printed that it gave up a request and will wait for
    /// ever.
    pub(crate) fn end(&mut self) -> Result<(String, ExitStatus), String> {
        let end = Instant::now() + patience();
        // The reader threads drop the channel when the program has closed its output.
        while let Ok(line) = self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            if line.contains(REFUSED_DATAGRAMS) {
                return Err(format!("{} asked nobody:\n{}", self.name, self.said()));
            }
        }
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Ok((self.said(), status));
            }
            if Instant::now() > end {
                return Err(format!("{} hangs:\n{}", self.name, self.said()));
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// The same for a program that is known to end.
    pub(crate) fn finish(&mut self) -> (String, ExitStatus) {
        self.end().unwrap_or_else(|hangs| panic!("{hangs}"))
    }

    pub(crate) fn said(&self) -> String {
        self.output.lock().unwrap().clone()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the kernel's tables have this local port in state 0A (LISTEN).
fn is_listening(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        table.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().unwrap_or_default();
            local.ends_with(&format!(":{port:04X}")) && fields.nth(1) == Some("0A")
        })
    })
}

pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// A program of dapl2-utils that is both server and client.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) program: &'static str,
    pub(crate) ready: Ready,
    /// Arguments of both.
    pub(crate) args: &'static str,
    /// Arguments of the server.
    pub(crate) server_args: &'static str,
    /// Arguments of the client.
    pub(crate) client_args: &'static str,
    /// What both have to print, all of it.
    pub(crate) says: &'static [&'static str],
}

impl Pair {
    pub(crate) fn run(self, ends: &Ends) -> Result<(), String> {
        let ia = format!("-P {} {}", crate::IA, self.args);
        let mut server = ends.server(self.program, &words(&format!("{ia} {}", self.server_args)));
        server.await_ready(self.ready)?;
        let mut client =
            ends.client(self.program, &words(&format!("{ia} {} -h {}", self.client_args, setting().server)));
        let (client_said, status) = client.end()?;
        let missing = |said: &str| self.says.iter().copied().find(|says| !said.contains(says));
        if let Some(says) = missing(&client_said) {
            let server_said = server.said();
            return Err(format!(
                "no {says:?} from the client ({status}):\n{client_said}\nserver:\n{server_said}"
            ));
        }
        let (server_said, status) = server.end()?;
        if let Some(says) = missing(&server_said) {
            return Err(format!(
                "no {says:?} from the server ({status}):\n{server_said}\nclient:\n{client_said}"
            ));
        }
        Ok(())
    }
}
