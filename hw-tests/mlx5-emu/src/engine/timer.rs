//! Timers of send queues: receiver-not-ready waits and transport retries.

use super::card::Card;
use crate::host::clock;
use crate::objects::{Blocked, Timer};

/// The receiver-not-ready delays of the InfiniBand specification, by code, in units of 10
/// microseconds.
const RNR_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Nanoseconds a requester waits after a receiver-not-ready answer with this code.
pub(super) fn rnr_ns(code: u8) -> u64 {
    u64::from(RNR_10US[usize::from(code & 31)]) * 10_000
}

/// Nanoseconds of a transport timeout; code 0 means for ever.
pub(super) fn transport_ns(code: u8) -> Option<u64> {
    (code != 0).then(|| 4096u64 << (code & 31))
}

impl Card {
    /// Stops a send queue for so long.
    pub(super) fn block_for(&mut self, qp: usize, ns: u64) {
        let state = &mut self.qps[qp];
        state.blocked = Blocked::Timer;
        state.timer_generation = state.timer_generation.wrapping_add(1);
        let timer = Timer {
            due_ns: clock::now_ns().saturating_add(ns),
            qp,
            qpn: state.qpn,
            generation: state.timer_generation,
        };
        self.timers.push(timer);
        crate::host::wake::wake();
    }

    /// Runs the queues whose timers have expired.
    pub(super) fn run_timers(&mut self) {
        if self.timers.is_empty() {
            return;
        }
        let now = clock::now_ns();
        while let Some(&timer) = self.timers.peek() {
            if timer.due_ns > now {
                break;
            }
            self.timers.pop();
            let Some(qp) = self.qps.get_mut(timer.qp) else { continue };
            if qp.qpn == timer.qpn && qp.timer_generation == timer.generation && qp.blocked == Blocked::Timer
            {
                qp.blocked = Blocked::No;
                self.mark_ready(timer.qp);
            }
        }
    }

    /// Nanoseconds until the next timer.
    pub(crate) fn next_timer_ns(&self) -> Option<u64> {
        self.timers.peek().map(|timer| timer.due_ns.saturating_sub(clock::now_ns()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_those_of_the_specification() {
        assert_eq!(rnr_ns(0), 655_360_000);
        assert_eq!(rnr_ns(1), 10_000);
        assert_eq!(rnr_ns(12), 640_000);
        assert_eq!(rnr_ns(31), 491_520_000);
        assert_eq!(transport_ns(0), None);
        assert_eq!(transport_ns(14), Some(67_108_864));
    }
}
