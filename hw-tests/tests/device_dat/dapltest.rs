//! dapltest: transactions, performance, limits, functions, and the order to quit.

use crate::case::{Case, Ends, iterations};
use crate::pair::{Ready, Running, words};
use crate::{IA, setting};

/// All kinds of transfer, with several segments.
const MIX: &str = "-P client RW 4096 1 server RW 2048 4 server RR 1024 1 client RR 2048 1 \
                   client SR 1024 3 -f server SR 256 3 -f";

/// Transactions: name, iterations, threads, endpoints of a thread, other arguments, and whether
/// they also run with libdaplofa at the other end.
const TRANSACTIONS: &[(&str, u32, u32, u32, &str, bool)] = &[
    ("sr", 8192, 1, 1, "client SR 4096 server SR 4096", true),
    ("sr_polled", 4096, 1, 1, "-P client SR 256 server SR 256", false),
    ("sr_segments", 2048, 1, 1, "-V client SR 1024 3 server SR 1536 2", false),
    ("sr_threads", 4096, 6, 1, "client SR 8192 3 server SR 8192 3", false),
    ("sr_threads_endpoints", 2048, 4, 4, "client SR 8192 3 server SR 8192 3", false),
    ("sr_hundred_endpoints", 160, 10, 10, "client SR 8192 3 server SR 8192 3", false),
    ("rw", 2048, 1, 1, "-V client SR 256 server RW 4096 server SR 256", false),
    ("rr", 2048, 1, 1, "-V client SR 256 server RR 4096 client SR 256 server SR 256", false),
    ("mix", 4096, 1, 1, MIX, false),
    (
        "mix_large",
        2048,
        1,
        1,
        "-P client RW 32768 4 server RW 32768 4 server RR 32768 1 client RR 32768 1 client SR 16384 4 -f server SR 16384 4 -f",
        false,
    ),
    ("mix_endpoints", 4096, 1, 4, MIX, false),
    ("mix_threads_endpoints", 2048, 2, 4, MIX, false),
    ("mix_threads", 1024, 4, 4, MIX, false),
    (
        "mix_validated",
        2048,
        2,
        4,
        "-V client RW 4096 1 server RW 2048 4 client SR 1024 4 server SR 4096 2 client SR 1024 3 -f server SR 2048 1 -f",
        true,
    ),
    ("reserved", 1024, 2, 2, "-r client SR 1024 server SR 1024", false),
];

/// Performance: name, iterations, other arguments, and whether it also runs with libdaplofa at the
/// other end.
const PERFORMANCE: &[(&str, u32, &str, bool)] = &[
    ("rw_blocking", 4096, "-p 1 -m b RW 4096", true),
    ("rw_segments", 4096, "-m b RW 32768 4", false),
    ("rw_polling", 8192, "-p 2 -m p RW 4096 2", false),
    ("rw_deep", 8192, "-p 16 -m p RW 4096", false),
    ("rw_bandwidth", 4096, "-p 16 -m b RW 65536 2", false),
    ("rw_latency_blocking", 8192, "-p 1 -m b RW 4", false),
    ("rw_latency_polling", 16_384, "-p 1 -m p RW 4", false),
    ("rr_blocking", 4096, "-p 1 -m b RR 4096", true),
    ("rr_large", 4096, "RR 32768", false),
    ("rr_deep", 8192, "-p 16 -m p RR 4096", false),
];

