//! The helper thread in mode `auto`: it sleeps while the device is idle, and wakes for a doorbell
//! that no hook sees.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;
#[path = "common/direct.rs"]
mod direct;

use common::*;
use direct::*;
use std::fs;
use std::path::Path;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use ibv_wr_opcode::IBV_WR_RDMA_WRITE;
use mlx5_emu::{Mode, set_mode};

#[link(name = "mlx5")]
unsafe extern "C" {
    /// Allocates a doorbell page, and maps it.
    fn mlx5dv_devx_alloc_uar(context: *mut ibv_context, flags: u32) -> *mut std::ffi::c_void;
}

/// A device whose engine runs in the helper thread, and a pair whose sender the test drives
/// directly.
struct Driver {
    rig: Rig,
    memory: Memory,
    queues: Vec<DirectSq>,
    cq: DirectCq,
}

impl Driver {
    fn new(queues: usize) -> Self {
        set_mode(Mode::Auto);
        let mut rig = Rig::new();
        let memory = rig.memory(4096);
        let cq = rig.cq(1024);
        let queues = (0..queues).map(|_| DirectSq::new(rig.pair(cq, null_mut()).0)).collect();
        Self { rig, memory, queues, cq: DirectCq::new(cq) }
    }

    /// Rings for one RDMA WRITE on each queue, and waits for all of them without a call of libmlx5.
    fn write_on_all(&mut self) {
        /// Shorter than the helper's longest sleep.
        const LIMIT: Duration = Duration::from_secs(8);
        for sq in &mut self.queues {
            let words = sq.write_rdma(&self.memory.sge(0, 8), self.memory.at(1024), self.memory.rkey);
            sq.ring_only(words);
        }
        let (mut seen, since) = (0, Instant::now());
        while seen < self.queues.len() {
            seen += self.cq.consume();
            assert!(since.elapsed() < LIMIT, "{seen} of {} writes were done", self.queues.len());
            yield_past_device();
        }
    }
}

/// A file of the helper thread in /proc.
fn of_helper(file: &str) -> Option<String> {
    let is_helper =
        |folder: &Path| fs::read_to_string(folder.join("comm")).is_ok_and(|name| name == "mlx5-emu\n");
    let mut tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    fs::read_to_string(tasks.find(|folder| is_helper(folder))?.join(file)).ok()
}

/// How often the helper thread has gone to sleep.
fn helper_sleeps() -> Option<u64> {
    let status = of_helper("status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok())
}

/// Time that the helper thread has run on a processor.
fn helper_time() -> Option<Duration> {
    let ns = of_helper("schedstat")?.split(' ').next()?.parse().ok()?;
    Some(Duration::from_nanos(ns))
}

/// Whether this process may use userfaultfd(2): a sandbox can forbid it.
fn can_watch() -> bool {
    const USER_MODE_ONLY: i32 = 1;
    // SAFETY: no pointers involved; a descriptor that it makes is closed at once.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY);
        fd >= 0 && libc::close(fd as i32) == 0
    }
}

/// Waits until the helper has slept a second without waking.
fn wait_for_quiet() {
    if !can_watch() {
        println!(
            "userfaultfd is not available here: the helper looks at the pages in turns, which is not measured"
        );
        return;
    }
    let since = Instant::now();
    // A new thread names itself.
    while helper_sleeps().is_none() {
        assert!(since.elapsed() < Duration::from_secs(20), "no helper thread");
        yield_past_device();
    }
    loop {
        let before = helper_sleeps().expect("a helper thread");
        std::thread::sleep(Duration::from_secs(1));
        let woken = helper_sleeps().expect("a helper thread") - before;
        if woken <= 2 {
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(20), "woken {woken} times in a quiet second");
    }
}

#[test]
fn a_doorbell_wakes_the_helper_that_otherwise_sleeps() {
    let mut driver = Driver::new(1);
    driver.write_on_all();
    wait_for_quiet();
    driver.write_on_all();
}

