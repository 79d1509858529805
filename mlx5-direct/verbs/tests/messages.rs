//! Many messages and many processes under the library, on the software device: no message is lost,
//! doubled or out of order, and a process leaves nothing behind. `hw-tests/soak.d/messages` runs
//! the long forms.
#![allow(missing_docs)]
#![expect(unsafe_code, reason = "calls of verbs")]

use std::{
    collections::BTreeSet,
    fs,
    mem::zeroed,
    path::Path,
    process::{Command, ExitCode},
    ptr::null_mut,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use doorbell_sys::*;
use libtest_mimic::{Arguments, Failed, Trial};

#[path = "../../../hw-tests/mlx5-emu/tests/common/pairs.rs"]
#[allow(dead_code, reason = "pairs of programs are tested elsewhere")]
mod pairs;
#[path = "../../../hw-tests/mlx5-emu/tests/common/programs.rs"]
#[allow(dead_code, reason = "pairs of programs are tested elsewhere")]
mod programs;
#[path = "../../tests/common/rig.rs"]
mod rig;
use rig::Rig;

/// From this package's folder.
const WITH_EMU: &str = "../../hw-tests/with-emu";
const RUN: &str = env!("CARGO_BIN_EXE_doorbell-run");

/// Connections. Their receivers share one SRQ.
const PAIRS: usize = 4;
/// Receives that are posted to the SRQ at most.
const DEPTH: u32 = 1023;
/// Messages under way at most, so that the SRQ is never empty.
const WINDOW: u64 = 768;
/// Bytes of a message: the number of its connection, and its number on that connection.
const MESSAGE: usize = 16;

fn main() -> ExitCode {
    if let [_, mode, count] = &std::env::args().collect::<Vec<_>>()[..]
        && mode == "exchange"
    {
        exchange(count.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(1));
    let trials = vec![
        Trial::test("every_message_arrives_once_and_in_order", || messages(number("MESSAGES", 200_000))),
        Trial::test("processes_leave_nothing_behind", || processes(number("PROCESSES", 12))),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The number in an environment variable.
fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect("a number"))
}

// --- the program ---

/// The objects of the program.
struct Objects {
    rig: Rig,
    sends: *mut ibv_cq,
    receives: *mut ibv_cq,
    srq: *mut ibv_srq,
    /// The sender and the receiver of each connection.
    qps: Vec<(*mut ibv_qp, *mut ibv_qp)>,
}

// SAFETY: verbs objects may be used by any thread, and the two threads use memory of their own.
unsafe impl Sync for Objects {}

/// Sends `count` messages from one thread over four connections to another thread, which receives
/// them from one SRQ, checks each, and posts its buffer again.
fn exchange(count: u64) {
    let rig = Rig::open().expect("a device");
    let (sends, receives, srq) = (rig.cq(1024, false), rig.cq(2048, false), rig.srq(DEPTH, 1));
    let qps: Vec<_> = (0..PAIRS)
        .map(|_| {
            let with = |srq| {
                let change = |init: &mut ibv_qp_init_attr| {
                    (init.sq_sig_all, init.cap.max_send_wr, init.cap.max_inline_data) = (0, 256, 64);
                };
                rig.qp_with(sends, receives, srq, change).0
            };
            let (sender, receiver) = (with(null_mut()), with(srq));
            rig.connect(sender, receiver);
            (sender, receiver)
        })
        .collect();
    let all: Vec<_> = (0..DEPTH).collect();
    post(&rig, srq, &all);
    let objects = Objects { rig, sends, receives, srq, qps };
    let received = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| send_all(&objects, count, &received));
        scope.spawn(|| receive_all(&objects, count, &received));
    });
    // Every buffer is posted again, so the SRQ takes no other.
    let Objects { rig, .. } = &objects;
    let mut segment = ibv_sge { addr: rig.addr(0), length: 64, lkey: rig.lkey() };
    // SAFETY: integers and pointers only, for which zero is a value.
    let mut wr: ibv_recv_wr = unsafe { zeroed() };
    (wr.sg_list, wr.num_sge) = (&raw mut segment, 1);
    assert_eq!(rig.verbs_post(srq, std::slice::from_mut(&mut wr)), 0, "a buffer is missing in the SRQ");
    println!("{} messages", received.load(Ordering::Relaxed));
    println!("pid {}", std::process::id());
    let qps: Vec<_> = objects.qps.iter().flat_map(|(a, b)| [*a, *b]).collect();
    objects.rig.destroy(&qps, &[srq], &[sends, receives]);
}

