//! Another process of the same executable, which talks to this one by lines on its standard input
//! and output.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The other process; killed when dropped.
pub(crate) struct Other {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Other {
    /// Starts this executable with these arguments and environment variables.
    pub(crate) fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// The next line that the other process has printed by [`say`].
    pub(crate) fn says(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the other process has ended");
            if let Some(words) = line.trim().strip_prefix("=> ") {
                return words.to_owned();
            }
        }
    }

    /// Sends a line, which the other process reads by [`line`].
    pub(crate) fn tell(&mut self, words: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{words}").unwrap();
    }

    /// Waits until the other process has ended with status 0.
    pub(crate) fn ends_well(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the other process: prints a line for this one.
pub(crate) fn say(words: &str) {
    // On a line of its own: the test harness may have begun a line.
    println!("\n=> {words}");
}

/// In the other process: reads the next line.
pub(crate) fn line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}