#[test]
fn doorbells_on_many_pages_wake_the_helper() {
    let mut driver = Driver::new(40);
    wait_for_quiet();
    for _ in 0..100 {
        driver.write_on_all();
    }
    // Later QPs bring doorbell pages of their own.
    let cq = driver.rig.cq(1024);
    driver.cq = DirectCq::new(cq);
    driver.queues = (0..40).map(|_| DirectSq::new(driver.rig.pair(cq, null_mut()).0)).collect();
    driver.write_on_all();
    wait_for_quiet();
    driver.write_on_all();
}

/// To look for the mappings of new pages takes the helper longer than the program needs to create a
/// QP, and no doorbell comes on a page before a QP uses it.
#[test]
fn pages_that_no_qp_uses_do_not_wake_the_helper() {
    const PAGES: u64 = 100;
    let mut driver = Driver::new(1);
    driver.write_on_all();
    wait_for_quiet();
    let before = helper_sleeps().expect("a helper thread");
    for _ in 0..PAGES {
        // SAFETY: an open context. The page is freed with it.
        let page = unsafe { mlx5dv_devx_alloc_uar(driver.rig.ctx, 0) };
        assert!(!page.is_null());
        // Time for the helper to run.
        yield_past_device();
    }
    // The helper wakes for this.
    driver.write_on_all();
    let sleeps = helper_sleeps().expect("a helper thread") - before;
    assert!(sleeps < PAGES / 4, "the helper has woken {sleeps} times");
}

/// A program that posts and polls without a pause runs the engine itself. The helper sleeps nearly
/// all of the time: a helper that looks for work as well takes the program's processor and lock.
#[test]
fn the_helper_leaves_a_polling_program_alone() {
    const WRITES: u64 = 500;
    const VAIN: u64 = 40;
    let mut driver = Driver::new(1);
    driver.write_on_all();
    let cq = driver.rig.cq(16);
    let qp = driver.rig.pair(cq, null_mut()).0;
    let mut shares: Vec<u128> = (0..21)
        .map(|_| {
            let (before, since) = (helper_time().expect("a helper thread"), Instant::now());
            for id in 0..WRITES {
                let (at, rkey) = (driver.memory.at(1024), driver.memory.rkey);
                let target = |wr: &mut ibv_send_wr| (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (at, rkey);
                let piece = [driver.memory.sge(0, 8)];
                assert_eq!(post_send(qp, id, IBV_WR_RDMA_WRITE, SIGNALED, &piece, target), 0);
                poll(cq, 1);
                (0..VAIN).for_each(|_| _ = poll(cq, 0));
            }
            let ran = helper_time().expect("a helper thread") - before;
            ran.as_nanos() * 100 / since.elapsed().as_nanos()
        })
        .collect();
    shares.sort_unstable();
    assert!(shares[10] < 20, "percent of the time in which the helper ran: {shares:?}");
}

/// A forked child has the mapping of its parent's doorbell pages, but no helper serves the child.
#[test]
fn a_forked_child_may_write_to_a_watched_page() {
    let mut driver = Driver::new(1);
    driver.write_on_all();
    wait_for_quiet();
    let register = driver.queues[0].register as *mut u64;
    // SAFETY: the child only stores to a mapped page and exits; the parent waits for it.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            register.write_volatile(0);
            libc::_exit(3);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    };
    assert_eq!(libc::WEXITSTATUS(status), 3);
    driver.write_on_all();
}

/// Tests a program that leaves the mode in which pages are watched.
#[test]
fn a_page_is_released_when_the_mode_changes() {
    let mut driver = Driver::new(1);
    wait_for_quiet();
    set_mode(Mode::Manual);
    let words =
        driver.queues[0].write_rdma(&driver.memory.sge(0, 8), driver.memory.at(1024), driver.memory.rkey);
    driver.queues[0].ring_only(words);
    mlx5_emu::step();
    assert_eq!(driver.cq.consume(), 1);
    set_mode(Mode::Auto);
    driver.write_on_all();
}
