//! The helper thread: does the work that no call of the program triggers.
//!
//! In [`Mode::Auto`] the thread sleeps until a socket of another process, a timer or a doorbell
//! page ([`crate::program::watch`]) wakes it. After a doorbell that no hook saw, the thread polls
//! the doorbell pages for a while, and does not sleep as long as the processor is otherwise idle.
//! If the pages cannot be watched, the thread looks at them every two milliseconds. While a thread
//! of the program serves the device ([`crate::program::waits`]), the helper leaves the sockets and
//! the doorbells to that thread; for [`SHORTEST`] after a post, it leaves the sockets to the
//! program. In [`Mode::Thread`] the thread polls like hardware. The other modes have no helper
//! thread.
#![expect(unsafe_code, reason = "scheduling attributes and fork handlers")]

use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::device;
use crate::host::config::{Mode, mode};
use crate::host::{sys, threads, wake};
use crate::program::trust::{self, Trust};
use crate::program::watch::Watch;
use crate::program::{patience, polls};

static RUNNING_IN: AtomicU32 = AtomicU32::new(0);
/// Set when the thread holds its descriptors.
static READY: OnceLock<()> = OnceLock::new();

/// Longest nap while a doorbell may come that wakes nobody.
const LONGEST: Duration = Duration::from_millis(2);
/// Shortest nap.
const SHORTEST: Duration = Duration::from_micros(50);
/// Longest nap while a thread of the program polls without a pause. Its polls run the engine.
const LONGEST_BESIDE_POLLS: Duration = Duration::from_micros(800);
/// So many polls in vain during a nap are a program that polls without a pause. One that waits for
/// events polls once or twice an event.
const WITHOUT_PAUSE: u64 = 16;
/// Longest nap while nobody sleeps on the sockets of peers, because a thread of the program that
/// served them is likely to do so again.
const LONGEST_BETWEEN_WAITS: Duration = Duration::from_micros(500);
/// How long the thread sleeps when everything that can happen wakes it.
const UNTIL_WOKEN: Duration = Duration::from_secs(10);

/// How long the thread polls the doorbell pages after a doorbell that no hook saw: minimum and
/// maximum. The time grows while doorbells arrive during polling, and shrinks while none arrive.
const SPIN: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
/// A yield that takes longer gave the processor to another thread.
const OTHERS_RAN: Duration = Duration::from_micros(20);
/// How long the thread stops spinning after it found that other threads want the processor: initial
/// value and maximum. The time doubles up to the maximum.
const BUSY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Naps that stand in for spinning on a busy machine.
const BUSY_NAP: Duration = Duration::from_micros(20);

/// How the thread waits for the next doorbell of a driver that keeps ringing.
struct Spin {
    until: Instant,
    time: Duration,
    /// Doorbells came since spinning began.
    useful: bool,
    busy_until: Instant,
    busy_for: Duration,
}

impl Spin {
    fn new() -> Self {
        let now = Instant::now();
        Self { until: now, time: SPIN.1, useful: false, busy_until: now, busy_for: BUSY.0 }
    }

    /// A doorbell came that no hook saw.
    fn rung(&mut self) {
        let now = Instant::now();
        if now < self.until {
            self.useful = true;
        }
        self.until = now + self.time;
    }

    /// Waits a moment if another doorbell is to be expected soon.
    fn wait(&mut self) -> SpinWait {
        let now = Instant::now();
        if now < self.busy_until {
            // One look after each doorbell, a nap later.
            return if now < self.until {
                self.until = now;
                SpinWait::Nap(BUSY_NAP)
            } else {
                SpinWait::Over
            };
        }
        if now >= self.until {
            if self.time > SPIN.0 && !self.useful {
                self.time = (self.time / 2).max(SPIN.0);
            } else if self.useful {
                self.time = (self.time * 2).min(SPIN.1);
            }
            self.useful = false;
            return SpinWait::Over;
        }
        sys::yield_now();
        if now.elapsed() > OTHERS_RAN {
            self.busy_until = Instant::now() + self.busy_for;
            self.busy_for = (self.busy_for * 2).min(BUSY.1);
        } else if self.busy_for > BUSY.0 && now > self.busy_until + self.busy_for {
            self.busy_for = BUSY.0;
        }
        SpinWait::Looked
    }
}

/// What the caller of [`Spin::wait`] does next.
enum SpinWait {
    /// It is time for another look.
    Looked,
    /// Sleep that long, then look.
    Nap(Duration),
    /// No doorbell is expected soon.
    Over,
}

