//! The latencies that dtest of the dapl project reports for each provider. DAT programs have long
//! been compared by these figures.

use std::{collections::BTreeMap, fs, process::Command};

use anyhow::{Context, Result, bail};
use comfy_table::Table;
use nix::{sched, unistd::Pid};

use crate::{dat::DatPost, device, host, plan::Subject, report};

/// The subjects on which dtest is run.
pub const SUBJECTS: [Subject; 3] = [Subject::Libdaplofa, Subject::Provider, Subject::ProviderVerbs];

/// How dtest's lines become a figure.
#[derive(Clone, Copy)]
enum Reading {
    /// The only number, a mean of many operations.
    Mean,
    /// The only number, of a single call. dtest reads a clock of whole microseconds and computes in
    /// floating point: the figure is rounded to what the clock said.
    Single,
    /// Of several single operations the fastest, the median, and the sum.
    Least,
    Median,
    Sum,
}

/// A figure: its name here, the start of dtest's line behind the process number, the word before
/// the number, and the reading.
type Figure = (&'static str, &'static str, &'static str, Reading);

const FIGURES: [Figure; 17] = [
    ("message ping-pong, one way", "Message PingPong:", "latency", Reading::Mean),
    ("RDMA Write", "RDMA write (", "itime=", Reading::Mean),
    ("RDMA Read, least of four", "RDMA read:", "itime=", Reading::Least),
    ("RDMA Read, median of four", "RDMA read:", "itime=", Reading::Median),
    ("RDMA Read, all four", "RDMA read:", "itime=", Reading::Sum),
    ("connect", "connect:", "connect:", Reading::Single),
    ("open", "open:", "open:", Reading::Single),
    ("close", "close:", "close:", Reading::Single),
    ("PZ create", "PZ create:", "PZ create:", Reading::Single),
    ("PZ free", "PZ free:", "PZ free:", Reading::Single),
    ("LMR create", "LMR create:", "LMR create:", Reading::Single),
    ("LMR free", "LMR free:", "LMR free:", Reading::Single),
    ("EVD create", "EVD create:", "EVD create:", Reading::Single),
    ("EVD free", "EVD free:", "EVD free:", Reading::Single),
    ("EP create", "EP create:", "EP create:", Reading::Single),
    ("EP free", "EP free:", "EP free:", Reading::Single),
    ("total", "TOTAL:", "TOTAL:", Reading::Single),
];

/// The figure that only the client prints.
const CLIENT_ONLY: &str = "connect";

const ENDS: [&str; 2] = ["server", "client"];

/// Server and client, which exchange addresses on a fixed TCP port (15828, hexadecimal 3DD4). The
/// script prints the client's output; the server's is in a file.
const PAIR: &str = r#"
[ -z "$OWN_NETWORK" ] || ip link set lo up || exit
# The commands below stay off the server's processor.
taskset -p -c "$CLIENT_PROCESSOR" $$ >/dev/null || exit
export LD_PRELOAD=$SHORT_SLEEP${DEVICE_LIBRARY:+:$DEVICE_LIBRARY}
timeout 60 taskset -c "$SERVER_PROCESSOR" dtest -P "$IA" -s -b 4096 -t >"$SERVER_OUTPUT" 2>&1 </dev/null &
server=$!
until grep -qsi ':3DD4 [0-9A-F]*:0000 0A ' /proc/net/tcp /proc/net/tcp6; do
    kill -0 $server 2>/dev/null || { cat "$SERVER_OUTPUT"; exit 1; }
    LD_PRELOAD= sleep 0.01
done
said=$(timeout 60 taskset -c "$CLIENT_PROCESSOR" dtest -P "$IA" -h localhost -b 4096 -t 2>&1 </dev/null)
client=$?
printf '%s\n' "$said"
# dtest exits with 0 after most failures, and the server would wait a minute for another client.
[[ $said == *PASSED* ]] || kill $server
wait $server && exit $client
"#;

/// The orders of the subjects, one for each round. A run finds the files and code of the run before
/// in the processor's caches, and two of the subjects are the same library, so each subject has to
/// follow each other one.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];

/// The free memory that is used before each run: more than two dtests use.
const FREE_MEMORY: usize = 256 << 20;

/// What dtest's client says when its connection request is rejected. dtest's server sends the client
/// its port before it creates the PSP (dtest.c, `connect_ep`), so a request can arrive too early.
const TOO_EARLY: &str = "unexpected conn event : 0x4003";

/// The number of runs in a row in which the client may be rejected before the measurement fails.
const ATTEMPTS: usize = 5;

/// Microseconds by figure, end and subject, of each round.
#[derive(Debug, Default)]
pub struct Latencies(BTreeMap<(usize, usize, &'static str), Vec<f64>>);

impl Latencies {
    /// Runs dtest once for each provider, in the order of this round, and stores the figures.
    ///
    /// # Errors
    ///
    /// The output of dtest if it failed, or a text that names what is missing.
    pub fn measure(&mut self, dat: &DatPost, round: usize) -> Result<()> {
        for n in ORDERS[round % ORDERS.len()] {
            let subject = SUBJECTS[n];
            let outputs = pair_in_time(dat, subject)?;
            for (end, output) in outputs.iter().enumerate() {
                for (n, figure) in figures_of(end) {
                    let Some(us) = read(output, figure) else {
                        bail!(
                            "dtest's {} on {} says nothing of {}:\n{output}",
                            ENDS[end],
                            subject.name(),
                            figure.0
                        );
                    };
                    self.0.entry((n, end, subject.name())).or_default().push(us);
                }
            }
        }
        Ok(())
    }

    /// The median of the measurements.
    fn median(&self, figure: usize, end: usize, subject: Subject) -> Option<f64> {
        Some(median(self.0.get(&(figure, end, subject.name()))?))
    }

    /// The number of rounds in which the subject was slower than libdaplofa, and the number of rounds.
    fn slower(&self, figure: usize, end: usize, subject: Subject) -> (usize, usize) {
        let of = |subject: Subject| self.0.get(&(figure, end, subject.name())).into_iter().flatten();
        let rounds = of(subject).zip(of(SUBJECTS[0]));
        (rounds.clone().filter(|(us, reference)| us > reference).count(), rounds.count())
    }

    /// A table for people. An asterisk marks a figure that is slower than libdaplofa's, with the
    /// number of rounds in which it was slower, of all rounds.
    pub fn to_table(&self) -> Table {
        let mut header = vec!["dtest -b 4096, µs", "end"];
        header.extend(SUBJECTS.map(Subject::name));
        let mut table = report::table(&header, 2);
        for (n, (name, ..)) in FIGURES.into_iter().enumerate() {
            for (end, end_name) in ENDS.into_iter().enumerate() {
                let Some(reference) = self.median(n, end, SUBJECTS[0]) else { continue };
                let mut row = vec![name.to_owned(), end_name.to_owned()];
                row.extend(SUBJECTS.map(|subject| match self.median(n, end, subject) {
                    Some(us) if us > reference => {
                        let (slower, rounds) = self.slower(n, end, subject);
                        format!("* {us:.1} ({slower}/{rounds})")
                    }
                    Some(us) => format!("{us:.1}"),
                    None => "-".to_owned(),
                }));
                table.add_row(row);
            }
        }
        table
    }

    /// The medians.
    pub fn lines(&self) -> Vec<Line> {
        let line = |(&(figure, end, subject), all): (&(usize, usize, &str), &Vec<f64>)| Line {
            figure: FIGURES[figure].0.to_owned(),
            end: ENDS[end].to_owned(),
            subject: subject.to_owned(),
            us: (median(all) * 100.0).round() / 100.0,
        };
        self.0.iter().map(line).collect()
    }
}

/// The median of one figure.
#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
pub struct Line {
    /// What dtest times.
    pub figure: String,
    /// Server or client.
    pub end: String,
    /// The name of the subject.
    pub subject: String,
    /// Microseconds.
    pub us: f64,
}

/// The figures that this end prints, with their places in [`FIGURES`].
fn figures_of(end: usize) -> impl Iterator<Item = (usize, Figure)> {
    FIGURES.into_iter().enumerate().filter(move |(_, (name, ..))| end == 1 || *name != CLIENT_ONLY)
}

/// The median; of an even number of values the higher of the two in the middle.
fn median(values: &[f64]) -> f64 {
    let mut all = values.to_vec();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Whether dtest is installed (package dapl2-utils).
pub fn available() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join("dtest").exists())
}

/// The outputs of server and client. A pair whose client is rejected is run again.
fn pair_in_time(dat: &DatPost, subject: Subject) -> Result<[String; 2]> {
    for _ in 1..ATTEMPTS {
        match pair(dat, subject) {
            Err(error) if error.to_string().contains(TOO_EARLY) => {
                eprintln!(
                    "dtest on {}: the client connected before the server listened, running both again",
                    subject.name()
                );
            }
            outcome => return outcome,
        }
    }
    pair(dat, subject)
}

/// The processors of server and client: the first two that this process may use, or twice the only
/// one.
fn processors() -> Result<[usize; 2]> {
    let set = sched::sched_getaffinity(Pid::this())?;
    let mut usable = (0..sched::CpuSet::count()).filter(|&n| set.is_set(n).unwrap_or(false));
    let first = usable.next().context("no processor")?;
    Ok([first, usable.next().unwrap_or(first)])
}

/// The outputs of server and client.
fn pair(dat: &DatPost, subject: Subject) -> Result<[String; 2]> {
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
    command.envs(dat.environment(subject));
    let [server, client] = processors()?;
    command.env("SERVER_PROCESSOR", server.to_string()).env("CLIENT_PROCESSOR", client.to_string());
    host::bring_back(FREE_MEMORY);
    let output = command.output().context("cannot run bash")?;
    let client = String::from_utf8_lossy(&output.stdout).into_owned();
    let server = fs::read(dat.server_output()).unwrap_or_default();
    let server = String::from_utf8_lossy(&server).into_owned();
    if !output.status.success() || ![&server, &client].iter().all(|text| text.contains("PASSED")) {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("dtest on {}:\n{server}\n{client}{said}", subject.name());
    }
    Ok([server, client])
}

/// The value of a figure in what one end printed.
fn read(output: &str, (_, line, word, reading): Figure) -> Option<f64> {
    let numbers = figures(output, line, word);
    match reading {
        Reading::Mean => numbers.last().copied(),
        Reading::Single => numbers.last().map(|us| us.round()),
        Reading::Least => numbers.into_iter().min_by(f64::total_cmp).map(f64::round),
        Reading::Median => (!numbers.is_empty()).then(|| median(&numbers).round()),
        Reading::Sum => (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>().round()),
    }
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
             31877: RDMA read:   Total=    647.07 usec,   4 bursts, itime=    150.92 usec, pc=0\n\
             31877: open:         3279.92 usec\n\
             31877: PZ create:       1.91 usec\n\
             31877: PZ free:         1.19 usec\n\
             31877: connect:      1156.09 usec, poll_cnt=0\n\
             31877: TOTAL:        4821.78 usec\n";
        let all: Vec<_> = figures_of(1).map(|(_, figure)| read(output, figure)).collect();
        let found: Vec<_> = all.iter().copied().flatten().collect();
        assert_eq!(found, [193.62, 34.68, 135.0, 151.0, 469.0, 1156.0, 3280.0, 2.0, 1.0, 4822.0]);
        // Nothing is made up for what is not printed, and the server's connect is not asked for.
        assert_eq!(all.len() - found.len(), 7);
        assert_eq!(figures_of(0).count(), 16);
    }

    #[test]
    fn slower_figures_are_marked() {
        let mut latencies = Latencies::default();
        let rounds = [vec![4.0, 4.0, 9.0], vec![3.0, 4.0, 9.0], vec![5.0, 5.0, 8.0]];
        for (subject, us) in SUBJECTS.into_iter().zip(rounds) {
            latencies.0.insert((1, 0, subject.name()), us);
        }
        let table = latencies.to_table().to_string();
        assert_eq!((table.matches('*').count(), table.matches("* 5.0 (2/3)").count()), (1, 1), "{table}");
    }
}
