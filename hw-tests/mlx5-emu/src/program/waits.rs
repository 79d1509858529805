//! poll(2) and ppoll(2) on a completion channel, and sched_yield(2): the waiting thread serves the
//! device.
//!
//! Without this module the helper thread (`helper.rs`) sleeps on the sockets of peers, runs the
//! queues when a message comes, and so wakes the thread that sleeps on the channel. Every message
//! then wakes two threads, and a doorbell of a driver that rings it without libmlx5 costs a page
//! fault (`watch.rs`). Here the thread runs the queues before it sleeps, and sleeps on the sockets
//! as well. The helper leaves both to the thread as long as it finds few doorbells that no sleep
//! took.
//!
//! A driver that polls CQs without libmlx5 before it sleeps may call sched_yield(2) between its
//! polls. That call runs the queues, too.
//!
//! Only one thread of a process does this at a time. Other threads sleep on their own descriptors
//! only. So does every thread while the process polls CQs without a pause.
#![expect(unsafe_code, reason = "C entry points with raw pointers")]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libc::{c_int, nfds_t, pollfd, sigset_t, size_t, timespec};

use crate::device::{self, Device};
use crate::engine::Card;
use crate::host::config::{Mode, mode};
use crate::host::{sys, vfile};
use crate::program::hooks::{driver_polls, guarded};
use crate::program::polls;
use crate::program::trust::are_trusted;
use crate::wire::Waiting;

/// Longest list of descriptors that is looked at.
const LONGEST_LIST: nfds_t = 64;
/// So many polls of CQs between two waits are a program that polls without a pause.
const WITHOUT_PAUSE: u64 = 64;

/// How often a thread tries to lock the device before it leaves all to the helper.
const TRIES: u32 = 1000;

/// [`polls::count`] at the last wait.
static POLLS: AtomicU64 = AtomicU64::new(0);
/// What a thread does before it sleeps.
enum Next {
    /// Return: the program's descriptors have to be looked at again.
    Look,
    /// Sleep on the program's descriptors and on these.
    Sleep(Vec<RawFd>),
    /// Sleep on the program's descriptors only.
    Alone,
    /// As `Alone`, because another thread serves the device.
    Bystander,
}

/// The sleep of a thread that serves the device. Ends also when the thread is cancelled.
struct Asleep;

impl Drop for Asleep {
    fn drop(&mut self) {
        device::lock().card.net.stop_waiting();
    }
}

/// The sleep of a thread that relies on another one.
struct Bystander;

impl Drop for Bystander {
    fn drop(&mut self) {
        device::lock().card.net.bystanders -= 1;
    }
}

/// True when one of the descriptors is a completion channel.
fn waits_for_completions(device: &Device, list: &[pollfd]) -> bool {
    list.iter()
        .filter_map(|entry| device.channel_fds.get(&entry.fd))
        .any(|&id| device.card.contexts.iter().all(|(_, context)| context.async_channel != Some(id)))
}

/// As the poll of a driver that libmlx5 does not serve.
fn before_sleep(card: &mut Card) -> Next {
    let completions = card.completions;
    card.driver_step(are_trusted());
    if card.completions != completions {
        return Next::Look;
    }
    match card.net.start_waiting() {
        Waiting::Work => Next::Look,
        Waiting::Sleep(list) => Next::Sleep(list),
        Waiting::Taken => {
            card.net.bystanders += 1;
            Next::Bystander
        }
    }
}

/// Whether a thread may serve the device while it sleeps on this list.
fn may_serve(list: &[pollfd]) -> bool {
    let mode = mode();
    if !matches!(mode, Mode::Stepped | Mode::Auto) || !device::exists() {
        return false;
    }
    // Without a helper nobody else serves the thread.
    let polls = polls::count();
    let without_pause = polls.wrapping_sub(POLLS.swap(polls, Ordering::Relaxed)) > WITHOUT_PAUSE;
    if without_pause && mode == Mode::Auto {
        return false;
    }
    // A signal handler may sleep, and interrupt the holder of the lock.
    let Some(device) = (0..TRIES).find_map(|_| {
        std::hint::spin_loop();
        device::try_lock()
    }) else {
        return false;
    };
    // The helper, if there is one, notices the first peer.
    let has_peers = mode == Mode::Stepped || device.card.net.has_peers();
    !device.card.dead && has_peers && waits_for_completions(&device, list)
}