/// Starts the thread if the mode wants one and this process has none.
pub(crate) fn ensure() {
    if !matches!(mode(), Mode::Auto | Mode::Thread) {
        return;
    }
    let pid = std::process::id();
    if RUNNING_IN.swap(pid, Ordering::AcqRel) == pid {
        return;
    }
    static ATFORK: std::sync::Once = std::sync::Once::new();
    // SAFETY: the handler only stores to atomics.
    ATFORK.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
    wake::start();
    if let Err(error) = threads::start("mlx5-emu", run) {
        RUNNING_IN.store(0, Ordering::Release);
        crate::host::sys::say!(
            "mlx5-emu: no helper thread ({error}): other processes and timers are served while the program polls"
        );
    }
}

extern "C" fn in_child() {
    RUNNING_IN.store(0, Ordering::Release);
    device::forget_in_child();
}

/// Returns when the thread, if there is one, holds all descriptors that it needs.
pub(crate) fn wait_until_ready() {
    if RUNNING_IN.load(Ordering::Acquire) == std::process::id() {
        READY.wait();
    }
}

/// The mode was set by the program.
pub(crate) fn mode_changed() {
    if device::exists() {
        ensure();
    }
    wake::wake();
}

/// Lets the thread preempt a spinning program after a wake-up. The thread requests a short time
/// slice (Linux 6.12; older kernels prefer threads that slept anyway) and exact timers.
fn prefer_short_turns() {
    const SLICE_NS: u64 = 100_000;
    /// `struct sched_attr` in its first version.
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let mut attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: 0,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime: 0,
        deadline: 0,
        period: 0,
    };
    let at = &raw mut attributes;
    // SAFETY: the structure has the size that it states. Both calls affect only the calling thread.
    // A call that fails changes nothing.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, at, size_of::<Attributes>(), 0) == 0
            && (*at).policy == libc::SCHED_OTHER.cast_unsigned()
        {
            (*at).size = size_of::<Attributes>() as u32;
            (*at).flags = 0;
            (*at).runtime = SLICE_NS;
            libc::syscall(libc::SYS_sched_setattr, 0, at, 0);
        }
        libc::prctl(libc::PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    }
}

