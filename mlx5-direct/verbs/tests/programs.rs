//! Unchanged verbs programs with and without the library, as pairs of processes on the software
//! device, which refuses what hardware would not accept.
//!
//! Each test says which objects the library has to take over in each process: a test without a
//! queue of the library's would prove nothing.
#![allow(missing_docs)]

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

#[path = "../../../hw-tests/mlx5-emu/tests/common/pairs.rs"]
mod pairs;
#[path = "../../../hw-tests/mlx5-emu/tests/common/programs.rs"]
mod programs;
#[path = "common/random_calls.rs"]
mod random_calls;

/// From this package's folder.
const WITH_EMU: &str = "../../hw-tests/with-emu";

const RUN: &str = env!("CARGO_BIN_EXE_doorbell-run");

/// Objects that were taken over, and objects that were seen.
type Share = (u32, u32);

/// What a process printed at its end: contexts, CQs, SRQs, QPs, and refused creations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    contexts: Share,
    cqs: Share,
    srqs: Share,
    qps: Share,
    refused: u32,
}

/// The counts of each process in this output.
fn counts(output: &str) -> Vec<Counts> {
    // Two processes may write at the same time, so a line may begin anywhere.
    let reports = output.split("taken over: ").skip(1);
    let reports = reports.filter_map(|report| {
        let text: String = report.chars().map(|c| if c.is_ascii_digit() { c } else { ' ' }).collect();
        let numbers: Vec<u32> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let share = |n: usize| Some((*numbers.get(n)?, *numbers.get(n + 1)?));
        Some(Counts {
            contexts: share(0)?,
            cqs: share(2)?,
            srqs: share(4)?,
            qps: share(6)?,
            refused: *numbers.get(8)?,
        })
    });
    reports.collect()
}

/// Which objects each process has.
#[derive(Clone, Copy)]
enum Taken {
    /// Every object that the program makes, and this many QPs.
    All(u32),
    /// As `All`, and an SRQ in at least one of the processes.
    AllWithSrq(u32),
    /// An XRC program: its receives are left. The sends are taken over in the processes that send.
    Sends,
}

impl Taken {
    fn check(self, output: &str) -> Result<(), Failed> {
        let counts = counts(output);
        if counts.len() != 2 {
            return Err(format!("{} processes reported, not 2:\n{output}", counts.len()).into());
        }
        let whole = |(taken, seen): Share| taken == seen;
        let right = |c: &Counts| {
            c.contexts == (1, 1)
                && c.refused == 0
                && match self {
                    Self::All(qps) | Self::AllWithSrq(qps) => {
                        c.qps == (qps, qps) && c.cqs.0 > 0 && whole(c.cqs) && whole(c.srqs)
                    }
                    Self::Sends => true,
                }
        };
        let somewhere = |c: &Counts| match self {
            Self::All(_) => true,
            Self::AllWithSrq(_) => c.srqs.0 > 0,
            Self::Sends => c.qps.0 > 0 && c.cqs.0 > 0,
        };
        if counts.iter().all(right) && counts.iter().any(somewhere) {
            Ok(())
        } else {
            Err(format!("{counts:?}\n{output}").into())
        }
    }
}

fn pair(command: &str, taken: Taken) -> Result<Completion, Failed> {
    let launcher = format!("{RUN} --stats");
    let Some(output) = pairs::pair(&launcher, command, "-p")? else {
        return Ok(Completion::ignored_with("the program is not installed"));
    };
    taken.check(&output).map(|()| Completion::Completed)
}