/// Functions: name, cases, how many cases pass, and the steps that are known to fail.
///
/// dapltest prints "PASS" after failed steps as well. A length of 0 gives INVALID_PARAMETER, as the
/// manual pages say, and not LENGTH_ERROR. Service points that create endpoints, and memory
/// windows, are optional. Cases 13 and 15 of queryinfo fail inside libdat2, with every provider.
const FUNCTIONS: &[(&str, &str, usize, &[&str])] = &[
    ("hwconn", "", 4, &[]),
    ("endpoint", "", 3, &[]),
    ("pz", "", 3, &[]),
    ("mem", "", 5, &["DAT_INVALID_PARAMETER", "DAT_INSUFFICIENT_RESOURCES"]),
    ("connmgt", "", 2, &[]),
    (
        "queryinfo",
        "case0 case1 case2 case3 case4 case6 case7 case8 case9 case10 case11 case12 case14 case16 case17",
        15,
        &["DAT_MODEL_NOT_SUPPORTED", "DAT_INSUFFICIENT_RESOURCES"],
    ),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![case("quit", false, |ends| {
        let mut server = server(ends)?;
        quit(ends, &mut server)
    })];
    for &(name, n, threads, endpoints, rest, mixed) in TRANSACTIONS {
        let arguments = format!("-i {} -t {threads} -w {endpoints} {rest}", iterations(n));
        cases.push(case(&format!("T_{name}"), mixed, move |ends| {
            let totals = format!(": {threads} threads, {endpoints} EPs");
            client(ends, "T", &arguments, &totals)
        }));
    }
    for &(name, n, rest, mixed) in PERFORMANCE {
        let arguments = format!("-i {} {rest}", iterations(n));
        cases.push(case(&format!("P_{name}"), mixed, move |ends| client(ends, "P", &arguments, "")));
    }
    for &(name, which, passes, known) in FUNCTIONS {
        cases
            .push(case(&format!("F_{name}"), false, move |ends| functions(ends, name, which, passes, known)));
    }
    cases.push(case("L", false, limits));
    cases
}

fn case(name: &str, mixed: bool, run: impl Fn(&Ends) -> Result<(), String> + Send + Sync + 'static) -> Case {
    Case { name: format!("dapltest_{name}"), mixed, run: Box::new(run) }
}

fn server(ends: &Ends) -> Result<Running, String> {
    let mut server = ends.server("dapltest", &words(&format!("-T S -D {IA}")));
    server.await_ready(Ready::Says("Service Point Ready"))?;
    Ok(server)
}

/// Orders the server to end, and checks what it prints then.
fn quit(ends: &Ends, server: &mut Running) -> Result<(), String> {
    let mut quit = ends.client("dapltest", &words(&format!("-T Q -s {} -D {IA}", setting().server)));
    let (quit_said, _) = quit.end()?;
    let (server_said, status) = server.end()?;
    if server_said.contains(":  Exiting.") && status.success() {
        Ok(())
    } else {
        Err(format!("server, {status}:\n{server_said}\nquit:\n{quit_said}"))
    }
}

/// Runs one test from a client, and then orders the server to end.
fn client(ends: &Ends, kind: &str, arguments: &str, says: &str) -> Result<(), String> {
    let mut server = server(ends)?;
    let to = format!("-T {kind} -s {} -D {IA} {arguments}", setting().server);
    let mut client = ends.client("dapltest", &words(&to));
    let (said, status) = client.end()?;
    // It prints statistics, or that there was too little time for any.
    let measured = said.contains("Stat") || said.contains("completed successfully");
    let complained =
        [&said, &server.said()].iter().any(|said| said.contains("rror") || said.contains("failed"));
    if !(status.success() && said.contains("Client Exiting") && said.contains(says) && measured) || complained
    {
        return Err(format!("client, {status}:\n{said}\nserver:\n{}", server.said()));
    }
    quit(ends, &mut server)
}

fn functions(ends: &Ends, name: &str, which: &str, passes: usize, known: &[&str]) -> Result<(), String> {
    let mut program = ends.server("dapltest", &words(&format!("-T F -D {IA} -f {name} {which}")));
    let (said, status) = program.end()?;
    let passed = said.matches("Result: PASS").count();
    let failed_steps =
        said.lines().zip(said.lines().skip(1)).filter(|(line, _)| line.contains("failed in file"));
    let unknown: Vec<_> =
        failed_steps.filter(|(_, error)| !known.iter().any(|known| error.contains(known))).collect();
    if passed == passes && unknown.is_empty() && status.success() {
        Ok(())
    } else {
        Err(format!("{passed} of {passes} cases passed; {status}; failed steps: {unknown:?}\n{said}"))
    }
}

/// Creates many objects of every kind on eight IAs of one device.
fn limits(ends: &Ends) -> Result<(), String> {
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
    let mut program = ends.server("dapltest", &words(&format!("-T L -D {IA} -w 8 -m 15")));
    let (said, status) = program.end()?;
    match MADE.iter().find(|made| !said.contains(*made)) {
        Some(made) => Err(format!("{status}, and never said {made:?}:\n{said}")),
        None => Ok(()),
    }
}
