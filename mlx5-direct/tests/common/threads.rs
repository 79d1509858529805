//! A device, a poller and a poster, each on a thread.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

/// Runs a device and a poller on threads of their own, and a poster on this thread. If one of them
/// panics, the others see `true` in their argument and have to end.
pub(crate) fn run_three(
    device: impl FnOnce(&AtomicBool) + Send,
    poller: impl FnOnce(&AtomicBool) + Send,
    poster: impl FnOnce(&AtomicBool),
) {
    struct Alarm<'a>(&'a AtomicBool);

    impl Drop for Alarm<'_> {
        fn drop(&mut self) {
            if thread::panicking() {
                self.0.store(true, Relaxed);
            }
        }
    }

    let failed = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _alarm = Alarm(failed);
            device(failed);
        });
        scope.spawn(|| {
            let _alarm = Alarm(failed);
            poller(failed);
        });
        let _alarm = Alarm(failed);
        poster(failed);
    });
}