/// A pair over librdmacm, whose programs exit with 0 when all went well.
fn cm_pair(server: &str, client: &str) -> Result<Completion, Failed> {
    let program = server.split(' ').next().unwrap_or(server);
    if !programs::installed(program) {
        return Ok(Completion::ignored_with(format!("{program} is not installed")));
    }
    // A client that comes before its server is rejected, and tries again. At the end of rping, one
    // thread destroys the event channel while another may be about to wait for an event on it. That
    // thread then ends the program with status 255, when all the work is done.
    let script = format!(
        "gone='rdma_get_cm_event: Bad file descriptor'
         timeout 60 {RUN} --stats {server} >server.$$ 2>&1 & server=$!
         for try in $(seq 100); do
             sleep 0.1
             timeout 60 {RUN} --stats {client} >client.$$ 2>&1; client=$?
             ! grep -q \"$gone\" client.$$ || client=0
             [ $client -ne 0 ] && kill -0 $server || break
         done
         wait $server; server=$?
         ! grep -q \"$gone\" server.$$ || server=0
         cat server.$$ client.$$; rm server.$$ client.$$
         echo server $server, client $client
         exit $((server | client))"
    );
    let script = format!("cd $(mktemp -d); {script}");
    Taken::All(1).check(&pairs::with_emu(&script)?).map(|()| Completion::Completed)
}

/// A program that uses no device gets the library and is not changed by it.
fn without_a_device() -> Result<Completion, Failed> {
    let output = std::process::Command::new(RUN)
        .args(["--stats", "--log", "sh", "-c", "echo fine; exit 7"])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.code() != Some(7) || text != "fine\n" || !output.stderr.is_empty() {
        return Err(format!("{output:?}").into());
    }
    Ok(Completion::Completed)
}

/// `DOORBELL_VERBS=off`: everything is libmlx5's.
fn turned_off() -> Result<Completion, Failed> {
    let launcher = format!("env DOORBELL_VERBS=off {RUN} --stats --log");
    let Some(output) = pairs::pair(&launcher, "ibv_rc_pingpong -g 0 -n 100", "-p")? else {
        return Ok(Completion::ignored_with("ibv_rc_pingpong is not installed"));
    };
    if output.contains("doorbell-verbs") { Err(output.into()) } else { Ok(Completion::Completed) }
}

/// Random calls of verbs return the same, complete the same and leave the same memory with and
/// without the library.
fn same_as_libmlx5(seed: u64) -> Result<Completion, Failed> {
    let program = std::env::current_exe()?;
    let command = format!("timeout 60 {} random-calls {seed}", program.display());
    // After a list that it refuses in the middle, libmlx5 rings with the WQE of the refused
    // request. The device complains of that, so the run without the library is not strict.
    let without = pairs::with_emu(&format!("MLX5_EMU_STRICT=0 {command}"))?;
    let with = pairs::with_emu(&format!("{RUN} --stats {command}"))?;
    let (with, report): (Vec<_>, Vec<_>) = with.lines().partition(|line| !line.contains("doorbell-verbs"));
    let whole = |(taken, seen): Share| taken == seen;
    match counts(&report.join("\n"))[..] {
        [c] if c.qps == (2, 2) && c.cqs.0 > 0 && whole(c.cqs) && whole(c.srqs) && c.refused == 0 => {}
        _ => return Err(format!("{report:?}").into()),
    }
    let lines: Vec<_> = without.lines().filter(|line| !line.starts_with("mlx5-emu: ")).collect();
    match lines.iter().zip(&with).position(|(a, b)| a != b) {
        None if lines.len() == with.len() && lines.len() > 50 => Ok(Completion::Completed),
        None => Err(format!("{} lines without the library, {} with it", lines.len(), with.len()).into()),
        Some(at) => {
            let before = lines[at.saturating_sub(8)..at].join("\n");
            Err(format!("{before}\nwithout: {}\nwith:    {}", lines[at], with[at]).into())
        }
    }
}

