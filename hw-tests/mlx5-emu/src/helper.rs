//! The helper thread: serves what no call of the program makes happen.
//!
//! In [`Mode::Auto`] it sleeps on the sockets of other processes and on timers, and looks at the doorbell pages now and then: often
//! while a driver that bypasses libmlx5 rings them, rarely otherwise. In [`Mode::Thread`] it polls like hardware. Other modes have
//! no helper.
#![expect(unsafe_code, reason = "poll(2), signal masks and fork handlers")]

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::config::{Mode, mode};
use crate::{device, sys};

static RUNNING_IN: AtomicU32 = AtomicU32::new(0);
static SLEEPING: AtomicBool = AtomicBool::new(false);
static POLLS: AtomicU64 = AtomicU64::new(0);
static WAKE: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// Longest nap while a context is open.
const LONGEST: Duration = Duration::from_millis(2);
/// Shortest nap.
const SHORTEST: Duration = Duration::from_micros(50);
/// How long after the last doorbell of a direct driver the thread keeps looking without sleeping.
const HOT: Duration = Duration::from_millis(2);

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
    let _ = WAKE.get_or_init(|| sys::eventfd(libc::EFD_NONBLOCK).ok());
    let old = block_signals();
    let spawned = std::thread::Builder::new().name("mlx5-emu".to_owned()).stack_size(512 << 10).spawn(run);
    restore_signals(&old);
    if let Err(error) = spawned {
        RUNNING_IN.store(0, Ordering::Release);
        eprintln!(
            "mlx5-emu: no helper thread ({error}): other processes and timers are served while the program polls"
        );
    }
}

extern "C" fn in_child() {
    RUNNING_IN.store(0, Ordering::Release);
    device::forget_in_child();
}

/// The mode was set by the program.
pub(crate) fn mode_changed() {
    if device::exists() {
        ensure();
    }
    wake();
}

fn block_signals() -> libc::sigset_t {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let mut old = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both sets are valid places; sigfillset initialises the first, pthread_sigmask the second.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
        old.assume_init()
    }
}

fn restore_signals(old: &libc::sigset_t) {
    // SAFETY: a set that pthread_sigmask gave.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old, std::ptr::null_mut()) };
}

/// Ends the helper's sleep.
pub(crate) fn wake() {
    if SLEEPING.load(Ordering::Acquire)
        && let Some(Some(fd)) = WAKE.get()
    {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes of a local array.
        unsafe { sys::write(fd.as_raw_fd(), one.as_ptr().cast(), 8) };
    }
}

/// A timer was set that may be due before the helper wakes.
pub(crate) fn timer_set() {
    wake();
}

/// The program polls: what it polls for need not be fetched by the helper.
#[inline]
pub(crate) fn program_polls() {
    POLLS.store(POLLS.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// The program polled in vain so many times in a row while it has peers in other processes: lets them run.
///
/// A spinning program on a busy machine otherwise keeps its peer off the processor for whole time slices.
pub(crate) fn polled_in_vain(times: u32) {
    const YIELD_AFTER: u32 = 64;
    const NAP_AFTER: u32 = 512;
    if times < YIELD_AFTER {
        return;
    }
    if times < NAP_AFTER {
        std::thread::yield_now();
        return;
    }
    let descriptors = match device::try_lock() {
        Some(device) => device.net.descriptors(),
        None => Vec::new(),
    };
    wait_for(&descriptors, Duration::from_micros(100));
}

fn run() {
    let mut nap = SHORTEST;
    let mut polls = 0;
    let mut hooked = 0;
    let mut hot_until = Instant::now();
    let mut idle = 0u32;
    loop {
        let mode = mode();
        if RUNNING_IN.load(Ordering::Acquire) != std::process::id() {
            return;
        }
        if !matches!(mode, Mode::Auto | Mode::Thread) {
            sleep(&[], Duration::from_millis(50));
            continue;
        }
        let now_polls = POLLS.load(Ordering::Relaxed);
        let program_polls = now_polls != polls && mode == Mode::Auto;
        polls = now_polls;

        let mut device = device::lock();
        let found = device.scan_doorbells();
        device.run_ready();
        device.background();
        let by_hook = device.hooked_steps != hooked;
        hooked = device.hooked_steps;
        let timer = device.next_timer_ns().map(Duration::from_nanos);
        let contexts = device.contexts.len();
        let descriptors = if program_polls { Vec::new() } else { device.net.descriptors() };
        drop(device);

        if mode == Mode::Thread {
            idle = if found { 0 } else { idle + 1 };
            // On a busy machine a thread that only yields keeps its own program off the processor.
            match idle {
                0..100 => {}
                100..1000 => std::thread::yield_now(),
                _ => {
                    sleep(&descriptors, SHORTEST);
                }
            }
            continue;
        }
        if found && !by_hook {
            hot_until = Instant::now() + HOT;
            nap = SHORTEST;
        }
        if Instant::now() < hot_until {
            std::thread::yield_now();
            continue;
        }
        nap = (nap * 2).min(LONGEST);
        // While the program polls its sockets are left to it, for short times: it may stop any moment, to watch memory say.
        let mut wait = match (contexts, program_polls) {
            (0, _) => Duration::from_secs(1),
            (_, true) => SHORTEST,
            _ => nap,
        };
        if let Some(timer) = timer {
            wait = wait.min(timer);
        }
        if sleep(&descriptors, wait) {
            nap = SHORTEST;
        }
    }
}

/// Waits for a descriptor, a wake-up or the time; true when it was not the time.
fn sleep(descriptors: &[(i32, bool)], time: Duration) -> bool {
    let wake = WAKE.get().and_then(Option::as_ref).map(|fd| fd.as_raw_fd());
    let mut list = descriptors.to_vec();
    list.extend(wake.map(|fd| (fd, false)));
    SLEEPING.store(true, Ordering::Release);
    let awoken = wait_for(&list, time);
    SLEEPING.store(false, Ordering::Release);
    if let Some(fd) = wake {
        let mut drained = [0u8; 8];
        // SAFETY: eight bytes of a local array.
        unsafe { libc::read(fd, drained.as_mut_ptr().cast(), 8) };
    }
    awoken
}

/// Waits until a descriptor can be read (or written, where asked); false when the time was up first.
fn wait_for(descriptors: &[(i32, bool)], time: Duration) -> bool {
    let mut list: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|&(fd, write)| libc::pollfd {
            fd,
            events: if write { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN },
            revents: 0,
        })
        .collect();
    let time =
        libc::timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: i64::from(time.subsec_nanos()) };
    // SAFETY: pointer and length describe `list`; the time is valid.
    unsafe { libc::ppoll(list.as_mut_ptr(), list.len() as u64, &raw const time, std::ptr::null()) > 0 }
}
