//! The latencies that dtest of the dapl project reports for each provider. DAT programs have long
//! been compared by these figures.

use std::{collections::BTreeMap, fmt::Write as _, fs, io, path::Path, process::Command};

use anyhow::{Context, Result, bail};
use comfy_table::Table;

use crate::{dat::DatPost, device, plan::Subject, report};

/// The subjects on which dtest is run.
pub const SUBJECTS: [Subject; 3] = [Subject::Libdaplofa, Subject::Provider, Subject::ProviderVerbs];

/// A figure of the client, in microseconds: its name here, the start of dtest's line behind the
/// process number, and the word before the number.
const FIGURES: [(&str, &str, &str); 4] = [
    ("message ping-pong, one way", "Message PingPong:", "latency"),
    ("RDMA write", "RDMA write (", "itime="),
    ("RDMA read", "RDMA read:", "itime="),
    ("connect", "connect:", "connect:"),
];

/// Server and client, which exchange addresses on a fixed TCP port (15828, hexadecimal 3DD4). The
/// script prints the client's output.
const PAIR: &str = r#"
[ -z "$OWN_NETWORK" ] || ip link set lo up || exit
[ -z "$DEVICE_LIBRARY" ] || export LD_PRELOAD=$DEVICE_LIBRARY
timeout 60 dtest -P "$IA" -s -b 4096 -t >"$SERVER_OUTPUT" 2>&1 </dev/null &
server=$!
until grep -qsi ':3DD4 [0-9A-F]*:0000 0A ' /proc/net/tcp /proc/net/tcp6; do
    kill -0 $server 2>/dev/null || { cat "$SERVER_OUTPUT"; exit 1; }
    LD_PRELOAD= sleep 0.01
done
timeout 60 dtest -P "$IA" -h localhost -b 4096 -t 2>&1 </dev/null
client=$?
wait $server && exit $client
"#;

/// Microseconds by figure and subject.
#[derive(Debug, Default)]
pub struct Latencies(BTreeMap<(usize, &'static str), Vec<f64>>);

impl Latencies {
    /// Runs dtest once for each provider and stores the figures.
    ///
    /// # Errors
    ///
    /// The output of dtest if it failed, or a text that names what is missing.
    pub fn measure(&mut self, dat: &DatPost) -> Result<()> {
        for subject in SUBJECTS {
            let output = pair(dat, subject)?;
            for (n, (name, line, word)) in FIGURES.into_iter().enumerate() {
                let found = figures(&output, line, word);
                // If there are several numbers, the first ones include the warm-up.
                let Some(least) = found.into_iter().min_by(f64::total_cmp) else {
                    bail!("dtest on {} says nothing of {name}:\n{output}", subject.name());
                };
                self.0.entry((n, subject.name())).or_default().push(least);
            }
        }
        Ok(())
    }

    /// The median of the measurements.
    fn median(&self, figure: usize, subject: Subject) -> Option<f64> {
        let mut all = self.0.get(&(figure, subject.name()))?.clone();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    }

    /// A table for people.
    pub fn to_table(&self) -> Table {
        let mut header = vec!["dtest -b 4096, µs"];
        header.extend(SUBJECTS.map(Subject::name));
        let mut table = report::table(&header, 1);
        for (n, (name, ..)) in FIGURES.into_iter().enumerate() {
            let mut row = vec![name.to_owned()];
            row.extend(SUBJECTS.map(|s| self.median(n, s).map_or("-".to_owned(), |us| format!("{us:.1}"))));
            table.add_row(row);
        }
        table
    }

    /// Writes a JSON array of objects with the keys `figure`, `subject` and `us`.
    ///
    /// # Errors
    ///
    /// The error of the file system.
    pub fn write_json(&self, path: &Path) -> io::Result<()> {
        let mut lines = vec![];
        for (n, (name, ..)) in FIGURES.into_iter().enumerate() {
            for subject in SUBJECTS {
                let Some(us) = self.median(n, subject) else { continue };
                let mut line = String::new();
                let _ = write!(
                    line,
                    "  {{\"figure\": \"{name}\", \"subject\": \"{}\", \"us\": {us:.2}}}",
                    subject.name()
                );
                lines.push(line);
            }
        }
        fs::write(path, format!("[\n{}\n]\n", lines.join(",\n")))
    }
}

/// Whether dtest is installed (package dapl2-utils).
pub fn available() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join("dtest").exists())
}

/// The client's output.
fn pair(dat: &DatPost, subject: Subject) -> Result<String> {
    // In a network namespace of its own, nobody else has the port. A real device is not visible
    // there.
    let alone = device::named().is_none()
        && Command::new("unshare").args(["--net", "true"]).output().is_ok_and(|out| out.status.success());
    let mut command = Command::new(if alone { "unshare" } else { "bash" });
    if alone {
        command.args(["--net", "bash"]);
    }
    command.args(["-c", PAIR]);
    command.env("OWN_NETWORK", if alone { "1" } else { "" });
    for (name, value) in dat.environment(subject) {
        command.env(name, value);
    }
    let output = command.output().context("cannot run bash")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() || !text.contains("PASSED") {
        bail!("dtest on {}:\n{text}{}", subject.name(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

/// The numbers behind `word` in the lines that start with a process number and `line`: `4711: RDMA
/// read: Total= ... itime= 8.11 usec`.
fn figures(output: &str, line: &str, word: &str) -> Vec<f64> {
    let of_line = |text: &str| -> Option<f64> {
        let rest = text.split_once(": ")?.1;
        let number = rest.strip_prefix(line).map(|_| rest)?.split_once(word)?.1.trim_start();
        number.split_whitespace().next()?.parse().ok()
    };
    output.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_behind_their_words() {
        let output = "31877 RDMA READ DATA with SEND MSG\n\
             31877: Message PingPong: (100 x 64) Total 38723.95 us: latency 193.62 us, BW 0.33 MB/s\n\
             31877: RDMA write (bi-direction): Total=69359.06 usec, itime= 34.68 us, poll=0, 2000 x 4096\n\
             31877: RDMA read:   Total=    647.07 usec,   4 bursts, itime=    183.11 usec, pc=0\n\
             31877: RDMA read:   Total=    647.07 usec,   4 bursts, itime=    134.94 usec, pc=0\n\
             31877: connect:      1156.09 usec, poll_cnt=0\n";
        let all = FIGURES.map(|(_, line, word)| figures(output, line, word));
        assert_eq!(all, [vec![193.62], vec![34.68], vec![183.11, 134.94], vec![1156.09]]);
    }
}
