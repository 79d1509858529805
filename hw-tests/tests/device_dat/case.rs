//! Runs a program, or a server and a client, on one provider or two; counts runs and writes
//! reports.
//!
//! | variable | meaning |
//! |---|---|
//! | `DOORBELL_PROGRAMS_ON=libdaplofa` | both ends on libdaplofa, to compare |
//! | `DOORBELL_PROGRAM_RUNS=20` | so many runs of each, all of which have to pass |
//! | `DOORBELL_PROGRAM_REPORT=FILE` | a line for each is added to it: name, provider, passed, runs, median of seconds, first failure |
//! | `DOORBELL_PROGRAM_PATIENCE=60` | seconds that a program may take |
//! | `DOORBELL_PROGRAMS=short` | without what takes long on rxe |

use crate::one_at_a_time;
use crate::pair::{REFUSED_DATAGRAMS, Running, only_ours, our_libdat2};
use doorbell_hw_tests::devices;
use libtest_mimic::Trial;
use std::env::var;
use std::io::Write;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Provider {
    Doorbell,
    Libdaplofa,
}

impl Provider {
    fn name(self) -> &'static str {
        match self {
            Self::Doorbell => "doorbell",
            Self::Libdaplofa => "libdaplofa",
        }
    }

    fn conf(self, end: &str) -> String {
        match self {
            Self::Doorbell => end.to_owned(),
            Self::Libdaplofa => format!("ofa-{end}"),
        }
    }
}

/// What runs at each end.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    server: Provider,
    client: Provider,
    /// The data path of Doorbell.
    path: &'static str,
    /// Whether it runs under the libdat2 of provider/dat2, although the system has one.
    ours: bool,
}

impl Ends {
    const fn both(provider: Provider, path: &'static str) -> Self {
        Self { server: provider, client: provider, path, ours: false }
    }

    pub(crate) fn server(&self, program: &str, args: &[String]) -> Running {
        self.start(program, args, &self.server.conf("a"))
    }

    pub(crate) fn client(&self, program: &str, args: &[String]) -> Running {
        self.start(program, args, &self.client.conf("b"))
    }

    fn start(&self, program: &str, args: &[String], conf: &str) -> Running {
        let libraries = our_libdat2();
        let mut variables = vec![("DOORBELL_DATAPATH", self.path), ("DOORBELL_LOG", "info")];
        if self.ours {
            variables.push(("LD_LIBRARY_PATH", &libraries));
        }
        Running::start_with(program, args, conf, &variables)
    }

    /// The end of a test's name.
    fn suffix(&self) -> String {
        let registry = if self.ours { "_under_our_libdat2" } else { "" };
        match (self.server, self.client) {
            (Provider::Libdaplofa, Provider::Libdaplofa) if self.ours => {
                format!("_by_libdaplofa{registry}")
            }
            (Provider::Libdaplofa, Provider::Libdaplofa) => String::new(),
            (Provider::Doorbell, Provider::Doorbell) => format!("_by_{}{registry}", self.path),
            (server, client) => format!("_from_{}_to_{}{registry}", client.name(), server.name()),
        }
    }

    fn name(&self) -> String {
        if self.server == self.client {
            self.server.name().to_owned()
        } else {
            format!("{} to {}", self.client.name(), self.server.name())
        }
    }
}

/// The data paths of the devices at hand.
pub(crate) fn paths() -> &'static [&'static str] {
    if is_mlx5() { &["direct", "verbs"] } else { &["verbs"] }
}

pub(crate) fn is_mlx5() -> bool {
    devices().is_some_and(|(device, _)| device.starts_with("mlx5"))
}

/// Iterations of a program: fewer on rxe in the test machine, where a message takes 0.2 ms.
pub(crate) fn iterations(n: u32) -> u32 {
    if is_mlx5() { n } else { n / 32 }
}

type Run = Box<dyn Fn(&Ends) -> Result<(), String> + Send + Sync>;

/// A program or a pair of programs, and the combinations in which it runs.
pub(crate) struct Case {
    /// The first part of the test's name.
    pub(crate) name: String,
    /// Whether it also runs between Doorbell and libdaplofa, in both directions.
    pub(crate) mixed: bool,
    pub(crate) run: Run,
}

/// What runs once more under the libdat2 of provider/dat2: `DOORBELL_LIBDAT2=ours` runs all under
/// it.
const UNDER_OURS: &[&str] = &["dtest_b_65536", "dtestsrq_c_1", "dtestx", "dapltest_T_sr"];