/// ppoll(2) on the program's descriptors, and on others that are not counted.
///
/// # Safety
/// `mask` is null or a signal set.
unsafe fn sleep(
    list: &mut [pollfd],
    others: &[RawFd],
    time: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    let others = others.iter().map(|&fd| pollfd { fd, events: libc::POLLIN, revents: 0 });
    let mut all: Vec<pollfd> = list.iter().copied().chain(others).collect();
    let time = time.map(|time| timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: pointer and length describe `all`; the time is null or valid, the mask by contract.
    let result = unsafe { sys::ppoll(all.as_mut_ptr(), all.len() as nfds_t, time, mask) };
    if result < 0 {
        return result;
    }
    list.copy_from_slice(&all[..list.len()]);
    let ready = list.iter().filter(|entry| entry.revents != 0).count();
    c_int::try_from(ready).unwrap_or(c_int::MAX)
}

/// Sleeps until a descriptor of the program is ready, and serves the device meanwhile.
///
/// # Safety
/// As [`sleep`].
unsafe fn wait(list: &mut [pollfd], time: Option<Duration>, mask: *const sigset_t) -> c_int {
    // A timeout that no `Instant` can represent never expires.
    let deadline = time.and_then(|time| Instant::now().checked_add(time));
    let left = || deadline.map(|at| at.saturating_duration_since(Instant::now()));
    loop {
        let mut next = Next::Alone;
        guarded(|| next = before_sleep(&mut device::lock().card));
        let (result, over) = match next {
            Next::Look => {
                // SAFETY: by contract.
                let result = unsafe { sleep(list, &[], Some(Duration::ZERO), mask) };
                if result == 0 {
                    sys::yield_now();
                }
                (result, left() == Some(Duration::ZERO))
            }
            Next::Sleep(others) => {
                let asleep = Asleep;
                // SAFETY: by contract.
                let result = unsafe { sleep(list, &others, left(), mask) };
                let error = std::io::Error::last_os_error();
                drop(asleep);
                // What came meanwhile is not for the helper, which may sleep for a while.
                guarded(|| device::lock().card.background());
                sys::set_errno(sys::errno_of(&error));
                (result, left() == Some(Duration::ZERO))
            }
            // SAFETY: by contract.
            Next::Alone => (unsafe { sleep(list, &[], left(), mask) }, true),
            Next::Bystander => {
                let _bystander = Bystander;
                // SAFETY: by contract.
                (unsafe { sleep(list, &[], left(), mask) }, true)
            }
        };
        if result != 0 || over {
            return result;
        }
    }
}

/// The program's list, if the thread may serve the device while it sleeps on it.
///
/// # Safety
/// As poll(2).
unsafe fn ours<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if count == 0 || count > LONGEST_LIST || fds.is_null() {
        return None;
    }
    // SAFETY: by contract the list is valid during the call.
    let list = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    if !list.iter().any(|entry| vfile::is_virtual(entry.fd)) {
        return None;
    }
    let mut may = false;
    guarded(|| may = may_serve(list));
    may.then_some(list)
}

/// poll(2).
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: as promised by the caller.
    match unsafe { ours(fds, count) }.filter(|_| timeout != 0) {
        Some(list) => {
            let time = u64::try_from(timeout).ok().map(Duration::from_millis);
            // SAFETY: no mask.
            unsafe { wait(list, time, std::ptr::null()) }
        }
        None => {
            if timeout != 0 {
                polls::pause();
            }
            // SAFETY: arguments are handed on unchanged.
            unsafe { sys::poll(fds, count, timeout) }
        }
    }
}

/// sched_yield(2), which a driver calls between two polls of its own: runs the device. While the
/// program has peers in other processes, `patience.rs` decides how often the thread yields.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sched_yield() -> c_int {
    if !driver_polls() {
        sys::yield_now();
    }
    0
}

/// ppoll(2).
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as promised by the caller.
    let known = unsafe { time.as_ref() }.map(|time| {
        let second = u64::try_from(time.tv_sec).ok()?;
        let nanos = u32::try_from(time.tv_nsec).ok().filter(|&nanos| nanos < 1_000_000_000)?;
        Some(Duration::new(second, nanos))
    });
    // A time that is not valid is for the kernel to refuse; no time at all needs no sleep.
    let time_is_short = matches!(known, Some(None | Some(Duration::ZERO)));
    // SAFETY: as promised by the caller.
    match unsafe { ours(fds, count) }.filter(|_| !time_is_short) {
        // SAFETY: as promised by the caller.
        Some(list) => unsafe { wait(list, known.flatten(), mask) },
        None => {
            if !time_is_short {
                polls::pause();
            }
            // SAFETY: arguments are handed on unchanged.
            unsafe { sys::ppoll(fds, count, time, mask) }
        }
    }
}

/// `poll` of programs built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    check(count, room);
    // SAFETY: as promised by the caller.
    unsafe { poll(fds, count, timeout) }
}

/// `ppoll` of programs built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    check(count, room);
    // SAFETY: as promised by the caller.
    unsafe { ppoll(fds, count, time, mask) }
}

/// Ends a program that passes more entries than its list has room for, as the C library does.
fn check(count: nfds_t, room: size_t) {
    if room as u64 / (size_of::<pollfd>() as u64) < count {
        crate::host::sys::say!("*** buffer overflow detected ***: terminated");
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::wake;

    /// A message that the program posted before its sleep must not wait for the end of the nap.
    #[test]
    fn a_program_that_sleeps_ends_the_nap_beside_its_polls() {
        polls::set_nap(true);
        let wakes = wake::count;
        let before = wakes();
        // SAFETY: an empty list.
        unsafe { poll(std::ptr::null_mut(), 0, 1) };
        let by_poll = wakes() != before;
        let (before, time) = (wakes(), libc::timespec { tv_sec: 0, tv_nsec: 1000 });
        // SAFETY: an empty list, a valid time, and no mask.
        unsafe { ppoll(std::ptr::null_mut(), 0, &raw const time, std::ptr::null()) };
        let by_ppoll = wakes() != before;
        polls::set_nap(false);
        assert!(by_poll && by_ppoll);
    }
}
