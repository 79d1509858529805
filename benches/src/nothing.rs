//! A data path that does nothing: its cases measure the cost of the runner.

use std::hint::black_box;

use crate::{case::GROUP, path::Path, plan::Spec, queues::Queues};

/// Queues that nobody posts to or polls.
pub struct Nothing {
    queues: Queues,
    bufs: Vec<u64>,
}

impl Nothing {
    /// The path for a case.
    pub fn new(spec: &Spec) -> Self {
        let bufs = (0..GROUP).map(u64::from).collect();
        Self { queues: Queues::untouched(spec.depth, spec.segments), bufs }
    }
}

impl Path for Nothing {
    fn queues(&mut self) -> &mut Queues {
        &mut self.queues
    }

    #[inline(always)]
    fn post(&mut self, call: u32) {
        black_box(call);
    }

    #[inline(always)]
    fn post_group(&mut self) {
        // Walks a list, as posting data paths do.
        for buf in &self.bufs {
            black_box(*buf);
        }
    }

    #[inline(always)]
    fn poll(&mut self, n: u32) {
        black_box(n);
    }

    #[inline(always)]
    fn poll_and_free(&mut self, _: u32) {}

    #[inline(always)]
    fn poll_one(&mut self) {
        black_box(());
    }

    #[inline(always)]
    fn poll_and_free_one(&mut self) {}

    #[inline(always)]
    fn poll_empty(&mut self) {
        black_box(());
    }

    fn free(&mut self, _: &[u16]) {}

    fn fill(&mut self) {}
}
