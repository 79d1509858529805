//! dtest, dtestcm, dtestsrq and dtestx.

use crate::case::Case;
use crate::pair::{Pair, Ready};

/// The port at which dtest, dtestcm and dtestx exchange addresses.
const SIDE_CHANNEL: Ready = Ready::Tcp(15_828);

/// The lines that a program prints: the test passes, and the counts up to then of its connects,
/// posts and events.
const COUNTED: &[&str] = &[
    "immed/atomic test PASSED",
    "DCNT_IA_PZ_CREATE = 1",
    "DCNT_IA_EVD_CREATE = 3",
    "DCNT_IA_EP_CREATE = 1",
    "DCNT_EP_POST_WRITE_IMM = 1",
    "DCNT_EP_POST_FETCH_ADD = 2",
    "DCNT_EP_POST_CMP_SWAP = 1",
    "DCNT_EVD_CONN_CALLBACK = 2",
    "DCNT_EVD_DTO_CALLBACK = ",
];

fn pair(program: &'static str, args: &'static str) -> Pair {
    let (ready, server_args, says): (_, _, &[_]) = match program {
        "dtest" => (SIDE_CHANNEL, "", &["Test Complete. PASSED"]),
        "dtestcm" => (SIDE_CHANNEL, "", &["Connection Test Complete"]),
        "dtestx" if args == "-q" => {
            (Ready::Says("num_attrs"), "-s", &["DAT_IB_CMP_AND_SWAP", "DAT_COUNTERS"])
        }
        "dtestx" if datagrams(args) => (SIDE_CHANNEL, "-s", &["UD test PASSED"]),
        "dtestx" if args == "-p" => (SIDE_CHANNEL, "-s", COUNTED),
        "dtestx" => (SIDE_CHANNEL, "-s", &["immed/atomic test PASSED"]),
        _ => (Ready::Says("server ready"), "", &["Test Complete"]),
    };
    // With datagrams, both ends take the other's address, so this argument does not tell server
    // from client.
    let client_args = if program == "dtestx" && datagrams(args) { "-c" } else { "" };
    Pair { program, ready, args, server_args, client_args, says }
}

fn datagrams(args: &str) -> bool {
    args.starts_with("-u") || args.starts_with("-U")
}

/// The test's name has the arguments of the program.
fn name(program: &str, args: &str) -> String {
    let args: Vec<_> = args.split_whitespace().map(|arg| arg.trim_start_matches('-')).collect();
    [&[program], &args[..]].concat().join("_")
}

/// Program, arguments, and whether it also runs with libdaplofa at the other end.
const PAIRS: &[(&str, &str, bool)] = &[
    // Messages of 4 MiB, with everything.
    ("dtest", "", false),
    ("dtest", "-b 65536", true),
    ("dtest", "-b 65536 -w", false),
    ("dtest", "-b 65536 -w -B 100", false),
    ("dtest", "-b 65536 -S 1", false),
    ("dtest", "-b 65536 -u -B 100 -S 10", false),
    ("dtest", "-b 65536 -D", false),
    ("dtest", "-b 65536 -p", false),
    ("dtest", "-b 65536 -c", false),
    ("dtest", "-b 65536 -W -B 100", false),
    ("dtest", "-b 65536 -W -D -a -B 10", true),
    ("dtestcm", "-c 100", true),
    ("dtestcm", "-c 100 -w", false),
    ("dtestcm", "-c 1000", false),
    ("dtestsrq", "-c 1", true),
    ("dtestsrq", "-c 2", false),
    // libdaplofa fails on rxe with more than one, because it gets LAST_WQE_REACHED twice.
    ("dtestsrq", "-c 10", false),
    ("dtestsrq", "-c 100", false),
    ("dtestsrq", "-B 10 -t 10", false),
    ("dtestsrq", "-c 10 -B 100", false),
    ("dtestsrq", "-c 16 -B 100", false),
    ("dtestsrq", "-c 4 -B 10 -t 20 -b 65536", false),
    ("dtestsrq", "-c 10 -S 0", true),
    ("dtestsrq", "-c 16 -B 100 -S 0", false),
    // Datagrams, which libdaplofa over rdma_cm does not have.
    ("dtestsrq", "-u -c 1", false),
    ("dtestsrq", "-u -c 2", false),
    ("dtestsrq", "-u -c 10", false),
    ("dtestsrq", "-u -c 10 -B 10", false),
    ("dtestsrq", "-u -c 10 -B 10 -S 0", false),
    ("dtestx", "", true),
    // As many address handles of one endpoint or, with -m, one of each of as many endpoints.
    ("dtestx", "-u", false),
    ("dtestx", "-u -m", false),
    ("dtestx", "-U 20", false),
    ("dtestx", "-U 10 -m", false),
    // Counters: queried and printed.
    ("dtestx", "-p", false),
    // The attributes of the IB extension.
    ("dtestx", "-q", false),
];

pub(crate) fn cases() -> Vec<Case> {
    PAIRS
        .iter()
        .map(|&(program, args, mixed)| {
            let pair = pair(program, args);
            Case { name: name(program, args), mixed, run: Box::new(move |ends| pair.run(ends)) }
        })
        .collect()
}