/// Posts these buffers to the SRQ, as one list.
fn post(rig: &Rig, srq: *mut ibv_srq, buffers: &[u32]) {
    let mut segments: Vec<_> = buffers
        .iter()
        .map(|n| ibv_sge { addr: rig.addr(*n as usize * 64), length: 64, lkey: rig.lkey() })
        .collect();
    let request = |(segment, n): (&mut ibv_sge, &u32)| {
        // SAFETY: integers and pointers only, for which zero is a value.
        let mut wr: ibv_recv_wr = unsafe { zeroed() };
        (wr.wr_id, wr.sg_list, wr.num_sge) = ((*n).into(), segment, 1);
        wr
    };
    let mut wrs: Vec<_> = segments.iter_mut().zip(buffers).map(request).collect();
    assert_eq!(rig.verbs_post(srq, &mut wrs), buffers.len());
}

fn send_all(objects: &Objects, count: u64, received: &AtomicU64) {
    // One Send of 16 is signalled, so a completion of a QP releases 16 requests.
    const SIGNALLED: u64 = 16;
    let mut outstanding = [0_u64; PAIRS];
    let reap = |outstanding: &mut [u64; PAIRS]| {
        // SAFETY: a live CQ, and room for 16 completions.
        let mut completions: [ibv_wc; 16] = unsafe { zeroed() };
        // SAFETY: as above.
        let n = unsafe { ibv_poll_cq(objects.sends, 16, completions.as_mut_ptr()) };
        for completion in &completions[..usize::try_from(n).expect("ibv_poll_cq")] {
            assert_eq!(completion.status, ibv_wc_status::IBV_WC_SUCCESS);
            outstanding[completion.wr_id as usize % PAIRS] -= SIGNALLED;
        }
        n > 0
    };
    for n in 0..count {
        let at = n as usize % PAIRS;
        let number = n / PAIRS as u64;
        while outstanding[at] >= 240 || n - received.load(Ordering::Acquire) >= WINDOW {
            if !reap(&mut outstanding) {
                thread::yield_now();
            }
        }
        let message = [n % PAIRS as u64, number];
        let mut segment = ibv_sge { addr: message.as_ptr().addr() as u64, length: MESSAGE as u32, lkey: 0 };
        // SAFETY: integers and pointers only, for which zero is a value.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        (wr.wr_id, wr.sg_list, wr.num_sge) = (n, &raw mut segment, 1);
        wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
        wr.send_flags = ibv_send_flags::IBV_SEND_INLINE.0;
        if number % SIGNALLED == SIGNALLED - 1 {
            wr.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        outstanding[at] += 1;
        assert_eq!(objects.rig.verbs_send(objects.qps[at].0, std::slice::from_mut(&mut wr)), (0, 1));
    }
}

fn receive_all(objects: &Objects, count: u64, received: &AtomicU64) {
    let Objects { rig, srq, qps, .. } = objects;
    let qpns: Vec<_> = qps.iter().map(|(_, receiver)| rig.qpn(*receiver)).collect();
    let mut next = [0_u64; PAIRS];
    let mut all = 0;
    while all < count {
        // SAFETY: a live CQ, and room for 16 completions.
        let mut completions: [ibv_wc; 16] = unsafe { zeroed() };
        // SAFETY: as above.
        let n = unsafe { ibv_poll_cq(objects.receives, 16, completions.as_mut_ptr()) };
        let completions = &completions[..usize::try_from(n).expect("ibv_poll_cq")];
        if completions.is_empty() {
            thread::yield_now();
            continue;
        }
        let mut buffers = Vec::with_capacity(16);
        for completion in completions {
            assert_eq!(completion.status, ibv_wc_status::IBV_WC_SUCCESS);
            assert_eq!(completion.byte_len as usize, MESSAGE);
            let from = qpns.iter().position(|qpn| *qpn == completion.qp_num).expect("a QP of this program");
            let bytes = rig.read(completion.wr_id as usize * 64, MESSAGE);
            let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
            assert_eq!((word(0), word(8)), (from as u64, next[from]), "after {all} messages");
            next[from] += 1;
            buffers.push(completion.wr_id as u32);
        }
        all += buffers.len() as u64;
        // Single posts and lists.
        match buffers.len() {
            n if n % 2 == 0 => post(rig, *srq, &buffers),
            _ => buffers.chunks(1).for_each(|one| post(rig, *srq, one)),
        }
        received.store(all, Ordering::Release);
    }
}

// --- the tests ---

/// The program under the library, as a shell command. A program that stands still is ended.
fn command(count: u64) -> Result<String, Failed> {
    let seconds = 60 + count / 20_000;
    Ok(format!("timeout {seconds} {RUN} --stats {} exchange {count}", std::env::current_exe()?.display()))
}

/// Whether this report says that the library took over all CQs, SRQs and QPs of the program.
fn takes_all(output: &str) -> bool {
    output.lines().any(|line| {
        line.contains("2 of 2 CQs") && line.contains("1 of 1 SRQs") && line.contains("8 of 8 QPs")
    })
}

fn messages(count: u64) -> Result<(), Failed> {
    let output = pairs::with_emu(&command(count)?)?;
    if !output.contains(&format!("{count} messages\n")) || !takes_all(&output) {
        return Err(output.into());
    }
    Ok(())
}

fn processes(count: u64) -> Result<(), Failed> {
    let session = format!("processes-{}", std::process::id());
    let mut pids = BTreeSet::new();
    for n in 0..count {
        let output = pairs::with_emu(&format!("export MLX5_EMU_SESSION={session}; {}", command(200)?))?;
        let pid = output.lines().find_map(|line| line.strip_prefix("pid "));
        if !takes_all(&output) {
            return Err(format!("process {n}: {output}").into());
        }
        pids.insert(pid.ok_or_else(|| output.clone())?.to_owned());
    }
    assert_eq!(pids.len() as u64, count);
    let left = left_behind(&pids, &session)?;
    if left.is_empty() { Ok(()) } else { Err(format!("left behind: {left:?}").into()) }
}

/// Files in /tmp and /dev/shm that name one of these processes, and sockets and processes of this
/// fabric.
fn left_behind(pids: &BTreeSet<String>, session: &str) -> Result<Vec<String>, Failed> {
    let mut left = vec![];
    for folder in ["/tmp", "/dev/shm"].map(Path::new) {
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let numbers = name.split(|c: char| !c.is_ascii_digit());
            let ours = name.contains("mlx5") || name.contains("doorbell");
            if name.contains(session) || ours && numbers.into_iter().any(|number| pids.contains(number)) {
                left.push(format!("{}/{name}", folder.display()));
            }
        }
    }
    let sockets = fs::read_to_string("/proc/net/unix")?;
    left.extend(sockets.lines().filter(|line| line.contains(session)).map(str::to_owned));
    let processes = Command::new("pgrep").args(["-f", session]).output()?;
    let own = std::process::id().to_string();
    let others = String::from_utf8_lossy(&processes.stdout).into_owned();
    left.extend(others.lines().filter(|pid| **pid != own).map(|pid| format!("process {pid}")));
    Ok(left)
}