fn main() -> ExitCode {
    if let [_, mode, seed] = &std::env::args().collect::<Vec<_>>()[..]
        && mode == "random-calls"
    {
        random_calls::run("mlx5_0", seed.parse().expect("a number"), 60);
        return ExitCode::SUCCESS;
    }
    use Taken::{All, AllWithSrq, Sends};
    let mut arguments = Arguments::from_args();
    // Spinning pairs share few cores: more pairs at a time are slower, not faster.
    arguments.test_threads = arguments.test_threads.or(Some(1));
    let mut trials = vec![
        Trial::ignorable_test("without_a_device_nothing_happens", without_a_device),
        Trial::ignorable_test("turned_off_everything_is_libmlx5s", turned_off),
    ];
    for seed in 1..=8 {
        let name = format!("random_calls_end_as_with_libmlx5_{seed}");
        trials.push(Trial::ignorable_test(name, move || same_as_libmlx5(seed)));
    }
    let cm_pairs = [
        ("rping -s -C 20 -a 127.0.0.1", "rping -c -C 20 -a 127.0.0.1"),
        ("ucmatose", "ucmatose -s 127.0.0.1"),
    ];
    for (server, client) in cm_pairs {
        trials.push(Trial::ignorable_test(client, move || cm_pair(server, client)));
    }
    let commands = [
        ("ibv_rc_pingpong -g 0 -n 300", All(1)),
        ("ibv_rc_pingpong -g 0 -n 100 -e", All(1)),
        // Extended CQs, with timestamps.
        ("ibv_rc_pingpong -g 0 -n 100 -t", All(1)),
        // Payloads in completion entries: up to 32 bytes, with and without another segment behind.
        ("ibv_rc_pingpong -g 0 -n 100 -s 32", All(1)),
        ("ibv_rc_pingpong -g 0 -n 100 -s 33", All(1)),
        ("ibv_rc_pingpong -g 0 -n 20 -m 4096 -s 1048576", All(1)),
        ("ibv_uc_pingpong -g 0 -n 100", All(1)),
        ("ibv_ud_pingpong -g 0 -n 100", All(1)),
        ("ibv_ud_pingpong -g 0 -n 100 -e", All(1)),
        ("ibv_srq_pingpong -g 0 -n 300", AllWithSrq(16)),
        ("ibv_srq_pingpong -g 0 -n 100 -e -q 8 -s 16", AllWithSrq(8)),
        ("ibv_xsrq_pingpong -g 0 -n 100", Sends),
        ("ib_send_lat -d mlx5_0 -F -n 200", All(1)),
        ("ib_send_lat -d mlx5_0 -F -n 200 --use_old_post_send", All(1)),
        ("ib_send_lat -d mlx5_0 -F -n 200 -e", All(1)),
        ("ib_send_lat -d mlx5_0 -F -n 200 -c UD", All(1)),
        ("ib_write_lat -d mlx5_0 -F -n 200", All(1)),
        ("ib_write_lat -d mlx5_0 -F -n 200 -c UC --use_old_post_send", All(1)),
        ("ib_read_lat -d mlx5_0 -F -n 200 -s 16", All(1)),
        ("ib_atomic_lat -d mlx5_0 -F -n 200", All(1)),
        ("ib_atomic_lat -d mlx5_0 -F -n 200 -A CMP_AND_SWAP --use_old_post_send", All(1)),
        ("ib_send_bw -d mlx5_0 -F -n 500", All(1)),
        ("ib_send_bw -d mlx5_0 -F -n 500 -b", All(1)),
        ("ib_send_bw -d mlx5_0 -F -n 500 -c UD --use_old_post_send", All(1)),
        ("ib_send_bw -d mlx5_0 -F -n 500 --use-srq -q 4", AllWithSrq(4)),
        ("ib_send_bw -d mlx5_0 -F -n 500 -c XRC", Sends),
        // More QPs than send registers.
        ("ib_send_bw -d mlx5_0 -F -n 200 -q 40", All(40)),
        ("ib_write_bw -d mlx5_0 -F -n 200 -q 17 --use_old_post_send", All(17)),
        ("ib_read_bw -d mlx5_0 -F -n 500", All(1)),
    ];
    for (command, taken) in commands {
        trials.push(Trial::ignorable_test(command, move || pair(command, taken)));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
