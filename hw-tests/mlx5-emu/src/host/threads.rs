//! Starting threads of the device inside a program that belongs to somebody else.
#![expect(unsafe_code, reason = "signal masks")]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::host::sys;

/// How long a start waits for its thread. The thread may need the lock of the dynamic linker, which
/// a program that opens the device in a constructor holds.
const PATIENCE: Duration = Duration::from_secs(2);

/// Tells the starter that the thread has what it needs.
pub(crate) struct Ready(Arc<OwnedFd>);

impl Ready {
    pub(crate) fn tell(self) {
        sys::ring(&self.0);
    }
}

/// Starts a thread that gets no signals, and returns when `run` has called [`Ready::tell`]. By then
/// the thread has an arena of the allocator and its thread-local data: a program that writes over
/// functions of the C library while it starts up meets no thread of ours on its way through them.
///
/// # Errors
/// No memory for the thread, or no descriptor.
pub(crate) fn start(name: &str, run: impl FnOnce(Ready) + Send + 'static) -> io::Result<()> {
    let event = Arc::new(sys::eventfd(libc::EFD_NONBLOCK)?);
    let ready = Ready(event.clone());
    // The new thread inherits the mask: signals stay with the program's own threads.
    let old = block_signals();
    let spawned = std::thread::Builder::new().name(name.to_owned()).stack_size(512 << 10).spawn(move || {
        drop(std::hint::black_box(Vec::<u8>::with_capacity(256)));
        run(ready);
    });
    restore_signals(&old);
    spawned?;
    let begin = Instant::now();
    // A signal of the program ends a wait early.
    while !sys::wait_for(&[event.as_raw_fd()], PATIENCE) && begin.elapsed() < PATIENCE {}
    Ok(())
}

/// Blocks every signal in the calling thread and returns the previous mask.
fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are valid places; all-zero is a valid sigset_t.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        old
    }
}

fn restore_signals(old: &libc::sigset_t) {
    // SAFETY: a valid set; the previous one is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old, std::ptr::null_mut()) };
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Whether a thread of this process sleeps.
    pub(crate) fn is_asleep(thread: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
    }

    /// The thread gets ready only when it has seen that its starter waits.
    #[test]
    fn start_waits_until_the_thread_is_ready() {
        static IS_READY: AtomicBool = AtomicBool::new(false);
        // SAFETY: no arguments.
        let starter = unsafe { libc::gettid() }.cast_unsigned();
        start("test", move |ready| {
            let begin = Instant::now();
            while !is_asleep(starter) && begin.elapsed() < Duration::from_secs(1) {
                sys::yield_now();
            }
            IS_READY.store(true, Ordering::SeqCst);
            ready.tell();
        })
        .unwrap();
        assert!(IS_READY.load(Ordering::SeqCst));
    }
}