/// What `DOORBELL_PROGRAMS=short` leaves out on rxe: each takes up to minutes there, and differs from
/// one that stays in what no device decides. All of them run on the software device as well.
const LONG_ON_RXE: &[&str] = &[
    "dtest",
    "dtest_b_65536_w",
    "dtest_b_65536_S_1",
    "dtest_b_65536_D",
    "dtest_b_65536_p",
    "dtest_b_65536_c",
    "dtest_b_65536_W_B_100",
    "dtestcm_c_100_w",
    "dtestcm_c_1000",
    "dtestsrq_c_2",
    "dtestsrq_B_10_t_10",
    "dtestsrq_c_16_B_100",
    "dtestsrq_c_16_B_100_S_0",
    "dtestsrq_u_c_1",
    "dtestsrq_u_c_2",
    "dapltest_T_sr_polled",
    "dapltest_T_sr_threads",
    "dapltest_T_mix",
    "dapltest_T_mix_large",
    "dapltest_T_mix_endpoints",
    "dapltest_T_mix_threads",
    "dapltest_P_rw_segments",
    "dapltest_P_rw_bandwidth",
    "dapltest_P_rw_latency_blocking",
    "dapltest_P_rw_latency_polling",
    "dapltest_P_rr_deep",
];

/// Makes a test for each combination of providers and data paths.
pub(crate) fn trials(cases: impl Fn() -> Vec<Case>) -> Vec<Trial> {
    use Provider::{Doorbell, Libdaplofa};
    let other = std::path::Path::new("/usr/lib/x86_64-linux-gnu/libdaplofa.so.2").exists();
    let alone: Vec<Ends> = match var("DOORBELL_PROGRAMS_ON").as_deref() {
        Err(_) | Ok("doorbell") => paths().iter().map(|path| Ends::both(Doorbell, path)).collect(),
        Ok("libdaplofa") => vec![Ends::both(Libdaplofa, "auto")],
        Ok(what) => panic!("DOORBELL_PROGRAMS_ON is doorbell or libdaplofa, not {what:?}"),
    };
    let mut trials = Vec::new();
    for ends in &alone {
        trials.extend(cases().into_iter().map(|case| trial(case, *ends)));
    }
    if other && alone[0].server == Doorbell {
        for (server, client) in [(Libdaplofa, Doorbell), (Doorbell, Libdaplofa)] {
            let ends = Ends { server, client, path: "auto", ours: false };
            trials.extend(cases().into_iter().filter(|case| case.mixed).map(|case| trial(case, ends)));
        }
    }
    if !only_ours() {
        let pairs = [(Doorbell, Doorbell), (Libdaplofa, Libdaplofa), (Libdaplofa, Doorbell)];
        for (server, client) in pairs.into_iter().take(if other { 3 } else { 1 }) {
            let ends = Ends { server, client, path: "auto", ours: true };
            let some = |case: &Case| UNDER_OURS.contains(&case.name.as_str());
            trials.extend(cases().into_iter().filter(some).map(|case| trial(case, ends)));
        }
    }
    trials
}

fn trial(case: Case, ends: Ends) -> Trial {
    // Which libdat2 loads the provider makes no difference to the device. Pairs with libdaplofa fail on
    // rxe now and then (hw-tests/README.md); all of them run on the software device as well.
    let mixed = ends.server != ends.client;
    let long = LONG_ON_RXE.contains(&case.name.as_str()) || ends.ours || mixed;
    let skip = long && !is_mlx5() && var("DOORBELL_PROGRAMS").as_deref() == Ok("short");
    let trial =
        one_at_a_time(case.name.clone() + &ends.suffix(), move || runs(&case, ends).map_err(Into::into));
    if skip {
        trial.with_kind("not on rxe with DOORBELL_PROGRAMS=short").with_ignored_flag(true)
    } else {
        trial
    }
}

