//! dtest, dtestcm, dtestsrq, dtestx and dapltest.

use crate::pair::{Pair, Ready, Running};
use crate::{IA, setting};
use libtest_mimic::Trial;

/// On which dtest, dtestcm and dtestx exchange addresses.
const SIDE_CHANNEL: Ready = Ready::Tcp(15_828);

const OURS: [&str; 2] = ["a", "b"];

fn pair(program: &'static str, args: &'static str) -> Pair {
    let (ready, server_args, says) = match program {
        "dtest" => (SIDE_CHANNEL, "", "Test Complete. PASSED"),
        "dtestcm" => (SIDE_CHANNEL, "", "Connection Test Complete"),
        "dtestx" => (SIDE_CHANNEL, "-s", "immed/atomic test PASSED"),
        _ => (Ready::Says("server ready"), "", "Test Complete"),
    };
    Pair { program, ready, args, server_args, says, confs: OURS }
}

/// The name says how the program is called.
fn name(pair: &Pair) -> String {
    let args: Vec<_> = pair.args.split_whitespace().map(|arg| arg.trim_start_matches('-')).collect();
    let mut name = [&[pair.program], &args[..]].concat().join("_");
    match pair.confs {
        OURS => {}
        [_, "b"] => name += "_from_doorbell_to_libdaplofa",
        _ => name += "_from_libdaplofa_to_doorbell",
    }
    name
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut pairs: Vec<_> = [
        "-b 65536",
        "-b 65536 -w",
        "-b 65536 -w -B 100",
        "-b 65536 -S 1",
        "-b 65536 -D",
        "-b 65536 -p",
        "-b 65536 -c",
        "-b 65536 -W -D -a -B 10",
    ]
    .iter()
    .map(|args| pair("dtest", args))
    .collect();
    pairs.extend(["-c 100", "-c 100 -w", "-c 1000"].iter().map(|args| pair("dtestcm", args)));
    pairs.extend(
        ["-c 1", "-c 2", "-c 10", "-c 100", "-B 10 -t 10", "-c 10 -B 100", "-c 10 -S 0"]
            .iter()
            .map(|args| pair("dtestsrq", args)),
    );
    pairs.push(pair("dtestx", ""));
    // Both providers find each other, and understand each other's immediate data.
    if std::path::Path::new("/usr/lib/x86_64-linux-gnu/libdaplofa.so.2").exists() {
        for confs in [["ofa-a", "b"], ["a", "ofa-b"]] {
            for (program, args) in
                [("dtest", "-b 65536"), ("dtestcm", "-c 100"), ("dtestsrq", "-c 1"), ("dtestx", "")]
            {
                pairs.push(Pair { confs, ..pair(program, args) });
            }
        }
    }
    let mut trials: Vec<_> = pairs
        .into_iter()
        .map(|pair| {
            Trial::test(name(&pair), move || {
                pair.run();
                Ok(())
            })
        })
        .collect();
    trials.extend(DAPLTEST.iter().map(|&(name, args)| {
        Trial::test(format!("dapltest_{name}"), move || {
            dapltest(args);
            Ok(())
        })
    }));
    trials.push(Trial::test("dapltest_limits", || {
        limits();
        Ok(())
    }));
    trials
}

/// Transactions and performance: name, arguments.
const DAPLTEST: &[(&str, &str)] = &[
    ("transaction", "-T T -i 100 -t 1 -w 1 client SR 256 server SR 256"),
    ("transaction_long", "-T T -i 1000 -t 1 -w 1 client SR 1024 server SR 1024"),
    ("transaction_polled", "-T T -i 100 -t 1 -w 1 -P client SR 256 server SR 256"),
    ("transaction_segments", "-T T -i 10 -t 1 -w 1 -V client SR 1024 3 server SR 1536 2"),
    ("transaction_threads", "-T T -i 10 -t 4 -w 4 client SR 256 server SR 256"),
    ("transaction_reserved", "-T T -i 10 -t 1 -w 1 -r client SR 256 server SR 256"),
    ("transaction_rdma_write", "-T T -i 10 -t 1 -w 1 -V client SR 256 server RW 4096 server SR 256"),
    (
        "transaction_rdma_read",
        "-T T -i 10 -t 1 -w 1 -V client SR 256 server RR 4096 client SR 256 server SR 256",
    ),
    ("performance_rdma_write_blocking", "-T P -i 1024 -p 1 -m b RW 4096"),
    ("performance_rdma_write_polling", "-T P -i 1024 -p 2 -m p RW 4096 2"),
    ("performance_rdma_write_deep", "-T P -i 1024 -p 16 -m p RW 4096"),
    ("performance_rdma_read_blocking", "-T P -i 1024 -p 1 -m b RR 4096"),
    ("performance_rdma_read_deep", "-T P -i 1024 -p 16 -m p RR 4096"),
];

fn args(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// One test from a client, and the order to end the server.
fn dapltest(test: &str) {
    let mut server = Running::start("dapltest", &args(&format!("-T S -D {IA}")), "a");
    server.await_ready(Ready::Says("Service Point Ready"));
    let to = format!("-s {} -D {IA}", setting().server);
    // The kind of test is the first argument, the addresses come behind it.
    let (kind, rest) = test.split_at("-T T".len());
    let mut client = Running::start("dapltest", &args(&format!("{kind} {to}{rest}")), "b");
    let (said, status) = client.finish();
    // Statistics, or that there was too little time for any.
    let measured = said.contains("Stat") || said.contains("completed successfully");
    assert!(
        status.success() && said.contains("Client Exiting") && measured,
        "client, {status}:\n{said}\nserver:\n{}",
        server.said()
    );
    let mut quit = Running::start("dapltest", &args(&format!("-T Q {to}")), "b");
    let (quit_said, _) = quit.finish();
    let (server_said, _) = server.finish();
    assert!(server_said.contains("Finished"), "{server_said}\nquit:\n{quit_said}");
}

/// Many objects of every kind, on eight IAs of one device.
fn limits() {
    const MADE: [&str; 11] = [
        "IAs opened: 15",
        "PZs created: 15",
        "CNOs created: 15",
        "EVDs created: 15",
        "EPs created: 15",
        "RSPs created: 15",
        "PSPs created: 15",
        "LMRs created: 15",
        "recv buffers posted per EP: 15",
        "limit_size_lmr",
        "OK - stopping now",
    ];
    let mut program = Running::start("dapltest", &args(&format!("-T L -D {IA} -w 8 -m 15")), "a");
    let (said, status) = program.finish();
    for made in MADE {
        assert!(said.contains(made), "{status}, and never said {made:?}:\n{said}");
    }
}