fn run(ready: threads::Ready) {
    prefer_short_turns();
    let mut watch = None;
    // The mode it was tried in.
    let mut watch_mode = None;
    let mut ready = Some(ready);
    let mut nap = SHORTEST;
    let mut polls_before = 0;
    let mut hooked = 0;
    let mut spin = Spin::new();
    let mut trust = Trust::new();
    let mut waits = 0;
    let mut idle = 0u32;
    loop {
        let mode = mode();
        if RUNNING_IN.load(Ordering::Acquire) != std::process::id() {
            return;
        }
        if watch_mode != Some(mode) {
            watch_mode = Some(mode);
            // In other modes no thread may wait for this one.
            watch = if mode == Mode::Auto { Watch::new() } else { None };
            let _ = READY.set(());
            if let Some(ready) = ready.take() {
                ready.tell();
            }
        }
        if !matches!(mode, Mode::Auto | Mode::Thread) {
            wake::sleep(&[], Duration::from_millis(50), wake::count());
            continue;
        }
        let wakes = wake::count();
        let now_polls = polls::count();
        let program_polls = (now_polls != polls_before || patience::yields()) && mode == Mode::Auto;
        polls_before = now_polls;

        let touched = match watch.as_mut().map(Watch::touched) {
            None => Vec::new(),
            Some(Ok(touched)) => touched,
            Some(Err(_)) => {
                watch = None;
                Vec::new()
            }
        };
        let mut device = device::lock();
        // Threads of the program serve the device when they wait.
        let served = mode == Mode::Auto && device.card.net.will_be_served(waits);
        let between_waits = device.card.net.waits != waits;
        waits = device.card.net.waits;
        let left_to_waits = served && trust::are_trusted();
        for page in &touched {
            device.card.page_touched(page.context, page.index);
            if left_to_waits {
                device.card.leave_unwatched(page.context, page.index);
            }
        }
        let rung = device.card.scan_doorbells();
        let found = rung | !touched.is_empty();
        device.card.run_ready();
        if !program_polls {
            // The listener is one of the descriptors that end the sleep.
            device.card.net.accept();
        }
        device.card.background();
        let by_hook = device.card.hooked_steps != hooked;
        hooked = device.card.hooked_steps;
        let timer = device.card.next_timer_ns().map(Duration::from_nanos);
        let contexts = device.card.contexts.len();
        let has_peers = device.card.net.has_peers();
        let restless = device.card.is_restless();
        let wanted = watch.as_mut().and_then(|watch| watch.note(&mut device));
        let gone = device.card.net.take_gone();
        drop(device);
        drop(gone);
        if let (Some(watch), Some(wanted)) = (&mut watch, wanted) {
            watch.find_mappings(&wanted);
        }
        if watch.as_mut().is_some_and(|watching| watching.lift(&touched).is_err()) {
            // Closing the descriptor lifts every protection.
            watch = None;
        }

        if mode == Mode::Thread {
            idle = if found { 0 } else { idle + 1 };
            // On a busy machine a thread that only yields keeps its own program off the processor.
            match idle {
                0..100 => {}
                100..1000 => sys::yield_now(),
                _ => {
                    wake::sleep(&[], SHORTEST, wakes);
                }
            }
            continue;
        }
        if served && watch.is_some() && touched.is_empty() {
            trust.looked(rung);
        }
        // A doorbell that the helper found between two polls, or before a wait, needs no spinning:
        // the next poll or wait would have found it.
        if found && !by_hook && !program_polls && !left_to_waits {
            spin.rung();
            nap = SHORTEST;
        }
        match spin.wait() {
            SpinWait::Looked => continue,
            SpinWait::Nap(time) => {
                // Too short to be woken by other processes, which would cost them a system call.
                sleep_on_net(true, watch.as_ref(), time, wakes);
                continue;
            }
            SpinWait::Over => {}
        }
        if program_polls && contexts > 0 && !served {
            // The polls serve all pages, so none needs protection.
            nap_beside_polls(watch.as_ref(), wakes);
            continue;
        }
        let watched = watch.as_mut().is_some_and(Watch::protect);
        if watch.is_some() {
            let mut device = device::lock();
            if device.card.scan_doorbells() {
                // Rung before the page was protected.
                if device.card.hooked_steps == hooked && !left_to_waits {
                    spin.rung();
                }
                continue;
            }
        }
        nap = (nap * 2).min(LONGEST);
        let mut wait = match contexts {
            0 => UNTIL_WOKEN,
            _ if watched && !restless => UNTIL_WOKEN,
            _ => nap,
        };
        if let Some(timer) = timer {
            wait = wait.min(timer);
        }
        if served && between_waits {
            wait = wait.min(LONGEST_BETWEEN_WAITS);
        } else if served && wait > LONGEST && !device::lock().card.net.hand_over() {
            wait = LONGEST;
        }
        // Posts serve the peers as well. Otherwise each message of a peer would wake this thread
        // during a burst of posts, and it would take the processor and the lock from the program.
        let posts = by_hook && has_peers;
        if posts {
            wait = wait.min(SHORTEST);
        }
        if sleep_on_net(program_polls || served || posts, watch.as_ref(), wait, wakes) {
            nap = SHORTEST;
        }
    }
}

/// Sleeps as long as the program polls without a pause. The polls do the helper's work, except for
/// the first write to a protected page, which ends the sleep. Takes no lock in between: the program
/// mostly holds it, and would pay a system call when it unlocks. The naps are short at first,
/// because the program may stop polling at any moment, for example to watch memory.
fn nap_beside_polls(watch: Option<&Watch>, wakes: u64) {
    let descriptors: Vec<RawFd> = watch.map(Watch::descriptor).into_iter().collect();
    let mut nap = SHORTEST;
    polls::set_nap(true);
    loop {
        let before = polls::count();
        let woken = wake::sleep(&descriptors, nap, wakes);
        if woken || polls::count().wrapping_sub(before) < WITHOUT_PAUSE && !patience::yields() {
            break;
        }
        nap = (nap * 2).min(LONGEST_BESIDE_POLLS);
    }
    polls::set_nap(false);
}

/// As [`wake::sleep`], on the doorbell pages and on the sockets of other processes. A program that
/// polls serves these sockets itself, so they are left out then.
fn sleep_on_net(program_polls: bool, watch: Option<&Watch>, time: Duration, wakes: u64) -> bool {
    let mut descriptors = Vec::new();
    if !program_polls {
        match device::lock().card.net.fall_asleep() {
            Some(peers) => descriptors = peers,
            None => return true,
        }
    }
    descriptors.extend(watch.map(Watch::descriptor));
    let woken = wake::sleep(&descriptors, time, wakes);
    if !program_polls {
        device::lock().card.net.awake();
    }
    woken
}