/// Output of programs that run into a race of their own. Such a program is run again, unless runs
/// are counted.
const RACES: &[Race] = &[
    // The servers of dtest and dtestx tell the client where to connect before they listen there.
    Race { says: "unexpected conn event : 0x4003", rxe: false, libdaplofa: false },
    Race { says: "unexpected event, !conn established: 0x4003", rxe: false, libdaplofa: false },
    Race { says: REFUSED_DATAGRAMS, rxe: false, libdaplofa: false },
    // dtestx sleeps for a second where it should wait for its peer: an end that was delayed for longer
    // meets a swap, a sum or a disconnect too early.
    Race { says: "ERROR: Server CMP_SWAP", rxe: false, libdaplofa: false },
    Race { says: "ERROR: Client CMP_SWAP", rxe: false, libdaplofa: false },
    Race { says: "ERROR: Server FETCH_ADD", rxe: false, libdaplofa: false },
    Race { says: "second FETCH and ADD", rxe: false, libdaplofa: false },
    Race { says: "after second post_fetch_and_add", rxe: false, libdaplofa: false },
    // dapltest's threads report their end before they have freed their memory, whose list is freed
    // meanwhile (DT_Thread_Destroy). The server then reports one block of memory, and its heap is
    // damaged.
    Race { says: "file: dapl_thread.c, \tMemType:THREAD", rxe: false, libdaplofa: false },
    // rxe copies a packet into memory in any order, and `dtest -W` takes the last byte for the last
    // one that arrives.
    Race { says: "Tx data from server wrong", rxe: true, libdaplofa: false },
    Race { says: "ERR: message len is", rxe: true, libdaplofa: false },
    // rxe acknowledges late, and libdaplofa does not wait for that: see hw-tests/README.md.
    Race { says: "ERROR rdma_write: status=0x1", rxe: true, libdaplofa: true },
    Race { says: "DTO REQ size 0, status 1", rxe: true, libdaplofa: true },
];

struct Race {
    says: &'static str,
    /// These happen on rxe only.
    rxe: bool,
    /// These happen only if libdaplofa is at one end.
    libdaplofa: bool,
}

impl Race {
    fn fits(&self, what: &str, ends: &Ends) -> bool {
        let libdaplofa = [ends.server, ends.client].contains(&Provider::Libdaplofa);
        what.contains(self.says) && !(self.rxe && is_mlx5()) && (!self.libdaplofa || libdaplofa)
    }
}

fn runs(case: &Case, ends: Ends) -> Result<(), String> {
    let counted = var("DOORBELL_PROGRAM_RUNS")
        .ok()
        .map(|text| text.parse().expect("DOORBELL_PROGRAM_RUNS is a number"));
    let runs: usize = counted.unwrap_or(1);
    let (mut times, mut failure) = (Vec::new(), None);
    for _ in 0..runs {
        let start = Instant::now();
        let mut outcome = (case.run)(&ends);
        for _ in 0..4 {
            let Err(what) = &outcome else { break };
            let race = RACES.iter().find(|race| counted.is_none() && race.fits(what, &ends));
            let Some(race) = race else { break };
            eprintln!("{}: {:?}: again", case.name, race.says);
            outcome = (case.run)(&ends);
        }
        match outcome {
            Ok(()) => times.push(start.elapsed()),
            Err(what) => failure = failure.or(Some(what)),
        }
    }
    if counted.is_some() {
        eprintln!("{}: {} of {runs}", case.name, times.len());
    }
    report(case, &ends, runs, &mut times, failure.as_deref());
    failure.map_or(Ok(()), |what| {
        let why = complaint(&what).map_or(String::new(), |line| format!("{:?}: ", line.trim()));
        Err(format!("{} of {runs} passed; {why}{what}", times.len()))
    })
}

/// The first line of a program's output that complains.
fn complaint(what: &str) -> Option<&str> {
    what.lines()
        .find(|line| ["rror", "ERR", "Err ", "hangs", "failed"].iter().any(|word| line.contains(word)))
}

fn report(case: &Case, ends: &Ends, runs: usize, times: &mut [Duration], failure: Option<&str>) {
    let Ok(path) = var("DOORBELL_PROGRAM_REPORT") else { return };
    times.sort_unstable();
    let median =
        times.get(times.len() / 2).map_or("-".to_owned(), |time| format!("{:.1}", time.as_secs_f64()));
    let why = failure.and_then(|what| complaint(what).or(what.lines().next()));
    let why = why.unwrap_or("").trim().replace('\t', " ");
    let by = if ends.server == Provider::Doorbell {
        format!("{} {}", ends.name(), ends.path)
    } else {
        ends.name()
    };
    let mut file =
        std::fs::OpenOptions::new().append(true).create(true).open(&path).expect("the report can be written");
    writeln!(file, "{}\t{by}\t{}\t{runs}\t{median}\t{why}", case.name, times.len())
        .expect("the report can be written");
}
